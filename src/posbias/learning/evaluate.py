"""Evaluate rankings on logged clicks: would a new ranking be better than the logged ones?

Each click is weighted by how likely its document was examined. With the gain λ of a rank, the value of a ranking is

    Δ = 1/N Σ over clicks of λ(rank(d)) / ρ(q,d),        ρ(q,d) = Σ_f share_f · p_{rank_f(d)} / p_1,

where N are the page views and share_f is the share of the query's page views that ranker f served: ρ is the exposure of
the document per page view. The value of a click is credited to the ranks at which its document was shown, in proportion
to their part in ρ (`ClickCredits`). If p_k becomes x times as large, the credit at rank k becomes 1/x of it: exactly so
if a document has one rank, and to first order otherwise. So the engine returns one small table, and Δ is computed from
it for every refit of the curve (`JackknifeValues`): the intervals include the uncertainty of the propensities.

Reference: Joachims, Swaminathan and Schnabel: Unbiased Learning-to-Rank with Biased Feedback. WSDM 2017.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from posbias._arrays import FloatArray, IntArray, lookup, one_blas_thread, sum_by_index
from posbias._charts import Chart, Color, Rule, Series, known, named_axis, number_axis
from posbias._defaults import DEFAULT_LEVEL, DEFAULT_MAX_RANK
from posbias._matplotlib import draw, save
from posbias._stats import f_tail, satterthwaite, t_quantile
from posbias._text import Column, format_p_value, listed, printable, table, wrap
from posbias._validate import check_type, share
from posbias.engines import EngineChoice, OpenLog, choose_engine, open_log
from posbias.engines.base import filter_rows
from posbias.engines.files import COMPRESSED_ENDINGS
from posbias.engines.spark import Spark
from posbias.errors import EstimateError, LogError, PosbiasError
from posbias.estimators.base import (
    FEW_DEGREES,
    MIN_BUCKETS,
    ONE_BUCKET_REASON,
    ONE_UNIT_REASON,
    Jackknife,
    deletion_weights,
    explain_few_buckets,
    explain_few_degrees,
)
from posbias.estimators.significance import Contrasts, ratio_from_log
from posbias.findings import Finding, serious, warn, wrap_printable
from posbias.harvesting.count import HarvestSettings, check_settings
from posbias.harvesting.harvest import harvest as harvest_log
from posbias.harvesting.row_checks import refuse_rounded_ids, sampling_interval
from posbias.judging.compare import fit_harvest, format_change
from posbias.logs.click_log import PARTS, ClickLog
from posbias.logs.schema import EXACT, NESTED, check_id_types, guess_column
from posbias.progress import Progress, silent, step
from posbias.sql.dialects import BUCKETS
from posbias.sql.evaluation import (
    FEW_IMPRESSIONS,
    EvaluatedRanking,
    PageKnowledge,
    credit_sums,
    never_shown,
    page_shapes,
    ranking_rows,
    repeated_pairs,
    reranked_documents,
    reranked_pairs,
    shown_ranks,
    unit_credit_sums,
)
from posbias.sql.plan import QueryPlan
from posbias.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from posbias.engines.base import Answer
    from posbias.estimators.base import Estimator
    from posbias.harvesting.harvest import Harvest

MetricName = Literal["dcg", "precision", "rank"]
_METRIC_TITLES: dict[MetricName, str] = {"dcg": "DCG", "precision": "precision", "rank": "average rank"}
# Where a refit has less than this share of the exposure at a rank, its inverse is replaced by the tangent.
_TANGENT_BELOW = 0.5
FORMAT = 1
# The prefix of a ranker of the log, given in place of a file; the value of `score` that ranks by a column of ranks.
RANKER_PREFIX, NO_SCORE = "ranker:", "none"
# The name of the logged rankers together, by their shares of the traffic.
THE_LOG = "the log"
# A ranking that covers less than the first share of clicks is an error; less than the second, a finding.
_LEAST_COVERAGE, _FULL_COVERAGE = 0.5, 0.95
# A smaller share of page views with an empty rank, as lost rows leave, is not reported.
_LEAST_EMPTY = 0.01
_MAX_RANKINGS = 100
# Memorised clicks are looked for in queries with about this many rows, by the first ranks, at this level.
_MEMORISED_ROWS, _MEMORISED_RANKS, _MEMORISED_LEVEL = 1_000_000, 10, 0.01
# Page views of documents that have so many are divided into halves, so many times. A group counts as if at least this
# share of its documents had no click, and needs so many documents with two clicks or fewer. (Σ p)² / (n Σ p²) is 1 if
# all n page views have one rank.
_LEAST_DIVIDED, _DIVISIONS, _LEAST_CLICKLESS, _LEAST_RARE, _ONE_RANK = 4, 5, 0.05, 20, 0.9999
# A smaller share of the gain from documents with few impressions is not worth a sentence.
_LEAST_FEW_SHARE = 0.05
# Queries are divided at these quantiles of their clicks, and neighbours by how much better the first was placed.
# Smaller sums of weights are rounding errors.
_QUARTERS, _FIFTHS, _ROUNDING = (0.25, 0.5, 0.75), (0.2, 0.4, 0.6, 0.8), 1e-9
_NOT_NUMERIC = ("BOOLEAN", "DATE", "BLOB", "INTERVAL", "UUID", "BIT")
# Colour, marker (to tell them apart in grey) and legend of each verdict.
_VERDICT_STYLES: dict[str | None, tuple[Color, str, str]] = {
    "better": (2, "^", "better"),
    "worse": ("alarm", "v", "worse"),
    "not trusted": ("grey", "X", "not trusted: made from these clicks"),
    None: (0, "o", "no significant difference"),
}


def evaluate(
    log: ClickLog,
    rankings: Any,
    *,
    metric: str = "dcg",
    score: str | None = None,
    max_rank: int = DEFAULT_MAX_RANK,
    estimator: str | None = None,
    level: float = DEFAULT_LEVEL,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    force: bool = False,
) -> Evaluation:
    """Evaluate rankings on the clicks of a log, as if they had been shown: Δ = 1/N Σ over clicks of λ(rank) / ρ.

    The rank of a document is its rank among the documents that were shown for its query; documents that a ranking lacks
    come last. ρ is the probability that the document was examined in a page view of its query, over all rankers by the
    page views that they served. Intervals leave out one bucket of queries at a time and estimate propensities again.

    Clicks that a ranking learned from must not evaluate it: they praise it for what was chance. Learn from
    `ClickLog(..., part="train")` and evaluate on `ClickLog(..., part="test")`.

    Arguments:
        log (ClickLog): the click log.
        rankings (table, path, str, list or dict): the rankings to evaluate. A ranking is a table of query, document and
            score or rank, as a path, pandas, Polars or Arrow table; or "ranker:b" for the ranker b of the log. Give
            several as a list, or as a mapping from names.
        metric (str, default "dcg"): "dcg" or "precision", of the top `max_rank`, or with a cut-off as in "dcg@5"; or
            "rank", the average rank of relevant documents.
        score (str, default None): the column of scores, the highest first; "none" ranks by the column that the log
            calls `rank`, the lowest first. By default, whichever of `score` and that column exists.
        max_rank (int, default 10): M; results shown beyond it are not counted.
        estimator (str, default None): the name of the estimator of the propensities: by default "cross-fit", or
            "all-pairs" for a harvest of sums.
        level (float, default 0.95): the coverage of the intervals.
        engine (str or DuckDB, default "duckdb"): "duckdb", or a value such as `posbias.DuckDB(memory_limit="2GB")`.
            Spark cannot join rankings.
        progress (callable, default none): called with the present step and the share that is done.
        force (bool, default False): continue where the log is damaged, as in `posbias.harvest`.

    Returns:
        An `Evaluation`, which prints as a table.

    Example:
        >>> import posbias
        >>> world = posbias.World(queries=2000, quality=(1.0, 2.0), similarity=0.5)
        >>> result = evaluate(posbias.ClickLog(posbias.simulate(world)), ["ranker:a", "ranker:b"])
        >>> result.best, [ranking.verdict(result.more_is_better) for ranking in result.rankings]
        ('b', ['worse', 'better'])

    Reference: Joachims, Swaminathan and Schnabel: Unbiased Learning-to-Rank with Biased Feedback. WSDM 2017.
    """
    check_settings(max_rank)
    chosen_metric = Metric.parse(metric, max_rank)
    if score is not None and not isinstance(score, str):
        raise PosbiasError(f"score must be a text, the name of a column, or 'none', not {score!r}.")
    share("level", level)
    sources = named_rankings(rankings)
    if isinstance(choose_engine(log, engine), Spark):
        raise PosbiasError(
            "Only DuckDB can join rankings with a log. Leave out engine='spark' and give the log as files, or a sample "
            "of them."
        )
    if any(type(source).__name__ == "RecordBatchReader" for source in log.sources):
        raise LogError("evaluate reads the log twice, but a stream can be read only once. Give a file or a table.")
    tables = _table_names(sources)
    with open_log(
        log, engine, progress, extra_tables={table: sources[name] for name, table in tables.items()}
    ) as opened:
        # Before the harvest, so that errors in a ranking come early.
        ranking_tables = _read_tables(opened, tables, score)
        for name, ranking in ranking_tables.items():
            _refuse_nan_in_frame(name, sources[name], ranking.score)
        harvest = harvest_log(log, max_rank=max_rank, engine=engine, progress=progress, force=force)
        fitted = fit_harvest(harvest, estimator, level)
        fewer = _ranks_before_one_without_clicks(harvest, fitted)
        streams = any(type(source).__name__ == "RecordBatchReader" for source in sources.values())
        needed = (chosen_metric.cutoff or 0) if "@" in metric else 0
        if max(needed, 2) <= fewer < max_rank and not streams:
            again = evaluate(
                log,
                sources,
                metric=metric,
                score=score,
                max_rank=fewer,
                estimator=estimator,
                level=level,
                engine=engine,
                progress=progress,
                force=force,
            )
            note = f"Rank {fewer + 1} has no click, so it has no propensity: only the top {fewer} ranks count."
            return replace(
                again, notes=(note, *again.notes), findings=tuple(map(_without_deeper_ranks, again.findings))
            )
        propensity = _propensity_where_shown(harvest, fitted, chosen_metric if needed else None)
        evaluated = _resolve_rankings(sources, ranking_tables, harvest.rankers)
        plan = HarvestSettings(max_rank, (), harvest.weighting, "share", 0).plan(opened, harvest.rankers)
        pages, empty_share = _page_shapes(opened, plan, harvest.impressions)
        opened.keep("shown_ranks", shown_ranks(plan, evaluated, propensity), "Counting documents by rank")
        documents = reranked_documents(plan, evaluated, chosen_metric.gain, pages=pages)
        opened.keep("reranked_documents", documents, "Joining the rankings")
        answer = opened.table(credit_sums(plan, len(evaluated), chosen_metric.gain, pages=pages), "Evaluating")
        unit_credits = None
        if harvest.units is not None and fitted.jackknife_ is not None:
            sums = unit_credit_sums(plan, len(evaluated), propensity, chosen_metric.gain, pages=pages)
            unit_credits = _unit_credits(harvest, fitted, opened.table(sums, "Evaluating by unit"), len(evaluated))
        top = chosen_metric.cutoff or max_rank
        unseen = _unseen_shares(opened, plan, evaluated, top, pages)
        memorised = _memorised(opened, plan, evaluated, float(harvest.impressions.sum()))
    # A bucket that the harvest lacks has no usable row.
    answer = filter_rows(answer, np.isin(answer["bucket"], harvest.buckets))
    clicks = round(float(answer["clicks"].sum()))
    covered = {name: float(answer[f"scored_{j}"].sum()) / clicks for j, name in enumerate(sources)}
    findings = find_empty_ranks(pages, empty_share)
    for (name, coverage), ranking, shares in zip(covered.items(), evaluated, unseen, strict=True):
        findings += [*check_coverage(name, coverage, ranking), *find_unseen(name, shares, top, max_rank)]
    for j, (name, fit) in enumerate(zip(sources, memorised, strict=True)):
        gain = float((answer[f"worth_{j}"] - answer["worth_log"]).sum())
        findings += find_memorised(name, fit, float(answer[f"few_{j}"].sum()) / gain if gain else 0.0)
    # The findings about the log were warnings when it was harvested.
    warn(str(finding) for finding in serious(findings))
    credits_ = _click_credits(harvest, answer, propensity, len(evaluated))
    never_shown = [None if shares is None else shares.never for shares in unseen]
    evaluation = _make_evaluation(
        fitted,
        credits_,
        unit_credits,
        chosen_metric,
        clicks,
        level,
        covered,
        never_shown,
        [*harvest.findings, *findings],
    )
    made = {finding.evidence["ranking"] for finding in findings if finding.code == "memorised-clicks"}
    results = tuple(replace(result, memorised=result.name in made) for result in evaluation.rankings)
    return replace(evaluation, rankings=results, part=log.part, split=(log.split or log.query) if log.part else None)


@dataclass(frozen=True)
class Evaluation:
    """Rankings evaluated on logged clicks; it prints as a table.

    Made by `posbias.evaluate`.

    Attributes:
        metric (str): the metric, such as "DCG@10".
        more_is_better (bool): whether a higher value of the metric is better.
        level (float): the coverage of the intervals.
        estimator (str): the estimator of the propensities.
        page_views, clicks (int): page views and clicks of the log.
        log (RankingResult): the logged rankers together, by their shares of the traffic.
        rankings (tuple of RankingResult): the rankings, in the order given.
        notes (tuple of str): cautions about the propensities.
        findings (tuple of Finding): findings about the log and the rankings.
        part (str or None): the part of the log, "train" or "test"; None for all of it.
        split (str or None): the column by which the log was divided into parts.
    """

    metric: str
    more_is_better: bool
    level: float
    estimator: str
    page_views: int
    clicks: int
    log: RankingResult
    rankings: tuple[RankingResult, ...]
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    part: str | None = None
    split: str | None = None

    @property
    def best(self) -> str:
        """The ranking with the best estimate, significant or not, of those that can be trusted; it may be the log."""
        pick = max if self.more_is_better else min
        trusted = (self.log, *(result for result in self.rankings if not result.memorised))
        return pick(trusted, key=lambda result: result.value.value).name

    def __getitem__(self, name: str) -> RankingResult:
        """Return the result of a ranking by its name."""
        return {result.name: result for result in (*self.rankings, self.log)}[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as `--json` prints it."""
        return {
            "format": FORMAT,
            "metric": self.metric,
            "more_is_better": self.more_is_better,
            "level": self.level,
            "estimator": self.estimator,
            "page_views": self.page_views,
            "clicks": self.clicks,
            "part": self.part,
            "split": self.split,
            "best": self.best,
            "log": {"value": asdict(self.log.value), "normalised": asdict(self.log.normalised)},
            "rankings": [asdict(result) | {"verdict": result.verdict(self.more_is_better)} for result in self.rankings],
            "notes": list(self.notes),
            "findings": [finding.to_dict() for finding in self.findings],
            "version": __version__,
        }

    @property
    def verdicts(self) -> list[str]:
        """A sentence for each ranking: whether it is better than the log, and than the first ranking."""
        against_log = [self._verdict_sentence(result, result.ratio, THE_LOG) for result in self.rankings]
        first = self.rankings[0]
        trusted = [result for result in self.rankings[1:] if not (result.memorised or first.memorised)]
        return against_log + [self._verdict_sentence(result, result.ratio_to_first, first.name) for result in trusted]

    def _verdict_sentence(self, result: RankingResult, ratio: Estimate | None, other: str) -> str:
        if ratio is None or ratio.low is None or ratio.high is None:
            reason = "" if ratio is None or not ratio.reason else f" ({ratio.reason})"
            return f"Not tested: whether {result.name} is better than {other}{reason}."
        verdict = result.verdict(self.more_is_better, ratio)
        change, low, high = (format_change(value) for value in (ratio.value, ratio.low, ratio.high))
        evidence = f"{self.metric} {change}, {100 * self.level:g}% interval {low} to {high}"
        if result.memorised:
            return f"Do not trust {result.name}: it seems to be made from the clicks that evaluate it ({evidence})."
        if verdict is not None:
            return f"{result.name} is {verdict} than {other} ({evidence})."
        if ratio.low == ratio.high:
            return f"{result.name} and {other} have the same {self.metric}."
        return f"{result.name} and {other} do not differ significantly ({evidence})."

    def to_text(self) -> str:
        """Return the verdicts and a table."""
        part = f" of the part {self.part!r}" if self.part else ""
        head = (
            f"{self.metric} from {self.clicks:,} clicks in {self.page_views:,} page views{part}. Propensities by "
            f"{self.estimator}; the intervals include their uncertainty."
        )
        if any(result.never_shown is not None for result in self.rankings):
            head += " All this holds only for rankings that did not learn from these clicks"
            other = next(part for part in PARTS if part != self.part) if self.part else ""
            head += f", but from the part {other!r} of the same split (by {self.split})." if self.part else "."
        lines = [line for text in (*self.verdicts, head) for line in wrap(printable(text))]
        notes = [line for note in self.notes for line in wrap(f"! {printable(note)}")]
        return "\n".join([*lines, "", self._table(), *notes])

    def _table(self) -> str:
        results = [self.log, *self.rankings]
        interval = f"{100 * self.level:g}% interval"
        # Two tables, so that each interval stays beside its number.
        compared = [
            _name_column(self.rankings),
            Column("ratio", [_format_value(result.ratio, 3) for result in self.rankings]),
            Column(interval, [_format_interval(result.ratio, 3) for result in self.rankings], left=True),
            Column("difference", [_format_value(result.difference, 4, sign=True) for result in self.rankings]),
            Column(
                "interval", [_format_interval(result.difference, 4, sign=True) for result in self.rankings], left=True
            ),
        ]
        values = [
            _name_column(results),
            Column("value", [_format_value(result.value, 4) for result in results]),
            Column(interval, [_format_interval(result.value, 4) for result in results], left=True),
            Column("normalised", [_format_value(result.normalised, 4) for result in results]),
            Column("interval", [_format_interval(result.normalised, 4) for result in results], left=True),
            Column(
                "never shown", ["" if result.never_shown is None else f"{result.never_shown:.1%}" for result in results]
            ),
        ]
        cautions = [
            line
            for result in results
            if (reason := _first_reason(result))
            for line in wrap(f"! {printable(result.name)}: {reason}")
        ]
        return "\n".join([table(compared), "", table(values), *cautions])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the ratio of each ranking to the log with its interval, and return the Axes."""
        return draw_evaluation(self, ax)

    def save_plot(self, path: str) -> None:
        """Write the plot as PNG, SVG or PDF."""
        save(self.plot(), path)

    def __str__(self) -> str:
        """Return the text with the findings of severity "warning" and above, which the command prints apart."""
        found = [line for finding in serious(self.findings) for line in wrap_printable(str(finding), "! ", "  ")]
        return "\n".join([self.to_text(), *found])

    __repr__ = __str__


@dataclass(frozen=True)
class RankingResult:
    """The result of one ranking, compared with the logged rankers.

    Attributes:
        name (str): the name of the ranking.
        value (Estimate): the metric per page view; a document counts by how often it would be clicked at rank 1.
        normalised (Estimate): the value divided by the number of relevant documents per page view.
        difference (Estimate or None): the value minus that of the log.
        ratio (Estimate or None): the value divided by that of the log.
        ratio_to_first (Estimate or None): the value divided by that of the first ranking.
        never_shown (float or None): the share of its top ranks that was never shown; None for a ranker of the log.
        covered (float or None): the share of clicks on documents that the ranking has.
        memorised (bool): whether the ranking seems to be made from the clicks that evaluate it.
    """

    name: str
    value: Estimate
    normalised: Estimate
    difference: Estimate | None = None
    ratio: Estimate | None = None
    ratio_to_first: Estimate | None = None
    never_shown: float | None = None
    covered: float | None = None
    memorised: bool = False

    def verdict(self, more_is_better: bool, ratio: Estimate | None = None) -> str | None:
        """Return "better" or "worse" than the log, or by another ratio; None if the interval contains 1.

        It is "not trusted" for a ranking that seems to be made from the clicks that evaluate it.

        Arguments:
            more_is_better (bool): whether a higher value of the metric is better.
            ratio (Estimate, default None): the ratio to test; by default that to the log.
        """
        if self.memorised:
            return "not trusted"
        ratio = self.ratio if ratio is None else ratio
        if ratio is None or ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high:
            return None
        return "better" if (ratio.value > 1) == more_is_better else "worse"


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval.

    Attributes:
        value (float): the estimate.
        low, high (float or None): the ends of the interval; None where there is none.
        degrees_of_freedom (float or None): of the interval.
        reason (str or None): why there is no interval, or why it is uncertain.
    """

    value: float
    low: float | None = None
    high: float | None = None
    degrees_of_freedom: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Metric:
    """λ, the gain of a relevant document at a rank: 0 beyond `cutoff`, if there is one.

    >>> Metric.parse("precision@5", 10).title, Metric.parse("dcg", 10).title, Metric.parse("rank", 10).title
    ('precision@5', 'DCG@10', 'average rank')
    """

    name: MetricName
    cutoff: int | None

    @classmethod
    def parse(cls, text: str, max_rank: int) -> Metric:
        """Return the metric of a name, cut off at M unless the name has a cut-off."""
        match = re.fullmatch(r"(dcg|precision)(?:@([1-9][0-9]{0,8}))?|rank", text if isinstance(text, str) else "")
        if not match:
            raise PosbiasError(
                f"The metric {text!r} is not known. Use 'dcg', 'precision' or 'rank'; the first two may have a "
                "cut-off, as in 'dcg@5'."
            )
        if text == "rank":
            return cls("rank", None)
        cutoff = int(match[2]) if match[2] else max_rank
        if cutoff > max_rank:
            raise PosbiasError(
                f"The metric {text!r} needs {cutoff:,} ranks, but the log is read only to rank {max_rank:,}. Use a "
                "smaller cut-off or a larger max_rank."
            )
        return cls("dcg" if match[1] == "dcg" else "precision", cutoff)

    @property
    def title(self) -> str:
        """The metric with its cut-off, as printed."""
        return _METRIC_TITLES[self.name] + (f"@{self.cutoff}" if self.cutoff else "")

    @property
    def more_is_better(self) -> bool:
        """Whether a higher value is better; a higher rank is not."""
        return self.name != "rank"

    def gain(self, rank: str) -> str:
        """Return λ of a rank as an SQL expression."""
        if self.name == "rank":
            return f"1e0 * {rank}"
        gain = f"LN(2e0) / LN(1e0 + {rank})" if self.name == "dcg" else f"1e0 / {self.cutoff}"
        return f"CASE WHEN {rank} <= {self.cutoff} THEN {gain} ELSE 0e0 END"


