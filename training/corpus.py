"""The shards as one text: its vocabulary, and its stories as rows of ids."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import torch

from minivllm.tokenizer.bpe import BPETokenizer
from minivllm.tokenizer.bpe_training import train

from .stories import read_shard, words_of

VOCAB_SIZE = 1024
END = "<|endoftext|>"
RAREST_WORD = 3  # a story with a word that comes less often is left out
HELD_OUT = 50  # one story of so many is never learned from


def read_stories(folder: Path) -> tuple[list[str], list[str]]:
    """(to learn from, held out), without doubles and rare words. The same shards give the same
    lists. Raises ValueError where there is no shard."""
    shards = sorted(folder.glob("*.json"))
    if not shards:
        raise ValueError(f"{folder} holds no stories: python -m training stories")
    stories = list(dict.fromkeys(story for shard in shards for story in read_shard(shard)[1]))
    words = [set(words_of(story)) for story in stories]
    counts = Counter(word for of_story in words for word in of_story)
    common = [
        story
        for story, of_story in zip(stories, words)
        if min(counts[word] for word in of_story) >= RAREST_WORD
    ]
    learned = [story for i, story in enumerate(common) if i % HELD_OUT]
    return learned, common[::HELD_OUT]


def learn_vocabulary(stories: list[str]) -> BPETokenizer:
    """1,024 tokens: the bytes, what these stories' merges make, and one that ends a story."""
    return train("\n".join(stories), VOCAB_SIZE, [END], eos_token=END)


class Rows:
    """Stories end to end, each with END behind it, cut into rows that begin with a story: a
    model is asked from position 0 on, so there it must have seen how a story begins."""

    def __init__(self, stories: list[str], tokenizer: BPETokenizer, length: int) -> None:
        self.length = length
        (self.end,) = tokenizer.eos_token_ids
        self.stories = [[*tokenizer.encode(story), self.end] for story in stories]
        self.num_tokens = sum(map(len, self.stories))

    def epoch(self, number: int) -> torch.Tensor:  # [rows, length + 1]
        """All stories in an order of the epoch's own. What a row's last story has left over is
        not seen in this epoch."""
        order = list(range(len(self.stories)))
        random.Random(f"epoch {number}").shuffle(order)
        rows: list[list[int]] = []
        row: list[int] = []
        for index in order:
            row.extend(self.stories[index])
            if len(row) > self.length:
                rows.append(row[: self.length + 1])
                row = []
        return torch.tensor(rows)
