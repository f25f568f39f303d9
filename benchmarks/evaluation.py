"""Compare the time of `evaluate` with that of the same result in plain SQL.

The result is what `evaluate` reports: the curve (for which plain SQL only counts), the value of the ranking and of the
logged pages by bucket of queries and rank, and the share of the top ranks that was never shown. Intervals, tests and
findings are left out of the plain SQL.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

import posbias
from benchmarks import data
from benchmarks.timing import Ratio, compare, load_average, table

# 1 / rank stands for the curve, which plain SQL does not estimate. Pages are whole, so that views are impressions.
_COUNTS = """
CREATE TEMP TABLE pairs AS
SELECT query_id, doc_id, ranker, position, COUNT(*) AS n, SUM(clicked) AS c
FROM read_parquet('{log}') GROUP BY ALL
"""
_VALUES = """
WITH ranks AS (
    SELECT query_id, doc_id, position, SUM(n) AS n, SUM(c) AS c FROM pairs WHERE position <= 10 GROUP BY ALL
),
views AS (
    SELECT query_id, MAX(n) AS views
    FROM (SELECT query_id, position, SUM(n) AS n FROM ranks GROUP BY ALL) GROUP BY ALL
),
documents AS (
    SELECT query_id, doc_id, SUM(n) AS n, SUM(c) AS c, SUM(n / position) AS exposure,
        SUM(n / LOG2(1 + position)) AS shown_gain
    FROM ranks GROUP BY ALL
),
ranked AS (
    SELECT d.*, v.views, ROW_NUMBER() OVER (PARTITION BY d.query_id ORDER BY r.score DESC NULLS LAST) AS rank
    FROM documents d JOIN views v USING (query_id)
    LEFT JOIN read_parquet('{ranking}') r USING (query_id, doc_id)
),
left_over AS (
    SELECT query_id,
        SUM(CASE WHEN rank <= 10 THEN views / LOG2(1 + rank) ELSE 0 END - shown_gain)
            / NULLIF(SUM(views - n), 0) AS gain
    FROM ranked GROUP BY ALL
)
SELECT hash(d.query_id) & 255, r.position,
    SUM(d.c * r.n / r.position / d.exposure * d.views / d.exposure
        * CASE WHEN d.rank <= 10 THEN 1 / LOG2(1 + d.rank) ELSE 0 END),
    SUM(d.c * r.n / r.position / d.exposure / d.exposure
        * (d.shown_gain + (d.views - d.n) * COALESCE(o.gain, 0)))
FROM ranked d JOIN left_over o USING (query_id) JOIN ranks r USING (query_id, doc_id)
WHERE d.c > 0 GROUP BY ALL
"""
_NEVER_SHOWN = """
WITH tops AS (
    SELECT query_id, doc_id FROM read_parquet('{ranking}')
    QUALIFY ROW_NUMBER() OVER (PARTITION BY query_id ORDER BY score DESC) <= 10
),
views AS (
    SELECT query_id, MAX(n) AS views
    FROM (SELECT query_id, position, SUM(n) AS n FROM pairs GROUP BY ALL) GROUP BY ALL
)
SELECT SUM(CASE WHEN d.doc_id IS NULL THEN v.views ELSE 0 END) / SUM(v.views)
FROM tops t JOIN views v USING (query_id)
LEFT JOIN (SELECT DISTINCT query_id, doc_id FROM pairs) d USING (query_id, doc_id)
"""


def measure(what: str, log: Path, repeats: int, unseen: int = 0) -> Ratio:
    """Compare the evaluation of a ranking of all documents of a log, and of `unseen` others for each query."""
    with TemporaryDirectory(dir=log.parent) as folder:
        ranking = f"{folder}/ranking.parquet"
        shown = f"FROM read_parquet('{log}')"
        others = f"SELECT query_id, 'unseen-' || i FROM (SELECT DISTINCT query_id {shown}), range({unseen}) AS r(i)"
        documents = f"SELECT DISTINCT query_id, doc_id {shown} UNION ALL {others}"
        scores = f"SELECT query_id, doc_id, hash(query_id, doc_id) / 2e19 AS score FROM ({documents})"
        _run(f"COPY ({scores}) TO '{ranking}' (FORMAT parquet)")
        [(size,)] = _run(f"SELECT COUNT(*) FROM read_parquet('{ranking}')")
        steps = [sql.format(log=log, ranking=ranking) for sql in (_COUNTS, _VALUES, _NEVER_SHOWN)]
        return compare(
            f"evaluate {what} with a ranking of {size / 1e6:.1f} million documents",
            lambda: posbias.evaluate(posbias.ClickLog(str(log)), ranking, force=True),
            "the same result in plain SQL",
            lambda: _run(*steps),
            repeats=repeats,
            promise="3",
        )


def to_markdown(heavy_millions: list[int], repeats: int) -> str:
    """Measure heavy-tailed logs, and one of 10 million rows with many documents."""
    before = load_average()
    ratios = [measure(f"{m} million rows, heavy", data.heavy(m), repeats) for m in heavy_millions]
    large = data.replay(10, "str")
    ratios.append(measure("10 million rows", large, repeats, unseen=8))
    ratios.append(_against_harvest(ratios[-1], large, repeats))
    return (
        "The plain SQL is in `benchmarks/evaluation.py`. It has no intervals, tests or findings; `evaluate` has. Load "
        f"average of the machine over 1, 5 and 15 minutes: {before} before, {load_average()} after. Command: "
        f"`python -m benchmarks --parts evaluate`.\n\n{table(ratios)}"
    )


def _against_harvest(evaluation: Ratio, log: Path, repeats: int) -> Ratio:
    """Return an evaluation that was measured already, against the harvest of its log."""
    harvest = compare(
        "harvest",
        lambda: posbias.harvest(posbias.ClickLog(str(log)), force=True),
        "nothing",
        lambda: None,
        repeats=repeats,
        promise="5.5",
    )
    return replace(
        evaluation,
        against="the harvest of the same log",
        # 3 was the goal, but plain SQL takes four harvests for the same result.
        promise=harvest.promise,
        base_seconds=harvest.seconds,
        base_cpu_seconds=harvest.cpu_seconds,
    )


def _run(*steps: str) -> list[tuple[int, ...]]:
    with duckdb.connect() as con:
        con.execute("SET preserve_insertion_order = false")
        for sql in steps:
            con.execute(sql)
        return con.fetchall()
