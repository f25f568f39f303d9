"""What click models and experiments need to know of a log, as a value: `Observations`, counted once by an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypedDict, Unpack

import numpy as np

from posbias.arrays import AnyArray, IntArray, tally
from posbias.engines import EngineChoice as EngineChoice
from posbias.engines import OpenLog, open_log
from posbias.engines.answers import Answer, rows_of, segment_numbers, stacked
from posbias.errors import EstimateError, HarvestError, LogError
from posbias.findings import Finding
from posbias.harvesting.page_views import count_page_views
from posbias.harvesting.profiles import take_profile
from posbias.harvesting.random_order import Agreement, number_of
from posbias.harvesting.refusals import refuse_errors, refuse_segments, refuse_settings, refuse_unusable
from posbias.harvesting.repeats import find_repeats
from posbias.harvesting.samples import small_sample
from posbias.harvesting.shortages import find_no_clicks
from posbias.logs.click_log import ClickLog
from posbias.logs.column_refusals import require
from posbias.progress import Progress, silent
from posbias.sql.dialect import INTEGERS
from posbias.sql.observations import NAMELESS, feature_positions, pair_positions, totals
from posbias.sql.random_order import random_order
from posbias.sql.shown import Plan
from posbias.sql.swaps import NO_RANK, swaps
from posbias.wording import listed

Columns = Mapping[str, AnyArray]
Segment = tuple[str | None, ...]
Kind = Literal["totals", "pairs", "features", "swaps", "random"]
_Read = Callable[[OpenLog, Plan], tuple[Answer, Answer]]

_NUMBERS = INTEGERS | {"DOUBLE", "FLOAT", "DECIMAL", "BOOLEAN"}


class How(TypedDict, total=False):
    """How a log is observed: M, segment columns, the engine, who is told of progress, and whether damage is borne."""

    max_rank: int
    by: Sequence[str]
    engine: EngineChoice | None
    progress: Progress
    force: bool


@dataclass(frozen=True, eq=False)
class Observations:
    """Impressions and clicks of a log's top ranks, and by what is to explain them.

    Made by `observe_totals`, `observe_pairs`, `observe_features`, `observe_swaps` and `observe_random`; an estimator's
    `observe` makes those that it takes. After that the log is no longer needed.

    Attributes:
        kind: what `rows` tell apart: nothing more ("totals"), the (query, document) pairs or vectors of features by a
            number `item` ("pairs", "features"), or the ranks before an experiment's swap ("swaps"). Those of "random"
            tell of the `pairs` that a ranker showed again how far their places agree, as `sql.random_order` says.
        max_rank: M, the number of top ranks counted.
        rankers: the rankers' names, sorted.
        totals: `impressions` and `clicks` by `segment`, `bucket`, `ranker` and `rank`; those of "swaps" are the
            experiment's alone.
        rows: `impressions` and `clicks` by `segment`, `rank` and what the kind says.
        by: the segment columns.
        segments: the segments found, each a tuple of values.
        features: the columns that became `feature_0`, `feature_1` and so on in `rows`.
        findings: what the user should know about the rows.
        ranker: the ranker that "random" are of.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200)))
        >>> observe_totals(log, max_rank=3).impressions
        array([2000, 2000, 2000])
    """

    kind: Kind
    max_rank: int
    rankers: tuple[str, ...]
    totals: Columns
    rows: Columns
    by: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ((),)
    features: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    ranker: str | None = None

    @cached_property
    def shown(self) -> IntArray:
        """Impressions and clicks by ranker and rank: (2, m, M)."""
        shape = (len(self.rankers), self.max_rank)
        where = np.ravel_multi_index((self.totals["ranker"], self.totals["rank"] - 1), shape)
        counts = [tally(where, self.totals[name], shape[0] * shape[1]) for name in ("impressions", "clicks")]
        return np.stack(counts).astype(np.int64).reshape(2, *shape)

    @property
    def page_views(self) -> dict[str, int]:
        """The page views that each ranker served."""
        return dict(zip(self.rankers, count_page_views(self.shown[0]).tolist(), strict=True))

    @property
    def impressions(self) -> IntArray:
        """Impressions by rank."""
        return np.asarray(self.shown[0].sum(axis=0))

    @property
    def clicks(self) -> IntArray:
        """Clicks by rank."""
        return np.asarray(self.shown[1].sum(axis=0))

    def segment(self, key: Segment | str) -> Observations:
        """Return those of one segment alone."""
        wanted = (key,) if isinstance(key, str) else tuple(key)
        if wanted not in self.segments:
            raise HarvestError(f"There is no segment {wanted!r}. Segments: {listed(map(str, self.segments))}.")
        number = self.segments.index(wanted)
        alone = [
            {name: column[table["segment"] == number] for name, column in table.items()}
            for table in (self.totals, self.rows)
        ]
        return replace(self, by=(), segments=((),), totals=alone[0], rows=alone[1])


def observe_totals(log: ClickLog, **how: Unpack[How]) -> Observations:
    """Count impressions and clicks by bucket, ranker and rank."""

    def read(opened: OpenLog, plan: Plan) -> tuple[Answer, Answer]:
        table = opened.table(totals(plan), "Counting clicks")
        return table, table

    return _observed("totals", read, log, **how)


def observe_pairs(log: ClickLog, **how: Unpack[How]) -> Observations:
    """Count impressions and clicks of each (query, document) pair at each rank."""

    def read(opened: OpenLog, plan: Plan) -> tuple[Answer, Answer]:
        table = opened.table(pair_positions(plan), "Counting pairs")
        nameless = int((table["item"] < 0).sum())
        if nameless:
            raise LogError(
                f"There are rows with no value in column {plan.schema.doc!r} ({nameless:,} groups of them by query and "
                "rank), which belong to no (query, document) pair. Leave such rows out."
            )
        return opened.table(totals(plan), "Counting clicks"), table

    return _observed("pairs", read, log, **how)


def observe_features(log: ClickLog, features: Sequence[str], **how: Unpack[How]) -> Observations:
    """Count impressions and clicks of each vector of features, columns of numbers or booleans, at each rank."""

    def read(opened: OpenLog, plan: Plan) -> tuple[Answer, Answer]:
        types = plan.schema.types
        for column in features:
            require(column, types, argument="features")
            if types[column].split("(")[0] not in _NUMBERS:
                raise LogError(
                    f"The feature {column!r} is of type {types[column]}. Features are numbers or booleans: encode it "
                    "in the log, or by a query (sql)."
                )
        table = opened.table(feature_positions(plan, features), "Counting by features")
        return opened.table(totals(plan), "Counting clicks"), table

    observed = _observed("features", read, log, **how)
    return replace(observed, features=tuple(features))


def observe_swaps(log: ClickLog, **how: Unpack[How]) -> Observations:
    """Count an experiment by bucket, ranker, original rank, rank shown and the last rank of the page (`reach`)."""

    def read(opened: OpenLog, plan: Plan) -> tuple[Answer, Answer]:
        column = plan.schema.original
        if column is None:
            raise LogError(
                "A swap experiment's log has a column with the rank that a result had before it was swapped, beside "
                f"the position at which it was shown. 'original_rank' is not in the log. Columns found: "
                f"{listed(plan.schema.types)}. Say which to read.",
                {"original": "COLUMN"},
            )
        table = opened.table(swaps(plan, column), "Counting swaps")
        rows, original = table["row_count"], table["original"]
        bad = int(rows[original == NO_RANK].sum())
        if bad:
            raise LogError(
                f"{bad:,} of {rows.sum():,} rows have a value in {column!r} that is not a rank. Ranks before the swap "
                "count from 1 like positions. Where a result was no part of the experiment, leave the value out."
            )
        if not len(rows):
            raise EstimateError(
                f"No row within the top {plan.max_rank} has a value in {column!r}: nothing was swapped."
            )
        return table, table

    return _observed("swaps", read, log, **how)


def observe_random(log: ClickLog, ranker: str | bool | None, **how: Unpack[How]) -> Observations:
    """Count impressions and clicks by bucket, ranker and rank, and how far results that a ranker shows again agree."""

    def read(opened: OpenLog, plan: Plan) -> tuple[Answer, Answer]:
        number = number_of(ranker, plan.rankers)
        order = opened.table(random_order(plan, number), "Looking at the order")
        paged = plan.schema.impression is not None and not plan.schema.aggregated
        found = Agreement.of_rows(order).findings(plan.rankers[number], paged=paged)
        refuse_errors(found, force=how.get("force", False))
        return opened.table(totals(plan), "Counting clicks"), order

    observed = _observed("random", read, log, **how)
    return replace(observed, ranker=observed.rankers[number_of(ranker, observed.rankers)])


def _observed(
    kind: Kind,
    read: _Read,
    log: ClickLog,
    *,
    max_rank: int = 10,
    by: Sequence[str] = (),
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    force: bool = False,
) -> Observations:
    """Open a log, refuse rows that cannot be counted, and return the totals and rows that `read` asks for."""
    refuse_settings(max_rank)
    with open_log(log, engine, progress) as opened:
        refuse_segments(opened, by)
        plan = Plan(opened.schema, opened.dialect, (), max_rank, tuple(by))
        profile = take_profile(opened, plan)
        refuse_unusable(opened, plan, profile.rows, profile.rows_unusable)
        plan = replace(plan, rankers=profile.rankers)
        findings = [*find_no_clicks(profile.positions), *find_repeats(opened, plan, small_sample(opened, profile.rows))]
        refuse_errors(findings, force=force)
        counted, rows = read(opened, plan)
        nameless = counted["row_count"][counted["bucket"] == NAMELESS]
        if nameless.size:
            refuse_unusable(opened, plan, int(counted["row_count"].sum()), int(nameless.sum()))
    numbers, segments = segment_numbers(stacked([counted, rows], ["rank", *plan.segments]), plan.segments)
    split = rows_of(counted)
    return Observations(
        kind=kind,
        max_rank=max_rank,
        rankers=plan.rankers,
        totals=_columns(counted, plan, numbers[:split]),
        rows=_columns(rows, plan, numbers[split:]),
        by=plan.by,
        segments=tuple(segments),
        findings=tuple(findings),
    )


def _columns(answer: Answer, plan: Plan, segment: IntArray) -> Columns:
    """Return an answer's numbers, and the number of each row's segment."""
    return {name: column for name, column in answer.items() if name not in plan.segments} | {"segment": segment}
