"""Which page views are looked at side by side: all of them, or so many that looking costs little beside counting."""

from __future__ import annotations

from dataclasses import dataclass, replace

from posbias.engines import OpenLog
from posbias.sql.dialect import Dialect

# A sample has about so many rows: enough to meet what happens to one page view in some thousands.
_ROWS = 2**17
# So many rows at the beginning of a log are looked at in all their columns.
_FIRST = 2**15


@dataclass(frozen=True)
class Sample:
    """One page view in so many, by a hash of their ids so that whole pages are seen; or those of the first rows."""

    one_in: int = 1
    first: int | None = None
    # What they are selected from: the log, or a part of it.
    rows_of: str = "log"

    @property
    def source(self) -> str:
        """Where the rows come from."""
        return self.rows_of if self.first is None else f"(SELECT * FROM log LIMIT {self.first}) beginning"

    def denser(self, share: float) -> Sample:
        """Return a sample that has as many rows in a part of the log, of this share, as this one has in all of it."""
        return replace(self, one_in=one_in(int(self.one_in * share), 1))

    @property
    def beginning(self) -> Sample:
        """The rows at the beginning of the log alone, for what needs more columns than all rows are read for."""
        return self if self == ALL else Sample(first=_FIRST)

    def condition(self, dialect: Dialect, identity: str) -> str:
        """Return which rows are in the sample, by what they belong to."""
        return f"{dialect.hashed(identity)} & {self.one_in - 1} = 0" if self.one_in > 1 else "TRUE"

    def __str__(self) -> str:
        if self.first is not None:
            return f"in the first {self.first:,} rows, "
        return f"in a sample of one in {self.one_in:,}, " if self.one_in > 1 else ""


ALL = Sample()


def one_in(rows: int, wanted: int) -> int:
    """Return how many there are for each that is looked at, so that about so many rows are.

    >>> one_in(10_000_000, 1_000_000), one_in(900_000, 1_000_000)
    (8, 1)
    """
    return 1 << max(0, (rows // wanted).bit_length() - 1)


def small_sample(opened: OpenLog, rows: int) -> Sample:
    """Return a sample of a log of so many rows."""
    if rows <= _ROWS:
        return ALL
    # To read a text again costs as much as counting it: only its beginning is.
    return Sample(first=_ROWS) if opened.is_text else Sample(one_in=one_in(rows, _ROWS))
