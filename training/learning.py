"""The loop that teaches a model the stories: steps, learning rate, checkpoints, loss."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from .corpus import Rows
from .model import SHAPES, Model

ROWS_A_STEP = 8
LENGTH = 512
EVERY = 50  # steps between looks at the held-out stories, and between checkpoints
WARMUP = 60


@dataclass(frozen=True, slots=True)
class Recipe:
    """epochs: how often every story is read. peak: the highest learning rate. taught_by: the model
    whose probabilities are half of what is learned (Hinton et al., 2015), so that one guesses what
    the other would say."""

    epochs: int
    peak: float
    taught_by: str | None = None

    def num_steps(self, rows: Rows) -> int:
        return max(1, round(self.epochs * rows.num_tokens / (ROWS_A_STEP * rows.length)))


RECIPES = {
    "small": Recipe(epochs=5, peak=2e-3),
    "tiny": Recipe(epochs=7, peak=6e-3, taught_by="small"),
}


@dataclass
class Record:
    """What is plotted: (step, loss) pairs, in nats a token."""

    learned: list[tuple[int, float]] = field(default_factory=list)
    held_out: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0


def learn(
    name: str, rows: Rows, held_out: Rows, folder: Path, until: int | None = None
) -> tuple[Model, Record]:
    """The model `name`, taught by its recipe; goes on from folder/NAME.pt where that is there, and
    stops early after step `until`.

    A step's rows and the first weights follow from its number, so a run that was interrupted ends
    as one that was not, up to the rounding of sums.
    """
    recipe, shape = RECIPES[name], SHAPES[name]
    num_steps = recipe.num_steps(rows)
    last = min(until or num_steps, num_steps)
    torch.manual_seed(0)
    model = Model(shape)
    decayed = [w for w in model.parameters() if w.dim() == 2]
    others = [w for w in model.parameters() if w.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.peak, betas=(0.9, 0.95), fused=True)
    teacher = None
    if recipe.taught_by is not None:
        teacher = load(recipe.taught_by, folder)
    path = folder / f"{name}.pt"
    record, done = Record(), 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        record, done = Record(**state["record"]), state["step"]
        print(f"{name}: goes on from step {done}", flush=True)

    judged = held_out.epoch(0)[:32]
    began = time.monotonic() - record.seconds
    losses: list[float] = []
    for step, batch in batches(rows, done, last):
        for group in optimizer.param_groups:
            group["lr"] = recipe.peak * share_of_peak(step, num_steps)
        loss = one_step(model, teacher, batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
        if step % EVERY == 0 or step == last:
            record.seconds = time.monotonic() - began
            record.learned.append((step, sum(losses) / len(losses)))
            record.held_out.append((step, judge(model, judged)))
            losses.clear()
            save(path, model, optimizer, record, step)
            left = record.seconds / step * (num_steps - step)
            print(
                f"{name}: step {step} of {num_steps}, loss {record.learned[-1][1]:.3f}, "
                f"held out {record.held_out[-1][1]:.3f}; about {left / 60:.0f} min left",
                flush=True,
            )
    return model, record


def batches(rows: Rows, done: int, last: int) -> Iterator[tuple[int, Tensor]]:
    """(step, ids [ROWS_A_STEP, length + 1]) of steps done + 1 to last."""
    step, epoch = 0, 0
    while step < last:
        ids = rows.epoch(epoch)
        if len(ids) < ROWS_A_STEP:
            raise ValueError(f"{len(ids)} rows are too few for one step: write more stories")
        for start in range(0, len(ids) - ROWS_A_STEP + 1, ROWS_A_STEP):
            step += 1
            if done < step <= last:
                yield step, ids[start : start + ROWS_A_STEP]
        epoch += 1


def share_of_peak(step: int, num_steps: int) -> float:
    """The learning rate: up in a line, then down along half a cosine to a hundredth."""
    if step < WARMUP:
        return step / WARMUP
    part = (step - WARMUP) / max(1, num_steps - WARMUP)
    return 0.01 + 0.99 * (1 + math.cos(math.pi * part)) / 2


def one_step(model: Model, teacher: Model | None, batch: Tensor) -> float:
    """Gradients of a batch's loss; the loss itself, in nats a token, without the teacher's part."""
    ids, targets = batch[:, :-1], batch[:, 1:].flatten()
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(ids).flatten(0, 1)
    scores = scores.float()
    loss = F.cross_entropy(scores, targets)
    whole = loss
    if teacher is not None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            wanted = teacher(ids).flatten(0, 1)
        wanted = wanted.float().log_softmax(-1)
        apart = F.kl_div(scores.log_softmax(-1), wanted, log_target=True, reduction="batchmean")
        whole = (loss + apart) / 2
    whole.backward()
    return loss.item()


@torch.no_grad()
def judge(model: Model, rows: Tensor) -> float:
    """Loss on rows, in nats a token."""
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(rows[:, :-1]).flatten(0, 1)
    return F.cross_entropy(scores.float(), rows[:, 1:].flatten()).item()


def save(path: Path, model: Model, optimizer: torch.optim.Optimizer, record: Record, step: int):
    """Whole or not at all."""
    temporary = path.with_suffix(".partial")
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "record": asdict(record),
        "step": step,
    }
    torch.save(state, temporary)
    temporary.replace(path)


def load(name: str, folder: Path) -> Model:
    """A model as its last checkpoint has it. Raises ValueError where there is none."""
    path = folder / f"{name}.pt"
    if not path.exists():
        raise ValueError(f"{path} is not there: python -m training learn")
    model = Model(SHAPES[name])
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    return model


def read_record(name: str, folder: Path) -> Record:
    """What was measured while it learned."""
    return Record(**torch.load(folder / f"{name}.pt", weights_only=True)["record"])
