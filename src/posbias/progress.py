"""How long work takes: a bar on a terminal while it runs, and a profile of its steps afterwards.

Functions that may take long have the argument `progress`: a function that is called with the name of the current step
and the share of it that is done, such as `progress("Harvesting", 0.25)`. Work that cannot tell its share is a `step`:
if it takes over a second, the command shows its name and how long it has been running. In a pipe nothing is drawn.

If POSBIAS_PROFILE is set, a table of how long each query and each computation took is printed to stderr when the
command, or the Python process, ends.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from time import monotonic, perf_counter, process_time

from posbias._text import Column, bar, format_count, table, terminal_width

Progress = Callable[[str, float], None]
# The time left is not estimated from less than this: the first moments go into opening files.
_LEAST_SHARE, _LEAST_SECONDS = 0.02, 0.5
_NARROWEST_BAR, _WIDEST_BAR = 4, 40
# A step is shown if it takes longer than this many seconds, and its time is renewed so often.
_LATE, _TICK = 1.0, 0.25
# The environment variable that asks for a profile.
_PROFILE = "POSBIAS_PROFILE"
# Steps that took less than this would only be zeros in the table.
_SHORTEST = 0.005


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Yield a progress function that draws a bar on stderr if that is a terminal, and does nothing otherwise."""
    if not sys.stderr.isatty():
        yield silent
        return
    try:
        yield ProgressBar(_line.draw)
    finally:
        _line.erase()


def silent(step: str, share: float) -> None:
    """Report nothing."""


class ProgressBar:
    """A progress function that adds the rows a second and the time left, and draws them.

    Arguments:
        draw (function): called with the step, the share that is done and the pace as text.
        clock (function, default time.monotonic): the time in seconds.

    Attributes:
        rows: the number of rows of the log that is read, or None if it is not known.
    """

    def __init__(self, draw: Callable[[str, float, str], None], clock: Callable[[], float] = monotonic) -> None:
        self.rows: int | None = None
        self._draw, self._clock = draw, clock
        self._step, self._started, self._share = "", clock(), 0.0

    def __call__(self, step: str, share: float) -> None:
        """Draw the bar; within one step it never goes back."""
        if step != self._step or share == 0:
            self._step, self._started, self._share = step, self._clock(), 0.0
        self._share = max(self._share, min(share, 1.0))
        self._draw(step, self._share, self._pace())

    def _pace(self) -> str:
        """Return the rows a second, if the number of rows is known, and the time left of this step."""
        seconds = self._clock() - self._started
        if self._share < _LEAST_SHARE or seconds < _LEAST_SECONDS:
            return ""
        rate = [] if self.rows is None else [f"{format_count(self.rows * self._share / seconds)} rows/s"]
        left = seconds * (1 - self._share) / self._share
        return ", ".join([*rate, f"{format_duration(left)} left"])


class _TerminalLine:
    """The line of a terminal on which the bar is drawn again and again."""

    def __init__(self) -> None:
        self._drawn, self._lock = "", threading.Lock()
        self.drawn_at = -math.inf

    def write(self, text: str) -> None:
        """Show a text in place of the bar."""
        self._replace(text[: terminal_width(sys.stderr.fileno()) - 1])

    def draw(self, step: str, share: float, pace: str) -> None:
        self.drawn_at = monotonic()
        # A line as wide as the terminal would wrap on some of them.
        room = terminal_width(sys.stderr.fileno()) - 1
        width = min(max(room - len(f"{step}  100% {pace}"), _NARROWEST_BAR), _WIDEST_BAR)
        self._replace(f"{step} {bar(share, width):<{width}} {share:>4.0%} {pace}"[:room].rstrip())

    def erase(self) -> None:
        self._replace("")

    def _replace(self, line: str) -> None:
        with self._lock:
            if line == self._drawn:
                return
            blank = " " * len(self._drawn)
            self._drawn = line
            # The terminal may be gone.
            with suppress(OSError, ValueError):
                sys.stderr.write(f"\r{blank}\r{line}")
                sys.stderr.flush()


_line = _TerminalLine()


