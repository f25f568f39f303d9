"""Judge rankings by logged clicks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from posbias._arrays import FloatArray
from posbias._charts import Chart, Color, Rule, Series, known, named_axis, number_axis
from posbias._matplotlib import draw, save
from posbias._stats import t_quantile
from posbias._text import Column, folded, listed, printable, table
from posbias._validate import DEFAULT_LEVEL, DEFAULT_MAX_RANK, check_type, share
from posbias.engines import EngineChoice, OpenLog, choose_engine, open_log
from posbias.engines.files import COMPRESSED_ENDINGS
from posbias.engines.spark import Spark
from posbias.errors import EstimateError, LogError, PosbiasError
from posbias.estimators.base import (
    FEW_DEGREES,
    MIN_BUCKETS,
    ONE_BUCKET_REASON,
    deletion_weights,
    explain_few_buckets,
    explain_few_degrees,
)
from posbias.findings import Finding
from posbias.harvesting.count import HarvestSettings, check_settings
from posbias.harvesting.harvest import harvest as harvest_log
from posbias.judging.compare import format_change
from posbias.judging.significance import Contrasts, ratio_from_log
from posbias.logs.click_log import ClickLog
from posbias.logs.schema import NESTED, guess, refuse_fraction
from posbias.progress import Progress, silent
from posbias.sql.evaluation import EvaluatedRanking, Pages, credit_sums, page_shapes, ranking_rows, repeated, unseen
from posbias.sql.plan import QueryPlan
from posbias.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from posbias.engines.base import Answer
    from posbias.estimators.base import Estimator
    from posbias.harvesting.harvest import Harvest

Name = Literal["dcg", "precision", "rank"]
_WORDS: dict[Name, str] = {"dcg": "DCG", "precision": "precision", "rank": "average rank"}
# A rank that lost more than so much of its exposure in a refit counts by the tangent.
_LEAST = 0.5
FORMAT = 1
# What a ranker of the log is called in place of a file, and what says that rankings are told by rank and not by score.
OF_LOG, NO_SCORE = "ranker:", "none"
# What the rankings that were logged are called, all together by their shares of the traffic.
THE_LOG = "the log"
# A ranking that has fewer clicks of the log than this share is of something else; below the second, it is said.
_TOO_FEW, _FEW = 0.5, 0.95
# Ranks that fewer page views leave vacant, as rows that were lost do, are not worth a word.
_FEW_VACANT = 0.01
_MOST_RANKINGS = 100
_NO_NUMBERS = ("BOOLEAN", "DATE", "BLOB", "INTERVAL", "UUID", "BIT")
# What is told of a ranking: its colour, its marker, by which it is known in grey, and its name.
_LOOKS: dict[str | None, tuple[Color, str, str]] = {
    "better": (2, "^", "better"),
    "worse": ("alarm", "v", "worse"),
    None: (0, "o", "not told apart from the log"),
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
    check_settings(max_rank)
    judged_by = Metric.named(metric, max_rank)
    if score is not None and not isinstance(score, str):
        raise PosbiasError(f"score must be a text, the name of a column, or 'none', not {score!r}.")
    share("level", level)
    named = named_rankings(rankings)
    if isinstance(choose_engine(log, engine), Spark):
        raise PosbiasError(
            "Rankings are joined with a log by DuckDB alone. Leave engine='spark' out and give the log as files, or as "
            "a sample of them."
        )
    if any(type(source).__name__ == "RecordBatchReader" for source in log.sources):
        raise LogError("The log is read twice, and a stream can be read only once. Give a file or a table.")
    from posbias.judging.compare import fit_harvest

    tables = opened_names(named)
    with open_log(log, engine, progress, extra_tables={table: named[name] for name, table in tables.items()}) as opened:
        # First: who has to mend a ranking need not wait for the harvest.
        told = find_tables(opened, tables, score)
        made = harvest_log(log, max_rank=max_rank, engine=engine, progress=progress, force=force)
        fitted = fit_harvest(made, estimator, level)
        propensity = _propensity(made, fitted)
        found = find_rankings(named, told, made.rankers)
        plan = HarvestSettings(max_rank, (), made.weighting, "share", 0).plan(opened, made.rankers)
        pages, vacant = look_at_pages(opened, plan, made.impressions)
        answer = opened.table(credit_sums(plan, found, propensity, judged_by.gain, pages=pages), "Judging")
        top = judged_by.cutoff or max_rank
        never = look_for_unseen(opened, plan, found, top)
    answer = _counted(made, answer)
    clicks = round(float(answer["clicks"].sum()))
    covered = {name: float(answer[f"scored_{j}"].sum()) / clicks for j, name in enumerate(named)}
    findings = [*made.findings, *note_vacant(pages, vacant)]
    for (name, share_), one, not_shown in zip(covered.items(), found, never, strict=True):
        findings += [*judge_cover(name, share_, one), *note_unseen(name, not_shown, top, max_rank)]
    credits_ = _credits(made, answer, propensity, len(found))
    return _evaluation(fitted, credits_, judged_by, clicks, level, covered, never, findings)


@dataclass(frozen=True)
class Evaluation:
    """Rankings judged by clicks that were logged.

    Made by `posbias.evaluate`.

    Attributes:
        metric: what they are judged by.
        rises: whether more of it is better.
        level: the coverage of the intervals.
        estimator: of the propensities.
        page_views, clicks: that the log holds.
        log: the rankers that were logged, by their shares of the traffic.
        rankings: those judged, in the order given.
        notes: what is to be known of the propensities.
        findings: what is to be known of the log and the rankings.
    """

    metric: str
    rises: bool
    level: float
    estimator: str
    page_views: int
    clicks: int
    log: Judged
    rankings: tuple[Judged, ...]
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def best(self) -> str:
        """The ranking that is worth most by its estimate, whether or not by more than chance; it may be the log."""
        pick = max if self.rises else min
        return pick((self.log, *self.rankings), key=lambda one: one.value.value).name

    def __getitem__(self, name: str) -> Judged:
        """Return the ranking of a name."""
        return {one.name: one for one in (*self.rankings, self.log)}[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as `--json` prints it."""
        return {
            "format": FORMAT,
            "metric": self.metric,
            "more_is_better": self.rises,
            "level": self.level,
            "estimator": self.estimator,
            "page_views": self.page_views,
            "clicks": self.clicks,
            "best": self.best,
            "log": {"value": asdict(self.log.value), "normalised": asdict(self.log.normalised)},
            "rankings": [asdict(one) | {"verdict": one.verdict(self.rises)} for one in self.rankings],
            "notes": list(self.notes),
            "findings": [finding.to_dict() for finding in self.findings],
            "version": __version__,
        }

    @property
    def verdicts(self) -> list[str]:
        """What comes of it, a sentence for each ranking."""
        told = [self._told(one, one.ratio, THE_LOG) for one in self.rankings]
        first = self.rankings[0].name
        return told + [self._told(one, one.ratio_to_first, first) for one in self.rankings[1:]]

    def _told(self, one: Judged, ratio: Estimate | None, other: str) -> str:
        if ratio is None or ratio.low is None or ratio.high is None:
            why = "" if ratio is None or not ratio.reason else f": {ratio.reason}"
            return f"Whether {one.name} is better than {other} cannot be told{why}."
        found = one.verdict(self.rises, ratio)
        by = (
            f"{self.metric} {format_change(ratio.value)}, {100 * self.level:g}% interval {format_change(ratio.low)} to "
        )
        by += format_change(ratio.high)
        if found is None:
            same = ratio.low == ratio.high
            return f"{one.name} and {other} " + ("rank alike." if same else f"do not differ beyond chance ({by}).")
        return f"{one.name} is {found} than {other} ({by})."

    def to_text(self) -> str:
        """Return the evaluation as a table, after what comes of it."""
        head = (
            f"{self.metric} from {self.clicks:,} clicks in {self.page_views:,} page views; propensities by "
            f"{self.estimator}, estimated anew for the intervals"
        )
        lines = [line for text in (*self.verdicts, head) for line in folded(printable(text))]
        notes = [line for note in self.notes for line in folded(f"! {printable(note)}")]
        return "\n".join([*lines, "", self._table(), *notes])

    def _table(self) -> str:
        every = [self.log, *self.rankings]
        interval = f"{100 * self.level:g}% interval"
        columns = [
            Column("ranking", [printable(one.name) for one in every], left=True),
            Column("ratio", [_estimate_text(one.ratio, 3) for one in every]),
            Column(interval, [_ends(one.ratio, 3) for one in every], left=True),
            Column("difference", [_estimate_text(one.difference, 4, sign=True) for one in every]),
            Column("interval", [_ends(one.difference, 4, sign=True) for one in every], left=True),
            Column("value", [_estimate_text(one.value, 4) for one in every]),
            Column("interval", [_ends(one.value, 4) for one in every], left=True),
            Column("normalised", [_estimate_text(one.normalised, 4) for one in every]),
            Column("interval", [_ends(one.normalised, 4) for one in every], left=True),
            Column("never shown", ["" if one.never_shown is None else f"{one.never_shown:.1%}" for one in every]),
        ]
        reasons = [_weak(one) for one in every]
        below = [
            line
            for name, reason in zip((one.name for one in every), reasons, strict=True)
            if reason
            for line in folded(f"! {printable(name)}: {reason}")
        ]
        return "\n".join([table(columns), *below])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the ratio of each ranking to the log with its interval, and return the Axes."""
        return draw_evaluation(self, ax)

    def save_plot(self, path: str) -> None:
        """Write the picture as PNG, SVG or PDF."""
        save(self.plot(), path)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


@dataclass(frozen=True)
class Metric:
    """λ: what a relevant document is worth at a rank; nothing beyond `cutoff`, where there is one.

    >>> Metric.named("precision@5", 10).title, Metric.named("dcg", 10).title, Metric.named("rank", 10).title
    ('precision@5', 'DCG@10', 'average rank')
    """

    name: Name
    cutoff: int | None

    @classmethod
    def named(cls, text: str, max_rank: int) -> Metric:
        """Return the metric of a name; without a cut-off of its own it ends at M, as a page does."""
        found = re.fullmatch(r"(dcg|precision)(?:@([1-9][0-9]{0,8}))?|rank", text if isinstance(text, str) else "")
        if not found:
            raise PosbiasError(
                f"The metric {text!r} is not known. Use 'dcg', 'precision' or 'rank'; the first two may have a "
                "cut-off, as in 'dcg@5'."
            )
        if text == "rank":
            return cls("rank", None)
        cutoff = int(found[2]) if found[2] else max_rank
        if cutoff > max_rank:
            raise PosbiasError(
                f"The metric {text!r} looks at {cutoff:,} ranks, and the log is read to rank {max_rank:,}. Take a "
                "smaller cut-off or a larger max_rank."
            )
        return cls("dcg" if found[1] == "dcg" else "precision", cutoff)

    @property
    def title(self) -> str:
        """What the metric is called."""
        return _WORDS[self.name] + (f"@{self.cutoff}" if self.cutoff else "")

    @property
    def rises(self) -> bool:
        """Whether more is better: of ranks it is not."""
        return self.name != "rank"

    def gain(self, rank: str) -> str:
        """Return λ of a rank as SQL, a double."""
        if self.name == "rank":
            return f"1e0 * {rank}"
        worth = f"LN(2e0) / LN(1e0 + {rank})" if self.name == "dcg" else f"1e0 / {self.cutoff}"
        return f"CASE WHEN {rank} <= {self.cutoff} THEN {worth} ELSE 0e0 END"


def named_rankings(given: Any) -> dict[str, Any]:
    """Return rankings by name: of a mapping its own, of paths those of the files, of data numbers.

    >>> named_rankings(["models/v1.2.csv.gz", "ranker:b"])
    {'v1.2': 'models/v1.2.csv.gz', 'b': 'ranker:b'}
    """
    if isinstance(given, Mapping):
        named = {str(name): source for name, source in given.items()}
    else:
        several = list(given) if isinstance(given, list | tuple) else [given]
        named = dict(zip(_names(several), several, strict=True))
    if any(isinstance(source, str) and not source.strip() for source in named.values()):
        raise PosbiasError("The name of a ranking is empty. Give a file, a table, or 'ranker:NAME'.")
    if not named:
        raise PosbiasError("There is no ranking to judge. Give at least one: a file, a table, or 'ranker:NAME'.")
    taken = next((name for name in named if name == THE_LOG or not name.strip()), None)
    if taken is not None:
        raise PosbiasError(
            f"A ranking cannot be called {taken!r}, which is the name of what was logged, or none. Give it another "
            "name, as in {'new': ...}."
        )
    if len(named) > _MOST_RANKINGS:
        raise PosbiasError(f"{len(named):,} rankings are more than are judged at once. Give at most {_MOST_RANKINGS}.")
    return named


def _names(several: Sequence[Any]) -> list[str]:
    names = [_name(one) or f"ranking {number}" for number, one in enumerate(several, start=1)]
    if len({*names}) < len(names):
        # Files of one name lie in different folders, or have different endings.
        names = [os.fspath(one) if _is_path(one) else name for one, name in zip(several, names, strict=True)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise PosbiasError(f"The ranking {twice[0]!r} was given twice. Give each once.")
    return names


def _name(one: Any) -> str:
    if is_of_log(one):
        return str(one).removeprefix(OF_LOG)
    name = os.path.basename(os.fspath(one).rstrip("/")) if _is_path(one) else ""
    for packed in COMPRESSED_ENDINGS:
        name = name.removesuffix(packed)
    return os.path.splitext(name)[0]


def is_of_log(source: Any) -> bool:
    """Whether a ranking is that of one of the log's rankers."""
    return isinstance(source, str) and source.startswith(OF_LOG)


