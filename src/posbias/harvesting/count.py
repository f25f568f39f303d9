"""Count the interventions of a log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from posbias._text import listed
from posbias._validate import names, one_of, truth, whole
from posbias.engines import OpenLog
from posbias.errors import LogError
from posbias.findings import Finding, UnusableLogError, unusable
from posbias.harvesting.page_checks import find_interleaved, find_one_sided_cells
from posbias.harvesting.row_checks import (
    RowCounts,
    check_non_functional,
    check_non_functional_setting,
    explain_unusable,
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
from posbias.logs.click_log import WEIGHTINGS, Weighting
from posbias.logs.layouts import Layout
from posbias.logs.schema import INTEGERS, Schema, refuse_rankers, refuse_sums, require
from posbias.sql import exposures as exposure_counts
from posbias.sql import exposures as exposure_sql
from posbias.sql import signatures as signature_sql
from posbias.sql.dialects import BUCKETS, PACK
from posbias.sql.exposures import (
    MISSING_ID,
    TOO_FREQUENT,
    frequent_pair_cells,
    pack_by_rank,
    pack_by_ranker,
    packed_exposures,
    packed_rank_exposures,
)
from posbias.sql.plan import QueryPlan

if TYPE_CHECKING:
    from concurrent.futures import Future

    from posbias.engines.base import Answer
    from posbias.harvesting.tables import Cells, PairSums

# What a harvest's table holds: strata by signature or by observed exposure, or sums where strata do not compress.
TableKind = Literal["signatures", "exposures", "pairs"]
# Beyond this many rows of strata a harvest keeps sums over interventional sets instead.
MAX_STRATA = 2_000_000
# What a harvest can hold: top ranks (tables are of M × M), segments (each is estimated by itself), rankers, and in all
# its rows impressions, which numbers of 64 bits count exactly.
MAX_RANKS = 1_000
MAX_SEGMENTS = 10_000
MAX_RANKERS = 100_000
MAX_COUNT = 2**53
# More impressions of a ranker at a rank than this are unlikely in pairs that are alike, whatever the log. So many rows
# of one pair do not overflow its number even then.
_LIKELY, _FEW_ROWS = 2**20 - 1, 2**27
# With more ranks than this, there are more numbers to add up than one pass is worth.
_MOST_RANKS = 60
# The rows of so many queries are looked up by their ids; of more, all rows are looked at.
_MOST_NAMED = 20_000
# With more rankers than this, one pass with an aggregate for each of them costs more than grouping by them: less where
# the counts of several are added up in one number.
_ONE_PASS, _ONE_PASS_SIDE_BY_SIDE = 8, 32
# So many buckets are looked at where a look at all of them may be in vain.
_LOOKED_AT = 4


def table_kind(layout: Layout, weighting: Weighting) -> TableKind:
    """Return what is counted: by signature where ranks are known, unless pairs are to be told apart."""
    return "signatures" if layout.ranks_known and weighting == "traffic" else "exposures"


def check_settings(max_rank: int, weighting: Weighting | None = None, non_functional: str = "share") -> None:
    """Refuse what no harvest can be made with."""
    whole("max_rank", max_rank, 2, MAX_RANKS, LogError)
    if weighting is not None:
        one_of("weighting", weighting, WEIGHTINGS, LogError)
    one_of("non_functional", non_functional, ("share", "refuse"), LogError)


def check_window(opened: OpenLog, kind: str) -> None:
    """Refuse a window where it would change nothing: rankings that are known are compared at any time."""
    if opened.schema.window is not None and kind == "signatures":
        raise LogError(
            "A window goes with replay, where a document is compared with itself at the ranks where it was shown. This "
            "log tells each ranker's rank of every row. Leave window out, or segment by it.",
            {"by": [opened.schema.window]},
        )


def check_segment_columns(opened: OpenLog, by: Sequence[str]) -> None:
    """Refuse segment columns that are not there, tell outcomes, or have more values than there can be segments."""
    for column in names("by", by, LogError):
        require(column, opened.schema.types, argument="by")
    check_segment_roles(opened.schema, by)
    if by:
        columns = ", ".join(map(opened.dialect.quote, by))
        distinct = f"SELECT DISTINCT {columns} FROM log LIMIT {MAX_SEGMENTS + 1}"
        if opened.rows(f"SELECT COUNT(*) FROM ({distinct}) found", "Counting segments")[0][0] > MAX_SEGMENTS:
            raise LogError(
                f"The segment columns {listed(by)} have more than {MAX_SEGMENTS:,} different values. A segment is a "
                "group such as a device or a country, with a curve of its own: name other columns, or group the values "
                "in the log or by a query (sql)."
            )


def check_segment_roles(schema: Schema, by: Sequence[str]) -> None:
    """Refuse to segment by what was counted: a segment of clicks has nothing but clicks, whatever the position."""
    chosen = names("by", by, LogError)
    for role in ("position", "click", "clicks", "impressions"):
        if (column := getattr(schema, role)) in chosen:
            raise LogError(
                f"Column {column!r} cannot be both {role} and a segment: a segment is a group of page views, queries "
                "or documents that was there before anything was shown or clicked. Name another column (by)."
            )


def check_findings(findings: Iterable[Finding], *, force: bool) -> None:
    """Refuse a log by what was found while it was counted, unless the user wants to go on all the same."""
    going_on = truth("force", force)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors and not going_on:
        raise UnusableLogError(
            *errors, lead="The log cannot be used as it is:", tail="To go on all the same,", arguments={"force": True}
        )


def check_page_view_ids(opened: OpenLog, plan: QueryPlan) -> None:
    """Rows of no page view cannot be told from repeats of each other, so none of them may be dropped as such."""
    name = opened.schema.impression or ""
    view = opened.dialect.nan_to_null(opened.dialect.quote(name), opened.schema.types[name])
    rows, known = opened.rows(f"SELECT COUNT(*), COUNT({view}) FROM log")[0]
    check_usable(opened, plan, rows, rows - known)


def check_usable(opened: OpenLog, plan: QueryPlan, rows: int, unusable: int) -> None:
    """Refuse a log without rows, or with rows that cannot be counted, saying why."""
    if rows == 0:
        raise LogError("The log is empty: it has its columns but no row. Check the path, or the filter that made it.")
    if unusable:
        raise explain_unusable(opened, plan, unusable, rows)


def count_signatures(opened: OpenLog, settings: HarvestSettings) -> CountedLog:
    """Count in one scan, in which rows that cannot be counted come back as groups of their own."""
    plan = skip_rank_checks(opened, settings.plan(opened, known_rankers(opened)))
    sql = signature_sql.signatures(plan)
    if signature_sql.most_signatures(plan) <= settings.max_strata:
        # Sums take several times the room of counts: such a table is for counts.
        answer: Answer | None = opened.table(sql, "Harvesting", few_groups=not plan.schema.aggregated)
    else:
        answer = opened.table_up_to(sql, settings.max_strata, "Harvesting")
    if answer is None:
        return _sum_signatures(opened, plan)
    from posbias.engines.base import filter_rows, segment_numbers
    from posbias.harvesting.tables import cells_from_signatures

    counts = _count_rows(opened, plan, answer)
    good = filter_rows(answer, answer["code_0"] >= 0)
    segment, segments = segment_numbers(good, plan.segments)
    cells = cells_from_signatures(good, segment, plan.coding)
    # A second table tells ranks whoever was shown.
    one_sided = find_one_sided_cells(cells, plan.rankers) if plan.schema.layout.ranks_in == "columns" else []
    findings = [*_notes(opened, plan, counts), *one_sided]
    return CountedLog("signatures", plan.rankers, segments, cells, counts, findings)


@dataclass(frozen=True)
class HarvestSettings:
    """What a harvest was asked for."""

    max_rank: int
    by: tuple[str, ...]
    weighting: Weighting
    non_functional: str
    max_strata: int

    def plan(self, opened: OpenLog, rankers: Sequence[str]) -> QueryPlan:
        """Return what to ask of the log."""
        return QueryPlan(opened.schema, opened.dialect, tuple(rankers), self.max_rank, self.by)


@dataclass(frozen=True)
class CountedLog:
    """What was counted of a log."""

    kind: TableKind
    rankers: tuple[str, ...]
    segments: list[tuple[str | None, ...]]
    # The table, or where it will be: it may be made while the engine is asked for something else.
    made: Cells | PairSums | Future[Cells]
    rows: RowCounts
    findings: list[Finding]

    @property
    def table(self) -> Cells | PairSums:
        """The counts themselves."""
        return self.made.result() if isinstance(self.made, Future) else self.made


def known_rankers(opened: OpenLog) -> tuple[str, ...]:
    """Return the rankers whose ranks are known: those of the rank columns, or of the rankings table."""
    rankers = tuple(opened.schema.rank_columns)
    if opened.schema.layout.ranks_in == "table":
        name = opened.dialect.as_text(opened.dialect.quote(opened.schema.ranker))
        rankers = tuple(sorted(row[0] for row in opened.rows(f"SELECT DISTINCT {name} FROM rankings") if row[0]))
    refuse_rankers(opened.schema, rankers)
    return rankers


def _sum_signatures(opened: OpenLog, plan: QueryPlan) -> CountedLog:
    """Sum over interventional sets, where there are more signatures than are worth keeping."""
    from posbias.engines.base import filter_rows
    from posbias.harvesting.tables import busiest_ranks, pair_sums

    totals = opened.table(signature_sql.signature_totals(plan), "Counting page views")
    counts = _count_rows(opened, plan, totals)
    totals = filter_rows(totals, totals["code_0"] >= 0)
    sums = opened.table(signature_sql.signature_pair_sums(plan, busiest_ranks(totals, len(plan.rankers))), "Summing")
    table, segments = pair_sums(totals, sums, plan.segments)
    return CountedLog("pairs", plan.rankers, segments, table, counts, _notes(opened, plan, counts))


def _count_rows(opened: OpenLog, plan: QueryPlan, answer: Answer) -> RowCounts:
    """Count the rows that are in the harvest and those that are not; refuse those that cannot be."""
    counts = RowCounts.by_code(answer["code_0"], answer["row_count"])
    if opened.schema.aggregated:
        refuse_sums(opened.schema, sum(map(int, answer["impressions"].tolist())))
    check_usable(opened, plan, counts.rows, counts.rows_unusable)
    return counts


def _notes(opened: OpenLog, plan: QueryPlan, counts: RowCounts) -> list[Finding]:
    """Return what is said of rows that are left out, and of files that lack a ranker's column if that may be why.

    A second table may tell several ranks, of which none is known; in rows where another ranker was shown, only it
    tells.
    """
    mixed = find_mixed_files(opened) if counts.rows_contradicted else []
    long = plan.schema.layout.ranks_in == "table"
    if (
        long
        and counts.rows_contradicted
        and not counts.rows_counted
        and (reason := explain_missing_ranks(opened, plan))
    ):
        raise reason
    interleaved = find_interleaved(opened, plan, counts, small_sample(opened, counts.rows))
    several = find_several_ranks(opened, plan) if long else []
    return [*mixed, *(interleaved or find_contradicted_ranks(counts)), *several]


def explain_missing_ranks(opened: OpenLog, plan: QueryPlan) -> UnusableLogError | None:
    """Return why a table of rankings tells no rank of any row, where that is its ids or ranks that contradict."""
    for column in (plan.schema.query, plan.schema.doc):
        error = _no_id_in_common(opened, column)
        if error is not None:
            return error
    several = find_several_ranks(opened, plan)
    return UnusableLogError(*(replace(finding, severity="error") for finding in several)) if several else None


def _no_id_in_common(opened: OpenLog, column: str) -> UnusableLogError | None:
    schema, d = opened.schema, opened.dialect
    text = d.as_text(d.quote(column))
    ids = {
        table: f"SELECT DISTINCT {text} AS id FROM {table} WHERE {text} IS NOT NULL" for table in ("log", "rankings")
    }
    both = f"SELECT COUNT(*) FROM ({ids['log']}) l JOIN ({ids['rankings']}) r ON l.id = r.id"
    if opened.rows(both, "Comparing ids")[0][0]:
        return None
    # The least texts: those of 1 and 1.0, or of 007 and 7, stand side by side.
    here, there = (opened.rows(f"SELECT MIN(id) FROM ({ids[table]}) i")[0][0] for table in ("log", "rankings"))
    return unusable(
        "no-common-ids",
        f"No value of column {column!r} is in both the log and the rankings table: in the log it is "
        f"{schema.types[column]}, such as {here!r}, in the rankings {schema.rankings[column]}, such as {there!r}",
        "Ids are compared as they are written, 1 and 1.0 or 7 and 007 being two: write them alike in both, and check "
        "that both tables are of the same queries.",
    )


def count_exposures(opened: OpenLog, settings: HarvestSettings) -> CountedLog:
    """Take a cheap look at the rankers, then count in one pass over (query, document)."""
    plan = settings.plan(opened, ())
    counted = _count(opened, settings, scan_first(opened, plan))
    # Pairs with more impressions than was likely are counted anew.
    return counted or cast(CountedLog, _count(opened, settings, scan_rows(opened, plan)))


def _count(opened: OpenLog, settings: HarvestSettings, look: FirstScan) -> CountedLog | None:
    """Count by what a look has told; None where it was not sure of that, and was wrong."""
    counts = look.counts
    check_usable(opened, settings.plan(opened, ()), counts.rows, counts.rows_unusable)
    plan = settings.plan(opened, look.rankers)
    natural = plan.schema.natural
    check_non_functional_setting(natural, settings.non_functional)
    notes = [*find_no_ranker(plan.schema), *find_biased_weighting(settings.weighting)]
    if fits_one_pass(plan) and not opened.samples_first:
        found = count_natural(opened, plan, counts, settings.max_strata)
        if found is None:
            return _sum_exposures(opened, plan, settings, counts)
        return CountedLog("exposures", plan.rankers, found[1], found[0], counts, notes)
    one_pass = bool(_one_pass(plan, look))
    sql = _strata_sql(plan, look)
    if not one_pass:
        _refuse_nameless(opened, plan, counts)
    answer = None
    if not opened.samples_first or _seem_few(opened, plan, look, settings.max_strata):
        answer = opened.table_up_to(sql, settings.max_strata, "Harvesting")
    if answer is None:
        return _sum_exposures(opened, plan, settings, counts)
    from posbias._arrays import begun
    from posbias.engines.base import filter_rows, row_count, segment_numbers, stack_columns
    from posbias.harvesting import tables as strata

    if not one_pass:
        segment, segments = segment_numbers(answer, plan.segments)
        cells = strata.cells_from_rows(answer, segment)
        several, pairs = (0, 0) if natural else (strata.count_non_functional(cells), strata.count_pairs(cells))
        check_non_functional(settings.non_functional, several, pairs)
        counts = replace(counts, non_functional_pairs=several)
        findings = [*find_non_functional(several, pairs), *notes]
        return CountedLog("exposures", plan.rankers, segments, cells, counts, findings)
    bucket, pairs = answer["bucket"], int(answer["pairs"].sum())
    nameless = bucket == exposure_sql.MISSING_ID
    if nameless.any():
        check_usable(opened, plan, counts.rows, int(answer["pairs"][nameless].sum()))
    several = int(answer["pairs"][bucket == exposure_sql.NON_FUNCTIONAL].sum())
    check_non_functional(settings.non_functional, several, pairs)
    counts = replace(counts, non_functional_pairs=several)
    tables = [filter_rows(answer, bucket >= 0)]
    if several:
        sql = exposure_sql.cells(plan, having=exposure_sql.SEVERAL_RANKS)
        more = opened.table_up_to(sql, settings.max_strata, "Harvesting pairs at several ranks")
        if more is None:
            return _sum_exposures(opened, plan, settings, counts)
        tables.append(more)
    digits = pack_by_ranker(plan, look.most) if plan.dialect.has_int128 else None
    if digits and not look.sure and not strata.packed_counts_fit(tables, digits, counts.rows_counted):
        return None
    segment, segments = segment_numbers(stack_columns(tables, ["bucket", *plan.segments]), plan.segments)

    def make() -> strata.Cells:
        split = row_count(tables[0])
        parts = [strata.cells_from_exposures(tables[0], segment[:split], plan.masks, digits)]
        parts += [strata.cells_from_rows(table, segment[split:]) for table in tables[1:]]
        return strata.Cells.concatenate(strata.renumber_strata(parts))

    findings = [*find_non_functional(several, pairs), *notes]
    return CountedLog("exposures", plan.rankers, segments, begun(make), counts, findings)


@dataclass(frozen=True)
class FirstScan:
    """The rankers, the rows, and how many impressions one ranker has at one position at the most, and all have.

    Where it is not `sure` of the most, pairs that are counted with it may have more.
    """

    rankers: tuple[str, ...]
    counts: RowCounts
    most: int
    impressions: int
    sure: bool = True


def fits_one_pass(plan: QueryPlan) -> bool:
    """Return whether the pairs of a log that names no ranker can be counted in one pass."""
    schema = plan.schema
    wide = plan.dialect.has_int128 and plan.max_rank <= _MOST_RANKS
    return schema.natural and wide and not schema.aggregated


def count_natural(
    opened: OpenLog, plan: QueryPlan, counts: RowCounts, most: int
) -> tuple[Future[Cells], list[tuple[str | None, ...]]] | None:
    """Return where the cells of such a log will be, and its segments; None where there are more than `most` strata."""
    # Rows of a stratum that differ in clicks are joined afterwards: 1.6 of them each in a log of ten million rows.
    digits = pack_by_rank(plan, counts.rows)
    answer = opened.table_up_to(packed_rank_exposures(plan, digits), 2 * most, "Harvesting")
    if answer is None:
        return None
    from posbias._arrays import begun
    from posbias.engines.base import filter_rows, merge_segments, row_count, segment_numbers
    from posbias.harvesting import tables as strata

    bucket = answer["bucket"]
    nameless = bucket == MISSING_ID
    if nameless.any():
        check_usable(opened, plan, counts.rows, int(answer["pairs"][nameless].sum()))
    still = filter_rows(answer, bucket >= 0)
    segment, segments = segment_numbers(still, plan.segments)
    cells = begun(lambda: strata.cells_from_packed_ranks(still, segment, digits))
    busy = answer["packed_impressions_0"][bucket == TOO_FREQUENT]
    more = None
    if len(busy):
        queries = sorted(set(busy.tolist()))
        sql = frequent_pair_cells(plan, queries if len(queries) <= _MOST_NAMED else ())
        more = opened.table_up_to(sql, most, "Harvesting busy pairs")
        if more is None:
            return None
    if row_count(still) > most and cells.result().stratum.max(initial=-1) >= most:
        return None
    if more is None:
        return cells, segments
    other, others = segment_numbers(more, plan.segments)
    all_segments = merge_segments([segments, others])

    def make() -> strata.Cells:
        parts = [cells.result(), strata.cells_from_rows(more, other)]
        numbered = zip(parts, [segments, others], strict=True)
        return strata.Cells.concatenate(
            strata.renumber_strata([part.renumber_segments(found, all_segments) for part, found in numbered])
        )

    return begun(make), all_segments


def _sum_exposures(opened: OpenLog, plan: QueryPlan, settings: HarvestSettings, counts: RowCounts) -> CountedLog:
    """Sum over interventional sets by the weighting asked for, where there are more strata than are worth keeping."""
    from posbias.harvesting.tables import busiest_ranks, pair_sums

    _refuse_nameless(opened, plan, counts)
    findings = [*find_no_ranker(plan.schema), *find_biased_weighting(settings.weighting)]
    if not plan.schema.natural:
        several, pairs = opened.rows(exposure_counts.count_non_functional(plan), "Looking for pairs at several ranks")[
            0
        ]
        check_non_functional(settings.non_functional, several, pairs)
        counts = replace(counts, non_functional_pairs=several)
        findings = [*find_non_functional(several, pairs), *findings]
    totals = opened.table(exposure_counts.totals(plan), "Counting page views")
    firsts = busiest_ranks(totals, len(plan.rankers))
    sums = opened.table(exposure_sql.exposure_pair_sums(plan, settings.weighting, firsts), "Summing")
    table, segments = pair_sums(totals, sums, plan.segments)
    return CountedLog("pairs", plan.rankers, segments, table, counts, findings)


def _refuse_nameless(opened: OpenLog, plan: QueryPlan, counts: RowCounts) -> None:
    """Refuse rows without an id where the counting itself leaves them out."""
    [(nameless,)] = opened.rows(exposure_counts.rows_without_id(plan), "Looking for ids")
    check_usable(opened, plan, counts.rows, nameless)


def _one_pass(plan: QueryPlan, look: FirstScan) -> str:
    """Return the query that counts in one pass over (query, document), or none where that would cost more than two."""
    if plan.dialect.has_int128:
        fits = len(plan.rankers) <= _ONE_PASS_SIDE_BY_SIDE and bool(plan.masks.groups) and not plan.schema.natural
        return packed_exposures(plan, pack_by_ranker(plan, look.most)) if fits else ""
    # Packed counters hold 2^31 impressions of a pair, which only an aggregated log could exceed.
    fits = not plan.schema.aggregated or look.impressions < PACK // 2
    fits = fits and len(plan.rankers) <= _ONE_PASS and bool(plan.masks.groups) and not plan.schema.natural
    return exposure_sql.exposures(plan) if fits else ""


def _strata_sql(plan: QueryPlan, look: FirstScan) -> str:
    return _one_pass(plan, look) or exposure_sql.cells(plan)


def _seem_few(opened: OpenLog, plan: QueryPlan, look: FirstScan, most: int) -> bool:
    """Return whether strata seem to be few enough to be kept, by those of a few buckets where there may be more."""
    if look.counts.rows_counted <= most:
        return True
    part = exposure_counts.count_strata(plan, _LOOKED_AT, lambda part: _strata_sql(part, look))
    [(found,)] = opened.rows(part, "Looking at a part")
    return bool(found * BUCKETS <= most * _LOOKED_AT)


def scan_first(opened: OpenLog, plan: QueryPlan) -> FirstScan:
    """Look at the columns of a log: at their bounds where those tell that every row is counted, or at all rows."""
    return _scan_bounds(opened, plan) or scan_rows(opened, plan)


def _scan_bounds(opened: OpenLog, plan: QueryPlan) -> FirstScan | None:
    schema = plan.schema
    numbers = schema.click is not None and {schema.types[schema.position], schema.types[schema.click]} <= INTEGERS
    if not (opened.knows_bounds and numbers):
        return None
    rows, named, *bounds = opened.rows(exposure_sql.bounds(plan), "Looking at the rankers")[0]
    placed, least, greatest, judged, low, high = bounds
    sound = rows > 0 and rows == named == placed == judged
    if not (sound and least >= 1 and greatest <= plan.max_rank and low >= 0 and high <= 1):
        return None
    name = plan.dialect.as_text(plan.dialect.quote(schema.ranker))
    rankers = tuple(sorted(row[0] for row in opened.rows(f"SELECT DISTINCT {name} FROM log", "Looking at the rankers")))
    refuse_rankers(schema, rankers)
    look = FirstScan(rankers, RowCounts(rows, rows, 0), rows, rows)
    plan = replace(plan, rankers=rankers)
    if schema.natural or len(pack_by_ranker(plan, rows).groups) == 1:
        return look
    # One number to add up is worth a guess; with more of them, it pays to know how large counts can be.
    fits = rows < _FEW_ROWS and not schema.drop_duplicates and len(pack_by_ranker(plan, _LIKELY).groups) == 1
    return replace(look, most=_LIKELY, sure=False) if fits else None


def scan_rows(opened: OpenLog, plan: QueryPlan) -> FirstScan:
    """Look at all rows of a log."""
    profile = profile_log(opened, plan)
    return FirstScan(profile.rankers, RowCounts.by_profile(profile), profile.most, profile.impressions)
