"""Estimators of the propensity curve: one file each, and one line here."""

from __future__ import annotations

from posbias.estimators.adjacent_chain import AdjacentChain
from posbias.estimators.all_pairs import AllPairs
from posbias.estimators.base import Estimator
from posbias.estimators.pivot_one import PivotOne

REGISTRY: dict[str, type[Estimator]] = {estimator.name: estimator for estimator in (AllPairs, PivotOne, AdjacentChain)}

__all__ = ["REGISTRY", "AdjacentChain", "AllPairs", "Estimator", "PivotOne"]
