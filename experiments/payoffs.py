"""What learning from corrected clicks came to: gains over no correction, their errors, and what we promised of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.outcomes import Row, Verdict, judged
from posbias._arrays import FloatArray

# What was aimed at, in nDCG@10.
CLOSE, WORTH, AHEAD, HARMLESS, KEPT = 0.002, 0.015, 0.008, 0.003, 0.9
# With fewer seeds than this a standard error over them tells little.
_ENOUGH_SEEDS = 4
_TREES = ("LightGBM", "XGBoost")
# The rule that is to be used first, of which the promises are.
ADVISED = "cautious"
# A gain below this is no gain of which to keep a share.
_SLIGHT = 0.005


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class Payoffs:
    """nDCG@10 by learner and rule, each of shape (η, page views, trees, seeds)."""

    etas: Sequence[float]
    views: Sequence[int]
    trees: Sequence[int]
    ndcg: Mapping[tuple[str, str], FloatArray]

    @property
    def seeds(self) -> int:
        """How many sites were tried."""
        return int(next(iter(self.ndcg.values())).shape[-1])

    def gain(self, learner: str, rule: str, over: str = "naive") -> FloatArray:
        """Return by how much a rule is above another, of the same log and learner."""
        return self.ndcg[learner, rule] - self.ndcg[learner, over]

    def place(self, where: int | np.integer[Any]) -> str:
        """Say where in an array over η, page views and trees something is, by its number."""
        eta, views, trees = (int(index) for index in np.unravel_index(int(where), self.shape))
        return f"η = {self.etas[eta]:g}, {_views(self.views[views])}, {self.trees[trees]} trees"

    @property
    def shape(self) -> tuple[int, int, int]:
        """How many η, page views and numbers of trees there are."""
        return len(self.etas), len(self.views), len(self.trees)


def mean_and_error(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean over seeds, the last axis, and its standard error.

    Example:
        >>> mean_and_error(np.array([1.0, 3.0]))
        (np.float64(2.0), np.float64(1.0))
    """
    seeds = values.shape[-1]
    spread = values.std(axis=-1, ddof=1) if seeds > 1 else np.full(values.shape[:-1], np.nan)
    return values.mean(axis=-1), spread / np.sqrt(seeds)


def payoff_rows(kind: str, payoffs: Payoffs) -> Iterator[Row]:
    """Yield a row for each learner, rule and setting."""
    for (learner, rule), ndcg in payoffs.ndcg.items():
        mean, error = mean_and_error(ndcg)
        gain, gain_error = mean_and_error(payoffs.gain(learner, rule))
        least = payoffs.gain(learner, rule).min(axis=-1)
        for where in np.ndindex(payoffs.shape):
            eta, views, trees = where
            yield {
                "judgments": kind,
                "learner": learner,
                "rule": rule,
                "eta": payoffs.etas[eta],
                "views": payoffs.views[views],
                "trees": payoffs.trees[trees],
                "seeds": payoffs.seeds,
                "ndcg": float(mean[where]),
                "ndcg_error": float(error[where]),
                "gain": float(gain[where]),
                "gain_error": float(gain_error[where]),
                "least_gain": float(least[where]),
            }


def judge_payoffs(kind: str, payoffs: Payoffs) -> tuple[Verdict, ...]:
    """Return whether correction does on these judgments what was promised of it."""
    enough = payoffs.seeds >= _ENOUGH_SEEDS
    steep = [number for number, eta in enumerate(payoffs.etas) if eta >= 1]
    return (
        _close(kind, payoffs, (ADVISED,), enough),
        _close(kind, payoffs, ("IPS", "Poisson"), enough),
        *([_worth(kind, payoffs, steep, enough)] if steep else []),
        _ahead(kind, payoffs, enough),
        _harmless(kind, payoffs, enough),
        _kept(kind, payoffs, enough),
        _choosing(kind, payoffs, enough),
    )


def _close(kind: str, payoffs: Payoffs, rules: Sequence[str], enough: bool) -> Verdict:
    worst, place, outside, within, of = 0.0, "nowhere", 0, 0, 0
    for rule in rules:
        mean, error = mean_and_error(payoffs.gain("LightGBM", rule, f"{rule}, true p"))
        outside += int((np.abs(mean) - 2 * error > CLOSE).sum())
        within += int((np.abs(mean) <= CLOSE).sum())
        of += mean.size
        where = np.abs(mean).argmax()
        if abs(mean.flat[where]) > abs(worst):
            worst, place = float(mean.flat[where]), f"{rule}, {payoffs.place(where)}"
    return judged(
        f"{kind}: estimated propensities are within {CLOSE} of true ones in nDCG by {' and '.join(rules)}, two "
        "standard errors allowed",
        f"{worst:+.4f} at the most ({place}); outside in {outside} of {of} settings, with nothing allowed in "
        f"{of - within}",
        outside == 0,
        enough=enough,
    )


def _worth(kind: str, payoffs: Payoffs, steep: Sequence[int], enough: bool) -> Verdict:
    gains = {learner: payoffs.gain(learner, ADVISED)[steep] for learner in _TREES}
    told = []
    for number, views in enumerate(payoffs.views):
        of_views = np.stack([gain[:, number] for gain in gains.values()])
        told.append(f"{_views(views)}: {of_views.min():+.3f}, on average {of_views.mean():+.3f}")
    least = min(float(gain.min()) for gain in gains.values())
    return judged(
        f"{kind}: the cautious blend gains {WORTH} or more over no correction at η of 1 and 2, in every seed",
        f"least gain of a seed at {'; at '.join(told)}",
        least >= WORTH,
        enough=enough,
    )


