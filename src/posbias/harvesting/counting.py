"""From a ClickLog to a Harvest: which query to run, and what to do with rows that cannot be counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from posbias.engines import EngineChoice, OpenLog, open_log
from posbias.harvesting.refusals import (
    contradictions,
    counts_by_code,
    moving_warning,
    refuse_moving,
    refuse_pages_without_id,
    refuse_settings,
    refuse_unusable,
    traffic_warning,
)
from posbias.logs.click_log import ClickLog
from posbias.logs.schemas import require
from posbias.logs.weightings import Weighting, default_weighting
from posbias.progress import Progress, silent
from posbias.sql import exposures as exposure_sql
from posbias.sql import signatures as signature_sql
from posbias.sql.dialect import PACK
from posbias.sql.shown import Plan
from posbias.version import __version__

# NumPy is imported only when the engine has answered: it takes as long as harvesting a million rows, and the command
# imports it meanwhile.
if TYPE_CHECKING:
    from posbias.engines.answers import Answer
    from posbias.harvesting.harvests import Harvest
    from posbias.harvesting.strata import Cells, PairSums

# Beyond this many rows of strata a harvest keeps sums over interventional sets instead.
MAX_STRATA = 2_000_000
# With more rankers than this, one pass with an aggregate for each of them costs more than grouping by them.
_ONE_PASS = 8


def harvest(
    log: ClickLog,
    *,
    max_rank: int = 10,
    by: Sequence[str] = (),
    weighting: Weighting | None = None,
    non_functional: Literal["share", "refuse"] = "share",
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    max_strata: int = MAX_STRATA,
) -> Harvest:
    """Harvest the interventions of a log: one aggregation, after which the log is no longer needed.

    Arguments:
        log: the click log.
        max_rank: M; results shown or ranked beyond it are not counted.
        by: segment columns; each segment gets its own counts in the same pass.
        weighting: how much each (query, document) pair counts. "traffic" is the paper's and the default where ranks
            are known (wide, long); "harmonic" is the default in replay; "uniform" counts each pair once. The last
            two compare a pair only with itself, where it was shown at both ranks.
        non_functional: in replay, a ranker that showed a document at several ranks for one query counts at each by
            its "share" of impressions, or is "refuse"d with an error.
        engine: "duckdb" (embedded, the default) or "spark"; or a value with settings of its own, such as
            `posbias.DuckDB(memory_limit="2GB")` or `posbias.Spark(master="yarn")`.
        progress: called with what is being done and the share done.
        max_strata: beyond this many rows, sums over interventional sets are kept in place of strata.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200)))
        >>> posbias.harvest(log)
        <Harvest of 2,000 page views (a: 1,008, b: 992), wide, ranks 1 to 10>

    Reference: Agarwal et al., WSDM 2019, section 3.
    """
    refuse_settings(max_rank, weighting)
    with open_log(log, engine, progress) as opened:
        for column in by:
            require(column, opened.schema.types, flag="by")
        known = opened.schema.layout != "replay"
        chosen = weighting or default_weighting(ranks_known=known)
        settings = Settings(max_rank, tuple(by), chosen, non_functional, max_strata)
        if opened.schema.drop_duplicates:
            refuse_pages_without_id(opened, settings.plan(opened, ()))
        counted = (_count_signatures if known and chosen == "traffic" else count_exposures)(opened, settings)
        from posbias.harvesting.harvests import Harvest

        return Harvest(
            max_rank=max_rank,
            rankers=counted.rankers,
            layout=opened.schema.layout,
            weighting=chosen,
            by=tuple(by),
            segments=tuple(counted.segments),
            table=counted.table,
            about={
                "posbias": __version__,
                "engine": opened.dialect.name,
                "made": datetime.now(UTC).isoformat(timespec="seconds"),
                "source": repr(log),
                **counted.rows,
            },
            warnings=tuple(counted.warnings),
        )


@dataclass(frozen=True)
class Settings:
    """What a harvest was asked for."""

    max_rank: int
    by: tuple[str, ...]
    weighting: Weighting
    non_functional: str
    max_strata: int

    def plan(self, opened: OpenLog, rankers: Sequence[str]) -> Plan:
        """Return what to ask of the log."""
        return Plan(opened.schema, opened.dialect, tuple(rankers), self.max_rank, self.by)


@dataclass(frozen=True)
class _Counted:
    rankers: tuple[str, ...]
    segments: list[tuple[str | None, ...]]
    table: Cells | PairSums
    rows: dict[str, int]
    warnings: list[str]


def known_rankers(opened: OpenLog) -> tuple[str, ...]:
    """Return the rankers whose ranks are known: those of the rank columns, or of the rankings table."""
    if opened.schema.layout == "wide":
        return tuple(opened.schema.rank_columns)
    name = opened.dialect.as_text(opened.dialect.quote(opened.schema.ranker))
    return tuple(sorted(row[0] for row in opened.rows(f"SELECT DISTINCT {name} FROM rankings") if row[0]))


def _count_signatures(opened: OpenLog, settings: Settings) -> _Counted:
    """Wide and long: one scan, in which rows that cannot be counted come back as groups of their own."""
    plan = settings.plan(opened, known_rankers(opened))
    sql = signature_sql.signatures(plan)
    if signature_sql.most_signatures(plan) <= settings.max_strata:
        # Sums take several times the room of counts: such a table is for counts.
        answer: Answer | None = opened.table(sql, "Harvesting", few_groups=not plan.schema.aggregated)
    else:
        answer = opened.table_up_to(sql, settings.max_strata, "Harvesting")
    if answer is None:
        return _sum_signatures(opened, plan)
    from posbias.engines.answers import segment_numbers, select
    from posbias.harvesting.strata import cells_from_signatures

    counts = _count_rows(opened, plan, answer)
    good = select(answer, answer["code_0"] >= 0)
    segment, segments = segment_numbers(good, plan.segments)
    digits = signature_sql.codes(len(plan.rankers), settings.max_rank)
    cells = cells_from_signatures(good, segment, digits, settings.max_rank + 1)
    return _Counted(plan.rankers, segments, cells, counts, contradictions(counts))


def _count_rows(opened: OpenLog, plan: Plan, answer: Answer) -> dict[str, int]:
    """Count the rows that are in a harvest by signature and those that are not; refuse those that cannot be."""
    code, rows = answer["code_0"], answer["row_count"]
    counts = counts_by_code(code, rows)
    refuse_unusable(opened, plan, counts["rows"], int(rows[code == signature_sql.UNUSABLE].sum()))
    return counts


def _sum_signatures(opened: OpenLog, plan: Plan) -> _Counted:
    """Wide and long with more signatures than are worth keeping: sums over interventional sets."""
    from posbias.engines.answers import select
    from posbias.harvesting.strata import busiest, pair_sums

    totals = opened.table(signature_sql.signature_totals(plan), "Counting page views")
    counts = _count_rows(opened, plan, totals)
    totals = select(totals, totals["code_0"] >= 0)
    sums = opened.table(signature_sql.signature_pair_sums(plan, busiest(totals, len(plan.rankers))), "Summing")
    table, segments = pair_sums(totals, sums, plan.segments)
    return _Counted(plan.rankers, segments, table, counts, contradictions(counts))


def count_exposures(opened: OpenLog, settings: Settings) -> _Counted:
    """Replay: a cheap look at the rankers, then one pass over (query, document)."""
    plan = settings.plan(opened, ())
    found = opened.rows(exposure_sql.profile(plan), "Looking at the rankers")
    rows = {
        "rows": sum(row[2] for row in found),
        "rows_counted": sum(row[2] for row in found if row[1] > 0),
        "rows_beyond": sum(row[2] for row in found if row[1] == 0),
    }
    refuse_unusable(opened, plan, rows["rows"], sum(row[2] for row in found if row[1] < 0))
    plan = settings.plan(opened, sorted({row[0] for row in found}))
    # Packed counters hold 2^31 impressions of a pair, which only an aggregated log could exceed.
    fits = not opened.schema.aggregated or sum(row[3] or 0 for row in found) < PACK // 2
    masks = exposure_sql.masks(len(plan.rankers), settings.max_rank)
    one_pass = len(plan.rankers) <= _ONE_PASS and bool(masks) and fits
    sql = exposure_sql.exposures(plan) if one_pass else exposure_sql.cells(plan, moving_only=False)
    answer = opened.table_up_to(sql, settings.max_strata, "Harvesting")
    if answer is None:
        return _sum_exposures(opened, plan, settings, rows)
    from posbias.engines.answers import rows_of, segment_numbers, select, stacked
    from posbias.harvesting import strata

    bucket = answer["bucket"]
    nameless = bucket == exposure_sql.NAMELESS
    if nameless.any():
        refuse_unusable(opened, plan, rows["rows"], int(answer["pairs"][nameless].sum()))
    tables = [select(answer, bucket >= 0)]
    moving = int(answer["pairs"][bucket == exposure_sql.MOVING].sum()) if one_pass else 0
    if moving:
        refuse_moving(settings.non_functional, moving, int(answer["pairs"].sum()))
        sql = exposure_sql.cells(plan, moving_only=True)
        more = opened.table_up_to(sql, settings.max_strata, "Harvesting pairs that moved")
        if more is None:
            return _sum_exposures(opened, plan, settings, rows | {"moving_pairs": moving})
        tables.append(more)
    labels = stacked(tables, ["bucket", *plan.segments])
    segment, segments = segment_numbers(labels, plan.segments)
    split = rows_of(tables[0])
    if one_pass:
        parts = [strata.cells_from_exposures(tables[0], segment[:split], masks, settings.max_rank)]
    else:
        parts = [strata.cells_from_rows(tables[0], segment[:split])]
        moving = strata.count_moving(parts[0])
        if moving:
            refuse_moving(settings.non_functional, moving, strata.count_pairs(parts[0]))
    if len(tables) > 1:
        parts.append(strata.cells_from_rows(tables[1], segment[split:]))
    cells = strata.Cells.joined(strata.renumbered(parts))
    warnings = traffic_warning(settings.weighting)
    if moving:
        warnings = [moving_warning(moving, strata.count_pairs(cells)), *warnings]
    return _Counted(plan.rankers, segments, cells, rows | {"moving_pairs": moving}, warnings)


def _sum_exposures(opened: OpenLog, plan: Plan, settings: Settings, rows: dict[str, int]) -> _Counted:
    """Replay with more strata than are worth keeping: sums over interventional sets by the weighting asked for."""
    from posbias.harvesting.strata import busiest, pair_sums

    totals = opened.table(exposure_sql.totals(plan), "Counting page views")
    sql = exposure_sql.exposure_pair_sums(plan, settings.weighting, busiest(totals, len(plan.rankers)))
    sums = opened.table(sql, "Summing")
    table, segments = pair_sums(totals, sums, plan.segments)
    return _Counted(plan.rankers, segments, table, rows, traffic_warning(settings.weighting))
