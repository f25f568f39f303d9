"""Two tables of events as a log of an embedded DuckDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import duckdb

from posbias.engines.duckdb.connections import connected, distrust, shut
from posbias.engines.duckdb.databases import attach, choose_table, query_tables
from posbias.engines.duckdb.errors import explained
from posbias.engines.duckdb.opening import Opened, define, find_beside, find_second, open_beside, publish
from posbias.engines.duckdb.readers import literal
from posbias.engines.events import LOG_COUNTS, Joined, WrittenLog, join_events
from posbias.engines.files import file_format, find_files, is_path, one_format
from posbias.engines.headers import refuse_unreadable
from posbias.errors import LogError
from posbias.findings import Finding
from posbias.logs.click_log import ClickLog
from posbias.logs.events import Events
from posbias.progress import Progress
from posbias.sql.dialect import FRACTIONS, DuckDBDialect
from posbias.writing import scratch_folder


def open_events(
    con: duckdb.DuckDBPyConnection,
    log: ClickLog,
    events: Events,
    progress: Progress,
    beside: Mapping[str, Any],
    outputs: Sequence[str] = (),
) -> tuple[Opened, Opened | None, dict[str, Opened], Sequence[Finding]]:
    """Make the log of two tables selectable as `log`, the second table of a long one as `rankings`, others `beside`."""
    with explained():
        joined, rankings, more = _join(con, events, log.rankings, outputs, progress, beside)
        progress("Joining", 0.0)
        # A log is looked at more than once: what does not fit into memory goes to disk.
        con.execute(f"CREATE TEMP TABLE joined AS {joined.query}")
        return publish(con, "log", "SELECT * FROM joined", []), rankings, more, joined.findings


def write_events(
    events: Events, path: str, *, memory_limit: str | None, threads: int | None, progress: Progress
) -> WrittenLog:
    """Write the log of two tables as one Parquet file, streamed as it is joined."""
    d = DuckDBDialect()
    with scratch_folder() as spill, connected(spill, memory_limit, threads) as con, explained():
        joined, *_ = _join(con, events, None, (path,), progress, {})
        progress("Writing", 0.0)
        # The draft is ours: DuckDB needs none beside it, and may not write one.
        options = "FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false"
        con.execute(f"COPY ({joined.query}) TO {d.text(path)} ({options})")
        written = f"FROM read_parquet({d.text(literal(path))})"
        columns = [row[0] for row in con.execute(f"DESCRIBE SELECT * {written}").fetchall()]
        [(rows, views, clicks)] = con.execute(f"SELECT {LOG_COUNTS} {written}").fetchall()
    return WrittenLog(rows, views, int(clicks or 0), tuple(columns), joined.findings)


def _join(
    con: duckdb.DuckDBPyConnection,
    events: Events,
    rankings: Any,
    outputs: Sequence[str],
    progress: Progress,
    beside: Mapping[str, Any],
) -> tuple[Joined, Opened | None, dict[str, Opened]]:
    """Open both tables and look at them.

    As with any log, all that is to be read, and where it is to be written, is settled before anything is looked at.
    """
    files = find_files(events.impressions) if is_path(events.impressions) else []
    database = bool(files) and one_format(files) == "duckdb"
    refuse_unreadable(files)
    tables = attach(con, files) if database else {}
    tapped = find_second("clicks", events.clicks, tables)
    ranked = [] if rankings is None else find_second("rankings", rankings, tables)
    refuse_unreadable([*tapped, *ranked])
    others = find_beside(beside, tables)
    trusting = events.sql is not None or events.clicks_sql is not None
    seen = [*([] if database else files), *tapped, *ranked, *chain(*others.values()), *outputs]
    shut(con, seen, trusting=trusting)
    progress("Reading", 0.0)
    if database:
        shown = _from_database(con, files[0], tables, events)
    elif events.table is not None:
        raise LogError("table goes with a DuckDB file, and the impressions are none. Leave it out, or use sql.")
    else:
        source = define(con, "source", events.impressions, files)
        shown = publish(con, "impressions", events.sql or "SELECT * FROM source", files, source)
        _keep(con, "impressions", files)
    clicks = _open_second(con, "clicks", events.clicks, tapped, tables, events.clicks_sql)
    second = None if rankings is None else _open_second(con, "rankings", rankings, ranked, tables, None)

    if any(_may_be_nan(events, table.columns.types) for table in (shown, clicks)):
        distrust(con)

    def rows(sql: str, doing: str) -> list[tuple[Any, ...]]:
        progress(doing, 0.0)
        return con.execute(sql).fetchall()

    more = open_beside(con, beside, others, tables)
    return join_events(events, DuckDBDialect(), shown.columns, clicks.columns, rows), second, more


def _may_be_nan(events: Events, types: Mapping[str, str]) -> bool:
    """Return whether what is joined or counted by may be NaN: fractions, that is, in any column that has a meaning."""
    roles = ("impression", "query", "doc", "position", "ranker", "application", "click_impression", "click_doc")
    named = {getattr(events, role) or role for role in roles}
    # Presets know by themselves what columns mean.
    return any(type_ in FRACTIONS and (events.preset or name in named) for name, type_ in types.items())


def _from_database(con: duckdb.DuckDBPyConnection, file: str, tables: dict[str, str], events: Events) -> Opened:
    table = choose_table(file, tables, events)
    if events.sql is None:
        return publish(con, "impressions", f"SELECT * FROM {tables[table or '']}", [file])
    if table is not None and "source" not in tables:
        con.execute(f"CREATE TEMP VIEW source AS SELECT * FROM {tables[table]}")
    return publish(con, "impressions", query_tables(con, tables, events.sql), [file])


def _open_second(
    con: duckdb.DuckDBPyConnection, name: str, source: Any, files: list[str], tables: dict[str, str], sql: str | None
) -> Opened:
    """Open a table that stands beside the first: a source of its own, or a table of the same DuckDB file."""
    if isinstance(source, str) and source in tables:
        con.execute(f"CREATE TEMP VIEW {name}_source AS SELECT * FROM {tables[source]}")
        found = None
    else:
        found = define(con, f"{name}_source", source, files)
    body = f"SELECT * FROM {name}_source"
    if sql is not None:
        body = f"WITH source AS ({body})\nSELECT * FROM (\n{sql.strip().rstrip(';')}\n) chosen"
    opened = publish(con, name, body, files, found)
    _keep(con, name, files)
    return opened


def _keep(con: duckdb.DuckDBPyConnection, name: str, files: Sequence[str]) -> None:
    """Keep text as a table: it is looked at more than once, and each look would read it anew."""
    if files and file_format(files[0]) in ("csv", "json"):
        con.execute(f"CREATE TEMP TABLE {name}_kept AS SELECT * FROM {name}")
        con.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT * FROM {name}_kept")
