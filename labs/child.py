"""The judged side: a process that runs the learner's engine and answers the judge's questions.

It holds the engine's objects; the judge holds references to them. It decides nothing: whatever
runs here can only return values, and the judge looks at values. Limits are in `limits`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from . import limits
from .wire import Channel, Codec, messages_of

MAX_TEXT = 2_000  # characters of an exception's message that travel
MAX_FRAMES = 30  # of a traceback
MAX_HAS = 40  # attributes of an object that was asked for one it has not


class Server:
    """Answers questions about one package: makes objects, calls functions, reads attributes."""

    def __init__(self, package: str, ask: Callable[[dict], dict] | None = None) -> None:
        self.package = package
        self.ask = ask
        self.objects: dict[int, Any] = {}
        self._messages: dict[str, type] = {}
        self.codec = Codec(self.messages, self.refer, self.resolve)

    def load(self, module: str) -> Any:
        return importlib.import_module(f"{self.package}.{module}")

    def messages(self) -> dict[str, type]:
        if not self._messages:
            self._messages = messages_of(self.load)
        return self._messages

    def refer(self, value: Any) -> dict:
        """A reference to an object that stays here; what the judge lent goes home."""
        if isinstance(value, Lent):
            return {"y": value._number}
        number = id(value)
        self.objects[number] = value  # kept alive, so the id stays its own
        return {"o": number, "kind": type(value).__name__, "callable": callable(value)}

    def resolve(self, data: dict) -> Any:
        if "y" in data:
            return self.objects[data["y"]]
        return lent_type(data)(self, data["o"], self.codec.decode(data["attributes"]))

    def handle(self, message: dict) -> dict:
        """One question. Whatever goes wrong becomes the reply."""
        try:
            return self.do(message)
        except BaseException as error:  # SystemExit too: the judge is told, nothing ends here
            return {"error": described(error)}

    def do(self, message: dict) -> dict:
        what = message["do"]
        args = self.codec.decode(message.get("args", []))
        kwargs = self.codec.decode(message.get("kwargs", {"d": []}))
        if what in ("new", "call"):
            module, _, name = message["path"].rpartition(".")
            value = getattr(self.load(module), name)(*args, **kwargs)
            return {"value": self.refer(value) if what == "new" else self.codec.encode(value)}
        target = self.objects[message["of"]]
        if what == "method":
            return {"value": self.codec.encode(getattr(target, message["name"])(*args, **kwargs))}
        if what == "steps":
            return self.steps(target, *args)
        if what == "get":
            value = getattr(target, message["name"])
            is_method = callable(value) and hasattr(value, "__self__")
            return {"method": True} if is_method else {"value": self.codec.encode(value)}
        if what == "set":
            setattr(target, message["name"], args[0])
            return {"value": None}
        assert what == "item", what
        return {"value": self.codec.encode(target[args[0]])}

    def steps(self, target: Any, calls: list, watched: tuple) -> dict:
        """Calls one after the other, up to one that raises; after each, what it returned and what
        the attributes were then."""
        done = []
        try:
            for name, args in calls:
                value = getattr(target, name)(*args)
                seen = [getattr(target, attribute) for attribute in watched]
                done.append(self.codec.encode((value, *seen)))
        except BaseException as error:  # as in handle
            return {"steps": done, "error": described(error)}
        return {"steps": done}


class Lent:
    """Something of the judge's that the engine may call."""

    def __init__(self, server: Server, number: int, attributes: dict[str, Any]) -> None:
        self._server, self._number = server, number
        self.__dict__.update(attributes)

    def _ask(self, name: str, args: tuple, kwargs: dict) -> Any:
        codec = self._server.codec
        question = {"do": "lent", "of": self._number, "name": name,
                    "args": codec.encode(list(args)), "kwargs": codec.encode(kwargs)}  # fmt: skip
        reply = self._server.ask(question)
        if "error" in reply:
            raise RuntimeError(str(reply["error"]))
        return codec.decode(reply["value"])


def lent_type(data: dict) -> type[Lent]:
    """A class whose methods are the ones that the judge lends."""

    def method(name: str):
        def call(self, *args: Any, **kwargs: Any) -> Any:
            return self._ask(name, args, kwargs)

        return call

    return type(data["kind"], (Lent,), {name: method(name) for name in data["methods"]})


def described(error: BaseException) -> dict:
    """An exception as values: its class and bases, its message, where it came from."""
    frames, tb = [], error.__traceback__
    while tb is not None:
        code = tb.tb_frame.f_code
        if code.co_filename != __file__:
            frames.append([code.co_filename, tb.tb_lineno, code.co_name])
        tb = tb.tb_next
    if isinstance(error, SyntaxError):
        frames.append([error.filename or "?", error.lineno or 0, ""])
    try:
        text = str(error)[:MAX_TEXT]
    except Exception:  # its __str__ is the learner's
        text = "(an exception that cannot be shown)"
    return {
        "type": type(error).__name__,
        "bases": [c.__name__ for c in type(error).__mro__],
        "text": text,
        "frames": frames[-MAX_FRAMES:],
        "has": attributes(error),
    }


def attributes(error: BaseException) -> list[str]:
    """What an object of the engine or the judge has, where something else of it was asked for."""
    try:
        asked = error.obj if isinstance(error, AttributeError) else None
        if type(asked).__module__ == "builtins":  # None among them
            return []
        return [name for name in dir(asked) if not name.startswith("_")][:MAX_HAS]
    except Exception:  # its __dir__ is the learner's
        return []


def run(channel_fd: int, output_fd: int, job: dict) -> None:
    """Be the child: output goes to a file, limits close, questions are answered until the judge
    hangs up."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output_fd, 1), (output_fd, 2)):
        os.dup2(source, target)
    os.closerange(3, channel_fd)
    os.closerange(channel_fd + 1, 256)
    os.chdir(job["home"])
    sys.path.append(job["root"])
    sys.dont_write_bytecode = True
    limits.close(job)
    server = Server(job["package"])
    channel = Channel(channel_fd, lambda message: flushed(server.handle(message)))
    server.ask = channel.ask
    channel.serve()


def flushed(reply: dict) -> dict:
    """The reply, with what was printed written out first, so that the judge can show it."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception as error:
        return {"error": described(error)} if "error" not in reply else reply
    return reply


def zygote(fd: int) -> None:
    """Fork a child for each request, in milliseconds. The other end is the judge's; when that
    closes, every child goes."""
    limits.preload()
    control = socket.socket(fileno=fd)
    pids: set[int] = set()
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1 << 16, 2)
        if not data:
            break
        request = json.loads(data)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            pids.discard(request["wait"])
            control.send(json.dumps({"status": os.waitstatus_to_exitcode(status)}).encode())
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            try:
                run(fds[0], fds[1], request)
            finally:
                os._exit(0)
        pids.add(pid)
        for passed in fds:
            os.close(passed)
        control.send(json.dumps({"pid": pid}).encode())
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def single(channel_fd: int, output_fd: int, job: str) -> None:
    """Be one child, where a zygote cannot be had."""
    limits.preload()
    run(channel_fd, output_fd, json.loads(job))
