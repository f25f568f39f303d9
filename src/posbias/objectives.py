"""Losses of rankers that learn from biased clicks, and their use in LightGBM, XGBoost, PyTorch and scikit-learn.

The public names are here; `posbias.learning` defines them.

>>> from posbias.objectives import softmax_ips
>>> gradient, hessian = softmax_ips(scores=[0.0, 0.0], weights=[1.0, 0.0], groups=[2])
"""

from __future__ import annotations

from posbias.learning import tensors as tensors
from posbias.learning.learners import Choice as Choice
from posbias.learning.learners import Form as Form
from posbias.learning.learners import blend_factors as blend_factors
from posbias.learning.learners import cautious_factors as cautious_factors
from posbias.learning.learners import choose_rule as choose_rule
from posbias.learning.learners import held_out_dcg as held_out_dcg
from posbias.learning.learners import ips_share as ips_share
from posbias.learning.learners import learner_form as learner_form
from posbias.learning.learners import naive_share as naive_share
from posbias.learning.learners import pair_differences as pair_differences
from posbias.learning.objectives import lightgbm_objective as lightgbm_objective
from posbias.learning.objectives import lightgbm_ranker_objective as lightgbm_ranker_objective
from posbias.learning.objectives import pairwise_ips as pairwise_ips
from posbias.learning.objectives import pairwise_loss as pairwise_loss
from posbias.learning.objectives import poisson_exposure as poisson_exposure
from posbias.learning.objectives import poisson_loss as poisson_loss
from posbias.learning.objectives import poisson_start as poisson_start
from posbias.learning.objectives import scaled_counts as scaled_counts
from posbias.learning.objectives import scaled_weights as scaled_weights
from posbias.learning.objectives import softmax_ips as softmax_ips
from posbias.learning.objectives import softmax_loss as softmax_loss
from posbias.learning.objectives import xgboost_objective as xgboost_objective
