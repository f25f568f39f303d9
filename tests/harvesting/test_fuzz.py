"""Test random logs against the oracle: any layout, type, container and name; damaged logs are reported, never counted.

A failure names its seed. To see it again:

    POSBIAS_FUZZ_SEED=<seed> python -m pytest tests/harvesting/test_fuzz.py -k of_a_seed
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import posbias
from tests.harvesting.test_harvest import assert_equal, served
from tests.support import oracle
from tests.support.fuzzing import CONTAINERS, ON_SPARK, Trial, click_log, draw
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


def run(trial: Trial) -> posbias.Harvest:
    return posbias.harvest(
        click_log(trial),
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
            print(f"\n{seed - first:,} random logs from seed {first}")


@pytest.mark.parametrize("seed", range(6))
def test_random_logs_agree_on_every_engine(seed: int, each_engine: str) -> None:
    try_seed(seed, ON_SPARK)
