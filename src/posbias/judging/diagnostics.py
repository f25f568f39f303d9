"""The diagnostics that `diagnose` runs, each a function from a `Context` to findings and tests.

A diagnostic looks at a harvest, and at the curves estimated from it, for one kind of problem. It returns a `Finding`
where a rule decides, and an `AssumptionTest` where a statistical test does; `diagnose` corrects all tests for their
number. To add a diagnostic, write such a function here and list it in `DIAGNOSTICS` in `diagnose.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from posbias._arrays import FloatArray, IntArray, group, lookup, sum_by_index
from posbias._stats import FTest, f_tail, not_tested, round_significant, satterthwaite
from posbias._text import Arguments, format_p_value, format_ranks, label, listed
from posbias._validate import shares
from posbias.engines import OpenLog
from posbias.errors import HarvestError
from posbias.estimators import AdjacentChain, AllPairs, CrossFit, PivotOne
from posbias.estimators.base import MIN_BUCKETS, Jackknife, deletion_weights
from posbias.estimators.cross_fit import STICKY_DISPERSION
from posbias.estimators.one_curve import OneCurve, RankerPairs, Residuals, assumption_tests, ranker_effects
from posbias.estimators.significance import AssumptionTest, Contrasts, joint_test, wald_test
from posbias.findings import Finding
from posbias.harvesting.click_checks import (
    ClickOrder,
    count_click_histogram,
    count_click_order,
    exceeds_users,
    possible_page_views,
)
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.interventions import Interventions
from posbias.harvesting.row_checks import UNITS_NOT_COUNTED
from posbias.harvesting.tables import Cells
from posbias.judging.compare_segments import SegmentComparison
from posbias.logs.schema import ANY_RANKER, Schema, guess_column, require_column
from posbias.sql.observations import largest_queries, page_clicks, unit_counts
from posbias.sql.plan import QueryPlan

# A difference with fewer degrees of freedom is not tested.
_MIN_DEGREES = 5.0
# Smaller sums of squared changes are rounding errors.
_ROUNDING = 1e-18
# A bucket with more than this share of a rank's variance, and this many times its fair share, dominates the rank.
_DOMINANT_SHARE, _DOMINANT_TIMES = 0.25, 10
# A query with this share of the clicks of its bucket stands for it.
_MOST_CLICKS = 0.8
# A rank with fewer degrees of freedom depends on few queries.
_FEW_DEGREES = 5.0
# Two rankers are too similar if they put more than this share of what both show at the same ranks.
_SIMILAR_SHARE = 0.9
# Pairs recur rarely if fewer than this share of them were shown at two ranks.
_RARE_SHARE = 0.1
# This many ranks are listed as those that a rank is compared with.
_MAX_COMPARED_RANKS = 3
# If this many page views (or pairs of clicks) are expected by chance, finding none is not chance.
_MIN_EXPECTED = 30.0
# A proxy with more classes has too few clicks in each, and is probably a score that was not cut into classes.
MAX_CLASSES = 10
# Ratios of all pairs of ranks are measured if there are at most this many numbers (buckets × M²).
_MAX_NUMBERS = 4 * 10**7
# A pair of ranks is off the curve if it is more than this many standard errors away.
OFF_CURVE_ERRORS = 3.0
# The normal quantile of a 95% interval.
_Z95 = 1.96


@dataclass(frozen=True, eq=False)
class Context:
    """What the diagnostics look at; each part is computed once, when a diagnostic first needs it.

    Attributes:
        harvest (Harvest): the harvest to diagnose.
        split (mapping, optional): the intended shares of traffic by ranker.
        proxy (str, optional): the segment column with classes of relevance.
        page_clicks (PageClicks, optional): the clicks of page views, if the log was given.
        units (array, optional): units by bucket of units and ranker, if the log was given and has units.
        largest_queries (mapping): the query with the most clicks of each bucket, if the log was given.
        schema (Schema, optional): the columns of the log, if it was given.
        within (Harvest, optional): in replay, the harvest with comparisons within one window of time only.
        segments (SegmentComparison, optional): a comparison of the segments of the harvest.
        fitted_curves (dict, optional): curves by estimator, if they were fitted already.
    """

    harvest: Harvest
    split: Mapping[str, float] | None = None
    proxy: str | None = None
    page_clicks: PageClicks | None = None
    units: FloatArray | None = None
    largest_queries: Mapping[int, LargestQuery] = field(default_factory=dict)
    schema: Schema | None = None
    within: Harvest | None = None
    segments: SegmentComparison | None = None
    fitted_curves: Mapping[str, Jackknife] | None = None

    @cached_property
    def curves(self) -> Mapping[str, Jackknife]:
        """The curves with their refits, by estimator; the first one is the default estimator's."""
        return fit_estimators(self.harvest) if self.fitted_curves is None else self.fitted_curves

    @cached_property
    def ranker_pairs(self) -> RankerPairs | None:
        """The clicks of every two rankers on the same documents; None if the harvest holds sums over rankers."""
        return None if self.one_curve is None else self.one_curve.residuals.pairs

    @cached_property
    def one_curve(self) -> OneCurve | None:
        """The tests whether one curve fits all ranker pairs."""
        return OneCurve.of_harvest(self.harvest)

    @cached_property
    def support(self) -> tuple[RankSupport, ...]:
        """The data behind each rank from the second on."""
        residuals = None if self.one_curve is None else self.one_curve.residuals
        return measure_support(next(iter(self.curves.values()), None), residuals, self.harvest)

    @cached_property
    def intended_shares(self) -> FloatArray | None:
        """The intended share of each ranker, adding up to 1."""
        return None if self.split is None else _intended_shares(self.split, self.harvest)


def fit_estimators(harvest: Harvest) -> dict[str, Jackknife]:
    """Fit all estimators that a harvest allows; CrossFit first, or AllPairs if the harvest holds sums."""
    estimators: list[Any] = [AllPairs, PivotOne, AdjacentChain]
    if harvest.kind != "pairs":
        estimators.insert(0, CrossFit)
    fitted = {}
    for kind in estimators:
        estimator = kind(interval=None)
        counts = estimator.count(harvest)
        if not counts.clicked:
            continue
        curve = estimator.curves(counts, np.ones(counts.buckets))
        # With a single bucket, nothing is left to refit.
        refits = (
            np.full((1, len(curve)), np.nan)
            if counts.buckets < 2
            else estimator.curves(counts, deletion_weights(counts.buckets))
        )
        fitted[kind.name] = Jackknife(curve, refits, estimator.max_degrees(counts), estimator.unit_jackknives(harvest))
    return fitted


