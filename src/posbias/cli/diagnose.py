"""The command `posbias diagnose`."""

from __future__ import annotations

import sys
from typing import Any

import click

from posbias.cli.options import (
    SectionedCommand,
    as_flags,
    engine_from_flags,
    force_option,
    json_option,
    load_harvest,
    log_from_flags,
    log_options,
    max_rank_and_engine_options,
    parse_shares,
    print_json,
    print_marked,
)


def _parse_split(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[str, float] | None:
    return None if value is None else parse_shares(value)


@click.command(cls=SectionedCommand, sections={"Diagnosis": ("split", "proxy"), "Output": ("as_json", "json")})
@log_options
@click.option(
    "--split",
    callback=_parse_split,
    metavar="NAME=SHARE,...",
    help="Intended split of traffic, such as a=50,b=50.",
)
@click.option(
    "--proxy",
    metavar="COLUMN",
    help="Column of relevance classes, not derived from these clicks: test whether their curves agree.",
)
@json_option
@force_option
@max_rank_and_engine_options
def diagnose(split: dict[str, float] | None, proxy: str | None, as_json: bool, **flags: Any) -> None:
    """Test the assumptions behind a curve, and the traffic it comes from.

    LOG is a click log or a harvest. Only a log allows tests of the clicks within a page view. The exit code is 1 if an
    assumption of the curve does not hold.
    """
    from posbias.judging.diagnose import diagnose

    harvest = load_harvest(flags, reweightable=False, announce=False)
    if harvest is not None:
        diagnosis = diagnose(harvest, split=split, proxy=proxy)
    else:
        log = log_from_flags(flags)
        with engine_from_flags(flags) as engine:
            diagnosis = diagnose(log, split=split, proxy=proxy, **engine, **flags)
    if as_json:
        print_json(diagnosis.to_dict(as_flags))
    else:
        print_marked(diagnosis.to_text(as_flags))
    sys.exit(0 if diagnosis.sound else 1)
