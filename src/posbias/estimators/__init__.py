"""Estimators of the propensity curve: one file each, and one line here.

Those of `REGISTRY` fit on a harvest; those of `LOG_REGISTRY` look at the rows of a log: explicit experiments, and what
people use instead of either. `fits_on` of a class says which it takes.
"""

from __future__ import annotations

from posbias.estimators.adjacent_chain import AdjacentChain
from posbias.estimators.all_pairs import AllPairs
from posbias.estimators.base import CurveEstimator
from posbias.estimators.harvested import Estimator
from posbias.estimators.logged import LogEstimator
from posbias.estimators.naive_ctr import NaiveCTR
from posbias.estimators.paired import PairEstimator
from posbias.estimators.pbm_em import PBMEM
from posbias.estimators.pivot_one import PivotOne
from posbias.estimators.regression_em import RegressionEM
from posbias.estimators.swap_adjacent import SwapAdjacent
from posbias.estimators.swap_one import SwapOne

REGISTRY: dict[str, type[PairEstimator]] = {
    estimator.name: estimator for estimator in (AllPairs, PivotOne, AdjacentChain)
}
LOG_REGISTRY: dict[str, type[LogEstimator]] = {
    estimator.name: estimator for estimator in (SwapOne, SwapAdjacent, NaiveCTR, PBMEM, RegressionEM)
}

__all__ = [
    "LOG_REGISTRY",
    "PBMEM",
    "REGISTRY",
    "AdjacentChain",
    "AllPairs",
    "CurveEstimator",
    "Estimator",
    "LogEstimator",
    "NaiveCTR",
    "PairEstimator",
    "PivotOne",
    "RegressionEM",
    "SwapAdjacent",
    "SwapOne",
]
