"""posbias history."""

from __future__ import annotations

from itertools import pairwise

import click

from posbias.cli.options import plot_file, show_json, tell


@click.group()
def history() -> None:
    """Keep the curves of many days in one file.

    \b
    posbias history add FILE CURVE --date 2026-03-01    add a day, or replace it
    posbias history show FILE                           a line for each day
    """


@history.command()
@click.argument("file")
@click.argument("curve")
@click.option("--date", "on", required=True, metavar="DAY", help="The day of the curve, such as 2026-03-01.")
@click.option("--finding", multiple=True, metavar="TEXT", help="What was found that day; may be repeated.")
def add(file: str, curve: str, on: str, finding: tuple[str, ...]) -> None:
    """Add the curve of a day to the Parquet file FILE, which is made if it is not there.

    CURVE is what `posbias estimate --json` printed; of one with segments the curve of all is kept. A day that is there
    is replaced, a late one goes where it belongs.
    """
    from posbias._files import writable
    from posbias.curves.curve import Curve
    from posbias.engines.files import refuse_overwriting
    from posbias.judging.history import History, parse_date

    day = parse_date(on)
    writable(file)
    refuse_overwriting(file, [curve])
    before = History.load(file, new=True)
    given = Curve.load(curve)
    after = before.add(given, day, finding)
    if after != before:
        after.save(file)
    done = "unchanged in" if after == before else "added to" if before.day(day) is None else "replaced in"
    tell(f"{day} {done} {file}, {len(after.days):,} day{'s'[: len(after.days) > 1]}")
    if given.segments:
        tell(
            f"Note: the curve of all is kept, and not those of its {len(given.segments):,} segments. Keep a history of "
            "each in a file of its own, from a log of that segment.",
            fg="yellow",
        )
    for one, other in pairwise(after.days):
        if day in (one.date, other.date) and one.estimated_with != other.estimated_with:
            what = "they" if one.estimator != other.estimator else "their intervals"
            tell(
                f"Note: the curve of {one.date} is {one.estimated_with}, and that of {other.date} "
                f"{other.estimated_with}: {what} are not to be compared.",
                fg="yellow",
            )
    if after.missing:
        tell(f"Note: no curve of {_listed(list(map(str, after.missing)))}.", fg="yellow")


def _listed(days: list[str], most: int = 5) -> str:
    return ", ".join(days[:most]) + (f" and {len(days) - most:,} more days" if len(days) > most else "")


@history.command()
@click.argument("file")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the last N days.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--plot", metavar="FILE", callback=plot_file, help="Draw some ranks over days as .png, .svg or .pdf.")
def show(file: str, last: int | None, as_json: bool, plot: str | None) -> None:
    """Show the curves of all days, and what was found."""
    from posbias.judging.history import History

    if plot is not None:
        from posbias._files import PICTURE, writable

        writable(plot, PICTURE)
    kept = History.load(file)
    if last is not None:
        kept = History(kept.days[-last:])
    if as_json:
        show_json(kept.to_dict())
    else:
        click.echo(kept.to_text())
    if plot is not None:
        from posbias import plots

        plots.save(plots.history(kept), plot)
