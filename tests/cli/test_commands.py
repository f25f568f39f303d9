"""Test the commands: output, files, errors, and that failed runs leave nothing behind."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import posbias
from posbias.cli import COMMANDS, cli
from posbias.estimators import ESTIMATORS

WORLD = posbias.World(queries=150, repeats=8, max_rank=6, seed=4, segments={"desk": 0.5, "phone": 1.5})
# In seconds, against hanging alone: on a busy machine a command takes what it takes.
PATIENCE = 900
POSITION = ["position", "propensity", "low", "high", "impressions", "clicks", "reason", "degrees_of_freedom"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one log in several forms, not to be written to."""
    folder = tmp_path_factory.mktemp("logs")
    table = posbias.simulate(WORLD)
    pq.write_table(table, folder / "log.parquet")
    half = len(table) // 2
    pq.write_table(table.slice(0, half), folder / "1.parquet")
    pq.write_table(table.slice(half), folder / "2.parquet")
    table.drop_columns(["rank_a", "rank_b"]).to_pandas().to_csv(folder / "replay.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def log(folder: Path) -> str:
    return str(folder / "log.parquet")


def run(*args: Any, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def fails(*args: Any) -> str:
    """Run a command that must fail as errors do: exit 2, a message on stderr, nothing on stdout."""
    result = run(*args, code=2)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def spawn(*args: Any, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from posbias.cli import main; main()", *map(str, args)]
    return subprocess.Popen(command, text=True, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options)


# ---- estimate


def test_the_json_of_an_estimate(log: str) -> None:
    told = json.loads(run("estimate", log, "--json", "--max-rank", 6).stdout)
    assert list(told) == [
        "format", "estimator", "max_rank", "level", "interval_by", "weighting", "positions", "page_views", "covariance",
        "notes", "rankers", "version", "checksum",
    ]  # fmt: skip
    assert (told["estimator"], told["max_rank"], told["level"]) == ("cross-fit", 6, 0.95)
    assert (told["interval_by"], told["weighting"], told["notes"]) == ("jackknife", None, [])
    assert (told["rankers"], told["version"]) == (["a", "b"], posbias.__version__)
    assert sum(told["page_views"].values()) == 1200
    assert [list(p) for p in told["positions"]] == [POSITION] * 6
    fitted = posbias.CrossFit().fit(posbias.harvest(posbias.ClickLog(log), max_rank=6))
    for name, values in (("propensity", fitted.propensity_), ("low", fitted.interval_[:, 0])):
        np.testing.assert_array_equal([p[name] for p in told["positions"]], values)
    assert [p["position"] for p in told["positions"]] == [1, 2, 3, 4, 5, 6]


def test_ranks_that_are_not_identified_are_null_with_a_reason(folder: Path, tmp_path: Path) -> None:
    table = pq.read_table(folder / "log.parquet")
    # Nothing was ever moved to or from rank 6.
    still = table.filter((pa.compute.field("rank_a") < 6) & (pa.compute.field("rank_b") < 6))
    last = table.filter((pa.compute.field("rank_a") == 6) & (pa.compute.field("rank_b") == 6))
    pq.write_table(pa.concat_tables([still, last]), tmp_path / "log.parquet")
    told = json.loads(run("estimate", tmp_path / "log.parquet", "--json", "--max-rank", 6).stdout)
    sixth = told["positions"][5]
    assert (sixth["propensity"], sixth["low"], sixth["high"]) == (None, None, None)
    assert sixth["reason"]
    assert told["positions"][4]["reason"] is None


def test_segments(log: str) -> None:
    told = json.loads(run("estimate", log, "--json", "--by", "device", "--max-rank", 6).stdout)
    assert told["by"] == ["device"]
    assert [part["segment"] for part in told["segments"]] == [{"device": "desk"}, {"device": "phone"}]
    for part in told["segments"]:
        assert list(part) == ["segment", "positions", "page_views", "covariance", "notes"]
        assert [list(p) for p in part["positions"]] == [POSITION] * 6
    clicks = [sum(part["positions"][k]["clicks"] for part in told["segments"]) for k in range(6)]
    assert clicks == [p["clicks"] for p in told["positions"]]
    rows = list(
        csv.DictReader(io.StringIO(run("estimate", log, "--csv", "--by", "device", "--interval", "none").stdout))
    )
    assert list(rows[0]) == ["scope", "device", *POSITION]
    assert [row["scope"] for row in rows] == ["all"] * 6 + ["segment"] * 12
    assert [row["device"] for row in rows] == [""] * 6 + ["desk"] * 6 + ["phone"] * 6
    text = run("estimate", log, "--by", "device", "--interval", "none").stdout
    assert "\ndesk\n" in text
    assert "\nphone\n" in text


def test_the_csv_of_an_estimate(log: str) -> None:
    args = ("estimate", log, "--max-rank", 6, "--estimator", "pivot-one")
    rows = list(csv.reader(io.StringIO(run(*args, "--csv").stdout)))
    assert rows[0] == POSITION
    told = json.loads(run(*args, "--json").stdout)
    assert told["estimator"] == "pivot-one"
    for row, position in zip(rows[1:], told["positions"], strict=True):
        assert row == ["" if position[name] is None else str(position[name]) for name in POSITION]


def test_the_text_of_an_estimate(log: str) -> None:
    text = run("estimate", log, "--max-rank", 6).stdout
    assert text.startswith("cross-fit, 95% interval\nrank  propensity")
    assert " has the least data (" in text
    assert (
        "Not tested: whether one curve fits all pairs of ranks" in text or "One curve fits all pairs of ranks" in text
    )
    assert "90% interval" in run("estimate", log, "--level", 0.9).stdout


def test_a_harvest_gives_the_estimate_of_its_log(folder: Path, log: str, tmp_path: Path) -> None:
    whole = run("estimate", log, "--json", "--max-rank", 6).stdout
    assert run("estimate", folder / "1.parquet", folder / "2.parquet", "--json", "--max-rank", 6).stdout == whole
    for part in "12":
        made = run("harvest", folder / f"{part}.parquet", "-o", tmp_path / f"{part}.h.parquet", "--max-rank", 6)
        assert made.stdout == ""
        assert "written to" in made.stderr
    merged = tmp_path / "all.parquet"
    run("merge", tmp_path / "1.h.parquet", tmp_path / "2.h.parquet", "-o", merged)
    assert run("estimate", merged, "--json").stdout == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1.h.parquet", "2.h.parquet", "all.parquet"]
    for again in (tmp_path / "1.h.parquet", shutil.copy(tmp_path / "1.h.parquet", tmp_path / "copy.parquet")):
        message = fails("merge", tmp_path / "1.h.parquet", tmp_path / "2.h.parquet", again, "-o", merged)
        assert "would be counted twice" in message


def test_notes_go_to_stderr(folder: Path) -> None:
    made = run("estimate", folder / "replay.csv", "--json", "--weighting", "traffic", "--interval", "none")
    assert "Note: The weighting 'traffic' is biased in replay" in made.stderr
    assert json.loads(made.stdout)["weighting"] == "traffic"


def test_truth_is_printed_beside_the_estimate(tmp_path: Path) -> None:
    made = run("simulate", tmp_path / "log.csv.gz", "--queries", 60, "--max-rank", 4, "--rankers", "x, y")
    assert made.stdout == ""
    assert "2,400 rows of 600 page views" in made.stderr
    text = run("estimate", tmp_path / "log.csv.gz", "--truth", tmp_path / "log.truth.json", "--interval", "none").stdout
    assert re.search(r"rank +propensity +interval +truth", text)
    assert [line.split()[2] for line in text.splitlines()[2:6]] == ["1.000", "0.500", "0.333", "0.250"]
    assert set(posbias.check(posbias.ClickLog(tmp_path / "log.csv.gz")).page_views) == {"x", "y"}


def test_plots(log: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = run("estimate", log, "--plot", tmp_path / "c.png")
    assert made.stdout.startswith("cross-fit")
    picture = (tmp_path / "c.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.endswith(b"IEND\xaeB`\x82")
    assert len(picture) > 5000
    run("estimate", log, "--plot", tmp_path / "c.SVG", "--by", "device", "--json")
    assert ElementTree.parse(tmp_path / "c.SVG").getroot().tag.endswith("svg")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.SVG", "c.png"]


# ---- sets


def test_sets(log: str) -> None:
    sizes = posbias.intervention_sets(posbias.ClickLog(log), max_rank=4)
    told = json.loads(run("sets", log, "--max-rank", 4, "--json").stdout)
    assert told["max_rank"] == 4
    assert [(s["rank"], s["other_rank"]) for s in told["sets"]] == [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]
    assert all(s["pairs"] == sizes[s["rank"] - 1, s["other_rank"] - 1] for s in told["sets"])
    lines = run("sets", log, "--max-rank", 4).stdout.splitlines()
    assert lines[1].split() == ["1", "2", "3"]
    assert [line.split() for line in lines[2:]] == [
        ["2", str(sizes[0, 1]), "-", "-"],
        ["3", str(sizes[0, 2]), str(sizes[1, 2]), "-"],
        ["4", str(sizes[0, 3]), str(sizes[1, 3]), str(sizes[2, 3])],
    ]


# ---- Flags


@pytest.mark.parametrize("name", ["check", "harvest", "sets", "estimate", "weights"])
def test_every_argument_of_a_log_is_a_flag(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = {option for parameter in command.params for option in parameter.opts}
    # Only commands that learn from clicks, or evaluate on them, read a part of a log.
    parts = {"part", "split"} if name != "weights" else set()
    assert {f"--{f.name}" for f in fields(posbias.ClickLog) if f.name not in {"source", *parts}} <= options


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for option in command.params:
        assert isinstance(option, click.Argument) or option.help, option.name  # type: ignore[attr-defined]
    assert run(name, "--help").stdout.startswith(f"Usage: cli {name}")
    assert COMMANDS[name] in " ".join(run("--help").stdout.split())


def test_every_estimator_can_be_selected() -> None:
    command = cli.get_command(click.Context(cli), "estimate")
    assert command is not None
    choice = next(p for p in command.params if p.name == "estimator").type
    assert list(choice.choices) == list(ESTIMATORS)  # type: ignore[attr-defined]


def test_column_flags(folder: Path, log: str, tmp_path: Path) -> None:
    names = {"query_id": 'my "query"', "doc_id": "group by", "ranker": "order", "position": "pos", "clicked": "Click"}
    table = pq.read_table(log)
    columns = [names.get(n, n.replace("rank_", "rank of ")) for n in table.column_names]
    pq.write_table(table.rename_columns(columns), tmp_path / "log.parquet")
    flags = ["--query", 'my "query"', "--doc", "group by", "--ranker", "order", "--position", "pos", "--click", "Click"]
    flags += ["--ranks", "rank of {ranker}", "--max-rank", "6", "--interval", "none", "--json"]
    want = run("estimate", log, "--max-rank", 6, "--interval", "none", "--json").stdout
    assert run("estimate", tmp_path / "log.parquet", *flags).stdout == want
    with duckdb.connect(str(tmp_path / "log.duckdb")) as con:
        con.execute(f"CREATE TABLE clicks AS SELECT * FROM '{log}'")
        con.execute("CREATE TABLE other AS SELECT 1 AS x")
    database = tmp_path / "log.duckdb"
    for chosen in (["--table", "clicks"], ["--sql", "SELECT * FROM clicks"]):
        assert run("estimate", database, *chosen, *flags[-5:]).stdout == want
    run("simulate", tmp_path / "long.jsonl", "--layout", "long", "--queries", 60, "--max-rank", 4, "--aggregated")
    rankings = ["--rankings", tmp_path / "long.rankings.jsonl", "--rank", "rank"]
    counts = ["--impressions", "impressions", "--clicks", "clicks"]
    assert "long: a second table" in run("check", tmp_path / "long.jsonl", *rankings, *counts).stdout


# ---- Errors


ERRORS: dict[str, tuple[list[str], str]] = {
    "no such file": (["estimate", "nix.parquet"], "There is no file 'nix.parquet'"),
    "no such column": (["estimate", "{log}", "--query", "qid"], "Did you mean 'query_id'?"),
    "no such segment": (["estimate", "{log}", "--by", "devise"], "Did you mean 'device'?"),
    "memory": (["estimate", "{log}", "--memory-limit", "much"], "Give a size such as 2GB"),
    "no truth": (["estimate", "{log}", "--truth", "nix"], "There is no truth file 'nix'"),
    "not a truth": (["estimate", "{log}", "--truth", "{log}"], "is not a truth file"),
    "no clicks": (["estimate", "{log}", "--sql", "SELECT * REPLACE (0 AS clicked) FROM source"], "not a single click"),
    "no click at rank 1": (
        [
            "estimate",
            "{log}",
            "--json",
            "--sql",
            "SELECT * REPLACE (clicked * (position > 1)::INT AS clicked) FROM source",
        ],
        "there is no click at rank 1, in 1,200 impressions",
    ),
    "no click beyond": (
        ["estimate", "{log}", "--sql", "SELECT * REPLACE (clicked * (position = 1)::INT AS clicked) FROM source"],
        "there is no click below rank 1, in 6,000 impressions",
    ),
    "one ranker": (["estimate", "{log}", "--sql", "FROM source WHERE ranker = 'a'"], "Only one ranker"),
    "not a harvest": (["merge", "{log}", "-o", "x.parquet"], "harvest it first: posbias harvest"),
    "no harvest": (["merge", "nix.parquet", "-o", "x.parquet"], "There is no file 'nix.parquet'"),
    "no folder": (["harvest", "{log}", "-o", "nix/h.parquet"], "The folder 'nix' does not exist"),
    "a folder": (["harvest", "{log}", "-o", "."], "is a folder"),
    "plot in no folder": (["estimate", "{log}", "--plot", "nix/c.png"], "The folder 'nix' does not exist"),
    "simulate to nowhere": (["simulate", "nix/log.csv"], "nix"),
    "simulate what": (["simulate", "log.xlsx"], "ending in .parquet"),
    "simulate badly": (["simulate", "x.csv", "--similarity", "2"], "similarity must be a number from 0 to 1"),
}
USAGE: dict[str, tuple[list[str], str]] = {
    "no such command": (["chekc"], "Did you mean 'check'?"),
    "a log for a command": (["{log}"], "To check that log, run: posbias check {log}"),
    "nothing given": (["estimate"], "Missing argument 'LOG...'"),
    "no output": (["harvest", "{log}"], "Missing option '-o' / '--output'"),
    "no dialect": (["sql", "--table", "clicks"], "Choose from:\n  bigquery,\n"),
    # How the nearest flag is suggested depends on the version of click.
    "no such flag": (["estimate", "{log}", "--qery", "q"], "--query"),
    "no flag for a part of a word": (["estimate", "{log}", "--conf", "x=y"], "--spark-conf"),
    "no such estimator": (["estimate", "{log}", "--estimator", "best"], "'all-pairs', 'pivot-one', 'adjacent-chain'"),
    "level": (["estimate", "{log}", "--level", "95"], "95.0 is not in the range 0<x<1"),
    "rank": (["estimate", "{log}", "--max-rank", "1"], "1 is not in the range x>=2"),
    "plot": (["estimate", "{log}", "--plot", "c.gif"], "ends in .png, .svg, .pdf, not 'c.gif'"),
    "resamples of none": (
        ["estimate", "{log}", "--bootstrap", "99"],
        "Add --interval bootstrap, or leave out --bootstrap",
    ),
    "seed of nothing": (["estimate", "{log}", "--seed", "1"], "Add --interval bootstrap, or leave out --seed"),
    "seed of the jackknife": (
        ["estimate", "{log}", "--estimator", "all-pairs", "--seed", "1"],
        "--seed is the seed of the resamples",
    ),
    "both": (["estimate", "{log}", "--json", "--csv"], "exclude each other"),
    "truth in CSV": (["estimate", "{log}", "--csv", "--truth", "x"], "in a --plot, not by --csv. Leave one out"),
    "truth in JSON": (["estimate", "{log}", "--json", "--truth", "x"], "in a --plot, not by --json. Leave one out"),
    "traffic": (["simulate", "x.csv", "--traffic", "a,b"], "such as 0.9,0.1, not 'a,b'"),
    "segment": (["simulate", "x.csv", "--segment", "phone"], "expected NAME=ETA such as mobile=1.5"),
    "segment twice": (["simulate", "x.csv", "--segment", "phone=1", "--segment", "phone=2"], "'phone' is given twice"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_errors(kind: str, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    args, message = ERRORS[kind]
    stderr = fails(*(arg.replace("{log}", log) for arg in args))
    assert stderr.startswith("Error: ")
    assert message in stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", USAGE)
def test_bad_usage(kind: str, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    args, message = USAGE[kind]
    stderr = fails(*(arg.replace("{log}", log) for arg in args))
    assert message.replace("{log}", log) in stderr
    assert list(tmp_path.iterdir()) == []


def test_flags_that_are_not_close_are_not_suggested(log: str) -> None:
    message = fails("judgments", log, "--part", "test")
    assert "--part" in message
    assert "--spark-master" not in message


def test_a_harvest_is_not_a_log(log: str, tmp_path: Path) -> None:
    made = tmp_path / "h.parquet"
    run("harvest", log, "-o", made)
    for command in (["check", made], ["sets", made], ["harvest", made, "-o", tmp_path / "i.parquet"]):
        assert f"Estimate from it with: posbias estimate {made}" in fails(*command)
    assert "--max-rank, --by was decided when it was made" in fails("estimate", made, "--max-rank", 5, "--by", "device")
    assert "Merge harvests first: posbias merge" in fails("estimate", made, log)
    assert "--weighting uniform" in fails("estimate", made, "--weighting", "uniform")
    made.write_bytes(made.read_bytes()[:-20])
    assert "truncated" in fails("merge", made, "-o", tmp_path / "m.parquet")


def test_output_never_overwrites_the_input(folder: Path, tmp_path: Path) -> None:
    days = tmp_path / "days"
    days.mkdir()
    for part in "12":
        (days / f"{part}.parquet").write_bytes((folder / f"{part}.parquet").read_bytes())
    before = contents(tmp_path)
    one, link = days / "1.parquet", tmp_path / "link.parquet"
    link.symlink_to(one)
    for source in ([one], [days / "*.parquet"], [days], [days / "2.parquet", link], [link, "--rankings", one]):
        assert re.search("is the file that is being read|is in the folder", fails("harvest", *source, "-o", one))
    assert "the next run would read it as part of the log" in fails("harvest", days, "-o", days / "new.parquet")
    link.unlink()
    assert contents(tmp_path) == before
    run("harvest", one, "-o", tmp_path / "h.parquet")
    before = contents(tmp_path)
    assert "is the file that is being read" in fails("merge", tmp_path / "h.parquet", "-o", tmp_path / "h.parquet")
    assert contents(tmp_path) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def no_space(*args: Any, **options: Any) -> None:
    """Write a little, as a full disk does; a picture is drawn in memory first."""
    target = next((arg for arg in args if isinstance(arg, str) and arg.endswith(".part")), None)
    if target is not None:
        Path(target).write_bytes(b"half")
    raise OSError(errno.ENOSPC, "No space left on device", target)


@pytest.mark.parametrize("kind", ["harvest", "merge", "plot"])
def test_existing_output_is_kept_when_a_run_fails(
    kind: str, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    run("harvest", log, "-o", tmp_path / "in.parquet")
    for name, old in (("out.parquet", b"PAR1 old"), ("out.png", b"\x89PNG old")):
        (tmp_path / name).write_bytes(old)
    before = contents(tmp_path)
    commands: dict[str, list[Any]] = {
        "harvest": ["harvest", log, "-o", tmp_path / "out.parquet"],
        "merge": ["merge", tmp_path / "in.parquet", "-o", tmp_path / "out.parquet"],
        "plot": ["estimate", tmp_path / "in.parquet", "--interval", "none", "--plot", tmp_path / "out.png"],
    }
    monkeypatch.setattr(pq, "write_table", no_space)
    monkeypatch.setattr(Figure, "savefig", no_space)
    failed = run(*commands[kind], code=2)
    assert "No space left on device" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert contents(tmp_path) == before
    # And when it fails before there is anything to write.
    fails("harvest", log, "--query", "nix", "-o", tmp_path / "out.parquet")
    assert contents(tmp_path) == before


def test_unwritable_folder_is_an_error(log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere: what the system says is put into its mouth.
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    for command in (["harvest", log, "-o", tmp_path / "h.parquet"], ["estimate", log, "--plot", tmp_path / "c.png"]):
        assert "cannot be written to" in fails(*command)
    if os.path.isdir("/proc"):
        monkeypatch.undo()
        assert "/proc" in fails("harvest", log, "-o", "/proc/h.parquet")


# ---- The process


def test_main_prints_errors_without_a_traceback(log: str) -> None:
    with spawn("estimate", log, "--query", "qid") as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("Error: Column 'qid' is not in the log.")
    assert "Traceback" not in err


def test_closed_pipe_ends_quietly(log: str) -> None:
    with spawn("estimate", log, "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        process.wait(PATIENCE)
    assert (process.returncode, err) == (0, "")


def test_help_imports_nothing_heavy() -> None:
    heavy = ["numpy", "duckdb", "pyarrow", "scipy", "pandas", "polars", "matplotlib"]
    code = (
        "import sys\nfrom posbias.cli import main\n"
        f"for args in ([], ['-h'], ['--version'], *([c, '--help'] for c in {list(COMMANDS)})):\n"
        "    sys.argv = ['posbias', *args]\n"
        "    try: main()\n    except SystemExit as stop: assert stop.code in (0, 2), stop.code\n"
        f"print(*(set({heavy}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == ""
    assert "posbias check clicks.parquet" in done.stdout


class Terminal:
    """A command whose stderr is a terminal and whose stdout is not."""

    def __init__(self, *args: Any, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        self._process = spawn(*args, stderr=theirs, env=os.environ | {"TERM": "xterm", "COLUMNS": "100"} | environment)
        os.close(theirs)
        self._shown = b""

    def read(self, until: re.Pattern[bytes] | None = None) -> str:
        """Wait until words are shown, or the command ends, and return all that was shown."""
        end = time.monotonic() + PATIENCE
        while until is None or not until.search(self._shown):
            ready, _, _ = select.select([self._ours], [], [], max(0, end - time.monotonic()))
            try:
                part = os.read(self._ours, 10_000) if ready else b""
            except OSError:  # The other end of a terminal is gone.
                part = b""
            if not part:
                break
            self._shown += part
        return self._shown.decode()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def finish(self) -> tuple[int, str, str]:
        """Return how the command ended, what it printed and what the terminal showed."""
        try:
            shown = self.read()
            out, _ = self._process.communicate(timeout=PATIENCE)
        finally:
            self._process.kill()
            os.close(self._ours)
        return self._process.returncode, out, shown


def test_progress_bar_and_colours_appear_only_on_a_terminal(folder: Path) -> None:
    args = ("estimate", folder / "replay.csv", "--json", "--interval", "none")
    _, out, seen = Terminal(*args).finish()
    assert json.loads(out)["rankers"] == ["a", "b"]
    assert re.search(r"\r[A-Z][a-z]+ing .* +\d+%", seen)
    with spawn(*args) as process:
        assert process.communicate(timeout=PATIENCE) == (out, "")
    code, out, seen = Terminal("estimate", folder / "replay.csv", "--query", "qid").finish()
    assert (code, out) == (2, "")
    assert "\x1b[31mError: Column 'qid' is not in the log" in seen


def press_ctrl_c(terminal: Terminal) -> None:
    """Interrupt a command once its bar, which begins with "Starting", says what it is doing, and see it end."""
    terminal.read(until=re.compile(rb"\r(?!Starting)[A-Z][a-z]+ing"))
    terminal.interrupt()
    code, out, shown = terminal.finish()
    assert (code, out) == (130, ""), shown
    assert "Interrupted; nothing was written." in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("command", ["harvest", "check"])
def test_ctrl_c_while_reading_a_log(command: str, tmp_path: Path) -> None:
    """A log that takes forever: a view over more rows than anyone has."""
    (tmp_path / "spill").mkdir()
    with duckdb.connect(str(tmp_path / "log.duckdb")) as con:
        con.execute(
            "CREATE VIEW clicks AS SELECT i % 1000003 AS query_id, i AS doc_id, 'a' AS ranker, 1 AS position, "
            "hash(i) % 2 AS clicked FROM range(1000000000000) t(i)"
        )
    (tmp_path / "old.parquet").write_bytes(b"PAR1 old")
    before = contents(tmp_path)
    output = ["-o", tmp_path / "old.parquet"] if command == "harvest" else []
    terminal = Terminal(command, tmp_path / "log.duckdb", "--threads", 1, *output, TMPDIR=str(tmp_path / "spill"))
    press_ctrl_c(terminal)
    assert contents(tmp_path) == before
    assert list((tmp_path / "spill").iterdir()) == []


@pytest.mark.long
def test_ctrl_c_while_simulating(tmp_path: Path) -> None:
    run("simulate", tmp_path / "log.parquet", "--queries", 2)
    before = contents(tmp_path)
    press_ctrl_c(Terminal("simulate", tmp_path / "log.parquet", "--queries", 10_000_000))
    assert contents(tmp_path) == before


def test_a_simulation_that_cannot_fit_on_the_disk_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "big.parquet"
    refused = CliRunner().invoke(cli, ["simulate", str(output), "--queries", str(10**15)])
    assert refused.exit_code == 2
    assert "bytes left. Lower --queries" in " ".join(refused.output.split())
    assert not [*tmp_path.iterdir()]


def test_a_text_is_not_answered_with_flags(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some words\nmore words\n", "utf-8")
    done = run("estimate", tmp_path / "notes.txt", code=2)
    assert "does not look like a click log" in done.stderr
    assert "--query" not in done.stderr


def test_weights_say_how_to_make_the_estimate(tmp_path: Path) -> None:
    done = run("weights", "clicks.parquet", "-o", tmp_path / "w.parquet", code=2)
    assert "posbias estimate clicks.parquet --json > curve.json" in done.stderr
