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
    """Return an engine as a test parameter, marked `server` if it needs more than Python."""
    return pytest.param(engine, marks=[] if engine == "duckdb" else [pytest.mark.server])


def require_java() -> None:
    """Skip a test without Java; in CI, fail it."""
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
    """Return the settings that make Spark write an event log."""
    folder.mkdir()
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": folder.as_uri(),
    }


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of the Spark event log, in order."""
    return [json.loads(line) for path in folder.rglob("events_*") for line in path.read_text().splitlines()]


def assert_same_counts(found: posbias.Harvest, expected: posbias.Harvest) -> None:
    """Assert that two engines have the same counts, except for buckets, whose hash depends on the engine."""
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
