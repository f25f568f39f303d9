"""Measure ratios of times: medians of repeated runs, alternating both sides so that both see the same load."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Ratio:
    """One comparison: what was measured, the baseline, and the largest allowed ratio."""

    what: str
    against: str
    seconds: float
    base_seconds: float
    promise: str

    @property
    def ratio(self) -> float:
        return self.seconds / self.base_seconds

    def row(self) -> str:
        broken = " **broken**" if self.ratio > float(self.promise) else ""
        return (
            f"| {self.what} | {self.against} | {self.seconds:.2f} s | {self.base_seconds:.2f} s | "
            f"**{self.ratio:.2f}** | {self.promise}{broken} |"
        )


def compare(
    what: str, run: Callable[[], object], against: str, base: Callable[[], object], *, repeats: int, promise: str
) -> Ratio:
    """Run two functions alternately and return the ratio of their median times; the first round is a warm-up."""
    times: tuple[list[float], list[float]] = ([], [])
    for round_ in range(repeats + 1):
        for side, function in enumerate((run, base)):
            start = time.perf_counter()
            function()
            if round_ > 0:
                times[side].append(time.perf_counter() - start)
    return Ratio(what, against, statistics.median(times[0]), statistics.median(times[1]), promise)


def table(ratios: Sequence[Ratio]) -> str:
    head = "| what | against | time | time of that | ratio | at most |\n| --- | --- | ---: | ---: | ---: | --- |"
    return "\n".join([head, *(r.row() for r in ratios)])


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
