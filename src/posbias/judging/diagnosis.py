"""What a diagnosis comes to, as a value: for people as a text, for programs as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from posbias.errors import Spelling
from posbias.findings import Finding, any_error
from posbias.judging.support import RankSupport
from posbias.version import __version__
from posbias.wording import as_python

_ORDER = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True)
class Diagnosis:
    """How far a curve of a harvest is to be trusted.

    Attributes:
        findings: what speaks against it, and what was looked at without anything being found, each with its `code`,
            `severity`, `message`, `evidence` and `remedy`; errors first.
        support: what each rank from the second on hangs on.
    """

    findings: tuple[Finding, ...]
    support: tuple[RankSupport, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether there is no error among the findings."""
        return not any_error(self.findings)

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "sound": self.sound,
            "findings": [finding.to_dict(spell) for finding in self.findings],
            "version": __version__,
        }

    def to_text(self, spell: Spelling = as_python) -> str:
        """Return it for people."""
        blocks = [self._support(), *(finding.block(spell) for finding in self.findings)]
        return "\n\n".join([*(block for block in blocks if block), self._verdict()])

    def __str__(self) -> str:
        return self.to_text()

    def _support(self) -> str:
        if not self.support:
            return ""
        lines = ["rank  degrees of freedom  heaviest bucket  hangs on ranks"]
        for one in self.support:
            degrees = "–" if one.degrees is None else f"{one.degrees:,.0f}"
            heaviest = "–" if one.heaviest is None else f"{one.heaviest:.1%}"
            links = ", ".join(f"{rank} ({share:.0%})" for rank, share in one.links.items()) or "–"
            lines.append(f"{one.rank:>4} {degrees:>19} {heaviest:>16}  {links}")
        return "\n".join(lines)

    def _verdict(self) -> str:
        if not self.sound:
            return "An assumption of the curve does not hold."
        if any(finding.severity == "warning" for finding in self.findings):
            return "Read the curve with these warnings."
        return "Nothing found that speaks against the curve.\nWhat no harvest can show is in docs/trust.md."


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return findings with errors first, then warnings."""
    return tuple(sorted(findings, key=lambda finding: _ORDER[finding.severity]))
