"""Tests on estimates that come with leave-one-bucket-out deletions: Wald, Holm, simultaneous p-values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from posbias._arrays import BoolArray, FloatArray
from posbias._stats import hotelling_test, round_significant, satterthwaite
from posbias.findings import Finding, Severity

# Fewer degrees of freedom than this beyond what is tried tell nothing.
_FEWEST = 3.0
# An alarm that chance would raise once in twenty logs, all questions together; and one that it hardly ever would.
ALARM, GRAVE = 0.05, 0.001
# Of the largest of several differences by chance; the same every time.
_DRAWS, _AT_ONCE, _SEED = 20_000, 2_000, 0
# A joint test of q differences takes at least so many degrees of freedom for each.
_DEGREES_EACH = 3
# Less than this in log p is rounding, and more than this no ratio that anyone could tell from another.
_ROUNDING, _LARGEST = 1e-9, 100.0


def answer(questions: Sequence[Question]) -> list[Finding]:
    """Return what is to be said, with p corrected for the number of questions (Holm)."""
    corrected = holm([question.trial.p for question in questions])
    found = []
    for question, p in zip(questions, corrected, strict=True):
        alarmed = p < ALARM
        finding = question.alarm if alarmed else question.calm
        if finding is None:
            continue
        severity = (question.surely if p < GRAVE else "warning") if alarmed else finding.severity
        trial = question.trial
        evidence = {
            "p": round_significant(trial.p),
            "p_corrected": round_significant(p),
            "statistic": round_significant(trial.statistic),
            "degrees": [trial.directions, round_significant(trial.degrees)],
        }
        found.append(replace(finding, severity=severity, evidence={**finding.evidence, **evidence}))
    return found


@dataclass(frozen=True)
class Question:
    """A trial, and its findings.

    Attributes:
        trial: what was found, with its p.
        alarm: what is said if it is more than chance.
        calm: what is said if it is not, or if there is too little to tell.
        surely: how grave it is where it can hardly be chance; an error, unless a curve may be used all the same.
    """

    trial: Trial
    alarm: Finding
    calm: Finding | None = None
    surely: Severity = "error"


@dataclass(frozen=True)
class Trial:
    """The outcome of a test.

    Attributes:
        statistic: F, or the square of t where one direction was tried.
        directions: how many were tried.
        degrees: of freedom of the denominator.
        p: how often chance alone would do as much; NaN where there is too little to tell.
    """

    statistic: float
    directions: int
    degrees: float
    p: float

    @property
    def told(self) -> bool:
        """Whether there was enough to tell anything."""
        return bool(np.isfinite(self.p))


def holm(values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number; those that are not known do not count.

    >>> holm([0.01, 0.04, float("nan"), 0.03])
    [0.03, 0.06, nan, 0.06]
    """
    known = sorted((p, place) for place, p in enumerate(values) if not math.isnan(p))
    corrected, highest = list(values), 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        corrected[place] = highest
    return corrected


def joint_test(contrasts: Contrasts) -> JointTest | None:
    """Return Hotelling's test of all differences, or None where there are too few queries for so many."""
    scale = contrasts.standard_error
    values, vectors = np.linalg.eigh(contrasts.covariance / np.outer(scale, scale))
    # Directions that never move say nothing: one of the differences is a sum of others.
    free = values > _ROUNDING * len(scale)
    count = int(free.sum())
    if not count:
        return None
    whitening = vectors[:, free] / np.sqrt(values[free]) / scale[:, None]
    degrees = contrasts.joint_degrees(whitening)
    if degrees < _DEGREES_EACH * count:
        return None
    wald = float(((contrasts.value @ whitening) ** 2).sum())
    test = hotelling_test(wald, count, degrees)
    return JointTest(test.statistic, (count, test.denominator), test.p_value)


