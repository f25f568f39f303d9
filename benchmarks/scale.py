"""How cost grows: with rows, queries, rankers and M, on DuckDB and on Spark, and a year of daily harvests.

python -m benchmarks.scale                     # writes benchmarks/SCALE.md
python -m benchmarks.scale --parts rankers     # measures one part anew

Costs on Spark are what its event log says: core-seconds of its tasks, and what they wrote to be shuffled.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import posbias
from benchmarks import data
from benchmarks.timing import in_small_process, run_measured
from posbias.simulation import World, write

RESULTS = Path(__file__).with_name("SCALE.md")
COMMAND = str(Path(sys.executable).with_name("posbias"))
SIZES = (1, 3, 10, 30, 100)
# A run on Spark takes a session of its own.
MILLIONS = (1, 10, 100)


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the slope of log cost against log size: 1 where cost grows linearly."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def log_of(layout: str, millions: int) -> Path:
    return data.wide(millions, 2) if layout == "wide" else data.replay(millions, "int")


def on_duckdb() -> str:
    """Time of the harvest from 1 to 100 million rows in a warm process, and the peak memory of one of its own."""
    rows, fitted = [], []
    for layout in ("wide", "replay"):
        seconds = []
        for millions in SIZES:
            path = log_of(layout, millions)
            seconds.append(in_small_process(_warm_seconds, str(path)))
            with TemporaryDirectory() as folder:
                words = [COMMAND, "harvest", str(path), "-o", f"{folder}/h.parquet"]
                _, memory = in_small_process(run_measured, words)
                kept = posbias.Harvest.load(f"{folder}/h.parquet")
                size = os.path.getsize(f"{folder}/h.parquet")
            what = f"{len(kept.table):,} ({kept.kind})"
            rows.append([f"{layout}, {millions} million", f"{seconds[-1]:.2f} s", f"{memory:.2f} GiB", what, _mb(size)])
        fitted.append(f"{layout} {exponent(SIZES, seconds):.2f}")
    head = ("rows", "time", "peak memory", "rows of the harvest", "its file")
    return f"{table(head, rows)}\n\nFitted exponent of time in rows: {', '.join(fitted)}."


def _warm_seconds(path: str) -> float:
    """Return the time of a harvest, after one that only warms up."""
    times = []
    for _ in range(2):
        start = time.perf_counter()
        posbias.harvest(posbias.ClickLog(path))
        times.append(time.perf_counter() - start)
    return times[-1]


def on_spark() -> str:
    """Core-seconds and shuffle of the harvest on Spark from 1 to 100 million rows."""
    rows, fitted = [], []
    for layout in ("wide", "replay"):
        costs = [_spark_cost(log_of(layout, millions)) for millions in MILLIONS]
        for millions, (cpu, run, written, records) in zip(MILLIONS, costs, strict=True):
            rows.append(
                [
                    f"{layout}, {millions} million",
                    f"{run:.1f}",
                    f"{cpu:.1f}",
                    _mb(written),
                    f"{records / 1e6:.2f} million",
                ]
            )
        for name, place in (("core-seconds", 1), ("shuffle bytes", 2)):
            slope = exponent(MILLIONS, [cost[place] for cost in costs])
            fitted.append(f"{layout}, {name}: {slope:.2f}")
    head = ("rows", "core-seconds of tasks", "of them on the CPU", "shuffled", "records shuffled")
    return (
        f"{table(head, rows)}\n\nFitted exponents in rows, from {MILLIONS[0]} to {MILLIONS[-1]} million: "
        f"{'; '.join(fitted)}."
    )


def _spark_cost(log: Path) -> tuple[float, float, float, float]:
    """Return CPU seconds and seconds of all tasks, and the bytes and records that they wrote to be shuffled."""
    with TemporaryDirectory() as folder:
        events = Path(folder) / "events"
        events.mkdir()
        settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
        }
        flags = [flag for name, value in settings.items() for flag in ("--spark-conf", f"{name}={value}")]
        command = [COMMAND, "harvest", str(log), "-o", f"{folder}/h.parquet", "--engine", "spark", *flags]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        total = np.zeros(4)
        for path in events.rglob("events_*"):
            for line in path.read_text().splitlines():
                event = json.loads(line)
                if event["Event"] == "SparkListenerTaskEnd":
                    metrics = event["Task Metrics"]
                    shuffle = metrics["Shuffle Write Metrics"]
                    total += (
                        metrics["Executor CPU Time"] / 1e9,
                        metrics["Executor Run Time"] / 1e3,
                        shuffle["Shuffle Bytes Written"],
                        shuffle["Shuffle Records Written"],
                    )
    return float(total[0]), float(total[1]), float(total[2]), float(total[3])


def _harvested(world: World, layout: str, **options: object) -> tuple[float, posbias.Harvest, int]:
    """Simulate a log and return the time of its harvest (the median of three), the harvest, and its file's size."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write(world, path, layout)  # type: ignore[arg-type]
        times = []
        for _ in range(3):
            start = time.perf_counter()
            kept = posbias.harvest(posbias.ClickLog(path), max_rank=world.max_rank, **options)  # type: ignore[arg-type]
            times.append(time.perf_counter() - start)
        kept.save(f"{folder}/h.parquet")
        return sorted(times)[1], kept, os.path.getsize(f"{folder}/h.parquet")


