"""What the clicks and positions of a log show of a filter that it passed before it came here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from posbias.findings import Finding
from posbias.harvesting.profiles import Shown

# Fewer page views by positions than so much of those by their ids are too few.
_NEARLY_ALL = 0.98
# Of so many results at a position people leave one alone.
_SOME = 100


def find_no_clicks(positions: Sequence[Shown]) -> Iterator[Finding]:
    """Yield that nothing was clicked, or everything, or that nothing was shown at position 1."""
    impressions = sum(shown.impressions for shown in positions)
    clicks = sum(shown.clicks for shown in positions)
    if not impressions:
        yield Finding(
            "nothing-shown",
            "warning",
            "nothing was shown within the top ranks",
            remedy="Check the column of positions (position), that impressions are counted, and how many ranks are "
            "wanted (max_rank).",
        )
    if impressions and positions[0].position > 1:
        yield Finding(
            "no-first-position",
            "warning",
            f"nothing was shown at position 1; the first is {positions[0].position}",
            remedy="Propensities are relative to position 1, and cannot be estimated without it: check that positions "
            "count from 1 and that no filter left the top of the page out. If results always begin lower, as below an "
            "advertisement, count positions and ranks from there (sql).",
        )
    if impressions and not clicks:
        yield Finding(
            "no-clicks",
            "error",
            "there is not a single click on {impressions} results shown",
            evidence={"impressions": impressions},
            remedy="Check the column of clicks (click), and that clicks were joined to the results shown.",
        )
    if impressions and impressions == clicks:
        yield Finding(
            "only-clicks",
            "error",
            "every one of {count} results was clicked",
            clicks,
            remedy="A log must hold the results that were shown and not clicked too: check the column of clicks "
            "(click), and that no filter left the others out.",
        )
    else:
        yield from _find_clicked_positions(positions)


def _find_clicked_positions(positions: Sequence[Shown]) -> Iterator[Finding]:
    """Yield that everything was clicked at some positions, and not at others."""
    full = [shown for shown in positions if shown.impressions == shown.clicks >= _SOME]
    if full:
        at = ", ".join(str(shown.position) for shown in full)
        yield Finding(
            "only-clicks-at-position",
            "warning",
            f"every one of {{count}} results at position{'s' * (len(full) > 1)} {at} was clicked",
            sum(shown.clicks for shown in full),
            evidence={"positions": [shown.position for shown in full]},
            remedy="People leave some alone: check that no filter left out what was shown there and not clicked. The "
            "curve would take what is missing for attention.",
        )


def find_missing_rows(by_ids: int, by_positions: int) -> list[Finding]:
    """Return that there are more page views by their ids than any position has results: rows are missing."""
    if by_positions >= _NEARLY_ALL * by_ids:
        return []
    return [
        Finding(
            "missing-rows",
            "warning",
            "there are {page_views} page views by their ids, but only {counted} by the position where most was shown: "
            "no position is logged on every page view",
            by_ids - by_positions,
            evidence={"page_views": by_ids, "counted": by_positions},
            remedy="Find out what left the others out. Page views are counted by positions: traffic, what a plan "
            "foresees and the exposure of documents never shown come out too small. Where rows are missing because "
            "of what was clicked, the curve is wrong too.",
        )
    ]
