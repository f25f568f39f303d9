"""From a log and a curve to what a ranker learns from: clicks weighed by how often their rank is seen."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from posbias.arguments import as_path, truth
from posbias.curves.curve import Curve, Segment
from posbias.engines import EngineChoice, OpenLog, Spark, chosen_engine, open_log
from posbias.engines.duckdb.readers import literal
from posbias.engines.files import file_format, refuse_overwriting
from posbias.errors import PosbiasError
from posbias.findings import Finding
from posbias.harvesting.samples import one_in
from posbias.learning.curve_values import Beyond, curve_of, last_rank, relative_propensities
from posbias.learning.weight_findings import (
    find_capped,
    find_documents_apart,
    find_few_clicks,
    find_never_seen,
    find_queries_apart,
    find_varying,
)
from posbias.learning.weight_profiles import take_profile
from posbias.learning.weight_refusals import (
    refuse_candidates,
    refuse_columns,
    refuse_other_queries,
    refuse_segments,
    refuse_settings,
    refuse_uncapped,
)
from posbias.learning.weight_tables import Weights
from posbias.logs.click_log import ClickLog
from posbias.logs.schemas import NATURAL, Columns
from posbias.progress import Progress, silent
from posbias.sql import weights as weight_sql
from posbias.sql.candidates import queries_in_common, shown_and_listed, varying
from posbias.sql.shown import Plan
from posbias.sql.weights import Worth
from posbias.writing import writable, written_whole

# A click counts for at most so many: more lost by chance than it won, where clicks were few.
CAP = 20.0
# Of more rows queries are counted nearly, and columns that come along are looked at in a sample of about so many.
_MANY = 5_000_000


def ips_weights(
    log: ClickLog,
    estimate: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    cap: float | None = CAP,
    beyond: Beyond = "refuse",
    rows: bool = False,
    keep: Sequence[str] = (),
    candidates: Any = None,
    overwrite: bool = False,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    force: bool = False,
) -> Weights:
    """Weigh the clicks of a log by the propensities of their ranks: what a ranker is to learn from.

    There is one row for each (query, document) shown, with `impressions`, `clicks`, `exposure` = Σ_k N_k p_k / p_1 (how
    often it was seen, counted in views at rank 1) and the IPS label `weight` = Σ clicks · min(p_1 / p_k, cap), scaled
    to mean 1 over clicked rows. Rows come in no order.

    Arguments:
        log: the click log.
        estimate: the curve, a fitted estimator, a harvest, or the file of one. Of an estimate with segments each row
            takes its own segment's curve.
        output: the Parquet file to write, in bounded memory. Without one the table is kept in memory, as `table`.
        cap: the most that a click may count, before scaling. None sets no limit.
        beyond: what to do with ranks beyond M, for which the curve has no number: "refuse" them, "clip" them to the
            last rank, or "extrapolate" the curve.
        rows: keep every row of the log instead, and add `weight`.
        keep: columns that come along, such as features: of the log, and of the candidates.
        candidates: a source of documents that could have been shown, by the log's columns of query and document. Those
            never shown are in the table too, and the exposure is that of the likelihood of all page views:
            Σ_k N_k p_k + (N_q − N) p_last, where N_q are the page views of the query and no p is less than 1 / cap.
        overwrite: replace a file that is there already.
        engine: "duckdb", or `posbias.DuckDB(...)` with its settings.
        progress: called with what is being done and the share done.
        force: go on where the log was found to be damaged.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=300, max_rank=5)))
        >>> curve = posbias.CrossFit().fit(posbias.harvest(log, max_rank=5)).curve()
        >>> made = posbias.ips_weights(log, curve)
        >>> made.columns
        ('query_id', 'doc_id', 'impressions', 'clicks', 'exposure', 'weight')
        >>> made.rows == len(made.table), made.clicks == sum(made.table["clicks"].to_pylist())
        (True, True)

    Reference: Joachims, Swaminathan and Schnabel, WSDM 2017.
    """
    refuse_settings(cap, beyond, rows, keep, candidates, getattr(log, "duplicates", "keep"))
    if output is not None:
        refuse_overwriting(as_path("output", output), [*getattr(log, "sources", []), estimate, candidates])
    curve = curve_of(estimate)
    beside = {} if candidates is None else {"candidates": candidates}
    wanted = _Wanted(cap, beyond, rows, tuple(keep))
    with _place(output, overwrite=overwrite) as draft:
        if isinstance(log, ClickLog) and isinstance(chosen_engine(log, engine), Spark):
            raise PosbiasError(
                "Weights are made by DuckDB, which takes any number of rows in bounded memory, and not by Spark. "
                "Export the log to Parquet, or join the curve to it in Spark: clicks * least(p_1 / p_k, cap)."
            )
        with open_log(log, engine, progress, beside=beside, outputs=[] if draft is None else [draft]) as opened:
            made = _make(opened, curve, wanted, draft, force=force)
    return replace(made, output=None if output is None else os.fspath(output))


@dataclass(frozen=True)
class _Wanted:
    """What was asked for."""

    cap: float | None
    beyond: Beyond
    rows: bool
    keep: tuple[str, ...]


@contextmanager
def _place(output: str | os.PathLike[str] | None, *, overwrite: bool) -> Iterator[str | None]:
    """Yield where to write what is to stand at `output` once it is complete; None for nowhere."""
    if output is None:
        yield None
        return
    name = as_path("output", output)
    writable(name)
    if os.path.lexists(name) and not truth("overwrite", overwrite):
        raise PosbiasError(f"{name!r} is there already. Name another file, or replace it.", {"overwrite": True})
    if file_format(name) != "parquet":
        raise PosbiasError(f"Weights are written as Parquet, which {name!r} does not say: end its name with .parquet.")
    with written_whole(name) as draft:
        yield draft


def _make(opened: OpenLog, curve: Curve, wanted: _Wanted, draft: str | None, *, force: bool) -> Weights:
    """Look at the log, weigh its ranks, and write or hold the rows."""
    # A window says where a document is compared with itself, which nothing here does.
    schema = replace(opened.schema, window=None)
    candidates = opened.beside.get("candidates")
    refuse_segments(schema, curve)
    refuse_columns(schema, candidates, wanted.keep, rows=wanted.rows)
    in_log = tuple(name for name in wanted.keep if name in schema.types)
    plan = Plan(schema, opened.dialect, (), curve.max_rank, curve.by, in_log)
    opened.keep([name for name in schema.types if name != NATURAL] if wanted.rows else [*curve.by, *in_log])
    profile = take_profile(opened, plan, force=force)
    propensities = relative_propensities(curve, profile.ranks, wanted.beyond)
    worth = _worth(propensities, curve, wanted.cap, candidates=candidates is not None)
    refuse_uncapped(worth, profile, wanted.cap)
    # What is left without a number is the weight of clicks that nobody made.
    worth = [one if math.isfinite(one.weight) else replace(one, weight=0.0) for one in worth]
    apart = []
    if candidates is not None:
        refuse_candidates(opened, plan, candidates)
        apart = _find_apart(opened, plan, candidates, profile.rows)
    of = {(one.segment, one.position): one.weight for one in worth}
    total = profile.sum_of_clicks(lambda segment, rank: of[segment, rank])
    if wanted.rows:
        scale = total / profile.clicked
        sql = weight_sql.rows(plan, worth, scale)
    else:
        [(clicked,)] = opened.rows(weight_sql.clicked_pairs(plan), "Counting clicked pairs")
        scale = total / clicked
        sql = weight_sql.pairs(plan, worth, scale, candidates, wanted.keep)
    table = None
    if draft is None:
        table = opened.arrow(sql, "Weighing")
    else:
        opened.write(sql, draft, "Weighing")
    answer = _Answer.of(opened, plan, table, draft)
    # Where there are candidates no p is less than 1 / cap.
    unseen = [cell for cell in profile.cells if cell.seen and not propensities[cell.segment][cell.position]]
    unseen = [] if candidates is not None and wanted.cap is not None else unseen
    uncapped = profile.sum_of_clicks(lambda segment, rank: _inverse(propensities[segment][rank]))
    capped = 1 - total / uncapped
    squares = profile.sum_of_clicks(lambda segment, rank: of[segment, rank] ** 2)
    findings = [
        *opened.findings,
        *profile.findings,
        *_find_varying(opened, plan, candidates, wanted.keep, profile.rows),
        *apart,
        *find_never_seen(unseen, profile.rows, wanted.cap, by=curve.by),
        # Of a weight without end a cap takes all off, and a larger one would take as much.
        *find_capped(0.0 if any(cell.clicks for cell in unseen) else capped, wanted.cap),
        *find_few_clicks(answer.queries, profile.page_views, profile.clicks),
    ]
    return Weights(
        rows=answer.rows,
        queries=answer.queries,
        page_views=profile.page_views,
        clicks=profile.clicks,
        cap=wanted.cap,
        scale=scale,
        capped_share=capped,
        effective_clicks=total**2 / squares,
        columns=answer.columns,
        findings=tuple(findings),
        table=table,
    )


def _worth(
    propensities: Mapping[Segment, Mapping[int, float]], curve: Curve, cap: float | None, *, candidates: bool
) -> list[Worth]:
    """Return what results are worth at each rank shown, by segment."""
    floor = 0.0 if cap is None else 1 / cap
    worth = []
    for segment, values in propensities.items():
        part = curve.segments[segment] if curve.by else curve
        # A curve that goes on beyond its end has its last rank where the log has.
        deepest = max(values, default=0)
        last = values[deepest] if deepest > part.max_rank else float(part.propensity[last_rank(part) - 1])
        last = max(last, floor)
        for rank, p in values.items():
            worth.append(Worth(segment, rank, max(p, floor) if candidates else p, _inverse(max(p, floor)), last))
    return worth


def _inverse(p: float) -> float:
    return 1 / p if p > 0 else math.inf


@dataclass(frozen=True)
class _Answer:
    """What the rows that were made are: how many, and of how many queries."""

    rows: int
    queries: int
    columns: tuple[str, ...]

    @classmethod
    def of(cls, opened: OpenLog, plan: Plan, table: Any, draft: str | None) -> _Answer:
        query = plan.schema.query
        if table is not None:
            import pyarrow.compute as pc

            return cls(table.num_rows, pc.count_distinct(table[query]).as_py(), tuple(table.column_names))
        d = plan.dialect
        source = f"read_parquet({d.text(literal(draft or ''))})"
        columns = tuple(row[0] for row in opened.rows(f"DESCRIBE SELECT * FROM {source}"))
        [(rows,)] = opened.rows(f"SELECT COUNT(*) FROM {source}")
        distinct = "APPROX_COUNT_DISTINCT({})" if rows > _MANY else "COUNT(DISTINCT {})"
        [(queries,)] = opened.rows(f"SELECT {distinct.format(d.quote(query))} FROM {source}")
        return cls(rows, queries, columns)


def _find_varying(
    opened: OpenLog, plan: Plan, candidates: Columns | None, keep: Sequence[str], rows: int
) -> list[Finding]:
    """Return columns that came along though pairs have several values of them, in a sample of queries."""
    if not keep:
        return []
    sql = varying(plan, _sample(plan, rows), candidates, keep)
    [(pairs, *several)] = opened.rows(sql, "Looking at kept columns")
    both = [name for name in plan.keep if candidates is not None and name in candidates.types]
    return find_varying(pairs, dict(zip(keep, map(int, several), strict=True)), both)


def _find_apart(opened: OpenLog, plan: Plan, candidates: Columns, rows: int) -> list[Finding]:
    """Return queries and documents that only the log or only the candidates have, documents in a sample of queries."""
    [(shown, listed, common)] = opened.rows(queries_in_common(plan, candidates), "Comparing queries")
    refuse_other_queries(shown, listed, common)
    sql = shown_and_listed(plan, candidates, _sample(plan, rows))
    [documents] = opened.rows(sql, "Comparing documents")
    return [*find_queries_apart(shown, listed, common), *find_documents_apart(*documents)]


def _sample(plan: Plan, rows: int) -> str:
    """Return a condition that all rows of some queries fulfil, of many millions about as many as are worth a look."""
    few = one_in(rows, _MANY)
    return f"{plan.dialect.hashed('query')} & {few - 1} = 0" if few > 1 else "TRUE"
