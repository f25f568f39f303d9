"""What a file is, told from its first or last bytes: a saved harvest, or a log."""

from __future__ import annotations

import os

# Where a Parquet file that is a harvest says so, and what it holds.
METADATA_KEY = b"posbias.harvest"


def is_harvest(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a saved harvest rather than a log: whether its Parquet footer says so."""
    try:
        with open(path, "rb") as file:
            file.seek(-8, os.SEEK_END)
            length, magic = int.from_bytes(file.read(4), "little"), file.read(4)
            if magic != b"PAR1":
                return False
            file.seek(-8 - length, os.SEEK_END)
            return METADATA_KEY in file.read(length)
    except OSError:
        return False
