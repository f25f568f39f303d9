"""Write files safely, and recognise what a path is.

A file is written under another name beside its path and renamed when it is complete, so that readers never see a part
of it. An existing file is replaced only if it is of the same kind, which is recognised by its content, not its name.
Pipes, devices and sockets are not read, because they may never end. A file that is read, changed and written again is
locked meanwhile, so that no change of another process is lost.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from posbias._text import Arguments
from posbias._validate import as_path
from posbias.errors import PosbiasError

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_PARQUET = b"PAR1"
# The kind of a file is recognised from this many bytes, that of Parquet from its footer.
_HEAD = 2**16
_DRAFT = ".posbias-{}.part"
_SCRATCH = "posbias-"
_HELD = ".held"
# The file that marks a folder as written by posbias. It lists the other files, one in a line.
FOLDER_MARKER = "_posbias"
# Another run may remove a new file before it is locked; then it is created again, at most so often.
_TRIES = 5
# A change of a file takes a moment. A process that waits longer than this many seconds gives up, and says so.
_LOCK_TIMEOUT, _LOCK_INTERVAL = 60.0, 0.05
# The errors of a disk, a quota or a limit on files that has no room left.
_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


@contextmanager
def atomic_write(path: str | os.PathLike[str], kind: Kind | None = None) -> Iterator[str]:
    """Yield a name beside `path` to write to; the file is renamed to `path` when it is complete.

    Arguments:
        path (path): the file to write.
        kind (Kind, default None): if given, an existing file of another kind is not replaced.
    """
    writable(path, kind)
    with atomic_write_all([path]) as drafts:
        yield drafts[0]


@dataclass(frozen=True)
class Kind:
    """A kind of file that posbias writes: its name, its first bytes, and bytes in its head or footer."""

    name: str
    first_bytes: tuple[bytes, ...]
    contains: bytes = b""


def writable(path: str | os.PathLike[str], kind: Kind | None = None) -> Path:
    """Return the file that a path leads to; raise an error if no file of that kind can be written there."""
    name = as_path("path", path)
    if not name:
        raise PosbiasError("The path to write to is empty. Name a file.")
    target = Path(os.path.realpath(name))
    if target.is_dir():
        raise PosbiasError(f"{name!r} is a folder. Name the file to write in it.")
    # Checked before links are followed: the target of /dev/stdout has no name.
    if os.path.exists(name) and (kind_found := special_file_kind(name)) is not None:
        raise PosbiasError(f"{name!r} is {kind_found}, which is not replaced by a file. Choose another path.")
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
    """Return "a pipe", "a device" or "a socket" if a path is one; None for a file, a folder or a missing path.

    >>> special_file_kind(os.devnull), special_file_kind(os.curdir), special_file_kind("no such file")
    ('a device', None, None)
    """
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except FileNotFoundError:
        return "a link that leads nowhere" if os.path.islink(path) else None
    except (OSError, ValueError):
        return None


def check_replaceable(path: str | os.PathLike[str], kind: Kind, arguments: Arguments | None = None) -> None:
    """Raise an error, with the arguments that help, if a file of another kind would be replaced.

    Empty and damaged files may be.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return
    # The metadata of Parquet is at its end.
    content = parquet_footer(path) if head.startswith(_PARQUET) else head
    if not head or content is None or (head.startswith(kind.first_bytes) and kind.contains in content):
        return
    remedy = "or replace it." if arguments else "or remove that file first."
    raise PosbiasError(
        f"{os.fspath(path)!r} exists and is not {kind.name}, so it is not replaced. Choose another path, {remedy}",
        arguments,
    )


def parquet_footer(path: str | os.PathLike[str]) -> bytes | None:
    """Return the footer of a Parquet file, or None if the file is not Parquet."""
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
    """Yield a name beside each path to write to; they are renamed to the paths, in order, when all are complete."""
    targets = [writable(path) for path in paths]
    for folder in {target.parent for target in targets}:
        _sweep(folder)
    with ExitStack() as held:
        drafts = [held.enter_context(_draft(target)) for target in targets]
        yield drafts
        for draft, target in zip(drafts, targets, strict=True):
            os.replace(draft, target)


