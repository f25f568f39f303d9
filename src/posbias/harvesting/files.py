"""A harvest as a Parquet file."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args

import numpy as np

from posbias._arrays import AnyArray, BoolArray, IntArray, group, numbers_to_arrow, run_in_background, texts_to_arrow
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
from posbias.engines.base import from_arrow, segment_numbers
from posbias.engines.files import DELIMITERS, first_record
from posbias.errors import HarvestError
from posbias.findings import MARKS, Finding
from posbias.harvesting.count import MAX_COUNT, MAX_RANKERS, MAX_RANKS, MAX_SEGMENTS, MAX_STRATA, TableKind
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.row_checks import RowCounts
from posbias.harvesting.tables import Cells, PairSums
from posbias.logs.click_log import WEIGHTINGS, Segment, Weighting
from posbias.logs.layouts import LAYOUTS, Layout
from posbias.sql.dialects import BUCKETS

# What a file may say of itself, and how many columns and row groups it may have.
_MOST_TEXT = 64 * 2**20
_MOST_PARTS = 1_000_000
# Far beyond what a harvest keeps; a file of a few bytes can claim any number.
_MOST_ROWS = 50 * MAX_STRATA
# Where a Parquet file that is a harvest says so, and what it holds.
METADATA_KEY = b"posbias.harvest"
# The columns of an answer to a query of `posbias sql`, by what was counted; a warehouse may write them in capitals.
_ANSWER = {"about", "answer_rows", "bucket", "row_count"}
_EXPORTED = (_ANSWER | {"ranker", "code_0", "impressions", "clicks"}, _ANSWER | {"stratum", "pairs"})
# Columns that a log has and no answer.
_LOGGED = {"query_id", "doc_id", "position"}
# As much of a CSV file as holds its header.
_HEAD = 2**16
_GZIP = b"\x1f\x8b"
FORMAT_VERSION = 2
TABLES: dict[str, type[Cells] | type[PairSums]] = {"cells": Cells, "pair_sums": PairSums}
# What merging adds up or repeats.
_COUNTS = (*(f.name for f in fields(RowCounts)), "parts")
_TEXTS = ("posbias", "engine", "made", "source")
# So many numbers page views may take by bucket and ranker, and clicks by ranker and rank: half a GB.
_MOST_SHOWN = 2**26
# So large a number of a stratum may be that it can be multiplied by the number of rankers.
_MOST_STRATA = 2**40
_AGAIN = "Harvest the log again."


def save(harvest: Harvest, path: str | os.PathLike[str]) -> None:
    """Write a harvest to one Parquet file, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_harvest(harvest)
        harvest = _as_read(harvest)
    except RecordError as error:
        raise HarvestError(f"The harvest cannot be saved, for it could not be read back: {_said(error)}.") from None
    columns = harvest.table.columns()
    segment = numbers_to_arrow(columns.pop("segment"))
    labels = {
        label: texts_to_arrow([key[i] for key in harvest.segments]).take(segment)
        for i, label in enumerate(_labels(harvest.by))
    }
    record = record_of(harvest)
    record["checksum"] = _checksum(record, harvest)
    table = pa.table(labels | {name: numbers_to_arrow(column) for name, column in columns.items()})
    table = table.replace_schema_metadata({METADATA_KEY: json.dumps(record, allow_nan=False).encode()})
    with atomic_write(path, HARVEST) as part:
        pq.write_table(table, part, compression="zstd", write_page_checksum=True)


