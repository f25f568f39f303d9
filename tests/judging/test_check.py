"""`posbias.check` reports how it understood a log, and every problem with a count, an example and a remedy."""

from __future__ import annotations

import gzip
import json
import random
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import posbias
from posbias._text import printable, spelled
from posbias.cli import cli
from posbias.cli.options import as_flags
from posbias.engines import open_log
from posbias.findings import Finding
from posbias.harvesting.count import known_rankers
from posbias.harvesting.page_checks import find_repeats
from posbias.harvesting.row_checks import count_rows, profile_log
from posbias.judging.check import Check
from posbias.progress import silent
from posbias.simulation.simulate import rank
from posbias.sql.plan import QueryPlan

pytestmark = pytest.mark.usefixtures("each_engine")

Rows = list[dict[str, Any]]
WORLD = posbias.World(queries=40, repeats=6, max_rank=5, seed=2)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return posbias.simulate(WORLD)


@pytest.fixture
def rows(table: pa.Table) -> Rows:
    """The rows of a sound wide log, to be spoilt."""
    return table.to_pylist()


@pytest.fixture
def replayed(rows: Rows) -> Rows:
    return [{name: value for name, value in row.items() if not name.startswith("rank_")} for row in rows]


def check(source: Any, **names: Any) -> Check:
    source = pa.Table.from_pylist(source) if isinstance(source, list) else source
    return posbias.check(posbias.ClickLog(source, **names), max_rank=5)


def harvest(source: Any, **names: Any) -> posbias.Harvest:
    source = pa.Table.from_pylist(source) if isinstance(source, list) else source
    return posbias.harvest(posbias.ClickLog(source, **names), max_rank=5)


def only(found: Check, name: str) -> Finding:
    """The one problem of this kind; it must be reported in full."""
    named = [p for p in found.findings if p.code == name]
    assert len(named) == 1, [p.code for p in found.findings]
    problem = named[0]
    text = " ".join(found.to_text(as_flags).split())
    remedy = spelled(problem.remedy, as_flags)
    for part in (problem.message, problem.example or "", remedy, as_flags(problem.arguments)):
        assert " ".join(printable(part).split()) in text
    assert problem.remedy.endswith((".", "?"))
    return problem


# ---- What is understood


def test_a_sound_log(table: pa.Table) -> None:
    found = check(table)
    assert found.usable
    assert found.findings == ()
    assert found.layout == "wide"
    assert found.rows == len(table)
    assert found.rows_beyond == 0
    assert found.queries == 40
    assert found.page_views == harvest(table).page_views
    assert sum(found.page_views.values()) == 240
    assert [p.position for p in found.positions] == [1, 2, 3, 4, 5]
    for p in found.positions:
        at = table.filter(pa.compute.field("position") == p.position)
        assert (p.impressions, p.clicks) == (len(at), pa.compute.sum(at["clicked"]).as_py())
    pairs = {(r["query_id"], r["doc_id"]): (r["rank_a"], r["rank_b"]) for r in table.to_pylist()}
    assert found.documents == len(pairs)
    assert found.documents_at_several_ranks == sum(
        a is not None and b is not None and a != b for a, b in pairs.values()
    )


def test_the_text_lists_counts_and_a_verdict(table: pa.Table) -> None:
    text = str(check(table))
    assert "wide: a column for each ranker's rank" in text
    assert "rows        1,200" in text
    assert "page views  240" in text
    assert "rank  impressions  clicks  click rate\n   1          240" in text
    assert text.endswith("No problems found: the log can be used.")
    assert all(len(line) <= 100 for line in text.splitlines())


def test_rows_beyond_the_deepest_rank_are_reported(table: pa.Table) -> None:
    found = posbias.check(posbias.ClickLog(table), max_rank=3)
    assert found.rows_beyond == 480
    assert [p.position for p in found.positions] == [1, 2, 3]
    assert "480 of them beyond rank 3 (max rank) and not counted" in str(found)


@pytest.mark.parametrize(
    ("column", "values", "proxy"),
    [
        ("price", lambda doc: 7.5 * doc, "high_price"),
        ("unitPrice", lambda doc: 7 * doc, "high_unitPrice"),
        ('bm25 "score"', lambda doc: doc / 3, 'high_bm25 "score"'),
        ("grade", lambda doc: doc % 3, "grade"),
        ("click_score", lambda doc: doc / 3, None),
        ("price", lambda doc: 9, None),
        ("price", lambda doc: f"{doc} EUR", None),
        ("pricey", lambda doc: doc / 3, None),
    ],
)
def test_a_proxy_of_relevance_is_suggested(
    table: pa.Table, column: str, values: Callable[[int], Any], proxy: str | None
) -> None:
    log = table.append_column(column, pa.array([values(hash(doc) % 97) for doc in table["doc_id"].to_pylist()]))
    found = check(log)
    if proxy is None:
        assert found.findings == ()
        return
    finding = only(found, "possible-proxy")
    assert (finding.severity, found.usable) == ("info", True)
    named = dict(finding.arguments)
    assert named.pop("proxy") == proxy
    diagnosis = posbias.diagnose(posbias.ClickLog(log, **named), proxy=proxy, max_rank=5)
    assert any(other.code.endswith(("by-proxy", "proxy-not-tested")) for other in diagnosis.findings)
    # A log that is a query already cannot take another one.
    queried = posbias.check(posbias.ClickLog(log, sql="SELECT * FROM source"), max_rank=5)
    assert only(queried, "possible-proxy").arguments == ({} if "sql" in finding.arguments else finding.arguments)


def test_layouts(table: pa.Table, replayed: Rows) -> None:
    found = check(replayed)
    assert found.layout == "replay"
    assert [finding.code for finding in found.findings] == ["overlap-not-tested"]
    serving: dict[Any, set[str]] = {}
    for row in replayed:
        serving.setdefault(row["query_id"], set()).add(row["ranker"])
    assert found.queries_shared == sum(len(names) > 1 for names in serving.values())
    assert "served by several rankers" in str(found)
    found = check(replayed, rankings=rank(WORLD))
    assert (found.layout, found.findings, found.queries_shared) == ("long", (), None)
    found = check(posbias.simulate(WORLD, aggregated=True))
    assert found.findings == ()
    assert found.page_views == harvest(table).page_views
    assert "impressions=impressions, clicks=clicks" in " ".join(str(found).split())
    assert check(table, ranks="none").layout == "replay"


def test_page_views_without_their_ids(table: pa.Table) -> None:
    assert check(table.drop_columns(["impression_id"])).page_views == check(table).page_views


def test_json_has_every_attribute(table: pa.Table) -> None:
    printed = json.loads(json.dumps(check(table).to_dict()))
    assert set(printed) == {"usable", "version", *(f.name for f in fields(Check))}
    assert printed["positions"][0].keys() == {"position", "impressions", "clicks"}
    spoilt = json.loads(json.dumps(check(table, query="qid").to_dict()))
    assert spoilt["findings"][0].keys() == {
        *("code", "severity", "message", "count", "example", "evidence", "remedy", "add")
    }
    for name in printed:
        assert name in (Check.__doc__ or "") + (Check.to_dict.__doc__ or ""), f"{name} is not documented"


