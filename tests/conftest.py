"""What all tests share: engines to run on, which of them are servers, and what may be skipped in CI."""

from __future__ import annotations

import os
import signal
from typing import Any

import hypothesis
import pytest

import posbias.engines
from tests.support import sparks

# Reasons for which a test may be skipped even in CI, by how they start.
ALLOWED: tuple[str, ...] = ("Spark reads a byte that is not UTF-8", "PyTorch is")
# Neither how long an example takes nor how long it is in the making says anything on a machine that others use.
hypothesis.settings.register_profile("posbias", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("posbias")
# A shell's background job ignores Ctrl-C, and so would every command that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# On Spark, where a query takes a second, a property is tried on this many logs; DuckDB tries it on many more.
SPARK_EXAMPLES = 3


def reason_of(report: pytest.TestReport) -> str:
    longrepr = report.longrepr
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and os.environ.get("CI") and not reason_of(report).startswith(ALLOWED):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be: {reason_of(report)}"
    return report


@pytest.fixture(scope="module", params=[sparks.on_server(name) for name in posbias.engines.ENGINES])
def each_engine(request: pytest.FixtureRequest) -> str:
    """Run a test on every engine: what is opened without naming one is opened by it."""
    if request.param == "spark":
        sparks.session()
    return str(request.param)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    """Make the engine of a test the default one: the fixture of a module outlives its tests, and others run between."""
    callspec = getattr(item, "callspec", None)
    posbias.engines.DEFAULT = callspec.params.get("each_engine", "duckdb") if callspec else "duckdb"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Any:
    """Try a property on fewer logs where each takes long."""
    spark = getattr(item, "callspec", None) and "spark" in item.callspec.params.values()
    test = getattr(item, "obj", None)
    usual = getattr(test, "_hypothesis_internal_use_settings", None)
    if not (spark and usual):
        return (yield)
    fewer = hypothesis.settings(usual, max_examples=min(usual.max_examples, SPARK_EXAMPLES))
    test._hypothesis_internal_use_settings = fewer
    try:
        return (yield)
    finally:
        test._hypothesis_internal_use_settings = usual
