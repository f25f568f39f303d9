"""A report of a harvest against its curve alone, and what `make demo` does, each command a process of its own."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import posbias
from benchmarks import data
from benchmarks.timing import Ratio, compare, table

_COMMAND = str(Path(sys.executable).with_name("posbias"))
# Of the report of the harvest of 100 million rows, and of all of the demo.
_REPORT_SECONDS, _DEMO_SECONDS = 3, 5


def measure(millions: int, repeats: int) -> Ratio:
    """Time the report of the harvest of a wide log with 3 rankers against the estimate with its intervals."""
    with TemporaryDirectory() as folder:
        file = f"{folder}/wide.harvest"
        posbias.harvest(posbias.ClickLog(str(data.wide(millions, 3)))).save(file)
        return compare(
            f"`posbias report` of a harvest, {millions} million rows",
            lambda: _run("report", file, "-o", f"{folder}/report.html"),
            "`posbias estimate` of the same harvest",
            lambda: _run("estimate", file),
            repeats=repeats,
            promise="2",
        )


def measure_demo(repeats: int) -> float:
    """Return the median seconds of the three commands of `make demo`."""
    times = []
    with TemporaryDirectory() as folder:
        log, truth = f"{folder}/clicks.parquet", f"{folder}/clicks.truth.json"
        for _ in range(repeats + 1):
            start = time.perf_counter()
            _run("simulate", log, "--queries", "10000")
            _run("estimate", log, "--truth", truth, "--plot", f"{folder}/curve.png")
            _run("report", log, "-o", f"{folder}/report.html")
            times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def to_markdown(millions: list[int], repeats: int) -> str:
    """Measure reports at each size, and the demo."""
    ratios = [measure(size, repeats) for size in millions]
    demo = measure_demo(repeats)
    return (
        "Wide logs with 3 rankers and M = 10. An estimate is that of `CrossFit`, which a report has beside "
        f"three others. A report of 100 million rows is promised in {_REPORT_SECONDS} s. Command: "
        f"`python -m benchmarks --parts report`.\n\n{table(ratios)}\n\n"
        f"The three commands of `make demo` take {demo:.1f} s; {_DEMO_SECONDS} s are promised."
    )


def _run(*words: str) -> None:
    subprocess.run([_COMMAND, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