# ---- Rows that cannot be counted


@dataclass(frozen=True)
class Spoilt:
    """Three rows of a log that get a value, and the finding about them."""

    column: str
    value: Any
    name: str
    what: str
    remedy: str


SPOILT = {
    "null query": Spoilt("query_id", None, "null", "no value in column 'query_id'", "Leave such rows out"),
    "null doc": Spoilt("doc_id", None, "null", "no value in column 'doc_id'", "Leave such rows out"),
    "null ranker": Spoilt("ranker", None, "null", "no value in column 'ranker'", "Leave such rows out"),
    "null position": Spoilt("position", None, "null", "no value in column 'position'", "Leave such rows out"),
    "null click": Spoilt("clicked", None, "null", "no value in column 'clicked'", "COALESCE(clicked, 0)"),
    "fraction": Spoilt("position", 1.5, "not-a-position", "'position' that is not a whole number", "(position)"),
    "text": Spoilt("position", "top", "not-a-position", "'position' that is not a whole number", "(position)"),
    "nan": Spoilt("position", float("nan"), "not-a-position", "'position' that is not a whole number", "(position)"),
    "zero": Spoilt("position", 0, "zero-based-position", "positions seem to count from 0", "must count from 1"),
    "negative": Spoilt("position", -1, "negative-position", "a negative position", "Leave such rows out"),
    "click of 2": Spoilt("clicked", 2, "not-a-click", "neither 0 nor 1", "(impressions and clicks)"),
    "click of -1": Spoilt("clicked", -1, "not-a-click", "neither 0 nor 1", "(impressions and clicks)"),
    "half a click": Spoilt("clicked", 0.5, "not-a-click", "neither 0 nor 1", "(impressions and clicks)"),
    "click as text": Spoilt("clicked", "yes", "not-a-click", "neither 0 nor 1", "A click is 0 or 1, or true or false"),
}


@pytest.mark.parametrize("ending", ["arrow", "csv"])
@pytest.mark.parametrize("kind", SPOILT)
def test_rows_that_cannot_be_counted(kind: str, ending: str, replayed: Rows, tmp_path: Path) -> None:
    case = SPOILT[kind]
    as_text = isinstance(case.value, str)
    for row in replayed:
        row[case.column] = str(row[case.column]) if as_text else row[case.column]
    places = random.Random(1).sample(range(len(replayed)), 3)
    for place in places:
        replayed[place][case.column] = case.value
    source: Any = to_table(replayed, case.column)
    if ending == "csv":
        source = tmp_path / "log.csv"
        to_table(replayed, case.column).to_pandas().to_csv(source, index=False)
    found = check(source)
    # A NaN that pandas wrote is an empty field.
    problem = only(found, "null" if (kind, ending) == ("nan", "csv") else case.name)
    assert not found.usable
    assert problem.severity == "error"
    assert problem.count == 3
    assert f"3 of {len(replayed):,} rows have " in problem.message
    assert problem.example is not None
    assert {"query_id=", "doc_id=", "ranker=", "position=", "clicked="} == {
        part.split("=")[0] + "=" for part in problem.example.split(", ")
    }
    if (kind, ending) != ("nan", "csv"):
        assert case.what in problem.message
        assert case.remedy in problem.remedy
        shown = "null" if case.value is None else str(case.value)
        assert f"{case.column}={shown}".lower() in problem.example.lower()
    # The harvest refuses them in the same words.
    with pytest.raises(posbias.LogError) as refused:
        harvest(source)
    assert problem.message in str(refused.value)
    assert problem.remedy in str(refused.value)


def to_table(rows: Rows, spoilt: str) -> pa.Table:
    """An Arrow table; a column of numbers with a fraction in it is one of floats."""
    values = [row[spoilt] for row in rows]
    type_ = pa.float64() if any(isinstance(v, float) for v in values) else None
    table = pa.Table.from_pylist(rows)
    return table.set_column(table.column_names.index(spoilt), spoilt, pa.array(values, type_))


def test_every_problem_at_once(replayed: Rows) -> None:
    replayed[0]["query_id"] = None
    replayed[1]["position"] = 0
    replayed[2]["clicked"] = 3
    found = check(replayed)
    assert {"null", "zero-based-position", "not-a-click"} <= {p.code for p in found.findings}
    with pytest.raises(posbias.LogError, match="3 of 1,200 rows of the log cannot be used"):
        harvest(replayed)


def test_a_missing_document_id_is_harmless_if_ranks_are_known(rows: Rows) -> None:
    rows[5]["doc_id"] = None
    found = check(rows)
    assert only(found, "null").severity == "warning"
    assert found.usable
    assert harvest(rows).page_views == check(rows).page_views


@pytest.mark.parametrize("ranks_too", [True, False])
@pytest.mark.parametrize("ending", ["arrow", "csv"])
def test_the_suggested_option_fixes_zero_based_positions(
    ending: str, ranks_too: bool, rows: Rows, tmp_path: Path
) -> None:
    want = harvest(rows)
    for row in rows:
        row["position"] -= 1
        for name in ("rank_a", "rank_b") if ranks_too else ():
            row[name] = None if row[name] is None else row[name] - 1
    source: Any = pa.Table.from_pylist(rows)
    if ending == "csv":
        source.to_pandas().astype("Int64", errors="ignore").to_csv(tmp_path / "log.csv", index=False)
        source = tmp_path / "log.csv"
    problem = only(check(source), "zero-based-position")
    assert problem.count == 240
    flag, _, sql = as_flags(problem.arguments).partition(" ")
    assert flag == "--sql"
    mended = {"sql": sql.strip("'")}
    assert check(source, **mended).findings == ()
    np.testing.assert_array_equal(harvest(source, **mended).pairs().clicks, want.pairs().clicks)


@pytest.mark.parametrize("ranks_too", [True, False])
@pytest.mark.parametrize("shift", [1, 2])
def test_the_suggested_option_fixes_positions_that_begin_late(shift: int, ranks_too: bool, rows: Rows) -> None:
    want = harvest(rows)
    for row in rows:
        row["position"] += shift
        for name in ("rank_a", "rank_b") if ranks_too else ():
            row[name] = None if row[name] is None else row[name] + shift
    problem = only(check(rows), "no-first-position")
    assert problem.severity == "error"
    if not ranks_too:
        contradicted = only(check(rows), "contradicted-rank")
        assert contradicted.remedy.startswith(f"Positions begin at {1 + shift}. They must count from 1 like ranks")
        assert contradicted.arguments == problem.arguments
    assert check(rows, **problem.arguments).findings == ()
    np.testing.assert_array_equal(harvest(rows, **problem.arguments).pairs().clicks, want.pairs().clicks)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (lambda n: None, "has no value in any of 1,200 rows"),
        (lambda n: "me", "has the same value in all 1,200 rows"),
        (lambda n: f"row {n}", "has 1,200 values on 240 page views, so it is not who was assigned to a ranker"),
    ],
)
def test_a_column_that_is_no_unit_is_found(value: Callable[[int], str | None], what: str, rows: Rows) -> None:
    table = pa.Table.from_pylist(rows)
    users = pa.array([value(n) for n in range(len(rows))], pa.string())
    problem = only(check(table.append_column("user_id", users), unit="user_id"), "useless-unit")
    assert problem.message == f"The column 'user_id' {what}"
    assert problem.arguments == {"unit": "none"}
    page_views = pa.array([f"{row['impression_id'] // 2}" for row in rows])
    found = check(table.append_column("user_id", page_views), unit="user_id")
    assert "useless-unit" not in [finding.code for finding in found.findings]


