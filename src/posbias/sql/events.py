"""Queries that join two tables of events, what was shown and what was clicked, into a click log.

`log_query` makes the log. The other queries count problems first: missing values, positions that count from 0, results
that a page view shows twice, ids that stand for two page views, clicks on results that were not shown.

Four modules are named events. This one writes the SQL. `engines/events.py` runs the queries that count problems, and
reports them as findings. `harvesting/events.py` writes the log to a file (`posbias.write_events`). `cli/events.py` is
the command `posbias events`. Beside them `sql/trackers.py` writes the SQL for the events of GA4, Snowplow and UBI.

Inside a query a result has the columns page_view, query, ranker (if there is one), doc, position, and carried_<i> for
columns that come along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posbias.logs.schema import CLICK, DOC, INTEGERS, NESTED, POSITION, QUERY, RANKER, VIEW, EventSchema
from posbias.sql.dialects import Dialect
from posbias.sql.plan import Step, comma, render

# The largest position as logged: a position of the log has 32 bits and counts from 1.
_LARGEST_POSITION = 2**31 - 2
_SINGLE_POSITION = "CASE WHEN position = max_position THEN position END"
# Whether one id stands for two page views: its results are of two queries or rankers, or two share a position.
_CONFLICTING = (
    "SUM(CASE WHEN contradictory THEN 1 ELSE 0 END) > 0 OR MIN(query) <> MAX(max_query)\n"
    f"  OR COUNT({_SINGLE_POSITION}) > COUNT(DISTINCT {_SINGLE_POSITION})"
)


@dataclass(frozen=True)
class EventPlan:
    """What is asked of two tables of events.

    Arguments:
        schema (EventSchema): the columns of both tables.
        dialect (Dialect): the SQL to write.
        source_steps (sequence of Step, default ()): steps that make the two tables, if they are not read as they are.
        impressions (str, default "impressions"): the table of what was shown.
        clicks (str, default "clicks"): the table of what was clicked.
        from_zero (sequence, default ()): the applications whose positions count from 0; all others count from 1.
        irregular (bool, default False): whether any page view shows a result several times or contradicts itself.
        positions_as_logged (bool, default False): whether to take positions as they were logged, for the queries that
            find out where they begin.
    """

    schema: EventSchema
    dialect: Dialect
    source_steps: Sequence[Step] = ()
    impressions: str = "impressions"
    clicks: str = "clicks"
    from_zero: Sequence[str | None] = ()
    irregular: bool = False
    positions_as_logged: bool = False

    @property
    def keys(self) -> list[str]:
        """The columns of a result inside a query, without those that are carried along."""
        return ["page_view", "query", *(["ranker"] if self.schema.ranker else []), "doc", "position"]

    @property
    def carried(self) -> list[str]:
        """The names of carried columns inside a query."""
        return [f"carried_{i}" for i in range(len(self.schema.carried))]


# ---- The log


def log_query(plan: EventPlan) -> str:
    """Return the query that makes the log: one row for each result shown, with whether it was clicked."""
    steps = [*plan.source_steps, *_consistent_results(plan, plan.carried), _clicked_step(plan)]
    d, schema = plan.dialect, plan.schema
    columns = [
        f"s.query AS {d.quote(QUERY)}",
        f"s.doc AS {d.quote(DOC)}",
        *([f"s.ranker AS {d.quote(RANKER)}"] if schema.ranker else []),
        f"{d.cast('s.position', 'INTEGER')} AS {d.quote(POSITION)}",
        f"{d.cast('CASE WHEN c.page_view IS NULL THEN 0 ELSE 1 END', 'TINYINT')} AS {d.quote(CLICK)}",
        f"s.page_view AS {d.quote(VIEW)}",
        *(f"s.{alias} AS {d.quote(name)}" for alias, name in zip(plan.carried, schema.carried, strict=True)),
    ]
    steps.append(
        Step(
            "answer",
            "Each result once, clicked or not.",
            "SELECT\n  "
            + ",\n  ".join(columns)
            + f"\nFROM {steps[-2].name} s\nLEFT JOIN clicked c ON {_same_result(plan)}",
        )
    )
    return render(steps)


def _consistent_results(plan: EventPlan, carried: list[str]) -> list[Step]:
    """Return the steps that end in each result of a page view once, without results that contradict themselves."""
    steps = _shown_steps(plan, carried)
    if not plan.irregular:
        return steps
    columns = [*plan.keys, *carried]
    select = f"SELECT {', '.join(f's.{column}' for column in columns)}"
    return [
        *steps,
        _irregular_step(plan),
        _deduplicated_step(plan, carried),
        Step(
            "conflicting",
            "Ids that stand for two page views.",
            f"SELECT page_view\nFROM deduplicated\nGROUP BY page_view\nHAVING {_CONFLICTING}",
        ),
        Step(
            "consistent",
            "Regular page views; of the irregular ones without conflict, the documents at a single position. For other "
            "documents a click does not tell the position.",
            f"{select}\nFROM shown s\nLEFT JOIN irregular i ON s.page_view = i.page_view\nWHERE i.page_view IS NULL\n"
            f"UNION ALL\n{select}\nFROM deduplicated s\nLEFT JOIN conflicting k ON s.page_view = k.page_view\n"
            "WHERE k.page_view IS NULL AND s.position = s.max_position",
        ),
    ]


def _shown_steps(plan: EventPlan, carried: list[str]) -> list[Step]:
    """Return the steps that end in `shown`: results without missing values, with positions that count from 1."""
    needs = [f"{key} IS NOT NULL" for key in plan.keys]
    position = _position_from_one(plan)
    app = ["application"] if plan.from_zero and plan.schema.application and "application" not in carried else []
    return [
        _results_step(plan, [*carried, *app]),
        Step(
            "shown",
            "Results without missing values, with positions that count from 1.",
            f"SELECT {comma(plan.keys[:-1], carried)}, {position} AS position\nFROM results\n"
            f"WHERE {' AND '.join(needs)} AND {position} >= {0 if plan.positions_as_logged else 1}",
        ),
    ]


def _position_from_one(plan: EventPlan) -> str:
    """Return SQL for the position, counted from 1."""
    if not plan.from_zero or plan.schema.application is None:
        return "position + 1" if plan.from_zero else "position"
    named = [f"application = {plan.dialect.literal(name)}" for name in plan.from_zero if name is not None]
    zero = [*named, *(["application IS NULL"] if None in plan.from_zero else [])]
    return f"CASE WHEN {' OR '.join(zero)} THEN position + 1 ELSE position END"


def _results_step(plan: EventPlan, extra: list[str]) -> Step:
    """Return the step with one row for each document shown; `extra` are carried columns, or "application"."""
    schema, d = plan.schema, plan.dialect

    def column(name: str) -> str:
        return f"t.{d.quote(name)}"

    carried = dict(zip(plan.carried, schema.carried, strict=True))
    columns = {"page_view": d.nan_to_null(column(schema.impression), schema.types[schema.impression])}
    columns["query"] = d.nan_to_null(column(schema.query), schema.types[schema.query])
    if schema.ranker:
        columns["ranker"] = column(schema.ranker)
    source = f"{plan.impressions} t"
    if schema.position is None:
        source = d.unnest(plan.impressions, d.as_array(column(schema.doc), schema.types[schema.doc]))
        doc, position = d.item, d.place
    else:
        doc, position = column(schema.doc), _logged_position(plan)
    columns |= {"doc": d.nan_to_null(doc, schema.doc_type), "position": d.cast(position, "BIGINT")}
    for alias in extra:
        is_app = alias == "application"
        columns[alias] = d.as_text(column(schema.application or "")) if is_app else column(carried[alias])
    select = ",\n  ".join(f"{expression} AS {alias}" for alias, expression in columns.items())
    return Step("results", "One row for each document shown.", f"SELECT\n  {select}\nFROM {source}")


def _logged_position(plan: EventPlan) -> str:
    """Return SQL for the position of a row as it was logged, NULL if it is not a whole number of 0 or more."""
    name = plan.schema.position or ""
    position = plan.dialect.integer(f"t.{plan.dialect.quote(name)}", plan.schema.types[name])
    return f"CASE WHEN {position} BETWEEN 0 AND {_LARGEST_POSITION} THEN {position} END"


def _irregular_step(plan: EventPlan) -> Step:
    """Return the step of the few page views that need a closer look."""
    return Step(
        "irregular",
        "Page views that show a document twice, have two documents at one position, or are of two queries.",
        f"SELECT page_view\nFROM shown\nGROUP BY page_view\nHAVING {_is_irregular(plan)}",
    )


def _is_irregular(plan: EventPlan) -> str:
    """Return SQL for whether the rows of a page view repeat a document or a position, or are of two queries.

    Positions are bits of a mask. Positions beyond 61 share one bit, so a page view that has several of them counts as
    irregular too; the closer look finds nothing wrong with it.
    """
    d = plan.dialect
    positions = d.bit_or(d.bit("CASE WHEN position BETWEEN 0 AND 61 THEN position ELSE 62 END", wide=True))
    return f"COUNT(*) > BIT_COUNT({positions}) OR COUNT(*) > COUNT(DISTINCT doc) OR MIN(query) <> MAX(query)"


def _deduplicated_step(plan: EventPlan, carried: list[str]) -> Step:
    """Return the step with each result of irregular page views once, and what its copies disagree on."""
    types = {alias: plan.schema.types[name] for alias, name in zip(plan.carried, plan.schema.carried, strict=True)}
    keys = [key for key in plan.keys if key not in ("page_view", "doc")]
    values = [
        # Copies that differ always give the same value. Nested values cannot be compared, and do not differ in logs
        # that we know of.
        f"{'ANY_VALUE' if NESTED.search(types.get(column, '')) else 'MIN'}({column}) AS {column}"
        for column in (*keys, *carried)
    ]
    differ = " OR ".join(f"MIN({key}) <> MAX({key})" for key in keys if key != "position")
    return Step(
        "deduplicated",
        "Each result of irregular page views once, with the number of its copies and what they disagree on.",
        f"SELECT s.page_view, doc, {', '.join(values)},\n"
        "  MAX(position) AS max_position, MAX(query) AS max_query, COUNT(*) AS copies, "
        f"{differ} AS contradictory\n"
        "FROM shown s\nJOIN irregular i ON s.page_view = i.page_view\nGROUP BY s.page_view, doc",
    )


def _clicked_step(plan: EventPlan) -> Step:
    """Return the step of the results that were clicked."""
    view, doc = _click_ids(plan)
    return Step(
        "clicked",
        "Each clicked result once, however often it was clicked.",
        f"SELECT DISTINCT {view} AS page_view, {doc} AS doc\nFROM {plan.clicks}\n"
        f"WHERE {view} IS NOT NULL AND {doc} IS NOT NULL",
    )


def _click_ids(plan: EventPlan) -> tuple[str, str]:
    """Return SQL for the page view and the document of a click."""
    schema, d = plan.schema, plan.dialect
    view, doc = (d.nan_to_null(d.quote(c), schema.click_types[c]) for c in (schema.click_impression, schema.click_doc))
    return view, doc


def _same_result(plan: EventPlan, keys: Sequence[str] = ("page_view", "doc")) -> str:
    """Return SQL that compares a result shown, `s`, with one clicked, `c`: ids as text where their types differ."""
    schema, d = plan.schema, plan.dialect
    types = {
        "page_view": (schema.types[schema.impression], schema.click_types[schema.click_impression]),
        "doc": (schema.doc_type, schema.click_types[schema.click_doc]),
    }

    def compare(key: str) -> str:
        comparable = types[key][0] == types[key][1] or {*types[key]} <= INTEGERS
        shown, clicked = (f"{table}.{key}" if comparable else d.as_text(f"{table}.{key}") for table in "sc")
        return f"{shown} = {clicked}"

    return " AND ".join(map(compare, keys))


# ---- Problems of the tables


def shape_query(plan: EventPlan) -> str:
    """Return the query of how many page views each application has, how many are irregular, and where they begin."""
    d = plan.dialect
    view = d.as_text("page_view")
    app = "MIN(application)" if plan.schema.application else d.cast("NULL", "VARCHAR")
    return render(
        [
            *plan.source_steps,
            *_shown_steps(plan, ["application"] if plan.schema.application else []),
            Step(
                "pages",
                "The first position of each page view, and whether it is irregular.",
                f"SELECT page_view, {app} AS application, MIN(position) AS first, COUNT(*) AS results,\n"
                f"  {_is_irregular(plan)} AS irregular\nFROM shown\nGROUP BY page_view",
            ),
            Step(
                "shape",
                "How many page views and results each application has; how many begin at 0 or 1, with an example.",
                "SELECT application, COUNT(*), SUM(results), COUNT(CASE WHEN irregular THEN 1 END),\n"
                "  COUNT(CASE WHEN first = 0 THEN 1 END), COUNT(CASE WHEN first = 1 THEN 1 END),\n"
                f"  MIN(CASE WHEN first = 0 THEN {view} END), MIN(CASE WHEN first = 1 THEN {view} END)\n"
                "FROM pages\nGROUP BY application",
            ),
        ]
    )


def irregularities_query(plan: EventPlan) -> str:
    """Return the query of what is wrong with irregular page views, with examples.

    It counts copies of results, documents at several positions, and ids that stand for two page views.
    """
    view = plan.dialect.as_text("page_view")
    return render(
        [
            *plan.source_steps,
            *_shown_steps(plan, []),
            _irregular_step(plan),
            _deduplicated_step(plan, []),
            Step(
                "pages",
                "What is wrong with each irregular page view.",
                "SELECT page_view, SUM(CASE WHEN position <> max_position THEN 1 ELSE 0 END) AS moved,\n"
                "  SUM(CASE WHEN position = max_position THEN copies - 1 ELSE 0 END) AS repeats,\n"
                f"  {_CONFLICTING} AS conflicting\nFROM deduplicated\nGROUP BY page_view",
            ),
            Step(
                "irregularities",
                "How many there are of each kind.",
                f"SELECT SUM(repeats), SUM(moved), MIN(CASE WHEN moved > 0 THEN {view} END),\n"
                f"  COUNT(CASE WHEN conflicting THEN 1 END), MIN(CASE WHEN conflicting THEN {view} END)\nFROM pages",
            ),
        ]
    )


def missing_query(plan: EventPlan) -> str:
    """Return the query of how many rows the impressions have, and how many lack each value that they need."""
    schema, d = plan.schema, plan.dialect
    conditions = [_is_missing(plan, name) for name in (schema.impression, schema.query)]
    conditions.append(_is_missing(plan, schema.ranker) if schema.ranker else "FALSE")
    raw = f"t.{d.quote(schema.doc)}"
    if schema.position is None:
        array = d.as_array(raw, schema.types[schema.doc])
        conditions += [f"{raw} IS NULL OR {d.array_length(array)} = 0", f"{raw} IS NOT NULL AND {array} IS NULL"]
    else:
        conditions += [_is_missing(plan, schema.doc), f"{_logged_position(plan)} IS NULL"]
    counts = ", ".join(f"COUNT(CASE WHEN {condition} THEN 1 END)" for condition in conditions)
    answer = f"SELECT COUNT(*), {counts}\nFROM {plan.impressions} t"
    return render([*plan.source_steps, Step("missing", "Rows that lack a value.", answer)])


def _is_missing(plan: EventPlan, name: str) -> str:
    """Return SQL for whether a row has no value in a column."""
    return f"({plan.dialect.nan_to_null(f't.{plan.dialect.quote(name)}', plan.schema.types[name])}) IS NULL"


def empty_slots_query(plan: EventPlan) -> str:
    """Return the query of how many elements of arrays are not a document, and how many are objects or arrays.

    It returns an example of the latter. They occur only in JSON in a text, where ids are expected to be texts.
    """
    nested = "doc LIKE '{%}' OR doc LIKE '[%]'" if plan.schema.doc_type == "VARCHAR" else "FALSE"
    select = (
        f"SELECT COUNT(CASE WHEN doc IS NULL THEN 1 END), COUNT(CASE WHEN {nested} THEN 1 END),\n"
        f"  MIN(CASE WHEN {nested} THEN {plan.dialect.as_text('doc')} END)\nFROM results"
    )
    return render(
        [*plan.source_steps, _results_step(plan, []), Step("empty_slots", "Elements that are not ids.", select)]
    )


def clicks_query(plan: EventPlan) -> str:
    """Return the query of how many clicks there are, and how many name a page view and a document."""
    view, doc = _click_ids(plan)
    named = f"{view} IS NOT NULL AND {doc} IS NOT NULL"
    counts = f"SELECT COUNT(*), COUNT(CASE WHEN {named} THEN 1 END)\nFROM {plan.clicks}"
    return render([*plan.source_steps, Step("counted", "How many clicks.", counts)])


def clicked_results_query(plan: EventPlan) -> str:
    """Return the query of how many results were clicked, each counted once."""
    count = Step("counted", "How many results.", "SELECT COUNT(*) FROM clicked")
    return render([*plan.source_steps, _clicked_step(plan), count])


def unmatched_clicks_query(plan: EventPlan) -> str:
    """Return the query of clicks on results that no page view showed.

    It counts the results, gives an example, and counts the clicks on them: all, and those on page views that exist.
    """
    d = plan.dialect
    view, doc = _click_ids(plan)
    names = zip(("page_view", "doc"), (plan.schema.click_impression, plan.schema.click_doc), strict=True)
    label = " || ', ' || ".join(f"{d.literal(f'{name}=')} || {d.as_text(f'c.{alias}')}" for alias, name in names)
    return render(
        [
            *plan.source_steps,
            *_shown_steps(plan, []),
            Step(
                "clicked",
                "Each clicked result, and how often it was clicked.",
                f"SELECT {view} AS page_view, {doc} AS doc, COUNT(*) AS clicks\nFROM {plan.clicks}\n"
                f"WHERE {view} IS NOT NULL AND {doc} IS NOT NULL\nGROUP BY 1, 2",
            ),
            Step(
                "unmatched",
                "Clicked results that were not shown.",
                "SELECT c.page_view, c.doc, c.clicks\nFROM clicked c\n"
                f"WHERE NOT EXISTS (SELECT 1 FROM shown s WHERE {_same_result(plan)})",
            ),
            Step("pages", "The page views that exist.", "SELECT DISTINCT page_view\nFROM shown"),
            Step(
                "counted",
                "How many results, how many clicks, and how many clicks on page views that exist.",
                f"SELECT COUNT(*), MIN({label}), SUM(c.clicks), "
                "SUM(CASE WHEN s.page_view IS NOT NULL THEN c.clicks END)\nFROM unmatched c\n"
                f"LEFT JOIN pages s ON {_same_result(plan, ('page_view',))}",
            ),
        ]
    )
