"""Values as frames of pandas or Polars, where these are installed; nothing here needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from posbias.extras import optional

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

# Name of a column -> what its values are and the values, None where there is none.
Columns = Mapping[str, tuple[type[int] | type[float] | type[str], Sequence[Any]]]


def pandas_frame(columns: Columns) -> pd.DataFrame:
    """Return columns as a frame of pandas: numbers that are missing are NaN, or NA among whole ones."""
    pandas = optional("pandas", "to_pandas needs")

    def kind(of: type, values: Sequence[Any]) -> str:
        if of is int:
            return "Int64" if None in values else "int64"
        return "float64" if of is float else "string"

    return pandas.DataFrame(
        {name: pandas.Series(list(values), dtype=kind(of, values)) for name, (of, values) in columns.items()}
    )


def polars_frame(columns: Columns) -> pl.DataFrame:
    """Return columns as a frame of Polars: what is missing is null."""
    polars = optional("polars", "to_polars needs")
    kinds = {int: polars.Int64, float: polars.Float64, str: polars.String}
    frame: pl.DataFrame = polars.DataFrame(
        {name: list(values) for name, (_, values) in columns.items()},
        schema={name: kinds[of] for name, (of, _) in columns.items()},
    )
    return frame
