"""The command `posbias plan`."""

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

# Flags that describe the assumed world, where there is no log.
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
    help="The target: confidence intervals of ± this many percent.",
)
@click.option(
    "--estimator",
    type=click.Choice(list(FROM_HARVESTS)),
    multiple=True,
    help="Estimator to plan for; may be repeated.  [default: all]",
)
@level_option
@click.option(
    "--queries",
    type=click.IntRange(1),
    metavar="N",
    help="Number of distinct queries of a harvest, which does not contain it; with --assume, show ± for so many.",
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
    help="Forecast other traffic and one more ranker.",
)
@click.option(
    "--assume", is_flag=True, help="Plan before there is any data, for the world that the next flags describe."
)
@click.option("--eta", type=float, default=1.0, show_default=True, help="The assumed curve is (1/rank)^eta.")
@click.option(
    "--curve",
    metavar="FILE",
    help="The assumed curve: JSON of posbias estimate, or the truth file of posbias simulate.",
)
@click.option(
    "--rankers", callback=_names, default="a,b", show_default=True, help="Assumed: names, or how many there are."
)
@click.option("--similarity", type=float, default=0.8, show_default=True, help="Assumed: 0 unrelated, 1 identical.")
@click.option("--quality", type=float, default=1.0, show_default=True, help="Assumed: how well rankers rank.")
@click.option("--repeats", type=float, default=10.0, show_default=True, help="Assumed: mean page views of a query.")
@click.option("--relevant", type=float, default=0.3, show_default=True, help="Assumed: share of relevant documents.")
@click.option("--noise", type=float, default=0.1, show_default=True, help="Assumed: clicks on irrelevant ones (ε₋).")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random draws.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--plot", metavar="FILE", callback=plot_file, help="Plot ± against queries to .png, .svg or .pdf.")
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
    """Plan how much more data the curve needs to be precise.

    LOG is a click log, or a harvest of one. The plan shows how many more queries bring the interval at each rank to
    ±5%, by estimator, and what the same page views would bring with another split of traffic or with one more ranker.
    Before there is any data, --assume plans for a simulated world.
    """
    _check_flags(flags)
    if plot is not None:
        from posbias._files import PICTURE, writable

        writable(plot, PICTURE)
    settings = {
        "precision": precision / 100,
        "level": level,
        "estimators": estimator or list(FROM_HARVESTS),
        "seed": seed,
    }
    result = _plan_world(settings, flags) if flags["assume"] else _plan_log(settings, flags)
    if as_json:
        show_json(result.to_dict())
    else:
        click.echo(result.to_text())
    if plot is not None:
        from posbias.planning.plan import save_plan

        save_plan(result, plot)


def _check_flags(flags: dict[str, Any]) -> None:
    """Reject flags of a log with an assumed world, and flags of a world with a log."""
    if not flags["log"] and not flags["assume"]:
        raise click.UsageError(
            "There is no LOG. Give a log or a harvest, or --assume to plan before there is any data."
        )
    if flags["log"] and flags["assume"]:
        raise click.UsageError("--assume plans before there is any data. Leave it out, or leave out LOG.")
    if flags["assume"]:
        unfit = [name for name in given(click.get_current_context()) if name not in (*_WORLD, *_BOTH)]
        why = "goes with a log or a harvest. Leave it out, or leave out --assume"
    else:
        unfit = [name for name in given(click.get_current_context()) if name in _WORLD]
        why = "describes an assumed world. Leave it out, or plan with --assume and no LOG"
    if unfit:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in unfit)
        raise click.UsageError(f"{names} {why}.")


def _plan_world(settings: dict[str, Any], flags: dict[str, Any]) -> Plan:
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


def _plan_log(settings: dict[str, Any], flags: dict[str, Any]) -> Plan:
    """Plan from a harvest, or from a log that is harvested first."""
    from posbias.planning.plan import plan
    from posbias.progress import bar

    queries, traffic, scenarios = (flags.pop(name) for name in ("queries", "traffic", "scenarios"))
    for name in (*_WORLD, "assume"):
        flags.pop(name)
    harvest = load_harvest(flags, weighted=False)
    if harvest is None:
        harvest, counted = _harvest_and_count(flags)
        queries = counted if queries is None else queries
    with bar() as progress:
        return plan(harvest, queries=queries, traffic=traffic, scenarios=scenarios, progress=progress, **settings)


def _harvest_and_count(flags: dict[str, Any]) -> tuple[Harvest, int]:
    """Harvest the log that the flags describe, and count its queries."""
    from posbias.harvesting.harvest import harvest as make_harvest
    from posbias.planning.plan import count_queries

    log = make_log(flags)
    settings = {name: flags.pop(name) for name in ("max_rank", "weighting", "non_functional", "force")}
    with running(flags) as engine:
        harvest = make_harvest(log, **settings, **engine)
        queries = count_queries(log, settings["max_rank"], **engine)
    warn(harvest.findings)
    return harvest, queries
