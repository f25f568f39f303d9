"""What is read is a file, which ends: pipes, devices and sockets are refused, not waited for; and how one ends."""

from __future__ import annotations

import os
import stat

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def odd_kind(path: str | os.PathLike[str]) -> str | None:
    """Return what a path is if it is nothing to read; None for a file, a folder, or where there is nothing at all.

    >>> odd_kind(os.devnull), odd_kind(os.curdir), odd_kind("no such file")
    ('a device', None, None)
    """
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except FileNotFoundError:
        return "a link that leads nowhere" if os.path.islink(path) else None
    except (OSError, ValueError):
        return None


def parquet_footer(path: str | os.PathLike[str]) -> bytes | None:
    """Return the footer of a Parquet file, None if it is none."""
    try:
        with open(path, "rb") as file:
            file.seek(-8, os.SEEK_END)
            length, magic = int.from_bytes(file.read(4), "little"), file.read(4)
            if magic != b"PAR1":
                return None
            file.seek(-8 - length, os.SEEK_END)
            return file.read(length)
    except (OSError, ValueError):
        return None
