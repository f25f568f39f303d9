"""What a log turned out to hold: its columns matched with what the user calls them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from posbias.findings import unusable
from posbias.logs.click_log import DEFAULT_RANKS, NO_RANKER, NO_RANKS, ClickLog, Unsaid
from posbias.logs.column_refusals import (
    IDS,
    no_page_view,
    no_ranker_shown,
    refuse_fractions,
    refuse_kinds,
    refuse_shared,
    refuse_told_by_path,
    refuse_window,
    require_all,
)
from posbias.logs.columns import differ_by_case, guess, is_near
from posbias.logs.layouts import Layout
from posbias.wording import listed

_ROLES = ("query", "doc", "ranker", "position", "click", "impression", "impressions", "clicks", "window", "original")
# The column that stands for the ranker where a log names none, and what it holds: every result was shown by the same.
NATURAL, ANY_RANKER = "posbias: no ranker", "any"


@dataclass(frozen=True)
class Columns:
    """The columns of a table: types by the names that its source gives them, what the engine calls them, and those
    that no file has and only the names of folders tell, as in `day=2026-01-01/log.parquet`.
    """

    types: Mapping[str, str]
    names: Mapping[str, str]
    in_paths: frozenset[str] = frozenset()


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
    window: str | None
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
    def natural(self) -> bool:
        """Whether the log names no ranker, so that documents are compared wherever they were shown."""
        return self.ranker == NATURAL

    @property
    def roles(self) -> dict[str, str]:
        """The columns that are used, by what they mean."""
        return {role: getattr(self, role) for role in _ROLES if getattr(self, role) is not None}


def resolve(log: ClickLog, table: Columns, second: Columns | None) -> Schema:
    """Match the names a log was given with the columns that exist, of its own and of the table of rankings."""
    schema = _match(log, table, second or Columns({}, {}))
    return _by_engine_names(schema, table.names, second.names if second else {})


def _match(log: ClickLog, table: Columns, second: Columns) -> Schema:
    columns, rankings = table.types, second.types
    # What only a folder is called is a column like any other to segment by, but says what a row is only if asked to.
    own = [column for column in columns if column not in table.in_paths]
    wanted = {role: str(getattr(log, role)) for role in ("query", "doc", "ranker", "position", "click")}
    wanted |= {role: name for role in ("impression", "window", "original") if (name := getattr(log, role)) is not None}
    by_name = log.click not in own and {"impressions", "clicks"} <= set(own)
    aggregated = log.impressions is not None or by_name
    if aggregated:
        del wanted["click"]
        wanted |= {"impressions": log.impressions or "impressions", "clicks": log.clicks or "clicks"}
    natural = _names_no_ranker(log, wanted, columns)
    if natural:
        del wanted["ranker"]
    require_all(wanted, columns, "the log")
    refuse_told_by_path(log, wanted, table, "log")
    refuse_shared(wanted)
    for role, name in (("impression", "impression_id"), ("original", "original_rank")):
        if getattr(log, role) is None and name in own:
            wanted[role] = name
    if log.duplicates == "drop" and (aggregated or "impression" not in wanted):
        raise no_page_view(columns, aggregated)

    if natural:
        wanted["ranker"] = NATURAL
        columns = {**columns, NATURAL: "VARCHAR"}
    layout = Layout.REPLAY
    rank_columns: dict[str, str] = {}
    shared = {role: wanted[role] for role in IDS}
    if log.rankings is not None:
        layout = Layout.LONG
        if natural:
            raise no_ranker_shown(columns, [])
        require_all(shared | {"rank": log.rank}, rankings, "the rankings table")
        refuse_told_by_path(log, shared | {"rank": log.rank}, second, "rankings table")
        refuse_fractions(shared, columns, rankings)
    elif log.ranks != NO_RANKS:
        among = own if log.ranks is None else columns
        found = match_ranks(log.ranks or DEFAULT_RANKS, (c for c in among if c not in wanted.values()))
        if log.ranks is not None and not found:
            raise unusable(
                "missing-ranks",
                f"No column fits ranks={log.ranks!r}",
                f"Columns found: {listed(columns)}. Put {{ranker}} where the ranker's name stands, or leave ranks out "
                "to learn the ranks from recurring queries.",
            )
        if log.ranks is not None or len(found) > 1:
            layout, rank_columns = Layout.WIDE, found
    refuse_kinds(wanted, columns, rank_columns.values(), "the log")
    if natural and rank_columns:
        raise no_ranker_shown(columns, rank_columns.values())
    refuse_window(wanted.get("window"), columns)
    if layout is Layout.LONG:
        refuse_kinds(shared, rankings, [log.rank], "the rankings table")

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
        window=wanted.get("window"),
        original=wanted.get("original"),
        rank_columns=rank_columns,
        types=dict(columns),
        rankings=dict(rankings),
        rank=log.rank,
        drop_duplicates=log.duplicates == "drop",
    )


def _names_no_ranker(log: ClickLog, wanted: Mapping[str, str], columns: Mapping[str, str]) -> bool:
    """Whether a log is to be taken as one that names no ranker: it was said, or no column is called so or nearly so.

    Who has to name other columns is asked for the one that is probably the ranker's, too.
    """
    if log.ranker == NO_RANKER:
        return True
    if not isinstance(log.ranker, Unsaid) or any(is_near(log.ranker, column) for column in columns):
        return False
    others = [name for role, name in wanted.items() if role != "ranker"]
    free = [column for column in columns if column not in others]
    return all(name in columns for name in others) or guess("ranker", log.ranker, free) is None


def _by_engine_names(schema: Schema, names: Mapping[str, str], ranked: Mapping[str, str]) -> Schema:
    """Return a schema by the names that the engine gave columns which differ only by case."""
    roles = {role: names.get(column, column) for role, column in schema.roles.items()}
    if schema.layout.ranks_in == "table":
        # Both tables call a column the same, which they could not if one of them was renamed.
        shared = [schema.query, schema.doc, schema.ranker]
        for where, told, used in (
            ("the log", names, list(schema.roles.values())),
            ("the rankings table", ranked, [*shared, schema.rank]),
        ):
            renamed = {column.lower() for column in used if told.get(column, column) != column}
            twins = [column for column in told if column.lower() in renamed]
            if twins:
                raise differ_by_case(twins, where)
    ranks = {ranker: names.get(column, column) for ranker, column in schema.rank_columns.items()}
    types = {names.get(column, column): type_ for column, type_ in schema.types.items()}
    return replace(schema, rank_columns=ranks, types=types, **roles)  # type: ignore[arg-type]


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
