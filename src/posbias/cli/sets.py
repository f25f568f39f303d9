"""posbias sets."""

from __future__ import annotations

from typing import Any

import click

from posbias.cli.options import (
    Sectioned,
    engine_options,
    force_option,
    log_options,
    make_log,
    plot_file,
    running,
    show_json,
)


@click.command(cls=Sectioned, sections={"Output": ("as_json", "plot")})
@log_options
@force_option
@engine_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--plot", metavar="FILE", callback=plot_file, help="Draw the sizes as a map, as .png, .svg or .pdf.")
def sets(as_json: bool, plot: str | None, **flags: Any) -> None:
    """Count the distinct (query, document) pairs of every interventional set S_{k,k'}.

    The table has the shape of Tables 1 and 2 of the paper.
    """
    from posbias._text import Column, printable, table
    from posbias.harvesting.intervention_sets import intervention_sets

    if plot is not None:
        from posbias._files import PICTURE, writable

        writable(plot, PICTURE)
    log = make_log(flags)
    within = f" by {printable(log.window)}" if log.window is not None else ""
    with running(flags) as engine:
        sizes = intervention_sets(log, **engine, **flags)
    if plot is not None:
        from posbias import plots

        plots.save(plots.sets(sizes), plot)
    m = len(sizes)
    if as_json:
        pairs = [(k, other) for k in range(m) for other in range(k + 1, m)]
        show_json(
            {
                "max_rank": m,
                "sets": [{"k": k + 1, "other": other + 1, "pairs": int(sizes[k, other])} for k, other in pairs],
            }
        )
        return
    columns = [Column("", [f"{other + 1}" for other in range(1, m)])]
    for k in range(m - 1):
        columns.append(Column(f"{k + 1}", [f"{sizes[k, other]:,}" if k < other else "-" for other in range(1, m)]))
    click.echo(f"Distinct (query, document) pairs{within} in S_{{k,k'}}: column k, row k'")
    click.echo(table(columns))
