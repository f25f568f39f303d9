"""Save a harvest as one Parquet file, load it, and recognise harvest files.

The counts are the columns of the file. Everything else is JSON in its metadata, with a checksum of the whole content.
A file can be damaged or edited by hand, so `load` reads it strictly: each field of the metadata has a reader, and
`check_harvest` rejects counts that no log could have, before anything is computed from them. docs/harvest_file.md
describes the format.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args

import numpy as np

from posbias._arrays import (
    AnyArray,
    BoolArray,
    IntArray,
    any_row,
    distinct,
    group,
    numbers_from_arrow,
    numbers_to_arrow,
    run_in_background,
    starts_of_runs,
    texts_to_arrow,
    valid_in_arrow,
)
from posbias._files import HARVEST, atomic_write, parquet_footer, special_file_kind
from posbias._json import (
    Reader,
    RecordError,
    abbreviated,
    dict_of,
    integer,
    list_of,
    mapping,
    nullable,
    number,
    one_of,
    parse,
    read_record,
    text,
    unexpected,
)
from posbias._text import listed, printable
from posbias._validate import as_path
from posbias.engines.base import merge_segments
from posbias.engines.files import DELIMITERS, first_record
from posbias.errors import HarvestError
from posbias.findings import MARKS, Finding
from posbias.harvesting.count import MAX_COUNT, MAX_RANKERS, MAX_RANKS, MAX_SEGMENTS, MAX_STRATA, TableKind
from posbias.harvesting.harvest import Harvest, Units
from posbias.harvesting.overlaps import MergedPart
from posbias.harvesting.row_checks import RowCounts
from posbias.harvesting.tables import Cells, PairSums, join_buckets, sort_cells, split_buckets
from posbias.logs.click_log import LAYOUTS, WEIGHTINGS, Layout, Segment, Weighting
from posbias.progress import step
from posbias.sql.dialects import BUCKETS

# Bounds for the Parquet reader: the length of the metadata, and the number of columns and row groups.
_MAX_METADATA_BYTES = 64 * 2**20
_MAX_COLUMN_CHUNKS = 1_000_000
# Far more rows than a harvest has; a damaged file of a few bytes can claim any number.
_MAX_ROWS = 50 * MAX_STRATA
# The key in the metadata of a Parquet file that marks it as a harvest.
METADATA_KEY = b"posbias.harvest"
# The columns of an answer to a query of `posbias sql`: those of signatures, and those of exposures, in lower case.
_ANSWER_COLUMNS = {"about", "answer_rows", "bucket", "row_count"}
_EXPORT_COLUMNS = (
    _ANSWER_COLUMNS | {"ranker", "code_0", "impressions", "clicks"},
    _ANSWER_COLUMNS | {"stratum", "pairs"},
)
# Columns that a log has and an answer does not.
_LOG_COLUMNS = {"query_id", "doc_id", "position"}
# The header of a CSV file is within its first bytes.
_HEADER_BYTES = 2**16
_GZIP_MAGIC = b"\x1f\x8b"
FORMAT_VERSION = 5
# A harvest without counts by unit, or with strata by unit, is written as before, so that an older posbias can read it.
_VERSION_WITHOUT_UNITS, _VERSION_WITHOUT_LOSSES = 3, 4
# The columns of cells with what sums over intervention sets lose without each bucket of units.
_LOSS_COLUMNS = {"other": "int64", "lost_clicks": "float64", "lost_skips": "float64"}
# The types of whole numbers in a file besides int64.
_NARROW_TYPES = ("uint8", "uint16", "uint32")
# Columns of cells in whose order a file is written: they take no space if only the steps between rows are.
_SORTED_COLUMNS = ("bucket", "stratum")
TABLES: dict[str, type[Cells] | type[PairSums]] = {"cells": Cells, "pair_sums": PairSums}
# The fields of `about` that are counts, and those that are texts.
_COUNT_FIELDS = (*(f.name for f in fields(RowCounts)), "parts", "bucket_rule")
_TEXT_FIELDS = ("posbias", "engine", "made", "source")
# The largest size of an array by bucket and ranker, or by ranker and rank: half a GB.
_MAX_NUMBERS = 2**26
# The largest stratum number. Multiplied by the number of rankers, it still fits into 64 bits.
_MAX_STRATUM = 2**40
_REMEDY = "Harvest the log again."
# A number, and numbers of 8 bytes in base 64.
_SKETCH = re.compile(r"[1-9]\d{0,18}:(?:[A-Za-z0-9+/]{32})*(?:[A-Za-z0-9+/]{22}==|[A-Za-z0-9+/]{11}=)?")


@step("Writing the harvest")
def save(harvest: Harvest, path: str | os.PathLike[str]) -> None:
    """Save a harvest as a Parquet file; an interrupted write leaves an old file unchanged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_harvest(harvest)
        harvest = _normalized(harvest)
    except RecordError as error:
        raise HarvestError(
            f"The harvest cannot be saved, because it could not be loaded again: {printable(str(error))}."
        ) from None
    columns = {name: _narrow(column) for name, column in _all_counts(harvest).items()}
    record = _metadata_record(harvest)
    record["checksum"] = _checksum(record, harvest.segments, columns)
    segment = columns.pop("segment").astype(np.int32)
    labels = {}
    for i, label in enumerate(segment_columns(harvest.by)):
        missing = np.array([key[i] is None for key in harvest.segments], dtype=np.bool_)
        texts = texts_to_arrow([key[i] or "" for key in harvest.segments])
        labels[label] = pa.DictionaryArray.from_arrays(numbers_to_arrow(segment, missing[segment]), texts)
    table = pa.table(labels | {name: numbers_to_arrow(column) for name, column in columns.items()})
    table = table.replace_schema_metadata({METADATA_KEY: json.dumps(record, allow_nan=False).encode()})
    steps = [name for name in columns if name in _SORTED_COLUMNS]
    with atomic_write(path, HARVEST) as part:
        pq.write_table(
            table,
            part,
            compression="zstd",
            write_page_checksum=True,
            use_dictionary=[name for name in table.column_names if name not in steps],
            column_encoding=dict.fromkeys(steps, "DELTA_BINARY_PACKED"),
        )


