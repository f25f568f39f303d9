"""Test what is specific to Spark: sources, sessions, query plans, skew, intervals and error messages.

That it counts as DuckDB does, for every layout, weighting, segment and problem, is told by test_harvest_oracle.py and
test_check.py, which run on both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import posbias
from posbias.cli import cli
from posbias.engines import open_log
from posbias.engines.spark import SparkLog
from posbias.errors import PosbiasError
from posbias.harvesting import row_checks
from posbias.harvesting.count import MAX_STRATA, HarvestSettings, known_rankers
from posbias.judging import diagnose as diagnose_module
from posbias.progress import print_profile
from posbias.sql import exposures, signatures
from tests.support import sparks

WORLD = posbias.World(queries=300, repeats=8, noise=1.0, seed=5)


@pytest.fixture(scope="module", params=[sparks.on_server("spark")])
def spark() -> Any:
    return sparks.session()


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return posbias.simulate(WORLD)


@pytest.fixture(scope="module")
def expected(table: pa.Table) -> posbias.Harvest:
    return posbias.harvest(posbias.ClickLog(table))


def assert_same(found: posbias.Harvest, expected: posbias.Harvest) -> None:
    assert found.about["engine"] == "spark"
    sparks.assert_same_counts(found, expected)


# ---- Sources and sessions


def test_spark_dataframe_selects_the_spark_engine(spark: Any, table: pa.Table, expected: posbias.Harvest) -> None:
    assert_same(posbias.harvest(posbias.ClickLog(spark.createDataFrame(table))), expected)


@pytest.fixture
def clicks_table(spark: Any, table: pa.Table) -> Iterator[str]:
    spark.createDataFrame(table).createOrReplaceTempView("clicks_of_today")
    yield "clicks_of_today"
    spark.catalog.dropTempView("clicks_of_today")


def test_table_is_read_by_name(clicks_table: str, expected: posbias.Harvest) -> None:
    assert_same(posbias.harvest(posbias.ClickLog(clicks_table), engine="spark"), expected)
    assert_same(posbias.harvest(posbias.ClickLog("", table=clicks_table), engine="spark"), expected)


@pytest.mark.parametrize("address", ["{}/clicks.parquet", "{}", "file://{}", "{}/*.parquet"])
def test_paths_of_the_cluster_are_read(
    address: str, tmp_path: Path, table: pa.Table, spark: Any, expected: posbias.Harvest
) -> None:
    pq.write_table(table, tmp_path / "clicks.parquet")
    log = posbias.ClickLog(address.format(tmp_path))
    assert_same(posbias.harvest(log, engine="spark"), expected)


@pytest.mark.parametrize("column", ["day", "ü 🚀", "$1 (a+b)!"])
def test_partition_folders_become_columns(column: str, tmp_path: Path, table: pa.Table, spark: Any) -> None:
    for value in ("2024-01-01", "%C3%BC%20%F0%9F%9A%80+", "__HIVE_DEFAULT_PARTITION__"):
        folder = tmp_path / f"{column}={value}"
        folder.mkdir()
        pq.write_table(table, folder / "part.parquet")
    # The same page views in all folders are duplicates.
    found = posbias.harvest(posbias.ClickLog(tmp_path), by=[column], engine="spark", force=True)
    assert {*found.segments} == {("2024-01-01",), ("ü 🚀+",), (None,)}


def test_a_line_break_in_a_name_is_not_that_of_the_lines(tmp_path: Path, table: pa.Table, spark: Any) -> None:
    """Spark would add the \\r of each line to its last value, and refuse the clicks or change the ids."""
    frame = table.to_pandas().rename(columns={"impression_id": "page\nview"})
    frame["last"] = frame.pop("clicked") == 1
    frame.to_csv(tmp_path / "a.csv", index=False, lineterminator="\r\n")
    frame.to_csv(tmp_path / "b.csv", index=False)
    logs = [posbias.ClickLog(tmp_path / f"{name}.csv", click="last") for name in "ab"]
    a, b = (posbias.harvest(log, engine="spark") for log in logs)
    assert_same(a, b)


def test_files_with_different_types_are_read(tmp_path: Path, table: pa.Table, spark: Any) -> None:
    pq.write_table(table, tmp_path / "a.parquet")
    narrow = table.set_column(0, "query_id", table["query_id"].cast(pa.int32()).cast(pa.string()))
    narrow = narrow.rename_columns([*("query_id",), *table.column_names[1:]])
    pq.write_table(narrow.set_column(0, "query_id", table["query_id"].cast(pa.int32())), tmp_path / "b.parquet")
    log = posbias.ClickLog(tmp_path)
    # The same page views in both files are duplicates.
    found = posbias.harvest(log, engine="spark", force=True)
    assert found.page_views == posbias.harvest(log, engine="duckdb", force=True).page_views
    assert any(p.code == "mixed-files" for p in posbias.check(log, engine="spark").findings)


def test_query_replaces_the_log(clicks_table: str, table: pa.Table, spark: Any) -> None:
    sql = "SELECT * FROM source WHERE query_id < 100"
    found = posbias.harvest(posbias.ClickLog(clicks_table, sql=sql), engine="spark")
    assert_same(found, posbias.harvest(posbias.ClickLog(table, sql=sql), engine="duckdb"))


def test_views_of_the_session_are_not_changed(spark: Any, table: pa.Table) -> None:
    spark.range(3).createOrReplaceTempView("log")
    before = spark.sql("SHOW VIEWS").collect()
    posbias.harvest(posbias.ClickLog(spark.createDataFrame(table)))
    assert spark.table("log").count() == 3
    assert spark.sql("SHOW VIEWS").collect() == before
    spark.catalog.dropTempView("log")


def test_columns_that_differ_only_by_case(spark: Any, table: pa.Table, expected: posbias.Harvest) -> None:
    twins = table.append_column("CLICKED", pa.array(["x"] * table.num_rows))
    assert_same(posbias.harvest(posbias.ClickLog(twins), engine="spark"), expected)


def test_progress_is_reported(spark: Any, table: pa.Table) -> None:
    told: list[tuple[str, float]] = []
    posbias.harvest(posbias.ClickLog(table), engine="spark", progress=lambda *seen: told.append(seen))
    assert told[0] == ("Harvesting", 0.0)
    assert all(0.0 <= share <= 1.0 for _, share in told)


# ---- Plans


def plan_of(spark: Any, source: Any, query: Any, known: bool) -> str:
    """The physical plan of a harvest's query."""
    settings = HarvestSettings(10, (), "traffic" if known else "harmonic", "share", MAX_STRATA)
    with open_log(posbias.ClickLog(source), engine="spark") as engine:
        plan = settings.plan(engine, known_rankers(engine) if known else ("a", "b"))
        return str(engine.frame(query(plan))._jdf.queryExecution().executedPlan().toString())  # type: ignore[attr-defined]


