"""Pictures of a curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias.curves.curve import Curve
from posbias.errors import PosbiasError
from posbias.extras import optional
from posbias.wording import label, printable
from posbias.writing import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Up to this many segments get a line of their own; more would hide each other.
_MOST_SEGMENTS = 8


def draw_curve(
    curve: Curve, ax: Axes | None = None, *, truth: Sequence[float] | Any = None, joint: bool = False
) -> Axes:
    """Draw a curve with its intervals, its joint band if asked for, its segments, and the truth where it is known."""
    if ax is None:
        figure = optional("matplotlib.figure", "Plots need").Figure(figsize=(7, 4.2), layout="constrained")
        ax = figure.add_subplot()
    shown = list(curve.segments.items())[:_MOST_SEGMENTS]
    _draw_line(ax, curve, "all" if shown else curve.estimator, "C0", wide=True)
    if joint:
        ends = curve.joint()
        every = np.arange(1, curve.max_rank + 1)
        for side, name in zip(ends.T, (f"joint {100 * (curve.level or 0):g}% band", None), strict=True):
            ax.plot(every, side, color="C0", linestyle="--", linewidth=0.9, label=name)
    for i, (key, part) in enumerate(shown, start=1):
        _draw_line(ax, part, label(key), f"C{i}", wide=False)
    if truth is not None:
        ax.plot(
            np.arange(1, len(truth) + 1), truth, color="black", linestyle=":", linewidth=1.2, label="truth", zorder=3
        )
    ax.set_xlabel("rank")
    ax.set_ylabel("propensity relative to rank 1")
    ax.set_ylim(bottom=0)
    ranks = [p.position for p in curve.positions]
    ax.set_xticks(ranks if len(ranks) <= 25 else ranks[::5])
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    rest = len(curve.segments) - len(shown)
    title = curve.interval_name + (f"; {rest} more segments not drawn" if rest else "")
    ax.legend(frameon=False, title=title)
    return ax


def _draw_line(ax: Axes, curve: Curve, name: str, color: str, *, wide: bool) -> None:
    def column(name: str) -> Any:
        values = [getattr(p, name) for p in curve.positions]
        return np.array([np.nan if v is None else v for v in values], dtype=float)

    ranks = column("position")
    ax.fill_between(ranks, column("low"), column("high"), color=color, alpha=0.18, linewidth=0)
    ax.plot(ranks, column("propensity"), color=color, marker="o", markersize=4 if wide else 3, label=_legend(name))


def _legend(name: str) -> str:
    """Return a text as a legend shows it: matplotlib reads $ as mathematics, and leaves out what begins with _."""
    text = printable(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def save_plot(curve: Curve, path: str, *, truth: Sequence[float] | None = None, joint: bool = False) -> None:
    """Write the picture of a curve as PNG or SVG, whole or not at all."""
    ending = path.rsplit(".", 1)[-1].lower()
    if ending not in ("png", "svg", "pdf"):
        raise PosbiasError(f"A plot can be written as .png, .svg or .pdf, not as {path!r}.")
    figure: Any = draw_curve(curve, truth=truth, joint=joint).figure
    with written_whole(path) as part:
        figure.savefig(part, format=ending, dpi=160)
