"""Disagreement: estimators that make different curves of one harvest, by more than deletions of buckets explain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from posbias.arrays import FloatArray
from posbias.estimators import AdjacentChain, AllPairs, CrossFit, PivotOne
from posbias.estimators.intervals import FEWEST_BUCKETS, deletions
from posbias.findings import Finding
from posbias.harvesting.harvests import Harvest
from posbias.judging.questions import Question, told
from posbias.judging.trials import UNTOLD, Trial, satterthwaite
from posbias.quantiles import f_tail

# With fewer degrees of freedom than this a difference is not judged.
_FEWEST_DEGREES = 5.0


@dataclass(frozen=True, eq=False)
class Refitted:
    """A curve and its deletions, in log p.

    Attributes:
        name: of the estimator.
        curve: x by rank; NaN where it is not known.
        moved: x without each bucket, less x: (B, M).
    """

    name: str
    curve: FloatArray
    moved: FloatArray

    @classmethod
    def of(cls, name: str, propensity: FloatArray, deleted: FloatArray) -> Refitted:
        """Return those of p, (M,), and of p without each bucket, (B, M)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            curve = np.log(propensity)
            moved = np.log(deleted) - curve
        return cls(name, _known(curve), _known(moved))


def refit(harvest: Harvest) -> list[Refitted]:
    """Return the curves that can be made of a harvest, CrossFit first, or AllPairs where there are only sums."""
    kinds: list[Any] = [AllPairs, PivotOne, AdjacentChain]
    if harvest.kind != "pairs":
        kinds.insert(0, CrossFit)
    found = []
    for kind in kinds:
        estimator = kind(interval=None)
        counts = estimator.count(harvest)
        if not counts.clicked:
            continue
        curve = estimator.curves(counts, np.ones(counts.buckets))
        # Without its only bucket there would be nothing.
        alone = counts.buckets < 2
        refits = np.full((1, len(curve)), np.nan) if alone else estimator.curves(counts, deletions(counts.buckets))
        found.append(Refitted.of(kind.name, curve, refits))
    return found


def _known(values: FloatArray) -> FloatArray:
    return np.where(np.isfinite(values), values, np.nan)


def question_disagreement(curves: list[Refitted]) -> list[Question]:
    """Return whether any curve differs from the first at any rank, of as many comparisons as there are."""
    best: tuple[float, str, int, float, float, float] | None = None
    tried = 0
    for other in curves[1:]:
        # Curves that leave out other buckets have other deletions.
        if len(other.moved) != len(curves[0].moved) or len(other.moved) < FEWEST_BUCKETS:
            continue
        moved = other.moved - curves[0].moved
        apart = other.curve - curves[0].curve
        known = np.isfinite(apart) & np.isfinite(moved).all(axis=0)
        known &= (np.where(known, moved, 0.0) ** 2).sum(axis=0) > 1e-18
        for k in np.flatnonzero(known):
            degrees = float(satterthwaite(moved[:, [k]])[0])
            if degrees < _FEWEST_DEGREES:
                continue
            tried += 1
            buckets = len(moved)
            t = apart[k] / np.sqrt((buckets - 1) / buckets * (moved[:, k] ** 2).sum())
            p = f_tail(1, degrees, float(t) ** 2)
            if best is None or p < best[0]:
                best = (p, other.name, int(k) + 1, float(np.exp(apart[k])), float(t), degrees)
    if best is None:
        return [Question(UNTOLD, Finding("estimators-disagree", "warning", "Estimators disagree"))]
    p, name, rank, ratio, t, degrees = best
    trial = Trial(t**2, 1, degrees, min(1.0, tried * p))
    alarm = Finding(
        "estimators-disagree",
        "warning",
        f"Estimators that should agree do not ({told(trial.p)}): at rank {rank} {name} finds {ratio:.3f} times the "
        f"propensity of {curves[0].name}, and queries left out one bucket at a time do not explain it",
        evidence={"estimator": name, "rank": rank, "ratio": float(f"{ratio:.4g}"), "compared": tried},
        remedy="They weigh the same pairs of ranks differently: pairs contradict each other, or traffic is not what it "
        "seems. Trust no curve more than the difference between them.",
    )
    return [Question(trial, alarm)]
