"""Simulated users click at the rates they promise, and their logs hold what the estimators need."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

import posbias
from experiments.judgments import Judgments, generate_judgments
from experiments.ranking_svm import rank_documents, same_rank_share
from experiments.sessions import simulate_sessions, simulate_swaps, split_views, sweeps
from posbias.errors import PosbiasError
from posbias.simulation import (
    AtMostOneClick,
    AttractionBias,
    Cascade,
    Crawled,
    NeighbourBias,
    PositionBased,
    Segmented,
    TrustBias,
    User,
)

VIEWS = 40_000


def click_rates(user: User, page: list[int], seed: int = 0) -> np.ndarray:
    return user.click(np.tile(page, (VIEWS, 1)), np.random.default_rng(seed)).mean(axis=0)


def assert_rates(found: np.ndarray, expected: np.ndarray | list[float], n: int = VIEWS) -> None:
    """Within 4.5 binomial standard errors: one false alarm in 150,000."""
    expected = np.asarray(expected)
    assert np.all(np.abs(found - expected) <= 4.5 * np.sqrt(expected * (1 - expected) / n) + 1e-12), (found, expected)


@pytest.fixture(scope="module")
def judgments() -> Judgments:
    return generate_judgments(3_000)


@pytest.fixture(scope="module")
def rankings(judgments: Judgments) -> dict[str, np.ndarray]:
    """Two rankers that are better than chance and put about half of the documents at different ranks."""
    centred = judgments.features - 0.5
    good = (centred * (judgments.grades[:, None] - judgments.grades.mean())).mean(axis=0)
    rng = np.random.default_rng(1)
    spread = good.std()
    return {name: rank_documents(judgments, good + spread * rng.standard_normal(len(good)) / 3) for name in "ab"}


# --- users --------------------------------------------------------------------------------------------------

PAGE = [4, 0, 3, 2, -1]
RELEVANT = np.array([1, 0, 1, 0])


@pytest.mark.parametrize(("eta", "noise"), [(1, 0.1), (0, 0.3), (2, 0), (0.5, 1)])
def test_position_based_users_click_by_rank_and_relevance(eta: float, noise: float) -> None:
    user = PositionBased(eta, noise)
    expected = (1 / np.arange(1, 5)) ** eta * np.where(RELEVANT, 1, noise)
    assert_rates(click_rates(user, PAGE), [*expected, 0])
    np.testing.assert_allclose(user.propensity(4), (1 / np.arange(1, 5)) ** eta)


def test_graded_users_click_more_on_better_grades() -> None:
    expected = [(0.1 + 0.9 * (2**g - 1) / 15) / r for r, g in enumerate([4, 0, 3, 2], 1)]
    assert_rates(click_rates(PositionBased(graded=True), PAGE), [*expected, 0])
    assert PositionBased(graded=True, max_grade=2).attractiveness(np.array([[2, 1, 0]])).round(2).tolist() == [
        [1, 0.4, 0.1]
    ]
    assert PositionBased(threshold=1).attractiveness(np.array([[2, 1, 0]])).tolist() == [[1, 1, 0.1]]


def test_clicks_of_one_page_are_independent() -> None:
    clicks = PositionBased(eta=0, noise=0.5).click(np.zeros((VIEWS, 3)), np.random.default_rng(0))
    assert_rates((clicks[:, 0] & clicks[:, 1]).mean(), 0.25)


def test_trust_bias_makes_the_curve_depend_on_relevance() -> None:
    user = TrustBias(eta=1, noise=0.1, trust=0.5, doubt=0.2)
    ranks = np.arange(1, 5)
    plus, minus = 1 - 0.2 * (1 - 1 / ranks), 0.1 + 0.5 / ranks
    assert_rates(click_rates(user, PAGE), [*(np.where(RELEVANT, plus, minus) / ranks), 0])
    # The defining property: relevant and irrelevant results lose by different factors from rank 1 to 4.
    relevant, irrelevant = click_rates(user, [4] * 4), click_rates(user, [0] * 4)
    assert relevant[3] / relevant[0] > 1.3 * irrelevant[3] / irrelevant[0]
    plain = click_rates(TrustBias(trust=0, doubt=0), PAGE)
    np.testing.assert_array_equal(plain, click_rates(PositionBased(), PAGE))


def test_a_cascade_stops_at_the_first_click() -> None:
    user = Cascade(noise=0.3)
    clicks = user.click(np.tile([0, 0, 4, 4], (VIEWS, 1)), np.random.default_rng(0))
    assert clicks.sum(axis=1).max() == 1
    assert_rates(clicks.mean(axis=0), [0.3, 0.7 * 0.3, 0.7 * 0.7, 0])
    # The defining property: what stands above a result changes its chance.
    assert_rates(click_rates(user, [4, 4]), [1, 0])
    assert_rates(click_rates(user, [-1, 4]), [0, 1])


def test_at_most_one_click_keeps_the_first_or_any() -> None:
    inner = PositionBased(eta=0, noise=0.5)
    page = [0, 0]
    first = AtMostOneClick(inner, keep="first").click(np.tile(page, (VIEWS, 1)), np.random.default_rng(0))
    anyone = AtMostOneClick(inner, keep="random").click(np.tile(page, (VIEWS, 1)), np.random.default_rng(0))
    assert first.sum(axis=1).max() == anyone.sum(axis=1).max() == 1
    assert_rates(first.mean(axis=0), [0.5, 0.25])
    assert_rates(anyone.mean(axis=0), [0.375, 0.375])
    # As many pages are clicked as without it.
    assert_rates(anyone.any(axis=1).mean(), 0.75)


def test_neighbours_draw_clicks_from_each_other() -> None:
    user = NeighbourBias(noise=0.2, distraction=0.4)
    ranks = np.arange(1, 5)
    # Next to the first is an irrelevant one, next to the second two relevant ones, next to the third none of two, and
    # next to the fourth a relevant one and no other.
    expected = np.array([1, 0.2 * 0.6, 1, 0.2 * 0.6]) / ranks
    assert_rates(click_rates(user, PAGE), [*expected, 0])
    # The defining property: the same result at the same rank has other chances beside others.
    assert_rates(click_rates(user, [4, 4, 4]), [0.6, 0.6 / 2, 0.6 / 3])
    assert_rates(click_rates(user, [0, 4, 0]), [0.2 * 0.6, 1 / 2, 0.2 * 0.6 / 3])
    plain = click_rates(NeighbourBias(distraction=0), PAGE)
    np.testing.assert_array_equal(plain, click_rates(PositionBased(), PAGE))


def test_relevant_results_are_examined_further_down() -> None:
    user = AttractionBias(eta=2, noise=0.2, pull=0.25)
    expected = [1, 0.2 / 2**2, 1 / 3**1.5, 0.2 / 4**2, 0]
    assert_rates(click_rates(user, PAGE), expected)
    plain = click_rates(AttractionBias(pull=0), PAGE)
    np.testing.assert_array_equal(plain, click_rates(PositionBased(), PAGE))


def test_crawlers_click_every_result() -> None:
    clicks = Crawled(PositionBased(noise=0), 0.3).click(np.tile(PAGE, (VIEWS, 1)), np.random.default_rng(0))
    assert_rates(clicks.mean(axis=0), [1, 0.3, 0.3 + 0.7 / 3, 0.3, 0])
    assert_rates((clicks.sum(axis=1) == 4).mean(), 0.3)


def test_segments_have_their_own_curves(judgments: Judgments, rankings: dict[str, np.ndarray]) -> None:
    users = Segmented({"desktop": PositionBased(eta=0.5), "phone": PositionBased(eta=2)}, column="client")
    assert_rates(click_rates(users, [4, 4]), [1, (0.5**0.5 + 0.25) / 2])
    views = sweeps(judgments.queries, 4)
    log = simulate_sessions(judgments, rankings, dict.fromkeys(rankings, views), users)
    table = log.to_pandas()
    relevant = judgments.grades[table.doc_id] >= 3
    for name, eta in (("desktop", 0.5), ("phone", 2)):
        second = table[(table.client == name) & (table.position == 2) & relevant]
        assert_rates(second.clicked.mean(), 0.5**eta, len(second))
    assert table.groupby("impression_id").client.nunique().max() == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: PositionBased(eta=-1),
        lambda: PositionBased(eta=math.nan),
        lambda: PositionBased(noise=1.1),
        lambda: TrustBias(noise=0.6, trust=0.6),
        lambda: TrustBias(doubt=2),
        lambda: Cascade(noise=-0.1),
        lambda: NeighbourBias(distraction=1.1),
        lambda: AttractionBias(pull=-0.1),
        lambda: Crawled(share=2),
        lambda: AtMostOneClick(Cascade(), keep="last"),  # type: ignore[arg-type]
        lambda: Segmented({}),
    ],
)
def test_invalid_users_are_rejected(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PosbiasError, match="must"):
        make()


# --- sessions -----------------------------------------------------------------------------------------------


def test_sessions_show_what_the_rankers_rank(judgments: Judgments, rankings: dict[str, np.ndarray]) -> None:
    views = {"b": np.array([5, 7, 5]), "a": np.array([7])}
    log = simulate_sessions(judgments, rankings, views, PositionBased(), first_impression=100)
    assert log.schema.field("doc_id").type == log.schema.field("query_id").type == pa.int64()
    rows = log.to_pylist()
    expected = []
    for impression, (name, query) in enumerate([("b", 5), ("b", 7), ("b", 5), ("a", 7)], 100):
        for position, local in enumerate(rankings[name][query], 1):
            if local < 0:
                continue
            ranks = {n: np.flatnonzero(rankings[n][query] == local) + 1 for n in "ab"}
            expected.append(
                {
                    "query_id": query,
                    "doc_id": judgments.offsets[query] + local,
                    "ranker": name,
                    "position": position,
                    "impression_id": impression,
                    **{f"rank_{n}": int(r[0]) if len(r) else None for n, r in ranks.items()},
                }
            )
    assert [{k: v for k, v in row.items() if k != "clicked"} for row in rows] == expected


def test_short_pages_have_fewer_rows_and_seeds_decide_the_clicks(judgments: Judgments) -> None:
    short = judgments.take(np.flatnonzero(judgments.sizes < 6)[:20])
    ranking = {"a": rank_documents(short, np.ones(128))}
    views = {"a": sweeps(20, 3)}
    log = simulate_sessions(short, ranking, views, PositionBased(eta=0, noise=0.5))
    assert log.num_rows == 3 * short.documents
    assert log.equals(simulate_sessions(short, ranking, views, PositionBased(eta=0, noise=0.5)))
    assert not log.equals(simulate_sessions(short, ranking, views, PositionBased(eta=0, noise=0.5), seed=1))


def test_all_pairs_recovers_the_curve_from_a_simulated_log(
    judgments: Judgments, rankings: dict[str, np.ndarray]
) -> None:
    assert 0.2 < same_rank_share(*rankings.values()) < 0.8
    user = PositionBased(eta=1, noise=0.1)
    views = {"a": sweeps(judgments.queries, 40), "b": sweeps(judgments.queries, 10)}
    log = simulate_sessions(judgments, rankings, views, user, seed=5)
    harvest = posbias.harvest(posbias.ClickLog(log))
    assert "a: 120,000, b: 30,000" in repr(harvest)
    fitted = posbias.AllPairs(interval=None).fit(harvest)
    np.testing.assert_allclose(fitted.propensity_, user.propensity(10), rtol=0.12)
    # What the log shows without that: rank and relevance together.
    clicks = log.to_pandas().groupby("position").clicked.mean().to_numpy()
    assert clicks[9] / clicks[0] < 0.08


@pytest.mark.parametrize(
    ("rankings_", "views", "message"),
    [
        ({"a": np.zeros((2, 3), int)}, {"a": [0]}, "rankings must each have 3000 rows"),
        ({"a": np.zeros((3000, 3), int), "b": np.zeros((3000, 2), int)}, {"a": [0]}, "rankings must each"),
        ({}, {}, "rankings must each"),
        ({"a": np.zeros((3000, 3), int)}, {"b": [0]}, "views must name"),
        ({"a": np.zeros((3000, 3), int)}, {}, "views must name"),
        ({"a": np.zeros((3000, 3), int)}, {"a": [3000]}, r"views\['a'\] must be"),
        ({"a": np.zeros((3000, 3), int)}, {"a": [[1]]}, r"views\['a'\] must be"),
        ({"a": np.zeros((3000, 3), int), "A": np.zeros((3000, 3), int)}, {"a": [0]}, "upper and lower case"),
    ],
)
def test_inconsistent_arguments_are_rejected(  # type: ignore[no-untyped-def]
    judgments: Judgments, rankings_, views, message: str
) -> None:
    for simulate in (simulate_sessions, simulate_swaps):
        with pytest.raises(PosbiasError, match=message):
            simulate(judgments, rankings_, views, PositionBased())


# --- swaps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("probability", "chance"), [(None, 1), (0.4, 0.4)])
def test_swap_one_exchanges_rank_1_and_k(
    judgments: Judgments, rankings: dict[str, np.ndarray], probability: float | None, chance: float
) -> None:
    views = {"a": sweeps(judgments.queries, 5)}
    log = simulate_swaps(judgments, rankings, views, PositionBased(), probability=probability).to_pandas()
    moved = log[log.position != log.original_rank]
    assert ((moved.position == 1) | (moved.original_rank == 1)).all()
    pages = moved.groupby("impression_id")
    assert (pages.size() == 2).all()
    assert (pages.position.sum() == pages.original_rank.sum()).all()
    for k in (2, 10):
        shown = log[log.original_rank == k]
        assert_rates((shown.position == 1).mean(), chance / 10, len(shown))
    local = log.doc_id.to_numpy() - judgments.offsets[log.query_id]
    np.testing.assert_array_equal(local, rankings["a"][log.query_id, log.original_rank - 1])
    assert not log.duplicated(["impression_id", "position"]).any()


@pytest.mark.parametrize(("probability", "chance"), [(None, 0.5), (1, 1), (0, 0)])
def test_swap_adjacent_exchanges_neighbours(
    judgments: Judgments, rankings: dict[str, np.ndarray], probability: float | None, chance: float
) -> None:
    top = {name: ranking[:, :5] for name, ranking in rankings.items()}
    views = dict.fromkeys(top, sweeps(judgments.queries, 5))
    log = simulate_swaps(judgments, top, views, PositionBased(), kind="adjacent", probability=probability).to_pandas()
    moved = log[log.position != log.original_rank]
    assert (abs(moved.position - moved.original_rank) == 1).all()
    assert moved.groupby("impression_id").size().isin([2]).all()
    lowest = log[log.original_rank == 5]
    assert_rates((lowest.position == 4).mean(), chance / 4, len(lowest))


def test_swaps_leave_no_hole_in_short_pages(judgments: Judgments) -> None:
    short = judgments.take(np.flatnonzero(judgments.sizes < 6)[:20])
    for kind in ("one", "adjacent"):
        log = simulate_swaps(
            short, {"a": rank_documents(short, np.ones(128))}, {"a": sweeps(20, 50)}, PositionBased(), kind=kind
        ).to_pandas()
        assert (log.position != log.original_rank).any()
        pages = log.groupby("impression_id").position
        assert (pages.max() == pages.size()).all()


def test_the_swap_experiment_shows_the_curve(judgments: Judgments, rankings: dict[str, np.ndarray]) -> None:
    views = dict.fromkeys(rankings, sweeps(judgments.queries, 30))
    log = simulate_swaps(judgments, rankings, views, PositionBased(eta=1), probability=0.5, seed=2).to_pandas()
    # The same results, by chance at rank 2 or at rank 1.
    second = log[log.original_rank == 2].groupby("position").clicked.mean()
    assert second[2] / second[1] == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("wrong", [{"kind": "two"}, {"probability": 1.5}, {"probability": -1}])
def test_invalid_swaps_are_rejected(judgments: Judgments, rankings: dict[str, np.ndarray], wrong: dict) -> None:
    with pytest.raises(PosbiasError, match="must be"):
        simulate_swaps(judgments, rankings, {"a": sweeps(3)}, PositionBased(), **wrong)


# --- traffic ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_traffic_is_split_evenly_or_by_relevance(judgments: Judgments) -> None:
    views = sweeps(judgments.queries, 20)
    for dependence in (0, 0.5, 1):
        split = split_views(judgments, views, ("a", "b", "c"), dependence=dependence, seed=1)
        assert sum(map(len, split.values())) == len(views)
        for ids in split.values():
            assert_rates(np.array(len(ids) / len(views)), [1 / 3], len(views))
        shares = [judgments.take(ids).relevant().mean() for ids in split.values()]
        if dependence == 0:
            assert max(shares) < 1.05 * min(shares)
        else:
            assert shares[0] > 1.2 * shares[1] > 1.2 * 1.2 * shares[2]
    assert split_views(judgments, views, ("a",))["a"].tolist() == views.tolist()
    with pytest.raises(PosbiasError, match="dependence"):
        split_views(judgments, views, dependence=2)
