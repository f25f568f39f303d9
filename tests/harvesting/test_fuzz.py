"""Test random logs against the oracle: any layout, type, container and name; damaged logs are reported, never counted.

A failure names its seed. To see it again:

    POSBIAS_FUZZ_SEED=<seed> python -m pytest tests/harvesting/test_fuzz.py -k of_a_seed

To try many logs, and to see all failures:

    python -m tests.harvesting.test_fuzz 10000            # on DuckDB, from a random seed
    python -m tests.harvesting.test_fuzz 500 spark 7000   # on Spark, from seed 7000
"""

from __future__ import annotations

import math
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import posbias
import posbias.engines
from posbias.estimators.page_depth import PageDepth
from posbias.findings import quiet
from posbias.judging.compare import fit_harvest
from tests.estimators.test_all_pairs import maximise_by_scipy, unique_ratios
from tests.harvesting.test_harvest import assert_equal, served
from tests.learning.test_evaluate import judge
from tests.learning.test_weights import a_curve
from tests.support import oracle, sparks
from tests.support.fuzzing import CONTAINERS, ON_SPARK, Trial, click_log, draw, write_beside
from tests.support.logs import Log

# Logs that posbias once failed on: segments that cannot be pooled, scores that are all 0, a column that is not used, a
# rank that a ranker shows in none of the page views that could tell, a bucket without which the score has no slope.
# The last was sorted differently here.
FAILED = (20000005, 20001248, 20001401, 31000613, 343661363655, 260119014515, 260119019829)
SEEDS = [int(os.environ["POSBIAS_FUZZ_SEED"])] if "POSBIAS_FUZZ_SEED" in os.environ else [*range(40), *FAILED]
# A test of the suite takes no longer; `make fuzz` as long as one likes.
# `make fuzz` draws new logs for so long. Other runs try the same logs each time, so that they can be repeated.
SECONDS = float(os.environ.get("POSBIAS_FUZZ_SECONDS", "0"))
SAME_LOGS = range(41_000_000, 41_000_100)


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


# ---- What else reads a log: curves, weights, evaluations, events, windows


def assert_curves(trial: Trial, harvest: posbias.Harvest, folder: Path) -> bool:
    """Compare the curves of all estimators, also by segment and pooled, with their definitions."""
    compared = not trial.by and _assert_pair_curves(trial, harvest)
    if harvest.kind != "pairs":
        compared |= not trial.by and _assert_score_is_zero(trial, harvest)
        compared |= bool(trial.by) and _assert_segment_curves(trial, harvest, folder)
    return compared


def _assert_pair_curves(trial: Trial, harvest: posbias.Harvest) -> bool:
    """Compare the ratios of sections 4.1 and 4.2 with those of the oracle, and AllPairs with a general optimiser."""
    M, rows = trial.max_rank, trial.log.rows
    pairs = expected(trial, rows)
    if harvest.kind == "signatures" and trial.weighting in (None, "traffic"):
        pairs = oracle.traffic(rows, _traffic(trial, harvest, PageDepth.of(harvest.strata())), M)
    clicks, skips = np.zeros((2, M, M))
    for (k, other), (clicked, skipped) in pairs.items():
        clicks[k - 1, other - 1], skips[k - 1, other - 1] = float(clicked), float(skipped)

    def ratio(k: int, other: int) -> float:
        """Return ĉ at k over ĉ at the other rank, in the intervention set of both."""
        (c, n), (c_other, _) = pairs[k, other], pairs[other, k]
        return float(c / c_other) if c + n and c_other else math.nan

    pivot = [1.0, *(ratio(k, 1) for k in range(2, M + 1))]
    # Below a ratio of 0 the product is 0 whatever the data are, which is no estimate.
    chain = [1.0]
    for k in range(2, M + 1):
        chain.append(chain[-1] * ratio(k, k - 1) if chain[-1] else math.nan)
    compared = False
    for estimator, want in ((posbias.PivotOne, pivot), (posbias.AdjacentChain, chain)):
        if (found := _propensity(estimator(interval=None), harvest)) is not None:
            np.testing.assert_allclose(found, want, rtol=1e-8, err_msg=estimator.name)
            compared = True
    found = _propensity(posbias.AllPairs(interval=None), harvest)
    if found is None or M > 6:
        return compared
    best = maximise_by_scipy(clicks, skips)
    known = (found > 0) & unique_ratios(best, M)
    if best.residual < 1e-10:
        p = np.exp(best.v[:M])
        np.testing.assert_allclose(found[known], p[known] / p[0], rtol=1e-5, err_msg="all-pairs")
    return True


