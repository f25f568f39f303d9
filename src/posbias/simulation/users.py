"""Users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

from posbias._arrays import BoolArray, FloatArray, IntArray
from posbias.errors import PosbiasError

Grades = npt.NDArray[Any]


class User(Protocol):
    """Whoever looks at pages and clicks."""

    def click(self, grades: Grades, rng: np.random.Generator) -> BoolArray:
        """Return what is clicked on pages whose results have these grades (views x M; -1: no result)."""
        ...


@dataclass(frozen=True)
class PositionBased:
    """The paper's user: examines rank r with p_r = (1/r)^eta, whatever else is there, and clicks what is relevant.

    Breaks no assumption: every estimator should recover `propensity`.

    Arguments:
        eta: severity of the position bias: 0 is none.
        noise: the paper's ε₋: how often an examined irrelevant result is clicked.
        graded: attractiveness rises with the grade g, as noise + (1 - noise)(2^g - 1)/(2^max_grade - 1), in place of
            relevant or not.
        threshold: the lowest grade that is relevant.
        max_grade: the best grade there is.

    Example:
        >>> user = PositionBased(eta=1, noise=0.1)
        >>> user.propensity(4).round(2).tolist()
        [1.0, 0.5, 0.33, 0.25]
        >>> pages = np.array([[4, 0]] * 10_000)
        >>> user.click(pages, np.random.default_rng(0)).mean(axis=0).round(2).tolist()
        [1.0, 0.05]

    Reference: Agarwal et al., WSDM 2019, section "Robustness Analysis".
    """

    eta: float = 1.0
    noise: float = 0.1
    graded: bool = False
    threshold: int = 3
    max_grade: int = 4

    def __post_init__(self) -> None:
        check_share("noise", self.noise)
        check_eta(self.eta)

    def propensity(self, max_rank: int) -> FloatArray:
        """Return the true p_r / p_1 for r = 1..M."""
        return examination(self.eta, max_rank)

    def attractiveness(self, grades: Grades) -> FloatArray:
        """Return P(click | examined) for each result."""
        if self.graded:
            gain = (2.0 ** np.maximum(grades, 0) - 1) / (2.0**self.max_grade - 1)
            return shown_only(grades, self.noise + (1 - self.noise) * np.minimum(gain, 1))
        return shown_only(grades, np.where(grades >= self.threshold, 1.0, self.noise))

    def click(self, grades: Grades, rng: np.random.Generator) -> BoolArray:
        """Return what is clicked."""
        return draw(self.propensity(grades.shape[1]) * self.attractiveness(grades), rng)


@dataclass(frozen=True)
class TrustBias:
    """Users who take a high rank for a sign of quality: P(click) = p_r (ε₊_r rel + ε₋_r (1 - rel)).

    Breaks: that P(click) is p_r times something that depends only on the result. Irrelevant results gain more from
    the top than relevant ones, so that no one curve fits both, and pairs of ranks contradict each other.

    Arguments:
        eta: severity of the position bias.
        noise: ε₋ far down the page.
        trust: what the top adds to it: ε₋_r = noise + trust / r.
        doubt: what a low rank takes from relevant results: ε₊_r = 1 - doubt (1 - 1/r).
        threshold: the lowest grade that is relevant.

    Example:
        >>> user = TrustBias(noise=0.1, trust=0.5, doubt=0.2)
        >>> user.eps_minus(2).tolist(), user.eps_plus(2).tolist(), user.propensity(2).tolist()
        ([0.6, 0.35], [1.0, 0.9], [1.0, 0.5])

    Reference: Agarwal et al., Addressing Trust Bias for Unbiased Learning-to-Rank, WWW 2019.
    """

    eta: float = 1.0
    noise: float = 0.1
    trust: float = 0.5
    doubt: float = 0.2
    threshold: int = 3

    def __post_init__(self) -> None:
        check_share("noise", self.noise)
        check_share("noise + trust", self.noise + self.trust)
        check_share("doubt", self.doubt)
        check_eta(self.eta)

    def propensity(self, max_rank: int) -> FloatArray:
        """Return the examination curve p_r / p_1, which click rates alone do not show."""
        return examination(self.eta, max_rank)

    def eps_plus(self, max_rank: int) -> FloatArray:
        """Return P(click | examined, relevant) at each rank."""
        return 1 - self.doubt * (1 - examination(1, max_rank))

    def eps_minus(self, max_rank: int) -> FloatArray:
        """Return P(click | examined, irrelevant) at each rank."""
        return self.noise + self.trust * examination(1, max_rank)

    def click(self, grades: Grades, rng: np.random.Generator) -> BoolArray:
        """Return what is clicked."""
        ranks = grades.shape[1]
        believed = np.where(grades >= self.threshold, self.eps_plus(ranks), self.eps_minus(ranks))
        return draw(self.propensity(ranks) * shown_only(grades, believed), rng)


@dataclass(frozen=True)
class Cascade:
    """Users who read from the top and stop at their first click.

    Breaks: that examination depends on the rank alone. What stands above decides, so there is no one curve p_r.

    Arguments:
        noise: how often an irrelevant result that is read is clicked.
        threshold: the lowest grade that is relevant.

    Example:
        >>> Cascade(noise=0).click(np.array([[0, 4, 4], [4, 0, 4]]), np.random.default_rng(0)).astype(int).tolist()
        [[0, 1, 0], [1, 0, 0]]

    Reference: Craswell et al., An Experimental Comparison of Click Position-Bias Models, WSDM 2008.
    """

    noise: float = 0.1
    threshold: int = 3

    def __post_init__(self) -> None:
        check_share("noise", self.noise)

    def click(self, grades: Grades, rng: np.random.Generator) -> BoolArray:
        """Return what is clicked."""
        liked = draw(shown_only(grades, np.where(grades >= self.threshold, 1.0, self.noise)), rng)
        return _first(liked)


@dataclass(frozen=True)
class AtMostOneClick:
    """Another user on a page that goes away when it is clicked, such as the overlay of Google Drive.

    Breaks: that a click depends on its own result alone, as one click keeps the others from happening.

    Arguments:
        user: who would click.
        keep: which of the clicks that would have been happens: the "first" from the top, or a "random" one.

    Example:
        >>> one = AtMostOneClick(PositionBased(eta=0, noise=1), keep="first")
        >>> one.click(np.zeros((2, 3)), np.random.default_rng(0)).astype(int).tolist()
        [[1, 0, 0], [1, 0, 0]]
    """

    user: User
    keep: Literal["first", "random"] = "random"

    def __post_init__(self) -> None:
        if self.keep not in ("first", "random"):
            raise PosbiasError(f"keep must be 'first' or 'random', found {self.keep!r}")

    def click(self, grades: Grades, rng: np.random.Generator) -> BoolArray:
        """Return what is clicked."""
        clicks = self.user.click(grades, rng)
        if self.keep == "first":
            return _first(clicks)
        chosen = np.where(clicks, rng.random(clicks.shape), -1).argmax(axis=1)
        return np.asarray(clicks & (np.arange(clicks.shape[1]) == chosen[:, None]))


def check_share(name: str, value: float) -> None:
    """Refuse what is no share."""
    if not 0 <= value <= 1:
        raise PosbiasError(f"{name} must be from 0 to 1, found {value!r}")


def check_eta(eta: float) -> None:
    """Refuse what is no severity of a position bias."""
    if not 0 <= eta < np.inf:
        raise PosbiasError(f"eta must be a number of 0 or more, found {eta!r}")


def examination(eta: float, max_rank: int) -> FloatArray:
    """Return how often each rank is examined."""
    # p_r = (1/r)^eta, section "Robustness Analysis".
    return np.asarray((1.0 / np.arange(1, max_rank + 1)) ** eta)


def shown_only(grades: Grades, chances: FloatArray) -> FloatArray:
    """Return chances, none where there is no result."""
    return np.where(grades >= 0, chances, 0.0)


def draw(chances: FloatArray, rng: np.random.Generator) -> BoolArray:
    """Return clicks, each by its chance."""
    return np.asarray(rng.random(chances.shape) < chances)


def _first(clicks: BoolArray) -> BoolArray:
    return np.asarray(clicks & (np.cumsum(clicks, axis=1) == 1))


@dataclass(frozen=True)
class Segmented:
    """Several kinds of users, of which each page view gets one at random: a curve that differs between segments.

    Breaks: that one curve holds for the whole log. Within a segment it does (`harvest(log, by=["device"])`).

    Arguments:
        users: a user for each segment.
        column: the log's column that tells the segment.

    Example:
        >>> users = Segmented({"desktop": PositionBased(eta=0), "phone": PositionBased(eta=1)})
        >>> users.propensity(3).round(3).tolist()
        [1.0, 0.75, 0.667]
    """

    users: Mapping[str, User] = field(hash=False)
    column: str = "device"

    def __post_init__(self) -> None:
        if not self.users:
            raise PosbiasError("users must have at least one segment, such as {'phone': PositionBased(eta=1.5)}")
        object.__setattr__(self, "users", dict(self.users))

    def propensity(self, max_rank: int) -> FloatArray:
        """Return the curve of the log as a whole: the mean of the segments' curves."""
        curves = [cast(Any, user).propensity(max_rank) for user in self.users.values()]
        return cast(FloatArray, np.mean(curves, axis=0))

    def assign(self, views: int, rng: np.random.Generator) -> IntArray:
        """Return the segment of each page view, by its place in `users`."""
        return rng.integers(0, len(self.users), size=views)

    def click(self, grades: Grades, rng: np.random.Generator, segments: IntArray | None = None) -> BoolArray:
        """Return what is clicked by the users of these segments, or of segments drawn."""
        segments = self.assign(len(grades), rng) if segments is None else segments
        clicks = np.zeros(grades.shape, dtype=np.bool_)
        for number, user in enumerate(self.users.values()):
            clicks[segments == number] = user.click(grades[segments == number], rng)
        return clicks


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
