"""A model that has learned, written out as a checkpoint folder; and what is said of the two."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from minivllm.tokenizer.bpe import BPETokenizer
from minivllm.tokenizer.bpe_file import save_bpe

from .learning import Record
from .model import SHAPES, Model

NUM_OPENINGS = 20


def write_checkpoint(name: str, model: Model, tokenizer: BPETokenizer, folder: Path) -> None:
    """folder/config.json, model.safetensors, tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (end,) = tokenizer.eos_token_ids
    config = json.dumps(SHAPES[name].config(end), indent=1)
    (folder / "config.json").write_text(config + "\n")
    save_bpe(tokenizer, folder)
    save_file(model.checkpoint(), folder / "model.safetensors", metadata={"format": "pt"})


def plot_losses(records: dict[str, Record], path: Path) -> None:
    """The losses of each model over its steps, as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (name, record), colour in zip(records.items(), ("#b4510a", "#1f6f8b")):
        share = [step / record.learned[-1][0] for step, _ in record.learned]
        axes.plot(share, [loss for _, loss in record.learned], color=colour, alpha=0.35)
        axes.plot(share, [loss for _, loss in record.held_out], color=colour, label=name)
        axes.annotate(
            f"{name} {record.held_out[-1][1]:.2f}",
            (1, record.held_out[-1][1]),
            textcoords="offset points",
            xytext=(-4, 6),
            ha="right",
            color=colour,
        )
    axes.set(xlabel="share of its steps", ylabel="nats a token", ylim=(1, 4))
    axes.set_title("Loss on stories never learned from (faint: on those learned from)", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
