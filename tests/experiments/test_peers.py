"""Test what measures other packages; the packages themselves are in an environment that `make test` does not have."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import posbias
from experiments.__main__ import command as experiments
from experiments.peers import PROGRAMS, SETTINGS, WORKER, _table, _world, command, log_error, read_curve, run, run_peers
from posbias.errors import PosbiasError


def worker() -> object:
    spec = importlib.util.spec_from_file_location("peer_worker", WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_worker_knows_every_other_program() -> None:
    assert ["posbias", *worker().ESTIMATORS] == list(PROGRAMS)


def test_batches_have_equal_size() -> None:
    batches = worker()._batches(np.arange(1100), 512)
    assert [len(batch) for batch in batches] == [512, 512]
    assert [len(batch) for batch in worker()._batches(np.arange(7))] == [7]


def test_posbias_is_measured_from_the_file_to_the_curve(tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    world = posbias.World(queries=200, max_rank=4)
    posbias.simulation.write(world, log, layout="replay")
    done = run(command("posbias", log))
    curve = read_curve(done.output, 4)
    assert curve[0] == 1
    assert log_error(curve, world.propensity) < 0.5
    assert 0 < done.cpu_seconds < 60
    assert 20 < done.peak_mb < 2000


def test_curve_of_a_program_that_leaves_out_ranks() -> None:
    output = {
        "positions": [
            {"position": 1, "propensity": 0.5},
            {"position": 3, "propensity": 0.1},
            {"position": 4, "propensity": None},
        ]
    }
    np.testing.assert_array_equal(read_curve(output, 4), [1, np.nan, 0.2, np.nan])
    assert np.isnan(log_error(read_curve(output, 4), 1 / np.arange(1, 5)))


def test_failing_program_is_named() -> None:
    with pytest.raises(PosbiasError, match=r"exited with 3:\nno such package"):
        run([sys.executable, "-c", "import sys; sys.stderr.write('no such package'); sys.exit(3)"])


def test_settings_differ_in_size_and_tail() -> None:
    worlds = {name: _world(name, quick=False, seed=0) for name in SETTINGS}
    rows = {name: world.queries * world.repeats * world.max_rank for name, world in worlds.items()}
    assert rows == {name: (10 if "10 million" in name else 1) * 10**6 for name in SETTINGS}
    assert {name: world.skew > 0 for name, world in worlds.items()} == {name: "heavy" in name for name in SETTINGS}
    assert _world("even, 1 million rows", quick=True, seed=0).queries == 500


def test_unknown_setting_names_the_others(tmp_path: Path) -> None:
    with pytest.raises(PosbiasError, match="even, 1 million rows"):
        run_peers(setting="billion")
    result = CliRunner().invoke(experiments, ["peers", "--setting", "billion", "--output", str(tmp_path)])
    assert result.exit_code == 2
    assert "heavy-tailed, 10 million rows" in result.output


def test_table_has_a_line_for_each_run() -> None:
    row = {
        "setting": "even",
        "program": "posbias",
        "error": 0.0512,
        "largest_error": 0.1,
        "seconds": 1.0,
        "cpu_seconds": 2.0,
    }
    lines = _table([{**row, "peak_mb": 1234.5}, {**row, "error": float("inf"), "peak_mb": 1.0}])
    assert len(lines) == 3
    assert "0.051    10.0%" in lines[1]
    assert lines[1].endswith("1,234 MB")
