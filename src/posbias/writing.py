"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posbias.errors import PosbiasError


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a name beside `path` to write to; it takes the place of `path` only once it is complete."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    if not target.parent.is_dir():
        raise PosbiasError(f"The folder {str(target.parent)!r} does not exist. Make it first, or choose another path.")
    try:
        yield str(part)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
