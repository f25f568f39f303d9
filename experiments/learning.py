"""Does correction pay? Rankers learned from clicks as they are, and corrected, on two kinds of judgments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from experiments.curve_errors import WrongCurves, curve_lines, curve_rows, learn_from_wrong_curves
from experiments.figures import draw_payoffs
from experiments.gains import Found, Site, learn_from_clicks, learn_from_labels, open_site
from experiments.generated import generate_judgments
from experiments.judgments import Judgments
from experiments.laboratory import Laboratory, Sizes
from experiments.non_linear import generate_non_linear_judgments
from experiments.outcomes import Outcome, seed_of
from experiments.payoffs import Payoffs, judge_payoffs, payoff_lines, payoff_rows

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


def _report(lab: Laboratory, kind: str, before: float, seeds: int, kinds: int, share: float) -> None:
    """Report the share of everything, from the share of one site."""
    lab.progress(f"learning: {kind}", (before + share / seeds) / kinds)


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


def open_kind(lab: Laboratory, kind: str, number: int) -> tuple[Site, int]:
    """Return a site and its seed: new judgments where they are generated, and a new split of a file's."""
    seed = seed_of(lab.seed, "learning", kind, number)
    judgments, queries = _sources(lab)[kind](seed)
    return open_site(judgments, queries, seed), seed


def _sources(lab: Laboratory) -> dict[str, Callable[[int], tuple[Judgments, int]]]:
    """Return what makes the judgments of each kind from a seed, and how many queries to learn from."""
    if not lab.generated:
        return {DATA: lambda seed: (lab.judgments, lab.sizes.learning_queries)}
    generators = {NON_LINEAR: generate_non_linear_judgments, LINEAR: generate_judgments}
    return {kind: partial(_generate, generate, sizes_of(lab.sizes, kind)) for kind, generate in generators.items()}


def _generate(generate: Callable[..., Judgments], sizes: Sizes, seed: int) -> tuple[Judgments, int]:
    queries = sizes.learning_queries
    return generate(2 * queries + _MORE_QUERIES, seed=seed), queries


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
