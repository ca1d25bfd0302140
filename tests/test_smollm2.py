"""The real model in float32 against transformers on the same dequantized weights."""

from __future__ import annotations

import random

import pytest
import torch
import transformers
from by_hand import Forced, load_model, make_runner
from tiny_models import oracle

from minivllm.outputs import LAST_SAMPLED, NewRequest, Row, SchedulerOutput
from minivllm.sampling_params import SamplingParams

pytestmark = pytest.mark.slow

# Prompts of so many tokens, around block borders and between.
LENGTHS = (1, 2, 3, 5, 8, 15, 16, 17, 24, 31, 32, 33, 48, 50, 64, 65, 96, 100, 128, 160, 250, 400)
NUM_STEPS = 16
BLOCK_SIZE = 16
TEXT = """
A librarian in a small harbour town kept a list of every question that nobody had been able to
answer. Some were short: how deep is the bay, who painted the ceiling, why do the bells ring at
noon and not at one? Others filled a page. On rainy days she took the list down and tried again.
The bay was measured by a schoolteacher with a rope and a stone; it is 31.5 metres deep beyond the
second pier. The ceiling had been painted by two sisters, Ines and Maria, in the spring of 1874,
and the bill for it came to 212 crowns. As for the bells, the answer was in an old letter: "At one
o'clock the ferry leaves, and the captain will not be hurried."

def area(shape):
    # squares and circles only
    if shape.kind == "square":
        return shape.side ** 2
    return 3.14159 * shape.radius ** 2

Water boils at 100 degrees Celsius at sea level, and at about 93 degrees on a mountain of 2,000
metres. The reason is that air presses less strongly there. First, fill the pot. Second, put the
lid on, since steam that escapes takes heat with it. Third, wait; a watched pot boils as soon as
any other, although nobody believes it. Once upon a time there was a king who had three sons, and
the youngest of them could not count to ten. The capital of France is Paris, the capital of Italy
is Rome, and the capital of Japan is Tokyo.
"""


@pytest.fixture(scope="module")
def judge(smollm2_hf):
    return oracle(smollm2_hf)


@pytest.fixture(scope="module")
def text_ids(smollm2_hf) -> list[int]:
    return transformers.AutoTokenizer.from_pretrained(smollm2_hf)(TEXT)["input_ids"]


def greedy(path: str, prompts: list[list[int]], num: int) -> list[list[int]]:
    """num greedy ids for each prompt, all in one batch after a step of prefill each."""
    counts = [-(-(len(p) + num) // BLOCK_SIZE) for p in prompts]
    order = list(range(1, 1 + sum(counts)))
    random.Random(0).shuffle(order)
    runner = make_runner(path, torch.float32, num_blocks=1 + sum(counts), block_size=BLOCK_SIZE)
    answers: list[list[int]] = []
    for r, prompt in enumerate(prompts):
        table = tuple(order.pop() for _ in range(counts[r]))
        new = NewRequest(str(r), tuple(prompt), len(prompt), SamplingParams(temperature=0))
        row = Row(str(r), 0, tuple(prompt), 1, table_start=(0,), table_ids=(table,))
        runner.execute(SchedulerOutput(r, new_requests=(new,), rows=(row,)))
        answers.append(list(runner.sample(r).sampled[0]))
    for step in range(1, num):
        rows = tuple(
            Row(str(r), len(p) + step - 1, (LAST_SAMPLED,), 1, table_start=(counts[r],))
            for r, p in enumerate(prompts)
        )
        runner.execute(SchedulerOutput(1000 + step, rows=rows))
        for answer, (token_id,) in zip(answers, runner.sample(1000 + step).sampled, strict=True):
            answer.append(token_id)
    return answers


def bound(scores: torch.Tensor) -> float:
    """How far two right float32 computations may lie apart: 64 roundings of the largest score,
    for the sums of 30 layers. Seen: 15."""
    return 64 * torch.finfo(torch.float32).eps * scores.abs().max().item()


@torch.inference_mode()
def test_scores_of_the_real_model_are_transformers(smollm2, judge, text_ids):
    """In chunks that do not end where blocks do."""
    ids = torch.tensor(text_ids[:150])
    want = judge(ids[None]).logits[0]
    forced = Forced(*load_model(smollm2, torch.float32), torch.float32, BLOCK_SIZE)
    (got,) = forced.logits([ids], [[70, 1, 1, 13, 65]])
    assert (got - want).abs().max() < bound(want)


@torch.inference_mode()
def test_greedy_ids_of_the_real_model_are_transformers(smollm2, judge, text_ids):
    """22 prompts, 16 ids each, in one batch. transformers is told our ids and must choose each
    itself, up to the first place where its two best scores are closer than the bound allows both
    sides together."""
    text = text_ids * 2
    prompts = [text[13 * r : 13 * r + n] for r, n in enumerate(LENGTHS)]
    assert [len(p) for p in prompts] == list(LENGTHS)
    num_compared = 0
    for prompt, answer in zip(prompts, greedy(smollm2, prompts, NUM_STEPS), strict=True):
        scores = judge(torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :]
        best = scores.topk(2)
        gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
        print(f"{len(prompt)} tokens, smallest gap {min(gaps):.4f}")
        for step, gap in enumerate(gaps):
            if gap < 2 * bound(scores):
                print(f"  compared up to id {step}: gap {gap:.6f}")
                break
            assert answer[step] == best.indices[step, 0], f"{len(prompt)} tokens, id {step}"
            num_compared += 1
    assert num_compared > 0.9 * NUM_STEPS * len(LENGTHS), "the bound lets too much pass"
