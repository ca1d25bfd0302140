"""About how fast this machine answers, from the products of one decode step, in under a second."""

from __future__ import annotations

import time

import torch

from .. import kernels
from ..worker.worker import choose_device, choose_dtype
from .options import DEFAULT_MODEL

# The default model's weights, [out, in]: of each layer, and of the head.
NUM_LAYERS = 30
LAYER_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD_SHAPE = (49152, 576)
# A whole step with its attention, norms and bookkeeping, against its products called one by one
# from Python. Measured on two idle cores: 1.05 to 1.4 in float32, 1.0 in bfloat16.
STEP_PER_PRODUCTS = 1.1


def expected_speed() -> str:
    """The default model, as it would run here, and about how many tokens a second one request
    would get."""
    device = choose_device("auto")
    dtype = choose_dtype("auto", device, "quantized")
    tokens_per_second = 1 / (STEP_PER_PRODUCTS * products_seconds(device, dtype))
    name = str(dtype).removeprefix("torch.")
    return f"{DEFAULT_MODEL} in {name} on {device}, about {tokens_per_second:.0f} tokens/s"


@torch.inference_mode()
def products_seconds(device: torch.device, dtype: torch.dtype) -> float:
    """The quickest of a few passes over weights of the model's shapes, each read once a pass as
    in a step."""
    ops = kernels.load("auto", device.type)
    shapes = LAYER_SHAPES * NUM_LAYERS + (HEAD_SHAPE,)
    plain = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
    ops.place(plain)
    weights = [(ops.pack_linear(weight.fill_(1)), weight.shape[1]) for weight in plain]
    inputs = {n: torch.ones(1, n, dtype=dtype, device=device) for _, n in shapes}
    seconds, deadline = [], time.perf_counter() + 0.5
    while len(seconds) < 2 or (time.perf_counter() < deadline and len(seconds) < 10):
        start = time.perf_counter()
        for weight, num_in in weights:
            out = ops.linear(inputs[num_in], weight)
        out[0, 0].item()  # waits for a device that works behind our back
        seconds.append(time.perf_counter() - start)
    return min(seconds)
