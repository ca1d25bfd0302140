"""What an experiment on a modelled GPU found: a table, and a drawing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..config import EngineConfig
from .hardware import find_hardware
from .model_shapes import find_model
from .plot import draw_curves, save
from .report import summarize
from .roofline import Deployment
from .simulate import Simulation, simulate_workload
from .workload import WorkloadRequest

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Outcome:
    """A table, and a drawing of it."""

    title: str
    caption: str  # what was modelled
    rows: list[dict[str, Any]]
    draw: Callable[[Figure], None]
    size: tuple[float, float] = (8.0, 4.2)  # of the drawing, inches

    def save(self, path: str) -> None:
        caption = f"Modelled by minivllm: {self.caption}"
        save(path, self.draw, title=self.title, caption=caption, size=self.size)


def deploy(model: str, hardware: str, num_devices: int = 1, **more: Any) -> Deployment:
    return Deployment(find_model(model), find_hardware(hardware), num_devices, **more)


def run(requests: Iterable[WorkloadRequest], deployment: Deployment, **settings: Any) -> Simulation:
    """Simulate with 256 requests and 2,048 tokens a step, unless the settings say otherwise."""
    limits = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    config = EngineConfig(deployment.model.name, **(limits | settings))
    return simulate_workload(requests, deployment, config)


def figures(simulation: Simulation) -> dict[str, float]:
    """The figures of a run, at the usual targets: a second to the first token, then 20 tokens a
    second."""
    return summarize(simulation, slo_ttft_s=1.0, slo_tpot_s=0.05)


def column(rows: Iterable[dict[str, Any]], x: str, y: str) -> list[tuple[float, float]]:
    """Two columns of a table as points."""
    return [(row[x], row[y]) for row in rows]


def draw_kinds(
    figure: Figure, rows: list[dict[str, Any]], *, kind: str, x: str, label: str, ys: Sequence[str]
) -> None:
    """A panel for each of the columns ys, over the column x, with a curve for each kind of row."""
    kinds = dict.fromkeys(row[kind] for row in rows)
    for axes, y in zip(figure.subplots(1, len(ys)), ys):
        curves = {k: column((row for row in rows if row[kind] == k), x, y) for k in kinds}
        draw_curves(axes, curves, x=label, y=y, ylim=(0, None))
