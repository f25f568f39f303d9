"""DuckDB connections and sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import duckdb

from posbias._text import listed
from posbias.engines.files import (
    COMPRESSED_ENDINGS,
    Header,
    file_format,
    find_files,
    is_path,
    odd_lines,
    one_format,
    path_keys,
    read_header,
    refuse_other_case,
    refuse_unreadable,
)
from posbias.errors import LogError, PosbiasError
from posbias.findings import unusable
from posbias.logs.click_log import ClickLog, Events
from posbias.logs.schema import (
    ANY_RANKER,
    NATURAL,
    Columns,
    Schema,
    check_duplicate_columns,
    counts_overflow,
    guess_column,
    names_differ_by_case,
)
from posbias.sql.dialects import INTEGERS, DuckDBDialect

# What a message of an engine contains -> the name of the problem, and what to do.
REMEDIES = {
    r"not utf-8|invalid unicode": ("not-utf-8", "Convert the file to UTF-8."),
    r"already been consumed": ("unreadable", "Give a new reader, or keep what it holds as a table: reader.read_all()."),
    r"no space left": ("disk-full", "Free space in the temporary folder, or point TMPDIR to another."),
    r"footer|magic bytes|too small|truncated|gzip|eof|end of|decompress|corrupt|snappy|zstd|checksum|invalid page"
    r"|tprotocol": (
        "damaged-file",
        "The file looks truncated or damaged: copy or write it again, or leave it out.",
    ),
    r"disabled by configuration|disabled through configuration": (
        "reads-other-files",
        "A view may read the tables of its own database only. If you trust it, say so by giving it as your own query, "
        "such as sql='SELECT * FROM name', or export its rows to Parquet.",
    ),
    r"missing extension|extension\S* .*(loaded|install)": (
        "needs-extension",
        "posbias loads no extension. In Python, read it with DuckDB and give the relation: ClickLog(duckdb.sql(...)).",
    ),
    r"duplicate key": ("duplicate-column", "Rename or leave out one of the two keys."),
    r"state machine": (
        "broken-row",
        "Write the file again with one kind of line ending, and with quotes only around whole values.",
    ),
    r"csv error": ("broken-row", "Mend or remove that row, or write the file again."),
    r"malformed json|json transform": ("broken-row", "Expected one JSON object for each row: mend or remove that row."),
    r"failed to cast column|type mismatch|schema mismatch": (
        "mixed-files",
        "The files do not fit together: give files of one layout, or convert the odd one.",
    ),
    r"could not set lock|conflicting lock": (
        "file-locked",
        "Another process has it open for writing: close that first.",
    ),
    r"syntax error|does not exist|referenced column|binder error|parser error": (
        "bad-sql",
        "Check the query given as sql: it reads `source`, or the tables of a DuckDB file by their names.",
    ),
}
_SQL = DuckDBDialect()
# Nothing is fetched or loaded because a file or a query would like it, and no name means a variable of this process.
_ALONE = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
}
# How large a table of groups may be, and what is believed of columns, is said query by query, and opens no door.
_FREE = ("perfect_ht_threshold", "disabled_optimizers")
# What a DuckDB file is called once attached.
_DATABASE = "log_database"
_MAGIC = b"DUCK"
# What we call the tables of a log ourselves.
_OURS = ("log", "rankings", "impressions", "clicks", "joined", "candidates")
# The column that holds the path of a row's file, by a name that no log has.
_PATH = "posbias: the path of the file"


@contextmanager
def connected(
    spill: str, memory_limit: str | None = None, threads: int | None = None, *, counting: bool = False
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a DuckDB in memory that puts what does not fit into a folder.

    Where it is `counting` how far its queries are, it says so when asked; it never prints that itself.
    """
    con = duckdb.connect(":memory:", config={"temp_directory": spill, **_ALONE})
    try:
        if memory_limit is not None:
            try:
                # DuckDB takes less than nothing, such as -1GB, for no limit at all.
                con.execute("SET memory_limit = ?", [memory_limit if memory_limit.strip()[:1].isdecimal() else ""])
            except duckdb.Error:
                raise PosbiasError(
                    f"The memory limit {memory_limit!r} is not understood. Give a size such as 2GB or 500MB."
                ) from None
        # Ctrl-C may come while a setting is made, too.
        with explained():
            if threads is not None:
                con.execute("SET threads = ?", [threads])
            # Row order has no meaning here, and keeping it costs memory.
            con.execute("SET preserve_insertion_order = false")
            _set_progress(con, counting)
            # Columns of Python objects get their type from all rows: ids may turn from numbers to text late.
            con.execute("SET pandas_analyze_sample = 1000000000")
        yield con
    finally:
        con.close()


