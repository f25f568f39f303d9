"""The group of commands that `posbias --help` lists."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from posbias.errors import PosbiasError
from posbias.version import __version__

# Command -> module and the sentence that `posbias --help` shows; a module is imported when its command is used.
COMMANDS = {
    "events": "Join tables of impressions and clicks to a click log.",
    "check": "Look at a log: what is understood, and every problem with its remedy.",
    "harvest": "Harvest the interventions of a log into one small file.",
    "merge": "Merge harvests, such as a week of days, into one.",
    "sets": "Count the (query, document) pairs of every interventional set.",
    "sql": "Print the harvest as a query to run in a warehouse.",
    "estimate": "Estimate the propensity curve of a log or a harvest.",
    "diagnose": "Say how far a curve is to be trusted: broken assumptions, odd traffic.",
    "report": "Write what there is to know of a curve as one HTML page.",
    "compare": "Say whether two curves differ, and at which ranks.",
    "history": "Keep the curves of many days in one file.",
    "evaluate": "Judge rankings by clicks already logged: is a new one better?",
    "plan": "Plan how much more data the curve needs to be precise.",
    "weights": "Weigh the clicks of a log by a curve, for a ranker to learn from.",
    "simulate": "Simulate a click log with a known propensity curve.",
}


class ReportsErrors(click.Command):
    """A command that prints errors as one message, without a traceback."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse arguments; what click quotes of them cannot steer the terminal."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise _quoting(error) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; its errors become messages."""
        try:
            return super().invoke(ctx)
        except PosbiasError as error:
            raise _FailedError(_told(error)) from None
        except click.UsageError as error:
            raise _quoting(error) from None
        except BrokenPipeError:
            # The reader of a pipe has seen enough; what is left to flush at exit goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)
        except OSError as error:
            named = error.filename is not None and error.strerror is not None
            what = f"{error.strerror}: {os.fsdecode(error.filename)!r}" if named else str(error)
            raise _FailedError(f"{what}. Check the path, its permissions and the space that is left.") from None


class _Lazy(ReportsErrors, click.Group):
    """A group whose commands are imported only when used, so that --help answers in a blink."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        from importlib import import_module

        command: click.Command = getattr(import_module(f"posbias.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and name not in COMMANDS and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            if os.path.exists(name):
                hint = f"To look at that log, run: posbias check {name}\n"
            raise click.UsageError(f"There is no command {name!r}. {hint}Commands: {', '.join(COMMANDS)}.")
        return super().resolve_command(ctx, args)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="posbias")
def cli() -> None:
    """Position bias from the click logs you already have.

    \b
    posbias check clicks.parquet     what is in the log, and what is wrong with it
    posbias estimate clicks.parquet  the propensity curve, with its interval
    """


class _FailedError(click.ClickException):
    """An error of ours as one of click's: a red message and exit 2, not a traceback."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        from posbias.cli.options import for_reading

        click.secho(for_reading(f"Error: {self.message}"), fg="red", err=True)


def _quoting(error: click.UsageError) -> click.UsageError:
    """Return an error of click's, which quotes what was given as it was, as one that does not steer the terminal."""
    from posbias.cli.options import for_reading

    told = error.format_message()
    # Click sets the same word before it.
    shown = for_reading(f"Error: {told}").removeprefix("Error: ")
    return error if shown == told else click.UsageError(shown, error.ctx)


def _told(error: PosbiasError) -> str:
    """Return an error with the flags that would help."""
    from posbias.cli.options import as_flags

    return error.sentence(as_flags)
