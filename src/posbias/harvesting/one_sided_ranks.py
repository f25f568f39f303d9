"""Ranks that are known only where their own ranker was shown, so that they compare nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from posbias.engines import OpenLog
from posbias.findings import Finding
from posbias.sql.shown import Plan, comma, shown
from posbias.sql.steps import Step, render
from posbias.wording import listed

if TYPE_CHECKING:
    from posbias.harvesting.strata import Cells

# With fewer rows on which another's ranks are known, chance may leave none the other way round.
_FEWEST = 100
# So many rows are looked at first.
_FIRST = 2**17


def find_one_sided(opened: OpenLog, plan: Plan) -> list[Finding]:
    """Return rankers whose ranks no row of another ranker has, in a wide log."""
    if plan.schema.layout.ranks_in != "columns":
        return []
    # What the beginning of a log has the whole has too: most often it settles that there are none.
    *_, others = _counted(opened, plan, first=_FIRST)
    if all(others):
        return []
    return _found(plan.rankers, *_counted(opened, plan))


def _counted(opened: OpenLog, plan: Plan, first: int | None = None) -> tuple[list[int], list[int], list[int]]:
    """Count rows of each ranker, those of them that another ranks too, and rows of others that it ranks."""
    m = plan.max_rank
    beginning = [] if first is None else [Step("beginning", "The first rows.", f"SELECT *\nFROM log\nLIMIT {first}")]
    if beginning:
        plan = replace(plan, log="beginning")
    ranked = plan.each(f"CASE WHEN rank_{{i}} BETWEEN 1 AND {m} THEN 1 ELSE 0 END", " + ")
    each = [
        f"COUNT(CASE WHEN ranker = {i} THEN 1 END), COUNT(CASE WHEN ranker = {i} AND {ranked} > 1 THEN 1 END), "
        f"COUNT(CASE WHEN ranker <> {i} AND rank_{i} BETWEEN 1 AND {m} THEN 1 END)"
        for i in range(len(plan.rankers))
    ]
    why = "Rows of each ranker, those that another ranks too, and rows of others that it ranks."
    counting = Step("known", why, f"SELECT {comma(each)}\nFROM shown\nWHERE position BETWEEN 1 AND {m}")
    answer = list(
        map(
            int,
            opened.rows(render([*beginning, *shown(plan, ranks=True), counting]), "Looking at the others' ranks")[0],
        )
    )
    return answer[::3], answer[1::3], answer[2::3]


def note_one_sided(cells: Cells, rankers: Sequence[str]) -> list[Finding]:
    """Return the same of what was counted by signature."""
    import numpy as np

    from posbias.arrays import tally

    # Strata that were counted by signature have numbers without gaps.
    stratum, size = cells.stratum, int(cells.stratum.max(initial=-1)) + 1
    total = tally(stratum, cells.impressions, size)[stratum]
    several = tally(stratum, np.ones(len(cells)), size)[stratum] > 1
    counts = (cells.impressions, np.where(several, cells.impressions, 0), total - cells.impressions)
    own, shared, others = (np.rint(tally(cells.ranker, n, len(rankers))).astype(int).tolist() for n in counts)
    return _found(rankers, own, shared, others)


def _found(rankers: Sequence[str], own: Sequence[int], shared: Sequence[int], others: Sequence[int]) -> list[Finding]:
    """Return it from rows of each ranker, those of them that another ranks too, and rows of others that it ranks."""
    found = [i for i in range(len(rankers)) if shared[i] >= _FEWEST and not others[i] and sum(own) - own[i] >= _FEWEST]
    if not found:
        return []
    return [
        Finding(
            "one-sided-ranks",
            "error",
            f"the ranks of {listed([rankers[i] for i in found])} are known only where it was shown itself: no result "
            "that another ranker showed has one",
            len(found),
            remedy="Its documents would be compared with what was never shown. Log every ranker's rank with each "
            "result, whoever was shown; if it shows results in random order, leave its rows out; or let the log itself "
            "tell the ranks, where queries recur.",
            arguments={"ranks": "none"},
        )
    ]
