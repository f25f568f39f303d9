"""posbias plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from posbias.cli.options import (
    Sectioned,
    comparison_options,
    engine_options,
    force_option,
    given,
    level_option,
    load_harvest,
    make_log,
    maybe_log_options,
    plot_file,
    running,
    show_json,
    warn,
)
from posbias.estimators import FROM_HARVESTS

if TYPE_CHECKING:
    from posbias.harvesting.harvest import Harvest
    from posbias.planning.plan import Plan

# As `posbias.planning.measured` has them, whose import would take longer than any help text may.
# What is assumed where there is no log.
_WORLD = ("eta", "curve", "rankers", "similarity", "quality", "repeats", "relevant", "noise")
_BOTH = ("precision", "estimator", "level", "queries", "seed", "as_json", "plot", "traffic", "max_rank", "assume")


def _splits(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[dict[str, float]]:
    """Return each NAME=SHARE,NAME=SHARE as a mapping."""
    return [_split(value) for value in values]


def _split(text: str) -> dict[str, float]:
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        split = {name.strip(): float(share) for name, _, share in parts}
    except ValueError:
        split = {}
    if "" in split or len(split) < len(parts):
        raise click.BadParameter(f"expected a share for each ranker, such as a=0.5,b=0.5, not {text!r}.")
    return split


def _names(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Return names of rankers, or so many of them as a number says."""
    if value.isascii() and value.isdigit():
        if not 2 <= int(value) <= 26:
            raise click.BadParameter(f"expected 2 to 26 rankers, or their names, not {value!r}.")
        return tuple("abcdefghijklmnopqrstuvwxyz"[: int(value)])
    return tuple(name.strip() for name in value.split(","))


@click.command(
    cls=Sectioned,
    sections={
        "Plan": ("precision", "queries", "traffic", "scenarios", "max_rank", "estimator", "level", "seed"),
        "Output": ("plot", "as_json"),
        "Before any data": (
            "assume",
            "eta",
            "curve",
            "rankers",
            "similarity",
            "quality",
            "repeats",
            "relevant",
            "noise",
        ),
    },
)
@maybe_log_options
@click.option(
    "--precision",
    type=click.FloatRange(0, 1000, min_open=True, max_open=True),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="What is wanted: intervals of ± so many percent.",
)
@click.option(
    "--estimator",
    type=click.Choice(list(FROM_HARVESTS)),
    multiple=True,
    help="Plan for this one; may be repeated.  [default: all]",
)
@level_option
@click.option(
    "--queries",
    type=click.IntRange(1),
    metavar="N",
    help="Distinct queries of a harvest, which does not know them; with --assume, those to tell ± for.",
)
@click.option(
    "--traffic",
    multiple=True,
    callback=_splits,
    metavar="NAME=SHARE,...",
    help="Another split of traffic, such as a=0.5,b=0.5; may be repeated. With --assume, the split.",
)
@click.option(
    "--scenarios/--no-scenarios",
    default=True,
    show_default=True,
    help="Look at other traffic and at one more ranker.",
)
@click.option("--assume", is_flag=True, help="Plan before any data, for the world of the next flags.")
@click.option("--eta", type=float, default=1.0, show_default=True, help="The assumed curve is (1/rank)^eta.")
@click.option("--curve", metavar="FILE", help="The assumed curve: JSON of posbias estimate, or a truth.")
@click.option(
    "--rankers", callback=_names, default="a,b", show_default=True, help="Assumed: names, or how many there are."
)
@click.option("--similarity", type=float, default=0.8, show_default=True, help="Assumed: 0 unrelated, 1 identical.")
@click.option("--quality", type=float, default=1.0, show_default=True, help="Assumed: how well rankers rank.")
@click.option("--repeats", type=float, default=10.0, show_default=True, help="Assumed: mean page views of a query.")
@click.option("--relevant", type=float, default=0.3, show_default=True, help="Assumed: share of relevant documents.")
@click.option("--noise", type=float, default=0.1, show_default=True, help="Assumed: clicks on irrelevant ones (ε₋).")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of what is drawn.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--plot", metavar="FILE", callback=plot_file, help="Draw ± against queries as .png, .svg or .pdf.")
@comparison_options
@force_option
@engine_options
def plan(
    precision: float,
    estimator: tuple[str, ...],
    level: float,
    seed: int,
    as_json: bool,
    plot: str | None,
    **flags: Any,
) -> None:
    """Say how much more data the curve needs to be precise.

    LOG is a click log, or a harvest of one. How many more queries until the interval at each rank is ±5%, by
    estimator; and what as many page views would bring with another split of traffic, or with one more ranker. Before
    there is any data, --assume plans for a world that is simulated.
    """
    _refuse_unfit(flags)
    if plot is not None:
        from posbias._files import PICTURE, writable

        writable(plot, PICTURE)
    settings = {
        "precision": precision / 100,
        "level": level,
        "estimators": estimator or list(FROM_HARVESTS),
        "seed": seed,
    }
    made = _assumed(settings, flags) if flags["assume"] else _planned(settings, flags)
    if as_json:
        show_json(made.to_dict())
    else:
        click.echo(made.to_text())
    if plot is not None:
        from posbias.planning.plan import save_plan

        save_plan(made, plot)


