"""Words from files and logs: no two segments look alike, no terminal obeys them, JSON stays JSON."""

from __future__ import annotations

import itertools
import json
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posbias import _text
from posbias._text import json_text, label, printable
from posbias.cli import cli
from posbias.cli.options import as_flags, flag_name


@given(st.lists(st.lists(st.none() | st.text(alphabet='a,"\\ nul\x1bx1b\n', max_size=6), min_size=2, max_size=2)))
def test_labels_tell_segments_apart(keys: list[list[str | None]]) -> None:
    for one, other in itertools.combinations(keys, 2):
        assert (label(one) == label(other)) == (one == other)


def test_labels_that_leave_no_mark_are_seen() -> None:
    for unseen in ("\u200b", "\ufeff", "\u2060", "\u3164", "\u2800", "\u200d", "\u200c\u200c", "\xad"):
        assert label([unseen]).isascii()
        assert len(label([unseen])) > 5
        assert label([f"phone{unseen}"]) != "phone"
    assert label(["phone\u200b"]) == r'"phone\u200b"'
    # Joiners are how these are written.
    for word in ("\U0001f469\u200d\U0001f52c", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u2764\ufe0f"):
        assert label([word]) == word


def test_a_terminal_obeys_nothing() -> None:
    assert set(printable("".join(map(chr, range(0x2100))))).isdisjoint("\x00\x1b\x7f\x85\x9b\u2028\u202e\u2066")
    assert printable("one\ntwo") == r"one\ntwo"
    assert printable("Café, 日本語, עברית — ½\\x1b") == "Café, 日本語, עברית — ½\\x1b"
    assert printable("\ud800") == "\\ud800"


values = st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text()


@given(st.recursive(values, st.lists))
def test_json_for_people_is_json(value: Any) -> None:
    for encoding in ("utf-8", "ascii"):
        text = json_text({"value": value}, encoding)
        assert json.loads(text) == {"value": value}
        assert not set(text) & set("\x7f\x85\x9b\u202e\u2028")
        text.encode(encoding)


def test_rows_of_numbers_stand_on_one_line() -> None:
    assert json_text({"a": [[], [1], [-1e-05, None, True], ["[\n1\n]", 2], {}]}) == (
        '{\n  "a": [\n    [],\n    [1],\n    [-1e-05, null, true],\n'
        '    [\n      "[\\n1\\n]",\n      2\n    ],\n    {}\n  ]\n}'
    )


def test_every_argument_that_messages_name_is_a_flag_of_a_command() -> None:
    context = click.Context(cli)
    commands = [cli.get_command(context, name) for name in cli.list_commands(context)]
    flags = {flag for command in commands if command for option in command.params for flag in option.opts}
    names = _text._ARGUMENTS.split("|")
    # An interval is chosen in Python only.
    assert {flag_name(name) for name in names} - flags <= {"--interval"}


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("Name that column (query).", "Name that column (--query)."),
        ("Use non_functional='refuse', or rows=True.", "Use --non-functional refuse, or --rows."),
        ("A rank_{ranker} column, ranks='rank_{ranker}'.", "A rank_{ranker} column, --ranks 'rank_{ranker}'."),
        ("The word (other) stays, and so does f(query).", "The word (other) stays, and so does f(query)."),
    ],
)
def test_arguments_in_messages_are_spelled_for_the_reader(text: str, flags: str) -> None:
    assert _text.spelled(text, as_flags) == flags
    assert _text.spelled(text, _text.as_python) == text
