"""posbias against its peer, ultr-bias-toolkit, on the same replay logs: time, memory and error.

    python -m benchmarks.peer             # prints a Markdown table
    python -m benchmarks.peer --logs 1    # a quick look

Each run is a fresh process from the Parquet file to the JSON curve, imports included. The peer lives in an
environment of its own, `.venv-peer`, which the first run creates: it needs torch and an older pandas.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import in_small_process

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
VENV = HERE.parent / ".venv-peer"
WORKER = HERE / "peer_worker.py"

# One pip call each, in this order: torch pinned and alone, because a free choice of torch may bring
# gigabytes of CUDA packages that the peer does not use.
REQUIREMENTS = (("torch==2.13.0",), ("ultr-bias-toolkit==0.0.5", "pandas<3", "pyarrow"))

# Two rankers of unequal quality, p_k = 1/k, and 25,000 queries that recur 4 times with 10 results each: a
# million rows; ten times as many queries make ten million. Only the traffic differs else.
WORLD: Mapping[str, Any] = {"quality": (2.0, 1.0), "noise": 0.1, "queries": 25_000, "repeats": 4}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "50/50": {"traffic": (50, 50)},
    "90/10": {"traffic": (90, 10)},
    "50/50, 10 million rows": {"traffic": (50, 50), "queries": 250_000},
}

PROGRAMS: Mapping[str, str] = {
    "posbias": "posbias estimate",
    "all_pairs": "ultr-bias-toolkit AllPairs",
    "adjacent_chain": "ultr-bias-toolkit AdjacentChain",
    "pivot_one": "ultr-bias-toolkit Pivot",
}

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One process from start to exit: what it printed and what it cost."""

    output: dict[str, Any]
    seconds: float
    cpu_seconds: float
    peak_mb: float


@dataclass(frozen=True)
class Row:
    """One line of the table: medians over the runs of one program, one on each log of a setting."""

    setting: str
    program: str
    logs: int
    seconds: float
    cpu_seconds: float
    estimate_seconds: float | None
    peak_mb: float
    mse: float
    max_relative_error: float


