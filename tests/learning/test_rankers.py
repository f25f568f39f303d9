"""One ranker from corrected clicks: what it learns, how it chooses, what it explains, and errors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import xgboost
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, RandomizedSearchCV

import posbias
from posbias._arrays import FloatArray
from posbias.errors import PosbiasError
from posbias.learning import learners, rankers
from posbias.learning.objectives import grouped_dcg
from posbias.learning.rankers import _LEARNERS, TreeSize, fit_ranker
from posbias.objectives import FormRanker, cautious_factors, held_out_dcg, learner_form

SIZES = [(4, 20, 10), (4, 20, 30)]
ONE_THREAD: dict[str, dict[str, Any]] = {"lightgbm": {"num_threads": 1}, "xgboost": {"nthread": 1}}
FEATURES = ["a", "b", "c"]


def table(queries: int = 120, seed: int = 0, bias: float = 1.0) -> tuple[dict[str, Any], FloatArray]:
    """Return a table of weights whose documents were ranked by the feature b, and the relevance, which a decides."""
    rng = np.random.default_rng(seed)
    query = np.repeat(np.arange(queries), 10)
    x = rng.normal(size=(len(query), 3))
    rate = np.exp(0.9 * x[:, 0] - 1.5).clip(0, 1)
    rank = np.argsort(np.argsort(-x[:, 1].reshape(-1, 10), axis=1), axis=1).ravel() + 1
    p = rank**-bias
    views = np.full(len(query), 30)
    clicks = rng.binomial(views, p * rate)
    counts = {"impressions": views, "clicks": clicks, "exposure": views * p, "weight": clicks / p}
    return {"query_id": query, **counts, **dict(zip(FEATURES, x.T, strict=True))}, rate


@pytest.mark.parametrize("learner", ["lightgbm", "xgboost"])
def test_ranker_learns_relevance_and_not_the_rank(learner: str, tmp_path: Path) -> None:
    data, _ = table()
    ranker = fit_ranker(data, FEATURES, learner=learner, parameters=ONE_THREAD[learner], sizes=SIZES)
    test, rate = table(seed=1)
    scores = ranker.predict(test)
    truth = held_out_dcg(rate, rate, test["query_id"])
    assert held_out_dcg(scores, rate, test["query_id"]) > 0.97 * truth
    # Raw clicks were due to the feature b, too: the ranker leaves that out.
    assert abs(np.corrcoef(scores, test["b"])[0, 1]) < 0.25 < np.corrcoef(test["clicks"], test["b"])[0, 1]
    path = tmp_path / "model.ubj"
    ranker.save(path)
    x = np.column_stack([test[name] for name in FEATURES])
    if learner == "lightgbm":
        loaded = lightgbm.Booster(model_file=path).predict(x)
    else:
        loaded = xgboost.Booster(model_file=path).predict(xgboost.DMatrix(x))
    np.testing.assert_allclose(loaded, scores, rtol=1e-6)
    np.testing.assert_allclose(ranker.predict(x), scores)
    np.testing.assert_allclose(ranker.predict(pa.table(test)), scores)


def test_student_is_the_least_squares_fit_of_the_blend_that_users_can_assemble() -> None:
    data, _ = table()
    size = TreeSize(4, 20, 10)
    ranker = fit_ranker(data, FEATURES, parameters={"num_threads": 1}, sizes=[size])
    assert ranker.trees in (10, 40)
    x = np.column_stack([data[name] for name in FEATURES])
    own: dict[str, Any] = {"learning_rate": 0.1, "lambda_l2": 1.0, "max_bin": 63, "verbosity": -1, "num_threads": 1}
    own |= {"deterministic": True, "seed": 0, "num_leaves": 4, "min_data_in_leaf": 20, "min_sum_hessian_in_leaf": 1e-6}
    own["feature_pre_filter"] = False
    scores = []
    for rule in ("naive", "softmax", "poisson"):
        form = learner_form(f"lightgbm-{rule}", data)
        model = lightgbm.train(form.with_parameters(**own), lightgbm.Dataset(x[form.rows], **form.data), 10)
        scores.append(model.predict(x, raw_score=True))
    effective = sum(data["weight"]) ** 2 / sum(
        w * w / c for w, c in zip(data["weight"], data["clicks"], strict=True) if c
    )
    factors = cautious_factors(scores[0], scores[1], scores[2], data["query_id"], effective)
    assert [*ranker.factors.values()] == pytest.approx(factors)
    blend = sum(factor * each for factor, each in zip(factors, scores, strict=True))
    student = lightgbm.train({**own, "objective": "l2"}, lightgbm.Dataset(x, label=blend), ranker.trees)
    np.testing.assert_allclose(ranker.predict(data), student.predict(x))


def candidates_table(by: str) -> tuple[dict[str, Any], FloatArray]:
    """Return a table of 20 candidates a query, the ten highest by a feature shown, and their relevance."""
    rng = np.random.default_rng(3)
    query, views = np.repeat(np.arange(120), 20), 10
    x = dict(zip(FEATURES, rng.normal(size=(3, len(query))), strict=True))
    rate = np.exp(0.9 * x["a"] - 1.5).clip(0, 1)
    rank = np.argsort(np.argsort(-x[by].reshape(-1, 20), axis=1), axis=1).ravel() + 1
    shown = rank <= 10
    p = 1 / np.minimum(rank, 10)
    clicks = rng.binomial(views * shown, p * rate)
    counts = {"impressions": views * shown, "clicks": clicks, "weight": clicks / p}
    return {"query_id": query, **counts, "exposure": views * p, "exposure_shown": views * p * shown, **x}, rate


@pytest.mark.parametrize("learner", ["lightgbm", "xgboost"])
def test_page_views_that_did_not_show_a_document_count_unless_held_out_clicks_contradict(learner: str) -> None:
    settings: dict[str, Any] = {"learner": learner, "parameters": ONE_THREAD[learner], "sizes": SIZES}
    # The feature b says nothing about relevance, so what it left out is as relevant as what it showed.
    data, rate = candidates_table(by="b")
    ranker = fit_ranker(data, FEATURES, **settings)
    assert ranker.views == "shown"
    assert "For a document, only page views that showed it count." in str(ranker)
    left_out = {name: values for name, values in data.items() if name != "exposure_shown"}
    other = fit_ranker(left_out, FEATURES, **settings)
    quality, worse = (held_out_dcg(each.predict(data), rate, data["query_id"]) for each in (ranker, other))
    assert quality > worse + 0.01
    # It is the ranker of the table without what was counted against documents that were not shown.
    same = fit_ranker({**left_out, "exposure": data["exposure_shown"]}, FEATURES, **settings)
    np.testing.assert_array_equal(ranker.predict(data), same.predict(data))
    # A good ranker leaves out what is less relevant, and clicks do not contradict.
    data, _ = candidates_table(by="a")
    ranker = fit_ranker(data, FEATURES, **settings)
    assert ranker.views == "all"
    assert "For a document, all page views of its query count." in str(ranker)
    assert other.views is None
    assert "For a document" not in str(other)


def test_explanation_measures_held_out_queries() -> None:
    data, _ = table()
    ranker = fit_ranker(data, FEATURES, parameters={"num_threads": 1}, sizes=SIZES, explain=True)
    assert {size for size, _ in ranker.choices} == {TreeSize(*size) for size in SIZES}
    steps = {step.name: step for step in ranker.steps}
    assert steps["naive, largest trees"].gain == 0
    assert steps["student: the ranker"].value > steps["naive, largest trees"].value
    # The correction is worth much here, and the explanation shows it on clicks that were not learned from.
    assert steps["cautious blend"].gain > 3 * steps["cautious blend"].error > 0
    assert all(step.name in str(ranker) for step in ranker.steps)
    assert fit_ranker(data, FEATURES, sizes=SIZES[:1]).steps == ()


def test_the_likelihood_of_clicks_is_that_of_the_best_factor_of_the_scores() -> None:
    rng = np.random.default_rng(0)
    query, scores, exposure = np.repeat([0, 1, 2], [4, 1, 3]), rng.normal(size=8), rng.exponential(size=8)
    exposure[6:] = 0
    clicks = np.array([3, 1, 0, 0, 2, 1, 0, 0])

    def slow(factor: float) -> list[float]:
        result = []
        for q in range(3):
            rows = [i for i in range(8) if query[i] == q]
            total = sum(exposure[i] * np.exp(factor * scores[i]) for i in rows)
            alike = sum(exposure[i] for i in rows)
            result.append(sum(clicks[i] * (factor * scores[i] - np.log(total / alike)) for i in rows))
        return result

    found = rankers.likelihood_of_clicks(scores, clicks, exposure, query)
    best = max((slow(factor) for factor in np.arange(0, 10, 0.001)), key=sum)
    np.testing.assert_allclose(found, best, atol=1e-3)
    # Scores in the wrong order are as good as none.
    wrong = rankers.likelihood_of_clicks(-clicks / np.maximum(exposure, 0.1), clicks, exposure, query)
    np.testing.assert_allclose(wrong, 0, atol=1e-3)


def test_the_smallest_trees_within_one_standard_error_of_the_best_are_chosen() -> None:
    # One tree is far from enough; 300 trees are hardly better than 30, or worse.
    sizes = [(4, 20, 300), (4, 20, 30), (4, 20, 1)]
    data, _ = table()
    ranker = fit_ranker(data, FEATURES, parameters={"num_threads": 1}, sizes=sizes)
    assert ranker.size == TreeSize(4, 20, 30)
    best = max(ranker.choices.values())
    assert best - 0.005 < ranker.choices[ranker.size, ranker.trees] <= best
    assert max(value for (size, _), value in ranker.choices.items() if size.trees == 1) < best - 0.005


def test_the_size_of_trees_is_chosen_on_some_queries_of_a_large_table(monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = table()
    settings: dict[str, Any] = {"parameters": {"num_threads": 1}, "sizes": SIZES[1:]}
    every = fit_ranker(data, FEATURES, **settings)
    monkeypatch.setattr(rankers, "_ROWS_TO_CHOOSE_BY", 400)
    some = fit_ranker(data, FEATURES, **settings)
    assert some.choices != every.choices
    # The ranker itself learns from all rows.
    assert some.factors == every.factors
    # Whole queries are taken: 40 of 10 rows each, and never fewer than folds.
    order = np.random.default_rng(0).permutation(120)[data["query_id"]]
    rows = rankers._rows_to_choose_by(order, 3)
    assert np.unique(data["query_id"][rows], return_counts=True)[1].tolist() == [10] * 40
    monkeypatch.setattr(rankers, "_ROWS_TO_CHOOSE_BY", 5)
    assert len(rankers._rows_to_choose_by(order, 3)) == 30


@pytest.mark.parametrize(
    ("learner", "names"),
    [
        ("lightgbm", ("feature_fraction", "feature_fraction_bynode")),
        ("xgboost", ("colsample_bytree", "colsample_bynode")),
    ],
)
def test_trees_see_half_of_many_features_unless_the_user_says_otherwise(learner: str, names: tuple[str, str]) -> None:
    def share(features: int, **parameters: Any) -> list[float]:
        settings = _LEARNERS[learner](parameters, 0)._settings(TreeSize(4, 20, 10), features)  # type: ignore[attr-defined]
        return [settings[name] for name in names]

    assert [share(3), share(25), share(40), share(50), share(300)] == [[x, x] for x in (1, 1, 0.625, 0.5, 0.5)]
    assert share(300, **{names[0]: 0.9}) == [0.9, 0.5]


@pytest.mark.long
def test_trees_that_memorise_are_not_chosen() -> None:
    data, _ = table(queries=60)
    sizes = [(4, 20, 10), (63, 1, 200)]
    ranker = fit_ranker(data, FEATURES, parameters={"num_threads": 1}, sizes=sizes)
    assert ranker.size == TreeSize(4, 20, 10)


def test_the_same_seed_gives_the_same_ranker() -> None:
    data, _ = table(queries=40)
    one, again = (fit_ranker(data, FEATURES, sizes=SIZES, seed=7) for _ in range(2))
    np.testing.assert_array_equal(one.predict(data), again.predict(data))


def test_every_form_of_the_same_rows_gives_the_same_ranker() -> None:
    rows = posbias.simulate(posbias.World(queries=60, max_rank=5))
    texts = pa.array([f"q{number}" for number in rows["query_id"].to_pylist()])
    rows = rows.set_column(rows.column_names.index("query_id"), "query_id", texts)
    weights = posbias.ips_weights(posbias.ClickLog(rows), [1, 0.5, 0.3, 0.25, 0.2], keep=["rank_a", "rank_b"])
    shuffled = weights.table.take(np.random.default_rng(0).permutation(weights.rows))
    sources = (weights, weights.table, shuffled, shuffled.to_pandas())
    # Without the document, rows are sorted by their numbers.
    without = (weights.table.drop_columns(["doc_id"]), shuffled.drop_columns(["doc_id"]))
    for alike in (sources, without):
        first, *others = (fit_ranker(source, ["rank_a", "rank_b"], sizes=SIZES) for source in alike)
        for other in others:
            assert (other.factors, other.size, other.trees) == (first.factors, first.size, first.trees)
            np.testing.assert_array_equal(other.predict(shuffled), first.predict(shuffled))


def test_added_days_have_the_effective_clicks_of_the_whole_log() -> None:
    days = [pandas.DataFrame({**table(queries=40, seed=seed)[0], "doc_id": np.tile(range(10), 40)}) for seed in (0, 1)]
    days[1]["query_id"] += 40
    below = pandas.concat(days)
    n = [learned_from(each).effective_clicks for each in (*days, below)]
    assert max(n[:2]) < n[2] < 1.2 * sum(n[:2])
    # Each document was shown at one rank here, so this is the sample size of its clicks.
    w = np.repeat(below["weight"] / below["clicks"].clip(1), below["clicks"])
    assert n[2] == pytest.approx(w.sum() ** 2 / (w**2).sum())


def learned_from(source: Any) -> Any:
    return rankers._make_lesson(source, FEATURES, "query_id", "doc_id")


def test_a_log_and_a_curve_give_the_ranker_of_their_weights() -> None:
    rows = posbias.simulate(posbias.World(queries=60, max_rank=5)).rename_columns({"query_id": "search"})
    log = posbias.ClickLog(rows, query="search")
    features, p = ["rank_a", "rank_b"], [1, 0.5, 0.3, 0.25, 0.2]
    made = posbias.ips_weights(log, p, keep=features)
    weighed = made.table
    one = fit_ranker(weighed, features, query="search", sizes=SIZES[:1])
    other = fit_ranker(log, features, curve=p, sizes=SIZES[:1])
    np.testing.assert_array_equal(one.predict(weighed), other.predict(weighed))
    # Documents that were never shown belong to the student's lesson, so they change the ranker.
    candidates = rows.select(["search", "doc_id", *features]).slice(0, 100)
    extra = candidates.set_column(1, "doc_id", pa.array(range(10**6, 10**6 + 100)))
    more = fit_ranker(log, features, curve=p, candidates=pa.concat_tables([candidates, extra]), sizes=SIZES[:1])
    assert np.abs(more.predict(weighed) - other.predict(weighed)).max() > 0
    with pytest.raises(PosbiasError, match="A log needs a curve"):
        fit_ranker(log, features)
    with pytest.raises(PosbiasError, match=r"go with a log.*posbias.ClickLog"):
        fit_ranker(made, features, curve=p, query="search")
    # What the error about ranks beyond the curve advises, this function takes.
    with pytest.raises(PosbiasError, match="Add beyond='clip'"):
        fit_ranker(log, features, curve=p[:3], sizes=SIZES[:1])
    clipped = fit_ranker(log, features, curve=p[:3], beyond="clip", sizes=SIZES[:1])
    by_hand = fit_ranker(log, features, curve=[*p[:3], p[2], p[2]], sizes=SIZES[:1])
    np.testing.assert_array_equal(clipped.predict(weighed), by_hand.predict(weighed))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["exposure"] * 3, "have more exposure_shown than exposure"),
        (lambda data: np.maximum(data["exposure_shown"], 0.1), "have exposure_shown without impressions"),
        (lambda data: data["exposure_shown"] * (data["clicks"] == 0), "have clicks without exposure_shown"),
    ],
)
def test_an_exposure_that_no_log_has_is_rejected(change: Any, message: str) -> None:
    data, _ = candidates_table(by="b")
    with pytest.raises(PosbiasError, match=message):
        fit_ranker({**data, "exposure_shown": change(data)}, FEATURES, sizes=SIZES[:1])


def test_a_column_of_the_log_is_not_taken_for_an_exposure() -> None:
    rows = posbias.simulate(posbias.World(queries=20, max_rank=5))
    rows = rows.append_column("exposure_shown", pa.array(np.arange(len(rows)) / 7))
    with pytest.raises(PosbiasError, match="'exposure_shown' has the name of a column that posbias adds"):
        posbias.ips_weights(posbias.ClickLog(rows), [1, 0.5, 0.3, 0.25, 0.2], keep="exposure_shown")


def test_what_was_found_in_the_log_is_kept_and_warned_of() -> None:
    rows = posbias.simulate(posbias.World(queries=60, max_rank=5))
    log, p = posbias.ClickLog(rows), [1, 0.5, 0.3, 0.25, 0.2]
    half = rows.filter(pc.less(rows["query_id"], 30)).select(["query_id", "doc_id", "rank_a"])
    with pytest.warns(posbias.PosbiasWarning, match="have no candidates") as warned:
        ranker = fit_ranker(log, "rank_a", curve=p, candidates=half, sizes=SIZES[:1])
    assert len(warned) == 1
    assert "queries-without-candidates" in [finding.code for finding in ranker.findings]
    other = half.set_column(1, "doc_id", pc.add(half["doc_id"], 10**6))
    with pytest.raises(PosbiasError, match="documents shown"):
        fit_ranker(log, "rank_a", curve=p, candidates=other, sizes=SIZES[:1])
    made = posbias.ips_weights(log, p, keep="rank_a")
    assert fit_ranker(made, "rank_a", sizes=SIZES[:1]).findings == made.findings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": []}, "no feature"),
        ({"features": ["z"]}, "no column 'z'"),
        ({"learner": "catboost"}, "'catboost' is not known"),
        ({"folds": 1}, "folds must be"),
        ({"folds": 500}, r"fewer queries \(20\) than folds"),
        ({"sizes": []}, "no size of trees"),
        ({"sizes": [(1, 1, 1)]}, "leaves must be"),
        ({"sizes": [(4, 10**12, 3)]}, "rows must be a whole number from 1 to"),
        ({"sizes": ["small"]}, "A size is the leaves"),
        ({"sizes": None}, "A size is the leaves"),
        ({"parameters": [1]}, "parameters must be a dict"),
        ({"parameters": {1: 2}}, "parameters must be a dict"),
        ({"parameters": {"boosting": "rf"}}, "cannot take boosting='rf'"),
        ({"parameters": {"early_stopping_rounds": 5}}, "cannot take early_stopping_rounds=5"),
        ({"parameters": {"booster": "gblinear"}, "learner": "xgboost"}, "cannot take booster='gblinear'"),
        (
            {"parameters": {"learning_rate": -1}},
            "LightGBM cannot train. It says: .*learning_rate.*given .learning_rate=-1.",
        ),
        ({"parameters": {"max_bin": 1}, "learner": "xgboost"}, "XGBoost cannot train. It says: .*given .max_bin=1."),
        ({"query": "nothing"}, "no column 'nothing'"),
        ({"parameters": {"objective": "l2"}}, "sets 'objective' itself"),
        ({"parameters": {"num_iterations": 5}}, "fit_ranker chooses 'num_iterations' itself.*sizes="),
        ({"parameters": {"min_child_samples": 5}}, "fit_ranker chooses 'min_child_samples' itself"),
        ({"parameters": {"n_estimators": 5}, "learner": "xgboost"}, "fit_ranker chooses 'n_estimators' itself"),
        ({"parameters": {"max_depth": 5}, "learner": "xgboost"}, "fit_ranker chooses 'max_depth' itself"),
        ({"features": ["a", "clicks", "exposure"]}, "cannot be features, found 'clicks', 'exposure'"),
        ({"features": ["impressions"]}, "cannot be features, found 'impressions'"),
        ({"features": ["exposure_shown"]}, "cannot be features, found 'exposure_shown'"),
        ({"features": ["weight"]}, "cannot be features, found 'weight'"),
        ({"features": ["query_id"]}, "cannot be features, found 'query_id'"),
        ({"doc": "c", "features": ["c"]}, "cannot be features, found 'c'"),
        ({"doc": "nothing"}, "no column 'nothing'"),
    ],
)
def test_wrong_arguments_are_rejected(arguments: dict[str, Any], message: str) -> None:
    data, _ = table(queries=20)
    settings = {"features": FEATURES, "sizes": SIZES[:1], **arguments}
    with pytest.raises(PosbiasError, match=message):
        fit_ranker(data, **settings)


def test_days_that_were_not_added_up_are_rejected() -> None:
    data, _ = table(queries=20)
    day = pandas.DataFrame({**data, "doc_id": np.tile(np.arange(10), 20)})
    below = pandas.concat([day, day])
    with pytest.raises(PosbiasError, match=r"200 of 400 rows have the same 'query_id' and 'doc_id'.*sum the rows"):
        fit_ranker(below, FEATURES, sizes=SIZES[:1])
    keys = ["query_id", "doc_id", *FEATURES]
    added = below.groupby(keys, as_index=False).sum()
    assert len(fit_ranker(added, FEATURES, sizes=SIZES[:1]).predict(day)) == 200
    with pytest.raises(PosbiasError, match="rows have the same 'query_id' and 'document'"):
        fit_ranker(below.rename(columns={"doc_id": "document"}), FEATURES, doc="document")


@pytest.mark.parametrize(
    ("learner", "alias"), [("lightgbm", "eta"), ("lightgbm", "shrinkage_rate"), ("xgboost", "learning_rate")]
)
def test_an_alias_replaces_the_default_of_its_parameter(learner: str, alias: str) -> None:
    data, _ = table(queries=20)
    main = "learning_rate" if learner == "lightgbm" else "eta"
    settings: dict[str, Any] = {"learner": learner, "sizes": SIZES[:1]}
    usual, one, other = (
        fit_ranker(data, FEATURES, parameters=ONE_THREAD[learner] | own, **settings).predict(data)
        for own in ({}, {main: 0.4}, {alias: 0.4})
    )
    np.testing.assert_array_equal(one, other)
    assert np.abs(one - usual).max() > 0


def test_features_of_a_log_that_are_missing_or_outcomes_are_named() -> None:
    rows = posbias.simulate(posbias.World(queries=60, max_rank=5)).rename_columns({"clicked": "tapped"})
    log = posbias.ClickLog(rows, click="tapped")
    for name in ("tapped", "position", "query_id", "doc_id"):
        with pytest.raises(PosbiasError, match=f"cannot be features, found '{name}'"):
            fit_ranker(log, ["rank_a", name], curve=[1, 0.5, 0.3, 0.25, 0.2])
    with pytest.raises(PosbiasError, match=r"(?s)'missing' is not in the log. Columns found: 'query_id'.*features="):
        fit_ranker(log, ["missing"], curve=[1, 0.5, 0.3, 0.25, 0.2])


@pytest.mark.parametrize("learner", ["lightgbm", "xgboost"])
def test_a_model_is_not_saved_into_a_missing_folder(learner: str, tmp_path: Path) -> None:
    data, _ = table(queries=20)
    ranker = fit_ranker(data, FEATURES, learner=learner, sizes=SIZES[:1])
    with pytest.raises(PosbiasError, match=r"folder .*no' does not exist"):
        ranker.save(tmp_path / "no" / "model.json")
    with pytest.raises(PosbiasError, match="is a folder"):
        ranker.save(tmp_path)


def test_a_table_without_clicks_and_wrong_predictions_are_rejected() -> None:
    data, _ = table(queries=20)
    none = {**data, "clicks": np.zeros(200), "weight": np.zeros(200)}
    with pytest.raises(PosbiasError, match="No row was clicked"):
        fit_ranker(none, FEATURES, sizes=SIZES[:1])
    with pytest.raises(PosbiasError, match="The table has no row"):
        fit_ranker({name: values[:0] for name, values in data.items()}, FEATURES)
    for constant in (np.ones(200), np.full(200, np.nan)):
        with pytest.raises(PosbiasError, match="one value in all rows"):
            fit_ranker({**data, "a": constant}, ["a"])
    for name, values, message in (
        ("a", np.r_[np.inf, data["a"][1:]], "1 of 200 values of feature 'a' are too large, such as inf"),
        ("a", data["a"][1:], "different lengths: 'a' 199|different lengths.*200"),
        ("clicks", data["clicks"] * 0, "No row was clicked"),
        ("impressions", data["clicks"] * 0, "have more clicks than impressions, such as impressions 0"),
        ("weight", data["clicks"] * 0, "have clicks without weight"),
    ):
        with pytest.raises(PosbiasError, match=message):
            fit_ranker({**data, name: values}, FEATURES, sizes=SIZES[:1])
    with pytest.raises(PosbiasError, match=r"gives all 200 rows the same score: .* leaves of 1,000 rows"):
        fit_ranker(data, FEATURES, sizes=[(4, 1000, 5)])
    ranker = fit_ranker(data, FEATURES, sizes=SIZES[:1])
    with pytest.raises(PosbiasError, match="Expected 3 features a row"):
        ranker.predict(np.zeros((4, 2)))
    with pytest.raises(PosbiasError, match="no column 'c'"):
        ranker.predict({"a": [1.0], "b": [2.0]})
    with pytest.raises(PosbiasError, match="too large, such as 1e"):
        ranker.predict([[1e300, 0.0, 0.0]])


def test_dcg_of_groups_is_what_held_out_dcg_says() -> None:
    data, rate = table(queries=20)
    scores = np.random.default_rng(0).random(200)
    assert grouped_dcg(scores, rate, [10] * 20) == pytest.approx(held_out_dcg(scores, rate, data["query_id"]))


@pytest.mark.parametrize("form", learners.FORMS)
def test_scikit_learn_searches_split_by_query_with_every_form(form: str) -> None:
    data, rate = table(queries=60)
    frame = pandas.DataFrame(data)
    leaves, own = {
        "lightgbm": ("num_leaves", {"num_threads": 1, "verbosity": -1}),
        "xgboost": ("max_leaves", {"nthread": 1, "grow_policy": "lossguide", "max_depth": 0}),
        "sklearn": ("max_leaf_nodes", {}),
    }[form.partition("-")[0]]
    ranker = FormRanker(form, FEATURES, trees=10, **own)
    values = {leaves: [3, 7], "trees": [1, 10]}
    folds = GroupKFold(3)
    search = GridSearchCV(ranker, values, cv=folds).fit(frame, groups=frame["query_id"])
    # What the search reports is the metric of the docs on queries that were not learned from.
    learned, held_out = next(folds.split(frame, groups=frame["query_id"]))
    assert not set(frame["query_id"][learned]) & set(frame["query_id"][held_out])
    again = clone(ranker).set_params(**search.cv_results_["params"][0]).fit(frame.iloc[learned])
    rows = frame.iloc[held_out]
    dcg = held_out_dcg(again.predict(rows), rows["weight"], rows["query_id"])
    assert search.cv_results_["split0_test_score"][0] == pytest.approx(dcg)
    # More trees rank better than one, and the best ranker can be stored.
    assert search.best_params_["trees"] == 10
    loaded = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(loaded.predict(frame), search.predict(frame))
    drawn = RandomizedSearchCV(ranker, values, n_iter=2, cv=folds, random_state=0)
    assert drawn.fit(frame, groups=frame["query_id"]).best_score_ <= search.best_score_ + 1e-12
    truth = held_out_dcg(rate, rate, frame["query_id"])
    # All but the naive form correct the clicks.
    assert held_out_dcg(search.predict(frame), rate, frame["query_id"]) > (0.8 if "naive" in form else 0.93) * truth


def test_a_search_refuses_what_would_undo_the_correction() -> None:
    frame = pandas.DataFrame(table(queries=20)[0])
    with pytest.raises(PosbiasError, match="lambdarank_unbiased"):
        FormRanker("xgboost-ndcg", FEATURES, lambdarank_unbiased=True).fit(frame)
    with pytest.raises(PosbiasError, match="no column 'z'"):
        FormRanker("lightgbm-softmax", "z").fit(frame)
    with pytest.raises(PosbiasError, match="cannot be features, found 'clicks'"):
        FormRanker("lightgbm-softmax", ["a", "clicks"]).fit(frame)
    for form, name in (("lightgbm-softmax", "num_iterations"), ("sklearn-poisson", "max_iter")):
        with pytest.raises(PosbiasError, match=f"as trees=..., not as '{name}'"):
            FormRanker(form, FEATURES, **{name: 5}).fit(frame)  # type: ignore[arg-type]
    with pytest.raises(PosbiasError, match="Call `fit` first"):
        FormRanker("lightgbm-softmax", "a").predict(frame)
    assert repr(FormRanker("lightgbm-softmax", "a", num_leaves=3)) == (
        "FormRanker(form='lightgbm-softmax', features='a', trees=100, query='query_id', doc='doc_id', num_leaves=3)"
    )
    with pytest.raises(PosbiasError, match="not a file name"):
        fit_ranker("weights.parquet", "a")
    with pytest.raises(PosbiasError, match="trees must be"):
        FormRanker("lightgbm-softmax", FEATURES, trees=0).fit(frame)
