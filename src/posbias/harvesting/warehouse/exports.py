"""From what a warehouse answered to the query of `posbias sql` to a Harvest, if all of the answer is there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from posbias.arrays import BoolArray, IntArray, group
from posbias.engines.answers import Answer, segment_numbers, select
from posbias.errors import HarvestError, LogError
from posbias.harvesting.counts import Counted
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.notes import note_contradicted, note_non_functional, note_weighting, refuse_non_functional
from posbias.harvesting.row_counts import RowCounts
from posbias.harvesting.strata import cells_from_signatures, count_non_functional, count_pairs
from posbias.harvesting.warehouse.files import DamagedError, numbers, read_columns, texts
from posbias.harvesting.warehouse.strata import cells_from_texts, parsed
from posbias.logs.layouts import LAYOUTS
from posbias.logs.weightings import WEIGHTINGS
from posbias.sql import exports as export_sql
from posbias.sql import signatures as signature_sql
from posbias.sql.codes import Coding
from posbias.sql.dialect import BUCKETS
from posbias.wording import listed

# Why rows of a replay cannot be counted.
_REASONS = {
    export_sql.NO_RANKER: "no ranker",
    export_sql.NO_POSITION: "no position, or one that is no whole number of 1 or more; positions count from 1",
    export_sql.NO_CLICK: "no click, or one that is neither 0 nor 1 (in an aggregated log: clicks that are not between "
    "0 and the impressions); or, with duplicates dropped, no page view",
    export_sql.NO_ID: "no query or no document",
}


def load_export(path: str | os.PathLike[str]) -> Harvest:
    """Read an exported answer, checking that it is whole and that its counts can be."""
    name = os.fspath(path)
    columns = read_columns(name)
    try:
        about = _about(columns)
        counted = (_from_signatures if about["table"] == "signatures" else _from_exposures)(about, columns)
        return Harvest(
            max_rank=about["max_rank"],
            rankers=counted.rankers,
            layout=LAYOUTS[about["layout"]],
            weighting=about["weighting"],
            by=tuple(about["by"]),
            segments=tuple(counted.segments),
            kind=counted.kind,
            table=counted.table,
            about={
                "posbias": about["posbias"],
                "engine": about["dialect"],
                "made": datetime.fromtimestamp(os.path.getmtime(name), UTC).isoformat(timespec="seconds"),
                "source": about["source"],
                **counted.rows.to_dict(),
            },
            findings=tuple(counted.findings),
        )
    except DamagedError as error:
        raise HarvestError(f"The export {name!r} cannot be used: {error}. {_AGAIN}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise HarvestError(f"The export {name!r} is damaged ({error!r}). {_AGAIN}") from None


_AGAIN = "Export the whole result of the query again, as it is."


def _about(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the answer says of itself, if it is one answer with all its rows."""
    _require(columns, ["about", "answer_rows"])
    rows = len(columns["about"])
    if rows == 0:
        raise DamagedError(
            "it has columns but no row. Either the log is empty (check the table, and the filter that made it), or the "
            "result was not exported"
        )
    told, missing = numbers(columns["answer_rows"], "answer_rows")
    found = [text for text in texts(columns["about"]) if text is not None]
    sizes = sorted({int(n) for n in told[~missing]})
    if len(found) > 1 or len(sizes) > 1:
        raise DamagedError(
            f"it mixes several answers (of {' and '.join(f'{n:,}' for n in sizes)} rows; {len(found)} say what they "
            "are). Give each a file of its own, and join them with posbias merge"
        )
    size = sizes[0] if sizes else 0
    if rows < size:
        raise DamagedError(
            f"it has {rows:,} of {size:,} rows. Many consoles cut what they show or download, and some write large "
            "results in several files: put all of it into one"
        )
    if rows > size or missing.any():
        raise DamagedError(f"it has {rows:,} rows where the answer has {size:,}: rows were added or repeated")
    if not found:
        raise DamagedError("the one row whose column about says what it is has lost that text")
    try:
        about = json.loads(found[0])
        version = about["version"]
    except (ValueError, KeyError, TypeError):
        raise DamagedError(f"its column about was changed: {found[0][:60]!r} is not what the query wrote") from None
    if version > export_sql.FORMAT_VERSION:
        raise DamagedError(
            f"its query has format version {version} and this posbias reads up to {export_sql.FORMAT_VERSION}: "
            "upgrade posbias, or print the query with this one"
        )
    if about["weighting"] not in WEIGHTINGS or about["buckets"] != BUCKETS:
        raise DamagedError("its column about was changed")
    return dict(about)


