"""The API reference: every public name with its signature and docstring, one page for each subpackage."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, is_dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import posbias
from website.docstrings import as_markdown, summary

# Subpackages in the order of the workflow with their page titles; others come last, under their own names.
_TITLES = {
    "logs": "Logs",
    "engines": "Engines",
    "harvesting": "Harvests",
    "estimators": "Estimators",
    "curves": "Curves",
    "judging": "Checks, diagnoses, comparisons",
    "planning": "Plans",
    "plots": "Pictures",
    "reporting": "Reports",
    "learning": "Learning",
    "simulation": "Simulation",
    "errors": "Errors and findings",
}
_WIDTH = 88
FOLDER = "reference"


@dataclass(frozen=True)
class Entry:
    """A class or function of the reference: its public name, or the reason why it is listed."""

    what: Any
    path: str = ""
    because: str = ""

    @property
    def name(self) -> str:
        """Its name within `posbias`."""
        return self.path.removeprefix("posbias.") or str(self.what.__name__)

    @property
    def room(self) -> str:
        """The subpackage of the public name, or of the definition; `errors` for errors and findings."""
        room = self.name.split(".")[0] if "." in self.name else str(self.what.__module__).split(".")[1]
        return room if hasattr(import_module(f"posbias.{room}"), "__path__") else "errors"

    @property
    def link(self) -> str:
        """The page and anchor. Anchors are case-sensitive: `harvest` and `Harvest` are two names."""
        return f"{FOLDER}/{self.room}.md#{self.name}"


def entries(index: str) -> list[Entry]:
    """Return the entries of the reference, in the order of the index of names.

    After each public name come the classes that it returns and contains. Base classes come last.
    """
    public = _public(index)
    found: dict[Any, Entry] = {}
    for path, what in public.items():
        found.setdefault(what, Entry(what, path))
        for other, because in _related(what, path):
            if other not in public.values():
                found.setdefault(other, Entry(other, because=because))
    for what in public.values():
        for base in what.__mro__[1:] if inspect.isclass(what) else ():
            if base.__module__.startswith("posbias."):
                found.setdefault(base, Entry(base, because=f"The base of `{what.__name__}` and others."))
    return list(found.values())


def _public(index: str) -> dict[str, Any]:
    """Return the classes and functions in the index and in the modules of the index, then all other public names."""
    found: dict[str, Any] = {}
    paths = [*re.findall(r"`(posbias(?:\.\w+)+)`", index), *(f"posbias.{name}" for name in posbias.__all__)]
    for path in paths:
        what = _named(path)
        inner = getattr(what, "__all__", []) if inspect.ismodule(what) else []
        for full, each in {path: what, **{f"{path}.{name}": getattr(what, name) for name in inner}}.items():
            if inspect.isclass(each) or inspect.isroutine(each):
                found.setdefault(full, each)
    return found


def _named(path: str) -> Any:
    """Return the object with a dotted name."""
    what: Any = posbias
    for name in path.split(".")[1:]:
        if inspect.ismodule(what) and not hasattr(what, name):
            import_module(f"{what.__name__}.{name}")
        what = getattr(what, name)
    return what


def pages(index: str) -> dict[str, tuple[str, str]]:
    """Return the pages of the reference by path with title and text; the index is first."""
    listed = entries(index)
    rooms = {room: [entry for entry in listed if entry.room == room] for room in (*_TITLES, *(e.room for e in listed))}
    texts = {
        f"{FOLDER}/{room}.md": (title, f"# {title}\n\n{_lead(room)}\n\n" + "\n\n".join(map(_described, members)) + "\n")
        for room, members in rooms.items()
        if members and (title := _title(room))
    }
    return {f"{FOLDER}/index.md": ("Names in Python", _index(rooms)), **texts}


def _lead(room: str) -> str:
    module = import_module(f"posbias.{room}")
    return summary(module.__doc__ or "")


def _index(rooms: dict[str, list[Entry]]) -> str:
    parts = ["# Names in Python", "Everything that `import posbias` brings, from its docstrings."]
    for room, members in rooms.items():
        rows = [f"| `{entry.path}` | {_cell(summary(entry.what.__doc__))} |" for entry in members if entry.path]
        if rows:
            parts += [f"## {_title(room)}", "\n".join(["| name | what it is |", "| --- | --- |", *rows])]
    return "\n\n".join(parts) + "\n"


def _title(room: str) -> str:
    return _TITLES.get(room, room.capitalize())


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _related(what: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Yield the classes that a function returns, and the classes of the attributes of these values, with the reason."""
    waiting = [what] if inspect.isclass(what) else []
    if not waiting:
        waiting = _classes(what.__annotations__.get("return", ""), what.__globals__)
        yield from ((given, f"Returned by `{path}`.") for given in waiting)
    met = set(waiting)
    while waiting:
        holder = waiting.pop(0)
        for annotation in inspect.get_annotations(holder).values():
            new = [held for held in _classes(annotation, vars(sys.modules[holder.__module__])) if held not in met]
            yield from ((held, f"Held by `{holder.__name__}`.") for held in new)
            met.update(new)
            waiting += new


