"""The command `posbias sets`."""

from __future__ import annotations

from typing import Any

import click

from posbias.cli.options import (
    SectionedCommand,
    engine_from_flags,
    force_option,
    json_option,
    log_from_flags,
    log_options,
    max_rank_and_engine_options,
    plot_option,
    print_json,
    refuse_unwritable_plot,
)


@click.command(cls=SectionedCommand, sections={"Output": ("as_json", "plot")})
@log_options
@force_option
@max_rank_and_engine_options
@json_option
@plot_option("Draw the sizes as a map")
def sets(as_json: bool, plot: str | None, **flags: Any) -> None:
    """Count the distinct (query, document) pairs of every intervention set S_{k,k'}.

    The table has the shape of Tables 1 and 2 of the paper.
    """
    from posbias._text import Column, printable, table
    from posbias.harvesting.intervention_sets import intervention_sets

    refuse_unwritable_plot(plot)
    log = log_from_flags(flags)
    by_window = f" by {printable(log.window)}" if log.window is not None else ""
    with engine_from_flags(flags) as engine:
        sizes = intervention_sets(log, **engine, **flags)
    if plot is not None:
        from posbias import plots

        plots.save(plots.sets(sizes), plot)
    m = len(sizes)
    if as_json:
        rank_pairs = [(k, other) for k in range(m) for other in range(k + 1, m)]
        print_json(
            {
                "max_rank": m,
                "sets": [
                    {"rank": k + 1, "other_rank": other + 1, "pairs": int(sizes[k, other])} for k, other in rank_pairs
                ],
            }
        )
        return
    columns = [Column("", [f"{other + 1}" for other in range(1, m)])]
    for k in range(m - 1):
        columns.append(Column(f"{k + 1}", [f"{sizes[k, other]:,}" if k < other else "-" for other in range(1, m)]))
    click.echo(f"Distinct (query, document) pairs{by_window} in S_{{k,k'}}: column k, row k'")
    click.echo(table(columns))
