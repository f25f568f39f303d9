"""Briefs: the lines under a curve that matter most, cheap enough for every estimate."""

from __future__ import annotations

import numpy as np

from posbias.arrays import FloatArray
from posbias.harvesting.harvests import Harvest
from posbias.judging.contests import Contests
from posbias.judging.contradictory_pairs import likeness, sees_trust
from posbias.judging.one_curve import OneCurve
from posbias.judging.questions import told
from posbias.judging.support import links_of
from posbias.logs.schemas import ANY_RANKER

# Under every curve that is ever made, less is said than where one asks.
_ALARM = 0.01
# So many rankers have contests enough, and few enough to be quick about them.
_MOST_RANKERS = 3
_NAMELESS = "it takes rankers that are named"


def brief(harvest: Harvest, degrees: FloatArray) -> list[str]:
    """Return what a curve hangs on and whether pairs of ranks contradict each other; nothing of sums over pairs.

    Arguments:
        harvest: of which the curve was made.
        degrees: of freedom of its standard errors by rank; NaN where there is none.
    """
    if harvest.kind == "pairs":
        return []
    one = OneCurve.of(Contests.of(harvest, _MOST_RANKERS))
    named = harvest.rankers != (ANY_RANKER,)
    return [*_support(one, degrees), *_pairs(one, "rankers are too alike, or data too few" if named else _NAMELESS)]


def _support(one: OneCurve, degrees: FloatArray) -> list[str]:
    known = np.where(np.arange(len(degrees)) > 0, degrees, np.nan)
    if not np.isfinite(known).any():
        return []
    least = int(np.nanargmin(known))
    ranks = ", ".join(f"{rank} ({share:.0%})" for rank, share in links_of(one.surprises)[least].items())
    hangs = f", and hangs on rank{'s' * (', ' in ranks)} {ranks}" if ranks else ""
    return [f"Fewest queries decide rank {least + 1}: it has {known[least]:,.0f} degrees of freedom{hangs}."]


def _pairs(one: OneCurve, untold: str) -> list[str]:
    trial = one.trial
    if trial.told and trial.p < _ALARM:
        return [f"! Pairs of ranks contradict each other ({told(trial.p)}). It resembles {likeness(one)}."]
    if trial.told and sees_trust(one):
        return [f"One curve explains all pairs of ranks ({told(trial.p)})."]
    return [f"Whether one curve holds for all pairs of ranks cannot be told: {untold}."]
