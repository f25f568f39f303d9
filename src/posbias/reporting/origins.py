"""Where a report's numbers come from, so that they can be made again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from posbias.harvesting.harvests import Harvest
from posbias.logs.click_log import ClickLog
from posbias.logs.schemas import ANY_RANKER
from posbias.wording import shell

# What is kept with a harvest, as it is called on the page; the last of them only where there are any.
_TOLD = {
    "made": "harvested",
    "engine": "engine",
    "posbias": "harvested by posbias",
    "rows": "rows of the log",
    "rows_counted": "rows counted",
}
_COUNTED = {
    "parts": "harvests merged",
    "rows_beyond": "rows beyond the top ranks",
    "rows_contradicted": "rows shown where their ranker does not put them",
    "non_functional_pairs": "pairs with several ranks by one ranker",
}
_COLUMNS = ("query", "doc", "ranker", "position", "click", "impressions", "clicks", "impression", "ranks", "window")
_LAYOUTS = {
    "wide": "in columns of the log",
    "long": "in a second table",
    "replay": "as shown when queries recurred",
}


@dataclass(frozen=True)
class Origin:
    """What a harvest was made of.

    Attributes:
        facts: what is known of the log and of the harvest, in the order of the page.
        page_views: n_i, by ranker.
        path: of the file; None where it was none.
        kind: "log" or "harvest": what that file is.
    """

    facts: Mapping[str, str]
    page_views: Mapping[str, int]
    path: str | None
    kind: str

    @classmethod
    def of(cls, harvest: Harvest, path: str | None, log: ClickLog | None) -> Origin:
        """Return where a harvest comes from: a file, if it is one, and a log, if that is known."""
        about = harvest.about
        told = {name: _fact(about[key]) for key, name in _TOLD.items() if about.get(key) is not None}
        told |= {name: _fact(about[key]) for key, name in _COUNTED.items() if about.get(key)}
        named = harvest.rankers != (ANY_RANKER,)
        facts = {
            "log": str(about.get("source", "not known")),
            "columns": "by their default names, but for those that the log names" if log is None else _columns(log),
            **told,
            "ranks known": _LAYOUTS.get(harvest.layout.value, harvest.layout.value),
            "ranks compared": f"1 to {harvest.max_rank}",
            "weighting of pairs": harvest.weighting,
            "segment columns": ", ".join(harvest.by) or "none",
            "segments": f"{len(harvest.segments):,}" if harvest.by else "none",
            "rankers": f"{len(harvest.rankers):,}" if named else "not named",
            "buckets of queries": f"{len(harvest.buckets):,}",
        }
        return cls(facts, dict(harvest.page_views), path, "harvest" if log is None else "log")

    @property
    def source(self) -> str:
        """The file as one would type it in a shell, or a word in its place."""
        return "LOG" if self.path is None else shell(self.path)

    @property
    def log(self) -> str:
        """The log as one would type it in a shell, or a word in its place."""
        return self.source if self.kind == "log" else "LOG"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"facts": dict(self.facts), "page_views": dict(self.page_views)}


def _columns(log: ClickLog) -> str:
    """Return what the columns of a log are called."""
    named = {name: getattr(log, name) for name in _COLUMNS}
    if log.clicks is not None:
        named.pop("click")
    return ", ".join(f"{name}: {column}" for name, column in named.items() if isinstance(column, str))


def _fact(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