# ---- Support: the data behind each rank


def report_support(context: Context) -> Iterator[Finding]:
    """Report the degrees of freedom of all ranks, except what `find_few_degrees` says of some of them."""
    known = {one.rank: one.degrees_of_freedom for one in context.support if one.degrees_of_freedom is not None}
    unknown = [one.rank for one in context.support if one.degrees_of_freedom is None]
    strong = {rank: degrees for rank, degrees in known.items() if degrees >= _FEW_DEGREES}
    parts = []
    if strong:
        more = " or more" if len(strong) > 1 else ""
        parts += [f"{_ranks_have(list(strong))} {min(strong.values()):,.0f} degrees of freedom{more}"]
    elif known:
        least, most = (f"{end:.1f}" for end in (min(known.values()), max(known.values())))
        parts += [f"{_ranks_have(list(known))} {least if least == most else f'{least} to {most}'} degrees of freedom"]
    parts += [f"{_ranks_have(unknown)} no standard error"] if unknown else []
    message = "; ".join(parts)
    evidence = {"ranks": [one.to_dict() for one in context.support]}
    yield Finding(
        "support",
        "info" if known else "warning",
        message[:1].upper() + message[1:],
        evidence=evidence,
        remedy="There is too little data for a curve: too few queries, or too few clicks on documents that were shown "
        "at two ranks. Harvest a longer period." * (not known),
    )


def _ranks_have(ranks: Sequence[int]) -> str:
    """Return ranks as the subject of a sentence.

    >>> _ranks_have([2, 3, 4]), _ranks_have([7])
    ('ranks 2 to 4 have', 'rank 7 has')
    """
    return f"{format_ranks(ranks)} {'have' if len(ranks) > 1 else 'has'}"


def find_few_degrees(context: Context) -> Iterator[Finding]:
    """Find ranks with few degrees of freedom; a warning if no rank has more.

    Some such ranks are normal: one frequent query has most of the variance there. The interval allows for it, and
    contains the truth no less often than others.
    """
    known = [one for one in context.support if one.degrees_of_freedom is not None]
    weak = [one for one in known if _has_few_degrees(one)]
    if not weak:
        return
    least = min(one.degrees_of_freedom or 0 for one in weak)
    ranks = [one.rank for one in weak]
    whole = len(weak) == len(known)
    subject = _ranks_have(ranks)
    few = f"{_FEW_DEGREES:.0f} degrees of freedom"
    yield Finding(
        "few-degrees-of-freedom",
        "warning" if whole else "info",
        f"The whole curve depends on few queries: no rank has {few} or more"
        if whole
        else f"{subject[:1].upper()}{subject[1:]} fewer than {few} (the fewest: {least:.1f})",
        len(weak),
        evidence={"ranks": ranks},
        remedy="The intervals allow for it and are wide. Harvest a longer period, or use plan to see how much data is "
        "needed.",
    )


def _has_few_degrees(support: RankSupport) -> bool:
    return support.degrees_of_freedom is not None and support.degrees_of_freedom < _FEW_DEGREES


def find_dominant_buckets(context: Context) -> Iterator[Finding]:
    """Find the rank whose variance comes most from one query; a warning if the others add next to nothing.

    If leaving one query out changes an estimate by more than its standard error, the query is nearly all of the data.
    """
    buckets = len(context.harvest.buckets)
    threshold = max(_DOMINANT_SHARE, _DOMINANT_TIMES / max(buckets, 1))
    dominated = [one for one in context.support if (one.largest_bucket_share or 0) > threshold]
    if not dominated:
        return
    worst = max(dominated, key=lambda one: one.largest_bucket_share or 0)
    share = worst.largest_bucket_share or 0.0
    query = context.largest_queries.get(worst.largest_bucket) if worst.largest_bucket is not None else None
    one_query = query is not None and query.share > _MOST_CLICKS
    # se² = (B − 1)/B Σ d², so that d_b exceeds se if its share of Σ d² exceeds (B − 1)/B.
    decisive = share > (buckets - 1) / buckets and (one_query or query is None)
    subject = "One query" if one_query else f"One of {buckets} buckets of queries"
    yield Finding(
        "dominant-bucket",
        "warning" if decisive else "info",
        f"{subject} has {share:.0%} of the variance at rank {worst.rank}"
        + (f". Without it, the propensity would be {worst.without_bucket:.2f} times the estimate"),
        len(dominated),
        example=query.name if query is not None and one_query else None,
        evidence={"ranks": [one.rank for one in dominated], "share": share},
        remedy=(
            "The rank has no other data to speak of. Harvest a longer period."
            if decisive
            else "A frequent query is normal, and the interval allows for it."
        ),
    )


def find_similar_rankers(context: Context) -> Iterator[Finding]:
    """Find pairs of rankers that put nearly all of what both show at the same ranks."""
    pairs, names = context.ranker_pairs, context.harvest.rankers
    if pairs is None:
        return
    size = len(names)
    number = pairs.first_ranker * size + pairs.second_ranker
    shown = pairs.impressions.sum(axis=0)
    total, same = (sum_by_index(number, values, size**2) for values in (shown, shown * pairs.same_rank))
    similar = [int(n) for n in np.flatnonzero(total) if same[n] > _SIMILAR_SHARE * total[n]]
    if not similar:
        return
    most = max(similar, key=lambda n: same[n] / total[n])
    share = float(same[most] / total[most])
    yield Finding(
        "similar-rankers",
        "warning",
        f"{names[most // size]!r} and {names[most % size]!r} put {share:.1%} of what both show at the same ranks",
        len(similar),
        evidence={"share": round(share, 4)},
        remedy="They say little about the curve. Rankers that differ more give narrower intervals.",
    )


