"""What is normal under each of several suppositions, of which it is known how likely each is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posbias.arrays import FloatArray
from posbias.quantiles import normal_tail

# Halvings of what is left to search, which is never more than some times the answer.
_HALVINGS = 20


@dataclass(frozen=True, eq=False)
class MixedNormals:
    """Numbers about a centre, each normal under K suppositions.

    Attributes:
        chances: of the suppositions, which add up to 1: (K,).
        means: under each, less the centre: (K, ...).
        deviations: under each, none of them 0: (K, ...).
    """

    chances: FloatArray
    means: FloatArray
    deviations: FloatArray

    def half_width(self, z: float) -> FloatArray:
        """Return how far from the centre each number lies as often as a normal lies within z of its mean.

        >>> MixedNormals(np.array([0.9, 0.1]), np.zeros((2, 1)), np.array([[1.0], [3.0]])).half_width(1.96).round(2)
        array([2.53])
        """
        # The narrowest is too narrow for all others, and off its middle for itself; what holds each, holds all.
        low = z * self.deviations.min(axis=0)
        high = (np.abs(self.means) + z * self.deviations).max(axis=0)
        wanted = 2 * normal_tail(np.array(z))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            left_out = np.zeros_like(middle)
            for chance, mean, deviation in zip(self.chances, self.means, self.deviations, strict=True):
                left_out += chance * (
                    normal_tail((middle - mean) / deviation) + normal_tail((middle + mean) / deviation)
                )
            narrow = left_out > wanted
            low, high = np.where(narrow, middle, low), np.where(narrow, high, middle)
        return np.asarray(high)
