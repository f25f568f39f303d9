"""Oracles, simulated logs and servers that the tests share."""

from pathlib import Path

# The clone.
ROOT = Path(__file__).resolve().parents[2]
