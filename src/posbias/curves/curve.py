"""A fitted curve as a value: for people as a table, for programs as JSON or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from posbias.version import __version__

_BAR = 24


@dataclass(frozen=True)
class Position:
    """One rank of a curve; what is not known is None, and `reason` says why."""

    position: int
    propensity: float | None
    low: float | None
    high: float | None
    impressions: int
    clicks: int
    reason: str | None


@dataclass(frozen=True)
class Curve:
    """A propensity curve relative to rank 1, with its interval and what it was estimated from."""

    estimator: str
    max_rank: int
    level: float | None
    weighting: str | None
    positions: tuple[Position, ...]
    page_views: Mapping[str, int]
    segments: Mapping[str, Curve] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as `--json` prints it."""
        answer: dict[str, Any] = {
            "estimator": self.estimator,
            "max_rank": self.max_rank,
            "level": self.level,
            "weighting": self.weighting,
            "positions": [asdict(position) for position in self.positions],
            "rankers": list(self.page_views),
            "page_views": dict(self.page_views),
            "version": __version__,
        }
        if self.segments:
            answer["segments"] = {
                label: {
                    "positions": [asdict(position) for position in curve.positions],
                    "page_views": dict(curve.page_views),
                }
                for label, curve in self.segments.items()
            }
        return answer

    def to_csv(self) -> str:
        """Return the curve as `--csv` prints it: a row for each rank, of each segment where there are any."""
        out = io.StringIO()
        names = [f.name for f in fields(Position)]
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow((["segment"] if self.segments else []) + names)
        for label, curve in [("", self), *self.segments.items()]:
            for position in curve.positions:
                row = [getattr(position, name) for name in names]
                writer.writerow(([label] if self.segments else []) + row)
        return out.getvalue()

    def to_text(self, truth: Sequence[float] | None = None) -> str:
        """Return the curve as a table, with the truth beside it where it is known."""
        weighting = "" if self.weighting is None else f", {self.weighting} weighting"
        interval = "no interval" if self.level is None else f"{100 * self.level:g}% interval"
        title = f"{self.estimator}{weighting}, {interval}"
        blocks = [f"{title}\n{self._table(truth)}"]
        blocks += [f"{label}\n{curve._table(None)}" for label, curve in self.segments.items()]
        return "\n\n".join(blocks)

    def _table(self, truth: Sequence[float] | None) -> str:
        top = max((p.propensity for p in self.positions if p.propensity is not None), default=1.0)
        lines = []
        for p in self.positions:
            known = "" if truth is None else _known(truth, p.position)
            interval = "" if p.low is None or p.position == 1 else f"{p.low:.3f} – {_high(p.high)}"
            value = "–" if p.propensity is None else f"{p.propensity:.3f}"
            bar = "" if p.propensity is None else _bar(p.propensity / top)
            counts = f"{p.impressions:>12,} {p.clicks:>10,}"
            tail = "  ".join(part for part in (bar, p.reason) if part)
            lines.append(f"{p.position:>4} {value:>10}  {interval:<15}{known} {counts}  {tail}".rstrip())
        head = f"rank propensity  {'interval':<15}{'' if truth is None else '     truth'}  impressions     clicks"
        return "\n".join([head, *lines])

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


def _known(truth: Sequence[float], position: int) -> str:
    return f"{truth[position - 1]:>10.3f}" if position <= len(truth) else f"{'':>10}"


def _high(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3f}"


def _bar(share: float) -> str:
    """Return a bar of eighths of a character."""
    eighths = round(max(0.0, min(share, 1.0)) * _BAR * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
