"""Simulated logs for the benchmarks, made once and kept in benchmarks/data (git-ignored)."""

from __future__ import annotations

from pathlib import Path

import duckdb

from posbias.simulation import World, write

DATA = Path(__file__).parent / "data"


def log_of(layout: str, millions: int) -> Path:
    """The log of two rankers and integer ids."""
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
