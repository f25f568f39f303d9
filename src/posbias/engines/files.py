"""Find and check the files of a log, whichever engine reads them: paths, formats, CSV headers, checksums.

`find_files` turns a path, glob or folder into files. `read_header` reads the first line of a CSV file.
`verify_checksums` finds damaged compressed files.
"""

from __future__ import annotations

import csv
import difflib
import fnmatch
import glob
import gzip
import hashlib
import io
import itertools
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from posbias._files import special_file_kind
from posbias._text import listed
from posbias.errors import PosbiasError
from posbias.findings import UnusableLogError, unusable
from posbias.logs.click_log import ClickLog
from posbias.logs.schema import check_duplicate_columns, names_differ_by_case

_READ_BYTES = 2**18
# A few compressed bytes may hold gigabytes: at most this many are decompressed at once.
_MAX_DECOMPRESSED_BYTES = 2**22
# Format -> endings of file names.
_FORMATS = {
    "parquet": (".parquet", ".pq", ".parq"),
    "csv": (".csv", ".tsv", ".txt"),
    "json": (".jsonl", ".ndjson", ".json"),
    "duckdb": (".duckdb", ".ddb", ".db"),
}
COMPRESSED_ENDINGS = (".gz", ".zst")
_KNOWN_FORMATS = (
    "Parquet (.parquet), CSV (.csv, .tsv, also .gz), JSON lines (.jsonl, .ndjson, also .gz) or DuckDB (.duckdb)"
)
# In names of files that `posbias simulate` writes next to a log.
_NOT_LOGS = (".truth.json", ".rankings.")
DELIMITERS = (",", "\t", ";", "|")
# The maximum length of a CSV header, in characters.
_MAX_HEADER = 250_000
# Some programs write it at the start of a UTF-8 file.
_BYTE_ORDER_MARK = "\ufeff"


# ---- Paths


def is_path(source: Any) -> bool:
    """Return whether a source is a path or a list of paths, not the data itself."""
    is_single_path = isinstance(source, str | os.PathLike)
    return is_single_path or (
        isinstance(source, list | tuple) and all(isinstance(s, str | os.PathLike) for s in source)
    )


