"""Read the sources of a log with DuckDB: files (Parquet, CSV, JSON), tables of a DuckDB file, data in memory.

`open_log_tables` is the entry. It makes a source readable in two steps. `create_source_view` (for a DuckDB file:
`attach_database`) makes the source itself readable. `create_view` then makes the log, or the result of the user's query
over the source, readable as `log`, and reports its columns.

A log may come from someone else, so the connection is locked down before anything is read: DuckDB loads no extension,
reads no file but those of the log, and no query can change these settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from posbias._files import scratch_folder
from posbias._text import listed
from posbias.engines.files import (
    COMPRESSED_ENDINGS,
    Header,
    common_format,
    describe_broken_csv,
    file_format,
    find_files,
    is_path,
    partition_columns,
    read_header,
    refuse_other_case,
    refuse_unreadable,
)
from posbias.errors import LogError, PosbiasError
from posbias.findings import unusable
from posbias.logs.click_log import ClickLog, Events, Part
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

if TYPE_CHECKING:
    import duckdb

# Pattern in DuckDB's message -> code of the finding, and its remedy.
_REMEDIES = {
    r"not utf-8|invalid unicode": ("not-utf-8", "Convert the file to UTF-8."),
    r"already been consumed": (
        "unreadable",
        "A reader can be read once. Give a new one, or a table: reader.read_all().",
    ),
    r"no space left": ("disk-full", "Free space in the temporary folder, or point TMPDIR to another."),
    r"footer|magic bytes|too small|truncated|gzip|eof|end of|decompress|corrupt|snappy|zstd|checksum|invalid page"
    r"|tprotocol|don't know what type": (
        "damaged-file",
        "The file looks truncated or damaged. Copy or write it again, or leave it out.",
    ),
    r"disabled by configuration|disabled through configuration": (
        "reads-other-files",
        "A view may read only tables of its own DuckDB file. If you trust it, read it by your own query, such as "
        "sql='SELECT * FROM name', or export its rows to Parquet.",
    ),
    r"missing extension|extension\S* .*(loaded|install)": (
        "needs-extension",
        "posbias loads no extensions. In Python, read it with DuckDB and give the relation: ClickLog(duckdb.sql(...)).",
    ),
    r"duplicate key": ("duplicate-column", "Rename or leave out one of the two keys."),
    r"state machine": (
        "broken-row",
        "Write the file again with one kind of line ending, and with quotes only around whole values.",
    ),
    r"csv error": ("broken-row", "Repair or remove that row, or write the file again."),
    r"malformed json|json transform": (
        "broken-row",
        "Expected one JSON object for each row. Repair or remove that row.",
    ),
    r"failed to cast column|type mismatch|schema mismatch": (
        "mixed-files",
        "The files have different columns or types. Give files with the same columns, or convert the one that differs.",
    ),
    r"could not set lock|conflicting lock": (
        "file-locked",
        "Another process has the file open for writing. Close it there first.",
    ),
    r"syntax error|does not exist|referenced column|binder error|parser error": (
        "bad-sql",
        "Check the query given as sql. It can read `source`, or the tables of a DuckDB file by their names.",
    ),
}
_DIALECT = DuckDBDialect()
# The part of a log that evaluates rankers, in percent; the rest trains them.
_TEST_PERCENT = 30
# Files and queries cannot make DuckDB install or load anything, or read Python variables of this process.
_ISOLATION_SETTINGS = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
}
# Settings that posbias changes for single queries; they give no access to anything.
_CHANGEABLE_SETTINGS = ("perfect_ht_threshold", "disabled_optimizers")
# The name of an attached DuckDB file.
_DATABASE = "log_database"
_MAGIC = b"DUCK"
# Names of tables and views that posbias itself creates.
_OUR_TABLES = ("log", "rankings", "impressions", "clicks", "joined", "candidates")
# The column with the path of a row's file; no log has a column of this name.
_PATH_COLUMN = "posbias: the path of the file"


def open_log_tables(
    con: duckdb.DuckDBPyConnection,
    log: ClickLog,
    extra_tables: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = (),
) -> tuple[OpenedTable, OpenedTable | None, dict[str, OpenedTable]]:
    """Make a log readable as `log`, its table of rankings as `rankings`, and extra tables by name.

    The files are found first, then the connection is locked down, and only then is anything read. A view of a DuckDB
    file could otherwise read other files as soon as it is asked for its columns.
    """
    with translate_errors():
        files = find_files(log.source) if is_path(log.source) else []
        is_database = bool(files) and common_format(files) == "duckdb"
        refuse_unreadable(files)
        tables = attach_database(con, files) if is_database else {}
        rankings_files = [] if log.rankings is None else find_table_files("rankings", log.rankings, tables)
        refuse_unreadable(rankings_files)
        extra_files = find_extra_table_files(extra_tables or {}, tables)
        allowed = [*([] if is_database else files), *rankings_files, *chain(*extra_files.values()), *outputs]
        lock_down(con, allowed, trusted=log.sql is not None)
        if is_database:
            opened = _open_database_table(con, files[0], tables, log)
        elif log.table is not None:
            what = repr(files[0]) if files else f"a {type(log.source).__name__}"
            raise LogError(f"table is for a DuckDB file, and {what} is not one. Leave out table, or use sql.")
        else:
            source = create_source_view(con, "source", log.source, files)
            opened = create_view(con, "log", log.sql or "SELECT * FROM source", files, source)
        second = None if log.rankings is None else open_table(con, "rankings", log.rankings, rankings_files, tables)
        return opened, second, open_extra_tables(con, extra_tables or {}, extra_files, tables)


@dataclass(frozen=True)
class OpenedTable:
    """A view that queries can read: its files, if any, and its columns."""

    files: Sequence[str]
    columns: Columns


# ---- Connections


@contextmanager
def connect(
    memory_limit: str | None = None, threads: int | None = None, *, with_progress: bool = False
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Connect to a DuckDB in memory, with a temporary folder for data that exceeds the memory limit.

    Arguments:
        memory_limit (str, optional): such as "2GB".
        threads (int, optional): the number of threads.
        with_progress (bool, default False): whether the connection tracks the progress of its queries.
    """
    # Before the folder is made and a log is opened: a signal during this import can end the process at once. Commands
    # on a harvest file start faster without it.
    import duckdb

    with scratch_folder() as spill:
        con = duckdb.connect(":memory:", config={"temp_directory": spill, **_ISOLATION_SETTINGS})
        try:
            if memory_limit is not None:
                try:
                    # DuckDB treats a negative size, such as -1GB, as no limit.
                    con.execute("SET memory_limit = ?", [memory_limit if memory_limit.strip()[:1].isdecimal() else ""])
                except duckdb.Error:
                    raise PosbiasError(
                        f"memory_limit {memory_limit!r} is not a size. Give a size such as 2GB or 500MB."
                    ) from None
            # Ctrl-C may interrupt these statements too.
            with translate_errors():
                if threads is not None:
                    con.execute("SET threads = ?", [threads])
                # The order of rows has no meaning in a log, and preserving it costs memory.
                con.execute("SET preserve_insertion_order = false")
                _enable_progress(con, with_progress)
                # Infer the type of a column of Python objects from all rows: ids may be numbers first and text later.
                con.execute("SET pandas_analyze_sample = 1000000000")
            yield con
        finally:
            con.close()


