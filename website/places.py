"""Where each file of the repository lies in the site, and how links between files become links between pages."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# What lies outside docs/ and is a page all the same. The first is the home.
_OTHERS = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "license.md",
    "benchmarks/RESULTS.md": "benchmarks/results.md",
    "benchmarks/SCALE.md": "benchmarks/scale.md",
}
_FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
# A link or a picture, whose text is left alone; a heading, likewise; a code span, which may be a name of ours.
_SPOT = re.compile(
    r"(?P<link>!?\[(?:[^][`]|`[^`]*`)*\]\((?P<to>[^)\s]+)\))|(?P<heading>^#.*$)|(?P<tag>(?<=src=\")[^\"]+)"
    r"|`(?P<code>[^`]+)`",
    re.MULTILINE,
)


class PlaceError(Exception):
    """A link that leads to nothing in the site."""


def places() -> dict[str, str]:
    """Return the page of each file of the repository that is one."""
    found = {f"docs/{page.name}": page.name for page in sorted(DOCS.glob("*.md"))} | _OTHERS
    for example in sorted((ROOT / "examples").iterdir()):
        if example.suffix in (".py", ".ipynb"):
            found[f"examples/{example.name}"] = f"examples/{example.stem}.md"
    return found


def woven(text: str, source: str, page: str, names: Mapping[str, str], beside: Collection[str] = ()) -> str:
    """Return a page with the links of its source led to pages, and names in code linked to where they are described.

    Arguments:
        text: Markdown.
        source: the file it is from, by which its links are meant.
        page: the page it becomes.
        names: where each name is described, such as {"posbias.check": "reference/judging.md#check"}.
        beside: the files that lie beside the page.
    """
    known = places()

    def spot(found: re.Match[str]) -> str:
        target = found["to"] or found["tag"]
        if target and target not in beside:
            return found[0].replace(target, _led(target, source, page, known))
        if found["code"] in names:
            return f"[{found[0]}]({_between(page, names[found['code']])})"
        return found[0]

    # Every other part is a block of code.
    parts = _FENCE.split(text)
    return "".join(part if place % 2 else _SPOT.sub(spot, part) for place, part in enumerate(parts))


def _led(target: str, source: str, page: str, known: Mapping[str, str]) -> str:
    """Return a link of a source as one of its page."""
    path, mark, anchor = target.partition("#")
    if not path or path.startswith(("http://", "https://")):
        return target
    meant = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if meant in known:
        return _between(page, known[meant]) + mark + anchor
    if meant.startswith("docs/images/") and (ROOT / meant).is_file():
        return _between(page, meant.removeprefix("docs/"))
    raise PlaceError(f"{source} links to {target}, which is no page of the site.")


def _between(page: str, target: str) -> str:
    path, mark, anchor = target.partition("#")
    return posixpath.relpath(path, posixpath.dirname(page) or ".") + mark + anchor
