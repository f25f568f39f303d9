"""Test the simulator of the audit against its settings, and that an interrupted audit continues."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import posbias
from experiments import audit
from experiments.audit import SETTINGS, Audited, LogStore, Setting, draw_log, run_audit
from experiments.laboratory import Laboratory, Sizes
from posbias.errors import PosbiasError


def columns(setting: Setting, seed: int = 0) -> dict[str, Any]:
    return {name: column.to_numpy() for name, column in zip(*_named(draw_log(setting, seed)), strict=True)}


def _named(table: Any) -> tuple[list[str], list[Any]]:
    return table.column_names, table.columns


def test_simulated_click_rates_follow_the_curve_on_random_rankers() -> None:
    log = columns(Setting(views=20_000, zipf=0.0, skill=(0.0, 0.0), candidates=(10, 12)))
    clicks = np.bincount(log["position"], log["clicked"])[1:] / np.bincount(log["position"])[1:]
    np.testing.assert_allclose(clicks / clicks[0], 1 / np.arange(1, 11), rtol=0.15)


def test_a_page_shows_what_its_ranker_ranks() -> None:
    log = columns(replace(SETTINGS["six rankers, 50/10 × 5"], views=300))
    for name in "abcdef":
        shown = log["ranker"] == name
        assert shown.any()
        np.testing.assert_array_equal(log[f"rank_{name}"][shown], log["position"][shown])


@pytest.mark.parametrize(
    ("setting", "depths"),
    [
        (Setting(views=3000, depths=(3, 5, 10)), {"a": {3, 5, 10}, "b": {3, 5, 10}}),
        (Setting(views=3000, ranker_depths=((10,), (2, 4))), {"a": {10}, "b": {2, 4}}),
    ],
)
def test_pages_have_the_depths_of_the_setting(setting: Setting, depths: dict[str, set[int]]) -> None:
    log = columns(setting)
    _, first, shown = np.unique(log["impression_id"], return_index=True, return_counts=True)
    for name, wanted in depths.items():
        assert set(shown[log["ranker"][first] == name].tolist()) == wanted


@pytest.mark.parametrize(
    ("setting", "unit"),
    [
        (SETTINGS["sticky users"], "user_id"),
        (SETTINGS["sticky queries"], "query_id"),
        (Setting(assigned="time"), "day"),
    ],
)
def test_a_unit_sees_one_ranker(setting: Setting, unit: str) -> None:
    log = columns(replace(setting, views=2000))
    pairs = {*zip(log[unit].tolist(), log["ranker"].tolist(), strict=True)}
    assert len(pairs) == len({key for key, _ in pairs})


@pytest.mark.parametrize(
    "name",
    ["six rankers, 50/10 × 5", "depths 2–10, 60/30/10 unequal", "replay, depths 2–10", "sticky users"],
)
def test_the_harvest_of_a_simulated_log_is_that_of_the_engine(name: str) -> None:
    results = audit.draw_results(replace(SETTINGS[name], views=1500), 3)
    found = results.harvest()
    expected = posbias.harvest(posbias.ClickLog(results.table()), max_rank=found.max_rank)
    np.testing.assert_array_equal(found.counts("ranker", "rank"), expected.counts("ranker", "rank"))
    # Buckets differ. Without guesses, the curve does not depend on them.
    curves = [posbias.CrossFit(relevance="none", interval=None).fit(one).propensity_ for one in (found, expected)]
    np.testing.assert_allclose(*curves, rtol=1e-6)
    assert (found.units is None) == (expected.units is None)


def test_intervals_that_know_users_are_compared_with_those_that_do_not() -> None:
    setting = replace(SETTINGS["users 120 × 100, who click differently"], views=3000, max_rank=4)
    record = audit.measure(setting, 0)
    assert len(record["inside"]) == len(record["inside_by_query"]) == 4
    assert record["mismatch"] in (True, False)
    one = Audited.of(setting, [record, record])
    assert one.inside_by_query is not None
    assert np.isnan(one.share_warned())


def test_an_interrupted_audit_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "SETTINGS", {"small": Setting(views=400, queries=50)})
    measured: list[int] = []
    measure = audit.measure

    def counting(setting: Setting, seed: int) -> dict[str, Any]:
        measured.append(seed)
        return measure(setting, seed)

    monkeypatch.setattr(audit, "measure", counting)
    outcomes = [
        run_audit(Laboratory(lambda: pytest.fail("uses no judgments"), Sizes(audit_logs=logs), folder=tmp_path))
        for logs in (2, 3, 3)
    ]
    assert len(measured) == len({*measured}) == 3
    assert str(outcomes[1].rows) == str(outcomes[2].rows) != str(outcomes[0].rows)
    # Another setting with the same name has other logs.
    assert not LogStore.of(tmp_path, "small", Setting()).records


def test_only_settings_with_a_name_like_this_are_run() -> None:
    assert audit._chosen("replay, 95") == ["replay, 95/5"]
    with pytest.raises(PosbiasError, match="no setting 'nowhere'"):
        audit._chosen("nowhere")


def test_errors_are_compared_where_both_have_an_estimate() -> None:
    setting = Setting(max_rank=3, eta=1.0)
    truth = setting.propensity[1:]
    curves = {name: np.stack([truth, truth * 2]) for name in audit.RIVALS}
    curves["CrossFit"] = np.stack([truth * 4, [np.nan, 0.0]])
    curves["AllPairs"] = np.stack([truth * 2, truth])
    inside = np.array([[1.0, 0.0], [np.nan, 1.0]])
    one = Audited(setting, inside, None, curves, [["a"], []])
    assert one.coverage[0] == pytest.approx(2 / 3)
    assert one.error_ratio("AllPairs", inverse=False) == pytest.approx(2.0)
    assert (one.share_warned(), one.share_warned("b")) == (0.5, 0.0)
