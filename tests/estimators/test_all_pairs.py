"""The AllPairs solver against scipy on the full problem in p and r, against closed forms, and against its own rules."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import linalg, optimize

from posbias.estimators import pair_estimators
from posbias.estimators.pair_estimators import maximise

# Whole worlds are drawn and fitted: minutes in all, which CI takes.
pytestmark = pytest.mark.long

FloatArray = npt.NDArray[np.float64]

# ---------------------------------------------------------------------------------------------------------------
# The oracle: log p and log r as one long vector, every term of the objective a row that adds two of its entries.
# It drops nothing, eliminates nothing and knows no graph.


class Terms(NamedTuple):
    adds: FloatArray  # (terms, M + pairs): the row of c[k,k'] log(p_k r_kk') has a 1 for p_k and a 1 for r_kk'
    clicks: FloatArray
    skips: FloatArray


class Maximum(NamedTuple):
    terms: Terms
    v: FloatArray  # log p, then log r
    push: FloatArray  # gradient of the objective, divided by all counts
    residual: float  # of the Karush-Kuhn-Tucker conditions
    objective: float


def write_out(clicks: FloatArray, skips: FloatArray) -> Terms:
    ranks = len(clicks)
    sides = [(k, j) for k in range(ranks) for j in range(ranks) if k != j and clicks[k, j] + skips[k, j] > 0]
    pairs = sorted({(min(side), max(side)) for side in sides})
    adds = np.zeros((len(sides), ranks + len(pairs)))
    for term, side in enumerate(sides):
        adds[term, side[0]] = adds[term, ranks + pairs.index((min(side), max(side)))] = 1
    return Terms(adds, np.array([clicks[s] for s in sides]), np.array([skips[s] for s in sides]))


def likelihood(v: FloatArray, terms: Terms) -> tuple[float, FloatArray, FloatArray]:
    """Minus the objective, with its gradient and its Hessian."""
    z = terms.adds @ v
    skipped = terms.skips > 0
    miss = np.where(skipped, -np.expm1(np.where(skipped, np.minimum(z, -1e-15), -1)), 1)
    odds = np.where(skipped, terms.skips * np.exp(z) / miss, 0)
    value = -(terms.clicks @ z + terms.skips @ np.log(miss))
    return value, -terms.adds.T @ (terms.clicks - odds), (terms.adds.T * (odds / miss)) @ terms.adds


def maximise_by_scipy(clicks: FloatArray, skips: FloatArray) -> Maximum:
    terms = write_out(clicks, skips)
    total = (terms.clicks + terms.skips).sum()
    terms = Terms(terms.adds, terms.clicks / total, terms.skips / total)
    lowest = -60.0
    v = optimize.minimize(
        lambda v: likelihood(v, terms)[:2],
        np.full(terms.adds.shape[1], -1.0),
        jac=True,
        method="L-BFGS-B",
        bounds=[(lowest, 0)] * terms.adds.shape[1],
        options={"maxiter": 5000, "maxfun": 20000, "ftol": 0, "gtol": 1e-11, "maxcor": 30},
    ).x

    def residual_at(v: FloatArray) -> float:
        gradient = likelihood(v, terms)[1]
        return float(np.abs(np.where(v >= 0, np.maximum(gradient, 0), gradient)).max())

    for _ in range(60):  # L-BFGS-B leaves 1e-5 or so: Newton on the values that are off their bounds does the rest
        value, gradient, hessian = likelihood(v, terms)
        free = ~((v >= 0) & (gradient < 0))
        step = np.zeros_like(v)
        step[free] = -linalg.lstsq(hessian[np.ix_(free, free)], gradient[free], cond=1e-11)[0]
        here = residual_at(v)
        for shorter in 0.5 ** np.arange(20):
            trial = np.clip(v + shorter * step, lowest, 0)
            if residual_at(trial) < here or likelihood(trial, terms)[0] < value - 1e-14:
                break
        else:
            break
        v = trial
    value, gradient, _ = likelihood(v, terms)
    return Maximum(terms, v, -gradient, residual_at(v), -value * total)


def unique_ratios(maximum: Maximum, ranks: int) -> npt.NDArray[np.bool_]:
    """Whether log p_k − log p_1 is the same at all maxima: a combination of what all maxima have in common."""
    z = maximum.terms.adds @ maximum.v
    common = maximum.terms.adds[(maximum.terms.skips > 0) & (z > -25)]  # below: p r → 0, and it may go on falling
    binding = np.eye(len(maximum.v))[(maximum.v > -1e-9) & (maximum.push > 1e-8)]
    rows = np.vstack([common, binding])
    wanted = np.eye(ranks, len(maximum.v)) - np.eye(1, len(maximum.v))
    return np.abs(wanted - wanted @ np.linalg.pinv(rows, rcond=1e-9) @ rows).max(axis=1) < 1e-6


def chained_to_rank_one(clicks: FloatArray, skips: FloatArray) -> tuple[set[int], set[int]]:
    """The ranks that are not NaN but for lack of a unique maximum: those with clicks, and those without."""
    ranks = range(len(clicks))
    informative = {
        (k, j)
        for k in ranks
        for j in ranks
        if k != j
        and clicks[k, j] + skips[k, j] > 0
        and clicks[j, k] + skips[j, k] > 0
        and clicks[k, j] + clicks[j, k] > 0
    }
    clicked = {k for k in ranks if any(clicks[k, j] > 0 for j in ranks if j != k)}
    if 0 not in clicked or not any(k == 0 for k, _ in informative):
        return set(), set()
    reached, ahead = {0}, [0]
    while ahead:
        k = ahead.pop()
        for j in clicked - reached:
            if (k, j) in informative:
                reached.add(j)
                ahead.append(j)
    return reached, {k for k in ranks if k not in clicked and any((k, j) in informative for j in reached)}


def objective_given(p: FloatArray, clicks: FloatArray, skips: FloatArray) -> float:
    """The objective over the ranks with p > 0, at the best r in [0, 1]: the root of its slope, by bracketing."""
    value = 0.0
    for k in range(len(p)):
        for j in range(k):
            q, c, n = p[[k, j]], clicks[[k, j], [j, k]], skips[[k, j], [j, k]]
            q, c, n = q[q > 0], c[q > 0], n[q > 0]
            if c.sum() == 0:
                continue  # r = 0: all terms are 0

            def slope(r: float, c: FloatArray = c, n: FloatArray = n[n > 0], q: FloatArray = q[n > 0]) -> float:
                return float(c.sum() - (n * q * r / (1 - q * r)).sum())

            above = min(1.0, np.nextafter(1 / q[n > 0].max(initial=1e-300), 0))
            r = 1.0 if slope(above) >= 0 else optimize.brentq(slope, 0.0, above, xtol=1e-300, rtol=1e-15)
            value += (c[c > 0] * np.log(q[c > 0] * r)).sum() + (n[n > 0] * np.log1p(-q[n > 0] * r)).sum()
    return value


def random_table(seed: int) -> tuple[FloatArray, FloatArray]:
    """Thin, clickless, skipless, one-sided and missing cells, low click rates, and tables with enough of everything."""
    random = np.random.default_rng(seed)
    ranks = 10 if seed % 20 == 0 else int(random.integers(2, 7))
    shape = (ranks, ranks)
    match seed % 5:
        case 0:
            clicks, skips = random.integers(0, 3, shape), random.integers(0, 3, shape)
        case 1:
            clicks, skips = random.integers(0, 3, shape), random.integers(0, 2, shape) * random.integers(1, 1000, shape)
        case 2:
            clicks, skips = random.integers(0, 2, shape) * random.random(shape), random.random(shape)
        case 3:
            rates = random.random(shape[:1])[:, None] * random.random(shape)
            seen = random.integers(0, 30, shape)
            clicks = random.binomial(seen, rates)
            skips = seen - clicks
        case _:
            relevance = random.uniform(0.1, 0.9, shape)
            rates = 1 / np.arange(1, ranks + 1)[:, None] * (relevance + relevance.T) / 2
            seen = random.integers(1, 3000, shape)
            clicks = random.binomial(seen, rates)
            skips = seen - clicks
    missing = random.random(shape) < random.choice([0.0, 0.2, 0.5])
    missing |= missing.T & (random.random(shape) < 0.5)
    return np.where(missing, 0.0, clicks), np.where(missing, 0.0, skips)


@pytest.mark.parametrize("tables", [150, pytest.param(1500, marks=pytest.mark.long)])
def test_agrees_with_scipy(tables: int) -> None:
    found = dict.fromkeys(["precise", "imprecise", "binding", "nan", "not unique", "zero", "above one"], 0)
    for seed in range(tables):
        clicks, skips = random_table(seed)
        ours = maximise(clicks, skips)
        with_clicks, without = chained_to_rank_one(clicks, skips)
        found["nan"] += bool(np.isnan(ours).any())
        if not with_clicks:
            assert np.isnan(ours).all(), seed
            continue

        theirs = maximise_by_scipy(clicks, skips)
        unique = unique_ratios(theirs, len(ours))
        p = np.exp(theirs.v[: len(ours)])
        precise = theirs.residual < 1e-10
        for k in range(len(ours)):
            if k in without:
                assert ours[k] == 0, (seed, k)
                assert p[k] / p[0] < 1e-6 or not precise, (seed, k)
            elif k not in with_clicks:
                assert np.isnan(ours[k]), (seed, k)
            elif precise:
                assert np.isnan(ours[k]) == (not unique[k]), (seed, k)
                assert np.isnan(ours[k]) or ours[k] == pytest.approx(p[k] / p[0], rel=1e-7), (seed, k)

        component = np.isin(np.arange(len(ours)), list(with_clicks))
        if not np.isnan(ours[component]).any():
            c, n = clicks * component[:, None], skips * component[:, None]
            reached = objective_given(np.where(component, ours, 0) / ours[component].max(), c, n)
            assert reached >= objective_given(np.where(component, p, 0), c, n) - 1e-11 * (c + n).sum(), seed

        found["precise" if precise else "imprecise"] += 1
        found["binding"] += bool((theirs.push[: len(ours)][component] > 1e-6).any())
        found["not unique"] += bool(precise and not unique[component].all())
        found["zero"] += bool(without)
        found["above one"] += bool((ours > 1).any())
    # Of all kinds there are enough to tell.
    assert found["precise"] >= tables * 2 // 3, found
    assert found["imprecise"] <= tables // 100, found
    assert found["binding"] >= tables // 3, found
    assert found["nan"] >= tables // 3, found
    assert found["not unique"] >= tables * 2 // 75, found
    assert found["zero"] >= tables // 15, found
    assert found["above one"] >= tables * 2 // 15, found


# ---------------------------------------------------------------------------------------------------------------
# Closed forms and known truths


def expected_table(p: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What a log of that curve would count on average: any relevances, any set sizes."""
    random = np.random.default_rng(0)
    relevance = random.uniform(0.05, 0.9, (len(p), len(p)))
    seen = random.uniform(10, 1000, (len(p), len(p)))
    rates = p[:, None] * (relevance + relevance.T) / 2
    return seen * rates, seen * (1 - rates)


