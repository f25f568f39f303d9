"""The command `posbias history`."""

from __future__ import annotations

from itertools import pairwise

import click

from posbias.cli.options import (
    json_option,
    plot_option,
    print_json,
    print_note,
    print_to_stderr,
    refuse_unwritable_plot,
)

# Days that `check` compares with the reference period.
_LAST_DAYS = 7


@click.group()
def history() -> None:
    """Keep the curves of many days in one file.

    \b
    posbias history add FILE CURVE --date 2026-03-01    add a day, or replace it
    posbias history show FILE                           one line for each day
    posbias history check FILE --reference FIRST LAST   find a slow drift
    """


@history.command()
@click.argument("file")
@click.argument("curve")
@click.option("--date", "on", required=True, metavar="DAY", help="Day of the curve, such as 2026-03-01.")
@click.option("--finding", multiple=True, metavar="TEXT", help="Finding of that day; may be repeated.")
def add(file: str, curve: str, on: str, finding: tuple[str, ...]) -> None:
    """Add the curve of a day to the Parquet file FILE, which is created if it does not exist.

    CURVE is a file that `posbias estimate --json` printed. If it has segments, only the curve of all segments is kept.
    A day that is already in the file is replaced. Days may be added in any order, and by several processes at once.
    """
    from posbias._files import lock_file
    from posbias.curves.curve import Curve
    from posbias.engines.files import refuse_overwriting
    from posbias.judging.history import History, parse_date

    day = parse_date(on)
    refuse_overwriting(file, [curve])
    loaded = Curve.load(curve)
    with lock_file(file):
        before = History.load(file, new=True)
        after = before.add(loaded, day, finding)
        if after != before:
            after.save(file)
    action = "unchanged in" if after == before else "added to" if before.day(day) is None else "replaced in"
    print_to_stderr(f"{day} {action} {file}, {len(after.days):,} day{'s'[: len(after.days) > 1]}")
    if loaded.segments:
        print_note(
            f"Only the curve of all segments is kept, not the curves of the {len(loaded.segments):,} segments. To keep "
            "those, estimate each segment from its own log, and give each a history file."
        )
    for previous, following in pairwise(after.days):
        if day in (previous.date, following.date) and previous.estimated_with != following.estimated_with:
            what = "the curves" if previous.estimator != following.estimator else "the intervals"
            print_note(
                f"Do not compare {what} of {previous.date} and {following.date}: the first is "
                f"{previous.estimated_with}, the second {following.estimated_with}."
            )
    if after.missing:
        print_note(f"There is no curve of {_format_days(list(map(str, after.missing)))}.")


def _format_days(days: list[str], most: int = 5) -> str:
    return ", ".join(days[:most]) + (f" and {len(days) - most:,} more days" if len(days) > most else "")


@history.command()
@click.argument("file")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Show only the last N days.")
@json_option
@plot_option("Draw some ranks over the days")
def show(file: str, last: int | None, as_json: bool, plot: str | None) -> None:
    """Show the curves of all days, with their findings.

    For slow changes, see `posbias history check`.
    """
    from posbias.judging.history import History

    refuse_unwritable_plot(plot)
    shown = History.load(file)
    if last is not None:
        shown = History(shown.days[-last:])
    if as_json:
        print_json(shown.to_dict())
    else:
        click.echo(shown.to_text())
        if len(shown.days) > _LAST_DAYS:
            print_to_stderr("Slow changes do not show here: find them with posbias history check.")
    if plot is not None:
        from posbias import plots

        plots.save(plots.history(shown), plot)


@history.command()
@click.argument("file")
@click.option(
    "--reference",
    nargs=2,
    required=True,
    metavar="FIRST LAST",
    help="First and last day of the reference period: a time without problems, which stays the same.",
)
@click.option(
    "--days",
    type=click.IntRange(1),
    default=_LAST_DAYS,
    show_default=True,
    metavar="N",
    help="Number of last days to compare with it.",
)
@click.option(
    "--span",
    type=click.IntRange(1),
    metavar="N",
    help="Days of data in each curve: 7 if each is the curve of a week. Curves that share data are left out.  "
    "[default: found from the curves]",
)
@click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.9998,
    show_default=True,
    help="Confidence level of the intervals and of the test.",
)
@json_option
def check(file: str, reference: tuple[str, str], days: int, span: int | None, level: float, as_json: bool) -> None:
    """Compare the last days with a reference period, to find slow changes.

    Each night's curve may be like that of the week before, and yet the curve drifts. A reference period that stays the
    same shows it. The exit code is 1 if the curves differ. At the default level, checking every night for 90 nights
    raises a false alarm in less than 5% of histories.
    """
    import sys

    from posbias.judging.history import History

    comparison = History.load(file).check(reference, days=days, span=span, level=level)
    if as_json:
        print_json(comparison.to_dict())
    else:
        click.echo(comparison.to_text())
    sys.exit(1 if comparison.differs else 0)
