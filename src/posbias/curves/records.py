"""A curve from its record, the JSON object that `to_dict` makes: every field is checked, for anyone may write one."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from posbias.curves.curve import FORMAT, Covariance, Curve, Position, Segment

MOST_RANKS = 10_000
_MOST_COUNT = 2**63 - 1
# Ends and entries that were computed on two ways may differ in their last digits.
_ROUNDING = 1e-9


class UnfitError(Exception):
    """What is wrong with a record, and what to do where that is not to write it anew."""

    def __init__(self, what: str, remedy: str | None = None) -> None:
        super().__init__(what)
        self.remedy = remedy


def read_curve(record: Any) -> Curve:
    """Return the curve of a record."""
    record = mapping(record, "it")
    _check_format(record.get("format"))
    max_rank = whole(_of(record, "max_rank"), "max_rank", 1, MOST_RANKS)
    level = _optional(number, _of(record, "level"), "level")
    if level is not None and not 0 < level < 1:
        raise _unfit("level", level, "a share between 0 and 1, such as 0.95")
    weighting = _optional(text, _of(record, "weighting"), "weighting")
    setting = text(_of(record, "estimator"), "estimator"), max_rank, level, weighting
    by = tuple(text(name, f"by[{i}]") for i, name in enumerate(sequence(record.get("by", []), "by")))
    segments: dict[Segment, Curve] = {}
    for i, part in enumerate(sequence(record.get("segments", []), "segments")):
        where = f"segments[{i}]"
        key = _segment(_of(mapping(part, where), "segment", where), by, f"{where}.segment")
        if key in segments:
            raise UnfitError(f"{where} is the segment {_shown(key)} for a second time")
        segments[key] = Curve(*setting, *_estimate(part, max_rank, f"{where}."))
    whole_curve = Curve(*setting, *_estimate(record, max_rank, ""), by, segments)
    rankers = [text(name, f"rankers[{i}]") for i, name in enumerate(sequence(_of(record, "rankers"), "rankers"))]
    if sorted(rankers) != sorted(whole_curve.page_views):
        raise _unfit("rankers", rankers, f"the names in page_views, {_shown(list(whole_curve.page_views))}")
    text(_of(record, "version"), "version")
    return whole_curve


def _check_format(found: Any) -> None:
    if found is None:
        raise UnfitError("it has no 'format', which every curve has")
    if whole(found, "format", 1, _MOST_COUNT) > FORMAT:
        raise UnfitError(
            f"it has format {found} and this posbias reads up to {FORMAT}",
            "Upgrade posbias, or write the curve with this version.",
        )


def _segment(values: Any, by: tuple[str, ...], where: str) -> Segment:
    values = mapping(values, where)
    if not by or set(values) != set(by):
        raise _unfit(where, values, f"a value for each of the columns in 'by', {_shown(list(by))}")
    return tuple(_optional(text, values[name], f"{where}.{name}") for name in by)


def _estimate(
    record: Mapping[str, Any], max_rank: int, where: str
) -> tuple[tuple[Position, ...], dict[str, int], Covariance | None]:
    """Return what stands for the whole and for each segment: positions, page views and covariance."""
    found = sequence(_of(record, "positions", where), f"{where}positions")
    positions = tuple(_position(p, max_rank, f"{where}positions[{i}]") for i, p in enumerate(found))
    ranks = [p.position for p in positions]
    if any(rank >= after for rank, after in pairwise(ranks)):
        raise UnfitError(f"{where}positions are not in increasing order: {_shown(ranks)}")
    views = mapping(_of(record, "page_views", where), f"{where}page_views")
    page_views = {text(name, f"{where}page_views"): whole(n, f"{where}page_views.{name}") for name, n in views.items()}
    covariance = _of(record, "covariance", where)
    return positions, page_views, _optional(_covariance, covariance, f"{where}covariance", len(positions))


def _position(record: Any, max_rank: int, where: str) -> Position:
    record = mapping(record, where)
    found = Position(
        position=whole(_of(record, "position", where), f"{where}.position", 1, max_rank),
        propensity=_optional(number, _of(record, "propensity", where), f"{where}.propensity", 0),
        low=_optional(number, _of(record, "low", where), f"{where}.low"),
        high=_optional(number, _of(record, "high", where), f"{where}.high"),
        impressions=whole(_of(record, "impressions", where), f"{where}.impressions"),
        clicks=whole(_of(record, "clicks", where), f"{where}.clicks"),
        reason=_optional(text, _of(record, "reason", where), f"{where}.reason"),
    )
    if found.clicks > found.impressions:
        raise UnfitError(f"{where} has {found.clicks} clicks on {found.impressions} impressions")
    if found.low is None and found.high is not None:
        raise UnfitError(f"{where} has the upper end {found.high} of an interval and no lower one")
    if found.low is not None:
        _check_interval(found.propensity, found.low, math.inf if found.high is None else found.high, where)
    return found


def _check_interval(propensity: float | None, low: float, high: float, where: str) -> None:
    if propensity is None:
        raise UnfitError(f"{where} has an interval, from {low} to {high}, and no propensity")
    # It need not hold the estimate: percentiles of a narrow level may lie beside it.
    if low > high:
        raise UnfitError(f"{where} has an interval from {low} to {high}: its ends are exchanged")


def _covariance(rows: Any, where: str, size: int) -> Covariance:
    """Return a covariance if it could be one: square, symmetric, no negative variance."""
    import numpy as np

    rows = sequence(rows, where)
    if len(rows) != size or any(len(sequence(row, f"{where}[{i}]")) != size for i, row in enumerate(rows)):
        lengths = sorted({len(row) for row in rows if isinstance(row, Sequence)})
        raise UnfitError(
            f"{where} has {len(rows)} rows of {_shown(lengths)} numbers where there are {size} positions: expected "
            "a row, and in it a number or null, for each of them"
        )
    checked = tuple(
        tuple(_optional(number, value, f"{where}[{i}][{j}]") for j, value in enumerate(row))
        for i, row in enumerate(rows)
    )
    values = np.array(checked, dtype=np.float64).reshape(size, size)
    variances = np.diag(values)
    for i in np.flatnonzero(variances < 0):
        raise _unfit(f"{where}[{i}][{i}]", float(variances[i]), "a variance, which is 0 or more")
    scale = np.sqrt(np.nan_to_num(variances))
    slack = _ROUNDING * np.fmax(np.abs(values), scale[:, None] * scale)
    alike = (np.isnan(values) & np.isnan(values.T)) | (np.abs(values - values.T) <= slack)
    for i, j in np.argwhere(~alike):
        raise UnfitError(
            f"{where} is not symmetric: [{i}][{j}] is {_shown(checked[i][j])} and [{j}][{i}] {_shown(checked[j][i])}"
        )
    return checked


# ---- A field as what it must be; `where` is its name in the record.


def number(value: Any, where: str, least: float = -math.inf) -> float:
    """Return a finite number."""
    wanted = "a finite number" if least == -math.inf else f"a finite number of {least} or more"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unfit(where, value, wanted)
    try:
        found = float(value)
    except OverflowError:
        raise _unfit(where, value, wanted) from None
    if not (math.isfinite(found) and found >= least):
        raise _unfit(where, value, wanted)
    return found


def whole(value: Any, where: str, least: int = 0, most: int = _MOST_COUNT) -> int:
    """Return a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        upto = "or more" if most == _MOST_COUNT else f"to {most:,}"
        raise _unfit(where, value, f"a whole number, {least} {upto}")
    return value


def text(value: Any, where: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise _unfit(where, value, "a text")
    return value


def sequence(value: Any, where: str) -> Sequence[Any]:
    """Return a list."""
    if not isinstance(value, list | tuple):
        raise _unfit(where, value, "a list")
    return value


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """Return an object of JSON."""
    if not isinstance(value, Mapping):
        raise _unfit(where, value, "an object with named fields")
    return value


def _optional(check: Any, value: Any, where: str, *more: Any) -> Any:
    return None if value is None else check(value, where, *more)


def _of(record: Mapping[str, Any], name: str, where: str = "") -> Any:
    """Return a field that must be there, if only as null."""
    if name not in record:
        raise UnfitError(f"{where.rstrip('.') or 'it'} has no {name!r}")
    return record[name]


def _unfit(where: str, value: Any, wanted: str) -> UnfitError:
    return UnfitError(f"{where} is {_shown(value)} where {wanted} was expected")


def _shown(value: Any) -> str:
    """Return what was found, cut where it is long; it may be anything."""
    try:
        return reprlib.repr(value)
    except ValueError:
        return "a number of thousands of digits"
