"""Published experiments that need no log: a swap experiment of Wikimedia, and a simulation of Magnani and Xie.

Both repeat a published computation with the estimators of posbias. docs/real_data.md discusses the results.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log, sqrt
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from scipy.stats import norm

from experiments.figures import Line, draw_curves, draw_settings
from experiments.outcomes import Outcome, make_verdict
from posbias import AdjacentChain, AllPairs, ClickLog, CrossFit, harvest
from posbias._arrays import FloatArray
from posbias.estimators import Estimator

# ---- Wikimedia: ranks 2 and 3 swapped


class Rate(NamedTuple):
    """A click rate in percent with the half width of its 95% interval, as read from the figure of the report."""

    percent: float
    half_width: float

    @property
    def variance_of_log(self) -> float:
        """The variance of the logarithm of the rate (delta method)."""
        return float((self.half_width / norm.ppf(0.975) / self.percent) ** 2)


class Swap(NamedTuple):
    """The click rates at ranks 2 and 3 in the control group and in the group where the two results were swapped."""

    counted: str
    second: Rate
    third: Rate
    swapped_second: Rate
    swapped_third: Rate

    def ratios(self) -> list[tuple[float, float]]:
        """Return log p₃/p₂ and its variance for the engine's second result, then for its third.

        The same result is compared with itself: at rank 3 in one group, at rank 2 in the other.
        """
        pairs = [(self.swapped_third, self.second), (self.third, self.swapped_second)]
        return [(log(low.percent / high.percent), low.variance_of_log + high.variance_of_log) for low, high in pairs]


# Figure 2 of the report of wikimedia-research/Discovery-Search-Test-Swap2and3 (CC BY 4.0), April 2016.
WIKIMEDIA = (
    Swap("searches", Rate(2.98, 0.07), Rate(1.55, 0.05), Rate(2.52, 0.08), Rate(1.97, 0.07)),
    Swap("sessions", Rate(4.93, 0.12), Rate(2.58, 0.08), Rate(3.66, 0.11), Rate(2.86, 0.10)),
)
# Its Table 2: sessions of the control group and of the swapped group. Half of the traffic was to be swapped.
WIKIMEDIA_SESSIONS = 157_713, 137_416


def run_wikimedia() -> Outcome:
    """Estimate p₃/p₂ from the swap of ranks 2 and 3, and test what the experiment assumes."""
    rows: list[dict[str, Any]] = []
    verdicts = []
    for swap in WIKIMEDIA:
        ratios = swap.ratios()
        weights = np.array([1 / variance for _, variance in ratios])
        mean = float(np.average([value for value, _ in ratios], weights=weights))
        error = 1 / sqrt(weights.sum())
        difference = ratios[1][0] - ratios[0][0]
        z = difference / sqrt(ratios[0][1] + ratios[1][1])
        p_value = 2 * float(norm.sf(abs(z)))
        estimates = [
            ("second result", *ratios[0]),
            ("third result", *ratios[1]),
            ("both", mean, error**2),
            (
                "click rates of the control group",
                log(swap.third.percent / swap.second.percent),
                swap.third.variance_of_log + swap.second.variance_of_log,
            ),
        ]
        rows += [_ratio_row(swap.counted, *each) for each in estimates]
        verdicts.append(
            make_verdict(
                f"One curve fits both results, counted by {swap.counted}",
                f"p₃/p₂ {exp(ratios[0][0]):.2f} and {exp(ratios[1][0]):.2f}, p = {p_value:.2g}",
                p_value > 0.01,
            )
        )
    control, swapped = WIKIMEDIA_SESSIONS
    z = (control - swapped) / sqrt(control + swapped)
    verdicts.append(
        make_verdict(
            "Half of the sessions were swapped, as planned",
            f"{swapped:,} of {control + swapped:,} ({swapped / (control + swapped):.1%}), z = {-z:.0f}",
            abs(z) < norm.ppf(0.995),
        )
    )
    kinds = list(dict.fromkeys(row["of"] for row in rows))
    drawn = {
        swap.counted: np.array(
            [(row["ratio"], row["ratio"] * row["error"]) for row in rows if row["counted"] == swap.counted]
        ).T
        for swap in WIKIMEDIA
    }
    figure = draw_settings(kinds, drawn, "p₃/p₂", (0.0, 0.0), (0.4, 0.8))
    notes = [
        "The propensities are relative to rank 2, because nothing was swapped with rank 1.",
        "counted by  of                                p3/p2  interval",
        *(
            f"{row['counted']:10}  {row['of']:32}  {row['ratio']:5.3f}  {row['low']:.3f} – {row['high']:.3f}"
            for row in rows
        ),
    ]
    return Outcome("real-wikimedia", rows, figure, tuple(verdicts), notes=tuple(notes))


def _ratio_row(counted: str, of: str, value: float, variance: float) -> dict[str, Any]:
    half = norm.ppf(0.975) * sqrt(variance)
    limits = {"low": exp(value - half), "high": exp(value + half)}
    return {"counted": counted, "of": of, "ratio": exp(value), "error": sqrt(variance), **limits}


# ---- Magnani and Xie: adjacent ranks with very unequal numbers of impressions

# paper/simple_synthetic_mod.py of alemagnani/ultr-bias-toolkit: 10 documents for each pair of adjacent ranks, half of
# them with 100 impressions and half with 5, of which 80% at the upper rank; then 5 documents for three other pairs.
_RANKS = 10
_DOCUMENTS = 10
_SEED = 42
_EXTRA = ((1, 5), (2, 6), (3, 7))
# Their table says 100 runs. Its numbers for AdjacentChain are those of 30 runs, the number in their script.
RUNS = 30
PUBLISHED = {
    ("AdjacentChain", "uniform"): (0.105545, 2.526793),
    ("AdjacentChain", "min"): (0.000267, 0.006209),
    ("AllPairs", "uniform"): (0.004788, 0.043519),
    ("AllPairs", "min"): (0.000078, 0.003395),
}


def run_magnani(runs: int = RUNS) -> Outcome:
    """Repeat Magnani and Xie's simulation on the same random numbers, with the estimators of posbias."""
    estimators: dict[tuple[str, str], Estimator[Any]] = {
        (kind.__name__, weighting): kind(weighting=weighting, interval=None)
        for kind in (AdjacentChain, AllPairs)
        for weighting in ("uniform", "min", "harmonic")
    }
    estimators["CrossFit", ""] = CrossFit(interval=None)
    estimates: dict[tuple[str, str], list[FloatArray]] = {key: [] for key in estimators}
    for run in range(runs):
        counted = harvest(ClickLog(magnani_log(np.random.RandomState(_SEED + run))), max_rank=_RANKS)
        for key, estimator in estimators.items():
            estimates[key].append(estimator.fit(counted).propensity_)
    truth = 1 / np.arange(1, _RANKS + 1)
    rows: list[dict[str, Any]] = []
    for (name, weighting), curves in estimates.items():
        bias, variance = bias_and_variance(np.array(curves), truth)
        published = PUBLISHED.get((name, weighting), (float("nan"), float("nan")))
        rows.append(
            {
                "estimator": name,
                "weighting": weighting,
                "squared_bias": bias,
                "variance": variance,
                "published_squared_bias": published[0],
                "published_variance": published[1],
            }
        )
    chain = [row for row in rows if row["estimator"] == "AdjacentChain" and row["weighting"] != "harmonic"]
    same = [
        np.isclose(row[key], row[f"published_{key}"], rtol=0, atol=5e-7)
        for row in chain
        for key in ("squared_bias", "variance")
    ]
    verdict = make_verdict(
        "AdjacentChain gives the published numbers to the last digit",
        f"{sum(same)} of {len(same)} numbers are the same",
        all(same),
        enough=runs == RUNS,
    )
    lines = [
        Line(name, np.mean(estimates[name, weighting], axis=0))
        for name, weighting in (("AllPairs", "min"), ("CrossFit", ""))
    ]
    notes = [
        f"Means over ranks of the squared bias and of the variance over {runs} logs: ours, then published.",
        "estimator      weighting     bias²  variance     bias²  variance",
        *map(_format_row, rows),
    ]
    return Outcome("real-magnani", rows, draw_curves(lines, bands=False, truth=truth), (verdict,), notes=tuple(notes))


