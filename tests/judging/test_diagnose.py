"""`diagnose` raises alarms for users and traffic that violate the model, and none for those that do not."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import posbias
from experiments.diagnosis import ALARMS, SETTINGS, measure
from experiments.simulated_logs import buckets_of, draw_log, draw_page_clicks
from posbias._stats import FTest, f_tail, not_tested, satterthwaite
from posbias._text import format_ranks
from posbias.cli import cli
from posbias.engines import open_log
from posbias.errors import HarvestError
from posbias.estimators.one_curve import OneCurve, RankerPairs, Residuals, ranker_effects, trust
from posbias.estimators.significance import AssumptionTest, decide, holm, wald_test
from posbias.findings import Finding, any_error, quiet
from posbias.harvesting.click_checks import count_click_histogram, count_click_order, possible_page_views
from posbias.harvesting.row_checks import UNITS_NOT_COUNTED
from posbias.judging.diagnose import Diagnosis, diagnose_harvest, summary_lines
from posbias.judging.diagnostics import (
    Context,
    PageClicks,
    count_page_clicks,
    dispersion,
    independence_test,
    proxy_test,
)
from posbias.logs.click_log import Layout
from posbias.simulation import AtMostOneClick, Cascade, PositionBased, TrustBias
from tests.support.users import with_users

UNEQUAL = posbias.World(queries=2000, quality=(0.5, 2.0))


def drawn(world: posbias.World, layout: Layout = Layout.WIDE, **broken: Any) -> posbias.Harvest:
    return draw_log(world, buckets_of(world.queries), **broken).harvest(layout)


def codes(found: Diagnosis | posbias.Check | Sequence[Finding]) -> list[str]:
    return [finding.code for finding in (found if isinstance(found, Sequence) else found.findings)]


def only(found: Diagnosis | posbias.Check, code: str) -> Finding:
    (finding,) = [finding for finding in found.findings if finding.code == code]
    return finding


# ---- The statistics


def test_ranker_pairs_match_a_count_by_hand() -> None:
    """Counted by hand from the cells: clicks by i at k, and by j at k', of every two rankers."""
    harvest = drawn(posbias.World(queries=60, rankers=("a", "b", "c"), max_rank=4))
    cells = harvest.strata().cells
    expected: dict[tuple[int, ...], list[float]] = {}
    rows = list(zip(cells.stratum, cells.bucket, cells.ranker, cells.rank, cells.clicks, strict=True))
    for stratum, bucket, i, k, clicks in rows:
        for stratum_, bucket_, j, k_, clicks_ in rows:
            if (stratum, bucket) == (stratum_, bucket_) and i < j:
                both = expected.setdefault((i, j, k - 1, k_ - 1), [0, 0])
                both[0] += clicks
                both[1] += clicks_
    pairs = RankerPairs.of(harvest)
    columns = (pairs.first_ranker, pairs.second_ranker, pairs.first_rank, pairs.second_rank)
    keys = zip(*(column[pairs.groups[0]] for column in columns), strict=True)
    counts = zip(pairs.sum_by_group(pairs.first_count), pairs.sum_by_group(pairs.second_count), strict=True)
    assert dict(zip(keys, map(list, counts), strict=True)) == expected


def test_the_fitted_curve_has_no_residual_at_any_rank_and_is_unbiased() -> None:
    """Over 40 such logs log p has standard deviations of 0.02 to 0.064: three of the largest, over √8, are 0.07."""
    errors = []
    for seed in range(8):
        residuals = Residuals.of_clicks(RankerPairs.of(drawn(replace(UNEQUAL, seed=seed))))
        np.testing.assert_allclose(residuals.pairs.sum_by_rank(residuals.excess), 0, atol=1e-4)
        errors.append(residuals.log_propensity - residuals.log_propensity[0] - np.log(UNEQUAL.propensity))
    np.testing.assert_allclose(np.mean(errors, axis=0), 0, atol=0.07)


def test_a_direction_projected_off_the_fit_is_orthogonal_to_it() -> None:
    residuals = Residuals.of_clicks(RankerPairs.of(drawn(UNEQUAL)))
    left = residuals.project_off_fit(trust(residuals))
    np.testing.assert_allclose(residuals.pairs.sum_by_rank(residuals.variance * left), 0, atol=1e-6)
    # The buckets add up to the whole: page views do not change the sum.
    total = residuals.sum_by_bucket(left).sum()
    assert total == pytest.approx((left * residuals.excess).sum(), abs=1e-6)


def test_wald_test_keeps_its_size_and_refuses_too_little_data() -> None:
    rng = np.random.default_rng(0)
    p_values = np.array([wald_test(list(rng.standard_normal((3, 100)))).p_value for _ in range(2000)])
    # The covariance is around 0, not around the mean, so the test is slightly conservative.
    assert 0.02 < (p_values < 0.05).mean() < 0.055
    few = wald_test([rng.standard_normal(3)] * 3 + [rng.standard_normal(3)])
    assert (few.tested, few.reason) == (False, "there are too few queries")
    for nothing in ([], [np.zeros(50)]):
        empty = wald_test(nothing)
        assert (empty.tested, empty.numerator, empty.reason) == (False, 0, "there is no data on it")
    # One direction is the square of t; the same direction twice is still one.
    sums = rng.standard_normal(50) + 1
    once, twice = wald_test([sums]), wald_test([sums, 2 * sums])
    assert (once.numerator, twice.numerator) == (1, 1)
    assert once.p_value == pytest.approx(twice.p_value)


def test_f_tail_agrees_with_scipy() -> None:
    from scipy.special import fdtrc

    rng = np.random.default_rng(0)
    for above, below, value in zip(
        rng.uniform(0.5, 60, 300), 10 ** rng.uniform(0, 5, 300), 10 ** rng.uniform(-3, 2.5, 300), strict=True
    ):
        assert f_tail(above, below, value) == pytest.approx(fdtrc(above, below, value), rel=1e-8, abs=1e-15)
    assert f_tail(3, 50, 0) == 1
    assert np.isnan(f_tail(3, 50, float("nan")))


def test_degrees_of_freedom_count_equally_influential_buckets() -> None:
    even, lone = np.ones((40, 1)), np.zeros((40, 1))
    lone[0] = 1
    assert satterthwaite(even)[0] == 39
    assert satterthwaite(lone)[0] == pytest.approx(2 / (1 - 1 / 40))


def test_holm_corrects_for_the_tests_that_were_made() -> None:
    assert holm([0.5, 0.01]) == [0.5, 0.02]
    assert holm([]) == []
    violated, passed, other = (Finding(code, "info", code) for code in "xyz")
    sure = AssumptionTest(FTest(9, 1, 9, 1e-5), violated, passed)
    unknown = AssumptionTest(not_tested("there are too few queries"), violated, passed)
    findings = decide([other, sure, unknown])
    assert [(finding.code, finding.severity) for finding in findings] == [("z", "info"), ("x", "error"), ("y", "info")]
    assert findings[2].evidence["p_value"] is None
    mild = AssumptionTest(FTest(9, 1, 9, 0.008), violated)
    findings = decide([mild, AssumptionTest(FTest(1, 1, 9, 0.5), violated)])
    assert [(finding.code, finding.severity) for finding in findings] == [("x", "warning")]
    assert findings[0].evidence["p_value_corrected"] == 0.016
    # A test with a level of its own does not depend on how many others there are.
    alone = AssumptionTest(FTest(9, 1, 9, 0.009), violated, passed, level=0.01)
    for others in ([], [unknown], [mild] * 9):
        assert decide([alone, *others])[0].code == "x"
        assert decide([replace(alone, result=FTest(9, 1, 9, 0.011)), *others])[0].code == "y"
    cautious = decide([replace(sure, max_severity="warning")])
    assert [(finding.code, finding.severity) for finding in cautious] == [("x", "warning")]


