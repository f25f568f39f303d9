"""`Laboratory`: the judgments, cached rankers and simulation sizes that the experiments share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
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
# The page views of one ranker that are simulated at once; more are harvested in pieces and merged.
_VIEWS_AT_ONCE = 120_000
# Each worker holds a log of about 2 million rows, so more workers would need too much memory.
_MAX_WORKERS = 4
# The number of cached pairs of rankings, a few megabytes each; weights are small and all stay in the cache.
_MAX_RANKINGS = 32


def open_laboratory(data: str | None, sizes: Sizes, seed: int, progress: Progress = silent) -> Laboratory:
    """Return a laboratory with judgments from a file, or generated ones; both are made on first use."""
    return Laboratory(lambda: _judgments(data, sizes, seed), sizes, seed, progress, generated=data is None)


@dataclass(frozen=True)
class Sizes:
    """How much each experiment simulates: the sizes of the paper (`FULL`), or fewer queries and runs (`QUICK`).

    `training` multiplies the share of queries that rankers are trained on (as far as there are so many). With fewer
    queries in all, this keeps the rankers as good and as similar as those of the paper, which matters more for the
    results than the number of page views. `point_step` keeps every n-th point of a figure. `world` is the share of the
    queries of a simulated world, if it has more than a few hundred.
    """

    queries: int | None = None
    training: float = 1.0
    pairs: int = 200_000
    runs: int = 6
    curve_runs: int = 20
    point_step: int = 1
    bootstrap: int = 1000
    arxiv_views: int = 53_000
    drive_views: int = 877_689
    estimator_logs: int = 100
    coverage_logs: int = 1000
    drift_logs: int = 600
    pooling_logs: int = 60
    planning_logs: int = 20
    evaluation_logs: int = 500
    diagnosis_logs: int = 100
    ranker_queries: int = 250
    ranker_seeds: int = 8
    ranker_views: tuple[int, ...] = (1, 4, 16, 50)
    judgment_logs: int = 20
    judgment_queries: int = 800
    audit_logs: int = 200
    alarm_logs: int = 15
    crawler_logs: int = 10
    learning_queries: int = 700
    learning_seeds: int = 8
    # More seeds, because each has fewer queries and is therefore noisier.
    linear_seeds: int = 12
    learning_etas: tuple[float, ...] = (0.5, 1.0, 2.0)
    learning_views: tuple[int, ...] = (1, 2, 4, 16, 100)
    learning_trees: tuple[int, ...] = (40, 80, 160, 300)
    world: float = 1.0


FULL = Sizes()


# Compared by identity: arrays have no single truth value.
@dataclass(eq=False)
class Laboratory:
    """Judgments, sizes and cached rankers that all experiments share.

    Arguments:
        source: the judgments, or a function that makes them on first use.
        sizes: how much to simulate.
        seed: the random seed; it determines all random numbers.
        progress: a function that is called with the current step and the share that is done.
        generated: whether the judgments are generated, so that an experiment may generate others instead.
        folder: where an experiment may store parts of its results, to continue after an interruption.
        setting: the settings of the audit to run: those whose names contain this text. All if None.
    """

    source: Judgments | Callable[[], Judgments]
    sizes: Sizes = FULL
    seed: int = 0
    progress: Progress = silent
    generated: bool = True
    folder: Path | None = None
    setting: str | None = None
    _weights: dict[bytes, FloatArray] = field(default_factory=dict, repr=False)
    _rankings: dict[tuple[float, float, int], dict[str, IntArray]] = field(default_factory=dict, repr=False)
    _training: Any = field(default_factory=threading.Lock, repr=False)
    _opening: Any = field(default_factory=threading.Lock, repr=False)

    @property
    def judgments(self) -> Judgments:
        """The queries with their candidates and grades, made on first use."""
        with self._opening:
            if callable(self.source):
                self.progress("judgments", 0.0)
                self.source = self.source()
            return self.source

    @property
    def threshold(self) -> int:
        """The lowest relevant grade: 3 of 4 as in the paper, or 1 if the highest grade is 2."""
        return 3 if self.judgments.grades.max(initial=0) >= 3 else 1

    def train(self, query_ids: IntArray) -> FloatArray:
        """Train a ranker on some queries, or return the cached one."""
        key = np.sort(query_ids).tobytes()
        # liblinear has one random generator per process: two trainings at once would change each other's results.
        with self._training:
            if key not in self._weights:
                self._weights[key] = train_ranker(self.judgments, query_ids, max_pairs=self.sizes.pairs)
            return self._weights[key]

    def rankers(self, frac: float, overlap: float, run: int) -> dict[str, IntArray]:
        """Return the rankings of two rankers that are trained on overlapping samples of `frac` of the queries."""
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
                if len(self._rankings) > _MAX_RANKINGS:
                    self._rankings.pop(next(iter(self._rankings)))
        return made

    def views(self, times: float, seed: int) -> IntArray:
        """Return page views that visit every query `times` times; a fraction is a random sample of the queries."""
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
        """Run independent tasks in parallel, report the progress, and return the results in order."""
        with ThreadPoolExecutor(min(_MAX_WORKERS, os.cpu_count() or 1)) as pool:
            futures = [pool.submit(work, task) for task in tasks]
            try:
                for done, future in enumerate(as_completed(futures), start=1):
                    future.result()
                    self.progress(doing, done / len(futures))
            except BaseException:
                # A task failed or the user interrupted: cancel the tasks that have not started.
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


def one_query_per_view(log: pa.Table) -> pa.Table:
    """Return a log in which every page view has its own query, like most queries of a real service."""
    return log.set_column(log.schema.get_field_index("query_id"), "query_id", log.column("impression_id"))


def queries_with_candidates(judgments: Judgments, candidates: int, wanted: int = 100) -> Judgments:
    """Return the queries with at least `candidates` candidates; raise an error if they are fewer than `wanted`."""
    long = np.flatnonzero(judgments.sizes >= candidates)
    if len(long) < wanted:
        raise PosbiasError(
            f"Only {len(long)} of {judgments.queries:,} queries have {candidates} candidates or more, and this "
            f"experiment needs {wanted}: use other judgments as data, or omit data to use generated ones."
        )
    return judgments.take(long)


QUICK = Sizes(
    queries=6_000,
    training=3.3,
    pairs=40_000,
    runs=3,
    curve_runs=8,
    point_step=2,
    bootstrap=300,
    drive_views=200_000,
    estimator_logs=4,
    coverage_logs=10,
    drift_logs=10,
    pooling_logs=2,
    planning_logs=2,
    evaluation_logs=10,
    diagnosis_logs=10,
    ranker_queries=60,
    ranker_seeds=2,
    ranker_views=(4, 16),
    judgment_logs=2,
    judgment_queries=40,
    audit_logs=2,
    alarm_logs=1,
    crawler_logs=1,
    learning_queries=400,
    learning_seeds=2,
    linear_seeds=1,
    learning_etas=(1.0,),
    learning_views=(2, 16),
    learning_trees=(40, 80),
    world=0.1,
)
