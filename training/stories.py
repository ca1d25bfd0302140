"""smollm2-135m goes on with openings, through this engine, and what is fit is kept.

Stories come in shards of SHARD openings. A shard depends on its number alone, is written in one
go, and is on disk whole or not at all, so that several processes share the work, and a run that
was stopped goes on.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .openings import opening

if TYPE_CHECKING:
    from minivllm import LLM

SHARD = 384

# What the model imitates: a shard shows it one of these. Written for this purpose.
EXAMPLES = [
    "Lily has a red kite. She takes it to the hill. The wind is strong, and the kite goes up, up, "
    "up. Then the string breaks, and the kite lands in a tree. Lily is sad. A kind man with a "
    'ladder gets it down. "Thank you," says Lily. She ties a new knot, and the kite flies again.',
    "One morning a small frog lost his hat. He looked under a leaf, but it was not there. He "
    'asked the duck. "I did not see it," said the duck. Then he looked in the pond and saw the '
    "hat on his own head. The frog laughed and laughed. The duck laughed too.",
    "Ben and his grandma baked a cake. Ben put in the eggs, and grandma put in the sugar. The "
    'cake was big and warm. A mouse smelled it and came out of her hole. "May I have some?" she '
    "asked. Ben gave her a piece. The mouse said it was the best cake in the world.",
    "A young owl was afraid of the dark. Every night she closed her eyes. Her mother said, "
    '"Look up." The owl opened one eye and saw the moon. It was round and bright. "The dark is '
    'full of light," said the owl. After that night she was not afraid, and she flew far.',
    "Tom found a little bird in the snow. It was cold and could not fly. Tom took it home in his "
    "hat. He gave it bread and a warm box. In the spring the bird was strong. It sang a song for "
    "Tom, and then it flew out of the window. Tom waved, and he was happy.",
    'Anna and the goat wanted to cross the river. "The water is deep," said the goat. They found '
    "a long log and put it over the water. Anna went first. The goat went slowly behind her. "
    "On the other side they ate apples in the sun and were proud.",
]
BETWEEN = "\n###\n"

WORDS_A_SENTENCE = 24
# Not in a story for small children.
UNFIT = re.compile(
    r"\b(kill\w*|dead|death|die[sd]?|dying|murder\w*|blood\w*|gun\w*|shoot\w*|shot|knife|knives|"
    r"sword\w*|weapon\w*|war|wars|bomb\w*|hell|devil\w*|god\w*|allah|jesus|church|pray\w*|sex\w*|"
    r"naked|nude|breast\w*|kiss\w*|marr\w*|pregnan\w*|wife|husband|lover\w*|drunk\w*|beer|wine|"
    r"alcohol|drug\w*|smok\w*|cigar\w*|hate[sd]?|stupid|idiot\w*|ugly|fat|damn\w*|slave\w*|"
    r"prison\w*|jail\w*|police\w*|steal\w*|stole\w*|thie\w+|evil|poison\w*|suicid\w*|beat|hit|hits|"
    r"slap\w*|whip\w*|burn\w*|drown\w*|hang\w*|hunt\w*|cut off|butcher\w*|corpse\w*|grave\w*|"
    r"money|dollar\w*|email|internet|phone\w*|website\w*|model|sentence\w*|paragraph\w*|story\w*)\b",
    re.IGNORECASE,
)
PLAIN = re.compile(r"[A-Za-z ,.!?\"'-]+")
SENTENCE = re.compile(r'[^.!?]+[.!?]+"?')


def fit_part(story: str) -> str | None:
    """The part of a raw story that may be learned from: up to its last whole sentence, or to
    where it begins to repeat itself; None where fewer than four sentences are left, or where
    anything is unfit for children or is not plain text."""
    story = " ".join(story.replace("\u2019", "'").split())
    if not PLAIN.fullmatch(story) or UNFIT.search(story):
        return None
    kept: list[str] = []
    seen: set[tuple[str, ...]] = set()
    for sentence in SENTENCE.findall(story):
        words = re.findall(r"[a-z']+", sentence.lower())
        runs = {tuple(words[i : i + 5]) for i in range(len(words) - 4)} | {tuple(words)}
        if not 2 <= len(words) <= WORDS_A_SENTENCE or runs & seen or _stutters(words):
            break
        seen |= runs
        kept.append(sentence.strip())
    while kept and sum(sentence.count('"') for sentence in kept) % 2:
        kept.pop()
    if len(kept) < 4 or not all(_opens_well(sentence) for sentence in kept):
        return None
    return " ".join(kept)


def _stutters(words: list[str]) -> bool:
    """Whether a word of more than three letters comes three times in a sentence."""
    return any(len(word) > 3 and words.count(word) > 2 for word in words)


def _opens_well(sentence: str) -> bool:
    """Whether what is said in quotes, if that comes first, begins with a capital."""
    return not sentence.startswith('"') or sentence.lstrip('" ')[:1].isupper()


def write(folder: str, until: str, first: str, step: str) -> None:
    """A writer's whole life: shards first, first + step, ... those that are not there yet, one
    after another while time.time() is below `until` and whoever started it lives."""
    import torch

    from minivllm import LLM

    torch.set_num_threads(1)
    Path(folder).mkdir(parents=True, exist_ok=True)
    llm = LLM("smollm2-135m", max_num_seqs=128)
    number, parent = int(first), os.getppid()
    while time.time() < float(until) and os.getppid() == parent:
        path = Path(folder, f"{number:04}.json")
        if not path.exists():
            print(write_shard(llm, number, path), flush=True)
        number += int(step)


def write_shard(llm: LLM, number: int, path: Path) -> str:
    """Write the shard and return a line about it."""
    from minivllm import SamplingParams

    began = time.monotonic()
    rng = random.Random(f"stories {number}")
    shown = rng.choice(EXAMPLES) + BETWEEN
    openings = [opening(rng) for _ in range(SHARD)]
    params = [
        SamplingParams(
            temperature=0.7, min_p=0.08, frequency_penalty=0.3, presence_penalty=0.3,
            max_tokens=112, stop=["###", "\n\n"], seed=number * SHARD + i,
        )
        for i in range(SHARD)
    ]  # fmt: skip
    outs = llm.generate([shown + text for text in openings], params)
    raw = [text + out.outputs[0].text for text, out in zip(openings, outs)]
    stories = [story for story in map(fit_part, raw) if story]
    seconds = time.monotonic() - began
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps({"seconds": round(seconds, 1), "stories": stories}, indent=0))
    temporary.replace(path)
    tokens = sum(len(out.outputs[0].token_ids) for out in outs)
    return (
        f"shard {number}: kept {len(stories)} of {SHARD} stories, "
        f"{sum(map(len, stories)):,} letters; {tokens / seconds:.0f} tokens/s, {seconds:.0f} s"
    )


def read_shard(path: Path) -> tuple[float, list[str]]:
    """(seconds that it took, its stories)."""
    shard = json.loads(path.read_text())
    return shard["seconds"], shard["stories"]


def seconds_spent(folder: Path) -> float:
    """By all writers together, on the shards that are there."""
    return sum(read_shard(path)[0] for path in folder.glob("*.json"))
