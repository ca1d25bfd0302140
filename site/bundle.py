"""Python for the browser: Pyodide, the packages that notebooks need, and one wheel of our own with
what runs there. One lock file lists them all, by path and checksum; marimo's pages read it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

from fetch import NODE_MODULES, WHEELS

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.test_floor_plan import FILES, PACKAGE, is_control  # noqa: E402

RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
OWN = "token-by-token"
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
TAGS = "Wheel-Version: 1.0\nGenerator: site/bundle.py\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
LONG_AGO = (2020, 1, 1, 0, 0, 0)  # the same content makes the same wheel


def bundle(folder: Path) -> None:
    """Writes folder/pyodide, with the lock file, and folder/packages."""
    (folder / "pyodide").mkdir(parents=True, exist_ok=True)
    (folder / "packages").mkdir(exist_ok=True)
    npm = NODE_MODULES / "pyodide"
    for name in RUNTIME:
        shutil.copyfile(npm / name, folder / "pyodide" / name)
    for wheel in WHEELS.glob("*.whl"):
        shutil.copyfile(wheel, folder / "packages" / wheel.name)
    own_wheel(folder / "packages")
    entries = [lock_entry(w) for w in sorted((folder / "packages").glob("*.whl"))]
    packages = {entry["name"]: entry for entry in entries}
    for entry in entries:
        entry["depends"] = [name for name in entry["depends"] if name in packages]
    info = json.loads((npm / "pyodide-lock.json").read_text(encoding="utf-8"))["info"]
    lock = json.dumps({"info": info, "packages": packages}, indent=1)
    (folder / "pyodide" / "pyodide-lock.json").write_text(lock, encoding="utf-8")


def browser_modules() -> set[str]:
    """The engine's files, without suffix, that can be imported where there is nothing but the
    standard library: the control plane, and what else needs no torch."""
    names = sorted(name for name in FILES if name != "__main__")
    code = (
        f"import sys, importlib; sys.path.insert(0, {str(ROOT)!r})\n"
        f"for name in {names!r}:\n"
        "    try: importlib.import_module('minivllm.' + name.replace('/', '.'))\n"
        "    except ImportError: continue\n"
        "    print(name)\n"
    )
    # -I -S: no packages but Python's own.
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    found = set(done.stdout.split())
    if done.returncode or (missing := {n for n in FILES if is_control(n)} - found):
        raise ValueError(f"the control plane needs more than Python: {done.stderr or missing}")
    return found


def own_files() -> Iterator[tuple[str, Path]]:
    """(path in the wheel, file): the engine as far as it runs there, the smallest model, the labs
    without their answers, the lessons' modules."""
    modules = browser_modules()
    for name, path in FILES.items():
        if name in modules or name.endswith("__init__"):
            yield f"minivllm/{name}.py", path
    for path in sorted((PACKAGE / "checkpoint" / "bundled" / "tiny").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"minivllm/{path.relative_to(PACKAGE).as_posix()}", path
    labs = ROOT / "labs"
    for pattern in ("*.py", "*/lab.toml", "*/README.md", "*/test_*.py"):
        for path in sorted(labs.glob(pattern)):
            if path.relative_to(labs).parts[0] != "mine":
                yield f"labs/{path.relative_to(labs).as_posix()}", path
    for path in sorted((ROOT / "lessons").glob("*.py")):
        yield f"lessons/{path.name}", path


def own_wheel(folder: Path) -> Path:
    """Our wheel. Its version ends in a digest of its files, so that no browser keeps an old one."""
    files = dict(own_files())
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(name.encode() + b"\0" + path.read_bytes())
    version = f"0.1.0.post{int(digest.hexdigest()[:10], 16)}"
    stem = f"{OWN.replace('-', '_')}-{version}"
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, path in files.items():
            write(archive, name, path.read_bytes())
        write(archive, f"{stem}.dist-info/METADATA", METADATA.format(name=OWN, version=version))
        write(archive, f"{stem}.dist-info/WHEEL", TAGS)
        write(archive, f"{stem}.dist-info/RECORD", "")
    return wheel


def write(archive: zipfile.ZipFile, name: str, content: str | bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, LONG_AGO), content, zipfile.ZIP_DEFLATED)


def lock_entry(wheel: Path) -> dict:
    """What Pyodide must know of a wheel: its path beside pyodide/, checksum, modules, needs."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        path = next(n for n in names if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(path).decode())
    tops = {n.split("/")[0].removesuffix(".py") for n in names if n.endswith((".py", ".so"))}
    needs = metadata.get_all("Requires-Dist") or []
    needs = [n for n in needs if "extra" not in n and "!= 'emscripten'" not in n.replace('"', "'")]
    return {
        "name": normal(metadata["Name"]),
        "version": metadata["Version"],
        "file_name": f"../packages/{wheel.name}",
        "install_dir": "site",
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "package_type": "package",
        "imports": sorted(top.partition(".")[0] for top in tops if ".dist-info" not in top),
        "depends": sorted({normal(re.split(r"[ ;<>=!~\[(]", n)[0]) for n in needs}),
        "unvendored_tests": False,
    }


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
