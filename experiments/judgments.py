"""Relevance judgments: `Judgments`, loaded from LETOR files (with a cache) or generated."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from posbias._arrays import BoolArray, IntArray
from posbias._files import atomic_write, special_file_kind
from posbias._optional import optional
from posbias.errors import LogError, PosbiasError

_KEY = b"posbias.letor"
# Increase this when the cache format or the parser changes.
_VERSION = 1
# scikit-learn copies its array of query ids for each line: reading in pieces avoids quadratic time.
_LINES_AT_ONCE = 5_000
# A sparse value takes 8 bytes with its index, a dense value 4.
_DENSE_FROM = 0.5
_EXPECTED = "a line such as '2 qid:17 1:0.5 7:0.1 # comment', feature numbers rising"
_FEATURE = re.compile(rb"(\d+):(\S+)")
# Yahoo LTR set 1, training part: 19,944 queries with 473,134 documents, 1 to 139 each.
YAHOO_QUERIES = 19_944
_MEDIAN_CANDIDATES, _SPREAD, _MAX_CANDIDATES = 19.2, 0.65, 139
_GRADE_SHARES = (0.26, 0.36, 0.28, 0.08, 0.02)
# These parameters make generated judgments as hard to learn as real data; tests/experiments/test_ranking_svm.py checks
# it.
_FEATURES, _TRAITS = 128, 40
_USED_TRAITS = 0.1  # the share of traits that one feature depends on
_FEATURE_NOISE = 1.0
_SHARED_IN_QUERY = 0.3  # the share of a trait's variance that candidates of a query have in common
_NON_LINEAR, _NOISE, _QUERY_EFFECT, _QUERY_TASTE = 0.8, 0.4, 0.5, 1.2  # relative to a linear part of 1
_Floats = npt.NDArray[np.float32]
_TREE_FEATURES = 20
_MIN_TREE_CANDIDATES, _MAX_TREE_CANDIDATES = 12, 28
_TREE_GRADE_SHARES = (0.45, 0.25, 0.15, 0.10, 0.05)
_TREE_SHARED_IN_QUERY = 0.2  # the share of a feature's variance that candidates of a query have in common
# The variance of each part of relevance. A linear ranker can learn only the first part.
_LINEAR, _BUMPS, _PRODUCTS, _TREE_NOISE = 1.0, 1.0, 0.7, 0.15
_BUMP_WIDTH = 0.7


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class Judgments:
    """A learning-to-rank data set: queries with candidate documents, their grades and features.

    Arguments:
        offsets: Q + 1 numbers; the documents of query q are the rows `offsets[q]:offsets[q + 1]`.
        grades: the relevance grade of each document, from 0.
        features: one row for each document, float32, dense or a `scipy.sparse` CSR matrix.

    Example:
        >>> judgments = Judgments(np.array([0, 2, 3]), np.array([4, 0, 1], np.int8), np.eye(3, dtype=np.float32))
        >>> judgments
        <Judgments of 2 queries and 3 documents, grades 0 to 4, 3 features>
        >>> judgments.relevant().tolist(), judgments.take(np.array([1])).grades.tolist()
        ([True, False, False], [1])
    """

    offsets: IntArray
    grades: npt.NDArray[np.int8]
    features: Any

    def __post_init__(self) -> None:
        rows = len(self.grades)
        sound = len(self.offsets) > 1 and self.offsets[0] == 0 and self.offsets[-1] == rows
        if not sound or np.any(np.diff(self.offsets) < 0):
            raise PosbiasError(
                f"offsets must rise from 0 to the number of documents, {rows}, in one step for each query, "
                f"found {len(self.offsets)} of them: {self.offsets[:3]} … {self.offsets[-3:]}"
            )
        if self.features.ndim != 2 or self.features.shape[0] != rows:
            raise PosbiasError(
                f"features must have a row for each of the {rows} grades, found the shape {self.features.shape}"
            )

    def __repr__(self) -> str:
        grades = f"grades {self.grades.min()} to {self.grades.max()}" if self.documents else "no grades"
        return (
            f"<Judgments of {self.queries:,} queries and {self.documents:,} documents, {grades}, "
            f"{self.features.shape[1]} features>"
        )

    @property
    def queries(self) -> int:
        """The number of queries."""
        return len(self.offsets) - 1

    @property
    def documents(self) -> int:
        """The number of documents, over all queries."""
        return len(self.grades)

    @property
    def sizes(self) -> IntArray:
        """The number of candidates of each query."""
        return np.diff(self.offsets)

    @cached_property
    def query_of(self) -> IntArray:
        """The query that each document belongs to."""
        return np.repeat(np.arange(self.queries), self.sizes)

    def relevant(self, threshold: int = 3) -> BoolArray:
        """Return whether the grade of each document is at least `threshold`. With grades 0 to 2, use 1 or 2."""
        return np.asarray(self.grades >= threshold)

    def take(self, query_ids: IntArray) -> Judgments:
        """Return the judgments of some queries, in that order."""
        query_ids = np.asarray(query_ids, dtype=np.int64)
        sizes = self.sizes[query_ids]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        rows = np.repeat(self.offsets[query_ids] - offsets[:-1], sizes) + np.arange(offsets[-1])
        return Judgments(offsets, self.grades[rows], self.features[rows])


def load_letor(path: str | os.PathLike[str], *, cache: bool = True) -> Judgments:
    """Load judgments from an SVMlight/LETOR file, plain or gzipped: `grade qid:ID 1:0.5 7:0.1 # comment`.

    Queries are numbered in order of first appearance, and documents of one query are grouped. Features are numbered
    from 0 or 1. Features that a line omits are 0, and so are values that are not finite in 32 bits (Istella marks
    missing values this way).

    Arguments:
        path: the file.
        cache: save the judgments as `<name>.posbias.parquet` beside the file, to load them much faster next time. The
            cache is replaced when the size or time of the file changes, and skipped if it cannot be written.

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
        # Without a cache (read-only folder, full disk), the next load is slow but correct.
        with suppress(OSError, PosbiasError):
            write_cache(path, stamp, judgments)
    return judgments


