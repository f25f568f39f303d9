"""Run every night: python nightly.py FOLDER DAY LOG. Alarms are printed to stderr, and the exit code is then 1."""

import sys
from datetime import date, timedelta
from pathlib import Path

import posbias

SPLIT = {"a": 50, "b": 50}  # The planned split of traffic.
DAYS, LEVEL = 7, 0.999  # At 99.9%, chance alone raises an alarm once in three years; errors of a diagnosis are as rare.


def run(folder: Path, day: date) -> list[str]:
    """Estimate the week that ends with a day, add it to the history, and return the alarms of that day."""
    kept = posbias.History.load(folder / "history.parquet", new=True)
    changed = {str(one.date) for one in kept.days if any(text.startswith("curve") for text in one.findings)}
    files = [folder / f"{day - timedelta(days=n)}.harvest" for n in range(DAYS + 1)]
    held = {file.stem: posbias.Harvest.load(file) for file in files if file.exists()}
    today, alarms = held[str(day)], []
    if files[1].stem not in held and any(file.stem < str(day) for file in folder.glob("*.harvest")):
        alarms.append(f"missing: no log of {files[1].stem}")
    findings = posbias.diagnose(today, split=SPLIT).findings
    alarms += [f"{finding.code}: {finding.message}" for finding in findings if finding.severity == "error"]
    if before := [held[name] for name in held if name not in {str(day), *changed}]:
        found = posbias.compare(posbias.merge(before), today, level=LEVEL, names=["last week", "today"])
        alarms += [f"curve: {found.verdict}"] if found.differs else []
    week = posbias.CrossFit().fit(posbias.merge(held[file.stem] for file in files[:DAYS] if file.stem in held))
    kept.add(week.curve(), day, alarms).save(folder / "history.parquet")
    return alarms


if len(sys.argv) != 4:
    sys.exit(__doc__)
folder, first = Path(sys.argv[1]), date.fromisoformat(sys.argv[2])
posbias.harvest(posbias.ClickLog(sys.argv[3])).save(folder / f"{first}.harvest")
days = [first + timedelta(days=n) for n in range(DAYS + 1)]  # Weeks that a late day belongs to are made anew.
raised = [run(folder, day) for day in days if (folder / f"{day}.harvest").exists()]
sys.exit("\n".join(raised[0]) or None)
