"""How often a diagnosis alarms: on users and traffic that keep the model, and on such as break it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, judged, seed_of
from experiments.simulated_logs import GUESS, buckets_of, draw_log, draw_page_clicks, quick_world
from posbias._arrays import FloatArray, IntArray
from posbias.findings import Finding
from posbias.judging.diagnose import diagnose_harvest
from posbias.logs.layouts import Layout
from posbias.simulation.users import (
    AtMostOneClick,
    AttractionBias,
    Cascade,
    Crawled,
    NeighbourBias,
    PositionBased,
    TrustBias,
    User,
)
from posbias.simulation.world import World

# What says that an assumption is broken.
ALARMS = (
    "contradictory-pairs",
    "ranker-effect",
    "query-dependent-traffic",
    "estimators-disagree",
    "sample-ratio-mismatch",
    "one-click-pages",
    "all-clicked-pages",
    "curves-differ-by-proxy",
)
# One of these is said of every log whose ranker pairs were tested.
_TRIED = ("contradictory-pairs", "one-curve", "one-curve-not-tested")
# What is allowed of any alarm and of each where nothing is broken, and wanted of any where something is to be seen.
MOST, MOST_OF_EACH, LEAST = 0.07, 0.05, 0.9
# Logs of broken worlds, which are larger and told apart by fewer, for each of the others.
_BROKEN = 5
# How often a guess of relevance is right.
_RIGHT = 0.85
_MILDLY = (1.0, 1.5)
_RANKERS: dict[str, float | tuple[float, ...]] = {"alike": 1.0, "mildly unequal": _MILDLY, "unequal": (0.5, 2.0)}
_BREAKS: dict[str, tuple[User | None, float]] = {
    "trust bias": (TrustBias(), 0.0),
    "cascade": (Cascade(), 0.0),
    "one click a page": (AtMostOneClick(PositionBased()), 0.0),
    "neighbours matter": (NeighbourBias(), 0.0),
    "examination by relevance": (AttractionBias(), 0.0),
    "traffic leans 0.3": (None, 0.3),
}
# What takes more queries than others to be seen.
_FAINT = ("examination by relevance",)


def run_diagnosis(lab: Laboratory) -> Outcome:
    """Draw logs of every setting, and count how often each finding is made."""
    found: dict[str, list[tuple[Finding, ...]]] = {}
    for number, (name, setting) in enumerate(SETTINGS.items()):
        world = setting.drawn(lab.sizes.world)
        buckets = buckets_of(world.queries)
        logs = max(2, lab.sizes.diagnosed_logs // (_BROKEN if setting.broken else 1))
        found[name] = []
        for log in range(logs):
            drawn = replace(world, seed=seed_of(lab.seed, "diagnosis", name, log))
            found[name].append(measure(drawn, setting, buckets))
            lab.progress(f"diagnosis: {name}", (number + (log + 1) / logs) / len(SETTINGS))
    rows = [_row(name, one) for name, one in found.items()]
    lines = {"any alarm": _shares([[_any(findings) for findings in one] for one in found.values()])}
    figure = draw_settings(list(SETTINGS), lines, "Share of logs with an alarm", (0.0, MOST), (-0.02, 1.02))
    return Outcome("diagnosis", rows, figure, _verdicts(found), notes=_notes(rows))


@dataclass(frozen=True)
class DiagnosisSetting:
    """One world, and what of it breaks the model.

    Attributes:
        world: of the logs.
        layout: of the logs.
        user: who clicks in place of those who keep the model.
        leaning: how far the choice of the ranker leans on the query.
        proxy: whether a guess of relevance is given.
        wanted: whether an alarm is due: of what rankers, page views or a proxy can show, from enough queries.
    """

    world: World
    layout: Layout = Layout.WIDE
    user: User | None = None
    leaning: float = 0.0
    proxy: bool = False
    wanted: bool = False

    @property
    def broken(self) -> bool:
        """Whether there is something to be found."""
        return self.user is not None or self.leaning > 0

    def drawn(self, share: float) -> World:
        """Return the world with a share of its queries, where it has many."""
        return quick_world(self.world, share)


SETTINGS: dict[str, DiagnosisSetting] = (
    {
        "20 queries, 100 views each": DiagnosisSetting(World(queries=20, repeats=100)),
        "20 queries, 10 views each": DiagnosisSetting(World(queries=20)),
        "1,000 queries": DiagnosisSetting(World(queries=1000)),
        "10,000 queries": DiagnosisSetting(World(queries=10_000)),
        "1,000 queries, unequal rankers": DiagnosisSetting(World(queries=1000, quality=(0.5, 2.0))),
        "heavy-tailed queries": DiagnosisSetting(World(queries=1000, skew=1.5)),
        "3 rankers, 80/10/10": DiagnosisSetting(World(queries=1000, rankers=tuple("abc"), traffic=(80, 10, 10))),
        "near-identical rankers": DiagnosisSetting(World(queries=1000, similarity=0.99)),
        "replay": DiagnosisSetting(World(queries=1000), Layout.REPLAY),
        "sticky": DiagnosisSetting(World(queries=1000, sticky=True)),
        "proxy, 20 queries, 100 views each": DiagnosisSetting(World(queries=20, repeats=100), proxy=True),
        "proxy, 1,000 queries": DiagnosisSetting(World(queries=1000), proxy=True),
        "proxy, 10,000 queries": DiagnosisSetting(World(queries=10_000), proxy=True),
        "proxy, heavy-tailed queries": DiagnosisSetting(World(queries=1000, skew=1.5), proxy=True),
    }
    | {
        f"{breaks}, {rankers}": DiagnosisSetting(
            World(queries=10_000, quality=quality),
            user=user,
            leaning=leaning,
            wanted=rankers == "unequal" or (rankers == "mildly unequal" and breaks not in _FAINT),
        )
        for breaks, (user, leaning) in _BREAKS.items()
        for rankers, quality in _RANKERS.items()
    }
    | {
        f"{breaks}, mildly unequal, 100,000 queries": DiagnosisSetting(
            World(queries=100_000, quality=_MILDLY), user=_BREAKS[breaks][0], wanted=True
        )
        for breaks in _FAINT
    }
    | {
        f"{breaks}, alike, proxy": DiagnosisSetting(
            World(queries=10_000), user=_BREAKS[breaks][0], proxy=True, wanted=breaks not in _FAINT
        )
        for breaks in ("trust bias", *_FAINT)
    }
    | {
        f"{breaks}, alike, proxy, 100,000 queries": DiagnosisSetting(
            World(queries=100_000), user=_BREAKS[breaks][0], proxy=True, wanted=True
        )
        for breaks in _FAINT
    }
    | {"crawlers open 2% of pages": DiagnosisSetting(World(queries=1000), user=Crawled(share=0.02), wanted=True)}
)


def measure(world: World, setting: DiagnosisSetting, buckets: IntArray) -> tuple[Finding, ...]:
    """Draw one log and return what its diagnosis finds."""
    log = draw_log(world, buckets, user=setting.user, leaning=setting.leaning)
    pages = draw_page_clicks(world, buckets, user=setting.user, leaning=setting.leaning)
    split = dict(zip(world.rankers, world.shares, strict=True))
    harvest = log.harvest_by_guess(_RIGHT) if setting.proxy else log.harvest(setting.layout)
    return diagnose_harvest(harvest, split=split, proxy=GUESS if setting.proxy else None, page_clicks=pages).findings


def _row(name: str, found: Sequence[tuple[Finding, ...]]) -> Row:
    codes = [{finding.code for finding in findings} for findings in found]
    row: dict[str, object] = {"setting": name, "logs": len(found), "any": float(np.mean([_any(f) for f in found]))}
    row |= {code: float(np.mean([code in one for one in codes])) for code in (*ALARMS, "one-curve-not-tested")}
    tried = [
        finding.evidence["p_value_directions"] for findings in found for finding in findings if finding.code in _TRIED
    ]
    known = [p for p in tried if p is not None]
    row |= {"median_p_of_directions": float(np.median(known)) if known else float("nan")}
    return row


def _any(findings: tuple[Finding, ...]) -> bool:
    return any(finding.code in ALARMS for finding in findings)


def _shares(alarms: Sequence[Sequence[bool]]) -> FloatArray:
    """Return the share of logs with an alarm and its standard error, by setting: (2, settings)."""
    means = np.array([np.mean(one) for one in alarms])
    counts = np.array([len(one) for one in alarms])
    return np.stack([means, np.sqrt(np.maximum(means * (1 - means), 0.05 * 0.95) / counts)])


def _verdicts(found: Mapping[str, Sequence[tuple[Finding, ...]]]) -> tuple[Verdict, ...]:
    sound = {name: one for name, one in found.items() if not SETTINGS[name].broken}
    alarms = [[_any(findings) for findings in one] for one in sound.values()]
    share, error = _shares([[alarm for one in alarms for alarm in one]])[:, 0]
    each = {code: _share_of(code, sound.values()) for code in ALARMS}
    often = max(each, key=lambda code: each[code][0])
    wanted = {name: float(np.mean([_any(f) for f in one])) for name, one in found.items() if SETTINGS[name].wanted}
    least = min(wanted, key=lambda name: wanted[name], default="none was drawn")
    logs = min((len(found[name]) for name in wanted), default=0)
    fewest = min(map(len, alarms)) >= ENOUGH_LOGS
    return (
        judged(
            f"Where the model holds, {MOST:.0%} of logs or fewer raise any alarm, two standard errors allowed",
            f"{share:.1%} of {sum(map(len, alarms)):,} logs in {len(alarms)} settings; "
            f"{max(np.mean(one) for one in alarms):.0%} in the worst",
            share - 2 * error <= MOST,
            enough=fewest,
        ),
        judged(
            f"Each of them in {MOST_OF_EACH:.0%} or fewer, where it is asked for, two standard errors allowed",
            f"{each[often][0]:.1%} at the most ({often})",
            all(mean - 2 * se <= MOST_OF_EACH for mean, se in each.values()),
            enough=fewest,
        ),
        judged(
            f"Where it does not and that is to be seen, {LEAST:.0%} of logs or more raise one: mildly unequal "
            "rankers, or a proxy, with 100,000 queries where the effect is faint; unequal rankers; crawlers",
            f"{wanted.get(least, np.nan):.0%} at the least ({least}) in {logs} logs of each",
            wanted.get(least, 0.0) >= LEAST,
            enough=logs >= ENOUGH_LOGS,
        ),
    )


def _share_of(code: str, found: Iterable[Sequence[tuple[Finding, ...]]]) -> tuple[float, float]:
    """Return the share of logs with one alarm, of such as it can be raised in, and its standard error."""
    asked = [
        any(finding.code == code for finding in findings)
        for one in found
        for findings in one
        if code != "curves-differ-by-proxy" or any(finding.code.endswith("by-proxy") for finding in findings)
    ]
    mean, error = _shares([asked or [False]])[:, 0]
    return float(mean), float(error)


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    columns = ("any", *ALARMS, "one-curve-not-tested")
    lines = ["", " | ".join(["setting", "logs", *columns])]
    lines += [" | ".join([row["setting"], str(row["logs"]), *(f"{row[code]:.2f}" for code in columns)]) for row in rows]
    return tuple(lines)
