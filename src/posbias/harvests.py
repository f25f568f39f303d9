"""The harvest: all that estimation needs to know of a log, in a table of kilobytes to a few megabytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from posbias.answers import FloatArray, IntArray, places
from posbias.errors import HarvestError
from posbias.interventions import Interventions, from_cells, from_pair_sums
from posbias.log import Layout, listed
from posbias.strata import Cells, PairSums, added, compressed, renumbered, tally
from posbias.weightings import WEIGHTINGS, Weighting

Segment = tuple[str | None, ...]
# A merge holds some of so many rows at once: a year of days needs no more memory than a month of them.
_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class PairTable:
    """ĉ and ¬ĉ of every interventional set: `clicks[k-1, k'-1]` is ĉ_k^{k,k'}, `skips` likewise ¬ĉ."""

    clicks: FloatArray
    skips: FloatArray


@dataclass(frozen=True, eq=False)
class Harvest:
    """Impressions and clicks by bucket, stratum and ranker: what every estimator is computed from.

    Made by `posbias.harvest`, joined by `posbias.merge`, kept by `save` and `Harvest.load`, which also reads what a
    warehouse answered to the query of `posbias.harvest_sql`.

    Attributes:
        max_rank: M, the number of top ranks harvested.
        rankers: the rankers' names, sorted.
        layout: how the ranks were known: "wide", "long" or "replay".
        weighting: the weighting of pairs that estimators use unless told otherwise.
        by: the segment columns.
        segments: the segments found, each a tuple of values.
        table: the counts themselves, as `Cells` or, where those would not compress, as `PairSums`.
        about: row counts, when and from what it was made.
        warnings: what the user should know about the rows that were and were not counted.
        traffic: page views by bucket and ranker where the table itself does not tell them: in a segment of documents.

    Reference: Agarwal et al., WSDM 2019, section 3.
    """

    max_rank: int
    rankers: tuple[str, ...]
    layout: Layout
    weighting: Weighting
    by: tuple[str, ...]
    segments: tuple[Segment, ...]
    table: Cells | PairSums
    about: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    traffic: FloatArray | None = None

    @property
    def kind(self) -> str:
        """What the table holds: "signatures", "exposures" or "pairs"."""
        if isinstance(self.table, PairSums):
            return "pairs"
        return "exposures" if np.any(self.table.pairs > 0) else "signatures"

    @cached_property
    def buckets(self) -> IntArray:
        """The buckets that hold anything."""
        return np.unique(self.table.bucket)

    @cached_property
    def shown(self) -> IntArray:
        """Impressions and clicks by segment, bucket (as in `buckets`), ranker and rank: (2, S, B, m, M)."""
        cells = self.table if isinstance(self.table, Cells) else self.table.where(self.table.other == 0)
        shape = (len(self.segments), len(self.buckets), len(self.rankers), self.max_rank)
        where = np.ravel_multi_index(
            (cells.segment, places(cells.bucket, self.buckets), cells.ranker, cells.rank - 1), shape
        )
        clicks = cells.clicks
        impressions = cells.impressions if isinstance(cells, Cells) else cells.clicks + cells.skips
        counts = [tally(where, c, int(np.prod(shape))) for c in (impressions, clicks)]
        return np.rint(np.stack(counts)).astype(np.int64).reshape(2, *shape)

    @cached_property
    def views(self) -> FloatArray:
        """Page views by bucket and ranker: what was shown at the busiest position; in whole pages, the first."""
        if self.traffic is not None:
            return self.traffic
        impressions = self.shown[0].sum(axis=0)
        return np.take_along_axis(impressions, self._busiest[None, :, None], axis=2)[:, :, 0].astype(np.float64)

    @property
    def _busiest(self) -> IntArray:
        """The position, by ranker, at which most was shown."""
        return np.asarray(np.argmax(self.shown[0].sum(axis=(0, 1)), axis=1))

    @property
    def page_views(self) -> dict[str, int]:
        """n_i: the page views that each ranker served."""
        return {name: int(n) for name, n in zip(self.rankers, self.views.sum(axis=0), strict=True)}

    @property
    def impressions(self) -> IntArray:
        """Impressions by rank."""
        return np.asarray(self.shown[0].sum(axis=(0, 1, 2)))

    @property
    def clicks(self) -> IntArray:
        """Clicks by rank."""
        return np.asarray(self.shown[1].sum(axis=(0, 1, 2)))

    def interventions(self, weighting: Weighting | None = None) -> Interventions:
        """Return ĉ and ¬ĉ by bucket, ready to be resampled."""
        weighting = self.weighting if weighting is None else weighting
        if weighting not in WEIGHTINGS:
            raise HarvestError(f"The weighting {weighting!r} is not known. Use one of {listed(WEIGHTINGS)}.")
        if isinstance(self.table, PairSums):
            if weighting != self.weighting:
                raise HarvestError(
                    f"This harvest keeps sums weighted by {self.weighting!r}, because strata did not compress, and "
                    f"cannot be weighted anew by {weighting!r}. Harvest the log again with --weighting {weighting}."
                )
            return from_pair_sums(self.table, weighting, self.max_rank, self.buckets, self.views)
        if weighting != "traffic" and self.kind == "signatures" and len(self.table):
            raise HarvestError(
                f"This harvest counts by signature and cannot tell (query, document) pairs apart, which the weighting "
                f"{weighting!r} needs. Harvest the log again with --weighting {weighting}."
            )
        return from_cells(self.table, weighting, self.max_rank, self.buckets, self.views)

    def pairs(self, weighting: Weighting | None = None) -> PairTable:
        """Return ĉ and ¬ĉ of every interventional set."""
        return PairTable(*self.interventions(weighting).total())

    def segment(self, key: Segment | str) -> Harvest:
        """Return the harvest of one segment alone.

        Its n_i are the page views of the segment; where a segment is a property of the document, so that one page
        shows several, they are those of the whole log.
        """
        wanted = (key,) if isinstance(key, str) else tuple(key)
        if wanted not in self.segments:
            raise HarvestError(f"There is no segment {wanted!r}. Segments: {listed(map(str, self.segments))}.")
        mask = self.table.segment == self.segments.index(wanted)
        columns = self.table.where(mask).columns() | {"segment": np.zeros(int(mask.sum()), dtype=np.int64)}
        table = type(self.table)(**columns)
        kept = np.isin(self.buckets, table.bucket)
        traffic = None if self._by_page else self.views[kept]
        return replace(self, by=(), segments=((),), table=table, traffic=traffic)

    @property
    def _by_page(self) -> bool:
        """Whether every page view lies in one segment: then none shows more at a lower rank than at the first."""
        shown = self.shown[0].sum(axis=1)
        return bool(np.all(shown <= np.take_along_axis(shown, self._busiest[None, :, None], axis=2)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the harvest to one Parquet file, whole or not at all."""
        from posbias.harvest_file import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Harvest:
        """Read a harvest that `save` wrote, or the exported answer to a query of `harvest_sql`."""
        from posbias.harvest_file import load

        return load(path)

    def __repr__(self) -> str:
        traffic = ", ".join(f"{name}: {n:,}" for name, n in self.page_views.items())
        by = f", {len(self.segments)} segments by {', '.join(self.by)}" if self.by else ""
        return (
            f"<Harvest of {sum(self.page_views.values()):,} page views ({traffic}), {self.layout}, "
            f"ranks 1 to {self.max_rank}{by}>"
        )


def merge(harvests: Iterable[Harvest]) -> Harvest:
    """Return one harvest of several, such as a week of days.

    They may come one by one, from an iterator: those that came are added up before there are too many to hold.

    For wide and long logs it equals the harvest of all of them together, to the last count. In replay a
    (query, document) seen in two parts stays two pairs, each compared only with itself in its own part: what a
    document's click rate did between the parts then confounds nothing. The same goes for harvests that keep sums:
    each part is weighted by its own traffic. Buckets are by query, so intervals still resample whole queries.
    """
    held: list[Harvest] = []
    for harvest in harvests:
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
    for name in ("max_rank", "by", "weighting", "kind"):
        found = list(dict.fromkeys(getattr(h, name) for h in harvests if len(h.table) or name != "kind"))
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
    if isinstance(first.table, PairSums):
        table: Cells | PairSums = added(PairSums.joined([t for t in tables if isinstance(t, PairSums)]))
    else:
        table = compressed(Cells.joined(renumbered([t for t in tables if isinstance(t, Cells)])))
    warnings = [w for h in harvests for w in h.warnings]
    if len(engines) > 1:
        warnings.append(
            "The harvests come from engines that put queries into different buckets: a query that recurs in both is "
            "resampled in two parts, so intervals may be a little narrow."
        )
    about = dict(first.about) | {
        key: sum(h.about.get(key, 0) for h in harvests)
        for key in ("rows", "rows_counted", "rows_beyond", "rows_contradicted", "moving_pairs")
    }
    about |= {
        "source": ", ".join(dict.fromkeys(str(h.about.get("source", "?")) for h in harvests)),
        "parts": sum(h.about.get("parts", 1) for h in harvests),
    }
    return replace(
        first, rankers=rankers, segments=segments, table=table, about=about, warnings=tuple(dict.fromkeys(warnings))
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
