"""Convert notebooks to pages: text, code, printed output and images."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def as_page(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its images by file name."""
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
                parts.append(f"![{_alternative_text(cell)}]({name})")
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    first, *rest = parts
    where = f"This page is a notebook, `examples/{notebook.name}`: [download it]({notebook.name}) and run it."
    return "\n\n".join([first, where, *rest]) + "\n", pictures


def _alternative_text(cell: Mapping[str, Any]) -> str:
    """Return the alternative text of an image, from the metadata of its cell."""
    return str(cell["metadata"]["alt"])
