"""Merge harvests, such as a week of days, into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace

import numpy as np

from posbias._text import listed
from posbias.errors import HarvestError
from posbias.findings import merge_findings
from posbias.harvesting.harvest import Harvest, Segment
from posbias.harvesting.row_checks import MIXED_ENGINES, RowCounts
from posbias.harvesting.tables import Cells, PairSums, merge_equal_strata, merge_equal_sums, renumber_strata

# A merge holds some of so many rows at once: a year of days needs no more memory than a month of them.
_AT_ONCE = 2_000_000


def merge(harvests: Iterable[Harvest]) -> Harvest:
    """Return one harvest of several, such as a week of days.

    They may come one by one, from an iterator: those that came are added up before there are too many to hold.

    For wide and long logs it equals the harvest of all of them together, to the last count. In replay a
    (query, document) seen in two parts stays two pairs, each compared only with itself in its own part: what a
    document's click rate did between the parts then confounds nothing. The same goes for harvests that keep sums:
    each part is weighted by its own traffic. Buckets are by query, so intervals still resample whole queries.
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
            "Merge whole harvests first and take the segment of documents afterwards: it needs all page views."
        )
    # A day of which nothing was counted fits any other.
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
    # Rows over all rankers (pair sums) carry ranker -1.
    columns |= {"ranker": np.where(own >= 0, ranker[np.maximum(own, 0)] if len(ranker) else own, -1)}
    return type(harvest.table)(**columns)
