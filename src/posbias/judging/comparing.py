"""Whether two curves differ: paired by bucket where both come from harvests, else by both covariances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from posbias.arguments import share, texts
from posbias.arrays import BoolArray, FloatArray
from posbias.curves.curve import Curve
from posbias.errors import CurveError
from posbias.judging.comparisons import Comparison, Difference
from posbias.judging.contrasts import Contrasts, judge_each, judge_jointly, ratio_of
from posbias.judging.sides import Side
from posbias.quantiles import t_quantile

# What is moved by less than this, in log p, is the same.
_SAME = 1e-9


def compare(
    first: Any,
    second: Any,
    *,
    estimator: str | None = None,
    level: float = 0.95,
    names: Sequence[str] = ("A", "B"),
) -> Comparison:
    """Compare two curves: as a whole, and rank by rank, with the ratio of the second to the first.

    Each is a `Harvest`, a fitted estimator or a `Curve`. Of two harvests, or estimators of harvests, queries that are
    in both make their errors alike, and the difference surer: it is measured by leaving out the same bucket of both. Of
    curves alone it is not known what they share, and they are taken for independent; where they share queries, that
    makes the test cautious.

    Arguments:
        first: what is compared with.
        second: what is compared.
        estimator: of harvests, by its name, such as "all-pairs".
        level: of the intervals; a rank differs where its p-value, allowing for all ranks, is below 1 − level.
        names: of the two, for the table.

    Example:
        >>> import posbias
        >>> log = posbias.simulate(posbias.World(queries=3000, max_rank=5, segments={"phone": 1.5, "desktop": 0.8}))
        >>> harvest = posbias.harvest(posbias.ClickLog(log), max_rank=5, by=["device"])
        >>> found = compare(harvest.segment("desktop"), harvest.segment("phone"), names=["desktop", "phone"])
        >>> found.differs, [d.rank for d in found.differences if d.differs]
        (True, [2, 3, 4, 5])
    """
    share("level", level, CurveError)
    called = texts("names", names, 2, CurveError)
    one, other = (Side.of(given, estimator, level) for given in (first, second))
    return compare_sides(one, other, level, (called[0], called[1]))


def compare_sides(one: Side, other: Side, level: float, names: tuple[str, str]) -> Comparison:
    """Compare two sides over the ranks that both have."""
    ranks = min(len(one.x), len(other.x))
    value = (other.x[:ranks] - one.x[:ranks])[1:]
    contrasts, paired = _contrasts(one, other, value)
    known = np.isfinite(value) & np.isfinite(contrasts.error)
    # Estimates that never part are one and the same: there is nothing to test.
    same = known & (contrasts.error < _SAME) & (np.abs(np.nan_to_num(value)) < _SAME)
    tested = known & (contrasts.error >= _SAME)
    found = contrasts.where(tested)
    p_values = np.full(len(value), np.nan)
    p_values[tested] = judge_each(found)
    p_values[same] = 1.0
    half = np.zeros(len(value))
    half[tested] = t_quantile(found.degrees, (1 + level) / 2) * found.error
    differences = tuple(
        _difference(k, one.curve, other.curve, value, half, contrasts.degrees, p_values, level)
        for k in range(len(value))
        if _shown(one.curve, k) or _shown(other.curve, k)
    )
    if not known.any():
        raise CurveError("No rank but the first has an interval on both sides: there is nothing to compare.")
    return Comparison(
        names=names,
        estimators=(one.curve.estimator, other.curve.estimator),
        level=level,
        paired=paired,
        joint=judge_jointly(found),
        differences=differences,
        page_views=(sum(one.curve.page_views.values()), sum(other.curve.page_views.values())),
        notes=_notes(one, other, paired),
    )


def _contrasts(one: Side, other: Side, value: FloatArray) -> tuple[Contrasts, bool]:
    """Return the differences with their errors, and whether these were paired by bucket."""
    ranks = len(value) + 1
    mine, theirs = one.deletions, other.deletions
    if mine is not None and theirs is not None and mine.engine == theirs.engine:
        every = np.union1d(mine.buckets, theirs.buckets)
        moved = (theirs.within(every)[:, :ranks] - mine.within(every)[:, :ranks])[:, 1:]
        unknown = ~np.isfinite(moved).all(axis=0) | ~np.isfinite(value)
        made = Contrasts.of_deletions(value, np.where(unknown, 0.0, moved), min(mine.most_degrees, theirs.most_degrees))
        return replace(made, covariance=_hidden(made.covariance, unknown)), True
    covariances = one.covariance[1:ranks, 1:ranks], other.covariance[1:ranks, 1:ranks]
    return Contrasts.of_independent(value, covariances, (one.degrees[1:ranks], other.degrees[1:ranks])), False


def _hidden(covariance: FloatArray, unknown: BoolArray) -> FloatArray:
    return np.where(unknown[:, None] | unknown, np.nan, covariance)


def _shown(curve: Curve, k: int) -> bool:
    return any(p.position == k + 2 for p in curve.positions)


def _difference(
    k: int,
    one: Curve,
    other: Curve,
    value: FloatArray,
    half: FloatArray,
    degrees: FloatArray,
    p_values: FloatArray,
    level: float,
) -> Difference:
    before, after = (_propensity(curve, k + 1) for curve in (one, other))
    if np.isnan(p_values[k]):
        reason = _reason(one, k + 2) or _reason(other, k + 2) or "no interval on both sides"
        return Difference(k + 2, before, after, None, None, None, None, None, False, reason)
    ratio, low, high = (ratio_of(x) for x in (value[k], value[k] - half[k], value[k] + half[k]))
    weak = _reason(one, k + 2) or _reason(other, k + 2)
    p_value = float(p_values[k])
    return Difference(
        rank=k + 2,
        before=before,
        after=after,
        ratio=ratio,
        low=low,
        high=high,
        degrees_of_freedom=float(degrees[k]),
        p_value=p_value,
        differs=p_value < 1 - level,
        reason=weak,
    )


def _propensity(curve: Curve, k: int) -> float | None:
    found = curve.propensity[k] if k < curve.max_rank else np.nan
    return float(found) if np.isfinite(found) else None


def _reason(curve: Curve, rank: int) -> str | None:
    return next((p.reason for p in curve.positions if p.position == rank), None)


def _notes(one: Side, other: Side, paired: bool) -> tuple[str, ...]:
    """Say what is to be known of a comparison."""
    said = []
    if one.curve.estimator != other.curve.estimator:
        said.append(
            f"The curves come from two estimators, {one.curve.estimator} and {other.curve.estimator}: a difference may "
            "be theirs."
        )
    if not paired and one.deletions is not None and other.deletions is not None:
        said.append(
            "The harvests come from engines that put queries into different buckets: they are taken for independent."
        )
    if len(one.x) != len(other.x):
        said.append(f"Ranks beyond {min(len(one.x), len(other.x))} are on one side only, and are left out.")
    gone = {*one.curve.page_views} ^ {*other.curve.page_views}
    if gone:
        said.append(f"Not the same rankers on both sides: {', '.join(sorted(gone))} on one only.")
    return (*said, *dict.fromkeys((*one.curve.notes, *other.curve.notes)))
