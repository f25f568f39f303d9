"""Run the command: signals, closed streams and exit codes."""

# Import only what the interpreter has already loaded: Ctrl-C while the rest is imported must find `main` ready.
from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from sys import UnraisableHookArgs

    import click

# With less address space, libraries end in a segmentation fault or hang. Measured on two cores; they use 1 to 2 GB.
_MIN_ADDRESS_SPACE = 2_500_000_000


def main(load: Callable[[], click.Command] | None = None, name: str = "posbias") -> NoReturn:
    """Run a command and exit.

    Exit codes: 0 for success, 1 for an unusable log, 2 for an error, 130 after Ctrl-C, and 128 plus the number of the
    signal after SIGTERM or SIGHUP.

    Arguments:
        load (callable, optional): returns the command to run; by default `posbias`.
        name (str, default "posbias"): the name of the command in messages.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    sys.unraisablehook = _repeat_interrupt
    try:
        for signal_name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, signal_name, None)
            # A signal that the parent process ignores, as nohup does, stays ignored.
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, interrupt)
        _replace_closed_streams()
        code = 2 if _too_little_address_space() else _run(load, name)
    except KeyboardInterrupt:
        # A second Ctrl-C ends the process at once.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        reason = f"Stopped by {signal.Signals(received[0]).name}" if received else "Interrupted"
        _print_to_stderr(f"{reason}; nothing was written.")
        code = 128 + (received[0] if received else signal.SIGINT)
    sys.exit(code)


def _repeat_interrupt(ignored: UnraisableHookArgs) -> None:
    """Send Ctrl-C again if Python swallowed it, for example in a destructor."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        from threading import Timer

        # os.kill also ends what the process waits for. On Windows it would end the process without a word.
        send = (signal.raise_signal, ()) if os.name == "nt" else (os.kill, (os.getpid(),))
        # Only after this hook has returned: Python would swallow an exception in it too.
        Timer(0.05, send[0], (*send[1], signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(ignored)


def _run(load: Callable[[], click.Command] | None, name: str) -> int:
    """Run the command and return its exit code."""
    import click

    from posbias.cli.commands import cli
    from posbias.errors import PosbiasWarning
    from posbias.progress import show_steps

    # The command prints the same findings in its own words.
    warnings.simplefilter("ignore", PosbiasWarning)
    try:
        with show_steps():
            (load() if load else cli).main(prog_name=name, standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        # stderr may be closed.
        with suppress(OSError):
            error.show()
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except (MemoryError, ImportError) as error:
        # A library that does not fit into the address space fails like a missing one.
        if isinstance(error, ImportError) and "failed to map segment" not in str(error):
            raise
        _print_to_stderr(
            "Error: There is not enough memory. Raise the limit of this process (ulimit -v), or free some."
        )
        return 2
    finally:
        # Not at exit: `script` ends the process before.
        if os.environ.get("POSBIAS_PROFILE"):
            from posbias.progress import print_profile, profile_is_on

            if profile_is_on():
                print_profile()
    return 0


def _too_little_address_space() -> bool:
    """Print an error if the limit on the address space of this process is too low for the libraries."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
    except ImportError:
        return False  # Windows has no such limit.
    limit = getrlimit(RLIMIT_AS)[0]
    if limit == RLIM_INFINITY or limit >= _MIN_ADDRESS_SPACE:
        return False
    _print_to_stderr(
        f"Error: This process may use {limit // 10**6:,} MB of address space, and its libraries need "
        f"{_MIN_ADDRESS_SPACE // 10**6:,} MB, most of which they only reserve. Raise the limit (ulimit -v). "
        "To limit the memory that is really used, set --memory-limit or use a container."
    )
    return True


def _replace_closed_streams() -> None:
    """Open the null device for each closed stream, so that no other file gets its number; buffer the others."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            stream = open(number, "w" if number else "r", encoding="utf-8", errors="replace")  # noqa: SIM115
            setattr(sys, name, stream)
        elif number and hasattr(stream, "reconfigure"):
            # A terminal that lacks a character shows a replacement.
            stream.reconfigure(errors="replace")
            if isinstance(stream.buffer, io.RawIOBase):
                # With PYTHONUNBUFFERED, Python forgets what did not fit on a full disk. A buffer tries it again.
                stream = open(number, "w", buffering=1, encoding=stream.encoding, errors="replace")  # noqa: SIM115
                setattr(sys, name, stream)


def _print_to_stderr(text: str) -> None:
    # stderr may be closed.
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def script() -> NoReturn:
    """Run `posbias` as its own process, and end it at once: an orderly shutdown of Python takes noticeable time."""
    # Read when NumPy is imported. Its threads would wait for work that no command has for them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # The reader of the pipe has closed it.
    except OSError as error:
        _print_to_stderr(f"Error: The output could not be printed: {error.strerror}.")
        code = code or 2
    os._exit(code)
