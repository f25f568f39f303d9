"""Test that the documentation is current: examples print the documented output, links work, and nothing is missing.

Blocks marked `console` (commands after `$ `) and `pycon` (Python after three angle brackets) are run from the top of
a page to its end, in one empty folder and one Python session for each page. Other blocks are not run.

    python -m tests.docs.test_docs --update

runs them all and writes what they print back into the pages, and the pictures they draw into docs/images.
"""

from __future__ import annotations

import ast
import difflib
import io
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"!\[[^]]*\]\(([^)\s]*images/[^)\s]+)\)")
LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)\s]+)\)")
PROMPTS = {"console": ("$ ", "> "), "pycon": (">>> ", "... ")}
# What a page must hold at least: a page whose blocks lost their mark would otherwise pass unread.
RUN = {
    "README.md": {"console", "pycon"},
    "CONTRIBUTING.md": {"pycon"},
    "docs/ab_test.md": {"console"},
    "docs/check.md": {"console", "pycon"},
    "docs/cli.md": {"console"},
    "docs/compare.md": {"console", "pycon"},
    "docs/estimators.md": {"pycon"},
    "docs/evaluation.md": {"console", "pycon"},
    "docs/events.md": {"console", "pycon"},
    "docs/grids_and_feeds.md": {"console", "pycon"},
    "docs/harvest_file.md": {"pycon"},
    "docs/harvests.md": {"pycon"},
    "docs/intervals.md": {"pycon"},
    "docs/interventions.md": {"pycon"},
    "docs/learners.md": {"pycon"},
    "docs/judgments.md": {"console", "pycon"},
    "docs/learning.md": {"console", "pycon"},
    "docs/log.md": {"console"},
    "docs/merging.md": {"pycon"},
    "docs/nightly.md": {"console", "pycon"},
    "docs/no_experiment.md": {"console"},
    "docs/planning.md": {"console", "pycon"},
    "docs/position_bias.md": {"pycon"},
    "docs/questions.md": {"console", "pycon"},
    "docs/report.md": {"console", "pycon"},
    "docs/reproduction.md": {"console"},
    "docs/segments.md": {"console", "pycon"},
    "docs/sources.md": {"console", "pycon"},
    "docs/special_pages.md": {"console"},
    "docs/trackers.md": {"console"},
    "docs/tutorial.md": {"console", "pycon"},
    "docs/warehouse.md": {"console", "pycon"},
}
# Pictures that no example draws: screens, which tests in a browser look at.
SCREENS = ("images/report.png",)
WIDTH = "100"


@dataclass(frozen=True)
class Example:
    """A command or statement of a page, as it stands there, and what the page says that it prints."""

    kind: str
    lines: tuple[str, ...]
    output: str

    @property
    def source(self) -> str:
        first, more = PROMPTS[self.kind]
        return "\n".join([self.lines[0][len(first) :], *(line[len(more) :] for line in self.lines[1:])])


