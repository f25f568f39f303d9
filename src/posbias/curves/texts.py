"""A curve as a table for people, in a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posbias.curves.reasons import own_reasons, shared_reasons
from posbias.curves.truths import known_truth
from posbias.tables import Column, folded, html_table, table
from posbias.wording import label, printable

if TYPE_CHECKING:
    from posbias.curves.curve import Curve


def curve_text(curve: Curve, truth: Sequence[float] | None = None, *, joint: bool = False) -> str:
    """Return a curve and those of its segments as tables, with what is to be known of each below it."""
    known = None if truth is None else known_truth(truth, [curve])
    blocks = [[*folded(_title(curve)), _table(curve, known, joint)]]
    blocks += [[*folded(label(key)), _table(part, None, joint)] for key, part in curve.segments.items()]
    return "\n\n".join("\n".join(block) for block in blocks)


def curve_html(curve: Curve) -> str:
    """Return a curve and those of its segments as tables of HTML."""
    parts = [(_title(curve), curve), *((label(key), part) for key, part in curve.segments.items())]
    return "\n".join(
        html_table(_columns(part), caption=title, remarks=_remarks(part), notes=_notes(part)) for title, part in parts
    )


def _title(curve: Curve) -> str:
    weighting = "" if curve.weighting is None else f", {curve.weighting} weighting"
    return printable(f"{curve.estimator}{weighting}, {curve.interval_name}")


def _remarks(curve: Curve) -> list[str]:
    return [printable(reason) for reason in own_reasons(curve)]


def _notes(curve: Curve) -> list[str]:
    return [*shared_reasons(curve), *curve.notes]


def _columns(curve: Curve, truth: Sequence[float] | None = None, joint: bool = False) -> list[Column]:
    positions = curve.positions
    columns = [
        Column("rank", [f"{p.position}" for p in positions]),
        Column("propensity", ["–" if p.propensity is None else f"{p.propensity:.3f}" for p in positions]),
        Column("interval", [_ends(p.low, p.high, p.position) for p in positions], left=True),
    ]
    if joint:
        ends = [_ends(*ends, p.position) for p, ends in zip(positions, curve.joint_ends(), strict=True)]
        columns.append(Column("joint band", ends, left=True))
    if truth is not None:
        columns.append(Column("truth", [_known(truth, p.position) for p in positions]))
    columns.append(Column("impressions", [f"{p.impressions:,}" for p in positions]))
    columns.append(Column("clicks", [f"{p.clicks:,}" for p in positions]))
    return columns


def _table(curve: Curve, truth: Sequence[float] | None, joint: bool) -> str:
    known = [p.propensity for p in curve.positions]
    top = max((p for p in known if p is not None), default=0.0) or 1.0
    bars = [None if p is None else p / top for p in known]
    drawn = table(_columns(curve, truth, joint), bars=bars, remarks=_remarks(curve))
    return "\n".join([drawn, *(line for note in _notes(curve) for line in folded(printable(note), "! "))])


def _known(truth: Sequence[float], position: int) -> str:
    return f"{truth[position - 1]:.3f}" if position <= len(truth) else ""


def _ends(low: float | None, high: float | None, position: int) -> str:
    """Return an interval as a table shows it; that of rank 1 is 1 by definition."""
    if low is None or position == 1:
        return ""
    return f"{low:.3f} – {'∞' if high is None else f'{high:.3f}'}"
