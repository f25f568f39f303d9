"""Test judgments: LETOR files, their cache, and generated judgments."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

import numpy as np
import pytest

from experiments import judgments as letor
from experiments.judgments import Judgments, cache_path, generate_judgments, load_letor
from posbias.errors import LogError, PosbiasError

LINES = """\
2 qid:10 1:0.5 3:1 #docid = GX029-35 inc = 1
0 qid:10 1:0.25 2:-3
1 qid:12 3:1e-2
"""
DENSE = [[0.5, 0, 1], [0.25, -3, 0], [0, 0, 0.01]]


def dense(judgments: Judgments) -> np.ndarray:
    features = judgments.features
    return features if isinstance(features, np.ndarray) else features.toarray()


def save(folder: Path, text: str, name: str = "train.txt") -> Path:
    path = folder / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def assert_same(one: Judgments, two: Judgments) -> None:
    np.testing.assert_array_equal(one.offsets, two.offsets)
    np.testing.assert_array_equal(one.grades, two.grades)
    np.testing.assert_array_equal(dense(one), dense(two))
    assert type(one.features) is type(two.features)
    assert one.features.dtype == two.features.dtype == np.float32


# --- files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz", "set1.train.svm", "no_suffix"])
def test_a_letor_file_is_read(tmp_path: Path, name: str) -> None:
    judgments = load_letor(save(tmp_path, LINES, name), cache=False)
    assert judgments.offsets.tolist() == [0, 2, 3]
    assert judgments.grades.tolist() == [2, 0, 1]
    np.testing.assert_allclose(dense(judgments), DENSE)
    assert (judgments.offsets.dtype, judgments.grades.dtype, judgments.features.dtype) == ("int64", "int8", "float32")


@pytest.mark.parametrize(
    "text",
    [
        LINES.replace("1:", "0:").replace(" 2:", " 1:").replace("3:", "2:"),  # numbered from 0
        "# a header\n\n" + LINES.replace("\n", "\r\n"),
        LINES.replace(" ", "  \t"),
        LINES.rstrip("\n"),
        LINES.replace("2 qid", "2.0 qid").replace("\n1 qid", "\n+1 qid"),
        LINES.replace(" 2:-3", " 2:-3 3:1.79769313486231E308"),  # how Istella says that there is no value
        LINES.replace(" 2:-3", " 2:-3 3:nan"),
    ],
)
def test_equivalent_files_give_the_same_judgments(tmp_path: Path, text: str) -> None:
    judgments = load_letor(save(tmp_path, text), cache=False)
    assert judgments.offsets.tolist() == [0, 2, 3]
    assert judgments.grades.tolist() == [2, 0, 1]
    np.testing.assert_allclose(dense(judgments), DENSE)


def test_sparse_files_stay_sparse_and_full_ones_become_dense(tmp_path: Path) -> None:
    sparse = load_letor(save(tmp_path, "1 qid:1 699:0.5\n0 qid:1 1:1 2:1\n"), cache=False)
    assert sparse.features.format == "csr"
    assert sparse.features.shape == (2, 699)
    assert sparse.features.indices.dtype == sparse.features.indptr.dtype == np.int32
    full = load_letor(save(tmp_path, "1 qid:1 1:0.5 2:1\n0 qid:1 1:1 2:1\n"), cache=False)
    assert isinstance(full.features, np.ndarray)


def test_documents_without_features_are_kept(tmp_path: Path) -> None:
    judgments = load_letor(save(tmp_path, "1 qid:1\n0 qid:1 1:2\n"), cache=False)
    assert dense(judgments).tolist() == [[0], [2]]
    assert load_letor(save(tmp_path, "1 qid:1\n0 qid:2\n"), cache=False).features.shape == (2, 1)


@pytest.mark.parametrize("lines_at_once", [1, 3, 5_000])
def test_documents_of_a_query_are_grouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines_at_once: int) -> None:
    monkeypatch.setattr(letor, "_LINES_AT_ONCE", lines_at_once)
    text = "0 qid:7 1:1\n1 qid:3 1:2\n2 qid:7 1:3\n3 qid:3 1:4\n4 qid:5 2:5\n"
    judgments = load_letor(save(tmp_path, text), cache=False)
    assert judgments.offsets.tolist() == [0, 2, 4, 5]
    assert judgments.grades.tolist() == [0, 2, 1, 3, 4]
    assert dense(judgments).tolist() == [[1, 0], [3, 0], [2, 0], [4, 0], [0, 5]]


def test_a_larger_file_agrees_with_a_plain_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letor, "_LINES_AT_ONCE", 17)
    draw = random.Random(3)
    rows = []
    for query in range(60):
        for _ in range(draw.randint(1, 9)):
            features = sorted(draw.sample(range(1, 31), draw.randint(0, 12)))
            rows.append((draw.randint(0, 4), query, {i: round(draw.random(), 4) for i in features}))
    text = "".join(f"{g} qid:{q} " + " ".join(f"{i}:{v}" for i, v in x.items()) + "\n" for g, q, x in rows)
    judgments = load_letor(save(tmp_path, text, "t.gz"))
    assert judgments.grades.tolist() == [g for g, _, _ in rows]
    assert judgments.query_of.tolist() == [q for _, q, _ in rows]
    expected = [[x.get(i, 0) for i in range(1, 31)] for _, _, x in rows]
    np.testing.assert_allclose(dense(judgments), expected, atol=1e-7)
    assert_same(load_letor(tmp_path / "t.gz"), judgments)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("two qid:1 1:1", r"line 3: the grade 'two' is not a whole number"),
        ("1.5 qid:1 1:1", r"line 3: the grade '1.5' is not a whole number"),
        ("-1 qid:1 1:1", r"line 3: the grade '-1'"),
        ("nan qid:1 1:1", r"line 3: the grade 'nan'"),
        ("300 qid:1 1:1", r"line 3: the grade '300'"),
        ("1 1:1 2:2", r"line 3: there is no qid"),
        ("1", r"line 3: there is no qid"),
        ("1 qid:abc 1:1", r"line 3: 'qid:abc' is not a whole number"),
        ("1 qid:1 1:x", r"line 3: the feature '1:x' is not NUMBER:VALUE"),
        ("1 qid:1 a:1", r"line 3: the feature 'a:1'"),
        ("1 qid:1 -1:1", r"line 3: the feature '-1:1'"),
        ("1 qid:1 5", r"line 3: the feature '5'"),
        ("1 qid:1 2:1 1:1", r"line 3: the feature '1:1' comes after 2"),
        ("1 qid:1 2:1 2:1", r"line 3: the feature '2:1' comes after 2"),
        ("query,doc,clicked", r"line 3: the grade 'query,doc,clicked'"),
        ("\x00\x01\x02", r"line 3: the grade"),
    ],
)
def test_errors_name_the_invalid_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str) -> None:
    monkeypatch.setattr(letor, "_LINES_AT_ONCE", 2)
    path = save(tmp_path, "1 qid:1 1:1\n0 qid:1 1:1\n" + line + "\n2 qid:1 1:1\n")
    with pytest.raises(LogError, match=message) as caught:
        load_letor(path)
    assert "Expected a line such as" in str(caught.value)
    assert os.listdir(tmp_path) == ["train.txt"]


def test_missing_empty_and_damaged_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="No judgments at"):
        load_letor(tmp_path / "none.txt")
    for text in ("", "# nothing\n\n"):
        with pytest.raises(LogError, match="holds no judgments"):
            load_letor(save(tmp_path, text))
    path = save(tmp_path, LINES * 100, "t.gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(LogError, match="truncated or damaged"):
        load_letor(path)


# --- cache --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [LINES, "1 qid:1 699:0.5\n0 qid:2\n0 qid:2 1:1 2:1\n"])
def test_the_cache_has_the_same_judgments_and_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = save(tmp_path, text)
    first = load_letor(path)
    assert sorted(os.listdir(tmp_path)) == ["train.txt", "train.txt.posbias.parquet"]
    monkeypatch.setattr(letor, "_parse", None)
    assert_same(load_letor(path), first)


def test_the_cache_is_replaced_when_the_file_changes(tmp_path: Path) -> None:
    path = save(tmp_path, LINES)
    load_letor(path)
    save(tmp_path, LINES + "4 qid:13 1:1\n")
    assert load_letor(path).queries == 3
    stamp = path.stat()
    save(tmp_path, LINES + "3 qid:13 1:1\n")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert load_letor(path).grades.tolist() == [2, 0, 1, 3]


def test_a_damaged_cache_is_replaced(tmp_path: Path) -> None:
    path = save(tmp_path, LINES)
    first = load_letor(path)
    whole = cache_path(path).read_bytes()
    for damage in (b"", b"nonsense", whole[: len(whole) // 2]):
        cache_path(path).write_bytes(damage)
        assert_same(load_letor(path), first)
        assert cache_path(path).stat().st_size > 500


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, LINES)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
    assert load_letor(path).queries == 2
    assert os.listdir(tmp_path) == ["train.txt"]


# --- judgments ----------------------------------------------------------------------------------------------


def test_take_returns_the_requested_queries(tmp_path: Path) -> None:
    judgments = generate_judgments(30)
    for chosen in (judgments, load_letor(save(tmp_path, LINES * 3 + "1 qid:99 100:1\n"), cache=False)):
        ids = np.array([2, 0, 2])
        taken = chosen.take(ids)
        rows = np.concatenate([np.arange(chosen.offsets[q], chosen.offsets[q + 1]) for q in ids])
        assert taken.sizes.tolist() == chosen.sizes[ids].tolist()
        np.testing.assert_array_equal(taken.grades, chosen.grades[rows])
        np.testing.assert_array_equal(dense(taken), dense(chosen)[rows])


def test_relevant_compares_grades_with_the_threshold() -> None:
    judgments = generate_judgments(30)
    assert judgments.relevant().tolist() == [grade in (3, 4) for grade in judgments.grades]
    assert judgments.relevant(1).tolist() == [grade > 0 for grade in judgments.grades]


@pytest.mark.parametrize("offsets", [[0], [0, 2], [1, 3], [0, 3, 2, 3]])
def test_inconsistent_judgments_are_rejected(offsets: list[int]) -> None:
    with pytest.raises(PosbiasError, match="offsets must rise"):
        Judgments(np.array(offsets), np.zeros(3, np.int8), np.zeros((3, 1), np.float32))
    with pytest.raises(PosbiasError, match="features must have a row"):
        Judgments(np.array([0, 3]), np.zeros(3, np.int8), np.zeros((2, 1), np.float32))


# --- built-in data ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_generated_judgments_have_the_shape_of_yahoo_set_1() -> None:
    judgments = generate_judgments(4_000)
    sizes = judgments.sizes
    assert 22.5 < sizes.mean() < 25
    assert sizes.min() >= 1
    assert 100 < sizes.max() <= 139
    shares = np.bincount(judgments.grades) / judgments.documents
    np.testing.assert_allclose(shares, [0.26, 0.36, 0.28, 0.08, 0.02], atol=0.005)
    features = judgments.features
    assert features.dtype == np.float32
    assert features.min() >= 0
    assert features.max() <= 1
    # Quantiles: every feature is uniform.
    np.testing.assert_allclose(np.quantile(features, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.01)
    related = np.abs(np.corrcoef(features[:20_000].T) - np.eye(features.shape[1]))
    assert related.max() > 0.2


def test_the_same_seed_gives_the_same_judgments() -> None:
    one, two, other = generate_judgments(50, seed=4), generate_judgments(50, seed=4), generate_judgments(50, seed=5)
    assert_same(one, two)
    assert one.grades.tolist() != other.grades.tolist()
    assert generate_judgments(1).queries == 1
    with pytest.raises(PosbiasError, match="1 or more"):
        generate_judgments(0)
