"""Test the sections of help texts: every option once, common options first, Spark last."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from posbias.cli import COMMANDS, cli

SECTION = re.compile(r"^(\w[^\n]*):\n((?:  .*\n?)+)", re.MULTILINE)


def sections(command: str) -> dict[str, list[str]]:
    """Return the options under each heading, as they stand in a help text."""
    text = CliRunner().invoke(cli, [command, "--help"]).stdout
    return {title: re.findall(r"^  (?:-\w, )?(--[\w-]+)", body, re.MULTILINE) for title, body in SECTION.findall(text)}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_listed_once(command: str) -> None:
    known = cli.get_command(click.Context(cli), command)
    assert known is not None
    options = [param for param in known.params if isinstance(param, click.Option)]
    # `cli` gives -h to those that it calls.
    expected = sorted([option.opts[-1] for option in options] + ["--help"])
    assert sorted(name for names in sections(command).values() for name in names) == expected


@pytest.mark.parametrize("command", ["check", "harvest", "sets", "estimate", "evaluate", "plan", "report", "weights"])
def test_help_of_log_commands_ends_with_columns_engine_and_spark(command: str) -> None:
    listed = sections(command)
    titles = [title for title in listed if title != "Output"]
    assert titles[-5:] == ["Harvest", "Columns of the log", "Source of the log", "Engine", "Spark"]
    assert "--window" in listed["Harvest"]
    assert listed["Spark"] == ["--spark-master", "--spark-conf"]
    assert listed["Engine"] == ["--engine", "--memory-limit", "--threads"]
    assert listed["Columns of the log"][:2] == ["--query", "--doc"]


@pytest.mark.parametrize("command", COMMANDS)
def test_output_section_has_only_output_options(command: str) -> None:
    listed = sections(command)
    put_out = {
        "--output",
        "--overwrite",
        "--plot",
        "--json",
        "--csv",
        "--truth",
        "--columns",
        "--force",
        "--fail-on-difference",
        "--help",
    }
    assert {*listed.get("Output", [])} <= put_out
    if [*listed] != ["Options"]:
        assert {*listed.get("Options", [])} <= {"--help"}


def test_help_of_events_has_sections() -> None:
    listed = sections("events")
    assert [*listed] == ["Output", "Tracker", "Columns of the events", "Source of the events", "Engine", "Spark"]
    assert listed["Columns of the events"][-3:] == ["--click-impression", "--click-doc", "--first"]


def test_help_of_estimate_starts_with_the_curve_and_has_output_after_the_log() -> None:
    listed = sections("estimate")
    assert next(iter(listed)) == "Curve"
    assert [*listed].index("Output") == [*listed].index("Source of the log") + 1
    assert "--random" in listed["Curve"]
    assert listed["Curve"][:3] == ["--estimator", "--by", "--max-rank"]
    assert listed["Output"][:4] == ["--plot", "--columns", "--json", "--csv"]


def test_options_without_section_are_shown() -> None:
    from posbias.cli.options import SectionedCommand

    @click.command(cls=SectionedCommand, sections={"Output": ("output",)})
    @click.option("--output")
    @click.option("--news", help="Of no section.")
    @click.option("--spark-master")
    def made() -> None: ...

    text = CliRunner().invoke(made, ["--help"]).stdout
    assert re.search(r"Output:\n  --output TEXT\n  --news TEXT +Of no section", text)
    assert text.index("Spark:") > text.index("--help")
