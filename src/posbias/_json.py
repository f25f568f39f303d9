"""Read JSON records strictly, because files can be damaged or edited by hand.

A *reader* is a function of a value and of its place in the record, such as "positions[3].low". It returns the value if
that is what it must be, and raises `RecordError` otherwise. Readers are built from others, so a record is described as
a dictionary from the names of its fields to their readers:

>>> fields = {"name": text, "clicks": integer(), "weights": nullable(list_of(number(least=0)))}
>>> read_record({"name": "a", "clicks": 3, "weights": [0.5]}, "", fields)
{'name': 'a', 'clicks': 3, 'weights': [0.5]}
>>> read_record({"name": "a", "clicks": -3, "weights": None}, "rows[7]", fields)
Traceback (most recent call last):
posbias._json.RecordError: rows[7].clicks is -3 where a whole number, 0 or more was expected
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
Reader = Callable[[Any, str], T]
# The largest whole number of 64 bits.
MOST_COUNT = 2**63 - 1


class RecordError(Exception):
    """What is wrong with a record, and what to do about it, unless that is to write the record again."""

    def __init__(self, what: str, remedy: str | None = None) -> None:
        super().__init__(what)
        self.remedy = remedy


def parse(data: bytes | str) -> Any:
    """Return the value of a JSON text; names that occur twice in an object, NaN and Infinity are errors."""
    try:
        return json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except RecursionError:
        raise RecordError("it is nested too deeply") from None
    except ValueError as error:
        raise RecordError(f"it is not JSON ({error})") from None


def _refuse_constant(name: str) -> NoReturn:
    raise RecordError(f"it holds {name}, which is not a JSON number; write null for an unknown number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name, value in pairs:
        if name in record:
            raise RecordError(f"it has {name[:80]!r} twice in one object")
        record[name] = value
    return record


def read_record(
    value: Any, where: str, fields: Mapping[str, Reader[Any]], *, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the named fields of a record, each as its reader returns it; other fields are ignored.

    Arguments:
        value (any): the record.
        where (str): its place, "" for the whole record.
        fields (mapping): the reader of each field.
        defaults (mapping, default None): the values of fields that may be missing.
    """
    record = {**(defaults or {}), **mapping(value, where or "it")}
    for name in fields:
        if name not in record:
            raise RecordError(f"{where or 'it'} has no {name!r}")
    return {name: read(record[name], f"{where}.{name}" if where else name) for name, read in fields.items()}


# ---- Readers


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """Return a JSON object."""
    if not isinstance(value, Mapping):
        raise unexpected(where, value, "an object with named fields")
    return value


def text(value: Any, where: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise unexpected(where, value, "a text")
    return value


def anything(value: Any, where: str) -> Any:
    """Return a value that is checked elsewhere."""
    return value


def number(least: float = -math.inf) -> Reader[float]:
    """Return the reader of a finite number."""
    expected = "a finite number" if least == -math.inf else f"a finite number of {least} or more"

    def read(value: Any, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise unexpected(where, value, expected)
        try:
            found = float(value)
        except OverflowError:
            raise unexpected(where, value, expected) from None
        if not (math.isfinite(found) and found >= least):
            raise unexpected(where, value, expected)
        return found

    return read


def integer(least: int = 0, most: int = MOST_COUNT) -> Reader[int]:
    """Return the reader of a whole number between bounds."""

    def read(value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            upper = "or more" if most == MOST_COUNT else f"to {most:,}"
            raise unexpected(where, value, f"a whole number, {least} {upper}")
        return value

    return read


def one_of(choices: Collection[str]) -> Reader[Any]:
    """Return the reader of a text that is one of some choices."""

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, str) or value not in choices:
            raise unexpected(where, value, f"one of {', '.join(map(repr, choices))}")
        return value

    return read


def nullable(reader: Reader[T]) -> Reader[T | None]:
    """Return the reader of a value that may be null."""
    return lambda value, where: None if value is None else reader(value, where)


def list_of(reader: Reader[T]) -> Reader[list[T]]:
    """Return the reader of a list whose items have the same reader."""

    def read(value: Any, where: str) -> list[T]:
        return [reader(item, f"{where}[{i}]") for i, item in enumerate(sequence(value, where))]

    return read


def dict_of(reader: Reader[T]) -> Reader[dict[str, T]]:
    """Return the reader of an object with any names, whose values have the same reader."""

    def read(value: Any, where: str) -> dict[str, T]:
        items = mapping(value, where).items()
        return {text(name, where): reader(item, f"{where}[{abbreviated(name)}]") for name, item in items}

    return read


def sequence(value: Any, where: str) -> Sequence[Any]:
    """Return a list."""
    if not isinstance(value, list | tuple):
        raise unexpected(where, value, "a list")
    return value


# ---- Errors and checksums


def unexpected(where: str, value: Any, expected: str) -> RecordError:
    """Return the error of a value that is not what was expected."""
    return RecordError(f"{where} is {abbreviated(value)} where {expected} was expected")


def abbreviated(value: Any) -> str:
    """Return any value for a message, shortened if it is long."""
    try:
        return reprlib.repr(value)
    except ValueError:
        return "a number of thousands of digits"


def verify_checksum(record: Mapping[str, Any]) -> None:
    """Raise an error if the checksum of a record does not match its content; a record may have no checksum."""
    if "checksum" in record and text(record["checksum"], "checksum") != checksum(record):
        raise RecordError(
            "its checksum does not match its content, so it was damaged or edited",
            "Write it again; or, if it was edited on purpose, remove the field 'checksum'.",
        )


def checksum(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record without its own checksum. A number counts by its value, however it is written.

    >>> checksum({"a": 1, "b": [0.5]}) == checksum({"b": [5e-1], "a": 1.0, "checksum": "old"})
    True
    """
    content = {name: _by_value(value) for name, value in record.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=repr).encode()).hexdigest()


def _by_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _by_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_by_value(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST_COUNT:
        return float(value)
    return value
