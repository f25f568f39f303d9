"""python -m posbias: the command by another name."""

from posbias.cli import script

script()