@contextmanager
def show_steps() -> Iterator[None]:
    """Show steps that take over a second on stderr, if that is a terminal, where no bar shows their share."""
    global _shown
    if not sys.stderr.isatty():
        yield
        return
    _shown = RunningSteps(_line.write, lambda: monotonic() - _line.drawn_at > _LATE)
    stopped = threading.Event()

    def watch(steps: RunningSteps) -> None:
        while not stopped.wait(_TICK):
            steps.draw()

    watcher = threading.Thread(target=watch, args=(_shown,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stopped.set()
        # DuckDB prints warnings if a thread is alive when the process ends.
        watcher.join()
        _shown = None


class RunningSteps:
    """The steps that run now, of which the first is shown once it has taken a second.

    Arguments:
        write (function): shows a text on the line of the bar; "" erases it.
        is_free (function): returns whether no bar uses the line.
        clock (function, default time.monotonic): the time in seconds.
    """

    def __init__(
        self, write: Callable[[str], None], is_free: Callable[[], bool], clock: Callable[[], float] = monotonic
    ) -> None:
        self._write, self._is_free, self._clock = write, is_free, clock
        self._running: list[tuple[str, float]] = []
        self._lock, self._written = threading.Lock(), False

    def draw(self) -> None:
        """Show the first step that runs, if it has been running for a second."""
        with self._lock:
            if self._running and self._is_free():
                name, started = self._running[0]
                seconds = self._clock() - started
                if seconds >= _LATE:
                    self._write(f"{name} … {format_duration(seconds)}")
                    self._written = True

    @contextmanager
    def run(self, name: str) -> Iterator[None]:
        """Run a step; its line is erased before anything else is printed."""
        this = (name, self._clock())
        with self._lock:
            self._running.append(this)
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(this)
                if self._written and not self._running:
                    self._write("")
                    self._written = False


_shown: RunningSteps | None = None


def format_duration(seconds: float) -> str:
    """Return a duration as text.

    >>> format_duration(0.4), format_duration(59), format_duration(200), format_duration(9000)
    ('1 s', '59 s', '3 min', '2 h 30 min')
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


# ---- The profile


@dataclass
class TimedStep:
    """What a step took, all its runs together.

    Attributes:
        name (str): as the user reads it.
        runs (int): how often it ran.
        seconds, cpu_seconds (float): by the clock, and of all threads of the process.
        rows_in, rows_out (int or None): rows read and returned, if known.
        parts (dict): the steps inside it, by name.
    """

    name: str
    runs: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    rows_in: int | None = None
    rows_out: int | None = None
    parts: dict[str, TimedStep] = field(default_factory=dict)

    def add_rows(self, rows_in: int | None = None, rows_out: int | None = None) -> None:
        """Add rows that one run read and returned; None if not known."""
        if rows_in is not None:
            self.rows_in = (self.rows_in or 0) + rows_in
        if rows_out is not None:
            self.rows_out = (self.rows_out or 0) + rows_out


class _Current(threading.local):
    """The step that runs in each thread; None before the first."""

    step: TimedStep | None = None


_total, _current = TimedStep("Total"), _Current()


def profile_is_on() -> bool:
    """Whether the user wants a profile."""
    return os.environ.get(_PROFILE, "").lower() not in ("", "0", "no", "off", "false")


@contextmanager
def step(name: str) -> Iterator[TimedStep]:
    """Show a step that takes long, and measure it if the user wants a profile. It is a decorator, too."""
    with nullcontext() if _shown is None else _shown.run(name):
        if profile_is_on():
            with _measured(name) as this:
                yield this
        else:
            yield TimedStep(name)


@contextmanager
def _measured(name: str) -> Iterator[TimedStep]:
    if not _total.parts:
        atexit.register(print_profile)
    outer = _current.step or _total
    this = outer.parts.setdefault(name, TimedStep(name))
    _current.step = this
    seconds, cpu_seconds = perf_counter(), process_time()
    try:
        yield this
    finally:
        this.runs += 1
        this.seconds += perf_counter() - seconds
        this.cpu_seconds += process_time() - cpu_seconds
        _current.step = outer


def print_profile() -> None:
    """Print the steps measured so far to stderr, and forget them."""
    atexit.unregister(print_profile)
    text = profile_table(_total, process_time())
    _total.parts.clear()
    # stderr may be closed.
    with suppress(OSError, ValueError):
        print(f"\n{text}", file=sys.stderr, flush=True)


def profile_table(total: TimedStep, cpu_seconds: float) -> str:
    """Return the steps as a table, and the CPU time of the process that is in none of them.

    >>> query = TimedStep("Harvesting", 1, 0.25, 0.5, rows_in=1000, rows_out=20)
    >>> intervals = TimedStep("Intervals", 2, 0.0625, 0.0625)
    >>> fit = TimedStep("Fitting cross-fit", 2, 0.125, 0.125, parts={"Intervals": intervals})
    >>> print(profile_table(TimedStep("", parts={"Harvesting": query, "Fitting cross-fit": fit}), 0.75))
    step                   runs  seconds  CPU seconds  rows in  rows out
    Harvesting                1     0.25         0.50    1,000        20
    Fitting cross-fit         2     0.12         0.12        –         –
      Intervals               2     0.06         0.06        –         –
    start and all the rest                       0.12
    """
    lines = list(_lines(total, ""))
    rest = cpu_seconds - sum(part.cpu_seconds for part in total.parts.values())
    columns = [
        Column("step", [*(indent + one.name for indent, one in lines), "start and all the rest"], left=True),
        Column("runs", [*(f"{one.runs:,}" for _, one in lines), ""]),
        Column("seconds", [*(f"{one.seconds:.2f}" for _, one in lines), ""]),
        Column("CPU seconds", [*(f"{one.cpu_seconds:.2f}" for _, one in lines), f"{max(rest, 0):.2f}"]),
        Column("rows in", [*(_format_rows(one.rows_in) for _, one in lines), ""]),
        Column("rows out", [*(_format_rows(one.rows_out) for _, one in lines), ""]),
    ]
    return table(columns)


def _lines(outer: TimedStep, indent: str) -> Iterator[tuple[str, TimedStep]]:
    for part in outer.parts.values():
        if max(part.seconds, part.cpu_seconds) < _SHORTEST:
            continue
        yield indent, part
        yield from _lines(part, indent + "  ")


def _format_rows(rows: int | None) -> str:
    return "–" if rows is None else f"{rows:,}"
