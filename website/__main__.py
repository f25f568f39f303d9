"""Build the website: write the pages to build/pages and build build/site from them; any warning is an error."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from website import reference
from website.formulas import FormulaError, convert_formulas
from website.navigation import as_toml, menu
from website.notebooks import as_page
from website.places import DOCS, ROOT, PlaceError, convert_links, places

BUILD = ROOT / "build"
HERE = Path(__file__).parent


def write_pages(folder: Path) -> str:
    """Write every page and image of the website to a folder, and return the settings of Zensical."""
    index = (DOCS / "README.md").read_text("utf-8")
    reference_pages = reference.pages(index)
    names = {entry.path: entry.link for entry in reference.entries(index) if entry.path}
    examples: dict[str, str] = {}
    shutil.copytree(DOCS / "images", folder / "images")
    for name in ("look.css", "iframe-worker.js"):
        shutil.copy(HERE / name, folder)
    for source, page in places().items():
        text, files = _read(ROOT / source)
        if source.startswith("examples/"):
            examples[page] = text.split("\n", 1)[0].removeprefix("# ").partition(":")[0]
        linked = convert_links(text, source, page, names, files)
        # Notebooks and scripts have no formulas, but may print dollars.
        _write(folder / page, linked if source.startswith("examples/") else convert_formulas(linked))
        for name, content in files.items():
            (folder / page).with_name(name).write_bytes(content)
    for page, (_, text) in reference_pages.items():
        _write(folder / page, convert_links(text, page, page, names))
    titles = {page: title for page, (title, _) in reference_pages.items()}
    first, rest = (HERE / "zensical.toml").read_text("utf-8").split("[project]\n", 1)
    return f"{first}[project]\nnav = {as_toml(menu(titles, examples))}\n{rest}"


def _read(source: Path) -> tuple[str, Mapping[str, bytes]]:
    """Return a file as Markdown, and the files that its page needs."""
    if source.suffix == ".ipynb":
        text, pictures = as_page(source)
        return text, {**pictures, source.name: source.read_bytes()}
    text = source.read_text("utf-8")
    if source.suffix == ".md":
        return text, {}
    title = f"{source.stem.replace('_', ' ').capitalize()} (script)" if source.suffix else "Licence"
    return f"# {title}\n\n```{'python' if source.suffix == '.py' else 'text'}\n{text.rstrip()}\n```\n", {}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def external_resources(page: str) -> list[str]:
    """Return the URLs that an HTML page would load from another host, apart from links to follow.

    >>> external_resources('<a href="https://a.org/">a</a> <script src="https://b.org/c.js"></script>')
    ['https://b.org/c.js']
    """
    tags = re.findall(r"<(?!a\b)\w+\b[^>]*>", page)
    return [found for tag in tags for found in re.findall(r"""(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""", tag)]


def main() -> int:
    """Build the website; return 0 if there are no warnings and no page loads external resources."""
    for name in ("pages", "site"):
        shutil.rmtree(BUILD / name, ignore_errors=True)
    try:
        settings = write_pages(BUILD / "pages")
    except (PlaceError, FormulaError) as error:
        print(error, file=sys.stderr)
        return 1
    (BUILD / "zensical.toml").write_text(settings, "utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", "zensical.toml"]
    if code := subprocess.run(command, cwd=BUILD).returncode:
        return code
    pages = sorted((BUILD / "site").rglob("*.html"))
    if foreign := {url for page in pages for url in external_resources(page.read_text("utf-8"))}:
        print(
            f"Pages load external resources: {', '.join(sorted(foreign))}. Copy them into the website instead.",
            file=sys.stderr,
        )
        return 1
    print(f"{len(pages)} pages in build/site: open build/site/index.html in a browser.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
