"""Test the command as a process: signals, closed streams and full disks end it cleanly."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

import posbias
from posbias.simulation import write
from tests.support import ROOT

# Each starts a process, which takes its time.
pytestmark = pytest.mark.long

SCRIPT = "from posbias.cli import script; script()"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.csv"
    write(posbias.World(queries=60, repeats=6, max_rank=4), path)
    return path


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A log that takes forever: a view over more rows than anyone has."""
    path = tmp_path / "endless.duckdb"
    with duckdb.connect(str(path)) as con:
        con.execute(
            "CREATE VIEW clicks AS SELECT i % 1000003 AS query_id, i AS doc_id, 'a' AS ranker, 1 AS position, "
            "hash(i) % 2 AS clicked FROM range(1000000000000) t(i)"
        )
    return path


def shell(line: str, *args: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which $posbias and $experiments are the commands."""
    line = line.replace("$posbias", f"{sys.executable} -c '{SCRIPT}'")
    line = line.replace("$experiments", f"PYTHONPATH='{ROOT}' {sys.executable} -m experiments")
    return subprocess.run(
        ["sh", "-c", line, "sh", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


def _heed() -> None:
    """Heed what the tests themselves may have been told to ignore, as by nohup."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def start(*args: Any, script: str = SCRIPT, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start the command, and see that it ends with the test: whoever waits for one that goes on waits for ever."""
    command = [sys.executable, "-c", script, *map(str, args)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, preexec_fn=_heed, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(process: subprocess.Popen[str], begun: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not begun():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


COMMANDS = ["check {log}", "estimate {log} --json", "estimate {log}", "sets {log}", "sql --dialect duckdb --table t"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_handled(command: str, streams: str, log: Path) -> None:
    done = shell(f"$posbias {command.format(log=log)} {streams}")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    if ">&-" not in streams.replace("2>&-", ""):
        assert done.stdout


YOUNGER = ["compare {curve} {curve}", "history show {history}", "diagnose {log}", "plan {log} --no-scenarios --json"]


@pytest.mark.parametrize("command", YOUNGER)
def test_closed_streams_are_handled_by_other_commands(command: str, log: Path, tmp_path: Path) -> None:
    curve = posbias.AllPairs().fit(posbias.harvest(posbias.ClickLog(log))).curve()
    curve.save(tmp_path / "c.json")
    posbias.History().add(curve, "2026-03-01").save(tmp_path / "h.parquet")
    line = command.format(log=log, curve=tmp_path / "c.json", history=tmp_path / "h.parquet")
    for streams in (">&-", "2>&-", "<&- >&- 2>&-"):
        done = shell(f"$posbias {line} {streams}")
        assert done.returncode == 0
        assert "Traceback" not in done.stderr
    assert "No space left on device" in shell(f"$posbias {line} > /dev/full").stderr


def test_closed_streams_are_not_replaced_by_opened_files(log: Path, tmp_path: Path) -> None:
    done = shell(f"$posbias harvest {log} -o {tmp_path}/h.parquet <&- >&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert posbias.Harvest.load(tmp_path / "h.parquet").page_views == posbias.harvest(posbias.ClickLog(log)).page_views


def test_errors_with_closed_stderr_set_the_exit_code(log: Path) -> None:
    assert shell(f"$posbias estimate {log} --query nix 2>&-").returncode == 2
    assert shell(f"$posbias estimate {log} --query nix 2>&1 >&- | true").returncode == 0
    done = shell(f"($posbias estimate {log} --by nix; echo $? >&3) 2>&1 3>&2 | true")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "command", ["estimate {log} --json", "check {log}", "sql --dialect duckdb --table t", "--help"]
)
def test_full_disk_behind_standard_output_is_one_error(
    command: str, unbuffered: str, log: Path, tmp_path: Path
) -> None:
    """A limit of 512 bytes stands for a disk that is full after them: the system writes a part, and no error."""
    line = f"PYTHONUNBUFFERED={unbuffered} $posbias {command.format(log=log)}"
    for done in (shell(f"{line} > /dev/full"), shell(f"ulimit -f 1; {line} > {tmp_path}/cut")):
        assert done.returncode == 2
        assert done.stderr.count("Error") == 1
        assert "No space left on device" in done.stderr or "File too large" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("output", ["''", "/dev/null", "/dev/stdout", "pipe", "socket", "link", "."])
@pytest.mark.parametrize("command", ["harvest {log} -o", "estimate {log} --plot", "merge {h} -o", "simulate"])
def test_output_to_special_files_is_rejected(command: str, output: str, log: Path, tmp_path: Path) -> None:
    posbias.harvest(posbias.ClickLog(log)).save(tmp_path / "h.parquet")
    ending = {"harvest": "", "merge": "", "estimate": ".png", "simulate": ".csv"}[command.split()[0]]
    os.mkfifo(tmp_path / f"pipe{ending}")
    (tmp_path / f"link{ending}").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(tmp_path / f"socket{ending}"))
        before = sorted(tmp_path.iterdir())
        named = output if output in ("''", ".") or output.startswith("/") else output + ending
        done = shell(f"$posbias {command.format(log=log, h='h.parquet')} {named}", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before
    assert Path("/dev/null").is_char_device()
    if not ending:
        assert "empty" in done.stderr or "is a " in done.stderr


@pytest.mark.parametrize("name", ["log.truth.json", "log.rankings.csv"])
def test_output_files_of_a_simulation_are_checked_before_it_starts(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    done = shell("$posbias simulate log.csv --layout long --queries 100000000", cwd=tmp_path)
    assert done.returncode == 2
    assert f"{name}' is a pipe" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a.csv", "a.png", "a.txt"])
def test_output_files_of_an_experiment_are_checked_before_it_starts(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    done = shell("$experiments a --output .", cwd=tmp_path)
    assert done.returncode == 2
    assert f"{name}' is a pipe" in done.stderr
    assert "is empty" in shell("$experiments a --output ''", cwd=tmp_path).stderr


# ---- Signals


@pytest.mark.parametrize("module", ["click", "posbias.cli.commands", "posbias.cli.check", "duckdb", "numpy"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_during_imports_ends_cleanly(module: str, number: int, log: Path) -> None:
    """What is sent in the first tenth of a second arrives while something is being imported."""
    code = (
        "import sys, os\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), {int(number)})\n"
        f"sys.meta_path.insert(0, Finder())\n{SCRIPT}"
    )
    command = [sys.executable, "-c", code, "check", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + number
    said = "Interrupted" if number == signal.SIGINT else "Stopped by SIGTERM"
    assert done.stderr.strip() == f"{said}; nothing was written."
    assert done.stdout == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_sigterm_while_reading_a_log_ends_cleanly(number: signal.Signals, endless: Path, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    output = tmp_path / "h.parquet"
    output.write_bytes(b"PAR1 old")
    options = {"env": os.environ | {"TMPDIR": str(spill)}}
    with start("harvest", endless, "--threads", 1, "-o", output, **options) as process:
        # Not the file by which Python itself tries whether the folder can be written to.
        wait_until(process, lambda: any(spill.glob("posbias-*")))
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, "")
    said = "Interrupted" if number == signal.SIGINT else f"Stopped by {number.name}"
    assert err.strip() == f"{said}; nothing was written."
    assert list(spill.iterdir()) == []
    assert output.read_bytes() == b"PAR1 old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["endless.duckdb", "h.parquet", "spill"]


DEAF = """
import os, signal, time
import sys
import posbias.cli
from tests.support import ROOT

class Deaf:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        time.sleep(0)

def run(*_):
    del_me = Deaf()
    del del_me
    time.sleep(60)
    return 0

sys.modules["posbias.cli.main"]._run = run
posbias.cli.script()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_process_where_exceptions_are_swallowed(number: signal.Signals) -> None:
    with start(script=DEAF.format(name=number.name)) as process:
        _, err = process.communicate(timeout=50)
    said = "Interrupted" if number == signal.SIGINT else f"Stopped by {number.name}"
    assert (process.returncode, err.strip()) == (128 + number, f"{said}; nothing was written.")


def test_ignored_hangup_signal_stays_ignored(log: Path) -> None:
    done = shell(f"trap '' HUP; $posbias estimate {log} --json & kill -HUP $!; wait $!")
    assert done.returncode == 0
    assert done.stdout.startswith("{")


def test_temporary_files_of_a_killed_run_are_removed_by_the_next(endless: Path, log: Path, tmp_path: Path):
    spill = tmp_path / "spill"
    spill.mkdir()
    options = {"env": os.environ | {"TMPDIR": str(spill)}}
    others = [spill / "posbias-not-ours", spill / "elsewhere"]
    for folder in others:
        folder.mkdir()
    with (
        start("check", endless, "--threads", 1, **options) as killed,
        start("check", endless, "--threads", 1, **options) as alive,
    ):
        for process in (killed, alive):
            wait_until(process, lambda: len(list(spill.glob("posbias-*/.held"))) == 2)
        killed.kill()
        killed.communicate()
        assert len(list(spill.glob("posbias-*/.held"))) == 2
        with start("check", log, **options) as following:
            following.communicate(timeout=60)
        assert following.returncode == 0
        assert len(list(spill.glob("posbias-*/.held"))) == 1
        alive.terminate()
        alive.communicate(timeout=60)
    assert alive.returncode == 128 + signal.SIGTERM
    assert sorted(spill.iterdir()) == sorted(others)


@pytest.mark.parametrize("kilobytes", [150_000, 300_000, 800_000, 2_000_000])
def test_too_little_address_space_is_one_message(kilobytes: int, log: Path) -> None:
    """Libraries would end in a segmentation fault, or hang."""
    done = shell(f'ulimit -v {kilobytes}; $posbias check "$1"', log)
    assert done.returncode == 2
    [message] = done.stderr.splitlines()
    assert message.startswith(f"Error: This process may use {kilobytes * 1024 // 10**6:,} MB of address space, and")


def test_enough_address_space_is_enough(log: Path) -> None:
    done = shell('ulimit -v 2500000; $posbias check "$1"', log)
    assert done.returncode == 0, done.stderr
