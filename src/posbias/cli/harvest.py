"""posbias harvest."""

from __future__ import annotations

from typing import Any

import click

from posbias.cli.options import (
    Sectioned,
    engine_options,
    force_option,
    harvest_options,
    log_options,
    make_harvest,
    tell,
)


@click.command(cls=Sectioned, sections={"Output": ("output",)})
@log_options
@click.option("-o", "--output", required=True, metavar="FILE", help="The Parquet file to write.")
@harvest_options
@force_option
@engine_options
def harvest(output: str, **flags: Any) -> None:
    """Harvest the interventions of a log into one small file."""
    from posbias._files import HARVEST, refuse_other, writable
    from posbias.engines.files import refuse_overwriting

    writable(output)
    refuse_overwriting(output, [*flags["log"], *filter(None, [flags["rankings"]])])
    refuse_other(output, HARVEST)
    made = make_harvest(flags)
    made.save(output)
    tell(f"{made!r} written to {output}")
