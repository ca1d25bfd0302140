"""What the course's home answers to a browser: its page, and the way into a lesson.

It hands out the notebooks' key, so it asks for one itself: the address that is printed holds it
once, a cookie afterwards. It answers to this machine's own names only, so no page of the web can
reach it under a name of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ..bookmark import MARK
from .catalog import Course
from .notebooks import HOST, Notebooks
from .page import home_page, locked_page, logo, palette

STATIC = Path(__file__).parent / "static"
YEAR_S = 365 * 24 * 3600
RULES = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Home:
    """The routes, and what they need: the course, the notebooks, and the key of this run."""

    def __init__(self, course: Course, notebooks: Notebooks, port: int) -> None:
        self.course, self.notebooks, self.port = course, notebooks, port
        self.key = secrets.token_urlsafe(24)
        self.cookie = f"course_home_{port}"  # browsers share cookies between a machine's ports

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/?{urlencode({'key': self.key})}"

    def app(self) -> Starlette:
        routes = [
            Route("/", self.guarded(self.home)),
            Route("/open/{name}", self.guarded(self.open)),
            Route("/palette.css", lambda _: Response(palette(), media_type="text/css")),
            Route("/logo.svg", lambda _: Response(logo(), media_type="image/svg+xml")),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        ours = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
        return Starlette(routes=routes, middleware=[ours])

    def guarded(
        self, answer: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Only for who has the key."""

        def is_key(text: str) -> bool:
            return secrets.compare_digest(text.encode(), self.key.encode())

        async def guard(request: Request) -> Response:
            if is_key(request.query_params.get("key", "")):
                reply: Response = RedirectResponse(request.url.path, status_code=303)
                reply.set_cookie(self.cookie, self.key, httponly=True, samesite="lax")
            elif is_key(request.cookies.get(self.cookie, "")):
                reply = await answer(request)
            else:
                reply = HTMLResponse(locked_page(), status_code=403)
            reply.headers.update(RULES)
            return reply

        return guard

    async def home(self, request: Request) -> Response:
        """The page, after what the lessons' bookmarks tell."""
        places = self.course.places()
        for lesson in self.course.lessons():
            places.mark(lesson.name, request.cookies.get(MARK + lesson.name, ""))
        return HTMLResponse(home_page(self.course.state()))

    async def open(self, request: Request) -> Response:
        """On to the notebook, and remember that it was opened."""
        name = request.path_params["name"]
        if name not in [lesson.name for lesson in self.course.lessons()]:
            return HTMLResponse("There is no such lesson.", status_code=404)
        await run_in_threadpool(self.notebooks.ensure)
        places = self.course.places()
        places.open(name)
        there = self.notebooks.address(f"{name}.py", request.url.hostname or HOST)
        reply = RedirectResponse(there, status_code=303)
        if MARK + name not in request.cookies and places[name].num_acts:
            mark = places[name].mark
            reply.set_cookie(MARK + name, mark, max_age=YEAR_S, samesite="lax")
        return reply
