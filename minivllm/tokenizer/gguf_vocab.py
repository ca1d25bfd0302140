"""A GGUF file's `tokenizer.*` metadata, as the tokenizer it stands for.

Two families: byte-level BPE ("gpt2", with a named way to cut text into words) and sentencepiece
("llama", pieces with scores). Key names and defaults are llama.cpp's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How each byte-level family cuts text before merging; None: as GPT-2, which the library knows.
SPLITS = {
    "gpt-2": None,
    "smollm": None,  # after every digit was set apart
    "llama-bpe": _WORDS % r"\p{N}{1,3}",
    "qwen2": _WORDS % r"\p{N}",
}


class GGUFVocab:
    """What the metadata says. Raises ValueError naming the key that is missing or unknown."""

    def __init__(self, metadata: dict) -> None:
        self._metadata = metadata
        self.model = self._need("model")
        if self.model not in ("gpt2", "llama"):
            raise ValueError(
                f"tokenizer.ggml.model is {self.model!r}; supported: 'gpt2' and 'llama'"
            )
        self.is_byte_level = self.model == "gpt2"
        self.pre = self._get("pre", "") if self.is_byte_level else None
        if self.is_byte_level and self.pre not in SPLITS:
            known = ", ".join(map(repr, SPLITS))
            raise ValueError(f"tokenizer.ggml.pre is {self.pre!r}; supported: {known}")
        if self._get("add_eos_token", False):
            raise ValueError("tokenizer.ggml.add_eos_token: prompts that end in EOS go nowhere")
        self.tokens: list[str] = list(self._need("tokens"))
        self.types = self._list("token_type", [NORMAL] * len(self.tokens))
        self.bos_token_id = self._token_id("bos_token_id")
        ends = (self._token_id(f"{name}_token_id") for name in ("eos", "eot", "eom"))
        self.eos_token_ids = [end for end in ends if end is not None]
        ids = {self.bos_token_id, *self.eos_token_ids}
        special = (UNKNOWN, CONTROL)
        self.is_special = [t in special or i in ids for i, t in enumerate(self.types)]
        self.is_added = [
            s or t == USER_DEFINED for s, t in zip(self.is_special, self.types, strict=True)
        ]
        adds_bos = self._get("add_bos_token", self.model == "llama" or self.pre == "llama-bpe")
        self.add_bos_token = adds_bos and self.bos_token_id is not None
        self.add_space_prefix = not self.is_byte_level and self._get("add_space_prefix", True)
        self.chat_template: str | None = metadata.get("tokenizer.chat_template")

    def library(self) -> tokenizers.Tokenizer:
        """The vocabulary as a tokenizer of the `tokenizers` library."""
        from tokenizers import AddedToken

        library = self._byte_level() if self.is_byte_level else self._sentencepiece()
        added = zip(self.tokens, self.is_added, self.is_special, strict=True)
        library.add_tokens(
            [AddedToken(t, special=special, normalized=False) for t, a, special in added if a]
        )
        return library

    def _byte_level(self) -> tokenizers.Tokenizer:
        from tokenizers import Regex, Tokenizer, normalizers
        from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

        merges = [tuple(merge.split(" ", 1)) for merge in self._need("merges")]
        library = Tokenizer(self._bpe(merges, ignore_merges=self.pre == "llama-bpe"))
        split = SPLITS[self.pre]
        steps = [ByteLevel(add_prefix_space=False, use_regex=split is None)]
        if split is not None:
            steps.insert(0, Split(Regex(split), "isolated"))
        if self.pre == "smollm":
            steps.insert(0, Digits(individual_digits=True))
        if self.pre == "qwen2":
            library.normalizer = normalizers.NFC()
        library.pre_tokenizer = Sequence(steps)
        return library

    def _sentencepiece(self) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer, normalizers

        unknown = self.tokens[self._token_id("unknown_token_id") or 0]
        merges = merges_by_score(self.tokens, self._list("scores"))
        library = Tokenizer(self._bpe(merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
        spaces = [normalizers.Replace(" ", "\u2581")]
        if self.add_space_prefix:
            spaces.insert(0, normalizers.Prepend("\u2581"))
        library.normalizer = normalizers.Sequence(spaces)
        return library

    def _bpe(self, merges: list[tuple[str, str]], **options) -> tokenizers.models.BPE:
        from tokenizers.models import BPE

        ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        try:
            return BPE(ids, merges, **options)
        except Exception as error:  # the library has no narrower class
            raise ValueError(f"tokenizer.ggml.merges do not fit the tokens: {error}") from None

    def _get(self, name: str, default):
        return self._metadata.get(f"tokenizer.ggml.{name}", default)

    def _need(self, name: str):
        value = self._get(name, None)
        if value is None or value == []:
            raise ValueError(f"the file has no tokenizer.ggml.{name}: it lacks its tokenizer")
        return value

    def _list(self, name: str, default: list | None = None) -> list:
        """A list with one entry a token."""
        values = self._need(name) if default is None else self._get(name, default)
        if len(values) != len(self.tokens):
            raise ValueError(
                f"tokenizer.ggml.{name} has {len(values)} entries for {len(self.tokens)} tokens"
            )
        return values

    def _token_id(self, name: str) -> int | None:
        token_id = self._get(name, None)
        if token_id is not None and not 0 <= token_id < len(self.tokens):
            raise ValueError(
                f"tokenizer.ggml.{name} is {token_id}, outside the {len(self.tokens)} tokens"
            )
        return token_id


def merges_by_score(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """Sentencepiece's rule, "join the neighbours whose piece has the highest score", as the
    ranked list of pairs that BPE wants."""
    known = set(tokens)
    ranked = sorted(range(len(tokens)), key=lambda token_id: -scores[token_id])
    return [
        (piece[:cut], piece[cut:])
        for piece in map(tokens.__getitem__, ranked)
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]
