"""Weights for learners."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from posbias._files import writable, written_whole
from posbias._text import as_python, format_ranges, format_ranks, label, listed
from posbias._validate import DEFAULT_CAP, as_path, names, number, one_of, truth
from posbias.curves.curve import Curve, Segment
from posbias.engines import EngineChoice, OpenLog, Spark, choose_engine, open_log
from posbias.engines.duckdb_sources import escape_glob
from posbias.engines.files import file_format, refuse_overwriting
from posbias.errors import CurveError, LogError, PosbiasError, Spelling
from posbias.estimators.base import CurveEstimator
from posbias.findings import Finding
from posbias.harvesting.count import check_findings, check_page_view_ids, check_usable
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.page_checks import find_repeats
from posbias.harvesting.row_checks import find_click_defects, sampling_interval, small_sample
from posbias.harvesting.tables import PositionCounts
from posbias.judging.compare import fit_harvest
from posbias.logs.click_log import ClickLog
from posbias.logs.schema import INTEGERS, NATURAL, Columns, Schema, refuse_fraction, refuse_sums, require
from posbias.progress import Progress, silent
from posbias.sql import weights as weight_sql
from posbias.sql.plan import QueryPlan
from posbias.sql.weights import (
    COUNTS,
    UNUSABLE,
    RankWeight,
    profile,
    queries_in_common,
    shown_candidates,
    unreadable_candidates,
    varying,
)

# What to do with ranks beyond the last that the curve was to estimate.
Beyond = Literal["refuse", "clip", "extrapolate"]
BEYOND: tuple[str, ...] = get_args(Beyond)
_BEYOND = "beyond the"
# A message names so many segments.
_MOST_TOLD = 3
# The logarithm of how far a curve is continued upwards.
_STEEPEST = 100.0
# Far beyond what any page shows, in any number of segments; a column of ids has more.
_MOST_CELLS = 200_000
# With fewer of each a query, inverse propensities lost to no correction, or won nothing, in our trials (docs/learning).
FEWEST_VIEWS, FEWEST_CLICKS = 4, 4
# From this share on a cap is worth a word.
_MUCH = 0.25
# A click that counts for more is not capped.
_LARGEST_CAP = 10**9
_FRACTIONS = ("DOUBLE", "FLOAT", "REAL", "DECIMAL")
# Of more rows queries are counted nearly, and columns that come along are looked at in a sample of about so many.
_MANY = 5_000_000


def ips_weights(
    log: ClickLog,
    estimate: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    cap: float | None = DEFAULT_CAP,
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
    extra_tables = {} if candidates is None else {"candidates": candidates}
    wanted = _Wanted(cap, beyond, rows, tuple(keep))
    with _place(output, overwrite=overwrite) as draft:
        if isinstance(log, ClickLog) and isinstance(choose_engine(log, engine), Spark):
            raise PosbiasError(
                "Weights are made by DuckDB, which takes any number of rows in bounded memory, and not by Spark. "
                "Export the log to Parquet, or join the curve to it in Spark: clicks * least(p_1 / p_k, cap)."
            )
        with open_log(
            log, engine, progress, extra_tables=extra_tables, outputs=[] if draft is None else [draft]
        ) as opened:
            made = _make(opened, curve, wanted, draft, force=force)
    return replace(made, output=None if output is None else os.fspath(output))


@dataclass(frozen=True)
class Weights:
    """The weights of a log.

    Attributes:
        rows: of the table.
        queries: of the log; of many million rows nearly so.
        page_views, clicks: of the log.
        cap: the most that a click counts, None for no limit.
        scale: by how much all weights were divided, so that their mean over clicked rows is 1.
        capped_share: the share of the weight that the cap took off.
        effective_clicks: as many clicks of equal weight would be as good: (Σ w)² / Σ w².
        columns: of the table.
        findings: what was found.
        output: the file that was written.
        table: the Arrow table, where no file was to be written.
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
        """Return it as `--json` prints it."""
        told = {name: value for name, value in vars(self).items() if name not in ("findings", "table")}
        return told | {"columns": list(self.columns), "findings": [finding.to_dict(spell) for finding in self.findings]}

    def to_text(self) -> str:
        """Return it in a few words."""
        capped = "" if self.cap is None else f"; the cap of {self.cap:g} took off {self.capped_share:.1%} of the weight"
        return (
            f"{self.rows:,} rows of {self.queries:,} queries, {self.page_views:,} page views and {self.clicks:,} "
            f"clicks, as good as {self.effective_clicks:,.0f} clicks of equal weight{capped}."
        )

    def to_pandas(self) -> Any:
        """Return the table as a frame of pandas."""
        if self.table is None:
            raise PosbiasError(f"The rows were written to {self.output!r}: read that file.")
        return self.table.to_pandas()

    def __str__(self) -> str:
        return self.to_text()


