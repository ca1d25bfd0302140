"""Small vocabularies, nasty texts, and plain ways to tokenize: what tokenizers are judged by."""

from __future__ import annotations

import json
import random
import unicodedata
from itertools import pairwise

import regex
from gguf import GGUFWriter
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

BLOCKS = [
    *((0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF)),
    *((0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F)),
    *((0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2070, 0x209F), (0x2150, 0x218F)),
    *((0x2190, 0x21FF), (0x2200, 0x22FF), (0x2600, 0x27BF), (0x3000, 0x30FF), (0x4E00, 0x9FFF)),
    *((0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xFB00, 0xFDFF), (0xFE00, 0xFFFF), (0x10300, 0x1034F)),
    *((0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0xE0020, 0xE007F)),
]
SNIPPETS = [
    *("the", " The", "lower", "LOWER", " 2024-11-03", "3.14159", "1234567", "٣٤٥", "½Ⅻ²"),
    *("it's", "WE'LL", "don'T", "y'all've", "'s", "'ſ", "’s", "l'été", "cafe\u0301", "ﬁn"),
    *("👩‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷🇩🇪", "👍🏽", "❤️", "漢字かな交じり文", "한국어", "שלום", "مرحبا", "ไม่มี"),
    *(
        "def f(x):\n    return x**2\n",
        "if (a && b) { c++; }\r\n",
        "\t\tint *p = &q;",
        "<a href='#'>",
    ),
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|im_start",
        "im_end|>",
        "<|im_end|><|im_end|>",
    ),
    *(
        "<s>",
        "</s>",
        "<unk>",
        "<0x0A>",
        "<0xZZ>",
        "[INST]",
        "▁",
        "▁▁x",
        "Ġ",
        "Ċ",
        "\ufffd",
        "\ufffe",
    ),
    *(" ", "  ", "    ", "\t", "\n", "\n\n\n", "\r\n", " \n ", "\r", "\x0b\x0c", "\x85", "\xa0"),
    *("\u2028", "\u200b", "\u200d", "\u3000", "\ufeff", "\x00", "\x01\x02", "\x1b[0m", "\x7f"),
    *("https://example.org/?q=1&r=%20#x", "a" * 70, "=" * 40, "!?!?", "...", "\\n", "$x^2$", "``"),
]


