"""Where a log contradicts itself: positions and ranks, one ranker with itself, one file with another."""

from __future__ import annotations

from collections import Counter

from posbias.engines import OpenLog
from posbias.findings import Problem
from posbias.harvesting.defects import count_from_one
from posbias.sql.shown import Plan, shown
from posbias.sql.steps import Step, render


def find_contradictions(opened: OpenLog, plan: Plan) -> list[Problem]:
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
    sql = render(
        [
            *shown(plan, ranks=True),
            Step(
                "owned",
                "The rank by the ranker shown, of rows that can be harvested.",
                f"SELECT query, doc, position, {own} AS own\nFROM shown\n"
                f"WHERE position BETWEEN 1 AND {plan.max_rank} AND ranker IS NOT NULL",
            ),
            Step(
                "contradicted",
                "Where it is not the position.",
                f"SELECT COUNT(*), SUM(CASE WHEN {bad} THEN 1 ELSE 0 END), "
                "SUM(CASE WHEN own = position - 1 THEN 1 ELSE 0 END), "
                f"MIN(CASE WHEN {bad} THEN {label} END)\nFROM owned",
            ),
        ]
    )
    rows, count, less_by_one, example = opened.rows(sql, "Comparing positions with ranks")[0]
    if not count:
        return []
    flags = ""
    if less_by_one == rows:
        remedy = f"Ranks seem to count from 0, and must count from 1 like {schema.position!r}: add 1 to them."
        flags = count_from_one(opened, plan) if schema.layout == "wide" else ""
    else:
        remedy = (
            "They are left out of the harvest. If results are moved after ranking (advertisements, blending), log the "
            "final ranks. Ranks must count from 1 like positions."
        )
    return [
        Problem(
            "contradicted-rank",
            "warning" if count < rows else "error",
            f"{count:,} of {rows:,} rows in the top {plan.max_rank} were shown at a position that is not the rank "
            "their own ranker gives them",
            int(count),
            example,
            remedy,
            flags,
        )
    ]


def find_moving(opened: OpenLog, plan: Plan) -> list[Problem]:
    """Return (query, document) pairs for which a ranker is not a function of the query."""
    schema, d, m = plan.schema, plan.dialect, plan.max_rank
    names = {"q": schema.query, "d": schema.doc}
    if schema.layout == "wide":
        columns = [schema.rank_columns[name] for name in plan.rankers]
        source = "log"
        where = "have rank columns that differ between their rows"
        remedy = "Each row is counted by its own ranks."
    else:
        names["r"] = schema.ranker
        columns = [schema.position if schema.layout == "replay" else schema.rank]
        source = "log" if schema.layout == "replay" else "rankings"
        where = (
            "were shown at several positions by one and the same ranker"
            if schema.layout == "replay"
            else "have several ranks by one ranker in the rankings table"
        )
        remedy = (
            "Otherwise each position counts by its share, or refuse such logs with --non-functional refuse."
            if schema.layout == "replay"
            else "Otherwise such a rank counts as not known, and rows shown there are left out."
        )
    types = schema.rankings if source == "rankings" else schema.types
    typed = [d.integer(d.quote(c), types[c]) for c in columns]
    # Beyond M there is no rank: moving there changes nothing.
    places = [f"CASE WHEN {t} BETWEEN 1 AND {m} THEN {t} ELSE 0 END AS place_{i}" for i, t in enumerate(typed)]
    keys = [f"{d.quote(column)} AS {short}" for short, column in names.items()]
    within = " WHERE place_0 > 0" if schema.layout == "replay" else ""
    differ = " OR ".join(f"MIN(place_{i}) <> MAX(place_{i})" for i in range(len(columns)))
    label = f"{d.text(f'{schema.query}=')} || {d.as_text('q')} || {d.text(f', {schema.doc}=')} || {d.as_text('d')}"
    sql = render(
        [
            Step("places", "Ranks within the top M.", f"SELECT {', '.join([*keys, *places])}\nFROM {source}"),
            Step(
                "pairs",
                "Each (query, document), by one ranker or with all its ranks.",
                f"SELECT q, d, ({differ}) AS moves\nFROM places{within}\nGROUP BY {', '.join(names)}",
            ),
            Step(
                "moving",
                "Those with several ranks.",
                "SELECT COUNT(*), COUNT(CASE WHEN moves THEN 1 END), "
                f"MIN(CASE WHEN moves THEN {label} END)\nFROM (SELECT q, d, MAX(moves) AS moves FROM pairs "
                "WHERE q IS NOT NULL AND d IS NOT NULL GROUP BY q, d) t",
            ),
        ]
    )
    pairs, count, example = opened.rows(sql, "Looking for rankers that changed their mind")[0]
    if not count:
        return []
    return [
        Problem(
            "not-a-function",
            "warning",
            f"{count:,} of {pairs:,} (query, document) pairs {where}: a ranker is not a function of the query",
            int(count),
            example,
            f"Put into the query id what the ranking depends on (user, day, filters). {remedy}",
        )
    ]


def find_mixed_files(opened: OpenLog) -> list[Problem]:
    """Return columns in use whose type differs between the files of a log, or that some file lacks."""
    files = opened.file_columns()
    schema = opened.schema
    ranks = list(schema.rank_columns.values())
    problems = []
    for column in [*schema.roles.values(), *ranks]:
        types = {file: columns.get(column, "missing") for file, columns in files.items()}
        counts = Counter(types.values())
        if len(counts) < 2:
            continue
        told = "; ".join(f"{t} in {n:,} of {len(files):,}" for t, n in counts.most_common())
        odd = counts.most_common()[-1][0]
        lacking = "missing" in counts
        # A ranker that did not exist yet has no column: no rank is what its absence means.
        harmless = not lacking or column in ranks or (column == schema.impression and not schema.drop_duplicates)
        problems.append(
            Problem(
                "mixed-files",
                "warning" if harmless else "error",
                f"the files disagree on column {column!r}: {told}",
                counts[odd],
                f"{odd} in {next(file for file, t in types.items() if t == odd)}",
                _remedy(column, schema.types[column], lacking, column in ranks),
            )
        )
    return problems


def _remedy(column: str, type_: str, lacking: bool, rank: bool) -> str:
    if rank and lacking:
        return (
            "Where it is missing, that ranker is taken to rank nothing in the top M. Leave those files out if it did."
        )
    if lacking:
        return "Leave those files out, or write them again with the column."
    return f"It is read as {type_}; write all files with one type to be sure that ids are the same everywhere."
