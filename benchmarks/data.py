"""Simulated logs for the benchmarks, made once and kept in benchmarks/data (git-ignored)."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from posbias._arrays import AnyArray, FloatArray
from posbias.simulation import World, write

DATA = Path(__file__).parent / "data"
# A heavy-tailed log: its rankers and their traffic, the documents of a query, and queries for each page view.
_RANKERS, _TRAFFIC, _DOCUMENTS, _QUERIES_PER_VIEW = ("prod", "test", "new"), (0.5, 0.3, 0.2), 14, 0.122
# Page views that are made at a time.
_VIEWS = 100_000


def log_of(layout: str, millions: int) -> Path:
    """The log of a layout: wide or replay with two rankers and integer ids, or the heavy-tailed replay."""
    if layout == "heavy":
        return heavy(millions)
    return wide(millions, 2) if layout == "wide" else replay(millions, "int")


def wide(millions: int, rankers: int) -> Path:
    """A wide log whose queries do not recur: 10 results on each page."""
    path = DATA / f"wide-{rankers}-{millions}m.parquet"
    if not path.exists():
        DATA.mkdir(exist_ok=True)
        names = tuple("abcdefgh"[:rankers])
        write(World(rankers=names, queries=millions * 100_000, repeats=1), path, "wide")
    return path


def replay(millions: int, ids: str, rankers: int = 2) -> Path:
    """A replay log whose queries recur four times on average, in the order of time: page views shuffled."""
    many = f"-{rankers}" if rankers > 2 else ""
    path = DATA / f"replay-{ids}{many}-{millions}m.parquet"
    if not path.exists():
        DATA.mkdir(exist_ok=True)
        near = path.with_name(f"near-{path.name}")
        world = World(queries=millions * 25_000, repeats=4, skew=1.0, rankers=tuple("abcdefghijkl"[:rankers]))
        write(world, near, "replay", ids="str" if ids == "str" else "int")
        # The simulator writes the page views of a query near each other, which flatters a GROUP BY; real logs do not.
        part = path.with_suffix(".part")
        with duckdb.connect() as con:
            con.execute("SET preserve_insertion_order = true")
            con.execute(
                f"COPY (SELECT * FROM read_parquet('{near}') ORDER BY hash(impression_id)) "
                f"TO '{part}' (FORMAT parquet, COMPRESSION zstd)"
            )
        part.rename(path)
        near.unlink()
    return path


def heavy(millions: int) -> Path:
    """A replay log with a heavy tail: the query of a page view is n u³ of n queries, with u uniform in [0, 1).

    Three rankers, string ids, 10 results on each page, page views in random order. A tenth of the queries has almost
    half of the page views, and most queries have a few.
    """
    path = DATA / f"heavy-{millions}m.parquet"
    if path.exists():
        return path
    DATA.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    views, rng = millions * 100_000, np.random.default_rng(1)
    query = (int(views * _QUERIES_PER_VIEW) * rng.random(views) ** 3).astype(np.int64)
    ranker = rng.choice(len(_RANKERS), views, p=_TRAFFIC)
    writer = None
    for start in range(0, views, _VIEWS):
        rows = slice(start, start + _VIEWS)
        page = _heavy_pages(query[rows], ranker[rows], start, rng)
        writer = writer or pq.ParquetWriter(part, page.schema, compression="zstd")
        writer.write_table(page)
    if writer is not None:
        writer.close()
    part.rename(path)
    return path


def heavy_day(day: int, views: int) -> pa.Table:
    """One day of a heavy-tailed replay log whose queries recur from day to day, as `heavy` draws them."""
    rng = np.random.default_rng([1, day])
    query = (int(30 * views * _QUERIES_PER_VIEW) * rng.random(views) ** 3).astype(np.int64)
    return _heavy_pages(query, rng.choice(len(_RANKERS), views, p=_TRAFFIC), day * views, rng)


def _heavy_pages(query: AnyArray, ranker: AnyArray, first_view: int, rng: np.random.Generator) -> pa.Table:
    """Return the rows of some page views: each ranker orders the documents of a query by its own noisy score."""
    views, ranks = len(query), np.arange(1, 11)
    document = (query[:, None] * _DOCUMENTS + np.arange(_DOCUMENTS)).astype(np.uint64)
    relevance = 0.9 * _noise(document, 99) ** 3
    score = relevance + 0.6 * _noise(document * np.uint64(7) + ranker[:, None].astype(np.uint64), 5)
    top = np.argsort(-score, axis=1)[:, : len(ranks)]
    clicked = rng.random(top.shape) < np.take_along_axis(relevance, top, axis=1) / ranks
    return pa.table(
        {
            "impression_id": np.repeat(np.arange(first_view, first_view + views), len(ranks)),
            "query_id": pa.array(np.repeat(np.char.add("query-", query.astype(str)), len(ranks))),
            "doc_id": pa.array(np.char.add("doc-", np.take_along_axis(document, top, axis=1).ravel().astype(str))),
            "ranker": pa.array(np.repeat(np.array(_RANKERS)[ranker], len(ranks))),
            "position": np.tile(ranks, views),
            "clicked": clicked.ravel().astype(np.int8),
        }
    )


def _noise(key: AnyArray, salt: int) -> FloatArray:
    """Return a number in [0, 1) for each key, always the same: the finisher of SplitMix64."""
    bits = key * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt * 0xBF58476D1CE4E5B9 % 2**64)
    bits ^= bits >> np.uint64(31)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(29)
    return np.asarray((bits >> np.uint64(11)).astype(np.float64) / 2**53)