def _enable_progress(con: duckdb.DuckDBPyConnection, enable: bool) -> None:
    """Let the connection track the progress of queries, without printing it."""
    import duckdb

    # In a notebook without ipywidgets DuckDB has no progress and rejects the setting.
    with suppress(duckdb.InvalidInputException):
        con.execute(f"SET enable_progress_bar = {enable}")
        con.execute("SET enable_progress_bar_print = false")


def lock_down(con: duckdb.DuckDBPyConnection, files: Iterable[str], *, trusted: bool) -> None:
    """Lock the settings of a connection, and its access to files.

    Arguments:
        con (DuckDBPyConnection): the connection.
        files (iterable of str): the files that it may read or write.
        trusted (bool): whether the user gave a query of their own, which may read any file.
    """
    if not trusted:
        # DuckDB checks the name when it opens a file, and the escaped pattern when it looks the file up.
        allowed = {name for file in files for name in (file, escape_glob(file))}
        con.execute(f"SET allowed_paths = [{', '.join(map(_DIALECT.literal, sorted(allowed)))}]")
        con.execute("SET enable_external_access = false")
    con.execute(f"SET allowed_configs = [{', '.join(map(_DIALECT.literal, _CHANGEABLE_SETTINGS))}]")
    con.execute("SET lock_configuration = true")