def _is_path(one: Any) -> bool:
    return isinstance(one, str | os.PathLike)


def opened_names(named: Mapping[str, Any]) -> dict[str, str]:
    """Return what the table of each ranking that is a source is called in queries."""
    return {name: f"ranking_{number}" for number, (name, source) in enumerate(named.items()) if not is_of_log(source)}


def find_tables(opened: OpenLog, tables: Mapping[str, str], score: str | None) -> dict[str, EvaluatedRanking]:
    """Return what each ranking that is a table is, by its name; refuse what is none."""
    found = {name: _columns(opened, name, table, score) for name, table in tables.items()}
    with opened.ignoring_file_statistics():
        for name, one in found.items():
            _refuse_rows(opened, name, one)
    return found


def _columns(opened: OpenLog, name: str, table: str, score: str | None) -> EvaluatedRanking:
    """Return which columns of a ranking are what: ids as the log calls them, and a score or a rank."""
    columns, schema = opened.extra_tables[table], opened.schema
    told = dict(columns.types)
    for role in ("query", "doc"):
        _require(name, getattr(schema, role), role, told, "as the log calls it")
    if score is not None and score != NO_SCORE:
        _require(name, score, "score", told, "by which it ranks, the highest first")
        value, descending = score, True
    else:
        value, descending = _by_score_or_rank(name, told, schema.rank, score)
    for column in (schema.query, schema.doc, value):
        if NESTED.search(told[column]):
            raise PosbiasError(
                f"Column {column!r} of the ranking {name!r} is {told[column]}, where single values were expected."
            )
    if told[value] in _NO_NUMBERS or told[value].startswith("TIME"):
        raise PosbiasError(
            f"Column {value!r} of the ranking {name!r} is {told[value]}, where numbers to rank by were expected. Name "
            "the column of scores (score)."
        )
    for column in (schema.query, schema.doc):
        refuse_fraction(column, schema.types[column], told[column], f"the ranking {name!r}")
    query, doc, by = (columns.names.get(column, column) for column in (schema.query, schema.doc, value))
    types = told[schema.query], told[schema.doc], told[value]
    return EvaluatedRanking(table, -1, query, doc, by, types, descending)


