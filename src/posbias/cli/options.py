"""The flags that several commands share, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from posbias.cli.flags import as_flags
from posbias.findings import Finding
from posbias.wording import printable, printable_lines

if TYPE_CHECKING:
    from posbias.logs.click_log import ClickLog

F = TypeVar("F", bound=Callable[..., Any])

# The columns of a log have the same names here as in ClickLog.
_COLUMNS = {
    "query": ("query_id", "The query's column."),
    "doc": ("doc_id", "The document's column."),
    "ranker": ("ranker", "The column of the ranker that was shown, or none."),
    "position": ("position", "The column of the position shown, from 1."),
    "click": ("clicked", "The column of the click: 0 or 1, true or false."),
}
_OPTIONAL = {
    "impression": ("COLUMN", "The page view's column.  [default: impression_id, if there]"),
    "impressions": ("COLUMN", "With --clicks, in place of --click: impressions of an aggregated log."),
    "clicks": ("COLUMN", "Clicks of an aggregated log."),
    "ranks": ("PATTERN", "Columns with each ranker's rank, or none.  [default: rank_{ranker}, if there]"),
    "rankings": ("FILE", "A second file, or table of a DuckDB file: query, ranker, document, rank."),
    "window": ("COLUMN", "Compare a document with itself only within a day or week: its column."),
    "table": ("NAME", "The table to read from a DuckDB file."),
    "sql": ("QUERY", "A query to read in place of the log, which it calls source."),
    "original": ("COLUMN", "Rank before an experiment's swap.  [default: original_rank, if there]"),
}
_LOG_FLAGS = (*_COLUMNS, *_OPTIONAL, "rank", "duplicates")


def log_options(command: F) -> F:
    """Add the argument LOG and the flags that say what its columns mean."""
    argument = click.argument("log", metavar="LOG...", nargs=-1, required=True)
    return decorated(command, [argument, *column_options(_OPTIONAL)])


def maybe_log_options(command: F) -> F:
    """Add the argument LOG, which may be left out, and the flags that say what its columns mean."""
    argument = click.argument("log", metavar="[LOG]...", nargs=-1)
    return decorated(command, [argument, *column_options(_OPTIONAL)])


def column_options(optional: Mapping[str, tuple[str, str]]) -> list[Callable[[F], F]]:
    """Return the flags that say what columns mean; the optional ones by name, with what they take and their help."""
    return [
        *(
            click.option(f"--{name}", default=default, show_default=True, metavar="COLUMN", help=text)
            for name, (default, text) in _COLUMNS.items()
        ),
        *(click.option(f"--{name}", metavar=metavar, help=text) for name, (metavar, text) in optional.items()),
        click.option("--rank", default="rank", show_default=True, metavar="COLUMN", help="Rank in --rankings."),
        click.option(
            "--duplicates",
            type=click.Choice(["keep", "drop"]),
            default="keep",
            show_default=True,
            help="Rows of one page view logged twice.",
        ),
    ]


def harvest_options(command: F) -> F:
    """Add the flags of a harvest."""
    by = click.option("--by", multiple=True, metavar="COLUMN", help="Segment column; may be repeated.")
    return decorated(command, [by, comparison_options])


def comparison_options(command: F) -> F:
    """Add the flags that say how a harvest compares documents."""
    options = [
        click.option(
            "--weighting",
            type=click.Choice(["traffic", "harmonic", "uniform"]),
            help="How much each pair counts.  [default: traffic if ranks are known, else harmonic]",
        ),
        click.option(
            "--non-functional",
            type=click.Choice(["share", "refuse"]),
            default="share",
            show_default=True,
            help="Rankers that show a document at several ranks for one query.",
        ),
    ]
    return decorated(command, options)


level_option = click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Coverage of the intervals.",
)
force_option = click.option(
    "--force", is_flag=True, help="Go on though the log was found to be damaged; what was found is kept."
)


def decorated(command: F, options: Sequence[Callable[[F], F]]) -> F:
    """Return a command with options added in their order."""
    for option in reversed(options):
        command = option(command)
    return command


def make_log(flags: dict[str, Any]) -> ClickLog:
    """Return the ClickLog that the flags describe, taking them out of the flags."""
    from posbias.harvesting.file_kinds import is_harvest
    from posbias.logs.click_log import ClickLog

    files = flags.pop("log")
    for path in files:
        if is_harvest(path):
            raise click.UsageError(f"{path!r} is a harvest, not a log. It is read by: posbias estimate {path}")
    told = {name: flags.pop(name) for name in _LOG_FLAGS}
    said = given(click.get_current_context())
    return ClickLog(files[0] if len(files) == 1 else list(files), **{n: v for n, v in told.items() if n in said})


def given(ctx: click.Context) -> list[str]:
    """Return the names of the parameters that stand on the command line."""
    return [name for name in ctx.params if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]


def tell(text: str, **style: Any) -> None:
    """Say something on stderr; what it quotes of files and flags does not steer the terminal."""
    click.secho(for_reading(text), err=True, **style)


def for_reading(text: str) -> str:
    """Return what goes to stderr so that it steers no terminal, and on one as lines that end between words."""
    import sys

    from posbias.tables import folded

    lines = printable_lines(text).split("\n")
    if not sys.stderr.isatty():
        return "\n".join(lines)
    width = _width(sys.stderr.fileno())
    told = ((line[: len(line) - len(line.lstrip())], line.lstrip()) for line in lines)
    return "\n".join(
        part for margin, words in told for part in folded(words, margin, f"{margin}  ", breaking=False, width=width)
    )


def _width(terminal: int) -> int:
    """Return how wide a text is to be on a terminal: as wide as that is, and no wider than is read with ease."""
    import os

    from posbias.tables import WIDTH

    try:
        columns = os.get_terminal_size(terminal).columns
    except OSError:
        columns = 0
    # One that does not know its width says 0; and on a few columns nothing can be read.
    return min(columns, WIDTH) if columns >= WIDTH // 4 else WIDTH


def warn(findings: Iterable[Finding]) -> None:
    """Say on stderr what the user should know of what was counted."""
    for finding in findings:
        tell(f"Note: {printable(finding.told(as_flags))}", fg="yellow")


def show_json(value: Any) -> None:
    """Print a value as JSON; in plain ASCII where stdout knows nothing else."""
    import sys

    from posbias.wording import json_text

    click.echo(json_text(value, sys.stdout.encoding or "utf-8"))
