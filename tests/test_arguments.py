"""Arguments that mean nothing, as data: what is called, and what must be said.

To add a case is to add a value, or a line to CALLS.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import posbias
from posbias.planning.plan import with_curve

WORLD = posbias.World(queries=40, repeats=4, max_rank=3, seed=1)
TABLE = posbias.simulate(WORLD)
LOG = posbias.ClickLog(TABLE)
HARVEST = posbias.harvest(LOG, max_rank=3)
FITTED = posbias.AllPairs(interval=None).fit(HARVEST)
CURVE = FITTED.curve()
TWO = np.array([1, 2])
NAN = float("nan")
HUGE = 10**400
HISTORY = posbias.History().add(CURVE, "2026-03-01")

Call = tuple[str, Callable[[], Any], str]


def each(call: Callable[..., Any], name: str, said: str, *wrong: Any, **settings: Any) -> list[Call]:
    """Return calls with wrong values of one argument, of which the same is said."""
    return [(f"{call.__name__} {name}", partial(call, **{name: value}, **settings), said) for value in wrong]


def harvest(**settings: Any) -> Any:
    return posbias.harvest(LOG, **{"max_rank": 3} | settings)


def weights(**settings: Any) -> Any:
    return posbias.ips_weights(LOG, CURVE, **settings)


def evaluate(**settings: Any) -> Any:
    return posbias.evaluate(LOG, **{"rankings": "ranker:a", "max_rank": 3} | settings)


def compare(**settings: Any) -> Any:
    return posbias.compare(HARVEST, HARVEST, **settings)


def events(**settings: Any) -> Any:
    return posbias.ClickLog.from_events(TABLE, TABLE, **settings)


def plan(**settings: Any) -> Any:
    return posbias.plan(HARVEST, **settings)


def diagnose(**settings: Any) -> Any:
    return posbias.diagnose(HARVEST, **settings)


def report(**settings: Any) -> Any:
    return posbias.report(HARVEST, **settings)


def all_pairs(**settings: Any) -> Any:
    return posbias.AllPairs(**settings).fit(HARVEST)


def cross_fit(**settings: Any) -> Any:
    return posbias.CrossFit(**settings).fit(HARVEST)


def simulate(**settings: Any) -> Any:
    return posbias.simulate(WORLD, **settings)


def tracker(**settings: Any) -> Any:
    return posbias.events_sql(**{"preset": "ga4", "table": "t"} | settings)


NUMBERS = (0, -1, 1, NAN, float("inf"), HUGE, "x", None, True, [0.9], TWO, 1j)

CALLS: list[Call] = [
    *each(harvest, "by", "by must be a list of column names", b"device", 7, None, [7], {"device"}, iter(["x"])),
    *each(harvest, "weighting", "weighting=.* is not known", "zzz", 7, TWO, [1], {}),
    *each(harvest, "non_functional", "non_functional=.* is not known", "zzz", 7, None, TWO, [1], {}),
    *each(harvest, "max_rank", "max_rank must be a whole number", 0, -1, 1, 2.5, NAN, "3", None, True, TWO, HUGE),
    *each(harvest, "progress", "progress must be a function", 7, "x", TWO, None),
    *each(posbias.evaluate, "log", "Expected a ClickLog", 7, None, "x", TABLE, HARVEST, rankings="ranker:a"),
    *each(posbias.ips_weights, "log", "Expected a ClickLog", 7, None, "x", TABLE, HARVEST, estimate=CURVE),
    *each(posbias.check, "log", "Expected a ClickLog", 7, None, "x", TABLE, HARVEST),
    *each(posbias.intervention_sets, "log", "Expected a ClickLog", 7, None, "x", TABLE, HARVEST),
    *each(posbias.compare_segments, "harvest", "compare_segments takes a Harvest", 7, None, "x", TABLE, LOG),
    *each(posbias.simulate, "world", "simulate takes a World", 7, None, "x", TABLE),
    *each(harvest, "engine", "engine|Engine", "sqlite", 7, TWO),
    *each(harvest, "force", "force must be True or False", "no", "yes", 1, None, TWO),
    *each(posbias.intervention_sets, "force", "force must be True or False", "no", 0, log=LOG),
    *each(weights, "force", "force must be True or False", "no", 1, None),
    *each(evaluate, "force", "force must be True or False", "no", 1, None),
    # Estimators.
    *each(all_pairs, "level", "level must lie between", *NUMBERS),
    *each(cross_fit, "exposure", "exposure must be one of", "x", 7, TWO),
    *each(cross_fit, "relevance", "relevance must be one of", "x", None, TWO),
    *each(cross_fit, "interval", "interval must be one of", "x", 7, TWO, []),
    *each(cross_fit, "seed", "seed must be a whole", -1, 1.5, "x", None, TWO),
    # What is made of curves and harvests.
    *each(
        plan, "precision", "precision must be a share above 0", 0, -1, 10, 1e-300, NAN, HUGE, "x", None, True, TWO, 1j
    ),
    *each(plan, "level", "level must lie between 0 and 1", *NUMBERS),
    *each(plan, "estimators", "estimators", 7, None, [7], [[1]], {}, [], "x", ["cross-fit", "x"], iter(["x"])),
    *each(plan, "traffic", "traffic must give a share of 0 or more", 7, None, "a=1", [7], TWO, b"x", iter([])),
    *each(plan, "traffic", "traffic must give a share of 0 or more", *({"a": x, "b": 1} for x in (NAN, -1, "x"))),
    *each(plan, "traffic", "a share above 0 to two rankers", {}, {"a": 1}, {"a": 0, "b": 0}),
    *each(plan, "traffic", "the rankers are 'a', 'b'", {"x": 1, "y": 1}),
    *each(plan, "queries", "queries must be a whole number", 0, -1, 1.5, NAN, "x", True, TWO, HUGE),
    *each(diagnose, "split", "split must give a share of 0 or more", 7, "a=1", [1], {"a": "x", "b": 1}, {"a": -1}),
    *each(
        diagnose,
        "split",
        "split must give a share of 0 or more",
        {"a": NAN, "b": 1},
        {"a": HUGE, "b": 1},
        {"a": 1e308, "b": 1e308},
    ),
    *each(report, "by", "by must be a list of column names", 7, None),
    *each(report, "by", "decided when the harvest was made", ["device"]),
    *each(report, "names", "names must be a list of texts", "x", 7, [1], [None], b"x"),
    *each(report, "names", "2 names were given for 1", ["x", "y"]),
    *each(report, "history", "path must be a path", 7, TWO, CURVE, b"x", "a\0b"),
    *each(report, "estimator", "does not fit on a harvest", "", "x", 7, TWO, []),
    *each(report, "level", "level must lie between 0 and 1", *NUMBERS),
    *each(compare, "names", "names must be a list of 2 texts", "ab", "x", 7, ["x"], ["x", "y", "z"], [1, 2], None),
    *each(compare, "estimator", "does not fit on a harvest", "", "naive-ctr", 7, TWO),
    *each(compare, "level", "level must lie between 0 and 1", *NUMBERS),
    *each(
        weights, "cap", "cap must be a number of 1 or more", 0, -1, 0.5, NAN, float("inf"), HUGE, "20", True, TWO, [20]
    ),
    *each(weights, "keep", "keep must be a list of column names", 7, [7], None, {"doc_id"}),
    *each(weights, "beyond", "beyond=.* is not known", "zzz", None, 7, TWO),
    *each(weights, "output", "output must be a path", 7, b"x.parquet", TWO, "a\0b.parquet"),
    *each(weights, "output", "path to write to is empty", ""),
    *each(weights, "candidates", "cannot be read from", 7, b"x", [7], {}),
    *each(evaluate, "metric", "metric .* is not known", "x", "dcg@0", "dcg@-1", "dcg@", None, 7, TWO, [], "DCG"),
    *each(evaluate, "metric", "log is read only to rank 3", "dcg@4", "precision@99999"),
    *each(evaluate, "score", "score must be a text", 7, TWO, ["rank"]),
    *each(evaluate, "max_rank", "max_rank must be a whole number", 0, 1, 2.5, "3", None, HUGE),
    *each(evaluate, "rankings", "no ranking to evaluate", [], (), {}),
    *each(evaluate, "rankings", "name of a ranking is empty", "", " ", [""]),
    *each(evaluate, "rankings", "A ranking must be a file or a table", None, 7, [7], b"x", {"x": 7}, [["x"]], {"x"}),
    *each(evaluate, "rankings", "has no ranker", "ranker:", "ranker:z"),
    *each(evaluate, "level", "level must lie between 0 and 1", *NUMBERS),
    # Histories and files.
    *each(HISTORY.add, "curve", "keeps curves, not a", 7, None, HARVEST, "x", on="2026-03-01"),
    *each(HISTORY.add, "on", "Expected a day such as", 7, None, "", "x", "2026-13-01", TWO, curve=CURVE),
    *each(HISTORY.add, "findings", "findings must be a list of texts", "x", 7, [7], None, curve=CURVE, on="2026-03-02"),
    *each(posbias.History.load, "path", "must be a path", 7, None, b"x", "a\0b"),
    *each(posbias.Curve.load, "path", "must be a path", 7, None, b"x", "a\0b"),
    *each(posbias.Harvest.load, "path", "must be a path", 7, None, b"x", "a\0b"),
    *each(HARVEST.save, "path", "must be a path", 7, None, b"x", "a\0b"),
    *each(CURVE.save, "path", "must be a path", 7, None, b"x", "a\0b"),
    *each(HISTORY.save, "path", "must be a path", 7, None, b"x", "a\0b"),
    *each(lambda harvests: posbias.merge(harvests), "harvests", "merge takes", 7, None, "x", [7], ["x"]),
    *each(lambda second: posbias.merge(HARVEST, second), "second", "merge takes", 7, None, "x", [HARVEST]),
    *each(lambda other: posbias.report(HARVEST, other), "other", r"report\(...\).save\('x.html'\)", "x.html"),
    # Logs, engines and worlds.
    *each(events, "first", "first=.* must be 0 or 1", 2, -1, "0", True, 0.5, TWO),
    *each(events, "preset", "preset=.* is not known", "x", "", 7, TWO),
    *each(posbias.ClickLog, "duplicates", "duplicates=.* is not known", "x", None, 7, TWO, source=TABLE),
    *each(posbias.DuckDB, "threads", "threads must be a whole number", 0, -1, 1.5, "x", True, TWO, 100_000),
    *each(posbias.DuckDB, "memory_limit", "memory_limit must be a size", 7, 1.5, TWO, []),
    *each(posbias.World, "traffic", "traffic must be", (-1, -1), (0, 0), (1e308, 1e308), (NAN, 1), (HUGE, 1), ("x", 1)),
    *each(
        posbias.World, "repeats", "repeats must be a number from 1 to 1000000", 0, -1, 1e7, 1e300, NAN, HUGE, "x", None
    ),
    *each(posbias.World, "eta", "eta must be a number", -1, NAN, HUGE, "x", None, TWO),
    *each(with_curve, "curve", "a number above 0 for each", 7, "abc", [1, 0, 1], [1, NAN, 1], [], world=WORLD),
    *each(simulate, "layout", "layout must be one of", "x", None, 7, TWO, []),
    *each(posbias.harvest_sql, "dialect", "dialect .* is not known", "x", None, 7, [], TWO, table="t"),
    *each(tracker, "preset", "preset .* is not known", "x", None, 7, [], TWO),
    *each(tracker, "dialect", "is not printed as", "x", "", 7, [], TWO),
]


@pytest.mark.parametrize(("call", "said"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_an_invalid_argument_is_reported(
    call: Callable[[], Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(posbias.PosbiasError, match=said):
        call()
    assert list(tmp_path.iterdir()) == []


def test_truth_values_of_numpy_are_truth_values() -> None:
    assert posbias.harvest(LOG, max_rank=3, force=np.bool_(True)).page_views == HARVEST.page_views


def test_numbers_of_numpy_are_numbers() -> None:
    one = posbias.DuckDB(threads=np.int8(1))
    assert posbias.harvest(LOG, max_rank=np.int64(3), by=np.array(["ranker"]), engine=one).by == ("ranker",)
    fitted = posbias.AllPairs(level=np.float32(0.5), interval="bootstrap", bootstrap=np.int64(10), seed=np.uint8(1))
    assert fitted.fit(HARVEST).curve().level == 0.5
    assert posbias.ips_weights(LOG, CURVE, cap=np.int64(20)).cap == 20