@step("Reading the harvest")
def load(path: str | os.PathLike[str], *, force: bool = False) -> Harvest:
    """Load a harvest that posbias saved or that a warehouse exported; a damaged or incomplete file raises an error.

    Arguments:
        path (str or path): the file.
        force (bool, default False): load an export even if its counts show that the log is damaged.
    """
    name = as_path("path", path, HarvestError)
    if not os.path.exists(name):
        raise HarvestError(f"There is no file {name!r}.")
    if os.path.isdir(name):
        raise HarvestError(
            f"{name!r} is a folder. Name a harvest file, or merge the harvests in the folder: posbias merge {name}/*"
        )
    if (kind := special_file_kind(name)) is not None:
        raise HarvestError(f"{name!r} is {kind}. Name a harvest file.")
    if is_export(name):
        from posbias.harvesting.exports import load_export

        return load_export(name, force=force)
    try:
        table = read_parquet(name)
    except RecordError as error:
        raise HarvestError(
            f"{name!r} is not a harvest, or is truncated or damaged: {printable(str(error))}. {_REMEDY}"
        ) from None
    metadata = (table.schema.metadata or {}).get(METADATA_KEY)
    if metadata is None:
        raise HarvestError(
            f"{name!r} is a Parquet file but not a harvest. If it is a click log, harvest it first: posbias harvest."
        )
    try:
        return _read_harvest(metadata, table)
    except RecordError as error:
        raise HarvestError(
            f"The harvest {name!r} is damaged or was edited: {printable(str(error))}. {error.remedy or _REMEDY}"
        ) from None


def check_harvest(harvest: Harvest, *, losses: bool = False) -> None:
    """Raise an error if no log could have led to a harvest: counts out of range, mixed strata or repeated cells.

    Arguments:
        harvest (Harvest): the harvest.
        losses (bool, default False): whether its sums are what is lost without a bucket, which can be negative.
    """
    table = harvest.table
    _check_kind(harvest)
    check_range("segment", table.segment, 0, len(harvest.segments) - 1)
    check_range("bucket", table.bucket, 0, BUCKETS - 1)
    check_range("rank", table.rank, 1, harvest.max_rank)
    if isinstance(table, Cells):
        _check_cells(table, harvest)
    else:
        _check_sums(table, harvest, losses=losses)
    if len(harvest.segments) > MAX_SEGMENTS:
        raise RecordError(f"it has {len(harvest.segments):,} segments, more than {MAX_SEGMENTS:,}")
    if len(harvest.rankers) * max(len(harvest.buckets), harvest.max_rank) > _MAX_NUMBERS:
        raise RecordError(
            f"it has {len(harvest.buckets):,} buckets, {len(harvest.rankers):,} rankers and {harvest.max_rank:,} "
            "ranks, which together need too much memory"
        )
    if harvest.traffic is not None:
        _check_traffic(harvest)
    if harvest.units is not None:
        _check_units(harvest, harvest.units)


def _check_units(harvest: Harvest, units: Units) -> None:
    """Raise an error if counts by unit do not add up to those by query."""
    for other in (units.by_unit, units.by_both):
        check_harvest(other, losses=units.are_losses)
        if not np.array_equal(harvest.counts("segment", "ranker", "rank"), other.counts("segment", "ranker", "rank")):
            raise RecordError("its counts by unit do not add up to those by query")


