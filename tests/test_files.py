"""Files are written whole or not at all, and only where a file belongs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import posbias
from posbias import _files as writing
from posbias._files import (
    CURVE,
    HARVEST,
    HISTORY,
    PICTURE,
    REPORT,
    Kind,
    atomic_write,
    atomic_write_all,
    atomic_write_folder,
    check_replaceable,
    lock_file,
)
from posbias.cli import cli
from posbias.curves.curve import save_plot
from posbias.errors import PosbiasError


def write(path: Path, text: str) -> None:
    with atomic_write(path) as draft:
        Path(draft).write_text(text)


def test_the_old_file_stands_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    with atomic_write(path) as draft:
        Path(draft).write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["x"]


def test_a_failed_write_leaves_everything_as_it_was(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")

    def write_halves() -> None:
        with atomic_write_all([path, tmp_path / "y"]) as drafts:
            for draft in drafts:
                Path(draft).write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_halves()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x"]


def test_permissions_stay_and_links_are_followed(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_pipes_devices_folders_and_missing_files_are_errors(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, word in ((tmp_path / "pipe", "pipe"), ("/dev/null", "device"), (tmp_path, "folder"), ("", "empty")):
        with pytest.raises(PosbiasError, match=word):
            write(path, "x")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(PosbiasError, match="does not exist"):
        write(tmp_path / "no" / "x", "x")


def test_what_a_killed_run_left_is_cleaned_up_by_the_next_and_what_another_is_writing_is_not(tmp_path):
    code = (
        "import sys, time; from posbias._files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as draft:\n    print(draft, flush=True); time.sleep(600)"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path / name], stdout=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    try:
        dead, alive = (Path(run.stdout.readline().strip()) for run in runs)
        runs[0].send_signal(signal.SIGKILL)
        runs[0].wait()
        assert dead.exists()
        write(tmp_path / "c", "new")
        assert not dead.exists()
        assert alive.exists()
    finally:
        for run in runs:
            run.kill()
            run.communicate()


def test_a_draft_that_another_run_sweeps_before_it_is_held_is_made_anew(tmp_path, monkeypatch):
    """The sweeper comes between making a file and holding it: once with the lock still in its hands, once after."""
    held, swept = writing._lock, []

    def late(descriptor):
        if len(swept) < 2:
            [draft] = tmp_path.glob(".posbias-*")
            draft.unlink()
            swept.append(draft)
            return len(swept) == 1 and held(descriptor)
        return held(descriptor)

    monkeypatch.setattr(writing, "_lock", late)
    with writing.atomic_write(tmp_path / "c") as draft:
        Path(draft).write_text("new")
    assert len(swept) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert (tmp_path / "c").read_text() == "new"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="lists open files as Linux does")
def test_no_draft_is_open_when_it_is_renamed_where_there_are_no_locks(tmp_path, monkeypatch):
    """Windows has no fcntl, and does not rename an open file."""

    def open_drafts():
        folder = Path("/proc/self/fd")
        return [name for fd in os.listdir(folder) if (name := os.path.realpath(folder / fd)).startswith(str(tmp_path))]

    with atomic_write(tmp_path / "a"):
        assert len(open_drafts()) == 1
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with atomic_write(tmp_path / "a") as draft:
        Path(draft).write_text("new", "utf-8")
        assert open_drafts() == []
    assert (tmp_path / "a").read_text("utf-8") == "new"
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_takes_its_place_only_once_it_is_complete(tmp_path):
    path = tmp_path / "log"
    for text in ("one", "two"):
        with atomic_write_folder(path) as draft:
            Path(draft).mkdir()
            (Path(draft) / "part-0.parquet").write_text(text)
            assert not path.exists() or (path / "part-0.parquet").read_text() == "one"
        assert (path / "part-0.parquet").read_text() == text
    with pytest.raises(ValueError, match="stop"), atomic_write_folder(path):
        raise ValueError("stop")
    assert (path / "part-0.parquet").read_text() == "two"
    with pytest.raises(PosbiasError, match="does not exist"), atomic_write_folder(tmp_path / "no" / "log"):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


def test_a_folder_with_files_of_others_is_not_replaced(tmp_path):
    for name, found in [
        ("letter.txt", "such as 'letter.txt'"),
        ("sub/part-0.parquet", "such as 'sub/'"),
        ("part-0.parquet", "such as 'part-0.parquet'"),
    ]:
        home = tmp_path / name.replace("/", "_") / "home"
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text("mine")
        with pytest.raises(PosbiasError, match=f"did not write, .*{found}"), atomic_write_folder(home) as draft:
            Path(draft).mkdir()
        assert (home / name).read_text() == "mine"


def test_a_file_that_was_added_to_a_folder_of_ours_is_not_lost(tmp_path):
    with atomic_write_folder(tmp_path / "log") as draft:
        Path(draft).mkdir()
        (Path(draft) / "part-0.parquet").write_text("ours")
    (tmp_path / "log" / "part-1.parquet").write_text("mine")
    with pytest.raises(PosbiasError, match=r"such as 'part-1\.parquet'"), atomic_write_folder(tmp_path / "log"):
        pass
    assert (tmp_path / "log" / "part-1.parquet").read_text() == "mine"


def test_a_file_that_comes_while_a_folder_is_written_is_not_lost(tmp_path):
    with atomic_write_folder(tmp_path / "log") as draft:
        Path(draft).mkdir()

    def write(draft: str) -> None:
        Path(draft).mkdir()
        (tmp_path / "log" / "letter.txt").write_text("mine")

    with pytest.raises(PosbiasError, match=r"letter\.txt"), atomic_write_folder(tmp_path / "log") as draft:
        write(draft)
    assert (tmp_path / "log" / "letter.txt").read_text() == "mine"


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    script = f"""
import os, posbias._files as files
from pathlib import Path
def write(text):
    with files.atomic_write_folder({str(tmp_path / "log")!r}) as draft:
        Path(draft).mkdir()
        (Path(draft) / "part-0.parquet").write_text(text)
