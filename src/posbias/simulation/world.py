"""A world: how simulated users and rankers behave, and the true propensities that estimates are compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from posbias._arrays import FloatArray
from posbias._defaults import DEFAULT_MAX_RANK
from posbias._validate import number
from posbias.errors import PosbiasError

# Ranks are stored as int16.
_MOST_CANDIDATES = int(np.iinfo(np.int16).max)
# Page views of one query are drawn together.
_MOST_REPEATS = 1_000_000


@dataclass(frozen=True)
class World:
    """A simulated search engine: rankers of known similarity, users of known position bias.

    Clicks follow the position-based model of the paper, section "Robustness Analysis": at rank r a relevant document is
    clicked with probability p_r = (1/r)^eta, an irrelevant one with probability p_r times `noise`. A ranker scores a
    document by `quality` times its relevance plus Gaussian noise of variance 1.

    Arguments:
        rankers (tuple of str, default ("a", "b")): the names of the rankers. They become values of the column `ranker`
            and the columns `rank_<name>`.
        similarity (float, default 0.8): the share of the rankers' noise that all have in common, from 0 (independent)
            to 1 (identical rankings, if the rankers also have the same quality). By default 0 puts 8% of documents at
            the same rank, 0.8 puts 19% and 0.99 puts 57%: `agreement` measures it.
        quality (float or tuple of float, default 1.0): how strongly scores follow relevance, for all rankers or for
            each.
        traffic (tuple of float or None, default None): the weights by which each page view is assigned to a ranker,
            independently. Equal if None.
        eta (float, default 1.0): the severity of the position bias; 0 is none. Not used if there are `segments`.
        noise (float, default 0.1): the paper's epsilon minus: how often an examined irrelevant document is clicked.
        max_rank (int, default 10): M, the number of results on a page.
        candidates (int or None, default None): how many documents each query ranks; `max_rank` + 5 if None.
        queries (int, default 10_000): the number of distinct queries.
        repeats (float, default 10.0): the mean number of page views of a query, at least 1.
        skew (float, default 0.0): how unequally often queries recur. At 0 each has `repeats` page views. Above 0 the
            number is Poisson with a log-normal rate, whose logarithm has this standard deviation.
        relevant (float, default 0.3): the share of relevant documents.
        random (tuple of str, default ()): rankers that show the candidates in random order, drawn for each page
            view; `RandomTraffic` reads the curve from them. They have a share of `traffic`, but no quality and no
            ranks.
        sticky (bool, default False): whether one ranker serves all page views of a query, as where traffic is split by
            query. By default each page view draws its ranker.
        segments (mapping of str to float, default {}): an eta for each value of a column `device`. A page view gets one
            of the values at random, with equal probability.
        seed (int, default 0): the same seed gives the same log, to the last byte.

    Attributes:
        qualities (tuple of float): the quality of each ranker.
        shares (tuple of float): the share of traffic of each ranker.
        pool (int): how many candidates a query ranks.
        propensity (array): the true p_r / p_1 of the whole log.
        curves (array): the true curve of each segment.

    Example:
        >>> world = World(queries=100, repeats=20, similarity=0.7, traffic=(95, 5))
        >>> world.propensity[:4].round(3).tolist()
        [1.0, 0.5, 0.333, 0.25]
        >>> world.shares
        (0.95, 0.05)

    Reference: Agarwal, Zaitsev, Wang, Li, Najork, Joachims: Estimating Position Bias without Intrusive Interventions.
    WSDM 2019.
    """

    rankers: tuple[str, ...] = ("a", "b")
    similarity: float = 0.8
    quality: float | tuple[float, ...] = 1.0
    traffic: tuple[float, ...] | None = None
    eta: float = 1.0
    noise: float = 0.1
    max_rank: int = DEFAULT_MAX_RANK
    candidates: int | None = None
    queries: int = 10_000
    repeats: float = 10.0
    skew: float = 0.0
    relevant: float = 0.3
    random: tuple[str, ...] = ()
    sticky: bool = False
    segments: Mapping[str, float] = field(default_factory=dict, hash=False)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rankers", "quality", "traffic", "random"):
            object.__setattr__(self, name, _as_tuple(getattr(self, name)))
        # A copy, so that the caller's mapping cannot change a frozen value.
        if not isinstance(self.segments, Mapping):
            raise PosbiasError(
                f"segments must map names to numbers (eta), such as {{'phone': 1}}; found {self.segments!r}"
            )
        object.__setattr__(self, "segments", dict(self.segments))
        _check_names("rankers", self.rankers)
        _check_names("segments", tuple(self.segments))
        _check_names("random", self.random)
        if not {*self.random} <= {*self.rankers}:
            raise PosbiasError(
                f"random must name some of the rankers ({', '.join(self.rankers)}), found {self.random!r}"
            )
        self._check_numbers()
        self._check_per_ranker("quality", self.qualities, "a number, or one for each ranker")
        self._check_per_ranker("traffic", self.traffic or self.shares, "a weight of 0 or more for each ranker")
        if not all(weight >= 0 for weight in self.traffic or ()) or not abs(sum(self.shares) - 1) < 0.5:
            raise PosbiasError(
                f"traffic must be weights of 0 or more that are not all 0, found {self.traffic!r}. "
                f"Give each of {', '.join(self.rankers)} its share, such as 95 and 5."
            )

    def _check_numbers(self) -> None:
        _check_whole("max_rank", self.max_rank, 1, _MOST_CANDIDATES)
        _check_whole("queries", self.queries, 1)
        _check_whole("seed", self.seed, 0)
        if self.candidates is not None:
            remedy = ". A page is filled from them: raise candidates or lower max_rank."
            _check_whole("candidates", self.candidates, self.max_rank, _MOST_CANDIDATES, remedy)
        for name in ("similarity", "noise", "relevant"):
            _check_range(name, getattr(self, name), 0, 1)
        if not isinstance(self.sticky, bool):
            raise PosbiasError(f"sticky must be True or False, found {self.sticky!r}")
        _check_range("eta", self.eta, 0, math.inf)
        _check_range("repeats", self.repeats, 1, _MOST_REPEATS)
        # Above 3 one query is most of the log, and no sample has the right mean.
        _check_range("skew", self.skew, 0, 3)
        for name, eta in self.segments.items():
            _check_range(f"segments[{name!r}]", eta, 0, math.inf)

    def _check_per_ranker(self, name: str, values: object, expected: str) -> None:
        numbers = values if isinstance(values, tuple) else ()
        if len(numbers) != len(self.rankers) or not all(_is_finite(value) for value in numbers):
            raise PosbiasError(
                f"{name} must be {expected}, found {getattr(self, name)!r} "
                f"for {len(self.rankers)} rankers ({', '.join(self.rankers)})"
            )

    @property
    def qualities(self) -> tuple[float, ...]:
        """The quality of each ranker."""
        if isinstance(self.quality, tuple):
            return self.quality
        return (self.quality,) * len(self.rankers)

    @property
    def non_random(self) -> list[int]:
        """The numbers of the rankers that do not show results in random order."""
        return [i for i, name in enumerate(self.rankers) if name not in self.random]

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the traffic of each ranker; they sum to 1."""
        weights = (1.0,) * len(self.rankers) if self.traffic is None else self.traffic
        total = sum(weights)
        return tuple(weight / total for weight in weights) if total else (math.nan,) * len(weights)

    @property
    def pool(self) -> int:
        """How many candidates a query ranks."""
        return self.max_rank + 5 if self.candidates is None else self.candidates

    @property
    def propensity(self) -> FloatArray:
        """The true p_r / p_1 for r = 1..M.

        With segments it is the mean of their curves, because the segment of a page view is independent of everything
        else.
        """
        return cast(FloatArray, self.curves.mean(axis=0))

    @property
    def curves(self) -> FloatArray:
        """The true curves, one row for each segment; a single row without segments.

        Example:
            >>> World(max_rank=3, segments={"desktop": 0, "phone": 1}).curves.round(3).tolist()
            [[1.0, 1.0, 1.0], [1.0, 0.5, 0.333]]
        """
        etas = np.array(list(self.segments.values()) or [self.eta], dtype=np.float64)
        ranks = np.arange(1, self.max_rank + 1, dtype=np.float64)
        # p_r = (1/r)^eta, section "Robustness Analysis".
        return (1.0 / ranks) ** etas[:, None]

    def truth(self) -> dict[str, Any]:
        """Return every parameter and the true propensities, ready for JSON.

        Example:
            >>> truth = World(max_rank=2, segments={"desktop": 0, "phone": 1}).truth()
            >>> truth["propensity"], truth["segments"]["phone"]
            ([1.0, 0.75], {'eta': 1, 'propensity': [1.0, 0.5]})
        """
        curves = self.curves.tolist()
        segments = {
            name: {"eta": eta, "propensity": curve}
            for (name, eta), curve in zip(self.segments.items(), curves, strict=False)
        }
        return {
            "propensity": self.propensity.tolist(),
            "rankers": list(self.rankers),
            "similarity": self.similarity,
            "quality": list(self.qualities),
            "traffic": list(self.shares),
            # With segments there is no single eta.
            "eta": None if segments else self.eta,
            "noise": self.noise,
            "max_rank": self.max_rank,
            "candidates": self.pool,
            "queries": self.queries,
            "repeats": self.repeats,
            "skew": self.skew,
            "relevant": self.relevant,
            "random": list(self.random),
            "sticky": self.sticky,
            "segments": segments,
            "seed": self.seed,
        }


