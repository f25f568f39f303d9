"""Traffic: whether rankers were drawn independently of the query, view by view, and in the shares intended."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from posbias.arrays import FloatArray
from posbias.errors import HarvestError
from posbias.findings import Finding
from posbias.harvesting.harvests import Harvest
from posbias.judging.contests import Contests, Surprises
from posbias.judging.directions import ranker_effects
from posbias.judging.questions import Question, told
from posbias.judging.trials import Trial, wald
from posbias.quantiles import f_tail
from posbias.wording import listed

# From here on, views of one query were given to rankers together.
_STICKY = 2.0


def question_independence(contests: Contests) -> list[Question]:
    """Return whether the choice of the ranker depends on the query; where exposure is as observed nothing tells."""
    if not contests.by_design:
        return []
    surprises = Surprises.of_impressions(contests)
    trial = wald([surprises.by_bucket(effect) for effect in ranker_effects(contests)])
    alarm = Finding(
        "leaning-traffic",
        "warning",
        "The choice of the ranker depends on the query: queries on whose results rankers agree more, or less, went to "
        f"some ranker more often than chance would send them ({told(trial.p)})",
        remedy="Split traffic by page view or user at random, whatever the query. Where that cannot be, harvest with "
        "weighting harmonic, which compares a document only with itself.",
    )
    return [Question(trial, alarm)]


def question_split(harvest: Harvest, split: Mapping[str, float]) -> Question:
    """Return whether page views came in the shares intended (sample ratio), as unequal as views of a query are."""
    shares = _shares(split, harvest)
    views = harvest.views.sum(axis=0)
    named = shares > 0
    expected = views[named].sum() * shares[named]
    scale = max(1.0, dispersion(harvest.views))
    size = int(named.sum()) - 1
    rest = float(max(len(harvest.views) - 1, 1))
    statistic = float(((views[named] - expected) ** 2 / expected).sum() / (size * scale))
    trial = Trial(statistic, size, rest, f_tail(size, rest, statistic))
    found = {name: int(n) for name, n, own in zip(harvest.rankers, views, named, strict=True) if own}
    told_found = ", ".join(f"{name!r} {n / max(views[named].sum(), 1):.2%}" for name, n in found.items())
    told_meant = ", ".join(f"{name!r} {s:.2%}" for name, s in zip(harvest.rankers, shares, strict=True) if s > 0)
    evidence = {"page_views": found, "intended": {n: float(s) for n, s in zip(harvest.rankers, shares, strict=True)}}
    return Question(
        trial,
        Finding(
            "sample-ratio",
            "warning",
            f"Page views are not split as intended ({told(trial.p)}): found {told_found}, intended {told_meant}",
            evidence=evidence,
            remedy="Some page views were lost, or assigned otherwise, by ranker. Find out which before trusting any "
            "comparison of rankers.",
        ),
        Finding(
            "sample-ratio-kept",
            "info",
            f"Page views are split as intended ({told(trial.p)}): {told_found}",
            evidence=evidence,
        ),
    )


def find_sticky(harvest: Harvest) -> list[Finding]:
    """Return whether views of one query were given to rankers together."""
    found = dispersion(harvest.views)
    if not found > _STICKY:
        return []
    return [
        Finding(
            "sticky-traffic",
            "info",
            f"Views of one query were given to rankers together, not each by itself: their numbers vary {found:.1f} "
            "times as much as by chance",
            evidence={"dispersion": float(f"{found:.4g}")},
            remedy="Intervals allow for it; it costs precision alone, if the ranker does not depend on what the query "
            "is.",
        )
    ]


def dispersion(views: FloatArray) -> float:
    """Return Pearson's χ² of page views by bucket and ranker over its degrees of freedom; NaN if there are none."""
    views = views[:, views.sum(axis=0) > 0]
    views = views[views.sum(axis=1) > 0]
    degrees = (views.shape[0] - 1) * (views.shape[1] - 1)
    if degrees < 1:
        return float("nan")
    expected = views.sum(axis=1, keepdims=True) * views.sum(axis=0) / views.sum()
    return float(((views - expected) ** 2 / expected).sum() / degrees)


def _shares(split: Mapping[str, float], harvest: Harvest) -> FloatArray:
    served = [name for name, n in harvest.page_views.items() if n]
    unknown = [name for name in split if name not in harvest.rankers]
    missing = [name for name in served if name not in split]
    if unknown or missing:
        raise HarvestError(
            f"split must give every ranker that served its share: it names {listed(split)}, and the rankers are "
            f"{listed(served)}. For example split={{'a': 50, 'b': 50}}."
        )
    try:
        weights = np.array([float(split.get(name, 0.0)) for name in harvest.rankers])
    except (TypeError, ValueError):
        weights = np.zeros(1)
    if not np.isfinite(weights).all() or (weights < 0).any() or np.count_nonzero(weights) < 2:
        raise HarvestError(
            f"split must give shares of 0 or more, two of them above 0, found {dict(split)!r}: for example "
            "split={'a': 50, 'b': 50}."
        )
    if any(weights[harvest.rankers.index(name)] == 0 for name in served):
        raise HarvestError(f"split gives no share to a ranker that served, found {dict(split)!r}. Give each its share.")
    return np.asarray(weights / weights.sum())