def refuse_settings(
    cap: float | None, beyond: str, rows: bool, keep: Sequence[str], candidates: Any, duplicates: str
) -> None:
    """Refuse what means nothing, or does not go together."""
    if cap is not None and not 1 <= (number(cap) or 0) <= _LARGEST_CAP:
        raise PosbiasError(
            f"cap must be a number of 1 or more, such as 20, and at most {_LARGEST_CAP:,}, or None for no limit, not "
            f"{cap!r}."
        )
    one_of("beyond", beyond, BEYOND)
    names("keep", keep, LogError)
    if rows and keep:
        raise PosbiasError("With rows, all columns of the log are kept. Leave keep out.")
    if rows and candidates is not None:
        raise PosbiasError("With rows there is a row for each of the log, where candidates have none. Leave one out.")
    if rows and duplicates == "drop":
        raise PosbiasError("With rows every row is kept, copies too. Leave duplicates='drop' out, or rows.")


def curve_of(estimate: Any) -> Curve:
    """Return the curve of an estimate: a curve, a fitted estimator, a harvest, or a file of a curve or a harvest."""
    if isinstance(estimate, str | os.PathLike):
        from posbias.curves.files import load as load_curve
        from posbias.harvesting.files import is_harvest
        from posbias.harvesting.files import load as load_harvest

        estimate = load_harvest(estimate) if is_harvest(estimate) else load_curve(estimate)
    if isinstance(estimate, Harvest):
        estimate = fit_harvest(estimate)
    if isinstance(estimate, CurveEstimator):
        estimate = estimate.curve()
    if not isinstance(estimate, Curve):
        raise CurveError(
            f"Expected an estimate: a curve, a fitted estimator, a harvest, or the file of one, not a "
            f"{type(estimate).__name__}."
        )
    return estimate


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
    candidates = opened.extra_tables.get("candidates")
    refuse_segments(schema, curve)
    refuse_columns(schema, candidates, wanted.keep, rows=wanted.rows)
    in_log = tuple(name for name in wanted.keep if name in schema.types)
    plan = QueryPlan(schema, opened.dialect, (), curve.max_rank, curve.by, in_log)
    opened.cache_text([name for name in schema.types if name != NATURAL] if wanted.rows else [*curve.by, *in_log])
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


def refuse_segments(schema: Schema, curve: Curve) -> None:
    """Refuse an estimate by columns that the log does not have."""
    missing = [name for name in curve.by if name not in schema.types]
    if missing:
        raise CurveError(
            f"The estimate has a curve for each {listed(curve.by)}, and the log has no column {listed(missing)}. "
            f"Columns found: {listed(schema.types)}. Rename the column by a query (sql), or give an estimate without "
            "segments."
        )


