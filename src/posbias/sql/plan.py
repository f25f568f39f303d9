"""The parts every query is made of: named steps, the plan of a query, and ranks and counts packed into integers.

A query is a list of `Step`s that `render` joins into one statement: each step but the last is a common table
expression (CTE) under a comment that says what it is for, so the text reads top-down. A `QueryPlan` says what is asked
of which log: its columns, the dialect, the rankers by number, the deepest rank M and the columns of the segments.

Every query on a log begins with `shown_steps`. They end in the step `shown`: one row for each result shown, with typed
columns under the names that all later steps use:

    query, doc, ranker, position, impressions, clicks     ranker is the number of the ranker in QueryPlan.rankers
    unit                                                  what was assigned to rankers, if the log has a column of it
    segment_0, segment_1, ...                             the columns of QueryPlan.by, as text
    kept_0, kept_1, ...                                   the columns of QueryPlan.keep, as they are
    rank_0, rank_1, ...                                   the rank that each ranker gives the document (wide and long)

Four classes say how many small numbers share one integer column, which engines group and sum faster than many columns:

    SignatureCoding     the ranks of all rankers as digits in base M + 1, with 0 for "not in the top M"
    RankMasks           the ranks at which rankers showed a (query, document) pair, one bit each
    PackedCounts        impressions and clicks by ranker, added up side by side in 128 bits
    PackedRanks         impressions by rank in 128 bits, and clicks by rank in as many
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from posbias.logs.schema import ANY_RANKER, Schema
from posbias.sql.dialects import BUCKETS, Dialect

if TYPE_CHECKING:
    from posbias._arrays import AnyArray, IntArray

# A signed 64-bit integer holds so many bits with room for the negative codes of rows that are not counted.
_CODE_BITS = 62
# A digit of ten bits counts to 1,023, and few pairs are shown more often. Ten digits of a 128-bit integer leave room
# for counts of 2^26 rows.
RANK_BITS = 10
_RANKS_IN_128_BITS, _RANKS_IN_64_BITS, _ROW_COUNT_BIT = 10, 5, 100


# ---- Steps


def render(steps: Sequence[Step]) -> str:
    """Return one SQL statement: every step but the last becomes a CTE, each under the comment that explains it.

    Example:
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
    blocks = [f"-- {step.why}\n{step.name} AS (\n{step.select}\n)" for step in inner]
    start = "WITH\n" + ",\n".join(blocks) + "\n" if blocks else ""
    return f"{start}-- {last.why}\n{last.select}"


@dataclass(frozen=True)
class Step:
    """One named step of a query.

    Attributes:
        name (str): what later steps call it.
        why (str): one sentence for the comment above it.
        select (str): its SELECT statement.
    """

    name: str
    why: str
    select: str


def comma(*parts: str | Sequence[str]) -> str:
    """Join column lists with commas, leaving out empty ones.

    Example:
        >>> comma([], "query", ["rank_0", "rank_1"])
        'query, rank_0, rank_1'
    """
    flat = [p for part in parts for p in ([part] if isinstance(part, str) else part)]
    return ", ".join(p for p in flat if p)


# ---- The plan of a query, and the first steps of every query on a log


