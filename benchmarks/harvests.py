"""Compare the time of a harvest with that of DuckDB to scan or group the same columns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np

import posbias
from benchmarks import data
from benchmarks.timing import Ratio, compare, in_small_process, run_measured


def measure_wide(millions: int, rankers: int, repeats: int) -> Ratio:
    path = data.wide(millions, rankers)
    ranks = ", ".join(f"SUM(rank_{name})" for name in "abcdefgh"[:rankers])
    scan = f"SELECT MAX(query_id), MAX(ranker), SUM(position), SUM(clicked), {ranks} FROM read_parquet('{path}')"
    return compare(
        f"wide harvest, {rankers} rankers, {millions} million rows",
        lambda: posbias.harvest(posbias.ClickLog(str(path))),
        "a scan that aggregates the same columns",
        lambda: _run(scan),
        repeats=repeats,
        # Fixed costs matter more for small logs.
        promise={2: "2", 3: "2.5"}[rankers] if millions >= 100 else {2: "3", 3: "4.5"}[rankers],
    )


def measure_replay(millions: int, ids: str, repeats: int, *, rankers: int = 2, natural: bool = False) -> Ratio:
    """Compare a replay harvest, with or without rankers, with a GROUP BY of the same columns."""
    rankers_text = "no ranker named" if natural else f"{rankers} rankers"
    what = f"replay harvest, {rankers_text}, {'string' if ids == 'str' else 'integer'} ids, {millions} million rows"
    # For few rows, fixed costs and the second pass over frequent pairs matter more than the grouping.
    promise = "1.6" if millions < (50 if natural else 10) else "1.2"
    return _compare_replay(what, data.replay(millions, ids, rankers), natural, repeats, promise)


def measure_heavy(millions: int, repeats: int) -> list[Ratio]:
    """Compare the harvest of a heavy-tailed replay, with and without rankers, with GROUP BY.

    `check` and the harvest by unit are compared with it.
    """
    path = data.heavy(millions)
    small = millions < 20
    named, unnamed = (
        _compare_replay(f"replay harvest, {text}, {millions} million rows", path, natural, repeats, promise)
        for text, natural, promise in (
            ("3 rankers", False, "1.6" if small else "1.5"),
            ("no ranker named", True, "1.9" if small else "1.7"),
        )
    )
    return [named, unnamed, measure_check(millions, "heavy", repeats), measure_units(millions, repeats)]


def measure_units(millions: int, repeats: int) -> Ratio:
    """Compare the harvest of a heavy-tailed replay by unit with one without; each page view is a unit of its own."""
    path = str(data.heavy(millions))
    logs = [posbias.ClickLog(path, unit=unit) for unit in ("impression_id", "none")]
    return compare(
        f"replay harvest by unit, 3 rankers, {millions} million rows",
        lambda: posbias.harvest(logs[0]),
        "that without units",
        lambda: posbias.harvest(logs[1]),
        repeats=repeats,
        promise="6",
    )


def _compare_replay(what: str, path: Path, natural: bool, repeats: int, promise: str) -> Ratio:
    keys = "query_id, doc_id, position" if natural else "query_id, doc_id, ranker, position"
    group = (
        f"SELECT COUNT(*), SUM(n), SUM(c) FROM (SELECT {keys}, COUNT(*) AS n, "
        f"SUM(clicked) AS c FROM read_parquet('{path}') GROUP BY {keys})"
    )
    log = posbias.ClickLog(str(path), ranker="none") if natural else posbias.ClickLog(str(path))
    return compare(
        what,
        lambda: posbias.harvest(log),
        f"GROUP BY {keys}",
        lambda: _run(group),
        repeats=repeats,
        promise=promise,
    )


def measure_many_rankers(millions: int, rankers: int, repeats: int) -> Ratio:
    """Compare a replay harvest of many rankers with one of eight rankers."""
    logs = [posbias.ClickLog(str(data.replay(millions, "int", n))) for n in (rankers, 8)]
    return compare(
        f"replay harvest, {rankers} rankers, {millions} million rows",
        lambda: posbias.harvest(logs[0]),
        "that of 8 rankers",
        lambda: posbias.harvest(logs[1]),
        repeats=repeats,
        promise="1.5",
    )


def measure_check(millions: int, layout: str, repeats: int) -> Ratio:
    path = data.log_of(layout, millions)
    return compare(
        f"check, {layout}, {millions} million rows",
        lambda: posbias.check(posbias.ClickLog(str(path))),
        "the harvest of the same log",
        lambda: posbias.harvest(posbias.ClickLog(str(path))),
        repeats=repeats,
        promise="2.4",
    )


def _run(sql: str) -> None:
    with duckdb.connect() as con:
        con.execute("SET preserve_insertion_order = false")
        con.execute(sql).fetchall()


def measure_memory(millions: int, limit: str = "2GB") -> str:
    """Harvest under a memory limit in a separate process, and check that the counts are the same."""
    path = data.replay(millions, "str")
    command = str(Path(sys.executable).with_name("posbias"))
    with TemporaryDirectory() as folder:
        limited, free = f"{folder}/limited.parquet", f"{folder}/free.parquet"
        words = [command, "harvest", str(path), "-o", limited, "--memory-limit", limit]
        seconds, memory = in_small_process(run_measured, words)
        subprocess.run([command, "harvest", str(path), "-o", free], check=True)
        # Merging sorts the strata: an engine that spills to disk returns them in another order.
        one, other = (posbias.merge([posbias.Harvest.load(name)]).table.columns() for name in (limited, free))
        same = all(np.array_equal(one[name], other[name]) for name in one)
    verdict = "the same counts as without a limit" if same else "**OTHER COUNTS than without a limit**"
    return (
        f"Replay, string ids, {millions} million rows under `--memory-limit {limit}`: completes in {seconds:.0f} s "
        f"with {verdict}; the whole process held at most {memory:.2f} GiB."
    )
