"""Test that no log, harvest, name or flag can print escape sequences to a terminal."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import posbias
from posbias.cli import cli
from tests.support.warehouses import run_duckdb, to_csv, to_parquet

# Clears the screen; sets the title; turns the direction of writing; an 8-bit introducer; a line of its own.
EVIL = "x\x1b[2J\x1b]0;owned\x07\u202e\x9b31m\ry"
OBEYED = ("\x1b", "\x07", "\u202e", "\x9b", "\r")


def table() -> pa.Table:
    """A log whose rankers, columns, segments and ids hold such texts."""
    log = posbias.simulate(posbias.World(queries=30, max_rank=3, segments={"phone": 1.5, "desk": 0.5}))
    rows = log.to_pylist()
    for row in rows:
        row["ranker"] = f"{row['ranker']}{EVIL}"
        row[f"rank_a{EVIL}"], row[f"rank_b{EVIL}"] = row.pop("rank_a"), row.pop("rank_b")
        row[f"land{EVIL}"] = f"{row.pop('device')}{EVIL}"
        row["doc_id"] = f"{row['doc_id']}{EVIL}"
    return pa.Table.from_pylist(rows)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    log, folder = table(), tmp_path_factory.mktemp("terminal")
    made = {name: folder / f"{name}{EVIL}.parquet" for name in ("log", "harvest", "bad", "empty", "out")}
    pq.write_table(log, made["log"])
    posbias.harvest(posbias.ClickLog(made["log"]), max_rank=3, by=[f"land{EVIL}"]).save(made["harvest"])
    position = log.column_names.index("position")
    pq.write_table(log.set_column(position, "position", pa.array([EVIL] * len(log))), made["bad"])
    pq.write_table(log.slice(0, 0), made["empty"])
    sql = posbias.harvest_sql("duckdb", "clicks", rankers=[f"a{EVIL}", f"b{EVIL}"], by=[f"land{EVIL}"])
    with run_duckdb() as run:
        answer = run(sql, {"clicks": log})
    made["export"] = to_parquet(answer, folder)
    made["cut"] = to_csv([row | {"bucket": EVIL} for row in answer], folder)
    made["text"] = folder / f"{EVIL}.csv"
    made["text"].write_text(f"query_id,{EVIL}\n1,2\n3", newline="")
    made["truth"] = folder / f"truth{EVIL}.json"
    made["truth"].write_text(json.dumps({EVIL: EVIL}))
    made["gz"] = folder / f"{EVIL}.csv.gz"
    made["gz"].write_bytes(b"\x1f\x8b" + EVIL.encode())
    return made


@pytest.fixture
def files(made_once: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """Each test has files of its own: commands write beside and over them."""
    shutil.copytree(made_once["log"].parent, tmp_path, dirs_exist_ok=True)
    return {name: tmp_path / path.name for name, path in made_once.items()}


COMMANDS: list[list[str]] = [
    *([command, name] for command in ("check", "estimate", "sets") for name in ("log", "bad", "empty", "text", "gz")),
    *(["check", name, "--json"] for name in ("log", "bad", "empty", "text")),
    ["check", "log", "--query", f"no{EVIL}"],
    ["check", "log", "--by", EVIL],
    ["estimate", "log", "--by", f"land{EVIL}"],
    ["estimate", "log", "--by", f"land{EVIL}", "--json"],
    ["estimate", "log", "--by", EVIL],
    ["estimate", "log", "--ranks", EVIL],
    ["estimate", "log", "--truth", "truth"],
    ["estimate", "log", "--truth", EVIL],
    ["estimate", "log", "--plot", EVIL],
    ["estimate", "log", "--estimator", EVIL],
    ["estimate", "log", "--level", EVIL],
    ["estimate", "log", "--estimator", "naive-ctr", "--by", f"land{EVIL}"],
    ["estimate", "log", "--estimator", "regression-em", "--feature", EVIL],
    ["estimate", "log", "--memory-limit", EVIL],
    ["estimate", "log", "--sql", EVIL],
    ["estimate", "log", f"--{EVIL}"],
    ["estimate", "harvest"],
    ["estimate", "harvest", "harvest"],
    ["estimate", "harvest", "--max-rank", "4"],
    ["estimate", "export"],
    ["estimate", "cut"],
    *(["diagnose", name] for name in ("log", "harvest", "export", "bad", "empty", EVIL)),
    ["diagnose", "log", "--json"],
    ["diagnose", "log", "--split", f"a{EVIL}=1,b{EVIL}=1"],
    ["diagnose", "log", "--split", EVIL],
    ["report", "harvest", "-o", "out"],
    ["report", "harvest", "log", "-o", "out"],
    ["report", "harvest", "-o", "out", "--history", "harvest"],
    ["report", EVIL, "-o", "out"],
    ["report", "log", "-o", f"{EVIL}/{EVIL}"],
    ["estimate", EVIL],
    ["check", "harvest"],
    ["harvest", "log", "-o", "out", "--by", f"land{EVIL}"],
    ["harvest", "log", "-o", f"{EVIL}/{EVIL}"],
    ["harvest", "log", "-o", "log"],
    ["merge", "harvest", "harvest", "-o", "out"],
    ["merge", "harvest", "cut", "-o", "out"],
    ["merge", "log", "-o", "out"],
    ["merge", EVIL, "-o", "out"],
    ["compare", "harvest", "harvest"],
    ["compare", "harvest", "--segments"],
    ["compare", "harvest", "--estimators", EVIL],
    ["compare", "harvest", "truth"],
    ["compare", "harvest", "log"],
    ["compare", "harvest", EVIL],
    *(["weights", name, "--estimate", "harvest", "-o", "out"] for name in ("log", "bad", "empty", EVIL)),
    ["weights", "log", "--estimate", "harvest", "-o", "out", "--rows", "--json"],
    ["weights", "log", "--estimate", "truth", "-o", "out"],
    ["weights", "log", "--estimate", EVIL, "-o", "out"],
    ["weights", "log", "--estimate", "harvest", "-o", EVIL],
    ["weights", "log", "--estimate", "harvest", "-o", "out", "--keep", EVIL],
    ["weights", "log", "--estimate", "harvest", "-o", "out", "--keep", "doc_id"],
    ["weights", "log", "--estimate", "harvest", "-o", "out", "--candidates", "text"],
    ["weights", "log", "--estimate", "harvest", "-o", "out", "--cap", EVIL],
    ["weights", "log", "--estimate", "harvest", "-o", "out", "--sql", f"SELECT *, '{EVIL}' AS weight FROM source"],
    ["history", "show", "harvest"],
    ["history", "show", EVIL],
    ["history", "add", "out", "truth", "--date", "2026-03-01"],
    ["history", "add", "out", "truth", "--date", EVIL],
    ["history", EVIL],
    ["events", "log", "log", "-o", "out"],
    ["events", "log", "log", "-o", "out", "--sql", "SELECT * EXCLUDE (clicked) FROM source"],
    ["events", "log", "log", "-o", "out", "--sql", "SELECT * EXCLUDE (clicked) FROM source", "--json"],
    ["events", "log", "log", "-o", "out", "--sql", "SELECT * REPLACE (1 AS position) FROM source"],
    ["events", "log", "log", "-o", "out", "--docs", EVIL, "--click-doc", EVIL],
    ["events", "log", EVIL, "-o", "out"],
    ["events", "log", "log", "-o", "out", "--preset", "ubi"],
    ["events", EVIL, "--preset", "ga4", "--dialect", EVIL],
    ["simulate", "out", "--queries", "5"],
    ["simulate", EVIL, "--queries", "5"],
    ["simulate", "out", "--queries", "5", "--segment", EVIL],
    ["simulate", "out", "--queries", "5", "--quality", EVIL],
    ["sql", "--dialect", EVIL, "--table", "t"],
    ["sql", "--dialect", "duckdb", "--table", f'"{EVIL}'],
    ["sql", "--dialect", "duckdb", "--table", "t", EVIL],
    [EVIL],
    ["log"],
    [f"--{EVIL}"],
    ["check"],
]


@pytest.mark.parametrize("args", COMMANDS, ids=lambda args: " ".join(args).replace(EVIL, "EVIL"))
def test_no_command_prints_escape_sequences(
    args: list[str], files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, [str(files.get(arg, arg)) for arg in args])
    assert result.exit_code in (0, 1, 2), result.output
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)
    shown = result.stdout + result.stderr
    assert shown
    assert [mark for mark in OBEYED if mark in shown] == []


def test_csv_escape_sequences_are_removed_on_a_terminal_and_kept_in_a_pipe(files: dict[str, Path]) -> None:
    command = ["-c", "from posbias.cli import script; script()"]
    args: Any = [sys.executable, *command, "estimate", files["harvest"], "--csv", "--interval", "none"]
    piped = subprocess.run(args, capture_output=True, check=True).stdout
    assert f"phone{EVIL}".encode() in piped
    leader, follower = pty.openpty()
    subprocess.run(args, stdout=follower, stderr=follower, check=True)
    os.close(follower)
    shown = os.read(leader, 2**16).decode()
    os.close(leader)
    assert "\\x1b[2J" in shown
    assert not any(mark in shown for mark in OBEYED[:4])


def test_sql_escape_sequences_are_removed_on_a_terminal_and_kept_in_a_pipe() -> None:
    words = ["sql", "--dialect", "duckdb", "--table", "t", "--by", EVIL]
    args = [sys.executable, "-c", "from posbias.cli import script; script()", *words]
    assert EVIL.encode() in subprocess.run(args, capture_output=True, check=True).stdout
    leader, follower = pty.openpty()
    done = subprocess.run(args, stdout=follower, stderr=subprocess.PIPE, check=False)
    os.write(follower, b"end")
    os.close(follower)
    assert os.read(leader, 2**16) == b"end"
    os.close(leader)
    assert done.returncode == 2
    assert b"control characters for the terminal. Write the query to a file" in done.stderr


def test_harvest_summary_has_no_escape_sequences_in_segment_columns() -> None:
    harvest = posbias.harvest(posbias.ClickLog(table()), max_rank=3, by=[f"land{EVIL}"])
    assert "\x1b" not in repr(harvest)
