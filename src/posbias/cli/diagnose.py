"""posbias diagnose."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from posbias.cli.options import (
    Sectioned,
    as_flags,
    engine_options,
    force_option,
    load_harvest,
    log_options,
    make_log,
    running,
    show_json,
)

if TYPE_CHECKING:
    from posbias.judging.diagnose import Diagnosis


def _split(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[str, float] | None:
    """Return NAME=SHARE,NAME=SHARE as a mapping."""
    if value is None:
        return None
    parts = [part.rpartition("=") for part in value.split(",")]
    try:
        split = {name.strip(): float(share) for name, _, share in parts}
    except ValueError:
        split = {}
    if "" in split or len(split) < len(parts):
        raise click.BadParameter(f"expected a share for each ranker, such as a=50,b=50, not {value!r}.")
    return split


@click.command(cls=Sectioned, sections={"Diagnosis": ("split", "proxy"), "Output": ("as_json", "json")})
@log_options
@click.option(
    "--split",
    callback=_split,
    metavar="NAME=SHARE,...",
    help="The split of traffic that was intended, such as a=50,b=50.",
)
@click.option(
    "--proxy",
    metavar="COLUMN",
    help="A column with classes of relevance, not made of these clicks, whose curves are to be compared.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@force_option
@engine_options
def diagnose(split: dict[str, float] | None, proxy: str | None, as_json: bool, **flags: Any) -> None:
    """Say how far a curve is to be trusted: broken assumptions, odd traffic, thin support.

    LOG is a click log, of which the clicks of each page view are looked at too, or a harvest. Exits with 1 if an
    assumption of the curve does not hold.
    """
    from posbias.judging.diagnose import diagnose

    harvest = load_harvest(flags, weighted=False)
    if harvest is not None:
        found = diagnose(harvest, split=split, proxy=proxy)
    else:
        log = make_log(flags)
        with running(flags) as engine:
            found = diagnose(log, split=split, proxy=proxy, **engine, **flags)
    if as_json:
        show_json(found.to_dict(as_flags))
    else:
        _show(found)
    sys.exit(0 if found.sound else 1)


def _show(found: Diagnosis) -> None:
    from posbias.findings import MARKS

    colors = {MARKS["error"]: "red", MARKS["warning"]: "yellow"}
    for line in found.to_text(as_flags).splitlines():
        click.secho(line, fg=colors.get(line[:1]))
