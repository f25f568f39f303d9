"""The objectives as LightGBM and XGBoost call them, on data in their own form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from posbias.arrays import FloatArray
from posbias.errors import PosbiasError
from posbias.learning.objectives import poisson_exposure

# The gradient and the Hessian of arrays, as `softmax_ips` gives them.
Objective = Callable[[Any, Any, Any], tuple[FloatArray, FloatArray]]
_NOT_IPS = (
    "A weight of each row multiplies its gradient after documents were compared, which is not IPS: gradients of a "
    "query no longer add up to 0. Give the column `weight` as label, and no weight."
)


def lightgbm_objective(objective: Objective) -> Callable[[Any, Any], tuple[FloatArray, FloatArray]]:
    """Return an objective as `lightgbm.train` takes it: `{"objective": lightgbm_objective(softmax_ips)}`.

    Of `softmax_ips` and `pairwise_ips` the Dataset has the IPS weight as label, and groups; of `poisson_exposure` it
    has clicks / exposure as label and exposure as weight, like the built-in one.
    """

    _refuse_other(objective)

    def lightgbm_loss(scores: Any, data: Any) -> tuple[FloatArray, FloatArray]:
        if getattr(data, "position", None) is not None:
            raise PosbiasError(
                "The Dataset has positions, by which LightGBM corrects a second time. Leave `position` out."
            )
        return _called(objective, scores, data.get_label(), data.get_weight(), data.get_group())

    return lightgbm_loss


def lightgbm_ranker_objective(objective: Objective) -> Callable[..., tuple[FloatArray, FloatArray]]:
    """Return an objective as `LGBMRanker` takes it.

    `LGBMRanker(objective=lightgbm_ranker_objective(softmax_ips), metric="none")`: its own metrics take whole labels
    only. Of `poisson_exposure` it goes to `LGBMRegressor`, for it knows no groups.
    """

    _refuse_other(objective)

    def ranker_loss(label: Any, scores: Any, weight: Any, group: Any) -> tuple[FloatArray, FloatArray]:
        return _called(objective, scores, label, weight, group)

    def regressor_loss(label: Any, scores: Any, weight: Any) -> tuple[FloatArray, FloatArray]:
        return _called(objective, scores, label, weight, None)

    return regressor_loss if objective is poisson_exposure else ranker_loss


def xgboost_objective(objective: Objective) -> Callable[[Any, Any], tuple[FloatArray, FloatArray]]:
    """Return an objective as `xgboost.train` takes it: `obj=xgboost_objective(softmax_ips)`.

    The DMatrix holds what `lightgbm_objective` wants. `XGBRanker` takes no objective of one's own.
    """

    _refuse_other(objective)

    def xgboost_loss(scores: Any, data: Any) -> tuple[FloatArray, FloatArray]:
        starts = data.get_uint_info("group_ptr")
        return _called(objective, scores, data.get_label(), data.get_weight(), np.diff(starts) if len(starts) else None)

    return xgboost_loss


def _refuse_other(objective: object) -> None:
    """Refuse what is no function: learners would call it in the midst of their training."""
    if not callable(objective):
        raise PosbiasError(
            f"objective must be a function such as posbias.objectives.softmax_ips, not {objective!r}. By name there "
            "are forms (learner_form)."
        )


def _called(objective: Objective, scores: Any, label: Any, weight: Any, group: Any) -> tuple[FloatArray, FloatArray]:
    weighted, grouped = (given is not None and np.size(given) > 0 for given in (weight, group))
    if objective is poisson_exposure:
        if not weighted or np.size(weight) != np.size(label):
            raise PosbiasError(
                "Exposure is missing: the Poisson objective takes clicks / exposure as label and exposure as weight of "
                "each row. XGBoost takes one weight a group where there are groups: leave them out, it has none."
            )
        exposure = np.asarray(weight, dtype=np.float64)
        return objective(scores, np.asarray(label, dtype=np.float64) * exposure, exposure)
    if weighted:
        raise PosbiasError(_NOT_IPS)
    if not grouped:
        raise PosbiasError(
            "The data have no groups: documents are compared within a query. Give the number of rows of each query as "
            "group, rows of a query next to each other."
        )
    return objective(scores, label, np.asarray(group, dtype=np.int64))
