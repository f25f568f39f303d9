"""Tables for people, in 80 columns: bars shrink first, and what does not fit is folded, never cut."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 80
_GAP = 2
# A bar of fewer characters tells nothing that its number does not.
_LONGEST_BAR, _SHORTEST_BAR = 24, 6


@dataclass(frozen=True)
class Column:
    """A column of a table: its head and a cell for each row; numbers stand to the right, words to the left."""

    head: str
    cells: Sequence[str]
    left: bool = False


@dataclass(frozen=True)
class _Sized:
    """A column whose head and cells are lines that fit its width."""

    head: list[str]
    cells: list[list[str]]
    width: int
    left: bool

    def line(self, text: str) -> str:
        return text.ljust(self.width) if self.left else text.rjust(self.width)


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


def folded(text: str, first: str = "", rest: str = "  ", *, breaking: bool = True, width: int = WIDTH) -> list[str]:
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


def bar(share: float, width: int = _LONGEST_BAR) -> str:
    """Return a bar of eighths of a character."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _drawn(bars: Sequence[float | None], room: int) -> list[str]:
    width = min(_LONGEST_BAR, room)
    return [] if width < _SHORTEST_BAR else ["" if share is None else bar(share, width) for share in bars]


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


def _span(columns: Sequence[_Sized]) -> int:
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


def _blocks(columns: Sequence[_Sized], room: int) -> list[list[_Sized]]:
    """Return the columns in blocks that fit, the first column in each."""
    first, *others = columns
    blocks = [[first]]
    for column in others:
        if _span([*blocks[-1], column]) > room and len(blocks[-1]) > 1:
            blocks.append([first])
        blocks[-1].append(column)
    return blocks


def _head(block: Sequence[_Sized]) -> list[str]:
    """Return the heads as lines; those that were folded end on the line of the others."""
    deepest = max(len(column.head) for column in block)
    return _row(block, [[""] * (deepest - len(column.head)) + column.head for column in block])


def _rows(block: Sequence[_Sized]) -> list[list[str]]:
    return [_row(block, cells) for cells in zip(*(column.cells for column in block), strict=True)]


def _row(block: Sequence[_Sized], cells: Sequence[list[str]]) -> list[str]:
    deepest = max(map(len, cells))
    full = [[*lines, *[""] * (deepest - len(lines))] for lines in cells]
    return [
        (" " * _GAP).join(column.line(lines[number]) for column, lines in zip(block, full, strict=True))
        for number in range(deepest)
    ]


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


def _below(first: Column, remarks: Sequence[str], room: int) -> list[str]:
    """Return each remark once, after the rows that have it."""
    about: dict[str, list[str]] = {}
    for name, remark in zip(first.cells, remarks, strict=True):
        if remark:
            about.setdefault(remark, []).append(name)
    told = (
        f"{first.head}{'s' if len(names) > 1 else ''} {_ranges(names)}: {remark}" for remark, names in about.items()
    )
    return [line for text in told for line in textwrap.wrap(text, room, subsequent_indent="  ", break_on_hyphens=False)]


def _ranges(names: Sequence[str]) -> str:
    """Return numbers with those that follow each other as one range.

    >>> _ranges(["2", "5", "6", "7", "9", "10"])
    '2, 5 to 7, 9, 10'
    """
    runs: list[list[str]] = []
    for name in names:
        if runs and int(name) == int(runs[-1][-1]) + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)
