"""The cost of a step, judged by numbers worked out by hand, by published counts and by brute
force. All of it is modelled; what is tested is the arithmetic."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.bench.hardware import HARDWARE, find_hardware
from minivllm.bench.model_shapes import MODELS, find_model, shape_of
from minivllm.bench.roofline import (
    Constants,
    Deployment,
    StepWork,
    all_reduce_bytes,
    all_reduce_seconds,
    attended,
    bytes_moved,
    compute_seconds,
    decode_work,
    flops,
    kv_bytes_moved,
    memory_seconds,
    plan_work,
    prefill_work,
    step_seconds,
    swap_seconds,
    weight_bytes_read,
)
from minivllm.bench.simulators import hbm_footprint_gb
from minivllm.checkpoint.model_config import ModelConfig
from minivllm.outputs import Row, SchedulerOutput

IDEAL = Constants(1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0)  # peaks reached, nothing besides

# Parameters as the published checkpoints have them (their safetensors headers, summed).
PUBLISHED = {
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
    "smollm2-135m": 134_515_008,
}

works = st.builds(
    StepWork,
    num_requests=st.integers(1, 300),
    num_tokens=st.integers(1, 10000),
    num_sampled=st.integers(0, 300),
    num_attended=st.integers(0, 10**8),
    num_kv_read=st.integers(0, 10**6),
    num_swapped_blocks=st.integers(0, 1000),
    num_copied_blocks=st.integers(0, 100),
)
deployments = st.builds(
    Deployment,
    model=st.sampled_from(list(MODELS.values())),
    hardware=st.sampled_from([h for h in HARDWARE.values() if h.link_bytes_per_s]),
    weight_bits=st.sampled_from([16, 8, 4.5]),
    kv_bits=st.sampled_from([16, 8]),
)


def deploy(model="llama-3-8b", hardware="h100", **more):
    return Deployment(find_model(model), find_hardware(hardware), **more)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_checkpoint(name):
    # Norms of single heads (Qwen3) are left out: a millionth.
    assert MODELS[name].num_params == pytest.approx(PUBLISHED[name], rel=2e-6)


def test_a_mixture_meets_only_some_of_its_parameters():
    mixtral = find_model("mixtral-8x7b")
    met = mixtral.active_params + mixtral.head_params + mixtral.embedding_params
    assert met == pytest.approx(12.9e9, rel=0.005)  # as its authors say


def test_kv_of_a_70b_is_320_kib_a_token_and_64_long_requests_take_160_gib():
    deployment = deploy("llama-3-70b", "h200")
    assert deployment.kv_bytes_per_token == 2 * 80 * 8 * 128 * 2 == 320 * 1024
    assert 64 * 8192 * deployment.kv_bytes_per_token == 160 * 1024**3


def test_an_h200_needs_206_operations_a_byte_to_be_busy():
    assert HARDWARE["h200"].ridge_flops_per_byte() == pytest.approx(206, abs=0.5)
    assert HARDWARE["h100"].ridge_flops_per_byte(8) == pytest.approx(591, abs=1)


def test_every_number_names_its_source_and_date():
    for row in (*HARDWARE.values(), *MODELS.values()):
        assert len(row.source) > 10 and row.date[-4:].isdigit(), row.name


@given(start=st.integers(0, 50), num=st.integers(0, 50))
def test_attended_counts_each_token_itself_and_all_before_it(start, num):
    assert attended(start, num) == sum(position + 1 for position in range(start, start + num))


def test_operations_of_a_70b_worked_out_by_hand():
    # 100 tokens of a prompt after 28 computed ones, on 1 device.
    layer = 8192 * 8192 * 2 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192
    linear = 2 * 100 * (80 * layer + 8192)
    positions = sum(range(29, 129))
    attention = 80 * 64 * positions * (2 * 128 + 2 * 128)
    head = 2 * 8192 * 128256
    work = prefill_work(100, start=28)
    assert flops(deploy("llama-3-70b", "h200"), work) == linear + attention + head
    assert flops(deploy("llama-3-70b", "h200", tensor_parallel_size=8), work) == (
        (linear + attention + head) / 8
    )


def test_bytes_of_a_decode_step_worked_out_by_hand():
    # 3 requests of an 8B, each at its 1000th token, weights of 4 bits, head and KV of 16 and 8.
    layer = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    weights = (32 * layer + 4096) / 2 + 2 * 4096 * 128256
    kv = 3 * (1000 + 1) * 2 * 32 * 8 * 128  # read up to the new token, which is written
    deployment = deploy(weight_bits=4, kv_bits=8)
    assert bytes_moved(deployment, decode_work(3, 1000)) == weights + kv


def test_one_stream_of_a_70b_is_bound_to_24_tokens_a_second_by_an_h100s_bandwidth():
    deployment = deploy("llama-3-70b", "h100", constants=IDEAL)
    seconds = step_seconds(deployment, decode_work(1, 1))
    assert 1 / seconds == pytest.approx(3.35e12 / 139.1e9, rel=0.002)


def test_the_head_is_computed_only_where_something_is_sampled():
    deployment, chunk = deploy(), replace(prefill_work(64), num_sampled=0)
    head = 4096 * 128256
    assert flops(deployment, prefill_work(64)) - flops(deployment, chunk) == 2 * head
    whole = weight_bytes_read(deployment, prefill_work(64))
    assert whole - weight_bytes_read(deployment, chunk) == 2 * head


def test_a_plan_is_worth_what_its_rows_are():
    rows = (
        Row("decode", start=9, token_ids=(-1,), num_to_sample=1),
        Row("chunk", start=4, token_ids=(5, 6, 7), num_to_sample=0),
        Row("prompt", start=0, token_ids=(1, 2), num_to_sample=1),
    )
    plan = SchedulerOutput(1, rows=rows, swap_out=((1, 2),), swap_in=((3, 4),), copies=((5, 6),))
    assert plan_work(plan) == StepWork(
        num_requests=3,
        num_tokens=6,
        num_sampled=2,
        num_attended=10 + (5 + 6 + 7) + (1 + 2),
        num_kv_read=10 + 7 + 2,
        num_swapped_blocks=2,
        num_copied_blocks=1,
    )


@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_chunks_attend_to_as_much_as_the_whole_prompt_and_read_weights_again(cuts):
    deployment = deploy("smollm2-135m")
    whole = prefill_work(sum(cuts))
    chunks, start = [], 0
    for num in cuts:
        is_last = start + num == sum(cuts)
        chunks.append(replace(prefill_work(num, start), num_sampled=int(is_last)))
        start += num
    total = sum(flops(deployment, work) for work in chunks)
    assert total == flops(deployment, whole)
    read = sum(bytes_moved(deployment, work) for work in chunks)
    assert read > bytes_moved(deployment, whole) or len(cuts) == 1


def test_a_ring_sends_what_a_real_ring_would():
    """Play the ring: each device sends one piece a round, first summing, then handing round."""
    tp, num_tokens, model = 8, 4, find_model("llama-3-70b")
    values = num_tokens * model.hidden_size
    pieces = [[float(device)] * tp for device in range(tp)]  # one number stands for a piece
    sent = 0
    for phase in range(2):
        for hop in range(tp - 1):
            moves = [(d, (d + phase - hop) % tp) for d in range(tp)]
            carried = [pieces[d][piece] for d, piece in moves]
            for (device, piece), value in zip(moves, carried):
                target = (device + 1) % tp
                pieces[target][piece] = value + (pieces[target][piece] if phase == 0 else 0)
            sent += values / tp * 2  # bytes of one device's piece
    assert pieces == [[sum(range(tp))] * tp] * tp
    deployment = deploy("llama-3-70b", "h200", tensor_parallel_size=tp)
    work = prefill_work(num_tokens)
    assert all_reduce_bytes(deployment, work) == sent * 2 * model.num_layers
    assert all_reduce_seconds(deploy(), work) == 0  # one device has nobody to ask


def test_more_devices_than_kv_heads_keep_each_head_twice():
    def one(tp):
        return deploy("qwen3-30b-a3b", "h200", tensor_parallel_size=tp).kv_bytes_per_token

    assert one(1) == 2 * one(2) == 4 * one(4) == 4 * one(8)


@pytest.mark.parametrize("num_tokens", [1, 7, 64])
def test_the_experts_that_a_batch_wakes_are_those_of_a_draw(num_tokens):
    model, rng = find_model("qwen3-30b-a3b"), random.Random(5)
    drawn = [
        len({e for _ in range(num_tokens) for e in rng.sample(range(128), 8)}) for _ in range(300)
    ]
    assert model.expected_experts(num_tokens) == pytest.approx(sum(drawn) / 300, rel=0.02)
    assert find_model("llama-3-8b").expected_experts(num_tokens) == 1
    assert model.expected_experts(10**6) == 128


def test_one_token_of_a_mixture_reads_only_its_experts():
    dense, mixture = find_model("llama-3-8b"), find_model("mixtral-8x7b")
    read = weight_bytes_read(deploy("mixtral-8x7b", "h200"), decode_work(1, 1))
    assert read == pytest.approx(2 * (mixture.active_params + mixture.head_params))
    assert weight_bytes_read(deploy(), decode_work(1, 1)) == (
        2 * (dense.active_params + dense.head_params)
    )


def test_forgetting_costs_an_8b_on_an_h100_six_times_what_putting_away_does():
    deployment = deploy()
    recompute_us = 1e6 * compute_seconds(deployment, prefill_work(8000)) / 8000
    swap_us = 1e6 * 2 * swap_seconds(deployment, 1) / 16
    assert recompute_us == pytest.approx(32, rel=0.03)
    assert swap_us == pytest.approx(5.4, rel=0.02)
    small = deploy("smollm2-135m")
    assert 2 * swap_seconds(small, 1) / 16 > compute_seconds(small, prefill_work(500)) / 500


def test_length_cancels_between_recompute_and_swap():
    deployment = deploy("llama-3-70b", "h200", tensor_parallel_size=8)
    ratios = [
        compute_seconds(deployment, prefill_work(16 * n)) / swap_seconds(deployment, n)
        for n in (10, 100, 500)
    ]
    assert max(ratios) < 1.1 * min(ratios)


def test_a_swap_in_pieces_waits_for_each_of_them():
    whole, pieces = deploy(), deploy(copies_per_block=64)
    assert swap_seconds(pieces, 5) - swap_seconds(whole, 5) == pytest.approx(5 * 63 * 2e-6)


def test_few_requests_wait_for_memory_and_many_for_arithmetic():
    deployment = deploy(constants=IDEAL)
    few, many = decode_work(8, 100), decode_work(1000, 100)
    assert memory_seconds(deployment, few) > compute_seconds(deployment, few)
    assert memory_seconds(deployment, many) < compute_seconds(deployment, many)


def test_a_step_is_the_larger_floor_and_all_that_is_added():
    constants = Constants(0.5, 0.25, 0.002, 0.0001, 0.5, 1e-5, 3e-6)
    deployment = deploy(tensor_parallel_size=2, constants=constants)
    work = replace(prefill_work(10, num_requests=3), num_swapped_blocks=4)
    floors = (
        flops(deployment, work) / 989.4e12 / 0.5,
        bytes_moved(deployment, work) / 3.35e12 / 0.25,
    )
    ring = all_reduce_bytes(deployment, work) / 225e9 + 64 * 1e-5
    swap = 4 * (16 * 65536 / 32e9 + 3e-6)
    assert step_seconds(deployment, work) == pytest.approx(
        max(floors) + ring + swap + 0.002 + 3 * 0.0001
    )


FASTER = ("memory_bytes_per_s", "link_bytes_per_s", "host_bytes_per_s")


@settings(max_examples=60, deadline=None)
@given(deployment=deployments, work=works, field=st.sampled_from(FASTER))
def test_more_bandwidth_is_never_slower(deployment, work, field):
    hardware = replace(deployment.hardware, **{field: 1.5 * getattr(deployment.hardware, field)})
    faster = replace(deployment, hardware=hardware)
    assert step_seconds(faster, work) <= step_seconds(deployment, work)


@settings(max_examples=60, deadline=None)
@given(
    deployment=deployments,
    work=works,
    field=st.sampled_from(list(StepWork.__dataclass_fields__)),
    more=st.integers(1, 1000),
)
def test_more_work_is_never_fewer_operations_bytes_or_seconds(deployment, work, field, more):
    larger = replace(work, **{field: getattr(work, field) + more})
    for cost in (flops, bytes_moved, kv_bytes_moved, step_seconds):
        assert cost(deployment, larger) >= cost(deployment, work), cost.__name__


@settings(max_examples=60, deadline=None)
@given(deployment=deployments, work=works)
def test_fewer_bits_are_never_more_bytes(deployment, work):
    lighter = replace(deployment, weight_bits=4, kv_bits=8)
    assert bytes_moved(lighter, work) <= bytes_moved(deployment, work)
    assert lighter.weight_bytes <= deployment.weight_bytes


def test_kv_memory_is_what_the_weights_leave():
    # 8 H200: 0.9 x 141 GB less 141.1 / 8 GB, in blocks of 16 x 40 KiB a device.
    deployment = deploy("llama-3-70b", "h200", tensor_parallel_size=8)
    left = 0.9 * 141e9 - 70_553_706_496 * 2 / 8
    assert deployment.num_blocks() == int(left // (16 * 40 * 1024)) == 166_719


def test_a_model_that_does_not_fit_is_told_with_both_numbers():
    with pytest.raises(ValueError, match=r"141\.1 GB .* 72\.0 GB .*tensor_parallel_size"):
        deploy("llama-3-70b", "h100").num_blocks()


@pytest.mark.parametrize(
    ("model", "hardware", "more", "message"),
    [
        ("smollm2-135m", "h100", {"tensor_parallel_size": 2}, "9 query heads"),
        ("llama-3-8b", "laptop", {"tensor_parallel_size": 2}, "no link"),
        ("llama-3-8b", "a100", {"compute_bits": 4}, "4-bit numbers: it has 8, 16"),
        ("llama-3-8b", "a100", {"weight_bits": 0}, "weight_bits must be above 0"),
        ("llama-9", "a100", {}, "unknown model 'llama-9': known are llama-3-8b, "),
        ("llama-3-8b", "h999", {}, "unknown hardware 'h999': known are h100, "),
    ],
)
def test_what_cannot_be_modelled_is_refused(model, hardware, more, message):
    with pytest.raises(ValueError, match=message):
        deploy(model, hardware, **more)


def test_kv_heads_must_divide_or_be_divided():
    shape = replace(find_model("llama-3-8b"), num_heads=36, num_kv_heads=6)
    with pytest.raises(ValueError, match="6 KV heads neither as a divisor nor as a multiple"):
        Deployment(shape, find_hardware("h100"), tensor_parallel_size=4)


@pytest.mark.parametrize("value", [0, -1, 1.2])
def test_nothing_reaches_more_than_its_peak(value):
    with pytest.raises(ValueError, match="compute_efficiency must be above 0 and at most 1"):
        Constants(compute_efficiency=value)


def test_a_checkpoints_shape_costs_what_the_model_of_that_name_does():
    config = ModelConfig(
        "here", "llama", 49152, 576, 1536, 30, 9, 3, 64, 8192, 1e-5, 1e5, True, "bfloat16", (2,)
    )
    assert shape_of(config) == replace(find_model("smollm2-135m"), name="here", source="", date="")
    with pytest.raises(ValueError, match="sliding windows are not modelled"):
        shape_of(replace(config, windows=(None, 128) * 15))


def test_the_footprint_of_a_stack_is_its_weights_and_one_requests_kv():
    kv = 8192 * 2 * 80 * 8 * 128 / 1e9  # billions of numbers of a 70B
    assert hbm_footprint_gb(70.6, 70.6, 8192, "bf16") == pytest.approx(141.2 + 2 * kv)
    assert hbm_footprint_gb(70.6, 70.6, 8192, "fp8") == pytest.approx(70.6 + kv)
    with pytest.raises(ValueError, match="known are bf16, fp8, nvfp4"):
        hbm_footprint_gb(70, 70, 1, "int3")
