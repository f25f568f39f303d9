"""Reports in a real browser, on a phone and on a desktop: they show what the library computes, and load nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import posbias
from posbias.reporting.report import Report
from tests.reporting.test_report import EVIL, broken, spelled
from tests.support import ROOT

pytestmark = pytest.mark.server
NODE = Path(os.environ.get("POSBIAS_BROWSER", ROOT / ".browser"))
CASES = ("small", "large", "segmented", "hostile", "broken", "compared")
USED = ("phone", "desk")


SEGMENTS = {"phone": 1.5, "desk": 0.5}


def harvested(by: tuple[str, ...] = (), **world: Any) -> posbias.Harvest:
    made = posbias.World(**world)
    return posbias.harvest(posbias.ClickLog(posbias.simulate(made)), max_rank=made.max_rank, by=by)


def made(case: str) -> Report:
    """Return a report of a kind that people send each other."""
    if case == "small":
        return posbias.report(harvested(queries=300))
    if case == "large":
        return posbias.report(harvested(queries=300, max_rank=50))
    if case == "segmented":
        return posbias.report(harvested(("device",), queries=300, max_rank=6, segments=SEGMENTS))
    if case == "broken":
        return posbias.report(broken())
    if case == "compared":
        harvests = [harvested(queries=100, max_rank=4, seed=seed) for seed in range(2)]
        return posbias.report(*harvests, names=["small", EVIL])
    days = posbias.History()
    for number in range(1, 5):
        curve = posbias.AllPairs().fit(harvested(queries=40, max_rank=4, seed=number)).curve()
        days = days.add(curve, f"2026-03-{number:02}", [EVIL] if number == 2 else [])
    log = spelled(posbias.simulate(posbias.World(queries=100, max_rank=4, segments=SEGMENTS)), EVIL)
    harvest = posbias.harvest(posbias.ClickLog(log), max_rank=4, by=[f"device{EVIL}"])
    return posbias.report(harvest, names=[EVIL], history=days)


@pytest.fixture(scope="module", params=CASES)
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, dict[str, Any]]:
    """A report, and what Chromium saw of it; pictures are kept where POSBIAS_PICTURES says."""
    chromium = shutil.which("chromium")
    if chromium is None or shutil.which("node") is None or not (NODE / "node_modules").is_dir():
        pytest.skip("needs chromium and node, and what `make test-servers` installs from npm")
    folder = tmp_path_factory.mktemp("pages")
    pictures = os.environ.get("POSBIAS_PICTURES", str(folder))
    report = made(request.param)
    page = folder / f"{request.param}.html"
    report.save(page)
    words = [
        "node",
        str(ROOT / "tests" / "support" / "browser" / "drive.mjs"),
        str(NODE),
        chromium,
        pictures,
        str(page),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)[request.param]
    assert {*seen} == {*USED, "phone-dark", "desk-light", "scriptless"}
    return report, seen


Shown = tuple[Report, dict[str, Any]]


def test_the_page_loads_nothing_and_fits_the_screen(shown: Shown) -> None:
    for view in shown[1].values():
        assert view["console"] == view["requests"] == view["dialogs"] == []
        assert view["images"] == view["handlers"] == 0
        assert view["scripts"] == 1
        assert len({*view["ids"]}) == len(view["ids"])
        # Nothing sticks out at the side, not even with all that is folded away.
        assert view["overflow"] <= 0
        assert view.get("opened", 0) <= 0


def test_numbers_are_those_of_the_report(shown: Shown) -> None:
    report, seen = shown
    for view in seen.values():
        for part, found in zip(report.parts, view["parts"], strict=True):
            told = part.curve.to_dict()
            rows = [
                [p["position"], p["propensity"], p["low"], p["high"], p["impressions"], p["clicks"]]
                for p in told["positions"]
            ]
            read = [[None if cell == "–" else float(cell.replace(",", "")) for cell in row] for row in found["rows"]]
            assert read == rows
            copied = json.loads(found["json"])
            assert copied["positions"] == told["positions"]
            assert copied == told or copied["covariance"] is None


def test_a_rank_shows_its_numbers_to_pointer_finger_and_keyboard(shown: Shown) -> None:
    seen = shown[1]
    for view in USED:
        for chart in seen[view]["charts"]:
            assert chart["stops"] == 1
            assert chart["marks"]
            assert chart["rows"]
            assert chart["size"] > 300
    first = seen["desk"]["charts"][0]["marks"]
    assert first[1].startswith("Rank ")
    assert seen["phone"]["use"] == {"tapped": first[1], "fits": True}
    use = seen["desk"]["use"]
    assert use["hovered"] == first[1]
    assert use["left"] is None
    # By Tab through the contents, and a link to what was found, to the first picture.
    assert {*use["order"][:-1]} == {"a"}
    assert use["order"][-1] == "mark"
    assert use["keys"] == [first[0], first[1], first[2], first[1], first[-1], first[-1], first[0], None]
    # From a picture, Tab leads to the table behind it.
    assert use["after"] == "summary"


def test_axe_finds_no_accessibility_problem(shown: Shown) -> None:
    for view in USED:
        assert shown[1][view]["violations"] == []


def test_the_page_is_complete_without_the_script_and_in_print(shown: Shown) -> None:
    whole, plain = shown[1]["desk"], shown[1]["scriptless"]
    assert [chart["marks"] for chart in plain["charts"]] == [chart["marks"] for chart in whole["charts"]]
    assert [chart["rows"] for chart in plain["charts"]] == [chart["rows"] for chart in whole["charts"]]
    assert plain["parts"] == whole["parts"]
    assert whole["printed"] > 20_000
