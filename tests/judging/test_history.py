"""The script of docs/nightly.md, night by night: an alarm on each night that has one, and on no other."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from scipy.special import stdtr

import posbias
from posbias._arrays import FloatArray
from posbias._stats import t_quantile
from posbias.cli import cli
from posbias.curves.curve import Position
from posbias.judging.history import CHECK_LEVEL, Day
from tests.support import ROOT

SCRIPT = ROOT / "examples" / "nightly.py"
FIRST = date(2026, 3, 1)


class Nights:
    """A folder of logs and what the script made of them."""

    def __init__(self, folder: Path, reference: tuple[str, str] | None = None, queries: int = 2500) -> None:
        self.folder = folder
        self.queries = queries
        self.script = folder / "nightly.py"
        text = SCRIPT.read_text("utf-8")
        assert "REFERENCE = None\n" in text
        self.script.write_text(text.replace("REFERENCE = None", f"REFERENCE = {reference}"), "utf-8")

    def run(self, number: int, **changed: object) -> tuple[int, str]:
        """Simulate the log of a day and run the script on it; return its exit code and output."""
        log = self.folder / "log.parquet"
        world = posbias.World(queries=self.queries, repeats=4, seed=number, **changed)  # type: ignore[arg-type]
        pq.write_table(posbias.simulate(world), log)
        args = [str(self.script), str(self.folder), str(FIRST + timedelta(days=number)), str(log)]
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
                runpy.run_path(str(self.script), run_name="__main__")
        # A text is what the interpreter says on stderr before it exits with 1.
        return (1, str(stop.value.code)) if stop.value.code else (0, "")

    @property
    def history(self) -> posbias.History:
        return posbias.History.load(self.folder / "history.parquet")


def test_the_script_is_short_and_cron_can_run_it() -> None:
    assert len(SCRIPT.read_text("utf-8").splitlines()) <= 54


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


@pytest.mark.long
def test_a_lasting_change_raises_an_alarm_on_each_of_the_next_seven_nights(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    assert [nights.run(number)[0] for number in range(4)] == [0] * 4
    # The night of the change and the seven after it are compared with the week before; then the new curve is the usual.
    codes = [nights.run(number, eta=0.75)[0] for number in range(4, 14)]
    assert codes == [1] * 8 + [0] * 2


@pytest.mark.long
def test_a_slow_drift_away_from_the_reference_raises_an_alarm(tmp_path: Path) -> None:
    nights = Nights(tmp_path, reference=(str(FIRST + timedelta(days=2)), str(FIRST + timedelta(days=7))))
    assert [nights.run(number)[0] for number in range(15)] == [0] * 15
    drifting = [nights.run(number, eta=1 + 0.02 * (number - 14)) for number in range(15, 24)]
    alarms = [output for _, output in drifting]
    assert any(output.startswith("drift: The curves differ") for output in alarms), alarms


def days_of(etas: list[float], *, spread: float = 0.0, seed: int = 0, window: int = 1) -> posbias.History:
    """Return a history of made-up days: log p is −η log k with the errors of 10,000 page views a day.

    A curve is that of the last days, as many as `window`.
    """
    rng = np.random.default_rng(seed)
    logs, errors = np.log(np.arange(2, 11)), np.linspace(0.027, 0.116, 9)
    # Errors of one day have something in common.
    degrees, quantile = 150.0, float(t_quantile(np.array([150.0]), 0.975)[0])
    days = []
    singles: list[FloatArray] = []
    for number, eta in enumerate(etas):
        noise = np.sqrt(0.2) * rng.standard_normal() + np.sqrt(0.8) * rng.standard_normal(9)
        singles.append(-(eta + spread * rng.standard_normal()) * logs + errors * noise)
        own = singles[-window:]
        x = np.mean(own, axis=0)
        half = quantile * errors * np.sqrt(rng.chisquare(degrees, 9) / degrees / len(own))
        ends = [(float(np.exp(v)), float(np.exp(v - h)), float(np.exp(v + h))) for v, h in zip(x, half, strict=True)]
        ranks = [Position(k, *each, 10_000, 100, None, degrees) for k, each in enumerate(ends, start=2)]
        first = Position(1, 1.0, 1.0, 1.0, 10_000, 5_000, None)
        days.append(Day(FIRST + timedelta(days=number), "cross-fit", 0.95, (first, *ranks)))
    return posbias.History(tuple(days))


REFERENCE = (FIRST, FIRST + timedelta(days=13))


def first_alarm(history: posbias.History, start: int = 21) -> int | None:
    """Return the first night after the reference period on which the last seven days differ from it."""
    ends = range(start, len(history.days) + 1)
    return next((end for end in ends if posbias.History(history.days[:end]).check(REFERENCE).differs), None)


@pytest.mark.parametrize(("spread", "share"), [(0.0, 0.01), (0.03, 0.05)])
def test_few_histories_without_a_change_have_an_alarm_in_90_nights(spread: float, share: float) -> None:
    """The check in arrays, for many histories at once: made-up days as in `days_of`, checked on each of 90 nights."""
    rng = np.random.default_rng(0)
    histories, nights, logs, errors = 1000, 110, np.log(np.arange(2, 11)), np.linspace(0.027, 0.116, 9)
    noise = np.sqrt(0.2) * rng.standard_normal((histories, nights, 1))
    noise = noise + np.sqrt(0.8) * rng.standard_normal((histories, nights, 9))
    x = errors * noise + spread * logs * rng.standard_normal((histories, nights, 1))
    known = (errors * np.sqrt(rng.chisquare(150, x.shape) / 150)) ** 2
    mean, variance = x[:, :14].mean(axis=1), known[:, :14].sum(axis=1) / 14**2
    squares = ((x[:, :14] - mean[:, None]) ** 2 / known[:, :14]).sum(axis=1)
    inflation = np.maximum(1.0, np.maximum(squares / 13, squares.sum(axis=1, keepdims=True) / (13 * 9)))
    alarmed = np.zeros(histories, dtype=bool)
    for end in range(21, nights + 1):
        difference = x[:, end - 7 : end].mean(axis=1) - mean
        error = np.sqrt(inflation * (variance + known[:, end - 7 : end].sum(axis=1) / 7**2))
        alarmed |= (9 * 2 * stdtr(1000.0, -np.abs(difference) / error) < 1 - CHECK_LEVEL).any(axis=1)
    assert alarmed.mean() <= share


@pytest.mark.long
@pytest.mark.parametrize(("target", "share"), [(1.18, 1.0), (1.1, 0.9)])
def test_a_slow_drift_is_found(target: float, share: float) -> None:
    drift = [1.0] * 21 + [1 + (target - 1) * min(night, 9) / 9 for night in range(1, 22)]
    alarms = [first_alarm(days_of(drift, seed=seed)) for seed in range(10)]
    assert sum(alarm is not None for alarm in alarms) >= 10 * share
    if target == 1.18:
        assert np.median([alarm for alarm in alarms if alarm is not None]) <= 21 + 9


def test_a_check_is_the_comparison_of_two_weighted_means() -> None:
    history = days_of([1.0] * 5 + [1.2] * 2, seed=3)
    found = history.check((FIRST, FIRST + timedelta(days=4)), days=2, level=0.99)
    [second] = [d for d in found.differences if d.rank == 3]
    x = np.log([[p.propensity for p in day.positions][2] for day in history.days])
    halves = [np.log(day.positions[2].high / day.positions[2].low) / 2 for day in history.days]  # type: ignore[operator]
    errors = np.array(halves) / t_quantile(np.array([150.0]), 0.975)[0]
    value = x[5:].mean() - x[:5].mean()
    assert second.ratio == pytest.approx(np.exp(value))
    spread = np.array([np.log([day.positions[k].propensity for day in history.days[:5]]) for k in range(1, 10)])
    own = (
        np.array(
            [
                [np.log(d.positions[k].high / d.positions[k].low) / 2 for d in history.days[:5]]  # type: ignore[operator]
                for k in range(1, 10)
            ]
        )
        / t_quantile(np.array([150.0]), 0.975)[0]
    )
    squares = ((spread - spread.mean(axis=1, keepdims=True)) / own) ** 2
    inflation = max(1.0, squares.sum() / (9 * 4), squares[1].sum() / 4)
    error = np.sqrt(inflation * ((errors[5:] ** 2).sum() / 4 + (errors[:5] ** 2).sum() / 25))
    assert second.low is not None
    assert np.log(second.ratio / second.low) == pytest.approx(2.6 * error, rel=0.03)  # type: ignore[operator]
    assert "2026-03-01 to 2026-03-05 (5 curves); last 2 days: 2026-03-06 to 2026-03-07 (2 curves)" in found.method


def test_curves_that_share_data_are_not_used_twice() -> None:
    history = days_of([1.0] * 30)
    daily, weekly = history.check(REFERENCE, days=14), history.check(REFERENCE, days=14, span=7)
    assert "2026-03-07 to 2026-03-14 (2 curves); last 14 days: 2026-03-23 to 2026-03-30 (2 curves)" in weekly.method
    width = [np.log(found.differences[0].high / found.differences[0].low) for found in (daily, weekly)]  # type: ignore[operator]
    assert width[1] / width[0] == pytest.approx(np.sqrt(7), rel=0.3)


@pytest.mark.parametrize("spread", [0.0, 0.03])
def test_the_span_of_curves_is_found(spread: float) -> None:
    """Measured over 60 histories of 30 days each: days and weeks are told apart in all of them."""
    for window in (1, 7):
        spans = [days_of([1.0] * 30, seed=seed, spread=spread, window=window).span() for seed in range(20)]
        assert spans == [window] * 20
    # Nothing to go by: few days, weeks that do not overlap, and days without intervals.
    assert days_of([1.0] * 3, window=7).span() == 1
    daily = days_of([1.0] * 8)
    weeks = posbias.History(tuple(replace(d, date=FIRST + timedelta(days=7 * n)) for n, d in enumerate(daily.days)))
    assert weeks.span() == 1
    bare = [replace(day, level=None) for day in daily.days]
    assert posbias.History(tuple(bare)).span() == 1


def test_weeks_that_overlap_raise_no_false_alarm() -> None:
    histories = [days_of([1.0] * 30, seed=seed, window=7) for seed in range(20)]
    assert sum(history.check(REFERENCE, span=1).differs for history in histories) > 4
    found = [history.check(REFERENCE) for history in histories]
    assert not any(one.differs for one in found)
    assert "curves of neighbouring days share data, so those used are 7 days apart" in found[0].method
    given = days_of([1.0] * 30, window=7).check(REFERENCE, span=7)
    assert [d.p_value for d in given.differences] == [d.p_value for d in found[0].differences]


def test_a_check_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    history = days_of([1.0] * 20)
    other = posbias.History((replace(history.days[0], estimator="all-pairs"), *history.days[1:]))
    for checked, given, message in (
        (history, {"reference": ("2025-01-01", "2025-02-01")}, "no curve from 2025-01-01 to 2025-02-01"),
        (history, {"reference": ("2026-03-01", "2026-03-14"), "days": 8}, "which is in the reference period"),
        (
            history,
            {"reference": ("2026-03-01", "2026-03-15"), "span": 7, "days": 4},
            "which is in the reference period",
        ),
        (history, {"reference": "2026-03-01"}, "must be two days"),
        (history, {"reference": None}, "must be two days, the first and the last, such as"),
        (history, {"reference": ("2026-03-01", "soon")}, "Expected a day such as"),
        (history, {"reference": ("2026-03-01", "2026-03-05"), "days": 0}, "days"),
        (other, {"reference": ("2026-03-01", "2026-03-05")}, "different estimators or levels"),
        (posbias.History(), {"reference": ("2026-03-01", "2026-03-05")}, "no days yet"),
    ):
        with pytest.raises(posbias.PosbiasError, match=message):
            checked.check(**given)  # type: ignore[arg-type]
    path = tmp_path / "history.parquet"
    days_of([1.0] * 20 + [1.4] * 7).save(path)
    words = ["history", "check", str(path), "--reference", "2026-03-01", "2026-03-14"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 1
    assert " ".join(done.stdout.split()).startswith(
        "The curves differ (p < 0.0002, alarm below 0.0002): from reference to last 7 days, rank 2 by −2"
    )
    assert "reference: 2026-03-01 to 2026-03-14 (14 curves)" in " ".join(done.stdout.split())
    assert json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)["differs"] is True
    assert "posbias history check" in CliRunner().invoke(cli, ["history", "show", str(path)]).stderr
    days_of([1.0] * 27).save(path)
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0
    assert ", alarm below 0.0002)." in " ".join(done.stdout.split())


def test_the_table_has_intervals_and_marks_changes() -> None:
    lines = days_of([1.0] * 8 + [0.4]).to_text().splitlines()
    assert lines[10] == "            * also at ranks 3 and 5 to 9"
    assert [*map(int, re.findall(r"rank (\d+) \(interval\)", lines[0]))] == [2, 4, 10]
    assert not any("*" in line for line in lines[1:9])
    assert lines[9].count("*") == 3
    assert lines[-2] == "* differs at the 99.98% level from the 7 days before the change. After 7 days"
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("window", [1, 7])
def test_every_day_of_a_change_is_marked_until_it_is_a_week_old(window: int) -> None:
    marked = days_of([1.0] * 20 + [1.6] * 20, window=window)._changed_ranks()
    nights = [number for number, ranks in enumerate(marked) if ranks]
    assert set(range(24, 27)) <= {*nights}
    assert nights[0] >= 20
    if window == 1:
        assert nights == [*range(20, 28)]
    # One odd day is marked alone.
    odd = days_of([1.0] * 20 + [1.6] + [1.0] * 9)._changed_ranks()
    assert [number for number, ranks in enumerate(odd) if ranks] == [20]


def test_an_alarm_names_first_what_changed_most_and_most_certainly() -> None:
    before, after = (days_of([eta] * 7, seed=seed) for eta, seed in ((1.0, 1), (1.35, 2)))
    moved = posbias.History((*before.days, *(replace(d, date=d.date + timedelta(days=9)) for d in after.days)))
    found = moved.check((FIRST, FIRST + timedelta(days=6)))
    named = [int(word) for word in re.findall(r"rank (\d+) by", found.verdict)]
    least = {d.rank: d.before * (1 - d.high) for d in found.differences if d.before is not None and d.high is not None}
    assert named == sorted(least, key=lambda rank: -least[rank])[:4]
    assert named[0] < 4


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


def test_no_day_is_lost_when_six_processes_add_days(tmp_path: Path) -> None:
    curve().save(tmp_path / "curve.json")
    path = {"PYTHONPATH": str(Path(posbias.__file__).parents[1])}
    days = [f"2026-03-{number:02}" for number in range(1, 7)]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "posbias", "history", "add", "h.parquet", "curve.json", "--date", day],
            cwd=tmp_path,
            env=os.environ | path,
            stderr=subprocess.PIPE,
        )
        for day in days
    ]
    assert [process.communicate(timeout=60)[1:] and process.returncode for process in started] == [0] * 6
    assert [str(day.date) for day in posbias.History.load(tmp_path / "h.parquet").days] == days
    assert sorted(os.listdir(tmp_path)) == ["curve.json", "h.parquet"]


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


def test_a_finding_of_every_day_is_printed_once() -> None:
    history = posbias.History()
    for day, findings in enumerate((["always", "once"], ["always"], ["always"]), start=1):
        history = history.add(curve(), f"2026-03-{day:02}", findings)
    text = history.to_text()
    assert text.count("always") == 1
    assert "! Every day: always" in text
    assert text.count("once") == 1
