"""posbias merge."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from posbias.cli.options import Sectioned, force_option, tell, warn
from posbias.errors import HarvestError


@click.command(cls=Sectioned, sections={"Output": ("output", "force")})
@click.argument("harvests", nargs=-1, required=True, metavar="HARVEST...")
@click.option("-o", "--output", required=True, metavar="FILE", help="The Parquet file to write.")
@force_option
def merge(harvests: tuple[str, ...], output: str, force: bool) -> None:
    """Merge harvests, such as a week of days, into one.

    For wide and long logs the result equals the harvest of all logs together. In replay each part keeps its own
    pairs: see docs/log.md.
    """
    from posbias._files import HARVEST, refuse_other, writable
    from posbias.engines.files import refuse_overwriting
    from posbias.harvesting.harvest import Harvest
    from posbias.harvesting.merge import merge as merge_harvests
    from posbias.progress import bar

    writable(output)
    refuse_overwriting(output, harvests)
    refuse_other(output, HARVEST)
    _refuse_twice(harvests)
    with bar() as progress:

        def load(number: int) -> Harvest:
            progress("Merging", number / len(harvests))
            return Harvest.load(harvests[number], force=force)

        made = merge_harvests(map(load, range(len(harvests))))
    warn(made.findings)
    made.save(output)
    tell(f"{made!r} written to {output}")


def _refuse_twice(harvests: tuple[str, ...]) -> None:
    """Refuse a file that is given twice, or a copy of it: all that it holds would count twice."""
    seen: dict[str, int] = {}
    for number, name in enumerate(harvests):
        # What is no file is refused where it is read.
        if not Path(name).is_file():
            continue
        with open(name, "rb") as file:
            first = seen.setdefault(hashlib.file_digest(file, "sha256").hexdigest(), number)
        if first != number:
            again = "is given twice" if harvests[first] == name else f"is the same as {harvests[first]!r}"
            raise HarvestError(f"{name!r} {again}, and all that it holds would count twice. Give each harvest once.")
