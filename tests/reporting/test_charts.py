"""Figures of reports: they draw what was computed, also where numbers are missing or very large."""

from __future__ import annotations

import base64
import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import posbias
from posbias._charts import Chart, Series, number_axis, rank_axis, round_numbers, round_ratios
from posbias.plots.evidence import sets_chart
from posbias.reporting.charts import curve_figure, curves_figure, grid_figure, history_figure, segment_curves
from posbias.reporting.drawing import draw_svg

numbers = st.floats(1e-9, 1e9)


@pytest.fixture(scope="module")
def curve() -> posbias.Curve:
    harvest = posbias.harvest(posbias.ClickLog(posbias.simulate(posbias.World(queries=200, max_rank=5))), max_rank=5)
    return posbias.CrossFit().fit(harvest).curve()


def path(svg: str, kind: str, color: str = "c0") -> str:
    """Return the outline of one kind in the first series of a colour that has one."""
    found = re.search(rf'<g class="{color}">(?:(?!</g>).)*?<path class="{kind}" d="([^"]*)"', svg)
    assert found is not None
    return found[1]


def svg(chart: Chart) -> str:
    return draw_svg(chart, [], key="k", title="A chart", text="What it shows.")


def drawn_area(svg: str) -> str:
    """Return what is drawn within the axes."""
    return svg.split("clip-path=", 1)[1].split('<g class="marks">')[0]


def ticks(svg: str) -> dict[str, float]:
    """Return how far down the words beside a picture stand."""
    return {word: float(y) - 3.5 for y, word in re.findall(r'<text class="end" x="[^"]*" y="([^"]*)">([^<]*)<', svg)}


def test_a_curve_is_drawn_where_its_numbers_are(curve: posbias.Curve) -> None:
    svg = curve_figure("p0-curve", curve).svg
    at = ticks(svg)
    low, high = at["0.0"], at["1.0"]
    drawn = [float(y) for _, y in re.findall(r"M([\d.]+) ([\d.]+)a", path(svg.split("clip-path=", 1)[1], "dot"))]
    np.testing.assert_allclose([(low - y) / (low - high) for y in drawn], curve.propensity, atol=1e-3)
    bars = re.findall(r"M[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)", path(svg.split("clip-path=", 1)[1], "whisker"))[::3]
    ends = [[(low - float(y)) / (low - high) for y in bar] for bar in bars]
    np.testing.assert_allclose(ends, curve.interval, atol=1e-3)


def test_trust_bias_that_could_have_gone_unnoticed_is_a_band(curve: posbias.Curve) -> None:
    """p_k to the power of 1 ± δ log 2."""
    figure = curve_figure("p0-curve", curve, unnoticed=0.3)
    exponents = 1 + 0.3 * math.log(2) * np.array([1, -1])
    expected = [f"{low:.3f} – {high:.3f}" for low, high in curve.propensity[1:, None] ** exponents]
    column = figure.table.heads.index("with trust bias")
    assert [row[column] for row in figure.table.rows] == ["", *expected]
    assert "if unnoticed trust bias were there" in figure.svg
    low = ticks(figure.svg)["0.0"]
    unit = low - ticks(figure.svg)["1.0"]
    corners = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path(drawn_area(figure.svg), "band", "grey"))]
    assert {round((low - y) / unit, 2) for y in corners} == {
        1.0,
        *np.round(curve.propensity[1:, None] ** exponents, 2).flat,
    }
    # Nothing is shown where the size is not known, or where any size could have gone unnoticed.
    for unknown in (None, 20.0):
        assert "trust bias" not in curve_figure("p0-curve", curve, unnoticed=unknown).svg


def test_a_rank_without_a_number_is_a_gap(curve: posbias.Curve) -> None:
    gone = replace(curve.positions[2], propensity=None, low=None, high=None, reason="too thin")
    torn = replace(curve, positions=(*curve.positions[:2], gone, *curve.positions[3:]), covariance=None)
    drawn = curves_figure("p0-curves", "Curves", "Two of them.", {"whole": curve, "torn": torn}).svg
    area = drawn.split("clip-path=", 1)[1]
    assert path(area, "line").count("M") == 1
    assert path(area, "line", "c1").count("M") == 2
    assert path(area, "dot", "c1").count("M") == 4


