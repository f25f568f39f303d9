"""Signatures as numbers: the ranks of all rankers as digits in base M + 1, with 0 for "not in the top M"."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from posbias.sql.dialect import Dialect

if TYPE_CHECKING:
    from posbias.arrays import AnyArray, IntArray


@dataclass(frozen=True)
class Coding:
    """How the signatures of so many rankers are written: as one number, or several where one would not hold them.

    >>> Coding(2, 10).groups, Coding(20, 10).groups
    ([range(0, 2)], [range(0, 17), range(17, 20)])
    """

    rankers: int
    max_rank: int

    @property
    def base(self) -> int:
        """The number of digits there are."""
        return self.max_rank + 1

    @cached_property
    def groups(self) -> list[range]:
        """Which rankers' ranks each number of up to 62 bits holds."""
        fit = int(62 * math.log(2) / math.log(self.base))
        return [range(start, min(start + fit, self.rankers)) for start in range(0, self.rankers, fit)]

    @property
    def names(self) -> list[str]:
        """What the numbers are called in a query and its answer."""
        return [f"code_{i}" for i in range(len(self.groups))]

    @property
    def sizes(self) -> list[int]:
        """How many values each number may have."""
        return [self.base ** len(group) for group in self.groups]

    def encoded(self, dialect: Dialect, first: str) -> list[str]:
        """Return the numbers as SQL from columns `rank_<i>`; `first` is the type of the first of them.

        Of the first it is known that no rank is below 1: to ask for both ends takes DuckDB twice as long.
        """
        # A rank times a power of the base needs as many bits as the number itself.
        return [
            "\n      + ".join(
                f"{dialect.cast(str(self.base**place), 'BIGINT' if g else first)} * "
                f"CASE WHEN rank_{i} {'BETWEEN 1 AND' if g else '<='} {self.max_rank} THEN rank_{i} ELSE 0 END"
                for place, i in enumerate(group)
            )
            for g, group in enumerate(self.groups)
        ]

    def decoded(self, dialect: Dialect) -> list[str]:
        """Return the rank of every ranker as SQL from the numbers."""
        return [
            dialect.cast(f"{dialect.quotient(name, self.base**place)} % {self.base}", "INTEGER")
            for name, group in zip(self.names, self.groups, strict=True)
            for place in range(len(group))
        ]

    def ranks(self, answer: Mapping[str, AnyArray]) -> Iterator[IntArray]:
        """Yield the rank of every ranker from the numbers of an answer."""
        for name, group in zip(self.names, self.groups, strict=True):
            code = answer[name]
            for _ in group:
                rest = code // self.base
                yield code - rest * self.base
                code = rest


