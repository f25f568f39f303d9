"""Ids and scores that lost digits on the way, from every reader and on every engine: an error, never one id for two."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import posbias

WORLD = posbias.World(queries=30, max_rank=3)
LARGE = 2**60 + 1


def log(seed: int = 0, first: int = LARGE, type_: str = "int64", role: str = "doc_id") -> pandas.DataFrame:
    """A log whose documents, or queries, are numbered from `first` on."""
    frame = posbias.simulate(posbias.World(queries=30, max_rank=3, seed=seed), "replay").to_pandas()
    codes = pandas.factorize(frame[role])[0]
    frame[role] = pandas.Series([first + int(code) for code in codes], dtype=object).astype(type_)
    return frame.assign(impression_id=[f"{seed}-{view}" for view in frame["impression_id"]])


def write_json(frame: pandas.DataFrame, path: Path) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in frame.astype(object).to_dict("records")))
    return path


def json_with_a_fraction(folder: Path) -> Any:
    frame = log().astype({"doc_id": object})
    frame.loc[0, "doc_id"] = 0.5
    return write_json(frame, folder / "log.jsonl")


def files_of_two_types(folder: Path) -> Any:
    log(0).to_parquet(folder / "a.parquet")
    log(1, 7, "float64").to_parquet(folder / "b.parquet")
    return folder


def csv_of_floats(folder: Path) -> Any:
    log(type_="float64").to_csv(folder / "log.csv", index=False)
    return folder / "log.csv"


def frame_with_a_missing_id(folder: Path) -> Any:
    """A NaN turns the page views of a frame into floats."""
    frame = log(role="impression_id", type_="float64")
    return frame.assign(impression_id=pandas.factorize(frame["impression_id"])[0] + float(LARGE))


ROUNDED: dict[str, Callable[[Path], Any]] = {
    "JSON with a fraction": json_with_a_fraction,
    "files of two types": files_of_two_types,
    "CSV written from floats": csv_of_floats,
    "a frame of floats": lambda folder: log(type_="float64"),
    "queries as floats": lambda folder: log(type_="float64", role="query_id"),
    "32-bit floats": lambda folder: log(first=2**24 + 1, type_="float32"),
    "page views as floats": frame_with_a_missing_id,
}


@pytest.mark.parametrize("make", ROUNDED.values(), ids=ROUNDED)
def test_rounded_ids_are_an_error(make: Callable[[Path], Any], each_engine: str, tmp_path: Path) -> None:
    with pytest.raises(posbias.LogError, match=r"different ids became one.*Write the column as"):
        posbias.harvest(posbias.ClickLog(make(tmp_path)), max_rank=3)


def test_json_numbers_of_22_digits_are_an_error_or_exact(each_engine: str, tmp_path: Path) -> None:
    numbered = posbias.ClickLog(write_json(log(first=10**21, type_="object"), tmp_path / "log.jsonl"))
    if each_engine == "duckdb":
        with pytest.raises(
            posbias.LogError, match=r"'doc_id'.*DOUBLE \(in '.*log\.jsonl'\).*in JSON as text in quotes"
        ):
            posbias.harvest(numbered, max_rank=3)
    else:
        # Spark reads them as decimals.
        found = posbias.harvest(numbered, max_rank=3)
        np.testing.assert_array_equal(
            found.pairs().clicks, posbias.harvest(posbias.ClickLog(log()), max_rank=3).pairs().clicks
        )


def csv_files(folder: Path) -> Any:
    log(0, 7).to_csv(folder / "a.csv", index=False)
    log(1, 7, "float64").to_csv(folder / "b.csv", index=False)
    return folder


def texts_and_floats(folder: Path) -> Any:
    log(0, 7, "str").to_parquet(folder / "a.parquet")
    log(1, 7, "float64").to_parquet(folder / "b.parquet")
    return folder


@pytest.mark.parametrize("make", [csv_files, texts_and_floats])
def test_an_id_that_is_written_two_ways_is_an_error(
    make: Callable[[Path], Any], each_engine: str, tmp_path: Path
) -> None:
    with pytest.raises(
        posbias.LogError, match=r"fractions such as 7\.0 in '.*b\.(csv|parquet)', so one id counts as two"
    ):
        posbias.harvest(posbias.ClickLog(make(tmp_path)), max_rank=3)


@pytest.mark.parametrize("value", ["7e12", "1.0.3", "v1.0", "00070", "3.5"])
def test_texts_that_only_look_like_numbers_are_no_error(value: str, tmp_path: Path) -> None:
    frame = log(type_="str")
    frame["doc_id"] = frame["doc_id"].mask(frame["doc_id"] == str(LARGE), value)
    frame.to_csv(tmp_path / "log.csv", index=False)
    assert posbias.harvest(posbias.ClickLog(tmp_path / "log.csv"), max_rank=3).clicks.sum()


def test_files_of_whole_numbers_and_small_fractions_have_the_same_ids(each_engine: str, tmp_path: Path) -> None:
    for seed, type_ in enumerate(("int64", "float64")):
        log(seed, 7, type_).to_parquet(tmp_path / f"{seed}.parquet")
    both = pandas.concat([log(0, 7), log(1, 7)])
    found, expected = (
        posbias.harvest(posbias.ClickLog(source), max_rank=3, force=True).pairs().clicks for source in (tmp_path, both)
    )
    np.testing.assert_allclose(found, expected)


# ---- Other tables and commands


def test_weights_and_evaluations_refuse_rounded_ids() -> None:
    rounded = posbias.ClickLog(log(type_="float64"))
    with pytest.raises(posbias.LogError, match="different ids became one"):
        posbias.ips_weights(rounded, [1, 0.5, 0.3])
    with pytest.raises(posbias.LogError, match="different ids became one"):
        posbias.evaluate(rounded, ["ranker:a"], max_rank=3)


def test_candidates_and_rankings_refuse_rounded_ids() -> None:
    whole = posbias.ClickLog(log(type_="str"))
    table = log(type_="float64")[["query_id", "doc_id"]].drop_duplicates()
    with pytest.raises(posbias.PosbiasError, match=r"DOUBLE \(in the candidates\)"):
        posbias.ips_weights(whole, [1, 0.5, 0.3], candidates=table)
    with pytest.raises(posbias.PosbiasError, match=r"DOUBLE \(in the ranking 'ranking 1'\)"):
        posbias.evaluate(whole, table.assign(score=range(len(table))), max_rank=3)


def test_events_refuse_rounded_ids(each_engine: str, tmp_path: Path) -> None:
    rows = log(type_="float64")[["impression_id", "query_id", "doc_id", "ranker", "position", "clicked"]]
    taps = rows[rows["clicked"] == 1][["impression_id", "doc_id"]]
    events = posbias.ClickLog.from_events(rows.drop(columns="clicked"), taps)
    with pytest.raises(posbias.PosbiasError, match=r"(?s)'doc_id'.*in the impressions.*in the clicks.* does not hold"):
        posbias.write_events(events, tmp_path / "log.parquet")


@pytest.mark.parametrize(
    "scores",
    [
        pa.array(range(LARGE, LARGE + 1000)),
        pa.array([str(n) for n in range(LARGE, LARGE + 1000)]),
        pa.array(range(2**63, 2**63 + 1000), pa.uint64()),
        pa.array(range(-LARGE, -LARGE + 1000)),
        pa.array(np.arange(LARGE, LARGE + 1000).astype(float)),
        pa.array(np.arange(2**24, 2**24 + 1000).astype(np.float32)),
    ],
    ids=["int64", "text", "uint64", "negative", "float64", "float32"],
)
def test_scores_that_a_double_cannot_hold_are_an_error(scores: pa.Array) -> None:
    pairs = pa.Table.from_pandas(log(first=7)[["query_id", "doc_id"]].drop_duplicates(), preserve_index=False)
    table = pairs.append_column("score", scores.slice(0, pairs.num_rows))
    with pytest.raises(posbias.PosbiasError, match=r"'score', of type \w+, beyond .* order would be lost"):
        posbias.evaluate(posbias.ClickLog(log(first=7)), table, max_rank=3)


def test_large_scores_of_a_model_are_taken() -> None:
    """Among scores with fractions, a large one has all the digits that the model gave it."""
    pairs = log(first=7)[["query_id", "doc_id"]].drop_duplicates()
    found = posbias.evaluate(
        posbias.ClickLog(log(first=7)), pairs.assign(score=1.7 ** np.arange(len(pairs))), max_rank=3
    )
    assert found.rankings


def test_nan_among_the_scores_of_a_frame_is_refused_as_in_a_file(tmp_path: Path) -> None:
    table = log(first=7)[["query_id", "doc_id"]].drop_duplicates().assign(score=0.5)
    table["score"] = np.where(np.arange(len(table)) % 7 == 0, np.nan, np.arange(len(table)))
    pq.write_table(pa.table({name: pa.array(table[name].to_numpy()) for name in table}), tmp_path / "scores.parquet")
    for source in (table, table.astype({"score": object}), tmp_path / "scores.parquet"):
        with pytest.raises(posbias.PosbiasError, match=r"have NaN .* in column 'score'"):
            posbias.evaluate(posbias.ClickLog(log(first=7)), source, max_rank=3)
