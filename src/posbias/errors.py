"""The exceptions of posbias. Every message says what was expected, what was found and what to do."""

from __future__ import annotations

from collections.abc import Callable

from posbias._text import Arguments, as_python, spelled

Spelling = Callable[[Arguments], str]


class PosbiasError(Exception):
    """The base class of all errors that posbias raises on purpose.

    Arguments:
        message (str): what is wrong and what to do.
        arguments (mapping, default None): arguments that would help, by their names in Python. The command shows them
            as flags.
    """

    def __init__(self, message: str, arguments: Arguments | None = None) -> None:
        self.message = message
        self.arguments = dict(arguments or {})
        super().__init__(message)

    def sentence(self, spell: Spelling) -> str:
        """Return the message with the arguments that would help, as Python or as flags."""
        return with_arguments(self.message, self.arguments, spell)

    def __str__(self) -> str:
        return self.sentence(as_python)


class PosbiasWarning(UserWarning):
    """A log can be used, but its curve may be wrong: a finding of severity "warning", or a note about a curve.

    The command prints these below its result and does not raise this warning. To silence one in Python, filter this
    category with the `warnings` module.
    """


class CurveError(PosbiasError):
    """A curve is damaged, or not suitable for what was asked."""


class EstimateError(PosbiasError):
    """The propensities cannot be estimated from the harvest."""


class HarvestError(PosbiasError):
    """A harvest is damaged, or not suitable for what was asked."""


class LogError(PosbiasError):
    """The click log cannot be read, or lacks something that is required."""


def with_arguments(message: str, arguments: Arguments, spell: Spelling) -> str:
    """Return a message followed by the arguments to add, if there are any."""
    message = spelled(message, spell)
    verb = "To continue anyway, add" if "force" in arguments else "Add"
    return f"{message} {verb} {spell(arguments)}" if arguments else message
