"""posbias simulate."""

from __future__ import annotations

from typing import Any

import click

from posbias._validate import DEFAULT_MAX_RANK
from posbias.cli.options import Sectioned, tell


def _numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    if value is None:
        return None
    try:
        return tuple(float(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"expected numbers with commas between them, such as 0.9,0.1, not {value!r}") from None


@click.command(
    cls=Sectioned,
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
    help="Where each ranker's ranks are: in columns, in a second file, nowhere.",
)
@click.option("--rankers", default="a,b", show_default=True, help="Names with commas between them.")
@click.option("--similarity", type=float, default=0.8, show_default=True, help="0: unrelated, 1: identical rankers.")
@click.option(
    "--quality", callback=_numbers, default="1", show_default=True, help="How well rankers rank; one or each."
)
@click.option("--traffic", callback=_numbers, help="Shares of traffic, such as 0.9,0.1.  [default: equal]")
@click.option("--queries", type=int, default=10_000, show_default=True, help="Distinct queries.")
@click.option("--repeats", type=float, default=10.0, show_default=True, help="Mean page views of a query.")
@click.option("--skew", type=float, default=0.0, show_default=True, help="Spread of the repeats; 0: all the same.")
@click.option("--eta", type=float, default=1.0, show_default=True, help="The curve is (1/rank)^eta.")
@click.option("--noise", type=float, default=0.1, show_default=True, help="Clicks on irrelevant results (ε₋).")
@click.option("--relevant", type=float, default=0.3, show_default=True, help="Share of relevant documents.")
@click.option("--random", multiple=True, metavar="NAME", help="Ranker that shows results in random order; repeat.")
@click.option("--sticky", is_flag=True, help="One ranker serves all page views of a query.")
@click.option(
    "--max-rank", type=int, default=DEFAULT_MAX_RANK, show_default=True, metavar="M", help="Results on a page."
)
@click.option("--candidates", type=int, help="Documents of a query.  [default: M + 5]")
@click.option("--segment", multiple=True, metavar="NAME=ETA", help="A device with a curve of its own; repeat.")
@click.option("--aggregated", is_flag=True, help="Write impressions and clicks in place of single clicks.")
@click.option("--ids", type=click.Choice(["int", "str"]), default="int", show_default=True, help="Numbers or text.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same log.")
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

    OUTPUT is .parquet, .csv, .csv.gz or .jsonl. The truth is written beside it as <name>.truth.json, and in the long
    layout the rankings as <name>.rankings.<ending>.
    """
    from posbias.progress import bar
    from posbias.simulation import World, write

    quality = settings.pop("quality")
    world = World(
        rankers=tuple(name.strip() for name in rankers.split(",")),
        quality=quality[0] if len(quality) == 1 else quality,
        segments=dict(_segment(text) for text in segment),
        **settings,
    )
    with bar() as progress:
        made = write(
            world,
            output,
            layout,
            aggregated=aggregated,
            ids=ids,
            progress=lambda n, of: progress("Simulating", n / of),
        )
    also = f", {made.rankings}" if made.rankings else ""
    tell(f"{made.rows:,} rows of {made.page_views:,} page views written to {made.log}; truth in {made.truth}{also}")


def _segment(text: str) -> tuple[str, float]:
    name, _, eta = text.rpartition("=")
    try:
        return name, float(eta)
    except ValueError:
        raise click.BadParameter(
            f"expected NAME=ETA such as mobile=1.5, not {text!r}", param_hint="--segment"
        ) from None
