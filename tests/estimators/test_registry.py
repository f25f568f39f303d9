"""The registry of estimators: commands, package names and docs come from it, and it imports no estimator."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import posbias
from posbias.estimators import ESTIMATORS, FROM_HARVESTS, CurveEstimator, Estimator, LogEstimator, estimator_class
from tests.docs.test_docs import ROOT, sources

PACKAGE = Path(posbias.__file__).parent


def run(*words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=120, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ESTIMATORS)
def test_entries_are_classes_that_know_their_name(name):
    kind = estimator_class(name)
    assert issubclass(kind, CurveEstimator)
    assert kind.name == name
    assert kind.fits_on[0] == ("harvest" if name in FROM_HARVESTS else "log")
    assert issubclass(kind, Estimator if name in FROM_HARVESTS else LogEstimator)
    assert getattr(posbias, kind.__name__) is kind is getattr(posbias.estimators, kind.__name__)
    assert {kind.__name__} <= {*dir(posbias)} & {*posbias.__all__} & {*dir(posbias.estimators)}


def test_every_estimator_of_the_package_is_registered_once():
    modules = (PACKAGE / "estimators").glob("*.py")
    named = [name for module in modules for name in re.findall(r'^    name = "(.+)"$', module.read_text("utf-8"), re.M)]
    assert sorted(named) == sorted(ESTIMATORS)


@pytest.mark.parametrize("package", ["__init__.py", "estimators/__init__.py"])
def test_type_checkers_know_every_estimator(package):
    text = (PACKAGE / package).read_text("utf-8")
    assert [class_ for _, class_ in ESTIMATORS.values() if f" import {class_} as {class_}\n" not in text] == []


def test_unknown_names_raise_errors():
    with pytest.raises(AttributeError, match=r"module 'posbias.estimators' has no attribute 'Nothing'"):
        _ = posbias.estimators.Nothing
    with pytest.raises(KeyError):
        estimator_class("nothing")
    assert "nothing" not in ESTIMATORS


def test_knowing_the_names_imports_no_estimator():
    code = (
        "import sys, posbias; from posbias.estimators import ESTIMATORS; "
        "print(*ESTIMATORS, len(ESTIMATORS), 'pbm-em' in list(ESTIMATORS)); "
        "print(*(name for name in ('numpy', 'posbias.estimators.base') if name in sys.modules))"
    )
    assert run("-c", code).splitlines() == [" ".join([*ESTIMATORS, str(len(ESTIMATORS)), "True"]), ""]


def test_a_new_estimator_is_one_file_and_one_line(tmp_path):
    """The estimator that CONTRIBUTING.md brings in, beside those of a copy of the package."""
    copy = tmp_path / "posbias"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    statements = sources(ROOT / "CONTRIBUTING.md", "pycon")
    end = next(i for i, text in enumerate(statements) if text.startswith("class LogRatios"))
    (copy / "estimators" / "log_ratios.py").write_text("\n".join(statements[: end + 1]))
    registry = copy / "estimators" / "__init__.py"
    line = '    "log-ratios": ("log_ratios", "LogRatios"),\n'
    registry.write_text(
        registry.read_text("utf-8").replace("FROM_HARVESTS = {\n", "FROM_HARVESTS = {\n" + line), "utf-8"
    )
    pq.write_table(posbias.simulate(posbias.World(queries=300, max_rank=3)), tmp_path / "log.parquet")
    command = ("-c", "from posbias.cli import main; main()", "estimate", str(tmp_path / "log.parquet"))
    out = run(*command, "--estimator", "log-ratios", "--max-rank", "3", PYTHONPATH=str(tmp_path))
    assert out.startswith("log-ratios, traffic weighting, 95% interval")
    assert "log-ratios," in "".join(run(*command, "--help", PYTHONPATH=str(tmp_path), COLUMNS="300").split("\n"))
    names = run("-c", "import posbias; print(posbias.LogRatios.name, *posbias.__all__)", PYTHONPATH=str(tmp_path))
    assert names.startswith("log-ratios ")
    assert "LogRatios" in names.split()
