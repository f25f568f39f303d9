"""Test the pages of the website before Zensical builds them: complete, in the menu, and linked."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

import posbias
from website import navigation, reference
from website.__main__ import external_resources, write_pages
from website.formulas import FormulaError, convert_formulas, mathml
from website.places import ROOT, PlaceError, convert_links, places

Pages = dict[str, str]
INDEX = (ROOT / "docs" / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with every page, and the settings to build it with."""
    folder = tmp_path_factory.mktemp("site") / "pages"
    return folder, write_pages(folder)


@pytest.fixture(scope="module")
def pages(site: tuple[Path, str]) -> Pages:
    folder, _ = site
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.md")}


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def leaves(menu: navigation.Menu) -> Iterator[str]:
    for entry in menu:
        for inner in entry.values():
            if isinstance(inner, str):
                yield inner
            else:
                yield from leaves(inner)


def menu_of(settings: str) -> navigation.Menu:
    menu: navigation.Menu = tomllib.loads(settings)["project"]["nav"]
    return menu


def test_menu_has_exactly_the_pages(site: tuple[Path, str], pages: Pages) -> None:
    _, settings = site
    listed = list(leaves(menu_of(settings)))
    assert sorted(listed) == sorted(pages)
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= set(listed)


def test_menu_has_the_sections_that_readers_look_for(site: tuple[Path, str]) -> None:
    _, settings = site
    sections = [title for entry in menu_of(settings) for title in entry]
    assert sections == ["Home", "Start", "Concepts", "How-to", "Reference", "Evidence", "Project"]
    guides = next(entry["How-to"] for entry in menu_of(settings) if "How-to" in entry)
    assert not isinstance(guides, str)
    assert {"events.md", "log.md", "nightly.md", "scale.md", "warehouse.md"} <= set(leaves(guides))


def test_new_page_is_in_the_section_of_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    (tmp_path / "README.md").write_text(
        index.replace("\n| [Every night]", "\n| [Flying](flying.md) | how |\n| [Every night]"), "utf-8"
    )
    monkeypatch.setattr(navigation, "DOCS", tmp_path)
    guides = next(entry["How-to"] for entry in navigation.menu({}, {}) if "How-to" in entry)
    assert {"Flying": "flying.md"} in guides


def test_home_has_the_image_and_the_first_example(pages: Pages) -> None:
    home = pages["index.md"]
    assert re.search(r"!\[[^]]+\]\(images/curve\.png\)", home)
    assert home.index("images/curve.png") < home.index("## The first minute in the shell") < home.index("## The log")


def test_links_lead_to_pages_and_files_of_the_website(site: tuple[Path, str], pages: Pages) -> None:
    folder, _ = site
    links = [
        (page, link.partition("#")[0])
        for page, text in pages.items()
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)) + re.findall(r'src="([^"]+)"', prose(text))
        if not link.startswith(("https://", "#"))
    ]
    assert len(links) > 200
    assert [(page, path) for page, path in links if not ((folder / page).parent / path).is_file()] == []


def test_formulas_become_mathml(pages: Pages) -> None:
    found = re.findall(r"<math.*?</math>", pages["intervals.md"])
    assert len(found) > 5
    for formula in found:
        ElementTree.fromstring(formula)
    assert "$$" not in prose(pages["intervals.md"])


def test_no_formula_is_left_as_tex(pages: Pages) -> None:
    left = {
        page: re.findall(r".*\$.*", re.sub(r"`[^`\n]+`", "", prose(text)))
        for page, text in pages.items()
        if not page.startswith(("examples/", "reference/"))
    }
    assert {page: lines for page, lines in left.items() if lines} == {}


@pytest.mark.parametrize(
    ("tex", "inner"),
    [
        (r"\frac{a}{2}", "<mfrac><mrow><mi>a</mi></mrow><mrow><mn>2</mn></mrow></mfrac>"),
        (r"x'_k", "<msub><mrow><mi>x</mi><mo>′</mo></mrow><mi>k</mi></msub>"),
        (r"x_k^2", "<msubsup><mi>x</mi><mi>k</mi><mn>2</mn></msubsup>"),
        (r"\text{a b} < 1.5", "<mtext>a\N{NO-BREAK SPACE}b</mtext><mo>&lt;</mo><mn>1.5</mn>"),
        (r"\hat{c} - \alpha", "<mover><mrow><mi>c</mi></mrow><mo>^</mo></mover><mo>−</mo><mi>α</mi>"),
        (r"\left(x\right)^2", "<msup><mrow><mo>(</mo><mi>x</mi><mo>)</mo></mrow><mn>2</mn></msup>"),
        ("(-1-x", '<mo stretchy="false">(</mo><mo form="prefix">−</mo><mn>1</mn><mo>−</mo><mi>x</mi>'),
        ("f(x)", '<mi>f</mi><mo stretchy="false">(</mo><mi>x</mi><mo stretchy="false">)</mo>'),
    ],
)
def test_tex_is_converted(tex: str, inner: str) -> None:
    assert mathml(tex) == f"<math>{inner}</math>"


@pytest.mark.parametrize("tex", [r"\unknown", "{x", "x_", r"\frac{a}", r"\left(x", r"\left x"])
def test_unknown_or_broken_tex_is_an_error(tex: str) -> None:
    with pytest.raises(FormulaError):
        mathml(tex)


def test_dollars_in_code_and_prices_are_no_formulas() -> None:
    text = "`$x$` costs 5 $ or 6 $\n\n```sh\n$ a $b$\n```\n"
    assert convert_formulas(text) == text


