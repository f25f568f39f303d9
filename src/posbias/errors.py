"""One exception tree: every message says what was expected, what was found and what to do."""

from __future__ import annotations

from collections.abc import Callable

from posbias._text import Arguments, as_python

Spelling = Callable[[Arguments], str]


class PosbiasError(Exception):
    """Anything posbias refuses to do, with the reason and the remedy in its message.

    `arguments` are what to give where that is the remedy, by their names in Python; the command tells its flags.
    """

    def __init__(self, message: str, arguments: Arguments | None = None) -> None:
        self.message = message
        self.arguments = dict(arguments or {})
        super().__init__(message)

    def sentence(self, spell: Spelling) -> str:
        """Return the message with the arguments that would help, spelled as the reader would write them."""
        return with_arguments(self.message, self.arguments, spell)

    def __str__(self) -> str:
        return self.sentence(as_python)


class CurveError(PosbiasError):
    """What was given as a curve is not one, is damaged, or does not fit what is asked of it."""


class EstimateError(PosbiasError):
    """The harvest holds nothing from which the propensities asked for could be estimated."""


class HarvestError(PosbiasError):
    """A harvest file is not one, is damaged, or does not fit what is asked of it."""


class LogError(PosbiasError):
    """The click log cannot be read, or does not say what it must."""


def with_arguments(message: str, arguments: Arguments, spell: Spelling) -> str:
    """Return a message followed by the arguments to give, if there are any."""
    return f"{message} Add {spell(arguments)}" if arguments else message
