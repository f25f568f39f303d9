"""Maps: a number for each two ranks, as the colour of a cell."""

from __future__ import annotations

import base64
import math
import struct
import zlib

import numpy as np
import numpy.typing as npt

from posbias.arrays import FloatArray
from posbias.plots.links import MOST_WRITTEN, round_counts
from posbias.progress import short as short_count
from posbias.reporting.drawings import ABOVE, LEFT, Drawing, Frame, axes
from posbias.reporting.scales import Axis, rank_axis
from posbias.reporting.svgs import line, path, short, text

Levels = npt.NDArray[np.uint8]

# Cividis, which people see alike however they see colours, without its darkest blue, which is not told from an empty
# cell where the page is dark.
_SHADES = ("2f426d", "636670", "928d78", "c7b767", "fee838")
# How large the map is, in points, and how many cells of it a screen can show; beside it the shades, and how wide these.
_SIDE, _MOST, _BESIDE, _WIDE = 250.0, 500, 10.0, 11.0


def counts_map(counts: FloatArray, x_label: str, y_label: str) -> Drawing:
    """Return counts, (M, M), as a map from the first rank in the upper left; cells without any are empty."""
    ranks = range(1, len(counts) + 1)
    x, y = rank_axis(ranks, x_label), rank_axis(ranks, y_label)
    frame = Frame(x, Axis(y_label, y.high, y.low, y.ticks), LEFT, LEFT + _SIDE, ABOVE, ABOVE + _SIDE)
    if not counts.any():
        return Drawing(frame, "", axes(frame, grid=False))
    low, high = max(1.0, float(counts[counts > 0].min())), max(2.0, float(counts.max()))
    # More cells than can be seen are left out, evenly.
    kept = np.unique(np.linspace(0, len(counts) - 1, _MOST).astype(int))
    shown = counts[np.ix_(kept, kept)]
    share = np.log(np.clip(shown, low, high) / low) / math.log(high / low)
    levels = np.where(shown > 0, 1 + np.rint(254 * share), 0).astype(np.uint8)
    words = "" if len(counts) > MOST_WRITTEN else _words(counts, frame, low, high)
    cells = _image(levels, frame.left, frame.top, _SIDE, _SIDE, "cells")
    return Drawing(frame, cells + words, axes(frame, grid=False) + _shades(frame, low, high))


def _words(counts: FloatArray, frame: Frame, low: float, high: float) -> str:
    # The colour on which black and white are read equally well.
    middle = low**0.65 * high**0.35
    return "".join(
        text(short_count(counts[k, j]), *_below(frame.at(j + 1, k + 1)), "light" if counts[k, j] > middle else "dark")
        for k, j in np.argwhere(counts > 0).tolist()
    )


def _below(point: tuple[float, float]) -> tuple[float, float]:
    """Return where words begin that are to have their middle at a point."""
    return point[0], point[1] + 2.6


def _shades(frame: Frame, low: float, high: float) -> str:
    """Return the shades beside a map, and what some of them stand for."""
    left, tall = frame.right + _BESIDE, frame.bottom - frame.top
    every = np.arange(255, 0, -1, dtype=np.uint8)[:, None]
    scale = Axis("", low, high, {}, log=True)
    ticks, words = "", ""
    for count in round_counts(low, high):
        y = frame.bottom - scale.share(count) * tall
        ticks += line([(left + _WIDE, y), (left + _WIDE + 3.5, y)])
        words += text(short_count(count).replace(".0", ""), left + _WIDE + 6, y + 3.5)
    return _image(every, left, frame.top, _WIDE, tall, "shades") + path("axis", ticks) + words


def _image(levels: Levels, x: float, y: float, width: float, height: float, kind: str) -> str:
    data = base64.b64encode(_png(levels)).decode()
    return (
        f'<image class="{kind}" x="{short(x)}" y="{short(y)}" width="{short(width)}" height="{short(height)}" '
        f'preserveAspectRatio="none" href="data:image/png;base64,{data}"/>'
    )


def _png(levels: Levels) -> bytes:
    """Return shades, (rows, columns), as a PNG of one pixel each; 0 is see-through.

    >>> _png(np.array([[0, 255]], dtype=np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    anchors = np.array([[*bytes.fromhex(shade)] for shade in _SHADES])
    places = np.linspace(0, len(anchors) - 1, 255)
    colors = np.stack([np.interp(places, np.arange(len(anchors)), anchors[:, i]) for i in range(3)], axis=1)
    palette = bytes(3) + np.rint(colors).astype(np.uint8).tobytes()
    # Before each row stands how it was filtered: not.
    rows = np.pad(levels, ((0, 0), (1, 0))).tobytes()
    head = struct.pack(">IIBBBBB", levels.shape[1], levels.shape[0], 8, 3, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", palette), (b"tRNS", b"\0"), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
