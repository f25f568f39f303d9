"""The notebooks of examples/ are current: run from top to bottom in an empty folder, they print what they hold.

    python tests/test_notebooks.py --update

runs them and writes what they print and draw back into them.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))

Output = dict[str, Any]


def read(notebook: Path) -> dict[str, Any]:
    return dict(json.loads(notebook.read_text("utf-8")))


def code(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells of a notebook that are run."""
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def run(content: dict[str, Any], folder: Path) -> Iterator[tuple[dict[str, Any], list[Output]]]:
    """Run the cells of a notebook in turn, as Jupyter does, and yield each with what it shows."""
    import matplotlib

    matplotlib.use("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code(content), start=1):
        with chdir(folder):
            yield cell, list(shown("".join(cell["source"]), names, number))


def shown(source: str, names: dict[str, Any], number: int) -> Iterator[Output]:
    """Run a cell, and yield what it prints, the value of its last line, and the figures it draws."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";") else None
    printed = io.StringIO()
    value = None
    with redirect_stdout(printed), redirect_stderr(printed):
        exec(compile(tree, f"<cell {number}>", "exec", dont_inherit=True), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval", dont_inherit=True), names)
    if printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())}
    if value is not None:
        yield {"data": forms(value), "execution_count": number, "metadata": {}, "output_type": "execute_result"}
    yield from figures()


def forms(value: Any) -> dict[str, list[str]]:
    """Return a value as notebooks show it: as a text and, where it has one, as a table."""
    found = {"text/html": value._repr_html_()} if hasattr(value, "_repr_html_") else {}
    return {kind: lines(text) for kind, text in {**found, "text/plain": repr(value)}.items()}


def figures() -> Iterator[Output]:
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        picture = io.BytesIO()
        pyplot.figure(number).savefig(picture, format="png", dpi=100)
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        yield {"data": data, "metadata": {}, "output_type": "display_data"}
    pyplot.close("all")


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def told(outputs: list[Output]) -> list[Output]:
    """Return what is compared: of a picture only that it is there, as fonts differ from machine to machine."""
    return [
        output | {"data": {"image/png": is_picture(output["data"]["image/png"])}}
        if "image/png" in output.get("data", {})
        else output
        for output in outputs
    ]


def is_picture(data: str) -> bool:
    content = base64.b64decode(data)
    return content.startswith(b"\x89PNG") and len(content) > 5000


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_show_what_they_hold(notebook: Path, tmp_path: Path) -> None:
    for number, (cell, now) in enumerate(run(read(notebook), tmp_path), start=1):
        assert told(now) == told(cell["outputs"]), f"cell {number}: python tests/test_notebooks.py --update"
        assert cell["execution_count"] == number


def test_both_frames_have_a_notebook() -> None:
    sources = {path: "".join(line for cell in code(read(path)) for line in cell["source"]) for path in NOTEBOOKS}
    for frame in ("pandas", "polars"):
        assert any(f"import {frame} as" in source for source in sources.values())


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_go_from_a_log_to_what_to_do_next(notebook: Path) -> None:
    content = read(notebook)
    source = "\n".join("".join(cell["source"]) for cell in code(content))
    steps = [
        "posbias.check(",
        "posbias.harvest(",
        "posbias.CrossFit(",
        "posbias.diagnose(",
        "posbias.compare_segments(",
    ]
    assert [step for step in [*steps, ".plot("] if step not in source] == []
    assert "## What next" in "".join(content["cells"][-1]["source"])
    # Small enough to be looked at in a review.
    assert notebook.stat().st_size < 300_000


def update() -> None:
    for notebook in NOTEBOOKS:
        content = read(notebook)
        with tempfile.TemporaryDirectory() as folder:
            for number, (cell, now) in enumerate(run(content, Path(folder)), start=1):
                cell |= {"outputs": now, "execution_count": number}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        changed = text != notebook.read_text("utf-8")
        notebook.write_text(text, "utf-8")
        print(f"{notebook.name}: {'updated' if changed else 'current'}")


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit("usage: python tests/test_notebooks.py --update")
    update()
