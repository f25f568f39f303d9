"""Text for people: tables, wrapping, escaping, JSON."""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
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
WIDTH = 80
_GAP = 2
# A bar of fewer characters tells nothing that its number does not.
_LONGEST_BAR, _SHORTEST_BAR = 24, 6


def listed(names: Iterable[str], most: int = 12) -> str:
    """Return names for a message, cut after a dozen."""
    names = list(names)
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + rest if names else "none"


def format_p_value(p: float) -> str:
    """Return a p-value as text.

    >>> format_p_value(0.0312), format_p_value(0.62), format_p_value(1e-12)
    ('p = 0.031', 'p = 0.62', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def format_count(count: float) -> str:
    """Return a count in a few characters.

    >>> format_count(950), format_count(84_200), format_count(3_140_000), format_count(99_960_000)
    ('950', '84k', '3.1M', '100M')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}" if count < 9.95 * size else f"{count / size:.0f}{unit}"
    return f"{count:.0f}"


def format_ranks(ranks: Sequence[int]) -> str:
    """Return increasing ranks as text.

    >>> format_ranks([3]), format_ranks([2, 3, 4, 7])
    ('rank 3', 'ranks 2 to 4 and 7')
    """
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {format_ranges(ranks)}"


def format_ranges(numbers: Sequence[int]) -> str:
    """Return increasing whole numbers as text, three or more that follow each other as a range.

    >>> format_ranges([2, 3, 4, 7, 9]), format_ranges([2, 3])
    ('2 to 4, 7 and 9', '2 and 3')
    """
    runs = [[value for _, value in run] for _, run in groupby(enumerate(numbers), key=lambda item: item[1] - item[0])]
    words = [word for run in runs for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def shell(text: str) -> str:
    """Return a name as one would type it in a shell."""
    return shlex.quote(text)


def as_python(arguments: Arguments) -> str:
    """Return arguments as one writes them in Python.

    >>> as_python({"query": "qid", "rankers": ["a", "b"]})
    "query='qid', rankers=['a', 'b']"
    """
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def source_repr(value: Any) -> str:
    """Return a source or an argument as a repr names it: paths and texts as they are, data by its type.

    >>> source_repr(["a.csv", "b.csv"]), source_repr({})
    ("['a.csv', 'b.csv']", '<builtins.dict>')
    """
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(source_repr, value))}]"
    plain = isinstance(value, str | int) or type(value).__name__ == "Events"
    return repr(value) if plain else f"<{type(value).__module__.split('.')[0]}.{type(value).__name__}>"


def printable_lines(text: str) -> str:
    """Return a text of several lines so that a terminal obeys nothing in it but the ends of the lines."""
    return "\n".join(map(printable, text.split("\n")))


