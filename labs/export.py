"""Packages that grade elsewhere: the course's code, and the script that the other place runs."""

from __future__ import annotations

import zipfile
from pathlib import Path

from .manifest import ROOT

# What judging needs. Answers stay out, and so does everything that is the instructor's alone.
NEEDED = ("minivllm/**/*.py", "labs/*.py", "labs/[0-9]*/*.*", "lessons/__init__.py",
          "lessons/draw.py")  # fmt: skip

SETUP = """\
#!/usr/bin/env bash
# Gradescope runs this once, when the image is built. Judging needs Python 3.11 and nothing else.
set -euo pipefail
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  apt-get update && apt-get install -y python3-pip
  python3 -m pip install uv && uv python install 3.12
  ln -sf "$(uv python find 3.12)" /usr/local/bin/python3
fi
"""

RUN = """\
#!/usr/bin/env bash
# Grades one submission: run_autograder [SUBMISSION [RESULTS]]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ -d "$here/course" ] || here=$here/source
submission=$(cd "${1:-/autograder/submission}" && pwd)
results=${2:-/autograder/results/results.json}
case $results in /*) ;; *) results=$PWD/$results ;; esac
cd "$here/course"
exec python3 -m labs grade "$submission" --one --gradescope "$results" LEVEL
"""

WORKFLOW = """\
# Grades labs/mine of this repository at each push, as the learner sees it.
name: labs
on: [push, workflow_dispatch]
permissions: {contents: read}
jobs:
  grade:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {python-version: "3.12"}
      - run: python -m labs grade labs/mine --one --junit grades.xml
"""

CLASSROOM = """\
{
  "tests": [
    {
      "name": "labs",
      "setup": "",
      "run": "python3 -m labs grade labs/mine --one",
      "input": "",
      "output": "",
      "comparison": "included",
      "timeout": 10,
      "points": POINTS
    }
  ]
}
"""


def gradescope(target: Path, seeds: Path | None = None) -> None:
    """A zip file to upload as a programming assignment's autograder. seeds: the instructor's,
    which learners never see."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        add_course(archive, "course/")
        level = ""
        if seeds is not None:
            add_text(archive, "course/instructor_seeds.txt", seeds.read_text(encoding="utf-8"))
            level = "--level full --seeds instructor_seeds.txt"
        add_text(archive, "setup.sh", SETUP, runs=True)
        add_text(archive, "run_autograder", RUN.replace(" LEVEL", f" {level}".rstrip()), runs=True)


def github_classroom(target: Path, points: int) -> None:
    """A zip file of a template repository: the course, and a workflow that grades labs/mine."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        add_course(archive, "")
        add_text(archive, ".github/workflows/labs.yml", WORKFLOW)
        classroom = CLASSROOM.replace("POINTS", str(points))
        add_text(archive, ".github/classroom/autograding.json", classroom)


def add_course(archive: zipfile.ZipFile, prefix: str) -> None:
    for pattern in NEEDED:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            add_text(archive, prefix + name, path.read_text(encoding="utf-8"))


def add_text(archive: zipfile.ZipFile, name: str, text: str, runs: bool = False) -> None:
    """A member with a fixed date, so that the same course gives the same file."""
    info = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
    info.external_attr = (0o100755 if runs else 0o100644) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, text)
