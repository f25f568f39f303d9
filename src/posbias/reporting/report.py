"""A report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from posbias._arrays import FloatArray, begun
from posbias._text import as_python, format_ranks
from posbias._validate import DEFAULT_CAP, DEFAULT_LEVEL, DEFAULT_MAX_RANK, share, texts
from posbias._validate import names as segment_columns
from posbias.curves.curve import Curve, Position
from posbias.engines import EngineChoice, open_log
from posbias.errors import CurveError, EstimateError, HarvestError, Spelling
from posbias.estimators import FROM_HARVESTS
from posbias.estimators.base import Estimator
from posbias.findings import Finding, Severity, any_error
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.harvest import harvest as make_harvest
from posbias.judging.compare import Comparison, choose_estimator, compare, fit_harvest
from posbias.judging.compare_segments import DIFFER, SegmentComparison, compare_segments
from posbias.judging.diagnose import Diagnosis, diagnose_harvest, ranker_pairs_of, sort_by_severity
from posbias.judging.diagnostics import PageClicks, PairRatio, Refitted, count_page_clicks, measure_pair_ratios
from posbias.judging.history import History
from posbias.judging.one_curve import RankerPairs
from posbias.logs.click_log import ClickLog, Weighting
from posbias.logs.schema import ANY_RANKER
from posbias.progress import Progress, silent
from posbias.version import __version__

# The commands, with what each is for.
PURPOSES = {
    "estimate": "the curve in a file, with its covariance",
    "weights": "weights and exposure to learn from",
    "diagnose": "what speaks against the curve, again",
    "plan": "how much more data it needs, and what other traffic would bring",
}
# So many rankers are named in a sentence.
_MOST_NAMED = 4
FORMAT = 1
# What is kept with a harvest, as it is called on the page; the last of them only where there are any.
_TOLD = {
    "made": "harvested",
    "engine": "engine",
    "posbias": "harvested by posbias",
    "rows": "rows of the log",
    "rows_counted": "rows counted",
}
_COUNTED = {
    "parts": "harvests merged",
    "rows_beyond": "rows beyond the top ranks",
    "rows_contradicted": "rows shown where their ranker does not put them",
    "non_functional_pairs": "pairs with several ranks by one ranker",
}
_COLUMNS = ("query", "doc", "ranker", "position", "click", "impressions", "clicks", "impression", "ranks", "window")
_LAYOUTS = {
    "wide": "in columns of the log",
    "long": "in a second table",
    "replay": "as shown when queries recurred",
}
Source = Harvest | ClickLog | str | os.PathLike[str]
# Side by side, the one to start with first.
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
    level: float = DEFAULT_LEVEL,
    history: History | str | os.PathLike[str] | None = None,
    max_rank: int = DEFAULT_MAX_RANK,
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
        chosen = choose_estimator(harvest, estimator)
        # What each takes longest for is not the other's, and NumPy lets both work at once.
        beside = begun(partial(_beside, harvest, chosen, level))
        fits.append(fit_harvest(harvest, chosen, level))
        parts.append(_part(fits[-1], beside.result(), pages, _origin(harvest, given, settings), name))
    comparison = None
    if len(fits) == 2:
        comparison = compare(*fits, level=level, names=[part.name for part in parts])
    return Report(tuple(parts), comparison, kept, command)


@dataclass(frozen=True, eq=False)
class Report:
    """One or two harvests, told for someone who has five minutes.

    Made by `posbias.report`. `save` writes it as one HTML file that needs nothing else, `to_dict` gives what is in it.

    Attributes:
        parts: what is told of each harvest.
        comparison: of the two, where there are two.
        history: the curves of many days.
        command: what makes the report again, as one would type it.
        steps: what to type next, by what it is for, of each part; None for what one types in Python.
    """

    parts: tuple[Part, ...]
    comparison: Comparison | None = None
    history: History | None = None
    command: str | None = None
    steps: tuple[Mapping[str, str], ...] | None = None
    version: str = field(default=__version__)

    @property
    def title(self) -> str:
        """What it is a report of."""
        return f"Position bias: {' and '.join(part.name for part in self.parts)}"

    @property
    def sound(self) -> bool:
        """Whether no assumption was found not to hold."""
        return all(part.sound for part in self.parts)

    @property
    def next_steps(self) -> list[tuple[Part, Mapping[str, str]]]:
        """The parts, each with what to type next, by what it is for."""
        steps = self.steps if self.steps is not None else [in_python(part) for part in self.parts]
        return list(zip(self.parts, steps, strict=True))

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return all that is shown as plain data."""
        return {
            "format": FORMAT,
            "title": self.title,
            "parts": [part.to_dict(spell) | {"next": dict(steps)} for part, steps in self.next_steps],
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
            "history": None if self.history is None else self.history.to_dict(),
            "command": self.command,
            "version": self.version,
        }

    def to_html(self, spell: Spelling = as_python) -> str:
        """Return the page, which holds all that it needs and asks nothing of any network."""
        from posbias.reporting.page import render

        return render(self, spell)

    def save(self, path: str | os.PathLike[str], spell: Spelling = as_python) -> None:
        """Write the page to a file, whole or not at all."""
        from posbias._files import REPORT, writable, written_whole

        writable(path, REPORT)
        page = self.to_html(spell)
        with written_whole(path, REPORT) as part, open(part, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)

    def __repr__(self) -> str:
        found = sum(f.severity != "info" for part in self.parts for f in part.findings)
        return f"<Report of {' and '.join(repr(part.name) for part in self.parts)}, {found} found to look at>"


