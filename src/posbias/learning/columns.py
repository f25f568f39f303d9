"""Columns of rows as functions of learning take them: numbers, and which query each row is of."""

from __future__ import annotations

from typing import Any

import numpy as np

from posbias.arrays import AnyArray, FloatArray, IntArray
from posbias.errors import PosbiasError


def as_numbers(name: str, values: Any, what: str = "numbers, one for each row") -> FloatArray:
    """Return numbers as an array of doubles, NaN where one is missing; refuse what is none.

    >>> as_numbers("weights", [1, None]).tolist()
    [1.0, nan]
    """
    _refuse_mask(name, values)
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise PosbiasError(f"{name} must be {what}: {error}.") from None


def as_column(name: str, values: Any, what: str = "one value for each row") -> AnyArray:
    """Return single values of any kind as an array; refuse what is no column of them."""
    _refuse_mask(name, values)
    try:
        column = np.asarray(values)
    except ValueError as error:
        raise PosbiasError(f"{name} must be {what}: {error}.") from None
    if column.ndim != 1:
        raise PosbiasError(f"{name} must be {what}, not {_shape(values, column)}.")
    return column


def numbered(name: str, values: Any) -> IntArray:
    """Return a number for each row: the same for the same id.

    >>> numbered("query", ["b", "a", "b"]).tolist()
    [0, 1, 0]
    """
    column = as_column(name, values)
    if column.dtype.kind in "iu":
        return np.asarray(np.unique(column, return_inverse=True)[1], dtype=np.int64)
    told = column.tolist()
    # What is missing is None, or does not equal itself: NaN, and NA of pandas.
    missing = sum(value is None or (value == value) is not True for value in told)
    if missing:
        raise PosbiasError(f"{missing:,} of {len(told):,} rows have no value in {name}. Leave them out.")
    number: dict[Any, int] = {}
    try:
        return np.array([number.setdefault(value, len(number)) for value in told], dtype=np.int64)
    except TypeError:
        odd = next(value for value in told if isinstance(value, list | dict | set | bytearray))
        raise PosbiasError(f"{name} must be single values, such as numbers or texts, not {odd!r}.") from None


def _refuse_mask(name: str, values: Any) -> None:
    """Refuse what a mask hides: an array reads through it."""
    hidden = int(np.ma.getmaskarray(values).sum()) if isinstance(values, np.ma.MaskedArray) else 0
    if hidden:
        raise PosbiasError(f"{hidden:,} of {values.size:,} values of {name} are masked. Leave these rows out.")


def _shape(values: Any, column: AnyArray) -> str:
    return repr(values) if column.ndim == 0 else f"an array of the shape {column.shape}"
