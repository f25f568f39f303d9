"""What a log turned out to hold: its columns matched with what the user calls them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from posbias.errors import LogError
from posbias.findings import unusable
from posbias.logs.click_log import DEFAULT_RANKS, NO_RANKER, NO_RANKS, ClickLog, Unsaid
from posbias.logs.columns import differ_by_case, guess, is_near
from posbias.logs.layouts import Layout
from posbias.wording import listed

# By DuckDB's names, as types go here whatever the engine calls them.
INTEGERS = frozenset(
    ["TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"]
)
_IDS = ("query", "doc", "ranker")
# Lists, structures and maps, as DuckDB and Spark call them.
NESTED = re.compile(r"\]$|^(STRUCT|MAP|UNION|ARRAY)\b")
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
    _require_all(wanted, columns, "the log")
    _refuse_told_by_path(log, wanted, table, "log")
    _refuse_shared(wanted)
    for role, name in (("impression", "impression_id"), ("original", "original_rank")):
        if getattr(log, role) is None and name in own:
            wanted[role] = name
    if log.duplicates == "drop" and (aggregated or "impression" not in wanted):
        raise _no_page_view(columns, aggregated)

    if natural:
        wanted["ranker"] = NATURAL
        columns = {**columns, NATURAL: "VARCHAR"}
    layout = Layout.REPLAY
    rank_columns: dict[str, str] = {}
    shared = {role: wanted[role] for role in _IDS}
    if log.rankings is not None:
        layout = Layout.LONG
        if natural:
            raise _no_ranker_shown(columns, [])
        _require_all(shared | {"rank": log.rank}, rankings, "the rankings table")
        _refuse_told_by_path(log, shared | {"rank": log.rank}, second, "rankings table")
        _refuse_fractions(shared, columns, rankings)
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
    _refuse_kinds(wanted, columns, rank_columns.values(), "the log")
    if natural and rank_columns:
        raise _no_ranker_shown(columns, rank_columns.values())
    _refuse_window(wanted.get("window"), columns)
    if layout is Layout.LONG:
        _refuse_kinds(shared, rankings, [log.rank], "the rankings table")

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


def _no_ranker_shown(columns: Mapping[str, str], ranks: Iterable[str]) -> LogError:
    """Return the error of a log that tells all rankers' ranks, but not which of them was shown."""
    meant = guess("ranker", "ranker", columns)
    found = listed(ranks) or "the rankings table"
    return unusable(
        "no-ranker-shown",
        f"The log tells each ranker's rank ({found}), but no column says which ranker was shown",
        "Name it (ranker). If results were shown by none of them, as with interleaving, leave the ranks out of it: "
        "then documents are compared wherever they were shown (ranks='none', ranker='none').",
        arguments={"ranker": meant or "COLUMN"},
    )


def _refuse_window(window: str | None, columns: Mapping[str, str]) -> None:
    """Refuse a point in time for a window: hardly two rows share one, and nothing would be compared."""
    if window is not None and columns[window].startswith(("TIMESTAMP", "TIME")):
        raise unusable(
            "window-of-times",
            f"Column {window!r} is {columns[window]}: a point in time, where a window such as a day was expected",
            "Name a column of days or weeks; a query makes one.",
            arguments={"sql": f"SELECT *, date_trunc('day', \"{window}\") AS day FROM source", "window": "day"},
        )


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


def _refuse_told_by_path(log: ClickLog, wanted: Mapping[str, str], table: Columns, where: str) -> None:
    """Refuse to take from the name of a folder what a row is, unless the user named that very column."""
    told = {role: name for role, name in wanted.items() if name in table.in_paths}
    unsaid = {role: name for role, name in told.items() if isinstance(getattr(log, role), Unsaid)}
    if unsaid:
        raise unusable(
            "told-by-path",
            f"No file of the {where} has the column {listed(unsaid.values())}; only folders are called so",
            "A folder may be called anything: if its name tells that of every row in it, say so.",
            count=len(unsaid),
            arguments=unsaid,
        )


def _refuse_shared(wanted: Mapping[str, str]) -> None:
    """Refuse one column for two meanings; a page view may be the query, of which there is one in each."""
    roles: dict[str, str] = {}
    for role, column in wanted.items():
        if role in ("impression", "window", "original"):
            continue
        other = roles.setdefault(column, role)
        if other != role:
            raise unusable(
                "one-column-twice",
                f"Column {column!r} cannot be both {other} and {role}",
                f"Each has a column of its own: name the right ones ({other} and {role}).",
            )


def _refuse_kinds(ids: Mapping[str, str], types: Mapping[str, str], ranks: Iterable[str], where: str) -> None:
    """Refuse ids that are no single values, and positions and ranks that are no numbers but true or false."""
    for role in _IDS:
        if NESTED.search(types[ids[role]]):
            raise unusable(
                "nested-id",
                f"Column {ids[role]!r} of {where} is {types[ids[role]]}, and a {role} is told by a single value",
                "Name a column of numbers or texts, or take a part of it by a query (sql).",
            )
    for column in [*([ids["position"]] if "position" in ids else []), *ranks]:
        if types[column] == "BOOLEAN":
            raise unusable(
                "not-a-number",
                f"Column {column!r} of {where} is true or false, where a position or rank was expected",
                "Name the column of whole numbers that count from 1.",
            )


def _refuse_fractions(shared: Mapping[str, str], columns: Mapping[str, str], ranked: Mapping[str, str]) -> None:
    """Refuse ids that are whole numbers in one table and fractions in the other: as texts, 7 and 7.0 never agree."""
    for role, column in [(role, column) for role, column in shared.items() if role != "ranker"]:
        kinds = {columns[column] in INTEGERS: columns[column], ranked[column] in INTEGERS: ranked[column]}
        if len(kinds) == 2 and kinds[False].startswith(("DOUBLE", "FLOAT", "REAL", "DECIMAL")):
            raise unusable(
                "ids-differ-in-type",
                f"Column {column!r} is {columns[column]} in the log and {ranked[column]} in the rankings table",
                "An id that became a fraction may have lost digits, and never equals the whole number: write both "
                f"tables with whole numbers in the column of the {role}.",
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


def require(column: str, columns: Mapping[str, str], *, argument: str, where: str = "the log") -> None:
    """Raise a LogError with the closest existing name if a column is missing."""
    _require_all({argument: column}, columns, where)


def _require_all(wanted: Mapping[str, str], columns: Mapping[str, str], where: str) -> None:
    """Raise one error for all columns that are missing, with the arguments that would probably name them."""
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
    lead = ""
    if len(missing) == len(guesses) == 1:
        lead = f"Did you mean {listed(guesses.values())}? "
    elif len(missing) > 2 and not guesses:
        lead = "This does not look like a click log, which has one row for each result shown. "
    raise unusable(
        "missing-column",
        what,
        f"{lead}Columns found: {listed(columns)}. Say which to read.",
        count=len(missing),
        arguments={role: guesses.get(role, "COLUMN") for role in missing},
    )


def _no_page_view(columns: Mapping[str, str], aggregated: bool) -> LogError:
    if aggregated:
        return LogError(
            "Duplicates cannot be dropped from an aggregated log: its counts no longer tell which rows were logged "
            "twice. Drop them before adding up, and leave duplicates='drop' out."
        )
    meant = guess("impression", "impression_id", columns)
    return LogError(
        "Duplicates can be dropped only where a row tells its page view, because without it a repeated query looks "
        f"the same as a row logged twice. Name the page view's column. Columns found: {listed(columns)}.",
        {"impression": meant or "COLUMN"},
    )
