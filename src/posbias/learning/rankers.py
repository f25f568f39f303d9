"""Fit one ranker to corrected clicks: trees of a size that clicks can bear, a cautious blend, and its student.

`fit_ranker` does in one call what `posbias.objectives` offers step by step:

1. Learn three rankers: naively, by IPS and by the Poisson likelihood. Blend them (`cautious_factors`).
2. Fit one model, the student, to the scores of the blend on all candidates, by least squares. It is one model to serve,
   and a student of few trees smooths what the three rankers memorised.
3. Choose by the likelihood of the clicks on held-out queries: the size of the trees and the trees of the student, the
   smallest within one standard error of the best; and whether page views that did not show a document count against it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from posbias._arrays import AnyArray, FloatArray, IntArray
from posbias._files import writable
from posbias._optional import optional
from posbias._text import Column, listed, table
from posbias._validate import boolean, integer, names, one_of
from posbias.errors import PosbiasError
from posbias.findings import Finding, serious, warn
from posbias.learning.learners import (
    as_table,
    cautious_factors,
    check_lengths,
    check_unique_pairs,
    column_names,
    column_of,
    held_out_dcg,
    learner_form,
)
from posbias.learning.objectives import as_column, as_numbers, dcg_of_groups, group_numbers, non_negative_numbers
from posbias.learning.weights import Beyond, Options, Weights, ids_and_outcomes, refuse_as_features, weigh
from posbias.logs.click_log import ClickLog
from posbias.logs.schema import Schema

RULES = ("naive", "softmax", "poisson")
_COUNTS = ("impressions", "clicks", "exposure", "weight")
# The exposure in page views that showed the document; with candidates, "exposure" counts all page views of its query.
_SHOWN = "exposure_shown"
# Which page views count for a document: all of its query, or those that showed it. Rankers that serve mostly leave out
# worse documents, so the first is assumed unless held-out clicks contradict it by more than so many standard errors.
Views = Literal["all", "shown"]
_CONTRADICTION = 1.5
# Sums of days may differ by this share from the sum of all.
_ROUNDING = 1e-6
# Findings that concern IPS alone, which is one part of the blend.
_ABOUT_IPS_ALONE = ("few-clicks-for-ips", "much-weight-capped")


class TreeSize(NamedTuple):
    """The size of boosted trees: leaves of a tree, rows of a leaf at least, and trees."""

    leaves: int
    rows: int
    trees: int


# From the smallest to the largest.
SIZES = tuple(TreeSize(leaves, rows, trees) for leaves, rows in ((4, 100), (6, 60), (15, 20)) for trees in (60, 150))
# LightGBM takes no more leaves; more rows and trees than this are mistakes.
_LARGEST_SIZE = TreeSize(131_072, 10**9, 10**5)
# The size of trees is chosen by the queries of about so many rows; more would hardly change the choice.
_ROWS_TO_CHOOSE_BY = 50_000
# A tree may use all of so few features.
_FEW_FEATURES = 25
# A student has so many times the trees of one of the three rankers.
_STUDENTS = (1, 4)
# Scores of standard deviation 1 are multiplied by this at most.
_LARGEST_FACTOR = 10.0


def fit_ranker(
    weights: Any,
    features: str | Sequence[str],
    *,
    curve: Any = None,
    candidates: Any = None,
    beyond: Beyond = "refuse",
    learner: str = "lightgbm",
    parameters: Mapping[str, Any] | None = None,
    query: str = "query_id",
    doc: str = "doc_id",
    folds: int = 3,
    sizes: Sequence[tuple[int, int, int]] = SIZES,
    explain: bool = False,
    seed: int = 0,
    force: bool = False,
) -> Ranker:
    """Fit one LightGBM or XGBoost model that ranks by corrected clicks.

    Arguments:
        weights (Weights, Arrow table, frame, mapping or ClickLog): the table of `posbias.ips_weights`, with columns of
            features (`keep`) and all candidates (`candidates`) if they are known. Or a log, with its `curve`.
        features (str or list of str): the columns to rank by.
        curve (Curve, estimator, Harvest, path or propensities, default None): the curve, if `weights` is a log.
        candidates (table or path, default None): all documents that could have been shown, if `weights` is a log; see
            `ips_weights`.
        beyond ("refuse", "clip" or "extrapolate", default "refuse"): what to do with ranks beyond the curve, if
            `weights` is a log; see `ips_weights`.
        learner ("lightgbm" or "xgboost", default "lightgbm"): the library that learns.
        parameters (dict, default none): parameters of that library, such as the learning rate and threads.
        query (str, default "query_id"): the column of the query in the table; a log knows its own.
        doc (str, default "doc_id"): the column of the document, to find repeated rows if the table has it.
        folds (int, default 3): the number of parts into which queries are split to choose the size of trees, and which
            page views count.
        sizes (list of TreeSize, default 6 sizes): what to choose from, small to large: leaves, rows of a leaf, trees.
        explain (bool, default False): measure what each step brings on held-out clicks, as `steps`.
        seed (int, default 0): seeds the folds and the learner.
        force (bool, default False): continue where the log is damaged.

    Returns:
        A `Ranker`, with the `model`. The same rows in another order give the same ranker.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200, max_rank=5)))
        >>> weights = posbias.ips_weights(log, posbias.harvest(log, max_rank=5), keep=["rank_a", "rank_b"])
        >>> ranker = fit_ranker(weights, ["rank_a", "rank_b"], sizes=[(4, 20, 10)], parameters={"num_threads": 1})
        >>> scores = ranker.predict(weights.table)
        >>> len(scores) == weights.rows
        True

    Reference: Joachims, Swaminathan and Schnabel, WSDM 2017, for the IPS weights.
    """
    one_of("learner", learner, _LEARNERS)
    integer("folds", folds, 2)
    integer("seed", seed, 0)
    boolean("explain", explain)
    named = names("features", features)
    if not named:
        raise PosbiasError("There is no feature to rank by. Name the columns of features (features).")
    chosen_sizes = _check_sizes(sizes)
    fit = _LEARNERS[learner](_LEARNERS[learner].named({} if parameters is None else parameters), seed)
    findings: tuple[Finding, ...] = getattr(weights, "findings", ())
    if isinstance(weights, ClickLog):
        weights = _weigh(weights, curve, candidates, beyond, named, force=force)
        (query, doc), findings = weights.columns[:2], weights.findings
    elif curve is not None or candidates is not None or beyond != "refuse" or force:
        raise PosbiasError(
            "curve, candidates, beyond and force go with a log. Give the log as posbias.ClickLog(...). If this is a "
            "table of weights, leave them out: they shaped it already."
        )
    refuse_as_features(named, [*_COUNTS, _SHOWN, query, doc])
    lesson = _make_lesson(as_table(weights), named, query, doc)
    queries = int(lesson.counts["query_id"].max(initial=-1)) + 1
    if queries < folds:
        raise PosbiasError(
            f"There are fewer queries ({queries:,}) than folds ({folds}). Give more queries, or fewer folds."
        )
    order = np.random.default_rng(seed).permutation(queries)[lesson.counts["query_id"]]
    some = _rows_to_choose_by(order, folds)
    held_out = _HeldOut(lesson.take(some), order[some] % folds, fit, explain=explain)
    for alike in _by_leaves(chosen_sizes):
        held_out.learn(alike)
    views, size, trees = held_out.choose()
    lesson = lesson.counting(views)
    rules = _fit_rules(lesson, [lesson.x], fit, [size])
    scores = [rules[rule][size][0] for rule in RULES]
    factors = dict(zip(RULES, _factors(scores, lesson), strict=True))
    model = fit.student(lesson.x, _add([*factors.values()], scores), size._replace(trees=trees))
    if not np.ptp(fit.scores(model, lesson.x, trees)) > 0:
        raise PosbiasError(
            f"The ranker gives all {len(lesson.x):,} rows the same score: no feature splits them into leaves of "
            f"{size.rows:,} rows or more that are clicked differently. Give more queries, features that say more, or "
            "smaller leaves, such as sizes=[(4, 5, 60)] for trees of 4 leaves, 5 rows or more in a leaf, and 60 trees."
        )
    steps = held_out.steps(views, size, trees) if explain else ()
    choices = held_out.values(views)
    chosen = views if len(lesson.kinds) > 1 else None
    return Ranker(model, learner, named, size, trees, factors, chosen, choices, steps, findings)


@dataclass(frozen=True)
class Ranker:
    """One model that ranks by corrected clicks.

    Made by `posbias.fit_ranker`.

    Attributes:
        model (lightgbm.Booster or xgboost.Booster): the student, to save and serve.
        learner (str): "lightgbm" or "xgboost".
        features (tuple of str): the columns to rank by, in this order.
        size (TreeSize): the chosen size of the trees of the three rankers.
        trees (int): the chosen number of trees of the student.
        factors (dict): what each of the three rankers counts in the blend that the student learned.
        views ("all", "shown" or None): the page views that count for a document: all of its query, where one that did
            not show it counts as one at the last rank without a click, or those that showed it. None if candidates are
            not known.
        choices (dict): the log-likelihood per click on held-out queries, above that of equally relevant documents, by
            size and trees of the student.
        steps (tuple of StepGain): what each step brings on held-out queries; empty without `explain`.
        findings (tuple of Finding): what was found in the log, the curve and the candidates, if they are known.
    """

    model: Any
    learner: str
    features: tuple[str, ...]
    size: TreeSize
    trees: int
    factors: Mapping[str, float]
    views: Views | None
    choices: Mapping[tuple[TreeSize, int], float]
    steps: tuple[StepGain, ...] = ()
    findings: tuple[Finding, ...] = field(default=(), repr=False)

    def predict(self, source: Any) -> FloatArray:
        """Return scores, the highest first, of a table with the columns of features, or of an array of them."""
        is_table = hasattr(source, "columns") or isinstance(source, Mapping)
        x = _features(source, self.features) if is_table else as_numbers("features", source, "a table of numbers")
        _check_finite("features", x)
        if x.ndim != 2 or x.shape[1] != len(self.features):
            raise PosbiasError(f"Expected {len(self.features)} features a row, found an array of the shape {x.shape}.")
        if self.learner == "lightgbm":
            return np.asarray(self.model.predict(x), dtype=np.float64)
        xgboost = optional("xgboost", "This ranker needs")
        return np.asarray(self.model.predict(xgboost.DMatrix(x)), dtype=np.float64)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file, in the format of its library."""
        writable(path)
        self.model.save_model(os.fspath(path))

    def to_text(self) -> str:
        """Return the size of trees, and what each step brings."""
        head = (
            f"{self.trees} trees of {self.size.leaves} leaves, {self.size.rows} rows or more in a leaf. They follow a "
            f"blend of rankers of {self.size.trees} trees: "
            + " + ".join(f"{factor:.3g} · {rule}" for rule, factor in self.factors.items())
        )
        if self.views is not None:
            which = {"all": "all page views of its query", "shown": "only page views that showed it"}[self.views]
            head += f"\nFor a document, {which} count."
        if not self.steps:
            return head
        columns = [
            Column("step", [step.name for step in self.steps], left=True),
            Column("IPS DCG", [f"{step.value:.4f}" for step in self.steps]),
            Column("gain", [f"{step.gain:+.4f}" for step in self.steps]),
            Column("standard error", [f"{step.error:.4f}" for step in self.steps]),
        ]
        return f"{head}\n{table(columns)}"

    def __str__(self) -> str:
        return self.to_text()


