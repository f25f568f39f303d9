"""Run one estimator of another package on one log, in that package's environment, and print the curve as JSON.

    .venv-peer/bin/python experiments/peer_worker.py all_pairs log.parquet

`experiments/peers.py` starts it and measures it from outside, imports included. The log has the columns query_id,
doc_id, impression_id, position and clicked, and pages of equal length. Packages are imported where they are used.
"""

import contextlib
import json
import sys
import time


def main(name, path):
    """Print the curve that an estimator finds in a log."""
    import pandas as pd

    columns = ["query_id", "doc_id", "impression_id", "position", "clicked"]
    log = pd.read_parquet(path, columns=columns).sort_values(["impression_id", "position"], kind="stable")
    start = time.perf_counter()
    # Some packages print their progress.
    with contextlib.redirect_stdout(sys.stderr):
        curve = ESTIMATORS[name](log)
    seconds = time.perf_counter() - start
    positions = [{"position": k, "propensity": float(p)} for k, p in curve]
    json.dump({"positions": positions, "estimate_seconds": seconds}, sys.stdout)


def toolkit(name):
    """Return a function that runs an estimator of ultr-bias-toolkit as its README calls it, with its defaults."""

    def estimate(log):
        from ultr_bias_toolkit.bias import intervention_harvesting

        # Positions become indices of a torch embedding, which takes no unsigned or small integers.
        log = log.rename(columns={"clicked": "click"}).astype({"position": "int64", "click": "int64"})
        curve = getattr(intervention_harvesting, name)()(log[["query_id", "doc_id", "position", "click"]])
        return [(int(k), p) for k, p in zip(curve["position"], curve["examination"], strict=True)]

    return estimate


def pyclick(log):
    """The position-based model of PyClick: 50 steps of EM, its default."""
    from pyclick.click_models.PBM import PBM
    from pyclick.search_session.SearchResult import SearchResult
    from pyclick.search_session.SearchSession import SearchSession

    sessions = []
    ranks = int(log["position"].max())
    docs, clicks = (log[name].to_numpy().reshape(-1, ranks).tolist() for name in ("doc_id", "clicked"))
    for query, shown, clicked in zip(log["query_id"].to_numpy()[::ranks].tolist(), docs, clicks, strict=True):
        session = SearchSession(query)
        session.web_results = [SearchResult(doc, click) for doc, click in zip(shown, clicked, strict=True)]
        sessions.append(session)
    model = PBM()
    model.train(sessions)
    exam = [model.params[model.param_names.exam].get(rank).value() for rank in range(ranks)]
    return [(rank + 1, value / exam[0]) for rank, value in enumerate(exam)]


def clax(log):
    """The position-based model of clax, trained as its README does; a tenth of the page views is for validation."""
    import numpy as np
    from clax import PositionBasedModel, Trainer
    from flax import nnx
    from optax import adamw

    ranks = int(log["position"].max())
    # 0 is for padding.
    pairs = log.groupby(["query_id", "doc_id"], sort=False).ngroup().to_numpy() + 1
    views = len(log) // ranks
    arrays = {
        "positions": log["position"].to_numpy().astype(np.int32).reshape(views, ranks),
        "query_doc_ids": pairs.astype(np.int32).reshape(views, ranks),
        "clicks": log["clicked"].to_numpy().astype(np.float32).reshape(views, ranks),
        "mask": np.ones((views, ranks), dtype=bool),
    }
    order = np.random.default_rng(0).permutation(views)
    parts = order[views // 10 :], order[: views // 10]
    train, validation = ([{k: a[rows] for k, a in arrays.items()} for rows in _batches(part)] for part in parts)
    model = PositionBasedModel(positions=ranks, query_doc_pairs=int(pairs.max()), rngs=nnx.Rngs(0))
    Trainer(optimizer=adamw(0.003), epochs=50).train(model, train, validation)
    exam = np.asarray(model.examination.prob({"positions": np.arange(1, ranks + 1)}))
    return [(rank + 1, value / exam[0]) for rank, value in enumerate(exam)]


def _batches(rows, size=512):
    """Split rows into batches of equal size, so that JAX compiles once; what is left over is not used."""
    size = min(size, len(rows))
    return [rows[start : start + size] for start in range(0, len(rows) - size + 1, size)]


ESTIMATORS = {
    "all_pairs": toolkit("AllPairsEstimator"),
    "adjacent_chain": toolkit("AdjacentChainEstimator"),
    "pivot_one": toolkit("PivotEstimator"),
    "pyclick": pyclick,
    "clax": clax,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
