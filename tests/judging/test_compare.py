"""`compare` and `compare_segments`: which ranks differ, and how often they report a difference by chance."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import posbias
from experiments.simulated_logs import as_segments, buckets_of, draw_periods
from posbias._matplotlib import new_axes
from posbias._stats import t_quantile
from posbias.cli import cli
from posbias.estimators.significance import Contrasts, joint_test, simultaneous_p_values
from posbias.judging.compare import ComparedCurve, compare_curves, wrap
from posbias.logs.click_log import Layout
from tests.estimators.test_swap import swapped


def periods(queries: int, *curves: float | np.ndarray, seed: int = 0) -> list[posbias.Harvest]:
    """Harvests of several periods of one world, with the same queries."""
    made = posbias.World(queries=queries, max_rank=5, seed=seed)
    every = [np.arange(1.0, 6.0) ** -c if isinstance(c, float) else c for c in curves]
    return [one.harvest(Layout.WIDE) for one in draw_periods(made, buckets_of(queries), every, seed)]


def risen(rank: int, by: float) -> np.ndarray:
    curve = 1 / np.arange(1.0, 6.0)
    curve[rank - 1] *= 1 + by
    return curve


@pytest.fixture(scope="module")
def weeks() -> list[posbias.Harvest]:
    return periods(2000, 1.0, risen(4, 0.3))


def command(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["compare", *args])
    return done.exit_code, done.output


# ---- The tests, against computations straight from their definitions.


def test_the_joint_test_is_hotellings() -> None:
    from scipy.stats import f

    rng = np.random.default_rng(1)
    moved = rng.standard_normal((60, 3)) @ np.array([[1, 0.5, 0], [0, 1, 0.2], [0, 0, 2.0]]) / 100
    value = np.array([0.1, -0.2, 0.3])
    found = joint_test(Contrasts.from_deletions(value, moved))
    covariance = moved.T @ moved
    wald = value @ np.linalg.inv(covariance) @ value
    white = moved @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    nu = 12 / (((white**2).sum(axis=1) ** 2).sum() - 3 / 60)
    nu = min(nu, Contrasts.from_deletions(value, moved).degrees.max())
    assert (found.numerator, found.denominator) == pytest.approx((3, nu - 2))
    assert found.statistic == pytest.approx(wald * (nu - 2) / (3 * nu))
    assert found.p_value == pytest.approx(f.sf(found.statistic, 3, nu - 2))
    # As many buckets as normal errors have: all tell the same.
    assert 30 < nu <= 59


def test_the_joint_test_counts_independent_directions() -> None:
    moved = np.random.default_rng(1).standard_normal((200, 3)) / 100
    twice = np.concatenate([moved, moved.sum(axis=1, keepdims=True)], axis=1)
    value = np.array([0.1, -0.2, 0.3])
    one = joint_test(Contrasts.from_deletions(value, moved))
    other = joint_test(Contrasts.from_deletions(np.append(value, value.sum()), twice))
    assert other.numerator == 3
    assert other.p_value == pytest.approx(one.p_value, rel=0.05)


def test_a_joint_test_of_too_few_buckets_is_not_made() -> None:
    moved = np.random.default_rng(1).standard_normal((10, 5))
    test = joint_test(Contrasts.from_deletions(np.ones(5), moved))
    assert (test.tested, test.reason) == (False, "there are too few queries")


def test_simultaneous_p_values_allow_for_the_number_of_differences() -> None:
    from scipy.stats import norm, t

    degrees = np.full(4, 50.0)
    apart = simultaneous_p_values(Contrasts(np.array([2.5, 0.0, 0.0, 0.0]), np.eye(4), degrees))
    alone = 2 * t.sf(2.5, 50)
    assert apart[0] == pytest.approx(1 - (1 - alone) ** 4, rel=0.1)
    assert apart[1] == 1
    # Four that are one and the same are one.
    same = simultaneous_p_values(Contrasts(np.full(4, 2.5), np.ones((4, 4)), degrees))
    np.testing.assert_allclose(same, alone, rtol=0.15)
    # What is too rare to be drawn is bounded.
    rare = simultaneous_p_values(Contrasts(np.array([9.0, 0.0, 0.0, 0.0]), np.eye(4), np.full(4, np.inf)))
    assert rare[0] == pytest.approx(8 * norm.sf(9.0), rel=1e-6)


def test_independent_curves_have_welchs_degrees_of_freedom() -> None:
    made = Contrasts.from_independent(np.zeros(1), (np.eye(1), 4 * np.eye(1)), (np.array([10.0]), np.array([20.0])))
    assert made.degrees[0] == pytest.approx(25 / (1 / 10 + 16 / 20))
    assert made.standard_error[0] == pytest.approx(np.sqrt(5))


def test_paired_variance_is_the_jackknife_of_the_difference(weeks: list[posbias.Harvest]) -> None:
    """The variance of the difference is that of the jackknife of the difference itself."""
    found = posbias.compare(*weeks, estimator="all-pairs")
    one, other = (posbias.AllPairs().fit(week) for week in weeks)
    moved = np.log(other.deletions_ / other.propensity_) - np.log(one.deletions_ / one.propensity_)
    se = np.sqrt(255 / 256 * (moved**2).sum(axis=0))[1:]
    ratio = other.propensity_ / one.propensity_
    for k, d in enumerate(found.differences):
        assert d.ratio == pytest.approx(ratio[k + 1])
        assert d.degrees_of_freedom is not None
        half = np.log(d.high / d.low) / 2  # type: ignore[operator]
        assert half / se[k] == pytest.approx(t_quantile(np.array(d.degrees_of_freedom), 0.975))


# ---- What is found, and what is not.


def test_the_rank_that_changed_is_named(weeks: list[posbias.Harvest]) -> None:
    found = posbias.compare(*weeks, names=["before", "after"])
    assert found.paired
    assert [d.rank for d in found.differences if d.differs] == [4]
    four = found.differences[2]
    assert four.low < 1.3 < four.high  # type: ignore[operator]
    assert found.joint is not None
    assert found.joint.p_value < 1e-6
    assert found.verdict.startswith(
        "The curves differ (p < 0.001, alarm below 0.05): from before to after, rank 4 by +"
    )
    back = posbias.compare(*reversed(weeks))
    np.testing.assert_allclose([d.ratio for d in back.differences], [1 / d.ratio for d in found.differences])
    assert back.p_value == pytest.approx(found.p_value)


@pytest.mark.long
def test_false_alarms_are_as_rare_as_the_level_says() -> None:
    """Of 120 pairs of weeks that are alike, at the 10% level: more than 21 or fewer than 4 come once in a thousand."""
    alarms = np.zeros((2, 120))
    for seed in range(120):
        one, other = (ComparedCurve.of(h, "all-pairs", 0.9) for h in periods(300, 1.0, 1.0, seed=seed))
        alarms[0, seed] = compare_curves(one, other, 0.9, ("a", "b")).differs
        alarms[1, seed] = compare_curves(replace(one, jackknife=None), other, 0.9, ("a", "b")).differs
    assert np.all(alarms.sum(axis=1) >= 4)
    assert np.all(alarms.sum(axis=1) <= 21)


def test_pairing_narrows_intervals_if_queries_are_shared() -> None:
    """Two estimators of one harvest share everything: what differs is small, and only pairs show it."""
    harvest = periods(2000, 1.0)[0]
    fitted = [posbias.CrossFit().fit(harvest), posbias.AllPairs().fit(harvest)]
    paired = posbias.compare(*fitted)
    apart = posbias.compare(*(one.curve() for one in fitted))
    widths = [[np.log(d.high / d.low) for d in one.differences] for one in (paired, apart)]
    assert np.all(np.array(widths[0]) < 0.6 * np.array(widths[1]))
    assert (paired.paired, apart.paired) == (True, False)
    assert "different estimators, cross-fit and all-pairs" in paired.notes[0]


def test_a_harvest_is_compared_with_click_rates() -> None:
    log = posbias.simulate(posbias.World(queries=1500, max_rank=5))
    harvest = posbias.harvest(posbias.ClickLog(log), max_rank=5)
    naive = posbias.NaiveCTR(max_rank=5).fit(posbias.ClickLog(log))
    found = posbias.compare(naive, harvest)
    assert not found.paired
    # Click rates fall more steeply than examination does: rankers put what is relevant first.
    assert found.differs
    assert all(d.ratio > 1 for d in found.differences)  # type: ignore[operator]


@pytest.mark.parametrize(("eta", "differs"), [(1.0, False), (1.6, True)])
def test_a_harvest_is_compared_with_a_swap_experiment(eta: float, differs: bool, tmp_path: Path) -> None:
    """Explicit swaps of users who look at rank k with 1/k, and harvests of users who do, or do not."""
    swaps = posbias.SwapOne(max_rank=5).fit(posbias.ClickLog(swapped(posbias.SwapOne, 20_000, 5)))
    swaps.curve().save(tmp_path / "swaps.json")
    periods(2000, eta)[0].save(tmp_path / "week.harvest")
    code, output = command(str(tmp_path / "swaps.json"), str(tmp_path / "week.harvest"), "--fail-on-difference")
    assert code == int(differs)
    assert "swap-one and cross-fit, compared as curves of separate data" in output


def test_a_harvest_is_identical_to_itself(weeks: list[posbias.Harvest]) -> None:
    found = posbias.compare(weeks[0], weeks[0])
    assert (found.p_value, found.differs, found.joint) == (1.0, False, None)
    assert {(d.ratio, d.low, d.high) for d in found.differences} == {(1.0, 1.0, 1.0)}
    assert found.to_text().startswith(
        "A and B have identical curves: there is nothing to test.\ncross-fit, paired by bucket of queries\nrank"
    )
    assert found.plot().get_title() == "A and B are identical"
    assert not posbias.compare(*weeks).identical


def test_ranks_that_were_not_tested_are_not_taken_as_identical(weeks: list[posbias.Harvest]) -> None:
    found = posbias.compare(weeks[0], weeks[0])
    unknown = replace(found.differences[0], after=0.9, ratio=None, low=None, high=None, p_value=None)
    assert not replace(found, differences=(unknown, *found.differences[1:])).identical
    assert not replace(found, differences=(replace(unknown, after=unknown.before),)).identical


def test_the_table_explains_intervals_and_p_values(weeks: list[posbias.Harvest]) -> None:
    found = posbias.compare(*weeks)
    line = "each interval is for one rank; p-values allow for the number of ranks"
    assert line in found.to_text().splitlines()
    assert line not in replace(found, differences=found.differences[2:3]).to_text()


def test_names_and_test_statistics_are_not_broken_at_line_ends(weeks: list[posbias.Harvest]) -> None:
    sides = [posbias.CrossFit().fit(weeks[0]), posbias.AdjacentChain().fit(weeks[0])]
    found = posbias.compare(*sides, names=["cross-fit", "adjacent-chain"])
    head = next(line for line in found.to_text().splitlines() if line.startswith("rank "))
    assert head.split()[:3] == ["rank", "cross-fit", "adjacent-chain"]
    assert max(map(len, found.to_text().splitlines())) <= 80
    for length in range(60, 80):
        lines = wrap(f"{'x' * length} F(9, 183) = 0.73, p = 0.678").splitlines()
        assert any("F(9, 183) = 0.73," in line for line in lines)
        assert any("p = 0.678" in line for line in lines)


@pytest.mark.parametrize("size", [(), (3.3, 4.8)])
def test_the_legend_does_not_cover_the_ratios(weeks: list[posbias.Harvest], size: tuple[float, ...]) -> None:
    axes = posbias.compare(*weeks).plot(new_axes(*size))
    axes.figure.canvas.draw()
    box = axes.get_legend().get_window_extent()
    assert axes.bbox.x0 <= box.x0 < box.x1 <= axes.bbox.x1
    drawn = [1.0, *(d.high for d in posbias.compare(*weeks).differences)]
    assert max(axes.transData.transform((1, y))[1] for y in drawn) < box.y0


def test_ranks_that_one_curve_lacks_have_a_reason(weeks: list[posbias.Harvest]) -> None:
    whole = posbias.CrossFit().fit(weeks[0]).curve()
    gone = replace(whole.positions[3], propensity=None, low=None, high=None, degrees_of_freedom=None, reason="too thin")
    covariance = np.array(whole.covariance, dtype=object)
    covariance[3, :] = covariance[:, 3] = None
    rows = tuple(map(tuple, covariance.tolist()))
    part = replace(whole, positions=(*whole.positions[:3], gone, *whole.positions[4:]), covariance=rows)
    found = posbias.compare(part, posbias.CrossFit().fit(weeks[1]).curve())
    four = found.differences[2]
    assert (four.rank, four.before, four.ratio, four.p_value, four.reason) == (4, None, None, None, "too thin")
    assert four.after is not None
    assert [d.rank for d in found.differences if d.ratio is not None] == [2, 3, 5]
    assert found.joint is not None
    assert found.joint.numerator == 3


def test_harvests_of_different_engines_are_treated_as_independent(weeks: list[posbias.Harvest]) -> None:
    other = replace(weeks[1], about={"engine": "spark"})
    found = posbias.compare(weeks[0], other)
    assert not found.paired
    assert "different buckets" in found.notes[0]
    assert found.differs


def test_curves_without_intervals_are_refused(weeks: list[posbias.Harvest]) -> None:
    bare = posbias.CrossFit(interval=None).fit(weeks[0])
    with pytest.raises(posbias.CurveError, match="no interval at any rank"):
        posbias.compare(bare, weeks[1])
    with pytest.raises(posbias.CurveError, match="A str cannot be compared"):
        posbias.compare("a.json", weeks[1])
    with pytest.raises(posbias.CurveError, match="'pbm-em' does not fit on a harvest"):
        posbias.compare(*weeks, estimator="pbm-em")
    with pytest.raises(posbias.CurveError, match="level"):
        posbias.compare(*weeks, level=95)


# ---- Segments.


def segmented(queries: int, *etas: float, seed: int = 0) -> posbias.Harvest:
    world = posbias.World(queries=queries, max_rank=5, seed=seed)
    curves = [np.arange(1.0, 6.0) ** -eta for eta in etas]
    return as_segments(draw_periods(world, buckets_of(queries), curves, seed))


def test_the_segment_that_differs_is_named() -> None:
    found = posbias.compare_segments(segmented(1500, 1.0, 1.0, 1.3))
    assert found.differs
    assert found.joint is not None
    assert found.joint.numerator == 8
    assert [one.segment for one in found.segments if one.differs][-1] == ("2",)
    assert found.segments[2].ratio < 0.85
    assert found.segments[2].ranks


@pytest.mark.long
def test_equal_segments_differ_as_rarely_as_the_level_says() -> None:
    """At the 10% level, of 60: more than 14 come once in a thousand."""
    differ = [
        posbias.compare_segments(segmented(300, 1.0, 1.0, 1.0, seed=seed), estimator="all-pairs", level=0.9).differs
        for seed in range(60)
    ]
    assert 1 <= sum(differ) <= 14


def test_two_segments_give_the_same_test_as_two_curves() -> None:
    harvest = segmented(1500, 1.0, 1.1)
    both = posbias.compare_segments(harvest)
    two = posbias.compare(harvest.segment("0"), harvest.segment("1"))
    assert both.joint is not None
    assert two.joint is not None
    assert both.joint.statistic == pytest.approx(two.joint.statistic, rel=0.02)


def test_many_segments_are_compared_by_their_means() -> None:
    found = posbias.compare_segments(segmented(300, *[1.0] * 24), estimator="all-pairs")
    assert found.joint is None or found.joint_scope.startswith("the mean")
    assert len(found.segments) == 24
    assert max(map(len, found.to_text().splitlines())) <= 80


def test_segments_that_cannot_be_compared_are_reported() -> None:
    harvest = segmented(600, 1.0, 1.0, 1.0)
    few = np.isin(harvest.table.bucket, harvest.buckets[:4]) | (harvest.table.segment < 2)
    found = posbias.compare_segments(replace(harvest, table=harvest.table.where(few)))
    assert [one.segment for one in found.segments] == [("0",), ("1",)]
    assert found.notes == ("Left out, because they have no curve with intervals: '2'.",)
    with pytest.raises(posbias.CurveError, match="'swap-one' does not fit on a harvest"):
        posbias.compare_segments(harvest, estimator="swap-one")
    one = harvest.table.segment == 0
    with pytest.raises(posbias.CurveError, match="of 3 segments, only one has a curve"):
        posbias.compare_segments(replace(harvest, table=harvest.table.where(one)))
    few = np.isin(harvest.table.bucket, harvest.buckets[:4])
    with pytest.raises(posbias.CurveError, match="of 3 segments, none has a curve"):
        posbias.compare_segments(replace(harvest, table=harvest.table.where(few)))


def test_a_harvest_without_segments_is_refused(weeks: list[posbias.Harvest]) -> None:
    with pytest.raises(posbias.HarvestError, match="no segments"):
        posbias.compare_segments(weeks[0])


# ---- The command.


@pytest.fixture
def files(tmp_path: Path, weeks: list[posbias.Harvest], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    weeks[0].save("before.harvest")
    weeks[1].save("after.harvest")
    for name, week in zip(("before", "after"), weeks, strict=True):
        posbias.CrossFit().fit(week).curve().save(f"{name}.json")
    segmented(600, 1.0, 2.0).save("segments.harvest")
    pq.write_table(posbias.simulate(posbias.World(queries=5)), "log.parquet")
    return tmp_path


@pytest.mark.parametrize("kinds", [("harvest", "harvest"), ("json", "json"), ("json", "harvest")])
def test_the_command_compares_files(files: Path, kinds: tuple[str, str]) -> None:
    names = [f"before.{kinds[0]}", f"after.{kinds[1]}"]
    code, output = command(*names)
    assert code == 0
    assert output.startswith("The curves differ (p < 0.001, alarm below 0.05): from before to after, rank 4")
    assert max(map(len, output.splitlines())) <= 80
    assert command(*names, "--fail-on-difference")[0] == 1
    assert command(names[0], names[0], "--fail-on-difference")[0] == 0


def test_a_process_exits_with_1_where_curves_differ(files: Path) -> None:
    args = [sys.executable, "-c", "from posbias.cli import script; script()", "compare", "before.json", "after.json"]
    assert subprocess.run(args, capture_output=True, timeout=120).returncode == 0
    assert subprocess.run([*args, "--fail-on-difference"], capture_output=True, timeout=120).returncode == 1


def test_the_command_prints_json_and_draws(files: Path) -> None:
    code, output = command("before.harvest", "after.harvest", "--json", "--plot", "x.png")
    found = json.loads(output)
    assert (code, found["differs"], found["paired"], found["names"]) == (0, True, True, ["before", "after"])
    assert [d["rank"] for d in found["differences"] if d["differs"]] == [4]
    assert (files / "x.png").stat().st_size > 5000


def test_the_command_compares_within_a_harvest(files: Path) -> None:
    code, output = command("before.harvest", "--estimators", "cross-fit,all-pairs")
    assert code == 0
    assert "cross-fit and all-pairs, paired by bucket" in output
    code, output = command("segments.harvest", "--segments", "--fail-on-difference")
    assert code == 1
    assert output.startswith("The curves of the 2 segments by period differ")
    assert json.loads(command("segments.harvest", "--segments", "--json")[1])["segments"][0]["segment"] == {
        "period": "0"
    }


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["before.harvest"], "Expected two files to compare, but 1 given"),
        (["before.harvest", "after.harvest", "before.json"], "but 3 given"),
        (["before.json", "--segments"], "--segments needs a harvest"),
        (["before.harvest", "--segments"], "no segments"),
        (["before.harvest", "--segments", "--estimators", "cross-fit,all-pairs"], "exclude each other"),
        (["before.harvest", "after.harvest", "--segments"], "Give one file"),
        (["before.harvest", "--estimators", "cross-fit"], "expected two of"),
        (["before.harvest", "--estimators", "cross-fit,pbm-em"], "expected two of"),
        (["segments.harvest", "--segments", "--plot", "x.png"], "--plot draws two curves"),
        (["before.harvest", "log.parquet"], "not a harvest"),
        (["before.harvest", "none.json"], "There is no file"),
        (["before.json", "after.json", "--estimator", "all-pairs"], "both files are curves"),
    ],
)
def test_the_command_refuses_options_that_do_not_fit(files: Path, args: list[str], message: str) -> None:
    code, found = command(*args)
    assert code == 2
    assert message in " ".join(found.split())


def test_the_history_command(files: Path) -> None:
    def history(*args: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["history", *args])
        return done.exit_code, done.output

    assert history("add", "h.parquet", "before.json", "--date", "2026-03-03")[0] == 0
    code, output = history("add", "h.parquet", "after.json", "--date", "2026-03-01", "--finding", "new\x1blayout")
    assert code == 0
    assert "no curve of 2026-03-02" in output
    kept = (files / "h.parquet").stat().st_mtime_ns
    assert "unchanged" in history("add", "h.parquet", "before.json", "--date", "2026-03-03")[1]
    assert (files / "h.parquet").stat().st_mtime_ns == kept
    assert "replaced" in history("add", "h.parquet", "after.json", "--date", "2026-03-03")[1]
    lines = history("show", "h.parquet")[1].splitlines()
    assert [line[:10].strip() for line in lines[1:]] == ["2026-03-01", "", "2026-03-02", "2026-03-03"]
    assert lines[2].endswith("! new\\x1blayout")
    assert lines[3].endswith("missing")
    found = json.loads(history("show", "h.parquet", "--json", "--last", "2")[1])
    assert [day["date"] for day in found["days"]] == ["2026-03-01", "2026-03-03"]
    assert history("add", "h.parquet", "before.json", "--date", "3 March")[0] == 2
    assert history("show", "log.parquet")[0] == 2
    assert history("add", "before.json", "before.json", "--date", "2026-03-03")[0] == 2
