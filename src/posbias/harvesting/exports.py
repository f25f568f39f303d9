"""Read the exported answer of a warehouse."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from posbias._arrays import BoolArray, IntArray, group
from posbias._json import Reader, RecordError, abbreviated, integer, mapping, nullable, one_of, parse, read_record, text
from posbias._text import listed, printable
from posbias.engines.base import Answer, filter_rows, from_arrow, segment_numbers
from posbias.errors import HarvestError, LogError
from posbias.harvesting.count import MAX_COUNT, CountedLog, TableKind, check_findings, table_kind
from posbias.harvesting.files import (
    Terms,
    check_harvest,
    csv_header,
    first_line,
    open_csv,
    read_parquet,
    read_terms,
)
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.row_checks import (
    RowCounts,
    check_non_functional,
    find_biased_weighting,
    find_click_defects,
    find_contradicted_ranks,
    find_non_functional,
    no_ranker_finding,
)
from posbias.harvesting.tables import Cells, cells_from_signatures, count_non_functional, count_pairs, count_positions
from posbias.sql import exports as export_sql
from posbias.sql import signatures as signature_sql
from posbias.sql.dialects import BUCKETS
from posbias.sql.exports import FORMAT_VERSION
from posbias.sql.plan import SignatureCoding

# Rank, impressions and clicks, as few digits as numbers that add up, then the ranker.
_CELL = re.compile(r"([0-9]{1,16}):([0-9]{1,16}):([0-9]{1,16}):(.*)", re.DOTALL)
_LONGEST = 2**20
# Ways to write a missing value. No text of an answer is one of them.
_MISSING = ["", "NULL", "null", "\\N", "None", "nan", "NaN", "NA", "<NA>"]
# Up to here a fraction of 64 bits tells every whole number.
_EXACT = 2**53
# Why rows of a replay cannot be counted.
_REASONS = {
    export_sql.NO_RANKER: "no ranker",
    export_sql.NO_POSITION: "no position, or one that is no whole number of 1 or more; positions count from 1",
    export_sql.NO_CLICK: "no click, or one that is neither 0 nor 1 (in an aggregated log: clicks that are not between "
    "0 and the impressions); or, with duplicates dropped, no page view",
    export_sql.NO_ID: "no query or no document",
}
_AGAIN = "Export the whole result of the query again, as it is."
_ABOUT: dict[str, Reader[Any]] = {
    "table": one_of(("signatures", "exposures")),
    "non_functional": one_of(("share", "refuse")),
    "ranker": nullable(text),
    "window": nullable(text),
    "posbias": text,
    "dialect": text,
    "source": text,
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
            findings=(*counted.findings, *find_click_defects(count_positions(counted.table))),
        )
        check_harvest(harvest)
        check_findings(harvest.findings, force=force)
        return harvest
    except RecordError as error:
        raise HarvestError(
            f"The export {name!r} cannot be used: {printable(str(error))}. {error.remedy or _AGAIN}"
        ) from None


def read_columns(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the columns of an export by their names in lower case, as Arrow arrays."""

    name = os.fspath(path)
    with open(name, "rb") as file:
        parquet = file.read(4) == b"PAR1"
    try:
        table = read_parquet(name) if parquet else _read_csv(name)
    except RecordError as error:
        raise HarvestError(
            f"The export {name!r} cannot be used: {printable(str(error))}. It may have been cut: export the whole "
            "result again."
        ) from None
    names = [column.strip().lower() for column in table.column_names]
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise HarvestError(f"The export {name!r} has the column {twice[0]!r} twice. Export the result as it is.")
    return {column: table.column(i).combine_chunks() for i, column in enumerate(names)}


def _read_csv(name: str) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    names, delimiter = csv_header(name)
    try:
        with open_csv(name) as file:
            return csv.read_csv(
                file,
                read_options=csv.ReadOptions(column_names=names, skip_rows=1),
                parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=_MISSING,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=True,
                ),
            )
    # What readers raise on hostile bytes is anything: errors of Arrow, of zlib, of text, of memory.
    except Exception as error:
        raise RecordError(f"it cannot be read as CSV ({first_line(error)})") from None


