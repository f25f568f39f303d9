"""Test that ranks that only the rows of their own ranker have are rejected."""

from __future__ import annotations

import numpy as np
import pandas
import pytest

import posbias

SHUFFLED = posbias.World(queries=600, rankers=("a", "b", "r"), random=("r",), max_rank=5)


def with_own_positions(world: posbias.World) -> pandas.DataFrame:
    """The positions of a random ranker as its rank column, on its own rows."""
    table = posbias.simulate(world).to_pandas()
    return table.assign(rank_r=table["position"].where(table["ranker"] == "r").astype("Int64"))


def test_rank_column_with_only_own_positions_is_rejected():
    log = posbias.ClickLog(with_own_positions(SHUFFLED))
    found = [finding for finding in posbias.check(log).findings if finding.code == "one-sided-ranks"]
    assert "The ranks of 'r' are known only" in found[0].message
    with pytest.raises(posbias.LogError, match=r"The ranks of 'r' are known only.*Add ranks='none'"):
        posbias.harvest(log)


def test_one_sided_ranks_are_biased_and_the_recommended_layout_is_not():
    table = with_own_positions(SHUFFLED)
    forced = posbias.AllPairs(interval=None).fit(posbias.harvest(posbias.ClickLog(table), force=True))
    assert forced.propensity_[4] > 1.2 * SHUFFLED.propensity[4]
    for log in (posbias.ClickLog(table, ranks="none"), posbias.ClickLog(table[table["ranker"] != "r"])):
        fitted = posbias.AllPairs().fit(posbias.harvest(log))
        error = np.log(fitted.propensity_[1:5] / SHUFFLED.propensity[1:])
        assert np.all(np.abs(error) < 4 * np.sqrt(np.diagonal(fitted.covariance_))[1:5])


def test_one_sided_ranks_of_a_deterministic_ranker_are_rejected():
    """Ranks of b that were logged only when b served."""
    table = posbias.simulate(posbias.World(queries=200)).to_pandas()
    table["rank_b"] = table["rank_b"].where(table["ranker"] == "b")
    assert "one-sided-ranks" in [f.code for f in posbias.check(posbias.ClickLog(table)).findings]
    with pytest.raises(posbias.LogError, match="The ranks of 'b' are known only"):
        posbias.harvest(posbias.ClickLog(table))


@pytest.mark.parametrize("similarity", [0, 0.99])
@pytest.mark.parametrize("traffic", [(1, 1), (99, 1), (1, 0)])
def test_valid_logs_pass(similarity, traffic):
    table = posbias.simulate(posbias.World(queries=200, similarity=similarity, traffic=traffic))
    log = posbias.ClickLog(table)
    assert "one-sided-ranks" not in [f.code for f in posbias.check(log).findings]
    assert posbias.harvest(log).findings == ()
