"""Reports: the page shows what the library computes, loads nothing, and contains no row of the log."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import posbias
from posbias._defaults import DEFAULT_CAP
from posbias.cli import cli
from posbias.cli.report import _command_line, _next_steps
from posbias.cli.report import report as command
from posbias.errors import CurveError, HarvestError, PosbiasError
from posbias.harvesting import harvest as harvests
from posbias.judging.diagnose import diagnose_harvest
from posbias.reporting.report import Report, click_weights
from tests.support.lying_logs import crawlers, healthy
from tests.support.pages import elements, table
from tests.support.users import with_users

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`&{{7*7}}{%x%}$x^2$\u202e\x1b[2J\ufffe漢字🎉"
SECRET = "nobody-should-see-this"
M = 5


def spelled(log: pa.Table, evil: str) -> pa.Table:
    """Return a log whose rankers, segment column, segments and ids hold a text."""
    rows = log.to_pylist()
    for row in rows:
        row["ranker"] = f"{row['ranker']}{evil}"
        for name in ("a", "b"):
            row[f"rank_{name}{evil}"] = row.pop(f"rank_{name}")
        row[f"device{evil}"] = f"{evil}{row.pop('device')}"
        row["query_id"], row["doc_id"] = (f"{SECRET}-{row[name]}" for name in ("query_id", "doc_id"))
    return pa.Table.from_pylist(rows)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A log by segments, its harvest, that of another time, one with hostile names, and some days."""
    folder = tmp_path_factory.mktemp("report")
    made = {name: str(folder / name) for name in ("log.parquet", "one.harvest", "two.harvest", "evil.harvest", "days")}
    log = posbias.simulate(posbias.World(queries=250, max_rank=M, segments={"phone": 1.5, "desk": 0.5}, seed=2))
    pq.write_table(log, made["log.parquet"])
    harvest = posbias.harvest(posbias.ClickLog(made["log.parquet"]), max_rank=M, by=["device"])
    harvest.save(made["one.harvest"])
    other = posbias.simulate(posbias.World(queries=250, max_rank=M, eta=1.8, seed=9))
    posbias.harvest(posbias.ClickLog(other), max_rank=M).save(made["two.harvest"])
    # Some rows contradict their ranks, of which a finding would give an example.
    evil = spelled(log, EVIL).to_pylist()
    for row in evil[:9]:
        row["position"] += 1
    hostile = posbias.ClickLog(pa.Table.from_pylist(evil))
    posbias.harvest(hostile, max_rank=M, by=[f"device{EVIL}"], force=True).save(made["evil.harvest"])
    curve = posbias.CrossFit().fit(posbias.Harvest.load(made["two.harvest"])).curve()
    days = posbias.History().add(curve, "2026-03-01").add(curve, "2026-03-03", [f"drift{EVIL}"])
    days.save(made["days"])
    return made | {"folder": str(folder)}


@pytest.fixture(scope="module")
def report(files: dict[str, str]) -> Report:
    return posbias.report(files["one.harvest"], history=files["days"])


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return report.to_html()


@pytest.fixture(scope="module")
def evil(files: dict[str, str]) -> str:
    return posbias.report(files["evil.harvest"], history=files["days"], names=[EVIL]).to_html()


