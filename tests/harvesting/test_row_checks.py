"""Test that damaged rows give an error or a finding, never a wrong number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import posbias
from posbias.cli import cli
from posbias.engines.duckdb import DuckDBLog, sample_row_groups
from posbias.harvesting import row_checks
from posbias.simulation import rank

WORLD = posbias.World(queries=60, max_rank=5, repeats=6)
Rows = list[dict[str, Any]]


@pytest.fixture
def wide() -> Rows:
    rows: Rows = posbias.simulate(WORLD).to_pylist()
    return rows


def log_of(rows: Rows, **names: Any) -> posbias.ClickLog:
    return posbias.ClickLog(pa.Table.from_pylist(rows), **names)


def harvest(rows: Rows, **names: Any) -> posbias.Harvest:
    return posbias.harvest(log_of(rows, **names), max_rank=5)


@pytest.mark.parametrize("page_view", ["", "d", "x", "0", "session"])
def test_one_id_of_all_page_views_is_an_error_whatever_its_hash(
    wide: Rows, page_view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample by hash of the ids has all rows or none."""
    monkeypatch.setattr(row_checks, "SAMPLE_ROWS", 200)
    with pytest.raises(posbias.LogError, match="rows repeat a result of the same page view"):
        harvest([row | {"impression_id": page_view} for row in wide])


def other(row: dict[str, Any]) -> str:
    """The rank column of the ranker that was not shown."""
    return "rank_b" if row["ranker"] == "a" else "rank_a"


# ---- Segments


@pytest.mark.parametrize("layout", ["wide", "aggregated"])
def test_counted_columns_are_rejected_as_segments(layout: str) -> None:
    table = posbias.simulate(WORLD, aggregated=layout == "aggregated")
    log = posbias.ClickLog(table)
    counts = {"clicks": "clicks", "impressions": "impressions"} if layout == "aggregated" else {}
    outcomes = list(counts) or ["clicked"]
    for column in [*outcomes, "position"]:
        with pytest.raises(posbias.LogError, match=f"'{column}' cannot be both .* and a segment"):
            posbias.harvest(log, by=[column])
        with pytest.raises(posbias.LogError, match=f"'{column}' cannot be both .* and a segment"):
            posbias.harvest_sql("duckdb", "log", by=[column], **counts)


# ---- Ranks of rankers that were not shown

NO_RANKS = {
    "zero": (0, "zero-based-rank", "rank of 0"),
    "negative": (-1, "not-a-rank", "not a whole number of 1 or more"),
    "a fraction": (1.5, "not-a-rank", "not a whole number of 1 or more"),
    "a text": ("third", "not-a-rank", "not a whole number of 1 or more"),
    "a zero as text": ("0", "zero-based-rank", "rank of 0"),
    "infinity": (float("inf"), "not-a-rank", "not a whole number of 1 or more"),
}
NONE = {"null": None, "NaN": float("nan"), "an empty text": "", "the text nan": "NaN", "the text null": "null"}


def spoil(rows: Rows, value: Any, times: int) -> Rows:
    """Put a value in place of the rank by the ranker not shown, in a column of its type."""
    for name in ("rank_a", "rank_b"):
        for row in rows:
            if isinstance(value, str | float) and row[name] is not None:
                row[name] = type(value)(row[name])
    for row in rows[:times]:
        row[other(row)] = value
    return rows


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("case", NO_RANKS)
def test_invalid_ranks_are_rejected(case: str, wide: Rows) -> None:
    value, code, message = NO_RANKS[case]
    rows = spoil(wide, value, times=3)
    with pytest.raises(posbias.LogError, match=f"3 of 1,800 rows .*{message}"):
        harvest(rows)
    with pytest.raises(posbias.LogError, match=message):
        posbias.intervention_sets(log_of(rows), max_rank=5)
    found = posbias.check(log_of(rows), max_rank=5)
    assert not found.usable
    assert [f.count for f in found.findings if f.code == code] == [3]


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("case", NONE)
def test_a_rank_may_be_missing(case: str, wide: Rows) -> None:
    want = harvest([row | {other(row): None} if i < 3 else row for i, row in enumerate(wide)])
    np.testing.assert_array_equal(harvest(spoil(wide, NONE[case], times=3)).pairs().clicks, want.pairs().clicks)


