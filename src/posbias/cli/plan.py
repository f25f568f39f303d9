"""The command `posbias plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from posbias.cli.options import (
    SectionedCommand,
    engine_from_flags,
    estimator_option,
    flag_name,
    force_option,
    given_parameters,
    json_option,
    level_option,
    load_harvest,
    log_from_flags,
    max_rank_and_engine_options,
    optional_log_options,
    parse_shares,
    plot_option,
    print_findings,
    print_json,
    refuse_unwritable_plot,
    weighting_options,
)
from posbias.estimators import FROM_HARVESTS

if TYPE_CHECKING:
    from posbias.harvesting.harvest import Harvest
    from posbias.planning.plan import Plan

# Flags that describe an assumed world, and flags that go with a log and with an assumed world.
_WORLD_FLAGS = ("eta", "curve", "rankers", "similarity", "quality", "repeats", "relevant", "noise")
# In percent. A smaller number is a share that was meant for the library.
_FINEST_PRECISION = 0.1
_COMMON_FLAGS = (
    "precision",
    "estimator",
    "level",
    "queries",
    "seed",
    "as_json",
    "plot",
    "traffic",
    "max_rank",
    "assume",
)


def _parse_splits(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[dict[str, float]]:
    return [parse_shares(value) for value in values]


def _parse_rankers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Return the names of rankers, or the names a, b, ... for a number of rankers."""
    if value.isascii() and value.isdigit():
        if not 2 <= int(value) <= 26:
            raise click.BadParameter(f"expected 2 to 26 rankers, or their names, not {value!r}.")
        return tuple("abcdefghijklmnopqrstuvwxyz"[: int(value)])
    return tuple(name.strip() for name in value.split(","))


