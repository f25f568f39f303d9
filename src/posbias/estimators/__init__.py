"""The estimators of the propensity curve, by the name that they have on the command line.

Add an estimator with one module in this package and one line in `FROM_HARVESTS` or `FROM_LOGS`. An estimator is
imported when it is first used, so that `posbias --help` need not wait for NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posbias.estimators.base import CurveEstimator as CurveEstimator
    from posbias.estimators.base import Estimator as Estimator
    from posbias.estimators.base import LogEstimator as LogEstimator
    from posbias.estimators.base import PairEstimator as PairEstimator
    from posbias.estimators.click_models import PBMEM as PBMEM
    from posbias.estimators.click_models import NaiveCTR as NaiveCTR
    from posbias.estimators.click_models import RegressionEM as RegressionEM
    from posbias.estimators.cross_fit import CrossFit as CrossFit
    from posbias.estimators.pair_estimators import AdjacentChain as AdjacentChain
    from posbias.estimators.pair_estimators import AllPairs as AllPairs
    from posbias.estimators.pair_estimators import PivotOne as PivotOne
    from posbias.estimators.randomized import RandomTraffic as RandomTraffic
    from posbias.estimators.randomized import SwapAdjacent as SwapAdjacent
    from posbias.estimators.randomized import SwapOne as SwapOne

# Name on the command line -> module and class, in the order of menus and tables. These fit on a harvest:
FROM_HARVESTS = {
    "cross-fit": ("cross_fit", "CrossFit"),
    "all-pairs": ("pair_estimators", "AllPairs"),
    "pivot-one": ("pair_estimators", "PivotOne"),
    "adjacent-chain": ("pair_estimators", "AdjacentChain"),
}
# These need the rows of a log, or can use them:
FROM_LOGS = {
    "swap-one": ("randomized", "SwapOne"),
    "swap-adjacent": ("randomized", "SwapAdjacent"),
    "random-traffic": ("randomized", "RandomTraffic"),
    "naive-ctr": ("click_models", "NaiveCTR"),
    "pbm-em": ("click_models", "PBMEM"),
    "regression-em": ("click_models", "RegressionEM"),
}
ESTIMATORS = FROM_HARVESTS | FROM_LOGS
DEFAULT_ESTIMATOR = "cross-fit"

_BASES = ("CurveEstimator", "Estimator", "LogEstimator", "PairEstimator")
_MODULES = dict.fromkeys(_BASES, "base") | {class_: module for module, class_ in ESTIMATORS.values()}
__all__ = [
    "DEFAULT_ESTIMATOR",
    "ESTIMATORS",
    "FROM_HARVESTS",
    "FROM_LOGS",
    "estimator_class",
    *_MODULES,
]


def estimator_class(name: str) -> type[CurveEstimator]:
    """Return the class of an estimator.

    Arguments:
        name (str): a key of `ESTIMATORS`.

    Example:
        >>> estimator_class("all-pairs").__name__
        'AllPairs'
    """
    module, class_ = ESTIMATORS[name]
    found: type[CurveEstimator] = getattr(import_module(f"posbias.estimators.{module}"), class_)
    return found


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'posbias.estimators' has no attribute {name!r}")
    return getattr(import_module(f"posbias.estimators.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
