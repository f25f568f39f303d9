"""Pooled segments: against the posterior written out, against each segment alone, and against the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from scipy import optimize, special, stats

import posbias
from experiments.pooling import SETTINGS, PoolingSetting, measure
from posbias._arrays import FloatArray
from posbias.estimators import pooling
from posbias.estimators.cross_fit import CellRows, ScoreTerms
from posbias.estimators.pooling import (
    NormalMixture,
    PooledCurves,
    SegmentScores,
    _PoolingProblem,
    deviation_kinds,
    pool,
)
from posbias.harvesting.harvest import SegmentStrata

RANKS = np.array([2.0, 3.0, 5.0])
WIDTHS = np.geomspace(0.12, 2.6, 50)


def scores(segments: int, seed: int = 0, *, blind: bool = False) -> tuple[SegmentScores, FloatArray]:
    """Return random scores about random curves; of the first segment nothing but one rank is known, if `blind`."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((segments, 3, 5))
    information = 30 * root @ root.swapaxes(1, 2)
    if blind:
        information[0] = np.diag([40.0, 0.0, 0.0])
    x = -np.log(RANKS) + 0.3 * rng.standard_normal((segments, 3))
    noise = np.array([rng.multivariate_normal(np.zeros(3), 1.7 * j, method="eigh") for j in information])
    return SegmentScores(np.einsum("snm,sm->sn", information, x) + noise, information, 1.7, 1.7), x


