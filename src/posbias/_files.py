"""Files read and written safely."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from posbias._validate import as_path
from posbias.errors import PosbiasError

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_PARQUET = b"PAR1"
# As much of a file as tells its kind, where that is not Parquet with its footer.
_HEAD = 2**16
_DRAFT = ".posbias-{}.part"
_SCRATCH = "posbias-"
_HELD = ".held"
# So often is a file made anew that another run removed before it was held.
_TRIES = 5


@contextmanager
def atomic_write(path: str | os.PathLike[str], kind: Kind | None = None) -> Iterator[str]:
    """Yield a name beside `path` to write to; it takes the place of `path` only once it is complete.

    Where the kind of file is told, one of another kind is not replaced.
    """
    writable(path, kind)
    with atomic_write_all([path]) as drafts:
        yield drafts[0]


@dataclass(frozen=True)
class Kind:
    """A kind of file that is written here: what it is called, how it begins, and what stands in its head or footer."""

    words: str
    begins: tuple[bytes, ...]
    holds: bytes = b""


def writable(path: str | os.PathLike[str], kind: Kind | None = None) -> Path:
    """Return the file that a path stands for, links followed; refuse what is no place for a file of that kind."""
    name = as_path("path", path)
    if not name:
        raise PosbiasError("The path to write to is empty. Name a file.")
    target = Path(os.path.realpath(name))
    if target.is_dir():
        raise PosbiasError(f"{name!r} is a folder. Name the file to write in it.")
    # By its own name: what a stream such as /dev/stdout leads to has none.
    if os.path.exists(name) and (odd := special_file_kind(name)) is not None:
        raise PosbiasError(f"{name!r} is {odd}, which would be replaced by a file. Name a file.")
    if kind is not None:
        check_replaceable(name, kind)
    folder = os.path.dirname(name) or "."
    if not target.parent.is_dir():
        raise PosbiasError(f"The folder {folder!r} does not exist. Make it first, or choose another path.")
    if not os.access(target.parent, os.W_OK):
        raise PosbiasError(
            f"The folder {folder!r} cannot be written to. Choose another path, or change its permissions."
        )
    return target


def special_file_kind(path: str | os.PathLike[str]) -> str | None:
    """Return what a path is if it is nothing to read; None for a file, a folder, or where there is nothing at all.

    >>> special_file_kind(os.devnull), special_file_kind(os.curdir), special_file_kind("no such file")
    ('a device', None, None)
    """
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except FileNotFoundError:
        return "a link that leads nowhere" if os.path.islink(path) else None
    except (OSError, ValueError):
        return None


def check_replaceable(path: str | os.PathLike[str], kind: Kind) -> None:
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


@contextmanager
def atomic_write_all(paths: Sequence[str | os.PathLike[str]]) -> Iterator[list[str]]:
    """Yield a name beside each path to write to; they take the places of the paths, in order, once all are complete."""
    targets = [writable(path) for path in paths]
    for folder in {target.parent for target in targets}:
        _sweep(folder)
    with ExitStack() as held:
        drafts = [held.enter_context(_draft(target)) for target in targets]
        yield drafts
        for draft, target in zip(drafts, targets, strict=True):
            os.replace(draft, target)


def _sweep(folder: Path) -> None:
    """Remove drafts of runs that were killed: nobody holds their locks."""
    for draft in folder.glob(_DRAFT.format("*")):
        with suppress(OSError):
            descriptor = os.open(draft, os.O_RDWR)
            try:
                if _lock(descriptor):
                    draft.unlink()
            finally:
                os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Hold a file for as long as it is open, and return whether that could be: it ends with the process."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


@contextmanager
def _draft(target: Path) -> Iterator[str]:
    """Yield an empty file beside the target, with its permissions, that goes away unless it is renamed."""
    draft, descriptor = _held_draft(target)
    try:
        if target.exists():
            os.chmod(draft, stat.S_IMODE(target.stat().st_mode))
        yield str(draft)
    finally:
        os.close(descriptor)
        draft.unlink(missing_ok=True)


def _held_draft(target: Path) -> tuple[Path, int]:
    """Return a new file beside the target, and its descriptor, which holds it."""
    for left in range(_TRIES, -1, -1):
        draft = target.with_name(_DRAFT.format(uuid.uuid4().hex))
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        # Between the two steps another run may take it for left, and remove it: then another one. Where there are no
        # locks, nobody removes any.
        if (_lock(descriptor) and draft.exists()) or not left:
            break
        os.close(descriptor)
        draft.unlink(missing_ok=True)
    return draft, descriptor


@contextmanager
def atomic_write_folder(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the name of a folder to make and write to; it takes the place of `path` only once it is complete.

    What is there already is moved away first, and removed last.
    """
    name = as_path("path", path)
    if not os.path.isdir(name):
        writable(name)
    target = Path(os.path.realpath(name))
    for left in target.parent.glob(_DRAFT.format("*") + f"/{_HELD}"):
        _remove_left(left)
    draft = target.with_name(_DRAFT.format(uuid.uuid4().hex))
    descriptor = None
    try:
        draft.mkdir()
        descriptor = os.open(draft / _HELD, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        _lock(descriptor)
        yield str(draft / "new")
        if target.exists():
            os.rename(target, draft / "old")
        os.rename(draft / "new", target)
    finally:
        if descriptor is not None:
            os.close(descriptor)
        shutil.rmtree(draft, ignore_errors=True)


def _remove_left(held: Path) -> None:
    """Remove a folder of a run of this user that was killed: nobody holds its lock."""
    with suppress(OSError):
        folder = held.parent
        if folder.is_symlink() or (hasattr(os, "getuid") and folder.stat().st_uid != os.getuid()):
            return
        descriptor = os.open(held, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        try:
            if _lock(descriptor):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


@contextmanager
def scratch_folder() -> Iterator[str]:
    """Yield a folder in the temporary one that goes away at the end, and so do those that killed runs left there."""
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{_SCRATCH}*/{_HELD}"):
        _remove_left(left)
    while True:
        # Named before it is made: whenever a signal comes, it is known what to remove.
        folder = parent / f"{_SCRATCH}{uuid.uuid4().hex}"
        descriptor = None
        try:
            folder.mkdir(0o700)
            descriptor = os.open(folder / _HELD, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            # Where another run took it for left in this very moment, it is gone: then another one.
            if _lock(descriptor) or (folder / _HELD).exists():
                yield str(folder)
                return
        except FileNotFoundError:
            if descriptor is not None or not parent.is_dir():
                raise
        finally:
            if descriptor is not None:
                os.close(descriptor)
            shutil.rmtree(folder, ignore_errors=True)


HARVEST = Kind("a harvest", (_PARQUET,), b"posbias.harvest")
HISTORY = Kind("a history", (_PARQUET,), b"posbias.history")
REPORT = Kind("a report of posbias", (b"<!DOCTYPE html>",), b'name="generator" content="posbias')
CURVE = Kind("a curve", (b"{",), b'"positions"')
PICTURE = Kind("a picture", (b"\x89PNG", b"%PDF", b"<?xml", b"<svg"))
