"""The command `posbias estimate`."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from posbias._text import printable_lines
from posbias.cli.options import (
    LOG_SECTIONS,
    SectionedCommand,
    columns_option,
    engine_from_flags,
    flag_name,
    force_option,
    given_parameters,
    harvest_from_flags,
    harvest_options,
    json_option,
    level_option,
    load_harvest,
    log_from_flags,
    log_options,
    max_rank_and_engine_options,
    plot_option,
    print_findings,
    print_json,
    print_note,
    refuse_unwritable_plot,
)
from posbias.estimators import DEFAULT_ESTIMATOR, ESTIMATORS, FROM_LOGS, estimator_class

if TYPE_CHECKING:
    from posbias.estimators import CurveEstimator
    from posbias.harvesting.harvest import Harvest

# Flags that only some estimators take -> the parameter of the estimator.
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
    cls=SectionedCommand,
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
        **LOG_SECTIONS,
        "Output": ("plot", "columns", "as_json", "as_csv", "truth"),
    },
)
@log_options
@click.option(
    "--estimator",
    type=click.Choice(list(ESTIMATORS)),
    metavar="NAME",
    help=f"Estimator of the curve: {', '.join(ESTIMATORS)}.  [default: cross-fit; all-pairs for a harvest of sums]",
)
@click.option("--feature", multiple=True, metavar="COLUMN", help="Feature column of regression-em; may be repeated.")
@click.option("--random", metavar="NAME", help="Ranker that shows results in random order, for random-traffic.")
@level_option
@click.option(
    "--interval",
    type=click.Choice(["jackknife", "bootstrap", "none"]),
    default="jackknife",
    show_default=True,
    help="Method of the confidence intervals.",
)
@click.option("--bootstrap", type=click.IntRange(1), default=1000, show_default=True, help="Number of resamples.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed of the resamples.")
@click.option("--pool", is_flag=True, help="Shrink segments with little data toward the curve of all segments.")
@click.option("--joint", is_flag=True, help="Show a joint band, which covers the whole curve at once.")
@click.option(
    "--prior", type=click.FloatRange(0), default=1.0, show_default=True, help="Strength of pbm-em's prior, in views."
)
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@plot_option("Draw the curve with its band")
@columns_option("Columns of a grid whose places are numbered row by row: --plot draws a heat map.")
@click.option("--truth", metavar="FILE", help="True curve of a simulated log, to show in the table or plot.")
@harvest_options
@force_option
@max_rank_and_engine_options
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
    columns: int | None,
    truth: str | None,
    **flags: Any,
) -> None:
    """Estimate the propensity curve of a log or a harvest.

    LOG is a click log, a file written by `posbias harvest` or `posbias merge`, or the exported result of a query that
    `posbias sql` printed.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other: choose one format for stdout.")
    if (as_json or as_csv) and truth is not None and plot is None:
        raise click.UsageError(
            f"--truth is shown in the table or in a --plot, not by {'--json' if as_json else '--csv'}. Leave one out."
        )
    if columns is not None and plot is None:
        raise click.UsageError("--columns is about the picture. Add --plot FILE, or leave out --columns.")
    _refuse_interval_flags(estimator, interval, joint)
    if plot is not None:
        from posbias._optional import import_in_background, require

        require("matplotlib", "Plots need")
        refuse_unwritable_plot(plot)
        import_in_background("matplotlib.figure", "matplotlib.backends.backend_agg")
    true_curve = None
    if truth is not None:
        from posbias.curves.files import read_truth

        true_curve = read_truth(truth)
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
    # The findings about the log were printed when it was read, with the flags that help.
    other_notes = tuple(note for note in curve.notes if note not in _notes_of_log(fitted))
    if as_json or as_csv:
        for note in other_notes:
            print_note(note)
    if as_json:
        print_json(curve.to_dict(joint=joint))
    elif as_csv:
        text = curve.to_csv(joint=joint)
        # A program gets the values unchanged; a terminal would obey the control characters in them.
        click.echo(printable_lines(text) if sys.stdout.isatty() else text, nl=False, color=True)
    else:
        click.echo(replace(curve, notes=other_notes).to_text(true_curve, joint=joint))
        _print_summary(fitted, has_segments=bool(curve.segments))
    if plot is not None:
        from posbias.curves.curve import save_plot

        save_plot(curve, plot, truth=true_curve, joint=joint, columns=columns)


def _refuse_interval_flags(estimator: str | None, interval: str, joint: bool) -> None:
    """Refuse flags about intervals that are not computed."""
    given = given_parameters(click.get_current_context())
    if interval != "bootstrap" and "bootstrap" in given:
        raise click.UsageError(
            "--bootstrap is the number of resamples. Add --interval bootstrap, or leave out --bootstrap."
        )
    # An estimator without intervals uses the seed for something else, or refuses it itself.
    if (
        interval != "bootstrap"
        and "seed" in given
        and "interval" in _parameters_of(estimator_class(estimator or DEFAULT_ESTIMATOR))
    ):
        raise click.UsageError("--seed is the seed of the resamples. Add --interval bootstrap, or leave out --seed.")
    if joint and interval != "jackknife":
        raise click.UsageError(f"--joint needs jackknife intervals. Leave out --interval {interval}.")


