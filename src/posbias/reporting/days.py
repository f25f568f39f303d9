"""What moved: two curves against each other, and the curves of many days."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date

from posbias.judging.comparisons import Comparison, percent
from posbias.judging.comparisons import number as p_number
from posbias.judging.histories import Day, History
from posbias.pictures import MARKERS
from posbias.reporting.charts import Chart, Table, at_ranks, chart
from posbias.reporting.curve_charts import curves_chart
from posbias.reporting.drawings import Drawing, Series, known, plotted
from posbias.reporting.phrases import between, number, short_names
from posbias.reporting.reports import Report
from posbias.reporting.scales import Axis, number_axis, rank_axis

# So many days, the last, are drawn and listed.
_MOST_DAYS = 92
# Ranks that the days are listed by.
_MOST_RANKS = 6
# So many dates are written below them or one more, with the year if the first is so many days from the last.
_MOST_DATES, _FAR = 5, 300


def comparison_charts(report: Report) -> tuple[Chart, ...]:
    """Return the ratio of two curves, and both over each other."""
    made = report.comparison
    assert made is not None
    curves = {part.name: replace(part.curve, by=(), segments={}) for part in report.parts}
    text = f"The curves of {made.names[0]} and {made.names[1]}, by rank."
    return _ratio_chart(made), curves_chart("c-curves", "Both curves", text, curves)


def _ratio_chart(made: Comparison) -> Chart:
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
    return chart(
        "c-ratio",
        f"{second} against {first}",
        f"The ratio of the two curves by rank, {second} to {first}, with {100 * made.level:g}% intervals; ranks that "
        f"differ beyond chance as red diamonds{made.alone and f' ({made.alone})'}.",
        Table(("rank", first, second, "ratio", "interval", "p", "note"), tuple(rows)),
        _ratios_drawn(made),
        at_ranks([d.rank for d in made.differences], texts),
    )


def _ratios_drawn(made: Comparison) -> Drawing:
    """Return ratios by rank, half and double equally far from the line at 1, ranks that differ as diamonds."""
    x = rank_axis([d.rank for d in made.differences])
    series = [Series("", "ink", [x.low, x.high], [1.0, 1.0], line="dashed")]
    looks = (False, "c0", "o", "no difference beyond chance"), (True, "alarm", "D", "differs")
    for differs, color, marker, name in looks:
        own = [d for d in made.differences if d.ratio is not None and d.differs == differs]
        if own:
            y, low, high = (known(getattr(d, of) for d in own) for of in ("ratio", "low", "high"))
            series.append(Series(name, color, [d.rank for d in own], y, low, high, marker, line=""))
    first, second = short_names(made.names)
    values = (value for one in series for value in one.values)
    return plotted(series, x, number_axis(f"Propensity, {second} / {first}", values, log=True))


def history_chart(kept: History) -> Chart:
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

    first, last = shown.days[0].date, shown.days[-1].date
    span = f"on {first}" if first == last else f"from {first} to {last}, {_counted(len(shown.days))},"
    return chart(
        "h-days",
        "Examination by day",
        f"The propensities of some ranks {span} with their intervals; days on which something was found are "
        f"marked.{missing}",
        Table(("day", *(f"rank {rank}" for rank in chosen), "found"), tuple(rows)),
        _days_drawn(shown, chosen),
        at_ranks([day.date.toordinal() for day in shown.days], texts),
    )


def _days_drawn(kept: History, ranks: list[int]) -> Drawing:
    """Return some ranks over the days, a gap where one has no curve, and lines at days on which something was found."""
    found = {day.date.toordinal(): {p.position: p for p in day.positions} for day in kept.days}
    first, last = min(found), max(found)
    days = range(first, last + 1)
    series = []
    for place, rank in enumerate(ranks):
        at = [found.get(day, {}).get(rank) for day in days]
        y, low, high = (known(getattr(p, of, None) for p in at) for of in ("propensity", "low", "high"))
        marker = MARKERS[place]
        series.append(Series(f"rank {rank}", f"c{place}", days, y, low, high, marker, band=True, bars=False, size=4))
    values = number_axis("Propensity relative to rank 1", (v for one in series for v in one.values), bottom=0.0)
    told = [day.date.toordinal() for day in kept.days if day.findings]
    if told:
        x, y = [v for day in told for v in (day, day, math.nan)], [values.low, values.high, math.nan] * len(told)
        series.append(Series("something was found", "alarm", x, y, line="dotted"))
    return plotted(series, _day_axis(first, last), values)


def _day_axis(first: int, last: int) -> Axis:
    """Return an axis of days, as `date` counts them: never hours, however few there are."""
    shown = [date.fromordinal(day) for day in range(first, last + 1, 1 + (last - first) // _MOST_DATES)]
    far = last - first > _FAR
    ticks: dict[float, str] = {day.toordinal(): f"{day:%b %Y}" if far else f"{day:%b} {day.day}" for day in shown}
    years = sorted({date.fromordinal(day).year for day in (first, last)})
    return Axis(" to ".join(map(str, years)), first - 0.5, last + 0.5, ticks)


def _counted(days: int) -> str:
    return f"{days} day{'s'[: days > 1]}"


def _told(day: Day, ranks: list[int]) -> str:
    at = {p.position: p for p in day.positions}
    lines = [
        f"rank {rank}: {number(at[rank].propensity)} ({between(at[rank].low, at[rank].high)})"
        for rank in ranks
        if rank in at
    ]
    return "\n".join([str(day.date), *lines, *day.findings])
