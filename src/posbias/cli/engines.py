"""The flags that say what runs the harvest, and the running of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from posbias.cli.options import F, decorated, given, make_log, warn

if TYPE_CHECKING:
    from posbias.harvesting.harvests import Harvest


def _settings(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return NAME=VALUE pairs as a mapping."""
    bad = [value for value in values if "=" not in value]
    if bad:
        raise click.BadParameter(f"expected NAME=VALUE, such as spark.executor.memory=4g, not {bad[0]!r}.")
    return dict(value.split("=", 1) for value in values)


def engine_options(command: F) -> F:
    """Add M, the engine and its limits."""
    max_rank = click.option(
        "--max-rank",
        type=click.IntRange(2),
        default=10,
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
    from posbias.engines.spark import Spark
    from posbias.engines.spark.opened import start_session

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


def make_harvest(flags: dict[str, Any]) -> Harvest:
    """Harvest the log that the flags describe, taking their part out of the flags."""
    from posbias.extras import import_meanwhile
    from posbias.harvesting.counting import harvest

    import_meanwhile("numpy.ma", "numpy.random")
    log = make_log(flags)
    settings = {name: flags.pop(name) for name in ("max_rank", "by", "weighting", "non_functional", "force")}
    with running(flags) as engine:
        made = harvest(log, **settings, **engine)
    # After the bar is gone, which would draw over it.
    warn(made.findings)
    return made


def load_harvest(flags: dict[str, Any], *, weighted: bool) -> Harvest | None:
    """Return the harvest if that is what was given instead of a log; its pairs may be weighted anew."""
    from posbias.harvesting.file_kinds import is_harvest

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
    from posbias.harvesting.file_kinds import is_export

    # What an export shows of its log is judged only now.
    free = free | ({"force"} if is_export(path) else set())
    unfit = [name for name in given(click.get_current_context()) if name in flags and name not in free]
    if unfit:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in unfit)
        raise click.UsageError(f"{path!r} is a harvest, for which {names} was decided when it was made. Leave it out.")
