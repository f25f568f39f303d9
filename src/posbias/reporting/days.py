"""What moved: two curves against each other, and the curves of many days."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

from posbias.judging.comparisons import Comparison, percent
from posbias.judging.comparisons import number as p_number
from posbias.judging.histories import Day, History
from posbias.judging.pictures import draw_comparison
from posbias.pictures import draw_legend
from posbias.plots.overlays import history as draw_history
from posbias.reporting.charts import Chart, Table, at_ranks, draw
from posbias.reporting.evidence import curves_chart
from posbias.reporting.phrases import between, number, short_names
from posbias.reporting.reports import Report
from posbias.reporting.svgs import Styles

# So many days, the last, are drawn and listed.
_MOST_DAYS = 92
# Ranks that the days are listed by.
_MOST_RANKS = 6


def comparison_charts(report: Report, styles: Styles) -> tuple[Chart, ...]:
    """Return the ratio of two curves, and both over each other."""
    made = report.comparison
    assert made is not None
    curves = {part.name: replace(part.curve, by=(), segments={}) for part in report.parts}
    both = curves_chart(
        "c-curves", "Both curves", f"The curves of {made.names[0]} and {made.names[1]}, by rank.", curves, styles
    )
    return _ratio_chart(made, styles), both


def _ratio_chart(made: Comparison, styles: Styles) -> Chart:
    first, second = made.names
    rows = [
        (
            f"{d.rank}",
            number(d.before),
            number(d.after),
            number(d.ratio),
            between(d.low, d.high),
            p_number(d.p_value),
            f"differs by {percent(d.ratio)}" if d.differs else d.reason or "",
        )
        for d in made.differences
    ]
    texts = [
        f"Rank {rank}\n{first}: {before}\n{second}: {after}\nratio {ratio} ({ends}), p {p}\n{note}".rstrip()
        for rank, before, after, ratio, ends, p, note in rows
    ]
    short = short_names(made.names)
    cut = replace(made, names=(short[0], short[1]))
    return draw(
        "c-ratio",
        f"{second} against {first}",
        f"The ratio of the two curves by rank, {second} to {first}, with {100 * made.level:g}% intervals; ranks that "
        f"differ beyond chance as red diamonds{made.alone and f' ({made.alone})'}.",
        Table(("rank", first, second, "ratio", "interval", "p", "note"), tuple(rows)),
        styles,
        lambda axes: draw_comparison(cut, axes),
        at_ranks([d.rank for d in made.differences], texts),
    )


def history_chart(kept: History, styles: Styles) -> Chart:
    """Return the curves of the last days."""
    shown = History(kept.days[-_MOST_DAYS:])
    every = sorted({p.position for day in shown.days for p in day.positions if p.position > 1})
    ranks = [every[round(i * (len(every) - 1) / max(1, _MOST_RANKS - 1))] for i in range(_MOST_RANKS)] if every else []
    chosen = sorted({*ranks})
    rows = [
        (str(day.date), *(number(at.get(rank)) for rank in chosen), "; ".join(day.findings))
        for day, at in ((day, {p.position: p.propensity for p in day.positions}) for day in shown.days)
    ]
    texts = [_told(day, chosen) for day in shown.days]
    days = len(shown.missing)
    missing = f" {_counted(days)} between ha{'ve' if days > 1 else 's'} no curve." if days else ""

    def paint(axes: Any) -> None:
        draw_history(shown, axes, ranks=chosen)
        # Above the lines: beside them there is no room.
        axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
        draw_legend(axes, fontsize=8, ncols=4, loc="upper right")

    first, last = shown.days[0].date, shown.days[-1].date
    span = f"on {first}" if first == last else f"from {first} to {last}, {_counted(len(shown.days))},"
    return draw(
        "h-days",
        "Examination by day",
        f"The propensities of some ranks {span} with their intervals; days on which something was found are "
        f"marked.{missing}",
        Table(("day", *(f"rank {rank}" for rank in chosen), "found"), tuple(rows)),
        styles,
        paint,
        at_ranks([_place(day.date) for day in shown.days], texts),
    )


def _counted(days: int) -> str:
    return f"{days} day{'s'[: days > 1]}"


def _place(day: date) -> float:
    """Return where matplotlib puts a day: days since 1970."""
    return float((day - date(1970, 1, 1)).days)


def _told(day: Day, ranks: list[int]) -> str:
    at = {p.position: p for p in day.positions}
    lines = [
        f"rank {rank}: {number(at[rank].propensity)} ({between(at[rank].low, at[rank].high)})"
        for rank in ranks
        if rank in at
    ]
    return "\n".join([str(day.date), *lines, *day.findings])
