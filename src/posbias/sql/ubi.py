"""OpenSearch's User Behavior Insights, as exported, turned into what was shown and what was clicked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from posbias.findings import UnusableLogError, unusable
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
# So many requests tell which keys their attributes have.
_FEW = 1000


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
            raise self._no_ranker("nor has ubi_queries query_attributes", "")

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
            called={"query_id": "user_query", "ranker": self.ranker or ""},
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
            "COALESCE(e.application, r.application) AS application",
            "r.page",
            "'events' AS shown_by",
            *own,
        ]
        hits = d.spread("ubi_unseen", d.array("t.hits", "VARCHAR"))
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
                f"SELECT r.query_id, r.query{ranked}, MIN(r.application) AS application, MIN(r.page) AS page\n"
                f"FROM ubi_requests r\nGROUP BY r.query_id, r.query{ranked}",
            ),
            Step(
                "ubi_known",
                "Requests that events are of. The application is that of events: ubi_queries may call it otherwise.",
                "SELECT e.query_id, COALESCE(MIN(e.application), MIN(r.application)) AS application,\n"
                "  COUNT(CASE WHEN e.action_name = 'impression' THEN 1 END) AS seen\n"
                "FROM ubi_happened e\nLEFT JOIN ubi_asked r ON e.query_id = r.query_id\nGROUP BY e.query_id",
            ),
            Step(
                "ubi_watched",
                "Applications, and whether they log what was seen.",
                "SELECT COALESCE(application, '') AS application, MAX(seen) AS seen\nFROM ubi_known\n"
                "GROUP BY COALESCE(application, '')",
            ),
            Step(
                "ubi_unseen",
                "Requests of applications that do not log what was seen, each once; all, where none does.",
                f"SELECT DISTINCT r.query_id, r.query{ranked}, r.hits, r.page,\n"
                "  COALESCE(e.application, r.application) AS application\n"
                "FROM ubi_requests r\nLEFT JOIN ubi_known e ON r.query_id = e.query_id\n"
                "LEFT JOIN ubi_watched w ON COALESCE(e.application, r.application, '') = w.application\n"
                "WHERE w.seen = 0 OR (SELECT MAX(seen) FROM ubi_watched) = 0",
            ),
            Step(
                "ubi_shown",
                "What was seen; of applications that do not log it, what was returned.",
                "SELECT "
                + ", ".join(shown)
                + "\nFROM ubi_happened e\nLEFT JOIN ubi_asked r ON e.query_id = r.query_id\n"
                "WHERE e.action_name = 'impression'\nUNION ALL\n"
                "SELECT " + ", ".join(returned) + f"\nFROM {hits}",
            ),
            Step(
                "ubi_clicked",
                "What was clicked.",
                "SELECT query_id AS impression_id, doc_id\nFROM ubi_happened\nWHERE action_name = 'click'",
            ),
        ]

    @property
    def pages_query(self) -> str:
        """How many requests there are by application, by what tells that they were shown, and by page; how many of
        them begin at 0 or 1, where the pages before have left off if positions go on.
        """
        page, position = (self.dialect.integer(name, "VARCHAR") for name in ("page", "position"))
        return render(
            [
                *self.steps,
                Step(
                    "requests",
                    "Where each request begins.",
                    f"SELECT impression_id, application, shown_by, {page} AS page, MIN({position}) AS first\n"
                    f"FROM ubi_shown\nWHERE impression_id IS NOT NULL\n"
                    f"GROUP BY impression_id, application, shown_by, {page}",
                ),
                Step(
                    "pages",
                    "Requests of each kind.",
                    "SELECT application, shown_by, page, COUNT(*), COUNT(CASE WHEN first <= 1 THEN 1 END)\n"
                    "FROM requests\nGROUP BY application, shown_by, page",
                ),
            ]
        )

    @property
    def rankers_query(self) -> str:
        """How many results there are, and how many of them name a ranker."""
        counted = Step("named", "Results that name a ranker.", "SELECT COUNT(*), COUNT(ranker)\nFROM ubi_shown")
        return render([*self.steps, counted])

    @property
    def attributes_query(self) -> str:
        """Some of the query_attributes that there are, as JSON."""
        name = "query_attributes"
        type_ = self.queries.types.get(name, "VARCHAR")
        column = self.dialect.quote(self.queries.names.get(name, name))
        nested = name in self.queries.types and type_ not in ("VARCHAR", "JSON")
        text = self.dialect.as_json(column) if nested else self._text(self.queries, (name,))
        said = text or self.dialect.cast("NULL", "VARCHAR")
        answer = f"SELECT DISTINCT {said} AS said\nFROM impressions\nLIMIT {_FEW}"
        return render([Step("attributes", "What requests are described by.", answer)])

    def no_ranker(self, attributes: Sequence[Any]) -> UnusableLogError:
        """Return that no result names a ranker, with the keys that `attributes_query` shows."""
        keys: dict[str, None] = {}
        for text in attributes:
            with suppress(TypeError, ValueError):
                told = json.loads(text)
                keys |= dict.fromkeys(told if isinstance(told, dict) else ())
        found = listed(sorted(keys)) if keys else "none"
        return self._no_ranker("nor does a query_attributes hold it", f"; keys of query_attributes: {found}")

    def _no_ranker(self, nor: str, keys: str) -> UnusableLogError:
        return unusable(
            "missing-column",
            f"Neither ubi_queries nor ubi_events has {self.ranker!r}, {nor}",
            f"Columns found: {listed(self.queries.types)}; {listed(self.events.types)}{keys}. Name the ranker's "
            "column, or a key of query_attributes.",
            arguments={"ranker": "COLUMN"},
        )

    def _requests(self) -> Step:
        asked = self._text(self.queries, ("user_query",))
        ranker = self._ranker(self.queries, ("query_attributes", self.ranker or ""))
        columns = {
            "query_id": self._text(self.queries, ("query_id",)),
            "query": _looked_for(asked or ""),
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
            "query": _looked_for(asked),
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


def _looked_for(text: str) -> str:
    """Return the text of a query; a request without one, as of a start page, was for nothing."""
    return f"NULLIF(LOWER(TRIM({text})), '')"
