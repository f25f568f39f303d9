"""Rankings to be judged: where they lie, what their columns mean, and which cannot be used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from posbias.engines import OpenLog
from posbias.engines.files import PACKED
from posbias.errors import PosbiasError
from posbias.findings import Finding
from posbias.logs.column_refusals import NESTED, refuse_fraction
from posbias.logs.columns import guess
from posbias.sql.credits import Ranked
from posbias.sql.judged_rankings import ranking_rows, repeated, unseen
from posbias.sql.shown import Plan
from posbias.sql.vacancies import Pages, page_shapes
from posbias.wording import listed

# What a ranker of the log is called in place of a file, and what says that rankings are told by rank and not by score.
OF_LOG, NO_SCORE = "ranker:", "none"
# What the rankings that were logged are called, all together by their shares of the traffic.
THE_LOG = "the log"
# A ranking that has fewer clicks of the log than this share is of something else; below the second, it is said.
_TOO_FEW, _FEW = 0.5, 0.95
# Ranks that fewer page views leave vacant, as rows that were lost do, are not worth a word.
_FEW_VACANT = 0.01
_MOST_RANKINGS = 100
_NO_NUMBERS = ("BOOLEAN", "DATE", "BLOB", "INTERVAL", "UUID", "BIT")


def named_rankings(given: Any) -> dict[str, Any]:
    """Return rankings by name: of a mapping its own, of paths those of the files, of data numbers.

    >>> named_rankings(["models/v1.2.csv.gz", "ranker:b"])
    {'v1.2': 'models/v1.2.csv.gz', 'b': 'ranker:b'}
    """
    if isinstance(given, Mapping):
        named = {str(name): source for name, source in given.items()}
    else:
        several = list(given) if isinstance(given, list | tuple) else [given]
        named = dict(zip(_names(several), several, strict=True))
    if any(isinstance(source, str) and not source.strip() for source in named.values()):
        raise PosbiasError("The name of a ranking is empty. Give a file, a table, or 'ranker:NAME'.")
    if not named:
        raise PosbiasError("There is no ranking to judge. Give at least one: a file, a table, or 'ranker:NAME'.")
    taken = next((name for name in named if name == THE_LOG or not name.strip()), None)
    if taken is not None:
        raise PosbiasError(
            f"A ranking cannot be called {taken!r}, which is the name of what was logged, or none. Give it another "
            "name, as in {'new': ...}."
        )
    if len(named) > _MOST_RANKINGS:
        raise PosbiasError(f"{len(named):,} rankings are more than are judged at once. Give at most {_MOST_RANKINGS}.")
    return named


def _names(several: Sequence[Any]) -> list[str]:
    names = [_name(one) or f"ranking {number}" for number, one in enumerate(several, start=1)]
    if len({*names}) < len(names):
        # Files of one name lie in different folders, or have different endings.
        names = [os.fspath(one) if _is_path(one) else name for one, name in zip(several, names, strict=True)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise PosbiasError(f"The ranking {twice[0]!r} was given twice. Give each once.")
    return names


def _name(one: Any) -> str:
    if is_of_log(one):
        return str(one).removeprefix(OF_LOG)
    name = os.path.basename(os.fspath(one).rstrip("/")) if _is_path(one) else ""
    for packed in PACKED:
        name = name.removesuffix(packed)
    return os.path.splitext(name)[0]


def _is_path(one: Any) -> bool:
    return isinstance(one, str | os.PathLike)


def is_of_log(source: Any) -> bool:
    """Whether a ranking is that of one of the log's rankers."""
    return isinstance(source, str) and source.startswith(OF_LOG)


def find_tables(opened: OpenLog, tables: Mapping[str, str], score: str | None) -> dict[str, Ranked]:
    """Return what each ranking that is a table is, by its name; refuse what is none."""
    found = {name: _columns(opened, name, table, score) for name, table in tables.items()}
    with opened.distrusting():
        for name, one in found.items():
            _refuse_rows(opened, name, one)
    return found


def find_rankings(named: Mapping[str, Any], tables: Mapping[str, Ranked], rankers: Sequence[str]) -> list[Ranked]:
    """Return what each ranking is: one of the tables, or a ranker of the log."""
    return [
        Ranked(ranker=_number(source.removeprefix(OF_LOG), rankers)) if is_of_log(source) else tables[name]
        for name, source in named.items()
    ]


