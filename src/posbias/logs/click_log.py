"""The click log as the user describes it: where its rows are, what its columns mean, and which layout it has.

Also the weightings, which say how much each (query, document) pair counts in a comparison of two ranks: by the page
views of the rankers ("traffic"), each pair once ("uniform"), by the harmonic mean of its impressions at the two ranks
("harmonic"), or by the smaller of the two ("min").

Reference: Agarwal et al., WSDM 2019 (traffic); Magnani and Xie, CIKM 2026 (harmonic) and its
draft of 2025 (min).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from numbers import Integral
from typing import Any, Literal, TypeVar, get_args

from posbias._text import listed, source_repr
from posbias.errors import LogError

Weighting = Literal["traffic", "uniform", "harmonic", "min"]
WEIGHTINGS: tuple[Weighting, ...] = ("traffic", "uniform", "harmonic", "min")
# Given in place of a ranker column: the log names no ranker.
NO_RANKER = "none"
# Given in place of a unit column: intervals cluster by query alone, whatever the columns are called.
NO_UNIT = "none"
# The values of the segment columns of one segment, None for a missing value.
Segment = tuple[str | None, ...]
V = TypeVar("V")
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
# The parts into which a log can be split, to learn from one and evaluate on the other.
Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = get_args(Part)
DEFAULT_RANKS = "rank_{ranker}"
# Given in place of a pattern: no columns hold ranks, whatever they are called.
NO_RANKS = "none"
# The arguments that must be text, and those of them that may be None.
_OPTIONAL = frozenset(
    ["impression", "impressions", "clicks", "ranks", "table", "sql", "window", "original", "unit", "split", "time"]
)
_TEXTS = ("query", "doc", "ranker", "position", "click", "rank", *sorted(_OPTIONAL))


class BySegment(dict[Segment, V]):
    """A dictionary by segment, in which the only value of a segment stands for it.

    >>> curves = BySegment({("phone",): 1, ("desktop",): 2})
    >>> curves["phone"], curves[("phone",)]
    (1, 1)
    >>> curves["tablet"]
    Traceback (most recent call last):
    KeyError: "There is no segment 'tablet'. Segments: 'phone', 'desktop'."
    """

    def __missing__(self, key: object) -> V:
        if isinstance(key, str) and (key,) in self:
            return self[(key,)]
        raise KeyError(no_segment(key, self))


def no_segment(key: object, segments: Iterable[Segment]) -> str:
    """Return the message about a segment that does not exist; a segment of one column is named by its value."""
    names = [one[0] if len(one) == 1 else one for one in segments]
    return f"There is no segment {key!r}. Segments: {listed(names)}."


class DefaultName(str):
    """A default column name, as opposed to the same name given by the user."""


@dataclass(frozen=True)
class ClickLog:
    """Describe a click log with one row for each result shown, and the names of its columns.

    Nothing is read until the log is used, for example by `posbias.harvest` or `posbias.check`.

    Arguments:
        source (path, list of paths or table): a path, glob or folder of Parquet, CSV or JSON lines files, or a list of
            paths; a DuckDB file (with `table` or `sql`) or relation; a pandas, Polars or Arrow table.
        query (str, default "query_id"): the column of the query.
        doc (str, default "doc_id"): the column of the document.
        ranker (str, default "ranker"): the column of the ranker that was shown. Without such a column, or with "none",
            documents are compared wherever they were shown at several ranks, whichever ranker put them there
            (replay layout only).
        position (str, default "position"): the column of the position, from 1.
        click (str, default "clicked"): the column of the click: 0 and 1, or false and true.
        impression (str, default None): the column of the page view. `impression_id` is used if it exists.
        impressions (str, default None): the column of impressions of an aggregated log, in place of `click`.
        clicks (str, default None): the column of clicks of an aggregated log, in place of `click`.
        ranks (str, default None): the pattern of the columns that hold the rank by each ranker (wide layout), such as
            "rank_{ranker}". Columns named `rank_<ranker>` are recognised without it; "none" ignores them.
        rankings (path or table, default None): a second table with query, ranker, document and rank (long layout). It
            is a source like the first, or the name of a table in the same DuckDB file.
        rank (str, default "rank"): the column of `rankings` that holds the rank.
        table (str, default None): the table of a DuckDB file.
        sql (str, default None): a query that is read in place of the source, which it calls `source`; in a DuckDB file
            it may name any table. It can filter or repair a log, such as
            `SELECT * REPLACE (position + 1 AS position) FROM source`.
        window (str, default None): in the replay layout, a column such as the day or week: documents are compared only
            within the same value.
        time (str, default None): the column of the time of a page view, such as its day or a timestamp. It shows
            whether the rankers overlap in time. In the replay layout, `day`, `date`, `timestamp` and the like are used
            if they exist.
        original (str, default None): the column of the rank before the swap of an experiment. `original_rank` is used
            if it exists.
        unit (str, default None): the column of what was assigned to rankers, usually the user. Intervals and the test
            of the traffic split cluster by it. `user_id` or `visitor_id` is used if it exists; "none" ignores it.
        duplicates (str, default "keep"): "keep", or "drop" to count each result of a page view once, however often it
            was logged.
        part (str, default None): read only a part of the rows: "train" (about 70%) or "test" (the others). Learn a
            ranker from one part and evaluate it on the other. Only DuckDB splits a log.
        split (str, default None): the column by which rows are split into these parts: rows with the same value are in
            the same part. By default the query; a user, a page view or a day if a ranker knows single queries.

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
    part: Part | None = None
    split: str | None = None
    unit: str | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        for name in _TEXTS:
            self._check_text(name)
        if self.ranks not in (None, NO_RANKS) and str(self.ranks).count("{ranker}") != 1:
            raise LogError(
                f"ranks={self.ranks!r} must contain {{ranker}} once, in the place of the ranker's name in the "
                "column name: for example ranks='rank_{ranker}'."
            )
        if self.ranks not in (None, NO_RANKS) and self.rankings is not None:
            raise LogError(
                "Give ranks or rankings, not both: ranks if the log has a column with the rank by each ranker (wide), "
                "rankings if a second table has the ranks (long)."
            )
        if (self.impressions is None) != (self.clicks is None):
            raise LogError("Give both impressions and clicks, or neither: an aggregated log has both columns.")
        if not isinstance(self.duplicates, str) or self.duplicates not in ("keep", "drop"):
            raise LogError(f"duplicates={self.duplicates!r} is not known. Use 'keep' or 'drop'.")
        if self.part is not None and not (isinstance(self.part, str) and self.part in PARTS):
            raise LogError(f"part={self.part!r} is not known. Use 'train' or 'test', or leave it out to read all rows.")
        if self.split is not None and self.part is None:
            raise LogError(
                "split is the column that divides the log into parts, but no part is named.", {"part": "train"}
            )

    def _check_text(self, name: str) -> None:
        value = getattr(self, name)
        if (value is None and name in _OPTIONAL) or (
            isinstance(value, str) and value.strip("\n\t ;" * (name == "sql"))
        ):
            return
        what = {"sql": "a query", "ranks": "a pattern of column names"}.get(name, f"the name of a {_named(name)}")
        raise LogError(f"{name}={value!r} must be text: {what}. Leave the argument out if there is none.")

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
        part: Part | None = None,
        split: str | None = None,
        unit: str | None = None,
    ) -> ClickLog:
        """Return a click log from two tables of events: impressions and clicks.

        The engine joins them each time the log is opened; `posbias.write_events` writes the joined log to a file. The
        log has the default column names, and keeps all other columns of the impressions.

        Arguments:
            impressions (path or table): what was shown, a source as in `ClickLog`: one row for each page view with its
                documents in an array, in the order shown; or one row for each document, with its position.
            clicks (path or table): one row for each click, with its page view and document. A source, or the name of a
                table in the same DuckDB file.
            impression (str, default "impression_id"): the column of the page view.
            query (str, default "query_id"): the column of the query.
            doc (str, default "doc_id"): the column of the document, in both tables.
            docs (str, default None): the column of the array of documents, which may be JSON text such as `[17, 4]`.
                `doc_ids` is used if it exists.
            position (str, default None): the column of the position, with one document in each row. `position` is used
                if there is no array. Whether it counts from 0 or from 1 is found from the top of the page views.
            ranker (str, default None): the column of the ranker that was shown; `ranker` is used if it exists, and
                "none" ignores it.
            application (str, default None): the column of the application, if positions start at 0 in one application
                and at 1 in another.
            click_impression (str, default None): the column of the page view in the clicks, if it has another name.
            click_doc (str, default None): the column of the document in the clicks, if it has another name.
            first (int, default None): the topmost position, 0 or 1, if page views do not show it.
            table (str, default None): the table of a DuckDB file that holds the impressions.
            sql (str, default None): a query that is read in place of the impressions, as in `ClickLog`.
            clicks_sql (str, default None): a query that is read in place of the clicks, which it calls `source`.
            preset (str, default None): "ubi" for the exported `ubi_queries` and `ubi_events` of OpenSearch's User
                Behavior Insights.
            rankings (path or table, default None): the second table of the long layout, as in `ClickLog`, with the
                columns `query_id`, `ranker` and `doc_id`.
            rank (str, default "rank"): the column of `rankings` that holds the rank.
            ranks (str, default None): the pattern of rank columns of the impressions, as in `ClickLog`.
            window (str, default None): a column of the impressions, as in `ClickLog`.
            original (str, default None): a column of the impressions, as in `ClickLog`.
            part (str, default None): "train" or "test", as in `ClickLog`.
            split (str, default None): a column of the log, as in `ClickLog`.
            unit (str, default None): a column of the impressions, as in `ClickLog`.

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
            part=part,
            split=split,
            unit=unit,
        )

    @property
    def sources(self) -> list[Any]:
        """All sources that the log is read from, the log itself first."""
        first = [self.source.impressions, self.source.clicks] if isinstance(self.source, Events) else [self.source]
        return [*first, *([] if self.rankings is None else [self.rankings])]

    def __repr__(self) -> str:
        given = [
            f"{f.name}={source_repr(getattr(self, f.name))}"
            for f in fields(self)[1:]
            if not (isinstance(getattr(self, f.name), str | None) and getattr(self, f.name) == f.default)
        ]
        return f"ClickLog({', '.join([source_repr(self.source), *given])})"


def _named(name: str) -> str:
    return "table" if name == "table" else "column"


@dataclass(frozen=True)
class Events:
    """Two tables of events, impressions and clicks; `ClickLog.from_events` explains the arguments."""

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
                raise LogError(f"{name}={value!r} must be text. Leave the argument out if there is none.")
        whole = isinstance(self.first, Integral) and not isinstance(self.first, bool)
        if self.first is not None and not (whole and self.first in (0, 1)):
            raise LogError(f"first={self.first!r} must be 0 or 1: the position of the topmost result.")
        if self.preset is not None and not (isinstance(self.preset, str) and self.preset in PRESETS):
            raise LogError(f"preset={self.preset!r} is not known. Use one of {', '.join(map(repr, PRESETS))}.")
        if self.docs is not None and self.position is not None:
            raise LogError(
                "Give docs or position, not both: docs if each row has an array of documents in the order shown, "
                "position if each row has one document."
            )

    @property
    def names_no_ranker(self) -> bool:
        """Whether the user gave ranker="none": the impressions name no ranker, whatever their columns are called."""
        return self.ranker == NO_RANKER

    def __repr__(self) -> str:
        given = [
            f"{field.name}={source_repr(getattr(self, field.name))}"
            for field in fields(self)[2:]
            if not (
                isinstance(getattr(self, field.name), str | int | None) and getattr(self, field.name) == field.default
            )
        ]
        return f"Events({', '.join([source_repr(self.impressions), source_repr(self.clicks), *given])})"


# Where the ranks of all rankers are: in columns of the log, in a second table, or in other rows of the log itself.
Place = Literal["columns", "table", "log"]


class Layout(StrEnum):
    """The layout of a log. A new layout needs an entry here, its SQL (`sql/`) and its counting (`harvesting/count.py`).

    Attributes:
        ranks_in: where the ranks of all rankers are: "columns", "table" or "log".
        description: the layout in a few words.
        weighting: the default weighting of (query, document) pairs.
        several_ranks: how a finding describes pairs to which one ranker gives several ranks.
        several_ranks_remedy: how such pairs are counted.
    """

    ranks_in: Place
    description: str
    weighting: Weighting
    several_ranks: str
    several_ranks_remedy: str

    WIDE = (
        "wide",
        "columns",
        "a column for each ranker's rank",
        "traffic",
        "have rank columns that differ between their rows",
        "Each row is counted by its own ranks.",
    )
    LONG = (
        "long",
        "table",
        "a second table of rankings",
        "traffic",
        "have several ranks by one ranker in the rankings table",
        "Otherwise such a rank counts as not known, and rows shown there are left out.",
    )
    REPLAY = (
        "replay",
        "log",
        "ranks are learned from recurring queries",
        "harmonic",
        "were shown at several positions by one and the same ranker",
        "Otherwise each position counts by its share, or refuse such logs with non_functional='refuse'.",
    )

    def __new__(
        cls,
        name: str,
        ranks_in: Place,
        description: str,
        weighting: Weighting,
        several_ranks: str,
        several_ranks_remedy: str,
    ) -> Layout:
        """Create a text, the name of the layout, with attributes."""
        layout = str.__new__(cls, name)
        layout._value_ = name
        layout.ranks_in = ranks_in
        layout.description = description
        layout.weighting = weighting
        layout.several_ranks = several_ranks
        layout.several_ranks_remedy = several_ranks_remedy
        return layout

    @property
    def ranks_known(self) -> bool:
        """Whether the ranks by all rankers are known for every row."""
        return self.ranks_in != "log"

    def __str__(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)


LAYOUTS: dict[str, Layout] = {layout.value: layout for layout in Layout}
