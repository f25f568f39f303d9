"""Tables: what was drawn, in the columns of a click log."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from posbias.arrays import IntArray
from posbias.arrow import numbers_to_arrow, texts_to_arrow
from posbias.errors import PosbiasError
from posbias.simulation.blocks import (
    Block,
    Pages,
    Rankings,
    add_up,
    blocks_of,
    count_same,
    draw_pages,
    draw_rankings,
)
from posbias.simulation.world import World

Layout = Literal["wide", "long", "replay"]
Ids = Literal["int", "str"]

# NumPy and Arrow release the GIL in all that takes time; more threads than this outrun any one file.
_THREADS = 2


@dataclass(frozen=True)
class Form:
    """The form of a log: where the other rankers' ranks are, whether it is added up, what ids are."""

    layout: Layout = "wide"
    aggregated: bool = False
    ids: Ids = "int"

    def __post_init__(self) -> None:
        for name, allowed in (("layout", get_args(Layout)), ("ids", get_args(Ids))):
            found = getattr(self, name)
            if not isinstance(found, str) or found not in allowed:
                raise PosbiasError(f"{name} must be one of {', '.join(allowed)}, found {found!r}")


@dataclass(frozen=True)
class Piece:
    """The tables of a slice of a block, and what it adds to the counts of the whole."""

    log: pa.Table
    rankings: pa.Table | None
    queries: int
    page_views: int
    same: IntArray


def simulate(world: World, layout: Layout = "wide", *, aggregated: bool = False, ids: Ids = "int") -> pa.Table:
    """Simulate the click log of a world, in memory.

    Args:
        world: The setting.
        layout: "wide" has a column `rank_<ranker>` for each ranker, null where it has the document beyond M;
            "long" and "replay" have none, and `rank` gives what goes with "long".
        aggregated: One row for all views of a document by one ranker (and device), with `impressions` and
            `clicks` in place of `clicked` and `impression_id`.
        ids: "int" for 64-bit integers, "str" for strings such as "q17".

    Example:
        >>> log = simulate(World(queries=100, repeats=5))
        >>> log.num_rows, log.column_names
        (5000, ['query_id', 'doc_id', 'ranker', 'position', 'clicked', 'impression_id', 'rank_a', 'rank_b'])
    """
    form = Form(layout, aggregated, ids)
    if not isinstance(world, World):
        raise PosbiasError(f"simulate takes a World, not a {type(world).__name__}.")
    return pa.concat_tables(piece.log for piece in draw(world, form)).combine_chunks()


def rank(world: World, *, ids: Ids = "int") -> pa.Table:
    """Give every ranker's top M of every query: the second table of the "long" layout.

    Example:
        >>> rank(World(queries=100)).num_rows, rank(World(queries=100)).column_names
        (2000, ['query_id', 'ranker', 'doc_id', 'rank'])
    """
    form = Form(ids=ids)
    tables = (_rankings_table(world, form, block, draw_rankings(world, block)) for block in blocks_of(world))
    return pa.concat_tables(tables).combine_chunks()


def draw(world: World, form: Form) -> Generator[Piece]:
    """Draw a world in order, while the piece before is being written, and never far ahead of it."""
    waiting: deque[Future[Piece]] = deque()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="simulate") as pool:
        try:
            for block, parts in _tasks(world, form):
                waiting.append(pool.submit(_draw_piece, world, form, block, parts))
                if len(waiting) > _THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _tasks(world: World, form: Form) -> Iterator[tuple[Block, range]]:
    """What is drawn at once: a slice, or all slices of a block where they are to be added up."""
    for block in blocks_of(world):
        parts = range(len(block.slices(world)))
        if form.aggregated:
            yield block, parts
        else:
            yield from ((block, parts[part : part + 1]) for part in parts)


