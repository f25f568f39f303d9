"""Simulate logs of interleaved lists: results of two rankers on one page, by team draft or balanced."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas

Interleaving = Callable[[np.ndarray, int, np.random.Generator], tuple[list[int], list[int]]]
TRUTH = 1 / np.arange(1, 11)


def team_draft(lists: np.ndarray, length: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Return the results shown and their teams by team draft, with a coin per round (Radlinski et al., 2008)."""
    shown: list[int] = []
    teams: list[int] = []
    while len(shown) < length:
        for team in rng.permutation(len(lists)):
            if len(shown) < length:
                shown.append(next(int(doc) for doc in lists[team] if doc not in shown))
                teams.append(int(team))
    return shown, teams


def balanced(lists: np.ndarray, length: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """One coin for the page says who goes first; what is there already is passed over (Joachims, 2003)."""
    first = int(rng.integers(2))
    shown: list[int] = []
    teams: list[int] = []
    at = [0, 0]
    while len(shown) < length:
        team = first if at[first] <= at[1 - first] else 1 - first
        doc = int(lists[team][at[team]])
        at[team] += 1
        if doc not in shown:
            shown.append(doc)
            teams.append(team)
    return shown, teams


def interleaved(
    how: Interleaving, queries: int = 300, views: int = 4, similarity: float = 0.6, seed: int = 0
) -> pandas.DataFrame:
    """A wide log of interleaved page views, ten results each, and positions' true curve TRUTH."""
    rng = np.random.default_rng(seed)
    rows = []
    for query in range(queries):
        relevance = np.where(rng.random(15) < 0.3, 0.9, 0.15)
        common = rng.normal(size=15)
        noise = np.sqrt(similarity) * common + np.sqrt(1 - similarity) * rng.normal(size=(2, 15))
        lists = np.argsort(-(relevance + noise), axis=1)
        ranks = np.argsort(lists, axis=1) + 1
        for view in range(views):
            shown, teams = how(lists, 10, rng)
            for k, (doc, team) in enumerate(zip(shown, teams, strict=True)):
                a, b = (int(r) if r <= 10 else None for r in ranks[:, doc])
                clicked = rng.random() < relevance[doc] * TRUTH[k]
                rows.append((query, f"{query}-{view}", doc, "ab"[team], k + 1, int(clicked), a, b))
    names = ["query_id", "impression_id", "doc_id", "ranker", "position", "clicked", "rank_a", "rank_b"]
    table = pandas.DataFrame(rows, columns=names)
    return table.astype({"rank_a": "Int64", "rank_b": "Int64"})