counts = st.floats(1e-2, 1e5)


@settings(max_examples=300)
@given(c_1=counts, n_1=counts, c_2=counts, n_2=counts)
def test_two_ranks_give_the_ratio_of_click_rates(c_1: float, n_1: float, c_2: float, n_2: float) -> None:
    ours = maximise(np.array([[0, c_1], [c_2, 0]]), np.array([[0, n_1], [n_2, 0]]))
    assert ours == pytest.approx([1, (c_2 / (c_2 + n_2)) / (c_1 / (c_1 + n_1))], rel=1e-8)


@pytest.mark.parametrize("ranks", [2, 3, 10, 50])
def test_recovers_the_curve_from_expected_counts(ranks: int) -> None:
    truth = 1 / np.arange(1, ranks + 1)
    assert maximise(*expected_table(truth)) == pytest.approx(truth, rel=1e-9)


def test_recovers_the_curve_through_a_chain_of_neighbours() -> None:
    truth = 1 / np.arange(1, 31)
    near = np.abs(np.subtract.outer(np.arange(30), np.arange(30))) <= 1
    clicks, skips = expected_table(truth)
    assert maximise(clicks * near, skips * near) == pytest.approx(truth, rel=1e-9)


def test_propensities_may_exceed_one_and_rise() -> None:
    ours = maximise(*expected_table(np.array([0.5, 1.0, 0.25, 0.75])))
    assert ours == pytest.approx([1, 2, 0.5, 1.5], rel=1e-9)


