"""posbias weights."""

from __future__ import annotations

from typing import Any

import click

from posbias._validate import DEFAULT_CAP
from posbias.cli.options import (
    Sectioned,
    force_option,
    log_options,
    make_log,
    runner_options,
    running,
    show_json,
    tell,
    warn,
)


def _cap(ctx: click.Context, param: click.Parameter, value: str) -> float | None:
    """Return the cap as a number, or None for none."""
    if value == "none":
        return None
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"expected a number of 1 or more, or none, not {value!r}.") from None


@click.command(
    cls=Sectioned,
    sections={
        "Weights": ("estimate", "cap", "beyond", "rows", "keep", "candidates"),
        "Output": ("output", "overwrite", "as_json"),
    },
)
@log_options
@click.option(
    "--estimate", required=True, metavar="FILE", help="The curve: what posbias estimate --json printed, or a harvest."
)
@click.option("-o", "--output", required=True, metavar="FILE", help="The Parquet file to write.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is there already.")
@click.option(
    "--cap",
    default=f"{DEFAULT_CAP:g}",
    show_default=True,
    metavar="N",
    callback=_cap,
    help="The most that a click counts, or none.",
)
@click.option(
    "--beyond",
    type=click.Choice(["refuse", "clip", "extrapolate"]),
    default="refuse",
    show_default=True,
    help="Ranks beyond the curve: refuse them, take them for its last rank, or continue it.",
)
@click.option("--rows", is_flag=True, help="Keep every row of the log, and add its weight.")
@click.option("--keep", multiple=True, metavar="COLUMN", help="A column that comes along; may be repeated.")
@click.option(
    "--candidates", metavar="FILE", help="Documents that could have been shown: query and document, as in the log."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was written and found as JSON.")
@force_option
@runner_options
def weights(estimate: str, output: str, overwrite: bool, as_json: bool, **flags: Any) -> None:
    """Weigh the clicks of a log by a curve, for a ranker to learn from.

    One row for each (query, document) shown, in no order: impressions, clicks, exposure (how often it was seen, counted
    in views at rank 1) and weight (its clicks over their propensities, mean 1 over clicked rows).
    """
    from posbias._text import shell
    from posbias.cli.options import as_flags
    from posbias.learning.weights import ips_weights

    if flags["engine"] == "spark":
        raise click.UsageError(
            "Weights are made by DuckDB, which takes any number of rows in bounded memory. Leave --engine spark out."
        )
    wanted = {name: flags.pop(name) for name in ("cap", "beyond", "rows", "keep", "candidates", "force")}
    log = make_log(flags)
    with running(flags) as engine:
        made = ips_weights(log, estimate, output, overwrite=overwrite, **wanted, **engine)
    if as_json:
        show_json(made.to_dict(as_flags))
        return
    warn(made.findings)
    tell(f"{made.to_text()} Written to {shell(output)}")