def test_segments_that_have_numbers_are_drawn_before_others(curve: posbias.Curve) -> None:
    unknown = tuple(
        replace(p, propensity=1.0 if p.position == 1 else None, low=None, high=None, reason="thin")
        for p in curve.positions
    )
    busy = replace(curve, positions=unknown, page_views={"a": 10**9}, covariance=None)
    parts = {
        ("busy",): busy,
        ("b",): replace(curve, page_views={"a": 2}),
        ("rare",): replace(curve, page_views={"a": 1}),
    }
    whole = replace(curve, by=("device",), segments=parts)
    assert [*segment_curves(whole, 2)] == ["b", "rare"]
    assert [*segment_curves(whole, 3)] == ["busy", "b", "rare"]


def test_a_very_wide_interval_does_not_flatten_the_curve(curve: posbias.Curve) -> None:
    wide = tuple(replace(p, high=1e12) if p.position == 4 else p for p in curve.positions)
    at = ticks(curve_figure("p0-curve", replace(curve, positions=wide, covariance=None)).svg)
    assert {*at} >= {"0.0", "0.5", "1.0"}
    assert at["0.0"] - at["1.0"] > 100


def test_days_without_a_curve_are_gaps_and_findings_are_lines(curve: posbias.Curve) -> None:
    kept = posbias.History().add(curve, "2026-02-27").add(curve, "2026-02-28").add(curve, "2026-03-02", ["drift"])
    svg = history_figure(kept).svg
    area = svg.split("clip-path=", 1)[1]
    assert path(area, "line").count("M") == 2
    assert path(area, "dot").count("M") == 3
    assert path(area, "line dotted", "alarm").count("M") == 1
    assert re.findall(r">(\w{3} \d+)<", svg) == ["Feb 27", "Feb 28", "Mar 1", "Mar 2"]
    assert ">2026</text>" in svg


@pytest.mark.parametrize("ranks", [3, 1000])
def test_a_map_is_lighter_where_counts_are_larger(ranks: int) -> None:
    from matplotlib.image import imread

    counts = np.random.default_rng(0).integers(0, 4, (ranks, ranks)).astype(float) ** 6
    area = drawn_area(svg(sets_chart(counts)))
    data = re.search(r'class="cells"[^>]*base64,([^"]*)"', area)
    assert data is not None
    assert len(data[1]) < 200_000
    pixels = imread(io.BytesIO(base64.b64decode(data[1])))
    kept = np.unique(np.linspace(0, ranks - 1, 500).astype(int))
    shown = counts[np.ix_(kept, kept)]
    assert pixels.shape == (*shown.shape, 4)
    np.testing.assert_array_equal(pixels[..., 3] > 0, shown > 0)
    light = pixels[..., :3].sum(axis=-1)
    means = [light[shown == count].mean() for count in (1, 64, 729)]
    assert means == sorted(means)
    assert all(np.ptp(light[shown == count]) == 0 for count in (1, 64, 729))
    assert ("<text" in area) == (ranks == 3)


def test_a_map_of_zeros_is_empty() -> None:
    drawn = svg(sets_chart(np.zeros((4, 4))))
    assert drawn_area(drawn) == '"url(#k-area)"></g></g>'
    assert "<image" not in drawn


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=5), st.booleans())
def test_an_axis_contains_all_finite_numbers(values: list[float], log: bool) -> None:
    values = [v if abs(v) < 1e9 else math.inf for v in values]
    axis = number_axis("y", values, log=log)
    assert axis.low < axis.high
    held = [v for v in values if math.isfinite(v) and (not log or v > 1e-6)]
    assert all(-0.001 <= axis.share(place) <= 1.001 for place in (*held, *axis.ticks))
    svg(Chart("", rank_axis([1, 2]), axis, [Series("all", 0, range(len(values)), values, values, values, "o")]))


