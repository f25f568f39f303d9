"""Test the loaders of real logs on tiny files of the same format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from experiments.__main__ import _REAL, command
from experiments.real import LOADERS, load_sogou, mean_examination
from posbias.errors import LogError

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


def test_sogou_has_a_row_for_each_result(tmp_path: Path) -> None:
    log = load_sogou(save(tmp_path))
    rows = log.table.to_pylist()
    assert len(rows) == 20
    assert rows[3] == {"impression_id": 0, "query_id": 7, "doc_id": 73, "position": 4, "clicked": 1}
    assert rows[10] == {"impression_id": 1, "query_id": 7, "doc_id": 71, "position": 1, "clicked": 0}
    assert sum(row["clicked"] for row in rows) == 2
    np.testing.assert_allclose(log.reference, 1 / np.arange(1, 11))


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
        load_sogou(save(tmp_path, f"{FIRST}\n{line}"))


def test_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"No file .*train_data"):
        load_sogou(tmp_path)
    save(tmp_path)
    with pytest.raises(LogError, match=r"No file .*train_data"):
        load_sogou(tmp_path / "test_data")
    (tmp_path / "output" / "_UBM.model").write_text("DBN\n", "ascii")
    with pytest.raises(LogError, match="10 × 10 numbers"):
        load_sogou(tmp_path)
    (tmp_path / "test_data").write_bytes(b"\xff\xfe")
    with pytest.raises(LogError, match="not a text file"):
        load_sogou(tmp_path)


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
    assert tuple(LOADERS) == _REAL


@pytest.mark.parametrize(
    ("words", "message"),
    [(["real"], "real sogou"), (["synthetic", "sogou"], "real sogou"), (["real", "sogou"], "--data")],
)
def test_wrong_words_are_explained(tmp_path: Path, words: list[str], message: str) -> None:
    result = CliRunner().invoke(command, [*words, "--output", str(tmp_path)])
    assert result.exit_code == 2
    assert message in result.output