# ---- Rankings as the user gives them


def named_rankings(rankings: Any) -> dict[str, Any]:
    """Return rankings by name: the keys of a mapping, the names of files and rankers, or numbers for tables.

    >>> named_rankings(["models/v1.2.csv.gz", "ranker:b"])
    {'v1.2': 'models/v1.2.csv.gz', 'b': 'ranker:b'}
    """
    if isinstance(rankings, Mapping):
        named = {str(name): source for name, source in rankings.items()}
    else:
        several = list(rankings) if isinstance(rankings, list | tuple) else [rankings]
        named = dict(zip(_names(several), several, strict=True))
    # Types of Python itself, unlike those of other packages, are no tables.
    wrong = [each for each in named.values() if type(each).__module__ == "builtins" and not isinstance(each, str)]
    if wrong:
        raise PosbiasError(
            "A ranking must be a file or a table with columns of query, document and score or rank, or 'ranker:NAME' "
            f"for a ranker of the log, not {reprlib.repr(wrong[0])}. Give several in a list, or in a dict by name."
        )
    if any(isinstance(source, str) and not source.strip() for source in named.values()):
        raise PosbiasError("The name of a ranking is empty. Give a file, a table, or 'ranker:NAME'.")
    if not named:
        raise PosbiasError("There is no ranking to evaluate. Give at least one: a file, a table, or 'ranker:NAME'.")
    taken = next((name for name in named if name == THE_LOG or not name.strip()), None)
    if taken is not None:
        raise PosbiasError(
            f"A ranking cannot be called {taken!r}: a name must not be empty, and {THE_LOG!r} is the name of the "
            "logged rankers. Give it another name, as in {'new': ...}."
        )
    if len(named) > _MAX_RANKINGS:
        raise PosbiasError(f"Too many rankings: {len(named):,}. Give at most {_MAX_RANKINGS} at once.")
    return named