def by_queries() -> str:
    """10 million rows of fewer or more queries."""
    rows = []
    for layout in ("wide", "replay"):
        for queries in (10_000, 100_000, 1_000_000):
            took, kept, size = _harvested(World(queries=queries, repeats=1_000_000 / queries), layout)
            rows.append([f"{layout}, {queries:,}", f"{took:.2f} s", f"{len(kept.table):,} ({kept.kind})", _mb(size)])
    return table(("queries", "time", "rows of the harvest", "its file"), rows)


def by_rankers() -> str:
    """2 million rows, wide, of 2 to 50 rankers that differ as much as by default."""
    rows = []
    for rankers in (2, 3, 5, 8, 12, 20, 50):
        names = tuple(f"r{i:02}" for i in range(rankers))
        took, kept, size = _harvested(World(rankers=names, queries=20_000, repeats=10), "wide")
        wide = f"{took:.2f} s", f"{len(kept.table):,} ({kept.kind})", _mb(size)
        took, kept, size = _harvested(World(rankers=names, queries=20_000, repeats=10), "replay")
        rows.append([str(rankers), *wide, f"{took:.2f} s", f"{len(kept.table):,} ({kept.kind})"])
    head = ("rankers", "wide: time", "rows of the harvest", "its file", "replay: time", "rows of the harvest")
    return table(head, rows)


def by_max_rank() -> str:
    """2 million rows, 2 rankers, of pages of 5 to 100 results."""
    rows = []
    for m in (5, 10, 20, 50, 100):
        world = World(max_rank=m, queries=200_000 // m, repeats=10)
        wide, kept, size = _harvested(world, "wide")
        replay, other, _ = _harvested(world, "replay")
        cells = [f"{len(h.table):,} ({h.kind})" for h in (kept, other)]
        rows.append([str(m), f"{wide:.2f} s", cells[0], _mb(size), f"{replay:.2f} s", cells[1]])
    head = ("M", "wide: time", "rows of the harvest", "its file", "replay: time", "rows of the harvest")
    return table(head, rows)


def over_a_year() -> str:
    """365 daily harvests of 200,000 rows each, merged."""
    with TemporaryDirectory() as folder:
        rows = []
        for layout in ("wide", "replay"):
            files: list[str] = []
            for day in range(365):
                log = posbias.simulate(World(queries=2_000, repeats=10, seed=day), layout=layout)
                files.append(f"{folder}/{layout}-{day:03}.parquet")
                posbias.harvest(posbias.ClickLog(log)).save(files[-1])
            output = f"{folder}/{layout}.parquet"
            took, memory = in_small_process(run_measured, [COMMAND, "merge", *files, "-o", output])
            year, day_size = posbias.Harvest.load(output), sum(map(os.path.getsize, files)) / 365
            start = time.perf_counter()
            posbias.AllPairs().fit(year)
            fit = time.perf_counter() - start
            cells = [_mb(day_size), f"{took:.1f} s", f"{memory:.2f} GiB", f"{len(year.table):,}"]
            rows.append([layout, *cells, _mb(os.path.getsize(output)), f"{fit:.1f} s"])
    head = (
        "layout",
        "a day's file",
        "merge of 365",
        "peak memory",
        "rows of the year",
        "its file",
        "curve with intervals",
    )
    return table(head, rows)


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f} MB"


# Part -> its heading and what measures it.
PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "duckdb": ("Rows, on DuckDB", on_duckdb),
    "spark": ("Rows, on Spark", on_spark),
    "queries": ("Queries: 10 million rows", by_queries),
    "rankers": ("Rankers: 2 million rows", by_rankers),
    "ranks": ("M: 2 million rows, two rankers", by_max_rank),
    "year": ("A year of days: 365 harvests of 200,000 rows", over_a_year),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how cost grows, and write benchmarks/SCALE.md.")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="which to measure anew")
    options = parser.parse_args()
    kept = RESULTS.read_text(encoding="utf-8").split("\n## ")[1:] if RESULTS.exists() else []
    parts = {heading: body.strip() for heading, _, body in (block.partition("\n") for block in kept)}
    for name in options.parts:
        print(f"{name} ...", file=sys.stderr, flush=True)
        heading, measure = PARTS[name]
        parts[heading] = measure()
        # After each part, so that an hour's work is not lost with the last of them.
        ordered = [f"## {heading}\n\n{parts[heading]}" for heading, _ in PARTS.values() if heading in parts]
        RESULTS.write_text("\n\n".join([_header(), *ordered]) + "\n", encoding="utf-8")


def _header() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("duckdb", "pyspark", "numpy"))
    return (
        f"# How cost grows\n\nWritten by `python -m benchmarks.scale` on {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, {versions}. Times on DuckDB are of a warm process; those on Spark are of "
        "one run, all of its tasks added up."
    )


if __name__ == "__main__":
    main()
