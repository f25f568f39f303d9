"""A curve as a value: it is read back as it was written, damage is named, and no two segments are taken for one."""

from __future__ import annotations

import copy
import csv
import io
import json
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

import posbias
from posbias import Curve, CurveError
from posbias._json import RecordError, verify_checksum
from posbias._text import json_text, label
from posbias.curves import files
from posbias.curves.curve import Position
from posbias.curves.files import MOST_RANKS

# Two columns whose values, joined by commas, would read alike; a missing value beside the text that says so.
COLLIDING = [("a, b", "c"), ("a", "b, c"), (None, "x"), ("null", "x"), ("", "x"), ('"null"', "x"), ("a\\", "x")]


@pytest.fixture(scope="module")
def fitted() -> posbias.AllPairs:
    table = posbias.simulate(posbias.World(queries=300, max_rank=4, segments={"phone": 1.5, "desk": 0.5}))
    return posbias.AllPairs().fit(posbias.harvest(posbias.ClickLog(table), max_rank=6, by=["device"]))


@pytest.fixture(scope="module")
def curve(fitted: posbias.AllPairs) -> Curve:
    return fitted.curve()


def small(**changes: Any) -> Curve:
    """A curve of two ranks out of three; rank 2 was not shown."""
    given = {
        "estimator": "all-pairs",
        "max_rank": 3,
        "level": 0.95,
        "interval_by": "bootstrap",
        "weighting": None,
        "positions": (Position(1, 1.0, 1.0, 1.0, 10, 4, None), Position(3, 0.5, 0.2, None, 10, 2, None)),
        "page_views": {"a": 10},
        "covariance": ((0.0, 0.0), (0.0, 0.04)),
    }
    return Curve(**given | changes)


# ---- There and back


def test_a_loaded_curve_is_the_one_that_was_saved(curve: Curve, tmp_path: Path) -> None:
    curve.save(tmp_path / "curve.json")
    loaded = Curve.load(tmp_path / "curve.json")
    assert loaded == curve
    assert hash(loaded) == hash(curve)
    assert str(loaded) == str(curve)
    assert loaded.to_csv() == curve.to_csv()
    assert loaded.segments[("phone",)] == curve.segments[("phone",)] != curve.segments[("desk",)]
    assert Curve.from_dict(curve.to_dict()) == pickle.loads(pickle.dumps(curve)) == curve
    assert [p.name for p in tmp_path.iterdir()] == ["curve.json"]


def test_a_curve_has_the_numbers_of_its_estimator(fitted: posbias.AllPairs, curve: Curve) -> None:
    for part, one in [(fitted, curve), *((fitted.segments_[key], one) for key, one in curve.segments.items())]:
        np.testing.assert_array_equal(one.propensity, part.propensity_)
        np.testing.assert_array_equal(one.interval, part.interval_)
        np.testing.assert_array_equal(one.covariance_matrix, part.covariance_)
        assert np.isfinite(one.covariance_matrix[:4, :4]).all()
    assert (curve.by, fitted.by_) == (("device",), ("device",))


def test_what_is_not_known_stays_so(tmp_path: Path) -> None:
    curve = small()
    np.testing.assert_array_equal(curve.propensity, [1, np.nan, 0.5])
    np.testing.assert_array_equal(curve.interval, [[1, 1], [np.nan, np.nan], [0.2, np.inf]])
    np.testing.assert_array_equal(curve.covariance_matrix[2], [0, np.nan, 0.04])
    partial = small(covariance=((0.0, None), (None, None)))
    np.testing.assert_array_equal(partial.covariance_matrix[0], [0, np.nan, np.nan])
    none = small(covariance=None, level=None, interval_by=None, positions=(Position(2, None, None, None, 0, 0, "why"),))
    assert np.isnan(none.propensity).all()
    assert np.isnan(none.covariance_matrix).all()
    for one in (curve, partial, none, small(positions=(), covariance=())):
        one.save(tmp_path / "curve.json")
        assert Curve.load(tmp_path / "curve.json") == one