def _require(columns: Mapping[str, Any], names: Sequence[str]) -> None:
    missing = [name for name in names if name not in columns]
    if missing:
        raise DamagedError(f"it lacks the columns {', '.join(missing)}. Columns found: {listed(columns)}")


def _answer(
    about: dict[str, Any], columns: Mapping[str, Any], names: Sequence[str], marks: BoolArray | None = None
) -> Answer:
    """Return columns of numbers, which may be missing only where `marks` says so, and the segments."""
    labels = [f"segment_{i}" for i in range(len(about["by"]))]
    _require(columns, [*labels, *names])
    answer: Answer = {}
    for name in names:
        answer[name], missing = numbers(columns[name], name)
        bad = missing if marks is None else missing & ~marks
        if bad.any():
            raise DamagedError(f"its column {name} has no value in {int(bad.sum()):,} rows")
    for name in labels:
        found = texts(columns[name])
        if any(text is not None and not text.startswith(":") for text in found):
            raise DamagedError(f"its column {name} was changed: every value begins with a colon")
        answer[name] = np.array([*(text and text[1:] for text in found), None], dtype=object)[:-1]
    return answer


def _between(answer: Answer, name: str, low: int, high: int | IntArray, where: BoolArray) -> None:
    outside = ((answer[name] < low) | (answer[name] > high)) & where
    if outside.any():
        limit = high if isinstance(high, int) else "the impressions"
        raise DamagedError(f"its column {name} holds {answer[name][outside][0]}, which is not within {low} to {limit}")


def _refuse_repeats(keys: Sequence[IntArray]) -> None:
    first, _ = group([key - key.min(initial=0) for key in keys])
    if len(first) < len(keys[0]):
        raise DamagedError(f"{len(keys[0]) - len(first):,} of its rows repeat others, so that as many must be missing")


def _from_signatures(about: dict[str, Any], columns: Mapping[str, Any]) -> Counted:
    """Wide and long: the same table that an engine answers, with rows that cannot be counted as groups of their own."""
    m, rankers = about["max_rank"], tuple(about["rankers"])
    coding = Coding(len(rankers), m)
    first = _answer(about | {"by": []}, columns, ["code_0"])["code_0"]
    names = ["bucket", "ranker", *coding.names, "impressions", "clicks", "row_count"]
    answer = _answer(about, columns, names, marks=first < 0)
    counted = first >= 0
    _between(answer, "bucket", 0, BUCKETS - 1, counted)
    _between(answer, "ranker", 0, len(rankers) - 1, counted)
    _between(answer, "clicks", 0, answer["impressions"], counted)
    _between(answer, "row_count", 1, 2**62, np.ones_like(counted))
    for name, size in zip(coding.names, coding.sizes, strict=True):
        low = signature_sql.UNUSABLE if name == "code_0" else 0
        _between(answer, name, low, size - 1, np.ones_like(counted))
    labels = [f"segment_{i}" for i in range(len(about["by"]))]
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
        raise DamagedError("its codes hold no rank for rankers that were shown")
    return Counted("signatures", rankers, segments, cells, counts, note_contradicted(counts))


def _from_exposures(about: dict[str, Any], columns: Mapping[str, Any]) -> Counted:
    """Replay: pairs by a text of all their cells, and rows that were not counted by their mark."""
    answer = _answer(about, columns, ["bucket", "pairs", "row_count"])
    _require(columns, ["stratum"])
    everywhere = np.ones(len(answer["bucket"]), dtype=np.bool_)
    _between(answer, "bucket", export_sql.NO_ID, BUCKETS - 1, everywhere)
    _between(answer, "pairs", 1, 2**62, everywhere)
    _between(answer, "row_count", 1, 2**62, everywhere)
    labels = [f"segment_{i}" for i in range(len(about["by"]))]
    number, _ = segment_numbers(answer, labels)
    strata = [text or "" for text in texts(columns["stratum"])]
    which = {text: i for i, text in enumerate(dict.fromkeys(strata))}
    stratum = np.array([which[text] for text in strata], dtype=np.int64)
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
    table = parsed([found[i] for i in used], about["max_rank"])
    segment, segments = segment_numbers(good, labels)
    cells = cells_from_texts(good, segment, np.searchsorted(used, good["stratum"]), table)
    several, pairs = count_non_functional(cells), count_pairs(cells)
    refuse_non_functional(about["non_functional"], several, pairs)
    findings = [*note_non_functional(several, pairs), *note_weighting(about["weighting"])]
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
