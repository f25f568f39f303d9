"""Pictures of a curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias.curves.curve import Curve
from posbias.pictures import TRUTH, draw_interval, dressed, new_axes, over_ranks, save_picture
from posbias.wording import label, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Up to this many segments get a line of their own; more would hide each other.
_MOST_SEGMENTS = 8
_COLOR = "#1f5fa8"


def draw_curve(
    curve: Curve, ax: Axes | None = None, *, truth: Sequence[float] | Any = None, joint: bool = False
) -> Axes:
    """Draw a curve with its intervals, its joint band if asked for, its segments, and the truth where it is known."""
    if ax is None:
        _, ax = new_axes()
    axes = dressed(ax)
    shown = list(curve.segments.items())[:_MOST_SEGMENTS]
    _draw_line(axes, curve, "all" if shown else curve.estimator, _COLOR, markersize=4.5)
    if joint:
        ends = curve.joint()
        every = np.arange(1, curve.max_rank + 1)
        for side, name in zip(ends.T, (f"joint {100 * (curve.level or 0):g}% band", None), strict=True):
            axes.plot(every, side, color=_COLOR, linestyle=":", linewidth=1.1, label=name)
    for i, (key, part) in enumerate(shown, start=1):
        _draw_line(axes, part, label(key), f"C{i}", markersize=3)
    if truth is not None:
        axes.plot(np.arange(1, len(truth) + 1), truth, label="truth", **TRUTH)
    over_ranks(axes, [p.position for p in curve.positions])
    axes.set_title(_legend(f"Examination by rank: {curve.estimator}, {curve.interval_name}"), fontsize="medium")
    rest = len(curve.segments) - len(shown)
    axes.legend(frameon=False, title=f"{rest} more segments not drawn" if rest else None)
    return ax


def _draw_line(axes: Any, curve: Curve, name: str, color: str, *, markersize: float) -> None:
    def column(name: str) -> Any:
        values = [getattr(p, name) for p in curve.positions]
        return np.array([np.nan if v is None else v for v in values], dtype=float)

    ranks, low, high = column("position"), column("low"), column("high")
    style: dict[str, Any] = {"color": color, "marker": "o", "markersize": markersize, "label": _legend(name)}
    draw_interval(axes, ranks, column("propensity"), low, high, **style)


def _legend(name: str) -> str:
    """Return a text as a legend shows it: matplotlib reads $ as mathematics, and leaves out what begins with _."""
    text = printable(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def save_plot(curve: Curve, path: str, *, truth: Sequence[float] | None = None, joint: bool = False) -> None:
    """Write the picture of a curve as PNG, SVG or PDF, whole or not at all."""
    figure: Any = draw_curve(curve, truth=truth, joint=joint).figure
    save_picture(figure, path)