def _names(several: Sequence[Any]) -> list[str]:
    names = [_name(source) or f"ranking {number}" for number, source in enumerate(several, start=1)]
    if len({*names}) < len(names):
        # Files with one name are in different folders, or have different endings.
        names = [os.fspath(source) if _is_path(source) else name for source, name in zip(several, names, strict=True)]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise PosbiasError(f"The ranking {repeated[0]!r} was given twice. Give each ranking once.")
    return names


def _name(source: Any) -> str:
    if _is_logged_ranker(source):
        return str(source).removeprefix(RANKER_PREFIX)
    name = os.path.basename(os.fspath(source).rstrip("/")) if _is_path(source) else ""
    for ending in COMPRESSED_ENDINGS:
        name = name.removesuffix(ending)
    return os.path.splitext(name)[0]


def _is_logged_ranker(source: Any) -> bool:
    return isinstance(source, str) and source.startswith(RANKER_PREFIX)


def _is_path(source: Any) -> bool:
    return isinstance(source, str | os.PathLike)


def _table_names(sources: Mapping[str, Any]) -> dict[str, str]:
    """Return the name in SQL of the table of each ranking that is not a logged ranker."""
    return {
        name: f"ranking_{number}"
        for number, (name, source) in enumerate(sources.items())
        if not _is_logged_ranker(source)
    }


