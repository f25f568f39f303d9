"""What commands share: their options, the sections of their help texts, logs and engines made of flags, printing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from posbias._defaults import DEFAULT_LEVEL, DEFAULT_MAX_RANK
from posbias._text import Arguments, printable, printable_lines
from posbias.estimators import FROM_HARVESTS
from posbias.findings import MARKS, Finding, serious

if TYPE_CHECKING:
    from posbias.harvesting.harvest import Harvest
    from posbias.logs.click_log import ClickLog

F = TypeVar("F", bound=Callable[..., Any])

# ---- Sections of help texts

# Section -> names of its parameters, in the order of help texts. The sections of a command itself come before these,
# unless it lists some of these first.
_SHARED_SECTIONS: dict[str, tuple[str, ...]] = {
    "Harvest": ("max_rank", "by", "window", "weighting", "non_functional", "force"),
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
        "unit",
        "time",
    ),
    "Source of the log": ("part", "split", "table", "sql", "rankings", "rank", "duplicates"),
    "Engine": ("engine", "memory_limit", "threads"),
    "Spark": ("spark_master", "spark_conf"),
}
# A command lists these where its own sections continue after those of the log.
LOG_SECTIONS: dict[str, tuple[str, ...]] = dict.fromkeys(("Harvest", "Columns of the log", "Source of the log"), ())
# An option that no section names goes into "Output", or into "Options" where a command has no section "Output".
_OUTPUT, _OPTIONS = "Output", "Options"


class SectionedCommand(click.Command):
    """A command whose help text lists the options in sections.

    Arguments:
        sections (mapping, optional): the names of the parameters in each section of this command.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = dict(sections or {})

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, each in its section."""
        options = (param for param in self.get_params(ctx) if isinstance(param, click.Option))
        help_rows = {str(param.name): param.get_help_record(ctx) for param in options}
        in_own_sections = {name for names in self._sections.values() for name in names}
        in_any_section = in_own_sections.union(*_SHARED_SECTIONS.values())
        sections = {title: list(names) for title, names in self._sections.items()}
        sections.setdefault(_OUTPUT if _OUTPUT in sections else _OPTIONS, []).extend(
            name for name in help_rows if name not in in_any_section
        )
        sections |= {
            title: [name for name in names if name not in in_own_sections] for title, names in _SHARED_SECTIONS.items()
        }
        for title, names in sections.items():
            rows = [row for row in map(help_rows.get, names) if row is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


# ---- Options of a log

# Each option has the name of the argument of ClickLog that it becomes. Option -> default and help.
_COLUMN_OPTIONS = {
    "query": ("query_id", "Column of the query."),
    "doc": ("doc_id", "Column of the document."),
    "ranker": ("ranker", "Column of the ranker that was shown, or none."),
    "position": ("position", "Column of the position shown, counted from 1."),
    "click": ("clicked", "Column of the click: 0 or 1, true or false."),
}
# Option -> what it takes and help.
_OPTIONAL_LOG_OPTIONS = {
    "impression": ("COLUMN", "Column of the page view.  [default: impression_id, if present]"),
    "impressions": ("COLUMN", "Column of the impressions of an aggregated log; goes with --clicks."),
    "clicks": ("COLUMN", "Column of the clicks of an aggregated log; replaces --click."),
    "ranks": ("PATTERN", "Columns with the rank by each ranker, or none.  [default: rank_{ranker}, if present]"),
    "rankings": ("FILE", "Second table with query, ranker, document and rank: a file, or a table of the DuckDB file."),
    "window": ("COLUMN", "Column of a day or week: compare a document with itself only within it."),
    "time": (
        "COLUMN",
        "Column of the time, to see whether rankers overlap in it.  [default: in replay, day or the like]",
    ),
    "table": ("NAME", "Table to read from a DuckDB file."),
    "sql": ("QUERY", "SQL query whose result is the log; it reads the file as `source`."),
    "original": ("COLUMN", "Column of the rank before an experiment swapped it.  [default: original_rank, if present]"),
    "unit": ("COLUMN", "Column of the user, if rankers were drawn by user, or none.  [default: user_id, if present]"),
}
_LOG_FLAGS = (*_COLUMN_OPTIONS, *_OPTIONAL_LOG_OPTIONS, "rank", "duplicates", "part", "split")


def log_options(command: F) -> F:
    """Add the argument LOG and the options that describe it."""
    argument = click.argument("log", metavar="LOG...", nargs=-1, required=True)
    return add_options(command, [argument, *column_options(_OPTIONAL_LOG_OPTIONS)])


def optional_log_options(command: F) -> F:
    """Add the argument LOG, which may be omitted, and the options that describe it."""
    argument = click.argument("log", metavar="[LOG]...", nargs=-1)
    return add_options(command, [argument, *column_options(_OPTIONAL_LOG_OPTIONS)])


def column_options(optional: Mapping[str, tuple[str, str]]) -> list[Callable[[F], F]]:
    """Return the options that name the columns of a log.

    Arguments:
        optional (mapping): options without a default: for each its metavar and its help.
    """
    return [
        *(
            click.option(f"--{name}", default=default, show_default=True, metavar="COLUMN", help=text)
            for name, (default, text) in _COLUMN_OPTIONS.items()
        ),
        *(click.option(f"--{name}", metavar=metavar, help=text) for name, (metavar, text) in optional.items()),
        click.option(
            "--rank", default="rank", show_default=True, metavar="COLUMN", help="Column of the rank in --rankings."
        ),
        click.option(
            "--duplicates",
            type=click.Choice(["keep", "drop"]),
            default="keep",
            show_default=True,
            help="Keep or drop rows that repeat a document of the same page view.",
        ),
    ]


def part_options(command: F) -> F:
    """Add the options that split a log into a part to learn from and a part to evaluate on."""
    options = [
        click.option(
            "--part",
            type=click.Choice(["train", "test"]),
            help="Read only a part of the log: train (70%) to learn from, or test (30%) to evaluate on.",
        ),
        click.option(
            "--split",
            metavar="COLUMN",
            help="Column that decides the part of a row: the query, a user, a page view or a day.  [default: --query]",
        ),
    ]
    return add_options(command, options)


def add_options(command: F, options: Sequence[Callable[[F], F]]) -> F:
    """Return a command with options added in the given order."""
    for option in reversed(options):
        command = option(command)
    return command


# ---- Options of a harvest, an estimate and an engine

level_option = click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=DEFAULT_LEVEL,
    show_default=True,
    help="Confidence level of the intervals.",
)
force_option = click.option(
    "--force", is_flag=True, help="Continue although the log is damaged; the harvest keeps the findings."
)
beyond_option = click.option(
    "--beyond",
    type=click.Choice(["refuse", "clip", "extrapolate"]),
    default="refuse",
    show_default=True,
    help="Ranks beyond the curve: refuse them, use its last rank, or extrapolate it.",
)
max_rank_option = click.option(
    "--max-rank",
    type=click.IntRange(2),
    default=DEFAULT_MAX_RANK,
    show_default=True,
    metavar="M",
    help="Number of top ranks to use.",
)


def harvest_options(command: F) -> F:
    """Add the options of a harvest: segments and weighting."""
    by = click.option("--by", multiple=True, metavar="COLUMN", help="Column to segment by; may be repeated.")
    return add_options(command, [by, weighting_options])


def weighting_options(command: F) -> F:
    """Add the options that say how a harvest compares documents."""
    options = [
        click.option(
            "--weighting",
            type=click.Choice(["traffic", "harmonic", "min", "uniform"]),
            help="Weight of each (query, document) pair.  [default: traffic if ranks are known, else harmonic]",
        ),
        click.option(
            "--non-functional",
            type=click.Choice(["share", "refuse"]),
            default="share",
            show_default=True,
            help="Rankers that show a document at several ranks for one query: share its weight, or refuse them.",
        ),
    ]
    return add_options(command, options)


def estimator_option(*, multiple: bool = False, help: str) -> Callable[[F], F]:
    """Return the option for an estimator that is fitted on a harvest."""
    default = "all" if multiple else "cross-fit; all-pairs for a harvest of sums"
    return click.option(
        "--estimator",
        type=click.Choice(list(FROM_HARVESTS)),
        multiple=multiple,
        help=f"{help}  [default: {default}]",
    )


def max_rank_and_engine_options(command: F) -> F:
    """Add the number of ranks, the engine and its limits."""
    return add_options(command, [max_rank_option, engine_options])


def engine_options(command: F) -> F:
    """Add the engine and its limits."""
    options = [
        click.option(
            "--engine",
            type=click.Choice(["duckdb", "spark"]),
            default="duckdb",
            show_default=True,
            help="Engine that reads the log: DuckDB in this process, or Spark.",
        ),
        click.option("--memory-limit", metavar="SIZE", help="Memory of DuckDB, such as 2GB; the rest goes to disk."),
        click.option("--threads", type=click.IntRange(1), help="Number of threads of DuckDB."),
        click.option(
            "--spark-master",
            metavar="URL",
            help="Master of Spark: local[*], spark://HOST:PORT or yarn.  [default: local[*]]",
        ),
        click.option(
            "--spark-conf",
            multiple=True,
            metavar="NAME=VALUE",
            callback=_parse_settings,
            help="Setting of Spark; may be repeated.",
        ),
    ]
    return add_options(command, options)


def _parse_settings(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return NAME=VALUE settings as a mapping."""
    invalid = [value for value in values if "=" not in value]
    if invalid:
        raise click.BadParameter(f"expected NAME=VALUE, such as spark.executor.memory=4g, not {invalid[0]!r}.")
    return dict(value.split("=", 1) for value in values)


