"""Compressed files read to their end for their checksums, which engines do not look at.

DuckDB takes a gzip file whose checksum or length is wrong, and the first part of a Zstandard file that was cut.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from posbias.engines.files import find_files, is_path
from posbias.engines.headers import damaged_file
from posbias.errors import PosbiasError
from posbias.findings import UnusableLogError
from posbias.logs.click_log import ClickLog

_CHUNK = 2**18
# A few packed bytes may hold gigabytes: so many are unpacked at once.
_AT_ONCE = 2**22


@contextmanager
def verified(log: ClickLog) -> Iterator[None]:
    """Refuse a log at the end of the block that reads it if one of its compressed files is damaged.

    They are unpacked once more beside the engine, on a core that it leaves idle: one file is read by one thread.
    """
    files = _packed(log)
    if not files:
        yield
        return
    stop = threading.Event()
    found: list[UnusableLogError] = []
    checker = threading.Thread(target=_check, args=(files, stop, found), daemon=True)
    checker.start()
    try:
        try:
            yield
        except PosbiasError:
            # Bytes that are wrong explain rows that are.
            checker.join()
            if not found:
                raise
        checker.join()
    finally:
        stop.set()
        checker.join()
    if found:
        raise found[0] from None


def _packed(log: ClickLog) -> list[str]:
    """Return the compressed files of a log that are on this machine."""
    files: list[str] = []
    for source in log.sources:
        if is_path(source):
            # What is not there, or is a table of an engine, is no file to be checked; opening it will say more.
            with suppress(PosbiasError, OSError, ValueError):
                files += find_files(source)
    return [name for name in files if _reader(name) is not None]


def _reader(name: str) -> Callable[[str, threading.Event], None] | None:
    return next((read for ending, read in _READERS.items() if name.lower().endswith(ending)), None)


def _check(files: Sequence[str], stop: threading.Event, found: list[UnusableLogError]) -> None:
    for name in files:
        read = _reader(name)
        try:
            if read is not None:
                read(name, stop)
        # Arrow's errors are ValueErrors or OSErrors.
        except (OSError, EOFError, ValueError, zlib.error) as error:
            found.append(damaged_file(name, error))
            return


def _read_gzip(name: str, stop: threading.Event) -> None:
    """Unpack a gzip file, of one member or several; zlib itself compares the checksum and the length of each."""
    member: Any = None
    with open(name, "rb") as file:
        while not stop.is_set():
            packed = file.read(_CHUNK)
            if not packed:
                break
            while packed:
                if member is None:
                    # Zeros after a member are padding.
                    packed = packed.lstrip(b"\0")
                    member = zlib.decompressobj(wbits=31) if packed else None
                if member is not None:
                    member.decompress(packed, _AT_ONCE)
                    packed = member.unused_data if member.eof else member.unconsumed_tail
                    member = None if member.eof else member
    if member is not None and not stop.is_set():
        raise EOFError("it ends before the end of what is packed in it")


def _read_zstd(name: str, stop: threading.Event) -> None:
    """Unpack a Zstandard file; its checksum is compared if it has one, which is for whoever packs it to say."""
    import pyarrow as pa

    space = bytearray(_AT_ONCE)
    with pa.input_stream(name, compression="zstd") as stream:
        while not stop.is_set() and stream.readinto(space):
            pass


_READERS = {".gz": _read_gzip, ".zst": _read_zstd}
