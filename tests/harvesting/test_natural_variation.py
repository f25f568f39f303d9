"""Test logs without rankers: documents are compared across the positions at which they were shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import posbias
from posbias.estimators.base import log_notes
from tests.harvesting.test_harvest import assert_equal, examples, max_ranks
from tests.support import oracle
from tests.support.logs import HOSTILE_KINDS, PLAIN_KINDS, WEIGHTINGS, Log, Names, aggregate, logs, records, to_arrow
from tests.support.warehouses import EXECUTORS, to_csv

pytestmark = pytest.mark.usefixtures("each_engine")

DAYS = st.sampled_from(["mon", "tue", "1:m"])
DAY = Names(segments={"segment": "day"})


def nameless(log: Log) -> Log:
    """The same log, of which the oracle is told that all was shown by one ranker."""
    return Log(log.layout, [row | {"ranker": "any"} for row in log.rows], ("any",))


def table(log: Log) -> pa.Table:
    return to_arrow(records(log, DAY)).drop_columns(["ranker"])


def in_window(row: oracle.Row) -> oracle.Stratum:
    return row["query"], row["doc"], row["segment"]


@examples(60)
@given(
    data=st.data(),
    M=max_ranks,
    kinds=st.sampled_from([PLAIN_KINDS, HOSTILE_KINDS]),
    weighting=st.sampled_from(WEIGHTINGS),
    window=st.sampled_from([None, "day"]),
)
def test_documents_are_compared_across_all_positions(
    data: Any, M: int, kinds: Any, weighting: str, window: str | None
) -> None:
    log = nameless(data.draw(logs("replay", functional=False, segments=DAYS, ids=kinds)))
    if data.draw(st.booleans()):
        log = aggregate(log)
    found = posbias.harvest(posbias.ClickLog(table(log), window=window), max_rank=M, weighting=weighting, force=True)
    stratum = in_window if window else oracle.query_doc
    shares = oracle.replay_shares(log.rows, M, stratum)
    want = {
        "traffic": lambda: oracle.traffic(
            log.rows, oracle.exposure(shares, oracle.page_views(log.rows, M)), M, stratum
        ),
        "uniform": lambda: oracle.uniform(log.rows, M, stratum),
        "harmonic": lambda: oracle.harmonic(log.rows, M, stratum),
        "min": lambda: oracle.smaller(log.rows, M, stratum),
    }[weighting]()
    assert_equal(found.pairs(), want, M)
    assert found.rankers == ("any",)
    assert found.page_views == oracle.page_views(log.rows, M)
    assert [f.code for f in found.findings if f.code in ("no-ranker", "non-functional-ranker")] == ["no-ranker"]


@examples(10)
@given(data=st.data(), M=max_ranks)
def test_sums_equal_the_sums_of_strata(data: Any, M: int) -> None:
    log = posbias.ClickLog(table(data.draw(logs("replay", functional=False, segments=DAYS))), window="day")
    strata, sums = (posbias.harvest(log, max_rank=M, max_strata=n, force=True) for n in (10_000, 0))
    assert (strata.kind, sums.kind) == ("exposures", "pairs")
    np.testing.assert_allclose(strata.pairs().clicks, sums.pairs().clicks, rtol=1e-12)
    np.testing.assert_allclose(strata.pairs().skips, sums.pairs().skips, rtol=1e-12, atol=1e-12)


def test_printed_query_gives_the_same_comparison(each_engine: str, tmp_path: Any) -> None:
    log = posbias.simulate(posbias.World(queries=60), "replay").drop_columns(["ranker"])
    log = log.append_column("day", pa.array(np.arange(len(log)) // 100 % 3))
    sql = posbias.harvest_sql("duckdb", "clicks", ranker="none", window="day")
    with EXECUTORS["duckdb"]() as run:
        exported = posbias.Harvest.load(to_csv(run(sql, {"clicks": log}), tmp_path))
    harvested = posbias.harvest(posbias.ClickLog(log, window="day"))
    np.testing.assert_allclose(exported.pairs().clicks, harvested.pairs().clicks, rtol=1e-12)
    assert [f.message for f in exported.findings] == [f.message for f in harvested.findings]


def test_curve_does_not_depend_on_the_choice_of_ranker(each_engine: str) -> None:
    queries = 400 if each_engine == "duckdb" else 40
    log = posbias.simulate(posbias.World(queries=queries, seed=3), "replay")
    bare = log.drop_columns(["ranker"])
    truth = posbias.World().propensity
    fits = [
        posbias.AllPairs().fit(posbias.harvest(posbias.ClickLog(source, **given)))
        for source, given in (
            (log, {}),
            (bare, {}),
            (log, {"ranker": "none"}),
            (bare.append_column("ranker", pa.array(["one"] * len(log))), {}),
        )
    ]
    for fit in fits[1:]:
        np.testing.assert_allclose(fit.propensity_, fits[0].propensity_, rtol=1e-9)
    if each_engine == "duckdb":
        np.testing.assert_allclose(
            posbias.CrossFit().fit(posbias.harvest(posbias.ClickLog(bare))).propensity_, truth, rtol=0.4
        )


def test_windows_separate_changes_of_relevance() -> None:
    """Documents that became relevant and rose mislead a comparison over time, and not one within a day."""
    chance = np.random.default_rng(0)
    queries, views = 400, 40
    query = np.repeat(np.arange(queries), views)
    day = np.tile(np.arange(views) % 2, queries)
    # Two documents; the better one of the day is first, but for a coin in four.
    better = day ^ (chance.random(len(query)) < 0.25)
    truth = np.array([1.0, 0.5])
    rows: dict[str, list[Any]] = {name: [] for name in ("query_id", "doc_id", "day", "position", "clicked")}
    for k in (0, 1):
        doc = np.where(k == 0, better, 1 - better)
        relevant = np.where(doc == day, 0.6, 0.2)
        rows["query_id"].append(query)
        rows["doc_id"].append(doc)
        rows["day"].append(day)
        rows["position"].append(np.full(len(query), k + 1))
        rows["clicked"].append((chance.random(len(query)) < truth[k] * relevant).astype(int))
    log = pa.table({name: np.concatenate(parts) for name, parts in rows.items()})
    within, across = (
        posbias.AllPairs().fit(posbias.harvest(posbias.ClickLog(log, window=window), max_rank=2)).propensity_[1]
        for window in ("day", None)
    )
    assert abs(within - 0.5) < 0.05
    assert abs(across - 0.5) > 0.1


def check(source: Any, **given: Any) -> Any:
    return posbias.check(posbias.ClickLog(source, **given))


def test_check_names_the_assumptions() -> None:
    log = posbias.simulate(posbias.World(queries=50), "replay").rename_columns({"ranker": "variant"})
    found = check(log)
    assert found.usable
    [finding] = [f for f in found.findings if f.code == "no-ranker"]
    assert dict(finding.arguments) == {"ranker": "variant"}
    assert "window" in finding.remedy
    assert "ranker" not in found.columns
    pages = {"query_id": [1, 1, 1, 1, 2], "doc_id": [1, 2, 1, 2, 1], "position": [1, 2, 1, 2, 1]}
    never = pa.table(pages | {"clicked": [1, 0, 1, 0, 1]})
    assert "no-disagreement" in [f.code for f in check(never).findings if f.severity == "error"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "no column with the ranker that was shown"),
        ({"ranker": "none"}, "ranks='none', ranker='none'"),
    ],
)
def test_ranks_without_a_ranker_are_rejected(given: Any, says: str) -> None:
    log = posbias.simulate(posbias.World(queries=20)).drop_columns(["ranker"])
    with pytest.raises(posbias.LogError, match=says):
        posbias.harvest(posbias.ClickLog(log, **given))
    assert posbias.harvest(posbias.ClickLog(log, **given | {"ranks": "none"}), force=True).layout == "replay"


def test_misspelled_ranker_column_is_reported() -> None:
    log = posbias.simulate(posbias.World(queries=20), "replay").rename_columns({"ranker": "Rankers"})
    with pytest.raises(posbias.LogError, match="Did you mean 'Rankers'"):
        posbias.harvest(posbias.ClickLog(log))


def test_invalid_windows_are_rejected(each_engine: str) -> None:
    log = posbias.simulate(posbias.World(queries=20), "replay")
    time = pa.array(np.arange(len(log)), pa.timestamp("us"))
    with pytest.raises(posbias.LogError, match="a point in time; a window must be a period such as a day"):
        posbias.harvest(posbias.ClickLog(log.append_column("at", time), window="at"))
    # The query that the message offers runs, also if the column has the name of its result.
    day = '"Day"' if each_engine == "duckdb" else "`Day`"
    offered = {"sql": f"SELECT *, CAST({day} AS DATE) AS day_only FROM source", "window": "day_only"}
    with pytest.raises(posbias.LogError) as refused:
        posbias.harvest(posbias.ClickLog(log.append_column("Day", time), window="Day"))
    assert all(f"{name}={value!r}" in str(refused.value) for name, value in offered.items())
    assert posbias.harvest(posbias.ClickLog(log.append_column("Day", time), **offered)).layout == "replay"
    with pytest.raises(posbias.LogError, match="no value in column 'day'"):
        posbias.harvest(posbias.ClickLog(log.append_column("day", pa.nulls(len(log), pa.int32())), window="day"))
    wide = posbias.simulate(posbias.World(queries=20))
    with pytest.raises(posbias.LogError, match="A window is used only in replay"):
        posbias.harvest(posbias.ClickLog(wide.append_column("day", pa.array([1] * len(wide))), window="day"))
    with pytest.raises(posbias.LogError, match="needs a log that names its rankers, and this log names none"):
        posbias.harvest(posbias.ClickLog(log, ranker="none"), non_functional="refuse")


def test_cross_fit_does_not_depend_on_ranker_names() -> None:
    log = posbias.simulate(posbias.World(queries=150, repeats=12, seed=3), "replay").to_pandas()
    lists = log.groupby("impression_id")["doc_id"].agg(lambda docs: "-".join(map(str, docs)))
    fits = [
        posbias.CrossFit().fit(posbias.harvest(posbias.ClickLog(log.assign(ranker=ranker))))
        for ranker in (log["ranker"], "one", log["impression_id"].map(lists))
    ]
    for fit in fits[1:]:
        np.testing.assert_allclose(fit.propensity_, fits[0].propensity_, rtol=1e-9)
        assert set(fit.notes_) - set(log_notes(fit.harvest_)) == set(fits[0].notes_) - set(log_notes(fits[0].harvest_))


@pytest.mark.parametrize("window", ["query_id", "doc_id", "position", "clicked"])
def test_window_is_a_separate_column(window: str) -> None:
    log = posbias.simulate(posbias.World(queries=20), "replay")
    with pytest.raises(posbias.LogError, match="cannot be both"):
        posbias.harvest(posbias.ClickLog(log, window=window))


def test_duplicates_are_dropped_without_rankers() -> None:
    rows = posbias.simulate(posbias.World(queries=30), "replay").drop(["ranker"])
    copied = pa.concat_tables([rows, rows.slice(0, 20)])
    once, whole = (posbias.ClickLog(table, duplicates="drop") for table in (copied, rows))
    assert posbias.harvest(once).clicks.tolist() == posbias.harvest(whole).clicks.tolist()
    assert posbias.check(once).usable
