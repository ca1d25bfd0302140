"""The roofline's four constants for this machine, from steps of a real model.

examples:
  minivllm bench calibrate
  minivllm bench calibrate --json constants.json

Also says how well they predict the time of steps that they were not fitted to.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, replace
from statistics import median

from ..bench.calibrate import (
    FITTED,
    HELD_OUT,
    Fit,
    Measured,
    Shape,
    bare,
    fit_constants,
    machine,
    measure,
    relative_errors,
)
from ..bench.model_shapes import shape_of
from ..bench.record import check_record_path
from ..bench.roofline import Deployment
from .bench_options import add_json_option, finish
from .options import DEFAULT_MODEL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--model", default=DEFAULT_MODEL, help="(default: %(default)s)")
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Measure steps of the real engine, fit, and print."""
    from ..entrypoints.llm import LLM

    check_record_path(args.json)
    start = time.monotonic()
    print(f"loading {args.model}, then measuring for a minute ...", file=sys.stderr, flush=True)
    llm = LLM(args.model, prefix_cache="none", max_num_seqs=32, max_num_batched_tokens=512)
    executor = llm.engine.core.executor
    (spec,) = executor.kv_cache_specs()
    shape = shape_of(executor.worker.model_config)
    deployment = bare(shape, 8 * spec.dtype_bytes, spec.block_size)
    measured = measure(llm.engine.core, (*FITTED, *HELD_OUT))
    fit = fit_constants(deployment, steps_of(measured, FITTED))
    hardware, constants = machine(fit)
    fitted = replace(deployment, hardware=hardware, constants=constants)
    errors = {
        "error_fitted": median(relative_errors(fitted, steps_of(measured, FITTED))),
        "error_held_out": median(relative_errors(fitted, steps_of(measured, HELD_OUT))),
    }
    record = {"model": args.model, **asdict(fit), **errors}
    finish(args, record, table(args.model, fitted, fit, errors))
    print(f"measured in {time.monotonic() - start:.0f} s", file=sys.stderr)
    return 0


def steps_of(measured: dict[Shape, list[Measured]], shapes: tuple[Shape, ...]) -> list[Measured]:
    return [step for shape in shapes for step in measured[shape]]


def table(name: str, deployment: Deployment, fit: Fit, errors: dict[str, float]) -> str:
    gflops = deployment.hardware.peak_flops(16) / 1e9
    bandwidth = (
        f"{1e-9 / fit.seconds_per_byte:.1f} GB/s"
        if fit.seconds_per_byte
        else ("no limit seen: the weights are part of a step's cost")
    )
    return "\n".join((
        f"{name}, weights of {deployment.weight_bits:g} bits, measured on this machine",
        f"arithmetic    {gflops:,.1f} GFLOP/s",
        f"memory        {bandwidth}",
        f"each step     {fit.seconds_per_step * 1e3:.2f} ms",
        f"each request  {fit.seconds_per_request * 1e3:.3f} ms in each step",
        f"error         {errors['error_fitted']:.0%} of a step's time where it was fitted, "
        f"{errors['error_held_out']:.0%} on others",
    ))  # fmt: skip
