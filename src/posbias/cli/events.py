"""posbias events."""

from __future__ import annotations

import sys
from typing import Any

import click

from posbias.cli.options import F, Sectioned, decorated, given, runner_options, running, show_json, tell, warn

_COLUMNS = {
    "impression": "The page view, in both tables.  [default: impression_id]",
    "query": "The query.  [default: query_id]",
    "docs": "Array of documents in the order shown, or JSON in a text.  [default: doc_ids, if there]",
    "doc": "The document: in the clicks, and with one in each row.  [default: doc_id]",
    "position": "Position beside one document a row, from 0 or 1.  [default: position]",
    "ranker": "The ranker that was shown, or none.  [default: ranker, if there]",
    "application": "What positions may begin differently by, at 0 or at 1.",
    "click-impression": "The page view in the clicks, if called otherwise.",
    "click-doc": "The document in the clicks, if called otherwise.",
}
# Presets that join two exports, and those that print a query to run where the events lie.
_JOINED, _PRINTED = ("ubi",), ("ga4", "snowplow")
_DIALECTS = ("bigquery", "snowflake", "databricks", "duckdb")


def _event_options(command: F) -> F:
    options = [
        click.argument("impressions", metavar="IMPRESSIONS"),
        click.argument("clicks", metavar="[CLICKS]", required=False),
        click.option("-o", "--output", metavar="FILE", help="The log to write, as Parquet; a folder with Spark."),
        click.option("--overwrite", is_flag=True, help="Replace a log that is there already."),
        click.option(
            "--preset", type=click.Choice([*_JOINED, *_PRINTED]), help="Whose events they are, if of one of these."
        ),
        *(click.option(f"--{name}", metavar="COLUMN", help=text) for name, text in _COLUMNS.items()),
        click.option(
            "--first", type=click.Choice(["0", "1"]), help="The topmost position.  [default: as page views tell]"
        ),
        click.option(
            "--table", metavar="NAME", help="The table of impressions in a DuckDB file; CLICKS names another."
        ),
        click.option("--sql", metavar="QUERY", help="Read in place of the impressions, which it calls source."),
        click.option("--clicks-sql", metavar="QUERY", help="Read in place of the clicks, which it calls source."),
        click.option("--dialect", type=click.Choice(_DIALECTS), help="Whose SQL ga4 or snowplow is printed in."),
        click.option("--json", "as_json", is_flag=True, help="Print what was written and found as JSON."),
    ]
    return decorated(command, options)


@click.command(
    cls=Sectioned,
    sections={
        "Output": ("output", "overwrite", "as_json"),
        "Tracker": ("preset", "dialect"),
        "Columns of the events": (*(name.replace("-", "_") for name in _COLUMNS), "first"),
        "Where the events lie": ("table", "sql", "clicks_sql"),
    },
)
@_event_options
@runner_options
def events(impressions: str, clicks: str | None, preset: str | None, **flags: Any) -> None:
    """Join tables of impressions and clicks to a click log.

    IMPRESSIONS has a row for each page view with an array of documents, or a row for each document with its position;
    CLICKS a row for each click. With --preset ubi they are exports of ubi_queries and ubi_events. With --preset ga4 or
    snowplow, IMPRESSIONS is the table of events in the warehouse, and the query to run there is printed.
    """
    said = given(click.get_current_context())
    if preset in _PRINTED:
        _print(preset, impressions, said, flags)
    else:
        _join(impressions, clicks, preset, said, flags)


def _print(preset: str, table: str, said: list[str], flags: dict[str, Any]) -> None:
    from posbias._text import printable_lines
    from posbias.harvesting.warehouse import events_sql

    fit = ("impressions", "preset", "dialect", "query", "ranker", "impression")
    unfit = [f"--{name.replace('_', '-')}" for name in said if name not in fit]
    if unfit:
        raise click.UsageError(
            f"--preset {preset} prints a query for the one table of events in the warehouse: leave "
            f"{', '.join(unfit).replace('--clicks', 'CLICKS').replace('--as-json', '--json')} out."
        )
    query = events_sql(preset, table, **{name: flags[name] for name in fit[2:]})
    if sys.stdout.isatty() and printable_lines(query) != query:
        raise click.UsageError("A name holds characters that would steer the terminal. Write the query to a file.")
    click.echo(query, nl=False, color=True)


def _join(impressions: str, clicks: str | None, preset: str | None, said: list[str], flags: dict[str, Any]) -> None:
    from posbias._text import shell
    from posbias.cli.options import as_flags
    from posbias.harvesting.events import write_events
    from posbias.logs.click_log import ClickLog

    output = flags["output"]
    if clicks is None or output is None:
        raise click.UsageError(
            "Two tables and a place for the log are needed: posbias events IMPRESSIONS CLICKS -o FILE"
        )
    if flags["dialect"] is not None:
        raise click.UsageError("--dialect goes with --preset ga4 or snowplow, which print a query.")
    names = [name.replace("-", "_") for name in (*_COLUMNS, "table", "sql", "clicks-sql")]
    columns = {name: flags[name] for name in names if name in said}
    if preset is not None:
        unfit = [
            f"--{name.replace('_', '-')}" for name in columns if name not in ("ranker", "table", "sql", "clicks_sql")
        ]
        if unfit:
            raise click.UsageError(f"--preset {preset} knows what columns mean: leave {', '.join(unfit)} out.")
    first = None if flags["first"] is None else int(flags["first"])
    log = ClickLog.from_events(impressions, clicks, preset=preset, first=first, **columns)  # type: ignore[arg-type]
    with running(flags) as engine:
        made = write_events(log, output, overwrite=flags["overwrite"], **engine)
    if flags["as_json"]:
        show_json(
            {
                "output": output,
                "rows": made.rows,
                "page_views": made.page_views,
                "clicks": made.clicks,
                "columns": list(made.columns),
                "findings": [finding.to_dict(as_flags) for finding in made.findings],
            }
        )
        return
    warn(made.findings)
    tell(f"{made.rows:,} rows of {made.page_views:,} page views with {made.clicks:,} clicks written to {output}")
    tell(f"Next: posbias check {shell(output)}")
