"""Curves as JSON files, and the truths of simulated ones: strictly read, for anything may lie under a name."""

from __future__ import annotations

import os
from typing import Any

from posbias.arguments import as_path
from posbias.curves.curve import Curve
from posbias.curves.records import MOST_RANKS, read_curve
from posbias.errors import CurveError, PosbiasError
from posbias.reading import odd_kind
from posbias.records import UnfitError, mapping, number, parse, prove, sequence
from posbias.replacing import CURVE
from posbias.wording import json_text, printable
from posbias.writing import written_whole

_MOST_BYTES = 64 * 2**20
_ANEW = "Write it anew: by Curve.save, or as the JSON of posbias estimate."


def save(curve: Curve, path: str | os.PathLike[str]) -> None:
    """Write a curve to a file, whole or not at all."""
    data = f"{json_text(curve.to_dict())}\n".encode()
    if len(data) > _MOST_BYTES:
        raise CurveError(
            f"The curve has {len(curve.segments):,} segments of up to {curve.max_rank:,} ranks and would take "
            f"{len(data):,} bytes; files are read up to {_MOST_BYTES:,}. Estimate fewer segments or ranks at a time."
        )
    with written_whole(path, CURVE) as part, open(part, "wb") as file:
        file.write(data)


def load(path: str | os.PathLike[str]) -> Curve:
    """Read a curve back, checking that it is one and that it is whole."""
    name = as_path("path", path, CurveError)
    try:
        return read_curve(_read(name))
    except FileNotFoundError:
        raise CurveError(f"There is no file {name!r}. {_ANEW}") from None
    except UnfitError as error:
        raise CurveError(f"{name!r} is not a curve, or is damaged: {_said(error)}. {error.remedy or _ANEW}") from None


def from_record(record: Any) -> Curve:
    """Return the curve of a record, checking that it is one and that it is whole."""
    try:
        return read_curve(record)
    except UnfitError as error:
        raise CurveError(f"The record is not that of a curve: {_said(error)}. {error.remedy or _ANEW}") from None


def looks_like_curve(path: str) -> bool:
    """Return whether a file is JSON with positions as a curve has them, be it whole or not."""
    try:
        record = _read(path)
    except (FileNotFoundError, UnfitError):
        return False
    return isinstance(record, dict) and "positions" in record


def read_truth(path: str) -> list[float]:
    """Read the known curve of a simulated log."""
    remedy = "posbias simulate writes one beside the log."
    try:
        record = mapping(_read(path), "it")
        found = sequence(record.get("propensity"), "propensity")
        if not 0 < len(found) <= MOST_RANKS:
            raise UnfitError(f"propensity has {len(found):,} numbers where 1 to {MOST_RANKS:,} were expected")
        known = [number(p, f"propensity[{i}]", 0) for i, p in enumerate(found)]
        prove(record)
        return known
    except FileNotFoundError:
        raise PosbiasError(f"There is no truth file {path!r}. {remedy}") from None
    except UnfitError as error:
        raise PosbiasError(
            f'{path!r} is not a truth file, JSON with a list under "propensity", or is damaged: {_said(error)}. '
            f"{error.remedy or remedy}"
        ) from None


def _read(name: str) -> Any:
    """Return what a file of JSON holds, if it is strictly that."""
    if (kind := odd_kind(name)) is not None:
        raise UnfitError(f"it is {kind}")
    try:
        with open(name, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise UnfitError(f"it cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(data) > _MOST_BYTES:
        raise UnfitError(f"it is larger than {_MOST_BYTES:,} bytes")
    return parse(data)


def _said(error: UnfitError) -> str:
    return printable(str(error))
