"""The command `posbias compare`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from posbias.cli.options import (
    SectionedCommand,
    estimator_option,
    force_option,
    json_option,
    level_option,
    plot_option,
    print_findings,
    print_json,
    refuse_unwritable_plot,
)
from posbias.estimators import FROM_HARVESTS

if TYPE_CHECKING:
    from posbias.curves.curve import Curve
    from posbias.harvesting.harvest import Harvest
    from posbias.judging.compare import Comparison
    from posbias.judging.compare_segments import SegmentComparison


def _parse_estimators(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, str] | None:
    """Return two names of estimators, given with a comma between them."""
    if value is None:
        return None
    names = [name.strip() for name in value.split(",")]
    if len(names) != 2 or not {*names} <= {*FROM_HARVESTS} or len({*names}) < 2:
        raise click.BadParameter(
            f"expected two of {', '.join(FROM_HARVESTS)}, such as cross-fit,all-pairs, not {value!r}."
        )
    return names[0], names[1]


@click.command(
    cls=SectionedCommand,
    sections={
        "Curves": ("segments", "estimators", "estimator", "level", "force"),
        "Output": ("as_json", "plot", "fail_on_difference"),
    },
)
@click.argument("files", nargs=-1, required=True, metavar="A [B]")
@click.option("--segments", is_flag=True, help="Compare the segments of the harvest A with each other.")
@click.option(
    "--estimators", callback=_parse_estimators, metavar="NAME,NAME", help="Compare two estimators on the harvest A."
)
@estimator_option(help="Estimator for harvests.")
@level_option
@click.option("--fail-on-difference", is_flag=True, help="Exit with code 1 if the curves differ.")
@json_option
@plot_option("Draw the ratio at each rank")
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
    """Test whether two curves differ, and at which ranks.

    A and B are harvests, or curves that `posbias estimate --json` printed: of two weeks, of two markets, or of a
    harvest and an experiment. Harvests of the same queries are compared query by query, which detects smaller
    differences. With a single harvest, compare its --segments, or two --estimators on it.
    """
    _refuse_incompatible_flags(files, segments, estimators, estimator, plot)
    refuse_unwritable_plot(plot)
    loaded = [_load(path, force) for path in files]
    if estimator is not None and all(map(_is_json, files)):
        raise click.UsageError("--estimator is for harvests only, and both files are curves. Leave it out.")
    comparison: Comparison | SegmentComparison
    if segments:
        from posbias.judging.compare_segments import compare_segments

        comparison = compare_segments(
            _require_harvest(files[0], loaded[0], "--segments"), estimator=estimator, level=level
        )
    else:
        from posbias.judging.compare import compare as compare_curves

        if estimators is not None:
            from posbias.judging.compare import fit_harvest

            harvest = _require_harvest(files[0], loaded[0], "--estimators")
            curves: list[Any] = [fit_harvest(harvest, name, level) for name in estimators]
            comparison = compare_curves(*curves, level=level, names=estimators)
        else:
            comparison = compare_curves(*loaded, estimator=estimator, level=level, names=_display_names(files))
        if plot is not None:
            comparison.save_plot(plot)
    if as_json:
        print_json(comparison.to_dict())
    else:
        click.echo(comparison.to_text())
    sys.exit(1 if comparison.differs and fail_on_difference else 0)


def _refuse_incompatible_flags(
    files: tuple[str, ...], segments: bool, estimators: tuple[str, str] | None, estimator: str | None, plot: str | None
) -> None:
    """Refuse flags that exclude each other, or that do not fit the number of files."""
    if segments and estimators is not None:
        raise click.UsageError("--segments and --estimators exclude each other. Leave one out.")
    if estimators is not None and estimator is not None:
        raise click.UsageError("--estimators already names both estimators. Leave out --estimator.")
    if segments and plot is not None:
        raise click.UsageError("--plot draws two curves only. Draw segments with posbias estimate --plot.")
    within_harvest = segments or estimators is not None
    if within_harvest and len(files) > 1:
        raise click.UsageError("--segments and --estimators compare within one harvest. Give one file.")
    if not within_harvest and len(files) != 2:
        raise click.UsageError(
            f"Expected two files to compare, but {len(files)} given. Give two harvests or curves, or one harvest with "
            "--segments or --estimators."
        )


def _load(path: str, force: bool) -> Harvest | Curve:
    """Load a curve from a JSON file, or a harvest from any other file."""
    if _is_json(path):
        from posbias.curves.files import load as load_curve

        return load_curve(path)
    from posbias.harvesting.files import load

    harvest = load(path, force=force)
    print_findings(harvest.findings)
    return harvest


def _is_json(path: str) -> bool:
    from posbias._files import special_file_kind

    if not os.path.isfile(path) or special_file_kind(path) is not None:
        return False
    with open(path, "rb") as file:
        return file.read(64).lstrip()[:1] == b"{"


def _require_harvest(path: str, loaded: Any, flag: str) -> Harvest:
    from posbias.harvesting.harvest import Harvest

    if not isinstance(loaded, Harvest):
        raise click.UsageError(
            f"{flag} needs a harvest, and {path!r} is a curve. Give the harvest that it was estimated from."
        )
    return loaded


def _display_names(files: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the files without folder and ending, or A and B if these are equal."""
    names = tuple(os.path.splitext(os.path.basename(path))[0] for path in files)
    return names if len({*names}) == len(names) else ("A", "B")
