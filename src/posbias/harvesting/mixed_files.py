"""Where one file of a log contradicts another."""

from __future__ import annotations

from collections import Counter

from posbias.engines.opened import OpenLog
from posbias.findings import Finding


def find_mixed_files(opened: OpenLog) -> list[Finding]:
    """Return columns in use whose type differs between the files of a log, or that some file lacks."""
    files = opened.file_columns()
    schema = opened.schema
    ranks = list(schema.rank_columns.values())
    findings = []
    for column in [*schema.roles.values(), *ranks]:
        types = {file: columns.get(column, "missing") for file, columns in files.items()}
        counts = Counter(types.values())
        if len(counts) < 2:
            continue
        told = "; ".join(f"{t} in {n:,} of {len(files):,}" for t, n in counts.most_common())
        odd = counts.most_common()[-1][0]
        lacking = "missing" in counts
        # A ranker that did not exist yet has no column: no rank is what its absence means.
        harmless = not lacking or column in ranks or (column == schema.impression and not schema.drop_duplicates)
        findings.append(
            Finding(
                "mixed-files",
                "warning" if harmless else "error",
                f"the files disagree on column {column!r}: {told}",
                counts[odd],
                f"{odd} in {next(file for file, t in types.items() if t == odd)}",
                {"files": len(files)},
                _remedy(column, schema.types[column], lacking, column in ranks),
            )
        )
    return findings


def _remedy(column: str, type_: str, lacking: bool, rank: bool) -> str:
    if rank and lacking:
        return (
            "Where it is missing, that ranker is taken to rank nothing in the top M. Leave those files out if it did."
        )
    if lacking:
        return "Leave those files out, or write them again with the column."
    return f"It is read as {type_}; write all files with one type to be sure that ids are the same everywhere."
