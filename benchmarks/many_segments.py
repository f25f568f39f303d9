"""Measure time and memory of pooling ten thousand segments: `python -m benchmarks.many_segments`."""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import posbias
from benchmarks.timing import in_small_process
from posbias._arrays import FloatArray

# Ten severities of position bias; each shop has one of them, and ten queries with two views each.
_EVEN, _QUERIES, _REPEATS = np.linspace(0.6, 1.4, 10), 10, 2
# Severities with the normal distribution that pooling assumes.
_NORMAL = 1 + 0.25 * np.array([NormalDist().inv_cdf((i + 0.5) / 50) for i in range(50)])


def write_log(path: Path, segments: int, etas: FloatArray) -> int:
    """Write a wide log of two rankers with a column `shop`; return the number of rows."""
    each = segments // len(etas)
    parts = []
    for number, eta in enumerate(etas):
        world = posbias.World(queries=each * _QUERIES, repeats=_REPEATS, eta=float(eta), seed=number)
        table = posbias.simulate(world)
        query = pc.add(table["query_id"], number * world.queries)
        view = pc.add(table["impression_id"], number * world.queries * _REPEATS)
        table = table.set_column(table.schema.get_field_index("query_id"), "query_id", query)
        table = table.set_column(table.schema.get_field_index("impression_id"), "impression_id", view)
        parts.append(table.append_column("shop", pc.divide(query, _QUERIES)))
    whole = pa.concat_tables(parts)
    pq.write_table(whole, path)
    return int(whole.num_rows)


def harvest(path: Path, to: Path) -> str:
    """Harvest the log by shop, and describe the cost."""
    start, busy = time.perf_counter(), time.process_time()
    found = posbias.harvest(posbias.ClickLog(str(path)), by=["shop"])
    cost = f"harvest: {_elapsed(start, busy)}, {len(found.table):,} cells of {len(found.segments):,} segments"
    found.save(to)
    return cost


def fit(path: Path, severities: FloatArray) -> str:
    """Pool the segments of a harvest file, and describe the cost."""
    found = posbias.Harvest.load(path)
    before, start, busy = _peak(), time.perf_counter(), time.process_time()
    fitted = posbias.CrossFit(pool=True).fit(found)
    cost = f"{_elapsed(start, busy)}; at most {_peak():.2f} GiB, {before:.2f} of them from reading the harvest"
    ends = np.log([fitted.segments_[key].interval_[1:] for key in found.segments])
    etas = np.repeat(severities, len(found.segments) // len(severities))[[int(str(key[0])) for key in found.segments]]
    truth = -etas[:, None] * np.log(np.arange(2, found.max_rank + 1))
    coverage = np.mean((ends[:, :, 0] <= truth) & (truth <= ends[:, :, 1]))
    return f"CrossFit(pool=True): {cost}; {coverage:.1%} of its 95% intervals contain the truth"


def _elapsed(start: float, busy: float) -> str:
    return f"{time.perf_counter() - start:.1f} s, {time.process_time() - busy:.1f} s of one core"


def _peak() -> float:
    # Linux counts memory in KB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=10_000, help="the number of segments, a multiple of 50")
    parser.add_argument(
        "--normal", action="store_true", help="use normally distributed severities instead of equal steps"
    )
    parser.add_argument("--repeats", type=int, default=3, help="the number of repeated fits")
    options = parser.parse_args()
    etas = _NORMAL if options.normal else _EVEN
    with tempfile.TemporaryDirectory() as folder:
        log, counts = Path(folder) / "shops.parquet", Path(folder) / "shops.harvest"
        print(f"{in_small_process(write_log, log, options.segments, etas):,} rows", flush=True)
        print(in_small_process(harvest, log, counts), flush=True)
        for _ in range(options.repeats):
            print(in_small_process(fit, counts, etas), flush=True)


if __name__ == "__main__":
    main()
