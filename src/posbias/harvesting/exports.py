"""Load the exported answer of a warehouse to the query of `posbias sql` as a harvest.

An export is CSV or Parquet, in the types and the spelling of the warehouse. One of its rows describes the query, as
JSON in the column `about`, and each row holds the number of all rows in `answer_rows`, so an incomplete export is
noticed. `sql/exports.py` writes the query, and docs/warehouse.md describes the columns.

If ranks are known (wide, long), a row counts one signature, as in the answer of an engine. In replay, a row counts
(query, document) pairs with the same exposure and clicks. Their stratum is a text with one cell for each ranker and
rank: "rank:impressions:clicks:ranker", separated by spaces.
"""

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
    FileSettings,
    check_counts,
    check_harvest,
    check_range,
    check_values,
    csv_header,
    first_line,
    open_csv,
    read_parquet,
    read_settings,
    segment_columns,
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
from posbias.harvesting.tables import (
    Cells,
    PairSums,
    canonical,
    cells_from_signatures,
    count_non_functional,
    count_pairs,
    count_positions,
    pair_sums,
    split_buckets,
    stack_losses,
)
from posbias.logs.click_log import Segment
from posbias.sql import exports as export_sql
from posbias.sql import signatures as signature_sql
from posbias.sql.dialects import BUCKETS
from posbias.sql.exports import FORMAT_VERSION, LOSS_SCALE
from posbias.sql.exposures import LOSSES
from posbias.sql.plan import SignatureCoding

# A cell of a stratum: rank, impressions, clicks and ranker. The numbers have as many digits as exact sums can have.
_CELL = re.compile(r"([0-9]{1,16}):([0-9]{1,16}):([0-9]{1,16}):(.*)", re.DOTALL)
# What is lost without a bucket of units: two ranks, then clicks and skips at both.
_LOSSES = re.compile(r"lost:([0-9]{1,4}):([0-9]{1,4})" + r":(-?[0-9]{1,18})" * len(LOSSES))
# The longest text of a stratum.
_MAX_TEXT = 2**20
# How warehouses write a missing value. No text of an answer is one of them.
_NULL_TEXTS = ["", "NULL", "null", "\\N", "None", "nan", "NaN", "NA", "<NA>"]
# Up to this number, floating-point numbers of 64 bits represent every whole number.
_MAX_EXACT_FLOAT = 2**53
# Why rows of a replay cannot be counted, by the bucket that the query gives them.
_UNUSABLE_REASONS = {
    export_sql.NO_RANKER: "no ranker",
    export_sql.NO_POSITION: "no position, or one that is not a whole number of 1 or more; positions count from 1",
    export_sql.NO_CLICK: "no click, or one that is neither 0 nor 1 (in an aggregated log: clicks that are not between "
    "0 and the impressions), or no page view if duplicates are dropped",
    export_sql.NO_ID: "no query or no document",
}
_REMEDY = "Export the whole result of the query again, without changes."
_ABOUT_FIELDS: dict[str, Reader[Any]] = {
    "table": one_of(("signatures", "exposures")),
    "non_functional": one_of(("share", "refuse")),
    "ranker": nullable(text),
    "window": nullable(text),
    "unit": nullable(text),
    "posbias": text,
    "dialect": text,
    "source": text,
}


def load_export(path: str | os.PathLike[str], *, force: bool = False) -> Harvest:
    """Load an exported answer; one that is incomplete or was changed raises an error.

    Arguments:
        path (str or path): the export, CSV or Parquet.
        force (bool, default False): load it even if its counts show that the log is damaged.
    """
    name = os.fspath(path)
    columns = _read_columns(name)
    try:
        query = _read_about(columns)
        counted = (_from_signatures if query.kind == "signatures" else _from_exposures)(query, columns)
        harvest = Harvest(
            max_rank=query.settings.max_rank,
            rankers=counted.rankers,
            layout=query.settings.layout,
            weighting=query.settings.weighting,
            by=query.settings.by,
            segments=tuple(counted.segments),
            kind=counted.kind,
            table=counted.table,
            about={
                "posbias": query.posbias,
                "engine": query.dialect,
                "made": datetime.fromtimestamp(os.path.getmtime(name), UTC).isoformat(timespec="seconds"),
                "source": query.source,
                **counted.rows.to_dict(),
            },
            findings=(*counted.findings, *find_click_defects(count_positions(counted.table))),
        )
        harvest = harvest.with_units(query.unit, counted.by_units)
        check_harvest(harvest)
        check_findings(harvest.findings, force=force)
        by_units = [canonical(table) for table in counted.by_units]
        return replace(harvest, table=canonical(counted.table)).with_units(query.unit, by_units)
    except RecordError as error:
        raise HarvestError(
            f"The export {name!r} cannot be used: {printable(str(error))}. {error.remedy or _REMEDY}"
        ) from None