def _check_precision(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """Return the precision in percent; reject a share, which is what the library takes."""
    if value < _FINEST_PRECISION:
        raise click.BadParameter(
            f"{value:g} is in percent and too small; the finest is {_FINEST_PRECISION:g}. Write {value * 100:g} for "
            f"±{value * 100:g}%."
        )
    return value


@click.command(
    cls=SectionedCommand,
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
@optional_log_options
@click.option(
    "--precision",
    type=click.FloatRange(0, 1000, min_open=True, max_open=True),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    callback=_check_precision,
    help="Wanted precision: half-width of the intervals, in percent.",
)
@estimator_option(multiple=True, help="Estimator to plan for; may be repeated.")
@level_option
@click.option(
    "--queries",
    type=click.IntRange(1),
    metavar="N",
    help="Number of distinct queries of a harvest, which does not store it; with --assume, of the planned log.",
)
@click.option(
    "--traffic",
    multiple=True,
    callback=_parse_splits,
    metavar="NAME=SHARE,...",
    help="Another split of traffic to plan for, such as a=0.5,b=0.5; may be repeated. With --assume, the split.",
)
@click.option(
    "--scenarios/--no-scenarios",
    default=True,
    show_default=True,
    help="Also plan for other splits of traffic and for one more ranker.",
)
@click.option("--assume", is_flag=True, help="Plan without data, for the world that the next options describe.")
@click.option("--eta", type=float, default=1.0, show_default=True, help="The assumed curve is (1/rank)^eta.")
@click.option(
    "--curve", metavar="FILE", help="File of the assumed curve: from posbias estimate --json, or a truth file."
)
@click.option(
    "--rankers",
    callback=_parse_rankers,
    default="a,b",
    show_default=True,
    help="Assumed rankers: their names, or their number.",
)
@click.option(
    "--similarity", type=float, default=0.8, show_default=True, help="Assumed similarity: 0 unrelated, 1 identical."
)
@click.option("--quality", type=float, default=1.0, show_default=True, help="Assumed ranking quality.")
@click.option(
    "--repeats", type=float, default=10.0, show_default=True, help="Assumed mean number of page views of a query."
)
@click.option("--relevant", type=float, default=0.3, show_default=True, help="Assumed share of relevant documents.")
@click.option(
    "--noise", type=float, default=0.1, show_default=True, help="Assumed click probability of irrelevant results (ε₋)."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed.")
@json_option
@plot_option("Draw the precision against the number of queries")
@weighting_options
@force_option
@max_rank_and_engine_options
def plan(
    precision: float,
    estimator: tuple[str, ...],
    level: float,
    seed: int,
    as_json: bool,
    plot: str | None,
    **flags: Any,
) -> None:
    """Plan how much more data a precise curve needs.

    LOG is a click log or a harvest. For each estimator, the plan says how many more queries make the interval at each
    rank as narrow as --precision, and what the same number of page views would achieve with another split of traffic
    or with one more ranker. Without data, --assume plans for a simulated world.
    """
    _refuse_incompatible_flags(flags)
    refuse_unwritable_plot(plot)
    settings = {
        "precision": precision / 100,
        "level": level,
        "estimators": estimator or list(FROM_HARVESTS),
        "seed": seed,
    }
    result = _plan_for_world(settings, flags) if flags["assume"] else _plan_from_log(settings, flags)
    if as_json:
        print_json(result.to_dict())
    else:
        click.echo(result.to_text())
    if plot is not None:
        from posbias.planning.plan import save_plan

        save_plan(result, plot)


def _refuse_incompatible_flags(flags: dict[str, Any]) -> None:
    """Refuse flags of a log with an assumed world, and flags of a world with a log."""
    if not flags["log"] and not flags["assume"]:
        raise click.UsageError("LOG is missing. Give a log or a harvest, or --assume to plan without data.")
    if flags["log"] and flags["assume"]:
        raise click.UsageError("--assume plans without data. Leave it out, or leave out LOG.")
    given = given_parameters(click.get_current_context())
    if flags["assume"]:
        refused = [name for name in given if name not in (*_WORLD_FLAGS, *_COMMON_FLAGS)]
        reason = "is for a log or a harvest only. Leave it out, or leave out --assume"
    else:
        refused = [name for name in given if name in _WORLD_FLAGS]
        reason = "is for an assumed world only. Leave it out, or plan with --assume and without LOG"
    if refused:
        raise click.UsageError(f"{', '.join(map(flag_name, refused))} {reason}.")


def _plan_for_world(settings: dict[str, Any], flags: dict[str, Any]) -> Plan:
    """Plan for the world that the flags describe."""
    from posbias.planning.forecast import shares_of
    from posbias.planning.plan import plan, read_curve
    from posbias.progress import show_progress
    from posbias.simulation import World

    if len(flags["traffic"]) > 1:
        raise click.UsageError("An assumed world has one split of traffic. Give --traffic once.")
    rankers = flags["rankers"]
    traffic = tuple(shares_of(flags["traffic"][0], rankers).tolist()) if flags["traffic"] else None
    names = ("eta", "similarity", "quality", "repeats", "relevant", "noise", "max_rank")
    world = World(rankers=rankers, traffic=traffic, **{name: flags[name] for name in names})
    curve = None if flags["curve"] is None else read_curve(flags["curve"])
    with show_progress() as progress:
        return plan(world, queries=flags["queries"], curve=curve, progress=progress, **settings)


def _plan_from_log(settings: dict[str, Any], flags: dict[str, Any]) -> Plan:
    """Plan from the given harvest, or from the harvest of the log."""
    from posbias.planning.plan import plan
    from posbias.progress import show_progress

    queries, traffic, scenarios = (flags.pop(name) for name in ("queries", "traffic", "scenarios"))
    for name in (*_WORLD_FLAGS, "assume"):
        flags.pop(name)
    harvest = load_harvest(flags, reweightable=False)
    if harvest is None:
        harvest, counted = _harvest_and_count_queries(flags)
        queries = counted if queries is None else queries
    with show_progress() as progress:
        return plan(harvest, queries=queries, traffic=traffic, scenarios=scenarios, progress=progress, **settings)


def _harvest_and_count_queries(flags: dict[str, Any]) -> tuple[Harvest, int]:
    """Harvest the log that the flags describe, and count its queries."""
    from posbias.harvesting.harvest import harvest
    from posbias.planning.plan import count_queries

    log = log_from_flags(flags)
    settings = {name: flags.pop(name) for name in ("max_rank", "weighting", "non_functional", "force")}
    with engine_from_flags(flags) as engine:
        harvested = harvest(log, **settings, **engine)
        queries = count_queries(log, settings["max_rank"], **engine)
    print_findings(harvested.findings)
    return harvested, queries
