"""A harvest as one Parquet file: its counts as columns, everything else as JSON in the file's metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from posbias.arrays import AnyArray
from posbias.engines.answers import Answer, from_arrow, segment_numbers
from posbias.errors import HarvestError
from posbias.findings import Finding
from posbias.harvesting.counts import Kind
from posbias.harvesting.file_kinds import METADATA_KEY, is_export
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.strata import Cells, PairSums
from posbias.logs.layouts import LAYOUTS
from posbias.logs.weightings import WEIGHTINGS
from posbias.reading import odd_kind
from posbias.sql.dialect import BUCKETS
from posbias.writing import written_whole

FORMAT_VERSION = 2
_TABLES: dict[str, type[Cells] | type[PairSums]] = {"cells": Cells, "pair_sums": PairSums}


def save(harvest: Harvest, path: str | os.PathLike[str]) -> None:
    """Write a harvest to one Parquet file, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = harvest.table.columns()
    segment = columns.pop("segment")
    labels = {
        f"segment_{i}": pa.array([key[i] for key in harvest.segments], pa.string()).take(pa.array(segment))
        for i in range(len(harvest.by))
    }
    about = {
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
    table = pa.table(labels | {name: pa.array(column) for name, column in columns.items()})
    table = table.replace_schema_metadata({METADATA_KEY: json.dumps(about).encode()})
    with written_whole(path) as part:
        pq.write_table(table, part, compression="zstd")


def load(path: str | os.PathLike[str]) -> Harvest:
    """Read a harvest back, saved or exported by a warehouse, checking that it is one and that it is whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = os.fspath(path)
    if not os.path.exists(name):
        raise HarvestError(f"There is no file {name!r}.")
    if (kind := odd_kind(name)) is not None:
        raise HarvestError(f"{name!r} is {kind}. A harvest is a file: name that.")
    if is_export(name):
        from posbias.harvesting.warehouse.exports import load_export

        return load_export(name)
    try:
        table = pq.read_table(name)
    except (pa.ArrowException, OSError) as error:
        raise HarvestError(
            f"{name!r} cannot be read as Parquet ({str(error).splitlines()[0]}). It may be truncated: harvest the log "
            "again."
        ) from None
    metadata = (table.schema.metadata or {}).get(METADATA_KEY)
    if metadata is None:
        raise HarvestError(
            f"{name!r} is a Parquet file but not a harvest. If it is a click log, harvest it first: posbias harvest."
        )
    try:
        return _checked(json.loads(metadata), from_arrow(table))
    except _DamagedError as error:
        raise HarvestError(f"The harvest {name!r} is damaged: {error}. Harvest the log again.") from None
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise HarvestError(f"The harvest {name!r} is damaged ({error!r}). Harvest the log again.") from None


class _DamagedError(Exception):
    pass


def _checked(about: dict[str, Any], answer: Answer) -> Harvest:
    if about["version"] > FORMAT_VERSION:
        raise _DamagedError(
            f"it has format version {about['version']} and this posbias reads up to {FORMAT_VERSION}; upgrade posbias"
        )
    kind = _TABLES[about["table"]]
    names = [name for name in kind.__dataclass_fields__ if name != "segment"]
    labels = [f"segment_{i}" for i in range(len(about["by"]))]
    missing = [name for name in (*labels, *names) if name not in answer]
    if missing:
        raise _DamagedError(f"it lacks the columns {', '.join(missing)}")
    segment, segments = segment_numbers(answer, labels)
    real = ("clicks", "skips") if kind is PairSums else ()
    columns: dict[str, AnyArray] = {
        name: answer[name].astype(np.float64 if name in real else np.int64, copy=False) for name in names
    }
    m, rankers = about["max_rank"], len(about["rankers"])
    for name, low, high in (("bucket", 0, BUCKETS - 1), ("rank", 1, m), ("ranker", -1, rankers - 1)):
        if len(columns[name]) and not (low <= columns[name].min() and columns[name].max() <= high):
            raise _DamagedError(f"its column {name} goes beyond {low} to {high}")
    if about["weighting"] not in WEIGHTINGS:
        raise _DamagedError(f"its weighting {about['weighting']!r} is not known")
    if np.any(columns["clicks"] < 0):
        raise _DamagedError("it has negative clicks")
    table = kind(segment=segment, **columns)
    return Harvest(
        max_rank=m,
        rankers=tuple(about["rankers"]),
        layout=LAYOUTS[about["layout"]],
        weighting=about["weighting"],
        by=tuple(about["by"]),
        segments=tuple(segments or [()]),
        kind=about.get("kind") or _kind(table),
        table=table,
        about=about["about"],
        findings=_findings(about),
        traffic=None if about["traffic"] is None else np.array(about["traffic"], dtype=np.float64),
    )


def _findings(about: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return what is said of a harvest; the first version kept only the texts."""
    if about["version"] == 1:
        return tuple(Finding("note", "warning", text.removesuffix(".")) for text in about["warnings"])
    return tuple(Finding(**finding) for finding in about["findings"])


def _kind(table: Cells | PairSums) -> Kind:
    """Return what a table holds where the file, of the first version, does not say."""
    if isinstance(table, PairSums):
        return "pairs"
    return "exposures" if np.any(table.pairs > 0) else "signatures"
