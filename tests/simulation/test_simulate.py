"""The simulator: what it says it simulates is what is in the log."""

from __future__ import annotations

import dataclasses
import json
import math
from importlib import import_module
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from posbias.errors import PosbiasError
from posbias.simulation import SimulatedLog, World, agreement, rank, simulate, write
from posbias.version import __version__

module = import_module("posbias.simulation.simulate")

SMALL = World(queries=60, repeats=4, skew=1, similarity=0.6, max_rank=4, candidates=6, seed=3)
SUFFIXES = [".parquet", ".csv", ".csv.gz", ".jsonl", ".jsonl.gz"]


def ask(sql: str, **tables: pa.Table) -> list[tuple]:
    """Run SQL over tables by name."""
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(sql).fetchall()


def read(path: Path) -> pa.Table:
    with duckdb.connect() as connection:
        return connection.sql(f"SELECT * FROM '{path}'").to_arrow_table()


def rows(table: pa.Table) -> list[tuple]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def small_blocks(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(module, "_BLOCK_ROWS", size)


def assert_close(clicks: float, n: int, p: float) -> None:
    """Within 4.5 binomial standard errors: one false alarm in 150,000."""
    assert abs(clicks / n - p) <= 4.5 * math.sqrt(p * (1 - p) / n) + 1e-12, (clicks / n, p, n)


# --- clicks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("eta", "noise"), [(1, 0.1), (0.5, 0.3), (0, 0), (2, 1)])
def test_click_rates_are_those_of_the_position_based_model(eta: float, noise: float) -> None:
    # Quality 0 makes relevance independent of rank, so P(click at r) = p_r (rel + eps (1 - rel)).
    world = World(queries=20_000, repeats=1, eta=eta, noise=noise, quality=0, relevant=0.4, seed=1)
    for position, clicks, n in ask("SELECT position, sum(clicked), count(*) FROM log GROUP BY 1", log=simulate(world)):
        assert_close(clicks, n, (1 / position) ** eta * (0.4 + noise * 0.6))


def test_clicks_given_relevance() -> None:
    """With no noise and no bias a click is relevance, and relevance is fixed for a query and document."""
    world = World(queries=500, repeats=6, eta=0, noise=0, similarity=0, seed=2)
    sql = "SELECT query_id, doc_id FROM log GROUP BY ALL HAVING min(clicked) <> max(clicked)"
    assert ask(sql, log=simulate(world)) == []
    ((share,),) = ask(
        "SELECT avg(c) FROM (SELECT any_value(clicked) AS c FROM log GROUP BY query_id, doc_id)",
        log=simulate(dataclasses.replace(world, quality=0, candidates=10)),
    )
    assert_close(share * 5000, 5000, world.relevant)


def test_a_better_ranker_puts_relevant_documents_higher() -> None:
    world = World(queries=3000, repeats=2, eta=0, noise=0, quality=(0, 3), max_rank=3, candidates=30)
    found = dict(ask("SELECT ranker, avg(clicked) FROM log GROUP BY 1", log=simulate(world)))
    assert abs(found["a"] - 0.3) < 0.03
    assert found["b"] > 0.8


def test_segments_have_their_own_curve_and_the_log_their_mean() -> None:
    world = World(queries=20_000, repeats=1, quality=0, noise=1, segments={"desktop": 0.5, "phone": 2}, seed=5)
    log = simulate(world)
    cells = ask("SELECT device, position, sum(clicked), count(*) FROM log GROUP BY 1, 2", log=log)
    assert len(cells) == 20
    for device, position, clicks, n in cells:
        assert_close(clicks, n, (1 / position) ** world.segments[device])
    for position, clicks, n in ask("SELECT position, sum(clicked), count(*) FROM log GROUP BY 1", log=log):
        assert_close(clicks, n, world.propensity[position - 1])
    counts = dict(ask("SELECT device, count(DISTINCT impression_id) FROM log GROUP BY 1", log=log))
    assert_close(counts["phone"], 20_000, 0.5)
    assert ask("SELECT impression_id FROM log GROUP BY 1 HAVING min(device) <> max(device)", log=log) == []
    assert "device" not in simulate(SMALL).column_names


# --- rankings and pages -------------------------------------------------------------------------------------


def test_each_page_view_shows_every_position_once_by_one_ranker() -> None:
    pages = ask(
        """SELECT list_sort(list(position)), count(DISTINCT doc_id), count(DISTINCT query_id),
                  count(DISTINCT ranker) FROM log GROUP BY impression_id""",
        log=simulate(SMALL),
    )
    assert set(map(str, pages)) == {str(([1, 2, 3, 4], 4, 1, 1))}


def test_impressions_are_numbered_in_the_order_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, 40)
    log = simulate(SMALL)
    views = log.num_rows // SMALL.max_rank
    assert log["impression_id"].to_pylist() == np.repeat(np.arange(views), SMALL.max_rank).tolist()


