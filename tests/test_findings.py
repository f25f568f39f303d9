"""Findings: printed one way, saved with a harvest, added up when days are merged."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import posbias
from posbias.cli.options import as_flags
from posbias.findings import Finding, added, unusable

DAY = Finding("left-out", "warning", "{count} of {rows} rows were left out", 2, evidence={"rows": 1000, "of": "day"})


def spoilt(seed: int) -> posbias.Harvest:
    """A day on which four rows contradict their ranks."""
    rows = posbias.simulate(posbias.World(queries=30, seed=seed)).to_pylist()
    for row in rows[:4]:
        row["position"] += 1
    return posbias.harvest(posbias.ClickLog(pa.Table.from_pylist(rows)))


def test_days_are_added_up() -> None:
    merged = posbias.merge([spoilt(seed) for seed in range(5)])
    finding = next(f for f in merged.findings if f.code == "contradicted-rank")
    assert finding.count == merged.about["rows_contradicted"] == 20
    assert finding.evidence["rows"] == merged.about["rows"]
    assert finding.message.startswith(f"20 of {merged.about['rows']:,} rows were left out")


def test_what_differs_is_said_apart_and_words_are_not_added() -> None:
    other = Finding("left-out", "warning", "{count} rows of another kind", 1)
    assert [f.message for f in added([DAY, other, DAY])] == ["4 of 2,000 rows were left out", "1 rows of another kind"]
    assert added([DAY, DAY])[0].evidence == {"rows": 2000, "of": "day"}
    assert added([]) == ()


def test_braces_in_data_are_data() -> None:
    assert (
        Finding("x", "error", "{count} rows have '{rows}' in {0} and {", 3).message
        == "3 rows have '{rows}' in {0} and {"
    )


def test_findings_are_saved_with_a_harvest(tmp_path) -> None:
    harvest = spoilt(0)
    harvest.save(tmp_path / "x.harvest")
    assert posbias.Harvest.load(tmp_path / "x.harvest").findings == harvest.findings


def test_a_file_of_the_first_version_is_read(tmp_path) -> None:
    harvest = spoilt(0)
    path = tmp_path / "x.harvest"
    harvest.save(path)
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[b"posbias.harvest"])
    about |= {"version": 1, "warnings": ["4 of 3,000 rows were left out."]}
    for name in ("kind", "findings", "checksum"):
        about.pop(name, None)
    pq.write_table(table.replace_schema_metadata({b"posbias.harvest": json.dumps(about)}), path)
    loaded = posbias.Harvest.load(path)
    assert [str(f) for f in loaded.findings] == ["4 of 3,000 rows were left out."]
    assert loaded.kind == harvest.kind
    np.testing.assert_array_equal(loaded.pairs().clicks, harvest.pairs().clicks)


def test_arguments_are_spelled_as_the_reader_writes_them() -> None:
    error = unusable("missing-column", "Column 'q' is not there", "Say which.", arguments={"query": "my id"})
    assert str(error) == "Column 'q' is not there. Say which. Add query='my id'"
    assert error.sentence(as_flags) == "Column 'q' is not there. Say which. Add --query 'my id'"
    assert error.findings[0].to_dict(as_flags)["add"] == "--query 'my id'"


def test_what_was_counted_is_stored_even_where_nothing_was() -> None:
    log = posbias.simulate(posbias.World(queries=20), "replay")
    beyond = log.set_column(log.schema.get_field_index("position"), "position", pa.array([99] * len(log)))
    empty = posbias.harvest(posbias.ClickLog(beyond))
    assert (len(empty.table), empty.kind, empty.layout) == (0, "exposures", "replay")
    whole = posbias.merge([empty, posbias.harvest(posbias.ClickLog(log))])
    assert whole.kind == "exposures"


@pytest.mark.parametrize("rankers", [2, 1505])
def test_a_harvest_is_told_on_one_line(rankers: int) -> None:
    count = 4000
    table = pa.table(
        {
            "query_id": np.arange(count) % 50,
            "doc_id": np.arange(count) % 7,
            "ranker": [f"r\n{i % rankers}" for i in range(count)],
            "position": np.arange(count) % 10 + 1,
            "clicked": np.arange(count) % 3 == 0,
        }
    )
    text = repr(posbias.harvest(posbias.ClickLog(table)))
    assert len(text) < 250
    assert "\n" not in text
    assert ("more rankers" in text) == (rankers > 2)
