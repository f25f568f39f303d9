"""SQL dialects: everything in which engines and warehouses differ, as a small class of hooks for each.

The queries of this package are portable text; where engines differ they call a hook. `Dialect` has a default for each
hook, which is SQL as most engines speak it. `DuckDBDialect` and `SparkDialect` are run by the engines of posbias;
`DIALECTS` has those that `posbias sql` prints for a warehouse.

To add a dialect that is printed:

1. Write a subclass of `Warehouse`. Start from `BackslashEscaping` if a backslash escapes inside string literals, and
   from `BacktickQuoting` if names stand in backticks as well.
2. Set `name`, and `hash_template`: a function from text to a 64-bit integer. It decides the buckets of queries.
3. Override what differs: most often `types`, `string_agg_template`, `unnest_template` and `bucket_of_hash`.
4. Add one line to `DIALECTS`, and the name to the list in `cli/sql.py`.
5. Run `tests/sql/test_queries.py`. It parses every query with sqlglot; list there the functions that sqlglot does not
   know. If the engine runs on your machine, add it to `EXECUTORS` in `tests/support/warehouses.py`: then the tests
   execute the queries too.
6. Add the dialect to the table at the end of `docs/warehouse.md`.

Types are called by DuckDB's names throughout (VARCHAR, BIGINT, DOUBLE, ...); `types` translates them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from posbias.logs.schema import EXACT, NESTED
from posbias.logs.schema import INTEGERS as INTEGERS

# How ids are hashed into buckets, see `Dialect.id_hash`. Harvests of rule 1 hashed each id as the type that held it.
BUCKET_RULE = 2
# Queries are hashed into so many buckets, from which confidence intervals are computed, and so are units.
BUCKETS = 256
# Two counters share one 64-bit sum: room for 2^31 impressions and as many clicks of one (query, document, ranker).
PACK = 2**32
FLOATS = frozenset(["DOUBLE", "FLOAT", "REAL"])
_UP_TO_64_BITS = INTEGERS - {"HUGEINT", "UHUGEINT", "UBIGINT"}
# Texts that stand for a missing number.
_MISSING_TEXTS = ("", "null", "nan", "none", "na", "<na>")
# Types that Spark cannot cast to a number, or casts to a misleading one: a timestamp becomes seconds.
_SPARK_NOT_NUMBERS = ("DATE", "TIME", "INTERVAL", "BINARY")


def double_literal(value: float) -> str:
    """Return a number as a literal of type DOUBLE; without an exponent it would be a DECIMAL.

    Example:
        >>> double_literal(0.05), double_literal(1e-30)
        ('0.05e0', '1e-30')
    """
    text = repr(float(value))
    return text if "e" in text else f"{text}e0"


class Dialect:
    """The hooks of a dialect. A hook takes expressions as SQL and returns SQL.

    Attributes:
        name (str): the name of the dialect, which an export carries.
        hash_template (str): a 64-bit hash of one or several columns.
        string_agg_template (str): an aggregate that joins texts {0} with spaces, in the order of {1}.
        types (mapping, default {}): what the dialect calls a type, where not by DuckDB's name.
        packed_keys (tuple of str): keys of a harvest by signature that become one number. It is grouped faster, but is
            harder to read.
        has_int128 (bool, default False): whether there are 128-bit integers with shifts (see `PackedCounts`).
        bucket_type (str, default "SMALLINT"): the narrowest type that holds a bucket.
        unnest_template (str): a table `t` with a row for each element of an {array} of its.
        item, place (str): the element of such a row, and its place counted from 1.
        parse_array_template (str): an array from a text that holds JSON, NULL where it holds none.
        array_length_template (str): the number of elements of an array.
        to_json_template (str): a structure or an array as a text that holds JSON.
    """

    name: str
    hash_template: str
    string_agg_template = "LISTAGG({0}, ' ') WITHIN GROUP (ORDER BY {1})"
    types: Mapping[str, str] = {}
    packed_keys: tuple[str, ...] = ("ranker", "code_0")
    has_int128 = False
    bucket_type = "SMALLINT"
    unnest_template = "{table} t, UNNEST({array}) WITH ORDINALITY AS u(item, place)"
    item, place = "u.item", "u.place"
    parse_array_template = "TRY(from_json({}, '[\"VARCHAR\"]'))"
    array_length_template = "LEN({})"
    to_json_template = "CAST(to_json({}) AS VARCHAR)"

    # ---- Names, literals, casts

    def quote(self, identifier: str) -> str:
        """Return a column or table name as a quoted identifier, whatever characters it has."""
        return '"' + identifier.replace('"', '""') + '"'

    def literal(self, value: str) -> str:
        """Return a string as a literal."""
        return "'" + value.replace("'", "''") + "'"

    def typed_literal(self, text: str, type_: str) -> str:
        """Return the value of a column type that prints as `text`, NULL if there is none."""
        return self.literal(text) if type_ == "VARCHAR" else self.try_cast(self.literal(text), type_)

    def cast(self, expression: str, type_: str) -> str:
        """Return a value as another type; the query fails if it does not fit."""
        return f"CAST({expression} AS {self.types.get(type_, type_)})"

    def try_cast(self, expression: str, type_: str) -> str:
        """Return a value as another type, NULL if it does not fit."""
        return f"TRY_{self.cast(expression, type_)}"

    def as_text(self, expression: str) -> str:
        """Return any value as text."""
        return self.cast(expression, "VARCHAR")

    # ---- Columns of a log

    def nan_to_null(self, expression: str, type_: str) -> str:
        """Return an id, NULL where it is NaN: NaN stands for a missing id, though in SQL it equals every other NaN."""
        return f"CASE WHEN NOT {self.is_nan(expression)} THEN {expression} END" if type_ in FLOATS else expression

    def is_rounded(self, expression: str, type_: str) -> str:
        """Return whether an id that is stored as a float is too large to be exact."""
        return f"ABS({self.nan_to_null(expression, type_)}) >= {EXACT[type_]}"

    def is_nan(self, expression: str) -> str:
        """Return whether a number, or a text for one, is NaN."""
        # By its text, because no function for it is the same in all engines.
        return f"(LOWER({self.as_text(expression)}) = 'nan')"

    def integer(self, expression: str, type_: str) -> str:
        """Return a position or a count as a whole number, NULL where the value is not one."""
        if type_ in _UP_TO_64_BITS:
            return expression
        if type_ in INTEGERS:
            # Sums and bits of wider types would be fractions; no position or count needs more than 64 bits.
            return self.try_cast(expression, "BIGINT")
        if type_ == "BOOLEAN":
            return self.cast(expression, "INTEGER")
        number = self.as_double(expression, type_)
        whole = self.try_cast(number, "BIGINT")
        return f"CASE WHEN {whole} = {number} THEN {whole} END"

    def rank(self, expression: str, type_: str) -> str:
        """Return a rank as a whole number: NULL where the value is missing, 0 where it is not a rank."""
        if type_ in _UP_TO_64_BITS:
            return expression
        number = self.integer(expression, type_)
        if type_ in INTEGERS:
            return f"CASE WHEN {expression} < 1 THEN 0 ELSE {number} END"
        missing = ", ".join(map(self.literal, _MISSING_TEXTS))
        # Only values that are not numbers are compared as texts: converting all values to text is slow.
        return (
            f"CASE WHEN {expression} IS NULL THEN NULL WHEN {number} IS NOT NULL THEN {number} "
            f"WHEN LOWER(TRIM({self.as_text(expression)})) IN ({missing}) THEN NULL ELSE 0 END"
        )

    def as_double(self, expression: str, type_: str) -> str:
        """Return a value that is not of an integer type as a DOUBLE, NULL where it is not a number."""
        return self.try_cast(expression, "DOUBLE")

    def click(self, expression: str, type_: str) -> str:
        """Return a click as a whole number; a text may also be 'true' or 'false'."""
        if type_ != "VARCHAR":
            return self.integer(expression, type_)
        truth = f"LOWER(TRIM({expression}))"
        number = self.integer(expression, type_)
        return f"CASE {truth} WHEN 'true' THEN 1 WHEN 'false' THEN 0 ELSE {number} END"

    # ---- Arrays and JSON

    def unnest(self, table: str, array: str) -> str:
        """Return a FROM item with a row for each element of an array of `t`: see `item` and `place`."""
        return self.unnest_template.format(table=table, array=array)

    def as_array(self, expression: str, type_: str) -> str:
        """Return an array; from a text that holds JSON, NULL where it holds no array."""
        return self.parse_array_template.format(expression) if type_ in ("VARCHAR", "JSON") else expression

    def array_length(self, array: str) -> str:
        """Return how many elements an array has."""
        return self.array_length_template.format(array)

    def as_json(self, expression: str) -> str:
        """Return a structure or an array as a text that holds JSON."""
        return self.to_json_template.format(expression)

    def json_field(self, expression: str, type_: str, path: Sequence[str]) -> str:
        """Return a part of a structure, or of JSON in a text, as text; an array as JSON."""
        json = expression if type_ in ("VARCHAR", "JSON") else self.as_json(expression)
        return f"TRY(json_extract_string({json}, {self.literal(json_pointer(path))}))"

    # ---- Buckets and sums

    def hash(self, columns: str) -> str:
        """Return a 64-bit hash of one or several columns."""
        return self.hash_template.format(columns)

    def id_hash(self, expression: str, type_: str) -> str:
        """Return a hash of an id, the same whatever type holds it: 7 as an integer, a fraction, a decimal or a text.

        Integers are hashed as such, because turning each into a text is slow. So are texts for integers; all other ids
        are hashed as texts. The texts 7 and 07 have the same hash, which does no harm.
        """
        if type_ in _UP_TO_64_BITS:
            return self.hash(self.cast(expression, "BIGINT"))
        text = expression if type_ == "VARCHAR" else self.as_text(expression)
        if type_ == "VARCHAR":
            # Most texts differ from a number in their first character or in their length, which is seen at once.
            is_number = f"{expression} < ':' AND LENGTH({expression}) <= 20 AND "
        elif type_ in INTEGERS or type_ in FLOATS or type_.startswith("DECIMAL"):
            is_number = ""
        else:
            return self.hash(text)
        number = self.try_cast(expression, "BIGINT")
        return f"CASE WHEN {is_number}{number} IS NOT NULL THEN {self.hash(number)} ELSE {self.hash(text)} END"

    def bucket(self, expression: str, type_: str) -> str:
        """Return the bucket of a query: the same id has the same bucket, whatever type holds it."""
        return self.cast(f"({self.id_hash(expression, type_)}) & {BUCKETS - 1}", self.bucket_type)

    def total(self, expression: str) -> str:
        """Return a sum as a 64-bit integer; the query fails if it does not fit."""
        return self.cast(f"SUM({expression})", "BIGINT")

    def exact_sum(self, expression: str, decimals: int = 15) -> str:
        """Return a sum of fractions that is the same in any order of the rows: each is rounded to so many decimals."""
        return self.cast(f"SUM({self.cast(expression, f'DECIMAL(38, {decimals})')})", "DOUBLE")

    def string_agg(self, expression: str, order: str) -> str:
        """Return an aggregate that joins texts with spaces in a fixed order."""
        return self.string_agg_template.format(expression, order)

    def select_replacing(self, columns: Mapping[str, str]) -> str:
        """Return a SELECT of all columns of `source`, with some (by their quoted names) replaced by expressions."""
        return f"SELECT * REPLACE ({', '.join(f'{e} AS {c}' for c, e in columns.items())}) FROM source"

    def quotient(self, expression: str, divisor: int) -> str:
        """Return a whole number divided by another, rounded down."""
        return f"({expression} // {divisor})"

    # ---- Bits

    def upper_half(self, packed: str) -> str:
        """Return the upper counter of a packed 64-bit sum."""
        return self.cast(f"{packed} >> 32", "INTEGER")

    def lower_half(self, packed: str) -> str:
        """Return the lower counter of a packed 64-bit sum."""
        return self.cast(f"{packed} & {PACK - 1}", "INTEGER")

    def bit(self, place: str, *, wide: bool) -> str:
        """Return a number with one bit set, at a place counted from 0; `wide` for more than 31 bits."""
        return f"({self.cast('1', 'BIGINT' if wide else 'INTEGER')} << ({place}))"

    def bit_or(self, bits: str) -> str:
        """Return an aggregate: the bits that any row has."""
        return f"BIT_OR({bits})"

    def bit_slice(self, bits: str, start: int, length: int) -> str:
        """Return `length` bits from `start` on."""
        return f"(({bits} >> {start}) & {2**length - 1})"


def json_pointer(names: Sequence[str]) -> str:
    """Return the path to a part of JSON as a pointer (RFC 6901), which can hold any name.

    Example:
        >>> json_pointer(["event_attributes", "it's 3/4"])
        "/event_attributes/it's 3~14"
    """
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)


# ---- Dialects that posbias runs itself


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
    # One byte keeps the table of all possible groups small.
    bucket_type = "UTINYINT"

    def as_double(self, expression: str, type_: str) -> str:  # noqa: D102
        number = super().as_double(expression, type_)
        # DuckDB reads 1_0 as 10, as programming languages do.
        return f"CASE WHEN NOT CONTAINS({expression}, '_') THEN {number} END" if type_ == "VARCHAR" else number


class SparkDialect(Dialect):
    """The hooks of Spark 4, and of Databricks, which speaks the same SQL."""

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
        # Spark drops two quotes in a row, and a backslash escapes.
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def typed_literal(self, text: str, type_: str) -> str:  # noqa: D102
        # A column of nothing but NULLs is of type VOID, to which nothing can be cast.
        return self.literal(text) if type_ == "VOID" else super().typed_literal(text, type_)

    def as_double(self, expression: str, type_: str) -> str:  # noqa: D102
        if NESTED.search(type_) or type_.startswith(_SPARK_NOT_NUMBERS):
            return "CAST(NULL AS DOUBLE)"
        number = super().as_double(expression, type_)
        if type_ != "VARCHAR":
            return number
        # Java reads 3d and 3f as numbers.
        return f"CASE WHEN RIGHT(LOWER({expression}), 1) NOT IN ('d', 'f') THEN {number} END"

    def select_replacing(self, columns: Mapping[str, str]) -> str:  # noqa: D102
        replaced = ", ".join(f"{expression} AS {column}" for column, expression in columns.items())
        return f"SELECT * EXCEPT ({', '.join(columns)}), {replaced} FROM source"

    def quotient(self, expression: str, divisor: int) -> str:  # noqa: D102
        return f"({expression} DIV {divisor})"

    def json_field(self, expression: str, type_: str, path: Sequence[str]) -> str:  # noqa: D102
        json = expression if type_ == "VARCHAR" else self.as_json(expression)
        # Spark's paths have quotes only in brackets, and no quote inside them.
        json_path = "$" + "".join(f".{name}" if "'" in name else f"['{name}']" for name in path)
        return f"get_json_object({json}, {self.literal(json_path)})"


# ---- Dialects that are printed for a warehouse


class Warehouse(Dialect):
    """The hooks of a query that is printed. No table is opened, so columns are expected to have the right types.

    Attributes:
        query_suffix (str, default ""): what every printed query ends with.
    """

    # People read a printed query, so its keys are not packed.
    packed_keys: tuple[str, ...] = ()
    query_suffix = ""

    def quote_exactly(self, identifier: str) -> str:
        """Return an identifier that the user gave in quotes, in exactly the same letters."""
        return self.quote(identifier)

    def bucket_of_hash(self, hashed: str) -> str:
        """Return a hash modulo the number of buckets, never negative."""
        return f"{hashed} & {BUCKETS - 1}"

    def typed_literal(self, text: str, type_: str) -> str:  # noqa: D102
        return self.literal(text)

    def integer(self, expression: str, type_: str) -> str:  # noqa: D102
        # A cast alone would round 1.5 to a rank.
        whole = self.cast(expression, "BIGINT")
        return f"CASE WHEN {whole} = {expression} THEN {whole} END"

    def rank(self, expression: str, type_: str) -> str:  # noqa: D102
        whole = self.cast(expression, "BIGINT")
        return f"CASE WHEN {whole} = {expression} THEN {whole} WHEN {expression} IS NOT NULL THEN 0 END"

    def click(self, expression: str, type_: str) -> str:  # noqa: D102
        # PostgreSQL casts a boolean to INTEGER, but not to BIGINT.
        return self.cast(expression, "INTEGER")

    def bucket(self, expression: str, type_: str) -> str:  # noqa: D102
        return self.cast(self.bucket_of_hash(self.hash(self.as_text(expression))), "SMALLINT")


class PrintedDuckDB(Warehouse, DuckDBDialect):
    """DuckDB. It hashes the query as text, so its buckets are not those of the engine."""

    name = "duckdb sql"


class PrintedSpark(Warehouse, SparkDialect):
    """Spark 3 and 4."""

    name = "spark sql"
    # LISTAGG is missing before Spark 4 and Databricks Runtime 16.4.
    string_agg_template = "ARRAY_JOIN(SORT_ARRAY(COLLECT_LIST({0})), ' ')"


class Databricks(PrintedSpark):
    """Databricks SQL and Databricks Runtime."""

    name = "databricks"


class Postgres(Warehouse):
    """PostgreSQL 11 and later, which have the hash."""

    name = "postgres"
    hash_template = "HASHTEXTEXTENDED({}, 0)"
    string_agg_template = DuckDBDialect.string_agg_template


class Trino(Warehouse):
    """Trino, Starburst and Amazon Athena."""

    name = "trino"
    hash_template = "FROM_BIG_ENDIAN_64(XXHASH64(TO_UTF8({})))"

    def bucket_of_hash(self, hashed: str) -> str:  # noqa: D102
        return f"BITWISE_AND({hashed}, {BUCKETS - 1})"


class BackslashEscaping(Warehouse):
    """A warehouse in which a backslash escapes inside string literals."""

    def literal(self, value: str) -> str:  # noqa: D102
        return _escape(value, "'")


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
        # Snowflake stores a name that was created without quotes in capitals.
        plain = re.fullmatch("[a-z_][a-z0-9_]*", identifier)
        return self.quote_exactly(identifier.upper() if plain else identifier)

    def quote_exactly(self, identifier: str) -> str:  # noqa: D102
        return super().quote(identifier)

    def bucket_of_hash(self, hashed: str) -> str:  # noqa: D102
        return f"MOD(ABS({hashed}), {BUCKETS})"


class BacktickQuoting(BackslashEscaping):
    """A warehouse in which a backslash escapes inside string literals, and names stand in backticks."""

    def quote(self, identifier: str) -> str:  # noqa: D102
        return _escape(identifier, "`")


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


def _escape(value: str, quote: str) -> str:
    """Return a text in quotes on one line, with backslashes before what must be escaped."""
    for character, escaped in (("\\", "\\\\"), (quote, f"\\{quote}"), ("\n", "\\n"), ("\r", "\\r")):
        value = value.replace(character, escaped)
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