def _require(name: str, column: str, role: str, told: Mapping[str, str], which: str) -> None:
    if column in told:
        return
    meant = guess(role, column, told)
    hint = f" Did you mean {meant!r}? Rename it." if meant else ""
    raise PosbiasError(
        f"The ranking {name!r} has no column {column!r}, the {role} {which}.{hint} Columns found: {listed(told)}."
    )


def _by_score_or_rank(name: str, told: Mapping[str, str], rank: str, score: str | None) -> tuple[str, bool]:
    """Return the column to rank by where none was named, and whether its highest value comes first."""
    named = [rank] if score == NO_SCORE else list(dict.fromkeys(("score", rank)))
    there = [column for column in named if column in told]
    if len(there) == 2:
        raise PosbiasError(
            f"The ranking {name!r} has both a score ('score') and a rank ({rank!r}), and which is meant is for you to "
            "say: the score, of which the highest comes first, or the rank (score='none').",
            {"score": "score"},
        )
    if not there:
        raise PosbiasError(
            f"The ranking {name!r} has neither a column 'score' nor a column {rank!r}. Columns found: {listed(told)}. "
            "Say which holds the scores, the highest first (score), or the ranks (rank)."
        )
    return there[0], there[0] == "score" and rank != "score"


def _refuse_rows(opened: OpenLog, name: str, one: EvaluatedRanking) -> None:
    """Refuse a ranking with rows that cannot be used."""
    [(rows, nameless, odd, scores, low, high)] = opened.rows(ranking_rows(opened.dialect, one), "Looking at rankings")
    if not scores and not odd:
        what = "has no row" if not rows else f"has no value in column {one.score!r}"
        raise PosbiasError(f"The ranking {name!r} {what}. Expected a row for each query and document with its score.")
    if odd:
        raise PosbiasError(
            f"{odd:,} of {rows:,} rows of the ranking {name!r} have NaN or what is no number in column {one.score!r}: "
            "they cannot be ranked. Give each a number, or NULL to put it last."
        )
    if nameless:
        raise PosbiasError(
            f"{nameless:,} of {rows:,} rows of the ranking {name!r} have no query or no document. Leave them out."
        )
    if scores > 1 and low == high:
        raise PosbiasError(
            f"All {scores:,} scores of the ranking {name!r}, in column {one.score!r}, are the same: it puts no "
            "document above another. Name the column that it ranks by (score or rank)."
        )
    [(several, example, times)] = opened.rows(repeated(opened.dialect, one), "Looking at rankings")
    if several:
        raise PosbiasError(
            f"The ranking {name!r} has {several:,} documents of a query more than once, for example of query "
            f"{example!r} one {times:,} times. A document has one place in a ranking: keep one row of each."
        )


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


