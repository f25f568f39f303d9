"""How every picture of the package looks: its axes, a line with its interval, and the file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from posbias.arrays import FloatArray
from posbias.errors import PosbiasError
from posbias.extras import optional
from posbias.writing import written_whole

ENDINGS = ("png", "svg", "pdf")
TRUTH = {"color": "black", "linestyle": "--", "linewidth": 1.2, "zorder": 3}


def new_axes(width: float = 7.0, height: float = 4.2) -> tuple[Any, Any]:
    """Return a Figure and its Axes, without touching the state of pyplot."""
    figure = optional("matplotlib.figure", "Pictures need").Figure(figsize=(width, height), layout="constrained")
    return figure, dressed(figure.add_subplot())


def dressed(axes: Any) -> Any:
    """Return Axes with what all have in common."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def over_ranks(axes: Any, ranks: list[int]) -> None:
    """Label the axes of propensities by rank."""
    axes.set_xlabel("Rank")
    axes.set_ylabel("Propensity relative to rank 1")
    axes.set_ylim(bottom=0)
    axes.set_xticks(ranks if len(ranks) <= 12 else ranks[:: 2 if len(ranks) <= 25 else 5])


def draw_interval(
    axes: Any, x: FloatArray, y: FloatArray, low: FloatArray, high: FloatArray, *, band: bool = True, **style: Any
) -> None:
    """Draw a line with its interval: bars with caps, which a narrow one needs to be seen, and a band if asked for."""
    if band:
        axes.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)
    # Percentiles of a narrow level may lie beside the estimate.
    bars = np.maximum(np.stack([y - low, high - y]), 0)
    axes.errorbar(x, y, yerr=bars, linewidth=1.3, elinewidth=1, capsize=3, **style)


def save_picture(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a picture as PNG, SVG or PDF, whole or not at all."""
    name = os.fspath(path)
    ending = name.rsplit(".", 1)[-1].lower()
    if ending not in ENDINGS:
        raise PosbiasError(f"A plot can be written as .png, .svg or .pdf, not as {name!r}.")
    with written_whole(name) as part:
        figure.savefig(part, format=ending, dpi=160)
