"""Compare two curves, rank by rank and as a whole."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray
from posbias._charts import Chart, Rule, Series, known, number_axis, rank_axis, short_names
from posbias._matplotlib import draw, save
from posbias._stats import t_quantile
from posbias._text import format_p_value, format_ranks, listed, printable
from posbias._validate import DEFAULT_LEVEL, check_type, share, texts
from posbias.curves.curve import Curve
from posbias.errors import CurveError
from posbias.estimators import FROM_HARVESTS, estimator_class
from posbias.estimators.base import CurveEstimator, Estimator
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.row_checks import MIXED_ENGINES
from posbias.judging.significance import Contrasts, joint_test, ratio_from_log, simultaneous_p_values
from posbias.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from posbias.judging.significance import JointTest

FORMAT = 1
_WIDTH = 80
# A name's column is so wide at least, and at most: an estimator's own name fits.
_NAME, _LONGEST = 10, 14
# What stays on one line.
_HELD = re.compile(r"F\(\d+, \d+\) = |p [<=] ")
ALONE = "each interval is of one {what} alone; p allows for there being several"
_MOST_NAMED = 4
# What is moved by less than this, in log p, is the same.
_SAME = 1e-9


def compare(
    first: Any,
    second: Any,
    *,
    estimator: str | None = None,
    level: float = DEFAULT_LEVEL,
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
    one, other = (ComparedCurve.of(given, estimator, level) for given in (first, second))
    return compare_curves(one, other, level, (called[0], called[1]))


@dataclass(frozen=True)
class Comparison:
    """Two curves side by side, and whether they differ by more than chance.

    Attributes:
        names: of the first and of the second.
        estimators: of both.
        level: of the intervals and of the test.
        paired: whether errors were paired by bucket of queries, or the curves taken for independent.
        joint: an F test of all ranks at once; None where there are too few queries for one.
        differences: rank by rank, from the second.
        page_views: of both.
        notes: what is to be known of the comparison.
    """

    names: tuple[str, str]
    estimators: tuple[str, str]
    level: float
    paired: bool
    joint: JointTest | None
    differences: tuple[Difference, ...]
    page_views: tuple[int, int]
    notes: tuple[str, ...] = ()

    @property
    def p_value(self) -> float:
        """How often chance alone would make the curves differ as much, at the rank where they differ most."""
        return min((d.p_value for d in self.differences if d.p_value is not None), default=1.0)

    @property
    def differs(self) -> bool:
        """Whether any rank differs by more than chance, allowing for there being several."""
        return any(d.differs for d in self.differences)

    @property
    def same(self) -> bool:
        """Whether both are one and the same: whatever queries are left out, no rank ever differs."""
        tested = [d for d in self.differences if d.p_value is not None]
        rest = [d for d in self.differences if d.p_value is None]
        return bool(tested) and all(d.low == d.high for d in tested) and all(d.before == d.after for d in rest)

    @property
    def alone(self) -> str:
        """Why an interval may leave 1 out where the p-value finds no difference, if there are several ranks."""
        several = sum(d.p_value is not None for d in self.differences) > 1
        return ALONE.format(what="rank") if several and not self.same else ""

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
            "joint": None if self.joint is None else asdict(self.joint) | {"degrees": list(self.joint.degrees)},
            "differences": [asdict(d) for d in self.differences],
            "page_views": list(self.page_views),
            "notes": list(self.notes),
            "version": __version__,
        }

    def to_text(self) -> str:
        """Return the comparison as a table, after what comes of it."""
        first, second = (_cut(name) for name in self.names)
        wide = max(_NAME, len(first), len(second))
        lines = [wrapped(self.verdict), wrapped(self.how)]
        lines.append(f"rank {first:>{wide}} {second:>{wide}}    ratio  {f'{100 * self.level:g}% interval':<16}    p")
        lines += [_line(d, wide) for d in self.differences]
        if self.alone:
            lines.append(self.alone)
        lines += [wrapped(f"! {note}") for note in (*self._weak, *self.notes)]
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """What comes of it, in a sentence."""
        if self.same:
            return f"{self.names[0]} and {self.names[1]} have one and the same curve: there is nothing to test."
        found = sorted((d for d in self.differences if d.differs), key=lambda d: d.p_value or 0.0)
        if not found:
            p = format_p_value(self.p_value)
            return f"No rank differs beyond chance from {self.names[0]} to {self.names[1]} ({p})."
        named = [f"rank {d.rank} by {format_change(d.ratio)}" for d in found[:_MOST_NAMED]]
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        return (
            f"The curves differ ({format_p_value(self.p_value)}): from {self.names[0]} to {self.names[1]}, "
            f"{', '.join(named)}{more}."
        )

    @property
    def _weak(self) -> list[str]:
        """What makes ranks that have an answer weak, said once of all that have the same."""
        ranks: dict[str, list[int]] = {}
        for d in self.differences:
            if d.ratio is not None and d.reason is not None:
                ranks.setdefault(d.reason, []).append(d.rank)
        return [f"{format_ranks(own).capitalize()}: {reason}." for reason, own in ranks.items()]

    @property
    def how(self) -> str:
        """How it was found, in a line."""
        how = "paired by bucket of queries" if self.paired else "taken for independent"
        joint = "; too few queries for a test of all ranks at once" if not self.same else ""
        if self.joint is not None:
            degrees = f"{self.joint.degrees[0]}, {self.joint.degrees[1]:.0f}"
            joint = (
                f"; all ranks at once F({degrees}) = {self.joint.statistic:.2f}, {format_p_value(self.joint.p_value)}"
            )
        estimators = " and ".join(dict.fromkeys(self.estimators))
        return f"{estimators}, {how}{joint}"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the ratio by rank with its intervals, and return the Axes."""
        return draw_comparison(self, ax)

    def save_plot(self, path: str) -> None:
        """Write the picture as PNG, SVG or PDF."""
        save(self.plot(), path)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class ComparedCurve:
    """A curve by rank: log p, its covariance and degrees of freedom, NaN where there is no interval."""

    x: FloatArray
    covariance: FloatArray
    degrees: FloatArray
    curve: Curve
    deletions: Deletions | None = None

    @classmethod
    def of(cls, given: Any, estimator: str | None, level: float) -> ComparedCurve:
        """Return the side that a curve, a fitted estimator or a harvest makes."""
        if isinstance(given, Harvest):
            given = fit_harvest(given, estimator, level)
        if isinstance(given, Curve):
            return cls._of_curve(given)
        if not isinstance(given, CurveEstimator):
            raise CurveError(
                f"A {type(given).__name__} cannot be compared. Give a Harvest, a fitted estimator or a Curve."
            )
        side = cls._of_curve(given.curve())
        return cls(side.x, side.covariance, side.degrees, side.curve, _deletions(given))

    @classmethod
    def _of_curve(cls, curve: Curve) -> ComparedCurve:
        covariance, degrees = curve.covariance_matrix, np.full(curve.max_rank, np.nan)
        # A percentile interval takes no quantile of t: it is taken for one of many degrees of freedom.
        for p in curve.positions:
            degrees[p.position - 1] = np.inf if p.degrees_of_freedom is None else p.degrees_of_freedom
        known = np.isfinite(curve.interval[:, 0]) & np.isfinite(np.diagonal(covariance)) & (curve.propensity > 0)
        known[0] = True
        x = np.log(np.where(known, curve.propensity, np.nan))
        if not known[1:].any():
            raise CurveError(
                f"The curve of {curve.estimator!r} has no interval at any rank but the first, and without one there is "
                "no telling a difference from chance. Estimate it with intervals, from more queries."
            )
        return cls(x, covariance, np.where(known, degrees, np.nan), curve)


