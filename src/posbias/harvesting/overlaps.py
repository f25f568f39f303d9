"""Find harvests that count the same rows twice, before they are merged.

- `parts_of` lists what a harvest was merged from, each part with digests of its counts. Logs with the same rows have
  the same counts in every bucket, in any order of rows and files, and other logs do not once they have some clicks.
  Engines have different buckets; counts by ranker and rank are the same on all of them.
- A `Sketch` holds hashes of a few page views, always the same few. Two logs that share an hour share some of them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from posbias._arrays import IntArray
from posbias.errors import HarvestError

if TYPE_CHECKING:
    from posbias.harvesting.harvest import Harvest

# Harvests with at least this many clicks that have the same counts by bucket hold the same rows.
_ENOUGH_CLICKS = 20
# So do harvests with the same counts by ranker and rank, if chance has less than one in exp(20) to make them equal.
_ENOUGH_TOTALS = 20.0
# A sketch holds up to this many page views, that of a merged harvest so many.
SKETCH_SIZE, _MERGED_SKETCH_SIZE = 2048, 16_384
# Two harvests overlap if they share so many page views of their sketches, and this share of the smaller one: a page
# view may begin before midnight and end after it.
_MIN_SHARED, _MIN_SHARED_SHARE = 2, 0.003


def bucketing(harvest: Harvest) -> tuple[object, object]:
    """Return what decides the bucket of a query: the engine, and the rule by which posbias hashed ids then."""
    return harvest.about.get("engine"), harvest.about.get("bucket_rule", 1)


class MergedPart(NamedTuple):
    """A harvest that was not merged: its log, when it was made, and digests of its counts ("" if it has few clicks).

    Files of earlier versions have no `totals`.
    """

    digest: str
    source: str
    made: str
    totals: str = ""

    def __str__(self) -> str:
        return f"{self.source} (harvested {self.made or 'at an unknown time'})"


def parts_of(harvest: Harvest) -> list[MergedPart]:
    """Return the harvests that a harvest was merged from, or itself."""
    if "merged" in harvest.about:
        return [MergedPart(*map(str, part)) for part in json.loads(harvest.about["merged"])]
    source, made = (str(harvest.about.get(name, "")) for name in ("source", "made"))
    counts = harvest.counts("bucket", "ranker", "rank")
    if counts[1].sum() < _ENOUGH_CLICKS:
        return [MergedPart("", source, made)]
    # Buckets differ between engines, and between rules.
    key = json.dumps([*map(str, bucketing(harvest)), harvest.rankers, harvest.buckets.tolist()])
    return [MergedPart(_digest(key, counts), source, made, _totals_digest(harvest, counts.sum(axis=1)))]


def _digest(key: str, counts: IntArray) -> str:
    return hashlib.sha256(key.encode() + np.ascontiguousarray(counts).tobytes()).hexdigest()[:32]


def _totals_digest(harvest: Harvest, totals: IntArray) -> str:
    """Return a digest of counts by ranker and rank, "" if other rows could have the same ones by chance."""
    # Two Poisson counts with the mean c are equal with probability (4πc)^-½.
    clicks = totals[1]
    certainty = 0.5 * np.log(4 * np.pi * clicks[clicks > 0]).sum()
    return _digest(json.dumps(harvest.rankers), totals) if certainty > _ENOUGH_TOTALS else ""


def refuse_same_rows(parts: Sequence[MergedPart]) -> None:
    """Refuse two harvests with the same counts in every bucket, or for every ranker and rank."""
    seen: dict[str, MergedPart] = {}
    for part in parts:
        for digest in filter(None, (part.digest, part.totals)):
            if digest in seen:
                raise HarvestError(
                    f"Two harvests hold the same rows, which would be counted twice: {seen[digest]} and {part}. Give "
                    "each harvest once, and no day beside a week that has it.",
                    {"force": True},
                )
            seen[digest] = part


@dataclass(frozen=True, eq=False)
class Sketch:
    """Hashes of some page views: those that `one_in` divides, a power of 2; each once, in order."""

    one_in: int
    hashes: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, harvest: Harvest) -> Sketch | None:
        """Return the sketch of a harvest, None if it has none."""
        text = harvest.about.get("page_view_sketch")
        if not text:
            return None
        one_in, _, packed = text.partition(":")
        return cls(int(one_in), np.unique(np.frombuffer(base64.b64decode(packed), "<u8")))

    @classmethod
    def union(cls, sketches: Sequence[Sketch]) -> Sketch:
        """Return the sketch of the page views of all sketches."""
        one_in = max(sketch.one_in for sketch in sketches)
        hashes = np.unique(np.concatenate([sketch.thinned(one_in).hashes for sketch in sketches]))
        return cls(one_in, hashes).limited(_MERGED_SKETCH_SIZE)

    def thinned(self, one_in: int) -> Sketch:
        """Return the page views that another number divides."""
        return Sketch(one_in, self.hashes[self.hashes & np.uint64(one_in - 1) == 0])

    def limited(self, size: int) -> Sketch:
        """Return a sketch with at most so many page views."""
        sketch = self
        while len(sketch.hashes) > size:
            sketch = sketch.thinned(2 * sketch.one_in)
        return sketch

    @property
    def text(self) -> str:
        """The sketch as a harvest keeps it."""
        return f"{self.one_in}:{base64.b64encode(self.hashes.astype('<u8').tobytes()).decode()}"


def merged_sketch(harvests: Sequence[Harvest]) -> dict[str, str]:
    """Return the sketch of all page views as a field of the merged harvest, if each harvest has one."""
    sketches = [Sketch.of(harvest) for harvest in harvests]
    known = [sketch for sketch in sketches if sketch is not None]
    same_hash = len({bucketing(harvest) for harvest in harvests}) == 1
    return {"page_view_sketch": Sketch.union(known).text} if same_hash and len(known) == len(harvests) else {}


def refuse_shared_page_views(harvests: Sequence[Harvest]) -> None:
    """Refuse harvests that share page views, as two exports do that overlap by an hour."""
    known = [(harvest, sketch) for harvest in harvests if (sketch := Sketch.of(harvest)) is not None]
    for rule in {bucketing(harvest) for harvest, _ in known}:
        of_rule = [(harvest, sketch) for harvest, sketch in known if bucketing(harvest) == rule]
        for (i, j), shared in _shared_page_views([sketch for _, sketch in of_rule]).most_common():
            (first, one), (second, other) = of_rule[i], of_rule[j]
            # A page view of both sketches is one that the larger number divides.
            one_in = max(one.one_in, other.one_in)
            share = shared / min(len(one.thinned(one_in).hashes), len(other.thinned(one_in).hashes))
            if shared >= _MIN_SHARED and share >= _MIN_SHARED_SHARE:
                raise HarvestError(
                    f"Two harvests share about {share:.0%} of their page views, which would be counted twice: "
                    f"{first.about.get('source', '?')} and {second.about.get('source', '?')}. Harvest logs that do not "
                    "overlap. If page views were divided among the logs, or their ids begin again in each log, all is "
                    "well.",
                    {"force": True},
                )


def _shared_page_views(sketches: Sequence[Sketch]) -> Counter[tuple[int, int]]:
    """Return how many page views each two sketches share.

    A page view of more than two sketches counts for the first and second of them, the second and third, and so on.
    """
    hashes = np.concatenate([sketch.hashes for sketch in sketches])
    owner = np.repeat(np.arange(len(sketches)), [len(sketch.hashes) for sketch in sketches])
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    return Counter(zip(owner[order[again]].tolist(), owner[order[again + 1]].tolist(), strict=True))
