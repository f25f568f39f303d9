"""The losses of `posbias.objectives` for PyTorch tensors, which PyTorch differentiates.

Rows are sorted by query, and `groups` holds the number of rows of each query. Losses are sums over rows, so those of
batches add up; batches of the softmax and pairwise losses must have whole queries.
"""

from __future__ import annotations

from typing import Any

from posbias._optional import optional
from posbias.errors import PosbiasError
from posbias.learning.objectives import clicks_without_exposure, refuse_groups


def softmax_loss(scores: Any, weights: Any, groups: Any) -> Any:
    """Return −Σ W_i log π_i, where π is the softmax of the scores in a group.

    Arguments:
        scores (tensor): the score of every row.
        weights (tensor): the IPS label W of every row, 0 where there was no click.
        groups (tensor or array of int): the number of rows of each query, in their order.
    """
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
    """Return the group of each row, counted from 0, and the number of groups."""
    _check_tensors(scores, weights=weights)
    try:
        sizes = torch.as_tensor(groups, device=scores.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PosbiasError(f"groups must be the number of rows of each query: {error}.") from None
    if sizes.ndim != 1 or sizes.is_floating_point():
        raise PosbiasError(
            f"groups must be the number of rows of each query, in whole numbers, not {sizes.dtype} of the shape "
            f"{tuple(sizes.shape)}."
        )
    refuse_groups(sizes.tolist(), len(scores))
    return torch.repeat_interleave(torch.arange(len(sizes), device=scores.device), sizes), len(sizes)


def _check_tensors(scores: Any, **others: Any) -> None:
    """Reject tensors of different shapes, and negative or missing weights and counts."""
    for name, values in {"scores": scores, **others}.items():
        if not hasattr(values, "ndim"):
            raise PosbiasError(f"{name} must be a tensor, not a {type(values).__name__}. Use torch.as_tensor.")
    for name, values in others.items():
        if scores.ndim != 1 or values.shape != scores.shape:
            raise PosbiasError(
                f"scores have the shape {tuple(scores.shape)} and {name} {tuple(values.shape)}. Expected one number of "
                "each per row, as from scores.squeeze(-1): other shapes would be broadcast."
            )
        if not bool((values >= 0).all()):
            raise PosbiasError(f"Some {name} are negative or NaN. Expected numbers of 0 or more.")


def pairwise_loss(scores: Any, weights: Any, groups: Any) -> Any:
    """Return Σ_i W_i Σ_j log(1 + e^{s_j − s_i}) over the other documents j of a group.

    Arguments as in `softmax_loss`.
    """
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
    """Return Σ E e^s − C s, the negative log-likelihood of clicks at the rate e^s per view at rank 1.

    Arguments:
        scores (tensor): the score of every row: the log of its click rate at rank 1.
        clicks, exposure (tensor): clicks and exposure of every row.
    """
    torch = _torch()
    _check_tensors(scores, clicks=clicks, exposure=exposure)
    impossible = int(((clicks > 0) & (exposure == 0)).sum())
    if impossible:
        raise clicks_without_exposure(impossible, len(scores))
    return (exposure * torch.exp(scores) - clicks * scores).sum()
