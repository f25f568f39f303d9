"""Small random click logs in every layout and form, with hostile names."""

from __future__ import annotations

import csv
import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas
import polars
import pyarrow
import pyarrow.parquet
from hypothesis import strategies as st

Row = dict[str, Any]

LAYOUTS = ("wide", "long", "replay")
WEIGHTINGS = ("traffic", "uniform", "harmonic", "min")


@dataclass(frozen=True)
class Log:
    """A log in the form of the oracle (tests/support/oracle.py)."""

    layout: str
    rows: list[Row]
    rankers: tuple[str, ...] = ()
    rankings: list[Row] | None = None

    def only(self, keep: Callable[[Row], bool]) -> Log:
        return replace(self, rows=[row for row in self.rows if keep(row)])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print a row a line when hypothesis shows a failing log."""
        lines = [f"{self.layout} log of {self.rankers}", *map(str, self.rows)]
        lines += ["rankings", *map(str, self.rankings)] if self.rankings is not None else []
        printer.text("\n".join(lines))


@dataclass(frozen=True)
class Names:
    """The column names of a log. The defaults are those of posbias."""

    query: str = "query_id"
    doc: str = "doc_id"
    ranker: str = "ranker"
    position: str = "position"
    click: str = "clicked"
    view: str | None = None  # the impression column, which no default name finds
    impressions: str = "impressions"
    clicks: str = "clicks"
    ranks: str = "rank_{ranker}"
    rank: str = "rank"
    segments: dict[str, str] = field(default_factory=dict)  # key in the row -> column


# ---- Names that break what is pasted together rather than quoted

RANKERS = ("A", "B", "ranker_1", "ranker_10", "1", "2", "10")
HOSTILE_RANKERS = (
    "a'b\"c",
    "select",
    "rank_{x}",
    "{ranker}",
    "1",
    "ü 🚀",
    "%",
    "%s",
    "a,b",
    "a|b",
    "null",
    "--",
    ";",
    " A",
    "A ",
    "A",
    "Ranker'); DROP TABLE log; --",
    "\\",
    "a.b",
    "line\nbreak",
)
HOSTILE_STRINGS = (
    *("'", '"', "'';--", "a'b\"c", "a;b", "a,b", "a\tb", "a\nb", "a\r\nb", " ", "  ", "a", "A", "a ", " a"),
    *(
        "\u00fc",
        "u\u0308",
        "🚀",
        "日本",
        "%",
        "_",
        "\\",
        "\\n",
        "$1",
        "{}",
        "None",
        "null",
        "NULL",
        "NaN",
        "true",
    ),
    *("0", "00", "1", "01", "1.0", "1e0", "0x1", "-1", "2024-01-01"),
)
HOSTILE_COLUMNS = (
    *(
        "order",
        "group by",
        'my "query"',
        "it's",
        "select",
        "a b",
        " lead",
        "trail ",
        "ü 🚀",
        "1",
        "%",
        "a.b",
        "a;b",
    ),
    *(
        "$1",
        "?",
        "{x}",
        "from",
        "rank",
        "bucket",
        "k",
        "n",
        "weight",
        "row",
        "signature",
        "count",
        "sum",
        "shown",
    ),
    *(
        "pairs",
        "log",
        "rankings",
        "\\",
        "--",
        "/*",
        "table",
        "null",
        "case",
        "position",
        "ranker",
        "query_id",
        "doc_id",
    ),
)
HOSTILE_TEMPLATES = ("rank_{ranker}", "{ranker}'s rank", '"{ranker}"', "rank of {ranker}", "of({ranker});")

near_overflow = st.sampled_from(
    [2**63 - 1, 2**63 - 2, 2**63 - 3, 2**62, -(2**63), 1 - 2**63, 2**53, 2**53 + 1, 0, -1, 1]
)
plain_ids = st.sampled_from([f"id{i}" for i in range(12)])
small_ids = st.integers(0, 11)
uuid_ids = st.sampled_from([str(uuid.UUID(int=i * (2**124 + 1))) for i in range(12)])
string_ids = st.sampled_from(HOSTILE_STRINGS)

PLAIN_KINDS = (plain_ids, small_ids)
HOSTILE_KINDS = (near_overflow, uuid_ids, string_ids)


# ---- Strategies


@st.composite
def logs(
    draw: st.DrawFn,
    layout: str,
    *,
    functional: bool = True,
    ids: tuple[st.SearchStrategy[Any], ...] = PLAIN_KINDS,
    rankers: tuple[str, ...] = RANKERS,
    segments: st.SearchStrategy[Any] | None = None,
    complete: bool = True,
) -> Log:
    """Whole page views of 2 to 4 rankers, in random order and with random clicks.

    `functional`: each ranker has one ranking for each query.
    `complete`: the rankings of a long log hold every result shown.
    `segments`: a value for each page view, as `segment` in its rows. `view` in a row numbers its page view.
    """

    # Sizes begin with the smallest that tell something: hypothesis is fond of the first.
    def some(values: st.SearchStrategy[Any], sizes: list[int]) -> list[Any]:
        n = draw(st.sampled_from(sizes))
        return draw(st.lists(values, min_size=n, max_size=n, unique=True))

    names = some(st.sampled_from(rankers), [2, 3, 4])
    queries = some(draw(st.sampled_from(ids)), [1, 2, 3, 6])
    docs = some(draw(st.sampled_from(ids)), [3, 4, 5, 6, 8, 2, 1])
    # A ranker may have ranked everything and served nothing: its n_i is 0.
    serving = names[: draw(st.sampled_from([4, 4, 4, 3, 2, 1]))]
    # In replay only queries that recur tell anything.
    asked = queries[:2] if layout == "replay" and draw(st.booleans()) else queries
    as_bool = draw(st.booleans())
    # Shapes are hypothesis's to choose and shrink. Plain chance fills them, or most logs would be clickless.
    chance = random.Random(draw(st.integers(0, 2**32)))

    def ranking() -> list[Any]:
        return chance.sample(docs, chance.choice([len(docs), len(docs), chance.randint(1, len(docs))]))

    ranked = {(i, q): ranking() for i in names for q in queries}
    traffic = [chance.choice([1, 3, 10]) for _ in serving]
    rows: list[Row] = []
    for view in range(draw(st.sampled_from([8, 12, 25, 40, 4, 2, 1]))):
        ranker, query = chance.choices(serving, traffic)[0], chance.choice(asked)
        shown = ranked[ranker, query]
        if not functional and chance.random() < 0.5:
            shown = chance.sample(shown, len(shown))
        segment = {} if segments is None else {"segment": draw(segments)}
        for k, doc in enumerate(shown, start=1):
            click = chance.random() < 0.5
            row = {"query": query, "doc": doc, "ranker": ranker, "position": k}
            row |= {"clicked": click if as_bool else int(click), "view": view} | segment
            if layout == "wide":
                row["ranks"] = {i: rank_of(doc, ranked[i, query]) for i in names}
            rows.append(row)
    chance.shuffle(rows)

    if layout != "long":
        return Log(layout, rows, tuple(names))
    rankings = [
        {"query": q, "ranker": i, "doc": doc, "rank": k}
        for (i, q), listed in ranked.items()
        for k, doc in enumerate(listed, start=1)
    ]
    if not complete:
        kept = [r for r in rankings if chance.random() < 0.5]
        # Something is known of every ranker: one that the rankings never mention is another matter.
        kept += [r for r in rankings if r["ranker"] not in {k["ranker"] for k in kept} and r["rank"] == 1]
        rankings = kept
    return Log(layout, rows, tuple(names), rankings)


def rank_of(doc: Any, listed: list[Any]) -> int | None:
    return listed.index(doc) + 1 if doc in listed else None


@st.composite
def hostile_names(draw: st.DrawFn) -> Names:
    """Draw ten column names and a rank template that need quoting."""
    columns = draw(st.permutations(HOSTILE_COLUMNS))[:10]
    query, doc, ranker, position, click, view, impressions, clicks, rank, segment = columns
    template = draw(st.sampled_from(HOSTILE_TEMPLATES))
    return Names(query, doc, ranker, position, click, view, impressions, clicks, template, rank, {"segment": segment})


def aggregate(log: Log) -> Log:
    """Return the aggregated log: equal rows have `impressions` and `clicks` instead of `clicked`."""
    counts: dict[str, Row] = {}
    for row in log.rows:
        same = {name: value for name, value in row.items() if name not in ("clicked", "view")}
        total = counts.setdefault(repr(same), same | {"impressions": 0, "clicks": 0})
        total["impressions"] += 1
        total["clicks"] += int(row["clicked"])
    return replace(log, rows=list(counts.values()))


# ---- From rows to what users hold


def records(log: Log, names: Names | None = None) -> list[Row]:
    """The log's rows by the user's column names, flat: a wide log's ranks are columns."""
    names = names or Names()
    flat = []
    for row in log.rows:
        record = {
            getattr(names, name): row[name]
            for name in ("query", "doc", "ranker", "position", "impressions", "clicks")
            if name in row
        }
        if names.view and "view" in row:
            record[names.view] = row["view"]
        if "clicked" in row:
            record[names.click] = row["clicked"]
        record |= {column: row[key] for key, column in names.segments.items() if key in row}
        for ranker, rank in row.get("ranks", {}).items():
            record[names.ranks.replace("{ranker}", ranker)] = rank
        flat.append(record)
    return flat


