"""The click log: where it lies, what its columns mean, and how one says what is wrong with it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from posbias.columns import guess
from posbias.errors import LogError

Layout = Literal["wide", "long", "replay"]

DEFAULT_RANKS = "rank_{ranker}"
# In place of a pattern: columns that look like ranks are not.
NO_RANKS = "none"
_ROLES = ("query", "doc", "ranker", "position", "click", "impression", "impressions", "clicks", "original")


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
            `rank_<ranker>` are recognised without it; "none" says that they are something else.
        rankings: the second table of the long layout: query, ranker, document, rank; a source like the first, or
            the name of a table in the same DuckDB file.
        rank: the column of `rankings` that holds the rank.
        table: the table of a DuckDB file.
        sql: a query to read in place of the source itself, which it calls `source`; in a DuckDB file it may name any
            table. It filters or mends a log: `SELECT * REPLACE (position + 1 AS position) FROM source`.
        original: the column of the rank before an experiment's swap. Optional; `original_rank` is taken if it exists.
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
    original: str | None = None
    duplicates: Literal["keep", "drop"] = "keep"

    def __post_init__(self) -> None:
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
        if self.duplicates not in ("keep", "drop"):
            raise LogError(f"duplicates={self.duplicates!r} is not known. Use 'keep' or 'drop'.")

    def __repr__(self) -> str:
        given = [
            f"{f.name}={_shown(getattr(self, f.name))}"
            for f in fields(self)[1:]
            if not (isinstance(getattr(self, f.name), str | None) and getattr(self, f.name) == f.default)
        ]
        return f"ClickLog({', '.join([_shown(self.source), *given])})"


def _shown(value: Any) -> str:
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(value) if isinstance(value, str) else f"<{type(value).__module__.split('.')[0]}.{type(value).__name__}>"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a log: an "error" makes it unusable, a "warning" does not.

    `name` is its kind, for programs, and `flags` is what to add to the command, where that is the remedy.
    """

    name: str
    severity: Literal["error", "warning"]
    what: str
    count: int
    example: str | None
    remedy: str
    flags: str = ""

    def __str__(self) -> str:
        example = f", for example {self.example}" if self.example else ""
        flags = f" Add {self.flags}" if self.flags else ""
        return f"{self.what}{example}. {self.remedy}{flags}"


class UnusableLogError(LogError):
    """A log that cannot even be opened, and the problem that is the reason."""

    def __init__(self, name: str, what: str, remedy: str, *, count: int = 1, flags: str = "") -> None:
        self.problem = Problem(name, "error", what, count, None, remedy, flags)
        super().__init__(str(self.problem))


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
    original: str | None
    rank_columns: Mapping[str, str]
    types: Mapping[str, str]
    rankings: Mapping[str, str]
    rank: str
    drop_duplicates: bool

    @property
    def aggregated(self) -> bool:
        """Whether a row stands for many impressions."""
        return self.click is None

    @property
    def roles(self) -> dict[str, str]:
        """The columns that are used, by what they mean."""
        return {role: getattr(self, role) for role in _ROLES if getattr(self, role) is not None}

    def by_engine_names(self, names: Mapping[str, str]) -> Schema:
        """Return the schema by the names that the engine gave columns which differ only by case."""
        roles = {role: names.get(column, column) for role, column in self.roles.items()}
        if self.layout == "long" and roles != self.roles:
            twins = [column for column in self.roles.values() if names.get(column, column) != column]
            raise UnusableLogError(
                "names-differ-by-case",
                f"the log has other columns that differ from {listed(twins)} only by upper and lower case",
                "SQL does not tell them apart: rename or leave out the others.",
            )
        ranks = {ranker: names.get(column, column) for ranker, column in self.rank_columns.items()}
        types = {names.get(column, column): type_ for column, type_ in self.types.items()}
        return replace(self, rank_columns=ranks, types=types, **roles)  # type: ignore[arg-type]


