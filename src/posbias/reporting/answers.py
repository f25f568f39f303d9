"""The answer in plain sentences: what the curve says, how sure that is, and what it does not say."""

from __future__ import annotations

from collections.abc import Sequence

from posbias.curves.curve import Curve, Position
from posbias.curves.reasons import spans
from posbias.findings import Finding
from posbias.judging.diagnosis import Diagnosis
from posbias.judging.segments import DIFFER, SegmentComparison
from posbias.logs.schemas import ANY_RANKER

# So many rankers are named in a sentence.
_MOST_NAMED = 4


def answer(curve: Curve) -> str:
    """Return what a curve says, at its second rank, one in the middle and its last."""
    known = [p for p in curve.positions if p.propensity and p.position > 1]
    middle = (1 + known[-1].position) / 2
    chosen = {known[0], min(known, key=lambda p: abs(p.position - middle)), known[-1]}
    first, *others = sorted(chosen, key=lambda p: p.position)
    named = "".join(f"; at rank {p.position}, {_share(p)}" for p in others)
    level = "" if curve.level is None else f"{100 * curve.level:g}% interval "
    return (
        f"A result at rank {first.position} is seen {_share(first, level)} as often as one at rank 1{named}. "
        "This is how often people look at a rank, whatever is shown there."
    )


def _share(p: Position, level: str = "") -> str:
    ends = f" ({level}{_percent(p.low)} to {_percent(p.high)})" if p.low is not None and p.high is not None else ""
    return f"{_percent(p.propensity)}{ends}"


def _percent(value: float | None) -> str:
    """Return a share of rank 1 as people say it.

    >>> _percent(0.4912), _percent(0.0412), _percent(1.2)
    ('49%', '4.1%', '120%')
    """
    share = 100 * (value or 0.0)
    return f"{share:.0f}%" if share >= 9.95 else f"{share:.1f}%"


def missing(curve: Curve) -> list[str]:
    """Return which ranks have no number or a weak one, and why, each reason once."""
    found: dict[tuple[bool, str], list[int]] = {}
    for p in curve.positions:
        if p.reason is not None:
            found.setdefault((p.propensity is None, p.reason), []).append(p.position)
    return [
        f"Rank{'s'[: len(ranks) > 1]} {spans(ranks)} {_has(none, len(ranks))}: {reason}."
        for (none, reason), ranks in found.items()
    ]


def _has(none: bool, several: int) -> str:
    verb = "have" if several > 1 else "has"
    return f"{verb} no number" if none else f"{verb} a number to be read with care"


def incomplete(curve: Curve) -> bool:
    """Return whether any rank has no number or, but for the first, no interval."""
    return any(p.propensity is None or (p.position > 1 and p.low is None) for p in curve.positions)


def trust(curve: Curve, diagnosis: Diagnosis, findings: Sequence[Finding]) -> str:
    """Return whether to trust a curve, in a sentence."""
    warnings = sum(finding.severity == "warning" for finding in findings)
    if not diagnosis.sound or any(finding.severity == "error" for finding in findings):
        return "Do not use this curve yet: an assumption behind it does not hold."
    if warnings:
        return f"Read it with {'a warning' if warnings == 1 else f'{warnings} warnings'}."
    if incomplete(curve):
        return "Some ranks have no number, or no interval. Nothing was found that speaks against the others."
    return "Nothing was found that speaks against it."


def apart(segments: SegmentComparison, diagnosis: Diagnosis) -> str:
    """Return whether segments have curves of their own, in a sentence or two, as the diagnosis finds it."""
    differ = any(finding.code == DIFFER for finding in diagnosis.findings)
    if differ:
        more = " The curve of all is their average."
    else:
        more = " Chance does as much where so many questions are asked." if segments.differs else ""
    return f"{segments.told(differ)}{more}"


def basis(curve: Curve) -> str:
    """Return what a curve comes from, in a sentence."""
    busiest = sorted(curve.page_views.items(), key=lambda item: -item[1])[:_MOST_NAMED]
    clicks = sum(p.clicks for p in curve.positions)
    more = f" and {len(curve.page_views) - _MOST_NAMED} more" if len(curve.page_views) > _MOST_NAMED else ""
    names = ", ".join(f"{name} ({n:,})" for name, n in sorted(busiest))
    served = f", served by ranker{'s'[: len(curve.page_views) > 1]} {names}{more}"
    return (
        f"It comes from {sum(curve.page_views.values()):,} page views with {clicks:,} clicks"
        f"{'' if [*curve.page_views] == [ANY_RANKER] else served}."
    )
