"""Compare the start-up time of `posbias --help` with that of `python -c "import click"`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.timing import Ratio, compare


def measure(repeats: int = 20) -> Ratio:
    command = str(Path(sys.executable).with_name("posbias"))

    def run(*words: str) -> None:
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    return compare(
        "`posbias --help`",
        lambda: run(command, "--help"),
        '`python -c "import click"`',
        lambda: run(sys.executable, "-c", "import click"),
        repeats=repeats,
        promise="3",
    )
