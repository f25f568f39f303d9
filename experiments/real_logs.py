"""Loaders of public logs: each reads the files as they were published and writes one row for each result shown.

Nothing of these data is part of posbias. docs/real_data.md says where they are, under which licence, and how their
columns are mapped. Tests run each loader on a tiny file of the same format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

from posbias import AdjacentChain, AllPairs, PivotOne
from posbias._arrays import FloatArray, IntArray
from posbias.errors import LogError
from posbias.estimators import Estimator


class Published(NamedTuple):
    """A curve that others published for a log, relative to rank 1, and our estimator of the same kind."""

    name: str
    curve: FloatArray
    ours: Estimator[Any] | None = None  # None: CrossFit, because we have none of the same kind


class RealLog(NamedTuple):
    """What a loader knows of the log that it wrote."""

    published: tuple[Published, ...] = ()
    max_rank: int = 10
    # The ranker that shows results in random order, if there is one.
    random: str | None = None


# ---- Sogou


def load_sogou(folder: Path, target: Path) -> RealLog:
    """Read the Sogou sample of THUIR/PSCMModel: its folder `sample`.

    A line of `train_data` or `test_data` is a page view: query, 10 documents, 10 clicks, 10 click times and mouse
    features, separated by tabs. `output/_UBM.model` has the examination probabilities of the User Browsing Model
    (Dupret and Piwowarski, SIGIR 2008) that the authors fitted to `train_data`: by rank, and by the distance to the
    last click above. The published curve is their mean over the page views, relative to rank 1.
    """
    views = [view for name in ("train_data", "test_data") for view in _sogou_views(folder / name)]
    clicked = _write_views(views, target)
    curve = mean_examination(_ubm_parameters(folder / "output" / "_UBM.model"), clicked)
    return RealLog((Published("the UBM", curve),))


class _View(NamedTuple):
    query: int | str
    docs: list[int]
    clicks: list[int]


def _write_views(views: list[_View], target: Path) -> IntArray:
    """Write page views of equal length as a log, and return their clicks, one row for each page view."""
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
    pq.write_table(table, target)
    return clicked


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


# ---- Yandex


def load_yandex(path: Path, target: Path) -> RealLog:
    """Read logs of Yandex's relevance prediction challenge: a file, or every file of a folder.

    A file of the challenge has a line for each action, separated by tabs: `session time Q query region documents…` or
    `session time C document`. The older samples of markovi/PyClick, `trainSample` and `testSample`, have a line for
    each query: page views separated by `;`, each `query_region TAB documents : clicked documents`. The query is the
    query in its region. A click belongs to the last page view of its session; clicks on other documents are left out.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    views = [view for file in files for view in _yandex_views(file)]
    if not views:
        raise LogError(f"{str(path)!r} has no page view. Name a file of the challenge, or a folder of them.")
    _write_views(views, target)
    return RealLog()


def _yandex_views(path: Path) -> list[_View]:
    views: list[_View] = []
    last: dict[str, _View] = {}
    for number, line in enumerate(_lines(path), 1):
        fields = line.rstrip().split("\t")
        if not line.strip():
            continue
        try:
            if ":" in line:
                views += [_sample_view(text) for text in line.split(";") if text.strip()]
            elif fields[2] == "Q":
                docs = [int(doc) for doc in fields[5:]]
                views.append(_View(f"{int(fields[3])}_{int(fields[4])}", docs, [0] * len(docs)))
                last[fields[0]] = views[-1]
            elif fields[2] == "C":
                shown = last.get(fields[0])
                if shown is not None and int(fields[3]) in shown.docs:
                    shown.clicks[shown.docs.index(int(fields[3]))] = 1
            else:
                raise ValueError
            if views and len(views[-1].docs) != 10:
                raise ValueError
        except (ValueError, IndexError):
            raise LogError(
                f"Line {number} of {str(path)!r} is neither a query with its 10 documents nor a click; found "
                f"{line[:60]!r}. Use a file of Yandex's challenge, or trainSample and testSample of markovi/PyClick."
            ) from None
    return views


def _sample_view(text: str) -> _View:
    query, rest = text.strip().split("\t")
    shown, _, clicked = rest.partition(":")
    docs = [int(doc) for doc in shown.split(",")]
    clicks = {int(doc) for doc in clicked.split(",") if doc.strip()}
    return _View(query, docs, [int(doc in clicks) for doc in docs])


# ---- Baidu-ULTR

# Rounded from propensities/*.csv of philipphager/ultr-reproducibility (Hager et al., SIGIR 2024): ranks 1 to 10, on
# partitions 1 to 3, by ultr-bias-toolkit.
BAIDU = {
    "AllPairs": [1, 0.674, 0.414, 0.293, 0.208, 0.171, 0.136, 0.117, 0.084, 0.058],
    "AdjacentChain": [1, 0.684, 0.445, 0.321, 0.223, 0.177, 0.136, 0.117, 0.083, 0.049],
    "PivotOne": [1, 0.684, 0.448, 0.326, 0.216, 0.202, 0.170, 0.123, 0.094, 0.136],
}


