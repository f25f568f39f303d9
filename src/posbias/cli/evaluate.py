"""posbias evaluate."""

from __future__ import annotations

from typing import Any

import click

from posbias.cli.options import (
    ABOUT_THE_LOG,
    Sectioned,
    engine_options,
    force_option,
    level_option,
    log_options,
    make_log,
    plot_file,
    running,
    show_json,
    warn,
)
from posbias.estimators import FROM_HARVESTS

# As the registry has them, whose import would take longer than any help text may.


@click.command(
    cls=Sectioned,
    sections={
        "Rankings": ("judged", "metric", "score", "estimator", "level"),
        **ABOUT_THE_LOG,
        "Output": ("as_json", "plot"),
    },
)
@log_options
@click.option(
    "--ranking",
    "judged",
    multiple=True,
    required=True,
    metavar="FILE",
    help="A ranking: query, document and score or rank; or ranker:NAME for one of the log's. May be repeated.",
)
@click.option(
    "--metric",
    default="dcg",
    show_default=True,
    metavar="NAME",
    help="dcg or precision, of the top M or as in dcg@5; or rank, the average rank.",
)
@click.option(
    "--score",
    metavar="COLUMN",
    help="Score in rankings, the highest first; none ranks by --rank, the lowest first.  [default: score, or --rank]",
)
@click.option(
    "--estimator",
    type=click.Choice(list(FROM_HARVESTS)),
    help="Of the propensities.  [default: cross-fit; all-pairs for a harvest of sums]",
)
@level_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--plot", metavar="FILE", callback=plot_file, help="Draw the ratios as .png, .svg or .pdf.")
@force_option
@engine_options
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
    """Judge rankings by clicks already logged: is a new one better?

    A ranking is a file of query, document and score (or rank), its columns called as in the log. It is held against the
    rankers that were logged, with intervals in which the propensities are estimated anew.
    """
    from posbias.engines.files import refuse_overwriting
    from posbias.learning.evaluate import evaluate as judge

    if flags["engine"] == "spark":
        # Said before a session is started.
        raise click.UsageError("Rankings are joined with a log by DuckDB alone. Leave --engine spark out.")
    if plot is not None:
        from posbias._files import PICTURE, writable

        writable(plot, PICTURE)
        refuse_overwriting(plot, [*flags["log"], *judged])
    settings = {name: flags.pop(name) for name in ("max_rank", "force")}
    log = make_log(flags)
    with running(flags) as engine:
        made = judge(
            log, list(judged), metric=metric, score=score, estimator=estimator, level=level, **settings, **engine
        )
    # After the bar is gone, which would draw over it.
    warn(made.findings)
    if as_json:
        show_json(made.to_dict())
    else:
        click.echo(made.to_text())
    if plot is not None:
        made.save_plot(plot)
