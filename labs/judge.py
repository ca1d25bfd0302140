"""The judge's side: the `lab` that tests talk to, references to the learner's objects, clocks.

The judging process never imports the learner's code. It asks (`wire`), gets values, and judges
values; an exception, a crash or an endless loop over there is an answer like any other.
"""

from __future__ import annotations

import importlib
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any

from .child import MAX_FRAMES, MAX_HAS, MAX_TEXT, Server
from .wire import Channel, ChannelError, Codec, messages_of

CALL_S = 2.0  # one question
TEST_S = 10.0  # all questions of a test
PATIENCE = 5  # so many times as long by the clock, on a machine that has much else to do
LAB_S = 30.0  # all tests of a lab, by the clock
LATE_S = 1.0  # a test, after two have run out of time
CALLS_AT_ONCE = 50
MAX_NAME = 200  # characters of a name that an exception brings


class Wrong(AssertionError):
    """The answer is not right: a sentence for its author, and what shows it. picture: a drawing,
    or a function that draws it, called only here."""

    def __init__(
        self, says: str, *, expected: Any = None, got: Any = None, picture: Any = None
    ) -> None:
        super().__init__(says)
        self.says, self.expected, self.got = says, expected, got
        self.picture = picture() if callable(picture) else picture


class Raised(Exception):
    """The learner's code raised. `kind` is the class's name, `bases` its and its parents'."""

    def __init__(self, error: dict) -> None:
        self.kind = str(error.get("type"))[:MAX_NAME]
        self.bases = [str(b)[:MAX_NAME] for b in error.get("bases", ())][:MAX_FRAMES]
        self.text = str(error.get("text"))[:MAX_TEXT]
        frames = [(str(f), line, str(n)[:MAX_NAME]) for f, line, n in error.get("frames", ())]
        self.frames = [f for f in frames if type(f[1]) is int][-MAX_FRAMES:]
        has = [str(name)[:MAX_NAME] for name in error.get("has", ())][:MAX_HAS]
        if has and "AttributeError" in self.bases:
            self.text = f"{self.text}. It has: {', '.join(has)}."
        super().__init__(f"{self.kind}: {self.text}")


class TimeUp(Exception):
    """No answer within the time there is."""


class Gone(Exception):
    """The learner's process ended, or wrote something that is no answer."""


class Clock:
    """What time is left: for one question, for the test, for the lab.

    Time is the child's work, so that a busy machine fails nobody; but no more than PATIENCE times
    as much by the clock, since a child may also sleep.
    """

    def __init__(self) -> None:
        self.lab_end = time.monotonic() + LAB_S
        self.num_time_ups = 0
        self.start_test()

    def start_test(self) -> None:
        self.started = time.monotonic()
        limit = LATE_S if self.num_time_ups >= 2 else TEST_S
        self.test_s = min(limit, max(self.lab_end - self.started, 0.2))

    @property
    def latest_end(self) -> float:
        """Of the test, by the clock."""
        return self.started + PATIENCE * self.test_s

    def left(self, asked_at: float, worked_s: float, worked_in_test_s: float) -> tuple[float, str]:
        """Seconds left, and of what, for a question asked then and worked at for so long."""
        ends = [
            (end_of(asked_at, CALL_S, worked_s), f"{CALL_S:g} s for one call"),
            (end_of(self.started, self.test_s, worked_in_test_s), "the time of one test"),
        ]
        end, name = min(ends)
        return end - time.monotonic(), name


def end_of(since: float, seconds: float, worked_s: float) -> float:
    """When so many seconds of work will be over, if the child does nothing but work from now."""
    idle_s = max(0.0, time.monotonic() - since - worked_s)
    return since + seconds + min(idle_s, seconds * (PATIENCE - 1))


