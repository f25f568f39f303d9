"""How much each (query, document) pair counts in a comparison of two ranks.

References: Agarwal et al., WSDM 2019 (traffic); Magnani and Xie, CIKM 2026 (harmonic).
"""

from __future__ import annotations

from typing import Literal

Weighting = Literal["traffic", "uniform", "harmonic"]
WEIGHTINGS: tuple[Weighting, ...] = ("traffic", "uniform", "harmonic")
