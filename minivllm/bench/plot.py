"""Pictures of modelled runs. matplotlib is loaded when something is drawn, not before.

Two colours carry meaning everywhere: one is prefill, the other decode. Where curves compare other
things, they also differ in their markers, so that nothing hangs on colour alone.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .report import describe
from .simulate import Record, Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PREFILL, DECODE = "#d55e00", "#0072b2"  # told apart by colour-blind people, too
WAITING, INK = "#d9d9d9", "#333333"
OTHERS = (DECODE, "#555555", "#009e73")  # for curves that are neither: with OTHER_LINES
OTHER_LINES = (("o", "-"), ("s", "--"), ("^", ":"))  # markers and strokes
FORMATS = (".svg", ".png")
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "minivllm",  # the same picture is the same file
}


def check_picture(path: str) -> None:
    """Raises ValueError for a file name that is neither .svg nor .png, in a folder that is not
    there, and where there is no matplotlib to draw it."""
    if Path(path).suffix.lower() not in FORMATS:
        raise ValueError(f"a picture is an .svg or a .png file, not {path!r}")
    if not Path(path).parent.is_dir():
        raise ValueError(f"{str(Path(path).parent)!r}, where the picture shall go, is no folder")
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise ValueError(
            f'a picture needs matplotlib: "{sys.executable}" -m pip install matplotlib ({error})'
        ) from error


def save(
    path: str,
    draw: Callable[[Figure], None],
    *,
    title: str,
    caption: str,
    size: tuple[float, float] = (8.0, 4.5),  # inches
) -> None:
    """Let `draw` fill a figure, and write it. The caption says what was modelled."""
    check_picture(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        draw(figure)
        caption = textwrap.fill(caption, width=round(16 * size[0]))
        figure.supxlabel(caption, x=0.01, ha="left", fontsize=8, color="#666666")
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.endswith("svg") else None)


def draw_curves(
    axes: Axes,
    curves: dict[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    colours: Sequence[str] = OTHERS,
    **settings: Any,
) -> None:
    """Named lines with markers. settings: xscale, yscale, ylim, ..., as `Axes.set` takes them."""
    for (name, points), colour, (marker, stroke) in zip(curves.items(), colours, OTHER_LINES):
        xs, ys = zip(*points)
        axes.plot(xs, ys, marker=marker, ls=stroke, markersize=4.5, color=colour, label=name)
    axes.set(xlabel=x, ylabel=y, **settings)
    axes.grid(axis="y", color="#eeeeee")
    axes.set_axisbelow(True)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            plain_numbers(axis)
    if len(curves) > 1:
        axes.legend()


def plain_numbers(axis: Axis) -> None:
    """1, 2, 5, 10, ... on a logarithmic axis, written out."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,.0f}")


def draw_timeline(axes: Axes, records: Sequence[Record], title: str) -> None:
    """One line a request, by arrival: waiting, prefill up to the first token, decode."""
    for index, record in enumerate(records):
        start, first, last = record.admitted_time, record.token_times[0], record.token_times[-1]
        spans = (
            (record.arrival_time, start, WAITING),
            (start, first, PREFILL),
            (first, last, DECODE),
        )
        for left, right, colour in spans:
            axes.barh(index, right - left, left=left, height=0.8, color=colour, linewidth=0)
    axes.set(title=title, xlabel="seconds (modelled)", ylabel="request")
    axes.set_ylim(len(records), -1)  # the first one on top


def legend_of_phases(figure: Figure) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(color=colour, label=label)
        for colour, label in ((WAITING, "waiting"), (PREFILL, "prefill"), (DECODE, "decode"))
    ]
    figure.legend(handles=patches, loc="outside upper right", ncols=3)


def draw_bars(axes: Axes, values: dict[str, float], *, y: str, text: str = "{:.0f}") -> None:
    bars = axes.bar(list(values), list(values.values()), color=DECODE, width=0.6)
    axes.bar_label(bars, [text.format(v) for v in values.values()], padding=2)
    axes.set(ylabel=y, ylim=(0, 1.1 * max(values.values())))
    axes.grid(axis="y", color="#eeeeee")
    axes.set_axisbelow(True)


def draw_run(simulation: Simulation) -> Callable[[Figure], None]:
    """Four views of one run: the queue, the memory, the steps, and how long people waited."""
    steps = simulation.steps
    times = [step.end for step in steps]

    def draw(figure: Figure) -> None:
        (queue, memory), (work, waits) = figure.subplots(2, 2)
        queue.plot(times, [s.num_running for s in steps], color=DECODE, lw=1)
        queue.plot(times, [s.num_waiting for s in steps], color="#555555", lw=1, ls="--")
        queue.legend(["running", "waiting"])
        queue.set(ylabel="requests", ylim=(0, None))
        memory.plot(times, [100 * s.kv_use for s in steps], color=DECODE, lw=1)
        memory.set(ylabel="KV blocks in use (%)", ylim=(0, 102))
        lengths = [1e3 * (s.end - s.start) for s in steps]
        # Thousands of dots: as pixels, also in an .svg.
        work.plot(times, lengths, ".", ms=2, alpha=0.4, mew=0, color=INK, rasterized=True)
        work.set(ylabel="time of a step (ms)", ylim=(0, None))
        for axes in (queue, memory, work):
            axes.set_xlabel("seconds (modelled)")
        draw_waits(waits, simulation.records)

    return draw


def draw_waits(axes: Axes, records: Sequence[Record]) -> None:
    """Which share of first tokens, and of gaps between tokens, took at most how long."""
    shares = [n / 2 for n in range(201)]
    for values, colour, style, label in (
        ([r.ttft_s for r in records], PREFILL, "-", "time to first token"),
        ([gap for r in records for gap in r.itl_s], DECODE, "--", "gap between tokens"),
    ):
        values.sort()
        if values:
            curve = [1e3 * values[round((len(values) - 1) * share / 100)] for share in shares]
            axes.plot(curve, shares, color=colour, ls=style, label=label)
    axes.set(xscale="log", xlabel="at most so many ms", ylabel="% of all", ylim=(0, 102))
    plain_numbers(axes.xaxis)
    axes.legend(loc="lower right")


def save_run(path: str, simulation: Simulation) -> None:
    deployment = simulation.deployment
    save(
        path,
        draw_run(simulation),
        title=describe(deployment),
        caption=f"Modelled by minivllm: real scheduler, virtual clock. Policy "
        f"{simulation.config.policy}, prefix cache {simulation.config.prefix_cache}, "
        f"{len(simulation.records):,} requests.",
        size=(9.0, 6.0),
    )
