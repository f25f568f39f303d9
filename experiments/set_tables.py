"""Tables 1 and 2: the sizes of the interventional sets, as rows and as text."""

from __future__ import annotations

from experiments.outcomes import Row
from posbias._arrays import IntArray


def set_rows(sizes: IntArray) -> list[Row]:
    """Return a row for each set S_{k,k'} with k < k'."""
    ranks = len(sizes)
    return [
        {"k": k + 1, "other": other + 1, "pairs": int(sizes[k, other])}
        for k in range(ranks)
        for other in range(k + 1, ranks)
    ]


def set_lines(sizes: IntArray) -> list[str]:
    """Return the table as the paper prints it: column k, row k'.

    Example:
        >>> import numpy as np
        >>> print(*set_lines(np.array([[0, 1200, 3], [1200, 0, 40], [3, 40, 0]])), sep="\\n")
                  1       2
           2  1,200       -
           3      3      40
    """
    ranks = len(sizes)
    lines = ["".join([f"{'':>4}", *(f"{k:>8}" for k in range(1, ranks))])]
    for other in range(1, ranks):
        cells = [f"{sizes[k, other]:,}" if k < other else "-" for k in range(ranks - 1)]
        lines.append("".join([f"{other + 1:>4}", *(f"{cell:>8}" for cell in cells)]))
    return lines