@dataclass(frozen=True)
class QueryPlan:
    """What a query asks of a log.

    Arguments:
        schema (Schema): the columns of the log, their types and the layout.
        dialect (Dialect): the SQL to write.
        rankers (tuple of str): the names of the rankers. Queries and answers know a ranker by its place here.
        max_rank (int): M, the deepest rank that counts.
        by (tuple of str, default ()): the columns of the log that define the segments.
        keep (tuple of str, default ()): columns of the log that come along unchanged.
        log (str, default "log"): the table of the log, as SQL.
        rankings (str, default "rankings"): the table of rankings of the long layout, as SQL.
        ranks_valid (bool, default False): whether no rank is below 1, so that the query need not check it.
    """

    schema: Schema
    dialect: Dialect
    rankers: tuple[str, ...]
    max_rank: int
    by: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    log: str = "log"
    rankings: str = "rankings"
    ranks_valid: bool = False

    @property
    def coding(self) -> SignatureCoding:
        """How signatures are written as integers."""
        return SignatureCoding(len(self.rankers), self.max_rank)

    @property
    def masks(self) -> RankMasks:
        """How the ranks at which rankers showed a pair are written as bits."""
        return RankMasks(len(self.rankers), self.max_rank)

    @property
    def segments(self) -> list[str]:
        """The names of the segment columns inside a query."""
        return [f"segment_{i}" for i in range(len(self.by))]

    @property
    def kept(self) -> list[str]:
        """The names of the `keep` columns inside a query."""
        return [f"kept_{i}" for i in range(len(self.keep))]

    def ranker_number(self, expression: str, type_: str) -> str:
        """Return SQL for the number of the ranker that a column names, NULL for an unknown ranker."""
        d = self.dialect
        cases = " ".join(f"WHEN {d.typed_literal(name, type_)} THEN {i}" for i, name in enumerate(self.rankers))
        return d.cast(f"CASE {expression} {cases} END", "SMALLINT") if cases else "NULL"

    def click_of_copies(self, click: str) -> str:
        """Return SQL for the click of a result that was logged several times: clicked if any copy is."""
        return f"MAX({click})"

    def per_ranker(self, text: str, separator: str = ", ") -> str:
        """Return a text once for each ranker, with `{i}` replaced by the ranker's number."""
        return separator.join(text.replace("{i}", str(i)) for i in range(len(self.rankers)))


def shown_steps(plan: QueryPlan, *, ranks: bool) -> list[Step]:
    """Return the first steps of a query on a log, which end in `shown`: one row for each result shown.

    Arguments:
        plan (QueryPlan): what is asked of the log.
        ranks (bool): whether to add the rank that each ranker gives the document (wide and long layouts).
    """
    schema, d = plan.schema, plan.dialect
    steps: list[Step] = []
    source = plan.log
    if schema.drop_duplicates:
        steps.append(deduplicated_step(plan))
        source = "deduplicated"

    def column(name: str) -> str:
        return f"l.{d.quote(name)}"

    def whole_number(name: str) -> str:
        return d.integer(column(name), schema.types[name])

    if schema.click is not None:
        raw = column(schema.click)
        # The step `deduplicated` has turned clicks into numbers already.
        impressions, clicks = "1", raw if schema.drop_duplicates else d.click(raw, schema.types[schema.click])
    else:
        impressions, clicks = whole_number(schema.impressions or ""), whole_number(schema.clicks or "")
    # In a log that names no ranker, one ranker showed every row.
    ranker = d.literal(ANY_RANKER) if schema.natural else column(schema.ranker)
    columns = [
        f"{d.nan_to_null(column(schema.query), schema.types[schema.query])} AS query",
        f"{_document(plan) if not ranks else d.nan_to_null(column(schema.doc), schema.types[schema.doc])} AS doc",
        f"{plan.ranker_number(ranker, schema.types[schema.ranker])} AS ranker",
        f"{whole_number(schema.position)} AS position",
        f"{impressions} AS impressions",
        f"{clicks} AS clicks",
        *([] if schema.unit is None else [f"{unit_value(plan, column(schema.unit))} AS unit"]),
        *(f"{d.as_text(column(name))} AS segment_{i}" for i, name in enumerate(plan.by)),
        *(f"{column(name)} AS kept_{i}" for i, name in enumerate(plan.keep)),
    ]
    join = ""
    if ranks and schema.layout.ranks_in == "columns":
        for i, name in enumerate(plan.rankers):
            rank = schema.rank_columns[name]
            columns.append(f"{d.rank(column(rank), schema.types[rank])} AS rank_{i}")
    elif ranks:
        steps.append(_document_ranks_step(plan))
        columns.append(plan.per_ranker("r.rank_{i}"))
        join = f"\nLEFT JOIN document_ranks r ON {_same_id(plan, 'query')} AND {_same_id(plan, 'doc')}"
    select = "SELECT\n  " + ",\n  ".join(columns) + f"\nFROM {source} l{join}"
    steps.append(Step("shown", "One row for each result shown, with typed columns.", select))
    return steps