def _read_tables(opened: OpenLog, tables: Mapping[str, str], score: str | None) -> dict[str, EvaluatedRanking]:
    """Return the columns of each ranking that is a table, by its name; reject unusable tables."""
    rankings = {name: _read_columns(opened, name, table, score) for name, table in tables.items()}
    with opened.ignoring_file_statistics():
        for name, ranking in rankings.items():
            _check_rows(opened, name, ranking)
    return rankings


def _read_columns(opened: OpenLog, name: str, table: str, score: str | None) -> EvaluatedRanking:
    """Return the columns of a ranking: ids with the names that they have in the log, and a score or a rank."""
    columns, schema = opened.extra_tables[table], opened.schema
    types = dict(columns.types)
    for role in ("query", "doc"):
        _require_column(name, getattr(schema, role), role, types, "named as in the log")
    if score is not None and score != NO_SCORE:
        _require_column(name, score, "score", types, "the highest first")
        value, descending = score, True
    else:
        value, descending = _score_or_rank(name, types, schema.rank, score)
    for column in (schema.query, schema.doc, value):
        if NESTED.search(types[column]):
            raise PosbiasError(
                f"Column {column!r} of the ranking {name!r} is {types[column]}; single values were expected."
            )
    if types[value] in _NOT_NUMERIC or types[value].startswith("TIME"):
        raise PosbiasError(
            f"Column {value!r} of the ranking {name!r} is {types[value]}; numbers to rank by were expected. Name the "
            "column of scores (score)."
        )
    for column in (schema.query, schema.doc):
        check_id_types(column, schema.types[column], types[column], f"the ranking {name!r}")
    query, doc, by = (columns.names.get(column, column) for column in (schema.query, schema.doc, value))
    used_types = types[schema.query], types[schema.doc], types[value]
    return EvaluatedRanking(table, -1, query, doc, by, used_types, descending)


def _refuse_nan_in_frame(name: str, source: Any, column: str) -> None:
    """Reject NaN among the scores of a pandas frame: DuckDB reads it as NULL, and in a file NaN is an error."""
    if not type(source).__module__.startswith("pandas") or column not in source:
        return
    scores = source[column].to_numpy()
    nan = int(sum(isinstance(score, float) and score != score for score in scores.tolist()))
    if nan:
        raise _not_numeric(name, column, nan, len(scores))


def _not_numeric(name: str, column: str, count: int, rows: int) -> PosbiasError:
    return PosbiasError(
        f"{count:,} of {rows:,} rows of the ranking {name!r} have NaN or a value that is not a number in column "
        f"{column!r}, so they cannot be ranked. Give each a number, or NULL to put it last."
    )


def _require_column(name: str, column: str, role: str, types: Mapping[str, str], which: str) -> None:
    if column in types:
        return
    similar = guess_column(role, column, types)
    hint = f" Did you mean {similar!r}? Rename it." if similar else ""
    raise PosbiasError(
        f"The ranking {name!r} has no column {column!r} (the {role}, {which}).{hint} Columns found: {listed(types)}."
    )


def _score_or_rank(name: str, types: Mapping[str, str], rank: str, score: str | None) -> tuple[str, bool]:
    """Return the column to rank by where none was named, and whether its highest value comes first."""
    candidates = [rank] if score == NO_SCORE else list(dict.fromkeys(("score", rank)))
    columns = [column for column in candidates if column in types]
    if len(columns) == 2:
        raise PosbiasError(
            f"The ranking {name!r} has both a score ('score') and a rank ({rank!r}). Choose one: the score, the "
            "highest first, or the rank (score='none').",
            {"score": "score"},
        )
    if not columns:
        raise PosbiasError(
            f"The ranking {name!r} has neither a column 'score' nor a column {rank!r}. Columns found: {listed(types)}. "
            "Name the column of scores, the highest first (score), or of ranks (rank)."
        )
    return columns[0], columns[0] == "score" and rank != "score"


def _check_rows(opened: OpenLog, name: str, ranking: EvaluatedRanking) -> None:
    """Reject a ranking with unusable rows."""
    ids = dict(zip((ranking.query, ranking.doc), ranking.types, strict=False))
    refuse_rounded_ids(opened, ranking.table, ids, f"the ranking {name!r}")
    sql = ranking_rows(opened.dialect, ranking)
    [(rows, without_id, not_numeric, scores, low, high, inexact, fractions)] = opened.rows(sql, "Checking rankings")
    if not scores and not not_numeric:
        what = "has no rows" if not rows else f"has no value in column {ranking.score!r}"
        raise PosbiasError(f"The ranking {name!r} {what}. Expected a row for each query and document with its score.")
    if not_numeric:
        raise _not_numeric(name, ranking.score, not_numeric, rows)
    if without_id:
        raise PosbiasError(
            f"{without_id:,} of {rows:,} rows of the ranking {name!r} have no query or no document. Leave them out."
        )
    # Floats among which there are fractions are scores of a model. Whole numbers alone are times, ids or counts.
    if inexact and not fractions:
        kind = ranking.types[2] if ranking.types[2] in EXACT else "DOUBLE"
        raise PosbiasError(
            f"{inexact:,} of {rows:,} rows of the ranking {name!r} have a score in column {ranking.score!r}, of type "
            f"{ranking.types[2]}, beyond {EXACT[kind]:,}. Scores are compared as {kind}, which does not hold such "
            "whole numbers exactly, so their order would be lost. Write smaller scores, as BIGINT where they are made: "
            "subtract a constant, or give ranks."
        )
    if scores > 1 and low == high:
        raise PosbiasError(
            f"All {scores:,} scores of the ranking {name!r}, in column {ranking.score!r}, are the same: it ranks no "
            "document above another. Name the column to rank by (score or rank)."
        )
    [(several, example, times)] = opened.rows(repeated_pairs(opened.dialect, ranking), "Checking rankings")
    if several:
        raise PosbiasError(
            f"The ranking {name!r} has {several:,} documents of a query more than once; for example, one of query "
            f"{example!r} {times:,} times. A document has one rank in a ranking: keep one row of each."
        )


def _resolve_rankings(
    sources: Mapping[str, Any], tables: Mapping[str, EvaluatedRanking], rankers: Sequence[str]
) -> list[EvaluatedRanking]:
    """Return each ranking as one of the tables, or as a ranker of the log."""
    return [
        EvaluatedRanking(ranker=_ranker_number(source.removeprefix(RANKER_PREFIX), rankers))
        if _is_logged_ranker(source)
        else tables[name]
        for name, source in sources.items()
    ]


def _ranker_number(ranker: str, rankers: Sequence[str]) -> int:
    if ranker not in rankers:
        raise PosbiasError(f"The log has no ranker {ranker!r}. It has {listed(rankers)}.")
    return rankers.index(ranker)


# ---- Checks of the log and its coverage


def _ranks_before_one_without_clicks(harvest: Harvest, fitted: Estimator[Any]) -> int:
    """Return the number of top ranks before the first without a propensity, if that one has no click; else all."""
    unknown = np.flatnonzero((harvest.impressions > 0) & ~(fitted.propensity_ > 0))
    return int(unknown[0]) if len(unknown) and not harvest.clicks[unknown[0]] else len(fitted.propensity_)


def _without_deeper_ranks(finding: Finding) -> Finding:
    """Return a finding that does not advise to read the log to ranks that have no click."""
    if finding.code != "documents-shown-deeper":
        return finding
    return replace(finding, remedy="The ranks below have no click to count: use more data.", arguments={})


