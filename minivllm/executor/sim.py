"""A virtual clock behind the door: the real scheduler's plans take the time that a roofline model
says, and tokens are invented. Nothing is computed, so nothing here is a measurement."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Collection, Mapping

from ..bench.roofline import Deployment, plan_work, step_seconds
from ..config import EngineConfig
from ..kvcache.spec import KVCacheSpec
from ..outputs import NULL_BLOCK, ModelRunnerOutput, Row, SchedulerOutput
from .base import Executor

_STRIDE = 7919  # between an answer's tokens: a prime, so that they do not repeat for a long time


def answer_seed(request_id: str) -> int:
    """What a request's invented answer depends on."""
    return zlib.crc32(request_id.encode())


def invented_token(seed: int, position: int, vocab_size: int) -> int:
    """The token at a position of a request: the same whatever its company, chunks or
    preemptions, so that whoever writes a workload knows each answer before it is given."""
    return (seed + position * _STRIDE) % vocab_size


class SimExecutor(Executor):
    """Moves `now` by the time of each plan. Steps may be started ahead; they end in order.

    fail_on: ids of requests that end in an error when they are sampled first. check_plans: assert
    that each plan follows from those before it, at about twice the cost.
    """

    def __init__(
        self,
        config: EngineConfig,
        deployment: Deployment,
        *,
        fail_on: Collection[str] = (),
        check_plans: bool = False,
    ) -> None:
        if config.block_size != deployment.block_size:
            raise ValueError(
                f"block_size is {config.block_size} in the engine and {deployment.block_size} "
                f"in the deployment"
            )
        self.deployment = deployment
        self.memory_utilization = config.gpu_memory_utilization
        self.now = 0.0  # seconds
        self.num_steps = 0
        self.last_plan: SchedulerOutput | None = None
        self.last_seconds = 0.0
        self._fail_on = frozenset(fail_on)
        self._seeds: dict[str, int] = {}  # of the requests that were introduced
        self._refused: dict[str, str] = {}  # request id -> why it cannot be simulated
        self._started: deque[tuple[SchedulerOutput, float]] = deque()
        self._judge = PlanJudge(deployment.block_size) if check_plans else None

    def clock(self) -> float:
        """Virtual seconds, for an `EngineCore` to go by."""
        return self.now

    def wait_until(self, time: float) -> None:
        """Nothing to run: let the clock jump. Never back."""
        self.now = max(self.now, time)

    def kv_cache_specs(self) -> tuple[KVCacheSpec, ...]:
        model, deployment = self.deployment.model, self.deployment
        return (
            KVCacheSpec(
                block_size=deployment.block_size,
                num_layers=model.num_layers,
                num_kv_heads=model.num_kv_heads,
                head_dim=model.head_dim,
                dtype_bytes=max(1, deployment.kv_bits // 8),
            ),
        )

    def available_memory(self) -> int:
        """Of all devices together, counting a KV head that several of them keep once."""
        (spec,) = self.kv_cache_specs()
        return self.deployment.num_blocks(self.memory_utilization) * spec.bytes_per_block

    def initialize(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        if self._judge:
            self._judge.num_blocks = num_blocks

    def execute_model(self, plan: SchedulerOutput) -> None:
        if self._judge:
            self._judge.look_at(plan)
        for request_id in plan.finished_ids + plan.preempted_ids:
            del self._seeds[request_id]
        for new in plan.new_requests:
            self._seeds[new.request_id] = answer_seed(new.request_id)
            params = new.sampling_params
            if new.request_id in self._fail_on:
                self._refused[new.request_id] = "the simulation was asked to fail this request"
            elif params.logprobs is not None or params.prompt_logprobs is not None:
                self._refused[new.request_id] = "the simulator has no log-probabilities"
        self._started.append((plan, step_seconds(self.deployment, plan_work(plan))))

    def sample_tokens(
        self, step: int, masks: Mapping[str, tuple[bytes, ...]] | None = None
    ) -> ModelRunnerOutput:
        if masks:
            raise ValueError("the simulator invents tokens and cannot obey a grammar")
        assert self._started, "no step was started"
        plan, seconds = self._started.popleft()
        assert plan.step == step, f"step {plan.step} was started first, not {step}"
        self.now += seconds
        self.num_steps += 1
        self.last_plan, self.last_seconds = plan, seconds
        sampled, errors = self._invent(plan.rows), ()
        if self._refused:
            sampled, errors = self._refuse(plan.rows, sampled)
        return ModelRunnerOutput(step=step, sampled=tuple(sampled), errors=errors)

    def _invent(self, rows: tuple[Row, ...]) -> list[tuple[int, ...]]:
        seeds, vocab_size = self._seeds, self.deployment.model.vocab_size
        sampled: list[tuple[int, ...]] = []
        for row in rows:
            if row.num_to_sample:
                position = row.start + len(row.token_ids)
                sampled.append((invented_token(seeds[row.request_id], position, vocab_size),))
            else:
                sampled.append(())
        return sampled

    def _refuse(
        self, rows: tuple[Row, ...], sampled: list[tuple[int, ...]]
    ) -> tuple[list[tuple[int, ...]], tuple[tuple[str, str], ...]]:
        """The same without the rows of refused requests, and those requests' errors."""
        errors = []
        for index, row in enumerate(rows):
            if row.request_id in self._refused:
                sampled[index] = ()
                errors.append((row.request_id, self._refused.pop(row.request_id)))
        return sampled, tuple(errors)


class PlanJudge:
    """Asserts that plans make sense one after another, from the worker's side of the door."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.num_blocks = 0
        self.tables: dict[str, list[int]] = {}  # request id -> block ids
        self.computed: dict[str, int] = {}  # request id -> tokens whose KV exists

    def look_at(self, plan: SchedulerOutput) -> None:
        for request_id in plan.finished_ids + plan.preempted_ids:
            del self.tables[request_id]
            del self.computed[request_id]
        for new in plan.new_requests:
            assert new.request_id not in self.tables, f"{new.request_id} is introduced twice"
            self.tables[new.request_id] = []
        seen, written = set(), set()
        for row in plan.rows:
            assert row.request_id not in seen, f"{row.request_id} has two rows"
            seen.add(row.request_id)
            blocks = self._written_blocks(row)
            assert not written & blocks, f"{row.request_id} writes to a block of another row"
            written |= blocks

    def _written_blocks(self, row: Row) -> set[int]:
        """Follow one row: it starts where the request stands, and its table reaches its end."""
        table = self.tables[row.request_id]
        end = row.start + len(row.token_ids)
        (index,), (block_ids,) = row.table_start, row.table_ids
        assert index <= len(table), f"{row.request_id} has a hole in its table"
        table[index:] = block_ids
        assert row.token_ids and row.num_to_sample <= len(row.token_ids)
        assert row.start == self.computed.setdefault(row.request_id, row.start), (
            f"{row.request_id} goes on at {row.start}, computed are {self.computed[row.request_id]}"
        )
        assert len(table) * self.block_size >= end, f"{row.request_id} writes past its table"
        blocks = set(table[row.start // self.block_size : -(-end // self.block_size)])
        assert all(NULL_BLOCK < b < self.num_blocks for b in blocks)
        self.computed[row.request_id] = end
        return blocks
