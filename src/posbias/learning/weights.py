"""Weight the clicks of a log by a propensity curve, so that a ranker can learn from them.

`ips_weights` makes a table with one row for each (query, document): its impressions, clicks, exposure and IPS weight.

    exposure E = Σ_k N_k p_k / p_1        weight W = Σ clicks · min(p_1 / p_k, cap)

Both are plain sums, so the tables of several days add up.

Two scans of the log suffice: the first counts impressions and clicks by segment and rank (`WeightProfile`), the second
joins each rank with its weight and sums by pair.

Reference: Joachims, Swaminathan and Schnabel: Unbiased Learning-to-Rank with Biased Feedback. WSDM 2017.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from posbias._defaults import DEFAULT_CAP
from posbias._files import WEIGHTS, atomic_write, check_replaceable, writable
from posbias._text import as_python, format_ranges, format_ranks, label, listed
from posbias._validate import as_path, boolean, names, number, one_of
from posbias.curves.curve import Curve, Position
from posbias.engines import EngineChoice, OpenLog, Spark, choose_engine, open_log
from posbias.engines.duckdb_sources import escape_glob
from posbias.engines.files import file_format, refuse_overwriting
from posbias.errors import CurveError, LogError, PosbiasError, Spelling
from posbias.estimators.base import CurveEstimator
from posbias.findings import Finding, any_error, serious, warn
from posbias.harvesting.count import check_findings, check_page_view_ids, check_usable
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.page_checks import find_repeats
from posbias.harvesting.row_checks import (
    find_click_defects,
    find_rounded_ids,
    refuse_rounded_ids,
    sampling_interval,
    small_sample,
)
from posbias.harvesting.tables import PositionCounts
from posbias.judging.compare import fit_harvest
from posbias.logs.click_log import ClickLog, Segment
from posbias.logs.schema import (
    ANY_RANKER,
    INTEGERS,
    NATURAL,
    Columns,
    Schema,
    check_count_sums,
    check_id_types,
    require_column,
)
from posbias.progress import Progress, silent
from posbias.sql import weights as weight_sql
from posbias.sql.plan import QueryPlan
from posbias.sql.weights import (
    COUNTS,
    EXPOSURE_SHOWN,
    UNUSABLE,
    RankWeight,
    profile,
    queries_in_common,
    shown_candidates,
    unreadable_candidates,
    varying_columns,
)

# What to do with ranks beyond the last rank of the curve.
Beyond = Literal["refuse", "clip", "extrapolate"]
BEYOND: tuple[str, ...] = get_args(Beyond)
_BEYOND_CURVE = "beyond the"
_NOT_GIVEN = "no propensity was given"
# The deepest rank of plain propensities.
_DEEPEST = 100_000
# Segments that a message names.
_MAX_NAMED_SEGMENTS = 3
# The largest log p of a curve that rises beyond its last rank, which keeps it a finite number.
_LARGEST_LOG_PROPENSITY = 100.0
# Far more than any page has ranks in any number of segments; a column of ids has more.
_MAX_CELLS = 200_000
# With fewer page views or clicks for each query, IPS was mostly worse than no correction (docs/learning.md).
MIN_VIEWS_PER_QUERY, MIN_CLICKS_PER_QUERY = 4, 4
# A cap that removes at least this share of the weight is reported.
_MUCH_CAPPED = 0.25
# Candidates that list a smaller share of the documents shown probably have other ids.
_LEAST_LISTED = 0.5
# A log with more rankers is not compared with those of the curve.
_MAX_RANKERS = 1000
_LARGEST_CAP = 10**9
_FRACTIONS = ("DOUBLE", "FLOAT", "REAL", "DECIMAL")
# Above this many rows, queries are counted approximately, and kept columns are checked in a sample of about this size.
_MAX_EXACT_ROWS = 5_000_000


def ips_weights(
    log: ClickLog,
    estimate: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    cap: float | None = DEFAULT_CAP,
    beyond: Beyond = "refuse",
    rows: bool = False,
    keep: str | Sequence[str] = (),
    candidates: Any = None,
    overwrite: bool = False,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    force: bool = False,
) -> Weights:
    """Weight the clicks of a log by inverse propensities, as training data for a ranker.

    The table has one row for each (query, document) shown, with `impressions`, `clicks`, `exposure` = Σ_k N_k p_k / p_1
    (how often it was examined, counted in views at rank 1) and the IPS label `weight` = Σ clicks · min(p_1 / p_k, cap).
    These are plain sums: to join the tables of several days, add the rows of a pair. `learner_form` scales them for a
    learner. Rows are in no particular order. The metadata of the table, or of the file, has `posbias.effective_clicks`
    and `posbias.scale`.

    Arguments:
        log (ClickLog): the click log.
        estimate (Curve, estimator, Harvest, path or propensities): the curve, a fitted estimator, a harvest, or a file
            with a curve or harvest. If it has segments, each row takes the curve of its segment. Or plain propensities
            from rank 1 on, as a list or array, or by rank, as a dict or a pandas Series.
        output (path, default None): the Parquet file to write, in bounded memory. Without it the table is kept in
            memory, as `table`.
        cap (float or None, default 20): the largest weight of a click, before scaling. None sets no limit.
        beyond ("refuse", "clip" or "extrapolate", default "refuse"): what to do with ranks beyond M, for which the
            curve has no number: raise an error, use the last rank, or extrapolate the curve.
        rows (bool, default False): keep every row of the log instead, and add the column `weight`.
        keep (str or list of str, default none): columns of the log or of the candidates to keep, such as features.
        candidates (table or path, default None): documents that could have been shown, with the log's columns of query
            and document. The table then has those never shown too, and the exposure counts all page views of the query:
            Σ_k N_k p_k + (N_q − N) p_last, where N_q are the page views of the query and no p is below 1 / cap. The
            column `exposure_shown` has its first part, of the page views that showed the document.
        overwrite (bool, default False): replace an existing file that is not a table of weights.
        engine (str or DuckDB, default "duckdb"): "duckdb", or `posbias.DuckDB(...)` with its settings.
        progress (callable, default none): called with the present step and the share that is done.
        force (bool, default False): continue where the log is damaged, or where the candidates have fewer than half of
            the documents shown.

    Returns:
        `Weights`, with the table or the file written, and findings.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=300, max_rank=5)))
        >>> curve = posbias.CrossFit().fit(posbias.harvest(log, max_rank=5)).curve()
        >>> weights = posbias.ips_weights(log, curve)
        >>> weights.columns
        ('query_id', 'doc_id', 'impressions', 'clicks', 'exposure', 'weight')
        >>> weights.rows == len(weights.table), weights.clicks == sum(weights.table["clicks"].to_pylist())
        (True, True)

    Reference: Joachims, Swaminathan and Schnabel, WSDM 2017.
    """
    weights = weigh(
        log,
        estimate,
        output,
        Options(cap, beyond, rows, names("keep", keep, LogError)),
        candidates=candidates,
        overwrite=overwrite,
        engine=engine,
        progress=progress,
        force=force,
    )
    warn(str(finding) for finding in serious(weights.findings))
    return weights


@dataclass(frozen=True)
class Options:
    """The options of `ips_weights` that shape the table."""

    cap: float | None = DEFAULT_CAP
    beyond: Beyond = "refuse"
    rows: bool = False
    keep: tuple[str, ...] = ()
    # Given if the kept columns are features: it rejects those that cannot be.
    check_features: Callable[[Schema], None] | None = None
    # Whether exposures are the same to the last digit in any order of rows.
    exact_sums: bool = False


def weigh(
    log: ClickLog,
    estimate: Any,
    output: str | os.PathLike[str] | None,
    options: Options,
    *,
    candidates: Any = None,
    overwrite: bool = False,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    force: bool = False,
) -> Weights:
    """Weight the clicks of a log as `ips_weights` does, and leave it to the caller to warn of the findings."""
    _check_arguments(options, candidates, getattr(log, "duplicates", "keep"))
    if output is not None:
        refuse_overwriting(as_path("output", output), [*getattr(log, "sources", []), estimate, candidates])
    curve = curve_of(estimate)
    extra_tables = {} if candidates is None else {"candidates": candidates}
    with _draft_of(output, overwrite=overwrite) as draft:
        if isinstance(log, ClickLog) and isinstance(choose_engine(log, engine), Spark):
            raise PosbiasError(
                "Spark cannot make weights; DuckDB can, for any number of rows in bounded memory. Export the log to "
                "Parquet, or join the curve to the log in Spark: clicks * least(p_1 / p_k, cap)."
            )
        with open_log(
            log, engine, progress, extra_tables=extra_tables, outputs=[] if draft is None else [draft]
        ) as opened:
            weights = _make_weights(opened, curve, options, draft, force=force)
    return replace(weights, output=None if output is None else os.fspath(output))


@dataclass(frozen=True)
class Weights:
    """The weighted clicks of a log, in memory or in a file.

    Made by `posbias.ips_weights`.

    Attributes:
        rows (int): rows of the table.
        queries (int): queries of the log; approximate above five million rows.
        page_views, clicks (int): page views and clicks of the log.
        cap (float or None): the largest weight of a click, None for no limit.
        scale (float): the mean weight of a clicked row, by which learners divide all weights.
        capped_share (float): the share of the weight that the cap removed.
        effective_clicks (float): the effective sample size of the weighted clicks, (Σ w)² / Σ w².
        columns (tuple of str): columns of the table.
        findings (tuple of Finding): what was found in the log, the curve and the candidates.
        output (str or None): the file that was written.
        table (pyarrow.Table or None): the table, if no file was written.
    """

    rows: int
    queries: int
    page_views: int
    clicks: int
    cap: float | None
    scale: float
    capped_share: float
    effective_clicks: float
    columns: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    output: str | None = None
    table: Any = field(default=None, repr=False, compare=False)

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return everything but the table, as `--json` prints it."""
        values = {name: value for name, value in vars(self).items() if name not in ("findings", "table")}
        return values | {
            "columns": list(self.columns),
            "findings": [finding.to_dict(spell) for finding in self.findings],
        }

    def to_text(self) -> str:
        """Return a summary in one sentence."""
        capped = "" if self.cap is None else f"; the cap of {self.cap:g} removed {self.capped_share:.1%} of the weight"
        return (
            f"{self.rows:,} rows of {self.queries:,} queries, {self.page_views:,} page views and {self.clicks:,} "
            f"clicks (effective sample size {self.effective_clicks:,.0f} clicks){capped}."
        )

    def to_pandas(self) -> Any:
        """Return the table as a pandas frame."""
        if self.table is None:
            raise PosbiasError(f"The table is not in memory: it was written to {self.output!r}. Read that file.")
        return self.table.to_pandas()

    def __str__(self) -> str:
        return self.to_text()


