"""From a ClickLog to a Harvest: which query to run, and what to do with rows that cannot be counted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from posbias.arguments import whole
from posbias.engines import EngineChoice, open_log
from posbias.harvesting.counts import MAX_STRATA, Settings, kind_of
from posbias.harvesting.exposures import count_exposures
from posbias.harvesting.refusals import (
    refuse_errors,
    refuse_pages_without_id,
    refuse_segments,
    refuse_settings,
    refuse_window,
)
from posbias.harvesting.repeats import find_repeats
from posbias.harvesting.samples import small_sample
from posbias.harvesting.shortages import find_no_clicks
from posbias.harvesting.signatures import count_signatures
from posbias.logs.click_log import ClickLog
from posbias.logs.weightings import Weighting
from posbias.progress import Progress, silent
from posbias.version import __version__

# NumPy is imported only when the engine has answered: it takes as long as harvesting a million rows, and the command
# imports it meanwhile.
if TYPE_CHECKING:
    from posbias.harvesting.harvests import Harvest


def harvest(
    log: ClickLog,
    *,
    max_rank: int = 10,
    by: Sequence[str] = (),
    weighting: Weighting | None = None,
    non_functional: Literal["share", "refuse"] = "share",
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    max_strata: int = MAX_STRATA,
    force: bool = False,
) -> Harvest:
    """Harvest the interventions of a log: one aggregation, after which the log is no longer needed.

    Arguments:
        log: the click log.
        max_rank: M; results shown or ranked beyond it are not counted.
        by: segment columns; each segment gets its own counts in the same pass. In replay a document is compared with
            itself only within a segment, for the curve of all as well.
        weighting: how much each (query, document) pair counts. "traffic" is the paper's and the default where ranks
            are known (wide, long); "harmonic" is the default in replay; "uniform" counts each pair once. The last
            two compare a pair only with itself, where it was shown at both ranks.
        non_functional: in replay, a ranker that showed a document at several ranks for one query counts at each by
            its "share" of impressions, or is "refuse"d with an error.
        engine: "duckdb" (embedded, the default) or "spark"; or a value with settings of its own, such as
            `posbias.DuckDB(memory_limit="2GB")` or `posbias.Spark(master="yarn")`.
        progress: called with what is being done and the share done.
        max_strata: beyond this many rows, sums over interventional sets are kept in place of strata.
        force: go on where the log was found to be damaged (a page view logged twice, nothing but clicks); what was
            found is kept with the harvest. Rows that cannot be counted are refused all the same.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200)))
        >>> posbias.harvest(log)
        <Harvest of 2,000 page views (a: 1,008, b: 992), wide, ranks 1 to 10>

    Reference: Agarwal et al., WSDM 2019, section 3.
    """
    refuse_settings(max_rank, weighting, non_functional)
    whole("max_strata", max_strata, 0)
    with open_log(log, engine, progress) as opened:
        refuse_segments(opened, by)
        layout = opened.schema.layout
        chosen = weighting or layout.weighting
        refuse_window(opened, kind_of(layout, chosen))
        settings = Settings(max_rank, tuple(by), chosen, non_functional, max_strata)
        if opened.schema.drop_duplicates:
            refuse_pages_without_id(opened, settings.plan(opened, ()))
        counted = _COUNTERS[kind_of(layout, chosen)](opened, settings)
        from posbias.harvesting.harvests import Harvest
        from posbias.harvesting.strata import count_positions

        plan = settings.plan(opened, counted.rankers)
        repeats = find_repeats(opened, plan, small_sample(opened, counted.rows.rows))
        findings = [*opened.findings, *counted.findings, *find_no_clicks(count_positions(counted.table)), *repeats]
        refuse_errors(findings, force=force)
        return Harvest(
            max_rank=max_rank,
            rankers=counted.rankers,
            layout=layout,
            weighting=chosen,
            by=tuple(by),
            segments=tuple(counted.segments),
            kind=counted.kind,
            table=counted.table,
            about={
                "posbias": __version__,
                "engine": opened.dialect.name,
                "made": datetime.now(UTC).isoformat(timespec="seconds"),
                "source": repr(log),
                **counted.rows.to_dict(),
            },
            findings=tuple(findings),
        )


# What is counted -> how. A new kind is a file of SQL, a file of counting and a line here.
_COUNTERS = {"signatures": count_signatures, "exposures": count_exposures}
