"""Diagnose a curve: test the assumptions behind it on the harvest that it was estimated from.

`diagnose` harvests a log if one is given, and runs every function in `DIAGNOSTICS`. `docs/trust.md` describes the
tests, how often they raise false alarms, what they detect, and what no harvest can show.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from posbias._arrays import FloatArray, one_blas_thread
from posbias._defaults import DEFAULT_MAX_RANK
from posbias._text import as_python
from posbias.engines import EngineChoice, OpenLog, open_log
from posbias.errors import HarvestError, LogError, Spelling
from posbias.estimators.base import Estimator, Jackknife
from posbias.estimators.one_curve import REPLAY_UNTESTED, OneCurve, verdict
from posbias.estimators.significance import AssumptionTest, decide
from posbias.findings import MARKS, Finding, any_error, legend, quiet, serious, wrap_printable
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.harvest import harvest as make_harvest
from posbias.harvesting.row_checks import TIME_WINDOWS
from posbias.judging.compare_segments import SegmentComparison, compare_few_segments
from posbias.judging.diagnostics import (
    Context,
    LargestQuery,
    PageClicks,
    RankSupport,
    agreement_test,
    compared_ranks,
    count_largest_queries,
    count_page_clicks,
    count_units,
    crawlers_test,
    drift_test,
    find_dominant_buckets,
    find_few_degrees,
    find_similar_rankers,
    find_sticky_traffic,
    find_unusual_pages,
    independence_test,
    note_missing_rankers,
    one_curve_test,
    page_clicks_test,
    proxy_test,
    refuse_proxy,
    refuse_proxy_column,
    report_overlap,
    report_page_depth,
    report_repeated_pairs,
    report_support,
    segments_test,
    split_test,
)
from posbias.logs.click_log import ClickLog, Events
from posbias.logs.schema import Schema
from posbias.progress import Progress, silent, step
from posbias.version import __version__

# Every diagnostic, in the order of the report. To add one, write a function of a `Context` and list it here.
DIAGNOSTICS: tuple[Callable[[Context], Iterable[Finding | AssumptionTest]], ...] = (
    report_support,
    find_few_degrees,
    find_dominant_buckets,
    find_similar_rankers,
    report_repeated_pairs,
    report_page_depth,
    report_overlap,
    one_curve_test,
    drift_test,
    independence_test,
    split_test,
    proxy_test,
    agreement_test,
    segments_test,
    page_clicks_test,
    find_sticky_traffic,
    find_unusual_pages,
    crawlers_test,
    note_missing_rankers,
)
# The window of time of a row, as a column.
_WINDOW = "posbias_window"
_SEVERITIES = ("error", "warning", "info")


def diagnose(
    source: Harvest | ClickLog,
    *,
    split: Mapping[str, float] | None = None,
    proxy: str | None = None,
    max_rank: int = DEFAULT_MAX_RANK,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    force: bool = False,
) -> Diagnosis:
    """Test the assumptions behind the curve of a harvest, and report what depends on little data.

    Arguments:
        source (Harvest or ClickLog): a harvest; or a log, whose clicks per page view are examined too.
        split (mapping, optional): the intended shares of traffic by ranker, such as {"a": 50, "b": 50}.
        proxy (str, optional): a column of the log, or the one segment column of the harvest, with classes of documents
            by expected relevance. It must not be made from these clicks. The curves of its classes are compared.
        max_rank (int, default 10): the deepest rank to harvest, for a log.
        engine (engine or str, optional): the engine that harvests a log, as for `posbias.harvest`.
        progress (callable, optional): is called with the progress of the harvest of a log.
        force (bool, default False): harvest a log in spite of errors in it.

    Returns:
        Diagnosis: the findings, errors first, and the data behind each rank.

    Example:
        >>> import posbias
        >>> world = posbias.World(queries=2000, quality=(0.5, 2.0))
        >>> diagnosis = posbias.diagnose(posbias.harvest(posbias.ClickLog(posbias.simulate(world))))
        >>> diagnosis.sound, [finding.code for finding in diagnosis.findings]
        (True, ['support', 'one-curve'])
    """
    if isinstance(source, Harvest):
        # With a proxy, the segments are its classes, and another test compares them.
        segments = compare_few_segments(source) if proxy is None else None
        return diagnose_harvest(
            source,
            split=split,
            proxy=proxy,
            segments=segments if isinstance(segments, SegmentComparison) else None,
        )
    if not isinstance(source, ClickLog):
        raise HarvestError(
            f"diagnose takes a Harvest or a ClickLog, not a {type(source).__name__}. Make one with ClickLog(...)."
        )
    by = () if proxy is None else (proxy,)
    if proxy is not None:
        with open_log(source, engine, progress) as opened:
            refuse_proxy_column(opened.schema, proxy)
    harvest = make_harvest(source, max_rank=max_rank, by=by, engine=engine, progress=progress, force=force)
    with open_log(source, engine, progress) as opened:
        page_clicks = count_page_clicks(opened, harvest.rankers, max_rank)
        largest_queries = count_largest_queries(opened, harvest.rankers, max_rank)
        units = None if split is None else count_units(opened, harvest.rankers, max_rank)
        schema, windows = opened.schema, _within_windows(source, opened)
    within = None
    if harvest.kind == "exposures" and proxy is None and windows is not None:
        with contextlib.suppress(HarvestError, LogError), quiet():
            within = make_harvest(windows, max_rank=max_rank, engine=engine, progress=progress, force=True)
    return diagnose_harvest(
        harvest,
        split=split,
        proxy=proxy,
        page_clicks=page_clicks,
        units=units,
        largest_queries=largest_queries,
        schema=schema,
        within=within,
    )


def _within_windows(log: ClickLog, opened: OpenLog) -> ClickLog | None:
    """Return the log with comparisons within an eighth of its time only; None without a time, or if it has a window."""
    schema, d = opened.schema, opened.dialect
    if schema.time is None or schema.window is not None or isinstance(log.source, Events):
        return None
    time, type_ = d.quote(schema.time), schema.types[schema.time]
    moment, kind = (d.try_cast(time, "TIMESTAMP"), "TIMESTAMP") if type_ == "VARCHAR" else (time, type_)
    # Hours are fine enough, and are few.
    coarse = f"date_trunc('hour', {moment})" if kind.startswith("TIMESTAMP") else moment
    first = opened.rows(
        f"SELECT {d.as_text('MIN(moment)')}, part FROM (SELECT moment, NTILE({TIME_WINDOWS}) OVER (ORDER BY moment) AS "
        f"part FROM (SELECT DISTINCT {coarse} AS moment FROM log) t WHERE moment IS NOT NULL) s GROUP BY part "
        "ORDER BY part",
        "Cutting the time into windows",
    )
    if len(first) < 2:
        # A text such as 1/2/2026 has no order, and is a window of its own.
        return replace(log, window=schema.time, time=None) if type_ == "VARCHAR" else None
    begins = [f"CASE WHEN {moment} >= {d.cast(repr(begin), kind)} THEN 1 ELSE 0 END" for begin, _ in first[1:]]
    source = "source" if log.sql is None else f"({log.sql}) s"
    return replace(log, sql=f"SELECT *, {' + '.join(begins)} AS {_WINDOW} FROM {source}", window=_WINDOW, time=None)


@one_blas_thread()
def diagnose_harvest(
    harvest: Harvest,
    *,
    split: Mapping[str, float] | None = None,
    proxy: str | None = None,
    page_clicks: PageClicks | None = None,
    units: FloatArray | None = None,
    largest_queries: Mapping[int, LargestQuery] | None = None,
    schema: Schema | None = None,
    within: Harvest | None = None,
    segments: SegmentComparison | None = None,
    curves: Mapping[str, Jackknife] | None = None,
) -> Diagnosis:
    """Run all diagnostics on a harvest.

    Arguments:
        harvest (Harvest): the harvest.
        split, proxy: as for `diagnose`.
        page_clicks (PageClicks, optional): the clicks of the page views of its log.
        units (array, optional): the units of its log by bucket of units and ranker.
        largest_queries (mapping, optional): the query with the most clicks of each bucket of its log.
        schema (Schema, optional): the columns of its log.
        within (Harvest, optional): in replay, the harvest with comparisons within one window of time only.
        segments (SegmentComparison, optional): a comparison of its segments, as one more test.
        curves (mapping, optional): the result of `fit_estimators`, if the curves were fitted already.
    """
    context = Context(
        harvest, split, proxy, page_clicks, units, largest_queries or {}, schema, within, segments, curves
    )
    # Invalid arguments are refused before anything is computed.
    if split is not None:
        context.intended_shares  # noqa: B018
    if proxy is not None:
        refuse_proxy(harvest, proxy)
    outcomes: list[Finding | AssumptionTest] = []
    for diagnostic in DIAGNOSTICS:
        with step(diagnostic.__name__.replace("_", " ").capitalize()):
            outcomes += diagnostic(context)
    findings = decide(outcomes)
    # What a sample of page views shows, and `estimate` prints, unless a test of the whole log says more. What a log
    # without rankers leaves open is reported as not tested.
    reported = {"no-ranker", *(finding.code for finding in findings if finding.severity != "info")}
    findings += [finding for finding in serious(harvest.findings) if finding.code not in reported]
    return Diagnosis(sort_by_severity(findings), context.support)


def sort_by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with errors first, then warnings."""
    return tuple(sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity)))


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`: how far to trust the curve of a harvest.

    Attributes:
        findings (tuple of Finding): the problems, and the tests that found none, each with its `code`, `severity`,
            `message`, `evidence` and `remedy`; errors first.
        support (tuple of RankSupport): the data behind each rank from the second on.
    """

    findings: tuple[Finding, ...]
    support: tuple[RankSupport, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether there is no error among the findings."""
        return not any_error(self.findings)

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return the diagnosis as `--json` prints it."""
        return {
            "sound": self.sound,
            "findings": [finding.to_dict(spell) for finding in self.findings],
            "version": __version__,
        }

    def to_text(self, spell: Spelling = as_python) -> str:
        """Return the diagnosis as text."""
        blocks = [self._support_table(), *(finding.block(spell) for finding in self.findings)]
        marks = [f"({legend(self.findings)})"] if self.findings else []
        # What was not tested is the last word, so that the verdict does not reassure too much.
        left_open = self.reservations if self.sound else ()
        open_questions = [line for text in left_open for line in wrap_printable(f"{text}.", "", "  ")]
        end = "\n".join([self._verdict(), *marks, *open_questions])
        return "\n\n".join([*(block for block in blocks if block), end])

    @property
    def reservations(self) -> tuple[str, ...]:
        """What the verdict leaves open, as sentences without a full stop: what was not tested, or has few queries."""
        notes = [finding for finding in self.findings if finding.severity == "info"]
        few = [finding.message for finding in notes if finding.code == "few-degrees-of-freedom"]
        return (*few, *(f.message.split(". ")[0] for f in notes if f.message.startswith("Not tested: ")))

    def __str__(self) -> str:
        return self.to_text()

    def _support_table(self) -> str:
        if not self.support:
            return ""
        lines = ["rank  degrees of freedom  variance from one bucket  compared with ranks"]
        for one in self.support:
            degrees = "–" if one.degrees_of_freedom is None else f"{one.degrees_of_freedom:,.0f}"
            share = "–" if one.largest_bucket_share is None else f"{one.largest_bucket_share:.1%}"
            compared = ", ".join(_with_shares(one.compared_ranks)) or "–"
            lines.append(f"{one.rank:>4} {degrees:>19} {share:>25}  {compared}")
        return "\n".join(lines)

    def _verdict(self) -> str:
        if not self.sound:
            return "An assumption behind the curve does not hold."
        if any(finding.severity == "warning" for finding in self.findings):
            return "The curve can be used, with these warnings in mind."
        return f"{self.all_clear}\ndocs/trust.md lists what no harvest can show."

    @property
    def all_clear(self) -> str:
        """The verdict without errors and warnings. It does not reassure if no test could show that documents moved."""
        if any(reason in text for text in self.reservations for reason in REPLAY_UNTESTED):
            return "Not known whether the curve is right: replay's main assumption was not tested."
        return f"No problems found{' in what could be tested' * bool(self.reservations)}."


# ---- The summary below an estimate


@one_blas_thread()
@step("Testing for one curve")
def summary_lines(fitted: Estimator[Any]) -> list[str]:
    """Return the rank with the least data, and whether one curve fits all pairs of ranks, as lines of text.

    If pairs of ranks contradict each other, a note of the curve says so already. A harvest of sums gives no line.
    """
    one_curve = fitted.one_curve_
    if one_curve is None:
        return []
    lines = _summarize_support(one_curve, fitted.degrees_of_freedom_)
    text = f"{verdict(one_curve, fitted.harvest_)}."
    if not one_curve.contradicted:
        lines.append(text)
    elif not any(note.startswith(text) for note in fitted.notes_):
        lines.append(f"{MARKS['warning']} {text}")
    return lines


def _summarize_support(one_curve: OneCurve, degrees: FloatArray) -> list[str]:
    known = np.where(np.arange(len(degrees)) > 0, degrees, np.nan)
    if not np.isfinite(known).any():
        return []
    least = int(np.nanargmin(known))
    number = f"{known[least]:,.0f}"
    line = f"Rank {least + 1} has the least data ({number} degree{'s' * (number != '1')} of freedom)"
    compared = _with_shares(compared_ranks(one_curve.residuals)[least])
    if compared:
        ranks = " and ".join([", ".join(compared[:-1]), compared[-1]] if len(compared) > 1 else compared)
        line += f"; its estimate comes mostly from comparisons with rank{'s' * (len(compared) > 1)} {ranks}"
    return [f"{line}."]


def _with_shares(compared: Mapping[int, float]) -> list[str]:
    return [f"{rank} ({share:.0%})" for rank, share in compared.items()]
