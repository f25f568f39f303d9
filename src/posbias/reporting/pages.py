"""A report as one HTML page that holds all it needs, and lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from posbias.curves.curve import Curve, Position
from posbias.curves.reasons import spans
from posbias.errors import Spelling
from posbias.extras import optional
from posbias.judging.comparisons import number as p_number
from posbias.judging.segments import SegmentComparison
from posbias.reporting.charts import Chart, Table
from posbias.reporting.curve_charts import curve_chart, curves_chart, rates_chart, segment_curves
from posbias.reporting.days import comparison_charts, history_chart
from posbias.reporting.evidence import graph_chart, ratios_chart, sets_chart, weights_chart
from posbias.reporting.phrases import between
from posbias.reporting.reports import Part, Report
from posbias.reporting.thinning import spread, thin_curve, thin_weights
from posbias.wording import json_text, label, printable_lines

# More segments or rankers than these are not listed, and JSON beyond so many characters leaves covariances out.
_MOST_ROWS, _MOST_JSON = 40, 60_000
# So many ranks are listed with all their decimals.
_MOST_LISTED = 200
_MARKS = {"error": "Does not hold", "warning": "Warning", "info": "Looked at"}


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
            ("rank", "degrees of freedom", "heaviest bucket", "hangs on ranks"),
            tuple(
                (
                    f"{one.rank}",
                    "–" if one.degrees is None else f"{one.degrees:,.0f}",
                    "–" if one.heaviest is None else f"{one.heaviest:.1%}",
                    ", ".join(f"{rank} ({share:.0%})" for rank, share in one.links.items()) or "–",
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
                    spans(one.ranks) if one.ranks else "",
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