def _check_arguments(options: Options, candidates: Any, duplicates: str) -> None:
    """Reject arguments that are invalid or do not go together."""
    cap, rows = options.cap, options.rows
    if cap is not None and not 1 <= (number(cap) or 0) <= _LARGEST_CAP:
        raise PosbiasError(
            f"cap must be a number of 1 or more, such as 20, and at most {_LARGEST_CAP:,}, or None for no limit, not "
            f"{cap!r}."
        )
    one_of("beyond", options.beyond, BEYOND)
    if rows and options.keep:
        raise PosbiasError("rows=True keeps all columns of the log. Leave keep out.")
    if rows and candidates is not None:
        raise PosbiasError(
            "rows=True gives a row for each row of the log, and candidates have none. Leave one of them out."
        )
    if rows and duplicates == "drop":
        raise PosbiasError("rows=True keeps every row, duplicates too. Leave duplicates='drop' out, or rows.")


def curve_of(estimate: Any) -> Curve:
    """Return the curve of a curve, a fitted estimator, a harvest, a file with a curve or harvest, or propensities."""
    if isinstance(estimate, str | os.PathLike):
        from posbias.curves.files import load as load_curve
        from posbias.harvesting.files import is_harvest
        from posbias.harvesting.files import load as load_harvest

        estimate = load_harvest(estimate) if is_harvest(estimate) else load_curve(estimate)
    if isinstance(estimate, Harvest):
        estimate = fit_harvest(estimate)
    if isinstance(estimate, CurveEstimator):
        estimate = estimate.curve()
    if isinstance(estimate, Curve):
        return estimate
    if isinstance(estimate, Mapping | Sequence) or hasattr(estimate, "to_numpy") or np.ndim(estimate) > 0:
        return _given_curve(estimate)
    raise CurveError(
        "Expected an estimate: a curve, a fitted estimator, a harvest, a file with one, or propensities from rank 1 "
        f"on, not a {type(estimate).__name__}."
    )