def load(path: str | os.PathLike[str], *, force: bool = False) -> Harvest:
    """Read a harvest back, saved or exported by a warehouse, checking that it is one and that it is whole.

    `force` goes on where an export shows that its log is damaged.
    """
    name = as_path("path", path, HarvestError)
    if not os.path.exists(name):
        raise HarvestError(f"There is no file {name!r}.")
    if os.path.isdir(name):
        raise HarvestError(f"{name!r} is a folder. Name a harvest, or merge those in it: posbias merge {name}/*")
    if (kind := special_file_kind(name)) is not None:
        raise HarvestError(f"{name!r} is {kind}. A harvest is a file: name that.")
    if is_export(name):
        from posbias.harvesting.exports import load_export

        return load_export(name, force=force)
    try:
        table = read_parquet(name)
    except RecordError as error:
        raise HarvestError(f"{name!r} is no harvest, or truncated or damaged: {_said(error)}. {_AGAIN}") from None
    said = (table.schema.metadata or {}).get(METADATA_KEY)
    if said is None:
        raise HarvestError(
            f"{name!r} is a Parquet file but not a harvest. If it is a click log, harvest it first: posbias harvest."
        )
    try:
        return _read(said, table)
    except RecordError as error:
        raise HarvestError(
            f"The harvest {name!r} is damaged or was edited: {_said(error)}. {error.remedy or _AGAIN}"
        ) from None


def check_harvest(harvest: Harvest) -> None:
    """Refuse a harvest that no log could have given."""
    table = harvest.table
    _check_kind(harvest)
    _check_within("segment", table.segment, 0, len(harvest.segments) - 1)
    _check_within("bucket", table.bucket, 0, BUCKETS - 1)
    _check_within("rank", table.rank, 1, harvest.max_rank)
    if isinstance(table, Cells):
        _check_cells(table, harvest)
    else:
        _check_sums(table, harvest)
    if len(harvest.segments) > MAX_SEGMENTS:
        raise RecordError(f"it has {len(harvest.segments):,} segments, more than {MAX_SEGMENTS:,}")
    if len(harvest.rankers) * max(len(harvest.buckets), harvest.max_rank) > _MOST_SHOWN:
        raise RecordError(
            f"it has {len(harvest.buckets):,} buckets, {len(harvest.rankers):,} rankers and {harvest.max_rank:,} "
            "ranks, more in all than can be held"
        )
    if harvest.traffic is not None:
        _check_traffic(harvest)


def _check_kind(harvest: Harvest) -> None:
    if (harvest.kind == "pairs") != isinstance(harvest.table, PairSums):
        raise RecordError(f"its table does not hold what its kind says, {harvest.kind!r}")
    if harvest.kind == "signatures" and not (harvest.layout.ranks_known and harvest.weighting == "traffic"):
        raise RecordError(
            f"it has signatures of a {harvest.layout.value} log weighted by {harvest.weighting}, for which none are "
            "counted"
        )


def _check_within(name: str, column: IntArray, low: int, high: int) -> None:
    if len(column) and not (low <= column.min() and column.max() <= high):
        _refuse(name, column, (column < low) | (column > high), f"{low} to {high:,}")


def _refuse(name: str, column: AnyArray, wrong: BoolArray, wanted: str) -> None:
    if wrong.any():
        raise RecordError(
            f"its column {name} holds {column[wrong][0]} in {int(wrong.sum()):,} rows, such as row "
            f"{int(np.argmax(wrong)) + 1:,}, where it must be {wanted}"
        )


def _check_cells(cells: Cells, harvest: Harvest) -> None:
    _check_within("ranker", cells.ranker, 0, len(harvest.rankers) - 1)
    _check_within("stratum", cells.stratum, 0, _MOST_STRATA)
    _check_counts("impressions", cells.impressions)
    _check_counts("pairs", cells.pairs)
    _refuse("clicks", cells.clicks, (cells.clicks < 0) | (cells.clicks > cells.impressions), "0 to the impressions")
    first, stratum = group([cells.stratum])
    for name in ("segment", "bucket", "pairs"):
        column: IntArray = getattr(cells, name)
        _refuse(name, column, column != column[first][stratum], "the same in all cells of a stratum")
    if harvest.kind == "signatures":
        _refuse("pairs", cells.pairs, cells.pairs != 0, "0, for signatures do not count them")
        _check_distinct([cells.ranker, stratum], "a stratum has a ranker at two ranks, or a cell twice")
    else:
        _refuse("pairs", cells.pairs, cells.pairs < 1, "1 or more")
        uneven = cells.impressions % np.maximum(cells.pairs, 1) != 0
        _refuse("impressions", cells.impressions, uneven, "a multiple of the pairs, which were shown equally often")
        _check_distinct([cells.ranker, stratum, cells.rank], "a stratum has a cell twice")


