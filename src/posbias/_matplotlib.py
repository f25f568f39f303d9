"""Draw charts with matplotlib, and write them as files.

Figures are made without pyplot, so that drawing leaves no state behind. matplotlib is imported where it is used.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias._charts import ARC_HEIGHT, SHADES, Axis, CellMap, Chart, Color, Rule, Series
from posbias._files import PICTURE, atomic_write
from posbias._optional import optional
from posbias._text import printable
from posbias._validate import as_path, check_type
from posbias.errors import PosbiasError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENDINGS = ("png", "svg", "pdf")
# The palette of Okabe and Ito, which can be distinguished with any colour vision.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C7A00", "#555555")
_NAMED_COLORS = {"alarm": "#B3261E", "ink": "black", "grey": "#999999"}
_LINES = {"solid": "-", "dashed": "--", "dotted": ":", "": "none"}
_LEGENDS: dict[str, dict[str, Any]] = {
    # Asked for by name: matplotlib warns about its own default when the search takes long.
    "best": {"loc": "best"},
    "top": {"loc": "upper center", "ncols": 2, "columnspacing": 1.2, "handletextpad": 0.4},
    "right": {"loc": "center left", "bbox_to_anchor": (1, 0.5)},
    "below": {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "ncols": 2, "borderaxespad": 3.5},
}
# The share of the height that a legend in a row above the data takes.
_LEGEND_ROW = 0.15


def draw(chart: Chart, ax: Axes | None = None) -> Axes:
    """Draw a chart into an Axes, or into a new one, and return the Axes.

    Where the Axes shows something already, its limits are kept or widened.
    """
    axes: Any = new_axes(chart.height) if ax is None else checked_axes(ax)
    limits = (axes.get_xlim(), axes.get_ylim()) if axes.has_data() else None
    add_grid(axes)
    if not chart.grid:
        axes.grid(visible=False)
    axes.spines["left"].set_visible(bool(chart.y.ticks))
    if chart.cells is not None:
        _draw_cells(axes, chart.cells)
    _draw_arcs(axes, chart)
    for series in chart.series:
        draw_series(axes, series)
    for rule in chart.rules:
        _draw_rule(axes, rule)
    named = bool(chart.note or any([one.name for one in chart.series] + [one.name for one in chart.rules]))
    y = chart.y.extended(_LEGEND_ROW) if named and chart.legend == "top" else chart.y
    for name, axis, before in zip("xy", (chart.x, y), limits or (None, None), strict=True):
        _set_axis(axes, name, axis, before)
    axes.set_title(legible(chart.title), fontsize="medium")
    if named:
        # On a ground that keeps wide intervals from striking out the words.
        style = {"facecolor": "white", "edgecolor": "none", "framealpha": 0.85, "title": chart.note or None}
        axes.legend(**style, **_LEGENDS[chart.legend])
    drawn: Axes = axes
    return drawn


def checked_axes(ax: object) -> Any:
    """Return an Axes; reject anything else."""
    check_type("ax", ax, optional("matplotlib.axes", "Plots need").Axes)
    return ax


def new_axes(height: float = 3.6, width: float = 5.6) -> Any:
    """Return an Axes in a new figure, so small that its texts can be read at half the width of a page."""
    figure = optional("matplotlib.figure", "Plots need").Figure(figsize=(width, height), layout="constrained")
    return add_grid(figure.add_subplot())


def add_grid(axes: Any) -> Any:
    """Return an Axes with a faint grid in place of a frame."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def draw_series(axes: Any, series: Series) -> None:
    """Draw a series with its intervals."""
    x, y, low, high = (np.asarray(values, dtype=float) for values in (series.x, series.y, series.low, series.high))
    color = _color(series.color)
    if series.columns:
        axes.bar(x, y, width=0.7, color=color, label=legible(series.name))
        return
    if series.band:
        axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
    style: dict[str, Any] = {
        "color": color,
        "alpha": series.opacity,
        "linestyle": _LINES[series.line],
        "linewidth": 1.3 if series.line == "solid" else 1.1,
        "marker": series.marker or "none",
        "markersize": series.size,
        "markevery": None if series.marked is None else list(series.marked),
        "label": legible(series.name) or None,
    }
    if series.hollow:
        style |= {"markerfacecolor": "white", "zorder": 3}
    if series.bars and len(low):
        middle = x if series.across else y
        # The percentiles of a low level may both lie on one side of the estimate.
        bars = np.maximum(np.stack([middle - low, high - middle]), 0)
        axes.errorbar(x, y, **{"xerr" if series.across else "yerr": bars}, elinewidth=1, capsize=3, **style)
    else:
        axes.plot(x, y, **style)


