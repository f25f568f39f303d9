"""The click log: where it lies and what its columns mean."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from posbias.errors import LogError

Layout = Literal["wide", "long", "replay"]

DEFAULT_RANKS = "rank_{ranker}"


@dataclass(frozen=True)
class ClickLog:
    """A click log: one row for each result shown, with the user's own column names.

    Arguments:
        source: a path, glob or folder of Parquet, CSV or JSON lines files, or a list of paths; a DuckDB file
            (with `table` or `sql`) or relation; a pandas, Polars or Arrow table.
        query, doc, ranker, position, click: the columns every log has.
        impression: the column of the page view. Optional; `impression_id` is taken where it exists.
        impressions, clicks: in place of `click`, the columns of a log that is already aggregated.
        ranks: the pattern of the columns that hold each ranker's rank (the wide layout). Columns named
            `rank_<ranker>` are recognised without it.
        rankings: the second table of the long layout: query, ranker, document, rank; a source like the first.
        rank: the column of `rankings` that holds the rank.
        table, sql: what to read from a DuckDB file.
        duplicates: "keep", or "drop" to count a result of a page view once however often it was logged.

    Example:
        >>> ClickLog("clicks.parquet", query="qid", click="tapped")
        ClickLog('clicks.parquet', query='qid', click='tapped')

    Reference: Agarwal et al., WSDM 2019, section 3.3.
    """

    source: Any
    query: str = "query_id"
    doc: str = "doc_id"
    ranker: str = "ranker"
    position: str = "position"
    click: str = "clicked"
    impression: str | None = None
    impressions: str | None = None
    clicks: str | None = None
    ranks: str | None = None
    rankings: Any = None
    rank: str = "rank"
    table: str | None = None
    sql: str | None = None
    duplicates: Literal["keep", "drop"] = "keep"

    def __post_init__(self) -> None:
        if self.ranks is not None and self.ranks.count("{ranker}") != 1:
            raise LogError(
                f"ranks={self.ranks!r} must hold {{ranker}} once, where the ranker's name stands in the "
                "column name: for example ranks='rank_{ranker}'."
            )
        if self.ranks is not None and self.rankings is not None:
            raise LogError(
                "ranks and rankings both say where the other rankers' ranks are. Give ranks for columns of the "
                "log (wide) or rankings for a second table (long), not both."
            )
        if (self.impressions is None) != (self.clicks is None):
            raise LogError("An aggregated log has both impressions and clicks: give both columns or neither.")
        if self.duplicates not in ("keep", "drop"):
            raise LogError(f"duplicates={self.duplicates!r} is not known. Use 'keep' or 'drop'.")

    def __repr__(self) -> str:
        shown = repr(self.source) if isinstance(self.source, str | list) else f"<{_kind(self.source)}>"
        given = [
            f"{name}={value!r}" if name != "rankings" or isinstance(value, str) else f"{name}=<{_kind(value)}>"
            for name, value in vars(self).items()
            if name != "source" and value is not type(self).__dataclass_fields__[name].default
        ]
        return f"ClickLog({', '.join([shown, *given])})"


def _kind(source: Any) -> str:
    return f"{type(source).__module__.split('.')[0]}.{type(source).__name__}"


@dataclass(frozen=True)
class Schema:
    """What a log turned out to hold: the columns that are there, with their types, and the layout they make."""

    layout: Layout
    query: str
    doc: str
    ranker: str
    position: str
    click: str | None
    impression: str | None
    impressions: str | None
    clicks: str | None
    rank_columns: Mapping[str, str]
    types: Mapping[str, str]
    rankings: Mapping[str, str]
    rank: str
    drop_duplicates: bool

    @property
    def aggregated(self) -> bool:
        """Whether a row stands for many impressions."""
        return self.click is None


def resolve(log: ClickLog, columns: Mapping[str, str], rankings: Mapping[str, str]) -> Schema:
    """Match the names a log was given with the columns that exist (name -> SQL type)."""
    for role in ("query", "doc", "ranker", "position"):
        require(getattr(log, role), columns, flag=role)

    impressions, clicks = log.impressions, log.clicks
    if impressions is None and log.click not in columns and {"impressions", "clicks"} <= columns.keys():
        impressions, clicks = "impressions", "clicks"
    if impressions is not None and clicks is not None:
        require(impressions, columns, flag="impressions")
        require(clicks, columns, flag="clicks")
    else:
        require(log.click, columns, flag="click")

    impression = log.impression
    if impression is not None:
        require(impression, columns, flag="impression")
    elif "impression_id" in columns:
        impression = "impression_id"
    if log.duplicates == "drop" and (impression is None or impressions is not None):
        raise LogError(
            "Duplicates can be dropped only where a row tells its page view, because without it a repeated "
            "query looks the same as a row logged twice. Name the page view's column with --impression."
        )

    if log.rankings is not None:
        for role in ("query", "doc", "ranker"):
            require(getattr(log, role), rankings, flag=role, where="the rankings table")
        require(log.rank, rankings, flag="rank", where="the rankings table")
        layout: Layout = "long"
        rank_columns: dict[str, str] = {}
    else:
        rank_columns = match_ranks(log.ranks or DEFAULT_RANKS, columns)
        if log.ranks is not None and not rank_columns:
            raise LogError(
                f"No column fits ranks={log.ranks!r}. Columns found: {listed(columns)}. Put {{ranker}} where "
                "the ranker's name stands, or leave ranks out to learn the ranks from recurring queries."
            )
        layout = "wide" if log.ranks is not None or len(rank_columns) > 1 else "replay"
        if layout == "replay":
            rank_columns = {}

    return Schema(
        layout=layout,
        query=log.query,
        doc=log.doc,
        ranker=log.ranker,
        position=log.position,
        click=None if impressions else log.click,
        impression=impression,
        impressions=impressions,
        clicks=clicks,
        rank_columns=rank_columns,
        types=dict(columns),
        rankings=dict(rankings),
        rank=log.rank,
        drop_duplicates=log.duplicates == "drop",
    )


def match_ranks(pattern: str, columns: Iterable[str]) -> dict[str, str]:
    """Return ranker -> column for the columns that fit the pattern.

    >>> match_ranks("rank_{ranker}", ["rank_a", "rank_b", "position"])
    {'a': 'rank_a', 'b': 'rank_b'}
    """
    before, after = pattern.split("{ranker}")
    size = len(before) + len(after)
    found = {
        column[len(before) : len(column) - len(after)]: column
        for column in columns
        if column.startswith(before) and column.endswith(after) and len(column) > size
    }
    return dict(sorted(found.items()))


def require(column: str, columns: Mapping[str, str], *, flag: str, where: str = "the log") -> None:
    """Raise a LogError with the closest existing name if a column is missing."""
    if column in columns:
        return
    near = difflib.get_close_matches(column, columns, n=1, cutoff=0.4)
    folded = [c for c in columns if c.lower() == column.lower()]
    guess = next(iter(folded or near), None)
    hint = f" Did you mean {guess!r}?" if guess else ""
    example = guess or "COLUMN"
    raise LogError(
        f"Column {column!r} is not in {where}.{hint} Columns found: {listed(columns)}. "
        f"Name it with --{flag} {shell(example)} (in Python: {flag}={example!r})."
    )


def listed(names: Iterable[str], most: int = 12) -> str:
    """Return names for a message, cut after a dozen."""
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + rest if names else "none"


def shell(text: str) -> str:
    """Return a name as one would type it in a shell."""
    import shlex

    return shlex.quote(text)
