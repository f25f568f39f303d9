"""The command `posbias evaluate`."""

from __future__ import annotations

from typing import Any

import click

from posbias.cli.options import (
    LOG_SECTIONS,
    SectionedCommand,
    engine_from_flags,
    estimator_option,
    force_option,
    json_option,
    level_option,
    log_from_flags,
    log_options,
    max_rank_and_engine_options,
    part_options,
    plot_option,
    print_findings,
    print_json,
    refuse_unwritable_plot,
)


@click.command(
    cls=SectionedCommand,
    sections={
        "Rankings": ("judged", "metric", "score", "estimator", "level"),
        **LOG_SECTIONS,
        "Output": ("as_json", "plot"),
    },
)
@log_options
@part_options
@click.option(
    "--ranking",
    "judged",
    multiple=True,
    required=True,
    metavar="FILE",
    help="File with query, document and score or rank, or ranker:NAME for a ranker of the log; may be repeated.",
)
@click.option(
    "--metric",
    default="dcg",
    show_default=True,
    metavar="NAME",
    help="Metric: dcg or precision (of the top M, or as in dcg@5), or rank, the average rank.",
)
@click.option(
    "--score",
    metavar="COLUMN",
    help="Column of the score in rankings, highest first; none to rank by --rank.  [default: score, else --rank]",
)
@estimator_option(help="Estimator of the propensities.")
@level_option
@json_option
@plot_option("Draw the ratios")
@force_option
@max_rank_and_engine_options
def evaluate(
    judged: tuple[str, ...],
    metric: str,
    score: str | None,
    estimator: str | None,
    level: float,
    as_json: bool,
    plot: str | None,
    **flags: Any,
) -> None:
    """Evaluate new rankings on clicks that are already logged.

    A ranking is a file with query, document and score (or rank); its columns have the same names as in the log. It is
    compared with the logged rankers. The intervals include the uncertainty of the propensities.

    Clicks that a ranking learned from must not evaluate it. Learn from a part of the log, and evaluate on the other:

    \b
    posbias weights LOG --part train --estimate curve.json -o weights.parquet
    posbias evaluate LOG --part test --ranking new.parquet
    """
    from posbias.engines.files import refuse_overwriting
    from posbias.learning.evaluate import evaluate as evaluate_rankings

    if flags["engine"] == "spark":
        # Refused here too, before a session is started.
        raise click.UsageError("Only DuckDB can join rankings with a log. Leave out --engine spark.")
    refuse_unwritable_plot(plot)
    if plot is not None:
        refuse_overwriting(plot, [*flags["log"], *judged])
    settings = {name: flags.pop(name) for name in ("max_rank", "force")}
    log = log_from_flags(flags)
    with engine_from_flags(flags) as engine:
        evaluation = evaluate_rankings(
            log, list(judged), metric=metric, score=score, estimator=estimator, level=level, **settings, **engine
        )
    # Printed after the progress bar has gone: it would overwrite them.
    print_findings(evaluation.findings)
    if as_json:
        print_json(evaluation.to_dict())
    else:
        click.echo(evaluation.to_text())
    if plot is not None:
        evaluation.save_plot(plot)