@dataclass(frozen=True, eq=False)
class Part:
    """What is told of one harvest.

    Attributes:
        name: what it is called on the page.
        curve: the answer, with those of segments.
        diagnosis: how far it is to be trusted.
        findings: all that was found, of the log and of the curve, without examples: these would be rows of the log.
        sets: the clicks at k on documents that are at k' too, (M, M).
        ratios: what each two ranks say by themselves.
        estimators: the curve of each estimator, or why it has none, by name.
        segments: whether segments have one curve, or why that cannot be told.
        weights: of the clicks.
        origin: what it was made of, and how.
    """

    name: str
    curve: Curve
    diagnosis: Diagnosis
    findings: tuple[Finding, ...]
    sets: FloatArray
    ratios: tuple[PairRatio, ...]
    estimators: Mapping[str, Curve | str]
    segments: SegmentComparison | str | None
    weights: ClickWeights
    origin: Origin

    @property
    def sound(self) -> bool:
        """Whether there is no error among what was found."""
        return not any_error(self.findings)

    @property
    def worst(self) -> Severity:
        """How grave the gravest is of what was found; a rank without a number or interval is a warning."""
        found = {f.severity for f in self.findings}
        if "error" in found:
            return "error"
        return "warning" if "warning" in found or is_incomplete(self.curve) else "info"

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer in words: what the curve says, whether to trust it, what is missing, what it comes from."""
        return (
            curve_sentence(self.curve),
            trust_sentence(self.curve, self.diagnosis, self.findings),
            *missing_sentences(self.curve),
            *(
                [segments_sentence(self.segments, self.diagnosis)]
                if isinstance(self.segments, SegmentComparison)
                else []
            ),
            basis_sentence(self.curve),
        )

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "name": self.name,
            "sentences": list(self.sentences),
            "curve": self.curve.to_dict(),
            "sound": self.sound,
            "findings": [
                {"code": f.code, "severity": f.severity, "message": f.message, "remedy": f.remedy}
                | {"add": spell(f.arguments)}
                for f in self.findings
            ],
            "support": [one.to_dict() for one in self.diagnosis.support],
            "sets": self.sets.tolist(),
            "pair_ratios": [asdict(one) for one in self.ratios],
            "estimators": {
                name: made if isinstance(made, str) else made.to_dict() for name, made in self.estimators.items()
            },
            "segments": self.segments.to_dict() if isinstance(self.segments, SegmentComparison) else self.segments,
            "weights": self.weights.to_dict(),
            "origin": self.origin.to_dict(),
        }


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


def _beside(harvest: Harvest, chosen: str, level: float) -> _Beside:
    fits, refused = _others(harvest, chosen, level)
    return _Beside(fits, refused, ranker_pairs_of(harvest), harvest.pair_clicks())


class _Beside(NamedTuple):
    """What a report needs of a harvest beside its curve.

    Attributes:
        fits: other estimators, by name.
        refused: why some have no curve.
        ranker_pairs: of its rankers, where the harvest tells them apart.
        sets: the clicks of its interventional sets.
    """

    fits: dict[str, Estimator[Any]]
    refused: dict[str, str]
    ranker_pairs: RankerPairs | None
    sets: FloatArray


def _others(harvest: Harvest, chosen: str, level: float) -> tuple[dict[str, Estimator[Any]], dict[str, str]]:
    """Return the other estimators of a harvest, fitted, and why some have no curve."""
    # Without segments, which the chosen one has the curves of.
    harvest = replace(harvest, by=()) if harvest.by else harvest
    made: dict[str, Estimator[Any]] = {}
    refused: dict[str, str] = {}
    for name in FROM_HARVESTS:
        if name == chosen or (name == "cross-fit" and harvest.kind == "pairs"):
            continue
        try:
            made[name] = fit_harvest(harvest, name, level)
        except EstimateError as error:
            refused[name] = str(error)
    return made, refused


def _part(fitted: Estimator[Any], beside: _Beside, pages: PageClicks | None, origin: Origin, name: str) -> Part:
    harvest, curve, level = fitted.harvest_, fitted.curve(), fitted.parameters()["level"]
    segments = _segments(harvest, fitted.name, level)
    compared = segments if isinstance(segments, SegmentComparison) else None
    curves = _refitted([fitted, *beside.fits.values()])
    diagnosis = diagnose_harvest(
        harvest, pages=pages, curves=curves, ranker_pairs=beside.ranker_pairs, segments=compared
    )
    return Part(
        name=name,
        curve=curve,
        diagnosis=diagnosis,
        findings=sort_by_severity([_unnamed(finding) for finding in (*diagnosis.findings, *harvest.findings)]),
        sets=beside.sets,
        ratios=measure_pair_ratios(harvest.interventions(), curve.propensity),
        estimators=beside.refused
        | {fitted.name: replace(curve, by=(), segments={})}
        | {other: made.curve() for other, made in beside.fits.items()},
        segments=segments,
        weights=click_weights(curve),
        origin=origin,
    )


@dataclass(frozen=True)
class Origin:
    """What a harvest was made of.

    Attributes:
        facts: what is known of the log and of the harvest, in the order of the page.
        page_views: n_i, by ranker.
        path: of the file; None where it was none.
        kind: "log" or "harvest": what that file is.
        python: how it is had in Python, as far as that can be written: lines that make `log` and `harvest`.
    """

    facts: Mapping[str, str]
    page_views: Mapping[str, int]
    path: str | None
    kind: str
    python: tuple[str, ...] = ()

    @classmethod
    def of(cls, harvest: Harvest, path: str | None, log: ClickLog | None, settings: str = "") -> Origin:
        """Return where a harvest comes from: a file, if it is one, and a log, if that is known, harvested so."""
        about = harvest.about
        told = {name: _fact(about[key]) for key, name in _TOLD.items() if about.get(key) is not None}
        told |= {name: _fact(about[key]) for key, name in _COUNTED.items() if about.get(key)}
        named = harvest.rankers != (ANY_RANKER,)
        facts = {
            "log": str(about.get("source", "not known")),
            "columns": "as named above, the others by their default names" if log is None else _columns(log),
            **told,
            "ranks known": _LAYOUTS.get(harvest.layout.value, harvest.layout.value),
            "ranks compared": f"1 to {harvest.max_rank}",
            "weighting of pairs": harvest.weighting,
            "segment columns": ", ".join(harvest.by) or "none",
            "segments": f"{len(harvest.segments):,}" if harvest.by else "none",
            "rankers": f"{len(harvest.rankers):,}" if named else "not named",
            "buckets of queries": f"{len(harvest.buckets):,}",
        }
        return cls(
            facts, dict(harvest.page_views), path, "harvest" if log is None else "log", _lines(path, log, settings)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"facts": dict(self.facts), "page_views": dict(self.page_views)}


def _fact(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _columns(log: ClickLog) -> str:
    """Return what the columns of a log are called."""
    named = {name: getattr(log, name) for name in _COLUMNS}
    if log.clicks is not None:
        named.pop("click")
    return ", ".join(f"{name}: {column}" for name, column in named.items() if isinstance(column, str))


def _lines(path: str | None, log: ClickLog | None, settings: str) -> tuple[str, ...]:
    if log is None:
        return () if path is None else (f"harvest = posbias.Harvest.load({path!r})",)
    return (f"log = posbias.{log!r}", f"harvest = posbias.harvest(log{settings and f', {settings}'})")


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


def _refitted(fits: list[Estimator[Any]]) -> list[Refitted] | None:
    """Return the curves with their deletions as a diagnosis takes them; None where there are none, to be made there."""
    by_name = {one.name: one for one in fits}
    found = [
        Refitted.of(name, by_name[name].propensity_, deleted)
        for name in FROM_HARVESTS
        if name in by_name and (deleted := by_name[name].deletions_) is not None
    ]
    return found if len(found) == len(fits) else None


def _unnamed(finding: Finding) -> Finding:
    """Return a finding without its example, which names a row of the log."""
    return replace(finding, example=None)


def click_weights(curve: Curve, cap: float = DEFAULT_CAP) -> ClickWeights:
    """Return the weights of a curve's own clicks.

    >>> from posbias.curves.curve import Position
    >>> at = [Position(1, 1.0, None, None, 50, 30, None), Position(2, 0.5, None, None, 50, 10, None)]
    >>> found = click_weights(Curve("x", 2, None, None, None, tuple(at), {}))
    >>> [one.weight for one in found.ranks], round(found.effective_clicks, 2)
    ([1.0, 2.0], 35.71)
    """
    parts = curve.segments.values() if curve.by else (curve,)
    at: dict[int, list[tuple[int, float]]] = {p.position: [] for p in curve.positions}
    for part in parts:
        for p in part.positions:
            if p.propensity:
                at[p.position].append((p.clicks, 1 / p.propensity))
    every = {p.position: p.clicks for p in curve.positions}
    ranks = tuple(
        RankWeight(rank, _mean([(n, min(w, cap)) for n, w in own]), every[rank], any(w > cap for _, w in own))
        for rank, own in at.items()
    )
    known = [(n, min(w, cap), w) for own in at.values() for n, w in own]
    clicks = sum(n for n, _, _ in known)
    total, squares = sum(n * w for n, w, _ in known), sum(n * w * w for n, w, _ in known)
    uncapped = sum(n * w for n, _, w in known)
    return ClickWeights(
        cap=cap,
        ranks=ranks,
        clicks=clicks,
        effective_clicks=total**2 / squares if squares else 0.0,
        capped_share=1 - total / uncapped if uncapped else 0.0,
        # Those of a segment without a curve are among them.
        without=sum(every.values()) - clicks,
        by=curve.by,
    )


@dataclass(frozen=True)
class ClickWeights:
    """The inverse propensity weights of the clicks that a curve was made of, of each segment by its own curve.

    Attributes:
        cap: the most that a click counts.
        ranks: the weight of a click at each rank.
        clicks: those that have a weight.
        effective_clicks: as many clicks of equal weight would be as good: (Σ w)² / Σ w².
        capped_share: the share of the weight that the cap took off.
        without: clicks at ranks without a weight.
        by: the segment columns, if any.
    """

    cap: float
    ranks: tuple[RankWeight, ...]
    clicks: int
    effective_clicks: float
    capped_share: float
    without: int
    by: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """How much of the clicks is left: the effective ones among those that have a weight."""
        return self.effective_clicks / self.clicks if self.clicks else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return them as plain data."""
        return asdict(self) | {"ranks": [asdict(one) for one in self.ranks]}


