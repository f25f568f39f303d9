"""`Outcome` and `Verdict`: the numbers and the figure of an experiment, and whether its claims hold."""

from __future__ import annotations

import csv
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from posbias._arrays import FloatArray, IntArray
from posbias._files import atomic_write

Row = Mapping[str, Any]
# With fewer logs, the standard error itself is too uncertain to judge a claim.
ENOUGH_LOGS = 20
_VERDICTS = {True: "HOLDS", False: "DOES NOT HOLD", None: "TOO LITTLE DATA"}


@dataclass(frozen=True)
class Outcome:
    """The result of one experiment.

    Arguments:
        name: the name of the experiment, and the first part of its file names.
        rows: the numbers, one row for each point of each line of the figure.
        figure: a matplotlib Figure.
        verdicts: the claims, and whether they hold.
        tables: further tables by name, such as the sizes of the intervention sets.
        notes: further results, as lines of text.
    """

    name: str
    rows: Sequence[Row]
    figure: Any
    verdicts: tuple[Verdict, ...]
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_text(self) -> str:
        """Return the verdicts, one per line, and the notes."""
        return "\n".join([*map(str, self.verdicts), *self.notes])

    def save(self, folder: str | Path) -> list[Path]:
        """Write NAME.csv, NAME.png, NAME.txt and NAME-TABLE.csv, each written completely or not at all."""
        folder = Path(folder)
        files = {folder / f"{self.name}.csv": self.rows}
        files |= {folder / f"{self.name}-{table}.csv": rows for table, rows in self.tables.items()}
        for path, rows in files.items():
            _write_rows(path, rows)
        figure, text = folder / f"{self.name}.png", folder / f"{self.name}.txt"
        with atomic_write(figure) as part:
            self.figure.savefig(part, format="png", dpi=130)
        with atomic_write(text) as part:
            Path(part).write_text(self.to_text() + "\n", "utf-8")
        return [*files, figure, text]


@dataclass(frozen=True)
class Verdict:
    """A claim, the measured numbers, and whether the claim holds; None if there is too little data.

    Example:
        >>> print(Verdict("AllPairs is better", "MSE 0.1 against 0.2", True))
        HOLDS: AllPairs is better. Found: MSE 0.1 against 0.2.
        >>> print(make_verdict("AllPairs is better", "MSE nan against 0.2", False, float("nan"), 0.2))
        TOO LITTLE DATA: AllPairs is better. Found: MSE nan against 0.2.
    """

    claim: str
    found: str
    holds: bool | None

    def __str__(self) -> str:
        return f"{_VERDICTS[self.holds]}: {self.claim}. Found: {self.found}."


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    with atomic_write(path) as part, open(part, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _format_cell(value) for name, value in row.items()} for row in rows)


def _format_cell(value: Any) -> Any:
    """Format a CSV cell: missing numbers are empty, others have six significant digits."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return value


def make_verdict(
    claim: str, found: str, holds: bool | np.bool_, *numbers: float | FloatArray, enough: bool = True
) -> Verdict:
    """Return the verdict on a claim; undecided if there is too little data or one of its numbers is not finite."""
    known = enough and all(np.isfinite(number).all() for number in numbers)
    return Verdict(claim, found, bool(holds) if known else None)


def seed_of(*parts: object) -> int:
    """Return a seed that depends only on the parts, and is the same in every process."""
    return zlib.crc32("/".join(map(str, parts)).encode())


def finite_mean(values: FloatArray) -> float:
    """Return the mean of the finite values; NaN if there are none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def mean_and_spread(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean and standard deviation of each point over the runs with an estimate; NaN if too few have one.

    Example:
        >>> mean_and_spread(np.array([[1.0, 3.0, np.nan], [2.0, np.nan, np.nan]]))
        (array([2., 2.]), array([1.41421356,        nan]))
    """
    known = ~np.isnan(values)
    count = known.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, values, 0).sum(axis=1) / count
        squares = np.where(known, (values - mean[:, None]) ** 2, 0).sum(axis=1)
        return mean, np.sqrt(squares / np.where(count > 1, count - 1, np.nan))


def intervention_set_rows(sizes: IntArray) -> list[Row]:
    """Return the size of each intervention set S_{k,k'} with k < k', one row per set."""
    ranks = len(sizes)
    return [
        {"k": k + 1, "other": other + 1, "pairs": int(sizes[k, other])}
        for k in range(ranks)
        for other in range(k + 1, ranks)
    ]


def intervention_set_lines(sizes: IntArray) -> list[str]:
    """Return the sizes of the intervention sets as the table of the paper: column k, row k'.

    Example:
        >>> import numpy as np
        >>> print(*intervention_set_lines(np.array([[0, 1200, 3], [1200, 0, 40], [3, 40, 0]])), sep="\\n")
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


def summarize(holding: int, claims: int, undecided: int) -> str:
    """Return a sentence that says how many claims hold.

    >>> summarize(3, 5, 0), summarize(3, 5, 1)
    ('3 of 5 claims hold.', '3 of 5 claims hold; there is too little data to decide 1.')
    >>> summarize(0, 14, 14)
    'There is too little data to decide any of the 14 claims. Run without --quick, or use more data.'
    """
    if undecided == claims > 0:
        return f"There is too little data to decide any of the {claims} claims. Run without --quick, or use more data."
    more = f"; there is too little data to decide {undecided}" if undecided else ""
    return f"{holding} of {claims} claims hold{more}."
