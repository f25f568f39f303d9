"""Experiment "learning": how much better are rankers that learn from corrected clicks?

The experiment simulates clicks on judged queries, estimates the propensities from the simulated log, and trains linear
rankers, LightGBM and XGBoost on raw clicks, by IPS, by the Poisson rule, by the cautious blend of these, and by the
built-in corrections of the libraries. It compares nDCG@10 on held-out queries, for several severities of bias, page
views per query and numbers of trees. It also measures what a wrong curve costs.

learning.csv has a row for each kind of judgments, learner, rule and setting: nDCG@10 and the gain over no correction,
with standard errors, and the smallest gain of a seed. learning-curves.csv has the loss from each wrong curve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from experiments.figures import shift_right, style_of
from experiments.judgments import Judgments, generate_judgments, generate_non_linear_judgments
from experiments.laboratory import Laboratory, Sizes
from experiments.learning_trial import (
    RANKS,
    Clicked,
    Lesson,
    NdcgByRule,
    Site,
    add_up,
    draw_clicks,
    exposure_lesson,
    ips_lesson,
    learn_from_clicks,
    learn_from_labels,
    learn_lightgbm,
    open_site,
)
from experiments.outcomes import Outcome, Row, Verdict, make_verdict, seed_of
from posbias._arrays import FloatArray
from posbias._matplotlib import add_grid
from posbias._optional import optional
from posbias.learning.learners import cautious_factors

# The limits of the claims, in nDCG@10 (the last one is a share).
MAX_GAP, MIN_GAIN, MIN_LEAD, MAX_LOSS, MIN_SHARE_KEPT = 0.002, 0.015, 0.008, 0.003, 0.9
# With fewer seeds, standard errors are unreliable.
_ENOUGH_SEEDS = 4
_TREES = ("LightGBM", "XGBoost")
# The recommended rule, which the claims are about.
ADVISED = "cautious"
# The claim about the share of a gain ignores gains below this.
_SMALL_GAIN = 0.005
# The page views per query and the trees of the comparison of wrong curves: enough for the curve to matter.
VIEWS, TREES = 16, 160
_TRUE = "the true curve"
Curve = Callable[[FloatArray, np.random.Generator], FloatArray]
# nDCG@10 by rule and curve, for each η.
WrongCurves = Mapping[float, Mapping[tuple[str, str], float]]
_LESSONS: dict[str, Callable[[Clicked, FloatArray], Lesson]] = {"IPS": ips_lesson, "Poisson": exposure_lesson}
_RULES = (*_LESSONS, "cautious")
NON_LINEAR, LINEAR, DATA = "non-linear judgments", "linear judgments", "judgments of the file"
# Queries for the production rankers, in addition to training and held-out queries.
_PRODUCTION_QUERIES = 60
_MIN_QUERIES = 50
# The share of queries used for linear judgments: with 128 features, learning takes six times as long.
_LINEAR_QUERIES = 0.4
# The share of seeds that are also used to compare wrong curves.
_WRONG_SEEDS = 0.5


def run_learning(lab: Laboratory) -> Outcome:
    """Train every learner by every rule on logs of every severity and size."""
    kinds = {kind: sizes_of(lab.sizes, kind) for kind in _sources(lab)}
    trials: dict[str, list[Mapping[tuple[float, int], NdcgByRule]]] = {kind: [] for kind in kinds}
    wrong: list[WrongCurves] = []
    for place, (kind, sizes) in enumerate(kinds.items()):
        for number in range(sizes.learning_seeds):
            site, seed = open_kind(lab, kind, number)
            report = partial(
                _report, lab, kind, place + number / sizes.learning_seeds, sizes.learning_seeds, len(kinds)
            )
            trials[kind].append(measure_site(site, sizes, seed, report))
            if place == 0 and number < _WRONG_SEEDS * sizes.learning_seeds:
                wrong.append(measure_wrong_curves(site, sizes, seed))
    return build_outcome({kind: collect(trials[kind], sizes) for kind, sizes in kinds.items()}, wrong)


def sizes_of(sizes: Sizes, kind: str) -> Sizes:
    """Return the sizes for a kind of judgments."""
    if kind != LINEAR:
        return sizes
    return replace(
        sizes,
        learning_queries=max(_MIN_QUERIES, round(_LINEAR_QUERIES * sizes.learning_queries)),
        learning_seeds=sizes.linear_seeds,
        learning_views=sizes.learning_views[1::2] or sizes.learning_views,
    )


def _sources(lab: Laboratory) -> dict[str, Callable[[int], tuple[Judgments, int]]]:
    """Return for each kind a function from a seed to judgments and the number of training queries."""
    if not lab.generated:
        return {DATA: lambda seed: (lab.judgments, lab.sizes.learning_queries)}
    generators = {NON_LINEAR: generate_non_linear_judgments, LINEAR: generate_judgments}
    return {kind: partial(_generate, generate, sizes_of(lab.sizes, kind)) for kind, generate in generators.items()}


def _generate(generate: Callable[..., Judgments], sizes: Sizes, seed: int) -> tuple[Judgments, int]:
    queries = sizes.learning_queries
    return generate(2 * queries + _PRODUCTION_QUERIES, seed=seed), queries


def open_kind(lab: Laboratory, kind: str, number: int) -> tuple[Site, int]:
    """Return a site and its seed: newly generated judgments, or a new split of the judgments of a file."""
    seed = seed_of(lab.seed, "learning", kind, number)
    judgments, queries = _sources(lab)[kind](seed)
    return open_site(judgments, queries, seed), seed


def _report(lab: Laboratory, kind: str, before: float, seeds: int, kinds: int, share: float) -> None:
    """Convert the progress of one site to the progress of the experiment."""
    lab.progress(f"learning: {kind}", (before + share / seeds) / kinds)


def measure_site(
    site: Site, sizes: Sizes, seed: int, report: Callable[[float], None] = lambda share: None
) -> dict[tuple[float, int], NdcgByRule]:
    """Learn from logs of every severity and size of one site; add the results that do not depend on clicks."""
    labels = learn_from_labels(site, sizes.learning_trees)
    production = np.full(len(sizes.learning_trees), site.production)
    same = labels | {(learner, "production"): production for learner, _ in labels}
    settings = [(eta, views) for eta in sizes.learning_etas for views in sizes.learning_views]
    found = {}
    for done, (eta, views) in enumerate(settings, start=1):
        found[eta, views] = learn_from_clicks(site, eta, views, sizes.learning_trees, seed) | same
        report(done / len(settings))
    return found


def measure_wrong_curves(site: Site, sizes: Sizes, seed: int) -> WrongCurves:
    """Learn with wrong curves from one log of each severity."""
    return {eta: learn_from_wrong_curves(site, eta, seed) for eta in sizes.learning_etas}


def learn_from_wrong_curves(site: Site, eta: float, seed: int) -> dict[tuple[str, str], float]:
    """Learn from one log with each of the wrong curves; return nDCG@10 by rule and curve."""
    user = site.user(eta)
    drawn = seed_of(seed, "wrong curves", eta)
    clicked = draw_clicks(site.training, site.rankings, user, VIEWS, drawn)
    rng = np.random.default_rng(drawn)
    (naive,) = learn_lightgbm(ips_lesson(clicked, np.ones(RANKS)), [site.held_out.features], [TREES])
    found: dict[tuple[str, str], float] = {}
    for label, wrong in WRONG.items():
        p = wrong(user.propensity(RANKS), rng)
        scores = {
            rule: learn_lightgbm(lesson(clicked, p), [site.held_out.features], [TREES])[0]
            for rule, lesson in _LESSONS.items()
        }
        n = clicked.effective_clicks(p)
        scores["cautious"] = add_up(cautious_factors, site.held_out, n, naive, scores["IPS"], scores["Poisson"])
        found |= {(rule, label): float(site.quality(given)[0]) for rule, given in scores.items()}
    return found


def _steeper(factor: float) -> Curve:
    return lambda p, _: p**factor


def _noisy(spread: float) -> Curve:
    def draw(p: FloatArray, rng: np.random.Generator) -> FloatArray:
        return np.append(p[:1], p[1:] * np.exp(spread * rng.standard_normal(len(p) - 1)))

    return draw


WRONG: dict[str, Curve] = {
    "no correction": _steeper(0),
    "η too low by half": _steeper(0.5),
    "η too low by a quarter": _steeper(0.75),
    "η too low by a tenth": _steeper(0.9),
    _TRUE: _steeper(1),
    "η too high by a tenth": _steeper(1.1),
    "η too high by a quarter": _steeper(1.25),
    "η too high by half": _steeper(1.5),
    "η twice too high": _steeper(2),
    "each rank off by 10%": _noisy(0.1),
    "each rank off by 20%": _noisy(0.2),
    "each rank off by 40%": _noisy(0.4),
}


def build_outcome(results: Mapping[str, LearningResults], wrong: Sequence[WrongCurves]) -> Outcome:
    """Return the outcome: rows, figure, verdicts and tables."""
    rows = [row for kind, one in results.items() for row in result_rows(kind, one)]
    first = next(iter(results.values()))
    curves = curve_rows(wrong, first.etas)
    verdicts = tuple(verdict for kind, one in results.items() for verdict in judge_results(kind, one))
    shown = first.trees[len(first.trees) // 2]
    lines = [line for kind, one in results.items() for line in result_lines(kind, one, shown)]
    picture = draw_results(first, shown)
    return Outcome("learning", rows, picture, verdicts, {"curves": curves}, (*lines, *curve_lines(curves)))


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class LearningResults:
    """nDCG@10 by learner and rule, arrays of shape (η, page views, trees, seeds)."""

    etas: Sequence[float]
    views: Sequence[int]
    trees: Sequence[int]
    ndcg: Mapping[tuple[str, str], FloatArray]

    @property
    def seeds(self) -> int:
        """The number of sites."""
        return int(next(iter(self.ndcg.values())).shape[-1])

    def gain(self, learner: str, rule: str, over: str = "naive") -> FloatArray:
        """Return the gain of a rule over another, with the same log and learner."""
        return self.ndcg[learner, rule] - self.ndcg[learner, over]

    def describe(self, where: int | np.integer[Any]) -> str:
        """Describe the setting at a flat index into an array over η, page views and trees."""
        eta, views, trees = (int(index) for index in np.unravel_index(int(where), self.shape))
        return f"η = {self.etas[eta]:g}, {_views(self.views[views])}, {self.trees[trees]} trees"

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of η, page views and trees."""
        return len(self.etas), len(self.views), len(self.trees)