class ExampleError(Exception):
    """An example that cannot be run as the page shows it."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def trimmed(text: str) -> str:
    """Return a text without white space at the ends of its lines and at its end."""
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip()


def examples(kind: str, body: str) -> Iterator[Example]:
    """Cut a block into its examples: prompts, then everything up to the next prompt."""
    first, more = PROMPTS[kind]
    lines: list[str] = []
    output: list[str] = []
    for line in body.splitlines():
        if line.startswith(first):
            if lines:
                yield Example(kind, tuple(lines), trimmed("\n".join(output)))
            lines, output = [line], []
        elif not lines:
            raise ExampleError(f"the block starts with {line!r} and not with the prompt {first!r}")
        elif not output and (line.startswith(more) or line == more.rstrip()):
            lines.append(line)
        else:
            output.append(line)
    yield Example(kind, tuple(lines), trimmed("\n".join(output)))


class Session:
    """One page's folder and Python names, shared by its examples."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, example: Example) -> str:
        return trimmed(self._shell(example) if example.kind == "console" else self._python(example))

    def _shell(self, example: Example) -> str:
        if "--plot" in example.source:
            # Where fonts were never listed before, matplotlib would say so in the middle of the output.
            import matplotlib.font_manager  # noqa: F401
        done = subprocess.run(
            ["sh", "-c", example.source],
            cwd=self.folder,
            env=os.environ | self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        if done.returncode:
            raise ExampleError(f"{example.source!r} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "COLUMNS": WIDTH,
            "LC_ALL": "C.UTF-8",
            "PYTHONUTF8": "1",
            # This clone's package, and `python -m experiments`, which is run from a clone.
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        }

    def _python(self, example: Example) -> str:
        out = io.StringIO()
        code = compile(example.source + "\n", "<page>", "single", dont_inherit=True)
        with chdir(self.folder), redirect_stdout(out), redirect_stderr(out), printed_warnings():
            try:
                exec(code, self.names)
            except Exception as error:
                if not example.output.startswith("Traceback"):
                    raise ExampleError(f"{example.source!r} raised {error!r}") from error
                kind = type(error)
                print(f"Traceback (most recent call last):\n  ...\n{kind.__module__}.{kind.__qualname__}: {error}")
        return out.getvalue()


@contextmanager
def printed_warnings() -> Iterator[None]:
    """Print the warnings of posbias as a Python session does, without the line of the file."""
    from posbias import PosbiasWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", PosbiasWarning)
        warnings.showwarning = lambda message, category, *_: print(f"{category.__name__}: {message}")
        yield


def renewed(text: str, folder: Path) -> str:
    """Return a page with the output that its examples print now."""
    session = Session(folder)

    def rerun(block: re.Match[str]) -> str:
        kind, body = block.groups()
        if kind not in PROMPTS:
            return block[0]
        lines = [f"```{kind}"]
        for example in examples(kind, body):
            lines += example.lines
            output = session.run(example)
            lines += output.splitlines()
        return "\n".join([*lines, "```"])

    return FENCE.sub(rerun, text)


def blocks(page: Path) -> list[tuple[str, str]]:
    return FENCE.findall(page.read_text("utf-8"))


def sources(page: Path, kind: str) -> list[str]:
    """Return the commands or statements of a page."""
    return [example.source for k, body in blocks(page) if k == kind for example in examples(kind, body)]


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return FENCE.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors that headings make."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def every_page(test: Callable[..., None]) -> Any:
    return pytest.mark.parametrize("page", PAGES, ids=name_of)(test)


# Pages whose examples take long; the others are run by the newcomer, too.
LONG_PAGES = tuple(
    f"docs/{name}.md"
    for name in (
        "ab_test",
        "compare",
        "estimators",
        "evaluation",
        "intervals",
        "judgments",
        "learners",
        "learning",
        "log",
        "merging",
        "nightly",
        "no_experiment",
        "planning",
        "plots",
        "questions",
        "report",
        "segments",
        "sources",
        "special_pages",
        "tutorial",
        "warehouse",
    )
)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.long) if name_of(page) in LONG_PAGES else page for page in PAGES],
    ids=name_of,
)
def test_examples_print_the_documented_output(page: Path, tmp_path: Path) -> None:
    text = page.read_text("utf-8")
    now = renewed(text, tmp_path)
    changes = list(difflib.unified_diff(trimmed(text).splitlines(), trimmed(now).splitlines(), "page", "now", n=2))
    assert not changes, "\n".join([*changes, "", "Refresh the pages: python -m tests.docs.test_docs --update"])
    for picture in drawn(text):
        assert_alike(tmp_path / Path(picture).name, page.parent / picture)


def drawn(text: str) -> list[str]:
    """Return the pictures of a page that its examples draw."""
    return [picture for picture in PICTURE.findall(text) if picture not in SCREENS]


def assert_alike(drawn: Path, kept: Path) -> None:
    """Compare two pictures: fonts may move a pixel from machine to machine, a curve may not."""
    import numpy as np
    from matplotlib.image import imread

    now, then = imread(drawn), imread(kept)
    assert now.shape == then.shape
    assert np.abs(now - then).mean() < 0.002, f"{kept.name} is not what the page draws: --update it"