def test_a_log_that_is_too_small_for_a_curve_is_found() -> None:
    tiny = posbias.simulate(posbias.World(queries=3, repeats=1))
    problem = only(check(tiny), "little-data")
    assert problem.message.startswith("The log has only 3 page views with ")
    assert "its intervals need 8 queries or more" in problem.remedy


@pytest.mark.parametrize("together", [True, False])
def test_a_window_without_two_rankers_is_named_as_the_cause(together: bool, replayed: Rows) -> None:
    for row in replayed:
        row["day"] = "2026-03-01" if together or row["ranker"] == "a" else "2026-03-02"
    log = posbias.ClickLog(pa.Table.from_pylist(replayed), window="day")
    found = posbias.check(log, max_rank=5)
    if together:
        assert not {"rankers-replaced", "no-disagreement"} & {finding.code for finding in found.findings}
        return
    problem = only(found, "rankers-replaced")
    assert problem.severity == "error"
    assert problem.message.startswith("None of 2 values of 'day' has page views of two rankers")
    assert "no-disagreement" not in [finding.code for finding in found.findings]
    with pytest.raises(posbias.PosbiasError, match="None of 2 values of 'day' has page views of two rankers"):
        posbias.CrossFit().fit(posbias.harvest(log, max_rank=5))


def test_aggregated_counts() -> None:
    rows = posbias.simulate(WORLD, aggregated=True).to_pylist()
    assert check(rows).findings == ()
    rows[0] |= {"clicks": 9, "impressions": 3}
    rows[1] |= {"clicks": -1}
    rows[2] |= {"impressions": None}
    found = check(rows)
    exceeding = only(found, "clicks-exceed-impressions")
    assert (exceeding.severity, exceeding.count) == ("error", 1)
    assert "impressions=3, clicks=9" in (exceeding.example or "")
    assert "not swapped" in exceeding.remedy
    assert [p.count for p in found.findings if p.code == "not-a-count"] == [1, 1]
    with pytest.raises(posbias.LogError, match="more clicks in 'clicks' than impressions in 'impressions'"):
        harvest(rows)


# ---- Page views


def test_one_result_twice_in_a_page_view(rows: Rows) -> None:
    clean = harvest(rows)
    again = [dict(row) for row in random.Random(0).sample(rows, 7)]
    # A copy may have missed the click.
    for row in again[:3]:
        row["clicked"] = 0
    problem = only(check([*rows, *again]), "duplicates")
    assert (problem.severity, problem.count, as_flags(problem.arguments)) == ("error", 7, "--duplicates drop")
    assert any(
        problem.example == f"impression_id={r['impression_id']}, query_id={r['query_id']}, doc_id={r['doc_id']}"
        for r in again
    )
    dropped = check([*rows, *again], duplicates="drop")
    assert dropped.findings == ()
    for layout in (None, "none"):
        one, other = harvest([*rows, *again], ranks=layout, duplicates="drop"), harvest(rows, ranks=layout)
        np.testing.assert_array_equal(one.impressions, other.impressions)
        np.testing.assert_array_equal(one.clicks, other.clicks)
        np.testing.assert_array_equal(one.pairs().clicks, other.pairs().clicks)
        np.testing.assert_array_equal(one.pairs().skips, other.pairs().skips)
    kept = posbias.harvest(posbias.ClickLog(pa.Table.from_pylist([*rows, *again])), max_rank=5, force=True)
    assert kept.impressions.sum() == clean.impressions.sum() + 7


def test_dropping_duplicates_needs_the_page_view(rows: Rows) -> None:
    renamed = [{("request" if n == "impression_id" else n): v for n, v in row.items()} for row in rows]
    with pytest.raises(posbias.LogError, match=r"Name the column of the page view.* Add impression=.request"):
        check(renamed, duplicates="drop")
    assert check(renamed, duplicates="drop", impression="request").findings == ()
    with pytest.raises(posbias.LogError, match="cannot be dropped from an aggregated log"):
        check(posbias.simulate(WORLD, aggregated=True), duplicates="drop")
    rows[0]["impression_id"] = None
    assert only(check(rows), "null").severity == "warning"
    assert only(check(rows, duplicates="drop"), "null").severity == "error"


def test_dropping_is_not_advised_where_most_rows_repeat(rows: Rows) -> None:
    """An id that many page views share: to drop would keep one of them."""
    problem = only(check([row | {"impression_id": 1} for row in rows]), "duplicates")
    assert problem.arguments == {}
    assert "name the column of the page view" in problem.remedy


def test_without_page_views_repeats_are_suspected(rows: Rows) -> None:
    bare = [{("request_id" if n == "impression_id" else n): v for n, v in row.items()} for row in rows]
    bottom = [row for row in bare if row["position"] == 5][:4]
    problem = only(check([*bare, *bottom]), "several-results-at-position")
    assert problem.severity == "warning"
    assert 1 <= problem.count <= 4
    assert (problem.example or "").endswith("position=5")
    assert as_flags(problem.arguments) == "--impression request_id"
    assert only(check([*bare, *bottom], impression="request_id"), "duplicates").count == 4


def test_two_results_at_one_position(replayed: Rows) -> None:
    view = replayed[0]["impression_id"]
    page = sorted((r for r in replayed if r["impression_id"] == view), key=lambda r: r["position"])
    page[3]["position"] = page[2]["position"]
    problem = only(check(replayed), "several-results-at-position")
    assert (problem.severity, problem.count) == ("warning", 1)
    assert problem.example == f"impression_id={view}, query_id={page[0]['query_id']}, position=3"
    assert "'impression_id'" in problem.remedy


def test_one_result_at_two_positions_of_a_page_view(replayed: Rows) -> None:
    page = [r for r in replayed if r["impression_id"] == replayed[0]["impression_id"]]
    page[0]["doc_id"] = page[1]["doc_id"]
    problem = only(check(replayed), "document-at-several-positions")
    assert (problem.severity, problem.count) == ("warning", 1)
    assert f"doc_id={page[1]['doc_id']}" in (problem.example or "")
    assert "not a session" in problem.remedy


def test_a_page_view_of_two_rankers(replayed: Rows) -> None:
    page = [r for r in replayed if r["impression_id"] == replayed[0]["impression_id"]]
    page[0]["ranker"] = "b" if page[0]["ranker"] == "a" else "a"
    problem = only(check(replayed), "several-rankers-in-page-view")
    assert (problem.severity, problem.count) == ("warning", 1)
    assert "1 of 240 page views" in problem.message
    assert f"impression_id={page[0]['impression_id']}" in (problem.example or "")
    assert problem.arguments == {}


# ---- Rankers


