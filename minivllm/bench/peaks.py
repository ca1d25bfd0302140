"""What this machine reaches at its best: arithmetic in one large product, bytes read in a stream.
Measured, and measured without the engine, so that the engine can be held against it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from .. import kernels
from .hardware import Hardware

SHAPE = (512, 1024, 4096)  # tokens, in, out: a product that arithmetic holds up, not memory
MIN_BYTES, MAX_BYTES = 1 << 20, 1 << 29


@torch.inference_mode()
def measured_peaks(
    dtype: torch.dtype, device: torch.device, weight_bytes: float, seconds: float = 0.5
) -> Hardware:
    """FLOP/s with numbers of dtype, and bytes a second over as many bytes as the weights take:
    a small model's stay in a cache, which is quicker than memory. Takes twice `seconds`."""
    ops = kernels.load("auto", device.type)
    num_tokens, num_in, num_out = SHAPE
    x = torch.ones(num_tokens, num_in, dtype=dtype, device=device)
    weight = ops.pack_linear(torch.ones(num_out, num_in, dtype=dtype, device=device))
    product_s = quickest(lambda: ops.linear(x, weight)[0, 0].item(), seconds)

    num_bytes = int(min(MAX_BYTES, max(MIN_BYTES, weight_bytes)))
    stream = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    stream_s = quickest(lambda: stream.sum().item(), seconds)
    return Hardware(
        name="this machine",
        memory_bytes=0.0,
        memory_bytes_per_s=stream.nbytes / stream_s,
        flops_per_s={8 * dtype.itemsize: 2 * num_tokens * num_in * num_out / product_s},
        link_bytes_per_s=0.0,
        host_bytes_per_s=stream.nbytes / stream_s,
        source="measured by minivllm.bench.peaks",
        date="",
    )


def quickest(call: Callable[[], object], seconds: float) -> float:
    """The quickest of as many calls as fit, two at least: whatever else the machine does only
    adds to it."""
    best, deadline, num_calls = float("inf"), time.perf_counter() + seconds, 0
    while num_calls < 2 or time.perf_counter() < deadline:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        num_calls += 1
    return best
