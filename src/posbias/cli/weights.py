"""The command `posbias weights`."""

from __future__ import annotations

from typing import Any

import click

from posbias._defaults import DEFAULT_CAP
from posbias.cli.options import (
    SectionedCommand,
    as_flags,
    beyond_option,
    engine_from_flags,
    engine_options,
    force_option,
    log_from_flags,
    log_options,
    part_options,
    print_findings,
    print_json,
    print_to_stderr,
    require_curve,
)


def _parse_cap(ctx: click.Context, param: click.Parameter, value: str) -> float | None:
    """Return the cap as a number, or None for 'none'."""
    if value == "none":
        return None
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"expected a number of 1 or more, or none, not {value!r}.") from None


@click.command(
    cls=SectionedCommand,
    sections={
        "Weights": ("estimate", "cap", "beyond", "rows", "keep", "candidates"),
        "Output": ("output", "overwrite", "as_json"),
    },
)
@log_options
@part_options
@click.option("--estimate", metavar="FILE", help="Curve file from posbias estimate --json, or a harvest.  [required]")
@click.option("-o", "--output", required=True, metavar="FILE", help="Parquet file to write.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file that is not a table of weights.")
@click.option(
    "--cap",
    default=f"{DEFAULT_CAP:g}",
    show_default=True,
    metavar="N",
    callback=_parse_cap,
    help="Largest weight of a click, or none.",
)
@beyond_option
@click.option("--rows", is_flag=True, help="Write every row of the log with its weight.")
@click.option(
    "--keep", multiple=True, metavar="COLUMN", help="Column of the log to copy to the output; may be repeated."
)
@click.option(
    "--candidates",
    metavar="FILE",
    help="File of documents that could have been shown: query and document, named as in the log.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a summary and the findings as JSON.")
@force_option
@engine_options
def weights(estimate: str | None, output: str, overwrite: bool, as_json: bool, **flags: Any) -> None:
    """Compute inverse-propensity weights of clicks, to train a ranker.

    The output has one row for each (query, document) shown, in no particular order: impressions, clicks, exposure (the
    number of views, counted as views at rank 1) and weight (clicks divided by their propensities).

    \b
    posbias estimate LOG --json > curve.json
    posbias weights LOG --estimate curve.json -o weights.parquet
    """
    from posbias._text import shell
    from posbias.learning.weights import ips_weights

    if flags["engine"] == "spark":
        raise click.UsageError(
            "Only DuckDB computes weights; it reads any number of rows in bounded memory. Leave out --engine spark."
        )
    estimate = require_curve(estimate, flags["log"])
    settings = {name: flags.pop(name) for name in ("cap", "beyond", "rows", "keep", "candidates", "force")}
    log = log_from_flags(flags)
    with engine_from_flags(flags) as engine:
        weighted = ips_weights(log, estimate, output, overwrite=overwrite, **settings, **engine)
    if as_json:
        print_json(weighted.to_dict(as_flags))
        return
    print_findings(weighted.findings)
    print_to_stderr(f"{weighted.to_text()} Written to {shell(output)}")
