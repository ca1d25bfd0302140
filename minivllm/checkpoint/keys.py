"""The keys of a configuration file or a header, each checked as it is taken."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

_REQUIRED = object()  # as a default: the key must be there


class Keys:
    """`values` by name, as `file` has them. A null counts as missing. Whatever is wrong raises
    ValueError naming the file and the key."""

    def __init__(self, file: str, values: dict[str, Any]) -> None:
        self.file = file
        self.values = values

    def fail(self, key: str, problem: str) -> NoReturn:
        raise ValueError(f"{self.file}: {key}: {problem}")

    def refuse(self, key: str, *, unless: tuple, lacking: str) -> None:
        """Only the values in `unless` ask for nothing beyond what is supported."""
        value = self.values.get(key)
        if value is not None and value not in unless:
            self.fail(key, f"{value!r} is not supported: {lacking}")

    def take(self, key: str, kinds: type | tuple[type, ...], default: Any = _REQUIRED) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                self.fail(key, "this key is missing")
            return default
        is_number_for_flag = isinstance(value, bool) and kinds is not bool
        if not isinstance(value, kinds) or is_number_for_flag:
            self.fail(key, f"has a value of the wrong type, {value!r}")
        return value

    def size(self, key: str, default: Any = _REQUIRED) -> int:
        value = self.take(key, int, default)
        if value is not None and value < 1:
            self.fail(key, f"must be at least 1, got {value}")
        return value

    def positive(self, key: str, default: Any = _REQUIRED) -> float:
        value = self.take(key, (int, float), default)
        if not 0 < value <= sys.float_info.max:
            self.fail(key, f"must be above 0 and finite, got {value}")
        return float(value)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id or a list of ids."""
        value = self.take(key, (int, list), [])
        ids = tuple(value) if isinstance(value, list) else (value,)
        if not all(type(i) is int and i >= 0 for i in ids):
            self.fail(key, f"must be a token id or a list of them, got {value!r}")
        return ids


def read_json(file: str) -> Keys:
    """The keys of a JSON file. Raises ValueError naming a file that is not there or no object."""
    try:
        with open(file, encoding="utf-8") as stream:
            values = json.load(stream)
    except FileNotFoundError:
        raise ValueError(f"{file}: there is no such file; is this a model's folder?") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: this is no valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file}: this is no JSON object")
    return Keys(file, values)
