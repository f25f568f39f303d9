"""Compare the curves of the segments of a harvest, such as devices or markets.

Each segment is compared with the precision-weighted mean of all segments, rank by rank. Segments share buckets of
queries, so the same bucket is left out of all of them to measure chance. A joint F test asks whether all segments have
the same curve. If there are too many segments for that, one mean over the ranks of each segment is tested.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from posbias._arrays import BoolArray, FloatArray, one_blas_thread
from posbias._defaults import DEFAULT_LEVEL
from posbias._stats import FTest, t_quantile
from posbias._text import format_p_value, format_ranges, label, listed, printable
from posbias._validate import share
from posbias.errors import CurveError, EstimateError, HarvestError
from posbias.estimators.significance import (
    AssumptionTest,
    Contrasts,
    joint_test,
    ratio_from_log,
    simultaneous_p_values,
)
from posbias.findings import Finding
from posbias.harvesting.harvest import Harvest
from posbias.judging.compare import (
    INTERVAL_NOTE,
    ComparedCurve,
    choose_estimator,
    f_test_to_dict,
    format_f_test,
    p_value_cell,
    wrap,
)
from posbias.logs.click_log import Segment
from posbias.progress import step
from posbias.version import __version__

FORMAT = 1
SEGMENTS_DIFFER = "segments-differ"
# The covariance of more differences than this would take too much memory.
_MAX_DIFFERENCES = 3_000
# More segments take too long to compare in a report or a diagnosis.
_MOST_SEGMENTS = 100
_NAME_WIDTH = 24


@one_blas_thread()
@step("Comparing segments")
def compare_segments(
    harvest: Harvest, *, estimator: str | None = None, level: float = DEFAULT_LEVEL
) -> SegmentComparison:
    """Test whether the segments of a harvest have the same curve, and report which differ, and at which ranks.

    Arguments:
        harvest (Harvest): a harvest with segment columns (`by`).
        estimator (str, optional): the name of the estimator, such as "all-pairs"; by default CrossFit, or AllPairs for
            a harvest of sums.
        level (float, default 0.95): the level of the intervals and of the test.

    Returns:
        SegmentComparison: each segment against the mean of all, and a joint test.

    Example:
        >>> import posbias
        >>> log = posbias.simulate(posbias.World(queries=3000, max_rank=5, segments={"phone": 1.5, "desktop": 0.8}))
        >>> harvest = posbias.harvest(posbias.ClickLog(log), max_rank=5, by=["device"])
        >>> posbias.compare_segments(harvest).differs
        True

    Reference:
        Z. Fang, A. Agarwal and T. Joachims, Intervention harvesting for context-dependent examination-bias estimation,
        SIGIR 2019.
    """
    share("level", level, CurveError)
    if not isinstance(harvest, Harvest):
        raise HarvestError(f"compare_segments takes a Harvest, not a {type(harvest).__name__}.")
    if not harvest.by:
        raise HarvestError("The harvest has no segments. Harvest the log by one or more columns.", {"by": "COLUMN"})
    if len(harvest.segments) > _MAX_DIFFERENCES:
        raise CurveError(
            f"The harvest has {len(harvest.segments):,} segments, and at most {_MAX_DIFFERENCES:,} can be compared. "
            "Harvest by fewer columns, or by coarser ones."
        )
    name = choose_estimator(harvest, estimator)
    curves: dict[Segment, ComparedCurve] = {}
    for key in harvest.segments:
        # A segment without a curve, or without refits by bucket, is left out.
        with suppress(EstimateError, CurveError):
            curve = ComparedCurve.of(harvest.segment(key), name, level)
            if curve.jackknife is not None:
                curves[key] = curve
    if len(curves) < 2:
        raise CurveError(
            f"Nothing to compare: of {len(harvest.segments):,} segments, {'only one' if curves else 'none'} has a "
            "curve with intervals by bucket of queries. Use more data, fewer segments, or a harvest by one engine."
        )
    without = [label(key) for key in harvest.segments if key not in curves]
    notes = (f"Left out, because they have no curve with intervals: {listed(without)}.",) if without else ()
    return _compare_with_mean(harvest, curves, level, notes)


def compare_few_segments(
    harvest: Harvest, estimator: str | None = None, level: float = DEFAULT_LEVEL
) -> SegmentComparison | str | None:
    """Compare the segments as a part of a diagnosis; return why not if they cannot be, and None if there are none."""
    if not harvest.by:
        return None
    if len(harvest.segments) > _MOST_SEGMENTS:
        count = len(harvest.segments)
        return f"Not tested: whether {count:,} segments share one curve (at most {_MOST_SEGMENTS} are compared)."
    with suppress(EstimateError):
        try:
            return compare_segments(harvest, estimator=estimator, level=level)
        except CurveError as error:
            return str(error)
    return "Not tested: whether segments share one curve (fewer than two segments have a curve)."


def _compare_with_mean(
    harvest: Harvest, curves: dict[Segment, ComparedCurve], level: float, notes: tuple[str, ...]
) -> SegmentComparison:
    """Compare each curve with the precision-weighted mean of all."""
    max_degrees = min(curve.jackknife.max_degrees for curve in curves.values() if curve.jackknife is not None)
    value, changes, known = _differences_from_mean(harvest, curves)
    by_rank = None
    if int(known.sum()) <= _MAX_DIFFERENCES:
        by_rank = Contrasts.from_deletions(value[known], changes[:, known], max_degrees)
    means = _mean_over_ranks(value, changes, known, max_degrees)
    joint, scope = None if by_rank is None else joint_test(by_rank), "all ranks of all segments"
    if joint is None or not joint.tested:
        joint, scope = joint_test(means), "the mean of each segment over its ranks"
    half = t_quantile(means.degrees, (1 + level) / 2) * means.standard_error
    p_values = simultaneous_p_values(means)
    p_values_by_rank = np.full(known.shape, np.nan)
    if by_rank is not None:
        p_values_by_rank[known] = simultaneous_p_values(by_rank)
    compared = [(row, key) for row, key in enumerate(curves) if known[row].any()]
    segments = tuple(
        SegmentDifference(
            segment=key,
            page_views=sum(curves[key].curve.page_views.values()),
            ratio=ratio_from_log(means.value[i]),
            low=ratio_from_log(means.value[i] - half[i]),
            high=ratio_from_log(means.value[i] + half[i]),
            p_value=float(p_values[i]),
            differs=bool(p_values[i] < 1 - level),
            ranks=tuple(int(k) + 2 for k in np.flatnonzero(p_values_by_rank[row] < 1 - level)),
        )
        for i, (row, key) in enumerate(compared)
    )
    return SegmentComparison(
        by=harvest.by,
        estimator=next(iter(curves.values())).curve.estimator,
        level=level,
        joint=joint if joint.tested else None,
        joint_scope=scope,
        min_rank_p_value=float(np.nanmin(p_values_by_rank)) if np.isfinite(p_values_by_rank).any() else None,
        segments=segments,
        notes=notes,
    )


def _differences_from_mean(
    harvest: Harvest, curves: dict[Segment, ComparedCurve]
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return x less the mean of all segments, its changes without each bucket, and where both are known.

    The shapes are (S, M − 1), (B, S, M − 1) and (S, M − 1).
    """
    x = np.stack([curve.log_propensity[1:] for curve in curves.values()])
    changes = np.stack([curve.scaled_changes(harvest.buckets) for curve in curves.values()], axis=1)[:, :, 1:]
    known = np.isfinite(x) & np.isfinite(changes).all(axis=0)
    # A rank that only one segment has cannot be compared.
    known &= known.sum(axis=0) > 1
    if not known.any():
        raise CurveError("No rank but the first has an interval in two segments: there is nothing to compare.")
    x, changes = np.where(known, x, 0.0), np.where(known, changes, 0.0)
    precision = _precision(changes, known)
    weight = precision / np.maximum(precision.sum(axis=0), 1e-300)
    return x - (weight * x).sum(axis=0), changes - (weight * changes).sum(axis=1, keepdims=True), known