def refuse_columns(schema: Schema, candidates: Columns | None, keep: Sequence[str], *, rows: bool) -> None:
    """Refuse columns that are not there, or have names that ours have."""
    if candidates is not None:
        missing = [name for name in (schema.query, schema.doc) if name not in candidates.types]
        if missing:
            raise LogError(
                f"The candidates have no column {listed(missing)}, as the log calls its query and document. Columns "
                f"found: {listed(candidates.types)}. Name them alike."
            )
        for name in (schema.query, schema.doc):
            refuse_fraction(name, schema.types[name], candidates.types[name], "the candidates")
    known = {**(candidates.types if candidates else {}), **schema.types}
    for name in keep:
        require(name, known, argument="keep")
        if candidates is not None and name in schema.types and name in candidates.types:
            _refuse_kinds(name, schema.types[name], candidates.types[name])
    taken = [*schema.types] if rows else [schema.query, schema.doc, *keep]
    ours = ("weight",) if rows else COUNTS
    twins = [name for name in taken if name.lower() in ours]
    if twins:
        raise LogError(
            f"The column {twins[0]!r} has the name of one that is made here: {', '.join(ours)}. Rename it by a query "
            "(sql), or leave it out."
        )
    again = [name for name in keep if name in (schema.query, schema.doc)]
    if again:
        raise LogError(f"Column {again[0]!r} is there anyway. Leave it out of keep.")


def _refuse_kinds(name: str, in_log: str, in_candidates: str) -> None:
    """Refuse a column that holds one kind of values in the log and another in the candidates."""
    if _kind(in_log) != _kind(in_candidates):
        raise LogError(
            f"Column {name!r} of keep is {in_log} in the log and {in_candidates} in the candidates, and comes along "
            "from both. Write it alike in both, or leave it out of one of them."
        )


def _kind(type_: str) -> str:
    """Return the kind of a type: numbers of all sizes mix, and so do times."""
    if type_ in INTEGERS or type_.startswith(_FRACTIONS):
        return "number"
    return "time" if type_ == "DATE" or type_.startswith("TIMESTAMP") else type_


def take_profile(opened: OpenLog, plan: QueryPlan, *, force: bool) -> WeightProfile:
    """Look at all rows, and refuse those that cannot be weighed and logs that are damaged."""
    if plan.schema.drop_duplicates:
        check_page_view_ids(opened, plan)
    answer = opened.table_up_to(profile(plan), _MOST_CELLS, "Looking at ranks")
    if answer is None:
        raise LogError(
            f"Column {plan.schema.position!r} has more than {_MOST_CELLS:,} different values. Positions are ranks: 1, "
            "2, 3 and so on. Name the right column (position)."
        )
    keys = list(zip(*(answer[name] for name in plan.segments), strict=True)) if plan.segments else None
    columns = [answer[name].tolist() for name in ("position", "row_count", "impressions", "clicks", "clicked", "seen")]
    cells = [Cell(() if keys is None else keys[i], *row) for i, row in enumerate(zip(*columns, strict=True))]
    rows, unusable = (sum(c.rows for c in cells if c.position == UNUSABLE or every) for every in (True, False))
    check_usable(opened, plan, rows, unusable)
    check_usable(opened, plan, rows, int(answer["nameless"].sum()))
    refuse_sums(plan.schema, sum(cell.impressions for cell in cells))
    found = WeightProfile(tuple(sorted(cells, key=lambda c: ([(v is not None, v or "") for v in c.segment], c[1]))), ())
    findings = [*find_click_defects(found.positions), *find_repeats(opened, plan, small_sample(opened, rows))]
    check_findings(findings, force=force)
    if not found.clicks:
        raise LogError("There is no click in the log: nothing can be learned from it.")
    return WeightProfile(found.cells, tuple(findings))


