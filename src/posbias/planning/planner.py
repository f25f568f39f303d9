"""plan: from a harvest, a log or an assumed world to how much more data its intervals need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from posbias.arguments import number, one_of, share, shares, texts, whole
from posbias.engines import EngineChoice, open_log
from posbias.errors import EstimateError, PosbiasError
from posbias.estimators import CrossFit
from posbias.estimators.cross_fitting import STICKY
from posbias.harvesting.counting import harvest as make_harvest
from posbias.harvesting.harvests import Harvest
from posbias.logs.click_log import ClickLog
from posbias.planning.assumed import plan_assumed
from posbias.planning.measured import PLANNED, Base, Measured, Wish, foresee, measure
from posbias.planning.plans import Plan
from posbias.planning.scenarios import SAME, Stage, play
from posbias.progress import Progress, silent
from posbias.simulation import World

_ASSUMES = (
    "Half-widths fall as one over the root of the number of queries: more queries like those seen, with as many page "
    "views each and the same split of traffic. ±x% is exp of the half-width on the log scale, less 1."
)

_STICKY = (
    "What other traffic would bring is foreseen as if each page view drew its ranker by itself. Here page views of one "
    "query went to rankers together, so take it for a rough guide."
)

# No interval was ever as narrow as that, nor a log as long.
_FINEST, _MOST_QUERIES = 1e-6, 10**15


def plan(
    source: Harvest | ClickLog | World,
    *,
    precision: float = 0.05,
    level: float = 0.95,
    estimators: Sequence[str] = PLANNED,
    queries: int | None = None,
    traffic: Mapping[str, float] | Sequence[Mapping[str, float]] = (),
    scenarios: bool = True,
    curve: Sequence[float] | None = None,
    max_rank: int = 10,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    seed: int = 0,
) -> Plan:
    """Say how much more data intervals need to be ± a share of the estimate, and what else would narrow them.

    Arguments:
        source: a harvest; a log, which is harvested first; or, before any data, a world as you assume it to be.
        precision: the share: 0.05 is ±5%.
        level: the coverage of the intervals.
        estimators: by name, the first the one that scenarios are told for.
        queries: how many distinct queries a harvest holds, which it does not know itself; a log's are counted. Of a
            world, the number for which ± is told.
        traffic: other splits of traffic to look at, each with a share by ranker, such as {"a": 0.5, "b": 0.5}.
        scenarios: whether to look at other traffic and at one more ranker; only where all rankers' ranks are known.
        curve: p_k / p_1 of an assumed world, in place of its eta.
        max_rank: M, of a log.
        engine: what harvests a log, as in `posbias.harvest`.
        progress: called with what is being done and the share done.
        seed: of what is drawn for scenarios and assumed worlds.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=1000, max_rank=3)))
        >>> found = plan(log, precision=0.02, max_rank=3, scenarios=False)
        >>> [round(need.times, 1) for need in found.outlook("cross-fit").needs]
        [10.1, 22.2]
    """
    wish = Wish(_precision(precision), share("level", level))
    names = _estimators(estimators)
    splits = _splits(traffic)
    if queries is not None:
        whole("queries", queries, 1, _MOST_QUERIES)
    whole("seed", seed, 0)
    if isinstance(source, World):
        if splits:
            raise PosbiasError("An assumed world has its own traffic. Give the split as World(traffic=...).")
        return plan_assumed(source, wish, names, curve=curve, told_for=queries, progress=progress, seed=seed)
    if curve is not None:
        raise PosbiasError("curve is what a world is assumed to have; a log or harvest has its own. Leave it out.")
    if isinstance(source, ClickLog):
        made = make_harvest(source, max_rank=max_rank, engine=engine, progress=progress)
        queries = count_queries(source, max_rank, engine, progress) if queries is None else queries
    elif isinstance(source, Harvest):
        made = source
    else:
        raise PosbiasError(f"plan takes a Harvest, a ClickLog or a World, not a {type(source).__name__}.")
    return _plan(made, wish, names, queries, splits, scenarios, progress, seed)


def count_queries(log: ClickLog, max_rank: int, engine: EngineChoice | None = None, progress: Progress = silent) -> int:
    """Return how many distinct queries of a log have results in the top M."""
    with open_log(log, engine, progress) as opened:
        d, schema = opened.dialect, opened.schema
        position = d.integer(d.quote(schema.position), schema.types[schema.position])
        sql = f"SELECT COUNT(DISTINCT {d.quote(schema.query)}) FROM log WHERE {position} <= {max_rank}"
        return int(opened.rows(sql, "Counting queries")[0][0])


def _plan(
    made: Harvest,
    wish: Wish,
    names: Sequence[str],
    queries: int | None,
    splits: Sequence[Mapping[str, float]],
    scenarios: bool,
    progress: Progress,
    seed: int,
) -> Plan:
    notes = []
    if made.kind == "pairs" and "cross-fit" in names:
        names = [name for name in names if name != "cross-fit"]
        left = "The harvest holds sums over pairs of ranks, from which cross-fit cannot be made: it is left out."
        if not names:
            raise EstimateError(f"{left} Plan for all-pairs.")
        notes.append(left)
    total = made.views.sum()
    results = int(made.shown("rank")[0].sum())
    if queries is not None and not len(made.buckets) <= queries <= results:
        raise PosbiasError(
            f"queries is {queries:,}, but the harvest has {results:,} results in {len(made.buckets)} buckets of "
            "queries, each of one query or more. Give the number of distinct queries of the log."
        )
    measured = []
    for i, name in enumerate(names):
        progress("Estimating", i / len(names))
        measured.append(measure(name, made, wish.level))
    if not any(np.isfinite(each.se[1:]).any() for each in measured):
        told = next((reason for each in measured for reason in each.reasons[1:] if reason), "no rank has an interval")
        raise EstimateError(
            f"There is no interval to plan from: {told}. Harvest more queries first, or plan before any data, from a "
            "world as you assume it to be."
        )
    base = Base(float(total), queries)
    stage = Stage(made, measured, wish, base, seed, progress)
    why_not = _no_scenarios(made) if scenarios else None
    if why_not and splits:
        raise PosbiasError(why_not)
    if why_not:
        notes.append(why_not)
    played = play(stage, splits) if scenarios and not why_not else ()
    foreseen = any(outlook.foreseen for each in played for outlook in each.outlooks)
    if foreseen and CrossFit().count(made).dispersion > STICKY:
        notes.append(_STICKY)
    return Plan(
        precision=wish.precision,
        level=wish.level,
        page_views=int(total),
        queries=queries,
        traffic=stage.named(stage.shares),
        outlooks=tuple(foresee(each, wish, base) for each in measured),
        scenarios=played,
        assumes=(_ASSUMES, *((SAME,) if foreseen else ())),
        notes=(*notes, *_notes(measured), *_segments(made)),
    )


def _no_scenarios(made: Harvest) -> str | None:
    """Say why nothing is known of other traffic."""
    if made.kind == "signatures":
        return None
    if made.kind == "pairs":
        return (
            "The harvest holds sums over pairs of ranks, which do not tell what another split of traffic would bring."
        )
    if made.layout.ranks_known:
        return (
            f"The harvest is weighted by {made.weighting!r}, for which it counts what each pair was shown, not where "
            "all rankers put it: what other traffic would bring is not known. Harvest it with the weighting 'traffic'."
        )
    return (
        "In replay it is not known where the rankers that were not shown would have put a document, so that nothing "
        "tells what other traffic or another ranker would bring. Log every ranker's rank (ranks or rankings)."
    )


def _notes(measured: Sequence[Measured]) -> list[str]:
    return list(dict.fromkeys(note for each in measured for note in each.notes))


def _segments(made: Harvest) -> list[str]:
    if not made.by:
        return []
    return ["The harvest has segments; this is the plan of all together. Plan for one with harvest.segment(...)."]


def _precision(value: float) -> float:
    found = number(value)
    if found is None or not _FINEST <= found < 10:
        raise PosbiasError(
            f"precision must be a share above 0, such as 0.05 for ±5%, of {_FINEST:g} or more, not {value!r}."
        )
    return found


def _splits(traffic: Mapping[str, float] | Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return splits of traffic, of which one may stand alone."""
    given = [traffic] if isinstance(traffic, Mapping) or not isinstance(traffic, list | tuple) else traffic
    return [shares("traffic", split, "{'a': 0.5, 'b': 0.5}") for split in given]


def _estimators(names: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys([names] if isinstance(names, str) else texts("estimators", names)))
    for name in found:
        one_of("estimators", name, PLANNED)
    if not found:
        raise PosbiasError(f"estimators must name one or more of {', '.join(PLANNED)}, found none.")
    return found
