"""Proxies of relevance: whether documents that are thought more relevant have another curve than the others.

It tells what contests of alike rankers cannot: clicks that are not rank times relevance, such as trust bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posbias.arrays import FloatArray, places
from posbias.errors import HarvestError
from posbias.estimators import CrossFit
from posbias.estimators.intervals import FEWEST_BUCKETS, deletions
from posbias.findings import Finding
from posbias.harvesting.harvests import Harvest
from posbias.judging.questions import Question, told
from posbias.judging.trials import UNTOLD, Trial, satterthwaite
from posbias.logs.column_refusals import require
from posbias.logs.schemas import Schema
from posbias.quantiles import f_tail
from posbias.wording import label, listed

# More classes than this have too few clicks each, and are likely a score that was not cut into classes.
MOST_CLASSES = 10
_FEWEST_DEGREES = 5.0


@dataclass(frozen=True, eq=False)
class _Class:
    """The curve of one class of documents: log p, and what leaving out each bucket of the harvest moves it by."""

    name: str
    clicks: int
    curve: FloatArray
    moved: FloatArray


def question_proxy(harvest: Harvest, proxy: str) -> Question:
    """Return whether the classes of a proxy of relevance, by which the harvest was made, have different curves."""
    if harvest.by != (proxy,):
        raise HarvestError(
            f"A proxy of relevance must be the one segment column of the harvest, found {listed(harvest.by)}. Harvest "
            f"the log by {proxy!r} alone, or give diagnose the log.",
            {"by": [proxy]},
        )
    if not 2 <= len(harvest.segments) <= MOST_CLASSES:
        raise HarvestError(
            f"The proxy {proxy!r} has {len(harvest.segments):,} values, where 2 to {MOST_CLASSES} classes of relevance "
            "are wanted. Cut it into classes first, such as its quarters."
        )
    if harvest.kind == "pairs":
        return _untold(proxy, "the harvest holds sums over pairs of ranks, of which no curve by class is made")
    classes = [one for key in harvest.segments if (one := _class(harvest, key)) is not None]
    clicks = {label(key): int(harvest.segment(key).clicks.sum()) for key in harvest.segments}
    if len(classes) < 2:
        return _untold(proxy, _few(clicks, [one.name for one in classes]))
    first = max(classes, key=lambda one: one.clicks)
    found = [(_compare(first, one), one) for one in classes if one is not first]
    known = [(trial, one) for trial, one in found if trial.told]
    if not known:
        return _untold(proxy, _few(clicks, [first.name]))
    best, other = min(known, key=lambda pair: pair[0].p)
    p = min(1.0, len(known) * best.p)
    compared = [first.name, *(one.name for _, one in known)]
    left_out = [name for name in clicks if name not in compared]
    evidence: dict[str, Any] = {"proxy": proxy, "classes": compared, "compared": [first.name, other.name]}
    whole = f"all classes of {proxy!r}"
    but = ""
    if left_out:
        evidence["left_out"] = left_out
        whole = f"{len(compared)} of {len(clicks)} classes of {proxy!r}, {' and '.join(compared)},"
        but = f"; {_few(clicks, compared)}"
    return Question(
        Trial(best.statistic, best.directions, best.degrees, p),
        Finding(
            "curves-by-proxy",
            "warning",
            f"Documents of {proxy!r} {first.name} and {other.name} have different curves ({told(p)}): a click is not "
            f"the rank's propensity times relevance, as where users trust the top of the page{but}",
            evidence=evidence,
            remedy="Weights of one curve are biased. Use a curve for each class, or a model with trust bias.",
        ),
        Finding(
            "one-curve-by-proxy",
            "info",
            f"Documents of {whole} have one curve ({told(p)}){but}",
            evidence=evidence,
        ),
    )


def refuse_proxy(schema: Schema, proxy: str) -> None:
    """Refuse for a proxy what is not there, and what is something else already."""
    require(proxy, schema.types, argument="proxy")
    meanings = {name: role for role, name in schema.roles.items()}
    meanings |= {name: f"rank of {ranker!r}" for ranker, name in schema.rank_columns.items()}
    if proxy in meanings:
        raise HarvestError(
            f"Column {proxy!r} tells the {meanings[proxy]}, and is no proxy of relevance: that is a column with "
            "classes of documents by how relevant they are thought to be, which these clicks did not make."
        )


def _few(clicks: Mapping[str, int], known: Sequence[str]) -> str:
    """Say of all classes but those that are known why they are not."""
    without = [f"{name} ({n:,} clicks)" for name, n in clicks.items() if name not in known]
    return f"documents of {' and '.join(without)} have too few clicks, or stand at too few ranks, for a curve"


def _untold(proxy: str, why: str) -> Question:
    """Return that classes could not be compared, which is no evidence that they have one curve."""
    alarm = Finding("curves-by-proxy", "warning", "Classes of documents have different curves")
    calm = Finding(
        "proxy-untested",
        "warning",
        f"The curves of the classes of {proxy!r} could not be compared: {why}",
        evidence={"proxy": proxy},
        remedy="That is no evidence of one curve. Take fewer and larger classes, or more days.",
    )
    return Question(UNTOLD, alarm, calm)


def _class(harvest: Harvest, key: tuple[str | None, ...]) -> _Class | None:
    own = harvest.segment(key)
    estimator = CrossFit(interval=None)
    counts = estimator.count(own)
    # A curve that leaves buckets out has no deletions of them.
    if not counts.clicked or counts.buckets != len(own.buckets):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        curve = np.log(estimator.curves(counts, np.ones(counts.buckets)))
        moved = np.log(estimator.curves(counts, deletions(counts.buckets))) - curve
    whole = np.zeros((len(harvest.buckets), harvest.max_rank))
    whole[places(own.buckets, harvest.buckets)] = np.where(np.isfinite(moved), moved, np.nan)
    return _Class(label(key), int(own.clicks.sum()), np.where(np.isfinite(curve), curve, np.nan), whole)


def _compare(one: _Class, other: _Class) -> Trial:
    """Try whether one curve is steeper than the other, and whether they differ at any rank: twice the lesser p."""
    apart, moved = other.curve - one.curve, other.moved - one.moved
    buckets = len(moved)
    known = np.isfinite(apart) & np.isfinite(moved).all(axis=0)
    known &= (np.where(known, moved, 0.0) ** 2).sum(axis=0) > 1e-18
    if buckets < FEWEST_BUCKETS or not known.any():
        return UNTOLD
    apart, moved = apart[known], moved[:, known]
    steep = (one.curve + other.curve)[known] / (moved**2).sum(axis=0)
    each = [_try(apart[k], moved[:, k]) for k in range(len(apart))]
    told_of = [trial for trial in each if trial.told]
    tried = [(_try(float(apart @ steep), moved @ steep), 1), *((trial, len(told_of)) for trial in told_of)]
    sure = [(min(1.0, 2 * times * trial.p), trial) for trial, times in tried if trial.told]
    if not sure:
        return UNTOLD
    p, trial = min(sure, key=lambda pair: pair[0])
    return Trial(trial.statistic, 1, trial.degrees, p)


def _try(apart: float, moved: FloatArray) -> Trial:
    degrees = float(satterthwaite(moved[:, None])[0])
    buckets = len(moved)
    variance = float((buckets - 1) / buckets * (moved**2).sum())
    if degrees < _FEWEST_DEGREES or variance <= 0:
        return UNTOLD
    squared = float(apart) ** 2 / variance
    return Trial(squared, 1, degrees, f_tail(1, degrees, squared))
