"""Compare two curves, rank by rank and as a whole.

The difference of two curves is x' − x with x = log p, so exp of it is the ratio of their propensities. If both curves
come from harvests with the same buckets of queries, the same bucket is left out of both, and the spread of the
differences over buckets measures chance. Queries that are in both harvests then cancel. Otherwise the curves are
treated as independent, and the covariance of the difference is the sum of both.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias._arrays import FloatArray, IntArray, one_blas_thread
from posbias._charts import Chart, Rule, Series, known, number_axis, rank_axis, short_names
from posbias._defaults import DEFAULT_LEVEL
from posbias._matplotlib import draw, save
from posbias._stats import FTest, t_quantile
from posbias._text import format_p_value, format_ranks, listed, printable
from posbias._validate import check_type, share, texts
from posbias.curves.curve import Curve
from posbias.errors import CurveError
from posbias.estimators import FROM_HARVESTS, estimator_class
from posbias.estimators.base import CurveEstimator, Estimator, Jackknife
from posbias.estimators.significance import Contrasts, joint_test, ratio_from_log, simultaneous_p_values
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.overlaps import bucketing
from posbias.harvesting.row_checks import MIXED_ENGINES
from posbias.progress import step
from posbias.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = 1
# Differences of log p below this are rounding errors: the curves are identical.
_ROUNDING = 1e-9
INTERVAL_NOTE = "each interval is for one {what}; p-values allow for the number of {what}s"
_MAX_NAMED_RANKS = 4
_WIDTH = 80
# The least and the largest width of the column of a curve; the name of any estimator fits.
_MIN_COLUMN, _MAX_COLUMN = 10, 14
# These must not be broken at a line end.
_UNBROKEN = re.compile(r"F\(\d+, \d+\) = |p [<=] ")


def compare(
    first: Any,
    second: Any,
    *,
    estimator: str | None = None,
    level: float = DEFAULT_LEVEL,
    names: Sequence[str] = ("A", "B"),
) -> Comparison:
    """Compare two curves, as a whole and rank by rank, with the ratio of the second to the first.

    Two harvests, or estimators fitted on harvests, are paired by bucket of queries: leaving the same bucket out of both
    shows how much their difference varies. That finds smaller differences if they share queries. Curves alone are
    treated as independent, which makes the test cautious if they share queries.

    Arguments:
        first (Harvest, fitted estimator or Curve): the curve to compare with.
        second (Harvest, fitted estimator or Curve): the curve to compare.
        estimator (str, optional): the name of the estimator for harvests, such as "all-pairs"; by default CrossFit, or
            AllPairs for a harvest of sums.
        level (float, default 0.95): the level of the intervals. A rank differs if its p-value, corrected for the number
            of ranks, is below 1 − level.
        names (sequence of str, default ("A", "B")): the names of the two curves in the table.

    Returns:
        Comparison: the ratio at each rank with its interval and p-value, and a joint test.

    Example:
        >>> import posbias
        >>> log = posbias.simulate(posbias.World(queries=3000, max_rank=5, segments={"phone": 1.5, "desktop": 0.8}))
        >>> harvest = posbias.harvest(posbias.ClickLog(log), max_rank=5, by=["device"])
        >>> comparison = compare(harvest.segment("desktop"), harvest.segment("phone"), names=["desktop", "phone"])
        >>> comparison.differs, [difference.rank for difference in comparison.differences if difference.differs]
        (True, [2, 3, 4, 5])
    """
    share("level", level, CurveError)
    first_name, second_name = texts("names", names, 2, CurveError)
    return compare_curves(
        ComparedCurve.of(first, estimator, level),
        ComparedCurve.of(second, estimator, level),
        level,
        (first_name, second_name),
    )


@one_blas_thread()
@step("Comparing curves")
def compare_curves(first: ComparedCurve, second: ComparedCurve, level: float, names: tuple[str, str]) -> Comparison:
    """Compare two curves over the ranks that both have."""
    ranks = min(first.max_rank, second.max_rank)
    value = (second.log_propensity[:ranks] - first.log_propensity[:ranks])[1:]
    contrasts, paired = _contrasts(first, second, value)
    error = contrasts.standard_error
    known = np.isfinite(value) & np.isfinite(error)
    identical = known & (error < _ROUNDING) & (np.abs(np.nan_to_num(value)) < _ROUNDING)
    tested = known & (error >= _ROUNDING)
    if not known.any():
        raise CurveError("No rank but the first has an interval in both curves: there is nothing to compare.")
    testable = contrasts.where(tested)
    p_values = np.full(len(value), np.nan)
    p_values[tested] = simultaneous_p_values(testable)
    p_values[identical] = 1.0
    half = np.zeros(len(value))
    half[tested] = t_quantile(testable.degrees, (1 + level) / 2) * testable.standard_error
    joint = joint_test(testable)
    return Comparison(
        names=names,
        estimators=(first.curve.estimator, second.curve.estimator),
        level=level,
        paired=paired,
        joint=joint if joint.tested else None,
        differences=tuple(
            _difference(k + 2, first.curve, second.curve, value[k], half[k], contrasts.degrees[k], p_values[k], level)
            for k in range(len(value))
            if _shows(first.curve, k + 2) or _shows(second.curve, k + 2)
        ),
        page_views=(sum(first.curve.page_views.values()), sum(second.curve.page_views.values())),
        notes=_notes(first, second, paired),
    )


def _contrasts(first: ComparedCurve, second: ComparedCurve, value: FloatArray) -> tuple[Contrasts, bool]:
    """Return the differences from rank 2 on with their errors, and whether these were paired by bucket."""
    ranks = len(value) + 1
    if first.jackknife is None or second.jackknife is None or first.engine != second.engine:
        covariances = first.covariance[1:ranks, 1:ranks], second.covariance[1:ranks, 1:ranks]
        degrees = first.degrees[1:ranks], second.degrees[1:ranks]
        return Contrasts.from_independent(value, covariances, degrees), False
    buckets = np.union1d(first.buckets, second.buckets)
    changes = (second.scaled_changes(buckets)[:, :ranks] - first.scaled_changes(buckets)[:, :ranks])[:, 1:]
    unknown = ~np.isfinite(changes).all(axis=0) | ~np.isfinite(value)
    max_degrees = min(first.jackknife.max_degrees, second.jackknife.max_degrees)
    contrasts = Contrasts.from_deletions(value, np.where(unknown, 0.0, changes), max_degrees)
    covariance = np.where(unknown[:, None] | unknown, np.nan, contrasts.covariance)
    return replace(contrasts, covariance=covariance), True


def _difference(
    rank: int, first: Curve, second: Curve, value: float, half: float, degrees: float, p_value: float, level: float
) -> Difference:
    before, after = (_propensity(curve, rank) for curve in (first, second))
    reason = _reason(first, rank) or _reason(second, rank)
    if np.isnan(p_value):
        reason = reason or "no interval in both curves"
        return Difference(rank, before, after, None, None, None, None, None, False, reason)
    return Difference(
        rank=rank,
        before=before,
        after=after,
        ratio=ratio_from_log(value),
        low=ratio_from_log(value - half),
        high=ratio_from_log(value + half),
        degrees_of_freedom=float(degrees),
        p_value=float(p_value),
        differs=bool(p_value < 1 - level),
        reason=reason,
    )


def _propensity(curve: Curve, rank: int) -> float | None:
    value = curve.propensity[rank - 1] if rank <= curve.max_rank else np.nan
    return float(value) if np.isfinite(value) else None


def _reason(curve: Curve, rank: int) -> str | None:
    return next((p.reason for p in curve.positions if p.position == rank), None)


def _shows(curve: Curve, rank: int) -> bool:
    return any(p.position == rank for p in curve.positions)


def _notes(first: ComparedCurve, second: ComparedCurve, paired: bool) -> tuple[str, ...]:
    """Return what limits the comparison, and the notes of both curves."""
    notes = []
    if first.curve.estimator != second.curve.estimator:
        notes.append(
            f"The curves come from different estimators, {first.curve.estimator} and {second.curve.estimator}, which "
            "may explain a difference."
        )
    if not paired and first.jackknife is not None and second.jackknife is not None:
        notes.append(
            "The engines, or the versions of posbias, of the harvests put queries into different buckets, so the "
            "curves are compared as if they came from separate data."
        )
    if first.max_rank != second.max_rank:
        notes.append(f"Ranks beyond {min(first.max_rank, second.max_rank)} are in one curve only, and are left out.")
    unshared = {*first.curve.page_views} ^ {*second.curve.page_views}
    if unshared:
        notes.append(f"The curves have different rankers. In one of them only: {', '.join(sorted(unshared))}.")
    return (*notes, *dict.fromkeys((*first.curve.notes, *second.curve.notes)))


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`: two curves side by side, and whether they differ.

    Attributes:
        names (pair of str): the names of the first and of the second curve.
        estimators (pair of str): the estimators of both.
        level (float): the level of the intervals and of the test.
        paired (bool): whether the errors were paired by bucket of queries; if not, the curves count as independent.
        joint (FTest or None): an F test of all ranks at once; None if it cannot be made.
        differences (tuple of Difference): the difference at each rank from the second on.
        page_views (pair of int): the page views of both.
        notes (tuple of str): what limits the comparison.
        no_joint (str): what `method` says in place of an F test of all ranks at once.
    """

    names: tuple[str, str]
    estimators: tuple[str, str]
    level: float
    paired: bool
    joint: FTest | None
    differences: tuple[Difference, ...]
    page_views: tuple[int, int]
    notes: tuple[str, ...] = ()
    no_joint: str = "too few queries for a test of all ranks at once"

    @property
    def p_value(self) -> float:
        """The smallest p-value of any rank, corrected for the number of ranks."""
        return min((d.p_value for d in self.differences if d.p_value is not None), default=1.0)

    @property
    def differs(self) -> bool:
        """Whether any rank differs significantly, after correction for the number of ranks."""
        return any(d.differs for d in self.differences)

    @property
    def identical(self) -> bool:
        """Whether both curves are the same, and stay the same whichever queries are left out."""
        tested = [d for d in self.differences if d.p_value is not None]
        untested = [d for d in self.differences if d.p_value is None]
        return bool(tested) and all(d.low == d.high for d in tested) and all(d.before == d.after for d in untested)

    @property
    def interval_note(self) -> str:
        """Why an interval may exclude 1 although the p-value shows no difference; empty if there is one rank only."""
        several = sum(d.p_value is not None for d in self.differences) > 1
        return INTERVAL_NOTE.format(what="rank") if several and not self.identical else ""

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        first, second = self.names
        if self.identical:
            return f"{first} and {second} have identical curves: there is nothing to test."
        differing = sorted((d for d in self.differences if d.differs), key=_least_change, reverse=True)
        p_value = format_p_value(self.p_value, round(1 - self.level, 10))
        if not differing:
            return f"No significant difference from {first} to {second} at any rank ({p_value})."
        named = [f"rank {d.rank} by {format_change(d.ratio)}" for d in differing[:_MAX_NAMED_RANKS]]
        more = f" and {len(differing) - _MAX_NAMED_RANKS} more" if len(differing) > _MAX_NAMED_RANKS else ""
        return f"The curves differ ({p_value}): from {first} to {second}, {', '.join(named)}{more}."

    @property
    def method(self) -> str:
        """How the curves were compared, in one line."""
        parts = [
            f"{' and '.join(dict.fromkeys(self.estimators))}, "
            + ("paired by bucket of queries" if self.paired else "compared as curves of separate data")
        ]
        if self.joint is not None:
            parts.append(f"all ranks at once {format_f_test(self.joint)}, {format_p_value(self.joint.p_value)}")
        elif not self.identical and self.no_joint:
            parts.append(self.no_joint)
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as `--json` prints it."""
        return {
            "format": FORMAT,
            "names": list(self.names),
            "estimators": list(self.estimators),
            "level": self.level,
            "paired": self.paired,
            "differs": self.differs,
            "p_value": self.p_value,
            "joint": f_test_to_dict(self.joint),
            "differences": [asdict(d) for d in self.differences],
            "page_views": list(self.page_views),
            "notes": list(self.notes),
            "version": __version__,
        }

    def to_text(self) -> str:
        """Return the verdict, and a table with a line for each rank."""
        first, second = (_shorten(name) for name in self.names)
        width = max(_MIN_COLUMN, len(first), len(second))
        interval = f"{100 * self.level:g}% interval"
        lines = [wrap(self.verdict), wrap(self.method)]
        lines.append(f"rank {first:>{width}} {second:>{width}}    ratio  {interval:<16}    p")
        lines += [_table_row(d, width, self.level) for d in self.differences]
        if self.interval_note:
            lines.append(self.interval_note)
        lines += [wrap(f"! {note}") for note in (*self._weak_ranks(), *self.notes)]
        return "\n".join(lines)

    def _weak_ranks(self) -> list[str]:
        """Return what makes tested ranks weak, once for all ranks with the same reason."""
        ranks: dict[str, list[int]] = {}
        for d in self.differences:
            if d.ratio is not None and d.reason is not None:
                ranks.setdefault(d.reason, []).append(d.rank)
        return [f"{format_ranks(group).capitalize()}: {reason}." for reason, group in ranks.items()]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the ratio by rank with its intervals.

        Arguments:
            ax (matplotlib Axes, optional): where to draw; by default a new figure.

        Returns:
            matplotlib Axes: the axes with the plot.
        """
        return draw_comparison(self, ax)

    def save_plot(self, path: str) -> None:
        """Save the plot as PNG, SVG or PDF."""
        save(self.plot(), path)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


