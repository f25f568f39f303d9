"""Grade documents by the clicks of a log: relevance judgments for search tools and offline metrics.

`judgments` estimates how often users click a document when they examine it. A pair of query and document has C clicks
in N impressions, and the exposure E = Σ_k N_k p_k / p_1; so p = E / N is its mean propensity, and C / E an unbiased but
noisy click rate at rank 1. An empirical-Bayes prior reduces the noise (`shrunk_rates`):

    C ~ Binomial(N, p r),    p r ~ Beta(1/κ, (1 − a) / (κ a)),    a = p μ v_q

μ is a Poisson regression of clicks on log p and on p, because rankers show relevant documents higher, and on features
that the user names. If μ does not rise with p, it is fitted without p, and then without log p. v_q is how much more the
query is clicked than μ says, shrunk towards 1 by its credibility. κ is the squared coefficient of variation of
documents. All of it is estimated from the log, by moments. The interval is the Jeffreys interval of C of N, divided by
p: it uses no prior. A shrunk rate outside it moves to its nearest end.

References: Efron and Morris: Limiting the Risk of Bayes and Empirical Bayes Estimators, part II. JASA 1972. Bühlmann
and Straub: Glaubwürdigkeit für Schadensätze. 1970. Brown, Cai and DasGupta: Interval Estimation for a Binomial
Proportion. Statistical Science 2001.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO
from urllib.parse import quote

import numpy as np

from posbias._arrays import FloatArray, IntArray, one_blas_thread
from posbias._defaults import DEFAULT_GRADES, DEFAULT_LEVEL, DEFAULT_MIN_EXPOSURE, DefaultNumber
from posbias._files import atomic_write, writable
from posbias._text import as_python, csv_field, escape_formula, listed
from posbias._validate import as_path, boolean, integer, names, number, sequence, share
from posbias.engines import EngineChoice
from posbias.engines.files import refuse_overwriting
from posbias.errors import LogError, PosbiasError, Spelling
from posbias.findings import Finding, serious, warn
from posbias.learning.objectives import as_numbers, group_numbers
from posbias.learning.weights import Beyond, Options, ids_and_outcomes, refuse_as_features, weigh
from posbias.logs.click_log import ClickLog
from posbias.logs.schema import Schema
from posbias.progress import Progress, silent

_LARGEST_GRADE = 100
# With fewer pairs for each grade, grades of equal size mean little.
_LEAST_PAIRS_PER_GRADE = 4
# Findings that are about learning from the column `weight`, which judgments do not use.
_ABOUT_WEIGHTS = ("few-clicks-for-ips", "much-weight-capped")
# Before the log says more: the squared coefficients of variation of documents and of queries, as if from so many pairs
# of clicks. With one page view for each query, clicks say nothing about the first.
_PRIOR_DOCUMENTS, _PRIOR_QUERIES, _PRIOR_PAIRS = 1.0, 0.25, 10.0
# Documents are never taken as more alike or more different than this.
_LEAST_VARIATION, _MOST_VARIATION = 0.25, 10.0
# The largest prior click probability, and the largest log rate of the regression relative to the mean.
_LARGEST_PRIOR, _LARGEST_LOG_RATE = 0.98, 5.0
_RIDGE, _STEPS, _TOLERANCE = 1.0, 50, 1e-8
# p in addition to log p describes rankers that are good at the top only. With few clicks it would describe the errors
# of the curve, so it counts as if so many clicks said that it does not matter.
_RIDGE_OF_P = 300.0


def judgments(
    log: ClickLog,
    estimate: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    features: str | Sequence[str] = (),
    grades: int | None = DEFAULT_GRADES,
    thresholds: Sequence[float] | None = None,
    min_exposure: float = DEFAULT_MIN_EXPOSURE,
    level: float = DEFAULT_LEVEL,
    beyond: Beyond = "refuse",
    overwrite: bool = False,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    force: bool = False,
) -> Judgments:
    """Grade the documents of each query by their clicks, corrected for position bias.

    The table has one row for each (query, document) with enough exposure, the most frequent queries first: `rating`,
    `relevance` (the click rate at rank 1, shrunk by an empirical-Bayes prior), the interval `low` to `high`,
    `impressions`, `clicks` and `exposure`.

    Arguments:
        log (ClickLog): the click log.
        estimate (Curve, estimator, Harvest or path): the propensities, as in `posbias.ips_weights`.
        output (path, default None): the file to write. Its ending is the format: .csv for Quepid and for OpenSearch's
            Search Relevance Workbench, .json for the API of the latter, .qrels for TREC tools, .tsv as in MS MARCO, and
            .parquet for all columns. Without it the table is kept in memory only.
        features (str or list of str, default none): columns of numbers that say something about a document without
            depending on the rank at which it was shown, such as a text score. They improve the prior. Ids and outcomes
            of the log, and the columns of ranks, are refused.
        grades (int or None, default 3): the highest grade: 3 gives grades 0 to 3, and 1 gives 0 and 1. None gives the
            relevance itself, from 0 to 1, as rating.
        thresholds (list of float, default None): the lowest relevance of grade 1, of grade 2 and so on; their number is
            the highest grade, so leave out `grades`. By default all grades have equally many pairs.
        min_exposure (float, default 5): the exposure that a pair needs, in views at rank 1.
        level (float, default 0.95): the coverage of the intervals.
        beyond ("refuse", "clip" or "extrapolate", default "refuse"): what to do with ranks beyond the curve, as in
            `posbias.ips_weights`.
        overwrite (bool, default False): replace an existing file.
        engine (str or DuckDB, default "duckdb"): "duckdb", or `posbias.DuckDB(...)` with its settings.
        progress (callable, default none): called with the present step and the share that is done.
        force (bool, default False): continue where the log is damaged.

    Returns:
        `Judgments`, with the table, the thresholds used and findings.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=300, max_rank=5)))
        >>> judged = posbias.judgments(log, posbias.harvest(log, max_rank=5))
        >>> judged.table.column_names[:6]
        ['query_id', 'doc_id', 'rating', 'relevance', 'low', 'high']
        >>> judged.rows + judged.left_out == judged.pairs, sorted(set(judged.table["rating"].to_pylist()))
        (True, [0, 1, 2, 3])
    """
    features = names("features", features, LogError)
    cuts = _check_grades(grades, thresholds)
    if not (number(min_exposure) or 0) > 0:
        raise PosbiasError(f"min_exposure must be a number above 0, in views at rank 1, not {min_exposure!r}.")
    share("level", level)
    path = None if output is None else _check_output(output, [*getattr(log, "sources", []), estimate], overwrite)
    if path is not None and grades is None and cuts is None and Path(path).suffix in _WHOLE_GRADES:
        raise PosbiasError(f"Files that end with {Path(path).suffix} hold whole grades. Give the highest one (grades).")
    # Otherwise a pair near a threshold might have another grade the next time.
    options = Options(beyond=beyond, keep=features, check_features=partial(_check_features, features), exact_sums=True)
    weights = weigh(log, estimate, None, options, engine=engine, progress=progress, force=force)
    query, doc = weights.columns[:2]
    # Rows of the weights are in no particular order.
    counted = weights.table.sort_by([(query, "ascending"), (doc, "ascending")])
    pairs = _Pairs.of(counted, query, features)
    rate, low, high = shrunk_rates(pairs, level)
    chosen = np.flatnonzero(pairs.exposure >= min_exposure)
    if not len(chosen):
        raise LogError(
            f"None of the {len(rate):,} (query, document) pairs has an exposure of {min_exposure:g} views at rank 1; "
            f"the largest is {pairs.exposure.max():.3g}. Collect more page views for each query, or judge pairs of "
            "less exposure (min_exposure)."
        )
    # The queries with the most results shown first, and the best document of a query first.
    shown = np.bincount(pairs.query, pairs.impressions)[pairs.query]
    chosen = chosen[np.lexsort((-rate[chosen], pairs.query[chosen], -shown[chosen]))]
    findings = [finding for finding in weights.findings if finding.code not in _ABOUT_WEIGHTS]
    if cuts is None and grades is not None:
        findings += find_few_pairs(len(chosen), grades + 1)
        cuts = np.quantile(rate[chosen], np.arange(1, grades + 1) / (grades + 1)).tolist()
    rating = rate[chosen] if cuts is None else np.searchsorted(cuts, rate[chosen], side="right")
    values = {"rating": rating, "relevance": rate[chosen], "low": low[chosen], "high": high[chosen]}
    table = _make_table(counted.take(chosen), [query, doc], values)
    escaped = 0
    if path is not None:
        with atomic_write(path) as draft:
            escaped = _write(table, draft, path)
    warn(str(finding) for finding in serious(findings))
    return Judgments(
        rows=len(chosen),
        pairs=len(rate),
        queries=len(np.unique(pairs.query[chosen])),
        all_queries=len(np.unique(pairs.query)),
        page_views=weights.page_views,
        clicks=weights.clicks,
        min_exposure=float(min_exposure),
        level=level,
        thresholds=None if cuts is None else tuple(cuts),
        escaped=escaped,
        columns=tuple(table.column_names),
        findings=tuple(findings),
        output=None if output is None else os.fspath(output),
        table=table,
    )


@dataclass(frozen=True)
class Judgments:
    """Graded (query, document) pairs.

    Made by `posbias.judgments`.

    Attributes:
        rows (int): pairs that were judged.
        pairs (int): all pairs that were shown.
        queries, all_queries (int): queries with a judged pair, and all queries of the log.
        page_views, clicks (int): page views and clicks of the log.
        min_exposure (float): the exposure that a judged pair has at least.
        level (float): the coverage of the intervals.
        thresholds (tuple of float or None): the lowest relevance of each grade from 1; None without grades.
        escaped (int): ids that were changed in the file, because the format cannot hold them as they are.
        columns (tuple of str): columns of the table.
        findings (tuple of Finding): what was found in the log and the curve.
        output (str or None): the file that was written.
        table (pyarrow.Table): the judged pairs.
    """

    rows: int
    pairs: int
    queries: int
    all_queries: int
    page_views: int
    clicks: int
    min_exposure: float
    level: float
    thresholds: tuple[float, ...] | None
    escaped: int
    columns: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    output: str | None = None
    table: Any = field(default=None, repr=False, compare=False)

    @property
    def left_out(self) -> int:
        """Pairs with too little exposure to be judged."""
        return self.pairs - self.rows

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return everything but the table, as `--json` prints it."""
        values = {name: value for name, value in vars(self).items() if name not in ("findings", "table")}
        return values | {
            "left_out": self.left_out,
            "columns": list(self.columns),
            "thresholds": None if self.thresholds is None else list(self.thresholds),
            "findings": [finding.to_dict(spell) for finding in self.findings],
        }

    def to_text(self) -> str:
        """Return a summary in a few sentences."""
        cuts = (
            ""
            if self.thresholds is None
            else f" Grades start at a relevance of {', '.join(f'{cut:.3g}' for cut in self.thresholds)}."
        )
        escaped = {
            0: "",
            1: " 1 id was escaped, because the file cannot hold it as it is.",
        }.get(self.escaped, f" {self.escaped:,} ids were escaped, because the file cannot hold them as they are.")
        left_out = (
            f" The other {self.left_out:,} have an exposure below {self.min_exposure:g} views at rank 1."
            if self.left_out
            else ""
        )
        return (
            f"{self.rows:,} of {self.pairs:,} (query, document) pairs judged, in {self.queries:,} of "
            f"{self.all_queries:,} queries, from {self.clicks:,} click{'s' * (self.clicks != 1)} in "
            f"{self.page_views:,} page view{'s' * (self.page_views != 1)}.{left_out}{cuts}{escaped}"
        )

    def to_pandas(self) -> Any:
        """Return the table as a pandas frame."""
        return self.table.to_pandas()

    def __str__(self) -> str:
        return self.to_text()


