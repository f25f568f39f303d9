"""Arrays by their element, and the two things done to them everywhere: adding up by place, and numbering groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
AnyArray = npt.NDArray[Any]

# Up to this many possible combinations of values are looked up in a table.
_DIRECT = 2**24


def tally(where: IntArray, values: AnyArray, size: int) -> FloatArray:
    """Return the sum of the values at each of `size` places."""
    return np.asarray(np.bincount(where, weights=values, minlength=size), dtype=np.float64)


def group(columns: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Return the first row of each distinct combination of values (none negative), and which one each row has."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    size = 1
    for values in columns:
        column = values
        span = int(column.max(initial=0)) + 1
        if size * span >= 2**62:
            # Too many for one number: count the combinations there are instead of those there could be.
            found, key = np.unique(key, return_inverse=True)
            apart, column = np.unique(column, return_inverse=True)
            size, span = len(found), len(apart)
        key = key * span + column
        size *= span
    if size > _DIRECT:
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        return first, which
    # Few enough combinations to look each of them up in a table, which is much faster than sorting.
    held = np.zeros(size, dtype=np.bool_)
    held[key] = True
    number = np.cumsum(held) - 1
    which = number[key]
    first = np.empty(int(held.sum()), dtype=np.int64)
    first[which[::-1]] = np.arange(len(key))[::-1]
    return first, which


def distinct(values: IntArray, size: int) -> IntArray:
    """Return the distinct ones of whole numbers below `size`, sorted."""
    if size > _DIRECT:
        return np.unique(values)
    held = np.zeros(size, dtype=np.bool_)
    held[values] = True
    return np.flatnonzero(held)


def places(values: IntArray, among: IntArray) -> IntArray:
    """Return where each value stands among sorted distinct small ones, by a table: much faster than searching."""
    table = np.zeros(int(among.max(initial=0)) + 1, dtype=np.int64)
    table[among] = np.arange(len(among))
    return np.asarray(table[values])
