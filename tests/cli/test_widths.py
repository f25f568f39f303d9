"""Test that tables fit 80 columns without losing content."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import posbias
from posbias._text import WIDTH, Column, table, wrap
from posbias.cli import COMMANDS, cli
from posbias.curves.curve import Curve, Position

LONG = "a-ranker-with-a-name-that-its-makers-took-great-pride-in-" + "x" * 40
SEGMENT = "phones, tablets and whatever else people hold in their hands while they are on a train " + "y" * 90
M = 30


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Logs with long names, many ranks, thin and enormous counts; a harvest, an export of each kind of trouble."""
    folder = tmp_path_factory.mktemp("widths")
    world = posbias.World(queries=60, max_rank=M, repeats=4, segments={"phone": 1.5, "desk": 0.5})
    log = posbias.simulate(world)
    log = log.rename_columns({"rank_a": f"rank_{LONG}"})
    for name, old, new in [("ranker", "a", LONG), ("device", "phone", SEGMENT)]:
        at = log.column_names.index(name)
        log = log.set_column(at, name, pc.if_else(pc.equal(log[name], old), new, log[name]))
    made = {
        name: str(folder / name) for name in ("log.parquet", "bad.parquet", "huge.parquet", "made.harvest", "truth")
    }
    pq.write_table(log, made["log.parquet"])
    at = log.column_names.index("position")
    pq.write_table(log.set_column(at, "position", pa.array(np.zeros(len(log), int))), made["bad.parquet"])
    counts = posbias.simulate(world, aggregated=True)
    for name in ("impressions", "clicks"):
        at = counts.column_names.index(name)
        counts = counts.set_column(at, name, pc.multiply(counts[name], pa.scalar(10**11)))
    pq.write_table(counts, made["huge.parquet"])
    posbias.harvest(posbias.ClickLog(made["log.parquet"]), max_rank=M, by=["device"]).save(made["made.harvest"])
    views = {"impression_id": [1, 2], "query_id": ["q", SEGMENT], LONG: [1, 2], "doc_ids": [["x", "y"], ["y", "x"]]}
    pq.write_table(pa.table(views), folder / "views.parquet")
    pq.write_table(pa.table({"impression_id": [1, 9], "doc_id": ["y", "z"]}), folder / "clicks.parquet")
    made |= {name: str(folder / name) for name in ("views.parquet", "clicks.parquet", "events.parquet")}
    posbias.History().add(
        posbias.AllPairs().fit(posbias.Harvest.load(made["made.harvest"])).curve(), "2026-03-01"
    ).save(folder / "days.parquet")
    made["days.parquet"] = str(folder / "days.parquet")
    known = [Position(k, 1 / k, None, None, 1, 1, None) for k in range(1, M + 1)]
    Curve("by-hand", M, None, None, None, tuple(known), {}).save(folder / "curve.json")
    made |= {name: str(folder / name) for name in ("curve.json", "weights.parquet")}
    (folder / "truth").write_text(f'{{"propensity": {world.propensity.tolist()}}}')
    named = {
        "out": "out.parquet",
        "page": "page.html",
        "drawn": "drawn.parquet",
        "judged": "judged.csv",
        "folder": "figures",
    }
    return made | {word: str(folder / name) for word, name in named.items()}


WORDS: list[Any] = [
    ["--help"],
    *([command, "--help"] for command in COMMANDS),
    ["check", "log.parquet", "--max-rank", "30"],
    ["check", "bad.parquet"],
    ["check", "huge.parquet"],
    ["estimate", "log.parquet", "--max-rank", "30", "--by", "device"],
    ["estimate", "log.parquet", "--max-rank", "30", "--joint", "--truth", "truth"],
    ["estimate", "huge.parquet", "--joint", "--truth", "truth", "--max-rank", "30"],
    ["estimate", "log.parquet", "--estimator", "all-pairs", "--interval", "bootstrap", "--bootstrap", "20"],
    ["estimate", "log.parquet", "--estimator", "pivot-one", "--max-rank", "30"],
    ["estimate", "log.parquet", "--estimator", "naive-ctr"],
    ["estimate", "made.harvest", "--joint"],
    ["harvest", "log.parquet", "-o", "out"],
    ["merge", "made.harvest", "-o", "out"],
    ["sets", "log.parquet", "--max-rank", "30"],
    ["sets", "huge.parquet"],
    ["plan", "log.parquet", "--max-rank", "5", "--traffic", f"{LONG}=0.3,b=0.7"],
    ["plan", "log.parquet", "--max-rank", "30", "--no-scenarios"],
    ["plan", "--assume", "--max-rank", "3", "--queries", "1000"],
    ["simulate", "drawn", "--queries", "5"],
    ["diagnose", "log.parquet", "--max-rank", "30"],
    ["report", "made.harvest", "-o", "page"],
    ["compare", "made.harvest", "--segments"],
    ["history", "show", "days.parquet"],
    ["weights", "log.parquet", "--estimate", "curve.json", "-o", "weights.parquet"],
    ["judgments", "log.parquet", "--estimate", "curve.json", "--min-exposure", "1", "-o", "judged"],
    ["evaluate", "log.parquet", "--ranking", f"ranker:{LONG}", "--ranking", "ranker:b", "--max-rank", "4"],
    ["events", "views.parquet", "clicks.parquet", "-o", "events.parquet"],
]


def test_width_tests_cover_every_command() -> None:
    # What `sql` prints is for a program, and its lines are what they are.
    run = [words if isinstance(words, list) else words.values[0] for words in WORDS]
    assert {words[0] for words in run if "--help" not in words} | {"sql"} == {*COMMANDS}


