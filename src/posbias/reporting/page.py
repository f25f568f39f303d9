"""A report as HTML."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from importlib import resources

from posbias._optional import optional
from posbias._plotstyle import MARKERS
from posbias._text import format_ranges, json_text, label, printable_lines
from posbias.curves.curve import Curve, Position
from posbias.errors import Spelling
from posbias.judging.compare import Comparison, format_change
from posbias.judging.compare import number as p_number
from posbias.judging.compare_segments import SegmentComparison
from posbias.judging.history import Day, History
from posbias.reporting.charts import (
    curve_chart,
    curves_chart,
    graph_chart,
    rates_chart,
    ratios_chart,
    segment_curves,
    sets_chart,
    spread,
    thin_curve,
    thin_weights,
    weights_chart,
)
from posbias.reporting.drawing import (
    Axis,
    Chart,
    Drawing,
    Series,
    Table,
    at_ranks,
    chart,
    known,
    number_axis,
    plotted,
    rank_axis,
)
from posbias.reporting.report import Part, Report, between, number, short_names

# So many days, the last, are drawn and listed.
_MOST_DAYS = 92
# Ranks that the days are listed by.
_MOST_RANKS = 6
# So many dates are written below them or one more, with the year if the first is so many days from the last.
_MOST_DATES, _FAR = 5, 300
# More segments or rankers than these are not listed, and JSON beyond so many characters leaves covariances out.
_MOST_ROWS, _MOST_JSON = 40, 60_000
# So many ranks are listed with all their decimals.
_MOST_LISTED = 200
_MARKS = {"error": "Does not hold", "warning": "Warning", "info": "Looked at"}


def render(report: Report, spell: Spelling) -> str:
    """Return a report as a page."""
    jinja = optional("jinja2", "Reports need")
    shown = [_shown(part, f"p{number}", steps) for number, (part, steps) in enumerate(report.next_steps)]
    comparison = comparison_charts(report) if report.comparison is not None else ()
    history = history_chart(report.history) if report.history is not None else None
    environment = jinja.Environment(
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _file("page.css"), _file("page.js")
    page: str = environment.from_string(_file("page.html")).render(
        report=report,
        parts=shown,
        comparison=comparison,
        history=history,
        spell=spell,
        marks=_MARKS,
        is_compared=lambda found: isinstance(found, SegmentComparison),
        safe=jinja.utils.markupsafe.Markup,
        policy=_policy(style, script),
        style=style,
        script=script,
    )
    # What a name holds that turns the direction of writing, or is not to be seen, is shown as what it is.
    return printable_lines(page)


def _shown(part: Part, key: str, steps: Mapping[str, str]) -> Shown:
    curve = thin_curve(part.curve)
    drawn = {name: thin_curve(made) for name, made in part.estimators.items() if isinstance(made, Curve)}
    segments = None
    if curve.segments:
        chosen = segment_curves(curve, 7)
        text = (
            f"The curve of all, and of {len(chosen) - 1} of {len(curve.segments):,} segments by {', '.join(curve.by)}."
        )
        segments = curves_chart(f"{key}-segments", "Curves of segments", text, chosen)
    copied, without = _json(part.curve)
    return Shown(
        part=part,
        key=key,
        answer=curve_chart(f"{key}-curve", curve),
        evidence=(
            rates_chart(f"{key}-rates", curve),
            sets_chart(f"{key}-sets", part),
            graph_chart(f"{key}-graph", part),
            *([ratios_chart(f"{key}-ratios", part)] if part.ratios else []),
        ),
        estimators=curves_chart(
            f"{key}-estimators",
            "Estimators side by side",
            f"The curves that {len(drawn)} estimators make of the same counts. They weigh pairs of ranks differently, "
            "and agree where the model holds.",
            drawn,
        ),
        segments=segments,
        weights=weights_chart(f"{key}-weights", thin_weights(part.weights)),
        steps=steps,
        json=copied,
        without_json=without,
    )


@dataclass(frozen=True)
class Shown:
    """A part of a report with its pictures, as the page takes it."""

    part: Part
    key: str
    answer: Chart
    evidence: tuple[Chart, ...]
    estimators: Chart
    segments: Chart | None
    weights: Chart
    steps: Mapping[str, str]
    json: str
    without_json: str

    @property
    def without(self) -> dict[str, str]:
        """The estimators that have no curve, and why."""
        return {name: made for name, made in self.part.estimators.items() if isinstance(made, str)}

    @property
    def propensities(self) -> str:
        """The curve from rank 1 on as a list of Python."""
        values = [None if value != value else round(value, 6) for value in self.part.curve.propensity.tolist()]
        return json.dumps(values).replace("null", 'float("nan")')

    @property
    def support(self) -> Table:
        """What each rank hangs on."""
        return Table(
            ("rank", "degrees of freedom", "largest bucket", "compared with ranks"),
            tuple(
                (
                    f"{one.rank}",
                    "–" if one.degrees_of_freedom is None else f"{one.degrees_of_freedom:,.0f}",
                    "–" if one.largest_bucket_share is None else f"{one.largest_bucket_share:.1%}",
                    ", ".join(f"{rank} ({share:.0%})" for rank, share in one.compared_ranks.items()) or "–",
                )
                for one in (self.part.diagnosis.support[place] for place in spread(len(self.part.diagnosis.support)))
            ),
        )

    @property
    def positions(self) -> tuple[Position, ...]:
        """The ranks that are listed with all their decimals."""
        every = self.part.curve.positions
        return tuple(every[place] for place in spread(len(every), _MOST_LISTED))

    @property
    def compared(self) -> Table:
        """The segments with most page views against the mean of all."""
        found = self.part.segments
        rows = found.segments if isinstance(found, SegmentComparison) else ()
        most = sorted(rows, key=lambda one: -one.page_views)[:_MOST_ROWS]
        return Table(
            ("segment", "page views", "ratio to the mean", "interval", "p", "ranks that differ"),
            tuple(
                (
                    label(one.segment),
                    f"{one.page_views:,}",
                    f"{one.ratio:.3f}",
                    between(one.low, one.high),
                    p_number(one.p_value),
                    format_ranges(one.ranks) if one.ranks else "",
                )
                for one in most
            ),
        )

    @property
    def views(self) -> Table:
        """n_i of the busiest rankers."""
        found = sorted(self.part.origin.page_views.items(), key=lambda item: -item[1])
        total = max(1, sum(n for _, n in found))
        rows = [(name, f"{n:,}", f"{n / total:.1%}") for name, n in found[:_MOST_ROWS]]
        rest = found[_MOST_ROWS:]
        if rest:
            more = sum(n for _, n in rest)
            rows.append((f"{len(rest):,} more rankers", f"{more:,}", f"{more / total:.1%}"))
        return Table(("ranker", "page views", "share"), tuple(rows))


def _json(curve: Curve) -> tuple[str, str]:
    """Return a curve as JSON to copy, and what was left out of it for its size."""
    record = curve.to_dict()
    bare = record | {"covariance": None}
    if "segments" in record:
        bare["segments"] = [part | {"covariance": None} for part in record["segments"]]
    whole = {name: value for name, value in bare.items() if name not in ("by", "segments")}
    tried = ((record, ""), (bare, "covariances"), (whole, "covariances and segments"))
    for made, without in tried:
        if len(text := json_text(made)) <= _MOST_JSON:
            return text, without
    return "", "all of it"


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
            f"differs by {format_change(d.ratio)}" if d.differs else d.reason or "",
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


def _told(day: Day, ranks: list[int]) -> str:
    at = {p.position: p for p in day.positions}
    lines = [
        f"rank {rank}: {number(at[rank].propensity)} ({between(at[rank].low, at[rank].high)})"
        for rank in ranks
        if rank in at
    ]
    return "\n".join([str(day.date), *lines, *day.findings])


def _counted(days: int) -> str:
    return f"{days} day{'s'[: days > 1]}"


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


def _file(name: str) -> str:
    return resources.files("posbias.reporting").joinpath(name).read_text("utf-8")


def _policy(style: str, script: str) -> str:
    """Return what the page may do: its own style and script and images in it, and nothing else."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
