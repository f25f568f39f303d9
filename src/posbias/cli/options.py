"""Options that commands share."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from posbias._text import Arguments, printable, printable_lines
from posbias._validate import DEFAULT_LEVEL, DEFAULT_MAX_RANK
from posbias.findings import Finding

if TYPE_CHECKING:
    from posbias.harvesting.harvest import Harvest
    from posbias.logs.click_log import ClickLog

# Flags that are not called as the argument they become.
_FLAGS = {"conf": "spark-conf", "features": "feature", "master": "spark-master"}
_PLOTS = (".png", ".svg", ".pdf")
# Section -> names of parameters, in the order of help texts; a command's own sections come before, unless it names some
# of these before them.
_SHARED: dict[str, tuple[str, ...]] = {
    "What is compared": ("max_rank", "by", "window", "weighting", "non_functional", "force"),
    "Columns of the log": (
        "query",
        "doc",
        "ranker",
        "position",
        "click",
        "impression",
        "impressions",
        "clicks",
        "ranks",
        "original",
    ),
    "Where the log lies": ("table", "sql", "rankings", "rank", "duplicates"),
    "Engine": ("engine", "memory_limit", "threads"),
    "Spark": ("spark_master", "spark_conf"),
}
# Those that say what a log is, each named without options of the command's own.
ABOUT_THE_LOG: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("What is compared", "Columns of the log", "Where the log lies"), ()
)
# Where an option goes that no section names.
_OUTPUT, _OTHERS = "Output", "Options"
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
level_option = click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=DEFAULT_LEVEL,
    show_default=True,
    help="Coverage of the intervals.",
)
force_option = click.option(
    "--force", is_flag=True, help="Go on though the log was found to be damaged; what was found is kept."
)


def plot_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse a picture that could not be written before anything is computed."""
    if value is None:
        return None
    if not value.lower().endswith(_PLOTS):
        raise click.BadParameter(f"a plot can be written as {', '.join(_PLOTS)}, not as {value!r}.")
    return value


