"""A history as one Parquet file, a row for each day and rank: strictly read, for anything may lie under a name."""

from __future__ import annotations

import math
import os
from datetime import date
from itertools import groupby, pairwise
from typing import Any

from posbias.arguments import as_path
from posbias.curves.curve import Position
from posbias.curves.records import MOST_RANKS, is_first, is_ratio
from posbias.errors import CurveError
from posbias.harvesting.parquet_files import gist, read_parquet
from posbias.judging.histories import FORMAT, Day, History
from posbias.reading import odd_kind
from posbias.records import UnfitError
from posbias.replacing import HISTORY
from posbias.wording import listed, printable
from posbias.writing import written_whole

# Where a Parquet file that is a history says so.
METADATA_KEY = b"posbias.history"
_KEYS = ("date", "estimator", "level", "findings")
_COLUMNS = {
    "date": "date32[day]",
    "estimator": "string",
    "level": "double",
    "findings": "list<element: string>",
    "rank": "int64",
    "propensity": "double",
    "low": "double",
    "high": "double",
    "degrees_of_freedom": "double",
    "impressions": "int64",
    "clicks": "int64",
    "reason": "string",
}
_NEVER_NULL = ("date", "estimator", "findings", "rank", "impressions", "clicks")


def save(history: History, path: str | os.PathLike[str]) -> None:
    """Write a history to one Parquet file, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_row(day, position) for day in history.days for position in day.positions]
    types = {"date32[day]": pa.date32(), "string": pa.string(), "double": pa.float64(), "int64": pa.int64()}
    types["list<element: string>"] = pa.list_(pa.field("element", pa.string()))
    schema = pa.schema([(name, types[kind]) for name, kind in _COLUMNS.items()], {METADATA_KEY: str(FORMAT).encode()})
    with written_whole(path, HISTORY) as part:
        pq.write_table(pa.Table.from_pylist(rows, schema), part, compression="zstd", write_page_checksum=True)


def _row(day: Day, position: Position) -> dict[str, Any]:
    own = {name: getattr(day, name) for name in _KEYS if name != "findings"}
    return own | {
        "findings": list(day.findings),
        "rank": position.position,
        **{name: getattr(position, name) for name in _COLUMNS if name not in (*_KEYS, "rank")},
    }


def load(path: str | os.PathLike[str]) -> History:
    """Read a history back, checking that it is one and that it is whole."""
    name = as_path("path", path, CurveError)
    if not os.path.exists(name):
        raise CurveError(f"There is no file {name!r}. Make it by adding the curve of a day: posbias history add.")
    try:
        if (kind := "a folder" if os.path.isdir(name) else odd_kind(name)) is not None:
            raise UnfitError(f"it is {kind}")
        return _read(read_parquet(name))
    except UnfitError as error:
        raise CurveError(
            f"{name!r} is not a history, or is damaged: {printable(str(error))}. Take it from a backup, or begin "
            "another."
        ) from None


def _read(table: Any) -> History:
    version = (table.schema.metadata or {}).get(METADATA_KEY)
    if version is None:
        raise UnfitError("its metadata does not say that it is one")
    if not version.isdigit() or not 1 <= int(version) <= FORMAT:
        raise UnfitError(
            f"it has format {printable(version.decode('ascii', 'replace'))}, and this posbias reads {FORMAT}"
        )
    found = {field.name: str(field.type) for field in table.schema}
    if found != _COLUMNS:
        raise UnfitError(f"it has the columns {listed(found)} in place of {listed(_COLUMNS)}, or some of another type")
    for name in _NEVER_NULL:
        if table.column(name).null_count:
            raise UnfitError(f"its column {name} has no value in {table.column(name).null_count:,} rows")
    try:
        rows = table.to_pylist()
    except UnicodeDecodeError:
        raise UnfitError("it has a text that is not in UTF-8") from None
    except (ValueError, OverflowError) as error:
        raise UnfitError(f"it has a date that is none ({gist(error)})") from None
    days = [_day(on, list(own)) for on, own in groupby(rows, key=lambda row: row["date"])]
    if any(one.date >= after.date for one, after in pairwise(days)):
        raise UnfitError("its days are not in order, or one is there twice")
    return History(tuple(days))


def _day(on: date, rows: list[dict[str, Any]]) -> Day:
    first = rows[0]
    if any(row[name] != first[name] for row in rows for name in _KEYS):
        raise UnfitError(f"the rows of {on} differ in {', '.join(_KEYS[1:-1])} or {_KEYS[-1]}")
    if any(one["rank"] >= after["rank"] for one, after in pairwise(rows)):
        raise UnfitError(f"the ranks of {on} are not in order, or one is there twice")
    if first["level"] is not None and not 0 < first["level"] < 1:
        raise UnfitError(f"the level of {on} is {first['level']}, which is no share between 0 and 1")
    if None in first["findings"]:
        raise UnfitError(f"what was found on {on} has a text that is not there")
    for row in rows:
        _check(on, row)
    positions = tuple(
        Position(position=row["rank"], **{name: row[name] for name in _COLUMNS if name not in (*_KEYS, "rank")})
        for row in rows
    )
    return Day(on, first["estimator"], first["level"], positions, tuple(first["findings"]))


def _check(on: date, row: dict[str, Any]) -> None:
    """Refuse numbers that cannot be."""
    of = f"rank {row['rank']} of {on}"
    numbers = [row[name] for name in ("propensity", "low", "high", "degrees_of_freedom") if row[name] is not None]
    if not all(math.isfinite(number) and number >= 0 and is_ratio(number) for number in numbers):
        raise UnfitError(f"{of} has a number that is not one, or cannot be")
    if not 1 <= row["rank"] <= MOST_RANKS:
        raise UnfitError(f"{of} is no rank from 1 to {MOST_RANKS:,}")
    if not 0 <= row["clicks"] <= row["impressions"]:
        raise UnfitError(f"{of} has {row['clicks']} clicks on {row['impressions']} impressions")
    if row["rank"] == 1 and not is_first(row["propensity"]):
        raise UnfitError(f"{of} has the propensity {row['propensity']}, and those of others are relative to it")
    without = row["low"] is None
    if (without and (row["high"], row["degrees_of_freedom"]) != (None, None)) or (
        not without and (row["level"] is None or row["propensity"] is None)
    ):
        raise UnfitError(f"{of} has a part of an interval, or one without a level or a propensity")
    if not without and row["high"] is not None and row["low"] > row["high"]:
        raise UnfitError(f"{of} has an interval with its ends exchanged")
