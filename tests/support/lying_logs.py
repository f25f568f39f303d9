"""Click logs that are well formed and yield a wrong curve: a healthy log, spoilt in the ways in which logging fails.

`LIES` lists them. Each takes the frame of a healthy log and a random generator, and returns the frame of the spoilt
one. The healthy logs come from the simulator of the audit, which shares no code with posbias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pandas as pd

from experiments.audit import Setting, draw_log

Frame = pd.DataFrame
Spoil = Callable[[Frame, np.random.Generator], Frame]


@dataclass(frozen=True)
class Lie:
    """A log that lies.

    Attributes:
        name: what happened, in words.
        spoil: what it does to a healthy log.
        found: the code of the finding that tells; "" if none does.
        severity: the severity of that finding.
        replay: whether the log lacks the ranks of rankers that were not shown.
        names: arguments of `ClickLog`.
        told_by: the command that tells.
    """

    name: str
    spoil: Spoil
    found: str
    severity: str = "warning"
    replay: bool = False
    names: dict[str, str] = field(default_factory=dict)
    told_by: str = "estimate"


def healthy(replay: bool, views: int, seed: int = 1) -> Frame:
    """Return a healthy log of 300 queries, of which p_k = 1 / k is the true curve. The caller may change it."""
    return _draw_healthy(replay, views, seed).copy()


@cache
def _draw_healthy(replay: bool, views: int, seed: int) -> Frame:
    setting = Setting(views=views, queries=300, replay=replay)
    frame: Frame = draw_log(setting, seed).to_pandas()
    frame["hour"] = frame.impression_id // 40
    frame["device"] = np.where(frame.impression_id % 3 == 0, "phone", "desktop")
    return frame


# ---- Rows that are kept because of clicks


def _page_last_click(log: Frame) -> pd.Series:
    return (log.position * log.clicked).groupby(log.impression_id).transform("max")


def _some_pages(log: Frame, rng: np.random.Generator, share: float) -> pd.Series:
    """Return which rows are on a share of the page views, drawn at random."""
    drawn = rng.random(int(log.impression_id.max()) + 1) < share
    return pd.Series(drawn[log.impression_id], index=log.index)


def cut_below_click(rows: int, *, drop: bool = False) -> Spoil:
    def spoil(log: Frame, rng: np.random.Generator) -> Frame:
        last = _page_last_click(log)
        return log[((last == 0) & (not drop)) | ((last > 0) & (log.position <= last + rows))]

    return spoil


def cut_on_phones(log: Frame, rng: np.random.Generator) -> Frame:
    return log[(log.device == "desktop") | log.index.isin(cut_below_click(0)(log, rng).index)]


def cut_on_phones_unnamed(log: Frame, rng: np.random.Generator) -> Frame:
    return cut_on_phones(log, rng).drop(columns="device")


def cut_on_phones_beside_short_lists(log: Frame, rng: np.random.Generator) -> Frame:
    """Cut the pages of one application, where many lists are short by themselves."""
    results = rng.integers(2, 11, int(log.query_id.max()) + 1)[log.query_id]
    return cut_on_phones(log[log.position <= results], rng)


def sample_unclicked(share: float) -> Spoil:
    return lambda log, rng: log[(log.clicked == 1) | (rng.random(len(log)) < share)]


def sample_for_each_click(rows: int) -> Spoil:
    """Keep clicked results, and so many others of the page for each."""

    def spoil(log: Frame, rng: np.random.Generator) -> Frame:
        log = log.assign(u=rng.random(len(log)))
        clicks = log.groupby("impression_id").clicked.transform("sum")
        order = log[log.clicked == 0].groupby("impression_id").u.rank()
        kept = (log.clicked == 1) | (order.reindex(log.index) <= rows * clicks)
        return log[kept].drop(columns="u")

    return spoil


def drop_pages_without_click(share: float) -> Spoil:
    def spoil(log: Frame, rng: np.random.Generator) -> Frame:
        return log[(_page_last_click(log) > 0) | ~_some_pages(log, rng, share)]

    return spoil


def drop_pages_of_b(log: Frame, rng: np.random.Generator) -> Frame:
    return log[(_page_last_click(log) > 0) | (log.ranker == "a")]


def drop_top_if_unclicked(log: Frame, rng: np.random.Generator) -> Frame:
    return log[(log.position > 1) | (log.clicked == 1)]


def once_a_day(log: Frame, rng: np.random.Generator) -> Frame:
    """Log each document of a query once a day, with the clicks of the whole day."""
    keys = ["query_id", "doc_id", "day"]
    clicked = log.groupby(keys).clicked.transform("max")
    return log.assign(clicked=clicked).drop_duplicates(keys)


def once_in_all(log: Frame, rng: np.random.Generator) -> Frame:
    return log.drop_duplicates(["query_id", "doc_id", "ranker"])


def hide_at_random(log: Frame, rng: np.random.Generator) -> Frame:
    """Hide results by a filter: users do not see them, and what follows moves up, which the log does not know."""
    hidden = pd.Series(rng.random(len(log)) < 0.3, index=log.index)
    shown_at = (~hidden).groupby(log.impression_id).cumsum().clip(lower=1)
    return _clicked_at(log, shown_at, rng)[~hidden]


def _clicked_at(log: Frame, shown_at: pd.Series, rng: np.random.Generator) -> Frame:
    """Draw the clicks of results that were shown elsewhere than at their position, by the click rate of the pair."""
    pair = log.assign(seen=1 / log.position).groupby(["query_id", "doc_id"])[["clicked", "seen"]].transform("sum")
    chance = (pair.clicked / pair.seen).clip(upper=1) / shown_at
    drawn = (rng.random(len(log)) < chance).astype(int)
    return log.assign(clicked=np.where(shown_at == log.position, log.clicked, drawn))


# ---- Clicks that are joined to the wrong rows


def join_by(*keys: str) -> Spoil:
    return lambda log, rng: log.assign(clicked=log.groupby(["query_id", "doc_id", *keys]).clicked.transform("max"))


def join_by_hidden_hour(log: Frame, rng: np.random.Generator) -> Frame:
    return join_by("hour")(log, rng).drop(columns="hour")


def join_by_hour_of_time(log: Frame, rng: np.random.Generator) -> Frame:
    moment = pd.Timestamp("2026-03-01") + pd.to_timedelta(log.impression_id * 90, unit="s")
    return join_by("hour")(log, rng).drop(columns=["hour", "day"]).assign(timestamp=moment)


def previous_page_view(log: Frame, rng: np.random.Generator) -> Frame:
    """Give each page view the clicks of the query's previous one."""
    views = log[["query_id", "impression_id"]].drop_duplicates().sort_values("impression_id")
    views["before"] = views.groupby("query_id").impression_id.shift(1)
    clicked = log.loc[log.clicked == 1, ["impression_id", "doc_id"]].rename(columns={"impression_id": "before"})
    joined = log.drop(columns="clicked").merge(views[["impression_id", "before"]], on="impression_id")
    joined = joined.merge(clicked.assign(clicked=1), on=["before", "doc_id"], how="left")
    return joined.assign(clicked=joined.clicked.fillna(0).astype(int)).drop(columns="before")