class Lab:
    """What a test is given. Makes and calls things of the learner's engine.

    `new` and `call` take a path within the engine, "kvcache.block_pool.BlockPool". `random` is
    seeded; everything a test draws comes from it.
    """

    def __init__(self, seed: int = 0, name: str = "") -> None:
        self._random = Random(f"{seed} {name}")
        self.drew = False  # whether the seed made a difference
        self.clock = Clock()
        self.codec = Codec(messages, refuse, self._resolve)
        self.ask: Callable[[dict], dict] = lambda message: {}
        self._lent: dict[int, tuple[Any, tuple[str, ...]]] = {}
        self._is_method: dict[tuple[str, str], bool] = {}
        self._verdict: BaseException | None = None
        self.codec.refer = self._refer

    @property
    def random(self) -> Random:
        self.drew = True
        return self._random

    def new(self, path: str, *args: Any, **kwargs: Any) -> Proxy:
        """An object of the learner's engine."""
        return self._ask("new", args, kwargs, path=path)

    def call(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """What a function of the learner's engine returns."""
        return self._ask("call", args, kwargs, path=path)

    def engine(self, model: str, **options: Any) -> Proxy:
        """The learner's whole engine, as `LLM` is the reference's, computing in plain Python: with
        "tiny" or "small" it tells a story."""
        return self.new("entrypoints.llm.LLM", model, executor="plain", **options)

    def steps(
        self, thing: Proxy, calls: Sequence[tuple[str, tuple]], *watched: str
    ) -> Iterator[tuple[Any, ...]]:
        """Calls of methods of one object, (name, arguments) each, in far fewer questions than
        calls. Yields for each what it returned and then the attributes that are watched; raises
        Raised for one that raised, and ends."""
        for start in range(0, len(calls), CALLS_AT_ONCE):
            some = list(calls[start : start + CALLS_AT_ONCE])
            reply = self._reply("steps", (some, watched), of=thing._number)
            for done in reply["steps"]:
                yield self._decode(done)
            if "error" in reply:
                raise Raised(reply["error"])
            if len(reply["steps"]) != len(some):
                raise Gone("it answered fewer calls than were made")

    def lend(self, thing: Any, *methods: str, **attributes: Any) -> Loan:
        """Something of the judge's that the engine may call; "__call__" for a function."""
        return Loan(thing, methods, attributes)

    # What a test says.

    def same(self, got: Any, expected: Any, says: str, picture: Any = None) -> None:
        if got != expected:
            raise Wrong(says, expected=expected, got=got, picture=picture)

    def true(self, condition: Any, says: str, picture: Any = None, **found: Any) -> None:
        if not condition:
            raise Wrong(says, picture=picture, **found)

    @contextmanager
    def raises(self, kind: str, says: str, picture: Any = None) -> Iterator[None]:
        """The block must raise an exception of this class, by name."""
        try:
            yield
        except Raised as error:
            if error.kind == "NotImplementedError":
                raise
            if kind not in error.bases:
                raise Wrong(says, expected=f"{kind} is raised", got=str(error),
                            picture=picture) from error  # fmt: skip
        else:
            raise Wrong(says, expected=f"{kind} is raised", got="nothing is raised",
                        picture=picture)  # fmt: skip

    # How questions travel.

    def _ask(self, what: str, args: tuple = (), kwargs: dict | None = None, **more: Any) -> Any:
        reply = self._reply(what, args, kwargs, **more)
        if "error" in reply:
            raise Raised(reply["error"])
        if reply.get("method") is True:
            return METHOD
        return self._decode(reply.get("value"))

    def _reply(self, what: str, args: tuple = (), kwargs: dict | None = None, **more: Any) -> dict:
        question = {"do": what, "args": self.codec.encode(list(args)),
                    "kwargs": self.codec.encode(kwargs or {}), **more}  # fmt: skip
        reply = self.ask(question)
        if self._verdict is not None:
            raise self._verdict
        return reply

    def _decode(self, data: Any) -> Any:
        try:
            return self.codec.decode(data)
        except (ChannelError, RecursionError) as error:
            raise Gone(f"it returned {error or 'something nested too deeply'}") from error

    def answer(self, message: dict) -> dict:
        """The engine calls something that was lent. A verdict reached here ends the test, even if
        the learner's code swallows what it gets instead."""
        try:
            thing, methods = self._lent[message["of"]]
            if message["name"] not in methods:
                raise ChannelError(f"{message['name']} was not lent")
            args = self.codec.decode(message["args"])
            kwargs = self.codec.decode(message["kwargs"])
            value = getattr(thing, message["name"])(*args, **kwargs)
            return {"value": self.codec.encode(value)}
        except Exception as error:
            if not isinstance(error, Wrong | Raised | TimeUp | Gone):
                error = Gone(f"it called the judge with something unreadable: {error!r:.200}")
            self._verdict = self._verdict or error
            return {"error": "the judge has seen enough"}

    def _refer(self, value: Any) -> dict:
        if isinstance(value, Proxy):
            return {"y": value._number}
        if isinstance(value, Loan):
            number = len(self._lent)
            self._lent[number] = (value.thing, value.methods)
            return {"o": number, "kind": type(value.thing).__name__, "methods": value.methods,
                    "attributes": self.codec.encode(value.attributes)}  # fmt: skip
        raise TypeError(f"{value!r} cannot be sent to the engine; lend it")

    def _resolve(self, data: dict) -> Any:
        if "y" in data:
            return self._lent[data["y"]][0]
        return Proxy(self, int(data["o"]), str(data["kind"]))


class Loan:
    """A thing of the judge's on its way to the engine."""

    def __init__(self, thing: Any, methods: tuple[str, ...], attributes: dict[str, Any]) -> None:
        self.thing, self.methods, self.attributes = thing, methods, attributes


@cache
def messages() -> dict[str, type]:
    return messages_of(lambda module: importlib.import_module(f"minivllm.{module}"))


METHOD = object()


def refuse(value: Any) -> dict:
    raise TypeError(f"{value!r} cannot be sent to the engine")


class Proxy:
    """A reference to an object of the learner's engine. Attributes and items are values, copied
    at the moment of asking; calling a method calls it there."""

    def __init__(self, lab: Lab, number: int, kind: str) -> None:
        self.__dict__.update(_lab=lab, _number=number, _kind=kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        lab, key = self._lab, (self._kind, name)
        if not lab._is_method.get(key):
            value = lab._ask("get", of=self._number, name=name)
            lab._is_method[key] = value is METHOD
            if value is not METHOD:
                return value

        def method(*args: Any, **kwargs: Any) -> Any:
            return lab._ask("method", args, kwargs, of=self._number, name=name)

        return method

    def __setattr__(self, name: str, value: Any) -> None:
        self._lab._ask("set", (value,), of=self._number, name=name)

    def __getitem__(self, index: Any) -> Any:
        return self._lab._ask("item", (index,), of=self._number)

    def __repr__(self) -> str:
        return f"<your {self._kind}>"


def seconds_worked(pid: int) -> float:
    """A process's processor time; on systems that do not say, the clock's."""
    if sys.platform != "linux":
        return time.monotonic()
    try:
        return time.clock_gettime((~pid << 3) | 2)  # how Linux numbers that clock
    except OSError:  # it has ended
        return time.monotonic()


def connect(lab: Lab, fd: int, pid: int) -> None:
    """Let the lab's questions go to a child behind a socket, each within the time there is."""
    asked_at = [(0.0, 0.0)]  # by the clock, and by the child's work
    start_s = seconds_worked(pid)

    def ready() -> None:
        while True:
            since, worked_s = asked_at[0]
            now_s = seconds_worked(pid)
            seconds, name = lab.clock.left(since, now_s - worked_s, now_s - start_s)
            if seconds <= 0:
                raise TimeUp(name)
            if select.select([fd], [], [], seconds)[0]:
                return

    channel = Channel(fd, lab.answer, ready)

    def ask(message: dict) -> dict:
        before, asked_at[0] = asked_at[0], (time.monotonic(), seconds_worked(pid))
        try:
            return channel.ask(message)
        except ChannelError as error:
            raise Gone(f"something wrote into the judge's channel ({error})") from error
        finally:
            asked_at[0] = before

    lab.ask = ask


def connect_here(lab: Lab, package: str, around: Callable[[], Any] | None = None) -> None:
    """Let the lab's questions go to a server in this very process: for the reference, for
    debugging, and for the browser. around: a context for each question, a step limit say."""
    server = Server(package, lab.answer)
    if around is None:
        lab.ask = server.handle
        return

    def ask(message: dict) -> dict:
        with around():
            return server.handle(message)

    lab.ask = ask
