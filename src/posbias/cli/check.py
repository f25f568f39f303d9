"""posbias check."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from posbias._text import printable
from posbias.cli.options import Sectioned, as_flags, engine_options, given, log_options, make_log, running, show_json

if TYPE_CHECKING:
    from posbias.judging.check import Check


@click.command(cls=Sectioned, sections={"Output": ("as_json",)})
@log_options
@engine_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(as_json: bool, **flags: Any) -> None:
    """Look at a log: what is understood, and every problem with its remedy.

    Exits with 1 if the log cannot be used.
    """
    from posbias.judging.check import check

    log = make_log(flags)
    with running(flags) as engine:
        found = check(log, **engine, **flags)
    if as_json:
        show_json(found.to_dict(as_flags))
    else:
        _show(found)
        _show_next(click.get_current_context(), found)
    sys.exit(0 if found.usable else 1)


def _show(found: Check) -> None:
    from posbias.findings import MARKS

    colors = {MARKS["error"]: "red", MARKS["warning"]: "yellow"}
    for line in found.to_text(as_flags).splitlines():
        click.secho(line, fg=colors.get(line[:1]))


def _show_next(ctx: click.Context, found: Check) -> None:
    """Say, on stderr, the command that comes next: with what was given, and the flags that mend the log."""
    mending = [f.arguments for f in found.findings if f.arguments and (f.severity == "error" or not found.usable)]
    fixes = [as_flags(arguments) for arguments in mending]
    if found.usable:
        command, fixes = "estimate", []
    elif fixes and not any("COLUMN" in flags for flags in fixes):
        command = "check"
    else:
        return
    words = [*ctx.params["log"]]
    for name in given(ctx):
        if name not in ("log", "as_json") and not any(f"--{name} " in flags for flags in fixes):
            flag, value = f"--{name.replace('_', '-')}", ctx.params[name]
            each = [f"{key}={text}" for key, text in value.items()] if isinstance(value, dict) else [str(value)]
            words += [word for text in each for word in (flag, text)]
    # To be copied, so on one line.
    click.echo(printable(" ".join(["Next: posbias", command, shlex.join(words), *dict.fromkeys(fixes)])), err=True)
