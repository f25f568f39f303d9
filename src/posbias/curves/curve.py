"""A fitted curve as a value: for people as a table, for programs as JSON or CSV."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from posbias.arguments import share
from posbias.errors import CurveError
from posbias.frames import Columns, pandas_frame, polars_frame
from posbias.records import checksum
from posbias.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from posbias.arrays import FloatArray

# Of what `to_dict` makes; one that older versions could not read has the next number. In the first, the covariance was
# of p and not of log p.
FORMAT = 2

# The values of a segment's columns, None for a missing one.
Segment = tuple[str | None, ...]
Covariance = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class Position:
    """One rank of a curve; what is not known is None, and `reason` says why, or what makes it weak."""

    position: int
    propensity: float | None
    low: float | None
    high: float | None
    impressions: int
    clicks: int
    reason: str | None
    # Of the interval: how many queries, of equal say, it is as good as. None where it takes no quantile of t.
    degrees_of_freedom: float | None = None


# What the values of its fields are, for those who make columns of them.
_KINDS: dict[str, type[int] | type[float] | type[str]] = {
    "position": int,
    "propensity": float,
    "low": float,
    "high": float,
    "impressions": int,
    "clicks": int,
    "reason": str,
    "degrees_of_freedom": float,
}


@dataclass(frozen=True)
class Curve:
    """A propensity curve relative to rank 1, with its interval and what it was estimated from.

    Made by `curve` of a fitted estimator, kept by `save` and `Curve.load`, which also reads what `posbias estimate
    --json` printed. What was loaded equals what was saved.

    Attributes:
        estimator: the name of the estimator.
        max_rank: M, the number of top ranks it was to estimate.
        level: the coverage of the intervals.
        interval_by: how they were made, "jackknife" or "bootstrap".
        weighting: the weighting of pairs, where the estimator has one.
        positions: the ranks at which anything was shown. With a lower end and no upper one an interval has no bound.
        page_views: the page views of each ranker.
        covariance: of log p, a row for each of the positions; None where it is not known.
        notes: what is to be known of the whole curve.
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
    interval_by: str | None
    weighting: str | None
    positions: tuple[Position, ...]
    page_views: Mapping[str, int] = field(hash=False)
    covariance: Covariance | None = None
    notes: tuple[str, ...] = ()
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
    def _setting(self) -> tuple[str, int, float | None, str | None, str | None]:
        """What the curves of all segments have in common."""
        return self.estimator, self.max_rank, self.level, self.interval_by, self.weighting

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
        """The covariance of log p by ranks, as (M, M); NaN where it is not known."""
        import numpy as np

        values = np.full((self.max_rank, self.max_rank), np.nan)
        if self.covariance is not None:
            places = self._places()
            values[np.ix_(places, places)] = np.array(self.covariance, dtype=np.float64).reshape(len(places), -1)
        return values

    def joint(self, level: float | None = None) -> FloatArray:
        """The ends of a band that holds the whole curve at once at this level, or at that of the intervals: (M, 2).

        Bonferroni: t quantiles at 1 − α / (2 (m − 1)) where m ranks, the first among them, have an interval.
        """
        import numpy as np

        from posbias.quantiles import t_quantile

        if self.interval_by != "jackknife":
            raise CurveError(
                f"A joint band is made of jackknife intervals, and this curve has {self.interval_by or 'none'}. "
                "Estimate it with interval='jackknife'.",
            )
        level = share("level", self.level if level is None else level, CurveError)
        degrees = np.full(self.max_rank, np.nan)
        degrees[self._places()] = [np.nan if p.low is None else p.degrees_of_freedom for p in self.positions]
        degrees[np.isnan(self.interval[:, 0])] = np.nan
        others = max(1, int(np.isfinite(degrees[1:]).sum()))
        half = t_quantile(degrees, 1 - (1 - level) / (2 * others)) * np.sqrt(np.diagonal(self.covariance_matrix))
        return np.asarray(self.propensity[:, None] * np.exp(np.stack([-half, half], axis=-1)))

    def _places(self) -> list[int]:
        return [p.position - 1 for p in self.positions]

    def to_dict(self, *, joint: bool = False) -> dict[str, Any]:
        """Return the curve as `--json` prints it, with the joint band if asked for."""
        answer: dict[str, Any] = {
            "format": FORMAT,
            "estimator": self.estimator,
            "max_rank": self.max_rank,
            "level": self.level,
            "interval_by": self.interval_by,
            "weighting": self.weighting,
            **self._estimate(joint),
            "rankers": list(self.page_views),
            "version": __version__,
        }
        if self.by:
            answer["by"] = list(self.by)
            answer["segments"] = [
                {"segment": dict(zip(self.by, key, strict=True)), **part._estimate(joint)}
                for key, part in self.segments.items()
            ]
        return answer | {"checksum": checksum(answer)}

    def _estimate(self, joint: bool) -> dict[str, Any]:
        return {
            "positions": self._records(joint),
            "page_views": dict(self.page_views),
            "covariance": None if self.covariance is None else [list(row) for row in self.covariance],
            "notes": list(self.notes),
        }

    def _records(self, joint: bool) -> list[dict[str, Any]]:
        """Return each position as a record, with its part of the joint band if asked for."""
        records = [asdict(position) for position in self.positions]
        if joint:
            for record, (low, high) in zip(records, self.joint_ends(), strict=True):
                record |= {"joint_low": low, "joint_high": high}
        return records

    def joint_ends(self) -> list[tuple[float | None, float | None]]:
        """Return the ends of the joint band at each of the positions, None where there is none."""
        ends = self.joint()[self._places()].tolist()
        return [(None, None) if low != low else (low, high) for low, high in ends]

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

    def to_csv(self, *, joint: bool = False) -> str:
        """Return the curve as `--csv` prints it: a row for each rank, of each segment where there are any.

        Then a column `scope` says "all" or "segment", and each of the segment columns has one. A missing value is an
        empty field and an empty text `""`.
        """
        columns = self.columns(joint=joint)
        lines = [[*columns], *zip(*(values for _, values in columns.values()), strict=True)]
        return "".join(",".join(map(_csv_field, line)) + "\n" for line in lines)

    def columns(self, *, joint: bool = False) -> Columns:
        """Return the columns that `to_csv` and frames have, each with what its values are."""
        kinds = _KINDS | ({"joint_low": float, "joint_high": float} if joint else {})
        parts = [(("all", *(None for _ in self.by)), self)]
        parts += [(("segment", *key), part) for key, part in self.segments.items()]
        rows = [(key, record) for key, part in parts for record in part._records(joint)]
        told: dict[str, tuple[type[Any], list[Any]]] = {}
        for place, name in enumerate(["scope", *self.by] if self.by else []):
            # A segment column with the name of one of ours would hide it.
            while place and (name in kinds or name in told):
                name = f"segment_{name}"
            told[name] = (str, [key[place] for key, _ in rows])
        return told | {name: (kind, [record[name] for _, record in rows]) for name, kind in kinds.items()}

    def to_pandas(self, *, joint: bool = False) -> pd.DataFrame:
        """Return the curve as a frame of pandas, with the columns of `to_csv`."""
        return pandas_frame(self.columns(joint=joint))

    def to_polars(self, *, joint: bool = False) -> pl.DataFrame:
        """Return the curve as a frame of Polars, with the columns of `to_csv`."""
        return polars_frame(self.columns(joint=joint))

    def to_text(self, truth: Sequence[float] | None = None, *, joint: bool = False) -> str:
        """Return the curve as a table, with the joint band if asked for and the truth where it is known."""
        from posbias.curves.texts import curve_text

        return curve_text(self, truth, joint=joint)

    @property
    def interval_name(self) -> str:
        """What the intervals are, in words, where any rank but the first has one."""
        ends = [p.low for curve in (self, *self.segments.values()) for p in curve.positions if p.position > 1]
        if self.level is None or self.interval_by is None or all(low is None for low in ends):
            return "no interval"
        return f"{100 * self.level:g}% interval" + (" by bootstrap" if self.interval_by == "bootstrap" else "")

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from posbias.curves.texts import curve_html

        return curve_html(self)


def _csv_field(value: str | float | None) -> str:
    """Return a field of CSV; unlike the standard library's, an empty text differs from none."""
    text = "" if value is None else str(value)
    plain = not isinstance(value, str) or (text == text.strip() != "" and not set(text) & set(',"\r\n'))
    return text if plain else '"' + text.replace('"', '""') + '"'
