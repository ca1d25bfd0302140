"""One workload on seven engines, each with one idea more than the one before: what the idea
brings, and what a roofline says that it should.

Every rung is this very engine with options turned off; the lowest is `generate_greedy`, which
asks it for one token at a time and lets it forget. All rungs have the same KV memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any

from ..config import EngineConfig
from ..engine.core import EngineCore, make_scheduler
from ..engine.llm_engine import LLMEngine
from ..kvcache.block_table import blocks_needed
from ..sampling_params import SamplingParams
from .calibrate import bare
from .hardware import Hardware
from .model_shapes import shape_of
from .peaks import measured_peaks
from .roofline import step_seconds
from .timed_run import Tell, TimedRun, serve, serve_naively
from .workload import WorkloadRequest

NAIVE, FUSED = "naive", "fused, packed"
# A rung that takes longer is run once only.
LONG_S = 30.0


@dataclass(frozen=True, slots=True)
class Rung:
    """A name, what is new, and the settings that differ from the rung's below."""

    name: str
    what: str
    settings: dict[str, Any]


@dataclass(slots=True)
class RungResult:
    """What a rung did. seconds: of each repeat."""

    rung: Rung
    config: EngineConfig
    runs: list[TimedRun] = field(default_factory=list)
    roofline_s: float = 0.0  # the last run's steps, on this machine at its best
    parted: list[tuple[int, int, float]] = field(default_factory=list)  # see `parted_texts`

    @property
    def seconds(self) -> float:
        return median(run.wall_s for run in self.runs)

    @property
    def tokens_per_s(self) -> float:
        return self.runs[0].num_new_tokens / self.seconds

    @property
    def prefill_share(self) -> float:
        return median(run.prefill_share for run in self.runs)


def rungs(batch_size: int, num_requests: int, device: str = "cpu") -> list[Rung]:
    """From the bottom up. batch_size: how many requests a static batch has. On other devices
    than a CPU nothing is fused or packed."""
    ladder = [
        Rung(NAIVE, "no KV cache: each token computes all before it again", {"max_num_seqs": 1}),
        Rung("KV cache", "each token is computed once; one request at a time", {}),
        Rung(
            "static batch",
            f"{batch_size} at a time; nobody joins before all have ended",
            {"policy": "static", "max_num_seqs": batch_size},
        ),
        Rung(
            "paged, continuous",
            "blocks as they are needed; whoever waits joins as soon as there are some",
            {"policy": "fcfs", "max_num_seqs": num_requests},
        ),
        Rung("prefix cache", "what prompts share is computed once", {"prefix_cache": "hash"}),
        Rung(FUSED, "weights laid out and steps fused for this processor", {"backend": "cpu"}),
        Rung("bfloat16", "numbers of 16 bits", {"dtype": "bfloat16"}),
    ]
    return [rung for rung in ladder if device == "cpu" or rung.name != FUSED]


