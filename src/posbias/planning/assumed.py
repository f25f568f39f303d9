"""Before any data: standard errors of an assumed world, read from logs that are simulated of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from posbias.arguments import number
from posbias.arrays import FloatArray
from posbias.errors import EstimateError, PosbiasError
from posbias.harvesting.counting import harvest
from posbias.logs.click_log import ClickLog
from posbias.planning.measured import Base, Measured, Wish, foresee, measure
from posbias.planning.plans import Plan
from posbias.progress import Progress, silent
from posbias.simulation import World, simulate

# Page views of each of the logs simulated, and how many of these: a few seconds in all.
_PAGE_VIEWS, _LOGS = 30_000, 4
_FEWEST_QUERIES = 500

_ASSUMES = (
    "Standard errors are read from simulated logs of the assumed world: users of the position-based model and "
    "rankers that share a part of their noise. Half-widths fall as one over the root of the number of queries; ±x% is "
    "exp of the half-width on the log scale, less 1."
)


@dataclass(frozen=True)
class CurvedWorld(World):
    """A world with a curve given rank by rank in place of an eta.

    Example:
        >>> CurvedWorld(max_rank=3, curve=(1.0, 0.9, 0.4)).propensity.tolist()
        [1.0, 0.9, 0.4]
    """

    curve: tuple[float, ...] = ()

    @property
    def curves(self) -> FloatArray:
        """The curve, as one row."""
        return np.array([self.curve], dtype=np.float64)


def with_curve(world: World, curve: Sequence[float]) -> World:
    """Return a world with this curve, from rank 1 on."""
    found = [number(p) for p in curve] if isinstance(curve, Iterable) else []
    values = [p for p in found if p is not None and p > 0]
    if len(values) < max(len(found), world.max_rank):
        raise PosbiasError(
            f"The assumed curve must have a number above 0 for each of the {world.max_rank} ranks, found {curve!r}. "
            "Give a longer curve, or a smaller max_rank."
        )
    scale = max(values[: world.max_rank])
    shape = tuple(p / scale for p in values[: world.max_rank])
    return CurvedWorld(**{f.name: getattr(world, f.name) for f in fields(World)} | {"segments": {}}, curve=shape)


def plan_assumed(
    world: World,
    wish: Wish,
    names: Sequence[str],
    *,
    curve: Sequence[float] | None = None,
    told_for: int | None = None,
    progress: Progress = silent,
    seed: int = 0,
) -> Plan:
    """Return the plan of a world, ± told for as many queries as it has, or for `told_for`."""
    if len([share for share in world.shares if share > 0]) < 2:
        raise EstimateError(
            f"Of the assumed rankers, {', '.join(world.rankers)}, fewer than two serve traffic. "
            "Propensities come from documents that two rankers put at different ranks: assume two."
        )
    world = world if curve is None else with_curve(world, curve)
    told = world.queries if told_for is None else told_for
    queries = max(_FEWEST_QUERIES, round(_PAGE_VIEWS / world.repeats))
    drawn: list[list[Measured]] = []
    for i in range(_LOGS):
        progress("Simulating", i / _LOGS)
        table = simulate(replace(world, queries=queries, seed=seed + i), aggregated=True)
        made = harvest(ClickLog(table), max_rank=world.max_rank)
        drawn.append([measure(name, made, wish.level) for name in names])
    measured = [_joined(list(each), queries) for each in zip(*drawn, strict=True)]
    base = Base(queries * world.repeats, queries, at=told / queries, held=False)
    return Plan(
        precision=wish.precision,
        level=wish.level,
        page_views=round(told * world.repeats),
        queries=told,
        traffic={name: round(share, 4) for name, share in zip(world.rankers, world.shares, strict=True)},
        outlooks=tuple(foresee(each, wish, base) for each in measured),
        assumes=(_ASSUMES,),
        notes=tuple(dict.fromkeys(note for each in measured for note in each.notes)),
        assumed=True,
    )


def _joined(drawn: Sequence[Measured], queries: int) -> Measured:
    """Return what several logs say together: the mean variance of each rank that most of them have an interval for."""
    se = np.stack([each.se for each in drawn])
    degrees = np.stack([each.degrees for each in drawn])
    known = np.isfinite(se)
    enough = 2 * known.sum(axis=0) > len(drawn)

    def mean(values: FloatArray) -> FloatArray:
        with np.errstate(invalid="ignore", divide="ignore"):
            total = np.where(known, values, 0.0).sum(axis=0) / known.sum(axis=0)
        return np.where(enough, total, np.nan)

    def reason(k: int) -> str:
        # What all logs lack that have no interval, they do not lack by chance.
        told = {each.reasons[k] for each, has in zip(drawn, known[:, k], strict=True) if not has}
        why = told.pop() if len(told) == 1 else None
        return f"no interval from {queries:,} simulated queries: {why or 'too thin to foresee'}"

    return replace(
        drawn[0],
        se=np.sqrt(mean(se**2)),
        degrees=1 / mean(1 / degrees),
        reasons=[None if good else reason(k) for k, good in enumerate(enough)],
        logs=len(drawn),
    )


def read_curve(path: str) -> list[float]:
    """Read the curve to assume: the truth of a simulated log, or an estimate as JSON."""
    from posbias.curves.files import load, looks_like_curve, read_truth

    if not looks_like_curve(path):
        return read_truth(path)
    found = load(path).propensity.tolist()
    if not all(p == p and p > 0 for p in found):
        unknown = [str(k) for k, p in enumerate(found, start=1) if not (p == p and p > 0)]
        raise PosbiasError(
            f"The curve in {path!r} has no number at rank {', '.join(unknown)}. Assume one that is known at every rank."
        )
    return list(found)
