"""An estimate with its intervals: against the harvest that it is made of; and commands with many ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import posbias
from benchmarks import data
from benchmarks.timing import COMMAND, Ratio, compare, cpu_seconds_of, in_small_process, table
from posbias.simulation import World, write

# Ranks, queries of ten page views each, and the CPU seconds that are promised.
_MANY_RANKS = ((48, 6_000, 3), (200, 1_000, 10))
_FIT = "import posbias, sys; posbias.CrossFit().fit(posbias.Harvest.load(sys.argv[1]))"


def measure(millions: int, layout: str, kind: str, repeats: int) -> tuple[Ratio, int]:
    """Time an estimator on a harvest against that harvest; return the cells that it compared, too."""
    path = data.wide(millions, 3) if layout == "wide" else data.log_of(layout, millions)
    harvest = posbias.harvest(posbias.ClickLog(str(path)))
    make = getattr(posbias, kind)
    ratio = compare(
        f"{kind}, {layout}, {millions} million rows",
        lambda: make().fit(harvest),
        "the harvest of the same log",
        lambda: posbias.harvest(posbias.ClickLog(str(path))),
        repeats=repeats,
        # The number of cells stops growing with the log, so the limit is lower for 100 million rows.
        promise="1" if millions < 100 and layout != "heavy" else "0.3" if millions < 20 else "0.25",
    )
    return ratio, len(posbias.CrossFit().count(harvest).rows.cell_bucket)


def measure_many_ranks() -> str:
    """Return the CPU seconds of commands with many ranks, whatever number of threads the user has set."""
    lines = [
        "| M | page views | OMP_NUM_THREADS | `CrossFit` in Python | `posbias estimate` | `posbias diagnose` | "
        "`posbias plan` | at most |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    with TemporaryDirectory() as folder:
        for ranks, queries, promise in _MANY_RANKS:
            log, file = Path(folder, f"{ranks}.parquet"), f"{folder}/{ranks}.harvest"
            write(World(queries=queries, repeats=10, max_rank=ranks, candidates=ranks + 10), log, "wide")
            posbias.harvest(posbias.ClickLog(str(log)), max_rank=ranks).save(file)
            commands = [[COMMAND, name, file] for name in ("estimate", "diagnose", "plan")]
            for threads in ("not set", "1", "8"):
                setting = ["-u", "OMP_NUM_THREADS"] if threads == "not set" else [f"OMP_NUM_THREADS={threads}"]
                # `plan` takes longest and is measured once.
                measured = commands if threads == "not set" else commands[:-1]
                seconds = [
                    in_small_process(cpu_seconds_of, ["env", *setting, *words])
                    for words in ([sys.executable, "-c", _FIT, file], *measured)
                ]
                broken = " **broken**" if max(seconds) > promise else ""
                columns = " | ".join([*(f"{each:.1f} s" for each in seconds), "–"][: 1 + len(commands)])
                lines.append(f"| {ranks} | {10 * queries:,} | {threads} | {columns} | {promise} s{broken} |")
    return "\n".join(lines)


def to_markdown(millions: list[int], repeats: int) -> str:
    """Measure both layouts at each size."""
    ratios, cells = [], {}
    for size in millions:
        for layout in ("wide", "replay"):
            for kind in ("CrossFit", "AllPairs"):
                ratio, cells[layout, size] = measure(size, layout, kind, repeats)
                ratios.append(ratio)
    sizes = ", ".join(f"{count:,} ({layout}, {size} million rows)" for (layout, size), count in cells.items())
    return (
        "Both with their jackknife intervals, wide logs with 3 rankers. CrossFit compares cells of a bucket and a "
        f"stratum: {sizes}. Command: `python -m benchmarks --parts estimates`.\n\n{table(ratios)}"
    )
