"""Five pictures for whoever has never looked inside: text, tokens, model, scores, next token.

All of one real text and one real model: `look` asks it, the rest draws what it said. Standard
library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from lessons.glossary import term
from lessons.svg import MONO_WIDTH, NARROW, Sheet, table, wrapped
from minivllm.entrypoints.llm import LLM
from minivllm.executor.plain_model import PlainModel
from minivllm.sampling_params import SamplingParams

NUM_SHOWN = 5  # scores in the fourth picture
LINE = 22


@dataclass(frozen=True, slots=True)
class Look:
    """What a model makes of a text."""

    text: str
    tokens: tuple[tuple[int, str], ...]  # (id, what it stands for)
    best: tuple[tuple[str, float], ...]  # the likeliest next ones: (text, share of 1)
    vocab_size: int
    num_weights: int

    @property
    def next(self) -> str:
        return self.best[0][0]


def look(llm: LLM, text: str) -> Look:
    """Ask the model for the token after a text. Raises ValueError if it is too long or empty."""
    return look_after(llm, text, llm.tokenizer.encode(text))


def look_after(llm: LLM, text: str, token_ids: Sequence[int]) -> Look:
    """`look` at a text that is in tokens already."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=NUM_SHOWN)
    (out,) = llm.generate([list(token_ids)], params)
    tokens = tuple((i, piece(llm, i)) for i in out.prompt_token_ids)
    scored = sorted(out.outputs[0].logprobs[0].items(), key=lambda item: item[1].rank)
    best = tuple((piece(llm, i), math.exp(one.logprob)) for i, one in scored[:NUM_SHOWN])
    return Look(text, tokens, best, llm.engine.vocab_size, num_weights(llm))


def piece(llm: LLM, token_id: int) -> str:
    """A token as a person can see it: a space is drawn, what has no sign is told by its bytes."""
    raw = llm.tokenizer.token_bytes(token_id)
    if llm.tokenizer.is_special(token_id):
        return "start" if token_id == llm.tokenizer.bos_token_id else "end"
    shown = raw.decode(errors="replace").replace(" ", "␣").replace("\n", "⏎")
    is_seen = shown.isprintable() and "\ufffd" not in shown
    return shown if is_seen else " ".join(f"{byte:02x}" for byte in raw)


def num_weights(llm: LLM) -> int:
    """How many numbers the model of a PlainExecutor is made of."""
    model: PlainModel = llm.engine.core.executor.model
    total = sum(map(len, model.embedding)) + len(model.norm)
    if model.head.weight is not model.embedding:
        total += sum(map(len, model.head.weight))
    for layer in model.layers:
        for name in layer.__slots__:
            part = getattr(layer, name)
            rows = part if isinstance(part, list) else part.weight
            total += sum(len(row) for row in rows) if isinstance(rows[0], list) else len(rows)
            total += len(getattr(part, "bias", None) or ())
    return total


def text_svg(seen: Look) -> str:
    sheet = Sheet(NARROW)
    lines = wrapped(seen.text, NARROW - 40, MONO_WIDTH)
    sheet.box(0, 0, NARROW, LINE * len(lines) + 20, "free", 6)
    for number, line in enumerate(lines):
        sheet.text(14, 24 + LINE * number, line, mono=True)
    x = 14 + MONO_WIDTH * (len(lines[-1]) + 0.5)
    sheet.text(x, 24 + LINE * (len(lines) - 1), "?", mono=True, bold=True, role="decode")
    return sheet.svg("The text", f"A text that stops: {seen.text} What comes next?")


def tokens_svg(seen: Look) -> str:
    sheet = Sheet(NARROW)
    x, y = 0.0, 0.0
    for token_id, shown in seen.tokens:
        width = MONO_WIDTH * max(len(shown), len(str(token_id))) + 12
        if x and x + width > NARROW:
            x, y = 0.0, y + 54
        sheet.box(x, y, width, 24, "used", 4)
        sheet.text(x + width / 2, y + 17, shown, anchor="middle", mono=True)
        sheet.text(
            x + width / 2, y + 40, token_id, anchor="middle", mono=True, role="muted", size=12
        )
        x += width + 4
    said = ", ".join(f"{shown} is {token_id}" for token_id, shown in seen.tokens)
    return sheet.svg(
        "The tokens", f"The text in {len(seen.tokens)} pieces, each with its number: {said}."
    )


