"""Does correction pay? Rankers trained on raw and on corrected clicks, compared on held-out queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from experiments.figures import aside, style_of
from experiments.judgments import Judgments, generate_judgments, generate_non_linear_judgments
from experiments.laboratory import Laboratory, Sizes
from experiments.learning_trial import (
    RANKS,
    Clicked,
    Found,
    Lesson,
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
from experiments.outcomes import Outcome, Row, Verdict, judged, seed_of
from posbias._arrays import FloatArray
from posbias._matplotlib import add_grid
from posbias._optional import optional
from posbias.learning.learners import cautious_factors

# What was aimed at, in nDCG@10.
CLOSE, WORTH, AHEAD, HARMLESS, KEPT = 0.002, 0.015, 0.008, 0.003, 0.9
# With fewer seeds than this a standard error over them tells little.
_ENOUGH_SEEDS = 4
_TREES = ("LightGBM", "XGBoost")
# The rule that is to be used first, of which the promises are.
ADVISED = "cautious"
# A gain below this is no gain of which to keep a share.
_SLIGHT = 0.005
# The page views of a query and the trees at which it is measured: enough of both for the curve to matter.
VIEWS, TREES = 16, 160
_TRUE = "the true curve"
Curve = Callable[[FloatArray, np.random.Generator], FloatArray]
# nDCG@10 by rule and curve, of each η.
WrongCurves = Mapping[float, Mapping[tuple[str, str], float]]
_LESSONS: dict[str, Callable[[Clicked, FloatArray], Lesson]] = {"IPS": ips_lesson, "Poisson": exposure_lesson}
_RULES = (*_LESSONS, "cautious")
NON_LINEAR, LINEAR, DATA = "non-linear judgments", "linear judgments", "judgments of the file"
# For production, beside those to learn from and those held out.
_MORE_QUERIES = 60
_LEAST_QUERIES = 50
# With 128 features learning costs six times as much: the share of queries that is tried.
_LINEAR_QUERIES = 0.4
# Sites whose logs are learned from with wrong curves too.
_WRONG_SEEDS = 0.5


def run_learning(lab: Laboratory) -> Outcome:
    """Learn by every rule with every learner, from logs of every severity and size."""
    kinds = {kind: sizes_of(lab.sizes, kind) for kind in _sources(lab)}
    trials: dict[str, list[Mapping[tuple[float, int], Found]]] = {kind: [] for kind in kinds}
    wrong: list[WrongCurves] = []
    for place, (kind, sizes) in enumerate(kinds.items()):
        for number in range(sizes.learning_seeds):
            site, seed = open_kind(lab, kind, number)
            report = partial(
                _report, lab, kind, place + number / sizes.learning_seeds, sizes.learning_seeds, len(kinds)
            )
            trials[kind].append(try_site(site, sizes, seed, report))
            if place == 0 and number < _WRONG_SEEDS * sizes.learning_seeds:
                wrong.append(try_curves(site, sizes, seed))
    return conclude({kind: collect(trials[kind], sizes) for kind, sizes in kinds.items()}, wrong)


def sizes_of(sizes: Sizes, kind: str) -> Sizes:
    """Return how much is tried of a kind of judgments."""
    if kind != LINEAR:
        return sizes
    return replace(
        sizes,
        learning_queries=max(_LEAST_QUERIES, round(_LINEAR_QUERIES * sizes.learning_queries)),
        learning_seeds=sizes.linear_seeds,
        learning_views=sizes.learning_views[1::2] or sizes.learning_views,
    )


def _sources(lab: Laboratory) -> dict[str, Callable[[int], tuple[Judgments, int]]]:
    """Return what makes the judgments of each kind from a seed, and how many queries to learn from."""
    if not lab.generated:
        return {DATA: lambda seed: (lab.judgments, lab.sizes.learning_queries)}
    generators = {NON_LINEAR: generate_non_linear_judgments, LINEAR: generate_judgments}
    return {kind: partial(_generate, generate, sizes_of(lab.sizes, kind)) for kind, generate in generators.items()}


def _generate(generate: Callable[..., Judgments], sizes: Sizes, seed: int) -> tuple[Judgments, int]:
    queries = sizes.learning_queries
    return generate(2 * queries + _MORE_QUERIES, seed=seed), queries


def open_kind(lab: Laboratory, kind: str, number: int) -> tuple[Site, int]:
    """Return a site and its seed: new judgments where they are generated, and a new split of a file's."""
    seed = seed_of(lab.seed, "learning", kind, number)
    judgments, queries = _sources(lab)[kind](seed)
    return open_site(judgments, queries, seed), seed


