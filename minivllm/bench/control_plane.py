"""What deciding costs: the scheduler and the prefix caches alone, with nobody computing.

A step's figure is `schedule` and `update_from_output` together, for requests that all run. Times
are of one core, medians; nothing here needs torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from ..config import EngineConfig
from ..engine.core import make_scheduler
from ..kvcache.caches import CACHES
from ..kvcache.kv_cache_manager import KVCacheManager
from ..metrics.trace import Trace
from ..outputs import EngineCoreRequest, ModelRunnerOutput
from ..request import Request
from ..sampling_params import SamplingParams
from ..scheduler.scheduler import Scheduler

BLOCK_SIZE = 16


def step_cost_s(
    prefix_cache: str, *, num_running: int = 256, num_tokens: int = 1000, num_steps: int = 100,
    with_trace: bool = False,
) -> float:  # fmt: skip
    """Seconds of a step in which num_running requests of num_tokens tokens gain one each."""
    trace = Trace(lambda line: None) if with_trace else None
    scheduler = running_scheduler(prefix_cache, num_running, num_tokens, trace)
    return median(one_step(scheduler, trace) for _ in range(num_steps))


def running_scheduler(
    prefix_cache: str, num_running: int, num_tokens: int, trace: Trace | None
) -> Scheduler:
    """A scheduler, with a pool of 100,000 blocks, whose requests have all had their first step."""
    config = EngineConfig(
        "none", prefix_cache=prefix_cache, block_size=BLOCK_SIZE, max_num_seqs=num_running,
        max_num_batched_tokens=num_running * num_tokens,
    )  # fmt: skip
    scheduler = make_scheduler(config, 100_000, num_tokens + 2000, trace=trace)
    for index in range(num_running):
        scheduler.add_request(Request(own_prompt(index, num_tokens)))
    one_step(scheduler, trace)
    return scheduler


def own_prompt(index: int, num_tokens: int) -> EngineCoreRequest:
    """A prompt that shares its beginning with no other."""
    tokens = (index, *(j % 5000 for j in range(1, num_tokens)))
    params = SamplingParams(temperature=0, seed=0, max_tokens=2000, ignore_eos=True)
    return EngineCoreRequest(str(index), tokens, params)


def one_step(scheduler: Scheduler, trace: Trace | None) -> float:
    """Seconds to plan a step and to take in its result, not to make that up."""
    start = time.perf_counter()
    plan = scheduler.schedule()
    planned = time.perf_counter() - start
    sampled = tuple((5,) if row.num_to_sample else () for row in plan.rows)
    result = ModelRunnerOutput(plan.step, sampled)
    start = time.perf_counter()
    if trace is not None:
        trace.step(0.0, plan, result)
    scheduler.update_from_output(plan, result)
    return planned + time.perf_counter() - start


def cache_costs_s(
    prefix_cache: str, *, num_cached: int, num_tokens: int = 4000, repeats: int = 50
) -> dict[str, float]:
    """Seconds to match a prompt of num_tokens tokens, and to publish one more block of it, while
    num_cached blocks are cached."""
    cache = CACHES[prefix_cache](BLOCK_SIZE)
    per_prompt = num_tokens // BLOCK_SIZE
    num_prompts = max(1, num_cached // per_prompt)
    kv = KVCacheManager((num_prompts + 1) * (per_prompt + 1) + 1, BLOCK_SIZE, cache)
    for index in range(num_prompts):
        request = cached_request(kv, index, num_tokens)
        kv.free(request)
    tokens = own_prompt(num_prompts // 2, num_tokens).prompt_token_ids
    match_s = timed(lambda: cache.match_prefix(tokens, ()), repeats)

    request = cached_request(kv, num_prompts, num_tokens)
    publish_s = []
    for _ in range(min(repeats, kv.num_free_blocks)):
        request.token_ids += [1] * BLOCK_SIZE
        kv.allocate_slots(request, BLOCK_SIZE)
        request.num_computed_tokens += BLOCK_SIZE
        publish_s.append(timed(lambda: kv.publish(request), 1))
    return {"match_s": match_s, "publish_s": median(publish_s)}


def cached_request(kv: KVCacheManager, index: int, num_tokens: int) -> Request:
    request = Request(own_prompt(index, num_tokens))
    kv.attach(request, [])
    kv.allocate_slots(request, num_tokens)
    request.num_computed_tokens = num_tokens
    kv.publish(request)
    return request


def timed(call: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return median(seconds)
