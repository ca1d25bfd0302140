"""What a step of a model costs on a piece of hardware: operations, bytes, seconds. A model of
machines, not a measurement of one.

A device needs at least the time of its arithmetic, and at least the time of its memory traffic;
the two overlap, so a step takes the larger (Williams, Waterman, Patterson 2009). Everything here
is the share of one device; with tensor parallelism all devices do the same at the same time.
Left out: activations, which mostly stay in caches, and softmax, norms and RoPE, which are small.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..outputs import SchedulerOutput
from .hardware import Hardware
from .model_shapes import ModelShape

HEAD_BITS = 16  # the embedding and the head keep these where other weights have fewer
ACTIVATION_BYTES = 2  # of a number that an all-reduce sends


@dataclass(frozen=True, slots=True)
class Constants:
    """What peaks do not say. The defaults are round assumptions for data centre GPUs; those of a
    CPU are fitted to measured steps."""

    compute_efficiency: float = 0.5  # of the dense peak, in long products
    memory_efficiency: float = 0.8  # of the peak bandwidth, in narrow ones
    seconds_per_step: float = 1e-3  # planning, launching, taking in
    seconds_per_request: float = 4e-6  # the same, for each row
    link_efficiency: float = 0.8  # of the links between devices and to the host
    # 8 H100, 32 KiB a GPU: 8 to 12 microseconds (github.com/sgl-project/sglang/pull/2904, 2025).
    seconds_per_all_reduce: float = 10e-6
    seconds_per_copy: float = 2e-6  # to start one copy to or from the host

    def __post_init__(self) -> None:
        for name in ("compute_efficiency", "memory_efficiency", "link_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on tensor_parallel_size devices, at a precision. Raises ValueError where heads do
    not divide, bits are not to be had, or the devices have no link."""

    model: ModelShape
    hardware: Hardware
    tensor_parallel_size: int = 1
    weight_bits: float = 16
    kv_bits: int = 16
    compute_bits: int = 16  # of the numbers that are multiplied
    block_size: int = 16  # tokens in a KV block
    copies_per_block: int = 1  # separate pieces of a block on its way to or from the host
    constants: Constants = Constants()

    def __post_init__(self) -> None:
        model, tp = self.model, self.tensor_parallel_size
        if tp < 1 or model.num_heads % tp:
            raise ValueError(
                f"tensor_parallel_size {tp} does not divide {model.name}'s "
                f"{model.num_heads} query heads"
            )
        if model.num_kv_heads % tp and tp % model.num_kv_heads:
            raise ValueError(
                f"tensor_parallel_size {tp} fits {model.name}'s {model.num_kv_heads} KV heads "
                f"neither as a divisor nor as a multiple"
            )
        if tp > 1 and not self.hardware.link_bytes_per_s:
            raise ValueError(f"{self.hardware.name}: no link, so tensor_parallel_size must be 1")
        for name in ("weight_bits", "kv_bits", "block_size", "copies_per_block"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        self.hardware.peak_flops(self.compute_bits)

    @property
    def head_bits(self) -> float:
        return max(HEAD_BITS, self.weight_bits)

    @property
    def weight_bytes(self) -> float:
        """On one device."""
        model = self.model
        head = model.head_params + model.embedding_params
        body = model.num_params - head
        total_bits = body * self.weight_bits + head * self.head_bits
        return total_bits / 8 / self.tensor_parallel_size

    @property
    def kv_bytes_per_token(self) -> float:
        """On one device. K and V (2) x layers x KV heads x head size x bytes of a number, over
        the devices; with more devices than KV heads, each head is kept more than once."""
        model = self.model
        total = 2 * model.num_layers * model.num_kv_heads * model.head_dim * self.kv_bits / 8
        return total / min(self.tensor_parallel_size, model.num_kv_heads)

    @property
    def block_bytes(self) -> float:
        return self.kv_bytes_per_token * self.block_size

    def num_blocks(self, memory_utilization: float = 0.9) -> int:
        """KV blocks that fit beside the weights into that part of the memory; the rest is for
        activations. Raises ValueError when the weights leave no room for two."""
        usable = self.hardware.memory_bytes * memory_utilization
        num_blocks = int((usable - self.weight_bytes) // self.block_bytes)
        if num_blocks < 2:
            raise ValueError(
                f"{self.model.name} takes {self.weight_bytes / 1e9:.1f} GB on each device and "
                f"{self.hardware.name} has {usable / 1e9:.1f} GB for weights and KV: raise "
                f"tensor_parallel_size, or lower weight_bits"
            )
        return num_blocks


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step is about, whoever runs it: all that its cost depends on."""

    num_requests: int = 0
    num_tokens: int = 0  # computed in this step
    num_sampled: int = 0  # positions whose scores are wanted
    num_attended: int = 0  # over the new tokens: positions each looks at, itself among them
    num_kv_read: int = 0  # over the requests: positions up to the last new token
    num_swapped_blocks: int = 0  # to the host and back
    num_copied_blocks: int = 0  # on the device


def attended(start: int, num_tokens: int) -> int:
    """How many positions the tokens at start, start + 1, ... look at together, each at all before
    it and at itself: the sum of start + 1 to start + num_tokens."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2


def prefill_work(num_tokens: int, start: int = 0, num_requests: int = 1) -> StepWork:
    """Requests that compute num_tokens tokens each, after `start` computed ones, and sample."""
    return StepWork(
        num_requests=num_requests,
        num_tokens=num_requests * num_tokens,
        num_sampled=num_requests,
        num_attended=num_requests * attended(start, num_tokens),
        num_kv_read=num_requests * (start + num_tokens),
    )


def decode_work(num_requests: int, context: int) -> StepWork:
    """One token for each request, the last of `context`."""
    return prefill_work(1, context - 1, num_requests)


def plan_work(plan: SchedulerOutput) -> StepWork:
    """The work of a plan, in one pass over its rows."""
    num_tokens = num_sampled = num_attended = num_kv_read = 0
    for row in plan.rows:
        num_new = len(row.token_ids)
        end = row.start + num_new
        num_tokens += num_new
        num_sampled += row.num_to_sample
        num_attended += end if num_new == 1 else attended(row.start, num_new)
        num_kv_read += end
    return StepWork(
        len(plan.rows),
        num_tokens,
        num_sampled,
        num_attended,
        num_kv_read,
        len(plan.swap_out) + len(plan.swap_in),
        len(plan.copies),
    )


def flops(deployment: Deployment, work: StepWork) -> float:
    """Floating-point operations of one device: two for each weight that a token meets, and four
    for each number of each head at each position that it looks at (a product with K, one
    with V)."""
    model = deployment.model
    linear = 2 * model.active_params * work.num_tokens
    attention = 4 * model.num_layers * model.num_heads * model.head_dim * work.num_attended
    head = 2 * model.head_params * work.num_sampled
    return (linear + attention + head) / deployment.tensor_parallel_size


def weight_bytes_read(deployment: Deployment, work: StepWork) -> float:
    """Bytes of weights that one device reads: once for all tokens together, but of the experts
    only those that some token chose, and the head only where something is sampled."""
    if work.num_tokens == 0:
        return 0.0
    model = deployment.model
    experts = model.num_layers * model.expert_params * model.expected_experts(work.num_tokens)
    total_bits = (model.shared_params + experts) * deployment.weight_bits
    if work.num_sampled:
        total_bits += model.head_params * deployment.head_bits
    return total_bits / 8 / deployment.tensor_parallel_size


def kv_bytes_moved(deployment: Deployment, work: StepWork) -> float:
    """Bytes of KV on one device: each request's context read once, each new token written once,
    a copied block read and written."""
    num_positions = work.num_kv_read + work.num_tokens
    copies = 2 * work.num_copied_blocks * deployment.block_bytes
    return num_positions * deployment.kv_bytes_per_token + copies


def bytes_moved(deployment: Deployment, work: StepWork) -> float:
    """Bytes between one device and its memory."""
    return weight_bytes_read(deployment, work) + kv_bytes_moved(deployment, work)


def all_reduce_bytes(deployment: Deployment, work: StepWork) -> float:
    """Bytes that one device sends: after attention and after the experts of each layer all hidden
    states are summed over tp devices in a ring, where each sends 2 (tp - 1) / tp of them."""
    model, tp = deployment.model, deployment.tensor_parallel_size
    hidden_bytes = work.num_tokens * model.hidden_size * ACTIVATION_BYTES
    return 2 * model.num_layers * hidden_bytes * 2 * (tp - 1) / tp


def all_reduce_seconds(deployment: Deployment, work: StepWork) -> float:
    """The bytes over the link, and a fixed time for each of two sums a layer."""
    if deployment.tensor_parallel_size == 1 or work.num_tokens == 0:
        return 0.0
    constants = deployment.constants
    bandwidth = deployment.hardware.link_bytes_per_s * constants.link_efficiency
    fixed = 2 * deployment.model.num_layers * constants.seconds_per_all_reduce
    return all_reduce_bytes(deployment, work) / bandwidth + fixed


def swap_seconds(deployment: Deployment, num_blocks: float) -> float:
    """Time to move blocks over the link to the host, one way: their bytes, and a fixed time for
    each separate piece, which is what small blocks are slow by."""
    constants = deployment.constants
    bandwidth = deployment.hardware.host_bytes_per_s * constants.link_efficiency
    fixed = deployment.copies_per_block * constants.seconds_per_copy
    return num_blocks * (deployment.block_bytes / bandwidth + fixed)


def compute_seconds(deployment: Deployment, work: StepWork) -> float:
    peak = deployment.hardware.peak_flops(deployment.compute_bits)
    return flops(deployment, work) / (peak * deployment.constants.compute_efficiency)


def memory_seconds(deployment: Deployment, work: StepWork) -> float:
    peak = deployment.hardware.memory_bytes_per_s
    return bytes_moved(deployment, work) / (peak * deployment.constants.memory_efficiency)


def step_seconds(deployment: Deployment, work: StepWork) -> float:
    """The larger of the two floors, each over its efficiency; then sums between devices, copies
    to the host, and what each step and each request costs whatever it computes."""
    constants = deployment.constants
    return (
        max(compute_seconds(deployment, work), memory_seconds(deployment, work))
        + all_reduce_seconds(deployment, work)
        + swap_seconds(deployment, work.num_swapped_blocks)
        + constants.seconds_per_step
        + constants.seconds_per_request * work.num_requests
    )
