"""A query as named steps that read top-down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One named step: its name, why it is there, and its SELECT."""

    name: str
    why: str
    select: str


def render(steps: Sequence[Step]) -> str:
    """Return one statement: every step but the last becomes a CTE, each under the sentence that explains it.

    >>> print(render([Step("rows", "What was shown.", "SELECT * FROM log"),
    ...               Step("answer", "How many.", "SELECT COUNT(*) FROM rows")]))
    WITH
    -- What was shown.
    rows AS (
    SELECT * FROM log
    )
    -- How many.
    SELECT COUNT(*) FROM rows
    """
    *inner, last = steps
    # Texts are not indented: a literal or a quoted name may hold a newline, which must stay as it is.
    blocks = [f"-- {s.why}\n{s.name} AS (\n{s.select}\n)" for s in inner]
    start = "WITH\n" + ",\n".join(blocks) + "\n" if blocks else ""
    return f"{start}-- {last.why}\n{last.select}"
