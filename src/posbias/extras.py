"""What is installed only by those who use it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from posbias.errors import PosbiasError
from posbias.wording import shell

# Package -> what it is called, and the extra that brings it, if one of ours does.
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


def optional(module: str, needing: str) -> Any:
    """Return a module of an optional package, or say who is needing it and how to get it.

    >>> optional("sklearn.svm", "Ranking SVMs need").LinearSVC.__name__
    'LinearSVC'
    """
    package = module.split(".")[0]
    try:
        import_module(package)
        return import_module(module)
    except ImportError as error:
        name, extra = _EXTRAS[package]
        raise PosbiasError(
            f"{needing} {name}, which is not installed ({error}). Install it with: {_installation(package, extra)}"
        ) from error


def _installation(package: str, extra: str | None, clone: Path = _CLONE) -> str:
    """Return the command that brings a package: in a clone, one that works there, from any folder."""
    if extra is None:
        return f"pip install {package}"
    if (clone / "pyproject.toml").is_file() and (clone / "src" / "posbias").is_dir():
        here = "." if Path.cwd() == clone else str(clone)
        return f"pip install -e {shell(f'{here}[{extra}]')}"
    return f"pip install {shell(f'posbias[{extra}]')}"