@contextmanager
def explained(schema: Schema | None = None) -> Iterator[None]:
    """Turn what DuckDB raises, while it counts what is in a log, into an error of ours."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise PosbiasError(
            "The memory limit is too small for this log, or the disk that takes what does not fit is full. "
            f"Raise memory_limit, lower threads or free space in the temporary folder. ({gist(error)})"
        ) from None
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except duckdb.Error as error:
        low = str(error).lower()
        if schema is not None and schema.aggregated and re.search("out of range|overflow in", low):
            raise counts_overflow(schema) from None
        name, remedy = next(
            (found for pattern, found in REMEDIES.items() if re.search(pattern, low)),
            ("unreadable", "Open it with DuckDB to see what is wrong, or write it again as Parquet."),
        )
        raise unusable(name, f"The log cannot be read: {gist(error)}", remedy) from None
    except RuntimeError as error:
        # What Ctrl-C becomes while DuckDB is at work.
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from None
        raise


def gist(error: Exception) -> str:
    """Return what an engine's error says, without its class, its advice and its full stop.

    >>> gist(ValueError("Binder Error: No such thing.\\nLINE 1: SELECT"))
    'No such thing'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    first = re.sub(r"^[A-Z][A-Za-z ]+ Error: ", "", lines[0]).rstrip(".")
    if "state machine" in first:
        file = next((line.removeprefix("file = ") for line in lines if line.startswith("file = ")), "")
        return f"{file!r} {odd_lines(file)}"
    if not first.startswith("CSV Error"):
        return first
    # "CSV Error on Line: 3", "Original Line: ...", and then the reason.
    where = re.sub(r"\D+", "", first)
    file = next((line.removeprefix("file = ") for line in lines if line.startswith("file = ")), "")
    row = next((line.removeprefix("Original Line: ") for line in lines if line.startswith("Original Line")), "")
    reason = lines[2].rstrip(".") if len(lines) > 2 else "it is no CSV"
    reason = re.sub(r"Expected Number of Columns: (\d+) Found: (\d+)", r"\2 values for \1 columns", reason)
    return f"line {where} of {file!r} is {row[:80]!r}: {reason[0].lower()}{reason[1:]}"


def _set_progress(con: duckdb.DuckDBPyConnection, counting: bool) -> None:
    """Say whether it counts how far it is; in a notebook without ipywidgets it does not, and refuses to be told."""
    with suppress(duckdb.InvalidInputException):
        con.execute(f"SET enable_progress_bar = {counting}")
        con.execute("SET enable_progress_bar_print = false")


def distrust(con: duckdb.DuckDBPyConnection) -> None:
    """Believe only what is read of columns, and not what files say of them.

    The least and the greatest value that a Parquet file tells of a column leave NaN out. DuckDB takes them for the
    whole truth: where all others lie within, or are one and the same, so does a NaN. To look costs a little more.
    """
    con.execute("SET disabled_optimizers = 'statistics_propagation'")


def trust(con: duckdb.DuckDBPyConnection) -> None:
    """Believe again what files say of columns."""
    con.execute("RESET disabled_optimizers")


