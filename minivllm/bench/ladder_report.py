"""The ladder as a table, as a record and as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .plot import DECODE, INK, PREFILL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Two float32 sums of a model's size in different orders may differ by about so much in
# log-probability; tokens that lie closer may change places. bfloat16 has no such bound here.
FLOAT32_GAP = 1e-2


@dataclass(frozen=True, slots=True)
class RungRow:
    """What is told of a rung. Gains are over the rung below; None for the lowest."""

    name: str
    what: str
    dtype: str
    tokens_per_s: float  # new tokens
    seconds: float  # median of the repeats
    seconds_of_runs: tuple[float, ...]
    prefill_share: float  # of the time
    gain: float | None
    roofline_s: float
    roofline_gain: float | None
    num_requests: int
    num_same: int  # texts that are those of the lowest rung
    parted: tuple[tuple[int, int, float], ...]  # request, token, difference of log-probabilities
    ttft_p50_s: float
    num_preemptions: int
    hit_rate: float

    @property
    def is_slower(self) -> bool:
        return self.gain is not None and self.gain < 1

    @property
    def of_roofline(self) -> float:
        """Of the machine's best, how much was reached."""
        return self.roofline_s / self.seconds

    @property
    def is_wrong(self) -> bool:
        """A text is another one for no reason that arithmetic gives."""
        widest = max((gap for _, _, gap in self.parted), default=0.0)
        return self.dtype == "float32" and widest > FLOAT32_GAP


def as_record(rows: Sequence[RungRow]) -> list[dict[str, Any]]:
    """For JSON."""
    more = ("is_slower", "of_roofline", "is_wrong")
    return [asdict(row) | {name: getattr(row, name) for name in more} for row in rows]


def times(value: float | None) -> str:
    """x2.31, and x118 for large ones."""
    if value is None:
        return "-"
    return f"x{value:.2f}" if value < 10 else f"x{value:,.0f}"


def share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.1 else f"{value:.1%}"


def ladder_table(rows: Sequence[RungRow]) -> str:
    """80 columns at most. "roofline": the gain it predicts; "reached": how much of the machine's
    best; "texts": how many are those of the lowest rung."""
    lines = [
        f"{'':18}{'tok/s':>8}{'seconds':>9}{'gain':>8}{'roofline':>10}{'reached':>9}{'texts':>9}"
    ]
    for row in rows:
        texts = f"{row.num_same}/{row.num_requests}"
        speed = (
            f"{row.tokens_per_s:,.1f}" if row.tokens_per_s < 1000 else f"{row.tokens_per_s:,.0f}"
        )
        mark = "  SLOWER" if row.is_slower else ""
        lines.append(
            f"{row.name:18}{speed:>8}{row.seconds:9.2f}{times(row.gain):>8}"
            f"{times(row.roofline_gain):>10}{share(row.of_roofline):>9}{texts:>9}{mark}"
        )
    wrapped = [textwrap.fill(note, width=80, subsequent_indent="  ") for note in notes(rows)]
    return "\n".join([*lines, "", *wrapped])


def notes(rows: Sequence[RungRow]) -> list[str]:
    """What each rung is, and where texts part."""
    lines = [f"{row.name}: {row.what}" for row in rows]
    for row in rows:
        if row.parted:
            gap = max(gap for _, _, gap in row.parted)
            verdict = "WRONG: " if row.is_wrong else ""
            lines.append(
                f"{verdict}{row.name}: {len(row.parted)} of {row.num_requests} texts part, where "
                f"two tokens were at most {gap:.2g} apart"
            )
    return lines


def draw_ladder(rows: Sequence[RungRow]) -> Callable[[Figure], None]:
    """Three panels, a line for each rung: how fast, what was gained, and where the time went."""

    def draw(figure: Figure) -> None:
        speed, gains, phases = figure.subplots(1, 3, sharey=True, width_ratios=(5, 2.6, 3))
        draw_speed(speed, rows)
        draw_gains(gains, rows)
        draw_phases(phases, rows)
        speed.set_yticks(range(len(rows)), [row.name for row in rows])
        speed.set_ylim(len(rows) - 0.5, -0.5)  # the lowest rung first

    return draw


def draw_speed(axes: Axes, rows: Sequence[RungRow]) -> None:
    from .plot import plain_numbers

    places = range(len(rows))
    measured = [row.tokens_per_s for row in rows]
    at_best = [row.tokens_per_s / row.of_roofline for row in rows]
    axes.hlines(places, measured, at_best, color="#dddddd", lw=2)
    axes.plot(at_best, places, "|", color="#777777", ms=11, mew=2, label="roofline")
    axes.plot(measured, places, "o", color=INK, ms=7, label="measured")
    for place, value in zip(places, measured):
        text = f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
        axes.annotate(text, (value, place), (0, 7), textcoords="offset points", ha="center",
                      fontsize=8)  # fmt: skip
    axes.set(xscale="log", title="new tokens a second")
    low, high = min(measured), max(at_best)
    axes.set_xlim(low / 1.6, high * 1.6)
    plain_numbers(axes.xaxis)
    axes.grid(axis="x", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2)


def draw_gains(axes: Axes, rows: Sequence[RungRow]) -> None:
    """In words: gains of 1.1 and of 100 have no common scale on which both can be read."""
    axes.set(xlim=(0, 2), xticks=[])
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(left=False)
    heads = axes.get_xaxis_transform()
    axes.text(0.45, 1.015, "gain", transform=heads, ha="center", fontsize=11)
    axes.text(1.5, 1.015, "roofline's", transform=heads, ha="center", fontsize=11, color="#666666")
    for place, row in enumerate(rows):
        slower = "\nslower" if row.is_slower else ""
        axes.text(0.45, place, times(row.gain) + slower, ha="center", va="center",
                  fontweight="bold", color="#b00020" if slower else INK)  # fmt: skip
        axes.text(1.5, place, times(row.roofline_gain), ha="center", va="center", color="#666666")


def draw_phases(axes: Axes, rows: Sequence[RungRow]) -> None:
    places = range(len(rows))
    prefill = [100 * row.prefill_share for row in rows]
    axes.barh(places, prefill, height=0.55, color=PREFILL, label="prefill")
    axes.barh(places, [100 - p for p in prefill], left=prefill, height=0.55, color=DECODE,
              label="decode")  # fmt: skip
    axes.set(title="where the time went (%)", xlim=(0, 100))
    axes.tick_params(left=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2)
