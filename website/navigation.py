"""The menu of the website: the sections of docs/README.md, each with the pages of its table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from website.places import DOCS, places

Menu = list[dict[str, "str | Menu"]]

_PROJECT = {
    "Contributing": "contributing.md",
    "Changes": "changelog.md",
    "Benchmarks": "benchmarks/results.md",
    "Costs measured": "benchmarks/scale.md",
    "All pages": "contents.md",
    "Licence": "license.md",
}


def sections() -> dict[str, dict[str, str]]:
    """Return the pages of each section of docs/README.md with their titles, in the order of its tables."""
    index, _, _ = (DOCS / "README.md").read_text("utf-8").partition("## Names in Python")
    return {
        title.strip(): {
            page: name for name, page in re.findall(r"^\| \[([^]]+)\]\((\w+\.md)\) \|", table, re.MULTILINE)
        }
        for title, table in re.findall(r"^## (.+)\n([^#]*)", index, re.MULTILINE)
    }


def menu(reference: Mapping[str, str], examples: Mapping[str, str]) -> Menu:
    """Return the sections of the menu, each a list of pages.

    Arguments:
        reference: the titles of the generated pages.
        examples: the titles of the notebooks and scripts.
    """
    pages = sections()
    pages["How-to"] |= examples
    pages["Reference"] = {**reference, **pages["Reference"]}
    listed: Menu = [{title: [{name: page} for page, name in found.items()]} for title, found in pages.items()]
    return [{"Home": places()["README.md"]}, *listed, {"Project": [{title: page} for title, page in _PROJECT.items()]}]


def as_toml(value: str | Menu) -> str:
    """Return a menu as TOML on one line.

    >>> as_toml([{"Home": "index.md"}, {"Guides": [{"The log": "log.md"}]}])
    '[{ "Home" = "index.md" }, { "Guides" = [{ "The log" = "log.md" }] }]'
    """
    if isinstance(value, str):
        # TOML understands the escape sequences of JSON.
        return json.dumps(value, ensure_ascii=False)
    entries = [f"{{ {as_toml(title)} = {as_toml(inner)} }}" for entry in value for title, inner in entry.items()]
    return f"[{', '.join(entries)}]"
