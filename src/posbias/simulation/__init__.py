"""Click logs with known truth: for a demo, for tests and for benchmarks.

A `World` says how users and rankers behave, `simulate` gives its click log as a table, `write` streams it
to a file of any size with the truth beside it, and `compare` says how alike the rankers turned out.
"""

from posbias.simulation.blocks import compare
from posbias.simulation.files import Written, write
from posbias.simulation.tables import Ids, Layout, rank, simulate
from posbias.simulation.world import World

__all__ = ["Ids", "Layout", "World", "Written", "compare", "rank", "simulate", "write"]
