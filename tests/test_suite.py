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


def test_workflow_runs_every_part() -> None:
    ran = re.findall(r"run: make (\S+)$", (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"), re.MULTILINE)
    assert {"lint", *selections()} <= set(ran)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert set(ran) <= set(targets)


def test_oldest_versions_are_those_that_the_project_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = [
        *project["dependencies"],
        *(line for name in ("plot", "report", "learn", "spark", "test") for line in extras[name]),
    ]
    allowed = dict(line.split(">=") for line in named if not line.startswith("posbias"))
    lines = (ROOT / "constraints-oldest.txt").read_text("utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {name.lower() for name in allowed} == {name.lower() for name in tested}
    for name, version in tested.items():
        least = next(least for other, least in allowed.items() if other.lower() == name.lower())
        assert version.removesuffix(".0").removesuffix(".0") == least.removesuffix(".0").removesuffix(".0"), name
