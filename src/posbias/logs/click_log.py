"""The click log as the user describes it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Literal

from posbias._text import shown
from posbias.errors import LogError

Weighting = Literal["traffic", "uniform", "harmonic"]
WEIGHTINGS: tuple[Weighting, ...] = ("traffic", "uniform", "harmonic")
# In place of a column: the impressions name no ranker.
NO_RANKER = "none"
Preset = Literal["ubi"]
PRESETS: tuple[Preset, ...] = ("ubi",)
_REQUIRED_OF_EVENTS = ("impression", "query", "doc")
_OPTIONAL_OF_EVENTS = (
    "docs",
    "position",
    "ranker",
    "application",
    "click_impression",
    "click_doc",
    "table",
    "sql",
    "clicks_sql",
)
DEFAULT_RANKS = "rank_{ranker}"
# In place of a pattern: columns that look like ranks are not.
NO_RANKS = "none"
# What must be a text, and which of it may be left out.
_OPTIONAL = frozenset(["impression", "impressions", "clicks", "ranks", "table", "sql", "window", "original"])
_TEXTS = ("query", "doc", "ranker", "position", "click", "rank", *sorted(_OPTIONAL))


class DefaultName(str):
    """The name of a column that the user did not give: it is what such columns are called by default."""


@dataclass(frozen=True)
class ClickLog:
    """A click log: one row for each result shown, with the user's own column names.

    Arguments:
        source: a path, glob or folder of Parquet, CSV or JSON lines files, or a list of paths; a DuckDB file
            (with `table` or `sql`) or relation; a pandas, Polars or Arrow table.
        query, doc, position, click: the columns every log has.
        ranker: the column of the ranker that was shown. A log without it, or with "none" in its place, is compared by
            what varies by itself: documents that were shown at several ranks, whoever put them there (replay only).
        impression: the column of the page view. Optional; `impression_id` is taken where it exists.
        impressions, clicks: in place of `click`, the columns of a log that is already aggregated.
        ranks: the pattern of the columns that hold each ranker's rank (the wide layout). Columns named
            `rank_<ranker>` are recognised without it; "none" says that they are something else.
        rankings: the second table of the long layout: query, ranker, document, rank; a source like the first, or
            the name of a table in the same DuckDB file.
        rank: the column of `rankings` that holds the rank.
        table: the table of a DuckDB file.
        sql: a query to read in place of the source itself, which it calls `source`; in a DuckDB file it may name any
            table. It filters or mends a log: `SELECT * REPLACE (position + 1 AS position) FROM source`.
        window: in replay, a column such as the day or week: a document is compared only with itself within one.
        original: the column of the rank before an experiment's swap. Optional; `original_rank` is taken if it exists.
        duplicates: "keep", or "drop" to count a result of a page view once however often it was logged.

    Example:
        >>> ClickLog("clicks.parquet", query="qid", click="tapped")
        ClickLog('clicks.parquet', query='qid', click='tapped')

    Reference: Agarwal et al., WSDM 2019, section 3.3.
    """

    source: Any
    query: str = DefaultName("query_id")
    doc: str = DefaultName("doc_id")
    ranker: str = DefaultName("ranker")
    position: str = DefaultName("position")
    click: str = DefaultName("clicked")
    impression: str | None = None
    impressions: str | None = None
    clicks: str | None = None
    ranks: str | None = None
    rankings: Any = None
    rank: str = DefaultName("rank")
    table: str | None = None
    sql: str | None = None
    window: str | None = None
    original: str | None = None
    duplicates: Literal["keep", "drop"] = "keep"

    def __post_init__(self) -> None:
        for name in _TEXTS:
            self._check_text(name)
        if self.ranks not in (None, NO_RANKS) and str(self.ranks).count("{ranker}") != 1:
            raise LogError(
                f"ranks={self.ranks!r} must hold {{ranker}} once, where the ranker's name stands in the "
                "column name: for example ranks='rank_{ranker}'."
            )
        if self.ranks not in (None, NO_RANKS) and self.rankings is not None:
            raise LogError(
                "ranks and rankings both say where the other rankers' ranks are. Give ranks for columns of the "
                "log (wide) or rankings for a second table (long), not both."
            )
        if (self.impressions is None) != (self.clicks is None):
            raise LogError("An aggregated log has both impressions and clicks: give both columns or neither.")
        if not isinstance(self.duplicates, str) or self.duplicates not in ("keep", "drop"):
            raise LogError(f"duplicates={self.duplicates!r} is not known. Use 'keep' or 'drop'.")

    def _check_text(self, name: str) -> None:
        value = getattr(self, name)
        if (value is None and name in _OPTIONAL) or (
            isinstance(value, str) and value.strip("\n\t ;" * (name == "sql"))
        ):
            return
        what = {"sql": "a query", "ranks": "a pattern of column names"}.get(name, f"the name of a {_named(name)}")
        raise LogError(f"{name}={value!r} must be a text: {what}. Leave it out if there is none to name.")

    @classmethod
    def from_events(
        cls,
        impressions: Any,
        clicks: Any,
        *,
        impression: str = "impression_id",
        query: str = "query_id",
        doc: str = "doc_id",
        docs: str | None = None,
        position: str | None = None,
        ranker: str | None = None,
        application: str | None = None,
        click_impression: str | None = None,
        click_doc: str | None = None,
        first: int | None = None,
        table: str | None = None,
        sql: str | None = None,
        clicks_sql: str | None = None,
        preset: Preset | None = None,
        rankings: Any = None,
        rank: str = DefaultName("rank"),
        ranks: str | None = None,
        window: str | None = None,
        original: str | None = None,
    ) -> ClickLog:
        """Return the log that two tables of events make: what was shown, and what was clicked.

        They are joined by the engine when the log is opened: a log of its own goes to a file by `write_events`. Its
        columns have the default names; all other columns of the impressions are carried along.

        Arguments:
            impressions: what was shown, a source as a log is: one row for each page view with its documents in an
                array, in the order shown, or one row for each document with its position.
            clicks: one row for each click: its page view and document. A source as well, or the name of a table in
                the same DuckDB file.
            impression, query, doc: the columns of the page view, of the query and, in both tables, of the document.
            docs: the array; `doc_ids` is taken where it exists. It may be JSON in a text: `[17, 4]`.
            position: the column beside one document a row; `position` is taken where there is no array. Whether it
                counts from 0 or from 1 is told by where page views begin.
            ranker: the column of the ranker that was shown; `ranker` is taken where it exists. "none" leaves it out.
            application: a column of those whose positions may begin differently, at 0 in one and at 1 in another.
            click_impression, click_doc: what the clicks call their columns, where not as the impressions do.
            first: 0 or 1, the topmost position, where page views do not tell.
            table, sql: a table of a DuckDB file, and a query to read in place of the impressions, as in `ClickLog`.
            clicks_sql: a query to read in place of the clicks, which it calls `source`.
            preset: "ubi" for OpenSearch's User Behavior Insights: `ubi_queries` and `ubi_events` as exported.
            rankings, rank: as in `ClickLog`: the second table of the long layout, with the columns `query_id`,
                `ranker` and `doc_id`.
            ranks, window, original: as in `ClickLog`: columns of the impressions that are carried along.

        Example:
            >>> import posbias, pyarrow
            >>> views = {"impression_id": [1], "query_id": ["tea"], "doc_ids": [["x", "y"]], "ranker": ["a"]}
            >>> taps = {"impression_id": [1, 1], "doc_id": ["y", "y"]}
            >>> log = ClickLog.from_events(pyarrow.table(views), pyarrow.table(taps))
            >>> [(shown.position, shown.clicks) for shown in posbias.check(log).positions]
            [(1, 0), (2, 1)]
        """
        return cls(
            Events(
                impressions,
                clicks,
                impression=impression,
                query=query,
                doc=doc,
                docs=docs,
                position=position,
                ranker=ranker,
                application=application,
                click_impression=click_impression,
                click_doc=click_doc,
                first=first,
                table=table,
                sql=sql,
                clicks_sql=clicks_sql,
                preset=preset,
            ),
            ranker=NO_RANKER if ranker == NO_RANKER else DefaultName("ranker"),
            rankings=rankings,
            rank=rank,
            ranks=ranks,
            window=window,
            original=original,
        )

    @property
    def sources(self) -> list[Any]:
        """All that the log is read from, the log itself first."""
        first = [self.source.impressions, self.source.clicks] if isinstance(self.source, Events) else [self.source]
        return [*first, *([] if self.rankings is None else [self.rankings])]

    def __repr__(self) -> str:
        given = [
            f"{f.name}={shown(getattr(self, f.name))}"
            for f in fields(self)[1:]
            if not (isinstance(getattr(self, f.name), str | None) and getattr(self, f.name) == f.default)
        ]
        return f"ClickLog({', '.join([shown(self.source), *given])})"


def _named(name: str) -> str:
    return "table" if name == "table" else "column"


@dataclass(frozen=True)
class Events:
    """Two tables of events: `ClickLog.from_events` makes a log of them, and says what each argument means."""

    impressions: Any
    clicks: Any
    impression: str = "impression_id"
    query: str = "query_id"
    doc: str = "doc_id"
    docs: str | None = None
    position: str | None = None
    ranker: str | None = None
    application: str | None = None
    click_impression: str | None = None
    click_doc: str | None = None
    first: int | None = None
    table: str | None = None
    sql: str | None = None
    clicks_sql: str | None = None
    preset: Preset | None = None

    def __post_init__(self) -> None:
        for name in (*_REQUIRED_OF_EVENTS, *_OPTIONAL_OF_EVENTS):
            value = getattr(self, name)
            if not (isinstance(value, str) and value.strip()) and not (value is None and name in _OPTIONAL_OF_EVENTS):
                raise LogError(f"{name}={value!r} must be a text. Leave it out if there is none to name.")
        whole = isinstance(self.first, Integral) and not isinstance(self.first, bool)
        if self.first is not None and not (whole and self.first in (0, 1)):
            raise LogError(f"first={self.first!r} must be 0 or 1: the position of the topmost result.")
        if self.preset is not None and not (isinstance(self.preset, str) and self.preset in PRESETS):
            raise LogError(f"preset={self.preset!r} is not known. Use one of {', '.join(map(repr, PRESETS))}.")
        if self.docs is not None and self.position is not None:
            raise LogError(
                "docs names an array of documents in the order shown, position a column beside one document a row. "
                "Give one of them."
            )

    @property
    def names_no_ranker(self) -> bool:
        """Whether it was said that the impressions name no ranker, whatever their columns are called."""
        return self.ranker == NO_RANKER

    def __repr__(self) -> str:
        given = [
            f"{field.name}={shown(getattr(self, field.name))}"
            for field in fields(self)[2:]
            if not (
                isinstance(getattr(self, field.name), str | int | None) and getattr(self, field.name) == field.default
            )
        ]
        return f"Events({', '.join([shown(self.impressions), shown(self.clicks), *given])})"
