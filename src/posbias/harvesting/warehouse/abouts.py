"""What an exported answer says of itself, if it is one answer with all its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posbias.harvesting.counts import Kind, kind_of
from posbias.harvesting.metadata import Terms, one_of, read_terms
from posbias.harvesting.warehouse.files import numbers, texts
from posbias.records import UnfitError, field, mapping, optional, parse, text, whole
from posbias.sql.exports import FORMAT_VERSION
from posbias.wording import listed


@dataclass(frozen=True)
class About:
    """What an answer says of itself."""

    kind: Kind
    terms: Terms
    non_functional: str
    # Whether the log names no ranker, and within what its documents are compared.
    natural: bool
    window: str | None
    posbias: str
    dialect: str
    source: str


def read_about(columns: Mapping[str, Any]) -> About:
    """Return what the answer says of itself, if it is one answer with all its rows."""
    require(columns, ["about", "answer_rows"])
    rows = len(columns["about"])
    if rows == 0:
        raise UnfitError(
            "it has columns but no row. Either the log is empty (check the table, and the filter that made it), or the "
            "result was not exported"
        )
    number, missing = numbers(columns["answer_rows"], "answer_rows")
    found = [told for told in texts(columns["about"], "about") if told is not None]
    sizes = sorted({int(n) for n in number[~missing]})
    if len(found) > 1 or len(sizes) > 1:
        raise UnfitError(
            f"it mixes several answers (of {' and '.join(f'{n:,}' for n in sizes)} rows; {len(found)} say what they "
            "are). Give each a file of its own, and join them with posbias merge"
        )
    size = sizes[0] if sizes else 0
    if rows < size:
        raise UnfitError(
            f"it has {rows:,} of {size:,} rows. Many consoles cut what they show or download, and some write large "
            "results in several files: put all of it into one"
        )
    if rows > size or missing.any():
        raise UnfitError(f"it has {rows:,} rows where the answer has {size:,}: rows were added or repeated")
    if not found:
        raise UnfitError("the one row whose column about says what it is has lost that text")
    return _parsed(found[0])


def _parsed(told: str) -> About:
    """Return what the query wrote into the answer."""
    try:
        record = mapping(parse(told), "it")
        version = whole(field(record, "version"), "version", 1)
        if version > FORMAT_VERSION:
            raise UnfitError(
                f"its query has format version {version} and this posbias reads up to {FORMAT_VERSION}",
                "Upgrade posbias, or print the query with this one.",
            )
        about = About(
            kind=one_of(field(record, "table"), "table", ("signatures", "exposures")),
            terms=read_terms(record),
            non_functional=one_of(field(record, "non_functional"), "non_functional", ("share", "refuse")),
            natural=optional(text, record.get("ranker", ""), "ranker") is None,
            window=optional(text, record.get("window"), "window"),
            posbias=text(field(record, "posbias"), "posbias"),
            dialect=text(field(record, "dialect"), "dialect"),
            source=text(field(record, "source"), "source"),
        )
    except UnfitError as error:
        if error.remedy is not None:
            raise
        raise UnfitError(f"its column about was changed: {error}") from None
    terms = about.terms
    if about.kind != kind_of(terms.layout, terms.weighting) or bool(terms.rankers) != (about.kind == "signatures"):
        raise UnfitError(
            f"its column about was changed: no query counts {about.kind} of {len(terms.rankers):,} named rankers in a "
            f"{terms.layout.value} log weighted by {terms.weighting}"
        )
    return about


def require(columns: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse an answer that lacks columns."""
    missing = [name for name in names if name not in columns]
    if missing:
        raise UnfitError(f"it lacks the columns {', '.join(missing)}. Columns found: {listed(columns)}")
