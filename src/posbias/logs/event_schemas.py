"""What two tables of events turned out to hold: their columns matched with what the user calls them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from posbias.findings import unusable
from posbias.logs.column_refusals import NESTED, never_agree, refuse_shared, require_all
from posbias.logs.columns import guess
from posbias.logs.events import Events
from posbias.logs.schemas import Columns
from posbias.wording import listed

# What the columns of the log are called, whatever the tables call theirs.
QUERY, DOC, RANKER, POSITION, CLICK, VIEW = "query_id", "doc_id", "ranker", "position", "clicked", "impression_id"
_TAKEN = (QUERY, DOC, RANKER, POSITION, CLICK, VIEW)
# What the names of columns begin with that are made on the way.
_OURS = "posbias: "
# The element of an array's type, as DuckDB and Spark write it.
_ARRAY = re.compile(r"(?P<duckdb>.+)\[\d*\]$|^ARRAY<(?P<spark>.+)>$")
_TEXTS = ("VARCHAR", "JSON")


@dataclass(frozen=True)
class EventSchema:
    """The columns of both tables by what they mean, as the engine calls them, and what is carried along."""

    impression: str
    query: str
    doc: str
    ranker: str | None
    application: str | None
    # None where a page view is a row with its documents in an array: `doc` is that array, in the order shown.
    position: str | None
    carried: tuple[str, ...]
    types: Mapping[str, str]
    click_impression: str
    click_doc: str
    click_types: Mapping[str, str]
    # What the user calls columns, where that is something else.
    called: Mapping[str, str] = field(default_factory=dict)

    @property
    def doc_type(self) -> str:
        """The type of a document's id."""
        return self.types[self.doc] if self.position is not None else element(self.types[self.doc])


def element(type_: str) -> str:
    """Return the type of an array's elements; of JSON in a text they are texts.

    >>> element("BIGINT[]"), element("ARRAY<BIGINT>"), element("ARRAY<STRING>"), element("VARCHAR")
    ('BIGINT', 'BIGINT', 'VARCHAR', 'VARCHAR')
    """
    found = _ARRAY.search(type_)
    inner = (found["duckdb"] or found["spark"]) if found else "VARCHAR"
    return {"STRING": "VARCHAR", "INT": "INTEGER"}.get(inner, inner)


def resolve_events(events: Events, impressions: Columns, clicks: Columns) -> EventSchema:
    """Match the names that were given with the columns that exist."""
    columns = impressions.types
    wanted = {"impression": events.impression, "query": events.query, **_documents(events, columns)}
    told = {role: getattr(events, role) for role in ("ranker", "application")}
    if events.names_no_ranker:
        # A log with a column of this name would have a ranker.
        columns = {name: type_ for name, type_ in columns.items() if name.lower() != RANKER}
        told["ranker"] = None
    wanted |= {role: name for role, name in told.items() if name is not None}
    require_all(wanted, columns, "the impressions")
    refuse_shared({role: name for role, name in wanted.items() if role != "application"})
    # As in any log, what only a folder is called says what a row is only if it is named.
    own = columns.keys() - impressions.in_paths - {*wanted.values()}
    if events.ranker is None and RANKER in own:
        wanted["ranker"] = RANKER
    tapped = {
        "click_impression": events.click_impression or events.impression,
        "click_doc": events.click_doc or events.doc,
    }
    require_all(tapped, clicks.types, "the clicks")
    doc = wanted.get("docs") or wanted["doc"]
    used = {wanted["impression"], wanted["query"], doc, wanted.get("position"), wanted.get("ranker")}
    carried = tuple(name for name in columns if name not in used)
    _refuse_taken(carried)

    def name(column: str) -> str:
        return impressions.names.get(column, column)

    schema = EventSchema(
        impression=name(wanted["impression"]),
        query=name(wanted["query"]),
        doc=name(doc),
        ranker=name(wanted["ranker"]) if "ranker" in wanted else None,
        application=name(wanted["application"]) if "application" in wanted else None,
        position=name(wanted["position"]) if "position" in wanted else None,
        carried=tuple(map(name, carried)),
        types={name(column): type_ for column, type_ in columns.items()},
        click_impression=clicks.names.get(tapped["click_impression"], tapped["click_impression"]),
        click_doc=clicks.names.get(tapped["click_doc"], tapped["click_doc"]),
        click_types={clicks.names.get(column, column): type_ for column, type_ in clicks.types.items()},
    )
    _refuse_kinds(schema)
    return schema