@given(numbers, numbers)
def test_ticks_lie_within_the_axis_and_are_few(one: float, other: float) -> None:
    low, high = sorted((one, other))
    if high < low * (1 + 1e-6):
        return
    for found in (round_numbers(low, high), round_ratios(low, high)):
        assert 1 <= len(found) <= 8
        assert len({*found.values()}) == len(found)
        near = 1e-6 * (high - low)
        assert all(low - near <= value <= high + near for value in found)


def test_the_band_of_unnoticed_trust_bias_has_the_ranks_of_the_curve() -> None:
    """A log of three ranks that is harvested to ten."""
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=300, max_rank=3)))
    curve = posbias.CrossFit().fit(posbias.harvest(log, max_rank=10)).curve()
    assert len(curve.positions) < len(curve.propensity)
    figure = curve_figure("c", curve, unnoticed=0.1)
    assert "with trust bias" in figure.table.heads
    assert len(figure.table.rows) == len(curve.positions)


def test_the_label_of_an_axis_does_not_touch_the_numbers() -> None:
    series = Series("", 0, [1, 2, 3], [1.0, 0.05, 0.002])
    drawn = svg(Chart("", rank_axis([1, 2, 3]), number_axis("Share", series.y, log=True), [series]))
    label = re.search(r'<text class="mid" x="[^"]*" y="([^"]*)" transform="rotate\(-90\)">Share<', drawn)
    longest = re.search(r'<text class="end" x="([^"]*)" y="[^"]*">0\.003<', drawn)
    assert label is not None
    assert longest is not None
    # Text is 10 points high. In wide fonts a digit is 6.4 points wide and a dot 3.2; a descender is 2.4 points deep.
    assert 7.6 <= float(label[1]) < float(longest[1]) - 4 * 6.4 - 3.2 - 1.5


def test_the_map_of_a_grid_has_a_mark_and_a_row_for_each_place(curve: posbias.Curve) -> None:
    figure = grid_figure("p0-grid", "Examination by place", curve, 2)
    assert [row[:3] for row in figure.table.rows] == [
        ("1", "1", "1"),
        ("2", "1", "2"),
        ("3", "2", "1"),
        ("4", "2", "2"),
        ("5", "3", "1"),
    ]
    boxes = re.findall(r'<path d="M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)', figure.svg.split('<g class="marks">')[1])
    (left, top, width, height), second, third = (tuple(map(float, box)) for box in boxes[:3])
    assert second == pytest.approx((left + width, top, width, height), abs=0.2)
    assert third == pytest.approx((left, top + height, width, height), abs=0.2)
    assert f">{curve.propensity[1]:.3f}<" in figure.svg


def test_a_report_of_a_grid_has_a_map_of_each_segment() -> None:
    world = posbias.World(queries=300, max_rank=4, segments={"phone": 1.2, "desktop": 0.8})
    log = posbias.ClickLog(posbias.simulate(world))
    titles = re.compile(r'<figure id="p0-grid\d">\s*<figcaption><h3>([^<]*)')
    by_device = posbias.report(log, max_rank=4, by="device", columns=2).to_html()
    assert titles.findall(by_device) == ["Examination by place: desktop", "Examination by place: phone"]
    whole = posbias.harvest(log, max_rank=4)
    assert titles.findall(posbias.report(whole, columns=2).to_html()) == ["Examination by place"]
    assert titles.findall(posbias.report(whole).to_html()) == []
    with pytest.raises(posbias.CurveError, match="columns must be a whole number from 1 to 4"):
        posbias.report(whole, columns=5)


def test_lines_to_very_large_numbers_stay_short() -> None:
    # Chromium draws dashed lines of a million dashes as solid ones.
    band = Series("band", 0, [1, 2, 3], [0.5, 1e9, 0.2], line="dotted")
    chart = Chart("", rank_axis([1, 2, 3]), number_axis("p", [0, 1]), [band])
    heights = [float(y) for _, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path(svg(chart), "line dotted"))]
    assert len(heights) == 3
    assert max(map(abs, heights)) < 10_000