def test_a_position_that_contradicts_the_rank(rows: Rows) -> None:
    for row in rows[:4]:
        row[f"rank_{row['ranker']}"] = 5 if row["position"] < 5 else 1
    rows[4][f"rank_{rows[4]['ranker']}"] = None
    found = check(rows)
    problem = only(found, "contradicted-rank")
    assert (problem.severity, problem.count) == ("warning", 5)
    assert "5 of 1,200 rows in the top 5" in problem.message
    assert "position=" in (problem.example or "")
    assert ", but rank " in (problem.example or "")
    assert "left out" in problem.remedy
    assert harvest(rows).about["rows_contradicted"] == 5


def test_a_position_beyond_the_last_rank_that_contradicts_one_within(rows: Rows) -> None:
    # As below a block of advertisements: ranked fifth, and shown eleventh.
    moved = [row | {"position": 11} for row in rows if row["position"] == 5][:7]
    kept = [row for row in rows if row["position"] < 5]
    found = check([*kept, *moved])
    problem = only(found, "contradicted-rank")
    assert (problem.severity, problem.count) == ("warning", 7)
    assert "position=11, but rank 5" in (problem.example or "")
    made = harvest([*kept, *moved])
    assert (made.about["rows_contradicted"], made.about["rows_beyond"]) == (7, 0)
    assert "contradicted-rank" in [finding.code for finding in made.findings]
    # What its ranker puts beyond the last rank too is beyond, and nothing more.
    deep = [
        row | {"position": 11, f"rank_{row['ranker']}": rank} for row, rank in zip(moved, [11, None] * 4, strict=False)
    ]
    made = harvest([*kept, *deep])
    assert (made.about["rows_contradicted"], made.about["rows_beyond"]) == (0, 7)


@pytest.mark.parametrize("layout", ["wide", "long"])
def test_ranks_from_zero(layout: str, rows: Rows, replayed: Rows) -> None:
    if layout == "long":
        shifted = [r | {"rank": r["rank"] - 1} for r in rank(WORLD).to_pylist()]
        names: dict[str, Any] = {"rankings": pa.Table.from_pylist(shifted)}
        source = replayed
    else:
        for row in rows:
            row |= {n: None if row[n] is None else row[n] - 1 for n in ("rank_a", "rank_b")}
        names, source = {}, rows
    found = check(source, **names)
    problem = only(found, "zero-based-rank")
    assert problem.severity == "error"
    assert not found.usable
    assert "ranks seem to count from 0" in problem.message
    with pytest.raises(posbias.LogError, match="must count from 1"):
        harvest(source, **names)
    if layout == "wide":
        assert check(source, sql=as_flags(problem.arguments).removeprefix("--sql ").strip("'")).findings == ()


def test_a_ranker_that_is_not_a_function_in_replay(replayed: Rows) -> None:
    views = {r["impression_id"]: r for r in replayed}
    one = next(
        v
        for v, r in views.items()
        if sum(o["query_id"] == r["query_id"] and o["ranker"] == r["ranker"] for o in views.values()) > 1
    )
    page = sorted((r for r in replayed if r["impression_id"] == one), key=lambda r: r["position"])
    page[0]["position"], page[1]["position"] = 2, 1
    found = check(replayed)
    problem = only(found, "non-functional-ranker")
    assert (problem.severity, problem.count) == ("warning", 2)
    assert f"2 of {found.documents:,} (query, document) pairs" in problem.message
    assert problem.example in [f"query_id={r['query_id']}, doc_id={r['doc_id']}" for r in page[:2]]
    assert "non_functional='refuse'" in problem.remedy
    assert harvest(replayed).about["non_functional_pairs"] == 2
    with pytest.raises(posbias.LogError, match="2 of"):
        posbias.harvest(posbias.ClickLog(pa.Table.from_pylist(replayed)), max_rank=5, non_functional="refuse")


def test_a_change_beyond_the_deepest_rank_is_ignored(replayed: Rows) -> None:
    for row in replayed:
        if row["position"] == 5:
            row["position"] = 5 + row["impression_id"] % 3 + 1
    found = posbias.check(posbias.ClickLog(pa.Table.from_pylist(replayed)), max_rank=4)
    assert "non-functional-ranker" not in [p.code for p in found.findings]


def test_rank_columns_that_differ_between_rows(rows: Rows) -> None:
    row = next(r for r in rows if r["ranker"] == "a" and r["rank_b"] is not None)
    same = [r for r in rows if (r["query_id"], r["doc_id"]) == (row["query_id"], row["doc_id"])]
    assert len(same) > 1
    row["rank_b"] = row["rank_b"] % 5 + 1
    problem = only(check(rows), "non-functional-ranker")
    assert (problem.severity, problem.count) == ("warning", 1)
    assert problem.example == f"query_id={row['query_id']}, doc_id={row['doc_id']}"
    assert "rank columns that differ" in problem.message


def test_a_rankings_table_with_several_ranks_for_one_document(replayed: Rows) -> None:
    rankings = rank(WORLD).to_pylist()
    rankings.append(rankings[0] | {"rank": rankings[0]["rank"] % 5 + 1})
    found = check(replayed, rankings=pa.Table.from_pylist(rankings))
    problem = only(found, "non-functional-ranker")
    assert (problem.severity, problem.count) == ("warning", 1)
    assert "several ranks by one ranker in the rankings table" in problem.message


def test_a_ranker_without_rank_column(rows: Rows) -> None:
    for row in rows:
        if row["query_id"] < 10 and row["ranker"] == "a":
            row["ranker"] = "c"
    found = check(rows)
    problem = only(found, "unknown-ranker")
    assert problem.severity == "error"
    assert problem.count == sum(r["ranker"] == "c" for r in rows)
    assert "rank columns of the log have the ranks of 'a', 'b'" in problem.message
    assert "ranker=c" in (problem.example or "")
    assert "ranks='none'" in problem.remedy
    with pytest.raises(posbias.LogError, match="whose ranks are not known"):
        harvest(rows)
    assert check(rows, ranks="none").usable


def test_a_rank_column_of_a_ranker_without_traffic(rows: Rows) -> None:
    for row in rows:
        row["rank_score"] = 1
    problem = only(check(rows), "ranker-without-traffic")
    assert (problem.severity, problem.count) == ("warning", 1)
    assert "'rank_score'" in problem.message
    assert "'a', 'b'" in problem.remedy


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [("{ranker}_rank", int), ("pos_in_{ranker}", int), ("where {ranker} has it", float), ("a{ranker}ab", str)],
)
def test_unused_rank_columns_are_found(rows: Rows, pattern: str, kind: type) -> None:
    names = {f"rank_{ranker}": pattern.replace("{ranker}", ranker) for ranker in ("a", "b")}
    other = [
        {names.get(name, name): kind(value) if name in names and value else value for name, value in r.items()}
        for r in rows
    ]
    problem = only(check(other), "unused-rank-columns")
    assert problem.arguments == {"ranks": pattern}
    assert repr([*names.values()]).strip("[]") in problem.message
    assert check(other, ranks=pattern).findings == ()


