"""Pictures of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from posbias.extras import optional
from posbias.judging.comparisons import Comparison, p_text
from posbias.pictures import draw_interval, dressed, new_axes
from posbias.wording import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOR, _DIFFERS = "#1f5fa8", "#b3261e"


def draw_comparison(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Draw the ratio of two curves by rank, ranks that differ in red, on a scale on which half and double are alike."""
    if ax is None:
        _, ax = new_axes()
    axes: Any = dressed(ax)
    first, second = (printable(name).replace("$", r"\$") for name in comparison.names)
    known = [d for d in comparison.differences if d.ratio is not None]
    for differs, color in ((False, _COLOR), (True, _DIFFERS)):
        own = [d for d in known if d.differs == differs]
        ranks, ratio, low, high = (
            np.array([[d.rank, d.ratio, d.low, d.high] for d in own], dtype=float).reshape(-1, 4).T
        )
        style: dict[str, Any] = {"color": color, "marker": "o", "markersize": 4.5, "linestyle": "none"}
        draw_interval(axes, ranks, ratio, low, high, band=False, **style)
    axes.axhline(1, color="black", linestyle="--", linewidth=1.1)
    axes.set_yscale("log")
    # Ratios near 1 lie between the powers of ten at which such a scale has its ticks.
    ticker = optional("matplotlib.ticker", "Pictures need")
    axes.yaxis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    every = [d.rank for d in comparison.differences]
    axes.set_xticks(every if len(every) <= 12 else every[:: 2 if len(every) <= 25 else 5])
    axes.set_xlabel("Rank")
    axes.set_ylabel(f"Propensity, {second} / {first}")
    said = "differ" if comparison.differs else "do not differ beyond chance"
    axes.set_title(f"{first} and {second} {said}, {p_text(comparison.p_value)}", fontsize="medium")
    return ax
