"""Test pairs of logs without rankers that were shown too often for a single pass, and that row order never matters."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import posbias
from posbias.harvesting import count as natural_variation
from posbias.harvesting.tables import canonical
from posbias.sql import exposures, plan

CELL = ("stratum", "bucket", "rank", "pairs", "impressions", "clicks")
IDS = {
    "numbers": lambda ids: ids,
    "texts": lambda ids: pa.array([f'it\'s \\ "{i}"\n{i % 3}' for i in ids.to_pylist()]),
    "fractions": lambda ids: pa.array([i / 7 for i in ids.to_pylist()]),
    "days": lambda ids: pa.array([datetime.date(2026, 1, 1) + datetime.timedelta(i) for i in ids.to_pylist()]),
}


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("max_rank", [4, 15])
def test_frequent_pairs_are_counted_like_others(ids: str, max_rank: int, monkeypatch: Any) -> None:
    """One ranker that shows documents at several ranks is counted cell by cell, and has the same strata."""
    world = posbias.World(queries=40, repeats=60, skew=1.2, candidates=20, max_rank=15, seed=5)
    log = posbias.simulate(world, "replay")
    log = log.set_column(0, "query_id", IDS[ids](log["query_id"]))
    wanted = posbias.harvest(
        posbias.ClickLog(log.set_column(2, "ranker", pa.array(["any"] * len(log)))), max_rank=max_rank
    )
    assert (wanted.table.impressions >= 32 * wanted.table.pairs).any()
    assert (wanted.table.impressions < 32 * wanted.table.pairs).any()
    # A pair that is shown 32 times is frequent enough for this test.
    monkeypatch.setattr(plan, "RANK_BITS", 5)
    monkeypatch.setattr(exposures, "RANK_BITS", 5)
    for most, rows in ((20_000, 2**26), (0, 2**26), (20_000, 0)):
        monkeypatch.setattr(natural_variation, "_MAX_SELECTED_QUERIES", most)
        # With more rows than their number counts, they are counted beside it.
        monkeypatch.setattr(exposures, "_MOST_ROWS", rows)
        found = posbias.harvest(posbias.ClickLog(log, ranker="none"), max_rank=max_rank)
        assert strata_of(found) == strata_of(wanted)
        assert_canonical(found)


@pytest.mark.parametrize("views", [31, 1023, 1024, 1025])
def test_packed_digits_hold_their_range(views: int, monkeypatch: Any) -> None:
    """A pair shown and clicked so often at the last rank of a number of digits, and once at the first."""
    rows = [("q", "d", 10)] * (views - 1) + [("q", "d", 1)]
    log = pa.Table.from_pylist([{"query_id": q, "doc_id": d, "position": p, "clicked": 1} for q, d, p in rows])
    for most in (2**26, 0):
        monkeypatch.setattr(exposures, "_MOST_ROWS", most)
        table = posbias.harvest(posbias.ClickLog(log, ranker="none"), force=True).table
        assert sorted(zip(table.rank, table.impressions, table.clicks, strict=True)) == [
            (1, 1, 1),
            (10, *[views - 1] * 2),
        ]


@pytest.mark.parametrize("ranker", ["ranker", "none"])
def test_the_order_of_rows_does_not_matter(ranker: str) -> None:
    """Also with a ranker that shows documents at several ranks, which are counted separately."""
    log = posbias.simulate(posbias.World(queries=60, repeats=20, max_rank=5, seed=2), "replay")
    rows = np.random.default_rng(1).permutation(len(log))
    names = pa.array(np.where(np.arange(len(log)) % 7 == 0, "mixed", log["ranker"].to_pylist()).tolist())
    log = log.set_column(2, "ranker", names).append_column("half", pa.array((np.arange(len(log)) % 2).astype(str)))
    found = [
        posbias.harvest(posbias.ClickLog(table, ranker=ranker), max_rank=5, by="half", force=True)
        for table in (log, log.take(rows))
    ]
    assert_canonical(found[0])
    for name, column in found[0].table.columns().items():
        assert np.array_equal(column, getattr(found[1].table, name)), name


def assert_canonical(harvest: posbias.Harvest) -> None:
    """Merging equal strata leaves the table as it is."""
    merged = canonical(harvest.table).columns()
    assert all(np.array_equal(column, merged[name]) for name, column in harvest.table.columns().items())


def strata_of(harvest: posbias.Harvest) -> list[Any]:
    """The strata of a harvest by what they hold, whatever their numbers are."""
    held: dict[int, list[Any]] = {}
    columns = harvest.table.columns()
    for cell in zip(*(columns[name].tolist() for name in CELL), strict=True):
        held.setdefault(cell[0], []).append(cell[1:])
    return sorted(sorted(cells) for cells in held.values())


@pytest.mark.parametrize(
    ("layout", "weighting"),
    [("wide", "traffic"), ("replay", "traffic"), ("replay", "harmonic"), ("replay", "uniform")],
)
def test_sums_do_not_depend_on_the_order_of_rows(layout: Any, weighting: Any) -> None:
    """A sum of floats depends on the order in which an engine adds them up; a sum of rounded decimals does not."""
    log = posbias.simulate(posbias.World(queries=300, repeats=10, max_rank=5, seed=3), layout)
    rows = np.random.default_rng(2).permutation(len(log))
    found = [
        posbias.harvest(posbias.ClickLog(table), max_rank=5, weighting=weighting, max_strata=0).table
        for table in (log, log.take(rows))
    ]
    for name, column in found[0].columns().items():
        assert np.array_equal(column, getattr(found[1], name)), name