def parse_shares(text: str) -> dict[str, float]:
    """Return NAME=SHARE,NAME=SHARE as a mapping."""
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        shares = {name.strip(): float(share) for name, _, share in parts}
    except ValueError:
        shares = {}
    if "" in shares or len(shares) < len(parts):
        raise click.BadParameter(f"expected a share for each ranker, such as a=0.5,b=0.5, not {text!r}.")
    return shares


# ---- Options of the output

_PLOT_ENDINGS = (".png", ".svg", ".pdf")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def columns_option(help: str) -> Callable[[F], F]:
    """Return the option `--columns`."""
    return click.option("--columns", type=click.IntRange(1), metavar="N", help=help)


def plot_option(help: str) -> Callable[[F], F]:
    """Return the option --plot; its help begins with what is drawn."""
    return click.option("--plot", metavar="FILE", callback=_check_plot_ending, help=f"{help} as .png, .svg or .pdf.")


def _check_plot_ending(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.lower().endswith(_PLOT_ENDINGS):
        raise click.BadParameter(f"expected a file name that ends in {', '.join(_PLOT_ENDINGS)}, not {value!r}.")
    return value


def refuse_unwritable_plot(plot: str | None) -> None:
    """Refuse a path that a plot cannot be written to, before anything is computed."""
    if plot is not None:
        from posbias._files import PICTURE, writable

        writable(plot, PICTURE)


# ---- Logs, harvests and engines from flags


def harvest_from_flags(flags: dict[str, Any]) -> Harvest:
    """Harvest the log that the flags describe, and remove these flags from `flags`."""
    from posbias._optional import import_in_background
    from posbias.harvesting.harvest import harvest

    import_in_background("numpy.ma", "numpy.random")
    log = log_from_flags(flags)
    settings = {name: flags.pop(name) for name in ("max_rank", "by", "weighting", "non_functional", "force")}
    with engine_from_flags(flags) as engine:
        harvested = harvest(log, **settings, **engine)
    # Printed after the progress bar has gone: it would overwrite them.
    print_findings(harvested.findings)
    return harvested


def log_from_flags(flags: dict[str, Any]) -> ClickLog:
    """Return the log that the flags describe, and remove these flags from `flags`."""
    from posbias.harvesting.files import is_harvest
    from posbias.logs.click_log import ClickLog

    files = flags.pop("log")
    for path in files:
        if is_harvest(path):
            raise click.UsageError(f"{path!r} is a harvest, not a log. Estimate from it with: posbias estimate {path}")
    values = {name: flags.pop(name) for name in _LOG_FLAGS if name in flags}
    given = given_parameters(click.get_current_context())
    # ClickLog distinguishes columns that the user named from defaults.
    arguments = {name: value for name, value in values.items() if name in given}
    return ClickLog(files[0] if len(files) == 1 else list(files), **arguments)


def given_parameters(ctx: click.Context) -> list[str]:
    """Return the names of the parameters that were given on the command line."""
    given = [name for name in ctx.params if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    # click 8.2 also names arguments that were left out.
    return [name for name in given if ctx.params[name] != ()]


@contextmanager
def engine_from_flags(flags: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the arguments `engine` and `progress` of the library, and remove the engine's flags from `flags`.

    A progress bar is shown on a terminal, and a Spark session is kept, until the end of the `with` block.
    """
    from posbias.progress import show_progress

    name, memory_limit, threads = (flags.pop(flag) for flag in ("engine", "memory_limit", "threads"))
    master, conf = flags.pop("spark_master"), flags.pop("spark_conf")
    if name != "spark":
        from posbias.engines.duckdb import DuckDB

        if master is not None or conf:
            raise click.UsageError("--spark-master and --spark-conf need --engine spark.")
        with show_progress() as progress:
            yield {"engine": DuckDB(memory_limit, threads), "progress": progress}
        return
    from posbias.engines.spark import Spark, start_session

    if memory_limit is not None or threads is not None:
        raise click.UsageError(
            "--memory-limit and --threads are for DuckDB only. Limit Spark by its own settings, such as "
            "spark.executor.memory and spark.executor.cores, with --spark-conf NAME=VALUE."
        )
    with show_progress() as progress:
        progress("Starting Spark", 0.0)
        session = start_session(master, conf)
        try:
            yield {"engine": Spark(session), "progress": progress}
        finally:
            session.stop()


def load_harvest(flags: dict[str, Any], *, reweightable: bool, announce: bool = True) -> Harvest | None:
    """Return the harvest if LOG is one, and None if it is a log.

    Arguments:
        flags (dict): the flags of the command.
        reweightable (bool): whether --weighting may be given for a harvest.
        announce (bool, default True): whether to print the findings of the harvest.
    """
    from posbias.harvesting.files import is_harvest

    files = flags["log"]
    if not any(is_harvest(path) for path in files):
        return None
    if len(files) > 1:
        raise click.UsageError(
            f"{len(files)} files were given, and at least one is a harvest. Merge harvests first: posbias merge."
        )
    refuse_log_flags(files[0], flags, {"log", *(["weighting"] if reweightable else [])})
    from posbias.harvesting.files import load

    loaded = load(files[0], force=flags["force"])
    if announce:
        print_findings(loaded.findings)
    return loaded


def refuse_log_flags(path: str, flags: dict[str, Any], allowed: set[str]) -> None:
    """Refuse flags that were decided when a harvest was made, except the allowed ones."""
    from posbias.harvesting.files import is_export

    # The findings of an exported harvest are made only now, so --force applies.
    allowed = allowed | ({"force"} if is_export(path) else set())
    given = given_parameters(click.get_current_context())
    refused = [flag_name(name) for name in given if name in flags and name not in allowed]
    if refused:
        raise click.UsageError(
            f"{path!r} is a harvest: {', '.join(refused)} was decided when it was made. Leave it out."
        )


# ---- Flags as text

# Arguments and parameters whose flag has another name.
_FLAG_NAMES = {
    "as_csv": "csv",
    "as_json": "json",
    "conf": "spark-conf",
    "features": "feature",
    "judged": "ranking",
    "master": "spark-master",
    "thresholds": "threshold",
}


def flag_name(name: str) -> str:
    """Return the flag of an argument or parameter.

    >>> flag_name("max_rank"), flag_name("as_json")
    ('--max-rank', '--json')
    """
    return f"--{_FLAG_NAMES.get(name, name).replace('_', '-')}"


def as_flags(arguments: Arguments) -> str:
    """Return Python arguments as the flags to type in a shell.

    >>> as_flags({"query": "my query", "rankers": ["a", "b"], "non_functional": "share", "max_rank": 20})
    "--query 'my query' --rankers a --rankers b --non-functional share --max-rank 20"
    """
    words: list[str] = []
    for name, value in arguments.items():
        if isinstance(value, bool):
            words.append(flag_name(name))
        else:
            values = value if isinstance(value, list) else [str(value)]
            words += [f"{flag_name(name)} {shlex.quote(text)}" for text in values]
    return " ".join(words)


# ---- Printing


def print_json(value: Any) -> None:
    """Print a value as JSON; in ASCII where stdout cannot encode it."""
    import sys

    from posbias._text import json_text

    click.echo(json_text(value, sys.stdout.encoding or "utf-8"))


def require_curve(estimate: str | None, log: Sequence[str]) -> str:
    """Return the file of the curve; say how to make it if none is given."""
    if estimate is not None:
        return estimate
    from posbias._text import shell

    command = f"posbias estimate {' '.join(map(shell, log))} --json > curve.json"
    raise click.UsageError(f"Missing option '--estimate'. Make the file with: {command}")


def print_marked(text: str) -> None:
    """Print lines that may begin with the mark of a severity: errors in red, warnings in yellow."""
    colors = {MARKS["error"]: "red", MARKS["warning"]: "yellow"}
    for line in text.splitlines():
        click.secho(line, fg=colors.get(line[:1]))


def print_findings(findings: Iterable[Finding]) -> None:
    """Print findings of severity "warning" and above as notes on stderr."""
    for finding in serious(findings):
        print_note(printable(finding.sentence(as_flags)))


def print_note(text: str) -> None:
    """Print a note on stderr, in yellow; in a pipe too its lines are no longer than 80 characters."""
    import sys

    from posbias._text import wrap

    lines = [f"Note: {text}"]
    if not sys.stderr.isatty():
        lines = wrap(printable(lines[0]), "", "  ", breaking=False)
    print_to_stderr("\n".join(lines), fg="yellow")


def print_to_stderr(text: str, **style: Any) -> None:
    """Print text on stderr, without the control characters of file names and flags that it quotes."""
    click.secho(format_for_stderr(text), err=True, **style)


def format_for_stderr(text: str) -> str:
    """Return text with its control characters escaped, wrapped between words if stderr is a terminal."""
    import sys

    from posbias._text import terminal_width, wrap

    lines = printable_lines(text).split("\n")
    if not sys.stderr.isatty():
        return "\n".join(lines)
    width = terminal_width(sys.stderr.fileno())
    split = ((line[: len(line) - len(line.lstrip())], line.lstrip()) for line in lines)
    return "\n".join(
        part for margin, words in split for part in wrap(words, margin, f"{margin}  ", breaking=False, width=width)
    )
