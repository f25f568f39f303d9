"""Run every night: python nightly.py FOLDER DAY LOG. Alarms are printed to stderr, and the exit code is then 1."""

import sys
from datetime import date, timedelta
from pathlib import Path

import posbias

SPLIT = {"a": 50, "b": 50}  # The planned split of traffic.
DAYS, LEVEL = 7, 0.999  # At 99.9%, chance alone raises an alarm once in three years; errors of a diagnosis are as rare.
# Two days, as in ("2026-03-07", "2026-03-21"), if a slow drift away from the curve of that period is an alarm.
REFERENCE = None


def run(folder: Path, day: date) -> list[str]:
    """Estimate the week that ends with a day, add it to the history, and return the alarms of that day."""
    kept = posbias.History.load(folder / "history.parquet", new=True)
    changed = [one.date for one in kept.days if any(text.startswith("curve") for text in one.findings)]
    start, week = day, timedelta(days=DAYS)
    while earlier := [one for one in changed if start - week <= one < start]:
        start = min(earlier)  # The night of the first of several alarms, each within a week of the one before.
    # Compare with the week before these alarms; if they last longer than a week, the new curve is the usual one.
    start = start if day - start <= week else day
    before, last = ([load(folder, end - timedelta(days=n)) for n in range(DAYS, 0, -1)] for end in (start, day))
    today, alarms = load(folder, day), []
    if not last[-1] and any(file.stem < str(day) for file in folder.glob("*.harvest")):
        alarms.append(f"missing: no log of {day - timedelta(days=1)}")
    findings = posbias.diagnose(today, split=SPLIT).findings
    alarms += [f"{finding.code}: {finding.message}" for finding in findings if finding.severity == "error"]
    if any(before):
        found = posbias.compare(posbias.merge(filter(None, before)), today, level=LEVEL, names=["last week", "today"])
        alarms += [f"curve: {found.verdict}"] if found.differs else []
    fitted = posbias.CrossFit().fit(posbias.merge([*filter(None, last[1:]), today])).curve()
    if REFERENCE and day - week >= date.fromisoformat(REFERENCE[1]):
        drift = kept.add(fitted, day).check(REFERENCE, days=DAYS, span=DAYS)
        alarms += [f"drift: {drift.verdict}"] if drift.differs else []
    kept.add(fitted, day, alarms).save(folder / "history.parquet")
    return alarms


def load(folder: Path, day: date) -> posbias.Harvest | None:
    """Return the harvest of a day, if there is one."""
    file = folder / f"{day}.harvest"
    return posbias.Harvest.load(file) if file.exists() else None


if len(sys.argv) != 4:
    sys.exit(__doc__)
folder, first = Path(sys.argv[1]), date.fromisoformat(sys.argv[2])
posbias.harvest(posbias.ClickLog(sys.argv[3])).save(folder / f"{first}.harvest")
days = [first + timedelta(days=n) for n in range(DAYS + 1)]  # Weeks that a late day belongs to are made anew.
raised = [run(folder, day) for day in days if (folder / f"{day}.harvest").exists()]
sys.exit("\n".join(raised[0]) or None)
