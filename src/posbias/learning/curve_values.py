"""What an estimate says of each rank, as numbers to weigh clicks by: p_k / p_1, of each segment where it has some."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import numpy as np

from posbias.arguments import one_of
from posbias.curves.curve import Curve, Segment
from posbias.curves.reasons import spans
from posbias.errors import CurveError
from posbias.estimators.base import CurveEstimator
from posbias.harvesting.harvests import Harvest
from posbias.judging.sides import fit
from posbias.wording import label

# What to do with ranks beyond the last that the curve was to estimate.
Beyond = Literal["refuse", "clip", "extrapolate"]
BEYOND: tuple[str, ...] = get_args(Beyond)
_BEYOND = "beyond the"
# A message names so many segments.
_MOST_TOLD = 3
# The logarithm of how far a curve is continued upwards.
_STEEPEST = 100.0


def curve_of(estimate: Any) -> Curve:
    """Return the curve of an estimate: a curve, a fitted estimator, a harvest, or a file of a curve or a harvest."""
    if isinstance(estimate, str | os.PathLike):
        from posbias.curves.files import load as load_curve
        from posbias.harvesting.file_kinds import is_harvest
        from posbias.harvesting.files import load as load_harvest

        estimate = load_harvest(estimate) if is_harvest(estimate) else load_curve(estimate)
    if isinstance(estimate, Harvest):
        estimate = fit(estimate)
    if isinstance(estimate, CurveEstimator):
        estimate = estimate.curve()
    if not isinstance(estimate, Curve):
        raise CurveError(
            f"Expected an estimate: a curve, a fitted estimator, a harvest, or the file of one, not a "
            f"{type(estimate).__name__}."
        )
    return estimate


def relative_propensities(
    estimate: Any, shown: Mapping[Segment, Iterable[int]], beyond: Beyond = "refuse"
) -> dict[Segment, dict[int, float]]:
    """Return p_k / p_1 at the ranks shown, by segment: () where the estimate has none.

    Ranks without a number are refused with their reasons, and so are those beyond M, unless they are to be taken for
    the last rank that has a number ("clip"), or to go on as the curve does ("extrapolate": the power of the rank that
    fits it best, from its last rank on).

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=500, max_rank=3)))
        >>> fitted = posbias.AllPairs().fit(posbias.harvest(log, max_rank=3))
        >>> found = relative_propensities(fitted, {(): [1, 2, 5]}, beyond="clip")
        >>> found[()][1], bool(found[()][5] == fitted.propensity_[2])
        (1.0, True)
    """
    one_of("beyond", beyond, BEYOND, CurveError)
    curve = curve_of(estimate)
    parts: Mapping[Segment, Curve] = curve.segments if curve.by else {(): curve}
    _refuse_unknown(curve, [key for key in shown if key not in parts])
    found: dict[Segment, dict[int, float]] = {}
    refused: dict[str, list[Segment]] = {}
    for key, ranks in shown.items():
        values, reasons = _values(parts[key], sorted({*ranks}), beyond)
        found[key] = values
        for reason in reasons:
            refused.setdefault(reason, []).append(key)
    if refused:
        further = any(f": {_BEYOND}" in reason for reason in refused)
        raise CurveError(_refusal(curve, refused, further), {"beyond": "clip"} if further else None)
    return found


def last_rank(curve: Curve) -> int:
    """Return the last rank that has a number."""
    return max((p.position for p in curve.positions if p.propensity is not None), default=1)


def _values(curve: Curve, ranks: list[int], beyond: Beyond) -> tuple[dict[int, float], list[str]]:
    """Return the values of ranks, and why others have none."""
    known = {p.position: p.propensity for p in curve.positions if p.propensity is not None}
    reasons = {p.position: p.reason for p in curve.positions if p.propensity is None}
    values = {rank: known[rank] for rank in ranks if rank in known}
    told: dict[str, list[int]] = {}
    for rank in (rank for rank in ranks if rank <= curve.max_rank and rank not in known):
        why = reasons.get(rank, "nothing was shown there in the log that the curve is an estimate of")
        told.setdefault(why or "not determined by that data", []).append(rank)
    deeper = [rank for rank in ranks if rank > curve.max_rank]
    if deeper and beyond == "refuse":
        told.setdefault(f"{_BEYOND} {curve.max_rank} ranks of the curve", []).extend(deeper)
    elif deeper:
        last = last_rank(curve)
        power = _power(known) if beyond == "extrapolate" else 0.0
        start = known.get(last, 1.0)
        # A steep curve that is taken far enough has no number any more.
        values |= {rank: start * math.exp(min(power * math.log(rank / last), _STEEPEST)) for rank in deeper}
    return values, [f"{'rank' if len(r) == 1 else 'ranks'} {_ranks(r)}: {why}" for why, r in told.items()]


def _ranks(ranks: list[int]) -> str:
    return spans(ranks) if len(ranks) < 20 else f"{min(ranks):,} to {max(ranks):,}"


def _power(known: Mapping[int, float]) -> float:
    """Return the power of the rank that fits a curve best: least squares of log p on log k through rank 1."""
    points = [(rank, p) for rank, p in known.items() if rank > 1 and p > 0]
    if not points:
        raise CurveError(
            "The curve has no rank but the first with a number above 0, from which it could be extrapolated."
        )
    x, y = (np.log(np.array(values, dtype=np.float64)) for values in zip(*points, strict=True))
    return float((x * y).sum() / (x * x).sum())


def _refuse_unknown(curve: Curve, unknown: list[Segment]) -> None:
    if unknown:
        raise CurveError(
            f"The estimate has a curve for each {', '.join(map(repr, curve.by))}, but none for {_named(unknown)}, "
            "which the log has. Estimate with the rows of these too, leave them out of the log (sql), or give an "
            "estimate without segments."
        )


def _refusal(curve: Curve, refused: Mapping[str, list[Segment]], further: bool) -> str:
    lines = [f"{reason}{f' (in {_named(keys)})' if curve.by else ''}." for reason, keys in refused.items()]
    choices = (
        " Ranks beyond the curve can also be taken for its last one (clip), or the curve be continued (extrapolate)."
        if further
        else ""
    )
    only = further and len(refused) == 1
    remedy = "Estimate the curve to a lower rank (max_rank)" if only else "Estimate from more data"
    return (
        f"The log shows results at ranks for which the estimate has no number: {' '.join(lines)} {remedy}, or leave "
        f"rows of these ranks out (sql).{choices}"
    )


def _named(keys: list[Segment]) -> str:
    rest = f" and {len(keys) - _MOST_TOLD:,} more" if len(keys) > _MOST_TOLD else ""
    return "; ".join(label(key) for key in keys[:_MOST_TOLD]) + rest
