"""Test that exports of OpenSearch User Behavior Insights become the log that they were made from."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import posbias
from posbias.cli import cli
from tests.engines.test_events import simulated
from tests.sql.test_trackers import pages_of
from tests.support.logs import Row, to_jsonl

KEYS = ("query_id", "doc_id", "ranker", "position", "clicked", "impression_id")


def ubi(rows: list[Row], *, seen: str = "all", page: Any = None) -> tuple[list[Row], list[Row]]:
    """Both tables: application `zero` counts from 0, `one` from 1; `seen` says who logs impressions."""
    queries, events = [], []
    for number, shown in enumerate(pages_of(rows)):
        application = ("zero", "one")[number % 2]
        view = f"r{shown[0]['impression_id']}"
        base = {"application": application, "client_id": "c", "timestamp": "2026-01-01T00:00:00Z", "query_id": view}
        attributes = {"experiment": {"arm": "x"}, "arm": shown[0]["ranker"]} | ({} if page is None else {"page": page})
        asked = f"  Query {shown[0]['query_id']}"
        request = base | {"user_query": asked, "query": "{}", "query_response_id": f"x{number}"}
        request |= {"query_response_hit_ids": [str(row["doc_id"]) for row in shown], "query_attributes": attributes}
        queries += [request] * (1 + number % 3)
        for row in shown:
            about = {
                "object": {"object_id": str(row["doc_id"]), "object_id_field": "sku"},
                "position": {"ordinal": row["position"] - 1 + number % 2},
            }
            event = base | {"user_query": asked, "message_type": "INFO", "event_attributes": about}
            if seen in ("all", application):
                events.append(event | {"action_name": "impression"})
            if row["clicked"]:
                events += [event | {"action_name": "click"}] * 2
            events.append(event | {"action_name": "add_to_cart"})
    events.append(base | {"action_name": "login", "query_id": None, "event_attributes": {}})
    chance = random.Random(11)
    chance.shuffle(queries)
    chance.shuffle(events)
    return queries, events


def as_documents(rows: list[Row], stem: Path) -> Path:
    wrapped = [{"_index": stem.name, "_id": str(i), "_score": 1.0, "_source": row} for i, row in enumerate(rows)]
    return to_jsonl(wrapped, stem)


def as_bulk(rows: list[Row], stem: Path) -> Path:
    action = {"index": {"_index": stem.name}}
    return to_jsonl([line for row in rows for line in (action, row)], stem)


def as_parquet(rows: list[Row], stem: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), stem.with_suffix(".parquet"))
    return stem.with_suffix(".parquet")


def as_dotted(rows: list[Row], stem: Path) -> Path:
    """Flat columns with dots in their names, as dashboards export them."""

    def flat(row: Row, before: str = "") -> Row:
        found: Row = {}
        for name, value in row.items():
            found |= flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
        return found

    names = dict.fromkeys(name for row in rows for name in flat(row))
    return to_jsonl([dict.fromkeys(names) | flat(row) for row in rows], stem)


FORMS = {"lines": to_jsonl, "documents": as_documents, "bulk": as_bulk, "parquet": as_parquet, "dotted": as_dotted}


def keyed(rows: list[Row]) -> list[tuple[str, ...]]:
    return sorted(tuple(str(row[name]) for name in KEYS) for row in rows)


def expected(rows: list[Row]) -> list[tuple[str, ...]]:
    told = {"query_id": lambda row: f"query {row['query_id']}", "impression_id": lambda row: f"r{row['impression_id']}"}
    return keyed([row | {name: make(row) for name, make in told.items()} for row in rows])


def join(queries: Any, events: Any, folder: Path, **names: Any) -> tuple[list[Row], Any]:
    log = posbias.ClickLog.from_events(queries, events, preset="ubi", **names)
    found = posbias.write_events(log, folder / "log.parquet", overwrite=True)
    return pq.read_table(folder / "log.parquet").to_pylist(), found


@pytest.mark.parametrize("form", FORMS)
def test_every_export_is_read(each_engine: str, form: str, tmp_path: Path) -> None:
    rows = simulated()
    queries, events = ubi(rows)
    write = FORMS[form]
    out, found = join(write(queries, tmp_path / "q"), write(events, tmp_path / "e"), tmp_path, ranker="arm")
    assert keyed(out) == expected(rows)
    assert {row["shown_by"] for row in out} == {"events"}
    assert {row["application"] for row in out} == {"zero", "one"}
    # A request that was written several times is joined with each of its events once.
    assert {finding.code for finding in found.findings} == {"double-clicks"}


@pytest.mark.parametrize("key", ['the "arm"', "it's/that", "a.b~[0]", "*"])
def test_keys_may_have_any_name(each_engine: str, key: str, tmp_path: Path) -> None:
    # To Spark an asterisk is any key.
    key = "**" if each_engine == "spark" and key == "*" else key
    rows = simulated()
    queries, events = ubi(rows)
    # As JSON in a text, since no table has columns of all these names.
    queries = [row | {"query_attributes": json.dumps({key: row["query_attributes"]["arm"]})} for row in queries]
    out, _ = join(to_jsonl(queries, tmp_path / "q"), to_jsonl(events, tmp_path / "e"), tmp_path, ranker=key)
    assert keyed(out) == expected(rows)


@pytest.mark.parametrize("seen", ["none", "zero"])
def test_returned_results_count_without_impression_events(seen: str, tmp_path: Path) -> None:
    rows = simulated()
    queries, events = ubi(rows, seen=seen)
    out, found = join(to_jsonl(queries, tmp_path / "q"), to_jsonl(events, tmp_path / "e"), tmp_path, ranker="arm")
    assert keyed(out) == expected(rows)
    [finding] = [f for f in found.findings if f.code == "returned-counted-as-shown"]
    pages = len(pages_of(rows))
    assert (finding.count, finding.evidence["requests"]) == (pages if seen == "none" else pages // 2, pages)
    assert {(row["application"], row["shown_by"]) for row in out} == {
        ("zero", "hits" if seen == "none" else "events"),
        ("one", "hits"),
    }


@pytest.mark.parametrize("told", ["by none", "by events", "by queries", "otherwise"])
def test_returned_results_do_not_count_with_impression_events(each_engine: str, told: str, tmp_path: Path) -> None:
    """Whatever ubi_queries calls the application; positions of hits begin at 1, of events at 0 as well."""
    rows = simulated()
    queries, events = ubi(rows)
    never = queries[0] | {"query_id": "never seen", "query_response_hit_ids": ["1", "2"]}
    other = {"by none": None, "by events": None, "otherwise": "search"}
    if told != "by queries":
        queries = [row | {"application": other[told]} for row in [*queries, never]]
    if told in ("by none", "by queries"):
        events = [row | {"application": None} for row in events]
    if told == "by none":
        # Nobody tells them apart.
        ones = {row["query_id"] for row in ubi(rows)[0] if row["application"] == "one"}
        queries, events = ([row for row in table if row["query_id"] in ones] for table in (queries, events))
        rows = [row for row in rows if f"r{row['impression_id']}" in ones]
    out, found = join(to_jsonl(queries, tmp_path / "q"), to_jsonl(events, tmp_path / "e"), tmp_path, ranker="arm")
    assert keyed(out) == expected(rows)
    assert {row["shown_by"] for row in out} == {"events"}
    assert {finding.code for finding in found.findings} == {"double-clicks"}


def test_later_pages_are_reported(tmp_path: Path) -> None:
    queries, events = ubi(simulated(), seen="none", page=1)
    later = {request["query_id"] for request in queries[:5]}
    for request in queries:
        if request["query_id"] in later:
            request["query_attributes"] = request["query_attributes"] | {"page": 2}
    out, found = join(to_jsonl(queries, tmp_path / "q"), to_jsonl(events, tmp_path / "e"), tmp_path)
    assert [f.count for f in found.findings if f.code == "later-pages"] == [len(later)]
    assert {row["page"] for row in out} == {"1", "2"}
    assert "ranker" not in out[0]


@pytest.mark.parametrize("goes_on", [False, True])
def test_later_pages_starting_at_position_one_are_reported(each_engine: str, goes_on: bool, tmp_path: Path) -> None:
    queries, events = ubi(simulated(), page=1)
    later = {request["query_id"] for request in queries[:5]}
    for row in [*queries, *events]:
        if row["query_id"] in later:
            if "query_attributes" in row:
                row["query_attributes"] = row["query_attributes"] | {"page": 2}
            elif goes_on and (position := row["event_attributes"].get("position")):
                position["ordinal"] += 10
    _, found = join(to_jsonl(queries, tmp_path / "q"), to_jsonl(events, tmp_path / "e"), tmp_path)
    said = [f.count for f in found.findings if f.code == "later-pages"]
    assert said == ([] if goes_on else [len(later)])


def test_ids_with_two_queries_are_dropped(tmp_path: Path) -> None:
    rows = simulated()
    queries, events = ubi(rows)
    queries.append(queries[0] | {"user_query": "something else"})
    out, found = join(to_jsonl(queries, tmp_path / "q"), to_jsonl(events, tmp_path / "e"), tmp_path, ranker="arm")
    twice = queries[0]["query_id"]
    assert keyed(out) == [row for row in expected(rows) if row[-1] != twice]
    assert [(f.count, f.example) for f in found.findings if f.code == "conflicting-page-view"] == [
        (1, f"impression_id={twice}")
    ]


@pytest.mark.parametrize("form", FORMS)
def test_missing_ranker_key_is_reported_with_the_available_keys(form: str, tmp_path: Path) -> None:
    write = FORMS[form]
    queries, events = (write(rows, tmp_path / str(i)) for i, rows in enumerate(ubi(simulated())))
    missing = r"No column of ubi_queries or ubi_events is named 'nosuch'.*Keys of query_attributes: 'arm', 'experiment"
    # Where columns are dotted, a key is a column.
    plain = r"No column of ubi_queries or ubi_events is named 'nosuch'.*'query_attributes.arm'"
    with pytest.raises(posbias.LogError, match=plain if form == "dotted" else missing) as error:
        join(queries, events, tmp_path, ranker="nosuch")
    assert "Check the path" not in str(error.value)
    words = ["events", str(queries), str(events), "--preset", "ubi", "--ranker", "nosuch"]
    done = CliRunner().invoke(cli, [*words, "-o", str(tmp_path / "o.parquet")])
    assert done.exit_code == 2
    assert "--ranker COLUMN" in done.stderr


@pytest.mark.parametrize("seen", ["all", "none"])
def test_empty_requests_are_dropped_and_counted(seen: str, tmp_path: Path) -> None:
    rows = simulated()
    queries, events = ubi(rows, seen=seen)
    blank = {request["query_id"] for request in queries[:5]}
    for row in (*queries, *events):
        if row["query_id"] in blank:
            row["user_query"] = "" if row["query_id"] == queries[0]["query_id"] else "  "
    out, found = join(to_jsonl(queries, tmp_path / "q"), to_jsonl(events, tmp_path / "e"), tmp_path, ranker="arm")
    assert keyed(out) == [row for row in expected(rows) if row[-1] not in blank]
    [finding] = [f for f in found.findings if f.code == "null"]
    assert "no value in 'user_query', the query" in finding.message
    results = [f"r{row['impression_id']}" for row in rows]
    # Requests that were written several times count once here, too.
    assert finding.count == sum(results.count(view) for view in blank)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    queries, events = ubi(simulated())
    to_jsonl(queries, Path("ubi_queries"))
    to_jsonl(events, Path("ubi_events"))
    words = ["events", "ubi_queries.jsonl", "ubi_events.jsonl", "--preset", "ubi", "--ranker", "arm"]
    done = CliRunner().invoke(cli, [*words, "-o", "log.parquet", "--json"])
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rows"] == pq.read_metadata("log.parquet").num_rows == len(simulated())
    assert posbias.check(posbias.ClickLog("log.parquet"), max_rank=4).usable
    wrong = CliRunner().invoke(cli, [*words, "-o", "x.parquet", "--doc", "sku"])
    assert wrong.exit_code == 2
    assert "Leave out --doc" in wrong.stderr


def test_swapped_or_unrelated_exports_are_rejected(tmp_path: Path) -> None:
    queries, events = (to_jsonl(rows, tmp_path / str(i)) for i, rows in enumerate(ubi(simulated())))
    with pytest.raises(
        posbias.LogError, match=r"ubi_events has no 'action_name', .*object_id.* Give the export of ubi_queries first"
    ):
        join(events, queries, tmp_path)
    with pytest.raises(posbias.LogError, match="No column of ubi_queries or ubi_events is named 'team'"):
        join(
            pa.table({"query_id": ["a"], "user_query": ["b"]}),
            pa.table({"query_id": ["a"], "action_name": ["click"], "event_attributes.object.object_id": ["x"]}),
            tmp_path,
            ranker="team",
        )
