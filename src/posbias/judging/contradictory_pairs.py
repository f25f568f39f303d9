"""What is said of contests: that one curve explains them, that it does not, or that they could not tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from posbias.findings import Finding
from posbias.judging.one_curve import OneCurve
from posbias.judging.questions import Question, told
from posbias.judging.trials import Trial

# A test sees, in four logs of five, what is so many standard errors from nothing; strong trust bias is about .35.
_SEEN, BLIND = 2.8, 0.3
_MOST_PAIRS = 3

_RESEMBLES = {
    "trust": "trust bias: the curve is not the same for relevant and for irrelevant documents",
    "cascade": "cascade users, who stop at a click: what stands above decides whether a rank is read",
    "neighbours": "results that draw the eye from, or to, their neighbours",
    "traffic": "a ranker's own effect at all ranks: traffic that leans on the query, or one click a page",
}
_REMEDIES = {
    "trust": "Compare the curves of a proxy of relevance (proxy); the weights of one curve are biased.",
    "cascade": "Give the log itself, with page views, to see how many have several clicks; no one curve fits cascades.",
    "neighbours": "Compare the curves of rankers that show different neighbours; one curve is an average over them.",
    "traffic": "Check that each page view draws its ranker by itself, whatever its query and user, and that all "
    "rankers show the same page but for the order.",
}


def question_pairs(one: OneCurve, rankers: Sequence[str]) -> list[Question]:
    """Return the questions whether one curve holds for all pairs of ranks, and whether a ranker has its own effect."""
    both = _both(one.trial, one.misfit)
    evidence = _evidence(one, rankers)
    resembles = next(iter(one.resembles))
    alarm = Finding(
        "contradictory-pairs",
        "warning",
        f"Pairs of ranks contradict each other: no one curve explains the clicks of all rankers ({told(both.p)}). It "
        f"resembles {likeness(one)}",
        len(evidence["pairs"]),
        example="; ".join(evidence["pairs"]),
        evidence=evidence,
        remedy=_REMEDIES[resembles],
    )
    return [Question(both, alarm, _calm(one, both, evidence)), *_level(one)]


def likeness(one: OneCurve) -> str:
    """Return what contradictions resemble most."""
    return _RESEMBLES[next(iter(one.resembles))]


def sees_trust(one: OneCurve) -> bool:
    """Whether trust bias that matters would show."""
    return _SEEN * one.trusting[1] <= BLIND


def _both(trial: Trial, misfit: Trial) -> Trial:
    """Return the directions with Q beside them: the lesser p of the two counts, twice."""
    if not trial.told:
        return trial
    ps = [p for p in (trial.p, misfit.p) if not math.isnan(p)]
    return Trial(trial.statistic, trial.directions, trial.degrees, min(1.0, len(ps) * min(ps)))


def _calm(one: OneCurve, both: Trial, evidence: dict[str, Any]) -> Finding:
    _, error = one.trusting
    seen = _SEEN * error
    unequal = evidence["unequal"]
    how = (
        f"at rank 1 the best ranker is clicked {unequal:.2f} times as often as the worst"
        if unequal
        else "how unequal rankers are is not known"
    )
    if not both.told or not sees_trust(one):
        return Finding(
            "one-curve-untested",
            "info",
            "That pairs of ranks do not contradict each other is no evidence here: the rankers are too alike, or the "
            f"data too few, for trust bias or cascades to show ({how})",
            evidence=evidence,
            remedy="Compare the curves of a proxy of relevance (proxy): that tells with alike rankers, too.",
        )
    return Finding(
        "one-curve",
        "info",
        f"One curve explains all pairs of ranks ({told(both.p)}): {how}, so that trust bias would show if the curve "
        f"differed by {seen:.0%} for e times as relevant documents",
        evidence=evidence,
    )


def _level(one: OneCurve) -> list[Question]:
    trial = one.level
    if not trial.directions:
        return []
    alarm = Finding(
        "ranker-effect",
        "warning",
        "Rankers get different clicks on documents that they put at the same rank, which no curve of ranks explains "
        f"({told(trial.p)})",
        evidence={"resembles": {name: round(value, 1) for name, value in one.resembles.items()}},
        remedy="Check that traffic is split independently of query and user, that clicks are logged alike for all "
        "rankers, and whether what stands around a result matters.",
    )
    return [Question(trial, alarm)]


def _evidence(one: OneCurve, rankers: Sequence[str]) -> dict[str, Any]:
    steeper, error = one.trusting
    return {
        "p_directions": _plain(one.trial.p),
        "p_misfit": _plain(one.misfit.p),
        "p_same_rank": _plain(one.level.p),
        "unequal": _plain(one.unequal),
        "trust": _plain(steeper),
        "trust_error": _plain(error),
        "trust_seen": _plain(_SEEN * error),
        "resembles": {name: round(value, 1) for name, value in one.resembles.items()},
        "pairs": _worst(one, rankers),
    }


def _plain(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _worst(one: OneCurve, rankers: Sequence[str]) -> list[str]:
    """Return the contests that add most to Q, in words."""
    s, c = one.surprises, one.surprises.contests
    first = c.sets[0]
    excess, variance, clicks, wins = (c.by_set(v) for v in (s.excess, s.variance, c.total, c.wins))
    pull = np.divide(excess**2, variance, out=np.zeros_like(excess), where=variance > 1e-9)
    found = []
    for place in np.argsort(-pull, kind="stable")[:_MOST_PAIRS]:
        row = first[place]
        if pull[place] <= 0:
            break
        one_side, other_side = (
            f"{rankers[ranker]!r} at {rank + 1}"
            for ranker, rank in ((c.first[row], c.rank[row]), (c.second[row], c.other[row]))
        )
        found.append(
            f"{one_side} against {other_side}: {wins[place]:,.0f} of {clicks[place]:,.0f} clicks, "
            f"{wins[place] - excess[place]:,.0f} expected"
        )
    return found
