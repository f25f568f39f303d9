"""Estimators of the propensity curve: one file each, and one line in `registered`.

`ESTIMATORS` has them by the name they have on the command line; `fits_on` of a class says what it takes. An estimator
is imported when it is first used: NumPy takes longer than any help text may.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posbias.estimators.base import CurveEstimator as CurveEstimator
    from posbias.estimators.harvested import Estimator as Estimator
    from posbias.estimators.logged import LogEstimator as LogEstimator
    from posbias.estimators.paired import PairEstimator as PairEstimator
    from posbias.estimators.registered import *  # noqa: F403

_BASES = {"CurveEstimator": "base", "Estimator": "harvested", "LogEstimator": "logged", "PairEstimator": "paired"}


class _Registry(Mapping[str, "type[CurveEstimator]"]):
    """Estimators by name, in the order of menus and tables, each imported when it is looked up."""

    def __init__(self, lines: str) -> None:
        of_harvests, of_logs = (
            re.findall(r"^ +from posbias\.estimators\.(\w+) import (\w+) as \2$", part, re.MULTILINE)
            for part in lines.split("# From the rows of a log.")
        )
        # The module of each class.
        self.modules = {kind: module for module, kind in (*of_harvests, *of_logs)}
        self._kinds = {module.replace("_", "-"): kind for kind, module in self.modules.items()}
        # Those that look at the rows of a log, or may; the others wait for a harvest, and so may their import.
        self.of_logs = frozenset(module.replace("_", "-") for module, _ in of_logs)

    def __getitem__(self, name: str) -> type[CurveEstimator]:
        return _imported(self._kinds[name])  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


ESTIMATORS = _Registry(Path(__file__).with_name("registered.py").read_text("utf-8"))
_MODULES = _BASES | ESTIMATORS.modules
__all__ = ["ESTIMATORS", *_MODULES]


def _imported(name: str) -> Any:
    return getattr(import_module(f"posbias.estimators.{_MODULES[name]}"), name)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'posbias.estimators' has no attribute {name!r}")
    return _imported(name)


def __dir__() -> list[str]:
    return sorted(__all__)
