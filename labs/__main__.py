"""The labs, from the command line. Alone it says what to type next.

0: done, all tests pass. 1: a test fails. 2: something asked for cannot be had.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from . import instructor, overview, report
from .face import say
from .learner import MINE, Learner, failures
from .manifest import ROOT, LabInfo, find_lab
from .runner import Judge, Outcome, run_lab

COMMANDS = {
    "list": "all labs, what is done, what is next",
    "start": "write a lab's starter into labs/mine; never overwrites",
    "check": "run a lab's tests against your file",
    "hint": "one more hint for the test that failed last",
    "diff": "your functions beside the reference's, once the lab is passed",
    "reset": "start a lab over; your files are kept in labs/mine/backup",
    "skip": "leave a lab out for now; come back with start",
    "update": "after a new version of the engine: its files, your bodies",
    "mine": "run the whole engine on the labs you passed: mine chat, mine generate",
    "grade": "grade a folder of submissions",
    "export": "make an autograder package",
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m labs",
        description="The labs of Token by Token. Alone, it says what to type next.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    made = {name: commands.add_parser(name, help=text) for name, text in COMMANDS.items()}
    for name in ("start", "check", "hint", "diff", "reset", "skip"):
        made[name].add_argument("lab", nargs="?", help="slug or number; default: where you are")
    check = made["check"]
    check.add_argument("--seed", type=int, help="the numbers of an earlier check")
    check.add_argument("--verbose", action="store_true", help="the whole traceback")
    check.add_argument("--watch", action="store_true", help="check again whenever a file changes")
    check.add_argument("--ref", action="store_true", help="judge the reference instead of yours")
    check.add_argument("--direct", action="store_true",
                       help="in this process, for a debugger: no limits")  # fmt: skip
    made["diff"].add_argument("--give-up", action="store_true", help="show it before you pass")
    made["reset"].add_argument("--all", action="store_true", help="every lab")
    made["mine"].add_argument("arguments", nargs=argparse.REMAINDER,
                              help="what `minivllm` is asked: chat, generate ...")  # fmt: skip
    instructor.add_options(made)
    return parser


def main(argv: list[str] | None = None, mine: Path = MINE) -> int:
    """Run one command; returns its exit status."""
    sys.stdout.reconfigure(errors="replace")
    args = make_parser().parse_args(argv)
    try:
        learner = Learner(mine, say)
        if learner.progress.notice:
            say(report.wrapped(learner.progress.notice, "") + "\n")
        return RUN[args.command or "list"](learner, args)
    except ValueError as error:
        print(f"labs: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def current(learner: Learner, name: str | None) -> LabInfo:
    """The lab that is named, or else the one to work on now."""
    if name:
        return find_lab(name, learner.labs)
    info = overview.next_lab(learner)
    if info is None:
        raise ValueError("all labs are passed; name one")
    return info


def do_list(learner: Learner, args: argparse.Namespace) -> int:
    for text, kind in overview.lines(learner):
        say(text, kind)
    if args.command is None:
        say("\npython -m labs --help lists all commands.")
    return 0


def do_start(learner: Learner, args: argparse.Namespace) -> int:
    return 0 if learner.start(current(learner, args.lab)) else 2


def do_check(learner: Learner, args: argparse.Namespace) -> int:
    info = current(learner, args.lab)
    if args.ref:
        return check_reference(info, args)
    if not learner.has_started(info):
        raise ValueError(f"{info.slug} is not started: python -m labs start {info.slug}")
    return watch(learner, info, args) if args.watch else check_once(learner, info, args)


def check_once(learner: Learner, info: LabInfo, args: argparse.Namespace) -> int:
    say(f"Lab {info.number:02} {info.slug}\n", "title")
    has_failed = False

    def show_until_failed(outcome: Outcome) -> None:
        nonlocal has_failed
        if not (has_failed and outcome.status == "left"):
            show(outcome)
        has_failed = has_failed or outcome.status == "failed"

    outcomes, seed = learner.check(info, args.seed, args.direct, show_until_failed)
    failed = failures(outcomes)
    say()
    if all(o.further for o in failed):
        say(report.summary(info, outcomes), "passed")
        say(f"\n  yours beside the reference's   python -m labs diff {info.slug}")
        say("  the engine on your code        python -m labs mine chat")
        if info.number:
            say("  the lesson on your code        press `look again` in its act 6")
        say("  what comes next                python -m labs\n")
    if not failed:
        return 0
    # While it watches, hints would be used up by saving.
    hint = learner.next_hint(info) if failed[0].wants_hint and not args.watch else None
    say(report.failure(failed[0], hint, args.verbose))
    say(f"\n  again    python -m labs check {info.slug} --seed {seed}")
    say(f"  stuck?   python -m labs hint {info.slug}")
    return 1


def show(outcome: Outcome) -> None:
    kind = {"passed": "passed", "failed": "failed"}.get(outcome.status, "quiet")
    say(report.line_of(outcome), kind)


def check_reference(info: LabInfo, args: argparse.Namespace) -> int:
    outcomes = list(run_lab(info, Judge(None), args.seed or 0))
    for outcome in outcomes:
        show(outcome)
        if outcome.status == "failed":
            say(report.failure(outcome, None, args.verbose))
    return 0 if all(o.passed for o in outcomes) else 1


def watch(learner: Learner, info: LabInfo, args: argparse.Namespace) -> int:
    """Check at each change of a Python file in the lab's folder, until Ctrl-C."""
    try:
        from watchfiles import PythonFilter, watch
    except ImportError as error:
        raise ValueError("--watch needs watchfiles: python -m pip install watchfiles") from error
    status, waiting = check_once(learner, info, args), "\nwatching your files; Ctrl-C ends"
    say(waiting, "quiet")
    folder = learner.mine / info.folder.name
    for _ in watch(folder, watch_filter=PythonFilter(), raise_interrupt=False):
        say("\n" + "-" * report.WIDTH, "quiet")
        try:
            status = check_once(learner, info, args)
        except ValueError as error:
            say(f"labs: {error}", "failed")
        say(waiting, "quiet")
    return status


