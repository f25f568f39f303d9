"""The single diagnostics: traffic, page clicks, support, disagreement of estimators, proxies of relevance."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from posbias._arrays import FloatArray, group, places, tally
from posbias._stats import f_tail, round_significant, satterthwaite
from posbias._text import format_p_value, format_ranks, label, listed
from posbias._validate import shares
from posbias.engines import OpenLog
from posbias.errors import HarvestError
from posbias.estimators import AdjacentChain, AllPairs, CrossFit, PivotOne
from posbias.estimators.base import FEW_DEGREES, MIN_BUCKETS, deletion_weights
from posbias.estimators.cross_fit import STICKY_DISPERSION
from posbias.findings import Finding
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.interventions import Interventions
from posbias.harvesting.tables import Cells
from posbias.judging.one_curve import RankerPairs, Residuals, ranker_effects
from posbias.judging.significance import GRAVE, NOT_TESTED, Question, Trial, wald
from posbias.logs.schema import Schema, require
from posbias.sql.observations import FEW_RESULTS, page_clicks
from posbias.sql.plan import QueryPlan

# With fewer degrees of freedom than this a difference is not judged.
_FEWEST_DEGREES = 5.0
# More pages than this share with everything clicked were not made by people; so many are few.
_MOST_ALL, _FEW_PAGES = 0.005, 20
# So many pages with two clicks would be there by chance: none of them says that there cannot be any.
_EXPECTED = 30.0
# A bucket with more than this of a rank's variance, and so many times its share of the buckets, is named.
_HEAVY, _TIMES = 0.25, 10
# A bucket that has so many times an even share of what was shown or clicked is heavy by a query in it; by chance, with
# queries that are alike, buckets had four times at the most in trials.
_LARGE = 5.0
# Rankers that put so much of what both show at the same ranks tell little of other ranks.
_ALIKE = 0.9
# Documents of which fewer than this were shown at two ranks recur rarely.
_RARE = 0.1
_MOST_LINKS = 3
# More classes than this have too few clicks each, and are likely a score that was not cut into classes.
MOST_CLASSES = 10
# So many numbers of refits are held.
_MOST_NUMBERS = 4 * 10**7
# A pair that lies so many standard errors off the curve stands out.
APART = 3.0
_INTERVAL = 1.96


def refit(harvest: Harvest) -> list[Refitted]:
    """Return the curves that can be made of a harvest, CrossFit first, or AllPairs where there are only sums."""
    kinds: list[Any] = [AllPairs, PivotOne, AdjacentChain]
    if harvest.kind != "pairs":
        kinds.insert(0, CrossFit)
    found = []
    for kind in kinds:
        estimator = kind(interval=None)
        counts = estimator.count(harvest)
        if not counts.clicked:
            continue
        curve = estimator.curves(counts, np.ones(counts.buckets))
        # Without its only bucket there would be nothing.
        alone = counts.buckets < 2
        refits = (
            np.full((1, len(curve)), np.nan) if alone else estimator.curves(counts, deletion_weights(counts.buckets))
        )
        found.append(Refitted.of(kind.name, curve, refits))
    return found


@dataclass(frozen=True, eq=False)
class Refitted:
    """A curve and its deletions, in log p.

    Attributes:
        name: of the estimator.
        curve: x by rank; NaN where it is not known.
        moved: x without each bucket, less x: (B, M).
    """

    name: str
    curve: FloatArray
    moved: FloatArray

    @classmethod
    def of(cls, name: str, propensity: FloatArray, deleted: FloatArray) -> Refitted:
        """Return those of p, (M,), and of p without each bucket, (B, M)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            curve = np.log(propensity)
            moved = np.log(deleted) - curve
        return cls(name, _known(curve), _known(moved))


def _known(values: FloatArray) -> FloatArray:
    return np.where(np.isfinite(values), values, np.nan)