def nasty_texts(count: int, seed: int) -> list[str]:
    """Texts of 0 to 12 pieces: snippets, runs of one Unicode block, runs of digits and blanks.
    Only characters that Unicode 14 knows, so that the age of a library's tables is no matter."""
    rng = random.Random(seed)
    known = [
        [chr(c) for c in range(first, last + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
        for first, last in BLOCKS
    ]

    def piece() -> str:
        kind = rng.random()
        if kind < 0.5:
            return rng.choice(SNIPPETS)
        if kind < 0.8:
            return "".join(rng.choices(rng.choice(known), k=rng.randint(1, 6)))
        if kind < 0.9:
            return "".join(rng.choices("0123456789 .,", k=rng.randint(1, 9)))
        return "".join(rng.choices(" \t\n\r", k=rng.randint(1, 6)))

    return ["".join(piece() for _ in range(rng.randint(0, 12))) for _ in range(count)]


def train_byte_level(texts: list[str], vocab_size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """(tokens, merges) that pay no heed to words, so that a wrong cut shows in the ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _tokens_and_merges(tokenizer)


def train_sentencepiece(texts: list[str], vocab_size: int) -> tuple[list[str], list[float]]:
    """(pieces, scores) as sentencepiece's BPE writes them: the earlier merged, the higher."""
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, limit_alphabet=vocab_size // 4, show_progress=False
    )
    tokenizer.train_from_iterator([text.replace(" ", "▁") for text in texts], trainer)
    tokens, merges = _tokens_and_merges(tokenizer)
    joined = list(dict.fromkeys(left + right for left, right in merges))
    pieces = joined + [token for token in tokens if token not in set(joined)]
    return pieces, [-float(rank) for rank in range(len(pieces))]


def _tokens_and_merges(tokenizer: Tokenizer) -> tuple[list[str], list[tuple[str, str]]]:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return tokens, [tuple(merge) for merge in model["merges"]]


def write_gguf(path, model: str, **facts) -> str:
    """A GGUF file of nothing but `tokenizer.ggml.*` metadata (and chat_template)."""
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    for name, value in facts.items():
        key = f"tokenizer.{name}" if name == "chat_template" else f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def byte_alphabet() -> dict[int, str]:
    """GPT-2's letters for bytes, by counting: a byte that prints is its own letter."""
    letters, num_others = {}, 0
    for byte in range(256):
        prints = chr(byte).isprintable() and byte not in (0x20, 0xA0, 0xAD)
        letters[byte] = chr(byte) if prints else chr(256 + num_others)
        num_others += not prints
    return letters


def plain_byte_level(text, split, tokens, merges, *, specials=(), whole_words=False) -> list[int]:
    """Byte-level BPE by the definition: cut, then always join the pair that was learnt first."""
    ids = {token: index for index, token in enumerate(tokens)}
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    letters = byte_alphabet()
    out = []
    for part, is_special in _cut_at(text, specials):
        if is_special:
            out.append(ids[part])
            continue
        for word in split(part):
            symbols = [letters[byte] for byte in word.encode()]
            if whole_words and "".join(symbols) in ids:
                symbols = ["".join(symbols)]
            while pairs := [p for p in pairwise(symbols) if p in ranks]:
                symbols = _join(symbols, min(pairs, key=ranks.get))
            out += [ids[symbol] for symbol in symbols]
    return out


def _join(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    joined = []
    for symbol in symbols:
        if joined and (joined[-1], symbol) == pair:
            joined[-1] += symbol
        else:
            joined.append(symbol)
    return joined


def plain_sentencepiece(text, tokens, scores, *, specials=(), prefix=True) -> list[int]:
    """Llama.cpp's way: join the two neighbours whose piece scores highest, the leftmost first."""
    ids = {token: index for index, token in enumerate(tokens)}
    out = []
    for part, is_special in _cut_at(text, specials):
        if is_special:
            out.append(ids[part])
            continue
        symbols = list(("▁" if prefix and part else "") + part.replace(" ", "▁"))
        while True:
            joins = [
                (scores[ids[a + b]], -i)
                for i, (a, b) in enumerate(pairwise(symbols))
                if a + b in ids
            ]
            if not joins:
                break
            i = -max(joins)[1]
            symbols[i : i + 2] = ["".join(symbols[i : i + 2])]
        for symbol in symbols:
            known = symbol in ids
            out += [ids[symbol]] if known else [ids[f"<0x{b:02X}>"] for b in symbol.encode()]
    return out


def _cut_at(text: str, specials) -> list[tuple[str, bool]]:
    if not specials:
        return [(text, False)]
    longest_first = sorted(specials, key=len, reverse=True)
    parts = regex.split("(" + "|".join(map(regex.escape, longest_first)) + ")", text)
    return [(part, index % 2 == 1) for index, part in enumerate(parts) if part]


# As published: GPT-2's encoder.py, Llama 3's tokenizer.py, Qwen2's tokenization_qwen2.py.
GPT2_WORDS = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace("{1,3}", "")


def _smollm_words(text: str) -> list[str]:
    parts = regex.split(r"(\p{N})", text)
    return [word for part in parts for word in regex.findall(GPT2_WORDS, part)]


SPLITS = {
    "gpt-2": lambda text: regex.findall(GPT2_WORDS, text),
    "smollm": _smollm_words,
    "llama-bpe": lambda text: regex.findall(LLAMA3_WORDS, text),
    "qwen2": lambda text: regex.findall(QWEN2_WORDS, unicodedata.normalize("NFC", text)),
}