@dataclass(frozen=True)
class RankWeight:
    """The weight of a click at one rank: p_1 / p_k, no more than the cap; None where p_k is not known or 0.

    Where there are segments, it is the mean over clicks, and `capped` if any of them was.
    """

    rank: int
    weight: float | None
    clicks: int
    capped: bool


def _mean(weights: list[tuple[int, float]]) -> float | None:
    """Return the mean weight over clicks, or where there are none over segments."""
    clicks = sum(n for n, _ in weights)
    if clicks:
        return sum(n * w for n, w in weights) / clicks
    return sum(w for _, w in weights) / len(weights) if weights else None


def _origin(harvest: Harvest, given: Any, settings: dict[str, Any]) -> Origin:
    chosen = {name: value for name, value in settings.items() if value != _DEFAULTS[name]}
    return Origin.of(harvest, _path(given), given if isinstance(given, ClickLog) else None, as_python(chosen))


def in_python(part: Part) -> dict[str, str]:
    """Return what to type for each purpose, from what the curve of a part was made of."""
    curve = part.curve
    name = "".join(word.capitalize() for word in curve.estimator.split("-"))
    level = "" if curve.level in (None, DEFAULT_LEVEL) else f"level={curve.level:g}"
    typed = {
        "estimate": f"posbias.{name}({level}).fit(harvest).curve().save('curve.json')",
        "weights": "posbias.ips_weights(log, 'curve.json', 'weights.parquet')",
        "diagnose": "print(posbias.diagnose(harvest))",
        "plan": "print(posbias.plan(harvest))",
    }
    made = {"the harvest": "\n".join(part.origin.python)} if part.origin.python else {}
    return made | {purpose: typed[command] for command, purpose in PURPOSES.items()}