def _classes(annotation: Any, names: dict[str, Any]) -> list[Any]:
    """Return the documented value classes of posbias in an annotation."""
    found = [names.get(word) for word in re.findall(r"\b[A-Z]\w+", str(annotation))]
    return [
        each
        for each in found
        if inspect.isclass(each) and each.__module__.startswith("posbias.") and each.__doc__ and _is_value(each)
    ]


def _is_value(what: Any) -> bool:
    return is_dataclass(what) or issubclass(what, tuple)


def _described(entry: Entry) -> str:
    what = entry.what
    room = f"posbias.{entry.room}"
    brought = entry.name in getattr(import_module(room), "__all__", [])
    path = entry.path or f"{room if brought else what.__module__}.{entry.name}"
    parts = [f"## {entry.name} {{ #{entry.name} }}", entry.because]
    if not _is_error(what):
        parts.append(_signature(path, what))
    parts.append(as_markdown(what.__doc__ or ""))
    if inspect.isclass(what):
        parts += [_member(what, name, member) for name, member in _members(what)]
    return "\n\n".join(part for part in parts if part)


def _is_error(what: Any) -> bool:
    """Return whether a class is an exception: users catch it and never create it."""
    return inspect.isclass(what) and issubclass(what, Exception)


def _members(what: Any) -> Iterator[tuple[str, Any]]:
    """Yield the documented public methods and properties that a class adds to its base classes."""
    for name, member in vars(what).items():
        inner = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        kind = inspect.isfunction(inner) or isinstance(inner, property | cached_property)
        inherited = any(name in vars(base) for base in what.__mro__[1:])
        if kind and not name.startswith("_") and not inherited and inspect.getdoc(inner):
            yield name, inner


def _member(what: Any, name: str, member: Any) -> str:
    parts = [f"### {what.__name__}.{name} {{ #{what.__name__}.{name} }}"]
    if inspect.isfunction(member):
        parts.append(_signature(f"{what.__name__}.{name}", member, bound=True))
    return "\n\n".join([*parts, as_markdown(inspect.getdoc(member) or "")])


def _signature(path: str, what: Callable[..., Any], *, bound: bool = False) -> str:
    """Return a signature, on one line or, if that is too long, with one line for each argument."""
    signature = inspect.signature(what)
    fields: dict[str, Field[Any]] = getattr(what, "__dataclass_fields__", {})
    arguments: list[str] = []
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    for place, (name, parameter) in enumerate(signature.parameters.items()):
        if bound and place == 0:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.VAR_POSITIONAL not in kinds and "*" not in arguments:
            arguments.append("*")
        arguments.append(_parameter(name, parameter, fields.get(name)))
    result = signature.return_annotation
    ending = f" -> {result}" if result not in (inspect.Signature.empty, "None", None) else ""
    line = f"{path}({', '.join(arguments)}){ending}"
    if len(line) > _WIDTH:
        line = "\n".join([f"{path}(", *(f"    {argument}," for argument in arguments), f"){ending}"])
    return f"```python\n{line}\n```"


def _parameter(name: str, parameter: inspect.Parameter, field: Field[Any] | None) -> str:
    text = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "") + name
    if parameter.annotation is not parameter.empty:
        text += f": {parameter.annotation}"
    default = parameter.default
    if field is not None and field.default_factory is not MISSING:
        default = field.default_factory()
    if default is parameter.empty:
        return text
    return f"{text} = {default.__name__}" if inspect.isroutine(default) else f"{text} = {default!r}"
