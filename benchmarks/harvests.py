"""The harvest against what DuckDB itself needs to scan or group the same columns."""

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
        # What is fixed weighs on small logs.
        promise={2: "2", 3: "2.5"}[rankers] if millions >= 100 else {2: "3", 3: "4.5"}[rankers],
    )


def measure_replay(millions: int, ids: str, repeats: int, *, rankers: int = 2, natural: bool = False) -> Ratio:
    """A replay by rankers, or without their names, against the group-by of what it tells apart."""
    path = data.replay(millions, ids, rankers)
    keys = "query_id, doc_id, position" if natural else "query_id, doc_id, ranker, position"
    group = (
        f"SELECT COUNT(*), SUM(n), SUM(c) FROM (SELECT {keys}, COUNT(*) AS n, "
        f"SUM(clicked) AS c FROM read_parquet('{path}') GROUP BY {keys})"
    )
    log = posbias.ClickLog(str(path), ranker="none") if natural else posbias.ClickLog(str(path))
    who = "no ranker named" if natural else f"{rankers} rankers"
    return compare(
        f"replay harvest, {who}, {'string' if ids == 'str' else 'integer'} ids, {millions} million rows",
        lambda: posbias.harvest(log),
        f"GROUP BY {keys}",
        lambda: _run(group),
        repeats=repeats,
        # Of few rows, what is fixed and the second look at busy pairs weigh more than what is grouped.
        promise="1.6" if natural and millions < 50 else "1.2",
    )


def measure_many_rankers(millions: int, rankers: int, repeats: int) -> Ratio:
    """A replay of more rankers against one of eight."""
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
    path = data.wide(millions, 2) if layout == "wide" else data.replay(millions, "int")
    return compare(
        f"check, {layout}, {millions} million rows",
        lambda: posbias.check(posbias.ClickLog(str(path))),
        "the harvest of the same log",
        lambda: posbias.harvest(posbias.ClickLog(str(path))),
        repeats=repeats,
        promise="2",
    )


def _run(sql: str) -> None:
    with duckdb.connect() as con:
        con.execute("SET preserve_insertion_order = false")
        con.execute(sql).fetchall()


def measure_memory(millions: int, limit: str = "2GB") -> str:
    """Harvest under a memory limit in a process of its own; the counts must be the same."""
    path = data.replay(millions, "str")
    command = str(Path(sys.executable).with_name("posbias"))
    with TemporaryDirectory() as folder:
        limited, free = f"{folder}/limited.parquet", f"{folder}/free.parquet"
        words = [command, "harvest", str(path), "-o", limited, "--memory-limit", limit]
        seconds, memory = in_small_process(run_measured, words)
        subprocess.run([command, "harvest", str(path), "-o", free], check=True)
        # Merging alone puts strata in order: an engine that spills returns them in another one.
        one, other = (posbias.merge([posbias.Harvest.load(name)]).table.columns() for name in (limited, free))
        same = all(np.array_equal(one[name], other[name]) for name in one)
    verdict = "the same counts as without a limit" if same else "**OTHER COUNTS than without a limit**"
    return (
        f"Replay, string ids, {millions} million rows under `--memory-limit {limit}`: completes in {seconds:.0f} s "
        f"with {verdict}; the whole process held at most {memory:.2f} GiB."
    )
