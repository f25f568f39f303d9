"""Test random logs against the oracle: any layout, type, container and name; damaged logs are reported, never counted.

A failure names its seed. To see it again:

    POSBIAS_FUZZ_SEED=<seed> python -m pytest tests/harvesting/test_fuzz.py -k of_a_seed
"""

from __future__ import annotations

import math
import os
import random
import re
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import posbias
import posbias.engines
from posbias.judging.compare import fit_harvest
from tests.harvesting.test_harvest import assert_equal, served
from tests.learning.test_evaluate import judge
from tests.support import oracle
from tests.support.fuzzing import CONTAINERS, ON_SPARK, Trial, click_log, draw, write_beside
from tests.support.logs import Log

SEEDS = [int(os.environ["POSBIAS_FUZZ_SEED"])] if "POSBIAS_FUZZ_SEED" in os.environ else range(40)
# A test of the suite takes no longer; `make fuzz` as long as one likes.
SECONDS = float(os.environ.get("POSBIAS_FUZZ_SECONDS", "45"))


def expected(trial: Trial, rows: list[oracle.Row], *, by: bool = False) -> oracle.Pairs:
    """Return the pair table of some rows of a trial; `by` says that replays are counted by segment."""
    log = trial.log

    def stratum(row: oracle.Row) -> Any:
        return (*(row[key] for key in trial.labels), row["query"], row["doc"])

    apart = {"stratum": stratum} if by and _by_exposure(trial) else {}
    return oracle.harvest(log.layout, rows, trial.max_rank, trial.weighting, log.rankings, **apart)


def _by_exposure(trial: Trial) -> bool:
    return trial.log.layout == "replay" or trial.weighting not in (None, "traffic")


def counted(log: Log, M: int) -> tuple[list[int], list[int]]:
    """Return impressions and clicks by rank."""
    at = [[row for row in oracle.top(log.rows, M) if row["position"] == k] for k in range(1, M + 1)]
    return [sum(map(oracle.impressions, rows)) for rows in at], [sum(map(oracle.clicks, rows)) for rows in at]


def assert_harvest(trial: Trial, harvest: posbias.Harvest) -> None:
    """Compare all that a harvest tells with the definitions."""
    M, rows = trial.max_rank, trial.log.rows
    assert harvest.layout == trial.log.layout
    impressions, clicks = counted(trial.log, M)
    np.testing.assert_array_equal(harvest.impressions, impressions, err_msg="impressions")
    np.testing.assert_array_equal(harvest.clicks, clicks, err_msg="clicks")
    assert served(harvest.page_views) == oracle.page_views(rows, M)
    # Sums by segment are weighted by the traffic of each, and say nothing of the whole.
    if not (trial.by and harvest.kind == "pairs"):
        assert_equal(harvest.pairs(), expected(trial, rows, by=bool(trial.by)), M)
    if not (trial.by and trial.whole_pages):
        return
    keys = {_key(trial, row) for row in oracle.top(rows, M)}
    assert set(harvest.segments) == keys
    for key in keys:
        part = [row for row in rows if _key(trial, row) == key]
        segment = harvest.segment(key)
        assert served(segment.page_views) == oracle.page_views(part, M)
        assert_equal(segment.pairs(), expected(trial, part), M)


def _key(trial: Trial, row: oracle.Row) -> tuple[str | None, ...]:
    return tuple(label(row[key]) for key, label in trial.labels.items())


# ---- What else reads a log: weights, evaluations, events, windows


def assert_weights(trial: Trial, folder: Path) -> bool:
    """Compare impressions, clicks, exposure and weight of all pairs with plain sums."""
    rows = [row for row in trial.log.rows if oracle.impressions(row)]
    deepest = max(row["position"] for row in rows)
    p = [1 / (1 + 0.3 * k) for k in range(deepest)]
    found = posbias.ips_weights(click_log(trial), p, cap=2.0, force=True).table
    sums: dict[Any, list[float]] = defaultdict(lambda: [0, 0, 0.0, 0.0])
    for row in rows:
        shown, clicks, examined = oracle.impressions(row), oracle.clicks(row), p[row["position"] - 1]
        added = shown, clicks, shown * examined, clicks * min(1 / examined, 2.0)
        sums[oracle.query_doc(row)] = [a + b for a, b in zip(sums[oracle.query_doc(row)], added, strict=True)]
    columns = [found[name].to_pylist() for name in ("impressions", "clicks", "exposure", "weight")]
    np.testing.assert_allclose(sorted(zip(*columns, strict=True)), sorted(map(tuple, sums.values())), rtol=1e-9)
    return True


def assert_evaluation(trial: Trial, folder: Path) -> bool:
    """Compare the value of a random ranking, and of the log, with the formula in plain loops."""
    M, chance = trial.max_rank, random.Random(len(trial.log.rows))
    pairs = sorted({(row["query"], row["doc"]) for row in trial.log.rows})
    scores = {pair: chance.randint(0, 3) / 8 for pair in pairs if chance.random() < 0.8}
    if len({*scores.values()}) < 2:
        return False
    names, (query_type, queries), (doc_type, docs) = trial.names, trial.ids["query"], trial.ids["doc"]
    columns = {
        names.query: (query_type, [queries[query] for query, _ in scores]),
        names.doc: (doc_type, [docs[doc] for _, doc in scores]),
        "score": (pa.float64(), [*scores.values()]),
    }
    if "score" in (names.query, names.doc):
        return False
    ranking = write_beside(trial, columns, folder / "ranking")
    found = posbias.evaluate(click_log(trial), {"new": ranking}, score="score", max_rank=M, force=True)
    if any("only the top" in note for note in found.notes):
        return False
    p = fit_harvest(posbias.harvest(click_log(trial), max_rank=M, force=True), None, 0.95).propensity_.tolist()
    rows = [row | ({"impression_id": row["view"]} if names.view else {}) for row in trial.log.rows]
    by_query: dict[Any, dict[Any, float]] = defaultdict(dict)
    for (query, doc), score in scores.items():
        by_query[query][doc] = score

    def gain(rank: int) -> float:
        return 1 / math.log2(rank + 1) if rank <= M else 0.0

    assert found["new"].value.value == pytest.approx(judge(rows, by_query, p, gain, M), rel=1e-8)
    # If pages have gaps and no ids, what the log showed on each page is not known, and the finding says so.
    if not any(finding.code == "empty-ranks" for finding in found.findings):
        assert found.log.value.value == pytest.approx(judge(rows, None, p, gain, M), rel=1e-8)
    return True


