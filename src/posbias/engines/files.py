"""The files of a log: formats, headers and checksums."""

from __future__ import annotations

import csv
import difflib
import fnmatch
import glob
import gzip
import io
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from posbias._files import odd_kind
from posbias._text import listed
from posbias.errors import PosbiasError
from posbias.findings import UnusableLogError, unusable
from posbias.logs.click_log import ClickLog
from posbias.logs.schema import check_duplicate_columns, names_differ_by_case

_CHUNK = 2**18
# A few packed bytes may hold gigabytes: so many are unpacked at once.
_AT_ONCE = 2**22
_FORMATS = {
    "parquet": (".parquet", ".pq", ".parq"),
    "csv": (".csv", ".tsv", ".txt"),
    "json": (".jsonl", ".ndjson", ".json"),
    "duckdb": (".duckdb", ".ddb", ".db"),
}
COMPRESSED_ENDINGS = (".gz", ".zst")
_KNOWN = "Parquet (.parquet), CSV (.csv, .tsv, also .gz), JSON lines (.jsonl, .ndjson, also .gz) or DuckDB (.duckdb)"
# What `posbias simulate` writes beside a log.
_BESIDE = (".truth.json", ".rankings.")
DELIMITERS = (",", "\t", ";", "|")
# A header is looked for in this many characters.
_LONGEST_HEADER = 250_000
# The byte order mark, which some programs write before UTF-8.
_MARK = "\ufeff"


@contextmanager
def verify_checksums(log: ClickLog) -> Iterator[None]:
    """Refuse a log at the end of the block that reads it if one of its compressed files is damaged.

    They are unpacked once more beside the engine, on a core that it leaves idle: one file is read by one thread.
    """
    files = _packed(log)
    if not files:
        yield
        return
    stop = threading.Event()
    found: list[UnusableLogError] = []
    checker = threading.Thread(target=_check, args=(files, stop, found), daemon=True)
    checker.start()
    try:
        try:
            yield
        except PosbiasError:
            # Bytes that are wrong explain rows that are.
            checker.join()
            if not found:
                raise
        checker.join()
    finally:
        stop.set()
        checker.join()
    if found:
        raise found[0] from None


def _packed(log: ClickLog) -> list[str]:
    """Return the compressed files of a log that are on this machine."""
    files: list[str] = []
    for source in log.sources:
        if is_path(source):
            # What is not there, or is a table of an engine, is no file to be checked; opening it will say more.
            with suppress(PosbiasError, OSError, ValueError):
                files += find_files(source)
    return [name for name in files if _reader(name) is not None]


def is_path(source: Any) -> bool:
    """Return whether a source names files, rather than being the data itself."""
    one = isinstance(source, str | os.PathLike)
    return one or (isinstance(source, list | tuple) and all(isinstance(s, str | os.PathLike) for s in source))