def do_hint(learner: Learner, args: argparse.Namespace) -> int:
    info = current(learner, args.lab)
    failing = learner.progress[info.slug].failing
    hint = learner.next_hint(info)
    if hint is None:
        say(f"No test of {info.slug} has failed yet: python -m labs check {info.slug}")
        return 2
    say(report.wrapped(failing.replace("_", " "), ""))
    say(report.wrapped(f"Hint {hint[0]} of {hint[1]}: {hint[2]}"))
    return 0


def do_diff(learner: Learner, args: argparse.Namespace) -> int:
    info = current(learner, args.lab)
    if not (learner.progress[info.slug].passed or args.give_up):
        raise ValueError(
            f"{info.slug} is not passed yet. Rather a hint (python -m labs hint {info.slug})? "
            f"Or --give-up"
        )
    say(learner.diff(info))
    return 0


def do_reset(learner: Learner, args: argparse.Namespace) -> int:
    labs = learner.labs if args.all else [current(learner, args.lab)]
    for info in labs:
        kept = learner.reset(info)
        if kept:
            say(f"{info.slug} is as at the start; what you had is in {learner.shown(kept)}")
        elif not args.all:
            say(f"{info.slug} is not started")
    return 0


def do_skip(learner: Learner, args: argparse.Namespace) -> int:
    info = current(learner, args.lab)
    learner.skip(info)
    say(f"{info.slug} is skipped; python -m labs start {info.slug} comes back to it")
    return 0


def do_update(learner: Learner, args: argparse.Namespace) -> int:
    complete = learner.update()
    say("Everything is up to date." if complete else "The rest is up to date.")
    return 0 if complete else 1


def do_mine(learner: Learner, args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="mine-") as folder:
        composed, names = learner.compose_mine(Path(folder).resolve())
        print(f"your engine: {', '.join(names)}\n", file=sys.stderr, flush=True)
        if not args.arguments:
            return 0
        paths = [str(composed.root), os.environ.get("PYTHONPATH", "")]
        command = [sys.executable, "-m", composed.package, *args.arguments]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return subprocess.run(command, env=env, cwd=ROOT).returncode


RUN = {
    "list": do_list,
    "start": do_start,
    "check": do_check,
    "hint": do_hint,
    "diff": do_diff,
    "reset": do_reset,
    "skip": do_skip,
    "update": do_update,
    "mine": do_mine,
    "grade": instructor.do_grade,
    "export": instructor.do_export,
}


if __name__ == "__main__":
    sys.exit(main())
