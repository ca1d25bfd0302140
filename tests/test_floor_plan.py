"""The floor plan: who may import whom, how long things are, and that the maps are true."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "minivllm"
FILES = {
    p.relative_to(PACKAGE).with_suffix("").as_posix(): p for p in sorted(PACKAGE.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}

PLAIN = ("kv", "model", "sampler", "weights")  # what executor/plain is made of

# The most particular prefix of a file's name gives its rank. A file imports lower ranks and its
# own room; EXTRA lists what else. The highest rank imports anything.
RANKS = {
    **dict.fromkeys(("config", "request", "sampling_params", "outputs", "philox"), 0),
    **dict.fromkeys(("checkpoint", "tokenizer", "kvcache", "structured_output", "metrics"), 1),
    **dict.fromkeys(("kernels", "executor/base", "executor/__init__", "spec_decode/ngram"), 1),
    **dict.fromkeys(("scheduler", "quantization"), 2),
    **dict.fromkeys(("bench/roofline", "bench/hardware", "bench/model_shapes"), 2),
    **dict.fromkeys(("layers", "sample", "executor/sim", "executor/plain"), 3),
    **dict.fromkeys((f"executor/plain_{part}" for part in PLAIN), 3),
    **dict.fromkeys(("models", "compilation"), 4),
    **dict.fromkeys(("worker", "spec_decode"), 5),
    **dict.fromkeys(("executor/uniproc", "executor/multiproc"), 6),
    "engine": 7,
    **dict.fromkeys(("entrypoints", "frontend", "router"), 8),
    **dict.fromkeys(("bench", "commands", "__main__", "__init__"), 9),
}
EXTRA = {
    "tokenizer": ("checkpoint",),
    "executor/base": ("kvcache/spec", "checkpoint/model_config"),
}
CONTROL = (
    *("config", "request", "sampling_params", "outputs", "philox", "checkpoint", "entrypoints"),
    *("tokenizer", "engine", "scheduler", "kvcache", "structured_output", "metrics", "frontend"),
    *("router", "executor/base", "executor/sim", "executor/plain", "executor/__init__"),
    *(f"executor/plain_{part}" for part in PLAIN),
    *("bench/roofline", "bench/hardware", "bench/model_shapes", "spec_decode/ngram", "__init__"),
    *("bench/workload", "bench/arrivals"),
)
# Files of the control plane that may use more than the standard library.
LIBRARIES = {
    "checkpoint/hub": {"huggingface_hub"},
    "tokenizer/tokenizer": {"tokenizers"},
    "tokenizer/gguf_vocab": {"tokenizers"},
    "tokenizer/chat_template": {"jinja2"},
}
DEVICE_ROOMS = ("worker", "kernels")


def covers(prefix: str, name: str) -> bool:
    return name == prefix or name.startswith(prefix + "/")


def rank(name: str) -> int:
    found = [p for p in RANKS if covers(p, name)]
    assert found, f"minivllm/{name}.py stands in a room that the floor plan does not know"
    return RANKS[max(found, key=len)]


def is_control(name: str) -> bool:
    return any(covers(p, name) for p in CONTROL)


def imports(name: str) -> tuple[set[str], set[str]]:
    """Files of the package and first names of others that `name` imports, anywhere in it."""
    own, other = set(), set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            other |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            other.add(node.module.partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            here = name.split("/")[: -node.level]
            base = "/".join(here + (node.module or "").split(".")).strip("/")
            for target in [f"{base}/{a.name}".strip("/") for a in node.names] + [base]:
                own |= {f for f in (target, f"{target}/__init__".strip("/")) if f in FILES}
    return own - {name, "__init__"}, other


def run_python(code: str, **where) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **where)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", FILES)
def test_a_file_imports_only_lower_ranks_and_its_own_room(name):
    own, other = imports(name)
    assert PACKAGE.name not in other, "imports within the package are relative"
    assert not other & {"labs", "lessons", "tests"}
    for target in own:
        allowed = any(covers(p, target) for k, v in EXTRA.items() if covers(k, name) for p in v)
        same_room = target.split("/")[0] == name.split("/")[0] or rank(name) == 0
        inner = same_room and rank(target) == rank(name)
        assert rank(target) < rank(name) or rank(name) == 9 or inner or allowed, (
            f"minivllm/{name}.py (rank {rank(name)}) imports {target}.py (rank {rank(target)})"
        )


@pytest.mark.parametrize("name", [n for n in FILES if is_control(n)])
def test_the_control_plane_imports_itself_and_the_standard_library(name):
    own, other = imports(name)
    foreign = other - sys.stdlib_module_names - LIBRARIES.get(name, set())
    assert not foreign, f"minivllm/{name}.py imports {foreign}"
    assert all(is_control(target) for target in own), f"minivllm/{name}.py imports {own}"


def test_importing_the_control_plane_loads_neither_torch_nor_numpy():
    modules = [f"{PACKAGE.name}.{n.replace('/', '.')}" for n in FILES if is_control(n)]
    code = (
        "import importlib, sys\n"
        "sys.modules['torch'] = sys.modules['numpy'] = None\n"  # importing one now raises
        f"for name in {modules}: importlib.import_module(name)\n"
        "heavy = {m.partition('.')[0] for m, v in sys.modules.items() if v} & {'torch', 'numpy'}\n"
        "assert not heavy, heavy\n"
    )
    run_python(code, cwd=ROOT)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_short_and_says_what_it_owns(name):
    lines = FILES[name].read_text(encoding="utf-8").count("\n")
    assert lines <= 300, f"minivllm/{name}.py has {lines} lines"
    assert ast.get_docstring(TREES[name]), f"minivllm/{name}.py does not say what it owns"
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            assert length <= 50, f"minivllm/{name}.py: {node.name} has {length} lines"


@pytest.mark.parametrize("name", FILES)
def test_a_module_keeps_no_state_that_changes(name):
    changing = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    for node in TREES[name].body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, changing):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                assert target.id.isupper() or target.id.startswith("__"), (
                    f"minivllm/{name}.py: {target.id} can change; a constant is written LARGE"
                )
    assert not any(isinstance(n, ast.Global) for n in ast.walk(TREES[name]))


@pytest.mark.parametrize("name", [n for n in FILES if n.endswith("__init__")])
def test_an_init_file_holds_only_a_docstring(name):
    if name not in ("__init__", "kernels/__init__"):
        assert len(TREES[name].body) == 1, f"minivllm/{name}.py holds code"


def test_every_folder_of_the_package_is_a_room():
    rooms = {p.parent for p in FILES.values()} - {PACKAGE}
    assert [str(r) for r in rooms if not (r / "__init__.py").exists()] == []


@pytest.mark.parametrize("name", FILES)
def test_only_the_worker_and_the_kernels_know_what_device_they_are_on(name):
    if not any(covers(room, name) for room in (*DEVICE_ROOMS, "bench", "commands")):
        code = ast.unparse(TREES[name])
        assert not re.search(r"torch\.(cuda|mps|backends)\b|\.is_cuda\b|device\.type\b", code)


def files_on_map(text: str) -> set[str]:
    """Files named by a tree whose lines are `  room/  ...` and `file.py  ...`, rooms indented."""
    rooms, found = [], set()  # rooms: (indent, path) of those that the line stands in
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        first = re.match(r"\s*([\w/]+)/(?=\s|$)", line)
        if line.strip():
            rooms = [(i, path) for i, path in rooms if i < indent]
        if first:
            rooms.append((indent, f"{rooms[-1][1]}{first[1]}/" if rooms else f"{first[1]}/"))
        here = rooms[-1][1] if rooms else ""
        found |= {here + f for f in re.findall(r"(?<![\w./])(\w+)\.py\b", line)}
    return {f.removeprefix("minivllm/") for f in found}


@pytest.mark.parametrize("place", ["README.md", "minivllm/__init__.py"])
def test_the_maps_name_exactly_the_files_that_exist(place):
    text = (ROOT / place).read_text(encoding="utf-8")
    tree = re.search(r"^minivllm/\n(?: .*\n)+", text, re.M)
    assert tree, f"{place} has no tree that starts with a line `minivllm/`"
    on_map = files_on_map(tree[0]) - {"__init__", "kernels/__init__"}
    real = {n for n in FILES if not n.endswith("__init__")}
    assert on_map == real, f"missing: {sorted(real - on_map)}, gone: {sorted(on_map - real)}"


@pytest.mark.slow
def test_a_copy_under_another_name_lives_beside_the_original(tmp_path):
    shutil.copytree(
        PACKAGE, tmp_path / "mine_minivllm", ignore=shutil.ignore_patterns("__pycache__")
    )
    modules = [n.replace("/", ".") for n in FILES if n not in ("__main__", "__init__")]
    code = (
        "import importlib, sys\n"
        f"for module in {modules}:\n"
        "    one, two = (importlib.import_module(f'{p}.{module}')\n"
        "                for p in ('minivllm', 'mine_minivllm'))\n"
        "    assert one is not two and one.__file__ != two.__file__\n"
    )
    path = os.pathsep.join((str(ROOT), str(tmp_path)))
    run_python(code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})


def test_the_lines_of_each_file_are_printed(capsys):
    counts = {n: p.read_text(encoding="utf-8").count("\n") for n, p in FILES.items()}
    with capsys.disabled():
        print(f"\n{sum(counts.values())} lines in {len(counts)} files of minivllm/")
        for name, lines in counts.items():
            print(f"  {lines:4} {name}.py")
    assert sum(counts.values()) > 0
