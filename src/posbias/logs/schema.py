"""Match the columns of a log, or of two tables of events, with their roles: query, document, ranker, position, click.

Columns that are missing, that are used twice or that cannot be what they are named for raise an error. It names the
column that is probably meant.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from itertools import product

from posbias._text import listed
from posbias.errors import LogError
from posbias.findings import Finding, UnusableLogError, unusable
from posbias.logs.click_log import DEFAULT_RANKS, NO_RANKER, NO_RANKS, NO_UNIT, ClickLog, DefaultName, Events, Layout

# Common names of the columns of each role, the most certain first. Case and punctuation do not matter.
_OTHER_NAMES = {
    "query": "query qid queryid searchid srchid search keyword keywords searchterm term question context contextid",
    "doc": "doc docid did document documentid item itemid product productid result resultid listing listingid sku asin"
    " url article articleid movieid hotelid propid content contentid ad adid",
    "ranker": "ranker rankerid rankingfunction variant arm model modelid modelname policy algorithm algo treatment"
    " group experimentgroup abgroup testgroup bucket system experiment cohort version",
    "position": "position pos displayposition slot rank rankshown shownrank displayrank place positionindex index",
    "click": "clicked click isclick isclicked wasclicked hasclick clickbool clk tapped label y",
    "impression": "impressionid impression pageviewid pageview viewid view pageimpression requestid request"
    " serpid eventid searchid",
    "impressions": "impressions impressioncount nimpressions numimpressions imps views viewcount shown"
    " displays exposures",
    "clicks": "clicks clickcount nclicks numclicks clickscount taps",
    "rank": "rank position pos place",
    "docs": "docids docs documents documentids results resultids items itemids products productids hits hitids shown",
    "click_impression": "impressionid impression pageviewid pageview viewid requestid request queryid searchid",
    "click_doc": "docid doc document documentid item itemid product productid result resultid listingid sku url",
    "application": "application app site platform client",
    "unit": "userid user uid visitorid visitor userpseudoid clientid deviceid cookieid memberid customerid sessionid"
    " session",
}
# Types have DuckDB's names here, whatever the engine calls them.
# From these numbers on, a type does not hold every whole number.
EXACT = {"DOUBLE": 2**53, "FLOAT": 2**24, "REAL": 2**24}
INTEGERS = frozenset(
    ["TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"]
)
# Types of numbers with a fraction. A decimal without places, as Snowflake exports it, is a whole number.
_FRACTIONS = ("DOUBLE", "FLOAT", "REAL", "DECIMAL")
_WHOLE = re.compile(r"DECIMAL\(\d+, ?0\)")
# Lists, structures and maps, as DuckDB and Spark call them.
NESTED = re.compile(r"\]$|^(STRUCT|MAP|UNION|ARRAY)\b")
IDS = ("query", "doc", "ranker")
_ROLES = (
    "query",
    "doc",
    "ranker",
    "position",
    "click",
    "impression",
    "impressions",
    "clicks",
    "window",
    "original",
    "unit",
    "time",
)
# Columns that hold the unit of assignment in any log that has them. Other names, such as client_id, may mean anything.
_UNIT_NAMES = ("user_id", "visitor_id")
# Words in the names of other columns that may hold it, and at most so many of these are tested.
_UNIT_WORDS = (
    "user visitor client customer member account cookie device browser session guest shopper buyer person profile"
    " subscriber anonymous uuid uid"
)
_MOST_UNIT_COLUMNS = 4
# Columns with the time of a page view, the most useful first. Case and punctuation do not matter.
_TIME_NAMES = ("day", "date", "dt", "week", "hour", "timestamp", "ts", "time", "datetime", "eventtime", "eventdate")
# The ranker column of a log that names no ranker, and the only value it has.
NATURAL, ANY_RANKER = "posbias: no ranker", "any"
# Rankers are numbered in 16 bits. A column with more values holds ids, not rankers.
MOST_RANKERS = 10_000
# Beyond 2^53, floating-point numbers of 64 bits cannot represent every count.
MOST_IMPRESSIONS = 2**53
# The column names of a log made of events, whatever the columns of the tables are called.
QUERY, DOC, RANKER, POSITION, CLICK, VIEW = "query_id", "doc_id", "ranker", "position", "clicked", "impression_id"
_LOG_COLUMNS = (QUERY, DOC, RANKER, POSITION, CLICK, VIEW)
# The prefix of columns that posbias adds while it joins.
_ADDED_PREFIX = "posbias: "
# The types of arrays, as DuckDB and Spark write them.
_ARRAY = re.compile(r"(?P<duckdb>.+)\[\d*\]$|^ARRAY<(?P<spark>.+)>$")
_TEXTS = ("VARCHAR", "JSON")


def resolve_log(log: ClickLog, table: Columns, second: Columns | None, quote: Callable[[str], str]) -> Schema:
    """Return the schema of a log from its columns and those of its rankings table; `quote` is for offered queries."""
    schema = _match(log, table, second or Columns({}, {}))
    _check_window(log.window, table.types, quote)
    return _by_engine_names(schema, table.names, second.names if second else {})


def split_column(log: ClickLog, schema: Schema, table: Columns) -> str:
    """Return the column by which a log is split into parts, under the name that the engine gives it."""
    if log.split is None:
        return schema.query
    _require_columns({"split": log.split}, table.types, "the log")
    column = table.names.get(log.split, log.split)
    whole_pages = ("query", "impression", "window", "unit", "time")
    roles = {role: name for role, name in schema.roles.items() if role not in whole_pages}
    within_page = next((role for role, name in roles.items() if name == column), None)
    if within_page or column in schema.rank_columns.values():
        raise LogError(
            f"A log cannot be split by {log.split!r}, the column of the {within_page or 'rank'}: it would tear page "
            "views or rankers apart. Split by the query, the user, the page view or the day."
        )
    return column


@dataclass(frozen=True)
class Schema:
    """The columns of a log by their roles, with their types, and the layout of the log."""

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
    unit: str | None
    time: str | None
    rank_columns: Mapping[str, str]
    types: Mapping[str, str]
    rankings: Mapping[str, str]
    rank: str
    drop_duplicates: bool

    @property
    def aggregated(self) -> bool:
        """Whether a row counts many impressions."""
        return self.click is None

    @property
    def natural(self) -> bool:
        """Whether the log names no ranker, so that documents are compared wherever they were shown."""
        return self.ranker == NATURAL

    @property
    def roles(self) -> dict[str, str]:
        """The columns that are used, by role."""
        return {role: getattr(self, role) for role in _ROLES if getattr(self, role) is not None}


@dataclass(frozen=True)
class Columns:
    """The columns of a table.

    Attributes:
        types: the type of each column, by its name in the source.
        names: the names that the engine gives to columns, if they differ from those in the source.
        in_paths: columns that only the names of folders have, as in `day=2026-01-01/log.parquet`.
    """

    types: Mapping[str, str]
    names: Mapping[str, str]
    in_paths: frozenset[str] = frozenset()


def resolve_events(events: Events, impressions: Columns, clicks: Columns) -> EventSchema:
    """Return the schema of two tables of events from their columns."""
    columns = impressions.types
    wanted = {"impression": events.impression, "query": events.query, **_documents(events, columns)}
    optional = {role: getattr(events, role) for role in ("ranker", "application")}
    if events.names_no_ranker:
        # A log with a column of this name would have a ranker.
        columns = {name: type_ for name, type_ in columns.items() if name.lower() != RANKER}
        optional["ranker"] = None
    wanted |= {role: name for role, name in optional.items() if name is not None}
    _require_columns(wanted, columns, "the impressions")
    _check_distinct_roles({role: name for role, name in wanted.items() if role != "application"})
    # As in any log, a column that exists only in folder names has a role only if the user names it.
    unused = columns.keys() - impressions.in_paths - {*wanted.values()}
    if events.ranker is None and RANKER in unused:
        wanted["ranker"] = RANKER
    click_columns = {
        "click_impression": events.click_impression or events.impression,
        "click_doc": events.click_doc or events.doc,
    }
    _require_columns(click_columns, clicks.types, "the clicks")
    doc = wanted.get("docs") or wanted["doc"]
    used = {wanted["impression"], wanted["query"], doc, wanted.get("position"), wanted.get("ranker")}
    carried = tuple(name for name in columns if name not in used)
    _check_names_taken(carried)

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
        click_impression=clicks.names.get(click_columns["click_impression"], click_columns["click_impression"]),
        click_doc=clicks.names.get(click_columns["click_doc"], click_columns["click_doc"]),
        click_types={clicks.names.get(column, column): type_ for column, type_ in clicks.types.items()},
    )
    _check_event_types(schema)
    return schema


@dataclass(frozen=True)
class EventSchema:
    """The columns of both tables by their roles, with the names that the engine gives them."""

    impression: str
    query: str
    doc: str
    ranker: str | None
    application: str | None
    # None if each row is a page view: then `doc` is the array of its documents, in the order shown.
    position: str | None
    carried: tuple[str, ...]
    types: Mapping[str, str]
    click_impression: str
    click_doc: str
    click_types: Mapping[str, str]
    # The names that the user gives to columns, if they differ.
    user_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def doc_type(self) -> str:
        """The type of document ids."""
        return self.types[self.doc] if self.position is not None else element_type(self.types[self.doc])


def _match(log: ClickLog, table: Columns, second: Columns) -> Schema:
    columns, rankings = table.types, second.types
    # A column that exists only in folder names can define segments, but has a role only if the user names it.
    in_files = [column for column in columns if column not in table.in_paths]
    wanted = {role: str(getattr(log, role)) for role in ("query", "doc", "ranker", "position", "click")}
    wanted |= {
        role: name
        for role in ("impression", "window", "original", "unit", "time")
        if (name := getattr(log, role)) is not None
    }
    if wanted.get("unit") in (NO_UNIT, wanted["query"]):
        # Intervals cluster by query anyway.
        del wanted["unit"]
    by_name = log.click not in in_files and {"impressions", "clicks"} <= set(in_files)
    aggregated = log.impressions is not None or by_name
    if aggregated:
        del wanted["click"]
        wanted |= {"impressions": log.impressions or "impressions", "clicks": log.clicks or "clicks"}
    natural = _has_no_ranker(log, wanted, columns)
    if natural:
        del wanted["ranker"]
    _require_columns(wanted, columns, "the log")
    _check_not_only_in_path(log, wanted, table, "log")
    _check_distinct_roles(wanted)
    for role, name in (("impression", "impression_id"), ("original", "original_rank")):
        if getattr(log, role) is None and name in in_files:
            wanted[role] = name
    if log.unit is None:
        free = (name for name in _UNIT_NAMES if name in in_files and name not in wanted.values())
        units = [name for name in free if not NESTED.search(columns[name])]
        wanted |= {"unit": units[0]} if units else {}
    if log.duplicates == "drop" and (aggregated or "impression" not in wanted):
        raise _cannot_drop_duplicates(columns, aggregated)

    if natural:
        wanted["ranker"] = NATURAL
        columns = {**columns, NATURAL: "VARCHAR"}
    layout = Layout.REPLAY
    rank_columns: dict[str, str] = {}
    shared = {role: wanted[role] for role in IDS}
    if log.rankings is not None:
        layout = Layout.LONG
        if natural:
            raise _missing_ranker_column(columns, [])
        _require_columns(shared | {"rank": log.rank}, rankings, "the rankings table")
        _check_not_only_in_path(log, shared | {"rank": log.rank}, second, "rankings table")
        _check_shared_ids(shared, columns, rankings)
    elif log.ranks != NO_RANKS:
        candidates = in_files if log.ranks is None else columns
        found = _find_rank_columns(log.ranks or DEFAULT_RANKS, (c for c in candidates if c not in wanted.values()))
        if log.ranks is not None and not found:
            raise unusable(
                "missing-ranks",
                f"No column fits ranks={log.ranks!r}",
                f"Columns found: {listed(columns)}. Put {{ranker}} where the ranker's name stands, or leave ranks out "
                "to learn the ranks from recurring queries.",
            )
        if log.ranks is not None or len(found) > 1:
            layout, rank_columns = Layout.WIDE, found
    _check_types(wanted, columns, rank_columns.values(), "the log")
    if natural and rank_columns:
        raise _missing_ranker_column(columns, rank_columns.values())
    if layout is Layout.REPLAY and "time" not in wanted:
        unused = {_plain(c): c for c, type_ in columns.items() if c not in wanted.values() and not NESTED.search(type_)}
        if found_time := next((unused[name] for name in _TIME_NAMES if name in unused), None):
            wanted["time"] = found_time
    if layout is Layout.LONG:
        _check_types(shared, rankings, [log.rank], "the rankings table")

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
        unit=wanted.get("unit"),
        time=wanted.get("time"),
        rank_columns=rank_columns,
        types=dict(columns),
        rankings=dict(rankings),
        rank=log.rank,
        drop_duplicates=log.duplicates == "drop",
    )


def _has_no_ranker(log: ClickLog, wanted: Mapping[str, str], columns: Mapping[str, str]) -> bool:
    """Return whether a log names no ranker: the user said so, or no column has the name "ranker" or a similar one.

    If other columns are missing too, a column that could be the ranker is reported together with them.
    """
    if log.ranker == NO_RANKER:
        return True
    if not isinstance(log.ranker, DefaultName) or any(_is_similar(log.ranker, column) for column in columns):
        return False
    others = [name for role, name in wanted.items() if role != "ranker"]
    free = [column for column in columns if column not in others]
    return all(name in columns for name in others) or guess_column("ranker", log.ranker, free) is None


def _is_similar(wanted: str, column: str) -> bool:
    """Return whether a name is the expected one but for case, punctuation or a typing error.

    >>> _is_similar("ranker", "Ranker_"), _is_similar("ranker", "rank"), _is_similar("ranker", "variant")
    (True, False, False)
    """
    return bool(difflib.get_close_matches(_plain(wanted), [_plain(column)], n=1, cutoff=0.85))


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())


def guess_column(role: str, wanted: str, columns: Iterable[str]) -> str | None:
    """Return the column that is probably meant by the name of a missing one, or None.

    >>> guess_column("query", "query_id", ["request_id", "QID", "item"])
    'QID'
    >>> guess_column("query", "seach", ["clicks", "search"])
    'search'
    >>> guess_column("ranker", "ranker", ["rank"]) is None
    True
    """
    plain = {_plain(column): column for column in reversed(list(columns))}
    if _plain(wanted) in plain:
        return plain[_plain(wanted)]
    other = [name for name in _OTHER_NAMES.get(role, "").split() if name in plain]
    # A common name of another role is no misspelling: "rank" is not meant to be "ranker".
    taken = {name for names in _OTHER_NAMES.values() for name in names.split()} - {*other} if role else {""}
    near = difflib.get_close_matches(_plain(wanted), [name for name in plain if name not in taken], n=1, cutoff=0.75)
    return next((plain[name] for name in (*near, *other)), None)


def guess_units(schema: Schema) -> list[str]:
    """Return the columns of a log without units that may hold them, by their names, the most certain first."""
    if schema.unit is not None:
        return []
    free = (column for column in schema.types if column not in (*schema.roles.values(), *_UNIT_NAMES))
    plain = {_plain(column): column for column in free if not NESTED.search(schema.types[column])}
    known = [plain[name] for name in _OTHER_NAMES["unit"].split() if name in plain]
    words = {column: re.findall("[A-Z]?[a-z]+", column) for column in plain.values() if column not in known}
    alike = [column for column, own in words.items() if {word.lower() for word in own} & {*_UNIT_WORDS.split()}]
    return (known + alike)[:_MOST_UNIT_COLUMNS]


def _require_columns(wanted: Mapping[str, str], columns: Mapping[str, str], where: str) -> None:
    """Raise one error for all missing columns, with the arguments that probably name them."""
    missing = {role: column for role, column in wanted.items() if column not in columns}
    if not missing:
        return
    free = [column for column in columns if column not in wanted.values()]
    guesses: dict[str, str] = {}
    for role, column in missing.items():
        meant = guess_column(role, column, [c for c in free if c not in guesses.values()])
        if meant is not None:
            guesses[role] = meant
    names = listed(missing.values())
    what = f"Column {names} is not in {where}" if len(missing) == 1 else f"Columns {names} are not in {where}"
    lead = ""
    if len(missing) == len(guesses) == 1:
        lead = f"Did you mean {listed(guesses.values())}? "
    elif len(missing) > 2 and not guesses and where == "the log":
        lead = "This does not look like a click log, which has one row for each result shown. "
        if len(columns) < len(missing):
            # Not even enough columns to name.
            raise unusable(
                "missing-column",
                what,
                f"{lead}It needs columns of the query, the document, the position and the click. Columns found: "
                f"{listed(columns)}.",
                count=len(missing),
            )
    raise unusable(
        "missing-column",
        what,
        f"{lead}Columns found: {listed(columns)}. Name the right ones.",
        count=len(missing),
        arguments={role: guesses.get(role, "COLUMN") for role in missing},
    )


def _check_not_only_in_path(log: ClickLog, wanted: Mapping[str, str], table: Columns, where: str) -> None:
    """Raise an error if a role has a column that only folder names have, and the user did not name that column."""
    in_paths = {role: name for role, name in wanted.items() if name in table.in_paths}
    unnamed = {role: name for role, name in in_paths.items() if isinstance(getattr(log, role), DefaultName)}
    if unnamed:
        raise unusable(
            "column-only-in-path",
            f"No file of the {where} has the column {listed(unnamed.values())}; it exists only in the names of folders",
            "If the name of a folder holds for every row in it, name the column yourself.",
            count=len(unnamed),
            arguments=unnamed,
        )


def _check_distinct_roles(wanted: Mapping[str, str]) -> None:
    """Raise an error if one column has two roles. The page view may be the query, if each page view has its own."""
    roles: dict[str, str] = {}
    for role, column in wanted.items():
        if role in ("impression", "original"):
            continue
        other = roles.setdefault(column, role)
        if other != role:
            raise unusable(
                "column-with-two-roles",
                f"Column {column!r} cannot be both {other} and {role}",
                f"Name a column for each of them ({other} and {role}).",
            )


def _cannot_drop_duplicates(columns: Mapping[str, str], aggregated: bool) -> LogError:
    """Return the error of duplicates='drop' for a log without page views."""
    if aggregated:
        return LogError(
            "Duplicates cannot be dropped from an aggregated log, because its counts do not show which rows were "
            "logged twice. Drop them before aggregating, and leave duplicates='drop' out."
        )
    meant = guess_column("impression", "impression_id", columns)
    return LogError(
        "Duplicates can be dropped only from a log with a column of page views. Without it, a repeated query looks the "
        f"same as a row logged twice. Name the column of the page view. Columns found: {listed(columns)}.",
        {"impression": meant or "COLUMN"},
    )


def _missing_ranker_column(columns: Mapping[str, str], ranks: Iterable[str]) -> LogError:
    """Return the error of a log with the ranks by all rankers, but without the ranker that was shown."""
    meant = guess_column("ranker", "ranker", columns)
    ranks = list(ranks)
    where, remedy = (listed(ranks), "ranks='none'") if ranks else ("the rankings table", "no rankings")
    without_guess = {"ranks": "none", "ranker": "none"} if ranks else {"ranker": "COLUMN"}
    return unusable(
        "missing-ranker-column",
        f"The log has the rank by each ranker ({where}), but no column with the ranker that was shown",
        "Name that column (ranker). If no single ranker was shown, as with interleaving, leave the ranks out "
        f"({remedy}, ranker='none'): then documents are compared wherever they were shown.",
        arguments={"ranker": meant} if meant else without_guess,
    )


def _check_shared_ids(shared: Mapping[str, str], columns: Mapping[str, str], rankings: Mapping[str, str]) -> None:
    """Raise an error if ids are whole numbers in one table and fractions in the other."""
    for role, column in shared.items():
        if role != "ranker":
            check_id_types(column, columns[column], rankings[column], "the rankings table")


def check_id_types(column: str, log_type: str, other_type: str, where: str) -> None:
    """Raise an error if an id is a whole number in the log and a fraction in another table, or the reverse."""
    if _ids_never_match(log_type, other_type):
        raise unusable(
            "ids-differ-in-type",
            f"Column {column!r} is {log_type} in the log and {other_type} in {where}",
            "An id stored as a fraction may have lost digits, and never equals a whole number. Write both as whole "
            "numbers.",
        )


def rounded_ids(column: str, type_: str, count: int, where: str = "") -> Finding:
    """Return the finding that different ids became one, because they are stored as floats."""
    return Finding(
        "rounded-ids",
        "error",
        f"{{count}} rows have an id in {column!r} of {EXACT[type_]:,} or more, which the type {type_}"
        f"{where and f' (in {where})'} does not hold exactly: different ids became one",
        count,
        remedy="Write the column as BIGINT or VARCHAR at the source, in JSON as text in quotes: a cast of this file is "
        "too late.",
    )


def _ids_never_match(one: str, other: str) -> bool:
    """Return whether one type is of whole numbers and the other of fractions: ids are compared as text, 7 is not 7.0.

    >>> _ids_never_match("BIGINT", "DOUBLE"), _ids_never_match("BIGINT", "DECIMAL(38,0)")
    (True, False)
    >>> _ids_never_match("DOUBLE", "VARCHAR")
    False
    """
    whole = [type_ in INTEGERS or bool(_WHOLE.fullmatch(type_)) for type_ in (one, other)]
    return whole[0] != whole[1] and (other if whole[0] else one).startswith(_FRACTIONS)


def _find_rank_columns(pattern: str, columns: Iterable[str]) -> dict[str, str]:
    """Return the columns that fit a pattern, by ranker.

    >>> _find_rank_columns("rank_{ranker}", ["rank_a", "rank_b", "position"])
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


