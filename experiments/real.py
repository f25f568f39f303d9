"""Real logs: the curve of posbias beside a published one, on data that readers fetch themselves.

Each data set has a loader that returns a log and the published curve. Tests run the loaders on tiny files of the same
format. docs/real_data.md says where the data are, and discusses the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from experiments.figures import Line, draw_curves
from experiments.outcomes import Outcome, make_verdict
from posbias import ClickLog, CrossFit, Harvest, harvest
from posbias._arrays import FloatArray, IntArray
from posbias._files import atomic_write
from posbias.errors import LogError, PosbiasError

_LARGEST = 2  # queries that the second curve leaves out


class RealLog(NamedTuple):
    """A log of one row for each result shown, and a curve that others published for it."""

    table: pa.Table
    reference: FloatArray
    reference_name: str


def run_real(name: str, data: str | None, folder: Path) -> Outcome:
    """Estimate the curve of a real log, with and without its largest queries, and compare it with the published one.

    The folder gets the log as real-NAME.parquet, for `posbias check`, `diagnose` and `report`.
    """
    if data is None:
        raise PosbiasError(f"The data of {name} are not part of posbias. Fetch them and name their folder with --data.")
    log = LOADERS[name](Path(data))
    with atomic_write(folder / f"real-{name}.parquet") as part:
        pq.write_table(log.table, part)
    largest = _largest_queries(log.table)
    rest = log.table.filter(pc.invert(pc.is_in(log.table["query_id"], value_set=largest)))
    harvests = [harvest(ClickLog(table), max_rank=len(log.reference)) for table in (log.table, rest)]
    fits = [CrossFit().fit(one) for one in harvests]
    inside = [(fit.interval_[:, 0] <= log.reference) & (log.reference <= fit.interval_[:, 1]) for fit in fits]
    verdict = make_verdict(
        f"The 95% intervals contain {log.reference_name} at every rank, with and without the largest queries",
        f"it is inside at {inside[0].sum()} and {inside[1].sum()} of {len(log.reference)} ranks",
        np.all(inside),
        *(fit.interval_ for fit in fits),
    )
    rows = [
        {
            "rank": rank + 1,
            "click_rate": float(_click_rates(harvests[0])[rank]),
            "propensity": float(fits[0].propensity_[rank]),
            "low": float(fits[0].interval_[rank, 0]),
            "high": float(fits[0].interval_[rank, 1]),
            "degrees_of_freedom": float(fits[0].degrees_of_freedom_[rank]),
            "without_largest": float(fits[1].propensity_[rank]),
            "without_largest_low": float(fits[1].interval_[rank, 0]),
            "without_largest_high": float(fits[1].interval_[rank, 1]),
            "reference": float(log.reference[rank]),
        }
        for rank in range(len(log.reference))
    ]
    lines = [
        Line("posbias", fits[1].propensity_, *fits[1].interval_.T),
        Line(log.reference_name, log.reference),
    ]
    notes = (
        f"Reference: {log.reference_name}. Without: the curve without the {_LARGEST} queries with most page views "
        f"({', '.join(map(str, largest.to_pylist()))}).",
        "rank  click rate  propensity  interval       without  interval       reference",
        *map(_format_row, rows),
    )
    return Outcome(f"real-{name}", rows, draw_curves(lines, bands=False), (verdict,), notes=notes)


def _largest_queries(table: pa.Table) -> pa.Array:
    queries, counts = np.unique(table["query_id"], return_counts=True)
    return pa.array(queries[np.argsort(-counts, kind="stable")][:_LARGEST])


def _click_rates(one: Harvest) -> FloatArray:
    """Return the click rate of each rank, relative to rank 1."""
    rates = one.clicks / one.impressions
    relative: FloatArray = rates / rates[0]
    return relative


def _format_row(row: dict[str, Any]) -> str:
    def interval(first: str) -> str:
        return f"{row[f'{first}low']:5.3f} – {row[f'{first}high']:5.3f}" if row["rank"] > 1 else " " * 13

    return (
        f"{row['rank']:4d}  {row['click_rate']:10.3f}  {row['propensity']:10.3f}  {interval('')}  "
        f"{row['without_largest']:7.3f}  {interval('without_largest_')}  {row['reference']:9.3f}"
    )


def load_sogou(folder: Path) -> RealLog:
    """Read the Sogou sample of THUIR/PSCMModel: its folder `sample`.

    A line of `train_data` or `test_data` is a page view: query, 10 documents, 10 clicks, 10 click times and mouse
    features, separated by tabs. `output/_UBM.model` has the examination probabilities of the User Browsing Model
    (Dupret and Piwowarski, SIGIR 2008) that the authors fitted to `train_data`: by rank, and by the distance to the
    last click above. The published curve is their mean over the page views, relative to rank 1.
    """
    views = [view for name in ("train_data", "test_data") for view in _sogou_views(folder / name)]
    clicked = np.array([view.clicks for view in views])
    ranks = clicked.shape[1]
    table = pa.table(
        {
            "impression_id": np.repeat(np.arange(len(views)), ranks),
            "query_id": np.repeat([view.query for view in views], ranks),
            "doc_id": np.concatenate([view.docs for view in views]),
            "position": np.tile(np.arange(1, ranks + 1), len(views)),
            "clicked": clicked.ravel(),
        }
    )
    return RealLog(table, mean_examination(_ubm_parameters(folder / "output" / "_UBM.model"), clicked), "the UBM")


class _View(NamedTuple):
    query: int
    docs: list[int]
    clicks: list[int]


def _sogou_views(path: Path) -> Iterator[_View]:
    for number, line in enumerate(_lines(path), 1):
        try:
            query, docs, clicks = line.split("\t")[:3]
            view = _View(int(query), [int(doc) for doc in docs.split()], [int(click) for click in clicks.split()])
        except ValueError:
            view = _View(0, [], [])
        if len(view.docs) != 10 or len(view.clicks) != 10 or not set(view.clicks) <= {0, 1}:
            raise LogError(
                f"Line {number} of {str(path)!r} is not a page view. Expected a query, 10 documents and 10 clicks, "
                f"separated by tabs; found {line[:60]!r}. Use the folder sample of THUIR/PSCMModel as it is."
            )
        yield view


def _ubm_parameters(path: Path) -> FloatArray:
    """Return the examination probabilities of the UBM: row = rank, column = distance to the last click, less one."""
    lines = _lines(path)
    try:
        start = lines.index("M : 0") + 1
        found = np.array([[float(value) for value in line.split()] for line in lines[start : start + 10]])
    except ValueError:
        found = np.empty(0)
    if found.shape != (10, 10):
        raise LogError(f"{str(path)!r} has no table of 10 × 10 numbers below 'M : 0'. Use the file of THUIR/PSCMModel.")
    return found


def mean_examination(parameters: FloatArray, clicked: IntArray) -> FloatArray:
    """Return the mean examination probability of each rank under the UBM, relative to rank 1.

    Example:
        >>> parameters = np.array([[0.8, 0.5], [0.6, 0.2]])
        >>> mean_examination(parameters, np.array([[1, 0], [0, 0]])).tolist()
        [1.0, 0.5]
    """
    views, ranks = clicked.shape
    # The rank of the last click above each rank, from 0; -1 if there is none.
    last = np.where(clicked == 1, np.arange(ranks), -1)
    last = np.maximum.accumulate(np.hstack([np.full((views, 1), -1), last[:, :-1]]), axis=1)
    mean: FloatArray = parameters[np.arange(ranks), np.arange(ranks) - last - 1].mean(axis=0)
    relative: FloatArray = mean / mean[0]
    return relative


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").splitlines()
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise LogError(f"No file {str(path)!r}: {reason}. Name the folder that contains it with --data.") from None
    except UnicodeDecodeError:
        raise LogError(f"{str(path)!r} is not a text file of numbers. Use the file as it was published.") from None


LOADERS: dict[str, Callable[[Path], RealLog]] = {"sogou": load_sogou}
