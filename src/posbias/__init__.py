"""Position bias from the click logs you already have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from posbias.estimators import ESTIMATORS as _ESTIMATORS
from posbias.version import __version__

if TYPE_CHECKING:
    from posbias import plots as plots
    from posbias.curves.curve import Curve as Curve
    from posbias.engines.duckdb import DuckDB as DuckDB
    from posbias.engines.spark import Spark as Spark
    from posbias.errors import CurveError as CurveError
    from posbias.errors import EstimateError as EstimateError
    from posbias.errors import HarvestError as HarvestError
    from posbias.errors import LogError as LogError
    from posbias.errors import PosbiasError as PosbiasError
    from posbias.estimators.registered import *  # noqa: F403
    from posbias.harvesting.counting import harvest as harvest
    from posbias.harvesting.event_files import write_events as write_events
    from posbias.harvesting.harvests import Harvest as Harvest
    from posbias.harvesting.merging import merge as merge
    from posbias.harvesting.set_sizes import intervention_sets as intervention_sets
    from posbias.harvesting.warehouse.events import events_sql as events_sql
    from posbias.harvesting.warehouse.queries import harvest_sql as harvest_sql
    from posbias.judging.checking import check as check
    from posbias.judging.comparing import compare as compare
    from posbias.judging.diagnosing import diagnose as diagnose
    from posbias.judging.histories import History as History
    from posbias.judging.segmented import compare_segments as compare_segments
    from posbias.learning.evaluating import evaluate as evaluate
    from posbias.learning.weights import ips_weights as ips_weights
    from posbias.logs.click_log import ClickLog as ClickLog
    from posbias.planning.planner import plan as plan
    from posbias.reporting.reporter import report as report
    from posbias.simulation import World as World
    from posbias.simulation import simulate as simulate

# Where each public name lives: it is imported when first used, so that `posbias --help` answers in a blink.
_HOMES = dict.fromkeys(_ESTIMATORS.modules, "posbias.estimators") | {
    "ClickLog": "posbias.logs.click_log",
    "Curve": "posbias.curves.curve",
    "CurveError": "posbias.errors",
    "DuckDB": "posbias.engines.duckdb",
    "EstimateError": "posbias.errors",
    "Harvest": "posbias.harvesting.harvests",
    "HarvestError": "posbias.errors",
    "History": "posbias.judging.histories",
    "LogError": "posbias.errors",
    "PosbiasError": "posbias.errors",
    "Spark": "posbias.engines.spark",
    "World": "posbias.simulation",
    "check": "posbias.judging.checking",
    "compare": "posbias.judging.comparing",
    "compare_segments": "posbias.judging.segmented",
    "evaluate": "posbias.learning.evaluating",
    "events_sql": "posbias.harvesting.warehouse.events",
    "diagnose": "posbias.judging.diagnosing",
    "harvest": "posbias.harvesting.counting",
    "harvest_sql": "posbias.harvesting.warehouse.queries",
    "intervention_sets": "posbias.harvesting.set_sizes",
    "ips_weights": "posbias.learning.weights",
    "merge": "posbias.harvesting.merging",
    "plan": "posbias.planning.planner",
    "report": "posbias.reporting.reporter",
    "simulate": "posbias.simulation",
    "write_events": "posbias.harvesting.event_files",
}
# Modules of functions, likewise.
_MODULES = ("plots",)
__all__ = ["__version__", *_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"posbias.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'posbias' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
