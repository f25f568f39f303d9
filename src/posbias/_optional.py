"""Optional packages, which are imported only if they are used, and data frames of pandas and Polars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from posbias._text import shell
from posbias.errors import PosbiasError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

# Package -> its name, and the extra of posbias that installs it, if any.
_EXTRAS = {
    "jinja2": ("Jinja", "report"),
    "lightgbm": ("LightGBM", "learn"),
    "matplotlib": ("matplotlib", "plot"),
    "pandas": ("pandas", None),
    "polars": ("Polars", None),
    "pyspark": ("PySpark", "spark"),
    "sklearn": ("scikit-learn", "learn"),
    "torch": ("PyTorch", None),
    "xgboost": ("XGBoost", "learn"),
}
# In a clone this file lies in src/posbias, with the project above.
_CLONE = Path(__file__).resolve().parents[2]
# Name of a column -> the type of its values, and the values, None for a missing one.
Columns = Mapping[str, tuple[type[int] | type[float] | type[str], Sequence[Any]]]


def require(package: str, needing: str) -> None:
    """Raise an error that says how to install an optional package if it is missing; the package is not imported."""
    if find_spec(package) is None:
        raise _missing(package, needing, f"No module named {package!r}")


def _missing(package: str, needing: str, found: str) -> PosbiasError:
    name, extra = _EXTRAS[package]
    return PosbiasError(
        f"{needing} {name}, which is not installed ({found}). Install it with: {_installation(package, extra)}"
    )


def _installation(package: str, extra: str | None, clone: Path = _CLONE) -> str:
    """Return the command that installs a package: in a clone, one that works there from any folder."""
    if extra is None:
        return f"pip install {package}"
    if (clone / "pyproject.toml").is_file() and (clone / "src" / "posbias").is_dir():
        here = "." if Path.cwd() == clone else str(clone)
        return f"pip install -e {shell(f'{here}[{extra}]')}"
    return f"pip install {shell(f'posbias[{extra}]')}"


def import_in_background(*modules: str) -> None:
    """Import modules in a thread, while the engine counts and the interpreter is idle.

    Modules that cannot be imported are skipped: the code that needs them reports it.
    """

    def run() -> None:
        for module in modules:
            with suppress(Exception):
                import_module(module)

    Thread(target=run).start()


def pandas_frame(columns: Columns) -> pd.DataFrame:
    """Return columns as a pandas data frame: missing numbers are NaN, or NA in columns of whole numbers."""
    pandas = optional("pandas", "to_pandas needs")

    def kind(of: type, values: Sequence[Any]) -> str:
        if of is int:
            return "Int64" if None in values else "int64"
        return "float64" if of is float else "string"

    return pandas.DataFrame(
        {name: pandas.Series(list(values), dtype=kind(of, values)) for name, (of, values) in columns.items()}
    )


def optional(module: str, needing: str) -> Any:
    """Import and return a module of an optional package; raise an error that says how to install it if it is missing.

    >>> optional("sklearn.svm", "Ranking SVMs need").LinearSVC.__name__
    'LinearSVC'
    """
    package = module.split(".")[0]
    try:
        import_module(package)
        return import_module(module)
    except ImportError as error:
        raise _missing(package, needing, str(error)) from error
    # An installed package may fail in its own way, as matplotlib does for an unknown backend.
    except Exception as error:
        name, _ = _EXTRAS[package]
        raise PosbiasError(f"{needing} {name}, which is installed but cannot be imported: {error}") from error


def polars_frame(columns: Columns) -> pl.DataFrame:
    """Return columns as a Polars data frame: missing values are null."""
    polars = optional("polars", "to_polars needs")
    kinds = {int: polars.Int64, float: polars.Float64, str: polars.String}
    frame: pl.DataFrame = polars.DataFrame(
        {name: list(values) for name, (_, values) in columns.items()},
        schema={name: kinds[of] for name, (of, _) in columns.items()},
    )
    return frame