# ---- Alarms and false alarms


@pytest.mark.parametrize(
    ("user", "like"),
    [
        (TrustBias(), "trust"),
        (Cascade(), "cascade"),
        (AtMostOneClick(PositionBased(), keep="first"), "cascade"),
        (AtMostOneClick(PositionBased()), "traffic"),
    ],
    ids=["trust", "cascade", "first click", "one click"],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_users_who_violate_the_model_are_detected_and_described(user: Any, like: str, seed: int) -> None:
    found = diagnose_harvest(drawn(replace(UNEQUAL, seed=seed), user=user))
    finding = only(found, "contradictory-pairs")
    assert finding.severity == "error"
    assert not found.sound
    assert next(iter(finding.evidence["resembles"])) == like
    assert len(finding.evidence["largest_residuals"]) == 3
    assert "'a' at" in finding.example
    assert finding.evidence["click_rate_ratio"] > 1.1


def test_replay_detects_a_cascade() -> None:
    found = diagnose_harvest(drawn(UNEQUAL, Layout.REPLAY, user=Cascade()))
    assert {"contradictory-pairs", "ranker-effect"} <= {*codes(found)}


def test_query_dependent_traffic_is_detected_by_impressions_alone() -> None:
    harvest = drawn(UNEQUAL, query_dependence=0.6)
    (test,) = independence_test(Context(harvest))
    assert test.result.p_value < 0.001
    found = diagnose_harvest(harvest)
    assert {"query-dependent-traffic", "contradictory-pairs", "ranker-effect"} <= {*codes(found)}
    assert list(independence_test(Context(drawn(UNEQUAL, Layout.REPLAY)))) == []


@pytest.mark.parametrize(
    "name",
    [name for name, setting in SETTINGS.items() if not setting.violates_model and setting.world.queries <= 1000],
)
@pytest.mark.long
def test_sound_logs_raise_few_false_alarms(name: str) -> None:
    """Of 12 logs, 4 with an alarm would be less than one in a thousand at 7%."""
    setting = SETTINGS[name]
    world = setting.shrunk_world(0.3)
    buckets = buckets_of(world.queries)
    alarms = [
        any(finding.code in ALARMS for finding in measure(replace(world, seed=seed), setting, buckets))
        for seed in range(12)
    ]
    assert sum(alarms) < 4


def test_similar_rankers_are_reported_as_not_tested() -> None:
    alike = diagnose_harvest(drawn(posbias.World(queries=2000), user=TrustBias()))
    assert "one-curve-not-tested" in codes(alike)
    assert "Not tested: whether one curve fits" in only(alike, "one-curve-not-tested").message
    unequal = diagnose_harvest(drawn(UNEQUAL))
    finding = only(unequal, "one-curve")
    assert finding.evidence["trust_bias_detectable"] < 0.3
    assert finding.evidence["click_rate_ratio"] > 1.3
    assert f"{finding.evidence['click_rate_ratio']:.2f} times as often" in finding.message


def test_sticky_assignment_is_reported_without_an_alarm() -> None:
    harvest = drawn(posbias.World(queries=1000, sticky=True))
    found = diagnose_harvest(harvest, split={"a": 1, "b": 1})
    assert only(found, "sticky-traffic").severity == "info"
    assert found.sound
    assert dispersion(harvest.views) > 5
    assert dispersion(drawn(posbias.World(queries=1000)).views) == pytest.approx(1, abs=0.3)


def test_the_split_of_page_views_is_compared_with_the_intended_one() -> None:
    harvest = drawn(posbias.World(queries=1000))
    assert "sample-ratio-as-intended" in codes(diagnose_harvest(harvest, split={"a": 50, "b": 50}))
    finding = only(diagnose_harvest(harvest, split={"a": 60, "b": 40}), "sample-ratio-mismatch")
    assert finding.severity == "error"
    assert finding.evidence["intended"] == {"a": 0.6, "b": 0.4}
    for split in ({"a": 1}, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 0}, {"a": -1, "b": 2}, {"a": float("nan"), "b": 1}):
        with pytest.raises(HarvestError, match="split"):
            diagnose_harvest(harvest, split=split)
    for odd in ("half", None, [50]):
        with pytest.raises(HarvestError, match="split must give a share of 0 or more"):
            diagnose_harvest(harvest, split={"a": odd, "b": 50})  # type: ignore[dict-item]


def test_estimators_that_disagree_are_reported_by_name() -> None:
    finding = only(diagnose_harvest(drawn(UNEQUAL, user=Cascade())), "estimators-disagree")
    assert finding.evidence["estimator"] in ("all-pairs", "pivot-one", "adjacent-chain")
    assert 2 <= finding.evidence["rank"] <= 10


# ---- A proxy of relevance


def by_proxy(world: posbias.World, right: float = 0.85, **broken: Any) -> posbias.Harvest:
    """A harvest by a guess whether a document is relevant, right so often, which no click made."""
    return draw_log(world, buckets_of(world.queries), **broken).harvest_by_proxy(right)


def test_a_proxy_of_relevance_shows_trust_bias_with_alike_rankers() -> None:
    world = posbias.World(queries=2000)
    found = diagnose_harvest(by_proxy(world, user=TrustBias()), proxy="guess")
    assert only(found, "curves-differ-by-proxy").severity == "error"
    assert "one-curve-not-tested" in codes(found)
    assert only(diagnose_harvest(by_proxy(world), proxy="guess"), "same-curve-by-proxy").severity == "info"


def test_a_proxy_raises_few_false_alarms() -> None:
    harvests = [by_proxy(posbias.World(queries=400, seed=seed)) for seed in range(20)]
    tests = [test for harvest in harvests for test in proxy_test(Context(harvest, proxy="guess"))]
    assert len(tests) == 20
    assert sum(test.result.p_value < 0.05 for test in tests) <= 4


def test_a_proxy_is_a_column_of_a_log_and_has_classes() -> None:
    log = posbias.simulate(posbias.World(queries=200))
    guess = pa.array(np.array(["low", "high"])[np.array(log["doc_id"]) % 2])
    found = posbias.diagnose(posbias.ClickLog(log.append_column("guess", guess)), proxy="guess")
    assert "same-curve-by-proxy" in codes(found)
    with pytest.raises(HarvestError, match="one segment column"):
        posbias.diagnose(posbias.harvest(posbias.ClickLog(log)), proxy="guess")
    many = log.append_column("score", log["doc_id"])
    with pytest.raises(HarvestError, match=r"has [0-9,]+ values"):
        posbias.diagnose(posbias.ClickLog(many), proxy="score")