class FormRanker:
    """A ranker of one form, for the searches of scikit-learn, such as `GridSearchCV`.

    It takes the table of `posbias.ips_weights` as X, without y. Split it by query: `groups=table["query_id"]` with
    `GroupKFold`. Its score is the self-normalised IPS DCG of the documents shown (`held_out_dcg`).

    Arguments:
        form (str): the name of a form, see `learner_form`.
        features (str or list of str): the columns to rank by.
        trees (int, default 100): the number of trees.
        query (str, default "query_id"): the column of the query.
        doc (str, default "doc_id"): the column of the document.
        parameters: parameters of the learner, such as `num_leaves`. A search can vary each of them.

    Attributes:
        model_ (lightgbm.Booster, xgboost.Booster or HistGradientBoostingRegressor): the model that `fit` made.

    Example:
        >>> import posbias
        >>> from sklearn.model_selection import GridSearchCV, GroupKFold
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=60, max_rank=5)))
        >>> table = posbias.ips_weights(log, posbias.harvest(log), keep=["rank_a", "rank_b"]).to_pandas()
        >>> ranker = FormRanker("lightgbm-softmax", ["rank_a", "rank_b"], trees=10, num_threads=1, verbosity=-1)
        >>> search = GridSearchCV(ranker, {"num_leaves": [3, 7]}, cv=GroupKFold(3))
        >>> sorted(search.fit(table, groups=table["query_id"]).best_params_)
        ['num_leaves']
    """

    model_: Any

    def __init__(
        self,
        form: str,
        features: str | Sequence[str],
        *,
        trees: int = 100,
        query: str = "query_id",
        doc: str = "doc_id",
        **parameters: Any,
    ) -> None:
        self.form, self.features, self.trees, self.query, self.doc = form, features, trees, query, doc
        self.parameters = parameters

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments, as scikit-learn copies them."""
        own = {name: getattr(self, name) for name in ("form", "features", "trees", "query", "doc")}
        return own | self.parameters

    def set_params(self, **values: Any) -> FormRanker:
        """Change arguments; what is not an argument of this class is a parameter of the learner."""
        for name, value in values.items():
            if name in ("form", "features", "trees", "query", "doc"):
                setattr(self, name, value)
            else:
                self.parameters = self.parameters | {name: value}
        return self

    def fit(self, X: Any, y: None = None) -> FormRanker:
        """Learn from a table of weights."""
        features = names("features", self.features)
        refuse_as_features(features, [*_COUNTS, _SHOWN, self.query, self.doc])
        iterations = [name for name in self.parameters if name in _ITERATIONS]
        if iterations:
            raise PosbiasError(f"Give the number of trees as trees=..., not as {listed(iterations)}.")
        form = learner_form(self.form, X, query=self.query, doc=self.doc)
        x = _features(X, features)[form.rows]
        parameters, trees = form.with_parameters(**self.parameters), integer("trees", self.trees, 1)
        library = self.form.partition("-")[0]
        if library == "sklearn":
            ensemble = optional("sklearn.ensemble", "This learner needs")
            learner = ensemble.HistGradientBoostingRegressor(max_iter=trees, **parameters)
            self.model_ = learner.fit(x, **form.data)
        elif library == "lightgbm":
            lightgbm = optional("lightgbm", "This learner needs")
            self.model_ = lightgbm.train(parameters, lightgbm.Dataset(x, **form.data), trees)
        else:
            xgboost = optional("xgboost", "This learner needs")
            self.model_ = xgboost.train(parameters, xgboost.DMatrix(x, **form.data), trees, obj=form.objective)
        return self

    def predict(self, X: Any) -> FloatArray:
        """Return scores of a table with the columns of features, the highest first."""
        if not hasattr(self, "model_"):
            raise PosbiasError("This ranker has learned nothing yet. Call `fit` first.")
        x = _features(X, names("features", self.features))
        library = self.form.partition("-")[0]
        if library == "xgboost":
            xgboost = optional("xgboost", "This learner needs")
            return np.asarray(self.model_.predict(xgboost.DMatrix(x), output_margin=True), dtype=np.float64)
        own = {"raw_score": True} if library == "lightgbm" else {}
        return np.asarray(self.model_.predict(x, **own), dtype=np.float64)

    def score(self, X: Any, y: None = None) -> float:
        """Return the self-normalised IPS DCG of a table of weights, of the documents shown."""
        source = as_table(X)
        shown = non_negative_numbers("impressions", column_of(source, "impressions")) > 0
        weight = non_negative_numbers("weight", column_of(source, "weight"))
        query = group_numbers(f"column {self.query!r}", column_of(source, self.query))
        return held_out_dcg(self.predict(X)[shown], weight[shown], query[shown])

    def __repr__(self) -> str:
        return f"FormRanker({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

    def __sklearn_tags__(self) -> Any:
        utils = optional("sklearn.utils", "A search needs")
        return utils.Tags(estimator_type=None, target_tags=utils.TargetTags(required=False))


class StepGain(NamedTuple):
    """A step on held-out queries: its IPS DCG, the gain over the naive ranker, and its standard error."""

    name: str
    value: float
    gain: float
    error: float


def _weigh(
    log: ClickLog, curve: Any, candidates: Any, beyond: Beyond, features: tuple[str, ...], *, force: bool
) -> Weights:
    """Return the weights of a log, and warn of what was found in it."""
    if curve is None:
        raise PosbiasError(
            "A log needs a curve: fit_ranker(log, features, curve=posbias.CrossFit().fit(posbias.harvest(log)))."
        )

    def check_features(schema: Schema) -> None:
        refuse_as_features(features, ids_and_outcomes(schema))

    options = Options(beyond=beyond, keep=features, check_features=check_features, exact_sums=True)
    made = weigh(log, curve, None, options, candidates=candidates, force=force)
    made = replace(made, findings=tuple(each for each in made.findings if each.code not in _ABOUT_IPS_ALONE))
    warn(str(finding) for finding in serious(made.findings))
    return made


def _rows_to_choose_by(order: IntArray, folds: int) -> IntArray:
    """Return the rows of the first queries in a random order: all, or enough to choose the size of trees by.

    Arguments:
        order: the place of the row's query.
        folds: at least so many queries are needed.
    """
    rows = np.cumsum(np.bincount(order))
    queries = max(folds, int(np.searchsorted(rows, _ROWS_TO_CHOOSE_BY, side="right")))
    return np.flatnonzero(order < queries)


def _check_sizes(sizes: Sequence[tuple[int, int, int]]) -> list[TreeSize]:
    made = []
    for size in sizes if isinstance(sizes, Sequence) and not isinstance(sizes, str) else [sizes]:
        if not isinstance(size, tuple | list) or len(size) != 3:
            raise PosbiasError(f"A size is the leaves of a tree, the rows of a leaf and the trees, not {size!r}.")
        made.append(
            TreeSize(
                *(
                    integer(name, value, low, high)
                    for name, value, low, high in zip(TreeSize._fields, size, (2, 1, 1), _LARGEST_SIZE, strict=True)
                )
            )
        )
    if not made:
        raise PosbiasError("There is no size of trees to choose from (sizes).")
    return made


def _by_leaves(sizes: Sequence[TreeSize]) -> list[list[TreeSize]]:
    """Return sizes in groups that differ only in the number of trees: one fit has all of a group."""
    groups: dict[tuple[int, int], list[TreeSize]] = {}
    for size in sizes:
        groups.setdefault(size[:2], []).append(size)
    return list(groups.values())


def _make_lesson(source: Any, features: Sequence[str], query: str, doc: str) -> _Lesson:
    """Return the counts and features of a table of weights, in an order that does not depend on that of its rows."""
    known = [*_COUNTS, _SHOWN] if _SHOWN in column_names(source) else _COUNTS
    counts = {name: non_negative_numbers(name, column_of(source, name)) for name in known}
    group = group_numbers(f"column {query!r}", column_of(source, query))
    x = _features(source, features)
    check_lengths(**{query: group, **counts, listed(features): x})
    check_unique_pairs(source, query, group, doc)
    _check_features(x)
    _check_counts(counts)
    group = _in_fixed_order(group, column_of(source, query))
    within: list[AnyArray] = [*counts.values(), *x.T]
    if doc in column_names(source):
        docs = column_of(source, doc)
        within = [_in_fixed_order(group_numbers(f"column {doc!r}", docs), docs)]
    # Folds depend on the order of queries, and trees on that of rows in their last digits.
    order = np.lexsort([*within, group])
    return _Lesson({"query_id": group[order], **{name: values[order] for name, values in counts.items()}}, x[order])


def _in_fixed_order(group: IntArray, ids: Any) -> IntArray:
    """Return the numbers of groups in an order of their ids that does not depend on the order of rows.

    >>> _in_fixed_order(np.array([0, 1, 0]), ["b", "a", "b"]).tolist()
    [1, 0, 1]
    """
    column = as_column("ids", ids)
    first = column[np.unique(group, return_index=True)[1]].tolist()
    place = np.empty(len(first), dtype=np.int64)
    # By their texts, because ids of several types have no order.
    place[sorted(range(len(first)), key=lambda i: str(first[i]))] = np.arange(len(first))
    return place[group]


def _check_counts(counts: Mapping[str, FloatArray]) -> None:
    """Reject counts that no log has, as in a table of days of which one column was not added up."""
    clicks, impressions, exposure = (counts[name] for name in ("clicks", "impressions", "exposure"))
    if not clicks.sum() > 0:
        raise PosbiasError("No row was clicked, so there is nothing to learn from.")
    impossible = [
        (clicks > impressions, "more clicks than impressions"),
        ((clicks > 0) != (counts["weight"] > 0), "clicks without weight, or weight without clicks"),
    ]
    if _SHOWN in counts:
        shown = counts[_SHOWN]
        impossible += [
            (shown > exposure * (1 + _ROUNDING), f"more {_SHOWN} than exposure"),
            ((shown > 0) & (impressions == 0), f"{_SHOWN} without impressions"),
            ((clicks > 0) & (shown == 0), f"clicks without {_SHOWN}"),
        ]
    for wrong, what in impossible:
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            example = ", ".join(f"{name} {values[row]:g}" for name, values in counts.items())
            raise PosbiasError(
                f"{int(wrong.sum()):,} of {len(wrong):,} rows have {what}, such as {example}. Expected a table made by "
                "`posbias.ips_weights`. If you added up tables, add all of these columns."
            )


def _features(source: Any, features: Sequence[str]) -> FloatArray:
    """Return the features as an array; a missing value is NaN, which trees can take."""
    source = as_table(source)
    found = column_names(source)
    missing = [name for name in features if name not in found]
    if missing:
        raise PosbiasError(f"The table has no column {listed(missing)}. Columns found: {listed(map(str, found))}.")
    columns = [as_numbers(f"feature {name!r}", source[name]) for name in features]
    check_lengths(**dict(zip(features, columns, strict=True)))
    for name, values in zip(features, columns, strict=True):
        _check_finite(f"feature {name!r}", values)
    return np.column_stack(columns)


def _check_finite(name: str, values: FloatArray) -> None:
    """Reject values that XGBoost cannot hold: infinity, and what 32 bits cannot hold. NaN is a missing value."""
    wrong = np.abs(values) > np.finfo(np.float32).max
    if wrong.any():
        raise PosbiasError(
            f"{int(wrong.sum()):,} of {wrong.size:,} values of {name} are too large, such as {values[wrong][0]:g}. "
            "Leave them empty, which counts as missing, or use a smaller unit."
        )


def _check_features(x: FloatArray) -> None:
    """Reject features of which none has two values."""
    if not len(x):
        raise PosbiasError("The table has no row, so there is nothing to learn from.")
    missing = np.isnan(x)
    if not ((x != x[:1]) & ~(missing & missing[:1])).any():
        raise PosbiasError("Every feature has one value in all rows, so there is nothing to rank by.")


# ---- Learning


class _Lesson(NamedTuple):
    """Counts and features of (query, document) pairs."""

    counts: Mapping[str, Any]
    x: FloatArray

    @property
    def kinds(self) -> tuple[Views, ...]:
        """Which page views may count for a document; without candidates, only those that showed it are known."""
        return ("all", "shown") if _SHOWN in self.counts else ("shown",)

    def counting(self, views: Views) -> _Lesson:
        """Return the lesson with the exposure of these page views."""
        shown = views == "shown" and _SHOWN in self.counts
        return self._replace(counts={**self.counts, "exposure": self.counts[_SHOWN]}) if shown else self

    @property
    def effective_clicks(self) -> float:
        """The effective sample size of the weighted clicks, (Σ w)² / Σ w², where a document's clicks weigh alike."""
        clicks, weight = (self.counts[name][self.counts["clicks"] > 0] for name in ("clicks", "weight"))
        return float(weight.sum() ** 2 / max((weight**2 / clicks).sum(), 1e-300))

    def take(self, rows: IntArray) -> _Lesson:
        """Return some rows."""
        return _Lesson({name: values[rows] for name, values in self.counts.items()}, self.x[rows])


