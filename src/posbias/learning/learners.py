"""Weights in the form of each learner."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from posbias._arrays import AnyArray, BoolArray, FloatArray, IntArray, group
from posbias._text import listed
from posbias._validate import number, one_of, whole
from posbias.errors import PosbiasError
from posbias.learning.objectives import (
    as_numbers,
    grouped_weights,
    lightgbm_objective,
    numbered,
    pairwise_ips,
    poisson_start,
    row_numbers,
    scaled_counts,
    scaled_weights,
    softmax_ips,
    xgboost_objective,
)
from posbias.learning.weights import Weights

# Steps of an integer label for the mean weight, and the most steps that a list of gains has.
_STEPS, _MOST_STEPS = 10, 30_000
# What LightGBM adds to the exponent of the Hessian, 0.7 by default, which underfits badly; it must be above 0.
_NO_DELTA = 1e-6
_WRONG = {
    "lambdarank_unbiased": "takes the order of rows for the position at which they were shown.",
    "lambdarank_position_bias_regularization": "belongs to LightGBM's own correction by position.",
    "ndcg_exp_gain": "would make a gain of 2^weight of a weight.",
}
# Clicks of equal weight at whose square root both count alike; set on two pilot logs, see docs/gains.md.
_HALFWAY = 10_000
# Clicks of equal weight at which no correction counts as much as both together; set on pilot logs, as above.
_FEW = 100
# Takes the rows to learn from and the rows to score, and returns the scores of these.
Fit = Callable[[IntArray, IntArray], Any]


def learner_form(name: str, table: Any, *, query: str = "query_id", doc: str = "doc_id") -> Form:
    """Return the form of a learner.

    Arguments:
        name: one of "lightgbm-softmax", "lightgbm-pairwise", "xgboost-softmax", "xgboost-pairwise" (IPS, with an
            objective of ours), "lightgbm-lambdarank", "xgboost-ndcg" (IPS, built in, nearly the same),
            "lightgbm-poisson", "xgboost-poisson" (clicks by exposure, built in), or "lightgbm-naive", "xgboost-naive"
            (clicks as they are, by the softmax loss: the third ranker of `cautious_factors`).
        table: what `ips_weights` made, or its rows: an Arrow table or a frame, or a mapping of columns.
        query: the column of the query.
        doc: the column of the document, by which rows are told apart if the table has it.

    Of IPS the documents that were never shown are left out: they are no negatives of an IPS loss.
    """
    one_of("name", name, _FORMS)
    learner, rule = name.split("-")
    table = _table(table)
    if rule == "poisson":
        clicks, exposure = (row_numbers(column, _column(table, column)) for column in ("clicks", "exposure"))
        _refuse_lengths(clicks=clicks, exposure=exposure)
        return _poisson(learner, clicks, exposure)
    label = "clicks" if rule == "naive" else "weight"
    weight, impressions = (row_numbers(column, _column(table, column)) for column in (label, "impressions"))
    # Rows of a log may have all else, and have a document several times, which would be compared with itself.
    _column(table, "exposure")
    ids = numbered(f"column {query!r}", _column(table, query))
    _refuse_lengths(**{label: weight, "impressions": impressions, query: ids})
    _refuse_twins(table, query, ids, doc)
    rows, sizes = _by_query(ids, impressions > 0)
    weights = scaled_weights(weight[rows])
    return _FORMS[name](rows, weights, sizes)


@dataclass(frozen=True)
class Form:
    """What to hand to a learner.

    Attributes:
        rows: which rows of the table, in the order in which features are to be given.
        data: what goes with the features: `lightgbm.Dataset(X[form.rows], **form.data)`, or `xgboost.DMatrix(...)`.
        parameters: what must be among the parameters of `train`.
        objective: what goes as `obj` to `xgboost.train`; None where a parameter says it.
    """

    rows: IntArray
    data: Mapping[str, AnyArray]
    parameters: Mapping[str, Any]
    objective: Callable[[Any, Any], tuple[FloatArray, FloatArray]] | None = field(default=None)

    def with_parameters(self, **own: Any) -> dict[str, Any]:
        """Return one's own parameters with those of the form; refuse what would undo or double the correction."""
        wrong = {name: value for name, value in own.items() if name in _WRONG and value}
        if wrong:
            name = next(iter(wrong))
            raise PosbiasError(f"{name}={wrong[name]!r} {_WRONG[name]} Leave it out: the form corrects already.")
        twice = [name for name, value in own.items() if self.parameters.get(name, value) is not value]
        if twice:
            raise PosbiasError(f"The form says what {listed(twice)} must be. Leave it out.")
        return {**own, **self.parameters}