def unit_value(plan: QueryPlan, column: str) -> str:
    """Return SQL for the unit of a row, NULL where it is missing: all rows with an empty text are not one unit."""
    type_ = plan.schema.types[plan.schema.unit or ""]
    return f"NULLIF({column}, '')" if type_ == "VARCHAR" else plan.dialect.nan_to_null(column, type_)


def deduplicated_step(plan: QueryPlan) -> Step:
    """Return the step that keeps one row of those that at-least-once logging wrote several times."""
    schema, d = plan.schema, plan.dialect
    keys = [schema.impression or "", schema.query, schema.doc, schema.position, *plan.by]
    keys += [name for name in (None if schema.natural else schema.ranker, schema.window) if name is not None]
    keys += schema.rank_columns.values()
    key_columns = comma([d.quote(name) for name in dict.fromkeys(keys)])
    others = dict.fromkeys([*plan.keep, *([] if schema.unit is None else [schema.unit])])
    kept = "".join(f", MIN({d.quote(name)}) AS {d.quote(name)}" for name in others if name not in keys)
    column = d.quote(schema.click or "")
    click = plan.click_of_copies(d.click(column, schema.types[schema.click or ""]))
    return Step(
        "deduplicated",
        "Each result of a page view once, however often it was logged.",
        f"SELECT {key_columns}, {click} AS {column}{kept}\nFROM {plan.log}\nGROUP BY {key_columns}",
    )


def _document(plan: QueryPlan) -> str:
    """Return SQL for the document; with a window, documents of two windows (such as two days) are different ones."""
    schema, d = plan.schema, plan.dialect
    doc, window = (
        d.nan_to_null(f"l.{d.quote(name)}", schema.types[name]) if name else "" for name in (schema.doc, schema.window)
    )
    # The length of the window stands first, so that no two windows and documents give the same text.
    text = d.as_text(window)
    return f"{d.as_text(f'LENGTH({text})')} || ':' || {text} || {d.as_text(doc)}" if window else doc


def _document_ranks_step(plan: QueryPlan) -> Step:
    """Return the step that turns the long table of rankings into one row for each (query, document).

    A document with several ranks by one ranker has none, unless one of them is no rank: then the row is unusable.
    """
    schema, d = plan.schema, plan.dialect
    ranker = plan.ranker_number(d.quote(schema.ranker), schema.rankings[schema.ranker])
    rank = d.rank(d.quote(schema.rank), schema.rankings[schema.rank])
    low, high = (f"{end}(CASE WHEN ranker = {{i}} THEN place END)" for end in ("MIN", "MAX"))
    ranks = plan.per_ranker(f"CASE WHEN {low} = {high} OR {low} < 1 THEN {low} END AS rank_{{i}}", ",\n  ")
    query, doc = d.quote(schema.query), d.quote(schema.doc)
    return Step(
        "document_ranks",
        "The rank that each ranker gives a document of a query.",
        f"SELECT query, doc,\n  {ranks}\nFROM (\n  SELECT {query} AS query, {doc} AS doc, "
        f"{ranker} AS ranker, {rank} AS place\n  FROM {plan.rankings}\n) t\nGROUP BY query, doc",
    )


def _same_id(plan: QueryPlan, role: str) -> str:
    """Return SQL that compares an id of the log with one of the rankings, as text where their types differ."""
    schema, d = plan.schema, plan.dialect
    name = getattr(schema, role)
    left, right = d.nan_to_null(f"l.{d.quote(name)}", schema.types[name]), f"r.{role}"
    if schema.types[name] != schema.rankings[name]:
        left, right = d.as_text(left), d.as_text(right)
    return f"{left} = {right}"


# ---- Buckets of queries and of units

# In a log with units, buckets of units are numbered from BUCKETS on, and buckets of queries and units from BY_BOTH on.
BY_BOTH = 2 * BUCKETS
_UNIT_BUCKETS = ("query_bucket", "unit_bucket", "both_bucket")


