"""CrossFit, the default estimator: compare views within cells, given a guess of relevance that leaves each view out.

A *cell* c is the documents of one bucket of queries that all rankers put at the same ranks (one stratum). At rank k it
has N_k views and C_k clicks, and D_k = Σ n_i is the traffic of the rankers that put it there. With x = log p,
E = Σ_k N_k p_k, and a guess t of the documents' relevance from all other views of the cell, the estimate solves
g(x) = 0 with p_1 = 1::

    t_y = (C_c − y + a r0) / (E_c − p_k + a)         the guess, for a view with click y at rank k
    f_k = 1 / (1 − min(p_k r0, 0.9))                 the inverse variance of its click, up to p r0
    w_k = D_k p_k f_k / Σ_j D_j p_j f_j              the expected share of rank k in the clicks of the cell
    R_k = f_k [C_k (1 − p_k t_1) − (N_k − C_k) p_k t_0]        the residual: clicks less expected clicks
    g_k = Σ_c (R_ck − w_ck Σ_j R_cj)                 the score

The score has mean 0 at the true curve for every guess t, because which ranker served a view is random; a better guess
only makes it more precise. r0 is the click rate of documents with similar ranks, and a how many views it counts for. If
the harvest has units, such as users, f = 1: the clicks of a user vary together, and the most where they are likely. In
replay D = N, t cancels, and R = f C. `docs/theory.md` derives all this (section "CrossFit").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import numpy as np

from posbias._arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    distinct,
    group,
    is_sorted,
    left_out,
    map_threads,
    ranges,
    starts_of_runs,
    sum_by_index,
)
from posbias._defaults import DEFAULT_LEVEL
from posbias._text import listed
from posbias.errors import EstimateError
from posbias.estimators.base import (
    DEFAULT_INTERVAL,
    DEFAULT_RESAMPLES,
    Estimator,
    Interval,
    Reasons,
    ReportedCounts,
    connected_ranks,
    explain_uneven_traffic,
    identified_curve,
    link_matrix,
    reachable_ranks,
)
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.interventions import ranker_shares
from posbias.harvesting.tables import Strata

if TYPE_CHECKING:
    from posbias.estimators.page_depth import PageDepth

Exposure = Literal["design", "observed"]
Relevance = Literal["guessed", "signature", "none"]
_EXPOSURES: tuple[Exposure, ...] = ("design", "observed")
_RELEVANCES: tuple[Relevance, ...] = ("guessed", "signature", "none")

# With a larger dispersion than this, rankers were assigned to queries, not to each page view.
STICKY_DISPERSION = 2.0
# If each ranker has at least this many effective queries, the jackknife alone determines the degrees of freedom.
_FEW_ASSIGNED_QUERIES = 25

# The guess of relevance. The chance of a click p r0 is at most this, so that its variance is never 0.
_MAX_CLICK_CHANCE = 0.9
# Strata are sorted by expected relevance and cut into at most this many bins, each with at least this many clicks.
_R0_BINS = 100
_CLICKS_PER_BIN = 50
# The values of b = 1 / a to choose from. b = 0 stands for a = ∞: the clicks of the cell itself do not count.
_B_GRID = 1 / np.array([0.5, 1, 2, 4, 8, 16, 32, 64, 256, np.inf])
# b is chosen on about this many rows.
_ROWS_TO_CHOOSE_B = 2**18
# r0 is estimated again before each of the first 3 Newton steps, and b before the first 2. Then both stay as they are.
_R0_STEPS = 3
_B_STEPS = 2

# Newton's method gives up after this many steps.
_MAX_STEPS = 50
# It changes log p by at most this much in one step.
_MAX_STEP = 1.0
# A step that leads away from the root is halved, at most this often.
_MAX_HALVINGS = 10
# It ends with a step smaller than this. The error of the result is about the square of that step.
_TOLERANCE = 1e-6
# The same, where an approximate root is enough.
ROUGH_TOLERANCE = 1e-3
# Two roots are different if log p differs by more than this at some rank.
_ROOT_DISTANCE = 1e-2
# The search for a second root uses about this many cells.
_CELLS_FOR_UNIQUENESS = 20_000

# A refit takes one Newton step. If that changes log p by more than this, it takes all steps.
_MAX_ONE_STEP = 0.1
# The same, if it leaves out one bucket. With 200 ranks, standard errors are within 2% of those of refits that all take
# all steps, and within 1% at 197 of 199 ranks.
_MAX_DELETION_STEP = 0.2
# The last step of a refit that goes on from its first one. Its error is about the square.
_REFIT_TOLERANCE = 1e-2
# Refits use the Jacobian of each bucket, unless these have more numbers than this: 320 MB.
_MAX_JACOBIAN_NUMBERS = 4 * 10**7

# Rows are processed in chunks of this size, which fit into the processor's cache.
_CHUNK_ROWS = 1 << 15
# Equal cells are added up where each row has fewer views than this, on average.
_FEW_VIEWS = 10
# Multiplying two rows of a cell takes as long as multiplying this many entries of a dense matrix.
_PAIR_COST = 16

# A few buckets may distort the traffic: see `traffic_imbalance`. They are left out if its factor is above this ...
_IMBALANCE = 30.0
# ... or above this, and the score has no root with them. Sticky assignment of very unequal queries stays below.
_IMBALANCE_WITHOUT_ROOT = 3.0
# Buckets are left out until the factor is at most this.
_BALANCED = 2.0
# At most this share of the buckets is left out, and only if they have more than this share of the page views.
_MAX_LEFT_OUT_SHARE = 0.05
_MIN_LEFT_OUT_VIEWS = 0.5

_NO_ROOT_NOTE = (
    "The estimating equations with guessed relevance have {}, so this is the curve without guesses (relevance none). "
    "It is less precise. It is biased if a few documents have most of the impressions, or if rankers were not "
    "assigned at random: compare it with AllPairs."
)


class CrossFit(Estimator["CrossFitCounts"]):
    """Estimate p_k / p_1 from the residual of each view, given a guess of relevance from all other views of its cell.

    Views are compared within a bucket of queries and a stratum: documents that all rankers put at the same ranks.
    Within such a cell the ranker that was drawn decides at which rank a view was shown, so that wrong guesses do not
    bias the curve; better guesses make the intervals narrower. The estimator needs no bound on p. It assumes that the
    ranker of each page view was drawn independently; if it was not, `dispersion_` shows it, and relevance is guessed
    from similar strata alone.

    Where the ranks by all rankers are not known (replay), exposure is as observed and the guess only weights the views.
    If the harvest has units, such as users, all clicks count equally, because the clicks of a unit vary together.

    Arguments:
        exposure (str or None, default None): "design", the traffic of the rankers that put a document at a rank, or
            "observed", its impressions there. By default "design" where ranks are known.
        relevance (str, default "guessed"): "guessed" from the clicks of the cell and of similar strata; "signature"
            from similar strata alone, which sticky assignment needs; or "none". With "none", the two exposures give the
            two forms of conditional Poisson regression.
        pool (bool, default False): whether to estimate segments together. Each is shrunk toward the common curve as far
            as the data say that segments are alike, and has an estimate at every rank that any segment identifies.
        level (float, default 0.95): the coverage of the intervals.
        interval (str or None, default "jackknife"): "jackknife" leaves out one bucket of queries at a time, "bootstrap"
            takes percentiles of resampled buckets, None computes no intervals.
        bootstrap (int, default 1000): the number of bootstrap resamples.
        seed (int, default 0): the random seed of the resamples. Nothing else is random.

    Attributes:
        dispersion_ (float): how much more unequally than by chance views were assigned to rankers. It is about 1 if
            each view drew its ranker independently, and about the number of views of a query if one ranker served all
            of them. NaN if exposure is as observed.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000)))
        >>> CrossFit(interval=None).fit(posbias.harvest(log)).propensity_[:3].round(2)
        array([1.  , 0.5 , 0.35])
    """

    name = "cross-fit"
    no_click_reason = "no click at rank {rank} on documents that also appear at other ranks"

    dispersion_: float
    # Whether clicks count equally although the harvest has no units: it is counted by units itself.
    _equal_clicks = False

    def __init__(
        self,
        *,
        exposure: Exposure | None = None,
        relevance: Relevance = "guessed",
        pool: bool = False,
        level: float = DEFAULT_LEVEL,
        interval: Interval | None = DEFAULT_INTERVAL,
        bootstrap: int = DEFAULT_RESAMPLES,
        seed: int = 0,
    ) -> None:
        super().__init__(level=level, interval=interval, bootstrap=bootstrap, seed=seed)
        self.exposure = exposure
        self.relevance = relevance
        self.pool = pool

    def count(self, harvest: Harvest) -> CrossFitCounts:
        """Return the views, clicks and traffic of each cell by rank."""
        strata = harvest.strata()
        if self.exposure == "design" and not strata.by_design:
            raise EstimateError(
                "There is no exposure by design in replay: the log does not say where the other rankers would have "
                "put a document. Leave exposure out, or log every ranker's rank (ranks or rankings)."
            )
        by_design = strata.by_design and self.exposure != "observed"
        equal = self._equal_clicks or harvest.units is not None
        return CrossFitCounts.of(strata, by_design=by_design, relevance=self.relevance, equal_clicks=equal)

    def curves(self, counts: CrossFitCounts, weights: FloatArray) -> FloatArray:
        """Return the curve for each row of bucket weights; refits take one Newton step from the estimate."""
        weights = np.asarray(weights, dtype=np.float64)
        if weights.ndim == 1 and np.all(weights == 1):
            self.dispersion_, self.notes_ = counts.dispersion, counts.notes
            return counts.estimate
        return np.asarray(counts.refits(np.atleast_2d(weights)).reshape(*weights.shape[:-1], -1))

    def rough_refits(self, counts: CrossFitCounts, weights: FloatArray) -> FloatArray:
        """Return the curve for each row of bucket weights by one Newton step, however long."""
        return counts.refits(weights, longest=np.inf)

    def reasons(self, counts: CrossFitCounts) -> Reasons:
        """Return, for each rank, why it cannot be compared with rank 1, or None."""
        return counts.reasons()

    def max_degrees(self, counts: CrossFitCounts) -> float:
        """Return an upper bound on the degrees of freedom where rankers were assigned to few queries."""
        return counts.max_degrees

    def for_units(self) -> CrossFit:
        """Return the estimator that is fitted to buckets of units.

        It guesses relevance from the ranks of a document alone: most units saw one ranker, so a cell of units has
        nothing to compare. The guess matters to both variances that are subtracted, and not to their difference.
        """
        parameters = self.parameters()
        guessed = parameters["relevance"] == "guessed"
        estimator = CrossFit(**parameters | ({"relevance": "signature"} if guessed else {}))
        estimator._equal_clicks = True
        return estimator

    def assumption_notes(self, harvest: Harvest, counts: CrossFitCounts) -> tuple[str, ...]:
        """Return a note if traffic changed within the harvest, and how far guesses of relevance correct for it."""
        if counts.rows.design is None or counts.left_out_note or counts.depth is not None:
            return ()
        if (uneven := explain_uneven_traffic(harvest)) is None:
            return ()
        if self.relevance == "none":
            return (f"{uneven} Without guesses of relevance the curve is biased in this case.",)
        return (f"{uneven} Guesses of relevance correct most of the bias. To be sure, fit each period separately.",)

    def _check(self) -> None:
        super()._check()
        if self.exposure is not None and not (isinstance(self.exposure, str) and self.exposure in _EXPOSURES):
            raise EstimateError(f"exposure must be one of {listed(_EXPOSURES)}, or None, not {self.exposure!r}.")
        if not isinstance(self.relevance, str) or self.relevance not in _RELEVANCES:
            raise EstimateError(f"relevance must be one of {listed(_RELEVANCES)}, not {self.relevance!r}.")
        if not isinstance(self.pool, bool):
            raise EstimateError(f"pool must be True or False, not {self.pool!r}.")

    def _fit_segments(self, harvest: Harvest, counts: CrossFitCounts) -> Self:
        """Estimate the curve of each segment, together if they are pooled."""
        if not (self.pool and harvest.by):
            return super()._fit_segments(harvest, counts)
        from posbias.estimators.pooling import PooledSegments

        self.by_ = harvest.by
        widening = 1.0 if self.jackknife_ is None else float(np.nanmean(self.jackknife_.widening[1:] ** 2))
        pooled, reasons = PooledSegments.of(harvest, counts, widening), self.reasons(counts)
        level, parameters = None if self.interval is None else self.level, self.parameters()
        intervals = pooled.intervals(level, self.degrees_of_freedom_)
        for i, (key, interval, note) in enumerate(zip(harvest.segments, intervals, pooled.notes(), strict=True)):
            segment = type(self)(**parameters)
            page_views = dict(zip(harvest.rankers, map(int, pooled.traffic[i]), strict=True))
            reported = ReportedCounts(pooled.impressions[i], pooled.clicks[i], page_views, None)
            segment._store(reported, np.exp(pooled.log_propensity[i]), reasons, interval)
            segment.dispersion_, segment.notes_ = self.dispersion_, (note,)
            self.segments_[key] = segment
        return self


# ---- The counts of a harvest, their curve and its refits


@dataclass(frozen=True, eq=False)
class CrossFitCounts:
    """The cells of a harvest that can be compared between ranks, with their curve.

    Attributes:
        rows (CellRows): the rows of all cells with two ranks or more.
        views (array of shape B × m): page views by bucket and ranker.
        signatures (StratumSignatures): the ranks of each stratum, from which r0 is estimated.
        relevance (str): how relevance is guessed, as in `CrossFit`.
        used_buckets (array of bool): which buckets of the harvest are used.
        equal_clicks (bool): whether all clicks count equally: f = 1.
        depth (PageDepth or None): how often rankers show what they rank; None if always, or if exposure is observed.
        left_out_note (str or None): why some buckets were left out, if any were.
    """

    rows: CellRows
    views: FloatArray
    signatures: StratumSignatures
    relevance: str
    used_buckets: BoolArray
    equal_clicks: bool = False
    depth: PageDepth | None = None
    left_out_note: str | None = None

    @classmethod
    def of(cls, strata: Strata, *, by_design: bool, relevance: str, equal_clicks: bool = False) -> CrossFitCounts:
        """Return the counts of a harvest's strata, without the few buckets that distort its traffic."""
        every = np.ones(strata.buckets, dtype=np.bool_)
        rows, signatures = CellRows.of(strata, by_design=by_design), StratumSignatures.of(strata)
        whole = cls(rows, strata.views, signatures, relevance, every, equal_clicks)
        if not by_design:
            return whole
        whole = whole._with_depth(strata)
        return whole._without_dominant_buckets(strata)

    def _with_depth(self, strata: Strata) -> CrossFitCounts:
        """Return the counts with the share of page views that reach each rank."""
        from posbias.estimators.page_depth import PageDepth

        # A few rows with most of the impressions would pass for pages that end below their rank.
        depth = None if traffic_imbalance(strata.views) > _IMBALANCE_WITHOUT_ROOT else PageDepth.of(strata)
        if depth is None:
            return replace(self, rows=replace(self.rows, shown=None), depth=None)
        rows = replace(self.rows, shown=depth.shown)
        return replace(self, rows=rows.where(rows.promised(self.traffic) > 0), depth=depth)

    def _without_dominant_buckets(self, strata: Strata) -> CrossFitCounts:
        """Return the counts without the few buckets that dominate the traffic, if they would determine the curve.

        One row with most of the impressions makes it look as if its ranker had shown nearly all other documents, too.
        """
        factor = traffic_imbalance(self.views)
        if factor <= _IMBALANCE_WITHOUT_ROOT or (used := balanced_buckets(self.views)) is None:
            return self
        if factor <= _IMBALANCE and np.isfinite(self.solution.x).all():
            return self
        note = _explain_left_out(self.views, used)
        rows = self.rows.in_buckets(used)
        kept = replace(self, rows=rows, views=self.views[used], used_buckets=used, left_out_note=note)
        return kept._with_depth(strata.in_buckets(used))

    @property
    def buckets(self) -> int:
        """B, the number of buckets that are used."""
        return len(self.views)

    @property
    def clicked(self) -> bool:
        """Whether there is a click in any cell."""
        return bool(self.rows.clicks.any())

    @cached_property
    def traffic(self) -> FloatArray:
        """n_i, the page views of each ranker."""
        return np.asarray(self.views.sum(axis=0))

    @cached_property
    def dispersion(self) -> float:
        """Pearson's χ² of the views of cells against their traffic, over its degrees of freedom; NaN if observed."""
        rows = self.rows
        if rows.design is None or not len(rows):
            return float("nan")
        promised = rows.promised(self.traffic)
        expected = rows.cell_sum(rows.views) * promised / np.maximum(rows.cell_sum(promised), 1e-300)
        seen = expected > 0
        degrees = np.count_nonzero(seen) - np.count_nonzero(sum_by_index(rows.cell, seen, len(rows.cell_bucket)))
        squares = (rows.views[seen] - expected[seen]) ** 2 / expected[seen]
        return float(squares.sum() / degrees) if degrees else float("nan")

    @property
    def sticky(self) -> bool:
        """Whether rankers were assigned to queries, although guesses from clicks need assignment view by view."""
        return self.relevance == "guessed" and self.dispersion > STICKY_DISPERSION

    @cached_property
    def max_degrees(self) -> float:
        """The fewest effective queries of any ranker, if queries were assigned to rankers and are few; else infinity.

        The jackknife does not show how far the luck of a few large queries, to which ranker they went, moves the curve.
        """
        few = effective_buckets(self.views) if self.dispersion > STICKY_DISPERSION else np.inf
        return few if few < _FEW_ASSIGNED_QUERIES else np.inf

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know about the curve."""
        failure = self._fit[1]
        notes = (self.left_out_note, _NO_ROOT_NOTE.format(failure) if failure else None)
        return tuple(note for note in notes if note)

    @cached_property
    def estimate(self) -> FloatArray:
        """p_k / p_1; NaN where k is not connected to rank 1, 0 where it was never clicked."""
        return identified_curve(self.solution.x, self.links)

    @property
    def solution(self) -> Solution:
        """The root of the score with its guess of relevance; NaN if there is no root."""
        return self._fit[0]

    @cached_property
    def score_dispersion(self) -> float:
        """φ = tr(J⁻¹ Σ_b g_b g_bᵀ) / (M−1): the variance of scores between buckets over their information."""
        ranks = connected_ranks(self.links)
        solution, free = self.solution, np.flatnonzero(ranks)[1:]
        terms = ScoreTerms.at(solution.x, self.rows.where(ranks[self.rows.rank]), self.traffic, solution.guess)
        score, information = terms.by_bucket()[:, free], terms.information()[np.ix_(free, free)]
        return float(np.trace(np.linalg.pinv(information, hermitian=True) @ (score.T @ score)) / len(free))

    @cached_property
    def links(self) -> BoolArray:
        """Whether a document was clicked at rank k and is also ranked at l: (M, M)."""
        return link_matrix(self.rows.links[0], self.rows.ranks)

    def reasons(self) -> Reasons:
        """Return, for each rank, why it cannot be compared with rank 1."""
        links = self.links
        if not links[0].any():
            return ["no click at rank 1 on a document that also appears at another rank"] * len(links)
        if connected_ranks(links).any() and np.isnan(self.solution.x).any():
            why = _explain_imbalance(self.views) if self._imbalanced else None
            return [why or "no curve fits: the estimating equations have no solution; use AllPairs"] * len(links)
        ahead, back = reachable_ranks(links), reachable_ranks(links.T)
        return [
            "no document that appears at this rank and at another was clicked; use more data"
            if not (links[k].any() or links[:, k].any())
            else "no chain of clicked documents connects it to rank 1; use more data"
            if not (ahead[k] or back[k])
            else "the documents that connect it to rank 1 were clicked on one side only; use more data or AllPairs"
            for k in range(len(links))
        ]

    # -- The estimate

    @cached_property
    def _fit(self) -> tuple[Solution, str | None]:
        """The solution, and why it is one without guesses of relevance, if it is."""
        ranks = connected_ranks(self.links)
        solution, failure = self._solve(self.rows.where(ranks[self.rows.rank]), ranks)
        # Without a guess the curve depends on traffic alone: distorted traffic gives no curve.
        return (_no_solution(len(ranks)), None) if failure and self._imbalanced else (solution, failure)

    @cached_property
    def _imbalanced(self) -> bool:
        return self.rows.design is not None and traffic_imbalance(self.views) > _IMBALANCE_WITHOUT_ROOT

    def _solve(self, rows: CellRows, ranks: BoolArray) -> tuple[Solution, str | None]:
        merged = rows.merged if rows.mergeable else rows
        if rows.design is None:
            # As observed, the guess cancels.
            rows = merged
        rates = click_rate_start(merged, ranks)
        start = solve_score(rates, merged, self.traffic, None, ranks, tolerance=ROUGH_TOLERANCE)
        if start is None:
            return _no_solution(len(ranks)), None
        if self.relevance == "none":
            return self._solve_without_guess(start, merged, ranks), None
        x, b = start, 0.0
        for step in range(_R0_STEPS):
            r0 = estimate_r0(rows, x, self.signatures)
            # As observed, the guess only weights the views, whatever b is.
            if step < _B_STEPS and self.relevance == "guessed" and rows.design is not None and not self.sticky:
                b = choose_b(x, rows, r0)
            guess = RelevanceGuess(r0, b, equal_clicks=self.equal_clicks)
            next_x = solve_score(x, rows, self.traffic, guess, ranks, steps=1)
            if next_x is None:
                return self._solve_without_guess(start, merged, ranks), "no root near the start"
            x = next_x
        root = solve_score(x, rows, self.traffic, guess, ranks)
        if root is None:
            return self._solve_without_guess(start, merged, ranks), "no root near the start"
        if not is_only_root(root, start, rows, self.traffic, guess, ranks):
            return self._solve_without_guess(start, merged, ranks), "a second root"
        return Solution(root, guess), None

    def _solve_without_guess(self, start: FloatArray, rows: CellRows, ranks: BoolArray) -> Solution:
        """Return the root without a guess, which is unique: the score is the gradient of a concave function."""
        x = solve_score(start, rows, self.traffic, None, ranks)
        return _no_solution(len(ranks)) if x is None else Solution(x, None)

    # -- Refits

    def refits(self, weights: FloatArray, longest: float | None = None) -> FloatArray:
        """Return the curves with buckets counted `weights` (n, B) times; r0 and a stay as they are.

        A refit takes one Newton step: x + (Σ ω_b J_b)⁻¹ Σ ω_b g_b. It takes all steps if that one is longer than
        `longest`, or if the weights leave a rank or a ranker without its comparisons.
        """
        curves = np.tile(self.estimate, (len(weights), 1))
        solution = self.solution
        if not np.isfinite(solution.x).all():
            return curves
        deleted = left_out(weights)
        longest = longest or (_MAX_ONE_STEP if deleted is None else _MAX_DELETION_STEP)
        near, traffic, free = self._expansion, weights @ self.views, np.flatnonzero(connected_ranks(self.links))[1:]
        changed = self._changes_connections(weights > 0) | np.any((traffic > 0) != (self.traffic > 0), axis=1)
        # Only the shares of traffic matter. Without any, as if one unit had all of rank 1, nothing is estimated.
        scaled = traffic / np.maximum(traffic.sum(axis=1, keepdims=True), 1e-300) * self.traffic.sum()
        shift = scaled - self.traffic
        if self.depth is not None:
            by_rank = scaled[:, :, None] * self.depth.refits(weights) - self.traffic[:, None] * self.depth.shown
            shift = by_rank.reshape(len(weights), -1)
        by_traffic = weights.mean(axis=1, keepdims=True) * (shift @ near.traffic_jacobian.T)
        scores = (weights @ near.score + by_traffic)[:, free]
        if near.jacobian.ndim == 3:
            by_bucket = near.jacobian[:, free[:, None], free]
            jacobians = (
                np.tensordot(weights, by_bucket, axes=1)
                if deleted is None
                else by_bucket.sum(axis=0) - by_bucket[deleted]
            )
        else:
            jacobians = weights.mean(axis=1)[:, None, None] * near.jacobian[free[:, None], free]
        # These take all steps below; a singular matrix among them would fail the whole batch.
        jacobians[changed] = np.eye(len(free))
        try:
            steps = np.linalg.solve(jacobians, scores[:, :, None])[:, :, 0]
        except np.linalg.LinAlgError:
            changed |= np.linalg.det(jacobians) == 0
            jacobians[changed] = np.eye(len(free))
            steps = np.linalg.solve(jacobians, scores[:, :, None])[:, :, 0]
        with np.errstate(over="ignore"):
            curves[:, free] = np.exp(solution.x[free] + steps)
        for i in np.flatnonzero(changed | ~(np.abs(steps).max(axis=1) <= longest)):
            # Newton's method goes on from its first step, unless that would be cut short.
            goes_on = not changed[i] and np.abs(steps[i]).max() <= _MAX_STEP
            with np.errstate(divide="ignore"):
                near_root = np.log(curves[i]) if goes_on else None
            curves[i] = self._refit_fully(weights[i], near_root)
        return curves

    @cached_property
    def _expansion(self) -> ScoreExpansion:
        ranks = connected_ranks(self.links)
        rows = self.rows.where(ranks[self.rows.rank])
        by_bucket = self.buckets * len(ranks) ** 2 <= _MAX_JACOBIAN_NUMBERS
        return ScoreExpansion.at(self.solution, rows, self.traffic, by_bucket=by_bucket)

    def _changes_connections(self, counted: BoolArray) -> BoolArray:
        """Return whether the buckets that count, (n, B), connect other ranks with rank 1 than all buckets do."""
        keys, buckets = self.rows.links
        links, link = np.unique(keys, return_inverse=True)
        whole = connected_ranks(self.links)
        changed = np.zeros(len(counted), dtype=np.bool_)
        # A link that more buckets have than are ever left out always remains.
        rare = np.bincount(link, minlength=len(links)) <= (~counted).sum(axis=1).max(initial=0)
        link, buckets = link[rare[link]], buckets[rare[link]]
        for i, used in enumerate(counted if rare.any() else ()):
            left = (np.bincount(link[used[buckets]], minlength=len(links)) > 0) | ~rare
            if not left.all():
                changed[i] = not np.array_equal(connected_ranks(link_matrix(links[left], len(self.links))), whole)
        return changed

    def _refit_fully(self, weights: FloatArray, near: FloatArray | None = None) -> FloatArray:
        """Return the curve of weighted buckets by all Newton steps, from x = log p `near` the root if one is known."""
        traffic = weights @ self.views
        shown = None if self.depth is None else self.depth.refits(weights)
        if self.rows.design is not None and self.rows.has_equal_cells:
            rows, number = self.rows.equal_cells
            times = sum_by_index(
                number, (self.rows.cell_weight * weights[self.rows.cell_bucket]), len(rows.cell_bucket)
            )
            rows = replace(rows, cell_weight=times, shown=shown)
            rows = rows.where((times > 0)[rows.cell] & (rows.promised(traffic) > 0))
        else:
            rows = replace(self.rows.weighted(weights), shown=shown)
            rows = rows.where(rows.promised(traffic) > 0)
        links = link_matrix(rows.links[0], rows.ranks)
        ranks = connected_ranks(links)
        solution = self.solution
        start, rows = np.where(ranks, solution.x, 0.0), rows.where(ranks[rows.rank])
        x = None
        if near is not None and np.isfinite(near[ranks]).all():
            x = solve_score(
                np.where(ranks, near, 0.0), rows, traffic, solution.guess, ranks, tolerance=_REFIT_TOLERANCE
            )
        if x is None:
            x = solve_score(start, rows, traffic, solution.guess, ranks)
        return identified_curve(np.full(len(ranks), np.nan) if x is None else x, links)


# ---- Cells as columns


@dataclass(frozen=True, eq=False)
class CellRows:
    """One row for each cell and rank, sorted by cell. Each cell has two rows or more.

    Attributes:
        cell (array of int): the cell of each row, from 0 without gaps.
        rank (array of int): the rank of each row, from 0.
        views (array): N.
        clicks (array): C.
        design_row (array of int): the row of `design` that belongs to each row.
        design (array of shape n × m, or None): `design @ n` is D, the traffic that shows the cell at the rank. None if
            D is N, what was observed.
        cell_bucket (array of int): the bucket of each cell.
        cell_stratum (array of int): the stratum of each cell, with the same number in all buckets.
        cell_weight (array): how often each cell counts.
        shown (array of shape m × M or B × m × M, or None): how often each ranker shows what it puts at a rank, as in
            `PageDepth`; None if always.
        mergeable (bool): whether cells of one stratum have proportional exposure, so that they may be merged.
        buckets (int): B.
        ranks (int): M.
    """

    cell: IntArray
    rank: IntArray
    views: FloatArray
    clicks: FloatArray
    design_row: IntArray
    design: FloatArray | None
    cell_bucket: IntArray
    cell_stratum: IntArray
    cell_weight: FloatArray
    mergeable: bool
    buckets: int
    ranks: int
    shown: FloatArray | None = None

    @classmethod
    def of(cls, strata: Strata, *, by_design: bool) -> CellRows:
        """Return the rows of a harvest's strata; D is N unless exposure is `by_design`."""
        cells = strata.cells if by_design else strata.cells.where(strata.cells.impressions > 0)
        first, number = group([cells.bucket, cells.stratum])
        bucket, stratum = cells.bucket[first], cells.stratum[first]
        first_of_row, row = group([number, cells.rank])
        design_row, design = np.zeros(len(first_of_row), dtype=np.int64), None
        if by_design and len(first_of_row):
            numbered = replace(cells, stratum=number)
            design_row, design = ranker_shares(numbered, row, len(first_of_row), strata.views.shape[1])
        rank = cells.rank
        if len(first_of_row) == len(cells) and is_sorted(first_of_row):
            # Each row is one cell, in the same order, as in replay: nothing is added up.
            views, clicks = (column.astype(np.float64) for column in (cells.impressions, cells.clicks))
        else:
            views, clicks = (
                sum_by_index(row, column, len(first_of_row)) for column in (cells.impressions, cells.clicks)
            )
            number, rank = number[first_of_row], rank[first_of_row]
        rows = cls(
            cell=number,
            rank=rank - 1,
            views=views,
            clicks=clicks,
            design_row=design_row,
            design=design,
            cell_bucket=bucket,
            cell_stratum=stratum,
            cell_weight=np.ones(len(first)),
            mergeable=by_design or not strata.by_design,
            buckets=strata.buckets,
            ranks=strata.max_rank,
        )
        return rows.where(np.ones(len(first_of_row), dtype=np.bool_))

    def __len__(self) -> int:
        return len(self.cell)

    # -- Selecting rows

    def where(self, mask: BoolArray) -> CellRows:
        """Return the rows of a mask, without cells that have only one of them."""
        several = sum_by_index(self.cell, mask, len(self.cell_bucket)) > 1
        mask = mask & several[self.cell]
        if mask.all():
            return self
        number, rows, cells = np.cumsum(several) - 1, np.flatnonzero(mask), np.flatnonzero(several)
        return replace(
            self,
            cell=number[self.cell[rows]],
            rank=self.rank[rows],
            views=self.views[rows],
            clicks=self.clicks[rows],
            # Zeros take no memory until they are read.
            design_row=np.zeros(len(rows), dtype=np.int64) if self.design is None else self.design_row[rows],
            cell_bucket=self.cell_bucket[cells],
            cell_stratum=self.cell_stratum[cells],
            cell_weight=self.cell_weight[cells],
        )

    def weighted(self, weights: FloatArray) -> CellRows:
        """Return the rows of buckets with a positive weight, each cell counted by the weight of its bucket."""
        rows = self.where((weights > 0)[self.cell_bucket][self.cell])
        return replace(rows, cell_weight=rows.cell_weight * weights[rows.cell_bucket])

    def in_buckets(self, used: BoolArray) -> CellRows:
        """Return the rows of some buckets, and renumber these buckets."""
        rows, number = self.where(used[self.cell_bucket][self.cell]), np.cumsum(used) - 1
        return replace(rows, cell_bucket=number[rows.cell_bucket], buckets=int(used.sum()))

    @cached_property
    def merged(self) -> CellRows:
        """The rows with all cells of a stratum merged into one; the score without a guess stays the same."""
        first, row = group([self.stratum, self.rank])
        first_of_cell, cell = group([self.stratum[first]])
        strata = self.stratum[first[first_of_cell]]
        counts = [sum_by_index(row, self.weigh(values), len(first)) for values in (self.views, self.clicks)]
        return replace(
            self,
            cell=cell,
            rank=self.rank[first],
            views=counts[0],
            clicks=counts[1],
            design_row=self.design_row[first],
            cell_bucket=np.zeros(len(strata), dtype=np.int64),
            cell_stratum=strata,
            cell_weight=np.ones(len(strata)),
            buckets=1,
        )

    @cached_property
    def clicked_cells(self) -> CellRows:
        """The rows of cells with a click; the others add nothing to a score in which the guess cancels."""
        return self.where(self.cell_clicks > 0)

    @cached_property
    def equal_cells(self) -> tuple[CellRows, IntArray]:
        """The rows with equal cells as one that counts as often as all of them, and its number for each cell.

        Cells are equal if they have the same stratum, ranks, views and clicks. In a log with few views for each cell
        most are.
        """
        first = np.flatnonzero(starts_of_runs(self.cell))
        size = np.diff(first, append=len(self))
        columns = [self.rank, self.design_row, self.views.astype(np.int64), self.clicks.astype(np.int64)]
        number, examples, start = np.zeros(len(first), dtype=np.int64), [first[:0]], 0
        for length in distinct(size, int(size.max(initial=0)) + 1).tolist():
            cells = np.flatnonzero(size == length)
            keys = [column[first[cells] + i] for i in range(length) for column in columns]
            example, which = group([self.cell_stratum[cells], *keys])
            number[cells] = which + start
            examples.append(cells[example])
            start += len(example)
        cell = np.concatenate(examples)
        row = ranges(first[cell], size[cell])
        added_up = replace(
            self,
            cell=np.repeat(np.arange(len(cell)), size[cell]),
            rank=self.rank[row],
            views=self.views[row],
            clicks=self.clicks[row],
            design_row=self.design_row[row],
            cell_bucket=np.zeros(len(cell), dtype=np.int64),
            cell_stratum=self.cell_stratum[cell],
            cell_weight=sum_by_index(number, self.cell_weight, len(cell)),
            buckets=1,
        )
        return added_up, number

    @cached_property
    def has_equal_cells(self) -> bool:
        """Whether so few views come to each row that many cells of different buckets are equal."""
        return self.buckets > 1 and float(self.views.sum()) < _FEW_VIEWS * len(self)

    @cached_property
    def chunks(self) -> list[CellRows]:
        """The rows in chunks of whole cells that stay in the processor's cache."""
        if len(self) <= _CHUNK_ROWS:
            return [self]
        starts = np.flatnonzero(np.diff(self.cell, prepend=-1))
        ends = starts[np.searchsorted(starts, np.arange(_CHUNK_ROWS, len(self), _CHUNK_ROWS)) - 1]
        return [self._between(*rows) for rows in pairwise([0, *ends.tolist(), len(self)]) if rows[0] < rows[1]]

    def _between(self, start: int, stop: int) -> CellRows:
        rows, cells = slice(start, stop), slice(int(self.cell[start]), int(self.cell[stop - 1]) + 1)
        return replace(
            self,
            cell=self.cell[rows] - cells.start,
            rank=self.rank[rows],
            views=self.views[rows],
            clicks=self.clicks[rows],
            design_row=self.design_row[rows],
            cell_bucket=self.cell_bucket[cells],
            cell_stratum=self.cell_stratum[cells],
            cell_weight=self.cell_weight[cells],
        )

    def own_buckets(self) -> tuple[slice, CellRows]:
        """Return the range of buckets that the cells have, and the rows with only these buckets."""
        first, last = int(self.cell_bucket[0]), int(self.cell_bucket[-1])
        rows = replace(self, cell_bucket=self.cell_bucket - first, buckets=last + 1 - first)
        return slice(first, last + 1), rows

    # -- Values of rows

    @cached_property
    def stratum(self) -> IntArray:
        """The stratum of each row."""
        return self.cell_stratum[self.cell]

    @cached_property
    def cell_clicks(self) -> FloatArray:
        """C_c, at each row of the cell."""
        return self.cell_sum(self.clicks)

    def promised(self, traffic: FloatArray) -> FloatArray:
        """Return D for page views n_i by ranker, (m,), or by bucket and ranker, (B, m); N if exposure is observed."""
        if self.design is None:
            return self.views
        if traffic.ndim == 1:
            if self.shown is None:
                return np.asarray((self.design @ traffic)[self.design_row])
            return np.asarray((self.design @ (traffic[:, None] * self.shown))[self.design_row, self.rank])
        by_ranker = traffic[self.cell_bucket[self.cell]]
        if self.shown is not None:
            by_ranker = by_ranker * self.shown_by_row
        return np.asarray(np.einsum("ij,ij->i", self.design[self.design_row], by_ranker))

    @cached_property
    def shown_by_row(self) -> FloatArray:
        """How often each ranker shows what it puts at the rank of each row; it needs `shown`."""
        assert self.shown is not None
        if self.shown.ndim == 2:
            return np.asarray(self.shown.T[self.rank])
        return np.asarray(self.shown[self.cell_bucket[self.cell], :, self.rank])

    def at_ranks(self, values: FloatArray) -> FloatArray:
        """Return, at each row, the value of its rank, (M,), or of its bucket and rank, (B, M)."""
        return np.asarray(values[self.rank] if values.ndim == 1 else values[self.cell_bucket[self.cell], self.rank])

    def weigh(self, values: FloatArray) -> FloatArray:
        """Return values of rows times the weights of their cells."""
        return values * self.cell_weight[self.cell]

    # -- Sums of rows

    def cell_sum(self, values: FloatArray) -> FloatArray:
        """Return, at each row, the unweighted sum of values over its cell."""
        return np.asarray(sum_by_index(self.cell, values, len(self.cell_bucket))[self.cell])

    def sum_by_rank(self, values: FloatArray) -> FloatArray:
        """Return the weighted sum of values by rank: (M,)."""
        return sum_by_index(self.rank, self.weigh(values), self.ranks)

    def sum_by_bucket(self, values: FloatArray) -> FloatArray:
        """Return the weighted sum of values by bucket and rank: (B, M)."""
        sums = sum_by_index(self._bucket_and_rank, self.weigh(values), self.buckets * self.ranks)
        return sums.reshape(self.buckets, self.ranks)

    def cross_products(self, *terms: tuple[FloatArray, FloatArray], by_bucket: bool) -> FloatArray:
        """Return Σ_c left_ck right_cl, summed over the terms, for all ranks k and l: (M, M), or (B, M, M) by bucket."""
        if not by_bucket and self._dense_enough:
            tables = [self._dense(self.weigh(left)).T @ self._dense(right) for left, right in terms]
            return np.asarray(np.sum(tables, axis=0))
        place = self._bucket_and_rank if by_bucket else self.rank
        size = (self.buckets if by_bucket else 1) * self.ranks**2
        weighed = [(self.weigh(left), right) for left, right in terms]
        sums = sum_by_index(place * self.ranks + self.rank, _add_up([left * right for left, right in weighed]), size)
        for one, two in self.row_pairs():
            values = _add_up([left[one] * right[two] for left, right in weighed])
            sums += sum_by_index(place[one] * self.ranks + self.rank[two], values, size)
        return sums.reshape(-1, self.ranks, self.ranks) if by_bucket else sums.reshape(self.ranks, self.ranks)

    @cached_property
    def _dense_enough(self) -> bool:
        """Whether cells have so many of the ranks that multiplying them as dense matrices is faster."""
        pairs = float((np.bincount(self.cell) ** 2).sum())
        return len(self.cell_bucket) * self.ranks**2 <= _PAIR_COST * pairs

    def row_pairs(self) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield all ordered pairs of different rows of one cell, some at a time."""
        for distance in range(1, len(self)):
            first = np.flatnonzero(self.cell[distance:] == self.cell[:-distance])
            if not len(first):
                break
            yield first, first + distance
            yield first + distance, first

    @cached_property
    def links(self) -> tuple[IntArray, IntArray]:
        """Keys k M + l, and buckets, wherever a cell of the bucket was clicked at k and is also at l."""
        size = self.ranks**2
        parts = [np.zeros(0, dtype=np.int64)]
        for one, two in self.row_pairs():
            clicked = self.clicks[one] > 0
            one, two = one[clicked], two[clicked]
            parts.append(distinct(self._bucket_and_rank[one] * self.ranks + self.rank[two], self.buckets * size))
        keys = distinct(np.concatenate(parts), self.buckets * size)
        return keys % size, keys // size

    @cached_property
    def _bucket_and_rank(self) -> IntArray:
        """The bucket and the rank of each row as one number."""
        return self.cell_bucket[self.cell] * self.ranks + self.rank

    def _dense(self, values: FloatArray) -> FloatArray:
        """Return values by cell and rank, 0 where there is no row."""
        table = np.zeros(len(self.cell_bucket) * self.ranks)
        table[self._cell_and_rank] = values
        return table.reshape(-1, self.ranks)

    @cached_property
    def _cell_and_rank(self) -> IntArray:
        return self.cell * self.ranks + self.rank


def _add_up(parts: list[FloatArray]) -> FloatArray:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


# ---- The guess of relevance


@dataclass(frozen=True)
class RelevanceGuess:
    """The guess of relevance before the views of the cell, and how much these count.

    Attributes:
        r0 (array): the relevance of each stratum.
        b (float): 1 / a, the weight of one view of the cell itself relative to the whole of r0.
        bucket_level (array or None): a factor of r0 for each bucket, where buckets differ in relevance.
        equal_clicks (bool): whether all clicks count equally, f = 1, instead of by the inverse variance of each.
    """

    r0: FloatArray
    b: float
    bucket_level: FloatArray | None = None
    equal_clicks: bool = False

    def at(self, rows: CellRows) -> FloatArray:
        """Return r0 of each row."""
        r0 = self.r0[rows.stratum]
        return np.asarray(r0 if self.bucket_level is None else r0 * self.bucket_level[rows.cell_bucket[rows.cell]])


def estimate_r0(rows: CellRows, x: FloatArray, signatures: StratumSignatures) -> FloatArray:
    """Return r0 of each stratum: ΣC / ΣE of its bin of strata with similar signatures.

    Strata are sorted by the score of their signature and cut into bins of equal exposure E = Σ N p.
    """
    exposure = rows.views * np.exp(x)[rows.rank]
    size = signatures.size
    clicks, exposures = sum_by_index(rows.stratum, rows.clicks, size), sum_by_index(rows.stratum, exposure, size)
    rate = clicks.sum() / max(exposures.sum(), 1e-300)
    order = np.argsort(signatures.scores(clicks, exposures, rate), kind="stable")
    bins = int(np.clip(clicks.sum() // _CLICKS_PER_BIN, 1, _R0_BINS))
    cumulative = np.cumsum(exposures[order])
    bin_of = np.empty(size, dtype=np.int64)
    # A stratum belongs to the bin in which the middle of its exposure lies.
    middle = cumulative - exposures[order] / 2
    bin_of[order] = np.minimum(bins * middle // max(cumulative[-1], 1e-300), bins - 1)
    bin_clicks, bin_exposures = sum_by_index(bin_of, clicks, bins), sum_by_index(bin_of, exposures, bins)
    rates = np.divide(bin_clicks, bin_exposures, out=np.full(bins, rate), where=bin_exposures > 0)
    return np.asarray(rates[bin_of])


@dataclass(frozen=True)
class StratumSignatures:
    """The ranks that the rankers give to each stratum, as entries (stratum, ranker and rank).

    Attributes:
        stratum (array of int): the stratum of each entry.
        entry (array of int): its ranker and rank as one number.
        size (int): the number of strata.
        rankers (int): m.
        ranks (int): M.
    """

    stratum: IntArray
    entry: IntArray
    size: int
    rankers: int
    ranks: int

    @classmethod
    def of(cls, strata: Strata) -> StratumSignatures:
        """Return the signatures of a harvest's strata."""
        cells = strata.cells
        rankers = strata.views.shape[1]
        first, _ = group([cells.stratum, cells.ranker, cells.rank])
        entry = cells.ranker[first] * strata.max_rank + cells.rank[first] - 1
        return cls(cells.stratum[first], entry, strata.size, rankers, strata.max_rank)

    def scores(self, clicks: FloatArray, exposures: FloatArray, rate: float) -> FloatArray:
        """Return, for each stratum, the sum over rankers of the log click rate of all strata at the same rank.

        A ranker that does not rank the stratum contributes the log click rate of all strata that it does not rank.
        """
        size = self.rankers * self.ranks
        counts = [(sum_by_index(self.entry, c[self.stratum], size), c.sum()) for c in (clicks, exposures)]
        # Half a click at the overall rate keeps all logarithms finite.
        ranked = [part + 0.5 / scale for (part, _), scale in zip(counts, (1, rate or 1), strict=True)]
        unranked = [
            np.maximum(total - part.reshape(self.rankers, self.ranks).sum(axis=1), 0) + 0.5 / scale
            for (part, total), scale in zip(counts, (1, rate or 1), strict=True)
        ]
        gain = np.log(ranked[0] / ranked[1]) - np.repeat(np.log(unranked[0] / unranked[1]), self.ranks)
        return sum_by_index(self.stratum, gain[self.entry], self.size)


