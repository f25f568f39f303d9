"""From what a user calls a log to the files that hold it."""

from __future__ import annotations

import difflib
import fnmatch
import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from posbias.errors import PosbiasError
from posbias.findings import UnusableLogError, unusable
from posbias.reading import odd_kind
from posbias.wording import listed

_FORMATS = {
    "parquet": (".parquet", ".pq", ".parq"),
    "csv": (".csv", ".tsv", ".txt"),
    "json": (".jsonl", ".ndjson", ".json"),
    "duckdb": (".duckdb", ".ddb", ".db"),
}
PACKED = (".gz", ".zst")
_KNOWN = "Parquet (.parquet), CSV (.csv, .tsv, also .gz), JSON lines (.jsonl, .ndjson, also .gz) or DuckDB (.duckdb)"
# What `posbias simulate` writes beside a log.
_BESIDE = (".truth.json", ".rankings.")


def file_format(path: str) -> str | None:
    """Return which format a file name stands for.

    >>> file_format("logs/day.csv.gz")
    'csv'
    """
    name = path.lower()
    for ending in PACKED:
        name = name.removesuffix(ending)
    return next((kind for kind, endings in _FORMATS.items() if name.endswith(endings)), None)


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


def _files_only(names: list[str]) -> list[str]:
    """Return the files among these names; refuse what is neither file nor folder: a part of the log may be there."""
    for name in names:
        kind = odd_kind(name)
        if kind is not None:
            raise unusable("not-a-file", f"{name!r} is {kind}", "Write the log to a file, and name that.")
    return [name for name in names if os.path.isfile(name)]


def _is_data(path: Path) -> bool:
    """Return whether a file in a folder is part of a log: not hidden, not what Spark or the simulator adds."""
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return not hidden and file_format(path.name) is not None and not any(mark in path.name for mark in _BESIDE)


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
