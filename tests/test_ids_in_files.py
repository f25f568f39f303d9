"""Test which files hold ids of queries, documents, page views and users: those that are meant to, and no other."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import posbias
from posbias.cli import cli

# Ids that occur in nothing else. The log has problems whose examples name rows.
MARKS = {"query_id": "kwery", "doc_id": "dokument", "impression_id": "pejview", "user_id": "yuser"}
# What a command writes, and whether it is meant to hold ids.
AGGREGATES = {
    "harvest": "harvest {log} -o {out} --force --by device --unit user_id",
    "merge": "merge {harvest} {other} -o {out} --force",
    "report": "report {log} -o {out} --force",
    "report of a harvest": "report {harvest} -o {out}",
    "picture": "estimate {log} --force --plot {out}",
    "history": "history add {out} {curve} --date 2026-03-01",
}
PRINTED = {
    "curve": "estimate {log} --json --force",
    "curve of a harvest": "estimate {harvest} --json",
    "table": "estimate {log} --csv --force",
    "sets": "sets {log} --json --force",
    "comparison": "compare {harvest} {other} --json",
}
WITH_IDS = {
    "weights": "weights {log} --estimate {curve} -o {out} --force",
    "judgments": "judgments {log} --estimate {curve} -o {out} --force",
}
ENDINGS = {"report": "html", "report of a harvest": "html", "picture": "svg", "judgments": "tsv", "weights": "parquet"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A log with marked ids and defects: a row twice, a rank that contradicts its position, and a crawler."""
    folder = tmp_path_factory.mktemp("marked")
    paths = {name: str(folder / file) for name, file in {"log": "log.parquet", "harvest": "a.harvest"}.items()}
    paths |= {"other": str(folder / "b.harvest"), "curve": str(folder / "curve.json")}
    for seed, name in enumerate(("harvest", "other")):
        world = posbias.World(queries=200, max_rank=4, segments={"phone": 1, "desk": 1}, seed=seed)
        frame = posbias.simulate(world).to_pandas()
        frame["user_id"] = frame["impression_id"] % 50
        for column, mark in MARKS.items():
            frame[column] = [f"{mark}{seed}x{value}" for value in frame[column]]
        frame["position"] = [5 - k if row < 8 else k for row, k in enumerate(frame["position"])]
        frame = pandas.concat([frame, frame.iloc[:20]])
        if not seed:
            frame.to_parquet(paths["log"])
        log = posbias.ClickLog(frame, unit="user_id", impression="impression_id")
        posbias.harvest(log, max_rank=4, by="device", force=True).save(paths[name])
    fitted = posbias.CrossFit().fit(posbias.Harvest.load(paths["harvest"]))
    fitted.curve().save(paths["curve"])
    return paths


def content(path: Path) -> bytes:
    """The bytes of a file, and those that Parquet compresses."""
    raw = path.read_bytes()
    if raw[:4] == b"PAR1":
        table = pq.read_table(path)
        raw += repr(table.to_pydict()).encode() + repr(table.schema.metadata).encode()
    elif raw[:2] == b"\x1f\x8b":
        raw += gzip.decompress(raw)
    return raw


def marks_in(text: bytes) -> set[str]:
    return {mark for mark in MARKS.values() if mark.encode() in text}


def run(line: str, files: dict[str, str], out: Path) -> str:
    done = CliRunner().invoke(cli, line.format(out=out, **files).split())
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("name", AGGREGATES)
def test_files_of_aggregates_hold_no_ids(name: str, files: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / f"out.{ENDINGS.get(name, 'parquet')}"
    run(AGGREGATES[name], files, out)
    assert not marks_in(content(out))


def test_the_screen_shows_examples_of_the_same_log(files: dict[str, str], tmp_path: Path) -> None:
    """So that the files above could have held them."""
    done = CliRunner().invoke(cli, ["check", files["log"]])
    assert marks_in(done.output.encode())


@pytest.mark.parametrize("name", PRINTED)
def test_curves_and_comparisons_hold_no_ids(name: str, files: dict[str, str], tmp_path: Path) -> None:
    assert not marks_in(run(PRINTED[name], files, tmp_path).encode())


@pytest.mark.parametrize("name", WITH_IDS)
def test_weights_and_judgments_hold_the_ids_of_queries_and_documents(
    name: str, files: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / f"out.{ENDINGS[name]}"
    run(WITH_IDS[name], files, out)
    assert marks_in(content(out)) == {MARKS["query_id"], MARKS["doc_id"]}
