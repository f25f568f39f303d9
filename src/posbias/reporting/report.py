"""Report on one or two harvests: the curve, whether to trust it, the evidence, the weights, and the origin of the data.

A `Report` is a value with everything that its page shows, as plain data. `posbias.reporting.page` renders it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from posbias._arrays import FloatArray, run_in_background
from posbias._defaults import DEFAULT_CAP, DEFAULT_LEVEL, DEFAULT_MAX_RANK
from posbias._text import as_python, format_ranks, label, printable, spelled
from posbias._validate import integer, share, texts
from posbias._validate import names as segment_columns
from posbias.curves.curve import Curve, Position, largest_segments
from posbias.engines import EngineChoice, open_log
from posbias.errors import CurveError, EstimateError, HarvestError, Spelling
from posbias.estimators import FROM_HARVESTS
from posbias.estimators.base import Estimator, Jackknife
from posbias.findings import Finding, Severity, any_error
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.harvest import harvest as make_harvest
from posbias.judging.compare import Comparison, choose_estimator, compare, fit_harvest
from posbias.judging.compare_segments import SEGMENTS_DIFFER, SegmentComparison, compare_few_segments
from posbias.judging.diagnose import Diagnosis, diagnose_harvest, sort_by_severity
from posbias.judging.diagnostics import (
    PageClicks,
    PairRatio,
    count_page_clicks,
    measure_pair_ratios,
)
from posbias.judging.history import History
from posbias.logs.click_log import ClickLog, Weighting
from posbias.logs.schema import ANY_RANKER
from posbias.progress import Progress, silent
from posbias.version import __version__

# The purposes of the commands that come after a report.
PURPOSES = {
    "estimate": "Save the curve with its covariance",
    "weights": "Compute weights for learning to rank",
    "diagnose": "Diagnose the curve again",
    "plan": "Plan how much more data you need",
}
_HARVEST_PURPOSE = "Get the harvest"
FORMAT = 1
# The largest number of rankers that a sentence names.
_MOST_NAMED = 4
# Facts that a harvest has about itself, as the page names them; counts of 0 are left out.
_FACTS = {
    "made": "harvested",
    "engine": "engine",
    "posbias": "harvested by posbias",
    "rows": "rows of the log",
    "rows_counted": "rows counted",
}
_COUNTS = {
    "parts": "harvests merged",
    "rows_beyond": "rows beyond the top ranks",
    "rows_contradicted": "rows shown at another rank than their ranker gave them",
    "non_functional_pairs": "pairs of query and document to which a ranker gave several ranks",
}
_COLUMNS = ("query", "doc", "ranker", "position", "click", "impressions", "clicks", "impression", "ranks", "window")
_LAYOUTS = {
    "wide": "from columns of the log",
    "long": "from a second table",
    "replay": "from the ranks shown when queries recurred",
}
Source = Harvest | ClickLog | str | os.PathLike[str]
_HARVEST_DEFAULTS = {
    "max_rank": DEFAULT_MAX_RANK,
    "by": (),
    "weighting": None,
    "force": False,
    "non_functional": "share",
}


def report(
    source: Source,
    other: Source | None = None,
    *,
    names: Sequence[str] | None = None,
    estimator: str | None = None,
    level: float = DEFAULT_LEVEL,
    history: History | str | os.PathLike[str] | None = None,
    max_rank: int = DEFAULT_MAX_RANK,
    by: str | Sequence[str] = (),
    weighting: Weighting | None = None,
    non_functional: Literal["share", "refuse"] = "share",
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    force: bool = False,
    columns: int | None = None,
    command: str | None = None,
) -> Report:
    """Report on a log or a harvest in one page: the curve, whether to trust it, the evidence, and how to use it.

    Arguments:
        source (Harvest, ClickLog or path): a harvest, the file of one, or a log. Of a log, the clicks of each page view
            are examined too.
        other (Harvest, ClickLog or path, default None): a second source, to compare with the first.
        names (sequence of str, default None): the names of the sources on the page; None for the names of their files.
        estimator (str, default None): the name of the estimator, such as "all-pairs"; None for the best one for the
            harvest.
        level (float, default 0.95): the level of the confidence intervals.
        history (History or path, default None): the curves of many days, or the file of them.
        max_rank, by, weighting, non_functional, engine, progress, force: settings of the harvest of a log, as in
            `posbias.harvest`.
        columns (int, default None): the columns of a grid whose places are numbered row by row, to add a heat map.
        command (str, default None): the command that creates the report, to be shown in it.

    Returns:
        A `Report`.

    Example:
        >>> import posbias
        >>> harvest = posbias.harvest(posbias.ClickLog(posbias.simulate(posbias.World(queries=500, max_rank=5))))
        >>> report = posbias.report(harvest, names=["spring"])
        >>> report.title, report.sound
        ('Position bias in spring', True)
        >>> report.save("report.html")  # doctest: +SKIP
    """
    share("level", level, CurveError)
    if (page := _path(other)) is not None and page.lower().endswith((".html", ".htm")):
        raise HarvestError(
            f"The second argument is another log to compare with, not the page. Use report(...).save({page!r})."
        )
    sources = [source] if other is None else [source, other]
    source_names = _default_names(sources) if names is None else texts("names", names, error=HarvestError)
    if len(source_names) != len(sources):
        raise HarvestError(f"{len(source_names)} names were given for {len(sources)} to report on. Give one for each.")
    if len(set(source_names)) < len(source_names):
        raise HarvestError(f"Both are called {source_names[0]!r}. Give each a name of its own.")
    days = history if isinstance(history, History | None) else History.load(history)
    if days is not None and not days.days:
        raise CurveError("The history has no day yet: add one with History.add, or leave it out.")
    settings: dict[str, Any] = {
        "max_rank": max_rank,
        "by": segment_columns("by", by, HarvestError),
        "weighting": weighting,
        "non_functional": non_functional,
        "force": force,
    }
    fits, parts = [], []
    for one, name in zip(sources, source_names, strict=True):
        harvest, page_clicks = _get_harvest(one, settings, engine, progress)
        if columns is not None:
            integer("columns", columns, 1, harvest.max_rank, CurveError)
        chosen = choose_estimator(harvest, estimator)
        # NumPy lets both run at the same time.
        evidence = run_in_background(partial(_measure_evidence, harvest, chosen, level))
        fits.append(fit_harvest(harvest, chosen, level))
        parts.append(_part(fits[-1], evidence.result(), page_clicks, _origin(harvest, one, settings), name))
    comparison = None
    if len(fits) == 2:
        comparison = compare(*fits, level=level, names=[part.name for part in parts])
    return Report(tuple(parts), comparison, days, command, columns=columns)


@dataclass(frozen=True, eq=False)
class Report:
    """A report on one or two harvests, as returned by `posbias.report`.

    `save` writes it as one HTML file that needs nothing else, `to_dict` returns what is in it.

    Attributes:
        parts (tuple of ReportPart): the results of each harvest.
        comparison (Comparison or None): the comparison of two harvests.
        history (History or None): the curves of many days.
        command (str or None): the command that creates the report.
        steps (tuple of mapping or None): the commands to run next by purpose, for each part; None for Python code.
        columns (int or None): the columns of a grid, drawn as a heat map.
        version (str): the version of posbias.
    """

    parts: tuple[ReportPart, ...]
    comparison: Comparison | None = None
    history: History | None = None
    command: str | None = None
    steps: tuple[Mapping[str, str], ...] | None = None
    columns: int | None = None
    version: str = field(default=__version__)

    @property
    def title(self) -> str:
        """The title, with the names of the harvests, or of their files."""
        return f"Position bias in {' and '.join(part.title for part in self.parts)}"

    @property
    def sound(self) -> bool:
        """Whether there is no finding of severity "error"."""
        return all(part.sound for part in self.parts)

    @property
    def next_steps(self) -> list[tuple[ReportPart, Mapping[str, str]]]:
        """The parts, each with what to run next by purpose."""
        steps = self.steps if self.steps is not None else [steps_in_python(part) for part in self.parts]
        return list(zip(self.parts, steps, strict=True))

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return everything in the report as plain data."""
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
        """Return the report as an HTML page that contains everything it needs and loads nothing."""
        from posbias.reporting.page import render

        return render(self, spell)

    def save(self, path: str | os.PathLike[str], spell: Spelling = as_python) -> None:
        """Write the report to an HTML file, as a whole or not at all."""
        from posbias._files import REPORT, atomic_write, writable

        writable(path, REPORT)
        page = self.to_html(spell)
        with atomic_write(path, REPORT) as part, open(part, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)

    def __repr__(self) -> str:
        problems = sum(f.severity != "info" for part in self.parts for f in part.findings)
        return f"<Report of {' and '.join(repr(part.name) for part in self.parts)}, {problems} problems found>"


