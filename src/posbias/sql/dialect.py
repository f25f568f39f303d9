"""What differs between SQL engines, as a handful of hooks; everything else in this package is portable text."""

from __future__ import annotations

BUCKETS = 256
# Room for 2^31 impressions and as many clicks of one (query, document, ranker) in one packed 64-bit sum.
PACK = 2**32

INTEGERS = frozenset(
    ["TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"]
)


class DuckDB:
    """The hooks of DuckDB's SQL."""

    name = "duckdb"

    def quote(self, identifier: str) -> str:
        """Return a column or table name as an identifier, whatever characters it has."""
        return '"' + identifier.replace('"', '""') + '"'

    def text(self, value: str) -> str:
        """Return a string as a literal."""
        return "'" + value.replace("'", "''") + "'"

    def value(self, text: str, type_: str) -> str:
        """Return what a value of this column type is when it prints as `text`; NULL if nothing does."""
        return self.text(text) if type_ == "VARCHAR" else f"TRY_CAST({self.text(text)} AS {type_})"

    def as_text(self, expression: str) -> str:
        """Return any value as text."""
        return f"CAST({expression} AS VARCHAR)"

    def integer(self, expression: str, type_: str) -> str:
        """Return a whole number, or NULL where the value is not one."""
        if type_ in INTEGERS:
            return expression
        if type_ == "BOOLEAN":
            return f"CAST({expression} AS INTEGER)"
        number = f"TRY_CAST({expression} AS DOUBLE)"
        return f"CASE WHEN TRY_CAST({number} AS BIGINT) = {number} THEN TRY_CAST({number} AS BIGINT) END"

    def click(self, expression: str, type_: str) -> str:
        """Return a click as a whole number; text may also say true or false."""
        if type_ != "VARCHAR":
            return self.integer(expression, type_)
        truth = f"LOWER(TRIM({expression}))"
        number = self.integer(expression, type_)
        return f"CASE {truth} WHEN 'true' THEN 1 WHEN 'false' THEN 0 ELSE {number} END"

    def bucket(self, expression: str, type_: str) -> str:
        """Return the bucket of a query: the same id lands in the same one, whatever integer width held it."""
        if type_ in INTEGERS - {"HUGEINT", "UHUGEINT", "UBIGINT"}:
            expression = f"CAST({expression} AS BIGINT)"
        return f"CAST(hash({expression}) & {BUCKETS - 1} AS SMALLINT)"

    def total(self, expression: str) -> str:
        """Return a sum as a 64-bit integer, failing rather than wrapping where it does not fit."""
        return f"CAST(SUM({expression}) AS BIGINT)"

    def high(self, packed: str) -> str:
        """Return the upper counter of a packed sum."""
        return f"({packed} >> 32)"

    def low(self, packed: str) -> str:
        """Return the lower counter of a packed sum."""
        return f"({packed} & {PACK - 1})"

    def bit(self, place: str, *, wide: bool) -> str:
        """Return a number with one bit set, the one at a place counted from 0."""
        return f"(CAST(1 AS {'BIGINT' if wide else 'INTEGER'}) << ({place}))"

    def union(self, bits: str) -> str:
        """Return an aggregate: the bits that any row has."""
        return f"BIT_OR({bits})"

    def cut(self, bits: str, start: int, length: int) -> str:
        """Return `length` bits from `start` on."""
        return f"(({bits} >> {start}) & {2**length - 1})"

    def joined(self, expression: str, order: str) -> str:
        """Return an aggregate that joins texts with spaces in a fixed order."""
        return f"STRING_AGG({expression}, ' ' ORDER BY {order})"
