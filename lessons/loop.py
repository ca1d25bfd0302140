"""A loop over a model without memory, run on a real model and timed; and the engine beside it.

The loop may be the reader's own text. What it asks, what it writes and how long each answer took
are noted, whatever it does. Standard library only.
"""

from __future__ import annotations

import platform
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from labs.browser import StepLimit, limit
from lessons.bars import Bar, Bars, Part, bars
from minivllm.entrypoints.llm import LLM
from minivllm.sampling_params import SamplingParams

YOURS = "your loop"
ONE = SamplingParams(temperature=0, max_tokens=1)
PLAIN = "executor.plain.PlainExecutor"
EVERYTHING = ("prefill", "all tokens so far")
STARTER = """def my_loop(step, prompt, max_tokens):
    output = []
    # as long as there are fewer than max_tokens ids in output:
    #     ask step for the next one, and put it at the end of output

    return output
"""


def load(make: Callable[..., LLM] = LLM) -> LLM:
    """The course's smallest model in plain Python, that remembers nothing between requests."""
    return make("tiny", executor=PLAIN, prefix_cache="none", block_size=8, seed=0)


@dataclass(frozen=True, slots=True)
class Question:
    """The model was asked for the token after so many."""

    num_tokens: int
    seconds: float


class TooMany(Exception):
    """The loop asks on and on."""


class Memoryless:
    """`step` of a greedy loop: the id after those it is given. Each question is a request of its
    own, and the engine forgets it at once."""

    def __init__(self, llm: LLM, max_questions: int = 1 << 30) -> None:
        self.llm, self.max_questions = llm, max_questions
        self.questions: list[Question] = []
        self.given: list[int] = []

    def __call__(self, token_ids: Sequence[int]) -> int:
        traced = sys.gettrace()
        sys.settrace(None)  # count the loop's own steps, not the model's
        try:
            if len(self.questions) >= self.max_questions:
                raise TooMany
            begin = time.perf_counter()
            (out,) = self.llm.generate([list(token_ids)], ONE)
            self.questions.append(Question(len(token_ids), time.perf_counter() - begin))
            self.given.append(out.outputs[0].token_ids[0])
            return self.given[-1]
        finally:
            sys.settrace(traced)


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a loop. problem: a sentence for its author, or ""."""

    text: str
    questions: tuple[Question, ...]
    problem: str = ""


def run(source: str, name: str, llm: LLM, prompt: str, max_tokens: int) -> Written:
    """Run the function called `name` of a source text as loop(step, prompt, max_tokens). Never
    raises for what stands in the text; an endless loop is stopped."""
    model = Memoryless(llm, max_tokens + 3)
    try:
        space: dict = {}
        with limit(200_000)():
            exec(compile(source, YOURS, "exec"), space)
            if not callable(space.get(name)):
                return Written("", (), f"There is no function {name}.")
            ids = space[name](model, llm.tokenizer.encode(prompt), max_tokens)
        text, problem = told(ids, model, max_tokens, llm)
    except TooMany:
        text = llm.tokenizer.decode(model.given)
        problem = f"It asks a {max_tokens + 4}th time for {max_tokens} tokens. What ends the loop?"
    except StepLimit:
        text, problem = "", "It loops without asking the model, and was stopped."
    except (Exception, SystemExit) as error:
        text, problem = llm.tokenizer.decode(model.given), place_of(error)
    return Written(text, tuple(model.questions), problem)


def told(ids: object, model: Memoryless, max_tokens: int, llm: LLM) -> tuple[str, str]:
    """The text that a loop returned, and what is odd about it."""
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        return "", f"It returns {ids!r:.60}, and should return the list of the new ids."
    if not all(0 <= i < llm.engine.vocab_size for i in ids):
        return "", "It returns numbers that are no token ids."
    text = llm.tokenizer.decode(ids)
    lengths = {question.num_tokens for question in model.questions}
    if not ids:
        return text, "It returns no ids yet."
    if len(model.questions) > 1 and len(lengths) == 1:
        return text, (f"Each question brought the same {lengths.pop()} tokens, so each answer is "
                      f"the same. What has the model not been told?")  # fmt: skip
    if ids != model.given:
        return text, "It returns other ids than the model gave: the new ones, without the prompt."
    if len(ids) < max_tokens:
        return text, f"{len(ids)} of {max_tokens} tokens. Again, until there are {max_tokens}."
    return text, ""


def place_of(error: BaseException) -> str:
    """An error in a sentence, with the line of the reader's text."""
    if isinstance(error, SyntaxError):
        return f"Line {error.lineno} is not Python: {error.msg}."
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == YOURS]
    where = f"Line {lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {error}".removesuffix(": ")


