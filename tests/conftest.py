"""In CI nothing is skipped: a skipped test is a failure unless its reason is listed here."""

from __future__ import annotations

import os

import pytest

# Reasons for which a test may be skipped even in CI, by how they start.
ALLOWED: tuple[str, ...] = ()


def reason_of(report: pytest.TestReport) -> str:
    longrepr = report.longrepr
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and os.environ.get("CI") and not reason_of(report).startswith(ALLOWED or ("\0",)):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be: {reason_of(report)}"
    return report