def _draw_piece(world: World, form: Form, block: Block, parts: range) -> Piece:
    # Drawn again for each slice of a block: cheap, for a block has several only if it has few queries.
    rankings = draw_rankings(world, block)
    drawn = (draw_pages(world, block, rankings, part) for part in parts)
    pages = add_up(world, drawn) if form.aggregated else next(drawn)
    columns = _page_columns(world, form, block, rankings, pages)
    if not form.aggregated:
        first_view = block.first_view + block.slices(world)[parts[0]].start
        views = _ids(form, "v", first_view + np.arange(len(pages.query)))
        columns["impression_id"] = _repeat(views, world.max_rank)
    if world.segments:
        columns["device"] = _repeat(
            texts_to_arrow([*world.segments]).take(numbers_to_arrow(pages.segment)), world.max_rank
        )
    if form.layout == "wide":
        columns |= _rank_columns(world, rankings, pages)
    opening = parts[0] == 0
    return Piece(
        log=pa.table(columns),
        rankings=_rankings_table(world, form, block, rankings) if opening and form.layout == "long" else None,
        queries=len(block.views) if opening else 0,
        page_views=int(pages.impressions.sum()),
        same=count_same(world, rankings) * opening,
    )


def _page_columns(world: World, form: Form, block: Block, rankings: Rankings, pages: Pages) -> dict[str, pa.Array]:
    documents = _ids(form, "d", rankings.documents.ravel())
    shown = pages.query[:, None] * world.pool + pages.shown
    queries = _ids(form, "q", block.first_query + np.arange(len(block.views)))
    rankers = texts_to_arrow(world.rankers).take(numbers_to_arrow(pages.ranker))
    columns = {
        "query_id": _repeat(queries.take(numbers_to_arrow(pages.query)), world.max_rank),
        "doc_id": documents.take(numbers_to_arrow(shown.ravel())),
        "ranker": _repeat(rankers, world.max_rank),
        "position": numbers_to_arrow(np.tile(_positions(world), len(pages.query))),
    }
    if form.aggregated:
        columns["impressions"] = numbers_to_arrow(np.repeat(pages.impressions, world.max_rank))
        columns["clicks"] = numbers_to_arrow(pages.clicks.ravel())
    else:
        columns["clicked"] = numbers_to_arrow(pages.clicks.ravel().view(np.int8))
    return columns


def _rank_columns(world: World, rankings: Rankings, pages: Pages) -> dict[str, pa.Array]:
    columns = {}
    for i in world.ranking:
        ranks = rankings.ranks[pages.query[:, None], i, pages.shown].ravel()
        columns[f"rank_{world.rankers[i]}"] = numbers_to_arrow(ranks, ranks > world.max_rank)
    return columns


def _rankings_table(world: World, form: Form, block: Block, rankings: Rankings) -> pa.Table:
    queries, rankers = len(block.views), len(world.ranking)
    top = rankings.order[:, world.ranking, : world.max_rank].astype(np.int64)
    documents = np.take_along_axis(rankings.documents[:, None, :], top, axis=-1)
    names = texts_to_arrow(world.rankers).take(numbers_to_arrow(np.tile(world.ranking, queries)))
    return pa.table(
        {
            "query_id": _repeat(_ids(form, "q", block.first_query + np.arange(queries)), rankers * world.max_rank),
            "ranker": _repeat(names, world.max_rank),
            "doc_id": _ids(form, "d", documents.ravel()),
            "rank": numbers_to_arrow(np.tile(_positions(world), queries * rankers)),
        }
    )


def _positions(world: World) -> NDArray[np.int16]:
    return np.arange(1, world.max_rank + 1, dtype=np.int16)


def _ids(form: Form, letter: str, numbers: IntArray) -> pa.Array:
    ids = numbers_to_arrow(numbers)
    return pc.binary_join_element_wise(letter, ids.cast(pa.string()), "") if form.ids == "str" else ids


def _repeat(values: pa.Array, times: int) -> pa.Array:
    """Each value so many times in a row, as a page's values are for each of its results."""
    return values.take(numbers_to_arrow(np.repeat(np.arange(len(values)), times)))
