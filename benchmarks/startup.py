"""Compare the time to start: of `posbias --help`, and of a whole estimate of a small log."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.timing import COMMAND, Ratio, compare, run_command
from posbias.simulation import World, write


def measure(repeats: int = 20) -> list[Ratio]:
    """Time `--help` against importing click, and the estimate of 1,000 rows against importing DuckDB and NumPy."""
    with TemporaryDirectory() as folder:
        log = Path(folder, "small.parquet")
        write(World(queries=10), log, "wide")
        return [
            compare(
                "`posbias --help`",
                lambda: run_command(COMMAND, "--help"),
                '`python -c "import click"`',
                lambda: run_command(sys.executable, "-c", "import click"),
                repeats=repeats,
                promise="3",
            ),
            compare(
                "`posbias estimate small.parquet`, 1,000 rows",
                lambda: run_command(COMMAND, "estimate", str(log)),
                '`python -c "import duckdb, numpy"`',
                lambda: run_command(sys.executable, "-c", "import duckdb, numpy"),
                repeats=repeats,
                promise="3",
            ),
        ]
