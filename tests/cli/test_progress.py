"""Test the progress bar: it moves on a terminal with speed and remaining time, and is absent in a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import posbias
from posbias.engines import open_log
from posbias.progress import ProgressBar, RunningSteps
from posbias.simulation import write

COMMAND = [sys.executable, "-c", "from posbias.cli import script; script()"]

SLOW = """
from time import sleep
from posbias.progress import show_progress
with show_progress() as drawn:
    drawn.rows = 20_000_000
    drawn("Harvesting", 0.0)
    sleep(1)
    drawn("Harvesting", 0.25)
    sleep(0.5)
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of ten million rows: a harvest of it takes a second or two."""
    path = tmp_path_factory.mktemp("progress") / "log.parquet"
    duckdb.sql(
        "SELECT query_id, doc_id, rank_a, rank_b, ranker, if(ranker = 'a', rank_a, rank_b) AS position, clicked FROM ("
        "  SELECT i // 40 AS query_id, i % 10 AS doc_id, 1 + i % 10 AS rank_a, 1 + (i // 40 + i) % 10 AS rank_b, "
        "  ['a', 'b'][1 + (i // 10) % 2] AS ranker, hash(i) % 3 = 0 AS clicked FROM range(10_000_000) t(i))"
    ).write_parquet(str(path))
    return path


def on_terminal(*command: str) -> str:
    """Return what a terminal of 80 columns gets, without what colours it or moves the cursor."""
    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(command, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 2**16)
        except OSError:  # The other end is closed: the process is done.
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait() == 0, shown
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def test_progress_bar_moves_on_a_terminal(log: Path, tmp_path: Path) -> None:
    shown = on_terminal(*COMMAND, "harvest", str(log), "-o", str(tmp_path / "made.harvest"), "--threads", "1")
    shares = [int(share) for share in re.findall(r"(\d+)%", shown)]
    assert any(0 < share < 100 for share in shares), shown
    assert "leak" not in shown.lower()
    assert all(len(line) <= 80 for line in re.split(r"[\r\n]+", shown) if "%" in line)


def test_progress_bar_shows_speed_and_remaining_time() -> None:
    shown = on_terminal(sys.executable, "-c", SLOW)
    assert re.search(r"25%\s+[\d.]+[kM] rows/s, \d+ s left", shown), shown


def test_nothing_is_drawn_in_a_pipe(log: Path, tmp_path: Path) -> None:
    words = ["harvest", str(log), "-o", str(tmp_path / "made.harvest")]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "%" not in done.stderr
    assert "Harvesting" not in done.stderr


def test_a_progress_function_gets_shares_on_the_way(log: Path) -> None:
    told: list[tuple[str, float]] = []
    posbias.harvest(posbias.ClickLog(log), engine=posbias.DuckDB(threads=1), progress=lambda *seen: told.append(seen))
    assert any(0 < share < 1 for _, share in told)
    assert told[-1][1] == 1.0


def test_speed_is_that_of_the_current_step_and_progress_never_decreases() -> None:
    now = [0.0]
    drawn: list[tuple[str, float, str]] = []
    bar = ProgressBar(lambda *seen: drawn.append(seen), clock=lambda: now[0])
    bar.rows = 20_000_000
    for at, doing, share in [
        (0.0, "Reading", 0.0),
        (0.1, "Reading", 0.5),
        (2.0, "Reading", 0.25),
        (4.0, "Counting", 0.0),
        (8.0, "Counting", 0.1),
    ]:
        now[0] = at
        bar(doing, share)
    assert drawn == [
        ("Reading", 0.0, ""),
        ("Reading", 0.5, ""),
        ("Reading", 0.5, "5.0M rows/s, 2 s left"),
        ("Counting", 0.0, ""),
        ("Counting", 0.1, "500k rows/s, 36 s left"),
    ]


def test_the_rows_are_known_if_no_data_must_be_read_for_them(tmp_path: Path) -> None:
    def known(ending: str, **more: str) -> int | None:
        bar = ProgressBar(lambda *seen: None)
        log = posbias.ClickLog(tmp_path / f"log.{ending}", **more)
        with open_log(log, progress=bar) as opened, opened.reporting_progress("Looking"):
            return bar.rows

    for ending in ("parquet", "csv"):
        write(posbias.World(queries=50), tmp_path / f"log.{ending}")
    assert known("parquet") == 5000
    assert known("csv") is None
    assert known("parquet", sql="SELECT * FROM source") is None


STEPS = """
from time import sleep
from posbias.progress import show_steps, step
with show_steps():
    with step("Fitting a curve"):
        sleep(1.6)
    print("done")
"""


def test_a_step_without_a_share_is_shown_after_a_second_and_erased_before_anything_is_printed() -> None:
    shown = on_terminal(sys.executable, "-c", STEPS)
    assert re.search(r"Fitting a curve … [12] s\r +\r(.*\r +\r)*done", shown), shown


def test_the_first_running_step_is_shown_once_it_is_late_and_no_bar_is_there() -> None:
    written, time, free = [], [0.0], [True]
    steps = RunningSteps(written.append, lambda: free[0], lambda: time[0])
    with steps.run("Fitting"):
        steps.draw()
        time[0] = 2.0
        free[0] = False
        steps.draw()
        assert written == []
        free[0] = True
        with steps.run("Intervals"):
            steps.draw()
        assert written == ["Fitting … 2 s"]
    steps.draw()
    assert written == ["Fitting … 2 s", ""]