def is_incomplete(curve: Curve) -> bool:
    """Return whether any rank has no number or, but for the first, no interval."""
    return any(p.propensity is None or (p.position > 1 and p.low is None) for p in curve.positions)


def curve_sentence(curve: Curve) -> str:
    """Return what a curve says, at its second rank, one in the middle and its last."""
    known = [p for p in curve.positions if p.propensity and p.position > 1]
    middle = (1 + known[-1].position) / 2
    chosen = {known[0], min(known, key=lambda p: abs(p.position - middle)), known[-1]}
    first, *others = sorted(chosen, key=lambda p: p.position)
    named = "".join(f"; at rank {p.position}, {_share(p)}" for p in others)
    level = "" if curve.level is None else f"{100 * curve.level:g}% interval "
    return (
        f"A result at rank {first.position} is seen {_share(first, level)} as often as one at rank 1{named}. "
        "This is how often people look at a rank, whatever is shown there."
    )


def _share(p: Position, level: str = "") -> str:
    ends = f" ({level}{_percent(p.low)} to {_percent(p.high)})" if p.low is not None and p.high is not None else ""
    return f"{_percent(p.propensity)}{ends}"


def _percent(value: float | None) -> str:
    """Return a share of rank 1 as people say it.

    >>> _percent(0.4912), _percent(0.0412), _percent(1.2)
    ('49%', '4.1%', '120%')
    """
    share = 100 * (value or 0.0)
    return f"{share:.0f}%" if share >= 9.95 else f"{share:.1f}%"


