"""Threads of Python and of BLAS."""

from __future__ import annotations

from threading import current_thread

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import posbias
from posbias._arrays import map_threads, one_blas_thread
from posbias.estimators import cross_fit


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_blas_has_one_thread_inside_and_its_setting_again_afterwards() -> None:
    with threadpool_limits(limits=2, user_api="blas"):
        with one_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {2}


def test_a_fit_uses_one_thread_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    harvest = posbias.harvest(posbias.ClickLog(posbias.simulate(posbias.World(queries=200, max_rank=3))), max_rank=3)
    seen: list[set[int]] = []
    solve = cross_fit.solve_score

    def spy(*arguments: object, **options: object) -> object:
        seen.append(blas_threads())
        return solve(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(cross_fit, "solve_score", spy)
    with threadpool_limits(limits=2, user_api="blas"):
        fitted = posbias.CrossFit().fit(harvest)
    assert seen
    assert all(threads == {1} for threads in seen)
    assert np.isfinite(fitted.propensity_).all()


def test_threads_start_no_more_threads() -> None:
    """Threads in threads would wait for each other, and compute nothing sooner."""
    names = map_threads(lambda _: map_threads(lambda _: current_thread().name, range(3)), range(2))
    assert all(len(set(inner)) == 1 and inner[0] != current_thread().name for inner in names)
