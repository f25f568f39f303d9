"""The words of messages: names in a row, and as one types them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def listed(names: Iterable[str], most: int = 12) -> str:
    """Return names for a message, cut after a dozen."""
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + rest if names else "none"


def shell(text: str) -> str:
    """Return a name as one would type it in a shell."""
    return shlex.quote(text)
