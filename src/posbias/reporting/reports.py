"""A report as a value: everything that its page shows, as plain data, before there is any page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from posbias.arrays import FloatArray
from posbias.curves.curve import Curve
from posbias.errors import Spelling
from posbias.findings import Finding, Severity, any_error
from posbias.judging.comparisons import Comparison
from posbias.judging.diagnosis import Diagnosis
from posbias.judging.histories import History
from posbias.judging.pair_ratios import PairRatio
from posbias.judging.segments import SegmentComparison
from posbias.reporting import answers
from posbias.reporting.origins import Origin
from posbias.reporting.uses import Weights
from posbias.version import __version__
from posbias.wording import as_python

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Part:
    """What is told of one harvest.

    Attributes:
        name: what it is called on the page.
        curve: the answer, with those of segments.
        diagnosis: how far it is to be trusted.
        findings: all that was found, of the log and of the curve, without examples: these would be rows of the log.
        sets: the clicks at k on documents that are at k' too, (M, M).
        ratios: what each two ranks say by themselves.
        estimators: the curve of each estimator, or why it has none, by name.
        segments: whether segments have one curve, or why that cannot be told.
        weights: of the clicks.
        origin: what it was made of, and how.
    """

    name: str
    curve: Curve
    diagnosis: Diagnosis
    findings: tuple[Finding, ...]
    sets: FloatArray
    ratios: tuple[PairRatio, ...]
    estimators: Mapping[str, Curve | str]
    segments: SegmentComparison | str | None
    weights: Weights
    origin: Origin

    @property
    def sound(self) -> bool:
        """Whether there is no error among what was found."""
        return not any_error(self.findings)

    @property
    def worst(self) -> Severity:
        """How grave the gravest is of what was found; a rank without a number or interval is a warning."""
        found = {f.severity for f in self.findings}
        if "error" in found:
            return "error"
        return "warning" if "warning" in found or answers.incomplete(self.curve) else "info"

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer in words: what the curve says, whether to trust it, what is missing, what it comes from."""
        return (
            answers.answer(self.curve),
            answers.trust(self.curve, self.diagnosis, self.findings),
            *answers.missing(self.curve),
            *([answers.apart(self.segments, self.diagnosis)] if isinstance(self.segments, SegmentComparison) else []),
            answers.basis(self.curve),
        )

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "name": self.name,
            "sentences": list(self.sentences),
            "curve": self.curve.to_dict(),
            "sound": self.sound,
            "findings": [
                {"code": f.code, "severity": f.severity, "message": f.message, "remedy": f.remedy}
                | {"add": spell(f.arguments)}
                for f in self.findings
            ],
            "support": [one.to_dict() for one in self.diagnosis.support],
            "sets": self.sets.tolist(),
            "pair_ratios": [asdict(one) for one in self.ratios],
            "estimators": {
                name: made if isinstance(made, str) else made.to_dict() for name, made in self.estimators.items()
            },
            "segments": self.segments.to_dict() if isinstance(self.segments, SegmentComparison) else self.segments,
            "weights": self.weights.to_dict(),
            "origin": self.origin.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class Report:
    """One or two harvests, told for someone who has five minutes.

    Made by `posbias.report`. `save` writes it as one HTML file that needs nothing else, `to_dict` gives what is in it.

    Attributes:
        parts: what is told of each harvest.
        comparison: of the two, where there are two.
        history: the curves of many days.
        command: what makes the report again, as one would type it.
        steps: what to type next, by what it is for, of each part; None for what one types in Python.
    """

    parts: tuple[Part, ...]
    comparison: Comparison | None = None
    history: History | None = None
    command: str | None = None
    steps: tuple[Mapping[str, str], ...] | None = None
    version: str = field(default=__version__)

    @property
    def title(self) -> str:
        """What it is a report of."""
        return f"Position bias: {' and '.join(part.name for part in self.parts)}"

    @property
    def sound(self) -> bool:
        """Whether no assumption was found not to hold."""
        return all(part.sound for part in self.parts)

    @property
    def next_steps(self) -> list[tuple[Part, Mapping[str, str]]]:
        """The parts, each with what to type next, by what it is for."""
        from posbias.reporting.steps import in_python

        steps = self.steps if self.steps is not None else [in_python(part) for part in self.parts]
        return list(zip(self.parts, steps, strict=True))

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return all that is shown as plain data."""
        return {
            "format": FORMAT,
            "title": self.title,
            "parts": [part.to_dict(spell) | {"next": dict(steps)} for part, steps in self.next_steps],
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
            "history": None if self.history is None else self.history.to_dict(),
            "command": self.command,
            "version": self.version,
        }

    def to_html(self, spell: Spelling = as_python) -> str:
        """Return the page, which holds all that it needs and asks nothing of any network."""
        from posbias.reporting.pages import render

        return render(self, spell)

    def save(self, path: str | os.PathLike[str], spell: Spelling = as_python) -> None:
        """Write the page to a file, whole or not at all."""
        from posbias.replacing import REPORT
        from posbias.writing import writable, written_whole

        writable(path, REPORT)
        page = self.to_html(spell)
        with written_whole(path, REPORT) as part, open(part, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)

    def __repr__(self) -> str:
        found = sum(f.severity != "info" for part in self.parts for f in part.findings)
        return f"<Report of {' and '.join(repr(part.name) for part in self.parts)}, {found} found to look at>"