@dataclass(frozen=True, eq=False)
class Contrasts:
    """Differences of log p, (q,), with their covariance, (q, q), and degrees of freedom, (q,).

    `moved`, (B, q), is what leaving out each bucket moves them by, where that is known.
    """

    value: FloatArray
    covariance: FloatArray
    degrees: FloatArray
    moved: FloatArray | None = None

    @classmethod
    def from_deletions(cls, value: FloatArray, moved: FloatArray, most_degrees: float = np.inf) -> Contrasts:
        """Return differences from what leaving out each bucket moves them by, (B, q), scaled so that squares add up.

        The degrees of freedom are those of Satterthwaite, as of an interval by jackknife.
        """
        return cls(value, moved.T @ moved, np.minimum(satterthwaite(moved), max(1.0, most_degrees)), moved)

    @classmethod
    def from_independent(
        cls, value: FloatArray, covariances: tuple[FloatArray, FloatArray], degrees: tuple[FloatArray, FloatArray]
    ) -> Contrasts:
        """Return differences of two independent estimates; degrees of freedom after Welch."""
        one, other = (np.diagonal(covariance) for covariance in covariances)
        with np.errstate(invalid="ignore", divide="ignore"):
            joint = (one + other) ** 2 / (one**2 / degrees[0] + other**2 / degrees[1])
        return cls(value, covariances[0] + covariances[1], np.where(np.isfinite(joint), joint, 1.0))

    @property
    def standard_error(self) -> FloatArray:
        """The standard error of each."""
        return np.sqrt(np.diagonal(self.covariance))

    def where(self, mask: BoolArray) -> Contrasts:
        """Return some of them."""
        moved = None if self.moved is None else self.moved[:, mask]
        return Contrasts(self.value[mask], self.covariance[np.ix_(mask, mask)], self.degrees[mask], moved)

    def joint_degrees(self, whitening: FloatArray) -> float:
        """Return the degrees of freedom of the covariance as a whole, in directions (q, r) in which it is 1.

        As for one difference, from how unequally buckets tell: r (r + 1) / (Σ |u_b|⁴ − r/B), B for normal ones.
        """
        if self.moved is None:
            return float(np.median(self.degrees))
        buckets, count = len(self.moved), whitening.shape[1]
        spread = float((((self.moved @ whitening) ** 2).sum(axis=1) ** 2).sum()) - count / buckets
        most = min(buckets - 1.0, float(self.degrees.max()))
        return min(count * (count + 1) / spread, most) if spread > 0 else most


@dataclass(frozen=True)
class JointTest:
    """An F test that several differences are all 0; degrees of freedom of the differences and of their errors."""

    statistic: float
    degrees: tuple[int, float]
    p_value: float


def wald(parts: Sequence[FloatArray]) -> Trial:
    """Try whether sums over buckets are all 0: Hotelling's T² with the smallest Satterthwaite degrees of freedom.

    Arguments:
        parts: for each direction, what each bucket adds to it.
    """
    table = np.stack(list(parts), axis=1) if parts else np.zeros((0, 0))
    buckets = len(table)
    scale = np.sqrt((table**2).sum(axis=0))
    moved = scale > 1e-9 * max(1.0, float(scale.max(initial=0)))
    table = table[:, moved] / scale[moved]
    if buckets < 2 or not table.shape[1]:
        return NOT_TESTED
    covariance = table.T @ table * buckets / (buckets - 1)
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-6 * values.max()
    size = int(kept.sum())
    along = table @ vectors[:, kept] / np.sqrt(values[kept])
    degrees = float(satterthwaite(table).min())
    rest = degrees - size + 1
    if rest < _FEWEST:
        return Trial(float("nan"), size, rest, float("nan"))
    test = hotelling_test(float((along.sum(axis=0) ** 2).sum()), size, degrees)
    return Trial(test.statistic, size, test.denominator, test.p_value)


NOT_TESTED = Trial(float("nan"), 0, float("nan"), float("nan"))


def simultaneous_p_values(contrasts: Contrasts) -> FloatArray:
    """Return a p-value for each difference, allowing for there being several: the chance that the largest is as large.

    Each t is turned into a z of its degrees of freedom, and held against the largest of normal errors with the same
    correlation; where that is too rare to be drawn, against Bonferroni's bound.
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
        [np.abs(rng.standard_normal((_AT_ONCE, count)) @ root.T).max(axis=1) for _ in range(_DRAWS // _AT_ONCE)]
    )
    above = _DRAWS - np.searchsorted(np.sort(largest), z)
    return np.asarray(np.minimum((1 + above) / (1 + _DRAWS), np.minimum(1.0, count * 2 * ndtr(-z))))


def ratio_from_log(difference: float) -> float:
    """Return the ratio of which a difference is the logarithm, a number however wide an interval is.

    >>> ratio_from_log(0.0), ratio_from_log(1e9) < float("inf")
    (1.0, True)
    """
    return float(np.exp(np.clip(difference, -_LARGEST, _LARGEST)))
