"""What was found out about a log, as a value: for people as a text, for programs as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any

from posbias.errors import Spelling
from posbias.findings import Finding, any_error
from posbias.frames import Columns, pandas_frame, polars_frame
from posbias.harvesting.profiles import Shown
from posbias.logs.layouts import Layout
from posbias.tables import Column, folded, html_table, table
from posbias.version import __version__
from posbias.wording import as_python, printable

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

_MOST_RANKERS = 12


@dataclass(frozen=True)
class Check:
    """What was understood of a log, and what is wrong with it.

    Attributes:
        findings: everything that is wrong, each with its `code`, `severity`, `message`, `count`, `example`, `evidence`,
            `remedy` and the `arguments` that would mend it.
        layout: wide, long or replay; None, as all that follows, if the log could not be opened.
        max_rank: M; what lies beyond is not harvested.
        columns: the columns in use, by what they mean.
        ranks: the rank column of each ranker, in a wide log.
        rows: rows in all.
        rows_beyond: rows shown beyond the top M.
        queries: distinct queries.
        queries_shared: in replay, queries that more than one ranker served.
        page_views: page views of each ranker.
        positions: impressions and clicks at each position of the top M.
        documents: distinct (query, document) pairs in the top M; None if rows are too defective to count.
        moved: those of them that lie at different ranks by different rankers; None likewise.
        documents_one_in: both, and queries where ranks are known, are so many times those of a sample of one query in
            so many: of all where it is 1. Where no ranker contradicts itself in the sample, none is looked for beyond.
    """

    findings: tuple[Finding, ...]
    layout: Layout | None = None
    max_rank: int = 10
    columns: Mapping[str, str] = field(default_factory=dict)
    ranks: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    rows_beyond: int = 0
    queries: int = 0
    queries_shared: int | None = None
    page_views: Mapping[str, int] = field(default_factory=dict)
    positions: tuple[Shown, ...] = ()
    documents: int | None = None
    moved: int | None = None
    documents_one_in: int = 1

    @property
    def usable(self) -> bool:
        """Whether the log can be harvested."""
        return not any_error(self.findings)

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return the check as `--json` prints it: the attributes by name, and `usable` and `version`."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        told |= {
            "findings": [finding.to_dict(spell) for finding in self.findings],
            "layout": self.layout and self.layout.value,
            "positions": [shown._asdict() for shown in self.positions],
        }
        return {"usable": self.usable, **told, "version": __version__}

    def to_text(self, spell: Spelling = as_python) -> str:
        """Return the check for people, with arguments that would help spelled as they would write them."""
        parts = (self._understood(), self._click_rates(), self._complaints(spell))
        return "\n\n".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.to_text()

    def to_pandas(self) -> pd.DataFrame:
        """Return the findings as a frame of pandas, a row for each."""
        return pandas_frame(self._finding_columns())

    def to_polars(self) -> pl.DataFrame:
        """Return the findings as a frame of Polars, a row for each."""
        return polars_frame(self._finding_columns())

    def _finding_columns(self) -> Columns:
        told = [finding.to_dict() for finding in self.findings]
        kinds = {"code": str, "severity": str, "message": str, "count": int, "example": str, "remedy": str, "add": str}
        return {name: (kind, [each[name] for each in told]) for name, kind in kinds.items()}

    def _repr_html_(self) -> str:
        parts = [f"<pre>{escape(self._understood())}</pre>"] if self.layout else []
        parts += [html_table(self._rates())] if self.positions else []
        return "\n".join([*parts, f"<pre>{escape(self._complaints(as_python))}</pre>"])

    def _understood(self) -> str:
        if self.layout is None:
            return ""
        lines = _fact("layout", f"{self.layout}: {self.layout.words}")
        lines += _fact("columns", ", ".join(f"{role}={name}" for role, name in self.columns.items()))
        if self.ranks:
            lines += _fact("ranks", _some(list(self.ranks.values())))
        beyond = (
            f", {self.rows_beyond:,} of them beyond rank {self.max_rank} and not counted" if self.rows_beyond else ""
        )
        lines += _fact("rows", f"{self.rows:,}{beyond}")
        shared = self.queries_shared
        several = "" if shared is None else f", {_share(shared, self.queries)} served by several rankers"
        about = "about " if self.documents_one_in > 1 else ""
        lines += _fact("queries", f"{about}{self.queries:,}{several}")
        lines += _fact("page views", f"{sum(self.page_views.values()):,}")
        lines += self._traffic()
        if self.documents is not None and self.moved is not None:
            moved = _share(self.moved, self.documents)
            # Where a document is compared with itself only within a day, it is another one on another day.
            within = f" by {self.columns['window']}" if "window" in self.columns else ""
            counted = f"{about}{self.documents:,} distinct (query, document) pairs{within}"
            where = "put at different ranks by the rankers" if "ranker" in self.columns else "shown at several ranks"
            lines += _fact("documents", f"{counted}, {about}{moved} {where}")
        if self.documents_one_in > 1:
            looked = f"one query in {self.documents_one_in:,}, to count documents and to see whether"
            lines += _fact("sample", f"{looked} a ranker puts one at several ranks")
        return "\n".join(lines)

    def _traffic(self) -> list[str]:
        views = sum(self.page_views.values())
        shown = sorted(self.page_views.items(), key=lambda item: -item[1])[:_MOST_RANKERS]
        if not shown:
            return []
        columns = [
            Column("ranker", [printable(name) for name, _ in shown], left=True),
            Column("page views", [f"{n:,}" for _, n in shown]),
            Column("share", [f"{n / max(views, 1):.1%}" for _, n in shown]),
        ]
        lines = table(columns, indent=12).splitlines()
        more = len(self.page_views) - len(shown)
        return [*lines, f"{'':12}and {more} more"] if more else lines

    def _click_rates(self) -> str:
        return table(self._rates()) if self.positions else ""

    def _rates(self) -> list[Column]:
        return [
            Column("rank", [f"{p.position}" for p in self.positions]),
            Column("impressions", [f"{p.impressions:,}" for p in self.positions]),
            Column("clicks", [f"{p.clicks:,}" for p in self.positions]),
            Column("click rate", [_rate(p) for p in self.positions]),
        ]

    def _complaints(self, spell: Spelling) -> str:
        if not self.findings:
            return "No problem found. The log can be used."
        blocks = [finding.block(spell) for finding in sorted(self.findings, key=lambda f: f.severity != "error")]
        verdict = "The log can be used." if self.usable else "The log cannot be used as it is."
        return "\n\n".join([*blocks, verdict])


def _rate(shown: Shown) -> str:
    return f"{shown.clicks / shown.impressions:.2%}" if shown.impressions else "–"


def _share(part: int, whole: int) -> str:
    return f"{part:,} of them ({part / whole:.1%})" if whole else f"{part:,}"


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_RANKERS
    return ", ".join(names[:_MOST_RANKERS]) + (f" and {more} more" if more > 0 else "")


def _fact(name: str, text: str) -> list[str]:
    """Return a line of what was understood, wrapped under itself."""
    return folded(printable(text), f"{name:<12}", " " * 12)
