"""What a harvest's file says beside the counts, as a record: every field is checked, for anyone may write one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from posbias.findings import MARKS, Finding
from posbias.harvesting.counts import MOST_RANKERS, MOST_RANKS, Kind
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.row_counts import RowCounts
from posbias.harvesting.strata import Cells, PairSums
from posbias.logs.layouts import LAYOUTS, Layout
from posbias.logs.weightings import WEIGHTINGS, Weighting
from posbias.records import UnfitError, field, mapping, number, optional, sequence, shown, text, unfit, whole
from posbias.sql.dialect import BUCKETS

FORMAT_VERSION = 2
TABLES: dict[str, type[Cells] | type[PairSums]] = {"cells": Cells, "pair_sums": PairSums}
_COMMON = (
    "version",
    "table",
    "max_rank",
    "rankers",
    "page_views",
    "layout",
    "weighting",
    "by",
    "buckets",
    "about",
    "traffic",
)
# All fields of each version: the first had texts in place of findings, and nothing to prove itself by.
_FIELDS = {1: (*_COMMON, "warnings"), 2: (*_COMMON, "kind", "findings", "checksum")}
# What merging adds up or repeats.
_COUNTS = (*(f.name for f in fields(RowCounts)), "parts")
_TEXTS = ("posbias", "engine", "made", "source")


@dataclass(frozen=True)
class Terms:
    """What a harvest was made with, as files of every form say it."""

    max_rank: int
    rankers: tuple[str, ...]
    layout: Layout
    weighting: Weighting
    by: tuple[str, ...]


@dataclass(frozen=True)
class Metadata:
    """What a harvest's file says of it; `kind` and `checksum` are None in a file of the first version."""

    table: type[Cells] | type[PairSums]
    terms: Terms
    kind: Kind | None
    about: Mapping[str, Any]
    findings: tuple[Finding, ...]
    traffic: list[list[float]] | None
    checksum: str | None


def record_of(harvest: Harvest) -> dict[str, Any]:
    """Return what a file says of a harvest, all but the checksum."""
    return {
        "version": FORMAT_VERSION,
        "table": "cells" if isinstance(harvest.table, Cells) else "pair_sums",
        "kind": harvest.kind,
        "max_rank": harvest.max_rank,
        "rankers": list(harvest.rankers),
        "page_views": harvest.page_views,
        "layout": harvest.layout.value,
        "weighting": harvest.weighting,
        "by": list(harvest.by),
        "buckets": BUCKETS,
        "about": dict(harvest.about),
        "findings": [asdict(finding) for finding in harvest.findings],
        "traffic": None if harvest.traffic is None else harvest.traffic.tolist(),
    }


def read_metadata(record: Any) -> Metadata:
    """Return what a record says, of any version."""
    record = mapping(record, "its metadata")
    version = whole(field(record, "version"), "version", 1)
    if version > FORMAT_VERSION:
        raise UnfitError(
            f"it has format version {version} and this posbias reads up to {FORMAT_VERSION}", "Upgrade posbias."
        )
    for name in _FIELDS[version]:
        field(record, name)
    unknown = [name for name in record if name not in _FIELDS[version]]
    if unknown:
        raise UnfitError(f"it has the field {shown(unknown[0])}, which version {version} does not know")
    terms = read_terms(record)
    views = mapping(record["page_views"], "page_views")
    for name, views_of in views.items():
        whole(views_of, f"page_views[{shown(name)}]")
    if {*views} != {*terms.rankers}:
        raise unfit("page_views", list(views), "a number for each of the rankers")
    return Metadata(
        table=TABLES[one_of(record["table"], "table", TABLES)],
        terms=terms,
        kind=None if version == 1 else one_of(record["kind"], "kind", get_args(Kind)),
        about=_about(record["about"]),
        findings=_warnings(record["warnings"]) if version == 1 else _findings(record["findings"]),
        traffic=optional(_traffic, record["traffic"], "traffic"),
        checksum=None if version == 1 else text(record["checksum"], "checksum"),
    )


def read_terms(record: Mapping[str, Any]) -> Terms:
    """Return the terms that a record names."""
    if whole(field(record, "buckets"), "buckets") != BUCKETS:
        raise unfit("buckets", record["buckets"], str(BUCKETS))
    return Terms(
        max_rank=whole(field(record, "max_rank"), "max_rank", 2, MOST_RANKS),
        rankers=_names(field(record, "rankers"), "rankers"),
        layout=LAYOUTS[one_of(field(record, "layout"), "layout", LAYOUTS)],
        weighting=one_of(field(record, "weighting"), "weighting", WEIGHTINGS),
        by=_names(field(record, "by"), "by"),
    )


def one_of(value: Any, where: str, known: Any) -> Any:
    """Return a text that is one of those known."""
    if not isinstance(value, str) or value not in known:
        raise unfit(where, value, f"one of {', '.join(map(repr, known))}")
    return value


def _names(value: Any, where: str) -> tuple[str, ...]:
    names = tuple(text(name, f"{where}[{i}]") for i, name in enumerate(sequence(value, where)))
    if len({*names}) < len(names):
        raise UnfitError(f"{where} has a name twice: {shown(names)}")
    if len(names) > MOST_RANKERS:
        raise UnfitError(f"{where} has {len(names):,} names where up to {MOST_RANKERS:,} were expected")
    return names


def _about(value: Any) -> dict[str, Any]:
    about = dict(mapping(value, "about"))
    for name, found in about.items():
        where = f"about[{shown(name)}]"
        if name in _COUNTS:
            whole(found, where)
        elif name in _TEXTS:
            text(found, where)
        else:
            _plain(found, where)
    return about


def _plain(value: Any, where: str) -> None:
    """Refuse what is neither a text nor a number nor a truth value nor null."""
    if not (value is None or isinstance(value, str | bool)):
        number(value, where)


def _warnings(value: Any) -> tuple[Finding, ...]:
    told = [text(warning, f"warnings[{i}]") for i, warning in enumerate(sequence(value, "warnings"))]
    return tuple(Finding("note", "warning", warning.removesuffix(".")) for warning in told)


def _findings(value: Any) -> tuple[Finding, ...]:
    return tuple(_finding(found, f"findings[{i}]") for i, found in enumerate(sequence(value, "findings")))


def _finding(value: Any, where: str) -> Finding:
    record = mapping(value, where)
    names = [f.name for f in fields(Finding)]
    if {*record} != {*names}:
        raise UnfitError(f"{where} has the fields {shown(list(record))} where {', '.join(names)} were expected")
    evidence, arguments = mapping(record["evidence"], f"{where}.evidence"), mapping(record["arguments"], where)
    for name, found in evidence.items():
        _plain(found, f"{where}.evidence[{shown(name)}]")
    for name, found in arguments.items():
        for one in found if isinstance(found, list) else [found]:
            text(one, f"{where}.arguments[{shown(name)}]")
    return Finding(
        code=text(record["code"], f"{where}.code"),
        severity=one_of(record["severity"], f"{where}.severity", MARKS),
        what=text(record["what"], f"{where}.what"),
        count=whole(record["count"], f"{where}.count"),
        example=optional(text, record["example"], f"{where}.example"),
        evidence=dict(evidence),
        remedy=text(record["remedy"], f"{where}.remedy"),
        arguments=dict(arguments),
    )


def _traffic(value: Any, where: str) -> list[list[float]]:
    return [
        [number(views, f"{where}[{i}][{j}]", 0) for j, views in enumerate(sequence(row, f"{where}[{i}]"))]
        for i, row in enumerate(sequence(value, where))
    ]
