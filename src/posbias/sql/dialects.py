"""SQL dialects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from posbias.logs.schema import INTEGERS as INTEGERS
from posbias.logs.schema import NESTED

BUCKETS = 256
# Room for 2^31 impressions and as many clicks of one (query, document, ranker) in one packed 64-bit sum.
PACK = 2**32
# What stands for a missing number in texts.
_MISSING_TEXTS = ("", "null", "nan", "none", "na", "<na>")
FLOATS = frozenset(["DOUBLE", "FLOAT", "REAL"])
_UP_TO_64_BITS = INTEGERS - {"HUGEINT", "UHUGEINT", "UBIGINT"}
# Of these Spark makes no number, or one that is none: a time becomes seconds.
_NO_NUMBERS = ("DATE", "TIME", "INTERVAL", "BINARY")


class Dialect:
    """The hooks of a dialect; those defined here are SQL as most engines speak it."""

    name: str
    # A 64-bit hash of columns, and an aggregate that joins texts with spaces in a fixed order.
    hash_template: str
    string_agg_template = "LISTAGG({0}, ' ') WITHIN GROUP (ORDER BY {1})"
    # What the dialect calls a type, where not by DuckDB's name.
    types: Mapping[str, str] = {}
    # Keys of a harvest by signature that become one number, which is grouped faster but is harder to read.
    packed_keys: tuple[str, ...] = ("ranker", "code_0")
    # Whether there are whole numbers of 128 bits with shifts, in which counts can be added up side by side.
    has_int128 = False
    # The narrowest type that holds a bucket.
    bucket_type = "SMALLINT"
    # A table `t` with a row for each element of an array, the element and its place from 1 on.
    unnest_template = "{table} t, UNNEST({array}) WITH ORDINALITY AS u(item, place)"
    item, place = "u.item", "u.place"
    # An array from JSON in a text, NULL where it holds none; how long an array is; a structure or array as JSON.
    parse_array_template = "TRY(from_json({}, '[\"VARCHAR\"]'))"
    array_length_template = "LEN({})"
    to_json_template = "CAST(to_json({}) AS VARCHAR)"

    def quote(self, identifier: str) -> str:
        """Return a column or table name as an identifier, whatever characters it has."""
        return '"' + identifier.replace('"', '""') + '"'

    def literal(self, value: str) -> str:
        """Return a string as a literal."""
        return "'" + value.replace("'", "''") + "'"

    def cast(self, expression: str, type_: str) -> str:
        """Return a value as another type, failing where it cannot be."""
        return f"CAST({expression} AS {self.types.get(type_, type_)})"

    def as_text(self, expression: str) -> str:
        """Return any value as text."""
        return self.cast(expression, "VARCHAR")

    def try_cast(self, expression: str, type_: str) -> str:
        """Return a value as another type, or NULL where it cannot be."""
        return f"TRY_{self.cast(expression, type_)}"

    def typed_literal(self, text: str, type_: str) -> str:
        """Return what a value of this column type is when it prints as `text`; NULL if nothing does."""
        return self.literal(text) if type_ == "VARCHAR" else self.try_cast(self.literal(text), type_)

    def nan_to_null(self, expression: str, type_: str) -> str:
        """Return an id, NULL where it is missing: a NaN names nothing, though in SQL it equals every other."""
        return f"CASE WHEN NOT {self.is_nan(expression)} THEN {expression} END" if type_ in FLOATS else expression

    def is_nan(self, expression: str) -> str:
        """Return whether a number, or a text for one, is NaN."""
        # By its text: there is no function that all know it by, and to SQL a NaN is a number that equals every other.
        return f"(LOWER({self.as_text(expression)}) = 'nan')"

    def integer(self, expression: str, type_: str) -> str:
        """Return a whole number, or NULL where the value is not one."""
        if type_ in _UP_TO_64_BITS:
            return expression
        if type_ in INTEGERS:
            # Sums and bits of wider ones would be fractions; what 64 bits do not hold is neither position nor count.
            return self.try_cast(expression, "BIGINT")
        if type_ == "BOOLEAN":
            return self.cast(expression, "INTEGER")
        number = self.as_double(expression, type_)
        whole = self.try_cast(number, "BIGINT")
        return f"CASE WHEN {whole} = {number} THEN {whole} END"

    def rank(self, expression: str, type_: str) -> str:
        """Return a rank as a whole number: NULL where there is none, 0 where the value is no rank."""
        if type_ in _UP_TO_64_BITS:
            return expression
        number = self.integer(expression, type_)
        if type_ in INTEGERS:
            return f"CASE WHEN {expression} < 1 THEN 0 ELSE {number} END"
        nothing = ", ".join(map(self.literal, _MISSING_TEXTS))
        # What stands for nothing is looked for only where there is no number: to make texts of all values costs much.
        return (
            f"CASE WHEN {expression} IS NULL THEN NULL WHEN {number} IS NOT NULL THEN {number} "
            f"WHEN LOWER(TRIM({self.as_text(expression)})) IN ({nothing}) THEN NULL ELSE 0 END"
        )

    def as_double(self, expression: str, type_: str) -> str:
        """Return a value of a type that is no integer as a double, NULL where it is none."""
        return self.try_cast(expression, "DOUBLE")

    def click(self, expression: str, type_: str) -> str:
        """Return a click as a whole number; text may also say true or false."""
        if type_ != "VARCHAR":
            return self.integer(expression, type_)
        truth = f"LOWER(TRIM({expression}))"
        number = self.integer(expression, type_)
        return f"CASE {truth} WHEN 'true' THEN 1 WHEN 'false' THEN 0 ELSE {number} END"

    def unnest(self, table: str, array: str) -> str:
        """Return what to select from for each element of an array of `t`, as `item` and `place` say."""
        return self.unnest_template.format(table=table, array=array)

    def as_array(self, expression: str, type_: str) -> str:
        """Return an array; of a text that holds one as JSON, NULL where it holds none."""
        return self.parse_array_template.format(expression) if type_ in ("VARCHAR", "JSON") else expression

    def array_length(self, array: str) -> str:
        """Return how many elements an array has."""
        return self.array_length_template.format(array)

    def as_json(self, expression: str) -> str:
        """Return a structure or an array as JSON in a text."""
        return self.to_json_template.format(expression)

    def json_field(self, expression: str, type_: str, path: Sequence[str]) -> str:
        """Return a part of a structure, or of JSON in a text, as text; an array as JSON."""
        json = expression if type_ in ("VARCHAR", "JSON") else self.as_json(expression)
        return f"TRY(json_extract_string({json}, {self.literal(json_path(path))}))"

    def hash(self, columns: str) -> str:
        """Return a 64-bit hash of one or several columns."""
        return self.hash_template.format(columns)

    def bucket(self, expression: str, type_: str) -> str:
        """Return the bucket of a query: the same id lands in the same one, whatever integer width held it."""
        if type_ in _UP_TO_64_BITS:
            expression = self.cast(expression, "BIGINT")
        return self.cast(f"{self.hash(expression)} & {BUCKETS - 1}", self.bucket_type)

    def total(self, expression: str) -> str:
        """Return a sum as a 64-bit integer, failing rather than wrapping where it does not fit."""
        return self.cast(f"SUM({expression})", "BIGINT")

    def string_agg(self, expression: str, order: str) -> str:
        """Return an aggregate that joins texts with spaces in a fixed order."""
        return self.string_agg_template.format(expression, order)

    def select_replacing(self, columns: Mapping[str, str]) -> str:
        """Return a SELECT of all columns of `source`, with some (by their quoted names) replaced."""
        return f"SELECT * REPLACE ({', '.join(f'{e} AS {c}' for c, e in columns.items())}) FROM source"

    def quotient(self, expression: str, divisor: int) -> str:
        """Return a whole number divided by another, rounded down."""
        return f"({expression} // {divisor})"

    def upper_half(self, packed: str) -> str:
        """Return the upper counter of a packed sum."""
        return self.cast(f"{packed} >> 32", "INTEGER")

    def lower_half(self, packed: str) -> str:
        """Return the lower counter of a packed sum."""
        return self.cast(f"{packed} & {PACK - 1}", "INTEGER")

    def bit(self, place: str, *, wide: bool) -> str:
        """Return a number with one bit set, the one at a place counted from 0."""
        return f"({self.cast('1', 'BIGINT' if wide else 'INTEGER')} << ({place}))"

    def bit_or(self, bits: str) -> str:
        """Return an aggregate: the bits that any row has."""
        return f"BIT_OR({bits})"

    def bit_slice(self, bits: str, start: int, length: int) -> str:
        """Return `length` bits from `start` on."""
        return f"(({bits} >> {start}) & {2**length - 1})"


def json_path(names: Sequence[str]) -> str:
    """Return the path to a part of JSON as a pointer (RFC 6901), in which every name can be said.

    >>> json_path(["event_attributes", "it's 3/4"])
    "/event_attributes/it's 3~14"
    """
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)


class Warehouse(Dialect):
    """The hooks of a query that is printed: plain casts, which fail in the warehouse where a value does not fit."""

    # A printed query is read by people too.
    packed_keys: tuple[str, ...] = ()
    # What a printed query ends with.
    query_suffix = ""

    def quote_exactly(self, identifier: str) -> str:
        """Return an identifier in quotes, letter by letter."""
        return self.quote(identifier)

    def typed_literal(self, text: str, type_: str) -> str:  # noqa: D102
        return self.literal(text)

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
        return self.cast(self.bucket_of_hash(self.hash(self.as_text(expression))), "SMALLINT")

    def bucket_of_hash(self, hashed: str) -> str:
        """Return a hash modulo the number of buckets, never negative."""
        return f"{hashed} & {BUCKETS - 1}"


class DuckDBDialect(Dialect):
    """The hooks of DuckDB."""

    name = "duckdb"
    hash_template = "hash({})"
    # Twelve times as fast as a join with the array of each row. No table has columns of these names.
    unnest_template = (
        '(SELECT *, UNNEST({array}) AS "posbias: item", generate_subscripts({array}, 1) AS "posbias: place" '
        "FROM {table} t) t"
    )
    item, place = 't."posbias: item"', 't."posbias: place"'
    string_agg_template = "STRING_AGG({0}, ' ' ORDER BY {1})"
    has_int128 = True
    # One byte: a table of all groups there can be stays small.
    bucket_type = "UTINYINT"

    def as_double(self, expression: str, type_: str) -> str:  # noqa: D102
        number = super().as_double(expression, type_)
        # DuckDB reads 1_0 as 10, as it is written in programs.
        return f"CASE WHEN NOT CONTAINS({expression}, '_') THEN {number} END" if type_ == "VARCHAR" else number


class PrintedDuckDB(Warehouse, DuckDBDialect):
    """DuckDB, by a hash of the query's text: other buckets than those of the engine."""

    name = "duckdb sql"