@pytest.mark.parametrize("broken", [False, True])
def test_unused_rank_columns_of_a_text_file_are_found(table: pa.Table, tmp_path: Path, broken: bool) -> None:
    """Of a text only the columns in use are kept."""
    frame = table.to_pandas().rename(columns={"rank_a": "pos_in_a", "rank_b": "pos_in_b"})
    frame = pandas.concat([frame] * 20)
    path = tmp_path / "log.csv"
    frame.to_csv(path, index=False)
    if broken:
        with path.open("a") as file:
            file.write("1,1,a,1,0,1,first,second\n")
    found = check(str(path))
    assert found.layout == "replay"
    if not broken:
        assert only(found, "unused-rank-columns").arguments == {"ranks": "pos_in_{ranker}"}


def test_columns_named_after_rankers_that_are_not_ranks(rows: Rows) -> None:
    """They may be called anything: the numbers tell."""
    for i, row in enumerate(rows):
        ranks = {"a": row.pop("rank_a") or 9, "b": row.pop("rank_b") or 9}
        row |= {f"score_{name}": 1 / (1 + rank) for name, rank in ranks.items()}
        row |= {f"clicks_{name}": i % 2 for name in ranks}
        row |= {f"day_{name}": date(2026, 1, 1 + i % 28) for name in ranks}
        row |= {f"{name} above 3": rank < 3 for name, rank in ranks.items()}
        row |= {f"ids_{name}": [rank] for name, rank in ranks.items()}
        row |= {f"version of {name}": f"{name}{rank}" for name, rank in ranks.items()}
    assert not [finding for finding in check(rows).findings if finding.code == "unused-rank-columns"]


def test_a_single_rank_column_is_reported(rows: Rows) -> None:
    lone = [{name: value for name, value in row.items() if name != "rank_b"} for row in rows]
    problem = only(check(lone), "unused-rank-columns")
    assert "'rank_a' has the ranks of one ranker" in problem.message
    assert "Add 'rank_b'" in problem.remedy
    loud = [{name.replace("rank_b", "RANK_B"): value for name, value in row.items()} for row in rows]
    assert "Rename 'RANK_B' to 'rank_b'" in only(check(loud), "unused-rank-columns").remedy


def test_an_empty_rankings_table(replayed: Rows) -> None:
    found = check(replayed, rankings=rank(WORLD).slice(0, 0))
    assert only(found, "empty-rankings").severity == "error"
    assert not found.usable
    with pytest.raises(posbias.LogError, match="leave out rankings"):
        harvest(replayed, rankings=rank(WORLD).slice(0, 0))
    found = check(replayed, rankings=rank(WORLD).rename_columns(["query_id", "ranker", "item", "place"]))
    problem = only(found, "missing-column")
    assert "Columns 'doc_id', 'rank' are not in the rankings table" in problem.message
    assert as_flags(problem.arguments) == "--doc item --rank place"


@pytest.mark.parametrize("layout", ["wide", "replay"])
def test_a_single_ranker(layout: str, rows: Rows) -> None:
    found = check([r for r in rows if r["ranker"] == "a"], ranks=None if layout == "wide" else "none")
    problem = only(found, "single-ranker")
    assert problem.severity == "error"
    assert "'a'" in problem.message
    assert "(ranker)" in problem.remedy


@pytest.mark.parametrize("layout", ["wide", "replay"])
def test_rankers_that_never_disagree(layout: str, rows: Rows) -> None:
    for row in rows:
        row["rank_a"] = row["rank_b"] = row["position"]
        row["doc_id"] = row["position"]
    names = {"ranks": None if layout == "wide" else "none"}
    found = check(rows, **names)
    problem = only(found, "no-disagreement")
    assert problem.severity == "error"
    assert "'a', 'b'" in problem.message
    assert "none of 200 (query, document) pairs" in problem.message
    assert found.documents_at_several_ranks == 0
    with pytest.raises(posbias.EstimateError):
        posbias.AllPairs().fit(harvest(rows, **names))


# ---- Clicks


def test_a_log_without_clicks_and_a_log_of_clicks_only(rows: Rows) -> None:
    problem = only(check([r | {"clicked": 0} for r in rows]), "no-clicks")
    assert problem.severity == "error"
    assert "1,200 results" in problem.message
    problem = only(check([r for r in rows if r["clicked"]]), "only-clicks")
    assert problem.severity == "error"
    assert problem.count == sum(r["clicked"] for r in rows)


def test_a_position_with_clicks_only() -> None:
    rows = posbias.simulate(posbias.World(queries=300, max_rank=3)).to_pylist()
    kept = [r for r in rows if r["clicked"] or r["position"] != 2]
    problem = only(check(kept), "only-clicks-at-position")
    assert problem.count == sum(r["clicked"] for r in rows if r["position"] == 2)
    assert problem.severity == "warning"
    made = harvest([r for r in rows if r["clicked"] or r["position"] > 1])
    assert "at position 1 were clicked" in next(f.message for f in made.findings if f.code == problem.code)
    # Users who click nearly all results of other positions may click all of the first.
    eager = [r | {"clicked": int(r["position"] == 1 or i % 20 > 0)} for i, r in enumerate(rows)]
    assert problem.code not in {f.code for f in harvest(eager).findings}


def test_page_views_that_lack_rows() -> None:
    rows = posbias.simulate(posbias.World(queries=50, max_rank=3)).to_pylist()
    problem = only(check([r for i, r in enumerate(rows) if i % 2]), "missing-rows")
    assert problem.evidence == {"page_views": 500, "counted": problem.evidence["counted"]}
    assert problem.count == 500 - problem.evidence["counted"] > 100
    # Pages that end at different depths, or have more below the top ranks, have them all.
    below = [r | {"position": 9, "rank_a": 9, "rank_b": 9, "impression_id": -1 - i} for i, r in enumerate(rows)]
    whole = [r for r in rows if r["position"] <= 1 + r["impression_id"] % 3] + below
    assert "missing-rows" not in {f.code for f in check(whole).findings}


def test_no_first_position(rows: Rows) -> None:
    problem = only(check([r for r in rows if r["position"] > 1]), "no-first-position")
    assert problem.severity == "error"
    assert "the first position is 2" in problem.message


def test_no_click_at_the_first_position(rows: Rows) -> None:
    without = [r | {"clicked": r["clicked"] if r["position"] > 1 else 0} for r in rows]
    problem = only(check(without), "no-clicks-at-rank-1")
    assert problem.severity == "error"
    assert "Position 1 has no click on 240 results" in problem.message
    # A part of a log may be merged with others that have some; an estimate of it alone is refused.
    with pytest.raises(posbias.EstimateError, match="there is no click at rank 1"):
        posbias.AllPairs().fit(harvest(without))


# ---- Columns


def test_missing_columns(rows: Rows) -> None:
    own = {"query_id": "qid", "doc_id": "item", "ranker": "variant", "position": "pos", "clicked": "is_click"}
    renamed = [{own.get(name, name): value for name, value in row.items()} for row in rows]
    problem = only(check(renamed), "missing-column")
    assert problem.count == 5
    assert problem.message == "Columns 'query_id', 'doc_id', 'ranker', 'position', 'clicked' are not in the log"
    assert (
        "Columns found: 'qid', 'item', 'variant', 'pos', 'is_click', 'impression_id', 'rank_a', 'rank_b'"
        in problem.remedy
    )
    assert as_flags(problem.arguments) == "--query qid --doc item --ranker variant --position pos --click is_click"
    words = as_flags(problem.arguments).replace("--", "").split()
    assert check(renamed, **dict(zip(words[::2], words[1::2], strict=True))).findings == ()