def load_baidu(path: Path, target: Path) -> RealLog:
    """Read `train-features.feather` of Baidu-ULTR as ultr-reproducibility publishes it."""
    names = {"query_no": "impression_id", "query_md5": "query_id", "url_md5": "doc_id"}
    columns = [*names, "position", "click"]
    try:
        table = pyarrow.feather.read_table(path, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise LogError(
            f"{str(path)!r} is not a Feather file with the columns {', '.join(columns)} ({error}). Name "
            "train-features.feather of Baidu-ULTR with --data."
        ) from None
    pq.write_table(table.rename_columns([*names.values(), "position", "clicked"]), target)
    # The peer counts each (query, document) pair once.
    ours = {kind.__name__: kind(weighting="uniform") for kind in (AllPairs, AdjacentChain, PivotOne)}
    return RealLog(tuple(Published(name, np.array(curve), ours[name]) for name, curve in BAIDU.items()))


# ---- Open Bandit


def load_open_bandit(folder: Path, target: Path) -> RealLog:
    """Read the Open Bandit data of ZOZO: files POLICY/CAMPAIGN/CAMPAIGN.csv, with the policies random and bts.

    The query is the campaign with the features of the user. The probability with which the policy chose the item is
    kept as the column `propensity_score`.
    """
    files = sorted(path for path in folder.glob("*/*/*.csv") if path.stem == path.parent.name)
    if not files:
        raise LogError(f"{str(folder)!r} has no files such as random/men/men.csv. Name the folder obd with --data.")
    parts = [
        "SELECT "
        f"{_text(path.stem)} || ' ' || concat_ws(' ', user_feature_0, user_feature_1, user_feature_2, user_feature_3) "
        f"AS query_id, item_id AS doc_id, {_text(path.parent.parent.name)} AS ranker, position, click AS clicked, "
        f"propensity_score FROM read_csv({_text(str(path))}, header = true)"
        for path in files
    ]
    _copy(" UNION ALL ".join(parts), target, folder)
    return RealLog(max_rank=3, random="random")


# ---- Seznam

_SEZNAM_RANKS = 14


def load_seznam(path: Path, target: Path) -> RealLog:
    """Read Seznam's Vertical Search Blending data: a file of 63 columns without a header, or a folder of them.

    The document is the vertical (news, images …) or, for an organic result, the domain. A domain may occur twice on a
    page; such rows name no single document and are left out. The probability of each choice is kept as `propensity`.
    """
    found = sorted(path.glob("*.tsv")) if path.is_dir() else [path]
    files = [str(file) for file in found if file.name != "header.tsv"]
    if not files:
        raise LogError(f"{str(path)!r} has no files *.tsv. Name sample.tsv, or the folder of the unpacked parts.")
    page = ["serp_id", "query", "num_tokens", "num_skips", "timestamp", "alternative_actions", "hardware"]
    ranks = range(_SEZNAM_RANKS)
    slots = [f"{name}_{k}" for k in ranks for name in ("click", "propensity", "action", "domain")]
    columns = ", ".join(f"'{name}': 'VARCHAR'" for name in [*page, *slots])
    shown = ", ".join(
        f"{{'position': {k + 1}, 'click': click_{k}, 'propensity': propensity_{k}, 'action': action_{k}, "
        f"'domain': domain_{k}}}"
        for k in ranks
    )
    sources = ", ".join(map(_text, files))
    sql = f"""
        WITH pages AS (
            SELECT serp_id, query, hardware, unnest([{shown}], recursive := true)
            FROM read_csv([{sources}], delim = '\t', header = false, quote = '', escape = '', columns = {{{columns}}})
        )
        SELECT serp_id AS impression_id, query AS query_id,
            CASE action WHEN '0' THEN 'domain ' || domain ELSE 'vertical ' || action END AS doc_id,
            position, click::INTEGER > 0 AS clicked, propensity::DOUBLE AS propensity, hardware AS device
        FROM pages
        WHERE action <> '' AND (action <> '0' OR domain <> '')
        QUALIFY count(*) OVER (PARTITION BY impression_id, doc_id) = 1
    """
    _copy(sql, target, path)
    return RealLog(max_rank=_SEZNAM_RANKS)


# ---- Files


def _text(value: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + value.replace("'", "''") + "'"


def _copy(sql: str, target: Path, source: Path) -> None:
    """Write the answer of a query as Parquet; DuckDB does it without holding all rows in memory."""
    try:
        with duckdb.connect() as connection:
            connection.execute(f"COPY ({sql}) TO {_text(str(target))} (FORMAT parquet)")
    except duckdb.Error as error:
        raise LogError(
            f"{str(source)!r} does not have the published format ({str(error).splitlines()[0]}). Use the files as they "
            "are; docs/real_data.md describes them."
        ) from None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").splitlines()
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise LogError(f"No file {str(path)!r}: {reason}. Name the folder that contains it with --data.") from None
    except UnicodeDecodeError:
        raise LogError(f"{str(path)!r} is not a text file of numbers. Use the file as it was published.") from None


LOADERS: dict[str, Callable[[Path, Path], RealLog]] = {
    "sogou": load_sogou,
    "yandex": load_yandex,
    "baidu": load_baidu,
    "open-bandit": load_open_bandit,
    "seznam": load_seznam,
}
