"""The command `posbias estimate`."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import click

from posbias._text import printable_lines
from posbias.cli.options import (
    ABOUT_THE_LOG,
    Sectioned,
    engine_options,
    force_option,
    given,
    harvest_options,
    level_option,
    load_harvest,
    log_options,
    make_harvest,
    make_log,
    plot_file,
    running,
    show_json,
    tell,
    warn,
)
from posbias.estimators import DEFAULT, ESTIMATORS, FROM_LOGS, estimator_class

if TYPE_CHECKING:
    from posbias.estimators import CurveEstimator
    from posbias.harvesting.harvest import Harvest

# Flags that only some estimators take, by the parameter they become.
_PARAMETERS = {
    "level": "level",
    "interval": "interval",
    "joint": "interval",
    "bootstrap": "bootstrap",
    "seed": "seed",
    "feature": "features",
    "pool": "pool",
    "prior": "prior",
    "random": "ranker",
    "weighting": "weighting",
}


@click.command(
    cls=Sectioned,
    sections={
        "Curve": (
            "estimator",
            "by",
            "max_rank",
            "pool",
            "level",
            "joint",
            "interval",
            "bootstrap",
            "seed",
            "random",
            "feature",
            "prior",
        ),
        **ABOUT_THE_LOG,
        "Output": ("plot", "as_json", "as_csv", "truth"),
    },
)
@log_options
@click.option(
    "--estimator",
    type=click.Choice(list(ESTIMATORS)),
    metavar="NAME",
    help=f"How clicks make a curve: {', '.join(ESTIMATORS)}.  [default: cross-fit; all-pairs for a harvest of sums]",
)
@click.option("--feature", multiple=True, metavar="COLUMN", help="Feature of regression-em; may be repeated.")
@click.option("--random", metavar="NAME", help="Ranker of random-traffic: it shows results in random order.")
@level_option
@click.option(
    "--interval",
    type=click.Choice(["jackknife", "bootstrap", "none"]),
    default="jackknife",
    show_default=True,
    help="How intervals are made.",
)
@click.option("--bootstrap", type=click.IntRange(1), default=1000, show_default=True, help="Resamples.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the resamples.")
@click.option("--pool", is_flag=True, help="Draw thin segments toward the curve of all, as far as they are alike.")
@click.option("--joint", is_flag=True, help="Show a band that holds the whole curve at once.")
@click.option("--prior", type=click.FloatRange(0), default=1.0, show_default=True, help="Imagined views of pbm-em.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--plot", metavar="FILE", callback=plot_file, help="Draw the curve with its band as .png, .svg or .pdf.")
@click.option("--truth", metavar="FILE", help="A simulated log's truth, to show in the table or plot.")
@harvest_options
@force_option
@engine_options
def estimate(
    estimator: str | None,
    feature: tuple[str, ...],
    random: str | None,
    level: float,
    interval: str,
    bootstrap: int,
    seed: int,
    pool: bool,
    joint: bool,
    prior: float,
    as_json: bool,
    as_csv: bool,
    plot: str | None,
    truth: str | None,
    **flags: Any,
) -> None:
    """Estimate the propensity curve of a log or a harvest.

    LOG is a click log, a file that `posbias harvest` or `posbias merge` wrote, or the exported result of a query that
    `posbias sql` printed.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other: stdout holds one of them.")
    if (as_json or as_csv) and truth is not None and plot is None:
        raise click.UsageError(
            f"--truth is shown in the table or in a --plot, not by {'--json' if as_json else '--csv'}. Leave one out."
        )
    _check_intervals(estimator, interval, joint)
    if plot is not None:
        from posbias._files import PICTURE, writable
        from posbias._optional import import_meanwhile, require

        require("matplotlib", "Pictures need")
        writable(plot, PICTURE)
        import_meanwhile("matplotlib.figure", "matplotlib.backends.backend_agg")
    known = None
    if truth is not None:
        from posbias.curves.files import read_truth

        known = read_truth(truth)
    settings = {
        "level": level,
        "interval": None if interval == "none" else interval,
        "bootstrap": bootstrap,
        "seed": seed,
        "pool": pool,
        "prior": prior,
        "features": list(feature),
        "ranker": random,
    }
    fitted = _fit(estimator, settings, flags)
    curve = fitted.curve()
    joint = joint and curve.interval_by is not None
    if as_json or as_csv:
        for note in curve.notes:
            tell(f"Note: {note}", fg="yellow")
    if as_json:
        show_json(curve.to_dict(joint=joint))
    elif as_csv:
        text = curve.to_csv(joint=joint)
        # A program gets the values as they are, colours and all; a terminal would obey some.
        click.echo(printable_lines(text) if sys.stdout.isatty() else text, nl=False, color=True)
    else:
        click.echo(curve.to_text(known, joint=joint))
        _show_brief(fitted, of_all=bool(curve.segments))
    if plot is not None:
        from posbias.curves.curve import save_plot

        save_plot(curve, plot, truth=known, joint=joint)