def generate_judgments(queries: int = YAHOO_QUERIES, *, seed: int = 0) -> Judgments:
    """Generate judgments with the shape of Yahoo LTR set 1.

    There are about 24 candidates per query with a heavy tail, grades 0 to 4 with the shares of Yahoo, and 128 features
    that are uniform between 0 and 1, like the quantiles of Yahoo. Features are noisy functions of hidden traits.
    Relevance depends on the traits linearly, by weights that differ between queries, and to one percent by products of
    two traits. So no ranker is perfect, a linear ranker is as good as any, and a ranker trained on few queries is
    clearly worse than one trained on all. Use `generate_non_linear_judgments` for relevance that linear rankers cannot
    learn.

    Example:
        >>> judgments = generate_judgments(500, seed=1)
        >>> judgments
        <Judgments of 500 queries and 11,... documents, grades 0 to 4, 128 features>
        >>> (np.bincount(judgments.grades) / judgments.documents).round(2).tolist()
        [0.26, 0.36, 0.28, 0.08, 0.02]
    """
    if queries < 1:
        raise PosbiasError(f"queries must be 1 or more, found {queries}")
    # Draw what all queries share first, so that sets of different sizes with the same seed are of the same kind.
    rng = np.random.default_rng(seed)
    loadings = _draw_loadings(rng)
    tastes = _draw_tastes(rng)
    sizes = np.rint(rng.lognormal(np.log(_MEDIAN_CANDIDATES), _SPREAD, queries)).astype(np.int64)
    sizes = np.clip(sizes, 1, _MAX_CANDIDATES)
    query_of = np.repeat(np.arange(queries), sizes)

    traits = _normal(rng, len(query_of), _TRAITS)
    traits *= np.float32(np.sqrt(1 - _SHARED_IN_QUERY))
    traits += np.float32(np.sqrt(_SHARED_IN_QUERY)) * _normal(rng, queries, _TRAITS)[query_of]

    half = _TRAITS // 2
    score = traits @ tastes
    # Each query has its own weights, so the quality of a ranker depends on the number of training queries.
    query_tastes = _normal(rng, queries, _TRAITS) * np.float32(_QUERY_TASTE / np.sqrt(_TRAITS))
    score += np.einsum("ij,ij->i", traits, query_tastes[query_of])
    # Products of two traits have mean 0 given either trait, so a linear ranker cannot learn them.
    score += np.float32(_NON_LINEAR) * (traits[:, :half] * traits[:, half:]) @ np.abs(tastes[:half] * tastes[half:])
    score += np.float32(_NOISE) * rng.standard_normal(len(query_of), dtype=np.float32)
    score += np.float32(_QUERY_EFFECT) * rng.standard_normal(queries, dtype=np.float32)[query_of]
    bounds = np.quantile(score, np.cumsum(_GRADE_SHARES)[:-1])
    grades = np.searchsorted(bounds, score, side="right").astype(np.int8)
    return Judgments(np.concatenate([[0], np.cumsum(sizes)]), grades, _features(traits, loadings, rng))


