"""What an experiment results in: numbers, a picture, and whether the claims hold."""

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
# With fewer logs than this a standard error over them is too uncertain itself to tell by.
ENOUGH_LOGS = 20
_VERDICTS = {True: "HOLDS", False: "DOES NOT HOLD", None: "TOO LITTLE DATA"}


@dataclass(frozen=True)
class Outcome:
    """The result of one experiment.

    Arguments:
        name: the experiment, and the beginning of its files' names.
        rows: the numbers, a row for each point of each line of the figure.
        figure: the picture, a matplotlib Figure.
        verdicts: the paper's claims about it.
        tables: further tables by name, such as the sizes of the intervention sets.
        notes: what else was measured, in sentences.
    """

    name: str
    rows: Sequence[Row]
    figure: Any
    verdicts: tuple[Verdict, ...]
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_text(self) -> str:
        """Return the verdicts, a line each, and the notes."""
        return "\n".join([*map(str, self.verdicts), *self.notes])

    def save(self, folder: str | Path) -> list[Path]:
        """Write NAME.csv, NAME.png, NAME.txt and NAME-TABLE.csv, each whole or not at all."""
        folder = Path(folder)
        files = {folder / f"{self.name}.csv": self.rows}
        files |= {folder / f"{self.name}-{table}.csv": rows for table, rows in self.tables.items()}
        for path, rows in files.items():
            _write_rows(path, rows)
        picture, text = folder / f"{self.name}.png", folder / f"{self.name}.txt"
        with atomic_write(picture) as part:
            self.figure.savefig(part, format="png", dpi=130)
        with atomic_write(text) as part:
            Path(part).write_text(self.to_text() + "\n", "utf-8")
        return [*files, picture, text]


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper, what we found, and whether that bears it out; None where it is too little to tell.

    Example:
        >>> print(Verdict("AllPairs is better", "MSE 0.1 against 0.2", True))
        HOLDS: AllPairs is better. Found: MSE 0.1 against 0.2.
        >>> print(judged("AllPairs is better", "MSE nan against 0.2", False, float("nan"), 0.2))
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
        writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)


def _plain(value: Any) -> Any:
    """What is not known is left empty, and numbers have no more digits than mean something."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return value


def judged(
    claim: str, found: str, holds: bool | np.bool_, *numbers: float | FloatArray, enough: bool = True
) -> Verdict:
    """Return whether a claim holds, if there is enough to tell and all numbers that it rests on are known."""
    known = enough and all(np.isfinite(number).all() for number in numbers)
    return Verdict(claim, found, bool(holds) if known else None)


def seed_of(*parts: object) -> int:
    """Return a seed that is the same in every process, and another for other parts."""
    return zlib.crc32("/".join(map(str, parts)).encode())


def known_mean(values: FloatArray) -> float:
    """Return the mean of what is known; NaN if nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def mean_and_spread(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return each point's mean and standard deviation over the runs that have an estimate; NaN where too few have.

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


def summarize(held: int, claims: int, undecided: int) -> str:
    """Return how many claims hold, in a sentence.

    >>> summarize(3, 5, 0), summarize(3, 5, 1)
    ('3 of 5 claims hold.', '3 of 5 claims hold; there is too little data to tell of 1.')
    >>> summarize(0, 14, 14)
    'There is too little data to tell of any of 14 claims; with more, as without --quick, there may be enough.'
    """
    if undecided == claims > 0:
        return (
            f"There is too little data to tell of any of {claims} claims; with more, as without --quick, there may "
            "be enough."
        )
    more = f"; there is too little data to tell of {undecided}" if undecided else ""
    return f"{held} of {claims} claims hold{more}."
