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

SHARD = 512

# What the model imitates: a shard shows it two of these. Written for this purpose.
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
    "A little bear wanted to catch the moon. He saw it in the pond and put in his hand. The moon "
    'broke into many small pieces. "Oh no," said the bear. His mother smiled. "Wait," she said. '
    "The water was still again, and there was the moon, as round as before.",
    "Max had a yellow boat made of paper. He put it on the river, and the water took it away. Max "
    "ran after it. By the bridge a duck was sitting in the boat, fast asleep. Max did not want to "
    "wake her. He went home and made a second one.",
    "It was very hot, and the elephant had no shade. A bee said that she knew a good tree. The "
    "elephant walked behind her for a long time. At last they came to a green tree by a lake. The "
    "elephant drank, and then he gave the bee a shower. They both slept until the evening.",
    "Rosa could not find her left shoe. She looked under the bed and behind the door. Her brother "
    "looked in the garden. Then the dog came in, and he had the shoe in his mouth. He wanted to "
    "play. Rosa laughed and threw him a ball, and he gave the shoe back.",
    "The snail was slow, and the rabbit was quick. They both wanted to go to the market. The "
    'rabbit ran, but he forgot his basket and had to go back. "Hello again," said the snail each '
    "time they met. In the end they came to the market together. They bought one big carrot and "
    "shared it.",
    "Sam had to sing at school, and he was shy. His grandpa told him to look at one friend only. "
    "So Sam looked at Nina. She smiled at him and moved her feet. Sam sang the first line, and "
    "then the next. When it was over, everyone clapped. Grandpa clapped the loudest.",
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
FEWEST_SENTENCES = 5


def fit_part(story: str, shown: str = "") -> str | None:
    """The part of a raw story that may be learned from; None where fewer than five sentences are
    left, or where somebody begins to speak without a capital."""
    kept, _ = fit_sentences(story, shown)
    while kept and sum(sentence.count('"') for sentence in kept) % 2:
        kept.pop()
    if len(kept) < FEWEST_SENTENCES or not all(_opens_well(sentence) for sentence in kept):
        return None
    return " ".join(kept)


def fit_sentences(story: str, shown: str = "") -> tuple[list[str], bool]:
    """(whole sentences up to where the story repeats itself or what the model was shown, whether
    it ends there). No sentence, where anything is unfit for children or is not plain text."""
    story = " ".join(story.replace("\u2019", "'").split())
    if not PLAIN.fullmatch(story) or UNFIT.search(story):
        return [], True
    kept: list[str] = []
    seen = _runs(words_of(shown))
    for sentence in SENTENCE.findall(story):
        words = words_of(sentence)
        runs = _runs(words) | {tuple(words)}
        if not 2 <= len(words) <= WORDS_A_SENTENCE or runs & seen or _stutters(words):
            return kept, True
        seen |= runs
        kept.append(sentence.strip())
    return kept, False


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def _runs(words: list[str]) -> set[tuple[str, ...]]:
    """Any five words in a row."""
    return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}


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
    began = time.monotonic()
    rng = random.Random(f"stories {number}")
    shown = "".join(example + BETWEEN for example in rng.sample(EXAMPLES, 2))
    openings = [opening(rng) for _ in range(SHARD)]
    raw, num_tokens = go_on(llm, shown, openings, first_seed=number * SHARD)
    stories = [story for story in (fit_part(text, shown) for text in raw) if story]
    seconds = time.monotonic() - began
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps({"seconds": round(seconds, 1), "stories": stories}, indent=0))
    temporary.replace(path)
    return (
        f"shard {number}: kept {len(stories)} of {SHARD} stories, "
        f"{sum(map(len, stories)):,} letters; {num_tokens / seconds:.0f} tokens/s, {seconds:.0f} s"
    )


def go_on(llm: LLM, shown: str, openings: list[str], first_seed: int) -> tuple[list[str], int]:
    """(each opening with what follows it, how many tokens that took). A story is given up at the
    end of a sentence from which on nothing would be kept."""
    from minivllm import SamplingParams

    engine = llm.engine
    for i, text in enumerate(openings):
        params = SamplingParams(
            temperature=0.65, min_p=0.1, frequency_penalty=0.2, presence_penalty=0.2,
            max_tokens=128, stop=["###", "\n\n"], seed=first_seed + i,
        )  # fmt: skip
        engine.add_request(str(i), shown + text, params)
    texts, num_tokens = list(openings), 0
    while engine.has_unfinished_requests:
        for report in engine.step():
            i, added = int(report.request_id), report.outputs[0]
            texts[i] = openings[i] + added.text
            num_tokens += 1
            if not report.finished and added.text.endswith((".", "!", "?", '"')):
                _, is_over = fit_sentences(texts[i], shown)
                if is_over:
                    engine.abort(report.request_id)
    return texts, num_tokens


def read_shard(path: Path) -> tuple[float, list[str]]:
    """(seconds that it took, its stories)."""
    shard = json.loads(path.read_text())
    return shard["seconds"], shard["stories"]


def seconds_spent(folder: Path) -> float:
    """By all writers together, on the shards that are there."""
    return sum(read_shard(path)[0] for path in folder.glob("*.json"))
