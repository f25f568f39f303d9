"""What rankings are worth as a value: for people as a table, for programs as JSON, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from posbias.findings import Finding
from posbias.judging.comparisons import percent
from posbias.learning.credits import Estimate
from posbias.learning.judged_rankings import THE_LOG
from posbias.tables import Column, folded, table
from posbias.version import __version__
from posbias.wording import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = 1


@dataclass(frozen=True)
class Judged:
    """One ranking, held against the rankers that were logged.

    Attributes:
        name: of the ranking.
        value: the metric of a page view, a document counting by how often it would be clicked at rank 1.
        normalised: the same for each relevant document: the value divided by all that is relevant.
        difference: the value less that of the log.
        ratio: the value in terms of that of the log.
        ratio_to_first: in terms of that of the first ranking, where this is another.
        never_shown: the share of its top ranks that was never shown; None where it is a ranker of the log.
        covered: the share of clicks on documents that it has.
    """

    name: str
    value: Estimate
    normalised: Estimate
    difference: Estimate | None = None
    ratio: Estimate | None = None
    ratio_to_first: Estimate | None = None
    never_shown: float | None = None
    covered: float | None = None

    def verdict(self, rises: bool, by: Estimate | None = None) -> str | None:
        """Return "better" or "worse" than the log, or by another ratio; None where the interval tells neither."""
        ratio = self.ratio if by is None else by
        if ratio is None or ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high:
            return None
        return "better" if (ratio.value > 1) == rises else "worse"


@dataclass(frozen=True)
class Evaluation:
    """Rankings judged by clicks that were logged.

    Made by `posbias.evaluate`.

    Attributes:
        metric: what they are judged by.
        rises: whether more of it is better.
        level: the coverage of the intervals.
        estimator: of the propensities.
        page_views, clicks: that the log holds.
        log: the rankers that were logged, by their shares of the traffic.
        rankings: those judged, in the order given.
        notes: what is to be known of the propensities.
        findings: what is to be known of the log and the rankings.
    """

    metric: str
    rises: bool
    level: float
    estimator: str
    page_views: int
    clicks: int
    log: Judged
    rankings: tuple[Judged, ...]
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def best(self) -> str:
        """The ranking that is worth most by its estimate, whether or not by more than chance; it may be the log."""
        pick = max if self.rises else min
        return pick((self.log, *self.rankings), key=lambda one: one.value.value).name

    def __getitem__(self, name: str) -> Judged:
        """Return the ranking of a name."""
        return {one.name: one for one in (*self.rankings, self.log)}[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as `--json` prints it."""
        return {
            "format": FORMAT,
            "metric": self.metric,
            "more_is_better": self.rises,
            "level": self.level,
            "estimator": self.estimator,
            "page_views": self.page_views,
            "clicks": self.clicks,
            "best": self.best,
            "log": {"value": asdict(self.log.value), "normalised": asdict(self.log.normalised)},
            "rankings": [asdict(one) | {"verdict": one.verdict(self.rises)} for one in self.rankings],
            "notes": list(self.notes),
            "findings": [finding.to_dict() for finding in self.findings],
            "version": __version__,
        }

    @property
    def verdicts(self) -> list[str]:
        """What comes of it, a sentence for each ranking."""
        told = [self._told(one, one.ratio, THE_LOG) for one in self.rankings]
        first = self.rankings[0].name
        return told + [self._told(one, one.ratio_to_first, first) for one in self.rankings[1:]]

    def _told(self, one: Judged, ratio: Estimate | None, other: str) -> str:
        if ratio is None or ratio.low is None or ratio.high is None:
            why = "" if ratio is None or not ratio.reason else f": {ratio.reason}"
            return f"Whether {one.name} is better than {other} cannot be told{why}."
        found = one.verdict(self.rises, ratio)
        by = f"{self.metric} {percent(ratio.value)}, {100 * self.level:g}% interval {percent(ratio.low)} to "
        by += percent(ratio.high)
        if found is None:
            same = ratio.low == ratio.high
            return f"{one.name} and {other} " + ("rank alike." if same else f"do not differ beyond chance ({by}).")
        return f"{one.name} is {found} than {other} ({by})."

    def to_text(self) -> str:
        """Return the evaluation as a table, after what comes of it."""
        head = (
            f"{self.metric} from {self.clicks:,} clicks in {self.page_views:,} page views; propensities by "
            f"{self.estimator}, estimated anew for the intervals"
        )
        lines = [line for text in (*self.verdicts, head) for line in folded(printable(text))]
        notes = [line for note in self.notes for line in folded(f"! {printable(note)}")]
        return "\n".join([*lines, "", self._table(), *notes])

    def _table(self) -> str:
        every = [self.log, *self.rankings]
        interval = f"{100 * self.level:g}% interval"
        columns = [
            Column("ranking", [printable(one.name) for one in every], left=True),
            Column("ratio", [_number(one.ratio, 3) for one in every]),
            Column(interval, [_ends(one.ratio, 3) for one in every], left=True),
            Column("difference", [_number(one.difference, 4, sign=True) for one in every]),
            Column("interval", [_ends(one.difference, 4, sign=True) for one in every], left=True),
            Column("value", [_number(one.value, 4) for one in every]),
            Column("interval", [_ends(one.value, 4) for one in every], left=True),
            Column("normalised", [_number(one.normalised, 4) for one in every]),
            Column("interval", [_ends(one.normalised, 4) for one in every], left=True),
            Column("never shown", ["" if one.never_shown is None else f"{one.never_shown:.1%}" for one in every]),
        ]
        reasons = [_weak(one) for one in every]
        below = [
            line
            for name, reason in zip((one.name for one in every), reasons, strict=True)
            if reason
            for line in folded(f"! {printable(name)}: {reason}")
        ]
        return "\n".join([table(columns), *below])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the ratio of each ranking to the log with its interval, and return the Axes."""
        from posbias.learning.pictures import draw_evaluation

        return draw_evaluation(self, ax)

    def save_plot(self, path: str) -> None:
        """Write the picture as PNG, SVG or PDF, whole or not at all."""
        from posbias.pictures import save_picture

        save_picture(self.plot().figure, path)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


def _weak(one: Judged) -> str | None:
    told: Sequence[Estimate | None] = (one.ratio, one.difference, one.value, one.normalised)
    return next((estimate.reason for estimate in told if estimate is not None and estimate.reason), None)


def _number(estimate: Estimate | None, digits: int, *, sign: bool = False) -> str:
    return "" if estimate is None else _told(estimate.value, digits, sign)


def _ends(estimate: Estimate | None, digits: int, *, sign: bool = False) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"{_told(estimate.low, digits, sign)} – {_told(estimate.high, digits, sign)}"


def _told(value: float, digits: int, sign: bool) -> str:
    text = f"{abs(value):,.{digits}f}"
    return f"{'−' if value < 0 else '+'}{text}" if sign else text
