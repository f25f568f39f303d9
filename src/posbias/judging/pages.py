"""Pages: how many clicks a page view has, which tells users who stop at one, and clicks that no user made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posbias.arrays import FloatArray
from posbias.engines import OpenLog
from posbias.findings import Finding
from posbias.harvesting.harvests import Harvest
from posbias.judging.questions import GRAVE, Question, told
from posbias.judging.trials import UNTOLD, Trial, wald
from posbias.sql.page_clicks import FEW_RESULTS, page_clicks
from posbias.sql.shown import Plan

# More pages than this share with everything clicked were not made by people; so many are few.
_MOST_ALL, _FEW_PAGES = 0.005, 20
# So many pages with two clicks would be there by chance: none of them says that there cannot be any.
_EXPECTED = 30.0


@dataclass(frozen=True, eq=False)
class PageClicks:
    """Page views and their clicks.

    Attributes:
        views, clicked, several: page views, those with a click, and with two or more.
        full, all_clicked, nearly: those with five results or more, and those of them on which everything was clicked,
            or all but one.
        together: twice the pairs of clicks of one view, by bucket, where the same page was seen again.
        apart: what they would be if each click came by itself, by bucket.
        wholly, by_chance: likewise the views on which everything was clicked, and what they would be.
    """

    views: int
    clicked: int
    several: int
    full: int
    all_clicked: int
    nearly: int
    together: FloatArray
    apart: FloatArray
    wholly: FloatArray
    by_chance: FloatArray


def count_page_clicks(opened: OpenLog, rankers: tuple[str, ...], max_rank: int) -> PageClicks | None:
    """Count the clicks of page views; None where the log does not tell them apart."""
    schema = opened.schema
    if schema.impression is None or schema.aggregated or not rankers:
        return None
    plan = Plan(schema, opened.dialect, rankers, max_rank)
    answer = np.array(opened.rows(page_clicks(plan), "Counting clicks of page views"), dtype=np.float64)
    if not len(answer):
        return None
    views, clicked, several, full, all_clicked, nearly = (int(n) for n in answer[:, 1:7].sum(axis=0))
    return PageClicks(views, clicked, several, full, all_clicked, nearly, *answer[:, 7:].T)


def question_pages(pages: PageClicks) -> Question:
    """Return whether page views have two clicks less often than if each came by itself."""
    trial = wald([pages.together - pages.apart]) if pages.apart.any() else UNTOLD
    if trial.told:
        fewer = pages.together.sum() < pages.apart.sum()
        trial = Trial(trial.statistic, 1, trial.degrees, trial.p / 2 if fewer else 1 - trial.p / 2)
    share = pages.together.sum() / pages.apart.sum() if pages.apart.any() else float("nan")
    evidence = {
        "page_views": pages.views,
        "clicked": pages.clicked,
        "several": pages.several,
        "together": float(pages.together.sum()),
        "expected": round(float(pages.apart.sum()), 1),
    }
    alarm = Finding(
        "one-click-pages",
        "warning",
        "{several} of {page_views} page views have two clicks or more, "
        + f"{share:.0%} of the pairs of clicks that there would be if each came by itself ({told(trial.p)}): users "
        "stop at a click, or the page goes away",
        pages.several,
        evidence=evidence,
        remedy="What is clicked keeps other results from being clicked, so that a rank is seen less under a good "
        "result. The curve is an average over what stood above; take it as that of these rankers only.",
    )
    calm = Finding(
        "page-clicks",
        "info",
        "{several} of {page_views} page views have two clicks or more"
        + (f", {share:.2f} times what independent clicks make" if np.isfinite(share) else ""),
        pages.several,
        evidence=evidence,
    )
    return Question(trial, alarm, calm)


def find_odd_pages(pages: PageClicks, harvest: Harvest, trial: Trial) -> list[Finding]:
    """Return pages on which everything was clicked, that each has a click, and that none has two if none could tell."""
    found = []
    shown, clicks = harvest.shown("rank")
    rates = clicks / np.maximum(shown, 1)
    idle = pages.views * float(np.prod(1 - rates))
    if pages.clicked == pages.views and idle > _EXPECTED:
        found.append(
            Finding(
                "only-clicked-pages",
                "warning",
                f"Each of {{page_views}} page views has a click, where about {idle:,.0f} would have none if each click "
                "came by itself: page views without a click were left out, or users always click",
                pages.views,
                evidence={"page_views": pages.views, "expected": round(idle, 1)},
                remedy="Log page views whether or not anything was clicked. A result on a page kept for its click is "
                "clicked more often where nothing else was, which bends the curve and looks as if users stop at a "
                "click.",
            )
        )
    if _crawled(pages):
        found.append(
            Finding(
                "all-clicked-pages",
                "warning",
                f"Everything was clicked on {{count}} of {{full}} page views with {FEW_RESULTS} results or more",
                pages.all_clicked,
                evidence={"full": pages.full, "expected": round(float(pages.by_chance.sum()), 1)},
                remedy="Crawlers and tests click like this. They flatten the curve: leave them out of the log.",
            )
        )
    expected = pages.views * (rates.sum() ** 2 - (rates**2).sum()) / 2
    if not trial.told and not pages.several and expected > _EXPECTED:
        found.append(
            Finding(
                "one-click-pages",
                "warning",
                f"None of {{page_views}} page views has two clicks, where about {expected:,.0f} pairs of clicks would "
                "be expected: the page goes away when it is clicked, users stop there, or each query has one relevant "
                "result",
                0,
                evidence={"page_views": pages.views, "expected": round(float(expected), 1)},
                remedy="If a click keeps others from happening, the curve is an average over what stood above.",
            )
        )
    return found


def _crawled(pages: PageClicks) -> bool:
    """Return whether everything was clicked more often than by people, who click one thing and leave another.

    Of people more pages have all but one result clicked, unless they click nearly all that they are shown; and how
    often they do is told by pages that were seen again.
    """
    if pages.all_clicked < _FEW_PAGES or pages.all_clicked <= _MOST_ALL * pages.full:
        return False
    if pages.all_clicked > 2 * pages.nearly:
        return True
    more = float(pages.wholly.sum() - pages.by_chance.sum())
    return wald([pages.wholly - pages.by_chance]).p < GRAVE and more > max(_FEW_PAGES, _MOST_ALL * pages.full)