@dataclass(frozen=True)
class WeightProfile:
    """Impressions and clicks by segment and rank, and what was found."""

    cells: tuple[Cell, ...]
    findings: tuple[Finding, ...]

    @property
    def rows(self) -> int:
        """Rows of the log."""
        return sum(cell.rows for cell in self.cells)

    @property
    def clicks(self) -> int:
        """Clicks of the log."""
        return sum(cell.clicks for cell in self.cells)

    @property
    def clicked(self) -> int:
        """Rows with a click."""
        return sum(cell.clicked for cell in self.cells)

    @property
    def ranks(self) -> dict[Segment, list[int]]:
        """The ranks at which something was shown, by segment."""
        found: dict[Segment, list[int]] = {}
        for cell in self.cells:
            if cell.seen:
                found.setdefault(cell.segment, []).append(cell.position)
        return found

    @property
    def positions(self) -> list[PositionCounts]:
        """What was shown at each rank, all segments together."""
        found: dict[int, PositionCounts] = {}
        for cell in self.cells:
            so_far = found.get(cell.position, PositionCounts(cell.position, 0, 0))
            counts = so_far.impressions + cell.impressions, so_far.clicks + cell.clicks
            found[cell.position] = PositionCounts(cell.position, *counts)
        return [found[rank] for rank in sorted(found) if found[rank].impressions]

    @property
    def page_views(self) -> int:
        """The page views: what was shown at the busiest rank, which in whole pages is the first."""
        return max((shown.impressions for shown in self.positions), default=0)

    def sum_of_clicks(self, value: Callable[[Segment, int], float]) -> float:
        """Return the sum over all clicks of a value of their segment and rank."""
        return sum(cell.clicks * value(cell.segment, cell.position) for cell in self.cells if cell.clicks)


class Cell(NamedTuple):
    """What was shown at one rank of one segment; `clicked` and `seen` are the rows with clicks and impressions."""

    segment: Segment
    position: int
    rows: int
    impressions: int
    clicks: int
    clicked: int
    seen: int


def relative_propensities(
    estimate: Any, shown: Mapping[Segment, Iterable[int]], beyond: Beyond = "refuse"
) -> dict[Segment, dict[int, float]]:
    """Return p_k / p_1 at the ranks shown, by segment: () where the estimate has none.

    Ranks without a number are refused with their reasons, and so are those beyond M, unless they are to be taken for
    the last rank that has a number ("clip"), or to go on as the curve does ("extrapolate": the power of the rank that
    fits it best, from its last rank on).

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=500, max_rank=3)))
        >>> fitted = posbias.AllPairs().fit(posbias.harvest(log, max_rank=3))
        >>> found = relative_propensities(fitted, {(): [1, 2, 5]}, beyond="clip")
        >>> found[()][1], bool(found[()][5] == fitted.propensity_[2])
        (1.0, True)
    """
    one_of("beyond", beyond, BEYOND, CurveError)
    curve = curve_of(estimate)
    parts: Mapping[Segment, Curve] = curve.segments if curve.by else {(): curve}
    _refuse_unknown(curve, [key for key in shown if key not in parts])
    found: dict[Segment, dict[int, float]] = {}
    refused: dict[str, list[Segment]] = {}
    for key, ranks in shown.items():
        values, reasons = _values(parts[key], sorted({*ranks}), beyond)
        found[key] = values
        for reason in reasons:
            refused.setdefault(reason, []).append(key)
    if refused:
        further = any(f": {_BEYOND}" in reason for reason in refused)
        raise CurveError(_refusal(curve, refused, further), {"beyond": "clip"} if further else None)
    return found


def _refuse_unknown(curve: Curve, unknown: list[Segment]) -> None:
    if unknown:
        raise CurveError(
            f"The estimate has a curve for each {', '.join(map(repr, curve.by))}, but none for {_named(unknown)}, "
            "which the log has. Estimate with the rows of these too, leave them out of the log (sql), or give an "
            "estimate without segments."
        )


def _named(keys: list[Segment]) -> str:
    rest = f" and {len(keys) - _MOST_TOLD:,} more" if len(keys) > _MOST_TOLD else ""
    return "; ".join(label(key) for key in keys[:_MOST_TOLD]) + rest


