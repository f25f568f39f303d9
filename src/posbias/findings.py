"""What is said to the user of a log, a harvest or a curve, as a value that is printed, saved and added up one way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from posbias._text import Arguments, as_python, folded, printable
from posbias.errors import LogError, Spelling, with_arguments

Severity = Literal["error", "warning", "info"]
MARKS: dict[Severity, str] = {"error": "✗", "warning": "!", "info": "·"}


def unusable(
    code: str, what: str, remedy: str, *, count: int = 1, arguments: Arguments | None = None
) -> UnusableLogError:
    """Return the error of a log that cannot even be opened."""
    return UnusableLogError(Finding(code, "error", what, count, remedy=remedy, arguments=arguments or {}))


class UnusableLogError(LogError):
    """A log that cannot be used, with the findings that are the reason."""

    def __init__(self, *findings: Finding, lead: str = "", tail: str = "", arguments: Arguments | None = None) -> None:
        self.findings = findings
        self.lead = lead
        self.tail = tail
        super().__init__("", arguments)

    def sentence(self, spell: Spelling) -> str:
        """Return the findings with the arguments that would help, spelled as the reader would write them."""
        if not self.lead:
            return "\n".join(finding.sentence(spell) for finding in self.findings)
        tail = [f"{self.tail} add {spell(self.arguments)}"] if self.arguments else []
        return "\n".join([self.lead, *(f"  - {finding.sentence(spell)}" for finding in self.findings), *tail])


@dataclass(frozen=True)
class Finding:
    """One thing that was found: an "error" keeps the data from being used, a "warning" does not, "info" is no problem.

    Attributes:
        code: its kind, for programs; it stays the same between versions.
        severity: "error", "warning" or "info".
        what: what was found, where `{count}` and the names of numbers in the evidence stand for them.
        count: how often.
        example: where it was found, for example.
        evidence: numbers and names that bear it out.
        remedy: what to do, in words.
        arguments: what to give to ClickLog or a function to mend it, by name, where that is the remedy.
    """

    code: str
    severity: Severity
    what: str
    count: int = 0
    example: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    remedy: str = ""
    arguments: Arguments = field(default_factory=dict)

    @property
    def message(self) -> str:
        """What was found, as the beginning of a sentence, with its numbers."""
        text = self.what
        for name, value in {"count": self.count, **self.evidence}.items():
            if isinstance(value, int):
                text = text.replace(f"{{{name}}}", f"{value:,}")
        return text

    def sentence(self, spell: Spelling = as_python) -> str:
        """Return all of it on one line, with arguments spelled as the reader would write them."""
        example = f", for example {self.example}" if self.example else ""
        return with_arguments(f"{_ended(f'{self.message}{example}')} {self.remedy}".rstrip(), self.arguments, spell)

    def block(self, spell: Spelling = as_python) -> str:
        """Return it as a few lines under its mark."""
        lines = wrapped(_ended(self.message), f"{MARKS[self.severity]} ", "  ")
        if self.example:
            lines += wrapped(self.example, "    example  ", " " * 13)
        if self.remedy:
            lines += wrapped(self.remedy, "    remedy   ", " " * 13)
        # What is there to be copied stands on one line.
        return "\n".join([*lines, f"    add      {printable(spell(self.arguments))}"] if self.arguments else lines)

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "count": self.count,
            "example": self.example,
            "evidence": dict(self.evidence),
            "remedy": self.remedy,
            "add": spell(self.arguments),
        }

    def __str__(self) -> str:
        return self.sentence()


def _ended(sentence: str) -> str:
    """Return a sentence with its full stop, which a question has already."""
    return sentence if sentence.endswith("?") else f"{sentence}."


def wrapped(text: str, first: str, rest: str) -> list[str]:
    """Return a text as lines under each other, the first of them indented otherwise."""
    # Ids, names and commands are never broken, and a line break in one is shown as such.
    return folded(printable(text), first, rest, breaking=False)


def any_error(findings: Iterable[Finding]) -> bool:
    """Return whether any of the findings keeps the data from being used."""
    return any(finding.severity == "error" for finding in findings)


def added(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings of several parts, such as days, as those of the whole: what is the same is said once.

    >>> day = Finding("left-out", "warning", "{count} of {rows} rows were left out", 2, evidence={"rows": 1000})
    >>> [finding.message for finding in added([day, day, day])]
    ['6 of 3,000 rows were left out']
    """
    found: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        key = (finding.code, finding.severity, finding.what)
        found[key] = _sum(found[key], finding) if key in found else finding
    return tuple(found.values())


def _sum(one: Finding, other: Finding) -> Finding:
    evidence = dict(one.evidence)
    for name, value in other.evidence.items():
        numbers = isinstance(value, int) and isinstance(evidence.get(name), int)
        evidence[name] = evidence[name] + value if numbers else evidence.get(name, value)
    return replace(one, count=one.count + other.count, evidence=evidence, example=one.example or other.example)
