"""Whether the segments of a harvest have one curve: each against the mean of all, paired by bucket of queries."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from posbias.arguments import share
from posbias.arrays import BoolArray, FloatArray
from posbias.errors import CurveError, EstimateError, HarvestError
from posbias.harvesting.harvests import Harvest, Segment
from posbias.judging.contrasts import Contrasts, judge_each, judge_jointly, ratio_of
from posbias.judging.segments import SegmentComparison, SegmentDifference
from posbias.judging.sides import Side, choose
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

    Reference: Fang, Agarwal and Joachims, SIGIR 2019 (curves that depend on context).
    """
    share("level", level, CurveError)
    if not isinstance(harvest, Harvest):
        raise HarvestError(f"compare_segments takes a Harvest, not a {type(harvest).__name__}.")
    if not harvest.by:
        raise HarvestError(
            "The harvest has no segments. Harvest the log by the columns that make them.", {"by": "COLUMN"}
        )
    if len(harvest.segments) > _MOST:
        raise CurveError(
            f"The harvest has {len(harvest.segments):,} segments, and up to {_MOST:,} can be compared. Harvest by "
            "fewer columns, or by coarser ones."
        )
    name = choose(harvest, estimator)
    sides: dict[Segment, Side] = {}
    for key in harvest.segments:
        # Without a curve, or where queries cannot be told apart by bucket, it is left out.
        with suppress(EstimateError, CurveError):
            side = Side.of(harvest.segment(key), name, level)
            if side.deletions is not None:
                sides[key] = side
    if len(sides) < 2:
        raise CurveError(
            f"Of {len(harvest.segments):,} segments, {'only one' if sides else 'none'} has a curve with intervals by "
            "bucket of queries: "
            "nothing to compare. It takes more data, fewer segments, or a harvest by one engine."
        )
    without = [label(key) for key in harvest.segments if key not in sides]
    note = f"No curve with intervals, and left out: {listed(without)}." if without else None
    return _compared(harvest, sides, level, note)


def _compared(harvest: Harvest, sides: dict[Segment, Side], level: float, note: str | None) -> SegmentComparison:
    every = harvest.buckets
    x = np.stack([side.x[1:] for side in sides.values()])
    moved = np.stack([side.deletions.within(every) for side in sides.values() if side.deletions is not None], axis=1)[
        :, :, 1:
    ]
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
    of_all = _contrasts(value, moved, known, sides) if int(known.sum()) <= _MOST else None
    # One number for each segment: its mean over ranks, the surest counting most.
    own = np.where(known, 1 / np.maximum((moved**2).sum(axis=0), 1e-300), 0.0)
    own /= np.maximum(own.sum(axis=1, keepdims=True), 1e-300)
    means = _contrasts(
        (own * value).sum(axis=1, keepdims=True),
        (own * moved).sum(axis=2, keepdims=True),
        np.asarray(known.any(axis=1, keepdims=True)),
        sides,
    )
    joint, of = None if of_all is None else judge_jointly(of_all), "all ranks of all segments"
    if joint is None:
        joint, of = judge_jointly(means), "the mean of each segment over its ranks"
    half = t_quantile(means.degrees, (1 + level) / 2) * means.error
    p_means = judge_each(means)
    p_each = np.full(known.shape, np.nan)
    if of_all is not None:
        p_each[known] = judge_each(of_all)
    shown = [key for key, ranks in zip(sides, known, strict=True) if ranks.any()]
    rows = [
        SegmentDifference(
            segment=key,
            page_views=sum(sides[key].curve.page_views.values()),
            ratio=ratio_of(means.value[i]),
            low=ratio_of(means.value[i] - half[i]),
            high=ratio_of(means.value[i] + half[i]),
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


def _contrasts(value: FloatArray, moved: FloatArray, known: BoolArray, sides: dict[Segment, Side]) -> Contrasts:
    """Return those that are known, in a row."""
    most = min(side.deletions.most_degrees for side in sides.values() if side.deletions is not None)
    return Contrasts.of_deletions(value[known], moved[:, known], most)