def _propensity_where_shown(harvest: Harvest, fitted: Estimator[Any], metric: Metric | None) -> list[float]:
    """Return p_k / p_1, 0 at ranks without impressions; reject a rank with impressions but without a number.

    Arguments:
        harvest: the counts.
        fitted: the curve.
        metric: the metric, if the user gave it a cut-off.
    """
    shown = harvest.impressions > 0
    p = np.where(shown, fitted.propensity_, 0.0)
    unknown = np.flatnonzero(shown & ~(p > 0))
    if len(unknown):
        first = int(unknown[0]) + 1
        reason = fitted.reasons_[first - 1] or "not identified by this data"
        ranks = (
            f"rank {first} has" if len(unknown) == 1 else f"{len(unknown)} ranks, the first of them rank {first}, have"
        )
        remedy, arguments = "Use more data", dict[str, str | int]()
        if first > 2:
            remedy, arguments = f"Evaluate the top {first - 1} ranks only", {"max_rank": first - 1}
            if metric is not None and (metric.cutoff or 0) >= first:
                arguments["metric"] = f"{metric.name}@{first - 1}"
        raise EstimateError(
            f"Clicks cannot be weighted: {ranks} no propensity ({reason}). {remedy}, or use another estimator.",
            arguments,
        )
    return [float(value) for value in p]


def _page_shapes(opened: OpenLog, plan: QueryPlan, impressions: Iterable[float]) -> tuple[PageKnowledge, float]:
    """Return what is known of the ranks that page views show, and the share of them with an empty rank above others.

    Where rows do not have their page view, the share is estimated from the impressions of all ranks.
    """
    if plan.schema.impression is not None and not plan.schema.aggregated:
        without_id, pages, with_gap, least, most = opened.rows(page_shapes(plan), "Checking page views")[0]
        if not without_id:
            return "known" if with_gap or least < most else "whole", with_gap / max(pages, 1)
    share = empty_rank_share(impressions)
    return "unknown" if share else "whole", share


def empty_rank_share(impressions: Iterable[float]) -> float:
    """Return the largest share of impressions that a rank lacks relative to a rank below it.

    >>> empty_rank_share([50, 100, 100, 80])
    0.5
    """
    most, share = 0.0, 0.0
    for count in reversed(list(map(float, impressions))):
        most = max(most, count)
        share = max(share, 1 - count / most if most else 0.0)
    return share


def _unseen_shares(
    opened: OpenLog, plan: QueryPlan, rankings: Sequence[EvaluatedRanking], top: int, pages: PageKnowledge
) -> list[UnseenShares | None]:
    """Return how much of each ranking's top ranks the log did not show; None for a ranker of the log."""
    shares: list[UnseenShares | None] = [None] * len(rankings)
    if any(ranking.table for ranking in rankings):
        rows = opened.rows(never_shown(plan, rankings, top, pages=pages), "Looking for documents never shown")
        for number, total, never, deeper, lowest in rows:
            if total:
                shares[number] = UnseenShares(float(never / total), float(deeper / total), int(lowest or 0))
    return shares


@dataclass(frozen=True)
class UnseenShares:
    """How much of a ranking's top ranks was never shown, or only below the top M, down to the rank `lowest`."""

    never: float
    deeper: float
    lowest: int


def find_empty_ranks(pages: PageKnowledge, share: float) -> list[Finding]:
    """Find page views that leave a rank empty above other results, as an advertisement there does."""
    if share < _LEAST_EMPTY:
        return []
    known = pages == "known"
    approximate = "" if known else " This share is approximate: some rows have no page view (impression)."
    return [
        Finding(
            "empty-ranks",
            "info" if known else "warning",
            f"{share:.0%} of page views leave a rank empty above other results, as with an advertisement; the log is "
            "evaluated by the order of the results on its pages, with the results that a page left out below them",
            evidence={"share": share},
            remedy="Rely on comparisons of rankings with each other, which this does not affect, more than on "
            f"comparisons with the log.{approximate}",
        )
    ]


def check_coverage(name: str, share: float, ranking: EvaluatedRanking) -> list[Finding]:
    """Reject a ranking with few of the clicked documents, and report one with some of them missing."""
    percent = f"{100 * share:.1f}%"
    if share < _LEAST_COVERAGE:
        remedy = (
            "Check that queries and documents have the same ids in both, and that it ranks the queries of the log."
            if ranking.table
            else "In replay, a ranker's ranks are known only where it showed documents: give its ranking as a file."
        )
        raise PosbiasError(
            f"The ranking {name!r} has only {percent} of the clicked documents of the log; all others would be ranked "
            f"last. {remedy}"
        )
    if share >= _FULL_COVERAGE:
        return []
    return [
        Finding(
            "ranking-lacks-documents",
            "warning",
            f"The ranking {name!r} has {percent} of the clicked documents; the others are ranked last",
            evidence={"ranking": name, "share": share},
            remedy="Score every document of the log: missing documents count against the ranking.",
        )
    ]


def find_unseen(name: str, shares: UnseenShares | None, top: int, max_rank: int) -> Iterable[Finding]:
    """Find documents at the top of a ranking about which the top M of the log have no evidence."""
    if shares is None:
        return
    if shares.deeper:
        yield Finding(
            "documents-shown-deeper",
            "warning",
            f"{max(shares.deeper, 0.001):.1%} of the top {top} of {name!r} was shown for that query only below rank "
            f"{max_rank}, where clicks are not counted",
            evidence={"ranking": name, "share": shares.deeper, "top": top, "max_rank": max_rank},
            remedy="Read the log to a lower rank.",
            arguments={"max_rank": shares.lowest},
        )
    if shares.never:
        yield Finding(
            "documents-never-shown",
            "warning",
            f"{max(shares.never, 0.001):.1%} of the top {top} of {name!r} was never shown for that query",
            evidence={"ranking": name, "share": shares.never, "top": top, "max_rank": max_rank},
            remedy="The log has no clicks on these documents: the ranking is evaluated by the order of the others. To "
            "learn more, show it to a part of the traffic.",
        )


# ---- Clicks that a ranking was made from


def _memorised(
    opened: OpenLog, plan: QueryPlan, rankings: Sequence[EvaluatedRanking], rows: float
) -> list[ClickFit | None]:
    """Return how closely each ranking follows single clicks; None where it is not tested."""
    tables = [j for j, ranking in enumerate(rankings) if ranking.table]
    if not tables:
        return [None] * len(rankings)
    every = sampling_interval(round(rows), _MEMORISED_ROWS)
    pairs = opened.table(reranked_pairs(plan, tables, every), "Looking for memorised clicks")
    with step("Testing for memorised clicks"):
        fits = {j: ClickFit.of(pairs, pairs[f"rank_{j}"]) for j in tables}
    return [fits.get(j) for j in range(len(rankings))]


@dataclass(frozen=True)
class ClickFit:
    """Whether a ranking follows the clicks more closely than relevance can explain.

    The clicks of different page views are independent given the relevance r of a document. If a ranking was made
    without these clicks, the clicks C of the documents at one of its ranks are a mixture over r of such independent
    clicks. Three inequalities hold for every mixture, because a mean of squares is at least the square of the mean.
    Sorting by the clicks reverses them (`_neighbour_test`, `_divided_test`, `_rare_click_test`).

    Attributes:
        similarity (float): how similar neighbours are, divided by how similar they may be at most.
        p_value (float): the probability of larger violations if there are none, by one-sided jackknife t-tests with
            Bonferroni's correction for their number.
    """

    similarity: float
    p_value: float

    @classmethod
    def of(cls, pairs: Answer, rank: IntArray) -> ClickFit | None:
        """Test the (query, document) pairs of `reranked_pairs`; None if there is too little data."""
        used = np.flatnonzero(pairs["exposure"] ** 2 - pairs["squares"] > 0)
        used = used[np.lexsort((rank[used], pairs["query"][used]))]
        pairs, rank = {name: values[used] for name, values in pairs.items()}, rank[used]
        similarity = _neighbour_test(pairs, rank)
        if similarity is None:
            return None
        others = (_divided_test(pairs, rank), _rare_click_test(pairs, rank))
        p_values = [test[1] for test in (similarity, *others) if test is not None]
        return cls(similarity[0], min(1.0, len(p_values) * min(p_values)))


def _neighbours(pairs: Answer, rank: IntArray) -> tuple[IntArray, IntArray, int]:
    """Return the pairs that are followed by their neighbour, their buckets from 0, and the number of these."""
    upper = np.flatnonzero((np.diff(pairs["query"]) == 0) & (np.diff(rank) == 1))
    bucket = np.unique(pairs["bucket"][upper], return_inverse=True)[1]
    return upper, bucket, int(bucket.max(initial=-1)) + 1


