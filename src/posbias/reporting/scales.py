"""From numbers to places in a picture, and the round numbers that are written beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from posbias.pictures import round_ranks

# So many numbers are written beside a picture, and such a part of what is drawn is left free at both ends.
_MOST, _MARGIN = 7, 0.05
# Numbers that are closer to each other than this, or to nothing, are not told apart.
_LEAST = 1e-6


@dataclass(frozen=True)
class Axis:
    """What a picture is drawn over in one direction: from a number to another, and what is written beside some.

    Where numbers are compared by their ratios, `log` has equal ones equally far apart.
    """

    label: str
    low: float
    high: float
    ticks: Mapping[float, str]
    log: bool = False

    def share(self, value: float) -> float:
        """Return where a number lies, from 0 at the one end to 1 at the other; nowhere if it has no ratio to others."""
        if self.log and value <= 0:
            return -math.inf
        low, high, own = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return (own - low) / (high - low)


def rank_axis(ranks: Sequence[int], label: str = "Rank") -> Axis:
    """Return an axis of ranks, with half a rank more on either side."""
    return Axis(label, ranks[0] - 0.5, ranks[-1] + 0.5, {rank: f"{rank}" for rank in round_ranks(ranks[0], ranks[-1])})


def number_axis(
    label: str, values: Iterable[float], *, bottom: float | None = None, top: float = math.inf, log: bool = False
) -> Axis:
    """Return an axis that holds all of the finite values up to the top, and begins at the bottom if there is one."""
    found = [v for v in values if math.isfinite(v) and (v > _LEAST or not log)] or [1.0]
    low, high = min(found) if bottom is None else bottom, max(found)
    if log:
        beyond = (high / low) ** _MARGIN if high > low * (1 + _LEAST) else 1.1
        low, high = low / beyond, high * beyond
    else:
        size = max(abs(low), abs(high), 1.0)
        beyond = _MARGIN * (high - low) if high - low > _LEAST * size else 0.1 * size
        low, high = low - beyond, high + beyond
    low, high = low if bottom is None else bottom, min(high, top)
    ticks = round_ratios(low, high) if log else round_numbers(low, high)
    return Axis(label, low, high, ticks, log)


def round_numbers(low: float, high: float) -> dict[float, str]:
    """Return round numbers between two, with as many decimals as all of them need.

    >>> for low, high in ((0, 1.04), (0.913, 1.21), (0, 42)):
    ...     print(*round_numbers(low, high).values())
    0.0 0.2 0.4 0.6 0.8 1.0
    0.95 1.00 1.05 1.10 1.15 1.20
    0 10 20 30 40
    """
    power = math.floor(math.log10((high - low) / _MOST))
    for factor in (1, 2, 5, 10, 20):
        step = factor * 10.0**power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < _MOST:
            break
    decimals = max(0, -power - (factor >= 10))
    return {float(f"{i * step:.{decimals}f}"): f"{i * step:.{decimals}f}" for i in range(first, last + 1)}


def round_ratios(low: float, high: float) -> dict[float, str]:
    """Return round numbers between two that are compared by their ratio.

    >>> for low, high in ((0.09, 1.2), (0.6, 2.1), (0.8, 1.3)):
    ...     print(*round_ratios(low, high).values())
    0.1 0.2 0.5 1
    0.7 1 1.5 2
    0.8 0.9 1.0 1.1 1.2 1.3
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        found = [float(f"{step}e{power}") for power in powers for step in steps]
        held = [value for value in found if low <= value <= high]
        if len(held) > 2:
            return {value: f"{value:g}" for value in held[:: math.ceil(len(held) / _MOST)]}
    return round_numbers(low, high)