def _least_change(difference: Difference) -> float:
    """Return how much the propensity changed at least, by the end of the interval that is nearest to no change.

    It is large where a change is both large and certain.
    """
    nearest = min((difference.low or 1.0, difference.high or 1.0), key=lambda ratio: abs(np.log(ratio)))
    return abs(nearest - 1.0) * (difference.before or 0.0)


@dataclass(frozen=True)
class Difference:
    """The difference of two curves at one rank; what is not known is None.

    Attributes:
        rank (int): k.
        before, after (float or None): p_k / p_1 of the first and of the second curve.
        ratio (float or None): after / before.
        low, high (float or None): the confidence interval of the ratio.
        degrees_of_freedom (float or None): of the interval.
        p_value (float or None): corrected for the number of ranks.
        differs (bool): whether the p-value is below 1 − level.
        reason (str or None): why there is no result, or what makes it weak.
    """

    rank: int
    before: float | None
    after: float | None
    ratio: float | None
    low: float | None
    high: float | None
    degrees_of_freedom: float | None
    p_value: float | None
    differs: bool
    reason: str | None = None


@dataclass(frozen=True, eq=False)
class ComparedCurve:
    """A curve with the errors that a comparison needs, by rank; NaN where there is no interval.

    Attributes:
        log_propensity (array of length M): x = log p.
        covariance (array of shape M × M): the covariance of x.
        degrees (array of length M): degrees of freedom.
        curve (Curve): the curve itself.
        jackknife (Jackknife or None): the refits without each bucket, if they can be paired with another curve's.
        buckets (array of int): the bucket that each refit leaves out.
        engine (object): the engine and the rule that put queries into buckets; others may use other buckets.
    """

    log_propensity: FloatArray
    covariance: FloatArray
    degrees: FloatArray
    curve: Curve
    jackknife: Jackknife | None = None
    buckets: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    engine: object = None

    @classmethod
    def of(cls, source: Any, estimator: str | None, level: float) -> ComparedCurve:
        """Return the curve of a harvest, a fitted estimator or a `Curve`."""
        if isinstance(source, Harvest):
            source = fit_harvest(source, estimator, level)
        if isinstance(source, Curve):
            return cls._of_curve(source)
        if not isinstance(source, CurveEstimator):
            raise CurveError(
                f"A {type(source).__name__} cannot be compared. Give a Harvest, a fitted estimator or a Curve."
            )
        compared = cls._of_curve(source.curve())
        if not isinstance(source, Estimator) or source.jackknife_ is None:
            return compared
        harvest, jackknife = source.harvest_, source.jackknife_
        mixed = any(finding.code == MIXED_ENGINES.code for finding in harvest.findings)
        # If the estimator left buckets out, it is not known which bucket each refit leaves out.
        if mixed or jackknife.buckets != len(harvest.buckets):
            return compared
        return replace(compared, jackknife=jackknife, buckets=harvest.buckets, engine=bucketing(harvest))

    @classmethod
    def _of_curve(cls, curve: Curve) -> ComparedCurve:
        covariance, degrees = curve.covariance_matrix, np.full(curve.max_rank, np.nan)
        # A percentile interval has no degrees of freedom; infinitely many stand for a normal quantile.
        for p in curve.positions:
            degrees[p.position - 1] = np.inf if p.degrees_of_freedom is None else p.degrees_of_freedom
        known = np.isfinite(curve.interval[:, 0]) & np.isfinite(np.diagonal(covariance)) & (curve.propensity > 0)
        known[0] = True
        x = np.log(np.where(known, curve.propensity, np.nan))
        if not known[1:].any():
            raise CurveError(
                f"The curve of {curve.estimator!r} has no interval at any rank but the first, so no difference can "
                "be tested. Estimate it with intervals, from more queries."
            )
        return cls(x, covariance, np.where(known, degrees, np.nan), curve)

    @property
    def max_rank(self) -> int:
        """M."""
        return len(self.log_propensity)

    def scaled_changes(self, buckets: IntArray) -> FloatArray:
        """Return the change of x without each of some buckets, scaled so that the sum of squares is its variance.

        A bucket that is not in the harvest changes nothing.
        """
        scaled = np.zeros((len(buckets), self.max_rank))
        if self.jackknife is not None:
            own = self.jackknife.buckets
            scaled[np.searchsorted(buckets, self.buckets)] = self.jackknife.changes * np.sqrt((own - 1) / own)
        return scaled


