"""Build the sdist and the wheel, install the wheel into fresh environments, and run the README's first minute there.

    python -m tests.dist [--python PYTHON] [EXTRA...]

Without arguments it tries the wheel without any extra first, then with each one; the extra `none` is no extra. These
environments know nothing of the project but the wheel: they run in a folder of their own, without a path to the clone.
They are made by another Python if one is named.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docs.test_docs import Example, Session, blocks, examples, trimmed
from tests.support import ROOT

DIST = ROOT / "build" / "dist"
# Each extra with a statement that needs it.
EXTRAS = {
    "none": "import posbias",
    "plot": "import matplotlib",
    "report": "import jinja2",
    "learn": "import lightgbm, sklearn, xgboost",
    "spark": "import pyspark",
}
README = ROOT / "README.md"


def build() -> Path:
    """Build sdist and wheel, and return the wheel; it is built from the sdist, as others would."""
    with tempfile.TemporaryDirectory() as folder:
        python = environment(Path(folder) / "venv", "hatchling")
        subprocess.run([python, "-m", "hatchling", "build", "--clean", "-d", str(DIST)], cwd=ROOT, check=True)
    (wheel,) = DIST.glob("*.whl")
    return wheel


def environment(folder: Path, *requirements: str, interpreter: str = sys.executable) -> str:
    """Make a virtual environment with some requirements, and return its Python."""
    subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([*install, "-c", str(ROOT / "constraints.txt"), *requirements], check=True)
    return python


class InstalledSession(Session):
    """The commands of the README, run with an installed wheel."""

    def __init__(self, folder: Path, python: str) -> None:
        super().__init__(folder)
        self.python = python

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(self.python).parent), os.environ.get("PATH", os.defpath)])
        return super()._environment() | {"PATH": path, "PYTHONPATH": ""}


def first_minute(python: str, *, pictures: bool) -> None:
    """Run the README's commands and statements, and compare what they print with the README."""
    with tempfile.TemporaryDirectory() as folder:
        session = InstalledSession(Path(folder), python)
        statements = []
        for kind, body in blocks(README):
            if kind == "pycon":
                statements += [e for e in examples(kind, body) if pictures or not re.search(r"\bplot|\bax\b", e.source)]
            elif kind == "console":
                for example in examples(kind, body):
                    run_command(session, example, pictures=pictures)
        test = "\n".join("\n".join([*e.lines, e.output]) for e in statements)
        (Path(folder) / "readme.txt").write_text(test + "\n", "utf-8")
        subprocess.run(
            [python, "-m", "doctest", "-o", "NORMALIZE_WHITESPACE", "readme.txt"],
            cwd=folder,
            env=os.environ | session._environment(),
            check=True,
        )
        print(f"{len(statements)} statements of README.md print what it says")


def run_command(session: InstalledSession, example: Example, *, pictures: bool) -> None:
    """Run one command; without matplotlib it is run without its picture."""
    lines = example.lines if pictures else tuple(re.sub(r" --plot \S+", "", line) for line in example.lines)
    printed = session.run(Example(example.kind, lines, example.output))
    changes = list(difflib.unified_diff(trimmed(example.output).splitlines(), printed.splitlines(), "README", "wheel"))
    if changes:
        sys.exit("\n".join([f"{example.source}: prints something else", *changes]))
    print(f"$ {example.source.splitlines()[0]}")


def main(interpreter: str, extras: list[str]) -> None:
    """Build, install and run."""
    wheel = build()
    for extra in extras or EXTRAS:
        with tempfile.TemporaryDirectory() as folder:
            package = str(wheel) if extra == "none" else f"{wheel}[{extra}]"
            python = environment(Path(folder) / "venv", package, interpreter=interpreter)
            version = subprocess.check_output([python, "--version"], text=True).strip()
            print(f"== {wheel.name} with {'no extra' if extra == 'none' else extra}, {version}", flush=True)
            subprocess.run([python, "-c", EXTRAS[extra]], check=True)
            first_minute(python, pictures=extra == "plot")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the wheel, and run the first minute of the README with it.")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"some of {', '.join(EXTRAS)}")
    parser.add_argument("--python", default=sys.executable, help="the Python of the environments")
    options = parser.parse_args()
    main(options.python, options.extras)
