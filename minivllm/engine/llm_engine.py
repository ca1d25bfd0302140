"""Prompts in, answers out, one step at a time: input processor, engine core, output processor."""

from __future__ import annotations

import importlib.util
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TextIO

from ..checkpoint.model_config import ModelConfig, read_model_config
from ..checkpoint.registry import resolve
from ..config import EngineConfig
from ..metrics.trace import Trace
from ..outputs import EngineCoreOutput, EngineCoreRequest, RequestOutput
from ..sampling_params import SamplingParams
from ..tokenizer.bpe_file import load_bpe
from ..tokenizer.tokenizer import IdTokenizer, Tokenizer, load_tokenizer
from .core import EngineCore, make_core
from .input_processor import InputProcessor, PreparedRequest, Prompt
from .output_processor import OutputProcessor

logger = logging.getLogger(__name__)


class LLMEngine:
    """The whole engine in the caller's thread. Nothing happens but in `step`."""

    def __init__(
        self,
        core: EngineCore,
        tokenizer: Tokenizer,
        vocab_size: int,
        seed: int | None = None,
    ) -> None:
        self.core = core
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.held: dict[str, EngineCoreOutput | None] = {}  # what held requests last reported
        self.input_processor = InputProcessor(
            tokenizer,
            vocab_size=vocab_size,
            max_model_len=core.scheduler.max_model_len,
            seed=seed,
        )
        self.output_processor = OutputProcessor(tokenizer)
        self.trace_file: TextIO | None = None

    @classmethod
    def from_config(
        cls, config: EngineConfig, clock: Callable[[], float] = time.monotonic
    ) -> LLMEngine:
        """Find the checkpoint, load it, make the engine. Raises ValueError, with what to change,
        for a model or a setting that cannot be served."""
        path = resolve(config.model)
        model_config = read_model_config(path)
        tokenizer = tokenizer_of(path, model_config)
        eos = dict.fromkeys(tokenizer.eos_token_ids + model_config.eos_token_ids)
        model_config = replace(model_config, eos_token_ids=tuple(eos))
        file, trace = None, None
        if config.trace_file is not None:
            # Written line by line until `shutdown`.
            file = open(config.trace_file, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
            trace = Trace(file.write, config=asdict(config), eos_token_ids=list(eos))
        engine = cls(
            make_core(config, model_config, clock, trace),
            tokenizer,
            model_config.vocab_size,
            config.seed,
        )
        engine.trace_file = file
        return engine

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self.core.scheduler.eos_token_ids

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together."""
        return self.core.scheduler.max_model_len

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        every_step: bool = True,  # False: one report, when it has finished
    ) -> None:
        """Queue a prompt. Raises ValueError, and queues nothing, if it cannot be served."""
        self.queue(self.prepare(request_id, prompt, params, priority=priority), every_step)

    def prepare(
        self, request_id: str, prompt: Prompt, params: SamplingParams, *, priority: int = 0
    ) -> PreparedRequest:
        """The first half of `add_request`: check everything, queue nothing."""
        return self.input_processor.process(
            request_id, prompt, params, arrival_time=self.core.clock(), priority=priority
        )

    def queue(self, ready: PreparedRequest, every_step: bool = True) -> None:
        """The second half. Raises ValueError if the id is in use."""
        self.output_processor.add_request(ready, every_step)
        for sample in ready.samples:
            self.core.add_request(sample)

    def abort(self, request_id: str) -> None:
        """Forget a request in any state and free its memory; unknown ids are ignored, since the
        request may have ended just now."""
        if request_id in self.output_processor.requests:
            for sample_id in self.output_processor.remove(request_id):
                self.core.abort(sample_id)

    def hold(self, request: EngineCoreRequest) -> None:
        """Queue a request that reports its next token's scores once, in `held`, and keeps its
        blocks for others to fork until it is let go."""
        assert request.holds_blocks
        self.held[request.request_id] = None
        self.core.add_request(request)

    @property
    def is_stuck(self) -> bool:
        """Nobody runs but held requests that have reported, and others wait for their memory."""
        scheduler = self.core.scheduler
        return bool(scheduler.waiting) and not any(
            request.num_uncomputed_tokens for request in scheduler.running
        )

    def let_go(self, request_id: str) -> None:
        del self.held[request_id]
        self.core.abort(request_id)

    def step(self) -> list[RequestOutput]:
        """Run one step. Returns a report of each request that gained something."""
        outputs = []
        for output in self.core.step():
            if output.request_id in self.held:
                self.held[output.request_id] = output
            else:
                outputs.append(output)
        reports, stopped = self.output_processor.process(outputs, self.core.clock())
        for sample_id in stopped:
            self.core.abort(sample_id)
        return reports

    @property
    def has_unfinished_requests(self) -> bool:
        return self.core.has_unfinished_requests

    def shutdown(self) -> None:
        self.core.shutdown()
        if self.trace_file is not None:
            self.trace_file.close()


def tokenizer_of(path: str, model_config: ModelConfig) -> Tokenizer | IdTokenizer:
    """The checkpoint's tokenizer; for a folder that has none, numbers as text."""
    if path.endswith(".gguf") or os.path.isfile(os.path.join(path, "tokenizer.json")):
        if importlib.util.find_spec("tokenizers") is None:
            logger.info("there is no `tokenizers` library here: text is tokenized in plain Python")
            return load_bpe(path)
        return load_tokenizer(path)
    return IdTokenizer(
        model_config.vocab_size, model_config.bos_token_id, model_config.eos_token_ids
    )