def escape_glob(name: str) -> str:
    """Return a file name that DuckDB does not read as a glob: each special character becomes a class of one."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def ignore_file_statistics(con: duckdb.DuckDBPyConnection) -> None:
    """Ignore the minimum and maximum that Parquet files store for each column.

    They leave out NaN, but DuckDB assumes that every value lies between them, so it would treat a NaN as if it did too.
    Queries get a little slower.
    """
    con.execute("SET disabled_optimizers = 'statistics_propagation'")


def use_file_statistics(con: duckdb.DuckDBPyConnection) -> None:
    """Use the stored minimum and maximum of columns again."""
    con.execute("RESET disabled_optimizers")


# ---- Errors


@contextmanager
def translate_errors(schema: Schema | None = None) -> Iterator[None]:
    """Raise the errors of DuckDB as errors of posbias, with a remedy.

    Arguments:
        schema (Schema, optional): the schema of the log, to recognise counts whose sum overflows.
    """
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise PosbiasError(
            "The memory limit is too small for this log, or the disk for temporary files is full. Raise memory_limit, "
            f"lower threads, or free space in the temporary folder. ({error_summary(error)})"
        ) from None
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except duckdb.Error as error:
        text = str(error).lower()
        full = re.search(r'write file \\*"([^"\\]*)[/\\]\.posbias-\w+\.part\\*"', str(error))
        if full and re.search("no space left|file too large|quota", text):
            raise PosbiasError(
                f"The disk of the folder {full[1]!r} is full, so the result cannot be written there. Free space, or "
                "write it elsewhere."
            ) from None
        if schema is not None and schema.aggregated and re.search("out of range|overflow in", text):
            raise counts_overflow(schema) from None
        code, remedy = next(
            (problem for pattern, problem in _REMEDIES.items() if re.search(pattern, text)),
            ("unreadable", "Open it with DuckDB to see what is wrong, or write it again as Parquet."),
        )
        raise unusable(code, f"The log cannot be read: {error_summary(error)}", remedy) from None
    except RuntimeError as error:
        # DuckDB raises this after Ctrl-C.
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from None
        raise


def error_summary(error: Exception) -> str:
    """Return the message of an error, without its class, its advice and its full stop.

    >>> error_summary(ValueError("Binder Error: No such thing.\\nLINE 1: SELECT"))
    'No such thing'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    first = re.sub(r"^[A-Z][A-Za-z ]+ Error: ", "", lines[0]).rstrip(".!")
    if "state machine" in first:
        file = next((line.removeprefix("file = ") for line in lines if line.startswith("file = ")), "")
        return f"{file!r} {describe_broken_csv(file)}"
    if not first.startswith("CSV Error"):
        return first
    # The lines are "CSV Error on Line: 3", "Original Line: ..." and then the reason.
    line_number = re.sub(r"\D+", "", first)
    file = next((line.removeprefix("file = ") for line in lines if line.startswith("file = ")), "")
    row = next((line.removeprefix("Original Line: ") for line in lines if line.startswith("Original Line")), "")
    reason = lines[2].rstrip(".") if len(lines) > 2 else "it is not CSV"
    reason = re.sub(r"Expected Number of Columns: (\d+) Found: (\d+)", r"\2 values for \1 columns", reason)
    return f"line {line_number} of {file!r} is {row[:80]!r}: {reason[0].lower()}{reason[1:]}"


# ---- Views of tables