write("old")
rename = os.rename
def kill_after(source, target):
    rename(source, target)
    os.kill(os.getpid(), 9)
os.rename = kill_after
write("new")
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert not (tmp_path / "log").exists()
    with atomic_write_folder(tmp_path / "another") as draft:
        Path(draft).mkdir()
    assert (tmp_path / "log" / "part-0.parquet").read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["another", "log"]


def test_folders_of_killed_runs_are_cleaned_up_and_those_at_work_are_not(tmp_path):
    left = tmp_path / ".posbias-0.part"
    left.mkdir()
    (left / ".held").touch()
    with atomic_write_folder(tmp_path / "one") as one:
        Path(one).mkdir()
        with atomic_write_folder(tmp_path / "two") as two:
            Path(two).mkdir()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one", "two"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One file of each kind that is written, and some that people have."""
    folder = tmp_path_factory.mktemp("outputs")
    names = ("harvest", "history", "report", "curve", "png", "svg", "pdf", "parquet", "script", "page", "csv", "json")
    made = {name: folder / f"some.{name}" for name in names}
    log = posbias.simulate(posbias.World(queries=60, max_rank=3))
    harvest = posbias.harvest(posbias.ClickLog(log), max_rank=3)
    harvest.save(made["harvest"])
    curve = posbias.CrossFit().fit(harvest).curve()
    curve.save(made["curve"])
    posbias.History().add(curve, "2026-01-01").save(made["history"])
    posbias.report(harvest).save(made["report"])
    for name in ("png", "svg", "pdf"):
        save_plot(curve, made[name])
    pq.write_table(log, made["parquet"])
    made["script"].write_text("print('posbias.harvest')\n")
    made["page"].write_text("<!DOCTYPE html>\n<title>posbias</title>\n")
    made["csv"].write_text("query_id,doc_id\n1,2\n")
    made["json"].write_text('{"steps": []}\n')
    return made


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (HARVEST, {"harvest"}),
        (HISTORY, {"history"}),
        (REPORT, {"report"}),
        (CURVE, {"curve"}),
        (PICTURE, {"png", "svg", "pdf"}),
    ],
)
def test_only_what_is_of_its_kind_is_replaced(kind: Kind, own: set[str], outputs: dict[str, Path]) -> None:
    for name, path in outputs.items():
        refused = pytest.raises(PosbiasError, match=f"exists and is not {kind.name}, so it is not replaced. Choose")
        with nullcontext() if name in own else refused, atomic_write(path, kind) as draft:
            Path(draft).write_bytes(path.read_bytes())


def test_what_is_empty_or_damaged_is_replaced(outputs: dict[str, Path], tmp_path: Path) -> None:
    for data in (b"", outputs["harvest"].read_bytes()[:-3]):
        (tmp_path / "x").write_bytes(data)
        check_replaceable(tmp_path / "x", HARVEST)


def test_commands_say_so_before_they_work(outputs: dict[str, Path]) -> None:
    harvest, log = str(outputs["harvest"]), str(outputs["parquet"])
    before = {name: path.read_bytes() for name, path in outputs.items()}
    linked = outputs["csv"].with_name("link.png")
    linked.symlink_to(outputs["csv"])
    for command in (
        ["harvest", log, "-o", str(outputs["script"])],
        ["merge", harvest, "-o", str(outputs["report"])],
        ["report", harvest, "-o", str(outputs["page"])],
        ["estimate", harvest, "--plot", str(linked)],
    ):
        said = CliRunner().invoke(cli, command)
        assert said.exit_code == 2
        assert "so it is not replaced" in said.stderr
    assert before == {name: path.read_bytes() for name, path in outputs.items()}
    said = CliRunner().invoke(cli, ["harvest", log, "--max-rank", "3", "-o", harvest])
    assert said.exit_code == 0, said.stderr


HOLDER = """
import sys, time
from posbias._files import lock_file
with lock_file(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_locked_file_says_so_and_a_killed_process_locks_nobody_out(tmp_path):
    path = tmp_path / "x"
    environment = os.environ | {"PYTHONPATH": str(Path(posbias.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with (
            pytest.raises(PosbiasError, match="Another process has been changing"),
            lock_file(path, timeout=0.2),
        ):
            pass
        holder.kill()
    assert os.listdir(tmp_path) == [".x.lock"]
    with lock_file(path, timeout=0.2):
        assert os.listdir(tmp_path) == [".x.lock"]
    assert os.listdir(tmp_path) == []
