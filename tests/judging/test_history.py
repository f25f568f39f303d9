"""The script of docs/nightly.md, night by night: an alarm on each night that has one, and on no other."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import posbias
from posbias.cli import cli
from tests.support import ROOT

SCRIPT = ROOT / "examples" / "nightly.py"
FIRST = date(2026, 3, 1)


class Nights:
    """A folder of logs and what the script made of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, number: int, **changed: object) -> tuple[int, str]:
        """Simulate the log of a day and run the script on it; return its exit code and output."""
        log = self.folder / "log.parquet"
        pq.write_table(posbias.simulate(posbias.World(queries=2500, repeats=4, seed=number, **changed)), log)
        args = [str(SCRIPT), str(self.folder), str(FIRST + timedelta(days=number)), str(log)]
        return self.in_process(args) if number else self.by_itself(args)

    def by_itself(self, args: list[str]) -> tuple[int, str]:
        """Run the script as cron does."""
        path = {"PYTHONPATH": str(Path(posbias.__file__).parents[1])}
        done = subprocess.run(
            [sys.executable, *args], capture_output=True, text=True, timeout=300, env=os.environ | path
        )
        assert done.stdout == ""
        return done.returncode, done.stderr.strip()

    def in_process(self, args: list[str]) -> tuple[int, str]:
        """Run the script where everything is imported already."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", args)
            with pytest.raises(SystemExit) as stop:
                runpy.run_path(str(SCRIPT), run_name="__main__")
        # A text is what the interpreter says on stderr before it exits with 1.
        return (1, str(stop.value.code)) if stop.value.code else (0, "")

    @property
    def history(self) -> posbias.History:
        return posbias.History.load(self.folder / "history.parquet")


def test_the_script_is_short_and_cron_can_run_it() -> None:
    assert len(SCRIPT.read_text("utf-8").splitlines()) <= 40


@pytest.mark.long
def test_each_night_raises_only_its_own_alarm(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    quiet = (0, "")
    assert [nights.run(number) for number in range(3)] == [quiet] * 3
    # A new layout of the page: users look further down.
    code, output = nights.run(3, eta=0.6)
    assert (code, output.split(":")[0]) == (1, "curve")
    assert "from last week to today, rank" in output
    # The next day is as before, and is not compared with that one.
    assert nights.run(4) == quiet
    code, output = nights.run(5, traffic=(54, 46))
    assert (code, output.split(":")[0]) == (1, "sample-ratio-mismatch")
    assert "\n" not in output
    # The seventh day comes late: after the eighth.
    assert nights.run(7) == (1, "missing: no log of 2026-03-07")
    assert nights.history.missing == (date(2026, 3, 7),)
    without = nights.history.day("2026-03-08")
    assert nights.run(6) == quiet
    healed = nights.history
    assert [day.date.day for day in healed.days] == list(range(1, 9))
    assert healed.missing == ()
    # The week of the eighth has the late day in it, and no longer reports a missing one.
    late = healed.day("2026-03-08")
    assert without is not None
    assert late is not None
    assert late.positions[0].impressions - without.positions[0].impressions == 10_000
    assert (without.findings, late.findings) == (("missing: no log of 2026-03-07",), ())
    assert [day.date.day for day in healed.days if day.findings] == [4, 6]


def curve(seed: int = 0) -> posbias.Curve:
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200, max_rank=3, seed=seed)))
    return posbias.CrossFit().fit(posbias.harvest(log, max_rank=3)).curve()


def test_days_are_in_order_and_a_day_is_replaced(tmp_path: Path) -> None:
    one, other = curve(0), curve(1)
    kept = posbias.History().add(one, "2026-03-02").add(other, "2026-02-27", ["a\nb"]).add(one, date(2026, 3, 1))
    assert [str(day.date) for day in kept.days] == ["2026-02-27", "2026-03-01", "2026-03-02"]
    assert list(map(str, kept.missing)) == ["2026-02-28"]
    path = tmp_path / "history.parquet"
    kept.save(path)
    assert posbias.History.load(path) == kept
    assert kept.add(one, "2026-03-02") == kept
    replaced = kept.add(other, "2026-03-02")
    assert replaced != kept
    assert replaced.days[:2] == kept.days[:2]
    assert replaced.days[2].positions == other.positions
    assert max(map(len, kept.to_text().splitlines())) <= 80
    assert "\x1b" not in kept.add(one, "2026-03-04", ["\x1b[2J"]).to_text()


def test_a_change_of_the_estimator_is_reported(tmp_path: Path) -> None:
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200, max_rank=3, segments={"x": 1.0, "y": 0.5})))
    harvest = posbias.harvest(log, max_rank=3, by=["device"])
    path = tmp_path / "history.parquet"
    made = {
        "2026-03-01": posbias.CrossFit(),
        "2026-03-02": posbias.CrossFit(),
        "2026-03-03": posbias.AllPairs(),
        "2026-03-04": posbias.AllPairs(level=0.8),
        "2026-03-05": posbias.AllPairs(level=0.8),
    }
    noted = {}
    for day, estimator in made.items():
        (tmp_path / "curve.json").write_text(json.dumps(estimator.fit(harvest).curve().to_dict()))
        done = CliRunner().invoke(cli, ["history", "add", str(path), str(tmp_path / "curve.json"), "--date", day])
        assert done.exit_code == 0, done.output
        assert "not the curves of the 2 segments" in done.stderr
        noted[day] = "Do not compare" in done.stderr
    assert [day for day, note in noted.items() if note] == ["2026-03-03", "2026-03-04"]
    kept = posbias.History.load(path)
    assert [str(day.date) for day in kept.changes] == ["2026-03-03", "2026-03-04"]
    output = " ".join(CliRunner().invoke(cli, ["history", "show", str(path)]).stdout.split())
    assert "cross-fit, 95% interval from 2026-03-01 on; all-pairs, 95% interval from 2026-03-03 on" in output
    assert "all-pairs, 80% interval from 2026-03-04 on." in output
    assert "Do not compare" not in posbias.History(kept.days[:2]).to_text()
    assert max(map(len, kept.to_text().splitlines())) <= 80


@pytest.mark.parametrize("day", ["2026-3-1", "yesterday", "", 7])
def test_an_invalid_day_is_refused(day: object) -> None:
    with pytest.raises(posbias.CurveError, match="Expected a day such as 2026-03-01"):
        posbias.History().add(curve(), day)  # type: ignore[arg-type]


def damaged(path: Path, name: str, values: list[object]) -> None:
    table = pq.read_table(path)
    place = table.schema.get_field_index(name)
    field = table.schema.field(place)
    import pyarrow as pa

    pq.write_table(table.set_column(place, field, pa.array(values, field.type)), path)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("rank", [1, 1, 2] * 2, "ranks of 2026-03-01 are not in order"),
        ("rank", [0, 1, 2] * 2, "rank 0 of 2026-03-01"),
        ("propensity", [1.0, np.nan, 0.3] * 2, "propensity is .* where a finite number of 0 or more was expected"),
        ("propensity", [1.0, -0.5, 0.3] * 2, "propensity is .* where a finite number of 0 or more was expected"),
        ("low", [9.0] * 6, "lower end 9.0 is above its upper end"),
        ("clicks", [-1] * 6, "clicks is -1 where a whole number"),
        ("clicks", [10**9] * 6, "1000000000 clicks on"),
        ("low", [None] * 6, "an interval without a lower end"),
        ("estimator", ["x", "y", "x"] * 2, "differ in estimator"),
        ("estimator", [None] * 6, "no value in 6 rows"),
        ("date", [date(2026, 3, 2)] * 3 + [date(2026, 3, 1)] * 3, "days are not in order"),
    ],
)
def test_a_file_that_was_edited_is_refused(name: str, values: list[object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "history.parquet"
    posbias.History().add(curve(), "2026-03-01").add(curve(), "2026-03-02").save(path)
    damaged(path, name, values)
    with pytest.raises(posbias.CurveError, match=message):
        posbias.History.load(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    pq.write_table(posbias.simulate(posbias.World(queries=5)), log)
    text = tmp_path / "text"
    text.write_text("no")
    for path, message in ((log, "does not say that it is a history"), (text, "cannot be read"), (tmp_path, "a folder")):
        with pytest.raises(posbias.CurveError, match=message):
            posbias.History.load(path)
    with pytest.raises(posbias.CurveError, match="There is no file"):
        posbias.History.load(tmp_path / "none")
    with pytest.raises(posbias.CurveError, match="does not say that it is a history"):
        posbias.History.load(log, new=True)