@pytest.mark.parametrize("column", ["clicked", "ranker", "position", "query_id", "rank_a"])
def test_a_column_with_another_meaning_is_refused_as_proxy(column: str) -> None:
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=50)))
    with pytest.raises(HarvestError, match=rf"Column '{column}' is the .*, not a proxy of relevance"):
        posbias.diagnose(log, proxy=column)


def test_a_missing_proxy_column_is_reported_with_the_right_option(tmp_path: Path) -> None:
    pq.write_table(posbias.simulate(posbias.World(queries=50)), tmp_path / "log.parquet")
    done = CliRunner().invoke(cli, ["diagnose", str(tmp_path / "log.parquet"), "--proxy", "nope"])
    assert done.exit_code == 2
    assert "Column 'nope' is not in the log" in done.stderr
    assert "--proxy COLUMN" in done.stderr
    assert "--by" not in done.stderr


def test_classes_that_cannot_be_compared_are_reported() -> None:
    """Two classes of which one has hardly a document, then three of which two can be compared."""
    log = posbias.simulate(posbias.World(queries=400))
    number = np.array(log["doc_id"]) % 1000
    rare = np.where(number == 7, "rare", "usual")
    found = posbias.diagnose(posbias.ClickLog(log.append_column("guess", pa.array(rare))), proxy="guess")
    finding = only(found, "proxy-not-tested")
    assert "Not tested: whether the classes of 'guess' have the same curve, because documents of rare (" in (
        finding.message
    )
    assert "No problems found" not in str(found)
    some = np.where(number == 7, "rare", np.where(number % 2, "odd", "even"))
    found = posbias.diagnose(posbias.ClickLog(log.append_column("guess", pa.array(some))), proxy="guess")
    finding = only(found, "same-curve-by-proxy")
    assert "all classes" not in finding.message
    assert "2 of 3 classes of 'guess'" in finding.message
    assert finding.evidence["left_out"] == ["rare"]
    assert "documents of rare (" in finding.message


# ---- The summary below an estimate


def test_the_summary_reports_the_weakest_rank_and_whether_one_curve_fits() -> None:
    fitted = posbias.CrossFit().fit(drawn(UNEQUAL))
    sound = summary_lines(fitted)
    assert sound[0].startswith("Rank ")
    fitted.degrees_of_freedom_[1] = 1.2
    assert summary_lines(fitted)[0].startswith("Rank 2 has the least data (1 degree of freedom)")
    assert " has the least data (" in sound[0]
    assert "; its estimate comes mostly from comparisons with ranks " in sound[0]
    assert sound[1].startswith("One curve fits all pairs of ranks (p")
    assert summary_lines(posbias.CrossFit().fit(drawn(posbias.World(queries=300))))[1] == (
        "Not tested: whether one curve fits all pairs of ranks "
        "(the rankers are too similar, or there is too little data)."
    )
    sums = posbias.harvest(posbias.ClickLog(posbias.simulate(posbias.World(queries=30))), max_strata=0)
    assert summary_lines(posbias.AllPairs().fit(sums)) == []


CONTRADICTION = "Pairs of ranks contradict each other: no single curve fits the clicks of all rankers (p < 0.001"


@pytest.mark.parametrize("estimator", ["cross-fit", "all-pairs"])
def test_fit_warns_once_that_pairs_of_ranks_contradict_each_other(estimator: str) -> None:
    harvest = drawn(UNEQUAL, user=TrustBias())
    with pytest.warns(posbias.PosbiasWarning) as warned:
        fitted = posbias.estimators.estimator_class(estimator)().fit(harvest)
    assert [str(one.message)[: len(CONTRADICTION)] for one in warned] == [CONTRADICTION]
    assert warned[0].filename == __file__
    [note] = fitted.notes_
    assert note.endswith("The pattern resembles trust bias: relevant and irrelevant documents have different curves.")
    assert " ".join(str(fitted.summary()).split()).count(CONTRADICTION) == 1
    # The note says it already.
    assert [line[:5] for line in summary_lines(fitted)] == ["Rank "]
    # Who wants no statistics gets none from `fit`, but the tests can be had.
    plain = posbias.estimators.estimator_class(estimator)(interval=None).fit(harvest)
    assert plain.notes_ == ()
    assert plain.one_curve_ is not None
    assert plain.one_curve_.contradicted
    assert summary_lines(plain) == [f"! {CONTRADICTION}, alarm below 0.01)."]


def test_a_fit_to_another_harvest_is_tested_again() -> None:
    estimator = posbias.CrossFit(interval=None).fit(drawn(UNEQUAL, user=TrustBias()))
    assert estimator.one_curve_ is not None
    assert estimator.one_curve_.contradicted
    assert estimator.one_curve_ is estimator.one_curve_
    estimator.fit(drawn(UNEQUAL))
    assert not estimator.one_curve_.contradicted


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (lambda: posbias.simulate(posbias.World(queries=300), "replay"), "nothing shows that rankers overlap in time"),
        (lambda: posbias.simulate(posbias.World(queries=300), "replay").drop_columns(["ranker"]), "names no rankers"),
        (lambda: posbias.simulate(posbias.World(queries=300)), "the rankers are too similar"),
    ],
)
def test_what_was_not_tested_is_the_last_word(log: Callable[[], pa.Table], why: str) -> None:
    found = posbias.diagnose(posbias.ClickLog(log()))
    lines = str(found).splitlines()
    replay = "too similar" not in why
    unknown = "Not known whether the curve is right: replay's main assumption was not tested."
    place = lines.index(unknown if replay else "No problems found in what could be tested.")
    assert ("No problems found" in str(found)) != replay
    end = " ".join(line.strip() for line in lines[place + 2 :])
    assert "Not tested: whether one curve fits all pairs of ranks (" in end
    assert why in end.rpartition("Not tested")[2]
    assert end.endswith(").")


def test_a_log_without_a_standard_error_is_not_called_sound_without_a_warning() -> None:
    with quiet():
        found = posbias.diagnose(posbias.ClickLog(posbias.simulate(posbias.World(queries=3, repeats=1))))
    assert only(found, "support").severity == "warning"
    assert "No problems found" not in str(found)


def lost_clicks(log: pa.Table, share: float) -> pa.Table:
    """The log without some of the clicks on pages of 'b', so that one curve does not quite fit."""
    lost = np.random.default_rng(0).random(log.num_rows) < share
    clicked = np.where(lost & (log["ranker"].to_numpy(zero_copy_only=False) == "b"), 0, log["clicked"].to_numpy())
    return log.set_column(log.column_names.index("clicked"), "clicked", pa.array(clicked))


