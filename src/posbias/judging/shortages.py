"""What a log as a whole lacks, though each row be sound: rankers, disagreement, clicks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from posbias.findings import Problem
from posbias.judging.checks import Shown
from posbias.logs.columns import guess_ranks
from posbias.logs.schemas import Schema, match_ranks
from posbias.wording import listed, shell


def find_no_rows() -> Problem:
    """Return the problem of a log that has its columns and nothing else."""
    return Problem(
        "empty-log",
        "error",
        "The log is empty: it has its columns but no row",
        0,
        None,
        "Check the path, or the filter that made it.",
    )


def find_no_intervention(views: Mapping[str, int], moved: int | None, documents: int | None) -> Iterator[Problem]:
    """Yield why nothing can be learnt from two ranks of one document: one ranker only, or rankers that agree."""
    if len(views) == 1 and not moved:
        yield Problem(
            "single-ranker",
            "error",
            f"there is a single ranker, {next(iter(views))!r}",
            1,
            None,
            "Propensities come from documents that two rankers put at different ranks: add the log of another ranker, "
            "or of the same one before it changed, or name the column that tells them apart with --ranker.",
        )
    elif moved == 0:
        yield Problem(
            "no-disagreement",
            "error",
            f"the rankers {listed(views)} never disagree: none of {documents or 0:,} (query, document) pairs is at two "
            "ranks",
            0,
            None,
            "There is no intervention to harvest. In replay, queries must recur with different rankers: harvest a "
            "longer period, or log each ranker's rank (--ranks or --rankings).",
        )


def find_no_clicks(positions: Sequence[Shown]) -> Iterator[Problem]:
    """Yield what clicks and positions show of a log that was filtered before it came here."""
    impressions, clicks = (sum(getattr(p, name) for p in positions) for name in ("impressions", "clicks"))
    if positions and positions[0].position > 1:
        yield Problem(
            "no-first-position",
            "warning",
            f"nothing was shown at position 1; the first is {positions[0].position}",
            0,
            None,
            "Propensities are relative to position 1, and cannot be estimated without it: check that positions count "
            "from 1 and that no filter left the top of the page out.",
        )
    if impressions and not clicks:
        yield Problem(
            "no-clicks",
            "error",
            f"there is not a single click on {impressions:,} results shown",
            0,
            None,
            "Check the column of clicks (--click), and that clicks were joined to the results shown.",
        )
    if impressions and impressions == clicks:
        yield Problem(
            "only-clicks",
            "error",
            f"every one of {impressions:,} results was clicked",
            clicks,
            None,
            "A log must hold the results that were shown and not clicked too: check the column of clicks (--click), "
            "and that no filter left the others out.",
        )


def find_odd_rank_columns(schema: Schema, served: Sequence[str]) -> Iterator[Problem]:
    """Yield rank columns that are not used: of rankers that never served, or by a name that is not recognised."""
    idle = [name for name in schema.rank_columns if name not in served]
    if idle:
        yield Problem(
            "idle-ranker",
            "warning",
            f"rank columns of rankers that served no row: {listed(schema.rank_columns[name] for name in idle)}",
            len(idle),
            None,
            f"They do no harm. If one should have served, compare its name with the rankers found: {listed(served)}.",
        )
    if schema.layout != "replay":
        return
    used = schema.roles.values()
    for pattern, columns in guess_ranks(c for c in schema.types if c not in used).items():
        rankers = [name for name in match_ranks(pattern, columns) if name in served]
        if len(rankers) > 1:
            yield Problem(
                "unused-ranks",
                "warning",
                f"columns {listed(columns, most=4)} look like each ranker's rank and are not used",
                len(columns),
                None,
                "If they are, say so: then queries need not recur.",
                f"--ranks {shell(pattern)}",
            )
            return
    lone = [c for c in schema.types if c in {f"rank_{name}" for name in served}]
    if len(lone) == 1:
        absent = [f"rank_{name}" for name in served if f"rank_{name}" not in lone]
        yield Problem(
            "unused-ranks",
            "warning",
            f"column {lone[0]!r} tells one ranker's rank, and the others have none",
            1,
            None,
            f"Add {listed(absent, most=4)} to know all ranks without recurring queries.",
        )