def question_disagreement(curves: list[Refitted]) -> list[Question]:
    """Return whether any curve differs from the first at any rank, of as many comparisons as there are."""
    best: tuple[float, str, int, float, float, float] | None = None
    tried = 0
    for other in curves[1:]:
        # Curves that leave out other buckets have other deletions.
        if len(other.moved) != len(curves[0].moved) or len(other.moved) < MIN_BUCKETS:
            continue
        moved = other.moved - curves[0].moved
        apart = other.curve - curves[0].curve
        known = np.isfinite(apart) & np.isfinite(moved).all(axis=0)
        known &= (np.where(known, moved, 0.0) ** 2).sum(axis=0) > 1e-18
        for k in np.flatnonzero(known):
            degrees = float(satterthwaite(moved[:, [k]])[0])
            if degrees < _FEWEST_DEGREES:
                continue
            tried += 1
            buckets = len(moved)
            t = apart[k] / np.sqrt((buckets - 1) / buckets * (moved[:, k] ** 2).sum())
            p = f_tail(1, degrees, float(t) ** 2)
            if best is None or p < best[0]:
                best = (p, other.name, int(k) + 1, float(np.exp(apart[k])), float(t), degrees)
    if best is None:
        return [Question(NOT_TESTED, Finding("estimators-disagree", "warning", "Estimators disagree"))]
    p, name, rank, ratio, t, degrees = best
    trial = Trial(t**2, 1, degrees, min(1.0, tried * p))
    alarm = Finding(
        "estimators-disagree",
        "warning",
        f"Estimators that should agree do not ({format_p_value(trial.p)}): at rank {rank} {name} finds {ratio:.3f} "
        f"times the propensity of {curves[0].name}, and queries left out one bucket at a time do not explain it",
        evidence={"estimator": name, "rank": rank, "ratio": round_significant(ratio), "compared": tried},
        remedy="They weigh the same pairs of ranks differently: pairs contradict each other, or traffic is not what it "
        "seems. Trust no curve more than the difference between them.",
    )
    return [Question(trial, alarm)]


def question_independence(ranker_pairs: RankerPairs) -> list[Question]:
    """Return whether the choice of the ranker depends on the query; where exposure is as observed nothing tells."""
    if not ranker_pairs.by_design:
        return []
    residuals = Residuals.of_impressions(ranker_pairs)
    trial = wald([residuals.by_bucket(effect) for effect in ranker_effects(ranker_pairs)])
    alarm = Finding(
        "query-dependent-traffic",
        "warning",
        "The choice of the ranker depends on the query: queries on whose results rankers agree more, or less, went to "
        f"some ranker more often than chance would send them ({format_p_value(trial.p)})",
        remedy="Split traffic by page view or user at random, whatever the query. Where that cannot be, harvest with "
        "weighting harmonic, which compares a document only with itself.",
    )
    return [Question(trial, alarm)]


def question_split(harvest: Harvest, split: Mapping[str, float]) -> Question:
    """Return whether page views came in the shares intended (sample ratio), as unequal as views of a query are."""
    shares = _shares(split, harvest)
    views = harvest.views.sum(axis=0)
    named = shares > 0
    expected = views[named].sum() * shares[named]
    scale = max(1.0, dispersion(harvest.views))
    size = int(named.sum()) - 1
    rest = float(max(len(harvest.views) - 1, 1))
    statistic = float(((views[named] - expected) ** 2 / expected).sum() / (size * scale))
    trial = Trial(statistic, size, rest, f_tail(size, rest, statistic))
    found = {name: int(n) for name, n, own in zip(harvest.rankers, views, named, strict=True) if own}
    told_found = ", ".join(f"{name!r} {n / max(views[named].sum(), 1):.2%}" for name, n in found.items())
    told_meant = ", ".join(f"{name!r} {s:.2%}" for name, s in zip(harvest.rankers, shares, strict=True) if s > 0)
    evidence = {"page_views": found, "intended": {n: float(s) for n, s in zip(harvest.rankers, shares, strict=True)}}
    return Question(
        trial,
        Finding(
            "sample-ratio-mismatch",
            "warning",
            f"Page views are not split as intended ({format_p_value(trial.p)}): found {told_found}, "
            f"intended {told_meant}",
            evidence=evidence,
            remedy="Some page views were lost, or assigned otherwise, by ranker. Find out which before trusting any "
            "comparison of rankers.",
        ),
        Finding(
            "sample-ratio-as-intended",
            "info",
            f"Page views are split as intended ({format_p_value(trial.p)}): {told_found}",
            evidence=evidence,
        ),
    )


