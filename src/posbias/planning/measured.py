"""What an estimator says of a harvest, as far as planning looks at it, and the outlook that it makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posbias.arrays import FloatArray
from posbias.estimators import ESTIMATORS
from posbias.harvesting.harvests import Harvest
from posbias.planning.plans import Need, Outlook
from posbias.planning.precision import buckets_at, degrees_at, precision_at, times_for

# Those that are fitted on a harvest, the best first.
PLANNED = ("cross-fit", "all-pairs", "pivot-one", "adjacent-chain")


@dataclass(frozen=True)
class Measured:
    """Standard errors of log p by rank, (M,), their degrees of freedom, and why a rank has none."""

    estimator: str
    propensity: FloatArray
    se: FloatArray
    degrees: FloatArray
    reasons: Sequence[str | None]
    buckets: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wish:
    """What is wanted: intervals of a level that are ± a share of the estimate."""

    precision: float
    level: float


@dataclass(frozen=True)
class Base:
    """The data that standard errors were read from, and those that are told of: at `at` times as much."""

    page_views: float
    queries: int | None
    at: float = 1.0
    # Whether they are there, so that only more is needed.
    held: bool = True


def measure(name: str, harvest: Harvest, level: float = 0.95) -> Measured:
    """Fit an estimator on a harvest, and return how precise it is."""
    kind: Any = ESTIMATORS[name]
    fitted = kind(level=level)
    # Where one estimator identifies no rank, another may: that is no error yet.
    fitted.estimate(harvest)
    se = np.sqrt(np.diagonal(fitted.covariance_))
    known = np.isfinite(fitted.interval_[:, 0]) & (se > 0)
    return Measured(
        estimator=name,
        propensity=fitted.propensity_,
        se=np.where(known, se, np.nan),
        degrees=np.where(known, fitted.degrees_of_freedom_, np.nan),
        reasons=fitted.reasons_,
        buckets=len(harvest.buckets),
        notes=fitted.notes_,
    )


def foresee(measured: Measured, wish: Wish, base: Base, ratio: FloatArray | None = None) -> Outlook:
    """Return what each rank needs, if standard errors become `ratio` times what was measured."""
    se = measured.se if ratio is None else measured.se * ratio
    setting = (wish.level, measured.buckets, base.queries)
    with np.errstate(invalid="ignore", divide="ignore"):
        now = precision_at(np.full(len(se), base.at), se, measured.degrees, *setting)
        degrees = degrees_at(np.full(len(se), base.at), measured.degrees, *setting[1:])
        times = times_for(wish.precision, se, measured.degrees, *setting)

    def need(k: int) -> Need:
        if not np.isfinite(se[k]):
            reason = measured.reasons[k] if np.isnan(measured.se[k]) else "not to be foreseen: too thin"
            return Need(k + 1, None, None, None, None, None, None, None, None, reason or "no interval")
        queries = None if base.queries is None else math.ceil(times[k] * base.queries)
        views = math.ceil(times[k] * base.page_views)
        had = base.at if base.held else 0.0
        return Need(
            rank=k + 1,
            precision=float(now[k]) if np.isfinite(now[k]) else None,
            standard_error=float(se[k] / math.sqrt(base.at)),
            degrees_of_freedom=float(degrees[k]),
            times=float(times[k] / base.at),
            queries=queries,
            page_views=views,
            more_queries=None if queries is None else max(0, queries - round(had * (base.queries or 0))),
            more_page_views=max(0, views - round(had * base.page_views)),
            reason=measured.reasons[k],
        )

    held = round(float(buckets_at(np.array(base.at), *setting[1:])))
    return Outlook(measured.estimator, tuple(need(k) for k in range(1, len(se))), held)
