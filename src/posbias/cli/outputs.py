"""What is wrong with a place to write to, said before the work is done and not after."""

from __future__ import annotations

import click

_PLOTS = (".png", ".svg", ".pdf")


def plot_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse a picture that could not be written before anything is computed."""
    if value is None:
        return None
    if not value.lower().endswith(_PLOTS):
        raise click.BadParameter(f"a plot can be written as {', '.join(_PLOTS)}, not as {value!r}.")
    return value