def _views(views: int) -> str:
    return "1 view" if views == 1 else f"{views} views"


def result_rows(kind: str, results: LearningResults) -> Iterator[Row]:
    """Yield one row for each learner, rule and setting."""
    for (learner, rule), ndcg in results.ndcg.items():
        mean, error = mean_and_error(ndcg)
        gain, gain_error = mean_and_error(results.gain(learner, rule))
        least = results.gain(learner, rule).min(axis=-1)
        for where in np.ndindex(results.shape):
            eta, views, trees = where
            yield {
                "judgments": kind,
                "learner": learner,
                "rule": rule,
                "eta": results.etas[eta],
                "views": results.views[views],
                "trees": results.trees[trees],
                "seeds": results.seeds,
                "ndcg": float(mean[where]),
                "ndcg_error": float(error[where]),
                "gain": float(gain[where]),
                "gain_error": float(gain_error[where]),
                "least_gain": float(least[where]),
            }


def mean_and_error(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean over seeds (the last axis) and its standard error.

    Example:
        >>> mean_and_error(np.array([1.0, 3.0]))
        (np.float64(2.0), np.float64(1.0))
    """
    seeds = values.shape[-1]
    spread = values.std(axis=-1, ddof=1) if seeds > 1 else np.full(values.shape[:-1], np.nan)
    return values.mean(axis=-1), spread / np.sqrt(seeds)


def curve_rows(logs: Sequence[WrongCurves], etas: Sequence[float]) -> list[Row]:
    """Return the loss from each wrong curve against the true one, by rule and η: mean over logs and standard error."""
    rows: list[Row] = []
    for rule in _RULES:
        for label in WRONG:
            for eta in etas:
                ndcg = np.array([one[eta][rule, label] for one in logs])
                lost, error = mean_and_error(ndcg - [one[eta][rule, _TRUE] for one in logs])
                row = {"rule": rule, "curve": label, "eta": eta, "logs": len(logs), "ndcg": float(ndcg.mean())}
                rows.append(row | {"against_true": float(lost), "standard_error": float(error)})
    return rows


def judge_results(kind: str, results: LearningResults) -> tuple[Verdict, ...]:
    """Judge the claims about correction on one kind of judgments."""
    enough = results.seeds >= _ENOUGH_SEEDS
    steep = [number for number, eta in enumerate(results.etas) if eta >= 1]
    return (
        _judge_estimated_curve(kind, results, (ADVISED,), enough),
        _judge_estimated_curve(kind, results, ("IPS", "Poisson"), enough),
        *([_judge_gain(kind, results, steep, enough)] if steep else []),
        _judge_lead(kind, results, enough),
        _judge_loss(kind, results, enough),
        _judge_share_kept(kind, results, enough),
        _judge_choice(kind, results, enough),
    )


def _judge_estimated_curve(kind: str, results: LearningResults, rules: Sequence[str], enough: bool) -> Verdict:
    worst, place, outside, within, of = 0.0, "nowhere", 0, 0, 0
    for rule in rules:
        mean, error = mean_and_error(results.gain("LightGBM", rule, f"{rule}, true p"))
        outside += int((np.abs(mean) - 2 * error > MAX_GAP).sum())
        within += int((np.abs(mean) <= MAX_GAP).sum())
        of += mean.size
        where = np.abs(mean).argmax()
        if abs(mean.flat[where]) > abs(worst):
            worst, place = float(mean.flat[where]), f"{rule}, {results.describe(where)}"
    return make_verdict(
        f"{kind}: with {' and '.join(rules)}, nDCG with estimated propensities is within {MAX_GAP} of nDCG with true "
        "ones (tolerance: two standard errors)",
        f"largest difference {worst:+.4f} ({place}); outside the tolerance in {outside} of {of} settings, above the "
        f"limit without tolerance in {of - within}",
        outside == 0,
        enough=enough,
    )


def _judge_gain(kind: str, results: LearningResults, steep: Sequence[int], enough: bool) -> Verdict:
    gains = {learner: results.gain(learner, ADVISED)[steep] for learner in _TREES}
    lines = []
    for number, views in enumerate(results.views):
        of_views = np.stack([gain[:, number] for gain in gains.values()])
        lines.append(f"{_views(views)}: {of_views.min():+.3f}, mean {of_views.mean():+.3f}")
    least = min(float(gain.min()) for gain in gains.values())
    return make_verdict(
        f"{kind}: the cautious blend gains at least {MIN_GAIN} over no correction at η of 1 and 2, with every seed",
        f"smallest gain of a seed: {'; '.join(lines)}",
        least >= MIN_GAIN,
        enough=enough,
    )


def _judge_lead(kind: str, results: LearningResults, enough: bool) -> Verdict:
    mean, error = mean_and_error(results.gain("XGBoost", ADVISED, "lambdarank_unbiased"))
    where = mean.argmin()
    below = int((mean + 2 * error < MIN_LEAD).sum())
    return make_verdict(
        f"{kind}: the cautious blend is at least {MIN_LEAD} better than XGBoost's lambdarank_unbiased (tolerance: two "
        "standard errors)",
        f"lowest lead {mean.min():+.3f} ({results.describe(where)}), mean {mean.mean():+.3f}; below the limit in "
        f"{below} of {mean.size} settings, without tolerance in {int((mean < MIN_LEAD).sum())}",
        below == 0,
        enough=enough,
    )


def _judge_loss(kind: str, results: LearningResults, enough: bool) -> Verdict:
    gains = {learner: results.gain(learner, ADVISED) for learner in _TREES}
    mean, error = mean_and_error(np.stack(list(gains.values())))
    worst = np.unravel_index(mean.argmin(), mean.shape)
    lost = sum(int((gain < -MAX_LOSS).sum()) for gain in gains.values())
    below = int((mean + 2 * error < -MAX_LOSS).sum())
    return make_verdict(
        f"{kind}: the cautious blend is never worse than no correction by more than {MAX_LOSS} (tolerance: two "
        "standard errors)",
        f"lowest gain {mean[worst]:+.4f} ± {error[worst]:.4f} ({_where(results, mean.argmin())}); worse in {below} of "
        f"{mean.size} settings, without tolerance in {int((mean < -MAX_LOSS).sum())}, and in {lost} of "
        f"{mean.size * results.seeds} single runs",
        below == 0,
        enough=enough,
    )


def _where(results: LearningResults, number: int | np.integer[Any]) -> str:
    """Describe the learner and setting at a flat index into an array over tree learners, η, page views and trees."""
    learner, setting = divmod(int(number), int(np.prod(results.shape)))
    return f"{_TREES[learner]}, {results.describe(setting)}"


def _judge_share_kept(kind: str, results: LearningResults, enough: bool) -> Verdict:
    either = np.stack([[results.gain(learner, rule) for rule in ("IPS", "Poisson")] for learner in _TREES])
    ours = np.stack([results.gain(learner, ADVISED) for learner in _TREES])
    # The rule that is better on average over seeds: in practice nobody knows which is better for a given seed.
    first = either.mean(axis=-1)[:, 0] >= either.mean(axis=-1)[:, 1]
    better = np.where(first[..., None], either[:, 0], either[:, 1])
    counts = better.mean(axis=-1) >= _SMALL_GAIN
    share = np.where(counts, ours.mean(axis=-1) / np.where(counts, better.mean(axis=-1), 1), np.inf)
    mean, error = mean_and_error(ours - MIN_SHARE_KEPT * better)
    below = int((counts & (mean + 2 * error < 0)).sum())
    place = _where(results, share.argmin()) if counts.any() else "nowhere"
    return make_verdict(
        f"{kind}: the cautious blend keeps at least {MIN_SHARE_KEPT:.0%} of the gain of the better of IPS and Poisson "
        "where "
        f"that gain is at least {_SMALL_GAIN} (tolerance: two standard errors)",
        f"lowest share {share.min():.0%} ({place}); less in {below} of {int(counts.sum())} settings, without "
        f"tolerance in {int((share < MIN_SHARE_KEPT).sum())}",
        below == 0,
        enough=enough and bool(counts.any()),
    )


def _judge_choice(kind: str, results: LearningResults, enough: bool) -> Verdict:
    gain, _ = mean_and_error(results.gain("LightGBM", "chosen"))
    return make_verdict(
        f"{kind}: choosing IPS or Poisson by cross-validation is never worse than no correction by more than "
        f"{MAX_LOSS}",
        f"lowest gain {gain.min():+.4f} ({results.describe(gain.argmin())})",
        gain.min() >= -MAX_LOSS,
        enough=enough,
    )


def result_lines(kind: str, results: LearningResults, trees: int) -> Iterator[str]:
    """Yield a text table of gains over no correction × 1,000, by learner and rule, for one number of trees."""
    number = list(results.trees).index(trees)
    yield ""
    yield (
        f"{kind}, {trees} trees: nDCG@10 of no correction, and gains over it × 1,000 at η = "
        f"{' / '.join(f'{eta:g}' for eta in results.etas)}"
    )
    yield " | ".join(["learner", "rule", *map(_views, results.views)])
    for learner, rule in results.ndcg:
        if rule == "naive":
            mean = results.ndcg[learner, rule][:, :, number].mean(axis=-1)
            cells = [" / ".join(f"{value:.3f}" for value in column) for column in mean.T]
        else:
            mean = 1000 * results.gain(learner, rule)[:, :, number].mean(axis=-1)
            cells = [" / ".join(f"{value:+.0f}" for value in column) for column in mean.T]
        yield " | ".join([learner, rule, *cells])


def draw_results(results: LearningResults, trees: int) -> Any:
    """Draw gains over no correction by page views: one column for each η, one row for each tree learner."""
    figure = optional("matplotlib.figure", "Figures need").Figure(figsize=(9.0, 5.6), layout="constrained")
    number = list(results.trees).index(trees)
    rules = ("IPS", "Poisson", "cautious")
    own = {"LightGBM": "position", "XGBoost": "lambdarank_unbiased"}
    grid = figure.subplots(len(own), len(results.etas), sharex=True, sharey=True, squeeze=False)
    for row, (learner, other) in zip(grid, own.items(), strict=True):
        for column, axes in enumerate(row):
            add_grid(axes).axhline(0, color="black", linewidth=0.8)
            for place, rule in enumerate((*rules, other)):
                mean, error = mean_and_error(results.gain(learner, rule)[column, :, number])
                x = shift_right(results.views, place, True) if len(results.views) > 1 else results.views
                label = "built-in correction" if rule == other else rule
                axes.errorbar(x, mean, yerr=2 * error, **style_of(rule, place), markersize=3.5, capsize=2, label=label)
            axes.set_xscale("log")
            axes.set_xticks(list(results.views), [str(views) for views in results.views])
            axes.minorticks_off()
            axes.set_title(f"{learner}, η = {results.etas[column]:g}", fontsize=10)
        row[0].set_ylabel("Gain in nDCG@10")
    for axes in grid[-1]:
        axes.set_xlabel("Page views per query")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def curve_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a text table of the losses from wrong curves × 1,000."""
    etas = sorted({row["eta"] for row in rows})
    yield ""
    yield (
        f"Loss from a wrong curve against the true one, nDCG@10 × 1,000 ({VIEWS} views, LightGBM, {TREES} trees), at "
        f"η = {' / '.join(f'{eta:g}' for eta in etas)}"
    )
    yield " | ".join(["curve", *_RULES])
    for label in WRONG:
        lost = {(row["rule"], row["eta"]): row["against_true"] for row in rows if row["curve"] == label}
        cells = [" / ".join(f"{1000 * lost[rule, eta]:+.1f}" for eta in etas) for rule in _RULES]
        yield " | ".join([label, *cells])


def collect(trials: Sequence[Mapping[tuple[float, int], NdcgByRule]], sizes: Sizes) -> LearningResults:
    """Combine the results of all seeds."""
    etas, views = sizes.learning_etas, sizes.learning_views
    first = trials[0][etas[0], views[0]]
    learners = sorted({learner for learner, _ in first}, key=[learner for learner, _ in first].index)
    ndcg = {
        name: np.array([[np.stack([t[eta, view][name] for t in trials], axis=-1) for view in views] for eta in etas])
        for learner in learners
        for name in first
        if name[0] == learner
    }
    return LearningResults(etas, views, sizes.learning_trees, ndcg)
