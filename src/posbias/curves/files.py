"""Read and write curves as JSON files, and read the truth of simulated logs.

Every field is checked, because any file may have the name of a curve, and curves may be edited by hand.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from posbias._defaults import DEFAULT_LEVEL
from posbias._files import CURVE, atomic_write, special_file_kind
from posbias._json import (
    Reader,
    RecordError,
    abbreviated,
    anything,
    dict_of,
    integer,
    list_of,
    mapping,
    nullable,
    number,
    one_of,
    parse,
    read_record,
    sequence,
    text,
    unexpected,
    verify_checksum,
)
from posbias._text import json_text, printable
from posbias._validate import as_path
from posbias.curves.curve import FORMAT, Covariance, Curve, Position
from posbias.errors import CurveError, PosbiasError
from posbias.logs.click_log import BySegment, Segment

MOST_RANKS = 10_000
INTERVALS = ("jackknife", "bootstrap")
# Numbers that were computed in two ways may differ in their last digits.
_ROUNDING = 1e-9
# No ratio of two 64-bit counts is larger, and hardly any product of such ratios.
_LARGEST = 1e100
_LARGEST_COVARIANCE = 1e6
_MOST_BYTES = 64 * 2**20
_REWRITE = "Write it again: as the JSON of posbias estimate, or with Curve.save in Python."


def save(curve: Curve, path: str | os.PathLike[str]) -> None:
    """Write a curve to a JSON file, completely or not at all."""
    data = f"{json_text(curve.to_dict())}\n".encode()
    if len(data) > _MOST_BYTES:
        raise CurveError(
            f"The curve has {len(curve.segments):,} segments of up to {curve.max_rank:,} ranks and would take "
            f"{len(data):,} bytes; files are read up to {_MOST_BYTES:,}. Estimate fewer segments or ranks at a time."
        )
    with atomic_write(path, CURVE) as part, open(part, "wb") as file:
        file.write(data)


def load(path: str | os.PathLike[str]) -> Curve:
    """Read a curve from a JSON file; raise CurveError if it is none, or is damaged."""
    name = as_path("path", path, CurveError)
    try:
        return read_curve(_read(name))
    except FileNotFoundError:
        raise CurveError(
            f"There is no file {name!r}. Make it as the JSON of posbias estimate, or with Curve.save in Python."
        ) from None
    except RecordError as error:
        raise CurveError(
            f"{name!r} is not a curve, or is damaged: {_message(error)}. {error.remedy or _REWRITE}"
        ) from None


def read_curve(value: Any) -> Curve:
    """Return the curve of a record, the JSON object that `Curve.to_dict` makes; raise RecordError if it is none."""
    record = mapping(value, "it")
    version = _read_format(record.get("format"))
    # First: an edited number may contradict others, and their error would hide the reason.
    verify_checksum(record)
    # Files of the first format come from a version that made all intervals by bootstrap.
    how = {"interval_by": nullable(one_of(INTERVALS))} if version > 1 else {}
    fields: dict[str, Reader[Any]] = {
        "max_rank": integer(1, MOST_RANKS),
        "level": nullable(_level),
        "weighting": nullable(text),
        **how,
        "estimator": text,
        "by": list_of(text),
        "segments": list_of(mapping),
        "rankers": list_of(text),
        "version": text,
    }
    found = read_record(record, "", fields, defaults={"by": [], "segments": []})
    level, by = found["level"], tuple(found["by"])
    interval_by = found.get("interval_by", level and "bootstrap")
    if (interval_by is None) != (level is None):
        raise RecordError(
            f"level is {abbreviated(level)} and interval_by {abbreviated(interval_by)}: both are known, or both null"
        )
    settings = found["estimator"], found["max_rank"], level, interval_by, found["weighting"]
    segments: BySegment[Curve] = BySegment()
    for i, part in enumerate(found["segments"]):
        where = f"segments[{i}]"
        key = read_record(part, where, {"segment": lambda values, place: _read_segment(values, by, place)})["segment"]
        if key in segments:
            raise RecordError(f"{where} is the segment {abbreviated(key)} for a second time")
        segments[key] = Curve(*settings, *_read_estimate(part, found["max_rank"], where, version, interval_by))
    curve = Curve(*settings, *_read_estimate(record, found["max_rank"], "", version, interval_by), by, segments)
    if sorted(found["rankers"]) != sorted(curve.page_views):
        raise unexpected("rankers", found["rankers"], f"the names in page_views, {abbreviated(list(curve.page_views))}")
    return curve


def _read_format(value: Any) -> int:
    if value is None:
        raise RecordError("it has no 'format', which every curve has")
    version = integer(1)(value, "format")
    if version > FORMAT:
        raise RecordError(
            f"it has format {version} and this posbias reads up to {FORMAT}",
            "Upgrade posbias, or write the curve with this version.",
        )
    return version


def _level(value: Any, where: str) -> float:
    level = number()(value, where)
    if not 0 < level < 1:
        raise unexpected(where, value, f"a share between 0 and 1, such as {DEFAULT_LEVEL}")
    return level


def _read_segment(values: Any, by: tuple[str, ...], where: str) -> Segment:
    values = mapping(values, where)
    if not by or set(values) != set(by):
        raise unexpected(where, values, f"a value for each of the columns in 'by', {abbreviated(list(by))}")
    return tuple(read_record(values, where, dict.fromkeys(by, nullable(text))).values())


def _read_estimate(
    record: Mapping[str, Any], max_rank: int, where: str, version: int, interval_by: str | None
) -> tuple[tuple[Position, ...], dict[str, int], Covariance | None, tuple[str, ...]]:
    """Return what the whole curve and each segment have: positions, page views, covariance and notes."""

    def position(value: Any, place: str) -> Position:
        found = read_position(value, max_rank, place, version)
        _check_interval(found, interval_by, place)
        return found

    fields: dict[str, Reader[Any]] = {
        "positions": list_of(position),
        "page_views": dict_of(integer()),
        "covariance": anything,
    }
    found = read_record(record, where, fields | ({"notes": list_of(text)} if version > 1 else {}))
    prefix = f"{where}." if where else ""
    positions = tuple(found["positions"])
    ranks = [p.position for p in positions]
    if any(rank >= following for rank, following in pairwise(ranks)):
        raise RecordError(f"{prefix}positions are not in increasing order: {abbreviated(ranks)}")
    if ranks[:1] == [1] and not is_one(positions[0].propensity):
        raise RecordError(
            f"{prefix}positions[0].propensity is {abbreviated(positions[0].propensity)} where 1 was expected: "
            "propensities are relative to rank 1, so divide all of them by that of rank 1"
        )
    covariance = found["covariance"]
    if covariance is not None:
        covariance = _read_covariance(covariance, f"{prefix}covariance", len(positions))
    if version == 1:
        covariance = _of_logs(covariance, positions)
    return positions, found["page_views"], covariance, tuple(found.get("notes", ()))


def read_position(value: Any, max_rank: int, where: str, version: int = FORMAT) -> Position:
    """Return the estimate of one rank from a record of a curve file, or of a history."""
    fields: dict[str, Reader[Any]] = {
        "position": integer(1, max_rank),
        "propensity": nullable(_ratio),
        "low": nullable(_ratio),
        "high": nullable(_ratio),
        "impressions": integer(),
        "clicks": integer(),
        "reason": nullable(text),
        "degrees_of_freedom": nullable(number(1)),
    }
    if version == 1:
        del fields["degrees_of_freedom"]
    found = Position(**read_record(value, where, fields))
    if found.clicks > found.impressions:
        raise RecordError(f"{where} has {found.clicks} clicks on {found.impressions} impressions")
    return found


def _ratio(value: Any, where: str) -> float:
    """Return a propensity relative to rank 1, or an end of its interval."""
    found = number(0)(value, where)
    if not is_ratio(found):
        raise unexpected(where, value, f"0, or a number from {1 / _LARGEST:g} to {_LARGEST:g},")
    return found


def is_ratio(found: float) -> bool:
    """Return whether a propensity is 0, or so far from 0 and infinity that its inverse and square are numbers too."""
    return found == 0 or 1 / _LARGEST <= found <= _LARGEST


def _check_interval(found: Position, interval_by: str | None, where: str) -> None:
    """Raise an error for half an interval, and for one that the curve cannot have."""
    low, high = found.low, math.inf if found.high is None else found.high
    if low is None:
        if found.high is not None:
            raise RecordError(
                f"{where} has the upper end of an interval, high is {found.high}, but no lower one: low is null"
            )
    elif interval_by is None:
        raise RecordError(f"{where} has an interval, low is {low}, where interval_by is null")
    elif found.propensity is None:
        raise RecordError(f"{where} has an interval, from {low} to {high}, and no propensity")
    elif low > high:
        raise RecordError(f"{where} has an interval whose lower end {low} is above its upper end {high}")
    # Bootstrap percentiles of a low level may leave the estimate out; a jackknife interval is built around it.
    elif interval_by == "jackknife" and not low * (1 - _ROUNDING) <= found.propensity <= high * (1 + _ROUNDING):
        raise RecordError(
            f"{where} has the propensity {found.propensity} outside its own interval, from {low} to {high}: change "
            "both, or set low, high and degrees_of_freedom to null"
        )
    by_t = low is not None and interval_by == "jackknife"
    if by_t != (found.degrees_of_freedom is not None):
        wanted = (
            "a number, because it has a jackknife interval," if by_t else "null, because it has no jackknife interval,"
        )
        raise unexpected(f"{where}.degrees_of_freedom", found.degrees_of_freedom, wanted)


def is_one(propensity: float | None) -> bool:
    """Return whether a propensity is 1, as that of rank 1 must be, or not known."""
    return propensity is None or abs(propensity - 1) <= _ROUNDING


def _read_covariance(rows: Any, where: str, size: int) -> Covariance:
    """Return a covariance matrix: square, symmetric, without negative variances."""
    import numpy as np

    rows = sequence(rows, where)
    if len(rows) != size or any(len(sequence(row, f"{where}[{i}]")) != size for i, row in enumerate(rows)):
        lengths = sorted({len(row) for row in rows if isinstance(row, Sequence)})
        raise RecordError(
            f"{where} has {len(rows)} rows of {abbreviated(lengths)} numbers where there are {size} positions: "
            "expected one row for each position, with one number or null for each"
        )
    checked = tuple(
        tuple(nullable(_covariance_of_logs)(value, f"{where}[{i}][{j}]") for j, value in enumerate(row))
        for i, row in enumerate(rows)
    )
    values = np.array(checked, dtype=np.float64).reshape(size, size)
    variances = np.diag(values)
    for i in np.flatnonzero(variances < 0):
        raise unexpected(f"{where}[{i}][{i}]", float(variances[i]), "a variance, which is 0 or more")
    for i, j in np.argwhere(np.isnan(variances)[:, None] & np.isfinite(values)):
        raise RecordError(f"{where}[{i}][{j}] is {abbreviated(checked[i][j])}, and the variance [{i}][{i}] is null")
    scale = np.sqrt(np.nan_to_num(variances))
    slack = _ROUNDING * np.fmax(np.abs(values), scale[:, None] * scale)
    alike = (np.isnan(values) & np.isnan(values.T)) | (np.abs(values - values.T) <= slack)
    for i, j in np.argwhere(~alike):
        raise RecordError(
            f"{where} is not symmetric: [{i}][{j}] is {abbreviated(checked[i][j])} and [{j}][{i}] is "
            f"{abbreviated(checked[j][i])}"
        )
    return checked


def _covariance_of_logs(value: Any, where: str) -> float:
    """Return a covariance of log p; beyond the bound, interval ends would be infinite."""
    found = number()(value, where)
    if abs(found) > _LARGEST_COVARIANCE:
        raise unexpected(where, value, f"a number of at most {_LARGEST_COVARIANCE:g}, a covariance of log p,")
    return found


def _of_logs(covariance: Covariance | None, positions: Sequence[Position]) -> Covariance | None:
    """Return the covariance of log p from that of p, by the delta method."""
    if covariance is None:
        return None
    scale = [p.propensity or None for p in positions]
    return tuple(
        tuple(None if v is None or s is None or t is None else v / (s * t) for v, t in zip(row, scale, strict=True))
        for row, s in zip(covariance, scale, strict=True)
    )


def _read(name: str) -> Any:
    """Return the content of a JSON file."""
    if (kind := special_file_kind(name)) is not None:
        raise RecordError(f"it is {kind}")
    try:
        with open(name, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise RecordError(f"it cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(data) > _MOST_BYTES:
        raise RecordError(f"it is larger than {_MOST_BYTES:,} bytes")
    return parse(data)


def _message(error: RecordError) -> str:
    return printable(str(error))


def from_record(record: Any) -> Curve:
    """Return the curve of a record; raise CurveError if it is none, or is damaged."""
    try:
        return read_curve(record)
    except RecordError as error:
        raise CurveError(f"The record is not that of a curve: {_message(error)}. {error.remedy or _REWRITE}") from None


def looks_like_curve(path: str) -> bool:
    """Return whether a file is JSON with positions, as a curve has them, even if it is damaged."""
    try:
        record = _read(path)
    except (FileNotFoundError, RecordError):
        return False
    return isinstance(record, dict) and "positions" in record


def read_truth(path: str) -> list[float]:
    """Read the true propensities of a simulated log from the file that `posbias simulate` writes beside it."""
    remedy = "posbias simulate writes one beside the log."
    try:
        record = mapping(_read(path), "it")
        propensity = list_of(number(0))(record.get("propensity"), "propensity")
        if not 0 < len(propensity) <= MOST_RANKS:
            raise RecordError(f"propensity has {len(propensity):,} numbers where 1 to {MOST_RANKS:,} were expected")
        verify_checksum(record)
        return propensity
    except FileNotFoundError:
        raise PosbiasError(f"There is no truth file {path!r}. {remedy}") from None
    except RecordError as error:
        raise PosbiasError(
            f'{path!r} is not a truth file, JSON with a list under "propensity", or is damaged: {_message(error)}. '
            f"{error.remedy or remedy}"
        ) from None
