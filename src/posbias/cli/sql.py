"""The command `posbias sql`."""

from __future__ import annotations

import sys
from typing import Any

import click

from posbias.cli.options import (
    F,
    SectionedCommand,
    add_options,
    column_options,
    harvest_options,
    max_rank_option,
    print_note,
)

# The same names as in posbias.sql.dialects, whose import would slow down --help.
_DIALECTS = (
    "bigquery",
    "snowflake",
    "redshift",
    "databricks",
    "trino",
    "clickhouse",
    "postgres",
    "spark",
    "duckdb",
)
_OPTIONAL = {
    "impression": ("COLUMN", "Column of the page view, for --duplicates drop.  [default: impression_id]"),
    "impressions": ("COLUMN", "Column of the impressions of an aggregated log; goes with --clicks."),
    "clicks": ("COLUMN", "Column of the clicks of an aggregated log; replaces --click."),
    "ranks": ("PATTERN", "Columns with the rank by each of --rankers.  [default: rank_{ranker}]"),
    "window": ("COLUMN", "Column of a day or week: compare a document with itself only within it."),
    "unit": ("COLUMN", "Column of the user, if rankers were drawn by user."),
    "rankings": ("TABLE", "Second table with query, ranker, document and rank; goes with --rankers."),
}


def _table_options(command: F) -> F:
    options = [
        click.option(
            "--dialect",
            type=click.Choice(_DIALECTS),
            required=True,
            metavar="NAME",
            help=f"SQL dialect: {', '.join(_DIALECTS)}.",
        ),
        click.option(
            "--table",
            required=True,
            metavar="TABLE",
            help="Table of the log, such as project.dataset.table; put a part with a dot in it into double quotes.",
        ),
        *column_options(_OPTIONAL),
        click.option(
            "--rankers",
            multiple=True,
            metavar="NAME",
            help="Ranker whose ranks are known; may be repeated. Without any, ranks come from recurring queries.",
        ),
    ]
    return add_options(command, options)


@click.command(cls=SectionedCommand, sections={"Query": ("dialect", "table", "rankers")})
@_table_options
@harvest_options
@max_rank_option
def sql(**flags: Any) -> None:
    """Print the harvest as a SQL query to run in a warehouse.

    Run the query, export its whole result as CSV or Parquet, and use that file as a harvest: posbias estimate FILE. In
    the table, positions, ranks and counts must be whole numbers, and clicks numbers or booleans.
    """
    from posbias._text import printable_lines
    from posbias.harvesting.warehouse import harvest_sql

    listed = next((name for name in flags["rankers"] if "," in name), None)
    if listed is not None:
        each = " ".join(f"--rankers {name.strip()}" for name in listed.split(","))
        raise click.UsageError(f"--rankers takes one name each time, not {listed!r}. Write {each}.")
    query = harvest_sql(**flags)
    if sys.stdout.isatty() and printable_lines(query) != query:
        raise click.UsageError("A name contains control characters for the terminal. Write the query to a file.")
    # Without color=True, click would remove from names what looks like a color code.
    click.echo(query, nl=False, color=True)
    if sys.stdout.isatty():
        print_note("Run it in the warehouse, export the whole result as CSV or Parquet, then: posbias estimate FILE")
