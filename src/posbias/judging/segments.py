"""A comparison of the segments of a harvest as a value: for people as a table, for programs as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from posbias.curves.reasons import spans
from posbias.findings import Finding
from posbias.judging.comparisons import ALONE, number, p_text, wrapped
from posbias.judging.questions import Question
from posbias.judging.trials import Trial
from posbias.version import __version__
from posbias.wording import label, printable

if TYPE_CHECKING:
    from posbias.judging.contrasts import JointTest

FORMAT = 1
DIFFER = "segments-differ"
_NAME = 24


@dataclass(frozen=True)
class SegmentDifference:
    """One segment against the mean of all.

    Attributes:
        segment: its values of the segment columns.
        page_views: in it.
        ratio: of its propensities to the mean of all segments, on average over ranks, from `low` to `high`.
        p_value: of that ratio, allowing for there being several segments.
        differs: whether that is less than 1 − level.
        ranks: where it differs from the mean, allowing for all ranks of all segments.
    """

    segment: tuple[str | None, ...]
    page_views: int
    ratio: float
    low: float
    high: float
    p_value: float
    differs: bool
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class SegmentComparison:
    """Whether the curves of segments differ by more than chance.

    Attributes:
        by: the segment columns.
        estimator: of the curves.
        level: of the intervals and of the test.
        joint: an F test that all have one curve; None where there are too few queries for so many segments.
        joint_of: what it tests: all ranks of all segments or, where these are too many, a mean of each segment.
        p_each: the least p-value of any rank of any segment, allowing for all of them.
        segments: each against the mean of all.
        notes: what is to be known of the comparison.
    """

    by: tuple[str, ...]
    estimator: str
    level: float
    joint: JointTest | None
    joint_of: str
    p_each: float | None
    segments: tuple[SegmentDifference, ...]
    notes: tuple[str, ...] = ()

    @property
    def p_value(self) -> float:
        """Of the joint test or, where there is none, of the segment that differs most."""
        return min(one.p_value for one in self.segments) if self.joint is None else self.joint.p_value

    @property
    def differs(self) -> bool:
        """Whether the segments' curves differ by more than chance."""
        return self.p_value < 1 - self.level

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as `--json` prints it."""
        return {
            "format": FORMAT,
            "by": list(self.by),
            "estimator": self.estimator,
            "level": self.level,
            "differs": self.differs,
            "p_value": self.p_value,
            "joint": None if self.joint is None else asdict(self.joint) | {"degrees": list(self.joint.degrees)},
            "joint_of": self.joint_of,
            "p_each": self.p_each,
            "segments": [
                asdict(one) | {"segment": dict(zip(self.by, one.segment, strict=True)), "ranks": list(one.ranks)}
                for one in self.segments
            ],
            "notes": list(self.notes),
            "version": __version__,
        }

    def to_text(self) -> str:
        """Return the comparison as a table, after what comes of it."""
        lines = [wrapped(self.verdict), wrapped(self._how)]
        interval = f"{100 * self.level:g}% interval"
        lines.append(f"{'segment':<{_NAME}} page views    ratio  {interval:<16}    p  ranks")
        for one in self.segments:
            name = printable(label(one.segment))
            name = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
            ends = f"{one.low:.3f} – {one.high:.3f}"
            where = spans(one.ranks) if one.ranks else ""
            line = f"{name:<{_NAME}} {one.page_views:>10,} {one.ratio:>8.3f}  {ends:<16} {number(one.p_value)}  {where}"
            lines.append(line.rstrip())
        lines.append("ratio: to the mean of all, over its ranks; ranks: where it differs from it")
        lines.append(ALONE.format(what="segment"))
        lines += [wrapped(f"! {note}") for note in self.notes]
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """What comes of it, in a sentence, where nothing else is asked."""
        return self.told(self.differs)

    def told(self, differs: bool) -> str:
        """Return in a sentence that the curves differ, or that they do not by more than chance."""
        segments, p = f"the {len(self.segments)} segments by {printable(', '.join(self.by))}", p_text(self.p_value)
        if differs:
            return f"The curves of {segments} differ ({p})."
        return f"No difference beyond chance between {segments} ({p})."

    @property
    def question(self) -> Question:
        """Whether one curve is that of all segments, as one question among those of a diagnosis."""
        joint, nan = self.joint, float("nan")
        trial = Trial(nan, 0, nan, self.p_value)
        if joint is not None:
            trial = Trial(joint.statistic, joint.degrees[0], joint.degrees[1], joint.p_value)
        alarm = Finding(
            DIFFER,
            "warning",
            f"{self.told(True).rstrip('.')}: the curve of all is their average, and that of none of them",
            len(self.segments),
            evidence={"segments": len(self.segments)},
            remedy="Use each segment's own curve, as estimates and weights by segment do.",
        )
        # An average of curves is what the curve of all is meant to be, however sure it is that they differ.
        return Question(trial, alarm, surely="warning")

    @property
    def _how(self) -> str:
        if self.joint is None:
            return f"{self.estimator}, paired by bucket of queries; too few queries for one test of all"
        degrees = f"{self.joint.degrees[0]}, {self.joint.degrees[1]:.0f}"
        return (
            f"{self.estimator}, paired by bucket of queries; {self.joint_of} at once F({degrees}) = "
            f"{self.joint.statistic:.2f}"
        )

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__