def fit_harvest(harvest: Harvest, estimator: str | None = None, level: float = DEFAULT_LEVEL) -> Estimator[Any]:
    """Fit the named estimator on a harvest; by default CrossFit, or AllPairs for a harvest of sums."""
    kind: Any = estimator_class(choose_estimator(harvest, estimator))
    return kind(level=level).fit(harvest)  # type: ignore[no-any-return]


def choose_estimator(harvest: Harvest, estimator: str | None) -> str:
    """Return the name of the estimator to fit on a harvest, and refuse one that does not fit on harvests."""
    name = ("all-pairs" if harvest.kind == "pairs" else "cross-fit") if estimator is None else estimator
    if not isinstance(name, str) or name not in FROM_HARVESTS:
        raise CurveError(f"The estimator {name!r} does not fit on a harvest. Use one of {listed(FROM_HARVESTS)}.")
    return name


# ---- Text


def format_f_test(test: FTest) -> str:
    """Return an F test as text.

    >>> format_f_test(FTest(0.7312, 9, 183.4, 0.678))
    'F(9, 183) = 0.73'
    """
    return f"F({test.numerator}, {test.denominator:.0f}) = {test.statistic:.2f}"


def f_test_to_dict(test: FTest | None) -> dict[str, Any] | None:
    """Return an F test as `--json` prints it."""
    if test is None:
        return None
    return {
        "statistic": test.statistic,
        "degrees_of_freedom": [test.numerator, test.denominator],
        "p_value": test.p_value,
    }


