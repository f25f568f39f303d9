"""The small tables that a harvest is made of: cells of strata, or sums over interventional sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from posbias.arrays import AnyArray, BoolArray, FloatArray, IntArray, at_once, group, runs, tally
from posbias.engines.answers import Answer, Segments, rows_of, segment_numbers, stacked
from posbias.harvesting.page_views import busiest
from posbias.harvesting.profiles import Shown
from posbias.sql.codes import Coding, Digits, Masks


class _Columns:
    """What all tables share: equal columns that are selected and joined together."""

    def __len__(self) -> int:
        return len(self.bucket)  # type: ignore[attr-defined]

    def columns(self) -> dict[str, AnyArray]:
        """Return the columns by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def where(self, mask: BoolArray) -> Self:
        """Return the rows where the mask holds; the table itself where that is all of them."""
        if mask.dtype == np.bool_ and mask.all():
            return self
        return type(self)(**{name: column[mask] for name, column in self.columns().items()})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})


@dataclass(frozen=True)
class Cells(_Columns):
    """One row for each stratum, ranker and rank, with all the impressions and clicks there.

    A stratum is a group of (query, document) pairs that the rankers treat alike: the same signature, or in
    replay the same ranks and impressions. A ranker known to rank the pair without having shown it has a cell of no
    impressions. `pairs` is 0 where the pairs of a stratum were not counted (signatures).
    """

    segment: IntArray
    bucket: IntArray
    stratum: IntArray
    pairs: IntArray
    ranker: IntArray
    rank: IntArray
    impressions: IntArray
    clicks: IntArray

    def of(self, segments: Segments, among: Segments) -> Cells:
        """Return the cells with their segments numbered as among others."""
        if segments == among[: len(segments)]:
            return self
        number = {key: i for i, key in enumerate(among)}
        return replace(self, segment=np.array([number[key] for key in segments], dtype=np.int64)[self.segment])


@dataclass(frozen=True)
class PairSums(_Columns):
    """ĉ and ¬ĉ by bucket, k and k' (`rank`, `other`), for when strata do not compress.

    Rows with `other` 0 hold the plain clicks and skips of a ranker at a rank, in every set or none.
    """

    segment: IntArray
    bucket: IntArray
    ranker: IntArray
    rank: IntArray
    other: IntArray
    clicks: FloatArray
    skips: FloatArray


def cells_from_signatures(answer: Answer, segment: IntArray, coding: Coding) -> Cells:
    """Return the cells of a wide or long harvest: every ranker's rank of every signature, seen or not."""
    bucket, shown = answer["bucket"], answer["ranker"]
    first, stratum = group([segment, bucket, *(answer[name] for name in coding.names)])
    ranks = list(coding.ranks({name: answer[name][first] for name in coding.names}))
    # Every row is the only one of its signature and ranker.
    own = shown * len(first) + stratum
    impressions, clicks = np.zeros((2, len(ranks), len(first)), dtype=np.int64)
    impressions.reshape(-1)[own] = answer["impressions"]
    clicks.reshape(-1)[own] = answer["clicks"]
    rows = [np.flatnonzero(rank) for rank in ranks]
    cells, parts = _allotted(rows, segment[first], bucket[first])
    for ranker, (row, part) in enumerate(zip(rows, parts, strict=True)):
        cells.rank[part] = ranks[ranker][row]
        cells.impressions[part] = impressions[ranker][row]
        cells.clicks[part] = clicks[ranker][row]
    return cells


def cells_from_exposures(answer: Answer, segment: IntArray, masks: Masks, digits: Digits | None) -> Cells:
    """Return the cells of a replay harvest in which each ranker shows a pair at one rank, given as a bit of a mask.

    Counts come as digits, or one by one.
    """

    def counts(of: str, ranker: int, rows: IntArray) -> IntArray:
        return digits.read(answer, of, ranker, rows) if digits else answer[f"{of}_{ranker}"][rows]

    def fill(ranker: int) -> None:
        row, part = rows[ranker], parts[ranker]
        # It is one bit, which frexp counts from 1.
        cells.rank[part] = np.frexp(bits[ranker][row])[1]
        cells.pairs[part] = answer["pairs"][row]
        cells.clicks[part] = counts("clicked" if digits else "clicks", ranker, row)
        shown = counts("held" if digits else "impressions", ranker, row)
        np.multiply(shown, cells.pairs[part], out=cells.impressions[part])

    bits = list(masks.bits(answer))
    rows = at_once(np.flatnonzero, bits)
    cells, parts = _allotted(rows, segment, answer["bucket"])
    at_once(fill, range(len(rows)))
    return cells


def all_held(answers: Sequence[Answer], digits: Digits, rows: int) -> bool:
    """Return whether digits held all that they counted: of pairs in the first answer, one by one in the others.

    A digit that overflows adds one to the next and loses many, so that fewer rows are found than there are.
    """
    first, *others = answers

    def count(slot: int) -> tuple[int, int]:
        shown = digits.read(first, "held", slot) * first["pairs"]
        return int(shown.sum()), int(shown.max(initial=0))

    counted = at_once(count, range(digits.slots))
    found = sum(shown for shown, _ in counted)
    found += sum(int((other["impressions"] * other["pairs"]).sum()) for other in others)
    # Clicks of pairs alike are no more than their impressions: where those fit together, so do these.
    return found == rows and all(most < 1 << digits.bits for _, most in counted)


