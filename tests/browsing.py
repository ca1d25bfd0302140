"""A browser and the built site, for tests: Chromium by Playwright, and nothing from outside.

What is missing is said in one sentence, and is an error where the variable CI is set. With
SITE_AS_BUILT=1 the site is taken as it is, for whoever works on it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "site"
PUBLIC = SITE / "public"
LESSONS = sorted(p.stem for p in (ROOT / "lessons").glob("[0-9][0-9]_*.py"))
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
MARIMOS = "/run/assets/"  # what marimo's own front end says is not ours
PATIENCE_MS = 90_000  # for a busy machine
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def chromium() -> str | None:
    named = os.environ.get("CHROMIUM")
    return named or next((p for p in map(shutil.which, BROWSERS) if p), None)


def missing() -> str:
    """Why there can be no browser tests here; "" if there can."""
    if chromium() is None:
        return "browser tests need Chromium: apt-get install chromium, or CHROMIUM=/path/to/it"
    fetched = (SITE / "build" / "fetched.json").exists()
    if not fetched and shutil.which("npm") is None:
        return "the site is built with Node.js and npm: apt-get install nodejs npm"
    if not fetched and os.environ.get("MINIVLLM_TEST_NETWORK") != "1":
        return "the site's npm packages and wheels are not here: run `make site` once"
    return ""


def build_site() -> Path:
    """The folder of the site as it would be built now."""
    sys.path.insert(0, str(SITE))
    try:
        import build
    finally:
        sys.path.remove(str(SITE))
    if not build.is_current() and os.environ.get("SITE_AS_BUILT") != "1":
        subprocess.run([sys.executable, str(SITE / "build.py")], check=True)
    return PUBLIC


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder under an address of this machine, without a slash at the end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Watch:
    """What a page asked of others, and what went wrong in it."""

    def __init__(self, context: Any, home: str) -> None:
        self.home = home
        self.foreign: list[str] = []
        self.wrong: list[str] = []
        context.set_default_timeout(PATIENCE_MS)
        context.route("**/*", self.route)
        context.on("console", self.console)
        context.on("weberror", self.error)
        context.on("response", self.response)

    def route(self, route: Any) -> None:
        url = route.request.url
        if url.startswith((self.home, "data:", "blob:", "file:")):
            route.continue_()
        else:
            self.foreign.append(url)
            route.abort()

    def console(self, message: Any) -> None:
        if message.type == "error" and MARIMOS not in message.location["url"]:
            self.wrong.append(message.text)

    def error(self, error: Any) -> None:
        if MARIMOS not in (error.error.stack or ""):
            self.wrong.append(str(error.error))

    def response(self, response: Any) -> None:
        if response.status >= 400:
            self.wrong.append(f"{response.status} {response.url}")

    def check(self) -> None:
        assert self.foreign == [], "asked of another machine"
        assert self.wrong == [], "errors in the page"


@pytest.fixture(scope="session")
def public(tmp_path_factory) -> Path:
    """The built site: built by the first process that asks, if it is not up to date."""
    if said := missing():
        pytest.fail(said) if os.environ.get("CI") else pytest.skip(said)
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if os.environ.get("PYTEST_XDIST_WORKER") else shared
    with FileLock(shared / "site.lock"):
        return build_site()


@pytest.fixture(scope="session")
def home(public):
    with served(public) as address:
        yield address


@pytest.fixture(scope="module")
def browser(public):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser, home):
    """A page that may ask nobody else, in which nothing may go wrong."""
    with browser.new_context(viewport=WIDE, color_scheme="light") as context:
        watch = Watch(context, home)
        yield context.new_page()
        watch.check()