def _values(curve: Curve, ranks: list[int], beyond: Beyond) -> tuple[dict[int, float], list[str]]:
    """Return the values of ranks, and why others have none."""
    known = {p.position: p.propensity for p in curve.positions if p.propensity is not None}
    reasons = {p.position: p.reason for p in curve.positions if p.propensity is None}
    values = {rank: known[rank] for rank in ranks if rank in known}
    told: dict[str, list[int]] = {}
    for rank in (rank for rank in ranks if rank <= curve.max_rank and rank not in known):
        why = reasons.get(rank, "nothing was shown there in the log that the curve is an estimate of")
        told.setdefault(why or "not determined by that data", []).append(rank)
    deeper = [rank for rank in ranks if rank > curve.max_rank]
    if deeper and beyond == "refuse":
        told.setdefault(f"{_BEYOND} {curve.max_rank} ranks of the curve", []).extend(deeper)
    elif deeper:
        last = last_rank(curve)
        power = _power(known) if beyond == "extrapolate" else 0.0
        start = known.get(last, 1.0)
        # A steep curve that is taken far enough has no number any more.
        values |= {rank: start * math.exp(min(power * math.log(rank / last), _STEEPEST)) for rank in deeper}
    return values, [f"{'rank' if len(r) == 1 else 'ranks'} {_ranks(r)}: {why}" for why, r in told.items()]


def last_rank(curve: Curve) -> int:
    """Return the last rank that has a number."""
    return max((p.position for p in curve.positions if p.propensity is not None), default=1)


def _power(known: Mapping[int, float]) -> float:
    """Return the power of the rank that fits a curve best: least squares of log p on log k through rank 1."""
    points = [(rank, p) for rank, p in known.items() if rank > 1 and p > 0]
    if not points:
        raise CurveError(
            "The curve has no rank but the first with a number above 0, from which it could be extrapolated."
        )
    x, y = (np.log(np.array(values, dtype=np.float64)) for values in zip(*points, strict=True))
    return float((x * y).sum() / (x * x).sum())


def _ranks(ranks: list[int]) -> str:
    return format_ranges(ranks) if len(ranks) < 20 else f"{min(ranks):,} to {max(ranks):,}"


def _refusal(curve: Curve, refused: Mapping[str, list[Segment]], further: bool) -> str:
    lines = [f"{reason}{f' (in {_named(keys)})' if curve.by else ''}." for reason, keys in refused.items()]
    choices = (
        " Ranks beyond the curve can also be taken for its last one (clip), or the curve be continued (extrapolate)."
        if further
        else ""
    )
    only = further and len(refused) == 1
    remedy = "Estimate the curve to a lower rank (max_rank)" if only else "Estimate from more data"
    return (
        f"The log shows results at ranks for which the estimate has no number: {' '.join(lines)} {remedy}, or leave "
        f"rows of these ranks out (sql).{choices}"
    )


def _worth(
    propensities: Mapping[Segment, Mapping[int, float]], curve: Curve, cap: float | None, *, candidates: bool
) -> list[RankWeight]:
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
            worth.append(RankWeight(segment, rank, max(p, floor) if candidates else p, _inverse(max(p, floor)), last))
    return worth


def _inverse(p: float) -> float:
    return 1 / p if p > 0 else math.inf


def refuse_uncapped(worth: Sequence[RankWeight], profile: WeightProfile, cap: float | None) -> None:
    """Refuse clicks at a rank whose propensity is 0, which without a cap would weigh infinitely much."""
    if cap is not None:
        return
    zero = {(one.segment, one.position) for one in worth if not math.isfinite(one.weight)}
    clicked = sorted({cell.position for cell in profile.cells if cell.clicks and (cell.segment, cell.position) in zero})
    if clicked:
        raise CurveError(
            f"The estimate says that rank {clicked[0]} is never seen, p = 0, and the log has clicks there, which would "
            "weigh infinitely much. Set a cap, or estimate from more data.",
        )


