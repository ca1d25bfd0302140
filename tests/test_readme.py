"""Every command that the README prints can be typed: it runs, or it is started, probed and stopped.
Its Python runs too. Only `make test`, which runs this, is left to you."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkouts import ROOT, make_checkout
from printed import commands_in, shell

from minivllm.checkpoint.registry import resolve

README = (ROOT / "README.md").read_text(encoding="utf-8")
QUESTION = "What is the capital of France?"

# Before anything is installed, in this order.
FRESH = [
    "git clone <this repository> minivllm && cd minivllm",
    "python -m venv .venv",
    "source .venv/bin/activate",
    "python -m minivllm doctor",
]
INSTALL = [
    "python -m pip install uv",
    "python -m uv pip install --torch-backend auto -e .",
    'python -m uv pip install --torch-backend auto -e ".[test]"',
]
TALK = ["minivllm chat", ".venv/bin/minivllm chat", f'echo "{QUESTION}" | minivllm chat']
WRITE = [
    'minivllm generate -m tiny "Once upon a time"',
    'minivllm generate --max-tokens 32 "The sea is"',
    'minivllm generate -n 3 --temperature 0.8 --stop "." "My favourite colour is"',
]
FROM_THE_HUB = 'minivllm generate -m HuggingFaceTB/SmolLM2-135M "Once"'
JUST_RUN = [
    "make",
    "make learn",
    "make check",
    "python -m pytest",
    "python -m labs",
    "minivllm doctor",
    "minivllm simulate --hardware h100 -m llama-3-8b --rate 20",
    "minivllm bench scheduler",
]
NO_GPU = "make gpu-check"
# The first runs this test; test_course_home.py runs the second, test_site.py the third.
ELSEWHERE = ["make test", "python -m lessons", "make site"]


def printed() -> list[str]:
    """In the README's order, each once."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S)
    beside = re.sub(r"^```.*?^```", "", README, flags=re.M | re.S)
    inline = [c for c in re.findall(r"`([^`]+)`", beside) if " " in c or c == "make"]
    found = [c for text in [*blocks, *inline] for c in commands_in(text)]
    return list(dict.fromkeys(found))


@pytest.fixture
def checkout(tmp_path) -> Path:
    """With this test's environment, and one test that stands for all others."""
    folder = make_checkout(tmp_path / "checkout")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
    (folder / "tests" / "gpu_check.py").symlink_to(ROOT / "tests" / "gpu_check.py")
    (folder / "tests" / "tiny_models.py").symlink_to(ROOT / "tests" / "tiny_models.py")
    return folder


def as_installed(command: str) -> str:
    """`make` takes the environment as it is: what sets it up is `.ci/run`'s to show."""
    ready = "make -o .venv/.learn-ready -o .venv/.test-ready"
    return re.sub(r"^make(?= |$)", ready, command)


def test_every_command_of_the_readme_is_tried_here_and_no_other():
    tried = [*FRESH, *INSTALL, *TALK, *WRITE, FROM_THE_HUB, *JUST_RUN, NO_GPU, *ELSEWHERE]
    assert sorted(tried) == sorted(printed())


@pytest.mark.slow
def test_a_fresh_clone_says_what_to_install(tmp_path):
    clone, *then = FRESH
    typed = " && ".join([clone.replace("<this repository>", f"--quiet '{ROOT}'"), *then])
    done = shell(typed, tmp_path, PYTHONPATH="")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "mend torch first: make learn"
    assert f"({tmp_path}/minivllm/.venv/bin/python)" in done.stdout


@pytest.mark.network
def test_what_the_readme_installs_can_be_had(tmp_path, checkout):
    folders = os.environ.get("PIP_FIND_LINKS", "").split()
    links = " ".join(f"--find-links '{folder}'" for folder in folders)
    for command in INSTALL:
        if folders:  # as the README says: torch comes from a folder of wheels
            command = command.replace("--torch-backend auto", links)
        done = shell(re.sub(r"install(?= )", "install --dry-run", command), checkout)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", TALK)
def test_the_real_model_answers_whoever_asks_it(command, checkout, smollm2):
    done = shell(command, checkout, typed=f"{QUESTION}\n")
    assert done.returncode == 0 and "Paris" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", WRITE)
def test_the_real_model_writes_at_once(command, checkout, smollm2):
    """Started, probed, stopped: how much it writes is its own affair."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=checkout, env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert os.read(process.stdout.fileno(), 1000)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_a_name_of_the_hub_can_be_given(checkout, tmp_path):
    """The bundled model stands in the Hub's cache under that name."""
    name = re.search(r"-m (\S+)", FROM_THE_HUB)[1]
    folder = tmp_path / "hub" / ("models--" + name.replace("/", "--"))
    shutil.copytree(resolve("tiny"), folder / "snapshots" / ("a" * 40))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    done = shell(f"{FROM_THE_HUB} --max-tokens 3", checkout, HF_HUB_CACHE=str(tmp_path / "hub"))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", JUST_RUN)
def test_it_runs(command, checkout, smollm2):
    if command == "make check":  # whether the lessons are in order is `make lint`'s to say
        for notebook in (checkout / "lessons").glob("[0-9]*.py"):
            notebook.unlink()
    done = shell(as_installed(command), checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
def test_the_check_of_a_gpu_says_where_there_is_none(checkout):
    if torch.cuda.is_available():
        assert shell(f"{NO_GPU} -n", checkout).returncode == 0
    else:
        done = shell(as_installed(NO_GPU), checkout)
        assert done.returncode == 2 and "NVIDIA GPU" in done.stdout + done.stderr


@pytest.mark.slow
def test_the_readmes_python_runs(checkout, smollm2):
    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout and "Two and two make" in done.stdout