def _color(color: Color) -> str:
    return COLORS[color] if isinstance(color, int) else _NAMED_COLORS[color]


def legible(name: str) -> str:
    """Return a text as matplotlib shows it: escape $, which starts a formula, and a leading _, which hides a label."""
    text = printable(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _draw_cells(axes: Any, cells: CellMap) -> None:
    colors = optional("matplotlib.colors", "Plots need")
    scale, (down, across) = cells.scale, (np.arange(size + 1) + 0.5 for size in cells.values.shape)
    shades = colors.LinearSegmentedColormap.from_list("posbias", SHADES)
    norm = None
    if scale is not None:
        norm = (colors.LogNorm if scale.log else colors.Normalize)(scale.low, scale.high)
    image = axes.pcolormesh(across, down, np.ma.masked_where(~cells.filled, cells.values), cmap=shades, norm=norm)
    if scale is not None:
        bar = axes.figure.colorbar(image, ax=axes, fraction=0.05)
        bar.ax.set_title(scale.label, fontsize="small")
        _set_ticks(bar.ax.yaxis, scale)
    for row, column, text, light in cells.texts:
        style = {"ha": "center", "va": "center", "fontsize": 7.5, "color": "black" if light else "white"}
        axes.text(column, row, text, **style)
    if cells.square:
        axes.set_aspect("equal")


def _draw_arcs(axes: Any, chart: Chart) -> None:
    patches, paths = (optional(f"matplotlib.{name}", "Plots need") for name in ("patches", "path"))
    # Two pieces look round, and take half the space in an SVG file of matplotlib's default.
    half = paths.Path.arc(0, 180, n=2)
    for (first, last), width in chart.arcs.items():
        span = last - first
        points = half.vertices * (span / 2, span * ARC_HEIGHT) + ((first + last) / 2, 0)
        style = {"lw": width, "color": COLORS[0], "alpha": 0.45, "fill": False, "capstyle": "butt"}
        axes.add_patch(patches.PathPatch(paths.Path(points, half.codes), **style))


def _draw_rule(axes: Any, rule: Rule) -> None:
    line = axes.axhline if rule.axis == "y" else axes.axvline
    style = {"color": _color(rule.color), "linestyle": _LINES[rule.line], "linewidth": 1.1}
    line(rule.value, label=legible(rule.name) or None, **style)
    if rule.note:
        # At the end of the line, wherever the axes end.
        place, coordinates = (1, rule.value), axes.get_yaxis_transform()
        axes.annotate(legible(rule.note), place, xycoords=coordinates, ha="right", va="bottom")


def _set_axis(axes: Any, name: str, axis: Axis, before: tuple[float, float] | None) -> None:
    low, high = axis.low, axis.high
    if before is not None and low < high:
        low, high = min(low, *before), max(high, *before)
    if axis.log:
        axes.set(**{f"{name}scale": "log"})
    axes.set(**{f"{name}lim": (low, high), f"{name}label": legible(axis.label)})
    _set_ticks(getattr(axes, f"{name}axis"), axis)


def _set_ticks(drawn: Any, axis: Axis) -> None:
    """Let an axis of matplotlib have the ticks of ours, also after a change of its limits."""
    from matplotlib.ticker import FuncFormatter, Locator, NullLocator

    def ticks() -> dict[float, str]:
        low, high = sorted(drawn.get_view_interval())
        return {value: legible(text) for value, text in axis.ticker(low, high).items()}

    class Ticks(Locator):
        def __call__(self) -> Any:
            return np.array([*ticks()], dtype=float)

    drawn.set_major_locator(Ticks())
    drawn.set_major_formatter(FuncFormatter(lambda value, _: ticks().get(value, "")))
    drawn.set_minor_locator(NullLocator())


def save(axes: Any, path: str | os.PathLike[str]) -> None:
    """Write the picture that an Axes is part of as PNG, SVG or PDF.

    The file is written as a whole or not at all, and has the same bytes each time.
    """
    name = as_path("path", path)
    ending = name.rsplit(".", 1)[-1].lower()
    if ending not in ENDINGS:
        raise PosbiasError(f"A plot can be written as .png, .svg or .pdf, not as {name!r}.")
    no_date = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[ending]
    fixed_ids = optional("matplotlib", "Plots need").rc_context({"svg.hashsalt": "posbias"})
    with atomic_write(name, PICTURE) as part:
        # Matplotlib breaks down if the disk is full, so it draws into memory.
        picture = io.BytesIO()
        with fixed_ids:
            axes.figure.savefig(picture, format=ending, dpi=200, metadata=no_date)
        Path(part).write_bytes(picture.getvalue())
