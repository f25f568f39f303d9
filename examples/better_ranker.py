"""From raw events to a better ranker: `python examples/better_ranker.py FOLDER`.

In the folder: impressions.parquet (impression_id, query_id, ranker, doc_ids in the order shown), clicks.parquet
(impression_id, doc_id) and candidates.parquet (query_id, doc_id, and the features, whose names begin with "f").
"""

import sys
from pathlib import Path

import polars

import posbias


def main(folder: Path) -> None:
    """Join the events, estimate the curve, weigh the clicks, fit one ranker to them, and evaluate it."""
    # The log: what was shown, and which of it was clicked.
    events = posbias.ClickLog.from_events(folder / "impressions.parquet", folder / "clicks.parquet")
    written = posbias.write_events(events, folder / "log.parquet", overwrite=True)
    print(f"{written.rows:,} results shown, {written.clicks:,} clicks")
    log = posbias.ClickLog(folder / "log.parquet")

    # The curve: how often each rank is seen.
    curve = posbias.CrossFit().fit(posbias.harvest(log))
    print(curve.summary().to_text())

    # What to learn from: every candidate with its clicks, its exposure and its IPS weight.
    candidates = folder / "candidates.parquet"
    features = [name for name in polars.read_parquet_schema(candidates) if name.startswith("f")]
    train = posbias.ClickLog(folder / "log.parquet", part="train")
    made = posbias.ips_weights(train, curve, candidates=candidates, keep=features)
    print(made)

    # One model to serve.
    ranker = posbias.fit_ranker(made, features, parameters={"num_threads": 1}, explain=True)
    ranker.save(folder / "ranker.txt")
    print(ranker)

    # Is it better than what was shown? Only clicks that it did not learn from can tell.
    everything = polars.read_parquet(candidates)
    ranking = everything.select("query_id", "doc_id", polars.Series("score", ranker.predict(everything)))
    test = posbias.ClickLog(folder / "log.parquet", part="test")
    print(posbias.evaluate(test, {"new": ranking}).verdicts[0])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