@pytest.mark.parametrize("name", RUN)
def test_pages_have_examples_that_run(name: str) -> None:
    assert {kind for kind, _ in blocks(ROOT / name)} >= RUN[name]


@every_page
def test_blocks_that_are_not_run_have_no_prompt(page: Path) -> None:
    prompts = tuple(first for first, _ in PROMPTS.values())
    idle = [line for kind, body in blocks(page) if kind not in PROMPTS for line in body.splitlines()]
    assert [line for line in idle if line.startswith(prompts)] == []


@every_page
def test_no_sentence_continues_with_a_number_that_begins_a_list(page: Path) -> None:
    lines = prose(page).splitlines()
    wrapped = [line for before, line in pairwise(lines) if before.strip() and re.match(r"\s*\d{2,}\. ", line)]
    assert wrapped == []


@every_page
def test_relative_links_have_a_target(page: Path) -> None:
    broken = []
    for link in [*LINK.findall(prose(page)), *PICTURE.findall(prose(page))]:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if link.startswith(("http://", "https://")):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_first_page_is_short() -> None:
    words = len((ROOT / "README.md").read_text("utf-8").split())
    assert words <= 900, f"README.md has {words} words: move details to docs/"


def test_index_links_every_page() -> None:
    # The table of pages alone: the table of names below it links most pages again.
    pages, _, _ = prose(DOCS / "README.md").partition("## Names in Python")
    linked = set(LINK.findall(pages))
    assert linked >= {page.name for page in DOCS.glob("*.md")} - {"README.md"}


def test_cost_tables_agree_with_the_measurements() -> None:
    measured = (ROOT / "benchmarks" / "SCALE.md").read_text(encoding="utf-8").splitlines()
    page = (DOCS / "scale.md").read_text(encoding="utf-8")
    told = [line for line in page.splitlines() if line.startswith(("|", "Fitted"))]
    extrapolated = [line for line in told if line not in measured]
    assert len(told) > 30
    # Of these alone the page says that they are extrapolated: a head and three rows.
    assert [line.split(" | ")[0] for line in extrapolated] == [
        "| layout",
        "| wide",
        "| replay",
        "| replay, kept as sums",
    ]


def test_every_command_is_documented() -> None:
    from posbias.cli import COMMANDS

    shown = sources(DOCS / "cli.md", "console")
    assert shown == ["posbias --help", *(f"posbias {name} --help" for name in COMMANDS)]
    titles = re.findall(r"^## posbias (\S+)$", prose(DOCS / "cli.md"), re.MULTILINE)
    assert titles == list(COMMANDS)


def test_every_public_name_is_in_the_index() -> None:
    import posbias

    index = (DOCS / "README.md").read_text("utf-8")
    assert [name for name in posbias.__all__ if f"`posbias.{name}`" not in index] == []


def test_names_in_the_pages_exist() -> None:
    import importlib

    def exists(dotted: str) -> bool:
        for cut in range(dotted.count(".") + 1, 0, -1):
            parts = dotted.split(".")
            try:
                found: Any = importlib.import_module(".".join(parts[:cut]))
                for name in parts[cut:]:
                    found = getattr(found, name)
            except (ImportError, AttributeError):
                continue
            return True
        return False

    named = {
        dotted for page in PAGES for dotted in re.findall(r"`(posbias(?:\.[A-Za-z_]+)+)(?:\([^`]*\))?`", prose(page))
    }
    assert named, "the pages name nothing in Python"
    assert sorted(dotted for dotted in named if not exists(dotted)) == []


def test_every_estimator_is_described() -> None:
    from posbias.estimators import ESTIMATORS

    assert described(DOCS / "estimators.md") == [(name, class_) for name, (_, class_) in ESTIMATORS.items()]


def described(page: Path) -> list[tuple[str, str]]:
    """Return the estimators that the tables of a page list, by name and class."""
    rows = re.findall(r"^\| `([A-Z]\w+)` \| `([a-z-]+)`[^|]*\|", prose(page), re.MULTILINE)
    return [(name, kind) for kind, name in rows]