def _documents(events: Events, columns: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that tell what was shown where: an array in the order shown, or a document and its place."""
    if events.docs is not None:
        return {"docs": events.docs}
    if events.position is not None or "doc_ids" not in columns:
        position = events.position or POSITION
        if events.position is not None or {events.doc, position} & columns.keys():
            return {"doc": events.doc, "position": position}
        meant = guess("docs", "doc_ids", columns)
        raise unusable(
            "missing-column",
            "The impressions have neither an array of documents in the order shown ('doc_ids') nor a document with its "
            f"position ({events.doc!r}, {position!r}) in each row",
            f"Columns found: {listed(columns)}. Name the array (docs), or the two (doc and position).",
            arguments={"docs": meant or "COLUMN"},
        )
    return {"docs": "doc_ids"}


def _refuse_taken(carried: tuple[str, ...]) -> None:
    twins = [name for name in carried if name.lower() in _TAKEN or name.lower().startswith(_OURS)]
    if twins:
        raise unusable(
            "taken-name",
            f"The log would have two columns named {listed(name.lower() for name in twins)}: one that is made, and one "
            "that is carried along from the impressions",
            "If it is the one that is meant, name it for what it is. Otherwise leave it out by a query (sql), such as "
            f"SELECT * EXCLUDE ({twins[0]}) FROM source; Spark says EXCEPT.",
            count=len(twins),
        )


def _refuse_kinds(schema: EventSchema) -> None:
    """Refuse ids that are no single values or never agree, a position that is no number, an array that is none."""
    types = schema.types
    if schema.position is None:
        if types[schema.doc] not in _TEXTS and not _ARRAY.search(types[schema.doc]):
            raise unusable(
                "not-an-array",
                f"Column {schema.doc!r} of the impressions is {types[schema.doc]}, where an array of documents was "
                "expected",
                "Name an array, or a text that holds one as JSON, such as [17, 4] (docs); with one document in each "
                "row, name that and its position (doc and position).",
            )
    elif types[schema.position] == "BOOLEAN":
        raise unusable(
            "not-a-number",
            f"Column {schema.position!r} of the impressions is true or false, where a position was expected",
            "Name the column of whole numbers (position).",
        )
    ids = {
        "impression": (types[schema.impression], schema.impression, "the impressions"),
        "query": (types[schema.query], schema.query, "the impressions"),
        "doc": (schema.doc_type, schema.doc, "the impressions"),
        **{
            role: (types[column], column, "the impressions")
            for role, column in (("ranker", schema.ranker), ("application", schema.application))
            if column is not None
        },
        "click_impression": (schema.click_types[schema.click_impression], schema.click_impression, "the clicks"),
        "click_doc": (schema.click_types[schema.click_doc], schema.click_doc, "the clicks"),
    }
    for role, (type_, column, where) in ids.items():
        if NESTED.search(type_):
            raise unusable(
                "nested-id",
                f"Column {column!r} of {where} is {type_}, and an id is a single value",
                f"Name a column of numbers or texts ({role}), or take a part of it by a query.",
            )
    for role in ("impression", "doc"):
        (shown, column, _), (tapped, other, _) = ids[role], ids[f"click_{role}"]
        if never_agree(shown, tapped):
            raise unusable(
                "ids-differ-in-type",
                f"{column!r} is {shown} in the impressions, and {other!r} is {tapped} in the clicks",
                "An id that became a fraction may have lost digits, and never equals the whole number: write both "
                "tables with whole numbers. In pandas a missing id makes fractions of the others: leave such rows out.",
            )