class SparkDialect(Dialect):
    """The hooks of Spark 4, and of Databricks, which speaks the same."""

    name = "spark"
    hash_template = "xxhash64({})"
    types: Mapping[str, str] = {"VARCHAR": "STRING"}
    packed_keys: tuple[str, ...] = ("bucket", "ranker", "code_0")
    unnest_template = "{table} t LATERAL VIEW POSEXPLODE({array}) u AS place, item"
    item, place = "u.item", "u.place + 1"
    parse_array_template = "from_json({}, 'ARRAY<STRING>', map('allowSingleQuotes', 'false'))"
    array_length_template = "SIZE({})"
    to_json_template = "to_json({})"

    def quote(self, identifier: str) -> str:  # noqa: D102
        return "`" + identifier.replace("`", "``") + "`"

    def literal(self, value: str) -> str:  # noqa: D102
        # Two quotes inside a literal are none at all, and a backslash escapes.
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def typed_literal(self, text: str, type_: str) -> str:  # noqa: D102
        # A column without a single value has a type of its own, of which nothing can be made.
        return self.literal(text) if type_ == "VOID" else super().typed_literal(text, type_)

    def as_double(self, expression: str, type_: str) -> str:  # noqa: D102
        if NESTED.search(type_) or type_.startswith(_NO_NUMBERS):
            return "CAST(NULL AS DOUBLE)"
        number = super().as_double(expression, type_)
        if type_ != "VARCHAR":
            return number
        # Java reads 3d and 3f as numbers.
        return f"CASE WHEN RIGHT(LOWER({expression}), 1) NOT IN ('d', 'f') THEN {number} END"

    def select_replacing(self, columns: Mapping[str, str]) -> str:  # noqa: D102
        named = ", ".join(f"{expression} AS {column}" for column, expression in columns.items())
        return f"SELECT * EXCEPT ({', '.join(columns)}), {named} FROM source"

    def quotient(self, expression: str, divisor: int) -> str:  # noqa: D102
        return f"({expression} DIV {divisor})"

    def json_field(self, expression: str, type_: str, path: Sequence[str]) -> str:  # noqa: D102
        json = expression if type_ == "VARCHAR" else self.as_json(expression)
        # Its paths know no quotes but those in brackets, and none inside them.
        where = "$" + "".join(f".{name}" if "'" in name else f"['{name}']" for name in path)
        return f"get_json_object({json}, {self.literal(where)})"


