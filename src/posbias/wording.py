"""The words of messages: names in a row, counts, arguments as one writes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

# What to give to a function, by the names of its arguments.
Arguments = Mapping[str, str | list[str]]


def listed(names: Iterable[str], most: int = 12) -> str:
    """Return names for a message, cut after a dozen."""
    names = list(names)
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + rest if names else "none"


def shell(text: str) -> str:
    """Return a name as one would type it in a shell."""
    return shlex.quote(text)


def as_python(arguments: Arguments) -> str:
    """Return arguments as one writes them in Python.

    >>> as_python({"query": "qid", "rankers": ["a", "b"]})
    "query='qid', rankers=['a', 'b']"
    """
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def printable(text: str) -> str:
    """Return a text without what would steer a terminal: control characters are shown by their numbers.

    >>> print(printable("red \\x1b[31m, new line \\n"))
    red \\x1b[31m, new line \\n
    """
    return re.sub("[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]", _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
