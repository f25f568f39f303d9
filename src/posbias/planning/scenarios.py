"""What the same number of page views would bring otherwise: another split of traffic, or one more ranker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from posbias.arguments import shares as given_shares
from posbias.arrays import FloatArray
from posbias.errors import EstimateError, PosbiasError
from posbias.estimators import CrossFit
from posbias.harvesting.harvests import Harvest
from posbias.planning.measured import Base, Measured, Played, Wish, foresee, measure
from posbias.planning.newcomers import joined_by_newcomer
from posbias.planning.plans import NOT_FORESEEN, Scenario
from posbias.planning.twins import Twin
from posbias.progress import Progress
from posbias.wording import listed

# Twins drawn to read a standard error from: each knows it to 4%.
DRAWS = 6
_DRAWS_OF_SEARCH = 2
# No ranker is suggested a smaller share than this: what it brings was not looked at.
_LEAST = 0.05
# A split that lowers the mean variance by less than this, or moves no share by as much, is as good as the present one.
_WORTH = 0.05

SAME = (
    "Other traffic is foreseen by showing the strata anew, with the relevance that their clicks tell, to users of the "
    "position-based model: as many page views, each given to a ranker by itself."
)
BEST = "the split with the least variance, on average over the ranks."
NEWCOMER = (
    "one that differs from the present ones as they differ from each other, in how far it moves documents and in "
    "how many it leaves out, and finds as relevant ones; it gets an equal share, the others lose in proportion."
)
# A newcomer is made as unlike the others as they are on average. Those that compare two ranks at a time hang on how
# many documents it moves by one certain distance: where it is of another quality, they were off by a fifth.
_LOCAL = ("pivot-one", "adjacent-chain")
_BY_DISTANCE = f"{NOT_FORESEEN}: it rests on how many documents a new ranker moves by one certain distance"


@dataclass(frozen=True)
class Stage:
    """What scenarios are played on: a harvest, what was measured of it, and what is wanted."""

    harvest: Harvest
    measured: Sequence[Measured]
    wish: Wish
    base: Base
    seed: int
    progress: Progress

    @property
    def shares(self) -> FloatArray:
        """The share of traffic of each ranker."""
        views = self.harvest.views.sum(axis=0)
        return np.asarray(views / views.sum())

    def named(self, shares: FloatArray) -> dict[str, float]:
        """Return shares by the names of rankers, those that have any."""
        names = [*self.harvest.rankers, "new"]
        return {name: round(float(share), 4) for name, share in zip(names, shares, strict=False) if share > 0}


def play(stage: Stage, splits: Sequence[Mapping[str, float]]) -> tuple[Scenario, ...]:
    """Return what splits of traffic would bring, the best split that was found, and one more ranker."""
    given = [shares_of(split, stage.harvest.rankers) for split in splits]
    twin = Twin.of(stage.harvest, CrossFit(interval=None).fit(stage.harvest).propensity_)
    now = stage.shares
    steps = len(given) + 3
    names = [each.estimator for each in stage.measured]
    # Fits that are to be made: of each estimator in each step, and of the first while the best split is looked for.
    fits, done = DRAWS * steps * len(names) + _DRAWS_OF_SEARCH * len(splits_to_try(now)), 0

    def tell(ahead: int) -> None:
        nonlocal done
        stage.progress("Playing scenarios", done / fits)
        done += ahead

    def errors(twin: Twin, shares: FloatArray, step: int) -> FloatArray:
        rng = np.random.default_rng([stage.seed, step])
        drawn = []
        for _ in range(DRAWS):
            tell(len(names))
            drawn.append(errors_of(names, twin.draw(shares, rng)))
        return _averaged(drawn)

    present = errors(twin, now, 0)

    def scenario(name: str, shares: FloatArray, assumes: str, found: FloatArray) -> Scenario:
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio, degrees = np.sqrt(found[0] / present[0]), 1 / np.maximum(found[1], present[1])
        outlooks = [
            foresee(each, stage.wish, stage.base, _played(each.estimator, assumes, ratio[i], degrees[i]))
            for i, each in enumerate(stage.measured)
        ]
        return Scenario(name, stage.named(shares), assumes, tuple(outlooks))

    played = []
    for step, shares in enumerate(given, start=1):
        played.append(scenario(told(stage.named(shares)), shares, "", errors(twin, shares, step)))
    best = best_split(twin, now, names[0], np.random.default_rng([stage.seed, 99]), lambda: tell(1))
    if best is not None and np.abs(best - now).max() > _WORTH:
        found = errors(twin, best, steps - 2)
        variance, before = found[0, 0], present[0, 0]
        known = np.isfinite(variance) & np.isfinite(before)
        if variance[known].sum() < (1 - _WORTH) * before[known].sum():
            name = f"best: {told(stage.named(best))}"
            whole = scenario(name, best, BEST, found)
            # A split that nothing is foreseen of is not to be called the best.
            played += [whole] if whole.outlooks[0].foreseen else []
    joined = joined_by_newcomer(twin, stage.base.queries, np.random.default_rng([stage.seed, 98]))
    rankers = int((now > 0).sum())
    shares = np.append(now * rankers / (rankers + 1), 1 / (rankers + 1))
    name = f"{_ORDINALS.get(rankers + 1, f'{rankers + 1}th')} ranker"
    played.append(scenario(name, shares, NEWCOMER, errors(joined, shares, steps - 1)))
    return tuple(played)


def _played(estimator: str, assumes: str, ratio: FloatArray, degrees: FloatArray) -> Played:
    if assumes == NEWCOMER and estimator in _LOCAL:
        return Played(np.full(len(ratio), np.nan), degrees, _BY_DISTANCE)
    return Played(ratio, degrees)


_ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}


def told(shares: Mapping[str, float]) -> str:
    """Return a split in a few letters."""
    return " ".join(f"{name}={share:.3g}" for name, share in shares.items())


def shares_of(split: Mapping[str, float], rankers: Sequence[str]) -> FloatArray:
    """Return a split as shares of the rankers; those that it leaves out have none."""
    unknown = [name for name in split if name not in rankers]
    if unknown:
        raise PosbiasError(
            f"traffic gives a share to {listed(unknown)}, but the rankers are {listed(rankers)}. Name those, such as "
            f"{rankers[0]}=0.5; a ranker whose ranks are known may be named though it served nothing yet."
        )
    given = given_shares("traffic", split, "{'a': 0.5, 'b': 0.5}")
    weights = np.array([given.get(name, 0.0) for name in rankers])
    if (weights > 0).sum() < 2:
        raise PosbiasError(
            f"traffic must give a share above 0 to two rankers or more, found {dict(split)!r}: with one alone, no "
            "document is at two ranks."
        )
    return np.asarray(weights / weights.sum())


def errors_of(names: Sequence[str], harvest: Harvest) -> FloatArray:
    """Return variances of log p and one over their degrees of freedom, (2, estimators, M); NaN where there is none."""
    found = []
    for name in names:
        try:
            own = measure(name, harvest)
            found.append(np.stack([own.se**2, 1 / own.degrees]))
        except EstimateError:
            found.append(np.full((2, harvest.max_rank), np.nan))
    return np.stack(found, axis=1)


def _averaged(drawn: Sequence[FloatArray]) -> FloatArray:
    """Return the mean of what is there in most of the draws."""
    values = np.stack(drawn)
    known = np.isfinite(values)
    counts = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(2 * counts > len(values), np.where(known, values, 0.0).sum(axis=0) / counts, np.nan)


def splits_to_try(now: FloatArray) -> list[FloatArray]:
    """Return splits among the rankers that have traffic: the present one, an equal one, and most to each in turn."""
    served = now[now > 0]
    m = len(served)
    return [served, np.full(m, 1 / m), *(np.where(np.arange(m) == i, 0.7, 0.3 / (m - 1)) for i in range(m))]


def best_split(
    twin: Twin,
    now: FloatArray,
    estimator: str,
    rng: np.random.Generator,
    tell: Callable[[], None] = lambda: None,
) -> FloatArray | None:
    """Return the split of traffic among those that have some with the least variance, on average over ranks.

    The variance is nearly c0 + Σ c_i / π_i, each ranker telling as much as it shows: fitted to a few splits, it is
    least where π_i is proportional to √c_i. Before each fit it `tell`s.
    """
    served = np.flatnonzero(now > 0)
    m = len(served)
    points, variances = [], []
    for shares in splits_to_try(now):
        whole = np.zeros(len(now))
        whole[served] = shares
        drawn = []
        for _ in range(_DRAWS_OF_SEARCH):
            tell()
            drawn.append(errors_of([estimator], twin.draw(whole, rng)))
        found = _averaged(drawn)[0, 0, 1:]
        if np.isfinite(found).any():
            points.append(shares)
            variances.append(found)
    known = np.isfinite(np.array(variances)).all(axis=0) if variances else np.zeros(1, dtype=np.bool_)
    if len(points) < m + 1 or not known.any():
        return None
    variance = np.array(variances)[:, known].mean(axis=1)
    design = np.concatenate([np.ones((len(points), 1)), 1 / np.maximum(np.array(points), 1e-3)], axis=1)
    # Each to the same share of itself.
    cost = non_negative(design / variance[:, None], np.ones(len(points)))[1:]
    if not cost.any():
        return None
    shares = np.maximum(np.sqrt(cost) / np.sqrt(cost).sum(), _LEAST)
    answer = np.zeros(len(now))
    answer[served] = np.round(shares / shares.sum(), 2)
    return answer


def non_negative(design: FloatArray, values: FloatArray) -> FloatArray:
    """Return the coefficients of least squares, leaving out whatever would be negative.

    >>> non_negative(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([1.0, -1.0, 0.5])).round(2).tolist()
    [0.75, 0.0]
    """
    kept = np.ones(design.shape[1], dtype=np.bool_)
    answer = np.zeros(design.shape[1])
    while kept.any():
        found = np.linalg.lstsq(design[:, kept], values, rcond=None)[0]
        if (found >= 0).all():
            answer[kept] = found
            break
        kept[np.flatnonzero(kept)[np.argmin(found)]] = False
    return answer