def p_value_cell(p_value: float | None, level: float = DEFAULT_LEVEL) -> str:
    """Return a p-value as a cell of a table, with the digits that a test at a level needs.

    >>> p_value_cell(0.0312), p_value_cell(1e-9), p_value_cell(None)
    ('0.031', '<.001', '–')
    >>> p_value_cell(0.0005, 0.9998), p_value_cell(1e-9, 0.9998)
    ('.0005', '<.0002')
    """
    if p_value is None:
        return "–"
    least = min(0.001, round(1 - level, 10))
    if p_value >= 0.001:
        return f"{p_value:.3f}"
    return f"<{least:g}".replace("0.", ".") if p_value < least else f"{p_value:.1g}".replace("0.", ".")


def format_change(ratio: float | None) -> str:
    """Return a ratio as a change in percent.

    >>> format_change(1.1), format_change(0.934)
    ('+10%', '−6.6%')
    """
    change = 100 * ((ratio or 1.0) - 1)
    return f"{'−' if change < 0 else '+'}{float(f'{abs(change):.2g}'):g}%"


def wrap(text: str) -> str:
    """Return a text as lines of at most 80 characters, without breaking a test statistic or a p-value."""
    unbroken = _UNBROKEN.sub(lambda found: found[0].replace(" ", "\xa0"), printable(text))
    return textwrap.fill(unbroken, _WIDTH, subsequent_indent="  ", break_on_hyphens=False).replace("\xa0", " ")


