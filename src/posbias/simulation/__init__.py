"""Click logs with known truth: for a demo, for tests, for benchmarks and for the paper's experiments.

A `World` says how users and rankers behave, `simulate` gives its click log as a table, `write` streams it
to a file of any size with the truth beside it, and `agreement` says how alike the rankers turned out.

The paper's way goes from `Judgments` (`load_letor`, `generate_judgments`) over Ranking SVMs (`sample_queries`,
`train_ranker`, `rank_documents`) and a user (`PositionBased`, …) to the log of `simulate_sessions` or, with explicit
swaps, of `simulate_swaps`.
"""

from posbias.simulation.blocks import agreement
from posbias.simulation.context_users import AttractionBias, Crawled, NeighbourBias
from posbias.simulation.files import Written, write
from posbias.simulation.generated import generate_judgments
from posbias.simulation.judgments import Judgments
from posbias.simulation.letor import load_letor
from posbias.simulation.non_linear import generate_non_linear_judgments
from posbias.simulation.ranking_svm import (
    ndcg,
    rank_documents,
    rank_scores,
    same_rank_share,
    sample_queries,
    train_ranker,
)
from posbias.simulation.sessions import simulate_sessions, simulate_swaps
from posbias.simulation.tables import Ids, Layout, rank, simulate
from posbias.simulation.traffic import split_views, sweeps
from posbias.simulation.users import AtMostOneClick, Cascade, PositionBased, Segmented, TrustBias, User
from posbias.simulation.world import World

__all__ = [
    "AtMostOneClick",
    "AttractionBias",
    "Cascade",
    "Crawled",
    "Ids",
    "Judgments",
    "Layout",
    "NeighbourBias",
    "PositionBased",
    "Segmented",
    "TrustBias",
    "User",
    "World",
    "Written",
    "agreement",
    "generate_judgments",
    "generate_non_linear_judgments",
    "load_letor",
    "ndcg",
    "rank",
    "rank_documents",
    "rank_scores",
    "same_rank_share",
    "sample_queries",
    "simulate",
    "simulate_sessions",
    "simulate_swaps",
    "split_views",
    "sweeps",
    "train_ranker",
    "write",
]
