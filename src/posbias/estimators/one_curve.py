"""Test whether one curve explains the clicks of every two rankers on the same documents.

Ranker i puts some documents at rank k, and ranker j puts the same documents at rank k' (k = k' included). Of the T
clicks on them, A are on pages of i. Under the position-based model A is binomial (Bradley and Terry, 1952):

    A ~ Bin(T, π),    logit π = log(n_i / n_j) + x_k − x_k',    x = log p

with n_i the page views of ranker i; if pages end at different depths, n_i s_ik (`PageDepth`). Relevance cancels. One
curve x is fitted to all pairs of rankers, and the residuals e = A − T π are tested. If they are larger than chance
allows, the model is wrong, or traffic depends on the query.

- `directions_test` asks for effects Σ c e along a few directions c: a ranker effect, trust bias and a bend.
- `misfit_test` asks for any misfit: Q = Σ e²/v, with v = T π (1 − π).
- `ranker_effect_test` asks for the ranker effect alone: one ranker gets more clicks than curve and traffic explain.

The unit of randomness is a bucket of queries: E_b = A_b − T_b π − v (n_bi / n_i − n_bj / n_j), projected off the fit.

Rankers that are similar have little power to show any of this: `OneCurve.trust_bias` has a standard error, which says
how large an effect would have been detected.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, group, lookup, one_blas_thread, sum_by_index
from posbias._stats import FTest, f_tail, not_tested, round_significant, satterthwaite_of_squares
from posbias._text import format_p_value
from posbias.estimators.base import MIN_BUCKETS, deletion_weights
from posbias.estimators.page_depth import PageDepth
from posbias.estimators.significance import ONE_CURVE_LEVEL, RANKER_EFFECT_LEVEL, AssumptionTest, Contrasts, joint_test
from posbias.findings import Finding
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.tables import Cells
from posbias.logs.schema import ANY_RANKER

# Only the rankers with most page views are compared: the number of pairs grows with its square.
MAX_RANKERS = 8
# An effect of its own is tested for this many rankers.
_MAX_RANKER_EFFECTS = 3
# A smaller effect of trust bias is detected in four logs of five if it is this many standard errors from 0.
_DETECTABLE_ERRORS = 2.8
# Strong trust bias is about 0.35. If less than this cannot be detected, a test that finds nothing is no evidence.
_MAX_DETECTABLE = 0.3
# Newton's method: steps, the longest step, the largest log propensity, and a ridge that keeps the Hessian regular.
_MAX_STEPS, _MAX_STEP, _MAX_LOG_PROPENSITY, _RIDGE = 50, 2.0, 15.0, 1e-9
# Rounds of the additive smoothing of relevance.
_SMOOTHING_ROUNDS = 20
# In a cascade, the probability of reading on is not taken to be less than this.
_MIN_READING = 0.05
# A misfit test of more numbers (buckets × pairs) would take too much memory.
_MAX_NUMBERS = 10**7
# Pairs of rankers with a smaller variance have too few clicks for e²/v to be χ²; a smaller trace of it is rounding.
_MIN_VARIANCE, _ROUNDING = 1.0, 1e-6
# If trust bias that changes a rank by a larger factor could have gone unnoticed, its size is not reported.
MAX_FACTOR = 10.0
# This many pairs of rankers with the largest residuals are named.
_MAX_NAMED_PAIRS = 3
_RESEMBLES = {
    "trust": "trust bias: relevant and irrelevant documents have different curves",
    "cascade": "a cascade: users stop at a click, so the results above decide whether a rank is examined",
    "neighbours": "neighbours that matter: a result draws clicks to, or from, the results next to it",
    "traffic": "an effect of the ranker at all ranks: traffic depends on the query, or users click once per page",
}
_REMEDIES = {
    "trust": "Compare the curves by a proxy of relevance (proxy). Weights from one curve are biased.",
    "cascade": "Diagnose the log itself, with page views, to see how many have several clicks. No single curve fits a "
    "cascade.",
    "neighbours": "Compare the curves of rankers that show different neighbours. One curve is an average over them.",
    "traffic": "Check that each page view draws its ranker at random, independently of query and user, and that the "
    "pages of the rankers differ only in their order.",
}


# Why the assumption of replay, that documents did not move because their relevance changed, is not tested.
REPLAY_UNTESTED = ("the log names no rankers", "nothing shows that rankers overlap in time")
_NAME_RANKERS = "Name the column of the ranker (ranker), or compare only within a day or week (window)."


# ---- The tests as findings


def assumption_tests(one_curve: OneCurve, harvest: Harvest) -> list[AssumptionTest]:
    """Return the tests whether one curve fits all pairs of ranks, and whether a ranker has an effect of its own."""
    evidence = _evidence(one_curve, harvest.rankers)
    violated = Finding(
        "contradictory-pairs",
        "warning",
        f"{verdict(one_curve, harvest)}. The pattern resembles {one_curve.resemblance}",
        len(evidence["largest_residuals"]),
        example="; ".join(evidence["largest_residuals"]),
        evidence=evidence,
        remedy=_remedy(one_curve, harvest),
    )
    passed = _one_curve_finding(one_curve, harvest, evidence)
    return [
        AssumptionTest(one_curve.overall_test, violated, passed, level=ONE_CURVE_LEVEL),
        *_ranker_effect_tests(one_curve),
    ]


def _remedy(one_curve: OneCurve, harvest: Harvest) -> str:
    if harvest.rankers == (ANY_RANKER,):
        return f"Documents may have moved because they became more or less relevant. {_NAME_RANKERS}"
    return _REMEDIES[next(iter(one_curve.resembles))]


def verdict(one_curve: OneCurve, harvest: Harvest) -> str:
    """Return whether one curve fits all pairs of ranks: the first sentence of every text about it."""
    p_value = format_p_value(one_curve.overall_test.p_value, ONE_CURVE_LEVEL)
    if one_curve.contradicted:
        of_rankers = "" if harvest.rankers == (ANY_RANKER,) else " of all rankers"
        return f"Pairs of ranks contradict each other: no single curve fits the clicks{of_rankers} ({p_value})"
    reason, _ = _why_not_tested(one_curve, harvest)
    if reason:
        return f"Not tested: whether one curve fits all pairs of ranks ({reason})"
    return f"One curve fits all pairs of ranks ({p_value})"


def _why_not_tested(one_curve: OneCurve, harvest: Harvest) -> tuple[str, str]:
    """Return why a test that raises no alarm is no evidence for one curve, and what to do; empty texts if it is."""
    if harvest.rankers == (ANY_RANKER,):
        return REPLAY_UNTESTED[0], (
            f"If documents moved because they became more or less relevant, the curve is wrong, and no test shows it. "
            f"{_NAME_RANKERS}"
        )
    over_time = {finding.code: finding for finding in harvest.findings}
    if "rankers-overlap" not in over_time and (replaced := over_time.get("rankers-replaced")):
        return "the rankers overlap too little in time", replaced.remedy
    if "rankers-overlap" not in over_time and not harvest.layout.ranks_known:
        return REPLAY_UNTESTED[1], (
            "If one ranker replaced another, the curve compares different times. Name the column of the time (time) to "
            "see whether it did."
        )
    if not one_curve.overall_test.tested or not one_curve.can_detect_trust_bias:
        return "the rankers are too similar, or there is too little data", (
            "Compare the curves by a proxy of relevance (proxy), which works with similar rankers too."
        )
    return "", ""


def _evidence(one_curve: OneCurve, rankers: Sequence[str]) -> dict[str, Any]:
    effect, error = one_curve.trust_bias
    return {
        "p_value_directions": round_significant(one_curve.directions_test.p_value),
        "p_value_misfit": round_significant(one_curve.misfit_test.p_value),
        "p_value_ranker_effect": round_significant(one_curve.ranker_effect_test.p_value),
        "click_rate_ratio": round_significant(one_curve.click_rate_ratio),
        "trust_bias": round_significant(effect),
        "trust_bias_standard_error": round_significant(error),
        "trust_bias_detectable": round_significant(one_curve.detectable_trust_bias),
        "resembles": {name: round(value, 1) for name, value in one_curve.resembles.items()},
        "largest_residuals": _describe_largest_residuals(one_curve, rankers),
    }


def _describe_largest_residuals(one_curve: OneCurve, rankers: Sequence[str]) -> list[str]:
    """Return the pairs of rankers and ranks that add most to Q, as text."""
    residuals, pairs = one_curve.residuals, one_curve.residuals.pairs
    first_row = pairs.groups[0]
    excess, variance, clicks, observed = (
        pairs.sum_by_group(values) for values in (residuals.excess, residuals.variance, pairs.total, pairs.first_count)
    )
    contribution = np.divide(excess**2, variance, out=np.zeros_like(excess), where=variance > 1e-9)
    texts = []
    for place in np.argsort(-contribution, kind="stable")[:_MAX_NAMED_PAIRS]:
        row = first_row[place]
        if contribution[place] <= 0:
            break
        first, second = pairs.first_rank[row] + 1, pairs.second_rank[row] + 1
        if rankers == (ANY_RANKER,):
            compared = f"rank {first} against rank {second}"
        else:
            one, other = rankers[pairs.first_ranker[row]], rankers[pairs.second_ranker[row]]
            compared = f"{one!r} at {first} against {other!r} at {second}"
        texts.append(
            f"{compared}: {observed[place]:,.0f} of {clicks[place]:,.0f} clicks, "
            f"{observed[place] - excess[place]:,.0f} expected"
        )
    return texts


def _one_curve_finding(one_curve: OneCurve, harvest: Harvest, evidence: dict[str, Any]) -> Finding:
    """Return that one curve fits, or that the data could not show that it does not."""
    untested, remedy = _why_not_tested(one_curve, harvest)
    ratio = evidence["click_rate_ratio"]
    rankers = f" (at rank 1 the best ranker is clicked {ratio:.2f} times as often as the worst)" if ratio else ""
    return Finding(
        "one-curve-not-tested" if untested else "one-curve",
        "info",
        f"{verdict(one_curve, harvest)}. {_describe_unnoticed(one_curve)}{rankers}",
        evidence=evidence,
        remedy=remedy,
    )


def _describe_unnoticed(one_curve: OneCurve) -> str:
    """Return how much trust bias could have gone unnoticed, as what it does to the last rank."""
    band = one_curve.unnoticed_band
    last = int(np.flatnonzero(np.isfinite(band).all(axis=1))[-1]) if np.isfinite(band).any() else 0
    low, high = band[last]
    if not last or not np.isfinite(high) or high > MAX_FACTOR:
        return "Trust bias of any size could have gone unnoticed"
    return (
        f"Trust bias that is too small for this test could multiply the propensity at rank {last + 1} by {low:.2f} to "
        f"{high:.2f}, for documents that are half or twice as relevant as the average"
    )


def unnoticed_factors(log_propensity: FloatArray, detectable: float) -> FloatArray:
    """Return by what trust bias of a detectable size multiplies a curve, at least and at most: (M, 2).

    It is for documents half or twice as relevant as the average: x_k (1 ± δ log 2), with x = log p and δ the size.
    """
    change = np.abs(log_propensity) * detectable * np.log(2)
    return np.asarray(np.exp(np.stack([-change, change], axis=1).clip(-_MAX_LOG_PROPENSITY, _MAX_LOG_PROPENSITY)))


def _ranker_effect_tests(one_curve: OneCurve) -> list[AssumptionTest]:
    result = one_curve.ranker_effect_test
    if not result.numerator:
        return []
    violated = Finding(
        "ranker-effect",
        "warning",
        "A ranker gets more clicks than others on the same documents, by more than ranks and traffic explain "
        f"({format_p_value(result.p_value, RANKER_EFFECT_LEVEL)})",
        evidence={"resembles": {name: round(value, 1) for name, value in one_curve.resembles.items()}},
        remedy="Check that clicks are logged in the same way for all rankers and none are lost, that traffic is split "
        "independently of query and user, and whether the results around a result matter.",
    )
    return [AssumptionTest(result, violated, level=RANKER_EFFECT_LEVEL)]


# ---- The tests


@dataclass(frozen=True, eq=False)
class OneCurve:
    """Tests whether one curve fits all pairs of rankers and ranks.

    Attributes:
        residuals (Residuals): of clicks, from the best-fitting curve.
        by_unit (OneCurve or None): the same by buckets of units, such as users, if rankers were assigned to them.
        unit_inflation (float, default 1.0): by what the statistics are divided, if pairs are not counted by unit
            (replay): see `unit_inflation`.
    """

    residuals: Residuals
    by_unit: OneCurve | None = None
    unit_inflation: float = 1.0

    @classmethod
    @one_blas_thread()
    def of_harvest(cls, harvest: Harvest) -> OneCurve | None:
        """Fit one curve to all pairs of rankers of a harvest, once; None if it holds sums over rankers."""
        if harvest.kind == "pairs":
            return None
        if "one_curve" not in harvest.derived:
            # In replay, units have no strata.
            units = None if harvest.units is None or harvest.units.are_losses else harvest.units.by_unit
            fitted = cls.of(RankerPairs.of(harvest), units)
            harvest.derived["one_curve"] = replace(fitted, unit_inflation=unit_inflation(fitted, harvest))
        found: OneCurve = harvest.derived["one_curve"]
        return found

    @classmethod
    def of(cls, pairs: RankerPairs, units: Harvest | None = None) -> OneCurve:
        """Fit one curve to all pairs of rankers."""
        by_unit = None if units is None else cls.of(RankerPairs.of(units))
        return cls(Residuals.of_clicks(pairs), by_unit)

    @cached_property
    def directions_test(self) -> FTest:
        """The test for a ranker effect, trust bias and a bend together."""
        residuals, pairs = self.residuals, self.residuals.pairs
        return self._effects_test([*ranker_effects(pairs).values(), trust(residuals), bend(pairs)])

    @cached_property
    def overall_test(self) -> FTest:
        """The smaller p-value of the tests of directions and of misfit, corrected for there being two (Bonferroni)."""
        directions, misfit = self._inflated(self.directions_test), self._inflated(self.misfit_test)
        p_values = [test.p_value for test in (directions, misfit) if test.tested]
        test = directions
        if directions.tested:
            test = directions._replace(p_value=min(1.0, len(p_values) * min(p_values)))
        return self._larger_p_value(test, lambda by_unit: by_unit.overall_test)

    def _larger_p_value(self, test: FTest, by_unit: Callable[[OneCurve], FTest]) -> FTest:
        """Return the result of two tests with the larger p-value: by buckets of queries, and of units if there are."""
        if self.by_unit is None:
            return test
        other = by_unit(self.by_unit)
        return other if other.tested and other.p_value > test.p_value else test

    @property
    def contradicted(self) -> bool:
        """Whether no single curve fits. The level is fixed, so that every command has the same verdict."""
        return self.overall_test.p_value < ONE_CURVE_LEVEL

    @cached_property
    def ranker_effect_test(self) -> FTest:
        """The test for a ranker effect alone, on the documents of every two rankers at all pairs of ranks."""
        test = self._inflated(self._effects_test([*ranker_effects(self.residuals.pairs).values()]))
        return self._larger_p_value(test, lambda by_unit: by_unit.ranker_effect_test)

    def _inflated(self, test: FTest) -> FTest:
        """Return a test whose variance is larger by the units."""
        if not test.tested or self.unit_inflation <= 1:
            return test
        statistic = test.statistic / self.unit_inflation
        p_value = f_tail(test.numerator, test.denominator, statistic)
        return test._replace(statistic=statistic, p_value=p_value)

    def _effects_test(self, directions: Sequence[FloatArray]) -> FTest:
        """Test whether the effects along some directions are 0 (Hotelling's T²).

        The effects δ are fitted, V δ = Σ_b E_b with V_b = Σ c cᵀ v, and the variance comes from what they leave:
        E_b − V_b δ. A bucket with a frequent query would otherwise take an effect for noise. Its part in the fit is
        allowed for: (1 − V_b V⁻¹)⁻¹ (MacKinnon and White, 1985, HC3).
        """
        residuals, pairs = self.residuals, self.residuals.pairs
        if not directions or pairs.bucket_count < MIN_BUCKETS:
            return not_tested("there is no data on it")
        projected = np.stack([residuals.project_off_fit(direction) for direction in directions], axis=1)
        scale = np.sqrt((projected**2 * residuals.variance[:, None]).sum(axis=0))
        known = scale > _ROUNDING * max(1.0, float(scale.max(initial=0)))
        projected = projected[:, known] / scale[known]
        size = projected.shape[1]
        if not size:
            return not_tested("there is no data on it")
        sums = np.stack([residuals.sum_by_bucket(direction) for direction in projected.T], axis=1)
        # Rows are sorted by bucket.
        ends = np.searchsorted(pairs.bucket, np.arange(pairs.bucket_count + 1))
        weighted = projected * residuals.variance[:, None]
        by_bucket = np.stack([projected[a:b].T @ weighted[a:b] for a, b in itertools.pairwise(ends)])
        inverse = np.linalg.pinv(by_bucket.sum(axis=0), rcond=_ROUNDING, hermitian=True)
        left = sums - by_bucket @ (inverse @ sums.sum(axis=0))
        rest = np.eye(size) - by_bucket @ inverse
        if np.linalg.cond(rest).max() > 1 / _ROUNDING:
            return not_tested("all data is of one bucket of queries")
        changes = np.linalg.solve(rest, left[:, :, None])[:, :, 0]
        if (changes**2).sum(axis=0).min() <= _ROUNDING**2:
            return not_tested("the curve fits exactly")
        return joint_test(Contrasts.from_deletions(sums.sum(axis=0), changes))

    @cached_property
    def misfit_test(self) -> FTest:
        """The test of Q = Σ e²/v over all pairs of rankers and ranks, as a scaled F (Satterthwaite's approximation)."""
        pairs, buckets = self.residuals.pairs, self.residuals.pairs.bucket_count
        groups = len(pairs.groups[0])
        if not groups or buckets < MIN_BUCKETS or buckets * groups > _MAX_NUMBERS:
            return not_tested("there are too few buckets, or too many pairs of rankers")
        variance = pairs.sum_by_group(self.residuals.variance)
        enough = variance >= _MIN_VARIANCE
        scaled = self._sum_by_bucket_and_group()[:, enough] / np.sqrt(variance[enough])
        gram = scaled @ scaled.T
        squares = np.diagonal(gram)
        trace = squares.sum() * buckets / (buckets - 1)
        # tr(W²) from pairs of different buckets alone: a bucket with itself would add fourth powers.
        trace_of_square = (np.sum(gram**2) - np.sum(squares**2)) * buckets / (buckets - 1)
        # If the curve fits exactly, only rounding errors are left.
        if trace <= _ROUNDING * enough.sum() or trace_of_square <= 0:
            return not_tested("the curve fits exactly")
        numerator = min(trace**2 / trace_of_square, float(enough.sum()))
        denominator = float(satterthwaite_of_squares(squares))
        statistic = float((scaled.sum(axis=0) ** 2).sum() / trace)
        return FTest(statistic, round(numerator), denominator, f_tail(numerator, denominator, statistic))

    def _sum_by_bucket_and_group(self) -> FloatArray:
        """Return what each bucket adds to e of every (i, j, k, k'), projected off the fit: (B, groups)."""
        residuals, pairs = self.residuals, self.residuals.pairs
        first_row, group_of = pairs.groups
        groups = len(first_row)
        sums = np.bincount(
            pairs.bucket * groups + group_of, weights=residuals.excess, minlength=pairs.bucket_count * groups
        ).reshape(pairs.bucket_count, groups)
        variance = pairs.sum_by_group(residuals.variance)
        if pairs.by_design:
            share = pairs.page_views / np.maximum(pairs.page_views.sum(axis=0), 1)
            sums = sums - variance * (
                share[:, pairs.first_ranker[first_row]] - share[:, pairs.second_ranker[first_row]]
            )
            if pairs.shown_influence is not None:
                influence = pairs.shown_influence.reshape(pairs.bucket_count, -1)
                first, second = (place[first_row] for place in pairs.places)
                sums = sums - variance * (influence[:, first] - influence[:, second])
        design = np.zeros((groups, pairs.max_rank))
        design[np.arange(groups), pairs.first_rank[first_row]] += 1
        design[np.arange(groups), pairs.second_rank[first_row]] -= 1
        inverse = np.linalg.pinv(pairs.laplacian(residuals.variance), rcond=1e-9, hermitian=True)
        return np.asarray(sums - (sums @ design) @ inverse @ (design * variance[:, None]).T)

    @cached_property
    def trust_bias(self) -> tuple[float, float]:
        """How much steeper the curve is for documents e times as relevant, as a share of it, and its standard error."""
        residuals = self.residuals
        direction = residuals.project_off_fit(trust(residuals))
        information = float((direction**2 * residuals.variance).sum())
        sums = residuals.sum_by_bucket(direction)
        buckets = len(sums)
        if information <= 0 or buckets < 2:
            return float("nan"), float("nan")
        error = np.sqrt((sums**2).sum() * buckets / (buckets - 1)) / information
        return float(sums.sum() / information), float(error)

    @property
    def detectable_trust_bias(self) -> float:
        """The effect of trust bias that would be detected with a statistical power of 80%."""
        return _DETECTABLE_ERRORS * self.trust_bias[1]

    @property
    def can_detect_trust_bias(self) -> bool:
        """Whether trust bias that is large enough to matter would be detected."""
        return self.detectable_trust_bias <= _MAX_DETECTABLE

    @cached_property
    def unnoticed_band(self) -> FloatArray:
        """By what trust bias that may have gone unnoticed multiplies the curve, at least and at most: (M, 2)."""
        x = self.residuals.log_propensity - self.residuals.log_propensity[0]
        return unnoticed_factors(x, self.detectable_trust_bias)

    @cached_property
    def click_rate_ratio(self) -> float:
        """The click rate at rank 1 of the best ranker over that of the worst; NaN if fewer than two are known."""
        rates = self.residuals.pairs.click_rates[:, 0]
        known = rates[rates > 0]
        return float(known.max() / known.min()) if len(known) > 1 else float("nan")

    @cached_property
    def resembles(self) -> dict[str, float]:
        """How much of Q each violation of the model would explain, by name, the largest first."""
        residuals, pairs = self.residuals, self.residuals.pairs
        directions = {"trust": trust(residuals), "cascade": cascade(pairs), "neighbours": neighbours(residuals)}
        effects = [*ranker_effects(pairs).values()]
        if effects:
            directions["traffic"] = effects[0]
        explained = {name: self._explained(direction) for name, direction in directions.items()}
        return dict(sorted(explained.items(), key=lambda item: -item[1]))

    @property
    def resemblance(self) -> str:
        """The violation that explains most of Q, as text."""
        return _RESEMBLES[next(iter(self.resembles))]

    def _explained(self, direction: FloatArray) -> float:
        """Return by how much Q falls if c is added to the model: (Σ c e)² / Σ c² v, with c projected off the fit."""
        residuals = self.residuals
        direction = residuals.project_off_fit(direction)
        information = float((direction**2 * residuals.variance).sum())
        return float((direction * residuals.excess).sum() ** 2 / information) if information > 0 else 0.0


def unit_inflation(one_curve: OneCurve, harvest: Harvest) -> float:
    """Return how many times larger the variance of a ranker's effect is by units than by queries alone.

    In replay pairs are not counted by unit, and tests by queries take it for an effect of the ranker that its users
    click more than those of others. The variance that users add to the log click rate of a ranker, V_unit − V_both, is
    added to the variance of its effect by queries. The result is at least 1; it is 1 without units, and where pairs are
    counted by unit.
    """
    residuals = one_curve.residuals
    if harvest.units is None or not harvest.units.are_losses or residuals.pairs.bucket_count < MIN_BUCKETS:
        return 1.0
    by_unit, by_both = (_variance_of_click_rates(one) for one in (harvest.units.by_unit, harvest.units.by_both))
    largest = 1.0
    for ranker, effect in ranker_effects(residuals.pairs).items():
        test, added = one_curve._effects_test([effect]), float(by_unit[ranker] - by_both[ranker])
        direction = residuals.project_off_fit(effect)
        information = float((direction**2 * residuals.variance).sum())
        size = float(residuals.sum_by_bucket(direction).sum()) / max(information, 1e-300)
        # The statistic is the square of the size over its variance by queries.
        if test.tested and added > 0 and size:
            largest = max(largest, 1 + added * test.statistic / size**2)
    return largest


def _variance_of_click_rates(harvest: Harvest) -> FloatArray:
    """Return the jackknife variance of the log of each ranker's click rate over that of all others, (m,)."""
    shown, clicks = harvest.counts("bucket", "ranker").astype(np.float64)

    def log_ratios(shown: FloatArray, clicks: FloatArray) -> FloatArray:
        rest = [counts.sum(axis=-1, keepdims=True) - counts for counts in (clicks, shown)]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log(clicks / shown) - np.log(rest[0] / rest[1]))

    whole = shown.sum(axis=0), clicks.sum(axis=0)
    with np.errstate(invalid="ignore"):
        changes = log_ratios(whole[0] - shown, whole[1] - clicks) - log_ratios(*whole)
    return np.asarray((len(changes) - 1) / len(changes) * (changes**2).sum(axis=0))


# ---- Directions: a number c for each row of `RankerPairs`, so that Σ c e shows one violation of the model


def ranker_effects(pairs: RankerPairs) -> dict[int, FloatArray]:
    """Return ±1 for the rows of each ranker but the busiest: it gets more clicks than curve and traffic explain."""
    busiest = np.argsort(-pairs.page_views.sum(axis=0), kind="stable")
    effects = {
        int(ranker): (pairs.first_ranker == ranker).astype(np.float64) - (pairs.second_ranker == ranker)
        for ranker in busiest[1 : 1 + _MAX_RANKER_EFFECTS]
    }
    return {ranker: effect for ranker, effect in effects.items() if effect.any()}


def trust(residuals: Residuals) -> FloatArray:
    """Return (x_k − x_k') λ: relevant documents have a steeper curve, as under trust bias (Vardasbi et al., 2020)."""
    pairs, x = residuals.pairs, residuals.log_propensity
    return np.asarray((x[pairs.first_rank] - x[pairs.second_rank]) * _log_relevance(residuals))


def _log_relevance(residuals: Residuals) -> FloatArray:
    """Return λ, the centred log relevance of each row, smoothed to a term of (i, k) and a term of (j, k')."""
    pairs = residuals.pairs
    propensity = np.exp(residuals.log_propensity - residuals.log_propensity.max())
    first_row, group_of = pairs.groups
    clicks = pairs.sum_by_group(pairs.total)
    first_exposure, second_exposure = (pairs.sum_by_group(shown) for shown in pairs.impressions)
    exposure = (
        first_exposure * propensity[pairs.first_rank[first_row]]
        + second_exposure * propensity[pairs.second_rank[first_row]]
    )
    rate = np.log((clicks + 0.5) / (exposure + 0.5))
    weight = clicks + 0.5
    left = pairs.first_ranker[first_row] * pairs.max_rank + pairs.first_rank[first_row]
    right = pairs.second_ranker[first_row] * pairs.max_rank + pairs.second_rank[first_row]
    size = pairs.page_views.shape[1] * pairs.max_rank
    a, b = np.zeros(size), np.zeros(size)
    left_weight, right_weight = (np.maximum(sum_by_index(index, weight, size), 1e-300) for index in (left, right))
    for _ in range(_SMOOTHING_ROUNDS):
        a = sum_by_index(left, weight * (rate - b[right]), size) / left_weight
        b = sum_by_index(right, weight * (rate - a[left]), size) / right_weight
    smooth = a[left] + b[right]
    smooth -= (weight * smooth).sum() / max(weight.sum(), 1e-300)
    return np.asarray(smooth[group_of])


def bend(pairs: RankerPairs) -> FloatArray:
    """Return (k − k')|k − k'|: distant ranks differ by more, or less, than the steps between them add up to."""
    distance = (pairs.first_rank - pairs.second_rank).astype(np.float64)
    return np.asarray(distance * np.abs(distance))


def cascade(pairs: RankerPairs) -> FloatArray:
    """Return the log probability that users who stop at their first click reach i's k, less that for j's k'."""
    reading = 1 - (np.cumsum(pairs.click_rates, axis=1) - pairs.click_rates)
    log_reached = np.log(np.maximum(reading, _MIN_READING))
    return np.asarray(
        log_reached[pairs.first_ranker, pairs.first_rank] - log_reached[pairs.second_ranker, pairs.second_rank]
    )


def neighbours(residuals: Residuals) -> FloatArray:
    """Return the mean relevance next to i's k less that next to j's k': a result affects the clicks beside it."""
    pairs, x = residuals.pairs, residuals.log_propensity
    relevance = pairs.click_rates / np.exp(x - x[0])
    beside = np.zeros_like(relevance)
    beside[:, 1:] += relevance[:, :-1]
    beside[:, :-1] += relevance[:, 1:]
    beside[:, 1:-1] /= 2
    return np.asarray(beside[pairs.first_ranker, pairs.first_rank] - beside[pairs.second_ranker, pairs.second_rank])


# ---- Residuals


@dataclass(frozen=True, eq=False)
class Residuals:
    """Counts of ranker pairs, less what a curve and traffic lead to expect.

    Attributes:
        pairs (RankerPairs): the counts.
        log_propensity (array of length M): x = log p; 0 for impressions.
        excess (array): e = A − T π, of each row.
        variance (array): v = T π (1 − π), of each row.
        fitted (bool): whether the curve was fitted to these counts. If so, directions are projected off the fit.
    """

    pairs: RankerPairs
    log_propensity: FloatArray
    excess: FloatArray
    variance: FloatArray
    fitted: bool

    @classmethod
    def of_clicks(cls, pairs: RankerPairs) -> Residuals:
        """Fit the curve that explains the clicks best (Bradley and Terry), and return the residuals."""
        return cls._at(_fit_curve(pairs.trials, pairs.max_rank), pairs, fitted=True)

    @classmethod
    def of_impressions(cls, pairs: RankerPairs) -> Residuals:
        """Return the impressions less what traffic leads to expect, which involves no curve; odds are by design."""
        return cls._at(np.zeros(pairs.max_rank), pairs.with_impressions(), fitted=False)

    @classmethod
    def _at(cls, x: FloatArray, pairs: RankerPairs, *, fitted: bool) -> Residuals:
        trials = pairs.trials
        share = trials.expected_share(x)
        expected, variance = (
            sum_by_index(trials.row, trials.total * values[trials.odds], len(pairs))
            for values in (share, share * (1 - share))
        )
        return cls(pairs, x, pairs.first_count - expected, variance, fitted)

    def project_off_fit(self, direction: FloatArray) -> FloatArray:
        """Return a direction less the part that the fitted curve absorbs."""
        if not self.fitted:
            return direction
        pairs = self.pairs
        absorbed = self._inverse @ pairs.sum_by_rank(self.variance * direction)
        return np.asarray(direction - (absorbed[pairs.first_rank] - absorbed[pairs.second_rank]))

    @cached_property
    def _inverse(self) -> FloatArray:
        return np.asarray(
            np.linalg.pinv(self.pairs.laplacian(self.variance), rcond=1e-9, hermitian=True), dtype=np.float64
        )

    def sum_by_bucket(self, direction: FloatArray) -> FloatArray:
        """Return what each bucket adds to Σ c e, with the effect that its page views have on n_i: (B,)."""
        pairs = self.pairs
        sums = sum_by_index(pairs.bucket, direction * self.excess, pairs.bucket_count)
        if pairs.by_design:
            rankers = pairs.page_views.shape[1]
            pull = direction * self.variance
            net = sum_by_index(pairs.first_ranker, pull, rankers) - sum_by_index(pairs.second_ranker, pull, rankers)
            n = pairs.page_views.sum(axis=0)
            sums = sums - pairs.page_views @ np.divide(net, n, out=np.zeros(rankers), where=n > 0)
            if pairs.shown_influence is not None:
                influence = pairs.shown_influence.reshape(pairs.bucket_count, -1)
                first, second = (sum_by_index(place, pull, influence.shape[1]) for place in pairs.places)
                sums = sums - influence @ (first - second)
        return np.asarray(sums)


def _fit_curve(trials: Trials, ranks: int) -> FloatArray:
    """Return the x that maximises Σ A log π + C log(1 − π), with mean 0, by Newton's method with bounded steps."""
    x = np.zeros(ranks)
    total, first_count = (
        sum_by_index(trials.odds, n, len(trials.log_odds)) for n in (trials.total, trials.first_count)
    )
    ridge = _RIDGE * max(1.0, total.sum())
    for _ in range(_MAX_STEPS):
        share = trials.expected_share(x)
        gradient = _sum_by_rank(trials.first_rank, trials.second_rank, first_count - total * share, ranks)
        hessian = _laplacian(trials.first_rank, trials.second_rank, total * share * (1 - share), ranks)
        hessian += ridge * np.eye(ranks)
        # The gradient sums to 0 but for rounding. Only the ridge acts on that sum, so it would keep Newton from ending.
        step = np.linalg.solve(hessian, gradient - gradient.mean() - ridge * x)
        size = float(np.abs(step).max(initial=0))
        # If all clicks are on one rank of a pair, the estimate is infinite; a large number stands for it.
        x = np.clip(x + step * min(1.0, _MAX_STEP / max(size, 1e-300)), -_MAX_LOG_PROPENSITY, _MAX_LOG_PROPENSITY)
        if size < 1e-10:
            break
    return np.asarray(x)


def _sum_by_rank(first_rank: IntArray, second_rank: IntArray, values: FloatArray, ranks: int) -> FloatArray:
    """Return Σ values (1[k] − 1[k']), by rank."""
    return sum_by_index(first_rank, values, ranks) - sum_by_index(second_rank, values, ranks)


def _laplacian(first_rank: IntArray, second_rank: IntArray, weights: FloatArray, ranks: int) -> FloatArray:
    """Return the Laplacian of ranks as nodes: Σ weights (1[k] − 1[k'])(1[k] − 1[k'])ᵀ."""
    adjacency = sum_by_index(first_rank * ranks + second_rank, weights, ranks**2).reshape(ranks, ranks)
    adjacency += adjacency.T
    return np.asarray(np.diag(adjacency.sum(axis=1)) - adjacency)


# ---- Counts


@dataclass(frozen=True, eq=False)
class Trials:
    """Clicks on the documents of two rankers, with the odds that they are on a page of the first.

    There is a row for each row of `RankerPairs` and each of the odds that occur in it; rows without clicks are left
    out. Few odds occur in a log, so that a curve is fitted to odds and not to strata.

    Attributes:
        row (array of int): the row of `RankerPairs`.
        odds (array of int): the index of the odds.
        total (array of float): T, the clicks of both rankers.
        first_count (array of float): A, those of the first.
        log_odds (array of float): the log of exposure by i over that by j, of each of the odds.
        first_rank, second_rank (array of int): k and k', from 0, of each of the odds.
    """

    row: IntArray
    odds: IntArray
    total: FloatArray
    first_count: FloatArray
    log_odds: FloatArray
    first_rank: IntArray
    second_rank: IntArray

    @classmethod
    def as_observed(cls, cells: Cells, a: IntArray, b: IntArray, row: IntArray) -> Trials:
        """Return the trials of pairs of cells a and b, each of a row, with the odds of their impressions."""
        clicked = np.flatnonzero(cells.clicks[a] + cells.clicks[b])
        a, b, row = a[clicked], b[clicked], row[clicked]
        each = cells.impressions // cells.pairs
        # The ranker, the rank and the exposure of a cell as one number.
        place = cells.ranker * (int(cells.rank.max(initial=0)) + 1) + cells.rank
        place = place * (int(each.max(initial=0)) + 1) + each
        first, odds = group([place[a], place[b]])
        one, two = a[first], b[first]
        return cls(
            row=row,
            odds=odds,
            total=(cells.clicks[a] + cells.clicks[b]).astype(np.float64),
            first_count=cells.clicks[a].astype(np.float64),
            log_odds=np.log(each[one]) - np.log(each[two]),
            first_rank=cells.rank[one] - 1,
            second_rank=cells.rank[two] - 1,
        )

    def expected_share(self, x: FloatArray) -> FloatArray:
        """Return π = 1 / (1 + exp(−(log odds + x_k − x_k'))) of each of the odds."""
        return np.asarray(1 / (1 + np.exp(-(self.log_odds + x[self.first_rank] - x[self.second_rank]))))


@dataclass(frozen=True, eq=False)
class RankerPairs:
    """Clicks of every two rankers on the same documents: a row for each bucket, i, j, k and k'.

    Attributes:
        bucket (array of int): the bucket of each row, as an index into the rows of `page_views`.
        first_ranker, second_ranker (array of int): the rankers i < j.
        first_rank, second_rank (array of int): k and k', from 0.
        first_count, second_count (array of float): A and C, the clicks (or impressions) of i at k and of j at k'.
        impressions (array of shape 2 × rows): impressions by i at k and by j at k'.
        observed (Trials or None): the clicks by odds, if these are those of observed impressions; None if the odds are
            those of n_i.
        page_views (array of shape B × m): page views by bucket and ranker.
        click_rates (array of shape m × M): the click rate of each ranker at each rank, over all that it showed.
        max_rank (int): M.
        log_shown (array of shape m × M or None): log s, how often rankers show what they rank; None if always.
        shown_influence (array of shape B × m × M or None): what each bucket adds to log s.
    """

    bucket: IntArray
    first_ranker: IntArray
    second_ranker: IntArray
    first_rank: IntArray
    second_rank: IntArray
    first_count: FloatArray
    second_count: FloatArray
    impressions: FloatArray
    observed: Trials | None
    page_views: FloatArray
    click_rates: FloatArray
    max_rank: int
    log_shown: FloatArray | None = None
    shown_influence: FloatArray | None = None

    @classmethod
    def of(cls, harvest: Harvest, max_rankers: int = MAX_RANKERS) -> RankerPairs:
        """Count the pairs of the busiest rankers of a harvest that holds strata."""
        shown, clicks = harvest.counts("ranker", "rank").astype(np.float64)
        rates = np.divide(clicks, shown, out=np.zeros_like(clicks), where=shown > 0)
        by_design, n = harvest.kind == "signatures", harvest.views.sum(axis=0)
        cells = harvest.cells
        if len(n) > max_rankers:
            cells = cells.where(np.isin(cells.ranker, np.argsort(-n, kind="stable")[:max_rankers]))
        # What a ranker without traffic, or that showed nothing, ranks cannot be compared.
        exposed = n[cells.ranker] > 0 if by_design else cells.impressions > 0
        depth, log_shown, influence = PageDepth.of(harvest.strata()) if by_design else None, None, None
        if depth is not None:
            # With little data, s may be 0 at a rank that was shown, and clicks there have nothing to be compared with.
            reached = depth.shown > 0
            exposed &= reached[cells.ranker, cells.rank - 1]
            log_shown = np.log(np.where(reached, depth.shown, 1.0))
            without = depth.refits(deletion_weights(len(harvest.views)))
            influence = np.where(without > 0, log_shown - np.log(np.where(without > 0, without, 1.0)), 0.0)
        cells = cells.where(exposed)
        a, b = _cell_pairs(cells)
        # The ranker and the rank of a cell as one number.
        place = cells.ranker * harvest.max_rank + cells.rank - 1
        places = len(n) * harvest.max_rank
        bucket = lookup(cells.bucket, harvest.buckets)
        first_row, row = group([(bucket * places + place)[a], place[b]])
        rows = a[first_row], b[first_row]
        first_count, second_count, *impressions = (
            sum_by_index(row, counts[cell], len(first_row))
            for counts in (cells.clicks, cells.impressions)
            for cell in (a, b)
        )
        return cls(
            bucket=bucket[rows[0]],
            first_ranker=cells.ranker[rows[0]],
            second_ranker=cells.ranker[rows[1]],
            first_rank=cells.rank[rows[0]] - 1,
            second_rank=cells.rank[rows[1]] - 1,
            first_count=first_count,
            second_count=second_count,
            impressions=np.stack(impressions),
            observed=None if by_design else Trials.as_observed(cells, a, b, row),
            page_views=harvest.views,
            click_rates=rates,
            max_rank=harvest.max_rank,
            log_shown=log_shown,
            shown_influence=influence,
        )

    @property
    def by_design(self) -> bool:
        """Whether the odds are those of n_i, and not of observed impressions."""
        return self.observed is None

    @cached_property
    def trials(self) -> Trials:
        """The clicks by the odds of exposure."""
        if self.observed is not None:
            return self.observed
        first_row, odds = self.groups
        log_traffic = np.log(np.maximum(self.page_views.sum(axis=0), 1))
        log_odds = (log_traffic[self.first_ranker] - log_traffic[self.second_ranker])[first_row]
        if self.log_shown is not None:
            first, second = self.places
            log_odds = log_odds + (self.log_shown.reshape(-1)[first] - self.log_shown.reshape(-1)[second])[first_row]
        return Trials(
            row=np.arange(len(self)),
            odds=odds,
            total=self.total,
            first_count=self.first_count,
            log_odds=log_odds,
            first_rank=self.first_rank[first_row],
            second_rank=self.second_rank[first_row],
        )

    def __len__(self) -> int:
        return len(self.bucket)

    @property
    def bucket_count(self) -> int:
        """The number of buckets that are not empty."""
        return len(self.page_views)

    @cached_property
    def total(self) -> FloatArray:
        """T = A + C, of each row."""
        return self.first_count + self.second_count

    @property
    def same_rank(self) -> BoolArray:
        """Where both rankers put the documents at the same rank."""
        return np.asarray(self.first_rank == self.second_rank)

    @property
    def places(self) -> tuple[IntArray, IntArray]:
        """The ranker and the rank of i and of j as one number, of each row."""
        return (
            self.first_ranker * self.max_rank + self.first_rank,
            self.second_ranker * self.max_rank + self.second_rank,
        )

    def with_impressions(self) -> RankerPairs:
        """Return the same pairs with impressions in place of clicks, which depend on traffic alone (by design)."""
        return replace(self, first_count=self.impressions[0], second_count=self.impressions[1], observed=None)

    @cached_property
    def groups(self) -> tuple[IntArray, IntArray]:
        """The first row of each (i, j, k, k'), and the number of the group of each row."""
        return group([self.first_ranker, self.second_ranker, self.first_rank, self.second_rank])

    def sum_by_group(self, values: FloatArray) -> FloatArray:
        """Return the sum of values over buckets, for each (i, j, k, k')."""
        return sum_by_index(self.groups[1], values, len(self.groups[0]))

    def sum_by_rank(self, values: FloatArray) -> FloatArray:
        """Return Σ values (1[k] − 1[k']), by rank."""
        return _sum_by_rank(self.first_rank, self.second_rank, values, self.max_rank)

    def laplacian(self, weights: FloatArray) -> FloatArray:
        """Return the Laplacian of ranks as nodes: Σ weights (1[k] − 1[k'])(1[k] − 1[k'])ᵀ."""
        return _laplacian(self.first_rank, self.second_rank, weights, self.max_rank)


def _cell_pairs(cells: Cells) -> tuple[IntArray, IntArray]:
    """Return all pairs of cells of the same stratum, the one of the ranker that comes first, or of its rank, first."""
    left, right = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for step in range(1, len(cells)):
        start = np.flatnonzero(cells.stratum[step:] == cells.stratum[:-step])
        if not len(start):
            break
        left.append(start)
        right.append(start + step)
    return np.concatenate(left), np.concatenate(right)
