"""Test the harvest by the command on a standalone Spark cluster: ten million rows, and a worker that dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import posbias
from posbias.simulation import write
from tests.support.clusters import HOST, PATIENCE, TIMEOUTS, ask, cluster, free_port, wait_until
from tests.support.sparks import assert_same_counts, event_log, read_events

pytestmark = pytest.mark.server
ROWS = 10_000_000


def start_harvest(master: str, log: Path, output: Path, **settings: object) -> subprocess.Popen[str]:
    """Start `posbias harvest` on the cluster, with one executor on each worker and tasks that take a second."""
    conf = {
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.executor.cores": 1,
        "spark.executor.memory": "768m",
        "spark.network.timeout": TIMEOUTS["spark.network.timeout"],
        "spark.sql.shuffle.partitions": 4,
        # Results of a stage are lost with the worker that held them, and are computed again.
        "spark.sql.files.maxPartitionBytes": 2**20,
        **settings,
    }
    flags = [flag for name, value in conf.items() for flag in ("--spark-conf", f"{name}={value}")]
    command = ["harvest", str(log), "-o", str(output), "--engine", "spark", "--spark-master", master, *flags]
    return subprocess.Popen(
        [sys.executable, "-c", "from posbias.cli import script; script()", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(harvest: subprocess.Popen[str], output: Path) -> posbias.Harvest:
    try:
        _, errors = harvest.communicate(timeout=PATIENCE)
    finally:
        harvest.kill()
    assert harvest.returncode == 0, errors
    return posbias.Harvest.load(output)


def test_harvest_survives_a_killed_worker(tmp_path: Path) -> None:
    page, events, output = free_port(), tmp_path / "events", tmp_path / "harvest.parquet"
    log = tmp_path / "clicks.parquet"
    write(posbias.World(queries=ROWS // 100, repeats=10, seed=4), log)
    with cluster(tmp_path) as started:
        harvest = start_harvest(
            started.url,
            log,
            output,
            **{"spark.ui.enabled": "true", "spark.ui.port": page, **event_log(events)},
        )
        try:
            wait_until(lambda: harvest.poll() is not None or working_on_both(page), "tasks done by both executors")
            assert harvest.poll() is None, harvest.communicate()[1]
            started.kill_worker(0)
            found = finish(harvest, output)
        finally:
            harvest.kill()
    assert (found.about["engine"], found.about["rows"]) == ("spark", ROWS)
    assert_same_counts(found, posbias.harvest(posbias.ClickLog(log)))
    told = [event["Event"] for event in read_events(events)]
    assert "SparkListenerExecutorRemoved" in told, "the worker died too late to be missed"
    assert told.index("SparkListenerExecutorRemoved") < len(told) - 1 - told[::-1].index("SparkListenerTaskEnd")


def working_on_both(page: int) -> bool:
    """Whether both executors have done some tasks of the harvest and have others in work."""
    applications = ask(f"http://{HOST}:{page}/api/v1/applications") or [{}]
    executors = ask(f"http://{HOST}:{page}/api/v1/applications/{applications[0].get('id')}/executors") or []
    busy = [e for e in executors if e["id"] != "driver" and e["completedTasks"] > 1 and e["activeTasks"] > 0]
    return len(busy) == 2
