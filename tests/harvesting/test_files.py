"""Test that damaged or edited harvest files are rejected with the reason, or give the same harvest."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import posbias
from posbias._json import RecordError
from posbias.harvesting import files
from posbias.harvesting.files import check_harvest
from tests.support.users import with_users

# `make fuzz` flips every byte and cuts at every length.
STEP = int(os.environ.get("POSBIAS_FUZZ_STEP", "23"))
WORLD = posbias.World(queries=6, repeats=4, max_rank=3, segments={"phone": 1.5, "desktop": 0.5})


def made(kind: str, **options: Any) -> posbias.Harvest:
    layout, strata = {"signatures": ("wide", 10**6), "exposures": ("replay", 10**6), "pairs": ("replay", 0)}[kind]
    log = posbias.ClickLog(posbias.simulate(WORLD, layout))
    return posbias.harvest(log, max_rank=3, by=["device"], max_strata=strata, **options)


def made_with_units(ranks: str | None = None, **options: Any) -> posbias.Harvest:
    log = with_users(5, queries=6, max_rank=3)
    log = log.append_column(
        "device", pa.array([("phone", None)[user % 2] for user in log.column("user_id").to_pylist()])
    )
    log = log.append_column("kind", pa.array([str(doc % 2) for doc in log.column("doc_id").to_pylist()]))
    return posbias.harvest(posbias.ClickLog(log, ranks=ranks), max_rank=3, **options)


HARVESTS = {
    "signatures": made("signatures"),
    "exposures": made("exposures"),
    "pairs": made("pairs"),
    "a segment": made("signatures").segment("phone"),
    "by traffic": made("exposures", weighting="traffic"),
    "units": made_with_units(by="device"),
    "units of pairs": made_with_units(by="device", max_strata=0),
    "units of a segment of documents": made_with_units(by="kind").segment("1"),
    "units in replay": made_with_units(by="device", ranks="none"),
    "units of pairs in replay": made_with_units(by="device", ranks="none", max_strata=0),
    "units of a segment of documents in replay": made_with_units(by="kind", ranks="none").segment("1"),
    "empty": replace(made("exposures"), segments=(), table=made("exposures").table.where(np.zeros(0, dtype=np.int64))),
}


def assert_same(one: posbias.Harvest, other: posbias.Harvest) -> None:
    for name in ("max_rank", "rankers", "layout", "weighting", "by", "segments", "kind", "about", "findings"):
        assert getattr(one, name) == getattr(other, name), name
    for name, column in one.table.columns().items():
        np.testing.assert_array_equal(column, getattr(other.table, name), name)
    assert (one.traffic is None) == (other.traffic is None)
    if one.traffic is not None:
        np.testing.assert_array_equal(one.traffic, other.traffic)
    assert (one.units is None) == (other.units is None)
    if one.units is not None and other.units is not None:
        assert one.units.column == other.units.column
        for left, right in zip(
            (one.units.by_unit, one.units.by_both), (other.units.by_unit, other.units.by_both), strict=True
        ):
            assert_same(replace(left, findings=()), replace(right, findings=()))


def refused_or_same(path: Path, whole: posbias.Harvest) -> None:
    try:
        loaded = posbias.Harvest.load(path)
    except posbias.PosbiasError:
        return
    assert_same(loaded, whole)


# ---- Bytes


@pytest.mark.parametrize("kind", HARVESTS)
def test_saved_harvest_is_read_back(kind: str, tmp_path: Path) -> None:
    HARVESTS[kind].save(tmp_path / "x.harvest")
    assert_same(posbias.Harvest.load(tmp_path / "x.harvest"), HARVESTS[kind])


def test_a_finding_that_lists_positions_is_read_back(tmp_path: Path) -> None:
    rows = posbias.simulate(posbias.World(queries=300, max_rank=4)).to_pylist()
    log = posbias.ClickLog(pa.Table.from_pylist([row for row in rows if row["clicked"] or row["position"] in (1, 3)]))
    harvest = posbias.harvest(log, max_rank=4, force=True)
    [finding] = [finding for finding in harvest.findings if finding.code == "only-clicks-at-position"]
    assert finding.evidence == {"positions": [2, 4]}
    harvest.save(tmp_path / "x.harvest")
    assert finding in posbias.Harvest.load(tmp_path / "x.harvest").findings


@pytest.mark.parametrize("kind", HARVESTS)
def test_checksum_follows_the_documentation(kind: str, tmp_path: Path) -> None:
    """docs/harvest_file.md, followed by hand."""
    HARVESTS[kind].save(tmp_path / "x.harvest")
    table = pq.read_table(tmp_path / "x.harvest")
    said = json.loads(table.schema.metadata[b"posbias.harvest"])
    checksum = said.pop("checksum")
    assert checksum == checksum_by_hand(table, said)


def checksum_by_hand(table: pa.Table, said: dict[str, Any]) -> str:
    labels = [name for name in table.column_names if name.startswith("segment_")]
    keys = list(zip(*(table.column(name).to_pylist() for name in labels), strict=True)) or [()] * len(table)
    segments = sorted({*keys} if labels else {()}, key=lambda key: [(v is not None, v or "") for v in key])
    columns = {"segment": pa.array([segments.index(key) for key in keys], pa.int64())}
    columns |= {name: table.column(name) for name in table.column_names if name not in labels}
    data = json.dumps(said | {"segments": segments}, sort_keys=True).encode()
    for name, column in columns.items():
        values = column.to_pylist()
        whole = [8, 4, 2, 1] if said["version"] > 2 and min(values, default=0) >= 0 else [8]
        size = min(n for n in whole if n == 8 or max(values, default=0) < 256**n)
        form = "d" if pa.types.is_floating(column.type) else {8: "q", 4: "I", 2: "H", 1: "B"}[size]
        data += f"{name} {len(values)} ".encode()
        data += {"d": b"<f8", "q": b"<i8", "I": b"<u4", "H": b"<u2", "B": b"|u1"}[form]
        data += struct.pack(f"<{len(values)}{form}", *values)
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("kind", ["signatures", "exposures", "pairs", "units", "units in replay"])
def test_flipped_byte_is_rejected_or_harmless(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.harvest"
    HARVESTS[kind].save(path)
    data = path.read_bytes()
    for place in range(0, len(data), STEP):
        for flip in (1 << (place // STEP % 8), 0xFF):
            path.write_bytes(data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])
            refused_or_same(path, HARVESTS[kind])


@pytest.mark.parametrize("kind", ["signatures", "pairs"])
def test_truncated_file_is_rejected(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.harvest"
    HARVESTS[kind].save(path)
    data = path.read_bytes()
    for length in range(0, len(data), STEP):
        path.write_bytes(data[:length])
        with pytest.raises(posbias.HarvestError):
            posbias.Harvest.load(path)


def test_random_bytes_are_rejected(tmp_path: Path) -> None:
    path, random = tmp_path / "x.harvest", np.random.default_rng(0)
    for size in (0, 1, 7, 8, 12, 100, 10_000):
        noise = random.integers(0, 256, size, dtype=np.uint8).tobytes()
        for data in (noise, b"PAR1" + noise + len(noise).to_bytes(4, "little") + b"PAR1"):
            path.write_bytes(data)
            with pytest.raises(posbias.HarvestError):
                posbias.Harvest.load(path)


# ---- Rows, columns and fields, with and without a checksum that fits


def edited(path: Path, edit: Callable[[pa.Table], pa.Table] = lambda table: table, **fields: Any) -> None:
    """Write a file anew with other columns or fields; `...` takes a field away."""
    table = pq.ParquetFile(path).read()
    record = json.loads(table.schema.metadata[b"posbias.harvest"]) | fields
    said = json.dumps({name: value for name, value in record.items() if value is not ...})
    pq.write_table(edit(table).replace_schema_metadata({b"posbias.harvest": said}), path)


def first_version(path: Path, **fields: Any) -> None:
    edited(path, **{"version": 1, "warnings": [], "kind": ..., "findings": ..., "checksum": ...} | fields)


def put(name: str, value: Any, row: int = 0) -> Callable[[pa.Table], pa.Table]:
    def edit(table: pa.Table) -> pa.Table:
        values = table.column(name).to_pylist()
        values[row] = value
        return table.set_column(table.column_names.index(name), name, pa.array(values))

    return edit


def shared(name: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    """Put a value into a cell that has others in its stratum."""

    def edit(table: pa.Table) -> pa.Table:
        strata = table.column("stratum").to_pylist()
        return put(name, value, next(i for i, stratum in enumerate(strata) if strata.count(stratum) > 1))(table)

    return edit


def one_less(name: str) -> Callable[[pa.Table], pa.Table]:
    """Take one from a count that stays within its bounds."""

    def edit(table: pa.Table) -> pa.Table:
        values = table.column(name).to_pylist()
        row = next(i for i, value in enumerate(values) if value >= 2)
        return put(name, values[row] - 1, row)(table)

    return edit


def swapped(one: str, other: str) -> Callable[[pa.Table], pa.Table]:
    def edit(table: pa.Table) -> pa.Table:
        return table.rename_columns([{one: other, other: one}.get(name, name) for name in table.column_names])

    return edit


def twice(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table])


# What a file without a checksum shows by itself, by what it holds.
DAMAGES: dict[str, dict[str, tuple[Callable[[pa.Table], pa.Table], str]]] = {
    "signatures": {
        "no stratum": (put("stratum", None), "column stratum has no value in 1 rows"),
        "rows twice": (twice, "two ranks of one ranker, or a cell twice"),
        "a negative count": (
            put("clicks", -1),
            r"column clicks has the invalid value -1 in row 1 \(invalid rows: 1\); expected 0 to the number of impr",
        ),
        "clicks above impressions": (put("clicks", 10**6), "column clicks has the invalid value 1000000"),
        "counts of 2^62": (put("impressions", 2**62), "column impressions has the invalid value 4611686018427387904"),
        "an infinite stratum": (put("stratum", 2**62), "column stratum has the invalid value"),
        "a split stratum": (
            shared("bucket", 255),
            "column bucket has the invalid value .* the same in all cells of a stratum",
        ),
        "a stratum of two segments": (shared("segment_0", "tablet"), "column segment has the invalid value"),
        "a bucket too many": (put("bucket", 256), "column bucket has the invalid value 256 .* 0 to 255"),
        "a rank too many": (put("rank", 4), "column rank has the invalid value 4 .* 1 to 3"),
        "a ranker too many": (put("ranker", 2), "column ranker has the invalid value 2 .* 0 to 1"),
        "no ranker": (put("ranker", -1), "column ranker has the invalid value -1"),
        "pairs": (put("pairs", 1), "column pairs has the invalid value"),
        "another column": (lambda table: table.append_column("more", table.column("rank")), "columns .*'more'"),
        "a column less": (lambda table: table.drop_columns(["rank"]), "it has the columns"),
        "a column twice": (lambda table: table.append_column("rank", table.column("rank")), "it has the columns"),
        "columns exchanged": (swapped("ranker", "rank"), "column rank"),
        "texts": (
            lambda table: put("rank", 1)(table).cast(texts_in(table, "rank")),
            "column rank is of type string where a number",
        ),
        "fractions": (
            lambda table: table.set_column(3, "pairs", pa.array([0.5] * len(table))),
            "column pairs has a number that is not int64",
        ),
    },
    "exposures": {
        "rows twice": (twice, "a cell twice"),
        "no pairs": (lambda table: table.set_column(3, "pairs", pa.array([0] * (len(table) - 1) + [9])), "pairs"),
        "uneven": (shared("pairs", 10**6), "column pairs has the invalid value"),
    },
    "pairs": {
        "rows twice": (twice, "two rows for the same ranks"),
        "not a number": (put("clicks", float("nan")), "column clicks has the invalid value nan .* a finite number"),
        "infinite": (put("skips", float("inf")), "column skips has the invalid value inf"),
        "negative": (put("skips", -0.5), "column skips has the invalid value -0.5"),
        "a fraction of a click": (
            put("clicks", 0.5),
            "column clicks has the invalid value 0.5 .* whole number if other is 0",
        ),
        "no ranker": (put("ranker", -1), "column ranker has the invalid value -1"),
        "another rank": (put("other", 4), "column other has the invalid value 4"),
        "columns exchanged": (swapped("rank", "other"), "column"),
    },
}
CASES = [(kind, name, *case) for kind, cases in DAMAGES.items() for name, case in cases.items()]


def texts_in(table: pa.Table, name: str) -> pa.Schema:
    return pa.schema([pa.field(f.name, pa.string() if f.name == name else f.type) for f in table.schema])


@pytest.mark.parametrize(("kind", "name", "edit", "message"), CASES, ids=[f"{c[0]}: {c[1]}" for c in CASES])
def test_edited_columns_are_rejected(
    kind: str, name: str, edit: Callable[[pa.Table], pa.Table], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.harvest"
    HARVESTS[kind].save(path)
    edited(path, edit)
    with pytest.raises(posbias.HarvestError, match=r"damaged or was edited: .*\. Harvest the log again\.$"):
        posbias.Harvest.load(path)
    # The same by a file that has no checksum, and by one whose checksum was made to fit.
    first_version(path)
    with pytest.raises(posbias.HarvestError, match=message):
        posbias.Harvest.load(path)


@pytest.mark.parametrize("kind", ["signatures", "exposures", "pairs"])
@pytest.mark.parametrize(
    "edit",
    [
        lambda table: table.slice(1),
        lambda table: table.slice(0, 0),
        lambda table: table.take(pa.array(range(len(table) - 1, -1, -1))),
        one_less("clicks"),
        one_less("rank"),
    ],
    ids=["a row less", "no row", "backwards", "a click less", "another rank"],
)
def test_edits_detected_only_by_the_checksum_are_rejected(kind: str, edit: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.harvest"
    HARVESTS[kind].save(path)
    edited(path, edit)
    with pytest.raises(posbias.HarvestError, match="checksum"):
        posbias.Harvest.load(path)


DEEP = json.loads("[" * 500 + "]" * 500)
FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "max_rank": ({"max_rank": 100_000}, "max_rank is 100000 where a whole number, 2 to 1,000 was expected"),
    "max_rank as text": ({"max_rank": "3"}, "max_rank is '3'"),
    "max_rank as truth": ({"max_rank": True}, "max_rank is True"),
    "another max_rank": ({"max_rank": 4}, "checksum"),
    "rankers twice": ({"rankers": ["a", "a"]}, "rankers has a name twice"),
    "rankers as text": ({"rankers": "ab"}, "rankers is 'ab' where a list"),
    "rankers as numbers": ({"rankers": [1, 2]}, r"rankers\[0\] is 1 where a text"),
    "rankers exchanged": ({"rankers": ["b", "a"]}, "checksum"),
    "a ranker less": ({"rankers": ["a"], "page_views": {"a": 1}}, "checksum"),
    "page views": ({"page_views": {"a": 1, "b": 2}}, "checksum"),
    "page views of others": ({"page_views": {"a": 1}}, "page_views is"),
    "negative page views": ({"page_views": {"a": -1, "b": 2}}, "page_views"),
    "layout": ({"layout": "tall"}, "layout is 'tall' where one of 'wide'"),
    "another layout": ({"layout": "long"}, "checksum"),
    "a list as layout": ({"layout": ["wide"]}, r"layout is \['wide'\]"),
    "weighting": ({"weighting": "none"}, "weighting is 'none'"),
    "by": ({"by": ["land"]}, "checksum"),
    "by more": ({"by": ["device", "land"]}, "it has the columns"),
    "by twice": ({"by": ["device", "device"]}, "by has a name twice"),
    "buckets": ({"buckets": 64}, "buckets is 64 where 256"),
    "kind": ({"kind": "strata"}, "kind is 'strata'"),
    "another kind": ({"kind": "exposures"}, "checksum"),
    "table": ({"table": "pair_sums"}, "it has the columns"),
    "no such table": ({"table": "rows"}, "table is 'rows'"),
    "version": ({"version": 6}, "format version 6 and this posbias reads up to 5. Upgrade posbias"),
    "a version with units": ({"version": 4}, "it has no 'unit'"),
    "the second version": ({"version": 2}, "checksum"),
    "version as text": ({"version": "3"}, "version is '3'"),
    "the first version": ({"version": 1}, "it has no 'warnings'"),
    "no version": ({"version": ...}, "it has no 'version'"),
    "no checksum": ({"checksum": ...}, "it has no 'checksum'"),
    "checksum as number": ({"checksum": 7}, "checksum is 7"),
    "no traffic": ({"traffic": ...}, "it has no 'traffic'"),
    "traffic": ({"traffic": [[1, 2], [3]]}, "traffic has rows of 1 and 2 numbers"),
    "traffic as text": ({"traffic": "none"}, "traffic is 'none'"),
    "negative traffic": ({"traffic": [[-1.0, 2.0]]}, r"traffic\[0\]\[0\] is -1.0"),
    "more": ({"more": 1}, "it has the field 'more'"),
    "deep": ({"about": DEEP}, "about is .* where an object"),
    "deep about": ({"about": {"rows": DEEP}}, "rows"),
    "about as text": ({"about": "x"}, "about is 'x'"),
    "rows as text": ({"about": {"rows": "many"}}, r"about\['rows'\] is 'many'"),
    "source as number": ({"about": {"source": 1}}, r"about\['source'\] is 1"),
    "a list in about": ({"about": {"more": [1]}}, r"about\['more'\] is \[1\]"),
    "findings": ({"findings": [{}]}, r"findings\[0\] has the fields"),
    "findings as text": ({"findings": "none"}, "findings is 'none'"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_edited_fields_are_rejected(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.harvest"
    HARVESTS["signatures"].save(path)
    fields, message = FIELDS[name]
    edited(path, **fields)
    with pytest.raises(posbias.HarvestError, match=message) as refused:
        posbias.Harvest.load(path)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("code", 1),
        ("severity", "fatal"),
        ("what", None),
        ("count", -1),
        ("count", 1.5),
        ("example", 3),
        ("evidence", {"rows": [[1]]}),
        ("evidence", {"rows": {"a": [1]}}),
        ("evidence", []),
        ("remedy", None),
        ("arguments", {"query": 1}),
        ("arguments", {"query": ["a", 1]}),
        ("arguments", "query"),
    ],
)
def test_invalid_finding_is_rejected(field: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.harvest"
    HARVESTS["by traffic"].save(path)
    [finding] = json.loads(pq.read_schema(path).metadata[b"posbias.harvest"])["findings"]
    edited(path, findings=[finding | {field: value}])
    with pytest.raises(posbias.HarvestError, match=r"findings\[0\]"):
        posbias.Harvest.load(path)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b"{", "it is not JSON"),
        (b"3", "its metadata is 3"),
        (b'{"version": 2, "version": 2}', "it has 'version' twice"),
        (b'{"version": NaN}', "it holds NaN"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"version": ' + b"1" * 5000 + b"}", "it is not JSON"),
        (b"\xff\xfe\xfd", "it is not JSON"),
    ],
    ids=["cut", "a number", "twice", "NaN", "deep", "long", "no text"],
)
def test_invalid_metadata_is_rejected(said: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.harvest"
    pq.write_table(pa.table({"bucket": [1]}).replace_schema_metadata({b"posbias.harvest": said}), path)
    with pytest.raises(posbias.HarvestError, match=message):
        posbias.Harvest.load(path)


@pytest.mark.parametrize("kind", ["signatures", "exposures", "pairs"])
def test_a_file_of_the_first_version_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.harvest"
    HARVESTS[kind].save(path)
    first_version(path, warnings=["Mind the gap."])
    loaded = posbias.Harvest.load(path)
    assert [str(finding) for finding in loaded.findings] == ["Mind the gap."]
    assert_same(replace(loaded, findings=()), HARVESTS[kind])


@pytest.mark.parametrize("kind", [kind for kind, harvest in HARVESTS.items() if harvest.units is None])
def test_a_file_of_the_second_version_is_read(kind: str, tmp_path: Path) -> None:
    """It has numbers of 64 bits, plain texts, rows in any order, and strata by any number."""
    path = tmp_path / "x.harvest"
    HARVESTS[kind].save(path)
    table = pq.ParquetFile(path).read()
    said = json.loads(table.schema.metadata[b"posbias.harvest"]) | {"version": 2}
    del said["checksum"]
    wide = [
        pa.string() if f.name[:8] == "segment_" else pa.from_numpy_dtype(HARVESTS[kind].table.columns()[f.name].dtype)
        for f in table.schema
    ]
    table = table.cast(pa.schema(list(zip(table.column_names, wide, strict=True))))
    if "stratum" in table.column_names:
        table = table.take(pa.array(np.random.default_rng(0).permutation(len(table))))
        strata = [(7 * number) % 10_007 for number in table.column("stratum").to_pylist()]
        table = table.set_column(table.column_names.index("stratum"), "stratum", pa.array(strata, pa.int64()))
    said["checksum"] = checksum_by_hand(table, said)
    pq.write_table(table.replace_schema_metadata({b"posbias.harvest": json.dumps(said)}), path)
    assert_same(posbias.Harvest.load(path), HARVESTS[kind])


UNIT_FIELDS: dict[str, tuple[Any, str]] = {
    "no unit": (..., "it has no 'unit'"),
    "null": (None, "unit is None"),
    "text": ("user_id", "unit is 'user_id'"),
    "no column": ({"traffic": None}, "column"),
    "column as number": ({"column": 1, "traffic": None}, "column is 1"),
    "one traffic": ({"column": "user_id", "traffic": [[[1.0]]]}, "page views by unit"),
    "another column": ({"column": "visitor_id", "traffic": None}, "checksum"),
}


@pytest.mark.parametrize("name", UNIT_FIELDS)
def test_edited_unit_is_rejected(name: str, tmp_path: Path) -> None:
    path, (unit, message) = tmp_path / "x.harvest", UNIT_FIELDS[name]
    HARVESTS["units"].save(path)
    edited(path, unit=unit)
    with pytest.raises(posbias.HarvestError, match=message):
        posbias.Harvest.load(path)


@pytest.mark.parametrize("kind", ["units", "units in replay"])
def test_counts_by_unit_must_add_up(kind: str) -> None:
    harvest = HARVESTS[kind]
    assert harvest.units is not None
    table = harvest.units.by_unit.table
    fewer = replace(harvest.units.by_unit, table=table.where(table.bucket > table.bucket.min()))
    with pytest.raises(RecordError, match="do not add up"):
        check_harvest(replace(harvest, units=replace(harvest.units, by_unit=fewer)))


@pytest.mark.parametrize("layout", ["wide", "replay"])
def test_a_loaded_harvest_gives_the_results_of_the_harvest(layout: str, tmp_path: Path) -> None:
    world = posbias.World(queries=300, max_rank=5, rankers=("a", "b", "c"), segments={"phone": 1.5, "desktop": 0.5})
    made = posbias.harvest(posbias.ClickLog(posbias.simulate(world, layout)), by=["device"], max_rank=5)
    made.save(tmp_path / "x.harvest")
    loaded = posbias.Harvest.load(tmp_path / "x.harvest")
    assert_same(loaded, made)
    for estimator in (posbias.CrossFit, posbias.AllPairs):
        one, other = (estimator().fit(harvest) for harvest in (made, loaded))
        for name in ("propensity_", "interval_", "covariance_"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert posbias.diagnose(made).to_dict() == posbias.diagnose(loaded).to_dict()


def test_recomputed_checksum_does_not_hide_invalid_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.harvest"
    harvest = HARVESTS["exposures"]
    columns = harvest.table.columns()
    monkeypatch.setattr(files, "check_harvest", lambda harvest: None)
    replace(harvest, table=type(harvest.table)(**columns | {"clicks": columns["impressions"] + 1})).save(path)
    monkeypatch.undo()
    with pytest.raises(posbias.HarvestError, match="column clicks has the invalid value"):
        posbias.Harvest.load(path)


@pytest.mark.parametrize(
    ("column", "value"),
    [("clicks", -1), ("clicks", 10**6), ("clicks", 0.5), ("rank", 4), ("segment", 7), ("bucket", 256)],
)
def test_unreadable_harvests_are_not_written(column: str, value: float, tmp_path: Path) -> None:
    harvest, path = HARVESTS["exposures"], tmp_path / "x.harvest"
    wrong = getattr(harvest.table, column).astype(type(value), copy=True)
    wrong[0] = value
    with pytest.raises(
        posbias.HarvestError, match=f"cannot be saved, because it could not be loaded again: its column {column}"
    ):
        replace(harvest, table=replace(harvest.table, **{column: wrong})).save(path)
    assert not path.exists()


def test_too_large_counts_are_rejected() -> None:
    harvest = HARVESTS["signatures"]
    many = tuple(f"ranker {i}" for i in range(100_000))
    with pytest.raises(RecordError, match="which together need too much memory"):
        check_harvest(replace(harvest, rankers=many, max_rank=1000))


def test_large_stratum_numbers_are_renumbered(tmp_path: Path) -> None:
    harvest, path = HARVESTS["signatures"], tmp_path / "x.harvest"
    far = replace(harvest, table=replace(harvest.table, stratum=harvest.table.stratum * 10**9))
    far.save(path)
    loaded = posbias.Harvest.load(path)
    assert loaded.table.stratum.max() < len(loaded.table)
    np.testing.assert_array_equal(loaded.pairs().clicks, harvest.pairs().clicks)


def test_segments_are_read_back_sorted(tmp_path: Path) -> None:
    harvest, path = HARVESTS["exposures"], tmp_path / "x.harvest"
    turned = replace(
        harvest,
        segments=(("unused",), *harvest.segments[::-1]),
        table=replace(harvest.table, segment=2 - harvest.table.segment),
    )
    turned.save(path)
    assert_same(posbias.Harvest.load(path), harvest)