def _check_types(ids: Mapping[str, str], types: Mapping[str, str], ranks: Iterable[str], where: str) -> None:
    """Raise an error if an id is not a single value, or if a position or rank is true or false."""
    for role in (*IDS, *(role for role in ("window", "unit") if role in ids)):
        if NESTED.search(types[ids[role]]):
            what = "document" if role == "doc" else role
            raise unusable(
                "nested-id",
                f"Column {ids[role]!r} of {where} is {types[ids[role]]}, but a {what} must be a single value",
                "Name a column of numbers or text, or extract a part of it with a query (sql).",
            )
    for column in [*([ids["position"]] if "position" in ids else []), *ranks]:
        if types[column] == "BOOLEAN":
            raise unusable(
                "not-a-number",
                f"Column {column!r} of {where} is true or false, where a position or rank was expected",
                "Name a column of whole numbers that count from 1.",
            )


def _check_window(window: str | None, columns: Mapping[str, str], quote: Callable[[str], str]) -> None:
    """Raise an error if the window is a point in time: hardly two rows share one, so nothing could be compared."""
    if window is not None and columns[window].startswith(("TIMESTAMP", "TIME")):
        day = "day"
        while any(column.lower() == day.lower() for column in columns):
            day = f"{day}_only"
        raise unusable(
            "window-is-timestamp",
            f"Column {window!r} is {columns[window]}, a point in time; a window must be a period such as a day",
            "Name a column of days or weeks, or make one with a query.",
            arguments={"sql": f"SELECT *, CAST({quote(window)} AS DATE) AS {day} FROM source", "window": day},
        )


