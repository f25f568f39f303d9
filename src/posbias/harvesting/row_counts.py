"""Which rows of a log a harvest counts, and how many it does not and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from posbias.engines import OpenLog
from posbias.harvesting.profiles import Entry, Profile, take_profile
from posbias.logs.bounds import refuse_sums
from posbias.sql import signatures as signature_sql
from posbias.sql.dialect import INTEGERS
from posbias.sql.shown import Plan
from posbias.sql.signatures import BEYOND, CONTRADICTED, UNUSABLE

if TYPE_CHECKING:
    from posbias.arrays import IntArray


@dataclass(frozen=True)
class RowCounts:
    """Rows in all, those that are counted, beyond M, and shown where their own ranker does not put them.

    `non_functional_pairs` are the (query, document) pairs that one ranker showed at several ranks.
    """

    rows: int
    rows_counted: int
    rows_beyond: int
    rows_contradicted: int = 0
    non_functional_pairs: int = 0
    rows_unusable: int = 0

    @classmethod
    def by_code(cls, code: IntArray, rows: IntArray) -> RowCounts:
        """Return the counts of a harvest by signature: rows that are not counted have a code of their own."""

        def marked(mark: int) -> int:
            return int(rows[code == mark].sum())

        counted = int(rows[code >= 0].sum())
        return cls(int(rows.sum()), counted, marked(BEYOND), marked(CONTRADICTED), rows_unusable=marked(UNUSABLE))

    @classmethod
    def by_profile(cls, profile: Profile) -> RowCounts:
        """Return the counts of a replay."""
        return cls(profile.rows, profile.rows_counted, profile.rows_beyond, rows_unusable=profile.rows_unusable)

    def to_dict(self) -> dict[str, int]:
        """Return the counts as a harvest keeps them; one has no rows that cannot be used."""
        return {name: n for name, n in asdict(self).items() if name != "rows_unusable"}


def count_rows(opened: OpenLog, plan: Plan) -> tuple[Profile, RowCounts]:
    """Return what a first look at a log tells, and which of its rows can be counted."""
    if not plan.rankers:
        profile = take_profile(opened, plan)
        return profile, RowCounts.by_profile(profile)
    answer = opened.table(signature_sql.row_counts(trust_ranks(opened, plan)), "Comparing positions with ranks")
    counts = RowCounts.by_code(answer["code_0"], answer["row_count"])
    # Copies that are dropped, the names of rankers whose ranks are not known, and where rows stand that are not where
    # their ranker puts them, are in the log alone.
    elsewhere = counts.rows_contradicted or counts.rows_unusable
    if plan.schema.drop_duplicates or elsewhere or (answer["shown_by"] < 0).any():
        return take_profile(opened, plan), counts
    position = answer["code_0"].clip(min=0)
    columns = [answer["shown_by"], position, *(answer[name] for name in ("row_count", "impressions", "clicks"))]
    found = zip(*(column.tolist() for column in columns), strict=True)
    profile = Profile(tuple(Entry(plan.rankers[ranker], *rest) for ranker, *rest in found))
    refuse_sums(plan.schema, profile.impressions)
    return profile, counts


def trust_ranks(opened: OpenLog, plan: Plan) -> Plan:
    """Ask no row whether its ranks are sound where the files tell that all are."""
    types, columns = plan.schema.types, list(plan.schema.rank_columns.values())
    whole = bool(columns) and all(types[column] in INTEGERS for column in columns)
    least = opened.least(columns) if whole else None
    return replace(plan, ranks_sound=least is not None and least >= 1)
