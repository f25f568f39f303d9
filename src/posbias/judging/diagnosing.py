"""How far to trust a curve: the assumptions behind it, held against the harvest that it comes from."""

from __future__ import annotations

from collections.abc import Mapping

from posbias.engines import EngineChoice, open_log
from posbias.errors import HarvestError
from posbias.findings import Finding
from posbias.harvesting.counting import harvest as make_harvest
from posbias.harvesting.harvests import Harvest
from posbias.judging.contests import Contests
from posbias.judging.contradictory_pairs import question_pairs
from posbias.judging.diagnosis import Diagnosis, ordered
from posbias.judging.disagreement import Refitted, question_disagreement, refit
from posbias.judging.one_curve import OneCurve
from posbias.judging.pages import PageClicks, count_page_clicks, find_odd_pages, question_pages
from posbias.judging.proxies import question_proxy, refuse_proxy
from posbias.judging.questions import Question, answer
from posbias.judging.segments import SegmentComparison
from posbias.judging.support import find_weak_support, measure_support
from posbias.judging.traffic import find_sticky, question_independence, question_split
from posbias.logs.click_log import ClickLog
from posbias.progress import Progress, silent


def diagnose(
    source: Harvest | ClickLog,
    *,
    split: Mapping[str, float] | None = None,
    proxy: str | None = None,
    max_rank: int = 10,
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


def diagnose_harvest(
    harvest: Harvest,
    *,
    split: Mapping[str, float] | None = None,
    proxy: str | None = None,
    pages: PageClicks | None = None,
    curves: list[Refitted] | None = None,
    contests: Contests | None = None,
    segments: SegmentComparison | None = None,
) -> Diagnosis:
    """Return the diagnosis of a harvest, with the clicks of its log's page views if they were counted.

    Where its segments were compared, whether they differ is one question more. Where its curves were estimated
    already, in the order of `refit`, or its contests counted, they are not again.
    """
    questions: list[Question] = []
    # Asked first, for they may be refused.
    if split is not None:
        questions.append(question_split(harvest, split))
    if proxy is not None:
        questions.append(question_proxy(harvest, proxy))
    curves = refit(harvest) if curves is None else curves
    contests = contests_of(harvest) if contests is None else contests
    one = None
    if contests is not None:
        one = OneCurve.of(contests)
        questions = [*question_pairs(one, harvest.rankers), *question_independence(contests), *questions]
    questions += question_disagreement(curves)
    if segments is not None:
        questions.append(segments.question)
    if pages is not None:
        questions.append(question_pages(pages))
    support = measure_support(curves[0] if curves else None, one.surprises if one else None, harvest)
    findings = [*find_weak_support(support, harvest, contests), *answer(questions), *find_sticky(harvest)]
    if pages is not None:
        findings += find_odd_pages(pages, harvest, questions[-1].trial)
    if one is None:
        findings.append(_SUMS)
    return Diagnosis(ordered(findings), support)


def contests_of(harvest: Harvest) -> Contests | None:
    """Return the contests of a harvest, if rankers are told apart in it."""
    return None if harvest.kind == "pairs" else Contests.of(harvest)


_SUMS = Finding(
    "sums-only",
    "info",
    "The harvest holds sums over pairs of ranks, in which rankers are not told apart: whether pairs contradict each "
    "other cannot be tried",
    remedy="Harvest the log again with a smaller max_rank or a larger max_strata.",
)