def _factors(scores: Sequence[FloatArray], lesson: _Lesson) -> tuple[float, float, float]:
    naive, ips, poisson = scores
    return cautious_factors(naive, ips, poisson, lesson.counts["query_id"], lesson.effective_clicks)


def _add(factors: Sequence[float], scores: Sequence[FloatArray]) -> FloatArray:
    return np.asarray(sum(factor * each for factor, each in zip(factors, scores, strict=True)))


# Scores of several arrays of features, by rule and size.
_Scores = dict[str, dict[TreeSize, list[FloatArray]]]


def _fit_rules(
    lesson: _Lesson,
    scored: Sequence[FloatArray],
    fit: _Learner,
    sizes: Sequence[TreeSize],
    fitted: Mapping[str, dict[TreeSize, list[FloatArray]]] | None = None,
) -> _Scores:
    """Return the scores of several arrays of features by each rule and size; sizes differ only in trees."""
    found = dict(fitted or {})
    for rule in RULES:
        if rule not in found:
            model = fit.rule(rule, lesson, max(sizes))
            found[rule] = {size: [fit.scores(model, x, size.trees) for x in scored] for size in sizes}
    return found


# The page views that count, a step, the size of its trees, and the trees of the student.
_Key = tuple[Views, str, TreeSize, int]