@pytest.mark.parametrize("layout", ["wide", "replay"])
def test_rows_are_aggregated_before_they_are_shuffled(layout: str, spark: Any, table: pa.Table) -> None:
    wide = layout == "wide"
    source = table if wide else table.drop_columns(["rank_a", "rank_b"])
    plan = plan_of(spark, source, signatures.signatures if wide else exposures.exposures, wide)
    # Read from the last step up: scan, partial aggregate, exchange, final aggregate.
    steps = [line for line in plan.splitlines() if "Aggregate(" in line or "Exchange hashpartitioning" in line]
    assert "partial_" in steps[-1], plan
    assert "Exchange hashpartitioning" in steps[-2], plan
    assert len([step for step in steps if "Exchange" in step]) == (1 if wide else 2), plan
    for python in ("PythonUDF", "BatchEvalPython", "ArrowEvalPython", "MapInPandas", "MapInArrow"):
        assert python not in plan


# ---- Intervals


def test_intervals_are_reproducible_and_agree_with_duckdbs(
    spark: Any, table: pa.Table, expected: posbias.Harvest
) -> None:
    log = posbias.ClickLog(table)
    once, again = (posbias.AllPairs().fit(posbias.harvest(log, engine="spark")) for _ in range(2))
    duckdb = posbias.AllPairs().fit(expected)
    np.testing.assert_array_equal(once.interval_, again.interval_)
    np.testing.assert_allclose(once.propensity_, duckdb.propensity_, rtol=1e-9)
    # Queries fall into other buckets, so widths differ by what 256 buckets leave to chance: a few per cent.
    width, other = (np.ptp(fit.interval_[1:], axis=1) for fit in (once, duckdb))
    np.testing.assert_allclose(width, other, rtol=0.25)


# ---- The command


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from posbias.cli import script; script()", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )


