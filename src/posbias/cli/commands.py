"""The command group `posbias`: its commands, their one-line descriptions and how it prints errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from posbias.errors import PosbiasError
from posbias.version import __version__

# Command -> the line that `posbias --help` shows. The module and its function have the name of the command; the module
# is imported when the command is used.
COMMANDS = {
    "events": "Join tables of impressions and clicks into a click log.",
    "check": "Check a log: how it is read, and every problem with its remedy.",
    "harvest": "Harvest the interventions of a log into one small file.",
    "merge": "Merge harvests, such as those of seven days, into one.",
    "sets": "Count the (query, document) pairs of every intervention set.",
    "sql": "Print the harvest as a SQL query to run in a warehouse.",
    "estimate": "Estimate the propensity curve of a log or a harvest.",
    "diagnose": "Test the assumptions behind a curve, and the traffic it comes from.",
    "report": "Write a report about a curve as one HTML page.",
    "compare": "Test whether two curves differ, and at which ranks.",
    "history": "Keep the curves of many days in one file.",
    "evaluate": "Evaluate new rankings on clicks that are already logged.",
    "plan": "Plan how much more data a precise curve needs.",
    "weights": "Compute inverse-propensity weights of clicks, to train a ranker.",
    "judgments": "Grade documents by clicks, corrected for position bias.",
    "simulate": "Simulate a click log with a known propensity curve.",
}


# Names of options that are less similar are not suggested.
_CLOSE = 0.75


@contextmanager
def _reporting_errors() -> Iterator[None]:
    """Turn errors into messages; --help and --version print while the arguments are parsed."""
    try:
        yield
    except PosbiasError as error:
        from posbias.cli.options import as_flags

        raise _FailedError(error.sentence(as_flags)) from None
    except click.NoSuchOption as error:
        raise _escaped(_with_close_suggestions(error)) from None
    except click.UsageError as error:
        raise _escaped(error) from None
    except BrokenPipeError:
        # The reader of the pipe has closed it.
        _discard_output()
        raise click.exceptions.Exit(0) from None
    except OSError as error:
        path = "" if error.filename is None else f": {os.fsdecode(error.filename)!r}"
        if not path:
            _discard_output()
        reason = f"{error.strerror or error}{path}. Check the path, its permissions and the free disk space."
        raise _FailedError(reason) from None


def _discard_output() -> None:
    """Send what stdout could not take to the null device, so that it is not tried again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class ErrorReportingCommand(click.Command):
    """A command that prints errors as one message, without a traceback."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments; escape control characters in the arguments that an error quotes."""
        with _reporting_errors():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and turn its errors into messages."""
        with _reporting_errors():
            return super().invoke(ctx)


class _LazyGroup(ErrorReportingCommand, click.Group):
    """A group that imports a command only when it is used, so that --help is fast."""

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

            matches = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"Did you mean {matches[0]!r}? " if matches else ""
            if os.path.exists(name):
                hint = f"To check that log, run: posbias check {name}\n"
            raise click.UsageError(f"There is no command {name!r}. {hint}Commands: {', '.join(COMMANDS)}.")
        return super().resolve_command(ctx, args)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="posbias")
def cli() -> None:
    """Estimate position bias from the click logs you already have.

    \b
    posbias check clicks.parquet     what the log contains, and its problems
    posbias estimate clicks.parquet  the propensity curve with its intervals
    """


class _FailedError(click.ClickException):
    """An error of posbias as one of click: a red message and exit code 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        from posbias.cli.options import format_for_stderr

        click.secho(format_for_stderr(f"Error: {self.message}"), fg="red", err=True)


def _with_close_suggestions(error: click.NoSuchOption) -> click.UsageError:
    """Return the error with close suggestions alone: click also compares the dashes, which all options share."""
    close = [option for option in error.possibilities or [] if _is_close(error.option_name, option)]
    return click.NoSuchOption(error.option_name, possibilities=close, ctx=error.ctx)


def _is_close(given: str, option: str) -> bool:
    """Return whether an option may be meant: its name is similar, begins alike, or has the given one as a word.

    >>> [_is_close("--conf", "--spark-conf"), _is_close("--out", "--output"), _is_close("--part", "--spark-master")]
    [True, True, False]
    """
    import difflib

    one, other = given.lstrip("-"), option.lstrip("-")
    alike = bool(difflib.get_close_matches(one, [other], cutoff=_CLOSE))
    return alike or one in other.split("-") or other.startswith(one) or one.startswith(other)


def _escaped(error: click.UsageError) -> click.UsageError:
    """Return a usage error whose message cannot control the terminal: click quotes arguments as they are."""
    from posbias.cli.options import format_for_stderr

    message = error.format_message()
    # Click lists choices with tabs. It prints "Error: " first, so the text is wrapped as if it stood there.
    escaped = format_for_stderr("Error: " + message.replace("\t", "  ")).removeprefix("Error: ")
    return error if escaped == message else click.UsageError(escaped, error.ctx)