@pytest.mark.parametrize(
    ("role", "wanted", "column", "meant"),
    [
        ("query", "query_id", "qid", "qid"),
        ("query", "quer_id", "query_id", "query_id"),
        ("query", "query_id", "Query ID", "'Query ID'"),
        ("doc", "doc_id", "product_id", "product_id"),
        ("ranker", "ranker", "arm", "arm"),
        ("position", "position", "slot", "slot"),
        ("click", "clicked", "CLICKED", "CLICKED"),
        ("click", "clicked", "tapped", "tapped"),
        ("query", "query_id", "zzz", "COLUMN"),
    ],
)
def test_the_closest_name(role: str, wanted: str, column: str, meant: str, table: pa.Table) -> None:
    default = {"query": "query_id", "doc": "doc_id", "ranker": "ranker", "position": "position", "click": "clicked"}
    names = [column if name == default[role] else name for name in table.column_names]
    problem = only(check(table.rename_columns(names), **{role: wanted}), "missing-column")
    assert problem.message == f"Column {wanted!r} is not in the log"
    assert as_flags(problem.arguments) == f"--{role} {meant}"
    if meant != "COLUMN":
        assert f"Did you mean {column!r}?" in problem.remedy


def test_other_missing_columns(table: pa.Table) -> None:
    assert "--impression impression_id" in as_flags(
        only(check(table, impression="impresion_id"), "missing-column").arguments
    )
    assert only(check(table, ranks="{ranker}_rank"), "missing-ranks").severity == "error"
    problem = only(check(table, impressions="shows", clicks="clicks"), "missing-column")
    assert problem.message == "Columns 'shows', 'clicks' are not in the log"
    with pytest.raises(posbias.LogError, match=r"must contain \{ranker\} once"):
        posbias.ClickLog(table, ranks="rank_")
    with pytest.raises(posbias.LogError, match="not both"):
        posbias.ClickLog(table, ranks="rank_{ranker}", rankings=table)
    with pytest.raises(posbias.LogError, match="Use 'keep' or 'drop'"):
        posbias.ClickLog(table, duplicates="remove")  # type: ignore[arg-type]
    with pytest.raises(posbias.LogError, match="from 2 to 1,000"):
        posbias.check(posbias.ClickLog(table), max_rank=1)


# ---- Files


def broken(path: Path, table: pa.Table, kind: str) -> Path:
    frame = table.to_pandas()
    if kind == "truncated Parquet":
        pq.write_table(table, path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif kind == "overwritten Parquet":
        pq.write_table(table, path)
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + b"\0" * 2000 + whole[2100:])
    elif kind == "truncated gzip":
        frame.to_csv(path, index=False)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif kind == "not gzip":
        path.write_bytes(b"hello")
    elif kind == "truncated JSON":
        frame.to_json(path, orient="records", lines=True)
        path.write_bytes(path.read_bytes()[:-30])
    elif kind == "Latin-1":
        path.write_bytes("query_id,doc_id,ranker,position,clicked\ncafé,1,a,1,0\n".encode("latin-1"))
    elif kind == "late Latin-1":
        text = "query_id,doc_id,ranker,position,clicked\n" + "cafe,1,a,1,0\n" * 30_000 + "café,1,a,1,0\n"
        path.write_bytes(text.encode("latin-1"))
    elif kind == "picture":
        path.write_bytes(bytes(random.Random(0).randbytes(5000)))
    elif kind == "short row":
        path.write_text("query_id,doc_id,ranker,position,clicked\n1,1,a,1,0\n1,2,a,2\n")
    elif kind == "no JSON":
        path.write_text("hello\nworld\n")
    elif kind == "JSON numbers":
        path.write_text("1\n2\n")
    elif kind == "other table":
        path.write_text("name,age\nann,33\n")
    elif kind == "empty gzip":
        path.write_bytes(gzip.compress(b""))
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "folder":
        path.mkdir()
    return path


BROKEN = [
    ("truncated Parquet", "log.parquet", "damaged-file", "log.parquet", "truncated or damaged"),
    ("overwritten Parquet", "log.parquet", "damaged-file", "log.parquet", "truncated or damaged"),
    ("truncated gzip", "log.csv.gz", "damaged-file", "log.csv.gz", "truncated or damaged"),
    ("not gzip", "log.csv.gz", "damaged-file", "log.csv.gz", "truncated or damaged"),
    ("truncated JSON", "log.jsonl", "damaged-file", "log.jsonl", "truncated or damaged"),
    ("Latin-1", "log.csv", "not-a-log", "not CSV text in UTF-8", "Convert it to UTF-8"),
    ("late Latin-1", "log.csv", "not-utf-8", "line 30002", "Convert the file to UTF-8"),
    ("picture", "log.csv", "not-a-log", "not CSV text in UTF-8", "Convert it"),
    ("picture", "log.parquet", "damaged-file", "log.parquet", "truncated or damaged"),
    ("picture", "log.jsonl", "broken-row", "log.jsonl", "one JSON object for each row"),
    ("short row", "log.csv", "broken-row", "line 3 of", "Repair or remove that row"),
    ("no JSON", "log.jsonl", "broken-row", "log.jsonl", "one JSON object for each row"),
    ("JSON numbers", "log.jsonl", "not-a-log", "log.jsonl", "JSON lines"),
    ("other table", "log.csv", "missing-column", "'query_id'", "does not look like a click log"),
    ("empty", "log.csv", "empty-file", "log.csv", "Leave it out"),
    ("empty", "log.parquet", "empty-file", "log.parquet", "Leave it out"),
    ("empty", "log.jsonl", "empty-file", "log.jsonl", "Leave it out"),
    ("empty gzip", "log.csv.gz", "empty-file", "log.csv.gz", "Leave it out"),
    ("folder", "log", "missing-file", "contains no log file", "Expected Parquet"),
    ("none", "lgo.csv", "missing-file", "There is no file", "Did you mean 'log2.csv'?"),
    ("none", "zzz", "missing-file", "There is no file", "The folder contains: 'log2.csv'"),
    ("none", "x/log.csv", "missing-file", "/x' does not exist", "Check the path"),
    ("none", "*.jsonl", "missing-file", "No file matches", "Check the pattern"),
    ("picture", "log.xlsx", "unknown-format", "has no ending of a known format", "Expected Parquet"),
]


@pytest.mark.parametrize(("kind", "file", "name", "what", "remedy"), BROKEN)
def test_files_that_are_not_a_log(
    kind: str, file: str, name: str, what: str, remedy: str, table: pa.Table, tmp_path: Path, each_engine: str
) -> None:
    spark = each_engine == "spark"
    if spark and kind == "late Latin-1":
        pytest.skip("Spark reads a byte that is not UTF-8 as another character, and says nothing")
    (tmp_path / "log2.csv").write_text("")
    path = broken(tmp_path / file, table, kind)
    found = check(str(path))
    problem = only(found, name)
    assert not found.usable
    assert problem.severity == "error"
    # Spark knows the file, and not the line.
    assert what in problem.message or (spark and file in problem.message)
    assert remedy in problem.remedy
    with pytest.raises(posbias.LogError) as refused:
        harvest(str(path))
    assert str(refused.value) == str(problem)