def next_position(log: Frame, rng: np.random.Generator) -> Frame:
    """Give each click to the result below."""
    return log.assign(clicked=log.groupby("impression_id").clicked.shift(1).fillna(0).astype(int))


def next_position_on_phones(log: Frame, rng: np.random.Generator) -> Frame:
    moved = next_position(log, rng)
    return log.assign(clicked=np.where(log.device == "phone", moved.clicked, log.clicked))


def at_random_page_view(log: Frame, rng: np.random.Generator) -> Frame:
    """Give the clicks on a document to page views of its query at random."""
    pairs = ["query_id", "doc_id"]
    target = log.assign(u=rng.random(len(log))).sort_values([*pairs, "u"])
    clicks = log.assign(u=rng.random(len(log))).sort_values([*pairs, "u"]).clicked.to_numpy()
    return target.assign(clicked=clicks).drop(columns="u").sort_index()


# ---- Clicks that are dropped


def first_click(log: Frame, rng: np.random.Generator) -> Frame:
    first = log.position.where(log.clicked == 1, 99).groupby(log.impression_id).transform("min")
    return log.assign(clicked=((log.clicked == 1) & (log.position == first)).astype(int))


def last_click(log: Frame, rng: np.random.Generator) -> Frame:
    return log.assign(clicked=((log.clicked == 1) & (log.position == _page_last_click(log))).astype(int))


