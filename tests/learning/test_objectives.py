"""Objectives against their definitions: loops from the formulas, finite differences, sums that must vanish."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from posbias.errors import PosbiasError
from posbias.learning import objectives
from posbias.learning.objectives import (
    pairwise_ips,
    pairwise_loss,
    poisson_exposure,
    poisson_loss,
    poisson_start,
    scaled_counts,
    scaled_weights,
    softmax_ips,
    softmax_loss,
)

GROUPS = [3, 1, 5, 0, 2]
RNG = np.random.default_rng(7)
SCORES = RNG.normal(size=11) * 2
# The second group has one document; the last has no click.
WEIGHTS = np.array([0, 2.5, 1, 3, 0, 4, 0.5, 0, 0, 0, 0])
CLICKS = np.array([0, 2, 1, 3, 0, 4, 1, 0, 0, 0, 7])
EXPOSURE = RNG.random(11) * 3 + 0.05


def spans() -> list[range]:
    """Return the rows of each group."""
    ends = np.cumsum(GROUPS).tolist()
    return [range(end - size, end) for end, size in zip(ends, GROUPS, strict=True)]


def slow_softmax(s: Any) -> float:
    """Return −Σ W_i log π_i by loops."""
    return -sum(
        WEIGHTS[i] * math.log(math.exp(s[i]) / sum(math.exp(s[j]) for j in rows)) for rows in spans() for i in rows
    )


def slow_pairwise(s: Any) -> float:
    """Return Σ_i W_i Σ_{j ≠ i} log(1 + e^{s_j − s_i}) by loops."""
    return sum(
        WEIGHTS[i] * math.log(1 + math.exp(s[j] - s[i])) for rows in spans() for i in rows for j in rows if j != i
    )


def slow_poisson(s: Any) -> float:
    """Return Σ E e^s − C s by a loop."""
    return sum(EXPOSURE[i] * math.exp(s[i]) - CLICKS[i] * s[i] for i in range(len(s)))


CASES = {
    "softmax": (slow_softmax, softmax_loss, softmax_ips, (WEIGHTS, GROUPS)),
    "pairwise": (slow_pairwise, pairwise_loss, pairwise_ips, (WEIGHTS, GROUPS)),
    "poisson": (slow_poisson, poisson_loss, poisson_exposure, (CLICKS, EXPOSURE)),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_equal_their_formulas(name: str) -> None:
    slow, loss, _, rest = CASES[name]
    assert loss(SCORES, *rest) == pytest.approx(slow(SCORES), rel=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_hessians_are_differences_of_the_loss(name: str) -> None:
    slow, _, objective, rest = CASES[name]
    gradient, hessian = objective(SCORES, *rest)
    for row in range(len(SCORES)):
        first, second = differences(slow, SCORES, row)
        assert gradient[row] == pytest.approx(first, rel=1e-6, abs=1e-6)
        assert hessian[row] == pytest.approx(second, rel=1e-4, abs=1e-4)


def differences(loss: Callable[[Any], float], s: Any, row: int, step: float = 1e-3) -> tuple[float, float]:
    """Return the first and second derivative by central differences of the fourth order."""
    at = [loss([*s[:row], s[row] + k * step, *s[row + 1 :]]) for k in (-2, -1, 0, 1, 2)]
    first = (at[0] - 8 * at[1] + 8 * at[3] - at[4]) / (12 * step)
    second = (-at[0] + 16 * at[1] - 30 * at[2] + 16 * at[3] - at[4]) / (12 * step**2)
    return first, second


@pytest.mark.parametrize("objective", [softmax_ips, pairwise_ips])
def test_gradients_of_a_group_sum_to_0(objective: Callable[..., Any]) -> None:
    gradient, hessian = objective(SCORES, WEIGHTS, GROUPS)
    for rows in spans():
        assert sum(gradient[i] for i in rows) == pytest.approx(0, abs=1e-12)
    # A group without clicks, or with one document, teaches nothing.
    assert not gradient[9:].any()
    assert not hessian[9:].any()
    assert gradient[3] == hessian[3] == 0


def test_batches_of_pairs_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pairwise_ips(SCORES, WEIGHTS, GROUPS)
    for at_once in (1, 4, 7):
        monkeypatch.setattr(objectives, "_PAIRS_PER_BATCH", at_once)
        parts = pairwise_ips(SCORES, WEIGHTS, GROUPS)
        assert np.allclose(whole, parts, atol=1e-14)


def test_scores_far_apart_stay_finite() -> None:
    far = np.array([1e4, -1e4, 0.0])
    for objective in (softmax_ips, pairwise_ips):
        gradient, hessian = objective(far, [0.0, 1.0, 1.0], [3])
        assert np.isfinite(gradient).all()
        assert np.isfinite(hessian).all()
    assert softmax_loss(far, [0.0, 1.0, 0.0], [3]) == pytest.approx(2e4)
    gradient, hessian = poisson_exposure(far, [0, 1, 1], [1.0, 1.0, 1.0])
    assert np.isfinite(gradient).all()
    assert np.isfinite(hessian).all()


def test_poisson_starts_where_one_rate_fits_best() -> None:
    start = poisson_start(CLICKS, EXPOSURE)
    gradient, _ = poisson_exposure(np.full(11, start), CLICKS, EXPOSURE)
    assert gradient.sum() == pytest.approx(0, abs=1e-12)


def test_scaling_leaves_rates_and_has_mean_one_over_clicked_rows() -> None:
    weights = scaled_weights(WEIGHTS)
    assert weights[weights > 0].mean() == pytest.approx(1)
    assert np.allclose(weights * WEIGHTS.sum(), WEIGHTS * weights.sum())
    clicks, exposure = scaled_counts(CLICKS, EXPOSURE)
    assert clicks[clicks > 0].mean() == pytest.approx(1)
    assert np.allclose(clicks / exposure, CLICKS / EXPOSURE)


HIDDEN = np.ma.masked_array([1, 9], [False, True])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: softmax_ips([0.0, 0.0], [1.0], [2]), "2 scores and 1 weights"),
        (lambda: softmax_ips([0.0, 0.0], [1.0, 0.0], [7, 7]), "add up to 14"),
        (
            lambda: softmax_ips([0.0, 0.0], [1.0, 0.0], [3, -1]),
            "the number of rows of each query, which add up to all rows",
        ),
        (lambda: pairwise_ips([0.0, 0.0], [1.0, math.nan], [2]), "nan in row 1"),
        (lambda: pairwise_ips([0.0, 0.0], [-1.0, 1.0], [2]), "-1.0 in row 0"),
        (lambda: softmax_ips([0.0, 0.0], [1.0, 0.0], ["q", "q"]), "not whole numbers, such as 'q'"),
        (lambda: pairwise_ips([0.0, 0.0], [1.0, 0.0], [2.0]), "not whole numbers, such as 2.0"),
        (lambda: pairwise_ips([0.1, 0.2], [1, 0], [2**63 - 1, 2**63 - 1, 4]), "add up to 18,446,744,073,709,551,618"),
        (lambda: pairwise_ips([0.1, 0.2], [1, 0], [-1, 3]), "2 groups that are in part negative, such as -1"),
        (lambda: softmax_ips([1j, 0.0], [1.0, 0.0], [2]), "they are of type complex128"),
        (lambda: softmax_ips(np.array(["2026-01-01"], "M8[D]"), [1.0], [1]), "they are of type datetime64"),
        (lambda: softmax_loss([0.0, 0.0], [1.0, 0.0], None), "number of rows of each query, not None"),
        (lambda: softmax_ips([0.0, math.nan], [1.0, 0.0], [2]), "nan in row 1: the ranker has diverged"),
        (lambda: pairwise_ips([math.inf, 0.0], [1.0, 0.0], [2]), "inf in row 0: the ranker has diverged"),
        (lambda: poisson_exposure([math.nan], [1], [1.0]), "the ranker has diverged"),
        (lambda: softmax_ips([0.0, 0.0], ["many", "few"], [2]), "weights must be numbers"),
        (lambda: poisson_exposure([0.0], [1], [math.inf]), "exposure are negative or not finite"),
        (lambda: poisson_exposure([0.0, 0.0], [0, 1], [0.0, 0.0]), "1 of 2 rows have clicks but no exposure"),
        (lambda: scaled_counts([1, 2], [1.0]), "2 scores and 1 exposure"),
        (lambda: softmax_ips([0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [[1], [1, 2]]), "groups must be the number of rows"),
        (lambda: softmax_ips([0.0, 0.0], HIDDEN, [2]), "1 of 2 values of weights are masked"),
        (lambda: poisson_exposure([0.0, 0.0], HIDDEN, [1.0, 1.0]), "1 of 2 values of clicks are masked"),
        (lambda: softmax_ips([0.0, 0.0], [1.0, 0.0], HIDDEN), "1 of 2 values of groups are masked"),
        (lambda: poisson_start([[1], [1, 2]], [1.0, 1.0]), "clicks must be numbers"),
        (lambda: poisson_start([0, 0], [1.0, 1.0]), "no click"),
        (lambda: scaled_weights([0.0, 0.0]), "No row was clicked"),
    ],
)
def test_invalid_arguments_raise(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(PosbiasError, match=message):
        call()