class _HeldOut:
    """Scores of held-out queries: every fold is ranked by what was learned from the others."""

    def __init__(self, lesson: _Lesson, fold: IntArray, fit: _Learner, *, explain: bool) -> None:
        self._lesson, self._fold, self._fit, self._explain = lesson, fold, fit, explain
        self._scores: dict[_Key, FloatArray] = {}
        group = lesson.counts["query_id"]
        shown = np.flatnonzero(lesson.counts["impressions"] > 0)
        self._rows = shown[np.argsort(group[shown], kind="stable")]
        self._sizes = np.unique(group[self._rows], return_counts=True)[1]
        self._weight = lesson.counts["weight"][self._rows]

    def learn(self, sizes: Sequence[TreeSize]) -> None:
        """Learn with trees of some sizes, which differ only in the number of trees, and score what is held out."""
        for part in range(int(self._fold.max()) + 1):
            learned = self._lesson.take(np.flatnonzero(self._fold != part))
            rows = np.flatnonzero(self._fold == part)
            if not learned.counts["clicks"].sum() > 0:
                raise PosbiasError(
                    f"All clicks are in one of {int(self._fold.max()) + 1} folds of queries. Give more queries, or "
                    "other folds (folds, seed)."
                )
            rules: _Scores = {}
            for views in self._lesson.kinds:
                # Only the Poisson likelihood has the exposure.
                fitted = {rule: scores for rule, scores in rules.items() if rule != "poisson"}
                own = learned.counting(views)
                rules = _fit_rules(own, [own.x, self._lesson.x[rows]], self._fit, sizes, fitted)
                self._teach(views, own, rows, rules, sizes)

    def _teach(self, views: Views, learned: _Lesson, rows: IntArray, rules: _Scores, sizes: Sequence[TreeSize]) -> None:
        """Fit the students of a fold, and store their scores of the rows that are held out."""
        for size in sizes:
            own, scores = ([rules[rule][size][i] for rule in RULES] for i in (0, 1))
            factors = _factors(own, learned)
            student = self._fit.student(learned.x, _add(factors, own), size._replace(trees=max(_STUDENTS) * size.trees))
            for times in _STUDENTS:
                trees = times * size.trees
                self._store(
                    (views, "student", size, trees), rows, self._fit.scores(student, self._lesson.x[rows], trees)
                )
            if self._explain:
                self._store((views, "blend", size, 0), rows, _add(factors, scores))
                for rule, each in zip(RULES, scores, strict=True):
                    self._store((views, rule, size, 0), rows, each)

    def values(self, views: Views) -> dict[tuple[TreeSize, int], float]:
        """Return the log-likelihood per click of each student, above that of equally relevant documents."""
        total = self._lesson.counts["clicks"].sum()
        return {choice: float(by_query.sum() / total) for choice, by_query in self._likelihoods[views].items()}

    def choose(self) -> tuple[Views, TreeSize, int]:
        """Return which page views count, and the size of trees and of the student."""
        choices = {views: self._smallest_good(views) for views in self._lesson.kinds}
        if len(choices) > 1:
            exposure = self._lesson.counts[_SHOWN]
            every, shown = (
                self._likelihood((views, "student", *choice), exposure) for views, choice in choices.items()
            )
            if _standard_errors(shown - every) <= _CONTRADICTION:
                return ("all", *choices["all"])
        return ("shown", *choices["shown"])

    def _smallest_good(self, views: Views) -> tuple[TreeSize, int]:
        """Return the smallest trees and student within one standard error of the best.

        The best of many is partly the luckiest, and small trees are safer.
        """
        likelihoods = self._likelihoods[views]
        best = max(likelihoods, key=lambda choice: likelihoods[choice].sum())
        smallest_first = sorted(likelihoods, key=lambda choice: (choice[0][:2], choice[1], choice[0].trees))
        return next(
            choice for choice in smallest_first if _standard_errors(likelihoods[choice] - likelihoods[best]) >= -1
        )

    @cached_property
    def _likelihoods(self) -> dict[Views, dict[tuple[TreeSize, int], FloatArray]]:
        found: dict[Views, dict[tuple[TreeSize, int], FloatArray]] = {views: {} for views in self._lesson.kinds}
        for key in self._scores:
            views, step, size, trees = key
            if step == "student":
                exposure = self._lesson.counting(views).counts["exposure"]
                found[views][size, trees] = self._likelihood(key, exposure)
        return found

    def _likelihood(self, key: _Key, exposure: FloatArray) -> FloatArray:
        counts = self._lesson.counts
        return likelihood_of_clicks(self._scores[key], counts["clicks"], exposure, counts["query_id"])

    def _gain(self, key: _Key, base: _Key) -> tuple[float, float]:
        """Return the gain in IPS DCG over another step, and its standard error over queries."""
        total = self._weight.sum()
        weights = np.add.reduceat(self._weight, np.cumsum(self._sizes) - self._sizes)
        difference = self._dcg(key) - self._dcg(base)
        gain = float(difference.sum() / total)
        # The standard error of a ratio of sums over queries, to first order.
        return gain, float(np.sqrt(((difference - gain * weights) ** 2).sum()) / total)

    def _store(self, key: _Key, rows: IntArray, scores: FloatArray) -> None:
        self._scores.setdefault(key, np.zeros(len(self._fold)))[rows] = scores

    def _dcg(self, key: _Key) -> FloatArray:
        """Return Σ W λ(rank) of each query."""
        return dcg_of_groups(self._scores[key][self._rows], self._weight, self._sizes)

    def steps(self, views: Views, size: TreeSize, trees: int) -> tuple[StepGain, ...]:
        """Return what each step brings, compared with the naive ranker of the largest trees."""
        base: _Key = views, "naive", max(one for _, name, one, _ in self._scores if name == "naive"), 0
        titles: dict[str, _Key] = {
            "naive, largest trees": base,
            "naive, chosen trees": (views, "naive", size, 0),
            "IPS": (views, "softmax", size, 0),
            "Poisson": (views, "poisson", size, 0),
            "cautious blend": (views, "blend", size, 0),
            "student: the ranker": (views, "student", size, trees),
        }
        total, steps = self._weight.sum(), []
        for title, key in titles.items():
            steps.append(StepGain(title, float(self._dcg(key).sum() / total), *self._gain(key, base)))
        return tuple(steps)


