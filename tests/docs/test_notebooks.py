"""Test that the notebooks of examples/ are current: Jupyter runs them in an empty folder and gives the saved output.

    python -m tests.docs.test_notebooks --update

runs them and writes what they print and draw back into them.
"""

from __future__ import annotations

import base64
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))

each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def read(notebook: Path) -> Any:
    import nbformat

    content = nbformat.read(notebook, as_version=4)
    nbformat.validate(content)
    return content


def run(notebook: Path, folder: Path) -> Any:
    """Return a notebook as a kernel of Jupyter leaves it that knows nothing of the user's own settings."""
    from nbclient import NotebookClient

    resources = {"metadata": {"path": str(folder)}}
    # A kernel sends what a cell prints in as many messages as its clock bids.
    client = NotebookClient(
        read(notebook), timeout=600, record_timing=False, coalesce_streams=True, resources=resources
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(folder))
        done = client.execute()
    for cell in code(done):
        for output in cell.outputs:
            if "text" in output:
                # A warning names the file of its cell, which is another one each time.
                output.text = re.sub(r"\S*/ipykernel_\d+/\d+\.py", "cell", output.text)
    return done


def code(content: Any) -> list[Any]:
    """Return the cells of a notebook that are run."""
    return [cell for cell in content.cells if cell.cell_type == "code"]


def shown(cell: Any) -> list[Any]:
    """Return what a cell shows, of a picture only that it is there: fonts differ from machine to machine."""
    return [
        is_picture(output.data["image/png"]) if "image/png" in output.get("data", {}) else output
        for output in cell.outputs
    ]


def is_picture(data: str) -> bool:
    content = base64.b64decode(data)
    return content.startswith(b"\x89PNG") and len(content) > 5000


@each_notebook
@pytest.mark.long
def test_notebook_outputs_are_current(notebook: Path, tmp_path: Path) -> None:
    for kept, now in zip(code(read(notebook)), code(run(notebook, tmp_path)), strict=True):
        assert shown(now) == shown(kept), f"{kept.source}\n\nRefresh it: python -m tests.docs.test_notebooks --update"


def test_pandas_and_polars_have_a_notebook() -> None:
    sources = ["\n".join(cell.source for cell in code(read(notebook))) for notebook in NOTEBOOKS]
    for frame in ("pandas", "polars"):
        assert any(f"import {frame} as" in source for source in sources)


@each_notebook
def test_notebooks_go_from_a_log_to_what_to_do_next(notebook: Path) -> None:
    content = read(notebook)
    source = "\n".join(cell.source for cell in code(content))
    steps = ["check", "harvest", "CrossFit", "diagnose", "compare_segments"]
    assert [step for step in steps if f"posbias.{step}(" not in source] == []
    assert ".plot(" in source
    assert "## What next" in content.cells[-1].source


@each_notebook
def test_images_have_alternative_text(notebook: Path) -> None:
    drawing = [cell for cell in code(read(notebook)) if True in shown(cell)]
    assert drawing
    assert all(len(cell.metadata.alt) > 40 for cell in drawing)


@each_notebook
def test_notebooks_are_small_enough_to_review(notebook: Path) -> None:
    assert notebook.stat().st_size < 300_000


def update() -> None:
    import nbformat

    for notebook in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            now = run(notebook, Path(folder))
        # The version of Python that ran it says nothing to a reader.
        now.metadata.language_info = {"name": "python"}
        before = notebook.read_text("utf-8")
        nbformat.write(now, notebook)
        print(f"{notebook.name}: {'current' if notebook.read_text('utf-8') == before else 'updated'}")


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit("usage: python -m tests.docs.test_notebooks --update")
    update()