def read_about(columns: Mapping[str, Any]) -> About:
    """Return what the answer says of itself, if it is one answer with all its rows."""
    require(columns, ["about", "answer_rows"])
    rows = len(columns["about"])
    if rows == 0:
        raise RecordError(
            "it has columns but no row. Either the log is empty (check the table, and the filter that made it), or the "
            "result was not exported"
        )
    number, missing = numbers(columns["answer_rows"], "answer_rows")
    found = [told for told in texts(columns["about"], "about") if told is not None]
    sizes = sorted({int(n) for n in number[~missing]})
    if len(found) > 1 or len(sizes) > 1:
        raise RecordError(
            f"it mixes several answers (of {' and '.join(f'{n:,}' for n in sizes)} rows; {len(found)} say what they "
            "are). Give each a file of its own, and join them with posbias merge"
        )
    size = sizes[0] if sizes else 0
    if rows < size:
        raise RecordError(
            f"it has {rows:,} of {size:,} rows. Many consoles cut what they show or download, and some write large "
            "results in several files: put all of it into one"
        )
    if rows > size or missing.any():
        raise RecordError(f"it has {rows:,} rows where the answer has {size:,}: rows were added or repeated")
    if not found:
        raise RecordError("the one row whose column about says what it is has lost that text")
    return _parsed(found[0])


@dataclass(frozen=True)
class About:
    """What an answer says of itself."""

    kind: TableKind
    terms: Terms
    non_functional: str
    # Whether the log names no ranker, and within what its documents are compared.
    natural: bool
    window: str | None
    posbias: str
    dialect: str
    source: str


