"""What travels between judge and judged: plain values, in length-prefixed JSON. Never a pickle.

Numbers, strings, None and lists are themselves. What JSON lacks is a one-entry object: tuple "t",
bytes "b", dict "d", set "s", a message of the engine "m". Everything else stays where it is and
travels as a reference: "o" (mine), "y" (yours). Both sides may ask, also while they are being
asked: a model that the judge lends to the engine is called in the middle of a call.

Standard library only, and no import of the labs: the child has nothing else of ours.
"""

from __future__ import annotations

import base64
import json
import os
from collections import deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

MAX_BYTES = 4 << 20  # of one message
FEW_BYTES = 1 << 13  # of most; a buffer for more costs more than a read that it saves
MAX_DEPTH = 60
MAX_KEYS = 5_000  # of all dicts and sets in a message: keys may be chosen to collide
PLAIN = (type(None), bool, int, float, str)
SHAPES = ((tuple, "t"), (set, "s"), (frozenset, "s"))


class ChannelError(Exception):
    """What arrived is not a message."""


class Codec:
    """Values to JSON and back. `refer(value)` gives the reference of what cannot travel, and
    `resolve(reference)` what a reference stands for; messages are looked up by class name."""

    def __init__(
        self,
        messages: Callable[[], dict[str, type]],
        refer: Callable[[Any], dict],
        resolve: Callable[[dict], Any],
    ) -> None:
        self.messages = messages
        self.refer = refer
        self.resolve = resolve
        self._keys_left = MAX_KEYS

    def encode(self, value: Any, depth: int = 0) -> Any:
        """Raises ValueError for what is nested too deeply."""
        if depth > MAX_DEPTH:
            raise ValueError(f"a value is nested more than {MAX_DEPTH} deep")
        if type(value) in PLAIN:
            return value
        if isinstance(value, Enum):
            return self.encode(value.value, depth + 1)
        for kind in (bool, int, float, str):
            if isinstance(value, kind):
                return kind(value)
        if isinstance(value, bytes | bytearray):
            return {"b": base64.b64encode(value).decode()}
        if isinstance(value, dict):
            return {"d": [[self.encode(k, depth + 1), self.encode(v, depth + 1)]
                          for k, v in value.items()]}  # fmt: skip
        if isinstance(value, list | deque | range):
            return [self.encode(v, depth + 1) for v in value]
        names = message_fields(type(value))
        if names and self.messages().get(type(value).__name__) is type(value):
            inner = {n: self.encode(getattr(value, n), depth + 1) for n in names}
            return {"m": [type(value).__name__, inner]}
        for kind, tag in SHAPES:
            if isinstance(value, kind):
                return {tag: [self.encode(v, depth + 1) for v in value]}
        return self.refer(value)

    def decode(self, data: Any) -> Any:
        """Raises ChannelError for what no `encode` wrote."""
        self._keys_left = MAX_KEYS
        try:
            return self._decode(data)
        except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
            raise ChannelError(f"a value that cannot be read: {error}") from error

    def _decode(self, data: Any) -> Any:
        if isinstance(data, list):
            return [self._decode(v) for v in data]
        if not isinstance(data, dict):
            return data
        tag, inner = next(iter(data.items()), ("", None))
        if tag == "t":
            return tuple(self._decode(v) for v in inner)
        if tag == "b":
            return base64.b64decode(inner, validate=True)
        if tag in ("d", "s"):
            self._keys_left -= len(inner)
            if self._keys_left < 0:
                raise ValueError(f"more than {MAX_KEYS:,} entries of dicts and sets")
            if tag == "s":
                return {self._decode(v) for v in inner}
            return {self._decode(k): self._decode(v) for k, v in inner}
        if tag == "m":
            name, values = inner
            kind = self.messages()[name]
            return kind(**{str(k): self._decode(v) for k, v in values.items()})
        return self.resolve(data)


@cache
def message_fields(kind: type) -> tuple[str, ...]:
    """The fields of a message's class, a dataclass or a named tuple; none for anything else."""
    if is_dataclass(kind):
        return tuple(f.name for f in fields(kind))
    return getattr(kind, "_fields", ()) if issubclass(kind, tuple) else ()


def messages_of(load: Callable[[str], Any]) -> dict[str, type]:
    """The engine's messages by class name. load: gives a module of the engine."""
    outputs, params = load("outputs"), load("sampling_params")
    found = {n: v for n, v in vars(outputs).items() if isinstance(v, type) and message_fields(v)}
    return {**found, "SamplingParams": params.SamplingParams}


def pack(message: dict) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_BYTES:
        raise ValueError(f"a message of {len(body):,} bytes; at most {MAX_BYTES:,} travel")
    return len(body).to_bytes(4, "big") + body


def size_of(header: bytes) -> int:
    """Bytes of the message that follows. Raises ChannelError if no message is that long."""
    size = int.from_bytes(header, "big")
    if size > MAX_BYTES:
        raise ChannelError("something that is not a message was written into the channel")
    return size


def unpack(body: bytes) -> dict:
    """Raises ChannelError for what is no message."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"not a message: {error}") from error
    if not isinstance(message, dict):
        raise ChannelError("not a message")
    return message


class Channel:
    """Asks and answers over one socket. answer(message) -> reply; ready() is called before each
    read and raises when it has waited too long."""

    def __init__(
        self,
        fd: int,
        answer: Callable[[dict], dict],
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.fd = fd
        self.answer = answer
        self.ready = ready
        self.num_asked = 0
        self.come = bytearray()  # and not read yet

    def ask(self, message: dict) -> dict:
        """Send a question; answer what is asked meanwhile; return the reply. Raises EOFError when
        the other side is gone, ChannelError when it talks nonsense."""
        self.num_asked += 1
        own = self.num_asked
        self._write(pack({**message, "ask": own}))
        while True:
            got = self._receive()
            if got.get("reply") == own:
                return got
            if "reply" in got:
                raise ChannelError("a reply that nobody asked for")
            self._reply(got)

    def serve(self) -> None:
        """Answer until the other side is gone."""
        while True:
            try:
                got = self._receive()
            except EOFError:
                return
            self._reply(got)

    def _reply(self, got: dict) -> None:
        asked = got.get("ask")
        try:
            data = pack({**self.answer(got), "reply": asked})
        except (ValueError, TypeError, RecursionError, MemoryError) as error:
            told = {
                "type": type(error).__name__,
                "bases": [type(error).__name__],
                "text": str(error),
            }
            data = pack({"error": told, "reply": asked})
        self._write(data)

    def _write(self, data: bytes) -> None:
        data = memoryview(data)
        try:
            while data:
                data = data[os.write(self.fd, data) :]
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EOFError from error

    def _receive(self) -> dict:
        return unpack(self._read(size_of(self._read(4))))

    def _read(self, size: int) -> bytes:
        """From what has come, of which more is taken than asked for: a message and its size come
        together."""
        while len(self.come) < size:
            self.ready()
            try:
                part = os.read(self.fd, max(size - len(self.come), FEW_BYTES))
            except ConnectionResetError as error:
                raise EOFError from error
            if not part:
                raise EOFError
            self.come += part
        taken = bytes(self.come[:size])
        del self.come[:size]
        return taken