def _traffic(trial: Trial, harvest: posbias.Harvest, depth: PageDepth | None) -> oracle.Exposure:
    """Return w(q,d,k); on pages of different depth, only a part of them shows what a ranker puts at a rank."""
    rows, M = trial.log.rows, trial.max_rank
    n, w = oracle.page_views(rows, M), defaultdict(lambda: defaultdict(Fraction))
    shares = oracle.shares_of(trial.log.layout, rows, M, trial.log.rankings)
    for stratum, by_ranker in shares.items():
        for ranker, ranks in by_ranker.items():
            for k in ranks if ranker in n else ():
                shown = 1 if depth is None else Fraction(depth.shown[harvest.rankers.index(ranker), k - 1])
                w[stratum][k] += n[ranker] * shown
    return w


def _assert_score_is_zero(trial: Trial, harvest: posbias.Harvest) -> bool:
    """Put the curve of conditional Poisson regression into its equations, summed over single documents."""
    estimator = posbias.CrossFit(relevance="none", interval=None)
    if (p := _propensity(estimator, harvest)) is None:
        return False
    counts = estimator.count(harvest)
    if counts.left_out_note:
        return False
    rows, M, by_design = trial.log.rows, trial.max_rank, harvest.strata().by_design
    at: Any = _traffic(trial, harvest, counts.depth) if by_design else defaultdict(lambda: defaultdict(int))
    clicks: dict[Any, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in oracle.top(rows, M):
        clicks[oracle.query_doc(row)][row["position"]] += oracle.clicks(row)
        if not by_design:
            at[oracle.query_doc(row)][row["position"]] += oracle.impressions(row)
    known = [k for k in range(1, M + 1) if p[k - 1] > 0]
    score, total = np.zeros(M), 0
    for stratum, exposure in at.items():
        share = {k: float(exposure[k]) * p[k - 1] for k in known if exposure[k] > 0}
        if len(share) < 2:
            continue
        clicked = {k: clicks[stratum][k] for k in share}
        total += sum(clicked.values())
        for k in share:
            score[k - 1] += clicked[k] - share[k] / sum(share.values()) * sum(clicked.values())
    np.testing.assert_allclose(score, 0, atol=1e-5 * max(total, 1), err_msg="the score of conditional Poisson")
    return True


def _assert_segment_curves(trial: Trial, harvest: posbias.Harvest, folder: Path) -> bool:
    """Compare the curve of each segment with that of a log of its rows alone; pooled curves are at least curves."""
    if not trial.whole_pages or "duplicates" in trial.arguments:
        return False
    fitted = _fit(posbias.CrossFit(interval=None), harvest)
    compared = False
    for key, segment in (fitted.segments_ if fitted else {}).items():
        rows = [i for i, row in enumerate(trial.log.rows) if _key(trial, row) == key]
        columns = {name: (type_, [values[i] for i in rows]) for name, (type_, values) in trial.columns.items()}
        alone = posbias.ClickLog(write_beside(trial, columns, folder / f"segment {len(rows)}"), **trial.arguments)
        try:
            one = posbias.harvest(alone, max_rank=trial.max_rank, weighting=trial.weighting, force=True)
        except posbias.LogError:
            # A table of a few rows may have a column without a value, whose type nothing tells.
            continue
        found = _propensity(posbias.CrossFit(interval=None), one)
        if found is not None:
            np.testing.assert_allclose(segment.propensity_, found, rtol=1e-5, err_msg=f"segment {key}")
            compared = True
    pooled = _fit(posbias.CrossFit(pool=True), harvest)
    for key, segment in (pooled.segments_ if pooled else {}).items():
        p = segment.propensity_
        assert np.all(np.isfinite(p[pooled.propensity_ > 0]) & (p[pooled.propensity_ > 0] >= 0)), key
        assert all(segment.reasons_[k] for k in np.flatnonzero(np.isnan(p))), key
        low, high = segment.interval_[1:].T
        inside = (low <= p[1:]) & (p[1:] <= high)
        assert np.all(inside | np.isnan(low)), key
        compared = True
    return compared


def _fit(estimator: Any, harvest: posbias.Harvest) -> Any:
    """Return an estimator fitted to a harvest; None if there is nothing to compare."""
    try:
        return estimator.fit(harvest)
    except posbias.EstimateError:
        return None


def _propensity(estimator: Any, harvest: posbias.Harvest) -> Any:
    fitted = _fit(estimator, harvest)
    return None if fitted is None else fitted.propensity_


def assert_weights(trial: Trial, folder: Path) -> bool:
    """Compare impressions, clicks, exposure and weight of all pairs with plain sums; each segment has its own curve."""
    chance = random.Random(len(trial.log.rows))
    rows = [row for row in trial.log.rows if oracle.impressions(row)]
    deepest, cap = max(row["position"] for row in rows), chance.choice([None, 1.0, 2.0, 20.0])
    keys = list(dict.fromkeys(_key(trial, row) for row in rows)) if trial.by else [()]
    curves = {key: [1 / (1 + fall * k) for k in range(deepest)] for fall, key in enumerate(keys, start=1)}
    given: Any = curves[keys[0]]
    if trial.by:
        parts = {key: a_curve(p) for key, p in curves.items()}
        given = replace(parts[keys[0]], by=trial.by, segments=parts)
    found = posbias.ips_weights(click_log(trial), given, cap=cap, force=True).table
    sums: dict[Any, list[float]] = defaultdict(lambda: [0, 0, 0.0, 0.0])
    for row in rows:
        shown, clicks = oracle.impressions(row), oracle.clicks(row)
        examined = curves[_key(trial, row) if trial.by else ()][row["position"] - 1]
        added = shown, clicks, shown * examined, clicks * min(1 / examined, cap or math.inf)
        sums[oracle.query_doc(row)] = [a + b for a, b in zip(sums[oracle.query_doc(row)], added, strict=True)]
    columns = [found[name].to_pylist() for name in ("impressions", "clicks", "exposure", "weight")]
    # Rounded, because sums of floats in another order would sort equal pairs differently.
    pairs = zip(*columns, strict=True), map(tuple, sums.values())
    tables = [sorted(each, key=lambda pair: np.round(pair, 9).tolist()) for each in pairs]
    np.testing.assert_allclose(*tables, rtol=1e-9)
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
    metric = chance.choice(["dcg", "dcg@3", "precision", "rank"])
    found = posbias.evaluate(click_log(trial), {"new": ranking}, score="score", metric=metric, max_rank=M, force=True)
    if any("only the top" in note for note in found.notes):
        return False
    p = fit_harvest(posbias.harvest(click_log(trial), max_rank=M, force=True), None, 0.95).propensity_.tolist()
    rows = [row | ({"impression_id": row["view"]} if names.view else {}) for row in trial.log.rows]
    by_query: dict[Any, dict[Any, float]] = defaultdict(dict)
    for (query, doc), score in scores.items():
        by_query[query][doc] = score

    last = min(M, 3) if metric == "dcg@3" else M

    def gain(rank: int) -> float:
        if metric == "rank":
            return float(rank)
        return (1 / M if metric == "precision" else 1 / math.log2(rank + 1)) if rank <= last else 0.0

    assert found["new"].value.value == pytest.approx(judge(rows, by_query, p, gain, M), rel=1e-8)
    # If pages have gaps and no ids, what the log showed on each page is not known; a finding says so if it matters.
    known = trial.whole_pages or names.view
    if known and not any(finding.code == "empty-ranks" for finding in found.findings):
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


def assert_merged(trial: Trial, folder: Path) -> bool:
    """Compare the merged harvests of two files, each with half of the queries, with the definitions."""
    # Sums are weighted by the traffic of each half.
    weighting = trial.weighting or ("harmonic" if trial.log.layout == "replay" else "traffic")
    if not trial.whole_pages or (trial.max_strata == 0 and weighting == "traffic"):
        return False
    halves = []
    for half in (0, 1):
        rows = [i for i, row in enumerate(trial.log.rows) if row["query"] % 2 == half]
        if not any(oracle.impressions(trial.log.rows[i]) for i in rows):
            return False
        columns = {name: (type_, [values[i] for i in rows]) for name, (type_, values) in trial.columns.items()}
        log = posbias.ClickLog(write_beside(trial, columns, folder / f"half {half}"), **trial.arguments)
        halves.append(run(trial, log))
    assert_harvest(trial, posbias.merge(halves))
    return True


FURTHER = (assert_evaluation, assert_events, assert_windows, assert_merged)
# How often each compared something, for what `make fuzz` prints.
DONE: Counter[str] = Counter()


def try_further(seed: int, trial: Trial, harvest: posbias.Harvest, folder: Path) -> None:
    """Compare the curves of a sound log, and the first of the other results for which it has what that needs."""
    first = seed % (len(FURTHER) + 1)
    DONE["assert_curves"] += assert_curves(trial, harvest, folder)
    # Spark makes no weights.
    last = [assert_weights] if posbias.engines.DEFAULT == "duckdb" else []
    for check in (*FURTHER[first:], *last, *FURTHER[:first]):
        try:
            compared = check(trial, folder)
        except posbias.PosbiasError as error:
            # A column that posbias adds itself must not be there, and a log without a click has no weights.
            if check is assert_weights and not re.search("column that posbias adds|no click", str(error)):
                raise AssertionError(f"weights were refused: {error}") from error
            continue
        if compared:
            DONE[check.__name__] += 1
            return


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
            harvest.save(Path(folder) / "kept.harvest")
            kept = posbias.Harvest.load(Path(folder) / "kept.harvest")
        except posbias.PosbiasError as error:
            if not trial.defect and any(counted(trial.log, trial.max_rank)[0]):
                raise AssertionError(f"seed {seed}, {trial}, was refused: {error}\nAgain: {again}") from error
            return
        except Exception as error:
            raise AssertionError(f"seed {seed}, {trial}, broke down\nAgain: {again}") from error
        if {finding.code for finding in harvest.findings} & set(trial.found):
            return
        try:
            assert_harvest(trial, kept)
            assert kept.findings == tuple(replace(finding, example=None) for finding in harvest.findings)
            if not trial.defect and trial.container != "reader":
                try_further(seed, trial, harvest, Path(folder))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {trial}, differs: {error}\nAgain: {again}") from error


@pytest.mark.parametrize("seed", SEEDS)
def test_random_log_of_a_seed_agrees_with_the_oracle(seed: int) -> None:
    try_seed(seed)


@pytest.mark.long
def test_random_logs_agree_with_the_oracle(capsys: pytest.CaptureFixture[str]) -> None:
    first = random.SystemRandom().randrange(2**40) if SECONDS else SAME_LOGS[0]
    end, seed = time.monotonic() + SECONDS, first
    try:
        while time.monotonic() < end if SECONDS else seed in SAME_LOGS:
            try_seed(seed)
            seed += 1
    finally:
        with capsys.disabled():
            print(f"\n{seed - first:,} random logs from seed {first}; of them, compared further: {dict(DONE)}")


# The last two have a folder for each value of a column called $1, and a segment without a page view that counts.
@pytest.mark.parametrize("seed", [*range(6), 30000044, 956523866214])
def test_random_logs_agree_on_every_engine(seed: int, each_engine: str) -> None:
    try_seed(seed, ON_SPARK)


def main(logs: int, engine: str = "duckdb", first: int | None = None) -> int:
    """Try so many random logs, print the seed of each failure, and return the number of failures."""
    first = random.SystemRandom().randrange(2**40) if first is None else first
    containers = tuple(CONTAINERS)
    if engine == "spark":
        sparks.session()
        posbias.engines.DEFAULT, containers = "spark", ON_SPARK
    failed, start = 0, time.monotonic()
    for number, seed in enumerate(range(first, first + logs), 1):
        try:
            with quiet():
                try_seed(seed, containers)
        except Exception as error:
            failed += 1
            print(f"FAILED {seed}: {type(error).__name__}: {error}", flush=True)
        if number % 100 == 0 or number == logs:
            seconds = time.monotonic() - start
            print(
                f"{number:,} logs on {engine} from seed {first} in {seconds:,.0f} s, {failed} failed; {dict(DONE)}",
                flush=True,
            )
    return failed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:3], *map(int, sys.argv[3:])) > 0)
