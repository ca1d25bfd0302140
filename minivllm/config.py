"""Every setting of an engine, in one flat record, checked before anything is loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass

DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda", "mps")

# What is accepted today. The rest of the public face (LLM's docstring) is refused by name.
PREFIX_CACHES = ("hash", "radix", "none")
POLICIES = ("fcfs", "static", "priority", "fair", "lpm", "dfs")
PREEMPTIONS = ("recompute", "swap", "reserve")
BACKENDS = ("auto", "reference", "cpu")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """vLLM's argument names where vLLM has the argument. Raises ValueError naming the field.

    `max_model_len`, `num_blocks` and `dtype` are what was asked for; `Executor` and `EngineCore`
    settle them when the model and the memory are known, and say so.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"  # on a CPU: bfloat16 where the processor has it natively, else float32
    quantization: str | None = None
    kv_cache_dtype: str = "auto"  # "auto": as dtype
    block_size: int = 16  # tokens in a block
    num_blocks: int | None = None  # None: from kv_cache_memory_bytes. Block 0 is never handed out
    max_model_len: int | None = None  # tokens of prompt and answer together; None: the model's
    max_num_seqs: int = 32  # requests in one step
    max_num_batched_tokens: int = 512  # tokens in one step
    long_prefill_token_threshold: int = 0  # most tokens of one request in a step; 0: no limit
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    prefix_cache: str = "hash"
    policy: str = "fcfs"
    preemption: str = "recompute"
    backend: str = "auto"
    num_host_blocks: int = 0
    seed: int | None = None  # of requests that give none; None: fresh randomness for each
    logits_processors: tuple[str, ...] = ()  # "module:Class" of each plug-in, in their order
    # "uniproc" (torch), "plain" (nothing but Python, for the smallest models), "auto": plain only
    # where there is no torch; or a class of this package, "executor.uniproc.UniprocExecutor".
    executor: str = "auto"
    trace_file: str | None = None  # write every step's messages and reasons there
    debug: bool = False  # poison what nobody may read (rule 11); also MINIVLLM_DEBUG=1

    def __post_init__(self) -> None:
        if os.environ.get("MINIVLLM_DEBUG") == "1":
            object.__setattr__(self, "debug", True)
        for name, choices in (
            ("dtype", DTYPES),
            ("prefix_cache", PREFIX_CACHES),
            ("policy", POLICIES),
            ("preemption", PREEMPTIONS),
            ("backend", BACKENDS),
            ("kv_cache_dtype", ("auto",)),
            ("quantization", (None,)),
        ):
            value = getattr(self, name)
            if value not in choices:
                known = ", ".join(repr(c) for c in choices)
                raise ValueError(f"{name}={value!r} is not supported (supported: {known})")
        if self.device.partition(":")[0] not in DEVICES:
            raise ValueError(f"device={self.device!r} is not one of {', '.join(DEVICES)}")
        if self.preemption == "swap" and self.num_host_blocks == 0:
            raise ValueError('preemption="swap" needs num_host_blocks, the blocks of host memory')
        names = self.logits_processors
        if isinstance(names, str) or not all(isinstance(n, str) for n in names):
            raise ValueError(f'logits_processors must list "module:Class" names, got {names!r}')
        share = self.gpu_memory_utilization
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise ValueError(f"gpu_memory_utilization must be above 0 and at most 1, got {share!r}")
        for name, low in (
            ("block_size", 1),
            ("num_blocks", 2),
            ("max_model_len", 1),
            ("max_num_seqs", 1),
            ("max_num_batched_tokens", 1),
            ("long_prefill_token_threshold", 0),
            ("num_host_blocks", 0),
            ("kv_cache_memory_bytes", 1),
        ):
            value = getattr(self, name)
            if value is None and self.__dataclass_fields__[name].default is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{name} must be a whole number, got {value!r}")
            if value < low:
                raise ValueError(f"{name} must be at least {low}, got {value}")
