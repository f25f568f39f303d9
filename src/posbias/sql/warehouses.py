"""What each warehouse says differently. No table is opened there, so columns are taken as typed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from posbias.sql.dialect import BUCKETS, Dialect, DuckDB
from posbias.sql.spark import Spark


class Warehouse(Dialect):
    """The hooks of a query that is printed: plain casts, which fail in the warehouse where a value does not fit."""

    # A printed query is read by people too.
    packed: tuple[str, ...] = ()
    # What a printed query ends with.
    ending = ""

    def exact(self, identifier: str) -> str:
        """Return an identifier in quotes, letter by letter."""
        return self.quote(identifier)

    def value(self, text: str, type_: str) -> str:  # noqa: D102
        return self.text(text)

    def integer(self, expression: str, type_: str) -> str:  # noqa: D102
        # A cast would round 1.5 to a rank.
        whole = self.cast(expression, "BIGINT")
        return f"CASE WHEN {whole} = {expression} THEN {whole} END"

    def click(self, expression: str, type_: str) -> str:  # noqa: D102
        # PostgreSQL makes INTEGER of a boolean, but not BIGINT.
        return self.cast(expression, "INTEGER")

    def bucket(self, expression: str, type_: str) -> str:  # noqa: D102
        return self.cast(self.remainder(self.hashed(self.as_text(expression))), "SMALLINT")

    def remainder(self, hashed: str) -> str:
        """Return a hash modulo the number of buckets, never negative."""
        return f"{hashed} & {BUCKETS - 1}"


class PrintedDuckDB(Warehouse, DuckDB):
    """DuckDB, by a hash of the query's text: other buckets than those of the engine."""

    name = "duckdb sql"


class PrintedSpark(Warehouse, Spark):
    """Spark 3 and 4."""

    name = "spark sql"

    def joined(self, expression: str, order: str) -> str:  # noqa: D102
        # LISTAGG is not there before Spark 4 and Databricks Runtime 16.4.
        return f"ARRAY_JOIN(SORT_ARRAY(COLLECT_LIST({expression})), ' ')"


class Databricks(PrintedSpark):
    """Databricks SQL, and Databricks Runtime."""

    name = "databricks"


class Postgres(Warehouse):
    """PostgreSQL 11 and later, which have the hash."""

    name = "postgres"

    def hashed(self, columns: str) -> str:  # noqa: D102
        return f"HASHTEXTEXTENDED({columns}, 0)"

    def joined(self, expression: str, order: str) -> str:  # noqa: D102
        return f"STRING_AGG({expression}, ' ' ORDER BY {order})"


class Redshift(Warehouse):
    """Amazon Redshift."""

    name = "redshift"
    # A VARCHAR without a length is cut after 256 bytes.
    types: Mapping[str, str] = {"VARCHAR": "VARCHAR(65535)"}

    def text(self, value: str) -> str:  # noqa: D102
        return f"'{_escaped(value)}'"

    def hashed(self, columns: str) -> str:  # noqa: D102
        return f"FARMFINGERPRINT64({columns})"

    def joined(self, expression: str, order: str) -> str:  # noqa: D102
        return f"LISTAGG({expression}, ' ') WITHIN GROUP (ORDER BY {order})"


class Snowflake(Warehouse):
    """Snowflake."""

    name = "snowflake"

    def quote(self, identifier: str) -> str:  # noqa: D102
        # A name that was created without quotes is kept in capitals.
        plain = re.fullmatch("[a-z_][a-z0-9_]*", identifier)
        return self.exact(identifier.upper() if plain else identifier)

    def exact(self, identifier: str) -> str:  # noqa: D102
        return super().quote(identifier)

    def text(self, value: str) -> str:  # noqa: D102
        return f"'{_escaped(value)}'"

    def hashed(self, columns: str) -> str:  # noqa: D102
        return f"HASH({columns})"

    def remainder(self, hashed: str) -> str:  # noqa: D102
        return f"MOD(ABS({hashed}), {BUCKETS})"

    def joined(self, expression: str, order: str) -> str:  # noqa: D102
        return f"LISTAGG({expression}, ' ') WITHIN GROUP (ORDER BY {order})"


class BigQuery(Warehouse):
    """Google BigQuery."""

    name = "bigquery"
    types: Mapping[str, str] = {"VARCHAR": "STRING", "SMALLINT": "INT64", "INTEGER": "INT64", "BIGINT": "INT64"}

    def quote(self, identifier: str) -> str:  # noqa: D102
        return f"`{_escaped(identifier, quote='`')}`"

    def text(self, value: str) -> str:  # noqa: D102
        return f"'{_escaped(value)}'"

    def hashed(self, columns: str) -> str:  # noqa: D102
        return f"FARM_FINGERPRINT({columns})"

    def joined(self, expression: str, order: str) -> str:  # noqa: D102
        return f"STRING_AGG({expression}, ' ' ORDER BY {order})"


class Trino(Warehouse):
    """Trino, Starburst and Amazon Athena."""

    name = "trino"

    def hashed(self, columns: str) -> str:  # noqa: D102
        return f"FROM_BIG_ENDIAN_64(XXHASH64(TO_UTF8({columns})))"

    def remainder(self, hashed: str) -> str:  # noqa: D102
        return f"BITWISE_AND({hashed}, {BUCKETS - 1})"

    def joined(self, expression: str, order: str) -> str:  # noqa: D102
        return f"LISTAGG({expression}, ' ') WITHIN GROUP (ORDER BY {order})"


class ClickHouse(Warehouse):
    """ClickHouse."""

    name = "clickhouse"
    types: Mapping[str, str] = {
        "VARCHAR": "Nullable(String)",
        "SMALLINT": "Nullable(Int16)",
        "INTEGER": "Nullable(Int32)",
        "BIGINT": "Nullable(Int64)",
    }
    # As in other engines: a column's name means the column, not an alias, and what is not joined is NULL.
    ending = "\nSETTINGS prefer_column_name_to_alias = 1, join_use_nulls = 1"

    def quote(self, identifier: str) -> str:  # noqa: D102
        return f"`{_escaped(identifier, quote='`')}`"

    def text(self, value: str) -> str:  # noqa: D102
        return f"'{_escaped(value)}'"

    def hashed(self, columns: str) -> str:  # noqa: D102
        return f"cityHash64({columns})"

    def remainder(self, hashed: str) -> str:  # noqa: D102
        return f"bitAnd({hashed}, {BUCKETS - 1})"

    def joined(self, expression: str, order: str) -> str:  # noqa: D102
        return f"arrayStringConcat(arraySort(groupArray({expression})), ' ')"


def _escaped(value: str, quote: str = "'") -> str:
    """Return a text as it stands in quotes where a backslash escapes, all on one line."""
    for character, written in (("\\", "\\\\"), (quote, f"\\{quote}"), ("\n", "\\n"), ("\r", "\\r")):
        value = value.replace(character, written)
    return value


DIALECTS: dict[str, Warehouse] = {
    "bigquery": BigQuery(),
    "snowflake": Snowflake(),
    "redshift": Redshift(),
    "databricks": Databricks(),
    "trino": Trino(),
    "clickhouse": ClickHouse(),
    "postgres": Postgres(),
    "spark": PrintedSpark(),
    "duckdb": PrintedDuckDB(),
}
