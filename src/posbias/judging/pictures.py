"""Pictures of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from posbias.extras import optional
from posbias.judging.comparisons import Comparison, p_text
from posbias.pictures import (
    ALARM,
    COLORS,
    axes_of,
    draw_interval,
    draw_legend,
    dressed,
    legible,
    rank_ticks,
    refuse_other,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The height of the legend's row, as a share of that of the ratios.
_ROW = 0.15


def draw_comparison(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Draw the ratio of two curves by rank, ranks that differ as diamonds; on the scale half and double are alike."""
    refuse_other("comparison", comparison, Comparison)
    ax = axes_of(ax)
    axes: Any = dressed(ax)
    first, second = (legible(name) for name in comparison.names)
    known = [d for d in comparison.differences if d.ratio is not None]
    looks = (False, COLORS[0], "o", "no difference beyond chance"), (True, ALARM, "D", "differs")
    for differs, color, marker, name in looks:
        own = [d for d in known if d.differs == differs]
        if not own:
            continue
        ranks, ratio, low, high = (
            np.array([[d.rank, d.ratio, d.low, d.high] for d in own], dtype=float).reshape(-1, 4).T
        )
        style: dict[str, Any] = {
            "color": color,
            "marker": marker,
            "markersize": 4.5,
            "linestyle": "none",
            "label": name,
        }
        draw_interval(axes, ranks, ratio, low, high, band=False, **style)
    axes.axhline(1, color="black", linestyle="--", linewidth=1.1)
    axes.set_yscale("log")
    if known:
        # In a row of its own above the ratios, where it hides neither these nor the line at 1.
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** _ROW)
        draw_legend(axes, loc="upper center", ncol=2, columnspacing=1.2, handletextpad=0.4)
    # Ratios near 1 lie between the powers of ten at which such a scale has its ticks.
    ticker = optional("matplotlib.ticker", "Pictures need")
    axes.yaxis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    rank_ticks(axes, [d.rank for d in comparison.differences])
    axes.set_xlabel("Rank")
    axes.set_ylabel(f"Propensity, {second} / {first}")
    p = p_text(comparison.p_value)
    said = f"differ, {p}" if comparison.differs else f"do not differ beyond chance, {p}"
    axes.set_title(f"{first} and {second} {'are the same' if comparison.same else said}", fontsize="medium")
    return ax