def _given_curve(values: Any) -> Curve:
    """Return a curve of plain propensities: from rank 1 on, or by rank in a mapping or a pandas Series.

    >>> _given_curve([0.8, 0.4]).propensity.tolist(), _given_curve({1: 1.0, 3: 0.2}).propensity.tolist()
    ([1.0, 0.5], [1.0, nan, 0.2])
    """
    by_rank = _by_rank(values)
    known = {rank: number(value) for rank, value in by_rank.items()}
    wrong = [rank for rank, p in known.items() if p is None or p < 0]
    if wrong or not known.get(1):
        rank = wrong[0] if wrong else 1
        found = f"found {by_rank[rank]!r} at rank {rank}" if rank in by_rank else "rank 1 has none"
        raise CurveError(
            f"Propensities must be finite numbers of 0 or more at ranks 1, 2, 3 and so on, above 0 at rank 1; {found}."
        )
    last, first = max(known), known[1] or 1.0
    if not all(math.isfinite((p or 0.0) / first) for p in known.values()):
        raise CurveError(f"The propensity at rank 1, {first:g}, is too small beside the others.")
    if first > 1:
        raise CurveError(
            f"The propensity at rank 1 is {first:g}. Propensities are probabilities, or relative to rank 1, so it is "
            "at most 1. Divide all of them by it."
        )
    positions = tuple(
        Position(k, None if known.get(k) is None else (known[k] or 0.0) / first, None, None, 0, 0, _NOT_GIVEN)
        for k in range(1, last + 1)
    )
    return Curve("given", last, None, None, None, positions, {})


def _by_rank(values: Any) -> dict[int, Any]:
    """Return plain propensities by rank; reject ranks that are not whole numbers, or occur twice."""
    index = getattr(values, "index", None)
    if isinstance(values, Mapping):
        items = list(values.items())
    elif index is not None and not callable(index) and list(index) != list(range(len(index))):
        items = list(zip(index, values, strict=True))
    else:
        items = list(enumerate(values.to_pylist() if hasattr(values, "to_pylist") else values, start=1))
    if not items:
        raise CurveError("The estimate is empty. Expected propensities from rank 1 on, such as [1, 0.5, 0.3].")
    by_rank: dict[int, Any] = {}
    for key, value in items:
        # Keys of JSON are texts.
        rank = number(int(key) if isinstance(key, str) and key.isdecimal() else key) or 0
        if not 1 <= rank == int(rank) <= _DEEPEST:
            raise CurveError(f"Ranks must be whole numbers from 1 to {_DEEPEST:,}; found {value!r} at rank {key!r}.")
        if rank in by_rank:
            raise CurveError(f"Rank {rank:g} has more than one propensity. Give one for each rank.")
        by_rank[int(rank)] = value
    return by_rank


@contextmanager
def _draft_of(output: str | os.PathLike[str] | None, *, overwrite: bool) -> Iterator[str | None]:
    """Yield a temporary file that replaces `output` once it is complete; None if there is no output."""
    if output is None:
        yield None
        return
    name = as_path("output", output)
    writable(name)
    if not boolean("overwrite", overwrite):
        check_replaceable(name, WEIGHTS, {"overwrite": True})
    if file_format(name) != "parquet":
        raise PosbiasError(
            f"Weights are written as Parquet: the name of the file must end with .parquet, not {name!r}."
        )
    with atomic_write(name) as draft:
        yield draft