def with_settings(settings: dict[str, object]) -> list[str]:
    return [flag for name, value in settings.items() for flag in ("--spark-conf", f"{name}={value}")]


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replay log of which one query has a third of the rows."""
    table = posbias.simulate(posbias.World(queries=3000, repeats=10, seed=6), layout="replay")
    query = table["query_id"].to_numpy().copy()
    query[: len(query) // 3] = 0
    path = tmp_path_factory.mktemp("skewed") / "clicks.parquet"
    pq.write_table(table.set_column(table.column_names.index("query_id"), "query_id", pa.array(query)), path)
    return path


@pytest.mark.server
def test_skewed_queries_are_spread_over_tasks(skewed: Path, tmp_path: Path) -> None:
    sparks.require_java()
    events = tmp_path / "events"
    done = command(
        *("harvest", str(skewed), "-o", str(tmp_path / "harvest.parquet")),
        *("--engine", "spark", "--spark-master", "local[2]"),
        *with_settings(
            {
                **sparks.event_log(events),
                "spark.sql.shuffle.partitions": 8,
                "spark.sql.adaptive.enabled": "false",
                # Nothing but aggregates comes to the driver: it would refuse more than this.
                "spark.driver.maxResultSize": "4m",
            }
        ),
    )
    assert done.returncode == 0, done.stderr
    expected = posbias.harvest(posbias.ClickLog(skewed))
    assert_same(posbias.Harvest.load(tmp_path / "harvest.parquet"), expected)
    read: dict[int, list[int]] = {}
    for event in sparks.read_events(events):
        if event["Event"] == "SparkListenerTaskEnd":
            records = event["Task Metrics"]["Shuffle Read Metrics"]["Total Records Read"]
            read.setdefault(event["Stage ID"], []).append(records)
    stages = [records for records in read.values() if len(records) == 8 and sum(records) > 10_000]
    assert stages, read
    for records in stages:
        assert max(records) < 1.5 * np.mean(records), records


@pytest.mark.server
def test_command_prints_only_the_curve(tmp_path: Path, table: pa.Table, expected: posbias.Harvest) -> None:
    sparks.require_java()
    pq.write_table(table, tmp_path / "clicks.parquet")
    done = command(
        "estimate", str(tmp_path / "clicks.parquet"), "--json", "--estimator", "all-pairs", "--engine", "spark"
    )
    assert done.returncode == 0, done.stderr
    found = [p["propensity"] for p in json.loads(done.stdout)["positions"]]
    np.testing.assert_allclose(found, posbias.AllPairs().fit(expected).propensity_, rtol=1e-9)
    assert "Exception" not in done.stderr


@pytest.mark.server
def test_missing_java_error_says_what_to_install(tmp_path: Path, table: pa.Table) -> None:
    pq.write_table(table, tmp_path / "clicks.parquet")
    done = command("check", str(tmp_path / "clicks.parquet"), "--engine", "spark", PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 2
    assert "openjdk-17-jre-headless" in done.stderr
    assert done.stdout == ""


def test_missing_pyspark_error_says_what_to_install(table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(PosbiasError, match=r"pip install .*\[spark\]'"):
        posbias.harvest(posbias.ClickLog(table), engine="spark")


# ---- Errors


def test_duckdb_limits_are_rejected_with_spark() -> None:
    found = CliRunner().invoke(cli, ["check", "x.parquet", "--engine", "spark", "--memory-limit", "2GB"])
    assert found.exit_code == 2
    assert "spark.executor.memory" in found.stderr


def test_unknown_engine_is_rejected() -> None:
    with pytest.raises(PosbiasError, match="Unknown engine 'flink'"):
        posbias.harvest(posbias.ClickLog("x.parquet"), engine="flink")  # type: ignore[arg-type]


def test_duckdb_does_not_read_a_dataframe(spark: Any, table: pa.Table) -> None:
    with pytest.raises(PosbiasError, match="Spark DataFrame"):
        posbias.harvest(posbias.ClickLog(spark.createDataFrame(table)), engine="duckdb")


@pytest.mark.parametrize("source", ["no_such_table", "no/such/file.parquet"])
def test_missing_sources_are_errors(source: str, spark: Any) -> None:
    with pytest.raises(PosbiasError, match="There is no file"):
        posbias.harvest(posbias.ClickLog(source), engine="spark")


def test_truncated_file_is_an_error(tmp_path: Path, table: pa.Table, spark: Any) -> None:
    pq.write_table(table, tmp_path / "whole.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "whole.parquet").read_bytes()[:-500])
    (tmp_path / "whole.parquet").unlink()
    found = posbias.check(posbias.ClickLog(tmp_path), engine="spark")
    assert [p.code for p in found.findings] == ["damaged-file"]


def test_spark_flags_require_the_spark_engine(tmp_path: Path) -> None:
    done = command("check", str(tmp_path), "--spark-master", "local[1]")
    assert done.returncode == 2
    assert "--engine spark" in done.stderr
    done = command("check", str(tmp_path), "--engine", "spark", "--spark-conf", "memory")
    assert done.returncode == 2
    assert "NAME=VALUE" in done.stderr


@pytest.mark.server
def test_an_error_of_a_query_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pq.write_table(posbias.simulate(posbias.World(queries=20, max_rank=3)), tmp_path / "log.parquet")
    log = posbias.ClickLog(tmp_path / "log.parquet", sql="SELECT * FROM nowhere")
    with pytest.raises(posbias.LogError, match=r"`nowhere` cannot be found\. Check the query") as raised:
        posbias.harvest(log, engine=posbias.Spark(sparks.session()))
    assert len(str(raised.value)) < 300
    # PySpark would log the same error as JSON with a Java stack.
    assert "SQLQueryContextLogger" not in "".join(capfd.readouterr())


# ---- Samples, time and the profile


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Replay logs in which one ranker served before the other, by the type of their column `time`."""
    table = posbias.simulate(posbias.World(queries=200, repeats=8, seed=3), layout="replay")
    second = np.array(table["ranker"].to_pylist()) == "b"
    hours = np.array(table["impression_id"].to_pylist()) % 500 + 500 * second
    moments = [datetime(2026, 1, 1) + timedelta(hours=int(hour)) for hour in hours]
    columns = {
        "timestamp": pa.array(moments, pa.timestamp("us")),
        "timestamp with time zone": pa.array(moments, pa.timestamp("us", "UTC")),
        "date": pa.array([moment.date() for moment in moments]),
        "number": pa.array(hours),
        "text": pa.array([moment.date().isoformat() for moment in moments]),
    }
    folder = tmp_path_factory.mktemp("timed")
    for name, column in columns.items():
        pq.write_table(table.append_column("time", column), folder / f"{name}.parquet")
    return {name: folder / f"{name}.parquet" for name in columns}


