"""posbias beside other packages on the same simulated logs: error, time and memory.

The others are ultr-bias-toolkit (the estimators of the paper), and the position-based models of PyClick (EM) and clax
(gradient descent in JAX). Each run is a fresh process from the Parquet file to the JSON curve, imports included. The
others live in an environment of their own, `.venv-peer`, which the first run creates. PyClick is not on the package
index: it takes part if it can be imported there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.figures import Line, draw_curves
from experiments.outcomes import Outcome, make_verdict
from posbias import World
from posbias._arrays import FloatArray
from posbias.errors import PosbiasError
from posbias.progress import Progress, silent
from posbias.simulation import write

HERE = Path(__file__).resolve().parent
VENV = HERE.parent / ".venv-peer"
WORKER = HERE / "peer_worker.py"
# One pip call each, in this order: torch pinned and alone, because a free choice of torch may bring gigabytes of CUDA
# packages that nobody here uses. clax needs a flax that does not go with newer versions of JAX.
REQUIREMENTS = (
    ("torch==2.13.0",),
    ("ultr-bias-toolkit==0.0.5", "clax-models==0.1.1", "jax<0.8", "pandas<3", "pyarrow"),
)

# Two rankers of unequal quality, p_k = 1/k, 10 results on a page. In the even logs each query has 4 page views; in the
# heavy-tailed ones most have one or two, and a few have hundreds.
_WORLD: Mapping[str, Any] = {"quality": (2.0, 1.0), "queries": 25_000, "repeats": 4}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "even, 1 million rows": {},
    "heavy-tailed, 1 million rows": {"skew": 2.0},
    "even, 10 million rows": {"queries": 250_000},
    "heavy-tailed, 10 million rows": {"queries": 250_000, "skew": 2.0},
}
_QUICK = 0.02  # the share of the queries with --quick

PROGRAMS: Mapping[str, str] = {
    "posbias": "posbias estimate",
    "all_pairs": "ultr-bias-toolkit AllPairs",
    "adjacent_chain": "ultr-bias-toolkit AdjacentChain",
    "pivot_one": "ultr-bias-toolkit Pivot",
    "pyclick": "PyClick PBM",
    "clax": "clax PBM",
}
# EM in pure Python takes four minutes for a million rows; 10 million are left out.
_SLOW = ("pyclick",)
_SLOW_ROWS = 2_000_000


def run_peers(
    *, quick: bool = False, seed: int = 0, setting: str | None = None, progress: Progress = silent
) -> Outcome:
    """Run every program once on one log of each setting.

    Arguments:
        quick: use a fiftieth of the queries.
        seed: the random seed of the logs.
        setting: run only the settings whose names contain this text.
        progress: a function that is called with the current step and the share that is done.
    """
    chosen = [name for name in SETTINGS if setting is None or setting in name]
    if not chosen:
        raise PosbiasError(f"No setting of peers contains {setting!r}. The settings are {', '.join(SETTINGS)}.")
    missing = [] if _can_import("pyclick.click_models.PBM") else ["pyclick"]
    programs = [name for name in PROGRAMS if name not in missing]
    rows: list[dict[str, Any]] = []
    lines: list[Line] = []
    for number, name in enumerate(chosen):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log.parquet"
            world = _world(name, quick, seed)
            write(world, log, layout="replay")
            size = int(world.queries * world.repeats * world.max_rank)
            for place, program in enumerate(programs):
                progress(f"{name}, {PROGRAMS[program]}", (number + place / len(programs)) / len(chosen))
                if program in _SLOW and size > _SLOW_ROWS:
                    continue
                done = run(command(program, log))
                curve = read_curve(done.output, world.max_rank)
                rows.append(_row(name, program, done, curve, world.propensity))
                if number == 0:
                    lines.append(Line(PROGRAMS[program], curve))
    size_note = ["Quick: a fiftieth of the queries of each log."] if quick else []
    notes = (
        *size_note,
        *_table(rows),
        *(f"Not run: {PROGRAMS[name]}, which cannot be imported in {VENV}." for name in missing),
    )
    verdicts = tuple(_verdict(name, [row for row in rows if row["setting"] == name]) for name in chosen)
    figure = draw_curves(lines, bands=False, truth=1 / np.arange(1, 11))
    return Outcome("peers", rows, figure, verdicts, notes=notes)


def _world(setting: str, quick: bool, seed: int) -> World:
    settings = {**_WORLD, **SETTINGS[setting]}
    return World(**{**settings, "queries": int(settings["queries"] * (_QUICK if quick else 1))}, seed=seed)


def _row(setting: str, program: str, done: Run, curve: FloatArray, truth: FloatArray) -> dict[str, Any]:
    return {
        "setting": setting,
        "program": PROGRAMS[program],
        "error": log_error(curve, truth),
        "largest_error": float(np.max(np.abs(curve / truth - 1))),
        "seconds": done.seconds,
        "cpu_seconds": done.cpu_seconds,
        "estimate_seconds": done.output.get("estimate_seconds", float("nan")),
        "peak_mb": done.peak_mb,
    }


def _verdict(setting: str, rows: list[dict[str, Any]]) -> Any:
    ours, *others = rows
    best = min(others, key=lambda row: np.nan_to_num(row["error"], nan=np.inf))
    return make_verdict(
        f"posbias has the smallest error ({setting})",
        f"{ours['error']:.3f}, and {best['error']:.3f} of {best['program']}",
        ours["error"] <= best["error"],
        ours["error"],
    )


def log_error(curve: FloatArray, truth: FloatArray) -> float:
    """Return the root mean squared error of log p over the ranks below the first; infinite for a propensity of 0.

    Example:
        >>> round(log_error(np.array([1, 0.55, 0.3]), np.array([1, 0.5, 0.3])), 3)
        0.067
        >>> log_error(np.array([1, 0.0]), np.array([1, 0.5]))
        inf
    """
    with np.errstate(divide="ignore"):
        return float(np.sqrt(np.mean(np.log(curve[1:] / truth[1:]) ** 2)))


def _table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the rows as lines of text."""
    lines = [f"{'log':29}  {'program':31}  error  largest  seconds    CPU  memory"]
    for row in rows:
        lines.append(
            f"{row['setting']:29}  {row['program']:31}  {row['error']:5.3f}  {row['largest_error']:7.1%}  "
            f"{row['seconds']:7.1f}  {row['cpu_seconds']:5.1f}  {row['peak_mb']:,.0f} MB"
        )
    return lines