def _shares(split: Mapping[str, float], harvest: Harvest) -> FloatArray:
    split = shares("split", split, "{'a': 50, 'b': 50}", HarvestError)
    served = [name for name, n in harvest.page_views.items() if n]
    unknown = [name for name in split if name not in harvest.rankers]
    missing = [name for name in served if name not in split]
    if unknown or missing:
        raise HarvestError(
            f"split must give every ranker that served its share: it names {listed(split)}, and the rankers are "
            f"{listed(served)}. For example split={{'a': 50, 'b': 50}}."
        )
    weights = np.array([split.get(name, 0.0) for name in harvest.rankers])
    if np.count_nonzero(weights) < 2:
        raise HarvestError(
            f"split must give shares of 0 or more, two of them above 0, found {dict(split)!r}: for example "
            "split={'a': 50, 'b': 50}."
        )
    if any(weights[harvest.rankers.index(name)] == 0 for name in served):
        raise HarvestError(f"split gives no share to a ranker that served, found {dict(split)!r}. Give each its share.")
    return np.asarray(weights / weights.sum())


def dispersion(views: FloatArray) -> float:
    """Return Pearson's χ² of page views by bucket and ranker over its degrees of freedom; NaN if there are none."""
    views = views[:, views.sum(axis=0) > 0]
    views = views[views.sum(axis=1) > 0]
    degrees = (views.shape[0] - 1) * (views.shape[1] - 1)
    if degrees < 1:
        return float("nan")
    expected = views.sum(axis=1, keepdims=True) * views.sum(axis=0) / views.sum()
    return float(((views - expected) ** 2 / expected).sum() / degrees)


def find_sticky(harvest: Harvest) -> list[Finding]:
    """Return whether views of one query were given to rankers together."""
    found = dispersion(harvest.views)
    if not found > STICKY_DISPERSION:
        return []
    return [
        Finding(
            "sticky-traffic",
            "info",
            f"Views of one query were given to rankers together, not each by itself: their numbers vary {found:.1f} "
            "times as much as by chance",
            evidence={"dispersion": round_significant(found)},
            remedy="Intervals allow for it; it costs precision alone, if the ranker does not depend on what the query "
            "is.",
        )
    ]


def count_page_clicks(opened: OpenLog, rankers: tuple[str, ...], max_rank: int) -> PageClicks | None:
    """Count the clicks of page views; None where the log does not tell them apart."""
    schema = opened.schema
    if schema.impression is None or schema.aggregated or not rankers:
        return None
    plan = QueryPlan(schema, opened.dialect, rankers, max_rank)
    answer = np.array(opened.rows(page_clicks(plan), "Counting clicks of page views"), dtype=np.float64)
    if not len(answer):
        return None
    views, clicked, several, full, all_clicked, nearly = (int(n) for n in answer[:, 1:7].sum(axis=0))
    return PageClicks(views, clicked, several, full, all_clicked, nearly, *answer[:, 7:].T)


@dataclass(frozen=True, eq=False)
class PageClicks:
    """Page views and their clicks.

    Attributes:
        views, clicked, several: page views, those with a click, and with two or more.
        full, all_clicked, nearly: those with five results or more, and those of them on which everything was clicked,
            or all but one.
        together: twice the pairs of clicks of one view, by bucket, where the same page was seen again.
        apart: what they would be if each click came by itself, by bucket.
        wholly, by_chance: likewise the views on which everything was clicked, and what they would be.
    """

    views: int
    clicked: int
    several: int
    full: int
    all_clicked: int
    nearly: int
    together: FloatArray
    apart: FloatArray
    wholly: FloatArray
    by_chance: FloatArray


def question_pages(pages: PageClicks) -> Question:
    """Return whether page views have two clicks less often than if each came by itself."""
    trial = wald([pages.together - pages.apart]) if pages.apart.any() else NOT_TESTED
    if trial.told:
        fewer = pages.together.sum() < pages.apart.sum()
        trial = Trial(trial.statistic, 1, trial.degrees, trial.p / 2 if fewer else 1 - trial.p / 2)
    share = pages.together.sum() / pages.apart.sum() if pages.apart.any() else float("nan")
    evidence = {
        "page_views": pages.views,
        "clicked": pages.clicked,
        "several": pages.several,
        "together": float(pages.together.sum()),
        "expected": round(float(pages.apart.sum()), 1),
    }
    alarm = Finding(
        "one-click-pages",
        "warning",
        "{several} of {page_views} page views have two clicks or more, "
        + f"{share:.0%} of the pairs of clicks that there would be if each came by itself ({format_p_value(trial.p)}): "
        "users stop at a click, or the page goes away",
        pages.several,
        evidence=evidence,
        remedy="What is clicked keeps other results from being clicked, so that a rank is seen less under a good "
        "result. The curve is an average over what stood above; take it as that of these rankers only.",
    )
    calm = Finding(
        "page-clicks",
        "info",
        "{several} of {page_views} page views have two clicks or more"
        + (f", {share:.2f} times what independent clicks make" if np.isfinite(share) else ""),
        pages.several,
        evidence=evidence,
    )
    return Question(trial, alarm, calm)


