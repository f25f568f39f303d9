"""LETOR files: judgments in the SVMlight format of Yahoo LTR, MSLR-WEB, Istella and MQ2008."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.judgments import Judgments, csr_features
from experiments.letor_cache import read_cache, write_cache
from posbias._arrays import IntArray
from posbias._files import odd_kind
from posbias._optional import optional
from posbias.errors import LogError, PosbiasError

# scikit-learn appends each line's qid to an array that it copies: pieces keep that from being quadratic.
_LINES_AT_ONCE = 5_000
# A sparse value takes 8 bytes with its index, a dense one 4.
_DENSE_FROM = 0.5
_EXPECTED = "a line such as '2 qid:17 1:0.5 7:0.1 # comment', feature numbers rising"


def load_letor(path: str | os.PathLike[str], *, cache: bool = True) -> Judgments:
    """Load judgments from an SVMlight/LETOR file, plain or gzipped: `grade qid:ID 1:0.5 7:0.1 # comment`.

    Queries are numbered by their first appearance, and documents of one that lie apart are brought together. Features
    are numbered from 0 or 1, those that a line leaves out are 0, and so are values that are not finite in 32 bits,
    by which Istella marks what is missing.

    Arguments:
        path: the file.
        cache: keep what was read as `<name>.posbias.parquet` beside the file, which loads far faster next time. It is
            made anew when the file's size or time changes, and left out where it cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "train.txt")
        ...     _ = file.write_text("2 qid:10 1:0.5 2:1 # doc 7\\n0 qid:10 2:0.3\\n1 qid:11 1:0.2\\n")
        ...     judgments = load_letor(file)
        >>> judgments, judgments.offsets.tolist()
        (<Judgments of 2 queries and 3 documents, grades 0 to 2, 2 features>, [0, 2, 3])
    """
    path = Path(path)
    if not path.is_file():
        raise LogError(f"No judgments at {path}: expected an SVMlight/LETOR file, with {_EXPECTED}.")
    stamp = path.stat()
    if cache and (cached := read_cache(path, stamp)) is not None:
        return cached
    judgments = _assemble(list(_parse(path)), path)
    if cache:
        # A read-only folder or a full disk costs time at the next load, and nothing else.
        with suppress(OSError, PosbiasError):
            write_cache(path, stamp, judgments)
    return judgments


@dataclass(frozen=True)
class _Piece:
    """Some lines of a file: features as the parts of a CSR matrix, with the file's own numbers."""

    grades: npt.NDArray[np.int8]
    queries: IntArray
    values: npt.NDArray[np.float32]
    indices: npt.NDArray[np.int32]
    lengths: IntArray


def _parse(path: Path) -> Iterator[_Piece]:
    load = optional("sklearn.datasets", "Files of judgments need").load_svmlight_file
    first_line = 1
    for lines in _read(path):
        try:
            # array("f") turns what overflows into infinity, silently.
            features, grades, queries = load(BytesIO(b"".join(lines)), dtype=np.float32, zero_based=True, query_id=True)
        except (ValueError, OverflowError) as error:
            raise _bad_line(path, lines, first_line, str(error)) from error
        # A NaN is not a grade either: it fails every comparison.
        sound = np.all((grades >= 0) & (grades <= 127) & (grades == np.floor(grades)))
        if len(queries) != len(grades) or not sound:
            raise _bad_line(path, lines, first_line, "a line without qid, or a grade that is not a whole number")
        values = np.nan_to_num(features.data.astype(np.float32, copy=False), copy=False, nan=0, posinf=0, neginf=0)
        yield _Piece(
            grades.astype(np.int8), queries, values, features.indices.astype(np.int32), np.diff(features.indptr)
        )
        first_line += len(lines)