def test_error_falls_with_the_root_of_the_size_of_the_log() -> None:
    truth = 1 / np.arange(1, 21)
    clicks, skips = expected_table(truth)
    random = np.random.default_rng(5)
    errors = []
    for size in (10, 1000):
        seen = np.round((clicks + skips) * size).astype(int)
        clicked = random.binomial(seen, clicks / (clicks + skips), (50, 20, 20))
        errors.append(np.abs(np.log(maximise(clicked, seen - clicked) / truth)).mean())
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.2)


# ---------------------------------------------------------------------------------------------------------------
# Bounds


def test_a_pair_seen_on_one_side_counts_through_the_bound_on_r() -> None:
    def minus_objective(v: FloatArray) -> float:  # p_1 = 1 and r_23 = 1 bind, which leaves p_2 and r_12
        p, r = v
        return float(-(5 * np.log(r) + 5 * np.log(1 - r) + 10 * np.log(1 - p * r) + 8 * np.log(p) + 2 * np.log(1 - p)))

    clicks = np.array([[0.0, 5, 0], [0, 0, 0], [0, 0, 0]])
    skips = np.array([[0.0, 5, 0], [10, 0, 0], [0, 0, 0]])
    assert maximise(clicks, skips) == pytest.approx([1, 0, NAN], nan_ok=True)
    clicks[1, 2], skips[1, 2] = 8, 2
    fine = {"xatol": 1e-10, "fatol": 1e-14}
    p_2, _ = optimize.minimize(minus_objective, [0.5, 0.5], method="Nelder-Mead", options=fine).x
    assert maximise(clicks, skips) == pytest.approx([1, p_2, NAN], rel=1e-6, nan_ok=True)


