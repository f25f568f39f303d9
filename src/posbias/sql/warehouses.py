"""What each warehouse says differently. No table is opened there, so columns are taken as typed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from posbias.sql.dialect import BUCKETS, Dialect, DuckDBDialect
from posbias.sql.spark import SparkDialect


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

    def rank(self, expression: str, type_: str) -> str:  # noqa: D102
        whole = self.cast(expression, "BIGINT")
        return f"CASE WHEN {whole} = {expression} THEN {whole} WHEN {expression} IS NOT NULL THEN 0 END"

    def click(self, expression: str, type_: str) -> str:  # noqa: D102
        # PostgreSQL makes INTEGER of a boolean, but not BIGINT.
        return self.cast(expression, "INTEGER")

    def bucket(self, expression: str, type_: str) -> str:  # noqa: D102
        return self.cast(self.remainder(self.hashed(self.as_text(expression))), "SMALLINT")

    def remainder(self, hashed: str) -> str:
        """Return a hash modulo the number of buckets, never negative."""
        return f"{hashed} & {BUCKETS - 1}"


class Escaping(Warehouse):
    """One in which a backslash escapes inside quotes."""

    def text(self, value: str) -> str:  # noqa: D102
        return _escaped(value, "'")


class Backticked(Escaping):
    """And in which names stand in backticks."""

    def quote(self, identifier: str) -> str:  # noqa: D102
        return _escaped(identifier, "`")


def _escaped(value: str, quote: str) -> str:
    """Return a text in quotes, all on one line."""
    for character, written in (("\\", "\\\\"), (quote, f"\\{quote}"), ("\n", "\\n"), ("\r", "\\r")):
        value = value.replace(character, written)
    return f"{quote}{value}{quote}"


class PrintedDuckDB(Warehouse, DuckDBDialect):
    """DuckDB, by a hash of the query's text: other buckets than those of the engine."""

    name = "duckdb sql"


class PrintedSpark(Warehouse, SparkDialect):
    """Spark 3 and 4."""

    name = "spark sql"
    # LISTAGG is not there before Spark 4 and Databricks Runtime 16.4.
    join_of = "ARRAY_JOIN(SORT_ARRAY(COLLECT_LIST({0})), ' ')"


class Databricks(PrintedSpark):
    """Databricks SQL, and Databricks Runtime."""

    name = "databricks"


class Postgres(Warehouse):
    """PostgreSQL 11 and later, which have the hash."""

    name = "postgres"
    hash_of = "HASHTEXTEXTENDED({}, 0)"
    join_of = DuckDBDialect.join_of


class Redshift(Escaping):
    """Amazon Redshift."""

    name = "redshift"
    hash_of = "FARMFINGERPRINT64({})"
    # A VARCHAR without a length is cut after 256 bytes.
    types: Mapping[str, str] = {"VARCHAR": "VARCHAR(65535)"}


class Snowflake(Escaping):
    """Snowflake."""

    name = "snowflake"
    hash_of = "HASH({})"
    spread_of = "{table} t, LATERAL FLATTEN(INPUT => {array}) u"
    item, place = "u.value", "u.index + 1"

    def quote(self, identifier: str) -> str:  # noqa: D102
        # A name that was created without quotes is kept in capitals.
        plain = re.fullmatch("[a-z_][a-z0-9_]*", identifier)
        return self.exact(identifier.upper() if plain else identifier)

    def exact(self, identifier: str) -> str:  # noqa: D102
        return super().quote(identifier)

    def remainder(self, hashed: str) -> str:  # noqa: D102
        return f"MOD(ABS({hashed}), {BUCKETS})"


class BigQuery(Backticked):
    """Google BigQuery."""

    name = "bigquery"
    hash_of = "FARM_FINGERPRINT({})"
    join_of = DuckDBDialect.join_of
    types: Mapping[str, str] = {"VARCHAR": "STRING", "SMALLINT": "INT64", "INTEGER": "INT64", "BIGINT": "INT64"}
    spread_of = "{table} t, UNNEST({array}) AS item WITH OFFSET AS place"
    item, place = "item", "place + 1"

    def attempt(self, expression: str, type_: str) -> str:  # noqa: D102
        return f"SAFE_{self.cast(expression, type_)}"


class Trino(Warehouse):
    """Trino, Starburst and Amazon Athena."""

    name = "trino"
    hash_of = "FROM_BIG_ENDIAN_64(XXHASH64(TO_UTF8({})))"

    def remainder(self, hashed: str) -> str:  # noqa: D102
        return f"BITWISE_AND({hashed}, {BUCKETS - 1})"


class ClickHouse(Backticked):
    """ClickHouse."""

    name = "clickhouse"
    hash_of = "cityHash64({})"
    join_of = "arrayStringConcat(arraySort(groupArray({0})), ' ')"
    types: Mapping[str, str] = {
        "VARCHAR": "Nullable(String)",
        "SMALLINT": "Nullable(Int16)",
        "INTEGER": "Nullable(Int32)",
        "BIGINT": "Nullable(Int64)",
    }
    # As in other engines: a column's name means the column, not an alias, and what is not joined is NULL.
    ending = "\nSETTINGS prefer_column_name_to_alias = 1, join_use_nulls = 1"

    def remainder(self, hashed: str) -> str:  # noqa: D102
        return f"bitAnd({hashed}, {BUCKETS - 1})"


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
