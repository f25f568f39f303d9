"""The command `posbias check`."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from posbias._text import printable
from posbias.cli.options import (
    SectionedCommand,
    as_flags,
    engine_from_flags,
    flag_name,
    given_parameters,
    json_option,
    log_from_flags,
    log_options,
    max_rank_and_engine_options,
    print_json,
    print_marked,
)

if TYPE_CHECKING:
    from posbias.judging.check import Check

# Advice of warnings that the next command follows, because posbias has tested it on the rows. Other advice depends on
# what only the user knows.
_TESTED_ADVICE = {"ranks", "unit"}


@click.command(cls=SectionedCommand, sections={"Output": ("as_json",)})
@log_options
@max_rank_and_engine_options
@json_option
def check(as_json: bool, **flags: Any) -> None:
    """Check a log: how it is read, and every problem with its remedy.

    The exit code is 1 if the log cannot be used.
    """
    from posbias.judging.check import check

    log = log_from_flags(flags)
    with engine_from_flags(flags) as engine:
        result = check(log, **engine, **flags)
    if as_json:
        print_json(result.to_dict(as_flags))
    else:
        print_marked(result.to_text(as_flags))
        _print_next_command(click.get_current_context(), result)
    sys.exit(0 if result.usable else 1)


def _print_next_command(ctx: click.Context, result: Check) -> None:
    """Print the next command to stderr: with the flags that were given, and with those that repair the log."""
    command, fixes = "check", [as_flags(finding.arguments) for finding in result.findings if finding.arguments]
    if result.usable:
        command = "estimate"
        tested = [f for f in result.findings if f.severity == "warning" and f.arguments.keys() <= _TESTED_ADVICE]
        fixes = [as_flags(finding.arguments) for finding in tested if finding.arguments]
    elif any("COLUMN" in flags for flags in fixes) or not fixes:
        return
    words = [*ctx.params["log"]]
    for name in given_parameters(ctx):
        if name not in ("log", "as_json") and not any(f"--{name} " in flags for flags in fixes):
            value = ctx.params[name]
            values = [f"{key}={text}" for key, text in value.items()] if isinstance(value, dict) else [str(value)]
            words += [word for text in values for word in (flag_name(name), text)]
    # On one line, not wrapped: it is there to be copied.
    click.echo(printable(" ".join(["Next: posbias", command, shlex.join(words), *dict.fromkeys(fixes)])), err=True)
