"""Files: a simulated log of any size, streamed to disk with its truth beside it, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from posbias.errors import PosbiasError
from posbias.records import checksum
from posbias.simulation.tables import Form, Ids, Layout, draw
from posbias.simulation.world import World
from posbias.version import __version__
from posbias.writing import all_written_whole

_SUFFIXES = (".parquet", ".csv", ".csv.gz", ".jsonl", ".jsonl.gz")
_ROW_GROUP = 1_000_000


@dataclass(frozen=True)
class Written:
    """What was written, and where."""

    log: Path
    truth: Path
    rankings: Path | None
    rows: int
    page_views: int


def write(
    world: World,
    path: str | os.PathLike[str],
    layout: Layout = "wide",
    *,
    aggregated: bool = False,
    ids: Ids = "int",
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Simulate the click log of a world into a file, in bounded memory.

    The truth goes beside it as `<stem>.truth.json`, for "long" the rankings as `<stem>.rankings.<suffix>`.
    Files of those names are replaced, all at the end: a run that fails leaves everything as it was. A log without a
    truth beside it was not simulated, and is not replaced.

    Args:
        world: The setting.
        path: Where to write; its suffix says how: .parquet, .csv, .csv.gz, .jsonl or .jsonl.gz.
        layout: As in `simulate`.
        aggregated: As in `simulate`.
        ids: As in `simulate`.
        progress: Called now and then with the queries done and the queries in all.

    Example:
        >>> import json, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = write(World(queries=100, repeats=5), f"{folder}/log.parquet")
        ...     truth = json.loads(written.truth.read_text())
        >>> written.log.name, written.truth.name, written.rows, truth["propensity"][:2]
        ('log.parquet', 'log.truth.json', 5000, [1.0, 0.5])
    """
    form = Form(layout, aggregated, ids)
    log = Path(path)
    stem, suffix = _split(log)
    truth = log.with_name(f"{stem}.truth.json")
    rankings = log.with_name(f"{stem}.rankings{suffix}") if layout == "long" else None
    if log.is_file() and not truth.exists():
        raise PosbiasError(
            f"{os.fspath(log)!r} is there already, and no {truth.name} beside it tells that it was simulated. Name "
            "another file, or remove that one."
        )
    # The log is put in place last: where a new one stands, what belongs to it stands too.
    paths = [truth, *([rankings] if rankings else []), log]
    with all_written_whole(paths) as written:
        drafts: dict[Path | None, Path] = dict(zip(paths, map(Path, written), strict=True))
        rows = queries = page_views = 0
        same: Any = 0
        with (
            _Sink(drafts[log], suffix) as log_sink,
            _Sink(drafts.get(rankings), suffix) as rankings_sink,
            closing(draw(world, form)) as pieces,
        ):
            for piece in pieces:
                log_sink.add(piece.log)
                if piece.rankings is not None:
                    rankings_sink.add(piece.rankings)
                rows += piece.log.num_rows
                queries += piece.queries
                page_views += piece.page_views
                same = same + piece.same
                if progress is not None:
                    progress(queries, world.queries)
        found = {
            "same_rank": (same / (world.queries * world.max_rank)).tolist(),
            "layout": layout,
            "aggregated": aggregated,
            "ids": ids,
            "rows": rows,
            "page_views": page_views,
            "version": __version__,
        }
        record = json.loads(json.dumps(world.truth() | found, default=_plain))
        record["checksum"] = checksum(record)
        drafts[truth].write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    return Written(log, truth, rankings, rows, page_views)


class _TableWriter(Protocol):
    def write_table(self, table: pa.Table) -> None: ...
    def close(self) -> None: ...


class _Sink:
    """One file being written; small tables are gathered into row groups of a good size."""

    def __init__(self, path: Path | None, suffix: str) -> None:
        self._path, self._suffix = path, suffix.lower()
        self._pending: list[pa.Table] = []
        self._stack = ExitStack()
        self._writer: _TableWriter | None = None

    def __enter__(self) -> _Sink:
        return self

    def add(self, table: pa.Table) -> None:
        self._pending.append(table)
        if sum(part.num_rows for part in self._pending) >= _ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        table = pa.concat_tables(self._pending)
        self._pending = []
        if self._writer is None:
            self._writer = self._open(table.schema)
        self._writer.write_table(table)

    def _open(self, schema: pa.Schema) -> _TableWriter:
        compression = "gzip" if self._suffix.endswith(".gz") else None
        stream = self._stack.enter_context(pa.output_stream(str(self._path), compression=compression))
        if self._suffix == ".parquet":
            writer: _TableWriter = _ParquetWriter(stream, schema)
        elif self._suffix.startswith(".csv"):
            writer = pa.csv.CSVWriter(stream, schema)
        else:
            writer = _JsonLinesWriter(stream)
        self._stack.callback(writer.close)
        return writer

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # After an error the file is thrown away: there is nothing to finish, only handles to close.
        with self._stack:
            if error is None and self._pending:
                self._flush()


class _ParquetWriter:
    """Parquet in row groups that engines read in parallel."""

    def __init__(self, stream: Any, schema: pa.Schema) -> None:
        self._writer = pa.parquet.ParquetWriter(stream, schema, compression="zstd")

    def write_table(self, table: pa.Table) -> None:
        # A reader works on row groups in parallel: a small log should have several.
        self._writer.write_table(table, row_group_size=2**17)

    def close(self) -> None:
        self._writer.close()


class _JsonLinesWriter:
    """One JSON object a line, put together column by column, which Arrow does far faster than `json`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches(max_chunksize=100_000):
            parts: list[Any] = []
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                parts += [("," if parts else "{") + json.dumps(name) + ":", _as_json(column)]
            lines = pc.binary_join_element_wise(*parts, "}\n", "")
            # The lines lie end to end in the array's data buffer, which is the file's text as it is.
            _, offsets, text = lines.buffers()
            self._stream.write(text.slice(0, int(np.frombuffer(offsets, np.int32)[len(lines)])))

    def close(self) -> None:
        self._stream.flush()


def _as_json(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        encoded = column.dictionary_encode()
        texts = pa.array([json.dumps(text) for text in encoded.dictionary.to_pylist()], pa.string())
        return texts.take(encoded.indices)
    return column.cast(pa.string()).fill_null("null")


def _split(path: Path) -> tuple[str, str]:
    """The stem and the suffix of a log's path; `.csv.gz` is one suffix."""
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if path.name.lower().endswith(suffix) and len(path.name) > len(suffix):
            break
    else:
        raise PosbiasError(f"path must be a file name ending in {', '.join(_SUFFIXES)}, found {str(path)!r}")
    return path.name[: -len(suffix)], path.name[-len(suffix) :]


def _plain(value: object) -> object:
    """NumPy numbers given as parameters, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} has no place in JSON")
