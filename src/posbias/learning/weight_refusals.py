"""What no weights can be made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from posbias.arguments import names, number, one_of
from posbias.curves.curve import Curve
from posbias.engines import OpenLog
from posbias.errors import CurveError, LogError, PosbiasError
from posbias.learning.curve_values import BEYOND
from posbias.learning.weight_profiles import WeightProfile
from posbias.logs.column_refusals import INTEGERS, refuse_fraction, require
from posbias.logs.schemas import Columns, Schema
from posbias.sql.candidates import unreadable_candidates
from posbias.sql.shown import Plan
from posbias.sql.weights import COUNTS, Worth
from posbias.wording import listed

# A click that counts for more is not capped.
_LARGEST_CAP = 10**9
_FRACTIONS = ("DOUBLE", "FLOAT", "REAL", "DECIMAL")


def refuse_settings(
    cap: float | None, beyond: str, rows: bool, keep: Sequence[str], candidates: Any, duplicates: str
) -> None:
    """Refuse what means nothing, or does not go together."""
    if cap is not None and not 1 <= (number(cap) or 0) <= _LARGEST_CAP:
        raise PosbiasError(
            f"cap must be a number of 1 or more, such as 20, and at most {_LARGEST_CAP:,}, or None for no limit, not "
            f"{cap!r}."
        )
    one_of("beyond", beyond, BEYOND)
    names("keep", keep, LogError)
    if rows and keep:
        raise PosbiasError("With rows, all columns of the log are kept. Leave keep out.")
    if rows and candidates is not None:
        raise PosbiasError("With rows there is a row for each of the log, where candidates have none. Leave one out.")
    if rows and duplicates == "drop":
        raise PosbiasError("With rows every row is kept, copies too. Leave duplicates='drop' out, or rows.")


def refuse_segments(schema: Schema, curve: Curve) -> None:
    """Refuse an estimate by columns that the log does not have."""
    missing = [name for name in curve.by if name not in schema.types]
    if missing:
        raise CurveError(
            f"The estimate has a curve for each {listed(curve.by)}, and the log has no column {listed(missing)}. "
            f"Columns found: {listed(schema.types)}. Rename the column by a query (sql), or give an estimate without "
            "segments."
        )


def refuse_columns(schema: Schema, candidates: Columns | None, keep: Sequence[str], *, rows: bool) -> None:
    """Refuse columns that are not there, or have names that ours have."""
    if candidates is not None:
        missing = [name for name in (schema.query, schema.doc) if name not in candidates.types]
        if missing:
            raise LogError(
                f"The candidates have no column {listed(missing)}, as the log calls its query and document. Columns "
                f"found: {listed(candidates.types)}. Name them alike."
            )
        for name in (schema.query, schema.doc):
            refuse_fraction(name, schema.types[name], candidates.types[name], "the candidates")
    known = {**(candidates.types if candidates else {}), **schema.types}
    for name in keep:
        require(name, known, argument="keep")
        if candidates is not None and name in schema.types and name in candidates.types:
            _refuse_kinds(name, schema.types[name], candidates.types[name])
    taken = [*schema.types] if rows else [schema.query, schema.doc, *keep]
    ours = ("weight",) if rows else COUNTS
    twins = [name for name in taken if name.lower() in ours]
    if twins:
        raise LogError(
            f"The column {twins[0]!r} has the name of one that is made here: {', '.join(ours)}. Rename it by a query "
            "(sql), or leave it out."
        )
    again = [name for name in keep if name in (schema.query, schema.doc)]
    if again:
        raise LogError(f"Column {again[0]!r} is there anyway. Leave it out of keep.")


def _refuse_kinds(name: str, in_log: str, in_candidates: str) -> None:
    """Refuse a column that holds one kind of values in the log and another in the candidates."""
    if _kind(in_log) != _kind(in_candidates):
        raise LogError(
            f"Column {name!r} of keep is {in_log} in the log and {in_candidates} in the candidates, and comes along "
            "from both. Write it alike in both, or leave it out of one of them."
        )


def _kind(type_: str) -> str:
    """Return the kind of a type: numbers of all sizes mix, and so do times."""
    if type_ in INTEGERS or type_.startswith(_FRACTIONS):
        return "number"
    return "time" if type_ == "DATE" or type_.startswith("TIMESTAMP") else type_


def refuse_other_queries(shown: int, listed: int, common: int) -> None:
    """Refuse candidates of which no query is in the log: they are of something else, or ids are written otherwise."""
    if not common:
        raise LogError(
            f"None of the {listed:,} queries of the candidates is among the {shown:,} of the log. Check that queries "
            "have the same ids in both."
        )


def refuse_uncapped(worth: Sequence[Worth], profile: WeightProfile, cap: float | None) -> None:
    """Refuse clicks at a rank whose propensity is 0, which without a cap would weigh infinitely much."""
    if cap is not None:
        return
    zero = {(one.segment, one.position) for one in worth if not math.isfinite(one.weight)}
    clicked = sorted({cell.position for cell in profile.cells if cell.clicks and (cell.segment, cell.position) in zero})
    if clicked:
        raise CurveError(
            f"The estimate says that rank {clicked[0]} is never seen, p = 0, and the log has clicks there, which would "
            "weigh infinitely much. Set a cap, or estimate from more data.",
        )


def refuse_candidates(opened: OpenLog, plan: Plan, candidates: Columns) -> None:
    """Refuse candidates without an id, or with ids of another kind than the log's."""
    [(rows, missing)] = opened.rows(unreadable_candidates(plan, candidates), "Looking at candidates")
    if not rows:
        raise LogError("The candidates are empty: they have their columns but no row.")
    if missing:
        types = f"{plan.schema.types[plan.schema.query]} and {plan.schema.types[plan.schema.doc]}"
        raise LogError(
            f"{missing:,} of {rows:,} rows of the candidates have no value in {plan.schema.query!r} or "
            f"{plan.schema.doc!r}, or one that is not written as an id of the log, where they are {types}: 007 is "
            "not 7. Leave such rows out, or write ids alike."
        )
