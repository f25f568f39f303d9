"""Pictures: what is drawn is what was estimated, each file is the same each time, and names do no harm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import posbias
from posbias import plots
from posbias._charts import MARKERS
from posbias._matplotlib import COLORS, draw, legible
from posbias._text import format_count
from posbias.learning.evaluate import Estimate, Evaluation, RankingResult
from posbias.plots.evidence import graph_chart, sets_chart


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
    """An evaluation of which one ranking is better, one worse, and of one nothing can be told."""
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
def test_every_picture_takes_and_returns_axes_and_is_the_same_each_time(
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


def test_what_is_drawn_is_what_was_estimated(harvest: posbias.Harvest, fitted: posbias.CrossFit) -> None:
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


def test_pairs_that_contradict_the_curve_stand_out(harvest: posbias.Harvest) -> None:
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


def test_what_stands_out_does_so_in_grey(
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


def test_a_plan_marks_what_there_is(harvest: posbias.Harvest) -> None:
    plan = posbias.plan(harvest, scenarios=False)
    requirements = {f"rank {each.rank}": each for each in plan.forecasts[0].requirements}
    drawn = {line.get_label(): line for line in plots.plan(plan).lines if line.get_label() in requirements}
    assert drawn
    for name, line in drawn.items():
        (place,) = line.get_markevery()
        assert line.get_xdata()[place] == pytest.approx(plan.queries or plan.page_views)
        assert line.get_ydata()[place] == pytest.approx(100 * requirements[name].precision)


def test_a_rank_that_nothing_links_is_hollow() -> None:
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


def test_a_rank_that_little_links_has_an_arc() -> None:
    clicks = np.zeros((30, 30))
    clicks[:9, :9] = 10_000
    np.fill_diagonal(clicks, 0)
    clicks[8, 9:] = clicks[9:, 8] = 1
    axes = draw(graph_chart(clicks))
    # Each of the last is linked to rank 9 alone, by next to nothing.
    ends = [arc.get_path().vertices[[0, -1], 0].round().tolist() for arc in axes.patches]
    assert {far for far, near in ends if near == 9} >= {*range(10, 31)}
    assert axes.get_xticks().tolist() == [1, 5, 10, 15, 20, 25, 30]


def test_scales_have_numbers_beside_them() -> None:
    for low, high in ((18, 86), (31, 38), (1, 90_000)):
        axes = draw(sets_chart(np.array([[0.0, low], [high, 0.0]])))
        _, bar = axes.figure.axes
        axes.figure.canvas.draw()
        inside = [t.get_text() for t in bar.get_yticklabels() if low <= t.get_position()[1] <= high]
        assert len([text for text in inside if text]) > 1


def test_a_missing_day_is_a_gap(kept: posbias.History) -> None:
    axes = plots.history(kept, ranks=[2, 3])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["rank 2", "rank 3", "something was found"]
    assert np.isnan(axes.lines[0].get_ydata()).tolist() == [False, True, False]


def test_names_are_text_and_not_mathematics(fitted: posbias.CrossFit) -> None:
    assert legible("$x_1$") == r"\$x_1\$"
    assert legible("_hidden") == " _hidden"
    axes = plots.curves({"_$\\frac$": fitted})
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [" _\\$\\frac\\$"]
    assert len({*COLORS}) == len({*MARKERS}) == 8


def test_what_cannot_be_drawn_is_refused(harvest: posbias.Harvest, fitted: posbias.CrossFit) -> None:
    with pytest.raises(posbias.CurveError, match="From 1 to 8 curves"):
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
def test_what_is_no_axes_is_refused(
    name: str, ax: object, harvest: posbias.Harvest, fitted: posbias.CrossFit, kept: posbias.History
) -> None:
    with pytest.raises(posbias.PosbiasError, match="ax must be of type Axes"):
        drawn(name, harvest, fitted, kept, ax)


@pytest.mark.parametrize("name", plots.__all__)
@pytest.mark.parametrize("wrong", [5, None, "nowhere", [1.0, 0.5], {}])
def test_nothing_but_what_a_picture_is_of_is_drawn(name: str, wrong: object, tmp_path: Path) -> None:
    with pytest.raises(posbias.PosbiasError):
        getattr(plots, name)(wrong, *([tmp_path / "x.png"] if name == "save" else []))
    assert not [*tmp_path.iterdir()]


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


def test_a_joint_band_is_wanted_or_not(fitted: posbias.CrossFit) -> None:
    with pytest.raises(posbias.CurveError, match="joint must be True or False, not 'no'"):
        plots.curve(fitted, joint="no")  # type: ignore[arg-type]


def test_ranks_of_days_are_ranks(kept: posbias.History) -> None:
    for ranks in (3, "12", [0], [1.5], [None]):
        with pytest.raises(posbias.CurveError, match="ranks must be"):
            plots.history(kept, ranks=ranks)  # type: ignore[arg-type]
