"""Which rule to learn by, told by queries held out: the self-normalised IPS DCG of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from posbias.arguments import whole
from posbias.arrays import FloatArray, IntArray
from posbias.errors import PosbiasError
from posbias.learning.columns import as_numbers, numbered
from posbias.learning.objectives import row_numbers

# Takes the rows to learn from and the rows to score, and returns the scores of these.
Fit = Callable[[IntArray, IntArray], Any]


@dataclass(frozen=True)
class Choice:
    """The rule that ranks held-out queries best, and the value of each rule over all of them."""

    name: str
    values: Mapping[str, float]

    def __str__(self) -> str:
        told = ", ".join(f"{name} {value:.4f}" for name, value in self.values.items())
        return f"{self.name} ({told})"


def choose_rule(
    rules: Mapping[str, Fit],
    query: Any,
    weight: Any,
    impressions: Any,
    *,
    folds: int = 5,
    depth: int = 10,
    seed: int = 0,
) -> Choice:
    """Choose between rules of learning by cross-validation: whole queries are held out, and each is scored once.

    What is compared is Σ W λ(rank) / ΣW over the documents that were shown, with λ = 1 / log2(1 + rank) down to
    `depth`. Raw clicks would prefer the ranker that learned their bias.

    Arguments:
        rules: by name, functions that take the rows to learn from and the rows to score, and return the scores of
            these. Of rules that do equally well the first is chosen.
        query, weight, impressions: the columns of what `ips_weights` made.
        folds: as many parts queries are split into.
        depth: ranks that count.
        seed: of the split, and of the order of documents with the same score.

    Example:
        >>> query, weight, shown = [1, 1, 2, 2], [0, 2, 0, 1], [5, 5, 5, 5]
        >>> good, bad = np.array([0, 1, 0, 1]), np.array([1, 0, 1, 0])
        >>> rules = {"bad": lambda learn, score: bad[score], "good": lambda learn, score: good[score]}
        >>> print(choose_rule(rules, query, weight, shown, folds=2))
        good (bad 0.6309, good 1.0000)
    """
    whole("folds", folds, 2)
    whole("depth", depth, 1)
    whole("seed", seed, 0)
    if not isinstance(rules, Mapping) or not rules or not all(map(callable, rules.values())):
        raise PosbiasError(f"There is no rule to choose from. Give a mapping of names to functions, not {rules!r}.")
    group = numbered("query", query)
    w, shown = row_numbers("weight", weight), row_numbers("impressions", impressions) > 0
    if not len(group) == len(w) == len(shown):
        raise PosbiasError(
            f"There are {len(group):,} queries, {len(w):,} weights and {len(shown):,} impressions. Expected one a row."
        )
    queries = int(group.max(initial=-1)) + 1
    if queries < folds:
        raise PosbiasError(f"There are {queries:,} queries for {folds:,} folds. Give more queries, or fewer folds.")
    fold = np.random.default_rng(seed).permutation(queries) % folds
    scores = {name: np.zeros(len(w)) for name in rules}
    for part in range(folds):
        held = fold[group] == part
        learn, score = np.flatnonzero(~held), np.flatnonzero(held)
        for name, fit in rules.items():
            scores[name][score] = _scores(f"The rule {name!r} returned", fit(learn, score), len(score))
    rows = np.flatnonzero(shown)
    values = {
        name: held_out_dcg(given[rows], w[rows], group[rows], depth=depth, seed=seed) for name, given in scores.items()
    }
    return Choice(max(values, key=lambda name: values[name]), values)


def held_out_dcg(scores: Any, weight: Any, query: Any, *, depth: int = 10, seed: int = 0) -> float:
    """Return Σ W λ(rank) / ΣW, where documents of a query are ranked by their scores.

    Documents with the same score are put in an order that is drawn.

    >>> held_out_dcg([3.0, 2.0, 1.0], [1.0, 0.0, 1.0], [7, 7, 7])
    0.75
    """
    whole("depth", depth, 1)
    whole("seed", seed, 0)
    w = row_numbers("weight", weight)
    group = numbered("query", query)
    s = _scores("There are", scores, len(w))
    if len(group) != len(w):
        raise PosbiasError(f"There are {len(group):,} queries and {len(w):,} weights. Expected one of each a row.")
    if not w.sum() > 0:
        raise PosbiasError("No row was clicked: nothing can be told from its rank.")
    # By query, then by score, then as it is drawn.
    order = np.lexsort((np.random.default_rng(seed).random(len(s)), -s, group))
    sizes = np.bincount(group)
    rank = np.arange(len(s)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
    gain = np.where(rank <= depth, 1 / np.log2(1 + rank), 0.0)
    return float((w[order] * gain).sum() / w.sum())


def _scores(who: str, scores: Any, rows: int) -> FloatArray:
    found = as_numbers("scores", scores).reshape(-1)
    if len(found) != rows or not np.isfinite(found).all():
        odd = int((~np.isfinite(found)).sum())
        raise PosbiasError(
            f"{who} {len(found):,} scores, {odd:,} of them no numbers, for {rows:,} rows. Expected a number for each "
            "row to score."
        )
    return found