@dataclass(frozen=True, eq=False)
class Deletions:
    """What leaving out each of some buckets moves log p by, (B, M), scaled so that the sum of squares is a variance.

    `engine` put queries into these buckets; another may have put them into others.
    """

    buckets: IntArray
    moved: FloatArray
    engine: object
    most_degrees: float

    def within(self, every: IntArray) -> FloatArray:
        """Return them for all of some buckets: one that this side does not have moves nothing."""
        moved = np.zeros((len(every), self.moved.shape[1]))
        moved[np.searchsorted(every, self.buckets)] = self.moved
        return moved


def fit_harvest(harvest: Harvest, estimator: str | None = None, level: float = DEFAULT_LEVEL) -> Estimator[Any]:
    """Return the estimator of a name, fitted; by default the best for the harvest."""
    kind: Any = estimator_class(choose_estimator(harvest, estimator))
    return kind(level=level).fit(harvest)  # type: ignore[no-any-return]


def choose_estimator(harvest: Harvest, estimator: str | None) -> str:
    """Return the estimator that is asked for, by default the best for the harvest, if it is made of one."""
    name = ("all-pairs" if harvest.kind == "pairs" else "cross-fit") if estimator is None else estimator
    fitting = list(FROM_HARVESTS)
    if not isinstance(name, str) or name not in fitting:
        raise CurveError(f"The estimator {name!r} is not made of a harvest. Use one of {listed(fitting)}.")
    return name