def ensure_venv() -> Path:
    """Return the Python of the peer's environment, which is created when missing or incomplete."""
    python = VENV / "bin" / "python"
    ready = VENV / "ready.json"  # written last, so an interrupted installation starts again
    wanted = json.dumps(REQUIREMENTS)
    if ready.exists() and ready.read_text() == wanted:
        return python
    print(f"creating {VENV} for the peer, once ...", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    for packages in REQUIREMENTS:
        pip = [python, "-m", "pip", "install", "--quiet", *packages]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(
                f"pip could not install {' '.join(packages)} into {VENV}:\n{done.stderr.strip()[-2000:]}\n"
                "Check that pip can reach a package index that has them, then run this again."
            )
    ready.write_text(wanted)
    return python


def simulate(setting: str, seed: int) -> Path:
    """Write a replay log of a setting under `benchmarks/data`, with its truth beside it, and return it."""
    from posbias.simulation import World, write

    DATA.mkdir(exist_ok=True)
    log = DATA / f"peer-{setting.replace('/', '-').replace(', ', '-').replace(' ', '-')}-{seed}.parquet"
    write(World(**{**WORLD, **SETTINGS[setting]}, seed=seed), log, layout="replay")
    return log


def read_truth(log: Path) -> Array:
    """Return the true p_k / p_1 for k = 1..M, from the file beside the log."""
    path = log.with_name(f"{log.stem}.truth.json")
    if not path.exists():
        raise SystemExit(f"{path} is missing: errors need the truth that posbias.simulation.write leaves there.")
    propensity: Array = np.asarray(json.loads(path.read_text())["propensity"], dtype=np.float64)
    relative: Array = propensity / propensity[0]
    return relative


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
            raise SystemExit(f"`{' '.join(arguments)}` exited with {process.returncode}:\n{message}")
        # Linux counts memory in KB.
        return Run(json.load(out), seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def command(program: str, log: Path) -> list[str]:
    """Return the command by which a program estimates a curve from a log."""
    if program != "posbias":
        return [str(ensure_venv()), str(WORKER), program, str(log)]
    script = Path(sys.executable).with_name("posbias")
    if not script.exists():
        raise SystemExit(f"{script} is missing: run `{sys.executable} -m pip install -e .` beside pyproject.toml.")
    return [str(script), "estimate", str(log), "--json"]


def read_curve(output: Mapping[str, Any], ranks: int) -> Array:
    """Return p̂_k / p̂_1 for k = 1..ranks from a program's JSON: NaN for a rank it leaves out or undefined."""
    curve = np.full(ranks, np.nan)
    for entry in output["positions"]:
        if entry["position"] <= ranks and entry["propensity"] is not None:
            curve[entry["position"] - 1] = entry["propensity"]
    relative: Array = curve / curve[0]
    return relative


def inverse_mse(estimate: Array, truth: Array) -> float:
    """Return the paper's error of a curve, mean_k (p̂_1/p̂_k - p_1/p_k)^2."""
    with np.errstate(divide="ignore"):  # a propensity of 0 is an infinite error
        return float(np.mean((1 / estimate - 1 / truth) ** 2))


def max_relative_error(estimate: Array, truth: Array) -> float:
    """Return max_k |p̂_k / p_k - 1|."""
    return float(np.max(np.abs(estimate / truth - 1)))


def measure(
    settings: Iterable[str] = tuple(SETTINGS), programs: Iterable[str] = tuple(PROGRAMS), logs: int = 3
) -> list[Row]:
    """Run each program once on each of several logs of each setting, which differ by their seed."""
    rows = []
    for setting in settings:
        paths = [in_small_process(simulate, setting, seed) for seed in range(logs)]
        for program in programs:
            print(f"{setting}: {PROGRAMS[program]} x {logs} ...", file=sys.stderr)
            runs = [in_small_process(run, command(program, path)) for path in paths]
            rows.append(summarise(setting, program, runs, [read_truth(path) for path in paths]))
    return rows


def summarise(setting: str, program: str, runs: list[Run], truths: list[Array]) -> Row:
    """Take the medians over runs, one for each log."""
    pairs = [(read_curve(each.output, len(p)), p) for each, p in zip(runs, truths, strict=True)]
    inner = [each.output["estimate_seconds"] for each in runs if "estimate_seconds" in each.output]
    return Row(
        setting=setting,
        program=PROGRAMS[program],
        logs=len(runs),
        seconds=median(each.seconds for each in runs),
        cpu_seconds=median(each.cpu_seconds for each in runs),
        estimate_seconds=median(inner) if inner else None,
        peak_mb=median(each.peak_mb for each in runs),
        # NumPy's median, because an undefined curve makes it undefined too.
        mse=float(np.median([inverse_mse(*pair) for pair in pairs])),
        max_relative_error=float(np.median([max_relative_error(*pair) for pair in pairs])),
    )


def to_markdown(rows: Iterable[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| traffic | program | logs | end to end, s | CPU, s | estimate only, s "
        "| peak memory, MB | MSE of p_1/p_k | max relative error of p_k |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        cells = (
            row.setting,
            row.program,
            str(row.logs),
            f"{row.seconds:.2f}",
            f"{row.cpu_seconds:.2f}",
            "–" if row.estimate_seconds is None else f"{row.estimate_seconds:.2f}",
            f"{row.peak_mb:,.0f}",
            _or_undefined(row.mse, ".4f"),
            _or_undefined(row.max_relative_error, ".1%"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _or_undefined(value: float, form: str) -> str:
    return "undefined" if math.isnan(value) else format(value, form)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare posbias with ultr-bias-toolkit on simulated logs.")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="traffic splits")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), help="what to run")
    parser.add_argument("--logs", type=int, default=3, help="logs of each setting, one run of each program on each")
    options = parser.parse_args()
    if options.logs < 1:
        parser.error(f"--logs must be 1 or more, found {options.logs}")
    print(to_markdown(measure(options.settings, options.programs, options.logs)))


if __name__ == "__main__":
    main()