def _poisson(learner: str, clicks: FloatArray, exposure: FloatArray) -> Form:
    c, e = scaled_counts(clicks, exposure)
    # A row that nobody can have seen says nothing.
    rows = np.flatnonzero(e > 0)
    c, e = c[rows], e[rows]
    data = {"label": c / e, "weight": e}
    if learner == "lightgbm":
        return Form(rows, data, {"objective": "poisson", "poisson_max_delta_step": _NO_DELTA})
    start = np.full(len(rows), poisson_start(c, e))
    return Form(rows, {**data, "base_margin": start}, {"objective": "count:poisson", "max_delta_step": 0})


def _ours(learner: str, objective: Any) -> Callable[[IntArray, FloatArray, IntArray], Form]:
    def made(rows: IntArray, weights: FloatArray, sizes: IntArray) -> Form:
        data = {"label": weights, "group": sizes}
        if learner == "lightgbm":
            return Form(rows, data, {"objective": lightgbm_objective(objective)})
        return Form(rows, data, {"base_score": 0.0, "disable_default_eval_metric": True}, xgboost_objective(objective))

    return made


def _lambdarank(rows: IntArray, weights: FloatArray, sizes: IntArray) -> Form:
    steps = min(_STEPS, _MOST_STEPS / weights.max())
    label = np.rint(steps * weights).astype(np.int64)
    gains = list(range(int(label.max()) + 1))
    return Form(rows, {"label": label, "group": sizes}, {"objective": "lambdarank", "label_gain": gains})


def _ndcg(rows: IntArray, weights: FloatArray, sizes: IntArray) -> Form:
    return Form(rows, {"label": weights, "group": sizes}, {"objective": "rank:ndcg", "ndcg_exp_gain": False})


_FORMS: dict[str, Callable[..., Form]] = {
    "lightgbm-softmax": _ours("lightgbm", softmax_ips),
    "lightgbm-pairwise": _ours("lightgbm", pairwise_ips),
    "lightgbm-lambdarank": _lambdarank,
    "lightgbm-poisson": _poisson,
    "lightgbm-naive": _ours("lightgbm", softmax_ips),
    "xgboost-softmax": _ours("xgboost", softmax_ips),
    "xgboost-pairwise": _ours("xgboost", pairwise_ips),
    "xgboost-ndcg": _ndcg,
    "xgboost-poisson": _poisson,
    "xgboost-naive": _ours("xgboost", softmax_ips),
}


def _table(given: Any) -> Any:
    """Return what columns can be taken from by their names."""
    if isinstance(given, Weights):
        if given.table is None:
            raise PosbiasError(f"The rows were written to {given.output!r}. Read that file, and give its rows.")
        return given.table
    if isinstance(given, str | os.PathLike):
        raise PosbiasError(f"Expected a table, not the name of one. Read {os.fspath(given)!r} first.")
    if not isinstance(given, Mapping) and not hasattr(given, "columns"):
        raise PosbiasError(f"Expected the table that `posbias.ips_weights` makes, not a {type(given).__name__}.")
    return given


def _column(table: Any, name: str) -> Any:
    names = _names(table)
    if name not in names:
        raise PosbiasError(
            f"The table has no column {name!r}. Columns found: {listed(map(str, names))}. Expected what "
            "`posbias.ips_weights` makes: a row for each (query, document). Where the log calls queries or "
            "documents otherwise, name their column (query, doc)."
        )
    return table[name]


