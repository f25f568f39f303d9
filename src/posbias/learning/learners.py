"""Prepare weights for each learner, blend rankers, and choose between rules of learning.

`learner_form` turns a table of `posbias.ips_weights` into what LightGBM or XGBoost takes: which rows, their labels,
weights and groups, and the parameters to train with. `cautious_factors` adds the scores of rankers learned without
correction, by IPS and by the Poisson likelihood. For researchers, `blend_factors` leaves the first of them out, and
`choose_rule` compares rules on held-out queries by their self-normalised IPS DCG.

>>> import posbias
>>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=300, max_rank=5)))
>>> weights = posbias.ips_weights(log, posbias.harvest(log, max_rank=5))
>>> form = learner_form("xgboost-ndcg", weights.table)
>>> sorted(form.data), bool(form.data["group"].sum() == len(form.rows)), form.parameters["objective"]
(['group', 'label'], True, 'rank:ndcg')
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from posbias._arrays import AnyArray, BoolArray, FloatArray, IntArray, group
from posbias._optional import optional
from posbias._text import listed
from posbias._validate import integer, number, one_of
from posbias.errors import PosbiasError
from posbias.learning.objectives import (
    as_numbers,
    group_numbers,
    grouped_weights,
    lightgbm_metric,
    lightgbm_objective,
    non_negative_numbers,
    pairwise_ips,
    poisson_start,
    scaled_counts,
    scaled_weights,
    softmax_ips,
    xgboost_metric,
    xgboost_objective,
)
from posbias.learning.weights import Weights

# LightGBM adds this to the exponent of the Hessian. Its default, 0.7, underfits badly; it must be above 0.
_NO_DELTA = 1e-6
# Parameters that would undo or double the correction, and why.
_CONFLICTING_PARAMETERS = {
    "lambdarank_unbiased": "takes the order of rows as the position at which they were shown.",
    "lambdarank_position_bias_regularization": "belongs to LightGBM's own correction by position.",
    "ndcg_exp_gain": "would turn a weight into a gain of 2^weight.",
}
# Other names that LightGBM knows of a parameter that a form sets.
_ALIASES = {
    **dict.fromkeys(("objective_type", "app", "application", "loss"), "objective"),
    **dict.fromkeys(("metrics", "metric_types"), "metric"),
}
# Effective clicks at which IPS and Poisson have equal shares; chosen on two pilot logs, see docs/evidence_blend.md.
_EQUAL_IPS_CLICKS = 10_000
# Effective clicks at which the naive ranker has half of a cautious blend; chosen on the same pilot logs.
_EQUAL_NAIVE_CLICKS = 100
# Scores that differ by less than this share of the largest are equal but for rounding.
_ROUNDING = 1e-12
# Takes the rows to learn from and the rows to score, and returns the scores of the latter.
Fit = Callable[[IntArray, IntArray], Any]


def learner_form(name: str, table: Any, *, query: str = "query_id", doc: str = "doc_id") -> Form:
    """Return rows, labels, groups and parameters in the form that a learner takes.

    IPS forms leave out documents that were never shown: they are not negatives of an IPS loss.

    Arguments:
        name (str): one of "lightgbm-softmax", "lightgbm-pairwise", "xgboost-softmax", "xgboost-pairwise" (IPS, with a
            custom objective), "xgboost-ndcg" (nearly IPS, with a built-in objective), "lightgbm-poisson",
            "xgboost-poisson", "sklearn-poisson" (clicks and exposure, built in), or "lightgbm-naive", "xgboost-naive"
            (clicks without correction, by the softmax loss: the first ranker of `cautious_factors`).
        table (Weights, table or mapping): the result of `ips_weights`, or its rows as an Arrow table, a frame or a
            mapping of columns.
        query (str, default "query_id"): the column of the query.
        doc (str, default "doc_id"): the column of the document, to find repeated rows if the table has it.

    Returns:
        A `Form`.
    """
    one_of("name", name, FORMS)
    learner, rule = name.split("-")
    table = as_table(table)
    if rule == "poisson":
        clicks, exposure = (non_negative_numbers(column, column_of(table, column)) for column in ("clicks", "exposure"))
        check_lengths(clicks=clicks, exposure=exposure)
        form = _poisson(learner, clicks, exposure)
        known = query in column_names(table)
        return (
            replace(form, query=group_numbers(f"column {query!r}", column_of(table, query))[form.rows])
            if known
            else form
        )
    label = "clicks" if rule == "naive" else "weight"
    weight, impressions = (non_negative_numbers(column, column_of(table, column)) for column in (label, "impressions"))
    # Rows of a log have no exposure, and may repeat a document, which would be compared with itself.
    column_of(table, "exposure")
    ids = group_numbers(f"column {query!r}", column_of(table, query))
    check_lengths(**{label: weight, "impressions": impressions, query: ids})
    check_unique_pairs(table, query, ids, doc)
    rows, sizes = _by_query(ids, impressions > 0)
    weights = scaled_weights(weight[rows])
    return replace(FORMS[name](rows, weights, sizes), query=ids[rows])


@dataclass(frozen=True)
class Form:
    """The data and parameters that a learner takes.

    Made by `posbias.objectives.learner_form`.

    Attributes:
        rows (array of int): rows of the table, in the order in which the learner takes features.
        data (dict): what goes with the features: `lightgbm.Dataset(X[form.rows], **form.data)`,
            `xgboost.DMatrix(...)`, or `fit(...)` of scikit-learn.
        parameters (dict): required parameters of `train`.
        objective (callable or None): the argument `obj` of `xgboost.train`; None if a parameter names the objective.
        metric (callable or None): what to stop early by: `feval` of `lightgbm.train` and `lightgbm.cv`, or
            `custom_metric` of `xgboost.train` and `xgboost.cv`, with `maximize=True`. It is the self-normalised IPS
            DCG; for the naive forms that of raw clicks. None where the learner's own metric does, as that of Poisson.
        query (array of int or None): a number for the query of each row, to split by query: `groups` of
            `sklearn.model_selection.GroupKFold`.
    """

    rows: IntArray
    data: Mapping[str, AnyArray]
    parameters: Mapping[str, Any]
    objective: Callable[[Any, Any], tuple[FloatArray, FloatArray]] | None = field(default=None)
    metric: Callable[[Any, Any], Any] | None = field(default=None)
    query: IntArray | None = field(default=None)

    def with_parameters(self, **own: Any) -> dict[str, Any]:
        """Return your own parameters together with those of the form; reject any that would undo the correction."""
        wrong = {name: value for name, value in own.items() if name in _CONFLICTING_PARAMETERS and value}
        if wrong:
            name = next(iter(wrong))
            raise PosbiasError(
                f"{name}={wrong[name]!r} {_CONFLICTING_PARAMETERS[name]} Leave it out: the form corrects already."
            )
        # What is another name for LightGBM is the parameter itself for scikit-learn: `loss`.
        own = {name if name in self.parameters else _ALIASES.get(name, name): value for name, value in own.items()}
        repeated = [name for name, value in own.items() if name in self.parameters and value != self.parameters[name]]
        if repeated:
            raise PosbiasError(f"The form sets {listed(repeated)} itself. Leave it out.")
        return {**own, **self.parameters}


def _poisson(learner: str, clicks: FloatArray, exposure: FloatArray) -> Form:
    c, e = scaled_counts(clicks, exposure)
    # A row without exposure has no information.
    rows = np.flatnonzero(e > 0)
    c, e = c[rows], e[rows]
    data = {"label": c / e, "weight": e}
    if learner == "sklearn":
        return Form(rows, {"y": c / e, "sample_weight": e}, {"loss": "poisson"})
    if learner == "lightgbm":
        return Form(rows, data, {"objective": "poisson", "poisson_max_delta_step": _NO_DELTA})
    start = np.full(len(rows), poisson_start(c, e))
    return Form(rows, {**data, "base_margin": start}, {"objective": "count:poisson", "max_delta_step": 0})


def _custom(learner: str, objective: Any) -> Callable[[IntArray, FloatArray, IntArray], Form]:
    def make_form(rows: IntArray, weights: FloatArray, sizes: IntArray) -> Form:
        data = {"label": weights, "group": sizes}
        if learner == "lightgbm":
            # Metrics of LightGBM take whole labels only.
            parameters = {"objective": lightgbm_objective(objective), "metric": "none"}
            return Form(rows, data, parameters, metric=lightgbm_metric)
        parameters = {"base_score": 0.0, "disable_default_eval_metric": True}
        return Form(rows, data, parameters, xgboost_objective(objective), xgboost_metric)

    return make_form


def _ndcg(rows: IntArray, weights: FloatArray, sizes: IntArray) -> Form:
    return Form(
        rows,
        {"label": weights, "group": sizes},
        {"objective": "rank:ndcg", "ndcg_exp_gain": False},
        None,
        xgboost_metric,
    )


FORMS: dict[str, Callable[..., Form]] = {
    "lightgbm-softmax": _custom("lightgbm", softmax_ips),
    "lightgbm-pairwise": _custom("lightgbm", pairwise_ips),
    "lightgbm-poisson": _poisson,
    "lightgbm-naive": _custom("lightgbm", softmax_ips),
    "sklearn-poisson": _poisson,
    "xgboost-softmax": _custom("xgboost", softmax_ips),
    "xgboost-pairwise": _custom("xgboost", pairwise_ips),
    "xgboost-ndcg": _ndcg,
    "xgboost-poisson": _poisson,
    "xgboost-naive": _custom("xgboost", softmax_ips),
}


def as_table(source: Any) -> Any:
    """Return a table with columns by name."""
    if isinstance(source, Weights):
        if source.table is None:
            raise PosbiasError(
                f"The table is not in memory: it was written to {source.output!r}. Read that file, and give its rows."
            )
        return source.table
    if isinstance(source, str | os.PathLike):
        raise PosbiasError(f"Expected a table, not a file name. Read {os.fspath(source)!r} first.")
    if not isinstance(source, Mapping) and not hasattr(source, "columns"):
        raise PosbiasError(f"Expected a table made by `posbias.ips_weights`, not a {type(source).__name__}.")
    return source


def column_of(table: Any, name: str) -> Any:
    """Return a column of a table; an error names the columns that there are."""
    names = column_names(table)
    if name not in names:
        raise PosbiasError(
            f"The table has no column {name!r}. Columns found: {listed(map(str, names))}. Expected a table made by "
            "`posbias.ips_weights`, with a row for each (query, document). If the columns of queries or documents have "
            "other names, give them (query, doc)."
        )
    return table[name]


def column_names(table: Any) -> list[Any]:
    """Return the names of the columns of an Arrow table, a frame or a mapping."""
    return list(getattr(table, "column_names", getattr(table, "columns", table)))


def check_lengths(**columns: AnyArray) -> None:
    """Reject columns of different lengths."""
    if len({len(values) for values in columns.values()}) > 1:
        lengths = ", ".join(f"{name} {len(values):,}" for name, values in columns.items())
        raise PosbiasError(f"The columns of the table have different lengths: {lengths}. Expected one value per row.")


def check_unique_pairs(table: Any, query: str, ids: IntArray, doc: str) -> None:
    """Reject a table that repeats a document of a query, which would be compared with itself."""
    if doc not in column_names(table) and doc == "doc_id":
        return
    docs = group_numbers(f"column {doc!r}", column_of(table, doc))
    check_lengths(**{query: ids, doc: docs})
    repeated = len(ids) - len(group([ids, docs])[0])
    if repeated:
        raise PosbiasError(
            f"{repeated:,} of {len(ids):,} rows have the same {query!r} and {doc!r} as an earlier row. Expected one "
            "row for each (query, document), as `posbias.ips_weights` makes: sum the rows of a pair. If the column of "
            "documents has another name, give it (doc)."
        )


def _by_query(query: IntArray, shown: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the rows that were shown, sorted by query, and how many each query has."""
    rows = np.flatnonzero(shown)
    rows = rows[np.argsort(query[rows], kind="stable")]
    sizes = np.bincount(query[rows])
    return rows, sizes[sizes > 0]