def _make_weights(opened: OpenLog, curve: Curve, options: Options, draft: str | None, *, force: bool) -> Weights:
    """Count the log, weight its ranks, and write the table or keep it in memory."""
    # A window limits where a document is compared with itself, which weights never do.
    schema = replace(opened.schema, window=None)
    candidates = opened.extra_tables.get("candidates")
    _check_segments(schema, curve)
    if options.check_features is not None:
        options.check_features(schema)
    _check_columns(schema, candidates, options)
    in_log = tuple(name for name in options.keep if name in schema.types)
    plan = QueryPlan(schema, opened.dialect, (), curve.max_rank, curve.by, in_log)
    opened.cache_text([name for name in schema.types if name != NATURAL] if options.rows else [*curve.by, *in_log])
    profile = _take_profile(opened, plan, force=force)
    propensities = relative_propensities(curve, profile.ranks, options.beyond)
    if options.exact_sums:
        propensities = _round_for_exact_sums(propensities, profile.impressions)
    rank_weights = _rank_weights(propensities, curve, options.cap, candidates=candidates is not None)
    _check_uncapped(rank_weights, profile, options.cap)
    # An infinite weight that passed the check belongs to a rank without clicks.
    rank_weights = [each if math.isfinite(each.weight) else replace(each, weight=0.0) for each in rank_weights]
    candidate_findings = []
    if candidates is not None:
        _check_candidates(opened, plan, candidates)
        candidate_findings = _compare_candidates(opened, plan, candidates, profile.rows, force=force)
    weight_of = {(each.segment, each.position): each.weight for each in rank_weights}
    total = profile.sum_over_clicks(lambda segment, rank: weight_of[segment, rank])
    if options.rows:
        scale = total / profile.clicked
        sql = weight_sql.rows(plan, rank_weights)
    else:
        [(clicked,)] = opened.rows(weight_sql.clicked_pairs(plan), "Counting clicked pairs")
        scale = total / clicked
        sql = weight_sql.pairs(plan, rank_weights, candidates, options.keep)
    squares = profile.sum_over_clicks(lambda segment, rank: weight_of[segment, rank] ** 2)
    effective_clicks = total**2 / squares
    metadata = {"posbias.effective_clicks": f"{effective_clicks!r}", "posbias.scale": f"{scale!r}"}
    table = None
    if draft is None:
        table = opened.arrow(sql, "Weighting").replace_schema_metadata(metadata)
    else:
        opened.write(sql, draft, "Weighting", metadata)
    size = _TableSize.of(opened, plan, table, draft)
    zero = [counts for counts in profile.counts if counts.seen and not propensities[counts.segment][counts.position]]
    # With candidates and a cap, no p is below 1 / cap.
    zero = [] if candidates is not None and options.cap is not None else zero
    uncapped = profile.sum_over_clicks(lambda segment, rank: _inverse(propensities[segment][rank]))
    capped = 1 - total / uncapped
    findings = [
        *opened.findings,
        *profile.findings,
        *_find_other_rankers(opened, curve),
        *_find_other_depth(curve, profile.ranks),
        *_check_kept_columns(opened, plan, candidates, options.keep, profile.rows),
        *candidate_findings,
        *find_zero_propensity(zero, profile.rows, options.cap, by=curve.by),
        # Any cap removes all of an infinite weight, so the share says nothing about this cap.
        *find_capped(0.0 if any(counts.clicks for counts in zero) else capped, options.cap),
        *find_few_clicks(size.queries, profile.page_views, profile.clicks),
    ]
    return Weights(
        rows=size.rows,
        queries=size.queries,
        page_views=profile.page_views,
        clicks=profile.clicks,
        cap=options.cap,
        scale=scale,
        capped_share=capped,
        effective_clicks=effective_clicks,
        columns=size.columns,
        findings=tuple(findings),
        table=table,
    )


def _find_other_rankers(opened: OpenLog, curve: Curve) -> list[Finding]:
    """Report a curve that was estimated from other rankers than those of the log: it may be of another system."""
    schema, d = opened.schema, opened.dialect
    own = {name for name in curve.page_views if name != ANY_RANKER}
    if schema.natural or not own:
        return []
    ranker = d.as_text(d.quote(schema.ranker))
    rankers = [row[0] for row in opened.rows(f"SELECT DISTINCT {ranker} FROM log LIMIT {_MAX_RANKERS}")]
    if own & {*rankers} or len(rankers) == _MAX_RANKERS:
        return []
    return [
        Finding(
            "other-rankers",
            "warning",
            f"The curve was estimated from the rankers {listed(sorted(own), most=3)}, and the log has "
            f"{listed(sorted(filter(None, rankers)), most=3)}: it may be the curve of another system",
            remedy="Position bias depends on the page. Estimate the curve from this log, or from one of the same page.",
        )
    ]


def _find_other_depth(curve: Curve, shown: Mapping[Segment, Iterable[int]]) -> list[Finding]:
    """Report a curve that was estimated from results at ranks that the log never shows."""
    deepest = max((rank for ranks in shown.values() for rank in ranks), default=curve.max_rank)
    seen = max((each.position for each in curve.positions if each.impressions), default=0)
    if seen <= deepest:
        return []
    return [
        Finding(
            "other-depth",
            "warning",
            f"The curve was estimated from results down to rank {seen}, and the log has none below rank {deepest}: it "
            "may be the curve of another system",
            remedy="Position bias depends on the page. Estimate the curve from this log, or from one of the same page.",
        )
    ]


# ---- Checks of columns


def _check_segments(schema: Schema, curve: Curve) -> None:
    """Reject an estimate whose segments are columns that the log does not have."""
    missing = [name for name in curve.by if name not in schema.types]
    if missing:
        raise CurveError(
            f"The estimate has a curve for each {listed(curve.by)}, but the log has no column {listed(missing)}. "
            f"Columns found: {listed(schema.types)}. Rename the column with a query (sql), or give an estimate without "
            "segments."
        )


def ids_and_outcomes(schema: Schema) -> list[str]:
    """Return the columns of a log that are ids, or say what happened when a document was shown."""
    return [name for role, name in schema.roles.items() if role not in ("window", "time")]


