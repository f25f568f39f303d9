"""The small tables that a harvest is made of: cells of strata, or sums over interventional sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from posbias.arrays import AnyArray, BoolArray, FloatArray, IntArray, at_once, blocks, group, runs, tally
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

    def fill(ranker: int, row: IntArray) -> _Filling:
        return ranks[ranker][row], 0, impressions[ranker][row], clicks[ranker][row]

    return _filled(len(ranks), segment[first], bucket[first], lambda ranker, rows: ranks[ranker][rows], fill)


def cells_from_exposures(answer: Answer, segment: IntArray, masks: Masks, digits: Digits | None) -> Cells:
    """Return the cells of a replay harvest in which each ranker shows a pair at one rank, given as a bit of a mask.

    Counts come as digits, or one by one.
    """

    def counts(of: str, ranker: int, rows: IntArray) -> IntArray:
        return digits.read(answer, of, ranker, rows) if digits else answer[f"{of}_{ranker}"][rows]

    def fill(ranker: int, row: IntArray) -> _Filling:
        # Below the bit after it there are as many as the rank.
        rank = np.bitwise_count((masks.read(answer, ranker, row) << 1) - 1)
        pairs = answer["pairs"][row]
        shown = counts("held" if digits else "impressions", ranker, row) * pairs
        return rank, pairs, shown, counts("clicked" if digits else "clicks", ranker, row)

    return _filled(
        masks.rankers, segment, answer["bucket"], lambda ranker, rows: masks.read(answer, ranker, rows), fill
    )


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

    sums = [np.add.reduceat(digits.read(clicked, "clicked", place) * pairs, starts) for place in range(digits.slots)]

    def fill(place: int, row: IntArray) -> _Filling:
        return place + 1, alike[row], digits.read(held, "held", place, row) * alike[row], sums[place][row]

    cells = _filled(
        digits.slots,
        segment[first],
        answer["bucket"][first],
        lambda place, rows: digits.read(held, "held", place, rows),
        fill,
    )
    return replace(cells, ranker=np.zeros_like(cells.ranker))


# The rank, pairs, impressions and clicks of some cells.
_Filling = tuple[AnyArray | int, IntArray | int, IntArray, IntArray]


def _filled(
    rankers: int,
    segment: IntArray,
    bucket: IntArray,
    held: Callable[[int, slice], AnyArray],
    fill: Callable[[int, IntArray], _Filling],
) -> Cells:
    """Return a cell for each ranker and stratum where `held` is not 0, with what `fill` gives for some of a ranker's.

    There may be millions, and each copy of them costs as much as counting them did.
    """
    parts = blocks(len(bucket))

    def count(ranker: int) -> int:
        return sum(int(np.count_nonzero(held(ranker, part))) for part in parts)

    sizes = at_once(count, range(rankers))
    cells = Cells(*(np.zeros(sum(sizes), dtype=np.int64) for _ in fields(Cells)))
    segmented = segment.any()

    def make(ranker: int) -> None:
        end = sum(sizes[:ranker])
        for part in parts:
            row = np.flatnonzero(held(ranker, part)) + part.start
            end, own = end + len(row), slice(end, end + len(row))
            cells.stratum[own], cells.bucket[own], cells.ranker[own] = row, bucket[row], ranker
            if segmented:
                cells.segment[own] = segment[row]
            cells.rank[own], cells.pairs[own], cells.impressions[own], cells.clicks[own] = fill(ranker, row)

    at_once(make, range(rankers))
    return cells


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

    def count(counts: AnyArray) -> IntArray:
        parts = (tally(table.rank[part], counts[part], size) for part in blocks(len(counts)))
        return sum(parts, np.zeros(size)).astype(np.int64)

    shown, clicks = count(impressions), count(table.clicks)
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
