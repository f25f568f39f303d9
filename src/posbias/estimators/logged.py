"""What estimators share that fit on a log: its rows are counted by an engine, and the rest is NumPy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from posbias.arrays import AnyArray, IntArray, tally
from posbias.engines.answers import Answer, rows_of, segment_numbers, stacked
from posbias.errors import EstimateError, LogError
from posbias.estimators.base import CurveEstimator, Evidence
from posbias.logs.click_log import ClickLog
from posbias.logs.schemas import require
from posbias.progress import Progress, silent

if TYPE_CHECKING:
    from posbias.engines import EngineChoice, OpenLog
    from posbias.sql.shown import Plan

Columns = Mapping[str, AnyArray]


@dataclass(frozen=True)
class Observations:
    """What was counted on a log: `totals` by bucket, ranker and rank, and the `rows` an estimator asked for."""

    rankers: tuple[str, ...]
    max_rank: int
    totals: Columns
    rows: Columns

    def segment(self, number: int) -> Observations:
        """Return those of one segment."""
        totals, rows = (
            {name: column[table["segment"] == number] for name, column in table.items()}
            for table in (self.totals, self.rows)
        )
        return Observations(self.rankers, self.max_rank, totals, rows)

    def evidence(self) -> Evidence:
        """Return what stands beside the curve."""
        shape = (len(self.rankers), self.max_rank)
        where = np.ravel_multi_index((self.totals["ranker"], self.totals["rank"] - 1), shape)
        impressions, clicks = (
            tally(where, self.totals[name], shape[0] * shape[1]).astype(np.int64).reshape(shape)
            for name in ("impressions", "clicks")
        )
        views = {name: int(n) for name, n in zip(self.rankers, impressions.max(axis=1), strict=True)}
        return Evidence(impressions.sum(axis=0), clicks.sum(axis=0), views)


class LogEstimator(CurveEstimator):
    """An estimator of p_k / p_1 that looks at the rows of a log.

    A new one defines `name`, `read` and `estimate`, has M among its parameters as `max_rank`, and a line in
    `posbias.estimators.LOG_REGISTRY`.
    """

    fits_on: ClassVar[tuple[str, ...]] = ("log",)

    max_rank: int

    @abstractmethod
    def read(self, engine: OpenLog, plan: Plan) -> tuple[Answer, Answer]:
        """Return impressions and clicks by bucket, ranker and rank, and what else the estimate is made from."""

    @abstractmethod
    def estimate(self, observations: Observations) -> None:
        """Estimate one curve, and keep it."""

    def fit(
        self,
        log: ClickLog,
        *,
        by: Sequence[str] = (),
        engine: EngineChoice | None = None,
        progress: Progress = silent,
    ) -> Self:
        """Estimate the curve of a log, and of each of its segments.

        Arguments:
            log: the click log.
            by: segment columns; each segment gets its own curve too.
            engine: "duckdb" (embedded, the default), "spark", or a value such as `posbias.DuckDB(threads=4)`.
            progress: called with what is being done and the share done.
        """
        from posbias.engines import open_log

        self._check()
        if not isinstance(log, ClickLog):
            raise EstimateError(
                f"{type(self).__name__} looks at the rows of a log: fit takes a ClickLog, not a {type(log).__name__}."
            )
        with open_log(log, engine=engine, progress=progress) as opened:
            for column in by:
                require(column, opened.schema.types, argument="by")
            plan = _plan(opened, self.max_rank, tuple(by))
            totals, rows = self.read(opened, plan)
            _refuse_nameless(opened, plan, totals)
        labels = stacked([totals, rows], plan.segments) if by else None
        number, segments = (None, [()]) if labels is None else segment_numbers(labels, plan.segments)
        split = rows_of(totals)
        observations = Observations(
            plan.rankers,
            self.max_rank,
            _columns(totals, plan, None if number is None else number[:split]),
            _columns(rows, plan, None if number is None else number[split:]),
        )
        if not observations.totals["clicks"].sum():
            raise EstimateError(
                f"There is not a single click in the top {self.max_rank} ranks. Check the column of clicks."
            )
        self.estimate(observations)
        self._require_estimate()
        self.by_ = tuple(by)
        if by:
            for i, key in enumerate(segments):
                part = type(self)(**self.parameters())
                part.estimate(observations.segment(i))
                self.segments_[key] = part
        return self

    def _check(self) -> None:
        super()._check()
        if not isinstance(self.max_rank, int) or self.max_rank < 2:
            raise EstimateError(f"max_rank must be 2 or more to compare ranks, not {self.max_rank!r}.")

    def _require_estimate(self) -> None:
        if np.isnan(self.propensity_[1:]).all():
            raise EstimateError(f"No rank but the first could have an estimate: {self.reasons_[1]}.")


def _plan(engine: OpenLog, max_rank: int, by: tuple[str, ...]) -> Plan:
    """Return the plan of a log's queries, all rankers known by name; refuse rows that cannot be counted."""
    from posbias.harvesting.defects import explain_unusable
    from posbias.sql.exposures import profile
    from posbias.sql.shown import Plan

    plan = Plan(engine.schema, engine.dialect, (), max_rank, by)
    found = engine.rows(profile(plan), "Looking at the rankers")
    rows, unusable = sum(row[2] for row in found), sum(row[2] for row in found if row[1] < 0)
    if rows == 0:
        raise LogError("The log is empty: it has its columns but no row. Check the path, or the filter that made it.")
    if unusable:
        raise explain_unusable(engine, plan, unusable, rows)
    return Plan(engine.schema, engine.dialect, tuple(sorted({row[0] for row in found})), max_rank, by)


def _refuse_nameless(engine: OpenLog, plan: Plan, totals: Answer) -> None:
    from posbias.harvesting.defects import explain_unusable
    from posbias.sql.observations import NAMELESS

    rows = totals["row_count"]
    nameless = int(rows[totals["bucket"] == NAMELESS].sum())
    if nameless:
        raise explain_unusable(engine, plan, nameless, int(rows.sum()))


def _columns(answer: Answer, plan: Plan, segment: IntArray | None) -> Columns:
    """Return an answer's numbers, and the number of each row's segment."""
    columns = {name: column for name, column in answer.items() if name not in plan.segments}
    return columns | {"segment": np.zeros(rows_of(answer), dtype=np.int64) if segment is None else segment}