def _check_grades(grades: int | None, thresholds: Sequence[float] | None) -> list[float] | None:
    """Return the thresholds as rising numbers; None if there are none."""
    if grades is not None and integer("grades", grades, 1) > _LARGEST_GRADE:
        raise PosbiasError(f"grades must be at most {_LARGEST_GRADE}, not {grades:,}.")
    if thresholds is None or (isinstance(thresholds, tuple | list) and not thresholds):
        return None
    cuts = [number(value) for value in sequence(thresholds) or [None]]
    rising = [cut for cut in cuts if cut is not None and 0 < cut <= 1]
    if len(rising) < len(cuts) or sorted(set(rising)) != rising:
        raise PosbiasError(
            f"thresholds must be rising numbers above 0 and at most 1, the lowest relevance of grade 1, of grade 2 and "
            f"so on, not {thresholds!r}."
        )
    if grades != len(rising) and not isinstance(grades, DefaultNumber):
        given = "the relevance itself was asked for" if grades is None else f"the highest grade was given as {grades}"
        raise PosbiasError(
            f"The number of thresholds is the highest grade, here {len(rising)}, but {given}. Leave one of the two out "
            "(grades or thresholds)."
        )
    return rising


def _check_features(features: Sequence[str], schema: Schema) -> None:
    """Reject features that depend on the rank at which a document was shown."""
    refuse_as_features(features, ids_and_outcomes(schema))
    ranks = [name for name in features if name in schema.rank_columns.values()]
    if ranks:
        raise LogError(
            f"Ranks cannot be features, found {listed(ranks)}: the prior already uses the ranks at which a document "
            "was shown. Leave them out (features)."
        )