def _number(ranker: str, rankers: Sequence[str]) -> int:
    if ranker not in rankers:
        raise PosbiasError(f"The log has no ranker {ranker!r}. It has {listed(rankers)}.")
    return rankers.index(ranker)


def _columns(opened: OpenLog, name: str, table: str, score: str | None) -> Ranked:
    """Return which columns of a ranking are what: ids as the log calls them, and a score or a rank."""
    columns, schema = opened.beside[table], opened.schema
    told = dict(columns.types)
    for role in ("query", "doc"):
        _require(name, getattr(schema, role), role, told, "as the log calls it")
    if score is not None and score != NO_SCORE:
        _require(name, score, "score", told, "by which it ranks, the highest first")
        value, descending = score, True
    else:
        value, descending = _by_score_or_rank(name, told, schema.rank, score)
    for column in (schema.query, schema.doc, value):
        if NESTED.search(told[column]):
            raise PosbiasError(
                f"Column {column!r} of the ranking {name!r} is {told[column]}, where single values were expected."
            )
    if told[value] in _NO_NUMBERS or told[value].startswith("TIME"):
        raise PosbiasError(
            f"Column {value!r} of the ranking {name!r} is {told[value]}, where numbers to rank by were expected. Name "
            "the column of scores (score)."
        )
    for column in (schema.query, schema.doc):
        refuse_fraction(column, schema.types[column], told[column], f"the ranking {name!r}")
    query, doc, by = (columns.names.get(column, column) for column in (schema.query, schema.doc, value))
    types = told[schema.query], told[schema.doc], told[value]
    return Ranked(table, -1, query, doc, by, types, descending)


def _by_score_or_rank(name: str, told: Mapping[str, str], rank: str, score: str | None) -> tuple[str, bool]:
    """Return the column to rank by where none was named, and whether its highest value comes first."""
    named = [rank] if score == NO_SCORE else list(dict.fromkeys(("score", rank)))
    there = [column for column in named if column in told]
    if len(there) == 2:
        raise PosbiasError(
            f"The ranking {name!r} has both a score ('score') and a rank ({rank!r}), and which is meant is for you to "
            "say: the score, of which the highest comes first, or the rank (score='none').",
            {"score": "score"},
        )
    if not there:
        raise PosbiasError(
            f"The ranking {name!r} has neither a column 'score' nor a column {rank!r}. Columns found: {listed(told)}. "
            "Say which holds the scores, the highest first (score), or the ranks (rank)."
        )
    return there[0], there[0] == "score" and rank != "score"


def _require(name: str, column: str, role: str, told: Mapping[str, str], which: str) -> None:
    if column in told:
        return
    meant = guess(role, column, told)
    hint = f" Did you mean {meant!r}? Rename it." if meant else ""
    raise PosbiasError(
        f"The ranking {name!r} has no column {column!r}, the {role} {which}.{hint} Columns found: {listed(told)}."
    )


def _refuse_rows(opened: OpenLog, name: str, one: Ranked) -> None:
    """Refuse a ranking with rows that cannot be used."""
    [(rows, nameless, odd, scores, low, high)] = opened.rows(ranking_rows(opened.dialect, one), "Looking at rankings")
    if not scores and not odd:
        what = "has no row" if not rows else f"has no value in column {one.score!r}"
        raise PosbiasError(f"The ranking {name!r} {what}. Expected a row for each query and document with its score.")
    if odd:
        raise PosbiasError(
            f"{odd:,} of {rows:,} rows of the ranking {name!r} have NaN or what is no number in column {one.score!r}: "
            "they cannot be ranked. Give each a number, or NULL to put it last."
        )
    if nameless:
        raise PosbiasError(
            f"{nameless:,} of {rows:,} rows of the ranking {name!r} have no query or no document. Leave them out."
        )
    if scores > 1 and low == high:
        raise PosbiasError(
            f"All {scores:,} scores of the ranking {name!r}, in column {one.score!r}, are the same: it puts no "
            "document above another. Name the column that it ranks by (score or rank)."
        )
    [(several, example, times)] = opened.rows(repeated(opened.dialect, one), "Looking at rankings")
    if several:
        raise PosbiasError(
            f"The ranking {name!r} has {several:,} documents of a query more than once, for example of query "
            f"{example!r} one {times:,} times. A document has one place in a ranking: keep one row of each."
        )


