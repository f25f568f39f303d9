"""What one does with results in Python: frames, notebooks, and scikit-learn's way with parameters."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone

import posbias
from posbias._optional import _installation
from posbias.estimators import ESTIMATORS, estimator_class

HOSTILE = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def harvest() -> posbias.Harvest:
    world = posbias.World(queries=200, max_rank=4, segments={"phone": 1.5, HOSTILE: 0.5})
    return posbias.harvest(posbias.ClickLog(posbias.simulate(world)), max_rank=4, by=["device"])


@pytest.fixture(scope="module")
def curve(harvest: posbias.Harvest) -> posbias.Curve:
    return posbias.CrossFit().fit(harvest).summary()


def test_a_summary_still_prints_as_a_table(curve: posbias.Curve) -> None:
    assert str(curve).startswith("cross-fit, 95% interval\nrank  propensity")
    assert repr(curve) == str(curve)


def test_a_summary_is_a_frame_of_pandas(curve: posbias.Curve) -> None:
    frame = curve.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    whole = frame[frame.scope == "all"].set_index("position")
    assert whole.propensity.tolist() == curve.propensity.tolist()
    assert whole.low.to_numpy()[1:].tolist() == curve.interval[1:, 0].tolist()
    assert frame.dtypes[["position", "propensity", "impressions"]].astype(str).tolist() == ["int64", "float64", "int64"]
    phone = frame[(frame.scope == "segment") & (frame.device == "phone")]
    assert phone.propensity.tolist() == curve.segments[("phone",)].propensity.tolist()
    assert len(frame) == 4 * 3


def test_a_summary_is_a_frame_of_polars(curve: posbias.Curve) -> None:
    frame = curve.to_polars()
    assert frame.schema["propensity"] == pl.Float64
    assert frame.filter(pl.col("scope") == "all")["propensity"].to_list() == curve.propensity.tolist()
    assert frame["device"].null_count() == 4


@pytest.mark.parametrize("joint", [False, True])
def test_frames_have_what_csv_has(curve: posbias.Curve, joint: bool) -> None:
    rows = list(csv.DictReader(io.StringIO(curve.to_csv(joint=joint))))
    records = curve.to_polars(joint=joint).to_dicts()
    assert [{name: "" if v is None else str(v) for name, v in record.items()} for record in records] == rows
    assert ("joint_low" in records[0]) == joint


def test_what_is_not_known_is_missing_and_its_column_has_its_type(curve: posbias.Curve) -> None:
    nothing = tuple(replace(p, propensity=None, low=None, high=None, degrees_of_freedom=None) for p in curve.positions)
    empty = replace(curve, positions=nothing, segments={}, by=())
    assert empty.to_pandas().propensity.dtype == np.float64
    assert empty.to_pandas().propensity.isna().all()
    assert empty.to_polars().schema["low"] == pl.Float64
    assert empty.to_polars()["low"].null_count() == 4


def test_no_segment_column_hides_one_of_ours() -> None:
    made = posbias.simulate(posbias.World(queries=100, max_rank=3, segments={"x": 1.0, "y": 1.0}))
    made = made.append_column("clicks", made["device"]).append_column("segment_clicks", made["device"])
    by = ["clicks", "segment_clicks"]
    fitted = posbias.AllPairs().fit(posbias.harvest(posbias.ClickLog(made), max_rank=3, by=by))
    frame = fitted.summary().to_pandas()
    assert frame.columns[:3].tolist() == ["scope", "segment_clicks", "segment_segment_clicks"]
    assert frame.clicks.dtype == np.int64


def test_a_notebook_shows_names_and_never_obeys_them(curve: posbias.Curve, harvest: posbias.Harvest) -> None:
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=50, rankers=(HOSTILE, "b"))))
    plan = posbias.plan(harvest, queries=200, scenarios=False)
    for value in (curve, posbias.check(log), replace(plan, notes=(HOSTILE,))):
        shown: str = value._repr_html_()  # type: ignore[attr-defined]
        assert "&lt;script&gt;" in shown
        assert "<script" not in shown
    assert curve._repr_html_().count("<table>") == 3
    assert "0.5" in curve._repr_html_()


def test_a_check_is_a_frame_of_its_findings() -> None:
    log = posbias.simulate(posbias.World(queries=50))
    at = log.column_names.index("position")
    found = posbias.check(posbias.ClickLog(log.set_column(at, "position", pa.array(np.zeros(len(log), int)))))
    frame = found.to_pandas()
    assert frame.code.tolist() == [finding.code for finding in found.findings] != []
    assert frame["count"].dtype == np.int64
    assert found.to_polars()["remedy"].to_list() == [finding.remedy for finding in found.findings]
    # None at all is a frame of no rows, with the columns.
    fine = posbias.check(posbias.ClickLog(log)).to_pandas()
    assert (len(fine), fine.columns.tolist()) == (0, frame.columns.tolist())


def test_a_plan_is_a_frame_of_scenarios_estimators_and_ranks(harvest: posbias.Harvest) -> None:
    plan = posbias.plan(harvest, queries=None, traffic=[{"a": 0.3, "b": 0.7}])
    frame = plan.to_pandas()
    assert frame.scenario.unique().tolist() == ["now", *(each.name for each in plan.scenarios)]
    row = frame[(frame.scenario == "now") & (frame.estimator == "cross-fit") & (frame["rank"] == 3)].iloc[0]
    requirement = plan.forecast("cross-fit").requirement(3)
    assert requirement is not None
    assert row.times == requirement.times
    assert row.more_page_views == requirement.more_page_views
    assert plan.to_polars()["queries"].null_count() == len(frame)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_can_be_cloned_by_scikit_learn(name: str) -> None:
    kind: Any = estimator_class(name)
    given = {"features": ["x", "y"]} if name == "regression-em" else {}
    made = kind(**given)
    assert clone(made).get_params() == made.get_params() == made.parameters()
    assert clone(made) is not made
    changed = made.set_params(**made.get_params())
    assert changed is made


def test_parameters_are_set_by_name_and_others_are_refused(harvest: posbias.Harvest) -> None:
    made = posbias.AllPairs().set_params(level=0.5, interval="jackknife")
    assert repr(made) == "AllPairs(level=0.5)"
    narrow = made.fit(harvest).interval_
    wide = clone(made).set_params(level=0.99).fit(harvest).interval_
    assert (wide[1:, 1] > narrow[1:, 1]).all()
    with pytest.raises(posbias.EstimateError, match=r"AllPairs has no parameter 'levl'\. It has 'weighting', 'level'"):
        made.set_params(level=0.9, levl=0.9)
    # Nothing was changed by what was refused.
    assert made.level == 0.5


def test_a_clone_is_not_fitted(harvest: posbias.Harvest) -> None:
    copy = clone(posbias.PivotOne(level=0.9).fit(harvest))
    with pytest.raises(posbias.EstimateError, match="not fitted yet"):
        copy.summary()


def test_polars_and_sklearn_are_imported_only_when_used() -> None:
    code = (
        "import posbias, sys; h = posbias.harvest(posbias.ClickLog(posbias.simulate(posbias.World(queries=20))));"
        "posbias.AllPairs().fit(h).get_params(); print(posbias.AllPairs().fit(h).summary()._repr_html_());"
        "assert not {'polars', 'sklearn'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_frame_without_its_package_says_how_to_get_it(curve: posbias.Curve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(
        posbias.PosbiasError, match=r"to_polars needs Polars, which is not installed .* pip install polars"
    ):
        curve.to_polars()


def test_extras_are_installed_in_a_clone_as_it_works_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone_of_ours = tmp_path / "my clone"
    (clone_of_ours / "src" / "posbias").mkdir(parents=True)
    assert _installation("sklearn", "learn", clone_of_ours) == "pip install 'posbias[learn]'"
    (clone_of_ours / "pyproject.toml").touch()
    assert _installation("sklearn", "learn", clone_of_ours) == f"pip install -e '{clone_of_ours}[learn]'"
    monkeypatch.chdir(clone_of_ours)
    assert _installation("sklearn", "learn", clone_of_ours) == "pip install -e '.[learn]'"
    assert _installation("polars", None, clone_of_ours) == "pip install polars"