def test_remote_addresses(each_engine: str) -> None:
    found = check("s3://bucket/log.parquet")
    if each_engine == "spark":
        assert "connector" in only(found, "unreadable").remedy
    else:
        assert "remote address" in only(found, "missing-file").message


@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow"])
def test_an_empty_log(ending: str, table: pa.Table, tmp_path: Path) -> None:
    source: Any = table.slice(0, 0)
    if ending == "csv":
        source.to_pandas().to_csv(tmp_path / "log.csv", index=False)
        source = tmp_path / "log.csv"
    elif ending == "parquet":
        pq.write_table(source, tmp_path / "log.parquet")
        source = tmp_path / "log.parquet"
    for ranks in (None, "none"):
        found = check(source, ranks=ranks)
        problem = only(found, "empty-log")
        assert not found.usable
        assert "it has columns but no rows" in problem.message
        with pytest.raises(posbias.LogError, match="it has columns but no rows"):
            harvest(source, ranks=ranks)


def files(table: pa.Table, folder: Path, change: Callable[[pa.Table], pa.Table]) -> str:
    third = len(table) // 3
    for i in range(3):
        part = table.slice(i * third, third)
        pq.write_table(change(part) if i == 1 else part, folder / f"{i}.parquet")
    return str(folder / "*.parquet")


def test_files_that_disagree_on_types(table: pa.Table, tmp_path: Path) -> None:
    source = files(table, tmp_path, lambda t: t.set_column(0, "query_id", t["query_id"].cast(pa.string())))
    found = check(source)
    problem = only(found, "mixed-files")
    assert (problem.severity, problem.count) == ("warning", 1)
    assert "'query_id': BIGINT in 2 of 3; VARCHAR in 1 of 3" in problem.message
    assert problem.example == f"VARCHAR in {tmp_path}/1.parquet"
    assert "read as VARCHAR" in problem.remedy
    assert harvest(source).page_views == harvest(table).page_views