@dataclass(frozen=True, eq=False)
class ReportPart:
    """The results of one harvest.

    Attributes:
        name (str): its name on the page.
        curve (Curve): the curve, with those of segments.
        diagnosis (Diagnosis): whether to trust the curve.
        findings (tuple of Finding): the findings about the log and the curve, without examples, which are rows of the
            log.
        pair_clicks (array): the clicks at rank k on documents that are at rank k' too, (M, M).
        pair_ratios (tuple of PairRatio): the ratio of propensities by the clicks of each pair of ranks.
        estimators (mapping of str to Curve or str): the curve of each estimator, or the reason why it has none.
        segments (SegmentComparison, str or None): the comparison of segments, or the reason why there is none.
        weights (ClickWeights): the weights of the clicks.
        origin (Origin): the data and settings.
    """

    name: str
    curve: Curve
    diagnosis: Diagnosis
    findings: tuple[Finding, ...]
    pair_clicks: FloatArray
    pair_ratios: tuple[PairRatio, ...]
    estimators: Mapping[str, Curve | str]
    segments: SegmentComparison | str | None
    weights: ClickWeights
    origin: Origin

    @property
    def sound(self) -> bool:
        """Whether there is no finding of severity "error"."""
        return not any_error(self.findings)

    @property
    def severity(self) -> Severity:
        """The highest severity of the findings; a rank without an estimate or interval counts as a warning."""
        severities = {f.severity for f in self.findings}
        if "error" in severities:
            return "error"
        return "warning" if "warning" in severities or _is_incomplete(self.curve) else "info"

    @property
    def unnoticed_trust_bias(self) -> float | None:
        """The size of trust bias that could have gone unnoticed; None if it is not known, or if pairs contradict."""
        of_test = [f for f in self.diagnosis.findings if f.code in ("one-curve", "one-curve-not-tested")]
        return next((f.evidence["trust_bias_detectable"] for f in of_test), None)

    @property
    def title(self) -> str:
        """The name of its file, unless it has a name of its own."""
        file = os.path.basename(self.origin.path or "")
        return file if self.name == os.path.splitext(file)[0] else self.name

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer in words: the curve, whether to trust it, what is missing, and the data.

        With segments, the answer is their curves and whether these differ. The curve of all data follows.
        """
        trust, more = (
            _trust_sentence(self.curve, self.diagnosis, self.findings),
            (*_missing_sentences(self.curve), _data_sentence(self.curve)),
        )
        if self.segments is None:
            return (_curve_sentence(self.curve), trust, *more)
        tested = self.segments
        if isinstance(tested, SegmentComparison):
            tested = _segments_sentence(tested, self.diagnosis)
        together = f"All segments together: {_lower_first(_curve_sentence(self.curve))}"
        return (" ".join([*_segment_curves_sentence(self.curve), tested]), trust, together, *more)

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return the results as plain data."""
        return {
            "name": self.name,
            "sentences": list(self.sentences),
            "curve": self.curve.to_dict(),
            "sound": self.sound,
            "findings": [
                {"code": f.code, "severity": f.severity, "message": f.message, "remedy": spelled(f.remedy, spell)}
                | {"add": spell(f.arguments)}
                for f in self.findings
            ],
            "support": [support.to_dict() for support in self.diagnosis.support],
            "pair_clicks": self.pair_clicks.tolist(),
            "pair_ratios": [asdict(ratio) for ratio in self.pair_ratios],
            "estimators": {
                name: curve if isinstance(curve, str) else curve.to_dict() for name, curve in self.estimators.items()
            },
            "segments": self.segments.to_dict() if isinstance(self.segments, SegmentComparison) else self.segments,
            "weights": self.weights.to_dict(),
            "origin": self.origin.to_dict(),
        }