class PrintedSpark(Warehouse, SparkDialect):
    """Spark 3 and 4."""

    name = "spark sql"
    # LISTAGG is not there before Spark 4 and Databricks Runtime 16.4.
    string_agg_template = "ARRAY_JOIN(SORT_ARRAY(COLLECT_LIST({0})), ' ')"


class Databricks(PrintedSpark):
    """Databricks SQL, and Databricks Runtime."""

    name = "databricks"


class Postgres(Warehouse):
    """PostgreSQL 11 and later, which have the hash."""

    name = "postgres"
    hash_template = "HASHTEXTEXTENDED({}, 0)"
    string_agg_template = DuckDBDialect.string_agg_template


class BackslashEscaping(Warehouse):
    """One in which a backslash escapes inside quotes."""

    def literal(self, value: str) -> str:  # noqa: D102
        return _escaped(value, "'")


class Redshift(BackslashEscaping):
    """Amazon Redshift."""

    name = "redshift"
    hash_template = "FARMFINGERPRINT64({})"
    # A VARCHAR without a length is cut after 256 bytes.
    types: Mapping[str, str] = {"VARCHAR": "VARCHAR(65535)"}


class Snowflake(BackslashEscaping):
    """Snowflake."""

    name = "snowflake"
    hash_template = "HASH({})"
    unnest_template = "{table} t, LATERAL FLATTEN(INPUT => {array}) u"
    item, place = "u.value", "u.index + 1"

    def quote(self, identifier: str) -> str:  # noqa: D102
        # A name that was created without quotes is kept in capitals.
        plain = re.fullmatch("[a-z_][a-z0-9_]*", identifier)
        return self.quote_exactly(identifier.upper() if plain else identifier)

    def quote_exactly(self, identifier: str) -> str:  # noqa: D102
        return super().quote(identifier)

    def bucket_of_hash(self, hashed: str) -> str:  # noqa: D102
        return f"MOD(ABS({hashed}), {BUCKETS})"


