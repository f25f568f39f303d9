"""The weights of a log as a value: the table, or the file it was written to, and what is to be known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from posbias.errors import PosbiasError, Spelling
from posbias.findings import Finding
from posbias.wording import as_python


@dataclass(frozen=True)
class Weights:
    """The weights of a log.

    Attributes:
        rows: of the table.
        queries: of the log; of many million rows nearly so.
        page_views, clicks: of the log.
        cap: the most that a click counts, None for no limit.
        scale: by how much all weights were divided, so that their mean over clicked rows is 1.
        capped_share: the share of the weight that the cap took off.
        effective_clicks: as many clicks of equal weight would be as good: (Σ w)² / Σ w².
        columns: of the table.
        findings: what was found.
        output: the file that was written.
        table: the Arrow table, where no file was to be written.
    """

    rows: int
    queries: int
    page_views: int
    clicks: int
    cap: float | None
    scale: float
    capped_share: float
    effective_clicks: float
    columns: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    output: str | None = None
    table: Any = field(default=None, repr=False, compare=False)

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        told = {name: value for name, value in vars(self).items() if name not in ("findings", "table")}
        return told | {"columns": list(self.columns), "findings": [finding.to_dict(spell) for finding in self.findings]}

    def to_text(self) -> str:
        """Return it in a few words."""
        capped = "" if self.cap is None else f"; the cap of {self.cap:g} took off {self.capped_share:.1%} of the weight"
        return (
            f"{self.rows:,} rows of {self.queries:,} queries, {self.page_views:,} page views and {self.clicks:,} "
            f"clicks, as good as {self.effective_clicks:,.0f} clicks of equal weight{capped}."
        )

    def to_pandas(self) -> Any:
        """Return the table as a frame of pandas."""
        if self.table is None:
            raise PosbiasError(f"The rows were written to {self.output!r}: read that file.")
        return self.table.to_pandas()

    def __str__(self) -> str:
        return self.to_text()
