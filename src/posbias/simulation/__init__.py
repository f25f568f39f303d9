"""Simulated click logs with known propensities, for tutorials, tests, benchmarks and experiments.

A `World` says how users and rankers behave. `simulate` returns its click log as a table, `write` streams it to a file
of any size with the truth beside it, `rank` returns the rankings, and `agreement` measures how similar the rankers are.
The classes of `users` click on pages by the position-based model, or against one of its assumptions.
"""

from posbias.simulation.simulate import Ids, Layout, SimulatedLog, agreement, rank, simulate, write
from posbias.simulation.users import (
    AtMostOneClick,
    AttractionBias,
    Cascade,
    Crawled,
    NeighbourBias,
    PositionBased,
    Segmented,
    TrustBias,
    User,
)
from posbias.simulation.world import World

__all__ = [
    "AtMostOneClick",
    "AttractionBias",
    "Cascade",
    "Crawled",
    "Ids",
    "Layout",
    "NeighbourBias",
    "PositionBased",
    "Segmented",
    "SimulatedLog",
    "TrustBias",
    "User",
    "World",
    "agreement",
    "rank",
    "simulate",
    "write",
]