@pytest.mark.parametrize("share", [0.0, 0.08, 0.09, 0.1, 0.3])
@pytest.mark.parametrize("quality", [(1.0, 1.0), (0.5, 2.0)])
def test_all_commands_have_the_same_verdict_on_one_curve(
    share: float, quality: tuple[float, float], tmp_path: Path
) -> None:
    """`estimate`, `diagnose` of a log and of a harvest, and the report; some logs are near the threshold."""
    log, harvest = str(tmp_path / "log.parquet"), str(tmp_path / "log.harvest")
    pq.write_table(lost_clicks(posbias.simulate(posbias.World(queries=700, quality=quality)), share), log)

    def run(*words: str) -> str:
        result = CliRunner().invoke(cli, list(words))
        assert result.exit_code in (0, 1), result.output
        return result.stdout

    run("harvest", log, "-o", harvest)
    codes = ("contradictory-pairs", "one-curve", "one-curve-not-tested")
    found = [
        finding
        for findings in (
            json.loads(run("diagnose", log, "--split", "a=50,b=50", "--json"))["findings"],
            json.loads(run("diagnose", harvest, "--json"))["findings"],
            [finding.to_dict() for finding in posbias.report(harvest).parts[0].findings],
        )
        for finding in findings
        if finding["code"] in codes
    ]
    assert len(found) == 3
    assert len({(finding["code"], finding["severity"], finding["message"]) for finding in found}) == 1
    verdict = found[0]["message"].split(")")[0]
    printed = " ".join(run("estimate", log).split())
    assert f"{verdict})." in printed
    assert ("! Pairs of ranks" in printed) == (found[0]["code"] == "contradictory-pairs")
    if found[0]["code"] != "one-curve-not-tested":
        assert "alarm below 0.01" in verdict


# ---- Time


def in_turn(log: pa.Table, late: float = 0.0) -> pa.Table:
    """A replay log in which 'b' serves in the second half of the days, and a share of its page views before that."""
    view, ranker = log["impression_id"].to_numpy(), log["ranker"].to_numpy(zero_copy_only=False)
    rng = np.random.default_rng(0)
    early = rng.random(view.max() + 1) < late
    second = (ranker == "b") ^ early[view]
    day = 1 + rng.integers(0, 14, view.max() + 1)[view] + 14 * second
    return log.append_column("day", pa.array(day))


def days(log: pa.Table) -> pa.Array:
    """The days of a log as dates."""
    return pc.cast(pc.cast(log["day"], pa.int32()), pa.date32())