def read_cache(path: Path, stamp: os.stat_result) -> Judgments | None:
    """Return the cached judgments of a file; None if the cache is missing, damaged or older than `stamp`."""
    target = cache_path(path)
    try:
        metadata = json.loads((pq.read_schema(target).metadata or {})[_KEY])
        if {name: metadata[name] for name in _key(stamp)} != _key(stamp):
            return None
        return _judgments(pq.read_table(target), metadata["width"], metadata["queries"])
    except (OSError, KeyError, ValueError, TypeError, pa.ArrowException, PosbiasError):
        return None


def cache_path(path: Path) -> Path:
    """Return the path of the cache of a file.

    >>> cache_path(Path("data/train.txt.gz")).name
    'train.txt.gz.posbias.parquet'
    """
    return path.with_name(f"{path.name}.posbias.parquet")


def _key(stamp: os.stat_result) -> dict[str, int]:
    return {"version": _VERSION, "size": stamp.st_size, "mtime_ns": stamp.st_mtime_ns}


def _judgments(table: pa.Table, width: int, queries: int) -> Judgments:
    columns: dict[str, Any] = {name: table[name].combine_chunks() for name in table.column_names}
    sizes = np.bincount(columns["query"].to_numpy(), minlength=queries)
    grades = columns["grade"].to_numpy()
    values = columns["values"].flatten().to_numpy()
    features: Any
    if "indices" in columns:
        ends = columns["values"].offsets.to_numpy()
        features = csr_features(values, columns["indices"].flatten().to_numpy(), ends, width)
    else:
        features = values.reshape(-1, width)
    return Judgments(np.concatenate([[0], np.cumsum(sizes)]), grades, features)


def csr_features(values: npt.NDArray[np.float32], indices: Any, ends: Any, width: int) -> Any:
    """Return sparse features, with 32-bit indices if they fit (SciPy would use 64 bits for both arrays)."""
    from scipy.sparse import csr_array

    small = np.int32 if len(values) < 2**31 else np.int64
    return csr_array((values, indices.astype(small), ends.astype(small)), shape=(len(ends) - 1, width))


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


@dataclass(frozen=True)
class _Piece:
    """Some lines of a file: features as the parts of a CSR matrix, with the query and feature numbers of the file."""

    grades: npt.NDArray[np.int8]
    queries: IntArray
    values: npt.NDArray[np.float32]
    indices: npt.NDArray[np.int32]
    lengths: IntArray


def _joined(parts: list[Any], dtype: type[Any]) -> Any:
    return np.concatenate([np.empty(0, dtype=dtype), *parts])


def _group(queries: IntArray) -> tuple[IntArray | None, IntArray]:
    """Return the order of rows that groups queries (None if they are grouped), and the offsets of queries in it."""
    starts = np.flatnonzero(np.concatenate([[True], queries[1:] != queries[:-1]]))
    if len(np.unique(queries[starts])) == len(starts):
        return None, np.append(starts, len(queries))
    _, first, number = np.unique(queries, return_index=True, return_inverse=True)
    order = np.argsort(first[number], kind="stable")
    sizes = np.bincount(number)[np.argsort(first)]
    return order, np.concatenate([[0], np.cumsum(sizes)])


