"""Pictures of an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posbias.learning.evaluations import Evaluation
from posbias.pictures import dressed, new_axes
from posbias.wording import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {"better": "#2a8c4a", "worse": "#b3261e", None: "#1f5fa8"}


def draw_evaluation(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Draw the ratio of each ranking to the log, a row for each, with its interval."""
    if ax is None:
        _, ax = new_axes(7.0, 1.4 + 0.4 * len(evaluation.rankings))
    axes: Any = dressed(ax)
    for row, one in enumerate(evaluation.rankings):
        if one.ratio is None:
            continue
        ends = None
        if one.ratio.low is not None and one.ratio.high is not None:
            ends = [[one.ratio.value - one.ratio.low], [one.ratio.high - one.ratio.value]]
        color = _COLORS[one.verdict(evaluation.rises)]
        axes.errorbar([one.ratio.value], [row], xerr=ends, color=color, marker="o", markersize=5, capsize=3)
    axes.axvline(1, color="black", linestyle="--", linewidth=1.1)
    axes.set_yticks(
        range(len(evaluation.rankings)),
        [printable(one.name).replace("$", r"\$") for one in evaluation.rankings],
    )
    axes.set_ylim(len(evaluation.rankings) - 0.5, -0.5)
    axes.set_xlabel(f"{evaluation.metric}, in terms of the log's")
    return ax
