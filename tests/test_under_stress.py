"""Test what a busy machine does to the commands: kills, full disks, many processes, files that change, long lives."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import posbias
from posbias.engines import open_log
from posbias.simulation import write

WORLD = posbias.World(queries=400, max_rank=4)
SCRIPT = "from posbias.cli import script; script()"
# Each command is killed so often, and so many estimates, times 50, are made in one process; `make fuzz` takes 20.
TIMES = int(os.environ.get("POSBIAS_STRESS", "2"))
# Every command that writes a file, and the file.
WRITING = {
    "harvest": ("harvest {log} -o {out}/x.harvest", "x.harvest"),
    "merge": ("merge {day} {other} -o {out}/m.harvest", "m.harvest"),
    "report": ("report {log} -o {out}/r.html", "r.html"),
    "estimate --plot": ("estimate {log} --plot {out}/p.svg", "p.svg"),
    "weights": ("weights {log} --estimate {curve} -o {out}/w.parquet --overwrite", "w.parquet"),
    "judgments": ("judgments {log} --estimate {curve} -o {out}/j.tsv --overwrite", "j.tsv"),
    "events": ("events {shown} {clicks} -o {out}/e.parquet --overwrite", "e.parquet"),
    "simulate": ("simulate {out}/s.parquet --queries 200 --max-rank 4", "s.parquet"),
    "evaluate --plot": ("evaluate {log} --ranking {ranking} --score score --max-rank 4 --plot {out}/v.pdf", "v.pdf"),
    "history": ("history add {out}/h.parquet {curve} --date 2026-03-02", "h.parquet"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A log and what commands read besides it."""
    folder = tmp_path_factory.mktemp("files")
    names = (
        "log.parquet",
        "day.harvest",
        "other.harvest",
        "curve.json",
        "shown.parquet",
        "clicks.parquet",
        "ranking.parquet",
    )
    made = {Path(name).stem: folder / name for name in names}
    write(WORLD, made["log"])
    for seed, name in enumerate(("day", "other")):
        world = posbias.World(queries=200, max_rank=4, seed=seed)
        posbias.harvest(posbias.ClickLog(posbias.simulate(world)), max_rank=4).save(made[name])
    posbias.CrossFit().fit(posbias.harvest(posbias.ClickLog(made["log"]), max_rank=4)).curve().save(made["curve"])
    log = pq.read_table(made["log"])
    pq.write_table(log.drop_columns(["clicked"]), made["shown"])
    clicked = log.filter(log["clicked"].cast("bool"))
    pq.write_table(clicked.select(["impression_id", "doc_id"]), made["clicks"])
    pairs = log.group_by(["query_id", "doc_id"]).aggregate([("position", "mean")])
    pq.write_table(pairs.rename_columns(["query_id", "doc_id", "score"]), made["ranking"])
    return made


def command(line: str, files: dict[str, Path], out: Path) -> list[str]:
    return [sys.executable, "-c", SCRIPT, *line.format(out=out, **files).split()]


def run(line: str, files: dict[str, Path], out: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(line, files, out), capture_output=True, text=True, check=False, **options)


@pytest.mark.long
@pytest.mark.parametrize("name", WRITING)
def test_a_killed_command_leaves_the_old_file_or_the_new_one(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    line, output = WRITING[name]
    path = tmp_path / output
    begun = time.monotonic()
    first = run(line, files, tmp_path)
    assert first.returncode == 0, first.stderr
    seconds, complete = time.monotonic() - begun, len(path.read_bytes())
    for kill in range(TIMES):
        process = subprocess.Popen(command(line, files, tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # The last moments are those in which files are written.
        time.sleep(seconds * (1.05 - 0.5 * kill / TIMES))
        process.send_signal(signal.SIGKILL)
        process.wait()
        # Files say when they were made, so their sizes differ a little.
        assert abs(len(path.read_bytes()) - complete) < 200
    again = run(line, files, tmp_path)
    assert again.returncode == 0, again.stderr
    assert not [file.name for file in tmp_path.iterdir() if file.name.startswith(".posbias")]


@pytest.mark.long
@pytest.mark.parametrize("name", WRITING)
def test_a_full_disk_is_one_message_and_leaves_nothing(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: writing fails in the same place."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    failed = run(WRITING[name][0], files, tmp_path, preexec_fn=limit)
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr
    [message] = [line for line in failed.stderr.splitlines() if line.startswith("Error")]
    assert str(tmp_path) in message
    assert "too large" in message or "is full" in message or "left" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_eight_processes_read_one_file_alike(files: dict[str, Path], tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            command("estimate {log} --json", files, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(8)
    ]
    printed = {process.communicate()[0] for process in started}
    assert {process.returncode for process in started} == {0}
    assert len(printed) == 1


@pytest.mark.long
def test_many_estimates_in_one_process_need_no_more_memory() -> None:
    script = f"""
import posbias, resource
log = posbias.ClickLog(posbias.simulate(posbias.World(queries=60, max_rank=3)))
sizes = []
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20
for i in range({50 * TIMES}):
    posbias.CrossFit().fit(posbias.harvest(log, max_rank=3)).curve()
    if i in (49, {50 * TIMES - 1}):
        sizes.append(resident())
print(sizes[1] - sizes[0])
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    # In megabytes: a harvest that was kept would add hundreds.
    assert float(done.stdout) < 30


def read_and(log: posbias.ClickLog, change: Callable[[], object]) -> None:
    with open_log(log) as opened:
        opened.rows("SELECT COUNT(*) FROM log")
        change()


@pytest.mark.parametrize("ending", ["parquet", "csv", "csv.gz"])
def test_a_file_that_changes_while_it_is_read_is_an_error(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"log.{ending}"
    write(posbias.World(queries=20, max_rank=3), path)
    read_and(posbias.ClickLog(path), lambda: None)
    longer = path.read_bytes() + b"\n"
    with pytest.raises(posbias.LogError, match=r"log\.\S+' changed while it was read"):
        read_and(posbias.ClickLog(path), lambda: path.write_bytes(longer))


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    worlds = [posbias.World(queries=20, max_rank=3, seed=seed) for seed in (0, 1)]
    write(worlds[0], tmp_path / "log.parquet")
    with pytest.raises(posbias.LogError, match="changed while it was read"):
        read_and(posbias.ClickLog(tmp_path), lambda: write(worlds[1], tmp_path / "log.parquet"))
