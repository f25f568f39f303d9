"""posbias sql."""

from __future__ import annotations

import sys
from typing import Any

import click

from posbias._validate import DEFAULT_MAX_RANK
from posbias.cli.options import F, Sectioned, column_options, decorated, harvest_options, tell

# The names of the registry in posbias.sql.warehouses, which is imported only when used.
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
    "impression": ("COLUMN", "The page view's column, for --duplicates drop.  [default: impression_id]"),
    "impressions": ("COLUMN", "With --clicks, in place of --click: impressions of an aggregated log."),
    "clicks": ("COLUMN", "Clicks of an aggregated log."),
    "ranks": ("PATTERN", "Columns with each ranker's rank, with --rankers.  [default: rank_{ranker}]"),
    "window": ("COLUMN", "Compare a document with itself only within a day or week: its column."),
    "rankings": ("TABLE", "A second table, with --rankers: query, ranker, document, rank."),
}


def _table_options(command: F) -> F:
    options = [
        click.option(
            "--dialect",
            type=click.Choice(_DIALECTS),
            required=True,
            metavar="NAME",
            help=f"Whose SQL: {', '.join(_DIALECTS)}.",
        ),
        click.option(
            "--table",
            required=True,
            metavar="TABLE",
            help="The log, such as project.dataset.table; a part that holds a dot stands in double quotes.",
        ),
        *column_options(_OPTIONAL),
        click.option(
            "--rankers",
            multiple=True,
            metavar="NAME",
            help="A ranker whose ranks are known; repeat for each. Without any, recurring queries tell the ranks.",
        ),
    ]
    return decorated(command, options)


@click.command(cls=Sectioned, sections={"Query": ("dialect", "table", "rankers")})
@_table_options
@harvest_options
@click.option(
    "--max-rank", type=click.IntRange(2), default=DEFAULT_MAX_RANK, show_default=True, metavar="M", help="Top ranks."
)
def sql(**flags: Any) -> None:
    """Print the harvest as a query to run in a warehouse.

    Its whole result, exported as CSV or Parquet, is a harvest: posbias estimate FILE. Positions, ranks and counts must
    be whole numbers in the table, and a click a number or a boolean.
    """
    from posbias._text import printable_lines
    from posbias.harvesting.warehouse import harvest_sql

    query = harvest_sql(**flags)
    if sys.stdout.isatty() and printable_lines(query) != query:
        raise click.UsageError("A name holds characters that would steer the terminal. Write the query to a file.")
    # In a file click would leave out of a name what looks like a color.
    click.echo(query, nl=False, color=True)
    if sys.stdout.isatty():
        note = "Run it in the warehouse, export the whole result as CSV or Parquet, then: posbias estimate FILE"
        tell(f"Note: {note}", fg="yellow")
