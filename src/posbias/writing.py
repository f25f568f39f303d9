"""Files that are written whole or not at all, and folders for what is needed only meanwhile."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from posbias.arguments import as_path
from posbias.errors import PosbiasError
from posbias.reading import odd_kind
from posbias.replacing import Kind, refuse_other

_DRAFT = ".posbias-{}.part"
_SCRATCH = "posbias-"
_HELD = ".held"
# So often is a file made anew that another run removed before it was held.
_TRIES = 5


@contextmanager
def written_whole(path: str | os.PathLike[str], kind: Kind | None = None) -> Iterator[str]:
    """Yield a name beside `path` to write to; it takes the place of `path` only once it is complete.

    Where the kind of file is told, one of another kind is not replaced.
    """
    writable(path, kind)
    with all_written_whole([path]) as drafts:
        yield drafts[0]


@contextmanager
def all_written_whole(paths: Sequence[str | os.PathLike[str]]) -> Iterator[list[str]]:
    """Yield a name beside each path to write to; they take the places of the paths, in order, once all are complete."""
    targets = [writable(path) for path in paths]
    for folder in {target.parent for target in targets}:
        _sweep(folder)
    with ExitStack() as held:
        drafts = [held.enter_context(_draft(target)) for target in targets]
        yield drafts
        for draft, target in zip(drafts, targets, strict=True):
            os.replace(draft, target)


@contextmanager
def folder_written_whole(path: str | os.PathLike[str]) -> Iterator[str]:
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


def writable(path: str | os.PathLike[str], kind: Kind | None = None) -> Path:
    """Return the file that a path stands for, links followed; refuse what is no place for a file of that kind."""
    name = as_path("path", path)
    if not name:
        raise PosbiasError("The path to write to is empty. Name a file.")
    target = Path(os.path.realpath(name))
    if target.is_dir():
        raise PosbiasError(f"{name!r} is a folder. Name the file to write in it.")
    # By its own name: what a stream such as /dev/stdout leads to has none.
    if os.path.exists(name) and (odd := odd_kind(name)) is not None:
        raise PosbiasError(f"{name!r} is {odd}, which would be replaced by a file. Name a file.")
    if kind is not None:
        refuse_other(name, kind)
    folder = os.path.dirname(name) or "."
    if not target.parent.is_dir():
        raise PosbiasError(f"The folder {folder!r} does not exist. Make it first, or choose another path.")
    if not os.access(target.parent, os.W_OK):
        raise PosbiasError(
            f"The folder {folder!r} cannot be written to. Choose another path, or change its permissions."
        )
    return target


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
