"""Validate the arguments of public functions, as the command validates its flags; and their shared defaults."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from posbias._defaults import DEFAULT_LEVEL
from posbias._text import listed
from posbias.errors import PosbiasError


def integer(
    name: str, value: object, low: int, high: int | None = None, error: type[PosbiasError] = PosbiasError
) -> int:
    """Return a whole number within bounds, of a Python or NumPy type.

    >>> integer("max_rank", 10, 2)
    10
    """
    valid = isinstance(value, Integral) and not isinstance(value, bool)
    if not valid or int(value) < low or (high is not None and int(value) > high):  # type: ignore[call-overload]
        bounds = f"of {low:,} or more" if high is None else f"from {low:,} to {high:,}"
        raise error(f"{name} must be a whole number {bounds}, not {value!r}.")
    return int(value)  # type: ignore[call-overload, no-any-return]


def share(name: str, value: object, error: type[PosbiasError] = PosbiasError) -> float:
    """Return a number between 0 and 1."""
    found = number(value)
    if found is None or not 0 < found < 1:
        raise error(f"{name} must lie between 0 and 1, such as {DEFAULT_LEVEL}, not {value!r}.")
    return found


def number(value: object) -> float | None:
    """Return a finite number of a Python or NumPy type, or None for anything else.

    >>> number(3), number("3"), number(float("nan")), number(10**400), number(True)
    (3.0, None, None, None, None)
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def boolean(name: str, value: object, error: type[PosbiasError] = PosbiasError) -> bool:
    """Return True or False, of a Python or NumPy type; other values, such as the text "no", are errors."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise error(f"{name} must be True or False, not {value!r}.")
    return bool(value)


def one_of(name: str, value: object, choices: Iterable[str], error: type[PosbiasError] = PosbiasError) -> None:
    """Raise an error if a value is none of the choices."""
    # Other types, such as arrays, may define equality in their own way.
    if not isinstance(value, str) or value not in list(choices):
        raise error(f"{name}={value!r} is not known. Use one of {listed(choices)}.")


def as_path(name: str, value: object, error: type[PosbiasError] = PosbiasError) -> str:
    """Return a path as text.

    >>> from pathlib import PurePosixPath
    >>> as_path("output", PurePosixPath("logs", "clicks.parquet"))
    'logs/clicks.parquet'
    """
    found = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(found, str) or "\0" in found:
        raise error(f"{name} must be a path, as text or of pathlib, not {value!r}.")
    return found


def names(name: str, value: str | Sequence[str], error: type[PosbiasError] = PosbiasError) -> tuple[str, ...]:
    """Return distinct column names as a tuple; a single text is one name.

    >>> names("by", "device"), names("by", ["device", "country"])
    (('device',), ('device', 'country'))
    """
    found = (value,) if isinstance(value, str) else _texts(value)
    if found is None:
        raise error(f"{name} must be a list of column names, such as {name}=['device'], not {value!r}.")
    for item in found:
        if found.count(item) > 1:
            raise error(f"{name} names {item!r} twice. Name it once.")
    return found


def sequence(value: object) -> tuple[Any, ...] | None:
    """Return a list, a tuple or an array of one dimension as a tuple, or None for anything else, such as sets.

    >>> sequence([0.1, 0.5]), sequence(0.5), sequence({0.5}), sequence("0.5")
    ((0.1, 0.5), None, None, None)
    """
    array = hasattr(value, "__array__") and getattr(value, "ndim", 1) == 1
    ordered = (isinstance(value, Sequence) or array) and not isinstance(value, str | bytes)
    return tuple(value) if ordered else None  # type: ignore[arg-type]


def _texts(value: object) -> tuple[str, ...] | None:
    """Return a sequence of texts as a tuple, or None for anything else."""
    items = sequence(value)
    return None if items is None or not all(isinstance(item, str) for item in items) else tuple(map(str, items))


def texts(name: str, value: object, size: int | None = None, error: type[PosbiasError] = PosbiasError) -> list[str]:
    """Return a list of texts, of a given size if any; a single text is an error."""
    found = _texts(value)
    if found is None or (size is not None and len(found) != size):
        many = "texts" if size is None else f"{size} text{'s'[: size > 1]}"
        raise error(f"{name} must be a list of {many}, not {value!r}.")
    return list(found)


def shares(name: str, value: object, example: str, error: type[PosbiasError] = PosbiasError) -> dict[str, float]:
    """Return a mapping from names to shares of 0 or more."""
    found = {str(key): number(item) for key, item in value.items()} if isinstance(value, Mapping) else {"": None}
    shares = {key: item or 0.0 for key, item in found.items()}
    if any(item is None or item < 0 for item in found.values()) or not math.isfinite(sum(shares.values())):
        raise error(f"{name} must give a share of 0 or more by name, such as {example}, not {value!r}.")
    return shares


def check_type(name: str, value: object, kind: type, error: type[PosbiasError] = PosbiasError) -> None:
    """Reject a value of another type."""
    if not isinstance(value, kind):
        raise error(f"{name} must be of type {kind.__name__}, not {type(value).__name__}.")
