"""Curves as JSON and CSV."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from posbias._files import CURVE, odd_kind, written_whole
from posbias._json import (
    UnfitError,
    field,
    mapping,
    number,
    optional,
    parse,
    prove,
    sequence,
    shown,
    text,
    unfit,
    whole,
)
from posbias._text import json_text, printable
from posbias._validate import as_path
from posbias.curves.curve import FORMAT, Covariance, Curve, Position, Segment
from posbias.errors import CurveError, PosbiasError

MOST_RANKS = 10_000
INTERVALS = ("jackknife", "bootstrap")
# Ends and entries that were computed on two ways may differ in their last digits.
_ROUNDING = 1e-9
# No ratio of counts of 64 bits is larger, nor any that a chain of them is likely to make.
_LARGEST = 1e100
_LARGEST_COVARIANCE = 1e6
_MOST_BYTES = 64 * 2**20
_ANEW = "Write it anew: by Curve.save, or as the JSON of posbias estimate."


def save(curve: Curve, path: str | os.PathLike[str]) -> None:
    """Write a curve to a file, whole or not at all."""
    data = f"{json_text(curve.to_dict())}\n".encode()
    if len(data) > _MOST_BYTES:
        raise CurveError(
            f"The curve has {len(curve.segments):,} segments of up to {curve.max_rank:,} ranks and would take "
            f"{len(data):,} bytes; files are read up to {_MOST_BYTES:,}. Estimate fewer segments or ranks at a time."
        )
    with written_whole(path, CURVE) as part, open(part, "wb") as file:
        file.write(data)


def load(path: str | os.PathLike[str]) -> Curve:
    """Read a curve back, checking that it is one and that it is whole."""
    name = as_path("path", path, CurveError)
    try:
        return read_curve(_read(name))
    except FileNotFoundError:
        raise CurveError(f"There is no file {name!r}. {_ANEW}") from None
    except UnfitError as error:
        raise CurveError(f"{name!r} is not a curve, or is damaged: {_said(error)}. {error.remedy or _ANEW}") from None


def read_curve(record: Any) -> Curve:
    """Return the curve of a record."""
    record = mapping(record, "it")
    version = _format(record.get("format"))
    max_rank = whole(field(record, "max_rank"), "max_rank", 1, MOST_RANKS)
    level = optional(number, field(record, "level"), "level")
    if level is not None and not 0 < level < 1:
        raise unfit("level", level, "a share between 0 and 1, such as 0.95")
    weighting = optional(text, field(record, "weighting"), "weighting")
    interval_by = _interval_by(field(record, "interval_by") if version > 1 else level and "bootstrap", level)
    setting = text(field(record, "estimator"), "estimator"), max_rank, level, interval_by, weighting
    by = tuple(text(name, f"by[{i}]") for i, name in enumerate(sequence(record.get("by", []), "by")))
    segments: dict[Segment, Curve] = {}
    for i, part in enumerate(sequence(record.get("segments", []), "segments")):
        where = f"segments[{i}]"
        key = _segment(field(mapping(part, where), "segment", where), by, f"{where}.segment")
        if key in segments:
            raise UnfitError(f"{where} is the segment {shown(key)} for a second time")
        segments[key] = Curve(*setting, *_estimate(part, max_rank, f"{where}.", version, interval_by))
    whole_curve = Curve(*setting, *_estimate(record, max_rank, "", version, interval_by), by, segments)
    rankers = [text(name, f"rankers[{i}]") for i, name in enumerate(sequence(field(record, "rankers"), "rankers"))]
    if sorted(rankers) != sorted(whole_curve.page_views):
        raise unfit("rankers", rankers, f"the names in page_views, {shown(list(whole_curve.page_views))}")
    text(field(record, "version"), "version")
    prove(record)
    return whole_curve


def _format(found: Any) -> int:
    if found is None:
        raise UnfitError("it has no 'format', which every curve has")
    if whole(found, "format", 1) > FORMAT:
        raise UnfitError(
            f"it has format {found} and this posbias reads up to {FORMAT}",
            "Upgrade posbias, or write the curve with this version.",
        )
    return int(found)


def _interval_by(found: Any, level: float | None) -> str | None:
    """Return how intervals were made, which is known where their level is."""
    if found not in (None, *INTERVALS) or isinstance(found, bool):
        raise unfit("interval_by", found, f"one of {', '.join(INTERVALS)}, or null")
    if (found is None) != (level is None):
        raise UnfitError(f"level is {shown(level)} and interval_by {shown(found)}: both are known, or both are null")
    return found  # type: ignore[no-any-return]


def _segment(values: Any, by: tuple[str, ...], where: str) -> Segment:
    values = mapping(values, where)
    if not by or set(values) != set(by):
        raise unfit(where, values, f"a value for each of the columns in 'by', {shown(list(by))}")
    return tuple(optional(text, values[name], f"{where}.{name}") for name in by)


def _estimate(
    record: Mapping[str, Any], max_rank: int, where: str, version: int, interval_by: str | None
) -> tuple[tuple[Position, ...], dict[str, int], Covariance | None, tuple[str, ...]]:
    """Return what stands for the whole and for each segment: positions, page views, covariance and notes."""
    found = sequence(field(record, "positions", where), f"{where}positions")
    positions = tuple(_position(p, max_rank, f"{where}positions[{i}]", version) for i, p in enumerate(found))
    for i, position in enumerate(positions):
        _check_interval(position, interval_by, f"{where}positions[{i}]")
    ranks = [p.position for p in positions]
    if any(rank >= after for rank, after in pairwise(ranks)):
        raise UnfitError(f"{where}positions are not in increasing order: {shown(ranks)}")
    if ranks[:1] == [1] and not is_first(positions[0].propensity):
        raise UnfitError(
            f"{where}positions[0].propensity is {shown(positions[0].propensity)} where 1 was expected: propensities "
            "are relative to rank 1, so divide all of them by it"
        )
    views = mapping(field(record, "page_views", where), f"{where}page_views")
    page_views = {text(name, f"{where}page_views"): whole(n, f"{where}page_views.{name}") for name, n in views.items()}
    covariance = optional(_covariance, field(record, "covariance", where), f"{where}covariance", len(positions))
    if version == 1:
        return positions, page_views, _of_logs(covariance, positions), ()
    notes = sequence(field(record, "notes", where), f"{where}notes")
    return positions, page_views, covariance, tuple(text(note, f"{where}notes[{i}]") for i, note in enumerate(notes))


def _position(record: Any, max_rank: int, where: str, version: int) -> Position:
    record = mapping(record, where)
    degrees = None if version == 1 else field(record, "degrees_of_freedom", where)
    found = Position(
        position=whole(field(record, "position", where), f"{where}.position", 1, max_rank),
        propensity=optional(_ratio, field(record, "propensity", where), f"{where}.propensity"),
        low=optional(_ratio, field(record, "low", where), f"{where}.low"),
        high=optional(_ratio, field(record, "high", where), f"{where}.high"),
        impressions=whole(field(record, "impressions", where), f"{where}.impressions"),
        clicks=whole(field(record, "clicks", where), f"{where}.clicks"),
        reason=optional(text, field(record, "reason", where), f"{where}.reason"),
        degrees_of_freedom=optional(number, degrees, f"{where}.degrees_of_freedom", 1),
    )
    if found.clicks > found.impressions:
        raise UnfitError(f"{where} has {found.clicks} clicks on {found.impressions} impressions")
    return found


def _ratio(value: Any, where: str) -> float:
    """Return a propensity relative to rank 1, or an end of its interval."""
    found = number(value, where, 0)
    if not is_ratio(found):
        raise unfit(where, value, f"0, or a number from {1 / _LARGEST:g} to {_LARGEST:g},")
    return found


def is_ratio(found: float) -> bool:
    """Return whether counts can make such a ratio: of others neither inverses nor squares are numbers."""
    return found == 0 or 1 / _LARGEST <= found <= _LARGEST


def _check_interval(found: Position, interval_by: str | None, where: str) -> None:
    """Refuse a part of an interval, and one that the curve cannot have."""
    low, high = found.low, math.inf if found.high is None else found.high
    if low is None:
        if found.high is not None:
            raise UnfitError(f"{where} has the upper end {found.high} of an interval and no lower one, low")
    elif interval_by is None:
        raise UnfitError(f"{where} has an interval, low is {low}, where interval_by is null")
    elif found.propensity is None:
        raise UnfitError(f"{where} has an interval, from {low} to {high}, and no propensity")
    elif low > high:
        raise UnfitError(f"{where} has an interval with low {low} and high {high}: its ends are exchanged")
    # Percentiles of a narrow level may lie beside the estimate; what lies about it holds it.
    elif interval_by == "jackknife" and not low * (1 - _ROUNDING) <= found.propensity <= high * (1 + _ROUNDING):
        raise UnfitError(
            f"{where} has the propensity {found.propensity}, which its own interval, from {low} to {high}, leaves out: "
            "who changes one changes the other, or sets low, high and degrees_of_freedom to null"
        )
    by_t = low is not None and interval_by == "jackknife"
    if by_t != (found.degrees_of_freedom is not None):
        wanted = (
            "a number, for it has an interval by jackknife" if by_t else "null, for it has no interval by jackknife"
        )
        raise unfit(f"{where}.degrees_of_freedom", found.degrees_of_freedom, wanted)


def is_first(propensity: float | None) -> bool:
    """Return whether rank 1 may have this propensity: that of all others is relative to it."""
    return propensity is None or abs(propensity - 1) <= _ROUNDING


def _covariance(rows: Any, where: str, size: int) -> Covariance:
    """Return a covariance if it could be one: square, symmetric, no negative variance."""
    import numpy as np

    rows = sequence(rows, where)
    if len(rows) != size or any(len(sequence(row, f"{where}[{i}]")) != size for i, row in enumerate(rows)):
        lengths = sorted({len(row) for row in rows if isinstance(row, Sequence)})
        raise UnfitError(
            f"{where} has {len(rows)} rows of {shown(lengths)} numbers where there are {size} positions: expected "
            "a row, and in it a number or null, for each of them"
        )
    checked = tuple(
        tuple(optional(_covariance_of_logs, value, f"{where}[{i}][{j}]") for j, value in enumerate(row))
        for i, row in enumerate(rows)
    )
    values = np.array(checked, dtype=np.float64).reshape(size, size)
    variances = np.diag(values)
    for i in np.flatnonzero(variances < 0):
        raise unfit(f"{where}[{i}][{i}]", float(variances[i]), "a variance, which is 0 or more")
    for i, j in np.argwhere(np.isnan(variances)[:, None] & np.isfinite(values)):
        raise UnfitError(f"{where}[{i}][{j}] is {shown(checked[i][j])}, and the variance [{i}][{i}] is null")
    scale = np.sqrt(np.nan_to_num(variances))
    slack = _ROUNDING * np.fmax(np.abs(values), scale[:, None] * scale)
    alike = (np.isnan(values) & np.isnan(values.T)) | (np.abs(values - values.T) <= slack)
    for i, j in np.argwhere(~alike):
        raise UnfitError(
            f"{where} is not symmetric: [{i}][{j}] is {shown(checked[i][j])} and [{j}][{i}] {shown(checked[j][i])}"
        )
    return checked


def _covariance_of_logs(value: Any, where: str) -> float:
    """Return a covariance of log p; beyond bounds, no interval has ends that are numbers."""
    found = number(value, where)
    if abs(found) > _LARGEST_COVARIANCE:
        raise unfit(where, value, f"a number of at most {_LARGEST_COVARIANCE:g}, a covariance of log p,")
    return found


def _of_logs(covariance: Covariance | None, positions: Sequence[Position]) -> Covariance | None:
    """Return the covariance of log p, as the delta method makes it of that of p."""
    if covariance is None:
        return None
    scale = [p.propensity or None for p in positions]
    return tuple(
        tuple(None if v is None or s is None or t is None else v / (s * t) for v, t in zip(row, scale, strict=True))
        for row, s in zip(covariance, scale, strict=True)
    )


def _read(name: str) -> Any:
    """Return what a file of JSON holds, if it is strictly that."""
    if (kind := odd_kind(name)) is not None:
        raise UnfitError(f"it is {kind}")
    try:
        with open(name, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise UnfitError(f"it cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(data) > _MOST_BYTES:
        raise UnfitError(f"it is larger than {_MOST_BYTES:,} bytes")
    return parse(data)


def _said(error: UnfitError) -> str:
    return printable(str(error))


def from_record(record: Any) -> Curve:
    """Return the curve of a record, checking that it is one and that it is whole."""
    try:
        return read_curve(record)
    except UnfitError as error:
        raise CurveError(f"The record is not that of a curve: {_said(error)}. {error.remedy or _ANEW}") from None


def looks_like_curve(path: str) -> bool:
    """Return whether a file is JSON with positions as a curve has them, be it whole or not."""
    try:
        record = _read(path)
    except (FileNotFoundError, UnfitError):
        return False
    return isinstance(record, dict) and "positions" in record


def read_truth(path: str) -> list[float]:
    """Read the known curve of a simulated log."""
    remedy = "posbias simulate writes one beside the log."
    try:
        record = mapping(_read(path), "it")
        found = sequence(record.get("propensity"), "propensity")
        if not 0 < len(found) <= MOST_RANKS:
            raise UnfitError(f"propensity has {len(found):,} numbers where 1 to {MOST_RANKS:,} were expected")
        known = [number(p, f"propensity[{i}]", 0) for i, p in enumerate(found)]
        prove(record)
        return known
    except FileNotFoundError:
        raise PosbiasError(f"There is no truth file {path!r}. {remedy}") from None
    except UnfitError as error:
        raise PosbiasError(
            f'{path!r} is not a truth file, JSON with a list under "propensity", or is damaged: {_said(error)}. '
            f"{error.remedy or remedy}"
        ) from None
