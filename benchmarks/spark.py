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
from pathlib import Path
from typing import TYPE_CHECKING

import posbias
from benchmarks import data
from benchmarks.timing import load_average

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The GROUP BY of the same columns, by layout.
GROUPS = {
    "wide": "SELECT ranker, position, rank_a, rank_b, COUNT(*) AS n, SUM(clicked) AS c, MAX(query_id) AS q "
    "FROM parquet.`{}` GROUP BY ranker, position, rank_a, rank_b",
    "replay": "SELECT query_id, doc_id, ranker, position, COUNT(*) AS n, SUM(clicked) AS c "
    "FROM parquet.`{}` GROUP BY query_id, doc_id, ranker, position",
}
# Warm-up rounds read about 100 million rows: until then Java compiles.
WARM_MILLIONS = 100


@dataclass(frozen=True)
class Row:
    """One log: the seconds of the harvest on Spark, of Spark's own group-by, and of the harvest on DuckDB.

    CPU seconds are those of this process and of Java, with all its threads. `source` is what Spark is given: Parquet
    files, whose samples need no job, or a DataFrame.
    """

    layout: str
    source: str
    millions: int
    spark: float
    group_by: float
    duckdb: float
    spark_cpu: float
    group_by_cpu: float

    @property
    def promise(self) -> float:
        # The samples of a DataFrame are a job of their own. 1.3 was the goal for 10 million rows of files: opening
        # them, planning the query and reading samples take 0.15 s.
        if self.source == "DataFrame":
            return 2.0
        return 1.2 if self.millions >= 100 else 1.5

    def to_markdown(self) -> str:
        ratio, cpu_ratio = self.spark / self.group_by, self.spark_cpu / self.group_by_cpu
        broken = " **broken**" if max(ratio, cpu_ratio) > self.promise else ""
        return (
            f"| {self.layout}, {self.source}, {self.millions} million rows | {self.spark:.1f} s | "
            f"{self.group_by:.1f} s | **{ratio:.2f}** | {cpu_ratio:.2f} | {self.promise}{broken} | "
            f"{self.duckdb:.1f} s | {self.spark / self.duckdb:.1f} |"
        )


def measure(session: SparkSession, layout: str, source: str, millions: int, repeats: int) -> Row:
    """Measure the three alternately."""
    path = data.log_of(layout, millions)
    log = posbias.ClickLog(str(path))
    on_spark = log if source == "files" else posbias.ClickLog(session.read.parquet(str(path)))

    def group() -> object:
        session.sql(GROUPS[layout].format(path)).createOrReplaceTempView("grouped")
        return session.sql("SELECT COUNT(*), SUM(n), SUM(c) FROM grouped").collect()

    sides: list[Callable[[], object]] = [
        lambda: posbias.harvest(on_spark, engine="spark"),
        group,
        lambda: posbias.harvest(log, engine="duckdb"),
    ]
    times: list[list[float]] = [[] for _ in sides]
    cpu_times: list[list[float]] = [[] for _ in sides]
    warm = max(1, WARM_MILLIONS // millions)
    for round_ in range(warm + repeats):
        for side, function in enumerate(sides):
            start, cpu_start = time.perf_counter(), _cpu_seconds()
            function()
            if round_ >= warm:
                times[side].append(time.perf_counter() - start)
                cpu_times[side].append(_cpu_seconds() - cpu_start)
    return Row(layout, source, millions, *(statistics.median(side) for side in (*times, *cpu_times[:2])))


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its running children, of which Java is one; on Linux only."""
    used, ticks = os.times(), os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    fields = [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split() for child in children]
    return used.user + used.system + sum(int(field[11]) + int(field[12]) for field in fields) / ticks


def measure_all(millions: Sequence[int], repeats: int) -> list[Row]:
    from posbias.engines.spark import start_session

    session = start_session()
    try:
        logs = [("wide", "files"), ("wide", "DataFrame"), ("replay", "files")]
        return [measure(session, *log, m, repeats) for m in millions for log in logs]
    finally:
        session.stop()


def to_markdown(rows: Sequence[Row]) -> str:
    head = (
        "| log | harvest on Spark | Spark's group-by | ratio | CPU ratio | at most | harvest on DuckDB | "
        "Spark / DuckDB |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    return "\n".join([head, *(row.to_markdown() for row in rows)])


def text(millions: Sequence[int], repeats: int) -> str:
    """Return the text of the part in RESULTS.md."""
    from importlib.metadata import version

    before = load_average()
    rows = measure_all(millions, repeats)
    loads = f"Load average over 1, 5 and 15 minutes: {before} before, {load_average()} after"
    return (
        f"PySpark {version('pyspark')}, `local[*]` on {os.cpu_count()} cores, in one warm session; "
        "group-by of the same columns: in wide by ranker, position and ranks, in replay by query, document, "
        f"ranker and position. {loads}. Command: `python -m benchmarks.spark`.\n\n{to_markdown(rows)}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the harvest on Spark.")
    parser.add_argument("--millions", type=int, nargs="+", default=[10, 100], help="rows of the logs, in millions")
    parser.add_argument("--repeats", type=int, default=3, help="measured rounds")
    options = parser.parse_args()
    print(text(options.millions, options.repeats))
