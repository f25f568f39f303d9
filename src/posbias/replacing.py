"""What an output may replace: an earlier one of its kind, told by what the file holds and never by its name."""

from __future__ import annotations

import os
from dataclasses import dataclass

from posbias.errors import PosbiasError
from posbias.reading import parquet_footer

_PARQUET = b"PAR1"
# As much of a file as tells its kind, where that is not Parquet with its footer.
_HEAD = 2**16


@dataclass(frozen=True)
class Kind:
    """A kind of file that is written here: what it is called, how it begins, and what stands in its head or footer."""

    words: str
    begins: tuple[bytes, ...]
    holds: bytes = b""


HARVEST = Kind("a harvest", (_PARQUET,), b"posbias.harvest")
HISTORY = Kind("a history", (_PARQUET,), b"posbias.history")
REPORT = Kind("a report of posbias", (b"<!DOCTYPE html>",), b'name="generator" content="posbias')
CURVE = Kind("a curve", (b"{",), b'"positions"')
PICTURE = Kind("a picture", (b"\x89PNG", b"%PDF", b"<?xml", b"<svg"))


def refuse_other(path: str | os.PathLike[str], kind: Kind) -> None:
    """Refuse to replace a file that is of another kind; one that is empty, or too damaged to tell, is nobody's loss."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return
    # What Parquet says of itself stands at its end.
    said = parquet_footer(path) if head.startswith(_PARQUET) else head
    if not head or said is None or (head.startswith(kind.begins) and kind.holds in said):
        return
    raise PosbiasError(
        f"{os.fspath(path)!r} is there already and is not {kind.words}: it would be lost. Name another file, or remove "
        "that one first."
    )