def _ratio_test(above: FloatArray, below: FloatArray) -> tuple[float, float] | None:
    """Return a ratio that should be at most 1, and the one-sided p-value of a jackknife t-test.

    Arguments:
        above, below: the two sums, of all buckets and then without each of them, (1 + B,).
    """
    # The logarithm keeps a log with few squares, whose sum is uncertain, from a false alarm.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.log(above / below)
    if not np.isfinite(log_ratio).all():
        return None
    buckets, changes = len(log_ratio) - 1, log_ratio[1:] - log_ratio[0]
    error = np.sqrt((buckets - 1) / buckets * (changes**2).sum())
    if not error > 0:
        return None
    # Less the bias that the jackknife shows.
    t = float((log_ratio[0] - (buckets - 1) * changes.mean()) / error)
    half = f_tail(1, float(satterthwaite(changes[:, None])[0]), t**2) / 2
    return float(np.exp(log_ratio[0])), half if t > 0 else 1 - half


def _neighbour_test(pairs: Answer, rank: IntArray) -> tuple[float, float] | None:
    """Test whether neighbours d and e in a ranking have too similar rates Y = C / E (clicks by exposure).

    S = (C² − C) / (E² − Σ N_k p_k²), from pairs of page views, has the expectation r². If the ranking was made without
    these clicks, even if it sorts by r itself,

        E[S_d + S_e] ≥ E[2 Y_d Y_e] + (E[Y_d − Y_e])².
    """
    upper, bucket, buckets = _neighbours(pairs, rank)
    if buckets < MIN_BUCKETS:
        return None
    clicks, exposure = pairs["clicks"], pairs["exposure"]
    rate, square = clicks / exposure, (clicks**2 - clicks) / (exposure**2 - pairs["squares"])
    # Means are by rank, by the clicks of the query (documents of a query with more clicks differ more), and by how
    # well the two were placed (raw clicks put documents side by side that are similar only after that).
    query = np.unique(pairs["query"], return_inverse=True)[1]
    of_query = sum_by_index(query, clicks, int(query.max()) + 1)[query]
    quarter = np.searchsorted(np.quantile(of_query, _QUARTERS), of_query)[upper]
    place = np.log(exposure / pairs["impressions"])
    # Rounded, so that equal numbers are in one group.
    better = (place[upper] - place[upper + 1]).round(9)
    ranks, quarters, fifths = _MEMORISED_RANKS, len(_QUARTERS) + 1, len(_FIFTHS) + 1
    groups = ranks * quarters * fifths
    # With few documents of two clicks or more, so many groups would take chance for a pattern.
    several = np.count_nonzero(square) >= groups
    fifth = np.searchsorted(np.quantile(better, _FIFTHS), better) * several
    group = ((np.minimum(rank[upper], ranks) - 1) * quarters + quarter) * fifths + fifth
    total = _GroupSums(bucket, buckets, group, groups, 1 / (1 / exposure[upper] + 1 / exposure[upper + 1]))
    squares = total(square[upper] + square[upper + 1]).sum(axis=1)
    products = total(2 * rate[upper] * rate[upper + 1]).sum(axis=1)
    difference, size = total(rate[upper] - rate[upper + 1]), total(np.ones(len(upper)))
    means = np.divide(difference**2, size, out=np.zeros_like(size), where=size > _ROUNDING).sum(axis=1)
    return _ratio_test(products + means, squares)


def _divided_test(pairs: Answer, rank: IntArray) -> tuple[float, float] | None:
    """Test neighbours that had similar rates in one half of their page views, by the other half.

    With many page views the differences of relevance between neighbours hide those of chance. Page views are divided
    at random, so the clicks of the second half are independent of the choice by the first, given r: for the chosen
    neighbours, E[S_d + S_e] ≥ E[2 Y_d Y_e]. A ranking by the clicks of both halves leaves neighbours too similar in
    the second half.
    """
    views = np.rint(pairs["impressions"]).astype(np.int64)
    several = views >= _LEAST_DIVIDED
    pairs, rank, views = {name: values[several] for name, values in pairs.items()}, rank[several], views[several]
    upper, bucket, buckets = _neighbours(pairs, rank)
    if buckets < MIN_BUCKETS:
        return None
    clicks, first_views = np.rint(pairs["clicks"]).astype(np.int64), views // 2
    second_views = views - first_views
    first = pairs["exposure"] * first_views / views
    second = pairs["exposure"] - first
    # Pairs of page views within the second half, of all pairs.
    share = second_views * (second_views - 1) / (views * (views - 1))
    second_pairs = (pairs["exposure"] ** 2 - pairs["squares"]) * share
    rng, above, below = np.random.default_rng(0), np.zeros(1 + buckets), np.zeros(1 + buckets)
    for _ in range(_DIVISIONS):
        clicked = rng.hypergeometric(np.minimum(clicks, views), np.maximum(views - clicks, 0), first_views)
        rate = clicked / first
        mean = (clicked[upper] + clicked[upper + 1] + 1) / (first[upper] + first[upper + 1])
        chance = mean * (1 / first[upper] + 1 / first[upper + 1])
        similar = (rate[upper] - rate[upper + 1]) ** 2 < chance
        rest, d, e = clicks - clicked, upper[similar], upper[similar] + 1
        weight = 1 / (1 / second[d] + 1 / second[e])
        total = _GroupSums(bucket[similar], buckets, np.zeros(len(d), dtype=np.int64), 1, weight)
        above += total(2 * rest[d] * rest[e] / (second[d] * second[e]))[:, 0]
        square = (rest**2 - rest) / second_pairs
        below += total(square[d] + square[e])[:, 0]
    return _ratio_test(above, below)


def _rare_click_test(pairs: Answer, rank: IntArray) -> tuple[float, float] | None:
    """Test whether too few documents at a rank have no click, given how many have one and two.

    With g the probability of no click, A = E[1(C = 1) / E] = E[g r], Z = E[1(C = 0)] = E[g] and
    D = E[2 · 1(C = 2) / (E² − Σ N_k p_k²)] = E[g r²], so that D ≥ 2cA − c²Z for any c, since E[g (r − c)²] ≥ 0. It is
    equal at c = A / Z if all documents are alike. A ranking that puts clicked documents above others has Z = 0 at the
    top and D = 0 below. It holds for documents that were shown at one rank only.
    """
    one_rank = pairs["exposure"] ** 2 > _ONE_RANK * pairs["impressions"] * pairs["squares"]
    pairs, rank = {name: values[one_rank] for name, values in pairs.items()}, rank[one_rank]
    bucket = np.unique(pairs["bucket"], return_inverse=True)[1]
    buckets, rare = int(bucket.max(initial=-1)) + 1, np.count_nonzero(pairs["clicks"] <= 2)
    if buckets < MIN_BUCKETS or rare < _LEAST_RARE * _MEMORISED_RANKS:
        return None
    clicks, exposure, quarters = pairs["clicks"], pairs["exposure"], len(_QUARTERS) + 1
    group = (np.minimum(rank, _MEMORISED_RANKS) - 1) * quarters
    # With few documents, so many groups would take chance for a pattern.
    several = rare >= _LEAST_RARE * _MEMORISED_RANKS * quarters
    group += np.searchsorted(np.quantile(exposure, _QUARTERS), exposure) * several
    total = _GroupSums(bucket, buckets, group, _MEMORISED_RANKS * quarters, exposure)
    one, none, size = total((clicks == 1) / exposure), total(clicks == 0), total(np.ones(len(clicks)))
    two = total(2 * (clicks == 2) / (exposure**2 - pairs["squares"]))
    relevance = one / np.maximum(none, _LEAST_CLICKLESS * size + _ROUNDING)
    return _ratio_test((2 * relevance * one - relevance**2 * none).sum(axis=1), two.sum(axis=1))


class _GroupSums:
    """Weighted sums of numbers by group, (1 + B, groups): of all buckets, and then without each of them."""

    def __init__(self, bucket: IntArray, buckets: int, group: IntArray, groups: int, weight: FloatArray) -> None:
        self.cell, self.shape, self.weight = bucket * groups + group, (buckets, groups), weight
        self.weights = np.vstack([np.ones(buckets), deletion_weights(buckets)])

    def __call__(self, values: npt.NDArray[Any]) -> FloatArray:
        sums = sum_by_index(self.cell, self.weight * values, self.shape[0] * self.shape[1])
        return np.asarray(self.weights @ sums.reshape(self.shape))