def choose_b(x: FloatArray, rows: CellRows, r0: FloatArray) -> float:
    """Return the b = 1 / a with the least leave-one-out error Σ C (1 − p t_1)² + (N − C) (p t_0)²."""
    errors = np.zeros(len(_B_GRID))
    # Chunks are of different buckets, into which queries fall at random.
    for part in rows.chunks[:: max(1, len(rows) // _ROWS_TO_CHOOSE_B)]:
        p, r = np.exp(x)[part.rank], r0[part.stratum]
        others = np.maximum(part.cell_sum(part.views * p) - p, 0)
        for i, b in enumerate(_B_GRID):
            scale = p / (b * others + 1)
            pt_1, pt_0 = scale * (b * (part.cell_clicks - 1) + r), scale * (b * part.cell_clicks + r)
            errors[i] += part.clicks @ (1 - pt_1) ** 2 + (part.views - part.clicks) @ pt_0**2
    return float(_B_GRID[int(np.argmin(errors))])


# ---- The score


@dataclass(frozen=True)
class ScoreTerms:
    """The terms of the score at one x, by row; the symbols are those of the module's docstring.

    Attributes:
        rows (CellRows): the rows.
        score (array): g = R − w Σ R.
        w (array): w.
        residual_sum (array): Σ_j R_j of the cell.
        log_f_slope (array): ∂ log f_k / ∂x_k.
        own_slope (array): ∂R_k / ∂x_k, without the part by E.
        exposure_slope (array or None): ∂R_k / ∂E; None where the guess cancels.
        exposure (array): N p, which is ∂E / ∂x_k.
        pf (array): p f.
        f (array): f.
        promised (array): D.
    """

    rows: CellRows
    score: FloatArray
    w: FloatArray
    residual_sum: FloatArray
    log_f_slope: FloatArray
    own_slope: FloatArray
    exposure_slope: FloatArray | None
    exposure: FloatArray
    pf: FloatArray
    f: FloatArray
    promised: FloatArray

    @classmethod
    def at(cls, x: FloatArray, rows: CellRows, traffic: FloatArray, guess: RelevanceGuess | None) -> ScoreTerms:
        """Return the score at x = log p; without a guess that of conditional Poisson regression, t = 0 and f = 1.

        Both x and the traffic may be the same for all buckets, (M,) and (m,), or differ by bucket, (B, M) and (B, m).
        """
        p = rows.at_ranks(np.exp(x))
        promised = rows.promised(traffic)
        exposure = rows.views * p
        r0 = np.zeros(len(rows))
        f, log_f_slope = np.ones(len(rows)), np.zeros(len(rows))
        if guess is not None:
            r0 = guess.at(rows)
            if not guess.equal_clicks:
                chance = p * r0
                f = 1 / (1 - np.minimum(chance, _MAX_CLICK_CHANCE))
                log_f_slope = np.where(chance < _MAX_CLICK_CHANCE, chance * f, 0.0)
        if not _uses_views(rows, guess):
            residual, own_slope, exposure_slope = f * rows.clicks, log_f_slope * f * rows.clicks, None
        else:
            assert guess is not None
            b = guess.b
            # C p t_1 + (N − C) p t_0, with numerator and denominator of t divided by a.
            denominator = b * np.maximum(rows.cell_sum(exposure) - p, 0) + 1
            expected = p * (rows.views * (b * rows.cell_clicks + r0) - b * rows.clicks) / denominator
            residual, exposure_slope = f * (rows.clicks - expected), f * expected * b / denominator
            own_slope = log_f_slope * residual - f * expected - p * exposure_slope
        residual_sum = rows.cell_sum(residual)
        pf = p * f
        w = promised * pf
        w = w / np.maximum(rows.cell_sum(w), 1e-300)
        score = residual - w * residual_sum
        return cls(rows, score, w, residual_sum, log_f_slope, own_slope, exposure_slope, exposure, pf, f, promised)

    def by_bucket(self) -> FloatArray:
        """Return the score by bucket and rank: (B, M)."""
        return self.rows.sum_by_bucket(self.score)

    def jacobian(self, *, by_bucket: bool = False) -> FloatArray:
        """Return J = −∂g/∂x: (M, M), or (B, M, M) by bucket."""
        rows, w = self.rows, self.w
        w_slope = w * (1 + self.log_f_slope) * self.residual_sum
        diagonal = (rows.sum_by_bucket if by_bucket else rows.sum_by_rank)(w_slope - self.own_slope)
        terms = [(w, self.own_slope - w_slope)]
        if self.exposure_slope is not None:
            terms.append((w * rows.cell_sum(self.exposure_slope) - self.exposure_slope, self.exposure))
        jacobian = rows.cross_products(*terms, by_bucket=by_bucket)
        index = np.arange(rows.ranks)
        jacobian[..., index, index] += diagonal
        return jacobian

    def information(self, *, by_bucket: bool = False) -> FloatArray:
        """Return Σ_c (Σ C f)(diag w − w wᵀ): (M, M), or (B, M, M) by bucket.

        It is close to the Jacobian, and unlike it always positive semidefinite.
        """
        rows, w = self.rows, self.w
        clicks = rows.cell_sum(rows.clicks * self.f)
        information = -rows.cross_products((w * clicks, w), by_bucket=by_bucket)
        index = np.arange(rows.ranks)
        information[..., index, index] += (rows.sum_by_bucket if by_bucket else rows.sum_by_rank)(w * clicks)
        return information

    def depth_jacobian(self, rankers: int) -> FloatArray:
        """Return ∂g/∂(n s), by rank, and by ranker and rank of the traffic: (M, m M)."""
        rows = self.rows
        jacobian = np.zeros((rows.ranks, rankers, rows.ranks))
        if rows.design is None:
            return jacobian.reshape(rows.ranks, -1)
        share = self.residual_sum * self.pf / np.maximum(rows.cell_sum(self.promised * self.pf), 1e-300)
        for ranker in range(rankers):
            gain = rows.design[:, ranker][rows.design_row] * share
            jacobian[:, ranker] = rows.cross_products((self.w, gain), by_bucket=False)
            jacobian[:, ranker] -= np.diag(rows.sum_by_rank(gain))
        return jacobian.reshape(rows.ranks, -1)

    def traffic_jacobian(self, rankers: int, *, by_bucket: bool = False) -> FloatArray:
        """Return ∂g/∂n, by rank and ranker: (M, m), or (B, M, m) by bucket."""
        rows = self.rows
        jacobian = np.zeros((*([rows.buckets] if by_bucket else []), rows.ranks, rankers))
        if rows.design is None:
            return jacobian
        total = np.maximum(rows.cell_sum(self.promised * self.pf), 1e-300)
        for ranker in range(rankers):
            gain = rows.design[:, ranker][rows.design_row] * self.pf
            if rows.shown is not None:
                gain = gain * rows.shown_by_row[:, ranker]
            change = -self.residual_sum * (gain - self.w * rows.cell_sum(gain)) / total
            jacobian[..., ranker] = (rows.sum_by_bucket if by_bucket else rows.sum_by_rank)(change)
        return jacobian


def _uses_views(rows: CellRows, guess: RelevanceGuess | None) -> bool:
    """Return whether views without a click add to the score: not with observed exposure, where the guess cancels."""
    return guess is not None and rows.design is not None


def score_and_jacobian(
    x: FloatArray, rows: CellRows, traffic: FloatArray, guess: RelevanceGuess | None, *, score_only: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Return the score g, (M,), and J = −∂g/∂x, (M, M), which is 0 if only the score is wanted."""
    if not _uses_views(rows, guess):
        rows = rows.clicked_cells
    elif rows.has_equal_cells:
        rows = rows.equal_cells[0]

    def of_chunk(chunk: CellRows) -> tuple[FloatArray, FloatArray]:
        terms = ScoreTerms.at(x, chunk, traffic, guess)
        return chunk.sum_by_rank(terms.score), np.zeros(()) if score_only else terms.jacobian()

    score, jacobian = np.zeros(rows.ranks), np.zeros((rows.ranks, rows.ranks))
    for chunk_score, chunk_jacobian in map_threads(of_chunk, rows.chunks):
        score += chunk_score
        jacobian += chunk_jacobian
    return score, jacobian


class ScoreExpansion(NamedTuple):
    """The score and its derivatives at the solution, from which refits take one Newton step."""

    score: FloatArray  # g_b by bucket and rank, (B, M)
    jacobian: FloatArray  # J_b by bucket, (B, M, M), or the sum of all, (M, M)
    traffic_jacobian: FloatArray  # ∂g/∂n, (M, m), or ∂g/∂(n s), (M, m M), if pages differ in depth

    @classmethod
    def at(cls, solution: Solution, rows: CellRows, traffic: FloatArray, *, by_bucket: bool) -> ScoreExpansion:
        """Return the expansion at a solution."""
        rows = rows if _uses_views(rows, solution.guess) else rows.clicked_cells

        def of_chunk(chunk: CellRows) -> ScoreExpansion:
            terms = ScoreTerms.at(solution.x, chunk, traffic, solution.guess)
            jacobian = terms.jacobian(by_bucket=by_bucket)
            by_traffic = terms.traffic_jacobian if chunk.shown is None else terms.depth_jacobian
            return cls(terms.by_bucket(), jacobian, by_traffic(len(traffic)))

        whole = cls(
            np.zeros((rows.buckets, rows.ranks)),
            np.zeros((*([rows.buckets] if by_bucket else []), rows.ranks, rows.ranks)),
            np.zeros((rows.ranks, len(traffic) * (1 if rows.shown is None else rows.ranks))),
        )
        ranges, chunks = zip(*(chunk.own_buckets() for chunk in rows.chunks), strict=True)
        for buckets, part in zip(ranges, map_threads(of_chunk, chunks), strict=True):
            whole.score[buckets] += part.score
            whole.jacobian[buckets if by_bucket else ...] += part.jacobian
            whole.traffic_jacobian[:] += part.traffic_jacobian
        return whole


# ---- The root of the score


class Solution(NamedTuple):
    """The root x = log p of the score, with the guess of relevance that it has."""

    x: FloatArray
    guess: RelevanceGuess | None


def _no_solution(ranks: int) -> Solution:
    return Solution(np.full(ranks, np.nan), None)


def solve_score(
    x: FloatArray,
    rows: CellRows,
    traffic: FloatArray,
    guess: RelevanceGuess | None,
    ranks: BoolArray,
    steps: int = _MAX_STEPS,
    tolerance: float = _TOLERANCE,
) -> FloatArray | None:
    """Return the root of the score of some ranks near x by Newton's method, with x = 0 at rank 1.

    A step is halved until it makes the next step, by the same Jacobian, smaller. Returns None if Newton fails. With
    fewer than the maximal number of steps it returns the last x, root or not.
    """
    free = np.flatnonzero(ranks)[1:]
    if not len(free):
        return None
    inner = np.ix_(free, free)
    score, jacobian = score_and_jacobian(x, rows, traffic, guess)
    for step_number in range(1, steps + 1):
        try:
            inverse = np.linalg.inv(jacobian[inner])
        except np.linalg.LinAlgError:
            return None
        step = inverse @ score[free]
        size = np.abs(step).max()
        if not np.isfinite(size):
            return None
        scale = min(1.0, _MAX_STEP / size) if size else 1.0
        for _ in range(_MAX_HALVINGS):
            next_x = x.copy()
            next_x[free] += scale * step
            if size < tolerance:
                return next_x
            # No step follows the last one, so it needs no Jacobian.
            score, jacobian = score_and_jacobian(next_x, rows, traffic, guess, score_only=step_number == steps)
            if np.abs(inverse @ score[free]).max() < (1 - scale / 4) * size:
                break
            scale /= 2
        else:
            return None
        x = next_x
    return x if steps < _MAX_STEPS else None


def click_rate_start(rows: CellRows, ranks: BoolArray) -> FloatArray:
    """Return log click rates relative to rank 1, as the start of Newton's method."""
    clicks, views = rows.sum_by_rank(rows.clicks), rows.sum_by_rank(rows.views)
    rate = np.divide(clicks, views, out=np.ones(len(ranks)), where=ranks & (clicks > 0))
    return np.where(ranks, np.log(rate / rate[0]), 0.0)


def is_only_root(
    root: FloatArray, start: FloatArray, rows: CellRows, traffic: FloatArray, guess: RelevanceGuess, ranks: BoolArray
) -> bool:
    """Return whether Newton's method from a flatter and from a steeper curve finds no other root.

    In a large log it uses some of the buckets, or of the strata if buckets are merged: their score has the same shape.
    """
    every = max(1, len(rows.cell_bucket) // _CELLS_FOR_UNIQUENESS)
    if every > 1:
        part = rows.cell if rows.buckets == 1 else rows.cell_bucket[rows.cell]
        rows = rows.where(part % every == 0)
        nearby = solve_score(root, rows, traffic, guess, ranks, tolerance=ROUGH_TOLERANCE)
        if nearby is None:
            return True
        root = nearby
    for factor in (0.5, 1.5):
        other = solve_score(factor * start, rows, traffic, guess, ranks, tolerance=ROUGH_TOLERANCE)
        if other is not None and np.abs(other - root)[ranks].max() > _ROOT_DISTANCE:
            return False
    return True


# ---- Traffic that a few queries distort


def traffic_imbalance(views: FloatArray) -> float:
    """Return the factor by which the odds of two rankers' page views differ from their odds in an average bucket.

    All buckets count equally in that average, so that no query can move it far. The factor is about 1 where each view
    draws its ranker, even if few queries have most of the views. With sticky assignment it reflects the luck of these
    few.

    Arguments:
        views (array of shape B × m): page views by bucket and ranker.

    Example:
        >>> views = np.array([[9.0, 11.0], [11.0, 9.0], [10.0, 10.0], [10.0, 10.0]])
        >>> traffic_imbalance(views), traffic_imbalance(views + [[0, 0], [0, 0], [0, 0], [960, 0]]).__round__(1)
        (1.0, 15.2)
    """
    return float(_imbalances(views.sum(axis=0)[None], _average_shares(views))[0]) if views.any() else 1.0


def _imbalances(traffic: FloatArray, shares: FloatArray) -> FloatArray:
    """Return the largest factor between the odds of traffic, (n, m), and of shares; infinite if a ranker has none."""
    served = shares > 0
    with np.errstate(divide="ignore"):
        off = np.log(traffic[:, served]) - np.log(shares[served])
    with np.errstate(invalid="ignore"):
        factor = np.exp(off.max(axis=1) - off.min(axis=1))
    return np.asarray(np.where(np.isnan(factor), np.inf, factor))


def _average_shares(views: FloatArray) -> FloatArray:
    """Return the mean over buckets of each ranker's share of the page views, (m,)."""
    served = views[views.sum(axis=1) > 0]
    return np.asarray((served / served.sum(axis=1, keepdims=True)).mean(axis=0))


def balanced_buckets(views: FloatArray) -> BoolArray | None:
    """Return which buckets remain without the few that distort the traffic.

    None if leaving out a few does not balance it, or if these few do not have most of the page views.
    """
    used = np.ones(len(views), dtype=np.bool_)
    for _ in range(max(1, int(_MAX_LEFT_OUT_SHARE * len(views)))):
        factors = _imbalances(views[used].sum(axis=0) - views[used], _average_shares(views))
        worst = np.flatnonzero(used)[int(np.argmin(factors))]
        used[worst] = False
        if factors.min() <= _BALANCED:
            return used if views[~used].sum() > _MIN_LEFT_OUT_VIEWS * views.sum() else None
    return None


def effective_buckets(views: FloatArray) -> float:
    """Return the effective number of buckets, (Σ n)² / Σ n², of the ranker with the fewest.

    Example:
        >>> effective_buckets(np.array([[5.0, 9.0], [5.0, 1.0], [5.0, 0.0], [5.0, 0.0]])).__round__(2)
        1.22
    """
    served = views[:, views.any(axis=0)]
    return float((served.sum(axis=0) ** 2 / (served**2).sum(axis=0)).min(initial=len(views)))


def _explain_left_out(views: FloatArray, used: BoolArray) -> str:
    """Return which buckets were left out, and why."""
    share = int(100 - 100 * views[used].sum() / views.sum())
    return (
        f"{np.count_nonzero(~used)} of {len(used)} buckets of queries, with {share}% of the page views, were left out: "
        "rankers served them in other proportions than the rest, which distorted the traffic by a factor of "
        f"{traffic_imbalance(views):,.0f}. Look for a query, or an aggregated row, with most of the impressions."
    )


def _explain_imbalance(views: FloatArray) -> str:
    """Return why there is no curve where more buckets distort the traffic than may be left out."""
    return (
        "no curve fits the traffic: rankers served queries with many page views in other proportions than the rest, "
        f"by a factor of {traffic_imbalance(views):,.0f}, and these queries are too many to leave out; compare with "
        "AllPairs, or use observed exposure"
    )