def _check_output(output: str | os.PathLike[str], sources: Sequence[Any], overwrite: bool) -> str:
    """Return the path to write to; reject an unknown ending, and a file that exists."""
    path = as_path("output", output)
    writable(path)
    refuse_overwriting(path, sources)
    if Path(path).suffix not in _FORMATS:
        raise PosbiasError(
            f"The ending of {path!r} is not that of a format of judgments. Expected one of {listed(_FORMATS)}."
        )
    if os.path.lexists(path) and not boolean("overwrite", overwrite):
        raise PosbiasError(f"{path!r} exists already. Name another file, or replace it.", {"overwrite": True})
    return path


def find_few_pairs(pairs: int, grades: int) -> list[Finding]:
    """Find too few pairs to divide into grades of equal size: the best of them would have the top grade in any case."""
    if pairs >= _LEAST_PAIRS_PER_GRADE * grades:
        return []
    return [
        Finding(
            "few-judged-pairs",
            "warning",
            "Too few pairs are judged ({count}) to divide them into {grades} grades of equal size: the best have the "
            "top grade, however seldom they were clicked",
            pairs,
            evidence={"grades": grades},
            remedy="Say at which relevance each grade begins (thresholds), or judge pairs of less exposure "
            "(min_exposure).",
        )
    ]


