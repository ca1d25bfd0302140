"""The engine's heart: plan a step, run it, take in what came of it. Ids in, ids out; no text."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import time
from collections.abc import Callable

from ..checkpoint.model_config import ModelConfig
from ..config import EngineConfig
from ..executor.base import Executor
from ..kvcache.caches import CACHES
from ..kvcache.kv_cache_manager import KVCacheManager
from ..kvcache.spec import KVCacheSpec
from ..metrics.trace import Trace
from ..outputs import EngineCoreOutput, EngineCoreRequest
from ..request import Request
from ..scheduler.policy import POLICIES
from ..scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

# The short names of executors: EngineConfig.executor.
EXECUTORS = {
    "uniproc": "executor.uniproc.UniprocExecutor",
    "plain": "executor.plain.PlainExecutor",
}


class EngineCore:
    """A scheduler on one side of the door, an executor on the other."""

    def __init__(
        self, scheduler: Scheduler, executor: Executor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.trace = scheduler.trace

    def add_request(self, request: EngineCoreRequest) -> None:
        if self.trace:
            self.trace.add(request)
        self.scheduler.add_request(Request(request))

    def abort(self, request_id: str) -> bool:
        """End a request now, in any state. False if it is gone already."""
        if self.trace:
            self.trace.abort(request_id)
        return self.scheduler.abort(request_id)

    @property
    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished_requests

    def step(self) -> list[EngineCoreOutput]:
        """Plan, execute, sample, update. Returns what each request gained; an empty list when
        there was nothing to plan. A plan without rows still runs if it has something to forget,
        move or load."""
        now = self.clock()
        plan = self.scheduler.schedule(now)
        if plan.is_empty():
            return []
        self.executor.execute_model(plan)
        result = self.executor.sample_tokens(plan.step)
        if self.trace:
            self.trace.step(now, plan, result)
        return self.scheduler.update_from_output(plan, result)

    def shutdown(self) -> None:
        self.executor.shutdown()


def make_core(
    config: EngineConfig,
    model_config: ModelConfig,
    clock: Callable[[], float] = time.monotonic,
    trace: Trace | None = None,
) -> EngineCore:
    """Load the model behind an executor, size its KV memory, put a scheduler in front.

    Raises ValueError when not even one block fits, or when max_model_len is more than the
    model's positions.
    """
    max_model_len = longest_request(config, model_config)
    executor = executor_class(config.executor)(config, model_config)
    (spec,) = executor.kv_cache_specs()
    num_blocks = config.num_blocks or blocks_for(
        spec, executor.available_memory(), max_model_len, config.max_num_seqs
    )
    max_tokens = (num_blocks - 1) * spec.block_size
    if max_model_len > max_tokens:
        logger.warning(
            "max_model_len lowered from %d to %d: %d blocks of %d tokens hold no more",
            max_model_len, max_tokens, num_blocks - 1, spec.block_size,
        )  # fmt: skip
        max_model_len = max_tokens
    executor.initialize(num_blocks, config.num_host_blocks)
    scheduler = make_scheduler(config, num_blocks, max_model_len, model_config.eos_token_ids, trace)
    return EngineCore(scheduler, executor, clock)


def make_scheduler(
    config: EngineConfig,
    num_blocks: int,
    max_model_len: int,
    eos_token_ids: tuple[int, ...] = (),
    trace: Trace | None = None,
) -> Scheduler:
    """A scheduler and its memory, as the config says."""
    cache = CACHES[config.prefix_cache](config.block_size)
    kv = KVCacheManager(num_blocks, config.block_size, cache, config.num_host_blocks)
    return Scheduler(
        kv,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        eos_token_ids=eos_token_ids,
        policy=POLICIES[config.policy](kv),
        preemption=config.preemption,
        trace=trace,
        debug=config.debug,
    )


def executor_class(name: str) -> type[Executor]:
    """The executor that the config names: only then is its room imported, so that an engine
    without torch stays without it. Raises ValueError for a name that is none."""
    if name == "auto":
        name = "uniproc" if _is_installed("torch") else "plain"
    module_name, _, class_name = EXECUTORS.get(name, name).rpartition(".")
    package = __package__.rpartition(".")[0]
    try:
        return getattr(importlib.import_module(f"{package}.{module_name}"), class_name)
    except (ImportError, AttributeError, TypeError) as error:
        if name in EXECUTORS:
            raise
        known = ", ".join(("auto", *EXECUTORS))
        raise ValueError(f"executor={name!r} is not there (known: {known}): {error}") from error


def _is_installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ValueError:  # in sys.modules, but not imported from anywhere
        return sys.modules.get(library) is not None


def longest_request(config: EngineConfig, model_config: ModelConfig) -> int:
    limit = model_config.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > limit:
        raise ValueError(
            f"max_model_len {config.max_model_len} is more than the model's {limit} positions"
        )
    return config.max_model_len or limit


def blocks_for(spec: KVCacheSpec, memory_bytes: int, max_model_len: int, max_num_seqs: int) -> int:
    """Blocks in memory_bytes, but no more than all requests at their longest could fill."""
    num_blocks = spec.num_blocks(memory_bytes)
    if num_blocks < 2:
        raise ValueError(
            f"{memory_bytes:,} bytes of KV memory hold {num_blocks} blocks of "
            f"{spec.bytes_per_block:,} bytes, and the smallest engine needs 2: "
            f"raise kv_cache_memory_bytes or lower block_size"
        )
    blocks_per_request = -(-max_model_len // spec.block_size)
    return min(num_blocks, 1 + max_num_seqs * blocks_per_request)
