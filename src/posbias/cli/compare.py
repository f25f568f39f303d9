"""posbias compare."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from posbias.cli.options import Sectioned, force_option, level_option, plot_file, show_json, warn
from posbias.estimators import FROM_HARVESTS

if TYPE_CHECKING:
    from posbias.curves.curve import Curve
    from posbias.harvesting.harvest import Harvest
    from posbias.judging.compare import Comparison
    from posbias.judging.compare_segments import SegmentComparison


# As the registry has them, whose import would take longer than any help text may.


def _two(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, str] | None:
    """Return two names of estimators with a comma between them."""
    if value is None:
        return None
    names = [name.strip() for name in value.split(",")]
    if len(names) != 2 or not {*names} <= {*FROM_HARVESTS} or len({*names}) < 2:
        raise click.BadParameter(
            f"expected two of {', '.join(FROM_HARVESTS)}, such as cross-fit,all-pairs, not {value!r}."
        )
    return names[0], names[1]


@click.command(
    cls=Sectioned,
    sections={
        "Curves": ("segments", "estimators", "estimator", "level", "force"),
        "Output": ("as_json", "plot", "fail_on_difference"),
    },
)
@click.argument("files", nargs=-1, required=True, metavar="A [B]")
@click.option("--segments", is_flag=True, help="Compare the segments of the harvest A with each other.")
@click.option(
    "--estimators", callback=_two, metavar="NAME,NAME", help="Compare two estimators of the harvest A with each other."
)
@click.option(
    "--estimator",
    type=click.Choice(list(FROM_HARVESTS)),
    help="Of harvests.  [default: cross-fit; all-pairs for a harvest of sums]",
)
@level_option
@click.option("--fail-on-difference", is_flag=True, help="Exit with 1 if the curves differ.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--plot", metavar="FILE", callback=plot_file, help="Draw the ratio by rank as .png, .svg or .pdf.")
@force_option
def compare(
    files: tuple[str, ...],
    segments: bool,
    estimators: tuple[str, str] | None,
    estimator: str | None,
    level: float,
    fail_on_difference: bool,
    as_json: bool,
    plot: str | None,
    force: bool,
) -> None:
    """Say whether two curves differ, and at which ranks.

    A and B are harvests, or curves that `posbias estimate --json` printed: of two weeks, two markets, a harvest and an
    experiment. Harvests of the same queries are compared query by query, which finds smaller differences. With one
    harvest, compare its --segments, or two --estimators of it.
    """
    _refuse_unfit(files, segments, estimators, estimator, plot)
    if plot is not None:
        from posbias._files import PICTURE, writable

        writable(plot, PICTURE)
    given = [_load(path, force) for path in files]
    if estimator is not None and all(map(_is_json, files)):
        raise click.UsageError("--estimator is for harvests, and curves have been estimated. Leave it out.")
    made: Comparison | SegmentComparison
    if segments:
        from posbias.judging.compare_segments import compare_segments

        made = compare_segments(_harvest(files[0], given[0], "--segments"), estimator=estimator, level=level)
    else:
        from posbias.judging.compare import compare as compare_curves

        if estimators is not None:
            from posbias.judging.compare import fit_harvest

            harvest = _harvest(files[0], given[0], "--estimators")
            sides: list[Any] = [fit_harvest(harvest, name, level) for name in estimators]
            made = compare_curves(*sides, level=level, names=estimators)
        else:
            made = compare_curves(*given, estimator=estimator, level=level, names=_names(files))
        if plot is not None:
            made.save_plot(plot)
    if as_json:
        show_json(made.to_dict())
    else:
        click.echo(made.to_text())
    sys.exit(1 if made.differs and fail_on_difference else 0)


def _refuse_unfit(
    files: tuple[str, ...], segments: bool, estimators: tuple[str, str] | None, estimator: str | None, plot: str | None
) -> None:
    """Refuse flags that do not go with each other or with so many files."""
    if segments and estimators is not None:
        raise click.UsageError("--segments and --estimators exclude each other: one thing is compared at a time.")
    if estimators is not None and estimator is not None:
        raise click.UsageError("--estimators names both. Leave --estimator out.")
    if segments and plot is not None:
        raise click.UsageError("--plot draws two curves. Draw segments with posbias estimate --plot.")
    within = segments or estimators is not None
    if within and len(files) > 1:
        raise click.UsageError("--segments and --estimators compare within one harvest. Give one file.")
    if not within and len(files) != 2:
        raise click.UsageError(
            f"{len(files)} file{'s'[: len(files) > 1]} given where two are compared. Give two harvests or curves, or "
            "one harvest with --segments or --estimators."
        )


def _load(path: str, force: bool) -> Harvest | Curve:
    """Read a curve or a harvest; what is neither is refused by whoever reads it."""
    if _is_json(path):
        from posbias.curves.files import load as load_curve

        return load_curve(path)
    from posbias.harvesting.files import load

    made = load(path, force=force)
    warn(made.findings)
    return made


def _is_json(path: str) -> bool:
    from posbias._files import odd_kind

    if not os.path.isfile(path) or odd_kind(path) is not None:
        return False
    with open(path, "rb") as file:
        return file.read(64).lstrip()[:1] == b"{"


def _harvest(path: str, given: Any, flag: str) -> Harvest:
    from posbias.harvesting.harvest import Harvest

    if not isinstance(given, Harvest):
        raise click.UsageError(f"{flag} takes a harvest, and {path!r} is a curve. Give the harvest it was made of.")
    return given


def _names(files: tuple[str, ...]) -> tuple[str, ...]:
    """Return how the two are called: by their files, or as A and B where these have one name."""
    names = tuple(os.path.splitext(os.path.basename(path))[0] for path in files)
    return names if len({*names}) == len(names) else ("A", "B")