def _by_engine_names(schema: Schema, names: Mapping[str, str], ranking_names: Mapping[str, str]) -> Schema:
    """Return the schema with the names that the engine gave to columns that differ only by case."""
    roles = {role: names.get(column, column) for role, column in schema.roles.items()}
    if schema.layout.ranks_in == "table":
        # The tables are joined by columns of the same name, so the engine must not have renamed one of them.
        shared = [schema.query, schema.doc, schema.ranker]
        for where, engine_names, used in (
            ("the log", names, list(schema.roles.values())),
            ("the rankings table", ranking_names, [*shared, schema.rank]),
        ):
            renamed = {column.lower() for column in used if engine_names.get(column, column) != column}
            ambiguous = [column for column in engine_names if column.lower() in renamed]
            if ambiguous:
                raise names_differ_by_case(ambiguous, where)
    ranks = {ranker: names.get(column, column) for ranker, column in schema.rank_columns.items()}
    types = {names.get(column, column): type_ for column, type_ in schema.types.items()}
    return replace(schema, rank_columns=ranks, types=types, **roles)  # type: ignore[arg-type]


def names_differ_by_case(columns: Iterable[str], where: str) -> UnusableLogError:
    """Return the error of columns whose names differ only by case."""
    return unusable(
        "names-differ-by-case",
        f"{where} has columns that differ only by upper and lower case: {listed(columns)}",
        "SQL ignores case in names: rename or leave out one of them.",
    )


