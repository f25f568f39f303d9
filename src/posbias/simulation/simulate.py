"""Simulate the click log of a world, as a table in memory or as a file of any size.

A world is drawn in blocks of queries, each from its own random streams, while the block before is written. How it is
cut into blocks and slices is part of what the seed means: it depends on the world alone, so neither threads nor row
groups nor the layout change a single draw.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from posbias._arrays import BoolArray, FloatArray, IntArray, numbers_to_arrow, texts_to_arrow
from posbias._files import atomic_write_all
from posbias._json import checksum
from posbias.errors import PosbiasError
from posbias.progress import step
from posbias.simulation.world import World
from posbias.version import __version__

# About as many rows as a row group of a Parquet file: a few dozen megabytes at a time.
_BLOCK_ROWS = 1_000_000
# The most scores in a block, which bounds memory with many candidates or rankers.
_BLOCK_SCORES = 4_000_000
Layout = Literal["wide", "long", "replay"]
Ids = Literal["int", "str"]
# NumPy and Arrow release the GIL where they take time; more threads would be faster than any file is written.
_THREADS = 2
_SUFFIXES = (".parquet", ".csv", ".csv.gz", ".jsonl", ".jsonl.gz")
_ROW_GROUP = 1_000_000


@step("Simulating")
def simulate(world: World, layout: Layout = "wide", *, aggregated: bool = False, ids: Ids = "int") -> pa.Table:
    """Simulate the click log of a world in memory.

    Arguments:
        world (World): how users and rankers behave.
        layout (str, default "wide"): "wide" has a column `rank_<ranker>` for each ranker, null where the ranker has the
            document beyond the top M. "long" and "replay" have none; `rank` gives the rankings that go with "long".
        aggregated (bool, default False): whether to have one row for all views of a document by one ranker (and
            device), with `impressions` and `clicks` in place of `clicked` and `impression_id`.
        ids (str, default "int"): "int" for 64-bit integers, "str" for strings such as "q17".

    Returns:
        The log as a `pyarrow.Table`, with a row for each result shown.

    Example:
        >>> log = simulate(World(queries=100, repeats=5))
        >>> log.num_rows, log.column_names
        (5000, ['query_id', 'doc_id', 'ranker', 'position', 'clicked', 'impression_id', 'rank_a', 'rank_b'])
    """
    log_format = LogFormat(layout, aggregated, ids)
    if not isinstance(world, World):
        raise PosbiasError(f"simulate takes a World, not a {type(world).__name__}.")
    return pa.concat_tables(piece.log for piece in draw_pieces(world, log_format)).combine_chunks()


@step("Simulating")
def write(
    world: World,
    path: str | os.PathLike[str],
    layout: Layout = "wide",
    *,
    aggregated: bool = False,
    ids: Ids = "int",
    progress: Callable[[int, int], None] | None = None,
) -> SimulatedLog:
    """Simulate the click log of a world into a file, in bounded memory.

    The truth is written beside the log as `<stem>.truth.json`, and for "long" the rankings as
    `<stem>.rankings.<suffix>`. Existing files of these names are replaced only at the end, so a run that fails changes
    nothing. Files without the truth of a simulated log beside them were not simulated, and `write` refuses to replace
    them.

    Arguments:
        world (World): how users and rankers behave.
        path (str or path): where to write. The suffix decides the format: .parquet, .csv, .csv.gz, .jsonl or .jsonl.gz.
        layout (str, default "wide"): "wide", "long" or "replay", as in `simulate`.
        aggregated (bool, default False): as in `simulate`.
        ids (str, default "int"): "int" or "str", as in `simulate`.
        progress (callable or None, default None): called now and then with the number of queries done and of all.

    Returns:
        A `SimulatedLog` with the paths of the files and their sizes.

    Raises:
        PosbiasError: if an argument is not valid, or one of the files exists and was not simulated.

    Example:
        >>> import json, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = write(World(queries=100, repeats=5), f"{folder}/log.parquet")
        ...     truth = json.loads(written.truth.read_text())
        >>> written.log.name, written.truth.name, written.rows, truth["propensity"][:2]
        ('log.parquet', 'log.truth.json', 5000, [1.0, 0.5])
    """
    log_format = LogFormat(layout, aggregated, ids)
    log = Path(path)
    stem, suffix = _split(log)
    truth = log.with_name(f"{stem}.truth.json")
    rankings = log.with_name(f"{stem}.rankings{suffix}") if layout == "long" else None
    _refuse_to_replace(log, truth, rankings)
    # The log is put in place last: where it exists, the files that belong to it exist too.
    paths = [truth, *([rankings] if rankings else []), log]
    with atomic_write_all(paths) as written:
        drafts: dict[Path | None, Path] = dict(zip(paths, map(Path, written), strict=True))
        rows = queries = page_views = 0
        same: Any = 0
        with (
            _Sink(drafts[log], suffix) as log_sink,
            _Sink(drafts.get(rankings), suffix) as rankings_sink,
            closing(draw_pieces(world, log_format)) as pieces,
        ):
            for piece in pieces:
                log_sink.add(piece.log)
                if piece.rankings is not None:
                    rankings_sink.add(piece.rankings)
                rows += piece.log.num_rows
                queries += piece.queries
                page_views += piece.page_views
                same = same + piece.same
                if progress is not None:
                    progress(queries, world.queries)
        measured = {
            "same_rank": (same / (world.queries * world.max_rank)).tolist(),
            "layout": layout,
            "aggregated": aggregated,
            "ids": ids,
            "rows": rows,
            "page_views": page_views,
            "version": __version__,
        }
        record = json.loads(json.dumps(world.truth() | measured, default=_plain))
        record["checksum"] = checksum(record)
        drafts[truth].write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    return SimulatedLog(log, truth, rankings, rows, page_views)


def _refuse_to_replace(log: Path, truth: Path, rankings: Path | None) -> None:
    """Raise an error if a file would be replaced that `write` did not write."""
    try:
        record = json.loads(truth.read_text("utf-8")) if truth.is_file() else None
    except (OSError, ValueError):
        record = None
    known = record if isinstance(record, dict) else {}
    simulated = {"propensity", "page_views", "layout"} <= known.keys()
    if truth.is_file() and not simulated:
        raise PosbiasError(
            f"{os.fspath(truth)!r} exists, and is not the truth of a simulated log. Choose another file name for the "
            "log, or remove the file."
        )
    ranked = simulated and known["layout"] == "long"
    for path, ours in ((log, simulated), (rankings, ranked)):
        if path is not None and path.is_file() and not ours:
            raise PosbiasError(
                f"{os.fspath(path)!r} exists, and there is no {truth.name} beside it to show that it was simulated. "
                "Choose another file name, or remove the file."
            )


@dataclass(frozen=True)
class LogFormat:
    """How a log is written: its layout, whether it is aggregated, and the type of its ids."""

    layout: Layout = "wide"
    aggregated: bool = False
    ids: Ids = "int"

    def __post_init__(self) -> None:
        for name, allowed in (("layout", get_args(Layout)), ("ids", get_args(Ids))):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise PosbiasError(f"{name} must be one of {', '.join(allowed)}, found {value!r}")


def draw_pieces(world: World, log_format: LogFormat) -> Generator[LogPiece]:
    """Yield the pieces of a log in order; a few are drawn ahead while the caller writes."""
    waiting: deque[Future[LogPiece]] = deque()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="simulate") as pool:
        try:
            for block, parts in _tasks(world, log_format):
                waiting.append(pool.submit(_draw_piece, world, log_format, block, parts))
                if len(waiting) > _THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


@dataclass(frozen=True)
class LogPiece:
    """The tables of a part of the log, and what it adds to the counts of the whole log."""

    log: pa.Table
    rankings: pa.Table | None
    queries: int
    page_views: int
    same: IntArray


def _tasks(world: World, log_format: LogFormat) -> Iterator[tuple[Block, range]]:
    """Yield what is drawn at once: a slice of a block, or all its slices where page views are aggregated."""
    for block in blocks_of(world):
        parts = range(len(block.slices(world)))
        if log_format.aggregated:
            yield block, parts
        else:
            yield from ((block, parts[part : part + 1]) for part in parts)


@dataclass(frozen=True)
class Block:
    """Consecutive queries, and how often each of them is viewed."""

    number: int
    first_query: int
    first_view: int
    views: IntArray

    def rng(self, world: World, stream: _Stream, part: int = 0) -> np.random.Generator:
        """Return the random generator of one quantity of this block."""
        key = (self.number, int(stream), part)
        return np.random.default_rng(np.random.SeedSequence(world.seed, spawn_key=key))

    def slices(self, world: World) -> list[slice]:
        """Return slices of the block's page views; even a query with ten million of them fits in memory."""
        # Twice the intended size, so that a block with a few more views than expected stays in one piece.
        size = 2 * _views_per_block(world)
        total = int(self.views.sum())
        return [slice(start, min(start + size, total)) for start in range(0, total, size)]


