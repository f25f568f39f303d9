"""Users whose eyes what is shown draws, next to a result or the result itself; and visitors that have no eyes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from posbias.arrays import BoolArray, FloatArray
from posbias.simulation.users import Grades, PositionBased, User, check_eta, check_share, draw, examination, shown_only


@dataclass(frozen=True)
class NeighbourBias:
    """Users whom a relevant result draws away from those next to it.

    P(click) = p_r a (1 - distraction n), with a what a `PositionBased` user thinks of the result and n the share of the
    results next to it, above and below, that are relevant. Breaks: that a click depends on the rank and its own result
    alone. Rankers that put better results around a document get fewer clicks on it.

    Arguments:
        eta: severity of the position bias.
        noise: how often an examined irrelevant result is clicked.
        distraction: the share of clicks that are lost between two relevant results.
        threshold: the lowest grade that is relevant.

    Example:
        >>> NeighbourBias(distraction=0.4).attention(np.array([[4, 0, 4, 0, 0]])).round(2).tolist()
        [[1.0, 0.6, 1.0, 0.8, 1.0]]

    Reference: Zhuang et al., Cross-Positional Attention for Debiasing Clicks, WWW 2021.
    """

    eta: float = 1.0
    noise: float = 0.1
    distraction: float = 0.3
    threshold: int = 3

    def __post_init__(self) -> None:
        check_share("noise", self.noise)
        check_share("distraction", self.distraction)
        check_eta(self.eta)

    def attention(self, grades: Grades) -> FloatArray:
        """Return what neighbours leave of the chance of each result."""
        relevant = np.pad(grades >= self.threshold, ((0, 0), (1, 1)))
        beside = np.pad(grades >= 0, ((0, 0), (1, 1)))
        near, there = (both[:, :-2].astype(np.float64) + both[:, 2:] for both in (relevant, beside))
        return np.asarray(1 - self.distraction * near / np.maximum(there, 1))

    def click(self, grades: Grades, rng: np.random.Generator) -> BoolArray:
        """Return what is clicked."""
        alone = PositionBased(self.eta, self.noise, threshold=self.threshold)
        chances = alone.propensity(grades.shape[1]) * alone.attractiveness(grades)
        return draw(chances * self.attention(grades), rng)


@dataclass(frozen=True)
class AttractionBias:
    """Users whose eyes a relevant result draws from further up: it is examined with p_r = (1/r)^(eta (1 - pull)).

    Breaks: that examination depends on the rank alone. Relevant results lose less by a low rank than irrelevant ones,
    so that no one curve fits both.

    Arguments:
        eta: severity of the position bias for irrelevant results.
        noise: how often an examined irrelevant result is clicked.
        pull: how much of it relevant results are spared.
        threshold: the lowest grade that is relevant.

    Example:
        >>> AttractionBias(pull=0.5).examination(np.array([[0, 0, 0, 4]])).round(2).tolist()
        [[1.0, 0.5, 0.33, 0.5]]

    Reference: Yue, Patel, Roehrig, Beyond Position Bias: Examining Result Attractiveness as a Source of Presentation
    Bias in Clickthrough Data, WWW 2010.
    """

    eta: float = 1.0
    noise: float = 0.1
    pull: float = 0.2
    threshold: int = 3

    def __post_init__(self) -> None:
        check_share("noise", self.noise)
        check_share("pull", self.pull)
        check_eta(self.eta)

    def examination(self, grades: Grades) -> FloatArray:
        """Return P(examined) of each result."""
        ranks = grades.shape[1]
        drawn, plain = examination(self.eta * (1 - self.pull), ranks), examination(self.eta, ranks)
        return shown_only(grades, np.where(grades >= self.threshold, drawn, plain))

    def click(self, grades: Grades, rng: np.random.Generator) -> BoolArray:
        """Return what is clicked."""
        return draw(self.examination(grades) * np.where(grades >= self.threshold, 1.0, self.noise), rng)


@dataclass(frozen=True)
class Crawled:
    """Another user on pages of which some are opened by a crawler, which follows every link.

    Breaks: that clicks are made by people. Pages of crawlers have no position bias, and flatten the curve.

    Arguments:
        user: who clicks on the other pages.
        share: of the page views that are the crawler's.

    Example:
        >>> Crawled(share=1).click(np.array([[0, 4, -1]]), np.random.default_rng(0)).astype(int).tolist()
        [[1, 1, 0]]
    """

    user: User = field(default_factory=PositionBased)
    share: float = 0.02

    def __post_init__(self) -> None:
        check_share("share", self.share)

    def click(self, grades: Grades, rng: np.random.Generator) -> BoolArray:
        """Return what is clicked."""
        clicks = self.user.click(grades, rng)
        crawled = rng.random(len(grades)) < self.share
        return np.asarray(np.where(crawled[:, None], grades >= 0, clicks))
