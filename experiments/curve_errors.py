"""How the error of a curve turns into nDCG: rankers learned with curves that are wrong by so much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from experiments.clicked import Clicked, draw_clicks
from experiments.gains import RANKS, Site, add_up, exposure_lesson, ips_lesson
from experiments.learners import Lesson, learn_lightgbm
from experiments.outcomes import Row, seed_of
from experiments.payoffs import mean_and_error
from posbias._arrays import FloatArray
from posbias.learning.learners import cautious_factors

# The page views of a query and the trees at which it is measured: enough of both for the curve to matter.
VIEWS, TREES = 16, 160
_TRUE = "the true curve"

Curve = Callable[[FloatArray, np.random.Generator], FloatArray]


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


# nDCG@10 by rule and curve, of each η.
WrongCurves = Mapping[float, Mapping[tuple[str, str], float]]
_LESSONS: dict[str, Callable[[Clicked, FloatArray], Lesson]] = {"IPS": ips_lesson, "Poisson": exposure_lesson}
_RULES = (*_LESSONS, "cautious")


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
