"""Simulated logs of a `World` as arrays: harvested and evaluated in NumPy without an engine, thousands in minutes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from posbias._arrays import BoolArray, FloatArray, IntArray, group, lookup, sum_by_index
from posbias.estimators import CrossFit
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.observations import Observations
from posbias.harvesting.tables import Cells, renumber_strata
from posbias.judging.diagnostics import PageClicks
from posbias.learning.evaluate import ClickCredits, FrequentQueries, JackknifeValues
from posbias.logs.click_log import Layout, Weighting
from posbias.simulation.simulate import Block, Pages, Rankings, aggregate_pages, blocks_of, draw_pages, draw_rankings
from posbias.simulation.users import PositionBased, User
from posbias.simulation.world import World
from posbias.sql.dialects import DuckDBDialect
from posbias.sql.evaluation import FREQUENT_SHARE, FREQUENT_TIMES

# The column of the proxy of relevance.
PROXY = "guess"
_MIN_QUERIES = 300
# Rows of `ClickCredits`: all relevance, the log, and from `FIRST` on the evaluated rankings.
RELEVANT, LOG, FIRST = 0, 1, 2


def draw_log(
    world: World, buckets: IntArray, *, user: User | None = None, query_dependence: float = 0.0, hot: float = 0.0
) -> SimulatedLog:
    """Simulate the same log as `posbias.simulate`, as arrays.

    Arguments:
        world: the simulated world.
        buckets: the bucket of each query, from `buckets_of`; the same for every seed.
        user: a user model that replaces the users of the world.
        query_dependence: how strongly the choice of the ranker depends on the query, from 0 to 1: the first rankers
            serve queries with more relevant candidates more often, as in `split_views`.
        hot: the share of all page views that the first query has; 0 for as many as any other.
    """
    parts = []
    for block in blocks_of(world):
        if hot and not block.first_query:
            others = world.queries * world.repeats - block.views[0]
            views = np.append(round(hot / (1 - hot) * others), block.views[1:])
            block = replace(block, views=views.astype(np.int64))
        rankings = draw_rankings(world, block)
        pages = aggregate_pages(world, _draw_views(world, block, rankings, user, query_dependence))
        parts.append((block.first_query, block.views, rankings, pages))
    width = world.max_rank
    every = [rankings for _, _, rankings, _ in parts]
    ranks = np.concatenate([rankings.ranks for rankings in every])
    pages_of = [pages for *_, pages in parts]
    return SimulatedLog(
        world=world,
        buckets=buckets,
        views=np.concatenate([views for _, views, *_ in parts]),
        ranks=np.where(ranks > width, np.int16(0), ranks),
        relevance=np.where(_joined_relevance(every), 1.0, world.noise),
        query=np.repeat(np.concatenate([first + pages.query for first, *_, pages in parts]), width),
        ranker=np.repeat(np.concatenate([pages.ranker for pages in pages_of]), width),
        candidate=np.concatenate([_shown(world, rankings, pages) for _, _, rankings, pages in parts]),
        rank=np.tile(np.arange(1, width + 1), sum(len(pages.query) for pages in pages_of)),
        impressions=np.repeat(np.concatenate([pages.impressions for pages in pages_of]), width),
        clicks=np.concatenate([pages.clicks.ravel() for pages in pages_of]).astype(np.int64),
    )


@dataclass(frozen=True, eq=False)
class SimulatedLog:
    """A simulated log as arrays, with one row for each query, ranker and rank shown.

    Attributes:
        world: the simulated world.
        buckets: the bucket of each query, as in the engine.
        views: the page views of each query.
        ranks: the rank by query, ranker and candidate, from 1; 0 beyond M.
        relevance: the probability of a click after examination, by query and candidate.
        query, ranker, candidate, rank: what each row is about.
        impressions, clicks: the counts of each row.
    """

    world: World
    buckets: IntArray
    views: IntArray
    ranks: NDArray[np.int16]
    relevance: FloatArray
    query: IntArray
    ranker: IntArray
    candidate: IntArray
    rank: IntArray
    impressions: IntArray
    clicks: IntArray

    @cached_property
    def _pairs(self) -> tuple[IntArray, IntArray]:
        """The first row of each (query, document) pair, and the pair number of each row."""
        return group([self.query, self.candidate])

    def harvest(self, layout: Layout, weighting: Weighting | None = None) -> Harvest:
        """Return the harvest of the log in a layout: by signatures, or by exposures if it compares single pairs."""
        weighting = weighting or layout.weighting
        by_design = layout.ranks_known and weighting == "traffic"
        return Harvest(
            max_rank=self.world.max_rank,
            rankers=self.world.rankers,
            layout=layout,
            weighting=weighting,
            by=(),
            segments=((),),
            kind="signatures" if by_design else "exposures",
            table=self._signatures() if by_design else self._exposures(),
        )

    def harvest_by_proxy(self, accuracy: float) -> Harvest:
        """Return the harvest segmented by a proxy of relevance that is right with probability `accuracy`."""
        rng = np.random.default_rng((self.world.seed, 2))
        proxy = (self.relevance == 1) == (rng.random(self.relevance.shape) < accuracy)
        high = proxy[self.query, self.candidate]
        names = ("query", "ranker", "candidate", "rank", "impressions", "clicks")
        parts = [
            replace(self, **{name: getattr(self, name)[high == value] for name in names})._signatures()
            for value in (False, True)
        ]
        table = [replace(part, segment=np.full(len(part), i)) for i, part in enumerate(renumber_strata(parts))]
        whole = self.harvest(Layout.WIDE)
        return replace(whole, by=(PROXY,), segments=(("low",), ("high",)), table=Cells.concatenate(table))

    def observations(self) -> Observations:
        """Return the input of EM estimators: impressions and clicks of each pair at each rank."""
        zeros = np.zeros(len(self.query), dtype=np.int64)
        bucket = self.buckets[self.query]
        shown = {"segment": zeros, "rank": self.rank, "impressions": self.impressions, "clicks": self.clicks}
        return Observations(
            kind="pairs",
            max_rank=self.world.max_rank,
            rankers=self.world.rankers,
            totals={**shown, "bucket": bucket, "ranker": self.ranker},
            rows={**shown, "bucket": bucket, "item": self._pairs[1]},
        )

    def _signatures(self) -> Cells:
        """Return the cells of all signatures: the rank by every ranker, shown or not."""
        ranks = self.ranks[self.query, :, self.candidate].astype(np.int64)
        first, stratum = group([self.buckets[self.query], *ranks.T])
        where = self.ranker * len(first) + stratum
        counts = [sum_by_index(where, c, len(self.world.rankers) * len(first)) for c in (self.impressions, self.clicks)]
        impressions, clicks = (c.reshape(-1, len(first)) for c in counts)
        ranker, row = np.nonzero(ranks[first].T)
        return _cells(
            bucket=self.buckets[self.query[first]][row],
            stratum=row,
            pairs=np.zeros(len(row)),
            ranker=ranker,
            rank=ranks[first].T[ranker, row],
            impressions=impressions[ranker, row],
            clicks=clicks[ranker, row],
        )

    def _exposures(self) -> Cells:
        """Return the cells of all exposures: pairs of a bucket with the same ranks and impressions by each ranker."""
        first, pair = self._pairs
        rankers = len(self.world.rankers)
        where = self.ranker * len(first) + pair
        rank, shown, clicks = (
            np.rint(sum_by_index(where, c, rankers * len(first))).astype(np.int64).reshape(rankers, -1)
            for c in (self.rank, self.impressions, self.clicks)
        )
        begins, stratum = group([self.buckets[self.query[first]], *rank, *shown])
        pairs = sum_by_index(stratum, np.ones(len(first)), len(begins))
        ranker, row = np.nonzero(rank[:, begins])
        found = np.stack([sum_by_index(stratum, own, len(begins)) for own in clicks])
        return _cells(
            bucket=self.buckets[self.query[first]][begins][row],
            stratum=row,
            pairs=pairs[row],
            ranker=ranker,
            rank=rank[:, begins][ranker, row],
            impressions=shown[:, begins][ranker, row] * pairs[row],
            clicks=found[ranker, row],
        )


def _draw_views(
    world: World, block: Block, rankings: Rankings, user: User | None, dependence: float
) -> Iterator[Pages]:
    for part in range(len(block.slices(world))):
        pages = draw_pages(world, block, rankings, part)
        yield _redraw(world, rankings, pages, user, dependence) if user is not None or dependence else pages


def _redraw(world: World, rankings: Rankings, pages: Pages, user: User | None, dependence: float) -> Pages:
    """Draw the ranker (if it depends on the query) and the clicks of each page view again."""
    rng = np.random.default_rng((world.seed, 1))
    ranker = pages.ranker
    if dependence:
        share = rankings.relevant.mean(axis=1)
        place = np.argsort(np.argsort(share, kind="stable"), kind="stable")
        position = (2 * place / max(1, len(share) - 1) - 1)[pages.query]
        preference = np.linspace(1, -1, len(world.rankers))
        bounds = np.cumsum(np.array(world.shares) * (1 + dependence * position[:, None] * preference), axis=1)
        ranker = (rng.random(len(position))[:, None] * bounds[:, -1:] >= bounds[:, :-1]).sum(axis=1)
    shown = rankings.order[pages.query, ranker, : world.max_rank]
    user = user or PositionBased(world.eta, world.noise)
    grades = np.where(rankings.relevant[pages.query[:, None], shown], 4, 0)
    return replace(pages, ranker=ranker, clicks=user.click(grades, rng))


def _joined_relevance(rankings: Sequence[Rankings]) -> BoolArray:
    return np.concatenate([part.relevant for part in rankings])


def _shown(world: World, rankings: Rankings, pages: Pages) -> IntArray:
    return rankings.order[pages.query, pages.ranker, : world.max_rank].ravel().astype(np.int64)


def _cells(**columns: IntArray | FloatArray) -> Cells:
    whole = {name: np.rint(column).astype(np.int64) for name, column in columns.items()}
    return Cells(segment=np.zeros_like(whole["bucket"]), **whole)


def draw_page_clicks(
    world: World, buckets: IntArray, *, user: User | None = None, query_dependence: float = 0.0
) -> PageClicks:
    """Return the clicks by page view of the log that `draw_log` simulates with the same arguments."""
    sums = np.zeros((2, int(buckets.max(initial=0)) + 1))
    totals = np.zeros(world.max_rank + 1)
    for block in blocks_of(world):
        rankings = draw_rankings(world, block)
        for pages in _draw_views(world, block, rankings, user, query_dependence):
            clicks = pages.clicks.sum(axis=1)
            alike = aggregate_pages(world, [pages])
            first, own = group([pages.query, pages.ranker])
            # Aggregated pages have the order of the groups: by query and ranker.
            seen, same = alike.impressions, sum_by_index(own, clicks * (clicks - 1), len(first))
            other = alike.clicks.sum(axis=1) ** 2 - (alike.clicks**2).sum(axis=1) - same
            again = seen > 1
            bucket = buckets[block.first_query + alike.query][again]
            parts = (same, other / np.maximum(seen - 1, 1))
            sums += [sum_by_index(bucket, part[again], sums.shape[1]) for part in parts]
            totals += np.bincount(clicks, minlength=len(totals))
    histogram = np.zeros((len(totals), len(totals)))
    histogram[-1] = totals
    views, clicked, several = (int(totals[least:].sum()) for least in range(3))
    return PageClicks(views, clicked, several, histogram, *sums[:, np.unique(buckets)])


def shrink_world(world: World, share: float) -> World:
    """Return a world with a share of its queries, but not fewer than 300 (or all, if it has fewer)."""
    return replace(world, queries=min(world.queries, max(_MIN_QUERIES, round(share * world.queries))))


def buckets_of(queries: int) -> IntArray:
    """Return the bucket of queries 0, 1, 2, ..., computed by DuckDB as in a harvest."""
    import duckdb

    with duckdb.connect() as con:
        answer = con.sql(f"SELECT {DuckDBDialect().bucket('range', 'BIGINT')} AS bucket FROM range({queries})")
        return np.asarray(answer.fetchnumpy()["bucket"], dtype=np.int64)


def draw_periods(world: World, buckets: IntArray, curves: Sequence[FloatArray], seed: int) -> list[SimulatedLog]:
    """Simulate one log (period) for each curve: the same queries and rankings, with new page views and clicks."""
    blocks = list(blocks_of(world))
    every = [draw_rankings(world, block) for block in blocks]
    views = np.concatenate([block.views for block in blocks])
    order = np.concatenate([rankings.order for rankings in every])[:, :, : world.max_rank].astype(np.int64)
    ranks = np.concatenate([rankings.ranks for rankings in every])
    ranks = np.where(ranks > world.max_rank, np.int16(0), ranks)
    relevance = np.where(np.concatenate([rankings.relevant for rankings in every]), 1.0, world.noise)
    shown = relevance[np.arange(len(views))[:, None, None], order]
    query, ranker, rank = (part.ravel() for part in np.indices(order.shape))
    periods = []
    for number, curve in enumerate(curves):
        rng = np.random.default_rng([seed, number])
        served = rng.multinomial(views, world.shares)[:, :, None]
        clicks = rng.binomial(served, curve * shown)
        impressions = np.broadcast_to(served, order.shape).ravel()
        seen = impressions > 0
        periods.append(
            SimulatedLog(
                world=world,
                buckets=buckets,
                views=views,
                ranks=ranks,
                relevance=relevance,
                query=query[seen],
                ranker=ranker[seen],
                candidate=order.ravel()[seen],
                rank=rank[seen] + 1,
                impressions=impressions[seen],
                clicks=clicks.ravel()[seen],
            )
        )
    return periods


def as_segments(periods: Sequence[SimulatedLog], layout: Layout = Layout.WIDE) -> Harvest:
    """Combine periods into one harvest with a segment for each."""
    harvests = [period.harvest(layout) for period in periods]
    tables = renumber_strata([h.table for h in harvests if isinstance(h.table, Cells)])
    parts = [replace(table, segment=np.full(len(table), number)) for number, table in enumerate(tables)]
    segments = tuple((f"{number}",) for number in range(len(parts)))
    return replace(harvests[0], by=("period",), segments=segments, table=Cells.concatenate(parts))


@dataclass(frozen=True, eq=False)
class EvaluationLog:
    """A simulated log, and new rankings of its candidates to evaluate by DCG of the top M.

    Attributes:
        drawn: the log; it has only rankers with traffic.
        ranks: the rank of every candidate in each ranking, from 1, shape (rankings, queries, candidates).
    """

    drawn: SimulatedLog
    ranks: IntArray

    @classmethod
    def draw(cls, world: World, buckets: IntArray, user: User | None = None, hot: float = 0.0) -> EvaluationLog:
        """Simulate the log of a world; the rankers without traffic become the evaluated rankings."""
        drawn = draw_log(world, buckets, user=user, hot=hot)
        every = np.concatenate([draw_rankings(world, block).ranks for block in blocks_of(world)]).swapaxes(0, 1)
        every = every.astype(np.int64)
        logged = [i for i, share in enumerate(world.shares) if share > 0]
        names = tuple(world.rankers[i] for i in logged)
        shares = tuple(world.shares[i] for i in logged)
        small = replace(world, rankers=names, traffic=shares, quality=tuple(world.qualities[i] for i in logged))
        log = replace(drawn, world=small, ranks=drawn.ranks[:, logged], ranker=lookup(drawn.ranker, np.array(logged)))
        evaluated = [i for i in range(len(world.rankers)) if i not in logged]
        return cls(log, every[evaluated])

    @classmethod
    def with_learned_rankings(cls, world: World, buckets: IntArray) -> EvaluationLog:
        """Simulate a log, and two rankings learned from earlier clicks on the same pages: raw and weighted clicks.

        Both rank documents by their click rate, per impression and per examination, shrunk by one view to the mean.
        """
        before = cls.draw(world, buckets)
        drawn = before.drawn
        p = world.propensity[drawn.rank - 1]
        views, examined = before._by_document(drawn.impressions), before._by_document(drawn.impressions * p)
        rates = [(before.clicks + before.clicks.sum() / counts.sum()) / (counts + 1) for counts in (views, examined)]
        # Ties, and documents that were never shown (last), are in random order.
        tie_breaker = np.random.default_rng((world.seed, 2)).random(views.shape)
        order = [np.lexsort((tie_breaker, np.where(before.shown, -rate, 1.0)), axis=-1) for rate in rates]
        after = cls.draw(world, buckets, PositionBased(world.eta, world.noise))
        return replace(after, ranks=np.argsort(np.stack(order), axis=-1) + 1)

    def _by_document(self, counts: IntArray | FloatArray) -> FloatArray:
        drawn = self.drawn
        shape = drawn.relevance.shape
        return sum_by_index(drawn.query * shape[1] + drawn.candidate, counts, shape[0] * shape[1]).reshape(shape)

    @cached_property
    def clicks(self) -> FloatArray:
        """Clicks by query and candidate."""
        return self._by_document(self.drawn.clicks)

    @cached_property
    def shown(self) -> BoolArray:
        """Whether a candidate was ever shown, by query and candidate."""
        return self._by_document(self.drawn.impressions) > 0

    @property
    def discounts(self) -> FloatArray:
        """The DCG discount of each rank; 0 beyond M."""
        ranks = np.arange(1, self.ranks.shape[-1] + 1)
        return np.asarray(np.where(ranks <= self.drawn.world.max_rank, 1 / np.log2(ranks + 1), 0.0))

    @cached_property
    def ranking_gains(self) -> FloatArray:
        """The discount of each candidate, ranked among the documents shown, shape (rankings, queries, candidates)."""
        among = np.where(self.shown, self.ranks, self.ranks.shape[-1] + 1)
        place = np.argsort(np.argsort(among, axis=-1, kind="stable"), axis=-1)
        return np.asarray(np.where(self.shown, self.discounts[place], 0.0))

    @cached_property
    def log_gains(self) -> FloatArray:
        """The mean discount of each candidate over the page views of the log; 0 on pages without it."""
        drawn = self.drawn
        return self._by_document(drawn.impressions * self.discounts[drawn.rank - 1]) / drawn.views[:, None]

    def credits(self, p: FloatArray) -> ClickCredits:
        """Return the credits of clicks by bucket and rank, as the engine computes them."""
        drawn = self.drawn
        present = np.unique(drawn.buckets)
        bucket, width = lookup(drawn.buckets, present), drawn.world.max_rank
        query, candidate, rank = drawn.query, drawn.candidate, drawn.rank - 1
        exposure = self._by_document(drawn.impressions * p[rank])[query, candidate]
        rho = exposure / drawn.views[query]
        weight = self.clicks[query, candidate] * drawn.impressions * p[rank] / exposure / rho
        gains = np.concatenate([np.ones((1, *self.shown.shape)), self.log_gains[None], self.ranking_gains])
        worth = np.stack([weight * gain[query, candidate] for gain in gains])
        frequent = self.frequent[query]
        key = (bucket[query] * width + rank)[~frequent]
        credit = np.stack([sum_by_index(key, part, len(present) * width) for part in worth[:, ~frequent]])
        views = sum_by_index(bucket, np.where(self.frequent, 0, drawn.views), len(present))
        clicks = self.clicks[query, candidate]
        seen = frequent & (clicks > 0)
        _, document = group([query[seen], candidate[seen]])
        apart = FrequentQueries.of(
            worth[:, seen],
            drawn.rank[seen],
            document,
            (weight * rho)[seen],
            self._by_document(drawn.impressions)[query, candidate][seen],
            float(drawn.views[self.frequent].sum()),
            width,
        )
        return ClickCredits(credit.reshape(len(gains), len(present), width), views, np.asarray(p), apart)

    @property
    def frequent(self) -> BoolArray:
        """Whether a query is frequent, by query."""
        views = self.drawn.views
        return np.asarray(views > max(FREQUENT_SHARE * views.sum(), FREQUENT_TIMES * views.mean()))

    def evaluate(self, layout: Layout) -> tuple[JackknifeValues, JackknifeValues]:
        """Return the values of all rankings: with propensities of each jackknife replicate, and with fixed ones."""
        fitted = CrossFit().fit(self.drawn.harvest(layout))
        found = self.credits(fitted.propensity_)
        refitted = fitted.deletions_
        fixed = None if refitted is None else np.broadcast_to(fitted.propensity_, refitted.shape)
        most = np.inf if fitted.jackknife_ is None else fitted.jackknife_.max_degrees
        refits = JackknifeValues.of(found, fitted.propensity_, refitted, 0.95, most)
        return refits, JackknifeValues.of(found, fitted.propensity_, fixed, 0.95, most)

    def raw_click_values(self) -> FloatArray:
        """Return the DCG of raw clicks in the log and in each ranking: an evaluation that ignores position bias."""
        log = (self.drawn.clicks * self.discounts[self.drawn.rank - 1]).sum()
        new = (self.clicks * self.ranking_gains).sum(axis=(1, 2))
        return np.asarray(np.array([log, *new]) / self.drawn.views.sum())

    def plain_ips_values(self) -> FloatArray:
        """Return the IPS value of the log and of each ranking, by full ranks and with the true propensities."""
        drawn = self.drawn
        clicks = drawn.clicks / drawn.world.propensity[drawn.rank - 1]
        log = (clicks * self.discounts[drawn.rank - 1]).sum()
        new = (self._by_document(clicks) * self.discounts[self.ranks - 1]).sum(axis=(1, 2))
        return np.asarray(np.array([log, *new]) / drawn.views.sum())

    def true_values(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the true DCG of the log and of each ranking: among the documents shown, of frequent queries only, and
        among all documents.
        """
        relevance = self.drawn.views[:, None] * self.drawn.relevance
        gains = [self.log_gains, *self.ranking_gains], [self.log_gains, *self.discounts[self.ranks - 1]]
        shown, every = (np.array([(relevance * gain).sum() for gain in lists]) for lists in gains)
        frequent = np.array([(relevance * gain)[self.frequent].sum() for gain in gains[0]])
        return shown, frequent, every