def posterior(given: SegmentScores, T: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return x of all segments and its covariance as one Gaussian, μ with a flat prior: nothing but linear algebra."""
    segments, n = given.value.shape
    precision = np.zeros((segments * n + n, segments * n + n))
    inverse = np.linalg.inv(T)
    right = np.zeros(len(precision))
    mean = slice(segments * n, None)
    for s in range(segments):
        own = slice(s * n, (s + 1) * n)
        precision[own, own] = given.information[s] / given.dispersion + inverse
        precision[own, mean] = precision[mean, own] = -inverse
        precision[mean, mean] += inverse
        right[own] = given.value[s] / given.dispersion
    covariance = np.linalg.inv(precision)
    x = covariance @ right
    blocks = [covariance[s * n : (s + 1) * n, s * n : (s + 1) * n] for s in range(segments)]
    return x[: segments * n].reshape(segments, n), np.array(blocks)


@pytest.mark.parametrize("sizes", [(0.0, 0.0, 0.4), (0.2, 0.0, 0.1), (0.0, 0.3, 0.02), (0.3, 0.3, 0.3)])
def test_curves_equal_the_posterior_written_out(sizes: tuple[float, ...]) -> None:
    given, _ = scores(6, blind=True)
    at = np.array([-0.5, -1.0, -1.4])
    around = _PoolingProblem(given, at, given.value - given.information @ at, deviation_kinds(RANKS))
    found = around.curves(around.model(sizes))
    roots = [size * root for size, root in zip(sizes, deviation_kinds(RANKS), strict=True)]
    T = sum(root @ root.T for root in roots)
    x, covariance = posterior(given, np.asarray(T))
    np.testing.assert_allclose(found.x, x, atol=1e-8)
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-8)


def test_likelihood_equals_the_marginal_up_to_a_constant() -> None:
    given, _ = scores(5)
    at = np.array([-0.5, -1.0, -1.4])
    around = _PoolingProblem(given, at, given.value - given.information @ at, deviation_kinds(RANKS))

    def marginal(sizes: tuple[float, ...]) -> float:
        # J⁻¹ v ~ N(μ, φ J⁻¹ + T), and μ integrated out.
        T = sum((size * root) @ (size * root).T for size, root in zip(sizes, deviation_kinds(RANKS), strict=True))
        seen = np.array([np.linalg.solve(j, v) for v, j in zip(given.value, given.information, strict=True)])
        own = [given.dispersion * np.linalg.inv(j) + T for j in given.information]
        inverse = [np.linalg.inv(one) for one in own]
        known = sum(inverse)
        mean = np.linalg.solve(known, sum(i @ y for i, y in zip(inverse, seen, strict=True)))
        squares = sum((y - mean) @ i @ (y - mean) for i, y in zip(inverse, seen, strict=True))
        return float(sum(np.linalg.slogdet(one)[1] for one in own) + squares + np.linalg.slogdet(known)[1])

    tried = [(0.0, 0.0, 0.0), (0.5, 0.0, 0.0), (0.0, 0.2, 0.1), (0.02, 0.0, 1.28)]
    fits = np.array([around.model(sizes).fit for sizes in tried])
    expected = np.array([marginal(sizes) for sizes in tried])
    np.testing.assert_allclose(fits - fits[0], expected - expected[0], atol=1e-8)


def test_one_decomposition_serves_all_sizes() -> None:
    given, _ = scores(4, seed=3)
    at = np.zeros(3)
    around = _PoolingProblem(given, at, given.value, deviation_kinds(RANKS))
    for kind in range(3):
        for model in around.models((0.0, 0.0, 0.0), kind):
            assert model.fit == pytest.approx(around.model(model.sizes).fit, abs=1e-8)


def test_shared_queries_widen_only_the_mean() -> None:
    given, _ = scores(5)
    at = np.zeros(3)
    wider = given._replace(mean_dispersion=3 * given.dispersion)
    one, other = (_PoolingProblem(g, at, g.value, deviation_kinds(RANKS)) for g in (given, wider))
    # Without deviations all is the mean; with any size of them, nothing is.
    mean = 3 * given.dispersion * np.linalg.inv(given.information.sum(axis=0))
    np.testing.assert_allclose(other.curves(other.model((0.0, 0.0, 0.0))).covariance[2], mean, rtol=1e-9)
    free = [around.curves(around.model((0.0, 0.0, 1e4))).covariance for around in (one, other)]
    np.testing.assert_allclose(free[1], free[0], rtol=1e-4)


def test_half_width_of_a_mixture_has_the_right_coverage() -> None:
    rng = np.random.default_rng(0)
    chances = rng.dirichlet(np.ones(3))
    means, deviations = 2 * rng.standard_normal((3, 4)), np.exp(rng.standard_normal((3, 4)))
    of = rng.choice(3, size=200_000, p=chances)
    drawn = means[of] + deviations[of] * rng.standard_normal((len(of), 4))
    for z, share in ((0.6745, 0.5), (1.96, 0.95)):
        half = NormalMixture(chances, means, deviations).half_width(z)
        np.testing.assert_allclose(np.mean(np.abs(drawn) < half, axis=0), share, atol=0.005)
    one = NormalMixture(np.ones(1), np.zeros((1, 4)), deviations[:1])
    np.testing.assert_allclose(one.half_width(8.0), 8 * deviations[0])


def coverage_of_pooling(segments: int, spread: float, more: float, seed: int) -> tuple[float, PooledCurves]:
    """Return how many 95% intervals hold curves that fall faster or slower by `spread`, with `more` information."""
    ranks = np.array([2.0, 3.0, 5.0, 10.0])
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((segments, 4, 6))
    information = 0.8 * more * np.exp(rng.standard_normal(segments))[:, None, None] * root @ root.swapaxes(1, 2)
    x = -np.log(ranks) - spread * rng.standard_normal((segments, 1)) * np.log(ranks) / np.log(10)
    noise = np.linalg.cholesky(information) @ rng.standard_normal((segments, 4, 1))
    given = SegmentScores(np.einsum("snm,sm->sn", information, x) + noise[:, :, 0], information, 1.0, 1.0)
    found = pool(given, -np.log(ranks), ranks)
    return float(np.mean(np.abs(found.centre - x) < found.posterior.half_width(1.96))), found


@pytest.mark.parametrize(
    ("segments", "spread", "logs", "more"),
    [
        (100, 0.1, 25, 1),
        (10, 0.3, 60, 1),
        (2, 0.6, 100, 1),
        (100, 0.01, 25, 100),
        (100, 0.005, 25, 400),
        (1000, 0.05, 10, 1),
    ],
)
@pytest.mark.long
def test_intervals_cover_a_spread_too_small_to_detect(segments: int, spread: float, logs: int, more: float) -> None:
    """However much data there are: a spread that they hardly tell from none is small beside them, not beside 1."""
    found = [coverage_of_pooling(segments, spread, more, seed) for seed in range(logs)]
    assert np.mean([pooled.difference_probability < 0.5 for _, pooled in found]) > 0.2
    assert 0.93 < np.mean([share for share, _ in found]) < 0.99


@pytest.mark.long
def test_intervals_of_two_segments_that_are_alike_are_not_too_wide() -> None:
    assert 0.93 < np.mean([coverage_of_pooling(2, 0.0, 100, seed)[0] for seed in range(200)]) < 0.98


def test_equal_segments_are_merged_and_precise_ones_are_not_shrunk() -> None:
    given, x = scores(40, seed=1)
    alike = given._replace(value=np.einsum("snm,m->sn", given.information, -np.log(RANKS)))
    found = pool(alike, -np.log(RANKS), RANKS)
    assert found.difference_probability < 0.1
    np.testing.assert_allclose(found.x, np.tile(-np.log(RANKS), (40, 1)), atol=1e-6)
    sure = given._replace(
        value=np.einsum("snm,sm->sn", 1e4 * given.information, x), information=1e4 * given.information
    )
    found = pool(sure, -np.log(RANKS), RANKS)
    assert found.difference_probability > 0.999
    np.testing.assert_allclose(found.x, x, atol=1e-2)
    assert found.own_share.min() > 0.95


def unclicked(table: pa.Table, where: Callable[[str, int], bool]) -> pa.Table:
    """Return a log without the clicks of some devices and positions."""
    columns = (table[name].to_pylist() for name in ("clicked", "device", "position"))
    clicked = [0 if where(device, position) else c for c, device, position in zip(*columns, strict=True)]
    return table.set_column(table.schema.get_field_index("clicked"), "clicked", pa.array(clicked))


@pytest.fixture(scope="module", params=["wide", "replay"])
def harvest(request: pytest.FixtureRequest) -> posbias.Harvest:
    world = posbias.World(queries=400, max_rank=5, segments={"phone": 1.5, "tablet": 1.0, "desktop": 0.5})
    return posbias.harvest(posbias.ClickLog(posbias.simulate(world, request.param)), by=["device"], max_rank=5)


def test_score_of_a_segment_equals_that_of_its_own_harvest(harvest: posbias.Harvest) -> None:
    by_segment = SegmentStrata.of(harvest)
    by_design = by_segment.strata.by_design
    rows = CellRows.of(by_segment.strata, by_design=by_design)
    rows = replace(rows, cell_bucket=by_segment.segment[rows.cell_bucket], buckets=len(harvest.segments))
    x = -np.linspace(0.5, 1.5, 3)[:, None] * np.log(np.arange(1, 6))
    together = ScoreTerms.at(x, rows, by_segment.traffic, None)
    for number, key in enumerate(harvest.segments):
        alone = harvest.segment(key)
        np.testing.assert_allclose(by_segment.traffic[number], alone.views.sum(axis=0))
        own = ScoreTerms.at(x[number], CellRows.of(alone.strata(), by_design=by_design), alone.views.sum(axis=0), None)
        np.testing.assert_allclose(together.by_bucket()[number], own.by_bucket().sum(axis=0), atol=1e-8)
        np.testing.assert_allclose(together.information(by_bucket=True)[number], own.information(), atol=1e-8)
        # Without a guess this is the slope itself.
        np.testing.assert_allclose(own.information(), own.jacobian(), atol=1e-8)


def test_dispersion_is_the_variance_between_parts_of_a_segment(harvest: posbias.Harvest) -> None:
    by_segment = SegmentStrata.of(harvest)
    parts = CellRows.of(by_segment.strata, by_design=by_segment.strata.by_design)
    rows = replace(parts, cell_bucket=by_segment.segment[parts.cell_bucket], buckets=3)
    x = -np.linspace(0.5, 1.5, 3)[:, None] * np.log(np.arange(1, 6))
    score, free = ScoreTerms.at(x, rows, by_segment.traffic, None), np.arange(1, 5)
    information = score.information(by_bucket=True)[:, 1:, 1:]
    squares = np.zeros((4, 4))
    for segment, traffic in enumerate(by_segment.traffic):
        own = np.flatnonzero(by_segment.segment == segment)
        moved = []
        for part in own:
            # What the part adds, and what its page views do to the rest by the traffic that they make.
            views = by_segment.strata.views[part]
            off = 1e-3 * (views - views.sum() * traffic / traffic.sum())
            ahead, behind = (
                ScoreTerms.at(x, rows, by_segment.traffic + sign * off * np.eye(3)[:, [segment]], None)
                for sign in (1, -1)
            )
            slope = (ahead.by_bucket()[segment] - behind.by_bucket()[segment]) / 2e-3
            moved.append(parts.sum_by_bucket(score.score)[part] + slope)
        squares += len(own) * np.cov(np.array(moved)[:, 1:].T)
    expected = np.trace(np.linalg.solve(information.sum(axis=0), squares)) / 4
    found = pooling._dispersion(score, information, parts, by_segment, free)
    assert found == pytest.approx(expected, rel=1e-4)


def test_pooled_segments_report_their_counts_and_notes(harvest: posbias.Harvest) -> None:
    apart, pooled = posbias.CrossFit().fit(harvest), posbias.CrossFit(pool=True).fit(harvest)
    np.testing.assert_array_equal(pooled.propensity_, apart.propensity_)
    for key, part in pooled.segments_.items():
        own = apart.segments_[key].curve()
        found = part.curve()
        assert found.page_views == own.page_views
        assert [(p.impressions, p.clicks) for p in found.positions] == [
            (p.impressions, p.clicks) for p in own.positions
        ]
        assert found.notes[0].startswith("Pooled: ")
        truth = {"phone": 1.5, "tablet": 1.0, "desktop": 0.5}[str(key[0])]
        off = np.log(part.propensity_) + truth * np.log(np.arange(1, 6))
        assert np.abs(off[1:] / np.sqrt(np.diag(part.covariance_)[1:])).max() < 4
        low, high = part.interval_[1:].T
        assert np.all((low < part.propensity_[1:]) & (part.propensity_[1:] < high))
    curve = pooled.curve()
    assert posbias.Curve.from_dict(curve.to_dict()) == curve


def test_ranks_that_a_segment_does_not_identify_are_borrowed_and_marked() -> None:
    world = posbias.World(queries=300, max_rank=4, segments={"phone": 1.2, "desktop": 0.8})
    table = posbias.simulate(world)
    # Only its first two ranks were ever clicked.
    table = unclicked(table, lambda device, position: device == "phone" and position > 2)
    harvest = posbias.harvest(posbias.ClickLog(table), by=["device"], max_rank=4)
    fitted = posbias.CrossFit(pool=True).fit(harvest)
    phone = fitted.segments_[("phone",)]
    assert [reason is not None and reason.startswith("borrowed") for reason in phone.reasons_] == [
        False,
        False,
        True,
        True,
    ]
    assert np.all(phone.propensity_ > 0)
    assert fitted.segments_[("desktop",)].reasons_ == [None] * 4


def test_a_segment_without_any_clicks_gets_the_common_curve() -> None:
    world = posbias.World(queries=300, max_rank=4, segments={"phone": 1.0, "desktop": 1.0, "none": 1.0})
    table = posbias.simulate(world)
    table = unclicked(table, lambda device, position: device == "none")
    fitted = posbias.CrossFit(pool=True).fit(posbias.harvest(posbias.ClickLog(table), by=["device"], max_rank=4))
    none = fitted.segments_[("none",)]
    assert none.notes_ == (
        "Pooled: 0% of this curve comes from the clicks of this segment, the rest from all segments.",
    )
    np.testing.assert_allclose(np.log(none.propensity_), np.log(fitted.propensity_), atol=0.1)


def test_note_says_how_much_comes_from_the_segment_itself() -> None:
    nothing, counts = np.zeros((3, 3)), np.zeros((3, 3), dtype=np.int64)
    own = np.array([[0, 0.996, 1], [0, 0.9, 1], [0, 0.4, 0.4]])
    known, about = nothing == 0, NormalMixture(np.ones(1), np.zeros((1, 3, 2)), np.ones((1, 3, 2)))
    found = pooling.PooledSegments(
        nothing, nothing, np.zeros((3, 3, 3)), about, own, known, counts, counts, nothing, difference_probability=1.0
    )
    assert [*found.notes()] == [
        "Pooled: over 99% of this curve comes from the clicks of this segment.",
        "Pooled: 90 to 100% of this curve comes from the clicks of this segment, the rest from all segments.",
        "Pooled: 40% of this curve comes from the clicks of this segment, the rest from all segments.",
    ]


def test_segments_of_one_query_are_pooled_too() -> None:
    world = posbias.World(queries=1, repeats=200, max_rank=3, segments={"phone": 1.5, "desktop": 0.5})
    fitted = posbias.CrossFit(pool=True).fit(
        posbias.harvest(posbias.ClickLog(posbias.simulate(world)), by=["device"], max_rank=3)
    )
    for part in fitted.segments_.values():
        assert 0 < part.propensity_[1] < 1
        assert np.isnan(part.interval_[1]).all()


def test_pooling_needs_strata_and_room(harvest: posbias.Harvest, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(posbias.EstimateError, match="pool must be True or False"):
        posbias.CrossFit(pool=1).fit(harvest)  # type: ignore[arg-type]
    monkeypatch.setattr(pooling, "_MAX_NUMBERS", 50)
    with pytest.raises(posbias.EstimateError, match="3 segments of 5 ranks are too many to pool: the maximum is 2"):
        posbias.CrossFit(pool=True).fit(harvest)


def test_segments_of_one_ranker_each_cannot_be_pooled() -> None:
    """A log by its arm, as `--by arm` gives it: nothing is compared within a segment."""
    table = posbias.simulate(posbias.World(queries=200, max_rank=4))
    log = posbias.ClickLog(table.append_column("arm", table["ranker"]))
    found = posbias.harvest(log, max_rank=4, by="arm", force=True)
    with pytest.raises(posbias.EstimateError, match="no documents connect ranks 2 to 4 with rank 1, as when a segment"):
        posbias.CrossFit(pool=True).fit(found)


def test_pooling_without_segments_or_without_intervals(harvest: posbias.Harvest) -> None:
    whole = posbias.CrossFit(pool=True).fit(harvest.segment("phone"))
    assert whole.segments_ == {}
    part = posbias.CrossFit(pool=True, interval=None).fit(harvest).segments_[("phone",)]
    assert np.isnan(part.interval_).all()
    assert part.curve().level is None


@pytest.mark.parametrize("name", ["10 segments, alike", "10 segments, η ± 0.3"])
@pytest.mark.long
def test_pooling_has_less_error_than_separate_or_common_curves(name: str) -> None:
    setting: PoolingSetting = SETTINGS[name]
    separate, common, pooled, covered = np.mean([measure(setting, seed) for seed in range(6)], axis=0)
    assert pooled < 1.1 * min(separate, common)
    assert covered > 0.88


def test_many_tiny_segments_are_not_biased() -> None:
    world = posbias.World(queries=1500, max_rank=2)
    table = posbias.simulate(world)
    part = np.random.default_rng(0).integers(0, 3000, len(table)).astype(str)
    log = posbias.ClickLog(table.append_column("part", pa.array(part)))
    curve = posbias.CrossFit(pool=True).fit(posbias.harvest(log, max_rank=2, by=["part"], force=True)).curve()
    pooled = np.nanmean([own.propensity[1] for own in curve.segments.values()])
    assert pooled == pytest.approx(curve.propensity[1], abs=0.02)


def narrowest(segments: int, least: float, most: float) -> tuple[float, float]:
    """Return how often the narrowest intervals hold where S equal segments are alike, and half their width there.

    They hold `least` of the time at every spread and `most` at none; `docs/theory_pooling.md` says what they are.
    """
    n = segments - 1
    spreads = np.sqrt(2 / n) * np.array([0, 0.125, 0.25, 0.375, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4])
    every = np.outer(1 + spreads, stats.chi2.ppf((np.arange(200) + 0.5) / 200, n)).ravel()
    ends = np.concatenate([[0], np.quantile(every, np.arange(1, 40) / 40), [np.inf]])
    seen = np.diff(stats.chi2.cdf(ends / (1 + spreads[:, None]), n), axis=1)
    part = np.searchsorted(ends, every) - 1
    # The squared deviation of one segment is a share of Q, which is beta.
    q = np.bincount(part, every) / np.bincount(part)
    share = stats.beta.ppf((np.arange(24) + 0.5) / 24, 0.5, (n - 1) / 2) if n > 1 else np.ones(1)
    off = np.sqrt(np.outer(q, share) * (1 - 1 / segments))[:, None]
    b, half = (grid.ravel() for grid in np.meshgrid([*np.arange(0, 0.4, 0.05), *np.arange(0.4, 1.01, 0.1)], WIDTHS))
    wide = half >= 1.96 * np.sqrt(b**2 + (1 - b**2) / segments)
    b, half = b[wide][:, None], half[wide][:, None]
    holds = []
    for spread, chance in zip(spreads, seen, strict=True):
        own = spread / (1 + spread)
        sd = np.sqrt(own + (1 - own) / segments)
        found = special.ndtr((half + (b - own) * off) / sd) - special.ndtr((-half + (b - own) * off) / sd)
        holds.append((chance[:, None] * found.mean(axis=-1)).ravel())
    width = np.array([np.outer(chance, half).ravel() for chance in seen])
    known = np.sqrt((spreads + 1 / segments) / (1 + spreads))
    best = optimize.linprog(
        (width / known[:, None]).mean(axis=0),
        A_ub=np.vstack([-np.array(holds), holds[0]]),
        b_ub=[*np.full(len(spreads), -least), most],
        A_eq=np.kron(np.eye(len(q)), np.ones(len(half))),
        b_eq=np.ones(len(q)),
    ).x
    return float(holds[0] @ best), float(width[0] @ best)


@pytest.mark.parametrize(
    ("segments", "least", "alike", "cost"),
    [(2, 0.93, 94.2, 0), (10, 0.93, 96.7, 0), (10, 0.95, 97.7, 1), (100, 0.93, 99.0, 6), (100, 0.95, 99.3, 11)],
)
@pytest.mark.long
def test_no_interval_covers_every_spread_and_is_narrow_without_spread(
    segments: int, least: float, alike: float, cost: float
) -> None:
    (free, width), (_, wider) = (narrowest(segments, least, most) for most in (1.0, 0.97))
    assert 100 * free == pytest.approx(alike, abs=0.15)
    assert 100 * (wider / width - 1) == pytest.approx(cost, abs=0.7)
