"""A curve as a table for people: a line for each rank, and below it what is to be said of several."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from posbias.wording import label, printable

if TYPE_CHECKING:
    from posbias.curves.curve import Curve

Band = Sequence[tuple[float | None, float | None]]
_BAR = 24


def curve_text(curve: Curve, truth: Sequence[float] | None = None, *, joint: bool = False) -> str:
    """Return a curve and its segments as tables, with the joint band if asked for and the truth where it is known."""
    weighting = "" if curve.weighting is None else f", {curve.weighting} weighting"
    title = printable(f"{curve.estimator}{weighting}, {curve.interval_name}")
    blocks = [f"{title}\n{_table(curve, truth, joint)}"]
    blocks += [f"{label(key)}\n{_table(part, None, joint)}" for key, part in curve.segments.items()]
    return "\n\n".join(blocks)


def _table(curve: Curve, truth: Sequence[float] | None, joint: bool) -> str:
    top = max((p.propensity for p in curve.positions if p.propensity is not None), default=0.0) or 1.0
    lines = []
    band: Band = curve.band() if joint else [(None, None)] * len(curve.positions)
    shared = _shared_reasons(curve)
    for p, ends in zip(curve.positions, band, strict=True):
        known = "" if truth is None else _known(truth, p.position)
        interval = f"{_ends(p.low, p.high, p.position):<15}"
        interval += f"  {_ends(*ends, p.position):<15}" if joint else ""
        value = "–" if p.propensity is None else f"{p.propensity:.3f}"
        bar = "" if p.propensity is None else _bar(p.propensity / top)
        counts = f"{p.impressions:>12,} {p.clicks:>10,}"
        reason = "" if p.reason is None or p.reason in shared else printable(p.reason)
        tail = "  ".join(part for part in (bar, reason) if part)
        lines.append(f"{p.position:>4} {value:>10}  {interval}{known} {counts}  {tail}".rstrip())
    interval = f"{'interval':<15}" + (f"  {'joint band':<15}" if joint else "")
    head = f"rank propensity  {interval}{'' if truth is None else '     truth'}  impressions     clicks"
    below = [f"Ranks {spans(ranks)}: {reason}." for reason, ranks in shared.items()]
    return "\n".join([head, *lines, *(f"! {printable(note)}" for note in (*below, *curve.notes))])


def _shared_reasons(curve: Curve) -> dict[str, list[int]]:
    """Return the ranks of each reason that several have: it is said once."""
    found: dict[str, list[int]] = {}
    for p in curve.positions:
        if p.reason is not None:
            found.setdefault(p.reason, []).append(p.position)
    return {reason: ranks for reason, ranks in found.items() if len(ranks) > 1}


def spans(ranks: Sequence[int]) -> str:
    """Return increasing ranks in words.

    >>> spans([2, 3, 4, 7, 9]), spans([2, 3])
    ('2 to 4, 7 and 9', '2 and 3')
    """
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), key=lambda one: one[1] - one[0])]
    words = [word for run in runs for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _known(truth: Sequence[float], position: int) -> str:
    return f"{truth[position - 1]:>10.3f}" if position <= len(truth) else f"{'':>10}"


def _ends(low: float | None, high: float | None, position: int) -> str:
    """Return an interval as a table shows it; that of rank 1 is 1 by definition."""
    if low is None or position == 1:
        return ""
    return f"{low:.3f} – {'∞' if high is None else f'{high:.3f}'}"


def _bar(share: float) -> str:
    """Return a bar of eighths of a character."""
    eighths = round(max(0.0, min(share, 1.0)) * _BAR * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