def _refuse_unfit(flags: dict[str, Any]) -> None:
    """Refuse flags of a log where a world is assumed, and the other way round."""
    if not flags["log"] and not flags["assume"]:
        raise click.UsageError("There is no LOG. Give a log or a harvest, or --assume to plan before any data.")
    if flags["log"] and flags["assume"]:
        raise click.UsageError("--assume plans before any data. Leave it out, or leave out LOG.")
    if flags["assume"]:
        unfit = [name for name in given(click.get_current_context()) if name not in (*_WORLD, *_BOTH)]
        why = "goes with a log or a harvest. Leave it out, or leave out --assume"
    else:
        unfit = [name for name in given(click.get_current_context()) if name in _WORLD]
        why = "is assumed where there is no log. Leave it out, or plan with --assume and no LOG"
    if unfit:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in unfit)
        raise click.UsageError(f"{names} {why}.")


def _assumed(settings: dict[str, Any], flags: dict[str, Any]) -> Plan:
    """Plan for the world that the flags describe."""
    from posbias.planning.forecast import shares_of
    from posbias.planning.plan import plan, read_curve
    from posbias.progress import bar
    from posbias.simulation import World

    if len(flags["traffic"]) > 1:
        raise click.UsageError("An assumed world has one split of traffic. Give --traffic once.")
    rankers = flags["rankers"]
    traffic = tuple(shares_of(flags["traffic"][0], rankers).tolist()) if flags["traffic"] else None
    names = ("eta", "similarity", "quality", "repeats", "relevant", "noise", "max_rank")
    world = World(rankers=rankers, traffic=traffic, **{name: flags[name] for name in names})
    curve = None if flags["curve"] is None else read_curve(flags["curve"])
    with bar() as progress:
        return plan(world, queries=flags["queries"], curve=curve, progress=progress, **settings)


def _planned(settings: dict[str, Any], flags: dict[str, Any]) -> Plan:
    """Plan from the harvest given, or from that of the log."""
    from posbias.planning.plan import plan
    from posbias.progress import bar

    queries, traffic, scenarios = (flags.pop(name) for name in ("queries", "traffic", "scenarios"))
    for name in (*_WORLD, "assume"):
        flags.pop(name)
    made = load_harvest(flags, weighted=False)
    if made is None:
        made, counted = _counted(flags)
        queries = counted if queries is None else queries
    with bar() as progress:
        return plan(made, queries=queries, traffic=traffic, scenarios=scenarios, progress=progress, **settings)


def _counted(flags: dict[str, Any]) -> tuple[Harvest, int]:
    """Harvest the log that the flags describe, and count its queries."""
    from posbias.harvesting.harvest import harvest
    from posbias.planning.plan import count_queries

    log = make_log(flags)
    settings = {name: flags.pop(name) for name in ("max_rank", "weighting", "non_functional", "force")}
    with running(flags) as engine:
        made = harvest(log, **settings, **engine)
        queries = count_queries(log, settings["max_rank"], **engine)
    warn(made.findings)
    return made, queries
