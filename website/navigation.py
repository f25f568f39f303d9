"""The menu of the website: the pages in the table of docs/README.md by section. Pages without a section are guides."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from website.places import DOCS, places

Menu = list[dict[str, "str | Menu"]]

_SECTIONS: dict[str, Sequence[str]] = {
    "Tutorial": ["tutorial.md"],
    "Guides": [],
    "Reference": ["cli.md", "findings.md", "glossary.md", "harvest_file.md"],
    "Theory": ["theory.md"],
    "Reproduction": ["reproduction.md"],
    "Questions": ["questions.md"],
}
_PROJECT = {
    "Contributing": "contributing.md",
    "Changes": "changelog.md",
    "Benchmarks": "benchmarks/results.md",
    "Costs measured": "benchmarks/scale.md",
    "All pages": "contents.md",
    "Licence": "license.md",
}


def titles() -> dict[str, str]:
    """Return the title of each page of docs/, in the order of the table in docs/README.md."""
    table, _, _ = (DOCS / "README.md").read_text("utf-8").partition("## Names in Python")
    return {page: title for title, page in re.findall(r"^\| \[([^]]+)\]\((\w+\.md)\) \|", table, re.MULTILINE)}


def menu(reference: Mapping[str, str], examples: Mapping[str, str]) -> Menu:
    """Return the sections of the menu, each a page or a list of pages.

    Arguments:
        reference: the titles of the generated pages.
        examples: the titles of the notebooks and scripts.
    """
    page_titles = titles()
    taken = {page for pages in _SECTIONS.values() for page in pages}
    sections = {section: {page: page_titles[page] for page in pages} for section, pages in _SECTIONS.items()}
    sections["Tutorial"] |= examples
    sections["Guides"] = {page: title for page, title in page_titles.items() if page not in taken}
    sections["Reference"] = {**reference, **sections["Reference"]}
    whole: Menu = [{"Home": places()["README.md"]}]
    for section, pages in sections.items():
        whole.append(
            {section: next(iter(pages)) if len(pages) == 1 else [{name: page} for page, name in pages.items()]}
        )
    return [*whole, {"Project": [{title: page} for title, page in _PROJECT.items()]}]


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