def find_rankings(
    named: Mapping[str, Any], tables: Mapping[str, EvaluatedRanking], rankers: Sequence[str]
) -> list[EvaluatedRanking]:
    """Return what each ranking is: one of the tables, or a ranker of the log."""
    return [
        EvaluatedRanking(ranker=_ranker_number(source.removeprefix(OF_LOG), rankers))
        if is_of_log(source)
        else tables[name]
        for name, source in named.items()
    ]


def _ranker_number(ranker: str, rankers: Sequence[str]) -> int:
    if ranker not in rankers:
        raise PosbiasError(f"The log has no ranker {ranker!r}. It has {listed(rankers)}.")
    return rankers.index(ranker)


def look_at_pages(opened: OpenLog, plan: QueryPlan, impressions: Iterable[float]) -> tuple[Pages, float]:
    """Return what page views show, and which share of them leaves a rank vacant above others.

    Where not each row tells its page view, the share is that at the rank that most of those leave that go on below it,
    by the impressions of all ranks.
    """
    if plan.schema.impression is not None and not plan.schema.aggregated:
        nameless, pages, vacant, least, most = opened.rows(page_shapes(plan), "Looking at page views")[0]
        if not nameless:
            return "known" if vacant or least < most else "whole", vacant / max(pages, 1)
    share = vacancy(impressions)
    return "unknown" if share else "whole", share


