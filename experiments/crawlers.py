"""Experiment "crawlers": does `check` find crawlers that click half of their results, and accuse no users?

The healthy settings of the experiment "audit" are simulated with at most 8,000 page views each, in three ways: as they
are; with 2% of the page views clicked by a crawler; and with users who read from the top to a depth of their own, so
that the same curve comes from a few users who read whole pages. crawlers.csv has the share of logs in which `check`
reports crawlers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from experiments.audit import SETTINGS, Setting, draw_log
from experiments.figures import draw_settings
from experiments.laboratory import Laboratory
from experiments.outcomes import ENOUGH_LOGS, Outcome, Row, make_verdict, seed_of
from posbias._arrays import FloatArray
from posbias.engines.duckdb import DuckDB
from posbias.judging.check import check
from posbias.logs.click_log import ClickLog

_CRAWLED, _MAX_VIEWS = 0.02, 8000
_MAX_FALSE, _MAX_FALSE_READERS, _MIN_FOUND = 0.01, 0.05, 0.9
# With these, few results are left to click, or all users click nearly alike at every rank: crawlers change little.
_HARD = ("CTR", "η 0.3", "rank 2", "depth", "cut at", "shorter")
# With these, page views of users who click much hide those of crawlers.
_UNLIKE = "who click differently"


def run_crawlers(lab: Laboratory) -> Outcome:
    """Simulate logs of every setting in three ways, and count in how many `check` reports crawlers."""
    # Replay with users is the log of another setting without the ranks.
    chosen = {
        n: setting for n, setting in SETTINGS.items() if setting.healthy and not (setting.replay and setting.users)
    }
    shares: dict[str, list[float]] = {}
    for number, (name, setting) in enumerate(chosen.items()):
        small = replace(setting, views=min(setting.views, _MAX_VIEWS)).shrunk(lab.sizes.world)
        found = np.zeros(4)
        for log in range(lab.sizes.crawler_logs):
            seed = seed_of(lab.seed, "crawlers", name, log)
            tables = (
                draw_log(small, seed),
                draw_log(replace(small, crawled=_CRAWLED), seed),
                draw_readers(small, seed),
            )
            clicks = np.mean(tables[0]["clicked"].to_numpy())
            found += [*(_reports_crawlers(small, table) for table in tables), clicks]
            lab.progress(f"crawlers: {name}", (number + (log + 1) / lab.sizes.crawler_logs) / len(chosen))
        shares[name] = (found / lab.sizes.crawler_logs).tolist()
    rows: list[Row] = [
        {"setting": name, "logs": lab.sizes.crawler_logs, "healthy": own[0], "crawled": own[1], "readers": own[2]}
        | {"click_rate": own[3]}
        for name, own in shares.items()
    ]
    healthy, crawled, readers, _ = np.array([*shares.values()]).T
    hard = np.array([any(word in name for word in _HARD) for name in shares])
    unlike = np.array([_UNLIKE in name for name in shares])
    easy = ~hard & ~unlike
    # Shares of a few per cent take more logs than an error does.
    enough = len(shares) * lab.sizes.crawler_logs >= 10 * ENOUGH_LOGS
    verdicts = (
        make_verdict(
            "In at most 1% of healthy logs crawlers are reported",
            f"{healthy.mean():.1%}",
            healthy.mean() <= _MAX_FALSE,
            enough=enough,
        ),
        make_verdict(
            "In at most 5% of logs crawlers are reported if a few users read whole pages",
            f"{readers.mean():.1%}",
            readers.mean() <= _MAX_FALSE_READERS,
            enough=enough,
        ),
        make_verdict(
            "Crawlers are found in 90% of logs with whole pages of ten results or more on which users click the first, "
            "if users click alike",
            f"{crawled[easy].mean():.0%}; {_mean(crawled[unlike])} if users click differently, "
            f"{_mean(crawled[hard])} in the other settings",
            crawled[easy].mean() >= _MIN_FOUND,
            enough=enough,
        ),
    )
    lines: dict[str, FloatArray] = {
        name: np.array([values, np.zeros(len(values))])
        for name, values in (("healthy", healthy), ("2% crawlers", crawled))
    }
    figure = draw_settings(list(shares), lines, "Share of logs with a report of crawlers", (0.9, 1.0))
    notes = ["", "setting | healthy | 2% crawlers | readers of whole pages"]
    notes += [f"{name} | {' | '.join(f'{100 * share:.0f}%' for share in own[:3])}" for name, own in shares.items()]
    return Outcome("crawlers", rows, figure, verdicts, notes=tuple(notes))


def _mean(shares: FloatArray) -> str:
    return f"{shares.mean():.0%}" if len(shares) else "not measured"


def draw_readers(setting: Setting, seed: int) -> pa.Table:
    """Return a log of users who read from the top to a depth of their own: rank k is read on a share p_k of pages."""
    log = draw_log(replace(setting, eta=0.0, curve=None), seed)
    view = log["impression_id"].to_numpy()
    chance = np.random.default_rng(seed).random(int(view.max()) + 1)
    depth = (chance[:, None] < setting.propensity / setting.propensity.max()).sum(axis=1)
    clicked = log["clicked"].to_numpy() * (log["position"].to_numpy() <= depth[view])
    return log.set_column(log.column_names.index("clicked"), "clicked", pa.array(clicked))


def _reports_crawlers(setting: Setting, table: pa.Table) -> bool:
    unit = None if setting.users is None else "user_id"
    found = check(ClickLog(table, unit=unit), max_rank=setting.max_rank, engine=DuckDB(threads=1))
    return any(finding.code == "crawlers" for finding in found.findings)
