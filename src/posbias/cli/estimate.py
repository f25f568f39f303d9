"""posbias estimate."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from posbias.cli.engines import engine_options, load_harvest, make_harvest
from posbias.cli.options import force_option, given, harvest_options, level_option, log_options, show_json, tell
from posbias.cli.outputs import plot_file
from posbias.cli.sections import ABOUT_THE_LOG, Sectioned
from posbias.estimators import ESTIMATORS
from posbias.wording import printable_lines

if TYPE_CHECKING:
    from posbias.estimators import CurveEstimator
    from posbias.harvesting.harvests import Harvest

DEFAULT = "cross-fit"


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
        from posbias.extras import import_meanwhile, require
        from posbias.replacing import PICTURE
        from posbias.writing import writable

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
        from posbias.curves.plots import save_plot

        save_plot(curve, plot, truth=known, joint=joint)


def _show_brief(fitted: CurveEstimator, *, of_all: bool) -> None:
    """Print what matters most of how far to trust a curve that was made of a harvest."""
    harvest = getattr(fitted, "harvest_", None)
    if harvest is None:
        return
    from posbias.judging.briefs import brief
    from posbias.tables import folded
    from posbias.wording import printable

    lines = brief(harvest, fitted.degrees_of_freedom_)
    if of_all and lines:
        click.echo("\nall segments")
    for text in lines:
        for line in folded(printable(text)):
            click.secho(line, fg="yellow" if text.startswith("!") else None)


def _check_intervals(estimator: str | None, interval: str, joint: bool) -> None:
    """Refuse flags about intervals that are not made."""
    from posbias.cli.log_estimates import parameters_of

    said = {*given(click.get_current_context())}
    if interval != "bootstrap" and "bootstrap" in said:
        raise click.UsageError(
            "--bootstrap says how many resamples to draw. Add --interval bootstrap, or leave it out."
        )
    # An estimator without intervals draws something else by it, or has no use for it and says so.
    if interval != "bootstrap" and "seed" in said and "interval" in parameters_of(ESTIMATORS[estimator or DEFAULT]):
        raise click.UsageError("--seed says how resamples are drawn. Add --interval bootstrap, or leave it out.")
    if joint and interval != "jackknife":
        raise click.UsageError(f"--joint is made of jackknife intervals. Leave out --interval {interval}.")


def _fit(name: str | None, settings: dict[str, Any], flags: dict[str, Any]) -> CurveEstimator:
    """Fit an estimator on the harvest given, on the rows of the log if that is what it takes, or on their harvest."""
    from posbias.cli.log_estimates import fit_log, made_of, refuse_harvest, refuse_unused

    settings = settings | {"weighting": flags["weighting"]}
    if name is None and flags["weighting"] is not None:
        # It says how pairs are compared, which the default does not do.
        name = "all-pairs"
        tell("Note: --weighting is for pairs of ranks: this is the curve of --estimator all-pairs.", fg="yellow")
    if name is None or name not in ESTIMATORS.of_logs or "log" not in ESTIMATORS[name].fits_on:
        if {"feature", "pool", "prior", "random", "weighting"} & {*given(click.get_current_context())}:
            refuse_unused(ESTIMATORS[name or DEFAULT])
        loaded = load_harvest(flags, weighted=True)
        if settings["pool"] and not (flags["by"] if loaded is None else loaded.by):
            raise click.UsageError("--pool is for segments, and there are none. Add --by COLUMN, or leave it out.")
        harvest = loaded or make_harvest(flags)
        # Imported when the harvest is there: the engine counts meanwhile.
        kind = ESTIMATORS[name or _default(harvest)]
        if settings["pool"]:
            refuse_unused(kind)
        return made_of(kind, settings).fit(harvest)  # type: ignore[no-any-return]
    kind = ESTIMATORS[name]
    refuse_unused(kind)
    refuse_harvest(kind, flags["log"])
    loaded = load_harvest(flags, weighted=False)
    if loaded is None:
        return fit_log(kind, settings | {"max_rank": flags["max_rank"]}, flags)
    return made_of(kind, settings).fit(loaded)  # type: ignore[no-any-return]


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
