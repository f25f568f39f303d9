"""Events: what was shown and what was clicked as two tables, before anybody has joined them to a log."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from posbias.errors import LogError
from posbias.wording import shown

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
        if self.first not in (None, 0, 1) or isinstance(self.first, bool):
            raise LogError(f"first={self.first!r} must be 0 or 1: the position of the topmost result.")
        if self.preset not in (None, *PRESETS):
            raise LogError(f"preset={self.preset!r} is not known. Use one of {', '.join(map(repr, PRESETS))}.")
        if self.docs is not None and self.position is not None:
            raise LogError(
                "docs names an array of documents in the order shown, position a column beside one document a row. "
                "Give one of them."
            )

    def __repr__(self) -> str:
        given = [
            f"{field.name}={shown(getattr(self, field.name))}"
            for field in fields(self)[2:]
            if not (
                isinstance(getattr(self, field.name), str | int | None) and getattr(self, field.name) == field.default
            )
        ]
        return f"Events({', '.join([shown(self.impressions), shown(self.clicks), *given])})"