def vacancy(impressions: Iterable[float]) -> float:
    """Return which share, at the most, a rank lacks of the impressions that one below it has.

    >>> vacancy([50, 100, 100, 80])
    0.5
    """
    most, share = 0.0, 0.0
    for count in reversed(list(map(float, impressions))):
        most = max(most, count)
        share = max(share, 1 - count / most if most else 0.0)
    return share


def look_for_unseen(
    opened: OpenLog, plan: QueryPlan, ranked: Sequence[EvaluatedRanking], top: int
) -> list[float | None]:
    """Return the share of each ranking's top ranks that was never shown; None for a ranker of the log."""
    shares: list[float | None] = [None] * len(ranked)
    if any(one.table for one in ranked):
        for number, every, never in opened.rows(unseen(plan, ranked, top), "Looking for documents never shown"):
            shares[number] = float(never) / float(every) if every else None
    return shares


def _counted(harvest: Harvest, answer: Answer) -> Answer:
    """Return what was answered of buckets that the harvest has: of others no row could be counted."""
    import numpy as np

    from posbias.engines.base import filter_rows

    return filter_rows(answer, np.isin(answer["bucket"], harvest.buckets))


def note_vacant(pages: Pages, share: float) -> list[Finding]:
    """Say where page views leave a rank vacant above others, which is what an advertisement there does."""
    if share < _FEW_VACANT:
        return []
    known = pages == "known"
    nearly = "" if known else " Not all rows tell their page view (impression), so that this is told nearly."
    return [
        Finding(
            "vacant-ranks",
            "info" if known else "warning",
            f"{share:.0%} of page views leave a rank vacant above others, as where an advertisement stands: the log is "
            "judged by the order of what its pages show, and what they left out for it comes below",
            evidence={"share": share},
            remedy=f"Compare rankings with each other, which this does not touch, before one with the log.{nearly}",
        )
    ]