def _all_counts(harvest: Harvest) -> dict[str, AnyArray]:
    """Return the counts as a file has them: those by unit after those by query, with larger numbers of buckets."""
    if harvest.units is None:
        return harvest.table.columns()
    by_units = [harvest.units.by_unit.table, harvest.units.by_both.table]
    if type(harvest.table) is type(by_units[0]):
        return join_buckets([harvest.table, *by_units]).columns()
    cells, losses = harvest.table, join_buckets(by_units)
    assert isinstance(losses, PairSums)
    plain = losses.other == 0
    none = np.zeros(len(losses), dtype=np.int64)
    after = {
        "segment": losses.segment,
        "bucket": losses.bucket + BUCKETS,
        "ranker": np.maximum(losses.ranker, 0),
        "rank": losses.rank,
        "impressions": np.where(plain, losses.clicks + losses.skips, 0).astype(np.int64),
        "clicks": np.where(plain, losses.clicks, 0).astype(np.int64),
    }
    columns = {name: np.concatenate([column, after.get(name, none)]) for name, column in cells.columns().items()}
    before = np.zeros(len(cells), dtype=np.int64)
    columns["other"] = np.concatenate([before, losses.other])
    for name in ("clicks", "skips"):
        lost = np.where(plain, 0.0, getattr(losses, name))
        columns[f"lost_{name}"] = np.concatenate([before.astype(np.float64), lost])
    return columns


def _losses(columns: Mapping[str, AnyArray]) -> list[PairSums]:
    """Return what sums lose without each bucket of units, and of queries and units, from the columns of a file."""
    rows = columns["bucket"] >= BUCKETS
    other, clicks, shown = (columns[name][rows] for name in ("other", "clicks", "impressions"))
    plain = other == 0
    losses = PairSums(
        segment=columns["segment"][rows],
        bucket=columns["bucket"][rows] - BUCKETS,
        ranker=np.where(plain, columns["ranker"][rows], -1),
        rank=columns["rank"][rows],
        other=other,
        clicks=np.where(plain, clicks, columns["lost_clicks"][rows]),
        skips=np.where(plain, shown - clicks, columns["lost_skips"][rows]),
    )
    return split_buckets(losses, 2)


def _check_kind(harvest: Harvest) -> None:
    if (harvest.kind == "pairs") != isinstance(harvest.table, PairSums):
        raise RecordError(f"its table does not fit its kind, {harvest.kind!r}")
    if harvest.kind == "signatures" and not (harvest.layout.ranks_known and harvest.weighting == "traffic"):
        raise RecordError(
            f"it has signatures of a {harvest.layout.value} log with the weighting {harvest.weighting!r}, but "
            "signatures need known ranks and the weighting 'traffic'"
        )


def check_range(name: str, column: IntArray, low: int, high: int) -> None:
    """Raise an error if a column has values outside of a range."""
    if len(column) and not (low <= column.min() and column.max() <= high):
        check_values(name, column, (column < low) | (column > high), f"{low} to {high:,}")


def check_values(name: str, column: AnyArray, invalid: BoolArray, expected: str) -> None:
    """Raise an error with the first invalid value of a column."""
    if invalid.any():
        raise RecordError(
            f"its column {name} has the invalid value {column[invalid][0]} in row {int(np.argmax(invalid)) + 1:,} "
            f"(invalid rows: {int(invalid.sum()):,}); expected {expected}"
        )


def _check_cells(cells: Cells, harvest: Harvest) -> None:
    check_range("ranker", cells.ranker, 0, len(harvest.rankers) - 1)
    check_range("stratum", cells.stratum, 0, _MAX_STRATUM)
    check_counts("impressions", cells.impressions)
    check_counts("pairs", cells.pairs)
    if any_row(lambda rows: (cells.clicks[rows] < 0) | (cells.clicks[rows] > cells.impressions[rows]), len(cells)):
        invalid = (cells.clicks < 0) | (cells.clicks > cells.impressions)
        check_values("clicks", cells.clicks, invalid, "0 to the number of impressions")
    # Cells that are in order are compared with the cell before them. Grouping takes longer than reading the file.
    ordered = cells.in_order
    first, stratum = (cells.stratum[:0], cells.stratum) if ordered else group([cells.stratum])
    for name in ("segment", "bucket", "pairs"):
        column: IntArray = getattr(cells, name)
        if not ordered or _changes_within(column, stratum):
            first = first if not ordered else np.flatnonzero(starts_of_runs(stratum))
            check_values(name, column, column != column[first][stratum], "the same in all cells of a stratum")
    if harvest.kind == "signatures":
        check_values("pairs", cells.pairs, cells.pairs != 0, "0, because signatures do not count pairs")
        _check_distinct([stratum, cells.ranker], "a stratum has two ranks of one ranker, or a cell twice")
    else:
        check_values("pairs", cells.pairs, cells.pairs < 1, "1 or more")
        if any_row(lambda rows: cells.impressions[rows] % cells.pairs[rows] != 0, len(cells)):
            check_values(
                "impressions",
                cells.impressions,
                cells.impressions % cells.pairs != 0,
                "a multiple of pairs, because all pairs of a stratum have equally many",
            )
        if not ordered:
            _check_distinct([stratum, cells.ranker, cells.rank], "a stratum has a cell twice")