def test_files_that_do_not_fit_together(table: pa.Table, tmp_path: Path) -> None:
    lists = pa.array([[1]] * (len(table) // 3))
    problem = only(check(files(table, tmp_path, lambda t: t.set_column(3, "position", lists))), "mixed-files")
    assert problem.severity == "error"
    assert "have different columns or types" in problem.remedy


@pytest.mark.parametrize("column", ["clicked", "rank_b", "impression_id"])
def test_files_that_lack_a_column(column: str, table: pa.Table, tmp_path: Path) -> None:
    source = files(table, tmp_path, lambda t: t.drop_columns([column]))
    found = check(source)
    problem = only(found, "mixed-files")
    assert problem.count == 1
    assert problem.example == f"missing in {tmp_path}/1.parquet"
    # Of the click every row needs one; a ranker may not have existed yet; page views are optional.
    assert problem.severity == ("error" if column == "clicked" else "warning")
    assert found.usable == (column != "clicked" and only_warnings(found))
    if column == "impression_id":
        dropping = [p for p in check(source, duplicates="drop").findings if p.code == "mixed-files"]
        assert [p.severity for p in dropping] == ["error"]


def only_warnings(found: Check) -> bool:
    return all(p.severity == "warning" for p in found.findings)


def test_files_of_several_formats(table: pa.Table, tmp_path: Path) -> None:
    pq.write_table(table, tmp_path / "1.parquet")
    table.to_pandas().to_csv(tmp_path / "2.csv", index=False)
    problem = only(check(str(tmp_path)), "mixed-formats")
    assert "csv, parquet" in problem.message


# ---- On the command line


def posbias_check(*args: str) -> Any:
    return CliRunner().invoke(cli, ["check", *args])


def test_the_command_exits_with_1_if_the_log_cannot_be_used(table: pa.Table, tmp_path: Path) -> None:
    sound, spoilt = str(tmp_path / "sound.parquet"), str(tmp_path / "spoilt.csv")
    pq.write_table(table, sound)
    table.rename_columns(["qid", *table.column_names[1:]]).to_pandas().to_csv(spoilt, index=False)
    shown = posbias_check(sound)
    assert shown.exit_code == 0
    assert shown.stdout == f"{posbias.check(posbias.ClickLog(sound))}\n"
    assert shown.stderr == f"Next: posbias estimate {sound}\n"
    shown = posbias_check(spoilt)
    assert shown.exit_code == 1
    assert shown.stdout.startswith("✗ Column 'query_id' is not in the log.")
    assert shown.stderr == f"Next: posbias check {spoilt} --query qid\n"
    # A warning is no reason to fail.
    pq.write_table(table.append_column("rank_c", table["rank_a"]), sound)
    assert posbias_check(sound).exit_code == 0
    assert "! Rank columns of rankers that served no row" in posbias_check(sound).stdout
    for path, usable in ((sound, True), (spoilt, False)):
        shown = posbias_check(path, "--json")
        assert shown.exit_code == (0 if usable else 1)
        assert json.loads(shown.stdout)["usable"] is usable
        assert shown.stderr == ""


def test_the_suggested_next_command_works(table: pa.Table, tmp_path: Path) -> None:
    """A first log: names of its own, positions from 0, logged twice. Each command suggests the next."""
    frame = table.drop_columns(["rank_a", "rank_b"]).to_pandas()
    frame["position"] -= 1
    frame.columns = ["search term", "sku", "arm", "slot", "click", "request_id"]
    path = tmp_path / "my log.csv"
    pandas.concat([frame, frame[:7]]).to_csv(path, index=False)
    command, seen = f"posbias check {shlex.quote(str(path))} --impression request_id --max-rank 5", []
    for _ in range(6):
        words = shlex.split(command)[1:]
        shown = CliRunner().invoke(cli, words)
        seen.append(words[0])
        if words[0] == "estimate":
            break
        command = shown.stderr.removeprefix("Next: ").strip()
    assert shown.exit_code == 0, shown.output
    assert seen == ["check"] * (len(seen) - 1) + ["estimate"]
    assert shown.stdout.startswith("cross-fit, 95% interval")
    for flag in ("--query 'search term'", "--sql", "--duplicates drop", "--max-rank 5"):
        assert flag in command


@pytest.mark.parametrize("aggregated", [False, True])
@pytest.mark.parametrize("layout", ["wide", "long"])
@pytest.mark.parametrize("sound", [False, True])
def test_rows_counted_by_rank_give_the_profile_of_the_log(layout: str, aggregated: bool, sound: bool) -> None:
    world = posbias.World(queries=40, repeats=3, max_rank=6)
    frame = posbias.simulate(world, "wide", aggregated=aggregated).to_pandas()
    if not sound:
        # Some shown where their ranker does not put them, some without a query, a position or a ranker's rank.
        frame["query_id"] = frame["query_id"].astype("Int64")
        frame.loc[::17, "position"] = 4
        frame.loc[3::31, "query_id"] = pandas.NA
        frame.loc[5::37, "position"] = 0
        frame.loc[6::41, "rank_a"] = 0
    tables: dict[str, Any] = {}
    if layout == "long":
        ranks = [
            frame[["query_id", "doc_id", f"rank_{name}"]].rename(columns={f"rank_{name}": "rank"}).assign(ranker=name)
            for name in "ab"
        ]
        tables["rankings"] = pandas.concat(ranks).dropna().drop_duplicates()
        frame = frame.drop(columns=["rank_a", "rank_b"])
    with open_log(posbias.ClickLog(frame, **tables), None, silent) as opened:
        plan = QueryPlan(opened.schema, opened.dialect, known_rankers(opened), 5)
        profile, counts = count_rows(opened, plan)
        expected = profile_log(opened, plan)
    assert bool(counts.rows_unusable) is not sound
    assert bool(counts.rows_contradicted) is not sound
    assert counts.rows_beyond
    assert counts.rows_counted
    added: dict[Any, Any] = {}
    for entry in profile.entries:
        so_far = added.get(entry[:2], (0, 0, 0))
        added[entry[:2]] = tuple(map(sum, zip(so_far, entry[2:], strict=True)))
    assert added == {entry[:2]: entry[2:] for entry in expected.entries}
    assert profile.positions == expected.positions
    assert profile.page_views == expected.page_views


@pytest.mark.parametrize("wide", [False, True])
def test_clicks_too_large_to_add_up_are_not_clicks(rows: Rows, replayed: Rows, wide: bool) -> None:
    spoilt = [
        row | {"clicked": 2**62 if i % 3 == 0 else row["clicked"]} for i, row in enumerate(rows if wide else replayed)
    ]
    assert "not-a-click" in [finding.code for finding in check(spoilt).findings]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ids", ["int", "text"])
def test_short_page_view_hashes_find_the_same_as_long_ones(seed: int, ids: str) -> None:
    chance = random.Random(seed)
    # Of few page views most are crowded, and of many none is.
    views = [4, 40, 10**9][seed % 3]
    rankers = ["a", "b", "it's c"][: 1 + seed // 2]
    logged = [
        {
            "query_id": chance.randrange(3),
            "doc_id": chance.randrange(4),
            "ranker": chance.choice(rankers),
            "position": chance.randrange(1, 6),
            "clicked": chance.randrange(2),
            "impression_id": chance.randrange(views) if ids == "int" else f"view {chance.randrange(views)}",
        }
        for _ in range(60)
    ]
    with open_log(posbias.ClickLog(pa.Table.from_pylist(logged)), None, silent) as opened:
        plan = QueryPlan(opened.schema, opened.dialect, (), 5)
        profile = profile_log(opened, plan)
        few, many = (find_repeats(opened, plan, whole=whole) for whole in (profile, None))
    pages: dict[Any, set[str]] = {}
    for row in logged:
        pages.setdefault(row["impression_id"], set()).add(row["ranker"])
    mixed = next((finding for finding in few if finding.code == "several-rankers-in-page-view"), None)
    assert few == many
    assert mixed is None or mixed.evidence["page_views"] == len(pages)
    assert bool(few) is (views < 10**9)


def test_queries_of_a_sample_of_pairs_are_those_of_the_log(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    every = check(rows)
    monkeypatch.setattr("posbias.harvesting.intervention_sets._MOST_ROWS", len(rows) // 2)
    part = check(rows)
    # A row beyond M keeps queries from being counted with the pairs.
    apart = check([*rows[:-1], rows[-1] | {"position": 9, "rank_a": 9, "rank_b": 9}])
    assert every.sampled_one_in == 1
    assert part.sampled_one_in == apart.sampled_one_in == 2
    assert 0 < part.queries == apart.queries < 2 * every.queries
    assert part.queries % 2 == 0


def test_crawlers_are_not_tested_without_ids_of_page_views() -> None:
    table = posbias.simulate(posbias.World(queries=200)).drop_columns(["impression_id"])
    [finding] = posbias.check(posbias.ClickLog(table)).findings
    assert (finding.code, finding.severity) == ("crawlers-not-tested", "info")
    assert "no ids of page views" in finding.message


# ---- Queries that are ids of requests


def requests(rows: list[dict[str, Any]], **more: Any) -> pa.Table:
    """A replay whose queries are ids of the page views, beside what was typed."""
    renamed = [row | {"query_id": row["impression_id"], "search_term": f"term {row['query_id']}"} for row in rows]
    table = pa.Table.from_pylist(renamed)
    return table.drop_columns("impression_id") if more.get("without") else table


@pytest.mark.parametrize("without", [False, True])
def test_ids_of_requests_are_not_queries(each_engine: str, without: bool) -> None:
    rows = posbias.simulate(posbias.World(queries=30, repeats=4, max_rank=3), "replay").to_pylist()
    table = requests(rows, without=without)
    found = posbias.check(posbias.ClickLog(table), max_rank=3)
    assert [f.code for f in found.findings] == ["query-is-request-id", *["crawlers-not-tested"] * without]
    assert "occurs on one page view only. Is it the id of the request?" in " ".join(found.to_text().split())
    assert "?." not in found.to_text() + str(found.findings[0])
    assert "longer period" not in found.to_text()
    assert found.findings[0].count == 120
    assert found.findings[0].arguments == {"query": "search_term"}
    assert posbias.check(posbias.ClickLog(table, query="search_term"), max_rank=3).usable


def test_a_few_requests_that_were_sent_again_are_still_requests() -> None:
    rows = posbias.simulate(posbias.World(queries=30, repeats=4, max_rank=3), "replay").to_pylist()
    table = requests(rows)
    again = table.slice(0, 3).set_column(5, "impression_id", pa.array([-1] * 3))
    assert again.column_names == table.column_names
    found = posbias.check(posbias.ClickLog(pa.concat_tables([table, again])), max_rank=3)
    assert [f.code for f in found.findings] == ["query-is-request-id"]
    assert "119 of 120 values of 'query_id' occur on one page view only" in " ".join(found.to_text().split())


def test_an_estimate_mentions_ids_of_requests_too() -> None:
    rows = posbias.simulate(posbias.World(queries=30, repeats=4, max_rank=3), "replay").to_pylist()
    for log in (posbias.ClickLog(requests(rows)), posbias.ClickLog(requests(rows), ranker="none")):
        with pytest.raises(
            posbias.EstimateError,
            match=r"\(query\) holds what .*, not the id of a request\. If it does, .*longer period",
        ):
            posbias.CrossFit().fit(posbias.harvest(log, max_rank=3))


def test_queries_that_recur_with_one_ranker_each_need_a_longer_period() -> None:
    rows = posbias.simulate(posbias.World(queries=30, repeats=4, max_rank=3, sticky=True), "replay").to_pylist()
    for table in (pa.Table.from_pylist(rows), pa.Table.from_pylist(rows).drop_columns("impression_id")):
        found = posbias.check(posbias.ClickLog(table), max_rank=3)
        assert [f.code for f in found.findings if f.severity != "info"] == ["no-disagreement"]
        assert "longer period" in found.to_text()
