"""Why no row of a log is where its second table puts it."""

from __future__ import annotations

from dataclasses import replace

from posbias.engines import OpenLog
from posbias.findings import UnusableLogError, unusable
from posbias.harvesting.several_ranks import find_several_ranks
from posbias.sql.shown import Plan


def explain_unranked(opened: OpenLog, plan: Plan) -> UnusableLogError | None:
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
        "ids-differ",
        f"No value of column {column!r} is in both the log and the rankings table: in the log it is "
        f"{schema.types[column]}, such as {here!r}, in the rankings {schema.rankings[column]}, such as {there!r}",
        "Ids are compared as they are written, 1 and 1.0 or 7 and 007 being two: write them alike in both, and check "
        "that both tables are of the same queries.",
    )
