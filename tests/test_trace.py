"""One trace format for every executor: the torch, the simulated and the toy engine cross the door
with the same plans, and what was recorded replays."""

import json

import pytest
from tiny_models import random_llama
from toy_executor import make_core

from minivllm import LLM, SamplingParams
from minivllm.bench.hardware import find_hardware
from minivllm.bench.model_shapes import find_model
from minivllm.bench.roofline import Deployment
from minivllm.config import EngineConfig
from minivllm.engine.core import EngineCore, make_scheduler
from minivllm.engine.replay import replay
from minivllm.executor.sim import SimExecutor
from minivllm.metrics.trace import Trace, read_trace
from minivllm.outputs import EngineCoreRequest

OPTIONS = {
    "block_size": 4, "num_blocks": 1 + 12, "max_num_batched_tokens": 9, "max_num_seqs": 3,
    "prefix_cache": "radix", "preemption": "swap", "num_host_blocks": 6,
}  # fmt: skip
PROMPTS = [[1] * 10 + [i] * (i + 1) for i in range(2, 6)]
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def recorded_by_torch(folder, path):
    llm = LLM(folder, dtype="float64", trace_file=str(path), **OPTIONS)
    llm.generate(PROMPTS, PARAMS)
    llm.shutdown()
    return path.read_text(encoding="utf-8").splitlines()


def shapes(lines):
    """What each step asked for, without the ids that one model or another sampled."""
    return [
        (
            [(r.request_id, r.start, len(r.token_ids), r.num_to_sample, r.table_ids)
             for r in plan.rows],
            plan.preempted_ids, plan.finished_ids, plan.swap_out, plan.swap_in, plan.copies,
        )
        for kind, message in read_trace(lines) if kind == "step" for plan in [message[1]]
    ]  # fmt: skip


def recorded_by(core, lines, requests):
    for request in requests:
        core.add_request(request)
    while core.has_unfinished_requests:
        core.step()
    return lines


def test_torch_simulation_and_toy_leave_the_same_trace_and_it_replays(tmp_path):
    folder = random_llama(tmp_path, dtype="float64")
    torch_lines = recorded_by_torch(folder, tmp_path / "trace.jsonl")
    requests = [m for kind, m in read_trace(torch_lines) if kind == "add"]
    assert [r.prompt_token_ids for r in requests] == [tuple(p) for p in PROMPTS]

    sim_lines = []
    config = EngineConfig("none", **OPTIONS)
    scheduler = make_scheduler(config, 1 + 12, 48, trace=Trace(sim_lines.append))
    deployment = Deployment(find_model("smollm2-135m"), find_hardware("h100"), block_size=4)
    sim = SimExecutor(config, deployment)
    sim.initialize(13, 6)
    recorded_by(EngineCore(scheduler, sim, sim.clock), sim_lines, requests)

    toy_lines = []
    toy = make_core(
        num_blocks=13, budget=9, max_num_seqs=3, prefix_cache="radix", num_host_blocks=6,
        scheduling={"preemption": "swap"}, trace=Trace(toy_lines.append),
    )  # fmt: skip
    recorded_by(toy, toy_lines, requests)

    assert shapes(torch_lines) == shapes(sim_lines) == shapes(toy_lines)
    reasons = {w[0] for kind, m in read_trace(torch_lines) if kind == "step" for w in m[3]}
    assert {"admitted", "chunked", "preempted"} <= reasons
    again = make_scheduler(EngineConfig("none", **OPTIONS), 13, 48)
    assert replay(torch_lines, again) == len(shapes(torch_lines))


def test_the_first_line_says_how_the_run_was_made(tmp_path):
    folder = random_llama(tmp_path, dtype="float64")
    lines = recorded_by_torch(folder, tmp_path / "trace.jsonl")
    about = json.loads(lines[0])
    assert about["trace"] == 1 and about["config"]["block_size"] == 4
    assert about["config"]["preemption"] == "swap"


def test_a_message_survives_being_written_and_read():
    params = SamplingParams(
        temperature=0.5, top_p=0.9, stop=("a", "b"), stop_token_ids=(1, 2), prompt_logprobs=3
    )
    request = EngineCoreRequest("r", (1, 2), params, extra_key=("x", 1), fork_of="q")
    lines = []
    trace = Trace(lines.append, note="made by hand")
    trace.add(request)
    trace.abort("r")
    (_, about), (_, added), (_, aborted) = read_trace(lines)
    assert about["note"] == "made by hand" and added == request and aborted == "r"


def test_a_trace_that_cannot_be_written_is_an_error_at_once(tmp_path):
    folder = random_llama(tmp_path, dtype="float64")
    with pytest.raises(OSError):
        LLM(folder, trace_file=str(tmp_path / "no folder" / "trace.jsonl"))
