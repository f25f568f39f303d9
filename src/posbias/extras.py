"""What is installed only by those who use it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from posbias.errors import PosbiasError

# Package -> what it is called, and the extra that brings it.
_EXTRAS = {
    "matplotlib": ("matplotlib", "plot"),
    "pyspark": ("PySpark", "spark"),
    "sklearn": ("scikit-learn", "learn"),
}


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
            f"{needing} {name}, which is not installed ({error}). Install it with: pip install 'posbias[{extra}]'"
        ) from error
