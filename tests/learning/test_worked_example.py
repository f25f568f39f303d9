"""The worked example goes from raw events to a ranker that is better than what served them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import polars
import pytest

import posbias
from experiments.judgments import generate_non_linear_judgments
from experiments.learning_trial import Site, open_site
from experiments.ranking_svm import ndcg, rank_scores
from experiments.sessions import simulate_sessions, split_views, sweeps
from posbias import ips_weights
from tests.support import ROOT

SCRIPT = ROOT / "examples" / "better_ranker.py"
PAGE = SCRIPT.parents[1] / "docs" / "learning.md"


def write_events(folder: Path, site: Site) -> None:
    """Write what a service has: pages as they were shown, clicks on them, and the features of all candidates."""
    judgments = site.training
    views = split_views(judgments, sweeps(judgments.queries, 16), seed=1)
    log = polars.from_arrow(simulate_sessions(judgments, site.rankings, views, site.user(1.0), seed=1))
    assert isinstance(log, polars.DataFrame)
    page = ["impression_id", "query_id", "ranker"]
    shown = log.sort("impression_id", "position").group_by(page, maintain_order=True)
    shown.agg(polars.col("doc_id").alias("doc_ids")).write_parquet(folder / "impressions.parquet")
    log.filter(polars.col("clicked") == 1).select("impression_id", "doc_id").write_parquet(folder / "clicks.parquet")
    ids = {"query_id": judgments.query_of, "doc_id": np.arange(judgments.documents)}
    features = {f"f{number}": column for number, column in enumerate(judgments.features.T)}
    polars.DataFrame(ids | features).write_parquet(folder / "candidates.parquet")


def test_the_script_is_short() -> None:
    assert len(SCRIPT.read_text("utf-8").splitlines()) < 70


@pytest.mark.parametrize("name", ["better_ranker.py", "nightly.py"])
def test_a_script_without_arguments_says_which_it_takes(name: str) -> None:
    ran = subprocess.run([sys.executable, SCRIPT.with_name(name)], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert f"{name} FOLDER" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.long
def test_raw_events_become_a_better_ranker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = open_site(generate_non_linear_judgments(1110, seed=5), 800, seed=0)
    write_events(tmp_path, site)
    spec = importlib.util.spec_from_file_location("better_ranker", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(tmp_path)
    printed = capsys.readouterr().out
    assert printed in PAGE.read_text("utf-8"), printed
    ours = quality(tmp_path, site)
    # The same with a curve that is flat: clicks as they are.
    monkeypatch.setattr(posbias, "ips_weights", uncorrected)
    script.main(tmp_path)
    naive = quality(tmp_path, site)
    found = f"{site.production:.3f}", f"{naive:.3f}", f"{ours:.3f}"
    assert all(number in PAGE.read_text("utf-8") for number in found), found
    assert site.production < naive < ours - 0.015


def uncorrected(log: posbias.ClickLog, curve: posbias.CrossFit, **settings: Any) -> Any:
    """Weigh by a curve that is 1 at every rank."""
    fitted = curve.curve()
    flat = tuple(replace(one, propensity=1.0) for one in fitted.positions)
    return ips_weights(log, replace(fitted, positions=flat), **settings)


def quality(folder: Path, site: Site) -> float:
    """nDCG@10 of the ranker that the script wrote, on queries it has not seen."""
    features = site.held_out.features
    scores = lightgbm.Booster(model_file=folder / "ranker.txt").predict(features)
    return ndcg(site.held_out, rank_scores(site.held_out, np.asarray(scores)))
