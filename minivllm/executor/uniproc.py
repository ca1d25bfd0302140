"""One worker, in this process."""

from __future__ import annotations

from collections.abc import Mapping

from ..checkpoint.model_config import ModelConfig
from ..config import EngineConfig
from ..kvcache.spec import KVCacheSpec
from ..outputs import ModelRunnerOutput, SchedulerOutput
from ..worker.worker import Worker
from .base import Executor


class UniprocExecutor(Executor):
    """Hands every call to its worker. On a CPU `execute_model` returns when the scores are there,
    on a GPU when the work is queued."""

    def __init__(self, config: EngineConfig, model_config: ModelConfig) -> None:
        self.worker = Worker(config, model_config)

    def kv_cache_specs(self) -> tuple[KVCacheSpec, ...]:
        return (self.worker.spec,)

    def available_memory(self) -> int:
        return self.worker.available_memory()

    def initialize(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        self.worker.initialize(num_blocks, num_host_blocks)

    def execute_model(self, plan: SchedulerOutput) -> None:
        self.worker.execute_model(plan)

    def sample_tokens(
        self, step: int, masks: Mapping[str, tuple[bytes, ...]] | None = None
    ) -> ModelRunnerOutput:
        return self.worker.sample_tokens(step, masks)

    def shutdown(self) -> None:
        self.worker.shutdown()
