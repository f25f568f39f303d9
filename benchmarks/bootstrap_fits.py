"""Compare a thousand bootstrap fits of AllPairs in one batch with one L-BFGS-B fit for each resample.

Both see the same resamples of one simulated log of three rankers. L-BFGS-B gets the analytic gradient, the objective
written on arrays, and the parametrisation in which it is fastest (log p and log r). It is timed twice: at tolerances
as tight as it can meet, and at scipy's own, which leave errors of a percent and more in p. It is run on some of the
resamples, and its time scaled up to all of them. Times are CPU seconds in a process with one BLAS thread: on arrays
this small a second one makes L-BFGS-B many times slower, and other work on the machine does not count.
"""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from scipy.optimize import OptimizeResult, minimize

from posbias.estimators.pair_estimators import maximise

FloatArray = npt.NDArray[np.float64]
Options = dict[str, float]

DEFAULT: Options = {"maxiter": 20_000, "maxfun": 50_000}
TIGHT: Options = {**DEFAULT, "ftol": 1e-14, "gtol": 1e-9}
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
AMPLE, THIN = 20_000, 50  # queries: with the second, many cells have a click or two, and the bounds bind


def simulate_table(max_rank: int, queries: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Simulate clicks and skips over S_{k,k'} in a log of three similar rankers, with p_k = 1/k."""
    documents = max_rank + max_rank // 4
    relevance = rng.beta(1, 3, (queries, documents))
    rankings = [
        np.argsort(np.argsort(-relevance + rng.normal(0, 0.1, relevance.shape), axis=1), axis=1) for _ in range(3)
    ]
    clicks, skips = np.zeros((2, max_rank, max_rank))
    for shown in rankings:
        clicked = rng.random(relevance.shape) < relevance / (1 + shown)
        for other in rankings:
            pairs = (shown != other) & (shown < max_rank) & (other < max_rank)
            np.add.at(clicks, (shown[pairs], other[pairs]), clicked[pairs])
            np.add.at(skips, (shown[pairs], other[pairs]), ~clicked[pairs])
    return clicks, skips


def fit_by_scipy(clicks: FloatArray, skips: FloatArray, options: Options) -> OptimizeResult:
    """Fit one table by L-BFGS-B on log p and log r, one r for each pair with clicks (of the others, it is 0)."""
    ranks = len(clicks)
    k, j = np.nonzero(np.triu(clicks + clicks.T, 1))
    ends = np.concatenate([k, j])
    total = clicks.sum() + skips.sum()
    c, n = (np.concatenate([counts[k, j], counts[j, k]]) / total for counts in (clicks, skips))

    def minus_objective(v: FloatArray) -> tuple[float, FloatArray]:
        z = v[ends] + np.tile(v[ranks:], 2)
        miss = -np.expm1(z)
        push = c - n * (1 - miss) / miss
        gradient = np.concatenate([np.bincount(ends, push, ranks), push[: len(k)] + push[len(k) :]])
        return -float(c @ z + n @ np.log(miss)), -gradient

    start = np.full(ranks + len(k), np.log(0.5))
    bounds = [(-30.0, -1e-9)] * len(start)
    return minimize(minus_objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)


def measure(
    max_rank: int, fits: int = 1000, scipy_fits: int = 10, repeats: int = 3, queries: int = AMPLE
) -> dict[str, float | int]:
    """Return the median CPU seconds for all fits, in a batch and by SciPy, with the error of SciPy in p.

    Each repeat gives SciPy other resamples, so that it is measured on `scipy_fits * repeats` of them.
    """
    # NumPy reads the number of BLAS threads when it is imported, so this needs a new process.
    with patch.dict(os.environ, ONE_THREAD), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure_here, max_rank, fits, scipy_fits, repeats, queries).result()


def measure_here(max_rank: int, fits: int, scipy_fits: int, repeats: int, queries: int) -> dict[str, float | int]:
    rng = np.random.default_rng(max_rank)
    observed = simulate_table(max_rank, queries, rng)
    clicks, skips = (rng.poisson(counts, (fits, max_rank, max_rank)).astype(float) for counts in observed)
    exact = maximise(clicks, skips)

    seconds: dict[str, list[float]] = {"batched": [], "tight": [], "default": []}
    errors: dict[str, list[float]] = {"tight": [], "default": []}
    binding = []
    for repeat in range(repeats):
        start = time.process_time()
        maximise(clicks, skips)
        seconds["batched"].append(time.process_time() - start)
        some = range(repeat * scipy_fits, (repeat + 1) * scipy_fits)
        for name, options in (("default", DEFAULT), ("tight", TIGHT)):
            start = time.process_time()
            results = [fit_by_scipy(clicks[b], skips[b], options) for b in some]
            seconds[name].append((time.process_time() - start) * fits / scipy_fits)
            for b, result in zip(some, results, strict=True):
                known = exact[b] > 0
                ratio = np.exp(result.x[:max_rank] - result.x[0])
                errors[name].append(float(np.abs(ratio[known] / exact[b][known] - 1).max()))
        binding += [bool(((result.x > -1e-8) & (result.jac < -1e-7)).any()) for result in results]

    batched, tight, default = (statistics.median(times) for times in seconds.values())
    return {
        "max_rank": max_rank,
        "queries": queries,
        "fits": fits,
        "scipy_fits": scipy_fits * repeats,
        "binding_share": statistics.mean(binding),
        "batched_seconds": batched,
        "tight_seconds": tight,
        "tight_error": statistics.median(errors["tight"]),
        "tight_ratio": tight / batched,
        "default_seconds": default,
        "default_error": statistics.median(errors["default"]),
        "default_ratio": default / batched,
    }


def to_markdown() -> str:
    """Measure and return the table, with what it shows."""
    lines = [
        "posbias solves all fits in one batch. The comparison is L-BFGS-B with the analytic gradient on each resample, "
        "measured on 30 of them and scaled up. Times are CPU seconds with one BLAS thread. *Error* is that of L-BFGS-B "
        "in p (the worst rank, median over fits): small at tight tolerances, and large at scipy's default ones. "
        "*Bounds bind* is the share of fits in which a p or r is at its bound. At least 100 times faster is "
        "promised at M = 10, at least 20 at M = 50. Command: "
        "`python -m benchmarks.bootstrap_fits`.",
        "",
        "| M | queries | bounds bind | batched | L-BFGS-B, tight | error | ratio | L-BFGS-B, default | error | ratio |",
        "|" + " ---: |" * 10,
    ]
    for max_rank in (10, 50):
        for queries in (AMPLE, THIN):
            m = measure(max_rank, queries=queries)
            lines.append(
                f"| {max_rank} | {queries:,} | {m['binding_share']:.0%} | {m['batched_seconds']:.3f} s "
                f"| {m['tight_seconds']:.1f} s | {m['tight_error']:.0e} | **{m['tight_ratio']:.0f}** "
                f"| {m['default_seconds']:.1f} s | {m['default_error']:.0e} | **{m['default_ratio']:.0f}** |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    print(to_markdown())