def find_odd_pages(pages: PageClicks, harvest: Harvest, trial: Trial) -> list[Finding]:
    """Return pages on which everything was clicked, that each has a click, and that none has two if none could tell."""
    found = []
    shown, clicks = harvest.counts("rank")
    rates = clicks / np.maximum(shown, 1)
    idle = pages.views * float(np.prod(1 - rates))
    if pages.clicked == pages.views and idle > _EXPECTED:
        found.append(
            Finding(
                "only-clicked-pages",
                "warning",
                f"Each of {{page_views}} page views has a click, where about {idle:,.0f} would have none if each click "
                "came by itself: page views without a click were left out, or users always click",
                pages.views,
                evidence={"page_views": pages.views, "expected": round(idle, 1)},
                remedy="Log page views whether or not anything was clicked. A result on a page kept for its click is "
                "clicked more often where nothing else was, which bends the curve and looks as if users stop at a "
                "click.",
            )
        )
    if _crawled(pages):
        found.append(
            Finding(
                "all-clicked-pages",
                "warning",
                f"Everything was clicked on {{count}} of {{full}} page views with {FEW_RESULTS} results or more",
                pages.all_clicked,
                evidence={"full": pages.full, "expected": round(float(pages.by_chance.sum()), 1)},
                remedy="Crawlers and tests click like this. They flatten the curve: leave them out of the log.",
            )
        )
    expected = pages.views * (rates.sum() ** 2 - (rates**2).sum()) / 2
    if not trial.told and not pages.several and expected > _EXPECTED:
        found.append(
            Finding(
                "one-click-pages",
                "warning",
                f"None of {{page_views}} page views has two clicks, where about {expected:,.0f} pairs of clicks would "
                "be expected: the page goes away when it is clicked, users stop there, or each query has one relevant "
                "result",
                0,
                evidence={"page_views": pages.views, "expected": round(float(expected), 1)},
                remedy="If a click keeps others from happening, the curve is an average over what stood above.",
            )
        )
    return found


def _crawled(pages: PageClicks) -> bool:
    """Return whether everything was clicked more often than by people, who click one thing and leave another.

    Of people more pages have all but one result clicked, unless they click nearly all that they are shown; and how
    often they do is told by pages that were seen again.
    """
    if pages.all_clicked < _FEW_PAGES or pages.all_clicked <= _MOST_ALL * pages.full:
        return False
    if pages.all_clicked > 2 * pages.nearly:
        return True
    more = float(pages.wholly.sum() - pages.by_chance.sum())
    return wald([pages.wholly - pages.by_chance]).p < GRAVE and more > max(_FEW_PAGES, _MOST_ALL * pages.full)


def measure_support(curve: Refitted | None, residuals: Residuals | None, harvest: Harvest) -> tuple[RankSupport, ...]:
    """Return what each rank from the second on hangs on, by deletions of a curve and ranker pairs of a harvest."""
    ranks = harvest.max_rank
    links = links_of(residuals) if residuals is not None else [{}] * ranks
    degrees, heaviest, times = np.full((3, ranks), np.nan)
    if curve is not None:
        known = np.isfinite(curve.curve) & np.isfinite(curve.moved).all(axis=0)
        moved = np.where(known, curve.moved, 0.0)
        squares = (moved**2).sum(axis=0)
        moving = known & (squares > 1e-12)
        degrees = np.where(moving, satterthwaite(moved), np.nan)
        heaviest = np.where(moving, (moved**2).max(axis=0) / np.where(squares > 0, squares, 1), np.nan)
        # A curve that leaves buckets out does not tell which of them its deletions are.
        if len(moved) == len(harvest.buckets):
            shown = harvest.counts("bucket")
            shares = (shown / np.maximum(shown.mean(axis=1, keepdims=True), 1e-300)).max(axis=0)
            times = np.where(moving, shares[(moved**2).argmax(axis=0)], np.nan)
    told = zip(
        map(round_significant, degrees),
        map(round_significant, heaviest),
        map(round_significant, times),
        links,
        strict=True,
    )
    return tuple(RankSupport(k, *one) for k, one in enumerate(told, 1) if k > 1)


