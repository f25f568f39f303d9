"""The file of a picture."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from posbias.pictures import save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def save(ax: Axes, path: str | os.PathLike[str]) -> None:
    """Write the picture that an Axes is in as .png, .svg or .pdf, whole or not at all, the same each time."""
    save_picture(ax.figure, path)
