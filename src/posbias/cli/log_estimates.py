"""Estimates from the rows of a log: which flags an estimator takes, and how it is fitted."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import click

from posbias.cli.engines import running
from posbias.cli.options import given, make_log, tell

if TYPE_CHECKING:
    from posbias.estimators import CurveEstimator, LogEstimator

# Flags that only some estimators take, by the parameter they become.
_PARAMETERS = {
    "weighting": "weighting",
    "level": "level",
    "bootstrap": "bootstrap",
    "seed": "seed",
    "feature": "features",
}


def refuse_unused(kind: type[CurveEstimator]) -> None:
    """Refuse flags on the command line that an estimator has no use for."""
    takes = inspect.signature(kind).parameters
    unused = {flag for flag, parameter in _PARAMETERS.items() if parameter not in takes}
    if "weighting" not in takes:
        # Both say how documents at several ranks are compared.
        unused.add("non_functional")
    found = [f"--{name.replace('_', '-')}" for name in given(click.get_current_context()) if name in unused]
    if found:
        raise click.UsageError(f"{kind.name} has no use for {', '.join(found)}. Leave it out.")


def refuse_harvest(kind: type[CurveEstimator], files: tuple[str, ...]) -> None:
    """Refuse a harvest where rows are needed."""
    from posbias.harvesting.file_kinds import is_harvest

    for path in files:
        if "harvest" not in kind.fits_on and is_harvest(path):
            raise click.UsageError(
                f"{path!r} is a harvest, and {kind.name} looks at the rows of a log, which a harvest no longer has. "
                "Give the log itself, or choose another --estimator."
            )


def fit_log(kind: type[LogEstimator], settings: dict[str, Any], flags: dict[str, Any]) -> LogEstimator:
    """Fit an estimator on the log that the flags describe."""
    takes = inspect.signature(kind).parameters
    estimator = kind(**{name: value for name, value in settings.items() if name in takes})
    log = make_log(flags)
    with running(flags) as engine:
        estimator.fit(log, by=flags["by"], **engine)
    if not getattr(estimator, "converged_", True):
        stopped = (
            f"{kind.name} stopped after {getattr(estimator, 'iterations_', 0)} iterations, its curve still moving."
        )
        tell(f"Note: {stopped}", fg="yellow")
    return estimator