@dataclass(frozen=True)
class RankSupport:
    """What one rank hangs on.

    Attributes:
        rank: from 1.
        degrees_of_freedom: of its standard error: about as many as queries of equal say decide it; None if unknown.
        largest_bucket_share: the share of its variance that one bucket of queries makes.
        largest_bucket_size: impressions or clicks of that bucket over the mean of all buckets, whichever is larger.
        compared_ranks: the ranks that it is compared with, by their share of what is known, the largest first.
    """

    rank: int
    degrees_of_freedom: float | None
    largest_bucket_share: float | None
    largest_bucket_size: float | None
    compared_ranks: dict[int, float]

    @property
    def large(self) -> bool:
        """Whether its heaviest bucket has so much of what was shown or clicked that chance does not explain it."""
        return self.largest_bucket_size is not None and self.largest_bucket_size >= _LARGE

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return asdict(self)


def links_of(residuals: Residuals) -> list[dict[int, float]]:
    """Return, for each rank, the ranks that it is compared with most, and their shares of the information."""
    c = residuals.ranker_pairs
    apart = -c.laplacian(residuals.variance)
    np.fill_diagonal(apart, 0.0)
    total = apart.sum(axis=1, keepdims=True)
    return [_largest(shares) for shares in np.divide(apart, total, out=np.zeros_like(apart), where=total > 0)]


def _largest(shares: FloatArray) -> dict[int, float]:
    order = np.argsort(-shares, kind="stable")[:_MOST_LINKS]
    return {int(k) + 1: round(float(shares[k]), 3) for k in order if shares[k] > 0}


def find_weak_support(
    support: tuple[RankSupport, ...], harvest: Harvest, ranker_pairs: RankerPairs | None
) -> list[Finding]:
    """Return what a curve hangs on that is too little, and what it hangs on at all."""
    found = [_hanging(support)]
    thin = [one for one in support if one.degrees_of_freedom is not None and one.degrees_of_freedom < FEW_DEGREES]
    if thin:
        ranks = ", ".join(str(one.rank) for one in thin)
        least = min(one.degrees_of_freedom or 0 for one in thin)
        found.append(
            Finding(
                "few-degrees-of-freedom",
                "warning",
                f"Few queries decide rank{'s' * (len(thin) > 1)} {ranks}: {least:.1f} degrees of freedom, the least",
                len(thin),
                evidence={"ranks": [one.rank for one in thin]},
                remedy="Intervals are wider for it. Harvest a longer period, or look at what plan says.",
            )
        )
    most_usual = max(_HEAVY, _TIMES / max(len(harvest.buckets), 1))
    heavy = [one for one in support if (one.largest_bucket_share or 0) > most_usual and (one.large or one not in thin)]
    if heavy:
        found.append(_heavy(heavy, len(harvest.buckets)))
    if ranker_pairs is not None:
        found += _alike(ranker_pairs, harvest)
    return found + _rare(harvest)


def _hanging(support: tuple[RankSupport, ...]) -> Finding:
    known = {one.rank: one.degrees_of_freedom for one in support if one.degrees_of_freedom is not None}
    unknown = [one.rank for one in support if one.degrees_of_freedom is None]
    told = [f"{_have(known)} {min(known.values()):,.0f} degrees of freedom or more"] if known else []
    told += [f"{_have(unknown)} no standard error"] if unknown else []
    return Finding(
        "support",
        "info",
        "; ".join([*told[:1], *(text.lower() for text in told[1:])]),
        evidence={"ranks": [one.to_dict() for one in support]},
    )


def _have(ranks: Collection[int]) -> str:
    """Return the ranks that have something.

    >>> _have([2, 3, 4]), _have([7])
    ('Ranks 2 to 4 have', 'Rank 7 has')
    """
    return f"{format_ranks(list(ranks)).capitalize()} {'have' if len(ranks) > 1 else 'has'}"


