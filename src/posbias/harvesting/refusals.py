"""What a harvest refuses to count, and what it says of rows that it left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posbias.engines import OpenLog
from posbias.errors import LogError
from posbias.harvesting.defects import explain_unusable
from posbias.logs.weightings import WEIGHTINGS, Weighting
from posbias.sql.shown import Plan
from posbias.sql.signatures import BEYOND, CONTRADICTED
from posbias.wording import listed

if TYPE_CHECKING:
    from posbias.arrays import IntArray


def refuse_settings(max_rank: int, weighting: Weighting | None) -> None:
    """Refuse what no harvest can be made with."""
    if max_rank < 2:
        raise LogError(f"max_rank must be 2 or more to compare ranks, not {max_rank}.")
    if weighting is not None and weighting not in WEIGHTINGS:
        raise LogError(f"The weighting {weighting!r} is not known. Use one of {listed(WEIGHTINGS)}.")


def refuse_unusable(opened: OpenLog, plan: Plan, rows: int, unusable: int) -> None:
    """Refuse a log without rows, or with rows that cannot be counted, saying why."""
    if rows == 0:
        raise LogError("The log is empty: it has its columns but no row. Check the path, or the filter that made it.")
    if unusable:
        raise LogError(explain_unusable(opened, plan, unusable, rows))


def refuse_pages_without_id(opened: OpenLog, plan: Plan) -> None:
    """Rows of no page view cannot be told from repeats of each other, so none of them may be dropped as such."""
    view = opened.dialect.quote(opened.schema.impression or "")
    rows, known = opened.rows(f"SELECT COUNT(*), COUNT({view}) FROM log")[0]
    refuse_unusable(opened, plan, rows, rows - known)


def counts_by_code(code: IntArray, rows: IntArray) -> dict[str, int]:
    """Return how many rows of a harvest by signature are counted, and how many are not and why."""
    return {
        "rows": int(rows.sum()),
        "rows_counted": int(rows[code >= 0].sum()),
        "rows_beyond": int(rows[code == BEYOND].sum()),
        "rows_contradicted": int(rows[code == CONTRADICTED].sum()),
    }


def contradictions(counts: dict[str, int]) -> list[str]:
    """Return what to say of rows shown where their ranker does not put them; refuse if there are no others."""
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


def refuse_moving(non_functional: str, moving: int, pairs: int) -> None:
    """Refuse rankers that are no function of the query, where that was asked for."""
    if non_functional == "refuse":
        raise LogError(
            f"{moving:,} of {pairs:,} (query, document) pairs were shown at several ranks by one and the same ranker, "
            "so it is not a function of the query. Put into the query id what the ranking depends on (user, day, "
            "filters), or let such pairs count by their shares with --non-functional share."
        )


def moving_warning(moving: int, pairs: int) -> str:
    """Return what to say of pairs that one ranker showed at several ranks."""
    return (
        f"{moving:,} of {pairs:,} (query, document) pairs were shown at several ranks by one ranker; each rank counts "
        "by its share."
    )


def traffic_warning(weighting: Weighting) -> list[str]:
    """Return what to say of a harvest of replay by traffic."""
    if weighting != "traffic":
        return []
    return [
        "Weighting by traffic in replay is biased when rankers get unequal traffic and queries rarely recur: a pair "
        "enters only if both rankers happened to serve it. The default, harmonic, does not have this bias."
    ]