def _check_counts(name: str, column: AnyArray) -> None:
    """Refuse counts below 0, and those that add up to more than can be counted exactly."""
    _refuse(name, column, (column < 0) | (column > MAX_COUNT), f"0 to {MAX_COUNT:,}")
    if float(column.sum(dtype=np.float64)) > MAX_COUNT:
        raise RecordError(f"its column {name} adds up to more than {MAX_COUNT:,}")


def _check_distinct(keys: Sequence[IntArray], otherwise: str) -> None:
    """Refuse rows that have all keys in common; none is negative."""
    spans = [int(key.max(initial=0)) + 1 for key in keys]
    if np.prod(np.array(spans, dtype=np.float64)) < 2**62:
        place = np.zeros(len(keys[0]), dtype=np.int64)
        for key, span in zip(keys, spans, strict=True):
            place = place * span + key
        # As an engine's answer is written, they increase, and need not be sorted.
        steps = np.diff(place)
        distinct = bool(np.all(steps > 0)) or bool(np.all(np.diff(np.sort(place)) > 0))
    else:
        distinct = len(group(keys)[0]) == len(keys[0])
    if not distinct:
        raise RecordError(otherwise)


def _check_sums(sums: PairSums, harvest: Harvest) -> None:
    _check_within("other", sums.other, 0, harvest.max_rank)
    _check_within("ranker", sums.ranker, -1, len(harvest.rankers) - 1)
    _refuse("other", sums.other, sums.other == sums.rank, "another rank than its own")
    plain = sums.other == 0
    _refuse("ranker", sums.ranker, plain != (sums.ranker >= 0), "a ranker where other is 0, and -1 elsewhere")
    for name in ("clicks", "skips"):
        column: AnyArray = getattr(sums, name)
        _refuse(name, column, ~np.isfinite(column), "a finite number")
        _check_counts(name, column)
        _refuse(name, column, plain & (column != np.rint(column)), "a whole number where other is 0")
    keys = [sums.segment, sums.bucket, sums.ranker + 1, sums.rank, sums.other]
    _check_distinct(keys, "it has the sums of one set twice")


def _check_traffic(harvest: Harvest) -> None:
    traffic = harvest.views
    wanted = (len(harvest.buckets), len(harvest.rankers))
    if traffic.shape != wanted:
        raise RecordError(f"traffic has the shape {traffic.shape} where {wanted} was expected: buckets and rankers")
    _check_counts("traffic", traffic.reshape(-1))


def _as_read(harvest: Harvest) -> Harvest:
    """Return a harvest as a file gives it back: with the segments that have rows, sorted, and numbers of 64 bits."""
    used = {i: harvest.segments[i] for i in np.unique(harvest.table.segment).tolist()}
    order = sorted(used, key=lambda i: [(value is not None, value or "") for value in used[i]])
    number = np.zeros(len(harvest.segments), dtype=np.int64)
    number[order] = np.arange(len(order))
    types = _types(type(harvest.table))
    columns = {name: column.astype(types[name], copy=False) for name, column in harvest.table.columns().items()}
    for name, column in harvest.table.columns().items():
        if not np.array_equal(columns[name], column):
            raise RecordError(f"its column {name} does not hold numbers of the type {types[name]}")
    columns["segment"] = number[columns["segment"]]
    segments = tuple(used[i] for i in order) if harvest.by else ((),)
    return replace(harvest, segments=segments, table=type(harvest.table)(**columns))


def _types(table: type[Cells] | type[PairSums]) -> dict[str, str]:
    """Return the type of each column of numbers."""
    real = ("clicks", "skips") if table is PairSums else ()
    return {column.name: "float64" if column.name in real else "int64" for column in fields(table)}


def _said(error: RecordError) -> str:
    return printable(str(error))


def _labels(by: tuple[str, ...]) -> list[str]:
    """Return the columns that hold the values of segments."""
    return [f"segment_{i}" for i in range(len(by))]