def create_view(
    con: duckdb.DuckDBPyConnection, name: str, sql: str, files: Sequence[str], source: SourceView | None = None
) -> OpenedTable:
    """Create a view of a query, and return its columns with their original names.

    Arguments:
        con (DuckDBPyConnection): the connection.
        name (str): the name of the view.
        sql (str): the query.
        files (sequence of str): the files that the query reads.
        source (SourceView, optional): the source that the query reads.
    """
    body = sql.strip().rstrip(";")
    statements = len(con.extract_statements(body))
    if statements > 1:
        raise unusable("bad-sql", f"The query given as sql has {statements} statements", "Give a single SELECT.")
    described = [row[0] for row in con.execute(f"DESCRIBE {body}").fetchall()]
    check_duplicate_columns(described, "the result of the query")
    con.execute(f"CREATE TEMP VIEW {name} AS {_enums_as_text(con, body)}")
    # If two names differ only by case, DuckDB appends a number to one of them in the view.
    view_types = {row[0]: row[1] for row in con.execute(f"DESCRIBE {name}").fetchall()}
    original_names = {} if source is None else _renamed_columns(con, source)
    names: dict[str, str] = {}
    for column, view_column in zip(described, view_types, strict=True):
        original = original_names.get(column, column)
        names[column if original in described else original] = view_column
    types = {original: view_types[column] for original, column in names.items()}
    in_paths = frozenset(() if source is None else source.in_paths) & types.keys()
    return OpenedTable(files, Columns(types, names, in_paths))


def _enums_as_text(con: duckdb.DuckDBPyConnection, body: str) -> str:
    """Return a query that casts ENUM columns to text: DuckDB stores them as numbers that differ between files."""
    inside = f"FROM (\n{body}\n) s"
    columns = con.execute(f"DESCRIBE SELECT * {inside}").fetchall()
    enums = [_DIALECT.quote(row[0]) for row in columns if row[1].startswith("ENUM")]
    return f"SELECT * REPLACE ({', '.join(f'{_DIALECT.as_text(c)} AS {c}' for c in enums)}) {inside}" if enums else body


def _renamed_columns(con: duckdb.DuckDBPyConnection, source: SourceView) -> dict[str, str]:
    """Return the original names of columns that DuckDB renamed because they differ from others only by case."""
    columns = [row[0] for row in con.execute(f"DESCRIBE {source.name}").fetchall()]
    return {
        column: original
        for column, original in zip(columns, source.originals, strict=False)
        if column != original and re.fullmatch(re.escape(original) + r"(_\d+)+", column, re.IGNORECASE)
    }


@dataclass(frozen=True)
class SourceView:
    """A view of a source: its name, its columns as the source names them, and columns that come from folder names."""

    name: str
    originals: Sequence[str]
    in_paths: tuple[str, ...] = ()


def create_source_view(con: duckdb.DuckDBPyConnection, name: str, source: Any, files: list[str]) -> SourceView:
    """Create a view of files or of data in memory."""
    import duckdb

    if files:
        query = read_files(con, files)
        con.execute(f"CREATE TEMP VIEW {name} AS {query.select}")
        return SourceView(name, query.originals, query.in_paths)
    if isinstance(source, duckdb.DuckDBPyRelation):
        check_duplicate_columns(source.columns, "the relation")
        source = source.to_arrow_reader()
    if type(source).__name__ == "RecordBatchReader":
        # It can be read only once, and a log is read more than once. The table may spill to disk.
        con.register("stream", source)
        con.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM stream")
        con.unregister("stream")
        return SourceView(name, _column_names(source))
    kind = type(source).__name__
    try:
        if type(source).__module__.startswith("polars"):
            source = _from_polars(source)
        if kind == "RecordBatch":
            import pyarrow as pa

            source = pa.Table.from_batches([source])
        _register(con, name, source)
        return SourceView(name, _column_names(source))
    except PosbiasError:
        raise
    # The source may be any object, and a lazy frame may raise any error when it is read.
    except Exception as error:
        # That a type of Python itself is no table needs no reason.
        reason = "" if type(source).__module__ == "builtins" else f" ({error_summary(error)})"
        raise LogError(
            f"A log cannot be read from a {kind}{reason}. Give a path, a glob or a folder, a DuckDB relation, or a "
            "pandas, Polars or Arrow table with only the columns of the log."
        ) from None