def _read(path: Path) -> Iterator[list[bytes]]:
    """Lines, some thousands at a time; whether they are compressed is told by the file, not by its name."""
    if (kind := odd_kind(path)) is not None:
        raise LogError(f"{path} is {kind}. Judgments are read from a file: name that.")
    with open(path, "rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
    with gzip.open(path) if zipped else open(path, "rb") as file:
        while True:
            try:
                lines = list(islice(file, _LINES_AT_ONCE))
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise LogError(
                    f"{path} is a gzip file that is cut off or damaged ({error}): fetch it again, or unpack it"
                ) from error
            if not lines:
                return
            yield lines


def _assemble(pieces: list[_Piece], path: Path) -> Judgments:
    grades = _joined([piece.grades for piece in pieces], np.int8)
    if not len(grades):
        raise LogError(f"{path} holds no judgments: expected {_EXPECTED}.")
    indices = _joined([piece.indices for piece in pieces], np.int32)
    if len(indices) and indices.min() > 0:
        indices -= 1
    ends = np.concatenate([[0], np.cumsum(_joined([piece.lengths for piece in pieces], np.int64))])
    width = int(indices.max()) + 1 if len(indices) else 1
    values = _joined([piece.values for piece in pieces], np.float32)
    features = csr_features(values, indices, ends, width)
    if len(values) >= _DENSE_FROM * len(grades) * width:
        features = features.toarray()
    order, offsets = _group(_joined([piece.queries for piece in pieces], np.int64))
    if order is not None:
        grades, features = grades[order], features[order]
    return Judgments(offsets, grades, features)


def _joined(parts: list[Any], dtype: type[Any]) -> Any:
    return np.concatenate([np.empty(0, dtype=dtype), *parts])


def _group(queries: IntArray) -> tuple[IntArray | None, IntArray]:
    """The order of rows that brings each query together (none if they are), and the offsets of queries in it."""
    starts = np.flatnonzero(np.concatenate([[True], queries[1:] != queries[:-1]]))
    if len(np.unique(queries[starts])) == len(starts):
        return None, np.append(starts, len(queries))
    _, first, number = np.unique(queries, return_index=True, return_inverse=True)
    order = np.argsort(first[number], kind="stable")
    sizes = np.bincount(number)[np.argsort(first)]
    return order, np.concatenate([[0], np.cumsum(sizes)])


_FEATURE = re.compile(rb"(\d+):(\S+)")


def _bad_line(path: Path, lines: list[bytes], first_line: int, reason: str) -> LogError:
    """Find the line that a fast parser stumbled over."""
    for number, line in enumerate(lines, first_line):
        fault = _fault(line.split(b"#", 1)[0].split())
        if fault is not None:
            text = line.strip().decode("utf-8", "replace")
            text = text if len(text) <= 60 else text[:60] + " …"
            return LogError(f"{path}, line {number}: {fault}, found {text!r}. Expected {_EXPECTED}.")
    last_line = first_line + len(lines) - 1
    return LogError(f"{path}, lines {first_line} to {last_line}: {reason}. Expected {_EXPECTED}.")


def _fault(words: list[bytes]) -> str | None:
    if not words:
        return None
    if not re.fullmatch(rb"\+?\d+(\.0*)?", words[0]) or not 0 <= float(words[0]) <= 127:
        return f"the grade {_text(words[0])} is not a whole number from 0 to 127"
    if len(words) < 2 or not words[1].startswith(b"qid:"):
        return "there is no qid after the grade"
    if not re.fullmatch(rb"qid:-?\d{1,18}", words[1]):
        return f"{_text(words[1])} is not a whole number"
    last = -1
    for word in words[2:]:
        match = _FEATURE.fullmatch(word)
        if match is None or not _is_number(match[2]):
            return f"the feature {_text(word)} is not NUMBER:VALUE"
        if not last < int(match[1]) < 2**31:
            return f"the feature {_text(word)} comes after {last}, twice or out of order"
        last = int(match[1])
    return None


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text(word: bytes) -> str:
    return repr(word.decode("utf-8", "replace"))