def _deletions(fitted: CurveEstimator) -> Deletions | None:
    """Return the deletions of an estimator of a harvest, if its buckets can be told apart from those of another."""
    if not isinstance(fitted, Estimator) or fitted.jackknife_ is None:
        return None
    harvest, jackknife = fitted.harvest_, fitted.jackknife_
    mixed = any(finding.code == MIXED_ENGINES.code for finding in harvest.findings)
    # An estimator may have left buckets out.
    if mixed or jackknife.buckets != len(harvest.buckets):
        return None
    moved = jackknife.changes * np.sqrt((jackknife.buckets - 1) / jackknife.buckets)
    return Deletions(harvest.buckets, moved, harvest.about.get("engine"), jackknife.max_degrees)


def compare_curves(one: ComparedCurve, other: ComparedCurve, level: float, names: tuple[str, str]) -> Comparison:
    """Compare two sides over the ranks that both have."""
    ranks = min(len(one.x), len(other.x))
    value = (other.x[:ranks] - one.x[:ranks])[1:]
    contrasts, paired = _contrasts(one, other, value)
    known = np.isfinite(value) & np.isfinite(contrasts.standard_error)
    # Estimates that never part are one and the same: there is nothing to test.
    same = known & (contrasts.standard_error < _SAME) & (np.abs(np.nan_to_num(value)) < _SAME)
    tested = known & (contrasts.standard_error >= _SAME)
    found = contrasts.where(tested)
    p_values = np.full(len(value), np.nan)
    p_values[tested] = simultaneous_p_values(found)
    p_values[same] = 1.0
    half = np.zeros(len(value))
    half[tested] = t_quantile(found.degrees, (1 + level) / 2) * found.standard_error
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
        joint=joint_test(found),
        differences=differences,
        page_views=(sum(one.curve.page_views.values()), sum(other.curve.page_views.values())),
        notes=_notes(one, other, paired),
    )


def _contrasts(one: ComparedCurve, other: ComparedCurve, value: FloatArray) -> tuple[Contrasts, bool]:
    """Return the differences with their errors, and whether these were paired by bucket."""
    ranks = len(value) + 1
    mine, theirs = one.deletions, other.deletions
    if mine is not None and theirs is not None and mine.engine == theirs.engine:
        every = np.union1d(mine.buckets, theirs.buckets)
        moved = (theirs.within(every)[:, :ranks] - mine.within(every)[:, :ranks])[:, 1:]
        unknown = ~np.isfinite(moved).all(axis=0) | ~np.isfinite(value)
        made = Contrasts.from_deletions(
            value, np.where(unknown, 0.0, moved), min(mine.most_degrees, theirs.most_degrees)
        )
        return replace(made, covariance=_hidden(made.covariance, unknown)), True
    covariances = one.covariance[1:ranks, 1:ranks], other.covariance[1:ranks, 1:ranks]
    return Contrasts.from_independent(value, covariances, (one.degrees[1:ranks], other.degrees[1:ranks])), False


def _hidden(covariance: FloatArray, unknown: BoolArray) -> FloatArray:
    return np.where(unknown[:, None] | unknown, np.nan, covariance)


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
    ratio, low, high = (ratio_from_log(x) for x in (value[k], value[k] - half[k], value[k] + half[k]))
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


