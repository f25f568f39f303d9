"""The file of a picture."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from posbias.extras import optional
from posbias.pictures import refuse_other, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def save(ax: Axes, path: str | os.PathLike[str]) -> None:
    """Write the picture that an Axes is in as .png, .svg or .pdf, whole or not at all, the same each time."""
    refuse_other("ax", ax, optional("matplotlib.axes", "Pictures need").Axes)
    save_picture(ax.figure, path)
