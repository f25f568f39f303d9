"""The words of messages: names in a row, as one types them, as a terminal may show them; JSON as one reads it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

# What to give to a function, by the names of its arguments.
Arguments = Mapping[str, str | list[str] | bool]

# What a terminal obeys in place of showing it: C1, DEL, line separators, marks that turn the direction of writing.
_OBEYED = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
# What leaves no mark: blanks without width, fillers, a blank of Braille. Joiners are part of words and of emoji.
_UNSEEN = r"\xad\u115f\u1160\u180e\u200b\u2060-\u2064\u2800\u3164\ufeff\uffa0"
_JOINERS = re.compile(r"[\u200c\u200d\ufe00-\ufe0f]+")
_CONTROL = re.compile(rf"[\x00-\x1f{_OBEYED}{_UNSEEN}]")
# JSON escapes the rest of them itself.
_RAW_IN_JSON = re.compile(rf"[{_OBEYED}]")
_NUMBERS_IN_JSON = re.compile(r"\[\n([^\[\]{}\"]*)\n *\]")


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


def shown(value: Any) -> str:
    """Return a source or an argument as a repr names it: paths and texts as they are, data by its type.

    >>> shown(["a.csv", "b.csv"]), shown({})
    ("['a.csv', 'b.csv']", '<builtins.dict>')
    """
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    plain = isinstance(value, str | int) or type(value).__name__ == "Events"
    return repr(value) if plain else f"<{type(value).__module__.split('.')[0]}.{type(value).__name__}>"


def printable(text: str) -> str:
    r"""Return a text with the characters that a terminal would obey, or that hide others, as escapes.

    >>> print(printable("phone\x1b[2J"))
    phone\x1b[2J
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_lines(text: str) -> str:
    """Return a text of several lines so that a terminal obeys nothing in it but the ends of the lines."""
    return "\n".join(map(printable, text.split("\n")))


def label(values: Iterable[str | None]) -> str:
    """Return the values of a segment in a row, those that could be mistaken in quotes: no two segments look alike.

    >>> label(["phone", None]), label(["phone", "null"]), label(["phone, null", ""])
    ('phone, null', 'phone, "null"', '"phone, null", ""')
    """
    return ", ".join("null" if value is None else _quoted(value) for value in values)


def _quoted(value: str) -> str:
    if _JOINERS.fullmatch(value):
        return '"' + value.encode("unicode_escape").decode() + '"'
    plain = value == value.strip() == printable(value) and value not in ("", "null") and not re.search('[,"]', value)
    return value if plain else '"' + printable(value.replace("\\", r"\\").replace('"', r"\"")) + '"'


def json_text(value: Any, encoding: str = "utf-8") -> str:
    r"""Return a value as JSON that one can read: a row of numbers on a line, no raw control characters.

    It is plain ASCII where the encoding could not say it.

    >>> print(json_text({"segment": "caf\u00e9\x9b", "row": [1, None, 0.5]}))
    {
      "segment": "café\u009b",
      "row": [1, null, 0.5]
    }
    """
    import json

    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    text = _RAW_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2, allow_nan=False)
    return _NUMBERS_IN_JSON.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