def test_the_overlap_of_rankers_in_time_matches_a_count_by_hand() -> None:
    log = in_turn(posbias.simulate(posbias.World(queries=200), "replay"), late=0.3)
    finding = only_of(posbias.harvest(posbias.ClickLog(log)).findings, "rankers-replaced")
    # The chance that two page views of one window are of different rankers. 28 days are cut into 8 windows.
    windows: Counter[tuple[int, str]] = Counter()
    rankers: Counter[str] = Counter()
    for day, ranker, _ in {*zip(*(log[name].to_pylist() for name in ("day", "ranker", "impression_id")), strict=True)}:
        windows[(day - 1) * 8 // 28, ranker] += 1
        rankers[ranker] += 1
    total = sum(rankers.values())
    within = 0.0
    for window in range(8):
        a, b = windows[window, "a"], windows[window, "b"]
        within += 2 * a * b / (a + b - 1)
    overlap = within / total / (2 * rankers["a"] * rankers["b"] / (total * (total - 1)))
    assert finding.evidence["overlap"] == pytest.approx(overlap, abs=1e-3)
    assert 0.5 < overlap < 0.9
    assert "overlap only in part in time" in finding.message


def only_of(findings: Sequence[Finding], code: str) -> Finding:
    (finding,) = [finding for finding in findings if finding.code == code]
    return finding


def test_rankers_that_followed_one_another_are_reported_by_every_command(tmp_path: Path) -> None:
    path, harvest = tmp_path / "log.parquet", tmp_path / "log.harvest"
    log = in_turn(posbias.simulate(UNEQUAL, "replay"))
    pq.write_table(log, path)
    runner = CliRunner()
    made = runner.invoke(cli, ["harvest", str(path), "-o", str(harvest)])
    assert "The rankers followed one another in time ('day': 0% of the overlap of a random split)" in " ".join(
        made.stderr.split()
    )
    for words in (["check", str(path)], ["diagnose", str(path)], ["diagnose", str(harvest)]):
        printed = " ".join(runner.invoke(cli, words).stdout.split())
        assert "! The rankers followed one another in time" in printed
        assert printed.count("The rankers followed one another in time") == 1
    report = posbias.report(str(harvest)).parts[0].findings
    assert [finding.code for finding in report].count("rankers-replaced") == 1
    # One curve fits, but that is no evidence of anything.
    estimated = " ".join(runner.invoke(cli, ["estimate", str(harvest)]).stdout.split())
    assert (
        "Not tested: whether one curve fits all pairs of ranks (the rankers overlap too little in time)." in estimated
    )


@pytest.mark.parametrize(
    ("column", "values", "arguments"),
    [
        ("Event_Time", lambda log: pc.cast(days(log), pa.timestamp("us")), {}),
        ("dt", lambda log: pc.cast(days(log), pa.string()), {}),
        ("seconds", lambda log: pc.multiply(log["day"], 86_400), {"time": "seconds"}),
    ],
)
def test_time_is_found_by_its_name_or_named(column: str, values: Any, arguments: dict[str, str]) -> None:
    log = in_turn(posbias.simulate(posbias.World(queries=200), "replay"))
    named = log.drop_columns(["day"]).append_column(column, values(log))
    assert "rankers-replaced" in codes(posbias.check(posbias.ClickLog(named, **arguments)))
    assert posbias.check(posbias.ClickLog(named, **arguments)).columns["time"] == column
    with pytest.raises(posbias.LogError, match="'hours' is not in the log"):
        posbias.harvest(posbias.ClickLog(named, time="hours"))


def test_replay_is_not_reassuring_unless_rankers_overlap_in_time() -> None:
    log = posbias.simulate(UNEQUAL, "replay")
    rng = np.random.default_rng(1)
    at_random = log.append_column("day", pa.array(rng.integers(0, 28, log.num_rows)))
    alike = posbias.diagnose(posbias.ClickLog(at_random))
    assert {"one-curve", "rankers-overlap"} <= {*codes(alike)}
    assert "warning" not in [finding.severity for finding in alike.findings]
    assert "overlap-not-tested" in codes(posbias.check(posbias.ClickLog(log)))
    assert "overlap-not-tested" not in codes(posbias.check(posbias.ClickLog(at_random)))
    unknown = only(posbias.diagnose(posbias.ClickLog(log)), "one-curve-not-tested")
    assert "(nothing shows that rankers overlap in time)" in unknown.message
    # Within one day there is nothing else to compare a document with.
    within = posbias.harvest(posbias.ClickLog(in_turn(log, late=0.3), window="day"))
    assert "within one 'day' only" in only_of(within.findings, "rankers-overlap").message
    # Where ranks are known, rankers are usually drawn at random, and time is looked at if it is named.
    wide = posbias.simulate(posbias.World(queries=200))
    assert "time" not in posbias.check(posbias.ClickLog(wide.append_column("day", wide["position"]))).columns


@pytest.mark.parametrize("late", [0.0, 0.3])
def test_rankers_with_known_ranks_that_followed_one_another_are_found_if_the_time_is_named(late: float) -> None:
    log = in_turn(posbias.simulate(UNEQUAL), late=late)
    assert "rankers-replaced" not in codes(posbias.check(posbias.ClickLog(log)))
    named = posbias.ClickLog(log, time="day")
    found = only(posbias.check(named), "rankers-replaced")
    # Windows are compared in replay alone.
    assert found.remedy == "No test shows it. Let both rankers serve at the same time for a while."
    assert not found.arguments
    assert "(the rankers overlap too little in time)" in only(posbias.diagnose(named), "one-curve-not-tested").message


@pytest.mark.parametrize("late", [0.0, 0.5])
def test_a_small_replay_log_is_warned_of_only_if_its_rankers_followed_one_another(late: float) -> None:
    log = in_turn(posbias.simulate(posbias.World(queries=8, repeats=4), "replay"), late=late)
    found = codes(posbias.harvest(posbias.ClickLog(log)).findings)
    assert ("rankers-replaced" in found) == (late == 0)


def test_relevance_that_drifts_shows_within_windows_of_time() -> None:
    """'b' serves 30% of the first half of the time and 70% of the second, when other documents are relevant."""
    audit = pytest.importorskip("experiments.audit")
    setting = audit.Setting(views=12_000, queries=300, relevance_drift=0.9, replay=True)

    def ramp(setting: Any, rng: Any, query: Any, user: Any) -> Any:
        later = np.arange(setting.views) >= setting.views / 2
        return (rng.random(setting.views) < np.where(later, 0.7, 0.3)).astype(np.int64)

    def found(setting: Any) -> Diagnosis:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(audit, "_draw_rankers", ramp)
            return posbias.diagnose(posbias.ClickLog(audit.draw_log(setting, 5)))

    assert "relevance-drifts" in codes(found(setting))
    assert "relevance-drifts" not in codes(found(replace(setting, relevance_drift=0.0)))


def test_lost_clicks_are_found_though_one_query_has_half_of_the_page_views() -> None:
    """A frequent query loses many clicks. That is an effect, and no noise that hides it."""
    audit = pytest.importorskip("experiments.audit")
    setting = audit.Setting(hot=0.5, lost=0.15)

    def p_value(setting: Any) -> float:
        harvest = posbias.harvest(posbias.ClickLog(audit.draw_log(setting, 2)))
        return OneCurve.of(RankerPairs.of(harvest)).ranker_effect_test.p_value

    assert p_value(setting) < 0.01 < p_value(replace(setting, lost=0.0))


# ---- Support


def test_support_lists_the_ranks_that_each_rank_is_compared_with() -> None:
    found = diagnose_harvest(drawn(posbias.World(queries=2000)))
    assert [one.rank for one in found.support] == list(range(2, 11))
    assert all(one.degrees_of_freedom > 50 and one.largest_bucket_share < 0.2 for one in found.support)
    assert all(
        sum(one.compared_ranks.values()) <= 1.001 and one.rank not in one.compared_ranks for one in found.support
    )
    assert "few-degrees-of-freedom" not in codes(found)
    thin = diagnose_harvest(drawn(posbias.World(queries=20)))
    few = [one.rank for one in thin.support if one.degrees_of_freedom is not None and one.degrees_of_freedom < 5]
    finding = only(thin, "few-degrees-of-freedom")
    assert finding.evidence["ranks"] == few
    assert (len(few) < len(thin.support), finding.severity) == (True, "info")
    # Each rank is named once.
    others = format_ranks([one.rank for one in thin.support if (one.degrees_of_freedom or 0) >= 5])
    assert only(thin, "support").message.startswith(f"{others.capitalize()} ha")
    # Where all ranks depend on few queries, the whole curve does.
    few_queries = diagnose_harvest(drawn(posbias.World(queries=5, repeats=100, max_rank=3)))
    assert only(few_queries, "few-degrees-of-freedom").severity == "warning"
    assert re.fullmatch(r"Ranks 2 and 3 have \d\.\d to \d\.\d degrees of freedom", only(few_queries, "support").message)


def test_a_dominant_bucket_is_found() -> None:
    harvest = drawn(posbias.World(queries=400, max_rank=4))
    times = np.where(harvest.table.bucket == harvest.buckets[0], 12, 1)
    table = replace(harvest.table, impressions=harvest.table.impressions * times, clicks=harvest.table.clicks * times)
    assert "dominant-bucket" in codes(diagnose_harvest(replace(harvest, table=table)))
    assert not {"dominant-bucket", "few-degrees-of-freedom"} & {*codes(diagnose_harvest(harvest))}


@pytest.mark.parametrize("layout", ["wide", "replay"])
def test_a_frequent_query_is_named_with_its_share_of_the_variance(layout: str) -> None:
    log = posbias.simulate(posbias.World(queries=600, max_rank=6), layout)
    query = log["query_id"][0].as_py()
    own = log.filter(pc.equal(log["query_id"], query))
    copies = [
        own.set_column(
            own.column_names.index("impression_id"), "impression_id", pc.add(own["impression_id"], 10**6 * (1 + copy))
        )
        for copy in range(60)
    ]
    hot = posbias.ClickLog(pa.concat_tables([log, *copies]))
    finding = only(posbias.diagnose(hot, max_rank=6), "dominant-bucket")
    assert finding.message.startswith("One query has ")
    assert "% of the variance at rank " in finding.message
    assert (finding.severity, finding.example) == ("info", str(query))
    # A harvest knows buckets of queries, not queries.
    harvest = posbias.harvest(hot, max_rank=6)
    assert only(diagnose_harvest(harvest), "dominant-bucket").message.startswith(
        f"One of {len(harvest.buckets)} buckets of queries has "
    )
    # The multiple is that of the estimate without the query.
    with_it, without = (
        posbias.CrossFit(interval=None).fit(posbias.harvest(one, max_rank=6))
        for one in (
            hot,
            posbias.ClickLog(log.filter(pc.not_equal(log["query_id"], query))),
        )
    )
    rank = int(finding.message.split("at rank ")[1].split(".")[0])
    told = float(finding.message.split("would be ")[1].split()[0])
    assert told == pytest.approx(without.propensity_[rank - 1] / with_it.propensity_[rank - 1], abs=0.1)


def test_similar_rankers_are_found() -> None:
    finding = only(diagnose_harvest(drawn(posbias.World(queries=500, similarity=0.9999))), "similar-rankers")
    assert "'a' and 'b'" in finding.message
    assert "similar-rankers" not in codes(diagnose_harvest(drawn(posbias.World(queries=500))))


def test_replay_reports_how_many_pairs_recur() -> None:
    often = diagnose_harvest(drawn(posbias.World(queries=300), Layout.REPLAY))
    assert only(often, "repeated-pairs").severity == "info"
    rare = diagnose_harvest(drawn(posbias.World(queries=1000, repeats=1.1), Layout.REPLAY))
    assert only(rare, "few-repeated-pairs").severity == "info"


# ---- Clicks of page views


def pages_of(log: pa.Table, max_rank: int = 10, **settings: Any) -> Any:
    from posbias.engines import open_log

    with open_log(posbias.ClickLog(log, **settings)) as opened:
        return count_page_clicks(opened, ("a", "b"), max_rank)


def test_pairs_of_clicks_match_a_count_by_hand() -> None:
    """Two views of one page: clicks at 1 and 2 together once; apart, both orders of (1, 2) across the views."""
    views = {1: [1, 1, 0], 2: [1, 1, 0], 3: [0, 0, 1]}
    rows = [
        {
            "query_id": 7,
            "doc_id": k,
            "ranker": "a",
            "position": k + 1,
            "rank_a": k + 1,
            "clicked": c,
            "impression_id": v,
        }
        for v, clicks in views.items()
        for k, c in enumerate(clicks)
    ]
    pages = pages_of(pa.Table.from_pylist([row | {"rank_b": row["rank_a"]} for row in rows]))
    assert (pages.page_views, pages.with_click, pages.with_several_clicks) == (3, 3, 2)
    # By hand: ordered pairs of clicks at different positions, in one view and in different ones.
    together = apart = 0
    for v, one in views.items():
        for w, other in views.items():
            pairs = sum(one[k] * other[j] for k in range(3) for j in range(3) if k != j)
            together, apart = (together + pairs, apart) if v == w else (together, apart + pairs)
    assert pages.click_pairs.tolist() == [together]
    assert pages.expected_click_pairs.tolist() == [apart / 2]
    # By results and clicks: two page views with two clicks, and one with one, on three results.
    assert {(int(n), int(c)): int(pages.histogram[n, c]) for n, c in np.argwhere(pages.histogram)} == {
        (3, 2): 2,
        (3, 1): 1,
    }


def page_counts(pages: PageClicks) -> tuple[Any, ...]:
    by_clicks = pages.histogram.sum(axis=0)
    return pages.page_views, pages.with_click, pages.with_several_clicks, by_clicks[by_clicks > 0].tolist()


def test_page_clicks_drawn_directly_match_those_of_the_log() -> None:
    world = posbias.World(queries=80, repeats=6)
    pages, fast = pages_of(posbias.simulate(world)), draw_page_clicks(world, buckets_of(80))
    assert page_counts(pages) == page_counts(fast)
    np.testing.assert_allclose(pages.click_pairs, fast.click_pairs)
    np.testing.assert_allclose(pages.expected_click_pairs, fast.expected_click_pairs)


@pytest.mark.parametrize("user", [Cascade(), AtMostOneClick(PositionBased())], ids=["cascade", "one click"])
def test_users_who_stop_at_a_click_are_detected_in_a_thousand_page_views(user: Any) -> None:
    world = posbias.World(queries=100)
    assert draw_page_clicks(world, buckets_of(100), user=user).several_clicks_test.p_value < 1e-4


def test_independent_clicks_raise_few_false_alarms_though_queries_differ() -> None:
    worlds = [posbias.World(queries=300, relevant=0.07, seed=seed) for seed in range(20)]
    found = [draw_page_clicks(world, buckets_of(300)).several_clicks_test.p_value for world in worlds]
    assert sum(p < 0.05 for p in found) <= 4


def test_a_log_without_page_views_has_no_page_clicks() -> None:
    log = posbias.simulate(posbias.World(queries=20))
    assert pages_of(log.drop_columns(["impression_id"])) is None
    assert pages_of(posbias.simulate(posbias.World(queries=20), aggregated=True)) is None


@pytest.mark.long
def test_page_clicks_of_a_thousand_ranks() -> None:
    log = posbias.simulate(posbias.World(queries=20, max_rank=3))
    deep, plain = pages_of(log, max_rank=1000), pages_of(log)
    assert page_counts(deep) == page_counts(plain)
    np.testing.assert_allclose(deep.expected_click_pairs, plain.expected_click_pairs)


def one_click(log: pa.Table) -> pa.Table:
    """The same log with the first click of a page only."""
    seen: set[Any] = set()
    clicked = []
    for view, click in zip(log["impression_id"].to_pylist(), log["clicked"].to_pylist(), strict=True):
        clicked.append(int(bool(click) and view not in seen))
        seen |= {view} if click else set()
    return log.set_column(log.column_names.index("clicked"), "clicked", pa.array(clicked))


def test_a_log_is_diagnosed_with_its_page_clicks() -> None:
    log = posbias.simulate(posbias.World(queries=100))
    assert "page-clicks" in codes(posbias.diagnose(posbias.ClickLog(log)))
    assert only(posbias.diagnose(posbias.ClickLog(one_click(log))), "one-click-pages").severity == "error"
    # If no page is shown again, only the complete lack of second clicks can be reported.
    lone = one_click(posbias.simulate(posbias.World(queries=500, repeats=1)))
    assert "None of 500 page views" in only(posbias.diagnose(posbias.ClickLog(lone)), "one-click-pages").message


@pytest.mark.parametrize(("eta", "noise"), [(1.0, 0.1), (0.3, 0.3), (0.0, 0.3)])
def test_people_who_click_a_lot_are_not_taken_for_crawlers(eta: float, noise: float) -> None:
    world = posbias.World(queries=400, eta=eta, noise=noise, relevant=0.9)
    log = posbias.ClickLog(posbias.simulate(world))
    assert "crawlers" not in [*codes(posbias.diagnose(log)), *codes(posbias.check(log))]


def test_the_most_clicks_of_a_user_match_an_enumeration() -> None:
    chances = np.array([1.0, 0.6, 0.3])
    histogram = np.zeros((4, 4))
    histogram[2, 1], histogram[3, 2] = 10, 30
    possible = possible_page_views(histogram, chances)

    def by_hand(relevance: float) -> Any:
        """Every pattern of clicks on two results, and on three, with its probability."""
        views = np.zeros(4)
        for results, number in ((2, 10), (3, 30)):
            for pattern in itertools.product([0, 1], repeat=results):
                clicks = zip(relevance * chances, pattern, strict=False)
                views[: sum(pattern) + 1] += number * np.prod([p if click else 1 - p for p, click in clicks])
        return views

    # The mean relevance is that of all clicks: some page views have more, and the others none.
    mean = (10 * 1 + 30 * 2) / (10 * 1.6 + 30 * 1.9)
    most = np.max([by_hand(f) * mean / f for f in np.linspace(mean, 1, 2000)], axis=0)
    np.testing.assert_allclose(possible, most, rtol=1e-3)


def crawled_log(share: float = 0.02, users: bool = False, ranks: int = 20) -> pa.Table:
    """A log on which some page views have half of their results clicked."""
    log = posbias.simulate(posbias.World(queries=800 if ranks == 20 else 2000, max_rank=ranks, relevant=0.2))
    rng = np.random.default_rng(0)
    view = log["impression_id"].to_numpy()
    crawled = rng.random(view.max() + 1) < share
    clicked = np.where(crawled[view], rng.random(len(view)) < 0.5, log["clicked"].to_numpy())
    if users:
        log = log.append_column("user_id", pa.array(np.where(crawled[view], 0, 1 + view)))
    return log.set_column(log.column_names.index("clicked"), "clicked", pa.array(clicked.astype(np.int64)))


@pytest.mark.long
@pytest.mark.parametrize("ranks", [10, 20])
@pytest.mark.parametrize("users", [False, True])
def test_crawlers_are_named_and_the_filter_restores_the_curve(users: bool, ranks: int) -> None:
    log = posbias.ClickLog(crawled_log(users=users, ranks=ranks))
    checked, diagnosed = (
        only(found, "crawlers") for found in (posbias.check(log, max_rank=ranks), posbias.diagnose(log, max_rank=ranks))
    )
    assert checked == diagnosed
    assert checked.severity == "warning"
    assert ("user_id" in checked.arguments["sql"]) == users
    # The filter begins where the message says, or the remedy says why not.
    [cut] = re.findall(r">= (\d+)\)", str(checked.arguments["sql"]))
    clicks = checked.evidence["clicks"]
    assert f"have {clicks} clicks or more" in checked.message
    assert (f"The filter begins at {cut} clicks" in checked.remedy) == (int(cut) < clicks)
    filtered = replace(log, sql=checked.arguments["sql"])
    assert "crawlers" not in codes(posbias.check(filtered, max_rank=ranks))
    with_them, without, healthy = (
        posbias.CrossFit(interval=None).fit(posbias.harvest(one, max_rank=ranks)).propensity_[-1]
        for one in (log, filtered, posbias.ClickLog(crawled_log(share=0.0, ranks=ranks)))
    )
    assert with_them > (1.3 if ranks == 20 else 1.15) * healthy
    assert without == pytest.approx(healthy, rel=0.1)


def test_crawlers_that_click_half_of_ten_results_are_found_by_their_clicks_anywhere() -> None:
    found = only(posbias.check(posbias.ClickLog(crawled_log(ranks=10))), "crawlers")
    assert found.evidence["order"] < 0.15
    assert "follow neither rank nor document" in found.message


def test_how_far_clicks_follow_rank_and_document_matches_the_definition() -> None:
    table = crawled_log(ranks=10).slice(0, 20_000)
    log = table.to_pandas()
    with open_log(posbias.ClickLog(table)) as opened:
        histogram = count_click_histogram(opened, ("a", "b"), 10)
        assert histogram is not None
        order = count_click_order(opened, ("a", "b"), histogram)
    rate = log.groupby("position").clicked.transform("mean")
    pair = log.assign(rate=rate).groupby(["query_id", "doc_id"])
    score = rate * (pair.clicked.transform("sum") - log.clicked + 1) / (pair.rate.transform("sum") - rate + 1)
    sums = np.zeros((11, 3))
    for _, page in log.assign(score=score).groupby("impression_id"):
        n, clicks, centred = len(page), page.clicked.sum(), page.score - page.score.mean()
        if 0 < clicks < n:
            chance = clicks * (n - clicks) / (n * (n - 1))
            sums[clicks] += 1, (centred * page.clicked).sum(), chance * (centred**2).sum()
    np.testing.assert_allclose(order.sums[:, :3], sums, rtol=1e-9, atol=1e-9)


def test_users_who_read_whole_pages_are_not_taken_for_crawlers() -> None:
    """One page view in ten is read to its end, and each relevant result is clicked: many clicks, but not anywhere."""
    table = posbias.simulate(posbias.World(queries=1500, eta=0.0, noise=0.05))
    depth = (np.arange(1, 11) ** -1.0 > np.random.default_rng(0).random((15_001, 1))).sum(axis=1)
    clicked = table["clicked"].to_numpy() * (table["position"].to_numpy() <= depth[table["impression_id"].to_numpy()])
    log = posbias.ClickLog(table.set_column(table.column_names.index("clicked"), "clicked", pa.array(clicked)))
    with open_log(log) as opened:
        histogram = count_click_histogram(opened, ("a", "b"), 10)
        assert histogram is not None
        assert count_click_order(opened, ("a", "b"), histogram).find_crawled(histogram) is None
    assert "crawlers" not in [*codes(posbias.check(log)), *codes(posbias.diagnose(log))]


def test_crawlers_are_not_looked_for_where_page_views_are_not_known() -> None:
    log = posbias.ClickLog(crawled_log().drop_columns(["impression_id"]))
    assert "crawlers" not in [*codes(posbias.check(log, max_rank=20)), *codes(posbias.diagnose(log, max_rank=20))]


def test_a_log_of_clicked_page_views_only_is_found() -> None:
    rows = posbias.simulate(posbias.World(queries=300)).to_pylist()
    clicked = {row["impression_id"] for row in rows if row["clicked"]}
    kept = pa.Table.from_pylist([row for row in rows if row["impression_id"] in clicked])
    assert only(posbias.diagnose(posbias.ClickLog(kept)), "only-clicked-pages").count == len(clicked) < 3000


def test_ranks_without_a_standard_error_are_reported() -> None:
    rows = posbias.simulate(posbias.World(queries=300, max_rank=3)).to_pylist()
    silent = pa.Table.from_pylist([row | {"clicked": row["clicked"] * (row["position"] < 3)} for row in rows])
    message = only(posbias.diagnose(posbias.ClickLog(silent), max_rank=3), "support").message
    assert message.startswith("Rank 2 has")
    assert message.endswith(" degrees of freedom; rank 3 has no standard error")


# ---- Inputs and the command


def test_a_harvest_of_sums_is_diagnosed_without_rankers() -> None:
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=300)))
    found = posbias.diagnose(posbias.harvest(log, max_strata=0))
    assert {"sums-only", "support"} <= {*codes(found)}
    assert found.support[0].degrees_of_freedom is not None


