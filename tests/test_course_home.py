"""The course's home: what it lists and remembers, whom it answers, and that it ends whole."""

from __future__ import annotations

import http.client
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from types import SimpleNamespace

import browsing
import psutil
import pytest
import uvicorn
from websockets.sync.client import connect

from labs.progress import Progress
from lessons import bookmark
from lessons.home.app import Home
from lessons.home.catalog import Course
from lessons.home.notebooks import free_port
from lessons.home.places import Places

pytest_plugins = ["browsing"]
ROOT = Path(__file__).parent.parent
LESSON = """import marimo

app = marimo.App()

with app.setup:
    LESSON = {{
        "number": {number}, "slug": "{slug}", "title": "Title of {slug}", "part": "A part",
        "question": "Why <{slug}>?", "needs": [], "reads": [], "lab": "{lab}", "runs_on": "cpu",
        "minutes": 7,
    }}
"""


def write_lesson(folder: Path, number: int, slug: str, lab: str = "") -> None:
    text = LESSON.format(number=number, slug=slug, lab=lab)
    (folder / f"{number:02}_{slug}.py").write_text(text)


@pytest.fixture
def course(tmp_path) -> Course:
    """Two lessons with labs, one without; a reader who has done nothing."""
    folder = tmp_path / "lessons"
    folder.mkdir()
    write_lesson(folder, 1, "first_token", "first_token")
    write_lesson(folder, 5, "paged_blocks", "paged_blocks")
    write_lesson(folder, 6, "thoughts")
    return Course(folder, tmp_path / "mine")


def passed(course: Course, *slugs: str) -> None:
    progress = Progress(course.mine)
    for slug in slugs:
        progress[slug].passed = "2026-11-29T12:00"
    progress.save()


# -- what is done, what is next


def test_a_new_reader_begins_with_the_first_lesson(course):
    state = course.state()
    assert state.next.lesson.slug == "first_token" and state.next.is_next
    assert {entry.stage for entry in state.entries} == {"new"} and state.num_done == 0
    assert [e.number for e in state.entries] == sorted(e.number for e in state.entries)


def test_a_lab_without_a_lesson_is_listed_too(course):
    practice = course.state().entries[0]
    assert practice.lesson is None and practice.command == "python -m labs start practice"


def test_whoever_left_a_lesson_goes_on_with_it(course):
    course.places().open("05_paged_blocks")
    assert course.state().next.lesson.slug == "paged_blocks"
    course.places().open("01_first_token")
    course.places().open("05_paged_blocks")
    passed(course, "paged_blocks")
    assert course.state().next.lesson.slug == "first_token"


def test_a_lesson_without_a_lab_is_done_when_it_is_read_to_its_end(course):
    passed(course, "first_token", "paged_blocks")
    assert course.state().next.lesson.slug == "thoughts"
    course.places().open("06_thoughts")
    course.places().mark("06_thoughts", "7-8-8")
    assert course.state().next is None


def test_the_command_of_a_lab_is_the_next_thing_to_type(course):
    def command() -> str:
        return next(e.command for e in course.state().entries if e.number == 5)

    assert command() == "python -m labs start paged_blocks"
    (course.mine / "05_paged_blocks").mkdir(parents=True)
    assert command() == "python -m labs check paged_blocks"
    passed(course, "paged_blocks")
    assert command() == "python -m labs diff paged_blocks"


def test_places_are_kept_and_nonsense_changes_nothing(tmp_path):
    places = Places(tmp_path)
    places.open("05_paged_blocks")
    places.mark("05_paged_blocks", "3-8-5")
    for nonsense in ("", "3-8", "9-8-9", "4-8-9", "4-8-3", "x-8-8", "3-8-5; path=/", "1e3-8-8"):
        places.mark("05_paged_blocks", nonsense)
    again = Places(tmp_path)
    assert again["05_paged_blocks"].mark == "3-8-5"
    assert again.latest() == "05_paged_blocks"


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1, "places": {"a": {"act": "x"}}}', "\0"])
def test_a_file_of_places_that_cannot_be_read_is_begun_anew(tmp_path, text):
    (tmp_path / "lessons.json").write_text(text)
    places = Places(tmp_path)
    assert places.latest() is None
    places.open("01_first_token")
    assert Places(tmp_path).latest() == "01_first_token"


# -- whom it answers


class Client:
    """A browser's part: it keeps cookies, and follows nothing."""

    def __init__(self, port: int) -> None:
        self.port, self.cookies = port, {}

    def get(self, path: str, host: str = "") -> SimpleNamespace:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        kept = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers = {"Host": host or f"127.0.0.1:{self.port}", "Cookie": kept}
        connection.request("GET", path, headers=headers)
        reply = connection.getresponse()
        for line in reply.headers.get_all("Set-Cookie") or ():
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value
        return SimpleNamespace(
            status=reply.status, headers=reply.headers, text=reply.read().decode()
        )


