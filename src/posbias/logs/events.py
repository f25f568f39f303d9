"""Events: what was shown and what was clicked as two tables, before anybody has joined them to a log."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Literal

from posbias.errors import LogError
from posbias.wording import shown

# In place of a column: the impressions name no ranker.
NO_RANKER = "none"
Preset = Literal["ubi"]
PRESETS: tuple[Preset, ...] = ("ubi",)
_TEXTS = ("impression", "query", "doc")
_OPTIONAL = ("docs", "position", "ranker", "application", "click_impression", "click_doc", "table", "sql", "clicks_sql")


@dataclass(frozen=True)
class Events:
    """Two tables of events: `ClickLog.from_events` makes a log of them, and says what each argument means."""

    impressions: Any
    clicks: Any
    impression: str = "impression_id"
    query: str = "query_id"
    doc: str = "doc_id"
    docs: str | None = None
    position: str | None = None
    ranker: str | None = None
    application: str | None = None
    click_impression: str | None = None
    click_doc: str | None = None
    first: int | None = None
    table: str | None = None
    sql: str | None = None
    clicks_sql: str | None = None
    preset: Preset | None = None

    def __post_init__(self) -> None:
        for name in (*_TEXTS, *_OPTIONAL):
            value = getattr(self, name)
            if not (isinstance(value, str) and value.strip()) and not (value is None and name in _OPTIONAL):
                raise LogError(f"{name}={value!r} must be a text. Leave it out if there is none to name.")
        whole = isinstance(self.first, Integral) and not isinstance(self.first, bool)
        if self.first is not None and not (whole and self.first in (0, 1)):
            raise LogError(f"first={self.first!r} must be 0 or 1: the position of the topmost result.")
        if self.preset is not None and not (isinstance(self.preset, str) and self.preset in PRESETS):
            raise LogError(f"preset={self.preset!r} is not known. Use one of {', '.join(map(repr, PRESETS))}.")
        if self.docs is not None and self.position is not None:
            raise LogError(
                "docs names an array of documents in the order shown, position a column beside one document a row. "
                "Give one of them."
            )

    @property
    def names_no_ranker(self) -> bool:
        """Whether it was said that the impressions name no ranker, whatever their columns are called."""
        return self.ranker == NO_RANKER

    def __repr__(self) -> str:
        given = [
            f"{field.name}={shown(getattr(self, field.name))}"
            for field in fields(self)[2:]
            if not (
                isinstance(getattr(self, field.name), str | int | None) and getattr(self, field.name) == field.default
            )
        ]
        return f"Events({', '.join([shown(self.impressions), shown(self.clicks), *given])})"