def bucket_steps(plan: QueryPlan, source: str) -> list[Step]:
    """Return the step `with_buckets` for a log with units: the buckets of the query and of the unit of each row.

    A row without a unit counts as if its query were the unit.
    """
    d, schema = plan.dialect, plan.schema
    if schema.unit is None:
        return []
    query, unit = (
        d.bucket(role, schema.types[name]) for role, name in (("query", schema.query), ("unit", schema.unit))
    )
    select = (
        f"SELECT *, {query} AS query_bucket,\n  CASE WHEN unit IS NULL THEN {query} ELSE {unit} END AS unit_bucket\n"
        f"FROM {source}"
    )
    return [Step("with_buckets", "The bucket of the query, and the bucket of the unit.", select)]


def bucket_columns(plan: QueryPlan) -> str:
    """Return SQL for the bucket of a row; after `bucket_steps`, for the bucket of its query, of its unit and of both.

    Rows with the same sum of these two buckets share both of them or none. So there are as many buckets of both as of
    queries, and each has only (query, unit) pairs that are independent of each other.
    """
    d, schema = plan.dialect, plan.schema
    if schema.unit is None:
        return f"{d.bucket('query', schema.types[schema.query])} AS bucket"
    added = " + ".join(d.cast(name, "SMALLINT") for name in ("query_bucket", "unit_bucket"))
    both = (
        f"CASE WHEN unit IS NULL THEN query_bucket WHEN {added} < {BUCKETS} THEN {added} ELSE {added} - {BUCKETS} END"
    )
    return f"query_bucket, unit_bucket,\n  {d.cast(both, d.bucket_type)} AS both_bucket"


def bucket_names(plan: QueryPlan) -> list[str]:
    """Return the names of the columns of `bucket_columns`."""
    return ["bucket"] if plan.schema.unit is None else [*_UNIT_BUCKETS]


def bucket_key(plan: QueryPlan) -> str:
    """Return SQL for the number of the bucket in a query that groups by `bucket_groups`."""
    if plan.schema.unit is None:
        return "bucket"
    query, unit, both = _UNIT_BUCKETS
    return (
        f"CASE WHEN GROUPING({query}) = 0 THEN {query} WHEN GROUPING({unit}) = 0 THEN {BUCKETS} + {unit} "
        f"ELSE {BY_BOTH} + {both} END AS bucket"
    )


def bucket_groups(plan: QueryPlan, *keys: str | Sequence[str]) -> str:
    """Return the GROUP BY of buckets and other keys; in a log with units, of all three kinds of buckets in one scan."""
    if plan.schema.unit is None:
        return f"GROUP BY {comma('bucket', *keys)}"
    return f"GROUP BY GROUPING SETS ({', '.join(f'({comma(name, *keys)})' for name in _UNIT_BUCKETS)})"


# ---- Several small numbers in one integer


@dataclass(frozen=True)
class SignatureCoding:
    """How the ranks of all rankers are written as one integer, or as several where 62 bits do not hold them.

    The ranks are digits in base M + 1, the first ranker's rank the lowest digit; 0 means "not in the top M".

    Arguments:
        rankers (int): how many rankers there are.
        max_rank (int): M, the deepest rank that counts.

    Example:
        >>> SignatureCoding(2, 10).groups, SignatureCoding(20, 10).groups
        ([range(0, 2)], [range(0, 17), range(17, 20)])
    """

    rankers: int
    max_rank: int

    @property
    def base(self) -> int:
        """How many values a digit has: M + 1."""
        return self.max_rank + 1

    @cached_property
    def groups(self) -> list[range]:
        """The rankers whose ranks each integer holds."""
        fit = int(_CODE_BITS * math.log(2) / math.log(self.base))
        return [range(start, min(start + fit, self.rankers)) for start in range(0, self.rankers, fit)]

    @property
    def names(self) -> list[str]:
        """The columns of the integers, in a query and in its answer: code_0, code_1, ..."""
        return [f"code_{i}" for i in range(len(self.groups))]

    @property
    def sizes(self) -> list[int]:
        """How many values each integer can have."""
        return [self.base ** len(group) for group in self.groups]

    def encode(self, dialect: Dialect, first_type: str) -> list[str]:
        """Return SQL for each integer from the columns `rank_<i>`.

        Arguments:
            dialect (Dialect): the SQL to write.
            first_type (str): the type of the first integer; the others are BIGINT. For the ranks of the first integer
                the caller has checked that none is below 1: DuckDB takes twice as long to compare with both ends.
        """
        # A rank times a power of the base needs as many bits as the integer itself.
        return [
            "\n      + ".join(
                f"{dialect.cast(str(self.base**place), 'BIGINT' if g else first_type)} * "
                f"CASE WHEN rank_{i} {'BETWEEN 1 AND' if g else '<='} {self.max_rank} THEN rank_{i} ELSE 0 END"
                for place, i in enumerate(group)
            )
            for g, group in enumerate(self.groups)
        ]

    def decode(self, dialect: Dialect) -> list[str]:
        """Return SQL for the rank of each ranker from the integers."""
        return [
            dialect.cast(f"{dialect.quotient(name, self.base**place)} % {self.base}", "INTEGER")
            for name, group in zip(self.names, self.groups, strict=True)
            for place in range(len(group))
        ]

    def read_ranks(self, answer: Mapping[str, AnyArray]) -> Iterator[IntArray]:
        """Yield the ranks of each ranker from the integers of an answer."""
        for name, group in zip(self.names, self.groups, strict=True):
            code = answer[name]
            for _ in group:
                rest = code // self.base
                yield code - rest * self.base
                code = rest