def pair_differences(
    features: Any, weights: Any, groups: Any, *, pairs: int = 10, seed: int = 0
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Return differences of features, their classes and `sample_weight` for `sklearn.svm.LinearSVC`.

    Each clicked row is compared with the other rows of its group, or with a sample of `pairs` of them, drawn with
    replacement; each then has the weight W_i (m − 1) / pairs. Every second difference is negated, so that there are two
    classes. Fit without an intercept: `LinearSVC(loss="hinge", fit_intercept=False).fit(x, y, sample_weight=w)`.

    Arguments:
        features (array): features of every row.
        weights (array): the IPS label W of every row, 0 where there was no click.
        groups (array of int): the number of rows of each query, in their order.
        pairs (int, default 10): the most comparisons of a clicked row.
        seed (int, default 0): seeds the sample.

    Returns:
        The differences, their classes 1 and −1, and their weights.

    Example:
        >>> x, y, w = pair_differences([[1.0], [3.0], [4.0]], [0.0, 2.0, 0.0], [3])
        >>> x.tolist(), y.tolist(), w.tolist()
        ([[2.0], [1.0]], [1, -1], [2.0, 2.0])

    Reference: Joachims, Swaminathan and Schnabel, WSDM 2017, section 5.
    """
    integer("pairs", pairs, 1)
    integer("seed", seed, 0)
    x = as_numbers("features", features, "a table of numbers, and no sparse one")
    w, sizes = grouped_weights(weights, groups)
    if x.ndim != 2 or len(x) != len(w):
        raise PosbiasError(
            f"features have the shape {x.shape}, but there are {len(w):,} weights. Expected a row of features for "
            "each weight."
        )
    not_finite = int((~np.isfinite(x)).any(axis=1).sum())
    if not_finite:
        raise PosbiasError(
            f"{not_finite:,} of {len(x):,} rows of features have NaN, infinity or a missing value. Give each a number, "
            "or leave the rows out."
        )
    clicked = np.flatnonzero((w > 0) & (np.repeat(sizes, sizes) > 1))
    if not len(clicked):
        raise PosbiasError(
            f"There is no pair to learn from: {int((w > 0).sum()):,} of {len(w):,} rows were clicked, and none of them "
            "has another row in its group."
        )
    start, m = (np.repeat(values, sizes)[clicked] for values in (np.cumsum(sizes) - sizes, sizes))
    drawn = np.minimum(m - 1, pairs)
    i = np.repeat(clicked, drawn)
    nth = np.arange(len(i)) - np.repeat(np.cumsum(drawn) - drawn, drawn)
    some = np.random.default_rng(seed).integers(0, np.repeat(m - 1, drawn))
    place = np.repeat(start, drawn) + np.where(np.repeat(m - 1 > pairs, drawn), some, nth)
    j = place + (place >= i)
    sign = np.where(np.arange(len(i)) % 2, -1, 1)
    return (x[i] - x[j]) * sign[:, None], sign, w[i] * np.repeat((m - 1) / np.maximum(drawn, 1), drawn)


def cautious_factors(
    naive: Any, ips: Any, poisson: Any, query: Any, effective_clicks: float
) -> tuple[float, float, float]:
    """Return a, b and c of the ranker a · naive + b · IPS + c · Poisson, a blend that corrects less with few clicks.

    Use this rule first. The naive ranker learns from clicks without correction (`learner_form` "lightgbm-naive" or
    "xgboost-naive"). It is biased, but has the least variance. Its share is 100 / (100 + n), where n is the effective
    number of clicks: the variance of the others falls with n, and its bias does not. The rest is divided as in
    `blend_factors`.

    Arguments:
        naive, ips, poisson (array): scores of the same documents by the three rankers, for some hundred queries.
        query (array): the query of each of these documents.
        effective_clicks (float): `effective_clicks` of the result of `ips_weights`.

    Returns:
        The three factors.

    Example:
        >>> scores, query = [1.0, -1.0], ["q", "q"]
        >>> [round(factor, 3) for factor in cautious_factors(scores, scores, scores, query, effective_clicks=100)]
        [0.5, 0.045, 0.455]
    """
    group = group_numbers("query", query)
    share = naive_share(effective_clicks)
    b, c = blend_factors(ips, poisson, query, effective_clicks)
    return share / _spread("naive", naive, group), (1 - share) * b, (1 - share) * c


def naive_share(effective_clicks: float) -> float:
    """Return the share of the naive ranker in a cautious blend.

    >>> [round(naive_share(n), 2) for n in (100, 400, 20_000)]
    [0.5, 0.2, 0.0]
    """
    _check_clicks(effective_clicks)
    return float(_EQUAL_NAIVE_CLICKS / (_EQUAL_NAIVE_CLICKS + effective_clicks))


def _check_clicks(effective_clicks: Any) -> None:
    if not (number(effective_clicks) or 0) > 0:
        raise PosbiasError(
            f"effective_clicks must be a number above 0, found {effective_clicks!r}. `ips_weights` returns it."
        )


def blend_factors(ips: Any, poisson: Any, query: Any, effective_clicks: float) -> tuple[float, float]:
    """Return a and b of the ranker a · IPS + b · Poisson. For comparison only: `cautious_factors` loses less often.

    IPS is unbiased but needs many clicks. The Poisson ranker is stable with few clicks, but must also explain how
    queries differ. Their errors differ, so the blend is better than either nearly everywhere. Each is divided by its
    spread within queries. IPS then has the share √n / (√n + 100), where n is the effective number of clicks.

    Arguments:
        ips, poisson (array): scores of the same documents by both rankers, for some hundred queries; these may be
            queries that the rankers learned from.
        query (array): the query of each of these documents.
        effective_clicks (float): `effective_clicks` of the result of `ips_weights`.

    Returns:
        The two factors.

    Example:
        >>> a, b = blend_factors([1.0, 3.0], [0.2, 0.0], ["q", "q"], effective_clicks=10_000)
        >>> round(a, 3), round(b, 3)
        (0.5, 5.0)
    """
    group = group_numbers("query", query)
    share = ips_share(effective_clicks)
    return share / _spread("ips", ips, group), (1 - share) / _spread("poisson", poisson, group)


def ips_share(effective_clicks: float) -> float:
    """Return the share of IPS in a blend with Poisson.

    >>> [round(ips_share(n), 2) for n in (400, 10_000, 250_000)]
    [0.17, 0.5, 0.83]
    """
    _check_clicks(effective_clicks)
    return float(np.sqrt(effective_clicks) / (np.sqrt(effective_clicks) + np.sqrt(_EQUAL_IPS_CLICKS)))


def _spread(name: str, scores: Any, group: Any) -> float:
    """Return the root mean square of scores about the mean of their query."""
    s = as_numbers(name, scores).reshape(-1)
    if len(s) != len(group) or not np.isfinite(s).all():
        raise PosbiasError(
            f"{name} has {len(s):,} scores, {int((~np.isfinite(s)).sum()):,} of them not finite, for {len(group):,} "
            "documents. Expected a number for each document."
        )
    if not len(s):
        raise PosbiasError("There is no document, so scores have no spread.")
    means = np.bincount(group, s) / np.bincount(group)
    spread = float(np.sqrt(((s - means[group]) ** 2).mean()))
    # A ranker that scores all documents of a query alike, but for rounding, adds no order at any scale.
    return spread if spread > _ROUNDING * float(np.abs(s).max()) else 1.0


def add_lightgbm_models(models: Sequence[Any], factors: Sequence[float]) -> Any:
    """Return one LightGBM model whose raw score is Σ factor · raw score of each model.

    Arguments:
        models (list of lightgbm.Booster): models of the same features; with scikit-learn's interface, their `booster_`.
        factors (list of float): a factor for each, such as those of `cautious_factors`.

    Returns:
        A `lightgbm.Booster`, to save and serve as one file. Its `predict` returns the sum of scores.
    """
    lightgbm = optional("lightgbm", "Adding models needs")
    many = all(isinstance(each, Sequence | np.ndarray) for each in (models, factors))
    numbers = [number(factor) for factor in factors] if many else []
    if not numbers or len(models) != len(numbers) or None in numbers:
        raise PosbiasError(
            f"Expected a list of models and a finite number for each, found {len(models)} models and the factors "
            f"{factors!r}."
            if many
            else f"Expected a list of models and a list of factors, found {factors!r} as factors."
        )
    other = next((model for model in models if not isinstance(model, lightgbm.Booster)), None)
    if other is not None:
        raise PosbiasError(
            f"Expected models of the type lightgbm.Booster, found one of the type {type(other).__name__}. Models with "
            "scikit-learn's interface have one as `booster_`. The sum of other models cannot be one file."
        )
    names = [model.feature_name() for model in models]
    if any(other != names[0] for other in names):
        raise PosbiasError("The models have different features. Train all on the same columns, in the same order.")
    texts = [model.model_to_string(num_iteration=model.best_iteration or -1) for model in models]
    if any("is_linear=1" in text for text in texts):
        raise PosbiasError("Models with linear trees (linear_tree) cannot be added.")
    if any(model.num_model_per_iteration() > 1 for model in models):
        raise PosbiasError("Models with several scores for a row, as of several classes, cannot be added.")
    if any("\naverage_output\n" in text for text in texts):
        raise PosbiasError(
            "Random forests (boosting='rf') cannot be added: LightGBM predicts the mean of their trees, and its raw "
            "score is the sum."
        )
    trees = [
        _scaled_tree(tree, factor or 0.0)
        for text, factor in zip(texts, numbers, strict=True)
        for tree in text.partition("\nend of trees")[0].split("\nTree=")[1:]
    ]
    head, _, tail = texts[0].partition("\nTree=0")
    # Without an objective, a prediction is the raw score; without sizes, trees are read one after another.
    head = "\n".join(line for line in head.split("\n") if not line.startswith(("objective=", "tree_sizes=")))
    body = "".join(f"\nTree={i}\n{tree}\n" for i, tree in enumerate(trees))
    return lightgbm.Booster(model_str=f"{head}\n{body}\nend of trees{tail.partition('end of trees')[2]}")


def _scaled_tree(text: str, factor: float) -> str:
    """Return a tree of a LightGBM model file, without its number, with its values multiplied by a factor."""
    lines = text.strip("\n").split("\n")[1:]
    for i, line in enumerate(lines):
        key, _, values = line.partition("=")
        if key in ("leaf_value", "internal_value"):
            lines[i] = f"{key}={' '.join(repr(factor * float(value)) for value in values.split())}"
    return "\n".join(lines)


def choose_rule(
    rules: Mapping[str, Fit],
    query: Any,
    weight: Any,
    impressions: Any,
    *,
    folds: int = 5,
    depth: int = 10,
    seed: int = 0,
) -> Choice:
    """Choose between rules of learning by cross-validation over queries.

    The rule with the highest self-normalised IPS DCG on held-out queries is chosen: Σ W λ(rank) / ΣW over the documents
    that were shown, with λ = 1 / log2(1 + rank) down to `depth`. The DCG of raw clicks would prefer the ranker that
    learned their bias.

    Arguments:
        rules (dict of callables): functions by name. Each takes the rows to learn from and the rows to score, and
            returns the scores of the latter. The first of equally good rules is chosen.
        query, weight, impressions (array): columns of the table of `ips_weights`.
        folds (int, default 5): the number of parts into which queries are split.
        depth (int, default 10): ranks that count.
        seed (int, default 0): seeds the split, and the order of documents with equal scores.

    Returns:
        A `Choice`.

    Example:
        >>> query, weight, shown = [1, 1, 2, 2], [0, 2, 0, 1], [5, 5, 5, 5]
        >>> good, bad = np.array([0, 1, 0, 1]), np.array([1, 0, 1, 0])
        >>> rules = {"bad": lambda learn, score: bad[score], "good": lambda learn, score: good[score]}
        >>> print(choose_rule(rules, query, weight, shown, folds=2))
        good (bad 0.6309, good 1.0000)
    """
    integer("folds", folds, 2)
    integer("depth", depth, 1)
    integer("seed", seed, 0)
    if not isinstance(rules, Mapping) or not rules or not all(map(callable, rules.values())):
        raise PosbiasError(f"rules must be a mapping from names to functions, with at least one rule, not {rules!r}.")
    group = group_numbers("query", query)
    w, shown = non_negative_numbers("weight", weight), non_negative_numbers("impressions", impressions) > 0
    if not len(group) == len(w) == len(shown):
        raise PosbiasError(
            f"There are {len(group):,} queries, {len(w):,} weights and {len(shown):,} impressions. Expected one of "
            "each per row."
        )
    queries = int(group.max(initial=-1)) + 1
    if queries < folds:
        raise PosbiasError(
            f"There are only {queries:,} queries for {folds:,} folds. Give more queries, or fewer folds."
        )
    fold = np.random.default_rng(seed).permutation(queries) % folds
    scores = {name: np.zeros(len(w)) for name in rules}
    for part in range(folds):
        held_out = fold[group] == part
        learn, score = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        for name, fit in rules.items():
            scores[name][score] = _finite_scores(f"The rule {name!r} returned", fit(learn, score), len(score))
    rows = np.flatnonzero(shown)
    values = {
        name: held_out_dcg(rule_scores[rows], w[rows], group[rows], depth=depth, seed=seed)
        for name, rule_scores in scores.items()
    }
    return Choice(max(values, key=lambda name: values[name]), values)


@dataclass(frozen=True)
class Choice:
    """The rule that ranks held-out queries best.

    Made by `posbias.objectives.choose_rule`.

    Attributes:
        name (str): the chosen rule.
        values (dict): the self-normalised IPS DCG of each rule over all held-out queries.
    """

    name: str
    values: Mapping[str, float]

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value:.4f}" for name, value in self.values.items())
        return f"{self.name} ({values})"


def _finite_scores(subject: str, scores: Any, rows: int) -> FloatArray:
    """Return scores as an array; `subject` starts the error, such as "The rule 'a' returned"."""
    array = as_numbers("scores", scores).reshape(-1)
    if len(array) != rows or not np.isfinite(array).all():
        not_finite = int((~np.isfinite(array)).sum())
        raise PosbiasError(
            f"{subject} {len(array):,} scores, {not_finite:,} of them not finite, for {rows:,} rows. Expected a number "
            "for each row to score."
        )
    return array


def held_out_dcg(scores: Any, weight: Any, query: Any, *, depth: int = 10, seed: int = 0) -> float:
    """Return the self-normalised IPS DCG, Σ W λ(rank) / ΣW, of documents ranked by their scores within a query.

    Arguments:
        scores, weight, query (array): the score, the IPS label W and the query of each document.
        depth (int, default 10): ranks that count.
        seed (int, default 0): seeds the order of documents with equal scores.

    >>> held_out_dcg([3.0, 2.0, 1.0], [1.0, 0.0, 1.0], [7, 7, 7])
    0.75
    """
    integer("depth", depth, 1)
    integer("seed", seed, 0)
    w = non_negative_numbers("weight", weight)
    group = group_numbers("query", query)
    s = _finite_scores("There are", scores, len(w))
    if len(group) != len(w):
        raise PosbiasError(f"There are {len(group):,} queries and {len(w):,} weights. Expected one of each per row.")
    if not w.sum() > 0:
        raise PosbiasError("No row was clicked, so there is nothing to evaluate.")
    # Equal scores of a query are in random order.
    order = np.lexsort((np.random.default_rng(seed).random(len(s)), -s, group))
    sizes = np.bincount(group)
    rank = np.arange(len(s)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
    gain = np.where(rank <= depth, 1 / np.log2(1 + rank), 0.0)
    return float((w[order] * gain).sum() / w.sum())
