"""What is odd about the requests of OpenSearch's User Behavior Insights, as findings: unseen results, later pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from posbias.findings import Finding
from posbias.wording import listed


class Requests(NamedTuple):
    """How many requests an application has of one page, by what tells that they were shown, and where these begin."""

    application: str | None
    shown_by: str
    page: int | None
    requests: int
    at_top: int


def find_requests(rows: Sequence[tuple[Any, ...]]) -> Iterator[Finding]:
    """Yield which requests are known by what was returned alone, and which for later pages begin at the top again."""
    requests = [Requests(*row) for row in rows]
    hits = [one for one in requests if one.shown_by == "hits"]
    total = sum(one.requests for one in requests)
    if hits:
        names = listed(sorted({str(one.application) for one in hits}))
        yield Finding(
            "returned-not-seen",
            "warning",
            f"{{count}} of {{requests}} requests are of applications that log no impressions ({names}): what was "
            "returned counts as shown",
            sum(one.requests for one in hits),
            None,
            {"requests": total},
            "What was returned was not always seen. The column 'shown_by' tells them apart.",
        )
    # Some applications call the first page 0.
    first: dict[str | None, int] = {}
    for one in requests:
        if one.page is not None:
            first[one.application] = min(one.page, first.get(one.application, one.page))
    later = sum(one.at_top for one in requests if one.page is not None and one.page > first[one.application])
    if later:
        yield Finding(
            "later-pages",
            "warning",
            "{count} of {requests} requests are for a later page, whose results are counted from the topmost position "
            "again",
            later,
            None,
            {"requests": total},
            "Leave them out by a query, or add the results of the pages before to their positions: the column 'page' "
            "tells them apart.",
        )
