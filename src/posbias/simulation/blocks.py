"""Blocks: a world drawn piece by piece, each from its own random streams, as plain arrays.

How a world is cut into blocks and slices is part of what its seed means. It depends on nothing but the world,
so neither threads nor row groups nor the layout written change a single draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import cast

import numpy as np
from numpy.typing import NDArray

from posbias.arrays import BoolArray, FloatArray, IntArray
from posbias.simulation.world import World

# About as many rows as a row group of a Parquet file, and a few dozen megabytes in flight.
_BLOCK_ROWS = 1_000_000
# Scores in a block: bounds memory where there are many candidates or rankers.
_BLOCK_SCORES = 4_000_000


class _Stream(IntEnum):
    """One stream for each quantity, so that how many numbers one takes does not move another."""

    RELEVANCE = 0
    SHARED_NOISE = 1
    OWN_NOISE = 2
    DOCUMENTS = 3
    VIEWS = 4
    ORDER = 5
    PAGES = 6
    RANKERS = 7
    SHUFFLES = 8
    UNRANKED = 9


@dataclass(frozen=True)
class Block:
    """Consecutive queries and how often each is viewed."""

    number: int
    first_query: int
    first_view: int
    views: IntArray

    def rng(self, world: World, stream: _Stream, part: int = 0) -> np.random.Generator:
        """The generator of one quantity of this block: a spawned seed, without state."""
        key = (self.number, int(stream), part)
        return np.random.default_rng(np.random.SeedSequence(world.seed, spawn_key=key))

    def slices(self, world: World) -> list[slice]:
        """The block's page views, cut so that even a query viewed ten million times fits in memory."""
        # Twice the size aimed at, so that a block drawn a little above its mean stays in one piece.
        size = 2 * _views_per_block(world)
        total = int(self.views.sum())
        return [slice(start, min(start + size, total)) for start in range(0, total, size)]


@dataclass(frozen=True)
class Rankings:
    """What all rankers think of a block's queries; the axes are query, ranker, then candidate or rank."""

    documents: IntArray  # query, candidate -> document
    relevant: BoolArray  # query, candidate -> relevance
    order: NDArray[np.int16]  # query, ranker, rank - 1 -> candidate
    ranks: NDArray[np.int16]  # query, ranker, candidate -> rank


@dataclass(frozen=True)
class Pages:
    """Pages shown: single views, or all alike (one query, ranker and segment) added up."""

    query: IntArray  # within the block
    ranker: IntArray
    shown: NDArray[np.int16]  # page, rank - 1 -> candidate
    segment: IntArray
    impressions: IntArray
    clicks: IntArray | BoolArray  # page, rank - 1


