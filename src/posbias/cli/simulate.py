"""The command `posbias simulate`."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import click

from posbias._defaults import DEFAULT_MAX_RANK
from posbias.cli.options import SectionedCommand, print_to_stderr

if TYPE_CHECKING:
    from posbias.simulation import World


def _parse_numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    if value is None:
        return None
    try:
        return tuple(float(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"expected numbers separated by commas, such as 0.9,0.1, not {value!r}") from None


@click.command(
    cls=SectionedCommand,
    sections={
        "Log": ("queries", "max_rank", "layout", "aggregated", "ids", "seed"),
        "Rankers": ("rankers", "similarity", "quality", "traffic", "sticky", "random"),
        "Queries": ("repeats", "skew", "relevant", "candidates"),
        "Users": ("eta", "noise", "segment"),
    },
)
@click.argument("output", metavar="OUTPUT")
@click.option(
    "--layout",
    type=click.Choice(["wide", "long", "replay"]),
    default="wide",
    show_default=True,
    help="Ranks by each ranker: in columns (wide), in a second file (long), or not stored (replay).",
)
@click.option("--rankers", default="a,b", show_default=True, help="Names of the rankers, separated by commas.")
@click.option(
    "--similarity",
    type=float,
    default=0.8,
    show_default=True,
    help="Similarity of the rankers: 0 unrelated, 1 identical.",
)
@click.option(
    "--quality",
    callback=_parse_numbers,
    default="1",
    show_default=True,
    help="Ranking quality: one number, or one for each ranker.",
)
@click.option("--traffic", callback=_parse_numbers, help="Shares of traffic, such as 0.9,0.1.  [default: equal]")
@click.option("--queries", type=int, default=10_000, show_default=True, help="Number of distinct queries.")
@click.option("--repeats", type=float, default=10.0, show_default=True, help="Mean number of page views of a query.")
@click.option(
    "--skew",
    type=float,
    default=0.0,
    show_default=True,
    help="Spread of the number of page views; 0: equal for all queries.",
)
@click.option("--eta", type=float, default=1.0, show_default=True, help="The curve is (1/rank)^eta.")
@click.option(
    "--noise", type=float, default=0.1, show_default=True, help="Click probability of irrelevant results (ε₋)."
)
@click.option("--relevant", type=float, default=0.3, show_default=True, help="Share of relevant documents.")
@click.option(
    "--random", multiple=True, metavar="NAME", help="Ranker that shows results in random order; may be repeated."
)
@click.option("--sticky", is_flag=True, help="Let one ranker serve all page views of a query.")
@click.option(
    "--max-rank",
    type=int,
    default=DEFAULT_MAX_RANK,
    show_default=True,
    metavar="M",
    help="Number of results on a page.",
)
@click.option("--candidates", type=int, help="Number of documents of a query.  [default: M + 5]")
@click.option("--segment", multiple=True, metavar="NAME=ETA", help="Device with its own curve; may be repeated.")
@click.option("--aggregated", is_flag=True, help="Write counts of impressions and clicks instead of single clicks.")
@click.option(
    "--ids",
    type=click.Choice(["int", "str"]),
    default="int",
    show_default=True,
    help="Write ids as numbers or as text.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed: the same seed gives the same log.")
def simulate(
    output: str,
    layout: Any,
    aggregated: bool,
    ids: Any,
    rankers: str,
    segment: tuple[str, ...],
    **settings: Any,
) -> None:
    """Simulate a click log with a known propensity curve.

    OUTPUT ends in .parquet, .csv, .csv.gz or .jsonl. The true curve is written next to it as <name>.truth.json, and in
    the long layout the rankings as <name>.rankings.<ending>.
    """
    from posbias.progress import show_progress
    from posbias.simulation import World, write

    quality = settings.pop("quality")
    world = World(
        rankers=tuple(name.strip() for name in rankers.split(",")),
        quality=quality[0] if len(quality) == 1 else quality,
        segments=_parse_segments(segment),
        **settings,
    )
    _refuse_full_disk(world, output)
    with show_progress() as progress:
        written = write(
            world,
            output,
            layout,
            aggregated=aggregated,
            ids=ids,
            progress=lambda done, total: progress("Simulating", done / total),
        )
    rankings_file = f", rankings in {written.rankings}" if written.rankings else ""
    print_to_stderr(
        f"{written.rows:,} rows of {written.page_views:,} page views written to {written.log}; true curve in "
        f"{written.truth}{rankings_file}"
    )


def _refuse_full_disk(world: World, output: str) -> None:
    """Refuse a log that cannot fit on the disk: a row takes a byte at least."""
    folder = os.path.dirname(os.path.abspath(output))
    rows = int(world.queries * world.repeats * world.max_rank)
    free = shutil.disk_usage(folder).free if os.path.isdir(folder) else rows
    if rows > free:
        raise click.UsageError(
            f"The log would have about {rows:,} rows, and {folder!r} has {free:,} bytes left. Lower --queries, "
            "--repeats or --max-rank."
        )


def _parse_segments(texts: tuple[str, ...]) -> dict[str, float]:
    segments: dict[str, float] = {}
    for name, eta in map(_parse_segment, texts):
        if name in segments:
            raise click.BadParameter(f"{name!r} is given twice", param_hint="--segment")
        segments[name] = eta
    return segments


def _parse_segment(text: str) -> tuple[str, float]:
    name, _, eta = text.rpartition("=")
    try:
        return name, float(eta)
    except ValueError:
        raise click.BadParameter(
            f"expected NAME=ETA such as mobile=1.5, not {text!r}", param_hint="--segment"
        ) from None