def refuse_candidates(opened: OpenLog, plan: QueryPlan, candidates: Columns) -> None:
    """Refuse candidates without an id, or with ids of another kind than the log's."""
    [(rows, missing)] = opened.rows(unreadable_candidates(plan, candidates), "Looking at candidates")
    if not rows:
        raise LogError("The candidates are empty: they have their columns but no row.")
    if missing:
        types = f"{plan.schema.types[plan.schema.query]} and {plan.schema.types[plan.schema.doc]}"
        raise LogError(
            f"{missing:,} of {rows:,} rows of the candidates have no value in {plan.schema.query!r} or "
            f"{plan.schema.doc!r}, or one that is not written as an id of the log, where they are {types}: 007 is "
            "not 7. Leave such rows out, or write ids alike."
        )


def _find_apart(opened: OpenLog, plan: QueryPlan, candidates: Columns, rows: int) -> list[Finding]:
    """Return queries and documents that only the log or only the candidates have, documents in a sample of queries."""
    [(shown, listed, common)] = opened.rows(queries_in_common(plan, candidates), "Comparing queries")
    refuse_other_queries(shown, listed, common)
    sql = shown_candidates(plan, candidates, _sample(plan, rows))
    [documents] = opened.rows(sql, "Comparing documents")
    return [*find_queries_apart(shown, listed, common), *find_documents_apart(*documents)]


def refuse_other_queries(shown: int, listed: int, common: int) -> None:
    """Refuse candidates of which no query is in the log: they are of something else, or ids are written otherwise."""
    if not common:
        raise LogError(
            f"None of the {listed:,} queries of the candidates is among the {shown:,} of the log. Check that queries "
            "have the same ids in both."
        )


def _sample(plan: QueryPlan, rows: int) -> str:
    """Return a condition that all rows of some queries fulfil, of many millions about as many as are worth a look."""
    few = sampling_interval(rows, _MANY)
    return f"{plan.dialect.hash('query')} & {few - 1} = 0" if few > 1 else "TRUE"


def find_queries_apart(shown: int, listed: int, common: int) -> list[Finding]:
    """Return candidates of queries that the log does not have, and queries of the log without candidates."""
    found = []
    if listed > common:
        found.append(
            Finding(
                "candidates-left-out",
                "info",
                "{count} of {queries} queries of the candidates are not in the log, and were left out",
                listed - common,
                evidence={"queries": listed},
            )
        )
    if shown > common:
        found.append(
            Finding(
                "queries-without-candidates",
                "warning",
                "{count} of {queries} queries of the log have no candidates: of these there are only documents that "
                "were shown",
                shown - common,
                evidence={"queries": shown},
                remedy="Give the candidates of all queries, or leave these out.",
            )
        )
    return found


def find_documents_apart(shown: int, listed: int) -> list[Finding]:
    """Return documents that were shown and are not among the candidates."""
    if listed == shown:
        return []
    return [
        Finding(
            "shown-without-candidates",
            "warning",
            "{count} of {documents} documents shown are not among the candidates of their query: what only the "
            "candidates tell of them is missing",
            shown - listed,
            evidence={"documents": shown},
            remedy="Check that documents have the same ids in both, and give all that could have been shown.",
        )
    ]


@dataclass(frozen=True)
class _Answer:
    """What the rows that were made are: how many, and of how many queries."""

    rows: int
    queries: int
    columns: tuple[str, ...]

    @classmethod
    def of(cls, opened: OpenLog, plan: QueryPlan, table: Any, draft: str | None) -> _Answer:
        query = plan.schema.query
        if table is not None:
            import pyarrow.compute as pc

            return cls(table.num_rows, pc.count_distinct(table[query]).as_py(), tuple(table.column_names))
        d = plan.dialect
        source = f"read_parquet({d.literal(escape_glob(draft or ''))})"
        columns = tuple(row[0] for row in opened.rows(f"DESCRIBE SELECT * FROM {source}"))
        [(rows,)] = opened.rows(f"SELECT COUNT(*) FROM {source}")
        distinct = "APPROX_COUNT_DISTINCT({})" if rows > _MANY else "COUNT(DISTINCT {})"
        [(queries,)] = opened.rows(f"SELECT {distinct.format(d.quote(query))} FROM {source}")
        return cls(rows, queries, columns)