def test_printed_tables_fit_beside_the_menus(pages: Pages) -> None:
    """Lines of more than 100 characters wrap (website/look.css), which would break the columns of a table."""
    code = "\n".join(re.findall(r"^```.*?^```$", "\n".join(pages.values()), flags=re.MULTILINE | re.DOTALL))
    rows = re.findall(r"^ *\d+(?: {2,}\S+){2,}.*$", code, flags=re.MULTILINE)
    assert len(rows) > 100
    assert [row for row in rows if len(row) > 100] == []


def test_every_public_name_is_described_and_linked(pages: Pages) -> None:
    described = {entry.path: entry for entry in reference.entries(INDEX) if entry.path}
    public = {name: getattr(posbias, name) for name in posbias.__all__ if name != "__version__"}
    modules = {name: module for name, module in public.items() if inspect.ismodule(module)}
    names = {f"{name}.{inner}" for name, module in modules.items() for inner in module.__all__}
    assert {f"posbias.{name}" for name in {*public, *names} - {*modules}} <= set(described)
    for path, entry in described.items():
        page, _, anchor = entry.link.partition("#")
        assert f"## {entry.name} {{ #{anchor} }}" in pages[page]
        if path.count(".") == 1:
            assert f"[`{path}`]({entry.link})" in pages["contents.md"]


def test_listed_module_is_described_with_its_public_names() -> None:
    described = {entry.path: entry for entry in reference.entries(INDEX + "`posbias.simulation`") if entry.path}
    assert described["posbias.simulation.TrustBias"].link == "reference/simulation.md#simulation.TrustBias"
    # What has a name of its own is not told twice.
    assert "posbias.World" in described
    assert "posbias.simulation.World" not in described


def test_reference_has_signature_arguments_and_members(pages: Pages) -> None:
    logs = pages["reference/logs.md"]
    assert "posbias.ClickLog(\n    source: Any,\n    query: str = 'query_id',\n" in logs
    assert '- `query` (str, default "query_id"): the column of the query.\n' in logs
    assert "### ClickLog.from_events { #ClickLog.from_events }" in logs
    # What a function returns stands on its page; what an estimator fills in of its base does not stand twice.
    assert "Returned by [`posbias.check`](judging.md#check)." in pages["reference/judging.md"]
    assert "posbias.estimators.PairEstimator(" in pages["reference/estimators.md"]
    assert "### PairEstimator.propensities" in pages["reference/estimators.md"]
    assert "### AllPairs." not in pages["reference/estimators.md"]
    assert "object at 0x" not in "".join(pages.values())
    assert "<factory>" not in "".join(pages.values())


def test_names_are_linked_only_outside_code_and_headings() -> None:
    names = {"posbias.check": "reference/judging.md#check"}
    text = (
        "# `posbias.check`\n\n`posbias.check` [and `posbias.check`](docs/log.md#wide)\n\n```sh\n`posbias.check`\n```\n"
    )
    assert convert_links(text, "README.md", "index.md", names) == (
        "# `posbias.check`\n\n[`posbias.check`](reference/judging.md#check) [and `posbias.check`](log.md#wide)\n\n"
        "```sh\n`posbias.check`\n```\n"
    )
    assert convert_links("[a](../README.md)", "docs/log.md", "reference/x.md", {}) == "[a](../index.md)"


@pytest.mark.parametrize("link", ["docs/none.md", "docs/images/none.png", "src/posbias/__init__.py", "../secret.md"])
def test_link_out_of_the_website_is_rejected(link: str) -> None:
    with pytest.raises(PlaceError, match=r"README\.md links to .*, which is not a page of the website"):
        convert_links(f"[x]({link})", "README.md", "index.md", {})


def test_every_file_has_its_own_page() -> None:
    assert len(set(places().values())) == len(places())
    assert all((ROOT / source).is_file() for source in places())


def test_pages_load_no_external_resources(site: tuple[Path, str]) -> None:
    folder, settings = site
    project = tomllib.loads(settings)["project"]
    assert project["theme"]["font"] is False
    assert all((folder / name).is_file() for name in [*project["extra"]["polyfills"], *project["extra_css"]])
    assert external_resources('<link rel="stylesheet" href="https://a.org/b.css"><img src=//c.org/d.png>') == [
        "https://a.org/b.css",
        "//c.org/d.png",
    ]


ASKING = """<!doctype html><body><script src="iframe-worker.js"></script><script>
const asked = { input: "joint band" }, worker = new Worker("worker.js")
worker.onmessage = event => {
  event.data.found.push("and changed")
  document.body.id = `${asked.input}: ${event.data.found}`
}
worker.postMessage(asked)
</script></body>"""
# A search that changes the question it gets and reuses its answer.
ANSWERING = """const found = ["a page"]
self.onmessage = event => { event.data.input = ""; self.postMessage({ found }); self.postMessage({ found }) }"""


@pytest.mark.server
def test_search_in_a_local_folder_keeps_the_typed_text(tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs chromium")
    shutil.copy(ROOT / "website" / "iframe-worker.js", tmp_path)
    (tmp_path / "worker.js").write_text(ANSWERING)
    (tmp_path / "page.html").write_text(ASKING)
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    words += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path / 'user'}"]
    words += ["--virtual-time-budget=20000", "--dump-dom", (tmp_path / "page.html").as_uri()]
    done = subprocess.run([chromium, *words], capture_output=True, text=True, timeout=300)
    assert '<body id="joint band: a page,and changed">' in done.stdout
