"""What is said to the user, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from posbias.errors import LogError


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a log: an "error" makes it unusable, a "warning" does not.

    `name` is its kind, for programs, and `flags` is what to add to the command, where that is the remedy.
    """

    name: str
    severity: Literal["error", "warning"]
    what: str
    count: int
    example: str | None
    remedy: str
    flags: str = ""

    def __str__(self) -> str:
        example = f", for example {self.example}" if self.example else ""
        flags = f" Add {self.flags}" if self.flags else ""
        return f"{self.what}{example}. {self.remedy}{flags}"


class UnusableLogError(LogError):
    """A log that cannot even be opened, and the problem that is the reason."""

    def __init__(self, name: str, what: str, remedy: str, *, count: int = 1, flags: str = "") -> None:
        self.problem = Problem(name, "error", what, count, None, remedy, flags)
        super().__init__(str(self.problem))
