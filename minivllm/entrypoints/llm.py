"""The Python face: `LLM` turns prompts into answers. Waits; serves one caller at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from ..config import EngineConfig
from ..engine.input_processor import PreparedRequest, Prompt
from ..engine.llm_engine import LLMEngine
from ..outputs import RequestOutput
from ..sampling_params import SamplingParams
from ..tokenizer.chat_template import render_chat
from .beam import BeamSearch, BeamSearchParams

Message = Mapping[str, Any]


class LLM:
    """A loaded model and everything around it.

    model: a name ("smollm2-135m"), a .gguf file or a Hugging Face checkpoint folder. options:
    the fields of `EngineConfig`, vLLM's names where vLLM has them. Raises ValueError, naming what
    to change, for a model or an option that is not supported. Not to be shared by threads; several
    `stream`s of one thread may take turns.
    """

    def __init__(self, model: str, **options: Any) -> None:
        known = EngineConfig.__dataclass_fields__
        for name in options:
            if name not in known:
                raise ValueError(f"LLM has no option {name!r} (options: {', '.join(known)})")
        self._start(LLMEngine.from_config(EngineConfig(model=str(model), **options)))

    @classmethod
    def from_engine(cls, engine: LLMEngine) -> LLM:
        """An `LLM` in front of an engine that is made already."""
        llm = cls.__new__(cls)
        llm._start(engine)
        return llm

    def _start(self, engine: LLMEngine) -> None:
        self.engine = engine
        self._is_shut_down = False
        self._ids = count()
        self._mail: dict[str, deque[RequestOutput]] = {}  # reports not yet handed to their stream

    @property
    def tokenizer(self):
        return self.engine.tokenizer

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together."""
        return self.engine.max_model_len

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answers, in the order of the prompts.

        prompts: a string or a list of token ids, or a list of either. params: one for all, or one
        each. Raises ValueError before anything runs, naming the index, if a prompt cannot be
        served. A request that fails later ends with finish_reason "error", the others go on.
        """
        prompts = as_prompts(prompts)
        params = as_params(params, len(prompts))
        prepared = []
        for index, (prompt, own) in enumerate(zip(prompts, params, strict=True)):
            try:
                prepared.append(self._prepare(prompt, own))
            except ValueError as error:
                raise ValueError(f"prompt {index}: {error}") from error
        try:
            for ready in prepared:
                self._queue(ready, every_step=False)
            return [self._next_report(ready.request_id) for ready in prepared]
        finally:
            for ready in prepared:
                self._forget(ready.request_id)

    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> list[RequestOutput]:
        """The answer to a conversation, as `generate` gives it. messages: dicts with "role"
        ("system", "user", "assistant", "tool") and "content"."""
        return self.generate([self._chat_prompt(messages)], params)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams | None = None
    ) -> list[RequestOutput]:
        """The likeliest answers, by beam search: `outputs` of each prompt are its beams, the best
        first, with `cumulative_logprob`. Raises ValueError if a prompt cannot be served."""
        params = params or BeamSearchParams()
        if not isinstance(params, BeamSearchParams):
            raise ValueError(f"beam_search takes BeamSearchParams, got {kind(params)}")
        return [
            BeamSearch(self.engine, f"beam {next(self._ids)}", params).run(prompt, self._step)
            for prompt in as_prompts(prompts)
        ]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Reports of one request as it grows, the last one finished. Closing the iterator aborts
        the request. Raises ValueError at once if the prompt cannot be served."""
        (params,) = as_params(params, 1)
        return self._reports(self._prepare(prompt, params))

    def stream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """`stream` for a conversation."""
        return self.stream(self._chat_prompt(messages), params)

    def abort_all(self) -> None:
        """Give up every request that is under way."""
        for request_id in list(self._mail):
            self._forget(request_id)

    def shutdown(self) -> None:
        """Give up the model and its memory; nothing can be asked afterwards."""
        self.abort_all()
        self.engine.shutdown()
        self._is_shut_down = True

    def _chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        if isinstance(messages, Mapping):
            raise ValueError("messages is a list: put the one message into [ ]")
        return render_chat(self.tokenizer, messages)

    def _prepare(self, prompt: Prompt, params: SamplingParams) -> PreparedRequest:
        if self._is_shut_down:
            raise ValueError("this LLM was shut down: make a new one")
        return self.engine.prepare(str(next(self._ids)), prompt, params)

    def _queue(self, ready: PreparedRequest, every_step: bool) -> None:
        self.engine.queue(ready, every_step)
        self._mail[ready.request_id] = deque()

    def _reports(self, ready: PreparedRequest) -> Iterator[RequestOutput]:
        self._queue(ready, every_step=True)
        try:
            while ready.request_id in self._mail:  # not aborted by somebody else
                report = self._next_report(ready.request_id)
                yield report
                if report.finished:
                    return
        finally:
            self._forget(ready.request_id)

    def _next_report(self, request_id: str) -> RequestOutput:
        """Step until the request has something to say; what others say waits in their mail."""
        mail = self._mail[request_id]
        while not mail:
            self._step()
        return mail.popleft()

    def _step(self) -> None:
        for report in self.engine.step():
            self._mail[report.request_id].append(report)

    def _forget(self, request_id: str) -> None:
        self.engine.abort(request_id)
        self._mail.pop(request_id, None)


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, or a list of them, as a list. Raises ValueError for what is neither."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray):
        raise ValueError(
            f"a prompt is a string or a list of token ids, and prompts a list of either; "
            f"got {kind(prompts)}"
        )
    if prompts and all(isinstance(prompt, int) for prompt in prompts):
        return [prompts]
    return list(prompts)


def as_params(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> Sequence[SamplingParams]:
    """Parameters for each prompt. Raises ValueError for what are none, or not as many."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if not isinstance(params, list | tuple):
        raise ValueError(f"params is a SamplingParams or a list of them, got {kind(params)}")
    if len(params) != num_prompts:
        raise ValueError(f"{num_prompts} prompts, but {len(params)} SamplingParams")
    for own in params:
        if not isinstance(own, SamplingParams):
            raise ValueError(f"params holds SamplingParams, got {kind(own)}")
    return params


def kind(thing: object) -> str:
    """What it is, for a message."""
    return f"{type(thing).__name__} {thing!r}"[:60]
