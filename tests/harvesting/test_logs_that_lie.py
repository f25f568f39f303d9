"""Logs that are well formed and yield a wrong curve: what tells, by how much the curve is off, and what cannot be told.

`docs/logs_that_lie.md` has a row for each. After a change, `python -m tests.harvesting.test_logs_that_lie` writes it.
"""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import posbias
from experiments.audit import SETTINGS, draw_log
from posbias.engines.duckdb import DuckDB
from posbias.errors import PosbiasError
from posbias.findings import Finding
from posbias.harvesting import row_checks
from tests.support.lying_logs import CUT, JOINED, LIES, Lie, healthy, join_by_hour_of_time, window_of_attribution

VIEWS = 5000
PAGE = Path(__file__).parents[2] / "docs" / "logs_that_lie.md"
# What the checks of clicks report.
CODES = {
    *(CUT, JOINED, "page-length-follows-clicks", "one-click-pages", "only-clicked-pages", "pages-begin-late"),
    "clicks-on-all-above",
    *("missing-rows", "positions-start-again", "flat-curve", "crawlers"),
}


def log_of(frame: Any, **names: Any) -> posbias.ClickLog:
    return posbias.ClickLog(pa.Table.from_pandas(frame, preserve_index=False), **names)


def lying_log(lie: Lie) -> posbias.ClickLog:
    frame = lie.spoil(healthy(lie.replay, VIEWS), np.random.default_rng(0))
    names = {"impression": "impression_id", **lie.names}
    if names["impression"] == "none":
        frame, names = frame.drop(columns="impression_id"), {}
    return log_of(frame, **names)


