"""A `BPETokenizer` to and from `tokenizer.json`, the file that the `tokenizers` library reads."""

from __future__ import annotations

import json
import os
from typing import Any

from .bpe import BPETokenizer, Pair
from .tokenizer import BYTE_OF, eos_of_model, folder_chat_template, read_json

LETTER_OF = {byte: letter for letter, byte in BYTE_OF.items()}

_SPLIT = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_PLAIN_BPE = {
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
_PLAIN_TOKEN = {"single_word": False, "lstrip": False, "rstrip": False}


def save_bpe(tokenizer: BPETokenizer, folder: str | os.PathLike[str]) -> None:
    """Write tokenizer.json and tokenizer_config.json into a checkpoint's folder, so that this
    engine, the `tokenizers` library and transformers read the same tokenizer from it."""
    os.makedirs(folder, exist_ok=True)
    text_of = {token_id: text for text, token_id in tokenizer.added.items()}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    named = {
        "bos_token": tokenizer.bos_token_id,
        "eos_token": next(iter(tokenizer.eos_token_ids), None),
    }
    # One that is not added to the words is named by its id, in the model's own config.
    config |= {name: text_of[token_id] for name, token_id in named.items() if token_id in text_of}
    if tokenizer.chat_template is not None:
        config["chat_template"] = tokenizer.chat_template
    for name, content in (
        ("tokenizer.json", tokenizer_json(tokenizer)),
        ("tokenizer_config.json", config | {"clean_up_tokenization_spaces": False}),
    ):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False, indent=1)


def tokenizer_json(tokenizer: BPETokenizer) -> dict[str, Any]:
    """What tokenizer.json says of a tokenizer. There bytes are spelled by letters."""
    added = [
        {"id": token_id, "content": text, **_PLAIN_TOKEN, "normalized": False}
        | {"special": tokenizer.is_special(token_id)}
        for text, token_id in tokenizer.added.items()
    ]
    bos = next((t for t in added if t["id"] == tokenizer.bos_token_id), None)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _SPLIT,
        "post_processor": _put_before(bos) if tokenizer.add_bos_token else None,
        "decoder": _SPLIT,
        "model": {
            "type": "BPE",
            **_PLAIN_BPE,
            "vocab": {spell(token): token_id for token, token_id in tokenizer.ids.items()},
            "merges": [[spell(left), spell(right)] for left, right in tokenizer.merges],
        },
    }


def _put_before(token: dict[str, Any]) -> dict[str, Any]:
    """The library's way to say that a token comes before each text."""
    text = token["content"]
    begin = {"SpecialToken": {"id": text, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [begin, *({"Sequence": {"id": part, "type_id": 0}} for part in "AB")],
        "special_tokens": {text: {"id": text, "ids": [token["id"]], "tokens": [text]}},
    }


def load_bpe(path: str | os.PathLike[str]) -> BPETokenizer:
    """The tokenizer of a folder with a tokenizer.json, and the configs beside it: what
    `load_tokenizer` gives, where there is no `tokenizers` library.

    Raises ValueError saying what is missing, or what it asks for beyond byte-level BPE over
    GPT-2's words.
    """
    folder = os.fspath(path)
    file = os.path.join(folder, "tokenizer.json")
    if not os.path.isfile(file):
        raise ValueError(
            f"{folder} has no tokenizer.json, and without the `tokenizers` library "
            "no other tokenizer can be read"
        )
    try:
        return _from_json(read_json(folder, "tokenizer.json"), folder)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is no tokenizer: {error!r}") from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _from_json(spec: dict[str, Any], folder: str) -> BPETokenizer:
    check_supported(spec)
    config = read_json(folder, "tokenizer_config.json")
    added = {token["content"]: token["id"] for token in spec["added_tokens"]}
    special = {token["id"] for token in spec["added_tokens"] if token["special"]}
    ids = {unspell(text): i for text, i in spec["model"]["vocab"].items() if text not in added}
    bos, eos = (_id_of(config, name, added) for name in ("bos_token", "eos_token"))
    prefix = _prefix(spec.get("post_processor"))
    return BPETokenizer(
        ids,
        [_pair(merge) for merge in spec["model"]["merges"]],
        added,
        special_token_ids=special | {i for i in (bos, eos) if i is not None},
        bos_token_id=bos if prefix is None else prefix,
        eos_token_ids=([] if eos is None else [eos]) + eos_of_model(folder),
        add_bos_token=prefix is not None,
        chat_template=folder_chat_template(folder, config),
    )


def check_supported(spec: dict[str, Any]) -> None:
    """Raises ValueError naming the part that asks for more than byte-level BPE."""
    model = spec["model"]
    wanted = {"type": "BPE", **_PLAIN_BPE}
    asked = {f"model.{name}": (model.get(name), plain) for name, plain in wanted.items()}
    asked["normalizer"] = (spec.get("normalizer"), None)
    split = spec.get("pre_tokenizer") or {}
    asked["pre_tokenizer"] = (split | {"trim_offsets": True}, _SPLIT)
    asked["decoder.type"] = ((spec.get("decoder") or {}).get("type"), "ByteLevel")
    for token in spec["added_tokens"]:
        for name, plain in _PLAIN_TOKEN.items():
            asked[f"added token {token['content']!r}: {name}"] = (token.get(name), plain)
    for name, (value, plain) in asked.items():
        if value != plain and (value or plain):
            raise ValueError(f"{name} is {value!r}; supported without the library: {plain!r}")


def _prefix(processor: dict[str, Any] | None) -> int | None:
    """The id of the one token that is put before each text; None if there is none."""
    if processor is None or processor["type"] == "ByteLevel":
        return None
    if processor["type"] == "TemplateProcessing":
        kinds = [next(iter(part)) for part in processor["single"]]
        if kinds == ["Sequence"]:
            return None
        if kinds == ["SpecialToken", "Sequence"]:
            name = processor["single"][0]["SpecialToken"]["id"]
            token_ids = processor["special_tokens"][name]["ids"]
            if len(token_ids) == 1:
                return token_ids[0]
    raise ValueError("post_processor puts more round a text than one token before it")


def _id_of(config: dict[str, Any], name: str, added: dict[str, int]) -> int | None:
    token = config.get(name)
    text = token["content"] if isinstance(token, dict) else token
    if text is not None and text not in added:
        raise ValueError(f"{name} {text!r} of tokenizer_config.json is no added token")
    return None if text is None else added[text]


def _pair(merge: str | list[str]) -> Pair:
    """["a", "b"], or "a b" in older files."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return unspell(left), unspell(right)


def spell(token: bytes) -> str:
    """Bytes as the letters that files write for them."""
    return "".join(LETTER_OF[byte] for byte in token)


def unspell(text: str) -> bytes:
    """The bytes that letters stand for. Raises ValueError for a letter that stands for none."""
    for letter in text:
        if letter not in BYTE_OF:
            raise ValueError(f"{text!r} is no token over bytes: {letter!r} stands for none")
    return bytes(BYTE_OF[letter] for letter in text)
