"""The laboratory: judgments, rankers trained once and used again, and clicks turned into curves."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from experiments.judgments import Judgments, generate_judgments, load_letor
from experiments.outcomes import seed_of
from experiments.ranking_svm import rank_documents, sample_queries, train_ranker
from experiments.sessions import simulate_sessions, sweeps
from posbias._arrays import FloatArray, IntArray
from posbias.engines.duckdb import DuckDB
from posbias.errors import PosbiasError
from posbias.harvesting.harvest import Harvest, harvest
from posbias.harvesting.merge import merge
from posbias.logs.click_log import ClickLog
from posbias.progress import Progress, silent
from posbias.simulation.users import User

Task = TypeVar("Task")
Result = TypeVar("Result")
# Page views of one ranker that are simulated at once; more are harvested piece by piece, and merged.
_VIEWS_AT_ONCE = 120_000
# More would want more memory than a laptop has to spare: each holds a log of some 2 million rows.
_MOST_WORKERS = 4
# Pairs of rankings that are kept, a few megabytes each; weights are small, and are all kept.
_MOST_RANKINGS = 32


def open_laboratory(data: str | None, sizes: Sizes, seed: int, progress: Progress = silent) -> Laboratory:
    """Return a laboratory on a file of judgments, or on generated ones, which are there when they are asked for."""
    return Laboratory(lambda: _judgments(data, sizes, seed), sizes, seed, progress, generated=data is None)


@dataclass(frozen=True)
class Sizes:
    """How much of everything: the paper's sizes, or those of a quick look.

    With fewer queries in all, `training` times the paper's fraction of them (as far as there are so many) trains
    rankers as good and as similar as the paper's: what they are like decides who wins, more than the page views do.
    `world` is the share of a world's queries that are drawn, where there are more than some hundreds.
    """

    queries: int | None = None
    training: float = 1.0
    pairs: int = 200_000
    runs: int = 6
    curve_runs: int = 20
    every: int = 1
    bootstrap: int = 1000
    arxiv_views: int = 53_000
    drive_views: int = 877_689
    compared_logs: int = 100
    covered_logs: int = 1000
    drift_logs: int = 600
    pooled_logs: int = 60
    planned_logs: int = 20
    judged_logs: int = 500
    diagnosed_logs: int = 100
    learning_queries: int = 700
    learning_seeds: int = 8
    # Of fewer queries, so that each tells less.
    linear_seeds: int = 12
    learning_etas: tuple[float, ...] = (0.5, 1.0, 2.0)
    learning_views: tuple[int, ...] = (1, 2, 4, 16, 100)
    learning_trees: tuple[int, ...] = (40, 80, 160, 300)
    world: float = 1.0


FULL = Sizes()


# Compared by identity: arrays have no single truth value.
@dataclass(eq=False)
class Laboratory:
    """What the experiments share.

    Arguments:
        source: the queries, their candidates and grades, or what makes them once they are asked for.
        sizes: how much to simulate.
        seed: everything drawn depends on it, and on nothing else.
        progress: called with what is being done and the share done.
        generated: whether the judgments are ours, so that an experiment may take others of ours in their place.
    """

    source: Judgments | Callable[[], Judgments]
    sizes: Sizes = FULL
    seed: int = 0
    progress: Progress = silent
    generated: bool = True
    _weights: dict[bytes, FloatArray] = field(default_factory=dict, repr=False)
    _rankings: dict[tuple[float, float, int], dict[str, IntArray]] = field(default_factory=dict, repr=False)
    _training: Any = field(default_factory=threading.Lock, repr=False)
    _opening: Any = field(default_factory=threading.Lock, repr=False)

    @property
    def judgments(self) -> Judgments:
        """The queries, their candidates and grades; experiments on worlds never ask for them."""
        with self._opening:
            if callable(self.source):
                self.progress("judgments", 0.0)
                self.source = self.source()
            return self.source

    @property
    def threshold(self) -> int:
        """The lowest grade that is relevant: 3 of 4 as in the paper, 1 where grades end at 2."""
        return 3 if self.judgments.grades.max(initial=0) >= 3 else 1

    def train(self, query_ids: IntArray) -> FloatArray:
        """Train a ranker on some queries, or take the one that was trained on them before."""
        key = np.sort(query_ids).tobytes()
        # liblinear draws from one generator for the whole process: two trainings at once would disturb each other.
        with self._training:
            if key not in self._weights:
                self._weights[key] = train_ranker(self.judgments, query_ids, max_pairs=self.sizes.pairs)
            return self._weights[key]

    def rankers(self, frac: float, overlap: float, run: int) -> dict[str, IntArray]:
        """Return the rankings of two rankers trained on samples of `frac` of the queries that overlap."""
        key = (frac, overlap, run)
        made = self._rankings.get(key)
        if made is None:
            share = min(frac * self.sizes.training, 1 / (2 - overlap))
            samples = sample_queries(self.judgments, share, overlap, seed_of(self.seed, "sample", run))
            weights = [self.train(sample) for sample in samples]
            rankings = [rank_documents(self.judgments, weight) for weight in weights]
            made = dict(zip("ab", rankings, strict=True))
            with self._training:
                self._rankings[key] = made
                if len(self._rankings) > _MOST_RANKINGS:
                    self._rankings.pop(next(iter(self._rankings)))
        return made

    def views(self, times: float, seed: int) -> IntArray:
        """Return page views that go through all queries so many times; a part of a time is a sample of them."""
        queries, whole = self.judgments.queries, int(times)
        rest = np.random.default_rng(seed).permutation(queries)[: round((times - whole) * queries)]
        return np.concatenate([sweeps(queries, whole), rest])

    def harvest(
        self, rankings: Mapping[str, IntArray], views: Mapping[str, IntArray], user: User, seed: int
    ) -> Harvest:
        """Simulate the clicks of these page views and harvest them."""
        parts = list(self.harvests(rankings, views, user, seed))
        return parts[0] if len(parts) == 1 else merge(parts)

    def harvests(
        self, rankings: Mapping[str, IntArray], views: Mapping[str, IntArray], user: User, seed: int
    ) -> Iterator[Harvest]:
        """Simulate and harvest piece by piece, so that memory does not grow with the page views."""
        pieces = max(1, -(-max(map(len, views.values())) // _VIEWS_AT_ONCE))
        for piece in range(pieces):
            part = {name: np.array_split(ids, pieces)[piece] for name, ids in views.items()}
            log = simulate_sessions(self.judgments, rankings, part, user, seed=seed_of(seed, piece))
            yield harvest(ClickLog(log), max_rank=_width(rankings), engine=DuckDB(threads=1))

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task], doing: str) -> list[Result]:
        """Do independent pieces of work, some at a time, and report how many are done."""
        with ThreadPoolExecutor(min(_MOST_WORKERS, os.cpu_count() or 1)) as pool:
            futures = [pool.submit(work, task) for task in tasks]
            try:
                for done, future in enumerate(as_completed(futures), start=1):
                    future.result()
                    self.progress(doing, done / len(futures))
            except BaseException:
                # One has failed, or the user interrupts: what has not begun need not begin.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [future.result() for future in futures]


def _width(rankings: Mapping[str, IntArray]) -> int:
    return int(next(iter(rankings.values())).shape[1])


def _judgments(data: str | None, sizes: Sizes, seed: int) -> Judgments:
    if data is None:
        return generate_judgments(**({"queries": sizes.queries} if sizes.queries else {}), seed=seed)
    judgments = load_letor(data)
    if sizes.queries and judgments.queries > sizes.queries:
        judgments = judgments.take(np.random.default_rng(seed).permutation(judgments.queries)[: sizes.queries])
    return judgments


def own_queries(log: pa.Table) -> pa.Table:
    """Return a log in which every page view is a query of its own, as most queries of a real service are."""
    return log.set_column(log.schema.get_field_index("query_id"), "query_id", log.column("impression_id"))


def long_queries(judgments: Judgments, candidates: int, wanted: int = 100) -> Judgments:
    """Return the queries that have so many candidates, or say that there are too few."""
    long = np.flatnonzero(judgments.sizes >= candidates)
    if len(long) < wanted:
        raise PosbiasError(
            f"Only {len(long)} of {judgments.queries:,} queries have {candidates} candidates or more, and this "
            f"experiment needs {wanted}: use other judgments as data, or the built-in ones without it."
        )
    return judgments.take(long)


QUICK = Sizes(
    queries=6_000,
    training=3.3,
    pairs=40_000,
    runs=3,
    curve_runs=8,
    every=2,
    bootstrap=300,
    drive_views=200_000,
    compared_logs=4,
    covered_logs=10,
    drift_logs=10,
    pooled_logs=2,
    planned_logs=2,
    judged_logs=10,
    diagnosed_logs=10,
    learning_queries=400,
    learning_seeds=2,
    linear_seeds=1,
    learning_etas=(1.0,),
    learning_views=(2, 16),
    learning_trees=(40, 80),
    world=0.1,
)
