"""Notebooks as pages: text, code, and what it printed and drew."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def as_page(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and the pictures in it by name."""
    pictures: dict[str, bytes] = {}
    parts: list[str] = []
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data: Mapping[str, Any] = output.get("data", {"text/plain": output.get("text", [])})
            if "image/png" in data:
                name = f"{notebook.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![{_described(cell)}]({name})")
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    first, *rest = parts
    where = f"This page is a notebook, `examples/{notebook.name}`: [download it]({notebook.name}) and run it."
    return "\n\n".join([first, where, *rest]) + "\n", pictures


def _described(cell: Mapping[str, Any]) -> str:
    """Return what a picture shows, as the cell that drew it says."""
    return str(cell["metadata"]["alt"])
