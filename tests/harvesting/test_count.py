"""Test the statistics of Parquet files of a replay log against a scan of all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import posbias
from posbias.harvesting import count

LOG = posbias.simulate(posbias.World(queries=30, repeats=6, max_rank=5, rankers=("a", "b", "c")), "replay")
ODD = {
    "sound": {},
    "beyond": {"position": 12},
    "at-zero": {"position": 0},
    "no-position": {"position": None},
    "two-clicks": {"clicked": 2},
    "no-click": {"clicked": None},
    "no-ranker": {"ranker": None},
    "no-query": {"query_id": None},
    "no-document": {"doc_id": None},
}


def harvested(source: Any, **more: Any) -> Any:
    """What a harvest counts, or how it is refused."""
    try:
        harvest = posbias.harvest(posbias.ClickLog(source, **more), max_rank=5)
    except posbias.PosbiasError as error:
        return str(error)
    rows = {name: n for name, n in harvest.about.items() if name.startswith("rows")}
    cells = np.stack(list(posbias.merge([harvest]).table.columns().values()))
    return harvest.rankers, rows, cells.tolist(), [finding.message for finding in harvest.findings]


@pytest.mark.parametrize("names", ["named", "unnamed"])
@pytest.mark.parametrize("odd", ODD)
def test_file_is_counted_or_rejected_like_a_table(odd: str, names: str, tmp_path: Path, monkeypatch: Any) -> None:
    rows = LOG.to_pylist()
    rows[7] |= ODD[odd]
    log = pa.Table.from_pylist(rows, schema=LOG.schema)
    pq.write_table(log, tmp_path / "log.parquet")
    looks = []
    monkeypatch.setattr(count, "scan_rows", _noted(count.scan_rows, looks))
    more = {"ranker": "none"} if names == "unnamed" else {}
    found = harvested(str(tmp_path / "log.parquet"), **more)
    assert len(looks) == (0 if odd in ("sound", "no-query", "no-document") or (more and odd == "no-ranker") else 1)
    wanted = harvested(log, **more)
    assert len(looks) > 0
    assert found == wanted


@pytest.mark.parametrize("kind", ["one-rank", "several-ranks", "alike"])
@pytest.mark.parametrize("bits", range(1, 11))
def test_wrong_guess_of_the_packed_size_is_corrected(bits: int, kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Seven rankers have too many rows for one number, unless pairs that are alike have few."""
    rankers = tuple("abcdefg")
    world = posbias.World(queries=40, repeats=30 if kind != "alike" else 4, skew=1.0, max_rank=5, rankers=rankers)
    rows = posbias.simulate(world, "replay").to_pylist()
    if kind == "several-ranks":
        for row in rows[::100]:
            row["position"] = 1
    if kind == "alike":
        # None was shown often, but there are many, and all were clicked.
        rows += [rows[0] | {"doc_id": -i, "position": 1, "clicked": 1, "impression_id": -i} for i in range(1, 100)]
    log = pa.Table.from_pylist(rows)
    pq.write_table(log, tmp_path / "log.parquet")
    wanted = harvested(log)
    guessed: list[Any] = []
    looks: list[Any] = []
    monkeypatch.setattr(count, "_GUESSED_COUNT", 2**bits - 1)
    monkeypatch.setattr(count, "scan_first", _noted(count.scan_first, guessed, answers=True))
    monkeypatch.setattr(count, "scan_rows", _noted(count.scan_rows, looks))
    assert harvested(str(tmp_path / "log.parquet")) == wanted
    # Of more than eight bits, seven digits do not fit into one number.
    assert [scan.exact for scan in guessed] == [bits > 8]
    most = max(wanted[2][-2])
    # Without a guess the rows are looked at at once; after a wrong one, too.
    assert len(looks) == (bits > 8 or most >= 2**bits)


def _noted(function: Any, calls: list[Any], *, answers: bool = False) -> Any:
    def noted(*args: Any) -> Any:
        answer = function(*args)
        calls.append(answer if answers else args)
        return answer

    return noted


def test_pair_at_many_ranks_of_one_ranker_is_counted() -> None:
    """What its digits overflow to is no count, and must not be taken for one."""
    names = [f"r{i:02}" for i in range(20)]
    shown = [("q", "d", names[-1], rank) for rank in range(1, 11) for _ in range(7)]
    shown += [("q", f"d{i}", name, 1 + i % 10) for i, name in enumerate(names[:-1])]
    rows = [dict(zip(("query_id", "doc_id", "ranker", "position"), row, strict=True)) | {"clicked": 1} for row in shown]
    harvest = posbias.harvest(posbias.ClickLog(pa.Table.from_pylist(rows)), force=True)
    assert harvest.about["non_functional_pairs"] == 1
    assert harvest.table.clicks.sum() == harvest.table.impressions.sum() == len(rows)
