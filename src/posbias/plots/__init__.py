"""Draw curves, the evidence behind them, comparisons and plans with matplotlib.

Each function draws into the Axes that it is given, or into a new one, and returns it.

Example:
    >>> import posbias
    >>> harvest = posbias.harvest(posbias.ClickLog(posbias.simulate(posbias.World(queries=500))))
    >>> fitted = {"CrossFit": posbias.CrossFit().fit(harvest), "AllPairs": posbias.AllPairs().fit(harvest)}
    >>> axes = posbias.plots.curves(fitted)
    >>> axes.get_ylabel()
    'Propensity relative to rank 1'
"""

from __future__ import annotations

from posbias.judging.compare import draw_comparison as comparison
from posbias.learning.evaluate import draw_evaluation as evaluation
from posbias.planning.plan import draw_plan as plan
from posbias.plots.curves import curve, curves, history, save
from posbias.plots.evidence import click_rates, graph, influence, pair_ratios, sets

__all__ = [
    "click_rates",
    "comparison",
    "curve",
    "curves",
    "evaluation",
    "graph",
    "history",
    "influence",
    "pair_ratios",
    "plan",
    "save",
    "sets",
]
