"""Test that the experiment "alarms" counts every warning of a log once, whichever command raises it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import posbias
from experiments import alarms
from experiments.alarms import SETTINGS, run_alarms, shift_last_ranker
from experiments.audit import Setting, draw_log
from experiments.laboratory import Laboratory, Sizes

SMALL = Setting(views=500)


def test_there_are_enough_settings_of_healthy_logs() -> None:
    healthy = [name for name, setting in SETTINGS.items() if setting.healthy]
    assert len(healthy) >= 15
    assert len(healthy) * Sizes().alarm_logs >= 300


@pytest.mark.parametrize("replay", [False, True])
def test_a_ranker_that_never_shows_rank_1_is_an_error(replay: bool) -> None:
    """Its positions are one too high, which moved p_2 to 1.9 without an alarm."""
    setting = replace(SMALL, replay=replay)
    log = draw_log(setting, 0)
    assert "pages-begin-late" not in alarms.alarms(log, setting)
    shifted = shift_last_ranker(log)
    last = shifted["ranker"].to_numpy(zero_copy_only=False) == "b"
    np.testing.assert_array_equal(shifted["position"].to_numpy() - log["position"].to_numpy(), last)
    assert "pages-begin-late" in alarms.alarms(shifted, setting)
    assert not posbias.check(posbias.ClickLog(shifted)).usable


def test_logs_with_a_warning_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = replace(SMALL, replay=True, assigned="time", healthy=False)
    monkeypatch.setattr(alarms, "SETTINGS", {"healthy": SMALL, "replaced": replaced})
    outcome = run_alarms(Laboratory(lambda: pytest.fail("asked for judgments"), Sizes(alarm_logs=1)))
    assert [(row["setting"], row["logs"], row["alarm"]) for row in outcome.rows] == [
        ("healthy", 1, 0.0),
        ("replaced", 4, 1.0),
    ]
    codes = {(row["setting"], row["code"]): row["logs"] for row in outcome.tables["codes"]}
    assert codes["replaced", "rankers-replaced"] == 4
