"""Position bias from the click logs you already have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from posbias.estimators import ESTIMATORS as _ESTIMATORS
from posbias.version import __version__

if TYPE_CHECKING:
    from posbias import objectives as objectives
    from posbias import plots as plots
    from posbias import testing as testing
    from posbias.curves.curve import Curve as Curve
    from posbias.engines.duckdb import DuckDB as DuckDB
    from posbias.engines.spark import Spark as Spark
    from posbias.errors import CurveError as CurveError
    from posbias.errors import EstimateError as EstimateError
    from posbias.errors import HarvestError as HarvestError
    from posbias.errors import LogError as LogError
    from posbias.errors import PosbiasError as PosbiasError
    from posbias.errors import PosbiasWarning as PosbiasWarning
    from posbias.estimators import PBMEM as PBMEM
    from posbias.estimators import AdjacentChain as AdjacentChain
    from posbias.estimators import AllPairs as AllPairs
    from posbias.estimators import CrossFit as CrossFit
    from posbias.estimators import NaiveCTR as NaiveCTR
    from posbias.estimators import PivotOne as PivotOne
    from posbias.estimators import RandomTraffic as RandomTraffic
    from posbias.estimators import RegressionEM as RegressionEM
    from posbias.estimators import SwapAdjacent as SwapAdjacent
    from posbias.estimators import SwapOne as SwapOne
    from posbias.harvesting.events import write_events as write_events
    from posbias.harvesting.harvest import Harvest as Harvest
    from posbias.harvesting.harvest import harvest as harvest
    from posbias.harvesting.intervention_sets import intervention_sets as intervention_sets
    from posbias.harvesting.merge import merge as merge
    from posbias.harvesting.warehouse import events_sql as events_sql
    from posbias.harvesting.warehouse import harvest_sql as harvest_sql
    from posbias.judging.check import check as check
    from posbias.judging.compare import compare as compare
    from posbias.judging.compare_segments import compare_segments as compare_segments
    from posbias.judging.diagnose import diagnose as diagnose
    from posbias.judging.history import History as History
    from posbias.learning.evaluate import evaluate as evaluate
    from posbias.learning.judgments import judgments as judgments
    from posbias.learning.rankers import fit_ranker as fit_ranker
    from posbias.learning.weights import ips_weights as ips_weights
    from posbias.logs.click_log import ClickLog as ClickLog
    from posbias.planning.plan import plan as plan
    from posbias.reporting.report import report as report
    from posbias.simulation import World as World
    from posbias.simulation import simulate as simulate

# Where each public name lives: it is imported when first used, so that `posbias --help` answers in a blink.
_HOMES = dict.fromkeys((class_ for _, class_ in _ESTIMATORS.values()), "posbias.estimators") | {
    "ClickLog": "posbias.logs.click_log",
    "Curve": "posbias.curves.curve",
    "CurveError": "posbias.errors",
    "DuckDB": "posbias.engines.duckdb",
    "EstimateError": "posbias.errors",
    "Harvest": "posbias.harvesting.harvest",
    "HarvestError": "posbias.errors",
    "History": "posbias.judging.history",
    "LogError": "posbias.errors",
    "PosbiasError": "posbias.errors",
    "PosbiasWarning": "posbias.errors",
    "Spark": "posbias.engines.spark",
    "World": "posbias.simulation",
    "check": "posbias.judging.check",
    "compare": "posbias.judging.compare",
    "compare_segments": "posbias.judging.compare_segments",
    "evaluate": "posbias.learning.evaluate",
    "events_sql": "posbias.harvesting.warehouse",
    "diagnose": "posbias.judging.diagnose",
    "fit_ranker": "posbias.learning.rankers",
    "harvest": "posbias.harvesting.harvest",
    "harvest_sql": "posbias.harvesting.warehouse",
    "intervention_sets": "posbias.harvesting.intervention_sets",
    "ips_weights": "posbias.learning.weights",
    "judgments": "posbias.learning.judgments",
    "merge": "posbias.harvesting.merge",
    "plan": "posbias.planning.plan",
    "report": "posbias.reporting.report",
    "simulate": "posbias.simulation",
    "write_events": "posbias.harvesting.events",
}
# Modules of functions, likewise.
_MODULES = ("objectives", "plots", "testing")
__all__ = ["__version__", *_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"posbias.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'posbias' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
