"""From what a user calls a log to something DuckDB can select from."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posbias.errors import LogError
from posbias.log import listed

_FORMATS = {
    "parquet": (".parquet", ".pq", ".parq"),
    "csv": (".csv", ".tsv", ".txt"),
    "json": (".jsonl", ".ndjson", ".json"),
    "duckdb": (".duckdb", ".ddb", ".db"),
}
_PACKED = (".gz", ".zst")
_KNOWN = "Parquet (.parquet), CSV (.csv, .tsv, also .gz), JSON lines (.jsonl, .ndjson, also .gz) or DuckDB (.duckdb)"


def file_format(path: str) -> str | None:
    """Return which format a file name stands for.

    >>> file_format("logs/day.csv.gz")
    'csv'
    """
    name = path.lower()
    for ending in _PACKED:
        name = name.removesuffix(ending)
    return next((kind for kind, endings in _FORMATS.items() if name.endswith(endings)), None)


def is_path(source: Any) -> bool:
    """Return whether a source names files, rather than being the data itself."""
    one = isinstance(source, str | os.PathLike)
    return one or (isinstance(source, list | tuple) and all(isinstance(s, str | os.PathLike) for s in source))


def find_files(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the files that a path, glob, folder or list of them names, in a fixed order."""
    if isinstance(source, list | tuple):
        return [name for one in source for name in find_files(one)]
    text = os.fspath(source)  # type: ignore[arg-type]
    path = Path(text)
    if path.is_dir():
        found = sorted(str(p) for p in path.rglob("*") if p.is_file() and _is_data(p))
        if not found:
            raise LogError(f"The folder {text!r} holds no log file. Expected {_KNOWN}.")
    elif path.exists():
        found = [text]
    else:
        found = sorted(name for name in glob.glob(text, recursive=True) if os.path.isfile(name))
        if not found:
            raise LogError(_missing(text))
    return found


def _is_data(path: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path.parts[-1:])
    # Truth files of the simulator lie beside logs.
    return not hidden and file_format(path.name) is not None and not path.name.endswith(".truth.json")


def _missing(text: str) -> str:
    folder = Path(text).parent
    if any(c in text for c in "*?["):
        return f"No file fits {text!r}. Check the pattern and the folder it starts from ({os.getcwd()})."
    if folder.is_dir():
        near = listed((p.name for p in sorted(folder.iterdir()) if file_format(p.name)), most=5)
        return f"There is no file {text!r}. Logs in that folder: {near}."
    return f"There is no file {text!r}, and no folder {str(folder)!r}. Check the path."


def one_format(files: Sequence[str]) -> str:
    """Return the one format of all files, or say which two there are."""
    formats = {name: file_format(name) for name in files}
    unknown = [name for name, kind in formats.items() if kind is None]
    if unknown:
        raise LogError(f"The format of {unknown[0]!r} is not known by its name. Expected {_KNOWN}.")
    kinds = sorted({kind for kind in formats.values() if kind})
    if len(kinds) > 1:
        firsts = ", ".join(next(f for f, kind in formats.items() if kind == k) for k in kinds)
        raise LogError(f"The files are of several formats ({', '.join(kinds)}): {firsts}. Give one format at a time.")
    return kinds[0]


def reader(files: Sequence[str], quote_text: Any) -> str:
    """Return the DuckDB table function that reads files of one format, file names as literals."""
    kind = one_format(files)
    names = "[" + ", ".join(quote_text(_literal(name)) for name in files) + "]"
    many = ", union_by_name = true" if len(files) > 1 else ""
    if kind == "parquet":
        return f"read_parquet({names}{many}, hive_partitioning = false)"
    if kind == "csv":
        # Ids stay text as written ("007" is not 7), and a stray value is a finding instead of a failed read.
        return f"read_csv({names}, header = true, all_varchar = true{many}, hive_partitioning = false)"
    return f"read_json({names}{many}, hive_partitioning = false)"


def _literal(name: str) -> str:
    """Keep DuckDB from reading a file name as a glob: each special character becomes a class of one."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
