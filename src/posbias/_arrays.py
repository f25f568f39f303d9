"""Array types, sums and groups by index, threads of Python and of BLAS, and conversion to Arrow.

Arrow arrays are built from the memory of NumPy arrays, because Arrow's conversion imports pandas if it is installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import current_thread
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from posbias.progress import profile_is_on

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
AnyArray = npt.NDArray[Any]
T = TypeVar("T")
S = TypeVar("S")
# A table of all possible values is faster than sorting if it has at most this many, and at most so many for each row.
_DIRECT, _DIRECT_PER_ROW = 2**24, 8
# This many rows at a time stay in the cache, and their temporary arrays need no new memory from the system.
_BLOCK = 2**16
# The names of threads that compute start with this.
_THREADS = "posbias"


def sum_by_index(where: IntArray, values: AnyArray, size: int) -> FloatArray:
    """Return the sum of the values at each index below `size`."""
    return np.asarray(np.bincount(where, weights=values, minlength=size), dtype=np.float64)


def group(columns: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Return the first row of each distinct combination of values (none negative), and the combination of each row.

    Combinations are numbered in the order of their values. Rows that are sorted by them need no sort and no table.
    """
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
        key = column if size == 1 else key * span + column
        size *= span
    if is_sorted(key):
        begins = starts_of_runs(key)
        return np.flatnonzero(begins), np.cumsum(begins) - 1
    if not _fits_table(key, size):
        order = sorted_order(key, size)
        begins = starts_of_runs(key[order])
        which = np.empty(len(key), dtype=np.int64)
        which[order] = np.cumsum(begins) - 1
        return order[begins], which
    held = distinct(key, size)
    # 32 bits, so that more of it stays in the cache.
    number = np.empty(size, dtype=np.int32)
    number[held] = np.arange(len(held), dtype=np.int32)
    which = number[key].astype(np.int64)
    first = np.empty(len(held), dtype=np.int64)
    first[which[::-1]] = np.arange(len(key) - 1, -1, -1)
    return first, which


def is_sorted(values: AnyArray) -> bool:
    """Return whether no value is less than the one before it."""
    return not any_row(lambda rows: values[rows.start + 1 : rows.stop + 1] < values[rows], len(values) - 1)


def any_row(test: Callable[[slice], BoolArray], size: int) -> bool:
    """Return whether a test of rows, given as a slice, is true of any; a block of rows at a time stays in the cache."""
    return any(bool(np.any(test(rows))) for rows in blocks(size))


def starts_of_runs(values: AnyArray) -> BoolArray:
    """Return where a value differs from the one before it.

    >>> starts_of_runs(np.array([4, 4, 7, 4]))
    array([ True, False,  True,  True])
    """
    starts = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=starts[1:])
    return starts


def sorted_order(values: IntArray, size: int) -> IntArray:
    """Return the stable order of whole numbers below `size`."""
    bits = len(values).bit_length()
    if size >= 2 ** (63 - bits):
        return np.argsort(values, kind="stable")
    # Sorting numbers is faster than sorting their order, so the row is written behind the number.
    packed = (values << bits) | np.arange(len(values))
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def left_out(weights: FloatArray) -> IntArray | None:
    """Return the bucket that each row of weights, (n, B), leaves out, if it counts all others once; None otherwise.

    >>> left_out(np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])), left_out(np.array([[2.0, 0.0, 1.0]]))
    (array([1, 2]), None)
    """
    if weights.ndim != 2 or np.any(np.count_nonzero(weights == 1, axis=1) != weights.shape[1] - 1):
        return None
    which = np.argmin(weights, axis=1)
    return which if np.all(weights[np.arange(len(weights)), which] == 0) else None


def ranges(first: IntArray, size: IntArray) -> IntArray:
    """Return the numbers of several ranges one after another, each from `first` on and of its own size.

    >>> ranges(np.array([7, 2]), np.array([2, 3]))
    array([7, 8, 2, 3, 4])
    """
    begin = np.cumsum(size) - size
    numbers = np.repeat(first - begin, size)
    numbers += np.arange(len(numbers))
    return numbers


def add_by_index(where: IntArray, values: IntArray, size: int) -> IntArray:
    """Return the sum of whole numbers at each index below `size`."""
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, where, values)
    return sums


def distinct(values: IntArray, size: int) -> IntArray:
    """Return the distinct values of whole numbers below `size`, sorted."""
    if not _fits_table(values, size):
        # Faster than np.unique, which builds a hash table.
        ordered = np.sort(values)
        return ordered[starts_of_runs(ordered)]
    held = np.zeros(size, dtype=np.bool_)
    held[values] = True
    return np.flatnonzero(held)


def _fits_table(values: IntArray, size: int) -> bool:
    """Return whether a table with a place for each number below `size` is faster than sorting the values."""
    return size <= min(_DIRECT, _DIRECT_PER_ROW * max(len(values), _BLOCK // _DIRECT_PER_ROW))


def blocks(size: int) -> list[slice]:
    """Return the rows of a long table as slices that fit into the cache.

    >>> blocks(100_000)
    [slice(0, 65536, None), slice(65536, 100000, None)]
    """
    return [slice(start, min(start + _BLOCK, size)) for start in range(0, size, _BLOCK)]


def map_threads(function: Callable[[T], S], items: Iterable[T]) -> list[S]:
    """Return the results of a function for each item, computed in threads: NumPy releases the interpreter lock.

    Inside such a thread no more threads are started: the items are computed in order.
    """
    items = list(items)
    if len(items) < 2 or current_thread().name.startswith(_THREADS):
        return [function(item) for item in items]
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix=_THREADS) as pool:
        return list(pool.map(function, items))


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS use one thread: on matrices of ranks, its threads wait for each other far longer than they compute.

    It is a decorator, too.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"):
        yield


def run_in_background(function: Callable[[], S]) -> Future[S]:
    """Call a function in a thread, and return the future of its result.

    A profile is of one thread, so that steps add up: with one, the result is computed before this returns.
    """
    if profile_is_on():
        return _computed(function)
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function)
    pool.shutdown(wait=False)
    return future


def _computed(function: Callable[[], S]) -> Future[S]:
    future: Future[S] = Future()
    try:
        future.set_result(function())
    except Exception as error:
        future.set_exception(error)
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


def numbers_from_arrow(column: Any) -> AnyArray:
    """Return an Arrow column of numbers as an array of the same type. Where a number is missing, it is anything.

    The buffer is read directly: Arrow's own conversion would import pandas if it is installed.
    """
    array = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    values = np.frombuffer(array.buffers()[1] or b"", dtype=array.type.to_pandas_dtype())
    return values[array.offset : array.offset + len(array)]


def valid_in_arrow(array: Any) -> BoolArray:
    """Return which values of an Arrow array are not missing."""
    bits = array.buffers()[0]
    if bits is None or not array.null_count:
        return np.ones(len(array), dtype=np.bool_)
    every = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")
    return every[array.offset : array.offset + len(array)].astype(np.bool_)


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