def run(*words: str) -> str:
    result = CliRunner().invoke(cli, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_page_shows_the_numbers_of_the_estimate(files: dict[str, str], page: str) -> None:
    estimated = json.loads(run("estimate", files["one.harvest"], "--json"))
    copied = next(one for one in elements(page) if one.attributes.get("id") == "p0-json")
    assert json.loads(copied.text) == estimated
    held = [one.attributes["value"] for one in elements(page) if one.tag == "data"]
    told = [p[name] for p in estimated["positions"] for name in ("propensity", "low", "high")]
    assert held == [str(value) for value in told if value is not None]
    rows = table(page, "The curve")[1:]
    assert [[row[0], *row[4:]] for row in rows] == [
        [f"{p['position']}", f"{p['impressions']:,}", f"{p['clicks']:,}"] for p in estimated["positions"]
    ]
    drawn = table(page, "Numbers of: Examination by rank")
    assert [row[:2] for row in drawn[1:]] == [[row[0], row[1]] for row in rows]


def test_the_evidence_is_computed_from_the_harvest(files: dict[str, str], report: Report, page: str) -> None:
    harvest = posbias.Harvest.load(files["one.harvest"])
    cells = [row[1:] for row in table(page, "Numbers of: Clicks in the intervention sets")[1:]]
    assert cells == [
        ["" if k == j else f"{clicks:,.0f}" for j, clicks in enumerate(row)]
        for k, row in enumerate(harvest.pair_clicks())
    ]
    clicks, p = harvest.pairs().clicks, report.parts[0].curve.propensity
    ratios = table(page, "Numbers of: Pairs of ranks against the curve")[1:]
    assert len(ratios) == M * (M - 1) / 2
    for one, other, ratio, _, expected, _ in ratios:
        k, j = int(one) - 1, int(other) - 1
        assert ratio == f"{clicks[j, k] / clicks[k, j]:.3f}"
        assert expected == f"{p[j] / p[k]:.3f}"
    estimators = table(page, "Numbers of: Estimators side by side")
    assert estimators[0] == ["rank", "cross-fit", "all-pairs", "pivot-one", "adjacent-chain"]
    chain = posbias.AdjacentChain().fit(harvest)
    assert [row[4].split(" ")[0] for row in estimators[1:]] == [f"{value:.3f}" for value in chain.propensity_]
    rates = [row[1] for row in table(page, "Numbers of: Click rate and examination")[1:]]
    assert rates == [f"{rate:.2%}" for rate in harvest.clicks / harvest.impressions]


def test_python_to_copy_gives_the_curve(report: Report, page: str) -> None:
    code = next(one for one in elements(page) if one.attributes.get("id") == "p0-python").text
    names: dict[str, list[float]] = {}
    exec(code[code.index("propensity = ") :], names)
    np.testing.assert_allclose(names["propensity"], report.parts[0].curve.propensity, atol=1e-6)


def test_findings_are_those_of_the_diagnosis(files: dict[str, str], report: Report) -> None:
    harvest = posbias.Harvest.load(files["one.harvest"])
    found = diagnose_harvest(harvest, segments=posbias.compare_segments(harvest))
    part = report.parts[0]
    # Its curves were estimated once, not twice.
    assert part.diagnosis == found
    assert {f.code for f in part.findings} == {f.code for f in (*found.findings, *harvest.findings)}
    others = {f.code for f in posbias.diagnose(harvest).findings}
    assert {f.code for f in found.findings} == others | {"segments-differ"}


def test_a_report_on_a_log_checks_page_views_and_names_columns(files: dict[str, str]) -> None:
    made = posbias.report(posbias.ClickLog(files["log.parquet"]), max_rank=M, by=["device"])
    found = posbias.diagnose(posbias.ClickLog(files["log.parquet"]), max_rank=M)
    codes = {f.code for f in made.parts[0].findings}
    assert codes >= {f.code for f in found.findings}
    assert codes & {"page-clicks", "one-click-pages"}
    assert made.title == "Position bias in log.parquet"
    facts = made.parts[0].origin.facts
    assert facts["columns"].startswith("query: query_id, doc: doc_id, ranker: ranker, position: position, click:")
    assert facts["intervals cluster by"] == "query"
    by_user = posbias.report(posbias.ClickLog(with_users(20)), max_rank=4)
    assert by_user.parts[0].origin.facts["intervals cluster by"] == "query and user_id"


def test_hostile_names_stay_text(evil: str) -> None:
    found = elements(evil)
    assert len([one for one in found if one.tag == "script"]) == 1
    assert {one.tag for one in found} <= {
        *("html", "head", "meta", "title", "style", "body", "header", "nav", "main", "section", "script", "div"),
        *(
            "h1",
            "h2",
            "h3",
            "p",
            "ul",
            "li",
            "a",
            "figure",
            "figcaption",
            "details",
            "summary",
            "strong",
            "code",
            "pre",
        ),
        *("table", "caption", "thead", "tbody", "tr", "th", "td", "data", "dl", "dt", "dd", "sub"),
        *("svg", "desc", "g", "path", "text", "clippath", "image"),
    }
    names = {name for one in found for name in one.attributes}
    assert not {name for name in names if name.startswith("on") or name == "style"}
    assert not {"\u202e", "\x1b"} & {*evil}
    text = found[0].text
    assert "{{7*7}}{%x%}" in text
    assert "</script><script>alert(1)</script><img src=x onerror=alert(2)>" in text
    assert "漢字🎉" in text
    assert len({one.attributes["id"] for one in found if "id" in one.attributes}) == len(
        [one for one in found if "id" in one.attributes]
    )


def test_no_row_of_the_log_is_in_the_page(files: dict[str, str], evil: str) -> None:
    assert SECRET.encode() not in Path(files["evil.harvest"]).read_bytes()
    harvest = posbias.Harvest.load(files["evil.harvest"])
    assert SECRET not in evil
    made = posbias.report(harvest)
    assert SECRET not in json.dumps(made.to_dict())
    assert [f.message for f in made.parts[0].findings if f.code == "contradicted-rank"]


def test_the_policy_allows_nothing_but_the_page_itself(page: str, evil: str) -> None:
    for one in (page, evil):
        found = elements(one)
        policies = [e.attributes for e in found if "http-equiv" in e.attributes]
        assert len(policies) == 1
        parts = dict(part.strip().split(" ", 1) for part in policies[0]["content"].split(";"))
        assert parts["default-src"] == parts["base-uri"] == parts["form-action"] == "'none'"
        for tag in ("style", "script"):
            (own,) = re.findall(rf"<{tag}>(.*?)</{tag}>", one, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
            assert parts[f"{tag}-src"] == f"'sha256-{digest}'"
        assert parts["img-src"] == "data:"
        assert {*parts} == {"default-src", "style-src", "script-src", "img-src", "base-uri", "form-action"}
        # Nothing is asked of anyone.
        links = [e.attributes[name] for e in found for name in ("href", "src", "xlink:href") if name in e.attributes]
        assert [link for link in links if not link.startswith(("#", "data:"))] == []
        assert not re.search(r"url\((?!#)|@import|https?:", re.search(r"<style>(.*?)</style>", one, re.DOTALL)[1])


def test_figures_have_texts_and_tables(page: str) -> None:
    found = elements(page)
    pictures = [one for one in found if one.tag == "svg"]
    assert len(pictures) == 9
    ids = {one.attributes["id"]: one for one in found if "id" in one.attributes}
    for picture in pictures:
        title, text = (ids[name] for name in picture.attributes["aria-labelledby"].split())
        assert title.text
        assert len(text.text) > 30
    captions = [one.text for one in found if one.tag == "caption"]
    assert len([text for text in captions if text.startswith("Numbers of: ")]) == len(pictures)
    marks = [one.text for one in found if one.tag == "title" and one.inside[-3:] == ["svg", "g", "path"]]
    assert [text for text in marks if text.startswith("Rank 2\npropensity: ")]
    # What one picture refers to is its own.
    used = {
        found_in for one in found for found_in in re.findall(r"url\(#([\w-]+)\)", " ".join(one.attributes.values()))
    }
    assert len(used) == len(pictures)
    assert used <= {*ids}


def test_a_report_is_deterministic(files: dict[str, str], report: Report, page: str) -> None:
    again = posbias.report(files["one.harvest"], history=posbias.History.load(files["days"]))
    assert again.to_html() == page
    assert again.to_dict() == report.to_dict()


@pytest.mark.long
def test_two_harvests_are_compared(files: dict[str, str]) -> None:
    made = posbias.report(files["one.harvest"], files["two.harvest"])
    harvests = [posbias.Harvest.load(files[name]) for name in ("one.harvest", "two.harvest")]
    found = posbias.compare(*harvests, names=["one", "two"])
    assert made.comparison == found
    assert made.title == "Position bias in one.harvest and two.harvest"
    shown = made.to_html()
    assert found.verdict in elements(shown)[0].text
    rows = table(shown, "Numbers of: two against one")[1:]
    assert [row[0] for row in rows] == [f"{d.rank}" for d in found.differences]
    assert [row[3] for row in rows] == [f"{d.ratio:.3f}" for d in found.differences]


def test_days_are_shown(files: dict[str, str], page: str) -> None:
    rows = table(page, "Numbers of: Examination by day")
    kept = posbias.History.load(files["days"])
    assert [row[0] for row in rows[1:]] == [str(day.date) for day in kept.days]
    second = kept.days[0].positions[1]
    assert rows[1][1] == f"{second.propensity:.3f} ({second.low:.3f} – {second.high:.3f})"
    assert "1 day between has no curve" in page
    # What is listed is what is drawn.
    listed = [head for head in rows[0] if head.startswith("rank ")]
    (drawn,) = re.findall(r'<figure id="h-days">.*?</svg>', page, re.DOTALL)
    assert [f"rank {rank}" for rank in re.findall(r">rank (\d+)</text>", drawn)] == listed


def test_segments_are_compared(files: dict[str, str], page: str) -> None:
    found = posbias.compare_segments(posbias.Harvest.load(files["one.harvest"]))
    assert found.verdict in elements(page)[0].text
    rows = table(page, "Segments against the mean of all")[1:]
    assert {row[0]: row[2] for row in rows} == {one.segment[0]: f"{one.ratio:.3f}" for one in found.segments}


def test_a_report_by_segments_leads_with_them_and_with_the_test_whether_they_differ(report: Report, page: str) -> None:
    lead, _, together, *_ = report.parts[0].sentences
    assert re.match(r"By device, a result at rank 2 is seen \d+% \(desk\) and \d+% \(phone\) as often as one", lead)
    assert "segments by device" in lead
    assert together.startswith("All segments together: a result at rank 2 is seen")
    places = [
        page.index(text) for text in ("By device, a result", "Segments side by side", "all segments together</h3>")
    ]
    assert places == sorted(places)


def test_segments_that_differ_are_a_warning(files: dict[str, str], report: Report, tmp_path: Path) -> None:
    found = posbias.compare_segments(posbias.Harvest.load(files["one.harvest"]))
    assert found.differs
    assert found.joint is not None
    part = report.parts[0]
    warning = next(f for f in part.findings if f.code == "segments-differ")
    assert (warning.severity, warning.count) == ("warning", 2)
    assert warning.evidence["statistic"] == pytest.approx(found.joint.statistic, rel=1e-3)
    assert warning.evidence["p_value"] == pytest.approx(found.joint.p_value, rel=1e-3)
    # However sure it is: an average of curves can be used.
    assert warning.evidence["p_value_corrected"] < 0.001
    assert part.severity == "warning"
    assert part.sentences[1].startswith("Use this curve with care: there ")
    said = CliRunner().invoke(cli, ["report", files["one.harvest"], "-o", str(tmp_path / "r.html")])
    assert part.sentences[1] in said.stderr
    # A diagnosis of the harvest says the same.
    diagnosed = posbias.diagnose(posbias.Harvest.load(files["one.harvest"]))
    assert [f.severity for f in diagnosed.findings if f.code == "segments-differ"] == ["warning"]


def test_the_test_of_segments_is_corrected_for_all_tests_of_the_diagnosis(
    files: dict[str, str], report: Report
) -> None:
    """Alone it raises an alarm at 1 − level; in a diagnosis, all tests together do."""
    harvest = posbias.Harvest.load(files["one.harvest"])
    found = posbias.compare_segments(harvest)
    assert found.joint is not None
    for p, codes in ((0.04, set()), (0.001, {"segments-differ"}), (0.4, set())):
        chance = replace(found, joint=found.joint._replace(p_value=p))
        part = replace(report.parts[0], segments=chance, diagnosis=diagnose_harvest(harvest, segments=chance))
        assert chance.differs == (p < 0.05)
        assert {f.code for f in part.diagnosis.findings if f.code == "segments-differ"} == codes
        # The page says in words what it finds.
        said = " ".join(part.sentences)
        assert ("The curves of the 2 segments by device differ" in said) == bool(codes)
        assert ("With this number of tests, chance alone may cause such a difference" in said) == (p == 0.04)


def test_weights_are_those_of_each_segments_own_curve(files: dict[str, str], report: Report) -> None:
    weights, curve = report.parts[0].weights, report.parts[0].curve
    log = posbias.ClickLog(files["log.parquet"])
    for cap, ours in ((20, weights), (2, click_weights(curve, cap=2))):
        made = posbias.ips_weights(log, curve, cap=cap)
        assert ours.clicks == made.clicks
        assert ours.effective_clicks == pytest.approx(made.effective_clicks)
        assert ours.capped_share == pytest.approx(made.capped_share, abs=1e-12)
    second = [(p.clicks, 1 / p.propensity) for part in curve.segments.values() for p in part.positions[1:2]]  # type: ignore[operator]
    assert weights.ranks[1].weight == pytest.approx(sum(n * w for n, w in second) / sum(n for n, _ in second))
    assert click_weights(replace(curve, segments=dict([*curve.segments.items()][:1]))).clicks_without_weight == sum(
        p.clicks for p in [*curve.segments.values()][1].positions
    )


def test_weights_are_one_over_the_propensity(files: dict[str, str], report: Report) -> None:
    curve = replace(report.parts[0].curve, by=(), segments={})
    weights = click_weights(curve)
    held = {p.position: (p.clicks, 1 / p.propensity) for p in curve.positions if p.propensity}
    every = [weight for clicks, weight in held.values() for _ in range(clicks)]
    assert weights.clicks == len(every)
    assert weights.effective_clicks == pytest.approx(sum(every) ** 2 / sum(weight**2 for weight in every))
    assert weights.capped_share == pytest.approx(0, abs=1e-12)
    # As the log's own weights have it.
    assert weights.cap == DEFAULT_CAP
    log = posbias.ClickLog(files["log.parquet"])
    made = posbias.ips_weights(log, curve)
    assert made.effective_clicks == pytest.approx(weights.effective_clicks)
    tight = click_weights(curve, cap=2)
    cut = sum(min(weight, 2) for weight in every)
    assert tight.capped_share == pytest.approx(1 - cut / sum(every))
    capped = posbias.ips_weights(log, curve, cap=2)
    assert capped.capped_share == pytest.approx(tight.capped_share)
    assert capped.effective_clicks == pytest.approx(tight.effective_clicks)
    assert [one.rank for one in tight.ranks if one.capped] == [rank for rank, (_, weight) in held.items() if weight > 2]


def broken() -> posbias.Harvest:
    """A harvest of which no document moves to or from ranks 4 and 5, though these are clicked."""
    rows = posbias.simulate(posbias.World(queries=60, max_rank=3)).to_pylist()
    for n, row in enumerate([row for row in rows if row["position"] == 1]):
        rows += [
            row | {"doc_id": -k, "position": k, "rank_a": k, "rank_b": k, "clicked": int(n % 4 == 0)} for k in (4, 5)
        ]
    return posbias.harvest(posbias.ClickLog(pa.Table.from_pylist(rows)), max_rank=M)


def test_the_report_names_ranks_without_an_estimate() -> None:
    made = posbias.report(broken())
    part = made.parts[0]
    assert [p.propensity is None for p in part.curve.positions] == [False, False, False, True, True]
    assert "Ranks 4 and 5 have no estimate: no document that appears at this rank" in " ".join(part.sentences)
    assert part.severity == "warning"
    shown = made.to_html()
    assert [row[1] for row in table(shown, "The curve")[4:]] == ["–", "–"]
    assert [row[1] for row in table(shown, "Numbers of: Comparisons that link the ranks")[1:]] == ["yes"] * 3 + [
        "no"
    ] * 2
    assert part.weights.clicks_without_weight == sum(p.clicks for p in part.curve.positions[3:])
    assert 'float("nan")' in shown.replace("&#34;", '"')


@pytest.mark.long
def test_a_report_with_many_ranks_stays_small() -> None:
    harvest = posbias.harvest(posbias.ClickLog(posbias.simulate(posbias.World(queries=200, max_rank=50))), max_rank=50)
    made = posbias.report(harvest, harvest)
    shown = made.to_html()
    assert len(shown.encode()) < 500_000
    assert len(table(shown, "The curve")) == 51
    assert made.comparison is not None
    assert not made.comparison.differs


def test_estimators_side_by_side_are_counted_once(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    harvest = posbias.Harvest.load(files["two.harvest"])
    first = harvest.interventions()
    assert posbias.PivotOne().count(harvest) is posbias.AdjacentChain().count(harvest) is first
    # But where that would be much to hold.
    monkeypatch.setattr(harvests, "_MAX_CACHED", first.clicks.size - 1)
    again = posbias.Harvest.load(files["two.harvest"])
    assert again.interventions() is not again.interventions()


@pytest.mark.parametrize("layout", ["wide", "replay"])
def test_clicks_of_sets_are_counted_not_weighted(layout: str) -> None:
    rows = posbias.simulate(posbias.World(queries=40, max_rank=4), layout).to_pylist()
    harvest = posbias.harvest(posbias.ClickLog(pa.Table.from_pylist(rows)), max_rank=4)
    at: dict[tuple[object, object], set[int]] = {}
    for row in rows:
        ranks = [row[name] for name in row if name.startswith("rank_")] if layout == "wide" else [row["position"]]
        at.setdefault((row["query_id"], row["doc_id"]), set()).update(rank for rank in ranks if rank is not None)
    expected = np.zeros((4, 4))
    for row in rows:
        for other in at[row["query_id"], row["doc_id"]]:
            if max(other, row["position"]) <= 4 and other != row["position"]:
                expected[row["position"] - 1, other - 1] += row["clicked"]
    np.testing.assert_array_equal(harvest.pair_clicks(), expected)


@pytest.mark.long
def test_the_command_makes_the_same_page_again(files: dict[str, str], tmp_path: Path) -> None:
    target = tmp_path / "it's a report.html"
    words = ["report", files["log.parquet"], "-o", str(target), "--by", "device", "--max-rank", "3", "--level", "0.9"]
    run(*words)
    first = target.read_text("utf-8")
    shown = next(one.text for one in elements(first) if one.attributes.get("id") == "command")
    assert shlex.split(shown)[:2] == ["posbias", "report"]
    run(*shlex.split(shown)[1:])
    # Only the time of the harvest differs.
    stamped = re.compile(r"\d{4}-\d\d-\d\dT[\d:+]+")
    assert stamped.sub("", target.read_text("utf-8")) == stamped.sub("", first)


def typed(page: str) -> dict[str, str]:
    """Return the next steps in a page by purpose."""
    found = [one.text for one in elements(page) if one.tag in ("dt", "dd")]
    return dict(zip(found[::2], found[1::2], strict=True))


CURVE, WEIGHTS = "Save the curve with its covariance", "Compute weights for learning to rank"


@pytest.mark.long
def test_commands_that_come_next_make_the_same_curve(files: dict[str, str], tmp_path: Path) -> None:
    named = {"query_id": "q", "doc_id": "d", "position": "rank shown", "impression_id": "view"}
    log, target = str(tmp_path / "its own.parquet"), tmp_path / "report.html"
    table = pq.read_table(files["log.parquet"])
    pq.write_table(table.rename_columns([named.get(name, name) for name in table.column_names]), log)
    columns = ["--query", "q", "--doc", "d", "--position", "rank shown", "--impression", "view"]
    run("report", log, "-o", str(target), *columns, "--max-rank", "3", "--estimator", "all-pairs", "--level", "0.9")
    page = target.read_text("utf-8")
    said = typed(page)
    assert len(said) == 4
    shown = json.loads(next(one.text for one in elements(page) if one.attributes.get("id") == "p0-json"))
    command, _, kept = said[CURVE].partition(" > ")
    assert json.loads(run(*shlex.split(command)[1:])) == shown
    assert kept == "curve.json"
    (tmp_path / kept).write_text(json.dumps(shown))
    weigh_them = said.pop(WEIGHTS).replace("curve.json", shlex.quote(str(tmp_path / kept)))
    made = tmp_path / "weights.parquet"
    run(*shlex.split(weigh_them.replace("weights.parquet", shlex.quote(str(made))))[1:], "--beyond", "clip")
    assert pq.read_table(made).num_rows
    for line in said.values():
        assert set(columns) < {*shlex.split(line)}


@pytest.mark.long
def test_next_steps_in_python_make_the_same_curve(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = posbias.report(posbias.ClickLog(files["log.parquet"]), max_rank=3, by=["device"], level=0.9)
    said = made.to_dict()["parts"][0]["next"]
    names: dict[str, object] = {"posbias": posbias}
    exec("\n".join([said["Get the harvest"], said[CURVE], said[WEIGHTS].replace(")", ", beyond='clip')")]), names)
    assert posbias.Curve.load("curve.json") == made.parts[0].curve
    assert pq.read_table("weights.parquet").num_rows


def test_next_steps_are_in_the_page(files: dict[str, str], report: Report, page: str) -> None:
    said = report.to_dict()["parts"][0]["next"]
    assert typed(page) == said
    assert said["Get the harvest"] == f"harvest = posbias.Harvest.load({files['one.harvest']!r})"
    assert said[CURVE] == "posbias.CrossFit().fit(harvest).curve().save('curve.json')"


def test_secrets_of_spark_are_not_shown(files: dict[str, str]) -> None:
    words = [files["log.parquet"], "-o", "x.html", "--engine", "spark", "--spark-conf", f"fs.s3a.secret.key={SECRET}"]
    told = _command_line(command.make_context("report", [*words, "--force"]))
    assert SECRET not in told
    assert "--spark-conf fs.s3a.secret.key=... " in told
    assert told.endswith("--force")
    (said,) = _next_steps(command.make_context("report", [*words, "--force"]), from_harvests=False)
    assert SECRET not in str(said)
    assert "--engine spark" in said[CURVE]
    # Which are made by DuckDB alone.
    assert said[WEIGHTS].endswith("log.parquet --force --estimate curve.json -o weights.parquet")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["one.harvest", "log.parquet"], "2 files were given, 1 of them harvests"),
        (["log.parquet", "log.parquet"], "2 files were given, 0 of them harvests"),
        (["one.harvest", "two.harvest", "one.harvest"], "3 files were given"),
        (["one.harvest", "--by", "device"], "--by was decided when it was made"),
        (["one.harvest", "--history", "one.harvest"], "is not a history"),
        (["nowhere.parquet"], "nowhere.parquet"),
    ],
)
def test_the_command_rejects_invalid_input(words: list[str], said: str, files: dict[str, str], tmp_path: Path) -> None:
    target = tmp_path / "old.html"
    before = '<!DOCTYPE html><meta name="generator" content="posbias 0.1.0">'
    target.write_text(before)
    result = CliRunner().invoke(cli, ["report", *(files.get(word, word) for word in words), "-o", str(target)])
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert target.read_text() == before
    assert [*tmp_path.iterdir()] == [target]


def test_a_report_does_not_overwrite_its_input(files: dict[str, str], tmp_path: Path) -> None:
    for words in (["one.harvest", "-o", "one.harvest"], ["one.harvest", "--history", "days", "-o", "days"]):
        result = CliRunner().invoke(cli, ["report", *(files.get(word, word) for word in words)])
        assert result.exit_code == 2
        assert "is the file that is being read" in result.stderr
    assert (
        CliRunner().invoke(cli, ["report", files["one.harvest"], "-o", str(tmp_path / "no" / "x.html")]).exit_code == 2
    )


def test_invalid_arguments_are_rejected(files: dict[str, str]) -> None:
    with pytest.raises(HarvestError, match="report takes a Harvest or a ClickLog, not a dict"):
        posbias.report({})  # type: ignore[arg-type]
    with pytest.raises(HarvestError, match="2 names were given for 1"):
        posbias.report(files["one.harvest"], names=["a", "b"])
    with pytest.raises(HarvestError, match="Both are called 'a'"):
        posbias.report(files["one.harvest"], files["two.harvest"], names=["a", "a"])
    with pytest.raises(CurveError, match="The history has no day yet"):
        posbias.report(files["one.harvest"], history=posbias.History())
    with pytest.raises(CurveError, match="does not fit on a harvest"):
        posbias.report(files["one.harvest"], estimator="naive-ctr")
    with pytest.raises(PosbiasError, match="level"):
        posbias.report(files["one.harvest"], level=95)
    with pytest.raises(PosbiasError, match="is a folder"):
        posbias.report(files["one.harvest"]).save(files["folder"])


@pytest.mark.parametrize("kind", ["sums", "replay", "one query"])
def test_every_kind_of_harvest_has_a_report(kind: str) -> None:
    world = posbias.World(queries=1 if kind == "one query" else 80, max_rank=3, repeats=60)
    log = posbias.ClickLog(posbias.simulate(world, "replay" if kind == "replay" else "wide"))
    harvest = posbias.harvest(log, max_rank=3, max_strata=0 if kind == "sums" else 10**6)
    made = posbias.report(harvest)
    assert made.parts[0].curve.estimator == ("all-pairs" if kind == "sums" else "cross-fit")
    if kind == "one query":
        assert made.parts[0].sentences[1] == "Use this curve with care: there is 1 warning."
    assert len(elements(made.to_html())) > 200


def test_a_problem_that_harvest_and_diagnosis_see_is_listed_once() -> None:
    frame = crawlers(0.04)(healthy(False, 2000), np.random.default_rng(0))
    log = posbias.ClickLog(pa.Table.from_pandas(frame, preserve_index=False), impression="impression_id")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", posbias.PosbiasWarning)
        [part] = posbias.report(log).parts
    assert "crawlers" in [finding.code for finding in part.diagnosis.findings]
    assert [finding.code for finding in part.findings].count("crawlers") == 1
