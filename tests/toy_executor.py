"""A model in plain Python whose KV can be looked at: the judge of everything that schedules.

Each slot of its memory holds the token that was written there and at which position. The next
token is a function of *all* tokens read back through the block table, so a wrong slot, a block
given to two requests, a stale table or a lost token changes the answer.
"""

from __future__ import annotations

import hashlib

from minivllm.engine.core import EngineCore
from minivllm.executor.base import Executor
from minivllm.kvcache.block_table import slot_mapping
from minivllm.kvcache.caches import CACHES
from minivllm.kvcache.kv_cache_manager import KVCacheManager
from minivllm.kvcache.spec import KVCacheSpec
from minivllm.outputs import LAST_SAMPLED, ModelRunnerOutput, PromptLogprobs
from minivllm.philox import uniform
from minivllm.scheduler.policy import POLICIES
from minivllm.scheduler.scheduler import Scheduler


def next_token(tokens, params, sample_index, vocab_size):
    """What the toy model says after `tokens`: by its scores alone, or by a seeded draw."""
    key = hashlib.sha256(repr(tuple(tokens)).encode()).digest()
    if params.temperature == 0:
        return key[0] * 256 % vocab_size if vocab_size > 256 else key[0] % vocab_size
    draw = uniform(params.seed, sample_index, len(tokens))
    return int(draw * vocab_size + key[1]) % vocab_size


class ToyExecutor(Executor):
    def __init__(self, config=None, model_config=None, *, block_size=4, vocab_size=50, fail_on=()):
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.fail_on = set(fail_on)  # request ids whose scores are NaN
        self.states = {}
        self.plans = []

    def kv_cache_specs(self):
        return (KVCacheSpec(self.block_size, 1, 1, 1, 1),)

    def available_memory(self):
        return 1 << 20

    def initialize(self, num_blocks, num_host_blocks=0):
        self.slots = ["never written"] * (num_blocks * self.block_size)
        self.host = ["never written"] * (num_host_blocks * self.block_size)

    def execute_model(self, plan):
        self.plans.append(plan)
        for request_id in plan.finished_ids + plan.preempted_ids:
            del self.states[request_id]
        for new in plan.new_requests:
            assert new.request_id not in self.states, "introduced twice"
            self.states[new.request_id] = {"new": new, "table": [], "last": None}
        for source, target in plan.swap_out:
            self._move(self.slots, source, self.host, target)
        for source, target in plan.swap_in:
            self._move(self.host, source, self.slots, target)
        for source, target in plan.copies:
            self._move(self.slots, source, self.slots, target)
        for block_id in plan.freed_blocks:
            start = block_id * self.block_size
            self.slots[start : start + self.block_size] = ["poison"] * self.block_size
        for row in plan.rows:
            self._write(row)

    def _move(self, source, source_id, target, target_id):
        size = self.block_size
        target[target_id * size : (target_id + 1) * size] = source[
            source_id * size : (source_id + 1) * size
        ]

    def _write(self, row):
        state = self.states[row.request_id]
        table = state["table"]
        table[row.table_start[0] :] = row.table_ids[0]
        assert 0 not in table, "the null block is in a table"
        slots = slot_mapping(table, row.start, len(row.token_ids), self.block_size)
        for index, (slot, token_id) in enumerate(zip(slots, row.token_ids, strict=True)):
            if token_id == LAST_SAMPLED:
                token_id = state["last"]
            self.slots[slot] = (row.start + index, token_id)

    def _read(self, row):
        """All tokens of a request up to the end of this row, through its block table."""
        end = row.start + len(row.token_ids)
        table = self.states[row.request_id]["table"]
        tokens = []
        for position, slot in enumerate(slot_mapping(table, 0, end, self.block_size)):
            assert isinstance(self.slots[slot], tuple), (
                f"{row.request_id} reads {self.slots[slot]} at position {position}"
            )
            written_at, token_id = self.slots[slot]
            assert written_at == position, "KV of another position"
            tokens.append(token_id)
        return tokens

    def sample_tokens(self, step, masks=None):
        plan = self.plans[-1]
        assert plan.step == step
        sampled, errors, scores = [], [], []
        for row in plan.rows:
            tokens = self._read(row)
            state = self.states[row.request_id]
            new = state["new"]
            scores.append(self._prompt_scores(row, new) if row.wants_prompt_logprobs else None)
            if row.num_to_sample == 0:
                sampled.append(())
            elif new.request_id in self.fail_on:
                sampled.append(())
                errors.append((new.request_id, "scores are NaN"))
            else:
                token_id = next_token(
                    tokens, new.sampling_params, new.sample_index, self.vocab_size
                )
                state["last"] = token_id
                sampled.append((token_id,))
        return ModelRunnerOutput(
            step=step,
            sampled=tuple(sampled),
            prompt_logprobs=tuple(scores),
            errors=tuple(errors),
        )

    def _prompt_scores(self, row, new):
        """Of each prompt token but the first: minus its position, so that order can be seen."""
        start = row.start + 1
        end = min(row.start + len(row.token_ids) + 1, new.num_prompt_tokens)
        entries = [((new.token_ids[p], -float(p), 1),) for p in range(start, end)]
        return PromptLogprobs(start, tuple(entries))


def solo(prompt, params, *, vocab_size=50, eos=(), max_model_len=10**9, sample_index=0):
    """What a request must say whatever its company: ids and finish reason, in ten lines."""
    tokens, output = list(prompt), []
    while True:
        token_id = next_token(tokens, params, sample_index, vocab_size)
        tokens.append(token_id)
        output.append(token_id)
        if len(output) >= params.min_tokens:
            if token_id in eos and not params.ignore_eos:
                return output, "stop"
            if token_id in params.stop_token_ids:
                return output, "stop"
        if len(output) == params.max_tokens or len(tokens) >= max_model_len:
            return output, "length"


def make_core(
    num_blocks=100,
    block_size=4,
    max_num_seqs=8,
    budget=16,
    max_model_len=None,
    eos=(),
    prefix_cache="none",
    policy="fcfs",
    num_host_blocks=0,
    trace=None,
    clock=None,
    scheduling=(),  # further options of Scheduler
    **toy,
):
    cache = CACHES[prefix_cache](block_size)
    kv = KVCacheManager(num_blocks, block_size, cache, num_host_blocks)
    scheduler = Scheduler(
        kv,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len or kv.max_tokens,
        eos_token_ids=eos,
        policy=POLICIES[policy](kv),
        trace=trace,
        debug=True,
        **dict(scheduling),
    )
    executor = ToyExecutor(block_size=block_size, **toy)
    executor.initialize(num_blocks, num_host_blocks)
    return EngineCore(scheduler, executor, clock=clock or (lambda: 0.0))


def assert_all_free(core):
    kv = core.scheduler.kv
    for block_id in kv.cache.clear():
        kv.pool.give_back(block_id)
    assert len(kv.host.free_ids) == kv.host.num_blocks
    assert kv.pool.num_free == kv.pool.num_blocks - 1 and not kv.tables
