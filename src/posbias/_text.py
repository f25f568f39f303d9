"""Text for people: numbers and names in messages, safe text for terminals, JSON, and tables.

Tables fit into 80 columns: bars shrink first, and text that does not fit is wrapped, never cut.
"""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

# Arguments of a function, by name.
Arguments = Mapping[str, str | list[str] | bool | int]
# Characters that control a terminal: C1, DEL, line separators, marks that change the direction of writing.
_CONTROLS = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
# Invisible characters: zero-width blanks, fillers, the Braille blank. Joiners are part of words and emoji.
_INVISIBLE = r"\xad\u115f\u1160\u180e\u200b\u2060-\u2064\u2800\u3164\ufeff\uffa0"
_JOINERS = re.compile(r"[\u200c\u200d\ufe00-\ufe0f]+")
# Arguments that messages name, as in "(proxy)" and "duplicates='drop'".
_ARGUMENTS = (
    "application|by|candidates|click|clicks|conf|doc|docs|duplicates|engine|features|grades|impression|impressions|"
    "interval|max_rank|min_exposure|non_functional|original|part|position|proxy|query|rank|ranker|rankers|rankings|ranks|"
    "rows|score|split|sql|thresholds|time|unit|window"
)
_ARGUMENT = re.compile(rf"\b(?:{_ARGUMENTS})\b")
_NAMED_ARGUMENT = re.compile(rf"(?<= )\((({_ARGUMENTS})( (or|and) ({_ARGUMENTS}))?)\)")
_GIVEN_ARGUMENT = re.compile(rf"\b({_ARGUMENTS})=(True|'([^']+)')")
_CONTROL = re.compile(rf"[\x00-\x1f{_CONTROLS}{_INVISIBLE}]")
# The others are escaped by the json module.
_RAW_IN_JSON = re.compile(rf"[{_CONTROLS}]")
_NUMBERS_IN_JSON = re.compile(r"\[\n([^\[\]{}\"]*)\n *\]")
WIDTH = 80
_GAP = 2
# A shorter bar shows nothing that its number does not.
_LONGEST_BAR, _SHORTEST_BAR = 24, 6


def listed(names: Iterable[object], most: int = 12) -> str:
    """Return names for a message, at most a dozen of them."""
    names = list(names)
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + rest if names else "none"


def format_p_value(p: float, level: float | None = None) -> str:
    """Return a p-value as text, with the level below which it is an alarm, if one is given.

    >>> format_p_value(0.0312), format_p_value(0.62), format_p_value(1e-12)
    ('p = 0.031', 'p = 0.62', 'p < 0.001')
    >>> format_p_value(0.0005, 0.0002), format_p_value(1e-12, 0.0002)
    ('p = 0.0005, alarm below 0.0002', 'p < 0.0002, alarm below 0.0002')
    """
    least = 0.001 if level is None else min(0.001, level)
    text = f"p < {least:g}" if p < least else f"p = {p:.2g}"
    return text if level is None else f"{text}, alarm below {level:g}"


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
    """Return a name quoted for a shell."""
    return shlex.quote(text)


def as_python(arguments: Arguments) -> str:
    """Return arguments as Python code.

    >>> as_python({"query": "qid", "rankers": ["a", "b"]})
    "query='qid', rankers=['a', 'b']"
    """
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def spelled(text: str, spell: Callable[[Arguments], str]) -> str:
    """Return a message whose arguments, such as (proxy) or duplicates='drop', are written as its reader types them.

    >>> spelled("Name it (query), or use duplicates='drop'.", lambda found: " ".join(f"--{name}" for name in found))
    'Name it (--query), or use --duplicates.'
    >>> spelled("Name them (ranks or rankings).", lambda found: f"--{next(iter(found))}")
    'Name them (--ranks or --rankings).'
    """
    if spell is as_python:
        return text
    text = _NAMED_ARGUMENT.sub(lambda found: _ARGUMENT.sub(lambda name: spell({name[0]: True}), found[0]), text)
    return _GIVEN_ARGUMENT.sub(lambda found: spell({found[1]: found[3] or True}), text)