def report_repeated_pairs(context: Context) -> Iterator[Finding]:
    """Report, in replay, how many (query, document) pairs were shown at two ranks."""
    cells = context.harvest.table
    if context.harvest.kind != "exposures" or not isinstance(cells, Cells) or not len(cells):
        return
    seen = cells.where(cells.impressions > 0)
    first, stratum = group([seen.stratum])
    lowest, highest = np.full(len(first), np.iinfo(np.int64).max), np.zeros(len(first), dtype=np.int64)
    np.minimum.at(lowest, stratum, seen.rank)
    np.maximum.at(highest, stratum, seen.rank)
    pairs = seen.pairs[first]
    total, repeated = int(pairs.sum()), int(pairs[highest > lowest].sum())
    share = repeated / max(total, 1)
    rare = share < _RARE_SHARE
    yield Finding(
        "few-repeated-pairs" if rare else "repeated-pairs",
        "info",
        "{repeated} of {pairs} (query, document) pairs " + f"({share:.1%}) were shown at two ranks",
        repeated,
        evidence={"repeated": repeated, "pairs": total},
        remedy="Only these pairs are compared. Log each ranker's rank (ranks or rankings), so that queries need not "
        "recur." * rare,
    )


def report_page_depth(context: Context) -> Iterator[Finding]:
    """Report how many page views reach the deepest rank, if pages end at different depths."""
    pairs = context.ranker_pairs
    if pairs is None or pairs.log_shown is None:
        return
    reached = np.where(context.harvest.counts("ranker", "rank")[0] > 0, np.exp(pairs.log_shown), 0.0)
    share = pairs.page_views.sum(axis=0) @ reached / max(pairs.page_views.sum(), 1)
    fewest = int(np.argmin(share))
    yield Finding(
        "page-depth",
        "info",
        f"Pages end at different ranks: about {share[fewest]:.0%} of the page views that have a result at rank "
        f"{fewest + 1} show it. Curves and intervals allow for it",
        evidence={
            "shown": {
                name: [round(float(one), 3) for one in row]
                for name, row in zip(context.harvest.rankers, reached, strict=True)
            }
        },
        remedy="If the depth of a page depends on the query, posbias cannot correct for it. Log whole pages.",
    )


def measure_support(curve: Jackknife | None, residuals: Residuals | None, harvest: Harvest) -> tuple[RankSupport, ...]:
    """Return the data behind each rank from the second on, by the refits of a curve and the ranker pairs."""
    ranks = harvest.max_rank
    compared = compared_ranks(residuals) if residuals is not None else [{}] * ranks
    degrees, share, without = np.full((3, ranks), np.nan)
    largest: list[int | None] = [None] * ranks
    if curve is not None:
        known = np.isfinite(curve.log_propensity) & np.isfinite(curve.changes).all(axis=0)
        squares = np.where(known, curve.changes, 0.0) ** 2
        total = squares.sum(axis=0)
        varies = known & (total > 1e-12)
        degrees = np.where(varies, curve.degrees, np.nan)
        share = np.where(varies, squares.max(axis=0) / np.where(total > 0, total, 1), np.nan)
        worst = squares.argmax(axis=0)
        without = np.where(varies, np.exp(curve.changes[worst, np.arange(ranks)]), np.nan)
        # If the estimator left buckets out, it is not known which bucket each refit leaves out.
        if len(squares) == len(harvest.buckets):
            largest = [int(harvest.buckets[worst[k]]) if varies[k] else None for k in range(ranks)]
    return tuple(
        RankSupport(
            rank=k + 1,
            degrees_of_freedom=round_significant(degrees[k]),
            largest_bucket_share=round_significant(share[k]),
            largest_bucket=largest[k],
            without_bucket=round_significant(without[k]),
            compared_ranks=compared[k],
        )
        for k in range(1, ranks)
    )


def count_largest_queries(opened: OpenLog, rankers: tuple[str, ...], max_rank: int) -> dict[int, LargestQuery]:
    """Return the query with the most clicks of each bucket."""
    plan = QueryPlan(opened.schema, opened.dialect, rankers, max_rank)
    rows = opened.rows(largest_queries(plan), "Looking for frequent queries")
    return {int(bucket): LargestQuery(str(name), most / total) for bucket, name, most, total in rows if total}


@dataclass(frozen=True)
class LargestQuery:
    """The query with the most clicks of a bucket.

    Attributes:
        name (str): its id.
        share (float): its share of the clicks of the bucket.
    """

    name: str
    share: float