def _changes_within(column: IntArray, stratum: IntArray) -> bool:
    """Return whether a column of cells changes within a stratum; the cells of a stratum are adjacent."""

    def changes(rows: slice) -> BoolArray:
        both = slice(rows.start, rows.stop + 1)
        return np.asarray((np.diff(column[both]) != 0) & (np.diff(stratum[both]) == 0))

    return any_row(changes, len(column) - 1)


def check_counts(name: str, column: AnyArray, least: int = 0) -> None:
    """Raise an error for counts that are too small, and for counts whose sum is too large to be exact."""
    check_range(name, column, least, MAX_COUNT)
    if float(column.sum(dtype=np.float64)) > MAX_COUNT:
        raise RecordError(f"its column {name} adds up to more than {MAX_COUNT:,}")


def _check_distinct(keys: Sequence[IntArray], message: str) -> None:
    """Raise an error if two rows have the same keys. Keys are not negative."""
    if len(group(keys)[0]) < len(keys[0]):
        raise RecordError(message)


def _check_sums(sums: PairSums, harvest: Harvest, *, losses: bool) -> None:
    check_range("other", sums.other, 0, harvest.max_rank)
    check_range("ranker", sums.ranker, -1, len(harvest.rankers) - 1)
    check_values("other", sums.other, sums.other == sums.rank, "another rank than in the column rank")
    plain = sums.other == 0
    check_values("ranker", sums.ranker, plain != (sums.ranker >= 0), "a ranker if other is 0, and -1 otherwise")
    for name in ("clicks", "skips"):
        column: AnyArray = getattr(sums, name)
        check_values(name, column, ~np.isfinite(column), "a finite number")
        # Without a bucket that was rarely clicked, the click rate of the others is higher.
        check_counts(name, np.where(plain, column, np.abs(column)) if losses else column)
        check_values(name, column, plain & (column != np.rint(column)), "a whole number if other is 0")
    keys = [sums.segment, sums.bucket, sums.ranker + 1, sums.rank, sums.other]
    _check_distinct(keys, "it has two rows for the same ranks, bucket, ranker and segment")


def _check_traffic(harvest: Harvest) -> None:
    traffic = harvest.views
    expected = (len(harvest.buckets), len(harvest.rankers))
    if traffic.shape != expected:
        raise RecordError(f"traffic has the shape {traffic.shape} where {expected} was expected: buckets and rankers")
    check_counts("traffic", traffic.reshape(-1))


def _normalized(harvest: Harvest) -> Harvest:
    """Return a harvest as it will be loaded: only segments with rows, sorted rows, and numbers of 64 bits."""
    used = {i: harvest.segments[i] for i in distinct(harvest.table.segment, len(harvest.segments)).tolist()}
    order = sorted(used, key=lambda i: [(value is not None, value or "") for value in used[i]])
    number = np.zeros(len(harvest.segments), dtype=np.int64)
    number[order] = np.arange(len(order))
    types = _column_types(type(harvest.table))
    columns = {name: column.astype(types[name], copy=False) for name, column in harvest.table.columns().items()}
    for name, column in harvest.table.columns().items():
        if not np.array_equal(columns[name], column):
            raise RecordError(f"its column {name} has numbers that are not {types[name]}")
    columns["segment"] = number[columns["segment"]]
    segments = tuple(used[i] for i in order) if harvest.by else ((),)
    table = type(harvest.table)(**columns)
    units = None if harvest.units is None else harvest.units.map(_normalized)
    table = sort_cells(table) if isinstance(table, Cells) else table
    return replace(harvest, segments=segments, table=table, units=units)


def _narrow(column: AnyArray) -> AnyArray:
    """Return whole numbers that are not negative in the smallest type that holds them; other columns as they are."""
    if column.dtype.kind not in "iu" or column.min(initial=0) < 0:
        return column
    largest = int(column.max(initial=0))
    narrow = (name for name in _NARROW_TYPES if largest <= np.iinfo(name).max)
    return column.astype(next(narrow, "int64"), copy=False)


def _column_types(table: type[Cells] | type[PairSums], *, losses: bool = False) -> dict[str, str]:
    """Return the type of each column, with or without the columns of losses."""
    real = ("clicks", "skips") if table is PairSums else ()
    types = {column.name: "float64" if column.name in real else "int64" for column in fields(table)}
    return types | (_LOSS_COLUMNS if losses else {})


