"""The command `posbias`: a thin layer over the library. Commands import what they need when they run."""

from __future__ import annotations

from typing import Any

from posbias.cli.main import main, script

__all__ = ["main", "script"]


def __getattr__(name: str) -> Any:
    # Not imported above: click takes its time, and Ctrl-C must find the command ready.
    if name not in ("cli", "COMMANDS"):
        raise AttributeError(f"module 'posbias.cli' has no attribute {name!r}")
    from posbias.cli import commands

    return getattr(commands, name)
