"""The report of a log or a harvest, of two of them, and of the days before."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

from posbias.arguments import names as segment_columns
from posbias.arguments import share, texts
from posbias.arrays import FloatArray, begun
from posbias.engines import EngineChoice, open_log
from posbias.errors import CurveError, EstimateError, HarvestError
from posbias.estimators.harvested import Estimator
from posbias.findings import Finding
from posbias.harvesting.counting import harvest as make_harvest
from posbias.harvesting.harvests import Harvest
from posbias.judging.comparing import compare
from posbias.judging.contests import Contests
from posbias.judging.diagnosing import contests_of, diagnose_harvest
from posbias.judging.diagnosis import ordered
from posbias.judging.disagreement import Refitted
from posbias.judging.histories import History
from posbias.judging.pages import PageClicks, count_page_clicks
from posbias.judging.pair_ratios import measure_pair_ratios
from posbias.judging.segmented import compare_segments
from posbias.judging.segments import SegmentComparison
from posbias.judging.sides import choose, fit
from posbias.logs.click_log import ClickLog
from posbias.logs.weightings import Weighting
from posbias.progress import Progress, silent
from posbias.reporting.origins import Origin
from posbias.reporting.reports import Part, Report
from posbias.reporting.uses import weigh
from posbias.wording import as_python

Source = Harvest | ClickLog | str | os.PathLike[str]
# Side by side, the one to start with first.
_ESTIMATORS = ("cross-fit", "all-pairs", "pivot-one", "adjacent-chain")
# Of a harvest.
_DEFAULTS = {"max_rank": 10, "by": (), "weighting": None, "force": False, "non_functional": "share"}
# Whether more segments than this have one curve takes longer to tell than a report may.
_MOST_SEGMENTS = 100


def report(
    source: Source,
    other: Source | None = None,
    *,
    names: Sequence[str] | None = None,
    estimator: str | None = None,
    level: float = 0.95,
    history: History | str | os.PathLike[str] | None = None,
    max_rank: int = 10,
    by: Sequence[str] = (),
    weighting: Weighting | None = None,
    non_functional: Literal["share", "refuse"] = "share",
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    force: bool = False,
    command: str | None = None,
) -> Report:
    """Tell of a log or a harvest in one page: the curve, whether to trust it, on what grounds, and what to do with it.

    Arguments:
        source: a harvest, or the file of one; or a log, of which the clicks of each page view are looked at too.
        other: a second one, which is compared with the first.
        names: what they are called on the page; by default as their files are.
        estimator: of the curve, by its name, such as "all-pairs"; by default the best for the harvest.
        level: of the intervals.
        history: the curves of many days, or the file of them.
        max_rank, by, weighting, non_functional, engine, progress, force: of the harvest of a log, as `posbias.harvest`
            takes them.
        command: what makes the report again, to be shown in it.

    Example:
        >>> import posbias
        >>> harvest = posbias.harvest(posbias.ClickLog(posbias.simulate(posbias.World(queries=500, max_rank=5))))
        >>> made = posbias.report(harvest, names=["spring"])
        >>> made.title, made.sound
        ('Position bias: spring', True)
        >>> made.save("report.html")  # doctest: +SKIP
    """
    share("level", level, CurveError)
    sources = [source] if other is None else [source, other]
    called = _names(sources) if names is None else texts("names", names, error=HarvestError)
    if len(called) != len(sources):
        raise HarvestError(f"{len(called)} names were given for {len(sources)} to report on. Give one for each.")
    if len(set(called)) < len(called):
        raise HarvestError(f"Both are called {called[0]!r}. Give each a name of its own.")
    kept = history if isinstance(history, History | None) else History.load(history)
    if kept is not None and not kept.days:
        raise CurveError("The history has no day yet: add one with History.add, or leave it out.")
    settings: dict[str, Any] = {
        "max_rank": max_rank,
        "by": segment_columns("by", by, HarvestError),
        "weighting": weighting,
        "non_functional": non_functional,
        "force": force,
    }
    fits, parts = [], []
    for given, name in zip(sources, called, strict=True):
        harvest, pages = _harvested(given, settings, engine, progress)
        chosen = choose(harvest, estimator)
        # What each takes longest for is not the other's, and NumPy lets both work at once.
        beside = begun(partial(_beside, harvest, chosen, level))
        fits.append(fit(harvest, chosen, level))
        parts.append(_part(fits[-1], beside.result(), pages, _origin(harvest, given, settings), name))
    comparison = None
    if len(fits) == 2:
        comparison = compare(*fits, level=level, names=[part.name for part in parts])
    return Report(tuple(parts), comparison, kept, command)


def _names(sources: Sequence[Any]) -> list[str]:
    """Return what sources are called: by their files, or by letters where these have no names, or the same."""
    paths = [_path(given) for given in sources]
    names = [os.path.splitext(os.path.basename(path))[0] for path in paths if path is not None]
    if len({*filter(None, names)}) == len(sources):
        return names
    return ["this log"] if len(sources) == 1 else ["A", "B"]


def _path(given: Any) -> str | None:
    """Return the path of a source, if it is one file or folder."""
    found = given.source if isinstance(given, ClickLog) else given
    return os.fspath(found) if isinstance(found, str | os.PathLike) else None


def _origin(harvest: Harvest, given: Any, settings: dict[str, Any]) -> Origin:
    chosen = {name: value for name, value in settings.items() if value != _DEFAULTS[name]}
    return Origin.of(harvest, _path(given), given if isinstance(given, ClickLog) else None, as_python(chosen))


def _harvested(
    source: Any, settings: dict[str, Any], engine: EngineChoice | None, progress: Progress
) -> tuple[Harvest, PageClicks | None]:
    """Return the harvest of what was given, and the clicks of its page views where that is a log."""
    decided = [name for name in ("by", "weighting") if settings[name]]
    if decided and not isinstance(source, ClickLog):
        raise HarvestError(
            f"{' and '.join(decided)} was decided when the harvest was made. Leave it out, or give report the log."
        )
    if isinstance(source, str | os.PathLike):
        return Harvest.load(source, force=settings["force"]), None
    if isinstance(source, Harvest):
        return source, None
    if not isinstance(source, ClickLog):
        raise HarvestError(
            f"report takes a Harvest or a ClickLog, not a {type(source).__name__}. Make one with ClickLog(...)."
        )
    harvest = make_harvest(source, **settings, engine=engine, progress=progress)
    with open_log(source, engine, progress) as opened:
        return harvest, count_page_clicks(opened, harvest.rankers, harvest.max_rank)


class _Beside(NamedTuple):
    """What a report needs of a harvest beside its curve.

    Attributes:
        fits: other estimators, by name.
        refused: why some have no curve.
        contests: of its rankers, where the harvest tells them apart.
        sets: the clicks of its interventional sets.
    """

    fits: dict[str, Estimator[Any]]
    refused: dict[str, str]
    contests: Contests | None
    sets: FloatArray


def _beside(harvest: Harvest, chosen: str, level: float) -> _Beside:
    fits, refused = _others(harvest, chosen, level)
    return _Beside(fits, refused, contests_of(harvest), harvest.set_clicks())


def _part(fitted: Estimator[Any], beside: _Beside, pages: PageClicks | None, origin: Origin, name: str) -> Part:
    harvest, curve, level = fitted.harvest_, fitted.curve(), fitted.parameters()["level"]
    segments = _segments(harvest, fitted.name, level)
    compared = segments if isinstance(segments, SegmentComparison) else None
    curves = _refitted([fitted, *beside.fits.values()])
    diagnosis = diagnose_harvest(harvest, pages=pages, curves=curves, contests=beside.contests, segments=compared)
    return Part(
        name=name,
        curve=curve,
        diagnosis=diagnosis,
        findings=ordered([_unnamed(finding) for finding in (*diagnosis.findings, *harvest.findings)]),
        sets=beside.sets,
        ratios=measure_pair_ratios(harvest.interventions(), curve.propensity),
        estimators=beside.refused
        | {fitted.name: replace(curve, by=(), segments={})}
        | {other: made.curve() for other, made in beside.fits.items()},
        segments=segments,
        weights=weigh(curve),
        origin=origin,
    )


def _unnamed(finding: Finding) -> Finding:
    """Return a finding without its example, which names a row of the log."""
    return replace(finding, example=None)


def _others(harvest: Harvest, chosen: str, level: float) -> tuple[dict[str, Estimator[Any]], dict[str, str]]:
    """Return the other estimators of a harvest, fitted, and why some have no curve."""
    # Without segments, which the chosen one has the curves of.
    harvest = replace(harvest, by=()) if harvest.by else harvest
    made: dict[str, Estimator[Any]] = {}
    refused: dict[str, str] = {}
    for name in _ESTIMATORS:
        if name == chosen or (name == "cross-fit" and harvest.kind == "pairs"):
            continue
        try:
            made[name] = fit(harvest, name, level)
        except EstimateError as error:
            refused[name] = str(error)
    return made, refused


def _refitted(fits: list[Estimator[Any]]) -> list[Refitted] | None:
    """Return the curves with their deletions as a diagnosis takes them; None where there are none, to be made there."""
    by_name = {one.name: one for one in fits}
    found = [
        Refitted.of(name, by_name[name].propensity_, deleted)
        for name in _ESTIMATORS
        if name in by_name and (deleted := by_name[name].deletions_) is not None
    ]
    return found if len(found) == len(fits) else None


def _segments(harvest: Harvest, estimator: str, level: float) -> SegmentComparison | str | None:
    if not harvest.by:
        return None
    if len(harvest.segments) > _MOST_SEGMENTS:
        return f"There are {len(harvest.segments):,} segments, more than are compared with each other here."
    with suppress(EstimateError):
        try:
            return compare_segments(harvest, estimator=estimator, level=level)
        except CurveError as error:
            return str(error)
    return "No two segments have a curve to compare."
