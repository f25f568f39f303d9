"""Which of a log's columns is probably meant, where none has the name that was expected."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from itertools import product

from posbias.findings import UnusableLogError, unusable
from posbias.wording import listed

# What logs call the columns of each role, the surest name first. Case and punctuation do not matter.
_OTHER_NAMES = {
    "query": "query qid queryid searchid srchid search keyword keywords searchterm term question context contextid",
    "doc": "doc docid did document documentid item itemid product productid result resultid listing listingid sku asin"
    " url article articleid movieid hotelid propid content contentid ad adid",
    "ranker": "ranker rankerid rankingfunction variant arm model modelid modelname policy algorithm algo treatment"
    " group experimentgroup abgroup testgroup bucket system experiment cohort version",
    "position": "position pos displayposition slot rank rankshown shownrank displayrank place positionindex index",
    "click": "clicked click isclick isclicked wasclicked hasclick clickbool clk tapped label y",
    "impression": "impressionid impression pageviewid pageview viewid requestid request serpid eventid searchid",
    "impressions": "impressions impressioncount nimpressions numimpressions imps views viewcount shown"
    " displays exposures",
    "clicks": "clicks clickcount nclicks numclicks clickscount taps",
    "rank": "rank position pos place",
    "docs": "docids docs documents documentids results resultids items itemids products productids hits hitids shown",
    "click_impression": "impressionid impression pageviewid pageview viewid requestid request queryid searchid",
    "click_doc": "docid doc document documentid item itemid product productid result resultid listingid sku url",
    "application": "application app site platform client",
}


def guess(role: str, wanted: str, columns: Iterable[str]) -> str | None:
    """Return the column that is probably meant by a name that is not there, or None.

    >>> guess("query", "query_id", ["request_id", "QID", "item"])
    'QID'
    >>> guess("query", "seach", ["clicks", "search"])
    'search'
    """
    plain = {_plain(column): column for column in reversed(list(columns))}
    if _plain(wanted) in plain:
        return plain[_plain(wanted)]
    near = difflib.get_close_matches(_plain(wanted), plain, n=1, cutoff=0.75)
    other = [name for name in _OTHER_NAMES.get(role, "").split() if name in plain]
    return next((plain[name] for name in (*near, *other)), None)


def is_near(wanted: str, column: str) -> bool:
    """Return whether a column is called what was expected, but for case, punctuation or a slip.

    >>> is_near("ranker", "Ranker_"), is_near("ranker", "rank"), is_near("ranker", "variant")
    (True, False, False)
    """
    return bool(difflib.get_close_matches(_plain(wanted), [_plain(column)], n=1, cutoff=0.85))


def guess_ranks(columns: Iterable[str], rankers: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return patterns by which columns are called for two rankers or more, each with these, the most rankers first.

    >>> guess_ranks(["pos_in_bm25", "pos_in_bert", "clicked"], ["bm25", "bert"])
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


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())


def refuse_twins(names: Iterable[str], where: str) -> None:
    """Refuse a table in which two columns have one name: nothing says which of them is meant."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise unusable(
                "names-twice",
                f"Two columns of {where} are named {name!r}",
                "Rename or leave out one of them. A query replaces a column by: SELECT * REPLACE (... AS name).",
            )
        seen.add(name)


def differ_by_case(twins: Iterable[str], where: str) -> UnusableLogError:
    """Return the error that columns are whose names are one to SQL."""
    return unusable(
        "names-differ-by-case",
        f"{where} has columns that differ only by upper and lower case: {listed(twins)}",
        "SQL does not tell them apart: rename or leave out one of them.",
    )