def test_a_rank_without_an_interval_has_no_variance() -> None:
    table = posbias.simulate(posbias.World(queries=300, max_rank=3)).to_pandas()
    table.loc[table["position"] == 3, "clicked"] = 0
    fitted = posbias.AllPairs().fit(posbias.harvest(posbias.ClickLog(table), max_rank=3))
    curve = fitted.curve()
    assert curve.positions[2].propensity == 0
    assert curve.covariance is not None
    assert [row[2] for row in curve.covariance] == [None] * 3
    assert curve.covariance[1][1] == fitted.covariance_[1, 1] > 0
    assert posbias.AllPairs(interval=None).fit(posbias.harvest(posbias.ClickLog(table))).curve().covariance is None


@pytest.mark.parametrize("estimator", ["all-pairs", "naive-ctr", "pbm-em"])
def test_what_the_command_prints_is_loaded(estimator: str, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from posbias.cli import cli

    world = posbias.World(queries=100, max_rank=3, segments={"phone": 1.5, "desk": 0.5})
    posbias.simulate(world).to_pandas().to_csv(tmp_path / "log.csv", index=False)
    args = ["estimate", str(tmp_path / "log.csv"), "--by", "device", "--estimator", estimator, "--json"]
    printed = CliRunner().invoke(cli, args).stdout
    (tmp_path / "curve.json").write_text(printed, "utf-8")
    curve = Curve.load(tmp_path / "curve.json")
    assert (curve.estimator, list(curve.segments)) == (estimator, [("desk",), ("phone",)])
    curve.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text("utf-8") == printed


ratios = st.floats(1e-100, 1e100)
texts = st.text(max_size=5)


@st.composite
def estimates(draw: st.DrawFn, max_rank: int, interval_by: str | None) -> dict[str, Any]:
    """Positions, page views and covariance of one curve."""
    positions = []
    for rank in sorted(draw(st.sets(st.integers(1, max_rank), max_size=4))):
        p, low, high = 1.0 if rank == 1 else draw(st.just(0.0) | ratios), None, None
        known = draw(st.sampled_from(["nothing", "propensity", *(["unbounded", "interval"] if interval_by else [])]))
        if known in ("unbounded", "interval"):
            low = draw(st.just(0.0) | (st.floats(1e-100, p) if p else st.just(0.0)))
        if known == "interval":
            high = draw(st.floats(max(p, 1e-100), 1e100))
        shown = draw(st.integers(0, 2**62))
        clicks, reason = draw(st.integers(0, shown)), draw(st.none() | texts)
        degrees = draw(st.floats(1, 1e300)) if low is not None and interval_by == "jackknife" else None
        positions.append(Position(rank, None if known == "nothing" else p, low, high, shown, clicks, reason, degrees))
    size = len(positions)
    upper = [
        [draw(st.none() | (st.floats(0, 1e6) if i == j else st.floats(-1e6, 1e6))) for j in range(size)]
        for i in range(size)
    ]
    rows = tuple(
        tuple(None if None in (upper[i][i], upper[j][j]) else upper[min(i, j)][max(i, j)] for j in range(size))
        for i in range(size)
    )
    return {
        "positions": tuple(positions),
        "page_views": draw(st.dictionaries(texts, st.integers(0, 2**62), max_size=2)),
        "covariance": draw(st.sampled_from([None, rows])),
        "notes": tuple(draw(st.lists(texts, max_size=2))),
    }


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    max_rank = draw(st.integers(1, MOST_RANKS))
    interval_by = draw(st.sampled_from([None, "jackknife", "bootstrap"]))
    setting = {
        "estimator": draw(texts),
        "max_rank": max_rank,
        "level": draw(st.floats(0, 1, exclude_min=True, exclude_max=True)) if interval_by else None,
        "interval_by": interval_by,
        "weighting": draw(st.none() | texts),
    }
    by = draw(st.lists(texts, unique=True, max_size=2))
    keys = draw(st.sets(st.tuples(*[st.none() | texts for _ in by]), max_size=3)) if by else set()
    segments = {key: Curve(**setting, **draw(estimates(max_rank, interval_by))) for key in keys}
    return Curve(**setting, **draw(estimates(max_rank, interval_by)), by=tuple(by), segments=segments)


@given(curve=curves())
def test_every_curve_comes_back(curve: Curve, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    curve.save(path)
    loaded = Curve.load(path)
    assert loaded == curve
    # Equal floats have equal digits, but for the sign of 0.
    assert json_text(loaded.to_dict()) == json_text(curve.to_dict())
    curve.to_text()


# ---- Damage


def changed(path: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    """Return what sets a field, or takes it out if the value is ..., in a record."""

    def change(record: dict[str, Any]) -> Any:
        *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        inner: Any = record
        for step in way:
            inner = inner[step]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
        return record

    return change


FIELDS = [
    "format",
    "estimator",
    "max_rank",
    "level",
    "interval_by",
    "weighting",
    "notes",
    "positions",
    "page_views",
    "covariance",
    "rankers",
]
RECORDS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    **{f"no {name}": (changed(name, ...), f"it has no '{name}'") for name in [*FIELDS, "version"]},
    **{f"{name} is an object": (changed(name, {"x": 1}), name) for name in FIELDS},
    **{f"{name} is true": (changed(name, True), name) for name in FIELDS},
    **{
        f"a position without {name}": (changed(f"positions.1.{name}", ...), rf"positions\[1\] has no '{name}'")
        for name in ("position", "propensity", "low", "high", "impressions", "clicks", "reason")
    },
    "a list": (lambda record: [record], "it is .* where an object"),
    "a number": (lambda record: 3, "it is 3"),
    "null": (lambda record: None, "it is None"),
    "a truth": (lambda record: {"propensity": [1, 0.5]}, "it has no 'format'"),
    "a later format": (changed("format", 3), "format 3 and this posbias reads up to 2. Upgrade posbias"),
    "format 0": (changed("format", 0), "format is 0"),
    "a text for the format": (changed("format", "1"), "format is '1'"),
    "no rank": (changed("max_rank", 0), "max_rank is 0 where a whole number, 1 to 10,000"),
    "a billion ranks": (changed("max_rank", 10**9), "max_rank is 1000000000"),
    "half a rank": (changed("max_rank", 6.5), "max_rank is 6.5"),
    "level 95": (changed("level", 95), "such as 0.95"),
    "level 0": (changed("level", 0), "such as 0.95"),
    "positions fewer than ranks": (changed("max_rank", 3), r"positions\[3\].position is 4"),
    "rank 0": (changed("positions.0.position", 0), "position is 0"),
    "rank true": (changed("positions.0.position", True), "position is True"),
    "a rank twice": (changed("positions.1.position", 1), "increasing order"),
    "ranks out of order": (lambda r: r | {"positions": r["positions"][::-1]}, "increasing order"),
    "a position that is null": (changed("positions.1", None), r"positions\[1\] is None"),
    "negative": (changed("positions.1.propensity", -0.5), "of 0 or more"),
    "a text": (changed("positions.1.propensity", "0.5"), "propensity is '0.5'"),
    "too large": (changed("positions.1.propensity", 10**400), "propensity is 1000"),
    "an interval upside down": (changed("positions.1.low", 9), "lower end 9.0 is above its upper end"),
    "above its interval": (changed("positions.1.propensity", 90), "propensity 90.0 outside its own interval, from"),
    "below its interval": (
        changed("positions.1.propensity", 0.01),
        r"outside its own .* degrees_of_freedom to null",
    ),
    "a segment below its interval": (
        changed("segments.0.positions.1.propensity", 0.01),
        r"segments\[0\].positions\[1\] has the propensity 0.01",
    ),
    "an interval of nothing": (changed("positions.1.propensity", None), "and no propensity"),
    "only an upper end": (changed("positions.1.low", None), "no lower one"),
    "an interval by nothing": (changed("interval_by", "magic"), "interval_by is 'magic' where one of 'jackknife'"),
    "an interval of no level": (changed("level", None), "level is None and interval_by 'jackknife'"),
    "an interval that nothing made": (
        lambda r: r | {"level": None, "interval_by": None},
        r"positions\[0\] has an interval, low is .* where interval_by is null",
    ),
    "no degrees of freedom": (
        changed("positions.1.degrees_of_freedom", None),
        r"positions\[1\].degrees_of_freedom is None where a number",
    ),
    "degrees of freedom of percentiles": (
        changed("interval_by", "bootstrap"),
        r"positions\[0\].degrees_of_freedom is .* where null",
    ),
    "a segment without degrees of freedom": (
        changed("segments.1.positions.2.degrees_of_freedom", None),
        r"segments\[1\].positions\[2\].degrees_of_freedom is None",
    ),
    "no degree of freedom": (changed("positions.1.degrees_of_freedom", 0), "degrees_of_freedom is 0"),
    "a lower end below 0": (changed("positions.1.low", -0.1), "low is -0.1"),
    "clicks below 0": (changed("positions.1.clicks", -1), "clicks is -1"),
    "clicks of nothing": (changed("positions.1.impressions", 1), "clicks on 1 impressions"),
    "half a click": (changed("positions.1.clicks", 0.5), "clicks is 0.5"),
    "clicks beyond all": (changed("positions.1.impressions", 2**63), "impressions is"),
    "a number for a reason": (changed("positions.1.reason", 3), "reason is 3"),
    "page views below 0": (changed("page_views.a", -1), r"page_views\['a'\] is -1"),
    "other rankers": (changed("rankers", ["a", "z"]), "the names in page_views"),
    "a row too few": (changed("covariance.3", ...), "3 rows of"),
    "a number too many": (changed("covariance.1", [0.0] * 5), "rows of .*5"),
    "a row that is null": (changed("covariance.1", None), r"covariance\[1\] is None"),
    "a number for a row": (changed("covariance.1", 3), r"covariance\[1\] is 3"),
    "a text in it": (changed("covariance.1.1", "x"), r"covariance\[1\]\[1\] is 'x'"),
    "not symmetric": (changed("covariance.1.2", 7), r"not symmetric: \[1\]\[2\] is 7.0"),
    "known on one side": (changed("covariance.1.2", None), "not symmetric"),
    "a negative variance": (changed("covariance.1.1", -1e-9), "a variance"),
    "no by": (changed("by", ...), r"the columns in 'by', \[\]"),
    "a number in by": (changed("by", [3]), r"by\[0\] is 3"),
    "segments as before": (changed("segments", {"desk": {}}), "segments is"),
    "a segment without a name": (changed("segments.0.segment", ...), r"segments\[0\] has no 'segment'"),
    "a segment of another column": (changed("segments.0.segment", {"os": "x"}), "the columns in 'by'"),
    "a segment of one more": (changed("segments.0.segment.os", "x"), "the columns in 'by'"),
    "a segment twice": (changed("segments.0.segment.device", "phone"), r"segments\[1\] is the segment"),
    "a number for a segment": (changed("segments.0.segment.device", 3), "segment.device is 3"),
    "a segment without positions": (changed("segments.1.positions", ...), r"segments\[1\] has no 'positions'"),
    "a segment's clicks": (changed("segments.1.positions.0.clicks", -3), r"segments\[1\].positions\[0\].clicks is -3"),
    "a segment's covariance": (changed("segments.1.covariance", [[1.0]]), r"segments\[1\].covariance has 1 rows"),
    "a segment that is null": (changed("segments.1", None), r"segments\[1\] is None"),
}


def leaves(record: Any, path: str = "") -> list[str]:
    """The paths of all fields of a record, those that hold others too."""
    inner = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    return [path] * bool(path) + [one for key, value in inner for one in leaves(value, f"{path}.{key}".lstrip("."))]


WRONG = [True, "x", "1", math.nan, math.inf, -math.inf, -1, -0.5, 10**400, [], [None], {}, {"x": None}, None]
# What of that a field may hold; any other must be refused.
MAY_BE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(["reason", "weighting", "device"], ("x", "1", None)),
    **dict.fromkeys(["estimator", "version"], ("x", "1")),
    "high": (None,),
    "notes": ([],),
    "covariance": (None,),
    "segments": ([],),
    # A segment need not have been served by any ranker that counts.
    "segments.0.page_views": ({},),
    "segments.1.page_views": ({},),
}


def unproven(curve: Curve) -> dict[str, Any]:
    """Return the record of a curve as one that was written by hand, which has no checksum."""
    return {name: value for name, value in json.loads(json_text(curve.to_dict())).items() if name != "checksum"}


def test_no_field_holds_what_it_must_not(curve: Curve) -> None:
    record = unproven(curve)
    for path in leaves(record):
        *_, name = [step for step in path.split(".") if not step.isdigit()]
        last = path.rsplit(".", 1)[-1]
        for value in WRONG:
            damaged = changed(path, value)(copy.deepcopy(record))
            fit = MAY_BE.get(path, MAY_BE.get(name, ())) if last == name else ()
            if any(value is one or (type(value) is type(one) and value == one) for one in fit):
                Curve.from_dict(damaged)
                continue
            said = refusal(damaged)
            assert name in said, f"{path} = {value!r}: {said}"


def refusal(record: Any) -> str:
    try:
        Curve.from_dict(record)
    except CurveError as error:
        return str(error)
    return "none"


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_that_is_no_curve(kind: str, curve: Curve, tmp_path: Path) -> None:
    change, message = RECORDS[kind]
    record = change(copy.deepcopy(unproven(curve)))
    path = tmp_path / "curve.json"
    path.write_text(json.dumps(record))
    with pytest.raises(CurveError, match=message) as found:
        Curve.load(path)
    assert repr(str(path)) in str(found.value)
    assert "posbias" in str(found.value).split(". ")[-1]
    with pytest.raises(CurveError, match=message):
        Curve.from_dict(record)


WHOLE = json.dumps(unproven(small()))
DAMAGED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not JSON"),
    "half": (WHOLE[:100].encode(), "not JSON"),
    "twice": ((WHOLE + WHOLE).encode(), "not JSON"),
    "bytes": (b"PAR1\xff\x00\x9f", "not JSON"),
    "NaN": (WHOLE.replace("0.95", "NaN").encode(), "it holds NaN"),
    "Infinity": (WHOLE.replace("0.5", "-Infinity").encode(), "it holds -Infinity"),
    "beyond floats": (WHOLE.replace("0.5", "1e999").encode(), "propensity is inf"),
    "beyond integers": (WHOLE.replace("0.5", "9" * 5000).encode(), "not JSON|propensity is"),
    "deep": (b"[" * 10**6 + b"]" * 10**6, "nested too deeply"),
    "deep objects": (b'{"a":' * 10**5 + b"1" + b"}" * 10**5, "nested too deeply"),
    "a field twice": (WHOLE.replace('"level"', '"format": 1, "level"').encode(), "'format' twice"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_file_that_is_no_curve(kind: str, tmp_path: Path) -> None:
    data, message = DAMAGED[kind]
    path = tmp_path / "curve.json"
    path.write_bytes(data)
    with pytest.raises(CurveError, match=message) as found:
        Curve.load(path)
    assert repr(str(path)) in str(found.value)
    assert "Write it again" in str(found.value)
    assert len(str(found.value)) < 1000


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(CurveError, match="There is no file"):
        Curve.load(tmp_path / "nix.json")
    for path, said in ((tmp_path, "cannot be read"), ("a\0b", "must be a path")):
        with pytest.raises(CurveError, match=said):
            Curve.load(path)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    path.write_text(WHOLE)
    with open(path, "r+b") as file:
        file.truncate(64 * 2**20 + 1)
    with pytest.raises(CurveError, match="larger than 67,108,864 bytes"):
        Curve.load(path)


def test_other_encodings_of_json_are_read(tmp_path: Path) -> None:
    for encoding in ("utf-16", "utf-8-sig", "ascii"):
        (tmp_path / "curve.json").write_bytes(WHOLE.encode(encoding))
        assert Curve.load(tmp_path / "curve.json") == small()


def test_what_a_file_says_does_not_reach_the_terminal(tmp_path: Path) -> None:
    record = unproven(small()) | {"page_views": {"\x1b[2J": -1}}
    (tmp_path / "curve.json").write_text(json.dumps(record))
    with pytest.raises(CurveError, match=r"page_views\['\\x1b\[2J'\] is -1"):
        Curve.load(tmp_path / "curve.json")


def test_rounding_is_no_damage() -> None:
    record = unproven(small())
    record["positions"][1] |= {"low": math.nextafter(0.5, 1), "high": 0.6}
    record["covariance"] = [[0.01, 0.003], [math.nextafter(0.003, 1), 0.04]]
    assert Curve.from_dict(record).covariance == ((0.01, 0.003), (math.nextafter(0.003, 1), 0.04))


def test_a_digit_that_was_changed_is_found(curve: Curve, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    curve.save(path)
    text = path.read_text()
    kept = 0
    for place in [i for i, letter in enumerate(text) if letter.isdigit()][::7]:
        path.write_text(f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}")
        # The last digits of a number that was written with seventeen may stand for the same one.
        try:
            kept += Curve.load(path) == curve
        except CurveError:
            continue
        assert Curve.load(path) == curve, place
    assert kept < 5


def test_other_programs_may_write_numbers_their_way(curve: Curve) -> None:
    record = json.loads(json_text(curve.to_dict()))
    numbers = json.loads(json.dumps(record), parse_int=float)
    assert numbers["max_rank"] == record["max_rank"]
    verify_checksum(numbers)
    with pytest.raises(RecordError, match="its checksum does not match its content"):
        verify_checksum(numbers | {"max_rank": record["max_rank"] + 1})


def test_an_edited_curve_is_blamed_on_its_checksum() -> None:
    record = small().to_dict()
    record["positions"][1] |= {"low": 0.9, "high": 0.1}
    with pytest.raises(CurveError, match="its checksum does not match its content, so it was damaged or edited"):
        Curve.from_dict(record)


def test_ends_in_the_wrong_order_are_no_rounding() -> None:
    record = unproven(small())
    record["positions"][1] |= {"low": math.nextafter(0.5, 1), "high": 0.5}
    with pytest.raises(CurveError, match="is above its upper end"):
        Curve.from_dict(record)


def test_a_curve_too_large_to_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_BYTES", 100)
    with pytest.raises(CurveError, match="Estimate fewer segments"):
        small().save(tmp_path / "curve.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("by", "key", "part"),
    [
        ((), (), {}),
        (("device",), (), {}),
        (("device",), ("a", "b"), {}),
        (("device", "device"), ("a", "b"), {}),
        (("device",), ("a",), {"level": 0.9}),
        (("device",), ("a",), {"by": ("os",)}),
    ],
)
def test_segments_must_fit_the_whole(by: tuple[str, ...], key: tuple[str, ...], part: dict[str, Any]) -> None:
    with pytest.raises(CurveError, match="segment"):
        small(by=by, segments={key: small(**part)})


# ---- Truths


TRUTHS: dict[str, tuple[str, str]] = {
    "a list": ("[1, 0.5]", "it is"),
    "without a curve": ('{"eta": 1}', "propensity is None where a list"),
    "a text": ('{"propensity": "10"}', "propensity is '10' where a list"),
    "an object": ('{"propensity": {"1": 1}}', "where a list"),
    "empty": ('{"propensity": []}', "propensity has 0 numbers"),
    "too long": (json.dumps({"propensity": [1] * 10_001}), "propensity has 10,001 numbers"),
    "negative": ('{"propensity": [1, -0.5]}', "propensity[1] is -0.5"),
    "NaN": ('{"propensity": [1, NaN]}', "it holds NaN"),
    "infinite": ('{"propensity": [1, 1e999]}', "propensity[1] is inf"),
    "true": ('{"propensity": [true]}', "propensity[0] is True"),
    "texts": ('{"propensity": ["1"]}', "propensity[0] is '1'"),
    "null": ('{"propensity": [null]}', "propensity[0] is None"),
    "deep": ('{"propensity":' + "[" * 10**5 + "]" * 10**5 + "}", "nested too deeply"),
    "no JSON": ("propensity", "not JSON"),
}


@pytest.mark.parametrize("kind", TRUTHS)
def test_a_file_that_is_no_truth(kind: str, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from posbias.cli import cli

    text, message = TRUTHS[kind]
    (tmp_path / "truth.json").write_text(text)
    # The truth is read before the log, which is not there.
    done = CliRunner().invoke(cli, ["estimate", "nix.parquet", "--truth", str(tmp_path / "truth.json")])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert "is not a truth file" in done.stderr
    assert message in done.stderr
    assert "posbias simulate writes one" in done.stderr


def test_a_truth_is_read(tmp_path: Path) -> None:
    (tmp_path / "truth.json").write_text('{"propensity": [1, 0.5, 0]}')
    assert files.read_truth(str(tmp_path / "truth.json")) == [1.0, 0.5, 0.0]
    with pytest.raises(posbias.PosbiasError, match=r"is not a truth file.*cannot be read"):
        files.read_truth(str(tmp_path))


# ---- Segments


@pytest.fixture(scope="module")
def colliding() -> Curve:
    """Curves of segments whose values, joined by commas, are the same."""
    world = posbias.World(queries=50, max_rank=3)
    tables = [posbias.simulate(world).to_pandas().assign(one=one, other=other) for one, other in COLLIDING]
    log = posbias.ClickLog(pandas.concat(tables))
    harvested = posbias.harvest(log, max_rank=3, by=["one", "other"], force=True)
    return posbias.AllPairs(bootstrap=5).fit(harvested).curve()


def test_no_segment_is_lost(colliding: Curve, tmp_path: Path) -> None:
    assert set(colliding.segments) == set(COLLIDING)
    colliding.save(tmp_path / "curve.json")
    assert Curve.load(tmp_path / "curve.json") == colliding
    told = [tuple(part["segment"].values()) for part in colliding.to_dict()["segments"]]
    assert told == list(colliding.segments)


def test_no_two_segments_have_the_same_text(colliding: Curve) -> None:
    titles = [block.splitlines()[0] for block in colliding.to_text().split("\n\n")[1:]]
    assert sorted(titles) == sorted(
        ['"a, b", c', 'a, "b, c"', "null, x", '"null", x', '"", x', r'"\"null\"", x', "a\\, x"]
    )


def test_csv_tells_a_missing_value_from_an_empty_one(colliding: Curve) -> None:
    text = colliding.to_csv()
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0][:4] == ["scope", "one", "other", "position"]
    assert [row[:3] for row in rows[1:4]] == [["all", "", ""]] * 3
    told = [tuple(row[1:3]) for row in rows[4:]]
    assert told == [tuple(v or "" for v in key) for key in colliding.segments for _ in range(3)]
    assert text.count("\nsegment,,x,") == text.count('\nsegment,"",x,') == 3


def test_csv_keeps_our_columns_where_a_segment_has_their_name() -> None:
    curve = small(by=("position", "scope"), segments={("x", "y"): small()})
    rows = list(csv.DictReader(io.StringIO(curve.to_csv())))
    assert [row["position"] for row in rows] == ["1", "3", "1", "3"]
    assert [(row["segment_position"], row["segment_scope"]) for row in rows[2:]] == [("x", "y")] * 2


def test_csv_holds_any_text() -> None:
    reason = 'a "quoted", thing\r\nin two lines '
    curve = small(positions=(Position(1, 1e-300, None, None, 10, 4, reason),), covariance=None)
    rows = list(csv.reader(io.StringIO(curve.to_csv(), newline="")))
    assert rows[1] == ["1", "1e-300", "", "", "10", "4", reason, ""]


def test_a_reason_that_several_ranks_share_is_printed_once() -> None:
    reasons = [None, "thin", "thin", "alone", "thin", "\x1b[2J", "\x1b[2J"]
    positions = tuple(Position(k, 0.5, None, None, 10, 4, why) for k, why in enumerate(reasons, start=1))
    curve = small(max_rank=7, positions=positions, covariance=None)
    lines = curve.to_text().splitlines()
    assert lines[0] == "all-pairs, no interval"
    assert lines[-2:] == ["! Ranks 2, 3 and 5: thin.", r"! Ranks 6 and 7: \x1b[2J."]
    assert [line.endswith("alone") for line in lines[2:-2]] == [False, False, False, True, False, False, False]
    assert curve.to_text().count("thin") == 1
    # An interval allows for what its reason says, so it is no warning.
    bounded = small(max_rank=7, positions=tuple(replace(p, low=0.4, high=0.6) for p in positions[:5]), covariance=None)
    assert bounded.to_text().splitlines()[-1] == "· Ranks 2, 3 and 5: thin."
    # Programs find it where it belongs.
    assert [p["reason"] for p in curve.to_dict()["positions"]] == reasons


def test_a_plot_has_a_title_and_bars_that_show_narrow_intervals() -> None:
    from posbias.curves.curve import draw_curve

    positions = (Position(1, 1.0, 1.0, 1.0, 9, 4, None), Position(2, 0.5, 0.499, 0.501, 9, 2, None))
    narrow = small(positions=positions, estimator="$x_1$", covariance=None)
    ax = draw_curve(narrow)
    assert ax.get_title() == r"Examination by rank: \$x_1\$, 95% interval by bootstrap"
    (container,) = ax.containers
    _, caps, bars = container.lines
    assert [cap.get_ydata()[1] for cap in caps] == [0.499, 0.501]
    assert len(bars) == 1
    assert "no interval" in draw_curve(small(level=None, interval_by=None, positions=(), covariance=None)).get_title()


def test_plots_name_segments_as_they_are(colliding: Curve) -> None:
    from posbias.curves.curve import draw_curve

    named = [text.get_text() for text in draw_curve(colliding).get_legend().get_texts()]
    assert named == ["all", *map(label, colliding.segments)]
    odd = small(by=("d",), segments={("_x",): small(), ("$x$",): small(), ("\x1b[1m",): small()})
    ax = draw_curve(odd)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["all", " _x", r"\$x\$", r'"\x1b[1m"']
    ax.figure.savefig(io.BytesIO(), format="svg")


def test_a_terminal_obeys_no_name_of_a_log() -> None:
    told = small(estimator="x\x1b[2J", by=("d",), segments={("\u202egnp\x9b\x07",): small(estimator="x\x1b[2J")})
    assert "x\\x1b[2J" in told.to_text()
    assert '"\\u202egnp\\x9b\\x07"' in told.to_text()


def test_rows_of_the_covariance_stand_on_one_line(curve: Curve) -> None:
    lines = json_text(curve.to_dict()).splitlines()
    start = lines.index('  "covariance": [')
    assert [json.loads(line.rstrip(",")) for line in lines[start + 1 : start + 5]] == curve.to_dict()["covariance"]
    assert lines[start + 5] == "  ],"
