"""Test that all experiments run, and that their claims hold or fail as docs/reproduction.md says."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from experiments import (
    alarms,
    audit,
    click_judgments,
    coverage,
    crawlers,
    diagnosis,
    drift,
    evaluation,
    planning,
    pooling,
)
from experiments import estimators as bounds
from experiments import estimators as comparison
from experiments.__main__ import _OURS, _PAPER, command
from experiments.figures import SettingAxis, draw_errors
from experiments.judgments import Judgments, generate_judgments
from experiments.laboratory import (
    QUICK,
    Laboratory,
    Sizes,
    one_query_per_view,
    open_laboratory,
    queries_with_candidates,
)
from experiments.outcomes import Outcome, Verdict, seed_of
from experiments.ranking_svm import cautious_ranker, make_rankers_agree, rank_documents, same_rank_share
from experiments.registry import EXPERIMENTS, WITHOUT_JUDGMENTS, run
from experiments.robustness import (
    STUDIES,
    data_factor,
    inverse_error,
    judge_data,
    judge_fraction,
    judge_imbalance,
    judge_noise,
    judge_overlap,
    judge_severity,
    run_study,
)
from experiments.simulated_logs import FIRST, LOG, EvaluationLog, buckets_of, draw_log
from posbias import PBMEM, AllPairs, ClickLog, Harvest, World, evaluate, harvest, simulate
from posbias.errors import PosbiasError
from posbias.harvesting.tables import Cells
from posbias.logs.click_log import Layout
from posbias.planning import forecast as scenarios
from posbias.simulation import PositionBased
from posbias.simulation.simulate import blocks_of, draw_rankings

# These tests simulate and fit whole worlds, which takes minutes: they run in CI.
pytestmark = pytest.mark.long

# An escape sequence that clears a terminal.
ESCAPE = "\x1b[2J"
# The claims that do not hold, by their first words; docs/reproduction.md says why.
FAILS = {
    "a": ("AdjacentChain needs at least an order of magnitude",),
    "b": ("The error is also higher when the rankers are too dissimilar",),
}
# Claims that quick runs cannot decide: ratios of errors that vary by a factor of two between runs.
UNDECIDED = (
    "AllPairs is robust over the whole spectrum of training data",
    "AllPairs is stable over levels of noise",
    "AllPairs is robust to imbalance up to 11:1",
)
TINY = Sizes(
    queries=2_500,
    training=3.3,
    pairs=10_000,
    runs=2,
    curve_runs=2,
    point_step=3,
    bootstrap=50,
    arxiv_views=10_000,
    drive_views=20_000,
    estimator_logs=2,
    coverage_logs=2,
    diagnosis_logs=2,
    drift_logs=2,
    pooling_logs=2,
    planning_logs=2,
    evaluation_logs=2,
    ranker_queries=40,
    ranker_seeds=1,
    ranker_views=(8,),
    judgment_logs=1,
    judgment_queries=100,
    audit_logs=1,
    alarm_logs=1,
    crawler_logs=1,
    learning_queries=100,
    learning_seeds=2,
    linear_seeds=1,
    learning_etas=(1.0,),
    learning_views=(2, 16),
    learning_trees=(3, 6),
    world=0.01,
)
MODULES = {
    "estimators": comparison,
    "coverage": coverage,
    "diagnosis": diagnosis,
    "drift": drift,
    "evaluation": evaluation,
    "pooling": pooling,
    "planning": planning,
    "audit": audit,
    "crawlers": crawlers,
    "judgments": click_judgments,
}
SETTINGS_OF = {name: module.SETTINGS for name, module in MODULES.items()}
TABLES = {
    "evaluation": "users",
    "arxiv": "table-1",
    "drive": "table-2",
    "coverage": "by-rank",
    "planning": "by-rank",
    "learning": "curves",
    "audit": "warnings",
    "alarms": "codes",
}


@pytest.fixture(scope="module")
def quick() -> Laboratory:
    """Return one laboratory for all experiments, like the command: common rankers are trained once."""
    return open_laboratory(None, QUICK, seed=0)


@pytest.mark.parametrize("name", _PAPER)
def test_quick_experiments_give_the_expected_verdicts(name: str, quick: Laboratory) -> None:
    for verdict in EXPERIMENTS[name](quick).verdicts:
        if not verdict.claim.startswith(UNDECIDED):
            assert verdict.holds != verdict.claim.startswith(FAILS.get(name, ())), verdict


@pytest.fixture(scope="module")
def tiny() -> Laboratory:
    """Return a laboratory that is large enough to run every experiment, but too small to decide claims."""
    return open_laboratory(None, TINY, seed=0)


@pytest.mark.parametrize(
    "name",
    [name if name in ("synthetic", "b") else pytest.param(name, marks=pytest.mark.long) for name in EXPERIMENTS],
)
def test_every_experiment_writes_its_files(
    name: str, tiny: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Few settings and draws make the tests fast; they check no accuracy.
    monkeypatch.setattr(scenarios, "DRAWS", 2)
    monkeypatch.setattr(planning, "SETTINGS", dict(list(planning.SETTINGS.items())[:3]))
    some = {n: one for i, (n, one) in enumerate(alarms.SETTINGS.items()) if i % 5 == 0 or "too high" in n}
    monkeypatch.setattr(alarms, "SETTINGS", some)
    outcome = EXPERIMENTS[name](tiny)
    files = {path.name for path in outcome.save(tmp_path)}
    table = {f"{name}-{TABLES[name]}.csv"} if name in TABLES else set()
    table |= {"audit-by-rank.csv"} if name == "audit" else set()
    assert files == {f"{name}.csv", f"{name}.png", f"{name}.txt"} | table == {p.name for p in tmp_path.iterdir()}
    text = (tmp_path / f"{name}.txt").read_text("utf-8")
    assert text.count("HOLD") + text.count("TOO LITTLE DATA") == len(outcome.verdicts)
    if name in _OURS:
        # Two logs of each setting.
        assert {verdict.holds for verdict in outcome.verdicts} == {None}
    with open(tmp_path / f"{name}.csv", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(outcome.rows)


def test_command_and_registry_have_the_same_names() -> None:
    assert [*_PAPER, *_OURS] == list(EXPERIMENTS)
    assert tuple(name for name in _OURS if name not in ("learning", "ranker", "doubly-robust")) == WITHOUT_JUDGMENTS


def test_command_writes_files_and_prints_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.registry.QUICK", TINY)
    folder = tmp_path / "new" / "folder"
    done = CliRunner().invoke(command, ["e", "--quick", "--output", str(folder)])
    assert done.exit_code == 0, done.output
    assert "claims hold" in done.stdout
    assert "HOLD" in done.stdout
    assert {path.name for path in folder.iterdir()} == {"e.csv", "e.png", "e.txt"}


def test_command_rejects_a_file_as_folder_and_unknown_names(tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.touch()
    done = CliRunner().invoke(command, ["a", "--quick", "--output", str(file)])
    assert done.exit_code == 2
    assert "is a file" in done.output
    assert CliRunner().invoke(command, ["g"]).exit_code == 2
    with pytest.raises(PosbiasError, match="no experiment 'g'"):
        next(run(["g"]))


@pytest.mark.parametrize("args", [[ESCAPE], ["a", "--data", ESCAPE, "--output", "out"]], ids=["name", "data"])
def test_command_prints_no_terminal_escape_sequences(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, args)
    assert done.exit_code == 2, done.output
    assert done.stderr
    assert "\x1b" not in done.output


def test_command_wraps_lines_to_the_terminal_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("experiments.registry.QUICK", TINY)
    done = CliRunner().invoke(command, ["synthetic", "--quick", "--output", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stdout.splitlines() if str(tmp_path) not in line]
    assert lines
    assert max(map(len, lines)) <= 80


def test_experiment_runs_on_judgments_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judgments = generate_judgments(300)
    lines = [
        f"{grade} qid:{query} " + " ".join(f"{i + 1}:{value:.3f}" for i, value in enumerate(features[:20]))
        for query, grade, features in zip(judgments.query_of, judgments.grades, judgments.features, strict=True)
    ]
    path = tmp_path / "train.txt"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    monkeypatch.setattr("experiments.registry.QUICK", Sizes(queries=250, runs=2, point_step=3))
    (outcome,) = run(["f"], quick=True, data=str(path))
    assert all(row["mse"] > 0 for row in outcome.rows if row["estimator"] == "AllPairs")


def test_learning_runs_on_judgments_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judgments = generate_judgments(130)
    lines = [
        f"{min(grade, 2)} qid:{query} "
        + " ".join(f"{i + 1}:{value:.2f}" for i, value in enumerate(row[:6]) if value > 0.5)
        for query, grade, row in zip(judgments.query_of, judgments.grades, judgments.features, strict=True)
    ]
    path = tmp_path / "fold.txt"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    monkeypatch.setattr("experiments.registry.QUICK", replace(TINY, learning_seeds=1, learning_views=(4,)))
    monkeypatch.setattr("experiments.learning.TREES", 3)
    shares: list[float] = []
    (outcome,) = run(["learning"], quick=True, data=str(path), progress=lambda _, share: shares.append(share))
    assert {row["judgments"] for row in outcome.rows} == {"judgments of the file"}
    assert all(0 < row["ndcg"] <= 1 for row in outcome.rows)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    path.write_text("\n".join(lines[:200]) + "\n", "utf-8")
    with pytest.raises(PosbiasError, match="queries in the judgments, and learning needs 100"):
        next(run(["learning"], quick=True, data=str(path)))


def test_too_few_long_queries_are_an_error() -> None:
    with pytest.raises(PosbiasError, match="have 139 candidates or more"):
        queries_with_candidates(generate_judgments(200), 139)


def test_outcome_depends_only_on_the_seed() -> None:
    sizes = Sizes(queries=500, runs=3, point_step=6)
    first, again, other = (
        EXPERIMENTS["a"](Laboratory(generate_judgments(500, seed=seed), sizes, seed)) for seed in (1, 1, 2)
    )
    # Compare as text, because NaN is not equal to itself.
    assert str(first.rows) == str(again.rows) != str(other.rows)


def test_progress_ends_at_one() -> None:
    shares: list[float] = []
    lab = Laboratory(generate_judgments(300), Sizes(runs=2), progress=lambda doing, share: shares.append(share))
    assert lab.map(lambda task: task * 2, [1, 2, 3], "doubling") == [2, 4, 6]
    assert shares == [1 / 3, 2 / 3, 1]


def test_a_failing_task_raises() -> None:
    lab = Laboratory(generate_judgments(300))
    with pytest.raises(ZeroDivisionError):
        lab.map(lambda task: 1 / task, [1, 0, 2], "dividing")


def test_views_are_whole_sweeps_plus_a_sample_without_replacement() -> None:
    lab = Laboratory(generate_judgments(100))
    counts = np.bincount(lab.views(2.25, seed=1), minlength=100)
    assert sorted(set(counts.tolist())) == [2, 3]
    assert counts.sum() == 225


def test_harvest_in_pieces_counts_every_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.laboratory._VIEWS_AT_ONCE", 100)
    lab = Laboratory(generate_judgments(300))
    views = lab.views(2, seed=0)
    harvest = lab.harvest(lab.rankers(0.1, 0.5, 0), {"a": views, "b": views[:400]}, PositionBased(), seed=0)
    assert harvest.page_views == {"a": 600, "b": 400}


def test_inverse_error_follows_the_paper() -> None:
    truth = 1 / np.arange(1, 4)
    assert inverse_error(truth, truth) == 0
    assert inverse_error(np.array([1, 0.25, 1 / 3]), truth) == pytest.approx((4 - 2) ** 2 / 3)
    assert np.isnan(inverse_error(np.array([1, 0, 0.3]), truth))
    assert np.isnan(inverse_error(np.array([1, np.nan, 0.3]), truth))


def test_data_factor_is_the_distance_between_power_laws() -> None:
    x = np.array([1.0, 2, 5, 10])
    assert data_factor(x, 1 / x, 12 / x) == pytest.approx(12)
    assert data_factor(x, x**-2.0, 100 * x**-2.0) == pytest.approx(10)
    assert data_factor(x, x, x) == float("inf")
    assert data_factor(x, 1 / x, np.full(4, np.inf)) == float("inf")


def test_verdicts_can_fail() -> None:
    flat = {label: np.ones((3, 2)) for label in ("AllPairs", "AdjacentChain", "PivotOne")}
    falling = {label: table / np.array([[1], [2], [4]]) for label, table in flat.items()}
    assert not any(verdict.holds for verdict in judge_data([1, 2, 4], falling))
    assert str(Verdict("It works", "no", False)) == "DOES NOT HOLD: It works. Found: no."
    better = flat | {"AllPairs": np.array([[2.0, 2.1], [1.9, 2.0], [2.0, 2.2]])}
    assert not judge_overlap([0.1, 0.5, 0.9], better)[-1].holds


def test_missing_errors_leave_claims_undecided() -> None:
    judges = (judge_data, judge_overlap, judge_fraction, judge_noise, judge_severity, judge_imbalance)
    labels = ("AllPairs", "AdjacentChain", "PivotOne")
    nothing = {label: np.full((3, 2), np.nan) for label in labels}
    alone = {label: np.ones((3, 2)) if label == "AllPairs" else table for label, table in nothing.items()}
    for judge in judges:
        for verdict in judge([1, 2, 4], nothing):
            assert verdict.holds is None
            assert str(verdict).startswith("TOO LITTLE DATA: ")
        for verdict in judge([1, 2, 4], alone):
            assert (verdict.holds is None) == ("AdjacentChain" in verdict.claim or "of both" in verdict.claim), verdict
    # One of two runs has an estimate.
    thin = {label: np.array([[1.0, np.nan]] * 3) for label in labels}
    assert any(verdict.holds is not None for judge in judges for verdict in judge([1, 2, 4], thin))


def test_a_file_with_few_queries_leaves_claims_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judgments = generate_judgments(60)
    lines = [
        f"{min(grade, 2)} qid:{query} " + " ".join(f"{i + 1}:{value:.3f}" for i, value in enumerate(features[:10]))
        for query, grade, features in zip(judgments.query_of, judgments.grades, judgments.features, strict=True)
    ]
    path = tmp_path / "fold.txt"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    monkeypatch.setattr("experiments.registry.QUICK", replace(QUICK, runs=1, point_step=3))
    done = CliRunner().invoke(command, ["b", "--quick", "--data", str(path), "--output", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    # A long verdict continues on indented lines.
    for line in done.stdout.replace("\n  ", " ").splitlines():
        assert not ("nan" in line or "inf" in line) or line.startswith("TOO LITTLE DATA: "), line
    assert "TOO LITTLE DATA" in done.stdout
    assert "there is too little data to decide" in done.stdout


def test_errors_as_large_as_those_of_a_constant_curve_leave_claims_undecided() -> None:
    lab = open_laboratory(None, replace(QUICK, queries=40, runs=2, point_step=3), seed=0)
    verdicts = run_study(lab, "b").verdicts
    assert {verdict.holds for verdict in verdicts} == {None}
    # All numbers of the first verdict are finite.
    assert "inf" not in verdicts[0].found
    assert "nan" not in verdicts[0].found


@pytest.mark.parametrize("logs", [4, 20])
def test_few_logs_leave_claims_undecided(logs: int) -> None:
    rng = np.random.default_rng(0)
    same = rng.uniform(1, 2, logs)
    errors = {
        name: comparison.Errors(
            {"AllPairs": same, "CrossFit": same / 2},
            {"AllPairs": same, "CrossFit": same / 2},
            {"relevance unknown": same / 2, "relevance learned": same / 2},
            {"relevance unknown": same / 2, "relevance learned": same / 2},
        )
        for name in comparison.SETTINGS
    }
    assert {verdict.holds for verdict in comparison._verdicts(errors)} == {None if logs < 20 else True}
    one = coverage.IntervalErrors(
        rng.normal(0, 0.1, (logs, 9)), np.full((logs, 9), 0.1), np.full((logs, 9), 200.0), np.ones(logs)
    )
    held = {name: dict.fromkeys(coverage.ESTIMATORS, one) for name in coverage.SETTINGS}
    assert {verdict.holds for verdict in coverage._verdicts(held)} == {None if logs < 20 else True}


def test_estimators_without_estimate_raise_no_warning() -> None:
    errors = {"AllPairs": np.ones((3, 2)), "AdjacentChain": 2 * np.ones((3, 2)), "PivotOne": np.full((3, 2), np.nan)}
    assert judge_data([1, 2, 4], errors)[2].holds


def test_settings_follow_the_paper() -> None:
    settings = {name: study.vary(study.base, study.values[-1]) for name, study in STUDIES.items()}
    assert settings["b"].overlap == 0.99
    assert {name: (s.frac, s.overlap) for name, s in settings.items() if name in "adef"} == {
        "a": (0.02, 0.8),
        "d": (0.5, 0.5),
        "e": (0.5, 0.5),
        "f": (0.02, 0.5),
    }
    assert all(sum(STUDIES["f"].vary(STUDIES["f"].base, x).sweeps) * 19_944 == 119_664 for x in STUDIES["f"].values)


def test_make_rankers_agree_reaches_the_requested_share() -> None:
    judgments = generate_judgments(600)
    rankings = [rank_documents(judgments, np.random.default_rng(i).normal(size=128), 21) for i in range(3)]
    assert same_rank_share(*make_rankers_agree(rankings, 0.5, seed=0)) == pytest.approx(0.5, abs=0.02)
    assert all(map(np.array_equal, make_rankers_agree(rankings, 0.0, seed=0), rankings))


def test_cautious_ranker_changes_the_requested_share_of_queries() -> None:
    judgments = queries_with_candidates(generate_judgments(1500), 6)
    lab = Laboratory(judgments)
    one, two = cautious_ranker(
        judgments, lab.train(np.arange(100)), lab.train(np.arange(100, 200)), identical=0.75, reordered=0.07
    )
    same = one == two
    changed = ~same.all(axis=1)
    assert changed.mean() == pytest.approx(0.25, abs=0.005)
    assert same[changed].mean() == pytest.approx(0.745, abs=0.02)
    assert all(len(set(page)) == 5 for page in two.tolist())


def test_error_bars_stay_within_a_logarithmic_axis() -> None:
    errors = {
        "AllPairs": np.array([[1e-3, 1.0], [0.5, 0.6]]),
        "AdjacentChain": np.array([[np.nan, 3.0], [1e-6, 9.0]]),
    }
    axes = draw_errors([1, 2], errors, SettingAxis("x"), None).axes[0]
    low, high = axes.get_ylim()
    bars = [segment for lines in axes.collections for segment in lines.get_segments() if len(segment)]
    assert len(bars) == 3
    for bar in bars:
        assert low < bar[0, 1] < bar[1, 1] < high


def test_one_query_per_view_replaces_query_ids_by_impression_ids() -> None:
    import pyarrow as pa

    log = pa.table({"query_id": [1, 1], "doc_id": [1, 1], "impression_id": [7, 8]})
    assert one_query_per_view(log).column("query_id").to_pylist() == [7, 8]


def test_a_failed_figure_leaves_no_partial_file(tmp_path: Path) -> None:
    class Broken:
        def savefig(self, path: str, **kwargs: object) -> None:
            Path(path).write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        Outcome("x", [{"a": 1.0}], Broken(), ()).save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"x.csv"}


DRAWN = {
    "plain": World(queries=60, seed=3),
    "unequal traffic and repeats": World(queries=400, rankers=tuple("abc"), traffic=(8, 1, 1), skew=1, repeats=4),
    "two blocks": World(queries=1100, repeats=100, max_rank=10, similarity=0.5),
    "30 ranks": World(queries=40, max_rank=30),
}


@pytest.mark.parametrize("world", DRAWN.values(), ids=list(DRAWN))
@pytest.mark.parametrize(("layout", "weighting"), [("wide", None), ("wide", "harmonic"), ("replay", None)])
def test_simulated_harvests_equal_those_of_the_engine(world: World, layout: Any, weighting: Any) -> None:
    log = ClickLog(simulate(world, layout, aggregated=True))
    counted = harvest(log, max_rank=world.max_rank, weighting=weighting)
    drawn = draw_log(world, buckets_of(world.queries)).harvest(counted.layout, weighting)
    assert contents(drawn) == contents(counted)
    assert (drawn.kind, drawn.weighting, drawn.rankers) == (counted.kind, counted.weighting, counted.rankers)
    assert drawn.page_views == counted.page_views


def contents(found: Harvest) -> list[tuple[int, ...]]:
    """Return the strata of a harvest in a canonical order."""
    table = found.table
    assert isinstance(table, Cells)
    rows = np.stack([table.bucket, table.pairs, table.ranker, table.rank, table.impressions, table.clicks], axis=1)
    strata: dict[int, list[tuple[int, ...]]] = {}
    for stratum, row in zip(table.stratum.tolist(), rows.tolist(), strict=True):
        strata.setdefault(stratum, []).append(tuple(row))
    return sorted(tuple(sum(sorted(own), ())) for own in strata.values())


def test_simulated_observations_equal_those_of_the_engine() -> None:
    world = World(queries=80, repeats=20, max_rank=3)
    ours = PBMEM(max_rank=3).fit(draw_log(world, buckets_of(80)).observations())
    theirs = PBMEM(max_rank=3).fit(ClickLog(simulate(world)))
    assert ours.propensity_ == pytest.approx(theirs.propensity_)
    assert ours.reported_counts_.page_views == theirs.reported_counts_.page_views


def test_bounds_equal_the_variance_of_estimators_that_attain_them() -> None:
    worlds = [World(queries=200, max_rank=4, similarity=0.5, noise=0.3, eta=0.5, seed=seed) for seed in range(150)]
    buckets = buckets_of(200)
    mean = []
    for best in (bounds.relevance_known, bounds.ranks_known, bounds.relevance_learned, bounds.ranks_unknown):
        found = [best(draw_log(world, buckets)) for world in worlds]
        least = np.mean([one.variance for one in found], axis=0)
        mean.append(least)
        errors = np.array([one.error for one in found])
        assert np.mean(errors**2 / least) == pytest.approx(1, abs=0.2)
        assert np.abs(errors.mean(axis=0) / np.sqrt(least / len(worlds))).max() < 4
    # Learned relevance gives less information than known relevance.
    assert np.all(np.diff(mean[:3], axis=0) > 0)


def test_with_known_relevance_the_best_estimate_is_maximum_likelihood() -> None:
    drawn = draw_log(World(queries=5000, max_rank=3, noise=0.3, relevant=0.0), buckets_of(5000))
    clicks, exposed = (np.bincount(drawn.rank, c)[1:] for c in (drawn.clicks, 0.3 * drawn.impressions))
    likely = np.log(clicks / exposed)
    error = likely[1:] - likely[0] - np.log(drawn.world.propensity[1:])
    assert bounds.relevance_known(drawn).error == pytest.approx(error, abs=1e-3)


def test_bounds_grow_with_unknown_parameters() -> None:
    drawn = draw_log(World(queries=300, similarity=0.5), buckets_of(300))
    known, unknown, replay = bounds.relevance_known(drawn), bounds.ranks_known(drawn), bounds.ranks_unknown(drawn)
    assert np.all(known.variance < unknown.variance)
    assert np.all(unknown.variance < replay.variance)


def test_bound_equals_the_inverse_fisher_information_of_pairs() -> None:
    """Compare the bound with the inverse Fisher information of log p and of log r of every pair, by definition."""
    drawn = draw_log(World(queries=6, max_rank=3, noise=0.3, eta=0.5, relevant=0.0), buckets_of(6))
    first, pair = np.unique(drawn.query * 100 + drawn.candidate, return_inverse=True)
    information = np.zeros((3 + len(first),) * 2)
    for own, k, views in zip(pair, drawn.rank - 1, drawn.impressions, strict=True):
        chance = 0.3 * drawn.world.propensity[k]
        direction = np.eye(len(information))[k] + np.eye(len(information))[3 + own]
        information += views * chance / (1 - chance) * np.outer(direction, direction)
    expected = np.diagonal(np.linalg.pinv(information[1:, 1:]))[:2]
    assert bounds.ranks_unknown(drawn).variance == pytest.approx(expected)


def test_standard_error_of_a_ratio_agrees_with_the_jackknife() -> None:
    rng = np.random.default_rng(0)
    theirs = rng.chisquare(3, 200)
    ours = 0.5 * theirs + rng.chisquare(2, 200)
    found, error = comparison.ratio(ours, theirs)
    without = [np.delete(ours, i).mean() / np.delete(theirs, i).mean() for i in range(200)]
    assert found == pytest.approx(ours.mean() / theirs.mean())
    assert error == pytest.approx(np.sqrt(199 / 200 * np.sum((np.array(without) - found) ** 2)), rel=0.02)
    assert np.isnan(comparison.ratio(np.array([1.0, np.nan]), np.array([np.nan, 1.0]))).all()


@pytest.mark.parametrize(("layout", "skew"), [("wide", 0.0), ("replay", 0.0), ("wide", 2.5)])
def test_simulated_logs_are_evaluated_like_in_the_engine(layout: Any, skew: float) -> None:
    setting = evaluation.SETTINGS["traffic 90/10"]
    # With a skew, some queries have so many page views that they are evaluated apart.
    world = replace(setting.world, queries=200, seed=4, skew=skew)
    drawn_log = EvaluationLog.draw(world, buckets_of(200))
    assert drawn_log.frequent.any() == (skew > 0)
    joint, _ = drawn_log.evaluate(Layout(layout))
    table = simulate(world, layout)
    log = ClickLog(table.drop_columns([name for name in table.column_names if name.startswith("rank_new")]))
    [drawn] = [draw_rankings(world, block) for block in blocks_of(world)]
    ids = {"query_id": np.repeat(np.arange(200), world.pool), "doc_id": drawn.documents.ravel()}
    rankings = {
        name: pa.table(ids | {"rank": drawn.ranks[:, i].ravel()}) for i, name in enumerate(world.rankers) if i in (2, 9)
    }
    found = evaluate(log, rankings)
    for number, one in zip((FIRST, FIRST + 7), found.rankings, strict=True):
        expected = joint.ratio(number, LOG)
        assert (one.ratio.low, one.ratio.high) == pytest.approx((expected.low, expected.high))
        assert one.value.value == pytest.approx(joint.value[number])
    assert found.log.value.value == pytest.approx(joint.value[LOG])


def test_choice_accuracy_compares_scores_with_true_values() -> None:
    every = np.array([[10.0, 10.4, 12.0]])
    of = np.ones((1, 2, 3))
    scores = {"ours": np.array([[1.0, 1.1, 1.2]]), "raw clicks": np.array([[2.0, 1.0, 1.5]])}
    found = evaluation.EvaluationResults(of, of, of, every, every, every, scores, np.ones(1), np.zeros(1), np.zeros(1))
    # The first two rankings are too similar to count.
    assert found.choice_accuracy("ours")[:2] == (1.0, 1.0)
    assert found.choice_accuracy("raw clicks") == (0.5, 0.0, "from weighted clicks over the log")


def test_coverage_agrees_with_the_intervals_of_a_fit() -> None:
    world, setting = World(queries=150), coverage.WorldSetting(World(queries=150))
    buckets = buckets_of(150)
    found = coverage.measure(world, setting, buckets)["AllPairs"]
    held = coverage.IntervalErrors(*(np.stack([part]) for part in found))
    fitted = AllPairs().fit(draw_log(world, buckets).harvest(Layout.WIDE))
    low, high = fitted.interval_[1:].T
    assert held.width(0.95)[0] == pytest.approx(np.log(high / low))
    assert held.inside(0.95)[0].tolist() == ((low <= world.propensity[1:]) & (world.propensity[1:] <= high)).tolist()
    assert held.coverage(0.9)[0] <= held.coverage(0.99)[0]


def test_coverage_ignores_ranks_without_interval() -> None:
    error = np.array([[0.1, np.nan], [5.0, np.nan], [0.15, 0.0], [0.1, np.nan]])
    scale = np.where(np.isnan(error), np.nan, 0.1)
    held = coverage.IntervalErrors(error, scale, np.where(np.isnan(error), np.nan, 100.0), np.ones(4))
    assert held.coverage(0.95)[0] == pytest.approx(4 / 5)
    assert held.coverage(0.95)[2] == pytest.approx(3 / 4)
    assert held.by_rank(0.95).tolist() == [0.75, 1.0]
    assert held.by_rank(0.5).tolist() == [0.0, 1.0]
    assert np.isnan(coverage.IntervalErrors(*np.full((4, 2, 3), np.nan)).coverage(0.95)).all()


def test_a_log_too_small_for_a_curve_is_judged_without_a_correction() -> None:
    name = "η = 2, poor rankers, 1 view"
    setting = click_judgments.SETTINGS[name]
    found = click_judgments.measure(setting, 40, seed_of(0, "judgments", name, 0))
    assert 0 < found.ndcg[click_judgments.OURS] < 1


def test_forecasts_are_compared_with_actual_variances() -> None:
    forecast = np.array([[[1.0, 4.0, 1.0]], [[3.0, 4.0, 1.0]]]) * np.ones((2, 3, 1))
    actual = np.array([[[2.0, 1.0, 1.0]], [[2.0, 1.0, np.nan]]]) * np.ones((2, 3, 1))
    found = planning.ForecastVariances(forecast, actual)
    ratio, error = found.ratios()
    # The third rank has an interval in only half of the logs.
    np.testing.assert_allclose(ratio, np.tile([1.0, 2.0, np.nan], (3, 1)))
    # The variance of the mean of 1 and 3 is 1; the relative variance of its square root is a quarter.
    np.testing.assert_allclose(error, np.tile([0.5 * np.sqrt(1 / 4), 0.0, np.nan], (3, 1)))
    assert (found.furthest(), found.beyond()) == ((2.0, 0.0), 3)


def test_scenario_worlds_have_the_planned_queries_and_traffic() -> None:
    world = World(queries=10, rankers=tuple("abc"), traffic=(60, 30, 10), quality=(0.0, 1.0, 2.0))
    more, other, joined = planning.scenario_worlds(world)
    assert (more.queries, more.shares) == (40, world.shares)
    assert other.shares == pytest.approx((0.2, 0.3, 0.5))
    assert joined.shares == pytest.approx((0.45, 0.225, 0.075, 0.25))
    assert joined.qualities == (0.0, 1.0, 2.0, 1.0)


@pytest.mark.parametrize("name", [name for name in WITHOUT_JUDGMENTS if name != "alarms"])
def test_experiments_without_judgments_do_not_load_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Judgments:
        raise AssertionError("asked for judgments")

    def shrunk(one: Any) -> Any:
        if name == "judgments":
            return one
        return (
            replace(one, views=500)
            if name in ("audit", "crawlers")
            else replace(one, world=replace(one.world, queries=100))
        )

    first = {key: shrunk(one) for key, one in SETTINGS_OF[name].items()}
    monkeypatch.setattr(MODULES[name], "SETTINGS", dict(list(first.items())[:1] + list(first.items())[7:8]))
    sizes = Sizes(
        estimator_logs=2,
        coverage_logs=2,
        diagnosis_logs=2,
        drift_logs=2,
        pooling_logs=2,
        planning_logs=2,
        evaluation_logs=2,
        judgment_logs=2,
        judgment_queries=100,
        audit_logs=2,
        crawler_logs=2,
    )
    # Few draws and settings make the test fast; it does not check the accuracy of plans.
    monkeypatch.setattr(scenarios, "DRAWS", 2)
    monkeypatch.setattr(evaluation, "USERS", dict(list(evaluation.USERS.items())[:2]))
    shares: list[float] = []
    one, again, other = (
        EXPERIMENTS[name](Laboratory(none, sizes, seed, lambda _, share: shares.append(share))) for seed in (1, 1, 2)
    )
    assert str(one.rows) == str(again.rows) != str(other.rows)
    steps = 8 if name == "evaluation" else 4
    assert shares == [step / steps for step in range(1, steps + 1)] * 3
    keys = ("setting", "estimator", "ranking", "method")
    assert len(one.rows) == len({tuple(row.get(key) for key in keys) for row in one.rows})


def test_data_is_rejected_if_no_experiment_uses_it() -> None:
    with pytest.raises(PosbiasError, match="use no judgments"):
        next(run(["coverage"], data="train.txt"))


def test_seeds_depend_on_all_parts() -> None:
    assert len({seed_of(0, "a", 1), seed_of(0, "a", 2), seed_of(0, "b", 1), seed_of(1, "a", 1)}) == 4