def _parse(path: Path) -> Iterator[_Piece]:
    load = optional("sklearn.datasets", "Files of judgments need").load_svmlight_file
    first_line = 1
    for lines in _read(path):
        try:
            # scikit-learn silently turns values that overflow into infinity.
            features, grades, queries = load(BytesIO(b"".join(lines)), dtype=np.float32, zero_based=True, query_id=True)
        except (ValueError, OverflowError) as error:
            raise _bad_line(path, lines, first_line, str(error)) from error
        # NaN fails every comparison, so it is rejected too.
        sound = np.all((grades >= 0) & (grades <= 127) & (grades == np.floor(grades)))
        if len(queries) != len(grades) or not sound:
            raise _bad_line(path, lines, first_line, "a line without qid, or a grade that is not a whole number")
        values = np.nan_to_num(features.data.astype(np.float32, copy=False), copy=False, nan=0, posinf=0, neginf=0)
        yield _Piece(
            grades.astype(np.int8), queries, values, features.indices.astype(np.int32), np.diff(features.indptr)
        )
        first_line += len(lines)


def _read(path: Path) -> Iterator[list[bytes]]:
    """Yield some thousand lines at a time; the content, not the name, decides whether the file is gzipped."""
    if (kind := special_file_kind(path)) is not None:
        raise LogError(f"{path} is {kind}. Judgments must be a regular file: pass its path.")
    with open(path, "rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
    with gzip.open(path) if zipped else open(path, "rb") as file:
        while True:
            try:
                lines = list(islice(file, _LINES_AT_ONCE))
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise LogError(
                    f"{path} is a truncated or damaged gzip file ({error}): download it again, or unpack it"
                ) from error
            if not lines:
                return
            yield lines


def _bad_line(path: Path, lines: list[bytes], first_line: int, reason: str) -> LogError:
    """Return an error that names the first invalid line."""
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


def _text(word: bytes) -> str:
    return repr(word.decode("utf-8", "replace"))


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def write_cache(path: Path, stamp: os.stat_result, judgments: Judgments) -> None:
    """Cache the judgments of a file as of `stamp`; if writing fails, no file is left."""
    columns: dict[str, pa.Array] = {
        "query": pa.array(judgments.query_of.astype(np.int32)),
        "grade": pa.array(judgments.grades),
    }
    features = judgments.features
    width = int(features.shape[1])
    if isinstance(features, np.ndarray):
        columns["values"] = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), width)
    else:
        ends = pa.array(features.indptr.astype(np.int64))
        columns["indices"] = pa.LargeListArray.from_arrays(ends, pa.array(features.indices.astype(np.int32)))
        columns["values"] = pa.LargeListArray.from_arrays(ends, pa.array(features.data))
    metadata = {_KEY: json.dumps(_key(stamp) | {"width": width, "queries": judgments.queries})}
    table = pa.table(columns).replace_schema_metadata(metadata)
    target = cache_path(path)
    with atomic_write(target) as draft:
        pq.write_table(table, draft, compression="zstd", use_dictionary=False, row_group_size=50_000)


def _draw_loadings(rng: np.random.Generator) -> _Floats:
    """Draw how each feature depends on a few traits, with variance 1; some features are pure noise."""
    loadings = _normal(rng, _TRAITS, _FEATURES)
    loadings *= rng.random(loadings.shape) < _USED_TRAITS
    norms = np.sqrt((loadings**2).sum(axis=0))
    return np.asarray(loadings / np.where(norms > 0, norms, 1), dtype=np.float32)


def _normal(rng: np.random.Generator, *shape: int) -> _Floats:
    return rng.standard_normal(shape, dtype=np.float32)


def _draw_tastes(rng: np.random.Generator) -> _Floats:
    """Draw how much each trait matters: a few matter a lot, most a little, like the features of real data."""
    tastes = rng.standard_normal(_TRAITS) * rng.permutation(np.exp(-np.arange(_TRAITS) / (_TRAITS / 3)))
    return np.asarray(tastes / np.linalg.norm(tastes), dtype=np.float32)


