"""A model that has learned, written out as a checkpoint folder; and what is said of the two."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from minivllm.tokenizer.bpe import BPETokenizer
from minivllm.tokenizer.bpe_file import save_bpe

from .corpus import RAREST_WORD, Rows
from .learning import LENGTH, RECIPES, Record
from .model import SHAPES, Model
from .openings import opening
from .stories import FEWEST_SENTENCES

NUM_SAMPLES = 20
NUM_JUDGED = 100  # openings on which the draft's tokens are counted
COLOURS = {"small": "#b4510a", "tiny": "#1f6f8b"}

CARD = """# The course's own models

`tiny` and `small` are two Llama models that write short, simple stories. They come with the
engine: `LLM("tiny")` and `LLM("small")` need no network, and where there is no torch either,
`tiny` runs in plain Python. They share one vocabulary of {vocab:,} tokens.

{table}

`tiny` was taught by the stories and by `small`, half each, so that it can serve as its draft: of
the tokens that `small` writes greedily after {judged} openings, {accepted:.0f} % are those that
`tiny` would have written in their place.

![Loss over the steps](loss.png)

## What they learned from

{stories:,} stories with {tokens:,} tokens, each read {epochs} times by `small`. They were
written for this purpose by SmolLM2-135M-Instruct (Apache-2.0) through this engine, from
openings that word lists and seeds give; `training/` holds the lists, the examples that the writer
was shown, and the filter: a story ends where it begins to repeat itself or those examples, and is
left out if it has less than {fewest} sentences, a word unfit for small children, anything but plain
text, or a word that comes less than {rarest} times in all stories. The stories are not kept.
{held_out:,} more were held out; the losses above are of these.

`make models` repeats all of it. The weights are under this project's licence.

## What they cannot do

They know a few hundred words, nothing of the world, no instructions and no other language. Their
sentences are mostly grammatical; their stories are often absurd, and forget who is who after a
few sentences. They were read with at most {positions} positions. Use them to watch an engine at
work, not for what they say.

## Twenty openings, continued by `small`

Temperature 0.6, seeds 0 to {last}; the opening is in italics.

{samples}
"""


def write_checkpoint(name: str, model: Model, tokenizer: BPETokenizer, folder: Path) -> None:
    """folder/config.json, model.safetensors, tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (end,) = tokenizer.eos_token_ids
    config = json.dumps(SHAPES[name].config(end), indent=1)
    (folder / "config.json").write_text(config + "\n")
    save_bpe(tokenizer, folder)
    save_file(model.checkpoint(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def write_card(records: dict[str, Record], rows: Rows, num_held_out: int, out: Path) -> None:
    """out/README.md and out/loss.png. Both checkpoints must be there."""
    lines = ["| | parameters | on disk | loss, nats a token | taught in |", "|---|---|---|---|---|"]
    for name, record in records.items():
        path = out / name / "model.safetensors"
        numbers = sum(tensor.numel() for tensor in load_file(path).values())
        size = sum(file.stat().st_size for file in path.parent.iterdir())
        lines.append(
            f"| `{name}` | {numbers:,} | {size / 1e6:.2f} MB | {record.held_out[-1][1]:.2f} | "
            f"{record.seconds / 60:.0f} min |"
        )
    card = CARD.format(
        vocab=SHAPES["tiny"].vocab, table="\n".join(lines), judged=NUM_JUDGED,
        accepted=100 * accepted_share(out), stories=len(rows.stories), tokens=rows.num_tokens,
        epochs=RECIPES["small"].epochs, rarest=RAREST_WORD,
        fewest=FEWEST_SENTENCES, held_out=num_held_out, positions=LENGTH, last=NUM_SAMPLES - 1,
        samples="\n".join(samples(out / "small")),
    )  # fmt: skip
    (out / "README.md").write_text(card)
    plot_losses(records, out / "loss.png")


def openings(num: int) -> list[str]:
    rng = random.Random("card")
    return [opening(rng) for _ in range(num)]


def samples(folder: Path) -> list[str]:
    """The model's continuations of openings, as a list in Markdown."""
    from minivllm import LLM, SamplingParams

    llm = LLM(str(folder), device="cpu")
    params = [
        SamplingParams(temperature=0.6, max_tokens=120, seed=seed) for seed in range(NUM_SAMPLES)
    ]
    outs = llm.generate(openings(NUM_SAMPLES), params)
    return [f"{n}. *{out.prompt}*{out.outputs[0].text}" for n, out in enumerate(outs, 1)]


def accepted_share(out: Path) -> float:
    """The share of small's greedy tokens that tiny, asked at the same place, would write too."""
    from minivllm import LLM, SamplingParams

    greedy = SamplingParams(temperature=0, max_tokens=60)
    written = LLM(str(out / "small"), device="cpu").generate(openings(NUM_JUDGED), greedy)
    tiny = read_model("tiny", out)
    same = total = 0
    for answer in written:
        ids = torch.tensor([*answer.prompt_token_ids, *answer.outputs[0].token_ids])
        start = len(answer.prompt_token_ids)
        with torch.no_grad():
            guesses = tiny(ids[None, :-1])[0, start - 1 :].argmax(-1)
        same += int((guesses == ids[start:]).sum())
        total += len(ids) - start
    return same / total


def read_model(name: str, out: Path) -> Model:
    """A model as its checkpoint folder has it."""
    model = Model(SHAPES[name])
    tensors = load_file(out / name / "model.safetensors")
    model.load_state_dict(
        {key.removeprefix("model."): tensor.float() for key, tensor in tensors.items()}
    )
    return model


def plot_losses(records: dict[str, Record], path: Path) -> None:
    """The losses of each model over its steps, as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (name, record), side in zip(records.items(), ("top", "bottom")):
        last, loss = record.held_out[-1]
        share = [step / last for step, _ in record.learned]
        axes.plot(share, [y for _, y in record.learned], color=COLOURS[name], alpha=0.35)
        axes.plot(share, [y for _, y in record.held_out], color=COLOURS[name])
        axes.annotate(
            f"{name} {loss:.2f}", (1, loss), xytext=(4, 0), textcoords="offset points",
            va=side, color=COLOURS[name],
        )  # fmt: skip
    axes.set(xlabel="share of its steps", ylabel="nats a token", xlim=(0, 1.13))
    axes.set_ylim(top=4)
    axes.set_title("Loss on held-out stories (faint: on those learned from)", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, metadata={"Software": None})
