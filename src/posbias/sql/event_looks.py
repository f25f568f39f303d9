"""Looks at two tables of events before they are joined: gaps, shapes of page views, clicks on nothing."""

from __future__ import annotations

from posbias.sql.events import (
    CLASHING,
    EventPlan,
    click_ids,
    is_odd,
    lacking,
    odd_step,
    once_step,
    place_of,
    same_result,
    shown_steps,
    spread_step,
    taps_step,
)
from posbias.sql.steps import Step, render


def shape_query(plan: EventPlan) -> str:
    """Return what page views look like, by application: how many there are, where they begin, how many are odd."""
    d = plan.dialect
    text = d.as_text("v")
    app = "MIN(app)" if plan.schema.application else d.cast("NULL", "VARCHAR")
    return render(
        [
            *plan.before,
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


def oddities_query(plan: EventPlan) -> str:
    """Return, of odd page views: copies of results, results at several places, page views that are two; examples."""
    text = plan.dialect.as_text("v")
    return render(
        [
            *plan.before,
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
        array = d.array(raw, schema.types[schema.doc])
        gaps += [f"{raw} IS NULL OR {d.length(array)} = 0", f"{raw} IS NOT NULL AND {array} IS NULL"]
    else:
        gaps += [lacking(plan, schema.doc), f"{place_of(plan)} IS NULL"]
    counts = ", ".join(f"COUNT(CASE WHEN {condition} THEN 1 END)" for condition in gaps)
    answer = f"SELECT COUNT(*), {counts}\nFROM {plan.impressions} t"
    return render([*plan.before, Step("missing", "Rows that lack something.", answer)])


def holes_query(plan: EventPlan) -> str:
    """Return how many elements of arrays are no document, how many are objects or arrays themselves, and one of these.

    Of JSON in a text they come as texts, too, where ids are expected; other arrays tell by their type.
    """
    nested = "d LIKE '{%}' OR d LIKE '[%]'" if plan.schema.doc_type == "VARCHAR" else "FALSE"
    select = (
        f"SELECT COUNT(CASE WHEN d IS NULL THEN 1 END), COUNT(CASE WHEN {nested} THEN 1 END),\n"
        f"  MIN(CASE WHEN {nested} THEN {plan.dialect.as_text('d')} END)\nFROM spread"
    )
    steps = [*plan.before, spread_step(plan, []), Step("holes", "Places without one.", select)]
    return render(steps)


def clicks_query(plan: EventPlan) -> str:
    """Return how many clicks there are, and how many name a page view and a document."""
    view, doc = click_ids(plan)
    named = f"{view} IS NOT NULL AND {doc} IS NOT NULL"
    counts = f"SELECT COUNT(*), COUNT(CASE WHEN {named} THEN 1 END)\nFROM {plan.clicks}"
    return render([*plan.before, Step("counted", "How many clicks.", counts)])


def taps_query(plan: EventPlan) -> str:
    """Return how many results were clicked, each once."""
    return render([*plan.before, taps_step(plan), Step("clicked", "How many results.", "SELECT COUNT(*) FROM taps")])


def lost_query(plan: EventPlan) -> str:
    """Return how many results were clicked that no page view showed, an example, how many clicks these are, and how
    many of them on page views that are there.
    """
    d = plan.dialect
    view, doc = click_ids(plan)
    names = zip("vd", (plan.schema.click_impression, plan.schema.click_doc), strict=True)
    label = " || ', ' || ".join(f"{d.text(f'{name}=')} || {d.as_text(f't.{short}')}" for short, name in names)
    return render(
        [
            *plan.before,
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