def test_the_rank_of_the_ranker_shown_is_the_position() -> None:
    log = simulate(World(queries=300, repeats=3, rankers=("a", "b", "c"), similarity=0.3))
    for name in "abc":
        bad = f"SELECT * FROM log WHERE ranker = '{name}' AND rank_{name} IS DISTINCT FROM position"
        assert ask(bad, log=log) == []
    ((nulls, beyond),) = ask("SELECT count(*) - count(rank_b), count_if(rank_b > 10) FROM log", log=log)
    assert nulls > 0
    assert beyond == 0


def test_wide_and_long_have_the_same_ranks() -> None:
    world = dataclasses.replace(SMALL, rankers=("a", "b", "c"))
    log, rankings = simulate(world), rank(world)
    assert rankings.num_rows == world.queries * 3 * world.max_rank
    for name in world.rankers:
        differ = f"""SELECT * FROM log LEFT JOIN (FROM rankings WHERE ranker = '{name}') AS r
                     USING (query_id, doc_id) WHERE rank_{name} IS DISTINCT FROM r.rank"""
        assert ask(differ, log=log, rankings=rankings) == []
    columns = [name for name in log.column_names if not name.startswith("rank_")]
    assert simulate(world, "long").equals(log.select(columns))
    assert simulate(world, "replay").equals(log.select(columns))


def test_queries_share_documents() -> None:
    ((shared,),) = ask(
        "SELECT count(*) FROM (SELECT doc_id FROM log GROUP BY 1 HAVING count(DISTINCT query_id) > 1)",
        log=simulate(SMALL),
    )
    assert shared > 10


@pytest.mark.parametrize("traffic", [(1, 1, 1), (0.9, 0.1, 0), (80, 15, 5)])
def test_traffic(traffic: tuple[float, ...]) -> None:
    world = World(rankers=("a", "b", "c"), traffic=traffic, queries=3000, repeats=3, seed=4)
    found = dict(ask("SELECT ranker, count(*) // 10 FROM log GROUP BY 1", log=simulate(world)))
    assert sum(found.values()) == 9000
    for name, share in zip(world.rankers, world.shares, strict=True):
        assert_close(found.get(name, 0), 9000, share)


def test_similar_rankers_agree_more() -> None:
    same = [agreement(World(queries=1000, similarity=s))[0, 1] for s in (0, 0.5, 0.9, 1)]
    assert same == sorted(same)
    assert same[0] < 0.15
    assert same[-1] == 1
    log = simulate(World(queries=100, similarity=1))
    assert ask("SELECT * FROM log WHERE rank_a IS DISTINCT FROM rank_b", log=log) == []


def test_agreement_is_the_share_of_documents_at_the_same_rank() -> None:
    world = World(queries=200, rankers=("a", "b", "c"), quality=(1, 1, 4))
    found = agreement(world)
    sql = """SELECT a.ranker, b.ranker, count(*) / 2000 FROM rankings AS a
             JOIN rankings AS b USING (query_id, doc_id, rank) GROUP BY ALL"""
    for first, second, share in ask(sql, rankings=rank(world)):
        assert found["abc".index(first), "abc".index(second)] == pytest.approx(share)
    assert np.array_equal(found, found.T)


# --- repeats ------------------------------------------------------------------------------------------------