def refuse_as_features(features: Sequence[str], columns: Iterable[str]) -> None:
    """Reject features that are among the columns of ids and outcomes."""
    wrong = [name for name in features if name in {*columns}]
    if wrong:
        raise LogError(
            f"Ids and outcomes of the log cannot be features, found {listed(wrong)}: they are not known before a "
            "document is shown, or say nothing about other documents. Leave them out (features)."
        )


def _check_columns(schema: Schema, candidates: Columns | None, options: Options) -> None:
    """Reject columns that do not exist, or whose names the table needs itself."""
    keep, argument = options.keep, "keep" if options.check_features is None else "features"
    if candidates is not None:
        missing = [name for name in (schema.query, schema.doc) if name not in candidates.types]
        if missing:
            raise LogError(
                f"The candidates have no column {listed(missing)}. Their columns of query and document must have the "
                f"same names as in the log. Columns found: {listed(candidates.types)}."
            )
        for name in (schema.query, schema.doc):
            check_id_types(name, schema.types[name], candidates.types[name], "the candidates")
    known = {**(candidates.types if candidates else {}), **schema.types}
    for name in keep:
        require_column(name, known, argument=argument)
        if candidates is not None and name in schema.types and name in candidates.types:
            _check_kinds(name, schema.types[name], candidates.types[name], argument)
    taken = [*schema.types] if options.rows else [schema.query, schema.doc, *keep]
    added = ("weight",) if options.rows else (*COUNTS, EXPOSURE_SHOWN)
    clashes = [name for name in taken if name.lower() in added]
    if clashes:
        raise LogError(
            f"The column {clashes[0]!r} has the name of a column that posbias adds: {', '.join(added)}. Rename it with "
            "a query (sql), or leave it out."
        )
    repeated = [name for name in keep if name in (schema.query, schema.doc)]
    if repeated:
        raise LogError(f"Column {repeated[0]!r} is always kept. Leave it out of {argument}.")


def _check_kinds(name: str, in_log: str, in_candidates: str, argument: str) -> None:
    """Reject a kept column with different kinds of values in the log and in the candidates."""
    if _kind(in_log) != _kind(in_candidates):
        raise LogError(
            f"Column {name!r} of {argument} is {in_log} in the log and {in_candidates} in the candidates, and is kept "
            "from both. Give it one type in both, or leave it out of one of them."
        )


def _kind(type_: str) -> str:
    """Return the kind of a type: numbers of all sizes mix, and so do times."""
    if type_ in INTEGERS or type_.startswith(_FRACTIONS):
        return "number"
    return "time" if type_ == "DATE" or type_.startswith("TIMESTAMP") else type_


# ---- Counts of the log


def _take_profile(opened: OpenLog, plan: QueryPlan, *, force: bool) -> WeightProfile:
    """Count all rows by segment and rank; reject unusable rows and damaged logs."""
    if plan.schema.drop_duplicates:
        check_page_view_ids(opened, plan)
    answer = opened.table_up_to(profile(plan), _MAX_CELLS, "Counting ranks")
    if answer is None:
        raise LogError(
            f"Column {plan.schema.position!r} has more than {_MAX_CELLS:,} different values. Positions must be ranks: "
            "1, 2, 3 and so on. Name the right column (position)."
        )
    keys = list(zip(*(answer[name] for name in plan.segments), strict=True)) if plan.segments else None
    columns = [answer[name].tolist() for name in ("position", "row_count", "impressions", "clicks", "clicked", "seen")]
    counts = [RankCounts(() if keys is None else keys[i], *row) for i, row in enumerate(zip(*columns, strict=True))]
    rows = sum(each.rows for each in counts)
    unusable = sum(each.rows for each in counts if each.position == UNUSABLE)
    check_usable(opened, plan, rows, unusable)
    check_usable(opened, plan, rows, int(answer["nameless"].sum()))
    check_count_sums(plan.schema, sum(each.impressions for each in counts))
    # Segments in order, those without a value first.
    counts.sort(key=lambda each: ([(value is not None, value or "") for value in each.segment], each.position))
    profile_ = WeightProfile(tuple(counts), ())
    findings = [*find_rounded_ids(opened), *find_click_defects(profile_.positions)]
    findings += [*find_repeats(opened, plan, small_sample(opened, rows))]
    check_findings(findings, force=force)
    if not profile_.clicks:
        raise LogError("There is no click in the log: nothing can be learned from it.")
    return replace(profile_, findings=tuple(findings))


@dataclass(frozen=True)
class WeightProfile:
    """Impressions and clicks of a log by segment and rank, with findings about the log."""

    counts: tuple[RankCounts, ...]
    findings: tuple[Finding, ...]

    @property
    def rows(self) -> int:
        """Rows of the log."""
        return sum(each.rows for each in self.counts)

    @property
    def impressions(self) -> int:
        """Impressions of the log."""
        return sum(each.impressions for each in self.counts)

    @property
    def clicks(self) -> int:
        """Clicks of the log."""
        return sum(each.clicks for each in self.counts)

    @property
    def clicked(self) -> int:
        """Rows with a click."""
        return sum(each.clicked for each in self.counts)

    @property
    def ranks(self) -> dict[Segment, list[int]]:
        """The ranks with impressions, by segment."""
        ranks: dict[Segment, list[int]] = {}
        for each in self.counts:
            if each.seen:
                ranks.setdefault(each.segment, []).append(each.position)
        return ranks

    @property
    def positions(self) -> list[PositionCounts]:
        """Impressions and clicks at each rank, over all segments."""
        totals: dict[int, PositionCounts] = {}
        for each in self.counts:
            before = totals.get(each.position, PositionCounts(each.position, 0, 0))
            sums = before.impressions + each.impressions, before.clicks + each.clicks
            totals[each.position] = PositionCounts(each.position, *sums)
        return [totals[rank] for rank in sorted(totals) if totals[rank].impressions]

    @property
    def page_views(self) -> int:
        """Page views: the impressions of the busiest rank, which is the first one if pages are complete."""
        return max((shown.impressions for shown in self.positions), default=0)

    def sum_over_clicks(self, value: Callable[[Segment, int], float]) -> float:
        """Return the sum over all clicks of a value of their segment and rank."""
        return sum(each.clicks * value(each.segment, each.position) for each in self.counts if each.clicks)


