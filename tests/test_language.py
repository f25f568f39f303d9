"""Names, messages and docstrings use plain words: those of docs/glossary.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT

# Write instead: reported, not tested, summary, compared curve, ranker pair, residual, synthetic harvest, new ranker.
WORDS = re.compile(
    r"""\b(
      told | untold | briefs? | newcomers? | twins? | contests? | foretold | foreseen | bespoke | surprises? | whoever
    )\b
    | \b(hangs?\ on | speaks?\ against | as\ good\ as | of\ none\ of\ them | cannot\ be\ told | (is|are)\ said\ to)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)
FILES = sorted(
    path
    for folder in ("src", "docs")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md", ".html", ".js", ".css")
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_use_plain_words(path: Path) -> None:
    lines = enumerate(path.read_text("utf-8").splitlines(), 1)
    assert [f"{number}: {line.strip()}" for number, line in lines if WORDS.search(line.replace("_", " "))] == []


@pytest.mark.parametrize("line", ["what it told", "_told(x)", "two_twins", "Hangs on rank 2", "untold = 3"])
def test_words_are_found_in_sentences_and_in_names(line: str) -> None:
    assert WORDS.search(line.replace("_", " "))
