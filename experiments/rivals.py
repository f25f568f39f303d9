"""What is compared on one log: the curve of every estimator that it gives one to, and the best that there is."""

from __future__ import annotations

import numpy as np

from experiments import bounds
from experiments.coverage import Setting
from experiments.drawn import Drawn
from posbias._arrays import FloatArray
from posbias.errors import EstimateError
from posbias.estimators import PBMEM, AdjacentChain, AllPairs, CrossFit, PivotOne
from posbias.estimators.base import CurveEstimator
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.observations import Observations


def curves_of(drawn: Drawn, setting: Setting) -> dict[str, FloatArray]:
    """Return the curve of each estimator; NaN where the log does not give one."""
    layout = setting.layout
    own = drawn.harvest(layout)
    curves = {
        "AllPairs": _fit(AllPairs(interval=None), own),
        "CrossFit": _fit(CrossFit(interval=None), own),
        "ConditionalPoisson, observed": _fit(CrossFit(interval=None, relevance="none", exposure="observed"), own),
        "AdjacentChain": _fit(AdjacentChain(interval=None), own),
        "PivotOne": _fit(PivotOne(interval=None), own),
    }
    if layout.ranks_known:
        curves["ConditionalPoisson, design"] = _fit(CrossFit(interval=None, relevance="none"), own)
    if drawn.world.repeats == 1:
        # No pair was shown twice, and what is left of the estimators compares a pair with itself.
        return curves
    pairs = drawn.harvest(layout, "harmonic")
    for weighting in ("traffic", "harmonic", "uniform"):
        if weighting != own.weighting:
            curves[f"AllPairs, {weighting}"] = _fit(AllPairs(interval=None, weighting=weighting), pairs)
            curves[f"AdjacentChain, {weighting}"] = _fit(AdjacentChain(interval=None, weighting=weighting), pairs)
    curves["PBM-EM"] = _fit(PBMEM(max_rank=drawn.world.max_rank, interval=None), drawn.observations())
    return curves


def _fit(estimator: CurveEstimator, seen: Harvest | Observations) -> FloatArray:
    try:
        return estimator.fit(seen).propensity_  # type: ignore[attr-defined, no-any-return]
    except EstimateError:
        # A query that one ranker serves compares no pair with itself.
        return np.full(seen.max_rank, np.nan)


def best_of(drawn: Drawn, setting: Setting) -> dict[str, bounds.Best]:
    """Return the best there is, by what is known."""
    by_design, repeated = setting.layout.ranks_known, drawn.world.repeats > 1
    unknown = bounds.ranks_known(drawn, by_pair=repeated) if by_design else bounds.ranks_unknown(drawn)
    # In replay no guess is needed, with one view there is nothing to guess from, and sticky rankers forbid it.
    guessed = by_design and repeated and setting.independent
    learned = bounds.relevance_learned(drawn) if guessed else unknown
    return {
        "relevance known": bounds.relevance_known(drawn),
        "relevance unknown": unknown,
        "relevance learned": learned,
    }