def cells_from_digits(answer: Answer, segment: IntArray, digits: Digits) -> Cells:
    """Return the cells of a replay that names no ranker: its counts are by rank, pair by pair, as digits."""
    order, starts = runs([segment, answer["bucket"], *(answer[name] for name in digits.names("held"))])
    first = order[starts]
    held = {name: answer[name][first] for name in digits.names("held")}
    clicked = {name: answer[name][order] for name in digits.names("clicked")}
    pairs = answer["pairs"][order]
    alike = np.add.reduceat(pairs, starts)

    def fill(place: int) -> None:
        row, part = rows[place], parts[place]
        cells.ranker[part] = 0
        cells.rank[part] = place + 1
        cells.pairs[part] = alike[row]
        cells.clicks[part] = np.add.reduceat(digits.read(clicked, "clicked", place) * pairs, starts)[row]
        np.multiply(digits.read(held, "held", place, row), cells.pairs[part], out=cells.impressions[part])

    rows = at_once(lambda place: np.flatnonzero(digits.read(held, "held", place)), range(digits.slots))
    cells, parts = _allotted(rows, segment[first], answer["bucket"][first])
    at_once(fill, range(digits.slots))
    return cells


def _allotted(rows: Sequence[IntArray], segment: IntArray, bucket: IntArray) -> tuple[Cells, list[slice]]:
    """Return cells to be filled, 0 until then, one for each of a ranker's strata (`rows`), and where each ranker's are.

    There may be millions, and each copy of them costs as much as counting them did.
    """
    ends = np.cumsum([len(row) for row in rows]).tolist()
    parts = [slice(end - len(row), end) for row, end in zip(rows, ends, strict=True)]
    cells = Cells(*(np.zeros(ends[-1], dtype=np.int64) for _ in fields(Cells)))
    segmented = segment.any()

    def fill(ranker: int) -> None:
        row, part = rows[ranker], parts[ranker]
        cells.stratum[part] = row
        cells.ranker[part] = ranker
        cells.bucket[part] = bucket[row]
        if segmented:
            cells.segment[part] = segment[row]

    at_once(fill, range(len(rows)))
    return cells, parts


def cells_from_rows(answer: Answer, segment: IntArray) -> Cells:
    """Return the cells of a replay harvest that the engine already gives one by one."""
    bucket, pairs = answer["bucket"], answer["pairs"]
    texts = {text: i for i, text in enumerate(dict.fromkeys(answer["stratum"]))}
    text = np.array([texts[text] for text in answer["stratum"]], dtype=np.int64)
    _, stratum = group([segment, bucket, text])
    return Cells(
        segment=segment,
        bucket=bucket,
        stratum=stratum,
        pairs=pairs,
        ranker=answer["ranker"],
        rank=answer["rank"],
        impressions=answer["impressions"] * pairs,
        clicks=answer["clicks"],
    )


def busiest_ranks(totals: Answer, rankers: int) -> list[int]:
    """Return the rank, for each ranker, at which its page views are counted."""
    ranker, rank = totals["ranker"], totals["rank"]
    shown = np.zeros((rankers, int(rank.max(initial=1))))
    np.add.at(shown, (ranker, rank - 1), totals["impressions"])
    return [int(k) + 1 for k in busiest(shown)]


def pair_sums(totals: Answer, sums: Answer, names: Sequence[str]) -> tuple[PairSums, list[tuple[str | None, ...]]]:
    """Return what was shown at each rank and the sums over interventional sets as one table, and its segments."""
    labels = stacked([totals, sums], ["bucket", *names])
    segment, segments = segment_numbers(labels, names)
    none = np.zeros(rows_of(totals), dtype=np.int64)
    impressions, clicks = totals["impressions"], totals["clicks"]
    return PairSums(
        segment=segment,
        bucket=labels["bucket"],
        ranker=np.concatenate([totals["ranker"], np.full(rows_of(sums), -1)]),
        rank=np.concatenate([t["rank"] for t in (totals, sums)]),
        other=np.concatenate([none, sums["other"]]),
        clicks=np.concatenate([clicks, sums["clicks"]]),
        skips=np.concatenate([impressions - clicks, sums["skips"]]),
    ), segments


def summed(sums: PairSums) -> PairSums:
    """Return the same sums with those of one set in one row."""
    # Rows over all rankers carry ranker -1.
    first, which = group([sums.segment, sums.bucket, sums.ranker + 1, sums.rank, sums.other])
    columns = {name: column[first] for name, column in sums.columns().items()}
    columns |= {name: tally(which, getattr(sums, name), len(first)) for name in ("clicks", "skips")}
    return PairSums(**columns)


def count_positions(table: Cells | PairSums) -> tuple[Shown, ...]:
    """Return what was shown at each rank at which anything was."""
    impressions: AnyArray
    if isinstance(table, PairSums):
        table = table.where(table.other == 0)
        impressions = table.clicks + table.skips
    else:
        impressions = table.impressions
    size = int(table.rank.max(initial=0)) + 1
    shown, clicks = (tally(table.rank, counts, size).astype(np.int64) for counts in (impressions, table.clicks))
    return tuple(Shown(int(k), int(shown[k]), int(clicks[k])) for k in np.flatnonzero(shown))


def count_pairs(cells: Cells) -> int:
    """Return how many (query, document) pairs the strata hold."""
    _, first = np.unique(cells.stratum, return_index=True)
    return int(cells.pairs[first].sum())


def count_non_functional(cells: Cells) -> int:
    """Return how many pairs a ranker showed at several ranks."""
    size = int(cells.ranker.max(initial=0)) + 1
    own, seen = np.unique(cells.stratum * size + cells.ranker, return_counts=True)
    several = np.unique(own[seen > 1] // size)
    return count_pairs(cells.where(np.isin(cells.stratum, several)))


def renumbered(parts: Sequence[Cells]) -> list[Cells]:
    """Return the parts with strata numbered apart, so that joining them merges none."""
    shifted, start = [], 0
    for part in parts:
        shifted.append(replace(part, stratum=part.stratum + start) if start else part)
        start += int(part.stratum.max(initial=-1)) + 1
    return shifted