def _standard_errors(differences: FloatArray) -> float:
    """Return the sum of differences between queries in standard errors of the sum."""
    error = float(differences.std() * np.sqrt(len(differences)))
    return float(differences.sum()) / error if error > 0 else 0.0


def likelihood_of_clicks(scores: FloatArray, clicks: FloatArray, exposure: FloatArray, query: IntArray) -> FloatArray:
    """Return the log-likelihood of the clicks of each query, above that of equally relevant documents.

    Given that a query has a click, it is on document d with probability E_d e^{b s_d} / Σ E e^{b s}. Scores have no
    unit, so b is the factor that fits all queries best. Unlike IPS, this weighs no click by an inverse propensity: it
    has much less noise.

    >>> scores, clicks, exposure = np.array([1.0, 0.0]), np.array([3.0, 1.0]), np.array([2.0, 2.0])
    >>> likelihood_of_clicks(scores, clicks, exposure, np.array([0, 0])).round(3).tolist()
    [0.523]
    """
    from scipy.optimize import minimize_scalar

    s = scores - scores.mean()
    s = s / (s.std() or 1.0)

    def at(b: float) -> FloatArray:
        total = np.bincount(query, exposure * np.exp(b * s))
        log_share = b * s - np.log(np.maximum(total, 1e-300))[query]
        return np.asarray(np.bincount(query, clicks * log_share), dtype=np.float64)

    best = minimize_scalar(lambda b: -at(b).sum(), bounds=(0.0, _LARGEST_FACTOR), method="bounded").x
    return at(best) - at(0.0)


