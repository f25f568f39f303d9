"""Progress of long work: a bar on a terminal, silence in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

Progress = Callable[[str, float], None]
# What is left is not foretold from less: the first moments go into opening files.
_SHARE, _SECONDS = 0.02, 0.5


@contextmanager
def bar() -> Iterator[Progress]:
    """Yield a function that draws a bar on stderr while it is a terminal, and does nothing otherwise."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column

    # The bar gives way to words where a terminal is narrow.
    drawn_bar = BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4, max_width=40))
    columns = (TextColumn("{task.description}"), drawn_bar, TaskProgressColumn(), TextColumn("{task.fields[pace]}"))
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("Starting", total=1.0, pace="")
        yield Bar(lambda doing, share, pace: drawn.update(task, description=doing, completed=share, pace=pace))


def silent(doing: str, share: float) -> None:
    """Report nothing."""


class Bar:
    """A bar that is told what is being done and the share done, and tells the pace and the time left.

    Attributes:
        rows: of the log that is read, where they are known.
    """

    def __init__(self, draw: Callable[[str, float, str], None], clock: Callable[[], float] = monotonic) -> None:
        self.rows: int | None = None
        self._draw, self._clock = draw, clock
        self._doing, self._since, self._share = "", clock(), 0.0

    def __call__(self, doing: str, share: float) -> None:
        """Draw the bar; within one step it never goes back."""
        if doing != self._doing or share == 0:
            self._doing, self._since, self._share = doing, self._clock(), 0.0
        self._share = max(self._share, min(share, 1.0))
        self._draw(doing, self._share, self._pace())

    def _pace(self) -> str:
        """Return rows a second, where they are known, and the time left of this step."""
        spent = self._clock() - self._since
        if self._share < _SHARE or spent < _SECONDS:
            return ""
        rate = [] if self.rows is None else [f"{short(self.rows * self._share / spent)} rows/s"]
        left = spent * (1 - self._share) / self._share
        return ", ".join([*rate, f"{duration(left)} left"])


def short(count: float) -> str:
    """Return a count in a few characters.

    >>> short(950), short(84_200), short(3_140_000), short(99_960_000)
    ('950', '84k', '3.1M', '100M')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}" if count < 9.95 * size else f"{count / size:.0f}{unit}"
    return f"{count:.0f}"


def duration(seconds: float) -> str:
    """Return a time as one would say it.

    >>> duration(0.4), duration(59), duration(200), duration(9000)
    ('1 s', '59 s', '3 min', '2 h 30 min')
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