def printable(text: str) -> str:
    r"""Return a text with the characters that a terminal would obey, or that hide others, as escapes.

    >>> print(printable("phone\x1b[2J"))
    phone\x1b[2J
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


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


def table(
    columns: Sequence[Column],
    *,
    bars: Sequence[float | None] = (),
    remarks: Sequence[str] = (),
    indent: int = 0,
) -> str:
    """Return columns beside each other; those that do not fit stand below, beside the first column again.

    Arguments:
        columns: the first says what a row is about.
        bars: a share for each row, drawn where there is room.
        remarks: a text for each row; on their lines if all of them fit there, and if not below the table, once for
            all the rows that have it in common.
        indent: of all lines.

    Example:
        >>> print(table([Column("rank", ["1", "2"]), Column("clicks", ["1,204", "633"])], bars=[1.0, 0.5]))
        rank  clicks
           1   1,204  ████████████████████████
           2     633  ████████████
    """
    room = WIDTH - indent
    blocks = _blocks(_sized(columns, room), room)
    tables = [[_head(block), *_rows(block)] for block in blocks]
    span = _span(blocks[-1])
    drawn = _beside(tables[-1], _drawn(bars, room - _GAP - span), span)
    remarked = _beside(drawn, remarks, span)
    fits = all(len(row[-1]) <= room for row in remarked)
    below = [] if fits else [_below(columns[0], remarks, room)]
    tables[-1] = [*(remarked if fits else drawn), *below]
    told = ("\n".join(f"{'':{indent}}{line}".rstrip() for row in rows for line in row) for rows in tables)
    return "\n\n".join(told)


@dataclass(frozen=True)
class Column:
    """A column of a table: its head and a cell for each row; numbers stand to the right, words to the left."""

    head: str
    cells: Sequence[str]
    left: bool = False


def _blocks(columns: Sequence[_Sized], room: int) -> list[list[_Sized]]:
    """Return the columns in blocks that fit, the first column in each."""
    first, *others = columns
    blocks = [[first]]
    for column in others:
        if _span([*blocks[-1], column]) > room and len(blocks[-1]) > 1:
            blocks.append([first])
        blocks[-1].append(column)
    return blocks


@dataclass(frozen=True)
class _Sized:
    """A column whose head and cells are lines that fit its width."""

    head: list[str]
    cells: list[list[str]]
    width: int
    left: bool

    def line(self, text: str) -> str:
        return text.ljust(self.width) if self.left else text.rjust(self.width)


def _span(columns: Sequence[_Sized]) -> int:
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


def _sized(columns: Sequence[Column], room: int) -> list[_Sized]:
    """Return columns with their widths: none is wider than half a line beside others, or leaves the first no room."""
    whole = [_natural([column.head, *column.cells]) for column in columns]
    first = min(whole[0], room // 2) if len(columns) > 1 else min(whole[0], room)
    return [
        _fit(column, min(width, room - _GAP - first) if number else first)
        for number, (column, width) in enumerate(zip(columns, whole, strict=True))
    ]


def _natural(texts: Iterable[str]) -> int:
    return max(map(len, texts))


def _fit(column: Column, width: int) -> _Sized:
    head, *cells = (_cell(text, width) for text in [column.head, *column.cells])
    return _Sized(head, cells, width, column.left)


def _cell(text: str, width: int) -> list[str]:
    """Return a cell as lines; nothing of it is lost, blanks neither."""
    if len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_on_hyphens=False, drop_whitespace=False, replace_whitespace=False)


def _head(block: Sequence[_Sized]) -> list[str]:
    """Return the heads as lines; those that were folded end on the line of the others."""
    deepest = max(len(column.head) for column in block)
    return _row(block, [[""] * (deepest - len(column.head)) + column.head for column in block])


def _row(block: Sequence[_Sized], cells: Sequence[list[str]]) -> list[str]:
    deepest = max(map(len, cells))
    full = [[*lines, *[""] * (deepest - len(lines))] for lines in cells]
    return [
        (" " * _GAP).join(column.line(lines[number]) for column, lines in zip(block, full, strict=True))
        for number in range(deepest)
    ]


def _rows(block: Sequence[_Sized]) -> list[list[str]]:
    return [_row(block, cells) for cells in zip(*(column.cells for column in block), strict=True)]


def _beside(rows: list[list[str]], texts: Sequence[str], span: int) -> list[list[str]]:
    """Return a head and rows, each of these with its text at the end of its last line."""
    if not texts:
        return rows
    head, *others = rows
    gap = " " * _GAP
    ended = (
        [*lines[:-1], f"{lines[-1]:<{span}}{gap}{text}"] if text else lines
        for lines, text in zip(others, texts, strict=True)
    )
    return [head, *ended]


def _drawn(bars: Sequence[float | None], room: int) -> list[str]:
    width = min(_LONGEST_BAR, room)
    return [] if width < _SHORTEST_BAR else ["" if share is None else bar(share, width) for share in bars]


def bar(share: float, width: int = _LONGEST_BAR) -> str:
    """Return a bar of eighths of a character."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _below(first: Column, remarks: Sequence[str], room: int) -> list[str]:
    """Return each remark once, after the rows that have it."""
    about: dict[str, list[str]] = {}
    for name, remark in zip(first.cells, remarks, strict=True):
        if remark:
            about.setdefault(remark, []).append(name)
    told = (
        f"{first.head}{'s' if len(names) > 1 else ''} {format_ranges([int(name) for name in names])}: {remark}"
        for remark, names in about.items()
    )
    return [line for text in told for line in textwrap.wrap(text, room, subsequent_indent="  ", break_on_hyphens=False)]


def wrap(text: str, first: str = "", rest: str = "  ", *, breaking: bool = True, width: int = WIDTH) -> list[str]:
    """Return a text as lines of at most 80 characters, broken between words; longer words are broken if asked to."""
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=breaking,
        break_on_hyphens=False,
    )
    return lines or [first.rstrip()]


def terminal_width(fileno: int) -> int:
    """Return the width of text on a terminal: its columns, at most 80; 80 if it does not know them or has too few."""
    try:
        columns = os.get_terminal_size(fileno).columns
    except OSError:
        columns = 0
    return min(columns, WIDTH) if columns >= WIDTH // 4 else WIDTH


def html_table(
    columns: Sequence[Column], *, caption: str = "", remarks: Sequence[str] = (), notes: Sequence[str] = ()
) -> str:
    """Return the same as a table of HTML, in which nothing that a log or a name holds is markup.

    >>> print(html_table([Column("name", ["<b>"], left=True)]))
    <table>
    <tr><th style="text-align: left">name</th></tr>
    <tr><td style="text-align: left">&lt;b&gt;</td></tr>
    </table>
    """
    remarked = [Column("", remarks, left=True)] if any(remarks) else []
    columns = [*columns, *remarked]

    def row(tag: str, cells: Iterable[str]) -> str:
        sides = ("left" if column.left else "right" for column in columns)
        told = (
            f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{''.join(told)}</tr>"

    return "\n".join(
        [
            "<table>",
            *([f"<caption>{escape(caption)}</caption>"] if caption else []),
            row("th", (column.head for column in columns)),
            *(row("td", cells) for cells in zip(*(column.cells for column in columns), strict=True)),
            "</table>",
            *(f"<p>{escape(note)}</p>" for note in notes),
        ]
    )
