"""Plots show what was estimated, are deterministic, and survive any name."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import posbias
from posbias import plots
from posbias._charts import MARKERS, Chart
from posbias._matplotlib import COLORS, draw, legible
from posbias._text import format_count
from posbias.curves.curve import curve_chart, grid_chart
from posbias.judging.compare import comparison_chart
from posbias.judging.diagnostics import measure_pair_ratios
from posbias.learning.evaluate import Estimate, Evaluation, RankingResult, evaluation_chart
from posbias.planning.plan import plan_chart
from posbias.plots.curves import curves_chart, history_chart
from posbias.plots.evidence import (
    click_rates_chart,
    graph_chart,
    influence_chart,
    pair_ratios_chart,
    sets_chart,
)
from posbias.reporting.drawing import draw_svg


@pytest.fixture(scope="module")
def harvest() -> posbias.Harvest:
    world = posbias.World(queries=300, max_rank=5, rankers=("a", "b", "c"), segments={"phone": 1.2, "$x_1$": 0.8})
    return posbias.harvest(posbias.ClickLog(posbias.simulate(world)), by=["device"], max_rank=5)


@pytest.fixture(scope="module")
def fitted(harvest: posbias.Harvest) -> posbias.CrossFit:
    return posbias.CrossFit().fit(harvest)


@pytest.fixture(scope="module")
def kept(fitted: posbias.CrossFit) -> posbias.History:
    curve = fitted.segments_[("phone",)].curve()
    return posbias.History().add(curve, "2026-03-01").add(curve, "2026-03-03", ["curve: it changed"])


def judged() -> Evaluation:
    """Return an evaluation with a better ranking, a worse one, and one without an interval."""
    known = {"value": Estimate(1.0), "normalised": Estimate(1.0)}
    ratios = {"new": Estimate(1.2, 1.1, 1.3), "_$old$": Estimate(0.8, 0.7, 0.9), "thin": Estimate(1.1)}
    rankings = tuple(RankingResult(name=name, ratio=ratio, **known) for name, ratio in ratios.items())
    return Evaluation("dcg", True, 0.95, "cross-fit", 10, 5, RankingResult(name="the log", **known), rankings)


def drawn(name: str, harvest: posbias.Harvest, fitted: posbias.CrossFit, kept: posbias.History, ax):
    every = {
        "curve": lambda: plots.curve(fitted, ax, truth=[1, 0.5, 0.3, 0.2, 0.2], joint=True),
        "curves": lambda: plots.curves({"CrossFit": fitted, "_$a$": fitted.curve()}, ax),
        "sets": lambda: plots.sets(harvest, ax),
        "graph": lambda: plots.graph(harvest, ax),
        "pair_ratios": lambda: plots.pair_ratios(harvest, fitted, ax),
        "influence": lambda: plots.influence(fitted, ax),
        "click_rates": lambda: plots.click_rates(fitted, ax),
        "history": lambda: plots.history(kept, ax),
        "evaluation": lambda: plots.evaluation(judged(), ax),
        "comparison": lambda: plots.comparison(posbias.compare(fitted, fitted.curve()), ax),
        "plan": lambda: plots.plan(posbias.plan(harvest, scenarios=False), ax),
    }
    assert {*every, "save"} == {*plots.__all__}
    return every[name]()


@pytest.mark.parametrize("name", [name for name in plots.__all__ if name != "save"])
def test_every_plot_returns_the_axes_it_is_given_and_is_deterministic(
    name: str, harvest: posbias.Harvest, fitted: posbias.CrossFit, kept: posbias.History, tmp_path: Path
) -> None:
    own = Figure().add_subplot()
    assert drawn(name, harvest, fitted, kept, own) is own
    assert own.get_title()
    files = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for file in files:
        plots.save(drawn(name, harvest, fitted, kept, None), file)
    one, two = (file.read_bytes() for file in files)
    assert one == two
    assert len(one) < 250_000


def charts(harvest: posbias.Harvest, fitted: posbias.CrossFit, kept: posbias.History) -> dict[str, Chart]:
    """Return the chart behind each plot."""
    curve = fitted.curve()
    found = {
        "curve": curve_chart(curve, truth=[1, 0.5, 0.3, 0.2, 0.2], joint=True),
        "curves": curves_chart({"CrossFit": curve, "_$a$": curve}),
        "sets": sets_chart(harvest.pair_clicks()),
        "graph": graph_chart(harvest.pair_clicks()),
        "pair_ratios": pair_ratios_chart(measure_pair_ratios(harvest.interventions(), curve.propensity), 5),
        "influence": influence_chart("cross-fit", fitted.propensity_, fitted.deletions_),
        "click_rates": click_rates_chart(curve),
        "history": history_chart(kept, [2, 5]),
        "evaluation": evaluation_chart(judged()),
        "comparison": comparison_chart(posbias.compare(fitted, fitted.segments_[("phone",)])),
        "plan": plan_chart(posbias.plan(harvest, scenarios=False)),
    }
    assert {*found, "save"} == {*plots.__all__}
    return found | {"grid": grid_chart(curve, 3)}


def test_both_renderers_draw_every_chart(
    harvest: posbias.Harvest, fitted: posbias.CrossFit, kept: posbias.History
) -> None:
    for name, chart in charts(harvest, fitted, kept).items():
        axes = draw(chart)
        axes.figure.canvas.draw()
        svg = draw_svg(chart, [], key="k", title=chart.title, text="")
        words = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
        low, high = sorted(axes.get_xlim())
        ticks = [tick.label1 for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
        legend = axes.get_legend()
        shown = [axes.xaxis.label, axes.yaxis.label, *ticks, *(legend.get_texts() if legend else [])]
        texts = {escape(text.get_text().replace(r"\$", "$").strip()) for text in shown}
        assert texts <= {*words, ""}, name


def test_a_second_curve_on_the_same_axes_keeps_the_first_in_view(fitted: posbias.CrossFit) -> None:
    curve = fitted.curve()
    first = replace(curve, positions=tuple(replace(p, high=5.0, propensity=4.0) for p in curve.positions))
    axes = plots.curve(first)
    before = axes.get_ylim()
    assert plots.curve(replace(curve, positions=curve.positions[:3]), axes) is axes
    assert axes.get_ylim() == before
    assert axes.get_xlim() == (0.5, 5.5)
    assert axes.get_xticks().tolist() == [1, 2, 3, 4, 5]


def test_plots_show_the_estimates(harvest: posbias.Harvest, fitted: posbias.CrossFit) -> None:
    axes = plots.curves({"ours": fitted})
    np.testing.assert_allclose(axes.containers[0].lines[0].get_ydata(), fitted.propensity_)
    axes = plots.click_rates(fitted)
    rate = harvest.clicks / harvest.impressions
    np.testing.assert_allclose(axes.lines[0].get_ydata(), rate / rate[0])
    axes = plots.sets(harvest)
    shown = axes.collections[0].get_array().filled(0)
    np.testing.assert_array_equal(shown, harvest.pair_clicks())
    written = {(int(t.get_position()[1]), int(t.get_position()[0])): t.get_text() for t in axes.texts}
    assert written[1, 2] == format_count(shown[0, 1])
    axes = plots.influence(fitted)
    changes = np.concatenate([line.get_ydata()[np.equal(line.get_xdata(), 2)] for line in axes.lines[:-1]])
    expected = 100 * (fitted.deletions_[:, 1] / fitted.propensity_[1] - 1)
    np.testing.assert_allclose(np.sort(changes), np.sort(expected))


def test_a_grid_is_drawn_as_a_heat_map_of_its_places(fitted: posbias.CrossFit) -> None:
    phone = fitted.segments_["phone"]
    axes = phone.plot(columns=2)
    shown = axes.collections[0].get_array()
    # Five ranks fill the rows of two columns one after the other; the last place is empty.
    np.testing.assert_allclose(shown.compressed(), phone.propensity_)
    assert shown.mask.tolist() == [[False, False], [False, False], [False, True]]
    first_is_on_top = axes.get_ylim()[0] > axes.get_ylim()[1]
    assert first_is_on_top
    written = {(int(t.get_position()[1]), int(t.get_position()[0])): t.get_text() for t in axes.texts}
    low, high = phone.interval_[3]
    assert written[2, 2] == f"{phone.propensity_[3]:.3f}\n{low:.3f}–{high:.3f}"
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("Row", "Column")


@pytest.mark.parametrize("columns", [0, 6, 2.0, True])
def test_a_grid_of_impossible_columns_is_refused(fitted: posbias.CrossFit, columns: object) -> None:
    with pytest.raises(posbias.CurveError, match="columns must be a whole number from 1 to 5"):
        plots.curve(fitted.segments_["phone"], columns=columns)


def test_a_heat_map_shows_one_curve_alone(fitted: posbias.CrossFit) -> None:
    with pytest.raises(posbias.CurveError, match="2 segments by device"):
        fitted.plot(columns=2)
    with pytest.raises(posbias.CurveError, match="neither the truth nor a joint band"):
        fitted.segments_["phone"].plot(columns=2, joint=True)


def test_a_heat_map_without_estimates_is_empty(fitted: posbias.CrossFit) -> None:
    curve = fitted.segments_["phone"].curve()
    unknown = tuple(replace(p, propensity=None, low=None, high=None) for p in curve.positions)
    chart = grid_chart(replace(curve, positions=unknown, covariance=None), 3)
    assert not draw(chart).texts
    assert "<image" in draw_svg(chart, [], key="k", title="", text="")


def test_pairs_that_contradict_the_curve_are_marked(harvest: posbias.Harvest) -> None:
    names = lambda axes: {text.get_text() for text in axes.get_legend().get_texts()}  # noqa: E731
    assert "differs by over three standard errors" not in names(plots.pair_ratios(harvest))
    wrong = posbias.CrossFit().fit(harvest).curve()
    positions = tuple(
        p if p.position != 2 else type(p)(**{**p.__dict__, "propensity": 0.9, "low": 0.85, "high": 0.95})
        for p in wrong.positions
    )
    assert "differs by over three standard errors" in names(
        plots.pair_ratios(harvest, type(wrong)(**{**wrong.__dict__, "positions": positions}))
    )


def markers(axes) -> dict[str, str]:
    """Return the marker of each entry of the legend that has one."""
    found = {box.get_label(): box.lines[0].get_marker() for box in axes.containers}
    found |= {line.get_label(): line.get_marker() for line in axes.lines}
    return {label: marker for label, marker in found.items() if marker not in ("None", "")}


def test_series_have_different_markers(
    harvest: posbias.Harvest, fitted: posbias.CrossFit, kept: posbias.History
) -> None:
    other = posbias.CrossFit().fit(harvest.segment("phone"))
    flat = replace(fitted.curve(), positions=tuple(replace(p, propensity=0.9) for p in fitted.curve().positions))
    found = posbias.compare(other, fitted.segments_[("$x_1$",)])
    first, *rest = found.differences
    found = replace(found, differences=(replace(first, differs=not first.differs), *rest))
    pictures = {
        "comparison": plots.comparison(found),
        "pair_ratios": plots.pair_ratios(harvest, flat),
        "evaluation": plots.evaluation(judged()),
        "curves": plots.curves({"one": fitted, "other": other}),
        "history": plots.history(kept),
        "plan": plots.plan(posbias.plan(harvest, scenarios=False)),
    }
    for name, axes in pictures.items():
        looks = markers(axes)
        shown = {text.get_text() for text in axes.get_legend().get_texts()}
        marked = [marker for label, marker in looks.items() if label in shown]
        assert len(marked) > 1, name
        assert len({*marked}) == len(marked), name


def test_a_plan_marks_the_present_data(harvest: posbias.Harvest) -> None:
    plan = posbias.plan(harvest, scenarios=False)
    requirements = {f"rank {each.rank}": each for each in plan.forecasts[0].requirements}
    drawn = {line.get_label(): line for line in plots.plan(plan).lines if line.get_label() in requirements}
    assert drawn
    for name, line in drawn.items():
        (place,) = line.get_markevery()
        assert line.get_xdata()[place] == pytest.approx(plan.queries or plan.page_views)
        assert line.get_ydata()[place] == pytest.approx(100 * requirements[name].precision)


def test_a_rank_without_links_is_hollow() -> None:
    world = posbias.World(queries=200, max_rank=3)
    table = posbias.simulate(world)
    clicked = [
        0 if position == 3 else c
        for c, position in zip(*(table[n].to_pylist() for n in ("clicked", "position")), strict=True)
    ]
    table = table.set_column(table.schema.get_field_index("clicked"), "clicked", [clicked])
    axes = plots.graph(posbias.harvest(posbias.ClickLog(table), max_rank=3))
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["compared with rank 1", "not compared with rank 1"]
    assert axes.lines[-1].get_xdata().tolist() == [3]


def test_the_best_link_of_a_rank_is_drawn_however_weak() -> None:
    clicks = np.zeros((30, 30))
    clicks[:9, :9] = 10_000
    np.fill_diagonal(clicks, 0)
    clicks[8, 9:] = clicks[9:, 8] = 1
    axes = draw(graph_chart(clicks))
    # Each of the last is linked to rank 9 alone, by next to nothing.
    ends = [arc.get_path().vertices[[0, -1], 0].round().tolist() for arc in axes.patches]
    assert {far for far, near in ends if near == 9} >= {*range(10, 31)}
    assert axes.get_xticks().tolist() == [1, 5, 10, 15, 20, 25, 30]


def test_the_scale_of_a_map_has_tick_labels() -> None:
    for low, high in ((18, 86), (31, 38), (1, 90_000)):
        axes = draw(sets_chart(np.array([[0.0, low], [high, 0.0]])))
        _, bar = axes.figure.axes
        axes.figure.canvas.draw()
        inside = [t.get_text() for t in bar.get_yticklabels() if low <= t.get_position()[1] <= high]
        assert len([text for text in inside if text]) > 1


def test_a_missing_day_is_a_gap(kept: posbias.History) -> None:
    axes = plots.history(kept, ranks=[2, 3])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["rank 2", "rank 3", "day with findings"]
    assert np.isnan(axes.lines[0].get_ydata()).tolist() == [False, True, False]


def test_names_are_not_read_as_formulas(fitted: posbias.CrossFit) -> None:
    assert legible("$x_1$") == r"\$x_1\$"
    assert legible("_hidden") == " _hidden"
    axes = plots.curves({"_$\\frac$": fitted})
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [" _\\$\\frac\\$"]
    assert len({*COLORS}) == len({*MARKERS}) == 8


def test_invalid_arguments_are_rejected(harvest: posbias.Harvest, fitted: posbias.CrossFit) -> None:
    with pytest.raises(posbias.CurveError, match="A chart shows 1 to 8 curves, not"):
        plots.curves({str(n): fitted for n in range(9)})
    with pytest.raises(posbias.CurveError, match="no day yet"):
        plots.history(posbias.History())
    with pytest.raises(posbias.EstimateError, match="has intervals"):
        plots.influence(posbias.CrossFit(interval=None).fit(harvest))
    with pytest.raises(posbias.HarvestError, match="not of a str"):
        plots.graph("log.parquet")  # type: ignore[arg-type]
    with pytest.raises(posbias.HarvestError, match="not a str"):
        plots.pair_ratios("log.parquet")  # type: ignore[arg-type]


WRONG_AXES = ("x", 7, [1])


@pytest.mark.parametrize("ax", WRONG_AXES)
@pytest.mark.parametrize("name", [name for name in plots.__all__ if name != "save"])
def test_an_axes_of_another_type_is_rejected(
    name: str, ax: object, harvest: posbias.Harvest, fitted: posbias.CrossFit, kept: posbias.History
) -> None:
    with pytest.raises(posbias.PosbiasError, match="ax must be of type Axes"):
        drawn(name, harvest, fitted, kept, ax)


@pytest.mark.parametrize("name", plots.__all__)
@pytest.mark.parametrize("wrong", [5, None, "nowhere", [1.0, "x"], {}])
def test_an_object_of_another_type_is_rejected(name: str, wrong: object, tmp_path: Path) -> None:
    with pytest.raises(posbias.PosbiasError):
        getattr(plots, name)(wrong, *([tmp_path / "x.png"] if name == "save" else []))
    assert not [*tmp_path.iterdir()]


def test_plain_propensities_have_no_click_rates() -> None:
    assert plots.curve([1.0, 0.5]).lines[0].get_ydata().tolist() == [1.0, 0.5]
    with pytest.raises(posbias.CurveError, match="has no click rates"):
        plots.click_rates([1.0, 0.5])


@pytest.mark.parametrize(
    "truth", ["abc", 7, [1, 0.5], [1, "x", 0.3, 0.2, 0.1], [[1], [2]], {1: 1.0}, [1.0] * 4 + [None]]
)
def test_a_truth_has_a_number_for_each_rank(truth: object, fitted: posbias.CrossFit) -> None:
    for drawing in (
        lambda: plots.curve(fitted, truth=truth),
        lambda: plots.curves({"it": fitted}, truth=truth),
        lambda: fitted.plot(truth=truth),
        lambda: fitted.curve().to_text(truth=truth),
    ):
        with pytest.raises(posbias.CurveError, match="one for each rank from 1 to 5"):
            drawing()


def test_joint_must_be_a_boolean(fitted: posbias.CrossFit) -> None:
    with pytest.raises(posbias.CurveError, match="joint must be True or False, not 'no'"):
        plots.curve(fitted, joint="no")  # type: ignore[arg-type]


def test_the_ranks_of_a_history_must_be_ranks(kept: posbias.History) -> None:
    for ranks in (3, "12", [0], [1.5], [None]):
        with pytest.raises(posbias.CurveError, match="ranks must be"):
            plots.history(kept, ranks=ranks)  # type: ignore[arg-type]


# ---- Legible pictures


def test_all_segments_start_at_rank_1(fitted: posbias.CrossFit) -> None:
    for chart in (curve_chart(fitted.curve()), curves_chart({"one": fitted.curve(), "two": fitted.curve()})):
        assert [one.x[0] for one in chart.series] == [1] * len(chart.series)
        assert len({one.x[1] for one in chart.series}) == len(chart.series)


def test_the_joint_band_is_the_only_area(fitted: posbias.CrossFit) -> None:
    curve = replace(fitted.curve(), by=(), segments={})
    (band,) = [one for one in curve_chart(curve, joint=True).series if one.band]
    low, high = zip(*curve.joint_ends(), strict=True)
    np.testing.assert_array_equal((band.low[1:], band.high[1:]), (low[1:], high[1:]))


@pytest.mark.parametrize("ranks", [5, 10, 20, 50])
def test_each_rank_has_at_least_one_and_all_have_two_arcs_on_average(ranks: int) -> None:
    clicks = np.random.default_rng(0).uniform(1, 100, (ranks, ranks))
    arcs = graph_chart(clicks).arcs
    assert {rank for arc in arcs for rank in arc} == {*range(1, ranks + 1)}
    assert len(arcs) <= 2 * ranks
