"""Test exports with flipped or missing bytes: each gives a posbias error or a valid harvest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import posbias
from posbias.harvesting.exports import load_export
from posbias.harvesting.files import check_harvest, is_export, is_harvest
from tests.support.logs import Row
from tests.support.warehouses import run_duckdb, to_csv, to_gzip, to_parquet

STEP = int(os.environ.get("POSBIAS_FUZZ_STEP", "23"))
WORLD = posbias.World(queries=4, repeats=4, max_rank=3, segments={"phone": 1.5, "desktop": 0.5})


def answer(layout: str) -> list[Row]:
    rankers = {"rankers": ["a", "b"]} if layout == "wide" else {}
    sql = posbias.harvest_sql("duckdb", "clicks", by=["device"], max_rank=3, **rankers)
    with run_duckdb() as run:
        return run(sql, {"clicks": posbias.simulate(WORLD, layout)})


ANSWERS = {layout: answer(layout) for layout in ("wide", "replay")}


def refused_or_possible(path: Path) -> None:
    # It is read as an export even where its columns no longer say that it is one.
    for load in (posbias.Harvest.load, load_export):
        try:
            check_harvest(load(path))
        except posbias.PosbiasError as error:
            told = str(error)
        else:
            continue
        assert len(told) < 3000
    assert is_harvest(path) in (True, False)


@pytest.mark.parametrize("layout", ANSWERS)
@pytest.mark.parametrize("export", [to_csv, to_gzip, to_parquet])
def test_flipped_byte_raises_only_posbias_errors(layout: str, export: Any, tmp_path: Path) -> None:
    path = export(ANSWERS[layout], tmp_path)
    data = path.read_bytes()
    for place in range(0, len(data), STEP):
        for flip in (1 << (place // STEP % 8), 0xFF):
            path.write_bytes(data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])
            refused_or_possible(path)


@pytest.mark.parametrize("layout", ANSWERS)
@pytest.mark.parametrize("export", [to_gzip, to_parquet])
def test_flipped_byte_under_a_checksum_changes_no_count(layout: str, export: Any, tmp_path: Path) -> None:
    path = export(ANSWERS[layout], tmp_path)
    if export is to_parquet:
        pq.write_table(pq.read_table(path), path, write_page_checksum=True)
    whole = posbias.Harvest.load(path)
    data = path.read_bytes()
    # A footer has no checksum of its own.
    end = len(data) - (int.from_bytes(data[-8:-4], "little") + 8 if export is to_parquet else 0)
    for place in range(10, end, STEP):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        try:
            loaded = posbias.Harvest.load(path)
        except posbias.PosbiasError:
            continue
        for name, column in whole.table.columns().items():
            assert (column == getattr(loaded.table, name)).all()


@pytest.mark.parametrize("layout", ANSWERS)
@pytest.mark.parametrize("export", [to_csv, to_gzip, to_parquet])
def test_truncated_file_is_rejected(layout: str, export: Any, tmp_path: Path) -> None:
    path = export(ANSWERS[layout], tmp_path)
    data = path.read_bytes()
    # The last line of a CSV file is whole without its end.
    for length in range(0, len(data) - 2, STEP):
        path.write_bytes(data[:length])
        with pytest.raises(posbias.PosbiasError):
            load_export(path)


# ---- A log is told from a harvest by names of columns and keys, never by what it holds

COLUMNS = {"query_id": ["zz answer_rows", "about", "bucket"], "doc_id": ["posbias.harvest", "row_count", "pairs"]}


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"answer_rows": [1, 1, 1]},
        {"about": ["x", "y", "z"], "bucket": [1, 2, 3]},
        {name: [1, 1, 1] for name in ("about", "answer_rows", "bucket", "row_count", "stratum", "pairs")},
        {"answer_rows_2": [1, 1, 1], "posbias.harvest": [1, 1, 1], "my about, bucket": [1, 1, 1]},
    ],
    ids=["values", "one column", "two columns", "all columns", "longer names"],
)
def test_log_is_never_read_as_a_harvest(ending: str, more: dict[str, list[Any]], tmp_path: Path) -> None:
    rows = {**COLUMNS, "ranker": ["a", "a", "a"], "position": [1, 2, 3], "clicked": [0, 1, 0], **more}
    path = tmp_path / f"log{ending}"
    if ending == ".csv":
        to_csv(pa.table(rows).to_pylist(), tmp_path).rename(path)
    else:
        pq.write_table(pa.table(rows), path)
    assert not is_harvest(path)
    assert not is_export(path)
    assert sum(posbias.harvest(posbias.ClickLog(path)).page_views.values()) == 1


def test_log_with_similar_metadata_is_not_a_harvest(tmp_path: Path) -> None:
    table = pa.table({**COLUMNS, "note": ["posbias.harvest"] * 3})
    pq.write_table(table.replace_schema_metadata({"note": "posbias.harvest"}), tmp_path / "log.parquet")
    assert not is_harvest(tmp_path / "log.parquet")


def test_export_with_an_extra_column_is_read(tmp_path: Path) -> None:
    path = to_parquet([{"": i} | row for i, row in enumerate(ANSWERS["wide"])], tmp_path)
    assert is_export(path)
    posbias.Harvest.load(path)
