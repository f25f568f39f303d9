"""Test that invalid exports are rejected, with what was found and what to do."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

import posbias
from posbias.cli import cli
from posbias.harvesting.files import is_export, is_harvest
from tests.support.logs import Row
from tests.support.warehouses import EXPORTS, run_duckdb, to_csv, to_parquet

WIDE = {"rankers": ["a", "b"]}


def rows_of(layout: str, **options: Any) -> list[Row]:
    """The answer to the query of a small simulated log."""
    world = posbias.World(queries=60, segments={"phone": 1.5, "desktop": 0.5})
    options = (WIDE if layout == "wide" else {}) | options
    sql = posbias.harvest_sql("duckdb", "clicks", **options)
    with run_duckdb() as run:
        return run(sql, {"clicks": posbias.simulate(world)})


ANSWERS = {layout: rows_of(layout, by=["device"]) for layout in ("wide", "replay")}


def run(*args: Any, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    return result


def changed(rows: list[Row], at: int = 5, **values: Any) -> list[Row]:
    return [row | values if i == at else row for i, row in enumerate(rows)]


def told(rows: list[Row], **values: Any) -> list[Row]:
    """The rows with other things said about them."""
    return [
        row if row["about"] is None else row | {"about": json.dumps(json.loads(row["about"]) | values)} for row in rows
    ]


def without(rows: list[Row], *names: str) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def silent(rows: list[Row]) -> list[Row]:
    return [row | {"about": None} for row in rows]


# ---- What is good


@pytest.mark.parametrize("layout", ANSWERS)
@pytest.mark.parametrize("export", EXPORTS)
def test_export_is_accepted_like_a_harvest(layout: str, export: str, tmp_path: Path) -> None:
    path = EXPORTS[export](ANSWERS[layout], tmp_path)
    assert is_export(path)
    assert is_harvest(path)
    loaded = posbias.Harvest.load(path)
    assert loaded.about["engine"] == "duckdb sql"
    assert loaded.about["source"] == "clicks"
    assert sum(loaded.page_views.values()) == 600
    curve = json.loads(run("estimate", path, "--json").stdout)
    assert [part["segment"] for part in curve["segments"]] == [{"device": "desktop"}, {"device": "phone"}]
    loaded.save(tmp_path / "saved")
    # It is the same harvest, so merging needs --force.
    run("merge", path, tmp_path / "saved", "-o", tmp_path / "both", "--force")
    both = posbias.Harvest.load(tmp_path / "both")
    assert both.page_views == {name: 2 * n for name, n in loaded.page_views.items()}
    again = posbias.Harvest.load(tmp_path / "saved")
    assert (again.pairs().clicks == loaded.pairs().clicks).all()
    assert again.about == loaded.about


def test_naive_rates_come_from_an_export_and_swaps_do_not(tmp_path: Path) -> None:
    path = to_csv(ANSWERS["wide"], tmp_path)
    assert "naive" in run("estimate", path, "--estimator", "naive-ctr").stdout
    assert "is a harvest" in run("estimate", path, "--estimator", "swap-one", code=2).stderr


def test_arguments_fixed_by_the_query_are_rejected(tmp_path: Path) -> None:
    path = to_csv(ANSWERS["wide"], tmp_path)
    assert "--max-rank was decided when it was made" in run("estimate", path, "--max-rank", "5", code=2).stderr
    for command in ("check", "sets", "harvest"):
        more = ("-o", tmp_path / "made") if command == "harvest" else ()
        assert "is a harvest, not a log" in run(command, path, *more, code=2).stderr


@pytest.mark.parametrize(("clicked", "said"), [(0, "not a single click"), (1, "results were clicked")])
@pytest.mark.parametrize("layout", ANSWERS)
def test_damaged_log_is_rejected_unless_forced(clicked: int, said: str, layout: str, tmp_path: Path) -> None:
    log = posbias.simulate(posbias.World(queries=20))
    clicks = pyarrow.array([clicked] * len(log), log.schema.field("clicked").type)
    log = log.set_column(log.schema.get_field_index("clicked"), "clicked", clicks)
    sql = posbias.harvest_sql("duckdb", "clicks", **(WIDE if layout == "wide" else {}))
    with run_duckdb() as execute:
        path = to_csv(execute(sql, {"clicks": log}), tmp_path)
    with pytest.raises(posbias.LogError, match=f"(?s){said}" + ".*add force=True" * clicked):
        posbias.Harvest.load(path)
    merged = tmp_path / "merged.harvest"
    for command in (("estimate", path), ("merge", path, "-o", merged)):
        refused = run(*command, code=2).stderr
        assert said in refused
        assert ("add --force" in refused) == bool(clicked)
        forced = CliRunner().invoke(cli, [*map(str, command), "--force"])
        # Nothing can be estimated where nothing was clicked, and that is said in its turn.
        assert said in forced.stderr
        assert "add --force" not in forced.stderr
    assert said in " ".join(finding.message for finding in posbias.Harvest.load(merged).findings)
    assert "--force was decided" in run("estimate", merged, "--force", code=2).stderr


def test_buckets_of_an_engine_and_of_a_query_differ(tmp_path: Path) -> None:
    one, other = (posbias.simulate(posbias.World(queries=20, seed=seed)) for seed in (0, 1))
    with run_duckdb() as execute:
        path = to_csv(execute(posbias.harvest_sql("duckdb", "clicks", **WIDE), {"clicks": one}), tmp_path)
    # The same log is refused: both ways of counting it have the same clicks of every ranker and rank.
    with pytest.raises(posbias.PosbiasError, match="hold the same rows"):
        posbias.merge([posbias.Harvest.load(path), posbias.harvest(posbias.ClickLog(one))])
    merged = posbias.merge([posbias.Harvest.load(path), posbias.harvest(posbias.ClickLog(other))])
    assert "different buckets" in merged.findings[-1].message


def test_logs_are_not_read_as_exports(tmp_path: Path) -> None:
    world = posbias.simulate(posbias.World(queries=5))
    parquet, text = tmp_path / "log.parquet", tmp_path / "log.csv"
    pyarrow.parquet.write_table(world, parquet)
    with text.open("w", newline="") as file:
        writer = csv.DictWriter(file, world.column_names)
        writer.writeheader()
        writer.writerows(world.to_pylist())
    (tmp_path / "nothing.csv").write_text("")
    (tmp_path / "cut.gz").write_bytes(b"\x1f\x8b\x08")
    for path in (parquet, text, tmp_path / "nothing.csv", tmp_path / "cut.gz", tmp_path, tmp_path / "missing"):
        assert not is_harvest(path)
        assert not is_export(path)


# ---- What is bad

BAD: dict[str, tuple[Callable[[list[Row]], list[Row]], str]] = {
    "cut": (lambda rows: rows[:100], r"it has 100 of [\d,]+ rows\. Many consoles truncate what they show or download"),
    "cut at the top": (lambda rows: rows[3:], r"it has [\d,]+ of [\d,]+ rows"),
    "one row twice": (lambda rows: [*rows, rows[3]], r"it has [\d,]+ rows, but the answer has [\d,]+: rows were added"),
    "one row for another": (lambda rows: changed(rows, **without(rows, "about")[6]), "1 of its rows repeat others"),
    "twice": (lambda rows: rows * 2, r"it mixes several answers .*column about: 2\).* posbias merge"),
    "two answers": (
        lambda rows: [*rows, *changed(silent(rows), answer_rows=7)],
        r"it mixes several answers \(of 7 and [\d,]+ rows",
    ),
    "no about": (silent, "column about is empty, but one row must describe the query"),
    "about cut": (lambda rows: [r | {"about": r["about"] and r["about"][:50]} for r in rows], "about was changed: "),
    "about is not ours": (lambda rows: [r | {"about": r["about"] and "3"} for r in rows], "about was changed: it is 3"),
    "about without a key": (
        lambda rows: [r | {"about": r["about"] and '{"version": 1}'} for r in rows],
        "about was changed: it has no 'table'",
    ),
    "about of depth": (
        lambda rows: [r | {"about": r["about"] and "[" * 10**5} for r in rows],
        "nested too deeply",
    ),
    "about with a key twice": (
        lambda rows: [r | {"about": r["about"] and '{"version": 1, "version": 1}'} for r in rows],
        "it has 'version' twice",
    ),
    "many ranks": (lambda rows: told(rows, max_rank=100_000), "max_rank is 100000 where a whole number, 2 to 1,000"),
    "rank as text": (lambda rows: told(rows, max_rank="10"), "max_rank is '10'"),
    "other layout": (lambda rows: told(rows, layout="tall"), "layout is 'tall'"),
    "other table": (lambda rows: told(rows, table="pairs"), "table is 'pairs'"),
    "layout of another table": (
        lambda rows: told(rows, layout="long", weighting="harmonic", table="signatures"),
        "posbias writes no query for signatures of a long log",
    ),
    "no list": (lambda rows: told(rows, by="device"), "by is 'device'"),
    "no text": (lambda rows: told(rows, source=None), "source is None"),
    "nobody's choice": (lambda rows: told(rows, non_functional="maybe"), "non_functional is 'maybe'"),
    "newer": (lambda rows: told(rows, version=4), "format version 4 and this posbias reads up to 3. Upgrade posbias"),
    "other buckets": (lambda rows: told(rows, buckets=64), "about was changed"),
    "other weighting": (lambda rows: told(rows, weighting="none"), "about was changed"),
    "no answer_rows": (
        lambda rows: without(rows, "answer_rows"),
        "does not have the columns answer_rows. Columns found: ",
    ),
    "no about column": (lambda rows: without(rows, "about"), "does not have the columns about. Columns found: "),
    "no bucket": (lambda rows: without(rows, "bucket"), "does not have the columns bucket"),
    "no counts": (lambda rows: without(rows, "row_count"), "does not have the columns row_count"),
    "no segment": (lambda rows: without(rows, "segment_0"), "does not have the columns segment_0"),
    "garbage": (
        lambda rows: changed(rows, row_count="many"),
        "its column row_count has the value 'many', which is not a whole",
    ),
    "fractions": (
        lambda rows: changed(rows, bucket=1.5),
        "its column bucket has the value '1.5', which is not a whole",
    ),
    "thousands": (
        lambda rows: changed(rows, row_count="1,000"),
        "its column row_count has the value '1,000', which is not a whole",
    ),
    "too large": (
        lambda rows: changed(rows, row_count="1e300"),
        "its column row_count has the value '1e300', which is not a whole",
    ),
    "a hole": (lambda rows: changed(rows, row_count=None), "its column row_count has no value in 1 rows"),
    "a bucket too many": (lambda rows: changed(rows, bucket=256), "bucket has the invalid value 256 .* expected"),
    "more rows than there are": (
        lambda rows: changed(rows, row_count=2**60),
        "row_count has the invalid value 1152921504606846976",
    ),
    "rows beyond counting": (
        lambda rows: changed(changed(rows, row_count=2**52 + 1), 6, row_count=2**52),
        "row_count adds up to more than",
    ),
    "no rows in a row": (lambda rows: changed(rows, row_count=0), "row_count has the invalid value 0 .* expected 1 to"),
    "a segment without its colon": (
        lambda rows: changed(rows, segment_0="phone"),
        "each value must begin with a colon",
    ),
}
BAD_WIDE = {
    "no code": (lambda rows: without(rows, "code_0"), "does not have the columns code_0"),
    "a hole in the codes": (lambda rows: changed(rows, code_0=None), "code_0 has no value in 1 rows"),
    "a code too large": (
        lambda rows: changed(rows, code_0=121),
        "code_0 has the invalid value 121 .* expected -3 to 120",
    ),
    "a code without rank": (lambda rows: changed(rows, code_0=0), "have no rank for rankers that were shown"),
    "a ranker too many": (lambda rows: changed(rows, ranker=2), "ranker has the invalid value 2 .* expected 0 to 1"),
    "clicks": (
        lambda rows: changed(rows, clicks=10**6),
        "clicks has the invalid value 1000000 .* expected 0 to the number of impr",
    ),
    "impressions of 2^62": (
        lambda rows: changed(rows, impressions=2**62),
        "impressions has the invalid value 4611686018427387904",
    ),
    "impressions beyond counting": (
        lambda rows: [row | {"impressions": 2**52} if i in (3, 4, 5) else row for i, row in enumerate(rows)],
        "impressions adds up to more than",
    ),
    "negative clicks": (lambda rows: changed(rows, clicks=-1), "clicks has the invalid value -1 .* expected 0"),
}
BAD_REPLAY = {
    "no strata": (lambda rows: without(rows, "stratum"), "does not have the columns stratum"),
    "no pairs": (lambda rows: changed(rows, pairs=0), "pairs has the invalid value 0 .* expected 1"),
    "an empty stratum": (
        lambda rows: changed(rows, stratum=""),
        "its column stratum has the value '', which the query did not write",
    ),
    "a cut stratum": (
        lambda rows: changed(rows, stratum="1:3"),
        "stratum has the value '1:3', which the query did not write",
    ),
    "a rank too large": (lambda rows: changed(rows, stratum="11:3:0:a"), "whose rank or clicks are impossible"),
    "too many clicks": (lambda rows: changed(rows, stratum="1:3:4:a"), "whose rank or clicks are impossible"),
    "digits that are none": (lambda rows: changed(rows, stratum="1:\u0663:0:a"), "which the query did not write"),
    "a long number": (lambda rows: changed(rows, stratum=f"1:{10**20}:0:a"), "which the query did not write"),
    "a very long number": (lambda rows: changed(rows, stratum="1:" + "9" * 9999 + ":0:a"), "which the query did not"),
    "counts beyond counting": (
        lambda rows: changed(rows, stratum=f"1:{2**52}:0:a", pairs=9),
        "impressions add up to more than",
    ),
    "products beyond counting": (
        lambda rows: changed(rows, stratum=f"1:{2**52}:0:a", pairs=2**52),
        "impressions add up to more than",
    ),
    "one cell twice": (lambda rows: changed(rows, stratum="1:3:1:a 1:2:0:a"), "which has a rank of one ranker twice"),
}
CASES = [
    *(("wide", name, *case) for name, case in (BAD | BAD_WIDE).items()),
    *(("replay", name, *case) for name, case in (BAD | BAD_REPLAY).items()),
]


@pytest.mark.parametrize(("layout", "name", "spoil", "message"), CASES, ids=[f"{c[0]}: {c[1]}" for c in CASES])
def test_invalid_export_is_rejected(
    layout: str, name: str, spoil: Callable[[list[Row]], list[Row]], message: str, tmp_path: Path
) -> None:
    path = to_csv(spoil(ANSWERS[layout]), tmp_path)
    assert is_export(path)
    with pytest.raises(posbias.HarvestError, match=message) as refused:
        posbias.Harvest.load(path)
    assert str(path) in str(refused.value)
    assert re.search(r"[Ee]xport|Upgrade", str(refused.value))


def test_invalid_export_is_rejected_by_every_command(tmp_path: Path) -> None:
    path = to_csv(ANSWERS["wide"][:100], tmp_path)
    for result in (run("estimate", path, code=2), run("merge", path, "-o", tmp_path / "out", code=2)):
        assert result.stdout == ""
        assert re.match(r"Error: The export .* cannot be used: it has 100 of [\d,]+ rows\.", result.stderr)
    assert not (tmp_path / "out").exists()


def test_export_with_only_a_header_is_rejected(tmp_path: Path) -> None:
    whole = to_csv(ANSWERS["wide"], tmp_path).read_text()
    path = tmp_path / "header.csv"
    path.write_text(whole.splitlines()[0] + "\n")
    with pytest.raises(posbias.HarvestError, match=r"columns but no rows\. Either the log is empty"):
        posbias.Harvest.load(path)
    empty = tmp_path / "empty.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ANSWERS["wide"]).slice(0, 0), empty)
    assert "columns but no rows" in run("estimate", empty, code=2).stderr


@pytest.mark.parametrize("export", [to_csv, to_parquet])
def test_truncated_export_is_rejected(export: Any, tmp_path: Path) -> None:
    whole = export(ANSWERS["wide"], tmp_path).read_bytes()
    path = tmp_path / f"cut{export.__name__}"
    for share in (0.2, 0.5, 0.999):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(posbias.HarvestError):
            posbias.Harvest.load(path)


def test_empty_export_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "nothing.csv"
    path.write_bytes(b"")
    with pytest.raises(posbias.HarvestError):
        posbias.Harvest.load(path)
    assert run("estimate", path, code=2).stderr.startswith("Error: ")


def test_duplicate_column_is_rejected(tmp_path: Path) -> None:
    path = to_csv([row | {"BUCKET": 1} for row in ANSWERS["wide"]], tmp_path)
    with pytest.raises(posbias.HarvestError, match="has the column 'bucket' twice"):
        posbias.Harvest.load(path)


@pytest.mark.parametrize("type_", [pyarrow.bool_(), pyarrow.binary()])
def test_column_of_another_type_is_rejected(type_: pyarrow.DataType, tmp_path: Path) -> None:
    table = pyarrow.Table.from_pylist(ANSWERS["wide"])
    values = [True] * len(table) if type_ == pyarrow.bool_() else [b"x"] * len(table)
    table = table.set_column(table.column_names.index("clicks"), "clicks", pyarrow.array(values, type_))
    pyarrow.parquet.write_table(table, tmp_path / "counts.parquet")
    with pytest.raises(posbias.HarvestError, match=r"its column clicks has the value .* which is not a whole number"):
        posbias.Harvest.load(tmp_path / "counts.parquet")


# ---- The command


def test_the_command_prints_what_the_function_returns() -> None:
    flags = (
        "--query",
        "q",
        "--by",
        "device",
        "--by",
        "land",
        "--rankers",
        "a",
        "--rankers",
        "b c",
        "--ranks",
        "{ranker}!",
    )
    flags += ("--max-rank", "4", "--duplicates", "drop", "--impression", "page", "--weighting", "traffic")
    printed = run("sql", "--dialect", "bigquery", "--table", "p.d.t", *flags)
    assert printed.stderr == ""
    assert printed.stdout == posbias.harvest_sql(
        "bigquery",
        "p.d.t",
        query="q",
        by=["device", "land"],
        rankers=["a", "b c"],
        ranks="{ranker}!",
        max_rank=4,
        duplicates="drop",
        impression="page",
        weighting="traffic",
    )


def test_the_command_knows_every_dialect() -> None:
    from posbias.cli.sql import _DIALECTS
    from posbias.sql.dialects import DIALECTS

    assert list(_DIALECTS) == list(DIALECTS)
    assert "'oracle' is not one of 'bigquery'" in run("sql", "--dialect", "oracle", "--table", "t", code=2).stderr


def test_command_rejects_ranks_without_rankers() -> None:
    refused = run("sql", "--dialect", "trino", "--table", "t", "--rankings", "r", code=2)
    assert refused.stdout == ""
    assert "Add --rankers NAME" in refused.stderr


def test_command_rejects_rankers_in_one_word() -> None:
    refused = run("sql", "--dialect", "trino", "--table", "t", "--rankers", "a,b", code=2)
    assert "--rankers takes one name each time, not 'a,b'. Write --rankers a --rankers b." in refused.stderr


def test_printed_query_leads_to_a_curve(tmp_path: Path) -> None:
    run("simulate", "--queries", "300", "--seed", "3", tmp_path / "clicks.parquet")
    sql = run("sql", "--dialect", "duckdb", "--table", "clicks", "--rankers", "a", "--rankers", "b").stdout
    with run_duckdb() as execute:
        path = to_parquet(execute(sql, {"clicks": pyarrow.parquet.read_table(tmp_path / "clicks.parquet")}), tmp_path)
    ours = json.loads(run("estimate", path, "--json", "--interval", "none", "--estimator", "all-pairs").stdout)
    direct = json.loads(
        run("estimate", tmp_path / "clicks.parquet", "--json", "--interval", "none", "--estimator", "all-pairs").stdout
    )
    assert [p["propensity"] for p in ours["positions"]] == pytest.approx([p["propensity"] for p in direct["positions"]])
