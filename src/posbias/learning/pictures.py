"""Pictures of an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from posbias.pictures import ALARM, COLORS, axes_of, dressed, legible, refuse_other

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from posbias.learning.evaluations import Evaluation

# What is told of a ranking: its colour, its marker, by which it is known in grey, and its name.
_LOOKS: dict[str | None, tuple[str, str, str]] = {
    "better": (COLORS[2], "^", "better"),
    "worse": (ALARM, "v", "worse"),
    None: (COLORS[0], "o", "not told apart from the log"),
}


def draw_evaluation(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Draw the ratio of each ranking to the log, a row for each, with its interval."""
    from posbias.learning.evaluations import Evaluation

    refuse_other("evaluation", evaluation, Evaluation)
    ax = axes_of(ax, 5.6, 1.9 + 0.3 * len(evaluation.rankings))
    axes: Any = dressed(ax)
    for verdict, (color, marker, name) in _LOOKS.items():
        own = [
            (row, one.ratio.value, one.ratio.low, one.ratio.high)
            for row, one in enumerate(evaluation.rankings)
            if one.ratio is not None and one.verdict(evaluation.rises) == verdict
        ]
        if own:
            rows, value, low, high = np.array(own, dtype=float).T
            style = {"color": color, "marker": marker, "markersize": 6, "linestyle": "none", "capsize": 3}
            axes.errorbar(value, rows, xerr=np.stack([value - low, high - value]), label=name, **style)
    axes.axvline(1, color="black", linestyle="--", linewidth=1.1, label="as the log")
    axes.set_yticks(range(len(evaluation.rankings)), [legible(one.name) for one in evaluation.rankings])
    axes.set_ylim(len(evaluation.rankings) - 0.5, -0.5)
    axes.set_xlabel(f"{evaluation.metric}, in terms of the log's")
    axes.set_title(f"Rankings against the log, {100 * evaluation.level:g}% interval", fontsize="medium")
    axes.legend(
        frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, borderaxespad=3.5
    )
    return ax