def open_table(
    con: duckdb.DuckDBPyConnection, name: str, source: Any, files: list[str], tables: Mapping[str, str]
) -> OpenedTable:
    """Make a source, or a table of the attached DuckDB file, readable under a name."""
    if isinstance(source, str) and source in tables:
        return create_view(con, name, f"SELECT * FROM {tables[source]}", [])
    view = create_source_view(con, f"{name}_source", source, files)
    return create_view(con, name, f"SELECT * FROM {name}_source", files, view)


def find_table_files(name: str, source: Any, tables: Mapping[str, str]) -> list[str]:
    """Return the files of a second table; none if it is in memory or a table of the log's DuckDB file."""
    if (isinstance(source, str) and source in tables) or not is_path(source):
        return []
    files = find_files(source)
    if file_format(files[0]) == "duckdb":
        raise LogError(
            f"The {name} cannot be read from a second DuckDB file ({files[0]!r}). Put them into a table of the log's "
            "DuckDB file and give its name, or export them to Parquet.",
            {name: "TABLE"},
        )
    return files


def open_extra_tables(
    con: duckdb.DuckDBPyConnection,
    extra_tables: Mapping[str, Any],
    files: Mapping[str, list[str]],
    tables: Mapping[str, str],
) -> dict[str, OpenedTable]:
    """Make each extra table readable by its name."""
    return {name: open_table(con, name, source, files[name], tables) for name, source in extra_tables.items()}