def open_tables(
    con: duckdb.DuckDBPyConnection,
    log: ClickLog,
    extra_tables: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = (),
) -> tuple[Opened, Opened | None, dict[str, Opened]]:
    """Make the rows of a log selectable as `log`, its rankings as `rankings`, and extra tables by name.

    What is to be read is settled first; then the doors are shut, and only then is anything looked at: a view of a
    database file would read what it likes as soon as it is asked for its columns.
    """
    with explained():
        files = find_files(log.source) if is_path(log.source) else []
        database = bool(files) and one_format(files) == "duckdb"
        refuse_unreadable(files)
        tables = attach(con, files) if database else {}
        more = [] if log.rankings is None else find_second("rankings", log.rankings, tables)
        refuse_unreadable(more)
        others = find_extra_tables(extra_tables or {}, tables)
        seen = [*([] if database else files), *more, *chain(*others.values()), *outputs]
        shut(con, seen, trusting=log.sql is not None)
        if database:
            opened = _open_database(con, files[0], tables, log)
        elif log.table is not None:
            what = repr(files[0]) if files else f"a {type(log.source).__name__}"
            raise LogError(f"table goes with a DuckDB file, and {what} is not one. Leave it out, or use sql.")
        else:
            source = define(con, "source", log.source, files)
            opened = publish(con, "log", log.sql or "SELECT * FROM source", files, source)
        second = None if log.rankings is None else open_second(con, "rankings", log.rankings, more, tables)
        return opened, second, open_extra_tables(con, extra_tables or {}, others, tables)


@dataclass(frozen=True)
class Opened:
    """A table that can be selected from: the files it is read from, if any, and its columns."""

    files: Sequence[str]
    columns: Columns


def attach(con: duckdb.DuckDBPyConnection, files: list[str]) -> dict[str, str]:
    """Attach a DuckDB file and return its tables and views, by what a user calls them: schema.name where not in main.

    It is never the database in use: its macros do not take the place of functions.
    """
    if len(files) > 1:
        raise LogError(f"{len(files)} DuckDB files were given; a log is a table or query of one of them.")
    with open(files[0], "rb") as file:
        head = file.read(12 + len(_MAGIC))
    if head[8:12] != _MAGIC:
        kind = "a SQLite database, not one of DuckDB" if head.startswith(b"SQLite format 3") else "no DuckDB database"
        raise unusable(
            "not-a-log",
            f"The file {files[0]!r} is {kind}",
            "Export the table of the log to Parquet or CSV, or give the file the ending of what it is.",
        )
    con.execute(f"ATTACH {_SQL.literal(files[0])} AS {_DATABASE} (TYPE duckdb, READ_ONLY)")
    found = con.execute(
        f"SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = '{_DATABASE}' UNION ALL "
        f"SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = '{_DATABASE}' AND NOT internal"
    ).fetchall()
    return {
        name if schema == "main" else f"{schema}.{name}": ".".join([_DATABASE, _SQL.quote(schema), _SQL.quote(name)])
        for schema, name in sorted(found, key=lambda row: (row[0] != "main", row))
    }


def find_second(name: str, source: Any, tables: Mapping[str, str]) -> list[str]:
    """Return the files of a table that stands beside the first, where it has any."""
    if (isinstance(source, str) and source in tables) or not is_path(source):
        return []
    files = find_files(source)
    if file_format(files[0]) == "duckdb":
        raise LogError(
            f"The {name} cannot be read from the DuckDB file {files[0]!r}. Put them into the DuckDB file of the "
            "log and name their table, or export them to Parquet.",
            {name: "TABLE"},
        )
    return files