def _find_varying(
    opened: OpenLog, plan: QueryPlan, candidates: Columns | None, keep: Sequence[str], rows: int
) -> list[Finding]:
    """Return columns that came along though pairs have several values of them, in a sample of queries."""
    if not keep:
        return []
    sql = varying(plan, _sample(plan, rows), candidates, keep)
    [(pairs, *several)] = opened.rows(sql, "Looking at kept columns")
    both = [name for name in plan.keep if candidates is not None and name in candidates.types]
    return find_varying(pairs, dict(zip(keep, map(int, several), strict=True)), both)


def find_varying(pairs: int, several: Mapping[str, int], both: Sequence[str] = ()) -> list[Finding]:
    """Return columns that came along though pairs have several values of them; `both` are of log and candidates."""
    return [
        Finding(
            "kept-varies",
            "warning",
            f"{{count}} of {{pairs}} (query, document) pairs have several values in column {name!r}: the least was "
            f"kept{', of the log before those of the candidates' if name in both else ''}",
            count,
            evidence={"pairs": pairs, "column": name},
            remedy="Put into the query id what it depends on, or join it to the rows afterwards."
            if name not in both
            else "Leave it out of the log or of the candidates, or write the same in both.",
        )
        for name, count in several.items()
        if count
    ]


def find_never_seen(cells: Sequence[Cell], rows: int, cap: float | None, *, by: Sequence[str]) -> list[Finding]:
    """Return ranks at which the log has rows and p is 0: `cells` are those, of so many rows in all."""
    if not cells:
        return []
    ranks = sorted({cell.position for cell in cells})
    clicks = sum(cell.clicks for cell in cells)
    named = f"{format_ranks(ranks)} {'are' if len(ranks) > 1 else 'is'}"
    clicked = f"{clicks:,} clicks, which count for the cap of {cap or 0:g} each" if clicks else "no click"
    return [
        Finding(
            "rank-never-seen",
            "warning",
            f"The estimate says that {named} never seen, p = 0{f', in some {listed(by)}' if by else ''}: {{count}} of "
            f"{{rows}} rows were shown there, with {clicked}, and have no exposure",
            sum(cell.rows for cell in cells),
            evidence={"rows": rows, "ranks": ranks, "clicks": clicks},
            remedy=f"Estimate from more data, or leave such rows out (position < {ranks[0]}, by sql). With all "
            "candidates of a query (candidates) no p is taken for less than 1 / cap; without, exposure Poisson refuses "
            "clicks that have no exposure.",
        )
    ]


def find_capped(share: float, cap: float | None) -> list[Finding]:
    """Return that a cap took off much of the weight."""
    if cap is None or share < _MUCH:
        return []
    return [
        Finding(
            "much-weight-capped",
            "warning",
            f"The cap of {cap:g} took off {share:.0%} of the weight: clicks at low ranks are corrected in part only",
            evidence={"share": share, "cap": cap},
            remedy="A larger cap removes more bias and adds more noise; exposure and clicks need none "
            "(posbias.objectives.poisson_exposure).",
        )
    ]


def find_few_clicks(queries: int, page_views: int, clicks: int) -> list[Finding]:
    """Return that there are too few page views or clicks a query for inverse propensities."""
    views, each = page_views / max(queries, 1), clicks / max(queries, 1)
    if views >= FEWEST_VIEWS and each >= FEWEST_CLICKS:
        return []
    return [
        Finding(
            "few-clicks-for-ips",
            "warning",
            f"There are {views:.1f} page views and {each:.1f} clicks a query, which is too few for the column weight: "
            f"with fewer than {FEWEST_VIEWS} of either, IPS lost to no correction at all",
            evidence={"queries": queries, "page_views": page_views, "clicks": clicks},
            remedy="Do not learn from weight alone: add three rankers (posbias.objectives.cautious_factors), or learn "
            "from clicks and exposure by the Poisson likelihood (posbias.objectives.poisson_exposure), with all "
            "candidates of a query if they are known (candidates).",
        )
    ]
