"""A Spark session on this machine, shared by the tests of one process."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import posbias
from posbias.engines.spark import start_session
from posbias.harvesting.tables import Cells, merge_equal_strata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Small logs and many queries: one partition, and nothing compiled that runs only once.
SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def on_server(engine: str) -> Any:
    """Return an engine as a parameter of tests, marked unless it needs nothing but Python."""
    return pytest.param(engine, marks=[] if engine == "duckdb" else [pytest.mark.server])


def require_java() -> None:
    """Skip a test where Java is missing, which in CI is a failure."""
    if shutil.which("java") is None:
        pytest.skip("Java is not installed: apt install openjdk-17-jre-headless")


@functools.cache
def session() -> SparkSession:
    """Return the session of this process, which is stopped when the process ends."""
    require_java()
    started = start_session("local[2]", SETTINGS)
    atexit.register(started.stop)
    return started


def event_log(folder: Path) -> dict[str, str]:
    """Return the settings by which Spark writes down what happened."""
    folder.mkdir()
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": folder.as_uri(),
    }


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Return what Spark wrote down, in order."""
    return [json.loads(line) for path in folder.rglob("events_*") for line in path.read_text().splitlines()]


def assert_same_counts(found: posbias.Harvest, expected: posbias.Harvest) -> None:
    """Two engines counted the same, to the last count: everything but the buckets, whose hash is the engine's own."""
    assert found.page_views == expected.page_views
    assert found.segments == expected.segments
    one, other = (_without_buckets(h).columns() for h in (found, expected))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    np.testing.assert_allclose(found.pairs().clicks, expected.pairs().clicks, rtol=1e-12)
    np.testing.assert_allclose(found.pairs().skips, expected.pairs().skips, rtol=1e-12)


def _without_buckets(harvest: posbias.Harvest) -> Cells:
    assert isinstance(harvest.table, Cells)
    return merge_equal_strata(
        Cells(**{**harvest.table.columns(), "bucket": np.zeros(len(harvest.table), dtype=np.int64)})
    )
