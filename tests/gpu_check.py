"""`make gpu-check`: what an NVIDIA GPU changes is tested and timed, and a dated record is written.

The record, benchmarks/gpu-DATE-CARD.json and .md, names card, driver and versions. The decode
times are of random weights in the shape of SmolLM2-135M, so no model has to be there. Ends with 0
if all tests passed, 1 if not, 2 where there is no such GPU.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import torch
from tiny_models import random_llama

from minivllm.bench.peer_workload import score, workload
from minivllm.checkpoint.model_config import read_model_config
from minivllm.config import EngineConfig
from minivllm.engine.core import EngineCore, make_core
from minivllm.outputs import EngineCoreRequest
from minivllm.sampling_params import SamplingParams

ROOT = Path(__file__).parent.parent
SMOLLM2_SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


def machine() -> dict[str, str]:
    """The card, its driver, and the versions that decide how it is used."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    versions = {d.name: d.version for d in importlib.metadata.distributions()}
    return {
        "card": torch.cuda.get_device_name(),
        "compute capability": "{}.{}".format(*torch.cuda.get_device_capability()),
        "memory": f"{torch.cuda.get_device_properties(0).total_memory / 2**30:.0f} GiB",
        "driver": said.splitlines()[0],
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": versions.get("triton", "not installed"),
        "python": platform.python_version(),
        "commit": commit(),
    }


def commit() -> str:
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)
    return said.stdout.strip() or "not in a git checkout"


def run_tests() -> dict[str, str]:
    """Each test marked `gpu`, and "passed" or what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", f"--junitxml={report}"]
        subprocess.run(command, cwd=ROOT, check=False)
        cases = ElementTree.parse(report).iter("testcase")
        return {f"{c.get('classname')}::{c.get('name')}": outcome(c) for c in cases}


def outcome(case: ElementTree.Element) -> str:
    wrong = [part for part in case if part.tag in ("failure", "error", "skipped")]
    return wrong[0].get("message", wrong[0].tag).split("\n")[0] if wrong else "passed"


def decode_speed(device: str, dtype: str = "bfloat16") -> dict[str, float]:
    """New tokens a second of one request and of 32 at once; the median of three runs each."""
    with tempfile.TemporaryDirectory() as folder:
        path = random_llama(folder, dtype=dtype, **SMOLLM2_SHAPE)
        config = EngineConfig(path, device=device, dtype=dtype)
        core = make_core(config, read_model_config(path))
        speeds = {}
        for test, key in (("decode", "decode_tok_s"), ("batch32", "decode32_tok_s")):
            timed(core, test, repeat=-1)  # warms up
            speeds[key] = statistics.median(timed(core, test, r)[key] for r in range(3))
        core.shutdown()
        return speeds


def timed(core: EngineCore, test: str, repeat: int) -> dict[str, float]:
    requests, _ = workload(test, repeat)
    times = {str(i): [] for i in range(len(requests))}
    start = time.perf_counter()
    for index, (prompt, num_new) in enumerate(requests):
        params = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True, seed=0)
        core.add_request(EngineCoreRequest(str(index), tuple(prompt), params))
    while core.has_unfinished_requests:
        for output in core.step():
            now = time.perf_counter() - start
            times[output.request_id] += [now] * len(output.new_token_ids)
    return score(test, requests, list(times.values()), time.perf_counter() - start)


def write_record(record: dict, folder: Path) -> Path:
    """Write the JSON and the page that shows it; returns the page's path."""
    card = re.sub(r"\W+", "-", record["machine"]["card"]).strip("-").lower()
    page = folder / f"gpu-{record['date'][:10]}-{card}.md"
    folder.mkdir(exist_ok=True)
    page.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    passed = sum(result == "passed" for result in record["tests"].values())
    lines = [f"# {record['machine']['card']}, {record['date']}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in record["machine"].items()]
    lines += ["", f"`make gpu-check`: {passed} of {len(record['tests'])} tests passed.", ""]
    lines += [f"- {t}: {r}" for t, r in record["tests"].items() if r != "passed"]
    lines += ["", "Random weights in the shape of SmolLM2-135M, bfloat16, median of three:", ""]
    lines += ["| | tokens/s |", "|---|---|"]
    lines += [f"| {name} | {value:.1f} |" for name, value in record["decode"].items()]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return page


def main() -> int:
    if not torch.cuda.is_available():
        print(f"gpu-check: torch {torch.__version__} sees no NVIDIA GPU here", file=sys.stderr)
        return 2
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "tests": run_tests(),
        "decode": decode_speed("cuda"),
    }
    print(f"written: {write_record(record, ROOT / 'benchmarks')}")
    return int(not record["tests"] or any(r != "passed" for r in record["tests"].values()))


if __name__ == "__main__":
    sys.exit(main())
