"""Where a report's numbers come from, so that they can be made again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from posbias.harvesting.harvests import Harvest
from posbias.logs.click_log import ClickLog
from posbias.logs.schemas import ANY_RANKER

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
        python: how it is had in Python, as far as that can be written: lines that make `log` and `harvest`.
    """

    facts: Mapping[str, str]
    page_views: Mapping[str, int]
    path: str | None
    kind: str
    python: tuple[str, ...] = ()

    @classmethod
    def of(cls, harvest: Harvest, path: str | None, log: ClickLog | None, settings: str = "") -> Origin:
        """Return where a harvest comes from: a file, if it is one, and a log, if that is known, harvested so."""
        about = harvest.about
        told = {name: _fact(about[key]) for key, name in _TOLD.items() if about.get(key) is not None}
        told |= {name: _fact(about[key]) for key, name in _COUNTED.items() if about.get(key)}
        named = harvest.rankers != (ANY_RANKER,)
        facts = {
            "log": str(about.get("source", "not known")),
            "columns": "as named above, the others by their default names" if log is None else _columns(log),
            **told,
            "ranks known": _LAYOUTS.get(harvest.layout.value, harvest.layout.value),
            "ranks compared": f"1 to {harvest.max_rank}",
            "weighting of pairs": harvest.weighting,
            "segment columns": ", ".join(harvest.by) or "none",
            "segments": f"{len(harvest.segments):,}" if harvest.by else "none",
            "rankers": f"{len(harvest.rankers):,}" if named else "not named",
            "buckets of queries": f"{len(harvest.buckets):,}",
        }
        return cls(
            facts, dict(harvest.page_views), path, "harvest" if log is None else "log", _lines(path, log, settings)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"facts": dict(self.facts), "page_views": dict(self.page_views)}


def _lines(path: str | None, log: ClickLog | None, settings: str) -> tuple[str, ...]:
    if log is None:
        return () if path is None else (f"harvest = posbias.Harvest.load({path!r})",)
    return (f"log = posbias.{log!r}", f"harvest = posbias.harvest(log{settings and f', {settings}'})")


def _columns(log: ClickLog) -> str:
    """Return what the columns of a log are called."""
    named = {name: getattr(log, name) for name in _COLUMNS}
    if log.clicks is not None:
        named.pop("click")
    return ", ".join(f"{name}: {column}" for name, column in named.items() if isinstance(column, str))


def _fact(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