@pytest.mark.parametrize(
    "log",
    [
        posbias.simulate(posbias.World(queries=1, repeats=1)),
        posbias.simulate(posbias.World(queries=3, repeats=1), "replay"),
        posbias.simulate(posbias.World(queries=30, rankers=("a",))),
        posbias.simulate(posbias.World(queries=30, similarity=1)),
    ],
    ids=["one query", "replay without recurring", "one ranker", "one ranking"],
)
def test_tiny_logs_raise_no_alarm(log: pa.Table) -> None:
    found = posbias.diagnose(posbias.ClickLog(log))
    assert not {*codes(found)} & {*ALARMS}
    assert found.sound
    assert str(found)


@pytest.mark.long
def test_logs_with_few_clicks_raise_no_error() -> None:
    """A curve that fits exactly leaves rounding errors, and a ranker pair with one click is not χ²: no evidence."""
    settings = itertools.product((0.0, 1.0, 3.0), (0.0, 0.1, 1.0), (0.02, 0.3, 1.0), (Layout.WIDE, Layout.REPLAY))
    found = []
    for seed, (eta, noise, relevant, layout) in enumerate(settings):
        world = posbias.World(
            queries=13, repeats=2, max_rank=5, eta=eta, noise=noise, relevant=relevant, similarity=0, seed=seed
        )
        found += [finding for finding in diagnose_harvest(drawn(world, layout)).findings if finding.code in ALARMS]
    assert len(found) <= 5
    assert not any_error(found)


