"""Which flags an estimator takes, and how it is fitted on the rows of a log."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import click

from posbias.cli.engines import running
from posbias.cli.options import given, make_log, tell, warn

if TYPE_CHECKING:
    from posbias.estimators import CurveEstimator

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


def parameters_of(kind: type[CurveEstimator]) -> set[str]:
    """Return the names of what an estimator is made with."""
    return {*inspect.signature(kind).parameters}


def made_of(kind: type[CurveEstimator], settings: dict[str, Any]) -> Any:
    """Return an estimator made with those settings that it takes."""
    takes = parameters_of(kind)
    return kind(**{name: value for name, value in settings.items() if name in takes})


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


def refuse_harvest(kind: type[CurveEstimator], files: tuple[str, ...]) -> None:
    """Refuse a harvest where rows are needed."""
    from posbias.harvesting.file_kinds import is_harvest

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
