"""From a ClickLog to a Harvest: which query to run, and what to do with rows that cannot be counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np
import pyarrow as pa

from posbias.engines.duckdb import Engine, open_log
from posbias.errors import LogError
from posbias.harvests import Harvest
from posbias.interventions import WEIGHTINGS, Weighting
from posbias.log import ClickLog, listed, require
from posbias.problems.rows import explain_unusable
from posbias.progress import Progress, silent
from posbias.sql import exposures as exposure_sql
from posbias.sql import signatures as signature_sql
from posbias.sql.dialect import PACK
from posbias.sql.shown import Plan
from posbias.strata import (
    Cells,
    PairSums,
    cells_from_exposures,
    cells_from_rows,
    cells_from_signatures,
    floats,
    ints,
    renumbered,
    segment_numbers,
    select,
)
from posbias.version import __version__

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
    memory_limit: str | None = None,
    threads: int | None = None,
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
        memory_limit, threads: limits of the engine, such as "2GB" and 4.
        progress: called with what is being done and the share done.
        max_strata: beyond this many rows, sums over interventional sets are kept in place of strata.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200)))
        >>> posbias.harvest(log)
        <Harvest of 2,000 page views (a: 1,008, b: 992), wide, ranks 1 to 10>

    Reference: Agarwal et al., WSDM 2019, section 3.
    """
    if max_rank < 2:
        raise LogError(f"max_rank must be 2 or more to compare ranks, not {max_rank}.")
    if weighting is not None and weighting not in WEIGHTINGS:
        raise LogError(f"The weighting {weighting!r} is not known. Use one of {listed(WEIGHTINGS)}.")
    with open_log(log, memory_limit=memory_limit, threads=threads, progress=progress) as engine:
        for column in by:
            require(column, engine.schema.types, flag="by")
        known = engine.schema.layout != "replay"
        chosen: Weighting = weighting or ("traffic" if known else "harmonic")
        settings = Settings(max_rank, tuple(by), chosen, non_functional, max_strata)
        if engine.schema.drop_duplicates:
            _refuse_pages_without_id(engine, settings)
        counted = (_count_signatures if known and chosen == "traffic" else count_exposures)(engine, settings)
        return Harvest(
            max_rank=max_rank,
            rankers=counted.rankers,
            layout=engine.schema.layout,
            weighting=chosen,
            by=tuple(by),
            segments=tuple(counted.segments),
            table=counted.table,
            about={
                "posbias": __version__,
                "engine": engine.dialect.name,
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

    def plan(self, engine: Engine, rankers: Sequence[str]) -> Plan:
        """Return what to ask of the log."""
        return Plan(engine.schema, engine.dialect, tuple(rankers), self.max_rank, self.by)


@dataclass(frozen=True)
class _Counted:
    rankers: tuple[str, ...]
    segments: list[tuple[str | None, ...]]
    table: Cells | PairSums
    rows: dict[str, int]
    warnings: list[str]


def known_rankers(engine: Engine) -> tuple[str, ...]:
    """Return the rankers whose ranks are known: those of the rank columns, or of the rankings table."""
    if engine.schema.layout == "wide":
        return tuple(engine.schema.rank_columns)
    name = engine.dialect.as_text(engine.dialect.quote(engine.schema.ranker))
    return tuple(sorted(row[0] for row in engine.rows(f"SELECT DISTINCT {name} FROM rankings") if row[0]))


def _count_signatures(engine: Engine, settings: Settings) -> _Counted:
    """Wide and long: one scan, in which rows that cannot be counted come back as groups of their own."""
    plan = settings.plan(engine, known_rankers(engine))
    answer = engine.table_up_to(signature_sql.signatures(plan), settings.max_strata, "Harvesting")
    if answer is None:
        return _sum_signatures(engine, plan)
    counts = _count_rows(engine, plan, answer)
    good = select(answer, ints(answer.column("code_0")) >= 0)
    segment, segments = segment_numbers(good, plan.segments)
    digits = signature_sql.codes(len(plan.rankers), settings.max_rank)
    cells = cells_from_signatures(good, segment, digits, settings.max_rank + 1)
    return _Counted(plan.rankers, segments, cells, counts, _contradictions(counts))


def _count_rows(engine: Engine, plan: Plan, answer: pa.Table) -> dict[str, int]:
    """Count the rows that are in a harvest by signature and those that are not; refuse those that cannot be."""
    code, rows = ints(answer.column("code_0")), ints(answer.column("row_count"))
    counts = {
        "rows": int(rows.sum()),
        "rows_counted": int(rows[code >= 0].sum()),
        "rows_beyond": int(rows[code == signature_sql.BEYOND].sum()),
        "rows_contradicted": int(rows[code == signature_sql.CONTRADICTED].sum()),
    }
    _refuse_unusable(engine, plan, counts["rows"], int(rows[code == signature_sql.UNUSABLE].sum()))
    return counts


def _sum_signatures(engine: Engine, plan: Plan) -> _Counted:
    """Wide and long with more signatures than are worth keeping: sums over interventional sets."""
    totals = engine.table(signature_sql.signature_totals(plan), "Counting page views")
    counts = _count_rows(engine, plan, totals)
    totals = select(totals, ints(totals.column("code_0")) >= 0)
    sums = engine.table(signature_sql.signature_pair_sums(plan, _busiest(totals, len(plan.rankers))), "Summing")
    table, segments = _pair_sums(totals, sums, plan)
    return _Counted(plan.rankers, segments, table, counts, _contradictions(counts))


def count_exposures(engine: Engine, settings: Settings) -> _Counted:
    """Replay: a cheap look at the rankers, then one pass over (query, document)."""
    plan = settings.plan(engine, ())
    found = engine.rows(exposure_sql.profile(plan), "Looking at the rankers")
    rows = {
        "rows": sum(row[2] for row in found),
        "rows_counted": sum(row[2] for row in found if row[1] > 0),
        "rows_beyond": sum(row[2] for row in found if row[1] == 0),
    }
    _refuse_unusable(engine, plan, rows["rows"], sum(row[2] for row in found if row[1] < 0))
    plan = settings.plan(engine, sorted({row[0] for row in found}))
    # Packed counters hold 2^31 impressions of a pair, which only an aggregated log could exceed.
    fits = not engine.schema.aggregated or sum(row[3] or 0 for row in found) < PACK // 2
    masks = exposure_sql.masks(len(plan.rankers), settings.max_rank)
    one_pass = len(plan.rankers) <= _ONE_PASS and bool(masks) and fits
    sql = exposure_sql.exposures(plan) if one_pass else exposure_sql.cells(plan, moving_only=False)
    answer = engine.table_up_to(sql, settings.max_strata, "Harvesting")
    if answer is None:
        return _sum_exposures(engine, plan, settings, rows)
    bucket = ints(answer.column("bucket"))
    nameless = bucket == exposure_sql.NAMELESS
    if nameless.any():
        _refuse_unusable(engine, plan, rows["rows"], int(ints(answer.column("pairs"))[nameless].sum()))
    tables = [select(answer, bucket >= 0)]
    moving = int(ints(answer.column("pairs"))[bucket == exposure_sql.MOVING].sum()) if one_pass else 0
    if moving:
        _refuse_moving(settings, moving, int(ints(answer.column("pairs")).sum()))
        sql = exposure_sql.cells(plan, moving_only=True)
        more = engine.table_up_to(sql, settings.max_strata, "Harvesting pairs that moved")
        if more is None:
            return _sum_exposures(engine, plan, settings, rows | {"moving_pairs": moving})
        tables.append(more)
    labels = pa.concat_tables([t.select(["bucket", *plan.segments]) for t in tables], promote_options="permissive")
    segment, segments = segment_numbers(labels, plan.segments)
    split = tables[0].num_rows
    if one_pass:
        parts = [cells_from_exposures(tables[0], segment[:split], masks, settings.max_rank)]
    else:
        parts = [cells_from_rows(tables[0], segment[:split])]
        moving = _count_moving(parts[0])
        if moving:
            _refuse_moving(settings, moving, _count_pairs(parts[0]))
    if len(tables) > 1:
        parts.append(cells_from_rows(tables[1], segment[split:]))
    cells = Cells.joined(renumbered(parts))
    warnings = _moving_warning(moving, _count_pairs(cells)) + _traffic_warning(settings.weighting)
    return _Counted(plan.rankers, segments, cells, rows | {"moving_pairs": moving}, warnings)


def _sum_exposures(engine: Engine, plan: Plan, settings: Settings, rows: dict[str, int]) -> _Counted:
    """Replay with more strata than are worth keeping: sums over interventional sets by the weighting asked for."""
    totals = engine.table(exposure_sql.totals(plan), "Counting page views")
    sql = exposure_sql.exposure_pair_sums(plan, settings.weighting, _busiest(totals, len(plan.rankers)))
    sums = engine.table(sql, "Summing")
    table, segments = _pair_sums(totals, sums, plan)
    return _Counted(plan.rankers, segments, table, rows, _traffic_warning(settings.weighting))


def _busiest(totals: pa.Table, rankers: int) -> list[int]:
    """Return the position, for each ranker, at which most was shown: there its page views are counted."""
    ranker, rank = ints(totals.column("ranker")), ints(totals.column("rank"))
    shown = np.zeros((rankers, int(rank.max(initial=1)) + 1))
    np.add.at(shown, (ranker, rank), ints(totals.column("impressions")))
    return [int(k) for k in np.argmax(shown, axis=1)]


def _pair_sums(totals: pa.Table, sums: pa.Table, plan: Plan) -> tuple[PairSums, list[tuple[str | None, ...]]]:
    labels = pa.concat_tables(
        [t.select(["bucket", *plan.segments]) for t in (totals, sums)], promote_options="permissive"
    )
    segment, segments = segment_numbers(labels, plan.segments)
    none = np.zeros(totals.num_rows, dtype=np.int64)
    impressions, clicks = floats(totals.column("impressions")), floats(totals.column("clicks"))
    return PairSums(
        segment=segment,
        bucket=ints(labels.column("bucket")),
        ranker=np.concatenate([ints(totals.column("ranker")), np.full(sums.num_rows, -1)]),
        rank=np.concatenate([ints(t.column("rank")) for t in (totals, sums)]),
        other=np.concatenate([none, ints(sums.column("other"))]),
        clicks=np.concatenate([clicks, floats(sums.column("clicks"))]),
        skips=np.concatenate([impressions - clicks, floats(sums.column("skips"))]),
    ), segments


def _refuse_unusable(engine: Engine, plan: Plan, rows: int, unusable: int) -> None:
    if rows == 0:
        raise LogError("The log is empty: it has its columns but no row. Check the path, or the filter that made it.")
    if unusable:
        raise LogError(explain_unusable(engine, plan, unusable, rows))


def _refuse_pages_without_id(engine: Engine, settings: Settings) -> None:
    """Rows of no page view cannot be told from repeats of each other, so none of them may be dropped as such."""
    view = engine.dialect.quote(engine.schema.impression or "")
    rows, known = engine.rows(f"SELECT COUNT(*), COUNT({view}) FROM log")[0]
    _refuse_unusable(engine, settings.plan(engine, ()), rows, rows - known)


def _contradictions(counts: dict[str, int]) -> list[str]:
    found, rows = counts["rows_contradicted"], counts["rows"]
    if not found:
        return []
    if counts["rows_counted"] == 0:
        raise LogError(
            f"All {found:,} rows within the top ranks were shown at a position that is not the rank their ranker gives "
            "them. Ranks must count from 1 like positions; check the columns named by --ranks or the --rankings table."
        )
    return [
        f"{found:,} of {rows:,} rows were left out: they were shown at a position that is not the rank their ranker "
        "gives them. `posbias check` shows examples."
    ]


def _refuse_moving(settings: Settings, moving: int, pairs: int) -> None:
    if settings.non_functional == "refuse":
        raise LogError(
            f"{moving:,} of {pairs:,} (query, document) pairs were shown at several ranks by one and the same ranker, "
            "so it is not a function of the query. Put into the query id what the ranking depends on (user, day, "
            "filters), or let such pairs count by their shares with --non-functional share."
        )


def _moving_warning(moving: int, pairs: int) -> list[str]:
    if not moving:
        return []
    return [
        f"{moving:,} of {pairs:,} (query, document) pairs were shown at several ranks by one ranker; each rank counts "
        "by its share."
    ]


def _traffic_warning(weighting: Weighting) -> list[str]:
    if weighting != "traffic":
        return []
    return [
        "Weighting by traffic in replay is biased when rankers get unequal traffic and queries rarely recur: a pair "
        "enters only if both rankers happened to serve it. The default, harmonic, does not have this bias."
    ]


def _count_pairs(cells: Cells) -> int:
    _, first = np.unique(cells.stratum, return_index=True)
    return int(cells.pairs[first].sum())


def _count_moving(cells: Cells) -> int:
    """Return how many pairs a ranker showed at several ranks."""
    size = int(cells.ranker.max(initial=0)) + 1
    own, seen = np.unique(cells.stratum * size + cells.ranker, return_counts=True)
    moving = np.unique(own[seen > 1] // size)
    return _count_pairs(cells.where(np.isin(cells.stratum, moving)))
