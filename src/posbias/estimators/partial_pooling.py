"""Partial pooling in score form: the curves of many segments, each drawn toward the mean as far as the data say.

Of segment s its score g and information J at x are known, which may tell nothing of some ranks. With v = g + J x and
deviations x_s − μ ~ N(0, T), T = L Lᵀ, and u = v − J μ::

    B = L (Lᵀ J L + φ I)⁻¹ Lᵀ       x_s = μ + B u       W = J − J B J       μ = (Σ W)⁻¹ Σ (I − J B) v
    V_s = φ B + F ψ (Σ W)⁻¹ Fᵀ,  F = I − B J,  ψ = φ unless segments share their errors
    −2ℓ = Σ log|I + Lᵀ J L / φ| − Σ uᵀ B u / φ − rᵀ (Σ W)⁻¹ r / φ + log|Σ W|,  r = Σ (u − J B u),  u at a fixed μ

T is not known. It is a sum of kinds of deviation, each of some size, and what is made of it is averaged over sizes, by
how well each explains the scores. `docs/theory.md` derives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from posbias.arrays import FloatArray
from posbias.estimators.mixed_normals import MixedNormals

# The standard deviations of log p that are tried; for the curves, from what makes a difference on; and those that go
# with another kind.
_SIZES = 0.005 * 2.0 ** np.arange(0, 8.5, 0.5)
_MATTERS = 0.02
_COARSE = _SIZES[6::4]
# One more kind of deviation must bring −2ℓ down by more than this.
_WORTH = 4.0
# For the width of intervals all variances up to the square of this are as likely as each other, and beyond it all
# magnitudes. None at all is as likely as those up to so many times the variance of the mean, which makes of it what
# differs little from none, and no more than this beside all others: thin data tell little from none.
_USUAL, _SMALL, _MOST_NONE = 0.32, 6.0, 0.1
# Sizes less likely than this make no difference, and kinds of which none is likelier than that need no second look.
_UNLIKELY, _HOPELESS = 1e-3, 1e-6


# The sizes of each kind of deviation, 0 for one that there is not.
Sizes = tuple[float, ...]
_NONE: Sizes = (0.0, 0.0, 0.0)


class Scores(NamedTuple):
    """What the segments' clicks say of log p.

    Attributes:
        value: v = g + J x, (S, n).
        information: J, (S, n, n).
        dispersion: φ, how many times as much as J says the score of a segment varies.
        of_mean: ψ, how many times as much their sum does; φ, unless segments have queries in common.
    """

    value: FloatArray
    information: FloatArray
    dispersion: float
    of_mean: float


@dataclass(frozen=True)
class Pooled:
    """The segments' curves.

    Attributes:
        x: log p by segment, (S, n).
        centre: a curve that is drawn in less, about which intervals lie, (S, n).
        covariance: of log p about it, (S, n, n).
        about: how log p lies about it, (S, n).
        own: how far the segment's own clicks decide, (S, n): the share of a change of the mean, if that fell
            faster or slower, that they would not follow. 0 where all is borrowed, 1 where nothing is.
        tried: the deviations that were not hopeless.
        differ: how likely it is that the segments differ at all, from an even chance.
    """

    x: FloatArray
    centre: FloatArray
    covariance: FloatArray
    about: MixedNormals
    own: FloatArray
    tried: list[Sizes]
    differ: float


def pool(scores: Scores, at: FloatArray, ranks: FloatArray, tried: list[Sizes] | None = None) -> Pooled:
    """Return the curves that scores make of segments with a mean near `at`, (n,), of ranks (n,).

    `tried` are deviations to be averaged over, with all sizes of those of one kind; without them they are searched for.
    """
    around = _Around(scores, at, scores.value - scores.information @ at, kinds(ranks))
    single = {sizes.index(max(sizes)) for sizes in tried if np.count_nonzero(sizes) == 1} if tried else range(3)
    singles = [model for kind in single for model in around.models(_NONE, kind)]
    none = around.model(_NONE)
    several = [around.model(sizes) for sizes in tried or [] if np.count_nonzero(sizes) > 1]
    models = [none, *singles, *(_searched(around, none, singles) if tried is None else several)]
    fits = np.array([model.fit for model in models])
    sizes = np.linalg.norm([model.sizes for model in models], axis=1)
    usual, matters = np.minimum(sizes, _USUAL), (sizes > 0.9 * _MATTERS).astype(np.float64)
    # For the curves none is as likely as all that matters.
    point = _chances(fits, 3.0 * np.sum(_SIZES > 0.9 * _MATTERS), matters)
    centre = _chances(fits, 0.0, usual**6)
    # A step to √2 times the size adds this much to the variance.
    steps = usual**2 * np.log(2)
    most = _MOST_NONE * 3 * (np.minimum(_SIZES, _USUAL) ** 2).sum() * np.log(2)
    width = _chances(fits, min(_SMALL * around.error_of_mean(), most), steps)
    chance = np.max([point, centre, width], axis=0)
    again = [model.sizes for model, likely in zip(models, chance > _HOPELESS, strict=True) if likely]
    kept = chance > _UNLIKELY
    curves = [around.curves(model) for model, likely in zip(models, kept, strict=True) if likely]
    point, centre, width = (chances[kept] / chances[kept].sum() for chances in (point, centre, width))
    x, middle = (np.asarray(sum(w * c.x for w, c in zip(chances, curves, strict=True))) for chances in (point, centre))
    own = np.asarray(sum(w * c.own for w, c in zip(point, curves, strict=True)))
    covariance, about = _lying(curves, width, middle)
    return Pooled(x, middle, covariance, about, own, again, 1 - float(point[0]) if kept[0] else 1.0)


def kinds(ranks: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the kinds of deviation, of size 1 at the last rank, as roots L.

    A curve that falls faster or slower; one that wanders as it goes down, in log k; and ranks each by itself.
    """
    place = np.log(ranks)
    slope = (place / place[-1])[:, None]
    wandering = np.tril(np.ones((len(ranks), len(ranks)))) * np.sqrt(np.diff(place, prepend=0.0) / place[-1])
    return slope, wandering, np.eye(len(ranks))