def views_by_query(world: World) -> np.ndarray:
    return np.concatenate([block.views for block in module.blocks_of(world)])


def test_repeats_are_the_mean_page_views_of_a_query() -> None:
    assert set(views_by_query(World(queries=50, repeats=7))) == {7}
    half = views_by_query(World(queries=20_000, repeats=2.5))
    assert set(half) == {2, 3}
    assert abs(half.mean() - 2.5) < 0.02
    skewed = views_by_query(World(queries=50_000, repeats=4, skew=1))
    assert abs(skewed.mean() - 4) < 0.1
    assert skewed.min() == 1
    assert skewed.max() > 40


# --- the same log, however it is drawn ----------------------------------------------------------------------


def test_the_log_depends_on_the_seed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, 100)
    first = write(SMALL, tmp_path / "first.parquet").log.read_bytes()
    monkeypatch.setattr(module, "_THREADS", 5)
    assert write(SMALL, tmp_path / "again.parquet").log.read_bytes() == first
    other = dataclasses.replace(SMALL, seed=4)
    assert not simulate(other).equals(simulate(SMALL))
    monkeypatch.setattr(module, "_ROW_GROUP", 50)
    chunked = write(SMALL, tmp_path / "chunked.parquet").log
    assert pq.ParquetFile(chunked).num_row_groups > 5
    assert pq.ParquetFile(tmp_path / "first.parquet").num_row_groups == 1
    assert pq.read_table(chunked).equals(pq.read_table(tmp_path / "first.parquet"))
    assert pq.read_table(chunked).equals(simulate(SMALL))


def test_blocks_are_independent_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, 80)
    assert len(list(module.blocks_of(SMALL))) > 5
    log = simulate(SMALL)
    assert set(log["query_id"].to_pylist()) == set(range(60))
    pages = ask("SELECT list(doc_id ORDER BY position) FROM log GROUP BY query_id, ranker", log=log)
    assert len(set(map(str, pages))) > 60


def test_one_query_viewed_often_is_drawn_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, 1000)
    world = World(queries=2, repeats=20_000, quality=0, noise=1)
    pieces = list(module.draw_pieces(world, module.LogFormat()))
    assert max(piece.log.num_rows for piece in pieces) <= 2000
    assert sum(piece.queries for piece in pieces) == 2
    log = pa.concat_tables(piece.log for piece in pieces)
    assert ask("SELECT count(DISTINCT impression_id) FROM log", log=log) == [(40_000,)]
    for position, clicks in ask("SELECT position, sum(clicked) FROM log GROUP BY 1", log=log):
        assert_close(clicks, 40_000, 1 / position)
    # Slices that repeated each other's draws would make the click counts of whole slices equal.
    by_slice = ask("SELECT impression_id // 200, sum(clicked) FROM log GROUP BY 1", log=log)
    assert len({clicks for _, clicks in by_slice}) > 20


# --- formats and files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("segments", [{}, {"desktop": 1, "phone": 0.5}], ids=["plain", "segments"])
@pytest.mark.parametrize("size", [40, 1_000_000])
def test_aggregated_is_the_sum_of_rows(segments: dict[str, float], size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, size)
    world = dataclasses.replace(SMALL, segments=segments, repeats=30)
    log, added = simulate(world), simulate(world, aggregated=True)
    keys = ", ".join(name for name in log.column_names if name not in {"clicked", "impression_id"})
    summed = ask(f"SELECT {keys}, count(*), sum(clicked) FROM log GROUP BY ALL ORDER BY ALL", log=log)
    assert summed == ask(f"SELECT {keys}, impressions, clicks FROM added ORDER BY ALL", added=added)
    assert not {"clicked", "impression_id"} & set(added.column_names)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("layout", ["wide", "long", "replay"])