def segment_columns(by: tuple[str, ...]) -> list[str]:
    """Return the names of the columns of segments in a file."""
    return [f"segment_{i}" for i in range(len(by))]


def _metadata_record(harvest: Harvest) -> dict[str, Any]:
    """Return the metadata of a harvest file, without the checksum."""
    units = harvest.units
    unit = {} if units is None else {"unit": _unit_record(units)}
    with_units = FORMAT_VERSION if units is not None and units.are_losses else _VERSION_WITHOUT_LOSSES
    return {
        "version": with_units if unit else _VERSION_WITHOUT_UNITS,
        "table": "cells" if isinstance(harvest.table, Cells) else "pair_sums",
        "kind": harvest.kind,
        "max_rank": harvest.max_rank,
        "rankers": list(harvest.rankers),
        "page_views": harvest.page_views,
        "layout": harvest.layout.value,
        "weighting": harvest.weighting,
        "by": list(harvest.by),
        "buckets": BUCKETS,
        "about": dict(harvest.about),
        # An example names a row of the log, and a harvest file may be sent on.
        "findings": [asdict(replace(finding, example=None)) for finding in harvest.findings],
        "traffic": None if harvest.traffic is None else harvest.traffic.tolist(),
        **unit,
    }


def _unit_record(units: Units) -> dict[str, Any]:
    traffic = [None if one.traffic is None else one.traffic.tolist() for one in (units.by_unit, units.by_both)]
    return {"column": units.column, "traffic": None if traffic[0] is None else traffic}


