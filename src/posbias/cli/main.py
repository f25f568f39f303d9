"""Run the command: signals, closed streams and exit codes."""

# Only what the interpreter has loaded anyway: Ctrl-C while the rest is imported must find us ready.
from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from sys import UnraisableHookArgs

    import click


def main(load: Callable[[], click.Command] | None = None, name: str = "posbias") -> NoReturn:
    """Run a command, `posbias` by default, and exit with 0, 1 for an unusable log, 2 for an error, 130 if interrupted.

    A signal that asks to stop, such as SIGTERM, ends it as cleanly, with 128 and the number of the signal.
    """
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    sys.unraisablehook = _insist
    try:
        for wanted in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, wanted, None)
            # What a parent told us to ignore, as nohup does, is ignored.
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, stop)
        _hold_streams()
        code = _run(load, name)
    except KeyboardInterrupt:
        # Whoever asks again does not want to wait for a word.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        by = f"Stopped by {signal.Signals(asked[0]).name}" if asked else "Interrupted"
        _say(f"{by}; nothing was written.")
        code = 128 + (asked[0] if asked else signal.SIGINT)
    sys.exit(code)


def _insist(ignored: UnraisableHookArgs) -> None:
    """Ask once more to stop where Python could not let that through, as while an object is deleted."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        from threading import Timer

        # Not before this has returned: it would let nothing through either.
        Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(ignored)


def _run(load: Callable[[], click.Command] | None, name: str) -> int:
    import click

    from posbias.cli.commands import cli

    try:
        (load() if load else cli).main(prog_name=name, standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        # Nobody may be listening.
        with suppress(OSError):
            error.show()
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    return 0


def _hold_streams() -> None:
    """Let what is written to a stream that was closed go nowhere, and no file that is opened take its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            held = os.open(os.devnull, os.O_RDWR)
            if held != number:
                os.dup2(held, number)
                os.close(held)
            stream = open(number, "w" if number else "r", encoding="utf-8", errors="replace")  # noqa: SIM115
            setattr(sys, name, stream)
        elif number and hasattr(stream, "reconfigure"):
            # A terminal that lacks a character shows another in its place.
            stream.reconfigure(errors="replace")


def _say(text: str) -> None:
    # Nobody may be listening.
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def script() -> NoReturn:
    """Run the command as a process of its own, which ends at once: taking the interpreter apart would take a while."""
    try:
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # The reader has seen enough.
    except OSError as error:
        _say(f"Error: What was to be printed could not be: {error.strerror}.")
        code = code or 2
    os._exit(code)
