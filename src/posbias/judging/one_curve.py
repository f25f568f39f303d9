"""Test whether one curve explains the clicks of every two rankers on the same documents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, group, tally
from posbias._stats import f_tail, round_significant, satterthwaite_of_squares
from posbias._text import format_p_value
from posbias.estimators.base import MIN_BUCKETS
from posbias.findings import Finding
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.tables import Strata
from posbias.judging.significance import NOT_TESTED, Question, Trial, wald

# The ranker_pairs of so many rankers, the busiest, are looked at: of more there are too many.
MOST_RANKERS = 8
_STEPS, _REACH, _FARTHEST, _RIDGE = 50, 2.0, 15.0, 1e-9
# So many rankers, the busiest, have an effect of their own.
_MOST_EFFECTS = 3
_ROUNDS = 20
_LEAST_READING = 0.05
# RankerPairs beyond so many numbers by bucket are not looked at all at once.
_MOST_CELLS = 10**7
# RankerPairs of so few clicks have squares that are no χ²; and what is left of all by rounding alone.
_LEAST_VARIANCE, _ROUNDING = 1.0, 1e-6
# A test sees, in four logs of five, what is so many standard errors from nothing; strong trust bias is about .35.
_SEEN, BLIND = 2.8, 0.3
_MOST_PAIRS = 3
_RESEMBLES = {
    "trust": "trust bias: the curve is not the same for relevant and for irrelevant documents",
    "cascade": "cascade users, who stop at a click: what stands above decides whether a rank is read",
    "neighbours": "results that draw the eye from, or to, their neighbours",
    "traffic": "a ranker's own effect at all ranks: traffic that leans on the query, or one click a page",
}
_REMEDIES = {
    "trust": "Compare the curves of a proxy of relevance (proxy); the weights of one curve are biased.",
    "cascade": "Give the log itself, with page views, to see how many have several clicks; no one curve fits cascades.",
    "neighbours": "Compare the curves of rankers that show different neighbours; one curve is an average over them.",
    "traffic": "Check that each page view draws its ranker by itself, whatever its query and user, and that all "
    "rankers show the same page but for the order.",
}


def question_pairs(one: OneCurve, rankers: Sequence[str]) -> list[Question]:
    """Return the questions whether one curve holds for all pairs of ranks, and whether a ranker has its own effect."""
    both = _both(one.trial, one.misfit)
    evidence = _evidence(one, rankers)
    resembles = next(iter(one.resembles))
    alarm = Finding(
        "contradictory-pairs",
        "warning",
        f"Pairs of ranks contradict each other: no one curve explains the clicks of all rankers "
        f"({format_p_value(both.p)}). It resembles {likeness(one)}",
        len(evidence["pairs"]),
        example="; ".join(evidence["pairs"]),
        evidence=evidence,
        remedy=_REMEDIES[resembles],
    )
    return [Question(both, alarm, _calm(one, both, evidence)), *_level(one)]


@dataclass(frozen=True, eq=False)
class OneCurve:
    """Tests of one curve for all, on the ranker_pairs of a harvest."""

    residuals: Residuals

    @classmethod
    def of(cls, ranker_pairs: RankerPairs) -> OneCurve:
        """Return the tests of ranker_pairs, with the curve fitted."""
        return cls(Residuals.of_clicks(ranker_pairs))

    def along(self, direction: FloatArray) -> FloatArray:
        """Return what each bucket adds to a direction, taken off the fit."""
        return self.residuals.by_bucket(self.residuals.off_fit(direction))

    @cached_property
    def trial(self) -> Trial:
        """The test on a ranker effect, trust and a bend together."""
        s = self.residuals
        directions = [*ranker_effects(s.ranker_pairs), trust(s), bend(s.ranker_pairs)]
        return wald([self.along(direction) for direction in directions])

    @cached_property
    def level(self) -> Trial:
        """The test on documents that both rankers put at the same rank: no curve is in it."""
        c = self.residuals.ranker_pairs
        return wald([self.along(effect * c.level) for effect in ranker_effects(c)])

    @cached_property
    def misfit(self) -> Trial:
        """Q = Σ e²/v over all ranker_pairs, as a scaled F."""
        s, c = self.residuals, self.residuals.ranker_pairs
        first = c.sets[0]
        if not len(first) or c.buckets < MIN_BUCKETS or c.buckets * len(first) > _MOST_CELLS:
            return NOT_TESTED
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
            return NOT_TESTED
        degrees = min(trace**2 / square, float(told.sum()))
        rest = satterthwaite_of_squares(own)
        statistic = float((scaled.sum(axis=0) ** 2).sum() / trace)
        return Trial(statistic, round(degrees), float(rest), f_tail(degrees, float(rest), statistic))

    def _by_set(self) -> FloatArray:
        """Return what each bucket adds to e of every (i, j, k, k'), taken off the fit: (B, sets)."""
        s, c = self.residuals, self.residuals.ranker_pairs
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
        s = self.residuals
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
        rates = self.residuals.ranker_pairs.rates[:, 0]
        known = rates[rates > 0]
        return float(known.max() / known.min()) if len(known) > 1 else float("nan")

    @cached_property
    def resembles(self) -> dict[str, float]:
        """How much of the misfit each way to break the model would explain, the largest first."""
        found = {name: self._explained(direction) for name, direction in self._ways().items()}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _ways(self) -> dict[str, FloatArray]:
        s, c = self.residuals, self.residuals.ranker_pairs
        ways = {"trust": trust(s), "cascade": above(c), "neighbours": neighbours(s)}
        effects = ranker_effects(c)
        return ways | ({"traffic": effects[0]} if effects else {})

    def _explained(self, direction: FloatArray) -> float:
        """Return by how much Q falls if the direction is added to the model: (Σ c e)² / Σ c² v, c off the fit."""
        s = self.residuals
        left = s.off_fit(direction)
        size = float((left**2 * s.variance).sum())
        return float((left * s.excess).sum() ** 2 / size) if size > 0 else 0.0


@dataclass(frozen=True, eq=False)
class Residuals:
    """RankerPairs beside what a curve makes of them.

    Attributes:
        ranker_pairs: what was counted.
        curve: x = log p; of impressions, zero.
        expected: π.
        fitted: whether the curve was fitted to these counts, so that directions are taken off the fit.
    """

    ranker_pairs: RankerPairs
    curve: FloatArray
    expected: FloatArray
    fitted: bool

    @classmethod
    def of_clicks(cls, ranker_pairs: RankerPairs) -> Residuals:
        """Fit the curve that explains the ranker_pairs best (Bradley and Terry), and return what is left."""
        curve = _fit(ranker_pairs)
        return cls(ranker_pairs, curve, _chance(ranker_pairs, curve), fitted=True)

    @classmethod
    def of_impressions(cls, ranker_pairs: RankerPairs) -> Residuals:
        """Return what impressions are beside what traffic promised: no curve is in it."""
        shown = ranker_pairs.of_impressions()
        none = np.zeros(ranker_pairs.ranks)
        return cls(shown, none, _chance(shown, none), fitted=False)

    @cached_property
    def excess(self) -> FloatArray:
        """e = A − T π, of each row."""
        return np.asarray(self.ranker_pairs.wins - self.ranker_pairs.total * self.expected)

    @cached_property
    def variance(self) -> FloatArray:
        """v = T π (1 − π), of each row."""
        return np.asarray(self.ranker_pairs.total * self.expected * (1 - self.expected))

    @cached_property
    def _inverse(self) -> FloatArray:
        return np.asarray(
            np.linalg.pinv(self.ranker_pairs.laplacian(self.variance), rcond=1e-9, hermitian=True), dtype=np.float64
        )

    def off_fit(self, direction: FloatArray) -> FloatArray:
        """Return a direction less what the curve could take of it, by rows."""
        if not self.fitted:
            return direction
        c = self.ranker_pairs
        taken = self._inverse @ c.by_rank(self.variance * direction)
        return np.asarray(direction - (taken[c.rank] - taken[c.other]))

    def by_bucket(self, direction: FloatArray) -> FloatArray:
        """Return what each bucket adds to Σ c e for a direction c off the fit, traffic counted from it too: (B,)."""
        c = self.ranker_pairs
        found = tally(c.bucket, direction * self.excess, c.buckets)
        if c.by_design:
            rankers = c.views.shape[1]
            pull = direction * self.variance
            net = tally(c.first, pull, rankers) - tally(c.second, pull, rankers)
            n = c.views.sum(axis=0)
            found = found - c.views @ np.divide(net, n, out=np.zeros(rankers), where=n > 0)
        return np.asarray(found)


@dataclass(frozen=True, eq=False)
class RankerPairs:
    """One row for each bucket, stratum and two of its cells; the first of rankers i, j is the lower number.

    Where the odds are those of traffic, the strata of a bucket that i puts at k and j at k' are in one row.

    Attributes:
        bucket: of each row, a row of `views`.
        first, second: the rankers i and j.
        rank, other: k and k', from 0.
        wins, losses: A and C: counts of i at k and of j at k', clicks or impressions.
        odds: log of what traffic, or what was observed, promised i against j.
        shown: impressions of i at k and of j at k', (2, rows).
        views: page views by bucket and ranker.
        rates: click rate of each ranker at each rank, of all that it showed: (m, M).
        ranks: M.
        by_design: whether the odds are those of n_i.
    """

    bucket: IntArray
    first: IntArray
    second: IntArray
    rank: IntArray
    other: IntArray
    wins: FloatArray
    losses: FloatArray
    odds: FloatArray
    shown: FloatArray
    views: FloatArray
    rates: FloatArray
    ranks: int
    by_design: bool

    @classmethod
    def of(cls, harvest: Harvest, most_rankers: int = MOST_RANKERS) -> RankerPairs:
        """Return the ranker_pairs of the busiest rankers of a harvest that holds strata."""
        shown, clicks = harvest.counts("ranker", "rank").astype(np.float64)
        rates = np.divide(clicks, shown, out=np.zeros_like(clicks), where=shown > 0)
        return cls._of(harvest.strata(by_ranker=True), rates, most_rankers)

    @classmethod
    def _of(cls, strata: Strata, rates: FloatArray, most_rankers: int) -> RankerPairs:
        cells = strata.cells
        if len(rates) > most_rankers:
            busiest = np.argsort(-strata.views.sum(axis=0), kind="stable")[:most_rankers]
            cells = cells.where(np.isin(cells.ranker, busiest))
        # Cells of one stratum and bucket stand together, by ranker and rank.
        _, own = group([cells.stratum, cells.bucket])
        left, right = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for step in range(1, len(own)):
            one = np.flatnonzero(own[step:] == own[:-step])
            if not len(one):
                break
            left.append(one)
            right.append(one + step)
        a, b = np.concatenate(left), np.concatenate(right)
        shown = cells.impressions.astype(np.float64)
        promised = strata.views.sum(axis=0)[cells.ranker] if strata.by_design else shown
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = np.log(promised[a]) - np.log(promised[b])
        met = np.isfinite(odds)
        a, b, odds = a[met], b[met], odds[met]
        clicks = cells.clicks.astype(np.float64)
        apart = cls(
            bucket=cells.bucket[a],
            first=cells.ranker[a],
            second=cells.ranker[b],
            rank=cells.rank[a] - 1,
            other=cells.rank[b] - 1,
            wins=clicks[a],
            losses=clicks[b],
            odds=odds,
            shown=np.stack([shown[a], shown[b]]),
            views=strata.views,
            rates=rates,
            ranks=strata.max_rank,
            by_design=strata.by_design,
        )
        return apart._joined() if strata.by_design else apart

    def _joined(self) -> RankerPairs:
        """Return the same ranker_pairs with those of one bucket, i, j, k and k' in one row."""
        first, which = group([self.bucket, self.first, self.second, self.rank, self.other])
        kept = {name: getattr(self, name)[first] for name in ("bucket", "first", "second", "rank", "other", "odds")}
        wins, losses, *shown = (tally(which, v, len(first)) for v in (self.wins, self.losses, *self.shown))
        return replace(self, **kept, wins=wins, losses=losses, shown=np.stack(shown))

    def __len__(self) -> int:
        return len(self.bucket)

    @property
    def buckets(self) -> int:
        """How many buckets hold anything."""
        return len(self.views)

    @cached_property
    def total(self) -> FloatArray:
        """T, of each row."""
        return self.wins + self.losses

    @property
    def level(self) -> BoolArray:
        """Where both rankers put the documents at the same rank."""
        return np.asarray(self.rank == self.other)

    def of_impressions(self) -> RankerPairs:
        """Return the same ranker_pairs for impressions in place of clicks: what traffic alone decides."""
        return replace(self, wins=self.shown[0], losses=self.shown[1])

    @cached_property
    def sets(self) -> tuple[IntArray, IntArray]:
        """The first row of each (i, j, k, k'), and which of them each row is of."""
        return group([self.first, self.second, self.rank, self.other])

    def by_set(self, values: FloatArray) -> FloatArray:
        """Return the sum of values by (i, j, k, k')."""
        return tally(self.sets[1], values, len(self.sets[0]))

    def by_rank(self, values: FloatArray) -> FloatArray:
        """Return Σ values (1[k] − 1[k']) by rank."""
        return tally(self.rank, values, self.ranks) - tally(self.other, values, self.ranks)

    def laplacian(self, weights: FloatArray) -> FloatArray:
        """Return Σ weights (1[k] − 1[k'])(1[k] − 1[k'])ᵀ."""
        size = self.ranks
        across = tally(self.rank * size + self.other, weights, size**2).reshape(size, size)
        across += across.T
        return np.asarray(np.diag(across.sum(axis=1)) - across)


def _fit(ranker_pairs: RankerPairs) -> FloatArray:
    """Return the x that maximises Σ A log π + C log(1 − π), by Newton with bounded steps; 0 on average."""
    x = np.zeros(ranker_pairs.ranks)
    told = ranker_pairs.total > 0
    ridge = _RIDGE * max(1.0, ranker_pairs.total.sum())
    for _ in range(_STEPS):
        chance = _chance(ranker_pairs, x)
        push = ranker_pairs.by_rank(np.where(told, ranker_pairs.wins - ranker_pairs.total * chance, 0.0))
        slope = ranker_pairs.laplacian(ranker_pairs.total * chance * (1 - chance)) + ridge * np.eye(len(x))
        # It is 0 on average; what rounding leaves, the ridge alone would hold, and no step be the last.
        step = np.linalg.solve(slope, push - push.mean() - ridge * x)
        size = float(np.abs(step).max(initial=0))
        # Where all clicks are on one side, p has no end: that it is far is all there is to know.
        x = np.clip(x + step * min(1.0, _REACH / max(size, 1e-300)), -_FARTHEST, _FARTHEST)
        if size < 1e-10:
            break
    return np.asarray(x)


def _chance(ranker_pairs: RankerPairs, curve: FloatArray) -> FloatArray:
    return np.asarray(1 / (1 + np.exp(-(ranker_pairs.odds + curve[ranker_pairs.rank] - curve[ranker_pairs.other]))))


def ranker_effects(ranker_pairs: RankerPairs) -> list[FloatArray]:
    """Return, for each ranker but the busiest, what it wins more than the curve and traffic say."""
    busy = np.argsort(-ranker_pairs.views.sum(axis=0), kind="stable")
    effects = [
        (ranker_pairs.first == ranker).astype(np.float64) - (ranker_pairs.second == ranker)
        for ranker in busy[1 : 1 + _MOST_EFFECTS]
    ]
    return [effect for effect in effects if effect.any()]


def trust(residuals: Residuals) -> FloatArray:
    """(x_k − x_k') λ: the curve is steeper or flatter for relevant documents: affine clicks (Vardasbi et al., 2020)."""
    c, x = residuals.ranker_pairs, residuals.curve
    return np.asarray((x[c.rank] - x[c.other]) * relevance(residuals))


def relevance(residuals: Residuals) -> FloatArray:
    """λ: the log relevance of the set of a contest, 0 on average, smoothed to a term of k and one of k'."""
    c, p = residuals.ranker_pairs, np.exp(residuals.curve - residuals.curve.max())
    clicks = c.by_set(c.total)
    first = c.sets[0]
    exposed = c.by_set(c.shown[0]) * p[c.rank[first]] + c.by_set(c.shown[1]) * p[c.other[first]]
    rate = np.log((clicks + 0.5) / (exposed + 0.5))
    weight = clicks + 0.5
    left = c.first[first] * c.ranks + c.rank[first]
    right = c.second[first] * c.ranks + c.other[first]
    size = c.views.shape[1] * c.ranks
    a, b = np.zeros(size), np.zeros(size)
    at_left, at_right = (np.maximum(tally(side, weight, size), 1e-300) for side in (left, right))
    for _ in range(_ROUNDS):
        a = tally(left, weight * (rate - b[right]), size) / at_left
        b = tally(right, weight * (rate - a[left]), size) / at_right
    smooth = a[left] + b[right]
    smooth -= (weight * smooth).sum() / max(weight.sum(), 1e-300)
    return np.asarray(smooth[c.sets[1]])


def bend(ranker_pairs: RankerPairs) -> FloatArray:
    """(k − k')|k − k'|: far ranks differ by more, or less, than the steps between them."""
    apart = (ranker_pairs.rank - ranker_pairs.other).astype(np.float64)
    return np.asarray(apart * np.abs(apart))


def above(ranker_pairs: RankerPairs) -> FloatArray:
    """How often a page is still read at i's k, against j's k', by users who stop at their first click (cascade)."""
    reading = 1 - (np.cumsum(ranker_pairs.rates, axis=1) - ranker_pairs.rates)
    reached = np.log(np.maximum(reading, _LEAST_READING))
    return np.asarray(reached[ranker_pairs.first, ranker_pairs.rank] - reached[ranker_pairs.second, ranker_pairs.other])


def neighbours(residuals: Residuals) -> FloatArray:
    """The relevance next to i's k less that next to j's k': results that draw the eye from, or to, one another."""
    c, x = residuals.ranker_pairs, residuals.curve
    worth = c.rates / np.exp(x - x[0])
    around = np.zeros_like(worth)
    around[:, 1:] += worth[:, :-1]
    around[:, :-1] += worth[:, 1:]
    around[:, 1:-1] /= 2
    return np.asarray(around[c.first, c.rank] - around[c.second, c.other])


def _both(trial: Trial, misfit: Trial) -> Trial:
    """Return the directions with Q beside them: the lesser p of the two counts, twice."""
    if not trial.told:
        return trial
    ps = [p for p in (trial.p, misfit.p) if not math.isnan(p)]
    return Trial(trial.statistic, trial.directions, trial.degrees, min(1.0, len(ps) * min(ps)))


def _evidence(one: OneCurve, rankers: Sequence[str]) -> dict[str, Any]:
    steeper, error = one.trusting
    return {
        "p_directions": round_significant(one.trial.p),
        "p_misfit": round_significant(one.misfit.p),
        "p_same_rank": round_significant(one.level.p),
        "unequal": round_significant(one.unequal),
        "trust": round_significant(steeper),
        "trust_error": round_significant(error),
        "trust_seen": round_significant(_SEEN * error),
        "resembles": {name: round(value, 1) for name, value in one.resembles.items()},
        "pairs": _worst(one, rankers),
    }


def _worst(one: OneCurve, rankers: Sequence[str]) -> list[str]:
    """Return the ranker_pairs that add most to Q, in words."""
    s, c = one.residuals, one.residuals.ranker_pairs
    first = c.sets[0]
    excess, variance, clicks, wins = (c.by_set(v) for v in (s.excess, s.variance, c.total, c.wins))
    pull = np.divide(excess**2, variance, out=np.zeros_like(excess), where=variance > 1e-9)
    found = []
    for place in np.argsort(-pull, kind="stable")[:_MOST_PAIRS]:
        row = first[place]
        if pull[place] <= 0:
            break
        one_side, other_side = (
            f"{rankers[ranker]!r} at {rank + 1}"
            for ranker, rank in ((c.first[row], c.rank[row]), (c.second[row], c.other[row]))
        )
        found.append(
            f"{one_side} against {other_side}: {wins[place]:,.0f} of {clicks[place]:,.0f} clicks, "
            f"{wins[place] - excess[place]:,.0f} expected"
        )
    return found


def likeness(one: OneCurve) -> str:
    """Return what contradictions resemble most."""
    return _RESEMBLES[next(iter(one.resembles))]


def _calm(one: OneCurve, both: Trial, evidence: dict[str, Any]) -> Finding:
    _, error = one.trusting
    seen = _SEEN * error
    unequal = evidence["unequal"]
    how = (
        f"at rank 1 the best ranker is clicked {unequal:.2f} times as often as the worst"
        if unequal
        else "how unequal rankers are is not known"
    )
    if not both.told or not sees_trust(one):
        return Finding(
            "one-curve-not-tested",
            "info",
            "That pairs of ranks do not contradict each other is no evidence here: the rankers are too alike, or the "
            f"data too few, for trust bias or cascades to show ({how})",
            evidence=evidence,
            remedy="Compare the curves of a proxy of relevance (proxy): that tells with alike rankers, too.",
        )
    return Finding(
        "one-curve",
        "info",
        f"One curve explains all pairs of ranks ({format_p_value(both.p)}): {how}, so that trust bias would show if "
        f"the curve differed by {seen:.0%} for e times as relevant documents",
        evidence=evidence,
    )


def sees_trust(one: OneCurve) -> bool:
    """Whether trust bias that matters would show."""
    return _SEEN * one.trusting[1] <= BLIND


def _level(one: OneCurve) -> list[Question]:
    trial = one.level
    if not trial.directions:
        return []
    alarm = Finding(
        "ranker-effect",
        "warning",
        "Rankers get different clicks on documents that they put at the same rank, which no curve of ranks explains "
        f"({format_p_value(trial.p)})",
        evidence={"resembles": {name: round(value, 1) for name, value in one.resembles.items()}},
        remedy="Check that traffic is split independently of query and user, that clicks are logged alike for all "
        "rankers, and whether what stands around a result matters.",
    )
    return [Question(trial, alarm)]
