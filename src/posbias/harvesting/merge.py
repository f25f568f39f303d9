"""Merge harvests, such as a week of days, into one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace

import numpy as np

from posbias._text import listed
from posbias._validate import boolean
from posbias.errors import HarvestError
from posbias.findings import merge_findings
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.overlaps import (
    bucketing,
    merged_sketch,
    parts_of,
    refuse_same_rows,
    refuse_shared_page_views,
)
from posbias.harvesting.row_checks import MIXED_ENGINES, MIXED_UNITS, RowCounts
from posbias.harvesting.tables import Cells, PairSums, canonical, concatenate
from posbias.logs.click_log import Segment
from posbias.progress import step

# Harvests are added up once they have this many rows, so that a year of days needs no more memory than a month.
_AT_ONCE = 2_000_000


@step("Merging harvests")
def merge(*harvests: Harvest | Iterable[Harvest], force: bool = False) -> Harvest:
    """Merge several harvests, such as those of the days of a week, into one.

    For wide and long logs the result is exactly the harvest of all logs together. In replay, a (query, document) pair
    that occurs in two harvests stays two pairs, and each is compared only with itself. So a click rate that changed
    between the harvests does not bias the curve. Harvests of pair sums are added up, each weighted by its own traffic.
    Buckets depend on the query alone, so intervals still resample whole queries.

    Arguments:
        harvests (Harvest, or one iterable of Harvest): the harvests, as arguments or as one list. From an iterator they
            are added up as they come, so that not all of them are in memory at once.
        force (bool, default False): merge harvests although they hold the same rows, or share page views.

    Raises:
        HarvestError: there is no harvest, the harvests were made with different settings, or they overlap: the same
            rows would be counted twice.
    """
    forced = boolean("force", force, HarvestError)
    held: list[Harvest] = []
    only = harvests[0] if len(harvests) == 1 else harvests
    if isinstance(only, str) or not isinstance(only, Harvest | Iterable):
        raise HarvestError(f"merge takes harvests, or a list of them, not a {type(only).__name__}.")
    for harvest in [only] if isinstance(only, Harvest) else only:
        if not isinstance(harvest, Harvest):
            raise HarvestError(f"merge takes harvests, not a {type(harvest).__name__}. Read files with Harvest.load.")
        held.append(harvest)
        if sum(len(h.table) for h in held[1:]) > max(_AT_ONCE, len(held[0].table)):
            held = [_merged(held, force=forced)]
    if not held:
        raise HarvestError("There is nothing to merge: give at least one harvest.")
    return _merged(held, force=forced)


def _setting(value: object) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)


def _merged(harvests: Sequence[Harvest], *, force: bool) -> Harvest:
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
                f"These harvests differ in {name.replace('_', ' ')}: {listed(map(_setting, found))}. Harvest the logs "
                "again with the same settings."
            )
    parts = [part for h in harvests for part in parts_of(h)]
    if not force:
        refuse_same_rows(parts)
        refuse_shared_page_views(harvests)
        _refuse_other_rules(harvests)
    bucketings = {bucketing(h) for h in harvests}
    rankers = tuple(sorted({name for h in harvests for name in h.rankers}))
    segments = tuple(
        sorted({s for h in harvests for s in h.segments}, key=lambda s: [(v is not None, v or "") for v in s])
    )
    table = _added([_renamed(h, rankers, segments) for h in counted])
    findings = [finding for h in harvests for finding in h.findings]
    mixed = len(bucketings) > 1 or any(finding.code == MIXED_ENGINES.code for finding in findings)
    findings = [finding for finding in findings if finding.code != MIXED_ENGINES.code]
    units = [h.units for h in counted if h.units is not None]
    have_units = len(units) == len(counted) and len({one.column for one in units}) == 1
    if units and not have_units:
        findings.append(MIXED_UNITS)
    if mixed:
        findings.append(MIXED_ENGINES)
    about = dict(first.about) | {
        field.name: sum(h.about.get(field.name, 0) for h in harvests)
        for field in fields(RowCounts)
        if field.name != "rows_unusable"
    }
    about |= {
        "source": ", ".join(dict.fromkeys(str(h.about.get("source", "?")) for h in harvests)),
        "parts": sum(h.about.get("parts", 1) for h in harvests),
        "merged": json.dumps(parts),
    }
    about = {name: value for name, value in about.items() if name != "page_view_sketch"} | merged_sketch(harvests)
    merged = replace(
        first,
        rankers=rankers,
        segments=segments,
        kind=kind,
        table=table,
        about=about,
        findings=merge_findings(findings),
        units=None,
    )
    if not have_units:
        return merged
    of_units = zip(*((one.by_unit, one.by_both) for one in units), strict=True)
    by_units = [_added([_renamed(h, rankers, segments) for h in part]) for part in of_units]
    return merged.with_units(units[0].column, by_units)


def _refuse_other_rules(harvests: Sequence[Harvest]) -> None:
    """Refuse harvests of one engine whose queries were put into buckets by different rules."""
    rules = {bucketing(h): h for h in harvests}
    for engine, rule in rules:
        newer = next((h for (other, r), h in rules.items() if other == engine and str(r) > str(rule)), None)
        if newer is not None:
            names = [str(h.about.get("source", "?")) for h in (rules[engine, rule], newer)]
            raise HarvestError(
                f"An earlier version of posbias made the harvest of {names[0]}, and put queries into other buckets "
                f"than that of {names[1]}. A query of both would count as two, and intervals would be too narrow. "
                "Harvest the older log again.",
                {"force": True},
            )


def _added(tables: Sequence[Cells | PairSums]) -> Cells | PairSums:
    """Return the counts of tables of one kind in one table, with equal strata and sums merged."""
    return canonical(concatenate(tables))


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
