"""What a log as a whole lacks, though each row be sound: rankers, disagreement, clicks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from posbias.errors import LogError
from posbias.findings import Finding
from posbias.harvesting.page_views import FEW_VIEWS
from posbias.judging.looks import Look
from posbias.judging.requests import find_request_ids
from posbias.logs.columns import guess_ranks
from posbias.sql.dialect import FRACTIONS, INTEGERS
from posbias.wording import listed

NO_ROWS = Finding(
    "empty-log",
    "error",
    "The log is empty: it has its columns but no row",
    remedy="Check the path, or the filter that made it.",
)

# Next to fewer page views in all than so many times its own, a ranker with few is not the odd one out.
_RARE = 100
# Of so many ways of naming columns by rankers it is looked up whether they tell ranks.
_MOST_PATTERNS = 8
# A result is shown at the rank that its ranker gives it, where it is told; of interleaved lists, a third are.
_AT_RANK = 0.25


def find_rare_rankers(look: Look) -> Iterator[Finding]:
    """Yield rankers with so few page views, next to the others, that what they compare is chance."""
    views = look.profile.page_views
    rare = {name: n for name, n in views.items() if 0 < n < FEW_VIEWS and _RARE * n < sum(views.values())}
    if rare and not look.plan.schema.layout.ranks_known:
        if 2 * len(rare) > len(views):
            yield Finding(
                "few-page-views",
                "warning",
                f"{{count}} of {len(views):,} rankers served fewer than {FEW_VIEWS} page views, as where a ranker is "
                "told by its list",
                len(rare),
                remedy="In replay it does not matter who showed a document: without rankers the curve is the same, and "
                "comes sooner.",
                arguments={"ranker": "none"},
            )
    elif rare:
        yield Finding(
            "few-page-views",
            "warning",
            f"{{count}} of {len(views):,} rankers served fewer than {FEW_VIEWS} page views: "
            f"{listed(rare, most=4)} ({min(rare.values())} the fewest)",
            len(rare),
            evidence={"page_views": rare},
            remedy="What only they compare is chance: wait for more of them, or leave them out.",
        )


def find_no_intervention(look: Look) -> Iterator[Finding]:
    """Yield why nothing can be learnt from two ranks of one document: one ranker only, or rankers that agree."""
    rankers, pairs = look.profile.rankers, look.pairs
    if pairs and pairs.moved == 0 and (requests := find_request_ids(look)):
        yield from requests
    elif look.plan.schema.natural:
        if pairs and pairs.moved == 0:
            yield Finding(
                "no-disagreement",
                "error",
                "none of {pairs} (query, document) pairs was shown at two ranks"
                + (f" within one {look.plan.schema.window!r}" if look.plan.schema.window else ""),
                evidence={"pairs": pairs.pairs},
                remedy="There is nothing to compare: queries must recur with their documents at other ranks. Harvest a "
                "longer period" + (" or take a longer window." if look.plan.schema.window else "."),
            )
    elif len(rankers) == 1 and not (pairs and pairs.moved):
        yield Finding(
            "single-ranker",
            "error",
            f"there is a single ranker, {rankers[0]!r}",
            1,
            remedy="Propensities come from documents that two rankers put at different ranks: add the log of another "
            "ranker, or of the same one before it changed, or name the column that tells them apart (ranker).",
        )
    elif pairs and pairs.moved == 0:
        yield Finding(
            "no-disagreement",
            "error",
            f"the rankers {listed(rankers)} never disagree: none of {{pairs}} (query, document) pairs is at two ranks",
            evidence={"pairs": pairs.pairs},
            remedy="There is no intervention to harvest. In replay, queries must recur with different rankers: harvest "
            "a longer period, or log each ranker's rank (ranks or rankings).",
        )


def find_no_first_clicks(look: Look) -> Iterator[Finding]:
    """Yield that nobody clicked at position 1, where others were clicked: an estimate of such a log is refused."""
    positions = look.profile.positions
    clicks = sum(shown.clicks for shown in positions)
    if clicks and positions[0].position == 1 and positions[0].impressions and not positions[0].clicks:
        yield Finding(
            "no-first-clicks",
            "error",
            "there is no click at position 1, on {count} results shown there, and there are {clicks} at others",
            positions[0].impressions,
            evidence={"clicks": clicks},
            remedy="Propensities are relative to position 1, and cannot be estimated without clicks there: check that "
            "positions count from 1, and that clicks on the first result are logged.",
        )


def find_odd_rank_columns(look: Look) -> Iterator[Finding]:
    """Yield rank columns that are not used: of rankers that never served, or by a name that is not recognised."""
    schema, served = look.plan.schema, look.profile.rankers
    idle = [name for name in schema.rank_columns if name not in served]
    if idle:
        yield Finding(
            "idle-ranker",
            "warning",
            f"rank columns of rankers that served no row: {listed(schema.rank_columns[name] for name in idle)}",
            len(idle),
            remedy="They do no harm. If one should have served, compare its name with the rankers found: "
            f"{listed(served)}.",
        )
    if schema.layout.ranks_known:
        return
    unused = [name for name in schema.types if name not in schema.roles.values() and _may_be_rank(schema.types[name])]
    patterns = dict([*guess_ranks(unused, served).items()][:_MOST_PATTERNS])
    for pattern, share in _shares_at_rank(look, patterns).items():
        if share > _AT_RANK:
            columns = [*patterns[pattern].values()]
            yield Finding(
                "unused-ranks",
                "warning",
                f"columns {listed(columns, most=4)} look like each ranker's rank and are not used",
                len(columns),
                remedy="If they are, say so: then queries need not recur.",
                arguments={"ranks": pattern},
            )
            return
    lone = [c for c in schema.types if c in {f"rank_{name}" for name in served}]
    if len(lone) == 1:
        absent = [f"rank_{name}" for name in served if f"rank_{name}" not in lone]
        alike = [c for c in schema.types if c.lower() in map(str.lower, absent)]
        yield Finding(
            "unused-ranks",
            "warning",
            f"column {lone[0]!r} tells one ranker's rank, and the others have none",
            1,
            remedy=f"Call {listed(alike)} {listed(absent, most=4)}, in the same letters as the rankers."
            if alike
            else f"Add {listed(absent, most=4)} to know all ranks without recurring queries.",
        )


def _may_be_rank(type_: str) -> bool:
    return type_ in INTEGERS or type_ in FRACTIONS or type_.startswith(("DECIMAL", "VARCHAR"))


def _shares_at_rank(look: Look, patterns: Mapping[str, Mapping[str, str]]) -> dict[str, float]:
    """Return by pattern the share of rows shown at the rank by which its column tells where their ranker puts them."""
    if not patterns:
        return {}
    schema, d = look.plan.schema, look.plan.dialect
    ranker, position = (d.quote(name) for name in (schema.ranker, schema.position))
    counts = []
    for columns in patterns.values():
        values = {d.value(name, schema.types[schema.ranker]): column for name, column in columns.items()}
        told = " ".join(f"WHEN {value} THEN {d.rank(d.quote(c), schema.types[c])}" for value, c in values.items())
        same = f"CASE {ranker} {told} END = {d.integer(position, schema.types[schema.position])}"
        shown = f"{ranker} IN ({', '.join(values)})"
        counts += [f"COUNT(CASE WHEN {same} THEN 1 END)", f"COUNT(CASE WHEN {shown} THEN 1 END)"]
    try:
        found = look.opened.rows(f"SELECT {', '.join(counts)} FROM {look.opened.whole}", "Looking for ranks")[0]
    except LogError:
        # A row that is broken in a column which nobody uses is no reason to refuse the log.
        return {}
    return {pattern: found[2 * i] / max(found[2 * i + 1], 1) for i, pattern in enumerate(patterns)}
