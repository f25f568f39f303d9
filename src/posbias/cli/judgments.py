"""The command `posbias judgments`."""

from __future__ import annotations

from typing import Any

import click

from posbias._defaults import DEFAULT_GRADES, DEFAULT_MIN_EXPOSURE
from posbias.cli.options import (
    SectionedCommand,
    as_flags,
    beyond_option,
    engine_from_flags,
    engine_options,
    force_option,
    given_parameters,
    level_option,
    log_from_flags,
    log_options,
    print_findings,
    print_json,
    print_to_stderr,
    require_curve,
)


def _parse_grades(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """Return the highest grade, or None for 'none'."""
    if value == "none":
        return None
    if not value.isdecimal():
        raise click.BadParameter(f"expected a whole number of 1 or more, or none, not {value!r}.")
    return int(value)


@click.command(
    cls=SectionedCommand,
    sections={
        "Judgments": ("estimate", "grades", "thresholds", "features", "min_exposure", "level", "beyond"),
        "Output": ("output", "overwrite", "as_json"),
    },
)
@log_options
@click.option("--estimate", metavar="FILE", help="Curve file from posbias estimate --json, or a harvest.  [required]")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    help="File to write: .csv for Quepid and OpenSearch, .json for OpenSearch's API, .qrels, .tsv or .parquet.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option(
    "--grades",
    default=str(DEFAULT_GRADES),
    show_default=True,
    metavar="N",
    callback=_parse_grades,
    help="Highest grade, or none to write the relevance from 0 to 1.",
)
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    type=float,
    metavar="R",
    help="Lowest relevance of grade 1, then of grade 2 and so on.  [default: all grades equally frequent]",
)
@click.option(
    "--feature",
    "features",
    multiple=True,
    metavar="COLUMN",
    help="Column of a number that does not depend on the rank, for the prior; may be repeated.",
)
@click.option(
    "--min-exposure",
    type=float,
    default=f"{DEFAULT_MIN_EXPOSURE:g}",
    show_default=True,
    metavar="E",
    help="Exposure that a pair needs to be judged, in views at rank 1.",
)
@level_option
@beyond_option
@click.option("--json", "as_json", is_flag=True, help="Print a summary and the findings as JSON.")
@force_option
@engine_options
def judgments(estimate: str | None, output: str, overwrite: bool, as_json: bool, **flags: Any) -> None:
    """Grade documents by clicks, corrected for position bias.

    The output has one row for each (query, document) with enough exposure, the most frequent queries first. Its ending
    is the format; .parquet has all columns, with the relevance and its interval.
    """
    from posbias._text import shell
    from posbias.learning.judgments import judgments as judge

    if flags["engine"] == "spark":
        raise click.UsageError("Only DuckDB makes judgments. Leave out --engine spark.")
    estimate = require_curve(estimate, flags["log"])
    names = ("grades", "thresholds", "features", "min_exposure", "level", "beyond", "force")
    settings = {name: flags.pop(name) for name in names}
    if "grades" not in given_parameters(click.get_current_context()):
        # The number of thresholds is the highest grade, unless the user names another one.
        del settings["grades"]
    log = log_from_flags(flags)
    with engine_from_flags(flags) as engine:
        judged = judge(log, estimate, output, overwrite=overwrite, **settings, **engine)
    if as_json:
        print_json(judged.to_dict(as_flags))
        return
    print_findings(judged.findings)
    print_to_stderr(f"{judged.to_text()} Written to {shell(output)}")