@pytest.mark.usefixtures("each_engine")
def test_ranks_in_a_second_table_are_checked() -> None:
    rows = posbias.simulate(WORLD, "long").to_pylist()
    table = rank(WORLD).to_pylist()
    for row in table:
        row["rank"] -= 1
    log = log_of(rows, rankings=pa.Table.from_pylist(table))
    with pytest.raises(posbias.LogError, match="rows of the rankings have a rank of 0 in 'rank'"):
        posbias.harvest(log, max_rank=5)
    assert "zero-based-rank" in [f.code for f in posbias.check(log, max_rank=5).findings]


# ---- Clicks that are missing, and those that are all there is


@pytest.mark.usefixtures("each_engine")
def test_missing_clicks_after_a_join_count_as_no_click(wide: Rows) -> None:
    want = harvest(wide)
    for row in wide:
        row["clicked"] = row["clicked"] or None
    found = posbias.check(log_of(wide), max_rank=5)
    finding = next(f for f in found.findings if f.code == "null")
    assert "COALESCE(clicked, 0)" in finding.remedy
    np.testing.assert_array_equal(harvest(wide, **finding.arguments).pairs().clicks, want.pairs().clicks)


DAMAGED = {
    "duplicates": (lambda rows: [*rows, *rows[:50]], "50 rows repeat"),
    "only clicks": (lambda rows: [row for row in rows if row["clicked"]], "results were clicked"),
    "no clicks": (lambda rows: [row | {"clicked": 0} for row in rows], "not a single click on 1,800"),
}


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_log_is_rejected_unless_allowed(case: str, wide: Rows, tmp_path: Path) -> None:
    damage, message = DAMAGED[case]
    log = log_of(damage(wide))
    for count in (posbias.harvest, posbias.intervention_sets, posbias.NaiveCTR(max_rank=5).observe):
        settings = {} if count.__name__ == "observe" else {"max_rank": 5}
        with pytest.raises(posbias.LogError, match=f"(?s){message}" + ".*add force=True" * (case != "no clicks")):
            count(log, **settings)  # type: ignore[operator]
        count(log, force=True, **settings)  # type: ignore[operator]
    forced = posbias.harvest(log, max_rank=5, force=True)
    forced.save(tmp_path / "x.harvest")
    kept = posbias.Harvest.load(tmp_path / "x.harvest").findings
    assert any(message in f.message and f.severity == "error" for f in kept)


def test_command_prints_findings_and_the_remedy(wide: Rows, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_pylist([*wide, *wide[:50]]), path)
    for command in (
        ["estimate"],
        ["harvest", "-o", str(tmp_path / "x")],
        ["sets"],
        ["estimate", "--estimator", "naive-ctr"],
    ):
        refused = CliRunner().invoke(cli, [command[0], str(path), *command[1:]])
        assert refused.exit_code == 2, refused.output
        assert "50 rows repeat" in refused.stderr
        assert "Add --duplicates drop" in refused.stderr
        assert "add --force" in refused.stderr
        assert refused.stdout == ""
        forced = CliRunner().invoke(cli, [command[0], str(path), *command[1:], "--force"])
        assert forced.exit_code == 0, forced.output
        assert "Note: 50 rows repeat" in forced.stderr or command == ["sets"]


# ---- A sample of page views


@pytest.mark.parametrize("ending", ["parquet", pytest.param("csv", marks=pytest.mark.long)])
def test_duplicates_are_found_in_a_sample_of_a_large_log(ending: str, tmp_path: Path) -> None:
    table = posbias.simulate(posbias.World(queries=3000, max_rank=10))
    assert len(table) > 2 * 2**17
    # At least once means here and there: one page view in fifty came twice.
    twice = table.filter(pa.compute.equal(pa.compute.bit_wise_and(table["impression_id"], 63), 5))
    path = tmp_path / f"log.{ending}"
    (pq.write_table if ending == "parquet" else pa.csv.write_csv)(pa.concat_tables([twice, table]), path)
    with pytest.raises(
        posbias.LogError, match=r"[Ii]n (a sample of one in 2|the first 131,072 rows), [\d,]+ rows repeat"
    ):
        posbias.harvest(posbias.ClickLog(path))
    full = posbias.check(posbias.ClickLog(path))
    assert [f.count for f in full.findings if f.code == "duplicates"] == [len(twice)]


