"""Learning the merges of a byte-level BPE from text. Counts pairs once, then only what changes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from .bpe import BPETokenizer, cut_at, split_words

NUM_BYTES = 256

IdPair = tuple[int, int]


def train(
    text: str,
    vocab_size: int,
    special_tokens: Sequence[str] = (),
    *,
    bos_token: str | None = None,  # this and the next: one of special_tokens
    eos_token: str | None = None,
    add_bos_token: bool = False,
    chat_template: str | None = None,
) -> BPETokenizer:
    """A tokenizer with vocab_size tokens: ids 0 to 255 are the bytes, then comes what the merges
    make in the order they are learnt, at last the special tokens, which are cut out of the text.

    The same text gives the same tokenizer. Raises ValueError if vocab_size is too small for bytes
    and special tokens, or too large for the text.
    """
    special_tokens = list(dict.fromkeys(special_tokens))
    for name in (bos_token, eos_token):
        if name is not None and name not in special_tokens:
            raise ValueError(f"{name!r} is not one of the special tokens {special_tokens}")
    num_fixed = NUM_BYTES + len(special_tokens)
    if vocab_size < num_fixed:
        raise ValueError(
            f"vocab_size must be at least {num_fixed}, {NUM_BYTES} bytes and "
            f"{len(special_tokens)} special tokens, got {vocab_size}"
        )
    merges = learn_merges(count_words(text, special_tokens), vocab_size - num_fixed)
    if num_fixed + len(merges) < vocab_size:
        raise ValueError(
            f"this text has merges for a vocab_size of at most {num_fixed + len(merges)}, "
            f"got {vocab_size}: give more text, or ask for less"
        )
    tokens = [bytes([byte]) for byte in range(NUM_BYTES)]
    for left, right in merges:
        tokens.append(tokens[left] + tokens[right])
    added = {special: len(tokens) + index for index, special in enumerate(special_tokens)}
    return BPETokenizer(
        {token: token_id for token_id, token in enumerate(tokens)},
        [(tokens[left], tokens[right]) for left, right in merges],
        added,
        bos_token_id=added.get(bos_token),
        eos_token_ids=[] if eos_token is None else [added[eos_token]],
        add_bos_token=add_bos_token,
        chat_template=chat_template,
    )


def count_words(text: str, special_tokens: Collection[str] = ()) -> Counter[bytes]:
    """How often each word stands in the text, special tokens apart."""
    parts = (part for part in cut_at(text, special_tokens) if part not in special_tokens)
    words = Counter(word for part in parts for word in split_words(part))
    return Counter({word.encode(): count for word, count in words.items()})


def learn_merges(words: Mapping[bytes, int], num_merges: int) -> list[IdPair]:
    """The pairs that are merged, in order; the k-th makes the token with id 256 + k.

    words: how often each stands in the text. Each time the pair that stands in them most often is
    merged everywhere; of equally frequent ones the pair with the lowest ids, the left one first.
    Fewer than num_merges if before that no word has two tokens.
    """
    index = PairIndex(words)
    merges: list[IdPair] = []
    while len(merges) < num_merges and index.counts:
        pair = index.most_frequent()
        index.merge(pair, NUM_BYTES + len(merges))
        merges.append(pair)
    return merges


class PairIndex:
    """Words as lists of ids; how often each pair of neighbours stands in them, and in which."""

    def __init__(self, words: Mapping[bytes, int]) -> None:
        self.words = [list(word) for word in words]
        self.weights = list(words.values())
        self.counts: Counter[IdPair] = Counter()
        self.places: defaultdict[IdPair, set[int]] = defaultdict(set)  # pair -> word numbers
        for number in range(len(self.words)):
            self._count(number)

    def most_frequent(self) -> IdPair:
        """Of equals the lowest."""
        most = max(self.counts.values())
        return min(pair for pair, count in self.counts.items() if count == most)

    def merge(self, pair: IdPair, new_id: int) -> None:
        """Join the pair everywhere. Only words that have it are looked at and counted anew."""
        for number in list(self.places[pair]):
            self._discount(number)
            self.words[number] = join(self.words[number], pair, new_id)
            self._count(number)

    def _count(self, number: int) -> None:
        """Take a word's pairs in."""
        for pair in pairwise(self.words[number]):
            self.counts[pair] += self.weights[number]
            self.places[pair].add(number)

    def _discount(self, number: int) -> None:
        """Take a word's pairs out again; a pair that is nowhere left is forgotten."""
        for pair in pairwise(self.words[number]):
            self.counts[pair] -= self.weights[number]
            self.places[pair].discard(number)
            if not self.counts[pair]:
                del self.counts[pair], self.places[pair]

    def check(self) -> None:
        """The counts are those of the words as they are now."""
        counts: Counter[IdPair] = Counter()
        for word, weight in zip(self.words, self.weights, strict=True):
            for pair in pairwise(word):
                counts[pair] += weight
        assert counts == self.counts
        assert all(
            pair in pairwise(self.words[number])
            for pair, numbers in self.places.items()
            for number in numbers
        )


def join(word: Iterable[int], pair: IdPair, new_id: int) -> list[int]:
    """The word with new_id, which is in no pair yet, for every occurrence of the pair, from the
    left: of 5 5 5 with the pair 5, 5 the first two are joined."""
    joined: list[int] = []
    for token_id in word:
        if joined and (joined[-1], token_id) == pair:
            joined[-1] = new_id
        else:
            joined.append(token_id)
    return joined
