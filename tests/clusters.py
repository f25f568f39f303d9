"""A standalone Spark cluster on the loopback: a master and workers, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from .sparks import require_java

SPARK = Path(pyspark.__file__).parent
HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def ask(url: str) -> Any:
    """Return the JSON that a page of Spark answers with, None while it does not."""
    try:
        with urllib.request.urlopen(url, timeout=5) as page:
            return json.load(page)
    except (OSError, ValueError):
        return None


def wait_until(condition: Any, what: str, seconds: float = 180) -> Any:
    """Return the first true value of a condition, tried until it is."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"waited {seconds} s in vain for {what}")


@dataclass
class Cluster:
    """A running cluster: where its master answers, and the processes of its workers."""

    url: str
    page: str
    workers: list[subprocess.Popen[bytes]]

    def alive(self) -> int:
        """How many workers the master counts on."""
        return (ask(f"{self.page}/json/") or {}).get("aliveworkers", 0)

    def kill_worker(self, number: int) -> None:
        """Kill a worker and the executors it runs, without a chance to say goodbye."""
        os.killpg(self.workers[number].pid, signal.SIGKILL)
        self.workers[number].wait()


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start a master and workers of one core each, and stop them at the end."""
    require_java()
    port, page = free_port(), free_port()
    environment = os.environ | {
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": HOST,
        # A worker that is silent is given up sooner than after a minute. Workers must know it too: they speak up
        # four times as often.
        "SPARK_MASTER_OPTS": "-Dspark.worker.timeout=20",
        "SPARK_WORKER_OPTS": "-Dspark.worker.timeout=20",
        "SPARK_DAEMON_MEMORY": "256m",
    }

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(folder / f"{name}.log", "wb") as log:
            # In a group of its own, so that a worker is killed together with its executors.
            return subprocess.Popen(
                [str(SPARK / "bin" / "spark-class"), *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    url = f"spark://{HOST}:{port}"
    running = [
        start(
            "master",
            *("org.apache.spark.deploy.master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(page)),
        )
    ]
    try:
        for i in range(workers):
            running.append(
                start(
                    f"worker-{i}",
                    *("org.apache.spark.deploy.worker.Worker", "--host", HOST, "--cores", "1", "--memory", "1g"),
                    *("--webui-port", str(free_port()), "--work-dir", str(folder / f"work-{i}"), url),
                )
            )
        started = Cluster(url, f"http://{HOST}:{page}", running[1:])
        wait_until(lambda: started.alive() == workers, f"{workers} workers")
        yield started
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
