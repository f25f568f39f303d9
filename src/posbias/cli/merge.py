"""The command `posbias merge`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from posbias.cli.options import SectionedCommand, force_option, print_findings, print_to_stderr
from posbias.errors import HarvestError


@click.command(cls=SectionedCommand, sections={"Output": ("output", "force")})
@click.argument("harvests", nargs=-1, required=True, metavar="HARVEST...")
@click.option("-o", "--output", required=True, metavar="FILE", help="Parquet file to write.")
@force_option
def merge(harvests: tuple[str, ...], output: str, force: bool) -> None:
    """Merge harvests, such as those of seven days, into one.

    For wide and long logs the result equals the harvest of all logs together. In replay, documents are compared within
    each harvest only: see docs/merging.md.
    """
    from posbias._files import HARVEST, check_replaceable, writable
    from posbias.engines.files import refuse_overwriting
    from posbias.harvesting.harvest import Harvest
    from posbias.harvesting.merge import merge as merge_harvests
    from posbias.progress import show_progress

    writable(output)
    refuse_overwriting(output, harvests)
    check_replaceable(output, HARVEST)
    _refuse_duplicates(harvests)
    with show_progress() as progress:

        def load(number: int) -> Harvest:
            progress("Merging", number / len(harvests))
            return Harvest.load(harvests[number], force=force)

        merged = merge_harvests(map(load, range(len(harvests))), force=force)
    print_findings(merged.findings)
    merged.save(output)
    print_to_stderr(f"{merged!r} written to {output}")


def _refuse_duplicates(harvests: tuple[str, ...]) -> None:
    """Refuse a harvest that is given twice, also as a copy: it would be counted twice."""
    seen: dict[str, int] = {}
    for number, name in enumerate(harvests):
        # Loading reports a path that is not a file.
        if not Path(name).is_file():
            continue
        with open(name, "rb") as file:
            first = seen.setdefault(hashlib.file_digest(file, "sha256").hexdigest(), number)
        if first != number:
            again = "is given twice" if harvests[first] == name else f"is the same as {harvests[first]!r}"
            raise HarvestError(f"{name!r} {again}, so it would be counted twice. Give each harvest once.")