def _checksum(record: Mapping[str, Any], segments: tuple[Segment, ...], columns: Mapping[str, AnyArray]) -> str:
    """Return the SHA-256 of the metadata, the segments and the counts in their order."""
    content = {name: value for name, value in record.items() if name != "checksum"} | {"segments": segments}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name, column in columns.items():
        digest.update(f"{name} {len(column)} {column.dtype.newbyteorder('<').str}".encode())
        digest.update(np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


def is_export(path: str | os.PathLike[str]) -> bool:
    """Return whether a file has the columns of an answer to a query of `posbias sql`, complete or not."""
    footer = parquet_footer(path)
    return _has_export_columns(csv_header(path)[0]) if footer is None else _is_parquet_export(path, footer)


def _has_export_columns(names: Iterable[str]) -> bool:
    """Return whether columns are those of an answer. One may be missing: `load_export` then reports it."""
    found = {name.strip().lower() for name in names}
    return min(len(columns - found) for columns in _EXPORT_COLUMNS) <= 1 and not found & _LOG_COLUMNS


def csv_header(path: str | os.PathLike[str]) -> tuple[list[str], str]:
    """Return the column names in the first line of a CSV file, in lower case, and its delimiter."""
    try:
        with open_csv(path) as file:
            head: bytes = file.read(_HEADER_BYTES)
        text = head.decode("utf-8-sig", "replace")
        delimiter = max(DELIMITERS, key=lambda d: len(first_record(text, d)))
        return [name.strip().lower() for name in first_record(text, delimiter)], delimiter
    except (OSError, EOFError, ValueError, zlib.error, csv.Error):
        return [], ","


def open_csv(path: str | os.PathLike[str]) -> Any:
    """Open a text file, which may be compressed, for reading bytes."""
    with open(path, "rb") as file:
        compressed = file.read(2) == _GZIP_MAGIC
    if not compressed:
        return open(path, "rb")
    import gzip

    return gzip.open(path)


def _is_parquet_export(path: str | os.PathLike[str], footer: bytes) -> bool:
    # Search the bytes first, because parsing the footer takes longer than reading a small harvest.
    if not any(name in footer.lower() for name in (b"about", b"answer_rows")):
        return False
    names, keys = _names_and_keys(path)
    return METADATA_KEY not in keys and _has_export_columns(names)


def _names_and_keys(path: str | os.PathLike[str]) -> tuple[list[str], frozenset[bytes]]:
    """Return the columns of a Parquet file and the keys of its metadata; nothing if the file is damaged."""
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
        return metadata.schema.to_arrow_schema().names, frozenset(metadata.metadata or ())
    # Damaged bytes can raise any exception here. The function that reads the file reports the error.
    except Exception:
        return [], frozenset()


def read_parquet(name: str) -> Any:
    """Return a Parquet file as an Arrow table, verifying the checksums of its pages if it has them."""
    import pyarrow.parquet as pq

    try:
        # ParquetFile, because a dataset would add a column for a folder such as a=1.
        with pq.ParquetFile(
            name,
            thrift_string_size_limit=_MAX_METADATA_BYTES,
            thrift_container_size_limit=_MAX_COLUMN_CHUNKS,
            page_checksum_verification=True,
        ) as file:
            if file.metadata.num_rows <= _MAX_ROWS:
                return file.read()
            rows = file.metadata.num_rows
    # Damaged bytes can raise any exception: of Arrow, of memory, of decoding.
    except Exception as error:
        raise RecordError(f"it cannot be read as Parquet ({first_line(error)})") from None
    raise RecordError(f"it claims to have {rows:,} rows, but at most {_MAX_ROWS:,} can be read")


def first_line(error: Exception) -> str:
    """Return the first line of an error message, or the type of the error if it has no message."""
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__


def _read_harvest(metadata_json: bytes, table: Any) -> Harvest:
    record = parse(metadata_json)
    metadata = read_metadata(record)
    settings = metadata.settings
    stored, segments = _read_columns(metadata, table)
    types = _column_types(metadata.table, losses=metadata.losses)
    columns = {name: column.astype(types[name], copy=False) for name, column in stored.items()}
    unit, kinds = metadata.unit, 1 if metadata.unit is None else 3
    check_range("bucket", columns["bucket"], 0, kinds * BUCKETS - 1)
    by_units: Sequence[Cells | PairSums]
    if metadata.losses:
        kept = columns["bucket"] < BUCKETS
        counts = metadata.table(**{name: column[kept] for name, column in columns.items() if name not in _LOSS_COLUMNS})
        by_units = _losses(columns)
    else:
        counts, *by_units = split_buckets(metadata.table(**columns), kinds)
    # Before version 3 all numbers had 64 bits.
    stored = columns if record["version"] < 3 else {name: _narrow(column) for name, column in stored.items()}
    harvest = Harvest(
        max_rank=settings.max_rank,
        rankers=settings.rankers,
        layout=settings.layout,
        weighting=settings.weighting,
        by=settings.by,
        segments=segments,
        kind=metadata.kind or _infer_kind(counts),
        table=counts,
        about=metadata.about,
        findings=metadata.findings,
        traffic=None if metadata.traffic is None else _traffic_array(metadata.traffic),
    )
    if unit is not None:
        harvest = harvest.with_units(unit["column"], by_units, map(_traffic_array, unit["traffic"] or []))
    # The checksum takes as long as all other checks. Its error replaces theirs: damage can look like anything.
    checksum = run_in_background(lambda: _checksum(record, segments, stored))
    try:
        check_harvest(harvest)
    finally:
        if metadata.checksum is not None and metadata.checksum != checksum.result():
            raise RecordError("its checksum does not match its content")
    return _sorted(harvest)


def _sorted(harvest: Harvest) -> Harvest:
    """Return a harvest with sorted cells. A table in order stays, and with it what the checks have counted."""
    units = None if harvest.units is None else harvest.units.map(_sorted)
    ordered = sort_cells(harvest.table) if isinstance(harvest.table, Cells) else harvest.table
    return harvest if ordered is harvest.table and units is None else replace(harvest, table=ordered, units=units)


def read_metadata(value: Any) -> Metadata:
    """Return the metadata of a harvest file of any format version; unknown fields are an error."""
    version = read_record(mapping(value, "its metadata"), "", {"version": integer(1)})["version"]
    if version > FORMAT_VERSION:
        raise RecordError(
            f"it has format version {version} and this posbias reads up to {FORMAT_VERSION}", "Upgrade posbias."
        )
    fields = _VERSION_FIELDS[version]
    values = read_record(value, "", fields)
    unknown = [name for name in value if name not in fields]
    if unknown:
        raise RecordError(f"it has the field {abbreviated(unknown[0])}, which format version {version} does not have")
    settings = read_settings(value)
    if {*values["page_views"]} != {*settings.rankers}:
        raise unexpected("page_views", list(values["page_views"]), "a number for each of the rankers")
    return Metadata(
        table=TABLES[values["table"]],
        settings=settings,
        kind=values.get("kind"),
        about=values["about"],
        findings=tuple(values["warnings"] if version == 1 else values["findings"]),
        traffic=values["traffic"],
        checksum=values.get("checksum"),
        unit=values.get("unit"),
    )


@dataclass(frozen=True)
class Metadata:
    """The metadata of a harvest file; `kind` and `checksum` are None in format version 1, `unit` before version 4."""

    table: type[Cells] | type[PairSums]
    settings: FileSettings
    kind: TableKind | None
    about: Mapping[str, Any]
    findings: tuple[Finding, ...]
    traffic: list[list[float]] | None
    checksum: str | None
    unit: Mapping[str, Any] | None

    @property
    def losses(self) -> bool:
        """Whether cells are followed by what sums over intervention sets lose without each bucket of units."""
        return self.unit is not None and self.table is Cells and self.kind == "exposures"


@dataclass(frozen=True)
class FileSettings:
    """The settings of a harvest, which harvest files and exports both have."""

    max_rank: int
    rankers: tuple[str, ...]
    layout: Layout
    weighting: Weighting
    by: tuple[str, ...]


def read_settings(record: Mapping[str, Any]) -> FileSettings:
    """Return the settings of a harvest in a record."""
    values = read_record(record, "", _SETTINGS_FIELDS)
    if values["buckets"] != BUCKETS:
        raise unexpected("buckets", values["buckets"], str(BUCKETS))
    return FileSettings(
        max_rank=values["max_rank"],
        rankers=values["rankers"],
        layout=LAYOUTS[values["layout"]],
        weighting=values["weighting"],
        by=values["by"],
    )


def _read_names(value: Any, where: str) -> tuple[str, ...]:
    names = tuple(list_of(text)(value, where))
    if len({*names}) < len(names):
        raise RecordError(f"{where} has a name twice: {abbreviated(names)}")
    if len(names) > MAX_RANKERS:
        raise RecordError(f"{where} has {len(names):,} names where up to {MAX_RANKERS:,} were expected")
    return names


def _read_about(value: Any, where: str) -> dict[str, Any]:
    about = dict(mapping(value, where))
    readers: dict[str, Reader[Any]] = {**dict.fromkeys(_COUNT_FIELDS, integer()), **dict.fromkeys(_TEXT_FIELDS, text)}
    readers |= {"merged": _read_parts, "page_view_sketch": _read_sketch}
    for name, item in about.items():
        readers.get(name, _read_scalar)(item, f"{where}[{abbreviated(name)}]")
    return about


def _read_parts(value: Any, where: str) -> str:
    """Return the text that lists what a harvest was merged from."""
    try:
        parts = json.loads(text(value, where))
    except ValueError:
        raise RecordError(f"{where} is not JSON") from None
    for part in list_of(list_of(text))(parts, where):
        # Earlier versions wrote three texts.
        if len(part) not in (3, len(MergedPart._fields)):
            raise RecordError(f"{where} has a part of {len(part)} texts where {len(MergedPart._fields)} were expected")
    return str(value)


def _read_sketch(value: Any, where: str) -> str:
    """Return the text that holds a sketch of page views."""
    if not _SKETCH.fullmatch(text(value, where)):
        raise RecordError(f"{where} is not a sketch of page views")
    return str(value)


def _read_scalar(value: Any, where: str) -> Any:
    """Return a text, a number, true, false or null."""
    if not (value is None or isinstance(value, str | bool)):
        number()(value, where)
    return value


def _read_evidence(value: Any, where: str) -> Any:
    """Return a scalar, or several in a list or by name."""
    several: dict[type, Reader[Any]] = {list: list_of(_read_scalar), dict: dict_of(_read_scalar)}
    return several.get(type(value), _read_scalar)(value, where)


def _read_warning(value: Any, where: str) -> Finding:
    return Finding("note", "warning", text(value, where).removesuffix("."))


def _read_finding(value: Any, where: str) -> Finding:
    readers: dict[str, Reader[Any]] = {
        "code": text,
        "severity": one_of(MARKS),
        "what": text,
        "count": integer(),
        "example": nullable(text),
        "evidence": dict_of(_read_evidence),
        "remedy": text,
        "arguments": dict_of(_read_argument),
    }
    if {*mapping(value, where)} != {*readers}:
        raise RecordError(f"{where} has the fields {abbreviated(list(value))} where {', '.join(readers)} were expected")
    return Finding(**read_record(value, where, readers))


def _read_argument(value: Any, where: str) -> Any:
    for item in value if isinstance(value, list) else [value]:
        text(item, where)
    return value


def _read_unit(value: Any, where: str) -> dict[str, Any]:
    """Return the column of the unit, and the page views by bucket of units and of both, if the table lacks them."""
    traffic = nullable(list_of(list_of(list_of(number(0)))))
    unit = read_record(mapping(value, where), where, {"column": text, "traffic": traffic})
    if unit["traffic"] is not None and len(unit["traffic"]) != 2:
        raise unexpected(f"{where}.traffic", len(unit["traffic"]), "page views by unit, and by query and unit")
    return unit


_SETTINGS_FIELDS: dict[str, Reader[Any]] = {
    "buckets": integer(),
    "max_rank": integer(2, MAX_RANKS),
    "rankers": _read_names,
    "layout": one_of(LAYOUTS),
    "weighting": one_of(WEIGHTINGS),
    "by": _read_names,
}
_COMMON_FIELDS: dict[str, Reader[Any]] = {
    "version": integer(1),
    "table": one_of(TABLES),
    "page_views": dict_of(integer()),
    "about": _read_about,
    "traffic": nullable(list_of(list_of(number(0)))),
    **_SETTINGS_FIELDS,
}
_LATER_FIELDS: dict[str, Reader[Any]] = {
    "kind": one_of(get_args(TableKind)),
    "findings": list_of(_read_finding),
    "checksum": text,
}
# Version 1 had texts in place of findings, and neither a kind nor a checksum. Version 2 had rows in any order, and
# numbers of 64 bits. Version 3 had no counts by unit, and version 4 none in replay.
_VERSION_FIELDS: dict[int, dict[str, Reader[Any]]] = {
    1: _COMMON_FIELDS | {"warnings": list_of(_read_warning)},
    2: _COMMON_FIELDS | _LATER_FIELDS,
    3: _COMMON_FIELDS | _LATER_FIELDS,
    4: _COMMON_FIELDS | _LATER_FIELDS | {"unit": _read_unit},
    5: _COMMON_FIELDS | _LATER_FIELDS | {"unit": _read_unit},
}


def _read_columns(metadata: Metadata, table: Any) -> tuple[dict[str, AnyArray], tuple[Segment, ...]]:
    """Return the columns as arrays, and the segments; columns that are missing, null or of a wrong type are errors."""
    import pyarrow as pa

    labels = segment_columns(metadata.settings.by)
    types = _column_types(metadata.table, losses=metadata.losses)
    names = [name for name in types if name != "segment"]
    if sorted(table.column_names) != sorted([*labels, *names]):
        raise RecordError(f"it has the columns {listed(table.column_names)} instead of {listed([*labels, *names])}")
    for name in labels:
        type_ = table.column(name).type
        if not pa.types.is_string(type_.value_type if pa.types.is_dictionary(type_) else type_):
            raise RecordError(f"its column {name} is of type {type_} where text was expected")
    arrays = {name: _read_numbers(name, table.column(name), types[name]) for name in names}
    try:
        segment, segments = _read_segments([table.column(name) for name in labels], len(table))
    except UnicodeDecodeError:
        raise RecordError("it has a segment that is not UTF-8 text") from None
    return {"segment": segment, **arrays}, segments


def _read_numbers(name: str, column: Any, expected: str) -> AnyArray:
    """Return a column of numbers, in the type of the file if it is one of whole numbers."""
    import pyarrow as pa

    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise RecordError(f"its column {name} is of type {column.type} where a number was expected")
    if column.null_count:
        raise RecordError(f"its column {name} has no value in {column.null_count:,} rows")
    fits = column.type.equals(expected) or (expected == "int64" and str(column.type) in _NARROW_TYPES)
    try:
        # Casting imports pyarrow.compute, which takes longer than reading a harvest.
        return numbers_from_arrow(column if fits else column.cast(expected))
    except pa.ArrowException as error:
        raise RecordError(f"its column {name} has a number that is not {expected} ({first_line(error)})") from None


def _read_segments(columns: Sequence[Any], rows: int) -> tuple[IntArray, tuple[Segment, ...]]:
    """Return the number of each row's segment, and the segments (sorted, null first), from columns of text."""
    if not columns:
        return np.zeros(rows, dtype=np.int64), ((),)
    import pyarrow as pa

    codes, texts = [], []
    for column in columns:
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        whole = encoded.unify_dictionaries().combine_chunks()
        held = whole.dictionary.to_pylist()
        codes.append(np.where(valid_in_arrow(whole.indices), numbers_from_arrow(whole.indices), len(held)))
        texts.append([*held, None])
    first, which = group(codes)
    keys = list(zip(*([held[i] for i in code[first]] for code, held in zip(codes, texts, strict=True)), strict=True))
    segments = merge_segments([keys])
    number = {key: i for i, key in enumerate(segments)}
    return np.array([number[key] for key in keys], dtype=np.int64)[which], tuple(segments)


def _infer_kind(table: Cells | PairSums) -> TableKind:
    """Return the kind of a table in a file of version 1, which does not name it."""
    if isinstance(table, PairSums):
        return "pairs"
    return "exposures" if np.any(table.pairs > 0) else "signatures"


def _traffic_array(traffic: list[list[float]]) -> AnyArray:
    lengths = {len(row) for row in traffic}
    if len(lengths) > 1:
        raise RecordError(f"traffic has rows of {' and '.join(map(str, sorted(lengths)))} numbers")
    return np.array(traffic, dtype=np.float64)


def is_harvest(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a harvest, saved by posbias or exported by a warehouse, rather than a log."""
    if special_file_kind(path) is not None:
        return False
    footer = parquet_footer(path)
    if footer is None:
        return is_export(path)
    return (METADATA_KEY in footer and METADATA_KEY in _names_and_keys(path)[1]) or _is_parquet_export(path, footer)
