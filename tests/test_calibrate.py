"""Fitting a roofline's constants: known ones are found again, and steps are really measured."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from minivllm.__main__ import main
from minivllm.bench.calibrate import (
    FITTED,
    HELD_OUT,
    Fit,
    bare,
    fit_constants,
    machine,
    measure,
    quickest,
    relative_errors,
)
from minivllm.bench.hardware import find_hardware
from minivllm.bench.model_shapes import ModelShape, find_model
from minivllm.bench.roofline import Deployment, decode_work, prefill_work, step_seconds
from minivllm.config import EngineConfig
from minivllm.engine.core import EngineCore, make_scheduler
from minivllm.executor.sim import SimExecutor

SMALL = find_model("smollm2-135m")
BARE = bare(SMALL, 16, 16)
TRUE = Fit(4e-12, 5e-11, 3e-3, 2e-4)
WORKS = [
    *(decode_work(n, context) for n in (1, 2, 5, 16, 32) for context in (10, 300, 3000)),
    *(prefill_work(n, start) for n in (50, 128, 512, 2000) for start in (0, 700)),
    *(prefill_work(40, 0, n) for n in (3, 12)),
]


def known(fit):
    hardware, constants = machine(fit)
    return replace(BARE, hardware=hardware, constants=constants)


def test_constants_are_found_again_from_the_times_that_they_make():
    steps = [(work, step_seconds(known(TRUE), work)) for work in WORKS]
    found = fit_constants(BARE, steps)
    assert asdict(found) == pytest.approx(asdict(TRUE), rel=0.03)
    assert max(relative_errors(known(found), steps)) < 0.01


def test_noise_in_the_times_moves_the_constants_little():
    rng = random.Random(1)
    times = [step_seconds(known(TRUE), work) for work in WORKS]
    steps = [(work, t * rng.uniform(0.9, 1.1)) for work, t in zip(WORKS, times)]
    fit = fit_constants(BARE, steps)
    clean = list(zip(WORKS, times))
    assert sorted(relative_errors(known(fit), clean))[len(clean) // 2] < 0.06


def test_no_constant_is_below_0():
    steps = [(decode_work(n, 10), 0.1 / n) for n in (1, 2, 4, 8)]  # more requests, less time
    assert min(asdict(fit_constants(BARE, steps)).values()) >= 0
    with pytest.raises(ValueError, match="no measured step"):
        fit_constants(BARE, [])


def test_of_steps_alike_the_quickest_counts():
    steps = [(decode_work(2, 70), 0.3), (decode_work(2, 71), 0.1), (decode_work(2, 300), 0.2)]
    assert quickest([*steps, (replace(decode_work(1, 1), num_requests=0), 9.0)]) == steps[1:]


def test_each_shape_is_served_in_each_round_and_the_executor_left_as_it_was():
    config = EngineConfig("x", prefix_cache="none", max_num_seqs=32, max_num_batched_tokens=512)
    executor = SimExecutor(config, Deployment(SMALL, find_hardware("h100")), check_plans=True)
    executor.initialize(300)
    core = EngineCore(make_scheduler(config, 300, 1000), executor, executor.clock)
    before = executor.execute_model
    shapes = ((1, 40), (6, 100))
    measured = measure(core, shapes, num_rounds=2)
    assert executor.execute_model == before
    assert set(measured) == set(shapes)
    # 600 tokens are more than a step: 512 in the first; then 88 and the decodes; then decodes.
    assert [work.num_tokens for work, _ in measured[6, 100]][:3] == [512, 93, 6]
    assert all(seconds > 0 for steps in measured.values() for _, seconds in steps)
    assert not set(FITTED) & set(HELD_OUT)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_prints_the_constants_and_their_errors(capsys, monkeypatch, as_json):
    config = EngineConfig("x", prefix_cache="none", max_num_seqs=32, max_num_batched_tokens=512)
    executor = SimExecutor(config, Deployment(SMALL, find_hardware("h100")))
    sizes = {name: getattr(SMALL, name) for name in ModelShape.__dataclass_fields__}
    executor.worker = SimpleNamespace(
        model_config=SimpleNamespace(**sizes, path="small", windows=())
    )
    core = EngineCore(make_scheduler(config, 300, 1000), executor, executor.clock)
    monkeypatch.setattr(
        "minivllm.entrypoints.llm.LLM",
        lambda *args, **options: SimpleNamespace(engine=SimpleNamespace(core=core)),
    )
    assert main(["bench", "calibrate", *(["--json"] if as_json else [])]) == 0
    out, err = capsys.readouterr()
    assert "measuring" in err
    if as_json:
        assert json.loads(out).keys() >= {*asdict(TRUE), "error_fitted", "error_held_out"}
    else:
        assert "GFLOP/s" in out and "on others" in out
        assert max(map(len, out.splitlines())) <= 80