def _report(lab: Laboratory, kind: str, before: float, seeds: int, kinds: int, share: float) -> None:
    """Report the share of everything, from the share of one site."""
    lab.progress(f"learning: {kind}", (before + share / seeds) / kinds)


def try_site(
    site: Site, sizes: Sizes, seed: int, report: Callable[[float], None] = lambda share: None
) -> dict[tuple[float, int], Found]:
    """Learn from logs of every severity and size of one site; with what clicks do not matter to in each."""
    labels = learn_from_labels(site, sizes.learning_trees)
    production = np.full(len(sizes.learning_trees), site.production)
    same = labels | {(learner, "production"): production for learner, _ in labels}
    settings = [(eta, views) for eta in sizes.learning_etas for views in sizes.learning_views]
    found = {}
    for done, (eta, views) in enumerate(settings, start=1):
        found[eta, views] = learn_from_clicks(site, eta, views, sizes.learning_trees, seed) | same
        report(done / len(settings))
    return found


def try_curves(site: Site, sizes: Sizes, seed: int) -> WrongCurves:
    """Learn with wrong curves from a log of every severity."""
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


def conclude(payoffs: Mapping[str, Payoffs], wrong: Sequence[WrongCurves]) -> Outcome:
    """Say what all of it comes to."""
    rows = [row for kind, one in payoffs.items() for row in payoff_rows(kind, one)]
    first = next(iter(payoffs.values()))
    curves = curve_rows(wrong, first.etas)
    verdicts = tuple(verdict for kind, one in payoffs.items() for verdict in judge_payoffs(kind, one))
    shown = first.trees[len(first.trees) // 2]
    lines = [line for kind, one in payoffs.items() for line in payoff_lines(kind, one, shown)]
    picture = draw_payoffs(first, shown)
    return Outcome("learning", rows, picture, verdicts, {"curves": curves}, (*lines, *curve_lines(curves)))


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class Payoffs:
    """nDCG@10 by learner and rule, each of shape (η, page views, trees, seeds)."""

    etas: Sequence[float]
    views: Sequence[int]
    trees: Sequence[int]
    ndcg: Mapping[tuple[str, str], FloatArray]

    @property
    def seeds(self) -> int:
        """How many sites were tried."""
        return int(next(iter(self.ndcg.values())).shape[-1])

    def gain(self, learner: str, rule: str, over: str = "naive") -> FloatArray:
        """Return by how much a rule is above another, of the same log and learner."""
        return self.ndcg[learner, rule] - self.ndcg[learner, over]

    def place(self, where: int | np.integer[Any]) -> str:
        """Say where in an array over η, page views and trees something is, by its number."""
        eta, views, trees = (int(index) for index in np.unravel_index(int(where), self.shape))
        return f"η = {self.etas[eta]:g}, {_views(self.views[views])}, {self.trees[trees]} trees"

    @property
    def shape(self) -> tuple[int, int, int]:
        """How many η, page views and numbers of trees there are."""
        return len(self.etas), len(self.views), len(self.trees)


def _views(views: int) -> str:
    return "1 view" if views == 1 else f"{views} views"


def payoff_rows(kind: str, payoffs: Payoffs) -> Iterator[Row]:
    """Yield a row for each learner, rule and setting."""
    for (learner, rule), ndcg in payoffs.ndcg.items():
        mean, error = mean_and_error(ndcg)
        gain, gain_error = mean_and_error(payoffs.gain(learner, rule))
        least = payoffs.gain(learner, rule).min(axis=-1)
        for where in np.ndindex(payoffs.shape):
            eta, views, trees = where
            yield {
                "judgments": kind,
                "learner": learner,
                "rule": rule,
                "eta": payoffs.etas[eta],
                "views": payoffs.views[views],
                "trees": payoffs.trees[trees],
                "seeds": payoffs.seeds,
                "ndcg": float(mean[where]),
                "ndcg_error": float(error[where]),
                "gain": float(gain[where]),
                "gain_error": float(gain_error[where]),
                "least_gain": float(least[where]),
            }


def mean_and_error(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean over seeds, the last axis, and its standard error.

    Example:
        >>> mean_and_error(np.array([1.0, 3.0]))
        (np.float64(2.0), np.float64(1.0))
    """
    seeds = values.shape[-1]
    spread = values.std(axis=-1, ddof=1) if seeds > 1 else np.full(values.shape[:-1], np.nan)
    return values.mean(axis=-1), spread / np.sqrt(seeds)


def curve_rows(logs: Sequence[WrongCurves], etas: Sequence[float]) -> list[Row]:
    """Return what each wrong curve costs against the true one, by rule and η: the mean over logs, and its error."""
    rows: list[Row] = []
    for rule in _RULES:
        for label in WRONG:
            for eta in etas:
                ndcg = np.array([one[eta][rule, label] for one in logs])
                lost, error = mean_and_error(ndcg - [one[eta][rule, _TRUE] for one in logs])
                row = {"rule": rule, "curve": label, "eta": eta, "logs": len(logs), "ndcg": float(ndcg.mean())}
                rows.append(row | {"against_true": float(lost), "standard_error": float(error)})
    return rows


def judge_payoffs(kind: str, payoffs: Payoffs) -> tuple[Verdict, ...]:
    """Return whether correction does on these judgments what was promised of it."""
    enough = payoffs.seeds >= _ENOUGH_SEEDS
    steep = [number for number, eta in enumerate(payoffs.etas) if eta >= 1]
    return (
        _close(kind, payoffs, (ADVISED,), enough),
        _close(kind, payoffs, ("IPS", "Poisson"), enough),
        *([_worth(kind, payoffs, steep, enough)] if steep else []),
        _ahead(kind, payoffs, enough),
        _harmless(kind, payoffs, enough),
        _kept(kind, payoffs, enough),
        _choosing(kind, payoffs, enough),
    )


def _close(kind: str, payoffs: Payoffs, rules: Sequence[str], enough: bool) -> Verdict:
    worst, place, outside, within, of = 0.0, "nowhere", 0, 0, 0
    for rule in rules:
        mean, error = mean_and_error(payoffs.gain("LightGBM", rule, f"{rule}, true p"))
        outside += int((np.abs(mean) - 2 * error > CLOSE).sum())
        within += int((np.abs(mean) <= CLOSE).sum())
        of += mean.size
        where = np.abs(mean).argmax()
        if abs(mean.flat[where]) > abs(worst):
            worst, place = float(mean.flat[where]), f"{rule}, {payoffs.place(where)}"
    return judged(
        f"{kind}: estimated propensities are within {CLOSE} of true ones in nDCG by {' and '.join(rules)}, two "
        "standard errors allowed",
        f"{worst:+.4f} at the most ({place}); outside in {outside} of {of} settings, with nothing allowed in "
        f"{of - within}",
        outside == 0,
        enough=enough,
    )


def _worth(kind: str, payoffs: Payoffs, steep: Sequence[int], enough: bool) -> Verdict:
    gains = {learner: payoffs.gain(learner, ADVISED)[steep] for learner in _TREES}
    told = []
    for number, views in enumerate(payoffs.views):
        of_views = np.stack([gain[:, number] for gain in gains.values()])
        told.append(f"{_views(views)}: {of_views.min():+.3f}, on average {of_views.mean():+.3f}")
    least = min(float(gain.min()) for gain in gains.values())
    return judged(
        f"{kind}: the cautious blend gains {WORTH} or more over no correction at η of 1 and 2, in every seed",
        f"least gain of a seed at {'; at '.join(told)}",
        least >= WORTH,
        enough=enough,
    )


def _ahead(kind: str, payoffs: Payoffs, enough: bool) -> Verdict:
    mean, error = mean_and_error(payoffs.gain("XGBoost", ADVISED, "lambdarank_unbiased"))
    where = mean.argmin()
    below = int((mean + 2 * error < AHEAD).sum())
    return judged(
        f"{kind}: the cautious blend is {AHEAD} or more above XGBoost's lambdarank_unbiased, two standard errors "
        "allowed",
        f"{mean.min():+.3f} at the least ({payoffs.place(where)}), {mean.mean():+.3f} on average; below in {below} of "
        f"{mean.size} settings, with nothing allowed in {int((mean < AHEAD).sum())}",
        below == 0,
        enough=enough,
    )


def _harmless(kind: str, payoffs: Payoffs, enough: bool) -> Verdict:
    gains = {learner: payoffs.gain(learner, ADVISED) for learner in _TREES}
    mean, error = mean_and_error(np.stack(list(gains.values())))
    worst = np.unravel_index(mean.argmin(), mean.shape)
    lost = sum(int((gain < -HARMLESS).sum()) for gain in gains.values())
    below = int((mean + 2 * error < -HARMLESS).sum())
    return judged(
        f"{kind}: the cautious blend is never worse than no correction by more than {HARMLESS}, two standard errors "
        "allowed",
        f"{mean[worst]:+.4f} ± {error[worst]:.4f} at the least ({_where(payoffs, mean.argmin())}); worse in {below} of "
        f"{mean.size} settings, with nothing allowed in {int((mean < -HARMLESS).sum())}, and in {lost} of "
        f"{mean.size * payoffs.seeds} single runs",
        below == 0,
        enough=enough,
    )


def _where(payoffs: Payoffs, number: int | np.integer[Any]) -> str:
    """Say where in an array over learners with trees, η, page views and trees something is, by its number."""
    learner, setting = divmod(int(number), int(np.prod(payoffs.shape)))
    return f"{_TREES[learner]}, {payoffs.place(setting)}"


def _kept(kind: str, payoffs: Payoffs, enough: bool) -> Verdict:
    either = np.stack([[payoffs.gain(learner, rule) for rule in ("IPS", "Poisson")] for learner in _TREES])
    ours = np.stack([payoffs.gain(learner, ADVISED) for learner in _TREES])
    # The better of both on average over seeds, not of each seed: that would be to choose by what nobody knows.
    first = either.mean(axis=-1)[:, 0] >= either.mean(axis=-1)[:, 1]
    better = np.where(first[..., None], either[:, 0], either[:, 1])
    counts = better.mean(axis=-1) >= _SLIGHT
    share = np.where(counts, ours.mean(axis=-1) / np.where(counts, better.mean(axis=-1), 1), np.inf)
    mean, error = mean_and_error(ours - KEPT * better)
    below = int((counts & (mean + 2 * error < 0)).sum())
    place = _where(payoffs, share.argmin()) if counts.any() else "nowhere"
    return judged(
        f"{kind}: the cautious blend keeps {KEPT:.0%} or more of the better of IPS and Poisson where that gains "
        f"{_SLIGHT}, two standard errors allowed",
        f"{share.min():.0%} at the least ({place}); less in {below} of {int(counts.sum())} settings, with nothing "
        f"allowed in {int((share < KEPT).sum())}",
        below == 0,
        enough=enough and bool(counts.any()),
    )


def _choosing(kind: str, payoffs: Payoffs, enough: bool) -> Verdict:
    gain, _ = mean_and_error(payoffs.gain("LightGBM", "chosen"))
    return judged(
        f"{kind}: to choose one of the two by cross-validation is never worse than none by more than {HARMLESS}",
        f"{gain.min():+.4f} at the least ({payoffs.place(gain.argmin())})",
        gain.min() >= -HARMLESS,
        enough=enough,
    )


def payoff_lines(kind: str, payoffs: Payoffs, trees: int) -> Iterator[str]:
    """Yield the gains over no correction in thousandths, by learner and rule, at one number of trees."""
    number = list(payoffs.trees).index(trees)
    yield ""
    yield (
        f"{kind}, {trees} trees: nDCG@10 of no correction, and gains over it × 1,000 at η = "
        f"{' / '.join(f'{eta:g}' for eta in payoffs.etas)}"
    )
    yield " | ".join(["learner", "rule", *map(_views, payoffs.views)])
    for learner, rule in payoffs.ndcg:
        if rule == "naive":
            mean = payoffs.ndcg[learner, rule][:, :, number].mean(axis=-1)
            cells = [" / ".join(f"{value:.3f}" for value in column) for column in mean.T]
        else:
            mean = 1000 * payoffs.gain(learner, rule)[:, :, number].mean(axis=-1)
            cells = [" / ".join(f"{value:+.0f}" for value in column) for column in mean.T]
        yield " | ".join([learner, rule, *cells])


def draw_payoffs(payoffs: Payoffs, trees: int) -> Any:
    """Draw gains over no correction by page views, a column for each η and a row for each learner with trees."""
    figure = optional("matplotlib.figure", "Pictures need").Figure(figsize=(9.0, 5.6), layout="constrained")
    number = list(payoffs.trees).index(trees)
    rules = ("IPS", "Poisson", "cautious")
    own = {"LightGBM": "position", "XGBoost": "lambdarank_unbiased"}
    grid = figure.subplots(len(own), len(payoffs.etas), sharex=True, sharey=True, squeeze=False)
    for row, (learner, other) in zip(grid, own.items(), strict=True):
        for column, axes in enumerate(row):
            add_grid(axes).axhline(0, color="black", linewidth=0.8)
            for place, rule in enumerate((*rules, other)):
                mean, error = mean_and_error(payoffs.gain(learner, rule)[column, :, number])
                x = aside(payoffs.views, place, True) if len(payoffs.views) > 1 else payoffs.views
                label = "its own correction" if rule == other else rule
                axes.errorbar(x, mean, yerr=2 * error, **style_of(rule, place), markersize=3.5, capsize=2, label=label)
            axes.set_xscale("log")
            axes.set_xticks(list(payoffs.views), [str(views) for views in payoffs.views])
            axes.minorticks_off()
            axes.set_title(f"{learner}, η = {payoffs.etas[column]:g}", fontsize=10)
        row[0].set_ylabel("Gain in nDCG@10")
    for axes in grid[-1]:
        axes.set_xlabel("Page views a query")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def curve_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table of what wrong curves cost, in thousandths."""
    etas = sorted({row["eta"] for row in rows})
    yield ""
    yield (
        f"What a wrong curve costs against the true one, nDCG@10 × 1,000 ({VIEWS} views, LightGBM, {TREES} trees), at "
        f"η = {' / '.join(f'{eta:g}' for eta in etas)}"
    )
    yield " | ".join(["curve", *_RULES])
    for label in WRONG:
        lost = {(row["rule"], row["eta"]): row["against_true"] for row in rows if row["curve"] == label}
        cells = [" / ".join(f"{1000 * lost[rule, eta]:+.1f}" for eta in etas) for rule in _RULES]
        yield " | ".join([label, *cells])


def collect(trials: Sequence[Mapping[tuple[float, int], Found]], sizes: Sizes) -> Payoffs:
    """Bring the trials of all seeds together."""
    etas, views = sizes.learning_etas, sizes.learning_views
    first = trials[0][etas[0], views[0]]
    learners = sorted({learner for learner, _ in first}, key=[learner for learner, _ in first].index)
    ndcg = {
        name: np.array([[np.stack([t[eta, view][name] for t in trials], axis=-1) for view in views] for eta in etas])
        for learner in learners
        for name in first
        if name[0] == learner
    }
    return Payoffs(etas, views, sizes.learning_trees, ndcg)
