"""The command `posbias events`."""

from __future__ import annotations

import sys
from typing import Any

import click

from posbias.cli.options import (
    F,
    SectionedCommand,
    add_options,
    as_flags,
    engine_from_flags,
    engine_options,
    flag_name,
    given_parameters,
    print_findings,
    print_json,
    print_to_stderr,
)

_COLUMNS = {
    "impression": "Column of the page view, in both tables.  [default: impression_id]",
    "query": "Column of the query.  [default: query_id]",
    "docs": "Column with an array of documents in the order shown, or JSON.  [default: doc_ids, if present]",
    "doc": "Column of the document: in the clicks, and in impressions of one document a row.  [default: doc_id]",
    "position": "Column of the position in impressions of one document a row, from 0 or 1.  [default: position]",
    "ranker": "Column of the ranker that was shown, or none.  [default: ranker, if present]",
    "application": "Column of the application: some may count positions from 0, others from 1.",
    "click-impression": "Column of the page view in the clicks, if its name differs.",
    "click-doc": "Column of the document in the clicks, if its name differs.",
}
# Presets whose two exports are joined here, and presets whose query is printed, to run in the warehouse.
_JOINED_PRESETS, _PRINTED_PRESETS = ("ubi",), ("ga4", "snowplow")
_DIALECTS = ("bigquery", "snowflake", "databricks", "duckdb")


def _event_options(command: F) -> F:
    options = [
        click.argument("impressions", metavar="IMPRESSIONS"),
        click.argument("clicks", metavar="[CLICKS]", required=False),
        click.option("-o", "--output", metavar="FILE", help="Parquet file of the log to write; a folder with Spark."),
        click.option("--overwrite", is_flag=True, help="Replace an existing log."),
        click.option(
            "--preset",
            type=click.Choice([*_JOINED_PRESETS, *_PRINTED_PRESETS]),
            help="Tracker that logged the events.",
        ),
        *(click.option(f"--{name}", metavar="COLUMN", help=text) for name, text in _COLUMNS.items()),
        click.option(
            "--first",
            type=click.Choice(["0", "1"]),
            help="Number of the top position.  [default: detected from page views]",
        ),
        click.option(
            "--table", metavar="NAME", help="Table of impressions in a DuckDB file; CLICKS names its table of clicks."
        ),
        click.option(
            "--sql",
            metavar="QUERY",
            help="SQL query whose result are the impressions; it reads IMPRESSIONS as `source`.",
        ),
        click.option(
            "--clicks-sql", metavar="QUERY", help="SQL query whose result are the clicks; it reads CLICKS as `source`."
        ),
        click.option(
            "--dialect", type=click.Choice(_DIALECTS), help="SQL dialect of the printed query, for ga4 and snowplow."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print a summary and the findings as JSON."),
    ]
    return add_options(command, options)


@click.command(
    cls=SectionedCommand,
    sections={
        "Output": ("output", "overwrite", "as_json"),
        "Tracker": ("preset", "dialect"),
        "Columns of the events": (*(name.replace("-", "_") for name in _COLUMNS), "first"),
        "Source of the events": ("table", "sql", "clicks_sql"),
    },
)
@_event_options
@engine_options
def events(impressions: str, clicks: str | None, preset: str | None, **flags: Any) -> None:
    """Join tables of impressions and clicks into a click log.

    IMPRESSIONS has one row for each page view with an array of documents, or one row for each document with its
    position. CLICKS has one row for each click. With --preset ubi, they are exports of ubi_queries and ubi_events. With
    --preset ga4 or snowplow, IMPRESSIONS is the table of events in the warehouse, and the command prints the query to
    run there.
    """
    given = given_parameters(click.get_current_context())
    if preset in _PRINTED_PRESETS:
        _print_query(preset, impressions, given, flags)
    else:
        _join(impressions, clicks, preset, given, flags)


def _print_query(preset: str, table: str, given: list[str], flags: dict[str, Any]) -> None:
    """Print the query that makes a log of the tracker's table of events."""
    from posbias._text import printable_lines
    from posbias.harvesting.warehouse import events_sql

    used = ("impressions", "preset", "dialect", "query", "ranker", "impression")
    unused = ["CLICKS" if name == "clicks" else flag_name(name) for name in given if name not in used]
    if unused:
        raise click.UsageError(
            f"--preset {preset} prints a query for the single table of events in the warehouse. Leave out "
            f"{', '.join(unused)}."
        )
    query = events_sql(preset, table, **{name: flags[name] for name in used[2:]})
    if sys.stdout.isatty() and printable_lines(query) != query:
        raise click.UsageError("A name contains control characters for the terminal. Write the query to a file.")
    click.echo(query, nl=False, color=True)


def _join(impressions: str, clicks: str | None, preset: str | None, given: list[str], flags: dict[str, Any]) -> None:
    """Join two tables of events, and write the log."""
    from posbias._text import shell
    from posbias.harvesting.events import write_events
    from posbias.logs.click_log import ClickLog

    output = flags["output"]
    if clicks is None or output is None:
        raise click.UsageError("Give two tables and the file to write: posbias events IMPRESSIONS CLICKS -o FILE")
    if flags["dialect"] is not None:
        raise click.UsageError("--dialect is for --preset ga4 and snowplow, which print a query. Leave it out.")
    names = [name.replace("-", "_") for name in (*_COLUMNS, "table", "sql", "clicks-sql")]
    columns = {name: flags[name] for name in names if name in given}
    if preset is not None:
        unused = [flag_name(name) for name in columns if name not in ("ranker", "table", "sql", "clicks_sql")]
        if unused:
            raise click.UsageError(f"--preset {preset} already defines the columns. Leave out {', '.join(unused)}.")
    first = None if flags["first"] is None else int(flags["first"])
    log = ClickLog.from_events(impressions, clicks, preset=preset, first=first, **columns)  # type: ignore[arg-type]
    with engine_from_flags(flags) as engine:
        written = write_events(log, output, overwrite=flags["overwrite"], **engine)
    if flags["as_json"]:
        print_json(
            {
                "output": output,
                "rows": written.rows,
                "page_views": written.page_views,
                "clicks": written.clicks,
                "columns": list(written.columns),
                "findings": [finding.to_dict(as_flags) for finding in written.findings],
            }
        )
        return
    print_findings(written.findings)
    print_to_stderr(
        f"{written.rows:,} rows of {written.page_views:,} page views with {written.clicks:,} clicks written to {output}"
    )
    print_to_stderr(f"Next: posbias check {shell(output)}")