class _Model(NamedTuple):
    """One T: what it is made of, L Q (S, n, m), the diagonal of B in it (S, m), Σ W, and −2ℓ."""

    sizes: Sizes
    turned: FloatArray
    shrunk: FloatArray
    known: FloatArray
    fit: float


class _Curves(NamedTuple):
    x: FloatArray
    covariance: FloatArray
    own: FloatArray


class _Around(NamedTuple):
    """Scores about a fixed mean, and the kinds of deviation from it."""

    scores: Scores
    at: FloatArray
    u: FloatArray
    kinds: tuple[FloatArray, ...]

    def model(self, sizes: Sizes) -> _Model:
        """Return T of these sizes."""
        parts = [size * root for size, root in zip(sizes, self.kinds, strict=True) if size]
        root = np.hstack(parts) if parts else np.zeros((len(self.at), 1))
        if root.shape[1] > len(root):
            # Any root of T will do: one with no more columns than rows.
            root = np.linalg.cholesky(root @ root.T).astype(np.float64)
        # A root of the inverse: to decompose it would take five times as long.
        half = np.linalg.cholesky(
            root.T @ self.scores.information @ root + self.scores.dispersion * np.eye(root.shape[1])
        )
        turned = root @ np.linalg.inv(half).swapaxes(1, 2)
        gain = 2 * np.log(np.diagonal(half, axis1=1, axis2=2) / np.sqrt(self.scores.dispersion)).sum()
        return self._fitted(turned, [(np.ones((len(half), root.shape[1])), gain, sizes)])[0]

    def models(self, sizes: Sizes, kind: int) -> list[_Model]:
        """Return T with one kind in each size in place of none."""
        tried = _COARSE if any(sizes) else _SIZES
        every = [(*sizes[:kind], float(size), *sizes[kind + 1 :]) for size in tried]
        if any(sizes):
            return [self.model(mixture) for mixture in every]
        # One decomposition of Lᵀ J L serves all sizes.
        root, phi = self.kinds[kind], self.scores.dispersion
        values, vectors = np.linalg.eigh(root.T @ self.scores.information @ root)
        scaled = [size**2 * np.maximum(values, 0.0) for size in tried]
        shrunk = [size**2 / (own + phi) for size, own in zip(tried, scaled, strict=True)]
        gains = [np.log1p(own / phi).sum() for own in scaled]
        return self._fitted(root @ vectors, list(zip(shrunk, gains, every, strict=True)))

    def error_of_mean(self) -> float:
        """Return the variance of the mean in each kind of deviation, added up.

        It is φ √m / ‖Lᵀ (Σ J) L‖ where L has m columns: of most of them less is known, of the first few more.
        """
        known = self.scores.information.sum(axis=0)
        roots = [np.sqrt(root.shape[1]) / np.linalg.norm(root.T @ known @ root) for root in self.kinds]
        return float(self.scores.dispersion * sum(roots))

    def _fitted(self, turned: FloatArray, models: list[tuple[FloatArray, float, Sizes]]) -> list[_Model]:
        """Return each T, given what B is made of, and log|I + Lᵀ J L / φ| of all segments."""
        u, (_, J, phi, _) = self.u, self.scores
        along = np.einsum("snm,sn->sm", turned, u)
        flat = np.moveaxis(J @ turned, 1, 0).reshape(len(self.at), -1)
        answer = []
        for shrunk, gain, sizes in models:
            known = J.sum(axis=0) - (flat * shrunk.ravel()) @ flat.T
            left = u.sum(axis=0) - flat @ (shrunk * along).ravel()
            fit = (
                gain
                - (shrunk * along**2).sum() / phi
                - left @ np.linalg.solve(known, left) / phi
                + np.linalg.slogdet(known)[1]
            )
            answer.append(_Model(sizes, turned, shrunk, known, float(fit)))
        return answer

    def curves(self, model: _Model) -> _Curves:
        """Return the segments' curves under one T, with their covariance and how much of each is its own."""
        u, (_, J, phi, of_mean) = self.u, self.scores
        B = (model.turned * model.shrunk[:, None, :]) @ model.turned.swapaxes(1, 2)
        drawn = B @ J
        F = np.eye(len(self.at)) - drawn
        unknown = np.linalg.inv(model.known)
        shift = unknown @ np.einsum("snm,sn->m", F, u)
        x = self.at + shift + np.einsum("snm,sm->sn", B, u - J @ shift)
        steeper = self.kinds[0][:, 0]
        return _Curves(x, phi * B + of_mean * (F @ unknown @ F.swapaxes(1, 2)), drawn @ steeper / steeper)


