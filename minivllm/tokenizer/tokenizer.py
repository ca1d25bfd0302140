"""A model's tokenizer: text to ids by the `tokenizers` library, ids to bytes by a table of ours.

Read from a Hugging Face folder or from a GGUF file, which `gguf_vocab.py` understands.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..checkpoint.gguf import GGUFFile
from .gguf_vocab import GGUFVocab

if TYPE_CHECKING:
    import tokenizers

SPM_SPACE = "\u2581"  # how sentencepiece writes a space
SPM_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")  # how it writes a byte that no piece covers


class Tokenizer:
    """Text to ids and back.

    Special tokens written out in a text are read as those tokens, as transformers and vLLM do: a
    server that takes text from strangers lets them write "<|im_end|>". Decoding joins the bytes
    of all ids and then reads UTF-8, with U+FFFD for what is none.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        id_to_bytes: Sequence[bytes],
        special_token_ids: Iterable[int],
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),  # the tokenizer's own first, then the model's others
        add_bos_token: bool = False,  # before every prompt
        strips_space: bool = False,  # sentencepiece: one space was put before the text
        chat_template: str | None = None,
    ) -> None:
        self.vocab_size = len(id_to_bytes)
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self.add_bos_token = add_bos_token
        self.chat_template = chat_template
        self._library = library
        self._id_to_bytes = id_to_bytes
        self._special_token_ids = frozenset(special_token_ids)
        self._strips_space = strips_space

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of text, after a BOS if the model was trained with one and
        `add_special_tokens`. Raises ValueError for what is no Unicode text (a lone surrogate).

        A control character that a byte-level vocabulary left out is dropped, as the library does.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text has a lone surrogate, {text[error.start]!r}, at character "
                f"{error.start}: it is not Unicode text, decode it anew from its bytes"
            ) from None
        token_ids = self._library.encode(text, add_special_tokens=False).ids
        if add_special_tokens and self.add_bos_token:
            token_ids.insert(0, self.bos_token_id)
        return token_ids

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ids that begin a text. (What continues one is a `Detokenizer`'s work.)"""
        text = b"".join(
            self.token_bytes(token_id)
            for token_id in token_ids
            if not (skip_special_tokens and self.is_special(token_id))
        ).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._strips_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that an id adds to a text, perhaps not whole characters. A model may have
        more rows than its tokenizer has tokens: those ids add nothing."""
        return self._id_to_bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def is_special(self, token_id: int) -> bool:
        """Whether the id steers the model (BOS, end of turn, ...) and is no text of its own."""
        return token_id in self._special_token_ids


class IdTokenizer:
    """For a model that comes without a tokenizer: its text is its ids, as numbers ("17 4 ")."""

    add_bos_token = False
    chat_template = None

    def __init__(
        self, vocab_size: int, bos_token_id: int | None = None, eos_token_ids: Sequence[int] = ()
    ) -> None:
        self.vocab_size = vocab_size
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The numbers in text. Raises ValueError if it holds anything else."""
        if not all(word.isdecimal() for word in text.split()):
            raise ValueError(
                "this model has no tokenizer: give the prompt as token ids, "
                f'[17, 4] or "17 4", not {text[:40]!r}'
            )
        return [int(word) for word in text.split()]

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        return "".join(f"{token_id} " for token_id in token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        return b"%d " % token_id

    def is_special(self, token_id: int) -> bool:
        return False


def load_tokenizer(path: str) -> Tokenizer:
    """The tokenizer of a Hugging Face folder (tokenizer.json, and the configs beside it) or of a
    .gguf file. Raises ValueError saying what is missing or not supported."""
    path = os.fspath(path)
    return _from_gguf(path) if path.endswith(".gguf") else _from_folder(path)


def _from_gguf(path: str) -> Tokenizer:
    with GGUFFile(path) as file:
        vocab = GGUFVocab(file.metadata)
    return Tokenizer(
        vocab.library(),
        [
            _bytes_of(token, vocab.is_byte_level, is_added)
            for token, is_added in zip(vocab.tokens, vocab.is_added, strict=True)
        ],
        [token_id for token_id, special in enumerate(vocab.is_special) if special],
        bos_token_id=vocab.bos_token_id,
        eos_token_ids=vocab.eos_token_ids,
        add_bos_token=vocab.add_bos_token,
        strips_space=vocab.add_space_prefix,
        chat_template=vocab.chat_template,
    )


def _from_folder(path: str) -> Tokenizer:
    import tokenizers

    file_path = os.path.join(path, "tokenizer.json")
    if not os.path.isfile(file_path):
        raise ValueError(
            f"{path} has no tokenizer.json: give prompts as token ids, or add the file"
        )
    spec = read_json(path, "tokenizer.json")
    config = read_json(path, "tokenizer_config.json")
    try:
        library = tokenizers.Tokenizer.from_file(file_path)
    except Exception as error:  # the library has no narrower class
        raise ValueError(f"{file_path} is not a tokenizer: {error}") from None
    is_byte_level, strips_space = _read_decoder(spec, file_path)
    added = {token["id"]: token["special"] for token in spec["added_tokens"]}
    bos, eos = (_id_of(library, config, name) for name in ("bos_token", "eos_token"))
    prefix = _prefix(library)
    vocab = library.get_vocab(with_added_tokens=True)
    id_to_bytes = [b""] * (max(vocab.values()) + 1)
    for token, token_id in vocab.items():
        id_to_bytes[token_id] = _bytes_of(token, is_byte_level, token_id in added)
    return Tokenizer(
        library,
        id_to_bytes,
        {i for i, special in added.items() if special} | {i for i in (bos, eos) if i is not None},
        bos_token_id=prefix[0] if prefix else bos,
        eos_token_ids=([] if eos is None else [eos]) + eos_of_model(path),
        add_bos_token=bool(prefix),
        strips_space=strips_space,
        chat_template=folder_chat_template(path, config),
    )


def read_json(folder: str, name: str) -> dict:
    """What a JSON file of the folder says; {} if there is no such file."""
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        return {}
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from None


def _read_decoder(spec: dict, path: str) -> tuple[bool, bool]:
    """(byte-level, strips the text's first space) of a tokenizer.json. Not byte-level means
    pieces as sentencepiece writes them."""
    decoder = spec.get("decoder") or {}
    parts = {part.get("type"): part for part in decoder.get("decoders", [decoder])}
    if "ByteLevel" in parts:
        return True, False
    if "ByteFallback" not in parts and "Metaspace" not in parts:
        raise ValueError(
            f"{path} has the decoder {'+'.join(map(str, parts))}, which is not supported: "
            "ByteLevel, ByteFallback and Metaspace are"
        )
    strip = parts.get("Strip", {}).get("start", 0) > 0
    return False, strip or parts.get("Metaspace", {}).get("prepend_scheme", "never") != "never"


def _id_of(library: tokenizers.Tokenizer, config: dict, name: str) -> int | None:
    token = config.get(name)
    if token is None:
        return None
    text = token["content"] if isinstance(token, dict) else token
    token_id = library.token_to_id(text)
    if token_id is None:
        raise ValueError(f"tokenizer_config.json: {name} {text!r} is not in the vocabulary")
    return token_id


def _prefix(library: tokenizers.Tokenizer) -> list[int]:
    """[BOS] if tokenizer.json puts one before a text, else []. (transformers does not look at the
    config's add_bos_token either where there is a tokenizer.json.)"""
    plain = library.encode("a", add_special_tokens=False).ids
    framed = library.encode("a", add_special_tokens=True).ids
    prefix = framed[: len(framed) - len(plain)]
    if len(prefix) > 1 or framed != prefix + plain:
        raise ValueError(
            "the post_processor of tokenizer.json puts more round a text than one token before "
            "it: such a tokenizer is not made for prompts"
        )
    return prefix


def eos_of_model(path: str) -> list[int]:
    """The ids at which the model's own configuration ends a text."""
    for name in ("generation_config.json", "config.json"):
        eos = read_json(path, name).get("eos_token_id")
        if eos is not None:
            return [eos] if isinstance(eos, int) else list(eos)
    return []


def folder_chat_template(path: str, config: dict) -> str | None:
    file_path = os.path.join(path, "chat_template.jinja")
    if os.path.isfile(file_path):
        with open(file_path, encoding="utf-8") as file:
            return file.read()
    template = config.get("chat_template")
    if isinstance(template, list):
        return {named["name"]: named["template"] for named in template}.get("default")
    return template


def _bytes_of(token: str, is_byte_level: bool, is_added: bool) -> bytes:
    """The bytes that a token of the vocabulary stands for. Where bytes are spelled by letters, an
    added token is not spelled: it is its own text."""
    if is_byte_level and not is_added and set(token) <= BYTE_OF.keys():
        return bytes(BYTE_OF[character] for character in token)
    if is_byte_level:
        return token.encode("utf-8")
    if SPM_BYTE.fullmatch(token):
        return bytes([int(token[3:5], 16)])
    return token.replace(SPM_SPACE, " ").encode("utf-8")


def _byte_alphabet() -> dict[str, int]:
    """How byte-level vocabularies write a byte: printable Latin-1 as itself, the 68 others as
    U+0100 and on, in order (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


BYTE_OF = _byte_alphabet()
