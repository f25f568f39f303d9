"""Compare the time of `ips_weights` with that of the same GROUP BY with a join, both written to Parquet."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

import posbias
from benchmarks import data
from benchmarks.timing import Ratio, compare, in_small_process, run_measured
from posbias.curves.curve import Curve, Position


def measure(millions: int, ids: str, repeats: int) -> Ratio:
    path = data.replay(millions, ids)
    log, curve = posbias.ClickLog(str(path)), true_curve()
    values = ", ".join(f"({p.position}, {p.propensity}e0)" for p in curve.positions)
    group = (
        f"COPY (SELECT query_id, doc_id, COUNT(*) AS impressions, SUM(clicked) AS clicks, SUM(p) AS exposure, "
        f"SUM(clicked * LEAST(1 / p, 20)) AS weight FROM read_parquet('{path}') "
        f"JOIN (VALUES {values}) AS curve(position, p) USING (position) GROUP BY query_id, doc_id) TO '{{}}' "
        "(FORMAT parquet, COMPRESSION zstd)"
    )
    with TemporaryDirectory(dir=path.parent) as folder:
        ours, theirs = f"{folder}/ours.parquet", f"{folder}/theirs.parquet"
        return compare(
            f"weights, {'string' if ids == 'str' else 'integer'} ids, {millions} million rows",
            lambda: posbias.ips_weights(log, curve, ours, overwrite=True),
            "the same GROUP BY with a join, written to Parquet",
            lambda: _run(group.format(theirs)),
            repeats=repeats,
            promise="1.5",
        )


def measure_memory(millions: int, limit: str = "2GB") -> str:
    """Compute weights under a memory limit in a separate process, and check that no impression or click is lost."""
    path = data.replay(millions, "str")
    with TemporaryDirectory(dir=path.parent) as folder:
        true_curve().save(f"{folder}/curve.json")
        words = [str(Path(sys.executable).with_name("posbias")), "weights", str(path), "-o", f"{folder}/w.parquet"]
        words += ["--estimate", f"{folder}/curve.json", "--memory-limit", limit]
        seconds, memory = in_small_process(run_measured, words)
        with duckdb.connect() as con:
            written = con.execute(f"SELECT SUM(impressions), SUM(clicks) FROM '{folder}/w.parquet'").fetchall()
            expected = con.execute(f"SELECT COUNT(*), SUM(clicked) FROM '{path}'").fetchall()
    verdict = "all impressions and clicks" if written == expected else "**OTHER COUNTS than the log**"
    return (
        f"Weights, string ids, {millions} million rows under `--memory-limit {limit}`: written in {seconds:.0f} s with "
        f"{verdict}; the whole process held at most {memory:.2f} GiB."
    )


def true_curve() -> Curve:
    """Return the curve of the simulated logs, 1 / rank."""
    positions = tuple(Position(k, 1 / k, None, None, 1, 1, None) for k in range(1, 11))
    return Curve("truth", 10, None, None, None, positions, {})


def _run(sql: str) -> None:
    with duckdb.connect() as con:
        con.execute("SET preserve_insertion_order = false")
        con.execute(sql)
