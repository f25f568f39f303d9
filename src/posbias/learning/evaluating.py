"""Whether a ranking would be better than those that were logged, from clicks on what these showed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posbias.arguments import share
from posbias.engines import EngineChoice, chosen_engine, open_log
from posbias.engines.spark import Spark
from posbias.errors import EstimateError, LogError, PosbiasError
from posbias.findings import Finding
from posbias.harvesting.counting import harvest as harvest_log
from posbias.harvesting.counts import Settings
from posbias.harvesting.refusals import refuse_settings
from posbias.learning.judged_rankings import (
    THE_LOG,
    find_rankings,
    find_tables,
    judge_cover,
    look_at_pages,
    look_for_unseen,
    named_rankings,
    note_unseen,
    note_vacant,
    opened_names,
)
from posbias.learning.metrics import Metric
from posbias.logs.click_log import ClickLog
from posbias.progress import Progress, silent
from posbias.sql.credits import credit_sums

if TYPE_CHECKING:
    from posbias.engines.answers import Answer
    from posbias.estimators.harvested import Estimator
    from posbias.harvesting.harvests import Harvest
    from posbias.learning.credits import Credits
    from posbias.learning.evaluations import Evaluation


def evaluate(
    log: ClickLog,
    rankings: Any,
    *,
    metric: str = "dcg",
    score: str | None = None,
    max_rank: int = 10,
    estimator: str | None = None,
    level: float = 0.95,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    force: bool = False,
) -> Evaluation:
    """Judge rankings by the clicks of a log, as if they had been shown: Δ = 1/N Σ over clicks of λ(rank) / ρ.

    A document's rank is that among the documents of its query that were shown; those that a ranking does not have come
    last. ρ is how likely the document was seen in a page view of its query: over all rankers, by what they served.
    Intervals leave out one bucket of queries at a time, and estimate the propensities anew.

    Arguments:
        log: the click log.
        rankings: what is judged: a table of query, document and score or rank, as a path, pandas, Polars or Arrow
            table; or "ranker:b" for the ranker b of the log. Several as a list, or a mapping from names.
        metric: "dcg" or "precision", by default of the top `max_rank`, or of fewer as in "dcg@5"; or "rank", the
            average rank of what is relevant.
        score: the column by which rankings rank, the highest first; "none" to rank by the column that the log calls
            `rank`, the lowest first. By default whichever of `score` and that is there.
        max_rank: M; results shown beyond it are not counted.
        estimator: of the propensities, by its name; by default "cross-fit", or "all-pairs" of a harvest of sums.
        level: the coverage of the intervals.
        engine: "duckdb", or a value such as `posbias.DuckDB(memory_limit="2GB")`. Spark joins no rankings.
        progress: called with what is being done and the share done.
        force: go on where the log was found to be damaged, as with `posbias.harvest`.

    Example:
        >>> import posbias
        >>> world = posbias.World(queries=2000, quality=(1.0, 2.0), similarity=0.5)
        >>> found = evaluate(posbias.ClickLog(posbias.simulate(world)), ["ranker:a", "ranker:b"])
        >>> found.best, [one.verdict(found.rises) for one in found.rankings]
        ('b', ['worse', 'better'])

    Reference: Joachims, Swaminathan, Schnabel: Unbiased Learning-to-Rank with Biased Feedback. WSDM 2017.
    """
    refuse_settings(max_rank)
    judged_by = Metric.named(metric, max_rank)
    if score is not None and not isinstance(score, str):
        raise PosbiasError(f"score must be a text, the name of a column, or 'none', not {score!r}.")
    share("level", level)
    named = named_rankings(rankings)
    if isinstance(chosen_engine(log, engine), Spark):
        raise PosbiasError(
            "Rankings are joined with a log by DuckDB alone. Leave engine='spark' out and give the log as files, or as "
            "a sample of them."
        )
    if any(type(source).__name__ == "RecordBatchReader" for source in log.sources):
        raise LogError("The log is read twice, and a stream can be read only once. Give a file or a table.")
    from posbias.judging.sides import fit

    tables = opened_names(named)
    with open_log(log, engine, progress, beside={table: named[name] for name, table in tables.items()}) as opened:
        # First: who has to mend a ranking need not wait for the harvest.
        told = find_tables(opened, tables, score)
        made = harvest_log(log, max_rank=max_rank, engine=engine, progress=progress, force=force)
        fitted = fit(made, estimator, level)
        propensity = _propensity(made, fitted)
        found = find_rankings(named, told, made.rankers)
        plan = Settings(max_rank, (), made.weighting, "share", 0).plan(opened, made.rankers)
        pages, vacant = look_at_pages(opened, plan, made.impressions)
        answer = opened.table(credit_sums(plan, found, propensity, judged_by.gain, pages=pages), "Judging")
        top = judged_by.cutoff or max_rank
        never = look_for_unseen(opened, plan, found, top)
    answer = _counted(made, answer)
    clicks = round(float(answer["clicks"].sum()))
    covered = {name: float(answer[f"scored_{j}"].sum()) / clicks for j, name in enumerate(named)}
    findings = [*made.findings, *note_vacant(pages, vacant)]
    for (name, share_), one, unseen in zip(covered.items(), found, never, strict=True):
        findings += [*judge_cover(name, share_, one), *note_unseen(name, unseen, top, max_rank)]
    credits_ = _credits(made, answer, propensity, len(found))
    return _evaluation(fitted, credits_, judged_by, clicks, level, covered, never, findings)


def _propensity(harvest: Harvest, fitted: Estimator[Any]) -> list[float]:
    """Return p_k / p_1, 0 where nothing was shown; a rank at which documents were shown must have a number."""
    import numpy as np

    shown = harvest.impressions > 0
    p = np.where(shown, fitted.propensity_, 0.0)
    unknown = np.flatnonzero(shown & ~(p > 0))
    if len(unknown):
        first = int(unknown[0]) + 1
        why = fitted.reasons_[first - 1] or "not determined by this data"
        ranks = f"rank {first}" if len(unknown) == 1 else f"{len(unknown)} ranks, the first of them rank {first}"
        remedy = f"Read the log to a lower rank (max_rank={first - 1})" if first > 2 else "It takes more data"
        raise EstimateError(
            f"What was clicked cannot be weighed where it was shown at {ranks}, which has no propensity: {why}. "
            f"{remedy}, or use another estimator."
        )
    return [float(value) for value in p]


def _counted(harvest: Harvest, answer: Answer) -> Answer:
    """Return what was answered of buckets that the harvest has: of others no row could be counted."""
    import numpy as np

    from posbias.engines.answers import select

    return select(answer, np.isin(answer["bucket"], harvest.buckets))


def _credits(harvest: Harvest, answer: Answer, propensity: Sequence[float], rankings: int) -> Credits:
    """Return the engine's answer as arrays by bucket and rank; first what is relevant itself, then the log's own."""
    import numpy as np

    from posbias.arrays import places
    from posbias.learning.credits import Credits

    names = ["worth", "worth_log", *(f"worth_{j}" for j in range(rankings))]
    worth = np.zeros((len(names), len(harvest.buckets), harvest.max_rank + 1))
    views = np.zeros(len(harvest.buckets))
    bucket, rank = places(answer["bucket"], harvest.buckets), answer["rank"]
    for number, name in enumerate(names):
        worth[number][bucket, rank] = answer[name]
    views[bucket[rank == 0]] = answer["views"][rank == 0]
    return Credits(worth[..., 1:], views, np.array(propensity))


def _evaluation(
    fitted: Estimator[Any],
    credits_: Credits,
    metric: Metric,
    clicks: int,
    level: float,
    covered: dict[str, float],
    never: Sequence[float | None],
    findings: Sequence[Finding],
) -> Evaluation:
    import numpy as np

    from posbias.learning.credits import Refits
    from posbias.learning.evaluations import Evaluation, Judged

    curve = np.array(credits_.propensity)
    refits = Refits.of(credits_, curve, fitted.deletions_, level, fitted.most_degrees_)

    def judged(number: int, name: str) -> Judged:
        return Judged(name, refits.of_list(number), refits.ratio(number, 0))

    def against(number: int, name: str, unseen: float | None) -> Judged:
        own = judged(number, name)
        return Judged(
            name,
            own.value,
            own.normalised,
            refits.difference(number, 1),
            refits.ratio(number, 1),
            refits.ratio(number, 2) if number > 2 else None,
            unseen,
            covered[name],
        )

    return Evaluation(
        metric=metric.title,
        rises=metric.rises,
        level=level,
        estimator=fitted.name,
        page_views=round(float(credits_.views.sum())),
        clicks=clicks,
        log=judged(1, THE_LOG),
        rankings=tuple(
            against(number, name, unseen) for number, (name, unseen) in enumerate(zip(covered, never, strict=True), 2)
        ),
        notes=fitted.notes_,
        findings=tuple(findings),
    )