class RankCounts(NamedTuple):
    """Counts at one rank of one segment; `clicked` and `seen` are the rows with clicks and with impressions."""

    segment: Segment
    position: int
    rows: int
    impressions: int
    clicks: int
    clicked: int
    seen: int


# ---- Propensities of the ranks shown


# ---- Propensities of the ranks shown


def relative_propensities(
    estimate: Any, shown: Mapping[Segment, Iterable[int]], beyond: Beyond = "refuse"
) -> dict[Segment, dict[int, float]]:
    """Return p_k / p_1 at the ranks shown, by segment: () where the estimate has no segments.

    A rank without a number raises an error with its reason. So does a rank beyond M, unless it takes the last number of
    the curve ("clip"), or the curve is continued from its last rank by the power of the rank that fits it best
    ("extrapolate").

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=500, max_rank=3)))
        >>> fitted = posbias.AllPairs().fit(posbias.harvest(log, max_rank=3))
        >>> propensities = relative_propensities(fitted, {(): [1, 2, 5]}, beyond="clip")
        >>> propensities[()][1], bool(propensities[()][5] == fitted.propensity_[2])
        (1.0, True)
    """
    one_of("beyond", beyond, BEYOND, CurveError)
    curve = curve_of(estimate)
    parts: Mapping[Segment, Curve] = curve.segments if curve.by else {(): curve}
    unknown = [key for key in shown if key not in parts]
    if unknown:
        raise CurveError(
            f"The estimate has a curve for each {', '.join(map(repr, curve.by))}, but none for "
            f"{_format_segments(unknown)}, which the log has. Include these rows in the estimate, leave them out of "
            "the log (sql), or give an estimate without segments."
        )
    propensities: dict[Segment, dict[int, float]] = {}
    missing: dict[str, list[Segment]] = {}
    for key, ranks in shown.items():
        values, reasons = _propensities_of(parts[key], sorted({*ranks}), beyond)
        propensities[key] = values
        for reason in reasons:
            missing.setdefault(reason, []).append(key)
    if missing:
        deeper = any(f": {_BEYOND_CURVE}" in reason for reason in missing)
        raise CurveError(_missing_ranks_message(curve, missing, deeper), {"beyond": "clip"} if deeper else None)
    return propensities


def _round_for_exact_sums(
    propensities: Mapping[Segment, Mapping[int, float]], impressions: int
) -> dict[Segment, dict[int, float]]:
    """Round propensities to multiples of a unit, so that floats hold every sum of them over impressions exactly.

    A float holds all multiples of the unit up to 2^53 units, and no sum is larger.
    """
    largest = max(p for values in propensities.values() for p in values.values())
    unit = 2.0 ** (math.frexp(largest * impressions)[1] - 52)
    return {
        segment: {rank: unit * (max(round(p / unit), 1) if p > 0 else 0) for rank, p in values.items()}
        for segment, values in propensities.items()
    }


def _format_segments(keys: list[Segment]) -> str:
    rest = f" and {len(keys) - _MAX_NAMED_SEGMENTS:,} more" if len(keys) > _MAX_NAMED_SEGMENTS else ""
    return "; ".join(label(key) for key in keys[:_MAX_NAMED_SEGMENTS]) + rest


def _propensities_of(curve: Curve, ranks: list[int], beyond: Beyond) -> tuple[dict[int, float], list[str]]:
    """Return the propensities of ranks, and why other ranks have none."""
    known = {p.position: p.propensity for p in curve.positions if p.propensity is not None}
    reasons = {p.position: p.reason for p in curve.positions if p.propensity is None}
    values = {rank: known[rank] for rank in ranks if rank in known}
    missing: dict[str, list[int]] = {}
    for rank in (rank for rank in ranks if rank <= curve.max_rank and rank not in known):
        reason = reasons.get(rank, "the log of the estimate has no results there")
        missing.setdefault(reason or "not identified by that data", []).append(rank)
    deeper = [rank for rank in ranks if rank > curve.max_rank]
    if deeper and beyond == "refuse":
        missing.setdefault(f"{_BEYOND_CURVE} {curve.max_rank} ranks of the curve", []).extend(deeper)
    elif deeper:
        last = last_rank(curve)
        power = _power(known) if beyond == "extrapolate" else 0.0
        start = known.get(last, 1.0)
        # The bound keeps a rising curve finite far beyond its end.
        values |= {
            rank: start * math.exp(min(power * math.log(rank / last), _LARGEST_LOG_PROPENSITY)) for rank in deeper
        }
    return values, [f"{'rank' if len(r) == 1 else 'ranks'} {_format_ranks(r)}: {why}" for why, r in missing.items()]


def last_rank(curve: Curve) -> int:
    """Return the last rank with a number."""
    return max((p.position for p in curve.positions if p.propensity is not None), default=1)


def _power(known: Mapping[int, float]) -> float:
    """Return the power of the rank that fits a curve best, by least squares of log p on log k through rank 1."""
    points = [(rank, p) for rank, p in known.items() if rank > 1 and p > 0]
    if not points:
        raise CurveError("The curve cannot be extrapolated: no rank but the first has a number above 0.")
    x, y = (np.log(np.array(values, dtype=np.float64)) for values in zip(*points, strict=True))
    return float((x * y).sum() / (x * x).sum())