def _read_columns(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the columns of an export by their names in lower case, as Arrow arrays."""
    name = os.fspath(path)
    with open(name, "rb") as file:
        parquet = file.read(4) == b"PAR1"
    try:
        table = read_parquet(name) if parquet else _read_csv(name)
    except RecordError as error:
        raise HarvestError(
            f"The export {name!r} cannot be used: {printable(str(error))}. It may be truncated: export the "
            "whole result again."
        ) from None
    names = [column.strip().lower() for column in table.column_names]
    repeated = sorted({column for column in names if names.count(column) > 1})
    if repeated:
        raise HarvestError(f"The export {name!r} has the column {repeated[0]!r} twice. {_REMEDY}")
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
                    null_values=_NULL_TEXTS,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=True,
                ),
            )
    # Damaged bytes can raise any exception: of Arrow, of zlib, of decoding, of memory.
    except Exception as error:
        raise RecordError(f"it cannot be read as CSV ({first_line(error)})") from None


def _read_about(columns: Mapping[str, Any]) -> _ExportedQuery:
    """Return the description of the query; several answers or an incomplete one raise an error."""
    _require_columns(columns, ["about", "answer_rows"])
    rows = len(columns["about"])
    if rows == 0:
        raise RecordError(
            "it has columns but no rows. Either the log is empty (check the table and its filter), or the result was "
            "not exported"
        )
    number, missing = _integers(columns["answer_rows"], "answer_rows")
    descriptions = [about for about in _texts(columns["about"], "about") if about is not None]
    sizes = sorted({int(n) for n in number[~missing]})
    if len(descriptions) > 1 or len(sizes) > 1:
        raise RecordError(
            f"it mixes several answers (of {' and '.join(f'{n:,}' for n in sizes)} rows; values in the column about: "
            f"{len(descriptions)}). Export each to its own file, and merge the files with posbias merge"
        )
    size = sizes[0] if sizes else 0
    if rows < size:
        raise RecordError(
            f"it has {rows:,} of {size:,} rows. Many consoles truncate what they show or download, and some write "
            "large results to several files: put all rows into one file"
        )
    if rows > size or missing.any():
        raise RecordError(f"it has {rows:,} rows, but the answer has {size:,}: rows were added or repeated")
    if not descriptions:
        raise RecordError("its column about is empty, but one row must describe the query")
    return _parse_about(descriptions[0])


@dataclass(frozen=True)
class _ExportedQuery:
    """The query of an export, as the column `about` describes it.

    `natural` says whether the log names no ranker, and `window` is the column within which documents are then compared.
    `unit` is the column of the unit, if its buckets are counted too.
    """

    kind: TableKind
    settings: FileSettings
    non_functional: str
    natural: bool
    window: str | None
    unit: str | None
    posbias: str
    dialect: str
    source: str


def _require_columns(columns: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise an error if columns are missing."""
    missing = [name for name in names if name not in columns]
    if missing:
        raise RecordError(f"it does not have the columns {', '.join(missing)}. Columns found: {listed(columns)}")


def _integers(column: Any, name: str) -> tuple[IntArray, BoolArray]:
    """Return a column of whole numbers, with 0 for missing values, and which values are missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        whole = _to_integers(column)
    except (pa.ArrowException, OverflowError):
        example = next((value for value in _texts(column, name) if not _is_integer(value)), column.type)
        raise RecordError(
            f"its column {name} has the value {abbreviated(str(example))}, which is not a whole number"
        ) from None
    missing = np.zeros(len(whole), dtype=np.bool_)
    if whole.null_count:
        missing[:] = pc.is_null(whole).to_pylist()
    return from_arrow(pa.table({name: whole}))[name], missing


def _to_integers(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_boolean(column.type):
        raise pa.ArrowInvalid("a boolean is not a number")
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return pc.cast(column, pa.int64())
    trimmed = pc.utf8_trim_whitespace(column)
    try:
        return pc.cast(trimmed, pa.int64())
    except pa.ArrowInvalid:
        # Some tools write whole numbers as 3.0 if other values of the column are missing.
        real = pc.cast(trimmed, pa.float64())
        if pc.any(pc.greater_equal(pc.abs(real), _MAX_EXACT_FLOAT)).as_py():
            raise
        return pc.cast(real, pa.int64())


def _texts(column: Any, name: str) -> list[str | None]:
    """Return a column as text."""
    import pyarrow as pa

    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        raise RecordError(f"its column {name} has bytes that are not UTF-8 text") from None
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return [value if value is None else value.decode("utf-8", "replace") for value in values]
    return [value if value is None else str(value) for value in values]


def _is_integer(text: str | None) -> bool:
    try:
        return text is None or (abs(float(text)) < _MAX_EXACT_FLOAT and float(text) % 1 == 0)
    except (ValueError, OverflowError):
        return False


def _parse_about(about: str) -> _ExportedQuery:
    """Return the query that a value of the column `about` describes."""
    try:
        record = mapping(parse(about), "it")
        version = read_record(record, "", {"version": integer(1)})["version"]
        if version > FORMAT_VERSION:
            raise RecordError(
                f"its query has format version {version} and this posbias reads up to {FORMAT_VERSION}",
                "Upgrade posbias, or write the query with this version and run it again.",
            )
        values = read_record(record, "", _ABOUT_FIELDS, defaults={"ranker": "", "window": None, "unit": None})
        query = _ExportedQuery(
            kind=values["table"],
            settings=read_settings(record),
            non_functional=values["non_functional"],
            natural=values["ranker"] is None,
            window=values["window"],
            unit=values["unit"],
            posbias=values["posbias"],
            dialect=values["dialect"],
            source=values["source"],
        )
    except RecordError as error:
        if error.remedy is not None:
            raise
        raise RecordError(f"its column about was changed: {error}") from None
    settings = query.settings
    named = bool(settings.rankers)
    if query.kind != table_kind(settings.layout, settings.weighting) or named != (query.kind == "signatures"):
        raise RecordError(
            f"its column about was changed: posbias writes no query for {query.kind} of a {settings.layout.value} log "
            f"with {len(settings.rankers):,} named rankers and the weighting {settings.weighting!r}"
        )
    return query


def _from_signatures(query: _ExportedQuery, columns: Mapping[str, Any]) -> CountedLog:
    """Return the counts of a wide or long log. Rows of the log that cannot be used have codes below 0."""
    rankers, labels = query.settings.rankers, segment_columns(query.settings.by)
    coding = SignatureCoding(len(rankers), query.settings.max_rank)
    first = _read_answer([], columns, ["code_0"])["code_0"]
    names = ["bucket", "ranker", *coding.names, "impressions", "clicks", "row_count"]
    answer = _read_answer(labels, columns, names, may_be_missing=first < 0)
    counted = first >= 0
    kinds = 1 if query.unit is None else 3
    check_range("bucket", answer["bucket"], 0, kinds * BUCKETS - 1)
    check_range("ranker", answer["ranker"], 0, len(rankers) - 1)
    impressions, clicks = (np.where(counted, answer[name], 0) for name in ("impressions", "clicks"))
    check_range("impressions", impressions, 0, MAX_COUNT)
    check_values("clicks", clicks, (clicks < 0) | (clicks > impressions), "0 to the number of impressions")
    check_counts("row_count", answer["row_count"], least=1)
    for name, size in zip(coding.names, coding.sizes, strict=True):
        low = signature_sql.UNUSABLE if name == "code_0" else 0
        check_range(name, answer[name], low, size - 1)
    number, _ = segment_numbers(answer, labels)
    _, missing_ranker = _integers(columns["ranker"], "ranker")
    _check_distinct_rows(
        [number, *(answer[name] for name in ("bucket", "ranker", *coding.names)), missing_ranker.astype(np.int64)]
    )

    by_query = answer["bucket"] < BUCKETS
    rows = answer["row_count"]
    counts = RowCounts.by_code(first[by_query], rows[by_query])
    unusable = by_query & (first == signature_sql.UNUSABLE)
    no_ranker = (
        f"no ranker, or one whose ranks are unknown: the query names {listed(rankers)}. Name all rankers (rankers)"
    )
    other = f"no query; or {_UNUSABLE_REASONS[export_sql.NO_POSITION]}; or {_UNUSABLE_REASONS[export_sql.NO_CLICK]}"
    without_ranker, with_ranker = (int(rows[unusable & where].sum()) for where in (missing_ranker, ~missing_ranker))
    _check_all_usable(counts.rows, {no_ranker: without_ranker, other: with_ranker})
    usable = filter_rows(answer, counted)
    segment, segments = segment_numbers(usable, labels)
    cells = cells_from_signatures(usable, segment, coding)
    if int(cells.impressions.sum()) != int(usable["impressions"].sum()):
        raise RecordError("its codes have no rank for rankers that were shown")
    cells, *by_units = split_buckets(cells, kinds)
    return CountedLog("signatures", rankers, segments, cells, counts, find_contradicted_ranks(counts), tuple(by_units))


def _read_answer(
    labels: Sequence[str], columns: Mapping[str, Any], names: Sequence[str], may_be_missing: BoolArray | None = None
) -> Answer:
    """Return columns of whole numbers, which have missing values only in rows that may have them, and the segments."""
    _require_columns(columns, [*labels, *names])
    answer: Answer = {}
    for name in names:
        answer[name], missing = _integers(columns[name], name)
        lost = missing if may_be_missing is None else missing & ~may_be_missing
        if lost.any():
            raise RecordError(f"its column {name} has no value in {int(lost.sum()):,} rows")
    for name in labels:
        values = _texts(columns[name], name)
        if any(value is not None and not value.startswith(":") for value in values):
            raise RecordError(f"its column {name} was changed: each value must begin with a colon")
        # The None at the end keeps NumPy from making an array of texts.
        answer[name] = np.array([*(value and value[1:] for value in values), None], dtype=object)[:-1]
    return answer


def _check_distinct_rows(keys: Sequence[IntArray]) -> None:
    """Raise an error if two rows have the same keys."""
    first, _ = group([key - key.min(initial=0) for key in keys])
    if len(first) < len(keys[0]):
        raise RecordError(
            f"{len(keys[0]) - len(first):,} of its rows repeat others, so as many other rows must be missing"
        )


def _check_all_usable(rows: int, unusable_rows: Mapping[str, int]) -> None:
    """Raise an error if rows of the log cannot be counted, with their number by reason."""
    unusable = sum(unusable_rows.values())
    if unusable:
        reasons = "\n".join(f"  - {n:,} rows have {reason}" for reason, n in unusable_rows.items() if n)
        raise LogError(
            f"{unusable:,} of {rows:,} rows of the log cannot be used:\n{reasons}\nLeave such rows out (query a view "
            "or a table without them), or repair the job that writes the log. Then run the query again."
        )


def _from_exposures(query: _ExportedQuery, columns: Mapping[str, Any]) -> CountedLog:
    """Return the counts of a replay. Rows of the log that were not counted have buckets below 0."""
    labels = segment_columns(query.settings.by)
    answer = _read_answer(labels, columns, ["bucket", "pairs", "row_count"])
    _require_columns(columns, ["stratum"])
    kinds = 1 if query.unit is None else 3
    check_range("bucket", answer["bucket"], export_sql.NO_ID, kinds * BUCKETS - 1)
    check_range("pairs", answer["pairs"], 1, MAX_COUNT)
    check_counts("row_count", answer["row_count"], least=1)
    number, _ = segment_numbers(answer, labels)
    texts = [text or "" for text in _texts(columns["stratum"], "stratum")]
    text_numbers = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    stratum = np.array([text_numbers[text] for text in texts], dtype=np.int64)
    _check_distinct_rows([number, answer["bucket"], stratum])

    by_query = answer["bucket"] < BUCKETS
    by_unit, unit_texts = filter_rows(answer, ~by_query), [texts[i] for i in np.flatnonzero(~by_query)]
    answer, stratum = filter_rows(answer, by_query), stratum[by_query]
    bucket, rows = answer["bucket"], answer["row_count"]
    counts = RowCounts(
        rows=int(rows.sum()),
        rows_counted=int(rows[(bucket >= 0) | (bucket == export_sql.EMPTY)].sum()),
        rows_beyond=int(rows[bucket == export_sql.BEYOND].sum()),
    )
    _check_all_usable(
        counts.rows, {reason: int(rows[bucket == code].sum()) for code, reason in _UNUSABLE_REASONS.items()}
    )
    usable = filter_rows(answer | {"stratum": stratum}, bucket >= 0)
    used = np.unique(usable["stratum"])
    distinct_texts = list(text_numbers)
    strata = _parse_strata([distinct_texts[i] for i in used], query.settings.max_rank)
    segment, segments = segment_numbers(usable, labels)
    cells = _cells_from_strata(usable, segment, np.searchsorted(used, usable["stratum"]), strata)
    findings = find_biased_weighting(query.settings.weighting)
    if query.natural:
        findings = [no_ranker_finding(query.window), *findings]
    else:
        several, pairs = count_non_functional(cells), count_pairs(cells)
        check_non_functional(query.non_functional, several, pairs)
        findings = [*find_non_functional(several, pairs), *findings]
        counts = replace(counts, non_functional_pairs=several)
    by_units = () if query.unit is None else _losses(query, by_unit, unit_texts, strata.rankers, segments)
    return CountedLog("exposures", strata.rankers, segments, cells, counts, findings, by_units)


def _losses(
    query: _ExportedQuery, answer: Answer, texts: Sequence[str], rankers: Sequence[str], segments: Sequence[Segment]
) -> tuple[PairSums, ...]:
    """Return plain counts, and what sums lose without each bucket of units, and of queries and units."""
    labels, max_rank = segment_columns(query.settings.by), query.settings.max_rank
    found = [_LOSSES.fullmatch(text) for text in texts]
    is_loss = np.array([one is not None for one in found], dtype=np.bool_)
    cells = [_parse_cells(text, max_rank) for text, lost in zip(texts, is_loss, strict=True) if not lost]
    index = {name: i for i, name in enumerate(rankers)}
    if any(len(one) != 1 or one[0][0] not in index for one in cells):
        raise RecordError("its column stratum has counts by unit of a ranker without counts by query")
    plain = np.array([(index[name], *numbers) for [(name, *numbers)] in cells], dtype=np.int64).reshape(-1, 4).T
    lost = np.array([one.groups() for one in found if one], dtype=np.int64).reshape(-1, 2 + len(LOSSES)).T
    for name, column in zip(("rank", "other"), lost[:2], strict=True):
        check_range(name, column, 1, max_rank)
    names = ("ranker", "rank", "impressions", "clicks")
    totals = filter_rows(answer, ~is_loss) | dict(zip(names, plain, strict=True))
    losses = filter_rows(answer, is_loss) | dict(zip(("rank", "other"), lost[:2], strict=True))
    losses |= {name: column / LOSS_SCALE for name, column in zip(LOSSES, lost[2:], strict=True)}
    table, held = pair_sums(totals, stack_losses(losses, labels), labels)
    if list(held) != list(segments):
        raise RecordError("its counts by unit have other segments than those by query")
    # Both rows of a pair of ranks may have lost something.
    merged = canonical(replace(table, bucket=table.bucket - BUCKETS))
    return tuple(split_buckets(merged, 2))


def _parse_strata(texts: Sequence[str], max_rank: int) -> _Strata:
    """Return the cells of distinct texts of strata.

    >>> _parse_strata(["1:3:2:a 2:5:0:b~sc", "1:3:1:a 2:5:0:b~sc"], 10).rankers
    ('a', 'b c')
    """
    strata = [sorted(_parse_cells(text, max_rank)) for text in texts]
    rankers = tuple(sorted({name for stratum in strata for name, *_ in stratum}))
    index = {name: i for i, name in enumerate(rankers)}
    exposures: dict[tuple[tuple[str, int, int], ...], int] = {}
    exposure = [exposures.setdefault(tuple(cell[:3] for cell in stratum), len(exposures)) for stratum in strata]
    size = np.array([len(stratum) for stratum in strata], dtype=np.int64)
    flat = [(index[name], *counts) for stratum in strata for name, *counts in stratum]
    ranker, rank, impressions, clicks = np.array(flat, dtype=np.int64).reshape(-1, 4).T
    start = np.cumsum(size) - size
    return _Strata(rankers, start, size, np.array(exposure, dtype=np.int64), ranker, rank, impressions, clicks)


@dataclass(frozen=True)
class _Strata:
    """The cells of distinct texts, one text after another.

    The cells of text i are the `size[i]` cells from `start[i]` on. Texts with the same ranks and impressions have the
    same number in `exposure`, whatever their clicks.
    """

    rankers: tuple[str, ...]
    start: IntArray
    size: IntArray
    exposure: IntArray
    ranker: IntArray
    rank: IntArray
    impressions: IntArray
    clicks: IntArray


def _parse_cells(text: str, max_rank: int) -> list[tuple[str, int, int, int]]:
    """Return ranker, rank, impressions and clicks of every cell in a text."""
    cells = []
    for cell in text[:_MAX_TEXT].split(" "):
        parts = _CELL.fullmatch(cell)
        if parts is None or len(text) > _MAX_TEXT:
            raise RecordError(f"its column stratum has the value {abbreviated(text)}, which the query did not write")
        rank, impressions, clicks = (int(part) for part in parts.groups()[:3])
        if not (1 <= rank <= max_rank and 0 <= clicks <= impressions and impressions > 0):
            raise RecordError(
                f"its column stratum has the value {abbreviated(text)}, whose rank or clicks are impossible"
            )
        cells.append((_unescape(parts[4]), rank, impressions, clicks))
    if len({cell[:2] for cell in cells}) < len(cells):
        raise RecordError(f"its column stratum has the value {abbreviated(text)}, which has a rank of one ranker twice")
    return cells


def _unescape(escaped: str) -> str:
    """Return the name of a ranker from its escaped form, in which "~s" is a space and "~~" a tilde."""
    return "~".join(part.replace("~s", " ") for part in escaped.split("~~"))


def _cells_from_strata(answer: Answer, segment: IntArray, text: IntArray, strata: _Strata) -> Cells:
    """Return the cells of a replay. Rows with the same exposure are one stratum, whatever their clicks."""
    impressions = (
        np.add.reduceat(strata.impressions.astype(np.float64), strata.start) if len(strata.start) else strata.start
    )
    if float(np.sum(impressions[text] * answer["pairs"].astype(np.float64))) > MAX_COUNT:
        raise RecordError(f"its impressions add up to more than {MAX_COUNT:,}")
    first, stratum = group([segment, answer["bucket"], strata.exposure[text]])
    size = strata.size[text[first]]
    pairs = np.zeros(len(first), dtype=np.int64)
    np.add.at(pairs, stratum, answer["pairs"])
    # Each row adds its clicks to the cells of its stratum, which are in the same order.
    row = np.repeat(np.arange(len(text)), strata.size[text])
    place = np.arange(len(row)) - np.repeat(np.cumsum(strata.size[text]) - strata.size[text], strata.size[text])
    target = (np.cumsum(size) - size)[stratum[row]] + place
    clicks = np.zeros(int(size.sum()), dtype=np.int64)
    np.add.at(clicks, target, strata.clicks[strata.start[text[row]] + place] * answer["pairs"][row])

    owner = np.repeat(np.arange(len(first)), size)
    cell = strata.start[text[first]][owner] + np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size)
    return Cells(
        segment=segment[first][owner],
        bucket=answer["bucket"][first][owner],
        stratum=owner,
        pairs=pairs[owner],
        ranker=strata.ranker[cell],
        rank=strata.rank[cell],
        impressions=strata.impressions[cell] * pairs[owner],
        clicks=clicks,
    )