def _format_row(row: dict[str, Any]) -> str:
    def number(value: float) -> str:
        return "–" if np.isnan(value) else f"{value:.6f}"

    names = f"{row['estimator']:13}  {row['weighting'] or '–':9}"
    ours = f"{number(row['squared_bias']):>8}  {number(row['variance']):>8}"
    return f"{names}  {ours}  {number(row['published_squared_bias']):>8}  {number(row['published_variance']):>8}"


def magnani_log(rng: np.random.RandomState) -> pa.Table:
    """Draw one log of the design, aggregated by document and rank. The order of the draws is theirs."""
    rows = list(_magnani_rows(rng))
    names = ("doc_id", "position", "impressions", "clicks")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return pa.table({"query_id": [0] * len(rows), **columns})


def _magnani_rows(rng: np.random.RandomState) -> Iterator[tuple[int, int, int, int]]:
    adjacent = [
        ((rank, rank + 1), (80, 20) if number < _DOCUMENTS / 2 else (4, 1))
        for rank in range(1, _RANKS)
        for number in range(_DOCUMENTS)
    ]
    other = [(ranks, (13, 13)) for ranks in _EXTRA for _ in range(5)]
    for doc, (ranks, shown) in enumerate(adjacent + other):
        relevance = 0.3 + 0.5 * rng.random_sample()
        for rank, impressions in zip(ranks, shown, strict=True):
            yield doc, rank, impressions, int(rng.binomial(impressions, relevance / rank))


def bias_and_variance(curves: FloatArray, truth: FloatArray) -> tuple[float, float]:
    """Return the means over ranks of the squared bias and of the variance of curves, (runs, ranks).

    Example:
        >>> bias_and_variance(np.array([[1.0, 0.4], [1.0, 0.8]]), np.array([1.0, 0.5]))
        (0.005, 0.02)
    """
    return round(float(np.mean((curves.mean(axis=0) - truth) ** 2)), 12), round(float(curves.var(axis=0).mean()), 12)
