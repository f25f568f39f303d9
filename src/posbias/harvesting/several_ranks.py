"""Where a ranker contradicts itself: one document of a query at several ranks."""

from __future__ import annotations

from posbias.engines import OpenLog
from posbias.findings import Finding
from posbias.sql.shown import Plan
from posbias.sql.steps import Step, render


def find_several_ranks(opened: OpenLog, plan: Plan) -> list[Finding]:
    """Return (query, document) pairs for which a ranker is not a function of the query."""
    schema, d, m = plan.schema, plan.dialect, plan.max_rank
    names = {"q": schema.query, "d": schema.doc, "r": schema.ranker}
    if schema.window is not None:
        names["w"] = schema.window
    source, columns = "log", [schema.position]
    if schema.layout.ranks_in == "columns":
        del names["r"]
        columns = [schema.rank_columns[name] for name in plan.rankers]
    elif schema.layout.ranks_in == "table":
        source, columns = "rankings", [schema.rank]
    types = schema.rankings if source == "rankings" else schema.types
    typed = [d.integer(d.quote(c), types[c]) for c in columns]
    # Beyond M there is no rank: being elsewhere there changes nothing.
    places = [f"CASE WHEN {t} BETWEEN 1 AND {m} THEN {t} ELSE 0 END AS place_{i}" for i, t in enumerate(typed)]
    keys = [f"{d.quote(column)} AS {short}" for short, column in names.items()]
    within = "" if schema.layout.ranks_known else " WHERE place_0 > 0"
    differ = " OR ".join(f"MIN(place_{i}) <> MAX(place_{i})" for i in range(len(columns)))
    label = f"{d.text(f'{schema.query}=')} || {d.as_text('q')} || {d.text(f', {schema.doc}=')} || {d.as_text('d')}"
    sql = render(
        [
            Step("places", "Ranks within the top M.", f"SELECT {', '.join([*keys, *places])}\nFROM {source}"),
            Step(
                "pairs",
                "Each (query, document), by one ranker or with all its ranks.",
                f"SELECT q, d, ({differ}) AS differs\nFROM places{within}\nGROUP BY {', '.join(names)}",
            ),
            Step(
                "non_functional",
                "Those with several ranks.",
                "SELECT COUNT(*), COUNT(CASE WHEN differs THEN 1 END), "
                f"MIN(CASE WHEN differs THEN {label} END)\nFROM (SELECT q, d, MAX(differs) AS differs FROM pairs "
                "WHERE q IS NOT NULL AND d IS NOT NULL GROUP BY q, d) t",
            ),
        ]
    )
    pairs, count, example = opened.rows(sql, "Looking for rankers that changed their mind")[0]
    if not count:
        return []
    return [
        Finding(
            "not-a-function",
            "warning",
            f"{{count}} of {{pairs}} (query, document) pairs {schema.layout.contradicting}: a ranker is not a function "
            "of the query",
            int(count),
            example,
            {"pairs": int(pairs)},
            f"Put into the query id what the ranking depends on (user, day, filters). {schema.layout.contradicted}"
            + ("" if schema.layout.ranks_known else " A ranker that shuffles on purpose does no harm."),
        )
    ]
