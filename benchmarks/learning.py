"""Measure learning on 5 million rows: one call of each objective, and the worked example from end to end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars

from benchmarks import data
from benchmarks.timing import in_small_process, load_average, run_measured
from posbias.objectives import pairwise_ips, poisson_exposure, softmax_ips

_ROWS = 5_000_000
_QUERIES, _CANDIDATES, _FEATURES, _RANKS = 20_000, 20, 10, 10
_EXAMPLE = Path(__file__).parents[1] / "examples" / "better_ranker.py"


def to_markdown() -> str:
    lines = ["| objective, 5 million rows | CPU of a call | at most |", "| --- | ---: | --- |"]
    lines += [f"| `{name}` | {seconds:.2f} s | 1 s |" for name, seconds in gradient_seconds().items()]
    data.DATA.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=data.DATA) as folder:
        write_events(Path(folder))
        command = [sys.executable, str(_EXAMPLE), folder]
        before = load_average()
        seconds, cpu, memory = in_small_process(run_example, command)
    lines += [
        "",
        f"`examples/better_ranker.py` with {_ROWS // 10**6} million results shown, {_QUERIES:,} queries of "
        f"{_CANDIDATES} candidates and {_FEATURES} features: {seconds:.0f} s on the clock, {cpu:.0f} s of CPU, and at "
        f"most {memory:.1f} GiB. At most a minute is promised. Load average of the machine before: {before}. Command: "
        "`python -m benchmarks --parts learning`.",
    ]
    return "\n".join(lines)


def run_example(command: Sequence[str]) -> tuple[float, float, float]:
    """Return the seconds on the clock and of CPU, and the peak memory in GiB. Call this in a small process."""
    start, cpu_start = time.perf_counter(), os.times()
    _, memory = run_measured(command)
    cpu = os.times()
    used = cpu.children_user + cpu.children_system - cpu_start.children_user - cpu_start.children_system
    return time.perf_counter() - start, used, memory


def gradient_seconds() -> dict[str, float]:
    """Return the CPU time of a call of each objective, the least of three."""
    rng = np.random.default_rng(0)
    groups = np.full(_ROWS // _RANKS, _RANKS)
    scores, exposure = rng.normal(size=_ROWS), 0.1 + rng.exponential(size=_ROWS)
    weights = np.where(rng.random(_ROWS) < 0.1, rng.exponential(size=_ROWS), 0.0)
    calls: dict[str, tuple[Callable[..., Any], Any]] = {
        "softmax_ips": (softmax_ips, groups),
        "pairwise_ips": (pairwise_ips, groups),
        "poisson_exposure": (poisson_exposure, exposure),
    }
    found = {}
    for name, (objective, last) in calls.items():
        times = []
        for _ in range(3):
            start = time.process_time()
            objective(scores, weights, last)
            times.append(time.process_time() - start)
        found[name] = min(times)
    return found


def write_events(folder: Path) -> None:
    """Write pages of two rankers, clicks on them and the features of all candidates, as the example reads them."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(_QUERIES, _CANDIDATES, _FEATURES))
    score = features[:, :, :4].sum(axis=2) + features[:, :, 4] * features[:, :, 5]
    relevance = np.clip(np.exp(0.5 * score - 2), 0, 0.9)
    rankings = [np.argsort(-score - 3 * rng.normal(size=score.shape), axis=1)[:, :_RANKS] for _ in range(2)]
    views = _ROWS // _RANKS
    query, ranker = rng.integers(0, _QUERIES, views), rng.integers(0, 2, views)
    place = np.where(ranker[:, None] == 0, rankings[0][query], rankings[1][query])
    documents = query[:, None] * _CANDIDATES + place
    clicked = rng.random(place.shape) < relevance[query[:, None], place] / np.arange(1, _RANKS + 1)
    pages = {"impression_id": np.arange(views), "query_id": query, "ranker": np.array(["a", "b"])[ranker]}
    polars.DataFrame(pages | {"doc_ids": documents.tolist()}).write_parquet(folder / "impressions.parquet")
    view, rank = np.nonzero(clicked)
    clicks = {"impression_id": view, "doc_id": documents[view, rank]}
    polars.DataFrame(clicks).write_parquet(folder / "clicks.parquet")
    ids = {"query_id": np.repeat(np.arange(_QUERIES), _CANDIDATES), "doc_id": np.arange(_QUERIES * _CANDIDATES)}
    columns = {f"f{i}": column for i, column in enumerate(features.reshape(-1, _FEATURES).T)}
    polars.DataFrame(ids | columns).write_parquet(folder / "candidates.parquet")