def test_a_log_without_rankers_is_diagnosed() -> None:
    log = posbias.simulate(posbias.World(queries=300), "replay").drop_columns(["ranker"])
    found = posbias.diagnose(posbias.ClickLog(log, ranker="none"))
    assert not {*codes(found)} & {*ALARMS}
    assert ranker_effects(RankerPairs.of(posbias.harvest(posbias.ClickLog(log, ranker="none")))) == {}


def cyclic_log() -> pa.Table:
    """Return a log without rankers whose pairs of ranks contradict each other: p₂/p₁ = p₃/p₂ = ½, but p₃/p₁ = 0.9."""
    rng = np.random.default_rng(0)
    rates = {(1, 2): (0.8, 0.4), (2, 3): (0.6, 0.3), (1, 3): (0.4, 0.36)}
    rows = []
    for query in range(600):
        ranks = [*rates][query % 3]
        for view in range(10):
            for document, rank in zip("xy", ranks if view % 2 else ranks[::-1], strict=True):
                clicked = rng.random() < rates[ranks][ranks.index(rank)]
                rows.append({"query_id": query, "impression_id": 10 * query + view, "doc_id": document})
                rows[-1] |= {"position": rank, "clicked": int(clicked)}
            rest = ({1, 2, 3} - {*ranks}).pop()
            rows.append({"query_id": query, "impression_id": 10 * query + view, "doc_id": "z", "position": rest})
            rows[-1] |= {"clicked": int(rng.random() < 0.2)}
    return pa.Table.from_pylist(rows)