@dataclass(frozen=True)
class Digits:
    """How impressions and clicks by slot are added up side by side: as digits of numbers of 128 bits.

    A number holds the impressions of its slots in its lower half and their clicks in its upper half, so that one sum
    adds up both: what a group-by takes grows with the sums that it keeps for each group.

    >>> Digits(3, 20).groups, Digits(10, 12).groups
    ([range(0, 3)], [range(0, 5), range(5, 10)])
    """

    slots: int
    # So many bits hold what any slot can count.
    bits: int
    # So many bits of a number count impressions, and as many clicks. What is left is for pairs that are marked as
    # having more: 2^7 times as much, or by fewer bits more.
    half: int = 60
    # From this bit on a number counts its rows: more than a digit holds tells that its digits are no counts.
    top: int = 0

    @cached_property
    def groups(self) -> list[range]:
        """Which slots' counts each number holds."""
        return [range(start, min(start + self._fit, self.slots)) for start in range(0, self.slots, self._fit)]

    @property
    def _fit(self) -> int:
        return max(self.half // self.bits, 1)

    @property
    def _clicks_at(self) -> int:
        """From which bit on a number counts clicks."""
        return max(self.half, self.bits)

    def names(self, of: str) -> list[str]:
        """What the numbers are called in a query and its answer."""
        return [f"{of}_{g}" for g in range(len(self.groups))]

    def added(self, dialect: Dialect, slot: str, *, aggregated: bool) -> str:
        """Return, as SQL, what a row adds to the number of its slot."""
        if aggregated:
            place = slot if self.slots <= self._fit else f"{slot} % {self._fit}"
            unit = f"({dialect.cast('1', 'BIGINT')} << ({self.bits} * ({place})))"
            return f"{unit} * (impressions + {dialect.cast(str(2**self._clicks_at), 'HUGEINT')} * clicks)"
        # To look a number up takes less than to work it out: of each slot, that without a click and that with one.
        row = 2**self.top if self.top else 0
        units = [2 ** (self.bits * (place % self._fit)) for place in range(self.slots)]
        numbers = [unit * (1 + click * 2**self._clicks_at) + row for unit in units for click in (0, 1)]
        which = dialect.cast(f"2 * {slot} + clicks + 1", "BIGINT")
        return f"[{', '.join(dialect.cast(str(number), 'HUGEINT') for number in numbers)}][{which}]"

    def number(self, dialect: Dialect, slot: str) -> str:
        """Return, as SQL, which number has the digit of a slot."""
        return dialect.cast(dialect.quotient(f"({slot})", self._fit), "TINYINT")

    def sums(self) -> list[str]:
        """Return, as SQL, the numbers that add up what `added` gives by `number`, by their names."""
        if len(self.groups) == 1:
            return ["SUM(added) AS counted_0"]
        return [f"COALESCE(SUM(added) FILTER (WHERE number = {g}), 0) AS counted_{g}" for g in range(len(self.groups))]

    def rows(self) -> str:
        """Return, as SQL, how many rows were added up; or more, where those are more than a digit holds."""
        return " + ".join(f"({name} >> {self.top})" for name in self.names("counted"))

    def halves(self, dialect: Dialect, condition: str, otherwise: str = "0") -> list[str]:
        """Return, as SQL, the impressions (`held_<g>`) and clicks (`clicked_<g>`) of all numbers where they are counts.

        Elsewhere `held_0` is something else.
        """
        low = [f"{name} & {2**self._clicks_at - 1}" for name in self.names("counted")]
        high = [f"{name} >> {self._clicks_at}" for name in self.names("counted")]
        if self.top:
            high = [f"({text}) & {2 ** (self.top - self._clicks_at) - 1}" for text in high]
        names = [*self.names("held"), *self.names("clicked")]
        return [
            f"CASE WHEN {condition} THEN {dialect.cast(text, 'BIGINT')} ELSE {otherwise if i == 0 else 0} END AS {name}"
            for i, (text, name) in enumerate(zip([*low, *high], names, strict=True))
        ]

    def read(
        self, answer: Mapping[str, AnyArray], of: str, slot: int, rows: AnyArray | slice = slice(None)
    ) -> IntArray:
        """Return the counts of a slot, in some rows of an answer."""
        number, place = divmod(slot, self._fit)
        column: IntArray = answer[f"{of}_{number}"][rows]
        return column >> place * self.bits & (1 << self.bits) - 1


@dataclass(frozen=True)
class Masks:
    """How the ranks at which rankers showed a pair are written as bits: bit `M i + k - 1` of ranker i at rank k.

    >>> Masks(2, 10).groups, Masks(8, 10).groups, Masks(2, 100).groups
    ([range(0, 2)], [range(0, 6), range(6, 8)], [])
    """

    rankers: int
    max_rank: int

    @cached_property
    def groups(self) -> list[range]:
        """Which rankers' ranks each mask of up to 62 bits holds; none where M is too large."""
        fit = 62 // self.max_rank
        return [range(start, min(start + fit, self.rankers)) for start in range(0, self.rankers, fit)] if fit else []

    @property
    def names(self) -> list[str]:
        """What the masks are called in a query and its answer."""
        return [f"seen_{g}" for g in range(len(self.groups))]

    def place(self, group: range, ranker: str, rank: str) -> str:
        """Return, as SQL, the place of the bit of a ranker at a rank."""
        return f"({ranker} - {group[0]}) * {self.max_rank} + {rank} - 1"

    def cuts(self, dialect: Dialect) -> list[str]:
        """Return the M bits of every ranker as SQL."""
        return [
            dialect.cut(name, place * self.max_rank, self.max_rank)
            for name, group in zip(self.names, self.groups, strict=True)
            for place in range(len(group))
        ]

    def read(self, answer: Mapping[str, AnyArray], ranker: int, rows: AnyArray | slice) -> IntArray:
        """Return the M bits of a ranker, in some rows of an answer."""
        number, place = divmod(ranker, len(self.groups[0]))
        seen: IntArray = answer[self.names[number]][rows]
        return seen >> place * self.max_rank & (1 << self.max_rank) - 1