def test_without_skips_all_values_go_to_one() -> None:
    clicks = np.array([[0.0, 3, 1], [7, 0, 2], [1, 1, 0]])
    assert maximise(clicks, np.zeros((3, 3))) == pytest.approx([1, 1, 1])


def test_a_click_rate_that_asks_for_relevance_above_one_moves_the_curve() -> None:
    # From ranks 1 and 2, p_2 / p_1 = 0.1. A click rate of 0.9 at rank 2 against rank 3 would then take r_23 = 9.
    clicks = np.array([[0.0, 500, 0], [50, 0, 9], [0, 3, 0]])
    skips = np.array([[0.0, 500, 0], [950, 0, 1], [0, 7, 0]])
    unbounded = np.array([1, 0.1, 0.1 / 3])
    ours = maximise(clicks, skips)
    assert ours[1] > 0.11
    assert objective_given(ours, clicks, skips) > objective_given(unbounded, clicks, skips) + 1
    for k in (1, 2):
        for factor in (0.999, 1.001):
            moved = ours * np.where(np.arange(3) == k, factor, 1)
            assert objective_given(moved, clicks, skips) < objective_given(ours, clicks, skips)


@pytest.mark.parametrize("click_rate", [1e-6, 1e-3, 0.999])
def test_no_move_is_for_the_better_at_extreme_click_rates(click_rate: float) -> None:
    clicks, skips = thin_tables(4, 100)
    random = np.random.default_rng(1)
    clicks *= click_rate * 10 ** random.uniform(-1, 1, clicks.shape)
    skips *= (1 - click_rate) * 10 ** random.uniform(-1, 1, skips.shape)
    checked = 0
    for p, c, n in zip(maximise(clicks, skips), clicks, skips, strict=True):
        if np.isnan(p).any() or (p == 0).any():
            continue
        best = objective_given(p / p.max(), c, n)
        for k in range(4):
            for factor in (0.5, 0.99, 1.01, 2):
                moved = p * np.where(np.arange(4) == k, factor, 1)
                for top in {moved.max(), max(p.max(), moved[k])}:
                    assert objective_given(moved / top, c, n) <= best + 1e-13 * abs(best)
        checked += 1
    assert checked > 30


