"""Two tables of events, what was shown and what was clicked, joined to a log in named steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posbias.logs.event_schemas import CLICK, DOC, POSITION, QUERY, RANKER, VIEW, EventSchema
from posbias.logs.schemas import INTEGERS, NESTED
from posbias.sql.dialect import Dialect
from posbias.sql.shown import comma
from posbias.sql.steps import Step, render


@dataclass(frozen=True)
class EventPlan:
    """What is asked of two tables of events, and what a first look at them told."""

    schema: EventSchema
    dialect: Dialect
    # Steps that make the two tables of others, and what the two are called.
    before: Sequence[Step] = ()
    impressions: str = "impressions"
    clicks: str = "clicks"
    # The topmost position of applications that count from 0, by the name of the application; others count from 1.
    from_zero: Sequence[str | None] = ()
    # Whether any result of a page view is there several times, and whether any page view contradicts itself.
    repeated: bool = False
    conflicting: bool = False
    # Whether this is that first look, before it is known where positions begin: they are seen as they are.
    first_look: bool = False

    @property
    def keys(self) -> list[str]:
        """The columns of a result inside a query, without what is carried along: v(iew), q(uery), r(anker), d, p."""
        return ["v", "q", *(["r"] if self.schema.ranker else []), "d", "p"]

    @property
    def others(self) -> list[str]:
        """The names of carried columns inside a query."""
        return [f"c_{i}" for i in range(len(self.schema.carried))]


def log_query(plan: EventPlan) -> str:
    """Return the log: one row for each result shown, with whether it was clicked."""
    steps = [*plan.before, *_results(plan, plan.others), _taps(plan)]
    d, schema = plan.dialect, plan.schema
    columns = [
        f"s.q AS {d.quote(QUERY)}",
        f"s.d AS {d.quote(DOC)}",
        *([f"s.r AS {d.quote(RANKER)}"] if schema.ranker else []),
        f"{d.cast('s.p', 'INTEGER')} AS {d.quote(POSITION)}",
        f"{d.cast('CASE WHEN t.v IS NULL THEN 0 ELSE 1 END', 'TINYINT')} AS {d.quote(CLICK)}",
        f"s.v AS {d.quote(VIEW)}",
        *(f"s.{short} AS {d.quote(name)}" for short, name in zip(plan.others, schema.carried, strict=True)),
    ]
    steps.append(
        Step(
            "answer",
            "Each result once, clicked or not.",
            "SELECT\n  " + ",\n  ".join(columns) + f"\nFROM {steps[-2].name} s\nLEFT JOIN taps t ON {_same(plan)}",
        )
    )
    return render(steps)


def shape_query(plan: EventPlan) -> str:
    """Return what page views look like, by application: where they begin, what they repeat, whether they agree."""
    d = plan.dialect
    text = d.as_text("v")
    several = "MIN(q) <> MAX(q)" + (" OR MIN(r) <> MAX(r)" if plan.schema.ranker else "")
    steady = "CASE WHEN low = high THEN low END"
    return render(
        [
            *plan.before,
            *_shown(plan, ["app"] if plan.schema.application else []),
            Step(
                "results",
                "Each document of a page view, with its places.",
                f"SELECT v, d, {'MIN(app)' if plan.schema.application else d.cast('NULL', 'VARCHAR')} AS app, "
                "COUNT(*) AS copies, MIN(p) AS low, MAX(p) AS high,\n"
                f"  MIN(q) AS q_low, MAX(q) AS q_high, {several} AS mixed\nFROM shown\nGROUP BY v, d",
            ),
            Step(
                "pages",
                "Each page view: where it begins, and whether it could be two of one id.",
                "SELECT v, MIN(app) AS app, MIN(low) AS first, SUM(copies) AS copies, COUNT(*) AS docs,\n"
                "  SUM(CASE WHEN low <> high THEN 1 ELSE 0 END) AS moved,\n"
                "  SUM(CASE WHEN low = high THEN copies - 1 ELSE 0 END) AS repeats,\n"
                "  SUM(CASE WHEN mixed THEN 1 ELSE 0 END) > 0 OR MIN(q_low) <> MAX(q_high)\n"
                f"    OR COUNT({steady}) > COUNT(DISTINCT {steady}) AS conflict\nFROM results\nGROUP BY v",
            ),
            Step(
                "shape",
                "How many there are of each kind.",
                "SELECT app, COUNT(*), SUM(copies), SUM(repeats), SUM(moved),\n"
                f"  MIN(CASE WHEN moved > 0 THEN {text} END),\n"
                f"  COUNT(CASE WHEN conflict THEN 1 END), MIN(CASE WHEN conflict THEN {text} END),\n"
                "  COUNT(CASE WHEN first = 0 THEN 1 END), COUNT(CASE WHEN first = 1 THEN 1 END),\n"
                f"  MIN(CASE WHEN first = 0 THEN {text} END), MIN(CASE WHEN first = 1 THEN {text} END)\n"
                "FROM pages\nGROUP BY app",
            ),
        ]
    )


def missing_query(plan: EventPlan) -> str:
    """Return how many rows of the impressions there are, and how many lack what they must have, by what it is."""
    schema, d = plan.schema, plan.dialect
    lacking = [_no(plan, name) for name in (schema.impression, schema.query)]
    lacking.append(_no(plan, schema.ranker) if schema.ranker else "FALSE")
    raw = f"t.{d.quote(schema.doc)}"
    if schema.position is None:
        array = d.array(raw, schema.types[schema.doc])
        lacking += [f"{raw} IS NULL OR {d.length(array)} = 0", f"{raw} IS NOT NULL AND {array} IS NULL"]
    else:
        lacking += [_no(plan, schema.doc), f"{_place(plan)} IS NULL OR {_place(plan)} < 0"]
    counts = ", ".join(f"COUNT(CASE WHEN {condition} THEN 1 END)" for condition in lacking)
    answer = f"SELECT COUNT(*), {counts}\nFROM {plan.impressions} t"
    return render([*plan.before, Step("missing", "Rows that lack something.", answer)])


def holes_query(plan: EventPlan) -> str:
    """Return how many elements of arrays are no document."""
    steps = [
        *plan.before,
        _spread(plan, []),
        Step("holes", "Places without one.", "SELECT COUNT(*) FROM spread\nWHERE d IS NULL"),
    ]
    return render(steps)


def clicks_query(plan: EventPlan) -> str:
    """Return how many clicks there are, and how many name a page view and a document."""
    view, doc = _click_ids(plan)
    named = f"{view} IS NOT NULL AND {doc} IS NOT NULL"
    counts = f"SELECT COUNT(*), COUNT(CASE WHEN {named} THEN 1 END)\nFROM {plan.clicks}"
    return render([*plan.before, Step("counted", "How many clicks.", counts)])


def taps_query(plan: EventPlan) -> str:
    """Return how many results were clicked, each once."""
    return render([*plan.before, _taps(plan), Step("clicked", "How many results.", "SELECT COUNT(*) FROM taps")])


def lost_query(plan: EventPlan) -> str:
    """Return how many clicked results no page view showed, an example, and how many of page views that are there."""
    d = plan.dialect
    names = zip("vd", (plan.schema.click_impression, plan.schema.click_doc), strict=True)
    label = " || ', ' || ".join(f"{d.text(f'{name}=')} || {d.as_text(f't.{short}')}" for short, name in names)
    return render(
        [
            *plan.before,
            *_shown(plan, []),
            _taps(plan),
            Step(
                "lost",
                "Clicks on what was not shown.",
                f"SELECT t.v, t.d\nFROM taps t\nWHERE NOT EXISTS (SELECT 1 FROM shown s WHERE {_same(plan)})",
            ),
            Step("pages", "The page views that are there.", "SELECT DISTINCT v\nFROM shown"),
            Step(
                "count",
                "How many, and how many of them on page views that are there.",
                f"SELECT COUNT(*), MIN({label}), COUNT(s.v)\nFROM lost t\nLEFT JOIN pages s ON {_same(plan, ('v',))}",
            ),
        ]
    )


def _results(plan: EventPlan, others: list[str]) -> list[Step]:
    """Return the steps that end in each result of a page view once; what contradicts itself is left out."""
    steps = list(_shown(plan, others))
    if plan.repeated:
        kinds = {short: plan.schema.types[name] for short, name in zip(plan.others, plan.schema.carried, strict=True)}
        one = [
            # Where copies differ, the same one every time; what cannot be compared is the same in all that we know of.
            f"{'ANY_VALUE' if NESTED.search(kinds.get(short, '')) else 'MIN'}({short}) AS {short}"
            for short in ("q", *(["r"] if plan.schema.ranker else []), "p", *others)
        ]
        odd = ["MIN(p) = MAX(p)", "MIN(q) = MAX(q)", *(["MIN(r) = MAX(r)"] if plan.schema.ranker else [])]
        steps.append(
            Step(
                "once",
                "Each result of a page view once; not those at two places, of which a click tells neither.",
                f"SELECT v, d, {', '.join(one)}\nFROM shown\nGROUP BY v, d\nHAVING {' AND '.join(odd)}",
            )
        )
    if plan.conflicting:
        rows = steps[-1].name
        steps += [
            Step(
                "clashing",
                "Ids of page views that are two: of two queries, or with two documents at one place.",
                f"SELECT v\nFROM {rows}\nGROUP BY v\nHAVING MIN(q) <> MAX(q) OR COUNT(*) > COUNT(DISTINCT p)",
            ),
            Step(
                "agreeing",
                "Page views but those.",
                f"SELECT s.*\nFROM {rows} s\nLEFT JOIN clashing k ON s.v = k.v\nWHERE k.v IS NULL",
            ),
        ]
    return steps


def _shown(plan: EventPlan, others: list[str]) -> list[Step]:
    """Return the steps that end in `shown`: results that have all they must, positions from 1."""
    needs = [f"{key} IS NOT NULL" for key in plan.keys]
    place = _from_one(plan)
    app = ["app"] if plan.from_zero and plan.schema.application and "app" not in others else []
    return [
        _spread(plan, [*others, *app]),
        Step(
            "shown",
            "Results that have all they must, with positions that count from 1.",
            f"SELECT {comma(plan.keys[:-1], others)}, {place} AS p\nFROM spread\n"
            f"WHERE {' AND '.join(needs)} AND {place} >= {0 if plan.first_look else 1}",
        ),
    ]


def _from_one(plan: EventPlan) -> str:
    """Return the position by which the topmost is 1."""
    if not plan.from_zero or plan.schema.application is None:
        return "p + 1" if plan.from_zero else "p"
    named = [f"app = {plan.dialect.text(name)}" for name in plan.from_zero if name is not None]
    zero = [*named, *(["app IS NULL"] if None in plan.from_zero else [])]
    return f"CASE WHEN {' OR '.join(zero)} THEN p + 1 ELSE p END"


def _spread(plan: EventPlan, others: list[str]) -> Step:
    """Return one row for each document shown, by short names."""
    schema, d = plan.schema, plan.dialect

    def column(name: str) -> str:
        return f"t.{d.quote(name)}"

    names = dict(zip(plan.others, schema.carried, strict=True))
    columns = {"v": d.known(column(schema.impression), schema.types[schema.impression])}
    columns["q"] = d.known(column(schema.query), schema.types[schema.query])
    if schema.ranker:
        columns["r"] = column(schema.ranker)
    source = f"{plan.impressions} t"
    if schema.position is None:
        source = d.spread(plan.impressions, d.array(column(schema.doc), schema.types[schema.doc]))
        columns |= {"d": d.known(d.item, schema.doc_type), "p": d.cast(d.place, "BIGINT")}
    else:
        columns |= {"d": d.known(column(schema.doc), schema.doc_type), "p": d.cast(_place(plan), "BIGINT")}
    for short in others:
        columns[short] = d.as_text(column(schema.application or "")) if short == "app" else column(names[short])
    select = ",\n  ".join(f"{expression} AS {short}" for short, expression in columns.items())
    return Step("spread", "One row for each document shown.", f"SELECT\n  {select}\nFROM {source}")


def _taps(plan: EventPlan) -> Step:
    view, doc = _click_ids(plan)
    return Step(
        "taps",
        "What was clicked, once however often.",
        f"SELECT DISTINCT {view} AS v, {doc} AS d\nFROM {plan.clicks}\nWHERE {view} IS NOT NULL AND {doc} IS NOT NULL",
    )


def _click_ids(plan: EventPlan) -> tuple[str, str]:
    schema, d = plan.schema, plan.dialect
    view, doc = (d.known(d.quote(c), schema.click_types[c]) for c in (schema.click_impression, schema.click_doc))
    return view, doc


def _same(plan: EventPlan, keys: Sequence[str] = ("v", "d")) -> str:
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


def _place(plan: EventPlan) -> str:
    name = plan.schema.position or ""
    return plan.dialect.integer(f"t.{plan.dialect.quote(name)}", plan.schema.types[name])


def _no(plan: EventPlan, name: str) -> str:
    return f"({plan.dialect.known(f't.{plan.dialect.quote(name)}', plan.schema.types[name])}) IS NULL"
