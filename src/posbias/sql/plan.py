"""What a query is made of: named steps, typed rows, coded ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from posbias.logs.schema import ANY_RANKER, Schema
from posbias.sql.dialects import Dialect

if TYPE_CHECKING:
    from posbias._arrays import AnyArray, IntArray


def render(steps: Sequence[Step]) -> str:
    """Return one statement: every step but the last becomes a CTE, each under the sentence that explains it.

    >>> print(render([Step("rows", "What was shown.", "SELECT * FROM log"),
    ...               Step("answer", "How many.", "SELECT COUNT(*) FROM rows")]))
    WITH
    -- What was shown.
    rows AS (
    SELECT * FROM log
    )
    -- How many.
    SELECT COUNT(*) FROM rows
    """
    *inner, last = steps
    # Texts are not indented: a literal or a quoted name may hold a newline, which must stay as it is.
    blocks = [f"-- {s.why}\n{s.name} AS (\n{s.select}\n)" for s in inner]
    start = "WITH\n" + ",\n".join(blocks) + "\n" if blocks else ""
    return f"{start}-- {last.why}\n{last.select}"


@dataclass(frozen=True)
class Step:
    """One named step: its name, why it is there, and its SELECT."""

    name: str
    why: str
    select: str


@dataclass(frozen=True)
class PackedCounts:
    """How impressions and clicks by slot are added up side by side: as digits of numbers of 128 bits.

    A number holds the impressions of its slots in its lower half and their clicks in its upper half, so that one sum
    adds up both: what a group-by takes grows with the sums that it keeps for each group.

    >>> PackedCounts(3, 20).groups, PackedCounts(10, 12).groups
    ([range(0, 3)], [range(0, 5), range(5, 10)])
    """

    slots: int
    # So many bits hold what any slot can count.
    bits: int
    # So many bits of a number count impressions, and as many clicks. What is left is for pairs that are marked as
    # having more: 2^7 times as much, or by fewer bits more.
    half_bits: int = 60
    # From this bit on a number counts its rows: more than a digit holds tells that its digits are no counts.
    row_count_bit: int = 0

    @cached_property
    def groups(self) -> list[range]:
        """Which slots' counts each number holds."""
        return [range(start, min(start + self._fit, self.slots)) for start in range(0, self.slots, self._fit)]

    @property
    def _fit(self) -> int:
        return max(self.half_bits // self.bits, 1)

    @property
    def _clicks_at(self) -> int:
        """From which bit on a number counts clicks."""
        return max(self.half_bits, self.bits)

    def names(self, of: str) -> list[str]:
        """What the numbers are called in a query and its answer."""
        return [f"{of}_{g}" for g in range(len(self.groups))]

    def row_value(self, dialect: Dialect, slot: str, *, aggregated: bool) -> str:
        """Return, as SQL, what a row adds to the number of its slot."""
        if aggregated:
            place = slot if self.slots <= self._fit else f"{slot} % {self._fit}"
            unit = f"({dialect.cast('1', 'BIGINT')} << ({self.bits} * ({place})))"
            return f"{unit} * (impressions + {dialect.cast(str(2**self._clicks_at), 'HUGEINT')} * clicks)"
        # To look a number up takes less than to work it out: of each slot, that without a click and that with one.
        row = 2**self.row_count_bit if self.row_count_bit else 0
        units = [2 ** (self.bits * (place % self._fit)) for place in range(self.slots)]
        numbers = [unit * (1 + click * 2**self._clicks_at) + row for unit in units for click in (0, 1)]
        which = dialect.cast(f"2 * {slot} + clicks + 1", "BIGINT")
        return f"[{', '.join(dialect.cast(str(number), 'HUGEINT') for number in numbers)}][{which}]"

    def number_of_slot(self, dialect: Dialect, slot: str) -> str:
        """Return, as SQL, which number has the digit of a slot."""
        return dialect.cast(dialect.quotient(f"({slot})", self._fit), "TINYINT")

    def sum_columns(self) -> list[str]:
        """Return, as SQL, the numbers that add up what `added` gives by `number`, by their names."""
        if len(self.groups) == 1:
            return ["SUM(added) AS counted_0"]
        return [f"COALESCE(SUM(added) FILTER (WHERE number = {g}), 0) AS counted_{g}" for g in range(len(self.groups))]

    def row_count(self) -> str:
        """Return, as SQL, how many rows were added up; or more, where those are more than a digit holds."""
        return " + ".join(f"({name} >> {self.row_count_bit})" for name in self.names("counted"))

    def split_columns(self, dialect: Dialect, condition: str, otherwise: str = "0") -> list[str]:
        """Return, as SQL, the impressions (`held_<g>`) and clicks (`clicked_<g>`) of all numbers where they are counts.

        Elsewhere `held_0` is something else.
        """
        low = [f"{name} & {2**self._clicks_at - 1}" for name in self.names("counted")]
        high = [f"{name} >> {self._clicks_at}" for name in self.names("counted")]
        if self.row_count_bit:
            high = [f"({text}) & {2 ** (self.row_count_bit - self._clicks_at) - 1}" for text in high]
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


def shown_steps(plan: QueryPlan, *, ranks: bool) -> list[Step]:
    """Return the steps that end in `shown`; with the ranks of every ranker where they are known."""
    schema, d = plan.schema, plan.dialect
    steps: list[Step] = []
    source = plan.log
    if schema.drop_duplicates:
        steps.append(deduplicated_step(plan))
        source = "once"

    def column(name: str) -> str:
        return f"l.{d.quote(name)}"

    def typed(name: str) -> str:
        return d.integer(column(name), schema.types[name])

    if schema.click is not None:
        raw = column(schema.click)
        # Rows taken once have their clicks as numbers already.
        impressions, clicks = "1", raw if schema.drop_duplicates else d.click(raw, schema.types[schema.click])
    else:
        impressions, clicks = typed(schema.impressions or ""), typed(schema.clicks or "")
    # Of a log that names no ranker every row was shown by the same.
    ranker = d.literal(ANY_RANKER) if schema.natural else column(schema.ranker)
    columns = [
        f"{d.nan_to_null(column(schema.query), schema.types[schema.query])} AS query",
        f"{_document(plan) if not ranks else d.nan_to_null(column(schema.doc), schema.types[schema.doc])} AS doc",
        f"{plan.ranker_number(ranker, schema.types[schema.ranker])} AS ranker",
        f"{typed(schema.position)} AS position",
        f"{impressions} AS impressions",
        f"{clicks} AS clicks",
        *(f"{d.as_text(column(name))} AS segment_{i}" for i, name in enumerate(plan.by)),
        *(f"{column(name)} AS kept_{i}" for i, name in enumerate(plan.keep)),
    ]
    join = ""
    if ranks and schema.layout.ranks_in == "columns":
        for i, name in enumerate(plan.rankers):
            rank = schema.rank_columns[name]
            columns.append(f"{d.rank(column(rank), schema.types[rank])} AS rank_{i}")
    elif ranks:
        steps.append(_placed(plan))
        columns.append(plan.per_ranker("p.rank_{i}"))
        join = f"\nLEFT JOIN placed p ON {_same(plan, 'query')} AND {_same(plan, 'doc')}"
    select = "SELECT\n  " + ",\n  ".join(columns) + f"\nFROM {source} l{join}"
    steps.append(Step("shown", "One row for each result shown, with typed columns.", select))
    return steps


@dataclass(frozen=True)
class QueryPlan:
    """What a harvest asks of the log: its columns, the rankers by number, M and the segments."""

    schema: Schema
    dialect: Dialect
    rankers: tuple[str, ...]
    max_rank: int
    by: tuple[str, ...] = ()
    # Columns that come along as they are.
    keep: tuple[str, ...] = ()
    # What the tables are called.
    log: str = "log"
    rankings: str = "rankings"
    # Whether no rank is known to be below 1.
    ranks_valid: bool = False

    @property
    def coding(self) -> SignatureCoding:
        """How signatures are written as numbers."""
        return SignatureCoding(len(self.rankers), self.max_rank)

    @property
    def masks(self) -> RankMasks:
        """How the ranks at which rankers showed a pair are written as bits."""
        return RankMasks(len(self.rankers), self.max_rank)

    @property
    def segments(self) -> list[str]:
        """The names that segment columns have inside a query."""
        return [f"segment_{i}" for i in range(len(self.by))]

    @property
    def kept(self) -> list[str]:
        """The names that columns which come along have inside a query."""
        return [f"kept_{i}" for i in range(len(self.keep))]

    def ranker_number(self, expression: str, type_: str) -> str:
        """Return the number of the ranker that a column names, NULL for one that is not known."""
        cases = " ".join(
            f"WHEN {self.dialect.typed_literal(name, type_)} THEN {i}" for i, name in enumerate(self.rankers)
        )
        return self.dialect.cast(f"CASE {expression} {cases} END", "SMALLINT") if cases else "NULL"

    def click_of_copies(self, typed: str) -> str:
        """Return the click of a result that was logged several times: a click if any copy has it."""
        return f"MAX({typed})"

    def per_ranker(self, text: str, separator: str = ", ") -> str:
        """Return a text once for each ranker, `{i}` replaced by its number."""
        return separator.join(text.replace("{i}", str(i)) for i in range(len(self.rankers)))


@dataclass(frozen=True)
class SignatureCoding:
    """How the signatures of so many rankers are written: as one number, or several where one would not hold them.

    >>> SignatureCoding(2, 10).groups, SignatureCoding(20, 10).groups
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

    def encode(self, dialect: Dialect, first: str) -> list[str]:
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

    def decode(self, dialect: Dialect) -> list[str]:
        """Return the rank of every ranker as SQL from the numbers."""
        return [
            dialect.cast(f"{dialect.quotient(name, self.base**place)} % {self.base}", "INTEGER")
            for name, group in zip(self.names, self.groups, strict=True)
            for place in range(len(group))
        ]

    def read_ranks(self, answer: Mapping[str, AnyArray]) -> Iterator[IntArray]:
        """Yield the rank of every ranker from the numbers of an answer."""
        for name, group in zip(self.names, self.groups, strict=True):
            code = answer[name]
            for _ in group:
                rest = code // self.base
                yield code - rest * self.base
                code = rest


@dataclass(frozen=True)
class RankMasks:
    """How the ranks at which rankers showed a pair are written as bits: bit `M i + k - 1` of ranker i at rank k.

    >>> RankMasks(2, 10).groups, RankMasks(8, 10).groups, RankMasks(2, 100).groups
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

    def bit_position(self, group: range, ranker: str, rank: str) -> str:
        """Return, as SQL, the place of the bit of a ranker at a rank."""
        return f"({ranker} - {group[0]}) * {self.max_rank} + {rank} - 1"

    def ranker_bits(self, dialect: Dialect) -> list[str]:
        """Return the M bits of every ranker as SQL."""
        return [
            dialect.bit_slice(name, place * self.max_rank, self.max_rank)
            for name, group in zip(self.names, self.groups, strict=True)
            for place in range(len(group))
        ]

    def read(self, answer: Mapping[str, AnyArray], ranker: int, rows: AnyArray | slice) -> IntArray:
        """Return the M bits of a ranker, in some rows of an answer."""
        number, place = divmod(ranker, len(self.groups[0]))
        seen: IntArray = answer[self.names[number]][rows]
        return seen >> place * self.max_rank & (1 << self.max_rank) - 1


def deduplicated_step(plan: QueryPlan) -> Step:
    """Drop what at-least-once logging wrote twice: a click counts if any copy has it."""
    schema, d = plan.schema, plan.dialect
    kept = [schema.impression or "", schema.query, schema.doc, schema.position, *plan.by]
    kept += [name for name in (None if schema.natural else schema.ranker, schema.window) if name is not None]
    kept += schema.rank_columns.values()
    keys = comma([d.quote(name) for name in dict.fromkeys(kept)])
    along = "".join(f", MIN({d.quote(name)}) AS {d.quote(name)}" for name in plan.keep if name not in kept)
    click = d.quote(schema.click or "")
    typed = d.click(click, schema.types[schema.click or ""])
    return Step(
        "once",
        "Each result of a page view once, however often it was logged.",
        f"SELECT {keys}, {plan.click_of_copies(typed)} AS {click}{along}\nFROM {plan.log}\nGROUP BY {keys}",
    )


def comma(*parts: str | Sequence[str]) -> str:
    """Return column lists joined, the empty ones left out."""
    flat = [p for part in parts for p in ([part] if isinstance(part, str) else part)]
    return ", ".join(p for p in flat if p)


def _document(plan: QueryPlan) -> str:
    """Return the document: of a window such as a day, where a document is compared with itself only within one."""
    schema, d = plan.schema, plan.dialect
    doc, window = (
        d.nan_to_null(f"l.{d.quote(name)}", schema.types[name]) if name else "" for name in (schema.doc, schema.window)
    )
    # With its length before it, so that no window and document look like others.
    text = d.as_text(window)
    return f"{d.as_text(f'LENGTH({text})')} || ':' || {text} || {d.as_text(doc)}" if window else doc


def _placed(plan: QueryPlan) -> Step:
    """Turn the long table of rankings into one row a (query, document); one of several ranks is none, or no rank."""
    schema, d = plan.schema, plan.dialect
    number = plan.ranker_number(d.quote(schema.ranker), schema.rankings[schema.ranker])
    rank = d.rank(d.quote(schema.rank), schema.rankings[schema.rank])
    low, high = (f"{end}(CASE WHEN ranker = {{i}} THEN place END)" for end in ("MIN", "MAX"))
    # What is no rank is never hidden by another one.
    ranks = plan.per_ranker(f"CASE WHEN {low} = {high} OR {low} < 1 THEN {low} END AS rank_{{i}}", ",\n  ")
    query, doc = d.quote(schema.query), d.quote(schema.doc)
    return Step(
        "placed",
        "Where each ranker puts a document of a query.",
        f"SELECT query, doc,\n  {ranks}\nFROM (\n  SELECT {query} AS query, {doc} AS doc, "
        f"{number} AS ranker, {rank} AS place\n  FROM {plan.rankings}\n) r\nGROUP BY query, doc",
    )


def _same(plan: QueryPlan, role: str) -> str:
    """Compare an id of the log with one of the rankings, as text where their types differ."""
    schema, d = plan.schema, plan.dialect
    name = getattr(schema, role)
    left, right = d.nan_to_null(f"l.{d.quote(name)}", schema.types[name]), f"p.{role}"
    if schema.types[name] != schema.rankings[name]:
        left, right = d.as_text(left), d.as_text(right)
    return f"{left} = {right}"