# What is written in row groups of 2,000 rows, by how it came about: 150 of them, of which every so many are looked at.
DELIVERED = {
    "once": lambda table: table,
    "joined": lambda table: pa.concat_tables([part for i in range(0, 3 * 10**5, 10) for part in _joined(table, i)]),
    "the log twice": lambda table: pa.concat_tables([table, table]),
    "a batch twice": lambda table: pa.concat_tables([table, table.slice(100_000, 120_000)]),
    "a batch twice, out of step": lambda table: pa.concat_tables([table, table.slice(100_777, 120_000)]),
}


def _joined(table: pa.Table, start: int) -> list[pa.Table]:
    """Return a page of ten results, one in seven with its last two results twice."""
    page = table.slice(start, 10)
    return [page, table.slice(start + 8, 2)] if start % 70 == 0 else [page]


@pytest.mark.parametrize("kind", DELIVERED)
def test_duplicates_are_found_in_some_row_groups(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[float] = []
    sample_rows = DuckDBLog.sample_rows

    @contextmanager
    def watched(self: DuckDBLog, columns: Sequence[str]) -> Iterator[tuple[str, float] | None]:
        with sample_rows(self, columns) as part:
            assert part is not None
            read.append(part[1])
            yield part

    monkeypatch.setattr(DuckDBLog, "sample_rows", watched)
    table = posbias.simulate(posbias.World(queries=3000, max_rank=10))
    path = tmp_path / "log.parquet"
    pq.write_table(DELIVERED[kind](table), path, row_group_size=2_000)
    log = posbias.ClickLog(path)
    if kind == "once":
        assert posbias.harvest(log).findings == ()
    else:
        with pytest.raises(posbias.LogError, match=r"[\d,]+ rows repeat a result"):
            posbias.harvest(log)
    assert read == [pytest.approx(8 / 57, abs=0.02)]


def test_row_groups_are_sampled_from_all_matching_files(tmp_path: Path) -> None:
    table = posbias.simulate(posbias.World(queries=300, max_rank=10))
    half = len(table) // 2
    for name, part in {"a": table.slice(0, half), "b": table.slice(half)}.items():
        pq.write_table(part, tmp_path / f"{name}.parquet", row_group_size=500)
    files = [str(tmp_path / f"{name}.parquet") for name in "ab"]
    found = sample_row_groups(files, ["impression_id"])
    assert found is not None
    assert [len(groups) for _, groups in found.files] == [8, 7]
    rows = found.reader().read_all()
    assert rows.column_names == ["impression_id"]
    assert len(rows) == round(found.share * len(table)) == 15 * 500
    assert set(rows["impression_id"].to_pylist()) < set(table["impression_id"].to_pylist())
    # Few row groups are all looked at, and files that differ too.
    assert sample_row_groups(files[:1], ["impression_id"]) is None
    assert sample_row_groups(files, ["no such column"]) is None
    pq.write_table(pa.table({"impression_id": pa.array(range(half), pa.int32())}), files[1], row_group_size=500)
    assert sample_row_groups(files, ["impression_id"]) is None


def test_pairs_of_a_large_log_are_counted_in_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000)))
    exact = posbias.check(log)
    monkeypatch.setattr("posbias.harvesting.intervention_sets._MOST_ROWS", 50_000)
    sampled = posbias.check(log)
    assert (exact.sampled_one_in, sampled.sampled_one_in) == (1, 4)
    assert "one query in 4, to count documents" in str(sampled)
    assert "sample" not in str(exact)
    assert sampled.documents == pytest.approx(exact.documents, rel=0.1)
    assert sampled.documents_at_several_ranks == pytest.approx(exact.documents_at_several_ranks, rel=0.1)
    assert "about" in str(sampled)
    assert "about" not in str(exact)


