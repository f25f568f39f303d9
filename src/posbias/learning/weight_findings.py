"""What is said of weights: how much a cap took off, whether clicks are enough, what came along or was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from posbias.curves.reasons import spans
from posbias.findings import Finding
from posbias.learning.weight_profiles import Cell
from posbias.wording import listed

# With fewer of each a query, inverse propensities lost to no correction, or won nothing, in our trials (docs/learning).
FEWEST_VIEWS, FEWEST_CLICKS = 4, 4
# From this share on a cap is worth a word.
_MUCH = 0.25


def find_few_clicks(queries: int, page_views: int, clicks: int) -> list[Finding]:
    """Return that there are too few page views or clicks a query for inverse propensities."""
    views, each = page_views / max(queries, 1), clicks / max(queries, 1)
    if views >= FEWEST_VIEWS and each >= FEWEST_CLICKS:
        return []
    return [
        Finding(
            "few-clicks-for-ips",
            "warning",
            f"There are {views:.1f} page views and {each:.1f} clicks a query, which is too few for the column weight: "
            f"with fewer than {FEWEST_VIEWS} of either, IPS lost to no correction at all",
            evidence={"queries": queries, "page_views": page_views, "clicks": clicks},
            remedy="Do not learn from weight alone: add three rankers (posbias.objectives.cautious_factors), or learn "
            "from clicks and exposure by the Poisson likelihood (posbias.objectives.poisson_exposure), with all "
            "candidates of a query if they are known (candidates).",
        )
    ]


def find_never_seen(cells: Sequence[Cell], rows: int, cap: float | None, *, by: Sequence[str]) -> list[Finding]:
    """Return ranks at which the log has rows and p is 0: `cells` are those, of so many rows in all."""
    if not cells:
        return []
    ranks = sorted({cell.position for cell in cells})
    clicks = sum(cell.clicks for cell in cells)
    named = f"rank{'s' if len(ranks) > 1 else ''} {spans(ranks)} {'are' if len(ranks) > 1 else 'is'}"
    clicked = f"{clicks:,} clicks, which count for the cap of {cap or 0:g} each" if clicks else "no click"
    return [
        Finding(
            "rank-never-seen",
            "warning",
            f"The estimate says that {named} never seen, p = 0{f', in some {listed(by)}' if by else ''}: {{count}} of "
            f"{{rows}} rows were shown there, with {clicked}, and have no exposure",
            sum(cell.rows for cell in cells),
            evidence={"rows": rows, "ranks": ranks, "clicks": clicks},
            remedy=f"Estimate from more data, or leave such rows out (position < {ranks[0]}, by sql). With all "
            "candidates of a query (candidates) no p is taken for less than 1 / cap; without, exposure Poisson refuses "
            "clicks that have no exposure.",
        )
    ]


def find_capped(share: float, cap: float | None) -> list[Finding]:
    """Return that a cap took off much of the weight."""
    if cap is None or share < _MUCH:
        return []
    return [
        Finding(
            "much-weight-capped",
            "warning",
            f"The cap of {cap:g} took off {share:.0%} of the weight: clicks at low ranks are corrected in part only",
            evidence={"share": share, "cap": cap},
            remedy="A larger cap removes more bias and adds more noise; exposure and clicks need none "
            "(posbias.objectives.poisson_exposure).",
        )
    ]


def find_varying(pairs: int, several: Mapping[str, int], both: Sequence[str] = ()) -> list[Finding]:
    """Return columns that came along though pairs have several values of them; `both` are of log and candidates."""
    return [
        Finding(
            "kept-varies",
            "warning",
            f"{{count}} of {{pairs}} (query, document) pairs have several values in column {name!r}: the least was "
            f"kept{', of the log before those of the candidates' if name in both else ''}",
            count,
            evidence={"pairs": pairs, "column": name},
            remedy="Put into the query id what it depends on, or join it to the rows afterwards."
            if name not in both
            else "Leave it out of the log or of the candidates, or write the same in both.",
        )
        for name, count in several.items()
        if count
    ]


def find_queries_apart(shown: int, listed: int, common: int) -> list[Finding]:
    """Return candidates of queries that the log does not have, and queries of the log without candidates."""
    found = []
    if listed > common:
        found.append(
            Finding(
                "candidates-left-out",
                "info",
                "{count} of {queries} queries of the candidates are not in the log, and were left out",
                listed - common,
                evidence={"queries": listed},
            )
        )
    if shown > common:
        found.append(
            Finding(
                "queries-without-candidates",
                "warning",
                "{count} of {queries} queries of the log have no candidates: of these there are only documents that "
                "were shown",
                shown - common,
                evidence={"queries": shown},
                remedy="Give the candidates of all queries, or leave these out.",
            )
        )
    return found


def find_documents_apart(shown: int, listed: int) -> list[Finding]:
    """Return documents that were shown and are not among the candidates."""
    if listed == shown:
        return []
    return [
        Finding(
            "shown-without-candidates",
            "warning",
            "{count} of {documents} documents shown are not among the candidates of their query: what only the "
            "candidates tell of them is missing",
            shown - listed,
            evidence={"documents": shown},
            remedy="Check that documents have the same ids in both, and give all that could have been shown.",
        )
    ]
