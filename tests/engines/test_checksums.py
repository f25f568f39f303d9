"""Test that compressed logs with changed bytes are rejected, on every engine."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from click.testing import CliRunner

import posbias
from posbias.cli import cli

STEP = int(os.environ.get("POSBIAS_FUZZ_STEP", "2999"))
# More than is read of a file for its header alone.
LOG = posbias.simulate(posbias.World(queries=400, max_rank=4))


def csv_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(table, sink)
    return sink.getvalue().to_pybytes()


def json_bytes(table: pa.Table) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in table.to_pylist()).encode()


CLICKED = LOG.set_column(LOG.column_names.index("clicked"), "clicked", pa.array([1] * len(LOG)))
PLAIN = {"csv": csv_bytes(LOG), "jsonl": json_bytes(LOG)}
OTHER = {PLAIN["csv"]: csv_bytes(CLICKED), PLAIN["jsonl"]: json_bytes(CLICKED)}
LINES = PLAIN["csv"].splitlines(keepends=True)


def packed(data: bytes) -> bytes:
    """As gzip packs at its fastest: nothing here depends on how small it gets."""
    return gzip.compress(data, compresslevel=1, mtime=0)


def forged(data: bytes) -> bytes:
    """Clicks on everything, with the checksum and the length of the true ones."""
    return packed(OTHER[data])[:-8] + packed(data)[-8:]


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


def read(path: Path, data: bytes) -> Any:
    path.write_bytes(data)
    return posbias.harvest(posbias.ClickLog(path), max_rank=4)


WHOLE = posbias.harvest(posbias.ClickLog(LOG), max_rank=4)


# ---- What is right


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("log.csv.gz", gzip.compress(PLAIN["csv"])),
        ("log.jsonl.gz", packed(PLAIN["jsonl"])),
        ("log.csv.gz", b"".join(packed(b"".join(LINES[i : i + 999])) for i in range(0, len(LINES), 999))),
        ("log.csv.zst", zstd(PLAIN["csv"])),
        ("log.jsonl.zst", zstd(PLAIN["jsonl"])),
        ("log.csv.zst", zstd(b"".join(LINES[:500])) + zstd(b"".join(LINES[500:]))),
    ],
    ids=["gzip csv", "gzip json", "members", "zstd csv", "zstd json", "frames"],
)
def test_intact_files_are_read(name: str, data: bytes, tmp_path: Path) -> None:
    harvest = read(tmp_path / name, data)
    assert harvest.page_views == WHOLE.page_views
    assert (harvest.clicks == WHOLE.clicks).all()


# ---- What is wrong

GZIP: dict[str, Callable[[bytes], bytes]] = {
    "forged clicks": forged,
    "another checksum": lambda data: packed(data)[:-8] + b"\1\2\3\4" + packed(data)[-4:],
    "another length": lambda data: packed(data)[:-4] + b"\1\2\3\4",
    "no length": lambda data: packed(data)[:-4],
    "no end": lambda data: packed(data)[:-8],
    "half": lambda data: packed(data)[: len(packed(data)) // 2],
    "more after it": lambda data: packed(data) + b"more",
    "a second member cut": lambda data: packed(data) + packed(data)[:-1],
    "a second member forged": lambda data: packed(data) + forged(data),
}
ZSTD: dict[str, Callable[[bytes], bytes]] = {
    "a few bytes": lambda data: zstd(data)[:60],
    "half": lambda data: zstd(data)[: len(zstd(data)) // 2],
    "no end": lambda data: zstd(data)[:-1],
    "more after it": lambda data: zstd(data) + b"more",
    "a second frame cut": lambda data: zstd(data) + zstd(data)[:-1],
}


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("name", GZIP)
def test_damaged_gzip_files_are_rejected(name: str, kind: str, tmp_path: Path) -> None:
    with pytest.raises(posbias.LogError, match=r"cannot be (decompressed|read)(.|\n)*truncated or damaged"):
        read(tmp_path / f"log.{kind}.gz", GZIP[name](PLAIN[kind]))


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("name", ZSTD)
def test_damaged_zstandard_files_are_rejected(name: str, kind: str, tmp_path: Path) -> None:
    with pytest.raises(posbias.LogError, match=r"cannot be (decompressed|read)(.|\n)*truncated or damaged"):
        read(tmp_path / f"log.{kind}.zst", ZSTD[name](PLAIN[kind]))


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the command zstd, which writes checksums, is not there")
def test_zstandard_checksum_is_verified(tmp_path: Path) -> None:
    plain = tmp_path / "log.csv"
    plain.write_bytes(PLAIN["csv"])
    subprocess.run(["zstd", "-q", "--check", plain], check=True)
    data = (tmp_path / "log.csv.zst").read_bytes()
    assert read(tmp_path / "log.csv.zst", data).page_views == WHOLE.page_views
    with pytest.raises(posbias.LogError, match="checksum"):
        read(tmp_path / "log.csv.zst", data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.long
def test_flipped_byte_of_a_gzip_file_is_rejected_or_harmless(tmp_path: Path) -> None:
    data = packed(PLAIN["csv"])
    path = tmp_path / "log.csv.gz"
    for place in range(0, len(data), STEP):
        flipped = data[:place] + bytes([data[place] ^ (1 << random.Random(place).randrange(8))]) + data[place + 1 :]
        try:
            harvest = read(path, flipped)
        except posbias.PosbiasError:
            continue
        assert harvest.page_views == WHOLE.page_views
        assert (harvest.clicks == WHOLE.clicks).all()


def test_every_command_rejects_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    path.write_bytes(forged(PLAIN["csv"]))
    for args in (
        ["estimate", path],
        ["estimate", path, "--estimator", "naive-ctr"],
        ["harvest", path, "-o", tmp_path / "out"],
        ["sets", path],
        ["check", path],
    ):
        result = CliRunner().invoke(cli, [str(arg) for arg in args])
        assert result.exit_code == (1 if args[0] == "check" else 2), result.output
        assert "incorrect data check" in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["forged clicks", "another length"])
def test_every_engine_rejects_damaged_files(each_engine: str, name: str, tmp_path: Path) -> None:
    assert read(tmp_path / "log.csv.gz", packed(PLAIN["csv"])).page_views == WHOLE.page_views
    with pytest.raises(posbias.LogError, match="truncated or damaged"):
        read(tmp_path / "log.csv.gz", GZIP[name](PLAIN["csv"]))


def test_damaged_rankings_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    assert CliRunner().invoke(cli, ["simulate", str(path), "--layout", "long", "--queries", "9"]).exit_code == 0
    rankings = tmp_path / "log.rankings.csv.gz"
    log = posbias.ClickLog(path, rankings=rankings)
    posbias.harvest(log)
    data = rankings.read_bytes()
    rankings.write_bytes(data[:-8] + bytes(4) + data[-4:])
    with pytest.raises(posbias.LogError, match=r"log\.rankings\.csv\.gz' cannot be decompressed"):
        posbias.harvest(log)


def test_error_names_the_damaged_file(tmp_path: Path) -> None:
    for day in range(3):
        (tmp_path / f"{day}.csv.gz").write_bytes(packed(PLAIN["csv"]))
    (tmp_path / "1.csv.gz").write_bytes(forged(PLAIN["csv"]))
    with pytest.raises(posbias.LogError, match=r"1\.csv\.gz' cannot be decompressed"):
        posbias.harvest(posbias.ClickLog(tmp_path), max_rank=4)


def test_checksum_errors_come_before_row_errors(tmp_path: Path) -> None:
    """A damaged file with an invalid row is reported as damaged, not as a file with an invalid row."""
    data = PLAIN["csv"].replace(b",1,", b",x,", 1)
    changed = packed(data)
    with pytest.raises(posbias.LogError, match="cannot be decompressed"):
        read(tmp_path / "log.csv.gz", changed[:-8] + packed(PLAIN["csv"])[-8:])
    with pytest.raises(posbias.LogError, match="cannot be used"):
        read(tmp_path / "log.csv.gz", changed)


def test_interrupt_stops_the_checksum(tmp_path: Path) -> None:
    from posbias.engines.files import verify_checksums

    path = tmp_path / "log.csv.gz"
    path.write_bytes(packed(bytes(2**26)))
    with pytest.raises(KeyboardInterrupt), verify_checksums(posbias.ClickLog(path)):
        raise KeyboardInterrupt
