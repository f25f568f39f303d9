"""Clicks on judged documents, and what a learner makes of them: IPS weights, and clicks with their exposure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from experiments.judgments import Judgments
from posbias._arrays import BoolArray, FloatArray, IntArray
from posbias._validate import DEFAULT_CAP
from posbias.engines.duckdb import DuckDB
from posbias.estimators import CrossFit
from posbias.harvesting.harvest import harvest
from posbias.logs.click_log import ClickLog
from posbias.simulation.users import PositionBased

# What an inverse propensity is capped at, as `posbias weights` does by default.
CAP = DEFAULT_CAP


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class Served:
    """What one ranker showed: the rank of every document (0: not shown), and clicks on it in the views of its query."""

    ranks: IntArray
    views: IntArray
    clicks: IntArray

    @property
    def shown(self) -> BoolArray:
        """Which documents this ranker showed at all."""
        return np.asarray((self.ranks > 0) & (self.views > 0))


@dataclass(frozen=True, eq=False)
class Clicked:
    """The clicks of all page views by each ranker, and how long a page is."""

    judgments: Judgments
    served: Mapping[str, Served]
    max_rank: int

    @property
    def shown(self) -> BoolArray:
        """Which documents some page view showed."""
        return np.asarray(np.logical_or.reduce([one.shown for one in self.served.values()]))

    @property
    def clicks(self) -> FloatArray:
        """Clicks on every document."""
        return _summed(one.clicks for one in self.served.values())

    def weights(self, propensity: FloatArray) -> FloatArray:
        """Return the IPS label of every document, Σ clicks · min(p_1 / p_k, cap)."""
        inverse = np.concatenate([[0.0], 1 / floored(propensity)])
        return _summed(one.clicks * inverse[one.ranks] for one in self.served.values())

    def effective_clicks(self, propensity: FloatArray) -> float:
        """Return how many clicks of equal weight would be as good, (Σ w)² / Σ w²."""
        inverse = np.concatenate([[0.0], 1 / floored(propensity)])
        first, second = (
            sum(float((one.clicks * inverse[one.ranks] ** power).sum()) for one in self.served.values())
            for power in (1, 2)
        )
        return first**2 / second if second > 0 else 0.0

    def exposure(self, propensity: FloatArray) -> FloatArray:
        """Return how often every document was seen; a view that did not show it counts as one at the last rank."""
        p = floored(propensity)
        seen = np.concatenate([p[-1:], p])
        return _summed(one.views * seen[one.ranks] for one in self.served.values())

    def to_log(self) -> pa.Table:
        """Return the log, aggregated: impressions and clicks of every document by each ranker."""
        ranks = {f"rank_{name}": one.ranks for name, one in self.served.items()}
        parts = []
        for name, one in self.served.items():
            rows = np.flatnonzero(one.shown)
            columns = {
                "query_id": self.judgments.query_of[rows],
                "doc_id": rows,
                "ranker": pa.array(np.full(len(rows), name)),
                "position": one.ranks[rows],
                "impressions": one.views[rows],
                "clicks": one.clicks[rows],
            }
            of_all = {column: pa.array(rank[rows], mask=rank[rows] == 0) for column, rank in ranks.items()}
            parts.append(pa.table(columns | of_all))
        return pa.concat_tables(parts).combine_chunks()

    def estimate(self) -> FloatArray:
        """Return the curve that CrossFit harvests from this log; NaN where a rank has no number."""
        harvested = harvest(ClickLog(self.to_log()), max_rank=self.max_rank, engine=DuckDB(threads=1))
        return CrossFit(interval=None).fit(harvested).propensity_


def draw_clicks(
    judgments: Judgments, rankings: Mapping[str, IntArray], user: PositionBased, views: int, seed: int
) -> Clicked:
    """Show every query so many times, each time by a ranker drawn at random, and let users click.

    By the position-based model clicks on a document depend on nothing else on its page, so that those of all views
    at one rank are one binomial number: a hundred views cost what one does.
    """
    rng = np.random.default_rng(seed)
    max_rank = next(iter(rankings.values())).shape[1]
    split = rng.multinomial(views, np.full(len(rankings), 1 / len(rankings)), judgments.queries)
    chance = np.concatenate([[0.0], user.propensity(max_rank)])
    attractive = user.attractiveness(judgments.grades)
    served = {}
    for (name, ranking), of_query in zip(rankings.items(), split.T, strict=True):
        ranks = _ranks(judgments, ranking)
        shows = of_query[judgments.query_of]
        served[name] = Served(ranks, shows, rng.binomial(shows, chance[ranks] * attractive))
    return Clicked(judgments, served, max_rank)


def floored(propensity: FloatArray) -> FloatArray:
    """Return p with the cap applied; a rank without a number is taken for the one above it, as a cautious user might.

    Example:
        >>> floored(np.array([1, 0.5, np.nan, 0.01])).tolist()
        [1.0, 0.5, 0.5, 0.05]
    """
    known = np.where(np.isfinite(propensity), np.arange(len(propensity)), 0)
    return np.maximum(propensity[np.maximum.accumulate(known)], 1 / CAP)


def _summed(parts: Iterable[npt.NDArray[Any]]) -> FloatArray:
    return np.asarray(np.sum(list(parts), axis=0), dtype=np.float64)


def _ranks(judgments: Judgments, ranking: IntArray) -> IntArray:
    """The rank of every document, 0 where it is not on the page."""
    ranks = np.zeros(judgments.documents, dtype=np.int64)
    query, place = np.nonzero(ranking >= 0)
    ranks[judgments.offsets[query] + ranking[query, place]] = place + 1
    return ranks