def model_svg(seen: Look) -> str:
    sheet = Sheet(NARROW)
    middle = NARROW / 2
    sheet.text(middle, 14, f"{len(seen.tokens)} numbers in", anchor="middle")
    sheet.line(middle, 20, middle, 40, "ink", 1.5, arrow=True)
    sheet.box(40, 44, NARROW - 80, 62, "new", 8)
    sheet.text(middle, 70, "the model", anchor="middle", bold=True)
    sheet.text(middle, 91, f"{seen.num_weights:,} learnt numbers", anchor="middle")
    sheet.line(middle, 110, middle, 130, "ink", 1.5, arrow=True)
    sheet.text(middle, 148, f"{seen.vocab_size:,} scores", anchor="middle")
    return sheet.svg(
        "The model", f"{len(seen.tokens)} token ids go in, {seen.vocab_size:,} scores come out."
    )


def scores_svg(seen: Look) -> str:
    sheet = Sheet(NARROW)
    label = MONO_WIDTH * max(len(shown) for shown, _ in seen.best) + 12
    room = NARROW - label - 52
    top = seen.best[0][1]
    for number, (shown, share) in enumerate(seen.best):
        y = LINE * number
        kind = "decode" if number == 0 else "used"
        width = max(room * share / top, 2)
        sheet.text(label - 10, y + 16, shown, anchor="end", mono=True, bold=number == 0)
        sheet.box(label, y + 2, width, LINE - 5, kind)
        sheet.text(label + width + 6, y + 16, percent(share))
    rest = max(0.0, 1 - sum(share for _, share in seen.best))
    y = LINE * len(seen.best) + 16
    sheet.text(
        0, y, f"all {seen.vocab_size - len(seen.best):,} others: {percent(rest)}", role="muted"
    )
    said = ", ".join(f"{shown} {percent(share)}" for shown, share in seen.best)
    return sheet.svg("The scores", f"The likeliest next tokens: {said}.")


def next_svg(seen: Look) -> str:
    sheet = Sheet(NARROW)
    lines = wrapped(seen.text, NARROW - 40, MONO_WIDTH)
    shown = seen.next
    if len(lines[-1]) + len(shown) + 1 > (NARROW - 40) / MONO_WIDTH:
        lines.append("")
    sheet.box(0, 0, NARROW, LINE * len(lines) + 20, "free", 6)
    for number, line in enumerate(lines):
        sheet.text(14, 24 + LINE * number, line, mono=True)
    y = 24 + LINE * (len(lines) - 1)
    x = 14 + MONO_WIDTH * len(lines[-1]) + 4
    width = MONO_WIDTH * len(shown) + 8
    sheet.box(x, y - 16, width, 22, "decode", 4)
    sheet.text(x + 4, y, shown, mono=True, bold=True)
    end = LINE * len(lines) + 20
    sheet.line(NARROW - 30, end, NARROW - 30, end + 16, "decode", 1.5)
    sheet.line(NARROW - 30, end + 16, 30, end + 16, "decode", 1.5)
    sheet.line(30, end + 16, 30, end + 1, "decode", 1.5, arrow=True)
    sheet.text(
        NARROW / 2, end + 34, "and again, with one token more", anchor="middle", role="muted"
    )
    return sheet.svg("The next token", f"{shown} is appended, and the model is asked again.")


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def pictures(seen: Look) -> Iterator[tuple[str, str, str]]:
    """(title, SVG, caption in HTML) of the five."""
    begins = " The first one says: here a text begins." if seen.tokens[0][1] == "start" else ""
    yield "Text", text_svg(seen), f"A {term('prompt')}: something to go on from."
    yield (
        "Tokens", tokens_svg(seen),
        f"A {term('tokenizer')} cuts it into {term('token', 'tokens')}. Each has a number, its "
        f"{term('token id', 'id')}; ␣ is a space.{begins}",
    )  # fmt: skip
    yield (
        "Model", model_svg(seen),
        f"The {term('model')} takes all ids at once. Its {term('weights')} never change, and it "
        f"remembers nothing from one question to the next.",
    )  # fmt: skip
    yield (
        "Scores", scores_svg(seen),
        f"One {term('score')} for each token of its {term('vocabulary')}, shown here as the "
        f"chance it gives each.",
    )  # fmt: skip
    yield (
        "Next token", next_svg(seen),
        f"Somebody takes one: here always the best, which is called {term('greedy')}. It goes to "
        f"the end of the text, and everything starts again.",
    )  # fmt: skip


