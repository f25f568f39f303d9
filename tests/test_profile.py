"""The profile by step that POSBIAS_PROFILE asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from threading import current_thread

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import posbias
from posbias import progress
from posbias.cli.commands import COMMANDS
from posbias.cli.main import main
from posbias.progress import TimedStep, print_profile, step
from posbias.simulation import write


@pytest.fixture(autouse=True)
def no_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(progress, "_SHORTEST", 0.0)
    yield
    progress._total.parts.clear()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.parquet"
    write(posbias.World(queries=60, repeats=6, max_rank=4), path)
    return path


def test_nothing_is_measured_unless_asked_for(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "", "0", "False"):
        monkeypatch.delenv("POSBIAS_PROFILE", raising=False)
        if value is not None:
            monkeypatch.setenv("POSBIAS_PROFILE", value)
        posbias.CrossFit().fit(posbias.harvest(posbias.ClickLog(str(log))))
        assert not progress._total.parts


def test_steps_nest_and_runs_add_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("POSBIAS_PROFILE", "1")
    monkeypatch.setattr(progress, "perf_counter", iter([0.0, 1.0, 3.0, 4.0, 10.0, 11.0]).__next__)
    with step("outer"), step("inner") as measured:
        measured.add_rows(rows_in=1000, rows_out=5)
    with pytest.raises(ZeroDivisionError), step("outer"):
        1 / 0  # noqa: B018
    print_profile()
    lines = [line.split() for line in capsys.readouterr().err.strip().splitlines()]
    # The inner step ran from 1 to 3, the outer one from 0 to 4 and from 10 to 11.
    assert lines[1][:3] == ["outer", "2", "5.00"]
    assert lines[2][:3] == ["inner", "1", "2.00"]
    assert lines[2][-2:] == ["1,000", "5"]
    assert not progress._total.parts


def test_a_command_ends_with_its_queries_and_fits(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POSBIAS_PROFILE", "1")
    monkeypatch.setattr("sys.argv", ["posbias", "estimate", str(log), "--max-rank", "4"])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr()
    rows = {line[:22].strip(): line[22:].split() for line in printed.err.splitlines()}
    harvesting = rows["Harvesting"]
    # 60 queries with 6 page views each, of 4 results.
    assert harvesting[0] == "1"
    assert harvesting[3] == "1,440"
    assert {"Opening the log", "Grouping the counts", "Fitting cross-fit", "Computing intervals"} <= rows.keys()
    assert "Harvesting" not in printed.out


def test_steps_of_a_profile_run_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CPU seconds are those of all threads: a step that runs beside another would count twice."""
    path = tmp_path / "log.parquet"
    write(posbias.World(queries=60, repeats=6, max_rank=4), path, "replay")
    monkeypatch.setenv("POSBIAS_PROFILE", "1")
    seen: list[tuple[str, str]] = []
    measured = progress._measured

    def spy(name: str) -> AbstractContextManager[TimedStep]:
        seen.append((name, current_thread().name))
        return measured(name)

    monkeypatch.setattr(progress, "_measured", spy)
    posbias.report(posbias.ClickLog(str(path)), max_rank=4)
    assert {"Making the cells", "Fitting cross-fit", "One curve test"} <= {name for name, _ in seen}
    assert {thread for _, thread in seen} == {current_thread().name}
    print_profile()
    assert "Making the cells" in capsys.readouterr().err


# How each command is run, and a query or a computation that its profile must list.
RUNS = {
    "simulate": ("simulate {folder}/other.parquet --queries 50", "Simulating"),
    "check": ("check {log} --max-rank 4", "Checking the clicks of page views"),
    "harvest": ("harvest {log} --max-rank 4 -o {folder}/one.harvest", "Harvesting"),
    "merge": ("merge {folder}/a.harvest {folder}/b.harvest -o {folder}/both.harvest", "Merging harvests"),
    "sets": ("sets {log} --max-rank 4", "Counting"),
    # It reads no log.
    "sql": ("sql --table clicks --dialect bigquery", "start"),
    "estimate": ("estimate {folder}/a.harvest", "Fitting cross-fit"),
    "diagnose": ("diagnose {folder}/a.harvest", "One curve test"),
    "report": ("report {folder}/a.harvest -o {folder}/page.html", "Drawing the page"),
    "compare": ("compare {folder}/a.harvest {folder}/b.harvest", "Comparing curves"),
    "evaluate": ("evaluate {log} --ranking ranker:a --max-rank 4", "Evaluating"),
    "plan": ("plan {folder}/a.harvest --no-scenarios --estimator all-pairs", "Fitting all-pairs"),
    "weights": ("weights {log} --estimate {folder}/curve.json -o {folder}/w.parquet", "Weighting"),
    "judgments": ("judgments {log} --estimate {folder}/curve.json -o {folder}/j.parquet", "Weighting"),
    "history": ("history add {folder}/history.parquet {folder}/curve.json --date 2026-03-01", "Writing the history"),
    "events": ("events {folder}/shown.parquet {folder}/clicked.parquet -o {folder}/joined.parquet", "Joining"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, two harvests, a curve, and events."""
    folder = tmp_path_factory.mktemp("profile")
    for seed, name in enumerate("ab"):
        world = posbias.World(queries=300, repeats=6, max_rank=4, seed=seed)
        write(world, folder / f"{name}.parquet")
        harvest = posbias.harvest(posbias.ClickLog(str(folder / f"{name}.parquet")), max_rank=4)
        harvest.save(folder / f"{name}.harvest")
    posbias.CrossFit().fit(harvest).curve().save(folder / "curve.json")
    table = pq.read_table(folder / "a.parquet")
    pq.write_table(table.drop_columns(["clicked"]), folder / "shown.parquet")
    clicked = table.filter(pc.equal(table["clicked"], 1))
    pq.write_table(clicked.select(["impression_id", "doc_id"]), folder / "clicked.parquet")
    return folder


def test_every_command_is_run() -> None:
    assert RUNS.keys() == COMMANDS.keys()


@pytest.mark.parametrize("command", RUNS)
def test_every_command_has_a_profile(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, step_name = RUNS[command]
    monkeypatch.setenv("POSBIAS_PROFILE", "1")
    arguments = words.format(log=folder / "a.parquet", folder=folder).split()
    monkeypatch.setattr("sys.argv", ["posbias", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    printed = capsys.readouterr().err
    assert stopped.value.code in (0, None, 1), printed
    assert "CPU seconds" in printed
    assert "rows out" in printed
    assert step_name in printed