def source_repr(value: Any) -> str:
    """Return a source or argument for a repr: paths and texts as they are, data by its type.

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
    """Return text of several lines with all control characters escaped but the line ends."""
    return "\n".join(map(printable, text.split("\n")))


def printable(text: str) -> str:
    r"""Return text with control characters and invisible characters escaped.

    >>> print(printable("phone\x1b[2J"))
    phone\x1b[2J
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def label(values: Iterable[str | None]) -> str:
    """Return the values of a segment as text, in quotes if ambiguous, so that no two segments look alike.

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
    r"""Return a value as readable JSON: a list of numbers on one line, control characters escaped.

    It is plain ASCII if the encoding cannot represent the text.

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
    """Return columns as a text table; columns that do not fit follow below, beside the first column again.

    Arguments:
        columns (sequence of Column): the columns; the first one names the rows.
        bars (sequence of float, default ()): a share for each row, drawn as a bar if there is room.
        remarks (sequence of str, default ()): a text for each row. They stand at the ends of the rows if all of them
            fit there; otherwise each stands once below the table, with the rows that share it.
        indent (int, default 0): the indentation of all lines.

    Example:
        >>> print(table([Column("rank", ["1", "2"]), Column("clicks", ["1,204", "633"])], bars=[1.0, 0.5]))
        rank  clicks
           1   1,204  ████████████████████████
           2     633  ████████████
    """
    room = WIDTH - indent
    blocks = _split_into_blocks(_wrap_columns(columns, room), room)
    tables = [[_head(block), *_rows(block)] for block in blocks]
    span = _total_width(blocks[-1])
    drawn = _append(tables[-1], _draw_bars(bars, room - _GAP - span), span)
    remarked = _append(drawn, remarks, span)
    fits = all(len(row[-1]) <= room for row in remarked)
    below = [] if fits else [_remarks_below(columns[0], remarks, room)]
    tables[-1] = [*(remarked if fits else drawn), *below]
    texts = ("\n".join(f"{'':{indent}}{line}".rstrip() for row in rows for line in row) for rows in tables)
    return "\n\n".join(texts)


@dataclass(frozen=True)
class Column:
    """A column of a table: its head and a cell for each row, aligned to the right (numbers) or left (words)."""

    head: str
    cells: Sequence[str]
    left: bool = False


def _split_into_blocks(columns: Sequence[_WrappedColumn], room: int) -> list[list[_WrappedColumn]]:
    """Return the columns in blocks that fit into a line, each with the first column."""
    first, *others = columns
    blocks = [[first]]
    for column in others:
        if _total_width([*blocks[-1], column]) > room and len(blocks[-1]) > 1:
            blocks.append([first])
        blocks[-1].append(column)
    return blocks


@dataclass(frozen=True)
class _WrappedColumn:
    """A column whose head and cells are wrapped to its width."""

    head: list[str]
    cells: list[list[str]]
    width: int
    left: bool

    def line(self, text: str) -> str:
        return text.ljust(self.width) if self.left else text.rjust(self.width)


def _total_width(columns: Sequence[_WrappedColumn]) -> int:
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


def _wrap_columns(columns: Sequence[Column], room: int) -> list[_WrappedColumn]:
    """Return wrapped columns: the first takes at most half a line, and each other fits beside it."""
    whole = [_longest([column.head, *column.cells]) for column in columns]
    first = min(whole[0], room // 2) if len(columns) > 1 else min(whole[0], room)
    return [
        _wrap_column(column, min(width, room - _GAP - first) if number else first)
        for number, (column, width) in enumerate(zip(columns, whole, strict=True))
    ]


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts))


def _wrap_column(column: Column, width: int) -> _WrappedColumn:
    head, *cells = (_cell(text, width) for text in [column.head, *column.cells])
    return _WrappedColumn(head, cells, width, column.left)