def require(columns: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse an answer that lacks columns."""
    missing = [name for name in names if name not in columns]
    if missing:
        raise RecordError(f"it lacks the columns {', '.join(missing)}. Columns found: {listed(columns)}")


def numbers(column: Any, name: str) -> tuple[IntArray, BoolArray]:
    """Return a column of whole numbers, with 0 for a missing one, and which are missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        whole = _whole(column)
    except (pa.ArrowException, OverflowError):
        example = next((value for value in texts(column, name) if not _is_whole(value)), column.type)
        raise RecordError(f"its column {name} holds {abbreviated(str(example))}, which is not a whole number") from None
    missing = np.zeros(len(whole), dtype=np.bool_)
    if whole.null_count:
        missing[:] = pc.is_null(whole).to_pylist()
    return from_arrow(pa.table({name: whole}))[name], missing


def _whole(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_boolean(column.type):
        raise pa.ArrowInvalid("a boolean is no number")
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return pc.cast(column, pa.int64())
    trimmed = pc.utf8_trim_whitespace(column)
    try:
        return pc.cast(trimmed, pa.int64())
    except pa.ArrowInvalid:
        # 3.0, as tools write it that make a column with missing values one of fractions.
        real = pc.cast(trimmed, pa.float64())
        if pc.any(pc.greater_equal(pc.abs(real), _EXACT)).as_py():
            raise
        return pc.cast(real, pa.int64())


def texts(column: Any, name: str) -> list[str | None]:
    """Return a column of texts."""
    import pyarrow as pa

    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        raise RecordError(f"its column {name} holds bytes that are not text in UTF-8") from None
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return [value if value is None else value.decode("utf-8", "replace") for value in values]
    return [value if value is None else str(value) for value in values]


def _is_whole(text: str | None) -> bool:
    try:
        return text is None or (abs(float(text)) < _EXACT and float(text) % 1 == 0)
    except (ValueError, OverflowError):
        return False


def _parsed(told: str) -> About:
    """Return what the query wrote into the answer."""
    try:
        record = mapping(parse(told), "it")
        version = read_record(record, "", {"version": integer(1)})["version"]
        if version > FORMAT_VERSION:
            raise RecordError(
                f"its query has format version {version} and this posbias reads up to {FORMAT_VERSION}",
                "Upgrade posbias, or print the query with this one.",
            )
        found = read_record(record, "", _ABOUT, defaults={"ranker": "", "window": None})
        about = About(
            kind=found["table"],
            terms=read_terms(record),
            non_functional=found["non_functional"],
            natural=found["ranker"] is None,
            window=found["window"],
            posbias=found["posbias"],
            dialect=found["dialect"],
            source=found["source"],
        )
    except RecordError as error:
        if error.remedy is not None:
            raise
        raise RecordError(f"its column about was changed: {error}") from None
    terms = about.terms
    if about.kind != table_kind(terms.layout, terms.weighting) or bool(terms.rankers) != (about.kind == "signatures"):
        raise RecordError(
            f"its column about was changed: no query counts {about.kind} of {len(terms.rankers):,} named rankers in a "
            f"{terms.layout.value} log weighted by {terms.weighting}"
        )
    return about


def _from_signatures(about: About, columns: Mapping[str, Any]) -> CountedLog:
    """Wide and long: the same table that an engine answers, with rows that cannot be counted as groups of their own."""
    rankers, labels = about.terms.rankers, _labels(about)
    coding = SignatureCoding(len(rankers), about.terms.max_rank)
    first = _answer([], columns, ["code_0"])["code_0"]
    names = ["bucket", "ranker", *coding.names, "impressions", "clicks", "row_count"]
    answer = _answer(labels, columns, names, marks=first < 0)
    counted, everywhere = first >= 0, np.ones_like(first, dtype=np.bool_)
    _between(answer, "bucket", 0, BUCKETS - 1, everywhere)
    _between(answer, "ranker", 0, len(rankers) - 1, everywhere)
    _between(answer, "impressions", 0, MAX_COUNT, counted)
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
    good = filter_rows(answer, counted)
    segment, segments = segment_numbers(good, labels)
    cells = cells_from_signatures(good, segment, coding)
    if int(cells.impressions.sum()) != int(good["impressions"].sum()):
        raise RecordError("its codes hold no rank for rankers that were shown")
    return CountedLog("signatures", rankers, segments, cells, counts, find_contradicted_ranks(counts))


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
            raise RecordError(f"its column {name} has no value in {int(bad.sum()):,} rows")
    for name in labels:
        found = texts(columns[name], name)
        if any(value is not None and not value.startswith(":") for value in found):
            raise RecordError(f"its column {name} was changed: every value begins with a colon")
        answer[name] = np.array([*(value and value[1:] for value in found), None], dtype=object)[:-1]
    return answer


def _between(answer: Answer, name: str, low: int, high: int | IntArray, where: BoolArray) -> None:
    outside = ((answer[name] < low) | (answer[name] > high)) & where
    if outside.any():
        limit = high if isinstance(high, int) else "the impressions"
        raise RecordError(f"its column {name} holds {answer[name][outside][0]}, which is not within {low} to {limit}")


def _check_row_counts(rows: IntArray) -> None:
    _between({"row_count": rows}, "row_count", 1, MAX_COUNT, np.ones_like(rows, dtype=np.bool_))
    if float(rows.sum(dtype=np.float64)) > MAX_COUNT:
        raise RecordError(f"its column row_count adds up to more than {MAX_COUNT:,}")


def _refuse_repeats(keys: Sequence[IntArray]) -> None:
    first, _ = group([key - key.min(initial=0) for key in keys])
    if len(first) < len(keys[0]):
        raise RecordError(f"{len(keys[0]) - len(first):,} of its rows repeat others, so that as many must be missing")


def _refuse_unusable(rows: int, found: Mapping[str, int]) -> None:
    """Refuse a log with rows that cannot be counted, saying why."""
    unusable = sum(found.values())
    if unusable:
        reasons = "\n".join(f"  - {n:,} rows have {why}" for why, n in found.items() if n)
        raise LogError(
            f"{unusable:,} of {rows:,} rows of the log cannot be used:\n{reasons}\nLeave such rows out (query a view "
            "or a table without them), or repair the job that writes the log, and run the query again."
        )


def _from_exposures(about: About, columns: Mapping[str, Any]) -> CountedLog:
    """Replay: pairs by a text of all their cells, and rows that were not counted by their mark."""
    labels = _labels(about)
    answer = _answer(labels, columns, ["bucket", "pairs", "row_count"])
    require(columns, ["stratum"])
    everywhere = np.ones(len(answer["bucket"]), dtype=np.bool_)
    _between(answer, "bucket", export_sql.NO_ID, BUCKETS - 1, everywhere)
    _between(answer, "pairs", 1, MAX_COUNT, everywhere)
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
    good = filter_rows(answer | {"stratum": stratum}, counted)
    used = np.unique(good["stratum"])
    found = list(which)
    table = parsed([found[i] for i in used], about.terms.max_rank)
    segment, segments = segment_numbers(good, labels)
    cells = cells_from_texts(good, segment, np.searchsorted(used, good["stratum"]), table)
    findings = find_biased_weighting(about.terms.weighting)
    if about.natural:
        findings = [no_ranker_finding(about.window), *findings]
    else:
        several, pairs = count_non_functional(cells), count_pairs(cells)
        check_non_functional(about.non_functional, several, pairs)
        findings = [*find_non_functional(several, pairs), *findings]
        counts = replace(counts, non_functional_pairs=several)
    return CountedLog("exposures", table.rankers, segments, cells, counts, findings)


def parsed(texts: Sequence[str], max_rank: int) -> Parsed:
    """Return the cells that texts hold.

    >>> parsed(["1:3:2:a 2:5:0:b~sc", "1:3:1:a 2:5:0:b~sc"], 10).rankers
    ('a', 'b c')
    """
    strata = [sorted(_cells(text, max_rank)) for text in texts]
    rankers = tuple(sorted({name for stratum in strata for name, *_ in stratum}))
    index = {name: i for i, name in enumerate(rankers)}
    exposures: dict[tuple[tuple[str, int, int], ...], int] = {}
    exposure = [exposures.setdefault(tuple(cell[:3] for cell in stratum), len(exposures)) for stratum in strata]
    size = np.array([len(stratum) for stratum in strata], dtype=np.int64)
    flat = [(index[name], *counts) for stratum in strata for name, *counts in stratum]
    ranker, rank, impressions, clicks = np.array(flat, dtype=np.int64).reshape(-1, 4).T
    start = np.cumsum(size) - size
    return Parsed(rankers, start, size, np.array(exposure, dtype=np.int64), ranker, rank, impressions, clicks)


@dataclass(frozen=True)
class Parsed:
    """The cells of distinct texts, one text after another.

    `start` is where each text's cells begin and `size` how many they are; `exposure` is the same number for texts with
    the same ranks and impressions, whatever their clicks.
    """

    rankers: tuple[str, ...]
    start: IntArray
    size: IntArray
    exposure: IntArray
    ranker: IntArray
    rank: IntArray
    impressions: IntArray
    clicks: IntArray


def _cells(text: str, max_rank: int) -> list[tuple[str, int, int, int]]:
    """Return ranker, rank, impressions and clicks of every cell in a text."""
    cells = []
    for cell in text[:_LONGEST].split(" "):
        parts = _CELL.fullmatch(cell)
        if parts is None or len(text) > _LONGEST:
            raise RecordError(f"its column stratum holds {abbreviated(text)}, which is not what the query wrote")
        rank, impressions, clicks = (int(part) for part in parts.groups()[:3])
        if not (1 <= rank <= max_rank and 0 <= clicks <= impressions and impressions > 0):
            raise RecordError(f"its column stratum holds {abbreviated(text)}, with a rank or clicks that cannot be")
        cells.append((_name(parts[4]), rank, impressions, clicks))
    if len({cell[:2] for cell in cells}) < len(cells):
        raise RecordError(f"its column stratum holds {abbreviated(text)}, with one rank of a ranker twice")
    return cells


def _name(escaped: str) -> str:
    """Return a ranker's name as it was before spaces and tildes were written otherwise."""
    return "~".join(part.replace("~s", " ") for part in escaped.split("~~"))


def cells_from_texts(answer: Answer, segment: IntArray, text: IntArray, table: Parsed) -> Cells:
    """Return the cells of an exported replay: rows with the same exposure are one stratum, whatever their clicks."""
    shown_times = (
        np.add.reduceat(table.impressions.astype(np.float64), table.start) if len(table.start) else table.start
    )
    if float(np.sum(shown_times[text] * answer["pairs"].astype(np.float64))) > MAX_COUNT:
        raise RecordError(f"its impressions add up to more than {MAX_COUNT:,}")
    first, stratum = group([segment, answer["bucket"], table.exposure[text]])
    size = table.size[text[first]]
    pairs = np.zeros(len(first), dtype=np.int64)
    np.add.at(pairs, stratum, answer["pairs"])
    # Every row adds its clicks to the cells of its stratum, in their order.
    row = np.repeat(np.arange(len(text)), table.size[text])
    place = np.arange(len(row)) - np.repeat(np.cumsum(table.size[text]) - table.size[text], table.size[text])
    target = (np.cumsum(size) - size)[stratum[row]] + place
    clicks = np.zeros(int(size.sum()), dtype=np.int64)
    np.add.at(clicks, target, table.clicks[table.start[text[row]] + place] * answer["pairs"][row])

    owner = np.repeat(np.arange(len(first)), size)
    cell = table.start[text[first]][owner] + np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size)
    return Cells(
        segment=segment[first][owner],
        bucket=answer["bucket"][first][owner],
        stratum=owner,
        pairs=pairs[owner],
        ranker=table.ranker[cell],
        rank=table.rank[cell],
        impressions=table.impressions[cell] * pairs[owner],
        clicks=clicks,
    )
