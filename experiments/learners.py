"""Learners of rankers: linear, LightGBM and XGBoost, each minimising one of our losses, or a loss of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from posbias._arrays import FloatArray, IntArray
from posbias._optional import optional
from posbias.objectives import (
    poisson_exposure,
    poisson_loss,
    poisson_start,
    scaled_counts,
    scaled_weights,
    softmax_ips,
    softmax_loss,
)

Features = npt.NDArray[np.float32]
# Scores of documents at each number of trees asked for, a row each.
Scores = FloatArray
# Fixed before any result was seen, and the same for all rules.
RATE, LEAVES, IN_LEAF, PENALTY = 0.1, 15, 20, 1.0
_LIGHTGBM = {
    "learning_rate": RATE,
    "num_leaves": LEAVES,
    "min_data_in_leaf": IN_LEAF,
    "lambda_l2": PENALTY,
    "num_threads": 1,
    "verbosity": -1,
    "seed": 0,
    "force_col_wise": True,
    "max_bin": 63,
}
_XGBOOST = {
    "learning_rate": RATE,
    "max_depth": 0,
    "max_leaves": LEAVES,
    "grow_policy": "lossguide",
    "min_child_weight": 1.0,
    "lambda": PENALTY,
    "tree_method": "hist",
    "max_bin": 63,
    "nthread": 1,
    "seed": 0,
    "verbosity": 0,
}
_LINEAR_PENALTY = 1e-3


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class Lesson:
    """What to learn from: rows, and the loss of their scores with its slope and bend."""

    features: Features
    loss: Callable[[FloatArray], float]
    slopes: Callable[[FloatArray], tuple[FloatArray, FloatArray]]
    start: float = 0.0


def softmax_lesson(features: Features, weights: FloatArray, groups: IntArray) -> Lesson:
    """Learn by the softmax loss over the documents of each group."""
    w = scaled_weights(weights)
    return Lesson(features, lambda s: softmax_loss(s, w, groups), lambda s: softmax_ips(s, w, groups))


def poisson_lesson(features: Features, clicks: FloatArray, exposure: FloatArray) -> Lesson:
    """Learn by the likelihood of clicks, given how often each document was seen."""
    c, e = scaled_counts(clicks, exposure)
    return Lesson(features, lambda s: poisson_loss(s, c, e), lambda s: poisson_exposure(s, c, e), poisson_start(c, e))


def learn_linear(lesson: Lesson, held_out: Sequence[Features], trees: Sequence[int]) -> list[Scores]:
    """Fit a linear ranker; it has no trees, and the same scores at every number of them."""
    from scipy.optimize import minimize

    # In 64 bits: the square of what a file may hold does not fit into 32.
    middle = lesson.features.mean(axis=0, dtype=np.float64)
    spread = np.maximum(lesson.features.std(axis=0, dtype=np.float64), 1e-6)
    x = ((lesson.features - middle) / spread).astype(np.float32)
    x = np.column_stack([x, np.ones(len(x), dtype=np.float32)])
    total = max(1, len(x))
    penalty = np.append(np.full(x.shape[1] - 1, _LINEAR_PENALTY), 0)

    def aim(w: FloatArray) -> tuple[float, FloatArray]:
        s = np.clip(x @ w, -50, 50)
        slope = lesson.slopes(s)[0] @ x
        return float(lesson.loss(s) / total + penalty @ w**2 / 2), np.asarray(slope / total + penalty * w)

    first = np.append(np.zeros(x.shape[1] - 1), lesson.start)
    w = minimize(aim, first, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x[:-1] / spread
    return [np.tile(rows @ w, (len(trees), 1)) for rows in held_out]


def learn_lightgbm(lesson: Lesson, held_out: Sequence[Features], trees: Sequence[int]) -> list[Scores]:
    """Fit boosted trees with LightGBM; one fit serves every number of trees."""
    lightgbm = optional("lightgbm", "This learner needs")
    data = lightgbm.Dataset(lesson.features, init_score=np.full(len(lesson.features), lesson.start), params=_LIGHTGBM)
    settings = _LIGHTGBM | {"objective": lambda scores, _: lesson.slopes(scores)}
    return _lightgbm_scores(lightgbm.train(settings, data, max(trees)), held_out, trees)


def learn_xgboost(lesson: Lesson, held_out: Sequence[Features], trees: Sequence[int]) -> list[Scores]:
    """Fit boosted trees with XGBoost; one fit serves every number of trees."""
    xgboost = optional("xgboost", "This learner needs")
    data = xgboost.QuantileDMatrix(lesson.features, nthread=1, max_bin=_XGBOOST["max_bin"])
    settings = _XGBOOST | {"base_score": lesson.start}
    model = xgboost.train(settings, data, max(trees), obj=lambda scores, _: lesson.slopes(scores))
    return _xgboost_scores(model, held_out, trees)


LEARNERS: dict[str, Callable[[Lesson, Sequence[Features], Sequence[int]], list[Scores]]] = {
    "linear": learn_linear,
    "LightGBM": learn_lightgbm,
    "XGBoost": learn_xgboost,
}


def learn_positions(
    features: Features,
    clicks: IntArray,
    positions: IntArray,
    groups: IntArray,
    held_out: Sequence[Features],
    trees: Sequence[int],
) -> list[Scores]:
    """Fit LightGBM's lambdarank with `position`, its own correction: pages as they were shown, clicks as labels."""
    lightgbm = optional("lightgbm", "This learner needs")
    data = lightgbm.Dataset(features, clicks, group=groups, position=positions, params=_LIGHTGBM)
    gains = list(range(int(clicks.max(initial=0)) + 1))
    settings = _LIGHTGBM | {"objective": "lambdarank", "label_gain": gains}
    return _lightgbm_scores(lightgbm.train(settings, data, max(trees)), held_out, trees)


def learn_unbiased(
    features: Features, clicks: IntArray, groups: IntArray, held_out: Sequence[Features], trees: Sequence[int]
) -> list[Scores]:
    """Fit XGBoost's `lambdarank_unbiased`, its own correction: rows in the order shown, clicks as labels."""
    xgboost = optional("xgboost", "This learner needs")
    query = np.repeat(np.arange(len(groups)), groups)
    data = xgboost.QuantileDMatrix(features, clicks, qid=query, nthread=1, max_bin=_XGBOOST["max_bin"])
    settings = _XGBOOST | {"objective": "rank:ndcg", "ndcg_exp_gain": False, "lambdarank_unbiased": True}
    return _xgboost_scores(xgboost.train(settings, data, max(trees)), held_out, trees)


def _lightgbm_scores(model: Any, held_out: Sequence[Features], trees: Sequence[int]) -> list[Scores]:
    def part(rows: Features, first: int, last: int) -> FloatArray:
        return np.asarray(model.predict(rows, start_iteration=first, num_iteration=last - first, raw_score=True))

    return [_summed(part, rows, trees) for rows in held_out]


def _xgboost_scores(model: Any, held_out: Sequence[Features], trees: Sequence[int]) -> list[Scores]:
    def part(rows: Features, first: int, last: int) -> FloatArray:
        found = model.inplace_predict(rows, iteration_range=(first, last), predict_type="margin")
        return np.asarray(found, dtype=np.float64)

    return [_summed(part, rows, trees) for rows in held_out]


def _summed(part: Callable[[Features, int, int], FloatArray], rows: Features, trees: Sequence[int]) -> Scores:
    """Scores of trees so far: what the next trees add, added up. A constant, if each has one, moves no document."""
    return np.cumsum([part(rows, first, last) for first, last in zip([0, *trees[:-1]], trees, strict=True)], axis=0)
