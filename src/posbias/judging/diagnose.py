"""Diagnose a curve: test the assumptions behind it on the harvest it was estimated from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from posbias._arrays import FloatArray
from posbias._text import as_python, format_p_value
from posbias._validate import DEFAULT_MAX_RANK
from posbias.engines import EngineChoice, open_log
from posbias.errors import HarvestError, Spelling
from posbias.findings import Finding, any_error
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.harvest import harvest as make_harvest
from posbias.judging.compare_segments import SegmentComparison
from posbias.judging.diagnostics import (
    PageClicks,
    RankSupport,
    Refitted,
    count_page_clicks,
    find_odd_pages,
    find_sticky,
    find_weak_support,
    links_of,
    measure_support,
    question_disagreement,
    question_independence,
    question_pages,
    question_proxy,
    question_split,
    refit,
    refuse_proxy,
)
from posbias.judging.one_curve import OneCurve, RankerPairs, likeness, question_pairs, sees_trust
from posbias.judging.significance import Question, answer
from posbias.logs.click_log import ClickLog
from posbias.logs.schema import ANY_RANKER
from posbias.progress import Progress, silent
from posbias.version import __version__

_ORDER = {"error": 0, "warning": 1, "info": 2}
# Under every curve that is ever made, less is said than where one asks.
_ALARM = 0.01
# So many rankers have ranker_pairs enough, and few enough to be quick about them.
_MOST_RANKERS = 3
_NAMELESS = "it takes rankers that are named"
_SUMS = Finding(
    "sums-only",
    "info",
    "The harvest holds sums over pairs of ranks, in which rankers are not told apart: whether pairs contradict each "
    "other cannot be tried",
    remedy="Harvest the log again with a smaller max_rank or a larger max_strata.",
)


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
    """Look for what speaks against the curve of a harvest: broken assumptions, odd traffic, thin support.

    Arguments:
        source: a harvest; or a log, of which the clicks of each page view are looked at too.
        split: the shares of traffic that were intended, by ranker, such as {"a": 50, "b": 50}.
        proxy: a column of the log, or the one segment column of the harvest, that tells classes of documents by how
            relevant they are thought to be, not by these clicks: their curves are compared.
        max_rank, engine, progress, force: of the harvest of a log, as `posbias.harvest` takes them.

    Example:
        >>> import posbias
        >>> world = posbias.World(queries=2000, quality=(0.5, 2.0))
        >>> found = posbias.diagnose(posbias.harvest(posbias.ClickLog(posbias.simulate(world))))
        >>> found.sound, [finding.code for finding in found.findings]
        (True, ['support', 'one-curve'])
    """
    if isinstance(source, Harvest):
        return diagnose_harvest(source, split=split, proxy=proxy)
    if not isinstance(source, ClickLog):
        raise HarvestError(
            f"diagnose takes a Harvest or a ClickLog, not a {type(source).__name__}. Make one with ClickLog(...)."
        )
    by = () if proxy is None else (proxy,)
    if proxy is not None:
        with open_log(source, engine, progress) as opened:
            refuse_proxy(opened.schema, proxy)
    harvest = make_harvest(source, max_rank=max_rank, by=by, engine=engine, progress=progress, force=force)
    with open_log(source, engine, progress) as opened:
        pages = count_page_clicks(opened, harvest.rankers, max_rank)
    return diagnose_harvest(harvest, split=split, proxy=proxy, pages=pages)


@dataclass(frozen=True)
class Diagnosis:
    """How far a curve of a harvest is to be trusted.

    Attributes:
        findings: what speaks against it, and what was looked at without anything being found, each with its `code`,
            `severity`, `message`, `evidence` and `remedy`; errors first.
        support: what each rank from the second on hangs on.
    """

    findings: tuple[Finding, ...]
    support: tuple[RankSupport, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether there is no error among the findings."""
        return not any_error(self.findings)

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "sound": self.sound,
            "findings": [finding.to_dict(spell) for finding in self.findings],
            "version": __version__,
        }

    def to_text(self, spell: Spelling = as_python) -> str:
        """Return it for people."""
        blocks = [self._support(), *(finding.block(spell) for finding in self.findings)]
        return "\n\n".join([*(block for block in blocks if block), self._verdict()])

    def __str__(self) -> str:
        return self.to_text()

    def _support(self) -> str:
        if not self.support:
            return ""
        lines = ["rank  degrees of freedom    largest bucket  compared with ranks"]
        for one in self.support:
            degrees = "–" if one.degrees_of_freedom is None else f"{one.degrees_of_freedom:,.0f}"
            heaviest = "–" if one.largest_bucket_share is None else f"{one.largest_bucket_share:.1%}"
            links = ", ".join(f"{rank} ({share:.0%})" for rank, share in one.compared_ranks.items()) or "–"
            lines.append(f"{one.rank:>4} {degrees:>19} {heaviest:>16}  {links}")
        return "\n".join(lines)

    def _verdict(self) -> str:
        if not self.sound:
            return "An assumption of the curve does not hold."
        if any(finding.severity == "warning" for finding in self.findings):
            return "Read the curve with these warnings."
        return "Nothing found that speaks against the curve.\nWhat no harvest can show is in docs/trust.md."


