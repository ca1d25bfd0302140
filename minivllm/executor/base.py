"""The door between the two halves: the control plane decides, whoever stands behind this computes.

An executor owns the model, the KV memory and the device. It never decides what to run next, and
only the frozen messages of `outputs` pass through it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from ..checkpoint.model_config import ModelConfig
from ..config import EngineConfig
from ..kvcache.spec import KVCacheSpec
from ..outputs import ModelRunnerOutput, SchedulerOutput


class Executor(ABC):
    """Made with the config and the checkpoint's shape; loads the model at once.

    Calls come in this order: `kv_cache_specs`, `available_memory`, `initialize`, then for each
    step `execute_model` and `sample_tokens`, at last `shutdown`.
    """

    @abstractmethod
    def __init__(self, config: EngineConfig, model_config: ModelConfig) -> None: ...

    @abstractmethod
    def kv_cache_specs(self) -> tuple[KVCacheSpec, ...]:
        """What one token's KV takes, one spec per KV group."""

    @abstractmethod
    def available_memory(self) -> int:
        """Bytes that KV blocks may take on the device."""

    @abstractmethod
    def initialize(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Make the KV memory: `num_blocks` blocks, block 0 (the null block) among them."""

    @abstractmethod
    def execute_model(self, plan: SchedulerOutput) -> None:
        """Start the step. Returns without waiting for the device."""

    @abstractmethod
    def sample_tokens(
        self, step: int, masks: Mapping[str, tuple[bytes, ...]] | None = None
    ) -> ModelRunnerOutput:
        """End the step: one draw for each position that a row samples.

        masks: request id -> one packed bitmap of allowed ids (bit i of byte i // 8 is id i) per
        sampled position. A row that cannot be sampled ends in `errors`, and no other row with it.
        """

    def load_adapter(self, name: str, path: str) -> None:
        raise ValueError(f"{type(self).__name__} cannot load adapter {name!r}: no LoRA support")

    def unload_adapter(self, name: str) -> None:
        raise ValueError(f"{type(self).__name__} holds no adapter {name!r}")

    def check_health(self) -> None:
        """Raises RuntimeError when steps can no longer be run."""

    def shutdown(self) -> None:
        """Give up the device's memory. Harmless a second time."""