def fill_above_click(log: Frame, rng: np.random.Generator) -> Frame:
    return log.assign(clicked=(log.position <= _page_last_click(log)).astype(int))


def window_of_attribution(log: Frame, rng: np.random.Generator) -> Frame:
    """Lose most clicks after the first, because they come too late."""
    kept = (first_click(log, rng).clicked == 1) | (rng.random(len(log)) < 0.2)
    return log.assign(clicked=log.clicked * kept)


def lose_clicks(share: float) -> Spoil:
    return lambda log, rng: log.assign(clicked=log.clicked * (rng.random(len(log)) >= share))


def lose_clicks_by_page(share: float) -> Spoil:
    def spoil(log: Frame, rng: np.random.Generator) -> Frame:
        return log.assign(clicked=log.clicked * ~_some_pages(log, rng, share))

    return spoil


def no_clicks_at(position: int) -> Spoil:
    return lambda log, rng: log.assign(clicked=np.where(log.position == position, 0, log.clicked))


# ---- Clicks that nobody made


def crawlers(share: float) -> Spoil:
    def spoil(log: Frame, rng: np.random.Generator) -> Frame:
        bots = _some_pages(log, rng, share)
        return log.assign(clicked=np.where(bots, 1, log.clicked))

    return spoil


def bots_without_clicks(log: Frame, rng: np.random.Generator) -> Frame:
    bots = _some_pages(log, rng, 0.3)
    return log.assign(clicked=np.where(bots, 0, log.clicked))


def monitor_clicks_top(log: Frame, rng: np.random.Generator) -> Frame:
    bots = _some_pages(log, rng, 0.1)
    return log.assign(clicked=np.where(bots, log.position == 1, log.clicked).astype(int))


def autoplay(log: Frame, rng: np.random.Generator) -> Frame:
    return log.assign(clicked=np.where(log.position == 1, 1, log.clicked))


# ---- Positions and ranks


def _shift(log: Frame, rows: pd.Series, by: int = 1) -> Frame:
    columns = [name for name in log if name == "position" or name.startswith("rank_")]
    return log.assign(**{name: log[name] + by * rows.astype(int) for name in columns})


def phones_from_2(log: Frame, rng: np.random.Generator) -> Frame:
    return _shift(log, log.device == "phone")


def phones_from_2_unnamed(log: Frame, rng: np.random.Generator) -> Frame:
    return _shift(log, log.device == "phone").drop(columns="device")


def b_from_2(log: Frame, rng: np.random.Generator) -> Frame:
    return log.assign(position=log.position + (log.ranker == "b"))


def all_from(first: int) -> Spoil:
    return lambda log, rng: _shift(log, log.position > 0, first - 1)


