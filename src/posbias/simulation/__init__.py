"""Click logs with known truth: for a demo, for tests, for benchmarks and for the paper's experiments.

A `World` says how users and rankers behave, `simulate` gives its click log as a table, `write` streams it
to a file of any size with the truth beside it, and `agreement` says how alike the rankers turned out.
"""

from posbias.simulation.simulate import Ids, Layout, Written, agreement, rank, simulate, write
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
    "TrustBias",
    "User",
    "World",
    "Written",
    "agreement",
    "rank",
    "simulate",
    "write",
]
