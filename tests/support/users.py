"""Logs whose rankers were drawn by user, for tests of units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import posbias


def with_users(
    users: int, *, queries: int = 60, max_rank: int = 4, seed: int = 0, column: str = "user_id", **world: Any
) -> pa.Table:
    """Return a wide log in which each user saw one ranker, on several page views, and clicks more or less than others.

    Rows of the other ranker are left out, so that page views are not split evenly.
    """
    random = np.random.default_rng(seed)
    log = posbias.simulate(posbias.World(queries=queries, max_rank=max_rank, seed=seed, **world))
    _, page = np.unique(log.column("impression_id").to_numpy(zero_copy_only=False), return_inverse=True)
    user = random.integers(0, users, page.max() + 1)[page]
    assigned = np.array(["a", "b"])[np.arange(users) % 2]
    lazy = random.random(users) < 0.5
    clicked = log.column("clicked").to_numpy() * (~lazy[user] | (random.random(len(user)) < 0.3))
    log = log.set_column(log.column_names.index("clicked"), "clicked", pa.array(clicked.astype(np.int64)))
    log = log.append_column(column, pa.array(user))
    return log.filter(pa.array(assigned[user] == np.array(log.column("ranker").to_pylist())))
