"""Measure how cost grows with rows, queries, rankers and M, on DuckDB and on Spark, and for a year of daily harvests.

python -m benchmarks.scale                     # writes benchmarks/SCALE.md
python -m benchmarks.scale --parts rankers     # measures one part again

Costs on Spark come from its event log: core-seconds of tasks, and shuffled bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import numpy as np

import posbias
from benchmarks import data
from benchmarks.timing import in_small_process, run_measured
from posbias._arrays import FloatArray
from posbias.engines.spark import start_session
from posbias.simulation import Layout, World, write

RESULTS = Path(__file__).with_name("SCALE.md")
COMMAND = str(Path(sys.executable).with_name("posbias"))
SIZES = (1, 3, 10, 30, 100)
_FITTED = "Fitted exponents in rows, from 1 to 100 million (and from 10 million on, where fixed costs matter less)"


def exponents(costs: Sequence[float]) -> str:
    """Return the slope of log cost against log rows, 1 where cost grows linearly: over all sizes, and large ones."""
    large = SIZES.index(10)
    slopes = [np.polyfit(np.log(SIZES[i:]), np.log(costs[i:]), 1)[0] for i in (0, large)]
    return f"{slopes[0]:.2f} ({slopes[1]:.2f})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def on_duckdb() -> str:
    """Measure the time of harvests of 1 to 100 million rows in a warm process, and the peak memory in a new one."""
    rows, fitted = [], []
    for layout in ("wide", "replay"):
        seconds = []
        for millions in SIZES:
            path = data.log_of(layout, millions)
            seconds.append(in_small_process(_warm_seconds, str(path)))
            with TemporaryDirectory() as folder:
                words = [COMMAND, "harvest", str(path), "-o", f"{folder}/h.parquet"]
                _, memory = in_small_process(run_measured, words)
                kept = posbias.Harvest.load(f"{folder}/h.parquet")
                size = os.path.getsize(f"{folder}/h.parquet")
            what = f"{len(kept.table):,} ({kept.kind})"
            rows.append([f"{layout}, {millions} million", f"{seconds[-1]:.2f} s", f"{memory:.2f} GiB", what, _mb(size)])
        fitted.append(f"{layout} {exponents(seconds)}")
    head = ("rows", "time", "peak memory", "rows of the harvest", "its file")
    return f"{table(head, rows)}\n\n{_FITTED}: time, {', '.join(fitted)}."


def _warm_seconds(path: str) -> float:
    """Return the time of a harvest after a warm-up."""
    times = []
    for _ in range(2):
        start = time.perf_counter()
        posbias.harvest(posbias.ClickLog(path))
        times.append(time.perf_counter() - start)
    return times[-1]


class Meter:
    """A Spark session whose event log gives the cost of a harvest."""

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory()
        settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": Path(self._folder.name).as_uri(),
        }
        self._session = start_session(conf=settings)
        return self

    def __exit__(self, *_: object) -> None:
        self._session.stop()
        self._folder.cleanup()

    def cost(self, log: Path, **options: int) -> Cost:
        """Return the cost of a harvest after a warm-up."""
        for _ in range(2):
            before = self._total()
            posbias.harvest(posbias.ClickLog(log), engine="spark", **options)  # type: ignore[arg-type]
        return Cost(*(self._total() - before))

    def _total(self) -> FloatArray:
        """Return the total cost of all tasks so far."""
        self._session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        total = np.zeros(4)
        for path in Path(self._folder.name).rglob("events_*"):
            for line in path.read_text().splitlines():
                event = json.loads(line)
                if event["Event"] == "SparkListenerTaskEnd":
                    metrics = event["Task Metrics"]
                    shuffle = metrics["Shuffle Write Metrics"]
                    total += (
                        metrics["Executor Run Time"] / 1e3,
                        metrics["Executor CPU Time"] / 1e9,
                        shuffle["Shuffle Bytes Written"],
                        shuffle["Shuffle Records Written"],
                    )
        return total


@dataclass(frozen=True)
class Cost:
    """The time of all tasks of a harvest, and the bytes and records that they shuffled."""

    seconds: float
    cpu_seconds: float
    shuffled: float
    records: float


def on_spark() -> str:
    """Measure core-seconds and shuffled bytes of harvests of 1 to 100 million rows on Spark."""
    rows, fitted = [], []
    with Meter() as meter:
        for layout in ("wide", "replay"):
            costs = [meter.cost(data.log_of(layout, millions)) for millions in SIZES]
            for millions, cost in zip(SIZES, costs, strict=True):
                times = f"{cost.seconds:.1f}", f"{cost.cpu_seconds:.1f}"
                rows.append(
                    [f"{layout}, {millions} million", *times, _mb(cost.shuffled), f"{cost.records / 1e6:.2f} million"]
                )
            for name in ("seconds", "shuffled"):
                what = "core-seconds" if name == "seconds" else "bytes shuffled"
                fitted.append(f"{what}, {layout} {exponents([getattr(cost, name) for cost in costs])}")
    head = ("rows", "core-seconds of tasks", "of them on the CPU", "shuffled", "records shuffled")
    return f"{table(head, rows)}\n\n{_FITTED}: {'; '.join(fitted)}."


def _measure_world(meter: Meter, world: World, layout: Layout) -> tuple[str, str, str, str]:
    """Simulate a log; return the time, rows and file size of its harvest, and the bytes shuffled on Spark."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write(world, path, layout)
        took, kept, size = _measure_harvest(path, max_rank=world.max_rank)
        shuffled = meter.cost(path, max_rank=world.max_rank).shuffled
    return took, kept, size, _mb(shuffled)


