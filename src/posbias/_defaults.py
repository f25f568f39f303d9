"""Defaults of arguments and flags. A change here changes them everywhere."""

from __future__ import annotations


class DefaultNumber(int):
    """A default number, as opposed to the same number given by the user."""


# ---- Defaults of arguments that several functions share; the command takes them from here too.
# The coverage of confidence intervals.
DEFAULT_LEVEL = 0.95
# The ranks that are compared: the top 10.
DEFAULT_MAX_RANK = 10
# The most that one click may weigh: where clicks are few, larger weights add more variance than they remove bias.
DEFAULT_CAP = 20.0
# The highest grade of a judgment, and the exposure that a pair needs to be judged, in views at rank 1.
DEFAULT_GRADES, DEFAULT_MIN_EXPOSURE = DefaultNumber(3), 5.0