def _check_intervals(estimator: str | None, interval: str, joint: bool) -> None:
    """Refuse flags about intervals that are not made."""
    pass

    said = {*given(click.get_current_context())}
    if interval != "bootstrap" and "bootstrap" in said:
        raise click.UsageError(
            "--bootstrap says how many resamples to draw. Add --interval bootstrap, or leave it out."
        )
    # An estimator without intervals draws something else by it, or has no use for it and says so.
    if (
        interval != "bootstrap"
        and "seed" in said
        and "interval" in parameters_of(estimator_class(estimator or DEFAULT))
    ):
        raise click.UsageError("--seed says how resamples are drawn. Add --interval bootstrap, or leave it out.")
    if joint and interval != "jackknife":
        raise click.UsageError(f"--joint is made of jackknife intervals. Leave out --interval {interval}.")


def parameters_of(kind: type[CurveEstimator]) -> set[str]:
    """Return the names of what an estimator is made with."""
    return {*inspect.signature(kind).parameters}


def _fit(name: str | None, settings: dict[str, Any], flags: dict[str, Any]) -> CurveEstimator:
    """Fit an estimator on the harvest given, on the rows of the log if that is what it takes, or on their harvest."""
    pass

    settings = settings | {"weighting": flags["weighting"]}
    if name is None and flags["weighting"] is not None:
        # It says how pairs are compared, which the default does not do.
        name = "all-pairs"
        tell("Note: --weighting is for pairs of ranks: this is the curve of --estimator all-pairs.", fg="yellow")
    if name is None or name not in FROM_LOGS or "log" not in estimator_class(name).fits_on:
        if {"feature", "pool", "prior", "random", "weighting"} & {*given(click.get_current_context())}:
            refuse_unused(estimator_class(name or DEFAULT))
        loaded = load_harvest(flags, weighted=True)
        if settings["pool"] and not (flags["by"] if loaded is None else loaded.by):
            raise click.UsageError("--pool is for segments, and there are none. Add --by COLUMN, or leave it out.")
        harvest = loaded or make_harvest(flags)
        # Imported when the harvest is there: the engine counts meanwhile.
        kind = estimator_class(name or _default(harvest))
        if settings["pool"]:
            refuse_unused(kind)
        return made_of(kind, settings).fit(harvest)  # type: ignore[no-any-return]
    kind = estimator_class(name)
    refuse_unused(kind)
    refuse_harvest(kind, flags["log"])
    loaded = load_harvest(flags, weighted=False)
    if loaded is None:
        return fit_log(kind, settings | {"max_rank": flags["max_rank"]}, flags)
    return made_of(kind, settings).fit(loaded)  # type: ignore[no-any-return]


def refuse_unused(kind: type[CurveEstimator]) -> None:
    """Refuse flags on the command line that an estimator has no use for."""
    takes = parameters_of(kind)
    unused = {flag for flag, parameter in _PARAMETERS.items() if parameter not in takes}
    if "log" in kind.fits_on:
        # It says how a harvest compares documents at several ranks.
        unused.add("non_functional")
    found = [f"--{name.replace('_', '-')}" for name in given(click.get_current_context()) if name in unused]
    if found:
        raise click.UsageError(f"{kind.name} has no use for {', '.join(found)}. Leave it out.")


def _default(harvest: Harvest) -> str:
    """Return the estimator that is best for a harvest, and say why where that is not the usual one."""
    if harvest.kind != "pairs":
        return DEFAULT
    tell(
        f"Note: the harvest holds sums over pairs of ranks, from which {DEFAULT} cannot be made: this is the curve of "
        "--estimator all-pairs.",
        fg="yellow",
    )
    return "all-pairs"


def made_of(kind: type[CurveEstimator], settings: dict[str, Any]) -> Any:
    """Return an estimator made with those settings that it takes."""
    takes = parameters_of(kind)
    return kind(**{name: value for name, value in settings.items() if name in takes})


def refuse_harvest(kind: type[CurveEstimator], files: tuple[str, ...]) -> None:
    """Refuse a harvest where rows are needed."""
    from posbias.harvesting.files import is_harvest

    for path in files:
        if "harvest" not in kind.fits_on and is_harvest(path):
            raise click.UsageError(
                f"{path!r} is a harvest, and {kind.name} looks at the rows of a log, which a harvest no longer has. "
                "Give the log itself, or choose another --estimator."
            )


def fit_log(kind: type[CurveEstimator], settings: dict[str, Any], flags: dict[str, Any]) -> CurveEstimator:
    """Fit an estimator on the log that the flags describe."""
    estimator = made_of(kind, settings)
    log = make_log(flags)
    with running(flags) as engine:
        observations = estimator.observe(log, by=flags["by"], force=flags["force"], **engine)
    warn(observations.findings)
    estimator.fit(observations)
    if not getattr(estimator, "converged_", True):
        stopped = (
            f"{kind.name} stopped after {getattr(estimator, 'iterations_', 0)} iterations, its curve still moving."
        )
        tell(f"Note: {stopped}", fg="yellow")
    fitted: CurveEstimator = estimator
    return fitted


def _show_brief(fitted: CurveEstimator, *, of_all: bool) -> None:
    """Print what matters most of how far to trust a curve that was made of a harvest."""
    harvest = getattr(fitted, "harvest_", None)
    if harvest is None:
        return
    from posbias._text import folded, printable
    from posbias.judging.diagnose import summary_lines

    lines = summary_lines(harvest, fitted.degrees_of_freedom_)
    if of_all and lines:
        click.echo("\nall segments")
    for text in lines:
        for line in folded(printable(text)):
            click.secho(line, fg="yellow" if text.startswith("!") else None)
