"""Queries that join impressions and clicks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posbias.logs.schema import CLICK, DOC, INTEGERS, NESTED, POSITION, QUERY, RANKER, VIEW, EventSchema
from posbias.sql.dialects import Dialect
from posbias.sql.plan import Step, comma, render

# A position of the log has 32 bits, counted from 1.
_FARTHEST = 2**31 - 2
_STEADY = "CASE WHEN p = p_high THEN p END"
# Whether one id stands for two page views, by its results: of two queries or rankers, or two documents at one place.
CLASHING = (
    "SUM(CASE WHEN mixed THEN 1 ELSE 0 END) > 0 OR MIN(q) <> MAX(q_high)\n"
    f"  OR COUNT({_STEADY}) > COUNT(DISTINCT {_STEADY})"
)


def log_query(plan: EventPlan) -> str:
    """Return the log: one row for each result shown, with whether it was clicked."""
    steps = [*plan.source_steps, *_results(plan, plan.carried), taps_step(plan)]
    d, schema = plan.dialect, plan.schema
    columns = [
        f"s.q AS {d.quote(QUERY)}",
        f"s.d AS {d.quote(DOC)}",
        *([f"s.r AS {d.quote(RANKER)}"] if schema.ranker else []),
        f"{d.cast('s.p', 'INTEGER')} AS {d.quote(POSITION)}",
        f"{d.cast('CASE WHEN t.v IS NULL THEN 0 ELSE 1 END', 'TINYINT')} AS {d.quote(CLICK)}",
        f"s.v AS {d.quote(VIEW)}",
        *(f"s.{short} AS {d.quote(name)}" for short, name in zip(plan.carried, schema.carried, strict=True)),
    ]
    steps.append(
        Step(
            "answer",
            "Each result once, clicked or not.",
            "SELECT\n  "
            + ",\n  ".join(columns)
            + f"\nFROM {steps[-2].name} s\nLEFT JOIN taps t ON {same_result(plan)}",
        )
    )
    return render(steps)


@dataclass(frozen=True)
class EventPlan:
    """What is asked of two tables of events, and what a first look at them told."""

    schema: EventSchema
    dialect: Dialect
    # Steps that make the two tables of others, and what the two are called.
    source_steps: Sequence[Step] = ()
    impressions: str = "impressions"
    clicks: str = "clicks"
    # The topmost position of applications that count from 0, by the name of the application; others count from 1.
    from_zero: Sequence[str | None] = ()
    # Whether any page view is odd: shows a result several times, or contradicts itself.
    irregular: bool = False
    # Whether this is that first look, before it is known where positions begin: they are seen as they are.
    positions_as_logged: bool = False

    @property
    def keys(self) -> list[str]:
        """The columns of a result inside a query, without what is carried along: v(iew), q(uery), r(anker), d, p."""
        return ["v", "q", *(["r"] if self.schema.ranker else []), "d", "p"]

    @property
    def carried(self) -> list[str]:
        """The names of carried columns inside a query."""
        return [f"c_{i}" for i in range(len(self.schema.carried))]


def _results(plan: EventPlan, others: list[str]) -> list[Step]:
    """Return the steps that end in each result of a page view once; what contradicts itself is left out."""
    steps = shown_steps(plan, others)
    if not plan.irregular:
        return steps
    columns = [*plan.keys, *others]
    select = f"SELECT {', '.join(f's.{column}' for column in columns)}"
    return [
        *steps,
        odd_step(plan),
        once_step(plan, others),
        Step("clashing", "Ids of page views that are two.", f"SELECT v\nFROM once\nGROUP BY v\nHAVING {CLASHING}"),
        Step(
            "kept",
            "Page views that are not odd; of the others that are one, what stands at one place: clicks tell none.",
            f"{select}\nFROM shown s\nLEFT JOIN odd o ON s.v = o.v\nWHERE o.v IS NULL\nUNION ALL\n"
            f"{select}\nFROM once s\nLEFT JOIN clashing k ON s.v = k.v\nWHERE k.v IS NULL AND s.p = s.p_high",
        ),
    ]


def shown_steps(plan: EventPlan, others: list[str]) -> list[Step]:
    """Return the steps that end in `shown`: results that have all they must, positions from 1."""
    needs = [f"{key} IS NOT NULL" for key in plan.keys]
    place = _from_one(plan)
    app = ["app"] if plan.from_zero and plan.schema.application and "app" not in others else []
    return [
        spread_step(plan, [*others, *app]),
        Step(
            "shown",
            "Results that have all they must, with positions that count from 1.",
            f"SELECT {comma(plan.keys[:-1], others)}, {place} AS p\nFROM spread\n"
            f"WHERE {' AND '.join(needs)} AND {place} >= {0 if plan.positions_as_logged else 1}",
        ),
    ]


def _from_one(plan: EventPlan) -> str:
    """Return the position by which the topmost is 1."""
    if not plan.from_zero or plan.schema.application is None:
        return "p + 1" if plan.from_zero else "p"
    named = [f"app = {plan.dialect.literal(name)}" for name in plan.from_zero if name is not None]
    zero = [*named, *(["app IS NULL"] if None in plan.from_zero else [])]
    return f"CASE WHEN {' OR '.join(zero)} THEN p + 1 ELSE p END"


def spread_step(plan: EventPlan, others: list[str]) -> Step:
    """Return one row for each document shown, by short names."""
    schema, d = plan.schema, plan.dialect

    def column(name: str) -> str:
        return f"t.{d.quote(name)}"

    names = dict(zip(plan.carried, schema.carried, strict=True))
    columns = {"v": d.nan_to_null(column(schema.impression), schema.types[schema.impression])}
    columns["q"] = d.nan_to_null(column(schema.query), schema.types[schema.query])
    if schema.ranker:
        columns["r"] = column(schema.ranker)
    source = f"{plan.impressions} t"
    if schema.position is None:
        source = d.unnest(plan.impressions, d.as_array(column(schema.doc), schema.types[schema.doc]))
        columns |= {"d": d.nan_to_null(d.item, schema.doc_type), "p": d.cast(d.place, "BIGINT")}
    else:
        columns |= {"d": d.nan_to_null(column(schema.doc), schema.doc_type), "p": d.cast(place_of(plan), "BIGINT")}
    for short in others:
        columns[short] = d.as_text(column(schema.application or "")) if short == "app" else column(names[short])
    select = ",\n  ".join(f"{expression} AS {short}" for short, expression in columns.items())
    return Step("spread", "One row for each document shown.", f"SELECT\n  {select}\nFROM {source}")


def place_of(plan: EventPlan) -> str:
    """Return the position of a row as a whole number, as it was logged; NULL where it is none."""
    name = plan.schema.position or ""
    place = plan.dialect.integer(f"t.{plan.dialect.quote(name)}", plan.schema.types[name])
    return f"CASE WHEN {place} BETWEEN 0 AND {_FARTHEST} THEN {place} END"


def odd_step(plan: EventPlan) -> Step:
    """Return the page views that need a closer look, which are few."""
    return Step(
        "odd",
        "Page views that show a document twice, have two at one place, or are of two queries.",
        f"SELECT v\nFROM shown\nGROUP BY v\nHAVING {is_odd(plan)}",
    )


def is_odd(plan: EventPlan) -> str:
    """Return whether a page view needs a closer look, by its rows: it shows a document twice, or is two.

    Places are bits of a mask, and those beyond 61 share one: that only makes us look closer.
    """
    d = plan.dialect
    places = d.bit_or(d.bit("CASE WHEN p BETWEEN 0 AND 61 THEN p ELSE 62 END", wide=True))
    return f"COUNT(*) > BIT_COUNT({places}) OR COUNT(*) > COUNT(DISTINCT d) OR MIN(q) <> MAX(q)"


def once_step(plan: EventPlan, others: list[str]) -> Step:
    """Return each result of odd page views once, with what its copies disagree on."""
    kinds = {short: plan.schema.types[name] for short, name in zip(plan.carried, plan.schema.carried, strict=True)}
    keys = [key for key in plan.keys if key not in "vd"]
    one = [
        # Where copies differ, the same one every time; what cannot be compared is the same in all that we know of.
        f"{'ANY_VALUE' if NESTED.search(kinds.get(short, '')) else 'MIN'}({short}) AS {short}"
        for short in (*keys, *others)
    ]
    several = " OR ".join(f"MIN({key}) <> MAX({key})" for key in keys if key != "p")
    return Step(
        "once",
        "Of odd page views each result once, with its copies and what they disagree on.",
        f"SELECT s.v, d, {', '.join(one)},\n"
        f"  MAX(p) AS p_high, MAX(q) AS q_high, COUNT(*) AS copies, {several} AS mixed\n"
        "FROM shown s\nJOIN odd o ON s.v = o.v\nGROUP BY s.v, d",
    )


def taps_step(plan: EventPlan) -> Step:
    """Return what was clicked, once however often."""
    view, doc = click_ids(plan)
    return Step(
        "taps",
        "What was clicked, once however often.",
        f"SELECT DISTINCT {view} AS v, {doc} AS d\nFROM {plan.clicks}\nWHERE {view} IS NOT NULL AND {doc} IS NOT NULL",
    )


def click_ids(plan: EventPlan) -> tuple[str, str]:
    """Return the page view and the document of a click."""
    schema, d = plan.schema, plan.dialect
    view, doc = (d.nan_to_null(d.quote(c), schema.click_types[c]) for c in (schema.click_impression, schema.click_doc))
    return view, doc


def same_result(plan: EventPlan, keys: Sequence[str] = ("v", "d")) -> str:
    """Compare a result shown, `s`, with one clicked, `t`: ids as texts where their types differ."""
    schema, d = plan.schema, plan.dialect
    types = {
        "v": (schema.types[schema.impression], schema.click_types[schema.click_impression]),
        "d": (schema.doc_type, schema.click_types[schema.click_doc]),
    }

    def compared(key: str) -> str:
        alike = types[key][0] == types[key][1] or {*types[key]} <= INTEGERS
        one, other = (f"{side}.{key}" if alike else d.as_text(f"{side}.{key}") for side in "st")
        return f"{one} = {other}"

    return " AND ".join(map(compared, keys))


def shape_query(plan: EventPlan) -> str:
    """Return what page views look like, by application: how many there are, where they begin, how many are odd."""
    d = plan.dialect
    text = d.as_text("v")
    app = "MIN(app)" if plan.schema.application else d.cast("NULL", "VARCHAR")
    return render(
        [
            *plan.source_steps,
            *shown_steps(plan, ["app"] if plan.schema.application else []),
            Step(
                "pages",
                "Each page view: where it begins, and whether it is odd.",
                f"SELECT v, {app} AS app, MIN(p) AS first, COUNT(*) AS results,\n  {is_odd(plan)} AS odd\n"
                "FROM shown\nGROUP BY v",
            ),
            Step(
                "shape",
                "How many there are of each kind.",
                "SELECT app, COUNT(*), SUM(results), COUNT(CASE WHEN odd THEN 1 END),\n"
                "  COUNT(CASE WHEN first = 0 THEN 1 END), COUNT(CASE WHEN first = 1 THEN 1 END),\n"
                f"  MIN(CASE WHEN first = 0 THEN {text} END), MIN(CASE WHEN first = 1 THEN {text} END)\n"
                "FROM pages\nGROUP BY app",
            ),
        ]
    )


def irregularities_query(plan: EventPlan) -> str:
    """Return, of odd page views: copies of results, results at several places, page views that are two; examples."""
    text = plan.dialect.as_text("v")
    return render(
        [
            *plan.source_steps,
            *shown_steps(plan, []),
            odd_step(plan),
            once_step(plan, []),
            Step(
                "pages",
                "Each of them, and whether it could be two of one id.",
                "SELECT v, SUM(CASE WHEN p <> p_high THEN 1 ELSE 0 END) AS moved,\n"
                "  SUM(CASE WHEN p = p_high THEN copies - 1 ELSE 0 END) AS repeats,\n"
                f"  {CLASHING} AS clash\nFROM once\nGROUP BY v",
            ),
            Step(
                "oddities",
                "How many there are of each kind.",
                f"SELECT SUM(repeats), SUM(moved), MIN(CASE WHEN moved > 0 THEN {text} END),\n"
                f"  COUNT(CASE WHEN clash THEN 1 END), MIN(CASE WHEN clash THEN {text} END)\nFROM pages",
            ),
        ]
    )


def missing_query(plan: EventPlan) -> str:
    """Return how many rows of the impressions there are, and how many lack what they must have, by what it is."""
    schema, d = plan.schema, plan.dialect
    gaps = [lacking(plan, name) for name in (schema.impression, schema.query)]
    gaps.append(lacking(plan, schema.ranker) if schema.ranker else "FALSE")
    raw = f"t.{d.quote(schema.doc)}"
    if schema.position is None:
        array = d.as_array(raw, schema.types[schema.doc])
        gaps += [f"{raw} IS NULL OR {d.array_length(array)} = 0", f"{raw} IS NOT NULL AND {array} IS NULL"]
    else:
        gaps += [lacking(plan, schema.doc), f"{place_of(plan)} IS NULL"]
    counts = ", ".join(f"COUNT(CASE WHEN {condition} THEN 1 END)" for condition in gaps)
    answer = f"SELECT COUNT(*), {counts}\nFROM {plan.impressions} t"
    return render([*plan.source_steps, Step("missing", "Rows that lack something.", answer)])


def lacking(plan: EventPlan, name: str) -> str:
    """Return whether a row has no value in a column."""
    return f"({plan.dialect.nan_to_null(f't.{plan.dialect.quote(name)}', plan.schema.types[name])}) IS NULL"


def empty_slots_query(plan: EventPlan) -> str:
    """Return how many elements of arrays are no document, how many are objects or arrays themselves, and one of these.

    Of JSON in a text they come as texts, too, where ids are expected; other arrays tell by their type.
    """
    nested = "d LIKE '{%}' OR d LIKE '[%]'" if plan.schema.doc_type == "VARCHAR" else "FALSE"
    select = (
        f"SELECT COUNT(CASE WHEN d IS NULL THEN 1 END), COUNT(CASE WHEN {nested} THEN 1 END),\n"
        f"  MIN(CASE WHEN {nested} THEN {plan.dialect.as_text('d')} END)\nFROM spread"
    )
    steps = [*plan.source_steps, spread_step(plan, []), Step("holes", "Places without one.", select)]
    return render(steps)


def clicks_query(plan: EventPlan) -> str:
    """Return how many clicks there are, and how many name a page view and a document."""
    view, doc = click_ids(plan)
    named = f"{view} IS NOT NULL AND {doc} IS NOT NULL"
    counts = f"SELECT COUNT(*), COUNT(CASE WHEN {named} THEN 1 END)\nFROM {plan.clicks}"
    return render([*plan.source_steps, Step("counted", "How many clicks.", counts)])


def clicked_results_query(plan: EventPlan) -> str:
    """Return how many results were clicked, each once."""
    return render(
        [*plan.source_steps, taps_step(plan), Step("clicked", "How many results.", "SELECT COUNT(*) FROM taps")]
    )


def unmatched_clicks_query(plan: EventPlan) -> str:
    """Return how many results were clicked that no page view showed, an example, how many clicks these are, and how
    many of them on page views that are there.
    """
    d = plan.dialect
    view, doc = click_ids(plan)
    names = zip("vd", (plan.schema.click_impression, plan.schema.click_doc), strict=True)
    label = " || ', ' || ".join(f"{d.literal(f'{name}=')} || {d.as_text(f't.{short}')}" for short, name in names)
    return render(
        [
            *plan.source_steps,
            *shown_steps(plan, []),
            Step(
                "taps",
                "What was clicked, and how often.",
                f"SELECT {view} AS v, {doc} AS d, COUNT(*) AS clicks\nFROM {plan.clicks}\n"
                f"WHERE {view} IS NOT NULL AND {doc} IS NOT NULL\nGROUP BY 1, 2",
            ),
            Step(
                "lost",
                "Clicks on what was not shown.",
                "SELECT t.v, t.d, t.clicks\nFROM taps t\n"
                f"WHERE NOT EXISTS (SELECT 1 FROM shown s WHERE {same_result(plan)})",
            ),
            Step("pages", "The page views that are there.", "SELECT DISTINCT v\nFROM shown"),
            Step(
                "count",
                "How many, and how many of them on page views that are there.",
                f"SELECT COUNT(*), MIN({label}), SUM(t.clicks), SUM(CASE WHEN s.v IS NOT NULL THEN t.clicks END)\n"
                "FROM lost t\n"
                f"LEFT JOIN pages s ON {same_result(plan, ('v',))}",
            ),
        ]
    )