def _features(traits: _Floats, loadings: _Floats, rng: np.random.Generator) -> _Floats:
    """Return the features of documents: noisy mixtures of traits as normal quantiles."""
    from scipy.special import ndtr

    features = traits @ loadings
    features += np.float32(_FEATURE_NOISE) * _normal(rng, *features.shape)
    features /= np.sqrt((loadings**2).sum(axis=0) + np.float32(_FEATURE_NOISE**2))
    return np.asarray(ndtr(features, out=features), dtype=np.float32)


def generate_non_linear_judgments(queries: int = 4_000, *, seed: int = 0) -> Judgments:
    """Generate judgments whose relevance is known from 20 features, but not by a linear ranker.

    Relevance has three parts of about equal variance: a linear one, one that peaks at a best value of each feature
    (such as a price that is neither too low nor too high), and products of two features. There is little noise, so
    position bias is what limits a ranker that learns from clicks. `generate_judgments` is the opposite: a linear ranker
    is about as good as any, and most of the non-linear part differs between queries.

    Example:
        >>> judgments = generate_non_linear_judgments(500, seed=1)
        >>> judgments
        <Judgments of 500 queries and 10,062 documents, grades 0 to 4, 20 features>
    """
    if queries < 1:
        raise PosbiasError(f"queries must be 1 or more, found {queries}")
    # Draw what all queries share first, so that sets of different sizes with the same seed are of the same kind.
    rng = np.random.default_rng(seed)
    taste = _draw_taste(rng)
    sizes = rng.integers(_MIN_TREE_CANDIDATES, _MAX_TREE_CANDIDATES + 1, queries)
    query_of = np.repeat(np.arange(queries), sizes)
    values = np.sqrt(1 - _TREE_SHARED_IN_QUERY) * rng.standard_normal((len(query_of), _TREE_FEATURES))
    values += np.sqrt(_TREE_SHARED_IN_QUERY) * rng.standard_normal((queries, _TREE_FEATURES))[query_of]
    score = _score(values, taste) + np.sqrt(_TREE_NOISE) * rng.standard_normal(len(query_of))
    bounds = np.quantile(score, np.cumsum(_TREE_GRADE_SHARES)[:-1])
    grades = np.searchsorted(bounds, score, side="right").astype(np.int8)
    from scipy.special import ndtr

    return Judgments(np.concatenate([[0], np.cumsum(sizes)]), grades, ndtr(values).astype(np.float32))


def _draw_taste(rng: np.random.Generator) -> _Taste:
    half = _TREE_FEATURES // 2
    return _Taste(
        slopes=rng.standard_normal(_TREE_FEATURES).astype(np.float32),
        tops=rng.uniform(-1, 1, half).astype(np.float32),
        heights=rng.uniform(0.5, 1.5, half).astype(np.float32),
        pairs=rng.permutation(_TREE_FEATURES)[: 2 * (half // 2)].reshape(2, -1),
        products=rng.uniform(0.5, 1.5, half // 2).astype(np.float32),
    )


@dataclass(frozen=True)
class _Taste:
    """The parameters of relevance: linear slopes, best values with their heights, and pairs of features."""

    slopes: _Floats
    tops: _Floats
    heights: _Floats
    pairs: npt.NDArray[np.int64]
    products: _Floats


def _score(values: npt.NDArray[np.float64], taste: _Taste) -> npt.NDArray[np.float64]:
    """Return relevance without noise, with the variances above."""
    half = len(taste.tops)
    linear = values @ taste.slopes
    bumps = np.exp(-((values[:, :half] - taste.tops) ** 2) / (2 * _BUMP_WIDTH**2)) @ taste.heights
    products = (values[:, taste.pairs[0]] * values[:, taste.pairs[1]]) @ taste.products
    parts = ((linear, _LINEAR), (bumps, _BUMPS), (products, _PRODUCTS))
    return np.asarray(sum(np.sqrt(variance) * part / part.std() for part, variance in parts))
