"""Blends of naive, IPS and Poisson rankers: shares by the number of clicks, any scale of scores, and errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from posbias.errors import PosbiasError
from posbias.objectives import blend_factors, cautious_factors, ips_share, naive_share


def test_factors_by_hand() -> None:
    # Within queries the scores are ±1 and ±2 about their mean, whatever the level of a query.
    ips, poisson, query = [11.0, 9.0, 1.0, -1.0], [2.0, -2.0, 5.0, 1.0], ["a", "a", "b", "b"]
    a, b = blend_factors(ips, poisson, query, effective_clicks=2_500)
    assert a == pytest.approx(50 / 150)
    assert b == pytest.approx((1 - 50 / 150) / 2)


def test_scale_and_level_of_scores_do_not_change_the_order() -> None:
    rng = np.random.default_rng(0)
    one, other, query = rng.standard_normal(40), rng.standard_normal(40), np.repeat(np.arange(8), 5)
    a, b = blend_factors(one, other, query, 500)
    level = rng.standard_normal(8)[query]
    scaled = 100 * one + level, other / 7 - 3 * level
    c, d = blend_factors(*scaled, query, 500)
    first, second = a * one + b * other, c * scaled[0] + d * scaled[1]
    for group in range(8):
        np.testing.assert_array_equal(np.argsort(first[query == group]), np.argsort(second[query == group]))


def test_the_share_of_ips_grows_with_clicks() -> None:
    shares = [ips_share(n) for n in (1e-9, 1, 100, 1e4, 1e6, 1e12)]
    assert shares == sorted(shares)
    assert shares[0] < 0.01
    assert shares[3] == 0.5
    assert shares[-1] > 0.99


def test_a_ranker_with_equal_scores_does_not_change_the_other() -> None:
    a, b = blend_factors([1.0, 1.0, 2.0, 2.0], [0.0, 1.0, 0.0, 1.0], [0, 0, 1, 1], 100)
    assert np.isfinite([a, b]).all()
    assert b > 0


def test_scores_that_differ_by_rounding_only_are_equal() -> None:
    ips = [2.0, 1.0, 4.0, 3.0]
    equal, rounded = ([0.3] * 4, [0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2])
    assert blend_factors(ips, rounded, [1, 1, 2, 2], 500) == blend_factors(ips, equal, [1, 1, 2, 2], 500)


def test_a_cautious_blend_corrects_less_with_few_clicks() -> None:
    naive, ips, poisson = [4.0, -4.0, 7.0, -1.0], [11.0, 9.0, 1.0, -1.0], [2.0, -2.0, 5.0, 1.0]
    query = ["a", "a", "b", "b"]
    a, b, c = cautious_factors(naive, ips, poisson, query, effective_clicks=300)
    one, other = blend_factors(ips, poisson, query, effective_clicks=300)
    assert a == pytest.approx(100 / 400 / 4)
    assert (b, c) == pytest.approx((0.75 * one, 0.75 * other))
    shares = [naive_share(n) for n in (1e-9, 10, 100, 500, 1e6)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.99
    assert shares[2] == 0.5
    assert shares[-1] < 0.001
    with pytest.raises(PosbiasError, match="naive has 1 scores"):
        cautious_factors([1.0], ips, poisson, query, 150)
    with pytest.raises(PosbiasError, match="effective_clicks must be a number above 0"):
        cautious_factors(naive, ips, poisson, query, 0)


@pytest.mark.parametrize("clicks", [0, -1, math.nan, math.inf, None])
def test_no_clicks_raise(clicks: Any) -> None:
    with pytest.raises(PosbiasError, match="effective_clicks must be a number above 0"):
        blend_factors([1.0], [1.0], [0], clicks)


def test_invalid_scores_raise() -> None:
    with pytest.raises(PosbiasError, match="poisson has 1 scores, 0 of them not finite, for 2 documents"):
        blend_factors([1.0, 2.0], [1.0], [0, 0], 10)
    with pytest.raises(PosbiasError, match="ips has 2 scores, 1 of them not finite"):
        blend_factors([1.0, math.nan], [1.0, 2.0], [0, 0], 10)
    with pytest.raises(PosbiasError, match="no document"):
        blend_factors([], [], [], 10)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (None, "query must be one value for each row, not None"),
        ([["q"], ["q", "r"]], "query must be"),
        ([{"q": 1}, {"q": 1}], "query must be single values"),
        (["q", None], "1 of 2 rows have no value in query"),
    ],
)
def test_invalid_queries_raise(query: Any, message: str) -> None:
    with pytest.raises(PosbiasError, match=message):
        cautious_factors([1.0, 2.0], [1.0, 2.0], [1.0, 2.0], query, 10)
    hidden = np.ma.masked_array([1, 2], [False, True])
    with pytest.raises(PosbiasError, match="1 of 2 values of query are masked"):
        cautious_factors([1.0, 2.0], [1.0, 2.0], [1.0, 2.0], hidden, 10)
    with pytest.raises(PosbiasError, match="poisson must be numbers"):
        blend_factors([1.0, 2.0], ["x", "y"], ["q", "q"], 10)
    for share in (ips_share, naive_share):
        with pytest.raises(PosbiasError, match="effective_clicks must be a number above 0"):
            share("many")  # type: ignore[arg-type]