@dataclass(frozen=True)
class RankSupport:
    """The data behind the estimate of one rank.

    Attributes:
        rank (int): the rank, from 1.
        degrees_of_freedom (float or None): of its standard error; about the number of equally influential buckets.
        largest_bucket_share (float or None): the share of its variance that comes from one bucket of queries.
        largest_bucket (int or None): the number of that bucket.
        without_bucket (float or None): the estimate without that bucket, as a multiple of the estimate with it.
        compared_ranks (dict): the ranks that it is mostly compared with, and their shares of the information.
    """

    rank: int
    degrees_of_freedom: float | None
    largest_bucket_share: float | None
    largest_bucket: int | None
    without_bucket: float | None
    compared_ranks: dict[int, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the support as `--json` prints it."""
        return asdict(self)


def compared_ranks(residuals: Residuals) -> list[dict[int, float]]:
    """Return, for each rank, the ranks that it is mostly compared with, and their shares of the information."""
    information = -residuals.pairs.laplacian(residuals.variance)
    np.fill_diagonal(information, 0.0)
    total = information.sum(axis=1, keepdims=True)
    shares = np.divide(information, total, out=np.zeros_like(information), where=total > 0)
    return [_largest_shares(row) for row in shares]


def _largest_shares(shares: FloatArray) -> dict[int, float]:
    order = np.argsort(-shares, kind="stable")[:_MAX_COMPARED_RANKS]
    return {int(k) + 1: round(float(shares[k]), 3) for k in order if shares[k] > 0}


# ---- One curve for all pairs of ranks, all estimators and all segments


def one_curve_test(context: Context) -> Iterator[AssumptionTest]:
    """Test whether one curve explains the clicks of all rankers at all pairs of ranks."""
    if context.one_curve is not None:
        yield from assumption_tests(context.one_curve, context.harvest)


def note_missing_rankers(context: Context) -> Iterator[Finding]:
    """Report that a harvest of sums does not distinguish rankers."""
    if context.one_curve is None:
        yield Finding(
            "sums-only",
            "info",
            "Not tested: whether one curve fits all pairs of ranks. The harvest holds sums over pairs of ranks, which "
            "do not distinguish rankers",
            remedy="Harvest the log again with a smaller max_rank or a larger max_strata.",
        )


def segments_test(context: Context) -> Iterator[AssumptionTest]:
    """Test whether the segments have the same curve, if they were compared."""
    if context.segments is not None:
        yield context.segments.assumption_test


def agreement_test(context: Context) -> Iterator[AssumptionTest]:
    """Test whether other estimators give the same curve as the first one, at any rank (Bonferroni).

    Where ranker pairs are known, the first one is compared with AllPairs alone. The others use few pairs of ranks, and
    the test of one curve finds pairs that contradict each other with fewer false alarms.
    """
    best: tuple[str, int, float, FTest] | None = None
    names, tests = list(context.curves), 0
    for name in names[1:] if context.ranker_pairs is None else names[1:2]:
        reference, curve = context.curves[names[0]], context.curves[name]
        # Estimators that left buckets out cannot be paired by bucket.
        if curve.buckets != reference.buckets or curve.buckets < MIN_BUCKETS:
            continue
        difference = curve.log_propensity - reference.log_propensity
        changes = curve.changes - reference.changes
        for k in np.flatnonzero(_comparable(difference, changes)):
            test = _t_test(float(difference[k]), changes[:, k])
            tests += test.tested
            if test.tested and (best is None or test.p_value < best[-1].p_value):
                best = (name, int(k) + 1, float(np.exp(difference[k])), test)
    if best is None:
        result = not_tested("there are too few queries")
        yield AssumptionTest(result, Finding("estimators-disagree", "warning", "Estimators disagree"))
        return
    name, rank, ratio, test = best
    result = test._replace(p_value=min(1.0, tests * test.p_value))
    violated = Finding(
        "estimators-disagree",
        "warning",
        f"Estimators disagree ({format_p_value(result.p_value)}): at rank {rank}, {name} estimates {ratio:.3f} times "
        f"the propensity of {names[0]}. Chance, measured by leaving out buckets of queries, does not explain it",
        evidence={"estimator": name, "rank": rank, "ratio": round_significant(ratio), "tests": tests},
        remedy="The estimators weight the same pairs of ranks differently. Either pairs contradict each other, or "
        "traffic is not as assumed. Trust no curve more closely than the difference between them.",
    )
    yield AssumptionTest(result, violated)


def _comparable(difference: FloatArray, changes: FloatArray) -> FloatArray:
    """Return a mask of the ranks whose difference is known and varies."""
    known = np.isfinite(difference) & np.isfinite(changes).all(axis=0)
    return np.asarray(known & ((np.where(known, changes, 0.0) ** 2).sum(axis=0) > _ROUNDING))


def _t_test(difference: float, changes: FloatArray) -> FTest:
    """Test whether a difference is 0, by its changes without each bucket (jackknife)."""
    degrees = float(satterthwaite(changes[:, None])[0])
    buckets = len(changes)
    variance = float((buckets - 1) / buckets * (changes**2).sum())
    if degrees < _MIN_DEGREES or variance <= 0:
        return not_tested("there are too few queries", 1, degrees)
    statistic = difference**2 / variance
    return FTest(statistic, 1, degrees, f_tail(1, degrees, statistic))


def report_overlap(context: Context) -> Iterator[Finding]:
    """Report whether the rankers overlap in time, as the harvest found it."""
    yield from (f for f in context.harvest.findings if f.code in ("rankers-overlap", "rankers-replaced"))


def drift_test(context: Context) -> Iterator[AssumptionTest]:
    """Test, in replay, whether comparisons within a window of time give the same curve as those over all of it."""
    if context.within is None:
        return
    buckets = np.union1d(context.harvest.buckets, context.within.buckets)
    curves = [_curve_by_bucket(harvest, buckets) for harvest in (context.harvest, context.within)]
    if curves[0] is None or curves[1] is None:
        return
    result = _compare_classes(curves[0], curves[1])
    if not result.tested:
        return
    violated = Finding(
        "relevance-drifts",
        "warning",
        "Relevance changed over time: documents compared with themselves within an eighth of the time give another "
        f"curve than over all of it ({format_p_value(result.p_value)})",
        remedy="Compare documents only within a day or week in which both rankers served (window).",
    )
    yield AssumptionTest(result, violated)


# ---- Traffic


def independence_test(context: Context) -> Iterator[AssumptionTest]:
    """Test whether the choice of ranker is independent of the query; impressions show it only if odds are by design."""
    pairs = context.ranker_pairs
    if pairs is None or not pairs.by_design:
        return
    residuals = Residuals.of_impressions(pairs)
    result = wald_test([residuals.sum_by_bucket(effect) for effect in ranker_effects(pairs).values()])
    violated = Finding(
        "query-dependent-traffic",
        "warning",
        f"The choice of ranker depends on the query ({format_p_value(result.p_value)}): queries on which the rankers "
        "agree more, or less, went to some ranker more often than by chance",
        remedy="Split traffic at random by page view or user, independently of the query. If that is not possible, "
        "harvest with weighting harmonic, which compares a document only with itself.",
    )
    yield AssumptionTest(result, violated)


def split_test(context: Context) -> Iterator[AssumptionTest]:
    """Test whether page views were split as intended: a χ² test, scaled by the dispersion over buckets.

    If the log has units, rankers were drawn for each of them. Then units are tested, or the page views of each bucket
    of units if there is only a harvest (`unit_split_test`).
    """
    shares, harvest = context.intended_shares, context.harvest
    if shares is None:
        return
    views = harvest.views.sum(axis=0)
    included = shares > 0
    by_unit = harvest.units.by_unit.views if harvest.units is not None else None
    if context.units is not None:
        by_unit, views = context.units, context.units.sum(axis=0)
    what = "Page views" if context.units is None else "Units"
    if by_unit is None and any(finding.code == UNITS_NOT_COUNTED.code for finding in harvest.findings):
        # Rankers were drawn for units, which the harvest does not count.
        result = not_tested("the harvest does not count units; diagnose the log")
    elif by_unit is None and dispersion(harvest.views) > STICKY_DISPERSION:
        # Page views of a query have one ranker: frequent queries, and not page views, decide the shares.
        result = unit_split_test(harvest.views[:, included], shares[included])
    elif by_unit is None:
        expected = views[included].sum() * shares[included]
        numerator = int(included.sum()) - 1
        denominator = float(max(len(harvest.views) - 1, 1))
        scale = max(1.0, dispersion(harvest.views))
        statistic = float(((views[included] - expected) ** 2 / expected).sum() / (numerator * scale))
        result = FTest(statistic, numerator, denominator, f_tail(numerator, denominator, statistic))
    else:
        result = unit_split_test(by_unit[:, included], shares[included])
    found = {name: int(n) for name, n, use in zip(harvest.rankers, views, included, strict=True) if use}
    intended = {name: float(share) for name, share in zip(harvest.rankers, shares, strict=True)}
    total = max(views[included].sum(), 1)
    found_text = ", ".join(f"{name!r} {n / total:.2%}" for name, n in found.items())
    intended_text = ", ".join(f"{name!r} {share:.2%}" for name, share in intended.items() if share > 0)
    p_value = format_p_value(result.p_value)
    evidence = {what.lower().replace(" ", "_"): found, "intended": intended}
    why_not = result.reason if by_unit is None else "there are too few units"
    yield AssumptionTest(
        result,
        Finding(
            "sample-ratio-mismatch",
            "warning",
            f"{what} are not split as intended ({p_value}): found {found_text}, intended {intended_text}",
            evidence=evidence,
            remedy=f"{what} of some ranker were lost, or went to another one. Find out which before you trust any "
            "comparison of rankers."
            + " If rankers were drawn by user, chance alone may do it: name the column of the user (unit)."
            * (by_unit is None),
        ),
        Finding(
            "sample-ratio-as-intended",
            "info",
            f"{what} are split as intended ({p_value}): {found_text}",
            evidence=evidence,
        )
        if result.tested
        else Finding(
            "sample-ratio-not-tested",
            "info",
            f"Not tested: whether {what.lower()} are split as intended ({why_not})",
            evidence=evidence,
        ),
    )


def unit_split_test(counts: FloatArray, shares: FloatArray) -> FTest:
    """Test whether units or their page views, by bucket of units and ranker, have intended shares (Hotelling's T²).

    The page views of a unit may all go to the ranker that was drawn for it: the excess of a ranker over its share
    varies from bucket to bucket as much as units differ in size. Page views drawn one by one are tested just as well.
    """
    excess = counts - counts.sum(axis=1, keepdims=True) * shares
    # The excesses of all rankers add up to 0.
    changes = excess[:, :-1]
    return joint_test(Contrasts.from_deletions(changes.sum(axis=0), changes))


def _intended_shares(split: Mapping[str, float], harvest: Harvest) -> FloatArray:
    """Return the intended share of each ranker, and refuse a split that does not name the rankers."""
    split = shares("split", split, "{'a': 50, 'b': 50}", HarvestError)
    if harvest.rankers == (ANY_RANKER,):
        raise HarvestError(
            "A split (split) is tested by ranker, and the log names no rankers. Name the column of the ranker (ranker)."
        )
    served = [name for name, n in harvest.page_views.items() if n]
    unknown = [name for name in split if name not in harvest.rankers]
    missing = [name for name in served if name not in split]
    if unknown or missing:
        raise HarvestError(
            f"split must give a share to every ranker that served page views. It names {listed(split)}, and the "
            f"rankers are {listed(served)}. For example split={{'a': 50, 'b': 50}}."
        )
    weights = np.array([split.get(name, 0.0) for name in harvest.rankers])
    if np.count_nonzero(weights) < 2:
        raise HarvestError(
            f"split must give shares of 0 or more, at least two of them above 0, found {dict(split)!r}. For example "
            "split={'a': 50, 'b': 50}."
        )
    if any(weights[harvest.rankers.index(name)] == 0 for name in served):
        raise HarvestError(
            f"split gives no share to a ranker that served page views, found {dict(split)!r}. Give each its share."
        )
    return np.asarray(weights / weights.sum())


def find_sticky_traffic(context: Context) -> Iterator[Finding]:
    """Find page views of one query that were assigned to rankers together."""
    found = dispersion(context.harvest.views)
    if found > STICKY_DISPERSION:
        yield Finding(
            "sticky-traffic",
            "info",
            "Page views of one query were assigned to rankers together, not one by one: their counts vary "
            f"{found:.1f} times as much as by chance",
            evidence={"dispersion": round_significant(found)},
            remedy="The intervals allow for it. It only costs precision, as long as the choice of ranker does not "
            "depend on the query.",
        )


def dispersion(page_views: FloatArray) -> float:
    """Return Pearson's χ² of page views by bucket and ranker over its degrees of freedom; NaN if there are none."""
    page_views = page_views[:, page_views.sum(axis=0) > 0]
    page_views = page_views[page_views.sum(axis=1) > 0]
    degrees = (page_views.shape[0] - 1) * (page_views.shape[1] - 1)
    if degrees < 1:
        return float("nan")
    expected = page_views.sum(axis=1, keepdims=True) * page_views.sum(axis=0) / page_views.sum()
    return float(((page_views - expected) ** 2 / expected).sum() / degrees)


# ---- Clicks of page views


def page_clicks_test(context: Context) -> Iterator[AssumptionTest]:
    """Test whether two clicks on one page are rarer than if clicks were independent."""
    pages = context.page_clicks
    if pages is None:
        return
    result = pages.several_clicks_test
    expected = pages.expected_click_pairs.sum()
    share = pages.click_pairs.sum() / expected if pages.expected_click_pairs.any() else float("nan")
    evidence = {
        "page_views": pages.page_views,
        "with_click": pages.with_click,
        "with_several_clicks": pages.with_several_clicks,
        "click_pairs": float(pages.click_pairs.sum()),
        "expected_click_pairs": round(float(expected), 1),
    }
    observed = "{with_several_clicks} of {page_views} page views have two clicks or more"
    yield AssumptionTest(
        result,
        Finding(
            "one-click-pages",
            "warning",
            f"{observed}: {share:.0%} of the pairs of clicks expected if clicks were independent "
            f"({format_p_value(result.p_value)}). Users stop at a click, or the page closes",
            pages.with_several_clicks,
            evidence=evidence,
            remedy="A click keeps users from clicking other results, so that a rank below a good result is examined "
            "less. The curve is an average over the results above: use it for these rankers only.",
        ),
        Finding(
            "page-clicks",
            "info",
            observed + (f", {share:.2f} times what independent clicks would give" if np.isfinite(share) else ""),
            pages.with_several_clicks,
            evidence=evidence,
        ),
    )


def find_unusual_pages(context: Context) -> Iterator[Finding]:
    """Find that every page view has a click, and that none has two clicks."""
    pages = context.page_clicks
    if pages is None:
        return
    shown, clicks = context.harvest.counts("rank")
    rates = clicks / np.maximum(shown, 1)
    without_click = pages.page_views * float(np.prod(1 - rates))
    if pages.with_click == pages.page_views and without_click > _MIN_EXPECTED:
        yield Finding(
            "only-clicked-pages",
            "warning",
            f"Each of {{page_views}} page views has a click, though about {without_click:,.0f} would have none if "
            "clicks were independent: page views without a click were dropped, or users always click",
            pages.page_views,
            evidence={"page_views": pages.page_views, "expected_without_click": round(without_click, 1)},
            remedy="Log every page view, with or without a click. On a page that was kept for its click, a result is "
            "clicked more often if nothing else was. That bends the curve, and looks as if users stopped at a click.",
        )
    expected = pages.page_views * (rates.sum() ** 2 - (rates**2).sum()) / 2
    if not pages.several_clicks_test.tested and not pages.with_several_clicks and expected > _MIN_EXPECTED:
        yield Finding(
            "one-click-pages",
            "warning",
            f"None of {{page_views}} page views has two clicks, though about {expected:,.0f} pairs of clicks are "
            "expected: the page closes at a click, users stop there, or each query has one relevant result",
            0,
            evidence={"page_views": pages.page_views, "expected_click_pairs": round(float(expected), 1)},
            remedy="If a click prevents other clicks, the curve is an average over the results above.",
        )


def count_units(opened: OpenLog, rankers: tuple[str, ...], max_rank: int) -> FloatArray | None:
    """Count units by bucket of units and ranker; None if the log has no units."""
    if opened.schema.unit is None or opened.schema.natural:
        return None
    answer = opened.table(unit_counts(QueryPlan(opened.schema, opened.dialect, rankers, max_rank)), "Counting units")
    buckets, place = np.unique(answer["bucket"], return_inverse=True)
    counts = sum_by_index(place * len(rankers) + answer["ranker"], answer["units"], len(buckets) * len(rankers))
    return counts.reshape(len(buckets), len(rankers)) if len(buckets) else None


def count_page_clicks(opened: OpenLog, rankers: tuple[str, ...], max_rank: int) -> PageClicks | None:
    """Count the clicks of page views; None if the log does not identify page views."""
    histogram = count_click_histogram(opened, rankers, max_rank)
    if histogram is None:
        return None
    plan = QueryPlan(opened.schema, opened.dialect, rankers, max_rank)
    rows = np.array(opened.rows(page_clicks(plan), "Counting clicks of page views"), dtype=np.float64)
    views, clicked, several = (int(n) for n in rows[:, 1:4].sum(axis=0))
    order = count_click_order(opened, rankers, histogram)
    pairs, expected = rows[:, 4:].T
    return PageClicks(views, clicked, several, histogram, pairs, expected, order)


@dataclass(frozen=True, eq=False)
class PageClicks:
    """Page views and their clicks.

    Attributes:
        page_views, with_click, with_several_clicks (int): page views, those with a click, and with two or more.
        histogram (array of shape (M + 1) × (M + 1)): page views by the number of results and of clicks.
        click_pairs (array of length B): ordered pairs of clicks of one page view, on pages that were shown again.
        expected_click_pairs (array of length B): their number if clicks were independent.
        order (ClickOrder, optional): how far clicks follow rank and document.
    """

    page_views: int
    with_click: int
    with_several_clicks: int
    histogram: FloatArray
    click_pairs: FloatArray
    expected_click_pairs: FloatArray
    order: ClickOrder | None = None

    @cached_property
    def several_clicks_test(self) -> FTest:
        """The one-sided test whether pairs of clicks are rarer than if clicks were independent."""
        if not self.expected_click_pairs.any():
            return not_tested("no page was shown twice")
        test = wald_test([self.click_pairs - self.expected_click_pairs])
        if not test.tested:
            return test
        rarer = self.click_pairs.sum() < self.expected_click_pairs.sum()
        return test._replace(p_value=test.p_value / 2 if rarer else 1 - test.p_value / 2)


# ---- Crawlers
#
# Under the model a user clicks rank k with a probability of at most p_k / max p, no matter how active the user
# or how relevant the results. Page views with more clicks than such a user ever makes are not those of users. Where
# users can make that many clicks, crawlers still differ: their clicks follow neither rank nor document.


def crawlers_test(context: Context) -> Iterator[Finding]:
    """Find page views of crawlers by their clicks, if the log was given."""
    pages, curve = context.page_clicks, next(iter(context.curves.values()), None)
    if pages is not None:
        yield from find_crawlers(pages.histogram, curve, pages.order, context.schema)


def find_crawlers(
    histogram: FloatArray, curve: Jackknife | None, order: ClickOrder | None, schema: Schema | None
) -> Iterator[Finding]:
    """Find page views with many clicks that are not those of users, and give a filter that leaves them out.

    Arguments:
        histogram (array of shape (M + 1) × (M + 1)): page views by the number of results and of clicks.
        curve (Jackknife or None): the curve with its refits. Crawlers flatten it, so that some of them go unnoticed.
        order (ClickOrder or None): how far the clicks of page views follow rank and document.
        schema (Schema or None): the columns of the log, for the filter.
    """
    views, by_clicks = histogram.sum(), histogram.sum(axis=0)
    at_least = np.cumsum(by_clicks[::-1])[::-1]
    evidence: dict[str, Any] = {"page_views": int(views)}
    possible = possible_page_views(histogram, _highest_curve(curve)) if curve is not None else at_least
    impossible = exceeds_users(histogram, possible)
    clicks = int(np.argmax(impossible))
    # Users who read a whole page click more often than the curve allows on average, but still the best results.
    if impossible.any() and not (order is not None and order.follows(clicks, histogram)):
        # Crawlers with fewer clicks are cut off, too, where their page views begin to be more numerous again.
        top = int(np.argmax(by_clicks[: clicks + 1]))
        cut = top + int(np.argmin(by_clicks[top : clicks + 1]))
        reason = ". By the curve, users click that often on {possible} page views at most, however relevant the "
        reason += "results are"
        evidence |= {"clicks": clicks, "possible": int(np.ceil(possible[clicks]))}
    else:
        crawled = None if order is None else order.find_crawled(histogram)
        if crawled is None:
            return
        clicks, follows, cut = crawled
        reason = (
            f", and their clicks follow neither rank nor document ({max(follows, 0.0):.0%} as much as other clicks)"
        )
        evidence |= {"clicks": clicks, "order": round(follows, 3)}
    count = int(at_least[clicks])
    arguments = _filter_arguments(schema, cut)
    # The message and the filter must not seem to contradict each other.
    lower = f" The filter begins at {cut} clicks, because most page views with {cut} are those of crawlers, too."
    yield Finding(
        "crawlers",
        "warning",
        f"Crawlers? {{count}} of {{page_views}} page views ({count / views:.1%}) have {clicks} clicks or more{reason}",
        count,
        evidence=evidence,
        remedy="Crawlers click all ranks alike and flatten the curve. Leave them out of the log, best by what "
        "identifies them (user, address, agent), since some of their page views have fewer clicks."
        + lower
        * (bool(arguments) and cut < clicks),
        arguments=arguments,
    )


def _highest_curve(curve: Jackknife) -> FloatArray:
    """Return the upper limits of a curve over its highest; 1 where a rank has no estimate."""
    known = np.isfinite(curve.log_propensity) & np.isfinite(curve.changes).all(axis=0)
    error = np.sqrt((np.where(known, curve.changes, 0.0) ** 2).sum(axis=0))
    high = np.where(known, np.exp(curve.log_propensity + _Z95 * error), np.inf)
    level = np.nanmax(np.where(known, np.exp(curve.log_propensity), np.nan), initial=1.0)
    return np.asarray(np.minimum(high / level, 1.0))


def _filter_arguments(schema: Schema | None, clicks: int) -> Arguments:
    """Return a query that leaves out page views with so many clicks, or the users who have one, if they are known."""
    if schema is None or schema.impression is None or schema.click is None:
        return {}
    unused = [column for column in schema.types if column not in schema.roles.values()]
    user = schema.unit or guess_column("unit", "user_id", unused)
    page, click = (f'"{name}"' for name in (schema.impression, schema.click))
    who, keys = (f'"{user}"', f'"{user}", {page}') if user else (page, page)
    crawled = f"SELECT {who} FROM source WHERE {who} IS NOT NULL GROUP BY {keys}"
    crawled += f" HAVING SUM(CAST({click} AS INTEGER)) >= {clicks}"
    return {"sql": f"SELECT * FROM source WHERE {who} IS NULL OR {who} NOT IN ({crawled})"}


# ---- A proxy of relevance
#
# Documents that are thought to be more relevant should have the same curve as the others. If they do not, a click is
# not propensity times relevance, as under trust bias. Unlike ranker pairs, this works with similar rankers too.


def proxy_test(context: Context) -> Iterator[AssumptionTest]:
    """Test whether the classes of a proxy of relevance have the same curve."""
    harvest, proxy = context.harvest, context.proxy
    if proxy is None:
        return
    if harvest.kind == "pairs":
        yield _proxy_not_tested(proxy, "the harvest holds sums over pairs of ranks, which give no curve by class")
        return
    clicks = {label(key): int(harvest.segment(key).clicks.sum()) for key in harvest.segments}
    fitted = {label(key): _curve_by_bucket(harvest.segment(key), harvest.buckets) for key in harvest.segments}
    curves = {name: curve for name, curve in fitted.items() if curve is not None}
    reference = max(curves, key=lambda name: clicks[name], default="")
    tests = {name: _compare_classes(curves[reference], curve) for name, curve in curves.items() if name != reference}
    tests = {name: test for name, test in tests.items() if test.tested}
    if not tests:
        known = [reference] if len(curves) > 1 else list(curves)
        yield _proxy_not_tested(proxy, f"{_without_curve(clicks, known)}")
        return
    other = min(tests, key=lambda name: tests[name].p_value)
    result = tests[other]._replace(p_value=min(1.0, len(tests) * tests[other].p_value))
    compared = [reference, *tests]
    left_out = [name for name in clicks if name not in compared]
    evidence: dict[str, Any] = {"proxy": proxy, "classes": compared, "most_different": [reference, other]}
    classes, exception = f"all classes of {proxy!r}", ""
    if left_out:
        evidence["left_out"] = left_out
        classes = f"{len(compared)} of {len(clicks)} classes of {proxy!r} ({' and '.join(compared)})"
        exception = f". Not compared: {_without_curve(clicks, compared)}"
    p_value = format_p_value(result.p_value)
    yield AssumptionTest(
        result,
        Finding(
            "curves-differ-by-proxy",
            "warning",
            f"The classes {reference} and {other} of {proxy!r} have different curves ({p_value}). A click is then not "
            f"propensity times relevance, as when users trust the top of the page{exception}",
            evidence=evidence,
            remedy="Weights from one curve are biased. Use a curve for each class, or a model with trust bias.",
        ),
        Finding(
            "same-curve-by-proxy",
            "info",
            f"No difference found between the curves of {classes} ({p_value}){exception}",
            evidence=evidence,
        ),
    )


def _proxy_not_tested(proxy: str, reason: str) -> AssumptionTest:
    return AssumptionTest(
        not_tested(reason),
        Finding("curves-differ-by-proxy", "warning", "Classes of documents have different curves"),
        Finding(
            "proxy-not-tested",
            "warning",
            f"Not tested: whether the classes of {proxy!r} have the same curve, because {reason}",
            evidence={"proxy": proxy},
            remedy="Use fewer and larger classes, or more days. Without the test there is no evidence of one curve.",
        ),
    )


def _curve_by_bucket(own: Harvest, buckets: IntArray) -> Jackknife | None:
    """Fit the curve of a harvest, with a refit for each of the given buckets; None if it has no curve."""
    estimator = CrossFit(interval=None)
    counts = estimator.count(own)
    # If CrossFit left buckets out, curves cannot be paired by bucket.
    if not counts.clicked or counts.buckets < 2 or counts.buckets != len(own.buckets):
        return None
    curve = estimator.curves(counts, np.ones(counts.buckets))
    # A bucket without data does not change the curve.
    refits = np.tile(curve, (len(buckets), 1))
    refits[lookup(own.buckets, buckets)] = estimator.curves(counts, deletion_weights(counts.buckets))
    return Jackknife(curve, refits)


def _without_curve(clicks: Mapping[str, int], known: Sequence[str]) -> str:
    """Return which classes have no curve, and why."""
    without = [f"{name} ({n:,} clicks)" for name, n in clicks.items() if name not in known]
    return f"documents of {' and '.join(without)} have too few clicks, or are at too few ranks, for a curve"


def _compare_classes(one: Jackknife, other: Jackknife) -> FTest:
    """Test whether one curve is steeper, and whether any rank differs; the smaller p-value counts, doubled."""
    difference, changes = other.log_propensity - one.log_propensity, other.changes - one.changes
    known = _comparable(difference, changes)
    if len(changes) < MIN_BUCKETS or not known.any():
        return not_tested("there are too few queries")
    steepness = (one.log_propensity + other.log_propensity)[known]
    difference, changes = difference[known], changes[:, known]
    steepness = steepness / (changes**2).sum(axis=0)
    by_rank = [test for k in range(len(difference)) if (test := _t_test(float(difference[k]), changes[:, k])).tested]
    weighted = [
        (_t_test(float(difference @ steepness), changes @ steepness), 1),
        *((test, len(by_rank)) for test in by_rank),
    ]
    corrected = [test._replace(p_value=min(1.0, 2 * number * test.p_value)) for test, number in weighted if test.tested]
    return min(corrected, key=lambda test: test.p_value, default=not_tested("there are too few queries"))


def refuse_proxy_column(schema: Schema, proxy: str) -> None:
    """Refuse a proxy that is not a column of the log, or one that has another meaning."""
    require_column(proxy, schema.types, argument="proxy")
    meanings = {name: role for role, name in schema.roles.items()}
    meanings |= {name: f"rank of {ranker!r}" for ranker, name in schema.rank_columns.items()}
    if proxy in meanings:
        raise HarvestError(
            f"Column {proxy!r} is the {meanings[proxy]}, not a proxy of relevance. A proxy is a column with classes of "
            "documents by expected relevance, which was not made from these clicks."
        )


def refuse_proxy(harvest: Harvest, proxy: str) -> None:
    """Refuse a proxy that is not the one segment column of the harvest, or that has too many classes."""
    if harvest.by != (proxy,):
        raise HarvestError(
            f"A proxy of relevance must be the one segment column of the harvest, found {listed(harvest.by)}. Harvest "
            f"the log by {proxy!r} alone, or give diagnose the log.",
            {"by": [proxy]},
        )
    if not 2 <= len(harvest.segments) <= MAX_CLASSES:
        raise HarvestError(
            f"The proxy {proxy!r} has {len(harvest.segments):,} values, but needs 2 to {MAX_CLASSES} classes of "
            "relevance. Cut it into classes first, such as its quarters."
        )


# ---- Ratios of pairs of ranks, for plots


def measure_pair_ratios(counts: Interventions, propensity: FloatArray) -> tuple[PairRatio, ...]:
    """Return the ratio of every two ranks that both have clicks, the most precise first, beside that of a curve.

    Standard errors of the log ratio are by jackknife over buckets of queries. The result is empty if there are too many
    pairs.
    """
    buckets, ranks = counts.buckets, len(propensity)
    if buckets < 2 or too_many_pairs(counts):
        return ()
    with np.errstate(divide="ignore", invalid="ignore"):
        x = _log_ratios(counts.total()[0])
        changes = _log_ratios(counts.tables(deletion_weights(buckets))[0]) - x
        error = np.sqrt((buckets - 1) / buckets * (changes**2).sum(axis=0))
        expected = np.log(propensity[None, :]) - np.log(propensity[:, None])
    k, other = np.triu_indices(ranks, 1)
    x, error, expected = x[k, other], error[k, other], expected[k, other]
    known = np.flatnonzero(np.isfinite(x) & np.isfinite(error) & np.isfinite(expected) & (error > 0))
    most_precise_first = known[np.argsort(error[known], kind="stable")]
    return tuple(
        PairRatio(
            rank=int(k[i]) + 1,
            other_rank=int(other[i]) + 1,
            ratio=float(np.exp(x[i])),
            low=float(np.exp(x[i] - _Z95 * error[i])),
            high=float(np.exp(x[i] + _Z95 * error[i])),
            expected=float(np.exp(expected[i])),
            off_curve=bool(abs(x[i] - expected[i]) > OFF_CURVE_ERRORS * error[i]),
        )
        for i in most_precise_first
    )


@dataclass(frozen=True)
class PairRatio:
    """The ratio p_k' / p_k by the clicks of one pair of ranks.

    Attributes:
        rank, other_rank (int): k and k' > k.
        ratio (float): by the clicks of the pair alone.
        low, high (float): its 95% confidence interval.
        expected (float): by the curve.
        off_curve (bool): whether they differ by more than three standard errors.
    """

    rank: int
    other_rank: int
    ratio: float
    low: float
    high: float
    expected: float
    off_curve: bool


def too_many_pairs(counts: Interventions) -> bool:
    """Return whether there are too many pairs of ranks to measure them all."""
    return counts.buckets * counts.max_rank**2 > _MAX_NUMBERS


def _log_ratios(clicks: FloatArray) -> FloatArray:
    """Return log ĉ_k'^{k,k'} / ĉ_k^{k,k'} from (..., M, M); NaN where a rank has no click."""
    other = np.swapaxes(clicks, -1, -2)
    return np.asarray(np.where((clicks > 0) & (other > 0), np.log(other / clicks), np.nan))
