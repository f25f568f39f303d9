"""Check that an estimator of your own follows the rules that every estimator of posbias follows.

`check_estimator` runs all checks. Each check is also a value of `CHECKS`, for `pytest.mark.parametrize`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from posbias._arrays import BoolArray, FloatArray
from posbias.engines.duckdb import DuckDB
from posbias.errors import EstimateError
from posbias.estimators.base import Estimator
from posbias.harvesting.harvest import Harvest, harvest
from posbias.harvesting.merge import merge
from posbias.logs.click_log import ClickLog
from posbias.simulation import World, simulate

__all__ = ["check_estimator"]

# The class of an estimator, or a function that takes its parameters.
Make = Callable[..., Estimator[Any]]
# Two fits that must be equal may differ by rounding.
_SAME = 1e-9
# A hundred times the data leaves a tenth of the error; a third leaves room for chance.
_FEW_QUERIES, _MANY_QUERIES, _LARGEST_RATIO = 200, 20_000, 1 / 3


def check_estimator(make: Make) -> None:
    """Check an estimator on simulated logs; the first rule that it breaks raises an AssertionError.

    It takes some seconds: the largest log has 20,000 queries.

    Arguments:
        make (type or callable): the class of the estimator, a subclass of `posbias.estimators.Estimator`, or a function
            that takes its parameters `level`, `interval`, `bootstrap` and `seed` and returns an estimator.

    Example:
        >>> import posbias
        >>> posbias.testing.check_estimator(posbias.PivotOne)
    """
    for name, check in CHECKS.items():
        try:
            check(make)
        except Exception as error:
            raise AssertionError(f"The estimator breaks the rule {name!r}: {error}") from error


def check_parameters(make: Make) -> None:
    """`__init__` only stores the parameters, even invalid ones."""
    given = {"level": 3, "bootstrap": -1}
    estimator = make(**given)
    found = {name: getattr(estimator, name, None) for name in given}
    _require(found == given, f"it was given {given} and has {found}")


def check_invalid_parameters(make: Make) -> None:
    """`fit` names an invalid parameter, and refuses what is no harvest."""
    for parameters in ({"level": 1.0}, {"level": 0}, {"bootstrap": 0}):
        with _raises(next(iter(parameters))):
            make(**parameters).fit(simulated_harvest())
    with _raises("takes a Harvest"):
        make().fit([1, 2, 3])  # type: ignore[arg-type]
    with _raises("not fitted"):
        make().summary()


def check_results(make: Make) -> None:
    """`fit` returns the estimator, and sets curve, interval and covariance; rank 1 is exactly 1."""
    estimator, ranks = make(), simulated_harvest().max_rank
    _require(estimator.fit(simulated_harvest()) is estimator, "fit does not return the estimator")
    shapes = estimator.propensity_.shape, estimator.interval_.shape, estimator.covariance_.shape
    _require(shapes == ((ranks,), (ranks, 2), (ranks, ranks)), f"the results have the shapes {shapes}")
    _require(estimator.propensity_[0] == 1, f"rank 1 has the propensity {estimator.propensity_[0]}")
    _require(bool(np.all(_inside(estimator, estimator.propensity_))), "the curve is outside its own interval")


def check_recovery(make: Make) -> None:
    """The true curve is inside a 99.9% interval, and the error shrinks as the log grows."""
    inside = _inside(make(level=0.999).fit(simulated_harvest()), _WORLD.propensity)
    _require(bool(np.all(inside)), f"the true curve is outside its interval at rank {1 + int(np.argmin(inside))}")
    few, many = (_error(make, queries) for queries in (_FEW_QUERIES, _MANY_QUERIES))
    _require(many < _LARGEST_RATIO * few, f"a hundred times the data changed the error only from {few} to {many}")


def check_intervals(make: Make) -> None:
    """A higher level is wider, no interval is NaN, and the seed decides a bootstrap but not the estimate."""
    narrow, wide = (make(level=level).fit(simulated_harvest()).interval_[1:] for level in (0.5, 0.99))
    nested = (wide[:, 0] < narrow[:, 0]) & (narrow[:, 1] < wide[:, 1])
    _require(bool(np.all(nested)), "a 99% interval does not contain the 50% interval")
    none = make(interval=None).fit(simulated_harvest())
    _require(bool(np.isnan(none.interval_[1:]).all()), "interval=None gives intervals")
    drawn = {"interval": "bootstrap", "bootstrap": 100}
    one, same, other = (make(**drawn, seed=seed).fit(simulated_harvest()) for seed in (1, 1, 2))
    _require(np.array_equal(one.propensity_, other.propensity_), "the seed changes the estimate")
    _require(np.array_equal(one.interval_, same.interval_), "the same seed gives another interval")


def check_invariance(make: Make) -> None:
    """Neither the names of rankers nor the parts that a harvest was merged from change the result."""
    whole = make().fit(simulated_harvest())
    for what, other in (("renaming rankers", _renamed_harvest()), ("merging two days", _merged_harvest())):
        found = make().fit(other)
        for name in ("propensity_", "interval_"):
            same = np.allclose(getattr(found, name), getattr(whole, name), rtol=_SAME, atol=0, equal_nan=True)
            _require(same, f"{what} changes {name}")


def check_missing_data(make: Make) -> None:
    """Ranks without data have no number, and a log without comparisons is an error that says why."""
    shallow = ClickLog(simulate(World(queries=500, max_rank=4)))
    fitted = make(interval=None).fit(harvest(shallow, max_rank=10))
    _require(bool(np.isnan(fitted.propensity_[4:]).all()), "ranks that never occur have a number")
    _require(bool(np.isfinite(fitted.propensity_[:4]).all()), "a rank with data has no number")
    alike = ClickLog(simulate(World(queries=50, similarity=1.0)))
    with _raises("no intervention to harvest"):
        make().fit(harvest(alike))


# The name of each rule and the function that checks it.
CHECKS: dict[str, Callable[[Make], None]] = {
    "parameters": check_parameters,
    "invalid parameters": check_invalid_parameters,
    "results": check_results,
    "recovery": check_recovery,
    "intervals": check_intervals,
    "invariance": check_invariance,
    "missing data": check_missing_data,
}


# ---- Simulated harvests, and what the checks share

_WORLD = World(queries=10_000, repeats=2, similarity=0.5)


@cache
def simulated_harvest() -> Harvest:
    """Return the harvest that most checks fit."""
    return _harvest(simulate(_WORLD))


@cache
def _renamed_harvest() -> Harvest:
    """Return the same harvest with rankers whose names sort in the other order."""
    import pyarrow as pa

    table = simulate(_WORLD)
    names = {"rank_a": "rank_z", "rank_b": "rank_c"}
    table = table.rename_columns([names.get(name, name) for name in table.column_names])
    ranker = ["z" if name == "a" else "c" for name in table["ranker"].to_pylist()]
    return _harvest(table.set_column(table.column_names.index("ranker"), "ranker", pa.array(ranker)))


@cache
def _merged_harvest() -> Harvest:
    """Return the same harvest, merged from two days."""
    table = simulate(_WORLD)
    half = table.num_rows // 2
    return merge([_harvest(part) for part in (table.slice(0, half), table.slice(half))])


def _harvest(table: Any) -> Harvest:
    return harvest(ClickLog(table), engine=DuckDB(threads=1))


def _error(make: Make, queries: int) -> float:
    """Return the root mean squared error of the curve over four logs."""
    errors = []
    for seed in range(4):
        world = World(queries=queries, repeats=4, similarity=0.6, max_rank=4, seed=seed)
        errors.append(make(interval=None).fit(_drawn(world)).propensity_ - world.propensity)
    return float(np.sqrt(np.mean(np.square(errors))))


@cache
def _drawn(world: World) -> Harvest:
    return harvest(ClickLog(simulate(world)), max_rank=world.max_rank)


def _inside(estimator: Estimator[Any], curve: FloatArray) -> BoolArray:
    """Return at which ranks a curve is inside the intervals of an estimator."""
    low, high = estimator.interval_.T
    return np.asarray((low <= curve) & (curve <= high))


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


@contextmanager
def _raises(text: str) -> Iterator[None]:
    """Require an EstimateError whose message contains a text."""
    try:
        yield
    except EstimateError as error:
        _require(text in str(error), f"the error {str(error)!r} does not contain {text!r}")
    else:
        raise AssertionError(f"an EstimateError with {text!r} was expected, and nothing was raised")