def _lying(curves: list[_Curves], chances: FloatArray, middle: FloatArray) -> tuple[FloatArray, MixedNormals]:
    """Return how log p lies about a curve: its covariance, and what it is normal in parts of."""
    covariance = np.zeros_like(curves[0].covariance)
    for chance, curve in zip(chances, curves, strict=True):
        off = curve.x - middle
        covariance += chance * (curve.covariance + off[:, :, None] * off[:, None, :])
    likely = np.flatnonzero(chances > _UNLIKELY)
    about = MixedNormals(
        chances=chances[likely] / chances[likely].sum(),
        means=np.array([curves[i].x - middle for i in likely]),
        deviations=np.sqrt([np.diagonal(curves[i].covariance, axis1=1, axis2=2) for i in likely]),
    )
    return covariance, about


def _searched(around: _Around, none: _Model, singles: list[_Model]) -> list[_Model]:
    """Return deviations of more than one kind, added to the best while that explains more."""
    best, found = min(singles, key=lambda model: model.fit), []
    if best.fit >= none.fit - _WORTH:
        return []
    while 0.0 in best.sizes:
        more = [model for kind, size in enumerate(best.sizes) if not size for model in around.models(best.sizes, kind)]
        ahead = min(more, key=lambda model: model.fit)
        if ahead.fit >= best.fit - _WORTH:
            break
        found += more
        best = ahead
    return found


def _chances(fits: FloatArray, none: float, others: FloatArray) -> FloatArray:
    """Return how likely each T is, the first being no deviation, from what each was before the data."""
    before = np.concatenate([[none], others[1:]])
    likely = before * np.exp(-(fits - fits.min()) / 2)
    return np.asarray(likely / likely.sum())