def ranking_records(log: Log, names: Names | None = None) -> list[Row]:
    names = names or Names()
    return [
        {names.query: r["query"], names.ranker: r["ranker"], names.doc: r["doc"], names.rank: r["rank"]}
        for r in log.rankings or []
    ]


def to_pandas(rows: list[Row], _: Path | None = None) -> pandas.DataFrame:
    return pandas.DataFrame(rows)


def to_polars(rows: list[Row], _: Path | None = None) -> polars.DataFrame:
    return polars.DataFrame(rows, infer_schema_length=None)


def to_lazy(rows: list[Row], _: Path | None = None) -> polars.LazyFrame:
    return to_polars(rows).lazy()


def to_arrow(rows: list[Row], _: Path | None = None) -> pyarrow.Table:
    return pyarrow.Table.from_pylist(rows)


def to_parquet(rows: list[Row], stem: Path) -> Path:
    path = stem.with_suffix(".parquet")
    pyarrow.parquet.write_table(to_arrow(rows), path)
    return path


def to_parquet_parts(rows: list[Row], stem: Path) -> list[Path]:
    """Write two files; one of them may have no rank of some ranker."""
    half = (len(rows) + 1) // 2
    parts = [part for part in (rows[:half], rows[half:]) if part]
    return [to_parquet(part, stem.with_name(f"{stem.name}_{i}")) for i, part in enumerate(parts)]


def to_csv(rows: list[Row], stem: Path) -> Path:
    path = stem.with_suffix(".csv")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), quoting=csv.QUOTE_MINIMAL)
        writer.writeheader()
        writer.writerows(rows)
    return path


def to_jsonl(rows: list[Row], stem: Path) -> Path:
    path = stem.with_suffix(".jsonl")
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


CONVERTERS: dict[str, Callable[..., Any]] = {
    "pandas": to_pandas,
    "polars": to_polars,
    "lazy": to_lazy,
    "arrow": to_arrow,
    "parquet": to_parquet,
    "parquet parts": to_parquet_parts,
    "csv": to_csv,
    "jsonl": to_jsonl,
}
