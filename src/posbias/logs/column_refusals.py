"""What no log can be: columns that are missing, mean two things, or cannot be what they are named for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from posbias.errors import LogError
from posbias.findings import unusable
from posbias.logs.click_log import ClickLog, Unsaid
from posbias.logs.columns import guess
from posbias.wording import listed

if TYPE_CHECKING:
    from posbias.logs.schemas import Columns

# By DuckDB's names, as types go here whatever the engine calls them.
INTEGERS = frozenset(
    ["TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"]
)
# Numbers that may have become what they are by rounding; a decimal without places, as Snowflake exports, is whole.
_FRACTIONS = ("DOUBLE", "FLOAT", "REAL", "DECIMAL")
_WHOLE = re.compile(r"DECIMAL\(\d+, ?0\)")
# Lists, structures and maps, as DuckDB and Spark call them.
NESTED = re.compile(r"\]$|^(STRUCT|MAP|UNION|ARRAY)\b")
IDS = ("query", "doc", "ranker")


def no_ranker_shown(columns: Mapping[str, str], ranks: Iterable[str]) -> LogError:
    """Return the error of a log that tells all rankers' ranks, but not which of them was shown."""
    meant = guess("ranker", "ranker", columns)
    ranks = list(ranks)
    found, leave = (listed(ranks), "ranks='none'") if ranks else ("the rankings table", "no rankings")
    unmeant = {"ranks": "none", "ranker": "none"} if ranks else {"ranker": "COLUMN"}
    return unusable(
        "no-ranker-shown",
        f"The log tells each ranker's rank ({found}), but no column says which ranker was shown",
        "Name it (ranker). If results were shown by none of them, as with interleaving, leave the ranks out of it "
        f"({leave}, ranker='none'): then documents are compared wherever they were shown.",
        arguments={"ranker": meant} if meant else unmeant,
    )


def refuse_window(window: str | None, columns: Mapping[str, str]) -> None:
    """Refuse a point in time for a window: hardly two rows share one, and nothing would be compared."""
    if window is not None and columns[window].startswith(("TIMESTAMP", "TIME")):
        raise unusable(
            "window-of-times",
            f"Column {window!r} is {columns[window]}: a point in time, where a window such as a day was expected",
            "Name a column of days or weeks; a query makes one.",
            arguments={"sql": f"SELECT *, date_trunc('day', \"{window}\") AS day FROM source", "window": "day"},
        )


def refuse_told_by_path(log: ClickLog, wanted: Mapping[str, str], table: Columns, where: str) -> None:
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


def refuse_shared(wanted: Mapping[str, str]) -> None:
    """Refuse one column for two meanings; a page view may be the query, of which there is one in each."""
    roles: dict[str, str] = {}
    for role, column in wanted.items():
        if role in ("impression", "original"):
            continue
        other = roles.setdefault(column, role)
        if other != role:
            raise unusable(
                "one-column-twice",
                f"Column {column!r} cannot be both {other} and {role}",
                f"Each has a column of its own: name the right ones ({other} and {role}).",
            )


def refuse_kinds(ids: Mapping[str, str], types: Mapping[str, str], ranks: Iterable[str], where: str) -> None:
    """Refuse ids that are no single values, and positions and ranks that are no numbers but true or false."""
    for role in (*IDS, *(["window"] if "window" in ids else [])):
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


def never_agree(one: str, other: str) -> bool:
    """Tell whether ids of two types are whole numbers in one and fractions in the other: as texts, 7 is not 7.0.

    >>> never_agree("BIGINT", "DOUBLE"), never_agree("BIGINT", "DECIMAL(38,0)"), never_agree("DOUBLE", "VARCHAR")
    (True, False, False)
    """
    whole = [type_ in INTEGERS or bool(_WHOLE.fullmatch(type_)) for type_ in (one, other)]
    return whole[0] != whole[1] and (other if whole[0] else one).startswith(_FRACTIONS)


def refuse_fractions(shared: Mapping[str, str], columns: Mapping[str, str], ranked: Mapping[str, str]) -> None:
    """Refuse ids that are whole numbers in one table and fractions in the other."""
    for role, column in shared.items():
        if role != "ranker":
            refuse_fraction(column, columns[column], ranked[column], "the rankings table")


def refuse_fraction(column: str, mine: str, theirs: str, where: str) -> None:
    """Refuse an id that is a whole number in the log and a fraction in another table, or the other way round."""
    if never_agree(mine, theirs):
        raise unusable(
            "ids-differ-in-type",
            f"Column {column!r} is {mine} in the log and {theirs} in {where}",
            "An id that became a fraction may have lost digits, and never equals the whole number: write both with "
            "whole numbers.",
        )


def require(column: str, columns: Mapping[str, str], *, argument: str, where: str = "the log") -> None:
    """Raise a LogError with the closest existing name if a column is missing."""
    require_all({argument: column}, columns, where)


def require_all(wanted: Mapping[str, str], columns: Mapping[str, str], where: str) -> None:
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
    elif len(missing) > 2 and not guesses and where == "the log":
        lead = "This does not look like a click log, which has one row for each result shown. "
    raise unusable(
        "missing-column",
        what,
        f"{lead}Columns found: {listed(columns)}. Say which to read.",
        count=len(missing),
        arguments={role: guesses.get(role, "COLUMN") for role in missing},
    )


def no_page_view(columns: Mapping[str, str], aggregated: bool) -> LogError:
    """Return the error that duplicates are to be dropped where no row tells its page view."""
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