class Sectioned(click.Command):
    """A command that lists its options in sections."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = dict(sections or {})

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section that the command has options of."""
        options = (param for param in self.get_params(ctx) if isinstance(param, click.Option))
        told = {str(param.name): param.get_help_record(ctx) for param in options}
        own = {name for names in self._sections.values() for name in names}
        placed = own.union(*_SHARED.values())
        sections = {title: list(names) for title, names in self._sections.items()}
        sections.setdefault(_OUTPUT if _OUTPUT in sections else _OTHERS, []).extend(
            name for name in told if name not in placed
        )
        sections |= {title: [name for name in names if name not in own] for title, names in _SHARED.items()}
        for title, names in sections.items():
            rows = [row for row in map(told.get, names) if row is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def log_options(command: F) -> F:
    """Add the argument LOG and the flags that say what its columns mean."""
    argument = click.argument("log", metavar="LOG...", nargs=-1, required=True)
    return decorated(command, [argument, *column_options(_OPTIONAL)])


def decorated(command: F, options: Sequence[Callable[[F], F]]) -> F:
    """Return a command with options added in their order."""
    for option in reversed(options):
        command = option(command)
    return command


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


def maybe_log_options(command: F) -> F:
    """Add the argument LOG, which may be left out, and the flags that say what its columns mean."""
    argument = click.argument("log", metavar="[LOG]...", nargs=-1)
    return decorated(command, [argument, *column_options(_OPTIONAL)])


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


def show_json(value: Any) -> None:
    """Print a value as JSON; in plain ASCII where stdout knows nothing else."""
    import sys

    from posbias._text import json_text

    click.echo(json_text(value, sys.stdout.encoding or "utf-8"))


def engine_options(command: F) -> F:
    """Add M, the engine and its limits."""
    max_rank = click.option(
        "--max-rank",
        type=click.IntRange(2),
        default=DEFAULT_MAX_RANK,
        show_default=True,
        metavar="M",
        help="Top ranks.",
    )
    return decorated(command, [max_rank, runner_options])


def runner_options(command: F) -> F:
    """Add the engine and its limits."""
    options = [
        click.option(
            "--engine",
            type=click.Choice(["duckdb", "spark"]),
            default="duckdb",
            show_default=True,
            help="What runs the harvest: DuckDB in this process, or Spark.",
        ),
        click.option("--memory-limit", metavar="SIZE", help="Memory of DuckDB, such as 2GB; the rest goes to disk."),
        click.option("--threads", type=click.IntRange(1), help="Threads of DuckDB."),
        click.option(
            "--spark-master",
            metavar="URL",
            help="Where Spark runs: local[*], spark://HOST:PORT, yarn.  [default: local[*]]",
        ),
        click.option(
            "--spark-conf",
            multiple=True,
            metavar="NAME=VALUE",
            callback=_settings,
            help="A setting of Spark; may be repeated.",
        ),
    ]
    return decorated(command, options)


def _settings(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return NAME=VALUE pairs as a mapping."""
    bad = [value for value in values if "=" not in value]
    if bad:
        raise click.BadParameter(f"expected NAME=VALUE, such as spark.executor.memory=4g, not {bad[0]!r}.")
    return dict(value.split("=", 1) for value in values)


def make_harvest(flags: dict[str, Any]) -> Harvest:
    """Harvest the log that the flags describe, taking their part out of the flags."""
    from posbias._optional import import_meanwhile
    from posbias.harvesting.harvest import harvest

    import_meanwhile("numpy.ma", "numpy.random")
    log = make_log(flags)
    settings = {name: flags.pop(name) for name in ("max_rank", "by", "weighting", "non_functional", "force")}
    with running(flags) as engine:
        made = harvest(log, **settings, **engine)
    # After the bar is gone, which would draw over it.
    warn(made.findings)
    return made


def make_log(flags: dict[str, Any]) -> ClickLog:
    """Return the ClickLog that the flags describe, taking them out of the flags."""
    from posbias.harvesting.files import is_harvest
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


@contextmanager
def running(flags: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what the engine's flags become as arguments of the library, taking them out of the flags.

    A Spark session lives as long as the block, and a bar shows the progress on a terminal.
    """
    from posbias.progress import bar

    name, memory_limit, threads = (flags.pop(flag) for flag in ("engine", "memory_limit", "threads"))
    master, conf = flags.pop("spark_master"), flags.pop("spark_conf")
    if name != "spark":
        from posbias.engines.duckdb import DuckDB

        if master is not None or conf:
            raise click.UsageError("--spark-master and --spark-conf go with --engine spark.")
        with bar() as progress:
            yield {"engine": DuckDB(memory_limit, threads), "progress": progress}
        return
    from posbias.engines.spark import Spark, start_session

    if memory_limit is not None or threads is not None:
        raise click.UsageError(
            "--memory-limit and --threads are DuckDB's. Spark has settings of its own, such as spark.executor.memory "
            "and spark.executor.cores: give them with --spark-conf NAME=VALUE."
        )
    with bar() as progress:
        progress("Starting Spark", 0.0)
        session = start_session(master, conf)
        try:
            yield {"engine": Spark(session), "progress": progress}
        finally:
            session.stop()


def warn(findings: Iterable[Finding]) -> None:
    """Say on stderr what the user should know of what was counted."""
    for finding in findings:
        tell(f"Note: {printable(finding.sentence(as_flags))}", fg="yellow")


def tell(text: str, **style: Any) -> None:
    """Say something on stderr; what it quotes of files and flags does not steer the terminal."""
    click.secho(for_reading(text), err=True, **style)


def for_reading(text: str) -> str:
    """Return what goes to stderr so that it steers no terminal, and on one as lines that end between words."""
    import sys

    from posbias._text import folded

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

    from posbias._text import WIDTH

    try:
        columns = os.get_terminal_size(terminal).columns
    except OSError:
        columns = 0
    # One that does not know its width says 0; and on a few columns nothing can be read.
    return min(columns, WIDTH) if columns >= WIDTH // 4 else WIDTH


def as_flags(arguments: Arguments) -> str:
    """Return arguments as one would type them in a shell.

    >>> as_flags({"query": "my query", "rankers": ["a", "b"], "non_functional": "share"})
    "--query 'my query' --rankers a --rankers b --non-functional share"
    """
    words: list[str] = []
    for name, given in arguments.items():
        flag = f"--{_FLAGS.get(name, name).replace('_', '-')}"
        if isinstance(given, bool):
            words.append(flag)
        else:
            words += [f"{flag} {shlex.quote(value)}" for value in ([given] if isinstance(given, str) else given)]
    return " ".join(words)


def load_harvest(flags: dict[str, Any], *, weighted: bool) -> Harvest | None:
    """Return the harvest if that is what was given instead of a log; its pairs may be weighted anew."""
    from posbias.harvesting.files import is_harvest

    files = flags["log"]
    if not any(is_harvest(path) for path in files):
        return None
    if len(files) > 1:
        raise click.UsageError(
            f"{len(files)} files were given, and a harvest among them. Join harvests first, with posbias merge."
        )
    refuse_decided(files[0], flags, {"log", *(["weighting"] if weighted else [])})
    from posbias.harvesting.files import load

    made = load(files[0], force=flags["force"])
    warn(made.findings)
    return made


def refuse_decided(path: str, flags: dict[str, Any], free: set[str]) -> None:
    """Refuse flags that a harvest has decided, but for those that are free."""
    from posbias.harvesting.files import is_export

    # What an export shows of its log is judged only now.
    free = free | ({"force"} if is_export(path) else set())
    unfit = [name for name in given(click.get_current_context()) if name in flags and name not in free]
    if unfit:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in unfit)
        raise click.UsageError(f"{path!r} is a harvest, for which {names} was decided when it was made. Leave it out.")
