"""Progress of long work: a bar on a terminal, nothing in a pipe.

Functions that may take long have the argument `progress`: a function that is called with the name of the current step
and the share of it that is done, such as `progress("Harvesting", 0.25)`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

from posbias._text import bar, format_count, terminal_width

Progress = Callable[[str, float], None]
# The time left is not estimated from less than this: the first moments go into opening files.
_LEAST_SHARE, _LEAST_SECONDS = 0.02, 0.5
_NARROWEST_BAR, _WIDEST_BAR = 4, 40


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Yield a progress function that draws a bar on stderr if that is a terminal, and does nothing otherwise."""
    if not sys.stderr.isatty():
        yield silent
        return
    line = _TerminalLine()
    try:
        yield ProgressBar(line.draw)
    finally:
        line.erase()


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
        self._drawn = ""

    def draw(self, step: str, share: float, pace: str) -> None:
        # A line as wide as the terminal would wrap on some of them.
        room = terminal_width(sys.stderr.fileno()) - 1
        width = min(max(room - len(f"{step}  100% {pace}"), _NARROWEST_BAR), _WIDEST_BAR)
        self._replace(f"{step} {bar(share, width):<{width}} {share:>4.0%} {pace}"[:room].rstrip())

    def erase(self) -> None:
        self._replace("")

    def _replace(self, line: str) -> None:
        if line == self._drawn:
            return
        blank = " " * len(self._drawn)
        self._drawn = line
        # The terminal may be gone.
        with suppress(OSError, ValueError):
            sys.stderr.write(f"\r{blank}\r{line}")
            sys.stderr.flush()


def format_duration(seconds: float) -> str:
    """Return a duration as text.

    >>> format_duration(0.4), format_duration(59), format_duration(200), format_duration(9000)
    ('1 s', '59 s', '3 min', '2 h 30 min')
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
