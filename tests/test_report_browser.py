"""Reports in a real browser, on a phone and on a desk: they show what the library says, and do nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import posbias

from .test_report import EVIL, broken, spelled

pytestmark = pytest.mark.server
ROOT = Path(__file__).resolve().parents[1]
NODE = Path(os.environ.get("POSBIAS_BROWSER", ROOT / ".browser"))
CASES = ("small", "large", "segmented", "hostile", "broken", "compared")
USED = ("phone", "desk")


def harvests() -> dict[str, posbias.Harvest]:
    """One of each kind that people send each other."""

    def made(world: posbias.World, **settings: Any) -> posbias.Harvest:
        return posbias.harvest(posbias.ClickLog(posbias.simulate(world)), max_rank=world.max_rank, **settings)

    segments = {"phone": 1.5, "desk": 0.5}
    hostile = spelled(posbias.simulate(posbias.World(queries=100, max_rank=4, segments=segments)), EVIL)
    return {
        "small": made(posbias.World(queries=300)),
        "large": made(posbias.World(queries=300, max_rank=50)),
        "segmented": made(posbias.World(queries=300, max_rank=6, segments=segments), by=["device"]),
        "hostile": posbias.harvest(posbias.ClickLog(hostile), max_rank=4, by=[f"device{EVIL}"]),
        "broken": broken(),
    }


@pytest.fixture(scope="module")
def reports() -> dict[str, Any]:
    made = harvests()
    days = posbias.History()
    for number, world in enumerate([posbias.World(queries=40, max_rank=4, seed=n) for n in range(4)], start=1):
        curve = posbias.AllPairs().fit(posbias.harvest(posbias.ClickLog(posbias.simulate(world)), max_rank=4)).curve()
        days = days.add(curve, f"2026-03-{number:02}", [EVIL] if number == 2 else [])
    found = {name: posbias.report(harvest, names=[name]) for name, harvest in made.items()}
    found["hostile"] = posbias.report(made["hostile"], names=[EVIL], history=days)
    found["compared"] = posbias.report(made["small"], made["segmented"], names=["small", EVIL])
    return found


@pytest.fixture(scope="module")
def seen(reports: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Chromium saw of all reports; pictures of them are kept where POSBIAS_PICTURES says."""
    chromium = shutil.which("chromium")
    if chromium is None or shutil.which("node") is None or not (NODE / "node_modules").is_dir():
        pytest.skip("needs chromium and node, and what `make test-servers` installs from npm")
    folder = tmp_path_factory.mktemp("pages")
    pictures = Path(os.environ.get("POSBIAS_PICTURES", folder))
    for name, report in reports.items():
        report.save(folder / f"{name}.html")
    words = ["node", str(ROOT / "tests" / "browser" / "drive.mjs"), str(NODE), chromium, str(pictures)]
    done = subprocess.run(
        [*words, *(str(folder / f"{name}.html") for name in reports)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert {*found} == {*CASES}
    return found


@pytest.mark.parametrize("case", CASES)
def test_nothing_happens_that_should_not(seen: dict[str, Any], case: str) -> None:
    assert len(seen[case]) == 5
    for view in seen[case].values():
        assert view["console"] == view["requests"] == view["dialogs"] == []
        assert view["images"] == view["handlers"] == 0
        assert view["scripts"] == 1
        assert len({*view["ids"]}) == len(view["ids"])
        # Nothing sticks out at the side, not even with all that is folded away.
        assert view["overflow"] <= 0
        assert view.get("opened", 0) <= 0


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_the_report(seen: dict[str, Any], reports: dict[str, Any], case: str) -> None:
    for view in seen[case].values():
        for part, shown in zip(reports[case].parts, view["parts"], strict=True):
            told = part.curve.to_dict()
            rows = [
                [p["position"], p["propensity"], p["low"], p["high"], p["impressions"], p["clicks"]]
                for p in told["positions"]
            ]
            read = [[None if cell == "–" else float(cell.replace(",", "")) for cell in row] for row in shown["rows"]]
            assert read == rows
            copied = json.loads(shown["json"])
            assert copied["positions"] == told["positions"]
            assert copied == told or copied["covariance"] is None


@pytest.mark.parametrize("case", CASES)
def test_a_rank_tells_its_numbers_to_pointer_finger_and_keys(seen: dict[str, Any], case: str) -> None:
    for view in USED:
        for chart in seen[case][view]["charts"]:
            assert chart["stops"] == 1
            assert chart["marks"]
            assert chart["rows"]
            assert chart["size"] > 300
    first = seen[case]["desk"]["charts"][0]["marks"]
    assert first[1].startswith("Rank ")
    assert seen[case]["phone"]["use"] == {"tapped": first[1], "fits": True}
    use = seen[case]["desk"]["use"]
    assert use["hovered"] == first[1]
    assert use["left"] is None
    assert use["order"] == ["a"] * 6 + ["mark"]
    assert use["keys"] == [first[0], first[1], first[2], first[1], first[-1], first[-1], first[0], None]
    # From a picture, Tab leads to the table behind it.
    assert use["after"] == "summary"


@pytest.mark.parametrize("case", CASES)
def test_axe_finds_nothing(seen: dict[str, Any], case: str) -> None:
    for view in USED:
        assert seen[case][view]["violations"] == []


@pytest.mark.parametrize("case", CASES)
def test_all_is_there_without_the_script_and_on_paper(seen: dict[str, Any], case: str) -> None:
    whole, plain = seen[case]["desk"], seen[case]["scriptless"]
    assert [chart["marks"] for chart in plain["charts"]] == [chart["marks"] for chart in whole["charts"]]
    assert [chart["rows"] for chart in plain["charts"]] == [chart["rows"] for chart in whole["charts"]]
    assert plain["parts"] == whole["parts"]
    assert whole["printed"] > 20_000