def _names(table: Any) -> list[Any]:
    return list(getattr(table, "column_names", getattr(table, "columns", table)))


def _refuse_lengths(**columns: AnyArray) -> None:
    if len({len(values) for values in columns.values()}) > 1:
        found = ", ".join(f"{name} {len(values):,}" for name, values in columns.items())
        raise PosbiasError(
            f"The columns of the table are of different lengths: {found}. Expected a value of each a row."
        )


def _refuse_twins(table: Any, query: str, ids: IntArray, doc: str) -> None:
    """Refuse a table that has a document of a query several times: it would be compared with itself."""
    if doc not in _names(table) and doc == "doc_id":
        return
    docs = numbered(f"column {doc!r}", _column(table, doc))
    _refuse_lengths(**{query: ids, doc: docs})
    twins = len(ids) - len(group([ids, docs])[0])
    if twins:
        raise PosbiasError(
            f"{twins:,} of {len(ids):,} rows have a {query!r} and {doc!r} that an earlier row has. Expected a row for "
            "each (query, document), as `posbias.ips_weights` makes: add up those of one pair. Where the log calls "
            "documents otherwise, name their column (doc)."
        )


def _by_query(query: IntArray, shown: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the rows that were shown, those of a query next to each other, and how many each query has."""
    rows = np.flatnonzero(shown)
    rows = rows[np.argsort(query[rows], kind="stable")]
    sizes = np.bincount(query[rows])
    return rows, sizes[sizes > 0]


def pair_differences(
    features: Any, weights: Any, groups: Any, *, pairs: int = 10, seed: int = 0
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Return differences of features, their classes and `sample_weight` for `sklearn.svm.LinearSVC`.

    Each clicked row is compared with the others of its group, or with as many of them as `pairs` says, drawn with
    repetition: W_i (m − 1) / pairs each. Every second difference is turned round, so that there are two classes.
    Fit without an intercept: `LinearSVC(loss="hinge", fit_intercept=False).fit(x, y, sample_weight=w)`.

    Example:
        >>> x, y, w = pair_differences([[1.0], [3.0], [4.0]], [0.0, 2.0, 0.0], [3])
        >>> x.tolist(), y.tolist(), w.tolist()
        ([[2.0], [1.0]], [1, -1], [2.0, 2.0])

    Reference: Joachims, Swaminathan and Schnabel, WSDM 2017, section 5.
    """
    whole("pairs", pairs, 1)
    whole("seed", seed, 0)
    x = as_numbers("features", features, "a table of numbers, and no sparse one")
    w, sizes = grouped_weights(weights, groups)
    if x.ndim != 2 or len(x) != len(w):
        raise PosbiasError(
            f"There are features of the shape {x.shape} and {len(w):,} weights. Expected a row of numbers for each."
        )
    odd = int((~np.isfinite(x)).any(axis=1).sum())
    if odd:
        raise PosbiasError(
            f"{odd:,} of {len(x):,} rows of features have NaN, infinity or nothing, of which there is no difference. "
            "Give each a number, or leave the rows out."
        )
    clicked = np.flatnonzero((w > 0) & (np.repeat(sizes, sizes) > 1))
    if not len(clicked):
        raise PosbiasError(
            f"There is no pair to learn from: {int((w > 0).sum()):,} of {len(w):,} rows were clicked, and none of "
            "these stands beside another row of its group."
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
    """Return a, b and c of the ranker a · naive + b · IPS + c · Poisson: a blend that trusts few clicks less.

    This is the rule to use first. The naive ranker learned from clicks as they are, as `learner_form` has it by the
    names "lightgbm-naive" and "xgboost-naive". It is biased, and moved by chance the least. Its share is
    100 / (100 + n), where n are the effective clicks: what chance does to the others falls with n, and what bias does
    to it stays. The rest is that of `blend_factors`.

    Arguments are those of `blend_factors`, with the scores of the naive ranker before them.

    Example:
        >>> scores, query = [1.0, -1.0], ["q", "q"]
        >>> [round(factor, 3) for factor in cautious_factors(scores, scores, scores, query, effective_clicks=100)]
        [0.5, 0.045, 0.455]
    """
    group = numbered("query", query)
    share = naive_share(effective_clicks)
    b, c = blend_factors(ips, poisson, query, effective_clicks)
    return share / _spread("naive", naive, group), (1 - share) * b, (1 - share) * c


def naive_share(effective_clicks: float) -> float:
    """Return the share that no correction has of a cautious blend.

    >>> [round(naive_share(n), 2) for n in (100, 400, 20_000)]
    [0.5, 0.2, 0.0]
    """
    _refuse_clicks(effective_clicks)
    return float(_FEW / (_FEW + effective_clicks))


def _refuse_clicks(effective_clicks: Any) -> None:
    if not (number(effective_clicks) or 0) > 0:
        raise PosbiasError(
            f"effective_clicks must be a number above 0, found {effective_clicks!r}. `ips_weights` tells it."
        )


def blend_factors(ips: Any, poisson: Any, query: Any, effective_clicks: float) -> tuple[float, float]:
    """Return a and b of the ranker a · IPS + b · Poisson.

    IPS is unbiased and wants many clicks; exposure Poisson is steady where they are few, and has to explain what
    queries differ in as well. Their errors differ, so that both together are better than either nearly everywhere.
    Each is divided by its spread within queries. IPS then has the share √n / (√n + 100), where n are the effective
    clicks of the log.

    Arguments:
        ips, poisson: scores of the same documents by both rankers: of some hundred queries, learned from or not.
        query: of each of these documents.
        effective_clicks: as `ips_weights` tells them.

    Example:
        >>> a, b = blend_factors([1.0, 3.0], [0.2, 0.0], ["q", "q"], effective_clicks=10_000)
        >>> round(a, 3), round(b, 3)
        (0.5, 5.0)
    """
    group = numbered("query", query)
    share = ips_share(effective_clicks)
    return share / _spread("ips", ips, group), (1 - share) / _spread("poisson", poisson, group)


def ips_share(effective_clicks: float) -> float:
    """Return the share that IPS has of a blend.

    >>> [round(ips_share(n), 2) for n in (400, 10_000, 250_000)]
    [0.17, 0.5, 0.83]
    """
    _refuse_clicks(effective_clicks)
    return float(np.sqrt(effective_clicks) / (np.sqrt(effective_clicks) + np.sqrt(_HALFWAY)))


def _spread(name: str, scores: Any, group: Any) -> float:
    """Return the root mean square of scores about the mean of their query."""
    s = as_numbers(name, scores).reshape(-1)
    if len(s) != len(group) or not np.isfinite(s).all():
        raise PosbiasError(
            f"{name} has {len(s):,} scores, {int((~np.isfinite(s)).sum()):,} of them no numbers, for {len(group):,} "
            "documents. Expected a number for each."
        )
    if not len(s):
        raise PosbiasError("There is no document to tell the spread of scores by.")
    means = np.bincount(group, s) / np.bincount(group)
    spread = float(np.sqrt(((s - means[group]) ** 2).mean()))
    # A ranker that scores all documents alike has no order to bring in.
    return spread if spread > 0 else 1.0


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
    """Choose between rules of learning by cross-validation: whole queries are held out, and each is scored once.

    What is compared is Σ W λ(rank) / ΣW over the documents that were shown, with λ = 1 / log2(1 + rank) down to
    `depth`. Raw clicks would prefer the ranker that learned their bias.

    Arguments:
        rules: by name, functions that take the rows to learn from and the rows to score, and return the scores of
            these. Of rules that do equally well the first is chosen.
        query, weight, impressions: the columns of what `ips_weights` made.
        folds: as many parts queries are split into.
        depth: ranks that count.
        seed: of the split, and of the order of documents with the same score.

    Example:
        >>> query, weight, shown = [1, 1, 2, 2], [0, 2, 0, 1], [5, 5, 5, 5]
        >>> good, bad = np.array([0, 1, 0, 1]), np.array([1, 0, 1, 0])
        >>> rules = {"bad": lambda learn, score: bad[score], "good": lambda learn, score: good[score]}
        >>> print(choose_rule(rules, query, weight, shown, folds=2))
        good (bad 0.6309, good 1.0000)
    """
    whole("folds", folds, 2)
    whole("depth", depth, 1)
    whole("seed", seed, 0)
    if not isinstance(rules, Mapping) or not rules or not all(map(callable, rules.values())):
        raise PosbiasError(f"There is no rule to choose from. Give a mapping of names to functions, not {rules!r}.")
    group = numbered("query", query)
    w, shown = row_numbers("weight", weight), row_numbers("impressions", impressions) > 0
    if not len(group) == len(w) == len(shown):
        raise PosbiasError(
            f"There are {len(group):,} queries, {len(w):,} weights and {len(shown):,} impressions. Expected one a row."
        )
    queries = int(group.max(initial=-1)) + 1
    if queries < folds:
        raise PosbiasError(f"There are {queries:,} queries for {folds:,} folds. Give more queries, or fewer folds.")
    fold = np.random.default_rng(seed).permutation(queries) % folds
    scores = {name: np.zeros(len(w)) for name in rules}
    for part in range(folds):
        held = fold[group] == part
        learn, score = np.flatnonzero(~held), np.flatnonzero(held)
        for name, fit in rules.items():
            scores[name][score] = _scores(f"The rule {name!r} returned", fit(learn, score), len(score))
    rows = np.flatnonzero(shown)
    values = {
        name: held_out_dcg(given[rows], w[rows], group[rows], depth=depth, seed=seed) for name, given in scores.items()
    }
    return Choice(max(values, key=lambda name: values[name]), values)


@dataclass(frozen=True)
class Choice:
    """The rule that ranks held-out queries best, and the value of each rule over all of them."""

    name: str
    values: Mapping[str, float]

    def __str__(self) -> str:
        told = ", ".join(f"{name} {value:.4f}" for name, value in self.values.items())
        return f"{self.name} ({told})"


def _scores(who: str, scores: Any, rows: int) -> FloatArray:
    found = as_numbers("scores", scores).reshape(-1)
    if len(found) != rows or not np.isfinite(found).all():
        odd = int((~np.isfinite(found)).sum())
        raise PosbiasError(
            f"{who} {len(found):,} scores, {odd:,} of them no numbers, for {rows:,} rows. Expected a number for each "
            "row to score."
        )
    return found


def held_out_dcg(scores: Any, weight: Any, query: Any, *, depth: int = 10, seed: int = 0) -> float:
    """Return Σ W λ(rank) / ΣW, where documents of a query are ranked by their scores.

    Documents with the same score are put in an order that is drawn.

    >>> held_out_dcg([3.0, 2.0, 1.0], [1.0, 0.0, 1.0], [7, 7, 7])
    0.75
    """
    whole("depth", depth, 1)
    whole("seed", seed, 0)
    w = row_numbers("weight", weight)
    group = numbered("query", query)
    s = _scores("There are", scores, len(w))
    if len(group) != len(w):
        raise PosbiasError(f"There are {len(group):,} queries and {len(w):,} weights. Expected one of each a row.")
    if not w.sum() > 0:
        raise PosbiasError("No row was clicked: nothing can be told from its rank.")
    # By query, then by score, then as it is drawn.
    order = np.lexsort((np.random.default_rng(seed).random(len(s)), -s, group))
    sizes = np.bincount(group)
    rank = np.arange(len(s)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
    gain = np.where(rank <= depth, 1 / np.log2(1 + rank), 0.0)
    return float((w[order] * gain).sum() / w.sum())
