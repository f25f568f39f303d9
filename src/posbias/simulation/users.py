"""Simulated users: how people click on a page, by the position-based model and against its assumptions.

A page is a row of relevance grades in the order shown, with -1 where there is no result. A user's `click` takes an
array of pages (page views x M) and a random generator, and returns which results are clicked. `PositionBased` follows
the assumptions of the estimators; each of the other users breaks one of them, which its docstring names.
"""

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
    """The interface of a user."""

    def click(self, grades: Grades, rng: np.random.Generator) -> BoolArray:
        """Draw the clicks on pages of results with these grades (page views x M; -1 for no result)."""
        ...


@dataclass(frozen=True)
class PositionBased:
    """The paper's user: examines rank r with probability p_r = (1/r)^eta, and clicks what is relevant.

    It breaks no assumption: every estimator should recover `propensity`.

    Arguments:
        eta (float, default 1.0): the severity of the position bias; 0 is none.
        noise (float, default 0.1): the paper's ε₋: how often an examined irrelevant result is clicked.
        graded (bool, default False): whether attractiveness rises with the grade g, as
            noise + (1 - noise)(2^g - 1)/(2^max_grade - 1), in place of relevant or not.
        threshold (int, default 3): the lowest grade that is relevant.
        max_grade (int, default 4): the best grade.

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
            return zero_if_empty(grades, self.noise + (1 - self.noise) * np.minimum(gain, 1))
        return zero_if_empty(grades, np.where(grades >= self.threshold, 1.0, self.noise))

    def click(self, grades: Grades, rng: np.random.Generator) -> BoolArray:
        """Draw the clicks on pages of results with these grades."""
        return draw_clicks(self.propensity(grades.shape[1]) * self.attractiveness(grades), rng)


@dataclass(frozen=True)
class TrustBias:
    """Users who trust high ranks: P(click) = p_r (ε₊_r rel + ε₋_r (1 - rel)).

    Broken assumption: P(click) is p_r times a factor that depends only on the result. Irrelevant results gain more from
    the top ranks than relevant ones, so no single curve fits both, and pairs of ranks contradict each other.

    Arguments:
        eta (float, default 1.0): the severity of the position bias.
        noise (float, default 0.1): ε₋ far down the page.
        trust (float, default 0.5): what the top ranks add to it: ε₋_r = noise + trust / r.
        doubt (float, default 0.2): what low ranks take from relevant results: ε₊_r = 1 - doubt (1 - 1/r).
        threshold (int, default 3): the lowest grade that is relevant.

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
        """Return the true examination curve p_r / p_1 for r = 1..M."""
        return examination(self.eta, max_rank)

    def eps_plus(self, max_rank: int) -> FloatArray:
        """Return P(click | examined, relevant) at each rank."""
        return 1 - self.doubt * (1 - examination(1, max_rank))

    def eps_minus(self, max_rank: int) -> FloatArray:
        """Return P(click | examined, irrelevant) at each rank."""
        return self.noise + self.trust * examination(1, max_rank)

    def click(self, grades: Grades, rng: np.random.Generator) -> BoolArray:
        """Draw the clicks on pages of results with these grades."""
        ranks = grades.shape[1]
        chances = np.where(grades >= self.threshold, self.eps_plus(ranks), self.eps_minus(ranks))
        return draw_clicks(self.propensity(ranks) * zero_if_empty(grades, chances), rng)


@dataclass(frozen=True)
class Cascade:
    """Users who read from the top and stop at their first click.

    Broken assumption: examination depends on the rank alone. Here it depends on the results above, so there is no curve
    p_r.

    Arguments:
        noise (float, default 0.1): how often an irrelevant result that is read is clicked.
        threshold (int, default 3): the lowest grade that is relevant.

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
        """Draw the clicks on pages of results with these grades."""
        clicks = draw_clicks(zero_if_empty(grades, np.where(grades >= self.threshold, 1.0, self.noise)), rng)
        return _first_click(clicks)


@dataclass(frozen=True)
class AtMostOneClick:
    """A user on a page that closes at the first click, such as the overlay of Google Drive.

    Broken assumption: a click depends on its own result alone. Here one click prevents the others.

    Arguments:
        user (User): who clicks.
        keep (str, default "random"): which of several clicks on a page is kept: the "first" from the top, or a "random"
            one.

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
        """Draw the clicks on pages of results with these grades."""
        clicks = self.user.click(grades, rng)
        if self.keep == "first":
            return _first_click(clicks)
        chosen = np.where(clicks, rng.random(clicks.shape), -1).argmax(axis=1)
        return np.asarray(clicks & (np.arange(clicks.shape[1]) == chosen[:, None]))


def check_share(name: str, value: float) -> None:
    """Raise an error for a number that is not from 0 to 1."""
    if not 0 <= value <= 1:
        raise PosbiasError(f"{name} must be from 0 to 1, found {value!r}")


def check_eta(eta: float) -> None:
    """Raise an error for an eta that is negative or not finite."""
    if not 0 <= eta < np.inf:
        raise PosbiasError(f"eta must be a number of 0 or more, found {eta!r}")


def examination(eta: float, max_rank: int) -> FloatArray:
    """Return the probability that each rank is examined."""
    # p_r = (1/r)^eta, section "Robustness Analysis".
    return np.asarray((1.0 / np.arange(1, max_rank + 1)) ** eta)


