"""The first step of every query: the log's rows with typed columns and the project's own names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posbias.logs.schemas import ANY_RANKER, Schema
from posbias.sql.codes import Coding, Masks
from posbias.sql.dialect import Dialect
from posbias.sql.steps import Step


@dataclass(frozen=True)
class Plan:
    """What a harvest asks of the log: its columns, the rankers by number, M and the segments."""

    schema: Schema
    dialect: Dialect
    rankers: tuple[str, ...]
    max_rank: int
    by: tuple[str, ...] = ()
    # Columns that come along as they are.
    keep: tuple[str, ...] = ()
    # What the tables are called.
    log: str = "log"
    rankings: str = "rankings"
    # Whether no rank is known to be below 1.
    ranks_sound: bool = False

    @property
    def coding(self) -> Coding:
        """How signatures are written as numbers."""
        return Coding(len(self.rankers), self.max_rank)

    @property
    def masks(self) -> Masks:
        """How the ranks at which rankers showed a pair are written as bits."""
        return Masks(len(self.rankers), self.max_rank)

    @property
    def segments(self) -> list[str]:
        """The names that segment columns have inside a query."""
        return [f"segment_{i}" for i in range(len(self.by))]

    @property
    def kept(self) -> list[str]:
        """The names that columns which come along have inside a query."""
        return [f"kept_{i}" for i in range(len(self.keep))]

    def number(self, expression: str, type_: str) -> str:
        """Return the number of the ranker that a column names, NULL for one that is not known."""
        cases = " ".join(f"WHEN {self.dialect.value(name, type_)} THEN {i}" for i, name in enumerate(self.rankers))
        return self.dialect.cast(f"CASE {expression} {cases} END", "SMALLINT") if cases else "NULL"

    def click_of_copies(self, typed: str) -> str:
        """Return the click of a result that was logged several times: a click if any copy has it."""
        return f"MAX({typed})"

    def each(self, text: str, separator: str = ", ") -> str:
        """Return a text once for each ranker, `{i}` replaced by its number."""
        return separator.join(text.replace("{i}", str(i)) for i in range(len(self.rankers)))


def comma(*parts: str | Sequence[str]) -> str:
    """Return column lists joined, the empty ones left out."""
    flat = [p for part in parts for p in ([part] if isinstance(part, str) else part)]
    return ", ".join(p for p in flat if p)


def shown(plan: Plan, *, ranks: bool) -> list[Step]:
    """Return the steps that end in `shown`; with the ranks of every ranker where they are known."""
    schema, d = plan.schema, plan.dialect
    steps: list[Step] = []
    source = plan.log
    if schema.drop_duplicates:
        steps.append(once(plan))
        source = "once"

    def column(name: str) -> str:
        return f"l.{d.quote(name)}"

    def typed(name: str) -> str:
        return d.integer(column(name), schema.types[name])

    if schema.click is not None:
        raw = column(schema.click)
        # Rows taken once have their clicks as numbers already.
        impressions, clicks = "1", raw if schema.drop_duplicates else d.click(raw, schema.types[schema.click])
    else:
        impressions, clicks = typed(schema.impressions or ""), typed(schema.clicks or "")
    # Of a log that names no ranker every row was shown by the same.
    ranker = d.text(ANY_RANKER) if schema.natural else column(schema.ranker)
    columns = [
        f"{d.known(column(schema.query), schema.types[schema.query])} AS query",
        f"{_document(plan) if not ranks else d.known(column(schema.doc), schema.types[schema.doc])} AS doc",
        f"{plan.number(ranker, schema.types[schema.ranker])} AS ranker",
        f"{typed(schema.position)} AS position",
        f"{impressions} AS impressions",
        f"{clicks} AS clicks",
        *(f"{d.as_text(column(name))} AS segment_{i}" for i, name in enumerate(plan.by)),
        *(f"{column(name)} AS kept_{i}" for i, name in enumerate(plan.keep)),
    ]
    join = ""
    if ranks and schema.layout.ranks_in == "columns":
        for i, name in enumerate(plan.rankers):
            rank = schema.rank_columns[name]
            columns.append(f"{d.rank(column(rank), schema.types[rank])} AS rank_{i}")
    elif ranks:
        steps.append(_placed(plan))
        columns.append(plan.each("p.rank_{i}"))
        join = f"\nLEFT JOIN placed p ON {_same(plan, 'query')} AND {_same(plan, 'doc')}"
    select = "SELECT\n  " + ",\n  ".join(columns) + f"\nFROM {source} l{join}"
    steps.append(Step("shown", "One row for each result shown, with typed columns.", select))
    return steps


def _document(plan: Plan) -> str:
    """Return the document: of a window such as a day, where a document is compared with itself only within one."""
    schema, d = plan.schema, plan.dialect
    doc, window = (
        d.known(f"l.{d.quote(name)}", schema.types[name]) if name else "" for name in (schema.doc, schema.window)
    )
    # With its length before it, so that no window and document look like others.
    text = d.as_text(window)
    return f"{d.as_text(f'LENGTH({text})')} || ':' || {text} || {d.as_text(doc)}" if window else doc


def once(plan: Plan) -> Step:
    """Drop what at-least-once logging wrote twice: a click counts if any copy has it."""
    schema, d = plan.schema, plan.dialect
    kept = [schema.impression or "", schema.query, schema.doc, schema.position, *plan.by]
    kept += [name for name in (None if schema.natural else schema.ranker, schema.window) if name is not None]
    kept += schema.rank_columns.values()
    keys = comma([d.quote(name) for name in dict.fromkeys(kept)])
    along = "".join(f", MIN({d.quote(name)}) AS {d.quote(name)}" for name in plan.keep if name not in kept)
    click = d.quote(schema.click or "")
    typed = d.click(click, schema.types[schema.click or ""])
    return Step(
        "once",
        "Each result of a page view once, however often it was logged.",
        f"SELECT {keys}, {plan.click_of_copies(typed)} AS {click}{along}\nFROM {plan.log}\nGROUP BY {keys}",
    )


def _placed(plan: Plan) -> Step:
    """Turn the long table of rankings into one row a (query, document); one of several ranks is none, or no rank."""
    schema, d = plan.schema, plan.dialect
    number = plan.number(d.quote(schema.ranker), schema.rankings[schema.ranker])
    rank = d.rank(d.quote(schema.rank), schema.rankings[schema.rank])
    low, high = (f"{end}(CASE WHEN ranker = {{i}} THEN place END)" for end in ("MIN", "MAX"))
    # What is no rank is never hidden by another one.
    ranks = plan.each(f"CASE WHEN {low} = {high} OR {low} < 1 THEN {low} END AS rank_{{i}}", ",\n  ")
    query, doc = d.quote(schema.query), d.quote(schema.doc)
    return Step(
        "placed",
        "Where each ranker puts a document of a query.",
        f"SELECT query, doc,\n  {ranks}\nFROM (\n  SELECT {query} AS query, {doc} AS doc, "
        f"{number} AS ranker, {rank} AS place\n  FROM {plan.rankings}\n) r\nGROUP BY query, doc",
    )


def _same(plan: Plan, role: str) -> str:
    """Compare an id of the log with one of the rankings, as text where their types differ."""
    schema, d = plan.schema, plan.dialect
    name = getattr(schema, role)
    left, right = d.known(f"l.{d.quote(name)}", schema.types[name]), f"p.{role}"
    if schema.types[name] != schema.rankings[name]:
        left, right = d.as_text(left), d.as_text(right)
    return f"{left} = {right}"