def _default_names(sources: Sequence[Any]) -> list[str]:
    """Return the names of files, or letters if sources are not files or two files have the same name."""
    paths = [_path(source) for source in sources]
    names = [os.path.splitext(os.path.basename(path))[0] for path in paths if path is not None]
    if len({*filter(None, names)}) == len(sources):
        return names
    return ["this log"] if len(sources) == 1 else ["A", "B"]


def _path(source: Any) -> str | None:
    """Return the path of a source, if it is one file or folder."""
    path = source.source if isinstance(source, ClickLog) else source
    return os.fspath(path) if isinstance(path, str | os.PathLike) else None


def _get_harvest(
    source: Any, settings: dict[str, Any], engine: EngineChoice | None, progress: Progress
) -> tuple[Harvest, PageClicks | None]:
    """Return the harvest of a source, and the clicks of its page views if it is a log."""
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


class _Evidence(NamedTuple):
    """What a report shows beside the curve of the chosen estimator.

    Attributes:
        fits: the other estimators by name, fitted.
        failed: the reasons why some have no curve.
        pair_clicks: the clicks in the intervention sets.
    """

    fits: dict[str, Estimator[Any]]
    failed: dict[str, str]
    pair_clicks: FloatArray


def _measure_evidence(harvest: Harvest, chosen: str, level: float) -> _Evidence:
    # The chosen estimator has the curves of segments.
    whole = replace(harvest, by=()) if harvest.by else harvest
    fits: dict[str, Estimator[Any]] = {}
    failed: dict[str, str] = {}
    for name in FROM_HARVESTS:
        if name == chosen or (name == "cross-fit" and harvest.kind == "pairs"):
            continue
        try:
            fits[name] = fit_harvest(whole, name, level)
        except EstimateError as error:
            failed[name] = str(error)
    return _Evidence(fits, failed, harvest.pair_clicks())


