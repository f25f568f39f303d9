"""From raw events to a better ranker: `python examples/better_ranker.py FOLDER`.

In the folder: impressions.parquet (impression_id, query_id, ranker, doc_ids in the order shown), clicks.parquet
(impression_id, doc_id) and candidates.parquet (query_id, doc_id, and the features, whose names begin with "f").
"""

import sys
from pathlib import Path

import lightgbm
import numpy as np
import polars

import posbias
from posbias.objectives import choose_rule, learner_form

PARAMETERS = {"learning_rate": 0.1, "num_leaves": 15, "lambda_l2": 1.0, "num_threads": 1, "verbosity": -1}


def main(folder: Path) -> None:
    """Join the events, estimate the curve, weigh the clicks, choose a rule, and learn a ranker by it."""
    # 1. The log: what was shown, and which of it was clicked.
    events = posbias.ClickLog.from_events(folder / "impressions.parquet", folder / "clicks.parquet")
    print(posbias.write_events(events, folder / "log.parquet", overwrite=True).rows, "results shown")
    log = posbias.ClickLog(folder / "log.parquet")

    # 2. The curve: how often each rank is seen.
    curve = posbias.CrossFit().fit(posbias.harvest(log)).curve()
    print(curve.to_text())

    # 3. What to learn from: every candidate with its clicks, its exposure and its IPS weight.
    features = [name for name in polars.read_parquet_schema(folder / "candidates.parquet") if name.startswith("f")]
    made = posbias.ips_weights(log, curve, candidates=folder / "candidates.parquet", keep=features)
    print(made)
    table = polars.from_arrow(made.table).sort("query_id", "doc_id")
    x = table.select(features).to_numpy()

    # 4. Two rules, and which of them ranks queries better that it did not learn from.
    def learn(rule: str, rows: np.ndarray) -> lightgbm.Booster:
        form = learner_form(rule, table[rows])
        data = lightgbm.Dataset(x[rows][form.rows], **form.data)
        return lightgbm.train(form.with_parameters(**PARAMETERS), data, num_boost_round=150)

    rules = {
        rule: lambda rows, scored, rule=rule: learn(rule, rows).predict(x[scored], raw_score=True)
        for rule in ("lightgbm-poisson", "lightgbm-softmax")
    }
    choice = choose_rule(rules, table["query_id"], table["weight"], table["impressions"])
    print("Learned by", choice)

    # 5. The ranker, learned from all queries.
    learn(choice.name, np.arange(len(table))).save_model(folder / "ranker.txt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
