"""What every test stands on: one thread, no network, fixed draws, and where the real model is."""

from __future__ import annotations

import os
import signal

# A process started in the background may have Ctrl-C switched off, and hands that on to its own.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Before torch is imported. Two processes of one thread each are far quicker than one of two.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "minivllm",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("minivllm")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a network or an NVIDIA GPU, unless it was asked for."""
    left_out = set()
    if os.environ.get("MINIVLLM_TEST_NETWORK") != "1":
        left_out.add("network")
    if "gpu" not in config.option.markexpr:
        left_out.add("gpu")
    away = [i for i in items if any(i.get_closest_marker(name) for name in left_out)]
    if away:
        config.hook.pytest_deselected(items=away)
        items[:] = [i for i in items if i not in away]


@pytest.fixture(scope="session")
def smollm2() -> str:
    """The path of the real model, pulled when this machine does not have it yet."""
    from minivllm.checkpoint.registry import resolve

    return resolve("smollm2-135m")


@pytest.fixture(scope="session")
def smollm2_hf(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The real model as a folder that transformers loads, in float32. Made once for all test
    processes: the first to take the lock makes it, the others wait."""
    from filelock import FileLock
    from oracles import dequantize_to_hf_folder

    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    folder, done = shared / "smollm2-hf", shared / "smollm2-hf.done"
    with FileLock(shared / "smollm2-hf.lock"):
        if not done.exists():
            dequantize_to_hf_folder(smollm2, folder)
            done.touch()
    return str(folder)