def _mean_over_ranks(value: FloatArray, changes: FloatArray, known: BoolArray, max_degrees: float) -> Contrasts:
    """Return one number for each segment: the mean over its ranks, weighted by precision."""
    weight = _precision(changes, known)
    weight /= np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
    compared = known.any(axis=1)
    means, mean_changes = (weight * value).sum(axis=1), (weight * changes).sum(axis=2)
    return Contrasts.from_deletions(means[compared], mean_changes[:, compared], max_degrees)


def _precision(changes: FloatArray, known: BoolArray) -> FloatArray:
    return np.where(known, 1 / np.maximum((changes**2).sum(axis=0), 1e-300), 0.0)


@dataclass(frozen=True)
class SegmentComparison:
    """The result of `compare_segments`: whether the curves of segments differ.

    Attributes:
        by (tuple of str): the segment columns.
        estimator (str): the estimator of the curves.
        level (float): the level of the intervals and of the test.
        joint (FTest or None): an F test that all segments have one curve; None if there are too few queries for it.
        joint_scope (str): what it tests: all ranks of all segments or, if these are too many, a mean of each segment.
        min_rank_p_value (float or None): the smallest p-value of any rank of any segment, corrected for their number.
        segments (tuple of SegmentDifference): each segment against the mean of all.
        notes (tuple of str): what limits the comparison.
    """

    by: tuple[str, ...]
    estimator: str
    level: float
    joint: FTest | None
    joint_scope: str
    min_rank_p_value: float | None
    segments: tuple[SegmentDifference, ...]
    notes: tuple[str, ...] = ()

    @property
    def p_value(self) -> float:
        """The p-value of the joint test or, without one, of the segment that differs most."""
        return min(one.p_value for one in self.segments) if self.joint is None else self.joint.p_value

    @property
    def differs(self) -> bool:
        """Whether the curves of the segments differ significantly."""
        return self.p_value < 1 - self.level

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        return self.sentence(self.differs)

    def sentence(self, differs: bool) -> str:
        """Return a sentence that the curves differ, or that they do not; a caller may correct for further tests."""
        segments = f"the {len(self.segments)} segments by {printable(', '.join(self.by))}"
        p_value = format_p_value(self.p_value)
        if differs:
            return f"The curves of {segments} differ ({p_value})."
        return f"No significant difference between the curves of {segments} ({p_value})."

    @property
    def assumption_test(self) -> AssumptionTest:
        """The test whether all segments have one curve, as one of the tests of a diagnosis."""
        nan = float("nan")
        violated = Finding(
            SEGMENTS_DIFFER,
            "warning",
            f"{self.sentence(True).rstrip('.')}. The curve of all segments is their average, and fits none of them",
            len(self.segments),
            evidence={"segments": len(self.segments)},
            remedy="Use the curve of each segment, as estimates and weights by segment do.",
        )
        # The curve of all segments is meant to be an average, so a difference between them is never an error.
        result = FTest(nan, 0, nan, self.p_value) if self.joint is None else self.joint
        return AssumptionTest(result, violated, max_severity="warning")

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as `--json` prints it."""
        return {
            "format": FORMAT,
            "by": list(self.by),
            "estimator": self.estimator,
            "level": self.level,
            "differs": self.differs,
            "p_value": self.p_value,
            "joint": f_test_to_dict(self.joint),
            "joint_scope": self.joint_scope,
            "min_rank_p_value": self.min_rank_p_value,
            "segments": [
                asdict(one) | {"segment": dict(zip(self.by, one.segment, strict=True)), "ranks": list(one.ranks)}
                for one in self.segments
            ],
            "notes": list(self.notes),
            "version": __version__,
        }

    def to_text(self) -> str:
        """Return the verdict, and a table with a line for each segment."""
        lines = [wrap(self.verdict), wrap(self._method())]
        interval = f"{100 * self.level:g}% interval"
        lines.append(f"{'segment':<{_NAME_WIDTH}} page views    ratio  {interval:<16}    p  ranks")
        lines += [_table_row(one) for one in self.segments]
        lines.append("ratio: to the mean of all segments, over its ranks; ranks: where it differs")
        lines.append(INTERVAL_NOTE.format(what="segment"))
        lines += [wrap(f"! {note}") for note in self.notes]
        return "\n".join(lines)

    def _method(self) -> str:
        method = f"{self.estimator}, paired by bucket of queries; "
        if self.joint is None:
            return f"{method}too few queries for a test of all segments at once"
        return f"{method}{self.joint_scope} at once {format_f_test(self.joint)}"

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


def _table_row(one: SegmentDifference) -> str:
    name = printable(label(one.segment))
    name = name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 1]}…"
    interval = f"{one.low:.3f} – {one.high:.3f}"
    ranks = format_ranges(one.ranks) if one.ranks else ""
    row = f"{name:<{_NAME_WIDTH}} {one.page_views:>10,} {one.ratio:>8.3f}  {interval:<16} {p_value_cell(one.p_value)}"
    return f"{row}  {ranks}".rstrip()


@dataclass(frozen=True)
class SegmentDifference:
    """One segment against the mean of all segments.

    Attributes:
        segment (tuple of str or None): its values of the segment columns.
        page_views (int): its page views.
        ratio (float): its propensities over the mean of all segments, averaged over ranks.
        low, high (float): the confidence interval of the ratio.
        p_value (float): of the ratio, corrected for the number of segments.
        differs (bool): whether the p-value is below 1 − level.
        ranks (tuple of int): the ranks that differ from the mean, corrected for all ranks of all segments.
    """

    segment: tuple[str | None, ...]
    page_views: int
    ratio: float
    low: float
    high: float
    p_value: float
    differs: bool
    ranks: tuple[int, ...]