def base_config(
    model: str, *, device: str, batch_size: int, max_model_len: int, max_num_batched_tokens: int
) -> EngineConfig:
    """The lowest rung. Its KV memory holds batch_size requests of max_model_len tokens, which is
    what a static batch would set aside."""
    config = EngineConfig(
        model,
        device=device,
        dtype="float32",
        backend="reference",
        prefix_cache="none",
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    blocks = blocks_needed(0, max_model_len, config.block_size)
    return replace(config, num_blocks=1 + batch_size * blocks)


class Ladder:
    """All rungs of one model. Rungs of the same backend and dtype share the loaded model; each
    run has a scheduler, and so a prefix cache, of its own."""

    def __init__(self, base: EngineConfig, ladder: Sequence[Rung]) -> None:
        self.results: list[RungResult] = []
        self.loaded: dict[tuple[str, str], LLMEngine] = {}
        for rung in ladder:
            base = replace(base, **rung.settings)
            self.results.append(RungResult(rung, base))

    def load(self) -> None:
        for result in self.results:
            config = result.config
            if (config.backend, config.dtype) not in self.loaded:
                self.loaded[config.backend, config.dtype] = LLMEngine.from_config(config)

    def engine(self, config: EngineConfig) -> LLMEngine:
        """A fresh engine in front of the loaded model."""
        loaded = self.loaded[config.backend, config.dtype]
        core = loaded.core
        scheduler = make_scheduler(
            config, core.scheduler.kv.pool.num_blocks, loaded.max_model_len,
            tuple(loaded.eos_token_ids),
        )  # fmt: skip
        return LLMEngine(EngineCore(scheduler, core.executor), loaded.tokenizer, loaded.vocab_size)

    def warm_up(self, requests: Sequence[WorkloadRequest]) -> None:
        """Each loaded model serves the workload once, on the highest rung that uses it."""
        highest = {(r.config.backend, r.config.dtype): r.config for r in self.results}
        for config in highest.values():
            serve(self.engine(config), requests)

    def run(self, result: RungResult, requests: Sequence[WorkloadRequest], tell: Tell) -> bool:
        """One repeat of a rung. False, and nothing is run, for one that takes too long."""
        if result.runs and result.runs[0].wall_s > LONG_S:
            return False
        run = serve_naively if result.rung.name == NAIVE else serve
        result.runs.append(run(self.engine(result.config), requests, tell))
        return True

    def predict(self, seconds: float = 0.5) -> dict[str, Hardware]:
        """Fill in what the roofline says of each rung's steps, with no cost but that of its two
        floors. Returns the machine's peaks by dtype."""
        peaks: dict[str, Hardware] = {}
        for result in self.results:
            dtype = result.config.dtype
            worker = self.loaded[result.config.backend, dtype].core.executor.worker
            bits = 8 * worker.dtype.itemsize
            shape = shape_of(worker.model_config)
            deployment = replace(bare(shape, bits, result.config.block_size), compute_bits=bits)
            if dtype not in peaks:
                size = deployment.weight_bytes
                peaks[dtype] = measured_peaks(worker.dtype, worker.device, size, seconds)
            at_best = replace(deployment, hardware=peaks[dtype])
            result.roofline_s = sum(step_seconds(at_best, s.work) for s in result.runs[-1].steps)
        return peaks

    def compare_texts(self) -> None:
        """Fill in where each rung's texts part from the lowest rung's."""
        lowest = self.results[0]
        for result in self.results[1:]:
            engine = self.engine(lowest.config)
            result.parted = parted_texts(engine, lowest.runs[0], result.runs[-1])


def parted_texts(engine: LLMEngine, one: TimedRun, other: TimedRun) -> list[tuple[int, int, float]]:
    """The requests whose answers differ: (request, first token that does, how much less likely
    the engine finds the other's token than its own best, as a difference of log-probabilities).
    Kernels sum in different orders, so two tokens that are all but equally likely may change
    places; a large difference is a fault."""
    found = []
    for index, (a, b) in enumerate(zip(one.outputs, other.outputs, strict=True)):
        if a != b:
            place = next(i for i, (x, y) in enumerate(zip(a, b)) if x != y)
            prompt = one.records[index].request.prompt_token_ids
            found.append((index, place, log_gap(engine, [*prompt, *a[:place]], b[place])))
    return found


def log_gap(engine: LLMEngine, token_ids: list[int], next_id: int) -> float:
    """How far the engine puts next_id behind the likeliest token there: a difference of
    log-probabilities."""
    params = SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=1)
    engine.add_request("gap", [*token_ids, next_id], params)
    while engine.has_unfinished_requests:
        reports = engine.step()
    engine.step()  # the worker is told that it has ended
    last = reports[0].prompt_logprobs[-1]
    return max(entry.logprob for entry in last.values()) - last[next_id].logprob


def roofline_gains(results: Sequence[RungResult]) -> list[float | None]:
    """How many times quicker each rung should be than the one below; None for the lowest."""
    return [None, *(a.roofline_s / b.roofline_s for a, b in pairwise(results))]


def measured_gains(results: Sequence[RungResult]) -> list[float | None]:
    """How many times quicker each rung was: the median of the repeats' own ratios, so that a
    slow minute of the machine counts for both; where one was run once, the ratio of medians."""
    found: list[float | None] = [None]
    for below, above in pairwise(results):
        if len(below.runs) == len(above.runs):
            pairs = zip(below.runs, above.runs)
            found.append(median(a.wall_s / b.wall_s for a, b in pairs))
        else:
            found.append(below.seconds / above.seconds)
    return found
