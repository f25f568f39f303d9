"""From what a warehouse answered to the query of `posbias sql` to a Harvest, if all of the answer is there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from posbias.arrays import BoolArray, IntArray, group
from posbias.engines.answers import Answer, segment_numbers, select
from posbias.errors import HarvestError, LogError
from posbias.harvesting.counts import MOST_COUNT, Counted
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.notes import (
    natural_variation,
    note_contradicted,
    note_non_functional,
    note_weighting,
    refuse_non_functional,
)
from posbias.harvesting.refusals import refuse_errors
from posbias.harvesting.row_counts import RowCounts
from posbias.harvesting.shortages import find_no_clicks
from posbias.harvesting.strata import cells_from_signatures, count_non_functional, count_pairs, count_positions
from posbias.harvesting.validation import check_harvest
from posbias.harvesting.warehouse.abouts import About, read_about, require
from posbias.harvesting.warehouse.files import numbers, read_columns, texts
from posbias.harvesting.warehouse.strata import cells_from_texts, parsed
from posbias.records import UnfitError
from posbias.sql import exports as export_sql
from posbias.sql import signatures as signature_sql
from posbias.sql.codes import Coding
from posbias.sql.dialect import BUCKETS
from posbias.wording import listed, printable

# Why rows of a replay cannot be counted.
_REASONS = {
    export_sql.NO_RANKER: "no ranker",
    export_sql.NO_POSITION: "no position, or one that is no whole number of 1 or more; positions count from 1",
    export_sql.NO_CLICK: "no click, or one that is neither 0 nor 1 (in an aggregated log: clicks that are not between "
    "0 and the impressions); or, with duplicates dropped, no page view",
    export_sql.NO_ID: "no query or no document",
}


def load_export(path: str | os.PathLike[str], *, force: bool = False) -> Harvest:
    """Read an exported answer, checking that it is whole and that its counts can be.

    What its counts tell of a damaged log is refused as in a harvest of it, unless the user wants to go on.
    """
    name = os.fspath(path)
    columns = read_columns(name)
    try:
        about = read_about(columns)
        counted = (_from_signatures if about.kind == "signatures" else _from_exposures)(about, columns)
        harvest = Harvest(
            max_rank=about.terms.max_rank,
            rankers=counted.rankers,
            layout=about.terms.layout,
            weighting=about.terms.weighting,
            by=about.terms.by,
            segments=tuple(counted.segments),
            kind=counted.kind,
            table=counted.table,
            about={
                "posbias": about.posbias,
                "engine": about.dialect,
                "made": datetime.fromtimestamp(os.path.getmtime(name), UTC).isoformat(timespec="seconds"),
                "source": about.source,
                **counted.rows.to_dict(),
            },
            findings=(*counted.findings, *find_no_clicks(count_positions(counted.table))),
        )
        check_harvest(harvest)
        refuse_errors(harvest.findings, force=force)
        return harvest
    except UnfitError as error:
        raise HarvestError(
            f"The export {name!r} cannot be used: {printable(str(error))}. {error.remedy or _AGAIN}"
        ) from None


_AGAIN = "Export the whole result of the query again, as it is."


def _labels(about: About) -> list[str]:
    return [f"segment_{i}" for i in range(len(about.terms.by))]


def _answer(
    labels: Sequence[str], columns: Mapping[str, Any], names: Sequence[str], marks: BoolArray | None = None
) -> Answer:
    """Return columns of numbers, which may be missing only where `marks` says so, and the segments."""
    require(columns, [*labels, *names])
    answer: Answer = {}
    for name in names:
        answer[name], missing = numbers(columns[name], name)
        bad = missing if marks is None else missing & ~marks
        if bad.any():
            raise UnfitError(f"its column {name} has no value in {int(bad.sum()):,} rows")
    for name in labels:
        found = texts(columns[name], name)
        if any(value is not None and not value.startswith(":") for value in found):
            raise UnfitError(f"its column {name} was changed: every value begins with a colon")
        answer[name] = np.array([*(value and value[1:] for value in found), None], dtype=object)[:-1]
    return answer


def _between(answer: Answer, name: str, low: int, high: int | IntArray, where: BoolArray) -> None:
    outside = ((answer[name] < low) | (answer[name] > high)) & where
    if outside.any():
        limit = high if isinstance(high, int) else "the impressions"
        raise UnfitError(f"its column {name} holds {answer[name][outside][0]}, which is not within {low} to {limit}")


def _check_row_counts(rows: IntArray) -> None:
    _between({"row_count": rows}, "row_count", 1, MOST_COUNT, np.ones_like(rows, dtype=np.bool_))
    if float(rows.sum(dtype=np.float64)) > MOST_COUNT:
        raise UnfitError(f"its column row_count adds up to more than {MOST_COUNT:,}")


def _refuse_repeats(keys: Sequence[IntArray]) -> None:
    first, _ = group([key - key.min(initial=0) for key in keys])
    if len(first) < len(keys[0]):
        raise UnfitError(f"{len(keys[0]) - len(first):,} of its rows repeat others, so that as many must be missing")


def _from_signatures(about: About, columns: Mapping[str, Any]) -> Counted:
    """Wide and long: the same table that an engine answers, with rows that cannot be counted as groups of their own."""
    rankers, labels = about.terms.rankers, _labels(about)
    coding = Coding(len(rankers), about.terms.max_rank)
    first = _answer([], columns, ["code_0"])["code_0"]
    names = ["bucket", "ranker", *coding.names, "impressions", "clicks", "row_count"]
    answer = _answer(labels, columns, names, marks=first < 0)
    counted, everywhere = first >= 0, np.ones_like(first, dtype=np.bool_)
    _between(answer, "bucket", 0, BUCKETS - 1, everywhere)
    _between(answer, "ranker", 0, len(rankers) - 1, everywhere)
    _between(answer, "impressions", 0, MOST_COUNT, counted)
    _between(answer, "clicks", 0, answer["impressions"], counted)
    _check_row_counts(answer["row_count"])
    for name, size in zip(coding.names, coding.sizes, strict=True):
        low = signature_sql.UNUSABLE if name == "code_0" else 0
        _between(answer, name, low, size - 1, everywhere)
    number, _ = segment_numbers(answer, labels)
    _, absent = numbers(columns["ranker"], "ranker")
    _refuse_repeats([number, *(answer[name] for name in ("bucket", "ranker", *coding.names)), absent.astype(np.int64)])

    rows = answer["row_count"]
    counts = RowCounts.by_code(first, rows)
    unusable = first == signature_sql.UNUSABLE
    known = listed(rankers)
    _refuse_unusable(
        counts.rows,
        {
            f"no ranker, or one whose ranks are not known: the query names {known}. Name all of them (rankers)": int(
                rows[unusable & absent].sum()
            ),
            f"no query; or {_REASONS[export_sql.NO_POSITION]}; or {_REASONS[export_sql.NO_CLICK]}": int(
                rows[unusable & ~absent].sum()
            ),
        },
    )
    good = select(answer, counted)
    segment, segments = segment_numbers(good, labels)
    cells = cells_from_signatures(good, segment, coding)
    if int(cells.impressions.sum()) != int(good["impressions"].sum()):
        raise UnfitError("its codes hold no rank for rankers that were shown")
    return Counted("signatures", rankers, segments, cells, counts, note_contradicted(counts))


def _from_exposures(about: About, columns: Mapping[str, Any]) -> Counted:
    """Replay: pairs by a text of all their cells, and rows that were not counted by their mark."""
    labels = _labels(about)
    answer = _answer(labels, columns, ["bucket", "pairs", "row_count"])
    require(columns, ["stratum"])
    everywhere = np.ones(len(answer["bucket"]), dtype=np.bool_)
    _between(answer, "bucket", export_sql.NO_ID, BUCKETS - 1, everywhere)
    _between(answer, "pairs", 1, MOST_COUNT, everywhere)
    _check_row_counts(answer["row_count"])
    number, _ = segment_numbers(answer, labels)
    strata = [told or "" for told in texts(columns["stratum"], "stratum")]
    which = {told: i for i, told in enumerate(dict.fromkeys(strata))}
    stratum = np.array([which[told] for told in strata], dtype=np.int64)
    _refuse_repeats([number, answer["bucket"], stratum])

    bucket, rows = answer["bucket"], answer["row_count"]
    counts = RowCounts(
        rows=int(rows.sum()),
        rows_counted=int(rows[(bucket >= 0) | (bucket == export_sql.EMPTY)].sum()),
        rows_beyond=int(rows[bucket == export_sql.BEYOND].sum()),
    )
    _refuse_unusable(counts.rows, {why: int(rows[bucket == mark].sum()) for mark, why in _REASONS.items()})
    counted = bucket >= 0
    good = select(answer | {"stratum": stratum}, counted)
    used = np.unique(good["stratum"])
    found = list(which)
    table = parsed([found[i] for i in used], about.terms.max_rank)
    segment, segments = segment_numbers(good, labels)
    cells = cells_from_texts(good, segment, np.searchsorted(used, good["stratum"]), table)
    findings = note_weighting(about.terms.weighting)
    if about.natural:
        findings = [natural_variation(about.window), *findings]
    else:
        several, pairs = count_non_functional(cells), count_pairs(cells)
        refuse_non_functional(about.non_functional, several, pairs)
        findings = [*note_non_functional(several, pairs), *findings]
        counts = replace(counts, non_functional_pairs=several)
    return Counted("exposures", table.rankers, segments, cells, counts, findings)


def _refuse_unusable(rows: int, found: Mapping[str, int]) -> None:
    """Refuse a log with rows that cannot be counted, saying why."""
    unusable = sum(found.values())
    if unusable:
        reasons = "\n".join(f"  - {n:,} rows have {why}" for why, n in found.items() if n)
        raise LogError(
            f"{unusable:,} of {rows:,} rows of the log cannot be used:\n{reasons}\nLeave such rows out (query a view "
            "or a table without them), or repair the job that writes the log, and run the query again."
        )
