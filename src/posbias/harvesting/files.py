"""A harvest as one Parquet file: its counts as columns, everything else as JSON in the file's metadata.

The metadata holds a checksum of all of it, so that a file that was damaged or edited is known as such.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from posbias.arguments import as_path
from posbias.arrays import AnyArray, begun, group
from posbias.arrow import numbers_to_arrow, texts_to_arrow
from posbias.engines.answers import from_arrow, segment_numbers
from posbias.errors import HarvestError
from posbias.harvesting.counts import Kind
from posbias.harvesting.file_kinds import METADATA_KEY, is_export
from posbias.harvesting.harvests import Harvest, Segment
from posbias.harvesting.metadata import Metadata, read_metadata, record_of
from posbias.harvesting.parquet_files import gist, read_parquet
from posbias.harvesting.strata import Cells, PairSums
from posbias.harvesting.validation import check_harvest
from posbias.reading import odd_kind
from posbias.records import UnfitError, parse
from posbias.replacing import HARVEST
from posbias.wording import listed, printable
from posbias.writing import written_whole


def save(harvest: Harvest, path: str | os.PathLike[str]) -> None:
    """Write a harvest to one Parquet file, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_harvest(harvest)
        harvest = _as_read(harvest)
    except UnfitError as error:
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
    with written_whole(path, HARVEST) as part:
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
    if (kind := odd_kind(name)) is not None:
        raise HarvestError(f"{name!r} is {kind}. A harvest is a file: name that.")
    if is_export(name):
        from posbias.harvesting.warehouse.exports import load_export

        return load_export(name, force=force)
    try:
        table = read_parquet(name)
    except UnfitError as error:
        raise HarvestError(f"{name!r} is no harvest, or truncated or damaged: {_said(error)}. {_AGAIN}") from None
    said = (table.schema.metadata or {}).get(METADATA_KEY)
    if said is None:
        raise HarvestError(
            f"{name!r} is a Parquet file but not a harvest. If it is a click log, harvest it first: posbias harvest."
        )
    try:
        return _read(said, table)
    except UnfitError as error:
        raise HarvestError(
            f"The harvest {name!r} is damaged or was edited: {_said(error)}. {error.remedy or _AGAIN}"
        ) from None


_AGAIN = "Harvest the log again."


def _said(error: UnfitError) -> str:
    return printable(str(error))


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
    whole = begun(lambda: _checksum(record, harvest))
    try:
        check_harvest(harvest)
    finally:
        if metadata.checksum is not None and metadata.checksum != whole.result():
            raise UnfitError("its checksum is not that of what it holds")
    return replace(harvest, table=_numbered(counts)) if isinstance(counts, Cells) else harvest


def _numbered(cells: Cells) -> Cells:
    """Return cells whose strata have small numbers, for which there may be places in tables; they mean nothing."""
    if int(cells.stratum.max(initial=0)) < 2 * len(cells):
        return cells
    return replace(cells, stratum=group([cells.stratum])[1])


def _columns(metadata: Metadata, table: Any) -> tuple[dict[str, AnyArray], tuple[Segment, ...]]:
    """Return the columns as arrays, if they are those of a harvest, each of its type and without a hole."""
    import pyarrow as pa

    labels = _labels(metadata.terms.by)
    names = [column.name for column in fields(metadata.table) if column.name != "segment"]
    if sorted(table.column_names) != sorted([*labels, *names]):
        raise UnfitError(f"it has the columns {listed(table.column_names)} in place of {listed([*labels, *names])}")
    types = _types(metadata.table)
    arrays = {}
    for name in [*labels, *names]:
        column = table.column(name)
        text, numeric = (
            pa.types.is_string(column.type),
            pa.types.is_integer(column.type) or pa.types.is_floating(column.type),
        )
        if not (text if name in labels else numeric):
            raise UnfitError(f"its column {name} is of type {column.type}")
        if column.null_count and name not in labels:
            raise UnfitError(f"its column {name} has no value in {column.null_count:,} rows")
        try:
            # To cast, even to what it is, imports what takes longer than to read a harvest.
            fits = name in labels or column.type.equals(types[name])
            arrays[name] = column if fits else column.cast(types[name])
        except pa.ArrowException as error:
            raise UnfitError(f"its column {name} has a number that cannot be ({gist(error)})") from None
    try:
        answer = from_arrow(pa.table(arrays))
    except UnicodeDecodeError:
        raise UnfitError("it has a segment that is not text in UTF-8") from None
    segment, segments = segment_numbers(answer, labels)
    return {"segment": segment, **{name: answer[name] for name in names}}, tuple(segments)


def _labels(by: tuple[str, ...]) -> list[str]:
    """Return the columns that hold the values of segments."""
    return [f"segment_{i}" for i in range(len(by))]


def _types(table: type[Cells] | type[PairSums]) -> dict[str, str]:
    """Return the type of each column of numbers."""
    real = ("clicks", "skips") if table is PairSums else ()
    return {column.name: "float64" if column.name in real else "int64" for column in fields(table)}


def _rows(traffic: list[list[float]]) -> AnyArray:
    lengths = {len(row) for row in traffic}
    if len(lengths) > 1:
        raise UnfitError(f"traffic has rows of {' and '.join(map(str, sorted(lengths)))} numbers")
    return np.array(traffic, dtype=np.float64)


def _kind(table: Cells | PairSums) -> Kind:
    """Return what a table holds where the file, of the first version, does not say."""
    if isinstance(table, PairSums):
        return "pairs"
    return "exposures" if np.any(table.pairs > 0) else "signatures"


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
            raise UnfitError(f"its column {name} does not hold numbers of the type {types[name]}")
    columns["segment"] = number[columns["segment"]]
    segments = tuple(used[i] for i in order) if harvest.by else ((),)
    return replace(harvest, segments=segments, table=type(harvest.table)(**columns))


def _checksum(record: Mapping[str, Any], harvest: Harvest) -> str:
    """Return the SHA-256 of all that a file says: of the counts in their order, the segments, and the record."""
    said = {name: value for name, value in record.items() if name != "checksum"} | {"segments": harvest.segments}
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for name, column in harvest.table.columns().items():
        digest.update(f"{name} {len(column)} {column.dtype.str}".encode())
        digest.update(np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<")).data)
    return digest.hexdigest()
