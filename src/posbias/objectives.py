"""Losses of rankers that learn from biased clicks, and their use in LightGBM, XGBoost, PyTorch and scikit-learn.

The public names are here; `posbias.learning` defines them.

>>> from posbias.objectives import softmax_ips
>>> gradient, hessian = softmax_ips(scores=[0.0, 0.0], weights=[1.0, 0.0], groups=[2])
"""

from __future__ import annotations

from posbias.learning import tensors as tensors
from posbias.learning.learners import (
    Choice,
    Form,
    add_lightgbm_models,
    blend_factors,
    cautious_factors,
    choose_rule,
    held_out_dcg,
    ips_share,
    learner_form,
    naive_share,
    pair_differences,
)
from posbias.learning.objectives import (
    grouped_dcg,
    lightgbm_metric,
    lightgbm_objective,
    lightgbm_ranker_metric,
    lightgbm_ranker_objective,
    pairwise_ips,
    pairwise_loss,
    poisson_exposure,
    poisson_loss,
    poisson_start,
    scaled_counts,
    scaled_weights,
    softmax_ips,
    softmax_loss,
    xgboost_metric,
    xgboost_objective,
)
from posbias.learning.rankers import FormRanker

__all__ = [
    "Choice",
    "Form",
    "FormRanker",
    "add_lightgbm_models",
    "blend_factors",
    "cautious_factors",
    "choose_rule",
    "grouped_dcg",
    "held_out_dcg",
    "ips_share",
    "learner_form",
    "lightgbm_metric",
    "lightgbm_objective",
    "lightgbm_ranker_metric",
    "lightgbm_ranker_objective",
    "naive_share",
    "pair_differences",
    "pairwise_ips",
    "pairwise_loss",
    "poisson_exposure",
    "poisson_loss",
    "poisson_start",
    "scaled_counts",
    "scaled_weights",
    "softmax_ips",
    "softmax_loss",
    "xgboost_metric",
    "xgboost_objective",
]