def judge_cover(name: str, share: float, one: EvaluatedRanking) -> list[Finding]:
    """Refuse a ranking that has few of the documents clicked, and say where some are missing."""
    percent = f"{100 * share:.1f}%"
    if share < _TOO_FEW:
        why = (
            "In replay it is known only where a ranker showed documents: give its ranking as a file."
            if not one.table
            else "Check that queries and documents have the same ids in both, and that it ranks the queries of the log."
        )
        raise PosbiasError(
            f"The ranking {name!r} has only {percent} of the clicked documents of the log, and what is not in it can "
            f"only be put last. {why}"
        )
    if share >= _FEW:
        return []
    return [
        Finding(
            "ranking-lacks-documents",
            "warning",
            f"The ranking {name!r} has {percent} of the clicked documents; the others are put last",
            evidence={"ranking": name, "share": share},
            remedy="Score every document of the log: what is missing is counted against the ranking.",
        )
    ]


def note_unseen(name: str, share: float | None, top: int, max_rank: int) -> Iterable[Finding]:
    """Warn of what no estimate sees."""
    if not share:
        return []
    return [
        Finding(
            "never-shown",
            "warning",
            f"{max(share, 0.001):.1%} of the top {top} of {name!r} was never shown to anyone for that query, at ranks "
            f"1 to {max_rank}",
            evidence={"ranking": name, "share": share, "top": top, "max_rank": max_rank},
            remedy="No estimate sees those: the ranking is judged by the order of the others. Show it to a part of the "
            "traffic to know more.",
        )
    ]