def _format_ranks(ranks: list[int]) -> str:
    return format_ranges(ranks) if len(ranks) < 20 else f"{min(ranks):,} to {max(ranks):,}"


def _missing_ranks_message(curve: Curve, missing: Mapping[str, list[Segment]], deeper: bool) -> str:
    lines = [f"{reason}{f' (in {_format_segments(keys)})' if curve.by else ''}." for reason, keys in missing.items()]
    choices = (
        " Ranks beyond the curve can also take its last number (clip), or the curve can be continued (extrapolate)."
        if deeper
        else ""
    )
    only_deeper = deeper and len(missing) == 1
    remedy = "Estimate the curve to a lower rank (max_rank)" if only_deeper else "Estimate from more data"
    return (
        f"The log has results at ranks for which the estimate has no number: {' '.join(lines)} {remedy}, or leave rows "
        f"of these ranks out (sql).{choices}"
    )


def _rank_weights(
    propensities: Mapping[Segment, Mapping[int, float]], curve: Curve, cap: float | None, *, candidates: bool
) -> list[RankWeight]:
    """Return the exposure of an impression and the weight of a click at each rank shown, by segment."""
    floor = 0.0 if cap is None else 1 / cap
    rank_weights = []
    for segment, values in propensities.items():
        part = curve.segments[segment] if curve.by else curve
        # A curve that is continued ends at the last rank of the log.
        deepest = max(values, default=0)
        last = values[deepest] if deepest > part.max_rank else float(part.propensity[last_rank(part) - 1])
        last = max(last, floor)
        for rank, p in values.items():
            rank_weights.append(
                RankWeight(segment, rank, max(p, floor) if candidates else p, _inverse(max(p, floor)), last)
            )
    return rank_weights


def _inverse(p: float) -> float:
    return 1 / p if p > 0 else math.inf


def _check_uncapped(rank_weights: Sequence[RankWeight], profile: WeightProfile, cap: float | None) -> None:
    """Reject clicks at a rank with propensity 0, whose weight would be infinite without a cap."""
    if cap is not None:
        return
    zero = {(each.segment, each.position) for each in rank_weights if not math.isfinite(each.weight)}
    clicked = sorted(
        {each.position for each in profile.counts if each.clicks and (each.segment, each.position) in zero}
    )
    if clicked:
        raise CurveError(
            f"The estimated propensity of rank {clicked[0]} is 0, but the log has clicks there, whose weight would be "
            "infinite. Set a cap, or estimate from more data.",
        )


# ---- Candidates


def _check_candidates(opened: OpenLog, plan: QueryPlan, candidates: Columns) -> None:
    """Reject candidates without an id, or with ids that are not written as in the log."""
    ids = {name: candidates.types[name] for name in (plan.schema.query, plan.schema.doc)}
    refuse_rounded_ids(opened, "candidates", ids, "the candidates")
    [(rows, missing)] = opened.rows(unreadable_candidates(plan, candidates), "Checking candidates")
    if not rows:
        raise LogError("The candidates are empty: the table has columns but no rows.")
    if missing:
        types = f"{plan.schema.types[plan.schema.query]} and {plan.schema.types[plan.schema.doc]}"
        raise LogError(
            f"{missing:,} of {rows:,} rows of the candidates have no value in {plan.schema.query!r} or "
            f"{plan.schema.doc!r}, or one that is not written as an id of the log, where the types are {types} (007 is "
            "not 7). Leave such rows out, or write ids the same way in both."
        )


def _compare_candidates(
    opened: OpenLog, plan: QueryPlan, candidates: Columns, rows: int, *, force: bool
) -> list[Finding]:
    """Find queries and documents that only the log or only the candidates have; documents in a sample of queries."""
    [(shown, listed, common)] = opened.rows(queries_in_common(plan, candidates), "Comparing queries")
    if not common:
        raise LogError(
            f"None of the {listed:,} queries of the candidates is among the {shown:,} queries of the log. Check that "
            "queries have the same ids in both."
        )
    sql = shown_candidates(plan, candidates, _sample_condition(plan, rows))
    [documents] = opened.rows(sql, "Comparing documents")
    unlisted = find_unlisted_documents(*documents)
    if any_error(unlisted) and not force:
        raise LogError(" ".join(map(str, unlisted)), {"force": True})
    return [*find_unmatched_queries(shown, listed, common), *unlisted]


def _sample_condition(plan: QueryPlan, rows: int) -> str:
    """Return an SQL condition that selects all rows of a sample of the queries, or all rows of a smaller log."""
    every = sampling_interval(rows, _MAX_EXACT_ROWS)
    return f"{plan.dialect.hash('query')} & {every - 1} = 0" if every > 1 else "TRUE"


def find_unmatched_queries(shown: int, listed: int, common: int) -> list[Finding]:
    """Find queries of the candidates that the log does not have, and queries of the log without candidates."""
    findings = []
    if listed > common:
        findings.append(
            Finding(
                "candidate-queries-not-in-log",
                "info",
                "{count} of {queries} queries of the candidates are not in the log; they are left out",
                listed - common,
                evidence={"queries": listed},
            )
        )
    if shown > common:
        findings.append(
            Finding(
                "queries-without-candidates",
                "warning",
                "{count} of {queries} queries of the log have no candidates; the table has only their documents that "
                "were shown",
                shown - common,
                evidence={"queries": shown},
                remedy="Give the candidates of all queries, or leave these queries out.",
            )
        )
    return findings


