"""Test the loaders of real logs on tiny files of the same format, and the published experiments."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from experiments.__main__ import _REAL, command
from experiments.published import PUBLISHED, WIKIMEDIA, magnani_log, run_magnani, run_wikimedia
from experiments.real import NAMES, run_real
from experiments.real_logs import BAIDU, LOADERS, RealLog, load_sogou, mean_examination
from posbias.errors import LogError
from tests.support import oracle

# A query, documents, clicks, and the columns that the loader ignores.
FIRST = "7\t70 71 72 73 74 75 76 77 78 79\t1 0 0 1 0 0 0 0 0 0\t1.5 -1 -1 9 -1 -1 -1 -1 -1 -1\t0 0 0 0 0 0 0 0 0 0"
SECOND = "7\t71 70 72 73 74 75 76 77 78 79\t0 0 0 0 0 0 0 0 0 0\t-1 -1 -1 -1 -1 -1 -1 -1 -1 -1\t0 0 0 0 0 0 0 0 0 0"


def save(folder: Path, train: str = FIRST, test: str = SECOND, gamma: float = 0.5) -> Path:
    """Write a sample in which examination falls with rank and does not depend on clicks above."""
    (folder / "output").mkdir()
    (folder / "train_data").write_text(train + "\n", "ascii")
    (folder / "test_data").write_text(test + "\n", "ascii")
    rows = "\n".join("\t".join([str(gamma / rank)] * 10) + "\t" for rank in range(1, 11))
    (folder / "output" / "_UBM.model").write_text(f"UBM\nPerplexity\t1.3\n\n+++++Gamma:\nM : 0\n{rows}\n", "ascii")
    return folder


def load(name: str, data: Path) -> tuple[RealLog, list[dict[str, Any]]]:
    """Return what a loader returns, and the rows that it writes."""
    target = (data if data.is_dir() else data.parent) / "log.parquet"
    real = LOADERS[name](data, target)
    return real, pq.read_table(target).to_pylist()


def test_sogou_has_a_row_for_each_result(tmp_path: Path) -> None:
    real, rows = load("sogou", save(tmp_path))
    assert len(rows) == 20
    assert rows[3] == {"impression_id": 0, "query_id": 7, "doc_id": 73, "position": 4, "clicked": 1}
    assert rows[10] == {"impression_id": 1, "query_id": 7, "doc_id": 71, "position": 1, "clicked": 0}
    assert sum(row["clicked"] for row in rows) == 2
    np.testing.assert_allclose(real.published[0].curve, 1 / np.arange(1, 11))


def test_mean_examination_follows_the_definition_of_the_model() -> None:
    rng = np.random.default_rng(1)
    parameters, clicked = rng.random((4, 4)), (rng.random((50, 4)) < 0.4).astype(int)
    expected = np.zeros(4)
    for view in clicked:
        last = -1
        for rank, click in enumerate(view):
            expected[rank] += parameters[rank, rank - last - 1]
            last = rank if click else last
    np.testing.assert_allclose(mean_examination(parameters, clicked), expected / expected[0])


@pytest.mark.parametrize(
    "line", ["7", FIRST.replace("\t", " "), FIRST.replace(" 79", ""), FIRST.replace("1 0", "2 0", 1), "x" + FIRST]
)
def test_line_that_is_no_page_view_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(LogError, match=r"Line 2 of .*train_data.* is not a page view"):
        load("sogou", save(tmp_path, f"{FIRST}\n{line}"))


def test_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"No file .*train_data"):
        load("sogou", tmp_path)
    save(tmp_path)
    with pytest.raises(LogError, match=r"No file .*train_data"):
        load_sogou(tmp_path / "test_data", tmp_path / "log.parquet")
    (tmp_path / "output" / "_UBM.model").write_text("DBN\n", "ascii")
    with pytest.raises(LogError, match="10 × 10 numbers"):
        load("sogou", tmp_path)
    (tmp_path / "test_data").write_bytes(b"\xff\xfe")
    with pytest.raises(LogError, match="not a text file"):
        load("sogou", tmp_path)


# ---- Yandex

DOCS = [str(doc) for doc in range(50, 60)]


def test_yandex_actions(tmp_path: Path) -> None:
    actions = [
        ["0", "0", "Q", "8", "2", *DOCS],
        ["1", "0", "Q", "8", "3", *reversed(DOCS)],
        ["0", "5", "C", "51"],
        ["0", "7", "C", "51"],
        ["0", "9", "C", "999"],
        ["1", "9", "C", "50"],
        ["0", "20", "Q", "9", "2", *DOCS],
        ["0", "21", "C", "50"],
        ["2", "1", "C", "50"],
    ]
    (tmp_path / "log").write_text("\n".join("\t".join(action) for action in actions) + "\n", "ascii")
    _, rows = load("yandex", tmp_path / "log")
    assert len(rows) == 30
    assert rows[0] == {"impression_id": 0, "query_id": "8_2", "doc_id": 50, "position": 1, "clicked": 0}
    clicks = [(row["impression_id"], row["query_id"], row["doc_id"], row["position"]) for row in rows if row["clicked"]]
    assert clicks == [(0, "8_2", 51, 2), (1, "8_3", 50, 10), (2, "9_2", 50, 1)]


def test_yandex_samples_of_pyclick(tmp_path: Path) -> None:
    docs = ",".join(DOCS)
    (tmp_path / "trainSample").write_text(f"8_2\t{docs} : 50 , 59 , 50;  8_2\t{docs} :  ; 8_2\t{docs} : 7\n\n", "ascii")
    (tmp_path / "testSample").write_text(f"9_1\t{docs} : 53;", "ascii")
    _, rows = load("yandex", tmp_path)
    assert len(rows) == 40
    assert [(row["query_id"], row["doc_id"]) for row in rows if row["clicked"]] == [
        ("9_1", 53),
        ("8_2", 50),
        ("8_2", 59),
    ]


@pytest.mark.parametrize("line", ["8_2\t50,51 : 50", "0\t0\tQ\t8\t2\t50", "0\t0\tX\t8", "0\t0", "8_2 50 : x"])
def test_line_that_is_no_action_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "log").write_text(line + "\n", "ascii")
    with pytest.raises(LogError, match=r"Line 1 of .*log"):
        load("yandex", tmp_path / "log")


def test_yandex_file_without_page_views(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n", "ascii")
    with pytest.raises(LogError, match="no page view"):
        load("yandex", tmp_path / "log")


# ---- Baidu-ULTR


def test_baidu_beside_the_published_curves(tmp_path: Path) -> None:
    """In a log where every page view is in random order, all our estimators give a curve for each published one."""
    rng = np.random.default_rng(3)
    views, ranks = 3_000, 10
    docs = np.concatenate([rng.permutation(ranks) for _ in range(views)])
    position = np.tile(np.arange(1, ranks + 1), views)
    table = pa.table(
        {
            "query_no": np.repeat(np.arange(views), ranks),
            "query_md5": np.repeat([f"q{view % 40}" for view in range(views)], ranks),
            "url_md5": [f"u{doc}" for doc in docs],
            "text_md5": ["ignored"] * (views * ranks),
            "position": position,
            "click": (rng.random(views * ranks) < 0.5 / position).astype(int),
        }
    )
    path = tmp_path / "train-features.feather"
    pyarrow.feather.write_feather(table, path)
    outcome = run_real("baidu", str(path), tmp_path)
    assert pq.read_table(tmp_path / "real-baidu.parquet").column_names == [
        *("impression_id", "query_id", "doc_id", "position", "clicked")
    ]
    assert [row["published_AllPairs"] for row in outcome.rows] == BAIDU["AllPairs"]
    for name in ("posbias", "our_AllPairs", "our_AdjacentChain", "our_PivotOne"):
        np.testing.assert_allclose([row[name] for row in outcome.rows], 1 / np.arange(1, 11), rtol=0.4)
    # The true curve is 1/k, and the published one is another.
    assert not any(verdict.holds for verdict in outcome.verdicts)
    assert any(line.startswith("posbias check: warning, no-ranker") for line in outcome.notes)


def test_baidu_file_without_its_columns(tmp_path: Path) -> None:
    pyarrow.feather.write_feather(pa.table({"query_md5": ["q"]}), tmp_path / "a.feather")
    for path in (tmp_path / "a.feather", tmp_path / "none.feather", save_text(tmp_path / "b.feather")):
        with pytest.raises(LogError, match="not a Feather file with the columns query_no"):
            load("baidu", path)


def save_text(path: Path) -> Path:
    path.write_text("no data\n", "ascii")
    return path


# ---- Open Bandit


def bandit_lines(rng: np.random.Generator, rows: int) -> str:
    names = ["", "timestamp", "item_id", "position", "click", "propensity_score"]
    lines = [",".join([*names, *(f"user_feature_{i}" for i in range(4)), "user-item_affinity_0"])]
    for row in range(rows):
        position = row % 3 + 1
        user = rng.integers(4)
        click = int(rng.random() < 0.3 / position)
        lines.append(f"{row},2019-11-24 00:03:13,{rng.integers(3)},{position},{click},0.25,a{user},b,c,d,0.0")
    return "\n".join(lines) + "\n"


def test_open_bandit_has_a_random_policy(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    for policy in ("random", "bts"):
        for campaign in ("men", "women"):
            folder = tmp_path / "it's obd" / policy / campaign
            folder.mkdir(parents=True)
            (folder / f"{campaign}.csv").write_text(bandit_lines(rng, 6_000), "ascii")
            (folder / "item_context.csv").write_text("item_id\n1\n", "ascii")
    outcome = run_real("open-bandit", str(tmp_path / "it's obd"), tmp_path)
    log = pq.read_table(tmp_path / "real-open-bandit.parquet")
    assert log.num_rows == 24_000
    assert set(log["ranker"].to_pylist()) == {"random", "bts"}
    assert set(log["query_id"].to_pylist()) == {f"{name} a{i} b c d" for name in ("men", "women") for i in range(4)}
    assert set(log["propensity_score"].to_pylist()) == {0.25}
    np.testing.assert_allclose([row["random"] for row in outcome.rows], [1, 1 / 2, 1 / 3], rtol=0.15)


def test_folders_without_the_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"random/men/men\.csv"):
        load("open-bandit", tmp_path)
    with pytest.raises(LogError, match=r"no files \*\.tsv"):
        load("seznam", tmp_path)
    with pytest.raises(LogError, match="no page view"):
        load("yandex", tmp_path)
    (tmp_path / "random" / "men").mkdir(parents=True)
    save_text(tmp_path / "random" / "men" / "men.csv")
    with pytest.raises(LogError, match="does not have the published format"):
        load("open-bandit", tmp_path)


# ---- Seznam


def seznam_line(view: str, slots: list[tuple[str, str, str, str]]) -> str:
    empty = [("", "", "", "")] * (14 - len(slots))
    fields = [view, 'q"1', "2", "0", "2018-09-01-10-11-12-CEST", "3 7", "desktop"]
    return "\t".join([*fields, *(value for slot in slots + empty for value in slot)])


def test_seznam_names_verticals_and_domains(tmp_path: Path) -> None:
    organic = [("0", "0.9", "0", "d1"), ("1", "1", "0", "d2"), ("0", "1", "0", "d1"), ("0", "1", "0", "")]
    first = seznam_line("s1", [("2", "0.125", "7", ""), *organic])
    second = seznam_line("s2", [("0", "0.5", "0", "d2"), ("0", "0.5", "7", "")])
    (tmp_path / "sample.tsv").write_text(f"{first}\n{second}\n", "utf-8")
    (tmp_path / "header.tsv").write_text("serp_id\tquery\n", "utf-8")
    real, rows = load("seznam", tmp_path)
    assert real.max_rank == 14
    got = sorted(
        (row["impression_id"], row["position"], row["doc_id"], row["clicked"], row["propensity"]) for row in rows
    )
    # d1 is twice on the first page and names no single document; a result without a domain names none either.
    assert got == [
        ("s1", 1, "vertical 7", True, 0.125),
        ("s1", 3, "domain d2", True, 1.0),
        ("s2", 1, "domain d2", False, 0.5),
        ("s2", 2, "vertical 7", False, 0.5),
    ]
    assert {(row["query_id"], row["device"]) for row in rows} == {('q"1', "desktop")}
    save_text(tmp_path / "sample.tsv")
    with pytest.raises(LogError, match="does not have the published format"):
        load("seznam", tmp_path)


# ---- Wikimedia, Magnani and Xie


def test_swapped_results_are_compared_with_themselves() -> None:
    by_search, by_session = WIKIMEDIA
    ratios = [math.exp(value) for value, _ in (*by_search.ratios(), *by_session.ratios())]
    np.testing.assert_allclose(ratios, [1.97 / 2.98, 1.55 / 2.52, 2.86 / 4.93, 2.58 / 3.66])
    outcome = run_wikimedia()
    assert [verdict.holds for verdict in outcome.verdicts] == [True, False, False]
    both = [row["ratio"] for row in outcome.rows if row["of"] == "both"]
    np.testing.assert_allclose(both, [0.64, 0.64], atol=0.005)


def test_design_of_magnani_and_xie() -> None:
    rows = magnani_log(np.random.RandomState(42)).to_pylist()
    assert len(rows) == 2 * (9 * 10 + 15)
    assert [(row["position"], row["impressions"]) for row in rows[:2]] == [(1, 80), (2, 20)]
    assert [(row["position"], row["impressions"]) for row in rows[10:12]] == [(1, 4), (2, 1)]
    assert [(row["position"], row["impressions"]) for row in rows[-2:]] == [(3, 13), (7, 13)]


def test_adjacent_chain_gives_the_published_numbers() -> None:
    """An oracle of the paper's definition on the same random numbers, to the last published digit."""
    for weighting in ("uniform", "min"):
        curves = []
        for run in range(30):
            log = magnani_log(np.random.RandomState(42 + run)).to_pylist()
            pairs = oracle.harvest("replay", [oracle_row(row) for row in log], 10, weighting)
            steps = [float(pairs[k + 1, k][0] / pairs[k, k + 1][0]) for k in range(1, 10)]
            curves.append(np.cumprod([1.0, *steps]))
        bias = np.mean((np.mean(curves, axis=0) - 1 / np.arange(1, 11)) ** 2)
        variance = np.var(curves, axis=0).mean()
        np.testing.assert_allclose([bias, variance], PUBLISHED["AdjacentChain", weighting], rtol=0, atol=5e-7)


