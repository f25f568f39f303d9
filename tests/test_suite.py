"""The parts of the suite: each test is run by `make test` or by `make test-servers`, and by one of them only."""

from __future__ import annotations

import itertools
import re
import tomllib

from tests.support import ROOT


def selections() -> dict[str, str]:
    """Return the marks that each target of the Makefile selects."""
    rules = (ROOT / "Makefile").read_text("utf-8")
    return dict(re.findall(r'^([\w-]+): (?:setup|\$\(TEST\)).*\n\t\$\(PYTEST\) -m "(.+)"$', rules, re.MULTILINE))


def test_every_test_is_in_one_part() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    marks = [mark.split(":")[0] for mark in settings["markers"]]
    assert list(selections()) == ["test", "test-servers"]
    for values in itertools.product([False, True], repeat=len(marks)):
        marked = dict(zip(marks, values, strict=True))
        parts = [part for part, selects in selections().items() if eval(selects, marked)]
        assert parts == ["test-servers" if any(values) else "test"]


def test_ci_runs_every_part() -> None:
    ran = re.findall(r"^make (\S+)$", (ROOT / ".ci" / "run").read_text("utf-8"), re.MULTILINE)
    assert ran == ["lint", *selections(), "site"]
