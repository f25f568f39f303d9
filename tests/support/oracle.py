"""The oracle of the harvest: sections 3 and 4 of the paper in plain loops and fractions.

A log is a list of dicts, one for each result shown: `query`, `doc`, `ranker`, `position` and `clicked`, or
`impressions` and `clicks` in its place where rows were counted together. A wide log's rows have `ranks` too,
a dict from each ranker to its rank of the document or None. The rankings of a long log are a list of dicts
`query`, `ranker`, `doc`, `rank`.

Nothing here knows SQL, NumPy or posbias, and everything is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from typing import Any

Row = dict[str, Any]
Stratum = Hashable
Shares = dict[Stratum, dict[str, dict[int, Fraction]]]  # stratum -> ranker -> rank -> how much of it
Exposure = dict[Stratum, dict[int, Fraction]]  # stratum -> rank -> w(q,d,k)
Pairs = dict[tuple[int, int], tuple[Fraction, Fraction]]  # (k, k') -> ĉ_k^{k,k'}, ¬ĉ_k^{k,k'}


def impressions(row: Row) -> int:
    return row.get("impressions", 1)


def clicks(row: Row) -> int:
    return row["clicks"] if "clicks" in row else int(row["clicked"])


def query_doc(row: Row) -> Stratum:
    return row["query"], row["doc"]


def top(rows: Iterable[Row], M: int) -> list[Row]:
    """Return the rows within the top M that have impressions."""
    return [row for row in rows if row["position"] <= M and impressions(row) > 0]


# Section 3.3: n_i, the page views that ranker i served


def page_views(rows: Iterable[Row], M: int) -> dict[str, int]:
    shown: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in top(rows, M):
        shown[row["ranker"]][row["position"]] += impressions(row)
    return {ranker: max(by_position.values()) for ranker, by_position in shown.items()}


# Where each ranker puts each document, as the share of its page views in which it does. One rank has all
# of it where the ranker is a function, which it is by definition where ranks are known, not observed.


def wide_shares(rows: Iterable[Row], M: int) -> Shares:
    shares: Shares = {}
    for row in top(rows, M):
        ranks = {i: {k: Fraction(1)} for i, k in row["ranks"].items() if k is not None and k <= M}
        assert shares.setdefault(query_doc(row), ranks) == ranks, "one pair has one vector of ranks"
    return shares


def long_shares(rows: Iterable[Row], rankings: Iterable[Row], M: int) -> Shares:
    known = {(r["query"], r["doc"], r["ranker"]): r["rank"] for r in rankings}
    shares: Shares = {query_doc(row): {} for row in top(rows, M)}
    for (query, doc, ranker), k in known.items():
        if (query, doc) in shares and k is not None and k <= M:
            shares[query, doc][ranker] = {k: Fraction(1)}
    return shares


def replay_shares(rows: Iterable[Row], M: int, stratum: Callable[[Row], Stratum] = query_doc) -> Shares:
    shown: dict[Stratum, dict[str, dict[int, int]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    for row in top(rows, M):
        shown[stratum(row)][row["ranker"]][row["position"]] += impressions(row)
    return {
        s: {i: {k: Fraction(n, sum(at.values())) for k, n in at.items()} for i, at in by_ranker.items()}
        for s, by_ranker in shown.items()
    }


def not_functions(shares: Shares) -> int:
    """Return how many (query, document, ranker) have more than one rank."""
    return sum(len(at) > 1 for by_ranker in shares.values() for at in by_ranker.values())


# Section 3.3: w(q,d,k) = Σ_i n_i 1[rank(d|f_i(q)) = k]


def exposure(shares: Shares, n: dict[str, int]) -> Exposure:
    w: Exposure = {s: defaultdict(Fraction) for s in shares}
    for s, by_ranker in shares.items():
        for ranker, at in by_ranker.items():
            for k, share in at.items():
                w[s][k] += n.get(ranker, 0) * share
    return w


def interventional_set(w: Exposure, k: int, k_: int) -> set[Stratum]:
    """S_{k,k'}: the pairs (q,d) that could have been shown at k and at k' (section 3.3)."""
    return {s for s in w if w[s].get(k, 0) > 0 and w[s].get(k_, 0) > 0}


def set_sizes(w: Exposure, M: int) -> dict[tuple[int, int], int]:
    return {(k, k_): len(interventional_set(w, k, k_)) for k, k_ in ordered_pairs(M)}


def ordered_pairs(M: int) -> list[tuple[int, int]]:
    return [(k, k_) for k in range(1, M + 1) for k_ in range(1, M + 1) if k != k_]


# Sections 3.4 and 4.2: ĉ_k^{k,k'} and ¬ĉ_k^{k,k'}, by each weighting


def traffic(rows: list[Row], w: Exposure, M: int, stratum: Callable[[Row], Stratum] = query_doc) -> Pairs:
    pairs: Pairs = {}
    for k, k_ in ordered_pairs(M):
        S = interventional_set(w, k, k_)
        c = not_c = Fraction(0)
        for row in rows:
            if row["position"] == k and stratum(row) in S:
                c += clicks(row) / w[stratum(row)][k]
                not_c += (impressions(row) - clicks(row)) / w[stratum(row)][k]
        pairs[k, k_] = c, not_c
    return pairs


def uniform(rows: list[Row], M: int, stratum: Callable[[Row], Stratum] = query_doc) -> Pairs:
    return own_rates(rows, M, stratum, lambda N, N_: Fraction(1))


def harmonic(rows: list[Row], M: int, stratum: Callable[[Row], Stratum] = query_doc) -> Pairs:
    return own_rates(rows, M, stratum, lambda N, N_: Fraction(N * N_, N + N_))


def smaller(rows: list[Row], M: int, stratum: Callable[[Row], Stratum] = query_doc) -> Pairs:
    return own_rates(rows, M, stratum, lambda N, N_: Fraction(min(N, N_)))


def own_rates(
    rows: list[Row], M: int, stratum: Callable[[Row], Stratum], weight: Callable[[int, int], Fraction]
) -> Pairs:
    N: dict[tuple[Stratum, int], int] = defaultdict(int)
    C: dict[tuple[Stratum, int], int] = defaultdict(int)
    for row in top(rows, M):
        N[stratum(row), row["position"]] += impressions(row)
        C[stratum(row), row["position"]] += clicks(row)
    strata = {s for s, _ in N}
    pairs: Pairs = {}
    for k, k_ in ordered_pairs(M):
        c = not_c = Fraction(0)
        for s in strata:
            if N.get((s, k), 0) > 0 and N.get((s, k_), 0) > 0:
                rate = Fraction(C[s, k], N[s, k])
                c += rate * weight(N[s, k], N[s, k_])
                not_c += (1 - rate) * weight(N[s, k], N[s, k_])
        pairs[k, k_] = c, not_c
    return pairs


# The whole of it


def shares_of(
    layout: str,
    rows: list[Row],
    M: int,
    rankings: list[Row] | None = None,
    stratum: Callable[[Row], Stratum] = query_doc,
) -> Shares:
    if layout == "wide":
        return wide_shares(rows, M)
    if layout == "long":
        return long_shares(rows, rankings or [], M)
    return replay_shares(rows, M, stratum)


def harvest(
    layout: str,
    rows: list[Row],
    M: int,
    weighting: str | None = None,
    rankings: list[Row] | None = None,
    stratum: Callable[[Row], Stratum] = query_doc,
) -> Pairs:
    """The pair table of a log. `stratum` is finer than (query, document) where replays come in parts."""
    weighting = weighting or ("harmonic" if layout == "replay" else "traffic")
    if weighting == "traffic":
        w = exposure(shares_of(layout, rows, M, rankings, stratum), page_views(rows, M))
        return traffic(rows, w, M, stratum)
    return {"uniform": uniform, "harmonic": harmonic, "min": smaller}[weighting](rows, M, stratum)


def intervention_sets(
    layout: str, rows: list[Row], M: int, rankings: list[Row] | None = None
) -> dict[tuple[int, int], int]:
    """|S_{k,k'}| over the pairs (q,d) that the log shows within the top M."""
    return set_sizes(exposure(shares_of(layout, rows, M, rankings), page_views(rows, M)), M)
