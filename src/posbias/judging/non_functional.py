"""Where a ranker contradicts itself: one document of a query at several ranks."""

from __future__ import annotations

from posbias.findings import Finding
from posbias.harvesting.notes import note_natural
from posbias.harvesting.several_ranks import find_several_ranks
from posbias.judging.looks import Look


def find_non_functional(look: Look) -> list[Finding]:
    """Return pairs for which a ranker is not a function of the query; where none is named, what must hold instead."""
    if look.plan.schema.natural:
        return note_natural(look.plan.schema)
    known = look.pairs is not None and not look.pairs.non_functional
    if known and look.plan.schema.layout.ranks_in != "table":
        return []
    return find_several_ranks(look.opened, look.plan)
