"""Runs inside the peer's own environment: one estimator of ultr-bias-toolkit on one log, the curve as JSON.

    .venv-peer/bin/python benchmarks/peer_worker.py all_pairs log.parquet

`benchmarks/peer.py` starts it and times it from outside, imports included.
"""

import json
import sys
import time

import pandas as pd
from ultr_bias_toolkit.bias.intervention_harvesting import (
    AdjacentChainEstimator,
    AllPairsEstimator,
    PivotEstimator,
)

# As the peer's README calls them: every parameter at its default.
ESTIMATORS = {
    "all_pairs": AllPairsEstimator,
    "adjacent_chain": AdjacentChainEstimator,
    "pivot_one": PivotEstimator,
}


def read(path):
    # Only what the peer asks for. It finds interventions by (query, document), so it needs no ranker.
    log = pd.read_parquet(path, columns=["query_id", "doc_id", "position", "clicked"])
    log = log.rename(columns={"clicked": "click"})
    # Positions become indices of a torch embedding, which takes no unsigned or small integers.
    return log.astype({"position": "int64", "click": "int64"})


def main(name, path):
    log = read(path)
    start = time.perf_counter()
    curve = ESTIMATORS[name]()(log)
    seconds = time.perf_counter() - start
    positions = [
        {"position": int(k), "propensity": float(p)}
        for k, p in zip(curve["position"], curve["examination"], strict=True)
    ]
    json.dump({"positions": positions, "estimate_seconds": seconds}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
