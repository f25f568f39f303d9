"""The command `python -m experiments`: run experiments and write their numbers, figures and verdicts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from posbias._text import printable, wrap
from posbias.cli import main
from posbias.cli.commands import ErrorReportingCommand
from posbias.cli.options import SectionedCommand, print_to_stderr

if TYPE_CHECKING:
    from experiments.outcomes import Outcome

# A copy of the names in `experiments.registry`: importing that module would make --help wait for NumPy and DuckDB.
_PAPER = ("synthetic", "a", "b", "c", "d", "e", "f", "arxiv", "drive")
# These take longer than all experiments of the paper together, so "all" leaves them out.
_OURS = (
    "estimators",
    "coverage",
    "diagnosis",
    "alarms",
    "crawlers",
    "drift",
    "pooling",
    "planning",
    "evaluation",
    "learning",
    "ranker",
    "doubly-robust",
    "judgments",
    "audit",
)
# Of `experiments.real`: real logs that readers fetch themselves, and published experiments.
_REAL = ("sogou", "yandex", "baidu", "open-bandit", "seznam", "wikimedia", "magnani")


class _Command(ErrorReportingCommand, SectionedCommand):
    """Report errors in the same way as the command `posbias`."""


@click.command(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", type=click.Choice([*_PAPER, *_OURS, "all", "real", "peers"]), metavar="NAME")
@click.argument("dataset", type=click.Choice(_REAL), metavar="[DATASET]", required=False)
@click.option("--quick", is_flag=True, help="Use fewer queries, runs and points: each takes under a minute.")
@click.option(
    "--data",
    metavar="PATH",
    help="Use this LETOR file of judgments, such as Yahoo's set1.train.txt.  [default: generated judgments] With real: "
    "the file or folder of the data.",
)
@click.option(
    "--output",
    metavar="FOLDER",
    default="build/experiments",
    show_default=True,
    help="Write the results to this folder.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Random seed; the same seed gives the same numbers.",
)
@click.option(
    "--setting", metavar="TEXT", help="Of audit or peers, run only the settings with this text in their names."
)
def command(
    name: str, dataset: str | None, quick: bool, data: str | None, output: str, seed: int, setting: str | None
) -> None:
    """Run an experiment: reproduce a figure of the paper, or test a claim of posbias.

    Experiments of the paper: synthetic (recovery of the true curve), a to f (robustness), arxiv and drive (the two
    real-world studies, simulated). The name all runs these nine.

    Experiments of posbias: estimators (errors compared with each other and with the lowest possible error), coverage
    (how often confidence intervals contain the truth; takes more than an hour), diagnosis (false alarms and detected
    problems), alarms (warnings of any kind about healthy and about broken logs), crawlers (how often check finds
    crawlers), drift (how often a change of the curve is reported), pooling (accuracy gained by pooling segments),
    planning (accuracy of forecast standard errors), evaluation (how often clicks identify the better of two rankings),
    learning (quality gained by training rankers on corrected clicks), ranker (what fit_ranker gains), doubly-robust
    (whether a relevance model helps), judgments (how well they agree with the truth) and audit (coverage, errors and
    warnings on logs of another simulator; continues after an interruption). The name all leaves these out.

    Real data: real NAME estimates the curve of a public log, or repeats a published experiment, and compares it with
    what others published. The names are sogou, yandex, baidu, open-bandit, seznam, wikimedia and magnani.
    docs/real_data.md says where to fetch the data.

    Other packages: peers compares error, time and memory with ultr-bias-toolkit, PyClick and clax on simulated logs of
    1 and 10 million rows. It installs them into .venv-peer.

    Each experiment writes NAME.csv, NAME.png and NAME.txt to the folder. It prints each claim, whether the claim
    holds, and the measured numbers.
    """
    from pathlib import Path

    from experiments.outcomes import summarize
    from experiments.peers import run_peers
    from experiments.real import run_real
    from experiments.registry import run
    from posbias._files import writable
    from posbias.errors import PosbiasError
    from posbias.progress import show_progress

    if (name == "real") != (dataset is not None):
        raise PosbiasError(f"Name a real log after real, and only there: {', '.join(f'real {log}' for log in _REAL)}.")
    if not output:
        raise PosbiasError("The name of the output folder is empty. Name a folder with --output.")
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise PosbiasError(f"{output!r} is a file. Name a folder with --output.")
    folder.mkdir(parents=True, exist_ok=True)
    chosen = list(_PAPER) if name == "all" else [name if dataset is None else f"{name}-{dataset}"]
    for path in [folder / f"{each}{suffix}" for each in chosen for suffix in (".csv", ".png", ".txt")]:
        writable(path)
    holding = claims = undecided = 0
    done: list[str] = []
    try:
        with show_progress() as progress:
            if dataset is not None:
                outcomes: Iterable[Outcome] = [run_real(dataset, data, folder)]
            elif name == "peers":
                outcomes = [run_peers(quick=quick, seed=seed, setting=setting, progress=progress)]
            else:
                outcomes = run(
                    chosen, quick=quick, data=data, seed=seed, folder=folder, setting=setting, progress=progress
                )
            for outcome in outcomes:
                outcome.save(folder)
                done.append(outcome.name)
                holding += sum(verdict.holds is True for verdict in outcome.verdicts)
                undecided += sum(verdict.holds is None for verdict in outcome.verdicts)
                claims += len(outcome.verdicts)
                lines = (line for text in outcome.to_text().split("\n") for line in wrap(printable(text)))
                click.echo("\n".join([outcome.name, *lines, ""]))
    except KeyboardInterrupt:
        if not done:
            raise
        print_to_stderr(printable(f"Interrupted; {', '.join(done)} already written to {output}."))
        raise click.exceptions.Exit(130) from None
    verdict = f"{summarize(holding, claims, undecided)} " if claims else ""
    summary = f"{verdict}Numbers and figures are in {output}."
    click.echo("\n".join(wrap(printable(summary), breaking=False)))


if __name__ == "__main__":
    main(lambda: command, "python -m experiments")
