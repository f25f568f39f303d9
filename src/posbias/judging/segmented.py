"""Whether the segments of a harvest have one curve: each against the mean of all, paired by bucket of queries."""

from __future__ import annotations

import numpy as np

from posbias.arguments import share
from posbias.arrays import BoolArray, FloatArray, IntArray
from posbias.errors import CurveError, EstimateError, HarvestError
from posbias.harvesting.harvests import Harvest, Segment
from posbias.judging.contrasts import Contrasts, judge_each, judge_jointly
from posbias.judging.segments import SegmentComparison, SegmentDifference
from posbias.judging.sides import Side
from posbias.quantiles import t_quantile
from posbias.wording import label, listed

# More than this many differences at once would fill the memory with their covariance.
_MOST = 3_000


def compare_segments(harvest: Harvest, *, estimator: str | None = None, level: float = 0.95) -> SegmentComparison:
    """Test whether the segments of a harvest have the same curve, and say which differ, and where.

    Arguments:
        harvest: made with segment columns, `by`.
        estimator: by its name, such as "all-pairs".
        level: of the intervals and of the test.
    """
    share("level", level, CurveError)
    if not harvest.by:
        raise HarvestError(
            "The harvest has no segments. Harvest the log by the columns that make them.", {"by": "COLUMN"}
        )
    sides: dict[Segment, Side] = {}
    without = []
    for key in harvest.segments:
        try:
            sides[key] = Side.of(harvest.segment(key), estimator, level)
        except (EstimateError, CurveError):
            without.append(label(key))
    if len(sides) < 2:
        raise CurveError(
            f"Of {len(harvest.segments):,} segments, {len(sides)} has a curve with intervals: nothing to compare. "
            "It takes more data, or fewer segments."
        )
    note = f"No curve with intervals, and left out: {listed(without)}." if without else None
    return _compared(harvest, sides, level, note)


def _compared(harvest: Harvest, sides: dict[Segment, Side], level: float, note: str | None) -> SegmentComparison:
    every = harvest.buckets
    x = np.stack([side.x[1:] for side in sides.values()])
    moved = np.stack([_moved(side, every) for side in sides.values()], axis=1)[:, :, 1:]
    known = np.isfinite(x) & np.isfinite(moved).all(axis=0)
    # A rank that one segment alone has is not compared.
    known &= known.sum(axis=0) > 1
    if not known.any():
        raise CurveError("No rank but the first has an interval in two segments: there is nothing to compare.")
    x, moved = np.where(known, x, 0.0), np.where(known, moved, 0.0)
    precision = np.where(known, 1 / np.maximum((moved**2).sum(axis=0), 1e-300), 0.0)
    weight = precision / np.maximum(precision.sum(axis=0), 1e-300)
    # Each against the mean of all, rank by rank.
    value = x - (weight * x).sum(axis=0)
    moved = moved - (weight * moved).sum(axis=1, keepdims=True)
    of_all = _contrasts(value, moved, known, sides)
    # One number for each segment: its mean over ranks, the surest counting most.
    own = np.where(known, 1 / np.maximum((moved**2).sum(axis=0), 1e-300), 0.0)
    own /= np.maximum(own.sum(axis=1, keepdims=True), 1e-300)
    means = _contrasts(
        (own * value).sum(axis=1, keepdims=True),
        (own * moved).sum(axis=2, keepdims=True),
        np.asarray(known.any(axis=1, keepdims=True)),
        sides,
    )
    joint, of = judge_jointly(of_all), "all ranks of all segments"
    if joint is None:
        joint, of = judge_jointly(means), "the mean of each segment over its ranks"
    half = t_quantile(means.degrees, (1 + level) / 2) * means.error
    p_means = judge_each(means)
    p_each = _spread(judge_each(of_all), known) if int(known.sum()) <= _MOST else np.full(known.shape, np.nan)
    shown = [key for key, ranks in zip(sides, known, strict=True) if ranks.any()]
    rows = [
        SegmentDifference(
            segment=key,
            page_views=sum(sides[key].curve.page_views.values()),
            ratio=float(np.exp(means.value[i])),
            low=float(np.exp(means.value[i] - half[i])),
            high=float(np.exp(means.value[i] + half[i])),
            p_value=float(p_means[i]),
            differs=bool(p_means[i] < 1 - level),
            ranks=tuple(int(k) + 2 for k in np.flatnonzero(p_each[list(sides).index(key)] < 1 - level)),
        )
        for i, key in enumerate(shown)
    ]
    return SegmentComparison(
        by=harvest.by,
        estimator=next(iter(sides.values())).curve.estimator,
        level=level,
        joint=joint,
        joint_of=of,
        p_each=float(np.nanmin(p_each)) if np.isfinite(p_each).any() else None,
        segments=tuple(rows),
        notes=() if note is None else (note,),
    )


def _moved(side: Side, every: IntArray) -> FloatArray:
    if side.deletions is None:
        raise CurveError(
            "Queries of this harvest cannot be told apart by bucket, because it was merged from several engines or a "
            "segment's traffic hangs on a few queries: its segments cannot be compared together. Compare two by two."
        )
    return side.deletions.within(every)


def _contrasts(value: FloatArray, moved: FloatArray, known: BoolArray, sides: dict[Segment, Side]) -> Contrasts:
    """Return those that are known, in a row."""
    most = min(side.deletions.most_degrees for side in sides.values() if side.deletions is not None)
    return Contrasts.of_deletions(value[known], moved[:, known], most)


def _spread(values: FloatArray, known: BoolArray) -> FloatArray:
    spread = np.full(known.shape, np.nan)
    spread[known] = values
    return spread