def _shorten(name: str) -> str:
    """Return a name as the head of a column; of a long one the end, where names of files differ."""
    name = printable(name)
    return name if len(name) <= _MAX_COLUMN else f"…{name[1 - _MAX_COLUMN :]}"


def _table_row(d: Difference, width: int, level: float) -> str:
    before, after = (f"{'–' if p is None else f'{p:.3f}':>{width}}" for p in (d.before, d.after))
    if d.ratio is None:
        return wrap(f"{d.rank:>4} {before} {after}        –  {d.reason or ''}")
    interval = f"{d.low:.3f} – {d.high:.3f}"
    mark = "  differs" if d.differs else ""
    return f"{d.rank:>4} {before} {after} {d.ratio:>8.3f}  {interval:<16} {p_value_cell(d.p_value, level)}{mark}"


# ---- Plot


def draw_comparison(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Draw the ratio of two curves by rank with its intervals; ranks that differ are diamonds.

    Arguments:
        comparison (Comparison): the result of `compare`.
        ax (matplotlib Axes, optional): where to draw; by default a new figure.
    """
    check_type("comparison", comparison, Comparison)
    return draw(comparison_chart(comparison), ax)


def comparison_chart(comparison: Comparison) -> Chart:
    """Return the chart of the ratio of two curves, on a scale where half and double are equally far from 1."""
    series = []
    for differs, color, marker, title in (
        (False, 0, "o", "no significant difference"),
        (True, "alarm", "D", "differs"),
    ):
        rows = [d for d in comparison.differences if d.ratio is not None and d.differs == differs]
        if rows:
            ratio, low, high = (known(getattr(d, name) for d in rows) for name in ("ratio", "low", "high"))
            series.append(Series(title, color, [d.rank for d in rows], ratio, low, high, marker, line=""))
    first, second = comparison.names
    result = "differ" if comparison.differs else "do not differ significantly"
    result = "are identical" if comparison.identical else f"{result}, {format_p_value(comparison.p_value)}"
    values = [1.0, *(value for one in series for value in one.values)]
    below, above = short_names(comparison.names)
    return Chart(
        f"{first} and {second} {result}",
        rank_axis([d.rank for d in comparison.differences]),
        number_axis(f"Propensity, {above} / {below}", values, log=True),
        series,
        [Rule("y", 1.0)],
        legend="top",
    )