def find_files(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the files that a path, glob, folder or list of them names, each once, in a fixed order."""
    if isinstance(source, list | tuple):
        if not source:
            raise unusable("missing-file", "The list of files is empty", "Give at least one path.")
        found = [name for one in source for name in _find(os.fspath(one))]
    else:
        found = _find(os.fspath(source))  # type: ignore[arg-type]
    # Globs that overlap must not count a file twice.
    return list({os.path.realpath(name): name for name in reversed(found)}.values())[::-1]


def _find(text: str) -> list[str]:
    # To the system an empty path is the present folder, and to a shell a variable that was never set.
    if not text.strip() or "\0" in text:
        raise unusable("missing-file", f"The path {text!r} names no file", "Name a file, a folder or a pattern.")
    path = Path(text)
    if path.is_dir():
        data = sorted(str(p) for p in path.rglob("*") if _is_data(p.relative_to(path)))
        found = _files_only(data)
        if not found:
            raise unusable("missing-file", f"The folder {text!r} holds no log file", f"Expected {_KNOWN}.")
        return found
    if os.path.lexists(text):
        return _files_only([text])
    # A file of this very name was looked for first: brackets and stars may belong to names.
    found = _files_only(sorted(glob.glob(text, recursive=True)))
    if not found:
        raise _missing(text)
    return found


def _is_data(path: Path) -> bool:
    """Return whether a file in a folder is part of a log: not hidden, not what Spark or the simulator adds."""
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return not hidden and file_format(path.name) is not None and not any(mark in path.name for mark in _BESIDE)


def file_format(path: str) -> str | None:
    """Return which format a file name stands for.

    >>> file_format("logs/day.csv.gz")
    'csv'
    """
    name = path.lower()
    for ending in COMPRESSED_ENDINGS:
        name = name.removesuffix(ending)
    return next((kind for kind, endings in _FORMATS.items() if name.endswith(endings)), None)


def _files_only(names: list[str]) -> list[str]:
    """Return the files among these names; refuse what is neither file nor folder: a part of the log may be there."""
    for name in names:
        kind = odd_kind(name)
        if kind is not None:
            raise unusable("not-a-file", f"{name!r} is {kind}", "Write the log to a file, and name that.")
    return [name for name in names if os.path.isfile(name)]


def _missing(text: str) -> UnusableLogError:
    folder = Path(text).parent
    what = f"There is no file {text!r}"
    if "://" in text:
        return unusable(
            "missing-file",
            f"{text!r} is a remote address, and posbias reads local files",
            "Copy it here, or in Python open it with DuckDB and give the relation: ClickLog(duckdb.sql(...)).",
        )
    if any(c in text for c in "*?["):
        what, remedy = f"No file fits {text!r}", f"Check the pattern and the folder it starts from ({os.getcwd()})."
    elif not folder.is_dir():
        what, remedy = f"{what}, and no folder {str(folder)!r}", "Check the path."
    else:
        others = sorted(p.name for p in folder.iterdir() if p.is_dir() or _is_data(Path(p.name)))
        near = difflib.get_close_matches(Path(text).name, others, n=3, cutoff=0.5)
        remedy = f"Did you mean {listed(near)}?" if near else f"That folder holds: {listed(others, most=5)}."
    return unusable("missing-file", what, remedy)


def _reader(name: str) -> Callable[[str, threading.Event], None] | None:
    return next((read for ending, read in _READERS.items() if name.lower().endswith(ending)), None)


def _read_gzip(name: str, stop: threading.Event) -> None:
    """Unpack a gzip file, of one member or several; zlib itself compares the checksum and the length of each."""
    member: Any = None
    with open(name, "rb") as file:
        while not stop.is_set():
            packed = file.read(_CHUNK)
            if not packed:
                break
            while packed:
                if member is None:
                    # Zeros after a member are padding.
                    packed = packed.lstrip(b"\0")
                    member = zlib.decompressobj(wbits=31) if packed else None
                if member is not None:
                    member.decompress(packed, _AT_ONCE)
                    packed = member.unused_data if member.eof else member.unconsumed_tail
                    member = None if member.eof else member
    if member is not None and not stop.is_set():
        raise EOFError("it ends before the end of what is packed in it")


def _read_zstd(name: str, stop: threading.Event) -> None:
    """Unpack a Zstandard file; its checksum is compared if it has one, which is for whoever packs it to say."""
    import pyarrow as pa

    space = bytearray(_AT_ONCE)
    with pa.input_stream(name, compression="zstd") as stream:
        while not stop.is_set() and stream.readinto(space):
            pass


_READERS = {".gz": _read_gzip, ".zst": _read_zstd}


def _check(files: Sequence[str], stop: threading.Event, found: list[UnusableLogError]) -> None:
    for name in files:
        read = _reader(name)
        try:
            if read is not None:
                read(name, stop)
        # Arrow's errors are ValueErrors or OSErrors.
        except (OSError, EOFError, ValueError, zlib.error) as error:
            found.append(damaged_file(name, error))
            return


def damaged_file(name: str, error: Exception) -> UnusableLogError:
    """Return the error that a compressed file is whose bytes are not as they were written."""
    return unusable(
        "damaged-file",
        f"The file {name!r} cannot be unpacked ({(str(error).splitlines() or [type(error).__name__])[0]})",
        "It looks truncated or damaged: copy or write it again, or leave it out.",
    )


def refuse_overwriting(path: str, sources: Iterable[Any]) -> None:
    """Refuse to write a result over what it comes from, or where the next run would read it as a part of the log."""
    target = os.path.realpath(path)
    for source in filter(is_path, sources):
        if target in map(os.path.realpath, _present(source)):
            raise PosbiasError(f"{path!r} is what is being read. Write the result to another file.")
        for name in map(os.fspath, source if isinstance(source, list | tuple) else [source]):
            inside = os.path.isdir(name) and target.startswith(os.path.realpath(name) + os.sep)
            if inside or (not os.path.lexists(name) and _is_named(target, name)):
                where = "lies in the folder that is" if inside else "has a name as those that are"
                raise PosbiasError(
                    f"{path!r} {where} being read, {name!r}: the next run would take it for a part of the log. Write "
                    "the result elsewhere."
                )


def _present(source: Any) -> list[str]:
    try:
        return find_files(source)
    except PosbiasError:
        return []  # A table, or a file that is not there: reading it will say so.


def _is_named(path: str, pattern: str) -> bool:
    """Return whether a file would be found by a pattern.

    >>> here = os.path.realpath(os.curdir)
    >>> [_is_named(f"{here}/{name}", "logs/*.parquet") for name in ("logs/a.parquet", "logs/b/a.parquet", "a.parquet")]
    [True, False, False]
    """
    wanted = os.path.realpath(pattern)
    if "**" in wanted:
        return fnmatch.fnmatchcase(path, wanted.replace("**" + os.sep, "*"))
    parts = path.split(os.sep), wanted.split(os.sep)
    return len(parts[0]) == len(parts[1]) and all(map(fnmatch.fnmatchcase, *parts))


def path_keys(files: Sequence[str]) -> list[str]:
    """Return what the folders of all files say by their names, as in `day=2026-01-01/log.parquet`.

    >>> path_keys(["logs/day=1/hour=2/a.csv", "logs/day=2/b.csv"])
    ['day']
    """
    found = [{p.partition("=")[0]: None for p in Path(name).parent.parts if p.find("=") > 0} for name in files]
    return [key for key in found[0] if all(key in keys for keys in found)]


def one_format(files: Sequence[str]) -> str:
    """Return the one format of all files, or say which two there are."""
    formats = {name: file_format(name) for name in files}
    unknown = [name for name, kind in formats.items() if kind is None]
    if unknown:
        raise unusable(
            "unknown-format",
            f"The format of {unknown[0]!r} is not known by its name",
            f"Expected {_KNOWN}.",
            count=len(unknown),
        )
    kinds = sorted({kind for kind in formats.values() if kind})
    if len(kinds) > 1:
        firsts = ", ".join(next(f for f, kind in formats.items() if kind == k) for k in kinds)
        raise unusable(
            "mixed-formats",
            f"The files are of several formats ({', '.join(kinds)}): {firsts}",
            "Give one format at a time.",
            count=len(kinds),
        )
    return kinds[0]


def refuse_unreadable(files: Sequence[str]) -> None:
    """Refuse files without a byte, and names that are not text."""
    for name in files:
        if os.path.getsize(name) == 0:
            raise empty_file(name)
        if not name.isprintable() and name.encode("utf-8", "ignore").decode() != name:
            raise unusable("unreadable", f"The file name {name!r} is not text in UTF-8", "Rename the file.")


def empty_file(name: str) -> UnusableLogError:
    """Return the error that a file without a byte is."""
    return unusable("empty-file", f"The file {name!r} is empty: it has no columns", "Leave it out, or write it again.")


def read_header(name: str) -> Header:
    """Return what the first line of a CSV file tells."""
    try:
        with _open_text(name) as stream:
            marked = stream.read(_LONGEST_HEADER)
        text = marked.removeprefix(_MARK)
        if not text.strip():
            raise empty_file(name)
        delimiter = max(DELIMITERS, key=lambda d: len(first_record(text, d)))
        names = tuple(first_record(text, delimiter))
        if len(set(names)) < len(names) and all(value.strip("+-.").isdigit() for value in names[:2]):
            raise unusable(
                "no-header",
                f"The first line of {name!r} holds values and not the names of columns: {listed(names)}",
                "Write the names of the columns into the first line.",
            )
        check_duplicate_columns(filter(None, names), f"the file {name!r}")
        if text != marked and {"\r", "\n", delimiter} & set(names[0]):
            # DuckDB takes no quote after the mark for one, and the rest of the name for a row or one column more.
            what = "a line break" if {"\r", "\n"} & set(names[0]) else f"the delimiter {delimiter!r}"
            raise unusable(
                "broken-row",
                f"The first column of {name!r} is named {names[0]!r}, with {what} in it, after a byte order mark",
                "Rename the column, or write the file without the mark.",
            )
        return Header(delimiter, names, _ending(text, delimiter))
    except (UnicodeDecodeError, csv.Error) as error:
        raise unusable(
            "not-a-log",
            f"The file {name!r} is not CSV text in UTF-8 ({error})",
            "Convert it to UTF-8, or give it the ending of what it is.",
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise damaged_file(name, error) from None


@dataclass(frozen=True)
class Header:
    """How a CSV file is cut into values, its columns, and how its lines end; that is empty where it has no other."""

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
    """Return the first record of CSV text, which may span lines; none of an empty text."""
    return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])


def _ending(text: str, delimiter: str) -> str:
    """Return how the first record of CSV text ends; line breaks in its quotes may be of another kind."""
    lines = io.StringIO(text, newline="").readlines()
    reader = csv.reader(lines, delimiter=delimiter)
    next(reader, [])
    last = lines[reader.line_num - 1]
    return last[len(last.rstrip("\r\n")) :]


def refuse_other_case(columns: Mapping[str, Sequence[str]]) -> None:
    """Refuse files of which one spells a column as another does not: they would be read as one column."""
    spelt: dict[str, tuple[str, list[str]]] = {}
    for file, names in columns.items():
        for low in {name.lower() for name in names}:
            here = sorted(name for name in names if name.lower() == low)
            first, there = spelt.setdefault(low, (file, here))
            if here != there:
                raise names_differ_by_case([*there, *here], f"{file!r}, beside {first!r},")


def odd_lines(name: str) -> str:
    """Return what keeps a CSV file from being cut into rows, as the end of a sentence about it."""
    kinds: dict[str, int] = {}
    try:
        with _open_text(name) as stream:
            for number, line in enumerate(stream, start=1):
                kinds.setdefault(line[len(line.rstrip("\r\n")) :], number)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error):
        return "has rows that are no CSV"
    kinds.pop("", None)
    if len(kinds) < 2:
        return "has rows that are no CSV: a quote stands inside a value, or is never closed"
    told = " and ".join(f"{kind!r} (first in line {number:,})" for kind, number in kinds.items())
    return f"mixes line endings: {told}"