def find_extra_tables(extra_tables: Mapping[str, Any], tables: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the files of each table that stands beside the log."""
    found: dict[str, list[str]] = {}
    for name, source in extra_tables.items():
        in_log = isinstance(source, str) and source in tables
        files = found[name] = [] if in_log or not is_path(source) else find_files(source)
        if files and file_format(files[0]) == "duckdb":
            raise LogError(
                f"{files[0]!r} is a DuckDB file, and of those only that of the log is read. Put the table into "
                "it and give its name, or export it to Parquet."
            )
        refuse_unreadable(files)
    return found


def shut(con: duckdb.DuckDBPyConnection, files: Iterable[str], *, trusting: bool) -> None:
    """Lock the settings; where nothing of the user's own runs, let nothing but these files be seen either."""
    if not trusting:
        # A file goes by its name where it is opened, and by a pattern that fits nothing else where it is looked up.
        seen = {name for file in files for name in (file, escape_glob(file))}
        con.execute(f"SET allowed_paths = [{', '.join(map(_SQL.literal, sorted(seen)))}]")
        con.execute("SET enable_external_access = false")
    con.execute(f"SET allowed_configs = [{', '.join(map(_SQL.literal, _FREE))}]")
    con.execute("SET lock_configuration = true")


def escape_glob(name: str) -> str:
    """Keep DuckDB from reading a file name as a glob: each special character becomes a class of one."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _open_database(con: duckdb.DuckDBPyConnection, file: str, tables: Mapping[str, str], log: ClickLog) -> Opened:
    """Make the table of a database file that is the log, or the user's query over its tables, selectable as `log`."""
    table = choose_table(file, tables, log)
    rows = f"SELECT * FROM {tables[table]}" if table is not None else ""
    if log.sql is None:
        return publish(con, "log", rows, [file])
    if table is not None and "source" not in tables:
        con.execute(f"CREATE TEMP VIEW source AS {rows}")
    return publish(con, "log", query_tables(con, tables, log.sql), [file])


def choose_table(file: str, tables: Mapping[str, str], log: ClickLog | Events) -> str | None:
    """Return the table of a file that is the log; None where a query of the user's own says what is."""
    table = next(iter(tables)) if log.table is None and len(tables) == 1 else log.table
    if table is None and log.sql is None:
        raise unusable(
            "ambiguous-table",
            f"{file!r} holds {len(tables)} tables: {listed(tables)}",
            "Say which one is the log, or give a query (sql).",
            count=len(tables),
            arguments={"table": "NAME"},
        )
    if table is not None and table not in tables:
        near = guess_column("", table, tables)
        raise unusable(
            "unknown-table",
            f"There is no table {table!r} in {file!r}",
            (f"Did you mean {near!r}? " if near else "") + f"Tables found: {listed(tables)}. Name one of them.",
            arguments={"table": near or "NAME"},
        )
    return table


def publish(
    con: duckdb.DuckDBPyConnection, name: str, sql: str, files: Sequence[str], source: Source | None = None
) -> Opened:
    """Make a query selectable under a name, and tell its columns: as the source calls them, and as the engine does."""
    body = sql.strip().rstrip(";")
    statements = len(con.extract_statements(body))
    if statements > 1:
        raise unusable("bad-sql", f"The query given as sql holds {statements} statements", "Give a single SELECT.")
    described = [row[0] for row in con.execute(f"DESCRIBE {body}").fetchall()]
    check_duplicate_columns(described, "the answer to the query")
    con.execute(f"CREATE TEMP VIEW {name} AS {_enums_as_text(con, body)}")
    # Of two names that differ only by case the view gives one a number.
    found = {row[0]: row[1] for row in con.execute(f"DESCRIBE {name}").fetchall()}
    renamed = {} if source is None else _renamed(con, source)
    names: dict[str, str] = {}
    for told, column in zip(described, found, strict=True):
        original = renamed.get(told, told)
        names[told if original in described else original] = column
    types = {original: found[column] for original, column in names.items()}
    in_paths = frozenset(() if source is None else source.in_paths) & types.keys()
    return Opened(files, Columns(types, names, in_paths))


@dataclass(frozen=True)
class Source:
    """What was defined under a name: its columns as the source calls them, and those that only folders' names tell."""

    name: str
    originals: Sequence[str]
    in_paths: tuple[str, ...] = ()


def _enums_as_text(con: duckdb.DuckDBPyConnection, body: str) -> str:
    """Return a query whose ENUMs are texts: one is a number inside, another one in every file."""
    inside = f"FROM (\n{body}\n) s"
    found = con.execute(f"DESCRIBE SELECT * {inside}").fetchall()
    enums = [_SQL.quote(row[0]) for row in found if row[1].startswith("ENUM")]
    return f"SELECT * REPLACE ({', '.join(f'{_SQL.as_text(c)} AS {c}' for c in enums)}) {inside}" if enums else body


def _renamed(con: duckdb.DuckDBPyConnection, source: Source) -> dict[str, str]:
    """Return the columns that the engine calls otherwise than the source, which differ from others only by case."""
    columns = [row[0] for row in con.execute(f"DESCRIBE {source.name}").fetchall()]
    return {
        column: original
        for column, original in zip(columns, source.originals, strict=False)
        if column != original and re.fullmatch(re.escape(original) + r"(_\d+)+", column, re.IGNORECASE)
    }


def query_tables(con: duckdb.DuckDBPyConnection, tables: Mapping[str, str], sql: str) -> str:
    """Let a query name the tables of the file without saying where they are, and return it."""
    schemas = con.execute(f"SELECT schema_name FROM duckdb_schemas() WHERE database_name = '{_DATABASE}'").fetchall()
    for (schema,) in schemas:
        con.execute(f"CREATE SCHEMA IF NOT EXISTS {_SQL.quote(schema)}")
    for name in tables.values():
        con.execute(f"CREATE VIEW {name.removeprefix(f'{_DATABASE}.')} AS SELECT * FROM {name}")
    shadowed = [f"{_SQL.quote(name)} AS (SELECT * FROM {tables[name]})" for name in tables if name.lower() in _OURS]
    body = sql.strip().rstrip(";")
    return f"WITH {', '.join(shadowed)}\nSELECT * FROM (\n{body}\n) chosen" if shadowed else body


def define(con: duckdb.DuckDBPyConnection, name: str, source: Any, files: list[str]) -> Source:
    """Make files or data selectable under a name, and tell the columns as the source calls them."""
    if files:
        reading = select_files(con, files)
        con.execute(f"CREATE TEMP VIEW {name} AS {reading.select}")
        return Source(name, reading.originals, reading.in_paths)
    if isinstance(source, duckdb.DuckDBPyRelation):
        check_duplicate_columns(source.columns, "the relation")
        source = source.to_arrow_reader()
    if type(source).__name__ == "RecordBatchReader":
        # It can be read only once, and we read a log more than once: into a table that may spill to disk.
        con.register("stream", source)
        con.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM stream")
        con.unregister("stream")
        return Source(name, _names_of(source))
    kind = type(source).__name__
    try:
        if type(source).__module__.startswith("polars"):
            source = _from_polars(source)
        if kind == "RecordBatch":
            import pyarrow as pa

            source = pa.Table.from_batches([source])
        _register(con, name, source)
        return Source(name, _names_of(source))
    except PosbiasError:
        raise
    # Anything may be given, and what a lazy frame reads may be anywhere: whatever is raised is told.
    except Exception as error:
        raise LogError(
            f"A log cannot be read from a {kind} ({gist(error)}). Give a path, glob or folder, a "
            "DuckDB relation, or a pandas, Polars or Arrow table, with the columns of the log only."
        ) from None


def select_files(con: duckdb.DuckDBPyConnection, files: Sequence[str]) -> Reading:
    """Read files of one format as one table; columns are matched by name, and those of the files come first."""
    kind = one_format(files)
    refuse_unreadable(files)
    _refuse_packed_after_mark(files)
    keys = path_keys(files)
    # DuckDB's own reading of such folders would put what they say in the place of what the files say.
    options = "hive_partitioning = false" + (f", filename = {_SQL.literal(_PATH)}" if keys else "")
    if kind == "csv":
        select, originals = _select_csv(files, options)
    elif kind == "json":
        select, originals = _select_json(con, files, options), []
    else:
        select = f"SELECT * FROM read_parquet({_names(files)}, union_by_name = true, {options})"
        originals = _parquet_names(con, files)
    if not keys:
        return Reading(select, originals)
    inside = {row[0].lower() for row in con.execute(f"DESCRIBE {select}").fetchall()}
    told = tuple(key for key in keys if key.lower() not in inside)
    values = "".join(f", {_told_by_path(key)} AS {_SQL.quote(key)}" for key in told)
    return Reading(f"SELECT * EXCLUDE ({_SQL.quote(_PATH)}){values} FROM (\n{select}\n) files", originals, told)


@dataclass(frozen=True)
class Reading:
    """Files as a SELECT, their columns as the first file calls them, and those that only the folders' names tell."""

    select: str
    originals: list[str]
    in_paths: tuple[str, ...] = ()


def _refuse_packed_after_mark(files: Sequence[str]) -> None:
    """Refuse compressed files of which DuckDB does not see the ending: it takes a name for an address."""
    for name in files:
        if "?" in name and name.lower().endswith(COMPRESSED_ENDINGS):
            raise unusable(
                "unreadable",
                f"The compressed file {name!r} has a question mark in its path, after which its ending is not seen",
                "Rename the file or its folder, or unpack it.",
            )


def _select_csv(files: Sequence[str], options: str) -> tuple[str, list[str]]:
    """Return a SELECT over CSV files, one part for each header, and the columns of the first of them.

    The header says what the columns are: DuckDB's own detection takes a file with one odd row for something else.
    Values stay text as written ("007" is not 7), and a stray one is a finding instead of a failed read.
    """
    groups: dict[Header, list[str]] = {}
    for name in files:
        groups.setdefault(read_header(name), []).append(name)
    refuse_other_case({group[0]: header.names for header, group in groups.items()})
    select = " UNION ALL BY NAME ".join(
        f"SELECT * FROM read_csv({_names(group)}, delim = {_SQL.literal(header.delimiter)}, "
        f"columns = {_typed(header.names)}, header = true, auto_detect = false, quote = '\"', escape = '\"', "
        f"{_line_ending(header)}{options})"
        for header, group in groups.items()
    )
    return select, list(next(iter(groups)).names)


def _names(files: Sequence[str]) -> str:
    return "[" + ", ".join(_SQL.literal(escape_glob(name)) for name in files) + "]"


def _typed(header: Sequence[str]) -> str:
    """Return the columns of a header for `read_csv`, names made unique as DuckDB makes them."""
    taken: set[str] = set()
    parts = []
    for place, column in enumerate(header):
        name = base = column or f"column{place}"
        number = 0
        while name.lower() in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name.lower())
        parts.append(f"{_SQL.literal(name)}: 'VARCHAR'")
    return "{" + ", ".join(parts) + "}"