def _parameters_of(kind: type[CurveEstimator]) -> set[str]:
    return {*inspect.signature(kind).parameters}


def _fit(name: str | None, settings: dict[str, Any], flags: dict[str, Any]) -> CurveEstimator:
    """Fit an estimator on the given harvest, on the rows of the log, or on the harvest of the log."""
    settings = settings | {"weighting": flags["weighting"]}
    if name is None and flags["weighting"] is not None:
        name = "all-pairs"
        print_note("--weighting applies to pairs of ranks, so the estimator is all-pairs.")
    if name is None or name not in FROM_LOGS or "log" not in estimator_class(name).fits_on:
        if {"feature", "pool", "prior", "random", "weighting"} & {*given_parameters(click.get_current_context())}:
            _refuse_unused_flags(estimator_class(name or DEFAULT_ESTIMATOR))
        loaded = load_harvest(flags, reweightable=True)
        if settings["pool"] and not (flags["by"] if loaded is None else loaded.by):
            raise click.UsageError("--pool needs segments, and there are none. Add --by COLUMN, or leave out --pool.")
        harvest = loaded or harvest_from_flags(flags)
        # Imported only now: the import would delay the start of the harvest.
        kind = estimator_class(name or _default_estimator(harvest))
        if settings["pool"]:
            _refuse_unused_flags(kind)
        return _create(kind, settings).fit(harvest)  # type: ignore[no-any-return]
    kind = estimator_class(name)
    _refuse_unused_flags(kind)
    _refuse_harvest(kind, flags["log"])
    loaded = load_harvest(flags, reweightable=False)
    if loaded is None:
        return _fit_log(kind, settings | {"max_rank": flags["max_rank"]}, flags)
    return _create(kind, settings).fit(loaded)  # type: ignore[no-any-return]


def _refuse_unused_flags(kind: type[CurveEstimator]) -> None:
    """Refuse given flags that an estimator does not use."""
    parameters = _parameters_of(kind)
    unused = {flag for flag, parameter in _PARAMETERS.items() if parameter not in parameters}
    if "log" in kind.fits_on:
        # It is about harvests only.
        unused.add("non_functional")
    given = [flag_name(name) for name in given_parameters(click.get_current_context()) if name in unused]
    if given:
        raise click.UsageError(f"{kind.name} does not use {', '.join(given)}. Leave it out.")


def _default_estimator(harvest: Harvest) -> str:
    """Return the default estimator of a harvest, with a note if it is not the usual one."""
    if harvest.kind != "pairs":
        return DEFAULT_ESTIMATOR
    print_note(
        f"The harvest holds sums over pairs of ranks, which {DEFAULT_ESTIMATOR} cannot use, so the estimator is "
        "all-pairs."
    )
    return "all-pairs"


def _create(kind: type[CurveEstimator], settings: dict[str, Any]) -> Any:
    """Return an estimator with those of the settings that it takes."""
    parameters = _parameters_of(kind)
    return kind(**{name: value for name, value in settings.items() if name in parameters})


def _refuse_harvest(kind: type[CurveEstimator], files: tuple[str, ...]) -> None:
    """Refuse a harvest if the estimator needs the rows of a log."""
    from posbias.harvesting.files import is_harvest

    for path in files:
        if "harvest" not in kind.fits_on and is_harvest(path):
            raise click.UsageError(
                f"{kind.name} needs the rows of a log, and {path!r} is a harvest, which does not keep them. Give the "
                "log itself, or choose another --estimator."
            )


def _fit_log(kind: type[CurveEstimator], settings: dict[str, Any], flags: dict[str, Any]) -> CurveEstimator:
    """Fit an estimator on the rows of the log that the flags describe."""
    estimator = _create(kind, settings)
    log = log_from_flags(flags)
    with engine_from_flags(flags) as engine:
        observations = estimator.observe(log, by=flags["by"], force=flags["force"], **engine)
    print_findings(observations.findings)
    estimator.fit(observations)
    if not getattr(estimator, "converged_", True):
        print_note(f"{kind.name} did not converge in {getattr(estimator, 'iterations_', 0)} iterations.")
    fitted: CurveEstimator = estimator
    return fitted


def _notes_of_log(fitted: CurveEstimator) -> tuple[str, ...]:
    """Return the notes of a curve that are findings about the rows of its harvest."""
    from posbias.estimators.base import log_notes

    harvest = getattr(fitted, "harvest_", None)
    return () if harvest is None else log_notes(harvest)


def _print_summary(fitted: CurveEstimator, *, has_segments: bool) -> None:
    """Print the most important results of the diagnosis of a curve that was estimated from a harvest."""
    harvest = getattr(fitted, "harvest_", None)
    if harvest is None:
        return
    from posbias._text import printable, wrap
    from posbias.judging.diagnose import summary_lines

    lines = summary_lines(fitted)  # type: ignore[arg-type]
    if has_segments and lines:
        click.echo("\nall segments")
    for text in lines:
        for line in wrap(printable(text)):
            click.secho(line, fg="yellow" if text.startswith("!") else None)
