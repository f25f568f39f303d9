"""Files that are read beside a log, spoilt: curves, histories, rankings and candidates. As data, as in test_hostile.

Each case is a line: what is spoilt, and what must be said. None may become a number.
"""

from __future__ import annotations

import copy
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import posbias
from posbias.cli import cli

WORLD = posbias.World(queries=60, repeats=4, max_rank=4, seed=1)
TABLE = posbias.simulate(WORLD)
NAN, INF = float("nan"), float("inf")


def run(*args: Any) -> Result:
    return CliRunner().invoke(cli, list(map(str, args)))


def assert_told(done: Result, said: str) -> None:
    assert said in done.stderr
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


# ---- Curves


def record() -> dict[str, Any]:
    """The JSON of a sound curve of four ranks."""
    positions = [
        {
            "position": k,
            "propensity": 1 / k,
            "low": 0.9 / k if k > 1 else None,
            "high": 1.1 / k if k > 1 else None,
            "impressions": 100,
            "clicks": 10,
            "reason": None,
            "degrees_of_freedom": 50.0 if k > 1 else None,
        }
        for k in range(1, 5)
    ]
    return {
        "format": 2,
        "estimator": "all-pairs",
        "max_rank": 4,
        "level": 0.95,
        "interval_by": "jackknife",
        "weighting": "traffic",
        "positions": positions,
        "page_views": {"a": 100},
        "covariance": np.diag([0.0, 0.01, 0.01, 0.01]).tolist(),
        "notes": [],
        "rankers": ["a"],
        "version": "1",
    }


