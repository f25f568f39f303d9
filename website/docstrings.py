"""Convert docstrings to Markdown: summary, arguments and attributes as lists, examples, references."""

from __future__ import annotations

import inspect
import re
from textwrap import dedent

_SECTION = re.compile(r"(Arguments|Args|Attributes|Returns|Raises|Examples?|Reference):(.*)")
# `name (type, default 10): text`; the type may contain parentheses.
_ITEM = re.compile(r"([*\w]+(?:, [*\w]+)*)( \((?:[^()]|\([^()]*\))*\))?: ?(.*)", re.DOTALL)
_TITLES = {"Args": "Arguments", "Examples": "Example"}


def as_markdown(docstring: str) -> str:
    """Return a docstring as Markdown.

    >>> print(as_markdown("Count.\\n\\nArguments:\\n    rows, top (int): how\\n        many.\\n\\nReference: None."))
    Count.
    <BLANKLINE>
    **Arguments**
    <BLANKLINE>
    - `rows`, `top` (int): how many.
    <BLANKLINE>
    Reference: None.
    """
    return "\n\n".join(text for title, body in _sections(docstring) if (text := _format_section(title, body)))


def summary(docstring: str) -> str:
    """Return the first paragraph of a docstring on one line.

    >>> summary("Harvest the interventions\\nof a log.\\n\\nArguments:\\n    log: the click log.")
    'Harvest the interventions of a log.'
    """
    return " ".join(inspect.cleandoc(docstring).split("\n\n")[0].split())


def _sections(docstring: str) -> list[tuple[str, str]]:
    """Return the sections of a docstring with their titles; running text has an empty title."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    for line in inspect.cleandoc(docstring).splitlines():
        if found := _SECTION.fullmatch(line):
            parts.append((_TITLES.get(found[1], found[1]), [found[2].strip()]))
        elif line and not line.startswith(" ") and parts[-1][0] not in ("", "Reference") and not parts[-1][1][-1]:
            # An empty line and the end of the indentation end a section: running text continues.
            parts.append(("", [line]))
        else:
            parts[-1][1].append(line)
    return [(title, dedent("\n".join(lines)).strip("\n")) for title, lines in parts]


def _format_section(title: str, body: str) -> str:
    if not body:
        return ""
    if title == "Reference":
        return f"Reference: {' '.join(body.split())}"
    if title in ("Arguments", "Attributes", "Raises"):
        return f"**{title}**\n\n{_items(body)}"
    return f"**{title}**\n\n{_blocks(body)}" if title else _blocks(body)


def _items(body: str) -> str:
    """Return items of the form `name (type): text` as a Markdown list; continuation lines are indented."""
    lines = []
    for item in re.split(r"\n(?! )", body):
        found = _ITEM.fullmatch(item)
        if not found:
            raise ValueError(f"expected `name (type): text`, found {item!r}")
        names = ", ".join(f"`{name}`" for name in found[1].split(", "))
        lines.append(f"- {names}{found[2] or ''}: {' '.join(found[3].split())}")
    return "\n".join(lines)


def _blocks(body: str) -> str:
    """Return running text with examples in fenced code blocks."""
    blocks = re.split(r"\n\n+", body)
    return "\n\n".join(f"```pycon\n{block}\n```" if block.startswith(">>> ") else block for block in blocks)
