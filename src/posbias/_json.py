"""Read JSON records strictly: every field has the type it must have."""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

# What a count may reach: the largest whole number of 64 bits.
_MOST_COUNT = 2**63 - 1


def parse(data: bytes | str) -> Any:
    """Return what JSON holds, if it is strictly that: no name twice in an object, no number that is none."""
    try:
        return json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except RecursionError:
        raise UnfitError("it is nested deeper than any of ours") from None
    except ValueError as error:
        raise UnfitError(f"it is not JSON ({error})") from None


def _refuse_constant(name: str) -> NoReturn:
    raise UnfitError(f"it holds {name}, which is no number of JSON; what is not known is null")


class UnfitError(Exception):
    """What is wrong with a record, and what to do where that is not to write it anew."""

    def __init__(self, what: str, remedy: str | None = None) -> None:
        super().__init__(what)
        self.remedy = remedy


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise UnfitError(f"it has {name[:80]!r} twice in one object")
        made[name] = value
    return made


def prove(record: Mapping[str, Any]) -> None:
    """Refuse a record whose checksum is not its own; one that was written by hand has none."""
    if "checksum" in record and text(record["checksum"], "checksum") != checksum(record):
        raise UnfitError(
            "its checksum is not that of what it holds, so that it was damaged or edited",
            "Write it anew; or, if it was edited on purpose, take the field 'checksum' out of it.",
        )


def text(value: Any, where: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise unfit(where, value, "a text")
    return value


def unfit(where: str, value: Any, wanted: str) -> UnfitError:
    """Return the error of a field that is not what was expected."""
    return UnfitError(f"{where} is {shown(value)} where {wanted} was expected")


def shown(value: Any) -> str:
    """Return what was found, cut where it is long; it may be anything."""
    try:
        return reprlib.repr(value)
    except ValueError:
        return "a number of thousands of digits"


def checksum(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record, all but its own checksum. A number counts by its value, however it is written.

    >>> checksum({"a": 1, "b": [0.5]}) == checksum({"b": [5e-1], "a": 1.0, "checksum": "old"})
    True
    """
    said = {name: _by_value(value) for name, value in record.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=repr).encode()).hexdigest()


def _by_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _by_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_by_value(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST_COUNT:
        return float(value)
    return value


# ---- A field as what it must be; `where` is its name in the record.


def number(value: Any, where: str, least: float = -math.inf) -> float:
    """Return a finite number."""
    wanted = "a finite number" if least == -math.inf else f"a finite number of {least} or more"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise unfit(where, value, wanted)
    try:
        found = float(value)
    except OverflowError:
        raise unfit(where, value, wanted) from None
    if not (math.isfinite(found) and found >= least):
        raise unfit(where, value, wanted)
    return found


def whole(value: Any, where: str, least: int = 0, most: int = _MOST_COUNT) -> int:
    """Return a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        upto = "or more" if most == _MOST_COUNT else f"to {most:,}"
        raise unfit(where, value, f"a whole number, {least} {upto}")
    return value


def sequence(value: Any, where: str) -> Sequence[Any]:
    """Return a list."""
    if not isinstance(value, list | tuple):
        raise unfit(where, value, "a list")
    return value


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """Return an object of JSON."""
    if not isinstance(value, Mapping):
        raise unfit(where, value, "an object with named fields")
    return value


def optional(check: Any, value: Any, where: str, *more: Any) -> Any:
    """Return a field that may be null."""
    return None if value is None else check(value, where, *more)


def field(record: Mapping[str, Any], name: str, where: str = "") -> Any:
    """Return a field that must be there, if only as null."""
    if name not in record:
        raise UnfitError(f"{where.rstrip('.') or 'it'} has no {name!r}")
    return record[name]