def _line_ending(header: Header) -> str:
    """Say how lines end: DuckDB would go by the first line break, in quotes or not, and by another find no row."""
    escaped = header.ending.encode("unicode_escape").decode()
    return f"new_line = {_SQL.literal(escaped)}, " if header.ending else ""


def _select_json(con: duckdb.DuckDBPyConnection, files: Sequence[str], options: str) -> str:
    """Return a SELECT over JSON files whose columns were looked up in every row, not in the first thousands.

    A key may appear late, such as a rank that is left out where there is none, and an id may be a number here
    and a text there. Dates and UUIDs stay the text that was written.
    """
    looked = f"{_names(files)}, union_by_name = true, hive_partitioning = false"
    with explained():
        found = con.execute(
            f"DESCRIBE SELECT * FROM read_json({looked}, sample_size = -1, maximum_sample_files = {len(files)})"
        ).fetchall()
    if [row[0] for row in found] == ["json"]:
        raise unusable(
            "not-a-log", f"{files[0]!r} holds no JSON objects", "Expected one object for each row: JSON lines."
        )
    _refuse_renamed_keys(con, files, [row[0] for row in found])
    kept = INTEGERS | {"BOOLEAN", "DOUBLE"}
    columns = ", ".join(f"{_SQL.literal(name)}: '{type_ if type_ in kept else 'VARCHAR'}'" for name, type_, *_ in found)
    return f"SELECT * FROM read_json({_names(files)}, union_by_name = true, columns = {{{columns}}}, {options})"