def find_extra_table_files(extra_tables: Mapping[str, Any], tables: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the files of each extra table."""
    files_by_table: dict[str, list[str]] = {}
    for name, source in extra_tables.items():
        in_log = isinstance(source, str) and source in tables
        files = files_by_table[name] = [] if in_log or not is_path(source) else find_files(source)
        if files and file_format(files[0]) == "duckdb":
            raise LogError(
                f"A table cannot be read from a second DuckDB file ({files[0]!r}). Put it into the log's DuckDB file "
                "and give its name, or export it to Parquet."
            )
        refuse_unreadable(files)
    return files_by_table


def add_ranker_column(con: duckdb.DuckDBPyConnection) -> None:
    """Add a ranker column with one value to a log that names no rankers."""
    con.execute("ALTER VIEW log RENAME TO log_without_ranker")
    ranker = f"{_DIALECT.literal(ANY_RANKER)} AS {_DIALECT.quote(NATURAL)}"
    con.execute(f"CREATE TEMP VIEW log AS SELECT *, {ranker} FROM log_without_ranker")


def keep_part(con: duckdb.DuckDBPyConnection, part: Part, column: str) -> None:
    """Keep the rows of a log that belong to a part, by a hash of a column.

    Values are hashed as text, so that a log has the same parts as CSV and as Parquet. The lowest eight bits are those
    of buckets: parts made of them would have few buckets each.
    """
    value = f"COALESCE({_DIALECT.as_text(_DIALECT.quote(column))}, '')"
    in_test = f"({_DIALECT.hash(value)} >> 8) % 100 < {_TEST_PERCENT}"
    con.execute("ALTER VIEW log RENAME TO whole_log")
    con.execute(f"CREATE TEMP VIEW log AS SELECT * FROM whole_log WHERE {'' if part == 'test' else 'NOT '}({in_test})")
    if not con.execute("SELECT 1 FROM log LIMIT 1").fetchall():
        raise LogError(
            f"The part {part!r} of the log has no rows: column {column!r} has too few values to be split. Split by a "
            "column with more values, such as the user or the page view (split), or use more data."
        )


# ---- Files: CSV, JSON and Parquet


def read_files(con: duckdb.DuckDBPyConnection, files: Sequence[str]) -> FileQuery:
    """Return a query that reads files of one format as one table, with columns matched by name.

    Folder names such as `day=2026-01-01` add columns, unless the files have these columns themselves.
    """
    file_kind = common_format(files)
    refuse_unreadable(files)
    _refuse_question_mark_in_path(files)
    partitions = partition_columns(files)
    # DuckDB's own handling of such folders would replace the columns of the files.
    options = "hive_partitioning = false" + (f", filename = {_DIALECT.literal(_PATH_COLUMN)}" if partitions else "")
    if file_kind == "csv":
        select, originals = _read_csv(files, options)
    elif file_kind == "json":
        select, originals = _read_json(con, files, options), []
    else:
        select, originals = _read_parquet(con, files, options)
    if not partitions:
        return FileQuery(select, originals)
    inside = {row[0].lower() for row in con.execute(f"DESCRIBE {select}").fetchall()}
    in_paths = tuple(key for key in partitions if key.lower() not in inside)
    values = "".join(f", {_path_value(key)} AS {_DIALECT.quote(key)}" for key in in_paths)
    return FileQuery(
        f"SELECT * EXCLUDE ({_DIALECT.quote(_PATH_COLUMN)}){values} FROM (\n{select}\n) files", originals, in_paths
    )


@dataclass(frozen=True)
class FileQuery:
    """A SELECT that reads files, the columns as the first file names them, and columns that come from folder names."""

    select: str
    originals: list[str]
    in_paths: tuple[str, ...] = ()


def _refuse_question_mark_in_path(files: Sequence[str]) -> None:
    """Refuse compressed files with a question mark in the path: DuckDB reads what follows as a URL query."""
    for name in files:
        if "?" in name and name.lower().endswith(COMPRESSED_ENDINGS):
            raise unusable(
                "unreadable",
                f"The compressed file {name!r} has a question mark in its path, which hides its ending from DuckDB",
                "Rename the file or its folder, or unpack it.",
            )


def _file_list(files: Sequence[str]) -> str:
    return "[" + ", ".join(_DIALECT.literal(escape_glob(name)) for name in files) + "]"


def _path_value(key: str) -> str:
    """Return the SQL of the value that the folder `key=value` in the path of a row's file has."""
    pattern = f".*(?:^|/){re.escape(key)}=([^/]*)/"
    written = f"regexp_extract({_DIALECT.quote(_PATH_COLUMN)}, {_DIALECT.literal(pattern)}, 1)"
    return f"NULLIF(COALESCE(TRY(url_decode({written})), {written}), '__HIVE_DEFAULT_PARTITION__')"


def _read_csv(files: Sequence[str], options: str) -> tuple[str, list[str]]:
    """Return a SELECT that reads CSV files, with one part for each distinct header, and the columns of the first file.

    The columns come from the header, because DuckDB's own detection misreads a file with a single odd row. Values stay
    text ("007" is not 7), so that an invalid value becomes a finding instead of a failed read.
    """
    groups: dict[Header, list[str]] = {}
    for name in files:
        groups.setdefault(read_header(name), []).append(name)
    refuse_other_case({group[0]: header.names for header, group in groups.items()})
    select = " UNION ALL BY NAME ".join(
        f"SELECT * FROM read_csv({_file_list(group)}, delim = {_DIALECT.literal(header.delimiter)}, "
        f"columns = {_csv_columns(header.names)}, header = true, auto_detect = false, quote = '\"', escape = '\"', "
        f"{_new_line_option(header)}{options})"
        for header, group in groups.items()
    )
    return select, list(next(iter(groups)).names)


def _csv_columns(header: Sequence[str]) -> str:
    """Return the columns of a header for DuckDB's `read_csv`, with names made unique as DuckDB does it."""
    taken: set[str] = set()
    parts = []
    for place, column in enumerate(header):
        name = base = column or f"column{place}"
        number = 0
        while name.lower() in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name.lower())
        parts.append(f"{_DIALECT.literal(name)}: 'VARCHAR'")
    return "{" + ", ".join(parts) + "}"


def _new_line_option(header: Header) -> str:
    """Return the option for the line ending: DuckDB would use that of the first line break, even one in quotes."""
    escaped = header.ending.encode("unicode_escape").decode()
    return f"new_line = {_DIALECT.literal(escaped)}, " if header.ending else ""