def _sweep(folder: Path) -> None:
    """Remove drafts of killed runs, whose locks are free."""
    for draft in folder.glob(_DRAFT.format("*")):
        with suppress(OSError):
            descriptor = os.open(draft, os.O_RDWR)
            try:
                if _lock(descriptor):
                    draft.unlink()
            finally:
                os.close(descriptor)


def _has_locks() -> bool:
    """Return whether the operating system has the locks that keep drafts; Windows has not."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        return False
    return True


def _lock(descriptor: int) -> bool:
    """Lock a file for as long as it is open, and return whether that succeeded. The lock ends with the process."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


@contextmanager
def lock_file(path: str | os.PathLike[str], timeout: float = _LOCK_TIMEOUT) -> Iterator[None]:
    """Hold the lock of a file while it is read, changed and written again; wait while another process holds it.

    The lock is a file beside it, `.NAME.lock`, which the operating system locks. That lock ends with its process, even
    a killed one, so a file that is left behind locks nobody out.

    Arguments:
        path (path): the file to change; it need not exist yet.
        timeout (float, default 60): after this many seconds of waiting, raise an error.
    """
    target = writable(path)
    beside = target.with_name(f".{target.name}.lock")
    deadline = time.monotonic() + timeout
    while (descriptor := _open_locked(beside)) is None:
        if time.monotonic() > deadline:
            raise PosbiasError(
                f"Another process has been changing {os.fspath(path)!r} for {timeout:.0f} seconds. Nothing was "
                "written. Try again when it has ended."
            )
        time.sleep(_LOCK_INTERVAL)
    try:
        yield
    finally:
        # Removed while it is locked. Windows does not remove open files; there it stays, without harm.
        with suppress(OSError):
            beside.unlink()
        os.close(descriptor)


def _open_locked(path: Path) -> int | None:
    """Return the descriptor of a locked file, or None if another process has locked it."""
    flags = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags | os.O_RDWR, 0o666)
    except PermissionError:
        # The file of another user's process.
        descriptor = os.open(path, flags | os.O_RDONLY)
    try:
        _lock_or_raise(descriptor)
        # The process before may have removed the file after it was opened here: then others lock another file.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _lock_or_raise(descriptor: int) -> None:
    """Lock a file for as long as it is open; raise BlockingIOError if another process has locked it.

    On a file system without locks nothing is locked.
    """
    try:
        import fcntl
    except ImportError:
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        except OSError as error:
            raise BlockingIOError(*error.args) from None
    else:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass


@contextmanager
def _draft(target: Path) -> Iterator[str]:
    """Yield an empty file beside the target, with its permissions; it is removed unless it is renamed."""
    draft, descriptor = _held_draft(target)
    try:
        if target.exists():
            os.chmod(draft, stat.S_IMODE(target.stat().st_mode))
        yield str(draft)
    except OSError as error:
        if error.errno is None or error.errno not in _FULL:
            raise
        # Libraries do not say which file they were writing.
        raise OSError(error.errno, os.strerror(error.errno), str(target)) from None
    finally:
        if descriptor is not None:
            os.close(descriptor)
        draft.unlink(missing_ok=True)


def _held_draft(target: Path) -> tuple[Path, int | None]:
    """Return a new file beside the target, and the descriptor that locks it; None where there are no such locks."""
    for left in range(_TRIES, -1, -1):
        draft = target.with_name(_DRAFT.format(uuid.uuid4().hex))
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        if not _has_locks():
            # Windows does not rename an open file.
            os.close(descriptor)
            return draft, None
        # Before it is locked, another run may remove it as the draft of a killed run. Without locks nobody removes any.
        if (_lock(descriptor) and draft.exists()) or not left:
            break
        os.close(descriptor)
        draft.unlink(missing_ok=True)
    return draft, descriptor


