"""A look at a log before harvesting: what was understood, and every problem with its remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from posbias.engines import EngineChoice, OpenLog, open_log
from posbias.findings import Finding, UnusableLogError, any_error
from posbias.harvesting.one_sided_ranks import find_one_sided
from posbias.harvesting.refusals import refuse_settings
from posbias.harvesting.repeats import find_repeats
from posbias.harvesting.row_counts import count_rows
from posbias.harvesting.samples import Sample
from posbias.harvesting.set_sizes import Pairs
from posbias.harvesting.shortages import find_no_clicks
from posbias.harvesting.signatures import known_rankers
from posbias.judging.checks import Check
from posbias.judging.looks import Look
from posbias.judging.non_functional import find_non_functional
from posbias.judging.shortages import (
    NO_ROWS,
    find_no_first_clicks,
    find_no_intervention,
    find_odd_rank_columns,
    find_rare_rankers,
)
from posbias.logs.click_log import ClickLog
from posbias.progress import Progress, silent
from posbias.sql.shown import Plan


def _find_repeats(look: Look) -> list[Finding]:
    # Where no ranker contradicts itself, none shows a result at several positions of a page view.
    moved = look.pairs is None or look.pairs.non_functional > 0 or look.counts.rows_contradicted > 0
    # Where all rows are within the top M and have ids, and none is dropped, a page view is told by fewer bits.
    dense = look.profile.rows_counted == look.profile.rows and not (look.lacks_ids or look.plan.schema.drop_duplicates)
    page_views = sum(look.profile.page_views.values())
    found = find_repeats(
        look.opened, look.plan, moved=moved, whole=look.profile if dense else None, page_views=page_views
    )
    # Lists that were interleaved are what makes a page view one of several rankers.
    known = any(finding.code == "interleaved" for finding in look.contradictions)
    return [finding for finding in found if not (known and finding.code == "mixed-view")]


def _find_one_sided(look: Look) -> list[Finding]:
    if any_error([*look.mixed_files, *look.defects, *look.contradictions]):
        return []
    return find_one_sided(look.opened, look.plan)


def _find_no_clicks(look: Look) -> Iterable[Finding]:
    for finding in find_no_clicks(look.profile.positions):
        # Of a part of a log that is merged with others it is a warning; by itself it has no curve.
        yield replace(finding, severity="error") if finding.code == "no-first-position" else finding


# What can be wrong with a log, in the order in which it is said.
FINDERS: tuple[Callable[[Look], Iterable[Finding]], ...] = (
    lambda look: look.opened.findings,
    lambda look: look.mixed_files,
    lambda look: look.defects,
    lambda look: look.contradictions,
    _find_repeats,
    find_non_functional,
    find_odd_rank_columns,
    _find_one_sided,
    find_rare_rankers,
    find_no_intervention,
    _find_no_clicks,
    find_no_first_clicks,
)


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
    refuse_settings(max_rank)
    try:
        with open_log(log, engine, progress) as opened:
            return _check(opened, max_rank)
    except UnusableLogError as error:
        # What keeps a log from being opened at all is its first problem: a missing column, a truncated file.
        return Check(findings=error.findings, max_rank=max_rank)


def _check(opened: OpenLog, max_rank: int) -> Check:
    schema = opened.schema
    # A check looks more than once, and each look at a text would read it anew.
    opened.keep()
    plan = Plan(schema, opened.dialect, known_rankers(opened), max_rank)
    profile, counts = count_rows(opened, plan)
    understood: dict[str, Any] = {
        "layout": schema.layout,
        "max_rank": max_rank,
        "columns": {role: name for role, name in schema.roles.items() if not (role == "ranker" and schema.natural)},
        "ranks": dict(schema.rank_columns),
        "rows": profile.rows,
        "rows_beyond": profile.rows_beyond,
    }
    if not profile.rows:
        return Check((NO_ROWS,), **understood)
    look = Look(opened, plan, profile, counts)
    findings = tuple(finding for find in FINDERS for finding in find(look))
    queries, shared = _queries(opened, look.pairs)
    return Check(
        findings=findings,
        **understood,
        queries=queries,
        queries_shared=None if schema.layout.ranks_known or schema.natural else shared,
        page_views=profile.page_views,
        positions=profile.positions,
        documents=look.pairs.pairs if look.pairs else None,
        moved=look.pairs.moved if look.pairs else None,
        documents_one_in=look.pairs.one_in if look.pairs else 1,
    )


def _queries(opened: OpenLog, pairs: Pairs | None) -> tuple[int, int]:
    """Return how many queries there are, by those of the pairs, and in replay how many several rankers served."""
    if pairs and pairs.queries is not None:
        return pairs.queries, 0
    query, ranker = (opened.dialect.quote(name) for name in (opened.schema.query, opened.schema.ranker))
    if opened.schema.layout.ranks_known:
        one_in = pairs.one_in if pairs else 1
        sql = f"SELECT COUNT(DISTINCT {query}) FROM log WHERE {Sample(one_in).condition(opened.dialect, query)}"
        return one_in * opened.rows(sql, "Counting queries")[0][0], 0
    sql = (
        "SELECT COUNT(*), COUNT(CASE WHEN low <> high THEN 1 END) FROM (SELECT MIN(r) AS low, MAX(r) AS high "
        f"FROM (SELECT {query} AS q, {ranker} AS r FROM log) s WHERE q IS NOT NULL GROUP BY q) t"
    )
    queries, shared = opened.rows(sql, "Counting queries")[0]
    return queries, shared
