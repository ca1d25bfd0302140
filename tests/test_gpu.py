"""What an NVIDIA GPU changes. Judge: the same engine on the CPU, in float64."""

from __future__ import annotations

import random

import pytest
from tiny_models import MULTI_QUERY, random_llama

from minivllm.checkpoint.model_config import read_model_config
from minivllm.config import EngineConfig
from minivllm.engine.core import make_core
from minivllm.outputs import EngineCoreRequest
from minivllm.sampling_params import SamplingParams

pytestmark = pytest.mark.gpu


def mixed_requests(seed: int) -> list[EngineCoreRequest]:
    """Prompts of 1 to 90 tokens, greedy and drawn by every filter."""
    rng = random.Random(seed)
    requests = []
    for index in range(12):
        params = SamplingParams(
            temperature=rng.choice((0, 0.7, 1.5)),
            top_k=rng.choice((0, 5)),
            top_p=rng.choice((1.0, 0.9)),
            min_p=rng.choice((0.0, 0.05)),
            seed=rng.randrange(1 << 40),
            max_tokens=rng.randint(1, 24),
            ignore_eos=True,
        )
        prompt = tuple(rng.randrange(331) for _ in range(rng.randint(1, 90)))
        requests.append(EngineCoreRequest(str(index), prompt, params))
    return requests


def answers(folder: str, requests: list[EngineCoreRequest], **options) -> dict[str, list[int]]:
    core = make_core(EngineConfig(folder, max_model_len=128, **options), read_model_config(folder))
    for request in requests:
        core.add_request(request)
    ids = {request.request_id: [] for request in requests}
    while core.has_unfinished_requests:
        for output in core.step():
            assert output.error is None
            ids[output.request_id] += output.new_token_ids
    core.shutdown()
    return ids


@pytest.mark.parametrize("sizes", [{}, MULTI_QUERY], ids=["6 heads on 2", "5 heads on 1"])
@pytest.mark.parametrize("num_blocks", [None, 12], ids=["room for all", "preemption"])
def test_the_gpu_writes_the_tokens_that_the_cpu_writes(tmp_path, sizes, num_blocks):
    folder = random_llama(tmp_path, **sizes)
    requests = mixed_requests(seed=1)
    options = {"dtype": "float64", "max_num_batched_tokens": 48, "num_blocks": num_blocks}
    on_cpu = answers(folder, requests, device="cpu", **options)
    assert answers(folder, requests, device="cuda", **options) == on_cpu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_of_a_gpu_runs_to_the_end(tmp_path, dtype):
    requests = mixed_requests(seed=2)
    ids = answers(random_llama(tmp_path), requests, device="cuda", dtype=dtype)
    assert [len(i) for i in ids.values()] == [r.sampling_params.max_tokens for r in requests]


def test_the_device_is_picked_up_without_being_named(tmp_path, caplog):
    caplog.set_level("INFO")
    answers(random_llama(tmp_path), mixed_requests(seed=3)[:1])
    assert "running on cuda" in caplog.text