def assert_events(trial: Trial, folder: Path) -> bool:
    """Compare the harvest of a log that is joined from impressions and clicks with the definitions."""
    names = trial.names
    if names.view is None:
        return False
    clicked = [i for i, row in enumerate(trial.log.rows) if row["clicked"]]
    shown = {name: column for name, column in trial.columns.items() if name != names.click}
    if not clicked or "clicked" in shown:
        return False
    clicks = {name: (type_, [values[i] for i in [*clicked, *clicked[:2]]]) for name, (type_, values) in shown.items()}
    log = posbias.ClickLog.from_events(
        write_beside(trial, shown, folder / "shown"),
        write_beside(trial, {name: clicks[name] for name in (names.view, names.doc)}, folder / "clicks"),
        impression=names.view,
        first=1,
        **{role: getattr(names, role) for role in ("query", "doc", "position", "ranker")},
        **{name: value for name, value in trial.arguments.items() if name in ("ranks", "rank", "rankings")},
    )
    assert_harvest(trial, run(trial, log))
    return True


def assert_windows(trial: Trial, folder: Path) -> bool:
    """Compare documents only within a window, which is a segment of the log."""
    if trial.log.layout != "replay" or "land" not in trial.names.segments:
        return False
    log = posbias.ClickLog(trial.source, **trial.arguments, window=trial.names.segments["land"])
    found = posbias.harvest(log, max_rank=trial.max_rank, force=True)
    rows, M = trial.log.rows, trial.max_rank
    want = oracle.harmonic(rows, M, lambda row: (row["query"], row["doc"], row["land"]))
    assert_equal(found.pairs(), want, M)
    return True


FURTHER = {check.__name__: check for check in (assert_weights, assert_evaluation, assert_events, assert_windows)}
# How often each compared something, for what `make fuzz` prints.
DONE: Counter[str] = Counter()


def try_further(seed: int, trial: Trial, folder: Path) -> None:
    """Run one further check on a sound log; a log that says nothing of a curve may be refused."""
    check = [*FURTHER.values()][seed % len(FURTHER)]
    try:
        DONE[check.__name__] += check(trial, folder)
    except posbias.PosbiasError as error:
        # A column that posbias adds itself must not be there, and a log without a click has no weights.
        if check is assert_weights and not re.search("column that posbias adds|no click", str(error)):
            raise AssertionError(f"weights were refused: {error}") from error


def run(trial: Trial, log: posbias.ClickLog | None = None) -> posbias.Harvest:
    return posbias.harvest(
        click_log(trial) if log is None else log,
        max_rank=trial.max_rank,
        weighting=trial.weighting,  # type: ignore[arg-type]
        by=trial.by,
        max_strata=trial.max_strata,
        force=True,
    )


def try_seed(seed: int, containers: tuple[str, ...] = tuple(CONTAINERS)) -> None:
    """Harvest the log of a seed; if it is spoilt, an error, a finding or the right numbers will do."""
    again = f"POSBIAS_FUZZ_SEED={seed} python -m pytest tests/harvesting/test_fuzz.py -k of_a_seed"
    with tempfile.TemporaryDirectory() as folder:
        trial = draw(seed, Path(folder), containers)
        try:
            harvest = run(trial)
        except posbias.PosbiasError as error:
            if not trial.defect and any(counted(trial.log, trial.max_rank)[0]):
                raise AssertionError(f"seed {seed}, {trial}, was refused: {error}\nAgain: {again}") from error
            return
        except Exception as error:
            raise AssertionError(f"seed {seed}, {trial}, broke down\nAgain: {again}") from error
        if {finding.code for finding in harvest.findings} & set(trial.found):
            return
        try:
            assert_harvest(trial, harvest)
            if not trial.defect and trial.container != "reader" and posbias.engines.DEFAULT == "duckdb":
                try_further(seed, trial, Path(folder))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {trial}, differs: {error}\nAgain: {again}") from error


@pytest.mark.parametrize("seed", SEEDS)
def test_random_log_of_a_seed_agrees_with_the_oracle(seed: int) -> None:
    try_seed(seed)


@pytest.mark.long
def test_random_logs_agree_with_the_oracle_until_the_time_limit(capsys: pytest.CaptureFixture[str]) -> None:
    first = seed = random.SystemRandom().randrange(2**40)
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            try_seed(seed)
            seed += 1
    finally:
        with capsys.disabled():
            print(f"\n{seed - first:,} random logs from seed {first}; of them, compared further: {dict(DONE)}")


@pytest.mark.parametrize("seed", range(6))
def test_random_logs_agree_on_every_engine(seed: int, each_engine: str) -> None:
    try_seed(seed, ON_SPARK)
