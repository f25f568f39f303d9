"""What the clicks and positions of a log show of a filter that it passed before it came here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from posbias.findings import Finding
from posbias.harvesting.profiles import Shown


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
