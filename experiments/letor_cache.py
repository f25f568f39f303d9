"""The cache of a LETOR file: its judgments as Parquet beside it, whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from experiments.judgments import Judgments, csr_features
from posbias._files import written_whole
from posbias.errors import PosbiasError

_KEY = b"posbias.letor"
# Raise it when what is written, or how a file is read, changes.
_VERSION = 1


def cache_path(path: Path) -> Path:
    """Where the cache of a file lies.

    >>> cache_path(Path("data/train.txt.gz")).name
    'train.txt.gz.posbias.parquet'
    """
    return path.with_name(f"{path.name}.posbias.parquet")


def write_cache(path: Path, stamp: os.stat_result, judgments: Judgments) -> None:
    """Write the judgments of a file as it was at `stamp`; an OSError leaves no trace."""
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
    with written_whole(target) as draft:
        pq.write_table(table, draft, compression="zstd", use_dictionary=False, row_group_size=50_000)


def read_cache(path: Path, stamp: os.stat_result) -> Judgments | None:
    """Return what is cached of a file as it is at `stamp`; None if there is nothing, or it is stale or damaged."""
    target = cache_path(path)
    try:
        metadata = json.loads((pq.read_schema(target).metadata or {})[_KEY])
        if {name: metadata[name] for name in _key(stamp)} != _key(stamp):
            return None
        return _judgments(pq.read_table(target), metadata["width"], metadata["queries"])
    except (OSError, KeyError, ValueError, TypeError, pa.ArrowException, PosbiasError):
        return None


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
