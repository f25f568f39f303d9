"""Array types, sums and groups by index, threads, and conversion to Arrow.

Arrow arrays are built from the memory of NumPy arrays, because Arrow's conversion imports pandas if it is installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
AnyArray = npt.NDArray[Any]
T = TypeVar("T")
S = TypeVar("S")
# Up to this many possible combinations of values, a table is faster than sorting.
_DIRECT = 2**24
# This many rows at a time stay in the cache, and their temporary arrays need no new memory from the system.
_BLOCK = 2**16


def sum_by_index(where: IntArray, values: AnyArray, size: int) -> FloatArray:
    """Return the sum of the values at each index below `size`."""
    return np.asarray(np.bincount(where, weights=values, minlength=size), dtype=np.float64)


def group(columns: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Return the first row of each distinct combination of values (none negative), and the combination of each row."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    size = 1
    for values in columns:
        column = values
        span = int(column.max(initial=0)) + 1
        if size * span >= 2**62:
            # Too many for 64 bits: number the combinations that occur instead of all possible ones.
            found, key = np.unique(key, return_inverse=True)
            apart, column = np.unique(column, return_inverse=True)
            size, span = len(found), len(apart)
        key = key * span + column
        size *= span
    if size > _DIRECT:
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        return first, which
    held = distinct(key, size)
    # 32 bits, so that more of it stays in the cache.
    number = np.empty(size, dtype=np.int32)
    number[held] = np.arange(len(held), dtype=np.int32)
    which = number[key].astype(np.int64)
    first = np.empty(len(held), dtype=np.int64)
    first[which[::-1]] = np.arange(len(key) - 1, -1, -1)
    return first, which


def distinct(values: IntArray, size: int) -> IntArray:
    """Return the distinct values of whole numbers below `size`, sorted."""
    if size > _DIRECT:
        return np.unique(values)
    held = np.zeros(size, dtype=np.bool_)
    held[values] = True
    return np.flatnonzero(held)


def runs(columns: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Return an order of rows in which equal combinations of values (none negative) are adjacent, and their starts."""
    # As few keys as hold all columns: the first is sorted fast, the others by a stable sort.
    keys, size = [np.zeros(len(columns[0]), dtype=np.int64)], 1
    for column in columns:
        span = int(column.max(initial=0)) + 1
        if size * span < 2**62:
            keys[-1], size = keys[-1] * span + column, size * span
        else:
            keys, size = [*keys, column], span
    order = np.argsort(keys[0])
    for key in keys[1:]:
        order = order[np.argsort(key[order], kind="stable")]
    begins = np.zeros(len(order), dtype=np.bool_)
    begins[:1] = True
    for key in (key[order] for key in keys):
        begins[1:] |= key[1:] != key[:-1]
    return order, np.flatnonzero(begins)


def blocks(size: int) -> list[slice]:
    """Return the rows of a long table as slices that fit into the cache.

    >>> blocks(100_000)
    [slice(0, 65536, None), slice(65536, 100000, None)]
    """
    return [slice(start, min(start + _BLOCK, size)) for start in range(0, size, _BLOCK)]


def map_threads(function: Callable[[T], S], items: Iterable[T]) -> list[S]:
    """Return the results of a function for each item, computed in threads: NumPy releases the interpreter lock."""
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, items))


def run_in_background(function: Callable[[], S]) -> Future[S]:
    """Call a function in a thread, and return the future of its result."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function)
    pool.shutdown(wait=False)
    return future


def lookup(values: IntArray, among: IntArray) -> IntArray:
    """Return the index of each value among sorted distinct small ones, by a table: much faster than searching."""
    table = np.zeros(int(among.max(initial=0)) + 1, dtype=np.int64)
    table[among] = np.arange(len(among))
    return np.asarray(table[values])


def numbers_to_arrow(values: AnyArray, missing: BoolArray | None = None) -> Any:
    """Return numbers as an Arrow array, some of them missing.

    >>> numbers_to_arrow(np.array([3, 5, 8]), np.array([False, True, False])).to_pylist()
    [3, None, 8]
    """
    import pyarrow as pa

    held = np.ascontiguousarray(values)
    buffers = [_validity(missing), pa.py_buffer(held)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(held.dtype), len(held), buffers)


def _validity(missing: BoolArray | None) -> Any:
    import pyarrow as pa

    return None if missing is None or not missing.any() else pa.py_buffer(np.packbits(~missing, bitorder="little"))


def texts_to_arrow(texts: Sequence[str | None]) -> Any:
    """Return texts as an Arrow array, some of them missing.

    >>> texts_to_arrow(["ä", None, ""]).to_pylist()
    ['ä', None, '']
    """
    import pyarrow as pa

    encoded = [(text or "").encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    missing = np.array([text is None for text in texts], dtype=np.bool_)
    buffers = [_validity(missing), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)
