"""Test that findings and notes reach a Python user as warnings, and a user of the command once."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import posbias


@pytest.fixture(scope="module")
def nameless() -> posbias.ClickLog:
    """A replay log that names no ranker."""
    world = posbias.World(queries=60, repeats=8, max_rank=4)
    return posbias.ClickLog(posbias.simulate(world, "replay").drop(["ranker"]))


def test_findings_about_rows_are_warnings_at_the_line_of_the_user(nameless: posbias.ClickLog) -> None:
    with pytest.warns(posbias.PosbiasWarning, match="names no ranker.*Add window=") as caught:
        posbias.harvest(nameless, max_rank=4)
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name]


def test_notes_and_summary_show_them(nameless: posbias.ClickLog) -> None:
    with pytest.warns(posbias.PosbiasWarning):
        harvest = posbias.harvest(nameless, max_rank=4)
    fitted = posbias.CrossFit().fit(harvest)
    assert any("names no ranker" in note for note in fitted.notes_)
    assert "! The log names no ranker" in str(fitted.summary())


def test_notes_about_a_curve_are_warnings() -> None:
    harvest = posbias.harvest(
        posbias.ClickLog(posbias.simulate(posbias.World(queries=3, repeats=9, max_rank=3))), max_rank=3
    )
    with pytest.warns(posbias.PosbiasWarning, match="fewer than 30 page views") as caught:
        posbias.AllPairs().fit(harvest)
    assert {Path(warning.filename).name for warning in caught} == {Path(__file__).name}
    messages = [str(warning.message) for warning in caught]
    assert len(set(messages)) == len(messages) == 2, messages
    assert any("no rank" in message.lower() for message in messages), messages


def test_a_healthy_log_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        harvest = posbias.harvest(posbias.ClickLog(posbias.simulate(posbias.World(queries=500))))
        assert posbias.CrossFit().fit(harvest).notes_ == ()


def test_the_command_prints_a_finding_once(nameless: posbias.ClickLog, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(nameless.source, tmp_path / "log.parquet")
    command = [sys.executable, "-m", "posbias", "estimate", str(tmp_path / "log.parquet"), "--max-rank", "4"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (result.stdout + result.stderr).count("names no ranker") == 1
    assert "PosbiasWarning" not in result.stderr