def harvest(log: posbias.ClickLog) -> posbias.Harvest:
    """Return the harvest of a log, read back from its file with all its findings."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore", posbias.PosbiasWarning)
        posbias.harvest(log, force=True, engine=DuckDB(threads=1)).save(Path(folder) / "x.harvest")
        return posbias.Harvest.load(Path(folder) / "x.harvest")


@cache
def true_curve(replay: bool) -> np.ndarray:
    """The estimate of the healthy log, so that chance does not count as a lie."""
    found = harvest(log_of(healthy(replay, VIEWS), impression="impression_id"))
    return posbias.CrossFit(interval=None).fit(found).propensity_


def factor(lie: Lie) -> str:
    """By which factor the curve is off at its worst rank; a dash if there is no curve."""
    try:
        curve = posbias.CrossFit(interval=None).fit(harvest(lying_log(lie))).propensity_
    except PosbiasError:
        return "–"
    ratio = curve / true_curve(lie.replay)
    known = np.isfinite(ratio) & (ratio > 0)
    worst = ratio[known][np.argmax(np.abs(np.log(ratio[known])))]
    return f"{worst:.2g}" if worst < 10 else f"{worst:.0f}"


def table_row(lie: Lie) -> str:
    layout = "replay" if lie.replay else "wide"
    # How sure `diagnose` is depends on how much data there is.
    severity = "" if lie.told_by == "diagnose" else f"{lie.severity} "
    told = f"{severity}`{lie.found}` (`{lie.told_by}`)" if lie.found else "nothing"
    return f"| {lie.name} | {layout} | {factor(lie)} | {told} |"


def findings(lie: Lie, log: posbias.ClickLog, command: str) -> tuple[Finding, ...]:
    if command == "check":
        return posbias.check(log).findings
    if command == "diagnose":
        return posbias.diagnose(log, force=True).findings
    return harvest(log).findings


@pytest.mark.filterwarnings("ignore::posbias.PosbiasWarning")
# The newcomer runs every eighth of them; each takes about a second.
@pytest.mark.parametrize(
    "lie",
    [pytest.param(lie, marks=pytest.mark.long if i % 8 else ()) for i, lie in enumerate(LIES)],
    ids=[f"{lie.name}, {'replay' if lie.replay else 'wide'}" for lie in LIES],
)
def test_what_tells_is_told(lie: Lie) -> None:
    assert table_row(lie) in PAGE.read_text("utf-8"), "run python -m tests.harvesting.test_logs_that_lie"
    log = lying_log(lie)
    if not lie.found:
        # The page says that nothing tells. If something does, it should say so.
        assert not CODES & {f.code for f in harvest(log).findings}
        return
    found = {f.code: f for f in findings(lie, log, lie.told_by)}
    assert lie.told_by == "diagnose" or found[lie.found].severity == lie.severity
    assert found[lie.found].remedy
    if lie.found in CODES and lie.told_by == "estimate":
        assert lie.found in {f.code for f in posbias.check(log).findings}
        assert lie.found in {f.code for f in posbias.diagnose(log, force=True).findings}
    if lie.severity == "error" and lie.told_by == "estimate":
        with pytest.raises(posbias.LogError, match="force"):
            posbias.harvest(log)


def test_the_page_lists_these_logs_only() -> None:
    rows = [row for row in PAGE.read_text("utf-8").splitlines() if re.match(r"\| .* \| (wide|replay) \|", row)]
    assert len(rows) == len(LIES) >= 40


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("ids", [False, True])
def test_healthy_logs_are_not_accused(replay: bool, ids: bool) -> None:
    frame = healthy(replay, VIEWS)
    log = log_of(frame, impression="impression_id") if ids else log_of(frame.drop(columns="impression_id"))
    assert not CODES & {f.code for f in (*harvest(log).findings, *posbias.check(log).findings)}


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, setting in SETTINGS.items() if setting.healthy])
def test_no_healthy_setting_of_the_audit_is_accused(name: str) -> None:
    setting = SETTINGS[name].shrunk(0.2)
    log = posbias.ClickLog(draw_log(setting, 7), impression="impression_id")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", posbias.PosbiasWarning)
        found = posbias.harvest(log, max_rank=setting.max_rank, engine=DuckDB(threads=1)).findings
    assert not CODES & {f.code for f in found}


def test_whole_page_views_of_a_large_log_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_checks, "SAMPLE_ROWS", 2**13)
    monkeypatch.setattr(row_checks, "_FIRST_ROWS", 2**12)
    frame = LIES[1].spoil(healthy(True, VIEWS), np.random.default_rng(0))
    found = {f.code: f for f in harvest(log_of(frame, impression="impression_id")).findings}
    assert "In a sample of one in" in found[CUT].message


@pytest.mark.parametrize("text", [False, True])
def test_clicked_rows_that_a_join_wrote_first_are_not_taken_for_a_sample(
    text: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_checks, "SAMPLE_ROWS", 2**13)
    monkeypatch.setattr(row_checks, "_FIRST_ROWS", 2**9)
    frame = healthy(True, VIEWS)
    frame = frame.sort_values("clicked", ascending=False, kind="stable")
    assert frame.clicked[: 2**9].all()
    path = tmp_path / f"log.{'csv' if text else 'parquet'}"
    frame.to_csv(path, index=False) if text else frame.to_parquet(path)
    log = posbias.ClickLog(path, impression="impression_id")
    assert not CODES & {f.code for f in harvest(log).findings}


def test_a_log_of_few_queries_is_not_called_flat() -> None:
    world = posbias.World(queries=2, repeats=2, max_rank=3)
    found = posbias.harvest(posbias.ClickLog(posbias.simulate(world)), max_rank=3).findings
    assert "flat-curve" not in [finding.code for finding in found]


def test_shuffled_rows_are_not_taken_for_missing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_checks, "SAMPLE_ROWS", 2**13)
    monkeypatch.setattr(row_checks, "_FIRST_ROWS", 2**12)
    frame = healthy(True, VIEWS).sample(frac=1, random_state=1)
    assert not CODES & {f.code for f in harvest(log_of(frame, impression="impression_id")).findings}


def test_a_ranker_that_cuts_its_pages_is_named() -> None:
    frame = healthy(True, VIEWS)
    cut = LIES[0].spoil(frame, np.random.default_rng(0))
    mixed = frame[(frame.ranker == "a") | frame.index.isin(cut.index)]
    found = {f.code: f for f in harvest(log_of(mixed, impression="impression_id")).findings}
    assert found[CUT].message.startswith("Ranker 'b': ")


def test_lost_clicks_are_counted_in_pairs_of_clicks() -> None:
    frame = window_of_attribution(healthy(True, VIEWS), np.random.default_rng(0)).sort_values("position")
    pages = frame.groupby(["impression_id", "query_id"]).agg(docs=("doc_id", tuple), clicks=("clicked", "sum"))
    again = pages[pages.groupby(["query_id", "docs"]).docs.transform("size") > 1]
    pairs = int((again.clicks * (again.clicks - 1) // 2).sum())
    found = {f.code: f for f in harvest(log_of(frame, impression="impression_id")).findings}
    assert f"same page: {pairs:,} pairs of clicks" in found["one-click-pages"].message


def test_without_ids_lost_clicks_are_counted_by_query_and_ranker() -> None:
    frame = healthy(True, VIEWS)
    first = frame.position.where(frame.clicked == 1).groupby(frame.impression_id).transform("min")
    frame["clicked"] = (frame.position == first).astype(int)
    views = frame.groupby(["query_id", "ranker"]).agg(n=("impression_id", "nunique"), clicks=("clicked", "sum"))
    nearly = int(((views.n > 2) & (5 * views.clicks >= 4 * views.n)).sum())
    found = {f.code: f for f in harvest(log_of(frame.drop(columns="impression_id"))).findings}
    assert f"nearly as many in {nearly:,} cases" in found["one-click-pages"].message


def test_clicks_joined_within_an_hour_are_found_in_a_text_file(tmp_path: Path) -> None:
    """In CSV a time is a text."""
    frame = join_by_hour_of_time(healthy(True, VIEWS), np.random.default_rng(0))
    frame[frame.query_id < 100].to_csv(tmp_path / "log.csv", index=False)
    found = {f.code: f for f in harvest(posbias.ClickLog(tmp_path / "log.csv")).findings}
    assert "within one hour of 'timestamp'" in found[JOINED].message


@pytest.mark.parametrize("duplicates", ["refuse", "drop"])
def test_an_application_that_cuts_its_pages_is_named_in_a_text_file(tmp_path: Path, duplicates: str) -> None:
    """`check` keeps only the columns in use of a text file, and so do rows without their copies."""
    lie = next(lie for lie in LIES if "short lists" in lie.name)
    frame = lie.spoil(healthy(True, VIEWS), np.random.default_rng(0))
    frame[frame.query_id < 100].to_csv(tmp_path / "log.csv", index=False)
    names: Any = {} if duplicates == "refuse" else {"duplicates": "drop"}
    log = posbias.ClickLog(tmp_path / "log.csv", impression="impression_id", **names)
    found = {f.code: f for f in posbias.check(log).findings}
    assert (CUT in found) == (duplicates == "refuse")
    if CUT in found:
        assert found[CUT].message.startswith("Where 'device' is 'phone', ")


def test_a_user_is_not_named_as_an_application() -> None:
    """A harvest file keeps the finding, and holds no ids."""
    lie = next(lie for lie in LIES if lie.found == "pages-begin-late" and lie.severity == "error" and lie.replay)
    frame = lie.spoil(healthy(True, VIEWS), np.random.default_rng(0)).rename(columns={"device": "user_id"})
    found = {f.code: f for f in harvest(log_of(frame, impression="impression_id", unit="user_id")).findings}
    assert "phone" not in str(found["pages-begin-late"])


def test_the_remedy_for_first_positions_runs() -> None:
    lie = next(lie for lie in LIES if lie.found == "pages-begin-late" and lie.severity == "error" and not lie.replay)
    log = lying_log(lie)
    finding = next(f for f in posbias.check(log).findings if f.code == "pages-begin-late")
    repaired = posbias.ClickLog(log.source, impression="impression_id", **finding.arguments)
    assert not CODES & {f.code for f in posbias.check(repaired).findings}
    healed = posbias.CrossFit(interval=None).fit(harvest(repaired)).propensity_
    np.testing.assert_allclose(healed, true_curve(False), rtol=1e-9)


def test_the_remedy_for_first_positions_leaves_ranks_that_count_from_1() -> None:
    frame = healthy(False, VIEWS)
    want = posbias.CrossFit(interval=None).fit(harvest(log_of(frame, impression="impression_id"))).propensity_
    shifted = frame.assign(position=frame.position + (frame.device == "phone"))
    finding = next(
        f for f in posbias.check(log_of(shifted, impression="impression_id")).findings if f.code == "pages-begin-late"
    )
    repaired = log_of(shifted, impression="impression_id", **finding.arguments)
    found = posbias.CrossFit(interval=None).fit(harvest(repaired)).propensity_
    np.testing.assert_allclose(found, want, rtol=1e-9)


def count_false_alarms(logs: int, first: int = 0) -> str:
    """Return how many healthy logs of the audit's simulator, from a first seed on, have an error or a warning."""
    names = [name for name, setting in SETTINGS.items() if setting.healthy]
    alarms: Counter[str] = Counter()
    for number in range(logs):
        setting = replace(SETTINGS[names[number % len(names)]], views=(200, 1000, 5000)[number // len(names) % 3])
        table = draw_log(setting, first + number)
        given = {"impression": "impression_id"} if number % 2 else {}
        log = posbias.ClickLog(table if given else table.drop_columns(["impression_id"]), **given)
        try:
            found = posbias.harvest(log, max_rank=setting.max_rank, engine=DuckDB(threads=1), force=True).findings
        except posbias.PosbiasError as error:
            alarms["refused"] += 1
            print(f"{number}, {names[number % len(names)]}: {error}")
            continue
        accused = [f for f in found if f.code in CODES and f.severity in ("error", "warning")]
        alarms.update({f.severity for f in accused})
        for f in accused:
            print(f"{number}, {names[number % len(names)]}, {setting.views} page views: {f.severity} {f.code}")
    return f"{logs:,} healthy logs from seed {first}: {dict(alarms)}"


def main() -> None:
    """Write the table of the page, or count false alarms in so many healthy logs, from a first seed on."""
    if len(sys.argv) > 1:
        print(count_false_alarms(*map(int, sys.argv[1:])))
        return
    page = PAGE.read_text("utf-8")
    begin, _, rest = page.partition("| --- | --- | --- | --- |\n")
    after = rest[rest.index("\n\n") :]
    PAGE.write_text(f"{begin}| --- | --- | --- | --- |\n" + "\n".join(map(table_row, LIES)) + after, "utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
