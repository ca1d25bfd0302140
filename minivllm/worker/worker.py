"""One device: which one, in which dtype, with how much memory; the model on it, step by step."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch

from .. import kernels
from ..checkpoint.model_config import ModelConfig
from ..config import EngineConfig
from ..kvcache.spec import KVCacheSpec
from ..models.loader import load_weights
from ..models.transformer import Transformer
from ..outputs import ModelRunnerOutput, SchedulerOutput
from ..sample.logits_processors import load_plugins
from .kv_tensors import KVTensors
from .model_runner import Masks, ModelRunner

logger = logging.getLogger(__name__)

MAX_CPU_KV_BYTES = 1 << 30


class Worker:
    """Loads the model at once; runs steps after `initialize`."""

    def __init__(self, config: EngineConfig, model_config: ModelConfig) -> None:
        self.config = config
        self.model_config = model_config
        self.device = choose_device(config.device)
        self.dtype = choose_dtype(config.dtype, self.device, model_config.dtype)
        self.ops = kernels.load(config.backend, self.device.type)
        self.plugins = load_plugins(config.logits_processors)
        logger.info("running on %s in %s", self.device, str(self.dtype).removeprefix("torch."))
        self.model = Transformer(model_config, self.ops, dtype=self.dtype, device=self.device)
        self.ops.place(self.model.parameters())
        load_weights(self.model, model_config, self.dtype, self.device)
        weight_bytes = sum(parameter.nbytes for parameter in self.model.parameters())
        # A second copy, and as much again left free for KV.
        self.model.pack(room=2 * weight_bytes < free_memory())
        self.spec = KVCacheSpec(
            block_size=config.block_size,
            num_layers=model_config.num_layers,
            num_kv_heads=model_config.num_kv_heads,
            head_dim=model_config.head_dim,
            dtype_bytes=self.dtype.itemsize,
        )
        self.runner: ModelRunner | None = None

    def available_memory(self) -> int:
        """Bytes for KV blocks: kv_cache_memory_bytes if given. On a CUDA device, the share of its
        memory that gpu_memory_utilization allows, less what is in use now that the model is
        loaded. Otherwise a quarter of the free memory, at most 1 GiB. May be negative."""
        if self.config.kv_cache_memory_bytes is not None:
            return self.config.kv_cache_memory_bytes
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            return int(total * self.config.gpu_memory_utilization) - (total - free)
        return min(free_memory() // 4, MAX_CPU_KV_BYTES)

    def initialize(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Make the KV memory: num_blocks blocks, the null block among them, and blocks in host
        memory to swap to."""
        kv = KVTensors(
            self.spec,
            num_blocks,
            self.ops,
            dtype=self.dtype,
            device=self.device,
            num_host_blocks=num_host_blocks,
            debug=self.config.debug,
        )
        self.runner = ModelRunner(
            self.model, self.ops, kv, self.spec.block_size, self.model_config, self.plugins
        )

    def execute_model(self, plan: SchedulerOutput) -> None:
        assert self.runner is not None, "initialize comes first"
        self.runner.execute(plan)

    def sample_tokens(self, step: int, masks: Masks | None = None) -> ModelRunnerOutput:
        assert self.runner is not None, "initialize comes first"
        return self.runner.sample(step, masks)

    def shutdown(self) -> None:
        """Let go of the model and the KV memory."""
        self.runner = self.model = None


def choose_device(name: str) -> torch.device:
    """ "auto" is the CUDA device if there is one, else the CPU. Raises ValueError for a device
    that torch does not see."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    num_seen = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }[device.type]
    if (device.index or 0) >= num_seen:
        raise ValueError(f"device={name!r}: torch sees {num_seen} devices of this kind here")
    return device


def choose_dtype(name: str, device: torch.device, stored: str) -> torch.dtype:
    """The dtype to compute in. "auto" on a CPU: bfloat16 where the processor multiplies it
    natively, else float32, never float16, for which torch has no fast path there. "auto" on a
    GPU: the checkpoint's own, and bfloat16 for a quantized one."""
    if name == "auto" and device.type == "cpu":
        name = "bfloat16" if has_native_bfloat16() else "float32"
    elif name == "auto":
        name = "bfloat16" if stored == "quantized" else stored
    if name == "float64" and device.type == "mps":
        raise ValueError("dtype='float64' is not possible on device 'mps': use 'float32'")
    return getattr(torch, name)


def has_native_bfloat16() -> bool:
    """Whether this CPU has bfloat16 products (AVX512-BF16 or AMX; Linux tells in cpuinfo)."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return False
    features = cpuinfo.read_text(encoding="utf-8", errors="replace")
    return "avx512_bf16" in features or "amx_bf16" in features


def free_memory() -> int:
    """Bytes that new memory may take without swapping. Where only the size of the memory is
    known, half of that; where not even that is, 4 GiB."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 4 << 30
