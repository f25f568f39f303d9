"""Render a report as one HTML page that contains everything it needs.

The page loads nothing: a content security policy allows its own style, its own script and its own images alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING

from posbias._optional import optional
from posbias._text import format_ranges, json_text, label, printable_lines, spelled
from posbias.curves.curve import Curve, Position
from posbias.errors import Spelling
from posbias.judging.compare import p_value_cell
from posbias.judging.compare_segments import SegmentComparison
from posbias.progress import step
from posbias.reporting.charts import (
    Figure,
    Table,
    click_rates_figure,
    comparison_figure,
    curve_figure,
    curves_figure,
    graph_figure,
    grid_figure,
    history_figure,
    interval,
    pair_ratios_figure,
    segment_curves,
    sets_figure,
    spread,
    thin_curve,
    weights_figure,
    without_segments,
)

if TYPE_CHECKING:
    from posbias.reporting.report import Report, ReportPart

# The largest number of segments drawn side by side.
_MOST_SEGMENTS = 8
# The largest number of segments or rankers in a table, and of ranks in the table of all decimals.
_MOST_ROWS, _MOST_RANKS = 40, 200
# JSON with more characters leaves out covariances, and then segments.
_MOST_JSON = 60_000
_SEVERITIES = {"error": "Assumption violated", "warning": "Warning", "info": "Info"}


@step("Drawing the page")
def render(report: Report, spell: Spelling) -> str:
    """Return a report as an HTML page.

    Arguments:
        report (Report): the report.
        spell (callable): writes the arguments of a remedy as its reader types them, in Python or in a shell.
    """
    jinja = optional("jinja2", "Reports need")
    environment = jinja.Environment(
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _file("page.css"), _file("page.js")
    page: str = environment.from_string(_file("page.html")).render(
        report=report,
        parts=[
            _page_part(part, f"p{number}", steps, report.columns)
            for number, (part, steps) in enumerate(report.next_steps)
        ],
        comparison=_comparison_figures(report),
        history=None if report.history is None else history_figure(report.history),
        spell=spell,
        spelled=partial(spelled, spell=spell),
        severities=_SEVERITIES,
        is_compared=lambda segments: isinstance(segments, SegmentComparison),
        safe=jinja.utils.markupsafe.Markup,
        policy=_policy(style, script),
        style=style,
        script=script,
    )
    # Characters of a name that turn the direction of writing, or cannot be seen, are shown as escapes.
    return printable_lines(page)


def _comparison_figures(report: Report) -> tuple[Figure, ...]:
    if report.comparison is None:
        return ()
    first, second = report.comparison.names
    curves = {part.name: without_segments(part.curve) for part in report.parts}
    both = curves_figure("c-curves", "Both curves", f"The curves of {first} and {second}, by rank.", curves)
    return comparison_figure(report.comparison), both


def _page_part(part: ReportPart, key: str, steps: Mapping[str, str], columns: int | None) -> PagePart:
    curve = thin_curve(part.curve)
    estimators = {name: thin_curve(found) for name, found in part.estimators.items() if isinstance(found, Curve)}
    segments = None
    if curve.segments:
        curves = segment_curves(curve, _MOST_SEGMENTS)
        shown = "" if len(curves) == len(curve.segments) else f" {len(curves)} of {len(curve.segments):,} segments:"
        text = f"How often each rank is seen relative to rank 1, by {', '.join(curve.by)}.{shown}"
        text = f"{text} those with the most page views." if shown else text
        segments = curves_figure(f"{key}-segments", "Segments side by side", text, curves)
    json, left_out = _json(part.curve)
    return PagePart(
        part=part,
        key=key,
        answer=curve_figure(f"{key}-curve", curve, unnoticed=part.unnoticed_trust_bias),
        evidence=(
            click_rates_figure(f"{key}-rates", curve),
            sets_figure(f"{key}-sets", part),
            graph_figure(f"{key}-graph", part),
            *([pair_ratios_figure(f"{key}-ratios", part)] if part.pair_ratios else []),
        ),
        estimators=curves_figure(
            f"{key}-estimators",
            "Estimators side by side",
            f"The curves of {len(estimators)} estimators from the same counts. They weight pairs of ranks differently, "
            "and agree where the position-based model holds.",
            estimators,
        ),
        segments=segments,
        grids=_grid_figures(key, part.curve, columns),
        weights=weights_figure(f"{key}-weights", part.weights),
        steps=steps,
        json=json,
        left_out=left_out,
    )


def _grid_figures(key: str, curve: Curve, columns: int | None) -> tuple[Figure, ...]:
    """Return the heat map of a curve, or those of its segments, if it is a curve of a grid."""
    if columns is None:
        return ()
    title = "Examination by place"
    maps = {f"{title}: {name}": part for name, part in segment_curves(curve, _MOST_SEGMENTS).items()} or {title: curve}
    return tuple(grid_figure(f"{key}-grid{place}", *one, columns) for place, one in enumerate(maps.items()))


@dataclass(frozen=True)
class PagePart:
    """A part of a report with its figures, as the template takes it."""

    part: ReportPart
    key: str
    answer: Figure
    evidence: tuple[Figure, ...]
    estimators: Figure
    segments: Figure | None
    grids: tuple[Figure, ...]
    weights: Figure
    steps: Mapping[str, str]
    json: str
    left_out: str

    @property
    def failed(self) -> dict[str, str]:
        """The estimators without a curve, and the reasons."""
        return {name: found for name, found in self.part.estimators.items() if isinstance(found, str)}

    @property
    def propensities(self) -> str:
        """The curve from rank 1 on as a list in Python."""
        values = [None if value != value else round(value, 6) for value in self.part.curve.propensity.tolist()]
        return json.dumps(values).replace("null", 'float("nan")')

    @property
    def support(self) -> Table:
        """The data behind each rank."""
        support = self.part.diagnosis.support
        rows = []
        for one in (support[place] for place in spread(len(support))):
            degrees = "–" if one.degrees_of_freedom is None else f"{one.degrees_of_freedom:,.0f}"
            largest = "–" if one.largest_bucket_share is None else f"{one.largest_bucket_share:.1%}"
            ranks = ", ".join(f"{rank} ({share:.0%})" for rank, share in one.compared_ranks.items())
            rows.append((f"{one.rank}", degrees, largest, ranks or "–"))
        return Table(("rank", "degrees of freedom", "variance from one bucket", "compared with ranks"), tuple(rows))

    @property
    def positions(self) -> tuple[Position, ...]:
        """The ranks in the table of all decimals."""
        every = self.part.curve.positions
        return tuple(every[place] for place in spread(len(every), _MOST_RANKS))

    @property
    def compared(self) -> Table:
        """The segments with most page views against the mean of all."""
        found = self.part.segments
        segments = found.segments if isinstance(found, SegmentComparison) else ()
        rows = [
            (
                label(one.segment),
                f"{one.page_views:,}",
                f"{one.ratio:.3f}",
                interval(one.low, one.high),
                p_value_cell(one.p_value),
                format_ranges(one.ranks) if one.ranks else "",
            )
            for one in sorted(segments, key=lambda one: -one.page_views)[:_MOST_ROWS]
        ]
        return Table(("segment", "page views", "ratio to the mean", "interval", "p", "ranks that differ"), tuple(rows))

    @property
    def page_views(self) -> Table:
        """The page views of the rankers, those with most first."""
        views = sorted(self.part.origin.page_views.items(), key=lambda item: -item[1])
        total = max(1, sum(n for _, n in views))
        rows = [(name, f"{n:,}", f"{n / total:.1%}") for name, n in views[:_MOST_ROWS]]
        rest = views[_MOST_ROWS:]
        if rest:
            more = sum(n for _, n in rest)
            rows.append((f"{len(rest):,} more rankers", f"{more:,}", f"{more / total:.1%}"))
        return Table(("ranker", "page views", "share"), tuple(rows))


def _json(curve: Curve) -> tuple[str, str]:
    """Return a curve as JSON to copy, and what was left out because of its size."""
    record = curve.to_dict()
    smaller = record | {"covariance": None}
    if "segments" in record:
        smaller["segments"] = [part | {"covariance": None} for part in record["segments"]]
    smallest = {name: value for name, value in smaller.items() if name not in ("by", "segments")}
    for shown, left_out in ((record, ""), (smaller, "covariances"), (smallest, "covariances and segments")):
        if len(text := json_text(shown)) <= _MOST_JSON:
            return text, left_out
    return "", "all of it"


def _file(name: str) -> str:
    return resources.files("posbias.reporting").joinpath(name).read_text("utf-8")


def _policy(style: str, script: str) -> str:
    """Return the content security policy: the style, script and images of the page itself, and nothing else."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
