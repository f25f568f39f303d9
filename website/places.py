"""Map files of the repository to pages of the website, and links between files to links between pages."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# Pages from files outside docs/. The first is the home page.
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
# A link or image (its text is not changed), a heading (not changed), an HTML source, or a code span (perhaps a public
# name).
_TARGET = re.compile(
    r"(?P<link>!?\[(?:[^][`]|`[^`]*`)*\]\((?P<to>[^)\s]+)\))|(?P<heading>^#.*$)|(?P<tag>(?<=src=\")[^\"]+)"
    r"|`(?P<code>[^`]+)`",
    re.MULTILINE,
)


class PlaceError(Exception):
    """A link has no target in the website."""


def places() -> dict[str, str]:
    """Return the page of each file of the repository that has one."""
    found = {f"docs/{page.name}": page.name for page in sorted(DOCS.glob("*.md"))} | _OTHERS
    for example in sorted((ROOT / "examples").iterdir()):
        if example.suffix in (".py", ".ipynb"):
            found[f"examples/{example.name}"] = f"examples/{example.stem}.md"
    return found


def convert_links(text: str, source: str, page: str, names: Mapping[str, str], beside: Collection[str] = ()) -> str:
    """Return a page whose links lead to pages, and whose names in code are linked to the reference.

    Arguments:
        text: the Markdown text.
        source: the file of the text; its links are relative to it.
        page: the page of the website.
        names: where each public name is described, such as {"posbias.check": "reference/judging.md#check"}.
        beside: the files in the same folder as the page.
    """
    known = places()

    def replace(found: re.Match[str]) -> str:
        target = found["to"] or found["tag"]
        if target and target not in beside:
            return found[0].replace(target, _convert_link(target, source, page, known))
        if found["code"] in names:
            return f"[{found[0]}]({_between(page, names[found['code']])})"
        return found[0]

    # Every second part is a code block.
    parts = _FENCE.split(text)
    return "".join(part if place % 2 else _TARGET.sub(replace, part) for place, part in enumerate(parts))


def _convert_link(target: str, source: str, page: str, known: Mapping[str, str]) -> str:
    """Return a link of a source file as a link of its page."""
    path, mark, anchor = target.partition("#")
    if not path or path.startswith(("http://", "https://")):
        return target
    meant = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if meant in known:
        return _between(page, known[meant]) + mark + anchor
    if meant.startswith("docs/images/") and (ROOT / meant).is_file():
        return _between(page, meant.removeprefix("docs/"))
    raise PlaceError(f"{source} links to {target}, which is not a page of the website.")


def _between(page: str, target: str) -> str:
    path, mark, anchor = target.partition("#")
    return posixpath.relpath(path, posixpath.dirname(page) or ".") + mark + anchor
