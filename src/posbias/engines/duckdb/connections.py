"""A DuckDB of our own with the doors shut: it loads nothing, sees no file but the log's, and nobody changes that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import duckdb

from posbias.engines.duckdb.errors import explained
from posbias.engines.duckdb.readers import literal
from posbias.errors import PosbiasError
from posbias.sql.dialect import DuckDBDialect

_SQL = DuckDBDialect()
# Nothing is fetched or loaded because a file or a query would like it, and no name means a variable of this process.
_ALONE = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
}
# How large a table of groups may be, and what is believed of columns, is said query by query, and opens no door.
_FREE = ("perfect_ht_threshold", "disabled_optimizers")


@contextmanager
def connected(
    spill: str, memory_limit: str | None = None, threads: int | None = None, *, counting: bool = False
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a DuckDB in memory that puts what does not fit into a folder.

    Where it is `counting` how far its queries are, it says so when asked; it never prints that itself.
    """
    con = duckdb.connect(":memory:", config={"temp_directory": spill, **_ALONE})
    try:
        if memory_limit is not None:
            try:
                # DuckDB takes less than nothing, such as -1GB, for no limit at all.
                con.execute("SET memory_limit = ?", [memory_limit if memory_limit.strip()[:1].isdecimal() else ""])
            except duckdb.Error:
                raise PosbiasError(
                    f"The memory limit {memory_limit!r} is not understood. Give a size such as 2GB or 500MB."
                ) from None
        # Ctrl-C may come while a setting is made, too.
        with explained():
            if threads is not None:
                con.execute("SET threads = ?", [threads])
            # Row order has no meaning here, and keeping it costs memory.
            con.execute("SET preserve_insertion_order = false")
            _set_progress(con, counting)
            # Columns of Python objects get their type from all rows: ids may turn from numbers to text late.
            con.execute("SET pandas_analyze_sample = 1000000000")
        yield con
    finally:
        con.close()


def _set_progress(con: duckdb.DuckDBPyConnection, counting: bool) -> None:
    """Say whether it counts how far it is; in a notebook without ipywidgets it does not, and refuses to be told."""
    with suppress(duckdb.InvalidInputException):
        con.execute(f"SET enable_progress_bar = {counting}")
        con.execute("SET enable_progress_bar_print = false")


def shut(con: duckdb.DuckDBPyConnection, files: Iterable[str], *, trusting: bool) -> None:
    """Lock the settings; where nothing of the user's own runs, let nothing but these files be seen either."""
    if not trusting:
        # A file goes by its name where it is opened, and by a pattern that fits nothing else where it is looked up.
        seen = {name for file in files for name in (file, literal(file))}
        con.execute(f"SET allowed_paths = [{', '.join(map(_SQL.text, sorted(seen)))}]")
        con.execute("SET enable_external_access = false")
    con.execute(f"SET allowed_configs = [{', '.join(map(_SQL.text, _FREE))}]")
    con.execute("SET lock_configuration = true")


def distrust(con: duckdb.DuckDBPyConnection) -> None:
    """Believe only what is read of columns, and not what files say of them.

    The least and the greatest value that a Parquet file tells of a column leave NaN out. DuckDB takes them for the
    whole truth: where all others lie within, or are one and the same, so does a NaN. To look costs a little more.
    """
    con.execute("SET disabled_optimizers = 'statistics_propagation'")


def trust(con: duckdb.DuckDBPyConnection) -> None:
    """Believe again what files say of columns."""
    con.execute("RESET disabled_optimizers")