def twin(seen: Look) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The five pictures as a table."""
    ids = " ".join(f"{token_id} {shown}" for token_id, shown in seen.tokens)
    best = ", ".join(f"{shown} {percent(share)}" for shown, share in seen.best)
    return ("picture", "shows"), (
        ("text", seen.text),
        ("tokens", ids),
        (
            "model",
            f"{len(seen.tokens)} ids in, {seen.num_weights:,} weights, {seen.vocab_size:,} scores",
        ),
        ("scores", best),
        ("next token", seen.next),
    )


def primer(seen: Look) -> str:
    """The five pictures as HTML, side by side where there is room, and their table."""
    parts = "".join(
        f"<li><h4>{escape(title)}</h4>{svg}<p>{says}</p></li>"
        for title, svg, says in pictures(seen)
    )
    heading, rows = twin(seen)
    return (
        f'<style>{CSS}</style><ol class="tt-primer">{parts}</ol><details class="tt-twin">'
        f"<summary>the same as a table</summary>{table(heading, rows, 'Five pictures')}</details>"
    )


def story(prompt: str, answer: str, problem: str = "") -> str:
    """A prompt and what was written after it, as HTML; and what is odd about that."""
    said = f'<p class="tt-odd">{escape(problem)}</p>' if problem else ""
    return f'<div class="tt-story"><p>{escape(prompt)}<mark>{escape(answer)}</mark></p>{said}</div>'


def asked(num_presses: int, num_answer: int, num_question: int, is_over: bool) -> str:
    """What stands below an answer that a reader asks for token by token. num_question: tokens of
    the next question. is_over: whether the model has ended the answer itself."""
    said = f"Tokens that you asked for: {min(num_presses, num_answer)}."
    if num_presses < num_answer:
        return f"{said} The next question brings {num_question} tokens, and the model would say:"
    why = (
        "the model chose its end token, by which it says that it is done"
        if is_over
        else f"the model would go on, but this page asks for {num_answer} tokens and no more, "
        "since each question takes longer than the one before"
    )
    return f"{said} Here it ends: {why}. To start again, change the beginning of the story."


CSS = """
.tt-primer{list-style:none;padding:0;margin:1rem 0;display:grid;gap:1.4rem 2rem;
grid-template-columns:repeat(auto-fill,minmax(min(312px,100%),1fr));counter-reset:tt}
.tt-primer li{margin:0;max-width:340px;counter-increment:tt}
.tt-primer h4{margin:0 0 .5rem;font:600 15px var(--tt-sans);color:var(--tt-ink)}
.tt-primer h4::before{content:counter(tt) " ";color:var(--tt-decode)}
.tt-primer svg{display:block;max-width:100%;height:auto}
.tt-primer p{margin:.5rem 0 0;font:14px/1.5 var(--tt-sans);color:var(--tt-ink)}
.tt-story{max-width:680px;margin:.8rem 0;padding:.1rem 0 .1rem 1rem;
border-left:4px solid var(--tt-decode);color:var(--tt-ink)}
.tt-story p{margin:.3rem 0;font:17px/1.6 var(--tt-sans);overflow-wrap:anywhere}
.tt-story mark{background:var(--tt-decode-soft);color:var(--tt-ink);border-radius:3px}
.tt-story .tt-odd{font:600 15px/1.5 var(--tt-sans);color:var(--tt-warn)}
abbr.mv-term{text-decoration:underline dotted;text-underline-offset:.2em;cursor:help}
"""