def _refuse_renamed_keys(con: duckdb.DuckDBPyConnection, files: Sequence[str], found: Sequence[str]) -> None:
    """Refuse keys that differ only by case: DuckDB gives one of them a number, and would find nothing by that name."""
    names = {name.lower() for name in found}
    numbered = [name for name in found if (match := re.fullmatch(r"(.+)_\d+", name)) and match[1].lower() in names]
    if not numbered:
        return
    keys = con.execute(
        f"SELECT DISTINCT UNNEST(json_keys(json)) FROM read_json_objects({_names(files)}, format = 'auto')"
    ).fetchall()
    twins = {key for (key,) in keys if sum(key.lower() == other.lower() for (other,) in keys) > 1}
    if twins:
        raise names_differ_by_case(sorted(twins), f"{files[0]!r}" if len(files) == 1 else "the log")


def _parquet_names(con: duckdb.DuckDBPyConnection, files: Sequence[str]) -> list[str]:
    """Return the columns as the first file names them: DuckDB renames one of two that differ only by case."""
    schemas: dict[str, list[tuple[str, int | None]]] = {}
    listed = con.execute(f"SELECT file_name, name, num_children FROM parquet_schema({_names(files)})")
    for file, name, children in listed.fetchall():
        schemas.setdefault(file, []).append((name, children))
    columns = {file: _parquet_columns(schema) for file, schema in schemas.items()}
    for file, names in columns.items():
        check_duplicate_columns(names, f"the file {file!r}")
    refuse_other_case(columns)
    return columns[next(iter(columns))]


