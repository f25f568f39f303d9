"""Simulate click logs of rankers on judged queries: A/B tests, swap experiments, and the split of page views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from experiments.judgments import Judgments
from posbias._arrays import BoolArray, IntArray
from posbias.errors import PosbiasError
from posbias.simulation.users import Segmented, User


def simulate_sessions(
    judgments: Judgments,
    rankings: Mapping[str, IntArray],
    views: Mapping[str, IntArray],
    user: User,
    *,
    seed: int = 0,
    first_impression: int = 0,
) -> pa.Table:
    """Simulate the click log of rankers that serve page views, in the wide layout; ranks beyond M are null.

    Arguments:
        judgments: the queries and grades; users click by grade.
        rankings: the ranking of each ranker as returned by `rank_documents`, all with the same M.
        views: the queries that each ranker serves, in order, one entry per page view.
        user: the user model. `Segmented` adds a column.
        seed: the random seed of the clicks.
        first_impression: the first page view number, for logs that will be concatenated.

    Example:
        >>> import posbias
        >>> from experiments.judgments import generate_judgments
        >>> from experiments.ranking_svm import rank_documents
        >>> from experiments.sessions import sweeps
        >>> from posbias.simulation import PositionBased
        >>> judgments = generate_judgments(300)
        >>> weights = {"a": np.eye(128)[0], "b": np.eye(128)[1]}
        >>> rankings = {name: rank_documents(judgments, weight) for name, weight in weights.items()}
        >>> views = sweeps(judgments.queries, 2)
        >>> log = simulate_sessions(judgments, rankings, {"a": views, "b": views}, PositionBased())
        >>> log.column_names
        ['query_id', 'doc_id', 'ranker', 'position', 'clicked', 'impression_id', 'rank_a', 'rank_b']
        >>> posbias.harvest(posbias.ClickLog(log))
        <Harvest of 1,200 page views (a: 600, b: 600), wide, ranks 1 to 10>
    """
    _check(judgments, rankings, views)
    ranks = {f"rank_{name}": _ranks(judgments, ranking) for name, ranking in rankings.items()}
    parts = []
    for number, (name, queries) in enumerate(views.items()):
        rng = np.random.default_rng((seed, number))
        pages = _Pages(name, np.asarray(queries, dtype=np.int64), rankings[name][queries], first_impression)
        columns = pages.columns(judgments, user, rng)
        documents = columns["doc_id"].to_numpy()
        for column, rank in ranks.items():
            found = rank[documents]
            columns[column] = pa.array(found, mask=found == 0)
        parts.append(pa.table(columns))
        first_impression += len(pages.queries)
    return pa.concat_tables(parts).combine_chunks()


def simulate_swaps(
    judgments: Judgments,
    rankings: Mapping[str, IntArray],
    views: Mapping[str, IntArray],
    user: User,
    *,
    kind: Literal["one", "adjacent"] = "one",
    probability: float | None = None,
    seed: int = 0,
    first_impression: int = 0,
) -> pa.Table:
    """Simulate the log of a swap experiment: `position` is the rank shown, `original_rank` the rank before the swap.

    Each page view draws k. For "one", k is uniform in 1..M, and ranks 1 and k are swapped. For "adjacent", k is uniform
    in 1..M-1, and ranks k and k+1 are swapped. A page without a result at the drawn rank stays unchanged. Therefore
    pages that show rank k are longer than others, and the results to compare at ranks 1 and k are those with
    `original_rank` k, or with original rank 1 on pages that reach k.

    Arguments:
        judgments, rankings, views, user, first_impression: as in `simulate_sessions`.
        kind: which ranks are swapped.
        probability: the probability that the drawn swap is made; by default 1 for "one", as in the paper, and 0.5 for
            "adjacent".
        seed: the random seed of swaps and clicks.

    Example:
        >>> from experiments.judgments import generate_judgments
        >>> from experiments.ranking_svm import rank_documents
        >>> from experiments.sessions import sweeps
        >>> from posbias.simulation import PositionBased
        >>> judgments = generate_judgments(100)
        >>> rankings = {"a": rank_documents(judgments, np.ones(128), max_rank=5)}
        >>> log = simulate_swaps(judgments, rankings, {"a": sweeps(100, 2)}, PositionBased(), kind="adjacent")
        >>> log.column_names
        ['query_id', 'doc_id', 'ranker', 'position', 'clicked', 'impression_id', 'original_rank']

    Reference: Agarwal et al., WSDM 2019, sections "Arxiv" and "Google Drive"; Joachims et al., WSDM 2017.
    """
    if kind not in ("one", "adjacent"):
        raise PosbiasError(f"kind must be 'one' or 'adjacent', found {kind!r}")
    chance = probability if probability is not None else {"one": 1.0, "adjacent": 0.5}[kind]
    if not 0 <= chance <= 1:
        raise PosbiasError(f"probability must be from 0 to 1, found {chance!r}")
    _check(judgments, rankings, views)
    parts = []
    for number, (name, queries) in enumerate(views.items()):
        rng = np.random.default_rng((seed, number))
        ranking = rankings[name][queries]
        order = _swap(ranking >= 0, kind, chance, rng)
        shown = np.take_along_axis(ranking, order, axis=1)
        pages = _Pages(name, np.asarray(queries, dtype=np.int64), shown, first_impression)
        columns = pages.columns(judgments, user, rng)
        columns["original_rank"] = pa.array((order[shown >= 0] + 1).astype(np.int16))
        parts.append(pa.table(columns))
        first_impression += len(pages.queries)
    return pa.concat_tables(parts).combine_chunks()


def _check(judgments: Judgments, rankings: Mapping[str, IntArray], views: Mapping[str, Any]) -> None:
    shapes = {name: np.shape(ranking) for name, ranking in rankings.items()}
    if len(set(shapes.values())) != 1 or any(len(s) != 2 or s[0] != judgments.queries for s in shapes.values()):
        raise PosbiasError(
            f"rankings must each have {judgments.queries} rows, one for each query, and the same number of columns, "
            f"found the shapes {shapes}: use rank_documents with one max_rank"
        )
    if not views or not views.keys() <= rankings.keys():
        raise PosbiasError(
            f"views must name rankers that have a ranking ({', '.join(rankings)}), found {', '.join(views) or 'none'}"
        )
    # SQL compares column names without case, so rank_A and rank_a would be the same column.
    if len({name.casefold() for name in rankings}) < len(rankings):
        raise PosbiasError(f"rankers must differ by more than upper and lower case, found {', '.join(rankings)}")
    for name, queries in views.items():
        ids = np.asarray(queries)
        if ids.ndim != 1 or (len(ids) and not 0 <= ids.min() <= ids.max() < judgments.queries):
            raise PosbiasError(
                f"views[{name!r}] must be a list of queries from 0 to {judgments.queries - 1}, found the shape "
                f"{ids.shape}" + (f", {ids.min()} to {ids.max()}" if ids.size else "")
            )


def _ranks(judgments: Judgments, ranking: IntArray) -> npt.NDArray[np.int16]:
    """Return the rank of every document; 0 beyond M."""
    ranks = np.zeros(judgments.documents, dtype=np.int16)
    query, position = np.nonzero(ranking >= 0)
    ranks[judgments.offsets[query] + ranking[query, position]] = position + 1
    return ranks


@dataclass(frozen=True)
class _Pages:
    """Page views of one ranker; each row of `shown` has the candidates in the order shown, and -1 for no result."""

    ranker: str
    queries: IntArray
    shown: IntArray
    first_impression: int

    def columns(self, judgments: Judgments, user: User, rng: np.random.Generator) -> dict[str, pa.Array]:
        """Simulate the clicks, and return the columns of the log, one row per result shown."""
        there = self.shown >= 0
        documents = judgments.offsets[self.queries][:, None] + self.shown
        grades = np.full(self.shown.shape, -1, dtype=np.int8)
        grades[there] = judgments.grades[documents[there]]
        view, position = np.nonzero(there)
        extra: dict[str, pa.Array] = {}
        if isinstance(user, Segmented):
            segments = user.assign(len(grades), rng)
            clicks: BoolArray = user.click(grades, rng, segments)
            extra[user.column] = pa.array(list(user.users)).take(pa.array(segments[view]))
        else:
            clicks = user.click(grades, rng)
        return {
            "query_id": pa.array(self.queries[view]),
            "doc_id": pa.array(documents[there]),
            "ranker": pa.array([self.ranker], pa.string()).take(pa.array(np.zeros(len(view), dtype=np.int8))),
            "position": pa.array((position + 1).astype(np.int16)),
            "clicked": pa.array(clicks[there].astype(np.int8)),
            "impression_id": pa.array(self.first_impression + view),
            **extra,
        }


def _swap(there: BoolArray, kind: str, probability: float, rng: np.random.Generator) -> IntArray:
    """Return the original index (from 0) of the result shown at each index."""
    views, ranks = there.shape
    order = np.tile(np.arange(ranks), (views, 1))
    low: Any
    high: Any
    if kind == "one":
        high = rng.integers(0, ranks, size=views)
        low = np.zeros(views, dtype=np.int64)
    else:
        low = rng.integers(0, max(1, ranks - 1), size=views)
        high = np.minimum(low + 1, ranks - 1)
    swapped = np.flatnonzero((rng.random(views) < probability) & there[np.arange(views), high])
    order[swapped, low[swapped]] = high[swapped]
    order[swapped, high[swapped]] = low[swapped]
    return order


def sweeps(queries: int, times: int = 1) -> IntArray:
    """Return page views that visit every query `times` times.

    Example:
        >>> sweeps(3, 2).tolist()
        [0, 1, 2, 0, 1, 2]
        >>> len(sweeps(19_944, 5))
        99720
    """
    return np.tile(np.arange(queries, dtype=np.int64), times)


def split_views(
    judgments: Judgments,
    views: IntArray,
    rankers: Sequence[str] = ("a", "b"),
    *,
    dependence: float = 0.0,
    threshold: int = 3,
    seed: int = 0,
) -> dict[str, IntArray]:
    """Assign each page view to a random ranker: evenly, or depending on its query.

    A `dependence` above 0 violates the assumption that traffic is split independently of the query: a query with more
    relevant candidates goes more often to the first ranker than to the last. At 1, the query with the largest share of
    relevant candidates never goes to the last of two rankers, and the query with the smallest never to the first.

    Example:
        >>> from experiments.judgments import generate_judgments
        >>> judgments = generate_judgments(1000)
        >>> views = split_views(judgments, sweeps(1000), dependence=1)
        >>> share = {name: judgments.take(ids).relevant().mean().round(2) for name, ids in views.items()}
        >>> bool(share["a"] > 1.5 * share["b"])
        True
    """
    if not rankers or not 0 <= dependence <= 1:
        raise PosbiasError(
            f"rankers must not be empty and dependence must be from 0 to 1, found {rankers!r}, {dependence!r}"
        )
    views = np.asarray(views, dtype=np.int64)
    relevant = np.bincount(judgments.query_of[judgments.relevant(threshold)], minlength=judgments.queries)
    shares = relevant / np.maximum(judgments.sizes, 1)
    # Queries ordered by relevance, evenly spaced from -1 to 1, so that each ranker has the same total traffic.
    place = np.argsort(np.argsort(shares, kind="stable"), kind="stable")
    position = 2 * place / max(1, judgments.queries - 1) - 1
    preference = np.linspace(1, -1, len(rankers)) if len(rankers) > 1 else np.zeros(1)
    bounds = np.cumsum(1 + dependence * position[views][:, None] * preference, axis=1) / len(rankers)
    # The last bound is left out: it is 1 except for rounding.
    chosen = (np.random.default_rng(seed).random(len(views))[:, None] >= bounds[:, :-1]).sum(axis=1)
    return {name: views[chosen == number] for number, name in enumerate(rankers)}
