"""One exception tree: every message says what was expected, what was found and what to do."""

from __future__ import annotations


class PosbiasError(Exception):
    """Anything posbias refuses to do, with the reason and the remedy in its message."""


class LogError(PosbiasError):
    """The click log cannot be read, or does not say what it must."""


class HarvestError(PosbiasError):
    """A harvest file is not one, is damaged, or does not fit what is asked of it."""


class EstimateError(PosbiasError):
    """The harvest holds nothing from which the propensities asked for could be estimated."""


class CurveError(PosbiasError):
    """What was given as a curve is not one, is damaged, or does not fit what is asked of it."""
