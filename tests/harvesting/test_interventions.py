"""ĉ and ¬ĉ by hand, on aggregated logs with very unequal counts.

The cases are those that Magnani and Xie test in their fork of ultr-bias-toolkit; the numbers are worked out here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import posbias
from tests.support.logs import WEIGHTINGS

Row = tuple[str, str, int, int, int]  # query, document, position, impressions, clicks

UNEQUAL: list[Row] = [
    ("1", "a", 1, 1000, 300),
    ("1", "a", 2, 100, 20),
    ("2", "b", 1, 500, 150),
    ("2", "b", 2, 2000, 500),
]
EXTREME: list[Row] = [
    ("1", "a", 1, 10_000, 3000),
    ("1", "a", 2, 10, 2),
    ("2", "b", 1, 20, 5),
    ("2", "b", 2, 5000, 1000),
]
EQUAL_RATES: list[Row] = [
    ("1", "a", 1, 500, 150),
    ("1", "a", 2, 100, 20),
    ("2", "b", 1, 200, 60),
    ("2", "b", 2, 800, 160),
]


def aggregated(rows: list[Row]) -> dict[str, Any]:
    names = ("query_id", "doc_id", "position", "impressions", "clicks")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def single(rows: list[Row]) -> dict[str, Any]:
    """Return the same log with a row for each impression."""
    shown = [(q, d, k, int(i < c)) for q, d, k, n, c in rows for i in range(n)]
    names = ("query_id", "doc_id", "position", "clicked")
    return dict(zip(names, map(list, zip(*shown, strict=True)), strict=True))


def tables(columns: dict[str, Any], weighting: str, max_rank: int = 2) -> tuple[np.ndarray, np.ndarray]:
    log = posbias.ClickLog(pa.table(columns))
    pairs = posbias.harvest(log, max_rank=max_rank, weighting=weighting, force=True).pairs()
    return pairs.clicks, pairs.skips


@pytest.mark.parametrize(
    ("rows", "weighting", "at_one", "at_two"),
    [
        # 300·100/1000 + 150·500/500, and 20·100/100 + 500·500/2000.
        (UNEQUAL, "min", 180, 145),
        # 3000·10/10000 + 5·20/20, and 2·10/10 + 1000·20/5000.
        (EXTREME, "min", 8, 6),
        # 150·100/500 + 60·200/200, and 20·100/100 + 160·200/800.
        (EQUAL_RATES, "min", 90, 60),
        # 150/500 + 60/200, and 20/100 + 160/800.
        (EQUAL_RATES, "uniform", 0.6, 0.4),
        # 0.3·(500·100/600 + 200·800/1000), and 0.2 of the same.
        (EQUAL_RATES, "harmonic", 0.3 * (500 / 6 + 160), 0.2 * (500 / 6 + 160)),
    ],
)
def test_clicks_by_hand(rows: list[Row], weighting: str, at_one: float, at_two: float) -> None:
    clicks, _ = tables(aggregated(rows), weighting)
    np.testing.assert_allclose([clicks[0, 1], clicks[1, 0]], [at_one, at_two], rtol=1e-12)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_rows_and_their_sums_are_the_same_log(weighting: str) -> None:
    rows = [(q, d, k, n // 10, c // 10) for q, d, k, n, c in UNEQUAL]
    for one, other in zip(tables(single(rows), weighting), tables(aggregated(rows), weighting), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_repeated_rows_are_added_up_before_they_are_weighted(weighting: str) -> None:
    halves = [(q, d, k, n - 7, c - 1) for q, d, k, n, c in UNEQUAL] + [(q, d, k, 7, 1) for q, d, k, _, _ in UNEQUAL]
    for one, other in zip(tables(aggregated(halves), weighting), tables(aggregated(UNEQUAL), weighting), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("weighting", ["min", "harmonic", "uniform"])
def test_documents_of_one_rank_do_not_count(weighting: str) -> None:
    still: list[Row] = [("1", "c", 1, 5000, 4000), ("3", "a", 2, 10**9, 10**8)]
    for one, other in zip(
        tables(aggregated(UNEQUAL + still), weighting), tables(aggregated(UNEQUAL), weighting), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("weighting", ["min", "harmonic", "uniform"])
def test_large_counts_scale_the_sums_and_keep_the_ratio(weighting: str) -> None:
    large = [(q, d, k, n * 10**6, c * 10**6) for q, d, k, n, c in EQUAL_RATES]
    clicks, skips = tables(aggregated(large), weighting)
    small, small_skips = tables(aggregated(EQUAL_RATES), weighting)
    factor = 1 if weighting == "uniform" else 10**6
    np.testing.assert_allclose(clicks, small * factor, rtol=1e-12)
    np.testing.assert_allclose(skips, small_skips * factor, rtol=1e-12)


def test_more_clicks_than_impressions_are_refused() -> None:
    with pytest.raises(posbias.PosbiasError, match="more clicks in 'clicks' than impressions"):
        tables(aggregated([("1", "a", 1, 5, 6), ("1", "a", 2, 5, 1)]), "min")


@pytest.mark.parametrize("weighting", ["min", "harmonic"])
def test_one_impression_cannot_outweigh_a_thousand(weighting: str) -> None:
    """A document seen once at a rank, and clicked, hardly moves the curve; with "uniform" it dominates."""
    steady: list[Row] = [("1", "a", 1, 1000, 400), ("1", "a", 2, 1000, 200)]
    once: list[Row] = [("2", "b", 1, 1000, 10), ("2", "b", 2, 1, 1)]
    ratio = {w: (lambda c: c[1, 0] / c[0, 1])(tables(aggregated(steady + once), w)[0]) for w in (weighting, "uniform")}
    assert ratio[weighting] == pytest.approx(0.5, abs=0.01)
    assert ratio["uniform"] > 2