def find_memorised(name: str, fit: ClickFit | None, few_share: float) -> Iterable[Finding]:
    """Find a ranking that follows the clicks more closely than relevance can explain.

    Arguments:
        name: the name of the ranking.
        fit: how closely it follows the clicks, if that was tested.
        few_share: the share of its gain over the log that comes from documents with few impressions.
    """
    if fit is None or fit.p_value >= _MEMORISED_LEVEL:
        return []
    few = ""
    if few_share > _LEAST_FEW_SHARE:
        few = (
            f". {min(few_share, 1):.0%} of its gain comes from documents with fewer than {FEW_IMPRESSIONS} impressions"
        )
    return [
        Finding(
            "memorised-clicks",
            "warning",
            f"The ranking {name!r} seems to be made from the clicks that evaluate it, so its value is too high: "
            "its order follows single clicks more closely than relevance can explain "
            f"({format_p_value(fit.p_value, _MEMORISED_LEVEL)}){few}",
            evidence={"ranking": name, **asdict(fit), "few_share": few_share},
            remedy="Learn from one part of the log (part='train') and evaluate on the other (part='test'). If the "
            "ranking knows single queries, divide the log by user, page view or day (split).",
        )
    ]


# ---- Values and intervals


def _click_credits(harvest: Harvest, answer: Answer, propensity: Sequence[float], rankings: int) -> ClickCredits:
    """Return the engine's answer as arrays by bucket and rank: of all that is relevant, of the log, of each ranking."""
    rank, frequent = answer["rank"], answer["frequent"] != 0
    worth = _worths(answer, rankings)
    # Rank 0 has the page views.
    pages, clicked = rank == 0, rank > 0
    credit = np.zeros((len(worth), len(harvest.buckets), harvest.max_rank + 1))
    views = np.zeros(len(harvest.buckets))
    bucket = lookup(answer["bucket"], harvest.buckets)
    credit[:, bucket[~frequent], rank[~frequent]] = worth[:, ~frequent]
    views[bucket[pages & ~frequent]] = answer["views"][pages & ~frequent]
    if not frequent.any():
        return ClickCredits(credit[..., 1:], views, np.array(propensity))
    apart = clicked & frequent
    rows = filter_rows(answer, apart)
    _, document = np.unique(rows["frequent"], return_inverse=True)
    served = float(answer["views"][pages & frequent].sum())
    counts = rows["rank"], document, rows["clicks"], rows["impressions"]
    found = FrequentQueries.of(worth[:, apart], *counts, served, harvest.max_rank)
    return ClickCredits(credit[..., 1:], views, np.array(propensity), found)


def _worths(answer: Answer, rankings: int) -> FloatArray:
    """Return what clicks are worth by list and row: of all that is relevant, of the log, of each ranking."""
    return np.stack([answer[name] for name in ("worth", "worth_log", *(f"worth_{j}" for j in range(rankings)))])


def _unit_credits(
    harvest: Harvest, fitted: Estimator[Any], answer: Answer, rankings: int
) -> tuple[UnitCredits, UnitCredits]:
    """Return what each bucket of units, and of queries and units, adds to the values, with its refit of the curve."""
    units = None if fitted.jackknife_ is None else fitted.jackknife_.units
    assert units is not None
    assert harvest.units is not None
    found = []
    kinds = ((harvest.units.by_unit, units.by_unit), (harvest.units.by_both, units.by_both))
    for kind, (counted, jackknife) in enumerate(kinds, start=1):
        first = kind * BUCKETS
        rows = filter_rows(answer, np.isin(answer["bucket"], counted.buckets + first))
        bucket = lookup(rows["bucket"] - first, counted.buckets)
        worth = np.zeros((len(counted.buckets), rankings + 2))
        worth[bucket] = _worths(rows, rankings).T
        views = sum_by_index(bucket, rows["views"], len(counted.buckets))
        found.append(UnitCredits(worth, views, jackknife, units.reason))
    return found[0], found[1]


@dataclass(frozen=True, eq=False)
class UnitCredits:
    """What buckets of units add to the values of L lists.

    Attributes:
        worth: what Σ clicks λ / ρ loses without the bucket. (B, L)
        views: page views by bucket. (B,)
        jackknife: the curve with its refits without each of the buckets.
        reason: why there is no interval, if the units fill too few buckets.
    """

    worth: FloatArray
    views: FloatArray
    jackknife: Jackknife
    reason: str | None = None

    def changes(self, credits: ClickCredits) -> FloatArray | None:
        """Return how each value changes without each bucket, to first order, (B, L); None without such refits."""
        if len(self.jackknife.deletions) != len(self.views):
            return None
        curve = self.jackknife.propensity
        used = (credits.propensity > 0) & (curve > 0)
        ratio = np.where(used, self.jackknife.deletions / np.where(used, curve, 1.0), 1.0)
        by_curve = (_inverse(ratio) - 1) @ credits.total.T / credits.page_views
        rest = self.views.sum() - self.views
        lost = self.worth - self.views[:, None] * credits.total.sum(axis=1) / credits.page_views
        return np.asarray(by_curve - lost / np.maximum(rest, 1.0)[:, None])


@dataclass(frozen=True, eq=False)
class FrequentQueries:
    """The credit of clicks of queries that have a large share of the page views, over all of these queries.

    Attributes:
        credit: as in `ClickCredits`, by list and rank. (L, M)
        views: the page views of these queries.
        worth: Σ λ / ρ of one click, by list and document. (L, D)
        noise: the variance of the clicks on each document, clicks (1 − click rate). (D,)
    """

    credit: FloatArray
    views: float
    worth: FloatArray
    noise: FloatArray

    @classmethod
    def of(
        cls,
        worth: FloatArray,
        rank: IntArray,
        document: IntArray,
        clicks: FloatArray,
        impressions: FloatArray,
        views: float,
        max_rank: int,
    ) -> FrequentQueries:
        """Add up the worth of rows, (L, rows), each of one document and rank with its part of the clicks."""
        size = int(document.max(initial=-1)) + 1
        total = sum_by_index(document, clicks, size)
        shown = np.zeros(size)
        shown[document] = impressions
        return cls(
            credit=np.stack([sum_by_index(rank - 1, list_, max_rank) for list_ in worth]),
            views=views,
            worth=np.stack([sum_by_index(document, list_, size) for list_ in worth]) / total,
            noise=total * np.maximum(1 - total / shown, 0),
        )


@dataclass(frozen=True, eq=False)
class ClickCredits:
    """The credit of clicks by bucket and rank, for each of L lists (all relevant documents, the log, the rankings).

    Queries are a sample, except the frequent ones: what has a large share of the traffic today has it tomorrow. So they
    are not left out with their bucket, but keep their share of the page views. Only their clicks are random.

    Attributes:
        credit: Σ clicks λ / ρ by list, bucket and rank, split by the part of the rank in ρ. (L, B, M)
        views: page views by bucket. (B,)
        propensity: p_k / p_1 of ρ; 0 at ranks without impressions. (M,)
        frequent: the same of frequent queries, which `credit` and `views` do not have; None if there are none.
    """

    credit: FloatArray
    views: FloatArray
    propensity: FloatArray
    frequent: FrequentQueries | None = None

    @property
    def page_views(self) -> float:
        """All page views."""
        return float(self.views.sum()) + (self.frequent.views if self.frequent else 0.0)

    @property
    def total(self) -> FloatArray:
        """Credit by list and rank, of all queries. (L, M)"""
        total = self.credit.sum(axis=1)
        return np.asarray(total if self.frequent is None else total + self.frequent.credit)

    def values(self, weights: FloatArray, curves: FloatArray) -> FloatArray:
        """Return Δ of every list, (..., L), for buckets counted `weights` (..., B) times and curves (..., M)."""
        shown = self.propensity > 0
        exposure = np.where(shown, curves / np.where(shown, self.propensity, 1.0), 1.0)
        inverse = _inverse(exposure)
        sums = np.einsum("...b,lbk,...k->...l", weights, self.credit, inverse, optimize=True)
        counted = (weights @ self.views)[..., None]
        if self.frequent is None:
            return np.asarray(sums / counted)
        # The frequent queries keep their share of the page views.
        scale = np.divide(self.views.sum(), counted, out=np.zeros_like(counted), where=counted > 0)
        return np.asarray((sums * scale + inverse @ self.frequent.credit.T) / self.page_views)


def _inverse(x: FloatArray) -> FloatArray:
    """Return 1/x, and its tangent below ½: a refit may leave a rank without clicks while other ranks have some."""
    return np.where(x >= _TANGENT_BELOW, 1 / np.maximum(x, _TANGENT_BELOW), (2 - x / _TANGENT_BELOW) / _TANGENT_BELOW)


