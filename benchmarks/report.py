"""Commands on a harvest file, each a process of its own: report, estimate and diagnose; loading it; and `make demo`."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

import posbias
from benchmarks import data
from benchmarks.timing import COMMAND, Ratio, compare, cpu_seconds_of, in_small_process, run_command, table

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


def measure_heavy(millions: int, repeats: int) -> tuple[list[Ratio], str]:
    """Time commands on the harvest file of a heavy-tailed replay against the command that makes it, and its loading."""
    log = str(data.heavy(millions))
    with TemporaryDirectory() as folder:
        file, report = f"{folder}/heavy.harvest", ("-o", f"{folder}/report.html")
        _run("harvest", log, "-o", file)
        ratios = [
            compare(
                f"load a harvest and estimate in Python, {millions} million rows",
                lambda: posbias.CrossFit().fit(posbias.Harvest.load(file)),
                "harvest the log and save",
                lambda: posbias.harvest(posbias.ClickLog(log)).save(f"{folder}/again.harvest"),
                repeats=repeats,
                promise="0.7",
            )
        ]
        # Starting Python and importing packages takes a quarter of a second, whatever the log.
        promises = (0.8, 0.9, 0.9) if millions < 20 else (0.75, 0.75, 0.75)
        ratios += [
            compare(
                f"`posbias {command}` of a harvest, {millions} million rows",
                lambda command=command, words=words: _run(command, file, *words),  # type: ignore[misc]
                "`posbias harvest` of the log",
                lambda: _run("harvest", log, "-o", f"{folder}/again.harvest"),
                repeats=repeats,
                promise=str(promise),
            )
            for (command, words), promise in zip(
                (("estimate", ()), ("report", report), ("diagnose", ())), promises, strict=True
            )
        ]
        return ratios, _measure_loading(file, repeats)


def _measure_loading(file: str, repeats: int) -> str:
    """Say how fast a harvest file is loaded, by its size on disk and by the size of its columns without compression."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for side, load in enumerate((posbias.Harvest.load, pq.read_table)):
            start = time.process_time()
            load(file)
            times[side].append(time.process_time() - start)
    seconds, reading = (statistics.median(side[1:]) for side in times)
    cells, megabytes = len(posbias.Harvest.load(file).table), Path(file).stat().st_size / 1e6
    memory = cells * 64 / 1e6
    metadata = pq.ParquetFile(file).metadata
    columns = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)) / 1e6
    return (
        f"The harvest file has {cells:,} cells and {megabytes:.1f} MB ({columns:.1f} MB before compression, "
        f"{memory:.0f} MB in memory) and is loaded in {seconds:.2f} s of CPU: {megabytes / seconds:.0f} MB/s of the "
        f"file, {memory / seconds:.0f} MB/s of the columns in memory, {cells / seconds / 1e6:.1f} million cells a "
        f"second. 500 MB/s of the columns in memory are promised. 100 MB/s of the file were the goal, but Arrow alone "
        f"needs {reading:.2f} s to decompress it ({megabytes / reading:.0f} MB/s of the file)."
    )


def measure_year(days: int = 365, views: int = 10_000) -> str:
    """Harvest the days of a heavy-tailed log, merge the harvests, and say what the year weighs and takes."""
    with TemporaryDirectory() as folder:
        files, year = [f"{folder}/{day:03d}.harvest" for day in range(days)], f"{folder}/year.harvest"
        for day, file in enumerate(files):
            posbias.harvest(posbias.ClickLog(data.heavy_day(day, views))).save(file)
        sizes = [Path(file).stat().st_size / 1e6 for file in files]
        merging, estimating = (
            in_small_process(cpu_seconds_of, [COMMAND, *words])
            for words in (("merge", *files, "-o", year), ("estimate", year))
        )
        cells = len(posbias.Harvest.load(year).table)
        return (
            f"{days} days of {views * 10:,} rows, heavy-tailed as above, harvested one by one: {sum(sizes):.0f} MB, "
            f"{statistics.median(sizes):.2f} MB a day. `posbias merge` of all took {merging:.1f} s of CPU, and the "
            f"year has {cells:,} cells and {Path(year).stat().st_size / 1e6:.1f} MB. `posbias estimate` of it took "
            f"{estimating:.1f} s of CPU. Command: `python -m benchmarks --parts year`."
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
        "Wide logs with 3 rankers and M = 10. The estimate is that of `CrossFit`; a report has three others, "
        f"too. A report of 100 million rows is promised in {_REPORT_SECONDS} s. Command: "
        f"`python -m benchmarks --parts report`.\n\n{table(ratios)}\n\n"
        f"The three commands of `make demo` take {demo:.1f} s; {_DEMO_SECONDS} s are promised."
    )


def _run(*words: str) -> None:
    run_command(COMMAND, *words)