# ---- Libraries


@dataclass(frozen=True)
class _Learner(ABC):
    """Boosted trees of one library: `parameters` are the user's own."""

    # What messages call the library, the parameters that a `TreeSize` sets, and other names of those that have a
    # default here.
    library: ClassVar[str]
    by_size: ClassVar[frozenset[str]]
    aliases: ClassVar[Mapping[str, str]]
    # Parameters that change what is fitted, and their values that do not.
    only: ClassVar[Mapping[str, tuple[Any, ...]]]
    parameters: Mapping[str, Any]
    seed: int

    @classmethod
    def named(cls, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return parameters by their main names; reject those that fit_ranker sets, and other kinds of models."""
        if not isinstance(parameters, Mapping) or not all(isinstance(name, str) for name in parameters):
            raise PosbiasError(f"parameters must be a dict of names and values, not {parameters!r}.")
        wrong = [name for name in parameters if name in cls.by_size]
        if wrong:
            raise PosbiasError(
                f"fit_ranker chooses {listed(wrong)} itself. Leave it out of the parameters, and say what to choose "
                "from, such as sizes=[(4, 100, 60)] for trees of 4 leaves, 100 rows or more in a leaf, and 60 trees."
            )
        for name, value in parameters.items():
            if name in cls.only and value not in cls.only[name]:
                raise PosbiasError(
                    f"fit_ranker fits boosted trees of one score, all of them: it cannot take {name}={value!r}. Leave "
                    "it out of the parameters."
                )
        return {cls.aliases.get(name, name): value for name, value in parameters.items()}

    def _reported(self, train: Callable[[], Any]) -> Any:
        """Train, and report an error of the library in our words: parameters and sizes are the user's."""
        try:
            return train()
        except PosbiasError:
            raise
        except Exception as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            given = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items()) or "none"
            raise PosbiasError(
                f"{self.library} cannot train. It says: {reason} Change what it cannot take: the parameters given "
                f"({given}), the sizes, or values of the table."
            ) from error

    @abstractmethod
    def rule(self, rule: str, lesson: _Lesson, size: TreeSize) -> Any:
        """Return a model that learned by a rule."""

    @abstractmethod
    def student(self, x: FloatArray, scores: FloatArray, size: TreeSize) -> Any:
        """Return a model fitted to scores by least squares."""

    @abstractmethod
    def scores(self, model: Any, x: FloatArray, trees: int) -> FloatArray:
        """Return the raw scores by the first trees of a model."""


