"""Token ids to text as it grows: whole characters only, and nothing that may yet be cut away."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from ..sampling_params import SamplingParams

LONGEST_CHARACTER = 4  # bytes of UTF-8


class Vocabulary(Protocol):
    """What a detokenizer needs of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class Detokenizer:
    """The text of one answer, given out piece by piece.

    All that `push` and `finish` return, joined, is the answer's bytes decoded at once and cut at
    the first stop string, however the ids were grouped. Bytes that can never become a character
    show as U+FFFD, as in `bytes.decode(errors="replace")`. A special token that is skipped adds
    no bytes, so it may stand inside a character or a stop string.

    The text goes on from the prompt: none of the prompt is shown, and a first piece that begins
    with a space keeps it. Where the prompt's ids end inside a character and the new bytes go on
    with it, that character is new text, shown whole; if they do not, its bytes are not shown.
    """

    def __init__(
        self,
        tokenizer: Vocabulary,
        params: SamplingParams,  # stop, min_tokens, and two flags, as SamplingParams has them
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        self.stop_reason: str | None = None  # the stop string that ended the text
        self.num_tokens = 0  # ids taken, with the one that completed the stop string
        self._tokenizer = tokenizer
        self._params = params
        self._half = self._half_character(prompt_token_ids)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._shown: list[str] = []
        self._held = ""  # decoded, not shown: it may be the beginning of a stop string

    @property
    def text(self) -> str:
        """All that was shown so far."""
        return "".join(self._shown)

    def push(self, token_ids: Iterable[int]) -> str:
        """Take the next ids and return the text that may be shown now.

        Text is shown as soon as its characters are complete, but for an end that is the beginning
        of a stop string. Once a stop string is complete the text is cut before it, or after it if
        `include_stop_str_in_output`; `stop_reason` is set, and ids after that one are not looked
        at. A stop string counts if an id after the first `min_tokens` completes it, wherever it
        begins (vLLM's rule).
        """
        shown = ""
        for token_id in token_ids:
            if self.stop_reason is not None:
                break
            self.num_tokens += 1
            text = self._held + self._decode(self._visible_bytes(token_id))
            end = self._stop(text, len(self._held))
            if end is None:
                end = len(text) - _num_undecided(text, self._params.stop)
                self._held = text[end:]
            shown += text[:end]
        self._shown.append(shown)
        return shown

    def finish(self) -> str:
        """Return the text that `push` held back: no more ids will come. A character that is not
        complete by now becomes one U+FFFD. (That too can complete a stop string.)"""
        if self.stop_reason is not None:
            return ""
        text = self._held + self._utf8.decode(b"", final=True)
        shown = text[: self._stop(text, len(self._held))]
        self._held = ""
        self._shown.append(shown)
        return shown

    def check(self) -> None:
        """Nothing is held but the beginning of a stop string, and nothing at all after one."""
        assert _num_undecided(self._held, self._params.stop) == len(self._held)
        assert self.stop_reason is None or not self._held

    def _stop(self, text: str, start: int) -> int | None:
        """Where to cut text, which is new from `start` on, if a stop string ended there."""
        if self.num_tokens <= self._params.min_tokens:
            return None
        found = stop_at(text, start, self._params.stop)
        if found is None:
            return None
        index, self.stop_reason = found
        self._held = ""
        return index + len(self.stop_reason) * self._params.include_stop_str_in_output

    def _visible_bytes(self, token_id: int) -> bytes:
        if self._params.skip_special_tokens and self._tokenizer.is_special(token_id):
            return b""
        return self._tokenizer.token_bytes(token_id)

    def _decode(self, new: bytes) -> str:
        """The characters that the new bytes complete, or make impossible."""
        if self._half and new:
            try:
                codecs.getincrementaldecoder("utf-8")().decode(self._half + new[:1])
                new = self._half + new
            except UnicodeDecodeError:
                pass  # the prompt's half character stays one: it is the prompt's, not shown
            self._half = b""
        return self._utf8.decode(new)

    def _half_character(self, token_ids: Sequence[int]) -> bytes:
        """The bytes at the prompt's end that begin a character, at most three."""
        end = b""
        for token_id in reversed(token_ids):
            if len(end) >= LONGEST_CHARACTER:
                break
            end = self._visible_bytes(token_id) + end
        utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        utf8.decode(end)
        return utf8.getstate()[0]


def stop_at(text: str, start: int, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where the first stop string begins, and which it is; None if there is none.

    Only those count whose last character stands at `start` or later: what ends before was looked
    at when it was new. First is the one that ends first, since a reader who sees the text grow
    would stop there; of several that end together, the one listed first.
    """
    first: tuple[int, str] | None = None
    for stop in stops:
        index = text.find(stop, max(0, start - len(stop) + 1))
        if index >= 0 and (first is None or index + len(stop) < first[0] + len(first[1])):
            first = index, stop
    return first


def _num_undecided(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of text that is the beginning of a stop string."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