def test_every_layout_and_format_round_trips(layout: module.Layout, suffix: str, tmp_path: Path) -> None:
    world = dataclasses.replace(SMALL, rankers=('a"b', "ü c"), segments={"x,y": 1, "z": 0})
    for ids, aggregated in (("int", False), ("str", True), ("str", False)):
        written = write(world, tmp_path / f"log{suffix}", layout, ids=ids, aggregated=aggregated)
        expected = simulate(world, layout, ids=ids, aggregated=aggregated)
        found = read(written.log)
        assert found.column_names == expected.column_names
        assert rows(found) == rows(expected)
        assert written.rows == expected.num_rows
        if layout == "long":
            assert written.rankings == tmp_path / f"log.rankings{suffix}"
            assert rows(read(written.rankings)) == rows(rank(world, ids=ids))
        else:
            assert written.rankings is None
    names = {"log.truth.json", f"log{suffix}"} | ({f"log.rankings{suffix}"} if layout == "long" else set())
    assert {path.name for path in tmp_path.iterdir()} == names


def test_columns_have_small_types() -> None:
    types = dict(zip(simulate(SMALL).schema.names, simulate(SMALL).schema.types, strict=True))
    assert (types["position"], types["rank_a"], types["clicked"]) == (pa.int16(), pa.int16(), pa.int8())
    assert (types["query_id"], types["doc_id"], types["impression_id"]) == (pa.int64(),) * 3
    text = simulate(SMALL, ids="str")
    assert [text[name].type for name in ("query_id", "doc_id", "impression_id")] == [pa.string()] * 3
    assert text["query_id"][0].as_py() == f"q{simulate(SMALL)['query_id'][0].as_py()}"


def test_truth(tmp_path: Path) -> None:
    world = dataclasses.replace(SMALL, traffic=(np.float64(3), 1), segments={"desktop": 0, "phone": 1})
    written = write(world, tmp_path / "log.csv.gz")
    assert written.truth == tmp_path / "log.truth.json"
    truth = json.loads(written.truth.read_text())
    assert truth["propensity"] == pytest.approx([1, 0.75, 2 / 3, 0.625])
    assert truth["segments"]["phone"] == {"eta": 1, "propensity": pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])}
    assert truth["eta"] is None
    assert truth["traffic"] == [0.75, 0.25]
    assert (truth["rows"], truth["page_views"]) == (written.rows, written.page_views)
    assert written.rows == written.page_views * 4
    assert truth["version"] == __version__
    assert np.allclose(truth["same_rank"], agreement(world))
    parameters = {parameter.name for parameter in dataclasses.fields(World)}
    assert parameters <= set(truth)
    assert json.loads(write(SMALL, tmp_path / "log.csv").truth.read_text())["eta"] == 1


def test_aggregated_counts_page_views_not_rows(tmp_path: Path) -> None:
    whole, added = (write(SMALL, tmp_path / f"{a}.parquet", aggregated=a) for a in (False, True))
    assert whole.page_views == added.page_views
    assert added.rows < whole.rows