def _documents(events: Events, columns: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of what was shown: an array in the order shown, or a document and its position."""
    if events.docs is not None:
        return {"docs": events.docs}
    if events.position is not None or "doc_ids" not in columns:
        position = events.position or POSITION
        if events.position is not None or {events.doc, position} & columns.keys():
            return {"doc": events.doc, "position": position}
        meant = guess_column("docs", "doc_ids", columns)
        raise unusable(
            "missing-column",
            "The impressions have neither an array of documents in the order shown ('doc_ids') nor a document with its "
            f"position ({events.doc!r}, {position!r}) in each row",
            f"Columns found: {listed(columns)}. Name the array (docs), or both columns (doc and position).",
            arguments={"docs": meant or "COLUMN"},
        )
    return {"docs": "doc_ids"}


def _check_names_taken(carried: tuple[str, ...]) -> None:
    """Raise an error if a column that is carried along has the name of one that posbias adds."""
    taken = [name for name in carried if name.lower() in _LOG_COLUMNS or name.lower().startswith(_ADDED_PREFIX)]
    if taken:
        raise unusable(
            "column-name-taken",
            f"The log would have two columns named {listed(name.lower() for name in taken)}: one that posbias adds, "
            "and one that the impressions have",
            "If it is the column to be used, give its name as an argument. Otherwise leave it out with a query (sql), "
            f"such as SELECT * EXCLUDE ({taken[0]}) FROM source; in Spark, EXCEPT in place of EXCLUDE.",
            count=len(taken),
        )


def _check_event_types(schema: EventSchema) -> None:
    """Raise an error for ids that are not single values or never match, and for a position or array of a wrong type."""
    types = schema.types
    if schema.position is None:
        if types[schema.doc] not in _TEXTS and not _ARRAY.search(types[schema.doc]):
            raise unusable(
                "not-an-array",
                f"Column {schema.doc!r} of the impressions is {types[schema.doc]}, where an array of documents was "
                "expected",
                "Name a column of arrays, or of JSON text such as [17, 4] (docs). If each row has one document, name "
                "the document and its position (doc and position).",
            )
    elif types[schema.position] == "BOOLEAN":
        raise unusable(
            "not-a-number",
            f"Column {schema.position!r} of the impressions is true or false, where a position was expected",
            "Name a column of whole numbers (position).",
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
                f"Column {column!r} of {where} is {type_}, but an id must be a single value",
                f"Name a column of numbers or text ({role}), or extract a part of it with a query.",
            )
    for role in ("impression", "doc"):
        (type_, column, _), (click_type, click_column, _) = ids[role], ids[f"click_{role}"]
        if _ids_never_match(type_, click_type):
            raise unusable(
                "ids-differ-in-type",
                f"{column!r} is {type_} in the impressions, and {click_column!r} is {click_type} in the clicks",
                "An id stored as a fraction may have lost digits, and never equals a whole number. Write both as whole "
                "numbers. pandas turns ids into fractions if one of them is missing: leave such rows out.",
            )


def element_type(type_: str) -> str:
    """Return the type of the elements of an array; those of JSON text are text.

    >>> element_type("BIGINT[]"), element_type("ARRAY<BIGINT>"), element_type("ARRAY<STRING>"), element_type("VARCHAR")
    ('BIGINT', 'BIGINT', 'VARCHAR', 'VARCHAR')
    """
    found = _ARRAY.search(type_)
    inner = (found["duckdb"] or found["spark"]) if found else "VARCHAR"
    return {"STRING": "VARCHAR", "INT": "INTEGER"}.get(inner, inner)


def guess_rank_patterns(columns: Iterable[str], rankers: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return name patterns that fit the columns of two rankers or more, with these columns, the most rankers first.

    >>> guess_rank_patterns(["pos_in_bm25", "pos_in_bert", "clicked"], ["bm25", "bert"])
    {'pos_in_{ranker}': {'bm25': 'pos_in_bm25', 'bert': 'pos_in_bert'}}
    """
    found: dict[str, dict[str, str]] = {}
    for column, ranker in product(columns, filter(None, rankers)):
        for place in re.finditer(f"(?={re.escape(ranker)})", column):
            before, after = column[: place.start()], column[place.start() + len(ranker) :]
            if (before or after) and "{ranker}" not in column:
                found.setdefault(f"{before}{{ranker}}{after}", {})[ranker] = column
    several = [(pattern, by_ranker) for pattern, by_ranker in found.items() if len(by_ranker) > 1]
    return dict(sorted(several, key=lambda item: -len(item[1])))


def check_duplicate_columns(names: Iterable[str], where: str) -> None:
    """Raise an error if two columns of a table have the same name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise unusable(
                "duplicate-column",
                f"Two columns of {where} are named {name!r}",
                "Rename or leave out one of them. In a query, SELECT * REPLACE (... AS name) replaces a column.",
            )
        seen.add(name)


def require_column(column: str, columns: Mapping[str, str], *, argument: str, where: str = "the log") -> None:
    """Raise an error with the most similar column name if a column is missing."""
    _require_columns({argument: column}, columns, where)


def check_rankers(schema: Schema, rankers: Sequence[str]) -> None:
    """Raise an error if there are too many rankers, or if two names are equal in the type of the ranker column."""
    if len(rankers) > MOST_RANKERS:
        raise unusable(
            "too-many-rankers",
            f"There are too many rankers: {len(rankers):,} in column {schema.ranker!r}, such as "
            f"{listed(rankers[:3])}; at most {MOST_RANKERS:,} can be compared",
            "Name the column of the ranking function whose ranking was shown (ranker), not of ids of queries, users or "
            "page views.",
            count=len(rankers),
        )
    if schema.types[schema.ranker] == "VARCHAR":
        return
    by_value: dict[object, str] = {}
    for name in rankers:
        other = by_value.setdefault(_value(name), name)
        if other != name:
            raise unusable(
                "identical-ranker-names",
                f"The rankers {listed([other, name])} have the same value in column {schema.ranker!r}, which is "
                f"{schema.types[schema.ranker]}" + _shared_rank_columns(schema, (other, name)),
                "Leave one of them out, or write the ranker as text.",
            )


def _value(name: str) -> object:
    """Return the name of a ranker as a number if it is one, else in lower case."""
    try:
        return Decimal(name.strip()).normalize()
    except InvalidOperation:
        return name.strip().lower()


def _shared_rank_columns(schema: Schema, rankers: Sequence[str]) -> str:
    columns = [schema.rank_columns[name] for name in rankers if name in schema.rank_columns]
    return f": {listed(columns)} would both hold its ranks" if columns else ""


def check_count_sums(schema: Schema, impressions: int) -> None:
    """Raise an error if the counts of an aggregated log add up to more than can be represented exactly."""
    if impressions > MOST_IMPRESSIONS:
        raise counts_overflow(schema)


def counts_overflow(schema: Schema) -> UnusableLogError:
    """Return the error of counts whose sum cannot be represented exactly."""
    return unusable(
        "counts-overflow",
        f"The counts in {schema.impressions!r} and {schema.clicks!r} add up to more than 2^53",
        "No log has so many impressions. Check that both columns hold counts, not ids or times.",
    )
