"""Colours, axes and files of matplotlib figures."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from posbias._arrays import FloatArray
from posbias._files import PICTURE, written_whole
from posbias._optional import optional
from posbias._text import printable
from posbias._validate import as_path
from posbias.errors import PosbiasError

ENDINGS = ("png", "svg", "pdf")
# Okabe and Ito's, which people tell apart who do not see all colours, and in grey by their markers.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C7A00", "#555555")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
ALARM = "#B3261E"
TRUTH = {"color": "black", "linestyle": "--", "linewidth": 1.2, "zorder": 3}


def axes_of(ax: Any, width: float = 5.6, height: float = 3.6) -> Any:
    """Return the Axes that were given, or new ones."""
    if ax is None:
        return new_axes(width, height)[1]
    refuse_other("ax", ax, optional("matplotlib.axes", "Pictures need").Axes)
    return ax


def new_axes(width: float = 5.6, height: float = 3.6) -> tuple[Any, Any]:
    """Return a Figure and its Axes, without touching the state of pyplot: so small that half a page can be read."""
    figure = optional("matplotlib.figure", "Pictures need").Figure(figsize=(width, height), layout="constrained")
    return figure, dressed(figure.add_subplot())


def dressed(axes: Any) -> Any:
    """Return Axes with what all have in common."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def refuse_other(name: str, value: object, kind: type, error: type[PosbiasError] = PosbiasError) -> None:
    """Refuse what is no value of the kind that is drawn."""
    if not isinstance(value, kind):
        raise error(f"{name} must be of the kind {kind.__name__}, not a {type(value).__name__}.")


def over_ranks(axes: Any, ranks: list[int]) -> None:
    """Label the axes of propensities by rank."""
    axes.set_xlabel("Rank")
    axes.set_ylabel("Propensity relative to rank 1")
    axes.set_ylim(bottom=0)
    rank_ticks(axes, ranks)


def rank_ticks(axes: Any, ranks: list[int], *, both: bool = False) -> None:
    """Write as many ranks below the axes as there is room for, and beside them if they are ranks too."""
    shown = round_ranks(ranks[0], ranks[-1]) if ranks else []
    axes.set_xticks(shown)
    if both:
        axes.set_yticks(shown)


def round_ranks(first: int, last: int) -> list[int]:
    """Return ranks to write below axes: all, every other, or the first and then round numbers.

    >>> round_ranks(1, 4), round_ranks(2, 20), round_ranks(1, 30)
    ([1, 2, 3, 4], [2, 4, 6, 8, 10, 12, 14, 16, 18, 20], [1, 5, 10, 15, 20, 25, 30])
    """
    count = last - first + 1
    if count <= 24:
        return list(range(first, last + 1, 1 if count <= 12 else 2))
    step = next(step for step in (5, 10, 20, 50, 100) if count <= 12 * step or step == 100)
    return [rank for rank in range(first, last + 1) if rank == first or rank % step == 0]


def legible(name: str) -> str:
    """Return a text as a legend shows it: matplotlib reads $ as mathematics, and leaves out what begins with _."""
    text = printable(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def draw_legend(axes: Any, **settings: Any) -> None:
    """Say what is what, on a ground that keeps the bars of wide intervals from striking out the words."""
    # Where it is best is asked for by name: matplotlib warns of its own default on a machine that is busy.
    axes.legend(**({"loc": "best", "facecolor": "white", "edgecolor": "none", "framealpha": 0.85} | settings))


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
    """Write a picture as PNG, SVG or PDF, whole or not at all, and the same each time that it is drawn."""
    name = as_path("path", path)
    ending = name.rsplit(".", 1)[-1].lower()
    if ending not in ENDINGS:
        raise PosbiasError(f"A plot can be written as .png, .svg or .pdf, not as {name!r}.")
    undated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[ending]
    steady = optional("matplotlib", "Pictures need").rc_context({"svg.hashsalt": "posbias"})
    with written_whole(name, PICTURE) as part, steady:
        figure.savefig(part, format=ending, dpi=200, metadata=undated)