def find_files(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the distinct files that a path, a glob, a folder or a list of them names, in a fixed order."""
    if isinstance(source, list | tuple):
        if not source:
            raise unusable("missing-file", "The list of files is empty", "Give at least one path.")
        files = [name for path in source for name in _find(os.fspath(path))]
    else:
        files = _find(os.fspath(source))  # type: ignore[arg-type]
    # A file that two overlapping globs match counts once.
    return list({os.path.realpath(name): name for name in reversed(files)}.values())[::-1]


def _find(text: str) -> list[str]:
    # The system would read an empty path, such as an unset shell variable, as the current folder.
    if not text.strip() or "\0" in text:
        raise unusable("missing-file", f"The path {text!r} is not a file name", "Give a file, a folder or a pattern.")
    path = Path(text)
    if path.is_dir():
        data = sorted(str(p) for p in path.rglob("*") if _is_data(p.relative_to(path)))
        files = _regular_files(data)
        if not files:
            raise unusable("missing-file", f"The folder {text!r} contains no log file", f"Expected {_KNOWN_FORMATS}.")
        return files
    # A name may contain brackets and stars, so it is a pattern only if there is no such file.
    if os.path.lexists(text):
        files = _regular_files([text])
        if not files:
            raise unusable("missing-file", f"{text!r} is a link to a file that does not exist", "Check the link.")
        return files
    files = _regular_files(sorted(glob.glob(text, recursive=True)))
    if not files:
        raise _missing_file(text)
    return files


def _is_data(path: Path) -> bool:
    """Return whether a file in a folder is part of a log: not hidden, and not added by Spark or the simulator."""
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return not hidden and file_format(path.name) is not None and not any(part in path.name for part in _NOT_LOGS)


def _regular_files(names: list[str]) -> list[str]:
    """Return the files among these paths; refuse pipes and devices, because they may hold part of the log."""
    for name in names:
        kind = special_file_kind(name)
        if kind is not None:
            raise unusable("not-a-file", f"{name!r} is {kind}", "Write the log to a file, and give its name.")
    return [name for name in names if os.path.isfile(name)]


def _missing_file(text: str) -> UnusableLogError:
    folder = Path(text).parent
    what = f"There is no file {text!r}"
    if "://" in text:
        return unusable(
            "missing-file",
            f"{text!r} is a remote address, and posbias reads only local files",
            "Copy it here, or in Python read it with DuckDB and give the relation: ClickLog(duckdb.sql(...)).",
        )
    if any(c in text for c in "*?["):
        what, remedy = f"No file matches {text!r}", f"Check the pattern and the current folder ({os.getcwd()})."
    elif not folder.is_dir():
        what, remedy = f"{what}: the folder {str(folder)!r} does not exist", "Check the path."
    else:
        names = sorted(p.name for p in folder.iterdir() if p.is_dir() or _is_data(Path(p.name)))
        matches = difflib.get_close_matches(Path(text).name, names, n=3, cutoff=0.5)
        remedy = f"Did you mean {listed(matches)}?" if matches else f"The folder contains: {listed(names, most=5)}."
    return unusable("missing-file", what, remedy)


def partition_columns(files: Sequence[str]) -> list[str]:
    """Return the columns that the folders of all files name, as in `day=2026-01-01/log.parquet`.

    >>> partition_columns(["logs/day=1/hour=2/a.csv", "logs/day=2/b.csv"])
    ['day']
    """
    keys = [{p.partition("=")[0]: None for p in Path(name).parent.parts if p.find("=") > 0} for name in files]
    return [key for key in keys[0] if all(key in keys_of_file for keys_of_file in keys)]


def local_path(path: str) -> str:
    """Return the path of an address such as file:///logs/day; any other path is returned as it is.

    >>> local_path("file:///logs/my%20day"), local_path("file:/logs"), local_path("logs/file:x"), local_path("s3://b/x")
    ('/logs/my day', '/logs', 'logs/file:x', 's3://b/x')
    """
    if not path.startswith("file:/"):
        return path
    rest = path.removeprefix("file:")
    return unquote("/" + rest.lstrip("/") if rest.startswith("///") or not rest.startswith("//") else path)


def refuse_overwriting(path: str, sources: Iterable[Any]) -> None:
    """Refuse to write a result over its input, or where the next run would read it as part of the log."""
    path = local_path(path)
    if "://" in path:
        return _refuse_overwriting_remote(path, sources)
    target = os.path.realpath(path)
    for source in map(_paths_of, sources):
        files = [os.path.realpath(file) for file in _existing_files(source)]
        if target in files:
            raise PosbiasError(f"{path!r} is the file that is being read. Write the result to another file.")
        names = [os.path.realpath(name) for name in source]
        if any((file + os.sep).startswith(target + os.sep) for file in [*files, *names]):
            raise PosbiasError(f"{path!r} is, or contains, what is being read. Write the result elsewhere.")
        for name in source:
            inside = os.path.isdir(name) and target.startswith(os.path.realpath(name) + os.sep)
            if inside or (not os.path.lexists(name) and _matches(target, name)):
                where = "is in the folder" if inside else "matches the pattern"
                raise PosbiasError(
                    f"{path!r} {where} that is being read, {name!r}, so the next run would read it as part of the log. "
                    "Write the result elsewhere."
                )


def _paths_of(source: Any) -> list[str]:
    """Return the paths and addresses that a source reads, as far as it tells."""
    if is_path(source):
        paths = source if isinstance(source, list | tuple) else [source]
    elif type(source).__module__.startswith("pyspark."):
        # The files as they are now; a frame that is computed from other data has none.
        paths = source.inputFiles()
    else:
        # A dataset of Arrow lists its files.
        paths = [name for name in getattr(source, "files", None) or () if isinstance(name, str)]
    return [local_path(os.fspath(path)) for path in paths]


def _refuse_overwriting_remote(path: str, sources: Iterable[Any]) -> None:
    """Refuse to write to an address that is, contains, or lies in one that is being read."""
    target = path.rstrip("/") + "/"
    for source in map(_paths_of, sources):
        for name in source:
            address = name.rstrip("/") + "/"
            if address.startswith(target) or target.startswith(address):
                raise PosbiasError(f"{path!r} is, contains or lies in what is being read, {name!r}. Write elsewhere.")


def _existing_files(source: list[str]) -> list[str]:
    try:
        return find_files(source) if source else []
    except PosbiasError:
        return []  # A table, or a file that does not exist; reading it reports that.


def _matches(path: str, pattern: str) -> bool:
    """Return whether a pattern matches a file.

    >>> here = os.path.realpath(os.curdir)
    >>> [_matches(f"{here}/{name}", "logs/*.parquet") for name in ("logs/a.parquet", "logs/b/a.parquet", "a.parquet")]
    [True, False, False]
    """
    full_pattern = os.path.realpath(pattern)
    if "**" in full_pattern:
        return fnmatch.fnmatchcase(path, full_pattern.replace("**" + os.sep, "*"))
    parts = path.split(os.sep), full_pattern.split(os.sep)
    return len(parts[0]) == len(parts[1]) and all(map(fnmatch.fnmatchcase, *parts))


def refuse_unreadable(files: Sequence[str]) -> None:
    """Refuse empty files, and file names that are not UTF-8."""
    for name in files:
        if os.path.getsize(name) == 0:
            raise empty_file(name)
        if not name.isprintable() and name.encode("utf-8", "ignore").decode() != name:
            raise unusable("unreadable", f"The file name {name!r} is not UTF-8 text", "Rename the file.")


def empty_file(name: str) -> UnusableLogError:
    """Return the error for an empty file."""
    return unusable("empty-file", f"The file {name!r} is empty: it has no columns", "Leave it out, or write it again.")


# ---- Formats


def file_format(path: str) -> str | None:
    """Return the format of a file by its name: "parquet", "csv", "json", "duckdb" or None.

    >>> file_format("logs/day.csv.gz")
    'csv'
    """
    name = path.lower()
    for ending in COMPRESSED_ENDINGS:
        name = name.removesuffix(ending)
    return next((kind for kind, endings in _FORMATS.items() if name.endswith(endings)), None)


def common_format(files: Sequence[str]) -> str:
    """Return the format of all files; refuse files of different or unknown formats."""
    formats = {name: file_format(name) for name in files}
    unknown = [name for name, kind in formats.items() if kind is None]
    if unknown:
        raise unusable(
            "unknown-format",
            f"The name of {unknown[0]!r} has no ending of a known format",
            f"Expected {_KNOWN_FORMATS}.",
            count=len(unknown),
        )
    kinds = sorted({kind for kind in formats.values() if kind})
    if len(kinds) > 1:
        examples = ", ".join(next(f for f, kind in formats.items() if kind == k) for k in kinds)
        raise unusable(
            "mixed-formats",
            f"The files have several formats ({', '.join(kinds)}): {examples}",
            "Give files of one format.",
            count=len(kinds),
        )
    return kinds[0]


# ---- CSV headers


def read_header(name: str) -> Header:
    """Read the header of a CSV file."""
    try:
        with _open_text(name) as stream:
            start = stream.read(_MAX_HEADER)
        text = start.removeprefix(_BYTE_ORDER_MARK)
        if not text.strip():
            raise empty_file(name)
        delimiter = max(DELIMITERS, key=lambda d: len(first_record(text, d)))
        names = tuple(first_record(text, delimiter))
        if len(set(names)) < len(names) and all(value.strip("+-.").isdigit() for value in names[:2]):
            raise unusable(
                "no-header",
                f"The first line of {name!r} has values instead of column names: {listed(names)}",
                "Add a first line with the names of the columns.",
            )
        check_duplicate_columns(filter(None, names), f"the file {name!r}")
        if text != start and {"\r", "\n", delimiter} & set(names[0]):
            # After the mark DuckDB does not recognise a quote, and would split the name.
            what = "a line break" if {"\r", "\n"} & set(names[0]) else f"the delimiter {delimiter!r}"
            raise unusable(
                "broken-row",
                f"The name of the first column of {name!r} contains {what} after a byte order mark: {names[0]!r}",
                "Rename the column, or write the file without the byte order mark.",
            )
        return Header(delimiter, names, _first_line_ending(text, delimiter))
    except (UnicodeDecodeError, csv.Error) as error:
        raise unusable(
            "not-a-log",
            f"The file {name!r} is not CSV text in UTF-8 ({error})",
            "Convert it to UTF-8, or rename it to end as its format does.",
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise damaged_file(name, error) from None


def parquet_float_columns(name: str, columns: Sequence[str]) -> list[str]:
    """Return those of some columns that a Parquet file holds as floats; none for other files."""
    if file_format(name) != "parquet":
        return []
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(name)
    except (pa.ArrowException, OSError):
        return []
    return [c for c in columns if c in schema.names and pa.types.is_floating(schema.field(c).type)]


def read_csv_head(name: str, columns: Sequence[str], rows: int) -> dict[str, list[str]]:
    """Return the first values of some columns of a CSV file; nothing for other files, and for what cannot be read."""
    if file_format(name) != "csv":
        return {}
    try:
        header = read_header(name)
        with _open_text(name) as stream:
            records = list(itertools.islice(csv.reader(stream, delimiter=header.delimiter), rows + 1))[1:]
    except (PosbiasError, OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error):
        return {}
    places = {column: header.names.index(column) for column in columns if column in header.names}
    return {column: [record[at] for record in records if at < len(record)] for column, at in places.items()}


def find_copies(
    files: Sequence[str], columns: Sequence[str], hash_rows: Callable[[str, list[str]], int]
) -> list[tuple[str, str]]:
    """Return files with the same rows as another one, in any order, each with the other one.

    Only files that look alike are read: text files of one size, and Parquet files with as many rows and the same bounds
    of each column.

    Arguments:
        files (sequence of str): the files of a log.
        columns (sequence of str): the columns in use. A copy that pandas wrote may have its index as one more.
        hash_rows (callable): returns a hash of the rows of a Parquet file, by some columns, for any order of rows.
    """
    copies = []
    for alike in _groups(files, _rows_or_size):
        for same_bounds in _groups(alike, lambda name: _bounds(name, columns)):
            seen: dict[object, str] = {}
            for name in same_bounds:
                first = seen.setdefault(_hash_of_rows(name, columns, hash_rows), name)
                if first != name:
                    copies.append((name, first))
    return copies


def _groups(files: Sequence[str], key: Callable[[str], object]) -> list[list[str]]:
    """Return files with equal keys, if there are several."""
    if len(files) < 2:
        return []
    groups: dict[object, list[str]] = {}
    for name in files:
        groups.setdefault(key(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _rows_or_size(name: str) -> tuple[str, int]:
    """Return the number of rows of a Parquet file, and the size of another one."""
    if file_format(name) == "parquet":
        import pyarrow.parquet as pq

        return "rows", pq.read_metadata(name).num_rows
    return "bytes", os.path.getsize(name)


def _bounds(name: str, columns: Sequence[str]) -> str:
    """Return the bounds of some columns of a Parquet file as a text, "" for another file."""
    if file_format(name) != "parquet":
        return ""
    import pyarrow.parquet as pq

    file = pq.read_metadata(name)
    bounds = {}
    for column in range(file.num_columns):
        chunks = [file.row_group(group).column(column) for group in range(file.num_row_groups)]
        found = [chunk.statistics for chunk in chunks]
        path = chunks[0].path_in_schema if chunks else str(column)
        if path in columns and all(one is not None and one.has_min_max for one in found):
            bounds[path] = (min(one.min for one in found), max(one.max for one in found)) if found else ()
    return repr(sorted(bounds.items()))


def _hash_of_rows(name: str, columns: Sequence[str], hash_rows: Callable[[str, list[str]], int]) -> object:
    """Return a hash of the rows of a file for any order of rows; for a compressed text, a hash of its bytes."""
    if file_format(name) == "parquet":
        import pyarrow.parquet as pq

        return hash_rows(name, sorted({*columns} & {*pq.read_schema(name).names}))
    with open(name, "rb") as file:
        if _decompressor(name) is not None:
            return hashlib.file_digest(file, "sha256").digest()
        # The last line may lack its end.
        return sum(hash(line.rstrip(b"\r\n")) for line in file)


@dataclass(frozen=True)
class Header:
    """The header of a CSV file.

    Attributes:
        delimiter (str): the character between values.
        names (tuple of str): the names of the columns.
        ending (str): the line ending; empty if the file has a single line.
    """

    delimiter: str
    names: tuple[str, ...]
    ending: str


def _open_text(name: str) -> io.TextIOBase:
    if name.lower().endswith(".zst"):
        import pyarrow as pa

        return io.TextIOWrapper(io.BufferedReader(pa.input_stream(name)), encoding="utf-8", newline="")
    opener = gzip.open if name.lower().endswith(".gz") else open
    return cast(io.TextIOBase, opener(name, "rt", encoding="utf-8", newline=""))


def first_record(text: str, delimiter: str) -> list[str]:
    """Return the first record of CSV text, which may span several lines; empty for empty text."""
    return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])


def _first_line_ending(text: str, delimiter: str) -> str:
    """Return the line ending of the first record of CSV text; line breaks in quotes may differ from it."""
    lines = io.StringIO(text, newline="").readlines()
    reader = csv.reader(lines, delimiter=delimiter)
    next(reader, [])
    last = lines[reader.line_num - 1]
    return last[len(last.rstrip("\r\n")) :]


def refuse_other_case(columns: Mapping[str, Sequence[str]]) -> None:
    """Refuse files whose column names differ only by case: they would be read as one column."""
    spellings: dict[str, tuple[str, list[str]]] = {}
    for file, names in columns.items():
        for low in {name.lower() for name in names}:
            here = sorted(name for name in names if name.lower() == low)
            first, there = spellings.setdefault(low, (file, here))
            if here != there:
                raise names_differ_by_case([*there, *here], f"{file!r}, compared with {first!r},")


def describe_broken_csv(name: str) -> str:
    """Return why a CSV file cannot be split into rows, as the end of a sentence about the file."""
    endings: dict[str, int] = {}
    try:
        with _open_text(name) as stream:
            for number, line in enumerate(stream, start=1):
                endings.setdefault(line[len(line.rstrip("\r\n")) :], number)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error):
        return "has rows that are not CSV"
    endings.pop("", None)
    if len(endings) < 2:
        return "has rows that are not CSV: a quote is inside a value, or is never closed"
    examples = " and ".join(f"{ending!r} (first in line {number:,})" for ending, number in endings.items())
    return f"mixes line endings: {examples}"


# ---- Checksums of compressed files


@contextmanager
def verify_checksums(log: ClickLog) -> Iterator[None]:
    """Raise an error at the end of the `with` block that reads a log if a file has changed, or is damaged.

    A log is read several times, so the counts of a file that changed would not fit together. DuckDB does not compare
    the checksums of compressed files, so a thread decompresses them once more while the engine reads them. The engine
    reads a compressed file with one thread, so a core is usually idle.
    """
    all_files = _local_files(log)
    before = {name: _file_state(name) for name in all_files}
    files = [name for name in all_files if _decompressor(name) is not None]
    try:
        with _decompressing(files):
            yield
    except PosbiasError:
        _refuse_changed(before)
        raise
    _refuse_changed(before)


def _file_state(name: str) -> tuple[int, ...]:
    """Return what differs once a file was written to or replaced: its size, its time and its number."""
    try:
        state = os.stat(name)
    except OSError:
        return ()
    return state.st_size, state.st_mtime_ns, state.st_ino


def _refuse_changed(before: Mapping[str, tuple[int, ...]]) -> None:
    changed = [name for name, state in before.items() if _file_state(name) != state]
    if changed:
        raise unusable(
            "file-changed",
            f"The file {changed[0]!r} changed while it was read",
            "Read it again once it is complete. If a job appends to it, read a copy.",
            count=len(changed),
        )


@contextmanager
def _decompressing(files: Sequence[str]) -> Iterator[None]:
    """Decompress files in a thread during a `with` block, and raise an error at its end if one is damaged."""
    if not files:
        yield
        return
    stop = threading.Event()
    errors: list[UnusableLogError] = []
    checker = threading.Thread(target=_check_files, args=(files, stop, errors), daemon=True)
    checker.start()
    try:
        try:
            yield
        except PosbiasError:
            # Damage of the file is the cause of wrong rows, so it is reported instead of them.
            checker.join()
            if not errors:
                raise
        checker.join()
    finally:
        stop.set()
        checker.join()
    if errors:
        raise errors[0] from None


def _local_files(log: ClickLog) -> list[str]:
    """Return the files of a log that are on this machine."""
    files: list[str] = []
    for source in log.sources:
        if is_path(source):
            # The source may be a table, or not exist; opening it reports that.
            with suppress(PosbiasError, OSError, ValueError):
                files += find_files(source)
    return files


def _check_files(files: Sequence[str], stop: threading.Event, errors: list[UnusableLogError]) -> None:
    """Decompress files until the first that is damaged, and add its error."""
    for name in files:
        decompress = _decompressor(name)
        try:
            if decompress is not None:
                decompress(name, stop)
        # Arrow's errors are ValueErrors or OSErrors.
        except (OSError, EOFError, ValueError, zlib.error) as error:
            errors.append(damaged_file(name, error))
            return


def damaged_file(name: str, error: Exception) -> UnusableLogError:
    """Return the error for a compressed file that is damaged."""
    return unusable(
        "damaged-file",
        f"The file {name!r} cannot be decompressed ({(str(error).splitlines() or [type(error).__name__])[0]})",
        "It looks truncated or damaged. Copy or write it again, or leave it out.",
    )


def _decompressor(name: str) -> Callable[[str, threading.Event], None] | None:
    """Return the function that decompresses a file, or None if it is not compressed."""
    decompressors = {".gz": _decompress_gzip, ".zst": _decompress_zstd}
    return next((decompress for ending, decompress in decompressors.items() if name.lower().endswith(ending)), None)


def _decompress_gzip(name: str, stop: threading.Event) -> None:
    """Decompress a gzip file of one or several members; zlib compares the checksum and the length of each."""
    member: Any = None
    with open(name, "rb") as file:
        while not stop.is_set():
            data = file.read(_READ_BYTES)
            if not data:
                break
            while data:
                if member is None:
                    # Zeros after a member are padding.
                    data = data.lstrip(b"\0")
                    member = zlib.decompressobj(wbits=31) if data else None
                if member is not None:
                    member.decompress(data, _MAX_DECOMPRESSED_BYTES)
                    data = member.unused_data if member.eof else member.unconsumed_tail
                    member = None if member.eof else member
    if member is not None and not stop.is_set():
        raise EOFError("the compressed data ends too early")


def _decompress_zstd(name: str, stop: threading.Event) -> None:
    """Decompress a Zstandard file; its checksum is compared if it has one."""
    import pyarrow as pa

    buffer = bytearray(_MAX_DECOMPRESSED_BYTES)
    with pa.input_stream(name, compression="zstd") as stream:
        while not stop.is_set() and stream.readinto(buffer):
            pass
