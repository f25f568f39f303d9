"""Several periods of one world: the same queries, documents and rankers, each period with a curve of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from experiments.drawn import Drawn
from posbias._arrays import FloatArray, IntArray
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.tables import Cells, renumbered
from posbias.logs.layouts import Layout
from posbias.simulation.simulate import blocks_of, draw_rankings
from posbias.simulation.world import World


def draw_periods(world: World, buckets: IntArray, curves: Sequence[FloatArray], seed: int) -> list[Drawn]:
    """Draw a log for each curve: the queries of a world as often as it says, in each period anew."""
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
            Drawn(
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


def as_segments(periods: Sequence[Drawn], layout: Layout = Layout.WIDE) -> Harvest:
    """Return periods as the segments of one harvest."""
    harvests = [period.harvest(layout) for period in periods]
    tables = renumbered([h.table for h in harvests if isinstance(h.table, Cells)])
    parts = [replace(table, segment=np.full(len(table), number)) for number, table in enumerate(tables)]
    segments = tuple((f"{number}",) for number in range(len(parts)))
    return replace(harvests[0], by=("period",), segments=segments, table=Cells.joined(parts))
