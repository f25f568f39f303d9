"""Merge harvests, such as a week of days, into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace

import numpy as np

from posbias._text import listed
from posbias.errors import HarvestError
from posbias.findings import merge_findings
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.row_checks import MIXED_ENGINES, RowCounts
from posbias.harvesting.tables import Cells, PairSums, merge_equal_strata, merge_equal_sums, renumber_strata
from posbias.logs.click_log import Segment

# Harvests are added up once they have this many rows, so that a year of days needs no more memory than a month.
_AT_ONCE = 2_000_000


def merge(harvests: Iterable[Harvest]) -> Harvest:
    """Merge several harvests, such as those of the days of a week, into one.

    For wide and long logs the result is exactly the harvest of all logs together. In replay, a (query, document) pair
    that occurs in two harvests stays two pairs, and each is compared only with itself. So a click rate that changed
    between the harvests does not bias the curve. Harvests of pair sums are added up, each weighted by its own traffic.
    Buckets depend on the query alone, so intervals still resample whole queries.

    Arguments:
        harvests (iterable of Harvest): the harvests. From an iterator they are added up as they come, so that not all
            of them are in memory at once.

    Raises:
        HarvestError: there is no harvest, or the harvests were made with different settings.
    """
    held: list[Harvest] = []
    if isinstance(harvests, Harvest | str) or not isinstance(harvests, Iterable):
        raise HarvestError(f"merge takes a list of harvests, not a {type(harvests).__name__}.")
    for harvest in harvests:
        if not isinstance(harvest, Harvest):
            raise HarvestError(f"merge takes harvests, not a {type(harvest).__name__}. Read files with Harvest.load.")
        held.append(harvest)
        if sum(len(h.table) for h in held[1:]) > max(_AT_ONCE, len(held[0].table)):
            held = [_merged(held)]
    if not held:
        raise HarvestError("There is nothing to merge: give at least one harvest.")
    return _merged(held)


def _merged(harvests: Sequence[Harvest]) -> Harvest:
    first = harvests[0]
    if any(h.traffic is not None for h in harvests):
        raise HarvestError(
            "The harvest of a segment of documents cannot be merged, because it needs the page views of the whole log. "
            "Merge whole harvests first, and take the segment afterwards."
        )
    # A harvest without counts, such as that of an empty day, can be merged with any kind.
    counted = [h for h in harvests if len(h.table)] or harvests[:1]
    kind = counted[0].kind
    for name in ("max_rank", "by", "weighting", "kind"):
        found = list(dict.fromkeys(getattr(h, name) for h in (counted if name == "kind" else harvests)))
        if len(found) > 1:
            raise HarvestError(
                f"These harvests differ in {name.replace('_', ' ')}: {listed(map(str, found))}. Harvest the logs again "
                "with the same settings."
            )
    engines = {h.about.get("engine") for h in harvests}
    rankers = tuple(sorted({name for h in harvests for name in h.rankers}))
    segments = tuple(
        sorted({s for h in harvests for s in h.segments}, key=lambda s: [(v is not None, v or "") for v in s])
    )
    tables = [_renamed(h, rankers, segments) for h in harvests]
    if kind == "pairs":
        table: Cells | PairSums = merge_equal_sums(PairSums.concatenate([t for t in tables if isinstance(t, PairSums)]))
    else:
        table = merge_equal_strata(Cells.concatenate(renumber_strata([t for t in tables if isinstance(t, Cells)])))
    findings = [finding for h in harvests for finding in h.findings if finding.code != MIXED_ENGINES.code]
    if len(engines) > 1:
        findings.append(MIXED_ENGINES)
    about = dict(first.about) | {
        field.name: sum(h.about.get(field.name, 0) for h in harvests)
        for field in fields(RowCounts)
        if field.name != "rows_unusable"
    }
    about |= {
        "source": ", ".join(dict.fromkeys(str(h.about.get("source", "?")) for h in harvests)),
        "parts": sum(h.about.get("parts", 1) for h in harvests),
    }
    return replace(
        first,
        rankers=rankers,
        segments=segments,
        kind=kind,
        table=table,
        about=about,
        findings=merge_findings(findings),
    )


def _renamed(harvest: Harvest, rankers: tuple[str, ...], segments: tuple[Segment, ...]) -> Cells | PairSums:
    """Return a harvest's table with rankers and segments numbered as in the merged one."""
    ranker = np.array([rankers.index(name) for name in harvest.rankers], dtype=np.int64)
    segment = np.array([segments.index(s) for s in harvest.segments], dtype=np.int64)
    columns = harvest.table.columns()
    columns |= {"segment": segment[columns["segment"]]}
    own = columns["ranker"]
    # Pair sums over all rankers have ranker -1.
    columns |= {"ranker": np.where(own >= 0, ranker[np.maximum(own, 0)] if len(ranker) else own, -1)}
    return type(harvest.table)(**columns)