def at(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Put a value in the place of another, such as positions.1.low."""

    def spoil(made: dict[str, Any]) -> None:
        *path, last = [int(word) if word.isdecimal() else word for word in place.split(".")]
        found: Any = made
        for word in path:
            found = found[word]
        found[last] = value

    return spoil


CURVES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "not relative to rank 1": (at("positions.0.propensity", 0.5), "divide all of them by that of rank 1"),
    "nearly nothing": (at("positions.3.propensity", 1e-200), "where 0, or a number from 1e-100 to 1e+100"),
    "nearly everything": (at("positions.3.propensity", 1e300), "a number from 1e-100 to 1e+100"),
    "below 0": (at("positions.3.propensity", -0.1), "a finite number of 0 or more"),
    "an end without end": (at("positions.3.high", 1e308), "a number from 1e-100 to 1e+100"),
    "truth as a number": (at("positions.1.propensity", True), "a finite number"),
    "a text as a number": (at("positions.1.propensity", "0.5"), "a finite number"),
    "a variance without bound": (at("covariance.1.1", 1e10), "at most 1e+06, a covariance of log p"),
    "a negative variance": (at("covariance.1.1", -0.1), "a variance, which is 0 or more"),
    "a lopsided covariance": (at("covariance.1.2", 0.005), "is not symmetric"),
    "half a covariance": (at("covariance", [[0.0]]), "1 rows of [1] numbers where there are 4 positions"),
    "an unknown interval": (at("interval_by", "guess"), "interval_by is 'guess'"),
    "a list of intervals": (at("interval_by", ["jackknife"]), "interval_by is ['jackknife']"),
    "no degrees of freedom": (at("positions.1.degrees_of_freedom", None), "because it has a jackknife interval"),
    "degrees below 1": (at("positions.1.degrees_of_freedom", 0.5), "a finite number of 1 or more"),
    "no interval but degrees": (at("positions.0.degrees_of_freedom", 5.0), "because it has no jackknife interval"),
    "level 95": (at("level", 95), "level is 95 where a share between 0 and 1"),
    "level null": (at("level", None), "both are known, or both null"),
    "ranks exchanged": (lambda made: made["positions"].reverse(), "not in increasing order"),
    "a rank beyond the last": (at("positions.3.position", 5), "positions[3].position is 5"),
    "a million ranks": (at("max_rank", 10**6), "max_rank is 1000000"),
    "clicks above impressions": (at("positions.2.clicks", 101), "101 clicks on 100 impressions"),
    "2^63 impressions": (at("positions.2.impressions", 2**63), "impressions is 9223372036854775808"),
    "rankers of others": (at("rankers", ["b"]), "rankers is ['b']"),
    "by a text": (at("by", "device"), "by is 'device' where a list"),
    "a note that is none": (at("notes", [None]), "notes[0] is None"),
    "a format to come": (at("format", 3), "it has format 3 and this posbias reads up to 2"),
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pq.write_table(TABLE, "log.parquet")
    Path("sound.json").write_text(json.dumps(record()))
    return tmp_path


@pytest.mark.parametrize("name", CURVES)
def test_a_damaged_curve_is_reported_by_every_reader(name: str, here: Path) -> None:
    spoil, said = CURVES[name]
    made = copy.deepcopy(record())
    spoil(made)
    Path("curve.json").write_text(json.dumps(made))
    with pytest.raises(posbias.CurveError, match="is not that of a curve"):
        posbias.Curve.from_dict(made)
    assert_told(run("compare", "sound.json", "curve.json"), said)
    assert_told(run("weights", "log.parquet", "--estimate", "curve.json", "-o", "w.parquet"), said)
    assert_told(run("history", "add", "h.parquet", "curve.json", "--date", "2026-03-01"), said)
    assert sorted(path.name for path in here.iterdir()) == ["curve.json", "log.parquet", "sound.json"]


def test_the_sound_curve_is_read(here: Path) -> None:
    assert run("compare", "sound.json", "sound.json").exit_code == 0
    assert run("weights", "log.parquet", "--estimate", "sound.json", "-o", "w.parquet").exit_code == 0


def test_a_rank_with_propensity_0_is_fine_without_clicks() -> None:
    made = record()
    made["positions"][3] |= {"propensity": 0.0, "low": None, "high": None, "degrees_of_freedom": None}
    clicked = pa.compute.if_else(pa.compute.equal(TABLE["position"], 4), 0, TABLE["clicked"])
    table = TABLE.set_column(TABLE.column_names.index("clicked"), "clicked", clicked)
    curve = posbias.Curve.from_dict(made)
    weights = posbias.ips_weights(posbias.ClickLog(table), curve, cap=None).table["weight"].to_numpy()
    assert np.isfinite(weights).all()
    with pytest.raises(posbias.CurveError, match="propensity of rank 4 is 0"):
        posbias.ips_weights(posbias.ClickLog(TABLE), curve, cap=None)


def test_a_comparison_is_of_numbers_however_wide_its_intervals(here: Path) -> None:
    made = record()
    made["covariance"] = np.diag([0.0, 1e6, 1e6, 1e6]).tolist()
    for position in made["positions"][1:]:
        position["degrees_of_freedom"] = 1
    Path("wide.json").write_text(json.dumps(made))
    done = run("compare", "sound.json", "wide.json", "--level", "0.999999999999", "--json")
    assert done.exit_code == 0
    assert all(np.isfinite(one["high"]) for one in json.loads(done.stdout)["differences"])


# ---- Histories


def history() -> pa.Table:
    curve = posbias.Curve.from_dict(record())
    posbias.History().add(curve, "2026-03-01").add(curve, "2026-03-02").save("history.parquet")
    return pq.ParquetFile("history.parquet").read()


def cell(name: str, value: Any, row: int = 1) -> Callable[[pa.Table], pa.Table]:
    """Put a value into a row of a history; in what is said of a day, into all of them."""

    def spoil(table: pa.Table) -> pa.Table:
        values = table.column(name).to_pylist()
        values = [value] * len(values) if row < 0 else [value if i == row else old for i, old in enumerate(values)]
        field = table.schema.field(name)
        return table.set_column(table.column_names.index(name), field, pa.array(values, field.type))

    return spoil


FAR = pa.array([2**31 - 1] * 8, pa.int32()).view(pa.date32())

HISTORIES: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "a finding that is none": (cell("findings", [None], -1), "have a missing text"),
    "a finding of one rank": (cell("findings", ["x"]), "differ in estimator, level or findings"),
    "a day beyond time": (lambda table: table.set_column(0, table.schema.field("date"), FAR), "an invalid date"),
    "a day twice": (lambda table: pa.concat_tables([table, table]), "not in order, or one occurs twice"),
    "level 7": (cell("level", 7.0, -1), "the level of 2026-03-01 is 7.0 where a share between 0 and 1"),
    "level NaN": (cell("level", NAN, -1), "differ in|where a share"),
    "no level": (cell("level", None, -1), "without a level"),
    "NaN": (cell("propensity", NAN), "rank 2 of 2026-03-01.propensity is nan where a finite number"),
    "infinity": (cell("high", INF), "high is inf where a finite number"),
    "1e300": (cell("propensity", 1e300), "propensity is 1e.300 where 0, or a number from"),
    "below 0": (cell("low", -0.1), "low is -0.1 where a finite number of 0 or more"),
    "not relative to rank 1": (cell("propensity", 0.5, 0), "propensity 0.5, and all are relative to that of rank 1"),
    "half an interval": (cell("low", None), "an interval without a lower end"),
    "an interval of nothing": (cell("propensity", None), "without a level or a propensity"),
    "ends exchanged": (cell("low", 9.0), "lower end 9.0 is above its upper end"),
    "rank 0": (cell("rank", 0, 0), "rank 0 of 2026-03-01.position is 0 where a whole number, 1 to"),
    "rank 2^62": (cell("rank", 2**62, 3), "rank 4611686018427387904 of 2026-03-01.position is .* where a whole number"),
    "ranks exchanged": (cell("rank", 4), "not in order, or one occurs twice"),
    "clicks above impressions": (cell("clicks", 101), "101 clicks on 100 impressions"),
    "no clicks": (cell("clicks", None), "column clicks has no value in 1 rows"),
    "a column less": (lambda table: table.drop_columns(["reason"]), "it has the columns"),
    "another type": (lambda table: table.cast(table.schema.set(4, pa.field("rank", pa.int32()))), "have another type"),
    "no metadata": (lambda table: table.replace_schema_metadata(None), "does not say that it is a history"),
    "a format to come": (lambda table: table.replace_schema_metadata({"posbias.history": "2"}), "it has format 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_a_damaged_history_is_reported_and_not_changed(name: str, here: Path) -> None:
    spoil, said = HISTORIES[name]
    pq.write_table(spoil(history()), "history.parquet")
    before = Path("history.parquet").read_bytes()
    with pytest.raises(posbias.CurveError, match=said):
        posbias.History.load("history.parquet")
    assert_told(run("history", "show", "history.parquet"), "is not a history, or is damaged")
    assert_told(run("history", "add", "history.parquet", "sound.json", "--date", "2026-03-03"), "is not a history")
    assert Path("history.parquet").read_bytes() == before


def test_a_mistyped_year_makes_a_line_and_not_a_million(here: Path) -> None:
    for day in ("0206-03-01", "2026-03-01", "2026-03-04"):
        assert run("history", "add", "h.parquet", "sound.json", "--date", day).exit_code == 0
    lines = run("history", "show", "h.parquet").stdout.splitlines()
    assert len(lines) == 7
    assert "missing, and 664,740 days after it" in lines[2]
    assert [line.split() for line in lines[4:6]] == [[f"2026-03-0{n}", "–", "missing"] for n in (2, 3)]


# ---- Rankings to judge, and candidates

PAIRS = TABLE.group_by(["query_id", "doc_id"]).aggregate([("position", "min")])
PAIRS = PAIRS.rename_columns(["query_id", "doc_id", "score"])


def scored(*values: Any) -> pa.Table:
    every = [values[i % len(values)] for i in range(len(PAIRS))]
    return PAIRS.set_column(2, "score", pa.array(every))


def first_id(column: str, values: Callable[[list[Any]], Any]) -> pa.Table:
    return PAIRS.set_column(PAIRS.column_names.index(column), column, pa.array(values(PAIRS[column].to_pylist())))


RANKINGS: dict[str, tuple[pa.Table, str]] = {
    "one score for all": (scored(1.5), "the same: it ranks no document above another"),
    "infinite scores": (scored(INF), "the same: it ranks no document above another"),
    "NaN": (scored(1.0, 2.0, NAN), "NaN or a value that is not a number"),
    # What a Parquet file says of itself leaves NaN out: such scores would all be 1.
    "NaN beside one number": (scored(1.0, NAN), "NaN or a value that is not a number"),
    "words": (scored("high", "low"), "NaN or a value that is not a number"),
    "nothing": (scored(None), "no value in column 'score'"),
    "truths": (scored(True, False), "is BOOLEAN; numbers to rank by were expected"),
    "days": (scored(datetime.date(2026, 3, 1)), "is DATE; numbers to rank by were expected"),
    "times": (scored(datetime.datetime(2026, 3, 1)), "is TIMESTAMP; numbers to rank by were expected"),
    "bytes": (scored(b"1", b"2"), "is BLOB; numbers to rank by were expected"),
    "lists": (scored([1]), "; single values were expected"),
    "structures": (scored({"x": 1}), "; single values were expected"),
    "no rows": (PAIRS.slice(0, 0), "has no row"),
    "no scores": (PAIRS.drop_columns(["score"]), "neither a column 'score' nor a column 'rank'"),
    "score and rank": (PAIRS.append_column("rank", PAIRS["score"]), "has both a score"),
    "no documents": (PAIRS.drop_columns(["doc_id"]), "has no column 'doc_id'"),
    "pairs twice": (pa.concat_tables([PAIRS, PAIRS]), "more than once"),
    "pairs of others": (first_id("doc_id", lambda old: [d + 10**6 for d in old]), "only 0.0% of the clicked documents"),
    "queries of fractions": (first_id("query_id", lambda old: list(map(float, old))), "stored as a fraction"),
    "queries of none": (first_id("query_id", lambda old: [None, *old[1:]]), "have no query or no document"),
    "queries of lists": (first_id("query_id", lambda old: [[q] for q in old]), "; single values were expected"),
}  # fmt: skip


@pytest.mark.parametrize("name", RANKINGS)
def test_a_damaged_ranking_is_reported(name: str, here: Path) -> None:
    table, said = RANKINGS[name]
    pq.write_table(table, "ranking.parquet")
    assert_told(run("evaluate", "log.parquet", "--ranking", "ranking.parquet", "--max-rank", 4), said)


CANDIDATES: dict[str, tuple[pa.Table, str]] = {
    "no rows": (PAIRS.slice(0, 0), "The candidates are empty"),
    "no documents": (PAIRS.drop_columns(["doc_id"]), "The candidates have no column 'doc_id'"),
    "queries of none": (first_id("query_id", lambda old: [None, *old[1:]]), "have no value in 'query_id'"),
    "queries of words": (first_id("query_id", lambda old: [f"q{q}" for q in old]), "not written as an id of the log"),
    "queries of halves": (first_id("query_id", lambda old: [q + 0.5 for q in old]), "stored as a fraction"),
    "queries of NaN": (first_id("query_id", lambda old: [NAN for q in old]), "stored as a fraction"),
    "queries of lists": (first_id("query_id", lambda old: [[q] for q in old]), "not written as an id of the log"),
}  # fmt: skip


@pytest.mark.parametrize("name", CANDIDATES)
def test_damaged_candidates_are_reported(name: str, here: Path) -> None:
    table, said = CANDIDATES[name]
    pq.write_table(table, "all.parquet")
    done = run("weights", "log.parquet", "--estimate", "sound.json", "--candidates", "all.parquet", "-o", "w.parquet")
    assert_told(done, said)
    assert not Path("w.parquet").exists()
