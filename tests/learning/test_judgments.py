"""Judgments from clicks: against a plain loop, the truth, every format of file, and hostile ids."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from scipy.stats import beta

import posbias
from experiments.click_judgments import OURS, Setting, draw_log, measure
from posbias.cli import cli
from posbias.learning.judgments import _Pairs, shrunk_rates
from tests.learning.test_weights import a_curve

HOSTILE = ["=1+1", "'=1+1", "red dress", 'a "b", c', "tab\there", "line\nbreak", "100%", "@x", "\x1b[31m", "é\u2028"]


@pytest.fixture(scope="module")
def log() -> posbias.ClickLog:
    """A log in which every second query is twice as frequent."""
    table, _ = draw_log(Setting(views=30, eta=1.0, quality=1.0), queries=40, seed=1)
    rare = (table["impression_id"].to_numpy() % 2 == 1) & (table["query_id"].to_numpy() % 2 == 1)
    table = table.append_column("position_seen", table["position"])
    table = table.append_column("hint", pa.array(np.sqrt(table["doc_id"].to_numpy())))
    table = table.append_column("title", pa.array(["a", "b"] * (len(table) // 2)))
    return posbias.ClickLog(table.filter(pa.array(~rare)))


CURVE = a_curve([1 / k for k in range(1, 11)])


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return list(table.to_pylist())


def slow_rates(rows: list[tuple[Any, float, float, float]], level: float) -> list[tuple[float, float, float]]:
    """Return relevance and interval of (query, impressions, clicks, exposure), straight from the formulas."""
    import scipy.optimize

    ps = [e / n for _, n, _, e in rows]
    exposure = sum(row[3] for row in rows)
    middle = sum(row[3] * p for row, p in zip(rows, ps, strict=True)) / exposure
    variance = sum(row[3] * (p - middle) ** 2 for row, p in zip(rows, ps, strict=True)) / exposure

    def padded(free: Any) -> Any:
        return np.r_[free, np.zeros(3 - len(free))]

    def logs(b: Any) -> list[float]:
        return [b[0] + b[1] * np.log(p) + b[2] * p for p in ps]

    def loss(free: Any) -> float:
        b = padded(free)
        poisson = sum(e * np.exp(s) - c * s for (_, _, c, e), s in zip(rows, logs(b), strict=True))
        return float(poisson + b[1] ** 2 / 2 + 300 * variance * b[2] ** 2 / 2)

    # Rankers do not show relevant documents lower, so μ rises with p.
    tight = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 10_000, "maxfev": 10_000}
    for free in (2, 1, 0):
        start = np.r_[-1.0, [0.1] * free]
        b = padded(scipy.optimize.minimize(loss, start, method="Nelder-Mead", options=tight).x)
        rising = [s for _, s in sorted(zip(ps, logs(b), strict=True))]
        if all(after - before >= -1e-8 for before, after in itertools.pairwise(rising)):
            break
    mu = [float(np.exp(s)) for s in logs(b)]
    queries = {row[0] for row in rows}
    seen = expected = 0.0
    for q in queries:
        inside = [(c, e * m) for (query, _, c, e), m in zip(rows, mu, strict=True) if query == q]
        for i, (c, x) in enumerate(inside):
            for j, (c2, x2) in enumerate(inside):
                if i != j:
                    seen, expected = seen + c * c2, expected + x * x2
    tau = max((seen + 12.5) / (expected + 10) - 1, 0)
    twice = sum(c * (c - 1) for _, _, c, _ in rows)
    both = sum(n * (n - 1) * (e / n * m) ** 2 for (_, n, _, e), m in zip(rows, mu, strict=True)) * (1 + tau)
    kappa = min(max((twice + 20) / (both + 10) - 1, 0.25), 10)
    effects = {}
    for q in queries:
        inside = [(c, e * m) for (query, _, c, e), m in zip(rows, mu, strict=True) if query == q]
        total = sum(x for _, x in inside)
        own = tau * total**2
        credibility = own / (own + total + kappa * sum(x * x for _, x in inside))
        effects[q] = 1 + credibility * (sum(c for c, _ in inside) / total - 1)
    result = []
    for (q, n, c, e), m in zip(rows, mu, strict=True):
        p = e / n
        a = min(p * m * effects[q], 0.98)
        alpha, beta_ = 1 / kappa + c, (1 - a) / (kappa * a) + n - c
        low = beta.ppf((1 - level) / 2, c + 0.5, n - c + 0.5) / p if c else 0.0
        high = beta.ppf((1 + level) / 2, c + 0.5, n - c + 0.5) / p if c < n else 1.0
        low, high = min(low, 1.0), min(high, 1.0)
        result.append((min(max(alpha / (alpha + beta_) / p, low), high), low, high))
    return result


@pytest.mark.parametrize("eta", [1.0, 2.0], ids=["true", "too steep"])
def test_relevance_equals_the_formulas(log: posbias.ClickLog, eta: float) -> None:
    curve = a_curve([k**-eta for k in range(1, 11)])
    judged = rows_of(posbias.judgments(log, curve, min_exposure=1e-9, level=0.9).table)
    columns = ("query_id", "impressions", "clicks", "exposure")
    expected = slow_rates([tuple(row[name] for name in columns) for row in judged], 0.9)  # type: ignore[misc]
    found = [[row[name] for name in ("relevance", "low", "high")] for row in judged]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_the_summary_counts_one_click_and_no_pair_left_out() -> None:
    rows = {"impression_id": [1, 1], "query_id": [1, 1], "doc_id": [1, 2], "position": [1, 2], "clicked": [1, 0]}
    judged = posbias.judgments(posbias.ClickLog(pa.table(rows)), [1, 0.5], min_exposure=0.1, grades=None)
    assert str(judged) == "2 of 2 (query, document) pairs judged, in 1 of 1 queries, from 1 click in 1 page view."


def test_order_is_nearer_to_the_truth_than_click_rates_and_intervals_hold_it() -> None:
    parts = [measure(Setting(views=8, eta=1.0, quality=1.0), 60, seed) for seed in range(6)]
    for name in parts[0].tau:
        if name != OURS:
            assert np.mean([part.tau[OURS] - part.tau[name] for part in parts]) > 0.03
            assert np.mean([part.ndcg[OURS] - part.ndcg[name] for part in parts]) > 0.01
    assert 0.93 <= np.mean([part.coverage for part in parts]) <= 0.98


def test_clicks_win_over_the_prior_as_they_grow() -> None:
    rng = np.random.default_rng(0)
    truth = rng.uniform(0.05, 0.9, 200)
    errors = []
    for n in (5, 100, 10_000):
        views, p = np.full(200, float(n)), np.repeat([1.0, 0.25], 100)
        clicks = rng.binomial(n, p * truth).astype(np.float64)
        rate, low, high = shrunk_rates(_Pairs(np.arange(200) // 10, views, clicks, views * p, np.zeros((200, 0))), 0.95)
        assert (low <= rate).all()
        assert (rate <= high).all()
        errors.append(float(np.abs(rate - truth).mean()))
    assert errors[0] > 2 * errors[1] > 10 * errors[2]


def test_features_improve_the_prior(log: posbias.ClickLog) -> None:
    setting = Setting(views=3, eta=1.0, quality=0.3)
    table, relevance = draw_log(setting, 60, 3)
    hint = relevance[table["query_id"].to_numpy(), table["doc_id"].to_numpy()]
    table = table.append_column("hint", pa.array(np.log(hint)))
    with_hint, without = (
        posbias.judgments(posbias.ClickLog(table), CURVE, min_exposure=1e-9, features=features).table
        for features in ("hint", ())
    )
    correlation = []
    for judged in (with_hint, without):
        truth = relevance[judged["query_id"].to_numpy(), judged["doc_id"].to_numpy()]
        correlation.append(float(np.corrcoef(truth, judged["relevance"].to_numpy())[0, 1]))
    assert correlation[0] > correlation[1] + 0.15


def test_findings_are_warnings_at_the_line_of_the_user_but_not_those_about_weights(log: posbias.ClickLog) -> None:
    steep = [1.0, *[0.001] * 9]
    with pytest.warns(posbias.PosbiasWarning) as caught:
        judged = posbias.judgments(log, steep, features=["position_seen"])
    assert [finding.code for finding in judged.findings] == ["kept-column-varies"]
    assert [(str(each.message), each.filename) for each in caught] == [(str(judged.findings[0]), __file__)]
    with pytest.warns(posbias.PosbiasWarning, match="The cap of 20 removed"):
        posbias.ips_weights(log, steep)


def test_only_pairs_with_enough_exposure_head_queries_first(log: posbias.ClickLog) -> None:
    judged = posbias.judgments(log, CURVE, min_exposure=8)
    every = posbias.judgments(log, CURVE, min_exposure=1e-9)
    rows = rows_of(judged.table)
    assert 0 < judged.rows == len(rows) < every.rows == every.pairs == judged.pairs
    assert min(row["exposure"] for row in rows) >= 8
    assert judged.rows == sum(row["exposure"] >= 8 for row in rows_of(every.table))
    shown: dict[Any, int] = {}
    for row in rows_of(every.table):
        shown[row["query_id"]] = shown.get(row["query_id"], 0) + row["impressions"]
    heads = [shown[row["query_id"]] for row in rows]
    assert len({*heads}) > 1
    assert heads == sorted(heads, reverse=True)
    for before, after in itertools.pairwise(rows):
        if before["query_id"] == after["query_id"]:
            assert before["relevance"] >= after["relevance"]
    assert f"{judged.left_out:,} have an exposure below 8" in str(judged)


@pytest.mark.parametrize("grades", [1, 3, 9])
def test_grades_by_quantiles_are_equally_frequent(log: posbias.ClickLog, grades: int) -> None:
    judged = posbias.judgments(log, CURVE, grades=grades, min_exposure=0.5)
    counts = np.bincount(judged.table["rating"].to_numpy(), minlength=grades + 1)
    assert counts.max() - counts.min() <= 2
    again = posbias.judgments(log, CURVE, thresholds=judged.thresholds, min_exposure=0.5)
    assert again.table["rating"].equals(judged.table["rating"])


@pytest.mark.parametrize(("pairs", "reported"), [(1, True), (7, True), (8, False)])
def test_few_pairs_for_grades_by_quantiles_are_reported(log: posbias.ClickLog, pairs: int, reported: bool) -> None:
    exposure = sorted(posbias.judgments(log, CURVE).table["exposure"].to_pylist(), reverse=True)
    settings: dict[str, Any] = {"min_exposure": exposure[pairs - 1]}
    for more, found in (({"grades": 1}, reported), ({"thresholds": [0.1]}, False), ({"grades": None}, False)):
        findings = posbias.judgments(log, CURVE, **settings, **more).findings
        assert [finding.code for finding in findings] == ["few-judged-pairs"] * found


def test_grades_by_thresholds_and_none(log: posbias.ClickLog) -> None:
    judged = posbias.judgments(log, CURVE, thresholds=[0.1, 0.5])
    for given in ({"grades": 2, "thresholds": np.array([0.1, 0.5])}, {"grades": np.int64(2), "thresholds": (0.1, 0.5)}):
        assert posbias.judgments(log, CURVE, **given).table.equals(judged.table)
    for row in rows_of(judged.table):
        assert row["rating"] == (row["relevance"] >= 0.1) + (row["relevance"] >= 0.5)
    plain = posbias.judgments(log, CURVE, grades=None)
    assert plain.thresholds is None
    assert plain.table["rating"].equals(plain.table["relevance"])


def test_judgments_do_not_depend_on_the_order_of_rows(log: posbias.ClickLog) -> None:
    table = log.source.append_column("views", pa.array(np.arange(len(log.source)) % 7 + 1))
    for form in ({}, {"impressions": "views", "clicks": "clicked"}):
        order = np.random.default_rng(0).permutation(len(table))
        one, other = (
            posbias.judgments(posbias.ClickLog(rows, **form), [k**-0.7 for k in range(1, 11)], features="hint")
            for rows in (table, table.take(order))
        )
        assert one.table.equals(other.table)


def hostile_log() -> posbias.ClickLog:
    n = len(HOSTILE)
    columns = {
        "query_id": [text for text in HOSTILE for _ in range(20)] * 2,
        "doc_id": HOSTILE * 20 + HOSTILE[::-1] * 20,
        "position": ([1, 2] * (20 * n))[: 40 * n],
        "clicked": [int(i % 3 == 0) for i in range(40 * n)],
    }
    return posbias.ClickLog(pa.table(columns), ranker="none")


@pytest.mark.parametrize("ending", ["csv", "json", "qrels", "tsv", "parquet"])
def test_every_format_reads_back_to_the_same_judgments(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"judged.{ending}"
    judged = posbias.judgments(hostile_log(), a_curve([1.0, 0.5]), path, min_exposure=0.4)
    expected = [(row["query_id"], row["doc_id"], row["rating"]) for row in rows_of(judged.table)]
    assert {query for query, _, _ in expected} == {*HOSTILE}
    if ending == "parquet":
        assert pq.read_table(path).equals(judged.table)
        return
    text = path.read_bytes().decode()
    if ending == "csv":
        lines = [*csv.reader(text.splitlines(keepends=True))]
        assert lines[0] == ["query", "docid", "rating"]
        assert not any(field.startswith(("=", "+", "-", "@", "\t")) for line in lines for field in line)
        found = [(query.removeprefix("'"), doc.removeprefix("'"), int(rating)) for query, doc, rating in lines[1:]]
        assert judged.escaped == 6
    elif ending == "json":
        body = json.loads(text)
        assert (body["type"], body["name"]) == ("IMPORT_JUDGMENT", "judged")
        found = [
            (one["query"], rating["docId"], int(rating["rating"]))
            for one in body["judgmentRatings"]
            for rating in one["ratings"]
        ]
        assert len({one["query"] for one in body["judgmentRatings"]}) == len(body["judgmentRatings"])
    else:
        fields = [line.split(" " if ending == "qrels" else "\t") for line in text.splitlines()]
        assert all(len(line) == 4 and line[1] == "0" for line in fields)
        assert [line.split() for line in text.split("\n")[:-1]] == fields
        found = [(unquote(query), unquote(doc), int(rating)) for query, _, doc, rating in fields]
        assert judged.escaped > 0
    assert found == expected


def test_numbers_as_ids_are_written_as_they_are(tmp_path: Path) -> None:
    table = pa.table({"query_id": [-7] * 40, "doc_id": [-1, 2] * 20, "position": [1, 2] * 20, "clicked": [1, 0] * 20})
    judged = posbias.judgments(posbias.ClickLog(table, ranker="none"), a_curve([1.0, 0.5]), tmp_path / "j.csv")
    assert judged.escaped == 0
    assert (tmp_path / "j.csv").read_text().splitlines()[1].startswith("-7,-1,")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grades": 0}, "grades must be"),
        ({"grades": 101}, "at most 100"),
        ({"thresholds": [0.5, 0.1]}, "rising numbers"),
        ({"thresholds": ["x"]}, "rising numbers"),
        ({"thresholds": [0.0]}, "rising numbers"),
        ({"thresholds": 0.5}, "rising numbers"),
        ({"thresholds": [0.1, [0.5]]}, "rising numbers"),
        ({"thresholds": [0.1, 0.5], "grades": 3}, "the highest grade, here 2, but the highest grade was given as 3"),
        ({"thresholds": [0.1, 0.5], "grades": None}, "here 2, but the relevance itself was asked for"),
        ({"min_exposure": 0}, "above 0"),
        ({"min_exposure": float("nan")}, "above 0"),
        ({"min_exposure": 1e9}, "the largest is"),
        ({"level": 1}, "level"),
        ({"output": "judged.txt"}, "Expected one of '.csv'"),
        ({"output": "judged.qrels", "grades": None}, "whole grades"),
        ({"features": "title"}, "feature 'title' must be a column of numbers"),
        ({"features": ["position", "clicked"]}, "outcomes of the log cannot be features, found 'position', 'clicked'"),
        ({"features": "query_id"}, "found 'query_id'"),
        ({"features": "impression_id"}, "found 'impression_id'"),
        ({"features": ["position_seen", "rank_a"]}, "Ranks cannot be features, found 'rank_a'"),
        ({"features": "nothing"}, "'nothing' is not in the log"),
    ],
)
def test_bad_arguments_are_rejected(
    log: posbias.ClickLog, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    if "output" in arguments:
        arguments = arguments | {"output": tmp_path / arguments["output"]}
    with pytest.raises(posbias.PosbiasError, match=message):
        posbias.judgments(log, CURVE, **arguments)
    assert not [*tmp_path.iterdir()]


def test_empty_ids_are_named_where_columns_of_lines_cannot_hold_them(tmp_path: Path) -> None:
    table = pa.table(
        {"query_id": [""] * 40, "doc_id": ["d", "e"] * 20, "position": [1, 2] * 20, "clicked": [1, 0] * 20}
    )
    log = posbias.ClickLog(table, ranker="none")
    with pytest.raises(posbias.LogError, match="2 judged pairs have an empty query"):
        posbias.judgments(log, a_curve([1.0, 0.5]), tmp_path / "j.qrels")
    assert not [*tmp_path.iterdir()]
    posbias.judgments(log, a_curve([1.0, 0.5]), tmp_path / "j.csv")
    assert (tmp_path / "j.csv").read_text().splitlines()[1].startswith('"",')


def test_command_writes_judgments_and_replaces_only_if_told(tmp_path: Path) -> None:
    log, curve, output = (str(tmp_path / name) for name in ("log.parquet", "curve.json", "j.csv"))
    table, _ = draw_log(Setting(views=30, eta=1.0, quality=1.0), queries=40, seed=1)
    pq.write_table(table, log)
    Path(curve).write_text(json.dumps(CURVE.to_dict()))
    command = ["judgments", log, "--estimate", curve, "-o", output]
    run = CliRunner().invoke(cli, [*command, "--threshold", "0.2", "--threshold", "0.6"])
    assert run.exit_code == 0, run.output
    assert "Grades start at a relevance of 0.2, 0.6" in run.stderr
    assert {line.rsplit(",", 1)[1] for line in Path(output).read_text().splitlines()[1:]} == {"0", "1", "2"}
    again = CliRunner().invoke(cli, command)
    assert (again.exit_code, "--overwrite" in again.stderr) == (2, True)
    summary = json.loads(CliRunner().invoke(cli, [*command, "--overwrite", "--json"]).stdout)
    assert summary["rows"] + summary["left_out"] == summary["pairs"]
    wrong = CliRunner().invoke(cli, [*command, "--overwrite", "--feature", "nothing"])
    for grades in ("none", "3"):
        both = CliRunner().invoke(cli, [*command, "--overwrite", "--grades", grades, "--threshold", "0.2"])
        assert (both.exit_code, "Leave one of the two out (--grades or --threshold)" in both.stderr) == (2, True)
    outcome = CliRunner().invoke(cli, [*command, "--overwrite", "--feature", "clicked"])
    assert (outcome.exit_code, "Leave them out (--feature)" in outcome.stderr) == (2, True)
    assert "--feature COLUMN" in wrong.stderr
    assert "--keep" not in wrong.stderr
