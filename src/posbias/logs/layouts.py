"""Layouts of a log: where the ranks are that the rankers that were not shown give to a result."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from posbias.logs.click_log import Weighting

# Where the ranks of all rankers are: in columns of the log, in a second table, or in other rows of the log itself.
Place = Literal["columns", "table", "log"]


class Layout(StrEnum):
    """The layout of a log. A new layout needs an entry here, its SQL (`sql/`) and its counting (`harvesting/count.py`).

    Attributes:
        ranks_in: where the ranks of all rankers are: "columns", "table" or "log".
        description: the layout in a few words.
        weighting: the default weighting of (query, document) pairs.
        several_ranks: how a finding describes pairs to which one ranker gives several ranks.
        several_ranks_remedy: how such pairs are counted.
    """

    ranks_in: Place
    description: str
    weighting: Weighting
    several_ranks: str
    several_ranks_remedy: str

    WIDE = (
        "wide",
        "columns",
        "a column for each ranker's rank",
        "traffic",
        "have rank columns that differ between their rows",
        "Each row is counted by its own ranks.",
    )
    LONG = (
        "long",
        "table",
        "a second table of rankings",
        "traffic",
        "have several ranks by one ranker in the rankings table",
        "Otherwise such a rank counts as not known, and rows shown there are left out.",
    )
    REPLAY = (
        "replay",
        "log",
        "ranks are learnt from recurring queries",
        "harmonic",
        "were shown at several positions by one and the same ranker",
        "Otherwise each position counts by its share, or refuse such logs with non_functional='refuse'.",
    )

    def __new__(
        cls,
        name: str,
        ranks_in: Place,
        description: str,
        weighting: Weighting,
        several_ranks: str,
        several_ranks_remedy: str,
    ) -> Layout:
        """Create a text, the name of the layout, with attributes."""
        layout = str.__new__(cls, name)
        layout._value_ = name
        layout.ranks_in = ranks_in
        layout.description = description
        layout.weighting = weighting
        layout.several_ranks = several_ranks
        layout.several_ranks_remedy = several_ranks_remedy
        return layout

    @property
    def ranks_known(self) -> bool:
        """Whether the ranks by all rankers are known for every row."""
        return self.ranks_in != "log"

    def __str__(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)


LAYOUTS: dict[str, Layout] = {layout.value: layout for layout in Layout}