def _ahead(kind: str, payoffs: Payoffs, enough: bool) -> Verdict:
    mean, error = mean_and_error(payoffs.gain("XGBoost", ADVISED, "lambdarank_unbiased"))
    where = mean.argmin()
    below = int((mean + 2 * error < AHEAD).sum())
    return judged(
        f"{kind}: the cautious blend is {AHEAD} or more above XGBoost's lambdarank_unbiased, two standard errors "
        "allowed",
        f"{mean.min():+.3f} at the least ({payoffs.place(where)}), {mean.mean():+.3f} on average; below in {below} of "
        f"{mean.size} settings, with nothing allowed in {int((mean < AHEAD).sum())}",
        below == 0,
        enough=enough,
    )


def _harmless(kind: str, payoffs: Payoffs, enough: bool) -> Verdict:
    gains = {learner: payoffs.gain(learner, ADVISED) for learner in _TREES}
    mean, error = mean_and_error(np.stack(list(gains.values())))
    worst = np.unravel_index(mean.argmin(), mean.shape)
    lost = sum(int((gain < -HARMLESS).sum()) for gain in gains.values())
    below = int((mean + 2 * error < -HARMLESS).sum())
    return judged(
        f"{kind}: the cautious blend is never worse than no correction by more than {HARMLESS}, two standard errors "
        "allowed",
        f"{mean[worst]:+.4f} ± {error[worst]:.4f} at the least ({_where(payoffs, mean.argmin())}); worse in {below} of "
        f"{mean.size} settings, with nothing allowed in {int((mean < -HARMLESS).sum())}, and in {lost} of "
        f"{mean.size * payoffs.seeds} single runs",
        below == 0,
        enough=enough,
    )


def _kept(kind: str, payoffs: Payoffs, enough: bool) -> Verdict:
    either = np.stack([[payoffs.gain(learner, rule) for rule in ("IPS", "Poisson")] for learner in _TREES])
    ours = np.stack([payoffs.gain(learner, ADVISED) for learner in _TREES])
    # The better of both on average over seeds, not of each seed: that would be to choose by what nobody knows.
    first = either.mean(axis=-1)[:, 0] >= either.mean(axis=-1)[:, 1]
    better = np.where(first[..., None], either[:, 0], either[:, 1])
    counts = better.mean(axis=-1) >= _SLIGHT
    share = np.where(counts, ours.mean(axis=-1) / np.where(counts, better.mean(axis=-1), 1), np.inf)
    mean, error = mean_and_error(ours - KEPT * better)
    below = int((counts & (mean + 2 * error < 0)).sum())
    place = _where(payoffs, share.argmin()) if counts.any() else "nowhere"
    return judged(
        f"{kind}: the cautious blend keeps {KEPT:.0%} or more of the better of IPS and Poisson where that gains "
        f"{_SLIGHT}, two standard errors allowed",
        f"{share.min():.0%} at the least ({place}); less in {below} of {int(counts.sum())} settings, with nothing "
        f"allowed in {int((share < KEPT).sum())}",
        below == 0,
        enough=enough and bool(counts.any()),
    )


def _where(payoffs: Payoffs, number: int | np.integer[Any]) -> str:
    """Say where in an array over learners with trees, η, page views and trees something is, by its number."""
    learner, setting = divmod(int(number), int(np.prod(payoffs.shape)))
    return f"{_TREES[learner]}, {payoffs.place(setting)}"


def _choosing(kind: str, payoffs: Payoffs, enough: bool) -> Verdict:
    gain, _ = mean_and_error(payoffs.gain("LightGBM", "chosen"))
    return judged(
        f"{kind}: to choose one of the two by cross-validation is never worse than none by more than {HARMLESS}",
        f"{gain.min():+.4f} at the least ({payoffs.place(gain.argmin())})",
        gain.min() >= -HARMLESS,
        enough=enough,
    )


def payoff_lines(kind: str, payoffs: Payoffs, trees: int) -> Iterator[str]:
    """Yield the gains over no correction in thousandths, by learner and rule, at one number of trees."""
    number = list(payoffs.trees).index(trees)
    yield ""
    yield (
        f"{kind}, {trees} trees: nDCG@10 of no correction, and gains over it × 1,000 at η = "
        f"{' / '.join(f'{eta:g}' for eta in payoffs.etas)}"
    )
    yield " | ".join(["learner", "rule", *map(_views, payoffs.views)])
    for learner, rule in payoffs.ndcg:
        if rule == "naive":
            mean = payoffs.ndcg[learner, rule][:, :, number].mean(axis=-1)
            cells = [" / ".join(f"{value:.3f}" for value in column) for column in mean.T]
        else:
            mean = 1000 * payoffs.gain(learner, rule)[:, :, number].mean(axis=-1)
            cells = [" / ".join(f"{value:+.0f}" for value in column) for column in mean.T]
        yield " | ".join([learner, rule, *cells])


def _views(views: int) -> str:
    return "1 view" if views == 1 else f"{views} views"
