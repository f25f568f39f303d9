"""Pictures of a curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias.arguments import truth as truth_value
from posbias.curves.curve import Curve
from posbias.curves.reasons import telling_segments
from posbias.curves.truths import known_truth
from posbias.errors import CurveError
from posbias.pictures import (
    COLORS,
    MARKERS,
    TRUTH,
    axes_of,
    draw_interval,
    draw_legend,
    dressed,
    legible,
    over_ranks,
    save_picture,
)
from posbias.wording import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Up to this many segments get a line of their own; more would hide each other.
_MOST_SEGMENTS = 7


def draw_curve(
    curve: Curve, ax: Axes | None = None, *, truth: Sequence[float] | Any = None, joint: bool = False
) -> Axes:
    """Draw a curve with its intervals, its joint band if asked for, its segments, and the truth where it is known."""
    truth_value("joint", joint, CurveError)
    ax = axes_of(ax)
    axes = dressed(ax)
    shown = list(telling_segments(curve, _MOST_SEGMENTS).items())
    draw_line(axes, curve, "all" if shown else curve.estimator, COLORS[0])
    if joint:
        ends = curve.joint()
        every = np.arange(1, curve.max_rank + 1)
        for side, name in zip(ends.T, (f"joint {100 * (curve.level or 0):g}% band", None), strict=True):
            axes.plot(every, side, color=COLORS[0], linestyle=":", linewidth=1.1, label=name)
    for i, (key, part) in enumerate(shown, start=1):
        draw_line(axes, part, label(key), COLORS[i], marker=MARKERS[i], beside=0.08 * i, band=False)
    if truth is not None:
        draw_truth(axes, truth, [curve])
    over_ranks(axes, [p.position for p in curve.positions])
    axes.set_title(legible(f"Examination by rank: {curve.estimator}, {curve.interval_name}"), fontsize="medium")
    rest = len(curve.segments) - len(shown)
    draw_legend(axes, title=f"{rest} more segments not drawn" if rest else None)
    return ax


def draw_truth(axes: Any, truth: object, curves: Sequence[Curve]) -> None:
    """Draw the truth beside curves."""
    known = known_truth(truth, curves)
    axes.plot(np.arange(1, len(known) + 1), known, label="truth", **TRUTH)


def draw_line(
    axes: Any, curve: Curve, name: str, color: str, *, marker: str = "o", beside: float = 0.0, band: bool = True
) -> None:
    """Draw one curve with its intervals, so far beside its ranks."""

    def column(name: str) -> Any:
        values = [getattr(p, name) for p in curve.positions]
        return np.array([np.nan if v is None else v for v in values], dtype=float)

    style: dict[str, Any] = {"color": color, "marker": marker, "markersize": 4.5, "label": legible(name)}
    ranks = column("position") + beside
    draw_interval(axes, ranks, column("propensity"), column("low"), column("high"), band=band, **style)


def save_plot(curve: Curve, path: str, *, truth: Sequence[float] | None = None, joint: bool = False) -> None:
    """Write the picture of a curve as PNG, SVG or PDF, whole or not at all."""
    figure: Any = draw_curve(curve, truth=truth, joint=joint).figure
    save_picture(figure, path)