@dataclass(frozen=True)
class RankMasks:
    """How the ranks at which rankers showed a pair are written as bits: bit M i + k - 1 for ranker i at rank k.

    Unlike a signature, a mask can hold several ranks of one ranker, as they occur in replay.

    Arguments:
        rankers (int): how many rankers there are.
        max_rank (int): M, the deepest rank that counts.

    Example:
        >>> RankMasks(2, 10).groups, RankMasks(8, 10).groups, RankMasks(2, 100).groups
        ([range(0, 2)], [range(0, 6), range(6, 8)], [])
    """

    rankers: int
    max_rank: int

    @cached_property
    def groups(self) -> list[range]:
        """The rankers whose ranks each mask of up to 62 bits holds; empty where M is too large for a mask."""
        fit = _CODE_BITS // self.max_rank
        return [range(start, min(start + fit, self.rankers)) for start in range(0, self.rankers, fit)] if fit else []

    @property
    def names(self) -> list[str]:
        """The columns of the masks, in a query and in its answer: rank_mask_0, rank_mask_1, ..."""
        return [f"rank_mask_{g}" for g in range(len(self.groups))]

    def bit_position(self, group: range, ranker: str, rank: str) -> str:
        """Return SQL for the place of the bit of a ranker at a rank."""
        return f"({ranker} - {group[0]}) * {self.max_rank} + {rank} - 1"

    def ranker_bits(self, dialect: Dialect) -> list[str]:
        """Return SQL for the M bits of each ranker."""
        return [
            dialect.bit_slice(name, place * self.max_rank, self.max_rank)
            for name, group in zip(self.names, self.groups, strict=True)
            for place in range(len(group))
        ]

    def read(self, answer: Mapping[str, AnyArray], ranker: int, rows: AnyArray | slice) -> IntArray:
        """Return the M bits of a ranker in some rows of an answer."""
        number, place = divmod(ranker, len(self.groups[0]))
        mask: IntArray = answer[self.names[number]][rows]
        return mask >> place * self.max_rank & (1 << self.max_rank) - 1


