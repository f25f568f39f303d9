"""What is wrong with a place to write to, said before the work is done and not after."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click

from posbias.errors import PosbiasError

_PLOTS = (".png", ".svg", ".pdf")


def refuse_overwriting(path: str, sources: Iterable[str]) -> None:
    """Refuse to write a result over what it comes from, or where the next run would read it as a part of the log."""
    from posbias.engines.files import find_files

    target = os.path.realpath(path)
    for source in sources:
        if os.path.isdir(source) and target.startswith(os.path.realpath(source) + os.sep):
            raise PosbiasError(
                f"{path!r} lies in the folder that is being read, {source!r}: the next run would take it for a part of "
                "the log. Write the result elsewhere."
            )
        try:
            files = find_files(source)
        except PosbiasError:
            continue  # A table, or a file that is not there: reading it will say so.
        if target in map(os.path.realpath, files):
            raise PosbiasError(f"{path!r} is what is being read. Write the result to another file.")


def plot_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse a picture that could not be written before anything is computed."""
    if value is None:
        return None
    if not value.lower().endswith(_PLOTS):
        raise click.BadParameter(f"a plot can be written as {', '.join(_PLOTS)}, not as {value!r}.")
    return value
