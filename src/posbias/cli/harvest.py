"""The command `posbias harvest`."""

from __future__ import annotations

from typing import Any

import click

from posbias.cli.options import (
    SectionedCommand,
    force_option,
    harvest_from_flags,
    harvest_options,
    log_options,
    max_rank_and_engine_options,
    print_to_stderr,
)


@click.command(cls=SectionedCommand, sections={"Output": ("output",)})
@log_options
@click.option("-o", "--output", required=True, metavar="FILE", help="Parquet file to write.")
@harvest_options
@force_option
@max_rank_and_engine_options
def harvest(output: str, **flags: Any) -> None:
    """Harvest the interventions of a log into one small file."""
    from posbias._files import HARVEST, check_replaceable, writable
    from posbias.engines.files import refuse_overwriting

    writable(output)
    refuse_overwriting(output, [*flags["log"], *filter(None, [flags["rankings"]])])
    check_replaceable(output, HARVEST)
    harvested = harvest_from_flags(flags)
    harvested.save(output)
    print_to_stderr(f"{harvested!r} written to {output}")
