"""Every query of posbias as portable SQL: named steps that read top-down. Nothing here opens a log or runs a query.

Start with `plan` (steps, and what a query asks of a log) and `dialects` (what differs between engines). Each of the
other modules holds the queries of one job:

    signatures      the harvest where the ranks of all rankers are known (wide, long)
    exposures       the harvest where they are learned from the log (replay)
    exports         the harvest as one query to print and run in a warehouse
    observations    clicks by position, pair or feature, for estimators that are not fitted on a harvest
    weights         clicks weighted by propensity, for learning to rank
    evaluation      what rankings are worth, by the clicks of a log
    events          impressions and clicks joined to a log
    trackers        events of GA4, Snowplow and UBI
"""
