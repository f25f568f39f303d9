"""Arguments of the library's functions, checked as the command checks its flags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral, Real

from posbias.errors import PosbiasError
from posbias.wording import listed


def whole(name: str, value: object, low: int, high: int | None = None, error: type[PosbiasError] = PosbiasError) -> int:
    """Return a whole number within its bounds, of Python's or NumPy's type.

    >>> whole("max_rank", 10, 2)
    10
    """
    sound = isinstance(value, Integral) and not isinstance(value, bool)
    if not sound or int(value) < low or (high is not None and int(value) > high):  # type: ignore[call-overload]
        bounds = f"of {low:,} or more" if high is None else f"from {low:,} to {high:,}"
        raise error(f"{name} must be a whole number {bounds}, not {value!r}.")
    return int(value)  # type: ignore[call-overload, no-any-return]


def share(name: str, value: object, error: type[PosbiasError] = PosbiasError) -> float:
    """Return a number between 0 and 1."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < 1:
        raise error(f"{name} must lie between 0 and 1, such as 0.95, not {value!r}.")
    return float(value)


def one_of(name: str, value: object, choices: Iterable[str], error: type[PosbiasError] = PosbiasError) -> None:
    """Refuse what is none of the choices."""
    if value not in list(choices):
        raise error(f"{name}={value!r} is not known. Use one of {listed(choices)}.")


def names(name: str, value: Sequence[str], error: type[PosbiasError] = PosbiasError) -> tuple[str, ...]:
    """Return several names as a tuple, each once; one text would be taken for its letters."""
    if isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(item, str) for item in value):
        raise error(f"{name} must be a list of column names, such as {name}=['device'], not {value!r}.")
    for item in value:
        if list(value).count(item) > 1:
            raise error(f"{name} names {item!r} twice. Name it once.")
    return tuple(value)