def _share_of_features(features: int) -> float:
    """Return the share of features that a tree may use, and a split of those: half, but at least 25.

    Trees that see other features make other errors, which the sum of many trees evens out.
    """
    return min(1.0, max(0.5, _FEW_FEATURES / features))


# What LightGBM, XGBoost and scikit-learn call the number of trees, and LightGBM the size of leaves.
# fmt: off
_ITERATIONS = frozenset({
    "num_iterations", "num_iteration", "n_iter", "num_tree", "num_trees", "num_round", "num_rounds",
    "nrounds", "num_boost_round", "n_estimators", "max_iter",
})
_LIGHTGBM_LEAVES = frozenset({
    "num_leaves", "num_leaf", "max_leaves", "max_leaf", "max_leaf_nodes", "min_data_in_leaf",
    "min_data_per_leaf", "min_data", "min_child_samples", "min_samples_leaf", "min_sum_hessian_in_leaf",
    "min_sum_hessian_per_leaf", "min_sum_hessian", "min_hessian", "min_child_weight",
})
# fmt: on


class _LightGBM(_Learner):
    library = "LightGBM"
    by_size = _ITERATIONS | _LIGHTGBM_LEAVES
    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **dict.fromkeys(("boosting", "boosting_type", "boost"), ("gbdt", "gbrt")),
        **dict.fromkeys(("early_stopping_round", "early_stopping_rounds", "early_stopping", "n_iter_no_change"), (0,)),
        **dict.fromkeys(("num_class", "num_classes"), (1,)),
    }
    aliases: ClassVar[Mapping[str, str]] = {
        "shrinkage_rate": "learning_rate",
        "eta": "learning_rate",
        "reg_lambda": "lambda_l2",
        "lambda": "lambda_l2",
        "max_bins": "max_bin",
        "sub_feature": "feature_fraction",
        "colsample_bytree": "feature_fraction",
        "sub_feature_bynode": "feature_fraction_bynode",
        "colsample_bynode": "feature_fraction_bynode",
        "verbose": "verbosity",
        "random_seed": "seed",
        "random_state": "seed",
    }

    def _settings(self, size: TreeSize, features: int) -> dict[str, Any]:
        return {
            "learning_rate": 0.1,
            "lambda_l2": 1.0,
            "max_bin": 63,
            "feature_fraction": _share_of_features(features),
            "feature_fraction_bynode": _share_of_features(features),
            "verbosity": -1,
            # LightGBM asks for one of the two with `deterministic`; by columns is faster for few rows.
            "deterministic": True,
            "force_col_wise": not self.parameters.get("force_row_wise"),
            "seed": self.seed,
            **self.parameters,
            "num_leaves": size.leaves,
            "min_data_in_leaf": size.rows,
            # Losses differ in scale, so only rows bound a leaf.
            "min_sum_hessian_in_leaf": 1e-6,
            # Otherwise LightGBM stops if no feature can be split by so many rows.
            "feature_pre_filter": False,
        }

    def rule(self, rule: str, lesson: _Lesson, size: TreeSize) -> Any:
        lightgbm = optional("lightgbm", "This learner needs")
        form = learner_form(f"lightgbm-{rule}", lesson.counts)
        data = lightgbm.Dataset(lesson.x[form.rows], **form.data)
        settings = form.with_parameters(**self._settings(size, lesson.x.shape[1]))
        return self._reported(lambda: lightgbm.train(settings, data, size.trees))

    def student(self, x: FloatArray, scores: FloatArray, size: TreeSize) -> Any:
        lightgbm = optional("lightgbm", "This learner needs")
        settings = {**self._settings(size, x.shape[1]), "objective": "l2"}
        return self._reported(lambda: lightgbm.train(settings, lightgbm.Dataset(x, label=scores), size.trees))

    def scores(self, model: Any, x: FloatArray, trees: int) -> FloatArray:
        return np.asarray(model.predict(x, raw_score=True, num_iteration=trees), dtype=np.float64)