def diagnose_harvest(
    harvest: Harvest,
    *,
    split: Mapping[str, float] | None = None,
    proxy: str | None = None,
    pages: PageClicks | None = None,
    curves: list[Refitted] | None = None,
    ranker_pairs: RankerPairs | None = None,
    segments: SegmentComparison | None = None,
) -> Diagnosis:
    """Return the diagnosis of a harvest, with the clicks of its log's page views if they were counted.

    Where its segments were compared, whether they differ is one question more. Where its curves were estimated
    already, in the order of `refit`, or its ranker_pairs counted, they are not again.
    """
    questions: list[Question] = []
    # Asked first, for they may be refused.
    if split is not None:
        questions.append(question_split(harvest, split))
    if proxy is not None:
        questions.append(question_proxy(harvest, proxy))
    curves = refit(harvest) if curves is None else curves
    ranker_pairs = ranker_pairs_of(harvest) if ranker_pairs is None else ranker_pairs
    one = None
    if ranker_pairs is not None:
        one = OneCurve.of(ranker_pairs)
        questions = [*question_pairs(one, harvest.rankers), *question_independence(ranker_pairs), *questions]
    questions += question_disagreement(curves)
    if segments is not None:
        questions.append(segments.question)
    if pages is not None:
        questions.append(question_pages(pages))
    support = measure_support(curves[0] if curves else None, one.residuals if one else None, harvest)
    findings = [*find_weak_support(support, harvest, ranker_pairs), *answer(questions), *find_sticky(harvest)]
    if pages is not None:
        findings += find_odd_pages(pages, harvest, questions[-1].trial)
    if one is None:
        findings.append(_SUMS)
    return Diagnosis(sort_by_severity(findings), support)


def ranker_pairs_of(harvest: Harvest) -> RankerPairs | None:
    """Return the ranker_pairs of a harvest, if rankers are told apart in it."""
    return None if harvest.kind == "pairs" else RankerPairs.of(harvest)


def sort_by_severity(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return findings with errors first, then warnings."""
    return tuple(sorted(findings, key=lambda finding: _ORDER[finding.severity]))


def summary_lines(harvest: Harvest, degrees: FloatArray) -> list[str]:
    """Return what a curve hangs on and whether pairs of ranks contradict each other; nothing of sums over pairs.

    Arguments:
        harvest: of which the curve was made.
        degrees: of freedom of its standard errors by rank; NaN where there is none.
    """
    if harvest.kind == "pairs":
        return []
    one = OneCurve.of(RankerPairs.of(harvest, _MOST_RANKERS))
    named = harvest.rankers != (ANY_RANKER,)
    return [*_support(one, degrees), *_pairs(one, "rankers are too alike, or data too few" if named else _NAMELESS)]


def _support(one: OneCurve, degrees: FloatArray) -> list[str]:
    known = np.where(np.arange(len(degrees)) > 0, degrees, np.nan)
    if not np.isfinite(known).any():
        return []
    least = int(np.nanargmin(known))
    ranks = ", ".join(f"{rank} ({share:.0%})" for rank, share in links_of(one.residuals)[least].items())
    hangs = f", and hangs on rank{'s' * (', ' in ranks)} {ranks}" if ranks else ""
    return [f"Fewest queries decide rank {least + 1}: it has {known[least]:,.0f} degrees of freedom{hangs}."]


def _pairs(one: OneCurve, untold: str) -> list[str]:
    trial = one.trial
    if trial.told and trial.p < _ALARM:
        return [f"! Pairs of ranks contradict each other ({format_p_value(trial.p)}). It resembles {likeness(one)}."]
    if trial.told and sees_trust(one):
        return [f"One curve explains all pairs of ranks ({format_p_value(trial.p)})."]
    return [f"Whether one curve holds for all pairs of ranks cannot be told: {untold}."]
