"""The strata of an exported replay: each pair's cells as one text, with rank, impressions, clicks and ranker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posbias.arrays import IntArray, group
from posbias.engines.answers import Answer
from posbias.harvesting.counts import MOST_COUNT
from posbias.harvesting.strata import Cells
from posbias.records import UnfitError, shown

# Rank, impressions and clicks, as few digits as numbers that add up, then the ranker.
_CELL = re.compile(r"([0-9]{1,16}):([0-9]{1,16}):([0-9]{1,16}):(.*)", re.DOTALL)
_LONGEST = 2**20


@dataclass(frozen=True)
class Parsed:
    """The cells of distinct texts, one text after another.

    `start` is where each text's cells begin and `size` how many they are; `exposure` is the same number for texts with
    the same ranks and impressions, whatever their clicks.
    """

    rankers: tuple[str, ...]
    start: IntArray
    size: IntArray
    exposure: IntArray
    ranker: IntArray
    rank: IntArray
    impressions: IntArray
    clicks: IntArray


def parsed(texts: Sequence[str], max_rank: int) -> Parsed:
    """Return the cells that texts hold.

    >>> parsed(["1:3:2:a 2:5:0:b~sc", "1:3:1:a 2:5:0:b~sc"], 10).rankers
    ('a', 'b c')
    """
    strata = [sorted(_cells(text, max_rank)) for text in texts]
    rankers = tuple(sorted({name for stratum in strata for name, *_ in stratum}))
    index = {name: i for i, name in enumerate(rankers)}
    exposures: dict[tuple[tuple[str, int, int], ...], int] = {}
    exposure = [exposures.setdefault(tuple(cell[:3] for cell in stratum), len(exposures)) for stratum in strata]
    size = np.array([len(stratum) for stratum in strata], dtype=np.int64)
    flat = [(index[name], *counts) for stratum in strata for name, *counts in stratum]
    ranker, rank, impressions, clicks = np.array(flat, dtype=np.int64).reshape(-1, 4).T
    start = np.cumsum(size) - size
    return Parsed(rankers, start, size, np.array(exposure, dtype=np.int64), ranker, rank, impressions, clicks)


def _cells(text: str, max_rank: int) -> list[tuple[str, int, int, int]]:
    """Return ranker, rank, impressions and clicks of every cell in a text."""
    cells = []
    for cell in text[:_LONGEST].split(" "):
        parts = _CELL.fullmatch(cell)
        if parts is None or len(text) > _LONGEST:
            raise UnfitError(f"its column stratum holds {shown(text)}, which is not what the query wrote")
        rank, impressions, clicks = (int(part) for part in parts.groups()[:3])
        if not (1 <= rank <= max_rank and 0 <= clicks <= impressions and impressions > 0):
            raise UnfitError(f"its column stratum holds {shown(text)}, with a rank or clicks that cannot be")
        cells.append((_name(parts[4]), rank, impressions, clicks))
    if len({cell[:2] for cell in cells}) < len(cells):
        raise UnfitError(f"its column stratum holds {shown(text)}, with one rank of a ranker twice")
    return cells


def _name(escaped: str) -> str:
    """Return a ranker's name as it was before spaces and tildes were written otherwise."""
    return "~".join(part.replace("~s", " ") for part in escaped.split("~~"))


def cells_from_texts(answer: Answer, segment: IntArray, text: IntArray, table: Parsed) -> Cells:
    """Return the cells of an exported replay: rows with the same exposure are one stratum, whatever their clicks."""
    shown_times = (
        np.add.reduceat(table.impressions.astype(np.float64), table.start) if len(table.start) else table.start
    )
    if float(np.sum(shown_times[text] * answer["pairs"].astype(np.float64))) > MOST_COUNT:
        raise UnfitError(f"its impressions add up to more than {MOST_COUNT:,}")
    first, stratum = group([segment, answer["bucket"], table.exposure[text]])
    size = table.size[text[first]]
    pairs = np.zeros(len(first), dtype=np.int64)
    np.add.at(pairs, stratum, answer["pairs"])
    # Every row adds its clicks to the cells of its stratum, in their order.
    row = np.repeat(np.arange(len(text)), table.size[text])
    place = np.arange(len(row)) - np.repeat(np.cumsum(table.size[text]) - table.size[text], table.size[text])
    target = (np.cumsum(size) - size)[stratum[row]] + place
    clicks = np.zeros(int(size.sum()), dtype=np.int64)
    np.add.at(clicks, target, table.clicks[table.start[text[row]] + place] * answer["pairs"][row])

    owner = np.repeat(np.arange(len(first)), size)
    cell = table.start[text[first]][owner] + np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size)
    return Cells(
        segment=segment[first][owner],
        bucket=answer["bucket"][first][owner],
        stratum=owner,
        pairs=pairs[owner],
        ranker=table.ranker[cell],
        rank=table.rank[cell],
        impressions=table.impressions[cell] * pairs[owner],
        clicks=clicks,
    )
