"""The losses as functions of PyTorch's tensors, to be differentiated by it.

Rows of a query stand next to each other, and `groups` holds how many each has, as in `posbias.objectives`. Losses are
sums over rows, so that those of batches add up: of whole queries for the first two.
"""

from __future__ import annotations

from typing import Any

from posbias._optional import optional
from posbias.errors import PosbiasError
from posbias.learning.objectives import clicks_without_exposure


def softmax_loss(scores: Any, weights: Any, groups: Any) -> Any:
    """Return −Σ W_i log π_i, where π is the softmax of the scores of a group."""
    torch = _torch()
    group, count = _groups(torch, scores, weights, groups)
    largest = torch.full((count,), -torch.inf, dtype=scores.dtype, device=scores.device)
    largest = largest.scatter_reduce(0, group, scores.detach(), "amax")
    total = torch.zeros(count, dtype=scores.dtype, device=scores.device)
    total = total.index_add(0, group, torch.exp(scores - largest[group]))
    return -(weights * (scores - largest[group] - torch.log(total)[group])).sum()


def _torch() -> Any:
    return optional("torch", "Losses of tensors need")


def _groups(torch: Any, scores: Any, weights: Any, groups: Any) -> tuple[Any, int]:
    """Return the number of each row's group, and how many there are."""
    _refuse(scores, weights=weights)
    try:
        sizes = torch.as_tensor(groups, device=scores.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PosbiasError(f"groups must be the number of rows of each query: {error}.") from None
    if sizes.ndim != 1 or sizes.is_floating_point():
        raise PosbiasError(
            f"groups must be the number of rows of each query, whole numbers, not {sizes.dtype} of the shape "
            f"{tuple(sizes.shape)}."
        )
    if int(sizes.sum()) != len(scores) or bool((sizes < 0).any()):
        raise PosbiasError(
            f"groups must be the sizes of query groups, which add up to the number of rows: {len(scores):,} rows, and "
            f"{len(sizes):,} groups that add up to {int(sizes.sum()):,}. A column of query ids is not what is meant."
        )
    return torch.repeat_interleave(torch.arange(len(sizes), device=scores.device), sizes), len(sizes)


def _refuse(scores: Any, **others: Any) -> None:
    """Refuse what is not of one shape, and what is no weight or count."""
    for name, values in {"scores": scores, **others}.items():
        if not hasattr(values, "ndim"):
            raise PosbiasError(f"{name} must be a tensor, not a {type(values).__name__}. See torch.as_tensor.")
    for name, values in others.items():
        if scores.ndim != 1 or values.shape != scores.shape:
            raise PosbiasError(
                f"scores have the shape {tuple(scores.shape)} and {name} {tuple(values.shape)}. Expected one number of "
                "each a row, as in scores.squeeze(-1): other shapes would be stretched to tables."
            )
        if not bool((values >= 0).all()):
            raise PosbiasError(f"Some {name} are negative or no numbers. Expected numbers from 0 on.")


def pairwise_loss(scores: Any, weights: Any, groups: Any) -> Any:
    """Return Σ_i W_i Σ_j log(1 + e^{s_j − s_i}) over the other documents j of a group."""
    torch = _torch()
    group, _ = _groups(torch, scores, weights, groups)
    sizes = torch.as_tensor(groups, device=scores.device)
    starts = torch.cumsum(sizes, 0) - sizes
    clicked = torch.nonzero(weights > 0).reshape(-1)
    others = sizes[group[clicked]]
    i = torch.repeat_interleave(clicked, others)
    within = torch.arange(len(i), device=scores.device)
    within = within - torch.repeat_interleave(torch.cumsum(others, 0) - others, others)
    j = torch.repeat_interleave(starts[group[clicked]], others) + within
    apart = i != j
    i, j = i[apart], j[apart]
    return (weights[i] * torch.nn.functional.softplus(scores[j] - scores[i])).sum()


def poisson_loss(scores: Any, clicks: Any, exposure: Any) -> Any:
    """Return Σ E e^s − C s, the likelihood of clicks that come at the rate e^s of a view at rank 1."""
    torch = _torch()
    _refuse(scores, clicks=clicks, exposure=exposure)
    unseen = int(((clicks > 0) & (exposure == 0)).sum())
    if unseen:
        raise clicks_without_exposure(unseen, len(scores))
    return (exposure * torch.exp(scores) - clicks * scores).sum()
