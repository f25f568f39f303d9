"""Experiment "synthetic": does AllPairs recover the true propensity curve? (Figure "synthetic" of the paper.)

Each of 20 runs trains its own pair of rankers, simulates five sweeps over all queries per ranker, and estimates the
curve. The experiment compares the mean of the runs, and a 99% interval from their standard deviation, with the truth.

synthetic.csv has a row for each rank: the true propensity, the mean and standard deviation of the estimates, and the
ends of the 99% interval.
"""

from __future__ import annotations

import numpy as np

from experiments.figures import Line, draw_curves
from experiments.laboratory import Laboratory
from experiments.outcomes import Outcome, make_verdict, seed_of
from posbias._arrays import FloatArray
from posbias.estimators import AllPairs
from posbias.simulation.users import PositionBased

# The normal quantile of a two-sided 99% interval.
_Z99 = 2.5758


def run_synthetic(lab: Laboratory) -> Outcome:
    """Estimate the curve in many runs, each with its own rankers, and compare the mean with the truth."""
    user = PositionBased(eta=1.0, noise=0.1, threshold=lab.threshold)

    def estimate(run: int) -> FloatArray:
        seed = seed_of(lab.seed, "synthetic", run)
        views = lab.views(5, seed)
        harvest = lab.harvest(lab.rankers(0.02, 0.8, run), {"a": views, "b": views}, user, seed)
        return AllPairs(interval=None).fit(harvest).propensity_

    curves = np.array(lab.map(estimate, range(lab.sizes.curve_runs), "synthetic"))
    truth = user.propensity(curves.shape[1])
    mean, spread = curves.mean(axis=0), curves.std(axis=0, ddof=1)
    low, high = mean - _Z99 * spread, mean + _Z99 * spread
    inside = (low <= truth) & (truth <= high)
    bias = np.abs(mean / truth - 1)
    rows = [
        {
            "rank": k + 1,
            "truth": float(truth[k]),
            "all_pairs": float(mean[k]),
            "std": float(spread[k]),
            "low_99": float(low[k]),
            "high_99": float(high[k]),
        }
        for k in range(len(truth))
    ]
    verdict = make_verdict(
        "AllPairs recovers the true propensities (99% intervals contain the truth at every rank, and the mean of the "
        "runs is within 2% of the truth on average)",
        f"the interval contains the truth at {int(inside.sum())} of {len(truth)} ranks; relative error of the mean of "
        f"{len(curves)} runs: at most {bias.max():.1%} (rank {int(bias.argmax()) + 1}), {bias[1:].mean():.1%} on "
        f"average; standard deviation of a run: {(spread / truth)[1:].mean():.1%} of the truth on average",
        inside.all() and bias[1:].mean() < 0.02,
        curves,
    )
    figure = draw_curves([Line("AllPairs", mean, low, high)], bands=False, truth=truth)
    return Outcome("synthetic", rows, figure, (verdict,))