def work_without_memory(num_prompt: int, num_answer: int) -> int:
    """Tokens through the model for a whole answer, when each question brings them all."""
    return num_answer * num_prompt + num_answer * (num_answer - 1) // 2


def work_with_memory(num_prompt: int, num_answer: int) -> int:
    """The same where each token is computed once; the last one is not."""
    return num_prompt + num_answer - 1


def times_the_work(num_prompt: int, num_answer: int) -> float:
    """How many times the work is without memory."""
    return work_without_memory(num_prompt, num_answer) / work_with_memory(num_prompt, num_answer)


def gaps(llm: LLM, prompt: str | Sequence[int], max_tokens: int) -> list[float]:
    """Seconds until each token of an answer, from the one before it; the first from the call."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    times = [time.perf_counter()]
    for _ in llm.stream(prompt, params):
        times.append(time.perf_counter())
    return [after - before for before, after in pairwise(times)]


def first_two(llm: LLM, prompt: str, num_runs: int = 5) -> tuple[float, float]:
    """The first and the second gap in seconds, each the median of several runs: what else the
    machine does now and then changes neither."""
    first, second = zip(*(gaps(llm, prompt, 2) for _ in range(num_runs)))
    return median(first), median(second)


@dataclass(frozen=True, slots=True)
class Race:
    """Milliseconds for each token of one answer."""

    loop: tuple[float, ...]  # without memory
    engine: tuple[float, ...]
    short: float  # one question of 1 token, the median of several
    long: float  # one of 200

    def pictures(self, about: str) -> tuple[Bars, Bars]:
        """The race, and the two single questions. about: said in the caption."""
        drawn = []
        for number in (1, 2, len(self.loop) // 2, len(self.loop)):
            slow, fast = self.loop[number - 1], self.engine[number - 1]
            kind = EVERYTHING if number == 1 else ("decode", "one token")
            drawn.append(Bar(f"token {number}, loop", (Part(slow, *EVERYTHING),)))
            drawn.append(Bar(f"token {number}, engine", (Part(fast, *kind),)))
        caption = f"Measured with model tiny, {machine()}; {about}."
        two = [("word 1: a question of 1 token", self.short, "decode"),
               ("word 200: a question of 200 tokens", self.long, "prefill")]  # fmt: skip
        much = (f"Without memory, after a prompt of one token: {self.long / self.short:.0f} times "
                f"as long for one word.")  # fmt: skip
        return (
            Bars(tuple(drawn), unit="ms", title="A race, token by token", caption=caption),
            bars(two, unit="ms", title="Word 1 and word 200", caption=much),
        )


def machine() -> str:
    """Where something was measured."""
    where = "in your browser" if sys.platform == "emscripten" else f"on {platform.platform()}"
    return f"Python {platform.python_version()} {where}"


def race(llm: LLM, loop: Callable, prompt: str, max_tokens: int) -> Race:
    """The same answer by a loop(step, prompt_token_ids, max_tokens) and by the engine."""
    ids, model = llm.tokenizer.encode(prompt), Memoryless(llm)
    loop(model, ids, max_tokens)
    engine = gaps(llm, ids, max_tokens)
    single = Memoryless(llm)
    for num_tokens in (1, 1, 1, 1, 200, 1, 1, 1, 1):
        single([index % 256 for index in range(num_tokens)])
    slow, single = ([1e3 * q.seconds for q in m.questions] for m in (model, single))
    long = single.pop(4)
    return Race(tuple(slow), tuple(1e3 * gap for gap in engine), median(single), long)


def main() -> None:
    """python -m lessons.loop [PROMPT]: the race on this machine, as a table."""
    from minivllm.engine.greedy import generate_greedy

    prompt = " ".join(sys.argv[1:]) or "One sunny day, a little fox"
    result = race(load(), generate_greedy, prompt, 24)
    print(f"{prompt!r}, milliseconds by token\n\ntoken   loop without memory   engine")
    for number, (slow, fast) in enumerate(zip(result.loop, result.engine), 1):
        print(f"{number:>5}   {slow:>19.1f}   {fast:>6.1f}")
    print(f"\none question of 1 token {result.short:.1f}, of 200 tokens {result.long:.1f}")


if __name__ == "__main__":
    main()
