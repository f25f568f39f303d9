"""Progress of long work: a bar on a terminal, silence in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, float], None]


def silent(doing: str, share: float) -> None:
    """Report nothing."""


@contextmanager
def bar() -> Iterator[Progress]:
    """Yield a function that draws a bar on stderr while it is a terminal, and does nothing otherwise."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("Starting", total=1.0)

        def report(doing: str, share: float) -> None:
            drawn.update(task, description=doing, completed=share)

        yield report