def oracle_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"query": row["query_id"], "doc": row["doc_id"], "ranker": "any"} | row


def test_few_runs_decide_nothing() -> None:
    outcome = run_magnani(runs=2)
    assert [verdict.holds for verdict in outcome.verdicts] == [None]
    assert [row["estimator"] for row in outcome.rows] == ["AdjacentChain"] * 3 + ["AllPairs"] * 3 + ["CrossFit"]
    assert all(math.isfinite(row["variance"]) for row in outcome.rows)


# ---- The command


def simulated_lines(rng: np.random.Generator) -> str:
    """Return page views in random order of users who examine rank k with probability 1/k."""
    lines = []
    for view in range(6_000):
        query = view % 60
        docs = 10 * query + rng.permutation(10)
        clicks = (rng.random(10) < (0.2 + 0.05 * (docs % 10)) / np.arange(1, 11)).astype(int)
        lines.append("\t".join([str(query), " ".join(map(str, docs)), " ".join(map(str, clicks))]))
    return "\n".join(lines)


def test_command_compares_the_curve_with_the_published_one(tmp_path: Path) -> None:
    (tmp_path / "sample").mkdir()
    data = save(tmp_path / "sample", simulated_lines(np.random.default_rng(5)))
    words = ["real", "sogou", "--data", str(data), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert result.output.startswith("real-sogou\nHOLDS: ")
    assert len((tmp_path / "out" / "real-sogou.csv").read_text("utf-8").splitlines()) == 11
    assert pq.read_metadata(tmp_path / "out" / "real-sogou.parquet").num_rows == 60_010


def test_command_and_loaders_have_the_same_names() -> None:
    assert NAMES == _REAL


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["real"], "real sogou"),
        (["synthetic", "sogou"], "real sogou"),
        (["real", "sogou"], "--data"),
        (["real", "magnani", "--data", "x"], "omit --data"),
    ],
)
def test_wrong_words_are_explained(tmp_path: Path, words: list[str], message: str) -> None:
    result = CliRunner().invoke(command, [*words, "--output", str(tmp_path)])
    assert result.exit_code == 2
    assert message in result.output
