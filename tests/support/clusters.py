"""A standalone Spark cluster on the loopback interface: a master and workers, each in its own process."""

from __future__ import annotations

import json
import os
import re
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

from tests.support.sparks import require_java

HOST = "127.0.0.1"
# In seconds, against hanging alone: on a busy machine Spark takes what it takes, and nobody is given up for silence.
# A process that is killed is missed at once, by its connections.
PATIENCE = 1800
TIMEOUTS = {"spark.network.timeout": f"{PATIENCE}s", "spark.worker.timeout": str(PATIENCE)}


def spark_home() -> Path:
    """Return the folder of Spark's programs."""
    # `make test` does without it.
    import pyspark

    return Path(pyspark.__file__).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def ask(url: str) -> Any:
    """Return the JSON of a Spark status page; None while it does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=5) as page:
            return json.load(page)
    except (OSError, ValueError):
        return None


def wait_until(condition: Any, what: str, seconds: float = PATIENCE) -> Any:
    """Poll a condition until it is true, and return its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"waited {seconds} s in vain for {what}")


def logged(log: Path, pattern: str) -> str | None:
    """Return the first match of a pattern in a log file."""
    found = re.search(pattern, log.read_text(errors="replace"))
    return found and found[0]


@dataclass
class Cluster:
    """A running cluster: the address of its master, and the processes of its workers."""

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
    """Start a master and workers with one core each; stop them on exit."""
    require_java()
    # Nothing compiled for long that runs for a minute.
    options = " ".join(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *(f"-D{n}={v}" for n, v in TIMEOUTS.items())])
    environment = os.environ | {
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_MASTER_OPTS": f"{options} -Dspark.master.rest.enabled=false",
        "SPARK_WORKER_OPTS": options,
        "SPARK_DAEMON_MEMORY": "256m",
    }

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(folder / f"{name}.log", "wb") as log:
            # In a group of its own, so that a worker is killed together with its executors.
            return subprocess.Popen(
                [str(spark_home() / "bin" / "spark-class"), *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    common = ("--host", HOST, "--webui-port", "0")
    running = [start("master", "org.apache.spark.deploy.master.Master", *common, "--port", "0")]
    try:
        # Spark finds ports that are free, and says which; a worker that came before its master would try again late.
        url = wait_until(lambda: logged(folder / "master.log", rf"spark://{HOST}:\d+"), "a master")
        page = wait_until(lambda: logged(folder / "master.log", r"http://\S+:\d+"), "the page of the master")
        for i in range(workers):
            limits = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{i}"))
            running.append(start(f"worker-{i}", "org.apache.spark.deploy.worker.Worker", *common, *limits, url))
        started = Cluster(url, page, running[1:])
        wait_until(lambda: started.alive() == workers, f"{workers} workers")
        yield started
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
