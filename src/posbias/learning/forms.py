"""Weights in each learner's own form: which rows, their labels, weights and groups, and the parameters to learn with.

>>> import posbias
>>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=300, max_rank=5)))
>>> made = posbias.ips_weights(log, posbias.harvest(log, max_rank=5))
>>> form = learner_form("lightgbm-lambdarank", made.table)
>>> sorted(form.data), bool(form.data["group"].sum() == len(form.rows)), form.parameters["objective"]
(['group', 'label'], True, 'lambdarank')
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from posbias.arguments import one_of, whole
from posbias.arrays import AnyArray, BoolArray, FloatArray, IntArray, group
from posbias.errors import PosbiasError
from posbias.learning.boosting import lightgbm_objective, xgboost_objective
from posbias.learning.columns import as_numbers, numbered
from posbias.learning.objectives import (
    grouped_weights,
    pairwise_ips,
    poisson_start,
    row_numbers,
    scaled_counts,
    scaled_weights,
    softmax_ips,
)
from posbias.learning.weight_tables import Weights
from posbias.wording import listed

# Steps of an integer label for the mean weight, and the most steps that a list of gains has.
_STEPS, _MOST_STEPS = 10, 30_000
# What LightGBM adds to the exponent of the Hessian, 0.7 by default, which underfits badly; it must be above 0.
_NO_DELTA = 1e-6


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


_WRONG = {
    "lambdarank_unbiased": "takes the order of rows for the position at which they were shown.",
    "lambdarank_position_bias_regularization": "belongs to LightGBM's own correction by position.",
    "ndcg_exp_gain": "would make a gain of 2^weight of a weight.",
}


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


def _names(table: Any) -> list[Any]:
    return list(getattr(table, "column_names", getattr(table, "columns", table)))


def _column(table: Any, name: str) -> Any:
    names = _names(table)
    if name not in names:
        raise PosbiasError(
            f"The table has no column {name!r}. Columns found: {listed(map(str, names))}. Expected what "
            "`posbias.ips_weights` makes: a row for each (query, document). Where the log calls queries or "
            "documents otherwise, name their column (query, doc)."
        )
    return table[name]


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


def _refuse_lengths(**columns: AnyArray) -> None:
    if len({len(values) for values in columns.values()}) > 1:
        found = ", ".join(f"{name} {len(values):,}" for name, values in columns.items())
        raise PosbiasError(
            f"The columns of the table are of different lengths: {found}. Expected a value of each a row."
        )


def _by_query(query: IntArray, shown: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the rows that were shown, those of a query next to each other, and how many each query has."""
    rows = np.flatnonzero(shown)
    rows = rows[np.argsort(query[rows], kind="stable")]
    sizes = np.bincount(query[rows])
    return rows, sizes[sizes > 0]
