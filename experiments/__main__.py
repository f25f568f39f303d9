"""The command `python -m experiments`: run an experiment, and write its numbers, picture and verdict."""

from __future__ import annotations

import click

from posbias._text import printable, wrap
from posbias.cli import main
from posbias.cli.commands import ErrorReportingCommand
from posbias.cli.options import SectionedCommand, print_to_stderr

# Also in `experiments.registry`, whose import would make --help wait for numpy and the engine.
_PAPER = ("synthetic", "a", "b", "c", "d", "e", "f", "arxiv", "drive")
# Ours take longer than all of these, and are not among "all".
_OURS = ("estimators", "coverage", "diagnosis", "drift", "pooling", "planning", "evaluation", "learning")


class _Command(ErrorReportingCommand, SectionedCommand):
    """The command, with its errors reported as those of `posbias` are."""


@click.command(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", type=click.Choice([*_PAPER, *_OURS, "all"]), metavar="NAME")
@click.option("--quick", is_flag=True, help="Fewer queries, runs and points: each in under a minute.")
@click.option(
    "--data", metavar="PATH", help="A LETOR file of judgments such as Yahoo's set1.train.txt.  [default: generated]"
)
@click.option("--output", metavar="FOLDER", default="build/experiments", show_default=True, help="Where to write.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="The same seed gives the same numbers."
)
def command(name: str, quick: bool, data: str | None, output: str, seed: int) -> None:
    """Reproduce a figure of the paper or of ours: numbers, picture and verdict.

    NAME is synthetic (the recovered curve), a to f (robustness), arxiv, drive, or all for these of the paper. Ours are
    estimators (their errors against each other and against what is possible), coverage (how often intervals hold the
    truth), which takes more than an hour, diagnosis (how often it alarms where the model holds, and where it does not),
    drift (how often curves are said to differ), pooling (what segments gain by each other), planning (whether the
    forecasts of a plan come true), evaluation (how often the better of two rankings is chosen by clicks) and learning
    (what rankers gain that learn from corrected clicks); none of them is among all. Each writes NAME.csv, NAME.png and
    NAME.txt into the folder, and prints for each claim whether it holds, with our numbers.
    """
    from pathlib import Path

    from experiments.outcomes import summarize
    from experiments.registry import run
    from posbias._files import writable
    from posbias.errors import PosbiasError
    from posbias.progress import show_progress

    if not output:
        raise PosbiasError("The folder to write to is empty. Name one with --output.")
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise PosbiasError(f"{output!r} is a file. Name a folder to write to with --output.")
    folder.mkdir(parents=True, exist_ok=True)
    chosen = list(_PAPER) if name == "all" else [name]
    for path in [folder / f"{one}{ending}" for one in chosen for ending in (".csv", ".png", ".txt")]:
        writable(path)
    held = claims = undecided = 0
    done: list[str] = []
    try:
        with show_progress() as progress:
            for outcome in run(chosen, quick=quick, data=data, seed=seed, progress=progress):
                outcome.save(folder)
                done.append(outcome.name)
                held += sum(verdict.holds is True for verdict in outcome.verdicts)
                undecided += sum(verdict.holds is None for verdict in outcome.verdicts)
                claims += len(outcome.verdicts)
                told = (line for text in outcome.to_text().split("\n") for line in wrap(printable(text)))
                click.echo("\n".join([outcome.name, *told, ""]))
    except KeyboardInterrupt:
        if not done:
            raise
        print_to_stderr(printable(f"Interrupted; {', '.join(done)} had been written to {output}."))
        raise click.exceptions.Exit(130) from None
    summary = f"{summarize(held, claims, undecided)} Numbers and pictures are in {output}."
    click.echo("\n".join(wrap(printable(summary), breaking=False)))


if __name__ == "__main__":
    main(lambda: command, "python -m experiments")