def _measure_harvest(log: Path, **options: int) -> tuple[str, str, str]:
    """Return the time of a harvest on DuckDB (the median of three), its rows, and its file's size."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        kept = posbias.harvest(posbias.ClickLog(log), **options)  # type: ignore[arg-type]
        times.append(time.perf_counter() - start)
    with TemporaryDirectory() as folder:
        kept.save(f"{folder}/h.parquet")
        size = os.path.getsize(f"{folder}/h.parquet")
    return f"{sorted(times)[1]:.2f} s", f"{len(kept.table):,} ({kept.kind})", _mb(size)


COLUMNS = ("time", "rows of the harvest", "its file", "shuffled on Spark")


def _by(what: str, worlds: Mapping[str, World]) -> str:
    """Measure several worlds in both layouts."""
    with Meter() as meter:
        rows = [
            [f"{layout}, {name}", *_measure_world(meter, world, layout)]
            for layout in ("wide", "replay")
            for name, world in worlds.items()
        ]
    return table((what, *COLUMNS), rows)


def by_queries() -> str:
    """Measure logs of 10 million rows with different numbers of queries."""
    queries = (10_000, 100_000, 1_000_000)
    return _by("queries", {f"{n:,}": World(queries=n, repeats=1_000_000 / n) for n in queries})


def by_rankers() -> str:
    """Measure logs of 2 million rows with 2 to 50 rankers."""
    rankers = (2, 3, 5, 8, 12, 20, 50)
    return _by("rankers", {str(n): World(rankers=_names(n), queries=20_000, repeats=10) for n in rankers})


def past_the_limit() -> str:
    """Measure wide logs with more signatures than a harvest keeps."""
    rows = []
    for rankers, millions in ((12, 6), (20, 6), (50, 6)):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "log.parquet"
            write(World(rankers=_names(rankers), queries=millions * 10_000, repeats=10), path, "wide")
            rows.append([f"{rankers}, {millions} million rows", *_measure_harvest(path)])
    return table(("rankers", *COLUMNS[:3]), rows)


def as_sums() -> str:
    """Measure the cost when a replay log has too many strata."""
    log, rows = data.log_of("replay", 10), []
    with Meter() as meter:
        for name, limit in (("strata", 2_000_000), ("sums", 100_000)):
            cost = meter.cost(log, max_strata=limit)
            took, kept, size = _measure_harvest(log, max_strata=limit)
            rows.append([name, took, kept, size, f"{cost.seconds:.1f}", _mb(cost.shuffled)])
    return table(("kept as", *COLUMNS[:3], "core-seconds on Spark", COLUMNS[3]), rows)


def _names(rankers: int) -> tuple[str, ...]:
    return tuple(f"r{i:02}" for i in range(rankers))


def by_max_rank() -> str:
    """Measure logs of 2 million rows and 2 rankers with pages of 5 to 100 results."""
    return _by("M", {str(m): World(max_rank=m, queries=200_000 // m, repeats=10) for m in (5, 10, 20, 50, 100)})


def over_a_year() -> str:
    """Measure the merge of 365 daily harvests of 200,000 rows each."""
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


# Each part with its heading and the function that measures it.
PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "duckdb": ("Rows, on DuckDB", on_duckdb),
    "spark": ("Rows, on Spark", on_spark),
    "queries": ("Queries: 10 million rows", by_queries),
    "rankers": ("Rankers: 2 million rows", by_rankers),
    "limit": ("Rankers: more signatures than are kept, wide", past_the_limit),
    "sums": ("Strata and sums: replay, 10 million rows", as_sums),
    "ranks": ("M: 2 million rows, two rankers", by_max_rank),
    "year": ("A year of days: 365 harvests of 200,000 rows", over_a_year),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how cost grows, and write benchmarks/SCALE.md.")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="the parts to measure again")
    options = parser.parse_args()
    kept = RESULTS.read_text(encoding="utf-8").split("\n## ")[1:] if RESULTS.exists() else []
    parts = {heading: body.strip() for heading, _, body in (block.partition("\n") for block in kept)}
    for name in options.parts:
        print(f"{name} ...", file=sys.stderr, flush=True)
        heading, measure = PARTS[name]
        parts[heading] = measure()
        # Write after each part, so that a failure of the last one does not lose an hour of measurements.
        ordered = [f"## {heading}\n\n{parts[heading]}" for heading, _ in PARTS.values() if heading in parts]
        RESULTS.write_text("\n\n".join([_header(), *ordered]) + "\n", encoding="utf-8")


def _header() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("duckdb", "pyspark", "numpy"))
    return (
        f"# How cost grows\n\nWritten by `python -m benchmarks.scale` on {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, {versions}. Times on DuckDB are of a warm process; costs on Spark are "
        "of a warm session, all tasks added up."
    )


if __name__ == "__main__":
    main()
