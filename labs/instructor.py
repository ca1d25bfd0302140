"""The commands for those who grade: `grade` and `export`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from . import export, grading, results
from .answers import submissions
from .learner import Learner
from .manifest import LabInfo, find_lab
from .report import printable
from .runner import load_tests


def add_options(made: dict[str, argparse.ArgumentParser]) -> None:
    grade = made["grade"]
    grade.add_argument("submissions", type=Path, help="a folder of folders and zip files")
    grade.add_argument("--one", action="store_true", help="the folder is a single submission")
    grade.add_argument("--lab", action="append", help="only this lab; may be given again")
    grade.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at once")
    grade.add_argument("--level", choices=("public", "full"), default="public")
    grade.add_argument("--seeds", type=Path, help="the instructor's seeds, for --level full")
    grade.add_argument("--out", type=Path, default=Path("grades.csv"), help="grades.csv")
    grade.add_argument("--junit", type=Path, help="also write JUnit XML")
    grade.add_argument("--gradescope", type=Path, help="also write results.json; with --one")
    export = made["export"]
    export.add_argument("--gradescope", type=Path, metavar="ZIP")
    export.add_argument("--github-classroom", type=Path, metavar="ZIP")
    export.add_argument("--seeds", type=Path, help="the instructor's seeds; for --gradescope")


def do_grade(learner: Learner, args: argparse.Namespace) -> int:
    labs = [find_lab(name, learner.labs) for name in args.lab] if args.lab else learner.labs
    if (args.level == "full") != (args.seeds is not None):
        raise ValueError("--level full and --seeds FILE go together")
    if args.gradescope and not args.one:
        raise ValueError("--gradescope is one learner's results.json: add --one")
    seeds = (*grading.PUBLIC_SEEDS, *(grading.read_seeds(args.seeds) if args.seeds else ()))
    if args.one:
        return grade_one(labs, seeds, args)
    paths = submissions(args.submissions)
    num_done = 0

    def tell(report: grading.Report, is_new: bool) -> None:
        nonlocal num_done
        num_done += 1
        points, most = report.points()
        how = f"{report.seconds:.1f} s" if is_new else "graded before"
        name = printable(report.learner)
        print(f"{num_done:>4} of {len(paths)}  {points:>3} of {most}  {name}  ({how})", flush=True)

    kept = args.out.with_suffix(".reports")
    reports = grading.grade_all(paths, labs, seeds, args.level, kept, args.jobs, tell)
    for path, each in zip(paths, reports, strict=True):
        text = "\n".join(results.lines_of(each)) + "\n"
        name = grading.safe_name(path.name)
        (kept / f"{name}.txt").write_text(text, encoding="utf-8", errors="replace")
    write_results(reports, args)
    print(f"\n{args.out}: {len(reports)} learners; each one's report is in {kept}")
    return 0


def grade_one(labs: list[LabInfo], seeds: tuple[int, ...], args: argparse.Namespace) -> int:
    """One submission, told in full. The exit status is 0 only if all core tests pass."""
    path = args.submissions
    report = grading.grade_apart(path, path.resolve().name, labs, seeds, args.level)
    print("\n".join(results.lines_of(report)))
    if args.gradescope:
        args.gradescope.write_text(results.to_gradescope(report), encoding="utf-8")
    if args.junit:
        args.junit.write_text(results.to_junit([report]), encoding="utf-8")
    points, most = report.points()
    return 0 if points == most > 0 else 1


def write_results(reports: list[grading.Report], args: argparse.Namespace) -> None:
    args.out.write_text(results.to_csv(reports), encoding="utf-8", errors="replace", newline="")
    if args.junit:
        args.junit.write_text(results.to_junit(reports), encoding="utf-8")


def do_export(learner: Learner, args: argparse.Namespace) -> int:
    if not (args.gradescope or args.github_classroom):
        raise ValueError("say which: --gradescope ZIP or --github-classroom ZIP")
    if args.gradescope:
        export.gradescope(args.gradescope, args.seeds)
        print(f"{args.gradescope}: upload it as the autograder of a programming assignment, or")
        print("  try it here: unzip it, then  bash run_autograder SUBMISSION results.json")
    if args.github_classroom:
        points = sum(len(load_tests(info)) for info in learner.labs)
        export.github_classroom(args.github_classroom, points)
        print(f"{args.github_classroom}: unzip it into the assignment's template repository, or")
        print("  try it here: unzip it, then  python3 -m labs grade labs/mine --one")
    return 0