def test_a_propensity_of_a_millionth_is_not_left_half_way() -> None:
    clicks = np.array([[0, 5715, 0], [0.00215, 0, 0], [0, 1225, 0]])
    skips = np.array([[0, 0.00221, 0], [457, 0, 50.3], [0, 0, 5.89]])
    ours = maximise(clicks, skips)
    assert 1e-6 < ours[1] < 1e-5
    best = objective_given(ours / ours.max(), clicks, skips)
    for factor in (0.9999, 1.0001):
        moved = ours * np.array([1, factor, 1])
        assert objective_given(moved / moved.max(), clicks, skips) < best


# ---------------------------------------------------------------------------------------------------------------
# What is not identified

NAN = float("nan")
Cell = tuple[int, int, float, float]


def table(*cells: Cell, ranks: int = 4) -> tuple[FloatArray, FloatArray]:
    """Cells (k, k', clicks, skips), ranks from 1."""
    clicks, skips = np.zeros((ranks, ranks)), np.zeros((ranks, ranks))
    for k, j, c, n in cells:
        clicks[k - 1, j - 1], skips[k - 1, j - 1] = c, n
    return clicks, skips


LINK_12 = (1, 2, 4, 6), (2, 1, 2, 8)
ZERO_3 = (2, 3, 1, 9), (3, 2, 0, 5)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        pytest.param([], [NAN, NAN, NAN, NAN], id="nothing at all"),
        pytest.param([*LINK_12], [1, 0.5, NAN, NAN], id="never seen"),
        pytest.param([*LINK_12, (3, 4, 1, 1), (4, 3, 1, 1)], [1, 0.5, NAN, NAN], id="linked to each other only"),
        pytest.param([*LINK_12, *ZERO_3], [1, 0.5, 0, NAN], id="seen but never clicked"),
        pytest.param([*LINK_12, *ZERO_3, (3, 4, 0, 5), (4, 3, 1, 5)], [1, 0.5, 0, NAN], id="linked through a zero"),
        pytest.param([*LINK_12, (2, 3, 0, 9), (3, 2, 0, 5)], [1, 0.5, NAN, NAN], id="linked without a click"),
        pytest.param([*LINK_12, (3, 1, 3, 9)], [1, 0.5, NAN, NAN], id="clicked on one side of a pair"),
        pytest.param([*LINK_12, (3, 1, 0, 9)], [1, 0.5, NAN, NAN], id="skipped on one side of a pair"),
        pytest.param([(1, 2, 0, 6), (2, 1, 2, 8)], [NAN, NAN, NAN, NAN], id="rank 1 never clicked"),
        pytest.param([(1, 2, 5, 6), (2, 3, 2, 8), (3, 2, 1, 8)], [NAN, NAN, NAN, NAN], id="rank 1 not linked"),
        pytest.param([(1, 2, 5, 6), (2, 1, 0, 8)], [1, 0, NAN, NAN], id="rank 1 linked to a zero only"),
    ],
)
def test_rules_for_nan_and_zero(cells: list[Cell], expected: list[float]) -> None:
    assert maximise(*table(*cells)) == pytest.approx(expected, nan_ok=True)


def test_a_rank_with_several_values_at_the_maximum_is_nan() -> None:
    clicks, skips = table((1, 2, 1, 1), (2, 1, 1, 0), (2, 3, 1, 1), (3, 2, 1, 0), (3, 1, 2, 0), ranks=3)
    # p_1 = 1/2 and p_3 = 1, but p_2 is free above 2/3: what it gains in log(p_2 r_12), it loses in log(p_3 r_23).
    values = [objective_given(np.array([0.5, p_2, 1]), clicks, skips) for p_2 in (0.6, 0.7, 0.8, 1)]
    assert values[1:] == pytest.approx([values[-1]] * 3, rel=1e-14)
    assert values[0] < values[-1] - 1e-3
    assert maximise(clicks, skips) == pytest.approx([1, NAN, 2], nan_ok=True)


# ---------------------------------------------------------------------------------------------------------------
# What must not matter


def thin_tables(ranks: int, tables: int) -> tuple[FloatArray, FloatArray]:
    random = np.random.default_rng(ranks)
    clicks, skips, kept = random.integers(0, 4, (3, tables, ranks, ranks)).astype(float)
    return clicks, skips * (kept > 1)


