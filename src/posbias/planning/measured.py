"""What an estimator says of a harvest, as far as planning looks at it, and the outlook that it makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from posbias.arrays import FloatArray
from posbias.estimators import ESTIMATORS
from posbias.harvesting.harvests import Harvest
from posbias.planning.plans import NOT_FORESEEN, Need, Outlook
from posbias.planning.precision import (
    buckets_at,
    degrees_at,
    foreseeable,
    precision_at,
    times_for,
    variance_between,
)

# Those that are fitted on a harvest, the best first.
PLANNED = ("cross-fit", "all-pairs", "pivot-one", "adjacent-chain")


@dataclass(frozen=True)
class Measured:
    """Standard errors of log p by rank, (M,), their degrees of freedom in one of the logs, and why a rank has none."""

    estimator: str
    propensity: FloatArray
    se: FloatArray
    degrees: FloatArray
    reasons: Sequence[str | None]
    buckets: int
    notes: tuple[str, ...] = ()
    logs: int = 1


@dataclass(frozen=True)
class Played:
    """What standard errors become of what they are in a play, (M,), and the degrees of freedom that this rests on."""

    ratio: FloatArray
    degrees: FloatArray
    reason: str = f"{NOT_FORESEEN}: too thin"


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


def foresee(measured: Measured, wish: Wish, base: Base, played: Played | None = None) -> Outlook:
    """Return what each rank needs, if standard errors become what was `played` of those that were measured.

    A rank whose standard error is not known well enough has no number but a range, or none at all.
    """
    se, sure = measured.se, measured.logs * measured.degrees
    if played is not None:
        se, sure = se * played.ratio, np.minimum(sure, played.degrees)
    setting = (wish.level, measured.buckets, base.queries)
    at = np.full(len(se), base.at)
    with np.errstate(invalid="ignore", divide="ignore"):
        now = precision_at(at, se, measured.degrees, *setting)
        degrees = degrees_at(at, measured.degrees, *setting[1:])
        times = times_for(wish.precision, se, measured.degrees, *setting)
        between = times * variance_between(sure) / base.at
    foreseen = foreseeable(sure)
    # Of the data that there are it is no prediction.
    told = foreseen | (base.held and played is None)

    def need(k: int) -> Need:
        if not np.isfinite(se[k]):
            reason = measured.reasons[k] if played is None or np.isnan(measured.se[k]) else played.reason
            return Need(rank=k + 1, reason=reason or "no interval")
        queries = None if base.queries is None else math.ceil(times[k] * base.queries)
        views = math.ceil(times[k] * base.page_views)
        had = base.at if base.held else 0.0
        found = Need(
            rank=k + 1,
            precision=float(now[k]) if told[k] and np.isfinite(now[k]) else None,
            standard_error=float(se[k] / math.sqrt(base.at)) if told[k] else None,
            degrees_of_freedom=float(degrees[k]) if told[k] else None,
            reason=measured.reasons[k],
            times_low=float(between[0, k]) if np.isfinite(between[0, k]) else None,
            times_high=float(between[1, k]) if np.isfinite(between[1, k]) else None,
        )
        if not foreseen[k]:
            return replace(found, reason=f"{sure[k]:.1f} degrees of freedom: too few to foresee from")
        return replace(
            found,
            times=float(times[k] / base.at),
            queries=queries,
            page_views=views,
            more_queries=None if queries is None else max(0, queries - round(had * (base.queries or 0))),
            more_page_views=max(0, views - round(had * base.page_views)),
        )

    held = round(float(buckets_at(np.array(base.at), *setting[1:])))
    return Outlook(measured.estimator, tuple(need(k) for k in range(1, len(se))), held)
