"""The command `posbias report`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import click

from posbias.cli.options import (
    LOG_SECTIONS,
    SectionedCommand,
    as_flags,
    columns_option,
    engine_from_flags,
    estimator_option,
    force_option,
    given_parameters,
    harvest_options,
    level_option,
    log_from_flags,
    log_options,
    max_rank_and_engine_options,
    print_to_stderr,
    refuse_log_flags,
)


@click.command(
    cls=SectionedCommand,
    sections={
        "Report": ("estimator", "by", "max_rank", "level", "columns", "history"),
        **LOG_SECTIONS,
        "Output": ("output",),
    },
)
@log_options
@click.option("-o", "--output", required=True, metavar="FILE", help="HTML file to write.")
@estimator_option(help="Estimator of the curve.")
@level_option
@click.option("--history", metavar="FILE", help="History file with the curves of many days, from posbias history.")
@columns_option("Columns of a grid whose places are numbered row by row: add a heat map.")
@harvest_options
@force_option
@max_rank_and_engine_options
def report(
    output: str, estimator: str | None, level: float, columns: int | None, history: str | None, **flags: Any
) -> None:
    """Write a report about a curve as one HTML page.

    LOG is a click log or a harvest; two harvests are compared with each other. The page shows the curve, whether to
    trust it, the evidence, how to use it, how it was computed, and its numbers. It needs no network and contains no
    rows of the log, so you can send it to a colleague.
    """
    from dataclasses import replace

    from posbias._files import REPORT, check_replaceable, writable
    from posbias._optional import import_in_background, require
    from posbias.engines.files import refuse_overwriting

    # Checked before the log is read, which may take long.
    require("jinja2", "Reports need")
    ctx = click.get_current_context()
    files, command = flags["log"], _command_line(ctx)
    writable(output)
    refuse_overwriting(output, [*files, *filter(None, [flags["rankings"], history])])
    check_replaceable(output, REPORT)
    harvests = _find_harvests(files, flags)
    from posbias.reporting.report import report as make_report

    import_in_background("posbias.reporting.page", "jinja2")
    settings: dict[str, Any] = {
        "estimator": estimator,
        "level": level,
        "columns": columns,
        "history": history,
        "command": command,
    }
    if harvests:
        result = make_report(*harvests, force=flags["force"], **settings)
    else:
        log = log_from_flags(flags)
        with engine_from_flags(flags) as engine:
            result = make_report(log, **settings, **flags, **engine)
    result = replace(result, steps=_next_steps(ctx, from_harvests=bool(harvests)))
    result.save(output, as_flags)
    verdict = result.parts[0].sentences[1] if result.comparison is None else result.comparison.verdict
    print_to_stderr(f"Report written to {output}. {verdict}")


def _command_line(ctx: click.Context) -> str:
    """Return the command line that was typed, without the values of Spark's settings: some are secrets."""
    from posbias._text import shell

    files = " ".join(map(shell, ctx.params["log"]))
    flags = _given_flags(ctx, {*ctx.params} - {"log", "output"})
    return " ".join(filter(None, [f"posbias report {files} -o {shell(ctx.params['output'])}", flags]))


def _given_flags(ctx: click.Context, names: Collection[str]) -> str:
    """Return those of the named flags that were typed, without the values of Spark's settings."""
    values: dict[str, Any] = {}
    for name in given_parameters(ctx):
        value = ctx.params[name]
        if name == "spark_conf":
            value = [f"{key}=..." for key in value]
        if name in names:
            values[name] = list(map(str, value)) if isinstance(value, list | tuple) else value
    return as_flags({name: value if isinstance(value, bool | list) else str(value) for name, value in values.items()})


def _find_harvests(files: tuple[str, ...], flags: dict[str, Any]) -> tuple[str, ...]:
    """Return the files that are harvests; refuse anything but one log, one harvest or two harvests."""
    from posbias.harvesting.files import is_harvest

    harvests = tuple(path for path in files if is_harvest(path))
    if len(files) > 2 or (len(files) == 2 and len(harvests) < 2):
        raise click.UsageError(
            f"A report takes one log, one harvest, or two harvests to compare. {len(files)} files were given, "
            f"{len(harvests)} of them harvests. To compare logs, harvest each first with posbias harvest. For a log in "
            "several files, give its folder, or a pattern in quotes."
        )
    for path in harvests:
        refuse_log_flags(path, flags, {"log"})
    return harvests


def _next_steps(ctx: click.Context, *, from_harvests: bool) -> tuple[dict[str, str], ...]:
    """Return for each file the next commands by their purpose, with those of the given flags that each accepts.

    Without these flags a command would look for other columns, or estimate another curve.
    """
    from importlib import import_module

    from posbias._text import shell
    from posbias.reporting.report import PURPOSES

    commands = {name: getattr(import_module(f"posbias.cli.{name}"), name) for name in PURPOSES}
    accepted = {
        name: {param.name for param in command.params} - {"log", "output"} for name, command in commands.items()
    }
    # Only DuckDB computes weights, and only from a log.
    accepted["weights"] -= {"engine", "spark_master", "spark_conf"}
    endings = {"estimate": "--json > curve.json", "weights": "--estimate curve.json -o weights.parquet"}

    def command_line(command: str, path: str) -> str:
        file = "LOG" if from_harvests and command == "weights" else shell(path)
        return " ".join(
            filter(None, ["posbias", command, file, _given_flags(ctx, accepted[command]), endings.get(command)])
        )

    return tuple(
        {purpose: command_line(name, path) for name, purpose in PURPOSES.items()} for path in ctx.params["log"]
    )