def blocks_of(world: World) -> Iterator[Block]:
    """Cut a world into blocks and draw how often each query is viewed."""
    scores = world.pool * len(world.rankers)
    size = max(1, min(int(_views_per_block(world) / world.repeats), _BLOCK_SCORES // scores))
    first_view = 0
    for number, first_query in enumerate(range(0, world.queries, size)):
        queries = min(size, world.queries - first_query)
        block = Block(number, first_query, first_view, np.empty(0, dtype=np.int64))
        views = _draw_views(world, queries, block.rng(world, _Stream.VIEWS))
        yield Block(number, first_query, first_view, views)
        first_view += int(views.sum())


def draw_rankings(world: World, block: Block) -> Rankings:
    """Draw relevance and every ranker's ranking of a block's queries."""
    shape = (len(block.views), len(world.rankers), world.pool)
    queries, _, pool = shape
    relevant = block.rng(world, _Stream.RELEVANCE).random((queries, pool), dtype=np.float32) < world.relevant
    shared = block.rng(world, _Stream.SHARED_NOISE).standard_normal((queries, 1, pool), dtype=np.float32)
    scores = block.rng(world, _Stream.OWN_NOISE).standard_normal(shape, dtype=np.float32)
    scores *= np.float32(np.sqrt(1 - world.similarity))
    scores += np.float32(np.sqrt(world.similarity)) * shared
    scores += np.array(world.qualities, dtype=np.float32)[:, None] * relevant[:, None, :]
    for i in {*_all(world)} - {*world.ranking}:
        # What stands for a ranker without a ranking is like no other.
        scores[:, i] = block.rng(world, _Stream.UNRANKED, i).random((queries, pool), dtype=np.float32)
    # Stable, because the default sort breaks ties differently from one processor to the next.
    order = np.argsort(-scores, axis=-1, kind="stable").astype(np.int16)
    ranks = np.empty(shape, dtype=np.int16)
    np.put_along_axis(ranks, order, np.arange(1, pool + 1, dtype=np.int16)[None, None, :], axis=-1)
    # Queries share documents, as they do in life: a document alone identifies nothing.
    catalogue = max(world.queries, pool)
    first = block.rng(world, _Stream.DOCUMENTS).integers(0, catalogue, size=(queries, 1))
    documents = (first + np.arange(pool)) % catalogue
    return Rankings(documents, relevant, order, ranks)


def draw_pages(world: World, block: Block, rankings: Rankings, part: int) -> Pages:
    """Draw one slice of a block's page views, in an order in which queries are mixed as in a log."""
    queries = np.repeat(np.arange(len(block.views)), block.views)
    if len(block.views) > 1:
        block.rng(world, _Stream.ORDER).shuffle(queries)
    query = queries[block.slices(world)[part]]
    rng = block.rng(world, _Stream.PAGES, part)
    if world.sticky:
        ranker = _draw_rankers(world, len(block.views), block.rng(world, _Stream.RANKERS))[query]
    else:
        ranker = _draw_rankers(world, len(query), rng)
    shown = rankings.order[query, ranker, : world.max_rank]
    shuffled = np.flatnonzero(~np.isin(ranker, world.ranking))
    if len(shuffled):
        chance = block.rng(world, _Stream.SHUFFLES, part).random((len(shuffled), world.pool), dtype=np.float32)
        shown[shuffled] = np.argsort(chance, axis=-1, kind="stable")[:, : world.max_rank]
    return _draw_slice(world, rankings, query, ranker, shown, rng)


def add_up(world: World, pages: Iterable[Pages]) -> Pages:
    """Add up pages of one query, ranker and segment."""
    parts = [_group(world, part) for part in pages]
    if len(parts) == 1:
        return parts[0]
    return _group(
        world,
        Pages(
            np.concatenate([part.query for part in parts]),
            np.concatenate([part.ranker for part in parts]),
            np.concatenate([part.shown for part in parts]),
            np.concatenate([part.segment for part in parts]),
            np.concatenate([part.impressions for part in parts]),
            np.concatenate([part.clicks for part in parts]),
        ),
    )


def count_same(world: World, rankings: Rankings) -> IntArray:
    """For each two rankers, at how many ranks up to M of a block's queries they have the same document."""
    shown = rankings.order[:, :, : world.max_rank]
    return np.array([[np.count_nonzero(shown[:, i] == shown[:, j]) for j in _all(world)] for i in _all(world)])


def agreement(world: World) -> FloatArray:
    """Measure how alike each two rankers are: the share of ranks 1..M at which both have the same document.

    It is the similarity that the paper reports above its figure on ranker overlap, averaged over queries.
    It takes every query of the world; `dataclasses.replace(world, queries=1000)` gives a quick answer.

    Example:
        >>> agreement(World(queries=500, similarity=1)).tolist()
        [[1.0, 1.0], [1.0, 1.0]]
        >>> bool(agreement(World(queries=500, similarity=0))[0, 1] < 0.2)
        True
    """
    same = sum(count_same(world, draw_rankings(world, block)) for block in blocks_of(world))
    return cast(FloatArray, same / (world.queries * world.max_rank))


def _all(world: World) -> range:
    return range(len(world.rankers))


def _views_per_block(world: World) -> int:
    return max(1, _BLOCK_ROWS // world.max_rank)


def _draw_views(world: World, queries: int, rng: np.random.Generator) -> IntArray:
    """How often each query is viewed: at least once, and `repeats` on average."""
    if not world.skew:
        # A fraction is left to chance, so that the mean holds: 2.5 is 2 or 3.
        return np.floor(world.repeats + rng.random(queries)).astype(np.int64)
    rates = rng.lognormal(-(world.skew**2) / 2, world.skew, queries)
    return 1 + rng.poisson((world.repeats - 1) * rates)


def _draw_rankers(world: World, times: int, rng: np.random.Generator) -> IntArray:
    bounds = np.cumsum(world.shares)
    # Divided by its end, because shares that sum to 0.999… would leave a gap.
    return np.searchsorted(bounds / bounds[-1], rng.random(times), side="right")


def _draw_slice(
    world: World,
    rankings: Rankings,
    query: IntArray,
    ranker: IntArray,
    shown: NDArray[np.int16],
    rng: np.random.Generator,
) -> Pages:
    pages = len(query)
    segment = rng.integers(0, len(world.curves), size=pages)
    relevant = rankings.relevant[query[:, None], shown]
    # P(click) = p_r if relevant, p_r · epsilon_minus if not, section "Robustness Analysis".
    curves = world.curves.astype(np.float32)[segment]
    chance = np.where(relevant, curves, curves * np.float32(world.noise))
    clicks = rng.random(chance.shape, dtype=np.float32) < chance
    return Pages(query, ranker, shown, segment, np.ones(pages, dtype=np.int64), clicks)


def _group(world: World, pages: Pages) -> Pages:
    segments = len(world.curves)
    key = (pages.query * len(world.rankers) + pages.ranker) * segments + pages.segment
    order = np.argsort(key, kind="stable")
    key = key[order]
    # No two pages in random order are alike, or so seldom that they stand side by side.
    alike = np.isin(pages.ranker[order], world.ranking)
    starts = np.flatnonzero(np.r_[True, (key[1:] != key[:-1]) | ~alike[1:]])
    first = order[starts]
    return Pages(
        query=pages.query[first],
        ranker=pages.ranker[first],
        shown=pages.shown[first],
        segment=pages.segment[first],
        impressions=np.add.reduceat(pages.impressions[order], starts),
        clicks=np.add.reduceat(pages.clicks[order], starts, axis=0, dtype=np.int64),
    )
