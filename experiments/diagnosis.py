"""Experiment "diagnosis": how often does `diagnose` raise an alarm, rightly and wrongly?

The experiment simulates logs of users and traffic that follow the position-based model, and logs that violate it (trust
bias, cascade, query-dependent traffic, crawlers, ...), diagnoses each log, and counts the findings. False alarms must
be rare where the model holds; violations that the data can show must be detected.

diagnosis.csv has a row for each setting: the share of logs with any alarm, with each alarm, and without a test of
whether one curve fits; and the median p-value of the test of directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, make_verdict, seed_of
from experiments.simulated_logs import PROXY, buckets_of, draw_log, draw_page_clicks, shrink_world
from posbias._arrays import FloatArray, IntArray
from posbias.findings import Finding
from posbias.judging.diagnose import diagnose_harvest
from posbias.logs.click_log import Layout
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

# Findings that say that an assumption is violated.
ALARMS = (
    "contradictory-pairs",
    "ranker-effect",
    "query-dependent-traffic",
    "estimators-disagree",
    "sample-ratio-mismatch",
    "one-click-pages",
    "crawlers",
    "curves-differ-by-proxy",
)
# Every log whose ranker pairs were tested has one of these findings.
_TEST_CODES = ("contradictory-pairs", "one-curve", "one-curve-not-tested")
# The largest allowed share of logs with any false alarm and with a given one, and the smallest allowed detection rate.
MAX_ALARM_RATE, MAX_RATE_PER_ALARM, MIN_DETECTION_RATE = 0.05, 0.02, 0.9
# Settings that violate the model are larger and need fewer logs: this many times fewer.
_FEWER_LOGS = 5
# How often the proxy of relevance is right.
_PROXY_ACCURACY = 0.85
_MILDLY = (1.0, 1.5)
_RANKERS: dict[str, float | tuple[float, ...]] = {"alike": 1.0, "mildly unequal": _MILDLY, "unequal": (0.5, 2.0)}
_VIOLATIONS: dict[str, tuple[User | None, float]] = {
    "trust bias": (TrustBias(), 0.0),
    "cascade": (Cascade(), 0.0),
    "one click a page": (AtMostOneClick(PositionBased()), 0.0),
    "neighbours matter": (NeighbourBias(), 0.0),
    "examination by relevance": (AttractionBias(), 0.0),
    "traffic leans 0.3": (None, 0.3),
}
# Violations with small effects, which need more queries.
_SMALL_EFFECTS = ("examination by relevance",)


def run_diagnosis(lab: Laboratory) -> Outcome:
    """Simulate logs of every setting, and count the findings."""
    found: dict[str, list[tuple[Finding, ...]]] = {}
    for number, (name, setting) in enumerate(SETTINGS.items()):
        world = setting.shrunk_world(lab.sizes.world)
        buckets = buckets_of(world.queries)
        logs = max(2, lab.sizes.diagnosis_logs // (_FEWER_LOGS if setting.violates_model else 1))
        found[name] = []
        for log in range(logs):
            drawn = replace(world, seed=seed_of(lab.seed, "diagnosis", name, log))
            found[name].append(measure(drawn, setting, buckets))
            lab.progress(f"diagnosis: {name}", (number + (log + 1) / logs) / len(SETTINGS))
    rows = [_row(name, one) for name, one in found.items()]
    lines = {"any alarm": _shares([[_any(findings) for findings in one] for one in found.values()])}
    figure = draw_settings(list(SETTINGS), lines, "Share of logs with an alarm", (0.0, MAX_ALARM_RATE), (-0.02, 1.02))
    return Outcome("diagnosis", rows, figure, _verdicts(found), notes=_notes(rows))


@dataclass(frozen=True)
class DiagnosisSetting:
    """A simulated world, and how it violates the model.

    Attributes:
        world: the simulated world.
        layout: the layout of the logs.
        user: users who violate the model; None for users who follow it.
        query_dependence: how strongly the choice of the ranker depends on the query, from 0 to 1.
        proxy: whether the logs have a proxy of relevance.
        alarm_expected: whether the rankers, page views or proxy can show the violation with this many queries.
    """

    world: World
    layout: Layout = Layout.WIDE
    user: User | None = None
    query_dependence: float = 0.0
    proxy: bool = False
    alarm_expected: bool = False

    @property
    def violates_model(self) -> bool:
        """Whether users or traffic violate the model."""
        return self.user is not None or self.query_dependence > 0

    def shrunk_world(self, share: float) -> World:
        """Return the world with a share of its queries, but not with very few."""
        return shrink_world(self.world, share)


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
        f"{violation}, {rankers}": DiagnosisSetting(
            World(queries=10_000, quality=quality),
            user=user,
            query_dependence=dependence,
            alarm_expected=rankers == "unequal" or (rankers == "mildly unequal" and violation not in _SMALL_EFFECTS),
        )
        for violation, (user, dependence) in _VIOLATIONS.items()
        for rankers, quality in _RANKERS.items()
    }
    | {
        f"{violation}, mildly unequal, 100,000 queries": DiagnosisSetting(
            World(queries=100_000, quality=_MILDLY), user=_VIOLATIONS[violation][0], alarm_expected=True
        )
        for violation in _SMALL_EFFECTS
    }
    | {
        f"{violation}, alike, proxy": DiagnosisSetting(
            World(queries=10_000),
            user=_VIOLATIONS[violation][0],
            proxy=True,
            alarm_expected=violation not in _SMALL_EFFECTS,
        )
        for violation in ("trust bias", *_SMALL_EFFECTS)
    }
    | {
        f"{violation}, alike, proxy, 100,000 queries": DiagnosisSetting(
            World(queries=100_000), user=_VIOLATIONS[violation][0], proxy=True, alarm_expected=True
        )
        for violation in _SMALL_EFFECTS
    }
    | {
        "crawlers open 2% of pages": DiagnosisSetting(
            World(queries=1000), user=Crawled(share=0.02), alarm_expected=True
        )
    }
)


def measure(world: World, setting: DiagnosisSetting, buckets: IntArray) -> tuple[Finding, ...]:
    """Simulate one log and return the findings of its diagnosis."""
    log = draw_log(world, buckets, user=setting.user, query_dependence=setting.query_dependence)
    pages = draw_page_clicks(world, buckets, user=setting.user, query_dependence=setting.query_dependence)
    split = dict(zip(world.rankers, world.shares, strict=True))
    harvest = log.harvest_by_proxy(_PROXY_ACCURACY) if setting.proxy else log.harvest(setting.layout)
    return diagnose_harvest(harvest, split=split, proxy=PROXY if setting.proxy else None, page_clicks=pages).findings


def _row(name: str, found: Sequence[tuple[Finding, ...]]) -> Row:
    codes = [{finding.code for finding in findings} for findings in found]
    row: dict[str, object] = {"setting": name, "logs": len(found), "any": float(np.mean([_any(f) for f in found]))}
    row |= {code: float(np.mean([code in one for one in codes])) for code in (*ALARMS, "one-curve-not-tested")}
    p_values = [
        finding.evidence["p_value_directions"]
        for findings in found
        for finding in findings
        if finding.code in _TEST_CODES
    ]
    known = [p for p in p_values if p is not None]
    row |= {"median_p_of_directions": float(np.median(known)) if known else float("nan")}
    return row


def _any(findings: tuple[Finding, ...]) -> bool:
    return any(finding.code in ALARMS for finding in findings)


def _shares(alarms: Sequence[Sequence[bool]]) -> FloatArray:
    """Return the share of logs with an alarm and its standard error, by setting; shape (2, settings)."""
    means = np.array([np.mean(one) for one in alarms])
    counts = np.array([len(one) for one in alarms])
    return np.stack([means, np.sqrt(np.maximum(means * (1 - means), 0.05 * 0.95) / counts)])


def _verdicts(found: Mapping[str, Sequence[tuple[Finding, ...]]]) -> tuple[Verdict, ...]:
    valid = {name: one for name, one in found.items() if not SETTINGS[name].violates_model}
    alarms = [[_any(findings) for findings in one] for one in valid.values()]
    share, error = _shares([[alarm for one in alarms for alarm in one]])[:, 0]
    each = {code: _share_of(code, valid.values()) for code in ALARMS}
    most_frequent = max(each, key=lambda code: each[code][0])
    detected = {
        name: float(np.mean([_any(f) for f in one])) for name, one in found.items() if SETTINGS[name].alarm_expected
    }
    least = min(detected, key=lambda name: detected[name], default="no setting was simulated")
    logs = min((len(found[name]) for name in detected), default=0)
    enough_logs = min(map(len, alarms)) >= ENOUGH_LOGS
    return (
        make_verdict(
            f"Where the model holds, at most {MAX_ALARM_RATE:.0%} of logs raise any alarm (tolerance: two standard "
            "errors)",
            f"{share:.1%} of {sum(map(len, alarms)):,} logs in {len(alarms)} settings; "
            f"{max(np.mean(one) for one in alarms):.0%} in the worst setting",
            share - 2 * error <= MAX_ALARM_RATE,
            enough=enough_logs,
        ),
        make_verdict(
            f"Where the model holds, at most {MAX_RATE_PER_ALARM:.0%} of logs raise a given alarm (tolerance: two "
            "standard errors)",
            f"at most {each[most_frequent][0]:.1%} ({most_frequent})",
            all(mean - 2 * se <= MAX_RATE_PER_ALARM for mean, se in each.values()),
            enough=enough_logs,
        ),
        make_verdict(
            f"Where the model is violated and the data can show it, at least {MIN_DETECTION_RATE:.0%} of logs raise "
            "an alarm "
            "(mildly unequal rankers or a proxy, with 100,000 queries if the effect is small; unequal rankers; "
            "crawlers)",
            f"{detected.get(least, np.nan):.0%} or more (lowest: {least}) in {logs} logs of each setting",
            detected.get(least, 0.0) >= MIN_DETECTION_RATE,
            enough=logs >= ENOUGH_LOGS,
        ),
    )


def _share_of(code: str, found: Iterable[Sequence[tuple[Finding, ...]]]) -> tuple[float, float]:
    """Return the share of logs with an alarm, of the logs that are tested for it, and its standard error."""
    alarms = [
        any(finding.code == code for finding in findings)
        for one in found
        for findings in one
        if code != "curves-differ-by-proxy" or any(finding.code.endswith("by-proxy") for finding in findings)
    ]
    mean, error = _shares([alarms or [False]])[:, 0]
    return float(mean), float(error)


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    columns = ("any", *ALARMS, "one-curve-not-tested")
    lines = ["", " | ".join(["setting", "logs", *columns])]
    lines += [" | ".join([row["setting"], str(row["logs"]), *(f"{row[code]:.2f}" for code in columns)]) for row in rows]
    return tuple(lines)
