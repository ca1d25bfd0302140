"""The course's home page on this machine: `make learn`, or `python -m lessons`.

It opens in your browser where there is one; its address is printed always. Ctrl-C stops it and
every lesson that runs. Where no terminal is (or CI is set) nobody could stop it, so it shows that
the home page and the first lesson work, and ends; `--serve` stays nevertheless.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import webbrowser

import uvicorn

from .home.app import Home
from .home.catalog import ROOT, Course
from .home.notebooks import HOST, LESSONS, Notebooks, free_port

HOME_PORT, LESSON_PORT = 2719, 2720  # the first choice; beside marimo's own 2718
ENDS = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)]


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    hear_signals()
    print("Token by Token: the course on this machine\n", flush=True)
    port = free_port(args.port)
    notebooks = Notebooks(port=LESSON_PORT, home=f"http://{HOST}:{port}/")
    try:
        notebooks.start()
        home = Home(Course(), notebooks, port)
        if args.check:
            check(home)
        else:
            serve(home, args)
    except KeyboardInterrupt:
        pass
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        for name in ENDS:
            signal.signal(name, signal.SIG_IGN)  # it ends already, in a few seconds
        notebooks.stop()
    print("\nStopped." if args.check else "\nStopped. What you did is kept: `make learn` goes on.")
    return 0


def hear_signals() -> None:
    """Whatever ends us ends in order. uvicorn hears the first two itself while it serves."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    if hasattr(signal, "SIGHUP"):  # the terminal was closed
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m lessons", description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=HOME_PORT, help="of the home page, if free")
    parser.add_argument("--no-browser", action="store_true", help="print the address only")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="show that everything works, and end")
    mode.add_argument("--serve", action="store_true", help="stay, also without a terminal")
    args = parser.parse_args(argv)
    nobody = not sys.stdin or not sys.stdin.isatty() or os.environ.get("CI")
    args.check = args.check or bool(nobody and not args.serve)
    return args


def server_of(home: Home) -> uvicorn.Server:
    config = uvicorn.Config(
        home.app(), host=HOST, port=home.port, log_level="error", timeout_graceful_shutdown=1
    )
    return uvicorn.Server(config)


def serve(home: Home, args: argparse.Namespace) -> None:
    """Until a signal ends it."""
    print(f"  {home.address}\n")
    if not args.no_browser and has_browser():
        print("It opens in your browser.", end=" ")
        threading.Thread(target=webbrowser.open, args=(home.address,), daemon=True).start()
    else:
        print("Open this address in a browser.", end=" ")
    print("Ctrl-C here stops everything.", flush=True)
    if os.environ.get("SSH_CONNECTION"):
        ports = " ".join(f"-L {p}:{HOST}:{p}" for p in (home.port, home.notebooks.port))
        print(f"From another machine, first: ssh {ports} <this machine>", flush=True)
    server_of(home).run()


def check(home: Home) -> None:
    """Each thing that a reader would do first, done once. Raises ValueError where one fails."""
    print("No terminal is here, so this shows that everything works, and ends.\n")
    server = server_of(home)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    lessons = home.course.lessons()
    try:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        page = wait_for(opener, home.address)
        missing = [lesson.name for lesson in lessons if f"open/{lesson.name}" not in page]
        if missing:
            raise ValueError(f"the home page does not list {', '.join(missing)}")
        print(f"ok  the home page lists the lessons: {len(lessons)}")
        for lesson in lessons[:1]:
            # Not by way of the home page, which would remember that the reader opened it.
            there = opener.open(home.notebooks.address(f"{lesson.name}.py"), timeout=60)
            if "marimo" not in there.read().decode():
                raise ValueError(f"{lesson.name} does not open")
            print(f"ok  lesson {lesson.number:02} opens")
            run_lesson(lesson.name)
            print(f"ok  lesson {lesson.number:02} runs from top to bottom")
    finally:
        server.should_exit = True
        thread.join()
    print("\nIn a terminal, `make learn` opens the course in your browser.")


def wait_for(opener: urllib.request.OpenerDirector, address: str, give_up_s: float = 30) -> str:
    """The page there, once somebody answers."""
    give_up = time.monotonic() + give_up_s
    while True:
        try:
            return opener.open(address, timeout=30).read().decode()
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)


def run_lesson(name: str) -> None:
    command = [sys.executable, str(LESSONS / f"{name}.py")]
    here = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=here, check=False)
    if done.returncode:
        raise ValueError(f"lessons/{name}.py fails:\n{done.stderr[-3000:]}")


def has_browser() -> bool:
    """Is there one that can show a page on the screen of who typed this?"""
    if os.environ.get("BROWSER"):
        return True
    if os.environ.get("SSH_CONNECTION"):
        return False
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


if __name__ == "__main__":
    sys.exit(main())