def _heavy(heavy: list[RankSupport], buckets: int) -> Finding:
    """Return that one bucket makes much of a variance: by a query in it that is large, or by chance, of few queries."""
    large = [one for one in heavy if one.large]
    most = max(large or heavy, key=lambda one: one.largest_bucket_share or 0)
    what = (
        f"One bucket of queries of {buckets} makes {most.largest_bucket_share:.0%} of the variance at rank {most.rank}"
    )
    if large:
        times = f", and has {most.largest_bucket_size:.0f} times an even share of all that was shown or clicked"
        remedy = "Look for a query, or an aggregated row, with most of the impressions: a crawler, or a test."
    else:
        times = ", though it was not shown or clicked much more than others: few queries decide that rank"
        remedy = "Chance does so where queries are few. Harvest a longer period, or look at what plan says."
    evidence = {"ranks": [one.rank for one in heavy], "times": most.largest_bucket_size}
    return Finding("dominant-bucket", "warning", what + times, len(heavy), evidence=evidence, remedy=remedy)


def _alike(ranker_pairs: RankerPairs, harvest: Harvest) -> list[Finding]:
    """Return pairs of rankers that put nearly all of what both show at the same ranks."""
    size = len(harvest.rankers)
    pair = ranker_pairs.first * size + ranker_pairs.second
    shown = ranker_pairs.shown.sum(axis=0)
    total, level = (tally(pair, values, size**2) for values in (shown, shown * ranker_pairs.level))
    alike = [int(p) for p in np.flatnonzero(total) if level[p] > _ALIKE * total[p]]
    if not alike:
        return []
    most = max(alike, key=lambda p: level[p] / total[p])
    names = f"{harvest.rankers[most // size]!r} and {harvest.rankers[most % size]!r}"
    return [
        Finding(
            "similar-rankers",
            "warning",
            f"{names} put {level[most] / total[most]:.1%} of what both show at the same ranks",
            len(alike),
            evidence={"share": round(float(level[most] / total[most]), 4)},
            remedy="They tell little of the curve. Rankers that differ more make intervals narrower.",
        )
    ]


def _rare(harvest: Harvest) -> list[Finding]:
    """Return whether in replay few pairs were shown at two ranks."""
    cells = harvest.table
    if harvest.kind != "exposures" or not isinstance(cells, Cells) or not len(cells):
        return []
    seen = cells.where(cells.impressions > 0)
    first, which = group([seen.stratum])
    low, high = np.full(len(first), np.iinfo(np.int64).max), np.zeros(len(first), dtype=np.int64)
    np.minimum.at(low, which, seen.rank)
    np.maximum.at(high, which, seen.rank)
    pairs = seen.pairs[first]
    total, moved = int(pairs.sum()), int(pairs[high > low].sum())
    share = moved / max(total, 1)
    return [
        Finding(
            "few-repeated-pairs" if share < _RARE else "repeated-pairs",
            "warning" if share < _RARE else "info",
            "{moved} of {pairs} (query, document) pairs " + f"({share:.1%}) were shown at two ranks",
            moved,
            evidence={"moved": moved, "pairs": total},
            remedy="Only these are compared. Log each ranker's rank (ranks or rankings), so that queries need not "
            "recur." * (share < _RARE),
        )
    ]


