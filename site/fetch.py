"""What the site is built from and this repository does not hold, by exact version: npm packages
and Python wheels, through npm and pip, into site/build/. The site serves them itself.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

BUILD = Path(__file__).parent / "build"
NODE_MODULES = BUILD / "npm" / "node_modules"
WHEELS = BUILD / "wheels"

NPM = {
    "pyodide": "314.0.0",  # Python in the browser; must be the version that marimo names
    "katex": "0.19.1",
    "iframe-worker": "1.0.4",  # search where the site is opened from a folder
    "axe-core": "4.14.1",  # for the tests
    "@fontsource-variable/source-serif-4": "5.3.1",
    "@fontsource/ibm-plex-sans": "5.3.0",
    "@fontsource/ibm-plex-mono": "5.3.0",
}
PURE = {
    "marimo-base": "0.25.2",
    "markdown": "3.11.3",
    "pymdown-extensions": "13.1.2",
    "narwhals": "2.29.0",
    "packaging": "26.4",
    "docutils": "0.23",
    "pygments": "2.21.0",
    "jedi": "0.20.1",
    "parso": "0.8.7",
    "micropip": "0.11.1",
    "pyodide-http": "0.2.2",
    "itsdangerous": "2.2.0",
    "python-multipart": "0.0.34",
    "tomlkit": "0.15.2",
}
COMPILED = {"msgspec": "0.23.0"}  # there are wheels of it for Pyodide's platform
STRIPPED = {"pyyaml": "6.0.3"}  # any wheel of it, without its C part


def fetch() -> None:
    """Brings the build folder up to date; does nothing where it already is. Raises ValueError when
    npm is missing or a registry does not answer."""
    wanted = json.dumps([NPM, PURE, COMPILED, STRIPPED])
    stamp = BUILD / "fetched.json"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    print("fetching npm packages and wheels (once)", flush=True)
    stamp.unlink(missing_ok=True)
    shutil.rmtree(WHEELS, ignore_errors=True)
    WHEELS.mkdir(parents=True)
    fetch_npm()
    fetch_wheels()
    stamp.write_text(wanted, encoding="utf-8")


def fetch_npm() -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise ValueError("the site needs Node.js and npm (20 or newer): install them first")
    names = [f"{name}@{version}" for name, version in NPM.items()]
    prefix = BUILD / "npm"
    prefix.mkdir(exist_ok=True)
    run([npm, "install", "--prefix", prefix, "--ignore-scripts", "--no-audit", "--no-fund",
         "--no-save", "--loglevel=error", *names])  # fmt: skip


def fetch_wheels() -> None:
    python = ["--implementation", "cp", "--python-version"]
    emscripten = [*python, "3.14", "--abi", "cp314", "--platform", "pyemscripten_2026_0_wasm32"]
    linux = [*python, "3.11", "--abi", "cp311", "--platform", "manylinux2014_x86_64"]
    for packages, platform in (
        (PURE, ["--python-version", "3.14", "--platform", "any"]),
        (COMPILED, emscripten),
        (STRIPPED, linux),
    ):
        run([sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet",
             "--no-deps", "--only-binary=:all:", "--dest", WHEELS, *platform,
             *(f"{name}=={version}" for name, version in packages.items())])  # fmt: skip
    for name, version in STRIPPED.items():
        for wheel in WHEELS.glob(f"{name}-{version}-cp*.whl"):
            strip_compiled(wheel, WHEELS / f"{name}-{version}-py3-none-any.whl")
            wheel.unlink()


def strip_compiled(source: Path, target: Path) -> None:
    """A wheel for any platform: what is compiled is left out, and its tags say so."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            if name.endswith("/WHEEL"):
                new.writestr(name, "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            elif name.endswith("/RECORD"):
                new.writestr(name, "")
            elif not name.endswith(".so"):
                new.writestr(name, old.read(name))


def run(command: list) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise ValueError(f"{' '.join(str(part) for part in command[:4])} ... failed:\n{tail}")