class BacktickQuoting(BackslashEscaping):
    """And in which names stand in backticks."""

    def quote(self, identifier: str) -> str:  # noqa: D102
        return _escaped(identifier, "`")


class BigQuery(BacktickQuoting):
    """Google BigQuery."""

    name = "bigquery"
    hash_template = "FARM_FINGERPRINT({})"
    string_agg_template = DuckDBDialect.string_agg_template
    types: Mapping[str, str] = {"VARCHAR": "STRING", "SMALLINT": "INT64", "INTEGER": "INT64", "BIGINT": "INT64"}
    unnest_template = "{table} t, UNNEST({array}) AS item WITH OFFSET AS place"
    item, place = "item", "place + 1"

    def try_cast(self, expression: str, type_: str) -> str:  # noqa: D102
        return f"SAFE_{self.cast(expression, type_)}"


class Trino(Warehouse):
    """Trino, Starburst and Amazon Athena."""

    name = "trino"
    hash_template = "FROM_BIG_ENDIAN_64(XXHASH64(TO_UTF8({})))"

    def bucket_of_hash(self, hashed: str) -> str:  # noqa: D102
        return f"BITWISE_AND({hashed}, {BUCKETS - 1})"


class ClickHouse(BacktickQuoting):
    """ClickHouse."""

    name = "clickhouse"
    hash_template = "cityHash64({})"
    string_agg_template = "arrayStringConcat(arraySort(groupArray({0})), ' ')"
    types: Mapping[str, str] = {
        "VARCHAR": "Nullable(String)",
        "SMALLINT": "Nullable(Int16)",
        "INTEGER": "Nullable(Int32)",
        "BIGINT": "Nullable(Int64)",
    }
    # As in other engines: a column's name means the column, not an alias, and what is not joined is NULL.
    query_suffix = "\nSETTINGS prefer_column_name_to_alias = 1, join_use_nulls = 1"

    def bucket_of_hash(self, hashed: str) -> str:  # noqa: D102
        return f"bitAnd({hashed}, {BUCKETS - 1})"


def _escaped(value: str, quote: str) -> str:
    """Return a text in quotes, all on one line."""
    for character, written in (("\\", "\\\\"), (quote, f"\\{quote}"), ("\n", "\\n"), ("\r", "\\r")):
        value = value.replace(character, written)
    return f"{quote}{value}{quote}"


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
