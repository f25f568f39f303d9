"""What Spark says differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from posbias.logs.column_refusals import NESTED
from posbias.sql.dialect import Dialect

# Of these Spark makes no number, or one that is none: a time becomes seconds.
_NO_NUMBERS = ("DATE", "TIME", "INTERVAL", "BINARY")


class SparkDialect(Dialect):
    """The hooks of Spark 4, and of Databricks, which speaks the same."""

    name = "spark"
    hash_of = "xxhash64({})"
    types: Mapping[str, str] = {"VARCHAR": "STRING"}
    packed: tuple[str, ...] = ("bucket", "ranker", "code_0")
    spread_of = "{table} t LATERAL VIEW POSEXPLODE({array}) u AS place, item"
    item, place = "u.item", "u.place + 1"
    array_of = "from_json({}, 'ARRAY<STRING>', map('allowSingleQuotes', 'false'))"
    length_of = "SIZE({})"
    json_of = "to_json({})"

    def quote(self, identifier: str) -> str:  # noqa: D102
        return "`" + identifier.replace("`", "``") + "`"

    def text(self, value: str) -> str:  # noqa: D102
        # Two quotes inside a literal are none at all, and a backslash escapes.
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def value(self, text: str, type_: str) -> str:  # noqa: D102
        # A column without a single value has a type of its own, of which nothing can be made.
        return self.text(text) if type_ == "VOID" else super().value(text, type_)

    def number(self, expression: str, type_: str) -> str:  # noqa: D102
        if NESTED.search(type_) or type_.startswith(_NO_NUMBERS):
            return "CAST(NULL AS DOUBLE)"
        number = super().number(expression, type_)
        if type_ != "VARCHAR":
            return number
        # Java reads 3d and 3f as numbers.
        return f"CASE WHEN RIGHT(LOWER({expression}), 1) NOT IN ('d', 'f') THEN {number} END"

    def replacing(self, columns: Mapping[str, str]) -> str:  # noqa: D102
        named = ", ".join(f"{expression} AS {column}" for column, expression in columns.items())
        return f"SELECT * EXCEPT ({', '.join(columns)}), {named} FROM source"

    def quotient(self, expression: str, divisor: int) -> str:  # noqa: D102
        return f"({expression} DIV {divisor})"

    def field(self, expression: str, type_: str, path: Sequence[str]) -> str:  # noqa: D102
        json = expression if type_ == "VARCHAR" else self.as_json(expression)
        # Its paths know no quotes but those in brackets, and none inside them.
        where = "$" + "".join(f".{name}" if "'" in name else f"['{name}']" for name in path)
        return f"get_json_object({json}, {self.text(where)})"