def _cell(text: str, width: int) -> list[str]:
    """Return a cell as lines, with all of its blanks."""
    if len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_on_hyphens=False, drop_whitespace=False, replace_whitespace=False)


def _head(block: Sequence[_WrappedColumn]) -> list[str]:
    """Return the heads as lines; wrapped heads end on the same line as the others."""
    deepest = max(len(column.head) for column in block)
    return _row(block, [[""] * (deepest - len(column.head)) + column.head for column in block])


def _row(block: Sequence[_WrappedColumn], cells: Sequence[list[str]]) -> list[str]:
    deepest = max(map(len, cells))
    full = [[*lines, *[""] * (deepest - len(lines))] for lines in cells]
    return [
        (" " * _GAP).join(column.line(lines[number]) for column, lines in zip(block, full, strict=True))
        for number in range(deepest)
    ]


def _rows(block: Sequence[_WrappedColumn]) -> list[list[str]]:
    return [_row(block, cells) for cells in zip(*(column.cells for column in block), strict=True)]


def _append(rows: list[list[str]], texts: Sequence[str], span: int) -> list[list[str]]:
    """Return a head and rows, each row with its text at the end of its last line."""
    if not texts:
        return rows
    head, *others = rows
    gap = " " * _GAP
    ended = (
        [*lines[:-1], f"{lines[-1]:<{span}}{gap}{text}"] if text else lines
        for lines, text in zip(others, texts, strict=True)
    )
    return [head, *ended]


def _draw_bars(bars: Sequence[float | None], room: int) -> list[str]:
    width = min(_LONGEST_BAR, room)
    return [] if width < _SHORTEST_BAR else ["" if share is None else bar(share, width) for share in bars]


def bar(share: float, width: int = _LONGEST_BAR) -> str:
    """Return a share as a bar, in eighths of a character."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _remarks_below(first: Column, remarks: Sequence[str], room: int) -> list[str]:
    """Return each remark once, after the rows that share it."""
    about: dict[str, list[str]] = {}
    for name, remark in zip(first.cells, remarks, strict=True):
        if remark:
            about.setdefault(remark, []).append(name)
    texts = (
        f"{first.head}{'s' if len(names) > 1 else ''} {format_ranges([int(name) for name in names])}: {remark}"
        for remark, names in about.items()
    )
    return [
        line for text in texts for line in textwrap.wrap(text, room, subsequent_indent="  ", break_on_hyphens=False)
    ]


def wrap(text: str, first: str = "", rest: str = "  ", *, breaking: bool = True, width: int = WIDTH) -> list[str]:
    """Return text as lines of at most `width` characters, broken between words; `breaking` also breaks longer words."""
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


def csv_field(value: str | float | None) -> str:
    """Return a CSV field. Unlike in the standard library, an empty text differs from a missing one.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.

    >>> csv_field("=1+1"), csv_field(-0.5)
    ("'=1+1", '-0.5')
    """
    if isinstance(value, str):
        value = escape_formula(value)
    text = "" if value is None else str(value)
    plain = not isinstance(value, str) or (text == text.strip() != "" and not set(text) & set(',"\r\n'))
    return text if plain else '"' + text.replace('"', '""') + '"'


def escape_formula(text: str) -> str:
    """Return a text with an apostrophe in front, if a spreadsheet would take it for a formula.

    A formula that has apostrophes in front gets one more, so that different texts stay different.

    >>> escape_formula("=1+1"), escape_formula("'=1+1"), escape_formula("'tis")
    ("'=1+1", "''=1+1", "'tis")
    """
    return f"'{text}" if text.lstrip("'").startswith(("=", "+", "-", "@", "\t", "\r")) else text


def html_table(
    columns: Sequence[Column], *, caption: str = "", remarks: Sequence[str] = (), notes: Sequence[str] = ()
) -> str:
    """Return columns as an HTML table, with all text escaped.

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
        tagged = (
            f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{''.join(tagged)}</tr>"

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