@one_blas_thread()
@step("Computing values and intervals")
def _make_evaluation(
    fitted: Estimator[Any],
    credits_: ClickCredits,
    units: tuple[UnitCredits, UnitCredits] | None,
    metric: Metric,
    clicks: int,
    level: float,
    covered: dict[str, float],
    never_shown: Sequence[float | None],
    findings: Sequence[Finding],
) -> Evaluation:
    max_degrees = np.inf if fitted.jackknife_ is None else fitted.jackknife_.max_degrees
    values = JackknifeValues.of(credits_, np.array(credits_.propensity), fitted.deletions_, level, max_degrees, units)

    def ranking_result(number: int, name: str, unseen_share: float | None) -> RankingResult:
        return RankingResult(
            name,
            values.value_of(number),
            values.ratio(number, 0),
            values.difference(number, 1),
            values.ratio(number, 1),
            values.ratio(number, 2) if number > 2 else None,
            unseen_share,
            covered[name],
        )

    return Evaluation(
        metric=metric.title,
        more_is_better=metric.more_is_better,
        level=level,
        estimator=fitted.name,
        page_views=round(credits_.page_views),
        clicks=clicks,
        log=RankingResult(THE_LOG, values.value_of(1), values.ratio(1, 0)),
        rankings=tuple(
            ranking_result(number, name, unseen_share)
            for number, (name, unseen_share) in enumerate(zip(covered, never_shown, strict=True), 2)
        ),
        notes=fitted.notes_,
        findings=tuple(findings),
    )


@dataclass(frozen=True, eq=False)
class JackknifeValues:
    """Values of L lists, (L,), and those without each of the buckets, (B, L), if there are enough buckets.

    With units, the variance is V_query + V_unit − V_both, but at least V_query, as that of a curve is.
    """

    credits: ClickCredits
    value: FloatArray
    deletions: FloatArray | None
    level: float
    max_degrees: float
    reason: str | None = None
    by_units: tuple[FloatArray, FloatArray] | None = None

    @classmethod
    def of(
        cls,
        credits: ClickCredits,
        curve: FloatArray,
        refits: FloatArray | None,
        level: float,
        max_degrees: float,
        units: tuple[UnitCredits, UnitCredits] | None = None,
    ) -> JackknifeValues:
        """Return the values with the curve, and with its refit without each bucket."""
        buckets = len(credits.views)
        value = credits.values(np.ones(buckets), curve)
        if buckets < MIN_BUCKETS:
            return cls(credits, value, None, level, max_degrees, explain_few_buckets(buckets))
        by_units = None
        if units is not None:
            by_unit, by_both = (one.changes(credits) for one in units)
            by_units = None if by_unit is None or by_both is None else (value + by_unit, value + by_both)
        if units is not None and units[0].reason is not None:
            return cls(credits, value, None, level, max_degrees, units[0].reason)
        if refits is None or len(refits) != buckets or (units is not None and by_units is None):
            reason = "the curve has no refits of the same buckets: no interval"
            return cls(credits, value, None, level, max_degrees, reason)
        deletions = credits.values(deletion_weights(buckets), refits)
        return cls(credits, value, deletions, level, max_degrees, by_units=by_units)

    def ratio(self, one: int, other: int) -> Estimate:
        """Return the ratio of the values of two lists, with its interval on the log scale."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self._estimate(lambda value: np.log(value[..., one]) - np.log(value[..., other]), log=True)

    def difference(self, one: int, other: int) -> Estimate:
        """Return the difference of the values of two lists, with its interval."""
        return self._estimate(lambda value: value[..., one] - value[..., other], log=False)

    def value_of(self, one: int) -> Estimate:
        """Return the value of one list, with its interval on the log scale."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self._estimate(lambda value: np.log(value[..., one]), log=True)

    def _estimate(self, contrast: Callable[[FloatArray], FloatArray], *, log: bool) -> Estimate:
        """Return a function of the values with its jackknife interval, with t quantiles as for curves."""
        value = float(contrast(self.value))
        point = float(np.exp(value)) if log else value
        if self.deletions is None or not np.isfinite(value):
            return Estimate(point, reason=self.reason)
        variance, degrees = self._variance(contrast(self.deletions) - value, self.max_degrees)
        if not np.isfinite(variance):
            return Estimate(point, reason=ONE_BUCKET_REASON)
        noise = self._click_noise(contrast)
        # Satterthwaite's degrees of freedom of a sum of which one part is known much better.
        few = degrees * (1 + noise / variance) ** 2 if variance > 0 else degrees
        total, what = variance + noise, "queries"
        if self.by_units is not None:
            of_unit, of_both = (self._variance(contrast(refits) - value) for refits in self.by_units)
            if not np.isfinite([of_unit[0], of_both[0]]).all():
                return Estimate(point, reason=ONE_UNIT_REASON)
            added = of_unit[0] - of_both[0]
            if added > 0:
                by_query, parts = few, ((variance, degrees), of_unit, of_both)
                total += added
                few = total**2 / sum(part**2 / own for part, own in parts)
                what = "units" if few < FEW_DEGREES <= by_query else what
        half = float(t_quantile(np.array([few]), (1 + self.level) / 2)[0] * np.sqrt(total))
        ends = value - half, value + half
        low, high = map(ratio_from_log, ends) if log else ends
        reason = explain_few_degrees(what) if few < FEW_DEGREES and half > 0 else None
        return Estimate(point, float(low), float(high), float(few), reason)

    @staticmethod
    def _variance(changes: FloatArray, max_degrees: float = np.inf) -> tuple[float, float]:
        """Return the jackknife variance of one number from its changes, (B,), and its degrees of freedom."""
        if not np.isfinite(changes).all():
            return float("nan"), 1.0
        scaled = (changes * np.sqrt((len(changes) - 1) / len(changes)))[:, None]
        sampled = Contrasts.from_deletions(np.zeros(1), scaled, max_degrees)
        return float(sampled.covariance[0, 0]), float(sampled.degrees[0])

    def _click_noise(self, contrast: Callable[[FloatArray], FloatArray]) -> float:
        """Return the variance of a function of the values that comes from the clicks of frequent queries."""
        frequent = self.credits.frequent
        if frequent is None:
            return 0.0
        # What one click more on each document changes, (D,).
        change = contrast(self.value + frequent.worth.T / self.credits.page_views) - contrast(self.value)
        return float((frequent.noise * change**2).sum())


# ---- Text and plot


def _format_value(estimate: Estimate | None, digits: int, *, sign: bool = False) -> str:
    return "" if estimate is None else _format_number(estimate.value, digits, sign)


def _format_interval(estimate: Estimate | None, digits: int, *, sign: bool = False) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"{_format_number(estimate.low, digits, sign)} – {_format_number(estimate.high, digits, sign)}"


def _format_number(value: float, digits: int, sign: bool) -> str:
    text = f"{abs(value):,.{digits}f}"
    return f"{'−' if value < 0 else '+'}{text}" if sign else text


def _name_column(results: Sequence[RankingResult]) -> Column:
    return Column("ranking", [printable(result.name) for result in results], left=True)


def _first_reason(result: RankingResult) -> str | None:
    estimates = (result.ratio, result.difference, result.value, result.normalised)
    return next((estimate.reason for estimate in estimates if estimate is not None and estimate.reason), None)


def draw_evaluation(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Draw the ratio of each ranking to the log with its interval, in rows."""
    check_type("evaluation", evaluation, Evaluation)
    return draw(evaluation_chart(evaluation), ax)


def evaluation_chart(evaluation: Evaluation) -> Chart:
    """Return the chart of the ratio of each ranking to the log."""
    series = []
    for verdict, (color, marker, name) in _VERDICT_STYLES.items():
        rows = {
            row: result.ratio
            for row, result in enumerate(evaluation.rankings)
            if result.ratio is not None and result.verdict(evaluation.more_is_better) == verdict
        }
        if rows:
            value, low, high = (known(getattr(r, field) for r in rows.values()) for field in ("value", "low", "high"))
            series.append(Series(name, color, value, [*rows], low, high, marker, line="", size=6, across=True))
    values = [1.0, *(value for one in series for value in one.values)]
    return Chart(
        f"Rankings compared with the log, {100 * evaluation.level:g}% interval",
        number_axis(f"{evaluation.metric}, relative to the log", values),
        named_axis([result.name for result in evaluation.rankings]),
        series,
        [Rule("x", 1.0, name="same as the log")],
        legend="below",
        height=1.9 + 0.3 * len(evaluation.rankings),
    )