def zero_if_empty(grades: Grades, chances: FloatArray) -> FloatArray:
    """Return probabilities of a click, 0 where there is no result."""
    return np.where(grades >= 0, chances, 0.0)


def draw_clicks(chances: FloatArray, rng: np.random.Generator) -> BoolArray:
    """Draw clicks with these probabilities."""
    return np.asarray(rng.random(chances.shape) < chances)


def _first_click(clicks: BoolArray) -> BoolArray:
    return np.asarray(clicks & (np.cumsum(clicks, axis=1) == 1))


@dataclass(frozen=True)
class Segmented:
    """Several kinds of users, one of them drawn for each page view: the curve differs between segments.

    Broken assumption: one curve holds for the whole log. It holds within a segment (`harvest(log, by=["device"])`).

    Arguments:
        users (mapping of str to User): a user for each segment.
        column (str, default "device"): the column of the log that names the segment.

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
        """Return the true curve of the whole log: the mean of the segments' curves."""
        curves = [cast(Any, user).propensity(max_rank) for user in self.users.values()]
        return cast(FloatArray, np.mean(curves, axis=0))

    def assign(self, views: int, rng: np.random.Generator) -> IntArray:
        """Draw the segment of each page view, as its place in `users`."""
        return rng.integers(0, len(self.users), size=views)

    def click(self, grades: Grades, rng: np.random.Generator, segments: IntArray | None = None) -> BoolArray:
        """Draw the clicks of the users of these segments, which are drawn if not given."""
        segments = self.assign(len(grades), rng) if segments is None else segments
        clicks = np.zeros(grades.shape, dtype=np.bool_)
        for number, user in enumerate(self.users.values()):
            clicks[segments == number] = user.click(grades[segments == number], rng)
        return clicks


@dataclass(frozen=True)
class NeighbourBias:
    """Users whom a relevant result distracts from its neighbours.

    P(click) = p_r a (1 - distraction n), where a is the attractiveness of the result for a `PositionBased` user, and n
    the share of relevant results among the neighbours above and below.

    Broken assumption: a click depends on the rank and its own result alone. A document between better results gets
    fewer clicks, and rankers differ in what they put around it.

    Arguments:
        eta (float, default 1.0): the severity of the position bias.
        noise (float, default 0.1): how often an examined irrelevant result is clicked.
        distraction (float, default 0.3): the share of clicks that a result between two relevant ones loses.
        threshold (int, default 3): the lowest grade that is relevant.

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
        """Return the factor by which neighbours lower the probability of a click on each result."""
        relevant = np.pad(grades >= self.threshold, ((0, 0), (1, 1)))
        exists = np.pad(grades >= 0, ((0, 0), (1, 1)))
        near, neighbours = (page[:, :-2].astype(np.float64) + page[:, 2:] for page in (relevant, exists))
        return np.asarray(1 - self.distraction * near / np.maximum(neighbours, 1))

    def click(self, grades: Grades, rng: np.random.Generator) -> BoolArray:
        """Draw the clicks on pages of results with these grades."""
        alone = PositionBased(self.eta, self.noise, threshold=self.threshold)
        chances = alone.propensity(grades.shape[1]) * alone.attractiveness(grades)
        return draw_clicks(chances * self.attention(grades), rng)


@dataclass(frozen=True)
class AttractionBias:
    """Users who notice relevant results further down: these are examined with p_r = (1/r)^(eta (1 - pull)).

    Broken assumption: examination depends on the rank alone. Relevant results lose less by a low rank than irrelevant
    ones, so no single curve fits both.

    Arguments:
        eta (float, default 1.0): the severity of the position bias for irrelevant results.
        noise (float, default 0.1): how often an examined irrelevant result is clicked.
        pull (float, default 0.2): by which share the position bias is lower for relevant results.
        threshold (int, default 3): the lowest grade that is relevant.

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
        """Return the probability that each result is examined."""
        ranks = grades.shape[1]
        drawn, plain = examination(self.eta * (1 - self.pull), ranks), examination(self.eta, ranks)
        return zero_if_empty(grades, np.where(grades >= self.threshold, drawn, plain))

    def click(self, grades: Grades, rng: np.random.Generator) -> BoolArray:
        """Draw the clicks on pages of results with these grades."""
        return draw_clicks(self.examination(grades) * np.where(grades >= self.threshold, 1.0, self.noise), rng)


@dataclass(frozen=True)
class Crawled:
    """A user, and a crawler that opens some of the pages and follows every link.

    Broken assumption: people make the clicks. The pages of a crawler have no position bias, and flatten the curve.

    Arguments:
        user (User, default PositionBased()): who clicks on the other pages.
        share (float, default 0.02): the share of page views that are the crawler's.

    Example:
        >>> Crawled(share=1).click(np.array([[0, 4, -1]]), np.random.default_rng(0)).astype(int).tolist()
        [[1, 1, 0]]
    """

    user: User = field(default_factory=PositionBased)
    share: float = 0.02

    def __post_init__(self) -> None:
        check_share("share", self.share)

    def click(self, grades: Grades, rng: np.random.Generator) -> BoolArray:
        """Draw the clicks on pages of results with these grades."""
        clicks = self.user.click(grades, rng)
        crawled = rng.random(len(grades)) < self.share
        return np.asarray(np.where(crawled[:, None], grades >= 0, clicks))
