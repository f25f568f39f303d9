"""What simulation needs of scikit-learn, which is installed only by those who use it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from posbias.errors import PosbiasError


def require_learn(module: str) -> Any:
    """Return a module of scikit-learn, or say how to get it.

    Example:
        >>> require_learn("svm").LinearSVC.__name__
        'LinearSVC'
    """
    try:
        return import_module(f"sklearn.{module}")
    except ImportError as error:
        raise PosbiasError(
            "Judgment files and Ranking SVMs need scikit-learn, which is not installed: pip install 'posbias[learn]'"
        ) from error
