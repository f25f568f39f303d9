"""The registry of all experiments: each name maps to a function that takes a `Laboratory` and returns an `Outcome`.

Reference: Agarwal et al., Estimating Position Bias without Intrusive Interventions, WSDM 2019, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from experiments.alarms import run_alarms
from experiments.arxiv import run_arxiv
from experiments.audit import run_audit
from experiments.click_judgments import run_judgments
from experiments.coverage import run_coverage
from experiments.crawlers import run_crawlers
from experiments.diagnosis import run_diagnosis
from experiments.doubly_robust import run_doubly_robust
from experiments.drift import run_drift
from experiments.drive import run_drive
from experiments.estimators import run_estimators
from experiments.evaluation import run_evaluation
from experiments.laboratory import FULL, QUICK, Laboratory, open_laboratory
from experiments.learning import run_learning
from experiments.learning_ranker import run_ranker
from experiments.outcomes import Outcome
from experiments.planning import run_planning
from experiments.pooling import run_pooling
from experiments.robustness import STUDIES, run_study
from experiments.synthetic import run_synthetic
from posbias.errors import PosbiasError
from posbias.progress import Progress, silent

EXPERIMENTS: dict[str, Callable[[Laboratory], Outcome]] = {
    "synthetic": run_synthetic,
    **{name: partial(run_study, name=name) for name in STUDIES},
    "arxiv": run_arxiv,
    "drive": run_drive,
    "estimators": run_estimators,
    "coverage": run_coverage,
    "diagnosis": run_diagnosis,
    "alarms": run_alarms,
    "crawlers": run_crawlers,
    "drift": run_drift,
    "pooling": run_pooling,
    "planning": run_planning,
    "evaluation": run_evaluation,
    "learning": run_learning,
    "ranker": run_ranker,
    "doubly-robust": run_doubly_robust,
    "judgments": run_judgments,
    "audit": run_audit,
}
# These simulate their own logs and use no judgments.
WITHOUT_JUDGMENTS = (
    "estimators",
    "coverage",
    "diagnosis",
    "alarms",
    "crawlers",
    "drift",
    "pooling",
    "planning",
    "evaluation",
    "judgments",
    "audit",
)


def run(
    names: Sequence[str],
    *,
    quick: bool = False,
    data: str | None = None,
    seed: int = 0,
    folder: Path | None = None,
    setting: str | None = None,
    progress: Progress = silent,
) -> Iterator[Outcome]:
    """Run experiments on one set of judgments, and yield each outcome as soon as it is finished.

    Arguments:
        names: names in `EXPERIMENTS`. Experiments that use the same rankers train them once.
        quick: use fewer queries, runs and points, to finish in seconds instead of minutes.
        data: a LETOR file of judgments, used instead of generated judgments.
        seed: the random seed of everything that is simulated.
        folder: where parts of the results are stored, so that an interrupted audit can continue.
        setting: run only the settings of the audit whose names contain this text.
        progress: a function that is called with the current step and the share that is done.
    """
    for name in names:
        if name not in EXPERIMENTS:
            raise PosbiasError(f"There is no experiment {name!r}. Use one of {', '.join(EXPERIMENTS)}.")
    if data is not None and all(name in WITHOUT_JUDGMENTS for name in names):
        raise PosbiasError(f"{' and '.join(names)} simulate their own logs and use no judgments: omit data.")
    if setting is not None and "audit" not in names:
        raise PosbiasError("Only the experiment audit has single settings: omit setting.")
    lab = open_laboratory(data, QUICK if quick else FULL, seed)
    lab.folder, lab.setting = folder, setting
    for number, name in enumerate(names):
        lab.progress = partial(_report, progress, number, len(names))
        yield EXPERIMENTS[name](lab)


def _report(progress: Progress, number: int, total: int, step: str, share: float) -> None:
    """Convert the progress of one experiment to the progress of all."""
    progress(step, (number + share) / total)