def _read_json(con: duckdb.DuckDBPyConnection, files: Sequence[str], options: str) -> str:
    """Return a SELECT that reads JSON files, with columns detected from all rows and not only from the first ones.

    A key may first appear late, such as a rank that is left out if there is none, and an id may be a number in one row
    and text in another. Dates and UUIDs stay text.
    """
    source = f"{_file_list(files)}, union_by_name = true, hive_partitioning = false"
    with translate_errors():
        detected = con.execute(
            f"DESCRIBE SELECT * FROM read_json({source}, sample_size = -1, maximum_sample_files = {len(files)})"
        ).fetchall()
    if [row[0] for row in detected] == ["json"]:
        raise unusable(
            "not-a-log", f"{files[0]!r} has no JSON objects", "Expected JSON lines: one object for each row."
        )
    _refuse_keys_that_differ_by_case(con, files, [row[0] for row in detected])
    kept_types = INTEGERS | {"BOOLEAN", "DOUBLE"}
    columns = ", ".join(
        f"{_DIALECT.literal(name)}: '{type_ if type_ in kept_types else 'VARCHAR'}'" for name, type_, *_ in detected
    )
    return f"SELECT * FROM read_json({_file_list(files)}, union_by_name = true, columns = {{{columns}}}, {options})"


def _refuse_keys_that_differ_by_case(
    con: duckdb.DuckDBPyConnection, files: Sequence[str], columns: Sequence[str]
) -> None:
    """Refuse JSON keys that differ only by case: DuckDB appends a number to one, and then finds no value for it."""
    names = {name.lower() for name in columns}
    numbered = [name for name in columns if (match := re.fullmatch(r"(.+)_\d+", name)) and match[1].lower() in names]
    if not numbered:
        return
    keys = con.execute(
        f"SELECT DISTINCT UNNEST(json_keys(json)) FROM read_json_objects({_file_list(files)}, format = 'auto')"
    ).fetchall()
    equal_keys = {key for (key,) in keys if sum(key.lower() == other.lower() for (other,) in keys) > 1}
    if equal_keys:
        raise names_differ_by_case(sorted(equal_keys), f"{files[0]!r}" if len(files) == 1 else "the log")


def _read_parquet(con: duckdb.DuckDBPyConnection, files: Sequence[str], options: str) -> tuple[str, list[str]]:
    """Return a SELECT that reads Parquet files, and the columns as the first file names them."""
    # DuckDB renames one of two columns that differ only by case, so the original names come from the schemas. Its
    # threads report the files in any order.
    schemas: dict[str, list[tuple[str, int | None]]] = {}
    rows = con.execute(f"SELECT file_name, name, num_children FROM parquet_schema({_file_list(files)})").fetchall()
    for file, name, children in rows:
        schemas.setdefault(file, []).append((name, children))
    order = {file: number for number, file in enumerate(files)}
    columns = {
        file: _top_level_columns(schemas[file])
        for file in sorted(schemas, key=lambda file: (order.get(file, len(files)), file))
    }
    for file, names in columns.items():
        check_duplicate_columns(names, f"the file {file!r}")
    refuse_other_case(columns)
    select = f"SELECT * FROM read_parquet({_file_list(files)}, union_by_name = true, {options})"
    return select, columns[next(iter(columns))]


def _top_level_columns(schema: Sequence[tuple[str, int | None]]) -> list[str]:
    """Return the top-level columns of a Parquet schema, which lists the root and all nested fields depth-first."""
    names, pending = [], 0
    for name, children in schema[1:]:
        if not pending:
            names.append(name)
        pending += (children or 0) - (1 if pending else 0)
    return names


# ---- DuckDB files


def attach_database(con: duckdb.DuckDBPyConnection, files: list[str]) -> dict[str, str]:
    """Attach a DuckDB file and return the qualified name of each table and view.

    The keys are the names that users write: `name`, or `schema.name` outside the schema main. The file does not become
    the current database, so that its macros cannot replace functions.
    """
    if len(files) > 1:
        raise LogError(
            f"{len(files)} DuckDB files were given, but a log is a table or a query of a single file. Give one file."
        )
    with open(files[0], "rb") as file:
        head = file.read(12 + len(_MAGIC))
    if head[8:12] != _MAGIC:
        kind = "a SQLite database" if head.startswith(b"SQLite format 3") else "another kind of file"
        raise unusable(
            "not-a-log",
            f"The file {files[0]!r} is not a DuckDB database but {kind}",
            "Export the table of the log to Parquet or CSV, or rename the file to end as its format does.",
        )
    con.execute(f"ATTACH {_DIALECT.literal(files[0])} AS {_DATABASE} (TYPE duckdb, READ_ONLY)")
    rows = con.execute(
        f"SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = '{_DATABASE}' UNION ALL "
        f"SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = '{_DATABASE}' AND NOT internal"
    ).fetchall()
    return {
        name if schema == "main" else f"{schema}.{name}": ".".join(
            [_DATABASE, _DIALECT.quote(schema), _DIALECT.quote(name)]
        )
        for schema, name in sorted(rows, key=lambda row: (row[0] != "main", row))
    }