def _as_tuple(value: Any) -> Any:
    """Return a list or an array as a tuple, so that a world is hashable; strings stay, and are rejected later."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _check_names(what: str, names: object) -> None:
    if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
        raise PosbiasError(f"{what} must be names (non-empty strings), such as ('a', 'b'); found {names!r}")
    if what == "rankers" and not names:
        raise PosbiasError("rankers must name at least one ranker, such as ('a', 'b'); found none")
    # SQL ignores case in column names, so rank_A and rank_a would be one column.
    if len({name.casefold() for name in names}) < len(names):
        raise PosbiasError(
            f"{what} must differ by more than upper and lower case, found {names!r}. Rename one of them."
        )


def _check_whole(name: str, value: object, low: int, high: int | None = None, remedy: str = "") -> None:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or cast(int, value) < low or (high is not None and cast(int, value) > high):
        bounds = f"of {low} or more" if high is None else f"from {low} to {high}"
        raise PosbiasError(f"{name} must be a whole number {bounds}, found {value!r}{remedy}")


def _check_range(name: str, value: object, low: float, high: float) -> None:
    if not _is_finite(value) or not low <= cast(float, value) <= high:
        bounds = f"of {low} or more" if high == math.inf else f"from {low} to {high}"
        raise PosbiasError(f"{name} must be a number {bounds}, found {value!r}")


def _is_finite(value: object) -> bool:
    return number(value) is not None
