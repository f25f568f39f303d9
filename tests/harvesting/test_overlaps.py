"""Rows that a merge would count twice: the same harvest, a day harvested again, a day of a week, a shared hour."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyarrow import csv

import posbias
from posbias.cli import cli
from posbias.harvesting.overlaps import Sketch, refuse_shared_page_views

WORLD = posbias.World(queries=300, max_rank=5)


def day(seed: int, *, ids: bool = True) -> pa.Table:
    """A day of page views whose ids are unique over all days."""
    table = posbias.simulate(posbias.World(queries=300, max_rank=5, seed=seed))
    if "impression_id" in table.column_names:
        table = table.drop_columns(["impression_id"])
    views = [f"{seed}-{row // 5}" for row in range(table.num_rows)]
    return table.append_column("impression_id", pa.array(views)) if ids else table


def harvest(table: pa.Table) -> posbias.Harvest:
    impression = {"impression": "impression_id"} if "impression_id" in table.column_names else {}
    return posbias.harvest(posbias.ClickLog(table, **impression), max_rank=5)


@pytest.fixture(scope="module")
def days() -> list[posbias.Harvest]:
    return [harvest(day(seed)) for seed in range(3)]


def test_different_days_are_merged(days: list[posbias.Harvest]) -> None:
    assert sum(posbias.merge(days).page_views.values()) == 9000
    again = posbias.merge([posbias.merge(days[:2]), days[2]])
    assert [part[0] for part in json.loads(again.about["merged"])] == [
        part[0] for part in json.loads(posbias.merge(days).about["merged"])
    ]


def test_the_same_harvest_twice_is_refused_unless_forced(days: list[posbias.Harvest]) -> None:
    with pytest.raises(posbias.HarvestError, match=r"same rows.*counted twice.*force=True"):
        posbias.merge([days[0], days[0]])
    assert sum(posbias.merge([days[0], days[0]], force=True).page_views.values()) == 6000


@pytest.mark.parametrize("ids", [True, False])
def test_a_day_that_was_harvested_again_is_refused(ids: bool) -> None:
    table = day(1, ids=ids)
    other_order = table.sort_by([("doc_id", "descending")])
    with pytest.raises(posbias.HarvestError, match="same rows"):
        posbias.merge(harvest(table), harvest(other_order))


def test_a_day_whose_queries_are_in_other_buckets_is_refused(days: list[posbias.Harvest], tmp_path: Path) -> None:
    """Engines hash queries in their own ways, as do exports that write other ids for the same queries."""
    table = day(1, ids=False)
    queries = [f"query {query}" for query in table["query_id"].to_pylist()]
    again = harvest(table.set_column(table.column_names.index("query_id"), "query_id", pa.array(queries)))
    posbias.merge(days).save(tmp_path / "week")
    for other in (days[1], posbias.Harvest.load(tmp_path / "week")):
        with pytest.raises(posbias.HarvestError, match="same rows"):
            posbias.merge(again, other)


def test_a_log_harvested_on_two_engines_is_refused(tmp_path: Path, each_engine: str) -> None:
    pq.write_table(day(1), tmp_path / "log.parquet")
    log = posbias.ClickLog(tmp_path / "log.parquet")
    with pytest.raises(posbias.HarvestError, match="same rows"):
        posbias.merge([posbias.harvest(log, max_rank=5, engine=engine) for engine in ("duckdb", each_engine)])


def test_few_clicks_may_be_the_same_by_chance() -> None:
    """Two days of one query and one rank with a dozen clicks each."""
    tables = []
    for query in "ab":
        clicks = [1] * 12 + [0] * 12
        tables.append(pa.table({"query_id": [query] * 24, "doc_id": [1] * 24, "position": [1] * 24, "clicked": clicks}))
    logs = [posbias.ClickLog(table, ranker="none") for table in tables]
    posbias.merge([posbias.harvest(log, max_rank=2, force=True) for log in logs])


def test_a_week_and_one_of_its_days_are_refused(days: list[posbias.Harvest], tmp_path: Path) -> None:
    posbias.merge(days).save(tmp_path / "week")
    week = posbias.Harvest.load(tmp_path / "week")
    for parts in ([week, days[1]], [days[2], week], iter([week, week])):
        with pytest.raises(posbias.HarvestError, match="no day beside a week"):
            posbias.merge(parts)


def test_the_command_refuses_and_can_be_forced(days: list[posbias.Harvest], tmp_path: Path) -> None:
    posbias.merge(days[:2]).save(tmp_path / "both")
    days[0].save(tmp_path / "one")
    words = ["merge", str(tmp_path / "both"), str(tmp_path / "one"), "-o", str(tmp_path / "all")]
    refused = CliRunner().invoke(cli, words)
    assert refused.exit_code == 2
    assert "same rows" in refused.output
    assert "--force" in refused.output
    assert CliRunner().invoke(cli, [*words, "--force"]).exit_code == 0


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_exports_that_share_some_page_views_are_refused(days: list[posbias.Harvest], share: float) -> None:
    table, rows = day(0), int(share * day(0).num_rows) // 5 * 5
    overlapping = pa.concat_tables([table.slice(0, rows), day(7)])
    with pytest.raises(posbias.HarvestError, match=r"share about \d+% of their page views"):
        posbias.merge(days[0], harvest(overlapping))
    assert posbias.merge([days[0], harvest(overlapping)], force=True)


def test_a_page_view_at_midnight_is_no_overlap(days: list[posbias.Harvest]) -> None:
    assert posbias.merge(days[0], harvest(pa.concat_tables([day(0).slice(0, 5), day(7)])))


def test_numbers_that_begin_again_are_no_overlap() -> None:
    tables = [day(seed, ids=False) for seed in (0, 1)]
    numbered = [t.append_column("impression_id", pa.array([i // 5 for i in range(t.num_rows)])) for t in tables]
    assert posbias.merge([harvest(table) for table in numbered])


def test_segments_of_a_harvest_can_be_merged(days: list[posbias.Harvest]) -> None:
    table = day(3)
    devices = pa.array(["phone" if row // 5 % 2 else "desktop" for row in range(table.num_rows)])
    log = posbias.ClickLog(table.append_column("device", devices), impression="impression_id")
    made = posbias.harvest(log, max_rank=5, by="device")
    assert posbias.merge([made.segment("phone"), made.segment("desktop")]).page_views == made.page_views


def test_a_sketch_of_a_large_log_is_small_and_survives_a_merge() -> None:
    made = harvest(pa.concat_tables([day(seed) for seed in range(8)]))
    sketch = Sketch.of(made)
    assert sketch is not None
    assert 1000 < len(sketch.hashes) <= 2048
    whole = Sketch.of(posbias.merge(made, harvest(day(9))))
    assert whole is not None
    assert np.isin(sketch.thinned(whole.one_in).hashes, whole.hashes).all()


def test_one_page_view_in_a_hundred_is_enough(days: list[posbias.Harvest]) -> None:
    """Of 300 pairs of days with 100,000 page views each, of which 1% are the same, no more than three are missed."""
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(300):
        ids = rng.integers(0, 2**64, 199_000, dtype=np.uint64)
        logs = [Sketch(1, part).limited(2048) for part in (ids[:100_000], ids[99_000:])]
        pair = [replace(days[0], about={**days[0].about, "page_view_sketch": sketch.text}) for sketch in logs]
        try:
            refuse_shared_page_views(pair)
            missed += 1
        except posbias.HarvestError:
            pass
    assert missed <= 3


def test_old_files_are_told_apart_too(days: list[posbias.Harvest], tmp_path: Path) -> None:
    """The digest comes from the counts, so a file without a sketch is known again."""
    days[0].save(tmp_path / "new")
    table = pq.read_table(tmp_path / "new")
    about = json.loads(table.schema.metadata[b"posbias.harvest"])
    del about["about"]["page_view_sketch"], about["checksum"]
    about |= {"version": 1, "warnings": []}
    for name in ("kind", "findings"):
        del about[name]
    pq.write_table(table.replace_schema_metadata({b"posbias.harvest": json.dumps(about)}), tmp_path / "old")
    old = posbias.Harvest.load(tmp_path / "old")
    with pytest.raises(posbias.HarvestError, match="same rows"):
        posbias.merge(old, days[0])
    assert posbias.merge(old, days[1])


def test_parts_of_an_earlier_version_are_read(days: list[posbias.Harvest], tmp_path: Path) -> None:
    """They have no digest of totals."""
    week = posbias.merge(days[:2])
    parts = json.dumps([part[:3] for part in json.loads(week.about["merged"])])
    replace(week, about=week.about | {"merged": parts}).save(tmp_path / "old")
    old = posbias.Harvest.load(tmp_path / "old")
    assert posbias.merge(old, days[2])
    with pytest.raises(posbias.HarvestError, match="same rows"):
        posbias.merge(old, days[0])


@pytest.mark.parametrize("order", ["same", "shuffled"])
@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_file_and_its_copy_in_one_folder_are_refused(tmp_path: Path, suffix: str, order: str) -> None:
    """Days of equal length are no copies; a copy may have its rows in another order, and other row groups."""
    for name, seed in (("a", 1), ("b", 2), ("copy of a", 1)):
        frame = day(seed, ids=False).to_pandas()
        copied = name == "copy of a" and order == "shuffled"
        frame = frame.sample(frac=1, random_state=0) if copied else frame
        path = tmp_path / f"{name}.{suffix}"
        if suffix == "parquet":
            # After a shuffle, pandas writes the index of the rows as a column.
            frame.to_parquet(path, row_group_size=1000 if copied else None)
        elif suffix == "csv":
            frame.to_csv(path, index=False)
        else:
            frame.to_json(path, orient="records", lines=True)
    log = posbias.ClickLog(str(tmp_path / f"*.{suffix}"))
    [finding] = [f for f in posbias.check(log).findings if f.code == "copied-files"]
    assert (finding.severity, finding.count) == ("error", 1)
    assert "copy of a" in (finding.example or "")
    with pytest.raises(posbias.LogError, match="copies of other files"):
        posbias.harvest(log)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("merged", "["),
        ("merged", "[1]"),
        ("merged", '[["a"]]'),
        ("page_view_sketch", "x"),
        ("page_view_sketch", "0:"),
        ("page_view_sketch", "4:abc"),
    ],
)
def test_a_damaged_list_of_parts_is_refused(
    days: list[posbias.Harvest], tmp_path: Path, field: str, value: str
) -> None:
    days[0].save(tmp_path / "x")
    table = pq.read_table(tmp_path / "x")
    about = json.loads(table.schema.metadata[b"posbias.harvest"])
    about["about"][field] = value
    pq.write_table(table.replace_schema_metadata({b"posbias.harvest": json.dumps(about)}), tmp_path / "x")
    with pytest.raises(posbias.HarvestError):
        posbias.Harvest.load(tmp_path / "x", force=True)


# ---- Buckets: a query is in the same bucket, whatever type holds its id


TYPES = {
    "int": pa.int64(),
    "small": pa.int16(),
    "text": pa.string(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "double": pa.float64(),
    "decimal": pa.decimal128(12, 2),
    "huge": pa.decimal128(38, 0),
    "unsigned": pa.uint64(),
}


def with_query_type(table: pa.Table, type_: pa.DataType) -> pa.Table:
    """A log whose queries are the numbers from 0 on, as another type."""
    at = table.column_names.index("query_id")
    numbers = table["query_id"].dictionary_encode().combine_chunks().indices.cast(pa.int64())
    if pa.types.is_dictionary(type_):
        ids = numbers.cast(pa.string()).dictionary_encode()
    else:
        ids = (numbers.cast(pa.decimal128(21, 0)) if pa.types.is_decimal(type_) else numbers).cast(type_)
    return table.set_column(at, "query_id", ids)


@pytest.mark.parametrize("layout", ["wide", "replay"])
def test_buckets_do_not_depend_on_the_type_of_the_query(layout: str, each_engine: str) -> None:
    world = posbias.World(queries=40, max_rank=5)
    log = posbias.simulate(world, layout)  # type: ignore[arg-type]
    whole = posbias.harvest(posbias.ClickLog(with_query_type(log, pa.int64())), max_rank=5)
    types = TYPES if each_engine == "duckdb" else {name: TYPES[name] for name in ("text", "double", "decimal")}
    for name, type_ in types.items():
        found = posbias.harvest(posbias.ClickLog(with_query_type(log, type_)), max_rank=5)
        np.testing.assert_array_equal(found.counts("bucket", "rank"), whole.counts("bucket", "rank"), err_msg=name)
        assert found.buckets.tolist() == whole.buckets.tolist(), name


def test_a_day_in_parquet_and_a_day_in_csv_share_their_queries(tmp_path: Path) -> None:
    days = [
        with_query_type(posbias.simulate(posbias.World(queries=40, max_rank=5, seed=s)), pa.int64()) for s in (1, 2)
    ]
    csv.write_csv(days[1], tmp_path / "day.csv")
    mixed = posbias.merge(
        posbias.harvest(posbias.ClickLog(days[0]), max_rank=5),
        posbias.harvest(posbias.ClickLog(tmp_path / "day.csv"), max_rank=5),
    )
    plain = posbias.merge([posbias.harvest(posbias.ClickLog(day), max_rank=5) for day in days])
    fitted = [posbias.CrossFit().fit(harvest) for harvest in (mixed, plain)]
    np.testing.assert_array_equal(fitted[0].degrees_of_freedom_, fitted[1].degrees_of_freedom_)
    np.testing.assert_array_equal(fitted[0].interval_, fitted[1].interval_)


def test_page_views_that_a_csv_and_a_parquet_share_are_found(tmp_path: Path) -> None:
    table = with_query_type(day(4), pa.int64())
    csv.write_csv(table.slice(table.num_rows // 2), tmp_path / "half.csv")
    with pytest.raises(posbias.HarvestError, match="share about"):
        posbias.merge(harvest(table), posbias.harvest(posbias.ClickLog(tmp_path / "half.csv"), max_rank=5))


def test_harvests_of_an_earlier_rule_of_buckets_are_not_mixed_with_new_ones(days: list[posbias.Harvest]) -> None:
    about = {name: value for name, value in days[0].about.items() if name != "bucket_rule"}
    old = replace(days[0], about=about)
    for pair in ((old, days[1]), (days[1], old)):
        with pytest.raises(posbias.HarvestError, match=r"An earlier version of posbias .* Harvest the older log again"):
            posbias.merge(pair)
    forced = posbias.merge([old, days[1]], force=True)
    assert "mixed-engines" in [finding.code for finding in forced.findings]
    assert "mixed-engines" in [finding.code for finding in posbias.merge([forced, days[2]], force=True).findings]
    assert not posbias.compare(old, days[1]).paired
    assert posbias.compare(days[0], days[1]).paired
