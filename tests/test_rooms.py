"""Imports point to the left: what comes earlier in the flow knows nothing of what comes later."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

SOURCE = ROOT / "src"
# The flow. What knows no room stands before it; simulation beside it knows only that there are logs.
ROOMS = ["logs", "sql", "engines", "harvesting", "curves", "estimators", "judging", "learning"]
KNOWS = {room: {*ROOMS[: place + 1]} for place, room in enumerate(ROOMS)}
# Planning stands beside judging: before any data it looks at simulated logs.
KNOWS |= {"simulation": {"logs", "simulation"}, "planning": {*ROOMS[:6], "simulation", "planning"}}
KNOWS |= {"plots": {*ROOMS, "planning", "plots"}}
KNOWS |= {"reporting": {*ROOMS, "planning", "plots", "reporting"}}


def imports(text: str) -> Iterator[str]:
    """Yield the full names that a module imports anywhere in it: at its top, in functions and for types alone."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong(text: str, room: str) -> list[str]:
    """Return the imports of a module in a room that point to the right."""
    ours = [name.split(".")[1] for name in imports(text) if name.startswith("posbias.")]
    return sorted({to for to in ours if to in {*KNOWS, "cli"} and to not in KNOWS.get(room, set())})


MODULES = sorted((SOURCE / "posbias").rglob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_left(module: Path) -> None:
    room = module.relative_to(SOURCE / "posbias").parts[0]
    # The package itself, its modules of objectives and for testing, and the command tie everything together.
    if room in ("__init__.py", "__main__.py", "objectives.py", "testing.py", "cli"):
        return
    assert wrong(module.read_text(), room) == []


@pytest.mark.parametrize(
    "line",
    [
        "from posbias.engines import OpenLog",
        "def f():\n    from posbias.engines.duckdb import DuckDB",
        "if TYPE_CHECKING:\n    import posbias.engines.base",
        "from posbias import engines",
    ],
)
def test_an_import_to_the_right_is_found_wherever_it_stands(line: str) -> None:
    assert wrong(line, "sql") == ["engines"]
    assert wrong(line, "errors.py") == ["engines"]
    assert wrong(line, "harvesting") == []


def test_estimators_see_values_never_queries_or_engines() -> None:
    for module in (SOURCE / "posbias" / "estimators").rglob("*.py"):
        seen = {name.split(".")[1] for name in imports(module.read_text()) if name.startswith("posbias.")}
        assert not seen & {"sql", "engines"}, module.name


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module but its docstrings."""
    told = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value


def test_messages_below_the_command_spell_no_flags() -> None:
    for module in MODULES:
        if "cli" not in module.relative_to(SOURCE).parts:
            found = [text for text in texts(ast.parse(module.read_text())) if re.search(r"(^|[\s(])--[a-z]", text)]
            assert found == [], module