def resolve(log: ClickLog, columns: Mapping[str, str], rankings: Mapping[str, str]) -> Schema:
    """Match the names a log was given with the columns that exist (name -> SQL type)."""
    wanted = {role: str(getattr(log, role)) for role in ("query", "doc", "ranker", "position", "click")}
    wanted |= {role: name for role in ("impression", "original") if (name := getattr(log, role)) is not None}
    by_name = log.click not in columns and {"impressions", "clicks"} <= columns.keys()
    aggregated = log.impressions is not None or by_name
    if aggregated:
        del wanted["click"]
        wanted |= {"impressions": log.impressions or "impressions", "clicks": log.clicks or "clicks"}
    _require_all(wanted, columns, "the log")
    for role, name in (("impression", "impression_id"), ("original", "original_rank")):
        if getattr(log, role) is None and name in columns:
            wanted[role] = name
    if log.duplicates == "drop" and (aggregated or "impression" not in wanted):
        raise _no_page_view(columns, aggregated)

    layout: Layout = "replay"
    rank_columns: dict[str, str] = {}
    if log.rankings is not None:
        layout = "long"
        shared = {role: wanted[role] for role in ("query", "doc", "ranker")}
        _require_all(shared | {"rank": log.rank}, rankings, "the rankings table")
    elif log.ranks != NO_RANKS:
        found = match_ranks(log.ranks or DEFAULT_RANKS, (c for c in columns if c not in wanted.values()))
        if log.ranks is not None and not found:
            raise UnusableLogError(
                "missing-ranks",
                f"No column fits ranks={log.ranks!r}",
                f"Columns found: {listed(columns)}. Put {{ranker}} where the ranker's name stands, or leave ranks out "
                "to learn the ranks from recurring queries.",
            )
        if log.ranks is not None or len(found) > 1:
            layout, rank_columns = "wide", found

    return Schema(
        layout=layout,
        query=wanted["query"],
        doc=wanted["doc"],
        ranker=wanted["ranker"],
        position=wanted["position"],
        click=wanted.get("click"),
        impression=wanted.get("impression"),
        impressions=wanted.get("impressions"),
        clicks=wanted.get("clicks"),
        original=wanted.get("original"),
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
    _require_all({flag: column}, columns, where)


def _require_all(wanted: Mapping[str, str], columns: Mapping[str, str], where: str) -> None:
    """Raise one error for all columns that are missing, with the flags that would probably name them."""
    missing = {role: column for role, column in wanted.items() if column not in columns}
    if not missing:
        return
    free = [column for column in columns if column not in wanted.values()]
    guesses: dict[str, str] = {}
    for role, column in missing.items():
        meant = guess(role, column, [c for c in free if c not in guesses.values()])
        if meant is not None:
            guesses[role] = meant
    names = listed(missing.values())
    what = f"Column {names} is not in {where}" if len(missing) == 1 else f"Columns {names} are not in {where}"
    python = ", ".join(f"{role}={guesses.get(role, 'COLUMN')!r}" for role in missing)
    lead = ""
    if len(missing) == len(guesses) == 1:
        lead = f"Did you mean {listed(guesses.values())}? "
    elif len(missing) > 2 and not guesses:
        lead = "This does not look like a click log, which has one row for each result shown. "
    raise UnusableLogError(
        "missing-column",
        what,
        f"{lead}Columns found: {listed(columns)}. Say which to read, in Python by {python}.",
        count=len(missing),
        flags=" ".join(f"--{role} {shell(guesses.get(role, 'COLUMN'))}" for role in missing),
    )


def _no_page_view(columns: Mapping[str, str], aggregated: bool) -> LogError:
    if aggregated:
        return LogError(
            "Duplicates cannot be dropped from an aggregated log: its counts no longer tell which rows were logged "
            "twice. Drop them before adding up, and leave --duplicates out."
        )
    meant = guess("impression", "impression_id", columns)
    return LogError(
        "Duplicates can be dropped only where a row tells its page view, because without it a repeated query looks "
        f"the same as a row logged twice. Name the page view's column: --impression {shell(meant or 'COLUMN')}. "
        f"Columns found: {listed(columns)}."
    )


def listed(names: Iterable[str], most: int = 12) -> str:
    """Return names for a message, cut after a dozen."""
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + rest if names else "none"


def shell(text: str) -> str:
    """Return a name as one would type it in a shell."""
    return shlex.quote(text)