def _part(
    fitted: Estimator[Any], evidence: _Evidence, page_clicks: PageClicks | None, origin: Origin, name: str
) -> ReportPart:
    harvest, curve, level = fitted.harvest_, fitted.curve(), fitted.parameters()["level"]
    segments = compare_few_segments(harvest, fitted.name, level)
    diagnosis = diagnose_harvest(
        harvest,
        page_clicks=page_clicks,
        curves=_jackknives([fitted, *evidence.fits.values()]),
        segments=segments if isinstance(segments, SegmentComparison) else None,
    )
    curves = {other: fit.curve() for other, fit in evidence.fits.items()}
    # The diagnosis says more about a problem than the harvest, which saw it in a sample.
    diagnosed = {finding.code for finding in diagnosis.findings}
    return ReportPart(
        name=name,
        curve=curve,
        diagnosis=diagnosis,
        # An example names a row of the log.
        findings=sort_by_severity(
            [
                replace(f, example=None)
                for f in (*diagnosis.findings, *(g for g in harvest.findings if g.code not in diagnosed))
            ]
        ),
        pair_clicks=evidence.pair_clicks,
        pair_ratios=measure_pair_ratios(harvest.interventions(), curve.propensity),
        estimators=evidence.failed | {fitted.name: replace(curve, by=(), segments={})} | curves,
        segments=segments,
        weights=click_weights(curve),
        origin=origin,
    )


