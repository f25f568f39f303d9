"""Test that interleaved lists are recognised, and similar logs are not."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pytest
from click.testing import CliRunner, Result

import posbias
from posbias.cli import cli
from tests.support.interleaving import TRUTH, balanced, interleaved, team_draft

BOTH = pytest.mark.parametrize("how", [team_draft, balanced])


def codes(table: pandas.DataFrame, **names: str) -> list[str]:
    return [finding.code for finding in posbias.check(posbias.ClickLog(table, **names)).findings]


def plain(similarity: float = 0.6, **settings: float) -> pandas.DataFrame:
    return posbias.simulate(posbias.World(queries=150, repeats=4, similarity=similarity, **settings)).to_pandas()


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


# ---- What it is


@BOTH
@pytest.mark.parametrize("similarity", [0, 0.6, 0.99])
def test_interleaved_lists_are_recognised(how, similarity):
    table = interleaved(how, 100, similarity=similarity)
    check = posbias.check(posbias.ClickLog(table))
    (finding,) = check.findings
    assert (finding.code, finding.severity) == ("interleaved", "error")
    own = table["rank_a"].where(table["ranker"] == "a", table["rank_b"])
    assert finding.count == int((own.fillna(0) != table["position"]).sum())
    assert finding.evidence["rows"] == len(table)
    assert finding.arguments == {"ranks": "none", "ranker": "none"}
    assert "'a', 'b' were interleaved" in finding.message
    assert not check.usable


@BOTH
def test_interleaving_is_recognised_with_one_ranker_name(how):
    """The ranker whose turn it was to be improved, say."""
    assert "interleaved" in codes(interleaved(how, 100).assign(ranker="a"))


@BOTH
def test_query_shown_once_counts_as_a_page_view(how):
    table = interleaved(how, 200, views=1).drop(columns="impression_id")
    assert "interleaved" in codes(table)


@BOTH
def test_contradiction_without_page_views_mentions_interleaving(how):
    table = interleaved(how, 50).drop(columns="impression_id")
    findings = posbias.check(posbias.ClickLog(table)).findings
    said = next(finding for finding in findings if finding.code == "contradicted-rank")
    assert "If lists were interleaved" in said.remedy
    # Most rows are left out, and what is left is no sample of them. A list that is shifted as a whole is told from it.
    if how is team_draft:
        assert said.severity == "error"
        assert said.arguments == {"ranks": "none", "ranker": "none"}


def test_message_advises_to_omit_the_rankings_table():
    table = interleaved(team_draft, 100)
    rankings = pandas.concat(
        [
            table[["query_id", "doc_id"]].assign(ranker=name, rank=table[f"rank_{name}"]).dropna().drop_duplicates()
            for name in ("a", "b")
        ]
    )
    log = posbias.ClickLog(table.drop(columns=["rank_a", "rank_b"]), rankings=pyarrow.Table.from_pandas(rankings))
    finding = next(finding for finding in posbias.check(log).findings if finding.code == "interleaved")
    assert "Leave out the table of rankings" in finding.remedy


def test_interleaving_of_part_of_the_traffic_is_recognised():
    """One page view in three interleaved, the others by one ranker each."""
    some = interleaved(team_draft, 75).assign(query_id=lambda t: t["query_id"] + 1000)
    assert "interleaved" in codes(pandas.concat([plain(), some.astype({"impression_id": str})]).astype(str))


@BOTH
def test_counting_functions_reject_interleaved_logs(how):
    log = posbias.ClickLog(interleaved(how, 100))
    for count in (posbias.harvest, posbias.intervention_sets):
        with pytest.raises(posbias.LogError, match=r"were interleaved.*Add ranks='none', ranker='none'"):
            count(log)
    forced = posbias.harvest(log, force=True)
    assert "interleaved" in [finding.code for finding in forced.findings]


def test_unknown_ranker_message_mentions_interleaving():
    log = posbias.ClickLog(interleaved(team_draft, 50).assign(ranker="interleaved"))
    with pytest.raises(
        posbias.LogError, match=r"interleaved lists of these rankers, use ranks='none' and ranker='none'"
    ):
        posbias.harvest(log)


def test_command_message_names_the_flags(tmp_path: Path):
    log = tmp_path / "log.parquet"
    interleaved(team_draft, 100).to_parquet(log)
    done = run("check", log)
    assert done.exit_code == 1
    assert "add      --ranks none --ranker none" in done.stdout
    assert f"{shlex.quote(str(log))} --ranks none --ranker none" in done.stderr
    refused = run("estimate", log)
    assert refused.exit_code == 2
    assert "--ranks none --ranker none" in refused.stderr


@BOTH
def test_message_without_ranks_says_how_to_compare(how):
    """Only the team of each result is known."""
    table = interleaved(how, 100).drop(columns=["rank_a", "rank_b"])
    finding = next(
        f for f in posbias.check(posbias.ClickLog(table)).findings if f.code == "several-rankers-in-page-view"
    )
    assert finding.arguments == {"ranker": "none"}
    assert "interleaved" in finding.remedy
    assert posbias.check(posbias.ClickLog(table, ranker="none")).usable


# ---- What it is not


@pytest.mark.parametrize("similarity", [0, 0.8, 0.99])
@pytest.mark.parametrize("after", [0, 1, 2, 4])
def test_advertisements_are_not_taken_for_interleaving(similarity, after):
    table = plain(similarity)
    table["position"] += (table["position"] > after).astype(int)
    assert "interleaved" not in codes(table)
    assert "contradicted-rank" in codes(table)


@pytest.mark.parametrize("share", [0.12, 0.3, 1.0])
@pytest.mark.parametrize("similarity", [0.6, 0.99])
def test_results_moved_at_random_are_not_interleaved(share, similarity):
    table = plain(similarity)
    rng = np.random.default_rng(0)
    views = table["impression_id"].to_numpy()
    moved = rng.random(views.max() + 1) < share
    order = np.argsort(views * 100.0 + rng.permutation(len(table)) / len(table) * 99)
    shuffled = np.empty(len(table), dtype=int)
    shuffled[order] = np.tile(np.arange(1, 11), len(table) // 10)
    table["position"] = np.where(moved[views], shuffled, table["position"])
    assert "interleaved" not in codes(table)


@pytest.mark.parametrize("similarity", [0.6, 0.99])
def test_two_results_exchanged_on_a_page_are_not_interleaved(similarity):
    table = plain(similarity)
    k = np.random.default_rng(0).integers(1, 10, size=table["impression_id"].max() + 1)[table["impression_id"]]
    table["position"] = np.where(
        table["position"] == k, k + 1, np.where(table["position"] == k + 1, k, table["position"])
    )
    found = codes(table)
    assert "contradicted-rank" in found
    assert "interleaved" not in found


def test_ranks_with_another_base_are_not_interleaved():
    table = plain()
    for columns in (["rank_a", "rank_b"], ["position"]):
        for by in (-1, 1):
            assert "interleaved" not in codes(table.assign(**{c: table[c] + by for c in columns}))


def test_session_ids_as_page_views_are_not_interleaved():
    table = plain()
    assert "interleaved" not in codes(table.assign(impression_id=table["impression_id"] // 5))


def test_exchanged_ranker_names_are_not_interleaved():
    """Every page view in one ranker's order, by the other's name."""
    table = plain()
    assert "interleaved" not in codes(table.assign(ranker=table["ranker"].map({"a": "b", "b": "a"})))


# ---- What is advised


@BOTH
def test_recommended_command_gives_the_curve(how, tmp_path: Path):
    log = tmp_path / "log.parquet"
    interleaved(how, 600, views=6).to_parquet(log)
    advice = next(line.split(None, 1)[1] for line in run("check", log).stdout.splitlines() if "    add " in line)
    done = run("estimate", log, *shlex.split(advice), "--json")
    assert done.exit_code == 0, done.output
    positions = json.loads(done.stdout)["positions"]
    for found, truth in zip(positions[1:], TRUTH[1:], strict=True):
        spread = np.log(found["high"] / found["low"]) / 2
        assert abs(np.log(found["propensity"] / truth)) < 2 * spread
