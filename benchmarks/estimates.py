"""An estimate with its intervals, against the harvest that it is made of."""

from __future__ import annotations

import posbias
from benchmarks import data
from benchmarks.timing import Ratio, compare, table


def measure(millions: int, layout: str, kind: str, repeats: int) -> tuple[Ratio, int]:
    """Time an estimator on a harvest against that harvest; return the cells that it compared, too."""
    path = data.wide(millions, 3) if layout == "wide" else data.log_of(layout, millions)
    harvest = posbias.harvest(posbias.ClickLog(str(path)))
    make = getattr(posbias, kind)
    ratio = compare(
        f"{kind}, {layout}, {millions} million rows",
        lambda: make().fit(harvest),
        "the harvest of the same log",
        lambda: posbias.harvest(posbias.ClickLog(str(path))),
        repeats=repeats,
        # The number of cells stops growing with the log, so the limit is lower for 100 million rows.
        promise="0.25" if millions >= 100 or layout == "heavy" else "1",
    )
    return ratio, len(posbias.CrossFit().count(harvest).rows.cell_bucket)


def to_markdown(millions: list[int], repeats: int) -> str:
    """Measure both layouts at each size."""
    ratios, cells = [], {}
    for size in millions:
        for layout in ("wide", "replay"):
            for kind in ("CrossFit", "AllPairs"):
                ratio, cells[layout, size] = measure(size, layout, kind, repeats)
                ratios.append(ratio)
    sizes = ", ".join(f"{count:,} ({layout}, {size} million rows)" for (layout, size), count in cells.items())
    return (
        "Both with their jackknife intervals, wide logs with 3 rankers. CrossFit compares cells of a bucket and a "
        f"stratum: {sizes}. Command: `python -m benchmarks --parts estimates`.\n\n{table(ratios)}"
    )