def test_contradictions_without_rankers_are_told_without_rankers() -> None:
    harvest = posbias.harvest(posbias.ClickLog(cyclic_log(), ranker="none"), max_rank=3)
    finding = only(diagnose_harvest(harvest), "contradictory-pairs")
    assert finding.message.startswith("Pairs of ranks contradict each other: no single curve fits the clicks (p <")
    assert finding.example.startswith("rank 1 against rank 3: ")
    assert finding.remedy.endswith("compare only within a day or week (window).")
    assert "any" not in str(finding).replace("many", "")
    with pytest.raises(HarvestError, match="the log names no rankers"):
        diagnose_harvest(harvest, split={"a": 50, "b": 50})


def test_other_types_are_refused() -> None:
    with pytest.raises(HarvestError, match="takes a Harvest or a ClickLog, not a str"):
        posbias.diagnose("clicks.parquet")


def test_the_command_prints_text_and_json(tmp_path: Path) -> None:
    log, harvest = tmp_path / "log.parquet", tmp_path / "x.harvest"
    pq.write_table(one_click(posbias.simulate(posbias.World(queries=200))), log)
    run = CliRunner()
    result = run.invoke(cli, ["diagnose", str(log), "--split", "a=50,b=50"])
    assert result.exit_code == 1, result.output
    assert result.stdout.rstrip().endswith("An assumption behind the curve does not hold.\n(✗ error  · information)")
    assert run.invoke(cli, ["harvest", str(log), "-o", str(harvest)]).exit_code == 0
    result = run.invoke(cli, ["diagnose", str(harvest), "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    keys = {"code", "severity", "message", "evidence", "remedy"}
    assert all(keys <= finding.keys() for finding in printed["findings"])
    for split in ("a", "a=x", "=1,b=2", "a=1,a=2"):
        assert run.invoke(cli, ["diagnose", str(harvest), "--split", split]).exit_code == 2
    assert run.invoke(cli, ["diagnose", str(harvest), "--max-rank", "5"]).exit_code == 2


def test_only_the_busiest_of_many_rankers_are_compared() -> None:
    world = posbias.World(queries=60, rankers=tuple("abcdefghijk"), max_rank=12)
    one = OneCurve.of(RankerPairs.of(drawn(world)))
    assert one.directions_test.numerator == 5
    assert len(np.unique(one.residuals.pairs.first_ranker)) <= 8
    assert one.directions_test.p_value > 0.001


# ---- Pages of different depth


def cut_pages(seed, depths):
    """A log whose pages end at one of the depths of their ranker."""
    table = posbias.simulate(replace(UNEQUAL, seed=seed)).to_pandas()
    rng = np.random.default_rng(seed)
    pages = table["impression_id"].rank(method="dense").astype(int).to_numpy() - 1
    drawn_depths = {name: rng.choice(choice, pages.max() + 1) for name, choice in depths.items()}
    depth = np.select([table["ranker"] == name for name in drawn_depths], [d[pages] for d in drawn_depths.values()])
    return posbias.ClickLog(table[table["position"] <= depth])


@pytest.mark.long
@pytest.mark.parametrize("depths", [{"a": [3, 5, 10], "b": [3, 5, 10]}, {"a": [10], "b": [4, 6]}], ids=["alike", "one"])
def test_pages_of_different_depth_are_no_alarm(depths):
    warned = []
    for seed in range(8):
        found = posbias.diagnose(cut_pages(seed, depths))
        assert only(found, "page-depth").severity == "info"
        warned += [f.code for f in found.findings if f.severity != "info"]
    tested = {"estimators-disagree", "contradictory-pairs", "query-dependent-traffic", "ranker-effect"}
    assert len([code for code in warned if code in tested]) <= 1


def test_whole_pages_have_no_depth():
    assert "page-depth" not in {f.code for f in posbias.diagnose(drawn(UNEQUAL)).findings}


def test_the_split_by_users_is_tested_only_if_users_are_counted() -> None:
    log = posbias.simulate(posbias.World(queries=100, repeats=30, max_rank=4)).to_pandas()
    log = log.drop(columns=["rank_a", "rank_b"]).assign(user_id=log["impression_id"] % 50)
    counted = posbias.harvest(posbias.ClickLog(log), max_rank=4)
    # As a harvest of an earlier posbias.
    harvest = replace(counted, units=None, findings=(UNITS_NOT_COUNTED,))
    one_user = posbias.ClickLog(log.assign(user_id=1))
    for source, reason in ((harvest, "does not count units"), (one_user, "too few units")):
        found = posbias.diagnose(source, split={"a": 50, "b": 50}, max_rank=None if source is harvest else 4)
        [finding] = [one for one in found.findings if one.code.startswith("sample-ratio")]
        assert finding.code == "sample-ratio-not-tested"
        assert reason in finding.message
    for tested in (posbias.ClickLog(log), counted):
        found = posbias.diagnose(tested, split={"a": 50, "b": 50}, max_rank=None if tested is counted else 4)
        assert "sample-ratio-as-intended" in [one.code for one in found.findings]


def test_in_replay_users_who_click_differently_are_no_effect_of_their_ranker() -> None:
    """Ten of the eleven users of b hardly click."""
    log = with_users(22, queries=300, repeats=20)
    user, random = np.asarray(log.column("user_id")), np.random.default_rng(0)
    lazy = (user % 2 == 1) & (user > 1) & (random.random(len(user)) < 0.6)
    clicked = np.where(lazy, 0, np.asarray(log.column("clicked")))
    log = log.set_column(log.column_names.index("clicked"), "clicked", pa.array(clicked))
    tests = {}
    for unit in (None, "none"):
        harvest = posbias.harvest(posbias.ClickLog(log, ranks="none", unit=unit), max_rank=4)
        one_curve = OneCurve.of_harvest(harvest)
        assert one_curve is not None
        tests[unit] = one_curve
    assert tests["none"].unit_inflation == 1
    assert tests[None].unit_inflation > 2
    assert tests["none"].contradicted
    assert tests["none"].ranker_effect_test.p_value < 0.001
    assert not tests[None].contradicted
    assert tests[None].ranker_effect_test.p_value > 0.01
