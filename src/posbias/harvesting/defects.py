"""What can be wrong with single rows of a log, each with how often, an example and a remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from posbias.engines import OpenLog
from posbias.findings import Finding, Severity, UnusableLogError
from posbias.harvesting.mixed_files import find_mixed_files
from posbias.logs.schemas import Schema
from posbias.sql.dialect import Dialect
from posbias.sql.shown import Plan
from posbias.wording import Arguments, listed

# So many columns of a row are shown as an example.
_MOST_SHOWN = 10
_DROP = "Leave such rows out, or repair the job that writes the log."


@dataclass(frozen=True)
class _Defect:
    """A condition on a row, and what it means if it holds."""

    code: str
    condition: str
    what: str
    remedy: str
    severity: Severity = "error"
    arguments: Arguments = field(default_factory=dict)


def _defects(plan: Plan) -> Iterator[_Defect]:
    yield from _missing_values(plan)
    yield from _bad_positions(plan)
    yield from _bad_counts(plan) if plan.schema.aggregated else _bad_clicks(plan)
    if plan.rankers:
        yield _unknown_ranker(plan)
        yield from _bad_ranks(plan.dialect, plan.schema.rank_columns.values(), plan.schema.types)


def _missing_values(plan: Plan) -> Iterator[_Defect]:
    schema, d = plan.schema, plan.dialect
    for name in (schema.query, schema.ranker, *([schema.window] if schema.window else [])):
        yield _Defect("null", _missing(plan, name), f"no value in column {name!r}", _DROP)
    position = schema.position
    yield _Defect("null", f"{d.quote(position)} IS NULL", f"no value in column {position!r}", _DROP)
    if schema.click is not None:
        click, type_ = d.quote(schema.click), schema.types[schema.click]
        nothing = {"VARCHAR": "'0'", "BOOLEAN": "FALSE"}.get(type_, "0")
        yield _Defect(
            "null",
            f"{click} IS NULL",
            f"no value in column {schema.click!r}",
            "If these are results that were not clicked, as after a LEFT JOIN with clicks, let them count as such: "
            f"COALESCE({schema.click}, 0). Leaving them out would make every result a clicked one.",
            arguments={"sql": d.replacing({click: f"COALESCE({click}, {nothing})"})},
        )
    # Where ranks are known the document is only a name: the harvest counts the row, or leaves it out as unranked.
    yield _without_document(plan, "warning" if schema.layout.ranks_known else "error")
    if schema.impression is not None:
        yield _Defect(
            "null",
            _missing(plan, schema.impression),
            f"no value in column {schema.impression!r}",
            "With duplicates='drop' they would all be taken for one page view: leave such rows out."
            if schema.drop_duplicates
            else "Whether they were logged twice cannot be told.",
            "error" if schema.drop_duplicates else "warning",
        )


def _without_document(plan: Plan, severity: Severity) -> _Defect:
    doc = plan.schema.doc
    return _Defect("null", _missing(plan, doc), f"no value in column {doc!r}", _DROP, severity)


def _missing(plan: Plan, name: str) -> str:
    """Return the condition that an id is missing."""
    return f"{plan.dialect.known(plan.dialect.quote(name), plan.schema.types[name])} IS NULL"


def _bad_positions(plan: Plan) -> Iterator[_Defect]:
    column = plan.schema.position
    raw, position = plan.dialect.quote(column), _typed(plan, column)
    yield _Defect(
        "not-a-position",
        f"{raw} IS NOT NULL AND {position} IS NULL",
        f"a position in {column!r} that is not a whole number",
        "Positions are ranks: 1, 2, 3 and so on. Name the right column (position).",
    )
    yield _Defect(
        "zero-based",
        f"{position} = 0",
        f"a position of 0 in {column!r}: positions seem to count from 0",
        "They must count from 1, as must ranks: add 1 to them.",
    )
    yield _Defect("negative-position", f"{position} < 0", f"a negative position in {column!r}", _DROP)


def _bad_clicks(plan: Plan) -> Iterator[_Defect]:
    column = plan.schema.click or ""
    raw = plan.dialect.quote(column)
    click = plan.dialect.click(raw, plan.schema.types[column])
    yield _Defect(
        "not-a-click",
        f"{raw} IS NOT NULL AND NOT COALESCE({click} BETWEEN 0 AND 1, FALSE)",
        f"a click in {column!r} that is neither 0 nor 1",
        "A click is 0 or 1, or true or false. If a row counts clicks over many impressions, name both columns "
        "(impressions and clicks); if it counts several clicks on one result shown, write 1.",
    )


def _bad_counts(plan: Plan) -> Iterator[_Defect]:
    impressions, clicks = plan.schema.impressions or "", plan.schema.clicks or ""
    for column in (impressions, clicks):
        yield _Defect(
            "not-a-count",
            f"NOT COALESCE({_typed(plan, column)} >= 0, FALSE)",
            f"a count in {column!r} that is not a whole number of 0 or more",
            _DROP,
        )
    yield _Defect(
        "clicks-exceed-impressions",
        f"{_typed(plan, clicks)} > {_typed(plan, impressions)}",
        f"more clicks in {clicks!r} than impressions in {impressions!r}",
        "Each click belongs to an impression, and one impression has one click at most: check that the two columns are "
        "not exchanged, and that a second click on the same result is not counted.",
    )


def _bad_ranks(d: Dialect, columns: Iterable[str], types: Mapping[str, str]) -> Iterator[_Defect]:
    """Yield values that are no ranks: of a ranker that was not shown they would pass for "not ranked"."""
    columns = list(columns)
    numbers = {column: d.integer(d.quote(column), types[column]) for column in columns}
    ranks = {column: d.rank(d.quote(column), types[column]) for column in columns}
    if columns:
        yield _Defect(
            "zero-based-rank",
            " OR ".join(f"{numbers[column]} = 0" for column in columns),
            f"a rank of 0 in {listed(columns, most=6)}: ranks seem to count from 0",
            "They must count from 1 like positions: add 1 to them. Where a ranker does not rank a result, leave the "
            "value out.",
        )
        yield _Defect(
            "not-a-rank",
            " OR ".join(f"({ranks[column]} < 1 AND COALESCE({numbers[column]}, 1) <> 0)" for column in columns),
            f"a rank in {listed(columns, most=6)} that is no whole number of 1 or more",
            "Ranks are 1, 2, 3 and so on. Where a ranker does not rank a result, leave the value out.",
        )


def find_bad_rankings(opened: OpenLog) -> list[Finding]:
    """Return values of a second table of rankings that are no ranks."""
    schema, d = opened.schema, opened.dialect
    if schema.layout.ranks_in != "table":
        return []
    names = (schema.query, schema.ranker, schema.doc, schema.rank)
    defects = list(_bad_ranks(d, [schema.rank], schema.rankings))
    return _found(opened, "rankings", defects, _text(names, d))


def _unknown_ranker(plan: Plan) -> _Defect:
    schema, d = plan.schema, plan.dialect
    known = listed(plan.rankers)
    mixed = "if it stands for the lists of these interleaved, say ranks='none' and ranker='none'"
    remedy = f"Add its ranks, or leave its rows out, as one does where it shows results in random order; {mixed}."
    where = "rankings table tells"
    if schema.layout.ranks_in == "columns":
        remedy = (
            "Add a column with its ranks, or leave its rows out, as one does where it shows results in random order; "
            "if the columns are called otherwise, give their pattern, such as ranks='rank_{ranker}'; if they are no "
            f"ranks at all, say ranks='none'; {mixed}."
        )
        where = "log's rank columns tell"
    raw = d.quote(schema.ranker)
    return _Defect(
        "unknown-ranker",
        f"NOT ({_missing(plan, schema.ranker)}) AND ({plan.number(raw, schema.types[schema.ranker])}) IS NULL",
        f"a ranker in {schema.ranker!r} whose ranks are not known: the {where} those of {known}",
        remedy,
    )


def _typed(plan: Plan, column: str) -> str:
    return plan.dialect.integer(plan.dialect.quote(column), plan.schema.types[column])


def row_text(schema: Schema, d: Dialect) -> str:
    """Return an expression that shows a row of the log by its columns, for an example."""
    roles = ("query", "doc", "ranker", "position", "click", "impressions", "clicks", "window")
    known = {role: name for role, name in schema.roles.items() if not (role == "ranker" and schema.natural)}
    names = [*(known[role] for role in roles if role in known), *schema.rank_columns.values()]
    return _text(list(dict.fromkeys(names))[:_MOST_SHOWN], d)


def _text(names: Iterable[str], d: Dialect) -> str:
    return " || ', ' || ".join(f"{d.text(f'{n}=')} || COALESCE({d.as_text(d.quote(n))}, 'null')" for n in names)


def find_defects(opened: OpenLog, plan: Plan) -> list[Finding]:
    """Return what is wrong with rows, in one scan of the log and one of the rankings, where there are any."""
    found = _found(opened, "log", list(_defects(plan)), row_text(plan.schema, plan.dialect))
    from_zero = [f for f in found if f.code in ("zero-based", "zero-based-rank")]
    mending = count_from_one(opened, plan) if from_zero else {}
    found = [replace(f, arguments=mending) if f in from_zero else f for f in found]
    return [*found, *find_bad_rankings(opened)]


def _found(opened: OpenLog, table: str, defects: Sequence[_Defect], row: str) -> list[Finding]:
    """Return which defects rows of a table have, with how many and an example."""
    parts = [
        f"COALESCE(SUM(CASE WHEN {f.condition} THEN 1 ELSE 0 END), 0), MIN(CASE WHEN {f.condition} THEN {row} END)"
        for f in defects
    ]
    rows, *found = opened.rows(f"SELECT COUNT(*), {', '.join(parts)} FROM {table}", "Looking for problems")[0]
    return [
        Finding(
            f.code,
            f.severity,
            f"{{count}} of {{rows}} rows {'' if table == 'log' else f'of the {table} '}have {f.what}",
            int(count),
            example,
            {"rows": int(rows)},
            f.remedy,
            f.arguments,
        )
        for f, count, example in zip(defects, found[::2], found[1::2], strict=True)
        if count
    ]


def count_from_one(opened: OpenLog, plan: Plan) -> Arguments:
    """Return the argument that adds 1 to what counts from 0: positions, and the ranks of a wide log."""
    schema, d = plan.schema, plan.dialect
    columns = [schema.position, *schema.rank_columns.values()]
    least = opened.rows(f"SELECT {', '.join(f'MIN({_typed(plan, c)})' for c in columns)} FROM log")[0]
    added = {
        d.quote(c): f"{d.cast(d.quote(c), 'INTEGER')} + 1" for c, low in zip(columns, least, strict=True) if low == 0
    }
    return {"sql": d.replacing(added)}


def explain_unusable(opened: OpenLog, plan: Plan, unusable: int, rows: int) -> UnusableLogError:
    """Return, as an error, why rows of a log cannot be counted."""
    # A file that lacks a column is the reason why its rows have no value there.
    found = [*find_mixed_files(opened), *find_defects(opened, plan)]
    reasons = [finding for finding in found if finding.severity == "error"]
    # A harvest stops at the first kind of defect that it meets; the user wants to know of all.
    bad = " OR ".join(f"({defect.condition})" for defect in _defects(plan) if defect.severity == "error")
    unusable = max(unusable, opened.rows(f"SELECT COUNT(*) FROM log WHERE {bad}")[0][0])
    if not reasons:
        # Who asks for an explanation of rows that have all else compares or counts by document.
        reasons = _found(opened, "log", [_without_document(plan, "error")], row_text(plan.schema, plan.dialect))
    return UnusableLogError(*reasons, lead=f"{unusable:,} of {rows:,} rows of the log cannot be used:")