@contextmanager
def served(course: Course):
    """A home over notebooks that are not there, and a browser before it."""
    notebooks = SimpleNamespace(
        ensure=lambda: None, address=lambda file, host: f"http://{host}:1/?file={file}"
    )
    home = Home(course, notebooks, free_port())
    config = uvicorn.Config(home.app(), port=home.port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield home, Client(home.port)
    finally:
        server.should_exit = True
        thread.join()


def wait_until(holds, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def test_the_page_lists_every_lesson_and_opens_it(course):
    with served(course) as (home, browser):
        assert browser.get(f"/?key={home.key}").headers["Location"] == "/"
        page = browser.get("/").text
        assert re.findall(r'class="open" href="open/(\w+)"', page) == ["01_first_token"]
        for lesson in course.lessons():
            assert f'href="open/{lesson.name}"' in page and lesson.title in page
        assert "Why &lt;thoughts&gt;?" in page and "<thoughts>" not in page
        there = browser.get("/open/05_paged_blocks")
        assert there.headers["Location"] == "http://127.0.0.1:1/?file=05_paged_blocks.py"
        assert 'class="open" href="open/05_paged_blocks"' in browser.get("/").text
        assert browser.get("/open/..%2f..%2fetc").status == 404


def test_what_the_bookmark_wrote_is_on_the_page_and_outlives_the_browser(course):
    with served(course) as (home, browser):
        browser.get(f"/?key={home.key}")
        browser.get("/open/05_paged_blocks")
        browser.cookies["place_05_paged_blocks"] = "2-8-3"
        assert "You have read to act 3 of 8" in browser.get("/").text
        other = Client(home.port)
        other.get(f"/?key={home.key}")
        assert "read to act 3 of 8" in other.get("/").text
        other.get("/open/05_paged_blocks")
        assert other.cookies["place_05_paged_blocks"] == "2-8-3"


def test_whoever_saw_the_last_act_has_read_to_the_end_wherever_they_are_now(course):
    """And of a lesson that was opened only, the page says a whole sentence."""
    with served(course) as (home, browser):
        browser.get(f"/?key={home.key}")
        browser.get("/open/05_paged_blocks")
        assert "You have opened it." in browser.get("/").text
        browser.cookies["place_05_paged_blocks"] = "6-8-8"
        assert "You have read to the end." in browser.get("/").text


@pytest.mark.slow
def test_a_bookmark_says_where_the_reader_is_and_how_far_they_came(browser, tmp_path):
    """The last act is short: its heading never comes to the top of the window."""
    acts = "<h2>An act</h2><p style='height:90rem'></p>" * 7 + "<h2>The last</h2>"
    frame = f'<iframe height="0" srcdoc="{escape(bookmark.script("05_x"))}"></iframe>'
    (tmp_path / "lesson.html").write_text(acts + frame)
    with browsing.served(tmp_path) as address, browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{address}/lesson.html")

        def cookie() -> str:
            page.wait_for_timeout(400)  # the bookmark waits for the scrolling to end
            return page.evaluate("document.cookie").removeprefix("place_05_x=")

        page.evaluate("scrollTo(0, document.querySelectorAll('h2')[2].offsetTop - 500)")
        wait_until(lambda: cookie() == "2-8-3")
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        wait_until(lambda: cookie() == "7-8-8")
        page.evaluate("scrollTo(0, 10)")
        wait_until(lambda: cookie() == "1-8-8")


def test_nobody_without_the_key_sees_anything(course):
    with served(course) as (home, browser):
        for path in ("/", "/open/01_first_token", "/?key=", "/?key=wrong"):
            reply = browser.get(path)
            assert reply.status == 403 and "first_token" not in reply.text
            assert home.key not in reply.text and not browser.cookies


def test_a_page_of_the_web_cannot_reach_it_under_a_name_of_its_own(course):
    with served(course) as (home, browser):
        assert browser.get(f"/?key={home.key}", host="evil.example").status == 400
        browser.get(f"/?key={home.key}")
        reply = browser.get("/")
        assert (
            reply.status == 200 and "default-src 'none'" in reply.headers["Content-Security-Policy"]
        )


def test_a_damaged_progress_file_is_told_and_the_page_still_shows(course):
    course.mine.mkdir()
    (course.mine / "progress.json").write_text("{")
    with served(course) as (home, browser):
        browser.get(f"/?key={home.key}")
        assert "progress.json could not be read" in browser.get("/").text


# -- the real thing: processes, signals, a terminal


@pytest.fixture
def checkout(tmp_path) -> Path:
    """The course in a folder of its own, with one small lesson and nobody's progress."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    leave_out = shutil.ignore_patterns("mine", "__pycache__", "__marimo__", "[0-9][0-9]_*.py")
    for part in ("labs", "lessons"):
        shutil.copytree(ROOT / part, copy / part, ignore=leave_out)
    (copy / "minivllm").symlink_to(ROOT / "minivllm")
    write_lesson(copy / "lessons", 1, "first_token", "first_token")
    return copy


class Running:
    """`python -m lessons` at a terminal, ready; `address` is what it printed."""

    def __init__(self, folder: Path) -> None:
        self.fd, other = os.openpty()
        left_out = ("CI", "BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION")
        env = {k: v for k, v in os.environ.items() if k not in left_out}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lessons"], cwd=folder, env=env | {"PYTHONPATH": str(folder)},
            stdin=other, stdout=other, stderr=other,
        )  # fmt: skip
        os.close(other)
        self.said = ""
        self.until("Ctrl-C")
        self.address = re.search(r"http://127\.0\.0\.1:\d+/\?key=\S+", self.said)[0]
        self.port = int(re.search(r":(\d+)/", self.address)[1])

    def until(self, text: str, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.said:
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not come: {self.said}"
            self.said += os.read(self.fd, 4096).decode()

    def family(self) -> list[psutil.Process]:
        me = psutil.Process(self.process.pid)
        return [me, *me.children(recursive=True)]

    def browser(self) -> Client:
        client = Client(self.port)
        wait_until(lambda: answers(self.address))
        client.get(self.address.partition(str(self.port))[2])
        return client


def answers(address: str) -> bool:
    try:
        return urllib.request.urlopen(address, timeout=60).status == 200
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def gone(processes: list[psutil.Process], seconds: float) -> bool:
    return not psutil.wait_procs(processes, timeout=seconds)[1]


@pytest.fixture
def running(checkout):
    program = Running(checkout)
    everybody = program.family()
    try:
        yield program
    finally:
        for process in everybody:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        program.process.wait()
        os.close(program.fd)


@pytest.mark.slow
def test_a_lesson_runs_live_behind_its_key_and_ctrl_c_ends_everything(running, checkout):
    assert "Open this address in a browser." in running.said
    browser = running.browser()
    there = browser.get("/open/01_first_token").headers["Location"]
    port = int(re.search(r":(\d+)/", there)[1])
    assert re.fullmatch(
        r"http://127\.0\.0\.1:\d+/\?file=01_first_token\.py&access_token=\S+", there
    )
    listening = [
        connection.laddr.ip
        for process in running.family()
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert set(listening) == {"127.0.0.1"} and len(listening) >= 2

    notebook = Client(port)
    assert notebook.get("/api/status").status == 401
    notebook.get(there.partition(str(port))[2])  # it takes the key, and sends on without it
    assert "01_first_token" in notebook.get("/?file=01_first_token.py").text
    kept = "; ".join(f"{name}={value}" for name, value in notebook.cookies.items())
    session = f"ws://127.0.0.1:{port}/ws?session_id=s_test&file=01_first_token.py"
    with connect(session, additional_headers={"Cookie": kept}, open_timeout=60) as socket:
        socket.recv(timeout=60)
        wait_until(lambda: len(running.family()) >= 3)  # home, marimo, the lesson
        everybody = running.family()
        running.process.send_signal(signal.SIGINT)  # as Ctrl-C does
        assert running.process.wait(timeout=60) == 0
    running.until("Stopped.")
    assert gone(everybody, 5)
    assert Places(checkout / "labs" / "mine").latest() == "01_first_token"


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGKILL])
def test_no_lesson_outlives_a_home_that_is_ended_in_another_way(running, how):
    everybody = running.family()
    assert len(everybody) >= 2
    running.process.send_signal(how)
    running.process.wait(timeout=60)
    assert gone(everybody, 30)


@pytest.mark.slow
def test_without_a_terminal_it_shows_that_the_lessons_work_and_ends(checkout):
    command = [sys.executable, "-m", "lessons"]
    env = os.environ | {"PYTHONPATH": str(checkout)}

    def run() -> subprocess.CompletedProcess:
        return subprocess.run(command, cwd=checkout, env=env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=300)  # fmt: skip

    done = run()
    assert done.returncode == 0, done.stderr
    assert "ok  the home page lists the lessons: 1" in done.stdout
    assert "ok  lesson 01 runs from top to bottom" in done.stdout and "Stopped." in done.stdout
    assert Places(checkout / "labs" / "mine").latest() is None, "the reader opened nothing"
    notebook = checkout / "lessons" / "01_first_token.py"
    notebook.write_text(
        notebook.read_text()
        + "\n\n@app.cell\ndef _():\n    1 / 0\n    return\n"
        + "\n\nif __name__ == '__main__':\n    app.run()\n"
    )
    done = run()
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