class _XGBoost(_Learner):
    library = "XGBoost"
    by_size = _ITERATIONS | {"grow_policy", "max_depth", "max_leaves", "min_child_weight"}
    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "booster": ("gbtree",),
        "early_stopping_rounds": (0, None),
        "num_class": (0, 1),
        "process_type": ("default",),
    }
    aliases: ClassVar[Mapping[str, str]] = {"learning_rate": "eta", "reg_lambda": "lambda", "random_state": "seed"}

    def _settings(self, size: TreeSize, features: int) -> dict[str, Any]:
        return {
            "eta": 0.1,
            "lambda": 1.0,
            "max_bin": 63,
            "colsample_bytree": _share_of_features(features),
            "colsample_bynode": _share_of_features(features),
            "tree_method": "hist",
            "seed": self.seed,
            **self.parameters,
            "grow_policy": "lossguide",
            "max_depth": 0,
            "max_leaves": size.leaves,
        }

    def rule(self, rule: str, lesson: _Lesson, size: TreeSize) -> Any:
        xgboost = optional("xgboost", "This learner needs")
        form = learner_form(f"xgboost-{rule}", lesson.counts)
        # A leaf is bounded by its Hessian: rows times their mean Hessian, about that of a row without other clicks.
        settings = form.with_parameters(
            **self._settings(size, lesson.x.shape[1]), min_child_weight=size.rows * _mean_hessian(form)
        )
        x = lesson.x[form.rows]
        return self._reported(
            lambda: xgboost.train(settings, xgboost.DMatrix(x, **form.data), size.trees, obj=form.objective)
        )

    def student(self, x: FloatArray, scores: FloatArray, size: TreeSize) -> Any:
        xgboost = optional("xgboost", "This learner needs")
        settings = {**self._settings(size, x.shape[1]), "objective": "reg:squarederror", "min_child_weight": size.rows}
        return self._reported(lambda: xgboost.train(settings, xgboost.DMatrix(x, label=scores), size.trees))

    def scores(self, model: Any, x: FloatArray, trees: int) -> FloatArray:
        xgboost = optional("xgboost", "This learner needs")
        margin = model.predict(xgboost.DMatrix(x), output_margin=True, iteration_range=(0, trees))
        return np.asarray(margin, dtype=np.float64)


def _mean_hessian(form: Any) -> float:
    """Return the mean Hessian of a row before the first tree."""
    if form.objective is None:
        # Poisson: h = E e^s, which adds up to all clicks at the start.
        return float((form.data["label"] * form.data["weight"]).mean())
    sizes = form.data["group"]
    weights = np.add.reduceat(form.data["label"], np.cumsum(sizes) - sizes)
    # Softmax: h = T π (1 − π) with π = 1 / m for the m documents of a query.
    return float((weights * (1 - 1 / sizes)).sum() / sizes.sum())


_LEARNERS: dict[str, type[_Learner]] = {"lightgbm": _LightGBM, "xgboost": _XGBoost}
