"""What a harvest refuses to count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from posbias.arguments import names, one_of, truth, whole
from posbias.engines import OpenLog
from posbias.errors import LogError
from posbias.findings import Finding, UnusableLogError
from posbias.harvesting.counts import MOST_RANKS, MOST_SEGMENTS
from posbias.harvesting.defects import explain_unusable
from posbias.logs.column_refusals import require
from posbias.logs.schemas import Schema
from posbias.logs.weightings import WEIGHTINGS, Weighting
from posbias.sql.shown import Plan
from posbias.wording import listed


def refuse_settings(max_rank: int, weighting: Weighting | None = None, non_functional: str = "share") -> None:
    """Refuse what no harvest can be made with."""
    whole("max_rank", max_rank, 2, MOST_RANKS, LogError)
    if weighting is not None:
        one_of("weighting", weighting, WEIGHTINGS, LogError)
    one_of("non_functional", non_functional, ("share", "refuse"), LogError)


def refuse_window(opened: OpenLog, kind: str) -> None:
    """Refuse a window where it would change nothing: rankings that are known are compared at any time."""
    if opened.schema.window is not None and kind == "signatures":
        raise LogError(
            "A window goes with replay, where a document is compared with itself at the ranks where it was shown. This "
            "log tells each ranker's rank of every row. Leave window out, or segment by it.",
            {"by": [opened.schema.window]},
        )


def refuse_segment_roles(schema: Schema, by: Sequence[str]) -> None:
    """Refuse to segment by what was counted: a segment of clicks has nothing but clicks, whatever the position."""
    chosen = names("by", by, LogError)
    for role in ("position", "click", "clicks", "impressions"):
        if (column := getattr(schema, role)) in chosen:
            raise LogError(
                f"Column {column!r} cannot be both {role} and a segment: a segment is a group of page views, queries "
                "or documents that was there before anything was shown or clicked. Name another column (by)."
            )


def refuse_segments(opened: OpenLog, by: Sequence[str]) -> None:
    """Refuse segment columns that are not there, tell outcomes, or have more values than there can be segments."""
    for column in names("by", by, LogError):
        require(column, opened.schema.types, argument="by")
    refuse_segment_roles(opened.schema, by)
    if by:
        columns = ", ".join(map(opened.dialect.quote, by))
        distinct = f"SELECT DISTINCT {columns} FROM log LIMIT {MOST_SEGMENTS + 1}"
        if opened.rows(f"SELECT COUNT(*) FROM ({distinct}) found", "Counting segments")[0][0] > MOST_SEGMENTS:
            raise LogError(
                f"The segment columns {listed(by)} have more than {MOST_SEGMENTS:,} different values. A segment is a "
                "group such as a device or a country, with a curve of its own: name other columns, or group the values "
                "in the log or by a query (sql)."
            )


def refuse_errors(findings: Iterable[Finding], *, force: bool) -> None:
    """Refuse a log by what was found while it was counted, unless the user wants to go on all the same."""
    going_on = truth("force", force)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors and not going_on:
        raise UnusableLogError(
            *errors, lead="The log cannot be used as it is:", tail="To go on all the same,", arguments={"force": True}
        )


def refuse_unusable(opened: OpenLog, plan: Plan, rows: int, unusable: int) -> None:
    """Refuse a log without rows, or with rows that cannot be counted, saying why."""
    if rows == 0:
        raise LogError("The log is empty: it has its columns but no row. Check the path, or the filter that made it.")
    if unusable:
        raise explain_unusable(opened, plan, unusable, rows)


def refuse_pages_without_id(opened: OpenLog, plan: Plan) -> None:
    """Rows of no page view cannot be told from repeats of each other, so none of them may be dropped as such."""
    name = opened.schema.impression or ""
    view = opened.dialect.known(opened.dialect.quote(name), opened.schema.types[name])
    rows, known = opened.rows(f"SELECT COUNT(*), COUNT({view}) FROM log")[0]
    refuse_unusable(opened, plan, rows, rows - known)
