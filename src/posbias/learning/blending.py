"""One ranker of some: scores learned without correction, by IPS and by exposure Poisson, added as clicks can bear."""

from __future__ import annotations

from typing import Any

import numpy as np

from posbias.arguments import number
from posbias.errors import PosbiasError
from posbias.learning.columns import as_numbers, numbered

# Clicks of equal weight at whose square root both count alike; set on two pilot logs, see docs/gains.md.
_HALFWAY = 10_000
# Clicks of equal weight at which no correction counts as much as both together; set on pilot logs, as above.
_FEW = 100


def blend_factors(ips: Any, poisson: Any, query: Any, effective_clicks: float) -> tuple[float, float]:
    """Return a and b of the ranker a · IPS + b · Poisson.

    IPS is unbiased and wants many clicks; exposure Poisson is steady where they are few, and has to explain what
    queries differ in as well. Their errors differ, so that both together are better than either nearly everywhere.
    Each is divided by its spread within queries. IPS then has the share √n / (√n + 100), where n are the effective
    clicks of the log.

    Arguments:
        ips, poisson: scores of the same documents by both rankers: of some hundred queries, learned from or not.
        query: of each of these documents.
        effective_clicks: as `ips_weights` tells them.

    Example:
        >>> a, b = blend_factors([1.0, 3.0], [0.2, 0.0], ["q", "q"], effective_clicks=10_000)
        >>> round(a, 3), round(b, 3)
        (0.5, 5.0)
    """
    group = numbered("query", query)
    share = ips_share(effective_clicks)
    return share / _spread("ips", ips, group), (1 - share) / _spread("poisson", poisson, group)


def cautious_factors(
    naive: Any, ips: Any, poisson: Any, query: Any, effective_clicks: float
) -> tuple[float, float, float]:
    """Return a, b and c of the ranker a · naive + b · IPS + c · Poisson: a blend that trusts few clicks less.

    This is the rule to use first. The naive ranker learned from clicks as they are, as `learner_form` has it by the
    names "lightgbm-naive" and "xgboost-naive". It is biased, and moved by chance the least. Its share is
    100 / (100 + n), where n are the effective clicks: what chance does to the others falls with n, and what bias does
    to it stays. The rest is that of `blend_factors`.

    Arguments are those of `blend_factors`, with the scores of the naive ranker before them.

    Example:
        >>> scores, query = [1.0, -1.0], ["q", "q"]
        >>> [round(factor, 3) for factor in cautious_factors(scores, scores, scores, query, effective_clicks=100)]
        [0.5, 0.045, 0.455]
    """
    group = numbered("query", query)
    share = naive_share(effective_clicks)
    b, c = blend_factors(ips, poisson, query, effective_clicks)
    return share / _spread("naive", naive, group), (1 - share) * b, (1 - share) * c


def naive_share(effective_clicks: float) -> float:
    """Return the share that no correction has of a cautious blend.

    >>> [round(naive_share(n), 2) for n in (100, 400, 20_000)]
    [0.5, 0.2, 0.0]
    """
    _refuse_clicks(effective_clicks)
    return float(_FEW / (_FEW + effective_clicks))


def ips_share(effective_clicks: float) -> float:
    """Return the share that IPS has of a blend.

    >>> [round(ips_share(n), 2) for n in (400, 10_000, 250_000)]
    [0.17, 0.5, 0.83]
    """
    _refuse_clicks(effective_clicks)
    return float(np.sqrt(effective_clicks) / (np.sqrt(effective_clicks) + np.sqrt(_HALFWAY)))


def _refuse_clicks(effective_clicks: Any) -> None:
    if not (number(effective_clicks) or 0) > 0:
        raise PosbiasError(
            f"effective_clicks must be a number above 0, found {effective_clicks!r}. `ips_weights` tells it."
        )


def _spread(name: str, scores: Any, group: Any) -> float:
    """Return the root mean square of scores about the mean of their query."""
    s = as_numbers(name, scores).reshape(-1)
    if len(s) != len(group) or not np.isfinite(s).all():
        raise PosbiasError(
            f"{name} has {len(s):,} scores, {int((~np.isfinite(s)).sum()):,} of them no numbers, for {len(group):,} "
            "documents. Expected a number for each."
        )
    if not len(s):
        raise PosbiasError("There is no document to tell the spread of scores by.")
    means = np.bincount(group, s) / np.bincount(group)
    spread = float(np.sqrt(((s - means[group]) ** 2).mean()))
    # A ranker that scores all documents alike has no order to bring in.
    return spread if spread > 0 else 1.0
