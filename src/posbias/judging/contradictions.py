"""Where positions contradict the ranks that the log itself tells."""

from __future__ import annotations

from posbias.engines import OpenLog
from posbias.findings import Finding
from posbias.harvesting.defects import count_from_one
from posbias.sql.shown import Plan, shown
from posbias.sql.steps import Step, render
from posbias.wording import Arguments

# From this share of rows that contradict their ranker on, what is left is no sample of what was shown.
_MOST = 0.5
_SHIFTS = (1, 2, 3)


def find_contradictions(opened: OpenLog, plan: Plan) -> list[Finding]:
    """Return rows shown at a position that is not the rank their own ranker gives them (wide and long)."""
    schema, d = plan.schema, plan.dialect
    own = "CASE ranker " + plan.each("WHEN {i} THEN rank_{i}", " ") + " END"
    label = " || ".join(
        [
            d.text(f"{schema.position}="),
            d.as_text("position"),
            "', but rank '",
            f"COALESCE({d.as_text('own')}, 'null')",
            d.text(f" ({schema.query}="),
            d.as_text("query"),
            d.text(f", {schema.doc}="),
            f"COALESCE({d.as_text('doc')}, 'null')",
            "')'",
        ]
    )
    bad = "(own IS NULL OR own <> position)"
    top = f"(position <= {plan.max_rank} OR {own} BETWEEN 1 AND {plan.max_rank})"
    sql = render(
        [
            *shown(plan, ranks=True),
            Step(
                "owned",
                "The rank by the ranker shown, of rows that can be harvested.",
                f"SELECT query, doc, position, {own} AS own\nFROM shown\n"
                f"WHERE position >= 1 AND ranker IS NOT NULL AND {top}",
            ),
            Step(
                "contradicted",
                "Where it is not the position.",
                f"SELECT COUNT(*), SUM(CASE WHEN {bad} THEN 1 ELSE 0 END), "
                + ", ".join(f"SUM(CASE WHEN own = position - {s} THEN 1 ELSE 0 END)" for s in _SHIFTS)
                + f", MIN(CASE WHEN {bad} THEN {label} END)\nFROM owned",
            ),
        ]
    )
    rows, count, *shifted, example = opened.rows(sql, "Comparing positions with ranks")[0]
    if not count:
        return []
    arguments: Arguments = {}
    # What stands above a list, as advertisements do, shifts it as a whole, and rows of other page views are as good.
    moved = count >= _MOST * rows and max(shifted) < _MOST * count
    if shifted[0] == rows:
        remedy = f"Ranks seem to count from 0, and must count from 1 like {schema.position!r}: add 1 to them."
        arguments = count_from_one(opened, plan) if schema.rank_columns else {}
    elif not moved:
        remedy = (
            "They are left out of the harvest. If results are moved after ranking (advertisements, blending), log the "
            "final ranks. If lists were interleaved, say ranks='none' and ranker='none'. Ranks must count from 1 like "
            "positions."
        )
    else:
        remedy = (
            "They are left out of the harvest, and those that remain mislead. Ranks must count from 1 like positions. "
            "If results are moved after ranking (advertisements, blending), log the final ranks. If lists were "
            "interleaved, compare each document with itself wherever it was shown: replay without a ranker."
        )
        arguments = {"ranks": "none", "ranker": "none"}
    return [
        Finding(
            "contradicted-rank",
            "error" if moved or count == rows else "warning",
            f"{{count}} of {{rows}} rows in the top {plan.max_rank} were shown at a position that is not the rank "
            "their own ranker gives them",
            int(count),
            example,
            {"rows": int(rows)},
            remedy,
            arguments,
        )
    ]