# ---- Processes


class Run(NamedTuple):
    """One process from start to exit: what it printed and what it cost."""

    output: dict[str, Any]
    seconds: float
    cpu_seconds: float
    peak_mb: float


def run(arguments: list[str]) -> Run:
    """Run a command that prints JSON, and measure its time and its peak memory."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen(arguments, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            message = err.read().decode(errors="replace").strip()[-2000:]
            raise PosbiasError(f"`{' '.join(arguments)}` exited with {process.returncode}:\n{message}")
        # Linux counts memory in KB.
        return Run(json.load(out), seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def command(program: str, log: Path) -> list[str]:
    """Return the command by which a program estimates a curve from a log."""
    if program == "posbias":
        return [sys.executable, "-m", "posbias", "estimate", str(log), "--json"]
    return [str(ensure_venv()), str(WORKER), program, str(log)]


def read_curve(output: Mapping[str, Any], ranks: int) -> FloatArray:
    """Return p̂_k / p̂_1 for k = 1..ranks from a program's JSON: NaN for a rank it leaves out or undefined."""
    curve = np.full(ranks, np.nan)
    for entry in output["positions"]:
        if entry["position"] <= ranks and entry["propensity"] is not None:
            curve[entry["position"] - 1] = entry["propensity"]
    relative: FloatArray = curve / curve[0]
    return relative


def ensure_venv() -> Path:
    """Return the Python of the others' environment, which is created when missing or incomplete."""
    python = VENV / "bin" / "python"
    ready = VENV / "ready.json"  # written last, so an interrupted installation starts again
    wanted = json.dumps(REQUIREMENTS)
    if ready.exists() and ready.read_text("utf-8") == wanted:
        return python
    print(f"creating {VENV} for other packages, once ...", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    for packages in REQUIREMENTS:
        pip = [python, "-m", "pip", "install", "--quiet", *packages]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode != 0:
            raise PosbiasError(
                f"pip could not install {' '.join(packages)} into {VENV}:\n{done.stderr.strip()[-2000:]}\n"
                "Check that pip can reach a package index that has them, then run this again."
            )
    ready.write_text(wanted, "utf-8")
    return python


def _can_import(module: str) -> bool:
    return subprocess.run([ensure_venv(), "-c", f"import {module}"], capture_output=True).returncode == 0