def judge_cover(name: str, share: float, one: Ranked) -> list[Finding]:
    """Refuse a ranking that has few of the documents clicked, and say where some are missing."""
    percent = f"{100 * share:.1f}%"
    if share < _TOO_FEW:
        why = (
            "In replay it is known only where a ranker showed documents: give its ranking as a file."
            if not one.table
            else "Check that queries and documents have the same ids in both, and that it ranks the queries of the log."
        )
        raise PosbiasError(
            f"The ranking {name!r} has only {percent} of the clicked documents of the log, and what is not in it can "
            f"only be put last. {why}"
        )
    if share >= _FEW:
        return []
    return [
        Finding(
            "ranking-lacks-documents",
            "warning",
            f"The ranking {name!r} has {percent} of the clicked documents; the others are put last",
            evidence={"ranking": name, "share": share},
            remedy="Score every document of the log: what is missing is counted against the ranking.",
        )
    ]


def look_for_unseen(opened: OpenLog, plan: Plan, ranked: Sequence[Ranked], top: int) -> list[float | None]:
    """Return the share of each ranking's top ranks that was never shown; None for a ranker of the log."""
    shares: list[float | None] = [None] * len(ranked)
    if any(one.table for one in ranked):
        for number, every, never in opened.rows(unseen(plan, ranked, top), "Looking for documents never shown"):
            shares[number] = float(never) / float(every) if every else None
    return shares


def note_unseen(name: str, share: float | None, top: int, max_rank: int) -> Iterable[Finding]:
    """Warn of what no estimate sees."""
    if not share:
        return []
    return [
        Finding(
            "never-shown",
            "warning",
            f"{max(share, 0.001):.1%} of the top {top} of {name!r} was never shown to anyone for that query, at ranks "
            f"1 to {max_rank}",
            evidence={"ranking": name, "share": share, "top": top, "max_rank": max_rank},
            remedy="No estimate sees those: the ranking is judged by the order of the others. Show it to a part of the "
            "traffic to know more.",
        )
    ]


def look_at_pages(opened: OpenLog, plan: Plan, impressions: Iterable[float]) -> tuple[Pages, float]:
    """Return what page views show, and which share of them leaves a rank vacant above others.

    Where not each row tells its page view, the share is that at the rank that most of those leave that go on below it,
    by the impressions of all ranks.
    """
    if plan.schema.impression is not None and not plan.schema.aggregated:
        nameless, pages, vacant, least, most = opened.rows(page_shapes(plan), "Looking at page views")[0]
        if not nameless:
            return "known" if vacant or least < most else "whole", vacant / max(pages, 1)
    share = vacancy(impressions)
    return "unknown" if share else "whole", share


def vacancy(impressions: Iterable[float]) -> float:
    """Return which share, at the most, a rank lacks of the impressions that one below it has.

    >>> vacancy([50, 100, 100, 80])
    0.5
    """
    most, share = 0.0, 0.0
    for count in reversed(list(map(float, impressions))):
        most = max(most, count)
        share = max(share, 1 - count / most if most else 0.0)
    return share


def note_vacant(pages: Pages, share: float) -> list[Finding]:
    """Say where page views leave a rank vacant above others, which is what an advertisement there does."""
    if share < _FEW_VACANT:
        return []
    known = pages == "known"
    nearly = "" if known else " Not all rows tell their page view (impression), so that this is told nearly."
    return [
        Finding(
            "vacant-ranks",
            "info" if known else "warning",
            f"{share:.0%} of page views leave a rank vacant above others, as where an advertisement stands: the log is "
            "judged by the order of what its pages show, and what they left out for it comes below",
            evidence={"share": share},
            remedy=f"Compare rankings with each other, which this does not touch, before one with the log.{nearly}",
        )
    ]


def opened_names(named: Mapping[str, Any]) -> dict[str, str]:
    """Return what the table of each ranking that is a source is called in queries."""
    return {name: f"ranking_{number}" for number, (name, source) in enumerate(named.items()) if not is_of_log(source)}