@contextmanager
def atomic_write_folder(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the name of a folder to create and fill; it is renamed to `path` when it is complete.

    The folder gets a file, `_posbias`, which lists the files that posbias wrote. An existing folder is replaced only if
    it has nothing else. It is moved away first, and removed at the end. After a kill in between, the next run moves it
    back.
    """
    name = as_path("path", path)
    if not os.path.isdir(name):
        writable(name)
    target = Path(os.path.realpath(name))
    for left in target.parent.glob(_DRAFT.format("*") + f"/{_HELD}"):
        _remove_left(left)
    check_replaceable_folder(target)
    draft = target.with_name(_DRAFT.format(uuid.uuid4().hex))
    descriptor = None
    try:
        draft.mkdir()
        descriptor = os.open(draft / _HELD, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        _lock(descriptor)
        os.write(descriptor, os.fsencode(target.name))
        yield str(draft / "new")
        names = sorted(file.name for file in (draft / "new").iterdir())
        (draft / "new" / FOLDER_MARKER).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        # Again: it may have changed while the new folder was filled.
        check_replaceable_folder(target)
        if target.exists():
            os.rename(target, draft / "old")
        os.rename(draft / "new", target)
    finally:
        _move_back(draft, target)
        if descriptor is not None:
            os.close(descriptor)
        shutil.rmtree(draft, ignore_errors=True)


def check_replaceable_folder(folder: Path) -> None:
    """Raise an error if a folder has anything that posbias did not write."""
    if folder.is_dir():
        marker = folder / FOLDER_MARKER
        listed = marker.read_text(encoding="utf-8", errors="replace") if marker.is_file() else None
        names = [str(path.relative_to(folder)) + (os.sep if path.is_dir() else "") for path in folder.rglob("*")]
        check_folder_content(str(folder), names, listed)


def check_folder_content(folder: str, names: Sequence[str], listed: str | None) -> None:
    """Raise an error if a folder has anything that its marker does not list.

    Arguments:
        folder (str): the folder, for the message.
        names (sequence of str): the files in it.
        listed (str or None): the text of its marker, or None if it has none.
    """
    ours = {FOLDER_MARKER, f".{FOLDER_MARKER}.crc", *(listed or "").splitlines()}
    foreign = sorted(set(names) - ours)
    if names and (foreign or listed is None):
        found = f"such as {foreign[0]!r}" if foreign else f"and no file {FOLDER_MARKER!r}"
        raise PosbiasError(
            f"The folder {folder!r} has files that posbias did not write, {found}, so it is not replaced. Name "
            "another folder, or remove this one first."
        )


def _move_back(draft: Path, target: Path) -> None:
    """Move the old folder back to its place if a new one has not come there."""
    if (draft / "old").exists() and not target.exists():
        os.rename(draft / "old", target)


def _remove_left(held: Path) -> None:
    """Remove a folder of a killed run of this user, whose lock is free; an old folder in it returns to its place."""
    with suppress(OSError):
        folder = held.parent
        if folder.is_symlink() or (hasattr(os, "getuid") and folder.stat().st_uid != os.getuid()):
            return
        descriptor = os.open(held, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        try:
            if _lock(descriptor):
                name = os.fsdecode(os.read(descriptor, 4096))
                if name and os.path.basename(name) == name:
                    _move_back(folder, folder.with_name(name))
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


@contextmanager
def scratch_folder() -> Iterator[str]:
    """Yield a temporary folder that is removed at the end; those of killed runs are removed too."""
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{_SCRATCH}*/{_HELD}"):
        _remove_left(left)
    while True:
        # Named before it is created: whenever a signal comes, it is known what to remove.
        folder = parent / f"{_SCRATCH}{uuid.uuid4().hex}"
        descriptor = None
        try:
            folder.mkdir(0o700)
            descriptor = os.open(folder / _HELD, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            # Another run may have removed it just now as that of a killed run; then create another one.
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
WEIGHTS = Kind("a table of weights", (_PARQUET,), b"posbias.scale")
CURVE = Kind("a curve", (b"{",), b'"positions"')
PICTURE = Kind("a picture", (b"\x89PNG", b"%PDF", b"<?xml", b"<svg"))