def _credits(harvest: Harvest, answer: Answer, propensity: Sequence[float], rankings: int) -> Credits:
    """Return the engine's answer as arrays by bucket and rank; first what is relevant itself, then the log's own."""
    import numpy as np

    from posbias._arrays import places

    pass

    names = ["worth", "worth_log", *(f"worth_{j}" for j in range(rankings))]
    worth = np.zeros((len(names), len(harvest.buckets), harvest.max_rank + 1))
    views = np.zeros(len(harvest.buckets))
    bucket, rank = places(answer["bucket"], harvest.buckets), answer["rank"]
    for number, name in enumerate(names):
        worth[number][bucket, rank] = answer[name]
    views[bucket[rank == 0]] = answer["views"][rank == 0]
    return Credits(worth[..., 1:], views, np.array(propensity))


@dataclass(frozen=True, eq=False)
class Credits:
    """Worth of clicks by bucket and rank.

    Attributes:
        worth: by list, bucket and rank: Σ clicks λ / ρ, each split by the part of the rank in ρ. (L, B, M)
        views: page views by bucket. (B,)
        propensity: p_k / p_1 that ρ was made with; 0 where nothing was shown. (M,)
    """

    worth: FloatArray
    views: FloatArray
    propensity: FloatArray

    def values(self, weights: FloatArray, curves: FloatArray) -> FloatArray:
        """Return Δ of every list, (..., L), for buckets counted `weights` (..., B) times and curves (..., M)."""
        shown = self.propensity > 0
        exposure = np.where(shown, curves / np.where(shown, self.propensity, 1.0), 1.0)
        sums = np.einsum("...b,lbk,...k->...l", weights, self.worth, _inverse(exposure), optimize=True)
        return np.asarray(sums / (weights @ self.views)[..., None])


def _inverse(x: FloatArray) -> FloatArray:
    """Return 1/x, and its tangent below ½: a refit may leave a rank without any click, and other ranks remain."""
    return np.where(x >= _LEAST, 1 / np.maximum(x, _LEAST), (2 - x / _LEAST) / _LEAST)


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

    pass
    pass

    curve = np.array(credits_.propensity)
    max_degrees = np.inf if fitted.jackknife_ is None else fitted.jackknife_.max_degrees
    refits = Refits.of(credits_, curve, fitted.deletions_, level, max_degrees)

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