@dataclass(frozen=True)
class Origin:
    """The data and settings of a harvest.

    Attributes:
        facts (mapping of str to str): facts about the log and the harvest, in the order of the page.
        page_views (mapping of str to int): the page views of each ranker.
        path (str or None): the file, if the source is one.
        kind (str): "log" or "harvest".
        python (tuple of str): lines of Python that make `log` and `harvest`, as far as they can be written.
    """

    facts: Mapping[str, str]
    page_views: Mapping[str, int]
    path: str | None
    kind: str
    python: tuple[str, ...] = ()

    @classmethod
    def of(cls, harvest: Harvest, path: str | None, log: ClickLog | None, settings: str = "") -> Origin:
        """Return the origin of a harvest, with its file, its log and its settings as Python where these are known."""
        about = harvest.about
        known = {name: _fact(about[key]) for key, name in _FACTS.items() if about.get(key) is not None}
        known |= {name: _fact(about[key]) for key, name in _COUNTS.items() if about.get(key)}
        named = harvest.rankers != (ANY_RANKER,)
        facts = {
            "log": str(about.get("source", "not known")),
            "columns": "as given with the log, the others with their default names" if log is None else _columns(log),
            **known,
            "ranks known": _LAYOUTS.get(harvest.layout.value, harvest.layout.value),
            "ranks compared": f"1 to {harvest.max_rank}",
            "weighting of pairs": harvest.weighting,
            "segment columns": ", ".join(harvest.by) or "none",
            "segments": f"{len(harvest.segments):,}" if harvest.by else "none",
            "rankers": f"{len(harvest.rankers):,}" if named else "not named",
            "buckets of queries": f"{len(harvest.buckets):,}",
            "intervals cluster by": "query" if harvest.units is None else f"query and {harvest.units.column}",
        }
        return cls(
            facts,
            dict(harvest.page_views),
            path,
            "harvest" if log is None else "log",
            _python_lines(path, log, settings),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the origin as plain data."""
        return asdict(self) | {"facts": dict(self.facts), "page_views": dict(self.page_views)}


def _fact(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _columns(log: ClickLog) -> str:
    """Return the column of each role in a log."""
    columns = {name: getattr(log, name) for name in _COLUMNS}
    if log.clicks is not None:
        columns.pop("click")
    return ", ".join(f"{name}: {column}" for name, column in columns.items() if isinstance(column, str))


def _python_lines(path: str | None, log: ClickLog | None, settings: str) -> tuple[str, ...]:
    if log is None:
        return () if path is None else (f"harvest = posbias.Harvest.load({path!r})",)
    return (f"log = posbias.{log!r}", f"harvest = posbias.harvest(log{settings and f', {settings}'})")


def _jackknives(fits: list[Estimator[Any]]) -> dict[str, Jackknife] | None:
    """Return the curves with their refits for a diagnosis; None if one has no refits and must be fitted again."""
    by_name = {fit.name: fit.jackknife_ for fit in fits}
    curves = {name: jackknife for name in FROM_HARVESTS if (jackknife := by_name.get(name)) is not None}
    return curves if len(curves) == len(fits) else None


def click_weights(curve: Curve, cap: float = DEFAULT_CAP) -> ClickWeights:
    """Return the inverse propensity weights of the clicks of a curve, p_1 / p_k up to a cap.

    >>> from posbias.curves.curve import Position
    >>> positions = [Position(1, 1.0, None, None, 50, 30, None), Position(2, 0.5, None, None, 50, 10, None)]
    >>> weights = click_weights(Curve("x", 2, None, None, None, tuple(positions), {}))
    >>> [rank.weight for rank in weights.ranks], round(weights.effective_clicks, 2)
    ([1.0, 2.0], 35.71)
    """
    all_clicks = {p.position: p.clicks for p in curve.positions}
    by_rank: dict[int, list[tuple[int, float]]] = {rank: [] for rank in all_clicks}
    for part in curve.segments.values() if curve.by else (curve,):
        for p in part.positions:
            if p.propensity:
                by_rank[p.position].append((p.clicks, 1 / p.propensity))
    pairs = [pair for of_rank in by_rank.values() for pair in of_rank]
    capped = [(n, min(weight, cap)) for n, weight in pairs]
    clicks = sum(n for n, _ in pairs)
    total, squares = sum(n * w for n, w in capped), sum(n * w * w for n, w in capped)
    uncapped = sum(n * w for n, w in pairs)
    return ClickWeights(
        cap=cap,
        ranks=tuple(
            ClickWeight(
                rank,
                _mean_weight([(n, min(weight, cap)) for n, weight in of_rank]),
                all_clicks[rank],
                any(weight > cap for _, weight in of_rank),
            )
            for rank, of_rank in by_rank.items()
        ),
        clicks=clicks,
        # Kish's effective sample size.
        effective_clicks=total**2 / squares if squares else 0.0,
        capped_share=1 - total / uncapped if uncapped else 0.0,
        # Clicks of segments without a curve count here too.
        clicks_without_weight=sum(all_clicks.values()) - clicks,
        by=curve.by,
    )


@dataclass(frozen=True)
class ClickWeights:
    """The inverse propensity weights of the clicks of a curve; each segment has the weights of its own curve.

    Attributes:
        cap (float): the largest weight.
        ranks (tuple of ClickWeight): the weight of a click at each rank.
        clicks (int): the number of clicks that have a weight.
        effective_clicks (float): their effective sample size, (Σ w)² / Σ w².
        capped_share (float): the share of the total weight that the cap removes.
        clicks_without_weight (int): the number of clicks at ranks without an estimate.
        by (tuple of str): the segment columns.
    """

    cap: float
    ranks: tuple[ClickWeight, ...]
    clicks: int
    effective_clicks: float
    capped_share: float
    clicks_without_weight: int
    by: tuple[str, ...] = ()

    @property
    def effective_share(self) -> float:
        """The effective sample size as a share of the clicks that have a weight."""
        return self.effective_clicks / self.clicks if self.clicks else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the weights as plain data."""
        return asdict(self) | {"ranks": [asdict(rank) for rank in self.ranks]}


@dataclass(frozen=True)
class ClickWeight:
    """The weight of a click at a rank, p_1 / p_k up to the cap; None if p_k is 0 or not known.

    With segments it is the mean over clicks, and `capped` if the weight of any segment was.
    """

    rank: int
    weight: float | None
    clicks: int
    capped: bool


def _mean_weight(weights: list[tuple[int, float]]) -> float | None:
    """Return the mean weight over clicks, or over segments if there are no clicks."""
    clicks = sum(n for n, _ in weights)
    if clicks:
        return sum(n * w for n, w in weights) / clicks
    return sum(w for _, w in weights) / len(weights) if weights else None


def _origin(harvest: Harvest, source: Any, settings: dict[str, Any]) -> Origin:
    chosen = {name: value for name, value in settings.items() if value != _HARVEST_DEFAULTS[name]}
    return Origin.of(harvest, _path(source), source if isinstance(source, ClickLog) else None, as_python(chosen))


def steps_in_python(part: ReportPart) -> dict[str, str]:
    """Return the Python code of the next steps by purpose."""
    curve = part.curve
    name = "".join(word.capitalize() for word in curve.estimator.split("-"))
    level = "" if curve.level in (None, DEFAULT_LEVEL) else f"level={curve.level:g}"
    code = {
        "estimate": f"posbias.{name}({level}).fit(harvest).curve().save('curve.json')",
        "weights": "posbias.ips_weights(log, 'curve.json', 'weights.parquet')",
        "diagnose": "print(posbias.diagnose(harvest))",
        "plan": "print(posbias.plan(harvest))",
    }
    harvest = {_HARVEST_PURPOSE: "\n".join(part.origin.python)} if part.origin.python else {}
    return harvest | {purpose: code[command] for command, purpose in PURPOSES.items()}


# ---- Sentences


def _is_incomplete(curve: Curve) -> bool:
    """Return whether a rank has no estimate or, beyond the first, no interval."""
    return any(p.propensity is None or (p.position > 1 and p.low is None) for p in curve.positions)


def _curve_sentence(curve: Curve) -> str:
    """Return the curve in words, at its second rank, one in the middle and its last."""
    known = [p for p in curve.positions if p.propensity and p.position > 1]
    middle = (1 + known[-1].position) / 2
    chosen = {known[0], min(known, key=lambda p: abs(p.position - middle)), known[-1]}
    first, *others = sorted(chosen, key=lambda p: p.position)
    more = "".join(f"; at rank {p.position}, {_share(p)}" for p in others)
    level = "" if curve.level is None else f"{100 * curve.level:g}% interval "
    return (
        f"A result at rank {first.position} is seen {_share(first, level)} as often as one at rank 1{more}. "
        "This is how often people look at a rank, whatever is shown there."
    )


def _share(p: Position, level: str = "") -> str:
    interval = f" ({level}{_percent(p.low)} to {_percent(p.high)})" if p.low is not None and p.high is not None else ""
    return f"{_percent(p.propensity)}{interval}"


def _percent(value: float | None) -> str:
    """Return a share as percent.

    >>> _percent(0.4912), _percent(0.0412), _percent(1.2)
    ('49%', '4.1%', '120%')
    """
    share = 100 * (value or 0.0)
    return f"{share:.0f}%" if share >= 9.95 else f"{share:.1f}%"


def _trust_sentence(curve: Curve, diagnosis: Diagnosis, findings: Sequence[Finding]) -> str:
    """Return whether to trust a curve."""
    warnings = sum(finding.severity == "warning" for finding in findings)
    if not diagnosis.sound or any_error(findings):
        return "Do not use this curve yet: an assumption behind it does not hold."
    if warnings:
        return f"Use this curve with care: there {'is 1 warning' if warnings == 1 else f'are {warnings} warnings'}."
    if _is_incomplete(curve):
        return "Some ranks have no estimate or no interval. No other problems found."
    return " ".join([diagnosis.all_clear, *(f"{text}." for text in diagnosis.reservations)])


def _missing_sentences(curve: Curve) -> list[str]:
    """Return the ranks with no estimate, or with a weak one, for each reason."""
    by_reason: dict[tuple[bool, str], list[int]] = {}
    for p in curve.positions:
        if p.reason is not None:
            by_reason.setdefault((p.propensity is None, p.reason), []).append(p.position)
    sentences = []
    for (missing, reason), ranks in by_reason.items():
        have = "have" if len(ranks) > 1 else "has"
        estimate = "no estimate" if missing else "a weak estimate"
        sentences.append(f"{format_ranks(ranks).capitalize()} {have} {estimate}: {reason}.")
    return sentences


def _segment_curves_sentence(curve: Curve) -> list[str]:
    """Return the propensities of the segments with most page views at the second and the last rank, if any is known."""
    shown = largest_segments(curve, _MOST_NAMED)
    ranks = [p.position for p in curve.positions if p.position > 1]
    parts: list[str] = []
    for rank in dict.fromkeys([*ranks[:1], *ranks[-1:]]):
        found = {key: p for key, part in shown.items() for p in part.positions if p.position == rank and p.propensity}
        if found:
            shares = [f"{_percent(p.propensity)} ({printable(label(key))})" for key, p in found.items()]
            seen = " and ".join([", ".join(shares[:-1]), shares[-1]] if len(shares) > 1 else shares)
            parts.append(f"at rank {rank}, {seen}" if parts else f"a result at rank {rank} is seen {seen}")
    if not parts:
        return []
    largest = "" if len(shown) == len(curve.segments) else f" (the {len(shown)} largest segments)"
    parts[0] += " as often as one at rank 1"
    return [f"By {printable(', '.join(curve.by))}{largest}, {'; '.join(parts)}."]


def _lower_first(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _segments_sentence(segments: SegmentComparison, diagnosis: Diagnosis) -> str:
    """Return whether segments have different curves, as the diagnosis finds it."""
    differ = any(finding.code == SEGMENTS_DIFFER for finding in diagnosis.findings)
    if differ:
        more = " The curve of all data is their average."
    else:
        more = " With this number of tests, chance alone may cause such a difference." if segments.differs else ""
    return f"{segments.sentence(differ)}{more}"


def _data_sentence(curve: Curve) -> str:
    """Return the data behind a curve."""
    busiest = sorted(curve.page_views.items(), key=lambda item: -item[1])[:_MOST_NAMED]
    clicks = sum(p.clicks for p in curve.positions)
    more = f" and {len(curve.page_views) - _MOST_NAMED} more" if len(curve.page_views) > _MOST_NAMED else ""
    names = ", ".join(f"{name} ({n:,})" for name, n in sorted(busiest))
    served = f", served by ranker{'s'[: len(curve.page_views) > 1]} {names}{more}"
    return (
        f"The curve comes from {sum(curve.page_views.values()):,} page views with {clicks:,} clicks"
        f"{'' if [*curve.page_views] == [ANY_RANKER] else served}."
    )
