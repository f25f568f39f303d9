"""One curve for all pairs of ranks, and all rankers: whether contests contradict each other more than by chance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from posbias.arrays import FloatArray
from posbias.estimators.intervals import FEWEST_BUCKETS
from posbias.judging.contests import Contests, Surprises
from posbias.judging.directions import above, bend, neighbours, ranker_effects, trust
from posbias.judging.trials import UNTOLD, Trial, wald
from posbias.quantiles import f_tail

# Contests beyond so many numbers by bucket are not looked at all at once.
_MOST_CELLS = 10**7
# Contests of so few clicks have squares that are no χ²; and what is left of all by rounding alone.
_LEAST_VARIANCE, _ROUNDING = 1.0, 1e-6


@dataclass(frozen=True, eq=False)
class OneCurve:
    """Tests of one curve for all, on the contests of a harvest."""

    surprises: Surprises

    @classmethod
    def of(cls, contests: Contests) -> OneCurve:
        """Return the tests of contests, with the curve fitted."""
        return cls(Surprises.of_clicks(contests))

    def along(self, direction: FloatArray) -> FloatArray:
        """Return what each bucket adds to a direction, taken off the fit."""
        return self.surprises.by_bucket(self.surprises.off_fit(direction))

    @cached_property
    def trial(self) -> Trial:
        """The test on a ranker effect, trust and a bend together."""
        s = self.surprises
        directions = [*ranker_effects(s.contests), trust(s), bend(s.contests)]
        return wald([self.along(direction) for direction in directions])

    @cached_property
    def level(self) -> Trial:
        """The test on documents that both rankers put at the same rank: no curve is in it."""
        c = self.surprises.contests
        return wald([self.along(effect * c.level) for effect in ranker_effects(c)])

    @cached_property
    def misfit(self) -> Trial:
        """Q = Σ e²/v over all contests, as a scaled F."""
        s, c = self.surprises, self.surprises.contests
        first = c.sets[0]
        if not len(first) or c.buckets < FEWEST_BUCKETS or c.buckets * len(first) > _MOST_CELLS:
            return UNTOLD
        parts = self._by_set()
        variance = c.by_set(s.variance)
        told = variance >= _LEAST_VARIANCE
        scaled = parts[:, told] / np.sqrt(variance[told])
        gram = scaled @ scaled.T
        own = np.diagonal(gram)
        buckets = c.buckets
        trace = own.sum() * buckets / (buckets - 1)
        # tr(W²) from different buckets alone: those with themselves would add their fourth powers.
        square = (np.sum(gram**2) - np.sum(own**2)) * buckets / (buckets - 1)
        # What the curve takes whole leaves nothing but rounding.
        if trace <= _ROUNDING * told.sum() or square <= 0:
            return UNTOLD
        degrees = min(trace**2 / square, float(told.sum()))
        rest = 2 * own.sum() ** 2 / max(np.sum(own**2) - own.sum() ** 2 / buckets, 1e-300)
        statistic = float((scaled.sum(axis=0) ** 2).sum() / trace)
        return Trial(statistic, round(degrees), float(rest), f_tail(degrees, float(rest), statistic))

    def _by_set(self) -> FloatArray:
        """Return what each bucket adds to e of every (i, j, k, k'), taken off the fit: (B, sets)."""
        s, c = self.surprises, self.surprises.contests
        first, which = c.sets
        sets = len(first)
        flat = np.bincount(c.bucket * sets + which, weights=s.excess, minlength=c.buckets * sets)
        parts = flat.reshape(c.buckets, sets)
        variance = c.by_set(s.variance)
        if c.by_design:
            share = c.views / np.maximum(c.views.sum(axis=0), 1)
            parts = parts - variance * (share[:, c.first[first]] - share[:, c.second[first]])
        design = np.zeros((sets, c.ranks))
        design[np.arange(sets), c.rank[first]] += 1
        design[np.arange(sets), c.other[first]] -= 1
        hat = np.linalg.pinv(c.laplacian(s.variance), rcond=1e-9, hermitian=True)
        return np.asarray(parts - (parts @ design) @ hat @ (design * variance[:, None]).T)

    @cached_property
    def trusting(self) -> tuple[float, float]:
        """How much steeper the curve is for e times as relevant documents, as a share of it, and its standard error."""
        s = self.surprises
        left = s.off_fit(trust(s))
        size = float((left**2 * s.variance).sum())
        parts = s.by_bucket(left)
        buckets = len(parts)
        if size <= 0 or buckets < 2:
            return float("nan"), float("nan")
        return float(parts.sum() / size), float(np.sqrt((parts**2).sum() * buckets / (buckets - 1)) / size)

    @cached_property
    def unequal(self) -> float:
        """How many times as often the best ranker is clicked at rank 1 as the worst, which takes no curve; or NaN."""
        rates = self.surprises.contests.rates[:, 0]
        known = rates[rates > 0]
        return float(known.max() / known.min()) if len(known) > 1 else float("nan")

    @cached_property
    def resembles(self) -> dict[str, float]:
        """How much of the misfit each way to break the model would explain, the largest first."""
        found = {name: self._explained(direction) for name, direction in self._ways().items()}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _ways(self) -> dict[str, FloatArray]:
        s, c = self.surprises, self.surprises.contests
        ways = {"trust": trust(s), "cascade": above(c), "neighbours": neighbours(s)}
        effects = ranker_effects(c)
        return ways | ({"traffic": effects[0]} if effects else {})

    def _explained(self, direction: FloatArray) -> float:
        """Return by how much Q falls if the direction is added to the model: (Σ c e)² / Σ c² v, c off the fit."""
        s = self.surprises
        left = s.off_fit(direction)
        size = float((left**2 * s.variance).sum())
        return float((left * s.excess).sum() ** 2 / size) if size > 0 else 0.0