@dataclass(frozen=True)
class Difference:
    """What one rank did; what is not known is None, and `reason` says why, or what makes it weak.

    Attributes:
        rank: k.
        before, after: p_k / p_1 of the first and of the second.
        ratio: after / before, with its interval from `low` to `high`.
        degrees_of_freedom: of the interval.
        p_value: how often chance alone would make any rank differ as much as this one.
        differs: whether that is less than 1 − level.
        reason: why there is no answer, or what makes it a weak one.
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


def _propensity(curve: Curve, k: int) -> float | None:
    found = curve.propensity[k] if k < curve.max_rank else np.nan
    return float(found) if np.isfinite(found) else None


def _reason(curve: Curve, rank: int) -> str | None:
    return next((p.reason for p in curve.positions if p.position == rank), None)


def _shown(curve: Curve, k: int) -> bool:
    return any(p.position == k + 2 for p in curve.positions)


def _notes(one: ComparedCurve, other: ComparedCurve, paired: bool) -> tuple[str, ...]:
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


def _cut(name: str) -> str:
    """Return a name as a column's head, its end where it is long: files differ there."""
    shown = printable(name)
    return shown if len(shown) <= _LONGEST else f"…{shown[1 - _LONGEST :]}"


def wrapped(text: str) -> str:
    """Return a text as lines within the width of a terminal."""
    held = _HELD.sub(lambda found: found[0].replace(" ", "\xa0"), printable(text))
    return textwrap.fill(held, _WIDTH, subsequent_indent="  ", break_on_hyphens=False).replace("\xa0", " ")


def _line(d: Difference, wide: int) -> str:
    before, after = (f"{'–' if p is None else f'{p:.3f}':>{wide}}" for p in (d.before, d.after))
    if d.ratio is None:
        return wrapped(f"{d.rank:>4} {before} {after}        –  {d.reason or ''}")
    ends = f"{d.low:.3f} – {d.high:.3f}"
    mark = "  differs" if d.differs else ""
    return f"{d.rank:>4} {before} {after} {d.ratio:>8.3f}  {ends:<16} {number(d.p_value)}{mark}"


def number(p_value: float | None) -> str:
    """Return a p-value as a table shows it."""
    if p_value is None:
        return "–"
    return "<.001" if p_value < 0.001 else f"{p_value:.3f}"


def format_change(ratio: float | None) -> str:
    """Return a ratio as what it adds.

    >>> format_change(1.1), format_change(0.934)
    ('+10%', '−6.6%')
    """
    change = 100 * ((ratio or 1.0) - 1)
    return f"{'−' if change < 0 else '+'}{float(f'{abs(change):.2g}'):g}%"


def draw_comparison(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Draw the ratio of two curves by rank with its intervals; ranks that differ are diamonds."""
    check_type("comparison", comparison, Comparison)
    return draw(comparison_chart(comparison), ax)


def comparison_chart(comparison: Comparison) -> Chart:
    """Return the chart of the ratio of two curves, on a scale where half and double are equally far from 1."""
    series = []
    for differs, color, marker, name in (
        (False, 0, "o", "no difference beyond chance"),
        (True, "alarm", "D", "differs"),
    ):
        rows = [d for d in comparison.differences if d.ratio is not None and d.differs == differs]
        if rows:
            ratio, low, high = (known(getattr(d, field) for d in rows) for field in ("ratio", "low", "high"))
            series.append(Series(name, color, [d.rank for d in rows], ratio, low, high, marker, line=""))
    first, second = comparison.names
    p = format_p_value(comparison.p_value)
    result = f"differ, {p}" if comparison.differs else f"do not differ beyond chance, {p}"
    values = [1.0, *(value for one in series for value in one.values)]
    below, above = short_names(comparison.names)
    return Chart(
        f"{first} and {second} {'are the same' if comparison.same else result}",
        rank_axis([d.rank for d in comparison.differences]),
        number_axis(f"Propensity, {above} / {below}", values, log=True),
        series,
        [Rule("y", 1.0)],
        legend="top",
    )