def question_proxy(harvest: Harvest, proxy: str) -> Question:
    """Return whether the classes of a proxy of relevance, by which the harvest was made, have different curves."""
    if harvest.by != (proxy,):
        raise HarvestError(
            f"A proxy of relevance must be the one segment column of the harvest, found {listed(harvest.by)}. Harvest "
            f"the log by {proxy!r} alone, or give diagnose the log.",
            {"by": [proxy]},
        )
    if not 2 <= len(harvest.segments) <= MOST_CLASSES:
        raise HarvestError(
            f"The proxy {proxy!r} has {len(harvest.segments):,} values, where 2 to {MOST_CLASSES} classes of relevance "
            "are wanted. Cut it into classes first, such as its quarters."
        )
    if harvest.kind == "pairs":
        return _untold(proxy, "the harvest holds sums over pairs of ranks, of which no curve by class is made")
    classes = [one for key in harvest.segments if (one := _class(harvest, key)) is not None]
    clicks = {label(key): int(harvest.segment(key).clicks.sum()) for key in harvest.segments}
    if len(classes) < 2:
        return _untold(proxy, _few(clicks, [one.name for one in classes]))
    first = max(classes, key=lambda one: one.clicks)
    found = [(_compare(first, one), one) for one in classes if one is not first]
    known = [(trial, one) for trial, one in found if trial.told]
    if not known:
        return _untold(proxy, _few(clicks, [first.name]))
    best, other = min(known, key=lambda pair: pair[0].p)
    p = min(1.0, len(known) * best.p)
    compared = [first.name, *(one.name for _, one in known)]
    left_out = [name for name in clicks if name not in compared]
    evidence: dict[str, Any] = {"proxy": proxy, "classes": compared, "compared": [first.name, other.name]}
    whole = f"all classes of {proxy!r}"
    but = ""
    if left_out:
        evidence["left_out"] = left_out
        whole = f"{len(compared)} of {len(clicks)} classes of {proxy!r}, {' and '.join(compared)},"
        but = f"; {_few(clicks, compared)}"
    return Question(
        Trial(best.statistic, best.directions, best.degrees, p),
        Finding(
            "curves-differ-by-proxy",
            "warning",
            f"Documents of {proxy!r} {first.name} and {other.name} have different curves ({format_p_value(p)}): a "
            f"click is not the rank's propensity times relevance, as where users trust the top of the page{but}",
            evidence=evidence,
            remedy="Weights of one curve are biased. Use a curve for each class, or a model with trust bias.",
        ),
        Finding(
            "same-curve-by-proxy",
            "info",
            f"Documents of {whole} have one curve ({format_p_value(p)}){but}",
            evidence=evidence,
        ),
    )


def _untold(proxy: str, why: str) -> Question:
    """Return that classes could not be compared, which is no evidence that they have one curve."""
    alarm = Finding("curves-differ-by-proxy", "warning", "Classes of documents have different curves")
    calm = Finding(
        "proxy-not-tested",
        "warning",
        f"The curves of the classes of {proxy!r} could not be compared: {why}",
        evidence={"proxy": proxy},
        remedy="That is no evidence of one curve. Take fewer and larger classes, or more days.",
    )
    return Question(NOT_TESTED, alarm, calm)


def _class(harvest: Harvest, key: tuple[str | None, ...]) -> _Class | None:
    own = harvest.segment(key)
    estimator = CrossFit(interval=None)
    counts = estimator.count(own)
    # A curve that leaves buckets out has no deletions of them.
    if not counts.clicked or counts.buckets != len(own.buckets):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        curve = np.log(estimator.curves(counts, np.ones(counts.buckets)))
        moved = np.log(estimator.curves(counts, deletion_weights(counts.buckets))) - curve
    whole = np.zeros((len(harvest.buckets), harvest.max_rank))
    whole[places(own.buckets, harvest.buckets)] = np.where(np.isfinite(moved), moved, np.nan)
    return _Class(label(key), int(own.clicks.sum()), np.where(np.isfinite(curve), curve, np.nan), whole)


@dataclass(frozen=True, eq=False)
class _Class:
    """The curve of one class of documents: log p, and what leaving out each bucket of the harvest moves it by."""

    name: str
    clicks: int
    curve: FloatArray
    moved: FloatArray


def _few(clicks: Mapping[str, int], known: Sequence[str]) -> str:
    """Say of all classes but those that are known why they are not."""
    without = [f"{name} ({n:,} clicks)" for name, n in clicks.items() if name not in known]
    return f"documents of {' and '.join(without)} have too few clicks, or stand at too few ranks, for a curve"


