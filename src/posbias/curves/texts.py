"""A curve as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posbias.tables import Column, folded, table
from posbias.wording import label, printable

if TYPE_CHECKING:
    from posbias.curves.curve import Curve


def curve_text(curve: Curve, truth: Sequence[float] | None = None, *, joint: bool = False) -> str:
    """Return a curve and those of its segments as tables, with what is to be known of each below it."""
    weighting = "" if curve.weighting is None else f", {curve.weighting} weighting"
    title = printable(f"{curve.estimator}{weighting}, {curve.interval_name}")
    blocks = [[*folded(title), _table(curve, truth, joint)]]
    blocks += [[*folded(label(key)), _table(part, None, joint)] for key, part in curve.segments.items()]
    return "\n\n".join("\n".join(block) for block in blocks)


def _table(curve: Curve, truth: Sequence[float] | None, joint: bool) -> str:
    positions = curve.positions
    known = [p.propensity for p in positions]
    top = max((p for p in known if p is not None), default=0.0) or 1.0
    columns = [
        Column("rank", [f"{p.position}" for p in positions]),
        Column("propensity", ["–" if p is None else f"{p:.3f}" for p in known]),
        Column("interval", [_ends(p.low, p.high, p.position) for p in positions], left=True),
    ]
    if joint:
        band = curve.joint_ends()
        ends = [_ends(*ends, p.position) for p, ends in zip(positions, band, strict=True)]
        columns.append(Column("joint band", ends, left=True))
    if truth is not None:
        columns.append(Column("truth", [_known(truth, p.position) for p in positions]))
    columns.append(Column("impressions", [f"{p.impressions:,}" for p in positions]))
    columns.append(Column("clicks", [f"{p.clicks:,}" for p in positions]))
    bars = [None if p is None else p / top for p in known]
    drawn = table(columns, bars=bars, remarks=[printable(p.reason or "") for p in positions])
    return "\n".join([drawn, *(line for note in curve.notes for line in folded(printable(note), "! "))])


def _known(truth: Sequence[float], position: int) -> str:
    return f"{truth[position - 1]:.3f}" if position <= len(truth) else ""


def _ends(low: float | None, high: float | None, position: int) -> str:
    """Return an interval as a table shows it; that of rank 1 is 1 by definition."""
    if low is None or position == 1:
        return ""
    return f"{low:.3f} – {'∞' if high is None else f'{high:.3f}'}"
