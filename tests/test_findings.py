"""Findings: printed one way, saved with a harvest, added up when days are merged."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import posbias
from posbias.cli.options import as_flags
from posbias.findings import CODES, Finding, merge_findings, unusable

DAY = Finding("left-out", "warning", "{count} of {rows} rows were left out", 2, evidence={"rows": 1000, "of": "day"})


def spoilt(seed: int) -> posbias.Harvest:
    """A day on which four rows contradict their ranks."""
    rows = posbias.simulate(posbias.World(queries=30, seed=seed)).to_pylist()
    for row in rows[:4]:
        row["position"] += 1
    return posbias.harvest(posbias.ClickLog(pa.Table.from_pylist(rows)))


def test_days_are_added_up() -> None:
    merged = posbias.merge([spoilt(seed) for seed in range(5)])
    finding = next(f for f in merged.findings if f.code == "contradicted-rank")
    assert finding.count == merged.about["rows_contradicted"] == 20
    assert finding.evidence["rows"] == merged.about["rows"]
    assert finding.message.startswith(f"20 of {merged.about['rows']:,} rows were left out")


def test_different_findings_stay_apart_and_texts_are_not_added() -> None:
    other = Finding("left-out", "warning", "{count} rows of another kind", 1)
    assert [f.message for f in merge_findings([DAY, other, DAY])] == [
        "4 of 2,000 rows were left out",
        "1 rows of another kind",
    ]
    assert merge_findings([DAY, DAY])[0].evidence == {"rows": 2000, "of": "day"}
    assert merge_findings([]) == ()


def test_braces_in_data_are_data() -> None:
    assert (
        Finding("x", "error", "{count} rows have '{rows}' in {0} and {", 3).message
        == "3 rows have '{rows}' in {0} and {"
    )


def test_findings_are_saved_with_a_harvest(tmp_path) -> None:
    harvest = spoilt(0)
    harvest.save(tmp_path / "x.harvest")
    # But not with their examples, which are rows of the log.
    saved = tuple(replace(finding, example=None) for finding in harvest.findings)
    assert posbias.Harvest.load(tmp_path / "x.harvest").findings == saved


def test_a_file_of_the_first_version_is_read(tmp_path) -> None:
    harvest = spoilt(0)
    path = tmp_path / "x.harvest"
    harvest.save(path)
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[b"posbias.harvest"])
    about |= {"version": 1, "warnings": ["4 of 3,000 rows were left out."]}
    for name in ("kind", "findings", "checksum"):
        about.pop(name, None)
    pq.write_table(table.replace_schema_metadata({b"posbias.harvest": json.dumps(about)}), path)
    loaded = posbias.Harvest.load(path)
    assert [str(f) for f in loaded.findings] == ["4 of 3,000 rows were left out."]
    assert loaded.kind == harvest.kind
    np.testing.assert_array_equal(loaded.pairs().clicks, harvest.pairs().clicks)


def test_arguments_are_spelled_as_the_reader_writes_them() -> None:
    error = unusable("missing-column", "Column 'q' is not there", "Say which.", arguments={"query": "my id"})
    assert str(error) == "Column 'q' is not there. Say which. Add query='my id'"
    assert error.sentence(as_flags) == "Column 'q' is not there. Say which. Add --query 'my id'"
    assert error.findings[0].to_dict(as_flags)["add"] == "--query 'my id'"


def test_the_kind_of_a_harvest_is_stored_even_if_it_is_empty() -> None:
    log = posbias.simulate(posbias.World(queries=20), "replay")
    beyond = log.set_column(log.schema.get_field_index("position"), "position", pa.array([99] * len(log)))
    empty = posbias.harvest(posbias.ClickLog(beyond))
    assert (len(empty.table), empty.kind, empty.layout) == (0, "exposures", "replay")
    whole = posbias.merge([empty, posbias.harvest(posbias.ClickLog(log))])
    assert whole.kind == "exposures"


@pytest.mark.parametrize("rankers", [2, 1505])
def test_the_repr_of_a_harvest_is_one_line(rankers: int) -> None:
    count = 4000
    table = pa.table(
        {
            "query_id": np.arange(count) % 50,
            "doc_id": np.arange(count) % 7,
            "ranker": [f"r\n{i % rankers}" for i in range(count)],
            "position": np.arange(count) % 10 + 1,
            "clicked": np.arange(count) % 3 == 0,
        }
    )
    text = repr(posbias.harvest(posbias.ClickLog(table)))
    assert len(text) < 250
    assert "\n" not in text
    assert ("more rankers" in text) == (rankers > 2)


# ---- The table of codes


def test_every_code_used_is_in_the_table_and_every_code_in_the_table_is_used() -> None:
    modules = [ast.parse(path.read_text()) for path in sorted(Path(posbias.__file__).parent.rglob("*.py"))]
    makers = {"Finding"} | {name for module in modules for name in takes_code(module)}
    used = {code for module in modules for code in codes_of(module, makers)}
    assert {"missing-column", "null", "disk-full", "segments-differ", "zero-based-position"} <= used
    assert sorted(used - set(CODES)) == [], "add the code to posbias.findings.CODES, with a sentence that explains it"
    assert sorted(set(CODES) - used) == [], "take the code out of posbias.findings.CODES: nothing uses it"


def test_every_code_is_explained_in_one_sentence() -> None:
    for code, meaning in CODES.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code), code
        assert re.fullmatch(r"[A-Z][^\n]*[^.]\.", meaning), code


def takes_code(module: ast.Module) -> Iterator[str]:
    """Functions whose first parameter is `code`, and classes whose first field is."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.args.args and node.args.args[0].arg == "code":
            yield node.name
        if isinstance(node, ast.ClassDef):
            fields = [line.target for line in node.body if isinstance(line, ast.AnnAssign)]
            if fields and isinstance(fields[0], ast.Name) and fields[0].id == "code":
                yield node.name


def codes_of(module: ast.Module, makers: set[str]) -> Iterator[str]:
    """The codes that a module gives to findings: as constants, by names of constants, or by rows of a table."""
    constants = {
        line.targets[0].id: line.value
        for line in module.body
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
    }
    forwards = any(takes_code(module))
    from_table = False
    for call in ast.walk(module):
        if not isinstance(call, ast.Call) or getattr(call.func, "id", None) not in makers:
            continue
        named = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
        given = [call.args[0]] if call.args else named
        choices = [leaf for value in given for leaf in leaves(value)]
        choices = [constants.get(leaf.id, leaf) if isinstance(leaf, ast.Name) else leaf for leaf in choices]
        yield from (leaf.value for leaf in choices if isinstance(leaf, ast.Constant))
        from_table |= any(isinstance(leaf, ast.Name) and not (forwards and leaf.id == "code") for leaf in choices)
    if from_table:
        yield from (code for node in ast.walk(module) if isinstance(node, ast.Tuple) for code in code_of_row(node))


def leaves(value: ast.expr) -> list[ast.expr]:
    """What a conditional expression may give."""
    return [*leaves(value.body), *leaves(value.orelse)] if isinstance(value, ast.IfExp) else [value]


def code_of_row(row: ast.Tuple) -> list[str]:
    """The code of a row (code, ..., remedy), if it is one."""
    first, *_, last = row.elts if len(row.elts) > 1 else [row, row]
    text = isinstance(last, ast.Constant) and str(last.value).endswith(".")
    word = isinstance(first, ast.Constant) and re.fullmatch(r"[a-z][a-z0-9-]*", str(first.value))
    return [first.value] if word and (text or isinstance(last, ast.Name | ast.JoinedStr)) else []
