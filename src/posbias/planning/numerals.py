"""How numbers of a plan are written: to three digits, for no more of a prediction is worth reading."""

from __future__ import annotations

from math import ceil, floor, log10

BETWEEN = " – "
Between = tuple[float, float] | None


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{float(f'{100 * share:.3g}'):g}%"


def precision_of(share: float | None) -> str:
    """Return a half-width."""
    if share is None:
        return "–"
    return f"±{100 * share:.1f}%" if share < 1 else f"±{100 * share:,.0f}%" if share < 100 else "no bound"


def times_of(times: float | None, between: Between = None) -> str:
    """Return how many times the data are needed: a number, or a range where that is not known.

    >>> times_of(9.094), times_of(None, (0.5, 12.3)), times_of(None)
    ('×9.09', '×0.50 – 12', '–')
    """
    if times is None and between is not None:
        return f"×{BETWEEN.join(map(_multiple, between))}"
    return "–" if times is None else f"×{_multiple(times)}"


def _multiple(times: float) -> str:
    return f"{times:.2f}" if times < 10 else f"{times:,.0f}" if times < 1e5 else "10⁵+"


def rounded(count: int | None) -> str:
    """Return a count, rounded up."""
    return "–" if count is None else f"{_up(count):,}"


def _up(count: int) -> int:
    if count <= 0:
        return 0
    step = 10 ** max(0, floor(log10(count)) - 2)
    return int(-(-count // step) * step)


def compact(count: float) -> str:
    """Return a count in a few letters.

    >>> compact(9270), compact(42850), compact(437_000), compact(4_370_000)
    ('9,270', '42.9k', '437k', '4.37M')
    """
    found = _up(ceil(count))
    if found < 10_000:
        return f"{found:,}"
    unit, letter = (10**3, "k") if found < 10**6 else (10**6, "M") if found < 10**9 else (10**9, "G")
    return f"{found / unit:,.10g}{letter}"


def needed_of(count: int | None, between: Between) -> str:
    """Return how much is needed: a number, or a range where that is not known."""
    if count is None and between is not None:
        return BETWEEN.join(map(compact, between))
    return rounded(count)


def more_of(count: int | None, between: Between, held: float) -> str:
    """Return how much is needed beyond what is held.

    >>> more_of(1510, None, 2000), more_of(None, (1500.0, 52_000.0), 2000), more_of(None, (500.0, 900.0), 2000)
    ('1,510', '0 – 50k', 'enough')
    """
    if count is None and between is not None:
        low, high = (max(0.0, end - held) for end in between)
        return needed_of(None, (low, high)) if high > 0 else "enough"
    return "enough" if count == 0 else rounded(count)
