"""What a ranking is judged by: how much a relevant document is worth at each rank."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from posbias.errors import PosbiasError

Name = Literal["dcg", "precision", "rank"]
_WORDS: dict[Name, str] = {"dcg": "DCG", "precision": "precision", "rank": "average rank"}


@dataclass(frozen=True)
class Metric:
    """λ: what a relevant document is worth at a rank; nothing beyond `cutoff`, where there is one.

    >>> Metric.named("precision@5", 10).title, Metric.named("dcg", 10).title, Metric.named("rank", 10).title
    ('precision@5', 'DCG@10', 'average rank')
    """

    name: Name
    cutoff: int | None

    @classmethod
    def named(cls, text: str, max_rank: int) -> Metric:
        """Return the metric of a name; without a cut-off of its own it ends at M, as a page does."""
        found = re.fullmatch(r"(dcg|precision)(?:@([1-9][0-9]{0,8}))?|rank", text if isinstance(text, str) else "")
        if not found:
            raise PosbiasError(
                f"The metric {text!r} is not known. Use 'dcg', 'precision' or 'rank'; the first two may have a "
                "cut-off, as in 'dcg@5'."
            )
        if text == "rank":
            return cls("rank", None)
        cutoff = int(found[2]) if found[2] else max_rank
        if cutoff > max_rank:
            raise PosbiasError(
                f"The metric {text!r} looks at {cutoff:,} ranks, and the log is read to rank {max_rank:,}. Take a "
                "smaller cut-off or a larger max_rank."
            )
        return cls("dcg" if found[1] == "dcg" else "precision", cutoff)

    @property
    def title(self) -> str:
        """What the metric is called."""
        return _WORDS[self.name] + (f"@{self.cutoff}" if self.cutoff else "")

    @property
    def rises(self) -> bool:
        """Whether more is better: of ranks it is not."""
        return self.name != "rank"

    def gain(self, rank: str) -> str:
        """Return λ of a rank as SQL, a double."""
        if self.name == "rank":
            return f"1e0 * {rank}"
        worth = f"LN(2e0) / LN(1e0 + {rank})" if self.name == "dcg" else f"1e0 / {self.cutoff}"
        return f"CASE WHEN {rank} <= {self.cutoff} THEN {worth} ELSE 0e0 END"
