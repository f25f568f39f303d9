"""Questions put to a harvest: a trial each, and what is to be said if it alarms and if it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from posbias.findings import Finding, Severity
from posbias.judging.trials import Trial

# An alarm that chance would raise once in twenty logs, all questions together; and one that it hardly ever would.
ALARM, GRAVE = 0.05, 0.001


@dataclass(frozen=True)
class Question:
    """A trial, and its findings.

    Attributes:
        trial: what was found, with its p.
        alarm: what is said if it is more than chance.
        calm: what is said if it is not, or if there is too little to tell.
        surely: how grave it is where it can hardly be chance; an error, unless a curve may be used all the same.
    """

    trial: Trial
    alarm: Finding
    calm: Finding | None = None
    surely: Severity = "error"


def answer(questions: Sequence[Question]) -> list[Finding]:
    """Return what is to be said, with p corrected for the number of questions (Holm)."""
    corrected = holm([question.trial.p for question in questions])
    found = []
    for question, p in zip(questions, corrected, strict=True):
        alarmed = p < ALARM
        finding = question.alarm if alarmed else question.calm
        if finding is None:
            continue
        severity = (question.surely if p < GRAVE else "warning") if alarmed else finding.severity
        trial = question.trial
        evidence = {
            "p": _number(trial.p),
            "p_corrected": _number(p),
            "statistic": _number(trial.statistic),
            "degrees": [trial.directions, _number(trial.degrees)],
        }
        found.append(replace(finding, severity=severity, evidence={**finding.evidence, **evidence}))
    return found


def holm(values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number; those that are not known do not count.

    >>> holm([0.01, 0.04, float("nan"), 0.03])
    [0.03, 0.06, nan, 0.06]
    """
    known = sorted((p, place) for place, p in enumerate(values) if not math.isnan(p))
    corrected, highest = list(values), 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        corrected[place] = highest
    return corrected


def _number(value: float) -> float | None:
    """Return a number as JSON can hold it, with no more digits than mean something."""
    return None if not math.isfinite(value) else float(f"{value:.4g}")


def told(p: float) -> str:
    """Return a p value for people.

    >>> told(0.0312), told(1e-12)
    ('p = 0.031', 'p < 0.001')
    """
    return "p < 0.001" if p < GRAVE else f"p = {p:.2g}"