def record_of(harvest: Harvest) -> dict[str, Any]:
    """Return what a file says of a harvest, all but the checksum."""
    return {
        "version": FORMAT_VERSION,
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
        "findings": [asdict(finding) for finding in harvest.findings],
        "traffic": None if harvest.traffic is None else harvest.traffic.tolist(),
    }


def _checksum(record: Mapping[str, Any], harvest: Harvest) -> str:
    """Return the SHA-256 of all that a file says: of the counts in their order, the segments, and the record."""
    said = {name: value for name, value in record.items() if name != "checksum"} | {"segments": harvest.segments}
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for name, column in harvest.table.columns().items():
        digest.update(f"{name} {len(column)} {column.dtype.str}".encode())
        digest.update(np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


def is_export(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is the answer to a query of `posbias sql`, or a part of it: whether its columns say so."""
    footer = parquet_footer(path)
    return _are_exported(csv_header(path)[0]) if footer is None else _is_exported(path, footer)


def _are_exported(names: Iterable[str]) -> bool:
    """Return whether columns are those of an answer; one may be missing, which reading it will say."""
    found = {name.strip().lower() for name in names}
    return min(len(columns - found) for columns in _EXPORTED) <= 1 and not found & _LOGGED


def csv_header(path: str | os.PathLike[str]) -> tuple[list[str], str]:
    """Return the columns that the first line of a file names, in lower case, and what stands between them."""
    try:
        with open_csv(path) as file:
            head: bytes = file.read(_HEAD)
        text = head.decode("utf-8-sig", "replace")
        delimiter = max(DELIMITERS, key=lambda d: len(first_record(text, d)))
        return [name.strip().lower() for name in first_record(text, delimiter)], delimiter
    except (OSError, EOFError, ValueError, zlib.error, csv.Error):
        return [], ","


def open_csv(path: str | os.PathLike[str]) -> Any:
    """Open a text file for reading bytes, compressed or not."""
    with open(path, "rb") as file:
        compressed = file.read(2) == _GZIP
    if not compressed:
        return open(path, "rb")
    import gzip

    return gzip.open(path)


def _is_exported(path: str | os.PathLike[str], footer: bytes) -> bool:
    # The bytes of names are looked for first: to read them properly takes longer than a small harvest.
    if not any(name in footer.lower() for name in (b"about", b"answer_rows")):
        return False
    names, keys = _described(path)
    return METADATA_KEY not in keys and _are_exported(names)


def _described(path: str | os.PathLike[str]) -> tuple[list[str], frozenset[bytes]]:
    """Return the columns of a Parquet file and the keys of its metadata; none of a file that is damaged."""
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
        return metadata.schema.to_arrow_schema().names, frozenset(metadata.metadata or ())
    # A reader of hostile bytes may raise anything; whoever reads the file will say what is wrong.
    except Exception:
        return [], frozenset()


def read_parquet(name: str) -> Any:
    """Return a Parquet file as an Arrow table, its pages checked where they have checksums."""
    import pyarrow.parquet as pq

    try:
        # Not a dataset: a name such as a=1/x.parquet adds no column.
        with pq.ParquetFile(
            name,
            thrift_string_size_limit=_MOST_TEXT,
            thrift_container_size_limit=_MOST_PARTS,
            page_checksum_verification=True,
        ) as file:
            if file.metadata.num_rows <= _MOST_ROWS:
                return file.read()
            rows = file.metadata.num_rows
    # What a reader raises on hostile bytes is anything: errors of Arrow, of memory, of text, of Python.
    except Exception as error:
        raise RecordError(f"it cannot be read as Parquet ({first_line(error)})") from None
    raise RecordError(f"it claims to have {rows:,} rows where up to {_MOST_ROWS:,} can be held")


def first_line(error: Exception) -> str:
    """Return the first line of what a reader says."""
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__


def _read(said: bytes, table: Any) -> Harvest:
    record = parse(said)
    metadata = read_metadata(record)
    terms = metadata.terms
    columns, segments = _columns(metadata, table)
    counts = metadata.table(**columns)
    harvest = Harvest(
        max_rank=terms.max_rank,
        rankers=terms.rankers,
        layout=terms.layout,
        weighting=terms.weighting,
        by=terms.by,
        segments=segments,
        kind=metadata.kind or _kind(counts),
        table=counts,
        about=metadata.about,
        findings=metadata.findings,
        traffic=None if metadata.traffic is None else _rows(metadata.traffic),
    )
    # It takes as long as all other checks, and decides: what was damaged may look like anything.
    whole = run_in_background(lambda: _checksum(record, harvest))
    try:
        check_harvest(harvest)
    finally:
        if metadata.checksum is not None and metadata.checksum != whole.result():
            raise RecordError("its checksum is not that of what it holds")
    return replace(harvest, table=_numbered(counts)) if isinstance(counts, Cells) else harvest


def read_metadata(value: Any) -> Metadata:
    """Return the metadata of a harvest file of any format version; unknown fields are an error."""
    version = read_record(mapping(value, "its metadata"), "", {"version": integer(1)})["version"]
    if version > FORMAT_VERSION:
        raise RecordError(
            f"it has format version {version} and this posbias reads up to {FORMAT_VERSION}", "Upgrade posbias."
        )
    fields = _FIELDS[version]
    found = read_record(value, "", fields)
    unknown = [name for name in value if name not in fields]
    if unknown:
        raise RecordError(f"it has the field {abbreviated(unknown[0])}, which version {version} does not know")
    terms = read_terms(value)
    if {*found["page_views"]} != {*terms.rankers}:
        raise unexpected("page_views", list(found["page_views"]), "a number for each of the rankers")
    return Metadata(
        table=TABLES[found["table"]],
        terms=terms,
        kind=found.get("kind"),
        about=found["about"],
        findings=tuple(found["warnings"] if version == 1 else found["findings"]),
        traffic=found["traffic"],
        checksum=found.get("checksum"),
    )


@dataclass(frozen=True)
class Metadata:
    """What a harvest's file says of it; `kind` and `checksum` are None in a file of the first version."""

    table: type[Cells] | type[PairSums]
    terms: Terms
    kind: TableKind | None
    about: Mapping[str, Any]
    findings: tuple[Finding, ...]
    traffic: list[list[float]] | None
    checksum: str | None


@dataclass(frozen=True)
class Terms:
    """What a harvest was made with, as files of every form say it."""

    max_rank: int
    rankers: tuple[str, ...]
    layout: Layout
    weighting: Weighting
    by: tuple[str, ...]


def read_terms(record: Mapping[str, Any]) -> Terms:
    """Return the terms that a record names."""
    found = read_record(record, "", _TERMS)
    if found["buckets"] != BUCKETS:
        raise unexpected("buckets", found["buckets"], str(BUCKETS))
    return Terms(
        max_rank=found["max_rank"],
        rankers=found["rankers"],
        layout=LAYOUTS[found["layout"]],
        weighting=found["weighting"],
        by=found["by"],
    )


def _names(value: Any, where: str) -> tuple[str, ...]:
    names = tuple(list_of(text)(value, where))
    if len({*names}) < len(names):
        raise RecordError(f"{where} has a name twice: {abbreviated(names)}")
    if len(names) > MAX_RANKERS:
        raise RecordError(f"{where} has {len(names):,} names where up to {MAX_RANKERS:,} were expected")
    return names


def _about(value: Any, where: str) -> dict[str, Any]:
    about = dict(mapping(value, where))
    readers: dict[str, Reader[Any]] = {**dict.fromkeys(_COUNTS, integer()), **dict.fromkeys(_TEXTS, text)}
    for name, item in about.items():
        readers.get(name, _plain)(item, f"{where}[{abbreviated(name)}]")
    return about


def _plain(value: Any, where: str) -> Any:
    """Return a text, a number, true, false or null."""
    if not (value is None or isinstance(value, str | bool)):
        number()(value, where)
    return value


def _warning(value: Any, where: str) -> Finding:
    return Finding("note", "warning", text(value, where).removesuffix("."))


def _finding(value: Any, where: str) -> Finding:
    readers: dict[str, Reader[Any]] = {
        "code": text,
        "severity": one_of(MARKS),
        "what": text,
        "count": integer(),
        "example": nullable(text),
        "evidence": dict_of(_plain),
        "remedy": text,
        "arguments": dict_of(_argument),
    }
    if {*mapping(value, where)} != {*readers}:
        raise RecordError(f"{where} has the fields {abbreviated(list(value))} where {', '.join(readers)} were expected")
    return Finding(**read_record(value, where, readers))


def _argument(value: Any, where: str) -> Any:
    for item in value if isinstance(value, list) else [value]:
        text(item, where)
    return value


_TERMS: dict[str, Reader[Any]] = {
    "buckets": integer(),
    "max_rank": integer(2, MAX_RANKS),
    "rankers": _names,
    "layout": one_of(LAYOUTS),
    "weighting": one_of(WEIGHTINGS),
    "by": _names,
}
_COMMON: dict[str, Reader[Any]] = {
    "version": integer(1),
    "table": one_of(TABLES),
    "page_views": dict_of(integer()),
    "about": _about,
    "traffic": nullable(list_of(list_of(number(0)))),
    **_TERMS,
}
# The first version had texts in place of findings, and no checksum.
_FIELDS: dict[int, dict[str, Reader[Any]]] = {
    1: _COMMON | {"warnings": list_of(_warning)},
    2: _COMMON | {"kind": one_of(get_args(TableKind)), "findings": list_of(_finding), "checksum": text},
}


def _columns(metadata: Metadata, table: Any) -> tuple[dict[str, AnyArray], tuple[Segment, ...]]:
    """Return the columns as arrays, if they are those of a harvest, each of its type and without a hole."""
    import pyarrow as pa

    labels = _labels(metadata.terms.by)
    names = [column.name for column in fields(metadata.table) if column.name != "segment"]
    if sorted(table.column_names) != sorted([*labels, *names]):
        raise RecordError(f"it has the columns {listed(table.column_names)} in place of {listed([*labels, *names])}")
    types = _types(metadata.table)
    arrays = {}
    for name in [*labels, *names]:
        column = table.column(name)
        text, numeric = (
            pa.types.is_string(column.type),
            pa.types.is_integer(column.type) or pa.types.is_floating(column.type),
        )
        if not (text if name in labels else numeric):
            raise RecordError(f"its column {name} is of type {column.type}")
        if column.null_count and name not in labels:
            raise RecordError(f"its column {name} has no value in {column.null_count:,} rows")
        try:
            # To cast, even to what it is, imports what takes longer than to read a harvest.
            fits = name in labels or column.type.equals(types[name])
            arrays[name] = column if fits else column.cast(types[name])
        except pa.ArrowException as error:
            raise RecordError(f"its column {name} has a number that cannot be ({first_line(error)})") from None
    try:
        answer = from_arrow(pa.table(arrays))
    except UnicodeDecodeError:
        raise RecordError("it has a segment that is not text in UTF-8") from None
    segment, segments = segment_numbers(answer, labels)
    return {"segment": segment, **{name: answer[name] for name in names}}, tuple(segments)


def _kind(table: Cells | PairSums) -> TableKind:
    """Return what a table holds where the file, of the first version, does not say."""
    if isinstance(table, PairSums):
        return "pairs"
    return "exposures" if np.any(table.pairs > 0) else "signatures"


def _rows(traffic: list[list[float]]) -> AnyArray:
    lengths = {len(row) for row in traffic}
    if len(lengths) > 1:
        raise RecordError(f"traffic has rows of {' and '.join(map(str, sorted(lengths)))} numbers")
    return np.array(traffic, dtype=np.float64)


def _numbered(cells: Cells) -> Cells:
    """Return cells whose strata have small numbers, for which there may be places in tables; they mean nothing."""
    if int(cells.stratum.max(initial=0)) < 2 * len(cells):
        return cells
    return replace(cells, stratum=group([cells.stratum])[1])


def is_harvest(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a harvest rather than a log: saved by posbias, or exported by a warehouse."""
    if special_file_kind(path) is not None:
        return False
    footer = parquet_footer(path)
    if footer is None:
        return is_export(path)
    return (METADATA_KEY in footer and METADATA_KEY in _described(path)[1]) or _is_exported(path, footer)