def _open_database_table(
    con: duckdb.DuckDBPyConnection, file: str, tables: Mapping[str, str], log: ClickLog
) -> OpenedTable:
    """Make a table of a DuckDB file, or the user's query over its tables, readable as `log`."""
    table = choose_table(file, tables, log)
    rows = f"SELECT * FROM {tables[table]}" if table is not None else ""
    if log.sql is None:
        return create_view(con, "log", rows, [file])
    if table is not None and "source" not in tables:
        con.execute(f"CREATE TEMP VIEW source AS {rows}")
    return create_view(con, "log", expose_tables(con, tables, log.sql), [file])


def choose_table(file: str, tables: Mapping[str, str], log: ClickLog | Events) -> str | None:
    """Return the table of a DuckDB file that is the log, or None if the user gave a query instead."""
    table = next(iter(tables)) if log.table is None and len(tables) == 1 else log.table
    if table is None and log.sql is None:
        raise unusable(
            "ambiguous-table",
            f"{file!r} has {len(tables)} tables: {listed(tables)}",
            "Name the table of the log, or give a query (sql).",
            count=len(tables),
            arguments={"table": "NAME"},
        )
    if table is not None and table not in tables:
        closest = guess_column("", table, tables)
        raise unusable(
            "unknown-table",
            f"There is no table {table!r} in {file!r}",
            (f"Did you mean {closest!r}? " if closest else "") + f"Its tables are: {listed(tables)}. Name one of them.",
            arguments={"table": closest or "NAME"},
        )
    return table


def expose_tables(con: duckdb.DuckDBPyConnection, tables: Mapping[str, str], sql: str) -> str:
    """Let a query use the tables of the attached file by their plain names, and return the query to run."""
    schemas = con.execute(f"SELECT schema_name FROM duckdb_schemas() WHERE database_name = '{_DATABASE}'").fetchall()
    for (schema,) in schemas:
        con.execute(f"CREATE SCHEMA IF NOT EXISTS {_DIALECT.quote(schema)}")
    for name in tables.values():
        con.execute(f"CREATE VIEW {name.removeprefix(f'{_DATABASE}.')} AS SELECT * FROM {name}")
    shadowed = [
        f"{_DIALECT.quote(name)} AS (SELECT * FROM {tables[name]})" for name in tables if name.lower() in _OUR_TABLES
    ]
    body = sql.strip().rstrip(";")
    return f"WITH {', '.join(shadowed)}\nSELECT * FROM (\n{body}\n) chosen" if shadowed else body


# ---- Data in memory


def _register(con: duckdb.DuckDBPyConnection, name: str, source: Any) -> None:
    import duckdb

    try:
        con.register(name, source)
    except duckdb.Error:
        if not type(source).__module__.startswith("pandas"):
            raise
        # DuckDB can read a reversed view of a frame, such as frame[::-1], only as a copy.
        con.register(name, source.copy())


def _from_polars(frame: Any) -> Any:
    import polars

    if isinstance(frame, polars.LazyFrame):
        frame = frame.collect()
    # The newest Arrow has the string views of Polars, so nothing is copied.
    return frame.to_arrow(compat_level=polars.CompatLevel.newest())


def _column_names(source: Any) -> list[str]:
    """Return the original column names of data in memory."""
    if hasattr(source, "__arrow_c_stream__") and not hasattr(source, "columns") and not hasattr(source, "schema"):
        import pyarrow as pa

        source = pa.RecordBatchReader.from_stream(source)
    names = source if isinstance(source, dict) else getattr(getattr(source, "schema", None), "names", None)
    names = [str(name) for name in (getattr(source, "columns", ()) if names is None else names)]
    check_duplicate_columns(names, f"the {type(source).__name__}")
    return names
