"""Test that no public name, argument or flag changes without a line in the changelog.

tests/support/public_names.txt has them as they were. After a change, add a line to the newest section of CHANGELOG.md
that names what changed, and write the file again:

    python -m tests.test_public_names --update
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest

import posbias
from posbias.cli import cli
from tests.support import ROOT

KEPT = ROOT / "tests" / "support" / "public_names.txt"
CHANGELOG = ROOT / "CHANGELOG.md"


def public_names() -> list[str]:
    """Return a line for each public function, method, attribute and flag."""
    return sorted({*_python_names(), *_flags()})


def _python_names() -> Iterator[str]:
    for name in posbias.__all__:
        value = getattr(posbias, name)
        if inspect.ismodule(value):
            for inner in getattr(value, "__all__", [n for n in vars(value) if not n.startswith("_")]):
                if getattr(member := getattr(value, inner), "__module__", "").startswith("posbias"):
                    yield from _describe(f"posbias.{name}.{inner}", member)
        elif name != "__version__":
            yield from _describe(f"posbias.{name}", value)


def _describe(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield name + _arguments(value)
        return
    yield name + (_arguments(value) if not issubclass(value, Exception) else "")
    for inner in dir(value):
        member = inspect.getattr_static(value, inner)
        # What is inherited from the standard library, as by exceptions and dictionaries, is not ours.
        if inner.startswith("_") or not _is_ours(value, inner):
            continue
        if isinstance(member, classmethod | staticmethod):
            yield f"{name}.{inner}{_arguments(member.__func__)}"
        elif inspect.isfunction(member):
            yield f"{name}.{inner}{_arguments(member)}"
        else:
            yield f"{name}.{inner}"


def _is_ours(class_: type, name: str) -> bool:
    return any(name in vars(base) for base in class_.__mro__ if base.__module__.startswith("posbias"))


def _arguments(function: Any) -> str:
    """Return the names of the arguments with their defaults; values that print an address are left out."""
    if not callable(function):
        return ""
    shown = []
    for parameter in inspect.signature(function).parameters.values():
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "") + parameter.name
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        if parameter.default is not parameter.empty:
            default = repr(parameter.default)
            text += "=…" if " at 0x" in default else f"={default}"
        shown.append(text)
    return f"({', '.join(shown)})"


def _flags() -> Iterator[str]:
    yield from _command_flags("posbias", cli)


def _command_flags(name: str, command: click.Command) -> Iterator[str]:
    yield name
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _command_flags(f"{name} {inner}", found)
    for parameter in command.params:
        flags = ", ".join([*parameter.opts, *parameter.secondary_opts])
        yield f"{name} {flags if isinstance(parameter, click.Option) else flags.upper()}"


def newest_section() -> str:
    """Return the newest section of the changelog."""
    return re.split(r"^## ", CHANGELOG.read_text("utf-8"), flags=re.MULTILINE)[1]


def short_name(line: str) -> str:
    """Return what the changelog must contain about a line: its last name or flag.

    >>> short_name("posbias.Harvest.load(path, *, force=False)"), short_name("posbias check --max-rank, -m")
    ('load', '--max-rank')
    """
    if line.startswith("posbias "):
        return line.split(", ")[0].split(" ")[-1]
    return line.partition("(")[0].split(".")[-1]


def unmentioned(changed: list[str], changelog: str) -> list[str]:
    """Return the changed lines that the changelog does not mention."""
    return [line for line in changed if not re.search(rf"(?<!\w){re.escape(short_name(line))}(?!\w)", changelog)]


def changed_lines() -> list[str]:
    """Return the lines that are new, gone or different."""
    return sorted({*public_names()} ^ {*KEPT.read_text("utf-8").splitlines()})


def test_public_names_are_those_of_the_file() -> None:
    changed = changed_lines()
    what_to_do = (
        "Public names changed. Add a line to CHANGELOG.md, then run python -m tests.test_public_names --update:"
    )
    assert not changed, "\n".join([what_to_do, *changed])


@pytest.mark.parametrize(
    ("line", "said", "enough"),
    [
        ("posbias.Harvest.load(path)", "- `Harvest.load` takes a path.", True),
        ("posbias.Harvest.load(path)", "- Harvests are downloaded.", False),
        ("posbias check --max-rank", "- `check --max-rank` counts fewer ranks.", True),
        ("posbias check --max-rank", "- `check --max-ranks` is new.", False),
    ],
)
def test_a_change_must_be_in_the_changelog(line: str, said: str, enough: bool) -> None:
    assert (unmentioned([line], said) == []) is enough


def test_the_file_has_arguments_methods_and_flags() -> None:
    kept = KEPT.read_text("utf-8")
    assert re.search(r"^posbias\.CrossFit\(.*level=0\.95", kept, re.MULTILINE)
    assert re.search(r"^posbias\.Harvest\.save\(self, path\)$", kept, re.MULTILINE)
    assert re.search(r"^posbias history show ", kept, re.MULTILINE)


def main() -> None:
    missing = unmentioned(changed_lines(), newest_section()) if KEPT.exists() else []
    if missing:
        sys.exit("\n".join(["The newest section of CHANGELOG.md does not mention:", *missing]))
    KEPT.write_text("\n".join(public_names()) + "\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit("usage: python -m tests.test_public_names --update")
    main()
