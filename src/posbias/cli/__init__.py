"""The command `posbias`: a thin layer over the library. A command imports what it needs when it runs."""

from __future__ import annotations

from typing import Any

from posbias.cli.main import main, script

__all__ = ["main", "script"]


def __getattr__(name: str) -> Any:
    # Imported late: importing click takes a while, and Ctrl-C must find `main` ready.
    if name not in ("cli", "COMMANDS"):
        raise AttributeError(f"module 'posbias.cli' has no attribute {name!r}")
    from posbias.cli import commands

    return getattr(commands, name)