def trust_sentence(curve: Curve, diagnosis: Diagnosis, findings: Sequence[Finding]) -> str:
    """Return whether to trust a curve, in a sentence."""
    warnings = sum(finding.severity == "warning" for finding in findings)
    if not diagnosis.sound or any(finding.severity == "error" for finding in findings):
        return "Do not use this curve yet: an assumption behind it does not hold."
    if warnings:
        return f"Read it with {'a warning' if warnings == 1 else f'{warnings} warnings'}."
    if is_incomplete(curve):
        return "Some ranks have no number, or no interval. Nothing was found that speaks against the others."
    return "Nothing was found that speaks against it."


def missing_sentences(curve: Curve) -> list[str]:
    """Return which ranks have no number or a weak one, and why, each reason once."""
    found: dict[tuple[bool, str], list[int]] = {}
    for p in curve.positions:
        if p.reason is not None:
            found.setdefault((p.propensity is None, p.reason), []).append(p.position)
    return [
        f"{format_ranks(ranks).capitalize()} {_has(none, len(ranks))}: {reason}."
        for (none, reason), ranks in found.items()
    ]


def _has(none: bool, several: int) -> str:
    verb = "have" if several > 1 else "has"
    return f"{verb} no number" if none else f"{verb} a number to be read with care"


def segments_sentence(segments: SegmentComparison, diagnosis: Diagnosis) -> str:
    """Return whether segments have curves of their own, in a sentence or two, as the diagnosis finds it."""
    differ = any(finding.code == DIFFER for finding in diagnosis.findings)
    if differ:
        more = " The curve of all is their average."
    else:
        more = " Chance does as much where so many questions are asked." if segments.differs else ""
    return f"{segments.told(differ)}{more}"


def basis_sentence(curve: Curve) -> str:
    """Return what a curve comes from, in a sentence."""
    busiest = sorted(curve.page_views.items(), key=lambda item: -item[1])[:_MOST_NAMED]
    clicks = sum(p.clicks for p in curve.positions)
    more = f" and {len(curve.page_views) - _MOST_NAMED} more" if len(curve.page_views) > _MOST_NAMED else ""
    names = ", ".join(f"{name} ({n:,})" for name, n in sorted(busiest))
    served = f", served by ranker{'s'[: len(curve.page_views) > 1]} {names}{more}"
    return (
        f"It comes from {sum(curve.page_views.values()):,} page views with {clicks:,} clicks"
        f"{'' if [*curve.page_views] == [ANY_RANKER] else served}."
    )