@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(words).replace(LONG, "LONG"))
def test_lines_fit_the_terminal_width(words: list[str], files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", f"{WIDTH}")
    result = CliRunner().invoke(cli, [files.get(word, word) for word in words])
    assert result.exit_code in (0, 1), result.output
    lines = result.stdout.splitlines()
    assert lines or words[0] in ("harvest", "merge", "simulate", "events", "report", "weights", "judgments")
    # What a finding would have one copy stands on one line, and a name in its words is never broken.
    copied = [line for line in lines if line.startswith("    add ")]
    named = [line for line in lines if len(line.split()) == 1] if "bad.parquet" in words else []
    whole = [*copied, *named]
    assert [line for line in lines if len(line) > WIDTH and line not in whole] == []


def shown(files: dict[str, str], *words: str) -> str:
    """Return what a command prints, without any blanks."""
    result = CliRunner().invoke(cli, [files.get(word, word) for word in words])
    return "".join(result.stdout.split())


def test_wrapped_output_has_the_complete_content(files: dict[str, str]) -> None:
    assert "".join(SEGMENT.split()) in shown(files, "estimate", "log.parquet", "--by", "device")
    # A name is folded beside its numbers.
    said = CliRunner().invoke(cli, ["check", files["log.parquet"]]).stdout
    assert "x" * 40 in "".join(said.split()).replace("…", "")
    huge = posbias.check(posbias.ClickLog(files["huge.parquet"]), max_rank=M)
    said = shown(files, "estimate", "huge.parquet", "--max-rank", "30", "--joint", "--truth", "truth")
    for p in huge.positions:
        assert f"{p.impressions:,}{p.clicks:,}" in said
    sizes = posbias.intervention_sets(posbias.ClickLog(files["log.parquet"]), max_rank=M)
    table_of_sets = CliRunner().invoke(cli, ["sets", files["log.parquet"], "--max-rank", "30"]).stdout
    cells = [
        int(cell.replace(",", "")) for line in table_of_sets.splitlines()[1:] for cell in line.split() if cell != "-"
    ]
    heads_and_rows = sum(range(1, M)) + 2 * sum(range(2, M + 1))
    assert sum(cells) == heads_and_rows + np.triu(sizes, 1).sum()


def read(leader: int) -> bytes:
    """Return what was written to a terminal meanwhile, nothing at its end."""
    try:
        return os.read(leader, 2**16)
    except OSError:
        return b""


@pytest.mark.parametrize(("columns", "width"), [(0, WIDTH), (48, 48), (200, WIDTH)])
@pytest.mark.parametrize("words", [["estimate", "bad.csv"], ["estimate", "bad.csv", "--seed", "3"]])
def test_messages_wrap_at_words_on_a_terminal_and_are_one_line_in_a_pipe(
    words: list[str], columns: int, width: int, tmp_path: Path
) -> None:
    (tmp_path / "bad.csv").write_text("query_id,doc_id,ranker,position,clicked\n" + "1,2,a,0,0\n" * 9)
    run = partial(
        subprocess.run,
        [sys.executable, "-c", "from posbias.cli import script; script()", *words],
        cwd=tmp_path,
        check=False,
        text=True,
    )
    piped = run(capture_output=True).stderr
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    run(stdout=subprocess.DEVNULL, stderr=follower)
    os.close(follower)
    drawn = b"".join(iter(lambda: read(leader), b"")).decode()
    os.close(leader)
    said = drawn[drawn.index("Error:") :].replace("\x1b[0m", "").splitlines()
    piped = piped[piped.index("Error:") :]
    assert len(piped.splitlines()) < len(said)
    assert all(len(line) <= width for line in said)
    assert max(map(len, said)) > 0.8 * width
    assert " ".join(" ".join(said).split()) == " ".join(piped.split())


def test_bars_shrink_before_cells_wrap() -> None:
    def longest(*heads: str) -> int:
        columns = [Column("rank", ["1", "2"]), *(Column(head, ["0", "0"]) for head in heads)]
        lines = table(columns, bars=[1.0, None]).splitlines()
        assert max(map(len, lines)) <= WIDTH
        return max(line.count("█") for line in lines)

    assert [longest("c" * n) for n in (10, 60, 66, 67, 74)] == [24, 12, 6, 0, 0]


def test_columns_that_do_not_fit_are_printed_below() -> None:
    columns = [Column("rank", ["1", "2"]), *(Column(f"{n}" * 30, [f"{n}", "0"]) for n in range(4))]
    first, second = table(columns).split("\n\n")
    assert first.splitlines()[1].split() == ["1", "0", "1"]
    assert second.splitlines()[1].split() == ["1", "2", "3"]


def test_wrapped_cells_keep_their_spaces() -> None:
    name = "word  " * 30 + "z" * 100
    drawn = table([Column("name", [name], left=True), Column("n", ["12"])])
    assert max(map(len, drawn.splitlines())) <= WIDTH
    assert "".join(drawn.split()).replace("12", "") == "namen" + "".join(name.split())
    assert "word  word" in drawn


def test_notes_shared_by_several_rows_are_printed_once() -> None:
    why = "no document at this rank is at another rank by another ranker, with clicks"
    columns = [Column("rank", [f"{k}" for k in range(1, 7)]), Column("propensity", ["–"] * 6)]
    drawn = table(columns, remarks=["", why, why, why, "", why])
    assert drawn.count("no document") == 1
    assert "ranks 2 to 4 and 6: no document at this rank" in drawn
    # A short one stands on its line.
    assert table([Column("rank", ["1", "2"])], remarks=["", "thin"]).splitlines()[-1] == "   2  thin"


def test_long_words_are_broken_only_on_request() -> None:
    assert max(map(len, wrap("u" * 200))) == WIDTH
    assert wrap("u" * 200, breaking=False) == ["u" * 200]
