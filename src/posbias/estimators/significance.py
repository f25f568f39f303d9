"""Statistical tests whose unit of randomness is a bucket of queries.

A harvest assigns each query to one of 256 buckets. Buckets are independent, so the spread over buckets of what each
one contributes measures chance. Two kinds of data are tested:

- sums over buckets that are 0 if an assumption holds (`wald_test`);
- differences of log propensities, with the change of each when one bucket is left out (`Contrasts`): all differences at
  once (`joint_test`), and each of them among the others (`simultaneous_p_values`).

Both use Hotelling's T² with Satterthwaite's degrees of freedom. `AssumptionTest` joins a test with the findings that
report its outcome, and `decide` corrects for the number of tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from posbias._arrays import BoolArray, FloatArray
from posbias._stats import FTest, hotelling_test, not_tested, round_significant, satterthwaite
from posbias.findings import Finding, Severity

# An assumption is reported as violated below this p-value, after Holm's correction; below the second one as an error.
ALARM_LEVEL, ERROR_LEVEL = 0.02, 0.001
# Tests with a level of their own: whether one curve fits, so that every command has the same verdict, and whether a
# ranker has an effect, because lost clicks bend a curve and are hard to see. All levels add up to 0.04, so that at most
# 5% of healthy logs have a warning, together with the findings that no test decides.
ONE_CURVE_LEVEL, RANKER_EFFECT_LEVEL = 0.01, 0.01
# Fewer degrees of freedom in the denominator of a Wald test are too few.
_MIN_DENOMINATOR = 3.0
# A joint test of q differences needs this many degrees of freedom for each of them.
_DEGREES_PER_DIFFERENCE = 3
# Draws of the largest of several correlated normal errors, drawn in batches; the seed makes p-values reproducible.
_DRAWS, _BATCH, _SEED = 20_000, 2_000, 0
# Smaller variances are rounding errors; log ratios beyond the bound would overflow.
_ROUNDING, _LARGEST_LOG_RATIO = 1e-9, 100.0


# ---- Findings from tests


def decide(outcomes: Iterable[Finding | AssumptionTest]) -> list[Finding]:
    """Replace each test by the finding that its p-value calls for, and keep the other findings as they are.

    P-values are corrected for the number of tests (Holm), except those of tests with a level of their own.
    """
    outcomes = list(outcomes)
    tests = [outcome for outcome in outcomes if isinstance(outcome, AssumptionTest) and outcome.level is None]
    corrected = iter(holm([test.result.p_value for test in tests]))
    findings = []
    for outcome in outcomes:
        if isinstance(outcome, AssumptionTest):
            own = outcome.result.p_value * ALARM_LEVEL / (outcome.level or ALARM_LEVEL)
            finding = outcome.finding(next(corrected) if outcome.level is None else min(1.0, own))
        else:
            finding = outcome
        if finding is not None:
            findings.append(finding)
    return findings


@dataclass(frozen=True)
class AssumptionTest:
    """A test of an assumption, and the findings that report its outcome.

    Attributes:
        result (FTest): the outcome of the test.
        violated (Finding): what to report if the assumption does not hold.
        passed (Finding or None): what to report if the test found nothing, or could not be made.
        max_severity (str, default "error"): the severity of `violated` below `ERROR_LEVEL`. It is "warning" where the
            curve can be used all the same.
        level (float or None): a level of its own, below which the test raises an alarm however many others are run.
    """

    result: FTest
    violated: Finding
    passed: Finding | None = None
    max_severity: Severity = "error"
    level: float | None = None

    def finding(self, corrected: float) -> Finding | None:
        """Return the finding for a corrected p-value, with the test's numbers as evidence."""
        alarm = corrected < ALARM_LEVEL
        finding = self.violated if alarm else self.passed
        if finding is None:
            return None
        severity = finding.severity
        if alarm:
            severity = self.max_severity if corrected < ERROR_LEVEL else "warning"
        evidence = {
            "p_value": round_significant(self.result.p_value),
            "p_value_corrected": round_significant(corrected),
            "statistic": round_significant(self.result.statistic),
            "degrees_of_freedom": [self.result.numerator, round_significant(self.result.denominator)],
        }
        return replace(finding, severity=severity, evidence={**finding.evidence, **evidence})


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method; NaN stays NaN and is not counted.

    >>> holm([0.01, 0.04, float("nan"), 0.03])
    [0.03, 0.06, nan, 0.06]
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    corrected, highest = list(p_values), 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        corrected[place] = highest
    return corrected


# ---- Sums over buckets


def wald_test(directions: Sequence[FloatArray]) -> FTest:
    """Test whether sums over buckets are all 0: Hotelling's T² with the smallest of Satterthwaite's degrees of freedom.

    Arguments:
        directions (sequence of array of length B): for each direction, what each bucket adds to its sum.
    """
    table = np.stack(list(directions), axis=1) if directions else np.zeros((0, 0))
    buckets = len(table)
    scale = np.sqrt((table**2).sum(axis=0))
    varies = scale > 1e-9 * max(1.0, float(scale.max(initial=0)))
    table = table[:, varies] / scale[varies]
    if buckets < 2 or not table.shape[1]:
        return not_tested("there is no data on it")
    values, vectors = np.linalg.eigh(table.T @ table * buckets / (buckets - 1))
    independent = values > 1e-6 * values.max()
    size = int(independent.sum())
    whitened = table @ vectors[:, independent] / np.sqrt(values[independent])
    degrees = float(satterthwaite(table).min())
    if degrees - size + 1 < _MIN_DENOMINATOR:
        return not_tested("there are too few queries", size, degrees - size + 1)
    return hotelling_test(float((whitened.sum(axis=0) ** 2).sum()), size, degrees)


