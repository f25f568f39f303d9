"""Real logs and published experiments: our curve beside the published one, on data that readers fetch themselves.

docs/real_data.md says where the data are, and discusses the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np

from experiments.figures import Line, draw_curves
from experiments.outcomes import Outcome, Verdict, make_verdict
from experiments.published import run_magnani, run_wikimedia
from experiments.real_logs import LOADERS, Published, RealLog
from posbias import ClickLog, CrossFit, Harvest, RandomTraffic, check, diagnose, harvest
from posbias._arrays import FloatArray
from posbias._files import atomic_write
from posbias.errors import PosbiasError
from posbias.estimators import Estimator
from posbias.findings import Finding

_LARGEST = 2  # queries that the second curve leaves out
_ENOUGH_QUERIES = 10  # with fewer, leaving out the largest would leave too little
_LONGEST_NAME = 24  # of a query, in a note
# These need no data: the published tables hold all that is needed.
WITHOUT_DATA: dict[str, Callable[[], Outcome]] = {"wikimedia": run_wikimedia, "magnani": run_magnani}
NAMES = (*LOADERS, *WITHOUT_DATA)


def run_real(name: str, data: str | None, folder: Path) -> Outcome:
    """Estimate the curve of a real log, or repeat a published experiment, and compare it with what was published.

    The folder gets a real log as real-NAME.parquet, for `posbias check`, `diagnose` and `report`.
    """
    if name in WITHOUT_DATA:
        if data is not None:
            raise PosbiasError(f"{name} uses published numbers and reads no data: omit --data.")
        return WITHOUT_DATA[name]()
    if data is None:
        raise PosbiasError(f"The data of {name} are not part of posbias. Fetch them and name their folder with --data.")
    target = folder / f"real-{name}.parquet"
    with atomic_write(target) as part:
        real = LOADERS[name](Path(data), Path(part))
    return compare_log(name, target, real)


def compare_log(name: str, path: Path, real: RealLog) -> Outcome:
    """Estimate the curve of a log, with and without its largest queries, beside the published curves."""
    log = ClickLog(str(path))
    checked = check(log, max_rank=real.max_rank)
    curves = [_fit("posbias", CrossFit(), harvest(log, max_rank=real.max_rank, force=True))]
    whole = curves[0].harvest
    notes = []
    largest = _largest_queries(path)
    if largest:
        left_out = ", ".join(_literal(query) for query in largest)
        rest = ClickLog(str(path), sql=f"SELECT * FROM source WHERE query_id NOT IN ({left_out})")
        curves.append(_fit("without", CrossFit(), harvest(rest, max_rank=real.max_rank, force=True)))
        names = ", ".join(str(query)[:_LONGEST_NAME] for query in largest)
        notes.append(f"Without: the curve without the {_LARGEST} queries with most page views ({names}).")
    if real.random is not None:
        curves.append(_fit("random", RandomTraffic(real.random), whole))
        notes.append(f"Random: click rates of the ranker {real.random!r}, which shows results in random order.")
    same_kind = {
        published.name: _fit(f"our {published.name}", published.ours, whole)
        for published in real.published
        if published.ours is not None
    }
    notes += _table(whole, [*curves, *same_kind.values()], real.published)
    notes += _finding_lines("check", checked.findings)
    notes += _finding_lines("diagnose", diagnose(log, max_rank=real.max_rank, force=True).findings)
    rows = _rows(whole, [*curves, *same_kind.values()], real.published)
    verdicts = tuple(
        _contains(published, [same_kind[published.name]] if published.name in same_kind else curves)
        for published in real.published
    )
    drawn = curves[1] if largest else curves[0]
    lines = [Line("posbias", drawn.propensity, *drawn.interval.T)]
    lines += [Line(published.name, published.curve) for published in real.published]
    return Outcome(f"real-{name}", rows, draw_curves(lines, bands=False), verdicts, notes=tuple(notes))


class _Fit(NamedTuple):
    name: str
    harvest: Harvest
    propensity: FloatArray
    interval: FloatArray
    degrees_of_freedom: FloatArray


def _fit(name: str, estimator: Estimator[Any] | RandomTraffic, counted: Harvest) -> _Fit:
    fitted = estimator.fit(counted)
    return _Fit(name, counted, fitted.propensity_, fitted.interval_, fitted.degrees_of_freedom_)


def _largest_queries(path: Path) -> list[int | str]:
    """Return the queries with most rows, or none if there are few queries."""
    by_rows = f"GROUP BY query_id ORDER BY count(*) DESC, query_id LIMIT {_ENOUGH_QUERIES}"
    with duckdb.connect() as connection:
        largest = [
            row[0]
            for row in connection.execute(f"SELECT query_id FROM read_parquet(?) {by_rows}", [str(path)]).fetchall()
        ]
    return largest[:_LARGEST] if len(largest) == _ENOUGH_QUERIES else []


def _literal(query: int | str) -> str:
    """Return a query as a literal of SQL."""
    return str(query) if isinstance(query, int) else "'" + query.replace("'", "''") + "'"


def _contains(published: Published, curves: Sequence[_Fit]) -> Verdict:
    """Judge whether the intervals of our curves contain a published one at every rank that it has."""
    known = np.isfinite(published.curve)
    inside = [
        ((fit.interval[:, 0] <= published.curve) & (published.curve <= fit.interval[:, 1]))[known] for fit in curves
    ]
    both = ", with and without the largest queries" if len(curves) > 1 else ""
    mine = "" if curves[0].name == "posbias" else f" of {curves[0].name}"
    counts = " and ".join(str(each.sum()) for each in inside)
    return make_verdict(
        f"The 95% intervals{mine} contain {published.name} at every rank{both}",
        f"it is inside at {counts} of {known.sum()} ranks",
        np.all(inside),
        *(fit.interval[known] for fit in curves),
    )


def _rows(whole: Harvest, curves: Sequence[_Fit], published: Sequence[Published]) -> list[dict[str, Any]]:
    rates = _click_rates(whole)
    rows: list[dict[str, Any]] = [{"rank": k + 1, "click_rate": float(rate)} for k, rate in enumerate(rates)]
    for k, row in enumerate(rows):
        for fit in curves:
            key = fit.name.replace(" ", "_")
            row |= {
                key: float(fit.propensity[k]),
                f"{key}_low": float(fit.interval[k, 0]),
                f"{key}_high": float(fit.interval[k, 1]),
                f"{key}_degrees_of_freedom": float(fit.degrees_of_freedom[k]),
            }
        row |= {f"published_{each.name}": float(each.curve[k]) for each in published}
    return rows


def _click_rates(counted: Harvest) -> FloatArray:
    """Return the click rate of each rank, relative to rank 1."""
    rates = counted.clicks / counted.impressions
    relative: FloatArray = rates / rates[0]
    return relative


def _table(whole: Harvest, curves: Sequence[_Fit], published: Sequence[Published]) -> list[str]:
    """Return the curves as lines of text, one column for each."""
    cells = [["rank", *map(str, range(1, whole.max_rank + 1))]]
    cells.append(["click rate", *(f"{rate:.3f}" for rate in _click_rates(whole))])
    for fit in curves:
        cells.append([fit.name, *(f"{value:.3f}" for value in fit.propensity)])
        cells.append(["interval", "", *(f"{low:.3f} – {high:.3f}" for low, high in fit.interval[1:])])
    cells += [[each.name, *(f"{value:.3f}" for value in each.curve)] for each in published]
    widths = [max(map(len, column)) for column in cells]
    return [
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*cells, strict=True)
    ]


def _finding_lines(command: str, findings: Iterable[Finding]) -> list[str]:
    """Return what a command found: errors and warnings."""
    serious = [finding for finding in findings if finding.severity != "info"]
    if not serious:
        return [f"posbias {command}: no warning."]
    return [f"posbias {command}: {finding.severity}, {finding.code}: {finding.message}." for finding in serious]
