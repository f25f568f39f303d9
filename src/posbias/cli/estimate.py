"""posbias estimate."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from posbias.cli.engines import engine_options, make_harvest
from posbias.cli.options import force_option, given, harvest_options, log_options, show_json, warn
from posbias.estimators import ESTIMATORS
from posbias.wording import printable_lines

if TYPE_CHECKING:
    from posbias.estimators import CurveEstimator
    from posbias.harvesting.harvests import Harvest

_PLOTS = (".png", ".svg", ".pdf")


def _plot(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse a picture that could not be written before anything is computed."""
    if value is None:
        return None
    if not value.lower().endswith(_PLOTS):
        raise click.BadParameter(f"a plot can be written as {', '.join(_PLOTS)}, not as {value!r}.")
    return value


@click.command()
@log_options
@click.option(
    "--estimator",
    type=click.Choice(list(ESTIMATORS)),
    default="all-pairs",
    show_default=True,
    help="How clicks make a curve.",
)
@click.option("--feature", multiple=True, metavar="COLUMN", help="Feature of regression-em; may be repeated.")
@click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Coverage of the intervals.",
)
@click.option("--bootstrap", type=click.IntRange(0), default=1000, show_default=True, help="Resamples; 0 for none.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the resamples.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--plot", metavar="FILE", callback=_plot, help="Draw the curve with its band as .png, .svg or .pdf.")
@click.option("--truth", metavar="FILE", help="A simulated log's truth, to show beside the estimate.")
@harvest_options
@force_option
@engine_options
def estimate(
    estimator: str,
    feature: tuple[str, ...],
    level: float,
    bootstrap: int,
    seed: int,
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
    if plot is not None:
        from posbias.writing import writable

        writable(plot)
    known = None
    if truth is not None:
        from posbias.curves.files import read_truth

        known = read_truth(truth)
    settings = {"level": level, "bootstrap": bootstrap, "seed": seed, "features": list(feature)}
    curve = _fit(estimator, settings, flags).curve()
    if as_json:
        show_json(curve.to_dict())
    elif as_csv:
        text = curve.to_csv()
        # A program gets the values as they are, colours and all; a terminal would obey some.
        click.echo(printable_lines(text) if sys.stdout.isatty() else text, nl=False, color=True)
    else:
        click.echo(curve.to_text(known))
    if plot is not None:
        from posbias.curves.plots import save_plot

        save_plot(curve, plot, truth=known)


def _fit(name: str, settings: dict[str, Any], flags: dict[str, Any]) -> CurveEstimator:
    """Fit an estimator on the harvest given, on the rows of the log if that is what it takes, or on their harvest."""
    from posbias.cli.log_estimates import fit_log, made_of, refuse_harvest, refuse_unused

    settings = settings | {"weighting": flags["weighting"]}
    # One that takes a harvest is imported when that is there: the engine counts meanwhile.
    if name not in ESTIMATORS.of_logs or "log" not in ESTIMATORS[name].fits_on:
        if settings["features"]:
            raise click.UsageError(f"{name} has no use for --feature. Leave it out.")
        harvest = _load(flags, weighted=True) or make_harvest(flags)
        return made_of(ESTIMATORS[name], settings).fit(harvest)  # type: ignore[no-any-return]
    kind = ESTIMATORS[name]
    refuse_unused(kind)
    refuse_harvest(kind, flags["log"])
    loaded = _load(flags, weighted=False)
    if loaded is None:
        return fit_log(kind, settings | {"max_rank": flags["max_rank"]}, flags)
    return made_of(kind, settings).fit(loaded)  # type: ignore[no-any-return]


def _load(flags: dict[str, Any], *, weighted: bool) -> Harvest | None:
    """Return the harvest if that is what was given instead of a log; its pairs may be weighted anew."""
    from posbias.harvesting.file_kinds import is_export, is_harvest

    files = flags["log"]
    if not any(is_harvest(path) for path in files):
        return None
    if len(files) > 1:
        raise click.UsageError(
            f"{len(files)} files were given, and a harvest among them. Join harvests first, with posbias merge."
        )
    # What an export shows of its log is judged only now.
    free = {"log", *(["weighting"] if weighted else []), *(["force"] if is_export(files[0]) else [])}
    unfit = [name for name in given(click.get_current_context()) if name in flags and name not in free]
    if unfit:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in unfit)
        raise click.UsageError(
            f"{files[0]!r} is a harvest, for which {names} was decided when it was made. Leave it out."
        )
    from posbias.harvesting.files import load

    made = load(files[0], force=flags["force"])
    warn(made.findings)
    return made
