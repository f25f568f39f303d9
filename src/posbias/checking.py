"""What a log says when one looks at it before harvesting: what was understood, and every problem with its remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from posbias.engines.duckdb import Engine, open_log
from posbias.errors import LogError
from posbias.harvesting import count_sets, known_rankers
from posbias.log import ClickLog, listed
from posbias.problems import Problem, find_contradictions, find_defects, find_moving, find_repeats
from posbias.progress import Progress, silent
from posbias.sql.exposures import profile
from posbias.sql.shown import Plan

_LAYOUTS = {
    "wide": "wide: a column for each ranker's rank",
    "long": "long: a second table of rankings",
    "replay": "replay: ranks are learnt from recurring queries",
}


@dataclass(frozen=True)
class Shown:
    """What was shown at one position."""

    position: int
    impressions: int
    clicks: int


@dataclass(frozen=True)
class Check:
    """What was understood of a log, and its problems."""

    problems: tuple[Problem, ...]
    layout: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    queries: int = 0
    page_views: Mapping[str, int] = field(default_factory=dict)
    positions: tuple[Shown, ...] = ()
    documents: int = 0
    moved: int = 0

    @property
    def usable(self) -> bool:
        """Whether the log can be harvested."""
        return not any(p.severity == "error" for p in self.problems)

    def to_dict(self) -> dict[str, Any]:
        """Return the check as `--json` prints it."""
        return {"usable": self.usable, **asdict(self)}

    def __str__(self) -> str:
        return "\n\n".join(part for part in (self._understood(), self._complaints()) if part)

    def _understood(self) -> str:
        if self.layout is None:
            return ""
        views = sum(self.page_views.values())
        share = f"{self.moved / self.documents:.1%}" if self.documents else "none"
        lines = [
            f"layout      {_LAYOUTS[self.layout]}",
            f"columns     {', '.join(f'{role}={name}' for role, name in self.columns.items())}",
            f"rows        {self.rows:,}",
            f"queries     {self.queries:,}",
            f"page views  {views:,}",
            *(f"  {name}  {n:,} ({n / max(views, 1):.1%})" for name, n in self.page_views.items()),
            f"documents   {self.documents:,} (query, document) pairs, {self.moved:,} of them ({share}) at different "
            "ranks by different rankers",
            "click rate by rank",
        ]
        for p in self.positions:
            rate = p.clicks / p.impressions if p.impressions else 0.0
            lines.append(f"  {p.position:>4}  {rate:>7.2%}  of {p.impressions:,}")
        return "\n".join(lines)

    def _complaints(self) -> str:
        if not self.problems:
            return "No problem found."
        marks = {"error": "✗", "warning": "!"}
        text = [f"{marks[p.severity]} {p}" for p in sorted(self.problems, key=lambda p: p.severity != "error")]
        verdict = "The log can be used." if self.usable else "The log cannot be used as it is."
        return "\n".join([*text, verdict])


def check(
    log: ClickLog,
    *,
    max_rank: int = 10,
    memory_limit: str | None = None,
    threads: int | None = None,
    progress: Progress = silent,
) -> Check:
    """Look at a log and say what was understood and what is wrong.

    Example:
        >>> import posbias
        >>> found = posbias.check(posbias.ClickLog(posbias.simulate(posbias.World(queries=100))))
        >>> found.usable, found.layout, found.rows
        (True, 'wide', 10000)
    """
    try:
        with open_log(log, memory_limit=memory_limit, threads=threads, progress=progress) as engine:
            return _check(engine, max_rank)
    except LogError as error:
        # What keeps a log from being opened at all is its first problem: a missing column, a truncated file.
        what, _, remedy = str(error).partition(". ")
        return Check(problems=(Problem("error", what, 1, None, remedy),))


def _check(engine: Engine, max_rank: int) -> Check:
    schema = engine.schema
    rankers = known_rankers(engine) if schema.layout != "replay" else ()
    plan = Plan(schema, engine.dialect, rankers, max_rank)
    found = engine.rows(profile(plan), "Counting")
    rows = sum(row[2] for row in found)
    if not rows:
        empty = Problem("error", "The log is empty: it has its columns but no row", 0, None, "Check how it was made.")
        return Check((empty,), schema.layout, _columns(engine))
    problems = [*_find_mixed_files(engine), *find_defects(engine, plan)]
    usable = not any(p.severity == "error" for p in problems)
    if usable and rankers:
        problems += find_contradictions(engine, plan)
    problems += [*find_repeats(engine, plan), *find_moving(engine, plan)]
    page_views = _page_views(engine, found)
    sets = count_sets(engine, max_rank) if usable else None
    problems += _find_no_intervention(page_views, None if sets is None else sets.moved, problems)
    query = engine.dialect.quote(schema.query)
    by_position: Counter[int] = Counter()
    clicks: Counter[int] = Counter()
    for _, position, _, shown, clicked in found:
        if position > 0:
            by_position[position] += shown
            clicks[position] += clicked
    return Check(
        problems=tuple(problems),
        layout=schema.layout,
        columns=_columns(engine),
        rows=rows,
        queries=engine.rows(f"SELECT COUNT(DISTINCT {query}) FROM log", "Counting queries")[0][0],
        page_views=page_views,
        positions=tuple(Shown(p, by_position[p], clicks[p]) for p in sorted(by_position)),
        documents=sets.pairs if sets else 0,
        moved=sets.moved if sets else 0,
    )


def _columns(engine: Engine) -> dict[str, str]:
    schema = engine.schema
    roles = ("query", "doc", "ranker", "position", "click", "impression", "impressions", "clicks")
    found = {role: getattr(schema, role) for role in roles if getattr(schema, role) is not None}
    if schema.rank_columns:
        found["ranks"] = listed(schema.rank_columns.values(), most=4).replace("'", "")
    return found


def _page_views(engine: Engine, found: list[tuple[Any, ...]]) -> dict[str, int]:
    """Page views by ranker: by their ids where there are any, else by what was shown at the busiest position."""
    schema, d = engine.schema, engine.dialect
    if schema.impression is not None and not schema.aggregated:
        name, view = d.as_text(d.quote(schema.ranker)), d.quote(schema.impression)
        sql = f"SELECT {name}, COUNT(DISTINCT {view}) FROM log WHERE {name} IS NOT NULL GROUP BY 1 ORDER BY 1"
        return dict(engine.rows(sql, "Counting page views"))
    most: dict[str, int] = {}
    for name, position, _, shown, _ in found:
        if position > 0 and name is not None:
            most[name] = max(most.get(name, 0), shown or 0)
    return dict(sorted(most.items()))


def _find_no_intervention(views: Mapping[str, int], moved: int | None, problems: list[Problem]) -> list[Problem]:
    if len(views) == 1 and not moved:
        return [
            Problem(
                "error",
                f"there is a single ranker, {next(iter(views))!r}",
                1,
                None,
                "Propensities come from documents that two rankers put at different ranks: add the log of another "
                "ranker, or name the column that tells them apart with --ranker.",
            )
        ]
    if moved == 0:
        return [
            Problem(
                "error",
                f"the rankers {listed(views)} never disagree: no document is at two ranks of one query",
                0,
                None,
                "There is no intervention to harvest. In replay, queries must recur with different rankers; otherwise "
                "log each ranker's rank (--ranks or --rankings).",
            )
        ]
    return []


def _find_mixed_files(engine: Engine) -> list[Problem]:
    """Return mapped columns whose type differs between the files of a log, or that some file lacks."""
    files = engine.file_columns()
    problems = []
    schema = engine.schema
    wanted = [v for v in (schema.query, schema.doc, schema.ranker, schema.position, schema.click) if v]
    wanted += [v for v in (schema.impressions, schema.clicks, schema.impression, *schema.rank_columns.values()) if v]
    for column in wanted:
        types = Counter(columns.get(column, "missing") for columns in files.values())
        if len(types) < 2:
            continue
        firsts = {t: next(f for f, c in files.items() if c.get(column, "missing") == t) for t in types}
        told = "; ".join(f"{t} in {n} ({firsts[t]})" for t, n in types.most_common())
        problems.append(
            Problem(
                "error" if "missing" in types else "warning",
                f"the files disagree on column {column!r}: {told}",
                len(types),
                None,
                f"It is read as {schema.types[column]}; write all files with one type."
                if "missing" not in types
                else "Leave those files out, or write them again with the column.",
            )
        )
    return problems
