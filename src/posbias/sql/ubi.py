"""OpenSearch's User Behavior Insights, as exported, turned into what was shown and what was clicked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from posbias.findings import unusable
from posbias.logs.event_schemas import EventSchema
from posbias.logs.schemas import Columns
from posbias.sql.dialect import Dialect
from posbias.sql.steps import Step, render
from posbias.wording import listed

# What a bulk file says before each document, and what a search wraps it in.
_ACTIONS = ("index", "create", "update", "delete")
_WRAPPED = "_source"
_POSITION = ("event_attributes", "position", "ordinal")
_DOCUMENT = ("event_attributes", "object", "object_id")


@dataclass(frozen=True)
class Ubi:
    """`ubi_queries`, opened as `impressions`, and `ubi_events`, opened as `clicks`.

    A `query_id` is one request: our page view. The ranker is a column of ubi_queries or ubi_events, or a key of
    `query_attributes`.
    """

    dialect: Dialect
    queries: Columns
    events: Columns
    ranker: str | None = None

    def __post_init__(self) -> None:
        for table, columns, needed in (
            ("ubi_queries", self.queries, [("query_id",), ("user_query",)]),
            ("ubi_events", self.events, [("query_id",), ("action_name",), _DOCUMENT]),
        ):
            missing = [".".join(path) for path in needed if self._text(columns, path) is None]
            if missing:
                raise unusable(
                    "missing-column",
                    f"{table} has no {listed(missing)}",
                    f"Columns found: {listed(columns.types)}. Give first the export of ubi_queries, then that of "
                    "ubi_events; tables of other names are joined without preset.",
                    count=len(missing),
                )
        if self.ranker is not None and not self._rankers():
            raise unusable(
                "missing-column",
                f"Neither ubi_queries nor ubi_events has {self.ranker!r}, nor has ubi_queries query_attributes",
                f"Columns found: {listed(self.queries.types)}; {listed(self.events.types)}. Name the ranker's column, "
                "or a key of query_attributes.",
                arguments={"ranker": "COLUMN"},
            )

    @property
    def schema(self) -> EventSchema:
        """What `ubi_shown` and `ubi_clicked` hold."""
        names = ["impression_id", "query_id", "doc_id", "position", "application", "page", "shown_by"]
        types = dict.fromkeys([*names, *(["ranker"] if self.ranker else [])], "VARCHAR")
        return EventSchema(
            impression="impression_id",
            query="query_id",
            doc="doc_id",
            ranker="ranker" if self.ranker else None,
            application="application",
            position="position",
            carried=("application", "page", "shown_by"),
            types=types,
            click_impression="impression_id",
            click_doc="doc_id",
            click_types={"impression_id": "VARCHAR", "doc_id": "VARCHAR"},
        )

    @property
    def steps(self) -> list[Step]:
        """The steps that end in `ubi_shown` and `ubi_clicked`."""
        d = self.dialect
        ranked = ", r.ranker" if self.ranker else ""
        own = ["COALESCE(e.ranker, r.ranker) AS ranker"] if self.ranker else []
        shown = [
            "e.query_id AS impression_id",
            "COALESCE(r.query, e.query) AS query_id",
            "e.doc_id",
            "e.position",
            "e.application",
            "r.page",
            "'events' AS shown_by",
            *own,
        ]
        hits = d.spread("ubi_requests", d.array("t.hits", "VARCHAR"))
        returned = [
            "t.query_id AS impression_id",
            "t.query AS query_id",
            f"{d.item} AS doc_id",
            f"{d.as_text(d.place)} AS position",
            "t.application",
            "t.page",
            "'hits' AS shown_by",
            *(["t.ranker"] if self.ranker else []),
        ]
        return [
            self._requests(),
            self._happened(),
            Step(
                "ubi_asked",
                "Each request once, however often it was written; one id for two queries stays two.",
                f"SELECT r.query_id, r.query{ranked}, MIN(r.page) AS page\nFROM ubi_requests r\n"
                f"GROUP BY r.query_id, r.query{ranked}",
            ),
            Step(
                "ubi_watched",
                "Applications that log what was seen.",
                "SELECT DISTINCT COALESCE(application, '') AS application\nFROM ubi_happened\n"
                "WHERE action_name = 'impression'",
            ),
            Step(
                "ubi_shown",
                "What was seen; of applications that do not log it, what was returned.",
                "SELECT "
                + ", ".join(shown)
                + "\nFROM ubi_happened e\nLEFT JOIN ubi_asked r ON e.query_id = r.query_id\n"
                "WHERE e.action_name = 'impression'\nUNION ALL\n"
                "SELECT " + ", ".join(returned) + f"\nFROM {hits}\n"
                "WHERE COALESCE(t.application, '') NOT IN (SELECT application FROM ubi_watched)",
            ),
            Step(
                "ubi_clicked",
                "What was clicked.",
                "SELECT query_id AS impression_id, doc_id\nFROM ubi_happened\nWHERE action_name = 'click'",
            ),
        ]

    @property
    def pages_query(self) -> str:
        """How many requests there are by application, by what tells that they were shown, and by page."""
        page = self.dialect.integer("page", "VARCHAR")
        return render(
            [
                *self.steps,
                Step(
                    "pages",
                    "Requests of each kind.",
                    f"SELECT application, shown_by, {page}, COUNT(DISTINCT impression_id)\nFROM ubi_shown\n"
                    f"GROUP BY application, shown_by, {page}",
                ),
            ]
        )

    def _requests(self) -> Step:
        asked = self._text(self.queries, ("user_query",))
        ranker = self._ranker(self.queries, ("query_attributes", self.ranker or ""))
        columns = {
            "query_id": self._text(self.queries, ("query_id",)),
            "query": f"LOWER(TRIM({asked}))",
            "application": self._text(self.queries, ("application",)),
            "hits": self._text(self.queries, ("query_response_hit_ids",)),
            "page": self._text(self.queries, ("query_attributes", "page")),
            **({"ranker": ranker} if self.ranker else {}),
        }
        why = "Requests, as ubi_queries has them."
        return Step("ubi_requests", why, self._select(columns, "impressions", self.queries))

    def _happened(self) -> Step:
        asked = self._text(self.events, ("user_query",)) or self.dialect.cast("NULL", "VARCHAR")
        columns = {
            "query_id": self._text(self.events, ("query_id",)),
            "query": f"LOWER(TRIM({asked}))",
            "action_name": f"LOWER(TRIM({self._text(self.events, ('action_name',))}))",
            "application": self._text(self.events, ("application",)),
            "doc_id": self._text(self.events, _DOCUMENT),
            "position": self._text(self.events, _POSITION),
            **({"ranker": self._ranker(self.events)} if self.ranker else {}),
        }
        return Step("ubi_happened", "Events, as ubi_events has them.", self._select(columns, "clicks", self.events))

    def _select(self, columns: Mapping[str, str | None], table: str, source: Columns) -> str:
        d = self.dialect
        select = ",\n  ".join(f"{text or d.cast('NULL', 'VARCHAR')} AS {name}" for name, text in columns.items())
        # Before each document a bulk file says what to do with it, in a line that has nothing of a document.
        actions = [d.quote(source.names.get(name, name)) for name in _ACTIONS if name in source.types]
        here = columns["query_id"]
        bulk = f"\nWHERE {here} IS NOT NULL OR ({' AND '.join(f'{a} IS NULL' for a in actions)})" if actions else ""
        return f"SELECT\n  {select}\nFROM {table}{bulk}"

    def _rankers(self) -> list[str]:
        found = [self._ranker(self.queries, ("query_attributes", self.ranker or "")), self._ranker(self.events)]
        return [text for text in found if text is not None]

    def _ranker(self, columns: Columns, *more: tuple[str, ...]) -> str | None:
        paths = [(self.ranker or "",), *more]
        found = [text for path in paths if (text := self._text(columns, path)) is not None]
        return f"COALESCE({', '.join(found)})" if len(found) > 1 else next(iter(found), None)

    def _text(self, columns: Columns, path: tuple[str, ...]) -> str | None:
        """Return a part of a document as text, wherever the export has put it; None if there is no such place."""
        d, types = self.dialect, columns.types

        def quoted(name: str) -> str:
            return d.quote(columns.names.get(name, name))

        found = []
        dotted = ".".join(path)
        if dotted in types:
            nested = dotted == "query_response_hit_ids" and types[dotted] not in ("VARCHAR", "JSON")
            found.append(d.as_json(quoted(dotted)) if nested else d.as_text(quoted(dotted)))
        if len(path) > 1 and path[0] in types:
            found.append(d.field(quoted(path[0]), types[path[0]], path[1:]))
        if _WRAPPED in types:
            found.append(d.field(quoted(_WRAPPED), types[_WRAPPED], path))
        return f"COALESCE({', '.join(found)})" if len(found) > 1 else next(iter(found), None)
