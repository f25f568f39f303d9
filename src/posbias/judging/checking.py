"""A look at a log before harvesting: what was understood, and every problem with its remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from posbias.engines import EngineChoice, OpenLog, open_log
from posbias.errors import LogError
from posbias.findings import Problem, UnusableLogError
from posbias.harvesting.counting import known_rankers
from posbias.harvesting.defects import find_defects
from posbias.harvesting.set_sizes import count_sets
from posbias.judging.checks import Check, Shown
from posbias.judging.disagreements import find_contradictions, find_mixed_files, find_moving
from posbias.judging.repeats import find_repeats
from posbias.judging.shortages import find_no_clicks, find_no_intervention, find_no_rows, find_odd_rank_columns
from posbias.logs.click_log import ClickLog
from posbias.progress import Progress, silent
from posbias.sql.exposures import profile
from posbias.sql.shown import Plan


def check(
    log: ClickLog,
    *,
    max_rank: int = 10,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
) -> Check:
    """Look at a log and say what was understood and what is wrong.

    Example:
        >>> import posbias
        >>> found = posbias.check(posbias.ClickLog(posbias.simulate(posbias.World(queries=100))))
        >>> found.usable, found.layout, found.rows
        (True, 'wide', 10000)
    """
    if max_rank < 2:
        raise LogError(f"max_rank must be 2 or more to compare ranks, not {max_rank}.")
    try:
        with open_log(log, engine, progress) as opened:
            return _check(opened, max_rank)
    except UnusableLogError as error:
        # What keeps a log from being opened at all is its first problem: a missing column, a truncated file.
        return Check(problems=(error.problem,), max_rank=max_rank)


def _check(opened: OpenLog, max_rank: int) -> Check:
    schema = opened.schema
    rankers = known_rankers(opened) if schema.layout != "replay" else ()
    plan = Plan(schema, opened.dialect, rankers, max_rank)
    found = opened.rows(profile(plan), "Counting")
    understood: dict[str, Any] = {
        "layout": schema.layout,
        "max_rank": max_rank,
        "columns": schema.roles,
        "ranks": dict(schema.rank_columns),
        "rows": sum(row[2] for row in found),
        "rows_beyond": sum(row[2] for row in found if row[1] == 0),
    }
    if not understood["rows"]:
        return Check((find_no_rows(),), **understood)
    problems = [*find_mixed_files(opened), *find_defects(opened, plan)]
    if rankers and not _unusable(problems):
        problems += find_contradictions(opened, plan)
    problems += [*find_repeats(opened, plan), *find_moving(opened, plan)]
    sets = None if _unusable([p for p in problems if p.name != "duplicates"]) else count_sets(opened, max_rank)
    page_views = _page_views(opened, found)
    positions = _positions(found)
    problems += [
        *find_odd_rank_columns(schema, sorted({row[0] for row in found if row[0] is not None})),
        *find_no_intervention(page_views, sets.moved if sets else None, sets.pairs if sets else None),
        *find_no_clicks(positions),
    ]
    queries, shared = _queries(opened)
    return Check(
        problems=tuple(problems),
        **understood,
        queries=queries,
        queries_shared=shared if schema.layout == "replay" else None,
        page_views=page_views,
        positions=positions,
        documents=sets.pairs if sets else None,
        moved=sets.moved if sets else None,
    )


def _unusable(problems: Sequence[Problem]) -> bool:
    return any(p.severity == "error" for p in problems)


def _positions(found: list[tuple[Any, ...]]) -> tuple[Shown, ...]:
    shown: Counter[int] = Counter()
    clicks: Counter[int] = Counter()
    for _, position, _, impressions, clicked in found:
        if position > 0:
            shown[position] += impressions
            clicks[position] += clicked
    return tuple(Shown(p, shown[p], clicks[p]) for p in sorted(shown))


def _queries(opened: OpenLog) -> tuple[int, int]:
    """Return how many queries there are, and in replay how many of them several rankers served."""
    query, ranker = (opened.dialect.quote(name) for name in (opened.schema.query, opened.schema.ranker))
    if opened.schema.layout != "replay":
        return opened.rows(f"SELECT COUNT(DISTINCT {query}) FROM log", "Counting queries")[0][0], 0
    sql = (
        "SELECT COUNT(*), COUNT(CASE WHEN low <> high THEN 1 END) FROM (SELECT MIN(r) AS low, MAX(r) AS high "
        f"FROM (SELECT {query} AS q, {ranker} AS r FROM log) s WHERE q IS NOT NULL GROUP BY q) t"
    )
    queries, shared = opened.rows(sql, "Counting queries")[0]
    return queries, shared


def _page_views(opened: OpenLog, found: list[tuple[Any, ...]]) -> dict[str, int]:
    """Page views by ranker: by their ids where there are any, else by what was shown at the busiest position."""
    schema, d = opened.schema, opened.dialect
    if schema.impression is not None and not schema.aggregated:
        name, view, query = (d.quote(c) for c in (schema.ranker, schema.impression, schema.query))
        sql = (
            f"SELECT r, COUNT(*) FROM (SELECT DISTINCT {d.as_text(name)} AS r, {view} AS v, {query} AS q FROM log) t "
            "WHERE r IS NOT NULL AND v IS NOT NULL GROUP BY r ORDER BY r"
        )
        return dict(opened.rows(sql, "Counting page views"))
    most: dict[str, int] = {}
    for name, position, _, shown, _ in found:
        if position > 0 and name is not None:
            most[name] = max(most.get(name, 0), shown or 0)
    return dict(sorted(most.items()))