def _compare(one: _Class, other: _Class) -> Trial:
    """Try whether one curve is steeper than the other, and whether they differ at any rank: twice the lesser p."""
    apart, moved = other.curve - one.curve, other.moved - one.moved
    buckets = len(moved)
    known = np.isfinite(apart) & np.isfinite(moved).all(axis=0)
    known &= (np.where(known, moved, 0.0) ** 2).sum(axis=0) > 1e-18
    if buckets < MIN_BUCKETS or not known.any():
        return NOT_TESTED
    apart, moved = apart[known], moved[:, known]
    steep = (one.curve + other.curve)[known] / (moved**2).sum(axis=0)
    each = [_try(apart[k], moved[:, k]) for k in range(len(apart))]
    told_of = [trial for trial in each if trial.told]
    tried = [(_try(float(apart @ steep), moved @ steep), 1), *((trial, len(told_of)) for trial in told_of)]
    sure = [(min(1.0, 2 * times * trial.p), trial) for trial, times in tried if trial.told]
    if not sure:
        return NOT_TESTED
    p, trial = min(sure, key=lambda pair: pair[0])
    return Trial(trial.statistic, 1, trial.degrees, p)


def _try(apart: float, moved: FloatArray) -> Trial:
    degrees = float(satterthwaite(moved[:, None])[0])
    buckets = len(moved)
    variance = float((buckets - 1) / buckets * (moved**2).sum())
    if degrees < _FEWEST_DEGREES or variance <= 0:
        return NOT_TESTED
    squared = float(apart) ** 2 / variance
    return Trial(squared, 1, degrees, f_tail(1, degrees, squared))


def refuse_proxy(schema: Schema, proxy: str) -> None:
    """Refuse for a proxy what is not there, and what is something else already."""
    require(proxy, schema.types, argument="proxy")
    meanings = {name: role for role, name in schema.roles.items()}
    meanings |= {name: f"rank of {ranker!r}" for ranker, name in schema.rank_columns.items()}
    if proxy in meanings:
        raise HarvestError(
            f"Column {proxy!r} tells the {meanings[proxy]}, and is no proxy of relevance: that is a column with "
            "classes of documents by how relevant they are thought to be, which these clicks did not make."
        )


def measure_pair_ratios(counts: Interventions, propensity: FloatArray) -> tuple[PairRatio, ...]:
    """Return the ratio of every two ranks with clicks on both sides, the surest first, beside that of a curve.

    Standard errors are of the log ratio, by leaving out a bucket of queries at a time. There are none where the pairs
    are too many.
    """
    buckets, ranks = counts.buckets, len(propensity)
    if buckets < 2 or too_many_pairs(counts):
        return ()
    with np.errstate(divide="ignore", invalid="ignore"):
        x = _log_ratios(counts.total()[0])
        moved = _log_ratios(counts.tables(deletion_weights(buckets))[0]) - x
        error = np.sqrt((buckets - 1) / buckets * (moved**2).sum(axis=0))
        expected = np.log(propensity[None, :]) - np.log(propensity[:, None])
    k, other = np.triu_indices(ranks, 1)
    x, error, expected = x[k, other], error[k, other], expected[k, other]
    told = np.flatnonzero(np.isfinite(x) & np.isfinite(error) & np.isfinite(expected) & (error > 0))
    surest = told[np.argsort(error[told], kind="stable")]
    return tuple(
        PairRatio(
            rank=int(k[i]) + 1,
            other_rank=int(other[i]) + 1,
            ratio=float(np.exp(x[i])),
            low=float(np.exp(x[i] - _INTERVAL * error[i])),
            high=float(np.exp(x[i] + _INTERVAL * error[i])),
            expected=float(np.exp(expected[i])),
            off_curve=bool(abs(x[i] - expected[i]) > APART * error[i]),
        )
        for i in surest
    )


@dataclass(frozen=True)
class PairRatio:
    """What the clicks of one pair of ranks say of p_k' / p_k.

    Attributes:
        rank, other_rank: k and k', of which k is the higher on the page.
        ratio: by the clicks of the pair alone, with its 95% interval from `low` to `high`.
        expected: by the curve.
        off_curve: whether they are more than three standard errors apart.
    """

    rank: int
    other_rank: int
    ratio: float
    low: float
    high: float
    expected: float
    off_curve: bool


def too_many_pairs(counts: Interventions) -> bool:
    """Return whether there are more pairs of ranks than can be measured at once."""
    return counts.buckets * counts.max_rank**2 > _MOST_NUMBERS


def _log_ratios(clicks: FloatArray) -> FloatArray:
    """Return log ĉ_k'^{k,k'} / ĉ_k^{k,k'} from (..., M, M); NaN where one side has no click."""
    other = np.swapaxes(clicks, -1, -2)
    return np.asarray(np.where((clicks > 0) & (other > 0), np.log(other / clicks), np.nan))
