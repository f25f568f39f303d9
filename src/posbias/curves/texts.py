"""A curve as a table for people: a line for each rank, and below it what is to be said of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posbias.curves.reasons import own_reasons, shared_reasons
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
    band: Band = curve.joint_ends() if joint else [(None, None)] * len(curve.positions)
    for p, ends, reason in zip(curve.positions, band, own_reasons(curve), strict=True):
        known = "" if truth is None else _known(truth, p.position)
        interval = f"{_ends(p.low, p.high, p.position):<15}"
        interval += f"  {_ends(*ends, p.position):<15}" if joint else ""
        value = "–" if p.propensity is None else f"{p.propensity:.3f}"
        bar = "" if p.propensity is None else _bar(p.propensity / top)
        counts = f"{p.impressions:>12,} {p.clicks:>10,}"
        tail = "  ".join(part for part in (bar, printable(reason)) if part)
        lines.append(f"{p.position:>4} {value:>10}  {interval}{known} {counts}  {tail}".rstrip())
    interval = f"{'interval':<15}" + (f"  {'joint band':<15}" if joint else "")
    head = f"rank propensity  {interval}{'' if truth is None else '     truth'}  impressions     clicks"
    return "\n".join([head, *lines, *(f"! {printable(note)}" for note in (*shared_reasons(curve), *curve.notes))])


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
