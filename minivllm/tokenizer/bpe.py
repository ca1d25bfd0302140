"""Byte-level BPE of our own: text to ids and back by merges, in the standard library alone.

A text is cut into words, a word is written as bytes, and neighbours are merged in the order in
which `bpe_training` learnt the merges (Sennrich et al., 2016; over bytes: Radford et al., 2019).
`bpe_file` reads and writes the form that other tokenizers read.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

Pair = tuple[bytes, bytes]

_CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
_NO_SPACES = "\x1c\x1d\x1e\x1f"  # Python calls them spaces, Unicode does not
_WORDS_REMEMBERED = 1 << 14


class BPETokenizer:
    """Text to ids and back, with the interface of `tokenizer.Tokenizer`.

    Special tokens written out in a text are read as those tokens. Decoding joins the bytes of all
    ids and then reads UTF-8, with U+FFFD for what is none.
    """

    def __init__(
        self,
        ids: Mapping[bytes, int],  # of single bytes and of all that merges make
        merges: Sequence[Pair],  # the first learnt first
        added: Mapping[str, int] | None = None,  # tokens that are found before words are cut
        *,
        special_token_ids: Iterable[int] | None = None,  # None: all that were added
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),
        add_bos_token: bool = False,  # before every prompt
        chat_template: str | None = None,
    ) -> None:
        self.ids = dict(ids)
        self.merges = list(merges)
        self.added = dict(added or {})
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self.add_bos_token = add_bos_token
        self.chat_template = chat_template
        special = self.added.values() if special_token_ids is None else special_token_ids
        self.special_token_ids = frozenset(special)
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._bytes = {token_id: token for token, token_id in self.ids.items()}
        self._bytes |= {token_id: text.encode() for text, token_id in self.added.items()}
        self.vocab_size = max(self._bytes) + 1
        self._ids_of_word = lru_cache(_WORDS_REMEMBERED)(self._encode_word)
        self.check()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of text, after a BOS if the model was trained with one and
        `add_special_tokens`. Raises ValueError for what is no Unicode text (a lone surrogate)."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text has a lone surrogate, {text[error.start]!r}, at character "
                f"{error.start}: it is not Unicode text, decode it anew from its bytes"
            ) from None
        token_ids = [self.bos_token_id] if add_special_tokens and self.add_bos_token else []
        for part in cut_at(text, self.added):
            if part in self.added:
                token_ids.append(self.added[part])
            else:
                for word in split_words(part):
                    token_ids += self._ids_of_word(word)
        return token_ids

    def _encode_word(self, word: str) -> tuple[int, ...]:
        """A byte that the vocabulary lacks is dropped, as the `tokenizers` library does."""
        parts = [bytes([byte]) for byte in word.encode() if bytes([byte]) in self.ids]
        return tuple(self.ids[token] for token in merge(parts, self._ranks))

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ids that begin a text. (What continues one is a `Detokenizer`'s work.)"""
        return b"".join(
            self.token_bytes(token_id)
            for token_id in token_ids
            if not (skip_special_tokens and self.is_special(token_id))
        ).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that an id adds to a text, perhaps not whole characters; none for an id that
        is no token's."""
        return self._bytes.get(token_id, b"")

    def is_special(self, token_id: int) -> bool:
        """Whether the id steers the model (BOS, end of turn, ...) and is no text of its own."""
        return token_id in self.special_token_ids

    def check(self) -> None:
        """Every merge joins two tokens to a token, and what is added has a name. Raises ValueError
        saying what is wrong."""
        for left, right in self.merges:
            if not {left, right, left + right} <= self.ids.keys():
                raise ValueError(f"the merge of {left!r} and {right!r} has no token")
        if "" in self.added:
            raise ValueError("an added token is empty")
        if self.add_bos_token and self.bos_token_id is None:
            raise ValueError("add_bos_token, but there is no BOS token")


def merge(parts: Sequence[bytes], ranks: Mapping[Pair, int]) -> list[bytes]:
    """Join neighbours until no pair of them can be joined: each time the pair of the lowest rank,
    of equals the leftmost. Pairs that are not in `ranks` stay apart.

    Time grows with the square of the number of parts, which are the bytes of a single word.
    """
    parts = list(parts)
    while True:
        found = [
            (ranks[pair], index) for index, pair in enumerate(pairwise(parts)) if pair in ranks
        ]
        if not found:
            return parts
        _, index = min(found)
        parts[index : index + 2] = [parts[index] + parts[index + 1]]


def split_words(text: str) -> list[str]:
    r"""Text cut into words as GPT-2 does; nothing is lost, so they join to the text again.

    A word is the first of these that fits: a contraction ('s, 't, 're, 've, 'm, 'll, 'd);
    letters; numbers; other characters that are no white space, each of these three with one space
    before it or none; white space up to the last that something follows, which is left to the
    next word; white space. This is GPT-2's pattern,
    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    """
    words, start = [], 0
    while start < len(text):
        end = word_end(text, start)
        words.append(text[start:end])
        start = end
    return words


def word_end(text: str, start: int) -> int:
    """Where the word that begins at `start` ends."""
    for contraction in _CONTRACTIONS:
        if text.startswith(contraction, start):
            return start + len(contraction)
    end = start + 1
    kind = kind_of(text[start])
    if text[start] == " " and end < len(text):
        kind = kind_of(text[end])
    while end < len(text) and kind_of(text[end]) == kind:
        end += 1
    if kind == "space" and end < len(text) and end - start > 1:
        end -= 1
    return end


def kind_of(character: str) -> str:
    """ "letter" (Unicode's categories L*), "number" (N*), "space" (its property White_Space) or
    "other"."""
    if character.isspace():
        return "other" if character in _NO_SPACES else "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(character)[0], "other")


def cut_at(text: str, added: Iterable[str]) -> Iterator[str]:
    """Text cut at every token of `added` that is written out in it: the leftmost, and of several
    that begin together the longest. The tokens are among the parts; no part is empty."""
    longest_first = sorted(added, key=len, reverse=True)
    if not longest_first:
        return iter([text] if text else [])
    pattern = "|".join(map(re.escape, longest_first))
    return filter(None, re.split(f"({pattern})", text))
