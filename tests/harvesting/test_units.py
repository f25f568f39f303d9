"""Test that a harvest counts by unit as well: buckets, missing units, merging, layouts, engines and exports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import posbias
from posbias.cli import cli
from posbias.harvesting.harvest import Units
from posbias.harvesting.tables import PairSums
from tests.support import sparks
from tests.support.users import with_users
from tests.support.warehouses import EXECUTORS, Run, run_duckdb, to_csv

LOG = with_users(30)
FEW_USERS = with_users(8)


def harvest(log: pa.Table, **columns: Any) -> posbias.Harvest:
    return posbias.harvest(posbias.ClickLog(log, **columns), max_rank=4)


def units(found: posbias.Harvest) -> Units:
    assert found.units is not None
    return found.units


def assert_same_units(one: posbias.Harvest, other: posbias.Harvest) -> None:
    assert units(one).column == units(other).column
    for left, right in zip(
        (units(one).by_unit, units(one).by_both), (units(other).by_unit, units(other).by_both), strict=True
    ):
        for name, column in left.table.columns().items():
            np.testing.assert_array_equal(column, getattr(right.table, name), name)


def clicks_by_bucket(found: posbias.Harvest) -> dict[tuple[int, str, int], tuple[int, int]]:
    shown, clicks = found.counts("bucket", "ranker", "rank")
    return {
        (int(found.buckets[b]), found.rankers[r], k + 1): (int(shown[b, r, k]), int(clicks[b, r, k]))
        for b, r, k in zip(*np.nonzero(shown), strict=True)
    }


def expected_counts(log: pa.Table) -> list[dict[tuple[int, str, int], tuple[int, int]]]:
    """Impressions and clicks by each of the three kinds of buckets, row by row."""
    sql = "SELECT *, hash(query_id::BIGINT) & 255 AS q, hash(user_id::BIGINT) & 255 AS u FROM log ORDER BY ALL"
    shown: list[Counter[Any]] = [Counter() for _ in range(3)]
    clicked: list[Counter[Any]] = [Counter() for _ in range(3)]
    for row in duckdb.sql(sql).to_arrow_table().to_pylist():
        missing = row["user_id"] is None
        kinds = row["q"], row["q"] if missing else row["u"], row["q"] if missing else (row["q"] + row["u"]) % 256
        for i, bucket in enumerate(kinds):
            shown[i][bucket, row["ranker"], row["position"]] += 1
            clicked[i][bucket, row["ranker"], row["position"]] += row["clicked"]
    return [{key: (n, clicked[i][key]) for key, n in shown[i].items()} for i in range(3)]


def some_without(log: pa.Table) -> pa.Table:
    user = [None if i % 3 == 0 else u for i, u in enumerate(log.column("user_id").to_pylist())]
    return log.set_column(log.column_names.index("user_id"), "user_id", pa.array(user, pa.int64()))


@pytest.mark.parametrize("log", [LOG, some_without(LOG)], ids=["every row has a user", "some rows have none"])
@pytest.mark.parametrize("max_strata", [10**6, 0], ids=["signatures", "pairs"])
def test_counts_by_bucket_are_those_of_the_rows(log: pa.Table, max_strata: int) -> None:
    found = posbias.harvest(posbias.ClickLog(log), max_rank=4, max_strata=max_strata)
    assert found.kind == ("signatures" if max_strata else "pairs")
    kinds = [found, units(found).by_unit, units(found).by_both]
    assert [clicks_by_bucket(one) for one in kinds] == expected_counts(log)


def test_counts_by_unit_have_the_same_signatures() -> None:
    found = harvest(LOG)
    alone = harvest(
        LOG.drop_columns("query_id").rename_columns(
            [{"user_id": "query_id"}.get(name, name) for name in LOG.drop_columns("query_id").column_names]
        )
    )
    for name, column in units(found).by_unit.table.columns().items():
        np.testing.assert_array_equal(column, getattr(alone.table, name), name)


def test_units_are_found_by_name_and_switched_off() -> None:
    assert units(harvest(LOG)).column == "user_id"
    assert harvest(LOG, unit="none").units is None
    assert harvest(LOG, unit="query_id").units is None
    visitors = LOG.rename_columns([{"user_id": "visitor_id"}.get(name, name) for name in LOG.column_names])
    assert units(harvest(visitors)).column == "visitor_id"
    clients = LOG.rename_columns([{"user_id": "client_id"}.get(name, name) for name in LOG.column_names])
    assert harvest(clients).units is None
    assert_same_units(
        harvest(clients, unit="client_id"), harvest(LOG.rename_columns(clients.column_names), unit="client_id")
    )


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        ("nobody", "Column 'nobody' is not in the log"),
        ("doc_id", "cannot be both doc and unit"),
        ("ranker", "cannot be both ranker and unit"),
        ("", "must be text"),
        (3, "must be text"),
    ],
)
def test_wrong_units_are_rejected(unit: Any, message: str) -> None:
    with pytest.raises(posbias.LogError, match=message):
        harvest(LOG, unit=unit)


@pytest.mark.parametrize("type_", [pa.string(), pa.float64(), pa.int16()])
def test_units_of_any_type_are_counted(type_: pa.DataType) -> None:
    log = LOG.set_column(LOG.column_names.index("user_id"), "user_id", LOG.column("user_id").cast(type_))
    found = harvest(log)
    assert units(found).by_unit.page_views == found.page_views
    if type_ == pa.int16():
        assert_same_units(found, harvest(LOG))


def test_an_empty_text_is_no_unit() -> None:
    log = some_without(LOG)
    texts = [None if user is None else str(user) for user in log.column("user_id").to_pylist()]
    place = log.column_names.index("user_id")
    logs = [log.set_column(place, "user_id", pa.array(t)) for t in (texts, [text or "" for text in texts])]
    assert_same_units(*map(harvest, logs))


@pytest.mark.parametrize("users", [["0"], [], ["0", "7"]])
def test_check_finds_a_unit_that_stands_for_many_users(users: list[str]) -> None:
    """Every third row is of no known user."""
    unknown = users[0] if users else None
    texts = [unknown if user is None else f"u{user}" for user in some_without(LOG).column("user_id").to_pylist()]
    texts = ["u0" if len(users) > 1 and text == unknown and i % 2 else text for i, text in enumerate(texts)]
    log = LOG.set_column(LOG.column_names.index("user_id"), "user_id", pa.array(texts, pa.string()))
    found = [f.example for f in posbias.check(posbias.ClickLog(log), max_rank=4).findings if f.code == "heavy-unit"]
    assert found == (["0"] if len(users) == 1 else [])


def test_a_list_named_user_id_is_no_unit() -> None:
    lists = pa.array([[user] for user in LOG.column("user_id").to_pylist()])
    assert harvest(LOG.set_column(LOG.column_names.index("user_id"), "user_id", lists)).units is None


def test_duplicates_are_dropped_before_units_are_counted() -> None:
    found = harvest(pa.concat_tables([LOG, LOG]), duplicates="drop")
    assert_same_units(found, harvest(LOG))


def test_aggregated_logs_have_units() -> None:
    keys = "query_id, doc_id, ranker, position, rank_a, rank_b, user_id"
    log = LOG
    rows = duckdb.sql(
        f"SELECT {keys}, COUNT(*) AS impressions, SUM(clicked)::BIGINT AS clicks FROM log GROUP BY {keys}"
    )
    assert_same_units(harvest(rows.to_arrow_table()), harvest(log))


def test_long_logs_have_units() -> None:
    log = LOG
    rankings = duckdb.sql(
        "SELECT DISTINCT query_id, doc_id, r AS ranker, rank FROM (SELECT query_id, doc_id, 'a' AS r, rank_a AS rank "
        "FROM log UNION ALL SELECT query_id, doc_id, 'b', rank_b FROM log) WHERE rank IS NOT NULL"
    ).to_arrow_table()
    assert_same_units(harvest(log.drop_columns(["rank_a", "rank_b"]), rankings=rankings), harvest(log))


# ---- Replay


def pair_sums(rows: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[float, float]]:
    """ĉ and ¬ĉ with harmonic weights, by ordered pair of ranks, straight from the rows."""
    counts: dict[Any, dict[int, list[int]]] = {}
    for row in rows:
        shown = counts.setdefault((row["query_id"], row["doc_id"]), {}).setdefault(row["position"], [0, 0])
        shown[row["clicked"]] += 1
    sums: Counter[Any] = Counter()
    for ranks in counts.values():
        for k, other in permutations(ranks, 2):
            share = sum(ranks[other]) / (sum(ranks[k]) + sum(ranks[other]))
            sums[k, other, "clicks"] += ranks[k][1] * share
            sums[k, other, "skips"] += ranks[k][0] * share
    return sums


@pytest.mark.parametrize("max_strata", [10**6, 0], ids=["exposures", "pairs"])
def test_replay_counts_what_sums_lose_without_each_bucket(max_strata: int) -> None:
    log = LOG
    sql = "SELECT *, hash(query_id::BIGINT) & 255 AS q, hash(user_id::BIGINT) & 255 AS u FROM log"
    rows = duckdb.sql(sql).to_arrow_table().to_pylist()
    found = posbias.harvest(posbias.ClickLog(log, ranks="none"), max_rank=4, max_strata=max_strata)
    whole = pair_sums(rows)
    by_user, by_both = units(found).by_unit, units(found).by_both
    for counted, bucket_of in ((by_user, lambda row: row["u"]), (by_both, lambda row: (row["q"] + row["u"]) % 256)):
        table = counted.table
        assert isinstance(table, PairSums)
        lost: dict[Any, float] = {}
        for bucket in {bucket_of(row) for row in rows}:
            left = pair_sums([row for row in rows if bucket_of(row) != bucket])
            lost |= {(bucket, *key): value - left[key] for key, value in whole.items()}
        sums = table.where(table.other > 0)
        columns = (sums.bucket, sums.rank, sums.other, sums.clicks, sums.skips)
        seen: Counter[Any] = Counter()
        for bucket, rank, other, clicks, skips in zip(*(column.tolist() for column in columns), strict=True):
            seen[bucket, rank, other, "clicks"], seen[bucket, rank, other, "skips"] = clicks, skips
        assert seen.keys() <= lost.keys()
        np.testing.assert_allclose([seen[key] for key in lost], list(lost.values()), atol=1e-9)
    assert clicks_by_bucket(by_user) == expected_counts(log)[1]


def test_a_replay_without_rankers_says_that_intervals_cluster_by_query_alone() -> None:
    found = harvest(LOG, ranks="none", ranker="none")
    assert found.units is None
    assert "units-not-counted" in [f.code for f in found.findings]
    assert "units-not-counted" not in [f.code for f in harvest(LOG, ranks="none").findings]


def test_merged_units_of_a_replay_are_those_of_all_rows() -> None:
    half = np.asarray(LOG.column("query_id")) % 2 == 0
    logs = [LOG.filter(pa.array(half)), LOG.filter(pa.array(~half)), LOG]
    one, other, whole = (harvest(log, ranks="none") for log in logs)
    merged = posbias.merge(one, other)
    for found, expected in zip(
        (units(merged).by_unit, units(merged).by_both), (units(whole).by_unit, units(whole).by_both), strict=True
    ):
        for name, column in found.table.columns().items():
            np.testing.assert_allclose(column, getattr(expected.table, name), atol=1e-9, err_msg=name)


@pytest.mark.parametrize("max_strata", [10**6, 0], ids=["signatures", "pairs"])
def test_merged_units_are_those_of_all_rows(max_strata: int) -> None:
    half = np.asarray(LOG.column("query_id")) % 2 == 0
    logs = [LOG.filter(pa.array(half)), LOG.filter(pa.array(~half)), LOG]
    one, other, whole = (posbias.harvest(posbias.ClickLog(log), max_rank=4, max_strata=max_strata) for log in logs)
    merged = posbias.merge(one, other)
    if max_strata:
        assert_same_units(merged, whole)
    assert units(merged).by_both.page_views == whole.page_views
    assert merged.findings == ()


def test_merging_with_a_harvest_without_units_leaves_them_out() -> None:
    days = [with_users(30, seed=seed) for seed in range(3)]
    merged = posbias.merge([harvest(days[0]), harvest(days[1], unit="none")], force=True)
    assert merged.units is None
    assert "mixed-units" in [f.code for f in merged.findings]
    again = posbias.merge([merged, harvest(days[2])], force=True)
    assert again.units is None
    assert [f.code for f in again.findings].count("mixed-units") == 1


# ---- Other engines


@pytest.mark.parametrize("engine", [sparks.on_server("spark")])
def test_spark_counts_by_unit(engine: str) -> None:
    log = some_without(LOG)
    found = posbias.harvest(posbias.ClickLog(sparks.session().createDataFrame(log)), max_rank=4)
    expected = harvest(log)
    for one, other in zip(
        (found, units(found).by_unit, units(found).by_both),
        (expected, units(expected).by_unit, units(expected).by_both),
        strict=True,
    ):
        sparks.assert_same_counts(one, other)
    assert posbias.AllPairs().fit(found).jackknife_.units is not None


@pytest.mark.parametrize("engine", [sparks.on_server("spark")])
def test_spark_counts_the_units_of_a_replay(engine: str) -> None:
    """Each engine has its own buckets, and users who have one each lose the same in both."""
    frame = sparks.session().createDataFrame(FEW_USERS)
    found = posbias.harvest(posbias.ClickLog(frame, ranks="none"), max_rank=4)
    np.testing.assert_allclose(losses_by_user(found, 8), losses_by_user(harvest(FEW_USERS, ranks="none"), 8), atol=1e-9)


@pytest.fixture(scope="module", params=map(sparks.on_server, EXECUTORS))
def executor(request: pytest.FixtureRequest) -> Iterator[tuple[str, Run]]:
    with EXECUTORS[request.param]() as run:
        yield request.param, run


def test_an_export_counts_by_unit(executor: tuple[str, Run], tmp_path: Path) -> None:
    dialect, run = executor
    log = some_without(LOG)
    sql = posbias.harvest_sql(dialect, "clicks", rankers=["a", "b"], unit="user_id", max_rank=4)
    found = posbias.Harvest.load(to_csv(run(sql, {"clicks": log}), tmp_path))
    expected = harvest(log)
    for one, other in ((found, expected), (units(found).by_unit, units(expected).by_unit)):
        np.testing.assert_array_equal(one.counts("ranker", "rank"), other.counts("ranker", "rank"))
        assert one.page_views == other.page_views
    users = len({*LOG.column("user_id").to_pylist()})
    assert len(units(found).by_unit.buckets) >= users / 2
    assert posbias.AllPairs().fit(found).jackknife_.units is not None


def losses_by_user(found: posbias.Harvest, users: int) -> Any:
    """What the sums lose without each user, in an order that does not depend on buckets."""
    counted = units(found).by_unit
    assert len(counted.buckets) == users
    clicks, skips = counted.interventions().tables(np.eye(users))
    rows = np.concatenate([clicks.reshape(users, -1), skips.reshape(users, -1)], axis=1)
    return rows[np.lexsort(rows.round(3).T)]


def test_an_export_of_a_replay_counts_by_unit(executor: tuple[str, Run], tmp_path: Path) -> None:
    """Each engine has its own buckets, and users who have one each lose the same in all."""
    dialect, run = executor
    log = FEW_USERS.append_column("half", pa.array(["", None] * (len(FEW_USERS) // 2))).rename_columns(
        [{"ranker": "Arm"}.get(name, name) for name in [*FEW_USERS.column_names, "half"]]
    )
    for by in ((), ("half",)):
        sql = posbias.harvest_sql(dialect, "clicks", ranker="Arm", unit="user_id", max_rank=4, by=by)
        found = posbias.Harvest.load(to_csv(run(sql, {"clicks": log}), tmp_path))
        expected = posbias.harvest(posbias.ClickLog(log, ranker="Arm", ranks="none"), max_rank=4, by=by)
        np.testing.assert_allclose(losses_by_user(found, 8), losses_by_user(expected, 8), atol=1e-3)
        assert units(found).by_unit.segments == units(expected).by_unit.segments
        assert units(found).by_both.page_views == expected.page_views
    assert posbias.CrossFit().fit(found).jackknife_.units is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lost:1:9:1:1:1:1", "its column other has the invalid value 9"),
        ("lost:1:2:1:1:1", "which the query did not write"),
        ("1:1:0:nobody", "of a ranker without counts by query"),
        ("1:1:1:a", "do not add up"),
    ],
)
def test_an_export_with_wrong_counts_by_unit_is_rejected(text: str, message: str, tmp_path: Path) -> None:
    with run_duckdb() as run:
        rows = run(posbias.harvest_sql("duckdb", "clicks", unit="user_id", max_rank=4), {"clicks": LOG})
    rows[next(i for i, row in enumerate(rows) if row["bucket"] >= 256)]["stratum"] = text
    with pytest.raises(posbias.HarvestError, match=message):
        posbias.Harvest.load(to_csv(rows, tmp_path))


def test_a_query_without_rankers_rejects_a_unit() -> None:
    with pytest.raises(posbias.LogError, match="this table names no ranker"):
        posbias.harvest_sql("bigquery", "clicks", ranker="none", unit="user_id")
    for unit in ("none", "query_id"):
        assert "GROUPING" not in posbias.harvest_sql("bigquery", "clicks", unit=unit, rankers=["a", "b"])


# ---- Commands


def test_commands_take_a_unit(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    names = [{"user_id": "client"}.get(name, name) for name in LOG.column_names]
    pq.write_table(LOG.rename_columns(names), tmp_path / "clicks.parquet")
    path, out = str(tmp_path / "clicks.parquet"), str(tmp_path / "x.harvest")
    done = CliRunner().invoke(cli, ["harvest", path, "--unit", "client", "--max-rank", "4", "--output", out])
    assert done.exit_code == 0, done.output
    assert units(posbias.Harvest.load(out)).column == "client"
    done = CliRunner().invoke(cli, ["estimate", out, "--unit", "client"])
    assert done.exit_code == 2


@pytest.mark.parametrize(
    ("column", "found"),
    [("client_id", True), ("hashed_user_key", True), ("ShopperNumber", True), ("user_id", False), ("colour", False)],
)
def test_check_suggests_a_unit_that_the_assignment_follows(column: str, found: bool) -> None:
    names = [{"user_id": column}.get(name, name) for name in LOG.column_names]
    findings = posbias.check(posbias.ClickLog(LOG.rename_columns(names)), max_rank=4).findings
    suggested = [f.arguments for f in findings if f.code == "unused-unit"]
    assert suggested == ([{"unit": column}] if found else [])


def test_the_next_command_has_the_unit_that_check_suggests(tmp_path: Path) -> None:
    names = [{"user_id": "client_id"}.get(name, name) for name in LOG.column_names]
    log = str(tmp_path / "log.parquet")
    pq.write_table(LOG.rename_columns(names), log)
    shown = CliRunner().invoke(cli, ["check", log, "--max-rank", "4"])
    assert shown.stderr == f"Next: posbias estimate {log} --max-rank 4 --unit client_id\n"


def test_check_suggests_no_unit_that_saw_both_rankers() -> None:
    random = np.random.default_rng(0)
    clients = pa.array(random.integers(0, 40, 10**4))
    log = posbias.simulate(posbias.World(queries=200, max_rank=4))
    _, page = np.unique(log.column("impression_id").to_numpy(zero_copy_only=False), return_inverse=True)
    log = log.append_column("client_id", clients.take(pa.array(page)))
    assert "unused-unit" not in [f.code for f in posbias.check(posbias.ClickLog(log), max_rank=4).findings]


def test_a_fit_and_a_diagnosis_show_the_same_degrees_of_freedom() -> None:
    table = posbias.simulate(posbias.World(queries=400, quality=(0.5, 2.0)))
    user = np.random.default_rng(0).integers(0, 20, len(table))[table["impression_id"].to_numpy()]
    user = 2 * user + np.equal(table["ranker"].to_pylist(), "b")
    harvest = posbias.harvest(posbias.ClickLog(table.append_column("user_id", pa.array(user)), unit="user_id"))
    shown = [one.degrees_of_freedom for one in posbias.diagnose(harvest).support]
    assert shown == pytest.approx(posbias.CrossFit().fit(harvest).degrees_of_freedom_[1:].tolist(), rel=1e-3)
    assert max(filter(None, shown)) < 60


def test_fit_warns_that_one_unit_leaves_no_interval() -> None:
    table = posbias.simulate(posbias.World(queries=200))
    log = posbias.ClickLog(table.append_column("user_id", pa.array(["me"] * len(table))), unit="user_id")
    harvest = posbias.harvest(log)
    with pytest.warns(posbias.PosbiasWarning, match=r"No rank has a confidence interval: the units \(user_id\) fill"):
        fitted = posbias.CrossFit().fit(harvest)
    assert "no interval: the units (user_id) fill only 1 bucket" in str(fitted.summary())
