"""Numbers and texts as arrays of Arrow, made of their memory: its own conversion imports pandas where that is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from posbias.arrays import AnyArray, BoolArray


def numbers_to_arrow(values: AnyArray, missing: BoolArray | None = None) -> Any:
    """Return numbers, some of which may be missing.

    >>> numbers_to_arrow(np.array([3, 5, 8]), np.array([False, True, False])).to_pylist()
    [3, None, 8]
    """
    import pyarrow as pa

    held = np.ascontiguousarray(values)
    buffers = [_validity(missing), pa.py_buffer(held)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(held.dtype), len(held), buffers)


def texts_to_arrow(texts: Sequence[str | None]) -> Any:
    """Return texts, some of which may be missing.

    >>> texts_to_arrow(["ä", None, ""]).to_pylist()
    ['ä', None, '']
    """
    import pyarrow as pa

    encoded = [(text or "").encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    missing = np.array([text is None for text in texts], dtype=np.bool_)
    buffers = [_validity(missing), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def _validity(missing: BoolArray | None) -> Any:
    import pyarrow as pa

    return None if missing is None or not missing.any() else pa.py_buffer(np.packbits(~missing, bitorder="little"))