@dataclass(frozen=True, eq=False)
class Refits:
    """Values of some lists, (L,), and those without each of the buckets, (B, L), where there are enough of these."""

    value: FloatArray
    without: FloatArray | None
    level: float
    most_degrees: float
    reason: str | None = None

    @classmethod
    def of(
        cls, credits: Credits, curve: FloatArray, refitted: FloatArray | None, level: float, most_degrees: float
    ) -> Refits:
        """Return the values with one curve, and with each of the curves that leaving out a bucket gives."""
        buckets = len(credits.views)
        value = credits.values(np.ones(buckets), curve)
        if buckets < MIN_BUCKETS:
            return cls(value, None, level, most_degrees, explain_few_buckets(buckets))
        if refitted is None or len(refitted) != buckets:
            return cls(value, None, level, most_degrees, "the curve has no refits of the same buckets: no interval")
        return cls(value, credits.values(deletion_weights(buckets), refitted), level, most_degrees)

    def ratio(self, one: int, other: int) -> Estimate:
        """Return how many times the value of another list that of one is, with its interval on the log scale."""
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.log(self.value[one]) - np.log(self.value[other])
            without = None if self.without is None else np.log(self.without[:, one]) - np.log(self.without[:, other])
        return self._interval(value, without, log=True)

    def difference(self, one: int, other: int) -> Estimate:
        """Return by how much the value of one list exceeds that of another, with its interval."""
        without = None if self.without is None else self.without[:, one] - self.without[:, other]
        return self._interval(self.value[one] - self.value[other], without, log=False)

    def of_list(self, one: int) -> Estimate:
        """Return the value of one list, with its interval on the log scale."""
        with np.errstate(divide="ignore", invalid="ignore"):
            value, without = np.log(self.value[one]), None if self.without is None else np.log(self.without[:, one])
        return self._interval(value, without, log=True)

    def _interval(self, value: float, without: FloatArray | None, *, log: bool) -> Estimate:
        """Return an interval by the jackknife, with t quantiles, as those of curves are made."""
        told = float(np.exp(value)) if log else float(value)
        if without is None or not np.isfinite(value):
            return Estimate(told, reason=self.reason)
        moved = without - value
        if not np.isfinite(moved).all():
            return Estimate(told, reason=ONE_BUCKET_REASON)
        buckets = len(moved)
        scaled = (moved * np.sqrt((buckets - 1) / buckets))[:, None]
        found = Contrasts.from_deletions(np.array([value]), scaled, self.most_degrees)
        degrees = float(found.degrees[0])
        half = float((t_quantile(found.degrees, (1 + self.level) / 2) * found.standard_error)[0])
        ends = value - half, value + half
        low, high = map(ratio_from_log, ends) if log else ends
        weak = explain_few_degrees(degrees) if degrees < FEW_DEGREES and half > 0 else None
        return Estimate(told, float(low), float(high), degrees, weak)


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, None where there is none; `reason` says why, or what makes it a weak one."""

    value: float
    low: float | None = None
    high: float | None = None
    degrees_of_freedom: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Judged:
    """One ranking, held against the rankers that were logged.

    Attributes:
        name: of the ranking.
        value: the metric of a page view, a document counting by how often it would be clicked at rank 1.
        normalised: the same for each relevant document: the value divided by all that is relevant.
        difference: the value less that of the log.
        ratio: the value in terms of that of the log.
        ratio_to_first: in terms of that of the first ranking, where this is another.
        never_shown: the share of its top ranks that was never shown; None where it is a ranker of the log.
        covered: the share of clicks on documents that it has.
    """

    name: str
    value: Estimate
    normalised: Estimate
    difference: Estimate | None = None
    ratio: Estimate | None = None
    ratio_to_first: Estimate | None = None
    never_shown: float | None = None
    covered: float | None = None

    def verdict(self, rises: bool, by: Estimate | None = None) -> str | None:
        """Return "better" or "worse" than the log, or by another ratio; None where the interval tells neither."""
        ratio = self.ratio if by is None else by
        if ratio is None or ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high:
            return None
        return "better" if (ratio.value > 1) == rises else "worse"


def _estimate_text(estimate: Estimate | None, digits: int, *, sign: bool = False) -> str:
    return "" if estimate is None else _told(estimate.value, digits, sign)


def _told(value: float, digits: int, sign: bool) -> str:
    text = f"{abs(value):,.{digits}f}"
    return f"{'−' if value < 0 else '+'}{text}" if sign else text


def _ends(estimate: Estimate | None, digits: int, *, sign: bool = False) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"{_told(estimate.low, digits, sign)} – {_told(estimate.high, digits, sign)}"


def _weak(one: Judged) -> str | None:
    told: Sequence[Estimate | None] = (one.ratio, one.difference, one.value, one.normalised)
    return next((estimate.reason for estimate in told if estimate is not None and estimate.reason), None)


def draw_evaluation(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Draw the ratio of each ranking to the log with its interval, in rows."""
    check_type("evaluation", evaluation, Evaluation)
    return draw(evaluation_chart(evaluation), ax)


def evaluation_chart(evaluation: Evaluation) -> Chart:
    """Return the chart of the ratio of each ranking to the log."""
    series = []
    for verdict, (color, marker, name) in _LOOKS.items():
        rows = {
            row: one.ratio
            for row, one in enumerate(evaluation.rankings)
            if one.ratio is not None and one.verdict(evaluation.rises) == verdict
        }
        if rows:
            value, low, high = (known(getattr(r, field) for r in rows.values()) for field in ("value", "low", "high"))
            series.append(Series(name, color, value, [*rows], low, high, marker, line="", size=6, across=True))
    values = [1.0, *(value for one in series for value in one.values)]
    return Chart(
        f"Rankings against the log, {100 * evaluation.level:g}% interval",
        number_axis(f"{evaluation.metric}, relative to the log", values),
        named_axis([one.name for one in evaluation.rankings]),
        series,
        [Rule("x", 1.0, name="as the log")],
        legend="below",
        height=1.9 + 0.3 * len(evaluation.rankings),
    )
