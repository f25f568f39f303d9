"""posbias report."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import click

from posbias.cli.options import (
    ABOUT_THE_LOG,
    Sectioned,
    as_flags,
    engine_options,
    force_option,
    given,
    harvest_options,
    level_option,
    log_options,
    make_log,
    refuse_decided,
    running,
    tell,
)
from posbias.estimators import FROM_HARVESTS

# As the registry has them, whose import would take longer than any help text may.


@click.command(
    cls=Sectioned,
    sections={
        "Report": ("estimator", "by", "max_rank", "level", "history"),
        **ABOUT_THE_LOG,
        "Output": ("output",),
    },
)
@log_options
@click.option("-o", "--output", required=True, metavar="FILE", help="The HTML file to write.")
@click.option(
    "--estimator",
    type=click.Choice(list(FROM_HARVESTS)),
    help="Of the curve.  [default: cross-fit; all-pairs for a harvest of sums]",
)
@level_option
@click.option("--history", metavar="FILE", help="The curves of many days, as posbias history keeps them.")
@harvest_options
@force_option
@engine_options
def report(output: str, estimator: str | None, level: float, history: str | None, **flags: Any) -> None:
    """Write what there is to know of a curve as one HTML page to send to a colleague.

    LOG is a click log, of which the clicks of each page view are looked at too, or a harvest; two harvests are compared
    with each other. The page needs no network, and holds no row of the log: the curve, whether to trust it, the
    evidence, what to do with it, how it was computed, and its numbers.
    """
    from dataclasses import replace

    from posbias._files import REPORT, refuse_other, writable
    from posbias._optional import import_meanwhile, require
    from posbias.engines.files import refuse_overwriting

    # Before a log is counted for a page that could not be made.
    require("jinja2", "Reports need")
    ctx = click.get_current_context()
    files, said = flags["log"], _command(ctx)
    writable(output)
    refuse_overwriting(output, [*files, *filter(None, [flags["rankings"], history])])
    refuse_other(output, REPORT)
    sources = _harvests(files, flags)
    from posbias.reporting.report import report as make_report

    import_meanwhile("posbias.reporting.page", "jinja2")
    settings: dict[str, Any] = {"estimator": estimator, "level": level, "history": history, "command": said}
    if sources:
        made = make_report(*sources, force=flags["force"], **settings)
    else:
        log = make_log(flags)
        with running(flags) as engine:
            made = make_report(log, **settings, **flags, **engine)
    made = replace(made, steps=_next_steps(ctx, harvests=bool(sources)))
    made.save(output, as_flags)
    found = made.parts[0].sentences[1] if made.comparison is None else made.comparison.verdict
    tell(f"Report written to {output}. {found}")


def _command(ctx: click.Context) -> str:
    """Return the command as one would type it again, without the values of Spark's settings: some are secrets."""
    from posbias._text import shell

    files = " ".join(map(shell, ctx.params["log"]))
    said = _flags(ctx, {*ctx.params} - {"log", "output"})
    return " ".join(filter(None, [f"posbias report {files} -o {shell(ctx.params['output'])}", said]))


def _flags(ctx: click.Context, names: Collection[str]) -> str:
    """Return some of the given flags as one would type them, without the values of Spark's settings."""
    told: dict[str, Any] = {}
    for name in given(ctx):
        value = ctx.params[name]
        if name == "spark_conf":
            value = [f"{key}=..." for key in value]
        if name in names:
            told[name] = list(map(str, value)) if isinstance(value, list | tuple) else value
    return as_flags({name: value if isinstance(value, bool | list) else str(value) for name, value in told.items()})


def _harvests(files: tuple[str, ...], flags: dict[str, Any]) -> tuple[str, ...]:
    """Return the harvests that were given, none where it is a log; refuse what is neither one log nor two harvests."""
    from posbias.harvesting.files import is_harvest

    found = tuple(path for path in files if is_harvest(path))
    if len(files) > 2 or (len(files) == 2 and len(found) < 2):
        raise click.UsageError(
            f"{len(files)} files were given, {len(found)} of them harvests. A report is of one log or harvest, or of "
            "two harvests to compare: harvest each first, with posbias harvest. A log in several files is named by "
            "its folder, or by a pattern in quotes."
        )
    for path in found:
        refuse_decided(path, flags, {"log"})
    return found


def _next_steps(ctx: click.Context, *, harvests: bool) -> tuple[dict[str, str], ...]:
    """Return what to type next for each file, by what it is for, with those of the given flags that a command takes.

    Without them it would read columns that the log does not have, or make another curve.
    """
    from importlib import import_module

    from posbias._text import shell
    from posbias.reporting.report import PURPOSES

    commands = {name: getattr(import_module(f"posbias.cli.{name}"), name) for name in PURPOSES}
    takes = {name: {param.name for param in made.params} - {"log", "output"} for name, made in commands.items()}
    # Weights are made by DuckDB alone, and of a log.
    takes["weights"] -= {"engine", "spark_master", "spark_conf"}
    endings = {"estimate": "--json > curve.json", "weights": "--estimate curve.json -o weights.parquet"}

    def typed(command: str, path: str) -> str:
        file = "LOG" if harvests and command == "weights" else shell(path)
        return " ".join(filter(None, ["posbias", command, file, _flags(ctx, takes[command]), endings.get(command)]))

    return tuple({purpose: typed(name, path) for name, purpose in PURPOSES.items()} for path in ctx.params["log"])