def test_identical_rankers_are_reported_from_all_pairs_not_from_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = posbias.simulate(posbias.World(queries=200, max_rank=3)).to_pylist()
    # Rankers agree on all queries but those of one in some, which no sample has.
    moved = {row["query_id"] for row in rows if row["rank_a"] != row["rank_b"]}
    few = [row for row in rows if row["query_id"] not in moved or row["query_id"] == min(moved)]
    monkeypatch.setattr("posbias.harvesting.intervention_sets._MOST_ROWS", 1)
    found = posbias.check(log_of(few), max_rank=3)
    assert "no-disagreement" not in [finding.code for finding in found.findings]
    assert found.documents_at_several_ranks


@pytest.mark.parametrize(
    ("dtype", "start", "found"),
    [
        ("float32", 2**24 + 10, True),
        ("float32", 1000, False),
        ("float64", 2**53 + 10, True),
        ("float64", 2**52, False),
        ("int64", 2**60, False),
    ],
)
def test_ids_that_a_float_cannot_hold_are_an_error(dtype: str, start: int, found: bool) -> None:
    frame = posbias.simulate(posbias.World(queries=40, max_rank=3), "replay").to_pandas()
    frame["doc_id"] = (frame["doc_id"] + start).astype(dtype)
    log = posbias.ClickLog(frame)
    assert ("rounded-ids" in {f.code for f in posbias.check(log, max_rank=3).findings}) is found
    if found:
        with pytest.raises(posbias.LogError, match=r"'doc_id'.*does not hold exactly.*BIGINT or VARCHAR"):
            posbias.harvest(log, max_rank=3)


def test_a_bad_rank_of_a_document_that_was_not_shown_is_an_error() -> None:
    world = posbias.World(queries=40, max_rank=3)
    table = posbias.simulate(world, "wide").to_pandas()
    names = ["query_id", "doc_id"]
    ranks = [table[names].assign(ranker=r, rank=table[f"rank_{r}"]).dropna().drop_duplicates() for r in ("a", "b")]
    never = pandas.DataFrame({"query_id": [0], "doc_id": [10**6], "ranker": ["a"], "rank": [-1]})
    log = table.drop(columns=["rank_a", "rank_b"])
    assert posbias.harvest(posbias.ClickLog(log, rankings=pandas.concat(ranks)), max_rank=3)
    with pytest.raises(posbias.LogError, match=r"1 of .* rows of the rankings have a rank"):
        posbias.harvest(posbias.ClickLog(log, rankings=pandas.concat([*ranks, never])), max_rank=3)


def test_a_harvest_file_holds_no_example(tmp_path: Path) -> None:
    rows = posbias.simulate(posbias.World(queries=40, max_rank=3)).to_pylist()
    named = [row | {"query_id": f"secret {row['query_id']}"} for row in rows]
    spoilt = [row | {"impression_id": f"v{i // 3}"} for i, row in enumerate(named)]
    spoilt += spoilt[:3]
    made = posbias.harvest(posbias.ClickLog(pa.Table.from_pylist(spoilt)), max_rank=3, force=True)
    assert any("secret" in (finding.example or "") for finding in made.findings)
    made.save(tmp_path / "x")
    assert b"secret" not in pq.read_schema(tmp_path / "x").metadata[b"posbias.harvest"]


@pytest.mark.parametrize("written", ["{d}/{m}/2026", "{d:02}.{m:02}.2026 00:00", "2026-{m:02}-{d:02}"])
def test_rankers_that_followed_one_another_are_found_however_days_are_written(written: str) -> None:
    log = posbias.simulate(posbias.World(queries=60, repeats=30, max_rank=3)).to_pandas()
    log = log.drop(columns=["rank_a", "rank_b"])
    day = log["impression_id"] % 28 + 1
    replaced = log.assign(day=[written.format(d=d, m=1 + (r == "b")) for d, r in zip(day, log["ranker"], strict=True)])
    together = log.assign(day=[written.format(d=d, m=1) for d in day])
    for table, code in ((replaced, "rankers-replaced"), (together, "rankers-overlap")):
        assert code in [one.code for one in posbias.harvest(posbias.ClickLog(table), max_rank=3).findings]
