"""Experiment "alarms": how many healthy logs raise a warning, and how many broken logs do not?

Every log passes through `check`, `estimate` and `diagnose`, as a user would do it. A log has an alarm if any of them
has a finding of severity "warning" or "error", whatever it is about, or if its curve has a note. The logs come from the
simulator of the audit: queries follow Zipf's law unless a setting says otherwise.

alarms.csv has a row for each setting. alarms-codes.csv has the number of logs with each code, by setting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import posbias
from experiments.audit import Setting, draw_log
from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, Verdict, make_verdict, seed_of
from posbias.engines.duckdb import DuckDB
from posbias.errors import PosbiasError
from posbias.estimators import CrossFit
from posbias.estimators.base import log_notes
from posbias.findings import Finding, UnusableLogError, quiet, serious
from posbias.judging.check import check
from posbias.judging.diagnose import diagnose
from posbias.logs.click_log import ClickLog

# The largest share of healthy logs with an alarm, and what a log without a curve, or with a note on it, is counted as.
MAX_ALARM_RATE = 0.05
NO_CURVE, NOTED = "no-curve", "noted-curve"
# Settings of broken logs have so many times the logs of a healthy one.
_MORE_LOGS = 4
# Clicks that are lost are found at least this often, other defects nearly always.
_LOST_CLICKS_FOUND, _FOUND = 0.8, 0.95
_DEPTHS = tuple(range(2, 11))
_USERS = Setting(users=800, assigned="user")
_REPLAY = Setting(replay=True)
_DRIFT = Setting(views=12_000, assigned="time", relevance_drift=0.7, replay=True, healthy=False)
_LOST = Setting(lost=0.1, healthy=False, detected=_LOST_CLICKS_FOUND)
SETTINGS: dict[str, Setting] = {
    "two rankers, 50/50": Setting(),
    "two rankers, 95/5": Setting(traffic=(95, 5)),
    "unequal rankers": Setting(skill=(2.0, 0.5)),
    "three rankers, 80/10/10": Setting(traffic=(80, 10, 10), skill=(1.0,) * 3),
    "six rankers": Setting(traffic=(50, 10, 10, 10, 10, 10), skill=(1.0,) * 6),
    "even, 300 queries": Setting(zipf=0.0, queries=300),
    "even, 3,000 queries": Setting(zipf=0.0),
    "even, one view a query": Setting(zipf=0.0, queries=100_000),
    "short, 1,000 page views": Setting(views=1000),
    "short, 300 page views": Setting(views=300, queries=100),
    "30 queries": Setting(views=3000, queries=30),
    "one query has half of all views": Setting(hot=0.5),
    "low CTR, 0.3%, 5 ranks": Setting(views=20_000, max_rank=5, relevance=0.006),
    "low CTR, relevance 3%": Setting(relevance=0.03),
    "20 ranks": Setting(views=4000, max_rank=20, candidates=(20, 38), eta=0.7),
    "sticky users": _USERS,
    "sticky users, who click differently": replace(_USERS, relevance=0.5, user_shape=1.5),
    "sticky queries": Setting(assigned="query"),
    "page depth 2 to 10": Setting(depths=_DEPTHS),
    "page depth 3, 5 or 10, unequal rankers": Setting(traffic=(60, 30, 10), skill=(2.0, 1.0, 0.4), depths=(3, 5, 10)),
    "shorter pages of one ranker": Setting(ranker_depths=((10,), (5, 6, 7, 8))),
    "replay": _REPLAY,
    "replay, 95/5": replace(_REPLAY, traffic=(95, 5)),
    "replay, 40 queries": replace(_REPLAY, views=4000, queries=40),
    "replay, 300 page views": replace(_REPLAY, views=300, queries=100),
    "replay, page depth 2 to 10": replace(_REPLAY, depths=_DEPTHS),
    "replay, one ranker replaces another, relevance drifts": replace(_DRIFT, detected=_FOUND),
    "replay, three rankers in turn, relevance drifts": replace(
        _DRIFT, traffic=(34, 33, 33), skill=(1.0,) * 3, detected=_FOUND
    ),
    "replay, replacement, 1,000 page views": replace(_DRIFT, views=1000, queries=300, detected=_FOUND),
    "replay, one ranker's share grows, relevance drifts": replace(_DRIFT, assigned="ramp", detected=_FOUND),
    "10% of one ranker's clicks lost": _LOST,
    "10% of one ranker's clicks lost, 90/10": replace(_LOST, views=20_000, traffic=(90, 10)),
    "10% of one ranker's clicks lost, 800 users": replace(_LOST, users=800, assigned="user"),
    "10% of one ranker's clicks lost, 800 users, who click differently": replace(
        _LOST, users=800, assigned="user", relevance=0.5, user_shape=1.5
    ),
    "one ranker's positions are 1 too high": Setting(views=3000, healthy=False, detected=1.0),
    "one ranker's positions are 1 too high, replay": Setting(views=3000, replay=True, healthy=False, detected=1.0),
}
# Logs whose last ranker is logged one position too deep, so that it never shows rank 1.
_SHIFTED = tuple(name for name in SETTINGS if "too high" in name)


def run_alarms(lab: Laboratory) -> Outcome:
    """Simulate logs of every setting, and count the codes of warnings and errors."""
    found: dict[str, list[set[str]]] = {}
    for number, (name, whole) in enumerate(SETTINGS.items()):
        setting = whole.shrunk(lab.sizes.world)
        logs = lab.sizes.alarm_logs * (1 if setting.healthy else _MORE_LOGS)
        found[name] = []
        for log in range(logs):
            table = draw_log(setting, seed_of(lab.seed, "alarms", name, log))
            table = shift_last_ranker(table) if name in _SHIFTED else table
            found[name].append(alarms(table, setting))
            lab.progress(f"alarms: {name}", (number + (log + 1) / logs) / len(SETTINGS))
    rows = [_row(name, codes) for name, codes in found.items()]
    shares = np.array([[row["alarm"], row["standard_error"]] for row in rows]).T
    figure = draw_settings(
        list(SETTINGS), {"any alarm": shares}, "Share of logs with a warning", (0.0, MAX_ALARM_RATE), (-0.02, 1.02)
    )
    return Outcome("alarms", rows, figure, _verdicts(found), {"codes": _code_rows(found)}, _notes(found))


def alarms(table: pa.Table, setting: Setting) -> set[str]:
    """Return the codes of the warnings and errors about a log, by `check`, `estimate` and `diagnose`."""
    log = ClickLog(table, unit=None if setting.users is None else "user_id")
    engine, ranks = DuckDB(threads=1), setting.max_rank
    with quiet():
        found: list[Finding] = [*check(log, max_rank=ranks, engine=engine).findings]
        codes = set()
        try:
            harvest = posbias.harvest(log, max_rank=ranks, engine=engine)
            found += harvest.findings
            fitted = CrossFit().fit(harvest)
            if fitted.one_curve_ is not None and fitted.one_curve_.contradicted:
                codes.add("contradictory-pairs")
            elif set(fitted.notes_) - set(log_notes(harvest)):
                codes.add(NOTED)
            found += diagnose(log, split=setting.split, max_rank=ranks, engine=engine).findings
        except UnusableLogError as error:
            found += error.findings
        except PosbiasError:
            codes.add(NO_CURVE)
    return codes | {finding.code for finding in serious(found)}


def shift_last_ranker(table: pa.Table) -> pa.Table:
    """Return a log in which the positions of the last ranker, and its ranks, are one too high."""
    last = pc.max(table["ranker"])
    shown = pc.add(table["position"], pc.cast(pc.equal(table["ranker"], last), pa.int64()))
    table = table.set_column(table.schema.get_field_index("position"), "position", shown)
    ranks = f"rank_{last.as_py()}"
    if ranks not in table.column_names:
        return table
    return table.set_column(table.schema.get_field_index(ranks), ranks, pc.add(table[ranks], 1))


def _row(name: str, codes: Sequence[set[str]]) -> Row:
    share = float(np.mean([bool(one) for one in codes]))
    most = Counter(code for one in codes for code in one).most_common(3)
    return {
        "setting": name,
        "healthy": SETTINGS[name].healthy,
        "logs": len(codes),
        "alarm": share,
        "standard_error": float(np.sqrt(max(share * (1 - share), 0.05 * 0.95 / len(codes)) / len(codes))),
        "most_frequent": "; ".join(f"{code} {count}" for code, count in most),
    }


def _code_rows(found: Mapping[str, Sequence[set[str]]]) -> list[Row]:
    rows: list[Row] = [
        {"setting": name, "healthy": SETTINGS[name].healthy, "code": code, "logs": count}
        for name, codes in found.items()
        for code, count in sorted(_count(codes).items())
    ]
    return rows or [{"setting": "", "healthy": True, "code": "", "logs": 0}]


def _count(codes: Iterable[set[str]]) -> Counter[str]:
    return Counter(code for one in codes for code in one)


def _verdicts(found: Mapping[str, Sequence[set[str]]]) -> tuple[Verdict, ...]:
    healthy = [one for name, codes in found.items() if SETTINGS[name].healthy for one in codes]
    settings = sum(setting.healthy for setting in SETTINGS.values())
    share = float(np.mean([bool(one) for one in healthy]))
    verdicts = [
        make_verdict(
            f"At most {MAX_ALARM_RATE:.0%} of healthy logs raise any warning or error",
            f"{share:.1%} of {len(healthy):,} logs in {settings} settings",
            share <= MAX_ALARM_RATE,
            enough=len(healthy) >= ENOUGH_LOGS * settings,
        )
    ]
    for name, codes in found.items():
        if not SETTINGS[name].healthy:
            share = float(np.mean([bool(one) for one in codes]))
            verdicts.append(
                make_verdict(
                    f"At least {SETTINGS[name].detected:.0%} of logs raise a warning or error: {name}",
                    f"{share:.0%} of {len(codes)} logs",
                    share >= SETTINGS[name].detected,
                    enough=len(codes) >= ENOUGH_LOGS,
                )
            )
    return tuple(verdicts)


def _notes(found: Mapping[str, Sequence[set[str]]]) -> tuple[str, ...]:
    lines = ["", "setting | logs | with a warning | codes"]
    for name, codes in found.items():
        counted = ", ".join(f"{code} {count}" for code, count in _count(codes).most_common())
        lines.append(f"{name} | {len(codes)} | {sum(map(bool, codes))} | {counted}")
    total = _count(one for name, codes in found.items() if SETTINGS[name].healthy for one in codes)
    lines += ["", "code | healthy logs", *(f"{code} | {count}" for code, count in total.most_common())]
    return tuple(lines)