# ---- Differences of estimates


def joint_test(contrasts: Contrasts) -> FTest:
    """Test whether all differences are 0 (Hotelling's T²)."""
    scale = contrasts.standard_error
    values, vectors = np.linalg.eigh(contrasts.covariance / np.outer(scale, scale))
    # A difference that is a sum of others adds no direction.
    independent = values > _ROUNDING * len(scale)
    size = int(independent.sum())
    if not size:
        return not_tested("there is nothing to compare")
    whitening = vectors[:, independent] / np.sqrt(values[independent]) / scale[:, None]
    degrees = contrasts.joint_degrees(whitening)
    if degrees < _DEGREES_PER_DIFFERENCE * size:
        return not_tested("there are too few queries", size, degrees)
    return hotelling_test(float(((contrasts.value @ whitening) ** 2).sum()), size, degrees)


def simultaneous_p_values(contrasts: Contrasts) -> FloatArray:
    """Return a p-value for each difference, corrected for their number.

    It is the probability that the largest of q normal errors with the same correlation exceeds the difference, after
    its t value is turned into the z value of the same tail probability. Where that is too rare to be drawn,
    Bonferroni's bound is returned.
    """
    from scipy.special import ndtr, ndtri, stdtr

    scale = contrasts.standard_error
    count = len(scale)
    if not count:
        return np.zeros(0)
    tail = stdtr(contrasts.degrees, -np.abs(contrasts.value) / scale)
    z = -ndtri(np.maximum(tail, 1e-300))
    values, vectors = np.linalg.eigh(contrasts.covariance / np.outer(scale, scale))
    root = vectors * np.sqrt(np.maximum(values, 0))
    rng = np.random.default_rng(_SEED)
    largest = np.concatenate(
        [np.abs(rng.standard_normal((_BATCH, count)) @ root.T).max(axis=1) for _ in range(_DRAWS // _BATCH)]
    )
    exceeding = _DRAWS - np.searchsorted(np.sort(largest), z)
    return np.asarray(np.minimum((1 + exceeding) / (1 + _DRAWS), np.minimum(1.0, count * 2 * ndtr(-z))))


@dataclass(frozen=True, eq=False)
class Contrasts:
    """Differences of log propensities, with their errors.

    Attributes:
        value (array of length q): the differences.
        covariance (array of shape q × q): their covariance.
        degrees (array of length q): the degrees of freedom of each.
        changes (array of shape B × q, or None): the change of each difference without each bucket, scaled so that the
            sum of squares is a variance; None if it is not known.
    """

    value: FloatArray
    covariance: FloatArray
    degrees: FloatArray
    changes: FloatArray | None = None

    @classmethod
    def from_deletions(cls, value: FloatArray, changes: FloatArray, max_degrees: float = np.inf) -> Contrasts:
        """Return differences with the errors that their scaled changes without each bucket show.

        Degrees of freedom are Satterthwaite's, as in a jackknife interval.
        """
        return cls(value, changes.T @ changes, np.minimum(satterthwaite(changes), max(1.0, max_degrees)), changes)

    @classmethod
    def from_independent(
        cls, value: FloatArray, covariances: tuple[FloatArray, FloatArray], degrees: tuple[FloatArray, FloatArray]
    ) -> Contrasts:
        """Return differences of two independent estimates; degrees of freedom are Welch's."""
        first, second = (np.diagonal(covariance) for covariance in covariances)
        with np.errstate(invalid="ignore", divide="ignore"):
            welch = (first + second) ** 2 / (first**2 / degrees[0] + second**2 / degrees[1])
        return cls(value, covariances[0] + covariances[1], np.where(np.isfinite(welch), welch, 1.0))

    @property
    def standard_error(self) -> FloatArray:
        """The standard error of each difference."""
        return np.sqrt(np.diagonal(self.covariance))

    def where(self, mask: BoolArray) -> Contrasts:
        """Return the differences that a mask selects."""
        changes = None if self.changes is None else self.changes[:, mask]
        return Contrasts(self.value[mask], self.covariance[np.ix_(mask, mask)], self.degrees[mask], changes)

    def joint_degrees(self, whitening: FloatArray) -> float:
        """Return the degrees of freedom of the covariance matrix as a whole.

        With u_b the changes without bucket b in the r directions of `whitening`, (q, r), in which the covariance is the
        identity: r (r + 1) / (Σ_b |u_b|⁴ − r/B). That is B for normal changes, and Satterthwaite's formula for r = 1.
        """
        if self.changes is None:
            return float(np.median(self.degrees))
        buckets, size = len(self.changes), whitening.shape[1]
        spread = float((((self.changes @ whitening) ** 2).sum(axis=1) ** 2).sum()) - size / buckets
        most = min(buckets - 1.0, float(self.degrees.max()))
        return min(size * (size + 1) / spread, most) if spread > 0 else most


def ratio_from_log(log_ratio: float) -> float:
    """Return the ratio with this logarithm, finite for any interval limit.

    >>> ratio_from_log(0.0), ratio_from_log(1e9) < float("inf")
    (1.0, True)
    """
    return float(np.exp(np.clip(log_ratio, -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)))
