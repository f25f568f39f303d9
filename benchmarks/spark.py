"""Compare the harvest on Spark with a GROUP BY of the same columns on Spark, and with the harvest on DuckDB.

python -m benchmarks.spark                  # prints a Markdown table
python -m benchmarks.spark --millions 10    # a quick run

Both sides of a ratio run alternately in one session on all cores, after warm-up rounds: Java compiles code that runs
often, so short queries need more warm-up rounds than long ones.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import posbias
from benchmarks import data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The GROUP BY of the same columns, by layout.
GROUPS = {
    "wide": "SELECT ranker, position, rank_a, rank_b, COUNT(*) AS n, SUM(clicked) AS c, MAX(query_id) AS q "
    "FROM parquet.`{}` GROUP BY ranker, position, rank_a, rank_b",
    "replay": "SELECT query_id, doc_id, ranker, position, COUNT(*) AS n, SUM(clicked) AS c "
    "FROM parquet.`{}` GROUP BY query_id, doc_id, ranker, position",
}
PROMISE = 1.5
# Warm-up rounds read about 30 million rows.
WARM_MILLIONS = 30


@dataclass(frozen=True)
class Row:
    """One log: the seconds of the harvest on Spark, of Spark's own group-by, and of the harvest on DuckDB."""

    layout: str
    millions: int
    spark: float
    group_by: float
    duckdb: float

    def to_markdown(self) -> str:
        return (
            f"| {self.layout}, {self.millions} million rows | {self.spark:.1f} s | {self.group_by:.1f} s | "
            f"**{self.spark / self.group_by:.2f}** | {PROMISE} | {self.duckdb:.1f} s | {self.spark / self.duckdb:.1f} |"
        )


def measure(session: SparkSession, layout: str, millions: int, repeats: int) -> Row:
    """Measure the three alternately."""
    path = data.log_of(layout, millions)
    log = posbias.ClickLog(str(path))

    def group() -> object:
        session.sql(GROUPS[layout].format(path)).createOrReplaceTempView("grouped")
        return session.sql("SELECT COUNT(*), SUM(n), SUM(c) FROM grouped").collect()

    sides: list[Callable[[], object]] = [
        lambda: posbias.harvest(log, engine="spark"),
        group,
        lambda: posbias.harvest(log, engine="duckdb"),
    ]
    times: list[list[float]] = [[] for _ in sides]
    warm = max(1, WARM_MILLIONS // millions)
    for round_ in range(warm + repeats):
        for side, function in enumerate(sides):
            start = time.perf_counter()
            function()
            if round_ >= warm:
                times[side].append(time.perf_counter() - start)
    return Row(layout, millions, *(statistics.median(side) for side in times))


def measure_all(millions: Sequence[int], repeats: int) -> list[Row]:
    from posbias.engines.spark import start_session

    session = start_session()
    try:
        return [measure(session, layout, m, repeats) for m in millions for layout in GROUPS]
    finally:
        session.stop()


def to_markdown(rows: Sequence[Row]) -> str:
    head = (
        "| log | harvest on Spark | Spark's group-by | ratio | at most | harvest on DuckDB | Spark / DuckDB |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    return "\n".join([head, *(row.to_markdown() for row in rows)])


def text(millions: Sequence[int], repeats: int) -> str:
    """Return the text of the part in RESULTS.md."""
    from importlib.metadata import version

    return (
        f"PySpark {version('pyspark')}, `local[*]` on {os.cpu_count()} cores, in one warm session; "
        "group-by of the same columns: in wide by ranker, position and ranks, in replay by query, document, "
        "ranker and position. Command: `python -m benchmarks.spark`.\n\n" + to_markdown(measure_all(millions, repeats))
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the harvest on Spark.")
    parser.add_argument("--millions", type=int, nargs="+", default=[10, 100], help="rows of the logs, in millions")
    parser.add_argument("--repeats", type=int, default=3, help="measured rounds")
    options = parser.parse_args()
    print(text(options.millions, options.repeats))