# ---- Relevance


class _Pairs(NamedTuple):
    """The columns of (query, document) pairs as arrays; queries are numbered from 0."""

    query: IntArray
    impressions: FloatArray
    clicks: FloatArray
    exposure: FloatArray
    features: FloatArray

    @classmethod
    def of(cls, table: Any, query: str, features: Sequence[str]) -> _Pairs:
        n, c, e = (as_numbers(name, table[name]) for name in ("impressions", "clicks", "exposure"))
        columns = [_standardised(name, table[name]) for name in features]
        x = np.column_stack(columns) if columns else np.zeros((table.num_rows, 0))
        return cls(group_numbers(f"column {query!r}", table[query]), n, c, e, x)


def _standardised(name: str, column: Any) -> FloatArray:
    """Return a feature with mean 0 and variance 1; a missing value has the mean."""
    values = as_numbers(f"feature {name!r}", column, "a column of numbers")
    known = np.isfinite(values)
    if not known.any():
        raise LogError(f"The feature {name!r} has no finite number. Leave it out.")
    centred = np.where(known, values - values[known].mean(), 0.0)
    spread = float(centred.std())
    return np.asarray(centred / spread if spread > 0 else centred)


@one_blas_thread()
def shrunk_rates(pairs: _Pairs, level: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the relevance of each pair and the ends of its interval.

    A pair without exposure, at ranks of propensity 0, has the mean of all pairs and the interval from 0 to 1.
    """
    from scipy.special import betaincinv

    n, c, e = pairs.impressions, pairs.clicks, pairs.exposure
    seen = np.flatnonzero(e > 0)
    n, c, e, query, x = n[seen], c[seen], e[seen], pairs.query[seen], pairs.features[seen]
    p = e / n
    # Rankers do not show relevant documents lower. Ranks that say so come from an error of the curve.
    for ranks in (np.column_stack([np.log(p), _shrunk(p, e)]), np.log(p)[:, None], np.zeros((len(p), 0))):
        mean, b = _expected_rates(c, e, np.column_stack([ranks, x]))
        by_rank = (ranks @ b[1 : ranks.shape[1] + 1])[np.argsort(p)]
        if (np.diff(by_rank) >= -_TOLERANCE).all():
            break
    queries, variation = _query_effects(query, n, c, e, mean)
    prior = np.clip(p * mean * queries[query], 1e-12, _LARGEST_PRIOR)
    # The posterior of p r is Beta(1/κ + C, (1 − a)/(κ a) + N − C).
    alpha, beta = 1 / variation + c, (1 - prior) / (variation * prior) + n - c
    tail = (1 - level) / 2
    # Without a click (or with nothing but clicks) the interval reaches 0 (or 1), as Brown, Cai and DasGupta advise.
    low = np.where(c > 0, betaincinv(c + 0.5, n - c + 0.5, tail), 0.0) / p
    high = np.where(c < n, betaincinv(c + 0.5, n - c + 0.5, 1 - tail), 1.0) / p
    low, high = np.minimum(low, 1.0), np.minimum(high, 1.0)
    rate = np.clip(alpha / (alpha + beta) / p, low, high)
    every = [np.full(len(pairs.query), value) for value in (float(c.sum() / e.sum()), 0.0, 1.0)]
    for whole, part in zip(every, (rate, low, high), strict=True):
        whole[seen] = part
    return every[0], every[1], every[2]


def _shrunk(p: FloatArray, e: FloatArray) -> FloatArray:
    """Return p with mean 0 and so small a variance that its ridge is `_RIDGE_OF_P`."""
    centred = p - np.average(p, weights=e)
    spread = float(np.sqrt(np.average(centred**2, weights=e)))
    return np.asarray(centred / max(spread, _TOLERANCE) * np.sqrt(_RIDGE / _RIDGE_OF_P))


def _expected_rates(c: FloatArray, e: FloatArray, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return e^{x b}, the click rates by Poisson regression of clicks with exposure, and b with the intercept first.

    Newton's method finds b.
    """
    x = np.column_stack([np.ones(len(c)), x])
    penalty = _RIDGE * np.r_[0.0, np.ones(x.shape[1] - 1)]
    start = float(np.log(c.sum() / e.sum()))
    b = np.r_[start, np.zeros(x.shape[1] - 1)]
    bounds = start - _LARGEST_LOG_RATE, start + _LARGEST_LOG_RATE
    for _ in range(_STEPS):
        expected = e * np.exp(np.clip(x @ b, *bounds))
        slope = x.T @ (c - expected) - penalty * b
        step = np.linalg.solve((x * expected[:, None]).T @ x + np.diag(penalty), slope)
        b = b + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < _TOLERANCE:
            break
    return np.asarray(np.exp(np.clip(x @ b, *bounds))), b


def _query_effects(
    query: IntArray, n: FloatArray, c: FloatArray, e: FloatArray, mean: FloatArray
) -> tuple[FloatArray, float]:
    """Return v_q of each query, and κ.

    Moments: two clicks on different documents of a query are (1 + τ) times as frequent as if queries did not differ,
    and two clicks on one document (1 + τ)(1 + κ) times as frequent as if documents did not differ either.
    """
    expected = e * mean
    total, squares = np.bincount(query, expected), np.bincount(query, expected**2)
    clicks, click_squares = np.bincount(query, c), np.bincount(query, c**2)
    tau = max(
        ((clicks**2 - click_squares).sum() + _PRIOR_PAIRS * (1 + _PRIOR_QUERIES))
        / ((total**2 - squares).sum() + _PRIOR_PAIRS)
        - 1,
        0.0,
    )
    # Of N impressions, N (N − 1) ordered pairs can both have a click.
    both = (n * (n - 1) * (expected / n) ** 2).sum() * (1 + tau)
    kappa = ((c * (c - 1)).sum() + _PRIOR_PAIRS * (1 + _PRIOR_DOCUMENTS)) / (both + _PRIOR_PAIRS) - 1
    kappa = float(np.clip(kappa, _LEAST_VARIATION, _MOST_VARIATION))
    # The credibility of a query (Bühlmann and Straub): the share of the variance of its clicks that is its own.
    own = tau * total**2
    share_ = np.divide(own, own + total + kappa * squares, out=np.zeros_like(total), where=total > 0)
    ratio = np.divide(clicks, total, out=np.ones_like(total), where=total > 0)
    return np.asarray(1 + share_ * (ratio - 1)), kappa


# ---- Files


def _make_table(taken: Any, ids: Sequence[str], values: dict[str, Any]) -> Any:
    """Return the table of judgments: ids, ratings and counts."""
    import pyarrow as pa

    counts = ("impressions", "clicks", "exposure")
    clashes = [name for name in ids if name in values]
    if clashes:
        raise LogError(
            f"The column {clashes[0]!r} has the name of a column of judgments. Rename it with a query (sql)."
        )
    return pa.table({**{name: taken[name] for name in ids}, **values, **{name: taken[name] for name in counts}})


def _write(table: Any, draft: str, path: str) -> int:
    """Write a table in the format of a file's ending; return how many ids were escaped."""
    suffix = Path(path).suffix
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        pq.write_table(table, draft)
        return 0
    rows = _Rows.of(table)
    with open(draft, "w", encoding="utf-8", newline="") as file:
        _FORMATS[suffix](rows, file, Path(path).stem)
    return rows.escaped_by(suffix)


class _Rows(NamedTuple):
    """The ids and ratings of judgments as texts."""

    query: list[str]
    doc: list[str]
    rating: list[str]
    numeric: tuple[bool, bool]

    @classmethod
    def of(cls, table: Any) -> _Rows:
        ids = [[str(value) for value in table.column(i).to_pylist()] for i in (0, 1)]
        numeric = [not isinstance(table.column(i)[0].as_py(), str) for i in (0, 1)]
        rating = table["rating"].to_pylist()
        form = "{}" if isinstance(rating[0], int) else "{:.4f}"
        return cls(ids[0], ids[1], [form.format(value) for value in rating], (numeric[0], numeric[1]))

    def escaped_by(self, suffix: str) -> int:
        """Return how many different ids a format changes."""
        escape = {".csv": escape_formula, ".qrels": _token, ".tsv": _token}.get(suffix)
        if escape is None:
            return 0
        columns = zip((self.query, self.doc), self.numeric, strict=True)
        return sum(escape(text) != text for ids, numeric in columns if not numeric for text in set(ids))


def _token(text: str) -> str:
    """Return an id without white space, which separates the columns: percent-encoded, where it has any.

    >>> _token("red dress"), _token("100%"), _token("B07")
    ('red%20dress', '100%25', 'B07')
    """
    unsafe = {char for char in text if char.isspace() or not char.isprintable() or char == "%"}
    return "".join(quote(char, safe="") if char in unsafe else char for char in text)


def _write_csv(rows: _Rows, file: TextIO, name: str) -> None:
    file.write("query,docid,rating\n")
    for query, doc, rating in zip(rows.query, rows.doc, rows.rating, strict=True):
        ids = (text if numeric else csv_field(text) for text, numeric in zip((query, doc), rows.numeric, strict=True))
        file.write(f"{','.join(ids)},{rating}\n")


def _write_lines(separator: str) -> Callable[[_Rows, TextIO, str], None]:
    def write(rows: _Rows, file: TextIO, name: str) -> None:
        empty = sum(not query or not doc for query, doc in zip(rows.query, rows.doc, strict=True))
        if empty:
            raise LogError(
                f"{empty:,} judged pairs have an empty query or document, which lines of columns cannot hold. Leave "
                "them out (sql), or write .csv, .json or .parquet."
            )
        for query, doc, rating in zip(rows.query, rows.doc, rows.rating, strict=True):
            file.write(separator.join([_token(query), "0", _token(doc), rating]) + "\n")

    return write


def _write_opensearch(rows: _Rows, file: TextIO, name: str) -> None:
    ratings = [{"query": query, "ratings": list(docs)} for query, docs in _by_query(rows)]
    body = {
        "name": name,
        "description": "Clicks corrected for position bias by posbias",
        "type": "IMPORT_JUDGMENT",
        "judgmentRatings": ratings,
    }
    json.dump(body, file, ensure_ascii=False, indent=1)
    file.write("\n")


def _by_query(rows: _Rows) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yield each query with its documents and ratings; the rows of a query are together."""
    start = 0
    for end in range(1, len(rows.query) + 1):
        if end == len(rows.query) or rows.query[end] != rows.query[start]:
            docs = zip(rows.doc[start:end], rows.rating[start:end], strict=True)
            yield rows.query[start], [{"docId": doc, "rating": rating} for doc, rating in docs]
            start = end


_FORMATS: dict[str, Callable[[_Rows, TextIO, str], None]] = {
    ".csv": _write_csv,
    ".json": _write_opensearch,
    ".qrels": _write_lines(" "),
    ".tsv": _write_lines("\t"),
    ".parquet": lambda rows, file, name: None,
}
# Formats whose readers expect whole numbers.
_WHOLE_GRADES = (".qrels", ".tsv")
