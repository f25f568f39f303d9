"""Compare the curves of the segments of a harvest."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias._arrays import BoolArray, FloatArray
from posbias._stats import t_quantile
from posbias._text import format_p_value, format_ranges, label, listed, printable
from posbias._validate import DEFAULT_LEVEL, share
from posbias.errors import CurveError, EstimateError, HarvestError
from posbias.findings import Finding
from posbias.harvesting.harvest import Harvest, Segment
from posbias.judging.compare import ALONE, ComparedCurve, choose_estimator, number, wrapped
from posbias.judging.significance import Contrasts, Question, Trial, joint_test, ratio_from_log, simultaneous_p_values
from posbias.version import __version__

if TYPE_CHECKING:
    from posbias.judging.significance import JointTest

FORMAT = 1
DIFFER = "segments-differ"
_NAME = 24
# More than this many differences at once would fill the memory with their covariance.
_MOST = 3_000


def compare_segments(
    harvest: Harvest, *, estimator: str | None = None, level: float = DEFAULT_LEVEL
) -> SegmentComparison:
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
    name = choose_estimator(harvest, estimator)
    sides: dict[Segment, ComparedCurve] = {}
    for key in harvest.segments:
        # Without a curve, or where queries cannot be told apart by bucket, it is left out.
        with suppress(EstimateError, CurveError):
            side = ComparedCurve.of(harvest.segment(key), name, level)
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


@dataclass(frozen=True)
class SegmentComparison:
    """Whether the curves of segments differ by more than chance.

    Attributes:
        by: the segment columns.
        estimator: of the curves.
        level: of the intervals and of the test.
        joint: an F test that all have one curve; None where there are too few queries for so many segments.
        joint_of: what it tests: all ranks of all segments or, where these are too many, a mean of each segment.
        p_each: the least p-value of any rank of any segment, allowing for all of them.
        segments: each against the mean of all.
        notes: what is to be known of the comparison.
    """

    by: tuple[str, ...]
    estimator: str
    level: float
    joint: JointTest | None
    joint_of: str
    p_each: float | None
    segments: tuple[SegmentDifference, ...]
    notes: tuple[str, ...] = ()

    @property
    def p_value(self) -> float:
        """Of the joint test or, where there is none, of the segment that differs most."""
        return min(one.p_value for one in self.segments) if self.joint is None else self.joint.p_value

    @property
    def differs(self) -> bool:
        """Whether the segments' curves differ by more than chance."""
        return self.p_value < 1 - self.level

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as `--json` prints it."""
        return {
            "format": FORMAT,
            "by": list(self.by),
            "estimator": self.estimator,
            "level": self.level,
            "differs": self.differs,
            "p_value": self.p_value,
            "joint": None if self.joint is None else asdict(self.joint) | {"degrees": list(self.joint.degrees)},
            "joint_of": self.joint_of,
            "p_each": self.p_each,
            "segments": [
                asdict(one) | {"segment": dict(zip(self.by, one.segment, strict=True)), "ranks": list(one.ranks)}
                for one in self.segments
            ],
            "notes": list(self.notes),
            "version": __version__,
        }

    def to_text(self) -> str:
        """Return the comparison as a table, after what comes of it."""
        lines = [wrapped(self.verdict), wrapped(self._how)]
        interval = f"{100 * self.level:g}% interval"
        lines.append(f"{'segment':<{_NAME}} page views    ratio  {interval:<16}    p  ranks")
        for one in self.segments:
            name = printable(label(one.segment))
            name = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
            ends = f"{one.low:.3f} – {one.high:.3f}"
            where = format_ranges(one.ranks) if one.ranks else ""
            line = f"{name:<{_NAME}} {one.page_views:>10,} {one.ratio:>8.3f}  {ends:<16} {number(one.p_value)}  {where}"
            lines.append(line.rstrip())
        lines.append("ratio: to the mean of all, over its ranks; ranks: where it differs from it")
        lines.append(ALONE.format(what="segment"))
        lines += [wrapped(f"! {note}") for note in self.notes]
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """What comes of it, in a sentence, where nothing else is asked."""
        return self.told(self.differs)

    def told(self, differs: bool) -> str:
        """Return in a sentence that the curves differ, or that they do not by more than chance."""
        segments, p = (
            f"the {len(self.segments)} segments by {printable(', '.join(self.by))}",
            format_p_value(self.p_value),
        )
        if differs:
            return f"The curves of {segments} differ ({p})."
        return f"No difference beyond chance between {segments} ({p})."

    @property
    def question(self) -> Question:
        """Whether one curve is that of all segments, as one question among those of a diagnosis."""
        joint, nan = self.joint, float("nan")
        trial = Trial(nan, 0, nan, self.p_value)
        if joint is not None:
            trial = Trial(joint.statistic, joint.degrees[0], joint.degrees[1], joint.p_value)
        alarm = Finding(
            DIFFER,
            "warning",
            f"{self.told(True).rstrip('.')}: the curve of all is their average, and that of none of them",
            len(self.segments),
            evidence={"segments": len(self.segments)},
            remedy="Use each segment's own curve, as estimates and weights by segment do.",
        )
        # An average of curves is what the curve of all is meant to be, however sure it is that they differ.
        return Question(trial, alarm, surely="warning")

    @property
    def _how(self) -> str:
        if self.joint is None:
            return f"{self.estimator}, paired by bucket of queries; too few queries for one test of all"
        degrees = f"{self.joint.degrees[0]}, {self.joint.degrees[1]:.0f}"
        return (
            f"{self.estimator}, paired by bucket of queries; {self.joint_of} at once F({degrees}) = "
            f"{self.joint.statistic:.2f}"
        )

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


def _compared(
    harvest: Harvest, sides: dict[Segment, ComparedCurve], level: float, note: str | None
) -> SegmentComparison:
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
    joint, of = None if of_all is None else joint_test(of_all), "all ranks of all segments"
    if joint is None:
        joint, of = joint_test(means), "the mean of each segment over its ranks"
    half = t_quantile(means.degrees, (1 + level) / 2) * means.standard_error
    p_means = simultaneous_p_values(means)
    p_each = np.full(known.shape, np.nan)
    if of_all is not None:
        p_each[known] = simultaneous_p_values(of_all)
    shown = [key for key, ranks in zip(sides, known, strict=True) if ranks.any()]
    rows = [
        SegmentDifference(
            segment=key,
            page_views=sum(sides[key].curve.page_views.values()),
            ratio=ratio_from_log(means.value[i]),
            low=ratio_from_log(means.value[i] - half[i]),
            high=ratio_from_log(means.value[i] + half[i]),
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


def _contrasts(
    value: FloatArray, moved: FloatArray, known: BoolArray, sides: dict[Segment, ComparedCurve]
) -> Contrasts:
    """Return those that are known, in a row."""
    most = min(side.deletions.most_degrees for side in sides.values() if side.deletions is not None)
    return Contrasts.from_deletions(value[known], moved[:, known], most)


@dataclass(frozen=True)
class SegmentDifference:
    """One segment against the mean of all.

    Attributes:
        segment: its values of the segment columns.
        page_views: in it.
        ratio: of its propensities to the mean of all segments, on average over ranks, from `low` to `high`.
        p_value: of that ratio, allowing for there being several segments.
        differs: whether that is less than 1 − level.
        ranks: where it differs from the mean, allowing for all ranks of all segments.
    """

    segment: tuple[str | None, ...]
    page_views: int
    ratio: float
    low: float
    high: float
    p_value: float
    differs: bool
    ranks: tuple[int, ...]