class _Stream(IntEnum):
    """One random stream for each quantity: how many numbers one draws does not change another."""

    RELEVANCE = 0
    SHARED_NOISE = 1
    OWN_NOISE = 2
    DOCUMENTS = 3
    VIEWS = 4
    ORDER = 5
    PAGES = 6
    RANKERS = 7
    SHUFFLES = 8
    UNRANKED = 9


def _views_per_block(world: World) -> int:
    return max(1, _BLOCK_ROWS // world.max_rank)


def blocks_of(world: World) -> Iterator[Block]:
    """Yield the blocks of a world, with how often each query is viewed."""
    scores = world.pool * len(world.rankers)
    size = max(1, min(int(_views_per_block(world) / world.repeats), _BLOCK_SCORES // scores))
    first_view = 0
    for number, first_query in enumerate(range(0, world.queries, size)):
        queries = min(size, world.queries - first_query)
        block = Block(number, first_query, first_view, np.empty(0, dtype=np.int64))
        views = _draw_views(world, queries, block.rng(world, _Stream.VIEWS))
        yield Block(number, first_query, first_view, views)
        first_view += int(views.sum())


def _draw_views(world: World, queries: int, rng: np.random.Generator) -> IntArray:
    """Draw how often each query is viewed: at least once, and `repeats` times on average."""
    if not world.skew:
        # A fraction is rounded at random, so that the mean holds: 2.5 is 2 or 3.
        return np.floor(world.repeats + rng.random(queries)).astype(np.int64)
    rates = rng.lognormal(-(world.skew**2) / 2, world.skew, queries)
    return 1 + rng.poisson((world.repeats - 1) * rates)


def _draw_piece(world: World, log_format: LogFormat, block: Block, parts: range) -> LogPiece:
    # Drawn again for each slice of a block. This is cheap: a block has several slices only if it has few queries.
    rankings = draw_rankings(world, block)
    drawn = (draw_pages(world, block, rankings, part) for part in parts)
    pages = aggregate_pages(world, drawn) if log_format.aggregated else next(drawn)
    columns = _page_columns(world, log_format, block, rankings, pages)
    if not log_format.aggregated:
        first_view = block.first_view + block.slices(world)[parts[0]].start
        views = _ids(log_format, "v", first_view + np.arange(len(pages.query)))
        columns["impression_id"] = _repeat(views, world.max_rank)
    if world.segments:
        columns["device"] = _repeat(
            texts_to_arrow([*world.segments]).take(numbers_to_arrow(pages.segment)), world.max_rank
        )
    if log_format.layout == "wide":
        columns |= _rank_columns(world, rankings, pages)
    # The first piece of a block counts its queries and holds its rankings.
    first = parts[0] == 0
    return LogPiece(
        log=pa.table(columns),
        rankings=_rankings_table(world, log_format, block, rankings) if first and log_format.layout == "long" else None,
        queries=len(block.views) if first else 0,
        page_views=int(pages.impressions.sum()),
        same=count_same(world, rankings) * first,
    )


def draw_rankings(world: World, block: Block) -> Rankings:
    """Draw relevance and every ranker's ranking of a block's queries."""
    shape = (len(block.views), len(world.rankers), world.pool)
    queries, _, pool = shape
    relevant = block.rng(world, _Stream.RELEVANCE).random((queries, pool), dtype=np.float32) < world.relevant
    shared = block.rng(world, _Stream.SHARED_NOISE).standard_normal((queries, 1, pool), dtype=np.float32)
    scores = block.rng(world, _Stream.OWN_NOISE).standard_normal(shape, dtype=np.float32)
    scores *= np.float32(np.sqrt(1 - world.similarity))
    scores += np.float32(np.sqrt(world.similarity)) * shared
    scores += np.array(world.qualities, dtype=np.float32)[:, None] * relevant[:, None, :]
    for i in {*_all(world)} - {*world.non_random}:
        # A random ranker has no ranking; this one agrees with no other ranker's.
        scores[:, i] = block.rng(world, _Stream.UNRANKED, i).random((queries, pool), dtype=np.float32)
    # Stable, because the default sort breaks ties differently from one processor to the next.
    order = np.argsort(-scores, axis=-1, kind="stable").astype(np.int16)
    ranks = np.empty(shape, dtype=np.int16)
    np.put_along_axis(ranks, order, np.arange(1, pool + 1, dtype=np.int16)[None, None, :], axis=-1)
    # Queries share documents, as in real logs: a document id alone does not identify a pair.
    catalogue = max(world.queries, pool)
    first = block.rng(world, _Stream.DOCUMENTS).integers(0, catalogue, size=(queries, 1))
    documents = (first + np.arange(pool)) % catalogue
    return Rankings(documents, relevant, order, ranks)


@dataclass(frozen=True)
class Rankings:
    """The rankings of a block's queries by all rankers; the axes are query, ranker, then candidate or rank."""

    documents: IntArray  # query, candidate -> document
    relevant: BoolArray  # query, candidate -> relevance
    order: NDArray[np.int16]  # query, ranker, rank - 1 -> candidate
    ranks: NDArray[np.int16]  # query, ranker, candidate -> rank


def _all(world: World) -> range:
    return range(len(world.rankers))


def draw_pages(world: World, block: Block, rankings: Rankings, part: int) -> Pages:
    """Draw one slice of a block's page views, with the queries in random order as in a real log."""
    queries = np.repeat(np.arange(len(block.views)), block.views)
    if len(block.views) > 1:
        block.rng(world, _Stream.ORDER).shuffle(queries)
    query = queries[block.slices(world)[part]]
    rng = block.rng(world, _Stream.PAGES, part)
    if world.sticky:
        ranker = _draw_rankers(world, len(block.views), block.rng(world, _Stream.RANKERS))[query]
    else:
        ranker = _draw_rankers(world, len(query), rng)
    shown = rankings.order[query, ranker, : world.max_rank]
    shuffled = np.flatnonzero(~np.isin(ranker, world.non_random))
    if len(shuffled):
        chance = block.rng(world, _Stream.SHUFFLES, part).random((len(shuffled), world.pool), dtype=np.float32)
        shown[shuffled] = np.argsort(chance, axis=-1, kind="stable")[:, : world.max_rank]
    return _draw_slice(world, rankings, query, ranker, shown, rng)


@dataclass(frozen=True)
class Pages:
    """Pages shown: single page views, or the sums of those with the same query, ranker and segment."""

    query: IntArray  # within the block
    ranker: IntArray
    shown: NDArray[np.int16]  # page, rank - 1 -> candidate
    segment: IntArray
    impressions: IntArray
    clicks: IntArray | BoolArray  # page, rank - 1


def _draw_rankers(world: World, times: int, rng: np.random.Generator) -> IntArray:
    bounds = np.cumsum(world.shares)
    # Divided by the last bound, because shares that sum to 0.999… would leave a gap.
    return np.searchsorted(bounds / bounds[-1], rng.random(times), side="right")


def _draw_slice(
    world: World,
    rankings: Rankings,
    query: IntArray,
    ranker: IntArray,
    shown: NDArray[np.int16],
    rng: np.random.Generator,
) -> Pages:
    pages = len(query)
    segment = rng.integers(0, len(world.curves), size=pages)
    relevant = rankings.relevant[query[:, None], shown]
    # P(click) = p_r if relevant, p_r · epsilon_minus if not, section "Robustness Analysis".
    curves = world.curves.astype(np.float32)[segment]
    chance = np.where(relevant, curves, curves * np.float32(world.noise))
    clicks = rng.random(chance.shape, dtype=np.float32) < chance
    return Pages(query, ranker, shown, segment, np.ones(pages, dtype=np.int64), clicks)


def aggregate_pages(world: World, pages: Iterable[Pages]) -> Pages:
    """Sum the page views of each query, ranker and segment."""
    parts = [_group(world, part) for part in pages]
    if len(parts) == 1:
        return parts[0]
    return _group(
        world,
        Pages(
            np.concatenate([part.query for part in parts]),
            np.concatenate([part.ranker for part in parts]),
            np.concatenate([part.shown for part in parts]),
            np.concatenate([part.segment for part in parts]),
            np.concatenate([part.impressions for part in parts]),
            np.concatenate([part.clicks for part in parts]),
        ),
    )


def _group(world: World, pages: Pages) -> Pages:
    segments = len(world.curves)
    key = (pages.query * len(world.rankers) + pages.ranker) * segments + pages.segment
    order = np.argsort(key, kind="stable")
    key = key[order]
    # Pages in random order differ, so they are not summed.
    same_page = np.isin(pages.ranker[order], world.non_random)
    starts = np.flatnonzero(np.r_[True, (key[1:] != key[:-1]) | ~same_page[1:]])
    first = order[starts]
    return Pages(
        query=pages.query[first],
        ranker=pages.ranker[first],
        shown=pages.shown[first],
        segment=pages.segment[first],
        impressions=np.add.reduceat(pages.impressions[order], starts),
        clicks=np.add.reduceat(pages.clicks[order], starts, axis=0, dtype=np.int64),
    )


def _page_columns(
    world: World, log_format: LogFormat, block: Block, rankings: Rankings, pages: Pages
) -> dict[str, pa.Array]:
    documents = _ids(log_format, "d", rankings.documents.ravel())
    shown = pages.query[:, None] * world.pool + pages.shown
    queries = _ids(log_format, "q", block.first_query + np.arange(len(block.views)))
    rankers = texts_to_arrow(world.rankers).take(numbers_to_arrow(pages.ranker))
    columns = {
        "query_id": _repeat(queries.take(numbers_to_arrow(pages.query)), world.max_rank),
        "doc_id": documents.take(numbers_to_arrow(shown.ravel())),
        "ranker": _repeat(rankers, world.max_rank),
        "position": numbers_to_arrow(np.tile(_positions(world), len(pages.query))),
    }
    if log_format.aggregated:
        columns["impressions"] = numbers_to_arrow(np.repeat(pages.impressions, world.max_rank))
        columns["clicks"] = numbers_to_arrow(pages.clicks.ravel())
    else:
        columns["clicked"] = numbers_to_arrow(pages.clicks.ravel().view(np.int8))
    return columns


def _ids(log_format: LogFormat, letter: str, numbers: IntArray) -> pa.Array:
    ids = numbers_to_arrow(numbers)
    return pc.binary_join_element_wise(letter, ids.cast(pa.string()), "") if log_format.ids == "str" else ids


def _repeat(values: pa.Array, times: int) -> pa.Array:
    """Repeat each value: the values of a page for each of its results."""
    return values.take(numbers_to_arrow(np.repeat(np.arange(len(values)), times)))


def _positions(world: World) -> NDArray[np.int16]:
    return np.arange(1, world.max_rank + 1, dtype=np.int16)


def _rank_columns(world: World, rankings: Rankings, pages: Pages) -> dict[str, pa.Array]:
    columns = {}
    for i in world.non_random:
        ranks = rankings.ranks[pages.query[:, None], i, pages.shown].ravel()
        columns[f"rank_{world.rankers[i]}"] = numbers_to_arrow(ranks, ranks > world.max_rank)
    return columns


def _rankings_table(world: World, log_format: LogFormat, block: Block, rankings: Rankings) -> pa.Table:
    queries, rankers = len(block.views), len(world.non_random)
    top = rankings.order[:, world.non_random, : world.max_rank].astype(np.int64)
    documents = np.take_along_axis(rankings.documents[:, None, :], top, axis=-1)
    names = texts_to_arrow(world.rankers).take(numbers_to_arrow(np.tile(world.non_random, queries)))
    return pa.table(
        {
            "query_id": _repeat(
                _ids(log_format, "q", block.first_query + np.arange(queries)), rankers * world.max_rank
            ),
            "ranker": _repeat(names, world.max_rank),
            "doc_id": _ids(log_format, "d", documents.ravel()),
            "rank": numbers_to_arrow(np.tile(_positions(world), queries * rankers)),
        }
    )


def count_same(world: World, rankings: Rankings) -> IntArray:
    """Count, for each two rankers, the ranks of a block's queries at which both have the same document."""
    shown = rankings.order[:, :, : world.max_rank]
    return np.array([[np.count_nonzero(shown[:, i] == shown[:, j]) for j in _all(world)] for i in _all(world)])


@dataclass(frozen=True)
class SimulatedLog:
    """The files that `write` has written.

    Attributes:
        log (Path): the click log.
        truth (Path): the parameters of the world and the true propensities, as JSON.
        rankings (Path or None): the rankings of the "long" layout.
        rows (int): the rows of the log.
        page_views (int): the page views of the log.
    """

    log: Path
    truth: Path
    rankings: Path | None
    rows: int
    page_views: int


def _split(path: Path) -> tuple[str, str]:
    """Return the stem and the suffix of a log's path; `.csv.gz` is one suffix."""
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if path.name.lower().endswith(suffix) and len(path.name) > len(suffix):
            break
    else:
        raise PosbiasError(f"path must be a file name ending in {', '.join(_SUFFIXES)}, found {str(path)!r}")
    return path.name[: -len(suffix)], path.name[-len(suffix) :]


class _Sink:
    """A file being written; small tables are collected into large row groups."""

    def __init__(self, path: Path | None, suffix: str) -> None:
        self._path, self._suffix = path, suffix.lower()
        self._pending: list[pa.Table] = []
        self._stack = ExitStack()
        self._writer: _TableWriter | None = None

    def __enter__(self) -> _Sink:
        return self

    def add(self, table: pa.Table) -> None:
        self._pending.append(table)
        if sum(part.num_rows for part in self._pending) >= _ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        table = pa.concat_tables(self._pending)
        self._pending = []
        if self._writer is None:
            self._writer = self._open(table.schema)
        self._writer.write_table(table)

    def _open(self, schema: pa.Schema) -> _TableWriter:
        compression = "gzip" if self._suffix.endswith(".gz") else None
        stream = self._stack.enter_context(pa.output_stream(str(self._path), compression=compression))
        if self._suffix == ".parquet":
            writer: _TableWriter = _ParquetWriter(stream, schema)
        elif self._suffix.startswith(".csv"):
            writer = pa.csv.CSVWriter(stream, schema)
        else:
            writer = _JsonLinesWriter(stream)
        self._stack.callback(writer.close)
        return writer

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # After an error the file is thrown away: only handles are to be closed.
        with self._stack:
            if error is None and self._pending:
                self._flush()


class _TableWriter(Protocol):
    def write_table(self, table: pa.Table) -> None: ...
    def close(self) -> None: ...


class _ParquetWriter:
    """Write Parquet in row groups that engines read in parallel."""

    def __init__(self, stream: Any, schema: pa.Schema) -> None:
        self._writer = pa.parquet.ParquetWriter(stream, schema, compression="zstd")

    def write_table(self, table: pa.Table) -> None:
        # Small row groups, so that a small log has several of them.
        self._writer.write_table(table, row_group_size=2**17)

    def close(self) -> None:
        self._writer.close()


class _JsonLinesWriter:
    """Write one JSON object a line. Arrow joins the columns, which is far faster than `json`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches(max_chunksize=100_000):
            parts: list[Any] = []
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                parts += [("," if parts else "{") + json.dumps(name) + ":", _as_json(column)]
            lines = pc.binary_join_element_wise(*parts, "}\n", "")
            # The data buffer of the array holds the lines end to end: it is the text of the file.
            _, offsets, text = lines.buffers()
            self._stream.write(text.slice(0, int(np.frombuffer(offsets, np.int32)[len(lines)])))

    def close(self) -> None:
        self._stream.flush()


def _as_json(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        encoded = column.dictionary_encode()
        texts = pa.array([json.dumps(text) for text in encoded.dictionary.to_pylist()], pa.string())
        return texts.take(encoded.indices)
    return column.cast(pa.string()).fill_null("null")


def _plain(value: object) -> object:
    """Return a NumPy number as a Python number, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} cannot be written as JSON")


def agreement(world: World) -> FloatArray:
    """Measure the similarity of each two rankers: the share of ranks 1 to M at which both have the same document.

    The paper reports this similarity above its figure on ranker overlap, averaged over queries. The function draws
    every query of the world; `dataclasses.replace(world, queries=1000)` gives a quick answer.

    Arguments:
        world (World): how rankers behave.

    Returns:
        An array of shape (rankers, rankers), with 1 on the diagonal.

    Example:
        >>> agreement(World(queries=500, similarity=1)).tolist()
        [[1.0, 1.0], [1.0, 1.0]]
        >>> bool(agreement(World(queries=500, similarity=0))[0, 1] < 0.2)
        True
    """
    same = sum(count_same(world, draw_rankings(world, block)) for block in blocks_of(world))
    return cast(FloatArray, same / (world.queries * world.max_rank))


def rank(world: World, *, ids: Ids = "int") -> pa.Table:
    """Return every ranker's top M of every query: the second table of the "long" layout.

    Arguments:
        world (World): how rankers behave.
        ids (str, default "int"): "int" for 64-bit integers, "str" for strings such as "q17".

    Returns:
        A `pyarrow.Table` with the columns query_id, ranker, doc_id and rank.

    Example:
        >>> rank(World(queries=100)).num_rows, rank(World(queries=100)).column_names
        (2000, ['query_id', 'ranker', 'doc_id', 'rank'])
    """
    log_format = LogFormat(ids=ids)
    tables = (_rankings_table(world, log_format, block, draw_rankings(world, block)) for block in blocks_of(world))
    return pa.concat_tables(tables).combine_chunks()
