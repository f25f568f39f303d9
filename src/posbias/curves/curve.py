"""A fitted curve as a value: for people as a table, for programs as JSON or CSV."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from posbias.errors import CurveError
from posbias.version import __version__
from posbias.wording import label, printable

if TYPE_CHECKING:
    from posbias.arrays import FloatArray

# Of what `to_dict` makes; one that older versions could not read has the next number.
FORMAT = 1
_BAR = 24

# The values of a segment's columns, None for a missing one.
Segment = tuple[str | None, ...]
Covariance = tuple[tuple[float | None, ...], ...]


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
    """A propensity curve relative to rank 1, with its interval and what it was estimated from.

    Made by `curve` of a fitted estimator, kept by `save` and `Curve.load`, which also reads what `posbias estimate
    --json` printed. What was loaded equals what was saved.

    Attributes:
        estimator: the name of the estimator.
        max_rank: M, the number of top ranks it was to estimate.
        level: the coverage of the intervals.
        weighting: the weighting of pairs, where the estimator has one.
        positions: the ranks at which anything was shown. With a lower end and no upper one an interval has no bound.
        page_views: the page views of each ranker.
        covariance: of the propensities, a row for each of the positions; None where it is not known.
        by: the segment columns.
        segments: the curve of each segment, by its values of these columns.

    Example:
        >>> import tempfile, posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=500, max_rank=3)))
        >>> curve = posbias.AllPairs().fit(posbias.harvest(log, max_rank=3)).curve()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     curve.save(f"{folder}/monday.json")
        ...     kept = Curve.load(f"{folder}/monday.json")
        >>> kept == curve
        True
        >>> kept.propensity.shape, kept.interval.shape, kept.covariance_matrix.shape
        ((3,), (3, 2), (3, 3))
    """

    estimator: str
    max_rank: int
    level: float | None
    weighting: str | None
    positions: tuple[Position, ...]
    page_views: Mapping[str, int] = field(hash=False)
    covariance: Covariance | None = None
    by: tuple[str, ...] = ()
    segments: Mapping[Segment, Curve] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for key, part in self.segments.items():
            named = dict(zip(self.by, key, strict=False))
            if not self.by or tuple(named.get(name) for name in self.by) != key:
                raise CurveError(f"The segment {key!r} has not one value for each of the columns {self.by!r}.")
            if part._setting != self._setting or part.by:
                raise CurveError(
                    f"The curve of the segment {key!r} differs from the whole in what it is an estimate of: "
                    f"{part._setting} in place of {self._setting}, by {part.by!r}. Fit both with the same settings."
                )

    @property
    def _setting(self) -> tuple[str, int, float | None, str | None]:
        """What the curves of all segments have in common."""
        return self.estimator, self.max_rank, self.level, self.weighting

    @property
    def propensity(self) -> FloatArray:
        """p_k / p_1 by rank, as (M,); NaN where it is not known."""
        import numpy as np

        values = np.full(self.max_rank, np.nan)
        values[self._places()] = [np.nan if p.propensity is None else p.propensity for p in self.positions]
        return values

    @property
    def interval(self) -> FloatArray:
        """The ends of the interval by rank, as (M, 2); NaN where there is none, infinite where it has no bound."""
        import numpy as np

        ends = np.full((self.max_rank, 2), np.nan)
        for place, p in zip(self._places(), self.positions, strict=True):
            if p.low is not None:
                ends[place] = p.low, np.inf if p.high is None else p.high
        return ends

    @property
    def covariance_matrix(self) -> FloatArray:
        """The covariance by ranks, as (M, M); NaN where it is not known."""
        import numpy as np

        values = np.full((self.max_rank, self.max_rank), np.nan)
        if self.covariance is not None:
            places = self._places()
            values[np.ix_(places, places)] = np.array(self.covariance, dtype=np.float64).reshape(len(places), -1)
        return values

    def _places(self) -> list[int]:
        return [p.position - 1 for p in self.positions]

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as `--json` prints it."""
        answer: dict[str, Any] = {
            "format": FORMAT,
            "estimator": self.estimator,
            "max_rank": self.max_rank,
            "level": self.level,
            "weighting": self.weighting,
            **self._estimate(),
            "rankers": list(self.page_views),
            "version": __version__,
        }
        if self.by:
            answer["by"] = list(self.by)
            answer["segments"] = [
                {"segment": dict(zip(self.by, key, strict=True)), **part._estimate()}
                for key, part in self.segments.items()
            ]
        return answer

    def _estimate(self) -> dict[str, Any]:
        return {
            "positions": [asdict(position) for position in self.positions],
            "page_views": dict(self.page_views),
            "covariance": None if self.covariance is None else [list(row) for row in self.covariance],
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Curve:
        """Return the curve of which `to_dict` made the record, checking that it is one and that it is whole."""
        from posbias.curves.files import from_record

        return from_record(record)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the curve to a file as `--json` prints it, whole or not at all."""
        from posbias.curves.files import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Curve:
        """Read a curve that `save` or `posbias estimate --json` wrote, checking that it is one and that it is whole."""
        from posbias.curves.files import load

        return load(path)

    def to_csv(self) -> str:
        """Return the curve as `--csv` prints it: a row for each rank, of each segment where there are any.

        Then a column `scope` says "all" or "segment", and each of the segment columns has one. A missing value is an
        empty field and an empty text `""`.
        """
        names = [f.name for f in fields(Position)]
        # A segment column with the name of one of ours would hide it.
        own = [f"segment_{name}" if name in ("scope", *names) else name for name in self.by]
        lines: list[list[Any]] = [["scope", *own, *names] if self.by else names]
        nothing = [None for _ in self.by]
        lines += [[*(["all", *nothing] if self.by else []), *asdict(p).values()] for p in self.positions]
        for key, part in self.segments.items():
            lines += [["segment", *key, *asdict(p).values()] for p in part.positions]
        return "".join(",".join(map(_csv_field, line)) + "\n" for line in lines)

    def to_text(self, truth: Sequence[float] | None = None) -> str:
        """Return the curve as a table, with the truth beside it where it is known."""
        weighting = "" if self.weighting is None else f", {self.weighting} weighting"
        interval = "no interval" if self.level is None else f"{100 * self.level:g}% interval"
        title = printable(f"{self.estimator}{weighting}, {interval}")
        blocks = [f"{title}\n{self._table(truth)}"]
        blocks += [f"{label(key)}\n{part._table(None)}" for key, part in self.segments.items()]
        return "\n\n".join(blocks)

    def _table(self, truth: Sequence[float] | None) -> str:
        top = max((p.propensity for p in self.positions if p.propensity is not None), default=0.0) or 1.0
        lines = []
        for p in self.positions:
            known = "" if truth is None else _known(truth, p.position)
            interval = "" if p.low is None or p.position == 1 else f"{p.low:.3f} – {_high(p.high)}"
            value = "–" if p.propensity is None else f"{p.propensity:.3f}"
            bar = "" if p.propensity is None else _bar(p.propensity / top)
            counts = f"{p.impressions:>12,} {p.clicks:>10,}"
            tail = "  ".join(part for part in (bar, printable(p.reason or "")) if part)
            lines.append(f"{p.position:>4} {value:>10}  {interval:<15}{known} {counts}  {tail}".rstrip())
        head = f"rank propensity  {'interval':<15}{'' if truth is None else '     truth'}  impressions     clicks"
        return "\n".join([head, *lines])

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


def _csv_field(value: str | float | None) -> str:
    """Return a field of CSV; unlike the standard library's, an empty text differs from none."""
    text = "" if value is None else str(value)
    plain = not isinstance(value, str) or (text == text.strip() != "" and not set(text) & set(',"\r\n'))
    return text if plain else '"' + text.replace('"', '""') + '"'


def _known(truth: Sequence[float], position: int) -> str:
    return f"{truth[position - 1]:>10.3f}" if position <= len(truth) else f"{'':>10}"


def _high(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3f}"


def _bar(share: float) -> str:
    """Return a bar of eighths of a character."""
    eighths = round(max(0.0, min(share, 1.0)) * _BAR * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