def test_every_log_problem_is_documented() -> None:
    lines = [
        line
        for page in ("check.md", "trust.md", "learning.md", "judgments.md", "evaluation.md")
        for line in prose(DOCS / page).splitlines()
    ]
    rows = [line for line in lines if line.startswith("|") and line.count("|") == 4]
    described = {name for row in rows for name in re.findall(r"`([a-z][a-z0-9-]*)`", row.split("|")[2])}
    assert problem_names() - described == set()


def problem_names() -> set[str]:
    """Return the names of the problems that the package makes: what the calls that make them begin with."""
    makers = {"Finding", "unusable", "_Defect", "_finding"}
    calls = [
        node
        for module in (ROOT / "src" / "posbias").rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in makers and node.args
    ]
    names = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    assert {"zero-based-position", "missing-column", "duplicates", "single-ranker"} <= names
    return names


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"^make ([a-z-]+)", code(page), re.MULTILINE)}
    assert {"demo", "test", "bench"} <= named <= targets


def code(page: Path) -> str:
    """Return what a page sets as code: blocks and spans."""
    spans = re.findall(r"`([^`\n]+)`", prose(page))
    return "\n".join([*(body for _, body in blocks(page)), *spans])


def test_file_tree_agrees_with_the_package() -> None:
    tree = next(body for _, body in blocks(ROOT / "CONTRIBUTING.md") if body.startswith("src/posbias/"))
    package = ROOT / "src" / "posbias"
    rooms = re.split(r"^  (?=\w)", tree.split("\nexperiments")[0], flags=re.MULTILINE)[1:]
    named = {room.split("/")[0]: set(re.findall(r"\w+", room.split("/")[1])) for room in rooms if "/" in room}
    assert set(named) == {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    for room, words in named.items():
        modules = {path.stem for path in (package / room).glob("*.py")} - {"__init__"}
        # The line of the command says "one module for each command".
        assert modules <= words or room == "cli", f"{room} has modules that CONTRIBUTING.md does not name"
    files = {word for room in rooms if "/" not in room for word in re.findall(r"\w+\.py", room)}
    assert files == {path.name for path in package.glob("*.py")} - {"__init__.py", "__main__.py"}


def test_files_named_for_contributors_exist() -> None:
    text = prose(ROOT / "CONTRIBUTING.md")
    named = [name for name in re.findall(r"`([a-z_]+/\w+\.py)`", text) if not name.startswith("tests/")]
    assert len(named) > 20
    missing = [name for name in named if not any((ROOT / base / name).exists() for base in ("src/posbias", "."))]
    assert missing == []


def with_findings(text: str) -> str:
    """Return the page of findings with the table of all codes as the package has them."""
    from posbias.findings import CODES

    start, marker, _ = text.partition(" --update docs/findings.md -->\n")
    rows = [f"| `{code}` | {CODES[code]} |" for code in sorted(CODES)]
    return "\n".join([f"{start}{marker}", "| code | meaning |", "| --- | --- |", *rows, ""])


def test_every_finding_code_is_in_the_page_of_findings() -> None:
    text = (DOCS / "findings.md").read_text("utf-8")
    assert text.count("-->\n") == 1
    assert text == with_findings(text)


def update(names: list[str]) -> list[str]:
    """Write what the examples print now, and the pictures they draw, into pages; return what could not be run."""
    failures = []
    for page in [page for page in PAGES if not names or name_of(page) in names]:
        text = page.read_text("utf-8")
        with tempfile.TemporaryDirectory() as folder:
            try:
                now = renewed(text, Path(folder))
            except ExampleError as error:
                failures.append(f"{name_of(page)}: {error}")
                continue
            if name_of(page) == "docs/findings.md":
                now = with_findings(now)
            for name in drawn(text):
                kept = page.parent / name
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes((Path(folder) / kept.name).read_bytes())
        if now != text:
            page.write_text(now, "utf-8")
        print(f"{name_of(page)}: {'updated' if now != text else 'current'}")
    return failures


if __name__ == "__main__":
    if sys.argv[1:2] != ["--update"]:
        sys.exit("usage: python -m tests.docs.test_docs --update [PAGE...]")
    sys.exit("\n".join(update(sys.argv[2:])) or None)