def find_unlisted_documents(shown: int, listed: int) -> list[Finding]:
    """Find documents that were shown but are not among the candidates: an error if these are more than half."""
    if listed == shown:
        return []
    return [
        Finding(
            "shown-documents-not-in-candidates",
            "error" if listed < _LEAST_LISTED * shown else "warning",
            "{count} of {documents} documents shown are not among the candidates of their query; columns that only the "
            "candidates have are missing for them",
            shown - listed,
            evidence={"documents": shown},
            remedy="Check that documents have the same ids in both, and give all documents that could have been shown.",
        )
    ]


@dataclass(frozen=True)
class _TableSize:
    """Rows, queries and columns of the table that was made."""

    rows: int
    queries: int
    columns: tuple[str, ...]

    @classmethod
    def of(cls, opened: OpenLog, plan: QueryPlan, table: Any, draft: str | None) -> _TableSize:
        query = plan.schema.query
        if table is not None:
            import pyarrow.compute as pc

            return cls(table.num_rows, pc.count_distinct(table[query]).as_py(), tuple(table.column_names))
        d = plan.dialect
        source = f"read_parquet({d.literal(escape_glob(draft or ''))})"
        columns = tuple(row[0] for row in opened.rows(f"DESCRIBE SELECT * FROM {source}"))
        [(rows,)] = opened.rows(f"SELECT COUNT(*) FROM {source}")
        distinct = "APPROX_COUNT_DISTINCT({})" if rows > _MAX_EXACT_ROWS else "COUNT(DISTINCT {})"
        [(queries,)] = opened.rows(f"SELECT {distinct.format(d.quote(query))} FROM {source}")
        return cls(rows, queries, columns)


# ---- Findings


def _check_kept_columns(
    opened: OpenLog, plan: QueryPlan, candidates: Columns | None, keep: Sequence[str], rows: int
) -> list[Finding]:
    """Find kept columns with several values for one pair, in a sample of queries."""
    if not keep:
        return []
    sql = varying_columns(plan, _sample_condition(plan, rows), candidates, keep)
    [(pairs, *several)] = opened.rows(sql, "Checking kept columns")
    both = [name for name in plan.keep if candidates is not None and name in candidates.types]
    return find_varying_columns(pairs, dict(zip(keep, map(int, several), strict=True)), both)


def find_varying_columns(pairs: int, several: Mapping[str, int], both: Sequence[str] = ()) -> list[Finding]:
    """Find kept columns with several values for one pair; `both` are in the log and in the candidates."""
    return [
        Finding(
            "kept-column-varies",
            "warning",
            f"{{count}} of {{pairs}} (query, document) pairs have several values in column {name!r}; the smallest one "
            f"is kept{', from the log before the candidates' if name in both else ''}",
            count,
            evidence={"pairs": pairs, "column": name},
            remedy="Make what it depends on a part of the query id, or join it to the rows afterwards."
            if name not in both
            else "Leave it out of the log or of the candidates, or give it the same values in both.",
        )
        for name, count in several.items()
        if count
    ]


def find_zero_propensity(
    counts: Sequence[RankCounts], rows: int, cap: float | None, *, by: Sequence[str]
) -> list[Finding]:
    """Find ranks with rows but propensity 0: `counts` are those, of `rows` in all."""
    if not counts:
        return []
    ranks = sorted({each.position for each in counts})
    clicks = sum(each.clicks for each in counts)
    clicked = f"with {clicks:,} clicks, whose weight is the cap of {cap or 0:g} each" if clicks else "without a click"
    return [
        Finding(
            "zero-propensity-rank",
            "warning",
            f"The estimated propensity of {format_ranks(ranks)} is 0{f' in some {listed(by)}' if by else ''}, but "
            f"{{count}} of {{rows}} rows were shown there, {clicked}; they have no exposure",
            sum(each.rows for each in counts),
            evidence={"rows": rows, "ranks": ranks, "clicks": clicks},
            remedy=f"Estimate from more data, or leave such rows out (position < {ranks[0]}, with sql). With all "
            "candidates of a query (candidates), no p is below 1 / cap; without them, the Poisson objective rejects "
            "clicks without exposure.",
        )
    ]


def find_capped(share: float, cap: float | None) -> list[Finding]:
    """Find a cap that removed much of the weight."""
    if cap is None or share < _MUCH_CAPPED:
        return []
    return [
        Finding(
            "much-weight-capped",
            "warning",
            f"The cap of {cap:g} removed {share:.0%} of the weight: clicks at low ranks are only partly corrected",
            evidence={"share": share, "cap": cap},
            remedy="A larger cap removes more bias and adds more noise. Learning from clicks and exposure needs no cap "
            "(posbias.objectives.poisson_exposure).",
        )
    ]


def find_few_clicks(queries: int, page_views: int, clicks: int) -> list[Finding]:
    """Find logs with too few page views or clicks per query for inverse propensity weights."""
    views_per_query, clicks_per_query = page_views / max(queries, 1), clicks / max(queries, 1)
    if views_per_query >= MIN_VIEWS_PER_QUERY and clicks_per_query >= MIN_CLICKS_PER_QUERY:
        return []
    return [
        Finding(
            "few-clicks-for-ips",
            "warning",
            f"There are {views_per_query:.1f} page views and {clicks_per_query:.1f} clicks per query, too few to learn "
            f"from the column weight: with fewer than {MIN_VIEWS_PER_QUERY} of either, IPS was mostly worse than no "
            "correction",
            evidence={"queries": queries, "page_views": page_views, "clicks": clicks},
            remedy="Do not learn from weight alone: posbias.fit_ranker blends it with other rules. Give all candidates "
            "of a query if they are known (candidates).",
        )
    ]