def test_progress_ends_at_the_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, 100)
    calls: list[tuple[int, int]] = []
    write(SMALL, tmp_path / "log.parquet", progress=lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert len(calls) > 5
    assert calls[-1] == (60, 60)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_run_that_fails_leaves_everything_as_it_was(
    suffix: str, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(monkeypatch, 100)
    monkeypatch.setattr(module, "_ROW_GROUP", 100)

    def fail(done: int, total: int) -> None:
        if done > 30:
            raise error

    def run() -> SimulatedLog:
        return write(SMALL, tmp_path / f"log{suffix}", "long", progress=fail)

    with pytest.raises(error):
        run()
    assert list(tmp_path.iterdir()) == []
    write(dataclasses.replace(SMALL, seed=9), tmp_path / f"log{suffix}", "long")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(error):
        run()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert len(before) == 3


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"similarity": 1.5}, r"similarity must be a number from 0 to 1, found 1\.5"),
        ({"similarity": math.nan}, "similarity must be"),
        ({"noise": -0.1}, "noise must be a number from 0 to 1"),
        ({"relevant": "many"}, "relevant must be a number from 0 to 1, found 'many'"),
        ({"eta": -1}, "eta must be a number of 0 or more"),
        ({"eta": math.inf}, "eta must be"),
        ({"repeats": 0.5}, "repeats must be a number from 1 to 1000000"),
        ({"skew": 9}, "skew must be a number from 0 to 3"),
        ({"queries": 0}, "queries must be a whole number of 1 or more, found 0"),
        ({"queries": 1.5}, "queries must be a whole number"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"max_rank": 0}, "max_rank must be a whole number from 1"),
        (
            {"candidates": 3},
            "candidates must be a whole number from 10 .* raise candidates or lower max_rank",
        ),
        ({"rankers": ()}, "at least one ranker"),
        ({"rankers": "ab"}, "rankers must be names"),
        ({"rankers": ("a", "")}, "rankers must be names"),
        ({"rankers": ("a", "A")}, "differ by more than upper and lower case"),
        ({"quality": (1, 2, 3)}, r"quality must be .* for 2 rankers \(a, b\)"),
        ({"quality": "good"}, "quality must be a number"),
        ({"traffic": (1,)}, "traffic must be a weight"),
        ({"traffic": (0, 0)}, "traffic must be"),
        ({"traffic": 5}, "traffic must be a weight"),
        ({"traffic": ()}, "traffic must be a weight"),
        ({"segments": ["phone"]}, r"segments must map names to numbers \(eta\)"),
        ({"traffic": (2, -1)}, "traffic must be"),
        ({"traffic": ("x", 1)}, "traffic must be"),
        ({"segments": {"phone": -1}}, r"segments\['phone'\] must be a number of 0 or more"),
        ({"segments": {"": 1}}, "segments must be names"),
    ],
)
def test_invalid_worlds_are_rejected(arguments: dict, message: str) -> None:
    with pytest.raises(PosbiasError, match=message):
        World(**arguments)


def test_a_world_is_a_value() -> None:
    segments = {"phone": 1.0}
    world = World(rankers=["x", "y"], traffic=[1, 3], segments=segments)
    segments["phone"] = 2.0
    assert world == World(rankers=("x", "y"), traffic=(1, 3), segments={"phone": 1.0})
    assert hash(world) == hash(dataclasses.replace(world))
    assert World(max_rank=20).pool == 25


@pytest.mark.parametrize(
    ("name", "keywords", "message"),
    [
        ("log.txt", {}, r"ending in \.parquet, \.csv"),
        (".parquet", {}, "ending in"),
        ("nowhere/log.parquet", {}, "does not exist"),
        ("folder.parquet", {}, "is a folder"),
        ("log.parquet", {"layout": "tall"}, "layout must be one of wide, long, replay, found 'tall'"),
        ("log.parquet", {"ids": "uuid"}, "ids must be one of int, str"),
    ],
)
def test_invalid_files_are_rejected(name: str, keywords: dict, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(PosbiasError, match=message):
        write(SMALL, tmp_path / name, **keywords)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.parquet"]


def test_a_log_that_was_not_simulated_is_not_replaced(tmp_path: Path) -> None:
    log = tmp_path / "clicks.csv"
    log.write_text("mine")
    with pytest.raises(PosbiasError, match=r"there is no clicks\.truth\.json beside it to show that it was simulated"):
        write(World(queries=2, max_rank=2), log)
    assert log.read_text() == "mine"
    log.unlink()
    for _ in range(2):
        assert write(World(queries=2, max_rank=2), log).log == log


def test_files_of_others_beside_the_log_stay(tmp_path: Path) -> None:
    world = World(queries=3, repeats=1)
    truth = tmp_path / "clicks.truth.json"
    truth.write_text('{"mine": 1}')
    with pytest.raises(PosbiasError, match="not the truth of a simulated log"):
        write(world, tmp_path / "clicks.csv")
    assert truth.read_text() == '{"mine": 1}'
    truth.unlink()
    rankings = tmp_path / "clicks.rankings.csv"
    rankings.write_text("a,b")
    write(world, tmp_path / "clicks.csv")
    with pytest.raises(PosbiasError, match=r"clicks\.rankings\.csv' exists, and there is no"):
        write(world, tmp_path / "clicks.csv", "long")
    assert rankings.read_text() == "a,b"
    rankings.unlink()
    write(world, tmp_path / "clicks.csv", "long")
    write(world, tmp_path / "clicks.csv", "long")