@dataclass(frozen=True)
class PackedCounts:
    """How impressions and clicks by slot (a ranker) are added up side by side, as digits of 128-bit integers.

    The lower half of an integer holds the impressions of its slots and the upper half their clicks, so one SUM adds up
    both. The cost of a GROUP BY grows with the number of sums that it keeps for each group.

    Arguments:
        slots (int): how many slots there are.
        bits (int): how many bits the count of one slot gets.
        half_bits (int, default 60): how many bits of an integer count impressions, and as many clicks. The rest is
            room for overflow: a pair that is marked as too frequent may have 2^7 times as much.

    Example:
        >>> PackedCounts(3, 20).groups, PackedCounts(10, 12).groups
        ([range(0, 3)], [range(0, 5), range(5, 10)])
    """

    slots: int
    bits: int
    half_bits: int = 60

    @cached_property
    def groups(self) -> list[range]:
        """The slots whose counts each integer holds."""
        fit = self._slots_per_number
        return [range(start, min(start + fit, self.slots)) for start in range(0, self.slots, fit)]

    @property
    def _slots_per_number(self) -> int:
        return max(self.half_bits // self.bits, 1)

    @property
    def _clicks_bit(self) -> int:
        """The bit from which on an integer counts clicks."""
        return max(self.half_bits, self.bits)

    def names(self, prefix: str) -> list[str]:
        """Return the columns of the integers in a query and in its answer: <prefix>_0, <prefix>_1, ..."""
        return [f"{prefix}_{g}" for g in range(len(self.groups))]

    def row_value(self, dialect: Dialect, slot: str, *, aggregated: bool) -> str:
        """Return SQL for what a row adds to the integer of its slot."""
        fit = self._slots_per_number
        if aggregated:
            place = slot if self.slots <= fit else f"{slot} % {fit}"
            unit = f"({dialect.cast('1', 'BIGINT')} << ({self.bits} * ({place})))"
            return f"{unit} * (impressions + {dialect.cast(str(2**self._clicks_bit), 'HUGEINT')} * clicks)"
        # Looking a value up is faster than computing it: for each slot the value without a click, then with one.
        units = [2 ** (self.bits * (place % fit)) for place in range(self.slots)]
        values = [unit * (1 + click * 2**self._clicks_bit) for unit in units for click in (0, 1)]
        index = dialect.cast(f"2 * {slot} + clicks + 1", "BIGINT")
        return f"[{', '.join(dialect.cast(str(value), 'HUGEINT') for value in values)}][{index}]"

    def number_of_slot(self, dialect: Dialect, slot: str) -> str:
        """Return SQL for the number of the integer that holds a slot."""
        return dialect.cast(dialect.quotient(f"({slot})", self._slots_per_number), "TINYINT")

    def sum_columns(self) -> list[str]:
        """Return SQL for the integers `packed_<g>`: the sums of `row_value` by `number`."""
        if len(self.groups) == 1:
            return ["SUM(row_value) AS packed_0"]
        return [
            f"COALESCE(SUM(row_value) FILTER (WHERE number = {g}), 0) AS packed_{g}" for g in range(len(self.groups))
        ]

    def split_columns(self, dialect: Dialect, condition: str) -> list[str]:
        """Return SQL for `packed_impressions_<g>` and `packed_clicks_<g>`, the two halves; 0 without the condition."""
        low = [f"{name} & {2**self._clicks_bit - 1}" for name in self.names("packed")]
        high = [f"{name} >> {self._clicks_bit}" for name in self.names("packed")]
        names = [*self.names("packed_impressions"), *self.names("packed_clicks")]
        return [
            f"CASE WHEN {condition} THEN {dialect.cast(text, 'BIGINT')} ELSE 0 END AS {name}"
            for text, name in zip([*low, *high], names, strict=True)
        ]

    def read(
        self, answer: Mapping[str, AnyArray], prefix: str, slot: int | IntArray, rows: AnyArray | slice = slice(None)
    ) -> IntArray:
        """Return the counts of a slot, or of a slot for each row, in some rows of an answer."""
        return _read_digits(answer, self.names(prefix), slot, rows, self._slots_per_number, self.bits)


@dataclass(frozen=True)
class PackedRanks:
    """How impressions by rank, and clicks in the same way, are added up side by side as digits of 128-bit integers.

    Two sums count up to 1,023 impressions of a pair at each of ten ranks. The second is cheap, because most rows have
    no click. In the answer an integer of 64 bits holds five ranks.

    Arguments:
        ranks (int): M, the number of ranks.
        counts_rows (bool): whether the integers count their rows, too, above the digits. More rows than a digit holds
            mean that the digits may have overflowed.

    Example:
        >>> PackedRanks(10, True).names("packed_clicks")
        ['packed_clicks_0', 'packed_clicks_1']
    """

    ranks: int
    counts_rows: bool

    def names(self, prefix: str) -> list[str]:
        """Return the columns of the integers in an answer: <prefix>_0, <prefix>_1, ..."""
        return [f"{prefix}_{i}" for i in range(-(-self.ranks // _RANKS_IN_64_BITS))]

    @property
    def _sums(self) -> range:
        """The numbers of the sums of 128 bits."""
        return range(-(-self.ranks // _RANKS_IN_128_BITS))

    def row_value(self, dialect: Dialect) -> str:
        """Return SQL for what a row adds to the sum of its rank."""
        row = 2**_ROW_COUNT_BIT if self.counts_rows else 0
        # Looking a value up is faster than computing it.
        values = [2 ** (RANK_BITS * place) + row for place in range(min(self.ranks, _RANKS_IN_128_BITS))]
        place = "position" if len(self._sums) == 1 else f"(position - 1) % {_RANKS_IN_128_BITS} + 1"
        listed = ", ".join(dialect.cast(str(value), "HUGEINT") for value in values)
        return f"[{listed}][{dialect.cast(place, 'BIGINT')}]"

    def sum_columns(self, dialect: Dialect) -> list[str]:
        """Return SQL for the sums `packed_<g>` and `clicked_<g>` of `row_value`, and `row_count` if they lack it."""
        columns = [] if self.counts_rows else ["COUNT(*) AS row_count"]
        for g in self._sums:
            own = [] if len(self._sums) == 1 else [f"{dialect.quotient('(position - 1)', _RANKS_IN_128_BITS)} = {g}"]
            columns += [
                f"COALESCE(SUM(row_value){_filter(conditions)}, 0) AS {name}_{g}"
                for name, conditions in (("packed", own), ("clicked", [*own, "clicks = 1"]))
            ]
        return columns

    def row_count(self) -> str:
        """Return SQL for how many rows were added up."""
        return " + ".join(f"(packed_{g} >> {_ROW_COUNT_BIT})" for g in self._sums) if self.counts_rows else "row_count"

    def split_columns(self, dialect: Dialect, condition: str, otherwise: str) -> list[str]:
        """Return SQL for `packed_impressions_<i>` and `packed_clicks_<i>`, the sums by 64 bits.

        Where the condition does not hold they are 0, but the first is `otherwise`.
        """
        half = RANK_BITS * _RANKS_IN_64_BITS
        columns: list[str] = []
        for prefix, total in (("packed_impressions", "packed"), ("packed_clicks", "clicked")):
            for i, name in enumerate(self.names(prefix)):
                digits = f"({total}_{i // 2} >> {half * (i % 2)}) & {2**half - 1}"
                other = "0" if columns else otherwise
                columns.append(
                    f"CASE WHEN {condition} THEN {dialect.cast(digits, 'BIGINT')} ELSE {other} END AS {name}"
                )
        return columns

    def read(
        self, answer: Mapping[str, AnyArray], prefix: str, place: int | IntArray, rows: AnyArray | slice = slice(None)
    ) -> IntArray:
        """Return the counts at rank `place` + 1, or at a rank for each row, in some rows of an answer."""
        return _read_digits(answer, self.names(prefix), place, rows, _RANKS_IN_64_BITS, RANK_BITS)


def _filter(conditions: Sequence[str]) -> str:
    return f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""


def _read_digits(
    answer: Mapping[str, AnyArray],
    names: Sequence[str],
    place: int | IntArray,
    rows: AnyArray | slice,
    digits: int,
    bits: int,
) -> IntArray:
    """Return a digit of the integers in some rows of an answer, or for each of these rows its own digit."""
    if isinstance(place, int):
        column: IntArray = answer[names[place // digits]][rows]
        return column >> place % digits * bits & (1 << bits) - 1
    import numpy as np

    places = np.arange(digits * len(names))
    shift = (places % digits * bits)[place]
    held = answer[names[0]][rows]
    for i, name in enumerate(names[1:], start=1):
        held = np.where((places // digits == i)[place], answer[name][rows], held)
    return np.asarray(held >> shift & (1 << bits) - 1)
