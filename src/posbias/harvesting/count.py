"""Count impressions and clicks of a log by stratum: the two ways to count, and the checks before and after.

- `count_signatures` counts where the rank of every ranker is known (wide, long): by signature and ranker shown, in one
  scan.
- `count_exposures` counts where the log itself shows the ranks (replay): (query, document) pairs by the impressions
  that each ranker gave them at each rank. A first scan finds the rankers and how large counts can be; then one pass
  over the pairs counts them. A log that names no ranker is counted by rank alone.

Both fall back to sums over intervention sets if there are more strata than `max_strata`. All of them return a
`CountedLog`.

Reference: Aslanyan and Porwal, SPIRE 2019, for logs that name no ranker (ranks that vary by themselves).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from posbias._text import listed
from posbias._validate import boolean, integer, names, one_of
from posbias.engines import OpenLog
from posbias.errors import LogError
from posbias.findings import Finding, UnusableLogError, unusable
from posbias.harvesting.page_checks import find_interleaved, find_one_sided_cells
from posbias.harvesting.row_checks import (
    UNITS_NOT_COUNTED,
    RowCounts,
    check_non_functional,
    check_non_functional_setting,
    explain_unusable,
    find_bad_rankings,
    find_biased_weighting,
    find_contradicted_ranks,
    find_mixed_files,
    find_no_ranker,
    find_non_functional,
    find_several_ranks,
    profile_log,
    skip_rank_checks,
    small_sample,
)
from posbias.logs.click_log import WEIGHTINGS, Layout, Segment, Weighting
from posbias.logs.schema import INTEGERS, Schema, check_count_sums, check_rankers, require_column
from posbias.progress import step
from posbias.sql import exposures as exposure_sql
from posbias.sql import signatures as signature_sql
from posbias.sql.dialects import BUCKETS, PACK
from posbias.sql.plan import QueryPlan

if TYPE_CHECKING:
    from posbias.engines.base import Answer
    from posbias.harvesting.tables import Cells, PairSums

# What the table of a harvest holds: strata by signature or by observed exposure, or sums if there are too many strata.
TableKind = Literal["signatures", "exposures", "pairs"]
# With more rows of strata than this, a harvest keeps sums over intervention sets instead.
MAX_STRATA = 2_000_000
# What a harvest can hold: top ranks (tables are M × M), segments (each has its own curve), rankers, and impressions in
# all (floats count exactly up to 2^53).
MAX_RANKS = 1_000
MAX_SEGMENTS = 10_000
MAX_RANKERS = 100_000
MAX_COUNT = 2**53
# In logs with fewer rows than _GUESS_ROWS, equal pairs are assumed to have at most _GUESSED_COUNT impressions by one
# ranker at one rank. Packed counts cannot overflow beyond detection with so few rows.
_GUESSED_COUNT, _GUESS_ROWS = 2**20 - 1, 2**27
# With more ranks than this, counting ranks as packed integers in one pass costs more than it saves.
_MAX_PACKED_RANKS = 60
# The rows of up to this many frequent queries are selected by their ids; with more queries, all rows are scanned.
_MAX_SELECTED_QUERIES = 20_000
# With more rankers than this, one pass with an aggregate for each ranker costs more than grouping by ranker. Packed
# counts, which hold several rankers in one integer, allow more.
_MAX_ONE_PASS, _MAX_ONE_PASS_PACKED = 8, 32
# This many buckets are counted first if there may be too many strata to keep.
_SAMPLED_BUCKETS = 4


# ---- Settings and results


@dataclass(frozen=True)
class HarvestSettings:
    """The arguments of a harvest that decide how rows are counted; `posbias.harvest` explains them."""

    max_rank: int
    by: tuple[str, ...]
    weighting: Weighting
    non_functional: str
    max_strata: int

    def plan(self, opened: OpenLog, rankers: Sequence[str]) -> QueryPlan:
        """Return the plan of the queries on a log with these rankers."""
        return QueryPlan(opened.schema, opened.dialect, tuple(rankers), self.max_rank, self.by)


@dataclass(frozen=True)
class CountedLog:
    """The counts of a log.

    Attributes:
        kind (str): what the table holds: "signatures", "exposures" or "pairs".
        rankers (tuple of str): the names of the rankers, sorted.
        segments (list of tuples): the segments that the numbers in the table stand for.
        pending (Cells, PairSums or Future): the table in canonical order, or a future of it. The table may be built
            while the engine runs the next query.
        rows (RowCounts): how many rows were counted and left out.
        findings (list of Finding): what was found while counting.
        by_units (tuple of tables, default ()): the same counts by bucket of units, and by bucket of queries and units.
    """

    kind: TableKind
    rankers: tuple[str, ...]
    segments: list[Segment]
    pending: Cells | PairSums | Future[Cells]
    rows: RowCounts
    findings: list[Finding]
    by_units: tuple[Cells | PairSums, ...] = ()

    @property
    def table(self) -> Cells | PairSums:
        """The counts."""
        return self.pending.result() if isinstance(self.pending, Future) else self.pending


def table_kind(layout: Layout, weighting: Weighting) -> TableKind:
    """Return how to count a log: by signature if ranks are known and the weighting does not need single pairs."""
    return "signatures" if layout.ranks_known and weighting == "traffic" else "exposures"


# ---- Wide and long: count by signature


def count_signatures(opened: OpenLog, settings: HarvestSettings) -> CountedLog:
    """Count by signature and ranker shown, in one scan of a log whose ranks are known.

    Rows that cannot be counted come back as groups with a negative code.
    """
    plan = skip_rank_checks(opened, settings.plan(opened, known_rankers(opened)))
    sql = signature_sql.signatures(plan)
    if signature_sql.most_signatures(plan) <= settings.max_strata * bucketings(plan.schema):
        # A plain table of counters is faster for few groups, but has no room for the sums of an aggregated log.
        answer: Answer | None = opened.table(sql, "Harvesting", few_groups=not plan.schema.aggregated)
    else:
        answer = opened.table_up_to(sql, settings.max_strata * bucketings(plan.schema), "Harvesting")
    if answer is None:
        return _sum_signatures(opened, plan)
    from posbias.engines.base import filter_rows, segment_numbers
    from posbias.harvesting.tables import canonical, cells_from_signatures, split_buckets

    counts = _count_coded_rows(opened, plan, answer)
    counted = filter_rows(answer, answer["code_0"] >= 0)
    segment, segments = segment_numbers(counted, plan.segments)
    counts_by_kind = cells_from_signatures(counted, segment, plan.coding)
    cells, *by_units = map(canonical, split_buckets(counts_by_kind, bucketings(plan.schema)))
    # A second table has the ranks of all rankers, whichever was shown; columns may lack them.
    one_sided = find_one_sided_cells(cells, plan.rankers) if plan.schema.layout.ranks_in == "columns" else []
    findings = [*_find_left_out(opened, plan, counts), *one_sided]
    return CountedLog("signatures", plan.rankers, segments, cells, counts, findings, tuple(by_units))


def known_rankers(opened: OpenLog) -> tuple[str, ...]:
    """Return the rankers whose ranks are known: those of the rank columns, or of the rankings table."""
    rankers = tuple(opened.schema.rank_columns)
    if opened.schema.layout.ranks_in == "table":
        name = opened.dialect.as_text(opened.dialect.quote(opened.schema.ranker))
        rankers = tuple(sorted(row[0] for row in opened.rows(f"SELECT DISTINCT {name} FROM rankings") if row[0]))
    check_rankers(opened.schema, rankers)
    return rankers


def _sum_signatures(opened: OpenLog, plan: QueryPlan) -> CountedLog:
    """Sum over intervention sets, because there are too many signatures to keep."""
    from posbias.engines.base import filter_rows
    from posbias.harvesting.tables import busiest_ranks, canonical, pair_sums, split_buckets

    totals = opened.table(signature_sql.signature_totals(plan), "Counting page views")
    counts = _count_coded_rows(opened, plan, totals)
    totals = filter_rows(totals, totals["code_0"] >= 0)
    sums = opened.table(signature_sql.signature_pair_sums(plan, busiest_ranks(totals, len(plan.rankers))), "Summing")
    all_sums, segments = pair_sums(totals, sums, plan.segments)
    table, *by_units = map(canonical, split_buckets(all_sums, bucketings(plan.schema)))
    findings = _find_left_out(opened, plan, counts)
    return CountedLog("pairs", plan.rankers, segments, table, counts, findings, tuple(by_units))


def bucketings(schema: Schema) -> int:
    """Return how many kinds of buckets a log is counted by: queries, and in a log with units two more."""
    return 1 if schema.unit is None else 3


def _count_coded_rows(opened: OpenLog, plan: QueryPlan, answer: Answer) -> RowCounts:
    """Count rows by the code of their signature; raise an error if some cannot be counted."""
    by_query = answer["bucket"] < BUCKETS
    counts = RowCounts.by_code(answer["code_0"][by_query], answer["row_count"][by_query])
    if opened.schema.aggregated:
        check_count_sums(opened.schema, sum(map(int, answer["impressions"][by_query].tolist())))
    check_usable(opened, plan, counts.rows, counts.rows_unusable)
    return counts


def _find_left_out(opened: OpenLog, plan: QueryPlan, counts: RowCounts) -> list[Finding]:
    """Return findings about rows that were left out, and about files that may be the reason.

    In the long layout the table of rankings may have several ranks for one document; then none of them is used.
    """
    mixed = find_mixed_files(opened) if counts.rows_contradicted else []
    long = plan.schema.layout.ranks_in == "table"
    if long and counts.rows_contradicted and not counts.rows_counted:
        error = explain_missing_ranks(opened, plan)
        if error is not None:
            raise error
    interleaved = find_interleaved(opened, plan, counts, small_sample(opened, counts.rows))
    ranks = [*find_bad_rankings(opened), *find_several_ranks(opened, plan)] if long else []
    return [*mixed, *(interleaved or find_contradicted_ranks(counts)), *ranks]


def explain_missing_ranks(opened: OpenLog, plan: QueryPlan) -> UnusableLogError | None:
    """Return why the rankings table has no rank for any row: ids that do not match, or contradictory ranks."""
    for column in (plan.schema.query, plan.schema.doc):
        error = _explain_no_common_ids(opened, column)
        if error is not None:
            return error
    several = find_several_ranks(opened, plan)
    return UnusableLogError(*(replace(finding, severity="error") for finding in several)) if several else None


def _explain_no_common_ids(opened: OpenLog, column: str) -> UnusableLogError | None:
    schema, d = opened.schema, opened.dialect
    text = d.as_text(d.quote(column))
    ids = {
        table: f"SELECT DISTINCT {text} AS id FROM {table} WHERE {text} IS NOT NULL" for table in ("log", "rankings")
    }
    both = f"SELECT COUNT(*) FROM ({ids['log']}) l JOIN ({ids['rankings']}) r ON l.id = r.id"
    if opened.rows(both, "Comparing ids")[0][0]:
        return None
    # The smallest texts make a good example: they show 1 beside 1.0, or 007 beside 7.
    in_log, in_rankings = (opened.rows(f"SELECT MIN(id) FROM ({ids[table]}) i")[0][0] for table in ("log", "rankings"))
    return unusable(
        "no-common-ids",
        f"The log and the rankings table have no value of column {column!r} in common: in the log it is "
        f"{schema.types[column]}, such as {in_log!r}, in the rankings {schema.rankings[column]}, such as "
        f"{in_rankings!r}",
        "Ids are compared as text, so 1 and 1.0, or 7 and 007, differ. Write them the same way in both tables, and "
        "check that both tables cover the same queries.",
    )


# ---- Replay: count by observed exposure


def count_exposures(opened: OpenLog, settings: HarvestSettings) -> CountedLog:
    """Count (query, document) pairs by the impressions they had, after a cheap first scan of the log."""
    plan = settings.plan(opened, ())
    counted = _count_exposures(opened, settings, scan_first(opened, plan))
    # The first scan may have guessed too small counts. Then all rows are scanned, and counted again.
    counted = counted or cast(CountedLog, _count_exposures(opened, settings, scan_rows(opened, plan)))
    return _with_units(opened, settings.plan(opened, counted.rankers), counted)


def _with_units(opened: OpenLog, plan: QueryPlan, counted: CountedLog) -> CountedLog:
    """Return the counts of a replay with what ĉ and ¬ĉ lose without each bucket of units.

    The strata themselves are not counted by unit: a unit sees a part of a pair, so that nearly every row would be a
    stratum of its own.
    """
    if not counts_units(plan.schema):
        return counted
    from posbias.harvesting.tables import canonical, pair_sums, split_buckets, stack_losses

    losses = opened.table_up_to(exposure_sql.unit_losses(plan), MAX_STRATA, "Comparing documents by unit")
    if losses is None:
        return replace(counted, findings=[*counted.findings, UNITS_NOT_COUNTED])
    totals = opened.table(exposure_sql.unit_totals(plan), "Counting page views by unit")
    table, segments = pair_sums(totals, stack_losses(losses, plan.segments), plan.segments)
    assert segments == counted.segments
    by_unit, by_both = split_buckets(replace(table, bucket=table.bucket - BUCKETS), 2)
    return replace(counted, by_units=(canonical(by_unit), canonical(by_both)))


def counts_units(schema: Schema) -> bool:
    """Return whether a replay is counted by unit: without rankers, a document has too many ranks to compare."""
    return schema.unit is not None and not schema.natural


def _count_exposures(opened: OpenLog, settings: HarvestSettings, scan: FirstScan) -> CountedLog | None:
    """Count with what a first scan found, in the fastest way that fits; None if its guess of the counts was wrong."""
    counts = scan.counts
    check_usable(opened, settings.plan(opened, ()), counts.rows, counts.rows_unusable)
    plan = settings.plan(opened, scan.rankers)
    check_non_functional_setting(plan.schema.natural, settings.non_functional)
    if _fits_packed_ranks(plan) and not opened.samples_first:
        return _count_packed_ranks(opened, plan, settings, counts)
    one_pass = _one_pass_sql(plan, scan) is not None
    if not one_pass:
        _check_ids(opened, plan, counts)
    answer = None
    if not opened.samples_first or _has_few_strata(opened, plan, scan, settings.max_strata):
        answer = opened.table_up_to(_strata_sql(plan, scan), settings.max_strata, "Harvesting")
    if answer is None:
        return _sum_exposures(opened, plan, settings, counts)
    if one_pass:
        return _count_one_pass(opened, plan, settings, scan, answer)
    return _count_cells(plan, settings, counts, answer)


def _count_one_pass(
    opened: OpenLog, plan: QueryPlan, settings: HarvestSettings, scan: FirstScan, answer: Answer
) -> CountedLog | None:
    """Return the counts of pairs that each ranker shows at one rank, and count the other pairs separately.

    None if the packed counts overflowed, because the first scan guessed too small counts.
    """
    from posbias._arrays import run_in_background
    from posbias.engines.base import filter_rows, row_count, segment_numbers, stack_columns
    from posbias.harvesting import tables

    bucket, pairs = answer["bucket"], int(answer["pairs"].sum())
    _check_counted_ids(opened, plan, scan.counts, answer)
    non_functional = int(answer["pairs"][bucket == exposure_sql.NON_FUNCTIONAL].sum())
    check_non_functional(settings.non_functional, non_functional, pairs)
    counts = replace(scan.counts, non_functional_pairs=non_functional)
    answers = [filter_rows(answer, bucket >= 0)]
    if non_functional:
        sql = exposure_sql.cells(plan, having=exposure_sql.SEVERAL_RANKS)
        several_ranks = opened.table_up_to(sql, settings.max_strata, "Harvesting pairs at several ranks")
        if several_ranks is None:
            return _sum_exposures(opened, plan, settings, counts)
        answers.append(several_ranks)
    packed = exposure_sql.pack_by_ranker(plan, scan.max_impressions) if plan.dialect.has_int128 else None
    if packed and not scan.exact and not tables.packed_counts_fit(answers, packed, counts.rows_counted):
        return None
    segment, segments = segment_numbers(stack_columns(answers, ["bucket", *plan.segments]), plan.segments)

    @step("Making the cells")
    def make_cells() -> Cells:
        split = row_count(answers[0])
        others = tables.cells_from_rows(answers[1], segment[split:]) if non_functional else None
        return tables.cells_from_exposures(answers[0], segment[:split], plan.masks, packed, others)

    findings = [*find_non_functional(non_functional, pairs), *_find_replay(plan, settings)]
    return CountedLog("exposures", plan.rankers, segments, run_in_background(make_cells), counts, findings)


def _count_cells(plan: QueryPlan, settings: HarvestSettings, counts: RowCounts, answer: Answer) -> CountedLog:
    """Return the counts of an answer with one row for each cell."""
    from posbias.engines.base import segment_numbers
    from posbias.harvesting import tables

    segment, segments = segment_numbers(answer, plan.segments)
    cells = tables.cells_from_rows(answer, segment)
    non_functional, pairs = 0, 0
    if not plan.schema.natural:
        non_functional, pairs = tables.count_non_functional(cells), tables.count_pairs(cells)
    check_non_functional(settings.non_functional, non_functional, pairs)
    counts = replace(counts, non_functional_pairs=non_functional)
    findings = [*find_non_functional(non_functional, pairs), *_find_replay(plan, settings)]
    return CountedLog("exposures", plan.rankers, segments, tables.canonical(cells), counts, findings)


def _sum_exposures(opened: OpenLog, plan: QueryPlan, settings: HarvestSettings, counts: RowCounts) -> CountedLog:
    """Sum over intervention sets with the weighting of the harvest, because there are too many strata to keep."""
    from posbias.harvesting.tables import busiest_ranks, canonical, pair_sums

    _check_ids(opened, plan, counts)
    findings = _find_replay(plan, settings)
    if not plan.schema.natural:
        sql = exposure_sql.count_non_functional(plan)
        non_functional, pairs = opened.rows(sql, "Counting pairs at several ranks")[0]
        check_non_functional(settings.non_functional, non_functional, pairs)
        counts = replace(counts, non_functional_pairs=non_functional)
        findings = [*find_non_functional(non_functional, pairs), *findings]
    totals = opened.table(exposure_sql.totals(plan), "Counting page views")
    page_view_ranks = busiest_ranks(totals, len(plan.rankers))
    sums = opened.table(exposure_sql.exposure_pair_sums(plan, settings.weighting, page_view_ranks), "Summing")
    table, segments = pair_sums(totals, sums, plan.segments)
    return CountedLog("pairs", plan.rankers, segments, canonical(table), counts, findings)


def _find_replay(plan: QueryPlan, settings: HarvestSettings) -> list[Finding]:
    """Return the findings about a replay that do not depend on its rows."""
    units = [] if plan.schema.unit is None or counts_units(plan.schema) else [UNITS_NOT_COUNTED]
    return [*find_no_ranker(plan.schema), *find_biased_weighting(settings.weighting), *units]


def _check_ids(opened: OpenLog, plan: QueryPlan, counts: RowCounts) -> None:
    """Raise an error for rows without an id, which the query itself would leave out silently."""
    [(without_id,)] = opened.rows(exposure_sql.rows_without_id(plan), "Checking ids")
    check_usable(opened, plan, counts.rows, without_id)


def _check_counted_ids(opened: OpenLog, plan: QueryPlan, counts: RowCounts, answer: Answer) -> None:
    """Raise an error if an answer has rows without an id, which it marks by their bucket."""
    without_id = answer["bucket"] == exposure_sql.MISSING_ID
    if without_id.any():
        check_usable(opened, plan, counts.rows, int(answer["pairs"][without_id].sum()))


def _one_pass_sql(plan: QueryPlan, scan: FirstScan) -> str | None:
    """Return the query that counts in one pass over (query, document), or None if two passes are faster."""
    if not plan.masks.groups or plan.schema.natural:
        return None
    if plan.dialect.has_int128:
        fits = len(plan.rankers) <= _MAX_ONE_PASS_PACKED
        packed = exposure_sql.pack_by_ranker(plan, scan.max_impressions) if fits else None
        return exposure_sql.packed_exposures(plan, packed) if packed else None
    # Packed counters hold 2^31 impressions of a pair, which only an aggregated log could exceed.
    fits = not plan.schema.aggregated or scan.impressions < PACK // 2
    return exposure_sql.exposures(plan) if fits and len(plan.rankers) <= _MAX_ONE_PASS else None


def _strata_sql(plan: QueryPlan, scan: FirstScan) -> str:
    return _one_pass_sql(plan, scan) or exposure_sql.cells(plan)


def _has_few_strata(opened: OpenLog, plan: QueryPlan, scan: FirstScan, max_strata: int) -> bool:
    """Return whether the strata are likely few enough to keep, from the number of strata in a few buckets."""
    if scan.counts.rows_counted <= max_strata:
        return True
    sql = exposure_sql.count_strata(plan, _SAMPLED_BUCKETS, lambda part: _strata_sql(part, scan))
    [(strata,)] = opened.rows(sql, "Counting strata of a sample")
    return bool(strata * BUCKETS <= max_strata * _SAMPLED_BUCKETS)


# ---- Replay without rankers: count by rank, packed into integers


def _fits_packed_ranks(plan: QueryPlan) -> bool:
    """Return whether the pairs of a log that names no ranker can be counted in one pass."""
    fits = plan.dialect.has_int128 and plan.max_rank <= _MAX_PACKED_RANKS
    return plan.schema.natural and fits and not plan.schema.aggregated


def _count_packed_ranks(opened: OpenLog, plan: QueryPlan, settings: HarvestSettings, counts: RowCounts) -> CountedLog:
    counted = _packed_rank_cells(opened, plan, counts, settings.max_strata)
    if counted is None:
        return _sum_exposures(opened, plan, settings, counts)
    cells, segments = counted
    return CountedLog("exposures", plan.rankers, segments, cells, counts, _find_replay(plan, settings))


def _packed_rank_cells(
    opened: OpenLog, plan: QueryPlan, counts: RowCounts, max_strata: int
) -> tuple[Future[Cells], list[Segment]] | None:
    """Return a future of the cells of a log that names no ranker, and its segments; None if there are too many strata.

    Pairs with more impressions than fit into packed counts are counted by a second query.
    """
    packed = exposure_sql.pack_by_rank(plan, counts.rows)
    # The answer has a row for each distinct number of clicks, up to 1.6 for each stratum in a log of ten million rows.
    answer = opened.table_up_to(exposure_sql.packed_rank_exposures(plan, packed), 2 * max_strata, "Harvesting")
    if answer is None:
        return None
    from posbias._arrays import run_in_background
    from posbias.engines.base import filter_rows, row_count, segment_numbers, stack_columns
    from posbias.harvesting import tables

    bucket = answer["bucket"]
    _check_counted_ids(opened, plan, counts, answer)
    counted = filter_rows(answer, bucket >= 0)
    # Rows of pairs that are too frequent hold the number of their query in place of impressions.
    frequent_queries = answer["packed_impressions_0"][bucket == exposure_sql.TOO_FREQUENT]
    answers = [counted]
    if len(frequent_queries):
        queries = sorted(set(frequent_queries.tolist()))
        sql = exposure_sql.frequent_pair_cells(plan, queries if len(queries) <= _MAX_SELECTED_QUERIES else ())
        frequent = opened.table_up_to(sql, max_strata, "Harvesting frequent pairs")
        if frequent is None:
            return None
        answers.append(frequent)
    segment, segments = segment_numbers(stack_columns(answers, ["bucket", *plan.segments]), plan.segments)

    @step("Making the cells")
    def make_cells() -> Cells:
        split = row_count(counted)
        others = [tables.cells_from_rows(frequent, segment[split:]) for frequent in answers[1:]]
        return tables.cells_from_packed_ranks(counted, segment[:split], packed, *others)

    cells = run_in_background(make_cells)
    if row_count(counted) > max_strata and cells.result().stratum.max(initial=-1) >= max_strata:
        return None
    return cells, segments


# ---- First scan of a replay


@dataclass(frozen=True)
class FirstScan:
    """What is known of a replay before its pairs are counted.

    Attributes:
        rankers (tuple of str): the rankers that were shown, sorted.
        counts (RowCounts): which rows can be counted.
        max_impressions (int): the most impressions of one ranker at one position.
        impressions (int): impressions in all.
        exact (bool, default True): whether `max_impressions` is exact. Otherwise it is a guess that may be too small.
    """

    rankers: tuple[str, ...]
    counts: RowCounts
    max_impressions: int
    impressions: int
    exact: bool = True


def scan_first(opened: OpenLog, plan: QueryPlan) -> FirstScan:
    """Scan the bounds of the columns if they show that every row can be counted, and all rows otherwise."""
    return _scan_bounds(opened, plan) or scan_rows(opened, plan)


def _scan_bounds(opened: OpenLog, plan: QueryPlan) -> FirstScan | None:
    """Return what the bounds of the columns show; None if some row may not be counted, or counts may be large."""
    schema = plan.schema
    numbers = schema.click is not None and {schema.types[schema.position], schema.types[schema.click]} <= INTEGERS
    if not (opened.knows_bounds and numbers):
        return None
    rows, rankers_known, *bounds = opened.rows(exposure_sql.bounds(plan), "Scanning the rankers")[0]
    positions_known, first, last, clicks_known, fewest_clicks, most_clicks = bounds
    complete = rows > 0 and rows == rankers_known == positions_known == clicks_known
    if not (complete and first >= 1 and last <= plan.max_rank and fewest_clicks >= 0 and most_clicks <= 1):
        return None
    name = plan.dialect.as_text(plan.dialect.quote(schema.ranker))
    rankers = tuple(sorted(row[0] for row in opened.rows(f"SELECT DISTINCT {name} FROM log", "Scanning the rankers")))
    check_rankers(schema, rankers)
    scan = FirstScan(rankers, RowCounts(rows, rows, 0), rows, rows)
    plan = replace(plan, rankers=rankers)
    if schema.natural or len(exposure_sql.pack_by_ranker(plan, rows).groups) == 1:
        return scan
    # A guess pays if it packs all counts into one integer. Otherwise it pays to know how large counts can be.
    small = rows < _GUESS_ROWS and not schema.drop_duplicates
    fits = small and len(exposure_sql.pack_by_ranker(plan, _GUESSED_COUNT).groups) == 1
    return replace(scan, max_impressions=_GUESSED_COUNT, exact=False) if fits else None


def scan_rows(opened: OpenLog, plan: QueryPlan) -> FirstScan:
    """Scan all rows of a log."""
    profile = profile_log(opened, plan)
    return FirstScan(profile.rankers, RowCounts.by_profile(profile), profile.max_impressions, profile.impressions)


# ---- Checks of arguments and findings


def check_settings(max_rank: int, weighting: Weighting | None = None, non_functional: str = "share") -> None:
    """Raise an error if these arguments of a harvest are not valid."""
    integer("max_rank", max_rank, 2, MAX_RANKS, LogError)
    if weighting is not None:
        one_of("weighting", weighting, WEIGHTINGS, LogError)
    one_of("non_functional", non_functional, ("share", "refuse"), LogError)


def check_window(opened: OpenLog, kind: TableKind) -> None:
    """Reject a window for a log whose ranks are known, where it would have no effect."""
    if opened.schema.window is not None and kind == "signatures":
        raise LogError(
            "A window is used only in replay, where a document is compared with itself at the ranks where it was "
            "shown. This log has the rank of each ranker in every row. Leave window out, or segment by it.",
            {"by": [opened.schema.window]},
        )


def check_segment_columns(opened: OpenLog, by: str | Sequence[str]) -> tuple[str, ...]:
    """Return the segment columns; those that do not exist, were counted, or have too many values are errors."""
    chosen = names("by", by, LogError)
    for column in chosen:
        require_column(column, opened.schema.types, argument="by")
    check_segment_roles(opened.schema, chosen)
    if chosen:
        columns = ", ".join(map(opened.dialect.quote, chosen))
        distinct = f"SELECT DISTINCT {columns} FROM log LIMIT {MAX_SEGMENTS + 1}"
        if opened.rows(f"SELECT COUNT(*) FROM ({distinct}) found", "Counting segments")[0][0] > MAX_SEGMENTS:
            raise LogError(
                f"The segment columns {listed(chosen)} have more than {MAX_SEGMENTS:,} different values. A segment is "
                "a group such as a device or a country, with its own curve: name other columns, or group the values in "
                "the log or with a query (sql)."
            )
    return chosen


def check_segment_roles(schema: Schema, by: Sequence[str]) -> None:
    """Reject a counted column as segment: a segment of clicks would have only clicks, at every position."""
    for role in ("position", "click", "clicks", "impressions"):
        if (column := getattr(schema, role)) in by:
            raise LogError(
                f"Column {column!r} cannot be both {role} and a segment: a segment is a group of page views, queries "
                "or documents that is known before anything is shown or clicked. Name another column (by)."
            )


def check_findings(findings: Iterable[Finding], *, force: bool) -> None:
    """Raise an error if any finding is an error, unless `force` is true."""
    forced = boolean("force", force)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors and not forced:
        # Without a click there is nothing to continue with.
        arguments = {} if any(finding.code == "no-clicks" for finding in errors) else {"force": True}
        raise UnusableLogError(
            *errors, lead="The log cannot be used as it is:", tail="To continue anyway,", arguments=arguments
        )


def check_page_view_ids(opened: OpenLog, plan: QueryPlan) -> None:
    """Reject rows without a page view id if duplicates are dropped: they would all look like duplicates of one row."""
    name = opened.schema.impression or ""
    view = opened.dialect.nan_to_null(opened.dialect.quote(name), opened.schema.types[name])
    rows, known = opened.rows(f"SELECT COUNT(*), COUNT({view}) FROM log")[0]
    check_usable(opened, plan, rows, rows - known)


def check_usable(opened: OpenLog, plan: QueryPlan, rows: int, unusable: int) -> None:
    """Raise an error if the log has no rows, or rows that cannot be counted; the error explains why."""
    if rows == 0:
        raise LogError("The log is empty: it has columns but no rows. Check the path, or the filter that made it.")
    if unusable:
        raise explain_unusable(opened, plan, unusable, rows)