@pytest.mark.parametrize("kind", ["timestamp", "timestamp with time zone", "date", "number", "text"])
@pytest.mark.filterwarnings("ignore::posbias.PosbiasWarning")
def test_rankers_that_followed_each_other_are_found(kind: str, timed: dict[str, Path], spark: Any) -> None:
    log = posbias.ClickLog(timed[kind], time="time")
    found, expected = (posbias.harvest(log, engine=engine).findings for engine in ("spark", "duckdb"))
    assert [finding.code for finding in found] == ["rankers-replaced"]
    assert found[0].evidence == pytest.approx(expected[0].evidence)


@pytest.mark.filterwarnings("ignore::posbias.PosbiasWarning")
def test_a_diagnosis_compares_within_windows_of_time(
    timed: dict[str, Path], spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The histogram of clicks, the largest queries and the windows are counted as by DuckDB."""
    log = posbias.ClickLog(timed["timestamp"], time="time")
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(diagnose_module, "diagnose_harvest", lambda harvest, **counts: given.append(counts))
    for engine in ("spark", "duckdb"):
        posbias.diagnose(log, engine=engine)
    found, expected = given
    assert found["within"] is not None
    np.testing.assert_array_equal(found["within"].impressions, expected["within"].impressions)
    np.testing.assert_array_equal(found["within"].clicks, expected["within"].clicks)
    np.testing.assert_array_equal(found["page_clicks"].histogram, expected["page_clicks"].histogram)
    # Buckets are others than DuckDB's, but each has the query with most of its clicks.
    assert found["largest_queries"].keys() <= set(range(256))
    assert all(0 < query.share <= 1 and int(query.name) < 200 for query in found["largest_queries"].values())
    assert len(found["largest_queries"]) > 100


def test_a_harvest_of_files_is_one_query(
    tmp_path: Path, table: pa.Table, spark: Any, monkeypatch: pytest.MonkeyPatch, expected: posbias.Harvest
) -> None:
    """Samples of Parquet files are read without a job, and their findings are those of DuckDB."""
    pq.write_table(table, tmp_path / "clicks.parquet")
    queries: list[str] = []
    frame = SparkLog.frame
    monkeypatch.setattr(SparkLog, "frame", lambda self, sql: queries.append(sql) or frame(self, sql))
    assert_same(posbias.harvest(posbias.ClickLog(tmp_path / "clicks.parquet"), engine="spark"), expected)
    assert len(queries) == 1


def test_samples_of_a_data_frame_are_one_job(
    table: pa.Table, spark: Any, monkeypatch: pytest.MonkeyPatch, expected: posbias.Harvest
) -> None:
    queries: list[str] = []
    frame = SparkLog.frame
    monkeypatch.setattr(SparkLog, "frame", lambda self, sql: queries.append(sql) or frame(self, sql))
    assert_same(posbias.harvest(posbias.ClickLog(spark.createDataFrame(table))), expected)
    assert len(queries) == 2


def test_samples_of_files_find_what_is_wrong(tmp_path: Path, table: pa.Table, spark: Any) -> None:
    """A tenth of the page views was written twice."""
    again = table.filter(pc.equal(pc.bit_wise_and(table["impression_id"], 7), 0))
    pq.write_table(pa.concat_tables([table, again]), tmp_path / "clicks.parquet")
    log = posbias.ClickLog(tmp_path / "clicks.parquet")
    frame = posbias.ClickLog(spark.read.parquet(str(tmp_path / "clicks.parquet")))
    logs = [(log, "duckdb"), (log, "spark"), (frame, "spark")]
    with pytest.warns(posbias.PosbiasWarning):
        expected, *others = (posbias.harvest(log, engine=engine, force=True).findings for log, engine in logs)
    assert expected
    for found in others:
        assert [(one.code, one.count) for one in found] == [(one.code, one.count) for one in expected]


@pytest.mark.parametrize("one_in", [1, 10], ids=["all", "a tenth"])
@pytest.mark.parametrize("page_view", ["", "x", None])
def test_samples_of_a_data_frame_show_one_id_of_many_page_views(
    page_view: str | None, one_in: int, table: pa.Table, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample by hash of the ids may have no row of that id."""
    ids = table.schema.get_field_index("impression_id")
    views = table["impression_id"].to_pylist()
    shared = pa.array([page_view if view % one_in == 0 else str(view) for view in views], pa.string())
    constant = table.set_column(ids, "impression_id", shared)
    monkeypatch.setattr(row_checks, "SAMPLE_ROWS", 500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = posbias.harvest(posbias.ClickLog(spark.createDataFrame(constant)), force=True).findings
    mixed = "several-rankers-in-page-view" in [finding.code for finding in found]
    assert mixed == (page_view is not None)


def test_the_profile_has_rows_of_queries(
    tmp_path: Path, table: pa.Table, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(table, tmp_path / "clicks.parquet")
    monkeypatch.setenv("POSBIAS_PROFILE", "1")
    harvest = posbias.harvest(posbias.ClickLog(tmp_path / "clicks.parquet"), engine="spark")
    print_profile()
    lines = [line.split() for line in capsys.readouterr().err.splitlines()]
    harvesting = next(words for words in lines if words[:1] == ["Harvesting"])
    assert harvesting[-2] == f"{table.num_rows:,}"
    assert int(harvesting[-1].replace(",", "")) >= len(harvest.table) / 2


@pytest.mark.parametrize(
    ("run", "queries"),
    [
        (
            lambda log: posbias.CrossFit().fit(posbias.harvest(log, engine="spark")),
            ["Harvesting"],
        ),
        (
            lambda log: posbias.check(log, engine="spark"),
            ["Counting clicks of page views", "Checking pages with many clicks"],
        ),
    ],
    ids=["estimate", "check"],
)
def test_estimates_and_checks_have_a_profile(
    run: Callable[[posbias.ClickLog], object],
    queries: list[str],
    tmp_path: Path,
    table: pa.Table,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pq.write_table(table, tmp_path / "clicks.parquet")
    monkeypatch.setenv("POSBIAS_PROFILE", "1")
    run(posbias.ClickLog(tmp_path / "clicks.parquet"))
    print_profile()
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    for name in queries:
        row = next(line for line in lines if line.startswith(name))
        assert f"{table.num_rows:,}" in row.split()
