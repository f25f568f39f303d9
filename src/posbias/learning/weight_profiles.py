"""What a first look at a log tells of its weights: impressions and clicks by segment and rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from posbias.curves.curve import Segment
from posbias.engines import OpenLog
from posbias.errors import LogError
from posbias.findings import Finding
from posbias.harvesting.profiles import Shown
from posbias.harvesting.refusals import refuse_errors, refuse_pages_without_id, refuse_unusable
from posbias.harvesting.repeats import find_repeats
from posbias.harvesting.samples import small_sample
from posbias.harvesting.shortages import find_no_clicks
from posbias.logs.bounds import refuse_sums
from posbias.sql.shown import Plan
from posbias.sql.weights import UNUSABLE, profile

# Far beyond what any page shows, in any number of segments; a column of ids has more.
_MOST_CELLS = 200_000


class Cell(NamedTuple):
    """What was shown at one rank of one segment; `clicked` and `seen` are the rows with clicks and impressions."""

    segment: Segment
    position: int
    rows: int
    impressions: int
    clicks: int
    clicked: int
    seen: int


@dataclass(frozen=True)
class WeightProfile:
    """Impressions and clicks by segment and rank, and what was found."""

    cells: tuple[Cell, ...]
    findings: tuple[Finding, ...]

    @property
    def rows(self) -> int:
        """Rows of the log."""
        return sum(cell.rows for cell in self.cells)

    @property
    def clicks(self) -> int:
        """Clicks of the log."""
        return sum(cell.clicks for cell in self.cells)

    @property
    def clicked(self) -> int:
        """Rows with a click."""
        return sum(cell.clicked for cell in self.cells)

    @property
    def ranks(self) -> dict[Segment, list[int]]:
        """The ranks at which something was shown, by segment."""
        found: dict[Segment, list[int]] = {}
        for cell in self.cells:
            if cell.seen:
                found.setdefault(cell.segment, []).append(cell.position)
        return found

    @property
    def positions(self) -> list[Shown]:
        """What was shown at each rank, all segments together."""
        found: dict[int, Shown] = {}
        for cell in self.cells:
            so_far = found.get(cell.position, Shown(cell.position, 0, 0))
            counts = so_far.impressions + cell.impressions, so_far.clicks + cell.clicks
            found[cell.position] = Shown(cell.position, *counts)
        return [found[rank] for rank in sorted(found) if found[rank].impressions]

    @property
    def page_views(self) -> int:
        """The page views: what was shown at the busiest rank, which in whole pages is the first."""
        return max((shown.impressions for shown in self.positions), default=0)

    def sum_of_clicks(self, value: Callable[[Segment, int], float]) -> float:
        """Return the sum over all clicks of a value of their segment and rank."""
        return sum(cell.clicks * value(cell.segment, cell.position) for cell in self.cells if cell.clicks)


def take_profile(opened: OpenLog, plan: Plan, *, force: bool) -> WeightProfile:
    """Look at all rows, and refuse those that cannot be weighed and logs that are damaged."""
    if plan.schema.drop_duplicates:
        refuse_pages_without_id(opened, plan)
    answer = opened.table_up_to(profile(plan), _MOST_CELLS, "Looking at ranks")
    if answer is None:
        raise LogError(
            f"Column {plan.schema.position!r} has more than {_MOST_CELLS:,} different values. Positions are ranks: 1, "
            "2, 3 and so on. Name the right column (position)."
        )
    keys = list(zip(*(answer[name] for name in plan.segments), strict=True)) if plan.segments else None
    columns = [answer[name].tolist() for name in ("position", "row_count", "impressions", "clicks", "clicked", "seen")]
    cells = [Cell(() if keys is None else keys[i], *row) for i, row in enumerate(zip(*columns, strict=True))]
    rows, unusable = (sum(c.rows for c in cells if c.position == UNUSABLE or every) for every in (True, False))
    refuse_unusable(opened, plan, rows, unusable)
    refuse_unusable(opened, plan, rows, int(answer["nameless"].sum()))
    refuse_sums(plan.schema, sum(cell.impressions for cell in cells))
    found = WeightProfile(tuple(sorted(cells, key=lambda c: ([(v is not None, v or "") for v in c.segment], c[1]))), ())
    findings = [*find_no_clicks(found.positions), *find_repeats(opened, plan, small_sample(opened, rows))]
    refuse_errors(findings, force=force)
    if not found.clicks:
        raise LogError("There is no click in the log: nothing can be learned from it.")
    return WeightProfile(found.cells, tuple(findings))