def _parquet_columns(schema: Sequence[tuple[str, int | None]]) -> list[str]:
    """Return the names of columns from a schema that lists them depth-first under its root, nested fields included."""
    names, inside = [], 0
    for name, children in schema[1:]:
        if not inside:
            names.append(name)
        inside += (children or 0) - (1 if inside else 0)
    return names


def _told_by_path(key: str) -> str:
    pattern = f".*(?:^|/){re.escape(key)}=([^/]*)/"
    written = f"regexp_extract({_SQL.quote(_PATH)}, {_SQL.literal(pattern)}, 1)"
    return f"NULLIF(COALESCE(TRY(url_decode({written})), {written}), '__HIVE_DEFAULT_PARTITION__')"


def _names_of(source: Any) -> list[str]:
    """Return the columns of data in memory as it calls them itself."""
    if hasattr(source, "__arrow_c_stream__") and not hasattr(source, "columns") and not hasattr(source, "schema"):
        import pyarrow as pa

        source = pa.RecordBatchReader.from_stream(source)
    names = source if isinstance(source, dict) else getattr(getattr(source, "schema", None), "names", None)
    names = [str(name) for name in (getattr(source, "columns", ()) if names is None else names)]
    check_duplicate_columns(names, f"the {type(source).__name__}")
    return names


def _from_polars(frame: Any) -> Any:
    import polars

    if isinstance(frame, polars.LazyFrame):
        frame = frame.collect()
    # The newest Arrow has the string views that Polars itself uses: nothing is copied.
    return frame.to_arrow(compat_level=polars.CompatLevel.newest())


def _register(con: duckdb.DuckDBPyConnection, name: str, source: Any) -> None:
    try:
        con.register(name, source)
    except duckdb.Error:
        if not type(source).__module__.startswith("pandas"):
            raise
        # A frame that is a view of another one backwards, as frame[::-1] is, can be read only as a copy.
        con.register(name, source.copy())


def open_second(
    con: duckdb.DuckDBPyConnection, name: str, source: Any, files: list[str], tables: Mapping[str, str]
) -> Opened:
    """Make a source, or a table of the same DuckDB file, selectable under a name."""
    if isinstance(source, str) and source in tables:
        return publish(con, name, f"SELECT * FROM {tables[source]}", [])
    found = define(con, f"{name}_source", source, files)
    return publish(con, name, f"SELECT * FROM {name}_source", files, found)


def open_extra_tables(
    con: duckdb.DuckDBPyConnection,
    extra_tables: Mapping[str, Any],
    files: Mapping[str, list[str]],
    tables: Mapping[str, str],
) -> dict[str, Opened]:
    """Make each table that stands beside the log selectable by its name."""
    return {name: open_second(con, name, source, files[name], tables) for name, source in extra_tables.items()}


def name_no_ranker(con: duckdb.DuckDBPyConnection) -> None:
    """Let every row of a log that names no ranker have been shown by the same."""
    con.execute("ALTER VIEW log RENAME TO nameless_log")
    ranker = f"{_SQL.literal(ANY_RANKER)} AS {_SQL.quote(NATURAL)}"
    con.execute(f"CREATE TEMP VIEW log AS SELECT *, {ranker} FROM nameless_log")
