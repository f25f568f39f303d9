"""Measure ratios of times: medians of repeated runs, alternating both sides so that both see the same load."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
# The command `posbias` of this environment.
COMMAND = str(Path(sys.executable).with_name("posbias"))


@dataclass(frozen=True)
class Ratio:
    """One comparison: what was measured, the baseline, and the largest allowed ratio.

    The CPU time is that of all threads and of the commands that were run. Other load on the machine changes it less
    than the time on the clock.
    """

    what: str
    against: str
    seconds: float
    base_seconds: float
    cpu_seconds: float
    base_cpu_seconds: float
    promise: str

    @property
    def ratio(self) -> float:
        return self.seconds / self.base_seconds

    @property
    def cpu_ratio(self) -> float:
        return self.cpu_seconds / self.base_cpu_seconds

    def row(self) -> str:
        broken = " **broken**" if max(self.ratio, self.cpu_ratio) > float(self.promise) else ""
        return (
            f"| {self.what} | {self.against} | {self.seconds:.2f} s | {self.base_seconds:.2f} s | "
            f"**{self.ratio:.2f}** | {self.cpu_ratio:.2f} | {self.promise}{broken} |"
        )


def compare(
    what: str, run: Callable[[], object], against: str, base: Callable[[], object], *, repeats: int, promise: str
) -> Ratio:
    """Run two functions alternately and return the ratio of their median times; the first round is a warm-up."""
    times: tuple[list[float], list[float]] = ([], [])
    cpu_times: tuple[list[float], list[float]] = ([], [])
    for round_ in range(repeats + 1):
        for side, function in enumerate((run, base)):
            start, cpu_start = time.perf_counter(), _cpu_seconds()
            function()
            if round_ > 0:
                times[side].append(time.perf_counter() - start)
                cpu_times[side].append(_cpu_seconds() - cpu_start)
    seconds, base_seconds, cpu, base_cpu = (statistics.median(side) for side in (*times, *cpu_times))
    return Ratio(what, against, seconds, base_seconds, cpu, base_cpu, promise)


def run_command(*words: str) -> None:
    """Run a command without its output, and with compiled modules, as an installed package has them.

    `posbias diagnose` ends with 1 if it finds a problem in the data, which is no failure.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    found = done.returncode == 1 and "diagnose" in words and "Traceback" not in done.stderr
    if done.returncode and not found:
        raise SystemExit(f"`{' '.join(words)}` failed with {done.returncode}:\n{done.stderr}")


def cpu_seconds_of(command: Sequence[str]) -> float:
    """Run a command; return its CPU time. Call this in a small process."""
    start = _cpu_seconds()
    run_command(*command)
    return _cpu_seconds() - start


def _cpu_seconds() -> float:
    """Return the CPU time that this process and its finished child processes have used."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def table(ratios: Sequence[Ratio]) -> str:
    head = "| what | against | time | time of that | ratio | CPU ratio | at most |"
    return "\n".join([head, "| --- | --- | ---: | ---: | ---: | ---: | --- |", *(r.row() for r in ratios)])


def load_average() -> str:
    """Return how busy the machine is: the processes that wanted to run, on average over 1, 5 and 15 minutes."""
    return ", ".join(f"{load:.1f}" for load in os.getloadavg())


def in_small_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a new Python process.

    On Linux, the peak memory of a program starts from that of its parent process. So programs are started from small
    processes, whatever the memory use of the caller.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def run_measured(command: Sequence[str]) -> tuple[float, float]:
    """Run a command; return its time in seconds and its peak memory in GiB. Call this in a small process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"`{' '.join(command)}` failed with {os.waitstatus_to_exitcode(status)}")
    # Linux counts memory in KB.
    return time.perf_counter() - start, usage.ru_maxrss / 2**20