small_tables = st.integers(2, 6).flatmap(
    lambda ranks: st.tuples(*[arrays(np.float64, (ranks, ranks), elements=st.integers(0, 4).map(float))] * 2)
)


@settings(max_examples=200)
@given(counted=small_tables, factor=st.sampled_from([1e-9, 0.3, 7.0, 1e9]))
def test_scale_does_not_matter(counted: tuple[FloatArray, FloatArray], factor: float) -> None:
    clicks, skips = counted
    np.testing.assert_allclose(maximise(clicks * factor, skips * factor), maximise(clicks, skips), rtol=1e-9)


@settings(max_examples=200)
@given(counted=small_tables, data=st.data())
def test_order_of_the_other_ranks_does_not_matter(counted: tuple[FloatArray, FloatArray], data: st.DataObject) -> None:
    clicks, skips = counted
    order = [0, *data.draw(st.permutations(range(1, len(clicks))))]
    shuffled = maximise(clicks[np.ix_(order, order)], skips[np.ix_(order, order)])
    np.testing.assert_allclose(shuffled, maximise(clicks, skips)[order], rtol=1e-9)


@pytest.mark.parametrize(("ranks", "tables"), [(3, 60), (10, 700), (50, 70)])
def test_a_batch_gives_what_its_tables_give_one_by_one(ranks: int, tables: int) -> None:
    clicks, skips = thin_tables(ranks, tables)
    batch = maximise(clicks, skips)
    some = np.linspace(0, tables - 1, 60).astype(int)
    np.testing.assert_allclose(batch[some], [maximise(clicks[b], skips[b]) for b in some], rtol=1e-9)
    np.testing.assert_array_equal(batch, maximise(clicks, skips))
    assert np.isfinite(batch).mean() > 0.5


def test_the_way_to_the_maximum_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    clicks, skips = thin_tables(6, 300)
    usual = maximise(clicks, skips)
    monkeypatch.setattr(pair_estimators, "_NEWTON_STEPS", 0)  # interior points only
    monkeypatch.setattr(pair_estimators, "_BINDING", 1e-6)
    np.testing.assert_allclose(maximise(clicks, skips), usual, rtol=1e-5)


def test_a_table_that_cannot_be_solved_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    clicks, skips = thin_tables(6, 100)
    usual = maximise(clicks, skips)
    monkeypatch.setattr(pair_estimators, "_NEWTON_STEPS", 3)
    monkeypatch.setattr(pair_estimators, "_INTERIOR_STEPS", 3)
    cut_short = maximise(clicks, skips)
    solved = np.isfinite(cut_short) & (np.arange(6) > 0)
    np.testing.assert_allclose(cut_short[solved], usual[solved], rtol=1e-9)
    assert solved.sum() < np.isfinite(usual[:, 1:]).sum() / 2


def test_any_batch_shape() -> None:
    clicks, skips = thin_tables(3, 12)
    nested = maximise(clicks.reshape(2, 1, 6, 3, 3), skips.reshape(2, 1, 6, 3, 3))
    assert nested.shape == (2, 1, 6, 3)
    np.testing.assert_array_equal(nested.reshape(12, 3), maximise(clicks, skips))
    assert maximise(clicks[:0], skips[:0]).shape == (0, 3)
    assert np.isnan(maximise(np.ones((1, 1)), np.ones((1, 1)))).all()


def test_the_diagonal_is_not_read_and_the_arguments_not_written() -> None:
    clicks, skips = thin_tables(5, 20)
    usual = maximise(clicks, skips)
    marked = clicks.copy()
    marked[:, range(5), range(5)] = np.nan
    np.testing.assert_array_equal(maximise(marked, skips), usual)
    for now, before in zip((clicks, skips), thin_tables(5, 20), strict=True):
        np.testing.assert_array_equal(now, before)


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((2, 3), (2, 3)), ((3, 3), (2, 3, 3))])
def test_refuses_other_shapes(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="two arrays of shape"):
        maximise(np.ones(shapes[0]), np.ones(shapes[1]))


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_refuses_what_is_no_count(value: float) -> None:
    clicks = np.ones((2, 2))
    clicks[0, 1] = value
    with pytest.raises(ValueError, match="none below 0"):
        maximise(clicks, np.ones((2, 2)))
