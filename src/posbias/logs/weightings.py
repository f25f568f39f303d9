"""How much each (query, document) pair counts in a comparison of two ranks."""

from __future__ import annotations

from typing import Literal

Weighting = Literal["traffic", "uniform", "harmonic"]
WEIGHTINGS: tuple[Weighting, ...] = ("traffic", "uniform", "harmonic")