def rows_of_three(log: Frame, rng: np.random.Generator) -> Frame:
    return log.assign(position=(log.position - 1) // 3 + 1)


def capped_at_5(log: Frame, rng: np.random.Generator) -> Frame:
    return log.assign(position=log.position.clip(upper=5))


def scroll_starts_again(log: Frame, rng: np.random.Generator) -> Frame:
    return log.assign(position=(log.position - 1) % 5 + 1)


def scroll_with_new_ids(log: Frame, rng: np.random.Generator) -> Frame:
    later = log.position > 5
    return log.assign(position=(log.position - 1) % 5 + 1, impression_id=2 * log.impression_id + later)


def _reordered(log: Frame, rng: np.random.Generator, share: float) -> pd.Series:
    """Return positions in which ranks 1 and 3 of some page views are swapped."""
    moved = _some_pages(log, rng, share)
    return log.position.where(~moved, log.position.replace({1: 3, 3: 1}))


def reranked_after_logging(log: Frame, rng: np.random.Generator) -> Frame:
    """Log positions before a last step that swaps ranks 1 and 3 on half of the page views."""
    return _clicked_at(log, _reordered(log, rng, 0.5), rng)


def ranks_before_business_rules(log: Frame, rng: np.random.Generator) -> Frame:
    return log.assign(position=_reordered(log, rng, 0.6))


def sponsored_on_top(log: Frame, rng: np.random.Generator) -> Frame:
    """Count an advertisement on a third of the page views as position 1, without a row of its own."""
    shown = _some_pages(log, rng, 0.3)
    return log.assign(position=log.position + shown)


# ---- Ids, rankers and page views


def rounded_ids(log: Frame, rng: np.random.Generator) -> Frame:
    """Round documents to 32-bit floats: five neighbouring ids become one."""
    return log.assign(doc_id=((log.doc_id + 80_000_000).astype(np.float32)).astype(np.int64))


def colliding_ids(log: Frame, rng: np.random.Generator) -> Frame:
    return log.assign(doc_id=log.doc_id * 2654435761 % 2**32 % 12)


def wrong_ranker(share: float) -> Spoil:
    def spoil(log: Frame, rng: np.random.Generator) -> Frame:
        wrong = _some_pages(log, rng, share)
        return log.assign(ranker=log.ranker.where(~wrong, log.ranker.map({"a": "b", "b": "a"})))

    return spoil


def ramp_up(log: Frame, rng: np.random.Generator) -> Frame:
    """Serve hard queries mostly by a, easy ones mostly by b, as when traffic moves while demand changes."""
    rate = log.groupby("query_id").clicked.transform("mean")
    easy = rate > rate.median()
    chance = np.where(easy == (log.ranker == "b"), 1.0, 0.1)
    return log[rng.random(int(log.impression_id.max()) + 1)[log.impression_id] < chance]


def retries(log: Frame, rng: np.random.Generator) -> Frame:
    again = _some_pages(log, rng, 0.1)
    return pd.concat([log, log[again]])


def retries_with_new_ids(log: Frame, rng: np.random.Generator) -> Frame:
    again = _some_pages(log, rng, 0.3)
    copies = log[again].assign(clicked=0, impression_id=lambda rows: rows.impression_id + 10**7)
    return pd.concat([log, copies])


def rows_for_each_click(log: Frame, rng: np.random.Generator) -> Frame:
    """Write a row for each of several clicks on a result, as a join with clicks does."""
    twice = (log.clicked == 1) & (rng.random(len(log)) < 0.2)
    return pd.concat([log, log[twice]])


def request_ids(log: Frame, rng: np.random.Generator) -> Frame:
    return log.assign(query_id=log.impression_id)


def merged_sessions(log: Frame, rng: np.random.Generator) -> Frame:
    """Give page views of the same query one id, as a session has."""
    return log.assign(impression_id=log.query_id * 50 + log.impression_id % 50)


def unseen_rows(log: Frame, rng: np.random.Generator) -> Frame:
    """Log only what users scrolled to, which does not depend on clicks; nothing below was clicked."""
    depth = rng.geometric(0.25, int(log.impression_id.max()) + 1)[log.impression_id]
    return log[log.position <= np.maximum(depth, _page_last_click(log))]


def midnight(log: Frame, rng: np.random.Generator) -> Frame:
    """Cut page views at midnight: those of the last hour lose their clicks."""
    return lose_clicks_by_page(1 / 24)(log, rng)


CUT, LENGTH, JOINED, ONE = (
    "pages-end-at-click",
    "page-length-follows-clicks",
    "clicks-without-page-view",
    "one-click-pages",
)
LIES = (
    Lie("rows only down to the last click of a page", cut_below_click(0), CUT, "error"),
    Lie("rows only down to the last click of a page", cut_below_click(0), CUT, "error", replay=True),
    Lie("rows down to the last click, pages without a click missing", cut_below_click(0, drop=True), CUT, "error"),
    Lie(
        "rows down to the last click, pages without a click missing",
        cut_below_click(0, drop=True),
        CUT,
        "error",
        replay=True,
    ),
    Lie("rows down to one below the last click", cut_below_click(1), CUT, "error"),
    Lie("rows down to one below the last click", cut_below_click(1), CUT, "error", replay=True),
    Lie("rows down to two below the last click", cut_below_click(2), CUT, "error"),
    Lie("rows down to two below the last click", cut_below_click(2), CUT, "error", replay=True),
    Lie("rows down to four below the last click", cut_below_click(4), CUT, "error"),
    Lie("rows down to four below the last click", cut_below_click(4), CUT, "error", replay=True),
    Lie("rows down to the last click in one of two applications", cut_on_phones, CUT, "error"),
    Lie(
        "rows down to the last click in one of two applications, short lists in both",
        cut_on_phones_beside_short_lists,
        CUT,
        "error",
        replay=True,
    ),
    Lie(
        "rows down to the last click in one of two applications, without a column for the application",
        cut_on_phones_unnamed,
        CUT,
        "error",
        replay=True,
    ),
    Lie("clicks joined by query and document", join_by(), JOINED, "error"),
    Lie("clicks joined by query and document", join_by(), JOINED, "error", replay=True),
    Lie("clicks joined by query, document and day", join_by("day"), JOINED, "error"),
    Lie("clicks joined by query, document and day", join_by("day"), JOINED, "error", replay=True),
    Lie("clicks joined by query, document and hour", join_by("hour"), JOINED, "error", replay=True),
    Lie("clicks joined by query, document and ranker", join_by("ranker"), JOINED, "error"),
    Lie("clicks joined by query, document and ranker", join_by("ranker"), JOINED, "error", replay=True),
    Lie("clicks joined by query, document, ranker and day", join_by("ranker", "day"), JOINED, "error", replay=True),
    Lie("clicks joined by query, document and hour of a time", join_by_hour_of_time, JOINED, "error", replay=True),
    Lie(
        "clicks joined by query, document and hour, without a column for the hour", join_by_hidden_hour, "", replay=True
    ),
    Lie("clicks of the query's previous page view", previous_page_view, "flat-curve"),
    Lie("clicks of the query's previous page view", previous_page_view, "flat-curve", replay=True),
    Lie("clicks given to any page view of the query", at_random_page_view, "flat-curve", replay=True),
    Lie("clicks given to the result below", next_position, "no-clicks-at-rank-1", "error", told_by="check"),
    Lie("clicks given to the result below, on phones only", next_position_on_phones, ONE, told_by="diagnose"),
    Lie("only the first click of a page kept", first_click, ONE),
    Lie("only the first click of a page kept", first_click, ONE, replay=True),
    Lie(
        "only the first click of a page kept, without ids of page views",
        first_click,
        ONE,
        replay=True,
        names={"impression": "none"},
    ),
    Lie("only the last click of a page kept", last_click, ONE),
    Lie("only the last click of a page kept", last_click, ONE, replay=True),
    Lie("all results above a click counted as clicked", fill_above_click, "clicks-on-all-above"),
    Lie("all results above a click counted as clicked", fill_above_click, "clicks-on-all-above", replay=True),
    Lie("later clicks lost by a window of attribution", window_of_attribution, ONE),
    Lie("later clicks lost by a window of attribution", window_of_attribution, ONE, replay=True),
    Lie("a third of the clicks lost by chance", lose_clicks(1 / 3), ""),
    Lie("sessions cut at midnight: clicks of an hour lost", midnight, ""),
    Lie("clicks of a third of the page views lost in another time zone", lose_clicks_by_page(1 / 3), ""),
    Lie("clicks on the first result not logged", no_clicks_at(1), "no-clicks-at-rank-1", "error", told_by="check"),
    Lie("the first result starts by itself, as a click", autoplay, "only-clicks-at-position"),
    Lie("unclicked rows sampled at 20%", sample_unclicked(0.2), "missing-rows"),
    Lie("unclicked rows sampled at 20%", sample_unclicked(0.2), "missing-rows", replay=True),
    Lie("one unclicked row for each click", sample_for_each_click(1), LENGTH, "error"),
    Lie("three unclicked rows for each click", sample_for_each_click(3), LENGTH, "error", replay=True),
    Lie("page views without a click missing", drop_pages_without_click(1.0), "only-clicked-pages"),
    Lie("80% of the page views without a click missing", drop_pages_without_click(0.8), ""),
    Lie("page views of one ranker without a click missing", drop_pages_of_b, "only-clicked-pages"),
    Lie("the first result logged only if clicked", drop_top_if_unclicked, "only-clicks-at-position"),
    Lie("impressions logged once a day", once_a_day, "missing-rows"),
    Lie("impressions logged once for each ranker", once_in_all, "", replay=True),
    Lie("results hidden by a filter after logging", hide_at_random, "missing-rows"),
    Lie("only results logged that users scrolled to", unseen_rows, ""),
    Lie("3% crawlers that click everything", crawlers(0.03), "crawlers"),
    Lie("3% crawlers that click everything", crawlers(0.03), "crawlers", replay=True),
    Lie("30% bots that never click", bots_without_clicks, ""),
    Lie("a monitor that clicks the first result, 10% of page views", monitor_clicks_top, ""),
    Lie("an application counts positions and ranks from 2", phones_from_2, "pages-begin-late", "error"),
    Lie("an application counts positions and ranks from 2", phones_from_2, "pages-begin-late", "error", replay=True),
    Lie(
        "an application counts positions and ranks from 2, without a column for the application",
        phones_from_2_unnamed,
        "pages-begin-late",
    ),
    Lie("a ranker counts positions from 2", b_from_2, "pages-begin-late", "error", replay=True),
    Lie("all positions and ranks count from 2", all_from(2), "no-first-position", "error", told_by="check"),
    Lie("all positions and ranks count from 0", all_from(0), "zero-based-position", "error", told_by="check"),
    Lie("an advertisement counted as position 1 on a third of the page views", sponsored_on_top, "contradicted-rank"),
    Lie(
        "an advertisement counted as position 1 on a third of the page views",
        sponsored_on_top,
        "pages-begin-late",
        replay=True,
    ),
    Lie("positions are rows of three results", rows_of_three, "contradicted-rank"),
    Lie("positions are rows of three results", rows_of_three, "several-results-at-position", replay=True),
    Lie("positions below 5 logged as 5", capped_at_5, "several-results-at-position", replay=True),
    Lie("endless feed, positions start again", scroll_starts_again, "several-results-at-position", replay=True),
    Lie(
        "endless feed, positions start again, with a new id for each page",
        scroll_with_new_ids,
        "positions-start-again",
        replay=True,
    ),
    Lie("pages re-ranked after logging", reranked_after_logging, ""),
    Lie("ranks logged before business rules", ranks_before_business_rules, "contradicted-rank"),
    Lie("document ids rounded to 32-bit floats", rounded_ids, "document-at-several-positions", replay=True),
    Lie("document ids that collide", colliding_ids, "document-at-several-positions", replay=True),
    Lie("30% of the page views name the wrong ranker", wrong_ranker(0.3), "contradicted-rank"),
    Lie("30% of the page views name the wrong ranker", wrong_ranker(0.3), "non-functional-ranker", replay=True),
    Lie("traffic moves to another ranker while demand changes", ramp_up, "ranker-effect", told_by="diagnose"),
    Lie("client retries", retries, "duplicates", "error"),
    Lie("client retries with new ids, which have no clicks", retries_with_new_ids, ""),
    Lie("a row for each click on a result", rows_for_each_click, "duplicates", "error"),
    Lie(
        "request ids in place of queries",
        request_ids,
        "query-is-request-id",
        "error",
        replay=True,
        told_by="check",
    ),
    Lie("ids of sessions in place of page views", merged_sessions, "duplicates", "error"),
)
