"""A temporary PostgreSQL server on a socket in a folder, for one test session."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import psycopg

# Nothing outlives the session, so nothing needs to be safe on the disk.
SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=32MB")


def programs() -> Path:
    """Return the folder of initdb and postgres: that of Debian, or one on the path."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4].split(".")[0]))
    found = debian[-1] if debian else shutil.which("initdb")
    if not found:
        pytest.skip("PostgreSQL is not installed: apt install postgresql")
    return Path(found).resolve().parent


@dataclass(frozen=True)
class Server:
    address: str

    def connect(self) -> psycopg.Connection[Any]:
        # `make test` does without it.
        import psycopg

        return psycopg.connect(self.address, autocommit=True)


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """Run a server. PostgreSQL does not run as root, so root starts it as the user of the Debian package."""
    bin_, folder = programs(), Path(tempfile.mkdtemp(prefix="posbias-postgres-", dir="/tmp"))
    owner = pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    user: dict[str, Any] = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    common: dict[str, Any] = {"cwd": folder, **(user if os.geteuid() == 0 else {})}
    process = None
    try:
        data = folder / "data"
        made = subprocess.run(
            [bin_ / "initdb", "-D", data, "-U", "posbias", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N"],
            capture_output=True,
            text=True,
            **common,
        )
        assert made.returncode == 0, made.stderr
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    *(bin_ / "postgres", "-D", data, "-k", folder, "-h", ""),
                    *(word for setting in SETTINGS for word in ("-c", setting)),
                ],
                stdout=log,
                stderr=log,
                **common,
            )
        asked = [bin_ / "pg_isready", "-q", "-h", folder]
        while process.poll() is None and subprocess.run(asked).returncode:
            time.sleep(0.05)
        assert process.poll() is None, (folder / "log").read_text()
        yield Server(f"host={folder} user=posbias dbname=postgres")
    finally:
        if process is not None:
            # SIGINT is a fast shutdown: it ends connections that are still open.
            process.send_signal(2)
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
