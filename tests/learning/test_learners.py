"""The form of each learner against the definition: leaf values by hand, pairs by loops, and errors for wrong use."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pyarrow as pa
import pytest
import xgboost as xgb
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.svm import LinearSVC

from posbias._arrays import FloatArray
from posbias.errors import PosbiasError
from posbias.learning.weights import Weights
from posbias.objectives import (
    Form,
    add_lightgbm_models,
    choose_rule,
    grouped_dcg,
    held_out_dcg,
    learner_form,
    lightgbm_objective,
    lightgbm_ranker_metric,
    lightgbm_ranker_objective,
    pair_differences,
    pairwise_ips,
    poisson_exposure,
    poisson_start,
    softmax_ips,
    xgboost_objective,
)

# Three queries, one without clicks; the last document of the first was never shown. Features split rows into 0 and 1.
TABLE = {
    "query_id": ["b", "a", "a", "b", "a", "b", "c", "c"],
    "doc_id": [*range(8)],
    "impressions": [4, 6, 6, 4, 0, 4, 2, 2],
    "clicks": [1, 4, 0, 2, 0, 0, 0, 0],
    "exposure": [4.0, 3.0, 2.0, 0.5, 0.3, 1.5, 2.0, 1.0],
    "weight": [0.4, 1.6, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0],
}
X = np.array([[0.0], [1.0], [0.0], [1.0], [1.0], [0.0], [1.0], [0.0]])
RATE = 0.3
# Without these LightGBM makes no feature of so few rows.
SMALL = {"min_data_in_bin": 1, "feature_pre_filter": False, "verbosity": -1}
NAMES = [
    "lightgbm-softmax",
    "lightgbm-pairwise",
    "lightgbm-poisson",
    "lightgbm-naive",
    "xgboost-softmax",
    "xgboost-pairwise",
    "xgboost-poisson",
    "xgboost-naive",
]


def one_tree(form: Form, lightgbm: bool) -> Any:
    """Return the raw scores of one tree of two leaves, each all rows of one value of the feature."""
    x = X[form.rows]
    if lightgbm:
        own = {"num_leaves": 2, "learning_rate": RATE, "lambda_l2": 0.5, "min_data_in_leaf": 1, "min_data_in_bin": 1}
        own |= {"min_sum_hessian_in_leaf": 0.0, "verbosity": -1, "num_threads": 1}
        model = lgb.train(form.with_parameters(**own), lgb.Dataset(x, **form.data, params=SMALL), 1)
        return model.predict(x, raw_score=True)
    own = {"max_depth": 1, "eta": RATE, "lambda": 0.5, "min_child_weight": 0.0, "nthread": 1}
    data = xgb.DMatrix(x, **form.data)
    model = xgb.train(form.with_parameters(**own), data, 1, obj=form.objective)
    return model.predict(data, output_margin=True)


def derivatives(form: Form, rule: str, start: float) -> tuple[list[float], list[float]]:
    """Return gradient and Hessian of every row at equal scores, straight from the formulas."""
    rows = [int(i) for i in form.rows]
    if rule == "poisson":
        mean = np.mean([c for c in TABLE["clicks"] if c > 0])
        c, e = ([TABLE[name][i] / mean for i in rows] for name in ("clicks", "exposure"))
        return [e_ * math.exp(start) - c_ for c_, e_ in zip(c, e, strict=True)], [e_ * math.exp(start) for e_ in e]
    label = TABLE["clicks" if rule == "naive" else "weight"]
    w = {i: label[i] / np.mean([w for w in label if w > 0]) for i in rows}
    gradient, hessian = [], []
    for i in rows:
        group = [j for j in rows if TABLE["query_id"][j] == TABLE["query_id"][i]]
        if rule in ("softmax", "naive"):
            total, share = sum(w[j] for j in group), 1 / len(group)
            gradient.append(total * share - w[i])
            hessian.append(total * share * (1 - share))
        else:
            others = [j for j in group if j != i]
            gradient.append(sum(-w[i] * 0.5 + w[j] * 0.5 for j in others))
            hessian.append(sum((w[i] + w[j]) * 0.25 for j in others))
    return gradient, hessian


@pytest.mark.parametrize("name", NAMES)
def test_leaf_values_equal_the_definition(name: str) -> None:
    form = learner_form(name, TABLE)
    library, rule = name.split("-")
    start = poisson_start(TABLE["clicks"], TABLE["exposure"]) if rule == "poisson" else 0.0
    gradient, hessian = derivatives(form, rule, start)
    feature = X[form.rows][:, 0]
    leaves = {}
    for value in (0.0, 1.0):
        g = sum(g for g, f in zip(gradient, feature, strict=True) if f == value)
        h = sum(h for h, f in zip(hessian, feature, strict=True) if f == value)
        leaves[value] = start - RATE * g / (h + 0.5)
    scores = one_tree(form, library == "lightgbm")
    assert leaves[1.0] - leaves[0.0] > 0.05
    assert scores == pytest.approx([leaves[value] for value in feature], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("table", ["mapping", "arrow", "pandas", "weights"])
def test_rows_are_sorted_by_query_and_documents_never_shown_are_left_out(table: str) -> None:
    made = pa.table(TABLE)
    weights = weights_in(None, made)
    given: Any = {"mapping": TABLE, "arrow": made, "pandas": made.to_pandas(), "weights": weights}[table]
    form = learner_form("lightgbm-softmax", given)
    assert sorted(form.rows.tolist()) == [0, 1, 2, 3, 5, 6, 7]
    queries = [TABLE["query_id"][i] for i in form.rows]
    sizes = form.data["group"].tolist()
    starts = np.cumsum([0, *sizes[:-1]])
    assert [len({*queries[start : start + size]}) for start, size in zip(starts, sizes, strict=True)] == [1, 1, 1]
    assert sorted(sizes) == [2, 2, 3]
    # Exposure Poisson gives those never shown their small exposure instead.
    assert learner_form("lightgbm-poisson", given).rows.tolist() == [*range(8)]


def test_built_in_forms_without_code() -> None:
    floats = learner_form("xgboost-ndcg", TABLE)
    w = np.array(TABLE["weight"])
    assert floats.data["label"] == pytest.approx(w[floats.rows])
    assert floats.parameters == {"objective": "rank:ndcg", "ndcg_exp_gain": False}
    assert np.isfinite(one_tree(floats, False)).all()
    # Sums of any size are scaled.
    assert learner_form("xgboost-ndcg", {**TABLE, "weight": 7 * w}).data["label"] == pytest.approx(w[floats.rows])


def some_table(rng: np.random.Generator, queries: int = 300) -> tuple[dict[str, Any], FloatArray]:
    """Return a table of weights and features, of which the first decides."""
    query = np.repeat(np.arange(queries), 8)
    x = rng.normal(size=(len(query), 3))
    exposure = rng.choice([0.1, 1.0, 5.0], len(query))
    clicks = rng.poisson(exposure * np.exp(x[:, 0] - 1))
    counts = {"impressions": np.ones(len(query)), "clicks": clicks, "exposure": exposure, "weight": clicks / exposure}
    return {"query_id": query, **counts}, x


def test_every_form_learns_the_relevance() -> None:
    rng = np.random.default_rng(0)
    table, x = some_table(rng)
    query = table["query_id"]
    truth = np.exp(x[:, 0] - 1)
    for name in [*NAMES, "xgboost-ndcg", "sklearn-poisson"]:
        form = learner_form(name, table)
        if name.startswith("lightgbm"):
            own = {"verbosity": -1, "num_threads": 1, "num_leaves": 7}
            model: Any = lgb.train(form.with_parameters(**own), lgb.Dataset(x[form.rows], **form.data), 30)
            scores = model.predict(x, raw_score=True)
        elif name.startswith("sklearn"):
            model = HistGradientBoostingRegressor(**form.with_parameters(max_iter=30, max_leaf_nodes=7))
            scores = model.fit(x[form.rows], **form.data).predict(x)
        else:
            data = xgb.DMatrix(x[form.rows], **form.data)
            model = xgb.train(form.with_parameters(nthread=1, max_depth=3), data, 30, obj=form.objective)
            scores = model.predict(xgb.DMatrix(x), output_margin=True)
        assert held_out_dcg(scores, truth, query) > held_out_dcg(rng.random(len(query)), truth, query) + 0.05, name


QUIET = {"verbosity": -1, "num_threads": 1, "num_leaves": 7}


@pytest.mark.parametrize("name", ["lightgbm-softmax", "lightgbm-pairwise", "lightgbm-naive", "lightgbm-poisson"])
def test_lightgbm_stops_early_and_cross_validates_by_query(name: str) -> None:
    table, x = some_table(np.random.default_rng(0))
    parts = [{key: values[part] for key, values in table.items()} for part in (slice(1600), slice(1600, None))]
    form, held_out = (learner_form(name, part) for part in parts)
    data = lgb.Dataset(x[:1600][form.rows], **form.data)
    valid = lgb.Dataset(x[1600:][held_out.rows], **held_out.data, reference=data)
    stop = lgb.early_stopping(5, verbose=False)
    model = lgb.train(form.with_parameters(**QUIET), data, 300, [valid], feval=form.metric, callbacks=[stop])
    assert 0 < model.best_iteration < 290
    if form.metric is not None:
        scores = model.predict(x[1600:][held_out.rows], raw_score=True)
        best = model.best_score["valid_0"]["ips_dcg"]
        assert best == pytest.approx(grouped_dcg(scores, held_out.data["label"], held_out.data["group"]))
    folds = GroupKFold(3).split(x[:1600][form.rows], groups=form.query)
    data = lgb.Dataset(x[:1600][form.rows], **form.data)
    history = lgb.cv(form.with_parameters(**QUIET), data, 15, folds=folds, feval=form.metric)
    metric = next(key for key in history if key.endswith("-mean"))
    better = history[metric][-1] - history[metric][0]
    assert (better if form.metric else -better) > 0


@pytest.mark.parametrize(
    "name", ["xgboost-softmax", "xgboost-pairwise", "xgboost-naive", "xgboost-ndcg", "xgboost-poisson"]
)
def test_xgboost_stops_early_and_cross_validates_by_query(name: str) -> None:
    table, x = some_table(np.random.default_rng(0))
    parts = [{key: values[part] for key, values in table.items()} for part in (slice(1600), slice(1600, None))]
    form, held_out = (learner_form(name, part) for part in parts)
    data, valid = (
        xgb.DMatrix(x[part][f.rows], **f.data) for f, part in ((form, slice(1600)), (held_out, slice(1600, None)))
    )
    own = form.with_parameters(nthread=1, max_depth=3)
    more = {"maximize": True, "custom_metric": form.metric} if form.metric else {}
    model = xgb.train(
        own, data, 300, evals=[(valid, "v")], obj=form.objective, early_stopping_rounds=5, verbose_eval=False, **more
    )
    assert model.best_iteration < 290
    history = xgb.cv(own, data, 15, nfold=3, obj=form.objective, **more)
    metric = "test-ips_dcg-mean" if form.metric else "test-poisson-nloglik-mean"
    better = history[metric].iloc[-1] - history[metric].iloc[0]
    assert (better if form.metric else -better) > 0


def test_scikit_learn_searches_by_query() -> None:
    table, x = some_table(np.random.default_rng(0), 60)
    form = learner_form("sklearn-poisson", table)
    search = GridSearchCV(
        HistGradientBoostingRegressor(**form.with_parameters(max_iter=10)), {"max_leaf_nodes": [2, 7]}, cv=GroupKFold(3)
    )
    assert search.fit(x[form.rows], **form.data, groups=form.query).best_params_ == {"max_leaf_nodes": 7}
    gradient_boosting = lgb.LGBMRegressor(n_estimators=10, verbosity=-1, n_jobs=1, objective="poisson")
    form = learner_form("lightgbm-poisson", table)
    search = GridSearchCV(gradient_boosting, {"num_leaves": [2, 7]}, cv=GroupKFold(3))
    search.fit(x[form.rows], form.data["label"], sample_weight=form.data["weight"], groups=form.query)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize("objective", [softmax_ips, pairwise_ips, poisson_exposure])
def test_models_with_our_objectives_are_pickled_and_copied(objective: Any, tmp_path: Path) -> None:
    table, x = some_table(np.random.default_rng(0), 40)
    poisson = objective is poisson_exposure
    form = learner_form("lightgbm-poisson" if poisson else "lightgbm-softmax", table)
    own: dict[str, Any] = {"n_estimators": 3, "verbosity": -1, "n_jobs": 1, "metric": "none"}
    model = (lgb.LGBMRegressor if poisson else lgb.LGBMRanker)(objective=lightgbm_ranker_objective(objective), **own)
    more: dict[str, Any] = {"sample_weight": form.data["weight"]} if poisson else {"group": form.data["group"]}
    model.fit(x[form.rows], form.data["label"], **more)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(x, raw_score=True), model.predict(x, raw_score=True))
    clone(again).fit(x[form.rows], form.data["label"], **more)
    model.booster_.save_model(tmp_path / "model.txt")
    np.testing.assert_allclose(
        lgb.Booster(model_file=tmp_path / "model.txt").predict(x), model.predict(x, raw_score=True)
    )
    for wrap in (lightgbm_objective, xgboost_objective):
        pickle.loads(pickle.dumps(wrap(objective)))


# Older versions of LightGBM know only this argument.
@pytest.mark.filterwarnings("ignore:The argument 'eval_set'")
def test_lgbm_ranker_stops_early_by_our_metric() -> None:
    table, x = some_table(np.random.default_rng(0))
    form = learner_form("lightgbm-softmax", {key: values[:1600] for key, values in table.items()})
    held_out = learner_form("lightgbm-softmax", {key: values[1600:] for key, values in table.items()})
    ranker = lgb.LGBMRanker(
        objective=lightgbm_ranker_objective(softmax_ips), n_estimators=300, metric="none", verbosity=-1, n_jobs=1
    )
    ranker.fit(
        x[:1600][form.rows],
        form.data["label"],
        group=form.data["group"],
        eval_set=[(x[1600:][held_out.rows], held_out.data["label"])],
        eval_group=[held_out.data["group"]],
        eval_metric=lightgbm_ranker_metric,
        callbacks=[lgb.early_stopping(5, verbose=False)],
    )
    assert 0 < ranker.best_iteration_ < 290


def test_equal_scores_share_the_gain_of_their_ranks() -> None:
    rng = np.random.default_rng(0)
    sizes = [3, 1, 12]
    scores, weights = rng.integers(0, 3, 16).astype(float), rng.random(16)
    gains = []
    for _ in range(4000):
        start, gain = 0, 0.0
        for size in sizes:
            order = np.lexsort((rng.random(size), -scores[start : start + size]))[:10]
            gain += (weights[start : start + size][order] / np.log2(2 + np.arange(len(order)))).sum()
            start += size
        gains.append(gain / weights.sum())
    assert grouped_dcg(scores, weights, sizes) == pytest.approx(np.mean(gains), abs=4 * np.std(gains) / 60)


def test_added_lightgbm_models_are_one_model(tmp_path: Path) -> None:
    table, x = some_table(np.random.default_rng(0))
    models = []
    for name in ("lightgbm-naive", "lightgbm-softmax", "lightgbm-poisson"):
        form = learner_form(name, table)
        models.append(lgb.train(form.with_parameters(**QUIET), lgb.Dataset(x[form.rows], **form.data), 12))
    factors = 0.3, 1.7, -2.0
    one = add_lightgbm_models(models, factors)
    one.save_model(tmp_path / "one.txt")
    expected = sum(f * model.predict(x, raw_score=True) for f, model in zip(factors, models, strict=True))
    for model in (one, lgb.Booster(model_file=tmp_path / "one.txt"), pickle.loads(pickle.dumps(one))):
        np.testing.assert_allclose(model.predict(x), expected, rtol=1e-10, atol=1e-12)
    assert one.num_trees() == 36
    other = lgb.train({"objective": "l2", **QUIET}, lgb.Dataset(x[:, :2], label=x[:, 0]), 2)
    with pytest.raises(PosbiasError, match="different features"):
        add_lightgbm_models([models[0], other], [1, 1])
    with pytest.raises(PosbiasError, match="found 2 models and the factors"):
        add_lightgbm_models(models[:2], [1])
    with pytest.raises(PosbiasError, match="found one of the type LGBMRegressor"):
        add_lightgbm_models([models[0], lgb.LGBMRegressor(n_estimators=2, **QUIET).fit(x, x[:, 0])], [1, 1])
    forest = {"objective": "l2", "boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5, **QUIET}
    with pytest.raises(PosbiasError, match="Random forests"):
        add_lightgbm_models([models[0], lgb.train(forest, lgb.Dataset(x, label=x[:, 0]), 5)], [1, 1])
    classes = {"objective": "multiclass", "num_class": 3, **QUIET}
    with pytest.raises(PosbiasError, match="several scores"):
        add_lightgbm_models([lgb.train(classes, lgb.Dataset(x, label=np.arange(len(x)) % 3), 2)], [1])
    linear = lgb.train({"objective": "l2", "linear_tree": True, **QUIET}, lgb.Dataset(x, label=x[:, 0]), 2)
    with pytest.raises(PosbiasError, match="linear"):
        add_lightgbm_models([linear], [1])


def test_own_parameters_are_compared_by_value_and_by_alias() -> None:
    form = learner_form("xgboost-poisson", TABLE)
    assert form.with_parameters(max_delta_step=0.0, objective="count:" + "poisson", eta=0.3)["eta"] == 0.3
    for alias in ("objective", "application", "app", "loss", "objective_type"):
        with pytest.raises(PosbiasError, match="'objective' itself"):
            learner_form("lightgbm-poisson", TABLE).with_parameters(**{alias: "l2"})
    for alias in ("metric", "metrics", "metric_types"):
        with pytest.raises(PosbiasError, match="'metric' itself"):
            learner_form("lightgbm-softmax", TABLE).with_parameters(**{alias: "ndcg"})
    sklearn_form = learner_form("sklearn-poisson", TABLE)
    assert sklearn_form.with_parameters(loss="poisson", max_iter=5) == {"loss": "poisson", "max_iter": 5}
    with pytest.raises(PosbiasError, match="'loss' itself"):
        sklearn_form.with_parameters(loss="squared_error")


def test_lgbm_ranker_takes_the_same_objective() -> None:
    form = learner_form("lightgbm-softmax", TABLE)
    own = {"n_estimators": 1, "num_leaves": 2, "learning_rate": RATE, "reg_lambda": 0.5, "min_child_samples": 1}
    own |= {"min_child_weight": 0.0, "verbosity": -1, "n_jobs": 1, **SMALL}
    ranker = lgb.LGBMRanker(objective=lightgbm_ranker_objective(softmax_ips), metric="none", **own)
    ranker.fit(X[form.rows], form.data["label"], group=form.data["group"])
    assert ranker.predict(X[form.rows], raw_score=True) == pytest.approx(one_tree(form, True))
    poisson = learner_form("lightgbm-poisson", TABLE)
    start = poisson_start(TABLE["clicks"], TABLE["exposure"])
    regressor = lgb.LGBMRegressor(objective=lightgbm_ranker_objective(poisson_exposure), **own)
    regressor.fit(X, poisson.data["label"], poisson.data["weight"], init_score=np.full(len(X), start))
    assert regressor.predict(X, raw_score=True) + start == pytest.approx(one_tree(poisson, True), rel=1e-4)


# ---- Wrong uses


def dataset(**given: Any) -> Any:
    return lgb.Dataset(X, **given, params=SMALL)


def trained(objective: Any, data: Any) -> Any:
    return lgb.train({"objective": lightgbm_objective(objective), "verbosity": -1, "num_threads": 1}, data, 1)


def boosted(objective: Any, data: Any) -> Any:
    return xgb.train({"nthread": 1}, data, 1, obj=xgboost_objective(objective))


def spoiled(column: str, value: Any) -> dict[str, Any]:
    """Return the table with another value of the fifth row, which was never shown."""
    return {**TABLE, column: [*TABLE[column][:4], value, *TABLE[column][5:]]}


def weights_in(output: str | None, table: Any = None) -> Weights:
    return Weights(8, 3, 6, 7, 20.0, 1.0, 0.0, 5.0, tuple(TABLE), output=output, table=table)


W, N = np.array(TABLE["weight"]), np.array([8])
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "row weights": (lambda: trained(softmax_ips, dataset(label=W, weight=W, group=N)), "not IPS"),
    "positions": (
        lambda: trained(softmax_ips, dataset(label=W, group=N, position=np.arange(8))),
        "would correct a second time",
    ),
    "no groups": (lambda: trained(pairwise_ips, dataset(label=W)), "have no groups"),
    "group weights": (
        lambda: boosted(pairwise_ips, xgb.DMatrix(X, label=W, weight=[1.0], group=N)),
        "not IPS",
    ),
    "no groups in XGBoost": (lambda: boosted(softmax_ips, xgb.DMatrix(X, label=W)), "have no groups"),
    "no exposure": (lambda: trained(poisson_exposure, dataset(label=W)), "Exposure is missing"),
    "exposure of groups": (
        lambda: boosted(poisson_exposure, xgb.DMatrix(X, label=W, weight=[1.0], group=N)),
        "Exposure is missing",
    ),
    "order as position": (
        lambda: learner_form("xgboost-ndcg", TABLE).with_parameters(lambdarank_unbiased=True),
        "order of rows",
    ),
    "exponential gains": (
        lambda: learner_form("xgboost-ndcg", TABLE).with_parameters(ndcg_exp_gain=True),
        "2\\^weight",
    ),
    "another objective": (
        lambda: learner_form("lightgbm-poisson", TABLE).with_parameters(objective="lambdarank"),
        "The form sets 'objective' itself",
    ),
    "lists as queries": (
        lambda: learner_form("lightgbm-softmax", {**TABLE, "query_id": [[1, 2], [1]] * 4}),
        "column 'query_id' must be",
    ),
    "lists of one length as queries": (
        lambda: learner_form("lightgbm-softmax", {**TABLE, "query_id": [[1, 2]] * 8}),
        "column 'query_id' must be one value for each row",
    ),
    "each pair twice": (
        lambda: learner_form("lightgbm-softmax", {**TABLE, "doc_id": [7] * 8}),
        "have the same 'query_id' and 'doc_id' as an earlier row",
    ),
    "each pair twice, by another name": (
        lambda: learner_form("xgboost-naive", {**TABLE, "url": ["a"] * 8}, doc="url"),
        "as an earlier row",
    ),
    "the name of an objective": (lambda: lightgbm_objective("softmax"), "must be a function"),
    "the name of an objective of a ranker": (lambda: lightgbm_ranker_objective("softmax"), "must be a function"),
    "the name of an objective of xgboost": (lambda: xgboost_objective(None), "must be a function"),
    "a seed below 0": (lambda: pair_differences([[1.0], [2.0]], [1.0, 0.0], [2], seed=-1), "seed must be a whole"),
    "features without a number": (
        lambda: pair_differences([[1.0], [math.nan]], [1.0, 0.0], [2]),
        "1 of 2 rows of features have NaN",
    ),
    "masked features": (
        lambda: pair_differences(np.ma.masked_array([[1.0], [2.0]], [[0], [1]]), [1.0, 0.0], [2]),
        "1 of 2 values of features are masked",
    ),
    "ragged features": (lambda: pair_differences([[1.0], [2.0, 3.0]], [1.0, 0.0], [2]), "features must be a table"),
    "no click": (lambda: pair_differences([[1.0], [2.0]], [0.0, 0.0], [2]), "no pair to learn from: 0 of 2 rows"),
    "a click alone": (lambda: pair_differences([[1.0], [2.0]], [1.0, 0.0], [1, 1]), "no pair to learn from: 1 of 2"),
    "rules that are none": (lambda: choose_rule({"a": 1}, [1, 2], [1, 1], [1, 1], folds=2), "mapping from names to"),
    "a seed of rules": (lambda: choose_rule({"a": len}, [1, 2], [1, 1], [1, 1], seed=-1), "seed must be"),
    "no depth": (lambda: held_out_dcg([1.0], [1.0], [1], depth=0), "depth must be"),
    "queries that are none": (lambda: held_out_dcg([1.0], [1.0], None), "query must be one value for each row"),
    "no such form": (lambda: learner_form("catboost-softmax", TABLE), "is not known"),
    "another table": (lambda: learner_form("lightgbm-softmax", {"query_id": [1]}), "no column 'weight'"),
    "no such query": (lambda: learner_form("lightgbm-softmax", TABLE, query="qid"), "no column 'qid'"),
    "no clicks": (
        lambda: learner_form("lightgbm-softmax", {**TABLE, "weight": [0.0] * 8}),
        "No row was clicked",
    ),
    "rows of an aggregated log": (
        lambda: learner_form("lightgbm-softmax", {name: TABLE[name] for name in TABLE if name != "exposure"}),
        r"no column 'exposure'.*a row for each \(query, document\)",
    ),
    "a file": (lambda: learner_form("lightgbm-softmax", "weights.parquet"), "Read 'weights.parquet' first"),
    "nothing": (lambda: learner_form("lightgbm-softmax", None), "not a NoneType"),
    "rows of a file": (lambda: learner_form("lightgbm-softmax", weights_in("w.parquet")), "written to 'w.parquet'"),
    "exposure missing somewhere": (
        lambda: learner_form("lightgbm-poisson", spoiled("exposure", math.nan)),
        "1 of 8 exposure are negative or not finite, for example nan in row 4",
    ),
    "exposure below 0": (lambda: learner_form("xgboost-poisson", spoiled("exposure", -1.0)), "-1.0 in row 4"),
    "clicks on what nobody saw": (
        lambda: learner_form("lightgbm-poisson", {**TABLE, "exposure": [0.0] * 8}),
        "3 of 8 rows have clicks but no exposure",
    ),
    "impressions missing": (
        lambda: learner_form("lightgbm-softmax", spoiled("impressions", None)),
        "1 of 8 impressions are negative or not finite",
    ),
    "no query": (
        lambda: learner_form("lightgbm-softmax", spoiled("query_id", None)),
        "1 of 8 rows have no value in column 'query_id'",
    ),
    "a query that is no number": (
        lambda: learner_form("lightgbm-softmax", {**TABLE, "query_id": [1.0] * 7 + [math.nan]}),
        "1 of 8 rows have no value in column 'query_id'",
    ),
    "columns of other lengths": (
        lambda: learner_form("lightgbm-softmax", {**TABLE, "weight": TABLE["weight"][:7]}),
        "different lengths: weight 7, impressions 8, query_id 8",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_raises(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(PosbiasError, match=message):
        call()


# ---- scikit-learn


def test_pair_differences_equal_those_of_a_loop() -> None:
    x = np.random.default_rng(1).normal(size=(9, 2))
    w, groups = [0.0, 2.0, 0.5, 3.0, 0.0, 1.0, 0.0, 0.0, 0.0], [3, 1, 3, 2]
    found, sign, weights = pair_differences(x, w, groups)
    want = [(i, j, w[i]) for i, j in [(1, 0), (1, 2), (2, 0), (2, 1), (5, 4), (5, 6)]]
    assert np.array([x[i] - x[j] for i, j, _ in want]) == pytest.approx(found * sign[:, None])
    assert weights.tolist() == [weight for _, _, weight in want]
    assert {*sign.tolist()} == {-1, 1}


def test_sampled_pairs_have_the_weight_of_all_pairs() -> None:
    x, w = np.arange(50.0)[:, None], np.zeros(50)
    w[7] = 2.0
    found, sign, weights = pair_differences(x, w, [50], pairs=10, seed=3)
    assert len(found) == 10
    assert weights.sum() == pytest.approx(2.0 * 49)
    differences = (found[:, 0] * sign).tolist()
    assert 0 not in differences
    draws = [pair_differences(x, w, [50], pairs=10, seed=seed)[0:2] for seed in range(300)]
    mean = np.mean([(d[:, 0] * s).mean() for d, s in draws])
    assert mean == pytest.approx(np.mean([7 - j for j in range(50) if j != 7]), abs=1)


def test_a_linear_svm_learns_from_differences() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 2))
    w = np.where(x[:, 0] > 0.5, rng.random(400) * 3, 0)
    difference, side, weight = pair_differences(x, w, [10] * 40)
    model = LinearSVC(loss="hinge", fit_intercept=False, C=0.01).fit(difference, side, sample_weight=weight)
    slope = model.coef_[0]
    assert slope[0] > 5 * abs(slope[1])
    with pytest.raises(PosbiasError, match=r"features have the shape \(399, 2\)"):
        pair_differences(x[1:], w, [10] * 40)
    with pytest.raises(PosbiasError, match="pairs must be a whole number of 1 or more"):
        pair_differences(x, w, [10] * 40, pairs=0)
    with pytest.raises(PosbiasError, match="no sparse one"):
        pair_differences(csr_array(x), w, [10] * 40)


# ---- The chooser


def test_the_better_rule_is_chosen_on_held_out_queries() -> None:
    rng = np.random.default_rng(5)
    query = np.repeat([f"q{i}" for i in range(60)], 6)
    relevance = rng.random(360)
    weight = rng.poisson(relevance * 3).astype(float)
    seen: list[set[str]] = []

    def good(learn: Any, score: Any) -> Any:
        seen.append({*query[score]})
        assert not {*query[learn]} & {*query[score]}
        assert len(learn) + len(score) == 360
        return relevance[score]

    def learned_by_heart(learn: Any, score: Any) -> Any:
        known = np.zeros(360)
        known[learn] = weight[learn]
        return known[score]

    choice = choose_rule({"by heart": learned_by_heart, "good": good}, query, weight, np.ones(360))
    assert choice.name == "good"
    assert sum(map(len, seen)) == 60
    assert choice.values["good"] == pytest.approx(held_out_dcg(relevance, weight, query))
    assert "good" in str(choice)


def test_held_out_values_count_shown_documents_to_their_depth() -> None:
    scores = np.array([5.0, 4.0, 3.0, 9.0])
    weight = np.array([1.0, 0.0, 2.0, 0.0])
    rules = {"a": lambda learn, score: scores[score % 4], "b": lambda learn, score: -scores[score % 4]}
    query, impressions = [1, 1, 1, 1, 2, 2, 2, 2], np.array([1, 1, 1, 0] * 2)
    choice = choose_rule(rules, query, np.tile(weight, 2), impressions, folds=2, depth=2)
    # The fourth was never shown, and takes no rank; the third is beyond the depth.
    assert choice.values == {"a": pytest.approx(1 / 3), "b": pytest.approx(2 / 3)}
    assert choice.name == "b"


def test_equal_scores_are_ordered_at_random() -> None:
    """Not in that of the rows, which may be that of the production ranker."""
    weight, query = np.tile([1.0, 0.0, 0.0, 0.0], 500), np.repeat(np.arange(500), 4)
    mean = np.mean(1 / np.log2([2, 3, 4, 5]))
    assert held_out_dcg(np.zeros(2000), weight, query) == pytest.approx(mean, abs=0.03)
    with pytest.raises(PosbiasError, match="2,000 scores, 1 of them not finite"):
        held_out_dcg([math.nan, *np.zeros(1999)], weight, query)
    with pytest.raises(PosbiasError, match="1,999 queries and 2,000 weights"):
        held_out_dcg(np.zeros(2000), weight, query[1:])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rules": {}}, "rules must be a mapping"),
        ({"folds": 1}, "folds must be"),
        ({"folds": 9}, "2 queries for 9 folds"),
        ({"weight": [1.0]}, "Expected one of each per row"),
        ({"weight": [0.0] * 4}, "No row was clicked"),
        ({"weight": [1.0, 0.0, math.nan, 1.0]}, "nan in row 2"),
        ({"weight": [1.0, 0.0, -2.0, 1.0]}, "-2.0 in row 2"),
        ({"impressions": [1, 1, None, 1]}, "1 of 4 impressions"),
        ({"rules": {"short": lambda learn, score: [1.0]}}, "returned 1 scores"),
        ({"rules": {"odd": lambda learn, score: [math.nan] * len(score)}}, "of them not finite"),
    ],
)
def test_invalid_rules_and_columns_raise(given: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {
        "rules": {"same": lambda learn, score: np.zeros(len(score))},
        "query": [1, 1, 2, 2],
        "weight": [1.0, 0.0, 0.0, 1.0],
        "impressions": [1, 1, 1, 1],
        "folds": 2,
    }
    with pytest.raises(PosbiasError, match=message):
        choose_rule(**usual | given)
