"""Run every benchmark and write RESULTS.md."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks import bootstrap_fits, harvests, peer, startup
from benchmarks.timing import table

RESULTS = Path(__file__).with_name("RESULTS.md")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure posbias and write benchmarks/RESULTS.md.")
    parser.add_argument("--millions", type=int, nargs="+", default=[10, 100], help="rows of the logs, in millions")
    parser.add_argument("--repeats", type=int, default=3, help="measured rounds of each comparison")
    parser.add_argument("--logs", type=int, default=3, help="logs on which the peer is run")
    options = parser.parse_args()

    parts = [_header(" ".join(sys.argv[1:]))]
    say("start-up ...")
    ratios = [startup.measure()]
    for millions in options.millions:
        for rankers in (2, 3):
            say(f"wide, {rankers} rankers, {millions} million rows ...")
            ratios.append(harvests.measure_wide(millions, rankers, options.repeats))
        for ids in ("int", "str"):
            say(f"replay, {ids} ids, {millions} million rows ...")
            ratios.append(harvests.measure_replay(millions, ids, options.repeats))
    parts += ["## Against the engine itself", table(ratios)]
    say("under a memory limit ...")
    parts += ["## Memory", harvests.measure_memory(max(options.millions))]
    say("bootstrap fits ...")
    parts += ["## 1,000 bootstrap fits of AllPairs", bootstrap_fits.to_markdown()]
    say("peer ...")
    rows = peer.measure(logs=options.logs)
    parts += ["## Against ultr-bias-toolkit", _PEER, peer.to_markdown(rows)]
    RESULTS.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print("\n\n".join(parts))


_PEER = (
    "The same replay logs of a million rows, each program in a fresh process from the Parquet file to the curve; "
    "ours with its 1,000 bootstrap intervals, which the peer does not have. Command: `python -m benchmarks.peer`."
)


def _header(arguments: str) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("duckdb", "numpy", "scipy", "pyarrow"))
    return (
        "# Benchmarks\n\nRatios of one run; times are medians of repeated runs, both sides in turn on one machine. "
        f"Written by `python -m benchmarks{' ' + arguments if arguments else ''}` (`make bench`) on {os.cpu_count()} "
        f"cores, Python {platform.python_version()}, {versions}."
    )


if __name__ == "__main__":
    main()
