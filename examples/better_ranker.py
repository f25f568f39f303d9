"""From raw events to a better ranker: `python examples/better_ranker.py FOLDER`.

In the folder: impressions.parquet (impression_id, query_id, ranker, doc_ids in the order shown), clicks.parquet
(impression_id, doc_id) and candidates.parquet (query_id, doc_id, and the features, whose names begin with "f").
"""

import json
import sys
from pathlib import Path

import lightgbm
import polars

import posbias
from posbias.objectives import cautious_factors, learner_form

PARAMETERS = {"learning_rate": 0.1, "num_leaves": 15, "lambda_l2": 1.0, "num_threads": 1, "verbosity": -1}
TREES = 150


def main(folder: Path) -> None:
    """Join the events, estimate the curve, weigh the clicks, learn by three rules, add them, and evaluate the sum."""
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
    table = polars.from_arrow(made.table).sort("query_id", "doc_id")
    x = table.select(features).to_numpy()
    print(made)

    # Three rankers, and how much each of them counts.
    models, scores = {}, {}
    for rule in ("lightgbm-naive", "lightgbm-softmax", "lightgbm-poisson"):
        form = learner_form(rule, table)
        data = lightgbm.Dataset(x[form.rows], **form.data)
        models[rule] = lightgbm.train(form.with_parameters(**PARAMETERS), data, num_boost_round=TREES)
        models[rule].save_model(folder / f"{rule}.txt")
        scores[rule] = models[rule].predict(x, raw_score=True)
    factors = dict(
        zip(scores, cautious_factors(*scores.values(), table["query_id"], made.effective_clicks), strict=True)
    )
    (folder / "blend.json").write_text(json.dumps([factors]))
    print("Ranker:", " + ".join(f"{factor:.2f} · {rule}" for rule, factor in factors.items()))

    # Is it better than what was shown? Only clicks that it did not learn from can tell.
    everything = polars.read_parquet(candidates)
    score = sum(factors[rule] * models[rule].predict(everything.select(features), raw_score=True) for rule in factors)
    ranking = everything.select("query_id", "doc_id").with_columns(score=polars.Series(score))
    test = posbias.ClickLog(folder / "log.parquet", part="test")
    print(posbias.evaluate(test, {"new": ranking}).verdicts[0])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
